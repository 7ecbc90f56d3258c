//! Changes while others run: VMs and volumes come and go, policies change, clients connect.

use sluice_sched::{ChangeError, Instant, OwnerId};

use crate::backend::disk::{Volume, VolumeStore};
use crate::device::blocking::BlockingJob;
use crate::device::event_loop::{Ending, Loop, Outstanding, Vm};
use crate::device::slab::{VmId, VolumeKey};
use crate::device::spec::{
    Arrived, Edit, EditError, Health, SchedulerSpec, Snapshot, Store, VmSnapshot, VolumeGeneration, VolumeSpec,
};
use crate::frontend::nbd::Connection;
use crate::nbd::export::Export;

impl Loop {
    /// Applies changes in order; stops at the first that cannot be made.
    pub(crate) fn apply(&mut self, now: Instant, edits: Vec<Edit>) -> Result<(), EditError> {
        edits.into_iter().try_for_each(|edit| self.apply_one(now, edit))
    }

    fn apply_one(&mut self, now: Instant, edit: Edit) -> Result<(), EditError> {
        match edit {
            Edit::AddVm { vm, policy, window } => {
                let owner = self.gate.add_owner(now, policy).map_err(|cause| refused(&vm, cause))?;
                let name = vm.clone();
                let index = self.vms.insert(Vm {
                    name,
                    owner,
                    policy,
                    window,
                    gone: false,
                    volumes: 0,
                    outstanding: Outstanding::default(),
                    waiting: Default::default(),
                    protocol_errors: 0,
                    refused: 0,
                });
                self.vms_by_name.insert(vm, index);
                Ok(())
            }
            Edit::SetPolicies { vm, policy, window, volumes } => {
                let (index, owner) = self.find_vm(&vm)?;
                let volumes = volumes
                    .into_iter()
                    .map(|(name, policy)| Ok((self.backend.volumes[self.find_volume(index, &name)?].id, policy)))
                    .collect::<Result<Vec<_>, EditError>>()?;
                let set = self.gate.set_policies(now, owner, policy, &volumes);
                set.map_err(|cause| refused(&vm, cause))?;
                (self.vms[index].policy, self.vms[index].window) = (policy, window);
                for (id, policy) in volumes {
                    let mut known = self.backend.volumes.values_mut();
                    if let Some(volume) = known.find(|volume| volume.vm == index && volume.id == id) {
                        volume.policy = policy;
                    }
                }
                self.schedule_resume(index);
                Ok(())
            }
            Edit::RemoveVm { vm } => self.remove_vm(now, &vm),
            Edit::AddVolume { vm, volume } => self.add_volume(now, &vm, *volume),
            Edit::ResizeVolume { vm, volume, store, export } => {
                let (vm, _) = self.find_vm(&vm)?;
                let volume = self.find_volume(vm, &volume)?;
                self.resize(volume, store, export);
                Ok(())
            }
            Edit::RemoveVolume { vm, volume } => {
                let (vm, _) = self.find_vm(&vm)?;
                let volume = self.find_volume(vm, &volume)?;
                self.leave(now, volume);
                Ok(())
            }
            Edit::AcceptLoss { vm, volume } => self.accept_loss(&vm, &volume),
            Edit::SetDepth(depth) => {
                let set = self.gate.set_depth(now, depth);
                set.map_err(|cause| EditError::Device { cause })
            }
            Edit::SetScheduler { scheduler, merging } => self.set_scheduler(now, scheduler, merging),
        }
    }

    fn set_scheduler(&mut self, now: Instant, spec: SchedulerSpec, merging: bool) -> Result<(), EditError> {
        let wrong = |cause| EditError::Scheduler { name: spec.descriptor.name, cause };
        let scheduler = spec.build().map_err(wrong)?;
        let replaced = self.gate.replace_scheduler(now, scheduler, merging);
        replaced.map_err(|cause| EditError::Device { cause })?;
        self.scheduler = Some((spec, merging));
        Ok(())
    }

    pub(crate) fn find_vm(&self, name: &str) -> Result<(VmId, OwnerId), EditError> {
        let found = self.vms_by_name.get(name).map(|&index| (index, self.vms[index].owner));
        found.ok_or_else(|| EditError::Unknown(format!("VM {name}")))
    }

