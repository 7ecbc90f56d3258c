//! The table of what the host file has and is not in force, each with its state and the reason.
//!
//! A fault of one VM's world is no error of the host. At a start, what cannot be served is left out, with its reason, and
//! everything else is served. It keeps its name, its reservation, and its socket if that could be made: clients wait there. Each
//! second it is retried ([`super::Extra::Retry`]), and the same guards apply as at a start. What is held back waits for the operator
//! instead.

use std::collections::BTreeMap;
use std::mem::take;

use sluice_api::object::ObjectId;
use sluice_io::source::SourceError;

use super::ServerError;
use crate::failure::chain;

/// State of an object that is not in force, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// A volume may not be served as it is: its source or offset differs from when it was last served, or it is smaller.
    HeldBack(String),
    /// It cannot be used, and is retried each second.
    OutOfService(String),
    /// As [`Absence::OutOfService`]: its path leads to the file or disk of another volume. It is located again when the other one is
    /// retried.
    SharesAFile(String),
    /// A device serves without some of its disks, which are looked for each second.
    LacksDisks(String),
    /// Its interface is out of service, and is looked for each second. The uplink or NIC runs without it.
    NoInterface(String),
}

impl Absence {
    /// For people.
    pub fn reason(&self) -> &str {
        let (Absence::HeldBack(reason)
        | Absence::OutOfService(reason)
        | Absence::SharesAFile(reason)
        | Absence::LacksDisks(reason)
        | Absence::NoInterface(reason)) = self;
        reason
    }

    /// Returns the reason for which a volume, device or socket is out of service, without the name of the volume.
    pub(super) fn of(error: &ServerError) -> Absence {
        match error {
            ServerError::Volume { source, .. } if error.is_claimed() => Absence::SharesAFile(chain(source)),
            ServerError::Volume { source, .. } => Absence::OutOfService(chain(source)),
            ServerError::LacksDisks { .. } => Absence::LacksDisks(chain(error)),
            ServerError::VolumeInfo { source, .. } => Absence::OutOfService(chain(source)),
            ServerError::Disk { device, source: SourceError::Silent { path, seconds } } => {
                let error = ServerError::Hangs { path: path.clone(), seconds: *seconds };
                Absence::OutOfService(format!("Device {device}: {error}"))
            }
            other => Absence::OutOfService(chain(other)),
        }
    }

    fn is_held(&self) -> bool {
        matches!(self, Absence::HeldBack(_))
    }

    fn is_interface(&self) -> bool {
        matches!(self, Absence::NoInterface(_))
    }

    /// Whether it is a device that serves other disks.
    pub(super) fn is_partial(&self) -> bool {
        matches!(self, Absence::LacksDisks(_))
    }

    fn report(&self, name: &ObjectId) {
        let ((vm, own), error) = (name.parts(), self.reason());
        match (self, name) {
            (Absence::LacksDisks(_), _) => {
                tracing::error!(device = &*own, error, "Device runs without some of its disks; retrying");
            }
            // The change that holds it back reports it.
            (Absence::HeldBack(_), _) => {}
            (Absence::NoInterface(_), ObjectId::Uplink(device)) => {
                tracing::error!(device, error, "Uplink is out of service; retrying");
            }
            (Absence::NoInterface(_), _) => tracing::error!(vm, nic = &*own, error, "NIC is out of service; retrying"),
            _ => tracing::error!(vm, volume = &*own, error, "{} is out of service; retrying", name.kind()),
        }
    }

    fn report_end(&self, name: &ObjectId) {
        let (vm, own) = name.parts();
        match (self, name) {
            (Absence::LacksDisks(_), _) => tracing::info!(device = &*own, "Device has all its disks"),
            (Absence::HeldBack(_), _) => tracing::info!(vm, volume = &*own, "Volume is not held back any more"),
            (Absence::NoInterface(_), ObjectId::Uplink(device)) => tracing::info!(device, "Uplink is in service again"),
            (Absence::NoInterface(_), _) => tracing::info!(vm, nic = &*own, "NIC is in service again"),
            _ => tracing::info!(vm, volume = &*own, "{} is in service again", name.kind()),
        }
    }
}

/// What is not in force, by name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Absent(BTreeMap<ObjectId, Absence>);

impl Absent {
    /// Volumes that are held back.
    pub fn held_back(&self) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.of(Absence::is_held)
    }

    /// What is out of service, and is retried.
    pub fn out_of_service(&self) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.of(|absence| !absence.is_held() && !absence.is_interface())
    }

    /// Uplinks and NICs that run without their interfaces.
    pub fn interfaces(&self) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.of(Absence::is_interface)
    }

    /// What is out of service, and what has no interface.
    pub fn faulty(&self) -> impl Iterator<Item = &ObjectId> {
        self.out_of_service().chain(self.interfaces()).map(|(name, _)| name)
    }

    pub fn get(&self, name: &ObjectId) -> Option<&Absence> {
        self.0.get(name)
    }

    /// Whether it is out of service, and is retried.
    pub fn is_out(&self, name: &ObjectId) -> bool {
        self.get(name).is_some_and(|absence| !absence.is_held() && !absence.is_interface())
    }

    fn of(&self, is: impl Fn(&Absence) -> bool) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.0.iter().filter(move |(_, absence)| is(absence)).map(|(name, absence)| (name, absence.reason()))
    }

    /// Replaces what is out of service by what a change has left out, and adds its interfaces. `is_there`: whether the file has it.
    pub(super) fn settle(&mut self, mut left_out: BTreeMap<ObjectId, Absence>, is_there: impl Fn(&ObjectId) -> bool) {
        let interfaces = self.0.iter().filter(|(_, absence)| absence.is_interface());
        for (name, absence) in interfaces.map(|(name, absence)| (name.clone(), absence.clone())) {
            left_out.entry(name).or_insert(absence);
        }
        self.replace(|absence| !absence.is_held(), left_out, is_there);
    }

    /// Replaces the interfaces that are out of service.
    pub(super) fn set_interfaces(&mut self, interfaces: BTreeMap<ObjectId, Absence>) {
        self.replace(Absence::is_interface, interfaces, |_| true);
    }

    /// Replaces what is held back.
    pub(super) fn hold(&mut self, held: BTreeMap<ObjectId, String>) {
        let held = held.into_iter().map(|(name, reason)| (name, Absence::HeldBack(reason)));
        self.replace(Absence::is_held, held.collect(), |_| true);
    }

    /// Replaces some, and reports what has begun and ended.
    fn replace(
        &mut self,
        which: impl Fn(&Absence) -> bool,
        now: BTreeMap<ObjectId, Absence>,
        is_there: impl Fn(&ObjectId) -> bool,
    ) {
        let (before, others): (BTreeMap<_, _>, _) = take(&mut self.0).into_iter().partition(|(_, known)| which(known));
        self.0 = others;
        let is_new = |name: &ObjectId, absence: &Absence| match before.get(name) {
            Some(known) => known != absence && !absence.is_interface(),
            None => true,
        };
        now.iter().filter(|(name, absence)| is_new(name, absence)).for_each(|(name, absence)| absence.report(name));
        let ended = before.iter().filter(|(name, _)| !now.contains_key(*name) && is_there(name));
        ended.for_each(|(name, known)| known.report_end(name));
        for (name, absence) in now {
            if let Some(held) = self.0.get(&name).filter(|known| known.is_held()) {
                held.report_end(&name);
            }
            self.0.insert(name, absence);
        }
    }
}
