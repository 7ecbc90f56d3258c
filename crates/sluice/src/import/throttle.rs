//! QEMU's disk throttling as policy fields.
//!
//! QEMU has twelve rates (requests and bytes; total, reads and writes; a limit and a maximum in bursts), a burst time for
//! each maximum, and a size from which a request counts several times. A policy has limits for each direction and one
//! burst for all of them. Example: `total_iops_sec` 2000 with `total_iops_sec_max` 5000 for 10 s becomes
//! `limit = "2000 iops"` and `burst = { rate = "5000 iops", for = "10s" }`.

use sluice_sched::{ByteRate, Bytes, CostModel, Kind};

use super::ImportError;

/// Unit that a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Requests,
    Bytes,
}

/// Requests that a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Total,
    Read,
    Write,
}

/// Part of a throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Limit,
    /// Maximum in a burst.
    Max,
    /// Length of a burst, in seconds.
    Length,
}

const DIRECTIONS: [(Direction, &str, &str); 3] = [
    (Direction::Total, "", "limit"),
    (Direction::Read, " of reads", "read_limit"),
    (Direction::Write, " of writes", "write_limit"),
];
/// Smallest rate that a host file accepts, in bytes per second.
const BYTE_RATE_MIN: u64 = 1024;
const UNITS: [Unit; 2] = [Unit::Requests, Unit::Bytes];

/// The throttle of a disk, as stated. 0 means that a value is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Throttle {
    entries: Vec<(Unit, Direction, Part, u64)>,
    /// Size from which a request counts several times, in bytes.
    pub(crate) iops_size: Option<u64>,
    /// Keys and values as the other system writes them, for comments.
    pub(crate) stated: Vec<String>,
}

/// Policy fields, as lines of a host file, and what is lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) lines: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

