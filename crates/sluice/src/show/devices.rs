//! Devices as a table.

use serde_json::Value;

use super::{bandwidth, count, percent, rate, text, time};
use crate::output;

/// The table of devices; `wide` has more columns.
pub(crate) fn table(devices: &[Value], wide: bool) -> String {
    let mut header =
        vec!["DEVICE", "HEALTH", "VMS", "IOPS", "MIB/S", "P99", "FULL", "RESERVED", "STATED", "MEASURED", "CAPACITY"];
    if wide {
        header.extend(["DEPTH", "IN FLIGHT", "QUEUED", "CLIENTS", "THREAD", "IOPS 1S", "IOPS 1M"]);
    }
    let mut table = output::table(&header);
    for device in devices {
        let (ten, capacity) = (&device["rates"]["10s"], &device["capacity"]);
        let mut row = vec![
            text(&device["device"]).to_owned(),
            text(&device["health"]).to_owned(),
            count(&device["vms"]),
            rate(&ten["normalised_iops"]),
            bandwidth(&ten["bytes_per_second"]),
            time(&ten["p99_us"]),
            percent(&device["full_percent"]),
            rate(&capacity["reserved_iops"]),
            rate(&capacity["stated_iops"]),
            rate(&capacity["measured_iops"]),
            verdict(&capacity["verdict"]).to_owned(),
        ];
        if wide {
            row.extend([
                count(&device["depth"]),
                count(&device["in_flight"]),
                count(&device["queued"]),
                count(&device["clients"]),
                percent(&device["thread_busy_percent"]),
                rate(&device["rates"]["1s"]["normalised_iops"]),
                rate(&device["rates"]["1m"]["normalised_iops"]),
            ]);
        }
        table.add_row(row);
    }
    table.to_string()
}

/// Whether the stated capacity is right, in words.
pub(crate) fn verdict(verdict: &Value) -> &str {
    match verdict.as_str() {
        Some("not_stated") => "not stated",
        Some("unknown") => "not full yet",
        Some("right") => "right",
        Some("too_high") => "stated TOO HIGH",
        Some("too_low") => "stated too low",
        _ => text(verdict),
    }
}
