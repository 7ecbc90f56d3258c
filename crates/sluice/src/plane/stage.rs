//! Everything that may fail, done beside what runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::{Endpoint, Host, Protocol, Volume};
use sluice_io::device::{Device, Store};
use sluice_io::listener::{Catalogue, ListenError, Listener};
use sluice_io::nbd::export::Export;
use sluice_io::source::{DiskSet, Source, SourceSpec};
use sluice_io::vhost::listener::VhostListener;

use super::{Leaving, Plane, PlaneError, Running, VolumeName, translate};

/// How long a start waits for a volume whose lock a dead daemon's last requests still hold. A reload does not wait: who
/// holds a lock then is alive, and clients that shake hands must not wait for it.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// What is ready to be put into force.
pub(super) struct Staged {
    pub(super) devices: BTreeMap<String, Running>,
    /// Volumes that are new, or lie somewhere else now.
    pub(super) volumes: BTreeMap<VolumeName, (Store, Export)>,
    /// Volumes that stay, with another size.
    pub(super) resized: BTreeMap<VolumeName, (Store, Export)>,
    pub(super) grown: Grown,
    pub(super) listeners: Vec<Listener>,
    pub(super) guests: Vec<VhostListener>,
}

/// What volumes that stay have locked for their new size; given back when it is dropped.
#[derive(Default)]
pub(super) struct Grown {
    /// As they are, and as they are to be.
    sources: Vec<(Arc<Source>, Arc<Source>)>,
}

impl Grown {
    /// They get their new size.
    pub(super) fn keep(mut self) {
        self.sources.clear();
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        for (is, was_to_be) in &self.sources {
            if let Err(error) = is.give_back(was_to_be) {
                tracing::error!(error = crate::failure::chain(&error), "Bytes behind a volume stay locked");
            }
        }
    }
}

pub(super) fn stage(plane: &Plane, host: &Host) -> Result<Staged, PlaneError> {
    check_devices(plane, host)?;
    let devices = start_devices(plane, host)?;
    let mut grown = Grown::default();
    let resized = resize_volumes(plane, host, &mut grown)?;
    let volumes = open_volumes(plane, host, &devices)?;
    let listeners = listen(plane, host)?;
    let guests = listen_to_guests(plane, host)?;
    Ok(Staged { devices, volumes, resized, grown, listeners, guests })
}

/// What runs may not change its nature.
fn check_devices(plane: &Plane, host: &Host) -> Result<(), PlaneError> {
    for (name, new) in &host.devices {
        let Some(old) = plane.host.devices.get(name) else { continue };
        if let Some(what) = translate::fixed_difference(old, new) {
            return Err(PlaneError::DeviceChanged { device: name.clone(), what });
        }
    }
    Ok(())
}

fn start_devices(plane: &Plane, host: &Host) -> Result<BTreeMap<String, Running>, PlaneError> {
    let mut started: BTreeMap<String, Running> = BTreeMap::new();
    for (name, spec) in &host.devices {
        if plane.devices.contains_key(name) {
            continue;
        }
        let path = spec.path.as_ref().filter(|_| translate::has_disk(spec));
        let disks = path.map(|path| DiskSet::of_path(path)).transpose();
        let disks = disks.map_err(|source| PlaneError::Disk { device: name.clone(), source })?;
        if let Some(disks) = &disks {
            let staying = plane.devices.iter().filter(|(name, _)| host.devices.contains_key(*name));
            for (other, running) in staying.chain(&started) {
                if running.disks.as_ref().is_some_and(|known| known.overlaps(disks)) {
                    let (first, second) = (other.clone(), name.clone());
                    return Err(PlaneError::OneDisk { first, second, disks: disks.to_string() });
                }
            }
        }
        let rotational = disks.as_ref().is_some_and(DiskSet::is_rotational);
        let device = Device::start(translate::device(spec, rotational))
            .map_err(|source| PlaneError::Device { device: name.clone(), source })?;
        started.insert(name.clone(), Running { device, disks, rotational });
    }
    Ok(started)
}

/// Whether a volume is where it was, if not as large.
pub(super) fn stays(old: Option<&Volume>, new: &Volume) -> bool {
    let place = |volume: &Volume| {
        let Volume { device, source, offset, read_only, buffered, export, .. } = volume.clone();
        (device, source, offset, read_only, buffered, export.name, export.protocol)
    };
    old.is_some_and(|old| place(old) == place(new))
}

