//! Checks across tables: guarantees against devices, and resources that may not be shared.

pub mod admission;
pub mod bursts;
mod exposure;
mod links;
pub mod promises;
mod queue_wait;
mod reach;
pub(crate) mod roots;
mod sharing;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::daemon::OwnEndpoint;
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::export::NbdDraft;
use crate::model::Jail;
use crate::net_policy::NetPart;
use crate::policy::Part;
use crate::uplink::UplinkDraft;
use crate::vm::{VmDraft, VolumeDraft};

/// A whole host with all tables parsed.
pub(crate) struct Draft {
    pub(crate) devices: BTreeMap<String, DeviceDraft>,
    pub(crate) uplinks: BTreeMap<String, UplinkDraft>,
    pub(crate) policies: BTreeMap<String, Part>,
    /// Network halves of the policies.
    pub(crate) nets: BTreeMap<String, NetPart>,
    pub(crate) vms: Vec<Arc<VmDraft>>,
    pub(crate) nbd: NbdDraft,
    /// The daemon's own endpoints.
    pub(crate) daemon: Vec<OwnEndpoint>,
}

/// Runs all checks.
pub(crate) fn run(draft: &Draft, jail: &Jail, report: &Report) {
    promises::check(draft, report);
    links::check(draft, report);
    queue_wait::check(draft, report);
    sharing::check(draft, report);
    exposure::check(draft, report);
    exposure::check_seal(draft, jail, report);
}

fn volumes(draft: &Draft) -> impl Iterator<Item = &VolumeDraft> {
    draft.vms.iter().flat_map(|vm| &vm.volumes)
}
