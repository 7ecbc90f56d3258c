//! Time of day. It is an argument everywhere else, so that tests can choose it.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A time of day, in whole seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time of day. If the host's clock is set while this process runs, this one goes on as before: what was made
    /// for ten minutes ends in ten minutes.
    pub fn now() -> Time {
        static START: OnceLock<(SystemTime, Instant)> = OnceLock::new();
        let (wall, start) = START.get_or_init(|| (SystemTime::now(), Instant::now()));
        let now = *wall + start.elapsed();
        Time(now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Returns the time of day as the host's clock has it now, for people and other programs. It may be set, also back.
    pub fn of_clock() -> Time {
        Time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Time from `now` until this, in whole seconds; zero if it has passed.
    pub fn from(self, now: Time) -> Duration {
        Duration::from_secs(self.0.saturating_sub(now.0))
    }
}

impl core::fmt::Display for Time {
    /// For example `2026-11-23T03:05:00Z`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let time = UNIX_EPOCH + Duration::from_secs(self.0.min(LAST));
        write!(f, "{}", humantime::format_rfc3339_seconds(time))
    }
}

/// Reads a length of time that an operator states, for example `1h` or `2days`.
///
/// # Errors
/// It is none; the text shows one. `10M` would be ten months, and is more likely meant as ten minutes.
pub fn length(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if !text.is_empty() && text.chars().all(|digit| digit.is_ascii_digit()) {
        return Err(format!("{text} has no unit; write for example {text}m, {text}h or {text}days"));
    }
    let length = humantime::parse_duration(text).ok().filter(|_| !text.contains('M'));
    length.ok_or_else(|| "it is not a length of time; write for example 30m, 1h or 2days".to_owned())
}

/// The end of the year 9999, after which dates cannot be written.
const LAST: u64 = 253_402_300_799;
