//! Stages a change: everything that may fail, next to what runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Host, Volume};
use sluice_io::device::{Device, DeviceSpec, StoreSpec};
use sluice_io::limits::has_real_time_priority;
use sluice_io::reactor::priority::{self, Priority};
use sluice_io::source::DiskSet;
use sluice_io::volume::VolumeInfo;

use super::change::Change;
use super::closing::close;
use super::disk::{Disk, Disks};
use super::kinds::ResourceKey;
use super::listening::Listening;
use super::log::Log;
use super::objects::{name_of, pair, stays, volume_of};
use super::resizing::{Resized, Resizing};
use super::socket::Socket;
use super::tolerance::Tolerance;
use super::volume::{Opened, Opening};
use super::{Absence, Found, Needs, Plane, Running, Server, ServerError, nics, out_of_service, translate};
use crate::failure::chain;

/// A staged change. If the change is rejected it must be dropped by [`super::closing::close`], because dropping may
/// hang with a disk or a file system.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) devices: BTreeMap<String, Running>,
    /// Disks that join devices that run.
    pub(super) joined: BTreeMap<String, DiskSet>,
    /// Volumes that are new, or lie somewhere else now.
    pub(super) volumes: BTreeMap<ObjectId, (StoreSpec, VolumeInfo)>,
    /// What is out of service.
    pub(super) absent: BTreeMap<ObjectId, Absence>,
    /// Volumes that stay, with another size.
    pub(super) resized: BTreeMap<ObjectId, (StoreSpec, VolumeInfo)>,
    /// Their locks and extended files; dropping them undoes this.
    pub(super) grown: Vec<Resized>,
    /// New sockets, by name.
    pub(super) sockets: BTreeMap<String, Listening>,
    /// Open TAPs of new NICs.
    pub(super) taps: nics::Taps,
}

/// Stages a change with the results in `found`. On an error, unused results stay in `found` or `staged`.
pub(super) fn stage(
    server: &Server,
    change: &Change,
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    start_devices(server, change, found, staged)?;
    grow_devices(server, change, needs, found, staged)?;
    nics::stage(server, change, (&mut staged.devices, &mut staged.taps), &mut staged.absent)?;
    resize_volumes(server, change, found, staged)?;
    let failed_sockets = failed_sockets(found);
    open_volumes(server, change, &failed_sockets, found, staged)?;
    needs.refuse_failed(found)?;
    out_of_service::leave_out_sockets(server, change, &failed_sockets, &mut staged.absent);
    Ok(())
}

/// Returns the sockets that could not be made, with their errors.
fn failed_sockets(found: &Found) -> BTreeMap<String, Absence> {
    let failed = found.errors::<Socket>();
    failed.map(|(socket, error)| (socket.endpoint.to_string(), Absence::of(error))).collect()
}

impl Staged {
    /// Puts new volumes out of service, those for which there is a reason.
    pub(super) fn lose(&mut self, host: &Host, reason: impl Fn(&Volume) -> Option<Absence>) {
        let reason = |name: &ObjectId| reason(volume_of(host, name)?);
        let lost = self.volumes.extract_if(.., |name, _| reason(name).is_some());
        let (lost, stores): (Vec<_>, Vec<_>) = lost.unzip();
        self.absent.extend(lost.into_iter().filter_map(|name| Some((name.clone(), reason(&name)?))));
        close(stores);
    }

    /// Notes that a device serves without some of its disks.
    ///
    /// # Errors
    /// That is not tolerated.
    fn note_lack(&mut self, device: &str, disks: &Disks, tolerance: Tolerance) -> Result<(), ServerError> {
        match disks.lack(device) {
            Some(error) if !tolerance.covers(&error) => Err(error),
            lack => {
                let lack = lack.map(|error| (ObjectId::Device(device.to_owned()), Absence::of(&error)));
                self.absent.extend(lack);
                Ok(())
            }
        }
    }