/// Volumes that stay and have another size in the file.
fn resize_volumes(
    plane: &Plane,
    host: &Host,
    grown: &mut Grown,
) -> Result<BTreeMap<VolumeName, (Store, Export)>, PlaneError> {
    let mut resized = BTreeMap::new();
    for (vm, spec) in &host.vms {
        for (name, new) in &spec.volumes {
            let old = plane.host.vms.get(vm).and_then(|vm| vm.volumes.get(name));
            if old.is_some_and(|old| stays(Some(old), new) && old.size != new.size) {
                let key = (vm.clone(), name.clone());
                let volume = resize(&key, &plane.served[&key], new, grown)?;
                resized.insert(key, volume);
            }
        }
    }
    Ok(resized)
}

fn resize(
    name: &VolumeName,
    served: &(Store, Export),
    new: &Volume,
    grown: &mut Grown,
) -> Result<(Store, Export), PlaneError> {
    let (vm, volume) = name.clone();
    let (store, export) = served;
    let store = match store {
        Store::Null => Store::Null,
        Store::File { source, .. } => {
            let failed = |source| PlaneError::Volume { vm: vm.clone(), volume: volume.clone(), source };
            let resized = Arc::new(source.resized(new.size).map_err(failed)?);
            grown.sources.push((Arc::clone(source), Arc::clone(&resized)));
            let extents = resized.extents().ok();
            Store::File { source: resized, extents }
        }
    };
    let size_bytes = match &store {
        Store::Null => new.size.unwrap_or(export.size_bytes),
        Store::File { source, .. } => source.size_bytes(),
    };
    if size_bytes < export.size_bytes {
        let (from, to) = (export.size_bytes, size_bytes);
        return Err(PlaneError::Shrunk { vm, volume, from, to });
    }
    let export = Export { size_bytes, ..export.clone() };
    export.validate().map_err(|source| PlaneError::Export { vm, volume, source })?;
    Ok((store, export))
}

fn open_volumes(
    plane: &Plane,
    host: &Host,
    started: &BTreeMap<String, Running>,
) -> Result<BTreeMap<VolumeName, (Store, Export)>, PlaneError> {
    let mut opened = BTreeMap::new();
    for (vm, spec) in &host.vms {
        let old = plane.host.vms.get(vm);
        for (name, volume) in &spec.volumes {
            if stays(old.and_then(|vm| vm.volumes.get(name)), volume) {
                continue;
            }
            let running = started.get(&volume.device).or_else(|| plane.devices.get(&volume.device));
            let running = running.expect("a checked file names devices that it has");
            refuse_served(plane, vm, volume)?;
            refuse_beside_leaving(plane, vm, volume)?;
            let wait = if plane.devices.is_empty() { LOCK_WAIT } else { Duration::ZERO };
            // A volume that takes its own place is waited for where its VMM comes back.
            let replaces = plane.served.contains_key(&(vm.clone(), name.clone()));
            let store = open(vm, volume, running, wait, replaces)?;
            let rotational = host.devices[&volume.device].facts(running.rotational).rotational;
            let export = translate::export(vm, volume, &store, rotational);
            export.validate().map_err(|source| PlaneError::Export { vm: vm.clone(), volume: name.clone(), source })?;
            opened.insert((vm.clone(), name.clone()), (store, export));
        }
    }
    Ok(opened)
}

/// A VMM that finds a volume at its socket again sends it what it has not heard the end of. What the volume that was there
/// before reads for such a request must not land in the guest's memory after that.
fn refuse_beside_leaving(plane: &Plane, vm: &str, volume: &Volume) -> Result<(), PlaneError> {
    let socket = volume.export.endpoint.socket();
    let at_it = |left: &Leaving| left.socket.as_deref() == socket && !left.is_over();
    match socket.is_some() && plane.leaving.iter().any(at_it) {
        true => Err(PlaneError::Leaving { vm: vm.to_owned(), volume: volume.name.clone() }),
        false => Ok(()),
    }
}

/// Our own lock on these bytes is held until the volume that has them now has gone, which is after the new one is opened.
fn refuse_served(plane: &Plane, vm: &str, volume: &Volume) -> Result<(), PlaneError> {
    let end = |volume: &Volume| volume.size.map_or(u64::MAX, |size| volume.offset.saturating_add(size));
    for (old_vm, spec) in &plane.host.vms {
        for old in spec.volumes.values() {
            let same = old.source.is_some() && old.source == volume.source;
            let overlaps = old.offset < end(volume) && volume.offset < end(old);
            if same && overlaps && !(old.read_only && volume.read_only) {
                let (vm, volume) = (vm.to_owned(), volume.name.clone());
                return Err(PlaneError::VolumeChanged { vm, volume, old: format!("{old_vm}/{}", old.name) });
            }
        }
    }
    Ok(())
}

