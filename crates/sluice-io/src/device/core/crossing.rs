//! Requests of guests with smaller blocks than the disk, before and after the gate; see [`crate::backend::bridge`].

use sluice_sched::{Instant, Scope};

use crate::backend::bridge::{Crossing, Parked};
use crate::backend::parts::transfer_max;
use crate::device::core::Core;
#[cfg(test)]
use crate::device::order::{self, Step};
use crate::device::work::Ends;
use crate::slab::{IoId, VolumeKey};
use crate::store::Store as _;

impl Core {
    /// Claims the blocks of a request that has not been at the gate. Returns `false` if it waits for them.
    pub(super) fn cross(&mut self, id: IoId) -> bool {
        let io = &mut self.backend.ios[id];
        let (key, volume) = (io.volume, &self.backend.volumes[io.volume]);
        let most = transfer_max(self.base.gate.settings(), self.base.vms[volume.vm].window);
        let before = self.parked.get(&key).map_or(&[][..], Vec::as_slice);
        let store = self.backend.store.info(volume.store);
        let Crossing::Blocked(blocks) = volume.cross(io, store, before, most) else { return true };
        if volume.leaving {
            return true;
        }
        self.parked.entry(key).or_default().push(Parked { io: id, blocks });
        false
    }

    /// Ends the steps of a request, and releases its blocks.
    pub(super) fn end_crossing(&mut self, id: IoId) {
        let io = &mut self.backend.ios[id];
        let (unused, had_claim) = io.end_steps();
        if had_claim {
            self.work.push(Ends::Cross(io.volume));
        }
        if let Some(buffer) = unused {
            self.backend.pool.give(buffer);
        }
    }

    /// Lets requests of a volume go to the gate whose blocks were released.
    pub(crate) fn cross_released(&mut self, now: Instant, key: VolumeKey) {
        let Some(parked) = self.parked.remove(&key) else { return };
        #[cfg(test)]
        order::note(Step::Cross);
        parked.into_iter().for_each(|parked| self.arrive(now, parked.io));
    }

    /// Takes the waiting requests of a volume or a VM.
    pub(super) fn take_parked(&mut self, scope: Scope) -> Vec<IoId> {
        if self.parked.is_empty() {
            return Vec::new();
        }
        let volumes = &self.backend.volumes;
        let in_scope = |key: &VolumeKey| match (scope, volumes.get(*key)) {
            (Scope::Owner(owner), Some(volume)) => self.base.vms[volume.vm].owner == owner,
            (Scope::Volume(owner, id), Some(volume)) => volume.id == id && self.base.vms[volume.vm].owner == owner,
            (_, None) => false,
        };
        let keys: Vec<VolumeKey> = self.parked.keys().copied().filter(in_scope).collect();
        let parked = keys.into_iter().filter_map(|key| self.parked.remove(&key));
        parked.flatten().map(|parked| parked.io).collect()
    }
}
