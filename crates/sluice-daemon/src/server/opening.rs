//! Resolves paths, opens volumes and makes sockets: everything that may hang with a disk or a file system.
//!
//! [`needs`] lists what a host file needs in addition to what is served. The list does not refer to the server, so
//! [`Needs::meet`] may run on any thread, and be abandoned. The server puts its results into force if it still needs
//! them then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::take;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_config::{Host, Volume};
use sluice_io::endpoint::{Bound, Endpoint, ListenError, Prepared};
use sluice_io::socket_file::FileId;
use sluice_io::source::block_size::Known;
use sluice_io::source::{BlockSize, DiskSet, ExtentMap, FormatCheck, Located, Source, SourceError, SourceSpec};
use sluice_io::store::slot_log;

use super::claims::Claims;
use super::found::{Found, Progress};
use super::resizing::{Resizing, resizing};
use super::tolerance::{Fault, Tolerance};
use super::{Changed, Extra, Guard, Reason, RemovedVolume, Server, ServerError, sockets, stage, translate};

/// Maximum time that a start waits, for all its volumes together, for locks that the last requests of a dead daemon
/// hold. A reload does not wait, because the holder of a lock is then alive.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// A volume that must be opened.
pub(super) struct Opening {
    pub(super) name: ObjectId,
    pub(super) volume: Arc<Volume>,
    pub(super) tolerance: Tolerance,
    /// Whether it replaces a served volume. Then it does not wait for the other's read lock: its VMM waits when it
    /// reconnects.
    replaces: bool,
    /// Whether it may have what another volume last served.
    pub(super) is_forced: bool,
    format: FormatCheck,
    block_size: BlockSize,
}

/// Clients of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    /// Clients of NBD.
    Nbd,
    /// VMMs with a disk.
    Disk,
    /// VMMs with a NIC.
    Nic,
}

/// A socket that must be made.
pub(super) struct Socket {
    pub(super) endpoint: Endpoint,
    /// A socket of the daemon that is removed by the same change and has the same path.
    pub(super) ours: Option<FileId>,
    pub(super) serves: Serves,
    /// Which faults put its volume or NIC out of service.
    pub(super) tolerance: Tolerance,
}

/// Everything that a host file needs and that does not exist yet.
#[derive(Default)]
pub struct Needs {
    is_start: bool,
    pub(super) tolerance: Tolerance,
    /// Devices that are started. Of two on one disk the first one is.
    pub(super) devices: Vec<String>,
    /// Those of them that are out of service already.
    devices_out: BTreeSet<String>,
    pub(super) volumes: Vec<Opening>,
    resizings: Vec<Resizing>,
    /// Paths of new devices.
    pub(super) disks: Vec<(String, PathBuf)>,
    /// Logs of new devices.
    pub(super) logs: Vec<(String, PathBuf)>,
    pub(super) sockets: Vec<Socket>,
    /// What is out of service, and stays so without a look at its paths.
    pub(super) staying: BTreeSet<ObjectId>,
    claims: Claims,
    /// Volumes that stay out of service because they share a file: they are located, so that a retry of the other one sees them.
    rivals: Vec<Opening>,
    lock_wait: Duration,
    /// Whether sockets are only tried: none gets its name.
    only_tries: bool,
}

/// An open volume.
pub(super) struct Opened {
    pub(super) source: Source,
    pub(super) extents: Option<ExtentMap>,
    pub(super) disks: DiskSet,
}

