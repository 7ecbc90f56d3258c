//! Checks of policies: against themselves, the schedulers, and the capacities.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_sched::Descriptor;
use sluice_sched::admission::{self, Supply};
use sluice_sched::policy::{Field, PolicyError};
use sluice_sched::scheduler::DeviceClass;

use super::Draft;
use super::admission::check_capacity;
use super::bursts::check_burst;
use super::reach;
use crate::device::{DeviceDraft, other_size_hint};
use crate::diagnostics::Report;
use crate::model::Device;
use crate::policy::Part;
use crate::source::Span;
use crate::vm::{VmDraft, VolumeDraft};

/// Findings about fields that a scheduler does not enforce: span, field, device, whether it is inside a VM, and whether it is
/// allowed. Thousands of VMs may hold one policy, and each finding is made once.
pub type Unenforced<'a> = BTreeSet<(Span, &'static str, &'a str, bool, bool)>;

pub(super) fn check(draft: &Draft, report: &Report) {
    for (name, part) in &draft.policies {
        check_itself(&format!("Policy {name}"), part, Span::default(), report);
    }
    let with_supply = |(name, device): (&'_ String, &'_ DeviceDraft)| (name.clone(), device.device.supply());
    let supplies: BTreeMap<String, Supply> = draft.devices.iter().map(with_supply).collect();
    let mut unenforced = Unenforced::new();
    for vm in &draft.vms {
        check_vm(vm, (draft, &supplies), &mut unenforced, report);
    }
    for device in draft.devices.values().filter(|device| !device.broken) {
        check_capacity(device, draft, report);
    }
}

fn check_vm<'a>(
    vm: &VmDraft,
    (draft, supplies): (&'a Draft, &BTreeMap<String, Supply>),
    unenforced: &mut Unenforced<'a>,
    report: &Report,
) {
    if vm.has_own {
        check_itself(&format!("VM {}", vm.name), &vm.part, vm.span, report);
    }
    for volume in &vm.volumes {
        if volume.has_own {
            check_itself(&format!("Volume {}", volume.title), &volume.part, vm.span, report);
        }
        let device = draft.devices.get(&volume.volume.device).filter(|device| !device.broken);
        for (part, inside) in [(&vm.part, false), (&volume.part, true)] {
            if let Some(device) = device.filter(|_| !part.broken) {
                check_sizes(part, device, report);
                check_units(part, device, report);
                check_enforced(part, inside, device, unenforced, report);
                check_burst(part, inside, device, report);
            }
        }
        if volume.volume.buffered {
            let title = &volume.title;
            let message = format!(
                "Volume {title}: guarantees do not apply, because the kernel writes back its page cache without the scheduler"
            );
            report.warn(volume.cache_at, message, "remove cache = \"buffered\"".to_owned());
        }
    }
    let devices = vm.devices();
    for name in &devices {
        if let (Some(device), Some(supply)) = (draft.devices.get(*name), supplies.get(*name)) {
            check_volumes(vm, &device.device, supply, report);
        }
    }
    check_use(vm, &devices, report);
}

/// Reports a policy that contradicts itself.
pub fn check_itself(whose: &str, part: &Part, span: Span, report: &Report) {
    let Some(error) = part.policy().check().err().filter(|_| !part.broken) else { return };
    let field = match error {
        PolicyError::NeverServed => Field::Weight,
        PolicyError::ReservationAboveLimit { .. } | PolicyError::ReservationAboveLimits { .. } => Field::Reservation,
        PolicyError::IdleCredit(_) => Field::IdleCredit,
        PolicyError::Burst(_) | PolicyError::BurstBelowLimit { .. } | PolicyError::BurstWithoutLimit(_) => Field::Burst,
        PolicyError::PriorityLevel(_) => Field::PriorityLevel,
    };
    let span = part.span_of(field).map_or(span, |(span, _)| span);
    let (what, hint) = split_advice(&error.to_string());
    report.error(span, format!("{whose}: {what}"), hint);
}

