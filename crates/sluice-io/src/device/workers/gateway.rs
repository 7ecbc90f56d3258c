//! How the core of a device thread reaches its gate: it owns one, or shares one with other workers.

use std::sync::Arc;

use sluice_sched::gate::{DeviceStats, Finished};
use sluice_sched::{Bytes, ChangeError, Gate, GateSettings, Instant, OwnerId, Policy, Scheduler, Scope, VolumeId};

use crate::backend::volume_common::VolumeCommon;
use crate::clock::Clock;
use crate::device::workers::common::VmCommon;
use crate::device::workers::figures::Figures;
use crate::device::workers::hub::Hub;
use crate::device::workers::port::Port;

/// A gate that is changed at an instant; a shared one reads the clock itself.
type At<'a> = (Instant, &'a Clock);

#[expect(clippy::large_enum_variant, reason = "there is one for each thread, and its own gate is the usual case")]
pub(crate) enum Gateway {
    Own(Gate),
    Shared(Box<Port>),
}

impl Gateway {
    pub(crate) fn settings(&self) -> &GateSettings {
        match self {
            Gateway::Own(gate) => gate.settings(),
            Gateway::Shared(port) => &port.settings,
        }
    }

    /// Queued requests (pieces) of this thread.
    pub(crate) fn queued(&self) -> u64 {
        match self {
            Gateway::Own(gate) => gate.queued(),
            Gateway::Shared(port) => port.queued(),
        }
    }

    /// Requests (pieces) of this thread in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        match self {
            Gateway::Own(gate) => gate.in_flight(),
            Gateway::Shared(port) => port.in_flight(),
        }
    }

    /// Submissions of this thread that have completed.
    pub(crate) fn completed(&self) -> u64 {
        match self {
            Gateway::Own(gate) => gate.device_stats().completed,
            Gateway::Shared(port) => port.completed(),
        }
    }

    /// Whether the loop may look for work of the gate: for completions, or while another worker handles what was posted.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Gateway::Own(gate) => gate.in_flight() > 0,
            Gateway::Shared(port) => port.in_flight() > 0 || port.awaits_gate(),
        }
    }

    pub(crate) fn port(&mut self) -> Option<&mut Port> {
        match self {
            Gateway::Own(_) => None,
            Gateway::Shared(port) => Some(port),
        }
    }

    pub(crate) fn hub(&self) -> Option<&Arc<Hub>> {
        match self {
            Gateway::Own(_) => None,
            Gateway::Shared(port) => Some(port.hub()),
        }
    }

    /// Figures of this thread, if there are others.
    pub(crate) fn figures(&self) -> Option<&Figures> {
        match self {
            Gateway::Own(_) => None,
            Gateway::Shared(port) => Some(&port.hub().seats[usize::from(port.worker())].figures),
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Gateway::Own(_) => true,
            Gateway::Shared(port) => port.is_settled(),
        }
    }

    /// Cancels queued requests. Returns those of this thread, by index.
    pub(crate) fn cancel(&mut self, (now, clock): At<'_>, scope: Scope) -> Vec<Finished> {
        match self {
            Gateway::Own(gate) => {
                let mut finished = Vec::new();
                gate.cancel(now, scope, &mut finished);
                finished
            }
            Gateway::Shared(port) => port.cancel(scope, clock),
        }
    }

    pub(crate) fn add_owner(
        &mut self,
        (now, clock): At<'_>,
        policy: Policy,
    ) -> Result<(OwnerId, Option<Arc<VmCommon>>), ChangeError> {
        match self {
            Gateway::Own(gate) => Ok((gate.add_owner(now, policy)?, None)),
            Gateway::Shared(port) => port.add_owner(clock, policy).map(|(owner, common)| (owner, Some(common))),
        }
    }

    /// `place` numbers the volumes of the device.
    pub(crate) fn add_volume(
        &mut self,
        (now, clock): At<'_>,
        owner: OwnerId,
        policy: Policy,
        place: u32,
    ) -> Result<(VolumeId, Option<Arc<VolumeCommon>>), ChangeError> {
        match self {
            Gateway::Own(gate) => Ok((gate.add_volume(now, owner, policy)?, None)),
            Gateway::Shared(port) => {
                port.add_volume(clock, owner, policy, place).map(|(volume, common)| (volume, Some(common)))
            }
        }
    }

    /// Removes a VM or a volume. Returns the requests of this thread that this cancels; a shared gate tells of them later.
    pub(crate) fn remove(&mut self, (now, clock): At<'_>, scope: Scope) -> (Vec<Finished>, Result<(), ChangeError>) {
        let mut finished = Vec::new();
        let removed = match (self, scope) {
            (Gateway::Own(gate), Scope::Owner(owner)) => gate.remove_owner(now, owner, &mut finished),
            (Gateway::Own(gate), Scope::Volume(owner, volume)) => gate.remove_volume(now, owner, volume, &mut finished),
            (Gateway::Shared(port), scope) => port.remove(clock, scope),
        };
        (finished, removed)
    }

    pub(crate) fn set_policies(
        &mut self,
        (now, clock): At<'_>,
        owner: OwnerId,
        policy: Policy,
        volumes: &[(VolumeId, Policy)],
    ) -> Result<(), ChangeError> {
        match self {
            Gateway::Own(gate) => gate.set_policies(now, owner, policy, volumes),
            Gateway::Shared(port) => port.set_policies(clock, owner, policy, volumes),
        }
    }

    pub(crate) fn set_device(
        &mut self,
        (now, clock): At<'_>,
        depth: u32,
        request_bytes: Bytes,
    ) -> Result<(), ChangeError> {
        match self {
            Gateway::Own(gate) => gate.set_device(now, depth, request_bytes),
            Gateway::Shared(port) => port.set_device(clock, depth, request_bytes),
        }
    }

    pub(crate) fn replace_scheduler(
        &mut self,
        (now, clock): At<'_>,
        scheduler: Box<dyn Scheduler>,
        merging: bool,
    ) -> Result<(), ChangeError> {
        match self {
            Gateway::Own(gate) => gate.replace_scheduler(now, scheduler, merging),
            Gateway::Shared(port) => port.replace_scheduler(clock, scheduler),
        }
    }

    /// Lets a function look at the gate, with the requests of all threads.
    pub(crate) fn look<T>(&mut self, clock: &Clock, look: impl FnOnce(&mut Gate) -> T) -> T {
        match self {
            Gateway::Own(gate) => look(gate),
            Gateway::Shared(port) => port.look(clock, look),
        }
    }
}

/// What a snapshot states of the gate itself.
pub(crate) struct GateState {
    pub(crate) stats: DeviceStats,
    pub(crate) queued: u64,
    pub(crate) in_flight: u64,
}

impl GateState {
    pub(crate) fn of(gate: &Gate) -> GateState {
        GateState { stats: gate.device_stats().clone(), queued: gate.queued(), in_flight: gate.in_flight() }
    }
}
