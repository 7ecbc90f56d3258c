//! Clusters of Ceph: the connections of this host, one for each VM, and whose locks are in the way.
//!
//! A cluster locks out whole connections, so each VM has its own: one that another host has taken over ends that VM's requests alone.
//!
//! The address of a connection is in the state directory before a lock is taken over it. A daemon that starts again in the same directory finds the
//! locks of its predecessor by them, and takes them. A directory that was copied, to this host or another, has not the place that its file states,
//! and its addresses may be those of a daemon that runs: they count for nothing. A copy of the whole machine has the same place. So after a start of
//! the machine a lock is taken only when the cluster has not heard of its owner for 30 s.

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
use sluice_io::source::rbd::{Former, Locking, Rbd, RbdSpec};
use sluice_io::source::{Source, SourceError};

use crate::failure::chain;
use crate::state::folder::replace;

/// File in the state directory: the addresses of this host's connections.
const CLIENTS: &str = "rbd-clients.json";
const MODE: u32 = 0o600;
/// Addresses that are kept of each VM. One is added by each start of the daemon.
const KEPT_MAX: usize = 64;
/// An attempt to connect that took this long has waited for monitors.
const SLOW: Duration = Duration::from_secs(2);
/// After a cluster has not answered, other connections to it fail at once for this time.
const PAUSE: Duration = Duration::from_secs(5);

/// The connections of this host.
pub(super) struct Clusters {
    keeps: Keeps,
    /// Names the present boot of the machine.
    boot: String,
    state: Mutex<State>,
    /// Locked while a connection is made: a VM has one.
    connecting: Mutex<()>,
}

/// Where the addresses of connections are.
enum Keeps {
    /// Nowhere: images are looked at, and their locks left alone.
    Looks,
    Nowhere,
    /// In this file of the state directory, which has this name on this machine.
    In {
        file: PathBuf,
        place: String,
    },
}

#[derive(Default)]
struct State {
    /// Connections by VM, cluster and user.
    live: BTreeMap<(String, PathBuf, String), Arc<Cluster>>,
    /// Addresses by VM, the oldest first, each with the boot of the machine: those of earlier daemons, and those of this one.
    clients: Clients,
    /// Addresses of the connections that this daemon has made. One that was locked out may still be open.
    made: BTreeSet<String>,
    /// Clusters that have not answered, by configuration and user, and why.
    failed: BTreeMap<(PathBuf, String), (Instant, String)>,
    /// By volume that is out of service: the client that has the lock of its image.
    owners: BTreeMap<ObjectId, Owner>,
    /// By volume: the client from which an operator's takeover takes the lock.
    granted: BTreeMap<ObjectId, String>,
}

