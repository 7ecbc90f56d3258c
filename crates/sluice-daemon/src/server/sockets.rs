//! The sockets of a host file: which are needed, and the listeners on those that were made.
//!
//! If one volume frees a socket and another takes it in the same change, the socket is kept if both use the same
//! protocol. Otherwise a new one replaces it, and the old one is restored if the change is not made.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::object::ObjectId;
use sluice_config::{Host, Protocol, Volume};
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::nbd::listener::{Catalogue, NbdListener};
use sluice_io::vhost_user::listener::VhostListener;

use super::commit::{self, name_of};
use super::opening::{Needs, Serves, Socket};
use super::stage::Staged;
use super::tolerance::Tolerance;
use super::{Changed, Found, Reason, Server, ServerError, missing, nics, translate};
use crate::failure::chain;

/// Returns the sockets that must be made for `host`. What is `staying` out of service is left out.
pub(super) fn needed(
    server: &Server,
    host: &Host,
    changed: &Changed,
    (tolerance, staying): (Tolerance, &BTreeSet<ObjectId>),
) -> Result<Vec<Socket>, ServerError> {
    // What a strict start needs for more than one volume, or for a NIC, may not hang either.
    let no_less = if tolerance == Tolerance::NoResponse { Tolerance::Never } else { tolerance };
    let shared: BTreeSet<String> = host.nbd.endpoints.iter().map(name_of).collect();
    let of_all = host.nbd.endpoints.iter().filter(|endpoint| !staying.contains(&ObjectId::Socket(name_of(endpoint))));
    let of_volumes = |of_guests| new_endpoints(server, host, changed, staying, of_guests);
    let known = |name: &str| server.listeners.get(name).map(NbdListener::endpoint);
    let nbd = beside(known, of_volumes(false).chain(of_all))?.into_iter().map(|endpoint| {
        let name = endpoint.to_string();
        let ours = server.guests.get(&name).map(VhostListener::file);
        let ours = ours.or_else(|| server.nic_sockets.get(&name).map(VhostListener::file));
        let tolerance = if shared.contains(&name) { no_less } else { tolerance };
        Socket { endpoint, ours, serves: Serves::Nbd, tolerance }
    });
    let known = |name: &str| server.guests.get(name).map(VhostListener::endpoint);
    let guests = beside(known, of_volumes(true))?.into_iter().map(|endpoint| {
        let name = endpoint.to_string();
        let ours = server.listeners.get(&name).and_then(NbdListener::file);
        let ours = ours.or_else(|| server.nic_sockets.get(&name).map(VhostListener::file));
        Socket { endpoint, ours, serves: Serves::Disk, tolerance }
    });
    let known = |name: &str| server.nic_sockets.get(name).map(VhostListener::endpoint);
    let of_nics = changed.of(host).flat_map(|(vm, spec)| spec.nics.iter().map(move |nic| (vm, nic)));
    let of_nics = of_nics.filter(|(vm, (nic, _))| !staying.contains(&ObjectId::nic(vm, nic)));
    let of_nics = of_nics.filter_map(|(_, (_, nic))| nics::endpoint(nic));
    let nics = beside(known, of_nics)?.into_iter().map(|endpoint| {
        let name = endpoint.to_string();
        let ours = server.listeners.get(&name).and_then(NbdListener::file);
        let ours = ours.or_else(|| server.guests.get(&name).map(VhostListener::file));
        Socket { endpoint, ours, serves: Serves::Nic, tolerance: no_less }
    });
    Ok(nbd.chain(guests).chain(nics).collect())
}

/// Starts to accept clients on the new sockets. What has one for which this fails is put out of service, if that is tolerated.
pub(super) fn listen(
    server: &Server,
    (host, changed): (&Host, &Changed),
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    let mut failed = BTreeMap::new();
    for socket in &needs.sockets {
        let name = socket.endpoint.to_string();
        let bound = match found.take_socket(&name).expect("what is needed was found") {
            Err(error) if socket.tolerance.covers(&error) => continue,
            bound => bound?,
        };
        match accept(server, (name.clone(), socket.serves), bound, staged) {
            Err(error) if socket.tolerance.covers(&error) => {
                failed.insert(name, Reason::Other(chain(&error)));
            }
            accepting => accepting?,
        }
    }
    if !failed.is_empty() {
        missing::leave_out_sockets(server, (host, changed), needs, &failed, staged);
        commit::lose(host, &mut staged.volumes, &mut staged.missing, |volume| {
            failed.get(&name_of(&volume.export.endpoint)).cloned()
        });
    }
    Ok(())
}

fn accept(
    server: &Server,
    (name, serves): (String, Serves),
    bound: Bound,
    staged: &mut Staged,
) -> Result<(), ListenError> {
    let limit = &server.connection_limit;
    match serves {
        Serves::Nbd => drop(staged.listeners.insert(name, NbdListener::start(bound, Catalogue::default(), limit)?)),
        Serves::Disk => drop(staged.guests.insert(name, VhostListener::start(bound, None, limit)?)),
        Serves::Nic => drop(staged.nics.sockets.insert(name, VhostListener::start(bound, None, limit)?)),
    }
    Ok(())
}

/// Returns those that are not `known`, without duplicates.
fn beside<'a>(
    known: impl Fn(&str) -> Option<&'a Endpoint>,
    endpoints: impl Iterator<Item = &'a sluice_config::ListenAddress>,
) -> Result<Vec<Endpoint>, ServerError> {
    let (mut new, mut seen) = (Vec::new(), BTreeSet::new());
    for endpoint in endpoints {
        let endpoint = translate::endpoint(endpoint);
        let name = endpoint.to_string();
        match known(&name) {
            Some(known) if *known == endpoint => {}
            Some(_) => return Err(ServerError::EndpointChanged(name)),
            None if !seen.insert(name) => {}
            None => new.push(endpoint),
        }
    }
    Ok(new)
}

/// Returns the endpoints of volumes, for NBD clients or for guests, that are new or had no socket. A volume that
/// stays out of service may have none, and is skipped.
fn new_endpoints<'a>(
    server: &'a Server,
    host: &'a Host,
    changed: &'a Changed,
    staying: &'a BTreeSet<ObjectId>,
    of_guests: bool,
) -> impl Iterator<Item = &'a sluice_config::ListenAddress> {
    let volumes = changed.of(host).flat_map(|(vm, spec)| {
        let before = server.host.vms.get(vm);
        spec.volumes.iter().map(move |(name, volume)| (vm, before.and_then(|vm| vm.volume(name)), volume))
    });
    let same = |before: Option<&Volume>, volume: &Volume| {
        before.is_some_and(|before| {
            before.export.endpoint == volume.export.endpoint && is_guest(before) == is_guest(volume)
        })
    };
    let stays_missing =
        |vm: &String, volume: &Volume| !staying.is_empty() && staying.contains(&ObjectId::volume(vm, &volume.name));
    volumes
        .filter(move |(vm, before, volume)| {
            is_guest(volume) == of_guests && !(same(*before, volume) && stays_missing(vm, volume))
        })
        .map(|(_, _, volume)| &volume.export.endpoint)
}

fn is_guest(volume: &Volume) -> bool {
    volume.export.protocol != Protocol::Nbd
}
