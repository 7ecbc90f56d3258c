//! What can only be seen across the tables: promises against devices, and things that two must not share.

pub mod admission;
pub mod bursts;
pub mod promises;
mod queue_wait;
pub(crate) mod roots;
mod sharing;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::export::NbdDraft;
use crate::model::Endpoint;
use crate::policy::Part;
use crate::source::Span;
use crate::vm::VmDraft;

/// A whole host, each table read.
pub(crate) struct Draft {
    pub(crate) devices: BTreeMap<String, DeviceDraft>,
    pub(crate) policies: BTreeMap<String, Part>,
    pub(crate) vms: Vec<Arc<VmDraft>>,
    pub(crate) nbd: NbdDraft,
    /// The daemon's own socket.
    pub(crate) control: Option<(Endpoint, Span)>,
}

/// All of them.
pub(crate) fn run(draft: &Draft, report: &Report) {
    promises::check(draft, report);
    queue_wait::check(draft, report);
    sharing::check(draft, report);
}