    /// Whether nothing comes into service, and nothing changes its size.
    pub(super) fn is_void(&self) -> bool {
        let Staged { devices, joined, volumes, resized, taps, .. } = self;
        devices.is_empty() && joined.is_empty() && volumes.is_empty() && resized.is_empty() && taps.is_empty()
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

fn start_devices(server: &Server, change: &Change, found: &mut Found, staged: &mut Staged) -> Result<(), ServerError> {
    let is_started = |device: &String| change.devices.iter().any(|(name, _)| name == device);
    let stays = |name: &&ObjectId| matches!(name, ObjectId::Device(device) if !is_started(device));
    let staying = change.staying.iter().filter(stays);
    staged.absent.extend(staying.filter_map(|name| Some((name.clone(), server.absent.get(name)?.clone()))));
    for (name, tolerance) in &change.devices {
        match start_device(server, change, (name, *tolerance), found, staged) {
            Ok(running) => drop(staged.devices.insert(name.clone(), running)),
            Err(error) if tolerance.covers(&error) && error.concerns_one() => {
                staged.absent.insert(ObjectId::Device(name.clone()), Absence::of(&error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn start_device(
    server: &Server,
    change: &Change,
    (name, tolerance): (&String, Tolerance),
    found: &mut Found,
    staged: &mut Staged,
) -> Result<Running, ServerError> {
    let host = &change.host;
    let disks = found.take::<Disk>(&ResourceKey::Disk(name.clone()))?;
    if let Some(disks) = &disks {
        refuse_shared((server, host, staged), name, &disks.found)?;
        staged.note_lack(name, disks, tolerance)?;
    }
    let disks = disks.map(|disks| disks.found);
    let rotational = disks.as_ref().is_some_and(DiskSet::is_rotational);
    let log = found.take::<Log>(&ResourceKey::Log(name.clone()))?;
    let down = Arc::clone(&server.down);
    let went_down = Box::new(move || down.notify_one());
    let model = server.models.get(name).cloned();
    let spec = DeviceSpec { model, ..translate::device(&host.devices[name], rotational, log) };
    let device = Device::start_watched(spec, went_down);
    let device = device.map_err(|source| ServerError::Device { device: name.clone(), source })?;
    let mut running = Running::new(Plane::Disk(device), disks);
    running.meet(host, &host.devices[name], false);
    Ok(running)
}

/// Has disks join devices that run: those that a reload names, and those that were lacking.
fn grow_devices(
    server: &Server,
    change: &Change,
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    for (key, tolerance, need) in needs.each::<Disk>() {
        let (name, Some(running)) = (&need.device, server.devices.get(&need.device)) else { continue };
        let grown = found.take::<Disk>(key).and_then(|disks| {
            let Some(disks) = disks else { return Ok(None) };
            refuse_shared((server, &change.host, staged), name, &disks.found)?;
            staged.absent.remove(&ObjectId::Device(name.clone()));
            staged.note_lack(name, &disks, tolerance)?;
            Ok(Some(disks.found).filter(|disks| !is_on(disks, running)))
        });
        match grown {
            Ok(disks) => staged.joined.extend(disks.map(|disks| (name.clone(), disks))),
            Err(error) if tolerance.covers(&error) => {
                staged.absent.insert(ObjectId::Device(name.clone()), Absence::LacksDisks(chain(&error)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a device has these disks already.
fn is_on(disks: &DiskSet, running: &Running) -> bool {
    running.disks.as_ref().is_some_and(|known| known.has_all(disks))
}

/// Refuses disks of which another device has one.
fn refuse_shared(
    (server, host, staged): (&Server, &Host, &Staged),
    name: &str,
    disks: &DiskSet,
) -> Result<(), ServerError> {
    let staying = server.devices.iter().filter(|(other, _)| host.devices.contains_key(*other));
    let known = staying.chain(&staged.devices).filter_map(|(other, running)| Some((other, running.disks.as_ref()?)));
    let mut others = known.chain(&staged.joined).filter(|(other, _)| other.as_str() != name);
    match others.find(|(_, known)| known.overlaps(disks)) {
        None => Ok(()),
        Some((first, _)) => {
            let (first, second) = (first.clone(), name.to_owned());
            Err(ServerError::OneDisk { first, second, disks: disks.to_string() })
        }
    }
}

/// Resizes volumes that stay and have another size in the file.
fn resize_volumes(server: &Server, change: &Change, found: &mut Found, staged: &mut Staged) -> Result<(), ServerError> {
    for (name, before, new) in change.volumes() {
        if before.is_some_and(|before| before.size != new.size && stays(Some(before), new)) {
            let resized = found.take::<Resizing>(&ResourceKey::Resizing(name.clone()))?;
            let at = staged.grown.len();
            staged.grown.extend(resized);
            let volume = resize(&name, &server.served[&name].1, new, staged.grown.get(at))?;
            staged.resized.insert(name, volume);
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
            let size_bytes = resized.store().facts().map_or(info.size_bytes, |facts| facts.size_bytes());
            (resized.store().clone(), size_bytes)
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
    change: &Change,
    failed_sockets: &BTreeMap<String, Absence>,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    for (name, _, volume) in change.volumes().filter(|(_, before, volume)| !stays(*before, volume)) {
        if change.staying.contains(&name) {
            staged.absent.extend(server.absent.get(&name).cloned().map(|absence| (name, absence)));
            continue;
        }
        let (key, tolerance) = (ResourceKey::Volume(name.clone()), change.tolerance_of(server, &name));
        let device_out = staged.absent.get(&ObjectId::Device(volume.device.clone())).filter(|out| !out.is_partial());
        let without = device_out.or_else(|| failed_sockets.get(&name_of(&volume.export.endpoint)));
        // Whose its file is counts more: it decides about other volumes.
        let is_claimed = found.error(&key).is_some_and(ServerError::is_claimed);
        if let Some(reason) = without.filter(|_| !is_claimed && tolerance != Tolerance::Never) {
            staged.absent.insert(name, reason.clone());
            continue;
        }
        match open_volume(server, &change.host, (&name, volume), found, staged) {
            Ok(opened) => drop(staged.volumes.insert(name, opened)),
            Err(error) if tolerance.covers(&error) => drop(staged.absent.insert(name, Absence::of(&error))),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns a volume with what was opened for it. On an error, that stays in `found`.
fn open_volume(
    server: &Server,
    host: &Host,
    (object, spec): (&ObjectId, &Volume),
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(StoreSpec, VolumeInfo), ServerError> {
    let key = ResourceKey::Volume(object.clone());
    let running = staged.devices.get(&spec.device).or_else(|| server.devices.get(&spec.device));
    let running = running.ok_or_else(|| ServerError::OutOfService(spec.device.clone()))?;
    if found.error(&key).is_some() {
        found.refuse(&key)?;
    }
    let (opened, mut joins) = (found.opened::<Opening>(&key), None);
    // A device that is a server has no disks.
    if let (Some(opened), Some(expected)) = (opened, &running.disks) {
        match opened.is_admitted {
            Some(true) if is_on(&opened.disks, running) => {}
            Some(true) => {
                refuse_shared((server, host, staged), &spec.device, &opened.disks)?;
                joins = Some(opened.disks.clone());
            }
            Some(false) => return Err(other_disk(object, spec, &opened.disks, expected)),
            None => check_disks(object, spec, &opened.disks, expected)?,
        }
    }
    let is_rotational = running.rotational || joins.as_ref().is_some_and(DiskSet::is_rotational);
    let rotational = host.devices[&spec.device].info(is_rotational).rotational;
    let info = volume_info(object, spec, opened, rotational)?;
    if let Some(disks) = joins {
        staged.joined.entry(spec.device.clone()).or_default().add(disks);
    }
    Ok((found.take::<Opening>(&key)?.map_or(StoreSpec::Null, |opened| opened.store), info))
}

/// Returns the properties of a volume, with what was opened for it.
pub(super) fn volume_info(
    name: &ObjectId,
    spec: &Volume,
    opened: Option<&Opened>,
    rotational: bool,
) -> Result<VolumeInfo, ServerError> {
    let info = translate::volume_info(spec, opened.and_then(|opened| opened.store.facts()), rotational);
    let (vm, volume) = pair(name);
    info.validate().map_err(|source| ServerError::VolumeInfo { vm, volume, source })?;
    Ok(info)
}

/// Checks that a volume is on the disks of its device.
pub(super) fn check_disks(
    name: &ObjectId,
    spec: &Volume,
    found: &DiskSet,
    expected: &DiskSet,
) -> Result<(), ServerError> {
    if found.is_subset_of(expected) { Ok(()) } else { Err(other_disk(name, spec, found, expected)) }
}

fn other_disk(name: &ObjectId, spec: &Volume, found: &DiskSet, expected: &DiskSet) -> ServerError {
    let ((vm, volume), device) = (pair(name), spec.device.clone());
    ServerError::OtherDisk { vm, volume, device, found: found.to_string(), expected: expected.to_string() }
}
