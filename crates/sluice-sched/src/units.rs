//! Quantities with units: rates, sizes, weights, and how they are parsed and formatted.
//!
//! A number without its unit is rejected, and 0 never means "unlimited". `k M G` are powers of 1000, `Ki Mi Gi` of
//! 1024. IOPS are normalised to a stated size and always formatted with it: `2000 iops@8KiB`.

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A quantity that cannot be parsed; the text says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("'{text}' does not start with a number; write for example \"{example}\"")]
    NoNumber { text: String, example: &'static str },
    /// A number without a unit.
    #[error("'{text}' has no unit; write for example \"{example}\"")]
    NoUnit { text: String, example: String },
    /// A unit that does not fit here.
    #[error("'{unit}' is not a unit of {quantity}; write for example \"{example}\"")]
    WrongUnit { unit: String, quantity: &'static str, example: String },
    /// Out of range.
    #[error("{quantity} '{text}' is out of range; it must be {range}")]
    OutOfRange { text: String, quantity: &'static str, range: &'static str },
}

/// A size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

/// A rate in bytes per second; at least 1 KiB/s.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteRate(NonZeroU64);

/// A rate of normalised requests: thousandths of a request per second; from 0.001 to 10^12 requests per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Iops(NonZeroU64);

/// A part of a whole in hundredths of a percent, from 0 % to 100 %.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Percent(u16);

/// Share of the spare capacity, in hundredths; from 0.01 to 1,000,000, default 100.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Weight(u32);

impl Bytes {
    /// `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Bytes(n * 1024)
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Bytes(n * 1024 * 1024)
    }
}

impl ByteRate {
    /// The smallest rate that is accepted.
    pub const MIN: ByteRate = ByteRate(NonZeroU64::new(1024).expect("1024 is not 0"));

    /// A rate of `bytes` per second; values below 1 KiB/s become 1 KiB/s.
    #[must_use]
    pub const fn per_second(bytes: u64) -> Self {
        match NonZeroU64::new(bytes) {
            Some(rate) if bytes >= 1024 => ByteRate(rate),
            _ => ByteRate::MIN,
        }
    }

    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0.get()
    }
}

impl Iops {
    const MAX_MILLI: u64 = 1_000_000_000_000_000;

    /// A rate of `requests` normalised requests per second; at least 0.001 and at most 10^12.
    #[must_use]
    pub const fn per_second(requests: u64) -> Self {
        Iops::from_milli(requests.saturating_mul(1000))
    }

    /// A rate of `milli` thousandths of a request per second; at least 1 and at most 10^15.
    #[must_use]
    pub const fn from_milli(milli: u64) -> Self {
        let within = if milli > Self::MAX_MILLI { Self::MAX_MILLI } else { milli };
        match NonZeroU64::new(within) {
            Some(milli) => Iops(milli),
            None => Iops(NonZeroU64::MIN),
        }
    }

    /// Thousandths of a request per second.
    #[must_use]
    pub const fn milli(self) -> u64 {
        self.0.get()
    }

    /// Requests per second, for output.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.milli() as f64 / 1000.0
    }
}

impl Percent {
    /// 0 %.
    pub const ZERO: Percent = Percent(0);
    /// 100 %.
    pub const WHOLE: Percent = Percent(10_000);

    /// `hundredths` of a percent; clamped to 10,000.
    #[must_use]
    pub const fn from_hundredths(hundredths: u16) -> Self {
        if hundredths > 10_000 { Percent::WHOLE } else { Percent(hundredths) }
    }

    /// Hundredths of a percent.
    #[must_use]
    pub const fn hundredths(self) -> u64 {
        self.0 as u64
    }
}

impl Weight {
    /// Weight of a VM without a stated weight: 100.
    pub const DEFAULT: Weight = Weight(10_000);
    /// The smallest weight, 0.01: that of background VMs.
    pub const MIN: Weight = Weight(1);
    /// The largest weight, 1,000,000.
    pub const MAX: Weight = Weight(100_000_000);

