//! Changes of an uplink at run time: adding and removing VMs and NICs, changing policies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_net::switch::Port;
use sluice_sched::{GateSettings, Instant, Policy};

use crate::cpu::VmCpu;
use crate::reactor::base::{Base, refused};
use crate::reactor::spec::{EditError, VmSnapshot, VolumeSnapshot};
use crate::reactor::statistics::Statistics;
use crate::slab::{Id as _, VmId};
use crate::uplink::core::{Core, Vm};
use crate::uplink::ids::NicId;
use crate::uplink::link::Link;
use crate::uplink::nic::{Nic, RECEIVE_BOUNDS, Standing, receive_policy};
use crate::uplink::ports::Ports;
use crate::uplink::spec::{Edit, NicPlug, NicSpec};

/// Applies changes in order. Stops at the first that fails.
pub(crate) fn apply(core: &mut Core, ports: &mut Ports, now: Instant, edits: Vec<Edit>) -> Result<(), EditError> {
    let mut editor = Editor { core, ports, now };
    // NICs of one address may exchange their VLANs: each leaves its VLAN before the first joins another.
    let moved: Vec<NicId> = edits.iter().filter_map(|edit| editor.changed_nic(edit)).collect();
    moved.iter().for_each(|id| editor.core.switch.remove(editor.core.nics[*id].port));
    let applied = edits.into_iter().try_for_each(|edit| editor.apply(edit));
    if applied.is_err() {
        // Those that were not reached stay where they were. One that has its port gets no second one, and one that an earlier change has
        // removed gets none.
        for id in moved {
            if editor.core.nics.get(id).is_some_and(|nic| !nic.is_leaving()) {
                drop(editor.connect(id));
            }
        }
    }
    applied
}

/// Returns the changes that give an empty thread the same VMs, NICs and settings.
pub(crate) fn describe(core: &Core) -> Vec<Edit> {
    let GateSettings { depth, request_bytes, .. } = *core.base.gate.settings();
    let mut edits = vec![
        Edit::SetDevice { depth, request_bytes },
        Edit::SetWire { rate: core.wire.pacer.rate(), frame_time_max: core.frame_time_max },
        Edit::SetLink { nic: None, link: Arc::clone(&core.wire.link) },
    ];
    if let Some((scheduler, merging)) = core.base.scheduler.clone() {
        edits.push(Edit::SetScheduler { scheduler, merging });
    }
    for (_, vm) in core.base.vms.iter() {
        edits.push(Edit::AddVm { vm: vm.name.clone(), policy: vm.policy });
        edits.extend(vm.cpu.time().limit.map(|limit| Edit::SetCpu { vm: vm.name.clone(), limit: Some(limit) }));
        for id in vm.nics.values() {
            let nic = Box::new(core.nics[*id].spec.clone());
            edits.push(Edit::AddNic { vm: vm.name.clone(), nic });
        }
    }
    edits
}

/// Returns the state of each VM.
pub(crate) fn vm_snapshots(core: &mut Core) -> Vec<VmSnapshot> {
    let Core { base: Base { gate, vms, .. }, nics, .. } = core;
    let mut statistics = Statistics::new(gate);
    let mut snapshots = Vec::with_capacity(vms.len());
    for vm in vms.values_mut() {
        let Some(account) = statistics.of_vm(vm.owner, &mut vm.copied_stats) else { continue };
        let mut own = Vec::new();
        for id in vm.nics.values() {
            let nic = &mut nics[*id];
            own.push(VolumeSnapshot {
                volume: nic.spec.name.clone(),
                policy: nic.spec.policy,
                account: statistics.of_volume(vm.owner, nic.id, &mut nic.copied_stats),
                outstanding: nic.frames.at_gate + nic.frames.flying + nic.frames.waiting.len() as u32,
                clients: u32::from(nic.session.is_some() || matches!(nic.spec.plug, NicPlug::Tap(_))),
                left: 0,
                faults: nic.faults(),
                client_faults: nic.faults.clients.read(),
                nic: Some(Box::new(nic.totals)),
            });
        }
        snapshots.push(VmSnapshot {
            vm: vm.name.clone(),
            policy: vm.policy,
            account,
            protocol_errors: vm.nics.values().map(|id| nics[*id].faults.protocol_errors).sum(),
            refused: vm.nics.values().map(|id| nics[*id].totals.drops.total()).sum(),
            cpu: vm.cpu.time(),
            outstanding: own.iter().map(|nic| nic.outstanding).sum(),
            volumes: own,
        });
    }
    snapshots
}