/// Addresses of connections and the boot of the machine in which they were made, by VM.
type Clients = BTreeMap<String, VecDeque<(String, String)>>;

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    place: String,
    clients: Clients,
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
        let Some((folder, place)) = folder.and_then(|folder| Some((folder, place_of(folder)?))) else {
            return Clusters::new(Keeps::Nowhere, Clients::new());
        };
        let file = folder.join(CLIENTS);
        let clients = kept(&file, &place);
        Clusters::new(Keeps::In { file, place }, clients)
    }

    fn new(keeps: Keeps, clients: Clients) -> Clusters {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let state = Mutex::new(State { clients, ..State::default() });
        Clusters { keeps, boot, state, connecting: Mutex::default() }
    }

    /// Those of a program that looks at images and serves none.
    pub(super) fn that_look() -> Clusters {
        Clusters::new(Keeps::Looks, Clients::new())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an image and takes its lock.
    ///
    /// # Errors
    /// The cluster is not reached, or another client has the lock: then [`Clusters::owner`] says who.
    pub(super) fn open(&self, wanted: &Wanted<'_>) -> Result<Source<Rbd>, SourceError> {
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
            Err(SourceError::Locked { owner, .. }) => drop(state.owners.insert(name.clone(), (**owner).clone())),
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
            // Without a thread it is done here.
            let _ = thread::Builder::new().spawn(move || drop(left));
        }
    }

    /// Returns the rules by which a volume takes the lock of its image.
    fn locking(&self, name: &ObjectId) -> Locking {
        if let Keeps::Looks = self.keeps {
            return Locking::Look;
        }
        let mut state = self.lock();
        let former = state.clients.get(name.parts().0).into_iter().flatten();
        let former = former.filter(|(address, _)| !state.made.contains(address)).map(|(address, boot)| Former {
            address: address.clone(),
            is_of_this_boot: !boot.is_empty() && *boot == self.boot,
        });
        let (own, present) = (former.collect(), state.made.clone());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Locking::Take { host, own, present, takes_over: state.granted.remove(name) }
    }

    /// Returns the connection of a VM, whose address is on the disk.
    fn connect(&self, vm: &str, ceph: &sluice_config::Ceph) -> Result<Arc<Cluster>, String> {
        let key = (vm.to_owned(), ceph.conf.clone(), ceph.user.clone());
        let cluster_key = (ceph.conf.clone(), ceph.user.clone());
        let _alone = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let state = self.lock();
            if let Some(cluster) = state.live.get(&key) {
                return Ok(Arc::clone(cluster));
            }
            if let Some((_, why)) = state.failed.get(&cluster_key).filter(|(at, _)| at.elapsed() < PAUSE) {
                return Err(why.clone());
            }
        }
        let began = Instant::now();
        let connected = Cluster::connect(&ClusterSpec { conf: ceph.conf.clone(), user: ceph.user.clone() });
        let mut state = self.lock();
        let cluster = match connected {
            Ok(cluster) => cluster,
            Err(why) => {
                // Others would wait as long, one after the other.
                if began.elapsed() >= SLOW {
                    state.failed.insert(cluster_key, (Instant::now(), why.clone()));
                }
                return Err(why);
            }
        };
        let mut all = state.clients.clone();
        let clients = all.entry(vm.to_owned()).or_default();
        clients.push_back((cluster.address().to_owned(), self.boot.clone()));
        if clients.len() > KEPT_MAX {
            clients.pop_front();
        }
        if let Err(why) = self.keep(&all) {
            // The end of the connection takes as long as the cluster does.
            drop(state);
            return Err(why);
        }
        state.clients = all;
        state.made.insert(cluster.address().to_owned());
        state.live.insert(key, Arc::clone(&cluster));
        Ok(cluster)
    }

    fn keep(&self, clients: &Clients) -> Result<(), String> {
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

    /// Lets the next attempt to open a volume take the lock from this address; `None`: not any more.
    pub(super) fn grant(&self, name: &ObjectId, address: Option<&str>) {
        let granted = &mut self.lock().granted;
        match address {
            Some(address) => drop(granted.insert(name.clone(), address.to_owned())),
            None => drop(granted.remove(name)),
        }
    }
}

/// Names a directory so that no copy of it on a machine has the same name; `None` if the machine has none itself.
fn place_of(folder: &Path) -> Option<String> {
    let machine = fs::read_to_string("/etc/machine-id").ok()?;
    let machine = machine.trim();
    let inode = fs::metadata(folder).ok()?.ino();
    (!machine.is_empty()).then(|| format!("{machine} {inode}"))
}

/// Reads the addresses that an earlier daemon has kept here.
fn kept(path: &Path, place: &str) -> Clients {
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
        let client = ("10.0.0.1:0/7".to_owned(), "boot".to_owned());
        let clients = Clients::from([("db1".to_owned(), VecDeque::from([client]))]);
        clusters.keep(&clients).unwrap();
        assert_eq!(Clusters::of(Some(folder.path())).lock().clients, clients);
        fs::copy(folder.path().join(CLIENTS), copy.path().join(CLIENTS)).unwrap();
        assert!(Clusters::of(Some(copy.path())).lock().clients.is_empty());
        fs::write(folder.path().join(CLIENTS), "{").unwrap();
        assert!(Clusters::of(Some(folder.path())).lock().clients.is_empty(), "a damaged file names no one");
    }
}
