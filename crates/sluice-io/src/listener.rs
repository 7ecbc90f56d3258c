//! Where clients come in: sockets, the handshake, and the way to the device thread.
//!
//! The control plane's part of the NBD frontend, on tokio. A listener accepts, speaks the handshake with a stated
//! patience, and hands the raw socket to the device of the chosen volume; from there on no async code touches it.
//!
//! A socket file that a dead daemon left is replaced; one that somebody listens on is refused.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

use crate::device::{Arrived, Door};
use crate::nbd::export::Export;
use crate::nbd::handshake::{Exports, Listed, NegotiateError};
use crate::nbd::negotiate::negotiate;
use crate::seats::{Row, Seats};
use crate::users;

/// How long a client may take for its handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// A TCP client that has said nothing for this long is asked whether it is there, by its kernel alone.
const ALIVE_AFTER: Duration = Duration::from_secs(60);
/// Until it answers it is asked again in these steps.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// So many times; then its connection is over.
const ALIVE_TRIES: u32 = 6;

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix {
        /// Its path, at most 107 bytes.
        path: PathBuf,
        /// Its owner: a user's name or number; `None`: the daemon's.
        owner: Option<String>,
        /// Its group.
        group: Option<String>,
        /// Its permissions.
        mode: u32,
    },
    /// An address and a port.
    Tcp(SocketAddr),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix { path, .. } => write!(f, "{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// An endpoint that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else listens there.
    #[error("Socket {0} is in use by another process; stop it or choose another socket")]
    InUse(String),
    /// There is something that is not a socket.
    #[error("{} exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The owner or group is not known.
    #[error("Socket {endpoint}: no {kind} {name} on this host; create it or name another")]
    Nobody {
        /// Which socket.
        endpoint: String,
        /// `user` or `group`.
        kind: &'static str,
        /// As written.
        name: String,
    },
    /// The system says no.
    #[error("Cannot listen on {endpoint}: {advice}")]
    Io {
        /// Which.
        endpoint: String,
        /// What to check or change.
        advice: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What one endpoint offers.
#[derive(Clone)]
pub struct Entry {
    /// What a client is told.
    pub export: Export,
    /// Whose disk it is.
    pub vm: String,
    /// Which one.
    pub volume: String,
    /// Where its device is.
    pub door: Door,
}

/// The exports of one endpoint; changed while it listens.
#[derive(Clone, Default)]
pub struct Catalogue {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Catalogue {
    /// Offers these, and no others.
    pub fn replace(&self, entries: Vec<Entry>) {
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    /// What it offers now. A handshake works on such a copy, so that a reload cannot change it in the middle.
    #[must_use]
    pub fn snapshot(&self) -> Offer {
        Offer { entries: self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }
}

/// What is offered to one client.
pub struct Offer {
    entries: Vec<Entry>,
}

impl Exports for Offer {
    fn list(&self) -> Vec<Listed> {
        let listed =
            |entry: &Entry| Listed { name: entry.export.name.clone(), description: entry.export.description.clone() };
        self.entries.iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Option<Export> {
        self.entries.iter().find(|entry| entry.export.name == name).map(|entry| entry.export.clone())
    }
}

/// A socket that accepts clients. Dropping it closes the socket and removes its file; clients stay.
pub struct Listener {
    endpoint: Endpoint,
    catalogue: Catalogue,
    task: JoinHandle<()>,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens; must be called within a tokio runtime. `seats` bounds the connections of the host.
    pub fn start(endpoint: Endpoint, catalogue: Catalogue, seats: &Arc<Seats>) -> Result<Self, ListenError> {
        let socket = bind(&endpoint)?;
        let (offers, seats, name) = (catalogue.clone(), seats.row(), endpoint.to_string());
        let task = tokio::spawn(async move { accept(&name, &socket, &offers, &seats).await });
        Ok(Listener { endpoint, catalogue, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What it offers.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        if let Endpoint::Unix { path, .. } = &self.endpoint {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket that listens at a path, with the owner and the permissions that its endpoint states; must be called within a
/// tokio runtime. What comes in is the caller's.
pub fn listen_unix(endpoint: &Endpoint) -> Result<UnixListener, ListenError> {
    match bind(endpoint)? {
        Socket::Unix(listener) => Ok(listener),
        Socket::Tcp(_) => unreachable!("a Unix endpoint makes a Unix socket"),
    }
}

/// What to do where a socket's file cannot be made or removed.
const NO_FILE: &str = "make its folder, and let this user write there";
/// What to do where the file cannot get its owner.
const NO_OWNER: &str = "state an owner, a group and a mode that this user may give; root may give all";
/// What to do where an address cannot be had.
const NO_ADDRESS: &str = "name an address of this host and a port that this user may take";

fn bind(endpoint: &Endpoint) -> Result<Socket, ListenError> {
    let refused = |advice: &'static str| {
        move |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(endpoint.to_string()),
            _ => ListenError::Io { endpoint: endpoint.to_string(), advice, source },
        }
    };
    match endpoint {
        Endpoint::Tcp(address) => {
            let failed = refused(NO_ADDRESS);
            let listener = std::net::TcpListener::bind(address).map_err(&failed)?;
            listener.set_nonblocking(true).map_err(&failed)?;
            Ok(Socket::Tcp(TcpListener::from_std(listener).map_err(failed)?))
        }
        Endpoint::Unix { path, owner, group, mode } => {
            remove_stale(path)?;
            let owner = resolve(endpoint, "user", owner.as_deref(), users::user)?;
            let group = resolve(endpoint, "group", group.as_deref(), users::group)?;
            let listener = StdUnixListener::bind(path).map_err(refused(NO_FILE))?;
            let adjusted = std::os::unix::fs::chown(path, owner, group)
                .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode)))
                .and_then(|()| listener.set_nonblocking(true));
            adjusted.map_err(|source| {
                let _ = std::fs::remove_file(path);
                refused(NO_OWNER)(source)
            })?;
            Ok(Socket::Unix(UnixListener::from_std(listener).map_err(refused(NO_FILE))?))
        }
    }
}

fn resolve(
    endpoint: &Endpoint,
    kind: &'static str,
    name: Option<&str>,
    find: impl Fn(&str) -> Option<u32>,
) -> Result<Option<u32>, ListenError> {
    let Some(name) = name else { return Ok(None) };
    let nobody = || ListenError::Nobody { endpoint: endpoint.to_string(), kind, name: name.to_owned() };
    find(name).map(Some).ok_or_else(nobody)
}

/// Removes a socket file that nobody listens on any more.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match connect_at_once(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|source| ListenError::Io { endpoint: path.display().to_string(), advice: NO_FILE, source }),
        _ => Err(ListenError::InUse(path.display().to_string())),
    }
}

/// Connects to a socket if that needs no waiting: who listens there may have as many waiting as it can, and accept none.
fn connect_at_once(path: &Path) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

async fn accept(name: &str, socket: &Socket, catalogue: &Catalogue, seats: &Row) {
    loop {
        let accepted = match socket {
            Socket::Unix(listener) => listener.accept().await.map(|(stream, _)| Client::Unix(stream)),
            Socket::Tcp(listener) => listener.accept().await.map(|(stream, _)| Client::Tcp(stream)),
        };
        let client = match accepted {
            Ok(client) => client,
            Err(error) => {
                // Out of descriptors, most likely: others must leave first.
                tracing::warn!(endpoint = name, %error, "Cannot accept a client");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let seat = match seats.take() {
            Ok(seat) => seat,
            Err(reason) => {
                tracing::warn!(endpoint = name, "Client refused: {reason}");
                continue;
            }
        };
        let offer = catalogue.snapshot();
        let name = name.to_owned();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_MAX, client.welcome(offer, Box::new(seat))).await {
                Ok(Ok(())) => {}
                Ok(Err(error @ (NegotiateError::Aborted | NegotiateError::Closed { .. }))) => {
                    tracing::debug!(endpoint = name, %error, "Client left");
                }
                Ok(Err(error)) => tracing::warn!(endpoint = name, %error, "Handshake failed"),
                Err(_) => tracing::warn!(endpoint = name, "Client took too long for its handshake"),
            }
        });
    }
}

/// A client whose host has died, or was cut off, says nothing any more, and an idle connection would not notice: it would
/// have its place among those of the host for ever.
fn prepare(stream: &tokio::net::TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ALIVE_TRIES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

enum Client {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

impl Client {
    /// Speaks the handshake and hands the client over.
    async fn welcome(self, offer: Offer, seat: Box<dyn Send>) -> Result<(), NegotiateError> {
        let (negotiated, socket) = match self {
            Client::Unix(mut stream) => {
                let negotiated = negotiate(&mut stream, &offer).await?;
                let stream = stream.into_std().map_err(NegotiateError::Io)?;
                (negotiated, OwnedFd::from(stream))
            }
            Client::Tcp(mut stream) => {
                prepare(&stream).map_err(NegotiateError::Io)?;
                let negotiated = negotiate(&mut stream, &offer).await?;
                let stream = stream.into_std().map_err(NegotiateError::Io)?;
                (negotiated, OwnedFd::from(stream))
            }
        };
        let chosen = offer.entries.into_iter().find(|entry| entry.export.name == negotiated.export);
        if let Some(Entry { export, vm, volume, door }) = chosen {
            door.enter(Arrived { vm, volume, socket, negotiated, export, seat });
        }
        Ok(())
    }
}
