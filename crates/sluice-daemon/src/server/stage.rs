//! Stages a change: everything that may fail, next to what runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Host, Volume};
use sluice_io::device::{Device, DeviceSpec, FileSpec, StoreSpec};
use sluice_io::limits::has_real_time_priority;
use sluice_io::nbd::listener::NbdListener;
use sluice_io::reactor::priority::{self, Priority};
use sluice_io::source::{DiskSet, SourceError};
use sluice_io::vhost_user::listener::VhostListener;
use sluice_io::volume::VolumeInfo;

use super::commit::name_of;
use super::opening::{Needs, Opened};
use super::resizing::Resized;
use super::tolerance::Tolerance;
use super::{Changed, Found, Missing, Plane, Reason, Running, Server, ServerError, missing, nics, pair, translate};

/// A staged change. If the change is rejected it must be dropped by [`super::commit::close`], because dropping may
/// hang with a disk or a file system.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) devices: BTreeMap<String, Running>,
    /// Volumes that are new, or lie somewhere else now.
    pub(super) volumes: BTreeMap<ObjectId, (StoreSpec, VolumeInfo)>,
    /// What is out of service.
    pub(super) missing: Missing,
    /// Volumes that stay, with another size.
    pub(super) resized: BTreeMap<ObjectId, (StoreSpec, VolumeInfo)>,
    /// Their locks and extended files; dropping them undoes this.
    pub(super) grown: Vec<Resized>,
    /// New sockets, by name.
    pub(super) listeners: BTreeMap<String, NbdListener>,
    pub(super) guests: BTreeMap<String, VhostListener>,
    pub(super) nics: nics::NewNics,
}

/// Stages `host` with the results in `found`. `old` is what is served. On an error, unused results stay in `found` or
/// `staged`.
pub(super) fn stage(
    server: &Server,
    (old, host, changed): (&Host, &Host, &Changed),
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    start_devices(server, host, needs, found, staged)?;
    nics::stage(server, host, (changed, needs.tolerance), staged)?;
    resize_volumes(server, (old, host), changed, found, staged)?;
    found.refuse_failed_sockets(needs)?;
    let failed_sockets = found.failed_sockets();
    open_volumes(server, (old, host, changed), (needs, &failed_sockets), found, staged)?;
    missing::leave_out_sockets(server, (host, changed), needs, &failed_sockets, staged);
    Ok(())
}

impl Staged {
    /// Whether nothing comes into service, and nothing changes its size.
    pub(super) fn is_void(&self) -> bool {
        let Staged { devices, volumes, resized, nics, .. } = self;
        devices.is_empty() && volumes.is_empty() && resized.is_empty() && nics.is_void()
    }
}

/// Rejects changes of settings that cannot change at run time.
pub(super) fn check_devices(server: &Server, host: &Host) -> Result<(), ServerError> {
    for (name, new) in &host.uplinks {
        let old = server.host.uplinks.get(name);
        if let Some(what) = old.and_then(|old| nics::fixed_difference(old, new)) {
            return Err(ServerError::UplinkChanged { uplink: name.clone(), what });
        }
    }
    for (name, new) in &host.devices {
        if new.busy_poll && (has_real_time_priority() || priority::of_threads() == Priority::RealTime) {
            return Err(ServerError::BusyPollAtRealTime(name.clone()));
        }
        let Some(old) = server.host.devices.get(name).filter(|_| server.devices.contains_key(name)) else { continue };
        if let Some(what) = translate::fixed_difference(old, new) {
            return Err(ServerError::DeviceChanged { device: name.clone(), what });
        }
    }
    Ok(())
}

