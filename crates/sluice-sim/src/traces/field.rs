//! Fields of text formats.

use sluice_sched::Kind;

use super::LENGTH_MAX;

/// Maximum length of a field in an error: a line that is not a trace may be as long as the file.
const SHOWN_MAX: usize = 40;

/// A field in an error.
pub(super) fn shown(text: &str) -> String {
    let control = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    let start: String = text.chars().take(SHOWN_MAX).map(control).collect();
    let more = if text.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
    format!("'{start}{more}'")
}

/// A field by its index; an error contains its name.
pub(super) fn get<'a>(fields: &[&'a str], index: usize, name: &str) -> Result<&'a str, String> {
    fields.get(index).map(|field| field.trim()).ok_or_else(|| format!("only {} fields, no {name}", fields.len()))
}

pub(super) fn number(text: &str, name: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{} is not a valid {name}", shown(text)))
}

/// `0x1f00` or `1f00`.
pub(super) fn hexadecimal(text: &str, name: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("{} is not a valid {name}", shown(text)))
}

/// A decimal number in units of `10^-digits`, without floating point, since times since 1970 have more digits than it
/// keeps. Further digits are cut off.
pub(super) fn decimal(text: &str, digits: usize, name: &str) -> Result<u64, String> {
    let wrong = || format!("{} is not a valid {name}", shown(text));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && part.is_empty() || !is_number(whole) || !is_number(part) {
        return Err(wrong());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
    let part: String = part.chars().chain(std::iter::repeat('0')).take(digits).collect();
    let part: u64 = if digits == 0 { 0 } else { part.parse().map_err(|_| wrong())? };
    let scale = 10u64.pow(digits as u32);
    whole.checked_mul(scale).and_then(|whole| whole.checked_add(part)).ok_or_else(wrong)
}

/// `R`, `W`, `Read`, `write`…
pub(super) fn kind(text: &str) -> Result<Kind, String> {
    match text.as_bytes().first().map(u8::to_ascii_lowercase) {
        Some(b'r') => Ok(Kind::Read),
        Some(b'w') => Ok(Kind::Write),
        _ => Err(format!("{} is neither a read nor a write", shown(text))),
    }
}

/// A product of a number and its unit, if it does not overflow.
pub(super) fn scaled(value: u64, unit: u64, name: &str) -> Result<u64, String> {
    value.checked_mul(unit).ok_or_else(|| format!("{value} is too large for a {name}"))
}

/// A length in bytes.
pub(super) fn length(bytes: u64) -> Result<u32, String> {
    u32::try_from(bytes).ok().filter(|_| bytes <= LENGTH_MAX).ok_or_else(|| format!("a request of {bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_keep_every_digit() {
        assert_eq!(decimal("1332495599.123456789", 9, "time"), Ok(1_332_495_599_123_456_789));
        assert_eq!(decimal("0.026214", 9, "time"), Ok(26_214_000));
        assert_eq!(decimal("7", 3, "time"), Ok(7000));
        assert_eq!(decimal(".5", 3, "time"), Ok(500));
        for wrong in ["", ".", "-1", "1e3", "1.2.3", "99999999999999999999", "inf"] {
            assert!(decimal(wrong, 9, "time").is_err(), "{wrong}");
        }
    }
}
