//! Putting into force what has been staged. Nothing here depends on disks, sockets or files any more.
//!
//! Order, so that every step fits on its own: volumes and VMs go, policies change, VMs and volumes come. Policies of a
//! VM and of its volumes change together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sluice_config::{Device, Host, Protocol, Vm};
use sluice_io::device::{Edit, Store, VolumeSpec};
use sluice_io::listener::Entry;
use sluice_io::nbd::export::Export;
use sluice_io::vhost::listener::VhostListener;
use sluice_io::vhost::session;

use super::stage::{self, Staged};
use super::{Edits, Leaving, Plane, PlaneError, VolumeName, translate};

pub(super) fn commit(plane: &mut Plane, host: Host, staged: Staged) -> Result<usize, PlaneError> {
    let Staged { devices, volumes, resized, grown, listeners, guests } = staged;
    grown.keep();
    plane.devices.extend(devices);
    let rotational = |device: &str| plane.devices.get(device).is_some_and(|running| running.rotational);
    let edits = edits(&plane.host, &host, &volumes, &resized, &rotational);
    let changes = edits.values().map(Vec::len).sum();
    for (device, edits) in edits {
        let running = &plane.devices[&device];
        running.device.edit(edits).map_err(|source| PlaneError::Edit { device, source })?;
    }
    plane.devices.retain(|name, _| host.devices.contains_key(name));
    let served = |name: &VolumeName| host.vms.get(&name.0).is_some_and(|vm| vm.volumes.contains_key(&name.1));
    let left = plane.served.iter().filter(|(name, _)| !served(name)).filter_map(|((vm, volume), (store, _))| {
        let Store::File { source, .. } = store else { return None };
        let export = &plane.host.vms.get(vm)?.volumes.get(volume)?.export;
        Some(Leaving { socket: export.endpoint.socket().map(Path::to_owned), source: Arc::downgrade(source) })
    });
    plane.leaving.retain(|volume| !volume.is_over());
    plane.leaving.extend(left);
    plane.served.extend(volumes);
    plane.served.extend(resized);
    plane.served.retain(|name, _| served(name));
    plane.seats.set_max(host.nbd.connections_max);
    plane.host = host;
    plane.listeners.extend(listeners);
    plane.guests.extend(guests);
    offer(plane);
    offer_to_guests(plane);
    Ok(changes)
}

/// The VMs with volumes on a device.
fn on_device<'a>(host: &'a Host, device: &'a str) -> impl Iterator<Item = (&'a String, &'a Vm)> {
    host.vms.iter().filter(move |(_, vm)| vm.volumes.values().any(|volume| volume.device == device))
}

type Volumes = BTreeMap<VolumeName, (Store, Export)>;

fn edits(old: &Host, new: &Host, opened: &Volumes, resized: &Volumes, rotational: &dyn Fn(&str) -> bool) -> Edits {
    let mut edits = Edits::new();
    for device in old.devices.keys().chain(new.devices.keys()) {
        if edits.contains_key(device) {
            continue;
        }
        let mut list = Vec::new();
        leaving(old, new, device, &mut list);
        rescheduling(old, new, device, rotational, &mut list);
        changing(old, new, device, resized, &mut list);
        coming(old, new, device, opened, &mut list);
        edits.insert(device.clone(), list);
    }
    edits
}

/// A VM of the other file that has volumes on this device there.
fn vm_there<'a>(host: &'a Host, device: &str, vm: &str) -> Option<&'a Vm> {
    host.vms.get(vm).filter(|vm| vm.volumes.values().any(|volume| volume.device == device))
}

fn leaving(old: &Host, new: &Host, device: &str, list: &mut Vec<Edit>) {
    for (name, vm) in on_device(old, device) {
        let Some(after) = vm_there(new, device, name) else {
            list.push(Edit::RemoveVm { vm: name.clone() });
            continue;
        };
        for (volume, before) in vm.volumes.iter().filter(|(_, volume)| volume.device == device) {
            let stays = after.volumes.get(volume).is_some_and(|now| stage::stays(Some(before), now));
            if !stays {
                list.push(Edit::RemoveVolume { vm: name.clone(), volume: volume.clone() });
            }
        }
    }
}

/// Another scheduler takes over before policies change, which it may enforce where the old one did not.
fn rescheduling(old: &Host, new: &Host, device: &str, rotational: &dyn Fn(&str) -> bool, list: &mut Vec<Edit>) {
    let (Some(before), Some(after)) = (old.devices.get(device), new.devices.get(device)) else { return };
    let of = |device: &Device| (device.scheduler.name, device.params.clone(), device.merging);
    if of(before) != of(after) {
        let scheduler = translate::scheduler(after, rotational(device));
        list.push(Edit::SetScheduler { scheduler, merging: after.merging });
    }
}