    /// A whole weight; clamped to 1 to 1,000,000.
    #[must_use]
    pub const fn new(weight: u32) -> Self {
        Weight::from_hundredths(weight as u64 * 100)
    }

    /// A weight in hundredths; clamped to 1 to 100,000,000.
    #[must_use]
    pub const fn from_hundredths(hundredths: u64) -> Self {
        if hundredths == 0 {
            Weight::MIN
        } else if hundredths > Weight::MAX.0 as u64 {
            Weight::MAX
        } else {
            Weight(hundredths as u32)
        }
    }

    #[must_use]
    pub const fn hundredths(self) -> u64 {
        self.0 as u64
    }

    /// The weight as a number, for output.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// The number at the start of `text` in thousandths, and the trimmed rest.
fn split_number<'a>(text: &'a str, example: &'static str) -> Result<(u128, &'a str), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_' && c != ' ').unwrap_or(text.len());
    let number: String = text[..end].chars().filter(|c| *c != '_' && *c != ' ').collect();
    let no_number = || UnitError::NoNumber { text: text.to_owned(), example };
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 3 || fraction.contains('.') {
        return Err(no_number());
    }
    let whole: u128 = whole.parse().map_err(|_| no_number())?;
    let milli: u128 = format!("{fraction:0<3}").parse().map_err(|_| no_number())?;
    Ok((whole * 1000 + milli, text[end..].trim()))
}

/// The factor of a prefix `k M G T Ki Mi Gi Ti`, and the unit after it.
fn split_prefix(unit: &str) -> (u128, &str) {
    const PREFIXES: [(&str, u128); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    for (prefix, factor) in PREFIXES {
        if let Some(rest) = unit.strip_prefix(prefix) {
            return (factor, rest);
        }
    }
    (1, unit)
}

fn parse_with_unit(text: &str, unit: &str, quantity: &'static str, example: &'static str) -> Result<u128, UnitError> {
    let (milli, rest) = split_number(text, example)?;
    let number = text.trim().strip_suffix(rest).unwrap_or(text).trim();
    if rest.is_empty() {
        let unit = if unit == "B" { "MiB" } else { unit };
        return Err(UnitError::NoUnit { text: text.to_owned(), example: format!("{number} {unit}") });
    }
    let (factor, found) = split_prefix(rest);
    let found = found.trim_start();
    // Requests are not mistaken for something else in capitals, as bits and bytes are.
    if found != unit && !(unit == "iops" && found.eq_ignore_ascii_case(unit)) {
        let example = meant(rest, unit).map_or_else(|| example.to_owned(), |unit| format!("{number}{unit}"));
        return Err(UnitError::WrongUnit { unit: rest.to_owned(), quantity, example });
    }
    Ok(milli.saturating_mul(factor))
}

/// The unit that is meant by its start, or by a text in capitals: `GiB` for `G` or `gib`.
fn meant(found: &str, unit: &str) -> Option<String> {
    let found = found.to_ascii_lowercase();
    let units = ["Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T", ""].map(|prefix| format!("{prefix}{unit}"));
    let is_it = |known: &&String| known.to_ascii_lowercase() == found;
    let starts = |known: &&String| known.to_ascii_lowercase().starts_with(&found);
    units.iter().find(is_it).or_else(|| units.iter().find(starts)).cloned()
}

impl FromStr for Bytes {
    type Err = UnitError;

    /// Reads `8KiB`, `1.5 GiB`, `512 B`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let milli = parse_with_unit(text, "B", "a size", "64KiB")?;
        let range = "a whole number of bytes below 16 EiB";
        let out_of_range = || UnitError::OutOfRange { text: text.to_owned(), quantity: "Size", range };
        if milli % 1000 != 0 {
            return Err(out_of_range());
        }
        u64::try_from(milli / 1000).map(Bytes).map_err(|_| out_of_range())
    }
}

