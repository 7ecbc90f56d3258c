//! Puts a staged change into force. Nothing here depends on disks, sockets or files.
//!
//! The order makes every step valid: volumes and VMs are removed, policies change, VMs and volumes are added. The
//! policies of a VM and of its volumes change together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_api::object::ObjectId;
use sluice_config::{Device, Host, Vm};
use sluice_io::device::{Edit, EditError, Health, StoreSpec, VolumeGeneration, VolumeSpec};
use sluice_io::reactor::Thread;
use sluice_io::source::DiskSet;
use sluice_io::volume::VolumeInfo;

use super::change::{Change, Changed};
use super::closing::close;
use super::objects::{stays, volume_of};
use super::resizing::Resized;
use super::stage::Staged;
use super::tolerance::Tolerance;
use super::{
    Absence, Done, Edits, LeftSource, RemovedVolume, Running, Server, ServerError, connections, nics, sockets,
    translate,
};
use crate::pool::PoolExchange;

/// Maximum time for a removed device to end; after that its thread waits for its disk in the background.
const END_MAX: Duration = Duration::from_secs(1);

pub(super) fn commit(server: &mut Server, change: &Change, staged: &mut Staged) -> Result<Done, ServerError> {
    let (host, vms) = (Arc::clone(&change.host), &change.vms);
    let (edits, generations) = all_edits(server, change, staged);
    let edits = refuse_down(server, edits)?;
    let changes = edits.values().map(Edits::len).sum();
    let unapplied = apply(server, &staged.devices, edits, change.tolerance)?;
    let mut staged = std::mem::take(staged);
    staged.grown.drain(..).for_each(Resized::keep);
    let lost: BTreeMap<&str, Absence> =
        unapplied.iter().filter_map(|error| Some((error.lost_device()?, Absence::of(error)))).collect();
    let failed = unapplied.iter().filter_map(ServerError::failed_device);
    let failed: Vec<_> = failed.filter_map(|device| Some((device, staged.devices.remove(device)?))).collect();
    let absent = failed.iter().map(|(device, _)| (ObjectId::Device((*device).to_owned()), lost[device].clone()));
    staged.absent.extend(absent);
    close(failed.into_iter().map(|(_, running)| running).collect());
    staged.lose(&host, |volume| lost.get(volume.device.as_str()).cloned());
    let Staged { devices, joined, volumes, absent, resized, sockets, taps, .. } = staged;
    server.devices.extend(devices);
    for (device, disks) in joined {
        server.devices.get_mut(&device).expect("disks join devices that run").join(&device, disks);
    }
    end_removed(server, &host);
    for (name, stated) in &host.devices {
        server.devices.get_mut(name).into_iter().for_each(|running| running.meet(&host, stated, true));
    }
    let changed_nics = nics::changed(&server.host, &host, vms);
    // What is out of service may have a socket, and is not among the served volumes that change.
    let sockets_changed = !sockets.is_empty()
        || server.absent.out_of_service().next().is_some()
        || host.nbd.endpoints != server.host.nbd.endpoints;
    let connections_changed = host.nbd.connections_max != server.host.nbd.connections_max;
    let mut changed = replace_served(server, &host, vms, volumes.into_iter().chain(resized));
    server.generations.extend(generations);
    server.set_absent(absent, &host);
    server.host = host;
    sluice_io::memory_budget::set_total(server.host.nbd.memory.0);
    server.gateways.set(&server.host);
    server.clusters.keep_those_of(&server.host);
    nics::keep(server, taps);
    nics::forget(server, &changed_nics);
    changed.extend(changed_nics);
    if sockets_changed || !changed.is_empty() {
        sockets::offer(server, sockets, &changed);
    }
    if sockets_changed || !changed.is_empty() || connections_changed {
        connections::limit(server);
    }
    sockets::open(server);
    Ok(Done { changes, unapplied })
}