    pub(crate) fn find_volume(&self, vm: VmId, name: &str) -> Result<VolumeKey, EditError> {
        let mut volumes = self.backend.volumes.iter();
        let found = volumes.find(|(_, volume)| volume.vm == vm && volume.name == name && !volume.leaving);
        found.map(|(index, _)| index).ok_or_else(|| EditError::Unknown(format!("volume {name}")))
    }

    /// Returns the volume that a client was offered; `None` if it was removed since, even if another one has its name now.
    pub(crate) fn find_generation(&self, vm: &str, volume: &str, generation: VolumeGeneration) -> Option<VolumeKey> {
        let (vm, _) = self.find_vm(vm).ok()?;
        let found = self.find_volume(vm, volume).ok()?;
        (self.backend.volumes[found].generation == generation).then_some(found)
    }

    fn add_volume(&mut self, now: Instant, vm: &str, spec: VolumeSpec) -> Result<(), EditError> {
        let (index, owner) = self.find_vm(vm)?;
        let id = self.gate.add_volume(now, owner, spec.policy).map_err(|cause| refused(vm, cause))?;
        let store = VolumeStore::open(spec.store, &mut self.backend.files);
        self.backend.volumes.insert(Volume {
            name: spec.name,
            generation: spec.generation,
            vm: index,
            vm_name: vm.to_owned(),
            id,
            policy: spec.policy,
            export: spec.export,
            store,
            connections: Vec::new(),
            sessions: Vec::new(),
            outstanding: Outstanding::default(),
            in_flight: 0,
            abandoned_in_flight: 0,
            leaving: false,
            mapped: now,
        });
        self.vms[index].volumes += 1;
        Ok(())
    }

    fn resize(&mut self, index: VolumeKey, store: Store, export: Export) {
        let volume = &mut self.backend.volumes[index];
        let new = VolumeStore::open(store, &mut self.backend.files);
        if let VolumeStore::File { source, file, .. } = std::mem::replace(&mut volume.store, new) {
            self.backend.files.close(file);
            self.backend.outlive(index, source);
        }
        self.backend.volumes[index].export = export;
    }

    fn remove_vm(&mut self, now: Instant, name: &str) -> Result<(), EditError> {
        let (index, owner) = self.find_vm(name)?;
        self.vms[index].gone = true;
        self.vms_by_name.remove(name);
        for volume in self.volumes_of(index) {
            if !self.backend.volumes[volume].leaving {
                self.leave(now, volume);
            }
        }
        let mut finished = Vec::new();
        let removed = self.gate.remove_owner(now, owner, &mut finished);
        finished.into_iter().for_each(|over| self.on_gate_completion(now, over));
        self.remove_left_vm(index);
        removed.map_err(|cause| refused(name, cause))
    }

    fn volumes_of(&self, vm: VmId) -> Vec<VolumeKey> {
        self.backend.volumes.iter().filter(|(_, volume)| volume.vm == vm).map(|(index, _)| index).collect()
    }

    /// A volume goes: what waits is answered over NBD, and left in its ring over vhost-user, where a VMM that finds the
    /// volume again, changed, submits it again. Its clients are shown out.
    fn leave(&mut self, now: Instant, index: VolumeKey) {
        let volume = &mut self.backend.volumes[index];
        volume.leaving = true;
        let (id, owner) = (volume.id, self.vms[volume.vm].owner);
        let (clients, sessions) = (volume.connections.clone(), volume.sessions.clone());
        for session in sessions {
            self.close_session(session);
        }
        let mut finished = Vec::new();
        if let Err(error) = self.gate.remove_volume(now, owner, id, &mut finished) {
            let vm = &self.backend.volumes[index].vm_name;
            tracing::error!(vm, %error, "Gate has no entry for a served volume");
        }
        finished.into_iter().for_each(|over| self.on_gate_completion(now, over));
        for client in clients {
            self.close(client);
        }
        self.remove_left_volume(index);
    }

