//! Devices as a table.

use sluice_api::status::{Device, DevicePool, Verdict};

use super::{NOTHING, amount, operations, shown, throughput_of};
use crate::output;
use sluice_api::amount::{percent, rate, time};

/// The table of devices; `wide` has more columns.
pub(crate) fn table(devices: &[Device], wide: bool) -> String {
    let mut header =
        vec!["DEVICE", "HEALTH", "VMS", "IOPS", "MIB/S", "P99", "FULL", "RESERVED", "STATED", "MEASURED", "CAPACITY"];
    if wide {
        header.extend(["DEPTH", "IN FLIGHT", "QUEUED", "CLIENTS", "THREAD", "LATE", "IOPS 1S", "IOPS 1M", "OF POOL"]);
    }
    let mut table = output::table(&header);
    for device in devices {
        let (ten, capacity) = (&device.rates.ten_seconds, &device.capacity);
        let part = |iops: Option<f64>, bytes: Option<f64>| match device.rates.are_of_link() {
            true => amount(true, None, bytes),
            false => shown(iops, rate),
        };
        let mut row = vec![
            device.device.clone(),
            device.health.name().to_owned(),
            device.vms.to_string(),
            operations(ten),
            throughput_of(ten),
            shown(ten.p99_us, time),
            percent(device.full_percent),
            part(Some(capacity.reserved_iops), Some(capacity.reserved_bytes_per_second as f64)),
            part(capacity.stated_iops, capacity.stated_bytes_per_second.map(|bytes| bytes as f64)),
            part(capacity.measured_iops, capacity.measured_bytes_per_second),
            verdict(capacity.verdict).to_owned(),
        ];
        if wide {
            row.extend([
                device.depth.to_string(),
                device.in_flight.to_string(),
                device.queued.to_string(),
                device.clients.to_string(),
                percent(device.thread_busy_percent),
                percent(device.thread_late_percent),
                operations(&device.rates.second),
                operations(&device.rates.minute),
                device.pool.as_ref().and_then(of_pool).unwrap_or_else(|| NOTHING.to_owned()),
            ]);
        }
        table.add_row(row);
    }
    table.to_string()
}

/// What a host is due of what all hosts of its pool get: `512 of 1998`.
fn of_pool(pool: &DevicePool) -> Option<String> {
    Some(format!("{} of {}", rate(pool.part_iops?), rate(pool.iops?)))
}

/// Whether the stated capacity is right, in words.
pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NotStated => "not stated",
        Verdict::Unknown => "not full yet",
        Verdict::Right => "right",
        Verdict::TooHigh => "stated TOO HIGH",
        Verdict::TooLow => "stated too low",
    }
}