/// Returns what `host` and `extra` need. `old` is what is served.
pub(super) fn needs(
    server: &Server,
    (old, host): (&Host, &Host),
    changed: &Changed,
    extra: &Extra,
    guard: &Guard<'_>,
) -> Result<Needs, ServerError> {
    let is_start = server.is_start();
    let lock_wait = if is_start { LOCK_WAIT } else { Duration::ZERO };
    let tolerance = match (extra, is_start) {
        (Extra::Tolerate | Extra::Retry(_), _) => Tolerance::Anything,
        (Extra::Nothing | Extra::Grow(_), true) => Tolerance::NoResponse,
        (Extra::Nothing | Extra::Grow(_), false) => Tolerance::Never,
    };
    let staying = server.staying(host, extra, guard.force);
    let claims = Claims::of(host, guard);
    let mut needs = Needs { is_start, lock_wait, tolerance, staying, claims, ..Needs::default() };
    needs.start_devices(server, host, guard);
    needs.sockets = sockets::needed(server, host, changed, (tolerance, &needs.staying))?;
    // Sockets that replace one in use are made last, when nothing else can hang.
    needs.sockets.sort_by_key(|socket| socket.ours.is_some());
    let (mut served, mut served_before) = (None, None);
    for (vm, spec) in changed.of(host) {
        let before = old.vms.get(vm);
        for (name, volume) in &spec.volumes {
            let known = before.and_then(|vm| vm.volume(name));
            if stage::stays(known, volume) {
                if known.is_some_and(|known| known.size != volume.size) {
                    let resizing = resizing(server, (vm, name), volume, extra, &needs.claims);
                    needs.resizings.extend(resizing);
                }
                continue;
            }
            let key = ObjectId::volume(vm, name);
            if needs.staying.contains(&key) {
                if matches!(server.missing[&key], Reason::SharesAFile(_)) {
                    needs.rivals.push(Opening::rival(key, volume, tolerance));
                }
                continue;
            }
            refuse_served(served.get_or_insert_with(|| by_source(old)), vm, volume)?;
            refuse_while_draining(server, vm, volume)?;
            if volume.source.is_some() && translate::has_disk(&host.devices[&volume.device]) {
                let known = served_before.get_or_insert_with(|| guard.known());
                let tolerance = needs.tolerance_of_volume(server, &key);
                needs.volumes.push(Opening::new(server, key, (volume, tolerance), (guard, known)));
            }
        }
    }
    Ok(needs)
}

type BySource<'a> = BTreeMap<&'a Path, Vec<(&'a str, &'a Volume)>>;

fn by_source(host: &Host) -> BySource<'_> {
    let mut by_source = BySource::new();
    for (vm, spec) in &host.vms {
        for volume in spec.volumes.values() {
            if let Some(source) = &volume.source {
                by_source.entry(source).or_default().push((vm, volume));
            }
        }
    }
    by_source
}

/// A VMM that reconnects to its socket sends again all requests that have not completed. A late read of the previous
/// volume for such a request must not write to guest memory after that.
fn refuse_while_draining(server: &Server, vm: &str, volume: &Volume) -> Result<(), ServerError> {
    let socket = volume.export.endpoint.socket();
    let at_it = |left: &RemovedVolume| left.socket.as_deref() == socket && !left.has_ended();
    match socket.is_some() && server.removed.iter().any(at_it) {
        true => Err(ServerError::RemovedVolume { vm: vm.to_owned(), volume: volume.name.clone() }),
        false => Ok(()),
    }
}

/// The daemon's own lock on these bytes is held until the present volume is removed, which is after the new one is
/// opened.
fn refuse_served(served: &BySource<'_>, vm: &str, volume: &Volume) -> Result<(), ServerError> {
    let end = |volume: &Volume| volume.size.map_or(u64::MAX, |size| volume.offset.saturating_add(size));
    let same = volume.source.as_deref().and_then(|source| served.get(source));
    for (old_vm, old) in same.into_iter().flatten() {
        let overlaps = old.offset < end(volume) && volume.offset < end(old);
        if overlaps && !(old.read_only && volume.read_only) {
            let differs = match (*old_vm, &old.name) == (vm, &volume.name) {
                true => stage::differing_keys(old, volume).join(", "),
                false => "its name".to_owned(),
            };
            let (vm, volume, old) = (vm.to_owned(), volume.name.clone(), format!("{old_vm}/{}", old.name));
            return Err(ServerError::VolumeChanged { vm, volume, old, differs });
        }
    }
    Ok(())
}

impl Needs {
    /// Returns the paths that [`Needs::meet`] accesses, as it reports them.
    pub fn paths(&self) -> Vec<PathBuf> {
        let disks = self.disks.iter().chain(&self.logs).map(|(_, path)| path.clone());
        let resizings = self.resizings.iter().map(|resizing| resizing.source.path().to_owned());
        let volumes = self.volumes.iter().filter_map(|opening| opening.volume.source.clone());
        let sockets = self.sockets.iter().map(|socket| PathBuf::from(socket.endpoint.to_string()));
        disks.chain(resizings).chain(volumes).chain(sockets).collect()
    }

