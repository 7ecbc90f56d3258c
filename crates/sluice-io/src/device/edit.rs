//! Changes at run time: adding and removing VMs and volumes, changing policies.

use std::sync::Arc;

use sluice_sched::gate::GateStats;
use sluice_sched::{ChangeError, Gate, GateSettings, Instant, OwnerId, Policy, Scope};

use crate::backend::disk::Backend;
use crate::backend::volume::{Names, Volume};
use crate::device::core::Core;
use crate::device::spec::{Edit, EditError, SchedulerSpec, VmSnapshot, VolumeSnapshot, Window, shared_copy};
use crate::device::vm::Vm;
use crate::frontend::Frontends;
use crate::slab::{VmId, VolumeKey};
use crate::store::{Label, StoreSpec};
use crate::volume::{VolumeInfo, VolumeSpec};

/// Applies a change.
pub(crate) fn apply(core: &mut Core, frontends: &mut Frontends, now: Instant, edit: Edit) -> Result<(), EditError> {
    Editor { core, frontends, now }.apply(edit)
}

/// Returns the changes that give an empty device thread the same VMs, volumes and settings.
pub(crate) fn describe(core: &Core) -> Vec<Edit> {
    let GateSettings { depth, request_bytes, .. } = *core.gate.settings();
    let mut edits = vec![Edit::SetDevice { depth, request_bytes }, Edit::SetBusyPoll(core.busy_poll)];
    if let Some((scheduler, merging)) = core.scheduler.clone() {
        edits.push(Edit::SetScheduler { scheduler, merging });
    }
    for (id, vm) in core.vms.iter().filter(|(_, vm)| !vm.removed) {
        edits.push(Edit::AddVm { vm: vm.name.clone(), policy: vm.policy, window: vm.window });
        edits.extend(vm.cpu.time().limit.map(|limit| Edit::SetCpu { vm: vm.name.clone(), limit: Some(limit) }));
        let volumes = core.backend.volumes.iter();
        for (_, volume) in volumes.filter(|(_, volume)| volume.vm == id && !volume.leaving) {
            let store = core.backend.store.below.of(volume.store).describe(volume.store.index);
            let volume = Box::new(volume.describe(store));
            edits.push(Edit::AddVolume { vm: vm.name.clone(), volume });
        }
    }
    edits
}

/// Returns the state of each VM. Requests wait for it, so the work for a VM does not depend on the number of others, and the
/// statistics of an idle VM are not copied again.
pub(crate) fn vm_snapshots(core: &mut Core) -> Vec<VmSnapshot> {
    let Core { gate, vms, backend, .. } = core;
    gate.settle_stats();
    let mut snapshots = Vec::with_capacity(vms.len());
    let mut unused = None;
    for vm in vms.values_mut().filter(|vm| !vm.removed) {
        let Some(outstanding) = gate.outstanding(vm.owner) else { continue };
        let account = shared_copy(&mut vm.copied_stats, outstanding, || gate.stats(vm.owner));
        let Some(account) = account.map(|account| share_unused(account, &mut unused)) else { continue };
        vm.copied_stats = Some(Arc::clone(&account));
        let volumes = vm.volumes_by_name.values();
        snapshots.push(VmSnapshot {
            vm: vm.name.clone(),
            policy: vm.policy,
            account,
            protocol_errors: vm.protocol_errors,
            refused: vm.refused,
            cpu: vm.cpu.time(),
            outstanding: vm.outstanding.requests,
            volumes: volumes.map(|key| volume_snapshot(gate, backend, vm.owner, *key)).collect(),
        });
    }
    snapshots
}

/// Returns the statistics of another VM in place of equal ones: those of VMs without requests that were added at the same instant are equal.
/// The first copy that is seen stays in `unused`.
fn share_unused(stats: Arc<GateStats>, unused: &mut Option<Arc<GateStats>>) -> Arc<GateStats> {
    if stats.outstanding.arrived > 0 {
        return stats;
    }
    match unused {
        Some(known) if known.began == stats.began => Arc::clone(known),
        _ => Arc::clone(unused.insert(stats)),
    }
}

