//! Changes of VMs and volumes on a device with several workers.
//!
//! The gate is changed once, and each worker changes its own tables. The first worker makes a change at the gate and in its
//! tables, and records the gate's answers on a tape. The others get the change with the tape, and read the answers from it
//! instead of asking the gate. A volume leaves the gate when the last worker has stopped taking requests for it, so each
//! worker knows already that it leaves when it is told that its requests were cancelled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_sched::gate::Finished;
use sluice_sched::{Bytes, ChangeError, Gate, Instant, OwnerId, Policy, Scheduler, Scope, VolumeId};

use crate::backend::volume_common::VolumeCommon;
use crate::clock::Clock;
use crate::device::workers::common::VmCommon;
use crate::device::workers::hub::Combined;
use crate::device::workers::port::Port;
use crate::device::workers::token;

/// Answers of the gate to one change, in order.
pub(crate) type Tape = VecDeque<Answer>;

/// An answer of the gate.
#[derive(Clone)]
pub(crate) enum Answer {
    Vm(OwnerId, Arc<VmCommon>),
    Volume(VolumeId, Arc<VolumeCommon>),
    /// Number of workers that still take requests for a VM or a volume that is removed.
    Leaving(Arc<AtomicU32>),
}

impl Port {
    /// Returns the next answer: that of `ask` at the first worker, otherwise the recorded one.
    fn answer(&mut self, ask: impl FnOnce(&mut Self) -> Result<Answer, ChangeError>) -> Result<Answer, ChangeError> {
        if !self.is_first() {
            return Ok(self.tape.pop_front().expect("the first worker has recorded an answer for each question"));
        }
        let answer = ask(self)?;
        self.tape.push_back(answer.clone());
        Ok(answer)
    }

    fn at_gate<T>(&mut self, clock: &Clock, use_it: impl FnOnce(&mut Combined, Instant) -> T) -> T {
        self.prepare_for_gate();
        self.hub.with_gate(clock, use_it)
    }

    pub(crate) fn look<T>(&mut self, clock: &Clock, look: impl FnOnce(&mut Gate) -> T) -> T {
        self.at_gate(clock, |combined, _| look(&mut combined.gate))
    }

    pub(crate) fn add_owner(&mut self, clock: &Clock, policy: Policy) -> Result<(OwnerId, Arc<VmCommon>), ChangeError> {
        let answer = self.answer(|port| {
            let owner = port.at_gate(clock, |combined, now| combined.add_owner(now, policy))?;
            Ok(Answer::Vm(owner, Arc::default()))
        });
        match answer? {
            Answer::Vm(owner, common) => Ok((owner, common)),
            _ => unreachable!("answers are in the order of the questions"),
        }
    }

    /// `place` numbers the volumes of the device.
    pub(crate) fn add_volume(
        &mut self,
        clock: &Clock,
        owner: OwnerId,
        policy: Policy,
        place: u32,
    ) -> Result<(VolumeId, Arc<VolumeCommon>), ChangeError> {
        let answer = self.answer(|port| {
            let volume = port.at_gate(clock, |combined, now| combined.add_volume(now, owner, policy))?;
            Ok(Answer::Volume(volume, Arc::new(VolumeCommon::at(place))))
        });
        match answer? {
            Answer::Volume(volume, common) => Ok((volume, common)),
            _ => unreachable!("answers are in the order of the questions"),
        }
    }

    /// Removes a VM or a volume from the gate, if this is the last worker that has stopped taking its requests.
    pub(crate) fn remove(&mut self, clock: &Clock, scope: Scope) -> Result<(), ChangeError> {
        let workers = self.hub.seats.len() as u32;
        let answer = self.answer(|_| Ok(Answer::Leaving(Arc::new(AtomicU32::new(workers)))));
        match answer? {
            Answer::Leaving(left) if left.fetch_sub(1, Ordering::AcqRel) > 1 => Ok(()),
            Answer::Leaving(_) => self.at_gate(clock, |combined, now| combined.remove(now, scope)),
            _ => unreachable!("answers are in the order of the questions"),
        }
    }