    /// Adds the devices that are started.
    fn start_devices(&mut self, server: &Server, host: &Host, guard: &Guard<'_>) {
        let mut devices: Vec<_> =
            host.devices.iter().filter(|(name, _)| server.starts(name, host, &self.staying)).collect();
        // Of two devices that turn out to be one disk, the one that the state does not know is left out.
        devices.sort_by_key(|(name, _)| !guard.knows_device(host, name));
        for (name, device) in devices {
            self.devices.push(name.clone());
            self.devices_out.extend(server.missing.contains_key(&ObjectId::Device(name.clone())).then(|| name.clone()));
            let disk = device.path.as_ref().filter(|_| translate::has_disk(device));
            self.disks.extend(disk.map(|path| (name.clone(), path.clone())));
            let log = device.delay.as_ref().and_then(|delay| delay.log.as_ref());
            self.logs.extend(log.map(|path| (name.clone(), path.clone())));
        }
    }

    /// Whether they are those of a start, which looks at everything even if something has failed.
    pub(super) fn is_start(&self) -> bool {
        self.is_start
    }

    /// Returns the part of it that is not in `found`, for a look at the host that makes nothing; `None` if all of it is.
    pub(super) fn untried(mut self, found: &Found) -> Option<Needs> {
        self.retain_missing_from(found);
        self.sockets.retain(|socket| !found.tried.contains_key(&socket.endpoint.to_string()));
        self.only_tries = true;
        (!self.paths().is_empty()).then_some(self)
    }

    /// Does not wait for locks that a dead daemon has left.
    pub(super) fn without_waiting(self) -> Needs {
        Needs { lock_wait: Duration::ZERO, ..self }
    }

    fn retain_missing_from(&mut self, found: &Found) {
        self.volumes.retain(|opening| !found.has_volume(&opening.name, &opening.volume));
        self.resizings.retain(|resizing| !found.has_resized(&resizing.name, resizing.size));
        self.disks.retain(|(device, path)| !found.has_disk(device, path));
        self.logs.retain(|(device, path)| !found.has_log(device, path));
        self.sockets.retain(|socket| !found.has_socket(&socket.endpoint));
    }

    /// Returns the part of it that is not in `found`.
    pub(super) fn missing_from(mut self, found: &Found) -> Needs {
        self.retain_missing_from(found);
        if !self.volumes.is_empty() {
            // A volume that is held back gets no socket.
            self.sockets.clear();
        }
        self
    }

    /// Whether everything is in `found`, or an error for which the change is rejected.
    pub(super) fn are_met_by(&self, found: &Found) -> bool {
        // Of each: whether it is there, or the change is rejected because of it.
        let disks = self.disks.iter().map(|(device, path)| {
            found.disks.get(device).filter(|(of, _)| of == path).map(|(_, disks)| self.is_refused(device, disks))
        });
        let logs = self.logs.iter().map(|(device, path)| {
            found.logs.get(device).filter(|(of, _)| of == path).map(|(_, log)| self.is_refused(device, log))
        });
        let resizings = self.resizings.iter().map(|resizing| {
            let resized = found.resized.get(&resizing.name).filter(|(size, _)| *size == resizing.size);
            resized.map(|(_, resized)| resized.is_err())
        });
        let sockets = self.sockets.iter().map(|socket| {
            let bound = found.sockets.get(&socket.endpoint.to_string()).filter(|(of, _)| *of == socket.endpoint);
            bound.map(|(_, bound)| bound.as_ref().is_err_and(|error| !socket.tolerance.covers(error)))
        });
        let volumes = self.volumes.iter().map(|opening| {
            let opened = found.volumes.get(&opening.name).filter(|(of, _)| **of == *opening.volume);
            opened.map(|(_, opened)| opened.as_ref().is_err_and(|error| !opening.tolerance.covers(error)))
        });
        let all: Vec<Option<bool>> = disks.chain(logs).chain(resizings).chain(sockets).chain(volumes).collect();
        all.iter().all(Option::is_some) || all.contains(&Some(true))
    }

    fn is_refused<T>(&self, device: &str, result: &Result<T, impl Fault>) -> bool {
        result.as_ref().is_err_and(|error| !self.tolerance_of(device).covers(error))
    }

    /// Which faults of a device put it out of service.
    pub(super) fn tolerance_of(&self, device: &str) -> Tolerance {
        if self.devices_out.contains(device) { Tolerance::Anything } else { self.tolerance }
    }

