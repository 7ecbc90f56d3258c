//! The end of changes whose time is over.
//!
//! A volume that was attached for a time is not taken from a running VM: its override stays while the volume has clients, and its end is
//! tried again. After a start nothing has clients yet, so it stays for the time in which they reconnect.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sluice_config::changes::{Object, Target};

use super::{Attempt, Kind, Thread};
use crate::server::{ServerError, VolumeName};
use crate::state::overrides::Override;
use crate::state::time::Time;

/// Interval between attempts to end what is over and in use.
const OVERDUE_EVERY: Duration = Duration::from_secs(2);
/// Time after a start in which clients reconnect to what was attached for a time that is over now.
const RECONNECT_MAX: Duration = Duration::from_secs(30);

impl Thread {
    /// Keeps overrides whose end would close volumes in use. Returns whether there are any more than before.
    pub(super) fn keep_used(&mut self, attempt: &mut Attempt, error: &ServerError) -> bool {
        let ServerError::InUse { volumes, .. } = error else { return false };
        let now = Time::now();
        let before = attempt.kept.len();
        for known in self.state.saved.overrides.iter().filter(|known| known.is_over(now)) {
            // The policy of others closes nothing.
            let Object::Target(Target { vm, volume }) = &known.target else { continue };
            // Keys of a VM close nothing, but its volumes need the VM.
            let is_needed_by = |(used_vm, used): &&VolumeName| {
                vm == used_vm && volume.as_ref().map_or(known.is_attach(), |volume| volume == used)
            };
            let Some((vm, volume)) = volumes.iter().find(is_needed_by) else { continue };
            let name = known.name();
            attempt.kept.insert(name.clone());
            if self.state.overdue.insert(name.clone()) {
                let until = known.lasts.to_string();
                tracing::warn!(
                    vm,
                    volume,
                    name,
                    until,
                    "Expired override stays in force: ending it would close a volume in use; retrying"
                );
            }
        }
        attempt.kept.len() > before
    }

    /// Ends changes whose time is over.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        let is_overdue = self.overdue_at.is_some_and(|at| at <= now);
        let next = self.state.saved.overrides.next_expiry(&self.state.overdue);
        let is_due = is_overdue || next.is_some_and(|at| at <= Time::now());
        let is_running = self.saving.is_some()
            || self.repeat_at.is_some()
            || self.attempts.iter().any(|attempt| matches!(attempt.kind, Kind::Start(_) | Kind::Expire));
        if is_due && !is_running {
            self.overdue_at = None;
            self.begin(Kind::Expire);
        }
    }

    /// After a start: leaves what is over in force until its clients have had time to reconnect.
    pub(super) fn await_clients_of_overdue(&mut self) {
        let now = Time::now();
        let over = self.state.saved.overrides.iter().filter(|known| known.is_over(now));
        self.state.overdue = over.map(Override::name).collect();
        self.overdue_at = (!self.state.overdue.is_empty()).then(|| Instant::now() + RECONNECT_MAX);
    }

    /// Tries later to end the overrides with these names.
    pub(super) fn retry_overdue(&mut self, kept: BTreeSet<String>) {
        self.overdue_at = (!kept.is_empty()).then(|| Instant::now() + OVERDUE_EVERY);
        self.state.overdue = kept;
    }
}
