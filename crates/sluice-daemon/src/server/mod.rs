//! The server for a host file: device threads, open volumes, listening sockets.
//!
//! A start is a reload from an empty file. A new file is applied in two steps. *Stage*: everything that can fail is
//! done next to what runs: new devices start, new volumes are opened and locked, new sockets are bound. If a part
//! fails, all of it is dropped, and nothing has changed. *Commit*: devices get their edits, sockets their export
//! lists, and what the file does not name any more is removed. VMs that stay are not paused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_api::printed::GuestSocket;
use sluice_api::status::OverridesInForce;
use sluice_config::{Device, Host, Nic, Volume};
use sluice_io::device::{Health, Snapshot, StoreSpec, VolumeGeneration};
use sluice_io::endpoint::Endpoint;
use sluice_io::reactor::Thread;
use sluice_io::shared_limit::SharedLimit;
use sluice_io::source::rbd::Rbd;
use sluice_io::source::{Facts, Source};
use sluice_io::store::delay::ModelMaker;
use sluice_io::vhost_user::counts::Counts;
use sluice_io::volume::VolumeInfo;
use sluice_sched::Bytes;
use tokio::sync::{Notify, oneshot};

use crate::control::roles::Roles;
use crate::metrics::Load;
use crate::monitor::{Served, space, space::Watched};
use crate::state;

mod absence;
mod ceph;
mod change;
mod claims;
mod closing;
mod commit;
mod connections;
mod disk;
mod drain;
mod error;
mod fd_store;
mod found;
pub(crate) mod gateways;
mod guard;
mod kinds;
mod links;
mod listening;
mod log;
mod loss;
mod meeting;
mod nics;
mod objects;
mod opening;
mod out_of_service;
mod rehearsal;
mod resizing;
mod running;
mod socket;
mod sockets;
mod stage;
pub mod stats;
pub(crate) mod tls;
mod tolerance;
mod translate;
mod volume;

pub use absence::{Absence, Absent};
use ceph::Clusters;
use change::Change;
use closing::close;
pub use connections::shortage as descriptors;
pub use disk::{Disks, Matches};
pub use drain::Draining;
pub use error::ServerError;
use fd_store::FdStore;
pub use found::{Found, Progress};
use gateways::Gateways;
use guard::{ClientsRefused, Closed};
pub use guard::{Force, Guard};
use kinds::ResourceKey;
use listening::{Listening, Serves};
pub use loss::LossQuery;
use objects::pair;
pub use objects::{nic_of, not_served, volume_of, without};
pub use opening::Needs;
pub use rehearsal::{Problem, ProblemKind, Rehearsal, block_size, rehearse};
use running::{Edits, Plane, Running};
use stage::Staged;
use stats::HostState;

/// Maximum time for the snapshots of all devices. Changes wait for it.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Block sizes of a volume, in bytes. `disk` is what direct I/O needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    pub guest: u32,
    pub disk: u32,
}

impl Blocks {
    fn of((store, info): &(StoreSpec, VolumeInfo)) -> Blocks {
        match store.facts() {
            Some(source) => Blocks { guest: source.block_size(), disk: source.alignment().offset },
            None => Blocks { guest: info.block_minimum, disk: info.block_minimum },
        }
    }

    fn bridged(source: &Facts) -> Option<Blocks> {
        Some(Blocks { guest: source.block_size(), disk: source.bridged_block()? })
    }

    /// Whether the disk has larger blocks than the guest.
    pub fn is_bridged(self) -> bool {
        self.disk > self.guest
    }

    /// What this costs.
    pub fn cost(self) -> String {
        let (guest, disk) = (Bytes(self.guest.into()), Bytes(self.disk.into()));
        format!(
            "Blocks of {guest} on a disk with blocks of {disk}: a write of less than a block costs a read and a write there"
        )
    }
}

/// The answer to a claim that cannot be sent.
fn refused(why: &str) -> oneshot::Receiver<Result<(), String>> {
    let (answer, refused) = oneshot::channel();
    let _ = answer.send(Err(why.to_owned()));
    refused
}

