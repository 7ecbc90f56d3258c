//! Checks of the network side: policies against themselves, the schedulers of uplinks, and their rates.

use sluice_sched::policy::{BURST_MAX, Field};
use sluice_sched::units::{show_duration, show_link_rate};
use sluice_sched::{ByteRate, CostModel, admission};

use super::Draft;
use super::admission::{Claimant, Room, check_claims};
use super::promises::{is_enforced, refuse_unenforced};
use super::reach;
use crate::diagnostics::Report;
use crate::model::Device;
use crate::net_policy::NetPart;
use crate::nic::NicDraft;
use crate::source::Span;
use crate::uplink::UplinkDraft;
use crate::vm::VmDraft;

pub(super) fn check(draft: &Draft, report: &Report) {
    for (name, part) in &draft.nets {
        check_itself(&format!("Policy {name}: net"), part, Span::default(), report);
    }
    for vm in &draft.vms {
        check_vm(vm, draft, report);
    }
    for uplink in draft.uplinks.values().filter(|uplink| !uplink.link.broken) {
        check_capacity(uplink, draft, report);
    }
}

fn check_vm(vm: &VmDraft, draft: &Draft, report: &Report) {
    if vm.has_own_net {
        check_itself(&format!("VM {}: net", vm.name), &vm.net, vm.span, report);
    }
    for nic in &vm.nics {
        if nic.has_own {
            check_itself(&format!("NIC {}", nic.title), &nic.part, nic.access_at, report);
        }
        let uplink = draft.uplinks.get(&nic.nic.uplink).filter(|uplink| !uplink.link.broken);
        for (part, inside) in [(&vm.net, false), (&nic.part, true)] {
            if let Some(uplink) = uplink.filter(|_| !part.broken) {
                check_enforced(part, inside, &uplink.link.device, report);
            }
        }
    }
    let uplinks = vm.uplinks();
    for uplink in uplinks.iter().filter_map(|name| draft.uplinks.get(*name)) {
        check_nics(vm, &uplink.link.device, report);
    }
    check_use(vm, &uplinks, report);
}

/// Reports a policy that contradicts itself.
fn check_itself(whose: &str, part: &NetPart, span: Span, report: &Report) {
    let policy = part.policy();
    let (transmit, burst) = (policy.transmit, policy.burst);
    let refuse = |field, what: String, hint: String| {
        let span = part.span_of(field).map_or(span, |(span, _)| span);
        report.error(span, format!("{whose}: {what}"), hint);
    };
    if part.broken {
        return;
    }
    if transmit.weight.is_none() && !transmit.is_reserved() {
        let what = "the policy has neither a reservation nor a weight, so frames would never be sent";
        refuse(Field::Weight, what.to_owned(), "add one of them".to_owned());
    }
    let (reserved, limit) = (transmit.reservation.bytes, transmit.limit.bytes);
    if let Some((reserved, limit)) = reserved.zip(limit).filter(|(reserved, limit)| reserved > limit) {
        let [reserved, limit] = [reserved, limit].map(show_link_rate);
        let what = format!("reservation {reserved} is above limit {limit}");
        refuse(Field::Reservation, what, "lower the reservation or raise the limit".to_owned());
    }
    if burst.is_some() && limit.is_none() {
        let hint = "state a limit, or remove the burst".to_owned();
        refuse(Field::Burst, "a burst is what a limit lets through, and there is no limit".to_owned(), hint);
    }
    if let Some((burst, limit)) = burst.zip(limit).filter(|_| transmit.burst.is_some_and(|frames| frames > BURST_MAX)) {
        let frame = CostModel::frames().reference_size().0;
        let at = show_link_rate(limit);
        let longest = u128::from(BURST_MAX - 1) * u128::from(frame) * 1_000_000 / u128::from(limit.bytes_per_second());
        let what = format!("burst {} at {at} is more than {BURST_MAX} full frames", show_duration(burst));
        refuse(Field::Burst, what, format!("lower it to at most {longest}us"));
    }
}

