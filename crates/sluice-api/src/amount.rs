//! Amounts for people: the one place that says how rates, sizes and times look in text. Programs get numbers.
//!
//! Three digits are enough to compare two amounts, and each amount has its unit: `950`, `12.3k`, `98.4 Mbit/s`, `1.2 ms`, `3 GiB`,
//! `10 min 3 s`. An amount that rounds to nothing is `0`, never `-0`.

use serde_json::Value;

/// Text for a value that is not known or not set.
pub const NOTHING: &str = "-";

/// A number of requests per second with three digits: `950`, `12.3k`, `1.45M`.
#[must_use]
pub fn rate(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999_500.0 => (value / 1e6, "M"),
        value if value >= 9999.5 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{}{unit}", digits(value))
}

/// Three digits of a number.
fn digits(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 0.005 => format!("{value:.2}"),
        _ => "0".to_owned(),
    }
}

/// Bytes per second as a number of MiB/s, for a column with that unit.
#[must_use]
pub fn mib_per_second(bytes: f64) -> String {
    digits(bytes / 1_048_576.0)
}

/// Bytes per second with the unit: `19.5 MiB/s`.
#[must_use]
pub fn bandwidth(bytes: f64) -> String {
    format!("{} MiB/s", mib_per_second(bytes))
}

/// Bits per second with the unit: `940 Mbit/s`.
#[must_use]
pub fn bits(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999.5e6 => (value / 1e9, "Gbit/s"),
        value if (0.5..999.5e3).contains(&value) => (value / 1e3, "kbit/s"),
        value => (value / 1e6, "Mbit/s"),
    };
    format!("{} {unit}", digits(value))
}

/// A number of bytes: `512 bytes`, `4 KiB`, `3 GiB`, `1.5 TiB`. One that has no short form in the largest unit below it has three
/// digits.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1_u64 << 10, "KiB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return counted(bytes, "byte", "bytes");
    };
    match bytes % unit {
        0 => format!("{} {name}", bytes / unit),
        _ => format!("{} {name}", digits(bytes as f64 / unit as f64).trim_end_matches('0').trim_end_matches('.')),
    }
}

/// A time in microseconds: `85 us`, `1.2 ms`, `3.4 s`.
#[must_use]
pub fn time(us: f64) -> String {
    match us {
        us if us < 0.5 => "0 us".to_owned(),
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 9_995.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A length of time in seconds, with its two largest units: `45 s`, `10 min 3 s`, `2 h 5 min`, `3 d`.
#[must_use]
pub fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(units.len() - 1);
    let (unit, name) = units[first];
    let mut text = format!("{} {name}", seconds / unit);
    if let Some((next, name)) = units.get(first + 1)
        && let more @ 1.. = seconds % unit / next
    {
        text += &format!(" {more} {name}");
    }
    text
}

/// A part in percent: `12 %`.
#[must_use]
pub fn percent(percent: f64) -> String {
    format!("{:.0} %", if percent < 0.5 { 0.0 } else { percent })
}

/// A number of things: `1 VM`, `2 VMs`.
#[must_use]
pub fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// A field of a reply with its value in people's units, which go from the name to the value: `size_bytes` 3221225472 is `size` 3 GiB.
#[must_use]
pub fn field(key: String, value: &Value) -> (String, String) {
    let number = value.as_f64();
    type Show = fn(f64) -> String;
    let units: [(&str, Show); 5] = [
        ("_bytes_per_second", bandwidth),
        ("_bytes", |bytes| size(bytes as u64)),
        ("_us", time),
        ("_seconds", |seconds| time(1e6 * seconds)),
        ("_percent", |percent| format!("{percent} %")),
    ];
    let with_unit = units.into_iter().find_map(|(unit, show)| Some((key.strip_suffix(unit)?, show)));
    match (with_unit, value) {
        (_, Value::Number(_)) if key == "burst" => (key, counted(number.unwrap_or(0.0) as u64, "request", "requests")),
        (Some((name, show)), _) if number.is_some() => (name.to_owned(), show(number.unwrap_or(0.0))),
        (Some((name, _)), Value::Null) => (name.to_owned(), NOTHING.to_owned()),
        (_, Value::Null) => (key, NOTHING.to_owned()),
        (_, Value::String(text)) => (key, text.clone()),
        (_, Value::Array(names)) => (key, names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        (_, value) => {
            let text = number.map_or_else(|| value.to_string(), |number| number.to_string());
            (key, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let rates = [0.0, -0.0, 3.456, 950.4, 9999.0, 12_345.0, 1_450_000.0].map(rate);
        assert_eq!(rates, ["0", "0", "3.46", "950", "9999", "12.3k", "1.45M"]);
        let all = [0.0, 64_000.0, 98_400_000.0, 12.4e9].map(bits);
        assert_eq!(all, ["0 Mbit/s", "64.0 kbit/s", "98.4 Mbit/s", "12.4 Gbit/s"]);
        assert_eq!([0.0, 85.0, 1234.0, 45_000.0, 3_400_000.0].map(time), ["0 us", "85 us", "1.2 ms", "45 ms", "3.4 s"]);
        assert_eq!([-0.0, 0.4, 12.6].map(percent), ["0 %", "0 %", "13 %"]);
        assert_eq!([0.0, 1_048_576.0].map(mib_per_second), ["0", "1.00"]);
    }

    #[test]
    fn sizes_and_times_were_shown_as_bytes_and_seconds() {
        let sizes = [0, 1, 512, 4096, 3_221_225_472, 1_610_612_736, 5_000_000_000, 1 << 40].map(size);
        let words = ["0 bytes", "1 byte", "512 bytes", "4 KiB", "3 GiB", "1.5 GiB", "4.66 GiB", "1 TiB"];
        assert_eq!(sizes, words);
        let spans = [0, 45, 60, 603, 3600, 7500, 86_400, 90_060].map(span);
        assert_eq!(spans, ["0 s", "45 s", "1 min", "10 min 3 s", "1 h", "2 h 5 min", "1 d", "1 d 1 h"]);
        assert_eq!([1, 2].map(|count| counted(count, "VM", "VMs")), ["1 VM", "2 VMs"]);
    }
}