/// Returns the edits of all devices and uplinks, and the generations of new volumes and NICs.
fn all_edits(server: &Server, change: &Change, staged: &Staged) -> (BTreeMap<String, Edits>, Generations) {
    let (host, vms) = (&change.host, &change.vms);
    let rotational = |device: &str| {
        let before = server.devices.get(device).is_some_and(|running| running.rotational);
        (before, before || staged.joined.get(device).is_some_and(DiskSet::is_rotational))
    };
    let served = super::without(host, staged.absent.keys());
    let mut generations: Generations =
        staged.volumes.keys().map(|name| (name.clone(), VolumeGeneration::next())).collect();
    let opened = (&staged.volumes, &generations);
    let runs = |device: &str| server.devices.contains_key(device) || staged.devices.contains_key(device);
    let edits = edits((&change.old, &served), vms, opened, &staged.resized, &runs, &rotational);
    let mut edits: BTreeMap<_, _> = edits.into_iter().map(|(device, edits)| (device, Edits::Disk(edits))).collect();
    let new_nics = nics::generations(&server.host, host, vms);
    for uplink in server.host.uplinks.keys().chain(host.uplinks.keys()).filter(|uplink| runs(uplink)) {
        let of = || Edits::Uplink(nics::edits((&server.host, host), vms, uplink, &new_nics, &staged.taps));
        edits.entry(uplink.clone()).or_insert_with(of);
    }
    generations.extend(new_nics);
    (edits, generations)
}

/// Ends devices and uplinks that the file does not name any more.
fn end_removed(server: &mut Server, host: &Host) {
    let is_named = |name: &String| host.devices.contains_key(name) || host.uplinks.contains_key(name);
    let ended = server.devices.extract_if(.., |name, _| !is_named(name));
    for (name, mut running) in ended.collect::<Vec<_>>() {
        running.pool.take().into_iter().for_each(PoolExchange::leave);
        if !Thread::from(running.device).stop_within(END_MAX) {
            tracing::error!(device = name, "Device removed, but its thread does not end: not waiting for it");
        }
    }
}

/// Sends devices their edits. If a device fails before any other has changed, the change is rejected. After that it
/// cannot be undone: devices that have not confirmed their part are returned. So are new ones that have rejected it, if faults are
/// tolerated: they are out of service with their volumes.
fn apply(
    server: &Server,
    started: &BTreeMap<String, Running>,
    edits: BTreeMap<String, Edits>,
    tolerance: Tolerance,
) -> Result<Vec<ServerError>, ServerError> {
    let is_new_disk = |device: &str| started.get(device).is_some_and(|running| running.link.is_none());
    let (mut unapplied, mut has_begun) = (Vec::new(), false);
    for (device, edits) in edits.into_iter().filter(|(_, edits)| edits.len() > 0) {
        let running =
            server.devices.get(&device).or_else(|| started.get(&device)).expect("edits are for known devices");
        match running.edit(edits) {
            Ok(()) => {}
            Err(EditError::Silent(_)) => unapplied.push(ServerError::Silent(device)),
            Err(source) if tolerance == Tolerance::Anything && is_new_disk(&device) => {
                unapplied.push(ServerError::Edit { device, source });
            }
            Err(EditError::Stopped(_)) if has_begun => unapplied.push(ServerError::Stopped(device)),
            Err(source) => return Err(ServerError::Edit { device, source }),
        }
        has_begun = true;
    }
    for error in &unapplied {
        tracing::error!(%error, "A device has not applied its part of the change");
    }
    Ok(unapplied)
}

/// Rejects changes of a device that is down, except the removal of its volumes.
fn refuse_down(server: &Server, mut edits: BTreeMap<String, Edits>) -> Result<BTreeMap<String, Edits>, ServerError> {
    let is_down = |running: &Running| matches!(running.device.health(), Health::Down | Health::Ended);
    let of_down =
        edits.extract_if(.., |device, edits| edits.len() > 0 && server.devices.get(device).is_some_and(is_down));
    for (device, edits) in of_down {
        if !edits.only_removes() {
            return Err(ServerError::Down(device));
        }
    }
    Ok(edits)
}