/// A claim that was sent to the place where hosts meet.
pub struct ClaimOf {
    pub device: String,
    pub meeting: sluice_config::Meeting,
    /// Whether it is confirmed; the error is in words.
    pub answer: oneshot::Receiver<Result<(), String>>,
}

/// A removed volume. Its bytes stay locked until its last request completes, and its reads may still write to guest
/// memory until then.
struct RemovedVolume {
    /// The socket of its VMM.
    socket: Option<PathBuf>,
    source: LeftSource,
}

/// The source of a removed volume, as long as an operation may use it.
enum LeftSource {
    File(Weak<Source>),
    Image(Weak<Source<Rbd>>),
}

impl RemovedVolume {
    fn has_ended(&self) -> bool {
        match &self.source {
            LeftSource::File(source) => source.strong_count() == 0,
            LeftSource::Image(source) => source.strong_count() == 0,
        }
    }
}

/// Everything that runs for a host file.
pub struct Server {
    host: Arc<Host>,
    /// The running devices and uplinks of the file. One that could not be started is out of service with its volumes.
    devices: BTreeMap<String, Running>,
    /// Store and properties of every served volume.
    served: BTreeMap<ObjectId, (StoreSpec, VolumeInfo)>,
    /// Generation of every served volume and NIC.
    generations: BTreeMap<ObjectId, VolumeGeneration>,
    /// Removed volumes whose last requests may still be in flight.
    removed: Vec<RemovedVolume>,
    absent: Absent,
    /// Sockets that accept clients, by name.
    sockets: BTreeMap<String, Listening>,
    /// Open TAPs of NICs.
    taps: nics::Taps,
    fd_store: FdStore,
    connection_limit: Arc<SharedLimit>,
    gateways: Gateways,
    clusters: Arc<Clusters>,
    /// Notified when a device goes down.
    down: Arc<Notify>,
    /// Models that replace the servers of `delay` devices, by device.
    models: BTreeMap<String, ModelMaker>,
}

/// An action of a change in addition to its host file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// Extends the file of this volume to the size in the host file.
    Grow(ObjectId),
    /// Retries to open this volume, NIC or socket, which is out of service.
    Retry(ObjectId),
    /// Puts what cannot be served out of service, and serves the others.
    Tolerate,
}

/// Progress of applying a host file.
pub enum Step {
    /// Everything that depends on disks and files has succeeded.
    Prepared(Box<Prepared>),
    /// This is needed first, and may take long.
    Needs(Box<Needs>),
    /// The source or offset of these volumes differs from when they were last served, or they are smaller, and how. They
    /// must be left out, or forced.
    Held(BTreeMap<ObjectId, String>),
}

/// A host file that can be put into force, as long as nothing else changes. Dropping it undoes what was done for it.
pub struct Prepared {
    change: Change,
    needs: Needs,
    found: Found,
    staged: Option<Staged>,
    /// Volumes that it closes, and how.
    closed: Closed,
    refused: ClientsRefused,
}

impl Prepared {
    /// The host file.
    pub fn host(&self) -> &Host {
        &self.change.host
    }

    /// Returns what its new and changed volumes serve, by `VM/VOLUME`.
    pub fn serves(&self) -> impl Iterator<Item = (String, state::Served)> {
        let staged = self.staged.as_ref().expect("it is not in force yet");
        let volumes = staged.volumes.iter().chain(&staged.resized);
        guard::serves(volumes.map(|(name, (store, _))| (name, store)))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        close(self.staged.take().into_iter().collect());
    }
}

/// A change that has been made.
pub struct Done {
    /// Number of changes to devices.
    pub changes: usize,
    /// Devices that have not confirmed their part.
    pub unapplied: Vec<ServerError>,
}

