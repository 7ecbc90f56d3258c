//! Limits so low that a guest would take its disk for dead.
//!
//! The daemon takes in one window of a VM's requests and passes them on at the rate of its limit, so a request is held for
//! as long as the limit needs for a window. Guests give up after some time (SCSI drivers after 30 s by default).

use core::time::Duration;

use sluice_sched::policy::Field;

use super::Draft;
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::vm::VmDraft;

/// Longest that a limit may hold a request, unless the VM allows more.
const HELD_MAX: Duration = Duration::from_secs(30);

pub(super) fn check(draft: &Draft, report: &Report) {
    for vm in draft.vms.iter().filter(|vm| !vm.part.broken && !vm.allow_slow) {
        let devices = vm.devices();
        let slow = devices.iter().filter_map(|name| draft.devices.get(*name)).find_map(|device| held(vm, device));
        if let Some((device, seconds, what)) = slow {
            refuse(vm, device, seconds, what, report);
        }
    }
}

/// The device at which a limit holds requests too long, for how many seconds, and by which limit.
fn held<'a>(vm: &VmDraft, device: &'a DeviceDraft) -> Option<(&'a DeviceDraft, f64, &'static str)> {
    let (limit, window) = (vm.policy().limit, device.device.window);
    let requests = limit.iops.map(|iops| f64::from(window.requests) * 1000.0 / iops.milli() as f64);
    let bytes = limit.bytes.map(|bytes| window.bytes as f64 / bytes.bytes_per_second() as f64);
    let too_long = |seconds: &f64| *seconds > HELD_MAX.as_secs_f64();
    let by_requests = requests.filter(too_long).map(|seconds| (device, seconds, "requests"));
    by_requests.or_else(|| bytes.filter(too_long).map(|seconds| (device, seconds, "bytes")))
}

fn refuse(vm: &VmDraft, device: &DeviceDraft, seconds: f64, what: &str, report: &Report) {
    let place = vm.part.place_of(Field::Limit).map_or(vm.place, |(place, _)| place);
    let (name, on) = (&vm.name, &device.device.name);
    let message = format!(
        "VM {name}: its limit of {what} needs {seconds:.0} s for a full window of device {on}: its guest would take the disk for dead"
    );
    let hint =
        format!("raise the limit, lower window.{what} of [device.{on}], or set allow_slow = true in [vm.{name}]");
    report.error(place, message, hint);
}