fn volume_snapshot(gate: &Gate, backend: &mut Backend, owner: OwnerId, key: VolumeKey) -> VolumeSnapshot {
    let volume = &mut backend.volumes[key];
    let apart = gate.apart_outstanding(owner, volume.id);
    let account = apart.and_then(|outstanding| {
        shared_copy(&mut volume.copied_stats, outstanding, || gate.apart_stats(owner, volume.id))
    });
    VolumeSnapshot {
        volume: volume.name.clone(),
        policy: volume.policy,
        account,
        outstanding: volume.outstanding.requests,
        clients: volume.open_clients(),
        faults: backend.store.below.of(volume.store).faults(volume.store.index),
        client_faults: volume.faults.read(),
        nic: None,
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
                let owner = self.core.gate.add_owner(now, policy).map_err(|cause| refused(&vm, cause))?;
                let new = Vm::new(vm.clone(), owner, policy, window, self.core.memory.share());
                let id = self.core.vms.insert(new);
                self.core.vms_by_name.insert(vm, id);
                Ok(())
            }
            Edit::SetPolicies { vm, policy, window, volumes } => self.set_policies(&vm, (policy, window), volumes),
            Edit::SetCpu { vm, limit } => {
                let (id, _) = self.find_vm(&vm)?;
                self.core.vms[id].cpu.set_limit(now, limit);
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
            Edit::RefuseClients { volumes } => self.refuse_clients(volumes),
            Edit::Reopen { volumes } => {
                self.accept_clients(&volumes);
                Ok(())
            }
            Edit::AcceptLoss { vm, volume } => {
                let volume = self.find_volume(self.find_vm(&vm)?.0, &volume)?;
                let backend = &mut self.core.backend;
                let store = backend.volumes[volume].store;
                backend.store.below.of_mut(store).accept_loss(store.index);
                Ok(())
            }
            Edit::SetDevice { depth, request_bytes } => {
                let set = self.core.gate.set_device(now, depth, request_bytes);
                set.map_err(|cause| EditError::Device { cause })?;
                self.core.backend.ring.allow_workers(depth);
                Ok(())
            }
            Edit::SetBusyPoll(busy_poll) => {
                self.core.busy_poll = busy_poll;
                Ok(())
            }
            Edit::SetScheduler { scheduler, merging } => self.set_scheduler(scheduler, merging),
            Edit::AddNic { .. } | Edit::SetNic { .. } | Edit::SetWire { .. } | Edit::SetLink { .. } => {
                Err(EditError::Kind("a disk"))
            }
        }
    }

    fn find_vm(&self, name: &str) -> Result<(VmId, OwnerId), EditError> {
        let found = self.core.vms_by_name.get(name).map(|&id| (id, self.core.vms[id].owner));
        found.ok_or_else(|| EditError::Unknown(format!("VM {name}")))
    }

    fn find_volume(&self, vm: VmId, name: &str) -> Result<VolumeKey, EditError> {
        self.core.find_volume(vm, name).ok_or_else(|| EditError::Unknown(format!("volume {name}")))
    }

    fn refuse_clients(&mut self, volumes: Vec<(String, String)>) -> Result<(), EditError> {
        let (mut used, mut refused) = (Vec::new(), Vec::new());
        for (vm, volume) in volumes {
            let Ok(key) = self.find_vm(&vm).and_then(|(id, _)| self.find_volume(id, &volume)) else { continue };
            let known = &mut self.core.backend.volumes[key];
            match (known.refuses_clients(), known.refuse_if_unused()) {
                (_, false) => used.push((vm, volume)),
                (false, true) => refused.push((vm, volume)),
                (true, true) => {}
            }
        }
        if used.is_empty() {
            return Ok(());
        }
        self.accept_clients(&refused);
        Err(EditError::InUse(used))
    }

    fn accept_clients(&mut self, volumes: &[(String, String)]) {
        for (vm, volume) in volumes {
            if let Ok(key) = self.find_vm(vm).and_then(|(id, _)| self.find_volume(id, volume)) {
                self.core.backend.volumes[key].accept_clients();
            }
        }
    }

    fn set_scheduler(&mut self, spec: SchedulerSpec, merging: bool) -> Result<(), EditError> {
        let wrong = |cause| EditError::Scheduler { name: spec.descriptor.name, cause };
        let scheduler = spec.build().map_err(wrong)?;
        let replaced = self.core.gate.replace_scheduler(self.now, scheduler, merging);
        replaced.map_err(|cause| EditError::Device { cause })?;
        self.core.scheduler = Some((spec, merging));
        Ok(())
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
        let set = self.core.gate.set_policies(self.now, owner, policy, &by_id);
        set.map_err(|cause| refused(vm, cause))?;
        volumes.into_iter().for_each(|(key, policy)| known[key].policy = policy);
        (self.core.vms[id].policy, self.core.vms[id].window) = (policy, window);
        self.core.note_limits(id);
        self.core.schedule_resume(id);
        Ok(())
    }

    fn add_volume(&mut self, vm: &str, spec: VolumeSpec) -> Result<(), EditError> {
        let (id, owner) = self.find_vm(vm)?;
        let Core { gate, backend, .. } = &mut *self.core;
        let number = gate.add_volume(self.now, owner, spec.policy).map_err(|cause| refused(vm, cause))?;
        let VolumeSpec { name, generation, policy, store, info } = spec;
        let label = Label { vm: vm.to_owned(), volume: name.clone() };
        let store = backend.store.below.open(self.now, label, store);
        let names = Names { vm: id, vm_name: vm.to_owned(), id: number };
        let volume = Volume::new(names, (name.clone(), generation, policy, info), store);
        let key = backend.volumes.insert(volume);
        let vm = &mut self.core.vms[id];
        vm.volumes += 1;
        vm.volumes_by_name.insert(name, key);
        self.core.note_limits(id);
        Ok(())
    }

    fn resize(&mut self, key: VolumeKey, store: StoreSpec, info: VolumeInfo) {
        let backend = &mut self.core.backend;
        let volume = &mut backend.volumes[key];
        volume.info = info;
        backend.store.below.replace(volume.store, store);
    }

    fn remove_vm(&mut self, name: &str) -> Result<(), EditError> {
        let (id, owner) = self.find_vm(name)?;
        self.core.vms_by_name.remove(name);
        let volumes: Vec<VolumeKey> = self.core.vms[id].volumes_by_name.values().copied().collect();
        volumes.into_iter().for_each(|key| self.remove_volume(key));
        let removed = self.remove_from_gate(Scope::Owner(owner));
        // Not before: the end of its last volume removes a VM that is being removed.
        self.core.vms[id].removed = true;
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
        let vm = &mut self.core.vms[volume.vm];
        vm.volumes_by_name.remove(&volume.name);
        let (vm, id, owner) = (volume.vm, volume.id, vm.owner);
        self.core.note_limits(vm);
        self.frontends.close(self.core, key);
        if let Err(error) = self.remove_from_gate(Scope::Volume(owner, id)) {
            let vm = &self.core.backend.volumes[key].vm_name;
            tracing::error!(vm, %error, "Gate has no entry for a served volume");
        }
        self.core.client_removed(key);
    }

    fn remove_from_gate(&mut self, scope: Scope) -> Result<(), ChangeError> {
        let (gate, mut finished) = (&mut self.core.gate, Vec::new());
        let removed = match scope {
            Scope::Owner(owner) => gate.remove_owner(self.now, owner, &mut finished),
            Scope::Volume(owner, volume) => gate.remove_volume(self.now, owner, volume, &mut finished),
        };
        let cancelled = self.core.cancelled(scope, finished);
        cancelled.into_iter().for_each(|(io, outcome)| self.core.left_gate(io, outcome));
        removed
    }
}

fn refused(vm: &str, cause: ChangeError) -> EditError {
    EditError::Gate { vm: vm.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_without_requests_share_their_statistics_if_they_were_added_at_the_same_instant() {
        let stats = |began: u64, arrived: u64| {
            let mut stats = GateStats::default();
            (stats.began, stats.outstanding.arrived) = (Instant::from_nanos(began), arrived);
            Arc::new(stats)
        };
        let mut unused = None;
        let first = share_unused(stats(1, 0), &mut unused);
        assert!(Arc::ptr_eq(&first, &share_unused(stats(1, 0), &mut unused)));
        let used = share_unused(stats(1, 5), &mut unused);
        assert!(used.outstanding.arrived == 5 && !Arc::ptr_eq(&first, &used));
        assert_eq!(
            share_unused(stats(2, 0), &mut unused).began,
            Instant::from_nanos(2),
            "the instant is a part of them"
        );
    }
}
