//! Devices as a table.

use serde_json::Value;

use super::vms::link_amount;
use super::{count, is_link, operations, percent, rate, text, throughput, time};
use crate::output;

/// The table of devices; `wide` has more columns.
pub(crate) fn table(devices: &[Value], wide: bool) -> String {
    let mut header =
        vec!["DEVICE", "HEALTH", "VMS", "IOPS", "MIB/S", "P99", "FULL", "RESERVED", "STATED", "MEASURED", "CAPACITY"];
    if wide {
        header.extend(["DEPTH", "IN FLIGHT", "QUEUED", "CLIENTS", "THREAD", "LATE", "IOPS 1S", "IOPS 1M"]);
    }
    let mut table = output::table(&header);
    for device in devices {
        let (ten, capacity) = (&device["rates"]["10s"], &device["capacity"]);
        let part = |what: &str| match is_link(device) {
            true => link_amount(capacity, what),
            false => rate(&capacity[format!("{what}_iops")]),
        };
        let mut row = vec![
            text(&device["device"]).to_owned(),
            text(&device["health"]).to_owned(),
            count(&device["vms"]),
            operations(ten),
            throughput(ten),
            time(&ten["p99_us"]),
            percent(&device["full_percent"]),
            part("reserved"),
            part("stated"),
            part("measured"),
            verdict(&capacity["verdict"]).to_owned(),
        ];
        if wide {
            row.extend([
                count(&device["depth"]),
                count(&device["in_flight"]),
                count(&device["queued"]),
                count(&device["clients"]),
                percent(&device["thread_busy_percent"]),
                percent(&device["thread_late_percent"]),
                operations(&device["rates"]["1s"]),
                operations(&device["rates"]["1m"]),
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