/// Splits a message of the core into the error and, after the semicolon, the advice.
fn split_advice(text: &str) -> (String, Option<String>) {
    let (what, advice) = match text.split_once("; ") {
        Some((what, advice)) => (what, Some(advice.to_owned())),
        None => (text, None),
    };
    let mut chars = what.chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase());
    (first.into_iter().chain(chars).collect(), advice)
}

/// Reports rates that are normalised to another size than the device's.
pub fn check_sizes(part: &Part, device: &DeviceDraft, report: &Report) {
    let device = &device.device;
    for (key, whose, stated, span) in part.stated_iops() {
        if let Some(size) = stated.size.filter(|size| *size != device.reference) {
            let (name, reference) = (&device.name, device.reference);
            let message =
                format!("{whose}: {key}: the size {size} is not the reference size of device {name}, {reference}");
            report.error(span, message, other_size_hint(stated, size, reference, &device.cost));
        }
    }
}

/// Reports rates in requests if the scheduler counts bytes. `allow_unenforced` does not permit them either.
pub fn check_units(part: &Part, device: &DeviceDraft, report: &Report) {
    let scheduler = device.device.scheduler;
    if device.device.device_class.counts_requests() {
        return;
    }
    for (key, whose, _, span) in part.stated_iops() {
        let (name, scheduler) = (&device.device.name, scheduler.name);
        let message = format!(
            "{whose}: {key}: {scheduler}, the scheduler of device {name}, counts bytes, but this is a rate of requests"
        );
        report.error(span, message, format!("write {key} = {{ bytes = \"5MB/s\" }}"));
    }
}

/// Reports fields that the device's scheduler does not enforce; `inside`: for a volume inside its VM.
pub fn check_enforced<'a>(
    part: &Part,
    inside: bool,
    device: &'a DeviceDraft,
    known: &mut Unenforced<'a>,
    report: &Report,
) {
    let (device, policy, allowed) = (&device.device, part.policy(), part.allows_unenforced());
    let unenforced = policy.stated().filter(|field| !is_enforced(*field, inside, device));
    for (field, at) in unenforced.filter_map(|field| Some((field, part.span_of(field)?))) {
        if known.insert((at.0, field.name(), device.name.as_str(), inside, allowed)) {
            refuse_unenforced(field, &at, allowed, inside, device, report);
        }
    }
    if let Some((span, whose)) = part.span_of(Field::Latency)
        && is_enforced(Field::Latency, inside, device)
        && policy.latency.is_some_and(|target| target.reads_only)
    {
        check_reads_only(part, (span, &whose), device, report);
    }
}

/// Whether the scheduler of the device enforces a field, of a VM or of what is `inside` it.
pub(super) fn is_enforced(field: Field, inside: bool, device: &Device) -> bool {
    let Device { scheduler, params, .. } = device;
    if inside { scheduler.enforces_inside_with(field, params) } else { scheduler.enforces_with(field, params) }
}

/// Reports that it does not; `allowed`: as a warning.
pub(super) fn refuse_unenforced(
    field: Field,
    (span, whose): &(Span, Arc<str>),
    allowed: bool,
    inside: bool,
    device: &Device,
    report: &Report,
) {
    let (field_name, scheduler) = (field.name(), device.scheduler.name);
    if device.is_enforced_by_node() {
        let message =
            format!("{whose}: {field_name} has no effect on {}: its node enforces the policies of VMs", device.title());
        let hint = "state it in the host file of the node, and remove it here or set allow_unenforced = true";
        return match allowed {
            true => report.warn(*span, message, Some(hint.to_owned())),
            false => report.error(*span, message, hint.to_owned()),
        };
    }
    let alone = inside && device.scheduler.enforces_with(field, &device.params);
    let of_inner = match (alone, device.device_class) {
        (false, _) => "",
        (true, DeviceClass::Disk) => " of a volume inside a VM",
        (true, DeviceClass::Network) => " of a NIC inside a VM",
    };
    let title = device.title();
    let message = format!(
        "{whose}: {field_name}{of_inner} is not enforced by {scheduler}, the scheduler of {title}: no guarantee is given"
    );
    let able = sluice_papers::for_class(device.device_class).filter(|scheduler| match inside {
        true => scheduler.enforces_inside(field),
        false => scheduler.enforces(field),
    });
    let able: Vec<String> = able.map(|scheduler| with_what_it_needs(scheduler, field)).collect();
    if allowed {
        report.warn(*span, message, (!able.is_empty()).then(|| format!("enforced by {}", able.join(", "))));
    } else if able.is_empty() {
        let done = if field == Field::Latency { "only measured" } else { "accepted without effect" };
        report.error(*span, message, format!("no scheduler enforces it; with allow_unenforced = true it is {done}"));
    } else {
        let hint =
            format!("enforced by {}; or set allow_unenforced = true to accept it without effect", able.join(", "));
        report.error(*span, message, hint);
    }
}