/// Refuses new VMMs of these NICs. Fails, and refuses none, if one of them has a VMM.
pub(crate) fn refuse_clients(core: &mut Core, nics: &[(String, String)]) -> Result<(), EditError> {
    let in_use =
        |(vm, nic): &&(String, String)| core.find_nic(vm, nic).is_some_and(|id| core.nics[id].session.is_some());
    let used: Vec<_> = nics.iter().filter(in_use).cloned().collect();
    if used.is_empty() {
        set_standing(core, nics, Standing::RefusesClients);
        return Ok(());
    }
    Err(EditError::InUse(used))
}

/// Refuses new VMMs of these NICs, or accepts them.
pub(crate) fn set_standing(core: &mut Core, nics: &[(String, String)], standing: Standing) {
    for (vm, nic) in nics {
        if let Some(id) = core.find_nic(vm, nic) {
            core.nics[id].standing = standing;
        }
    }
}

struct Editor<'a> {
    core: &'a mut Core,
    ports: &'a mut Ports,
    now: Instant,
}

impl Editor<'_> {
    fn apply(&mut self, edit: Edit) -> Result<(), EditError> {
        let now = self.now;
        match edit {
            Edit::AddVm { vm, policy } => {
                let owner = self.core.base.gate.add_owner(now, policy).map_err(|cause| refused(&vm, cause))?;
                let new = Vm {
                    name: vm.clone(),
                    owner,
                    policy,
                    nics: HashMap::new(),
                    cpu: VmCpu::default(),
                    is_waiting: false,
                    copied_stats: None,
                };
                self.core.base.add_vm(vm, new);
                Ok(())
            }
            Edit::SetPolicies { vm, policy, nics } => self.set_policies(&vm, policy, nics),
            Edit::SetCpu { vm, limit } => {
                let id = self.find_vm(&vm)?;
                self.core.set_cpu_limit(now, id, limit);
                Ok(())
            }
            Edit::RemoveVm { vm } => self.remove_vm(&vm),
            Edit::AddNic { vm, nic } => self.add_nic(&vm, *nic),
            Edit::SetNic { vm, nic } => self.set_nic(&vm, *nic),
            Edit::RemoveNic { vm, nic } => {
                let (id, nic) = (self.find_vm(&vm)?, self.find_nic(&vm, &nic)?);
                self.remove_nic(id, nic);
                Ok(())
            }
            Edit::SetDevice { depth, request_bytes } => self.core.base.set_device(now, depth, request_bytes),
            Edit::SetWire { rate, frame_time_max } => {
                self.core.wire.pacer.set_rate(rate);
                self.core.frame_time_max = frame_time_max.max(Duration::from_micros(1));
                Ok(())
            }
            Edit::SetLink { nic: None, link } => {
                self.core.wire.link = link;
                Ok(())
            }
            Edit::SetLink { nic: Some((vm, nic)), link } => self.set_tap(&vm, &nic, link),
            Edit::SetScheduler { scheduler, merging } => self.core.base.set_scheduler(now, scheduler, merging),
        }
    }

    /// Replaces the TAP of a NIC.
    fn set_tap(&mut self, vm: &str, nic: &str, link: Arc<Link>) -> Result<(), EditError> {
        let id = self.find_nic(vm, nic)?;
        self.ports.taps.close(self.core, id);
        self.core.nics[id].spec.plug = NicPlug::Tap(link);
        Ok(())
    }

    fn find_vm(&self, name: &str) -> Result<VmId, EditError> {
        self.core.base.find_vm(name)
    }

    fn find_nic(&self, vm: &str, name: &str) -> Result<NicId, EditError> {
        self.core.find_nic(vm, name).ok_or_else(|| EditError::Unknown(format!("NIC {name}")))
    }

    fn set_policies(&mut self, vm: &str, policy: Policy, nics: Vec<(String, Policy)>) -> Result<(), EditError> {
        let id = self.find_vm(vm)?;
        let nics: Vec<(NicId, Policy)> = nics
            .into_iter()
            .map(|(name, policy)| Ok((self.find_nic(vm, &name)?, policy)))
            .collect::<Result<_, EditError>>()?;
        let by_id: Vec<_> = nics.iter().map(|(nic, policy)| (self.core.nics[*nic].id, *policy)).collect();
        let owner = self.core.base.vms[id].owner;
        let set = self.core.base.gate.set_policies(self.now, owner, policy, &by_id);
        set.map_err(|cause| refused(vm, cause))?;
        for (nic, policy) in nics {
            self.core.nics[nic].spec.policy = policy;
        }
        self.core.base.vms[id].policy = policy;
        Ok(())
    }

    fn add_nic(&mut self, vm: &str, spec: NicSpec) -> Result<(), EditError> {
        let id = self.find_vm(vm)?;
        let owner = self.core.base.vms[id].owner;
        let number =
            self.core.base.gate.add_volume(self.now, owner, spec.policy).map_err(|cause| refused(vm, cause))?;
        let name = spec.name.clone();
        let nic = self.core.nics.insert(Nic::new((id, vm), number, spec));
        let port = Port(nic.index());
        self.core.nics[nic].port = port;
        if let Err(error) = self.connect(nic).and_then(|()| self.add_receive_queue(nic)) {
            self.core.switch.remove(port);
            let removed = self.core.nics.remove(nic);
            let _ = self.core.base.gate.remove_volume(self.now, owner, removed.id, &mut Vec::new());
            return Err(error);
        }
        self.core.base.vms[id].nics.insert(name, nic);
        self.ports.taps.open(self.core, nic);
        Ok(())
    }

    /// Returns the NIC that an edit changes, if it changes one.
    fn changed_nic(&self, edit: &Edit) -> Option<NicId> {
        let Edit::SetNic { vm, nic } = edit else { return None };
        self.core.find_nic(vm, &nic.name)
    }

    fn set_nic(&mut self, vm: &str, spec: NicSpec) -> Result<(), EditError> {
        let id = self.find_nic(vm, &spec.name)?;
        let nic = &mut self.core.nics[id];
        let NicSpec { policy, generation, ref plug, .. } = nic.spec;
        let spec = NicSpec { policy, generation, plug: plug.clone(), ..spec };
        self.core.switch.remove(nic.port);
        let before = std::mem::replace(&mut nic.spec, spec);
        let connected = self.connect(id);
        if connected.is_err() {
            self.core.nics[id].spec = before;
            self.connect(id)?;
        }
        let Nic { port, spec, .. } = &self.core.nics[id];
        self.core.receive.set(self.now, *port, receive_policy(spec));
        connected
    }

    /// Makes a NIC a port of the switch.
    fn connect(&mut self, id: NicId) -> Result<(), EditError> {
        let Nic { port, spec, .. } = &self.core.nics[id];
        let added = self.core.switch.add(self.now, *port, spec.guard.mac, spec.vlan);
        added.map_err(|error| EditError::Switch { nic: spec.name.clone(), error })
    }

    fn add_receive_queue(&mut self, id: NicId) -> Result<(), EditError> {
        let Nic { port, spec, .. } = &self.core.nics[id];
        let added = self.core.receive.add(self.now, *port, receive_policy(spec), RECEIVE_BOUNDS);
        added.map_err(|error| EditError::Switch { nic: spec.name.clone(), error })
    }

    fn remove_vm(&mut self, name: &str) -> Result<(), EditError> {
        let id = self.find_vm(name)?;
        self.core.base.vms_by_name.remove(name);
        let mut nics: Vec<NicId> = self.core.base.vms[id].nics.values().copied().collect();
        nics.sort_unstable();
        nics.into_iter().for_each(|nic| self.remove_nic(id, nic));
        let vm = self.core.base.vms.remove(id);
        let removed = self.core.base.gate.remove_owner(self.now, vm.owner, &mut Vec::new());
        removed.map_err(|cause| refused(name, cause))
    }

    /// Removes a NIC and disconnects its VMM. Frames that were not sent are dropped.
    fn remove_nic(&mut self, vm: VmId, id: NicId) {
        let Nic { port, ref spec, .. } = self.core.nics[id];
        self.core.base.vms[vm].nics.remove(&spec.name);
        self.core.switch.remove(port);
        self.core.receive.remove(port).for_each(drop);
        self.ports.vhost.close(self.core, self.now, id);
        self.ports.taps.close(self.core, id);
        self.core.recall(self.now, id).into_iter().for_each(|packet| self.core.forget(packet));
        let (owner, number) = (self.core.base.vms[vm].owner, self.core.nics[id].id);
        if let Err(error) = self.core.base.gate.remove_volume(self.now, owner, number, &mut Vec::new()) {
            let vm = &self.core.base.vms[vm].name;
            tracing::error!(vm, %error, "Gate has no entry for a served NIC");
        }
        // Not before: the end of its session removes a NIC that is leaving.
        self.core.nics[id].standing = Standing::Leaving;
        self.core.remove_left(id);
    }
}