fn changing(old: &Host, new: &Host, device: &str, resized: &Volumes, list: &mut Vec<Edit>) {
    let (Some(before), Some(after)) = (old.devices.get(device), new.devices.get(device)) else { return };
    if before.depth != after.depth {
        list.push(Edit::SetDepth(after.depth));
    }
    for (name, vm) in on_device(new, device) {
        let Some(known) = vm_there(old, device, name) else { continue };
        let staying = vm
            .volumes
            .iter()
            .filter(|(volume, now)| now.device == device && stage::stays(known.volumes.get(*volume), now));
        let volumes: Vec<_> = staying
            .filter(|(volume, now)| known.volumes[*volume].policy != now.policy)
            .map(|(volume, now)| (volume.clone(), now.policy))
            .collect();
        let window = translate::window(after);
        if vm.policy != known.policy || window != translate::window(before) || !volumes.is_empty() {
            list.push(Edit::SetPolicies { vm: name.clone(), policy: vm.policy, window, volumes });
        }
        for volume in vm.volumes.values().filter(|volume| volume.device == device) {
            if let Some((store, export)) = resized.get(&(name.clone(), volume.name.clone())).cloned() {
                list.push(Edit::ResizeVolume { vm: name.clone(), volume: volume.name.clone(), store, export });
            }
        }
    }
}

fn coming(old: &Host, new: &Host, device: &str, opened: &Volumes, list: &mut Vec<Edit>) {
    for (name, vm) in on_device(new, device) {
        if vm_there(old, device, name).is_none() {
            let window = translate::window(&new.devices[device]);
            list.push(Edit::AddVm { vm: name.clone(), policy: vm.policy, window });
        }
        for (volume, spec) in vm.volumes.iter().filter(|(_, volume)| volume.device == device) {
            if let Some((store, export)) = opened.get(&(name.clone(), volume.clone())).cloned() {
                let volume = VolumeSpec { name: volume.clone(), policy: spec.policy, store, export };
                list.push(Edit::AddVolume { vm: name.clone(), volume: Box::new(volume) });
            }
        }
    }
}

/// Tells every socket what it offers now; closes those that the file does not name any more.
fn offer(plane: &mut Plane) {
    let wanted: Vec<String> =
        stage::endpoints(&plane.host).map(|endpoint| translate::endpoint(endpoint).to_string()).collect();
    plane.listeners.retain(|listener| wanted.contains(&listener.endpoint().to_string()));
    let shared: Vec<String> =
        plane.host.nbd.endpoints.iter().map(|endpoint| translate::endpoint(endpoint).to_string()).collect();
    for listener in &plane.listeners {
        let here = listener.endpoint().to_string();
        let everything = shared.contains(&here);
        let mut entries = Vec::new();
        for (vm, spec) in &plane.host.vms {
            for (volume, spec) in &spec.volumes {
                let own = spec.export.protocol == Protocol::Nbd
                    && translate::endpoint(&spec.export.endpoint).to_string() == here;
                if everything || own {
                    let name = (vm.clone(), volume.clone());
                    let export = plane.served[&name].1.clone();
                    let door = plane.devices[&spec.device].device.door();
                    entries.push(Entry { export, vm: name.0, volume: name.1, door });
                }
            }
        }
        listener.catalogue().replace(entries);
    }
}

/// The same for the sockets of guests: one volume each.
fn offer_to_guests(plane: &mut Plane) {
    let name = |endpoint| translate::endpoint(endpoint).to_string();
    let wanted: Vec<String> = stage::guest_endpoints(&plane.host).map(name).collect();
    plane.guests.retain(|listener| wanted.contains(&listener.endpoint().to_string()));
    for (vm, spec) in &plane.host.vms {
        for (volume, spec) in &spec.volumes {
            let Protocol::VhostUserBlk { queues } = spec.export.protocol else { continue };
            let here = name(&spec.export.endpoint);
            let listener = plane.guests.iter().find(|listener| listener.endpoint().to_string() == here);
            let (vm, volume) = (vm.clone(), volume.clone());
            let export = plane.served[&(vm.clone(), volume.clone())].1.clone();
            let door = plane.devices[&spec.device].device.door();
            let entry = session::Entry { export, vm, volume, door, queues };
            listener.expect("every endpoint of the file has a socket").replace(Some(entry));
        }
    }
}

/// The sockets of guests: VM, volume, and the socket.
pub(super) fn guest_sockets(plane: &Plane) -> impl Iterator<Item = (&String, &String, &VhostListener)> {
    let volumes = plane.host.vms.iter().flat_map(|(vm, spec)| spec.volumes.iter().map(move |volume| (vm, volume)));
    volumes.filter_map(|(vm, (volume, spec))| {
        let here = translate::endpoint(&spec.export.endpoint).to_string();
        let listener = plane.guests.iter().find(|listener| listener.endpoint().to_string() == here)?;
        Some((vm, volume, listener))
    })
}
