//! Changes at run time: adding and removing VMs and volumes, changing policies.

use sluice_sched::{ChangeError, GateSettings, Instant, OwnerId, Policy, Scope};

use crate::backend::disk::Backend;
use crate::backend::volume::{Names, Volume};
use crate::device::core::Core;
use crate::device::spec::Edit;
use crate::device::vm::Vm;
use crate::frontend::Frontends;
use crate::reactor::base::{Base, refused};
use crate::reactor::spec::{EditError, VmSnapshot, VolumeSnapshot, Window};
use crate::reactor::statistics::Statistics;
use crate::slab::{VmId, VolumeKey};
use crate::store::{Label, StoreSpec};
use crate::volume::{VolumeInfo, VolumeSpec};

/// Applies a change.
pub(crate) fn apply(core: &mut Core, frontends: &mut Frontends, now: Instant, edit: Edit) -> Result<(), EditError> {
    Editor { core, frontends, now }.apply(edit)
}

/// Returns the changes that give an empty device thread the same VMs, volumes and settings.
pub(crate) fn describe(core: &Core) -> Vec<Edit> {
    let GateSettings { depth, request_bytes, .. } = *core.base.gate.settings();
    let aim = core.backend.store.aim();
    let mut edits = vec![Edit::SetDevice { depth, request_bytes, aim }, Edit::SetBusyPoll(core.busy_poll)];
    if let Some((scheduler, merging)) = core.base.scheduler.clone() {
        edits.push(Edit::SetScheduler { scheduler, merging });
    }
    for (id, vm) in core.base.vms.iter().filter(|(_, vm)| !vm.removed) {
        edits.push(Edit::AddVm { vm: vm.name.clone(), policy: vm.policy, window: vm.window });
        edits.extend(vm.cpu.time().limit.map(|limit| Edit::SetCpu { vm: vm.name.clone(), limit: Some(limit) }));
        let volumes = core.backend.volumes.iter();
        for (_, volume) in volumes.filter(|(_, volume)| volume.vm == id && !volume.leaving) {
            let store = core.backend.store.stores().of(volume.store).describe(volume.store.index);
            let volume = Box::new(volume.describe(store));
            edits.push(Edit::AddVolume { vm: vm.name.clone(), volume });
        }
    }
    edits
}

/// Returns the state of each VM. Requests wait for it, so the work for a VM does not depend on the number of others, and the
/// statistics of an idle VM are not copied again.
pub(crate) fn vm_snapshots(core: &mut Core) -> Vec<VmSnapshot> {
    let Core { base: Base { gate, vms, .. }, backend, .. } = core;
    let mut statistics = Statistics::new(gate);
    let mut snapshots = Vec::with_capacity(vms.len());
    for vm in vms.values_mut().filter(|vm| !vm.removed) {
        let Some(account) = statistics.of_vm(vm.owner, &mut vm.copied_stats) else { continue };
        let volumes = vm.volumes_by_name.values();
        snapshots.push(VmSnapshot {
            vm: vm.name.clone(),
            policy: vm.policy,
            account,
            protocol_errors: vm.wrong.protocol_errors,
            refused: vm.wrong.refused,
            cpu: vm.cpu.time(),
            outstanding: vm.outstanding.requests,
            volumes: volumes.map(|key| volume_snapshot(&statistics, backend, vm.owner, *key)).collect(),
        });
    }
    snapshots
}

fn volume_snapshot(
    statistics: &Statistics<'_>,
    backend: &mut Backend,
    owner: OwnerId,
    key: VolumeKey,
) -> VolumeSnapshot {
    let volume = &mut backend.volumes[key];
    VolumeSnapshot {
        volume: volume.name.clone(),
        policy: volume.policy,
        account: statistics.of_volume(owner, volume.id, &mut volume.copied_stats),
        outstanding: volume.outstanding.requests,
        clients: volume.open_clients(),
        left: volume.left_clients(),
        faults: backend.store.stores().of(volume.store).faults(volume.store.index),
        client_faults: volume.faults.read(),
        nic: None,
    }
}

