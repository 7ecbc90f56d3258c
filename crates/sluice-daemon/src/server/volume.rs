//! The sources of new volumes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_config::{Backend, Host, Node, NodeExport, Volume, VolumeSource};
use sluice_io::device::{FileSpec, StoreSpec};
use sluice_io::nbd::gateway::count::Counts;
use sluice_io::source::block_size::Known;
use sluice_io::source::remote::{RemoteSpec, Resend};
use sluice_io::source::{BlockSize, DiskSet, FormatCheck, Located, SourceError, SourceSpec};

use super::ceph::{Clusters, Wanted};
use super::change::Change;
use super::claims::Place;
use super::disk::Growth;
use super::found::Progress;
use super::kinds::{Job, Kind, Resource, ResourceKey, caught};
use super::objects::{differing_keys, stays};
use super::tolerance::Tolerance;
use super::{Absence, Guard, RemovedVolume, Server, ServerError, translate};
use crate::node::{Export, Gateway};

/// A volume that must be opened.
#[derive(Clone)]
pub(super) struct Opening {
    pub(super) name: ObjectId,
    pub(super) volume: Arc<Volume>,
    /// Whether it replaces a served volume. Then it does not wait for the other's read lock: its VMM waits when it
    /// reconnects.
    replaces: bool,
    /// Whether it may have what another volume last served.
    is_forced: bool,
    format: FormatCheck,
    block_size: BlockSize,
    /// The disks of its device, if that runs and more disks may join it.
    growth: Option<Arc<Growth>>,
    /// Backend of its device.
    backend: Backend,
    /// Counters of the service of this host's VMs over all nodes.
    counts: Arc<Counts>,
    clusters: Arc<Clusters>,
}

/// An open volume.
pub(super) struct Opened {
    pub(super) store: StoreSpec,
    /// None of an export of another server, and of an image of a cluster.
    pub(super) disks: DiskSet,
    /// Whether these are disks of its device now; `None` for one whose disks are all known.
    pub(super) is_admitted: Option<bool>,
}

impl Resource for Opening {
    fn key(&self) -> ResourceKey {
        ResourceKey::Volume(self.name.clone())
    }

    fn path(&self) -> PathBuf {
        self.volume.source.stated().expect("only volumes with a source are opened")
    }

    fn silent(&self, _path: &Path, seconds: u64) -> ServerError {
        self.failed(SourceError::Silent { path: self.path(), seconds })
    }

    /// A volume hangs with its device, and with volumes and sockets in its folder.
    fn hangs_with(&self, other: Option<&ResourceKey>, path: &Path) -> bool {
        match other {
            Some(ResourceKey::Disk(device)) => self.volume.device == *device,
            Some(ResourceKey::Log(_)) => false,
            _ => is_beside(path, &self.path()),
        }
    }
}

impl Kind for Opening {
    type Open = Opened;

    fn needed(server: &Server, change: &Change, guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let (mut needed, mut served, mut known) = (Vec::new(), None, None);
        let mut growths = BTreeMap::new();
        for (name, before, volume) in change.volumes() {
            if stays(before, volume) || change.staying.contains(&name) {
                continue;
            }
            refuse_served(served.get_or_insert_with(|| by_source(&change.old)), &name, volume)?;
            refuse_while_draining(server, &name, volume)?;
            if translate::is_opened(volume, &change.host.devices[&volume.device]) {
                let known = known.get_or_insert_with(|| guard.known());
                let of_device = || Growth::of(&change.host.devices[&volume.device]);
                let of_running = || server.devices.contains_key(&volume.device).then(of_device).flatten();
                let growth = growths.entry(&volume.device).or_insert_with(of_running).clone();
                let tolerance = change.tolerance_of(server, &name);
                let backend = change.host.devices[&volume.device].backend.clone();
                let opening = Opening::new(server, name, volume, (guard, known));
                needed.push((tolerance, Opening { growth, backend, ..opening }));
            }
        }
        Ok(needed)
    }

    fn is_met_by(&self, other: &Self) -> bool {
        self.volume == other.volume
    }

