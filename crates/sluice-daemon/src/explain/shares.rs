//! The VMs of a device with their parts of its service: by reservation or by weight.

use sluice_api::amount::percent;
use sluice_api::event::{Neighbour, Right};
use sluice_api::status::{Parts, Vm};

/// Returns the VMs that a device has served in the last ten seconds, largest first.
pub fn of_device(device: &str, vms: &[Vm]) -> Vec<Neighbour> {
    let served = |vm: &Vm| vm.rates.ten_seconds.normalised_iops;
    let all: Vec<&Vm> = vms.iter().filter(|vm| vm.device == device && served(vm) > 0.0).collect();
    let total: f64 = all.iter().map(|vm| served(vm)).sum();
    let part = |vm: &&Vm| Neighbour {
        vm: vm.vm.clone(),
        iops: served(vm).round(),
        percent: (1000.0 * served(vm) / total).round() / 10.0,
        by: right(&vm.parts),
    };
    let mut parts: Vec<Neighbour> = all.iter().map(part).collect();
    // Stable, so that equal VMs keep their order.
    parts.sort_by(|one, other| other.percent.total_cmp(&one.percent));
    parts
}

/// The right by which most was served.
fn right(parts: &Parts) -> Right {
    match (parts.by_reservation_percent.unwrap_or(0.0), parts.by_weight_percent.unwrap_or(0.0)) {
        (reservation, weight) if reservation.max(weight) < 50.0 => Right::Other,
        (reservation, weight) if reservation >= weight => Right::Reservation,
        _ => Right::Weight,
    }
}

/// VMs with their parts and rights: `db 40 % (by reservation), batch 35 % (by weight)`; `None` without any.
pub fn in_words(parts: &[Neighbour]) -> Option<String> {
    let by = |part: &Neighbour| match part.by {
        Right::Other => String::new(),
        right => format!(" (by {})", right.name()),
    };
    let words: Vec<String> =
        parts.iter().map(|part| format!("{} {}{}", part.vm, percent(part.percent), by(part))).collect();
    (!words.is_empty()).then(|| words.join(", "))
}
