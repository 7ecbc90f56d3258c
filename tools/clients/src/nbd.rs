//! A lean NBD client for the demo, the benchmarks and the tests of the server.
//!
//! A general-purpose load generator spends 6 to 8 us of CPU time on each NBD request. It saturates its core before
//! the server does, and so measures itself. This client is cheaper: it collects requests in one buffer and sends a
//! batch with one write. It receives replies in large blocks and parses them in place. Data of reads are dropped
//! there, or passed to the caller as a slice of that buffer. A table indexed by the cookie on the wire finds a
//! request without hashing. There is no thread, no runtime and no lock. One thread can drive any number of clients,
//! in a closed loop (submit when replies arrive) or an open loop (submit at given times).
//!
//! Writing never blocks. A server that applies back-pressure stops reading requests until its replies are read, so a
//! client that blocked in a write would wait for ever. Bytes that the socket does not accept stay in the buffer.
//!
//! Example, a closed loop of 32 reads on one connection:
//!
//! ```no_run
//! use sluice_client::nbd::{Client, Command};
//!
//! let mut client = Client::connect_unix("/run/sluice/vm1.sock", "disk0")?;
//! let mut finished: Vec<u64> = (0..32).collect();
//! for _ in 0..100_000 {
//!     for cookie in finished.drain(..) {
//!         client.submit(cookie, Command::Read { offset: cookie * 4096, len: 4096 })?;
//!     }
//!     client.flush_output()?;
//!     client.receive(None, &mut |reply| finished.push(reply.cookie))?;
//! }
//! client.disconnect()?;
//! # Ok::<(), sluice_client::nbd::ClientError>(())
//! ```
//!
//! Bounds: a client has at most [`IN_FLIGHT_MAX`] requests in flight and [`OUTPUT_LEN_MAX`] bytes of unsent requests.
//! Above them [`Client::submit`] returns an error.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use self::inbox::Inbox;
use self::slots::{Kind, Slots};
use self::socket::{Interest, Socket, Stream};
use sluice_io::nbd::client::{self, HandshakeError, Session, Wanted};
pub use sluice_io::nbd::wire::Errno;
use sluice_io::nbd::wire::{self, PAYLOAD_LEN_MAX, RequestHeader, command_flag};

mod inbox;
mod slots;
mod socket;

/// Maximum number of requests in flight of one client.
pub const IN_FLIGHT_MAX: usize = 1 << 16;
/// Maximum number of unsent bytes with which [`Client::submit`] accepts another request.
pub const OUTPUT_LEN_MAX: usize = 128 << 20;

/// Timeouts of at least this length use the socket's own timer. That saves two system calls, but is inexact by a few
/// ms.
const COARSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Time limit of [`Client::disconnect`] for the server to accept unsent requests.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Errors of an NBD client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket cannot be opened or set up.
    #[error("Cannot connect to the NBD server")]
    Connect(#[source] io::Error),
    /// The connection failed.
    #[error("The connection to the NBD server failed")]
    Io(#[source] io::Error),
    /// The server closed the connection.
    #[error("The NBD server closed the connection")]
    Closed,
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The server violated the protocol. The connection is unusable.
    #[error("The NBD server violated the protocol: {what}")]
    Protocol {
        /// The violation.
        what: &'static str,
    },
    /// [`IN_FLIGHT_MAX`] is reached; receive replies first.
    #[error("{IN_FLIGHT_MAX} requests are in flight; receive replies first")]
    TooManyInFlight,
    /// [`OUTPUT_LEN_MAX`] is reached; flush and receive first.
    #[error("More than {OUTPUT_LEN_MAX} bytes of requests are unsent; flush and receive first")]
    OutputFull,
    /// A read or write is longer than [`PAYLOAD_LEN_MAX`].
    #[error("A read or write of {len_bytes} bytes exceeds {PAYLOAD_LEN_MAX}; split it")]
    TooLong { len_bytes: usize },
}

/// Options of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOptions {
    /// Request structured replies. A server that does not support them is used without.
    pub structured_replies: bool,
    /// Select the context `base:allocation`, for [`Command::BlockStatus`]. Requires structured replies.
    pub base_allocation: bool,
    /// Pass the data of reads to the caller. Otherwise they are dropped on arrival.
    pub keep_data: bool,
    /// Maximum time that the server may be silent during the handshake.
    pub handshake_timeout: Duration,
}