impl FromStr for ByteRate {
    type Err = UnitError;

    /// Reads `100MiB/s`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let milli = parse_with_unit(text, "B/s", "a byte rate", "100MiB/s")?;
        let bytes = u64::try_from(milli / 1000).unwrap_or(u64::MAX);
        if !(1024..=1 << 50).contains(&bytes) {
            let range = "from 1KiB/s to 1024TiB/s";
            return Err(UnitError::OutOfRange { text: text.to_owned(), quantity: "Byte rate", range });
        }
        Ok(ByteRate::per_second(bytes))
    }
}

/// Reads the rate of a network link, in bits or in bytes per second: `200Mbit/s`, `25MB/s`. Bits are rounded down to whole bytes.
pub fn parse_link_rate(text: &str) -> Result<ByteRate, UnitError> {
    let in_bytes = text.trim_end().ends_with("B/s");
    let (unit, divisor) = if in_bytes { ("B/s", 1000) } else { ("bit/s", 8000) };
    let milli = parse_with_unit(text, unit, "a link's rate", "200Mbit/s")?;
    let bytes = u64::try_from(milli / divisor).unwrap_or(u64::MAX);
    if !(1024..=1 << 50).contains(&bytes) {
        let range = "from 8.192kbit/s, which is 1KiB/s, to 1024TiB/s";
        return Err(UnitError::OutOfRange { text: text.to_owned(), quantity: "Link rate", range });
    }
    Ok(ByteRate::per_second(bytes))
}

/// Formats the rate of a network link in bits per second with at most three decimals: `200Mbit/s`, `2.5Gbit/s`. One that has more is
/// shown in bytes, which are exact: `10MiB/s` instead of 83886.08 kbit/s.
#[must_use]
pub fn show_link_rate(rate: ByteRate) -> String {
    let bits = u128::from(rate.bytes_per_second()) * 8;
    let units = [("Tbit/s", 1_000_000_000_000), ("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1000)];
    match units.into_iter().find(|(_, size)| bits >= *size) {
        None => format!("{bits}bit/s"),
        Some((unit, size)) if (bits * 1000).is_multiple_of(size) => {
            let thousandths = format!("{:03}", bits * 1000 / size % 1000);
            let fraction = thousandths.trim_end_matches('0');
            let point = if fraction.is_empty() { "" } else { "." };
            format!("{}{point}{fraction}{unit}", bits / size)
        }
        Some(_) => rate.to_string(),
    }
}

/// A rate of requests with the size that it is normalised to, if one was stated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatedIops {
    pub iops: Iops,
    /// The size after the `@`, if any.
    pub size: Option<Bytes>,
}

impl FromStr for StatedIops {
    type Err = UnitError;

    /// Reads `2000 iops`, `2 kiops`, `2000 iops@8KiB`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (rate, size) = match text.split_once('@') {
            Some((rate, size)) => (rate, Some(size.parse::<Bytes>()?)),
            None => (text, None),
        };
        let milli = parse_with_unit(rate, "iops", "a request rate", "2000 iops@8KiB")?;
        if milli == 0 || milli > u128::from(Iops::MAX_MILLI) {
            let range = "from 0.001 iops to 10^12 iops";
            return Err(UnitError::OutOfRange { text: text.to_owned(), quantity: "Rate", range });
        }
        Ok(StatedIops { iops: Iops::from_milli(milli as u64), size })
    }
}

/// Reads a duration: `5ms`, `250us`, `1.5s`, `10m`, `1h`, `40ns`.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (milli, unit) = split_number(text, "5ms")?;
    let nanos = match unit {
        "" => {
            let example = format!("{}ms", text.trim());
            return Err(UnitError::NoUnit { text: text.to_owned(), example });
        }
        "ns" => 1u128,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" | "day" | "days" => 86_400_000_000_000,
        _ => {
            return Err(UnitError::WrongUnit { unit: unit.to_owned(), quantity: "time", example: "5ms".to_owned() });
        }
    };
    match u64::try_from(milli.saturating_mul(nanos) / 1000) {
        Ok(nanos) => Ok(Duration::from_nanos(nanos)),
        Err(_) => {
            let range = "below 584 years";
            Err(UnitError::OutOfRange { text: text.to_owned(), quantity: "Time", range })
        }
    }
}

