//! One NBD client in transmission: its socket, what has come, what must go.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use sluice_sched::Instant;

use crate::backend::request::RequestList;
use crate::device::vm::Intake;
use crate::frontend::nbd::Arrived;
use crate::limits::{is_memory_for_clients, reserve};
use crate::nbd::handshake::Negotiated;
use crate::slab::{IoId, VolumeKey};

/// Bytes read at once: dozens of requests, or a few with their data.
pub(crate) const RECEIVE_LEN: usize = 128 << 10;

/// Bytes of memory that a sent batch keeps for the headers of the next: those of hundreds of requests. Answers to block
/// status lie among headers and fill megabytes, which no window counts once they have gone.
const HEADERS_KEPT: usize = 16 << 10;

/// What the next bytes of a client are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Header,
    /// Data of this request, of which so many bytes are there.
    Payload {
        io: IoId,
        have: u32,
    },
    /// Data of this refused request, of which so many bytes are still to come; it is answered behind them.
    Skip {
        io: IoId,
        left: u32,
    },
}

/// A receive in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receive {
    Idle,
    /// Into the memory of the connection.
    ToMemory,
    /// Straight into the buffer of a request.
    ToBuffer,
}

/// How far the life of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// No more is read, because the client said so or everything drains. What was read is answered.
    Finishing,
    /// The socket is shut down; nothing is sent any more.
    Closed,
}

/// How long the data of a write may take from the first receive for them on, besides [`DATA_PER_MIB`]. Until then they hold
/// room in the window that all volumes of the VM share.
const DATA_MAX: Duration = Duration::from_secs(10);
/// How long a client may take to read a batch of replies, besides [`DATA_PER_MIB`]. It is longer than [`DATA_MAX`], because a
/// hypervisor that is suspended for a moment reads nothing, and would see errors of its disk.
const REPLIES_MAX: Duration = Duration::from_secs(30);
/// How much longer for each MiB of data or replies.
///
/// Example: the reply to a read of 32 MiB must be read within 30 + 32 = 62 s.
const DATA_PER_MIB: Duration = Duration::from_secs(1);

/// A client.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) volume: VolumeKey,
    pub(crate) negotiated: Negotiated,
    /// Its place among the host's connections.
    _permit: Box<dyn Send>,
    /// Received and not yet understood: `received[start..end]`.
    pub(crate) received: Vec<u8>,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) expect: Expect,
    /// When the data that are expected now must be there.
    pub(crate) due: Option<Instant>,
    /// When the replies that are being sent must have been read.
    pub(crate) replies_due: Option<Instant>,
    pub(crate) receive: Receive,
    pub(crate) intake: Intake,
    pub(crate) phase: Phase,
    /// Requests between header and sent reply, in no order.
    pub(crate) requests: RequestList,
    /// Answered, to be sent.
    pub(crate) replies: Vec<IoId>,
    pub(crate) sending: Option<Box<Batch>>,
    /// A batch that was sent, kept for its memory.
    pub(crate) spare: Option<Box<Batch>>,
    /// It is in the list of those with something to send.
    pub(crate) listed: bool,
}

/// Replies that go together.
pub(crate) struct Batch {
    pub(crate) ios: Vec<IoId>,
    pub(crate) headers: Vec<u8>,
    pub(crate) pieces: Vec<libc::iovec>,
    pub(crate) first: usize,
    pub(crate) message: libc::msghdr,
}

impl Batch {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: a message header of zeroes is valid: no name, no pieces, no control data.
        let message = unsafe { std::mem::zeroed() };
        let (ios, headers, pieces) = (Vec::new(), Vec::new(), Vec::new());
        Box::new(Batch { ios, headers, pieces, first: 0, message })
    }

    /// Empties it, and gives back what only a large one needs.
    pub(crate) fn clear(&mut self) {
        self.ios.clear();
        self.headers.clear();
        self.headers.shrink_to(HEADERS_KEPT);
        self.pieces.clear();
        self.first = 0;
    }

    /// `sent` bytes have gone; whether some are left.
    pub(crate) fn advance(&mut self, mut sent: usize) -> bool {
        while let Some(piece) = self.pieces.get_mut(self.first) {
            if sent < piece.iov_len {
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(sent).cast();
                piece.iov_len -= sent;
                return true;
            }
            sent -= piece.iov_len;
            self.first += 1;
        }
        false
    }
}

impl Connection {
    /// A client that comes from its handshake; `None`: there is no memory for what it sends.
    pub(crate) fn new(arrived: Arrived, volume: VolumeKey) -> Option<Self> {
        let mut received = Vec::new();
        if !is_memory_for_clients(RECEIVE_LEN) || !reserve(&mut received, RECEIVE_LEN) {
            return None;
        }
        received.resize(RECEIVE_LEN, 0);
        Some(Connection {
            socket: arrived.socket,
            volume,
            negotiated: arrived.negotiated,
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
            listed: false,
        })
    }

    /// Waits for `left` more bytes of data, from `now` on if it did not wait for them before.
    pub(crate) fn wait_for_data(&mut self, now: Instant, left: u32) {
        self.due.get_or_insert_with(|| now + DATA_MAX + DATA_PER_MIB * (left >> 20));
    }

    /// The data that it waited for are there.
    pub(crate) fn data_are_there(&mut self) {
        (self.expect, self.due) = (Expect::Header, None);
    }

    /// Begins to send `bytes` of replies.
    pub(crate) fn start_batch(&mut self, now: Instant, batch: Box<Batch>, bytes: u64) {
        self.replies_due = Some(now + REPLIES_MAX + DATA_PER_MIB * (bytes >> 20) as u32);
        self.sending = Some(batch);
    }

    /// Ends a batch that was sent, or that cannot be.
    pub(crate) fn take_batch(&mut self) -> Option<Box<Batch>> {
        self.replies_due = None;
        self.sending.take()
    }

    /// Whether the loop must look for overdue data or replies.
    pub(crate) fn has_a_deadline(&self) -> bool {
        !self.is_closed() && (self.due.is_some() || self.replies_due.is_some())
    }

    /// What its client has not done in time.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        let is_over = |due: Option<Instant>| !self.is_closed() && due.is_some_and(|due| due <= now);
        if is_over(self.due) {
            return Some("the data of a write did not come in time");
        }
        is_over(self.replies_due).then_some("replies were not read in time")
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Reads no more; what was read is answered.
    pub(crate) fn finish(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Finishing;
        }
    }

    pub(crate) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Ends both directions; operations in the kernel return.
    pub(crate) fn shut_down(&mut self) {
        if !self.is_closed() {
            self.phase = Phase::Closed;
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether nothing refers to it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase != Phase::Open && self.receive == Receive::Idle && self.sending.is_none() && self.requests.is_empty()
    }

    /// Makes room at the end of the receive memory.
    pub(crate) fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.received.copy_within(self.start..self.end, 0);
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
        assert_eq!(batch.headers.as_ptr(), place, "what usual replies need stays");
    }
}
