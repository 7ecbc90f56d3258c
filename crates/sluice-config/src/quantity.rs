//! Quantities in the file, and messages for invalid ones.

use sluice_sched::units::{StatedIops, UnitError};
use sluice_sched::{ByteRate, Cost, CostModel, Iops, Weight};
use sluice_sched::{Bytes, Kind};

/// Error and advice for an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misread {
    pub(crate) what: String,
    pub(crate) hint: String,
}

/// A rate of requests or of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    Requests(StatedIops),
    Bytes(ByteRate),
}

impl From<UnitError> for Misread {
    fn from(error: UnitError) -> Self {
        let example = |example: &str| format!("write for example \"{example}\"");
        match error {
            UnitError::NoNumber { text, example: e } => {
                Misread { what: format!("'{text}' does not start with a number"), hint: example(e) }
            }
            UnitError::NoUnit { text, example: e } => {
                Misread { what: format!("'{text}' has no unit"), hint: example(&e) }
            }
            UnitError::WrongUnit { unit, quantity, example: e } => {
                Misread { what: format!("'{unit}' is not a unit of {quantity}"), hint: example(&e) }
            }
            UnitError::OutOfRange { text, range, .. } => {
                Misread { what: format!("'{text}' is out of range"), hint: format!("it must be {range}") }
            }
        }
    }
}

/// Reads `2000 iops@8KiB` or `100MiB/s`.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, Misread> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || " ._".contains(c)).trim_end();
    if unit.to_ascii_lowercase().contains("iops") || unit.contains('@') {
        return Ok(Rate::Requests(text.parse()?));
    }
    if unit.ends_with("/s") {
        return Ok(Rate::Bytes(text.parse()?));
    }
    let number = text.trim();
    let (what, hint) = match (unit, number) {
        ("", "") => ("is empty".to_owned(), "write for example \"2000 iops@8KiB\" or \"100MiB/s\"".to_owned()),
        ("", _) => {
            (format!("'{number}' has no unit"), format!("write for example \"{number} iops\" or \"{number}MiB/s\""))
        }
        _ => {
            let what = format!("'{unit}' is not a unit of a rate");
            (what, "write for example \"2000 iops@8KiB\" or \"100MiB/s\"".to_owned())
        }
    };
    Err(Misread { what, hint })
}

/// Parses a weight from the number that TOML returns.
pub(crate) fn parse_weight(number: f64) -> Result<Weight, Misread> {
    // The shortest text for this number is the original, or differs after the second decimal digit.
    number.to_string().parse::<Weight>().map_err(|_| Misread {
        what: format!("{number} is out of range"),
        hint: "it must be from 0.01 to 1000000 with at most two digits after the point".to_owned(),
    })
}

/// A cost from a decimal in range.
pub(crate) fn cost_of(requests: f64) -> Cost {
    Cost::from_raw((requests * f64::from(1 << Cost::SHIFT)) as u32)
}

/// A rate at another size, converted to the device's reference size.
pub(crate) fn at_reference(rate: Iops, size: Bytes, model: &CostModel) -> Iops {
    let length = u32::try_from(size.0).unwrap_or(u32::MAX);
    let cost = u128::from(model.cost(Kind::Read, length).raw());
    let milli = u128::from(rate.milli()) * cost / u128::from(Cost::ONE.raw());
    // More digits would suggest false precision.
    Iops::per_second(u64::try_from(milli.div_ceil(1000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_requests_and_bytes_are_distinguished() {
        assert!(matches!(parse_rate("2000 iops"), Ok(Rate::Requests(_))));
        assert!(matches!(parse_rate("2000IOPS"), Ok(Rate::Requests(_))));
        assert!(matches!(parse_rate("100MiB/s"), Ok(Rate::Bytes(_))));
        let refused = |text| parse_rate(text).unwrap_err().what;
        assert_eq!(refused("2000"), "'2000' has no unit");
        assert_eq!(refused("2000 MiB"), "'MiB' is not a unit of a rate");
        assert_eq!(refused("@"), "'' does not start with a number");
        assert_eq!(refused(""), "is empty");
    }

    #[test]
    fn weights_come_from_numbers() {
        assert_eq!(parse_weight(400.0), Ok(Weight::new(400)));
        assert_eq!(parse_weight(0.01), Ok(Weight::MIN));
        for wrong in [0.0, 0.001, -1.0, 1e30, f64::NAN, f64::INFINITY, 1.234] {
            assert!(parse_weight(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rate_of_small_requests_is_lower_at_the_reference_size() {
        let rate = at_reference(Iops::per_second(2000), Bytes::kib(4), &CostModel::default());
        assert_eq!(rate, Iops::per_second(1974));
    }
}
