//! The past as a table.

use serde_json::Value;

use super::{NOTHING, percent, rate, text, throughput, time};
use crate::output;
use sluice_daemon::state::time::Time;

/// The table of the past, oldest first.
pub(crate) fn table(points: &[Value]) -> String {
    let mut table =
        output::table(&["TIME", "DEVICE", "IOPS", "NORMALISED", "MIB/S", "P50", "P99", "QUEUED FOR", "WAITED FOR"]);
    for point in points {
        // Frames are not normalised.
        let is_link = point["bits_per_second"].is_number();
        table.add_row([
            Time(point["time"].as_u64().unwrap_or(0)).to_string(),
            text(&point["device"]).to_owned(),
            rate(&point["iops"]),
            if is_link { NOTHING.to_owned() } else { rate(&point["normalised_iops"]) },
            throughput(point),
            time(&point["p50_us"]),
            time(&point["p99_us"]),
            percent(&point["backlogged_percent"]),
            text(&point["wait"]).to_owned(),
        ]);
    }
    table.to_string()
}
