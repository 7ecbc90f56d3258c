//! What stays out of service, and what a change leaves out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::Host;
use sluice_io::source::owner::Owner;

use super::absence::{Absence, Absent};
use super::change::Change;
use super::objects::{name_of, nic_of, nic_socket, stays, volume_of};
use super::socket::Socket;
use super::{Extra, Force, Prepared, Server, translate};

/// Puts NICs and shared sockets out of service whose sockets were not made.
pub(super) fn leave_out_sockets(
    server: &Server,
    change: &Change,
    failed: &BTreeMap<String, Absence>,
    absent: &mut BTreeMap<ObjectId, Absence>,
) {
    let of_nics = change.vms.of(&change.host).flat_map(|(vm, spec)| {
        let sockets = spec.nics.iter().filter_map(|(nic, spec)| Some((nic, nic_socket(spec)?)));
        sockets.map(move |(nic, endpoint)| (ObjectId::nic(vm, nic), name_of(endpoint)))
    });
    let of_all = change.host.nbd.endpoints.iter().map(name_of).map(|socket| (ObjectId::Socket(socket.clone()), socket));
    for (name, socket) in of_nics.chain(of_all) {
        let stays = server.absent.get(&name).filter(|_| change.staying.contains(&name)).cloned();
        if let Some(reason) = stays.or_else(|| failed.get(&socket).cloned()) {
            absent.insert(name, reason);
        }
    }
}

impl Server {
    /// What is not in force, and why.
    pub fn absent(&self) -> &Absent {
        &self.absent
    }

    /// Returns the client whose lock keeps a volume out of service.
    #[must_use]
    pub fn lock_owner(&self, name: &ObjectId) -> Option<Owner> {
        self.clusters.owner(name).filter(|_| self.absent.is_out(name))
    }

    /// Lets the next retry of a volume take the lock of its image from the client with this address; `None`: not any more.
    pub fn grant_lock(&self, name: &ObjectId, address: Option<&str>) {
        self.clusters.grant(name, address);
    }

    /// Replaces what is held back.
    pub fn hold(&mut self, held: BTreeMap<ObjectId, String>) {
        self.absent.hold(held);
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
                both.is_some_and(|(old, new)| old.paths == new.paths && translate::fixed_difference(old, new).is_none())
            }
            ObjectId::Volume { .. } => volume_of(&self.host, name)
                .zip(volume_of(host, name))
                .is_some_and(|(old, new)| old.size == new.size && stays(Some(old), new)),
            ObjectId::Nic { .. } => socket(host, name).is_some_and(|new| socket(&self.host, name) == Some(new)),
            ObjectId::Uplink(_) => false,
        };
        let out = self.absent.out_of_service().map(|(name, _)| name);
        out.filter(|name| !is_looked_at(name) && is_same(name)).cloned().collect()
    }

    /// Records what a change has left out. `host` is the file in force.
    pub(super) fn set_absent(&mut self, left_out: BTreeMap<ObjectId, Absence>, host: &Host) {
        let is_there = |name: &ObjectId| match name {
            ObjectId::Socket(_) => true,
            ObjectId::Device(device) => host.devices.contains_key(device),
            ObjectId::Nic { .. } => nic_of(host, name).is_some(),
            ObjectId::Volume { .. } => volume_of(host, name).is_some(),
            ObjectId::Uplink(_) => false,
        };
        self.absent.settle(left_out, is_there);
    }

    /// Records the reasons of a retry that found nothing that can be served.
    pub fn still_absent(&mut self, mut prepared: Prepared) {
        let staged = prepared.staged.as_mut().expect("it is not in force yet");
        let (left_out, host) = (std::mem::take(&mut staged.absent), Arc::clone(&self.host));
        self.set_absent(left_out, &host);
    }
}

impl Prepared {
    /// Whether it would change nothing.
    pub fn is_void(&self) -> bool {
        !self.found.has::<Socket>() && self.staged.as_ref().is_some_and(|staged| staged.is_void())
    }
}
