//! The sockets in force: accepting clients, and what each offers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Host, NicAccess, Protocol, Volume};
use sluice_io::endpoint::Endpoint;
use sluice_io::nbd::listener::Entry;
use sluice_io::vhost_user::blk::Blk;
use sluice_io::vhost_user::counts::Counts;
use sluice_io::vhost_user::net::Net;
use sluice_io::vhost_user::session;

use super::change::Change;
use super::closing::close;
use super::listening::{Listening, Serves};
use super::objects::{name_of, nic_of, nic_socket, nics, pair, volume_of, volumes};
use super::socket::Socket;
use super::stage::Staged;
use super::{Absence, Found, Needs, Server, ServerError, out_of_service, translate};

/// Starts to accept clients on the new sockets. What has one for which this fails is put out of service, if that is tolerated.
pub(super) fn listen(
    server: &Server,
    change: &Change,
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    let mut failed = BTreeMap::new();
    for (key, tolerance, socket) in needs.each::<Socket>() {
        let listening = found.take::<Socket>(key).and_then(|bound| {
            let bound = bound.flatten().expect("what is needed was made");
            let listening = Listening::start(bound, socket.serves, &server.connection_limit, &server.gateways.access)?;
            staged.sockets.insert(socket.endpoint.to_string(), listening);
            Ok(())
        });
        match listening {
            Err(error) if tolerance.covers(&error) => {
                drop(failed.insert(socket.endpoint.to_string(), Absence::of(&error)))
            }
            listening => listening?,
        }
    }
    if !failed.is_empty() {
        out_of_service::leave_out_sockets(server, change, &failed, &mut staged.absent);
        staged.lose(&change.host, |volume| failed.get(&name_of(&volume.export.endpoint)).cloned());
    }
    Ok(())
}

/// Puts new sockets into force, updates what the sockets of changed volumes and NICs offer, and closes those that the file does not
/// name any more.
pub(super) fn offer(server: &mut Server, new: BTreeMap<String, Listening>, changed: &BTreeSet<ObjectId>) {
    let named = named(&server.host);
    let is_gone = |name: &String, socket: &mut Listening| named.get(name) != Some(&socket.serves());
    let mut gone: Vec<Listening> = server.sockets.extract_if(.., is_gone).map(|(_, socket)| socket).collect();
    gone.extend(new.into_iter().filter_map(|(name, socket)| server.sockets.insert(name, socket)));
    close(gone);
    offer_by_nbd(server, changed);
    for name in changed {
        let (vm, volume) = pair(name);
        if let Some(spec) = volume_of(&server.host, name)
            && let Protocol::VhostUserBlk { queues } = spec.export.protocol
        {
            let (info, generation) = (server.served[name].1.clone(), server.generations[name]);
            let device = server.devices[&spec.device].device.handle();
            let entry = session::Entry { kind: Blk { info, queues }, vm, volume, generation, device };
            let socket = server.sockets.get(&name_of(&spec.export.endpoint));
            let Some(Listening::Disk(listener)) = socket else {
                unreachable!("every endpoint of the file has a socket")
            };
            listener.replace(Some(entry));
        } else if let Some(nic) = nic_of(&server.host, name)
            && let NicAccess::VhostUser { endpoint, queues } = &nic.access
            && let Some(running) = server.devices.get(&nic.uplink)
            // One that is out of service has none.
            && let Some(Listening::Nic(listener)) = server.sockets.get(&name_of(endpoint))
        {
            let kind = Net { mac: nic.mac, mtu: nic.mtu, pairs: *queues, offloads: nic.offloads };
            let (generation, device) = (server.generations[name], running.device.handle());
            listener.replace(Some(session::Entry { kind, vm, volume, generation, device }));
        }
    }
}

/// Returns the sockets that a host file names.
fn named(host: &Host) -> BTreeMap<String, Serves> {
    let of_volumes = volumes(host).map(|(_, volume)| (&volume.export.endpoint, volume.export.protocol.into()));
    let of_nics = nics(host).filter_map(|(_, nic)| Some((nic_socket(nic)?, Serves::Nic)));
    let shared = host.nbd.endpoints.iter().map(|endpoint| (endpoint, Serves::Nbd));
    of_volumes.chain(of_nics).chain(shared).map(|(endpoint, serves)| (name_of(endpoint), serves)).collect()
}

fn offer_by_nbd(server: &Server, changed: &BTreeSet<ObjectId>) {
    let shared: BTreeSet<String> = server.host.nbd.endpoints.iter().map(name_of).collect();
    let mut own: BTreeMap<String, Vec<(ObjectId, &Volume)>> = BTreeMap::new();
    for (name, volume) in volumes(&server.host).filter(|(_, volume)| volume.export.protocol == Protocol::Nbd) {
        own.entry(name_of(&volume.export.endpoint)).or_default().push((name, volume));
    }
    let entry = |(name, volume): &(ObjectId, &Volume)| {
        let (vm, own_name) = pair(name);
        let export = translate::export(&vm, volume, server.served.get(name)?.1.clone());
        let device = server.devices[&volume.device].disk()?.nbd();
        let generation = server.generations[name];
        let is_direct = !volume.buffered && translate::has_disk(&server.host.devices[&volume.device]);
        let (device_name, start) = (volume.device.clone(), server.gateways.start_of(is_direct));
        Some(Entry { export, vm, volume: own_name, generation, device, device_name, start })
    };
    for (here, socket) in &server.sockets {
        let Listening::Nbd(listener) = socket else { continue };
        if shared.contains(here) {
            let all: Vec<_> = volumes(&server.host).collect();
            listener.catalogue().replace(all.iter().filter_map(entry).collect());
        } else if own[here].iter().any(|(name, _)| changed.contains(name)) {
            listener.catalogue().replace(own[here].iter().filter_map(entry).collect());
        }
    }
}

/// Lets clients into the sockets of this change, now that their volumes and NICs are offered. Those of a volume that is out of
/// service wait.
pub(super) fn open(server: &mut Server) {
    let waiting = volumes(&server.host).filter(|(name, _)| server.absent.is_out(name));
    let waiting: BTreeSet<String> = waiting.map(|(_, volume)| name_of(&volume.export.endpoint)).collect();
    for (name, socket) in &mut server.sockets {
        socket.keep();
        if socket.serves() == Serves::Nic || !waiting.contains(name) {
            socket.open();
        }
    }
}

/// Returns the sockets of guests, with the volume or NIC of each, and their counts.
pub(super) fn of_guests(server: &Server) -> impl Iterator<Item = (ObjectId, &Endpoint, &Arc<Counts>)> {
    let volumes = volumes(&server.host).map(|(name, spec)| (name, Some(&spec.export.endpoint)));
    let nics = nics(&server.host).map(|(name, nic)| (name, nic_socket(nic)));
    volumes.chain(nics).filter_map(|(name, endpoint)| {
        let socket = server.sockets.get(&name_of(endpoint?))?;
        Some((name, socket.endpoint(), socket.counts()?))
    })
}
