//! Requests between their frontend and the gate: the window of each VM, arrival, and the end.

use sluice_sched::{Arrival, Flags, Instant, Kind};

use crate::backend::buffer::Room;
use crate::backend::disk::{IoRequest, RequestSource};
use crate::device::event_loop::Loop;
use crate::device::slab::{ConnectionId, Id, IoId, QueueId, VmId, VolumeKey};

/// Requests taken from one client before another of the same VM that waits has its turn.
const CLIENT_BATCH_MAX: u32 = 16;

/// Bytes that each VM may have outstanding of the memory that is kept from clients.
const FROM_RESERVE: u64 = 256 << 10;

/// Where a request comes from, and where more may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientId {
    /// An NBD client.
    Connection(ConnectionId),
    /// A virtqueue.
    Queue(QueueId),
}

/// What the scheduler is told of a request. Somebody waits for whatever goes to the disk itself: what a guest still has in
/// its page cache it does not send, and direct writes of the host are sync too. Through the host's page cache a write is
/// over once it is there, unless it is forced.
// rule: gate.sync-guest
fn flags(kind: Kind, forced: bool, buffered: bool) -> Flags {
    let sync = if kind == Kind::Write && buffered && !forced { Flags::NONE } else { Flags::SYNC };
    if forced { sync.with(Flags::FORCED) } else { sync }
}

impl Loop {
    /// Enters a request into the table, the list of its client and the accounts of its VM's window.
    pub(crate) fn open_io(&mut self, mut io: IoRequest) -> IoId {
        let client = io.origin.client();
        io.position = self.requests_of(client).len() as u32;
        let volume = &mut self.backend.volumes[io.volume];
        volume.outstanding.add(io.held);
        self.vms[volume.vm].outstanding.add(io.held);
        let id = self.backend.ios.insert(io);
        self.requests_of(client).push(id);
        id
    }

    fn requests_of(&mut self, client: ClientId) -> &mut Vec<IoId> {
        match client {
            ClientId::Connection(index) => &mut self.connections[index].requests,
            ClientId::Queue(index) => &mut self.queues[index].requests,
        }
    }

    /// Whether there is room for one more request of a volume.
    pub(crate) fn has_room(&self, volume: VolumeKey) -> bool {
        let volume = &self.backend.volumes[volume];
        self.vms[volume.vm].has_room(volume.outstanding)
    }

    /// Where a request of the window may take its buffer from: a VM that holds little finds memory although its neighbours
    /// have taken what there was.
    pub(crate) fn room_for(&self, token: IoId) -> Room {
        let vm = self.backend.volumes[self.backend.ios[token].volume].vm;
        if self.vms[vm].outstanding.bytes <= FROM_RESERVE { Room::Reserve } else { Room::Clients }
    }

    /// A request is complete: it arrives at the gate, or the next part of it does.
    pub(crate) fn arrive(&mut self, now: Instant, token: IoId) {
        let kind = self.next_part(token);
        let io = &mut self.backend.ios[token];
        if io.fast && kind == Kind::Write {
            io.errno = libc::EOPNOTSUPP;
            return self.reply(token);
        }
        let volume = &self.backend.volumes[io.volume];
        let arrival = Arrival {
            owner: self.vms[volume.vm].owner,
            volume: volume.id,
            kind,
            flags: flags(kind, io.forced, volume.is_buffered()),
            offset: volume.address(io.volume, io.offset + u64::from(io.done)),
            length: io.part,
            token: token.index(),
            remote: None,
        };
        let refused = volume.leaving || self.gate.insert(now, &arrival).is_err();
        if refused {
            self.backend.ios[token].errno = libc::ESHUTDOWN;
            self.reply(token);
        }
    }

    /// A request is over: its client is told.
    pub(crate) fn reply(&mut self, token: IoId) {
        match self.backend.ios[token].origin {
            RequestSource::Nbd { connection, .. } => self.reply_to_client(token, connection),
            RequestSource::Virtio { queue, .. } => self.reply_to_guest(token, queue),
        }
    }

