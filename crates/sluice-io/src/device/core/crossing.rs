//! Requests of guests with smaller blocks than the disk, before and after the gate; see [`crate::backend::bridge`].

use sluice_sched::{Instant, Scope};

use crate::backend::bridge::{Crossing, Parked};
use crate::device::core::Core;
use crate::device::workers::gateway::Gateway;
use crate::device::workers::hub::Passed;
use crate::slab::{IoId, VolumeKey};

/// Requests that wait for blocks of the disk.
#[derive(Default)]
pub(crate) struct Crossings {
    /// In the order in which they came.
    parked: Vec<(VolumeKey, Parked)>,
    /// Volumes of which blocks were released.
    pub(crate) unclaimed: Vec<VolumeKey>,
}

impl Core {
    /// Claims the blocks of a request that has not been at the gate. Returns `false` if it waits for them.
    pub(super) fn cross(&mut self, id: IoId) -> bool {
        let io = &mut self.backend.ios[id];
        let (key, volume) = (io.volume, &self.backend.volumes[io.volume]);
        let parked = &self.crossing.parked;
        let before = || parked.iter().filter(|(of, _)| *of == key).map(|(_, parked)| parked);
        let Crossing::Blocked(blocks) = volume.cross(io, before()) else { return true };
        if volume.leaving {
            return true;
        }
        let Some(waiting) = volume.park(id, blocks) else { return true };
        // It counts as waiting from here. What was released before that is not reported.
        if matches!(volume.cross(io, before()), Crossing::Free) {
            return true;
        }
        self.crossing.parked.push((key, waiting));
        false
    }

    /// Ends the steps of a request, and releases its blocks.
    pub(super) fn end_crossing(&mut self, id: IoId) {
        let io = &mut self.backend.ios[id];
        let (unused, had_steps) = io.end_steps();
        if had_steps {
            self.crossing.unclaimed.push(io.volume);
        }
        if let Some(buffer) = unused {
            self.backend.pool.give(buffer);
        }
    }

    /// Lets requests go to the gate whose blocks were released.
    pub(crate) fn cross_released(&mut self, now: Instant) {
        let mut released = std::mem::take(&mut self.crossing.unclaimed);
        released.sort_unstable();
        released.dedup();
        for key in released {
            self.parked_of(|of| of == key).into_iter().for_each(|io| self.arrive(now, io));
            let Some(volume) = self.backend.volumes.get(key) else { continue };
            if volume.claims().is_some_and(|claims| claims.are_awaited())
                && let Gateway::Shared(port) = &mut self.gate
            {
                port.pass_to_others(Passed::Unclaimed(self.vms[volume.vm].owner, volume.id));
            }
        }
    }

    /// Takes the waiting requests of a volume or a VM.
    pub(crate) fn take_parked(&mut self, scope: Scope) -> Vec<IoId> {
        if self.crossing.parked.is_empty() {
            return Vec::new();
        }
        let volumes = &self.backend.volumes;
        let in_scope = |key: &VolumeKey| match (scope, volumes.get(*key)) {
            (Scope::Owner(owner), Some(volume)) => self.vms[volume.vm].owner == owner,
            (Scope::Volume(owner, id), Some(volume)) => volume.id == id && self.vms[volume.vm].owner == owner,
            (_, None) => false,
        };
        let keys: Vec<VolumeKey> = self.crossing.parked.iter().map(|(key, _)| *key).filter(in_scope).collect();
        self.parked_of(|key| keys.contains(&key))
    }

    fn parked_of(&mut self, is_of: impl Fn(VolumeKey) -> bool) -> Vec<IoId> {
        self.crossing.parked.extract_if(.., |(key, _)| is_of(*key)).map(|(_, parked)| parked.io).collect()
    }
}
