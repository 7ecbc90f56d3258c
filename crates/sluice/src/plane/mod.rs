//! What a host file becomes: device threads, open volumes, listening sockets.
//!
//! Starting is a reload of nothing. Either way a new file is applied in two steps. *Stage*: everything that can fail is
//! done beside what runs: new devices start, new volumes are opened and locked, new sockets are bound. If one of it
//! fails, all of it is dropped, and nothing has changed. *Commit*: devices get their edits, sockets their catalogues,
//! and what the file does not name any more goes. VMs that stay are not paused.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sluice_config::{Host, Vm, Volume};
use sluice_io::connection_limit::ConnectionLimit;
use sluice_io::device::{Device, Edit, EditError, Health, Snapshot, Store, VolumeGeneration};
use sluice_io::listener::Listener;
use sluice_io::nbd::export::Export;
use sluice_io::source::{DiskSet, Source};
use sluice_io::vhost_user::counts::Totals;
use sluice_io::vhost_user::listener::VhostListener;
use tokio::sync::Notify;

pub(crate) mod accounts;
mod commit;
mod connections;
mod drain;
mod error;
mod found;
mod loss;
mod opening;
mod sockets;
mod stage;
mod translate;

use accounts::HostState;
pub(crate) use drain::Draining;
pub(crate) use error::PlaneError;
pub(crate) use found::{Found, Progress};
pub(crate) use loss::Hearing;
pub(crate) use opening::Needs;
use stage::Staged;

/// How long all devices together may take to say what they do. Changes wait meanwhile.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a device may take to confirm its part of a change. Other changes wait meanwhile, so it is short; the device applies
/// its part later all the same.
const EDIT_MAX: Duration = Duration::from_secs(1);
/// How long a device that has not confirmed its last change may take to show that it responds again.
const GLANCE: Duration = Duration::from_millis(10);

/// A volume's place in a host file: VM and volume.
pub(crate) type VolumeName = (String, String);

/// A device that runs.
pub(crate) struct Running {
    device: Device,
    /// The disks under it; none for a null device.
    disks: Option<DiskSet>,
    /// What its disk says of itself.
    rotational: bool,
    /// It has not confirmed its part of the last change, and has not responded since.
    is_silent: Cell<bool>,
}

impl Running {
    fn new(device: Device, disks: Option<DiskSet>) -> Running {
        let rotational = disks.as_ref().is_some_and(DiskSet::is_rotational);
        Running { device, disks, rotational, is_silent: Cell::new(false) }
    }

    /// Sends the device its part of a change and waits for its confirmation, but only once for a device that hangs: its later
    /// changes queue up in its mailbox.
    fn edit(&self, edits: Vec<Edit>) -> Result<(), EditError> {
        if self.is_silent.get() {
            let now = self.device.ask().until(Instant::now() + GLANCE);
            self.is_silent.set(now.health == Health::Silent);
        }
        let patience = if self.is_silent.get() { Duration::ZERO } else { EDIT_MAX };
        let edited = self.device.edit_within(edits, patience);
        self.is_silent.set(matches!(edited, Err(EditError::Silent(_))));
        edited
    }
}

/// What happened at the socket of a guest.
pub(crate) struct GuestSocket {
    pub(crate) vm: String,
    pub(crate) volume: String,
    pub(crate) socket: String,
    pub(crate) totals: Totals,
}

/// A volume that has left. Until its last request ends its bytes stay locked, and what it reads may land in its guest's memory.
struct Leaving {
    /// Where its VMM was connected.
    socket: Option<PathBuf>,
    source: Weak<Source>,
}

impl Leaving {
    fn is_over(&self) -> bool {
        self.source.strong_count() == 0
    }
}

/// Everything that runs for a host file.
pub(crate) struct Plane {
    host: Arc<Host>,
    /// Those of the file that run. A device whose path hung at the start does not, and all its volumes are out of service.
    devices: BTreeMap<String, Running>,
    /// What every volume is, and what its clients are told.
    served: BTreeMap<VolumeName, (Store, Export)>,
    /// Of every served volume.
    generations: BTreeMap<VolumeName, VolumeGeneration>,
    /// Volumes that have left, whose last requests may still be at the device.
    leaving: Vec<Leaving>,
    /// Volumes of the file that are out of service: their path or their socket's folder hangs, or requests of a dead process
    /// hold their bytes.
    missing: BTreeSet<VolumeName>,
    /// By their names.
    listeners: BTreeMap<String, Listener>,
    /// Sockets of guests, by their names.
    guests: BTreeMap<String, VhostListener>,
    connection_limit: Arc<ConnectionLimit>,
    /// Notified when a device goes down.
    down: Arc<Notify>,
}

