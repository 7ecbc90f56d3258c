//! Replies of completed requests.
//!
//! The replies of an iteration are sent in one message per client: headers from one block of memory, data directly from
//! the buffers of the requests. Until the message has been sent, its requests occupy their VM's window. So a client
//! that does not read it in time is disconnected.

use io_uring::{opcode, types};
use sluice_sched::Instant;

use crate::backend::disk::ZEROES_LEN;
use crate::backend::request::{Body, IoRequest, Served};
use crate::backend::retry::is_put_off;
use crate::backend::tag::Tag;
use crate::device::core::Core;
use crate::frontend::nbd::connection::Life;
use crate::frontend::nbd::{ConnectionId, Nbd, SEND};
use crate::limits::reserve;
use crate::nbd::gateway::record::ReplyRecord;
use crate::nbd::handshake::Negotiated;
use crate::nbd::wire::{self, Errno, Extent, allocation};
use crate::slab::{Id as _, IoId};
use crate::source::{Allocation, Span};

/// Maximum number of replies in a message.
const REPLIES_MAX: usize = 256;
/// Maximum number of segments in a message; the kernel accepts 1024.
const SEGMENTS_MAX: usize = 512;

/// A segment of a message, while the header memory may still move.
pub(crate) enum Segment {
    Header { start: usize, len: usize },
    Data { place: *mut u8, len: usize },
}

impl Nbd {
    /// Queues the reply of a completed request for this iteration's message.
    pub(crate) fn queue_reply(&mut self, core: &mut Core, io: IoId) {
        let id = core.backend.ios[io].origin.client.id();
        let connection = &mut self.connections[id];
        if connection.is_closed() || connection.tx.is_deaf() {
            return self.free(core, id, io);
        }
        connection.tx.replies.push(io);
        self.send_later(id);
    }

    /// Lets the replies of a connection be sent at the end of the iteration.
    pub(super) fn send_later(&mut self, id: ConnectionId) {
        let tx = &mut self.connections[id].tx;
        if !std::mem::replace(&mut tx.listed, true) {
            self.tx_pending.push(id);
        }
    }

    /// Sends the replies of this iteration.
    pub(crate) fn send_replies(&mut self, core: &mut Core, now: Instant) {
        let mut tx_pending = std::mem::take(&mut self.tx_pending);
        for id in tx_pending.drain(..) {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.tx.listed = false;
            if connection.is_closed() {
                let replies = std::mem::take(&mut connection.tx.replies);
                replies.into_iter().for_each(|io| self.free(core, id, io));
            } else if connection.tx.may_send() {
                self.send_batch(core, now, id);
            }
        }
        self.tx_pending = tx_pending;
    }

    fn send_batch(&mut self, core: &mut Core, now: Instant, id: ConnectionId) {
        let connection = &mut self.connections[id];
        let mut batch = connection.tx.empty_batch();
        let mut segments: Vec<Segment> = std::mem::take(&mut self.segments);
        let replies = connection.tx.replies.len().min(REPLIES_MAX);
        let mut bytes = 0;
        for &id in &connection.tx.replies[..replies] {
            if segments.len() > SEGMENTS_MAX {
                break;
            }
            let io = &core.backend.ios[id];
            let start = batch.headers.len();
            let data = header(&mut batch.headers, io, &connection.negotiated);
            let len = batch.headers.len() - start;
            bytes += (len + data) as u64;
            match segments.last_mut() {
                Some(Segment::Header { len: before, .. }) => *before += len,
                _ => segments.push(Segment::Header { start, len }),
            }
            if data > 0 {
                push_data(&mut segments, io, data, core.backend.zeroes.as_ptr());
            }
            batch.ios.push(id);
        }
        connection.tx.replies.drain(..batch.ios.len());
        let headers = batch.headers.as_mut_ptr();
        batch.segments.extend(segments.drain(..).map(|segment| match segment {
            Segment::Header { start, len } => {
                libc::iovec { iov_base: headers.wrapping_add(start).cast(), iov_len: len }
            }
            Segment::Data { place, len } => libc::iovec { iov_base: place.cast(), iov_len: len },
        }));
        self.segments = segments;
        connection.tx.start(now, batch, bytes);
        self.watch_deadlines(now);
        self.push_send(core, id);
    }

    fn push_send(&mut self, core: &mut Core, id: ConnectionId) {
        let connection = &mut self.connections[id];
        let fd = types::Fd(connection.fd());
        let batch = connection.tx.batch();
        let segments = &mut batch.segments[batch.first..];
        let entry = match segments {
            [only] => {
                let start = only.iov_base.cast::<u8>().cast_const();
                opcode::Send::new(fd, start, only.iov_len as u32).flags(libc::MSG_NOSIGNAL).build()
            }
            segments => {
                batch.message.msg_iov = segments.as_mut_ptr();
                batch.message.msg_iovlen = segments.len();
                opcode::SendMsg::new(fd, &raw const batch.message).flags(libc::MSG_NOSIGNAL as u32).build()
            }
        };
        let tag = Tag::Frontend(self.number, SEND, id.index());
        // SAFETY: the batch is boxed and stays with its connection until this send has ended; its segments are in its
        // own headers, in the loop's zeroes, and in buffers of requests that are freed only after it.
        unsafe { core.backend.ring.push(entry.user_data(tag.pack())) };
    }