impl Default for ClientOptions {
    /// Structured replies, no contexts, data dropped, a timeout of 10 s.
    fn default() -> ClientOptions {
        ClientOptions {
            structured_replies: true,
            base_allocation: false,
            keep_data: false,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// A request. Offsets and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        /// Copied into the output buffer.
        data: &'a [u8],
        /// The data are durable before the reply.
        fua: bool,
    },
    /// Makes completed writes durable.
    Flush,
    Trim {
        offset: u64,
        len: u32,
    },
    WriteZeroes {
        offset: u64,
        len: u32,
        /// The range stays allocated.
        no_hole: bool,
        /// Fails if zeroing is not faster than writing.
        fast: bool,
    },
    /// Queries the allocation of a range; parse the reply's data with [`wire::extents`].
    BlockStatus {
        offset: u64,
        len: u32,
    },
    /// Any header and payload, for tests of what a server refuses. The client's own cookie replaces the one in the
    /// header.
    Raw {
        header: RequestHeader,
        /// Sent after the header.
        payload: &'a [u8],
    },
}

/// A completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The cookie given to [`Client::submit`].
    pub cookie: u64,
    pub result: Result<(), Errno>,
    /// Data of a read if [`ClientOptions::keep_data`] is set, extents of a block status; otherwise empty.
    pub data: &'a [u8],
}

/// A connection to one export.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    session: Session,
    slots: Slots,
    inbox: Inbox,
    output: Vec<u8>,
    /// Number of bytes of `output` that the socket has accepted.
    sent: usize,
}

impl Client {
    /// Connects over a Unix socket, with the default options.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or an error of the handshake.
    pub fn connect_unix(path: impl AsRef<Path>, export: &str) -> Result<Client, ClientError> {
        let stream = UnixStream::connect(path).map_err(ClientError::Connect)?;
        Client::from_unix(stream, export, &ClientOptions::default())
    }

    /// Connects over TCP, with the default options and without Nagle's algorithm.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or an error of the handshake.
    pub fn connect_tcp(address: impl ToSocketAddrs, export: &str) -> Result<Client, ClientError> {
        let stream = TcpStream::connect(address).map_err(ClientError::Connect)?;
        Client::from_tcp(stream, export, &ClientOptions::default())
    }

    /// Does the handshake on a connected Unix socket.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or an error of the handshake.
    pub fn from_unix(stream: UnixStream, export: &str, options: &ClientOptions) -> Result<Client, ClientError> {
        Client::start(Stream::Unix(stream), export, options)
    }

    /// Does the handshake on a connected TCP socket.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or an error of the handshake.
    pub fn from_tcp(stream: TcpStream, export: &str, options: &ClientOptions) -> Result<Client, ClientError> {
        stream.set_nodelay(true).map_err(ClientError::Connect)?;
        Client::start(Stream::Tcp(stream), export, options)
    }