/// A server of an empty host file.
impl Default for Server {
    fn default() -> Self {
        let nothing = sluice_config::parse("empty", "").unwrap_or_else(|_| unreachable!("an empty file is right"));
        Server {
            host: Arc::new(nothing),
            devices: BTreeMap::new(),
            served: BTreeMap::new(),
            generations: BTreeMap::new(),
            removed: Vec::new(),
            absent: Absent::default(),
            sockets: BTreeMap::new(),
            taps: BTreeMap::new(),
            fd_store: FdStore::of_environment(),
            connection_limit: Arc::default(),
            gateways: Gateways::of(None),
            clusters: Arc::new(Clusters::of(None)),
            down: Arc::default(),
            models: BTreeMap::new(),
        }
    }
}

impl Server {
    /// A server of an empty host file, with what is kept in this state directory.
    #[must_use]
    pub fn of(folder: Option<PathBuf>) -> Server {
        let clusters = Arc::new(Clusters::of(folder.as_deref()));
        Server { gateways: Gateways::of(folder), clusters, ..Server::default() }
    }

    /// Gives a `delay` device that starts from now on the completion times of a model. For experiments; a host file cannot name one.
    pub fn set_model(&mut self, device: &str, model: ModelMaker) {
        self.models.insert(device.to_owned(), model);
    }

    /// Returns the host file in force.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Applies `host`, all or nothing, and waits for everything that this needs.
    pub fn apply(&mut self, host: &Arc<Host>) -> Result<Done, ServerError> {
        self.apply_with(host, &Extra::Nothing)
    }

    fn apply_with(&mut self, host: &Arc<Host>, extra: &Extra) -> Result<Done, ServerError> {
        let mut found = Found::default();
        let (saved, force) = (state::Saved::default(), Force::new(vec!["*".to_owned()]));
        let guard = Guard { saved: &saved, force: &force, held: &BTreeMap::new() };
        loop {
            match self.prepare(host, extra, &mut found, &guard)? {
                Step::Held(_) => unreachable!("everything is forced"),
                Step::Prepared(prepared) => return self.commit(*prepared),
                Step::Needs(needs) => {
                    let progress = Progress::default();
                    needs.meet(&progress);
                    found.add(progress.take());
                }
            }
        }
    }

    /// Prepares `host`, all or nothing, with the results in `found`. It waits for no disk and no file system; if
    /// something else is needed, this is returned. A volume that is out of service stays so unless `host` changes it
    /// or `extra` retries it: its path may hang, and must not delay other changes.
    pub fn prepare(
        &self,
        host: &Arc<Host>,
        extra: &Extra,
        found: &mut Found,
        guard: &Guard<'_>,
    ) -> Result<Step, ServerError> {
        stage::check_devices(self, host)?;
        let change = Change::new(self, host, extra, guard);
        let needs = Needs::of(self, &change, guard)?;
        let closed = guard::closed(&change, guard);
        guard::refuse_in_use(self, &closed)?;
        needs.leave_out_hung(found)?;
        let differing = guard::differing(self, &needs, found, guard);
        if !differing.is_empty() {
            found.forget(differing.keys().cloned().map(ResourceKey::Volume));
            return Ok(Step::Held(differing));
        }
        if change.is_start {
            let errors = rehearsal::errors(&change, &needs, found);
            if !errors.is_empty() {
                let untried = needs.untried(found).map(|needs| Step::Needs(Box::new(needs)));
                return untried.ok_or(ServerError::Several(errors));
            }
        }
        if !needs.are_met_by(found) {
            return Ok(Step::Needs(Box::new(needs.unmet(found))));
        }
        let mut staged = Staged::default();
        if let Err(error) = stage::stage(self, &change, &needs, found, &mut staged) {
            close(vec![staged]);
            return Err(error);
        }
        let (found, staged, refused) = (std::mem::take(found), Some(staged), ClientsRefused::default());
        Ok(Step::Prepared(Box::new(Prepared { change, needs, found, staged, closed, refused })))
    }

    /// Refuses new clients of the volumes that a prepared file closes, until it is in force or dropped.
    ///
    /// # Errors
    /// [`ServerError::InUse`]: a client has come since it was prepared.
    pub fn refuse_clients(&self, prepared: &mut Prepared) -> Result<(), ServerError> {
        prepared.refused = ClientsRefused::of(self, &prepared.closed)?;
        Ok(())
    }

