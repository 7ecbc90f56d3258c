//! New sockets.
//!
//! If one volume frees a socket and another takes it in the same change, the socket is kept if both use the same
//! protocol. Otherwise a new one replaces it, and the old one is restored if the change is not made.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sluice_api::object::ObjectId;
use sluice_config::{ListenAddress, Protocol, Volume};
use sluice_io::endpoint::{Bound, Endpoint, ListenError, Prepared};
use sluice_io::socket_file::FileId;

use super::change::Change;
use super::kinds::{Job, Kind, Resource, ResourceKey};
use super::listening::{Listening, Serves};
use super::objects::{name_of, nic_socket};
use super::tolerance::Tolerance;
use super::volume::is_beside;
use super::{Guard, Server, ServerError, translate};

/// A socket that must be made.
#[derive(Clone)]
pub(super) struct Socket {
    pub(super) endpoint: Endpoint,
    pub(super) serves: Serves,
    /// A socket of the daemon that is removed by the same change and has the same path.
    ours: Option<FileId>,
    /// Whether it is made without its name, and removed.
    is_trial: bool,
}

impl Resource for Socket {
    fn key(&self) -> ResourceKey {
        ResourceKey::Socket(self.endpoint.to_string())
    }

    fn path(&self) -> PathBuf {
        self.endpoint.to_string().into()
    }

    fn silent(&self, _path: &Path, seconds: u64) -> ServerError {
        ListenError::Silent { endpoint: self.endpoint.to_string(), seconds }.into()
    }

    /// A socket hangs with volumes and other sockets in its folder.
    fn hangs_with(&self, other: Option<&ResourceKey>, path: &Path) -> bool {
        let Endpoint::Unix { path: own, .. } = &self.endpoint else { return false };
        !matches!(other, Some(ResourceKey::Disk(_) | ResourceKey::Log(_))) && is_beside(path, own)
    }

    fn only_try(&mut self) {
        self.is_trial = true;
    }
}

impl Kind for Socket {
    /// `None` if it was only tried.
    type Open = Option<Bound>;

    fn needed(server: &Server, change: &Change, _guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let (host, staying, tolerance) = (&change.host, &change.staying, change.tolerance);
        // What a strict start needs for more than one volume, or for a NIC, may not hang either.
        let no_less = if tolerance == Tolerance::NoResponse { Tolerance::Never } else { tolerance };
        let shared: BTreeSet<String> = host.nbd.endpoints.iter().map(name_of).collect();
        let is_shared = |name: &str| shared.contains(name);
        let of_all = host.nbd.endpoints.iter().filter(|at| !staying.contains(&ObjectId::Socket(name_of(at))));
        let of_nbd = of_volumes(server, change, false).chain(of_all);
        let of_nics =
            change.vms.of(host).flat_map(|(vm, spec)| spec.nics.iter().map(move |(nic, spec)| (vm, nic, spec)));
        let of_nics = of_nics.filter(|(vm, nic, _)| !staying.contains(&ObjectId::nic(vm, nic)));
        let of_nics = of_nics.filter_map(|(_, _, spec)| nic_socket(spec));
        let nbd = new(server, Serves::Nbd, of_nbd)?.into_iter();
        let nbd = nbd.map(|socket| (if is_shared(&socket.endpoint.to_string()) { no_less } else { tolerance }, socket));
        let disks = new(server, Serves::Disk, of_volumes(server, change, true))?.into_iter();
        let nics = new(server, Serves::Nic, of_nics)?.into_iter();
        Ok(nbd.chain(disks.map(|socket| (tolerance, socket))).chain(nics.map(|socket| (no_less, socket))).collect())
    }

    fn is_met_by(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint && (self.is_trial || !other.is_trial)
    }

    /// Makes sockets. Those that replace one in use do so when all have been made, and nothing else can hang.
    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        let (replacing, new): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, socket)| socket.ours.is_some());
        job.open_each(new, |socket| {
            let prepared = socket.prepare()?;
            Ok(if socket.is_trial { None } else { Some(prepared.place()?) })
        })?;
        let mut unplaced = Vec::new();
        for (tolerance, socket) in replacing {
            job.progress.set(&socket.path());
            match socket.prepare() {
                Ok(prepared) if !socket.is_trial => unplaced.push((tolerance, socket, prepared)),
                tried => job.add(tolerance, socket, tried.map(|_| None))?,
            }
        }
        unplaced.into_iter().try_for_each(|(tolerance, socket, prepared)| {
            job.progress.set(&socket.path());
            let placed = prepared.place().map(Some).map_err(ServerError::from);
            job.add(tolerance, socket, placed)
        })
    }
}

impl Socket {
    fn prepare(&self) -> Result<Prepared, ServerError> {
        Ok(Bound::prepare(self.endpoint.clone(), self.ours)?)
    }
}

/// Returns the sockets of these endpoints that the server does not have, without duplicates.
fn new<'a>(
    server: &Server,
    serves: Serves,
    endpoints: impl Iterator<Item = &'a ListenAddress>,
) -> Result<Vec<Socket>, ServerError> {
    let (mut new, mut seen) = (Vec::new(), BTreeSet::new());
    for endpoint in endpoints {
        let endpoint = translate::endpoint(endpoint);
        let name = endpoint.to_string();
        match server.sockets.get(&name) {
            Some(known) if known.serves() == serves && *known.endpoint() == endpoint => {}
            Some(known) if known.serves() == serves => return Err(ServerError::EndpointChanged(name)),
            _ if !seen.insert(name) => {}
            other => {
                let ours = other.and_then(Listening::file);
                new.push(Socket { endpoint, serves, ours, is_trial: false });
            }
        }
    }
    Ok(new)
}

/// Returns the endpoints of volumes, for NBD clients or for guests, that are new or had no socket. A volume that
/// stays out of service may have none, and is skipped.
fn of_volumes<'a>(server: &'a Server, change: &'a Change, of_guests: bool) -> impl Iterator<Item = &'a ListenAddress> {
    let same = |before: &Volume, volume: &Volume| {
        before.export.endpoint == volume.export.endpoint && is_guest(before) == is_guest(volume)
    };
    let volumes = change.vms.of(&change.host).flat_map(|(vm, spec)| {
        let before = server.host.vms.get(vm);
        spec.volumes.iter().map(move |(name, volume)| (vm, before.and_then(|vm| vm.volume(name)), volume))
    });
    let stays_out = move |vm: &str, before: Option<&Volume>, volume: &Volume| {
        before.is_some_and(|before| same(before, volume))
            && change.staying.contains(&ObjectId::volume(vm, &volume.name))
    };
    volumes
        .filter(move |(vm, before, volume)| is_guest(volume) == of_guests && !stays_out(vm, *before, volume))
        .map(|(_, _, volume)| &volume.export.endpoint)
}

fn is_guest(volume: &Volume) -> bool {
    volume.export.protocol != Protocol::Nbd
}
