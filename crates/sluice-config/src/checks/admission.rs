//! Checks that the reservations of a device's VMs fit, and builds the messages of a rejection.

use std::sync::Arc;

use sluice_sched::admission::{self, AdmissionError, Currency, Shortfall, Supply};
use sluice_sched::policy::{Field, Reservation};
use sluice_sched::{Bytes, Policy};

use super::Draft;
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::model::Device;
use crate::policy::Part;
use crate::source::Span;
use crate::vm::VmDraft;

/// Checks the reservations of all VMs with a volume on the device.
pub(super) fn check_capacity(device: &DeviceDraft, draft: &Draft, report: &Report) {
    let uses = |vm: &&Arc<VmDraft>| vm.volumes.iter().any(|volume| volume.volume.device == device.device.name);
    let vms = draft.vms.iter().filter(uses).map(|vm| (vm.name.as_str(), &vm.part)).collect::<Vec<_>>();
    check_admission(device, &Room { supply: device.device.supply(), of: String::new() }, &vms, report);
}

/// Capacity against which reservations are checked.
pub struct Room {
    pub supply: Supply,
    /// The nodes that it covers, if the device has several: " of its 3 nodes".
    pub of: String,
}

/// Checks the reservations of VMs, given with their names; returns whether they fit.
pub fn check_admission(device: &DeviceDraft, room: &Room, parts: &[(&str, &Part)], report: &Report) -> bool {
    let mut sound: Vec<_> = parts.iter().filter(|(_, part)| !part.broken).collect();
    // The VM whose reservation is stated last is rejected, since a change comes after the files.
    sound.sort_by_key(|(_, part)| part.span_of(Field::Reservation).map(|(span, _)| span));
    let vms: Vec<(&str, Policy)> = sound.into_iter().map(|(name, part)| (*name, part.policy())).collect();
    let named = vms.iter().map(|(vm, policy)| (*vm, policy));
    let Err(error) = admission::admit(&room.supply, named) else { return true };
    let device = &device.device;
    let (vm, message, hint) = match &error {
        AdmissionError::NoCapacity { vm, reservation, missing } => without_capacity(device, vm, reservation, missing),
        AdmissionError::Over(short) => over(device, room, short, shared(&short.claim.vm, parts, room)),
    };
    let part = parts.iter().find(|(name, _)| *name == vm).map(|(_, part)| part);
    let span = part.and_then(|part| part.span_of(Field::Reservation)).map_or(Span::default(), |(span, _)| span);
    if device.admission {
        report.error(span, message, hint);
    } else {
        report.warn(span, message, "admission is \"off\" on this device: reservations may not be met".to_owned());
    }
    false
}

/// VM, message and hint if a figure of the device is missing.
fn without_capacity<'a>(
    device: &Device,
    vm: &'a str,
    reservation: &Reservation,
    missing: &[&str],
) -> (&'a str, String, String) {
    let (name, reference) = (&device.name, device.reference);
    let requested = at_size(reservation, reference);
    let why = if reservation.iops.is_none() && missing.contains(&"capacity") {
        ", which is needed to count small requests"
    } else {
        ""
    };
    let message =
        format!("Device {name}: VM {vm} reserves {requested}, but the device has no {}{why}", missing.join(" and no "));
    let example = |key: &&str| match *key {
        "capacity" => format!("capacity = \"40000 iops@{reference}\""),
        key => format!("{key} = \"2GiB/s\""),
    };
    let lines: Vec<String> = missing.iter().map(example).collect();
    (vm, message, format!("add {} to [device.{name}], with the device's worst-case throughput", lines.join(" and ")))
}

/// The same if the reservations are too large.
fn over<'a>(
    device: &Device,
    room: &Room,
    short: &'a Shortfall,
    shared: Option<(usize, Reservation)>,
) -> (&'a str, String, String) {
    let (name, reference, claim) = (&device.name, device.reference, &short.claim);
    let capacity = match claim.binding {
        Currency::Requests => room.supply.capacity.iops.map(|iops| format!("capacity{} = {iops}@{reference}", room.of)),
        Currency::Bytes => room.supply.capacity.bytes.map(|rate| format!("bandwidth{} = {rate}", room.of)),
    };
    let message = format!(
        "Device {name}: VM {} reserves {}, {} of the device by {} ({}); {}",
        claim.vm,
        at_size(&claim.reservation, reference),
        claim.part,
        claim.binding,
        capacity.unwrap_or_default(),
        short.arithmetic()
    );
    let nothing = Reservation { iops: None, bytes: None };
    let lower = match (shared, short.free) {
        (Some((count, each)), _) if each != nothing => {
            format!("it is the reservation of {count} VMs: lower it to at most {}", at_size(&each, reference))
        }
        (None, free) if free != nothing => format!("lower it to at most {}", at_size(&free, reference)),
        _ => "lower the other reservations".to_owned(),
    };
    let other = "place the VM on another device";
    let hint = match short.weight_floor.hundredths() {
        0 => format!("{lower}, or {other}"),
        _ => format!("{lower}, {other}, or set a lower weight_floor in [device.{name}.{}]", device.scheduler.name),
    };
    (&claim.vm, message, hint)
}

/// Number of VMs with the reservation of `vm` from the same line of the file, if there are others, and what each of
/// them could have.
fn shared(vm: &str, parts: &[(&str, &Part)], room: &Room) -> Option<(usize, Reservation)> {
    let span = |part: &Part| part.span_of(Field::Reservation).map(|(span, _)| span);
    let own = parts.iter().find(|(name, _)| *name == vm).map(|(_, part)| *part)?;
    let sound = parts.iter().map(|(_, part)| *part).filter(|part| !part.broken);
    let (same, others): (Vec<&Part>, Vec<&Part>) = sound.partition(|part| span(part) == span(own));
    let others: Vec<Policy> = others.into_iter().map(Part::policy).collect();
    let each = room.supply.free_each(&others, same.len(), &own.policy().reservation);
    (same.len() > 1).then_some((same.len(), each))
}

/// A reservation with the size to which it is normalised.
fn at_size(reservation: &Reservation, reference: Bytes) -> String {
    let shown = admission::show(reservation);
    shown.replacen(" iops", &format!(" iops@{reference}"), 1)
}