    /// Claims what a prepared file promises more than the one in force, of each device that is a part of a pool.
    pub fn claim(&self, prepared: &Prepared) -> Vec<ClaimOf> {
        let staged = prepared.staged.as_ref().map(|staged| &staged.devices);
        let host = &prepared.change.host;
        let claims = host.devices.values().filter_map(|device| {
            let (stated, promised) = (device.pool.as_ref()?, translate::promised(host, device));
            let before = self.host.devices.get(&device.name).map(|device| translate::promised(&self.host, device));
            if promised.reserved <= before.unwrap_or_default().reserved {
                return None;
            }
            let running = self.devices.get(&device.name).or_else(|| staged?.get(&device.name))?;
            let answer = match running.pool.as_ref().filter(|pool| pool.is_at(&stated.meeting, stated.host)) {
                Some(pool) => pool.claim(promised),
                None => refused("the pool of a device that runs is changed first, and more is reserved then"),
            };
            Some(ClaimOf { device: device.name.clone(), meeting: stated.meeting.clone(), answer })
        });
        claims.collect()
    }

    /// Has pools follow what is in force, after a change that claimed more was not made.
    pub fn restate_pools(&mut self) {
        let host = Arc::clone(&self.host);
        for (name, stated) in &host.devices {
            self.devices.get_mut(name).into_iter().for_each(|running| running.meet(&host, stated, true));
        }
    }

    /// Puts a prepared file into force, all or nothing. Nothing may have changed since it was prepared.
    pub fn commit(&mut self, mut prepared: Prepared) -> Result<Done, ServerError> {
        let mut staged = prepared.staged.take().expect("it is put into force once");
        // Sockets accept clients from now on, and find their volumes a moment later.
        let Prepared { change, needs, found, .. } = &mut prepared;
        let listening = sockets::listen(self, change, needs, found, &mut staged);
        let done = listening.and_then(|()| commit::commit(self, change, &mut staged));
        if done.is_err() {
            close(vec![staged]);
        }
        done
    }

    /// Returns the file in force without what is out of service.
    fn in_service(&self) -> Arc<Host> {
        let out: Vec<&ObjectId> = self.absent.out_of_service().map(|(name, _)| name).collect();
        match without(&self.host, out.into_iter()) {
            Cow::Borrowed(_) => Arc::clone(&self.host),
            Cow::Owned(host) => Arc::new(host),
        }
    }

    /// Whether no host file is in force yet.
    fn is_start(&self) -> bool {
        self.host.devices.is_empty() && self.host.uplinks.is_empty()
    }

    /// Returns the device of a volume, the uplink of a NIC, or a device itself, in the host file.
    pub fn device_of(&self, name: &ObjectId) -> Option<&str> {
        match name {
            ObjectId::Device(device) => self.host.devices.get_key_value(device).map(|(device, _)| device.as_str()),
            ObjectId::Nic { .. } => nic_of(&self.host, name).map(|nic| nic.uplink.as_str()),
            ObjectId::Volume { .. } => volume_of(&self.host, name).map(|volume| volume.device.as_str()),
            ObjectId::Uplink(_) | ObjectId::Socket(_) => None,
        }
    }

    /// Notified when a device goes down.
    pub fn down(&self) -> Arc<Notify> {
        Arc::clone(&self.down)
    }

    /// Whether the device of this volume is down.
    pub fn is_down(&self, device: Option<&str>) -> bool {
        let running = device.and_then(|device| self.devices.get(device));
        running.is_some_and(|running| matches!(running.device.health(), Health::Down | Health::Ended))
    }

    /// Whether there are devices, and all of them are down.
    pub fn is_dead(&self) -> bool {
        let mut devices = self.devices.values().map(|running| running.device.health());
        !self.devices.is_empty() && devices.all(|health| health == Health::Down)
    }

    /// Whether removed volumes may have held bytes since the last call. A volume whose last request has just
    /// completed counts once more, because its lock is released a moment later.
    pub fn had_removed(&mut self) -> bool {
        let any = !self.removed.is_empty();
        self.removed.retain(|volume| !volume.has_ended());
        any
    }

