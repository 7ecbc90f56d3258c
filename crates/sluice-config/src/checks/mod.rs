//! Checks across tables: guarantees against devices, and resources that may not be shared.

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

/// A whole host with all tables parsed.
pub(crate) struct Draft {
    pub(crate) devices: BTreeMap<String, DeviceDraft>,
    pub(crate) policies: BTreeMap<String, Part>,
    pub(crate) vms: Vec<Arc<VmDraft>>,
    pub(crate) nbd: NbdDraft,
    /// The daemon's own socket.
    pub(crate) control: Option<(Endpoint, Span)>,
}

/// Runs all checks.
pub(crate) fn run(draft: &Draft, report: &Report) {
    promises::check(draft, report);
    queue_wait::check(draft, report);
    sharing::check(draft, report);
}
