//! From bytes of a client to arrivals at the gate.
//!
//! As many requests as the window allows are taken from what has been received; then the socket is read again. A client
//! whose VM has no room stands in line: its bytes stay where they are and its socket is not read.

use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::{Instant, Kind};

use crate::backend::disk::{IoRequest, RequestSource, VolumeStore};
use crate::backend::retry::is_put_off;
use crate::backend::tag::{Tag, tag};
use crate::device::blocking::BlockingJob;
use crate::device::event_loop::Loop;
use crate::device::requests::ClientId;
use crate::device::slab::{ConnectionId, Id, IoId};
use crate::frontend::nbd::connection::{Expect, RECEIVE_LEN};
use crate::nbd::transmission::{Operation, Refusal, check};
use crate::nbd::wire::RequestHeader;
use crate::source::{Allocation, ByteRange, Span};

/// Data of at least this size are received straight into their buffer.
const DIRECT_MIN: u32 = 4096;
/// Interval at which the loop checks for overdue write payloads and replies.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Loop {
    /// A receive has ended.
    pub(crate) fn received(&mut self, now: Instant, index: ConnectionId, result: i32) {
        let connection = &mut self.connections[index];
        connection.receiving = false;
        match (connection.expect, result) {
            (_, result) if is_put_off(result) => {}
            (_, 0) if connection.finishing => return self.retire(index),
            (_, ..=0) => return self.close(index),
            (Expect::Payload { token, have }, _) if connection.direct => {
                let have = have + result as u32;
                connection.expect = Expect::Payload { token, have };
            }
            _ => connection.end += result as usize,
        }
        self.take_requests(now, index, u32::MAX);
    }

    /// Takes up to `budget` requests of what a client has sent, and reads on if there is room for more.
    pub(crate) fn take_requests(&mut self, now: Instant, index: ConnectionId, mut budget: u32) {
        loop {
            let connection = &mut self.connections[index];
            if connection.closed || connection.waits {
                return self.retire(index);
            }
            match connection.expect {
                Expect::Skip { token, left } => {
                    let skipped = left.min((connection.end - connection.start) as u32);
                    connection.start += skipped as usize;
                    if left > skipped {
                        connection.expect = Expect::Skip { token, left: left - skipped };
                        break;
                    }
                    connection.data_are_there();
                    self.reply(token);
                }
                Expect::Payload { token, have } => {
                    if !self.take_payload(now, index, token, have) {
                        break;
                    }
                }
                Expect::Header => {
                    if connection.finishing || connection.end - connection.start < RequestHeader::LEN {
                        break;
                    }
                    let volume = connection.volume;
                    if budget == 0 || !self.has_room(volume) {
                        return self.park_client(volume, ClientId::Connection(index));
                    }
                    budget -= 1;
                    self.take_header(now, index);
                }
            }
        }
        self.receive(index);
    }

    /// Copies what has come of a request's data; whether all of it is there.
    fn take_payload(&mut self, now: Instant, index: ConnectionId, token: IoId, have: u32) -> bool {
        let connection = &mut self.connections[index];
        let io = &mut self.backend.ios[token];
        let came = (connection.end - connection.start).min((io.length - have) as usize);
        let data = &connection.received[connection.start..connection.start + came];
        let buffer = io.buffer.as_mut().expect("a write has a buffer");
        buffer.bytes_mut(io.length as usize)[have as usize..have as usize + came].copy_from_slice(data);
        connection.start += came;
        let have = have + came as u32;
        if have < io.length {
            connection.expect = Expect::Payload { token, have };
            return false;
        }
        connection.data_are_there();
        self.arrive(now, token);
        true
    }

    fn take_header(&mut self, now: Instant, index: ConnectionId) {
        let connection = &mut self.connections[index];
        let bytes = &connection.received[connection.start..connection.start + RequestHeader::LEN];
        let bytes = bytes.try_into().expect("the slice has this length");
        connection.start += RequestHeader::LEN;
        let header = match RequestHeader::parse(bytes) {
            Ok(header) => header,
            Err(error) => return self.broken(index, &error.to_string()),
        };
        let export = &self.backend.volumes[connection.volume].export;
        match check(&header, export, &connection.negotiated) {
            Ok(Operation::Disconnect) => connection.finishing = true,
            Ok(operation) => self.take_operation(now, index, header.cookie, operation),
            Err(refusal) if refusal.fatal => self.broken(index, refusal.message),
            Err(refusal) => self.refuse(index, header.cookie, refusal),
        }
    }

    fn broken(&mut self, index: ConnectionId, reason: &str) {
        let volume = &self.backend.volumes[self.connections[index].volume];
        let vm = &mut self.vms[volume.vm];
        vm.protocol_errors += 1;
        tracing::warn!(
            vm = vm.name,
            volume = volume.name,
            reason,
            "Client violated the protocol: closing its connection"
        );
        self.close(index);
    }

    fn refuse(&mut self, index: ConnectionId, cookie: u64, refusal: Refusal) {
        let errno = refusal.errno.to_wire() as i32;
        let volume = self.connections[index].volume;
        let io = IoRequest::of(RequestSource::Nbd { connection: index, cookie }, volume);
        let token = self.open_io(IoRequest { errno, ..io });
        let vm = self.backend.volumes[volume].vm;
        self.vms[vm].refused += 1;
        match refusal.payload_to_skip {
            0 => self.reply(token),
            // Clients take a reply to a request that they are still sending for a fault of the server.
            left => self.connections[index].expect = Expect::Skip { token, left },
        }
    }

    fn take_operation(&mut self, now: Instant, index: ConnectionId, cookie: u64, operation: Operation) {
        let io = IoRequest::of(RequestSource::Nbd { connection: index, cookie }, self.connections[index].volume);
        let io = match operation {
            Operation::Read { offset, len } => {
                let kind = Some(Kind::Read);
                IoRequest { kind, offset, length: len, held: u64::from(len), ..io }
            }
            Operation::Write { offset, len, fua } => {
                let kind = Some(Kind::Write);
                IoRequest { kind, offset, length: len, forced: fua, held: u64::from(len), ..io }
            }
            Operation::Flush => IoRequest { kind: Some(Kind::Flush), ..io },
            Operation::Trim { offset, len, fua } => {
                IoRequest { kind: Some(Kind::Discard), offset, length: len, forced: fua, ..io }
            }
            Operation::WriteZeroes { offset, len, fua, no_hole, fast } => {
                IoRequest { kind: Some(Kind::WriteZeroes), offset, length: len, forced: fua, no_hole, fast, ..io }
            }
            Operation::BlockStatus { offset, len, .. } => IoRequest { offset, length: len, ..io },
            Operation::Disconnect => unreachable!("dealt with by the caller"),
        };
        let (kind, length) = (io.kind, io.length as usize);
        let token = self.open_io(io);
        let null = matches!(self.backend.volumes[self.connections[index].volume].store, VolumeStore::Null);
        if kind == Some(Kind::Write) || kind == Some(Kind::Read) && !null {
            self.backend.ios[token].buffer = self.backend.pool.take(length, self.room_for(token));
            if self.backend.ios[token].buffer.is_none() {
                return self.refuse_without_memory(index, token, kind == Some(Kind::Write));
            }
        }
        match operation {
            Operation::Write { .. } => self.connections[index].expect = Expect::Payload { token, have: 0 },
            Operation::BlockStatus { req_one, .. } => self.ask_status(token, req_one),
            _ => self.arrive(now, token),
        }
    }

    /// There is no memory for the data of a request: it fails, and its client may try again.
    fn refuse_without_memory(&mut self, index: ConnectionId, token: IoId, is_write: bool) {
        let io = &mut self.backend.ios[token];
        io.errno = libc::ENOMEM;
        match is_write {
            false => self.reply(token),
            true => self.connections[index].expect = Expect::Skip { token, left: io.length },
        }
    }

    fn ask_status(&mut self, token: IoId, req_one: bool) {
        let io = &mut self.backend.ios[token];
        let part = ByteRange::new(io.offset, u64::from(io.length));
        match &self.backend.volumes[io.volume].store {
            VolumeStore::Null => {
                io.status = Some(vec![Span { length: part.length, kind: Allocation::Hole }]);
                self.reply(token);
            }
            VolumeStore::File { source, .. } => {
                let source = std::sync::Arc::clone(source);
                let spans_max = if req_one { 1 } else { usize::MAX };
                let question = BlockingJob::Allocation { token, source, part, spans_max };
                if self.backend.blocking.send(question).is_err() {
                    self.backend.ios[token].errno = libc::EIO;
                    self.reply(token);
                }
            }
        }
    }

    /// Makes the loop check for overdue write payloads and replies.
    pub(crate) fn watch_deadlines(&mut self, now: Instant) {
        self.look_at_deadlines.get_or_insert(now + LOOK_EVERY);
    }

    /// Closes connections whose write payload is overdue, or which do not read their replies.
    pub(crate) fn look_at_deadlines(&mut self, now: Instant) {
        if self.look_at_deadlines.is_none_or(|at| at > now) {
            return;
        }
        let any = self.connections.iter().any(|(_, connection)| connection.has_a_deadline());
        self.look_at_deadlines = any.then(|| now + LOOK_EVERY);
        let overdue = self.connections.iter().filter_map(|(index, connection)| Some((index, connection.overdue(now)?)));
        let overdue: Vec<(ConnectionId, &str)> = overdue.collect();
        for (index, reason) in overdue {
            self.broken(index, reason);
        }
    }

    /// Reads on from a client's socket, straight into the buffer of a request whose data are due.
    pub(crate) fn receive(&mut self, index: ConnectionId) {
        let connection = &mut self.connections[index];
        let finished = connection.finishing && connection.expect == Expect::Header;
        if connection.receiving || connection.closed || connection.waits || connection.parked || finished {
            return self.retire(index);
        }
        connection.compact();
        connection.direct = false;
        let left = match connection.expect {
            Expect::Header => None,
            Expect::Payload { token, have } => Some(self.backend.ios[token].length - have),
            Expect::Skip { left, .. } => Some(left),
        };
        if let Some(left) = left {
            let now = self.clock.now();
            connection.wait_for_data(now, left);
            self.watch_deadlines(now);
        }
        let connection = &mut self.connections[index];
        let (place, room) = match connection.expect {
            Expect::Payload { token, have }
                if connection.end == 0 && self.backend.ios[token].length - have >= DIRECT_MIN =>
            {
                let io = &mut self.backend.ios[token];
                let length = io.length as usize;
                let buffer = io.buffer.as_mut().expect("a write has a buffer");
                let rest = &mut buffer.bytes_mut(length)[have as usize..];
                connection.direct = true;
                (rest.as_mut_ptr(), rest.len())
            }
            _ => {
                let rest = &mut connection.received[connection.end..RECEIVE_LEN];
                (rest.as_mut_ptr(), rest.len())
            }
        };
        let entry = opcode::Recv::new(types::Fd(connection.fd()), place, room as u32).build();
        // SAFETY: both the receive memory and the buffer stay until this receive has ended: a connection is removed only
        // when it receives nothing, and a request whose data are due is kept by its connection.
        unsafe { self.backend.ring.push(entry.user_data(tag(Tag::Receive, index.index()))) };
        connection.receiving = true;
    }
}