/// What a change does beyond what its host file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Extra {
    Nothing,
    /// Extends the file of this volume to the size in the host file.
    Grow(VolumeName),
    /// Tries again to open this volume, which is out of service.
    Retry(VolumeName),
}

/// How far the application of a host file has come.
pub(crate) enum Step {
    /// It is in force, as far as devices have confirmed it.
    Done(Done),
    /// This must be looked at first, which may take long.
    Needs(Needs),
}

/// A change that has been made.
pub(crate) struct Done {
    /// The number of changes to devices.
    pub(crate) changes: usize,
    /// Devices that have not confirmed their part.
    pub(crate) unapplied: Vec<PlaneError>,
}

impl Plane {
    /// Nothing yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        let nothing = sluice_config::parse("empty", "").unwrap_or_else(|_| unreachable!("an empty file is right"));
        Plane {
            host: Arc::new(nothing),
            devices: BTreeMap::new(),
            served: BTreeMap::new(),
            generations: BTreeMap::new(),
            leaving: Vec::new(),
            missing: BTreeSet::new(),
            listeners: BTreeMap::new(),
            guests: BTreeMap::new(),
            connection_limit: Arc::default(),
            down: Arc::default(),
        }
    }

    /// The file that is in force.
    #[must_use]
    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Makes what runs what `host` says, all or nothing, and waits for what that takes. Returns the number of changes to
    /// devices.
    pub(crate) fn apply(&mut self, host: &Arc<Host>) -> Result<usize, PlaneError> {
        let mut found = Found::default();
        loop {
            match self.apply_found(host, &Extra::Nothing, &mut found)? {
                Step::Done(done) => return Ok(done.changes),
                Step::Needs(needs) => {
                    let progress = Progress::new();
                    needs.meet(&progress);
                    found.add(progress.take());
                }
            }
        }
    }

    /// Makes what runs what `host` says, all or nothing, with what was found. It waits for no disk and no file system; what
    /// was not found and is needed now is returned. A volume that is out of service stays so unless `host` changes it or
    /// `extra` retries it: its path may hang, and must not delay other changes.
    pub(crate) fn apply_found(
        &mut self,
        host: &Arc<Host>,
        extra: &Extra,
        found: &mut Found,
    ) -> Result<Step, PlaneError> {
        stage::check_devices(self, host)?;
        let old = self.in_service();
        let changed = Changed::between(&old, host);
        let needs = opening::needs(self, &old, host, &changed, extra)?;
        needs.leave_out_hung(found)?;
        if !needs.are_met_by(found) {
            return Ok(Step::Needs(needs.beyond(found)));
        }
        let mut staged = Staged::default();
        let is_staged = stage::stage(self, (&old, host, &changed), (&needs, extra), found, &mut staged);
        drop(old);
        let done = is_staged.and_then(|()| commit::commit(self, Arc::clone(host), &changed, &mut staged));
        if done.is_err() {
            commit::close(vec![staged], commit::CLOSE_MAX);
        }
        done.map(Step::Done)
    }

    /// The file in force without the volumes that are out of service.
    fn in_service(&self) -> Cow<'_, Host> {
        without(&self.host, &self.missing)
    }

    /// Whether no host file is in force yet.
    fn is_start(&self) -> bool {
        self.host.devices.is_empty()
    }

    /// Whether a change starts this device: it is new, or it is out of service and a volume on it is retried.
    fn starts(&self, device: &str, host: &Host, extra: &Extra) -> bool {
        let is_retried = match extra {
            Extra::Retry((vm, volume)) => {
                let retried = host.vms.get(vm).and_then(|vm| vm.volumes.get(volume));
                retried.is_some_and(|volume| volume.device == device)
            }
            Extra::Nothing | Extra::Grow(_) => false,
        };
        !self.devices.contains_key(device) && (is_retried || !self.host.devices.contains_key(device))
    }

    /// Whether a volume is out of service, and a change to `volume` leaves it so without looking at its path.
    fn stays_missing(&self, name: &VolumeName, volume: &Volume, extra: &Extra) -> bool {
        let known = self.host.vms.get(&name.0).and_then(|vm| vm.volumes.get(&name.1));
        let same = known.is_some_and(|known| known.size == volume.size && stage::stays(Some(known), volume));
        same && self.missing.contains(name) && !matches!(extra, Extra::Retry(retried) if retried == name)
    }

    /// The device of a volume in the host file.
    pub(crate) fn device_of(&self, name: &VolumeName) -> Option<&str> {
        self.host.vms.get(&name.0)?.volumes.get(&name.1).map(|volume| volume.device.as_str())
    }

    /// Volumes that are out of service.
    pub(crate) fn missing(&self) -> &BTreeSet<VolumeName> {
        &self.missing
    }

    /// Notified when a device goes down.
    pub(crate) fn down(&self) -> Arc<Notify> {
        Arc::clone(&self.down)
    }

    /// Whether the device of this volume is down.
    pub(crate) fn is_down(&self, device: Option<&str>) -> bool {
        let running = device.and_then(|device| self.devices.get(device));
        running.is_some_and(|running| matches!(running.device.health(), Health::Down | Health::Ended))
    }

    /// Whether there are devices, and all are down.
    pub(crate) fn is_dead(&self) -> bool {
        let mut devices = self.devices.values().map(|running| running.device.health());
        !self.devices.is_empty() && devices.all(|health| health == Health::Down)
    }

    /// Whether volumes that have left may have held bytes since this was asked last: one whose last request has just ended
    /// counts once more, for its lock goes a moment later.
    pub(crate) fn had_leaving(&mut self) -> bool {
        let any = !self.leaving.is_empty();
        self.leaving.retain(|volume| !volume.is_over());
        any
    }

    /// What every device does at the moment; of one that does not answer, how it is.
    #[must_use]
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        drain::ask(self.devices.values().map(|running| &running.device), ANSWER_MAX)
    }

    /// What is shown beside what devices do.
    #[must_use]
    pub(crate) fn host_state(&self) -> HostState {
        let of = |(vm, volume, listener): (&String, &String, &VhostListener)| GuestSocket {
            vm: vm.clone(),
            volume: volume.clone(),
            socket: listener.endpoint().to_string(),
            totals: listener.totals(),
        };
        HostState {
            connections_max: self.connection_limit.max(),
            sockets: commit::guest_sockets(self).map(of).collect(),
            missing: self.missing.iter().map(|(vm, volume)| format!("{vm}/{volume}")).collect(),
        }
    }

    /// Takes no more clients and no more requests; ends when everything is answered, which is waited for until `deadline`.
    #[must_use]
    pub(crate) fn drain(self, deadline: Instant) -> Draining {
        let devices = self.devices.into_values().map(|running| running.device).collect();
        let (listeners, guests) = (self.listeners.into_values().collect(), self.guests.into_values().collect());
        Draining::begin(devices, listeners, guests, deadline)
    }
}