/// Schedulers with latency targets give each request a deadline, reads and writes alike, in one queue per VM.
fn check_reads_only(part: &Part, (span, whose): (Span, &str), device: &Device, report: &Report) {
    let message = format!(
        "{whose}: latency.reads_only is not enforced by {}, the scheduler of device {}: writes have the same deadline, \
         and reads wait for them",
        device.scheduler.name, device.name
    );
    if part.allows_unenforced() {
        report.warn(span, message, None);
    } else {
        let hint = "no scheduler enforces it; remove reads_only, or set allow_unenforced = true to accept it";
        report.error(span, message, hint.to_owned());
    }
}

/// Name of a scheduler, with the parameters without which it does not enforce `field`.
fn with_what_it_needs(scheduler: &Descriptor, field: Field) -> String {
    let needs = scheduler.depends.iter().filter(|(of, _, _)| *of == field).map(|(_, name, words)| (*name, *words));
    let needs: Vec<String> = needs.map(|(name, words)| format!("{name} = \"{}\"", words.join("\" or \""))).collect();
    match needs.is_empty() {
        true => scheduler.name.to_owned(),
        false => format!("{} with {}", scheduler.name, needs.join(" and ")),
    }
}

/// Rejects volumes of a VM that together reserve more than the VM, and warns of limits that do not let the VM's reservation pass.
fn check_volumes(vm: &VmDraft, device: &Device, supply: &Supply, report: &Report) {
    let (name, reference) = (&device.name, device.reference);
    let on_device = |volume: &&VolumeDraft| volume.volume.device == *name;
    let reserving = |volume: &&VolumeDraft| volume.volume.policy.is_reserved();
    let mut volumes: Vec<&VolumeDraft> = vm.volumes.iter().filter(on_device).collect();
    // The result depends on whether there are volumes without a reservation.
    volumes.sort_by_key(reserving);
    if vm.part.broken || volumes.iter().any(|volume| volume.part.broken) {
        return;
    }
    let (whose, policies) =
        (format!("VM {} on device {name}", vm.name), volumes.iter().map(|volume| &volume.volume.policy));
    let span = vm.part.span_of(Field::Reservation).map_or(vm.span, |(span, _)| span);
    if is_enforced(Field::Limit, true, device) {
        reach::check(&whose, &vm.policy(), ("volumes", policies), span, report);
    }
    for count in 1..=volumes.len() {
        let first = volumes[..count].iter().map(|volume| &volume.volume.policy);
        if let Err(error) = admission::volumes_fit_device(supply, &vm.policy(), first) {
            let last = volumes[count - 1];
            let span = last.part.span_of(Field::Reservation).map_or(vm.span, |(span, _)| span);
            let (what, hint) = split_advice(&error.to_string());
            let message = format!("{whose} (rates at {reference}): {what}");
            report.error(span, message, hint);
            return;
        }
    }
}

/// Checks how a VM's volumes use its policy.
fn check_use(vm: &VmDraft, devices: &[&str], report: &Report) {
    let name = &vm.name;
    if vm.volumes.is_empty() && vm.nics.is_empty() && !report.is_incomplete() {
        let message = format!("VM {name} has neither a volume nor a NIC");
        report.warn(vm.span, message, "its policy has no effect yet".to_owned());
    }
    if devices.len() > 1 && vm.policy().stated().next().is_some() {
        // rule: mclock.two-devices
        let message = format!("VM {name} has volumes on {} devices: {}", devices.len(), devices.join(", "));
        report.warn(vm.span, message, "its policy applies to each of them separately".to_owned());
    }
}