/// Formats a duration in the largest unit that keeps it whole: `5ms`, `1500us`.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (unit, size) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if nanos >= size && nanos.is_multiple_of(size) {
            return format!("{}{unit}", nanos / size);
        }
    }
    format!("{nanos}ns")
}

impl FromStr for Weight {
    type Err = UnitError;

    /// Reads a decimal from 0.01 to 1,000,000, at most two digits after the point.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (milli, rest) = split_number(text, "100")?;
        if !rest.is_empty() {
            let unit = rest.to_owned();
            return Err(UnitError::WrongUnit { unit, quantity: "weight, which has none", example: "100".to_owned() });
        }
        if !(10..=1_000_000_000).contains(&milli) || !milli.is_multiple_of(10) {
            let range = "a decimal from 0.01 to 1,000,000 with at most two digits after the point";
            return Err(UnitError::OutOfRange { text: text.to_owned(), quantity: "Weight", range });
        }
        Ok(Weight((milli / 10) as u32))
    }
}

impl FromStr for Percent {
    type Err = UnitError;

    /// Reads `2%`, `0.5 %`; at most two digits after the point.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (milli, unit) = split_number(text, "2%")?;
        if unit.is_empty() {
            let example = format!("{}%", text.trim());
            return Err(UnitError::NoUnit { text: text.to_owned(), example });
        }
        if unit != "%" {
            let example = "2%".to_owned();
            return Err(UnitError::WrongUnit { unit: unit.to_owned(), quantity: "a percentage", example });
        }
        if milli > 100_000 || !milli.is_multiple_of(10) {
            let range = "from 0% to 100% with at most two digits after the point";
            return Err(UnitError::OutOfRange { text: text.to_owned(), quantity: "Percentage", range });
        }
        Ok(Percent((milli / 10) as u16))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 100 {
            0 => write!(f, "{}%", self.0 / 100),
            _ => write!(f, "{}%", f64::from(self.0) / 100.0),
        }
    }
}

fn show_binary(f: &mut fmt::Formatter<'_>, bytes: u64, suffix: &str) -> fmt::Result {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return write!(f, "{}{unit}{suffix}", bytes >> shift);
        }
    }
    write!(f, "{bytes}B{suffix}")
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_binary(f, self.0, "")
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_binary(f, self.bytes_per_second(), "/s")
    }
}

impl fmt::Display for Iops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.milli() % 1000 {
            0 => write!(f, "{} iops", self.milli() / 1000),
            _ => write!(f, "{} iops", self.as_f64()),
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

impl FromStr for Iops {
    type Err = UnitError;

