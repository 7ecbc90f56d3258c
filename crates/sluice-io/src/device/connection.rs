//! One NBD client in transmission: its socket, what has come, what must go.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::device::spec::Arrived;
use crate::nbd::handshake::Negotiated;

/// Bytes read at once: dozens of requests, or a few with their data.
pub(super) const RECEIVE_LEN: usize = 128 << 10;

/// What the next bytes of a client are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Header,
    /// Data of this request, of which so many bytes are there.
    Payload {
        token: u32,
        have: u32,
    },
    /// Data of this refused request, of which so many bytes are still to come; it is answered behind them.
    Skip {
        token: u32,
        left: u32,
    },
}

/// A client.
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) volume: u32,
    pub(super) negotiated: Negotiated,
    /// Its place among the host's connections.
    _seat: Box<dyn Send>,
    /// Received and not yet understood: `received[start..end]`.
    pub(super) received: Vec<u8>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) expect: Expect,
    /// A receive is in the kernel.
    pub(super) receiving: bool,
    /// It goes straight into the buffer of a request.
    pub(super) direct: bool,
    /// It is not read before what a dead client left at the device is over.
    pub(super) parked: bool,
    /// It stands in its VM's line for room in the window.
    pub(super) waits: bool,
    /// No more is read: the client said so, or everything drains.
    pub(super) finishing: bool,
    /// The socket is shut down; nothing is sent any more.
    pub(super) closed: bool,
    /// Requests between header and sent reply.
    pub(super) outstanding: u32,
    /// Answered, to be sent.
    pub(super) answered: Vec<u32>,
    pub(super) sending: Option<Box<Batch>>,
    /// A batch that was sent, kept for its memory.
    pub(super) spare: Option<Box<Batch>>,
    /// It is in the list of those with something to send.
    pub(super) listed: bool,
}

/// Replies that go together.
pub(super) struct Batch {
    pub(super) tokens: Vec<u32>,
    pub(super) headers: Vec<u8>,
    pub(super) pieces: Vec<libc::iovec>,
    pub(super) first: usize,
    pub(super) message: libc::msghdr,
}

impl Batch {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: a message header of zeroes is valid: no name, no pieces, no control data.
        let message = unsafe { std::mem::zeroed() };
        let (tokens, headers, pieces) = (Vec::new(), Vec::new(), Vec::new());
        Box::new(Batch { tokens, headers, pieces, first: 0, message })
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.headers.clear();
        self.pieces.clear();
        self.first = 0;
    }

    /// `sent` bytes have gone; whether some are left.
    pub(super) fn advance(&mut self, mut sent: usize) -> bool {
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
    pub(super) fn new(arrived: Arrived, volume: u32) -> Self {
        Connection {
            socket: arrived.socket,
            volume,
            negotiated: arrived.negotiated,
            _seat: arrived.seat,
            received: vec![0; RECEIVE_LEN],
            start: 0,
            end: 0,
            expect: Expect::Header,
            receiving: false,
            direct: false,
            parked: false,
            waits: false,
            finishing: false,
            closed: false,
            outstanding: 0,
            answered: Vec::new(),
            sending: None,
            spare: None,
            listed: false,
        }
    }

    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Ends both directions; operations in the kernel return.
    pub(super) fn shut_down(&mut self) {
        if !self.closed {
            self.closed = true;
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether nothing refers to it any more.
    pub(super) fn is_over(&self) -> bool {
        (self.closed || self.finishing) && !self.receiving && self.sending.is_none() && self.outstanding == 0
    }

    /// Makes room at the end of the receive memory.
    pub(super) fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}
