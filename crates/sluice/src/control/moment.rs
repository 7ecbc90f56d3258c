//! Moments that an operator states: `--since` and `--until` of the past, and `--until` of a change, which is to come.

use core::str::FromStr;
use core::time::Duration;

use jiff::civil;
use jiff::{Timestamp, ZonedDateTime};
use sluice_daemon::state::time::{Time, length};

use crate::usage;

/// A moment of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// This time ago. It moves on if the question is repeated.
    Ago(Duration),
    At(Time),
}

impl Moment {
    /// The moment in seconds since 1970.
    pub(crate) fn at(self, now: Time) -> u64 {
        match self {
            Moment::Ago(length) => now.0.saturating_sub(length.as_secs()),
            Moment::At(time) => time.0,
        }
    }
}

/// Returns both ends of a time in seconds since 1970. If it ends before it begins, the program ends.
pub(crate) fn period(since: Option<Moment>, until: Option<Moment>, now: Time) -> (Option<u64>, Option<u64>) {
    let (since, until) = (since.map(|since| since.at(now)), until.map(|until| until.at(now)));
    if let (Some(begin), Some(end)) = (since, until)
        && end < begin
    {
        usage::wrong(&format!(
            "--until ({}) is before --since ({}); exchange them, as in --since yesterday --until today",
            Time(end),
            Time(begin)
        ));
    }
    (since, until)
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        read(text, &ZonedDateTime::now())
    }
}

const ADVICE: &str =
    "it is no moment of the past; write for example 2h, 08:00, \"yesterday 08:00\", today or 2026-11-28T08:00:00Z";

/// Reads a moment. Times of day are those of the time zone of `now`.
fn read(text: &str, now: &ZonedDateTime) -> Result<Moment, String> {
    let text = text.trim();
    // As in `-2h` of other programs, and `2h ago`.
    let back = text.strip_prefix('-').unwrap_or(text);
    let back = back.strip_suffix("ago").unwrap_or(back).trim();
    if back.is_empty() || back.chars().all(|digit| digit.is_ascii_digit()) {
        return length(back).map(Moment::Ago);
    }
    if let Ok(length) = length(back) {
        return Ok(Moment::Ago(length));
    }
    let at = timestamp(text, now, Side::Past).ok_or(ADVICE)?;
    if at > now.timestamp() {
        return Err("it has not come yet; write a moment of the past, for example 2h".to_owned());
    }
    u64::try_from(at.as_second()).map(|at| Moment::At(Time(at))).map_err(|_| ADVICE.to_owned())
}

/// Reads a moment that is to come, for clap.
pub(crate) fn to_come(text: &str) -> Result<Time, String> {
    read_to_come(text, &ZonedDateTime::now())
}

fn read_to_come(text: &str, now: &ZonedDateTime) -> Result<Time, String> {
    let text = text.trim();
    if length(text).is_ok() {
        return Err(format!("it is a length of time; write --for {text}"));
    }
    let at = timestamp(text, now, Side::Future).and_then(|at| u64::try_from(at.as_second()).ok());
    // The daemon refuses what has passed by its clock.
    at.map(Time).ok_or_else(|| {
        "it is no moment; write for example 23:10, \"tomorrow 08:00\", 2026-11-28 or 2026-11-28T22:10:00Z".to_owned()
    })
}

/// The side of now on which a time of day alone is.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Past,
    Future,
}

fn timestamp(text: &str, now: &ZonedDateTime, side: Side) -> Option<Timestamp> {
    text.to_uppercase().parse::<Timestamp>().ok().or_else(|| local(&text.to_lowercase(), now, side))
}

/// Reads a time of day, a day, or both. A time alone is the last one, so it may be of yesterday, or the next one.
fn local(text: &str, now: &ZonedDateTime, side: Side) -> Option<Timestamp> {
    let at = |day: civil::Date, clock: civil::Time| {
        Some(day.to_datetime(clock).to_zoned_datetime(now.time_zone().clone()).ok()?.timestamp())
    };
    let day = |text: &str| match text {
        "today" => Some(now.date()),
        "yesterday" => now.date().yesterday().ok(),
        "tomorrow" => now.date().tomorrow().ok(),
        date => date.parse().ok(),
    };
    if let Some(clock) = clock(text) {
        let today = at(now.date(), clock)?;
        return match (side, today > now.timestamp()) {
            (Side::Past, true) => at(day("yesterday")?, clock),
            (Side::Future, false) => at(day("tomorrow")?, clock),
            _ => Some(today),
        };
    }
    match text.split_once(' ').or_else(|| text.split_once('t').filter(|(date, _)| day(date).is_some())) {
        Some((date, time)) => at(day(date)?, clock(time.trim())?),
        None => at(day(text)?, civil::Time::midnight()),
    }
}

