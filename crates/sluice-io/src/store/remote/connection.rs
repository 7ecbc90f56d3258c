//! One connection: what is sent, and what arrives.
//!
//! Several requests are sent together, each from its header here and its data where they are. Replies are received in large blocks and
//! copied out of them; the rest of a long read is received where it belongs.

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{opcode, types};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use sluice_sched::Instant;
use sluice_sched::tracker::Told;

use super::link::SILENCE_MAX;
use super::{ConnectionKey, Place, RECEIVE, RemoteKey, RemoteStore, Running, SEND};
use crate::backend::retry::is_put_off;
use crate::backend::tag::Tag;
use crate::nbd::gateway::count::Counted;
use crate::nbd::gateway::record::{ReplyRecord, RequestRecord};
use crate::nbd::wire::{Command, RequestHeader, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC, u32_at, u64_at};
use crate::store::{Context, Memory, OpIndex, StoreEvent};

/// Length of the buffer for replies.
const BUFFER_LEN: usize = 128 << 10;
/// The rest of a read that is at least this long is received where it belongs.
const DIRECT_MIN: u32 = 16 << 10;
/// Maximum number of segments in one send; the kernel takes 1024.
const SEGMENTS_MAX: usize = 512;
/// Length of what precedes the data of a request at most.
const HEADER_MAX: usize = RequestHeader::LEN + RequestRecord::LEN;
/// Maximum number of requests in one send.
const REQUESTS_MAX: usize = 64;

/// A connection. It stays until the ring does not name its memory any more.
pub(super) struct Connection {
    socket: OwnedFd,
    pub(super) volume: RemoteKey,
    pub(super) began: Instant,
    outbox: Outbox,
    inbox: Inbox,
    /// What its requests tell the server, if they do.
    counted: Option<Counted>,
    /// Requests without a reply.
    outstanding: u32,
    /// When the last bytes came, or the first request was sent after a pause.
    heard: Instant,
    life: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The server is shutting down: it answers what it has, and gets nothing more.
    Ending,
    /// It is shut down, for this reason.
    Broken(&'static str),
    /// Its volume is closed.
    Left,
}

/// What is being sent. The ring names its memory while `runs`.
struct Outbox {
    headers: Vec<[u8; HEADER_MAX]>,
    segments: Vec<libc::iovec>,
    /// Segments that were sent.
    sent: usize,
    message: Box<libc::msghdr>,
    /// Writes that were answered while the ring may still name their data, with their errors.
    answered: Vec<(OpIndex, i32)>,
    /// The cookie of the first request that is being sent.
    first: u64,
    runs: bool,
}

/// What has arrived. The ring names its memory while `runs`.
struct Inbox {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The read whose data come next: as many as it has left.
    data: Option<OpIndex>,
    runs: bool,
    /// Whether the data are received where they belong.
    is_direct: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, volume: RemoteKey, counted: Option<Counted>, now: Instant) -> Self {
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        // SAFETY: all zeroes are a message without name, segments and control data.
        let message = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        let (headers, segments, answered) = (Vec::new(), Vec::new(), Vec::new());
        let outbox = Outbox { headers, segments, sent: 0, message, answered, first: 0, runs: false };
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        let inbox = Inbox { buffer, start: 0, end: 0, data: None, runs: false, is_direct: false };
        let (outstanding, life) = (0, Life::Open);
        Connection { socket, volume, began: now, outbox, inbox, counted, outstanding, heard: now, life }
    }

