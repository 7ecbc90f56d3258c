//! Replies of the daemon for people: tables and descriptions. A reply is JSON here, because a command may be of another version
//! than the daemon.

use serde_json::Value;

pub(crate) mod clients;
pub(crate) mod devices;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod object;
pub(crate) mod policies;
pub(crate) mod promise;
pub(crate) mod status;
pub(crate) mod vms;
pub(crate) mod why;

/// Text for a value that is not known or not set.
pub(crate) const NOTHING: &str = "-";

/// The elements of a list; none if it is no list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text, or `-`.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or(NOTHING)
}

/// A number of requests per second with three digits: `950`, `12.3k`, `1.45M`.
pub(crate) fn rate(value: &Value) -> String {
    value.as_f64().map_or(NOTHING.to_owned(), short)
}

fn short(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999_500.0 => (value / 1e6, "M"),
        value if value >= 9999.5 => (value / 1e3, "k"),
        value => (value, ""),
    };
    match value {
        value if value >= 99.95 || value == 0.0 => format!("{value:.0}{unit}"),
        value if value >= 9.995 => format!("{value:.1}{unit}"),
        value => format!("{value:.2}{unit}"),
    }
}

/// Bytes per second in MiB/s.
pub(crate) fn bandwidth(value: &Value) -> String {
    value.as_f64().map_or(NOTHING.to_owned(), |bytes| match bytes / 1_048_576.0 {
        0.0 => "0".to_owned(),
        mib if mib >= 99.95 => format!("{mib:.0}"),
        mib if mib >= 9.995 => format!("{mib:.1}"),
        mib => format!("{mib:.2}"),
    })
}

/// Bits per second with the unit: `940 Mbit/s`.
pub(crate) fn bits(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999.5e6 => (value / 1e9, "Gbit/s"),
        value if value >= 999.5e3 || value == 0.0 => (value / 1e6, "Mbit/s"),
        value => (value / 1e3, "kbit/s"),
    };
    format!("{} {unit}", short(value))
}

/// Whether an object is an uplink, or a VM or NIC on one.
pub(crate) fn is_link(object: &Value) -> bool {
    object["rates"]["1s"]["bits_per_second"].is_number()
}

/// Throughput of `rates`: bytes per second in MiB/s, or of an uplink bits per second with the unit.
pub(crate) fn throughput(rates: &Value) -> String {
    rates["bits_per_second"].as_f64().map_or_else(|| bandwidth(&rates["bytes_per_second"]), bits)
}

/// Requests per second of `rates`, normalised; of an uplink frames per second.
pub(crate) fn operations(rates: &Value) -> String {
    rate(&rates[if rates["bits_per_second"].is_number() { "iops" } else { "normalised_iops" }])
}

/// A time in microseconds with its unit: `85 us`, `1.2 ms`, `3.4 s`.
pub(crate) fn time(value: &Value) -> String {
    value.as_f64().map_or(NOTHING.to_owned(), |us| match us {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 9_995.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    })
}

/// A part in percent.
pub(crate) fn percent(value: &Value) -> String {
    value.as_f64().map_or(NOTHING.to_owned(), |percent| format!("{percent:.0} %"))
}

/// A whole number.
pub(crate) fn count(value: &Value) -> String {
    value.as_u64().map_or(NOTHING.to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let rates =
            [json!(0), json!(3.456), json!(950.4), json!(9999), json!(12_345), json!(1_450_000)].map(|v| rate(&v));
        assert_eq!(rates, ["0", "3.46", "950", "9999", "12.3k", "1.45M"]);
        assert_eq!(
            [0.0, 64_000.0, 98_400_000.0, 12.4e9].map(bits),
            ["0 Mbit/s", "64.0 kbit/s", "98.4 Mbit/s", "12.4 Gbit/s"]
        );
        assert_eq!(
            [json!(85), json!(1234), json!(45_000), json!(3_400_000)].map(|v| time(&v)),
            ["85 us", "1.2 ms", "45 ms", "3.4 s"]
        );
        assert_eq!([json!(0), json!(1_048_576), json!(null)].map(|v| bandwidth(&v)), ["0", "1.00", "-"]);
    }
}