    /// Forgets a volume that has left when nothing refers to it any more.
    pub(crate) fn remove_left_volume(&mut self, index: VolumeKey) {
        let Some(volume) = self.backend.volumes.get(index) else { return };
        let unused = volume.connections.is_empty() && volume.sessions.is_empty();
        if !volume.leaving || volume.in_flight > 0 || !unused {
            return;
        }
        let volume = self.backend.volumes.remove(index);
        self.vms[volume.vm].volumes -= 1;
        self.schedule_resume(volume.vm);
        if let VolumeStore::File { file, source, .. } = volume.store {
            self.backend.files.close(file);
            if source.is_buffered() {
                let _ = self.backend.blocking.send(BlockingJob::Close(source));
            }
        }
        self.remove_left_vm(volume.vm);
    }

    /// Forgets a VM that has been removed, with its last volume: at once, if no client has it.
    fn remove_left_vm(&mut self, index: VmId) {
        if self.vms.get(index).is_some_and(|vm| vm.gone) && self.volumes_of(index).is_empty() {
            self.vms.remove(index);
        }
    }

    /// A client enters. It is not read before what a dead client of this volume left at the device is over, so that no
    /// old write lands on top of a new one.
    pub(crate) fn connect(&mut self, arrived: Arrived) {
        if self.ending != Ending::No {
            return;
        }
        let found = self.find_generation(&arrived.vm, &arrived.volume, arrived.generation);
        let found = found.filter(|volume| self.backend.volumes[*volume].export.keeps(&arrived.export));
        let Some(volume) = found else {
            let Arrived { vm, volume, .. } = arrived;
            tracing::info!(vm, volume, "Client disconnected: its volume was removed or replaced during the handshake");
            return;
        };
        let vm = arrived.vm.clone();
        let Some(mut connection) = Connection::new(arrived, volume) else {
            tracing::warn!(vm, "Client refused: too little memory is left");
            return;
        };
        connection.parked = self.backend.volumes[volume].abandoned_in_flight > 0;
        let index = self.connections.insert(connection);
        self.backend.volumes[volume].connections.push(index);
        self.receive(index);
    }

    /// Clients that waited for the end of what a dead one left are read now.
    pub(crate) fn admit_parked(&mut self, volume: VolumeKey) {
        for index in self.backend.volumes[volume].connections.clone() {
            if self.connections[index].parked {
                self.connections[index].parked = false;
                self.receive(index);
            }
        }
        for session in self.backend.volumes[volume].sessions.clone() {
            self.admit_queues(session);
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let vms = self.vms.iter().filter(|(_, vm)| !vm.gone).filter_map(|(index, vm)| {
            Some(VmSnapshot {
                vm: vm.name.clone(),
                policy: vm.policy,
                account: self.gate.account(vm.owner)?.clone(),
                protocol_errors: vm.protocol_errors,
                refused: vm.refused,
                outstanding: vm.outstanding.requests,
                lost: self.backend.lost_volumes(index),
            })
        });
        Snapshot {
            device: self.device.clone(),
            health: Health::Serving,
            queued: self.gate.queued(),
            in_flight: self.gate.in_flight(),
            connections: (self.connections.len() + self.sessions.len()) as u64,
            iterations: self.iterations,
            restarts: self.restarts,
            stale_messages: self.stale_messages,
            vms: vms.collect(),
        }
    }

    /// What must be applied to an empty loop so that it serves the same.
    pub(crate) fn describe(&self) -> Vec<Edit> {
        #[cfg(test)]
        assert!(!self.broken, "asked to panic by a test");
        let mut edits = vec![Edit::SetDepth(self.gate.settings().depth)];
        if let Some((scheduler, merging)) = self.scheduler.clone() {
            edits.push(Edit::SetScheduler { scheduler, merging });
        }
        for (index, vm) in self.vms.iter().filter(|(_, vm)| !vm.gone) {
            edits.push(Edit::AddVm { vm: vm.name.clone(), policy: vm.policy, window: vm.window });
            let volumes = self.backend.volumes.iter();
            for (_, volume) in volumes.filter(|(_, volume)| volume.vm == index && !volume.leaving) {
                let volume = Box::new(volume.describe());
                edits.push(Edit::AddVolume { vm: vm.name.clone(), volume });
            }
        }
        edits
    }
}

fn refused(vm: &str, cause: ChangeError) -> EditError {
    EditError::Gate { vm: vm.to_owned(), cause }
}
