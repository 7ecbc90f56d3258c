//! The NBD frontend of a device thread: clients on sockets.

mod connection;
mod hangup;
mod intake;
mod look;
mod replies;
mod rx;
mod tx;

use std::os::fd::OwnedFd;
use std::time::Duration;

use sluice_sched::Instant;

use crate::budget::Budget;
use crate::device::core::Core;
use crate::frontend::Frontend;
use crate::nbd::gateway::Known;
use crate::nbd::handshake::Negotiated;
use crate::reactor::base::Ending;
use crate::reactor::spec::ClientSnapshot;
use crate::slab::{ClientRef, FrontendNumber, IoId, Slab, VolumeKey, ids};
use crate::volume::{VolumeGeneration, VolumeInfo};
use connection::{Connection, For, Life};
use replies::Segment;

ids! {
    /// An NBD client.
    ConnectionId;
}

/// Operations of the ring.
const RECEIVE: u8 = 0;
const SEND: u8 = 1;
const HANG_UP: u8 = 2;

/// A client that has finished its handshake.
pub struct Arrived {
    /// Name of its VM.
    pub vm: String,
    /// Name of its volume.
    pub volume: String,
    /// Generation of the volume that the client was offered.
    pub generation: VolumeGeneration,
    /// Its socket. The next byte is the first one after the handshake.
    pub socket: OwnedFd,
    /// Result of the handshake.
    pub negotiated: Negotiated,
    /// Properties that the volume had when the client was offered it.
    pub offered: VolumeInfo,
    /// Address or process of the client, for output.
    pub peer: String,
    /// Its connection permit; dropped when it has disconnected.
    pub permit: Box<dyn Send>,
    /// CPU time of its handshake.
    pub handshake: Duration,
}

/// A message of the control plane.
pub(crate) enum Command {
    Connect(Box<Arrived>),
    /// Ends the sessions of a VM's gateways that began to serve it before this; of all of them if there is no such time.
    EndGateways {
        vm: String,
        before: Option<u64>,
    },
    /// Charges a VM CPU time that another thread has used for it.
    Charge {
        vm: String,
        used: Duration,
    },
}

/// The NBD clients of a device thread.
pub(crate) struct Nbd {
    number: FrontendNumber,
    connections: Slab<ConnectionId, Connection>,
    /// Connections with something to send.
    tx_pending: Vec<ConnectionId>,
    /// Clients that wait for a look at the others of their volumes.
    new: Vec<ConnectionId>,
    /// Connections that may be removed.
    retiring: Vec<ConnectionId>,
    segments: Vec<Segment>,
    /// Requests of a batch that was sent.
    ended: Vec<IoId>,
    /// When write payloads and replies are checked for being overdue; `None` while none is expected or being sent.
    deadline: Option<Instant>,
}

impl Frontend for Nbd {
    type Command = Command;

    fn new(number: FrontendNumber) -> Self {
        Nbd {
            number,
            connections: Slab::default(),
            tx_pending: Vec::new(),
            new: Vec::new(),
            retiring: Vec::new(),
            segments: Vec::new(),
            ended: Vec::new(),
            deadline: None,
        }
    }

    fn command(&mut self, core: &mut Core, now: Instant, command: Command) {
        match command {
            Command::Connect(arrived) => self.connect(core, now, *arrived),
            Command::EndGateways { vm, before } => self.end_gateways(core, &vm, before),
            Command::Charge { vm, used } => core.charge(now, &vm, used),
        }
    }

    fn event(&mut self, core: &mut Core, now: Instant, operation: u8, index: u32, result: i32) {
        let id = self.connections.id_at(index);
        match operation {
            RECEIVE => self.received(core, now, id, result),
            HANG_UP => self.hung_up(core, id, result),
            _ => self.sent(core, id, result),
        }
    }

    fn serve(&mut self, core: &mut Core, now: Instant, client: ClientRef, budget: Budget) {
        if let Some(connection) = self.connections.get_mut(client.id()) {
            connection.step(Life::Serving);
            self.take_requests(core, now, client.id(), budget);
        }
    }

    fn complete(&mut self, core: &mut Core, _now: Instant, io: IoId) {
        self.queue_reply(core, io);
    }

    fn poll(&mut self, core: &mut Core, now: Instant) -> bool {
        self.close_overdue(core, now);
        false
    }

    fn end_of_iteration(&mut self, core: &mut Core, now: Instant) {
        self.send_replies(core, now);
        self.look(core);
        self.remove_retired(core);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn admit(&mut self, core: &mut Core, _now: Instant, volume: VolumeKey) {
        for id in self.clients_of(volume) {
            let connection = &mut self.connections[id];
            if connection.life() == Life::Waits(For::Predecessor) {
                connection.step(Life::Serving);
                self.receive(core, id);
            }
        }
    }

    fn close(&mut self, core: &mut Core, _now: Instant, volume: VolumeKey) {
        self.clients_of(volume).into_iter().for_each(|id| self.disconnect(core, id));
    }

    fn drain(&mut self, _core: &mut Core) {
        for id in self.connections.ids() {
            let connection = &mut self.connections[id];
            connection.step(Life::Finishing);
            if !connection.rx.is_idle() {
                let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Read);
            }
            self.retire(id);
        }
    }

    fn is_drained(&self) -> bool {
        self.connections.is_empty()
    }

    fn shut_down(&mut self, _core: &mut Core) {
        self.connections.values_mut().for_each(|connection| connection.step(Life::Closed));
    }

    fn clients(&self) -> usize {
        self.connections.len()
    }