    /// Shuts the socket down, so that the ring's operations on it end.
    pub(super) fn shut(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    pub(super) fn break_off(&mut self, reason: &'static str) {
        if matches!(self.life, Life::Open | Life::Ending) {
            self.life = Life::Broken(reason);
        }
        self.shut();
    }

    /// Takes leave of the server.
    pub(super) fn leave(&mut self) {
        if self.life == Life::Open && !self.outbox.runs {
            let bye = RequestHeader { flags: 0, command: Command::Disconnect.into(), cookie: 0, offset: 0, length: 0 };
            let told = self.counted.as_mut().map(|counted| counted.ask());
            let (bye, length) = with_record(&bye, told);
            let _ = send(&self.socket, &bye[..length], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        self.life = Life::Left;
        self.shut();
    }

    pub(super) fn reason(&self) -> &'static str {
        if let Life::Broken(reason) = self.life { reason } else { "it was closed" }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.outstanding > 0
    }

    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.is_in_use() && self.is_busy() && now.since(self.heard) >= SILENCE_MAX
    }

    fn is_in_use(&self) -> bool {
        matches!(self.life, Life::Open | Life::Ending)
    }

    fn is_quiet(&self) -> bool {
        !self.outbox.runs && !self.inbox.runs
    }
}

impl Outbox {
    /// Whether the request with this cookie is among those that are being sent.
    fn is_sending(&self, cookie: u64) -> bool {
        // The numbers of requests wrap around.
        let number = |cookie: u64| (cookie >> 32) as u32;
        self.runs && number(cookie).wrapping_sub(number(self.first)) < self.headers.len() as u32
    }
}

impl RemoteStore {
    fn tag(&self, operation: u8, key: ConnectionKey) -> u64 {
        use crate::slab::Id as _;
        Tag::Store(StoreEvent { kind: self.kind, operation, index: key.index() }).pack()
    }

    /// Forgets a connection of a closed volume when the ring does not name it any more.
    pub(super) fn forget_if_quiet(&mut self, key: ConnectionKey) {
        if self.connections[key].is_quiet() {
            self.connections.remove(key);
        }
    }

    /// Breaks a connection off, and ends what was on it as soon as the ring does not name its memory any more.
    fn break_off(&mut self, context: &mut Context<'_>, key: ConnectionKey, reason: &'static str) {
        self.connections[key].break_off(reason);
        if self.connections[key].is_quiet() {
            if self.connections[key].life != Life::Left {
                self.end_answered(context, key);
                self.lost(context, key);
            }
            self.connections.remove(key);
        }
    }

    /// Sends operations that wait, if nothing is being sent.
    pub(super) fn send(&mut self, context: &mut Context<'_>, key: ConnectionKey) {
        let connection = &mut self.connections[key];
        if connection.outbox.runs || connection.life != Life::Open {
            return;
        }
        let volume = &mut self.volumes[connection.volume];
        let Outbox { headers, segments, sent, first, .. } = &mut connection.outbox;
        headers.clear();
        segments.clear();
        *sent = 0;
        // The segments refer to headers, which may not move.
        headers.reserve(REQUESTS_MAX);
        while headers.len() < REQUESTS_MAX {
            let Some(&index) = volume.waiting.front() else { break };
            let running = self.running[index.0 as usize].as_mut().expect("an operation in flight has an entry");
            let data = match running.command {
                Command::Write => running.memory,
                _ => Memory::None,
            };
            let pieces = if let Memory::Pieces(_, count) = data { count as usize } else { 1 };
            if !headers.is_empty() && segments.len() + 1 + pieces > SEGMENTS_MAX {
                break;
            }
            volume.waiting.pop_front();
            self.sent = self.sent.wrapping_add(1);
            let cookie = u64::from(self.sent) << 32 | u64::from(index.0);
            if headers.is_empty() {
                *first = cookie;
            }
            running.place = Place::Sent(key, cookie);
            running.covers = volume.source.kind().unforced().confirmed();
            let Running { flags, offset, length, command, .. } = *running;
            let told = connection.counted.as_mut().map(|counted| counted.ask());
            let header = RequestHeader { flags, command: command.into(), cookie, offset, length };
            let (header, iov_len) = with_record(&header, told);
            headers.push(header);
            let header = headers.last_mut().expect("it was pushed");
            segments.push(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len });
            match data {
                Memory::None => {}
                Memory::One(start) => {
                    segments.push(libc::iovec { iov_base: start.cast(), iov_len: length as usize });
                }
                Memory::Pieces(first, count) => {
                    // SAFETY: the list stays until the operation has ended, and nothing changes it meanwhile.
                    segments.extend_from_slice(unsafe { std::slice::from_raw_parts(first, count as usize) });
                }
            }
            if connection.outstanding == 0 {
                connection.heard = context.now;
            }
            connection.outstanding += 1;
        }
        if !segments.is_empty() {
            self.push_send(context, key);
        }
    }

