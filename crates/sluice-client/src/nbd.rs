//! A lean NBD client for the demo, the benchmarks and the tests of the server.
//!
//! Problem: a general-purpose load generator spends 6 to 8 us of CPU per NBD request and saturates its core
//! before the server does, so it measures itself. This client spends as little as it can: requests are queued
//! in one buffer and leave by one write per batch; replies are read in large pieces and parsed in place; read
//! data are dropped where they lie, or handed to the caller as a slice of that buffer. A table indexed by the
//! wire's cookie finds a request without hashing. There is no thread, no runtime and no lock: one thread can
//! drive any number of clients, in a closed loop (submit as replies come) or an open one (submit by the clock).
//!
//! Writing never blocks: a server that pushes back stops reading requests until its replies are read, and a
//! client that blocked there would wait for ever. What the socket does not take stays in the buffer.
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
//! Bounds: [`IN_FLIGHT_MAX`] requests and [`OUTPUT_LEN_MAX`] bytes of unsent requests per client; beyond
//! them [`Client::submit`] refuses.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use self::handshake::Session;
use self::inbox::Inbox;
use self::slots::{Kind, Slots};
use self::socket::{Interest, Socket, Stream};
pub use sluice_io::nbd::wire::Errno;
use sluice_io::nbd::wire::{self, PAYLOAD_LEN_MAX, RequestHeader, command_flag};

mod handshake;
mod inbox;
mod slots;
mod socket;

/// Most requests that one client may have in flight.
pub const IN_FLIGHT_MAX: usize = 1 << 16;
/// Most bytes of requests that wait to be sent, before the one that is being submitted.
pub const OUTPUT_LEN_MAX: usize = 128 << 20;

/// Timeouts from here on use the socket's own timer, which saves two system calls but is a few ms coarse.
const COARSE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long [`Client::disconnect`] waits for the server to take what is unsent.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What can go wrong for a client.
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
    /// The server refused an option of the handshake.
    #[error("The NBD server refused option {option} with error {kind:#x}: {message}")]
    Refused {
        /// Which option; see [`wire::option`].
        option: u32,
        /// Which error; see [`wire::option_reply`].
        kind: u32,
        /// The server's own words, may be empty.
        message: String,
    },
    /// The server broke the protocol; the connection cannot be used any more.
    #[error("The NBD server broke the protocol: {what}")]
    Protocol {
        /// What it did.
        what: &'static str,
    },
    /// [`IN_FLIGHT_MAX`] is reached: receive first.
    #[error("More than {IN_FLIGHT_MAX} requests would be in flight: receive replies first")]
    TooManyInFlight,
    /// [`OUTPUT_LEN_MAX`] is reached: flush and receive first.
    #[error("More than {OUTPUT_LEN_MAX} bytes of requests are unsent: flush and receive first")]
    OutputFull,
    /// A read or write above [`PAYLOAD_LEN_MAX`].
    #[error("A read or write has {len_bytes} bytes, more than {PAYLOAD_LEN_MAX}: split it")]
    TooLong {
        /// Its length.
        len_bytes: usize,
    },
}

/// How to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOptions {
    /// Ask for structured replies; a server that does not know them is used without.
    pub structured_replies: bool,
    /// Select `base:allocation`, for [`Command::BlockStatus`]; needs structured replies.
    pub base_allocation: bool,
    /// Hand the data of reads to the caller; else they are dropped as they come in.
    pub keep_data: bool,
    /// Longest silence of the server during the handshake.
    pub handshake_timeout: Duration,
}