    /// Returns what is served, for those who observe it.
    pub fn served(&self, roles: &Roles, file: &Path, load: Load) -> Served {
        let guests = sockets::of_guests(self);
        Served {
            load,
            guests: guests.map(|(name, _, counts)| (name, Arc::clone(counts))).collect(),
            roles: roles.clone(),
            file: file.to_owned(),
            host: Arc::clone(&self.host),
            devices: self.devices.values().map(|running| running.device.watch()).collect(),
            absent: self.absent.clone(),
            sources: self.sources(),
            aside: Vec::new(),
            overrides: OverridesInForce::default(),
            refused_reload: None,
            blocks: self.served.iter().map(|(name, served)| (name.clone(), Blocks::of(served))).collect(),
            rotational: self
                .devices
                .iter()
                .filter(|(_, running)| running.rotational)
                .map(|(name, _)| name.clone())
                .collect(),
            disks: self.devices.iter().filter_map(|(name, running)| self.several(name, running)).collect(),
        }
    }

    /// Returns the names of the disks of a device that may have several.
    fn several(&self, name: &str, running: &Running) -> Option<(String, Vec<String>)> {
        let disks = running.disks.as_ref().filter(|_| self.host.devices.get(name).is_some_and(Device::may_grow))?;
        Some((name.to_owned(), disks.names().map(str::to_owned).collect()))
    }

    /// Returns the properties of a served volume.
    pub fn info(&self, vm: &str, volume: &str) -> Option<&VolumeInfo> {
        self.served.get(&ObjectId::volume(vm, volume)).map(|(_, info)| info)
    }

    /// The open sources.
    fn sources(&self) -> Vec<Watched> {
        let of = |(name, (store, _)): (&ObjectId, &(StoreSpec, VolumeInfo))| {
            Some(space::watched(name, self.device_of(name)?, store.source()?))
        };
        self.served.iter().filter_map(of).collect()
    }

    /// The devices that run.
    pub fn running(&self) -> impl Iterator<Item = &Thread> {
        self.devices.values().map(|running| &*running.device)
    }

    /// Returns a snapshot of every device; for a device that does not respond, its health.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        drain::ask(self.running(), ANSWER_MAX)
    }

    /// Returns the state of the host apart from its devices.
    #[must_use]
    pub fn host_state(&self) -> HostState {
        let of = |(name, endpoint, counts): (ObjectId, &Endpoint, &Arc<Counts>)| {
            let (vm, volume) = pair(&name);
            let totals = counts.totals();
            GuestSocket {
                vm,
                volume,
                socket: endpoint.to_string(),
                sessions: totals.sessions,
                turned_away: totals.rejected,
                refusals: totals.refusals,
                faults: totals.faults,
                config_changes: totals.config_changes,
                taken_over: totals.recovered,
            }
        };
        HostState {
            connections_max: self.connection_limit.max(),
            sockets: sockets::of_guests(self).map(of).collect(),
            missing: self.absent.faulty().cloned().collect(),
            held: not_served(self.absent.held_back()),
        }
    }

    /// Stops accepting clients and requests, and ends when all requests have completed or at `deadline`.
    #[must_use]
    pub fn drain(self, deadline: Instant) -> Draining {
        let devices = self.devices.into_values().map(|running| running.device.into()).collect();
        let is_nbd = |listening: &Listening| listening.serves() == Serves::Nbd;
        let (listeners, guests) = self.sockets.into_values().partition(is_nbd);
        Draining::begin(devices, listeners, guests, deadline)
    }
}

/// Whether a volume is served further when the second description replaces the first, possibly with another size.
pub fn is_same_source(before: &Volume, after: &Volume) -> bool {
    objects::stays(Some(before), after)
}

/// Whether a NIC is served further when the second description replaces the first.
pub fn is_same_nic(before: &Nic, after: &Nic) -> bool {
    objects::nic_stays(Some(before), after)
}

#[cfg(test)]
mod tests;