/// The VMs that are not in both files, or not the same. What a change costs follows from them, not from all.
struct Changed(BTreeSet<String>);

impl Changed {
    fn between(old: &Host, new: &Host) -> Changed {
        let same = |a: &Arc<Vm>, b: &Arc<Vm>| Arc::ptr_eq(a, b) || a == b;
        let differs = |(name, vm): &(&String, &Arc<Vm>)| !old.vms.get(*name).is_some_and(|old| same(old, vm));
        let changed = new.vms.iter().filter(differs).map(|(name, _)| name);
        let left = old.vms.keys().filter(|name| !new.vms.contains_key(*name));
        Changed(changed.chain(left).cloned().collect())
    }

    /// Those that a file has.
    fn of<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = (&'a String, &'a Vm)> {
        self.0.iter().filter_map(|name| host.vms.get_key_value(name)).map(|(name, vm)| (name, &**vm))
    }
}

/// A file without some of its volumes.
fn without<'a>(host: &'a Host, missing: &BTreeSet<VolumeName>) -> Cow<'a, Host> {
    if missing.is_empty() {
        return Cow::Borrowed(host);
    }
    let mut rest = host.clone();
    for (vm, volume) in missing {
        if let Some(vm) = rest.vms.get_mut(vm) {
            Arc::make_mut(vm).volumes.remove(volume);
        }
    }
    Cow::Owned(rest)
}

/// The edits of each device.
type Edits = BTreeMap<String, Vec<Edit>>;

#[cfg(test)]
mod tests;
