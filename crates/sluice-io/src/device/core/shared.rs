//! The core of a worker of a device with several threads: what it exchanges with the shared gate.

use std::io;
use std::time::Duration;

use sluice_sched::{Instant, OwnerId, VolumeId};

use crate::backend::device_queue::DeviceQueue as _;
use crate::backend::sync::SyncNote;
use crate::device::core::Core;
use crate::device::workers::hub::{Grant, Note, Passed};
use crate::slab::{IoId, VolumeKey};

impl Core {
    /// Posts what this worker has for the gate, and does what the gate and the other workers have for it.
    pub(super) fn exchange(&mut self, now: Instant) {
        let Some(port) = self.gate.port() else { return };
        self.backend.notes.drain(..).for_each(|(worker, note)| port.pass(worker, Passed::Sync(note)));
        port.exchange(now, &self.clock);
        while let Some(note) = self.gate.port().and_then(|port| port.next_note()) {
            self.note(now, note);
        }
    }

    /// Called before the loop waits for at most `timeout`. Returns how long it may wait.
    ///
    /// # Errors
    /// Another thread of the device has failed.
    pub(crate) fn before_wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<Duration>> {
        let Some(port) = self.gate.port() else { return Ok(timeout) };
        if let Some(why) = port.hub().failure().filter(|_| port.is_first()) {
            return Err(io::Error::other(why.clone()));
        }
        let is_polling = timeout == Some(Duration::ZERO);
        self.give_back(!is_polling);
        let Some(port) = self.gate.port() else { return Ok(timeout) };
        // What it has told the others is still to be posted.
        let may_sleep = is_polling || port.is_settled() && port.sleep();
        Ok(if may_sleep { timeout } else { Some(Duration::ZERO) })
    }

    /// Called after the loop has waited.
    pub(crate) fn after_wait(&mut self) {
        if let Some(port) = self.gate.port() {
            port.wake_up();
        }
    }

    fn note(&mut self, now: Instant, note: Note) {
        match note {
            Note::Granted { grant, end } => self.granted(now, &grant, end),
            Note::Finished { token, outcome } => {
                let io = self.backend.ios.id_at(token);
                self.no_longer_queued(io);
                self.left_gate(io, outcome);
            }
            Note::Refused { token } => {
                let io = self.backend.ios.id_at(token);
                self.no_longer_queued(io);
                self.fail(io, libc::ESHUTDOWN);
            }
            Note::Passed(passed) => self.passed(passed),
        }
    }

    /// Handles what another worker has told.
    fn passed(&mut self, passed: Passed) {
        match passed {
            Passed::Room(owner) => {
                if let Some(&vm) = self.vms_by_owner.get(&owner) {
                    self.schedule_resume(vm);
                }
            }
            Passed::Admit(owner, volume) => {
                let found = self.find_by_gate(owner, volume);
                self.volumes_to_admit.extend(found);
            }
            Passed::Unclaimed(owner, volume) => {
                let found = self.find_by_gate(owner, volume);
                self.crossing.released_elsewhere.extend(found);
            }
            Passed::Sync(SyncNote::Ended { op, ok }) => self.backend.flush_ended(op, ok),
            Passed::Sync(SyncNote::Start(op)) => self.backend.push_sync(op),
        }
    }

    /// Starts a submission at the device.
    fn granted(&mut self, now: Instant, grant: &Grant, end: Instant) {
        self.no_longer_queued(self.backend.ios.id_at(grant.part.token));
        if let Some(port) = self.gate.port() {
            port.granted(grant);
        }
        if let Some(delay) = &mut self.delay {
            let occupies_device = self.backend.occupies_device(grant.part.token);
            delay.set_end(grant.slot, if occupies_device { end } else { now });
        }
        self.backend.start_granted(now, grant.slot, grant.kind, grant.part);
    }

    /// Records that a request does not wait at the shared gate any more: a part of it was dispatched, or it has left.
    pub(super) fn no_longer_queued(&mut self, id: IoId) {
        let io = &mut self.backend.ios[id];
        if std::mem::take(&mut io.at_gate) {
            self.vms[self.backend.volumes[io.volume].vm].at_gate -= 1;
            if let Some(port) = self.gate.port() {
                port.left();
            }
        }
    }

    fn find_by_gate(&self, owner: OwnerId, id: VolumeId) -> Option<VolumeKey> {
        let vm = *self.vms_by_owner.get(&owner)?;
        let mut volumes = self.backend.volumes.iter();
        volumes.find_map(|(key, volume)| (volume.id == id && volume.vm == vm).then_some(key))
    }
}
