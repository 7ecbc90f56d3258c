//! Checks that the reservations of a device's VMs fit, and builds the messages of a rejection.

use std::sync::Arc;

use sluice_pool::exchange::HOST_IOPS;
use sluice_sched::Policy;
use sluice_sched::admission::{self, AdmissionError, Currency, Shortfall, Supply};
use sluice_sched::policy::{Field, Reservation};
use sluice_sched::units::show_link_rate;

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
    let sound = parts.iter().filter(|(_, part)| !part.broken);
    let claimants = sound.map(|(vm, part)| Claimant {
        vm,
        policy: part.policy(),
        span: part.span_of(Field::Reservation).map(|(span, _)| span),
    });
    check_claims(&device.device, room, claimants.collect(), report)
}

/// A VM whose reservation is checked.
pub(super) struct Claimant<'a> {
    pub(super) vm: &'a str,
    pub(super) policy: Policy,
    /// Position of its reservation.
    pub(super) span: Option<Span>,
}

/// Checks these reservations; returns whether they fit.
pub(super) fn check_claims(device: &Device, room: &Room, mut vms: Vec<Claimant<'_>>, report: &Report) -> bool {
    // The VM whose reservation is stated last is rejected, since a change comes after the files.
    vms.sort_by_key(|claimant| claimant.span);
    let named = vms.iter().map(|claimant| (claimant.vm, &claimant.policy));
    let Err(error) = admission::admit(&room.supply, named) else { return true };
    let (vm, message, hint) = match &error {
        AdmissionError::NoCapacity { vm, reservation, missing } => without_capacity(device, vm, reservation, missing),
        AdmissionError::Over(short) => over(device, room, short, shared(&short.claim.vm, &vms, room)),
    };
    let span = vms.iter().find(|claimant| claimant.vm == vm).and_then(|claimant| claimant.span).unwrap_or_default();
    if device.admission {
        report.error(span, message, hint);
    } else {
        let hint = format!("admission is \"off\" on this {}: reservations may not be met", device.table);
        report.warn(span, message, hint);
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
    let (name, requested) = (&device.name, show(device, reservation));
    if device.table == "uplink" {
        let message = format!("{}: VM {vm} reserves {requested}, but the uplink has no rate", device.heading());
        return (vm, message, format!("add rate = \"1Gbit/s\" to [uplink.{name}], with what the wire carries"));
    }
    let reference = device.reference;
    let why = if reservation.iops.is_none() && missing.contains(&"capacity") {
        ", which is needed to count small requests"
    } else {
        ""
    };
    let (heading, missing_words) = (device.heading(), missing.join(" and no "));
    let message = format!("{heading}: VM {vm} reserves {requested}, but the device has no {missing_words}{why}");
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
    let (reference, claim, table) = (device.reference, &short.claim, device.table);
    let capacity = match claim.binding {
        Currency::Requests => {
            room.supply.capacity.iops.map(|iops| match (device.capacity.iops, device.capacity.bytes) {
                (Some(stated), _) if stated.milli() == iops.milli() + 1000 * HOST_IOPS => {
                    format!("capacity = {stated}@{reference}, of which hosts of a pool meet with {HOST_IOPS} iops each")
                }
                (Some(stated), Some(bandwidth)) if room.of.is_empty() && iops < stated => {
                    format!("capacity = {stated}@{reference}, of which bandwidth = {bandwidth} carries {iops}")
                }
                _ => format!("capacity{} = {iops}@{reference}", room.of),
            })
        }
        Currency::Bytes if table == "uplink" => {
            room.supply.capacity.bytes.map(|rate| format!("rate = {}", show_link_rate(rate)))
        }
        Currency::Bytes => room.supply.capacity.bytes.map(|rate| format!("bandwidth{} = {rate}", room.of)),
    };
    let message = format!(
        "{}: VM {} reserves {}, {} of the {table} by {} ({}); {}",
        device.heading(),
        claim.vm,
        show(device, &claim.reservation),
        claim.part,
        claim.binding,
        capacity.unwrap_or_default(),
        short.arithmetic()
    );
    let nothing = Reservation { iops: None, bytes: None };
    let lower = match (shared, short.free) {
        (Some((count, each)), _) if each != nothing => {
            format!("it is the reservation of {count} VMs: lower it to at most {}", show(device, &each))
        }
        (None, free) if free != nothing => format!("lower it to at most {}", show(device, &free)),
        _ => "lower the other reservations".to_owned(),
    };
    let (other, name) = (format!("place the VM on another {table}"), &device.name);
    let hint = match (short.bound_by_reservable(), short.weight_floor.hundredths()) {
        (true, _) => format!("{lower}, {other}, or set a higher reservable in [{table}.{name}]"),
        (false, 0) => format!("{lower}, or {other}"),
        _ => format!("{lower}, {other}, or set a lower weight_floor in [{table}.{name}.{}]", device.scheduler.name),
    };
    (&claim.vm, message, hint)
}

/// Number of VMs with the reservation of `vm` from the same line of the file, if there are others, and what each of
/// them could have.
fn shared(vm: &str, vms: &[Claimant<'_>], room: &Room) -> Option<(usize, Reservation)> {
    let own = vms.iter().find(|claimant| claimant.vm == vm)?;
    let (same, others): (Vec<_>, Vec<_>) = vms.iter().partition(|claimant| claimant.span == own.span);
    let others = others.into_iter().map(|claimant| &claimant.policy);
    let each = room.supply.free_each(others, same.len(), &own.policy.reservation);
    (same.len() > 1).then_some((same.len(), each))
}

/// A reservation as it is stated on this kind of device: in bits per second, or with the size to which requests are normalised.
fn show(device: &Device, reservation: &Reservation) -> String {
    match reservation.bytes {
        Some(rate) if device.table == "uplink" => show_link_rate(rate),
        _ => admission::show(reservation).replacen(" iops", &format!(" iops@{}", device.reference), 1),
    }
}
