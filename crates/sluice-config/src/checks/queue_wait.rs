//! Rejects limits that delay requests longer than guests wait.
//!
//! The daemon accepts one window of a VM's requests and dispatches them at the rate of its limit. So the delay of a
//! request is the time that the limit needs for a window: the VM's, or that of one of its volumes, which may fill the
//! window alone. Guests time out (SCSI drivers after 30 s by default).
//!
//! A limit in requests counts costs. Example: a window of 128 requests and 32 MiB may hold 127 small requests and one
//! that is submitted as 128 pieces of 256 KiB, which cost about as much as 358 requests of 8 KiB. A burst does not
//! matter: requests that pass in the burst count against the limit, and the last request of a refilled window waits as
//! long.

use core::time::Duration;

use sluice_sched::Policy;
use sluice_sched::policy::Field;

use super::Draft;
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::model::Device;
use crate::source::Span;

/// Maximum delay of a request by a limit, unless the VM allows more.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) fn check(draft: &Draft, report: &Report) {
    for vm in draft.vms.iter().filter(|vm| !vm.allow_slow) {
        let whole = (format!("VM {}", vm.name), &vm.part, vm.span, vm.devices());
        let volumes = vm.volumes.iter().map(|volume| {
            let span = volume.export.endpoint_at;
            (format!("Volume {}", volume.title), &volume.part, span, vec![volume.volume.device.as_str()])
        });
        for (whose, part, span, devices) in [whole].into_iter().chain(volumes).filter(|(_, part, ..)| !part.broken) {
            let mut devices = devices.into_iter().filter_map(|name| draft.devices.get(name));
            if let Some(long) = devices.find_map(|device| wait(&part.policy(), device)) {
                let span = part.span_of(long.field).map_or(span, |(span, _)| span);
                refuse(&vm.name, &whose, span, &long, report);
            }
        }
    }
}

/// A limit that delays requests too long.
struct LongWait<'a> {
    device: &'a DeviceDraft,
    field: Field,
    seconds: f64,
    /// The window that it applies to.
    what: &'static str,
}

fn wait<'a>(policy: &Policy, device: &'a DeviceDraft) -> Option<LongWait<'a>> {
    let window = device.device.window;
    let limits =
        [(Field::Limit, policy.limit), (Field::ReadLimit, policy.read_limit), (Field::WriteLimit, policy.write_limit)];
    let mut by = limits.into_iter().flat_map(|(field, limit)| {
        let requests = limit.iops.map(|iops| window_cost(&device.device) * 1000.0 / iops.milli() as f64);
        let bytes = limit.bytes.map(|bytes| window.bytes as f64 / bytes.bytes_per_second() as f64);
        [(field, requests, "requests"), (field, bytes, "bytes")]
    });
    by.find_map(|(field, seconds, what)| {
        let seconds = seconds.filter(|seconds| *seconds > WAIT_MAX.as_secs_f64())?;
        Some(LongWait { device, field, seconds, what })
    })
}

/// Maximum cost of a full window of reads and writes, in normalised requests.
fn window_cost(device: &Device) -> f64 {
    let (window, info) = (device.window, device.info(false));
    let cost = |length: u64| info.cost.cost_max(u32::try_from(length).unwrap_or(u32::MAX)).as_f64();
    let largest = info.piece_max.0;
    let pieces = window.bytes / largest;
    cost(largest) * pieces as f64
        + cost(0) * f64::from(window.requests.saturating_sub(1))
        + cost(window.bytes % largest)
}

fn refuse(vm: &str, whose: &str, span: Span, long: &LongWait<'_>, report: &Report) {
    let LongWait { device, field, seconds, what } = long;
    let (on, limit) = (&device.device.name, field.name());
    let message = format!(
        "{whose}: at its {limit} of {what} a full window of device {on} takes up to {seconds:.0} s, longer than \
         guests wait for a request (SCSI drivers: 30 s)"
    );
    let hint = format!("raise {limit}, lower window.{what} of [device.{on}], or set allow_slow = true in [vm.{vm}]");
    report.error(span, message, hint);
}