fn start_devices(
    server: &Server,
    host: &Host,
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    let stays =
        |name: &&ObjectId| matches!(name, ObjectId::Device(name) if !needs.devices.iter().any(|new| new == name));
    staged.missing.extend(needs.staying.iter().filter(stays).map(|name| (name.clone(), server.missing[name].clone())));
    for name in &needs.devices {
        match start_device(server, host, name, found, &staged.devices) {
            Ok(running) => drop(staged.devices.insert(name.clone(), running)),
            Err(error) if needs.tolerance_of(name).covers(&error) && error.concerns_one() => {
                staged.missing.insert(ObjectId::Device(name.clone()), Reason::of(&error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn start_device(
    server: &Server,
    host: &Host,
    name: &String,
    found: &mut Found,
    started: &BTreeMap<String, Running>,
) -> Result<Running, ServerError> {
    let spec = &host.devices[name];
    let disks = found.take_disk(name).transpose();
    let disks = disks.map_err(|source| ServerError::Disk { device: name.clone(), source })?;
    if let Some(disks) = &disks {
        let staying = server.devices.iter().filter(|(name, _)| host.devices.contains_key(*name));
        for (other, running) in staying.chain(started) {
            if running.disks.as_ref().is_some_and(|known| known.overlaps(disks)) {
                let (first, second) = (other.clone(), name.clone());
                return Err(ServerError::OneDisk { first, second, disks: disks.to_string() });
            }
        }
    }
    let rotational = disks.as_ref().is_some_and(DiskSet::is_rotational);
    let log = match found.take_log(name) {
        Some((path, Err(source))) => return Err(ServerError::Log { device: name.clone(), path, source }),
        log => log.and_then(|(_, log)| log.ok()),
    };
    let down = Arc::clone(&server.down);
    let went_down = Box::new(move || down.notify_one());
    let model = server.models.get(name).cloned();
    let spec = DeviceSpec { model, ..translate::device(spec, rotational, log) };
    let device = Device::start_watched(spec, went_down);
    let device = device.map_err(|source| ServerError::Device { device: name.clone(), source })?;
    Ok(Running::new(Plane::Disk(device), disks))
}

/// Whether a volume has the same source as before, possibly with another size.
pub(super) fn stays(old: Option<&Volume>, new: &Volume) -> bool {
    old.is_some_and(|old| differing_keys(old, new).is_empty())
}

/// Returns the keys in which two volumes differ and that cannot change while a volume is served.
pub(super) fn differing_keys(old: &Volume, new: &Volume) -> Vec<&'static str> {
    let Volume { device, source, offset, read_only, buffered, block_size, unmaps, serial, export, .. } = old;
    let differs = [
        ("device", *device != new.device),
        ("source", *source != new.source),
        ("offset", *offset != new.offset),
        ("read_only", *read_only != new.read_only),
        ("cache", *buffered != new.buffered),
        ("block_size", *block_size != new.block_size),
        ("discard", *unmaps != new.unmaps),
        ("serial", *serial != new.serial),
        ("export.name", export.name != new.export.name),
        ("export.type", export.protocol != new.export.protocol),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// Resizes volumes that stay and have another size in the file.
fn resize_volumes(
    server: &Server,
    (old, host): (&Host, &Host),
    changed: &Changed,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    for (vm, spec) in changed.of(host) {
        for (name, new) in &spec.volumes {
            let before = old.vms.get(vm).and_then(|vm| vm.volumes.get(name));
            if before.is_some_and(|before| before.size != new.size && stays(Some(before), new)) {
                let key = ObjectId::volume(vm, name);
                let was_made = found.take_resized(&key).transpose();
                let was_made =
                    was_made.map_err(|source| ServerError::Volume { vm: vm.clone(), volume: name.clone(), source })?;
                let at = staged.grown.len();
                staged.grown.extend(was_made);
                let volume = resize(&key, &server.served[&key].1, new, staged.grown.get(at))?;
                staged.resized.insert(key, volume);
            }
        }
    }
    Ok(())
}

fn resize(
    name: &ObjectId,
    info: &VolumeInfo,
    new: &Volume,
    was_made: Option<&Resized>,
) -> Result<(StoreSpec, VolumeInfo), ServerError> {
    let (vm, volume) = pair(name);
    let (store, size_bytes) = match was_made {
        None => (StoreSpec::Null, new.size.unwrap_or(info.size_bytes)),
        Some(resized) => {
            let source = resized.source();
            let size_bytes = source.size_bytes();
            (StoreSpec::File(FileSpec { source, extents: resized.extents.clone() }), size_bytes)
        }
    };
    if size_bytes < info.size_bytes {
        let (from, to) = (info.size_bytes, size_bytes);
        return Err(ServerError::Shrunk { vm, volume, from, to });
    }
    let info = VolumeInfo { size_bytes, ..info.clone() };
    info.validate().map_err(|source| ServerError::VolumeInfo { vm, volume, source })?;
    Ok((store, info))
}

/// Opens volumes that are new, or have another source. Those whose fault is tolerated are put out of service.
fn open_volumes(
    server: &Server,
    (old, host, changed): (&Host, &Host, &Changed),
    (needs, failed_sockets): (&Needs, &BTreeMap<String, Reason>),
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    for (vm, spec) in changed.of(host) {
        let before = old.vms.get(vm);
        for (name, volume) in &spec.volumes {
            if stays(before.and_then(|vm| vm.volume(name)), volume) {
                continue;
            }
            let key = ObjectId::volume(vm, name);
            if needs.staying.contains(&key) {
                staged.missing.insert(key.clone(), server.missing[&key].clone());
                continue;
            }
            let tolerance = needs.tolerance_of_volume(server, &key);
            let device_out = staged.missing.get(&ObjectId::Device(volume.device.clone()));
            let without = device_out.or_else(|| failed_sockets.get(&name_of(&volume.export.endpoint)));
            // Whose its file is counts more: it decides about other volumes.
            let is_claimed = matches!(found.volume(&key), Some(Err(SourceError::Claimed { .. })));
            if let Some(reason) = without.filter(|_| !is_claimed && tolerance != Tolerance::Never) {
                staged.missing.insert(key, reason.clone());
                continue;
            }
            match open_volume(server, host, (&key, volume), found, &staged.devices) {
                Ok(opened) => drop(staged.volumes.insert(key, opened)),
                Err(error) if tolerance.covers(&error) => drop(staged.missing.insert(key, Reason::of(&error))),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Returns a volume with what was opened for it. On an error, that stays in `found`.
fn open_volume(
    server: &Server,
    host: &Host,
    (key, volume): (&ObjectId, &Volume),
    found: &mut Found,
    started: &BTreeMap<String, Running>,
) -> Result<(StoreSpec, VolumeInfo), ServerError> {
    let (vm, name) = pair(key);
    let running = started.get(&volume.device).or_else(|| server.devices.get(&volume.device));
    let running = running.ok_or_else(|| ServerError::OutOfService(volume.device.clone()))?;
    if let Some(Ok(opened)) = found.volume(key) {
        check_disks(&vm, volume, running, opened)?;
    }
    let rotational = host.devices[&volume.device].info(running.rotational).rotational;
    let source = found.volume(key).and_then(|opened| Some(&*opened.as_ref().ok()?.source));
    let info = translate::volume_info(volume, source, rotational);
    let volume = name;
    match found.volume(key) {
        None | Some(Ok(_)) => {
            info.validate().map_err(|source| ServerError::VolumeInfo { vm, volume, source })?;
            let opened = found.take_volume(key).and_then(Result::ok);
            let file = |Opened { source, extents, .. }| StoreSpec::File(FileSpec { source: Arc::new(source), extents });
            Ok((opened.map_or(StoreSpec::Null, file), info))
        }
        Some(Err(_)) => {
            let error = found.take_volume(key).and_then(Result::err).expect("it was there a moment ago");
            Err(ServerError::Volume { vm, volume, source: error })
        }
    }
}

fn check_disks(vm: &str, volume: &Volume, running: &Running, opened: &Opened) -> Result<(), ServerError> {
    let disks = &opened.disks;
    let expected = running.disks.as_ref().expect("a volume with a source lies on a device with disks");
    if !disks.is_subset_of(expected) {
        return Err(other_disk(vm, volume, disks, expected));
    }
    Ok(())
}

pub(super) fn other_disk(vm: &str, volume: &Volume, found: &DiskSet, expected: &DiskSet) -> ServerError {
    ServerError::OtherDisk {
        vm: vm.to_owned(),
        volume: volume.name.clone(),
        device: volume.device.clone(),
        found: found.to_string(),
        expected: expected.to_string(),
    }
}