    /// A request leaves: its buffer and its place in the window are free again.
    pub(crate) fn free_request(&mut self, token: IoId) {
        let io = &mut self.backend.ios[token];
        let (client, position, volume, held) = (io.origin.client(), io.position as usize, io.volume, io.held);
        if let Some(buffer) = io.buffer.take() {
            self.backend.pool.give(buffer);
        }
        self.backend.ios.clear(token);
        let volume = &mut self.backend.volumes[volume];
        volume.outstanding.remove(held);
        let vm = volume.vm;
        self.vms[vm].outstanding.remove(held);
        self.schedule_resume(vm);
        let requests = self.requests_of(client);
        requests.swap_remove(position);
        let (moved, is_last) = (requests.get(position).copied(), requests.is_empty());
        if let Some(moved) = moved {
            self.backend.ios[moved].position = position as u32;
        }
        match client {
            ClientId::Connection(index) if is_last => self.retire(index),
            ClientId::Queue(index) if self.queues[index].is_over() => self.ended_queues.push(index),
            ClientId::Connection(_) | ClientId::Queue(_) => {}
        }
    }

    /// The clients of a VM that wait for room may find some.
    pub(crate) fn schedule_resume(&mut self, vm: VmId) {
        if !self.vms[vm].waiting.is_empty() && self.vms_to_resume.back() != Some(&vm) {
            self.vms_to_resume.push_back(vm);
        }
    }

    /// There is no room for a client, or it was its turn for long enough: it stands in line.
    pub(crate) fn park_client(&mut self, volume: VolumeKey, client: ClientId) {
        match client {
            ClientId::Connection(index) => self.connections[index].waits = true,
            ClientId::Queue(index) => self.queues[index].waits = true,
        }
        let vm = self.backend.volumes[volume].vm;
        self.vms[vm].waiting.push_back(client);
        if self.has_room(volume) {
            self.schedule_resume(vm);
        }
    }

    /// Serves the clients of a VM that wait for room in its window, each once: who stands in line again because his turn was
    /// over has another one in the next round.
    pub(crate) fn resume_clients(&mut self, now: Instant, vm: VmId) {
        for _ in 0..self.vms.get(vm).map_or(0, |state| state.waiting.len()) {
            let Some(state) = self.vms.get_mut(vm) else { return };
            let Some(client) = state.waiting.pop_front() else { return };
            let budget = if state.waiting.is_empty() { u32::MAX } else { CLIENT_BATCH_MAX };
            match client {
                ClientId::Connection(index) => {
                    if let Some(connection) = self.connections.get_mut(index) {
                        connection.waits = false;
                        self.take_requests(now, index, budget);
                    }
                }
                ClientId::Queue(index) => {
                    if let Some(queue) = self.queues.get_mut(index) {
                        queue.waits = false;
                        self.take_chains(now, index, budget);
                    }
                }
            }
        }
    }

    /// Marks the requests of a client that has gone: what is not at the device yet stays undone.
    /// Looks at the requests of that client alone: others must not notice that it goes.
    pub(crate) fn abandon_requests(&mut self, client: ClientId) {
        let requests = std::mem::take(self.requests_of(client));
        for &id in &requests {
            let io = &mut self.backend.ios[id];
            io.abandoned = true;
            self.backend.volumes[io.volume].abandoned_in_flight += io.in_flight;
        }
        *self.requests_of(client) = requests;
    }
}

impl RequestSource {
    pub(crate) fn client(&self) -> ClientId {
        match *self {
            RequestSource::Nbd { connection, .. } => ClientId::Connection(connection),
            RequestSource::Virtio { queue, .. } => ClientId::Queue(queue),
        }
    }
}

impl IoRequest {
    /// A request of which only the sender is known.
    pub(crate) fn of(origin: RequestSource, volume: VolumeKey) -> Self {
        IoRequest {
            origin,
            volume,
            position: 0,
            kind: None,
            offset: 0,
            length: 0,
            forced: false,
            no_hole: false,
            fast: false,
            buffer: None,
            guest: None,
            errno: 0,
            abandoned: false,
            in_flight: 0,
            status: None,
            held: 0,
            done: 0,
            part: 0,
            refused: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: gate.sync-guest
    #[test]
    fn a_guests_writes_are_sync_unless_the_hosts_page_cache_takes_them() {
        let sync = |kind, forced, buffered| flags(kind, forced, buffered).contains(Flags::SYNC);
        assert!(sync(Kind::Write, false, false) && sync(Kind::Write, true, true) && !sync(Kind::Write, false, true));
        for (kind, buffered) in [(Kind::Read, true), (Kind::Read, false), (Kind::Flush, true), (Kind::Discard, false)] {
            assert!(sync(kind, false, buffered), "{kind:?} {buffered}");
        }
        assert!(flags(Kind::Write, true, false).contains(Flags::FORCED));
        assert!(!flags(Kind::Write, false, false).contains(Flags::FORCED));
    }
}
