//! Limits so low that a guest would take its disk for dead.
//!
//! The daemon takes in one window of a VM's requests and passes them on at the rate of its limit, so a request is held for
//! as long as the limit needs for a window: the VM's, or that of one of its volumes, which may fill the window alone. Guests
//! give up after some time (SCSI drivers after 30 s by default).

use core::time::Duration;

use sluice_sched::Policy;
use sluice_sched::policy::Field;

use super::Draft;
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::source::Place;

/// Longest that a limit may hold a request, unless the VM allows more.
const HELD_MAX: Duration = Duration::from_secs(30);

pub(super) fn check(draft: &Draft, report: &Report) {
    for vm in draft.vms.iter().filter(|vm| !vm.allow_slow) {
        let whole = (format!("VM {}", vm.name), &vm.part, vm.place, vm.devices());
        let volumes = vm.volumes.iter().map(|volume| {
            let place = volume.export.endpoint_at;
            (format!("Volume {}", volume.title), &volume.part, place, vec![volume.volume.device.as_str()])
        });
        for (whose, part, place, devices) in [whole].into_iter().chain(volumes).filter(|(_, part, ..)| !part.broken) {
            let mut devices = devices.into_iter().filter_map(|name| draft.devices.get(name));
            if let Some(slow) = devices.find_map(|device| held(&part.policy(), device)) {
                let place = part.place_of(Field::Limit).map_or(place, |(place, _)| place);
                refuse(&vm.name, &whose, place, &slow, report);
            }
        }
    }
}

/// A limit that holds requests too long.
struct Slow<'a> {
    device: &'a DeviceDraft,
    seconds: f64,
    /// Of what it is.
    what: &'static str,
}

fn held<'a>(policy: &Policy, device: &'a DeviceDraft) -> Option<Slow<'a>> {
    let (limit, window) = (policy.limit, device.device.window);
    let requests = limit.iops.map(|iops| f64::from(window.requests) * 1000.0 / iops.milli() as f64);
    let bytes = limit.bytes.map(|bytes| window.bytes as f64 / bytes.bytes_per_second() as f64);
    let mut by = [(requests, "requests"), (bytes, "bytes")].into_iter();
    by.find_map(|(seconds, what)| {
        let seconds = seconds.filter(|seconds| *seconds > HELD_MAX.as_secs_f64())?;
        Some(Slow { device, seconds, what })
    })
}

fn refuse(vm: &str, whose: &str, place: Place, slow: &Slow<'_>, report: &Report) {
    let Slow { device, seconds, what } = slow;
    let on = &device.device.name;
    let message = format!(
        "{whose}: its limit of {what} needs {seconds:.0} s for a full window of device {on}: its guest would take the disk for dead"
    );
    let hint = format!("raise the limit, lower window.{what} of [device.{on}], or set allow_slow = true in [vm.{vm}]");
    report.error(place, message, hint);
}