    /// Pushes what is left to send.
    fn push_send(&mut self, context: &mut Context<'_>, key: ConnectionKey) {
        let tag = self.tag(SEND, key);
        let Connection { socket, outbox, .. } = &mut self.connections[key];
        let left = &mut outbox.segments[outbox.sent..];
        // A list that is too long for one send goes in parts.
        let count = left.len().min(SEGMENTS_MAX);
        (outbox.message.msg_iov, outbox.message.msg_iovlen) = (left.as_mut_ptr(), count as _);
        outbox.runs = true;
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry =
            opcode::SendMsg::new(types::Fd(socket.as_raw_fd()), &raw const *outbox.message).flags(flags).build();
        // SAFETY: message, segments and headers stay as they are while `runs`, and the data until their operations have ended, which none
        // does before; the connection stays with its socket until then.
        unsafe { context.ring.push(entry.user_data(tag)) };
    }

    /// Handles the end of a send.
    pub(super) fn sent(&mut self, context: &mut Context<'_>, key: ConnectionKey, result: i32) {
        let connection = &mut self.connections[key];
        connection.outbox.runs = false;
        if !connection.is_in_use() {
            return self.break_off(context, key, "");
        }
        let outbox = &mut connection.outbox;
        if result <= 0 && !is_put_off(result) {
            return self.break_off(context, key, "nothing can be sent");
        }
        let mut bytes = result.max(0) as usize;
        while let Some(first) = outbox.segments.get_mut(outbox.sent) {
            if first.iov_len > bytes {
                first.iov_base = first.iov_base.wrapping_byte_add(bytes);
                first.iov_len -= bytes;
                return self.push_send(context, key);
            }
            bytes -= first.iov_len;
            outbox.sent += 1;
        }
        self.end_answered(context, key);
        self.send(context, key);
    }

    /// Ends writes that were answered while they were being sent.
    fn end_answered(&mut self, context: &mut Context<'_>, key: ConnectionKey) {
        for (index, errno) in std::mem::take(&mut self.connections[key].outbox.answered) {
            self.answered(context, index, errno);
        }
    }

    /// Receives more, if nothing is being received.
    pub(super) fn receive(&mut self, context: &mut Context<'_>, key: ConnectionKey) {
        let tag = self.tag(RECEIVE, key);
        let is_in_use = self.connections[key].is_in_use();
        let Connection { socket, inbox, .. } = &mut self.connections[key];
        if inbox.runs || !is_in_use {
            return;
        }
        inbox.buffer.copy_within(inbox.start..inbox.end, 0);
        (inbox.start, inbox.end) = (0, inbox.end - inbox.start);
        let direct = inbox.data.and_then(|index| {
            let Running { memory, length, .. } =
                self.running[index.0 as usize].as_ref().expect("its data have not all come");
            memory.first(*length).filter(|_| *length >= DIRECT_MIN)
        });
        inbox.is_direct = direct.is_some();
        let rest = &mut inbox.buffer[inbox.end..];
        let (to, length) = direct.unwrap_or((rest.as_mut_ptr(), rest.len() as u32));
        inbox.runs = true;
        let entry = opcode::Recv::new(types::Fd(socket.as_raw_fd()), to, length).build();
        // SAFETY: the buffer stays with the connection, which stays while `runs`; so does the memory of the read, which ends later.
        unsafe { context.ring.push(entry.user_data(tag)) };
    }

    /// Handles the end of a receive.
    pub(super) fn received(&mut self, context: &mut Context<'_>, key: ConnectionKey, result: i32) {
        let is_in_use = self.connections[key].is_in_use();
        let Connection { inbox, heard, .. } = &mut self.connections[key];
        inbox.runs = false;
        match result {
            _ if !is_in_use => return self.break_off(context, key, ""),
            _ if is_put_off(result) => return self.receive(context, key),
            0 => return self.break_off(context, key, "the server closed it"),
            ..0 => return self.break_off(context, key, "nothing can be received"),
            1.. => *heard = context.now,
        }
        match inbox.data {
            Some(index) if inbox.is_direct => {
                // SAFETY: the operation has not ended, and has at least as much left.
                unsafe { self.running(index).memory.advance(result as usize) };
                self.data_came(context, key, index, result as u32);
            }
            _ => inbox.end += result as usize,
        }
        match self.take_replies(context, key) {
            Ok(()) => self.receive(context, key),
            Err(reason) => self.break_off(context, key, reason),
        }
    }