    pub(crate) fn set_policies(
        &mut self,
        clock: &Clock,
        owner: OwnerId,
        policy: Policy,
        volumes: &[(VolumeId, Policy)],
    ) -> Result<(), ChangeError> {
        match self.is_first() {
            true => self.at_gate(clock, |combined, now| combined.set_policies(now, owner, policy, volumes)),
            false => Ok(()),
        }
    }

    pub(crate) fn set_device(&mut self, clock: &Clock, depth: u32, request_bytes: Bytes) -> Result<(), ChangeError> {
        if self.is_first() {
            self.at_gate(clock, |combined, now| combined.set_device(now, depth, request_bytes))?;
        }
        (self.settings.depth, self.settings.request_bytes) = (depth, request_bytes);
        Ok(())
    }

    pub(crate) fn replace_scheduler(
        &mut self,
        clock: &Clock,
        scheduler: Box<dyn Scheduler>,
    ) -> Result<(), ChangeError> {
        match self.is_first() {
            true => self.at_gate(clock, |combined, now| combined.replace_scheduler(now, scheduler)),
            false => Ok(()),
        }
    }
}

impl Combined {
    fn add_owner(&mut self, now: Instant, policy: Policy) -> Result<OwnerId, ChangeError> {
        #[cfg(test)]
        self.log.called(now, move |gate, now| drop(gate.add_owner(now, policy)));
        self.gate.add_owner(now, policy)
    }

    fn add_volume(&mut self, now: Instant, owner: OwnerId, policy: Policy) -> Result<VolumeId, ChangeError> {
        #[cfg(test)]
        self.log.called(now, move |gate, now| drop(gate.add_volume(now, owner, policy)));
        self.gate.add_volume(now, owner, policy)
    }

    fn remove(&mut self, now: Instant, scope: Scope) -> Result<(), ChangeError> {
        #[cfg(test)]
        self.log.called(now, move |gate, now| {
            let _ = match scope {
                Scope::Owner(owner) => gate.remove_owner(now, owner, &mut Vec::new()),
                Scope::Volume(owner, volume) => gate.remove_volume(now, owner, volume, &mut Vec::new()),
            };
        });
        let removed = match scope {
            Scope::Owner(owner) => self.gate.remove_owner(now, owner, &mut self.finished),
            Scope::Volume(owner, volume) => self.gate.remove_volume(now, owner, volume, &mut self.finished),
        };
        self.tell_finished();
        removed
    }

    fn set_policies(
        &mut self,
        now: Instant,
        owner: OwnerId,
        policy: Policy,
        volumes: &[(VolumeId, Policy)],
    ) -> Result<(), ChangeError> {
        #[cfg(test)]
        {
            let volumes = volumes.to_vec();
            self.log.called(now, move |gate, now| drop(gate.set_policies(now, owner, policy, &volumes)));
        }
        self.gate.set_policies(now, owner, policy, volumes)
    }

    fn set_device(&mut self, now: Instant, depth: u32, request_bytes: Bytes) -> Result<(), ChangeError> {
        #[cfg(test)]
        self.log.called(now, move |gate, now| drop(gate.set_device(now, depth, request_bytes)));
        self.gate.set_device(now, depth, request_bytes)
    }

    /// The new one does not merge: a merged submission could hold requests of several workers.
    fn replace_scheduler(&mut self, now: Instant, scheduler: Box<dyn Scheduler>) -> Result<(), ChangeError> {
        self.gate.replace_scheduler(now, scheduler, false)
    }

    /// Cancels queued requests. Returns those of `worker`, by index, and tells the other workers of theirs.
    pub(super) fn cancel(&mut self, now: Instant, scope: Scope, worker: u8) -> Vec<Finished> {
        #[cfg(test)]
        self.log.called(now, move |gate, now| gate.cancel(now, scope, &mut Vec::new()));
        self.gate.cancel(now, scope, &mut self.finished);
        let split = |over: &Finished| token::split(over.token);
        let own = self.finished.iter().filter(|over| split(over).0 == worker);
        let own = own.map(|over| Finished { token: split(over).1, ..*over }).collect();
        self.finished.retain(|over| split(over).0 != worker);
        self.tell_finished();
        own
    }
}
