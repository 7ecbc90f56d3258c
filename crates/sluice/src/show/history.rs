//! The past as a table.

use sluice_api::list::Point;
use sluice_daemon::state::time::Time;

use super::{NOTHING, shown, throughput};
use crate::output;
use sluice_api::amount::{percent, rate, time};

/// The table of the past, oldest first.
pub(crate) fn table(points: &[Point]) -> String {
    let mut table =
        output::table(&["TIME", "DEVICE", "IOPS", "NORMALISED", "MIB/S", "P50", "P99", "QUEUED FOR", "WAITED FOR"]);
    for point in points {
        // Frames are not normalised.
        let is_link = point.bits_per_second.is_some();
        table.add_row([
            Time(point.time).to_string(),
            shown(point.device.clone(), |device| device),
            rate(point.iops),
            if is_link { NOTHING.to_owned() } else { rate(point.normalised_iops) },
            throughput(point.bytes_per_second, point.bits_per_second),
            time(point.p50_us),
            time(point.p99_us),
            percent(point.backlogged_percent.into()),
            point.wait.name().to_owned(),
        ]);
    }
    table.to_string()
}