/// Reports fields that the uplink's scheduler does not enforce. A latency target is not the scheduler's: it is measured, and the
/// uplink cuts segments by it.
fn check_enforced(part: &NetPart, inside: bool, link: &Device, report: &Report) {
    let policy = part.policy().transmit;
    let unenforced = policy.stated().filter(|field| *field != Field::Latency && !is_enforced(*field, inside, link));
    for (field, at) in unenforced.filter_map(|field| Some((field, part.span_of(field)?))) {
        refuse_unenforced(field, &at, part.allows_unenforced(), inside, link, report);
    }
}

/// Checks the reservations of all VMs with a NIC on the uplink.
fn check_capacity(uplink: &UplinkDraft, draft: &Draft, report: &Report) {
    let link = &uplink.link.device;
    let uses = |vm: &&VmDraft| vm.nics.iter().any(|nic| nic.nic.uplink == link.name) && !vm.net.broken;
    let vms = draft.vms.iter().map(AsRef::as_ref).filter(uses).map(|vm| Claimant {
        vm: &vm.name,
        policy: vm.net.policy().transmit,
        span: vm.net.span_of(Field::Reservation).map(|(span, _)| span),
    });
    check_claims(link, &Room { supply: link.supply(), of: String::new() }, vms.collect(), report);
}

/// Rejects NICs of a VM that together reserve more than the VM.
// rule: mclock.volume-sum
fn check_nics(vm: &VmDraft, link: &Device, report: &Report) {
    let supply = link.supply();
    let mut nics: Vec<&NicDraft> = vm.nics.iter().filter(|nic| nic.nic.uplink == link.name).collect();
    // The result depends on whether there are NICs without a reservation.
    nics.sort_by_key(|nic| nic.nic.policy.transmit.is_reserved());
    if vm.net.broken || nics.iter().any(|nic| nic.part.broken) {
        return;
    }
    let whole = vm.net.policy().transmit;
    let whose = format!("VM {} on uplink {}", vm.name, link.name);
    reach::check(&whose, &whole, ("NICs", nics.iter().map(|nic| &nic.nic.policy.transmit)), vm.span, report);
    let fits = |count: usize| {
        let first = nics[..count].iter().map(|nic| &nic.nic.policy.transmit);
        admission::volumes_fit_device(&supply, &whole, first).is_ok()
    };
    let Some(count) = (1..=nics.len()).find(|count| !fits(*count)) else { return };
    let (name, last) = (&vm.name, nics[count - 1]);
    let rate = |policy: &sluice_sched::Policy| policy.reservation.bytes.map_or(0, ByteRate::bytes_per_second);
    let sum = nics[..count].iter().map(|nic| rate(&nic.nic.policy.transmit)).fold(0, u64::saturating_add);
    let sum = show_link_rate(ByteRate::per_second(sum));
    let reserves = whole.reservation.bytes.map_or_else(|| "nothing".to_owned(), show_link_rate);
    let by_weight = nics.iter().any(|nic| !nic.nic.policy.transmit.is_reserved());
    let floor = match supply.weight_floor {
        floor if by_weight && floor.hundredths() > 0 && whole.is_reserved() => {
            format!(", of which weight_floor keeps {floor} for its NICs without a reservation")
        }
        _ => String::new(),
    };
    let span = last.part.span_of(Field::Reservation).map_or(vm.span, |(span, _)| span);
    let message =
        format!("VM {name} on {}: its NICs reserve {sum} together, but the VM only {reserves}{floor}", link.title());
    report.error(span, message, format!("raise reservation in [vm.{name}.net], or lower those of its NICs"));
}

/// Checks how a VM's NICs use its policy.
fn check_use(vm: &VmDraft, uplinks: &[&str], report: &Report) {
    let name = &vm.name;
    if vm.nics.is_empty() && vm.has_own_net && !report.is_incomplete() {
        let message = format!("VM {name}: net has no effect, because the VM has no NIC");
        report.warn(vm.span, message, format!("add [vm.{name}.nic.eth0], or remove net"));
    }
    if uplinks.len() > 1 && vm.net.policy().transmit.stated().next().is_some() {
        let message = format!("VM {name} has NICs on {} uplinks: {}", uplinks.len(), uplinks.join(", "));
        report.warn(vm.span, message, "the policy in net applies to each of them separately".to_owned());
    }
}
