//! `[device.NAME]` of a scenario: the model, and what the scheduler believes of it.

use std::path::Path;

use sluice_sched::{Bytes, GateSettings};
use sluice_sim::scenario::models::{self, Derived};
use sluice_sim::scenario::{self as sim};

use super::choice::{chosen, parameters, unknown};
use super::fields::MODEL;
use crate::device::{DeviceDraft, read_belief};
use crate::reader::Reader;

/// A device, and what follows from its model.
pub(super) struct Device {
    /// As the host file's checks want it.
    pub(super) draft: DeviceDraft,
    /// Nothing if something in it is wrong.
    pub(super) device: Option<(sim::Device, Derived)>,
    pub(super) nodes: u32,
}

pub(super) fn read(name: &str, reader: &Reader<'_>, folder: &Path, admission: bool) -> Device {
    let before = reader.report.errors();
    let mut belief = read_belief(name, reader);
    belief.admission = admission;
    let nodes = reader.small("nodes").unwrap_or(1);
    let queue_max = reader.small("queue").unwrap_or(65_536);
    let model = read_model(reader, folder);
    let broken = reader.report.errors() > before;
    let device = model.filter(|_| !broken).map(|(model, model_params, derived)| {
        let gate = GateSettings {
            depth: belief.depth,
            transfer_max: Bytes::kib(256),
            discard_max: Bytes::mib(64),
            queue_max,
            cost: belief.cost,
            merging: belief.merging,
        };
        let device = sim::Device {
            name: name.to_owned(),
            model,
            model_params,
            nodes,
            scheduler: belief.scheduler,
            params: belief.params.clone(),
            facts: belief.facts(false),
            gate,
            capacity: belief.capacity,
        };
        (device, derived)
    });
    Device { draft: DeviceDraft { device: belief, path_at: reader.place, broken }, device, nodes }
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