    /// Opens volumes. They wait for locks for at most `lock_wait` together. What several paths lead to is judged before
    /// anything is locked.
    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        let is_elsewhere = |(_, opening): &(_, Opening)| !matches!(opening.backend, Backend::Direct);
        let (elsewhere, all): (Vec<_>, Vec<_>) = all.into_iter().partition(is_elsewhere);
        job.open_each(elsewhere, |opening| opening.connect().map_err(|source| opening.failed(source)))?;
        let mut own = Vec::new();
        for (tolerance, opening) in all {
            match opening.locate(job.progress) {
                Ok(located) => own.push((tolerance, opening, located)),
                Err(source) => {
                    let error = opening.failed(source);
                    job.add(tolerance, opening, Err(error))?;
                }
            }
        }
        let rivals: &[Opening] = if own.is_empty() { &[] } else { &job.terms.rivals };
        let rivals = rivals.iter().filter_map(|rival| Some((rival, rival.locate(job.progress).ok()?)));
        let rivals: Vec<_> = rivals.collect();
        let places = own.iter().map(|(_, opening, located)| opening.place(located));
        let places = places.chain(rivals.iter().map(|(rival, located)| rival.place(located)));
        let mut judged = job.terms.claims.judge(&places.collect::<Vec<_>>());
        let mut allowed = Vec::new();
        for (at, (tolerance, opening, located)) in own.into_iter().enumerate() {
            match judged.remove(&at) {
                Some(other) => {
                    let error = opening.failed(located.claimed_by(other));
                    job.add(tolerance, opening, Err(error))?;
                }
                None => allowed.push((tolerance, opening, located)),
            }
        }
        let until = Instant::now() + job.terms.lock_wait;
        for (tolerance, opening, located) in allowed {
            let wait = until.saturating_duration_since(Instant::now());
            job.progress.set(located.path());
            let opened = caught(&opening.path(), || opening.open(located, wait));
            let opened = opened.map_err(|source| opening.failed(source));
            job.add(tolerance, opening, opened)?;
        }
        Some(())
    }
}

impl Opening {
    pub(super) fn new(
        server: &Server,
        name: ObjectId,
        volume: &Arc<Volume>,
        (guard, known): (&Guard<'_>, &Arc<Known>),
    ) -> Opening {
        let format = match volume.is_raw {
            true => FormatCheck::Raw,
            false => FormatCheck::UnlessKnown(Arc::clone(known)),
        };
        let block_size = guard.block_size(&name, volume, known);
        let (replaces, is_forced) = (server.served.contains_key(&name), guard.force.covers(&name));
        let (volume, growth, backend) = (Arc::clone(volume), None, Backend::Direct);
        let (counts, clusters) = (Arc::clone(&server.gateways.counts), Arc::clone(&server.clusters));
        Opening { name, volume, replaces, is_forced, format, block_size, growth, backend, counts, clusters }
    }

    /// Returns the volumes that are only located: they stay out of service because they share a file.
    pub(super) fn rivals(server: &Server, change: &Change) -> Vec<Opening> {
        let shares = |name: &ObjectId| {
            change.staying.contains(name) && matches!(server.absent.get(name), Some(Absence::SharesAFile(_)))
        };
        let rivals = change.volumes().filter(|(name, before, volume)| !stays(*before, volume) && shares(name));
        let rival = |name, volume: &Arc<Volume>| {
            let (format, block_size) = (FormatCheck::Raw, BlockSize::OfSource);
            let volume = Arc::clone(volume);
            let (replaces, is_forced, growth, backend) = (false, false, None, Backend::Direct);
            let (counts, clusters) = (Arc::clone(&server.gateways.counts), Arc::clone(&server.clusters));
            Opening { name, volume, replaces, is_forced, format, block_size, growth, backend, counts, clusters }
        };
        rivals.map(|(name, _, volume)| rival(name, volume)).collect()
    }

    fn place<'a>(&'a self, located: &'a Located) -> Place<'a> {
        let range = self.volume.offset..end(&self.volume);
        Place { name: &self.name, range, is_forced: self.is_forced, located }
    }

    fn failed(&self, source: SourceError) -> ServerError {
        ServerError::volume(&self.name, source)
    }

    /// Opens what is no file of this host.
    fn connect(&self) -> Result<Opened, SourceError> {
        let store = match (&self.backend, &self.volume.source) {
            (Backend::Nbd(node), VolumeSource::Nbd(export)) => self.connect_to(node, export)?,
            (Backend::Rbd(ceph), VolumeSource::Rbd(image)) => {
                let wanted = Wanted {
                    name: &self.name,
                    ceph,
                    image,
                    read_only: self.volume.read_only,
                    length: self.volume.size,
                    block_size: self.stated_block(),
                    unmaps: self.volume.unmaps,
                };
                StoreSpec::Rbd(Arc::new(caught(&self.path(), || self.clusters.open(&wanted))?))
            }
            (backend, source) => unreachable!("{source:?} is not on {backend:?}"),
        };
        Ok(Opened { store, disks: DiskSet::default(), is_admitted: None })
    }

    /// The block size of the guest's disk, if one is stated.
    fn stated_block(&self) -> Option<u32> {
        if let BlockSize::Stated(bytes) = self.block_size { Some(bytes) } else { None }
    }

    /// Connects to the server of its device.
    fn connect_to(&self, node: &Node, export: &NodeExport) -> Result<StoreSpec, SourceError> {
        let vm = self.name.parts().0;
        let gateway = node.gateway.as_ref().map(|stated| Gateway::new(vm, stated, &self.counts));
        let spec = RemoteSpec {
            name: export.to_string(),
            read_only: self.volume.read_only,
            block_size: self.stated_block(),
            resend: match node {
                Node { gateway: Some(_), .. } => Resend::Fenced,
                Node { resends_all: true, .. } => Resend::All,
                Node { .. } => Resend::Reads,
            },
            dial: Box::new(Export { export: export.clone(), tls: node.tls.clone(), gateway }),
        };
        let source = caught(&self.path(), || spec.connect())?;
        Ok(StoreSpec::Remote(Arc::new(source)))
    }

    pub(super) fn locate(&self, progress: &Progress) -> Result<Located, SourceError> {
        let volume = &self.volume;
        let spec = SourceSpec {
            path: self.path(),
            offset: volume.offset,
            length: volume.size,
            read_only: volume.read_only,
            buffered: volume.buffered,
            unmaps: volume.unmaps,
            block_size: self.block_size.clone(),
            format: self.format.clone(),
        };
        progress.set(&spec.path);
        caught(&spec.path, || Located::of(&spec))
    }

    fn open(&self, located: Located, wait: Duration) -> Result<Opened, SourceError> {
        let ((vm, name), volume) = (self.name.parts(), &self.volume);
        let name = &*name;
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
        let admits = |growth: &Arc<Growth>| growth.admits(source.path(), source.is_block_device(), &disks);
        let is_admitted = self.growth.as_ref().map(admits);
        let extents = match source.extents() {
            Ok(extents) => Some(extents),
            Err(error) => {
                tracing::warn!(vm, volume = name, %error, "Cannot read the extent map: scheduling by file offset");
                None
            }
        };
        let store = StoreSpec::File(FileSpec { source: Arc::new(source), extents });
        Ok(Opened { store, disks, is_admitted })
    }
}

/// Whether two paths are the same, or in the same folder. Devices in /dev share a folder, but not a disk.
pub(super) fn is_beside(hung: &Path, path: &Path) -> bool {
    hung == path || hung.parent() == path.parent() && !hung.starts_with("/dev")
}

/// End of the bytes of a volume, as the host file states it.
fn end(volume: &Volume) -> u64 {
    volume.size.map_or(u64::MAX, |size| volume.offset.saturating_add(size))
}

type BySource<'a> = BTreeMap<PathBuf, Vec<(&'a str, &'a Volume)>>;

fn by_source(host: &Host) -> BySource<'_> {
    let mut by_source = BySource::new();
    for (vm, spec) in &host.vms {
        for volume in spec.volumes.values() {
            if let Some(source) = volume.source.stated() {
                by_source.entry(source).or_default().push((vm, volume));
            }
        }
    }
    by_source
}