    /// Notes that data of a read have come. If the connection is lost, the rest is read by the next one.
    fn data_came(&mut self, context: &mut Context<'_>, key: ConnectionKey, index: OpIndex, bytes: u32) {
        let running = self.running(index);
        running.offset += u64::from(bytes);
        running.length -= bytes;
        if running.length == 0 {
            self.connections[key].inbox.data = None;
            self.connections[key].outstanding -= 1;
            self.answered(context, index, 0);
        }
    }

    /// Takes what has arrived in the buffer.
    fn take_replies(&mut self, context: &mut Context<'_>, key: ConnectionKey) -> Result<(), &'static str> {
        loop {
            let Connection { inbox, counted, .. } = &mut self.connections[key];
            let arrived = &inbox.buffer[inbox.start..inbox.end];
            if let Some(index) = inbox.data {
                let running = self.running[index.0 as usize].as_mut().expect("its data have not all come");
                let came = arrived.len().min(running.length as usize);
                if came == 0 {
                    return Ok(());
                }
                // SAFETY: the operation has not ended, and has at least as many bytes.
                unsafe { running.memory.fill(&arrived[..came]) };
                inbox.start += came;
                self.data_came(context, key, index, came as u32);
                continue;
            }
            let Some((head, rest)) = arrived.split_first_chunk::<SIMPLE_REPLY_LEN>() else { return Ok(()) };
            if u32_at(head, 0) != SIMPLE_REPLY_MAGIC {
                return Err("the server sent something else than a reply");
            }
            let (errno, cookie) = (u32_at(head, 4), u64_at(head, 8));
            let record = match (counted.is_some(), rest.first_chunk()) {
                (true, None) => return Ok(()),
                (true, Some(record)) => Some(ReplyRecord::parse(record)),
                (false, _) => None,
            };
            inbox.start += SIMPLE_REPLY_LEN + record.map_or(0, |_| ReplyRecord::LEN);
            let index = OpIndex(cookie as u32);
            let running = self.running.get(index.0 as usize).and_then(Option::as_ref);
            let running = running.filter(|running| running.place == Place::Sent(key, cookie));
            let running = running.ok_or("the server answered a request that was not sent")?;
            let length = running.length;
            if let (Some(counted), Some(record)) = (counted, &record)
                && !counted.answered(record, length)
            {
                return Err("the server says that it has been started again");
            }
            if errno == 0 && running.command == Command::Read {
                inbox.data = Some(index);
                continue;
            }
            let (is_write, errno) = (running.command == Command::Write, errno_of(errno));
            self.running(index).place = Place::Answered;
            let Connection { outbox, outstanding, life, .. } = &mut self.connections[key];
            *outstanding -= 1;
            // It has not carried the request out.
            if errno == libc::ESHUTDOWN {
                *life = Life::Ending;
            }
            // The end of a send may be reported after the reply, and a server may answer before it has all.
            match is_write && outbox.is_sending(cookie) {
                true => outbox.answered.push((index, errno)),
                false => self.answered(context, index, errno),
            }
            if self.connections[key].life == Life::Ending && !self.connections[key].is_busy() {
                return Err("the server is shutting down");
            }
        }
    }
}

/// A request's header with what follows it before its data, and their length.
fn with_record(header: &RequestHeader, told: Option<Told>) -> ([u8; HEADER_MAX], usize) {
    let mut bytes = [0; HEADER_MAX];
    bytes[..RequestHeader::LEN].copy_from_slice(&header.encode());
    let Some(told) = told else { return (bytes, RequestHeader::LEN) };
    bytes[RequestHeader::LEN..].copy_from_slice(&RequestRecord { vm: 0, told }.encode());
    (bytes, HEADER_MAX)
}

/// The Linux errno of an error of the protocol: most have the same number.
fn errno_of(error: u32) -> i32 {
    crate::nbd::wire::Errno::from_wire(error).map_or(0, |errno| errno.to_wire() as i32)
}
