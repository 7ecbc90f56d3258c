//! What a host file becomes: device threads, open volumes, listening sockets.
//!
//! Starting is a reload of nothing. Either way a new file is applied in two steps. *Stage*: everything that can fail is
//! done beside what runs: new devices start, new volumes are opened and locked, new sockets are bound. If one of it
//! fails, all of it is dropped, and nothing has changed. *Commit*: devices get their edits, sockets their catalogues,
//! and what the file does not name any more goes. VMs that stay are not paused.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use sluice_config::Host;
use sluice_config::changes::Target;
use sluice_io::device::{Device, Edit, EditError, Snapshot, Store};
use sluice_io::listener::Listener;
use sluice_io::nbd::export::Export;
use sluice_io::seats::Seats;
use sluice_io::source::{DiskSet, Loss, Source, SourceError};
use sluice_io::vhost::counts::Totals;
use sluice_io::vhost::listener::VhostListener;

pub(crate) mod accounts;
mod commit;
mod error;
mod stage;
mod translate;

pub(crate) use error::PlaneError;

/// A volume's place in a host file: VM and volume.
pub(crate) type VolumeName = (String, String);

/// A device that runs.
pub(crate) struct Running {
    device: Device,
    /// The disks under it; none for a null device.
    disks: Option<DiskSet>,
    /// What its disk says of itself.
    rotational: bool,
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
    host: Host,
    devices: BTreeMap<String, Running>,
    /// What every volume is, and what its clients are told.
    served: BTreeMap<VolumeName, (Store, Export)>,
    /// Volumes that have left, whose last requests may still be at the device.
    leaving: Vec<Leaving>,
    listeners: Vec<Listener>,
    /// Sockets of guests.
    guests: Vec<VhostListener>,
    seats: Arc<Seats>,
}

impl Plane {
    /// Nothing yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        let nothing = sluice_config::parse("empty", "").unwrap_or_else(|_| unreachable!("an empty file is right"));
        Plane {
            host: nothing,
            devices: BTreeMap::new(),
            served: BTreeMap::new(),
            leaving: Vec::new(),
            listeners: Vec::new(),
            guests: Vec::new(),
            seats: Arc::default(),
        }
    }

    /// The file that is in force.
    #[must_use]
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Makes what runs what `host` says, all or nothing. Returns the number of changes to devices.
    pub(crate) fn apply(&mut self, host: Host) -> Result<usize, PlaneError> {
        let staged = stage::stage(self, &host)?;
        commit::commit(self, host, staged)
    }

    /// Whether volumes that have left may have held bytes since this was asked last: one whose last request has just ended
    /// counts once more, for its lock goes a moment later.
    pub(crate) fn had_leaving(&mut self) -> bool {
        let any = !self.leaving.is_empty();
        self.leaving.retain(|volume| !volume.is_over());
        any
    }

    /// Makes the file of a volume long enough for `bytes`; `None`: it is, or it has none.
    pub(crate) fn extend(&self, target: &Target, bytes: u64) -> Result<Option<Extended>, SourceError> {
        let name = (target.vm.clone(), target.volume.clone().unwrap_or_default());
        let Some((Store::File { source, .. }, _)) = self.served.get(&name) else { return Ok(None) };
        let before = source.extend(bytes)?;
        let grew = source.range().offset.saturating_add(bytes) > before;
        Ok(grew.then(|| Extended { source: Arc::clone(source), before }))
    }

    /// Why writes and flushes of a volume fail, if they do because of what a failed sync may have lost.
    #[must_use]
    pub(crate) fn loss(&self, vm: &str, volume: &str) -> Option<&'static str> {
        match &self.served.get(&(vm.to_owned(), volume.to_owned()))?.0 {
            Store::Null => None,
            Store::File { source, .. } => source.loss().reason(),
        }
    }

    /// Lets writes and flushes of the target's volumes go on where they fail because of what may have been lost. Returns
    /// whether there was any such volume.
    pub(crate) fn accept_loss(&self, target: &Target) -> Result<bool, EditError> {
        let volumes = self.host.vms[&target.vm].volumes.values();
        let mut any = false;
        for volume in volumes.filter(|volume| target.volume.as_ref().is_none_or(|name| *name == volume.name)) {
            if self.loss(&target.vm, &volume.name).is_some() {
                self.hear_of_loss(&target.vm, &volume.name);
                let (vm, name) = (target.vm.clone(), volume.name.clone());
                self.devices[&volume.device].device.edit(vec![Edit::AcceptLoss { vm, volume: name }])?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Whoever has the file or disk of this volume open may yet be told of the loss that is being accepted. If it is that of a
    /// volume alone, nobody may: what he would be told is his own.
    fn hear_of_loss(&self, vm: &str, volume: &str) {
        let source = |served: &(Store, Export)| match &served.0 {
            Store::Null => None,
            Store::File { source, .. } => Some(Arc::clone(source)),
        };
        let Some(lost) = self.served.get(&(vm.to_owned(), volume.to_owned())).and_then(source) else { return };
        if lost.loss() != Loss::OfFile {
            return;
        }
        let same = self.served.values().filter_map(source).filter(|other| other.id() == lost.id());
        same.filter(|other| !other.is_read_only()).for_each(|other| other.hear_of_loss());
    }

    /// What every device does at the moment.
    #[must_use]
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.devices.values().filter_map(|running| running.device.snapshot()).collect()
    }

    /// What happened at the sockets of guests.
    #[must_use]
    pub(crate) fn guest_sockets(&self) -> Vec<GuestSocket> {
        let of = |(vm, volume, listener): (&String, &String, &VhostListener)| GuestSocket {
            vm: vm.clone(),
            volume: volume.clone(),
            socket: listener.endpoint().to_string(),
            totals: listener.totals(),
        };
        commit::guest_sockets(self).map(of).collect()
    }

    /// Takes no more clients and no more requests; ends when everything is answered.
    #[must_use]
    pub(crate) fn drain(self) -> Draining {
        drop(self.listeners);
        self.devices.values().for_each(|running| running.device.drain());
        let devices = self.devices.into_values().map(|running| running.device).collect();
        Draining { devices, _guests: self.guests }
    }
}

/// A file that was made longer for a change that may yet fail.
pub(crate) struct Extended {
    source: Arc<Source>,
    before: u64,
}

impl Extended {
    /// Makes it as it was; nobody has been told of what is cut off.
    pub(crate) fn cut(self) {
        if let Err(error) = self.source.cut(self.before) {
            tracing::error!(path = %self.source.path().display(), %error, "File stays longer than it was");
        }
    }
}

/// Devices on their way out. Dropping it ends them at once.
pub(crate) struct Draining {
    devices: Vec<Device>,
    /// VMMs stay until their requests are answered; no other is let in, for the devices take none.
    _guests: Vec<VhostListener>,
}

impl Draining {
    /// Whether all have ended.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.devices.iter().all(Device::is_finished)
    }

    /// Ends those that have not ended by themselves; what every device did until its end.
    #[must_use]
    pub(crate) fn finish(self) -> Vec<Snapshot> {
        self.devices.into_iter().filter_map(Device::stop).collect()
    }
}

/// The edits of each device.
type Edits = BTreeMap<String, Vec<Edit>>;