    /// Returns the size of the export, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.session.size_bytes
    }

    /// Returns the server's transmission flags, bits of [`wire::transmission_flag`].
    pub fn transmission_flags(&self) -> u16 {
        self.session.flags
    }

    /// Returns the minimum, preferred and maximum block size in bytes, if the server sent them.
    pub fn block_sizes(&self) -> Option<[u32; 3]> {
        self.session.block_sizes
    }

    /// Whether structured replies are in use.
    pub fn structured_replies(&self) -> bool {
        self.session.structured_replies
    }

    /// Returns the id of `base:allocation`, if it is selected.
    pub fn base_allocation(&self) -> Option<u32> {
        self.session.base_allocation
    }

    /// Returns the number of requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Returns the number of bytes that the socket has not accepted yet.
    pub fn output_pending(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Queues a request; [`Client::flush_output`] sends queued requests. The [`Reply`] has the same cookie, which
    /// need not be unique.
    ///
    /// # Errors
    /// [`ClientError::TooManyInFlight`], [`ClientError::OutputFull`], [`ClientError::TooLong`]: nothing was queued,
    /// and the connection is still usable.
    pub fn submit(&mut self, cookie: u64, command: Command<'_>) -> Result<(), ClientError> {
        let (mut header, data) = encode(&command)?;
        if self.output_pending() > OUTPUT_LEN_MAX {
            return Err(ClientError::OutputFull);
        }
        let kind = Kind::from(header.kind());
        let slot = self.slots.insert(cookie, kind, header.offset, header.length);
        header.cookie = slot.ok_or(ClientError::TooManyInFlight)?;
        if kind == Kind::Read {
            self.inbox.expect_read(header.length);
        }
        self.output.extend_from_slice(&header.encode());
        self.output.extend_from_slice(data);
        Ok(())
    }

    /// Sends queued requests until all are sent or the socket accepts no more. Returns whether all were sent. Never
    /// blocks. After `false`, wait until the socket is writable and call again; [`Client::receive`] does both.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn flush_output(&mut self) -> Result<bool, ClientError> {
        while self.sent < self.output.len() {
            match self.socket.send_now(&self.output[self.sent..]).map_err(ClientError::Io)? {
                Some(len) => self.sent += len,
                None => return Ok(false),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Passes the replies that have arrived to `on_reply`, without waiting, and returns their number. It reads until
    /// the socket is empty, so it works with level-triggered and edge-triggered polling.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::Io`], [`ClientError::Protocol`]: drop the client. Replies that arrived
    /// before the failure were passed on.
    pub fn try_receive(&mut self, on_reply: &mut impl FnMut(Reply<'_>)) -> Result<usize, ClientError> {
        let mut replies = 0;
        loop {
            let space = self.inbox.space();
            let wanted = space.len();
            let Some(len) = self.socket.receive_now(space).map_err(ClientError::Io)? else {
                return Ok(replies);
            };
            replies += self.take(len, on_reply)?;
            if len < wanted {
                return Ok(replies);
            }
        }
    }

    /// Sends queued requests, waits for at least one reply, passes all replies that have arrived to `on_reply` and
    /// returns their number. It is 0 if the timeout expired or nothing is in flight. `None` waits without a limit and
    /// is cheapest: one system call. A timeout of 100 ms or more costs no more, but is inexact by a few ms and
    /// restarts whenever data arrive. A shorter timeout is exact.
    ///
    /// # Errors
    /// As [`Client::try_receive`].
    pub fn receive(
        &mut self,
        timeout: Option<Duration>,
        on_reply: &mut impl FnMut(Reply<'_>),
    ) -> Result<usize, ClientError> {
        let mut deadline = None;
        while self.in_flight() > 0 {
            let unsent = !self.flush_output()?;
            let coarse = timeout.is_none_or(|timeout| timeout >= COARSE_TIMEOUT);
            let space = self.inbox.space();
            let got = if coarse && !unsent {
                let got = self.socket.receive_blocking(space, timeout).map_err(ClientError::Io)?;
                let Some(len) = got else { return Ok(0) };
                Some(len)
            } else {
                self.socket.receive_now(space).map_err(ClientError::Io)?
            };
            if let Some(len) = got {
                let replies = self.take(len, on_reply)?;
                if replies > 0 {
                    return Ok(replies);
                }
            } else if !self.wait(timeout, &mut deadline, unsent)? {
                return Ok(0);
            }
        }
        Ok(0)
    }

    /// Sends the queued requests and a disconnect, and closes the connection. Replies that arrive until then are
    /// dropped.
    ///
    /// # Errors
    /// [`ClientError::Io`], also if the server accepts nothing for 5 s. The connection is closed in any case.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        let command = wire::Command::Disconnect.into();
        let header = RequestHeader { flags: 0, command, cookie: 0, offset: 0, length: 0 };
        self.output.extend_from_slice(&header.encode());
        let mut deadline = None;
        while !self.flush_output()? {
            if !self.wait(Some(DISCONNECT_TIMEOUT), &mut deadline, true)? {
                return Err(ClientError::Io(io::ErrorKind::TimedOut.into()));
            }
            self.try_receive(&mut |_| ())?;
        }
        Ok(())
    }

    fn start(stream: Stream, export: &str, options: &ClientOptions) -> Result<Client, ClientError> {
        let mut socket = Socket::new(stream, options.handshake_timeout).map_err(ClientError::Connect)?;
        let wanted = Wanted {
            structured_replies: options.structured_replies,
            base_allocation: options.base_allocation,
            ..Wanted::default()
        };
        let session = client::run(&mut socket, export, wanted)?;
        Ok(Client {
            inbox: Inbox::new(session.structured_replies, options.keep_data),
            socket,
            session,
            slots: Slots::default(),
            output: Vec::new(),
            sent: 0,
        })
    }

    /// Parses `len` bytes that were received into the inbox.
    fn take(&mut self, len: usize, on_reply: &mut impl FnMut(Reply<'_>)) -> Result<usize, ClientError> {
        if len == 0 {
            return Err(ClientError::Closed);
        }
        self.inbox.filled(len);
        self.inbox.drain(&mut self.slots, on_reply)
    }

    /// Waits until the socket is readable (or writable, if bytes are unsent). Returns `false` on timeout. The
    /// deadline is set at the first wait, so the clock is not read when no wait is necessary.
    fn wait(
        &self,
        timeout: Option<Duration>,
        deadline: &mut Option<Instant>,
        unsent: bool,
    ) -> Result<bool, ClientError> {
        let left = timeout.map(|timeout| {
            let now = Instant::now();
            deadline.get_or_insert(now + timeout).saturating_duration_since(now)
        });
        let interest = if unsent { Interest::ReadOrWrite } else { Interest::Read };
        self.socket.wait(interest, left).map_err(ClientError::Io)
    }
}

impl AsFd for Client {
    /// The socket, for polling several clients at the same time. It is readable when [`Client::try_receive`] has
    /// replies to read. It stays in blocking mode.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the header of a command, with cookie 0, and its payload.
fn encode<'a>(command: &Command<'a>) -> Result<(RequestHeader, &'a [u8]), ClientError> {
    let bit = |set: bool, bit: u16| if set { bit } else { 0 };
    let header = |command: wire::Command, flags, offset, length| {
        let command = command.into();
        RequestHeader { flags, command, cookie: 0, offset, length }
    };
    let encoded = match *command {
        Command::Read { offset, len } => (header(wire::Command::Read, 0, offset, len), &[][..]),
        Command::Write { offset, data, fua } => {
            let too_long = ClientError::TooLong { len_bytes: data.len() };
            let len = u32::try_from(data.len()).map_err(|_| too_long)?;
            (header(wire::Command::Write, bit(fua, command_flag::FUA), offset, len), data)
        }
        Command::Flush => (header(wire::Command::Flush, 0, 0, 0), &[][..]),
        Command::Trim { offset, len } => (header(wire::Command::Trim, 0, offset, len), &[][..]),
        Command::WriteZeroes { offset, len, no_hole, fast } => {
            let flags = bit(no_hole, command_flag::NO_HOLE) | bit(fast, command_flag::FAST_ZERO);
            (header(wire::Command::WriteZeroes, flags, offset, len), &[][..])
        }
        Command::BlockStatus { offset, len } => (header(wire::Command::BlockStatus, 0, offset, len), &[][..]),
        Command::Raw { header, payload } => return Ok((header, payload)),
    };
    let payload = matches!(command, Command::Read { .. } | Command::Write { .. });
    if payload && encoded.0.length > PAYLOAD_LEN_MAX {
        return Err(ClientError::TooLong { len_bytes: encoded.0.length as usize });
    }
    Ok(encoded)
}

#[cfg(test)]
mod tests;
