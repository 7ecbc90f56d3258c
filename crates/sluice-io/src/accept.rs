//! The accept loop of all sockets that clients connect to.
//!
//! Common to NBD clients and VMMs: a client is accepted while there are file descriptors, memory and connection permits for
//! it. A [`Service`] is what differs: when it can take a client, and what it does with it.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::cpu::metered;
use crate::endpoint::TokioSocket;
use crate::limits::{is_for_clients, is_memory_for_clients};
use crate::shared_limit::{LimitReached, Permit, Quota};

/// Pause after a failed accept. Most likely there are no descriptors, and others must disconnect first.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A TCP address.
    Address(IpAddr),
    /// A process of this host and its user, as far as the kernel reports them.
    Process { user: Option<u32>, process: Option<i32> },
}

impl Peer {
    /// Returns the process that connected.
    fn of_socket(stream: &UnixStream) -> Peer {
        let credentials = stream.peer_cred().ok();
        let process = credentials.and_then(|of| of.pid()).filter(|process| *process > 0);
        Peer::Process { user: credentials.map(|of| of.uid()), process }
    }

    /// Returns the peer at an address. An IPv4 address is the same on a socket of both protocols.
    fn at(address: IpAddr) -> Peer {
        Peer::Address(address.to_canonical())
    }
}

/// Returns the process at the other end of a Unix socket, for output.
pub(crate) fn describe_process(stream: &UnixStream) -> String {
    match stream.peer_cred() {
        Ok(of) => match of.pid() {
            Some(pid) => format!("process {pid} of user {}", of.uid()),
            None => format!("user {}", of.uid()),
        },
        Err(_) => "unknown".to_owned(),
    }
}

/// A listening socket.
pub(crate) trait Incoming {
    type Stream: AsFd;

    async fn accept(&self) -> io::Result<(Self::Stream, Peer)>;
}

/// Handles the clients of one kind of socket.
pub(crate) trait Service {
    type Socket: Incoming;

    /// A client in log messages.
    const CLIENT: &str;
    /// Memory of a client before its first request, in bytes.
    const CLIENT_LEN: usize;

    /// Whether a client can be taken now; rejects it otherwise.
    async fn is_ready(&mut self) -> bool;

    /// Limits what one peer has before another client of it is taken.
    fn limit_peer(&mut self, _peer: Peer) {}

    /// Ends a client that has not finished its handshake, so that its descriptor and permit are free. Returns whether there
    /// was one.
    async fn end_unfinished(&mut self) -> bool {
        false
    }

    /// Logs why a client is rejected.
    fn reject(&self, reason: &dyn Display);

    /// Takes a client. Returns immediately.
    fn serve(&mut self, client: Accepted<<Self::Socket as Incoming>::Stream>);
}

/// A client that was accepted.
pub(crate) struct Accepted<S> {
    pub(crate) stream: S,
    pub(crate) peer: Peer,
    pub(crate) permit: Permit,
    /// CPU time that it has cost so far.
    pub(crate) cpu: Duration,
}

/// Starts the accept loop of a listener.
///
/// A socket is made while the change that it belongs to may still fail, so its clients can connect before there is a volume
/// or a connection limit for them. Until then they wait in its backlog: rejecting them would fail a VM that starts with the
/// daemon.
#[derive(Debug)]
pub(crate) struct Opening(Option<oneshot::Sender<()>>);

/// The other half of an [`Opening`].
pub(crate) struct Opened(oneshot::Receiver<()>);

/// Returns the two halves.
pub(crate) fn opening() -> (Opening, Opened) {
    let (sender, receiver) = oneshot::channel();
    (Opening(Some(sender)), Opened(receiver))
}

impl Opening {
    /// Starts the loop; the second call does nothing.
    pub(crate) fn open(&mut self) {
        // The task that receives this ends with the listener, which holds this half too.
        let _ = self.0.take().map(|sender| sender.send(()));
    }
}

impl Opened {
    /// Runs `accepting` once the listener is open, and never if it is dropped before.
    pub(crate) async fn then(self, accepting: impl Future<Output = ()>) {
        if self.0.await.is_ok() {
            accepting.await;
        }
    }
}

/// Accepts clients until it is dropped.
pub(crate) async fn accept<S: Service>(endpoint: &str, socket: &S::Socket, quota: &Quota, mut service: S) {
    loop {
        let (accepted, accepting) = metered(socket.accept()).await;
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(endpoint, %error, "Cannot accept a {}", S::CLIENT);
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if !service.is_ready().await {
            continue;
        }
        let (admitted, admitting) = metered(admit(&mut service, &stream, peer, quota)).await;
        match admitted {
            Ok(permit) => service.serve(Accepted { stream, peer, permit, cpu: accepting + admitting }),
            Err(reason) => service.reject(&reason),
        }
    }
}

/// Why a client is rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("too few file descriptors are left; raise LimitNOFILE")]
    Descriptors,
    #[error("too little memory is left")]
    Memory,
    #[error(
        "the connection limit is reached: nbd.connections_max, or the lower limit that the file descriptors allow; raise \
         nbd.connections_max or LimitNOFILE"
    )]
    LimitReached,
    #[error(
        "remaining connections are reserved for other sockets; raise nbd.connections_max, or LimitNOFILE if that bounds them"
    )]
    Reserved,
}

/// Takes the resources for a client. If descriptors or permits are exhausted, each is obtained by ending at most one
/// unfinished client, even if more than one is missing: one new client must not end many.
async fn admit<S: Service>(
    service: &mut S,
    stream: &impl AsFd,
    peer: Peer,
    quota: &Quota,
) -> Result<Permit, Rejection> {
    if !is_for_clients(stream) && !service.end_unfinished().await {
        return Err(Rejection::Descriptors);
    }
    if !is_memory_for_clients(S::CLIENT_LEN) {
        return Err(Rejection::Memory);
    }
    service.limit_peer(peer);
    let mut taken = quota.take();
    if taken.is_err() && service.end_unfinished().await {
        taken = quota.take();
    }
    taken.map_err(|reason| match reason {
        LimitReached::Full => Rejection::LimitReached,
        LimitReached::Reserved => Rejection::Reserved,
    })
}

/// A connection to a socket of either kind.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Waits until the client has closed its end. One that has sent something before is not noticed.
    pub(crate) async fn hung_up(&self) {
        let ready = match self {
            Stream::Unix(stream) => stream.ready(Interest::READABLE).await,
            Stream::Tcp(stream) => stream.ready(Interest::READABLE).await,
        };
        if !ready.is_ok_and(|ready| ready.is_read_closed()) {
            std::future::pending().await
        }
    }

    /// Returns the process or address at the other end, for output.
    pub(crate) fn describe_peer(&self) -> String {
        match self {
            Stream::Unix(stream) => describe_process(stream),
            Stream::Tcp(stream) => stream.peer_addr().map_or("unknown".to_owned(), |address| address.to_string()),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Incoming for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let peer = Peer::of_socket(&stream);
        Ok((stream, peer))
    }
}

impl Incoming for TokioSocket {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            TokioSocket::Unix(listener) => {
                let (stream, peer) = Incoming::accept(listener).await?;
                Ok((Stream::Unix(stream), peer))
            }
            TokioSocket::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Peer::at(from.ip())))
            }
        }
    }
}
