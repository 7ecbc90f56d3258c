//! Clients of volumes, and the end of volumes and VMs.

use sluice_sched::{Instant, Scope};

use crate::backend::volume::Volume;
use crate::device::core::Core;
#[cfg(test)]
use crate::device::order::{self, Step};
use crate::device::vm::Vm;
use crate::device::work::Ends;
use crate::slab::{VmId, VolumeKey};
use crate::volume::VolumeGeneration;

impl Core {
    /// Returns the volume that a client was offered; `None` if it has been removed, even if another volume has its
    /// name, or is about to be.
    pub(crate) fn find_generation(&self, vm: &str, volume: &str, generation: VolumeGeneration) -> Option<VolumeKey> {
        let vm = *self.base.vms_by_name.get(vm)?;
        let found = self.find_volume(vm, volume)?;
        let known = &self.backend.volumes[found];
        (known.generation == generation && !known.refuses_clients()).then_some(found)
    }

    /// Returns a volume by the names of its VM and itself.
    pub(crate) fn volume_of(&mut self, vm: &str, name: &str) -> Option<&mut Volume> {
        let found = self.find_volume(*self.base.vms_by_name.get(vm)?, name)?;
        self.backend.volumes.get_mut(found)
    }

    pub(crate) fn find_volume(&self, vm: VmId, name: &str) -> Option<VolumeKey> {
        self.base.vms[vm].volumes_by_name.get(name).copied()
    }

    pub(crate) fn vm_of(&mut self, volume: VolumeKey) -> &mut Vm {
        &mut self.base.vms[self.backend.volumes[volume].vm]
    }

    /// Returns the names of the VM and the volume.
    pub(crate) fn names_of(&self, volume: VolumeKey) -> (String, String) {
        let volume = &self.backend.volumes[volume];
        (volume.vm_name.clone(), volume.name.clone())
    }

    /// Adds a client to a volume. Returns `false` if its clients are refused.
    pub(crate) fn client_opened(&mut self, volume: VolumeKey) -> bool {
        let volume = &mut self.backend.volumes[volume];
        let opened = volume.open_client();
        volume.clients += u32::from(opened);
        opened
    }

    /// Records that a client of a volume has disconnected. Its requests at the gate are cancelled; those in flight end
    /// at the device. `in_order`: it has ended its session itself.
    pub(crate) fn client_closed(&mut self, volume: VolumeKey, in_order: bool) {
        self.backend.volumes[volume].close_client(in_order);
        self.work.push(Ends::Cancel(volume));
    }

    /// Removes a disconnected client to which nothing refers any more.
    pub(crate) fn client_removed(&mut self, volume: VolumeKey) {
        self.backend.volumes[volume].clients -= 1;
        self.remove_left_volume(volume);
    }

    /// Cancels queued requests of a volume's disconnected clients. Otherwise they would use up their VM's limit and window
    /// before the next client is served. The gate cancels by volume, so nothing is cancelled while another client uses the
    /// volume.
    pub(crate) fn cancel_abandoned(&mut self, now: Instant, key: VolumeKey) {
        let Some(volume) = self.backend.volumes.get(key) else { return };
        if volume.leaving || volume.open_clients() > 0 {
            return;
        }
        #[cfg(test)]
        order::note(Step::Cancel);
        let scope = Scope::Volume(self.base.vms[volume.vm].owner, volume.id);
        self.cancel(now, scope).into_iter().for_each(|(io, outcome)| self.left_gate(io, outcome));
    }

    /// Counts a protocol violation by a client of `volume`. Returns the number of violations so far.
    pub(crate) fn count_protocol_error(&mut self, volume: VolumeKey) -> u64 {
        let vm = &mut self.base.vms[self.backend.volumes[volume].vm];
        vm.wrong.protocol_errors += 1;
        vm.wrong.protocol_errors
    }

    /// Counts a request of a client of `volume` that is refused.
    pub(crate) fn count_refused(&mut self, volume: VolumeKey, reason: &'static str) {
        let volume = &self.backend.volumes[volume];
        self.base.vms[volume.vm].wrong.refused += 1;
        let times = volume.faults.refuse(reason);
        // A client that does this repeatedly must not fill the log.
        if times.is_power_of_two() {
            tracing::warn!(vm = volume.vm_name, volume = volume.name, reason, times, "Request refused");
        }
    }

    /// Removes a volume that is being removed, when nothing refers to it any more.
    pub(crate) fn remove_left_volume(&mut self, key: VolumeKey) {
        let Some(volume) = self.backend.volumes.get(key) else { return };
        if !volume.leaving || volume.in_flight > 0 || volume.clients > 0 {
            return;
        }
        let volume = self.backend.volumes.remove(key);
        self.base.vms[volume.vm].volumes -= 1;
        self.schedule_resume(volume.vm);
        self.backend.store.stores_mut().of_mut(volume.store).close(volume.store.index, &self.backend.blocking);
        self.remove_left_vm(volume.vm);
    }

    /// Removes a VM that is being removed, when its last volume is gone. Without clients that is immediately.
    pub(crate) fn remove_left_vm(&mut self, vm: VmId) {
        if self.base.vms.get(vm).is_some_and(|state| state.removed && state.volumes == 0) {
            self.base.vms.remove(vm);
        }
    }
}
