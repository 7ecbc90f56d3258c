//! The sockets of a host file: which are needed, and who accepts at those that were made.
//!
//! A socket that one volume frees and another takes in the same change stays, if both speak the same. Else a new one is made
//! in its place, which the old one gets back if the change is not made.

use std::collections::{BTreeMap, BTreeSet};

use sluice_config::{Host, Protocol, Volume};
use sluice_io::listener::{Catalogue, Endpoint, Listener};
use sluice_io::vhost_user::listener::VhostListener;

use super::opening::{Found, Socket};
use super::{Changed, Plane, PlaneError, translate};

/// The sockets that must be made for `host`.
pub(super) fn needed(plane: &Plane, host: &Host, changed: &Changed) -> Result<Vec<Socket>, PlaneError> {
    let nbd = new_listeners(plane, host, changed)?.into_iter().map(|endpoint| {
        let ours = plane.guests.get(&endpoint.to_string()).map(VhostListener::file);
        Socket { endpoint, ours }
    });
    let guests = new_guests(plane, host, changed)?.into_iter().map(|endpoint| {
        let ours = plane.listeners.get(&endpoint.to_string()).and_then(Listener::file);
        Socket { endpoint, ours }
    });
    Ok(nbd.chain(guests).collect())
}

/// Starts to accept NBD clients at the sockets that were made for them.
pub(super) fn listen(
    plane: &Plane,
    host: &Host,
    changed: &Changed,
    found: &mut Found,
    listeners: &mut BTreeMap<String, Listener>,
) -> Result<(), PlaneError> {
    for endpoint in new_listeners(plane, host, changed)? {
        let name = endpoint.to_string();
        let bound = found.take_socket(&name).expect("what is needed was found")?;
        listeners.insert(name, Listener::start(bound, Catalogue::default(), &plane.connection_limit)?);
    }
    Ok(())
}

/// The same for VMMs.
pub(super) fn listen_to_guests(
    plane: &Plane,
    host: &Host,
    changed: &Changed,
    found: &mut Found,
    listeners: &mut BTreeMap<String, VhostListener>,
) -> Result<(), PlaneError> {
    for endpoint in new_guests(plane, host, changed)? {
        let name = endpoint.to_string();
        let bound = found.take_socket(&name).expect("what is needed was found")?;
        listeners.insert(name, VhostListener::start(bound, None, &plane.connection_limit)?);
    }
    Ok(())
}

fn new_listeners(plane: &Plane, host: &Host, changed: &Changed) -> Result<Vec<Endpoint>, PlaneError> {
    let own = new_endpoints(plane, host, changed, |volume| !is_guest(volume));
    let known = |name: &str| plane.listeners.get(name).map(Listener::endpoint);
    beside(known, own.chain(&host.nbd.endpoints))
}

fn new_guests(plane: &Plane, host: &Host, changed: &Changed) -> Result<Vec<Endpoint>, PlaneError> {
    let known = |name: &str| plane.guests.get(name).map(VhostListener::endpoint);
    beside(known, new_endpoints(plane, host, changed, is_guest))
}

/// Those that are not `known`, each once.
fn beside<'a>(
    known: impl Fn(&str) -> Option<&'a Endpoint>,
    endpoints: impl Iterator<Item = &'a sluice_config::Endpoint>,
) -> Result<Vec<Endpoint>, PlaneError> {
    let (mut new, mut seen) = (Vec::new(), BTreeSet::new());
    for endpoint in endpoints {
        let endpoint = translate::endpoint(endpoint);
        let name = endpoint.to_string();
        match known(&name) {
            Some(known) if *known == endpoint => {}
            Some(_) => return Err(PlaneError::EndpointChanged(name)),
            None if !seen.insert(name) => {}
            None => new.push(endpoint),
        }
    }
    Ok(new)
}

/// The endpoints of volumes that did not have them before.
fn new_endpoints<'a>(
    plane: &'a Plane,
    host: &'a Host,
    changed: &'a Changed,
    of: impl Fn(&Volume) -> bool,
) -> impl Iterator<Item = &'a sluice_config::Endpoint> {
    let volumes = changed.of(host).flat_map(|(vm, spec)| {
        let before = plane.host.vms.get(vm);
        spec.volumes.iter().map(move |(name, volume)| (before.and_then(|vm| vm.volumes.get(name)), volume))
    });
    let same = |before: Option<&Volume>, volume: &Volume| {
        before.is_some_and(|before| {
            before.export.endpoint == volume.export.endpoint && is_guest(before) == is_guest(volume)
        })
    };
    volumes
        .filter(move |(before, volume)| of(volume) && !same(*before, volume))
        .map(|(_, volume)| &volume.export.endpoint)
}

fn is_guest(volume: &Volume) -> bool {
    volume.export.protocol != Protocol::Nbd
}
