//! Clusters of Ceph: the connections of this host, one for each VM, and whose locks are in the way.
//!
//! A cluster locks out whole connections, so each VM has its own: one that another host has taken over ends that VM's requests alone.
//!
//! The address of a connection is in the state directory before a lock is taken over it. A daemon that starts again in the same directory finds the
//! locks of its predecessor by them, and takes them. A directory that was copied, to this host or another, has not the place that its file states,
//! and its addresses may be those of a daemon that runs: they count for nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_api::object::ObjectId;
use sluice_config::{Host, RbdImage, Vm, Volume, VolumeSource};
use sluice_io::ceph::{Cluster, ClusterSpec, ImageSpec};
use sluice_io::source::owner::Owner;
use sluice_io::source::rbd::{Locking, Rbd, RbdSpec};
use sluice_io::source::{Source, SourceError};

use crate::failure::chain;
use crate::state::folder::replace;

/// File in the state directory: the addresses of this host's connections.
const CLIENTS: &str = "rbd-clients.json";
const MODE: u32 = 0o600;
/// Addresses that are kept of each VM. One is added by each start of the daemon.
const KEPT_MAX: usize = 64;
/// After a cluster has not answered, other connections to it fail at once for this time.
const PAUSE: Duration = Duration::from_secs(5);

/// The connections of this host.
pub(super) struct Clusters {
    keeps: Keeps,
    state: Mutex<State>,
}

/// Where the addresses of connections are.
enum Keeps {
    /// Nowhere: images are looked at, and their locks left alone.
    Looks,
    Nowhere,
    /// In this file of the state directory, which has this name on this host and no copy of it has.
    In {
        file: PathBuf,
        place: String,
    },
}

#[derive(Default)]
struct State {
    /// Connections by VM, cluster and user.
    live: BTreeMap<(String, PathBuf, String), Arc<Cluster>>,
    /// Addresses by VM, the oldest first: those of earlier daemons, and those of `live`.
    clients: BTreeMap<String, VecDeque<String>>,
    /// Clusters that have not answered, and why.
    failed: BTreeMap<PathBuf, (Instant, String)>,
    /// Who has the lock of a volume that is out of service.
    owners: BTreeMap<ObjectId, Owner>,
    /// Volumes whose lock may be taken from this address.
    granted: BTreeMap<ObjectId, String>,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    place: String,
    clients: BTreeMap<String, VecDeque<String>>,
}

/// A volume in a cluster, as it is opened.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a ObjectId,
    pub(super) ceph: &'a sluice_config::Ceph,
    pub(super) image: &'a RbdImage,
    pub(super) read_only: bool,
    pub(super) length: Option<u64>,
    pub(super) block_size: Option<u32>,
    pub(super) unmaps: bool,
}

impl Clusters {
    /// Those of a daemon with this state directory.
    pub(super) fn of(folder: Option<&Path>) -> Clusters {
        let Some(folder) = folder else { return Clusters { keeps: Keeps::Nowhere, state: Mutex::default() } };
        let (file, place) = (folder.join(CLIENTS), place_of(folder));
        let state = Mutex::new(State { clients: kept(&file, &place), ..State::default() });
        Clusters { keeps: Keeps::In { file, place }, state }
    }