/// Reads `08:00`, `8:00` or `08:00:30`.
fn clock(text: &str) -> Option<civil::Time> {
    let zero = if text.find(':') == Some(1) { "0" } else { "" };
    let is_clock = text.contains(':') && text.chars().all(|c| c.is_ascii_digit() || c == ':');
    is_clock.then(|| format!("{zero}{text}").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    #[test]
    fn a_moment_is_a_time_ago_a_time_of_day_or_a_date() {
        // Berlin, on the day after the clocks went back.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let now = civil::datetime(2026, 10, 26, 9, 30, 0, 0).to_zoned_datetime(zone).unwrap();
        let ago = |seconds| Ok(Moment::Ago(Duration::from_secs(seconds)));
        for (text, seconds) in [("2h", 7200), ("-2h", 7200), ("2h ago", 7200), ("30 min", 1800), ("7days", 604_800)] {
            assert_eq!(read(text, &now), ago(seconds), "{text}");
        }
        let at = |text: &str| match read(text, &now) {
            Ok(Moment::At(time)) => time.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        for (text, time) in [
            ("08:00", "2026-10-26T07:00:00Z"),
            ("8:00", "2026-10-26T07:00:00Z"),
            ("22:15:30", "2026-10-25T21:15:30Z"),
            ("today", "2026-10-25T23:00:00Z"),
            ("Yesterday", "2026-10-24T22:00:00Z"),
            ("yesterday 01:00", "2026-10-24T23:00:00Z"),
            ("2026-10-24", "2026-10-23T22:00:00Z"),
            ("2026-10-24 08:00", "2026-10-24T06:00:00Z"),
            ("2026-10-24t08:00:00", "2026-10-24T06:00:00Z"),
            ("2026-10-24T08:00:00Z", "2026-10-24T08:00:00Z"),
            ("2026-10-24T08:00:00+02:00", "2026-10-24T06:00:00Z"),
        ] {
            assert_eq!(at(text), time, "{text}");
        }
        for (text, expected) in [
            ("", "write for example"),
            ("10M", "write for example 2h"),
            ("soon", "write for example 2h"),
            ("25:00", "write for example 2h"),
            ("tomorrow", "it has not come yet"),
            ("yesterday noon", "write for example 2h"),
            ("2026-13-01", "write for example 2h"),
            ("1930-01-01", "write for example 2h"),
            ("15", "15 has no unit; write for example 15m"),
            ("today 10:00", "it has not come yet"),
            ("2030-01-01", "it has not come yet"),
        ] {
            let error = read(text, &now).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_moment_to_come_is_a_time_of_day_or_a_date() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let now = civil::datetime(2026, 10, 26, 9, 30, 0, 0).to_zoned_datetime(zone).unwrap();
        let at = |text: &str| read_to_come(text, &now).map(|time| time.to_string());
        for (text, time) in [
            ("23:10", "2026-10-26T22:10:00Z"),
            ("9:30", "2026-10-27T08:30:00Z"),
            ("tomorrow", "2026-10-26T23:00:00Z"),
            ("Tomorrow 08:00", "2026-10-27T07:00:00Z"),
            ("2026-11-28 23:10", "2026-11-28T22:10:00Z"),
            ("2026-11-28T22:10:00Z", "2026-11-28T22:10:00Z"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(time), "{text}");
        }
        assert_eq!(at("10m"), Err("it is a length of time; write --for 10m".to_owned()));
        assert!(at("soon").unwrap_err().contains("write for example 23:10"));
    }

    #[test]
    fn a_time_ago_moves_on() {
        assert_eq!(Moment::Ago(Duration::from_secs(60)).at(Time(100)), 40);
        assert_eq!(Moment::Ago(Duration::from_secs(200)).at(Time(100)), 0);
        assert_eq!(Moment::At(Time(7)).at(Time(100)), 7);
    }
}
