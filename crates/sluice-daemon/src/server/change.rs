//! A change from the file in force to another one, as far as it follows from both files.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Host, Vm, Volume};

use super::tolerance::Tolerance;
use super::{Extra, Guard, Server, objects};

/// A change of what is served.
pub(super) struct Change {
    /// The file in force without what is out of service.
    pub(super) old: Arc<Host>,
    pub(super) host: Arc<Host>,
    pub(super) vms: Changed,
    pub(super) extra: Extra,
    pub(super) is_start: bool,
    /// Which faults of one resource put it out of service.
    pub(super) tolerance: Tolerance,
    /// Devices that are started, with the faults that put each out of service. Of two on one disk the first one is started.
    pub(super) devices: Vec<(String, Tolerance)>,
    /// What is out of service, and stays so without a look at its paths.
    pub(super) staying: BTreeSet<ObjectId>,
}

impl Change {
    pub(super) fn new(server: &Server, host: &Arc<Host>, extra: &Extra, guard: &Guard<'_>) -> Change {
        let (old, is_start) = (server.in_service(), server.is_start());
        let tolerance = match (extra, is_start) {
            (Extra::Tolerate | Extra::Retry(_), _) => Tolerance::Anything,
            (Extra::Nothing | Extra::Grow(_), true) => Tolerance::NoResponse,
            (Extra::Nothing | Extra::Grow(_), false) => Tolerance::Never,
        };
        let vms = Changed::between(&old, host);
        let (devices, staying) = (Vec::new(), server.staying(host, extra, guard.force));
        let (host, extra) = (Arc::clone(host), extra.clone());
        let mut change = Change { old, host, vms, extra, is_start, tolerance, devices, staying };
        change.devices = change.started(server, guard);
        change
    }

    /// Returns the devices that are started: those that do not run, and do not stay out of service with all their volumes.
    fn started(&self, server: &Server, guard: &Guard<'_>) -> Vec<(String, Tolerance)> {
        let stays = |device: &ObjectId, name: &str| {
            let mut on_it = objects::volumes(&self.host).filter(|(_, volume)| volume.device == *name);
            self.staying.contains(device) && on_it.all(|(volume, _)| self.staying.contains(&volume))
        };
        let names = self.host.devices.keys().filter(|name| !server.devices.contains_key(*name));
        let objects = names.map(|name| (name, ObjectId::Device(name.clone())));
        let started = objects.filter(|(name, device)| !stays(device, name));
        let mut devices: Vec<_> =
            started.map(|(name, device)| (name.clone(), self.tolerance_of(server, &device))).collect();
        // Of two devices that turn out to be one disk, the one that the state does not know is left out.
        devices.sort_by_key(|(name, _)| !guard.knows_device(&self.host, name));
        devices
    }

    /// Returns the faults of a volume or device that put it out of service.
    pub(super) fn tolerance_of(&self, server: &Server, name: &ObjectId) -> Tolerance {
        if server.absent.is_out(name) { Tolerance::Anything } else { self.tolerance }
    }

    /// Returns the volumes of the VMs that differ, each with what is served of it now.
    pub(super) fn volumes(&self) -> impl Iterator<Item = (ObjectId, Option<&Volume>, &Arc<Volume>)> {
        self.vms.of(&self.host).flat_map(|(vm, spec)| {
            let before = self.old.vms.get(vm);
            let volumes = spec.volumes.iter();
            volumes
                .map(move |(name, volume)| (ObjectId::volume(vm, name), before.and_then(|vm| vm.volume(name)), volume))
        })
    }
}

/// The VMs that differ between two files. The cost of a change depends on these and not on all VMs.
pub(super) struct Changed(pub(super) BTreeSet<String>);

impl Changed {
    fn between(old: &Host, new: &Host) -> Changed {
        let same = |a: &Arc<Vm>, b: &Arc<Vm>| Arc::ptr_eq(a, b) || a == b;
        let differs = |(name, vm): &(&String, &Arc<Vm>)| !old.vms.get(*name).is_some_and(|old| same(old, vm));
        let changed = new.vms.iter().filter(differs).map(|(name, _)| name);
        let left = old.vms.keys().filter(|name| !new.vms.contains_key(*name));
        Changed(changed.chain(left).cloned().collect())
    }

    /// Returns those that a file contains.
    pub(super) fn of<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = (&'a String, &'a Vm)> {
        self.0.iter().filter_map(|name| host.vms.get_key_value(name)).map(|(name, vm)| (name, &**vm))
    }
}
