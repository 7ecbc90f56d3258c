//! `[[timeline]]`: planned events.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::devices::speed::Speed;
use crate::scenario::{DeviceEvent, VmEvent};
use sluice_sched::Instant;
use sluice_sched::units::show_duration;

use super::device::Device;
use sluice_config::policy::Part;
use sluice_config::reader::Reader;
use sluice_config::source::Span;

/// One entry.
pub(super) struct Entry {
    pub(super) at: Instant,
    pub(super) span: Span,
    pub(super) what: What,
}

/// Object and event.
pub(super) enum What {
    /// The VMs: several if the entry names a table with a count.
    Vm(Vec<String>, VmChange),
    Device(String, Option<u32>, DeviceEvent),
}

/// An event of a VM.
pub(super) enum VmChange {
    Event(VmEvent),
    /// The policy keys of the entry, and whether they are based on a named policy.
    Policy(Box<Part>, bool),
}

/// Names that an entry may use.
pub(super) struct Names<'a> {
    /// End of the run; later events are rejected.
    pub(super) end: Duration,
    /// VMs by name, and those of a count by the name of their table.
    pub(super) vms: &'a BTreeMap<String, Vec<String>>,
    pub(super) devices: &'a BTreeMap<String, Device>,
    pub(super) policies: &'a BTreeMap<String, Part>,
}

/// Parses an entry; `None` if it has an error.
pub(super) fn read(reader: &Reader<'_>, names: &Names<'_>) -> Option<Entry> {
    let before = reader.report.errors();
    for key in ["at", "change"].into_iter().filter(|key| reader.node(key).is_none()) {
        reader.missing(key, "");
    }
    let (at, change, times) = (reader.time("at"), reader.word("change"), reader.decimal("times"));
    if at.is_some_and(|at| at > names.end) {
        let end = show_duration(names.end);
        reader.refuse("at", format!("the run ends earlier, at {end}"), "write an earlier time, or a longer duration");
    }
    let own = Part::read(reader);
    let base = reader.known("policy", names.policies).and_then(|name| names.policies.get(name));
    let change = change?;
    if change != "policy" && (own.states_anything() || base.is_some()) {
        let hint = "write change = \"policy\" in a separate entry";
        reader.refuse("change", format!("change \"{change}\" cannot have policy keys"), hint);
    }
    match (change == "slow", reader.node("times").is_some()) {
        (true, false) => reader.missing("times", ": the factor by which requests take longer"),
        (false, true) => reader.refuse("times", "it is only for change \"slow\"", "remove it"),
        _ => {}
    }
    let is_of_host = reader.node("host").is_some();
    let what = match change {
        "start" => of_vm(reader, names, VmChange::Event(VmEvent::Start)),
        "idle" => of_vm(reader, names, VmChange::Event(VmEvent::Idle)),
        "stop" => of_vm(reader, names, VmChange::Event(VmEvent::Stop)),
        "policy" => {
            if !own.states_anything() && reader.node("policy").is_none() {
                reader.refuse("change", "the entry has no policy", "add policy = or policy keys, like weight = 200");
            }
            let based = base.is_some();
            let part = base.map_or_else(|| own.clone(), |base| base.overlaid(own.clone()));
            of_vm(reader, names, VmChange::Policy(Box::new(part), based))
        }
        "slow" if is_of_host => of_device(reader, names, DeviceEvent::Path(times.unwrap_or(1.0))),
        "slow" => of_device(reader, names, DeviceEvent::Speed(Speed::Slower(times.unwrap_or(1.0)))),
        "stall" => of_device(reader, names, DeviceEvent::Speed(Speed::Stalled)),
        "recover" if is_of_host => of_device(reader, names, DeviceEvent::Path(1.0)),
        "recover" => of_device(reader, names, DeviceEvent::Speed(Speed::NORMAL)),
        "away" => of_device(reader, names, DeviceEvent::Away),
        "back" => of_device(reader, names, DeviceEvent::Back),
        "fail" => of_device(reader, names, DeviceEvent::Fail),
        _ => of_device(reader, names, DeviceEvent::Return),
    };
    let at = Instant::from_nanos(at?.as_nanos() as u64);
    let entry = Entry { at, span: reader.span, what: what? };
    (reader.report.errors() == before).then_some(entry)
}

fn of_vm(reader: &Reader<'_>, names: &Names<'_>, change: VmChange) -> Option<What> {
    for key in ["device", "node", "host"].into_iter().filter(|key| reader.node(key).is_some()) {
        reader.refuse(key, "this change is for a VM", format!("remove {key}, or write another change"));
    }
    if reader.node("vm").is_none() {
        reader.missing("vm", ": this change is for a VM");
    }
    Some(What::Vm(names.vms.get(reader.known("vm", names.vms)?)?.clone(), change))
}

fn of_device(reader: &Reader<'_>, names: &Names<'_>, event: DeviceEvent) -> Option<What> {
    if reader.node("vm").is_some() {
        reader.refuse("vm", "this change is for a device", "remove vm, or write another change");
    }
    if reader.node("device").is_none() {
        reader.missing("device", ": this change is for a device");
    }
    let device = reader.known("device", names.devices)?;
    let place = match names.devices[device].hosts {
        1 => read_node(reader, device, names),
        hosts => read_host(reader, device, hosts, event),
    };
    let has_pool = names.devices[device].device.as_ref().is_none_or(|(device, _)| device.meeting.is_some());
    if matches!(event, DeviceEvent::Away | DeviceEvent::Back) && !has_pool {
        let hint = format!("add [device.{device}.pool], or write another change");
        reader.refuse("change", "the hosts of its device tell each other nothing", hint);
    }
    Some(What::Device(device.to_owned(), place, event))
}

/// Index of the stated host.
fn read_host(reader: &Reader<'_>, device: &str, hosts: u32, event: DeviceEvent) -> Option<u32> {
    if reader.node("node").is_some() {
        reader.refuse("node", format!("device {device} has hosts, not nodes"), "write for example host = 2");
    }
    let host = reader.small("host");
    if let Some(host) = host.filter(|host| *host > hosts) {
        let hint = format!("device {device} has {hosts}, from 1 to {hosts}");
        reader.refuse("host", format!("there is no host {host}"), hint);
    }
    if host.is_some() && event == DeviceEvent::Speed(Speed::Stalled) {
        reader.refuse("host", "a device stalls for all its hosts", "remove host, or write change = \"slow\"");
    }
    host.map(|host| host - 1)
}

/// Number of the stated node.
fn read_node(reader: &Reader<'_>, device: &str, names: &Names<'_>) -> Option<u32> {
    if reader.node("host").is_some() {
        let hint = "remove host, or add hosts to the device";
        reader.refuse("host", format!("device {device} has one host"), hint);
    }
    let (node, nodes) = (reader.small("node"), names.devices[device].nodes);
    if let Some(node) = node.filter(|node| *node >= nodes) {
        let hint = format!("device {device} has {nodes}, from 0 to {}", nodes - 1);
        reader.refuse("node", format!("there is no node {node}"), hint);
    }
    node
}
