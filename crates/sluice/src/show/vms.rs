//! VMs and volumes as tables: what was promised beside what there is.

use sluice_api::status::{Vm, Volume};
use sluice_daemon::explain::promise::mark;

use super::{NOTHING, Served, amount, operations, shown, throughput_of};
use crate::output;
use sluice_api::amount::{percent, time};

/// The table of VMs; `wide` has more columns.
pub(crate) fn table(vms: &[Vm], wide: bool) -> String {
    rows(vms.iter().map(Served::from), "VM", wide)
}

/// The table of volumes; `wide` has more columns.
pub(crate) fn volumes(volumes: &[Volume], wide: bool) -> String {
    rows(volumes.iter().map(Served::from), "VOLUME", wide)
}

fn rows<'a>(objects: impl Iterator<Item = Served<'a>>, kind: &str, wide: bool) -> String {
    let mut header = vec![
        kind,
        "DEVICE",
        "PROMISES",
        "RESERVED",
        "LIMIT",
        "WEIGHT",
        "IOPS",
        "MIB/S",
        "P50",
        "P99",
        "OUTSTANDING",
        "FAILED",
        "HELD BY",
    ];
    if wide {
        header.extend(["IOPS 1S", "P99 1S", "IOPS 1M", "P99 1M", "QUEUED FOR", "BY RESERVATION", "CLIENTS", "CPU"]);
    }
    let mut table = output::table(&header);
    for object in objects {
        let (one, ten, minute) = (&object.rates.second, &object.rates.ten_seconds, &object.rates.minute);
        let amount = |iops: Option<f64>, bytes: Option<u64>| {
            amount(object.rates.are_of_link(), iops, bytes.map(|bytes| bytes as f64))
        };
        let policy = object.policy;
        let mut row = vec![
            object.name.clone(),
            object.device.to_owned(),
            mark(object.state).to_owned(),
            amount(policy.reservation_iops, policy.reservation_bytes_per_second),
            amount(policy.limit_iops, policy.limit_bytes_per_second),
            shown(policy.weight, |weight| weight.to_string()),
            operations(ten),
            throughput_of(ten),
            shown(ten.p50_us, time),
            shown(ten.p99_us, time),
            object.outstanding.to_string(),
            failed(&object),
            object.held_by.map_or(NOTHING, |cause| cause.in_words()).to_owned(),
        ];
        if wide {
            row.extend([
                operations(one),
                shown(one.p99_us, time),
                operations(minute),
                shown(minute.p99_us, time),
                percent(object.parts.backlogged_percent),
                shown(object.parts.by_reservation_percent, percent),
                object.clients.to_string(),
                shown(object.cpu, |cpu| percent(cpu.used_percent)),
            ]);
        }
        table.add_row(row);
    }
    table.to_string()
}

/// Number of failed requests; marked if they fail now.
fn failed(object: &Served<'_>) -> String {
    let count = object.failed_requests;
    if object.failing.is_empty() { count.to_string() } else { format!("! {count}") }
}
