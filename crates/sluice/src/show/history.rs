//! The past as a table.

use serde_json::Value;

use super::{bandwidth, percent, rate, text, time};
use crate::output;
use crate::state::time::Time;

/// The table of the past, oldest first.
pub(crate) fn table(points: &[Value]) -> String {
    let mut table =
        output::table(&["TIME", "DEVICE", "IOPS", "NORMALISED", "MIB/S", "P50", "P99", "QUEUED FOR", "WAITED FOR"]);
    for point in points {
        table.add_row([
            Time(point["time"].as_u64().unwrap_or(0)).to_string(),
            text(&point["device"]).to_owned(),
            rate(&point["iops"]),
            rate(&point["normalised_iops"]),
            bandwidth(&point["bytes_per_second"]),
            time(&point["p50_us"]),
            time(&point["p99_us"]),
            percent(&point["backlogged_percent"]),
            text(&point["wait"]).to_owned(),
        ]);
    }
    table.to_string()
}