/// Updates the table of served volumes. Returns the names of all volumes that were added, removed or changed.
fn replace_served(
    server: &mut Server,
    host: &Host,
    vms: &Changed,
    volumes: impl Iterator<Item = (ObjectId, (StoreSpec, VolumeInfo))>,
) -> BTreeSet<ObjectId> {
    let stays = |name: &ObjectId| volume_of(host, name).is_some();
    let mut changed = BTreeSet::new();
    let mut closing = Vec::new();
    server.removed.retain(|volume| !volume.has_ended());
    let mut left: Vec<ObjectId> = Vec::new();
    for vm in &vms.0 {
        let from_here = server.served.range(ObjectId::volume(vm, "")..).map(|(name, _)| name);
        left.extend(from_here.take_while(|name| name.vm() == Some(vm)).filter(|name| !stays(name)).cloned());
    }
    for name in left {
        let (store, _) = server.served.remove(&name).expect("it was there a moment ago");
        server.generations.remove(&name);
        let export = volume_of(&server.host, &name).map(|volume| &volume.export);
        let source = match &store {
            StoreSpec::File(file) => Some(LeftSource::File(Arc::downgrade(&file.source))),
            StoreSpec::Rbd(source) => Some(LeftSource::Image(Arc::downgrade(source))),
            // Nothing is in flight where its connection has ended.
            StoreSpec::Null | StoreSpec::Remote(_) => None,
        };
        if let (Some(source), Some(export)) = (source, export) {
            let socket = export.endpoint.socket().map(Path::to_owned);
            server.removed.push(RemovedVolume { socket, source });
        }
        closing.push(store);
        changed.insert(name);
    }
    for (name, volume) in volumes {
        changed.insert(name.clone());
        closing.extend(server.served.insert(name, volume).map(|(store, _)| store));
    }
    close(closing);
    changed
}

/// Whether a VM has volumes on a device.
fn is_on(vm: &Vm, device: &str) -> bool {
    vm.volumes.values().any(|volume| volume.device == device)
}

type Volumes = BTreeMap<ObjectId, (StoreSpec, VolumeInfo)>;
type Generations = BTreeMap<ObjectId, VolumeGeneration>;

/// Returns the edits of each device. `rotational` returns whether a device has had a rotating disk, and whether it has one with the disks
/// that join it.
pub(super) fn edits(
    (old, new): (&Host, &Host),
    vms: &Changed,
    opened: (&Volumes, &Generations),
    resized: &Volumes,
    runs: &dyn Fn(&str) -> bool,
    rotational: &dyn Fn(&str) -> (bool, bool),
) -> BTreeMap<String, Vec<Edit>> {
    let mut edits = BTreeMap::new();
    for device in old.devices.keys().chain(new.devices.keys()) {
        if edits.contains_key(device) || !runs(device) {
            continue;
        }
        let mut list = Vec::new();
        removed(old, new, vms, device, &mut list);
        rescheduling(old, new, device, rotational(device), &mut list);
        busy_poll(old, new, device, &mut list);
        changing(old, new, vms, device, resized, &mut list);
        coming(old, new, vms, device, opened, &mut list);
        edits.insert(device.clone(), list);
    }
    edits
}

/// Returns a VM of `host` that has volumes on this device.
fn vm_there<'a>(host: &'a Host, device: &str, vm: &str) -> Option<&'a Vm> {
    host.vms.get(vm).map(|vm| &**vm).filter(|vm| is_on(vm, device))
}

fn removed(old: &Host, new: &Host, vms: &Changed, device: &str, list: &mut Vec<Edit>) {
    for (name, vm) in vms.of(old).filter(|(_, vm)| is_on(vm, device)) {
        let Some(after) = vm_there(new, device, name) else {
            list.push(Edit::RemoveVm { vm: name.clone() });
            continue;
        };
        for (volume, before) in vm.volumes.iter().filter(|(_, volume)| volume.device == device) {
            let stays = after.volumes.get(volume).is_some_and(|now| stays(Some(before), now));
            if !stays {
                list.push(Edit::RemoveVolume { vm: name.clone(), volume: volume.clone() });
            }
        }
    }
}

