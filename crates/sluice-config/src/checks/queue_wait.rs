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

use core::cell::OnceCell;
use core::time::Duration;
use std::collections::BTreeMap;

use sluice_sched::Policy;
use sluice_sched::policy::Field;

use super::Draft;
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::model::Device;
use crate::policy::Part;
use crate::source::Span;

/// Maximum delay of a request by a limit, unless the VM allows more.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Devices by name, with the cost of a full window once it was needed.
type Devices<'a> = BTreeMap<&'a str, (&'a DeviceDraft, OnceCell<f64>)>;

pub(super) fn check(draft: &Draft, report: &Report) {
    let devices: Devices<'_> =
        draft.devices.iter().map(|(name, device)| (name.as_str(), (device, OnceCell::new()))).collect();
    for vm in draft.vms.iter().filter(|vm| !vm.allow_slow) {
        if let Some((long, span)) = wait(&vm.part, &vm.devices(), &devices) {
            refuse(&vm.name, &format!("VM {}", vm.name), span.unwrap_or(vm.span), &long, report);
        }
        for volume in &vm.volumes {
            if let Some((long, span)) = wait(&volume.part, &[&volume.volume.device], &devices) {
                let span = span.unwrap_or(volume.export.endpoint_at);
                refuse(&vm.name, &format!("Volume {}", volume.title), span, &long, report);
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

/// Returns the first limit of a policy that delays requests too long on one of these devices, and its span.
fn wait<'a>(part: &Part, on: &[&str], devices: &Devices<'a>) -> Option<(LongWait<'a>, Option<Span>)> {
    let policy = part.policy();
    let mut known = on.iter().filter_map(|name| devices.get(*name)).filter(|_| !part.broken);
    let long = known
        .find_map(|(device, cost)| wait_on(&policy, device, || *cost.get_or_init(|| window_cost(&device.device))))?;
    let span = part.span_of(long.field).map(|(span, _)| span);
    Some((long, span))
}

fn wait_on<'a>(policy: &Policy, device: &'a DeviceDraft, cost: impl Fn() -> f64) -> Option<LongWait<'a>> {
    let window = device.device.window;
    let limits =
        [(Field::Limit, policy.limit), (Field::ReadLimit, policy.read_limit), (Field::WriteLimit, policy.write_limit)];
    let mut by = limits.into_iter().flat_map(|(field, limit)| {
        let requests = limit.iops.map(|iops| cost() * 1000.0 / iops.milli() as f64);
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