    /// Handles the end of a send.
    pub(crate) fn sent(&mut self, core: &mut Core, id: ConnectionId, result: i32) {
        let connection = &mut self.connections[id];
        let again = match result {
            result if is_put_off(result) => true,
            ..0 => {
                self.end_batch(core, id);
                return self.cannot_reply(core, id);
            }
            sent => connection.tx.batch().advance(sent as usize),
        };
        if again && !connection.is_closed() {
            return self.push_send(core, id);
        }
        self.end_batch(core, id);
    }

    /// Disconnects a client that reads no replies any more. Requests before an `NBD_CMD_DISC` are served nevertheless.
    fn cannot_reply(&mut self, core: &mut Core, id: ConnectionId) {
        let connection = &mut self.connections[id];
        let is_served =
            connection.life() == Life::Finishing || connection.is_open() && connection.ended_with_disconnect();
        if !is_served {
            return self.disconnect(core, id);
        }
        let replies = connection.tx.turn_deaf();
        replies.into_iter().for_each(|io| self.free(core, id, io));
        self.retire(id);
    }

    fn end_batch(&mut self, core: &mut Core, id: ConnectionId) {
        let mut ended = std::mem::take(&mut self.ended);
        let tx = &mut self.connections[id].tx;
        tx.end(&mut ended);
        if !tx.replies.is_empty() {
            self.send_later(id);
        }
        ended.drain(..).for_each(|io| self.free(core, id, io));
        self.ended = ended;
        self.retire(id);
    }
}

/// Appends the header of a reply. Returns the length of the data that follows it.
fn header(out: &mut Vec<u8>, io: &IoRequest, negotiated: &Negotiated) -> usize {
    if let Some(known) = &negotiated.gateway {
        let result = if io.errno == 0 { Ok(()) } else { Err(Errno::from_os(io.errno)) };
        let Served { phase, service, reserved, .. } = io.served;
        out.extend_from_slice(&wire::simple_reply(io.origin.cookie, result));
        out.extend_from_slice(&ReplyRecord { phase, service, reserved, start: known.start }.encode());
        return if result.is_ok() && matches!(io.body, Body::Read) { io.length as usize } else { 0 };
    }
    let cookie = io.origin.cookie;
    let is_structured = matches!(io.body, Body::Read | Body::Query(_) | Body::Answered | Body::Refused);
    let structured = negotiated.structured_replies && is_structured;
    if io.errno != 0 {
        let errno = Errno::from_os(io.errno);
        wire::error_reply(out, structured, cookie, errno, "");
        return 0;
    }
    if let Body::Query(question) = &io.body {
        let spans = &question.answer;
        if !reserve(out, wire::CHUNK_HEADER_LEN + 4 + wire::EXTENT_LEN * spans.len()) {
            wire::error_reply(out, structured, cookie, Errno::Enomem, "");
            return 0;
        }
        wire::block_status_chunk(out, cookie, negotiated.base_allocation.unwrap_or(0), spans.iter().map(extent));
        return 0;
    }
    let data = if matches!(io.body, Body::Read) { io.length } else { 0 };
    // A null volume: the client is told that it reads zeroes, and does not receive them.
    if structured && data > 0 && io.data.buffer().is_none() {
        out.extend_from_slice(&wire::offset_hole_chunk(cookie, io.offset, data));
        return 0;
    }
    if structured && data > 0 {
        out.extend_from_slice(&wire::read_data_chunk(cookie, io.offset, data));
    } else {
        out.extend_from_slice(&wire::simple_reply(cookie, Ok(())));
    }
    data as usize
}

fn extent(span: &Span) -> Extent {
    let flags = match span.kind {
        Allocation::Data => 0,
        Allocation::Hole => allocation::HOLE | allocation::ZERO,
    };
    Extent { length: u32::try_from(span.length).unwrap_or(!0xfff), flags }
}

fn push_data(segments: &mut Vec<Segment>, io: &IoRequest, mut data: usize, zeroes: *mut u8) {
    if let Some(buffer) = io.data.buffer() {
        return segments.push(Segment::Data { place: buffer.as_ptr(), len: data });
    }
    while data > 0 {
        let len = data.min(ZEROES_LEN);
        segments.push(Segment::Data { place: zeroes, len });
        data -= len;
    }
}