impl Default for ClientOptions {
    /// Structured replies, no contexts, data dropped, 10 s.
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
    /// Read `len` bytes.
    Read {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Write `data`.
    Write {
        /// Start.
        offset: u64,
        /// What to write; copied into the output buffer.
        data: &'a [u8],
        /// Durable before the reply.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Discard a range.
    Trim {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Zero a range.
    WriteZeroes {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
        /// Keep the range allocated.
        no_hole: bool,
        /// Fail rather than be slow.
        fast: bool,
    },
    /// Ask which parts are allocated; the reply's data are for [`wire::extents`].
    BlockStatus {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Any header and payload at all: for tests of what a server refuses. The client's own cookie
    /// takes the place of the one in the header.
    Raw {
        /// Sent but for its cookie.
        header: RequestHeader,
        /// Sent behind it.
        payload: &'a [u8],
    },
}

/// A finished request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The cookie given to [`Client::submit`].
    pub cookie: u64,
    /// How it ended.
    pub result: Result<(), Errno>,
    /// Data of a read if [`ClientOptions::keep_data`] is set; extents of a block status; else empty.
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
    /// Bytes of `output` that the socket has taken.
    sent: usize,
}

impl Client {
    /// Connects over a Unix socket, with the default options.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or what the handshake ran into.
    pub fn connect_unix(path: impl AsRef<Path>, export: &str) -> Result<Client, ClientError> {
        let stream = UnixStream::connect(path).map_err(ClientError::Connect)?;
        Client::from_unix(stream, export, &ClientOptions::default())
    }

    /// Connects over TCP, with the default options and without Nagle's delay.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or what the handshake ran into.
    pub fn connect_tcp(address: impl ToSocketAddrs, export: &str) -> Result<Client, ClientError> {
        let stream = TcpStream::connect(address).map_err(ClientError::Connect)?;
        Client::from_tcp(stream, export, &ClientOptions::default())
    }

    /// Takes over a connected Unix socket and does the handshake.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or what the handshake ran into.
    pub fn from_unix(stream: UnixStream, export: &str, options: &ClientOptions) -> Result<Client, ClientError> {
        Client::start(Stream::Unix(stream), export, options)
    }

    /// Takes over a connected TCP socket and does the handshake.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or what the handshake ran into.
    pub fn from_tcp(stream: TcpStream, export: &str, options: &ClientOptions) -> Result<Client, ClientError> {
        stream.set_nodelay(true).map_err(ClientError::Connect)?;
        Client::start(Stream::Tcp(stream), export, options)
    }

    /// Size of the export, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.session.size_bytes
    }

    /// The server's transmission flags, bits of [`wire::transmission_flag`].
    pub fn transmission_flags(&self) -> u16 {
        self.session.flags
    }

    /// Minimum, preferred and maximum block size in bytes, if the server told them.
    pub fn block_sizes(&self) -> Option<[u32; 3]> {
        self.session.block_sizes
    }

    /// Structured replies are in use.
    pub fn structured_replies(&self) -> bool {
        self.session.structured_replies
    }

    /// Id of `base:allocation`, if it is selected.
    pub fn base_allocation(&self) -> Option<u32> {
        self.session.base_allocation
    }

    /// Requests submitted and not answered yet.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Bytes of requests that the socket has not taken yet.
    pub fn output_pending(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Queues a request; [`Client::flush_output`] sends what is queued. The cookie comes back in the
    /// [`Reply`]; it need not be unique.
    ///
    /// # Errors
    /// [`ClientError::TooManyInFlight`], [`ClientError::OutputFull`], [`ClientError::TooLong`]: nothing
    /// was queued, the connection is as before.
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

    /// Sends queued requests until all are gone or the socket takes no more; true when all are gone.
    /// Never blocks; if it returns false, wait for the socket to be writable (or let
    /// [`Client::receive`] do it) and call again.
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

    /// Hands over what has arrived, without waiting; returns the number of replies. It reads until the
    /// socket is empty, so it suits level and edge triggered polling alike.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::Io`], [`ClientError::Protocol`]: drop the client. Replies
    /// that arrived before the failure were handed over.
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

    /// Sends what is queued, waits for at least one reply, and hands over all that have arrived; returns
    /// their number. 0 means that the timeout passed or that nothing is in flight. `None` waits
    /// without end and is the cheapest: one system call. A timeout of 100 ms or more costs no more, but is
    /// a few ms coarse and starts anew with each piece of data; a shorter one is exact.
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

    /// Says goodbye: sends what is queued and a disconnect, drops the replies that come meanwhile, and
    /// closes. Receive the replies that matter before.
    ///
    /// # Errors
    /// [`ClientError::Io`] also when the server takes nothing for 5 s; the connection is gone in any case.
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
        let session = handshake::run(&mut socket, export, options)?;
        Ok(Client {
            inbox: Inbox::new(session.structured_replies, options.keep_data),
            socket,
            session,
            slots: Slots::default(),
            output: Vec::new(),
            sent: 0,
        })
    }

    /// Parses `len` bytes that the socket put into the inbox.
    fn take(&mut self, len: usize, on_reply: &mut impl FnMut(Reply<'_>)) -> Result<usize, ClientError> {
        if len == 0 {
            return Err(ClientError::Closed);
        }
        self.inbox.filled(len);
        self.inbox.drain(&mut self.slots, on_reply)
    }

    /// Waits until the socket can be read (or written, if something is unsent); false on timeout. The
    /// deadline is set at the first wait, so that the clock is not read when there is nothing to wait for.
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
    /// The socket, for polling several clients at once: readable when replies wait for
    /// [`Client::try_receive`]. It stays in blocking mode.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The header (its cookie still 0) and the payload of a command.
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
