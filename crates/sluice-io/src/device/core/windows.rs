//! Windows of VMs: which clients wait for room, and when they are served.

use std::time::Duration;

use crate::backend::parts::transfer_max;
use crate::backend::request::{Occupied, Opening};
use crate::budget::Budget;
use crate::cpu;
use crate::device::core::{Core, DataIn};
use crate::device::work::Starts;
use crate::slab::{ClientRef, VmId, VolumeKey};
use sluice_sched::Instant;

impl Core {
    /// Counts a request in the window of its VM.
    pub(super) fn occupy(&mut self, opening: &Opening) -> VmId {
        let volume = &mut self.backend.volumes[opening.volume];
        let vm = &mut self.base.vms[volume.vm];
        let Occupied { window, memory } = opening.occupies;
        volume.outstanding.add(window);
        vm.outstanding.add(window);
        vm.memory.add(memory);
        volume.vm
    }

    /// Returns how many bytes of its VM's window a transfer of `length` bytes occupies for a guest: those of one part of it.
    pub(crate) fn held_by(&self, volume: VolumeKey, length: u32) -> u64 {
        let window = self.base.vms[self.backend.volumes[volume].vm].window;
        transfer_max(self.base.gate.settings(), window).min(length.into())
    }

    /// Frees the room that a request of a volume occupied.
    pub(super) fn vacate(&mut self, key: VolumeKey, occupied: Occupied) {
        let volume = &mut self.backend.volumes[key];
        volume.outstanding.remove(occupied.window);
        let id = volume.vm;
        let vm = &mut self.base.vms[id];
        vm.outstanding.remove(occupied.window);
        vm.memory.remove(occupied.memory);
        if !vm.waiting.is_empty() {
            self.schedule_resume(id);
        }
    }

    /// Whether the window has room for one more request of a volume, whose data are in `data`.
    pub(crate) fn has_room(&self, volume: VolumeKey, data: DataIn) -> bool {
        let volume = &self.backend.volumes[volume];
        let vm = &self.base.vms[volume.vm];
        vm.has_room(volume.outstanding) && !vm.cpu.is_held() && (data == DataIn::Guest || vm.memory.has_room())
    }

    /// Counts units of work for an event of a client of a volume. Returns whether its VM's limit allows more.
    pub(crate) fn count_event(&mut self, volume: VolumeKey, units: u64) -> bool {
        let id = self.backend.volumes[volume].vm;
        let vm = &mut self.base.vms[id];
        self.base.cpu.event(id, &mut vm.cpu, units);
        !vm.cpu.is_held()
    }

    /// Charges a VM CPU time of another thread.
    pub(crate) fn charge(&mut self, now: Instant, vm: &str, used: Duration) {
        if let Some(&id) = self.base.vms_by_name.get(vm) {
            self.base.cpu.charge(now, id, &mut self.base.vms[id].cpu, used);
        }
    }

    /// Charges a new connection to the VM of its volume: `handshake` is the CPU time of the control plane.
    pub(crate) fn charge_connection(&mut self, now: Instant, volume: VolumeKey, handshake: Duration) {
        let id = self.backend.volumes[volume].vm;
        self.base.cpu.charge(now, id, &mut self.base.vms[id].cpu, handshake);
        self.count_event(volume, cpu::CONNECTION);
    }

    /// Schedules the clients of VMs that their limits of CPU time held back.
    pub(crate) fn release_held(&mut self, now: Instant) {
        while let Some(id) = self.base.cpu.release(now, &mut self.base.vms) {
            self.schedule_resume(id);
        }
    }

    /// Queues a client of a volume until there is room, or until other clients have been served.
    pub(crate) fn park(&mut self, volume: VolumeKey, client: ClientRef, data: DataIn) {
        let vm = self.backend.volumes[volume].vm;
        self.base.vms[vm].waiting.push_back(client);
        if data == DataIn::Buffers && !self.base.vms[vm].memory.has_room() {
            self.await_memory(vm);
        }
        if self.has_room(volume, data) {
            self.schedule_resume(vm);
        }
    }

    /// Lets the thread be woken when another VM, of any device, frees memory.
    fn await_memory(&mut self, vm: VmId) {
        self.base.vms[vm].memory.wake_when_freed(&self.waker);
        if !self.vms_awaiting_memory.contains(&vm) {
            self.vms_awaiting_memory.push(vm);
        }
    }

    /// Schedules the clients that wait for memory, because another VM may have freed some.
    pub(crate) fn memory_freed(&mut self) {
        for vm in std::mem::take(&mut self.vms_awaiting_memory) {
            if self.base.vms.get(vm).is_some() {
                self.schedule_resume(vm);
            }
        }
    }

    /// Removes a client of a volume from the wait queue.
    pub(crate) fn unpark(&mut self, volume: VolumeKey, client: ClientRef) {
        let vm = self.backend.volumes[volume].vm;
        self.base.vms[vm].waiting.retain(|waiting| *waiting != client);
    }

    /// Schedules the waiting clients of a VM, because there may be room.
    pub(crate) fn schedule_resume(&mut self, vm: VmId) {
        if !self.base.vms[vm].waiting.is_empty() {
            self.work.push_start(Starts::Resume(vm));
        }
    }

    /// Returns the number of waiting clients of a VM, which may have been removed.
    pub(crate) fn waiting(&self, vm: VmId) -> usize {
        self.base.vms.get(vm).map_or(0, |state| state.waiting.len())
    }

    /// Returns the next waiting client of a VM, and what may be taken from it before the next client.
    pub(crate) fn next_waiting(&mut self, vm: VmId) -> Option<(ClientRef, Budget)> {
        let state = self.base.vms.get_mut(vm)?;
        let client = state.waiting.pop_front()?;
        Some((client, if state.waiting.is_empty() { Budget::UNLIMITED } else { Budget::TURN }))
    }
}