    /// Which faults of a volume put it out of service.
    pub(super) fn tolerance_of_volume(&self, server: &Server, name: &ObjectId) -> Tolerance {
        if server.missing.contains_key(name) { Tolerance::Anything } else { self.tolerance }
    }

    /// Leaves out what cannot be looked at because its path hangs: devices, volumes and sockets without which the rest may go
    /// on. Volumes of such a device are left out with it. So are volumes and sockets in the same folder as a volume or socket,
    /// which would hang as well.
    ///
    /// # Errors
    /// [`ServerError::Hangs`]: something that nothing may go on without.
    pub(super) fn leave_out_hung(&self, found: &mut Found) -> Result<(), ServerError> {
        for (path, time) in take(&mut found.hung) {
            let seconds = time.as_secs();
            let is_hung_disk = |(device, disk): &&(String, PathBuf)| *disk == path && !found.has_disk(device, disk);
            let hung_device = self.disks.iter().filter(|_| self.is_start).find(is_hung_disk);
            let may_log_hang = self.tolerance == Tolerance::Anything;
            let is_hung_log = |(device, log): &&(String, PathBuf)| *log == path && !found.has_log(device, log);
            let hung_log = self.logs.iter().filter(|_| may_log_hang).find(is_hung_log);
            let is_left_out = match (hung_device, hung_log) {
                (Some((device, _)), _) => {
                    let error = SourceError::Silent { path: path.clone(), seconds };
                    found.disks.insert(device.clone(), (path.clone(), Err(error)));
                    self.leave_out_volumes(found, seconds, |volume| volume.device == *device);
                    true
                }
                (None, Some((device, _))) => {
                    let error = io::Error::new(io::ErrorKind::TimedOut, format!("no response for {seconds} s"));
                    found.logs.insert(device.clone(), (path.clone(), Err(error)));
                    true
                }
                (None, None) => {
                    let hangs =
                        |volume: &Volume| volume.source.as_ref().is_some_and(|source| hangs_with(&path, source));
                    let volumes = self.leave_out_volumes(found, seconds, hangs);
                    let sockets = self.leave_out_sockets(found, seconds, &path);
                    volumes || sockets
                }
            };
            if !is_left_out {
                return Err(ServerError::Hangs { path, seconds });
            }
        }
        Ok(())
    }

    /// Returns whether there are any.
    fn leave_out_volumes(&self, found: &mut Found, seconds: u64, hangs: impl Fn(&Volume) -> bool) -> bool {
        let mut any = false;
        for Opening { name, volume, .. } in self.volumes.iter().filter(|need| need.tolerance != Tolerance::Never) {
            if hangs(volume) && !found.has_volume(name, volume) {
                let path = volume.source.clone().expect("only volumes with a source are opened");
                found.volumes.insert(name.clone(), (Arc::clone(volume), Err(SourceError::Silent { path, seconds })));
                any = true;
            }
        }
        any
    }

    /// Returns whether there are any.
    fn leave_out_sockets(&self, found: &mut Found, seconds: u64, hung: &Path) -> bool {
        let mut any = false;
        for Socket { endpoint, .. } in self.sockets.iter().filter(|socket| socket.tolerance != Tolerance::Never) {
            let Endpoint::Unix { path, .. } = endpoint else { continue };
            if hangs_with(hung, path) && !found.has_socket(endpoint) {
                let error = ListenError::Silent { endpoint: endpoint.to_string(), seconds };
                found.sockets.insert(endpoint.to_string(), (endpoint.clone(), Err(error)));
                any = true;
            }
        }
        any
    }

    /// Accesses the paths until the first error for which the change is rejected, or until the helper is abandoned. A start
    /// looks at all paths: a strict one reports all its errors together. Hangs as long as a disk or a file system does;
    /// `progress` has the path, and gets the results.
    pub fn meet(mut self, progress: &Progress) {
        let _ =
            self.find_files(progress).and_then(|()| self.open_volumes(progress)).and_then(|()| match self.only_tries {
                true => try_out(self.sockets, progress),
                false => make(self.sockets, self.is_start, progress),
            });
    }

