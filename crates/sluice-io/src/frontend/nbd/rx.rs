//! Bytes received from an NBD client: those that are not parsed yet, and the state of the parser.

use std::time::Duration;

use sluice_sched::Instant;

use crate::backend::buffer::{Buffer, Room};
use crate::slab::IoId;

/// Maximum number of bytes per receive: dozens of requests, or a few with their data. A client without requests takes one page of it, and
/// one with requests as much as it sends at once: the kernel zeroes a page when it is first written.
pub(crate) const RECEIVE_LEN: usize = 128 << 10;

/// Time limit for the data of a write, from the first receive for them, in addition to [`DATA_PER_MIB`]. Until then
/// they occupy the window that all volumes of the VM share.
const DATA_MAX: Duration = Duration::from_secs(10);
/// Additional time for each MiB of data or replies.
///
/// Example: the reply to a read of 32 MiB must be read within 30 + 32 = 62 s.
pub(crate) const DATA_PER_MIB: Duration = Duration::from_secs(1);

/// The meaning of the next received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Header,
    /// Data of this request, of which `have` bytes have been received.
    Payload {
        io: IoId,
        have: u32,
    },
    /// Data of this refused request, of which `left` bytes are still expected. The reply is sent after them.
    Skip {
        io: IoId,
        left: u32,
    },
}

/// The way in which the next bytes of a socket are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receive {
    /// No bytes are received.
    Idle,
    /// io_uring receives into the receive buffer of the connection.
    ToMemory,
    /// io_uring receives directly into the buffer of a request.
    ToBuffer,
}

/// The receiving half of a connection.
pub(crate) struct Rx {
    buffer: Buffer,
    /// The bytes that have not been parsed: `buffer[start..end]`.
    start: usize,
    end: usize,
    pub(crate) expect: Expect,
    /// Deadline of the expected data.
    due: Option<Instant>,
    pub(crate) receive: Receive,
}

impl Rx {
    /// Returns `None` if there is no memory for the receive buffer.
    pub(crate) fn new() -> Option<Self> {
        let buffer = Buffer::allocate(RECEIVE_LEN, Room::Clients)?;
        Some(Rx { buffer, start: 0, end: 0, expect: Expect::Header, due: None, receive: Receive::Idle })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.receive == Receive::Idle
    }

    /// Returns the bytes that have not been parsed.
    pub(crate) fn unparsed(&self) -> &[u8] {
        &self.buffer.bytes(self.end)[self.start..]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Records that some bytes have been parsed.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Records that some bytes were received into the buffer.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Returns the free part of the buffer, with the unparsed bytes before it.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut(RECEIVE_LEN)[self.end..]
    }

    /// Moves the unparsed bytes to the start of the buffer.
    pub(crate) fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.bytes_mut(self.end).copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Sets the deadline for `left` more bytes of data, unless it is set already.
    pub(crate) fn wait_for_data(&mut self, now: Instant, left: u32) {
        self.due.get_or_insert_with(|| now + DATA_MAX + DATA_PER_MIB * (left >> 20));
    }

    /// Records that the expected data is complete.
    pub(crate) fn data_complete(&mut self) {
        (self.expect, self.due) = (Expect::Header, None);
    }

    /// Returns the deadline of the expected data.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the request whose data will never be complete, if no more are received.
    pub(crate) fn give_up_data(&mut self) -> Option<IoId> {
        let (Expect::Payload { io, .. } | Expect::Skip { io, .. }) = self.expect else { return None };
        self.data_complete();
        Some(io)
    }
}
