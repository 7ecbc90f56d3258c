//! One NBD client in transmission: its socket, received bytes, and replies to send.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use sluice_sched::Instant;

use crate::backend::buffer::{Buffer, Room};
use crate::backend::request::RequestList;
use crate::frontend::nbd::Arrived;
use crate::intake::Intake;
use crate::nbd::handshake::Negotiated;
use crate::slab::{IoId, VolumeKey};

/// Maximum number of bytes per receive: dozens of requests, or a few with their data. A client without requests takes one page of it, and
/// one with requests as much as it sends at once: the kernel zeroes a page when it is first written.
pub(crate) const RECEIVE_LEN: usize = 128 << 10;

/// Memory that a sent batch keeps for the headers of the next one, in bytes; enough for hundreds of requests. Replies
/// to block status are among the headers and can take megabytes, which no window counts after they were sent.
const HEADERS_KEPT: usize = 16 << 10;

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

/// How the next bytes of a socket are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receive {
    /// No bytes are received.
    Idle,
    /// io_uring receives into the receive buffer of the connection.
    ToMemory,
    /// io_uring receives directly into the buffer of a request.
    ToBuffer,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// No more requests are read, because the client has disconnected or the device drains. Requests that were read are
    /// answered.
    Finishing,
    /// The socket is shut down, and no reply is sent.
    Closed,
}

/// Time limit for the data of a write, from the first receive for them, in addition to [`DATA_PER_MIB`]. Until then
/// they occupy the window that all volumes of the VM share.
const DATA_MAX: Duration = Duration::from_secs(10);
/// Time limit for reading a batch of replies, in addition to [`DATA_PER_MIB`]. It is longer than [`DATA_MAX`], because
/// a hypervisor that is suspended for a moment reads nothing, and would see errors of its disk.
const REPLIES_MAX: Duration = Duration::from_secs(30);
/// Additional time for each MiB of data or replies.
///
/// Example: the reply to a read of 32 MiB must be read within 30 + 32 = 62 s.
const DATA_PER_MIB: Duration = Duration::from_secs(1);

/// An NBD client.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) volume: VolumeKey,
    pub(crate) negotiated: Negotiated,
    /// Address or process of the client.
    pub(crate) peer: String,
    /// Its connection permit.
    _permit: Box<dyn Send>,
    /// Received bytes that have not been parsed: `received[start..end]`.
    pub(crate) received: Buffer,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) expect: Expect,
    /// Deadline of the expected data.
    pub(crate) due: Option<Instant>,
    /// Deadline for reading the replies that are being sent.
    pub(crate) replies_due: Option<Instant>,
    pub(crate) receive: Receive,
    pub(crate) intake: Intake,
    pub(crate) phase: Phase,
    /// Requests from their header to the sent reply, in no order.
    pub(crate) requests: RequestList,
    /// Requests whose replies are to be sent.
    pub(crate) replies: Vec<IoId>,
    pub(crate) sending: Option<Box<Batch>>,
    /// A batch that was sent, kept for its memory.
    pub(crate) spare: Option<Box<Batch>>,
    /// Whether its client has disconnected without reading its replies, which are dropped. Its requests are served.
    pub(crate) is_deaf: bool,
    /// Whether it is in the list of connections with replies to send.
    pub(crate) listed: bool,
    /// Whether the kernel is to report that the client has closed its end.
    pub(crate) is_watched: bool,
}

/// Replies that are sent together.
pub(crate) struct Batch {
    pub(crate) ios: Vec<IoId>,
    pub(crate) headers: Vec<u8>,
    pub(crate) segments: Vec<libc::iovec>,
    pub(crate) first: usize,
    pub(crate) message: libc::msghdr,
}