    /// Resolves disks, opens logs and resizes files. Returns `None` if the rest is not needed.
    fn find_files(&mut self, progress: &Progress) -> Option<()> {
        for (device, path) in take(&mut self.disks) {
            progress.set(&path);
            let disks = caught(&path, || DiskSet::of_path(&path));
            let is_ok = self.is_start || !self.is_refused(&device, &disks);
            let goes_on = progress.add(|found| drop(found.disks.insert(device, (path, disks))));
            (goes_on && is_ok).then_some(())?;
        }
        for (device, path) in take(&mut self.logs) {
            progress.set(&path);
            let log = slot_log::open(&path);
            let is_ok = self.is_start || !self.is_refused(&device, &log);
            let goes_on = progress.add(|found| drop(found.logs.insert(device, (path, log))));
            (goes_on && is_ok).then_some(())?;
        }
        for resizing in take(&mut self.resizings) {
            progress.set(resizing.source.path());
            let resized = resizing.resize();
            let is_ok = resized.is_ok();
            let goes_on = progress.add(|found| drop(found.resized.insert(resizing.name, (resizing.size, resized))));
            (goes_on && is_ok).then_some(())?;
        }
        Some(())
    }

    /// Opens volumes. They wait for locks for at most `lock_wait` together. What several paths lead to is judged before
    /// anything is locked.
    fn open_volumes(&mut self, progress: &Progress) -> Option<()> {
        let mut all = Vec::new();
        for opening in take(&mut self.volumes) {
            match caught(opening.path(), || opening.locate(progress)) {
                Ok(located) => all.push((opening, located)),
                Err(error) => self.add_volume(opening, Err(error), progress)?,
            }
        }
        let own = all.len();
        for rival in if own > 0 { take(&mut self.rivals) } else { Vec::new() } {
            if let Ok(located) = caught(rival.path(), || rival.locate(progress)) {
                all.push((rival, located));
            }
        }
        let judged = self.claims.judge(&all);
        all.truncate(own);
        for (at, other) in judged.into_iter().filter(|(at, _)| *at < own).rev() {
            let (opening, located) = all.remove(at);
            self.add_volume(opening, Err(located.claimed_by(other)), progress)?;
        }
        let until = Instant::now() + self.lock_wait;
        for (opening, located) in all {
            let wait = until.saturating_duration_since(Instant::now());
            let opened = caught(opening.path(), || opening.open(located, wait, progress));
            self.add_volume(opening, opened, progress)?;
        }
        Some(())
    }

    /// Returns `None` if the rest is not needed.
    fn add_volume(&self, opening: Opening, opened: Result<Opened, SourceError>, progress: &Progress) -> Option<()> {
        let is_tolerated = |error| self.is_start || opening.tolerance.covers(error);
        let is_ok = opened.as_ref().err().is_none_or(is_tolerated);
        let goes_on = progress.add(|found| drop(found.volumes.insert(opening.name, (opening.volume, opened))));
        (goes_on && is_ok).then_some(())
    }
}

/// Makes each socket without its name, and removes it.
fn try_out(sockets: Vec<Socket>, progress: &Progress) -> Option<()> {
    for Socket { endpoint, ours, .. } in sockets {
        let name = endpoint.to_string();
        progress.set(Path::new(&name));
        let tried = Bound::prepare(endpoint, ours).map(drop);
        progress.add(|found| drop(found.tried.insert(name, tried))).then_some(())?;
    }
    Some(())
}

/// Makes sockets. Those that replace one in use do so when all have been made. `all`: also after one that the change is
/// rejected for.
fn make(sockets: Vec<Socket>, all: bool, progress: &Progress) -> Option<()> {
    let mut unplaced = Vec::new();
    for socket in sockets {
        progress.set(Path::new(&socket.endpoint.to_string()));
        let made = Bound::prepare(socket.endpoint.clone(), socket.ours);
        match made {
            Ok(prepared) if socket.ours.is_some() => unplaced.push((socket, prepared)),
            made => add_socket(socket, made.and_then(Prepared::place), all, progress)?,
        }
    }
    for (socket, prepared) in unplaced {
        progress.set(Path::new(&socket.endpoint.to_string()));
        add_socket(socket, prepared.place(), all, progress)?;
    }
    Some(())
}

fn add_socket(socket: Socket, bound: Result<Bound, ListenError>, all: bool, progress: &Progress) -> Option<()> {
    let Socket { endpoint, tolerance, .. } = socket;
    let is_ok = all || bound.as_ref().err().is_none_or(|error| tolerance.covers(error));
    let goes_on = progress.add(|found| drop(found.sockets.insert(endpoint.to_string(), (endpoint, bound))));
    (goes_on && is_ok).then_some(())
}

