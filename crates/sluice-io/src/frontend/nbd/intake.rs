//! Parses the bytes of a client into requests for the gate.
//!
//! As many requests as the window allows are taken from the received bytes; then the socket is read again. A client
//! whose VM has no window space is queued: its bytes stay where they are and its socket is not read.

use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::Instant;
use sluice_sched::tracker::Told;

use crate::backend::request::{Body, Occupied, Opening, Question};
use crate::backend::retry::is_put_off;
use crate::backend::tag::Tag;
use crate::budget::Budget;
use crate::cpu;
use crate::device::core::{Core, DataIn};
use crate::frontend::nbd::connection::{For, Life};
use crate::frontend::nbd::rx::{Expect, Receive};
use crate::frontend::nbd::{ConnectionId, Nbd, RECEIVE};
use crate::nbd::gateway::record::RequestRecord;
use crate::nbd::transmission::{Operation, Refusal, check};
use crate::nbd::wire::RequestHeader;
use crate::slab::{Id as _, IoId};

/// Data of at least this size is received directly into its buffer.
const DIRECT_MIN: u32 = 4096;
/// Interval at which the loop checks for overdue write payloads and replies.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Nbd {
    /// Handles the end of a receive.
    pub(crate) fn received(&mut self, core: &mut Core, now: Instant, id: ConnectionId, result: i32) {
        core.count_event(self.connections[id].volume, cpu::RECEIVE);
        let connection = &mut self.connections[id];
        let receive = std::mem::replace(&mut connection.rx.receive, Receive::Idle);
        match (connection.rx.expect, result) {
            (_, result) if is_put_off(result) => {}
            (_, 0) if connection.life() == Life::Finishing => return self.retire(id),
            (_, ..=0) => return self.disconnect(core, id),
            (Expect::Payload { io, have }, _) if receive == Receive::ToBuffer => {
                let have = have + result as u32;
                connection.rx.expect = Expect::Payload { io, have };
            }
            _ => connection.rx.received(result as usize),
        }
        let arrivals = core.arrivals;
        self.take_requests(core, now, id, Budget::UNLIMITED);
        if core.arrivals == arrivals {
            core.base.cpu.note_in_vain();
        }
    }

    /// Takes requests within `budget` from the received bytes, and continues to receive if there is room for more.
    pub(crate) fn take_requests(&mut self, core: &mut Core, now: Instant, id: ConnectionId, mut budget: Budget) {
        loop {
            let connection = &mut self.connections[id];
            if matches!(connection.life(), Life::Closed | Life::Waits(_)) {
                return self.retire(id);
            }
            match connection.rx.expect {
                Expect::Skip { io, left } => {
                    let skipped = left.min(connection.rx.unparsed().len() as u32);
                    connection.rx.consume(skipped as usize);
                    if left > skipped {
                        connection.rx.expect = Expect::Skip { io, left: left - skipped };
                        break;
                    }
                    connection.rx.data_complete();
                    core.arrive(now, io);
                }
                Expect::Payload { io, have } => {
                    if !self.take_payload(core, now, id, io, have) {
                        break;
                    }
                }
                Expect::Header => {
                    let is_finishing = connection.life() == Life::Finishing;
                    if is_finishing || connection.rx.unparsed().len() < connection.header_len() {
                        break;
                    }
                    let volume = connection.volume;
                    if budget.is_used_up() || !core.has_room(volume, DataIn::Buffers) {
                        connection.step(Life::Waits(For::Room));
                        core.park(volume, self.client(id), DataIn::Buffers);
                        return self.watch_for_hang_up(core, id);
                    }
                    self.take_header(core, now, id, &mut budget);
                }
            }
        }
        self.receive(core, id);
    }

    /// Copies received data of a request. Returns whether it is complete.
    fn take_payload(&mut self, core: &mut Core, now: Instant, id: ConnectionId, io: IoId, have: u32) -> bool {
        let connection = &mut self.connections[id];
        let state = &mut core.backend.ios[io];
        let unparsed = connection.rx.unparsed();
        let data = &unparsed[..unparsed.len().min((state.length - have) as usize)];
        let came = data.len();
        let length = state.length as usize;
        let buffer = state.data.buffer_mut().expect("a write has a buffer");
        buffer.bytes_mut(length)[have as usize..have as usize + came].copy_from_slice(data);
        connection.rx.consume(came);
        let have = have + came as u32;
        if have < state.length {
            connection.rx.expect = Expect::Payload { io, have };
            return false;
        }
        connection.rx.data_complete();
        core.arrive(now, io);
        true
    }

    fn take_header(&mut self, core: &mut Core, now: Instant, id: ConnectionId, budget: &mut Budget) {
        let connection = &mut self.connections[id];
        let (bytes, rest) = connection.rx.unparsed().split_first_chunk().expect("the caller has looked at the length");
        let header = RequestHeader::parse(bytes);
        let gateway = connection.negotiated.gateway.as_ref();
        let record = gateway.and_then(|_| rest.first_chunk()).map(RequestRecord::parse);
        let is_of_vm = gateway.zip(record).is_none_or(|(known, record)| known.vm.1 == record.vm);
        connection.rx.consume(connection.header_len());
        if !is_of_vm {
            return self.broken(core, id, "a request is of another VM than its export");
        }
        let told = record.map(|record| Box::new(record.told));
        let header = match header {
            Ok(header) => header,
            Err(error) => return self.broken(core, id, &error.to_string()),
        };
        let info = &core.backend.volumes[connection.volume].info;
        match check(&header, info, &connection.negotiated) {
            Ok(Operation::Disconnect) => connection.step(Life::Finishing),
            Ok(operation) => {
                budget.charge(operation.data_len().into());
                self.take_operation(core, now, id, (header.cookie, told), operation);
            }
            Err(refusal) if refusal.fatal => self.broken(core, id, refusal.message),
            Err(refusal) => {
                budget.charge(refusal.payload_to_skip.into());
                self.refuse(core, now, id, (header.cookie, told), refusal);
            }
        }
    }

    fn broken(&mut self, core: &mut Core, id: ConnectionId, reason: &str) {
        let volume = self.connections[id].volume;
        core.count_protocol_error(volume);
        let volume = &core.backend.volumes[volume];
        tracing::warn!(
            vm = volume.vm_name,
            volume = volume.name,
            reason,
            "Client violated the protocol: closing its connection"
        );
        self.disconnect(core, id);
    }

    fn refuse(
        &mut self,
        core: &mut Core,
        now: Instant,
        id: ConnectionId,
        (cookie, told): (u64, Option<Box<Told>>),
        refusal: Refusal,
    ) {
        let errno = refusal.errno.to_wire() as i32;
        let client = self.client(id);
        let connection = &mut self.connections[id];
        let length = refusal.payload_to_skip;
        let occupies = Occupied { window: length.into(), memory: 0 };
        let opening = Opening { client, cookie, volume: connection.volume, occupies };
        let (io, request) = core.open(&mut connection.requests, &opening);
        request.served.report = told;
        (request.body, request.errno, request.length) = (Body::Refused, errno, length);
        core.count_refused(connection.volume, refusal.message);
        match length {
            0 => core.arrive(now, io),
            // A client would take a reply to a request that it is still sending for an error of the server.
            left => connection.rx.expect = Expect::Skip { io, left },
        }
    }

    fn take_operation(
        &mut self,
        core: &mut Core,
        now: Instant,
        id: ConnectionId,
        (cookie, told): (u64, Option<Box<Told>>),
        operation: Operation,
    ) {
        let client = self.client(id);
        let connection = &mut self.connections[id];
        let volume = connection.volume;
        let held = operation.data_len();
        let is_null_read = matches!(operation, Operation::Read { .. }) && core.backend.info(volume).memory.is_none();
        let buffered = if is_null_read { 0 } else { held };
        let occupies = Occupied { window: held.into(), memory: buffered.into() };
        let opening = Opening { client, cookie, volume, occupies };
        let (io, request) = core.open(&mut connection.requests, &opening);
        request.served.report = told;
        match operation {
            Operation::Read { offset, len } => request.ask(Body::Read, offset, len, false),
            Operation::Write { offset, len, fua } => request.ask(Body::Write, offset, len, fua),
            Operation::Flush => request.ask(Body::Flush, 0, 0, false),
            Operation::Trim { offset, len, fua } => request.ask(Body::Discard, offset, len, fua),
            Operation::WriteZeroes { offset, len, fua, no_hole, fast } => {
                request.ask(Body::Zero { no_hole, fast }, offset, len, fua);
            }
            Operation::BlockStatus { offset, len, req_one } => {
                let spans_max = if req_one { 1 } else { usize::MAX };
                request.ask(Body::Query(Box::new(Question { spans_max, answer: Vec::new() })), offset, len, false);
            }
            Operation::Disconnect => unreachable!("dealt with by the caller"),
        }
        if !matches!(request.body, Body::Write) {
            return core.arrive(now, io);
        }
        let length = request.length as usize;
        let state = &mut core.backend.ios[io];
        let buffer = core.backend.pool.take(length, state.data.room);
        connection.rx.expect = match state.data.set_buffer(buffer) {
            true => Expect::Payload { io, have: 0 },
            // The client may try again.
            false => {
                state.refuse(libc::ENOMEM);
                core.count_refused(connection.volume, "The daemon has too little memory");
                Expect::Skip { io, left: length as u32 }
            }
        };
    }

    /// Schedules the check for overdue write payloads and replies.
    pub(crate) fn watch_deadlines(&mut self, now: Instant) {
        self.deadline.get_or_insert(now + LOOK_EVERY);
    }

    /// Closes connections whose write payload is overdue, or which do not read their replies.
    pub(crate) fn close_overdue(&mut self, core: &mut Core, now: Instant) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        let any = self.connections.iter().any(|(_, connection)| connection.has_deadline());
        self.deadline = any.then(|| now + LOOK_EVERY);
        let overdue = self.connections.iter().filter_map(|(id, connection)| Some((id, connection.overdue(now)?)));
        let overdue: Vec<(ConnectionId, &str)> = overdue.collect();
        for (id, reason) in overdue {
            self.broken(core, id, reason);
        }
    }

    /// Continues to receive from a client's socket; directly into the buffer of a request that waits for data.
    pub(crate) fn receive(&mut self, core: &mut Core, id: ConnectionId) {
        let connection = &mut self.connections[id];
        let reads = match connection.life() {
            Life::Serving => true,
            Life::Finishing => connection.rx.expect != Expect::Header,
            Life::Waits(_) | Life::Closed => false,
        };
        if !reads || !connection.rx.is_idle() {
            return self.retire(id);
        }
        connection.rx.compact();
        let left = match connection.rx.expect {
            Expect::Header => None,
            Expect::Payload { io, have } => Some(core.backend.ios[io].length - have),
            Expect::Skip { left, .. } => Some(left),
        };
        if let Some(left) = left {
            let now = core.base.clock.now();
            connection.rx.wait_for_data(now, left);
            self.watch_deadlines(now);
        }
        let connection = &mut self.connections[id];
        let (place, room) = match connection.rx.expect {
            Expect::Payload { io, have }
                if connection.rx.is_empty() && core.backend.ios[io].length - have >= DIRECT_MIN =>
            {
                let state = &mut core.backend.ios[io];
                let length = state.length as usize;
                let buffer = state.data.buffer_mut().expect("a write has a buffer");
                let rest = &mut buffer.bytes_mut(length)[have as usize..];
                connection.rx.receive = Receive::ToBuffer;
                (rest.as_mut_ptr(), rest.len())
            }
            _ => {
                connection.rx.receive = Receive::ToMemory;
                let rest = connection.rx.room();
                (rest.as_mut_ptr(), rest.len())
            }
        };
        let entry = opcode::Recv::new(types::Fd(connection.fd()), place, room as u32).build();
        let tag = Tag::Frontend(self.number, RECEIVE, id.index());
        // SAFETY: both the receive buffer and the request's buffer stay until this receive has ended: a connection is
        // removed only when it receives nothing, and it keeps a request that waits for data.
        unsafe { core.backend.ring.push(entry.user_data(tag.pack())) };
    }
}