impl Batch {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: a message header of zeroes is valid: no name, no segments, no control data.
        let message = unsafe { std::mem::zeroed() };
        let (ios, headers, segments) = (Vec::new(), Vec::new(), Vec::new());
        Box::new(Batch { ios, headers, segments, first: 0, message })
    }

    /// Empties it, and frees memory that only a large batch needs.
    pub(crate) fn clear(&mut self) {
        self.ios.clear();
        self.headers.clear();
        self.headers.shrink_to(HEADERS_KEPT);
        self.segments.clear();
        self.first = 0;
    }

    /// Records that `sent` bytes were sent. Returns whether some are left.
    pub(crate) fn advance(&mut self, mut sent: usize) -> bool {
        while let Some(segment) = self.segments.get_mut(self.first) {
            if sent < segment.iov_len {
                segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(sent).cast();
                segment.iov_len -= sent;
                return true;
            }
            sent -= segment.iov_len;
            self.first += 1;
        }
        false
    }
}

impl Connection {
    /// Creates a connection after the handshake; `None` if there is no memory for its receive buffer.
    pub(crate) fn new(arrived: Arrived, volume: VolumeKey) -> Option<Self> {
        let received = Buffer::allocate(RECEIVE_LEN, Room::Clients)?;
        Some(Connection {
            socket: arrived.socket,
            volume,
            negotiated: arrived.negotiated,
            peer: arrived.peer,
            _permit: arrived.permit,
            received,
            start: 0,
            end: 0,
            expect: Expect::Header,
            due: None,
            replies_due: None,
            receive: Receive::Idle,
            intake: Intake::Open,
            phase: Phase::Open,
            requests: RequestList::default(),
            replies: Vec::new(),
            sending: None,
            spare: None,
            is_deaf: false,
            listed: false,
            is_watched: false,
        })
    }

    /// Sets the deadline for `left` more bytes of data, unless it is set already.
    pub(crate) fn wait_for_data(&mut self, now: Instant, left: u32) {
        self.due.get_or_insert_with(|| now + DATA_MAX + DATA_PER_MIB * (left >> 20));
    }

    /// Records that the expected data is complete.
    pub(crate) fn data_complete(&mut self) {
        (self.expect, self.due) = (Expect::Header, None);
    }

    /// Starts sending `bytes` of replies.
    pub(crate) fn start_batch(&mut self, now: Instant, batch: Box<Batch>, bytes: u64) {
        self.replies_due = Some(now + REPLIES_MAX + DATA_PER_MIB * (bytes >> 20) as u32);
        self.sending = Some(batch);
    }

    /// Returns the batch that was sent, or that cannot be sent.
    pub(crate) fn take_batch(&mut self) -> Option<Box<Batch>> {
        self.replies_due = None;
        self.sending.take()
    }

    /// Whether the connection has a deadline to be checked.
    pub(crate) fn has_deadline(&self) -> bool {
        !self.is_closed() && (self.due.is_some() || self.replies_due.is_some())
    }

    /// Returns which deadline has passed, if any.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        let has_passed = |due: Option<Instant>| !self.is_closed() && due.is_some_and(|due| due <= now);
        if has_passed(self.due) {
            return Some("the data of a write did not arrive in time");
        }
        has_passed(self.replies_due).then_some("replies were not read in time")
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Reads no more requests. Requests that were read are answered.
    pub(crate) fn finish(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Finishing;
        }
    }

    pub(crate) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Shuts down the socket, so that operations in the kernel end.
    pub(crate) fn shut_down(&mut self) {
        if !self.is_closed() {
            self.phase = Phase::Closed;
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether nothing refers to it any more, apart from the kernel if it is watched.
    pub(crate) fn can_be_removed(&self) -> bool {
        self.phase != Phase::Open && self.receive == Receive::Idle && self.sending.is_none() && self.requests.is_empty()
    }

    /// Moves the unparsed bytes to the start of the receive buffer.
    pub(crate) fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.received.bytes_mut(self.end).copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_keeps_little_memory_for_the_next() {
        let mut batch = Batch::new();
        batch.headers.resize(4 << 20, 0);
        batch.clear();
        assert!(batch.headers.is_empty() && batch.headers.capacity() <= HEADERS_KEPT, "{}", batch.headers.capacity());
        batch.headers.resize(4096, 0);
        let place = batch.headers.as_ptr();
        batch.clear();
        batch.headers.resize(4096, 0);
        assert_eq!(batch.headers.as_ptr(), place, "the memory of usual replies is kept");
    }
}