/// Whether `path` hangs with `hung`: they are the same, or in the same folder. Devices in /dev share a folder, but
/// not a disk.
fn hangs_with(hung: &Path, path: &Path) -> bool {
    hung == path || hung.parent() == path.parent() && !hung.starts_with("/dev")
}

/// Makes a panic at one source or disk an error of its volume or device: the others are served.
fn caught<T>(path: &Path, call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    let panicked = |_| Err(SourceError::Panicked { path: path.to_owned() });
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

impl Opening {
    pub(super) fn new(
        server: &Server,
        name: ObjectId,
        (volume, tolerance): (&Arc<Volume>, Tolerance),
        (guard, known): (&Guard<'_>, &Arc<Known>),
    ) -> Opening {
        let format = match volume.is_raw {
            true => FormatCheck::Raw,
            false => FormatCheck::UnlessKnown(Arc::clone(known)),
        };
        let block_size = guard.block_size(&name, volume, known);
        let (replaces, is_forced) = (server.served.contains_key(&name), guard.force.covers(&name));
        Opening { name, volume: Arc::clone(volume), tolerance, replaces, is_forced, format, block_size }
    }

    /// A volume that is only located.
    fn rival(name: ObjectId, volume: &Arc<Volume>, tolerance: Tolerance) -> Opening {
        let (format, block_size) = (FormatCheck::Raw, BlockSize::OfSource);
        Opening { name, volume: Arc::clone(volume), tolerance, replaces: false, is_forced: false, format, block_size }
    }

    /// Its bytes, as the host file states them.
    pub(super) fn range(&self) -> Range<u64> {
        let end = self.volume.size.map_or(u64::MAX, |size| self.volume.offset.saturating_add(size));
        self.volume.offset..end
    }

    fn path(&self) -> &Path {
        self.volume.source.as_deref().expect("only volumes with a source are opened")
    }

    pub(super) fn locate(&self, progress: &Progress) -> Result<Located, SourceError> {
        let volume = &self.volume;
        let spec = SourceSpec {
            path: self.path().to_owned(),
            offset: volume.offset,
            length: volume.size,
            read_only: volume.read_only,
            buffered: volume.buffered,
            unmaps: volume.unmaps,
            block_size: self.block_size.clone(),
            format: self.format.clone(),
        };
        progress.set(&spec.path);
        Located::of(&spec)
    }

    fn open(&self, located: Located, wait: Duration, progress: &Progress) -> Result<Opened, SourceError> {
        let ((vm, name), volume) = (self.name.parts(), &self.volume);
        let name = &*name;
        progress.set(located.path());
        let source = located.open(wait)?;
        let mut waited = source.waited();
        if volume.read_only {
            let left = (!self.replaces).then(|| wait.saturating_sub(waited));
            waited += source.read_as(&format!("{vm}/{name}"), left)?;
        }
        if !waited.is_zero() {
            let waited_ms = waited.as_millis();
            tracing::info!(vm, volume = name, waited_ms, "Waited for in-flight requests of another daemon");
        }
        if let Some(disk_block) = source.bridged_block() {
            let block_size = source.block_size();
            tracing::info!(
                vm,
                volume = name,
                block_size,
                disk_block,
                "Small writes read and rewrite blocks of the disk"
            );
        }
        if let Some(gpt_block_size) = source.gpt_block_size() {
            let block_size = source.block_size();
            tracing::warn!(
                vm,
                volume = name,
                block_size,
                gpt_block_size,
                "The stated block size is not that of the GPT: the guest finds no partitions"
            );
        }
        let disks = source.disks()?;
        let extents = match source.extents() {
            Ok(extents) => Some(extents),
            Err(error) => {
                tracing::warn!(vm, volume = name, %error, "Cannot read the extent map: scheduling by file offset");
                None
            }
        };
        Ok(Opened { source, extents, disks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_at_one_source_kept_every_vm_from_its_disk() {
        let image = Path::new("/a.img");
        let found = caught::<()>(image, || panic!("a test requested this panic"));
        assert!(matches!(found, Err(SourceError::Panicked { path }) if path == image));
        assert!(caught(image, || Ok(())).is_ok());
    }
}