impl Throttle {
    pub(crate) fn set(&mut self, unit: Unit, direction: Direction, part: Part, value: u64) {
        if value > 0 {
            self.entries.push((unit, direction, part, value));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn get(&self, unit: Unit, direction: Direction, part: Part) -> Option<u64> {
        let found = self.entries.iter().find(|entry| (entry.0, entry.1, entry.2) == (unit, direction, part));
        found.map(|entry| entry.3.max(least(unit, part)))
    }

    /// Adds a throttle that applies as well: of each rate the smaller limit counts, and the smaller maximum in bursts.
    pub(crate) fn and(mut self, mut other: Throttle) -> Throttle {
        if self.is_empty() {
            other.stated = [self.stated, other.stated].concat();
            return other;
        }
        if self.iops_size != other.iops_size {
            self.use_reference_size();
            other.use_reference_size();
        }
        for (unit, direction) in UNITS.into_iter().flat_map(|unit| DIRECTIONS.map(|(direction, ..)| (unit, direction)))
        {
            let part = |throttle: &Throttle, part| throttle.get(unit, direction, part);
            let smaller = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
            let Some(limit) = part(&other, Part::Limit) else { continue };
            let Some(own) = part(&self, Part::Limit) else {
                self.entries.retain(|entry| (entry.0, entry.1) != (unit, direction));
                self.entries.extend(other.entries.iter().filter(|entry| (entry.0, entry.1) == (unit, direction)));
                continue;
            };
            let peak = part(&self, Part::Max).unwrap_or(own).min(part(&other, Part::Max).unwrap_or(limit));
            let length = smaller(part(&self, Part::Length), part(&other, Part::Length));
            let limit = own.min(limit);
            self.entries.retain(|entry| (entry.0, entry.1) != (unit, direction));
            self.set(unit, direction, Part::Limit, limit);
            if peak > limit {
                self.set(unit, direction, Part::Max, peak);
                self.set(unit, direction, Part::Length, length.unwrap_or(0));
            }
        }
        self.stated.append(&mut other.stated);
        self
    }

    /// States rates of requests in requests of the reference size.
    fn use_reference_size(&mut self) {
        let normalised = |entry: &(Unit, Direction, Part, u64)| match entry {
            (Unit::Requests, direction, part @ (Part::Limit | Part::Max), rate) => {
                (Unit::Requests, *direction, *part, self.normalised(*rate))
            }
            other => *other,
        };
        self.entries = self.entries.iter().map(normalised).collect();
        self.iops_size = None;
    }

    /// Returns the policy fields of `disk`.
    pub(crate) fn fields(&self, disk: &str) -> Fields {
        let mut fields = Fields::default();
        for (_, _, _, rate) in self.entries.iter().filter(|entry| entry.3 < least(entry.0, entry.2)) {
            let least = Bytes(BYTE_RATE_MIN);
            fields
                .warnings
                .push(format!("{disk}: a rate of {rate} B/s is raised to {least}/s, the smallest of a host file"));
        }
        for (direction, _, key) in DIRECTIONS {
            let rates = UNITS.map(|unit| self.get(unit, direction, Part::Limit));
            if let Some(value) = self.value(rates) {
                fields.lines.push(format!("{key} = {value}"));
            }
        }
        if self.entries.iter().any(|entry| entry.0 == Unit::Requests) {
            fields.lines.insert(0, self.comment());
        }
        let rates = UNITS.map(|unit| self.burst_rate(unit, disk, &mut fields.warnings));
        if let Some(value) = self.value(rates) {
            let length = self.burst_length(rates, disk, &mut fields.warnings);
            fields.lines.push(format!("burst = {{ rate = {value}, for = \"{length}s\" }}"));
        }
        fields
    }

    /// Returns what a rate of requests means here, as a comment.
    fn comment(&self) -> String {
        match self.iops_size {
            None => "# A request of 8 KiB counts as 1, of 256 KiB as 1.82; QEMU counted each request as 1.".to_owned(),
            Some(size) => format!(
                "# QEMU counted requests in units of {}; these are the same rates of requests of that size, in units of 8 KiB.",
                Bytes(size)
            ),
        }
    }

    /// Returns a rate in requests, a rate in bytes, or a table of both.
    fn value(&self, [requests, bytes]: [Option<u64>; 2]) -> Option<String> {
        let requests = requests.map(|rate| format!("\"{} iops\"", self.normalised(rate)));
        let bytes = bytes.map(|rate| format!("\"{}\"", ByteRate::per_second(rate)));
        match (requests, bytes) {
            (Some(requests), Some(bytes)) => Some(format!("{{ iops = {requests}, bytes = {bytes} }}")),
            (requests, bytes) => requests.or(bytes),
        }
    }

    /// Converts requests per second of the stated size to normalised requests.
    fn normalised(&self, rate: u64) -> u64 {
        let Some(size) = self.iops_size else { return rate };
        let length = u32::try_from(size).unwrap_or(u32::MAX);
        let cost = CostModel::default().cost(Kind::Read, length).as_f64();
        (rate as f64 * cost.max(1.0)).ceil() as u64
    }

    /// Returns the rate of a burst in `unit`: the largest maximum, if it is above all limits.
    fn burst_rate(&self, unit: Unit, disk: &str, warnings: &mut Vec<String>) -> Option<u64> {
        let what = if unit == Unit::Requests { "requests" } else { "bytes" };
        let mut maxima = Vec::new();
        for (direction, title, _) in DIRECTIONS {
            let Some(max) = self.get(unit, direction, Part::Max) else { continue };
            match self.get(unit, direction, Part::Limit) {
                None => warnings.push(format!(
                    "{disk}: a burst of {what}{title} without a limit{title} has no effect; it is left out"
                )),
                Some(limit) if max > limit => maxima.push(max),
                Some(_) => {}
            }
        }
        let rate = maxima.iter().copied().max()?;
        let limits = DIRECTIONS.into_iter().filter_map(|(direction, ..)| self.get(unit, direction, Part::Limit));
        let limits: Vec<u64> = limits.collect();
        if limits.iter().any(|limit| *limit >= rate) {
            warnings.push(format!(
                "{disk}: a burst applies to reads and writes alike and must be above both limits; the burst of {what} is left out"
            ));
            return None;
        }
        if limits.len() > maxima.len() || maxima.iter().any(|max| *max != rate) {
            warnings.push(format!(
                "{disk}: a burst applies to reads and writes alike; both may now burst to the larger rate of {what}"
            ));
        }
        Some(rate)
    }

    /// Returns the length of the burst in seconds: the longest of those that are used. QEMU's default is 1.
    fn burst_length(&self, rates: [Option<u64>; 2], disk: &str, warnings: &mut Vec<String>) -> u64 {
        let used = self.entries.iter().filter(|entry| {
            let rate = if entry.0 == Unit::Requests { rates[0] } else { rates[1] };
            entry.2 == Part::Max && rate.is_some()
        });
        let lengths = used.map(|entry| self.get(entry.0, entry.1, Part::Length).unwrap_or(1));
        let lengths: Vec<u64> = lengths.collect();
        let longest = lengths.iter().copied().max().unwrap_or(1);
        if lengths.iter().any(|length| *length != longest) {
            warnings.push(format!("{disk}: its bursts have different lengths; all of them may now last {longest} s"));
        }
        longest
    }
}

/// The smallest value that a host file accepts.
fn least(unit: Unit, part: Part) -> u64 {
    if unit == Unit::Bytes && part != Part::Length { BYTE_RATE_MIN } else { 1 }
}

/// Parses a number of a throttle; `scale` is the unit of the key.
pub(crate) fn number(disk: &str, key: &str, value: &str, scale: u64) -> Result<u64, ImportError> {
    let number = value.trim().parse::<f64>().ok().filter(|number| (0.0..9.0e15 / scale as f64).contains(number));
    let number = number.ok_or_else(|| ImportError::NoNumber {
        disk: disk.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
    })?;
    Ok((number * scale as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(entries: &[(Unit, Direction, Part, u64)], size: Option<u64>) -> (Vec<String>, Vec<String>) {
        let mut throttle = Throttle { iops_size: size, ..Throttle::default() };
        for (unit, direction, part, value) in entries {
            throttle.set(*unit, *direction, *part, *value);
        }
        let fields = throttle.fields("vda");
        (fields.lines.into_iter().filter(|line| !line.starts_with('#')).collect(), fields.warnings)
    }

    #[test]
    fn a_throttle_becomes_limits_and_a_burst() {
        use Direction::{Read, Total, Write};
        use Part::{Length, Limit, Max};
        use Unit::{Bytes, Requests};
        let (lines, warnings) = fields(
            &[
                (Requests, Total, Limit, 2000),
                (Requests, Total, Max, 5000),
                (Requests, Total, Length, 10),
                (Bytes, Read, Limit, 100 << 20),
                (Bytes, Write, Limit, 50_000_000),
            ],
            None,
        );
        assert_eq!(
            lines,
            [
                "limit = \"2000 iops\"",
                "read_limit = \"100MiB/s\"",
                "write_limit = \"50000000B/s\"",
                "burst = { rate = \"5000 iops\", for = \"10s\" }"
            ]
        );
        assert_eq!(warnings, [""; 0]);
        let (lines, warnings) = fields(&[(Requests, Total, Limit, 1000), (Bytes, Total, Limit, 1 << 20)], Some(65536));
        assert_eq!(lines, ["limit = { iops = \"1187 iops\", bytes = \"1MiB/s\" }"]);
        assert!(warnings.is_empty());
    }

    #[test]
    fn a_rate_below_the_smallest_was_raised_without_a_word() {
        let (lines, warnings) = fields(&[(Unit::Bytes, Direction::Total, Part::Limit, 500)], None);
        assert_eq!(lines, ["limit = \"1KiB/s\""]);
        assert_eq!(warnings, ["vda: a rate of 500 B/s is raised to 1KiB/s, the smallest of a host file"]);
    }

    #[test]
    fn bursts_that_differ_are_reported() {
        use Direction::{Read, Write};
        use Part::{Length, Limit, Max};
        use Unit::Requests;
        let read = [(Requests, Read, Limit, 100), (Requests, Read, Max, 200), (Requests, Read, Length, 5)];
        let (lines, warnings) = fields(&[&read[..], &[(Requests, Write, Limit, 50)]].concat(), None);
        assert_eq!(lines[2], "burst = { rate = \"200 iops\", for = \"5s\" }");
        assert!(warnings[0].contains("both may now burst"), "{warnings:?}");
        let (lines, warnings) = fields(&[&read[..], &[(Requests, Write, Limit, 500)]].concat(), None);
        assert_eq!((lines.len(), warnings.len()), (2, 1), "{warnings:?}");
        let (lines, warnings) = fields(&[(Requests, Read, Max, 500)], None);
        assert_eq!((lines.len(), warnings.len()), (0, 1), "{warnings:?}");
        let write = [(Requests, Write, Limit, 100), (Requests, Write, Max, 200)];
        let (lines, warnings) = fields(&[&read[..], &write].concat(), None);
        assert_eq!(lines[2], "burst = { rate = \"200 iops\", for = \"5s\" }");
        assert!(warnings[0].contains("may now last 5 s"), "{warnings:?}");
    }

    #[test]
    fn of_two_throttles_the_smaller_limit_and_the_smaller_burst_count() {
        use Direction::{Read, Total};
        use Part::{Length, Limit, Max};
        use Unit::{Bytes, Requests};
        let throttle = |entries: &[(Unit, Direction, Part, u64)], iops_size| {
            let mut throttle = Throttle { iops_size, ..Throttle::default() };
            entries.iter().for_each(|(unit, direction, part, value)| throttle.set(*unit, *direction, *part, *value));
            throttle
        };
        let own = throttle(
            &[(Requests, Total, Limit, 400), (Requests, Total, Max, 1000), (Requests, Total, Length, 10)],
            None,
        );
        let group = throttle(&[(Requests, Total, Limit, 700), (Bytes, Read, Limit, 7 << 20)], None);
        let sized = throttle(&[(Requests, Total, Limit, 500)], Some(65_536));
        let lines = |throttle: Throttle| throttle.fields("vda").lines.into_iter().skip(1).collect::<Vec<_>>();
        let expected =
            ["limit = \"400 iops\"", "read_limit = \"7MiB/s\"", "burst = { rate = \"700 iops\", for = \"10s\" }"];
        assert_eq!(lines(own.clone().and(group.clone())), expected);
        assert_eq!(lines(group.and(own)), expected);
        let small = throttle(&[(Requests, Total, Limit, 600)], None);
        assert_eq!(lines(sized.and(small)), ["limit = \"594 iops\""], "500 requests of 64 KiB are 594 of 8 KiB");
    }

    #[test]
    fn numbers_are_checked() {
        assert_eq!(number("vda", "mbps", "10.5", 1 << 20).unwrap(), 11_010_048);
        for wrong in ["", "-1", "x", "nan", "inf", "1e30"] {
            assert!(number("vda", "iops", wrong, 1).is_err(), "{wrong}");
        }
    }
}