/// A VMM that reconnects to its socket sends again all requests that have not completed. A late read of the previous
/// volume for such a request must not write to guest memory after that.
fn refuse_while_draining(server: &Server, name: &ObjectId, volume: &Volume) -> Result<(), ServerError> {
    let socket = volume.export.endpoint.socket();
    let at_it = |left: &RemovedVolume| left.socket.as_deref() == socket && !left.has_ended();
    match socket.is_some() && server.removed.iter().any(at_it) {
        true => Err(ServerError::RemovedVolume { vm: name.parts().0.to_owned(), volume: volume.name.clone() }),
        false => Ok(()),
    }
}

/// The daemon's own lock on these bytes is held until the present volume is removed, which is after the new one is
/// opened.
fn refuse_served(served: &BySource<'_>, name: &ObjectId, volume: &Volume) -> Result<(), ServerError> {
    let same = volume.source.stated().and_then(|source| served.get(&source));
    for (old_vm, old) in same.into_iter().flatten() {
        let overlaps = old.offset < end(volume) && volume.offset < end(old);
        if overlaps && !(old.read_only && volume.read_only) {
            let differs = match ObjectId::volume(old_vm, &old.name) == *name {
                true => differing_keys(old, volume).join(", "),
                false => "its name".to_owned(),
            };
            let (vm, old) = (name.parts().0.to_owned(), format!("{old_vm}/{}", old.name));
            return Err(ServerError::VolumeChanged { vm, volume: volume.name.clone(), old, differs });
        }
    }
    Ok(())
}
