//! NBD server without a device, used to measure the maximum throughput of a client.
//!
//! A data-plane benchmark cannot be faster than its load generator. To measure that ceiling, the same client runs
//! against this server. The server does a normal handshake, returns the same bytes for each read, or a hole ([`Reads`]), and reports success
//! for every other request. It is as cheap as possible: it receives requests in large blocks, sends a batch of
//! replies with one gathering write, and takes all read data from one small buffer that stays in the L1 cache.
//! Reports print this ceiling next to the client's throughput on a real volume.
//!
//! Requests are checked as in the data plane ([`sluice_io::nbd::transmission::check`]), so the server is also the
//! peer in tests of the client. It discards written data.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use sluice_io::nbd::export::Export;
use sluice_io::nbd::handshake::{Exports, Listed, NegotiateError, Negotiated};
use sluice_io::nbd::negotiate::negotiate_blocking;
use sluice_io::nbd::transmission::{Operation, Refusal, check};
use sluice_io::nbd::wire::{self, Extent, RequestHeader};

/// Value of every byte of read data.
pub const CANNED_FILL: u8 = 0x5a;
/// Maximum number of open connections of a [`CannedServer`]. Further connections are closed.
pub const CONNECTIONS_MAX: usize = 64;

/// Maximum number of bytes of requests received with one call.
const INPUT_LEN: usize = 256 << 10;
/// Maximum number of reads answered with one gathering write. Each uses two segments, and the kernel accepts 1024.
const BATCH: usize = 256;

/// How reads are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// With data.
    Data,
    /// With a hole, without data, as by a server that knows that a volume is empty; with data to a client without structured replies.
    Holes,
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum CannedError {
    /// The handshake failed.
    #[error("The handshake with the client failed")]
    Negotiate(#[source] NegotiateError),
    /// The connection failed.
    #[error("The connection to the client failed")]
    Io(#[source] io::Error),
    /// The client sent bytes that are not a request header.
    #[error("The client sent no request header")]
    Wire(#[source] wire::WireError),
}

/// Serves one export on a Unix socket, with a thread for each connection. Dropping it stops accepting and removes the
/// socket. Open connections continue until their clients close them.
#[derive(Debug)]
pub struct CannedServer {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl CannedServer {
    /// Listens on `path`.
    ///
    /// # Errors
    /// The error of binding the socket.
    pub fn bind_unix(path: impl AsRef<Path>, export: Export, reads: Reads) -> io::Result<CannedServer> {
        let listener = UnixListener::bind(&path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let acceptor = thread::spawn(move || accept(&listener, (&export, reads), &stopped));
        Ok(CannedServer { path: path.as_ref().to_owned(), stop, acceptor: Some(acceptor) })
    }
}

impl Drop for CannedServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The connection wakes the acceptor thread. If it cannot be made, the thread is not joined.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            _ = acceptor.join();
        }
        _ = std::fs::remove_file(&self.path);
    }
}

/// Starts a thread that serves one connection and returns the client's end of it.
///
/// # Errors
/// The error of creating the socket pair.
pub fn spawn_pair(export: Export) -> io::Result<(UnixStream, JoinHandle<Result<(), CannedError>>)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((theirs, thread::spawn(move || serve(ours, &export, Reads::Data))))
}

/// Serves one connection in the caller's thread until the client disconnects.
///
/// # Errors
/// [`CannedError`]. A client that closes without a disconnect request is not an error.
pub fn serve<S: Read + Write + Unpin>(mut stream: S, export: &Export, reads: Reads) -> Result<(), CannedError> {
    let negotiated = match negotiate_blocking(&mut stream, &Only(export)) {
        Err(NegotiateError::Aborted | NegotiateError::Closed { .. }) => return Ok(()),
        outcome => outcome.map_err(CannedError::Negotiate)?,
    };
    let mut input = Input { buffer: vec![0; INPUT_LEN], start: 0, end: 0, skip: 0 };
    let mut replies = Replies { heads: Vec::new(), reads: Vec::new() };
    let canned = vec![CANNED_FILL; export.info.block_maximum as usize];
    loop {
        let more = answer((&mut input, &mut replies), (export, reads), &negotiated).map_err(CannedError::Wire)?;
        replies.send(&mut stream, &canned).map_err(CannedError::Io)?;
        match more {
            More::Buffered => {}
            More::Needed if input.fill(&mut stream).map_err(CannedError::Io)? => {}
            More::Needed | More::Finished => return Ok(()),
        }
    }
}

/// Export list of a canned server: one export.
struct Only<'a>(&'a Export);

impl Exports for Only<'_> {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: self.0.name.clone(), description: self.0.description.clone() }]
    }

    fn find(&self, name: &str) -> Option<Export> {
        (name == self.0.name).then(|| self.0.clone())
    }
}

