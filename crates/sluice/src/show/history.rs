//! The past as a table.

use sluice_api::list::Point;
use sluice_daemon::state::time::Time;

use super::{NOTHING, shown, throughput};
use crate::output;
use sluice_api::amount::{percent, rate, time};

/// Whether it is longer than a second.
fn is_long(point: &Point) -> bool {
    point.outstanding.is_some()
}

/// The table of the past, oldest first.
pub(crate) fn table(points: &[Point]) -> String {
    let mut header = vec!["TIME", "DEVICE", "IOPS", "NORMALISED", "MIB/S", "P50", "P99", "QUEUED FOR", "WAITED FOR"];
    // Seconds have neither, and minutes no busiest one.
    let (has_more, has_busiest) = (points.iter().any(is_long), points.iter().any(|point| point.busiest.is_some()));
    header.extend(if has_more { &["OUTSTANDING", "BROKEN FOR"][..] } else { &[] });
    header.extend(has_busiest.then_some("BUSIEST"));
    let mut table = output::table(&header);
    for point in points {
        // Frames are not normalised.
        let is_link = point.bits_per_second.is_some();
        let mut row = vec![
            Time(point.time).to_string(),
            shown(point.device.clone(), |device| device),
            rate(point.iops),
            if is_link { NOTHING.to_owned() } else { rate(point.normalised_iops) },
            throughput(point.bytes_per_second, point.bits_per_second),
            time(point.p50_us),
            time(point.p99_us),
            percent(point.backlogged_percent.into()),
            point.wait.name().to_owned(),
        ];
        if has_more {
            row.push(shown(point.outstanding, |outstanding| format!("{outstanding:.1}")));
            row.push(shown(point.broken_seconds.filter(|seconds| *seconds > 0), |seconds| format!("{seconds} s")));
        }
        if has_busiest {
            row.push(shown(point.busiest.as_ref(), |busiest| match busiest.bits_per_second {
                Some(bits) => format!("{:.1}", bits / 1e6),
                None => rate(busiest.normalised_iops),
            }));
        }
        table.add_row(row);
    }
    table.to_string()
}