    /// Those of a program that looks at images and serves none.
    pub(super) fn that_look() -> Clusters {
        Clusters { keeps: Keeps::Looks, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an image and takes its lock.
    ///
    /// # Errors
    /// The cluster is not reached, or another client has the lock: then [`Clusters::owner`] says who.
    pub(super) fn open(self: &Arc<Self>, wanted: &Wanted<'_>) -> Result<Source<Rbd>, SourceError> {
        let Wanted { name, ceph, image, read_only, length, block_size, unmaps } = *wanted;
        let failed = |why: String| SourceError::Remote { name: image.to_string(), why };
        let vm = name.parts().0;
        let cluster = self.connect(vm, ceph).map_err(failed)?;
        let spec = RbdSpec {
            name: image.to_string(),
            image: ImageSpec {
                pool: image.pool.pool.clone(),
                namespace: image.pool.namespace.clone(),
                image: image.name.clone(),
                read_only,
            },
            length,
            block_size,
            unmaps,
            locking: self.locking(name),
        };
        let opened = spec.open(&cluster);
        let mut state = self.lock();
        match &opened {
            Err(SourceError::Locked { owner, .. }) => drop(state.owners.insert(name.clone(), owner.clone())),
            _ => drop(state.owners.remove(name)),
        }
        if matches!(&opened, Err(SourceError::LockedOut { .. })) {
            state.live.retain(|_, live| !Arc::ptr_eq(live, &cluster));
        }
        opened
    }

    /// Closes the connections of VMs that have no images any more. That takes as long as the cluster does, so another thread does it.
    pub(super) fn keep_those_of(&self, host: &Host) {
        let is_image = |volume: &Arc<Volume>| matches!(volume.source, VolumeSource::Rbd(_));
        let has_image = |vm: &Vm| vm.volumes.values().any(is_image);
        let mut state = self.lock();
        let (kept, left): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut state.live)
            .into_iter()
            .partition(|((vm, ..), _)| host.vms.get(vm).is_some_and(|vm| has_image(vm)));
        state.live = kept;
        if !left.is_empty() {
            thread::spawn(move || drop(left));
        }
    }

    /// Whose lock a volume may take.
    fn locking(&self, name: &ObjectId) -> Locking {
        if let Keeps::Looks = self.keeps {
            return Locking::Look;
        }
        let mut state = self.lock();
        let live: BTreeSet<String> = state.live.values().map(|live| live.address().to_owned()).collect();
        let own = state.clients.get(name.parts().0).into_iter().flatten().filter(|one| !live.contains(*one)).cloned();
        let own = own.collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Locking::Take { host, own, takes_over: state.granted.remove(name) }
    }

    /// Returns the connection of a VM, whose address is on the disk.
    fn connect(&self, vm: &str, ceph: &sluice_config::Ceph) -> Result<Arc<Cluster>, String> {
        let key = (vm.to_owned(), ceph.conf.clone(), ceph.user.clone());
        {
            let state = self.lock();
            if let Some(cluster) = state.live.get(&key) {
                return Ok(Arc::clone(cluster));
            }
            if let Some((_, why)) = state.failed.get(&ceph.conf).filter(|(at, _)| at.elapsed() < PAUSE) {
                return Err(why.clone());
            }
        }
        let connected = Cluster::connect(&ClusterSpec { conf: ceph.conf.clone(), user: ceph.user.clone() });
        let mut state = self.lock();
        let cluster = match connected {
            Ok(cluster) => cluster,
            Err(why) => {
                state.failed.insert(ceph.conf.clone(), (Instant::now(), why.clone()));
                return Err(why);
            }
        };
        let clients = state.clients.entry(vm.to_owned()).or_default();
        clients.push_back(cluster.address().to_owned());
        if clients.len() > KEPT_MAX {
            clients.pop_front();
        }
        self.keep(&state.clients)?;
        state.live.insert(key, Arc::clone(&cluster));
        Ok(cluster)
    }

    fn keep(&self, clients: &BTreeMap<String, VecDeque<String>>) -> Result<(), String> {
        let Keeps::In { file, place } = &self.keeps else { return Ok(()) };
        let kept = Kept { place: place.clone(), clients: clients.clone() };
        let text = serde_json::to_vec(&kept).map_err(|error| error.to_string())?;
        let failed = |error| format!("{} cannot be written: {}", file.display(), chain(&error));
        replace(file, &text, MODE).map_err(failed)
    }

    /// Returns who has the lock of a volume, if that keeps it out of service.
    pub(super) fn owner(&self, name: &ObjectId) -> Option<Owner> {
        self.lock().owners.get(name).cloned()
    }

    /// Lets the next attempt to open a volume take the lock from this address.
    pub(super) fn grant(&self, name: &ObjectId, address: &str) {
        self.lock().granted.insert(name.clone(), address.to_owned());
    }
}

/// Names a directory so that no copy of it has the same name.
fn place_of(folder: &Path) -> String {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let inode = fs::metadata(folder).map_or(0, |found| found.ino());
    format!("{} {inode}", machine.trim())
}

/// Reads the addresses that an earlier daemon has kept here.
fn kept(path: &Path, place: &str) -> BTreeMap<String, VecDeque<String>> {
    let read = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return BTreeMap::new(),
        Err(error) => Err(error.to_string()),
        Ok(text) => serde_json::from_slice::<Kept>(&text).map_err(|error| error.to_string()),
    };
    match read {
        Ok(kept) if kept.place == place => kept.clients,
        Ok(_) => {
            tracing::warn!(
                file = %path.display(),
                "The state directory was copied here: locks of RBD images that its daemon had are those of another host"
            );
            BTreeMap::new()
        }
        Err(error) => {
            tracing::error!(
                file = %path.display(),
                error,
                "The daemon cannot read which locks of RBD images it had: sluice takeover takes them"
            );
            BTreeMap::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_copied_state_directory_are_those_of_another_host() {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let clusters = Clusters::of(Some(folder.path()));
        let clients = BTreeMap::from([("db1".to_owned(), VecDeque::from(["10.0.0.1:0/7".to_owned()]))]);
        clusters.keep(&clients).unwrap();
        assert_eq!(Clusters::of(Some(folder.path())).lock().clients, clients);
        fs::copy(folder.path().join(CLIENTS), copy.path().join(CLIENTS)).unwrap();
        assert!(Clusters::of(Some(copy.path())).lock().clients.is_empty());
        fs::write(folder.path().join(CLIENTS), "{").unwrap();
        assert!(Clusters::of(Some(folder.path())).lock().clients.is_empty(), "a damaged file names no one");
    }
}