/// Received bytes that are not parsed yet.
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Number of payload bytes to skip before the next header.
    skip: usize,
}

impl Input {
    /// Returns the next header, if all of it has arrived.
    fn next(&mut self) -> Option<&[u8; RequestHeader::LEN]> {
        let dropped = self.skip.min(self.end - self.start);
        self.start += dropped;
        self.skip -= dropped;
        let header = self.buffer[self.start..self.end].first_chunk()?;
        self.start += RequestHeader::LEN;
        Some(header)
    }

    /// Reads more bytes. Returns `false` at the end of the connection.
    fn fill(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let len = loop {
            match stream.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        self.end += len;
        Ok(len > 0)
    }
}

/// Replies that are sent together.
struct Replies {
    /// Headers of all replies in a row, and complete replies without data.
    heads: Vec<u8>,
    /// For each read: the end of its header in `heads`, and the length of its data.
    reads: Vec<(usize, usize)>,
}

impl Replies {
    fn send(&mut self, stream: &mut impl Write, canned: &[u8]) -> io::Result<()> {
        let mut segments = [IoSlice::new(&[]); 2 * BATCH + 1];
        let mut start = 0;
        for (index, &(end, len)) in self.reads.iter().enumerate() {
            segments[2 * index] = IoSlice::new(&self.heads[start..end]);
            segments[2 * index + 1] = IoSlice::new(&canned[..len]);
            start = end;
        }
        segments[2 * self.reads.len()] = IoSlice::new(&self.heads[start..]);
        let mut rest = &mut segments[..=2 * self.reads.len()];
        // Skips empty segments at the front, so that an empty batch needs no system call.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match stream.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => IoSlice::advance_slices(&mut rest, len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.heads.clear();
        self.reads.clear();
        Ok(())
    }
}

/// Why [`answer`] returned.
enum More {
    /// The batch is full.
    Buffered,
    /// The next header is incomplete.
    Needed,
    /// The connection must be closed.
    Finished,
}

/// Answers the received requests, up to one batch.
fn answer(
    (input, replies): (&mut Input, &mut Replies),
    (export, reads): (&Export, Reads),
    negotiated: &Negotiated,
) -> Result<More, wire::WireError> {
    while replies.reads.len() < BATCH {
        let Some(bytes) = input.next() else {
            return Ok(More::Needed);
        };
        let header = RequestHeader::parse(bytes)?;
        match check(&header, &export.info, negotiated) {
            Ok(Operation::Disconnect) => return Ok(More::Finished),
            Ok(operation) => {
                if let Operation::Write { len, .. } = operation {
                    input.skip = len as usize;
                }
                succeed(replies, header.cookie, operation, (negotiated, reads));
            }
            Err(Refusal { fatal: true, .. }) => return Ok(More::Finished),
            Err(refusal) => {
                input.skip = refusal.payload_to_skip as usize;
                let structured = negotiated.structured_replies;
                wire::error_reply(&mut replies.heads, structured, header.cookie, refusal.errno, refusal.message);
            }
        }
    }
    Ok(More::Buffered)
}

fn succeed(replies: &mut Replies, cookie: u64, operation: Operation, (negotiated, reads): (&Negotiated, Reads)) {
    let heads = &mut replies.heads;
    match operation {
        Operation::Read { offset, len } if negotiated.structured_replies && reads == Reads::Holes => {
            heads.extend_from_slice(&wire::offset_hole_chunk(cookie, offset, len));
        }
        Operation::Read { offset, len } => {
            if negotiated.structured_replies {
                heads.extend_from_slice(&wire::read_data_chunk(cookie, offset, len));
            } else {
                heads.extend_from_slice(&wire::simple_reply(cookie, Ok(())));
            }
            replies.reads.push((heads.len(), len as usize));
        }
        Operation::BlockStatus { len, .. } => {
            let context = negotiated.base_allocation.expect("check() refuses it without the context");
            wire::block_status_chunk(heads, cookie, context, std::iter::once(Extent { length: len, flags: 0 }));
        }
        _ => heads.extend_from_slice(&wire::simple_reply(cookie, Ok(()))),
    }
}

fn accept(listener: &UnixListener, (export, reads): (&Export, Reads), stop: &AtomicBool) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    while let Ok((stream, _)) = listener.accept() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        connections.retain(|connection| !connection.is_finished());
        if connections.len() < CONNECTIONS_MAX {
            let export = export.clone();
            connections.push(thread::spawn(move || {
                if let Err(error) = serve(stream, &export, reads) {
                    // names nothing: used in benchmarks only.
                    tracing::warn!(%error, "A connection to the canned server ended early");
                }
            }));
        }
    }
}
