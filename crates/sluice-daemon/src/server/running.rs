//! The thread of a device, or of an uplink, and how it gets its part of a change.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_io::device::{Device, Edit, EditError, Health};
use sluice_io::reactor::Thread;
use sluice_io::source::DiskSet;
use sluice_io::uplink::link::Link;
use sluice_io::uplink::{self, Uplink};

use super::translate;
use crate::pool::PoolExchange;
use sluice_config::Host;

/// Maximum time for a device to confirm its part of a change. It is short because other changes wait for it; the
/// device applies its part later all the same.
const EDIT_MAX: Duration = Duration::from_secs(1);
/// Maximum time for a device that has not confirmed its last change to show that it responds again.
const GLANCE: Duration = Duration::from_millis(10);

/// The thread of a device, or of an uplink.
pub(super) enum Plane {
    Disk(Device),
    Uplink(Uplink),
}

impl Deref for Plane {
    type Target = Thread;

    fn deref(&self) -> &Thread {
        match self {
            Plane::Disk(device) => device,
            Plane::Uplink(uplink) => uplink,
        }
    }
}

impl From<Plane> for Thread {
    fn from(plane: Plane) -> Thread {
        match plane {
            Plane::Disk(device) => device.into(),
            Plane::Uplink(uplink) => uplink.into(),
        }
    }
}

/// Changes of a device, or of an uplink.
pub(super) enum Edits {
    Disk(Vec<Edit>),
    Uplink(Vec<uplink::Edit>),
}

impl Edits {
    pub(super) fn len(&self) -> usize {
        match self {
            Edits::Disk(edits) => edits.len(),
            Edits::Uplink(edits) => edits.len(),
        }
    }

    /// Whether nothing is changed or added.
    pub(super) fn only_removes(&self) -> bool {
        match self {
            Edits::Disk(edits) => {
                edits.iter().all(|edit| matches!(edit, Edit::RemoveVm { .. } | Edit::RemoveVolume { .. }))
            }
            Edits::Uplink(edits) => {
                edits.iter().all(|edit| matches!(edit, uplink::Edit::RemoveVm { .. } | uplink::Edit::RemoveNic { .. }))
            }
        }
    }
}

/// A running device.
pub(super) struct Running {
    pub(super) device: Plane,
    /// The disks below it; none for a null device.
    pub(super) disks: Option<DiskSet>,
    /// The open interface of an uplink.
    pub(super) link: Option<Arc<Link>>,
    /// Its exchange with other hosts, if it is a part of a pool.
    pub(super) pool: Option<PoolExchange>,
    /// Whether its disk reports that it is rotational.
    pub(super) rotational: bool,
    /// Whether it has not confirmed its part of the last change, and has not responded since.
    pub(super) is_silent: Cell<bool>,
}

impl Running {
    pub(super) fn new(device: Plane, disks: Option<DiskSet>) -> Running {
        let rotational = disks.as_ref().is_some_and(DiskSet::is_rotational);
        Running { device, disks, link: None, pool: None, rotational, is_silent: Cell::new(false) }
    }

    /// Adds disks to a device of several.
    pub(super) fn join(&mut self, device: &str, disks: DiskSet) {
        tracing::info!(device, %disks, "Disks have joined the device");
        self.rotational |= disks.is_rotational();
        self.disks.get_or_insert_default().add(disks);
    }

    /// Meets other hosts as a host file states, which may not be in force yet.
    pub(super) fn meet(&mut self, host: &Host, stated: &sluice_config::Device, is_in_force: bool) {
        let stays = |pool: &PoolExchange| stated.pool.as_ref().is_some_and(|now| pool.is_at(&now.meeting, now.host));
        self.pool.take_if(|pool| !stays(pool)).into_iter().for_each(PoolExchange::leave);
        let (Some(mut what), Some(stated_pool)) = (translate::pool(host, stated), &stated.pool) else { return };
        what.promised = what.promised.filter(|_| is_in_force);
        if let Some(pool) = &mut self.pool {
            return pool.set(what);
        }
        let Some(handle) = self.disk().map(Device::pool) else { return };
        match PoolExchange::start(handle, &stated.name, stated_pool.meeting.clone(), what) {
            Ok(pool) => self.pool = Some(pool),
            Err(error) => tracing::error!(device = stated.name, %error, "Cannot start the exchange with other hosts"),
        }
    }

    /// Sends the device its part of a change and waits for its confirmation. For a device that hangs it waits only
    /// once: later changes are queued in its mailbox.
    pub(super) fn edit(&self, edits: Edits) -> Result<(), EditError> {
        self.ask(|timeout| match (&self.device, edits) {
            (Plane::Disk(device), Edits::Disk(edits)) => device.edit_within(edits, timeout),
            (Plane::Uplink(uplink), Edits::Uplink(edits)) => uplink.edit_within(edits, timeout),
            (Plane::Disk(_), Edits::Uplink(_)) => Err(EditError::Unknown("interface".to_owned())),
            (Plane::Uplink(_), Edits::Disk(_)) => Err(EditError::Unknown("disk".to_owned())),
        })
    }

    /// Refuses new clients of these volumes, each by its VM and its name there.
    pub(super) fn refuse_clients(&self, volumes: Vec<(String, String)>) -> Result<(), EditError> {
        self.ask(|timeout| self.device.refuse_clients(volumes, timeout))
    }

    /// Returns the thread if it is that of a device.
    pub(super) fn disk(&self) -> Option<&Device> {
        match &self.device {
            Plane::Disk(device) => Some(device),
            Plane::Uplink(_) => None,
        }
    }

    fn ask(&self, ask: impl FnOnce(Duration) -> Result<(), EditError>) -> Result<(), EditError> {
        if self.is_silent.get() {
            let now = self.device.request_snapshot().until(Instant::now() + GLANCE);
            self.is_silent.set(now.health == Health::Silent);
        }
        let timeout = if self.is_silent.get() { Duration::ZERO } else { EDIT_MAX };
        let edited = ask(timeout);
        self.is_silent.set(matches!(edited, Err(EditError::Silent(_))));
        edited
    }
}
