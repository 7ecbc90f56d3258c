//! `[vm.NAME]` of a scenario: its policy, its workload, and its placement.

use std::collections::BTreeMap;
use std::path::Path;

use crate::random::stream;
use crate::scenario::cpus::{CpuCost, Host};
use crate::scenario::{Guest, Placement, Source};
use crate::stack::Ring;
use crate::workloads::profiles::{self, BuildContext, WorkloadProfile};
use sluice_sched::Instant;
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};

use super::choice::{chosen, parameters, unknown};
use super::device::Device;
use super::fields::WORKLOAD;
use super::host::read_cpu_cost;
use super::trace::Scans;
use sluice_config::device::read_scheduler;
use sluice_config::policy::Part;
use sluice_config::reader::Reader;
use sluice_config::source::Span;
use sluice_config::tree::{Node, Value};
use sluice_config::vm::read_policy;

/// A VM as written; the offset of its volume is not known yet.
#[derive(Clone)]
pub(super) struct Vm {
    pub(super) name: String,
    /// Whether an earlier VM is the same but for the name: its keys have been checked.
    pub(super) is_copy: bool,
    pub(super) span: Span,
    pub(super) part: Part,
    pub(super) has_own: bool,
    pub(super) device: Option<String>,
    pub(super) source: Option<(Source, Span)>,
    pub(super) threads: u32,
    pub(super) placement: Placement,
    pub(super) guest: Option<Guest>,
    pub(super) guest_at: Span,
    pub(super) offset: Option<u64>,
    pub(super) size: Option<u64>,
    pub(super) size_at: Span,
    pub(super) direct: bool,
    pub(super) work: Option<CpuCost>,
}

/// Tables that VMs refer to by name.
pub(super) struct Tables<'a> {
    pub(super) host: Option<&'a Host>,
    pub(super) devices: &'a BTreeMap<String, Device>,
    pub(super) policies: &'a BTreeMap<String, Part>,
    pub(super) workloads: BTreeMap<String, &'a Node>,
    pub(super) traces: &'a BTreeMap<String, Reader<'a>>,
    pub(super) folder: &'a Path,
    pub(super) scans: &'a Scans,
}

pub(super) fn read(name: &str, reader: &Reader<'_>, tables: &Tables<'_>) -> Vm {
    let (part, has_own) = read_policy(reader, tables.policies);
    if reader.node("device").is_none() {
        reader.missing("device", "");
    }
    let device = reader.known("device", tables.devices);
    let known = device.and_then(|device| tables.devices.get(device));
    let guest = reader.table("guest").map(|table| read_guest(&table, known));
    let device_class = known.and_then(|known| known.device_class);
    if device_class == Some(DeviceClass::Network) {
        for key in ["trace", "guest", "offset", "size", "cache"].into_iter().filter(|key| reader.node(key).is_some()) {
            reader.refuse(key, "its device is a network link, which has no volumes", format!("remove {key}"));
        }
    }
    Vm {
        name: name.to_owned(),
        is_copy: false,
        span: reader.span,
        part,
        has_own,
        device: device.map(str::to_owned),
        source: read_source(reader, tables, device_class).map(|source| (source, reader.at(source_key(reader)))),
        threads: reader.small("threads").unwrap_or(1),
        placement: read_placement(reader, known, guest.is_some()),
        guest,
        guest_at: reader.at("guest"),
        offset: reader.size("offset").map(|size| size.0),
        size: reader.size("size").map(|size| size.0 / 4096 * 4096),
        size_at: reader.at("size"),
        direct: reader.word("cache") != Some("buffered"),
        work: read_cpu_cost(reader, tables.host),
    }
}

fn read_guest(reader: &Reader<'_>, device: Option<&Device>) -> Guest {
    let ring = if reader.word("ring") == Some("xen") { Ring::XEN } else { Ring::VIRTIO };
    let host = device.map(|device| device.draft.device.info(false)).unwrap_or_default();
    let info = DeviceInfo { depth: ring.slots, ..host };
    let (scheduler, params) = match reader.node("scheduler") {
        Some(_) => read_scheduler(reader, &info, Some(DeviceClass::Disk)),
        None => (&sluice_sched::schedulers::noop::DESCRIPTOR, ParamTable::new()),
    };
    Guest { scheduler, params, info, ring }
}

/// The host of a VM; `None` if its device has one.
fn read_host(reader: &Reader<'_>, device: Option<&Device>, has_guest: bool) -> Option<u32> {
    let hosts = device.map_or(1, |device| device.hosts);
    let host = reader.small("host");
    if let Some(host) = host.filter(|host| device.is_some() && *host > hosts) {
        let (what, hint) = if hosts == 1 {
            ("its device has one host".to_owned(), "remove host, or add hosts to the device".to_owned())
        } else {
            (format!("there is no host {host}"), format!("its device has {hosts}, from 1 to {hosts}"))
        };
        reader.refuse("host", what, hint);
    }
    if hosts == 1 {
        return None;
    }
    if reader.node("placement").is_some() {
        reader.refuse("placement", "its device has hosts, not nodes", "write for example host = 2");
    }
    if has_guest {
        let hint = "remove guest, or remove hosts from the device";
        reader.refuse("guest", "a device with several hosts has no guest schedulers", hint);
    }
    Some(host.unwrap_or(1).min(hosts))
}