    /// Parses `2000 iops`. The caller checks a size after an `@`, see [`StatedIops`].
    fn from_str(text: &str) -> Result<Self, UnitError> {
        text.parse::<StatedIops>().map(|stated| stated.iops)
    }
}

/// Implements parsing and formatting as text with the unit.
macro_rules! as_text {
    ($($quantity:ty),*) => {$(
        impl Serialize for $quantity {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

as_text!(Bytes, ByteRate, Iops, Weight, Percent);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        assert_eq!("64KiB".parse(), Ok(Bytes::kib(64)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes::mib(1536)));
        assert_eq!("512 B".parse(), Ok(Bytes(512)));
        assert_eq!("100MiB/s".parse(), Ok(ByteRate::per_second(100 << 20)));
        assert_eq!("0.01".parse(), Ok(Weight::MIN));
        assert_eq!(" 1_000_000 ".parse(), Ok(Weight::MAX));
        let stated = StatedIops { iops: Iops::per_second(2000), size: Some(Bytes::kib(8)) };
        assert_eq!("2000 iops@8KiB".parse(), Ok(stated));
        assert_eq!("2 kiops".parse::<StatedIops>().unwrap().iops, Iops::per_second(2000));
        assert_eq!("2 KIOPS".parse::<StatedIops>().unwrap().iops, Iops::per_second(2000));
        assert_eq!("0.5 iops".parse::<StatedIops>().unwrap().iops, Iops::from_milli(500));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(show_duration(Duration::from_micros(1500)), "1500us");
        assert_eq!(["2%", "0.25 %"].map(|text| text.parse::<Percent>().unwrap().to_string()), ["2%", "0.25%"]);
        assert_eq!(Bytes::kib(8).to_string(), "8KiB");
        assert_eq!(ByteRate::per_second(100 << 20).to_string(), "100MiB/s");
        assert_eq!(Iops::from_milli(2500).to_string(), "2.5 iops");
    }

    #[test]
    fn the_rate_of_a_link_is_in_bits_or_in_bytes() {
        for (text, bytes, shown) in [
            ("200Mbit/s", 25_000_000, "200Mbit/s"),
            ("2.5 Gbit/s", 312_500_000, "2.5Gbit/s"),
            ("25MB/s", 25_000_000, "200Mbit/s"),
            ("1MiB/s", 1 << 20, "1MiB/s"),
            ("83886.08kbit/s", 10 << 20, "10MiB/s"),
            ("9.001kbit/s", 1125, "9kbit/s"),
            ("1Tbit/s", 125_000_000_000, "1Tbit/s"),
        ] {
            let rate = parse_link_rate(text).unwrap();
            assert_eq!((rate.bytes_per_second(), show_link_rate(rate).as_str()), (bytes, shown), "{text}");
            assert_eq!(parse_link_rate(shown), Ok(rate), "{text}");
        }
        for (text, says) in [
            ("200", "write for example \"200 bit/s\""),
            ("200 iops", "'iops' is not a unit of a link's rate"),
            ("200Mbps", "'Mbps' is not a unit of a link's rate"),
            ("0bit/s", "from 8.192kbit/s"),
            ("8.191kbit/s", "from 8.192kbit/s"),
            ("9999999999999999 Tbit/s", "1024TiB/s"),
            ("", "does not start with a number"),
        ] {
            let refused = parse_link_rate(text).unwrap_err().to_string();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    #[test]
    fn a_missing_or_wrong_unit_is_rejected() {
        let refused = |text: &str| text.parse::<StatedIops>().unwrap_err().to_string();
        assert_eq!(refused("2000"), "'2000' has no unit; write for example \"2000 iops\"");
        assert!(refused("2000 iop").contains("is not a unit of a request rate"));
        assert!(refused("0 iops").contains("from 0.001 iops"), "the parser does not know which rates may be unlimited");
        assert!(refused("iops").contains("does not start with a number"));
        assert!(refused("1.2345 iops").contains("does not start with a number"));
        for (text, meant) in
            [("5", "5 MiB"), ("5G", "5GiB"), ("5 g", "5GiB"), ("5gb", "5GB"), ("5 apples", "64KiB"), ("5b", "5B")]
        {
            let refused = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(refused.ends_with(&format!("write for example \"{meant}\"")), "{refused}");
        }
        assert!("0.001".parse::<Weight>().is_err());
        assert!("1000001".parse::<Weight>().is_err());
        assert!("100 iops".parse::<Weight>().is_err());
        assert!("12 B/s".parse::<ByteRate>().is_err());
        assert!(["2", "2 iops", "101%", "0.125%"].iter().all(|text| text.parse::<Percent>().is_err()));
        assert!(parse_duration("5").is_err());
        assert!(parse_duration("5 parsecs").is_err());
        assert!("99999999999999999999999999 iops".parse::<StatedIops>().is_err());
    }
}
