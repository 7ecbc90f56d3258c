//! What is out of service: devices that cannot be started, and volumes, NICs and sockets whose source, socket or device cannot be
//! used.
//!
//! A fault of one VM's world is no error of the host. At a start, what cannot be served is left out, with its reason, and
//! everything else is served. It keeps its name, its reservation, and its socket if that could be made: clients wait there. Each
//! second it is retried ([`Extra::Retry`]), and the same guards apply as at a start.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::object::ObjectId;
use sluice_config::Host;
use sluice_io::source::SourceError;

use super::change::Change;
use super::objects::{name_of, nic_of, nic_socket, stays, volume_of};
use super::socket::Socket;
use super::{Extra, Force, Prepared, Server, ServerError, translate};
use crate::failure::chain;

/// What is out of service, and why.
pub type Missing = BTreeMap<ObjectId, Reason>;

/// Why something is out of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Its path leads to the file or disk of another volume. It is located again when the other one is retried.
    SharesAFile(String),
    Other(String),
}

impl Reason {
    /// For people.
    pub fn text(&self) -> &str {
        let (Reason::SharesAFile(text) | Reason::Other(text)) = self;
        text
    }

    /// Returns the reason for which a volume or device is out of service, without the name of the volume.
    pub(super) fn of(error: &ServerError) -> Reason {
        match error {
            ServerError::Volume { source, .. } if matches!(source, SourceError::Claimed { .. }) => {
                Reason::SharesAFile(chain(source))
            }
            ServerError::Volume { source, .. } => Reason::Other(chain(source)),
            ServerError::VolumeInfo { source, .. } => Reason::Other(chain(source)),
            ServerError::Disk { device, source: SourceError::Silent { path, seconds } } => {
                let error = ServerError::Hangs { path: path.clone(), seconds: *seconds };
                Reason::Other(format!("Device {device}: {error}"))
            }
            other => Reason::Other(chain(other)),
        }
    }
}

/// Puts NICs and shared sockets out of service whose sockets were not made.
pub(super) fn leave_out_sockets(
    server: &Server,
    change: &Change,
    failed: &BTreeMap<String, Reason>,
    missing: &mut Missing,
) {
    let of_nics = change.vms.of(&change.host).flat_map(|(vm, spec)| {
        let sockets = spec.nics.iter().filter_map(|(nic, spec)| Some((nic, nic_socket(spec)?)));
        sockets.map(move |(nic, endpoint)| (ObjectId::nic(vm, nic), name_of(endpoint)))
    });
    let of_all = change.host.nbd.endpoints.iter().map(name_of).map(|socket| (ObjectId::Socket(socket.clone()), socket));
    for (name, socket) in of_nics.chain(of_all) {
        let stays = change.staying.contains(&name).then(|| server.missing[&name].clone());
        if let Some(reason) = stays.or_else(|| failed.get(&socket).cloned()) {
            missing.insert(name, reason);
        }
    }
}

impl Server {
    /// What is out of service, and why.
    pub fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Returns what is out of service and stays so with `host`, without a look at its paths: they may hang, and must not delay other
    /// changes. What is retried, forced or has other paths now is looked at.
    pub(super) fn staying(&self, host: &Host, extra: &Extra, force: &Force) -> BTreeSet<ObjectId> {
        let is_looked_at = |name: &ObjectId| match extra {
            Extra::Retry(retried) => name == retried,
            Extra::Nothing | Extra::Grow(_) | Extra::Tolerate => force.covers(name),
        };
        let socket = |host: &Host, name: &ObjectId| nic_of(host, name).and_then(nic_socket).cloned();
        let is_same = |name: &ObjectId| match name {
            ObjectId::Socket(socket) => host.nbd.endpoints.iter().any(|at| name_of(at) == *socket),
            ObjectId::Device(device) => {
                let both = self.host.devices.get(device).zip(host.devices.get(device));
                both.is_some_and(|(old, new)| translate::fixed_difference(old, new).is_none())
            }
            ObjectId::Volume { .. } => volume_of(&self.host, name)
                .zip(volume_of(host, name))
                .is_some_and(|(old, new)| old.size == new.size && stays(Some(old), new)),
            ObjectId::Nic { .. } => socket(host, name).is_some_and(|new| socket(&self.host, name) == Some(new)),
            ObjectId::Uplink(_) => false,
        };
        self.missing.keys().filter(|name| !is_looked_at(name) && is_same(name)).cloned().collect()
    }

    /// Records what is out of service from now on, and reports what has changed. `host` is the file in force.
    pub(super) fn set_missing(&mut self, missing: Missing, host: &Host) {
        for (name, reason) in missing.iter().filter(|(name, reason)| self.missing.get(*name) != Some(reason)) {
            let ((vm, volume), error) = (name.parts(), reason.text());
            tracing::error!(vm, volume = &*volume, error, "{} is out of service; retrying", name.kind());
        }
        let is_there = |name: &ObjectId| match name {
            ObjectId::Socket(_) => true,
            ObjectId::Device(device) => host.devices.contains_key(device),
            ObjectId::Nic { .. } => nic_of(host, name).is_some(),
            ObjectId::Volume { .. } => volume_of(host, name).is_some(),
            ObjectId::Uplink(_) => false,
        };
        for name in self.missing.keys().filter(|name| !missing.contains_key(*name) && is_there(name)) {
            let (vm, volume) = name.parts();
            tracing::info!(vm, volume = &*volume, "{} is in service again", name.kind());
        }
        self.missing = missing;
    }

    /// Records the reasons of a retry that found nothing that can be served.
    pub fn still_missing(&mut self, mut prepared: Prepared) {
        let staged = prepared.staged.as_mut().expect("it is not in force yet");
        let (missing, host) = (std::mem::take(&mut staged.missing), std::sync::Arc::clone(&self.host));
        self.set_missing(missing, &host);
    }
}

impl Prepared {
    /// Whether it would change nothing.
    pub fn is_void(&self) -> bool {
        !self.found.has::<Socket>() && self.staged.as_ref().is_some_and(|staged| staged.is_void())
    }
}
