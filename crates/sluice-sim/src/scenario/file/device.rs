//! `[device.NAME]` of a scenario: the model, and the properties that the scheduler assumes.

use std::path::Path;

use crate::scenario::models::{self, Derived};
use crate::scenario::{self as sim};
use sluice_sched::admission::{Capacity, Supply};
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::tracker::Form;
use sluice_sched::{ByteRate, GateSettings, Iops};

use super::choice::{chosen, parameters, unknown};
use super::fields::{ACROSS_NODES, DELAY, MODEL};
use crate::engine::Meeting;
use sluice_config::checks::admission::Room;
use sluice_config::device::{DeviceDraft, read_belief};
use sluice_config::reader::Reader;

/// A device, and the properties of its model.
pub(super) struct Device {
    /// For the checks that host files share.
    pub(super) draft: DeviceDraft,
    /// `None` if it has an error.
    pub(super) device: Option<(sim::Device, Derived)>,
    pub(super) nodes: u32,
    pub(super) hosts: u32,
    /// Of its model; `None` if that has an error.
    pub(super) device_class: Option<DeviceClass>,
}

impl Device {
    /// Whether policies hold across its nodes.
    pub(super) fn reports_remote(&self) -> bool {
        self.device.as_ref().is_some_and(|(device, _)| device.reporting.is_some())
    }

    /// Capacity of all its nodes together.
    pub(super) fn room(&self) -> Room {
        let supply = self.draft.device.supply();
        let Capacity { iops, bytes } = supply.capacity;
        let nodes = u64::from(self.nodes);
        let capacity = Capacity {
            iops: iops.map(|iops| Iops::from_milli(iops.milli().saturating_mul(nodes))),
            bytes: bytes.map(|rate| ByteRate::per_second(rate.bytes_per_second().saturating_mul(nodes))),
        };
        Room { supply: Supply { capacity, ..supply }, of: format!(" of its {nodes} nodes") }
    }

    /// Capacity of one node, or of all hosts together.
    pub(super) fn room_of(&self, node: u32) -> Room {
        let of = if self.nodes == 1 { String::new() } else { format!(" of its node {node}") };
        Room { supply: self.draft.device.supply(), of }
    }
}

pub(super) fn read(name: &str, reader: &Reader<'_>, folder: &Path, admission: bool) -> Device {
    let before = reader.report.errors();
    let model = read_model(reader, folder);
    let device_class = model.as_ref().map(|(known, ..)| known.device_class());
    let mut belief = read_belief(name, reader, device_class);
    belief.admission = admission;
    let nodes = reader.small("nodes").unwrap_or(1);
    let hosts = read_hosts(reader, nodes, device_class);
    let meeting = read_meeting(reader, &belief, hosts);
    let reporting = read_reporting(reader, &belief, nodes);
    let queue_max = reader.small("queue").unwrap_or(65_536);
    let broken = reader.report.errors() > before;
    if let Some((_, _, derived)) = &model {
        check_capacity(reader, &belief, derived);
    }
    let device = model.filter(|_| !broken).map(|(model, model_params, derived)| {
        let gate = GateSettings { queue_max, ..belief.gate_settings() };
        let device = sim::Device {
            name: name.to_owned(),
            model,
            model_params,
            nodes,
            reporting,
            scheduler: belief.scheduler,
            params: belief.params.clone(),
            info: DeviceInfo::of(&gate, belief.rotational.unwrap_or(false), &belief.capacity),
            gate,
            capacity: belief.capacity,
            aim: belief.aim(),
            hosts,
            meeting,
        };
        (device, derived)
    });
    Device { draft: DeviceDraft { device: belief, path_at: reader.span, broken }, device, nodes, hosts, device_class }
}

fn read_hosts(reader: &Reader<'_>, nodes: u32, device_class: Option<DeviceClass>) -> u32 {
    let hosts = reader.small("hosts").unwrap_or(1);
    if hosts > 1 && nodes > 1 {
        let hint = "remove nodes, or remove hosts: the hosts of one device share it, and nodes are separate devices";
        reader.refuse("hosts", "the device also has nodes", hint);
    }
    if hosts > 1 && device_class == Some(DeviceClass::Network) {
        reader.refuse("hosts", "its model is a network link, which one host has", "remove hosts");
    }
    hosts
}

/// How its hosts tell each other what they use.
fn read_meeting(reader: &Reader<'_>, belief: &sluice_config::model::Device, hosts: u32) -> Option<Meeting> {
    let pool = reader.table("pool")?;
    if hosts == 1 {
        reader.refuse("pool", "the device has one host, which shares it with nobody", "add hosts = 4, or remove pool");
    }
    if belief.capacity.iops.is_none() {
        reader.missing("capacity", ", which pool needs");
    }
    if belief.latency.is_none() {
        reader.missing("latency", ", which pool needs");
    }
    let part = |key| pool.percent(key).map_or(0.0, |percent| percent.hundredths() as f64 / 10_000.0);
    Some(Meeting {
        capacity: belief.capacity,
        request_bytes: belief.reference.0,
        latency: belief.latency?,
        delay: pool.time("delay").unwrap_or(DELAY),
        lost: part("lost"),
        torn: part("torn"),
    })
}

/// Warns of a capacity that the model cannot reach, so that guarantees based on it cannot be kept.
fn check_capacity(reader: &Reader<'_>, belief: &sluice_config::model::Device, derived: &Derived) {
    let Some(iops) = belief.capacity.iops.filter(|iops| iops.as_f64() > derived.most.0) else { return };
    let ((most, of), reference) = (derived.most, belief.reference);
    let message = format!(
        "{}: capacity = {iops}@{reference} is more than the {most:.0} iops that its model delivers: {of}",
        reader.whose
    );
    let hint = "state the model's worst-case throughput; reservations above it are not met";
    reader.report.warn(reader.at("capacity"), message, hint.to_owned());
}

/// Form in which VMs report service at other nodes; `None` if each node is independent.
// rule: mclock.client-counts
fn read_reporting(reader: &Reader<'_>, belief: &sluice_config::model::Device, nodes: u32) -> Option<Form> {
    let stated = reader.word("policies_hold");
    let form = (belief.scheduler.remote)(&belief.params);
    if stated == Some(ACROSS_NODES) && form.is_none() {
        let name = belief.scheduler.name;
        let what = format!("its scheduler {name} does not use the service that VMs got at other nodes");
        reader.refuse("policies_hold", what, "write policies_hold = \"at-each-node\", or scheduler = \"mclock\"");
    }
    form.filter(|_| nodes > 1 && stated.is_none_or(|word| word == ACROSS_NODES))
}

type Model = (models::Known, sluice_sched::params::ParamTable, Derived);

fn read_model(reader: &Reader<'_>, folder: &Path) -> Option<Model> {
    let Some(node) = reader.node("model") else {
        reader.missing("model", "");
        return None;
    };
    let title = format!("{}: model", reader.whose);
    let chosen = chosen(&title, node, &MODEL, reader)?;
    let Some(kind) = models::find(chosen.name) else {
        let names: Vec<&str> = models::all().map(|known| known.name()).collect();
        unknown(&title, &chosen, "model", &names, reader);
        return None;
    };
    let known = kind.parameters();
    let before = reader.report.errors();
    let accept = |params: &_| kind.derive(params).map(drop);
    let params = parameters(&title, &chosen, &known, &accept, folder, reader);
    if reader.report.errors() > before {
        return None;
    }
    let derived = kind.derive(&params).ok()?;
    Some((kind, params, derived))
}