fn open(vm: &str, volume: &Volume, running: &Running, wait: Duration, replaces: bool) -> Result<Store, PlaneError> {
    let (Some(path), Some(disks)) = (&volume.source, &running.disks) else { return Ok(Store::Null) };
    let failed = |source| PlaneError::Volume { vm: vm.to_owned(), volume: volume.name.clone(), source };
    let spec = SourceSpec {
        path: path.clone(),
        offset: volume.offset,
        length: volume.size,
        read_only: volume.read_only,
        buffered: volume.buffered,
    };
    let source = Source::open_within(&spec, wait).map_err(failed)?;
    let mut waited = source.waited();
    if volume.read_only {
        let left = (!replaces).then(|| wait.saturating_sub(waited));
        waited += source.read_as(&format!("{vm}/{}", volume.name), left).map_err(failed)?;
    }
    if !waited.is_zero() {
        let waited_ms = waited.as_millis();
        tracing::info!(vm, volume = volume.name, waited_ms, "Waited for the last requests of another daemon");
    }
    let found = source.disks().map_err(failed)?;
    if !found.is_subset_of(disks) {
        return Err(PlaneError::OtherDisk {
            vm: vm.to_owned(),
            volume: volume.name.clone(),
            device: volume.device.clone(),
            found: found.to_string(),
            expected: disks.to_string(),
        });
    }
    let extents = match source.extents() {
        Ok(extents) => Some(extents),
        Err(error) => {
            tracing::warn!(vm, volume = volume.name, %error, "Its place on the disk is not known");
            None
        }
    };
    Ok(Store::File { source: Arc::new(source), extents })
}

/// Every NBD endpoint of a file: those of volumes, and those of the host.
pub(super) fn endpoints(host: &Host) -> impl Iterator<Item = &Endpoint> {
    let nbd = volumes(host).filter(|volume| volume.export.protocol == Protocol::Nbd);
    nbd.map(|volume| &volume.export.endpoint).chain(&host.nbd.endpoints)
}

/// Every vhost-user endpoint of a file.
pub(super) fn guest_endpoints(host: &Host) -> impl Iterator<Item = &Endpoint> {
    let guests = volumes(host).filter(|volume| volume.export.protocol != Protocol::Nbd);
    guests.map(|volume| &volume.export.endpoint)
}

fn volumes(host: &Host) -> impl Iterator<Item = &Volume> {
    host.vms.values().flat_map(|vm| vm.volumes.values())
}

fn listen_to_guests(plane: &Plane, host: &Host) -> Result<Vec<VhostListener>, PlaneError> {
    let mut listeners = Vec::new();
    for endpoint in guest_endpoints(host) {
        let endpoint = translate::endpoint(endpoint);
        let name = endpoint.to_string();
        match plane.guests.iter().find(|known| known.endpoint().to_string() == name) {
            Some(known) if *known.endpoint() == endpoint => {}
            Some(_) => return Err(PlaneError::EndpointChanged(name)),
            None => {
                let started = VhostListener::start(endpoint, None, &plane.seats);
                listeners.push(started.map_err(|error| refused_socket(plane, error))?);
            }
        }
    }
    Ok(listeners)
}

/// A socket in use may be one of our own that leaves with this very change.
fn refused_socket(plane: &Plane, error: ListenError) -> PlaneError {
    let known = plane.listeners.iter().map(Listener::endpoint).chain(plane.guests.iter().map(VhostListener::endpoint));
    match &error {
        ListenError::InUse(name) if known.map(ToString::to_string).any(|known| known == *name) => {
            PlaneError::SocketMoves(name.clone())
        }
        _ => error.into(),
    }
}

fn listen(plane: &Plane, host: &Host) -> Result<Vec<Listener>, PlaneError> {
    let mut listeners = Vec::new();
    for endpoint in endpoints(host) {
        let endpoint = translate::endpoint(endpoint);
        let name = endpoint.to_string();
        match plane.listeners.iter().find(|known| known.endpoint().to_string() == name) {
            Some(known) if *known.endpoint() == endpoint => {}
            Some(_) => return Err(PlaneError::EndpointChanged(name)),
            None => {
                let started = Listener::start(endpoint, Catalogue::default(), &plane.seats);
                listeners.push(started.map_err(|error| refused_socket(plane, error))?);
            }
        }
    }
    Ok(listeners)
}