/// Refuses new clients of these volumes. Fails, and refuses none, if one of them has clients.
pub(crate) fn refuse_clients(core: &mut Core, volumes: Vec<(String, String)>) -> Result<(), EditError> {
    let (mut used, mut refused) = (Vec::new(), Vec::new());
    for (vm, volume) in volumes {
        let Some(known) = core.volume_of(&vm, &volume) else { continue };
        match (known.refuses_clients(), known.refuse_if_unused()) {
            (_, false) => used.push((vm, volume)),
            (false, true) => refused.push((vm, volume)),
            (true, true) => {}
        }
    }
    if used.is_empty() {
        return Ok(());
    }
    accept_clients(core, &refused);
    Err(EditError::InUse(used))
}

/// Accepts clients of these volumes again.
pub(crate) fn accept_clients(core: &mut Core, volumes: &[(String, String)]) {
    for (vm, volume) in volumes {
        if let Some(known) = core.volume_of(vm, volume) {
            known.accept_clients();
        }
    }
}

struct Editor<'a> {
    core: &'a mut Core,
    frontends: &'a mut Frontends,
    now: Instant,
}

impl Editor<'_> {
    fn apply(&mut self, edit: Edit) -> Result<(), EditError> {
        let now = self.now;
        match edit {
            Edit::AddVm { vm, policy, window } => {
                let owner = self.core.base.gate.add_owner(now, policy).map_err(|cause| refused(&vm, cause))?;
                let new = Vm::new(vm.clone(), owner, policy, window, self.core.memory.share());
                self.core.base.add_vm(vm, new);
                Ok(())
            }
            Edit::SetPolicies { vm, policy, window, volumes } => self.set_policies(&vm, (policy, window), volumes),
            Edit::SetCpu { vm, limit } => {
                let (id, _) = self.find_vm(&vm)?;
                self.core.base.vms[id].cpu.set_limit(now, limit);
                self.core.schedule_resume(id);
                Ok(())
            }
            Edit::RemoveVm { vm } => self.remove_vm(&vm),
            Edit::AddVolume { vm, volume } => self.add_volume(&vm, *volume),
            Edit::ResizeVolume { vm, volume, store, info } => {
                let volume = self.find_volume(self.find_vm(&vm)?.0, &volume)?;
                self.resize(volume, store, info);
                Ok(())
            }
            Edit::RemoveVolume { vm, volume } => {
                let volume = self.find_volume(self.find_vm(&vm)?.0, &volume)?;
                self.remove_volume(volume);
                Ok(())
            }
            Edit::AcceptLoss { vm, volume } => {
                let volume = self.find_volume(self.find_vm(&vm)?.0, &volume)?;
                let backend = &mut self.core.backend;
                let store = backend.volumes[volume].store;
                backend.store.stores_mut().of_mut(store).accept_loss(store.index);
                Ok(())
            }
            Edit::SetDevice { depth, request_bytes, aim } => {
                self.core.base.set_device(now, depth, request_bytes)?;
                self.core.backend.store.set_aim(now, aim);
                self.core.backend.ring.allow_workers(depth);
                Ok(())
            }
            Edit::SetBusyPoll(busy_poll) => {
                self.core.busy_poll = busy_poll;
                Ok(())
            }
            Edit::SetScheduler { scheduler, merging } => self.core.base.set_scheduler(now, scheduler, merging),
        }
    }

    fn find_vm(&self, name: &str) -> Result<(VmId, OwnerId), EditError> {
        self.core.base.find_vm(name).map(|id| (id, self.core.base.vms[id].owner))
    }

    fn find_volume(&self, vm: VmId, name: &str) -> Result<VolumeKey, EditError> {
        self.core.find_volume(vm, name).ok_or_else(|| EditError::Unknown(format!("volume {name}")))
    }

    fn set_policies(
        &mut self,
        vm: &str,
        (policy, window): (Policy, Window),
        volumes: Vec<(String, Policy)>,
    ) -> Result<(), EditError> {
        let (id, owner) = self.find_vm(vm)?;
        let volumes: Vec<(VolumeKey, Policy)> = volumes
            .into_iter()
            .map(|(name, policy)| Ok((self.find_volume(id, &name)?, policy)))
            .collect::<Result<_, EditError>>()?;
        let known = &mut self.core.backend.volumes;
        let by_id: Vec<_> = volumes.iter().map(|(key, policy)| (known[*key].id, *policy)).collect();
        let set = self.core.base.gate.set_policies(self.now, owner, policy, &by_id);
        set.map_err(|cause| refused(vm, cause))?;
        volumes.into_iter().for_each(|(key, policy)| known[key].policy = policy);
        (self.core.base.vms[id].policy, self.core.base.vms[id].window) = (policy, window);
        self.core.note_limits(id);
        self.core.schedule_resume(id);
        Ok(())
    }

    fn add_volume(&mut self, vm: &str, spec: VolumeSpec) -> Result<(), EditError> {
        let (id, owner) = self.find_vm(vm)?;
        let Core { base: Base { gate, .. }, backend, .. } = &mut *self.core;
        let number = gate.add_volume(self.now, owner, spec.policy).map_err(|cause| refused(vm, cause))?;
        let VolumeSpec { name, generation, policy, store, info } = spec;
        let label = Label { vm: vm.to_owned(), volume: name.clone() };
        let store = backend.store.placed(store);
        let store = backend.store.stores_mut().open(self.now, label, store);
        let names = Names { vm: id, vm_name: vm.to_owned(), id: number };
        let volume = Volume::new(names, (name.clone(), generation, policy, info), store);
        let key = backend.volumes.insert(volume);
        let vm = &mut self.core.base.vms[id];
        vm.volumes += 1;
        vm.volumes_by_name.insert(name, key);
        self.core.note_limits(id);
        Ok(())
    }

    fn resize(&mut self, key: VolumeKey, store: StoreSpec, info: VolumeInfo) {
        let backend = &mut self.core.backend;
        let volume = &mut backend.volumes[key];
        volume.info = info;
        let store = backend.store.placed(store);
        backend.store.stores_mut().replace(volume.store, store);
    }

    fn remove_vm(&mut self, name: &str) -> Result<(), EditError> {
        let (id, owner) = self.find_vm(name)?;
        self.core.base.vms_by_name.remove(name);
        let volumes: Vec<VolumeKey> = self.core.base.vms[id].volumes_by_name.values().copied().collect();
        volumes.into_iter().for_each(|key| self.remove_volume(key));
        let removed = self.remove_from_gate(Scope::Owner(owner));
        // Not before: the end of its last volume removes a VM that is being removed.
        self.core.base.vms[id].removed = true;
        self.core.remove_left_vm(id);
        removed.map_err(|cause| refused(name, cause))
    }

    /// Removes a volume and disconnects its clients. Queued requests are not served. Those of vhost-user stay in the
    /// available ring, from which a VMM submits them again when the volume has been attached again.
    fn remove_volume(&mut self, key: VolumeKey) {
        let volume = &mut self.core.backend.volumes[key];
        volume.leaving = true;
        // It counts as a client, so that the end of the last one does not remove the volume before this has ended.
        volume.clients += 1;
        let vm = &mut self.core.base.vms[volume.vm];
        vm.volumes_by_name.remove(&volume.name);
        let (vm, id, owner) = (volume.vm, volume.id, vm.owner);
        self.core.note_limits(vm);
        self.frontends.close(self.core, self.now, key);
        if let Err(error) = self.remove_from_gate(Scope::Volume(owner, id)) {
            let vm = &self.core.backend.volumes[key].vm_name;
            tracing::error!(vm, %error, "Gate has no entry for a served volume");
        }
        self.core.client_removed(key);
    }

    fn remove_from_gate(&mut self, scope: Scope) -> Result<(), ChangeError> {
        let (gate, mut finished) = (&mut self.core.base.gate, Vec::new());
        let removed = match scope {
            Scope::Owner(owner) => gate.remove_owner(self.now, owner, &mut finished),
            Scope::Volume(owner, volume) => gate.remove_volume(self.now, owner, volume, &mut finished),
        };
        let cancelled = self.core.cancelled(scope, finished);
        cancelled.into_iter().for_each(|(io, outcome)| self.core.left_gate(io, outcome));
        removed
    }
}