    fn list(&self, core: &Core, clients: &mut Vec<ClientSnapshot>) {
        let snapshot = |connection: &Connection| {
            let (vm, volume) = core.names_of(connection.volume);
            let (peer, outstanding) = (connection.peer.clone(), connection.requests.len());
            ClientSnapshot { vm, volume, protocol: "nbd", peer, queues: None, outstanding }
        };
        let open = self.connections.iter().filter(|(_, connection)| !connection.is_closed());
        clients.extend(open.map(|(_, connection)| snapshot(connection)));
    }
}

impl Nbd {
    fn client(&self, id: ConnectionId) -> ClientRef {
        ClientRef::new(self.number, id)
    }

    fn clients_of(&self, volume: VolumeKey) -> Vec<ConnectionId> {
        self.connections.iter().filter(|(_, known)| known.volume == volume).map(|(id, _)| id).collect()
    }

    fn connect(&mut self, core: &mut Core, now: Instant, arrived: Arrived) {
        if core.base.ending != Ending::No {
            return;
        }
        let found = core.find_generation(&arrived.vm, &arrived.volume, arrived.generation);
        let found = found.filter(|volume| core.backend.volumes[*volume].info.extends(&arrived.offered));
        let Some(volume) = found else {
            let Arrived { vm, volume, .. } = arrived;
            tracing::info!(vm, volume, "Client disconnected: its volume was removed or replaced during the handshake");
            return;
        };
        core.charge_connection(now, volume, arrived.handshake);
        let vm = arrived.vm.clone();
        if let Some(known) = &arrived.negotiated.gateway {
            if !core.vm_of(volume).gateway.takes(known) {
                tracing::info!(vm, gateway = known.gateway, "Client disconnected: a newer gateway serves its VM");
                return;
            }
            let epoch = known.epoch;
            core.vm_of(volume).gateway.begin(epoch);
            self.end_sessions(core, &vm, |connection, other| connection.volume == volume || other.epoch < epoch);
            // Otherwise what they have queued would delay those of this one.
            core.cancel_abandoned(now, volume);
        }
        let Some(connection) = Connection::new(arrived, volume) else {
            tracing::warn!(vm, "Client rejected: too little memory is left");
            return;
        };
        if !core.client_opened(volume) {
            tracing::info!(vm, "Client disconnected: its volume is being removed");
            return;
        }
        let id = self.connections.insert(connection);
        self.new.push(id);
        self.watch_for_hang_up(core, id);
        self.receive(core, id);
    }

    /// Ends sessions of a VM's gateways. The client that comes in their place is served when the disk has ended their requests.
    fn end_sessions(&mut self, core: &mut Core, vm: &str, is_meant: impl Fn(&Connection, &Known) -> bool) {
        let is_meant = |connection: &Connection| {
            let known = connection.negotiated.gateway.as_ref();
            known.is_some_and(|known| known.vm.0 == vm && is_meant(connection, known))
        };
        let meant = self.connections.iter().filter(|(_, connection)| is_meant(connection));
        let meant: Vec<ConnectionId> = meant.map(|(id, _)| id).collect();
        meant.into_iter().for_each(|id| self.disconnect(core, id));
    }

    fn end_gateways(&mut self, core: &mut Core, vm: &str, before: Option<u64>) {
        if let (Some(found), Some(epoch)) = (core.base.vms_by_name.get(vm), before) {
            core.base.vms[*found].gateway.begin(epoch);
        }
        self.end_sessions(core, vm, |_, known| before.is_none_or(|before| known.epoch < before));
    }

    /// Disconnects a client. Its queued requests are dropped; those in flight end at the device.
    fn disconnect(&mut self, core: &mut Core, id: ConnectionId) {
        let connection = &mut self.connections[id];
        if connection.is_closed() {
            return self.retire(id);
        }
        core.client_closed(connection.volume, connection.life() == Life::Finishing);
        connection.step(Life::Closed);
        core.abandon(&connection.requests);
        if connection.tx.is_sending() {
            self.send_later(id);
        } else {
            let replies = std::mem::take(&mut connection.tx.replies);
            replies.into_iter().for_each(|io| self.free(core, id, io));
        }
        self.retire(id);
    }

    /// Removes a request.
    fn free(&mut self, core: &mut Core, id: ConnectionId, io: IoId) {
        let connection = &mut self.connections[id];
        core.free(&mut connection.requests, io);
        if connection.requests.is_empty() {
            self.retire(id);
        }
    }

    /// Schedules a check at the end of the iteration whether the connection can be removed.
    fn retire(&mut self, id: ConnectionId) {
        self.retiring.push(id);
    }

    fn remove_retired(&mut self, core: &mut Core) {
        while let Some(id) = self.retiring.pop() {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            // The data of its last write will never be complete. Requests before it are still answered.
            if !connection.is_open()
                && connection.rx.is_idle()
                && let Some(io) = connection.rx.give_up_data()
            {
                self.free(core, id, io);
            }
            let connection = &mut self.connections[id];
            if connection.can_be_removed() && connection.is_watched {
                // The kernel reports it when the socket is shut down.
                if !connection.is_closed() {
                    core.client_closed(connection.volume, connection.life() == Life::Finishing);
                    connection.step(Life::Closed);
                }
            } else if connection.can_be_removed() {
                self.remove(core, id);
            }
        }
    }

    fn remove(&mut self, core: &mut Core, id: ConnectionId) {
        let connection = self.connections.remove(id);
        core.unpark(connection.volume, self.client(id));
        if !connection.is_closed() {
            core.client_closed(connection.volume, connection.life() == Life::Finishing);
        }
        core.client_removed(connection.volume);
    }
}
