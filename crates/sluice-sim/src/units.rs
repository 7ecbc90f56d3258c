//! Rates of networks, in bits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de::Error};

/// Bits per second, written as `100Mbit/s`: networks count in bits, disks in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitRate(pub(crate) u64);

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a bit rate; write for example \"100Mbit/s\"");
        let number = text.trim().strip_suffix("bit/s").ok_or_else(wrong)?.trim_end();
        let (number, times) = match number.chars().last() {
            Some('k') => (&number[..number.len() - 1], 1e3),
            Some('M') => (&number[..number.len() - 1], 1e6),
            Some('G') => (&number[..number.len() - 1], 1e9),
            _ => (number, 1.0),
        };
        let bits = number.trim().parse::<f64>().map_err(|_| wrong())? * times;
        match (1e3..=1e12).contains(&bits) {
            true => Ok(BitRate(bits.round() as u64)),
            false => Err(format!("'{text}' is out of range; it must be from 1kbit/s to 1000Gbit/s")),
        }
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [("G", 1_000_000_000), ("M", 1_000_000), ("k", 1000)];
        match steps.into_iter().find(|(_, step)| self.0 >= *step) {
            Some((unit, step)) => write!(f, "{}{unit}bit/s", self.0 as f64 / step as f64),
            None => write!(f, "{}bit/s", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for BitRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for (text, bits) in [("100Mbit/s", 100_000_000), ("1.5 Gbit/s", 1_500_000_000), ("64kbit/s", 64_000)] {
            let rate: BitRate = text.parse().unwrap();
            assert_eq!((rate.0, rate.to_string()), (bits, text.replace(' ', "")));
        }
        for text in ["100", "100Mb/s", "bit/s", "1bit/s", "-3Mbit/s", "NaNbit/s", "1e9Gbit/s", "12MB/s"] {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
    }
}