fn read_placement(reader: &Reader<'_>, device: Option<&Device>, has_guest: bool) -> Placement {
    if let Some(host) = read_host(reader, device, has_guest) {
        return Placement::Node(host - 1);
    }
    let nodes = device.map_or(1, |device| device.nodes);
    let default = if nodes == 1 { Placement::Node(0) } else { Placement::Uniform };
    let placement = match reader.node("placement").map(|node| &node.value) {
        None => default,
        Some(Value::Text(word)) if word == "uniform" => default,
        Some(Value::Text(word)) if word == "round-robin" && nodes == 1 => default,
        Some(Value::Text(word)) if word == "round-robin" => Placement::RoundRobin,
        Some(Value::Integer(node)) if (0..i128::from(nodes)).contains(node) => Placement::Node(*node as u32),
        Some(Value::Integer(node)) => {
            let hint = format!("its device has {nodes}, from 0 to {}", nodes - 1);
            reader.refuse("placement", format!("there is no node {node}"), hint);
            default
        }
        Some(_) => {
            reader.refuse("placement", "not a placement", "write \"uniform\", \"round-robin\" or a node's number");
            default
        }
    };
    if has_guest && !matches!(placement, Placement::Node(_)) {
        reader.refuse("placement", "a VM with a guest scheduler uses only one node", "write placement = 0");
    }
    placement
}

fn read_source(reader: &Reader<'_>, tables: &Tables<'_>, device_class: Option<DeviceClass>) -> Option<Source> {
    match (reader.node("workload"), reader.node("trace")) {
        (None, None) => {
            reader.missing("workload", ", and so is trace");
            None
        }
        (Some(_), Some(_)) => {
            reader.refuse(
                "trace",
                "the VM also has a workload",
                "keep one of them; to run both, use two VMs on the same device",
            );
            None
        }
        (Some(node), None) => {
            let (known, params) = read_workload(reader, node, tables)?;
            if let Some(device_class) = device_class.filter(|device_class| *device_class != known.device_class()) {
                let (what, other) = match device_class {
                    DeviceClass::Network => ("disks, but its device is a network link", "\"datagrams\" or \"tcp\""),
                    DeviceClass::Disk => ("network links, but its device is a disk", "\"closed\""),
                };
                reader.refuse(
                    "workload",
                    format!("{} is for {what}", known.name),
                    format!("write for example {other}"),
                );
                return None;
            }
            Some(Source::Workload(known, params))
        }
        (None, Some(_)) => {
            let name = reader.known("trace", tables.traces)?;
            super::trace::read(tables.traces.get(name)?, tables.folder, tables.scans).map(Source::Trace)
        }
    }
}

/// The key with its workload.
fn source_key(reader: &Reader<'_>) -> &'static str {
    if reader.node("workload").is_some() { "workload" } else { "trace" }
}

fn read_workload(
    reader: &Reader<'_>,
    node: &Node,
    tables: &Tables<'_>,
) -> Option<(&'static WorkloadProfile, ParamTable)> {
    if let Value::Text(name) = &node.value
        && tables.workloads.contains_key(name)
    {
        let node = tables.workloads[name];
        return workload_of(&format!("Workload {name}"), node, reader, tables);
    }
    let title = format!("{}: workload", reader.whose);
    workload_of(&title, node, reader, tables)
}

/// Parses a workload with its parameters.
pub(super) fn workload_of(
    title: &str,
    node: &Node,
    reader: &Reader<'_>,
    tables: &Tables<'_>,
) -> Option<(&'static WorkloadProfile, ParamTable)> {
    let chosen = chosen(title, node, &WORKLOAD, reader)?;
    let Some(known) = profiles::find(chosen.name) else {
        let named = tables.workloads.keys().map(String::as_str).filter(|_| matches!(node.value, Value::Text(_)));
        let names: Vec<&str> = named.chain(profiles::all().map(|known| known.name)).collect();
        unknown(title, &chosen, "workload", &names, reader);
        return None;
    };
    let before = reader.report.errors();
    // Whether it fits the volume is checked when the size is known.
    let accept = |params: &ParamTable| known.build(params, context(u64::MAX >> 1)).map(drop);
    let params = parameters(title, &chosen, known.parameters, &accept, tables.folder, reader);
    (reader.report.errors() == before).then_some((known, params))
}

/// Context of a thread with a volume of this size.
pub(super) fn context(volume: u64) -> BuildContext {
    BuildContext { volume, start: Instant::ZERO, random: stream(0, "check") }
}