/// The scheduler is replaced before policies change, because the new one may enforce fields that the old one did not.
fn rescheduling(
    old: &Host,
    new: &Host,
    device: &str,
    (was_rotational, is_rotational): (bool, bool),
    list: &mut Vec<Edit>,
) {
    let (Some(before), Some(after)) = (old.devices.get(device), new.devices.get(device)) else { return };
    let of = |device: &Device, rotational: bool| {
        (device.scheduler.name, device.params.clone(), device.merging, device.info(rotational).rotational)
    };
    if of(before, was_rotational) != of(after, is_rotational) {
        let scheduler = translate::scheduler(after, is_rotational);
        list.push(Edit::SetScheduler { scheduler, merging: after.merging });
    }
}

/// A new device polls only when work is likely to arrive soon.
fn busy_poll(old: &Host, new: &Host, device: &str, list: &mut Vec<Edit>) {
    let of = |host: &Host| host.devices.get(device).is_some_and(|device| device.busy_poll);
    if new.devices.contains_key(device) && of(old) != of(new) {
        list.push(Edit::SetBusyPoll(of(new)));
    }
}

fn changing(old: &Host, new: &Host, vms: &Changed, device: &str, resized: &Volumes, list: &mut Vec<Edit>) {
    let (Some(before), Some(after)) = (old.devices.get(device), new.devices.get(device)) else { return };
    let of = |device: &Device| (device.depth, device.gate_settings().request_bytes, device.aim());
    if of(before) != of(after) {
        let (depth, request_bytes, aim) = of(after);
        list.push(Edit::SetDevice { depth, request_bytes, aim });
    }
    let window = translate::window(after);
    // The window belongs to the device and applies to every VM on it.
    let all = window != translate::window(before);
    let of_changed = vms.of(new).filter(|_| !all);
    let of_all = new.vms.iter().filter(|_| all).map(|(name, vm)| (name, &**vm));
    for (name, vm) in of_changed.chain(of_all).filter(|(_, vm)| is_on(vm, device)) {
        let Some(known) = vm_there(old, device, name) else { continue };
        let staying =
            vm.volumes.iter().filter(|(volume, now)| now.device == device && stays(known.volume(volume), now));
        let volumes: Vec<_> = staying
            .filter(|(volume, now)| known.volumes[*volume].policy != now.policy)
            .map(|(volume, now)| (volume.clone(), now.policy))
            .collect();
        if vm.policy != known.policy || all || !volumes.is_empty() {
            list.push(Edit::SetPolicies { vm: name.clone(), policy: vm.policy, window, volumes });
        }
        if vm.cpu_limit != known.cpu_limit {
            list.push(Edit::SetCpu { vm: name.clone(), limit: vm.cpu_limit });
        }
        for volume in vm.volumes.values().filter(|volume| volume.device == device) {
            if let Some((store, info)) = resized.get(&ObjectId::volume(name, &volume.name)).cloned() {
                list.push(Edit::ResizeVolume { vm: name.clone(), volume: volume.name.clone(), store, info });
            }
        }
    }
}

fn coming(
    old: &Host,
    new: &Host,
    vms: &Changed,
    device: &str,
    (opened, generations): (&Volumes, &Generations),
    list: &mut Vec<Edit>,
) {
    for (name, vm) in vms.of(new).filter(|(_, vm)| is_on(vm, device)) {
        if vm_there(old, device, name).is_none() {
            let window = translate::window(&new.devices[device]);
            list.push(Edit::AddVm { vm: name.clone(), policy: vm.policy, window });
            list.extend(vm.cpu_limit.map(|limit| Edit::SetCpu { vm: name.clone(), limit: Some(limit) }));
        }
        for (volume, spec) in vm.volumes.iter().filter(|(_, volume)| volume.device == device) {
            let place = ObjectId::volume(name, volume);
            if let Some((store, info)) = opened.get(&place).cloned() {
                let (generation, policy) = (generations[&place], spec.policy);
                let volume = VolumeSpec { name: volume.clone(), generation, policy, store, info };
                list.push(Edit::AddVolume { vm: name.clone(), volume: Box::new(volume) });
            }
        }
    }
}
