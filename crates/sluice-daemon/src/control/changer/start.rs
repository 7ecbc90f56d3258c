//! What only a start does: it serves the host file first, with the state that the last daemon has left.

use std::sync::Arc;

use sluice_api::amount::counted;
use sluice_api::event::{Event, EventKind, Phase};
use sluice_api::printed::Serving;
use sluice_config::Host;

use super::reload;
use super::shared::InForce;
use super::watch::serving;
use crate::control::apply::Proposal;
use crate::control::overdue::Overdue;
use crate::server::{Extra, Force};
use crate::state::Saved;
use crate::state::overrides::{Gone, Override};
use crate::state::time::Time;

/// The configuration that is served first.
pub struct Start {
    /// The files with all changes made at run time.
    pub host: Arc<Host>,
    /// The state without what has ended meanwhile.
    pub saved: Saved,
    /// Whether the state file was damaged, so that changes made at run time may be lost.
    pub is_damaged: bool,
    pub gone: Vec<(Override, Gone)>,
    /// Volumes that may be served although they differ from what was served before.
    pub force: Force,
    /// Whether the start fails if anything of the file cannot be served.
    pub strict: bool,
}

impl Start {
    pub(super) fn propose(&self) -> Proposal {
        let mut proposal = Proposal::of(Arc::clone(&self.host), self.saved.clone(), self.gone.clone());
        proposal.extra = if self.strict { Extra::Nothing } else { Extra::Tolerate };
        proposal
    }

    /// Returns the volumes that the host file had when they were last served: not those that a change made at run time had added
    /// which ended meanwhile or is set aside. Of a damaged state it is not known which these are.
    pub(super) fn served_from_file(&self) -> Vec<String> {
        if self.is_damaged {
            return Vec::new();
        }
        let ended = self.gone.iter().map(|(old, _)| old);
        let attached: Vec<&Override> =
            ended.chain(self.saved.overrides.aside()).filter(|known| known.is_attach()).collect();
        let served = self.saved.exports.iter().filter(|(_, served)| !served.gone).map(|(name, _)| name);
        served.filter(|name| !attached.iter().any(|known| known.concerns(name))).cloned().collect()
    }
}

/// Records and reports a start. Returns what is served, and the state in a line.
pub(super) fn started(in_force: &mut InForce) -> (Serving, String) {
    let (time, overrides) = (Time::now(), &in_force.state.saved.overrides);
    let over = overrides.iter().filter(|known| known.is_over(time)).map(Override::name);
    in_force.state.overdue = Overdue::at_start(over);
    reload::report_kept(overrides);
    (serving(&in_force.server), in_force.status())
}

/// The event of a start.
pub(super) fn event(Serving { vms, volumes, nics, .. }: &Serving) -> Event {
    let version = env!("CARGO_PKG_VERSION");
    let [vms, volumes, nics] = [(vms, "VM", "VMs"), (volumes, "volume", "volumes"), (nics, "NIC", "NICs")]
        .map(|(count, one, several)| counted(*count as u64, one, several));
    let (time, detail) = (Time::of_clock().0, Some(format!("version {version}, {vms}, {volumes}, {nics}")));
    Event { time, kind: EventKind::Started, phase: Phase::Happened, detail, ..Event::default() }
}
