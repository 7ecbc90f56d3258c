//! Where clients come in: sockets, the handshake, and the way to the device thread.
//!
//! The control plane's part of the NBD frontend, on tokio. A listener accepts, speaks the handshake with a stated
//! patience, and hands the raw socket to the device of the chosen volume; from there on no async code touches it.
//!
//! How the file of a Unix socket is made is in [`crate::socket_file`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

use crate::connection_limit::{ConnectionLimit, SocketQuota};
use crate::device::{Arrived, DeviceHandle, VolumeGeneration};
use crate::limits::{is_for_clients, is_memory_for_clients};
use crate::nbd::export::Export;
use crate::nbd::handshake::{Exports, Listed, NegotiateError};
use crate::nbd::negotiate::negotiate;
use crate::path_walk::Exposed;
use crate::socket_file::{self, FileId, SocketFile, SocketFileError};
use crate::unfinished::{Peer, Unfinished};
use crate::users;

/// Memory of a client that asks for nothing yet, in bytes.
const CLIENT_LEN: usize = 256 << 10;
/// How long a client may take for its handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// Connections that the kernel holds until they are accepted, as far as `net.core.somaxconn` lets it. Where it holds no more it
/// drops the request to connect, and a client tries again after a second.
const BACKLOG: i32 = 4096;

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
    /// Users that have nothing to do with it may replace it.
    #[error(
        "Socket {endpoint}: {} may replace files in {}; take that right away, state that user as the owner of the socket, \
         or choose another folder",
        .exposed.by, .exposed.folder.display()
    )]
    Exposed {
        /// Which socket.
        endpoint: String,
        /// The folder and the user.
        exposed: Exposed,
    },
    /// Such users may change where it leads.
    #[error(
        "Socket {endpoint}: {} is a symbolic link that users other than root can change; use the folder's own path",
        .link.display()
    )]
    Link {
        /// Which socket.
        endpoint: String,
        /// The link.
        link: PathBuf,
    },
    /// A call in its folder has not returned. The caller of this crate decides how long that may take.
    #[error("Socket {endpoint} does not respond for {seconds} s: the file system of its folder hangs")]
    Silent {
        /// Which socket.
        endpoint: String,
        /// How long it was waited for, in seconds.
        seconds: u64,
    },
    /// The owner or group is not known.
    #[error("Socket {endpoint}: {kind} {name} does not exist on this host; create it or use another")]
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
    /// Its generation.
    pub generation: VolumeGeneration,
    /// Where its device is.
    pub device: DeviceHandle,
}

/// The exports of one endpoint; changed while it listens.
#[derive(Clone, Default)]
pub struct Catalogue {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Catalogue {
    /// Offers these, and no others.
    pub fn replace(&self, entries: Vec<Entry>) {
        *self.entries() = entries;
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The volumes for one client: those that were offered when it connected. Each has its present size, because a handshake may take
/// 30 s. One that has been removed or replaced since is still offered; its device then rejects the client.
struct Offer {
    entries: Vec<Entry>,
    catalogue: Catalogue,
    /// What the client was told of last, which is what it chooses.
    told: Mutex<Option<Entry>>,
}

impl Offer {
    fn of(catalogue: &Catalogue) -> Offer {
        Offer { entries: catalogue.entries().clone(), catalogue: catalogue.clone(), told: Mutex::default() }
    }

    /// What the client has chosen, as it was told.
    fn chosen(self) -> Option<Entry> {
        self.told.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exports for Offer {
    fn list(&self) -> Vec<Listed> {
        let listed =
            |entry: &Entry| Listed { name: entry.export.name.clone(), description: entry.export.description.clone() };
        self.entries.iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Option<Export> {
        let offered = self.entries.iter().find(|entry| entry.export.name == name)?;
        let is_it = |entry: &&Entry| entry.export.name == name && entry.generation == offered.generation;
        let now = self.catalogue.entries().iter().find(is_it).unwrap_or(offered).clone();
        let export = now.export.clone();
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Some(export)
    }
}

/// A socket that accepts clients. Dropping it closes the socket, removes its file and aborts unfinished handshakes; clients
/// that have finished theirs stay.
pub struct Listener {
    endpoint: Endpoint,
    catalogue: Catalogue,
    task: JoinHandle<()>,
    file: Option<SocketFile>,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket that is not in its place yet. Dropping it closes it.
pub struct Prepared {
    endpoint: Endpoint,
    socket: PreparedSocket,
}

enum PreparedSocket {
    Unix(socket_file::Prepared),
    Tcp(std::net::TcpListener),
}

impl Prepared {
    /// The second half of [`Bound::bind`]: clients find the socket from now on.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn place(self) -> Result<Bound, ListenError> {
        let Prepared { endpoint, socket } = self;
        let socket = match socket {
            PreparedSocket::Tcp(listener) => BoundSocket::Tcp(listener),
            PreparedSocket::Unix(prepared) => {
                let (listener, file) = prepared.place().map_err(|error| unix_error(&endpoint, error))?;
                BoundSocket::Unix(listener, file)
            }
        };
        Ok(Bound { endpoint, socket })
    }
}

/// A socket that listens, and of which nobody accepts clients yet. Dropping it closes the socket and removes its file.
#[derive(Debug)]
pub struct Bound {
    endpoint: Endpoint,
    socket: BoundSocket,
}

#[derive(Debug)]
enum BoundSocket {
    Unix(std::os::unix::net::UnixListener, SocketFile),
    Tcp(std::net::TcpListener),
}

impl Bound {
    /// Listens. May block while the file system of the socket's folder or the host's list of users does. Replaces a socket file
    /// that is `ours`, and restores it if the listener is dropped before [`Listener::keep`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(endpoint: Endpoint, ours: Option<FileId>) -> Result<Bound, ListenError> {
        Bound::prepare(endpoint, ours)?.place()
    }

    /// The first half of [`Bound::bind`], which changes nothing at the endpoint's path. A TCP socket listens from then on.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn prepare(endpoint: Endpoint, ours: Option<FileId>) -> Result<Prepared, ListenError> {
        let socket = match &endpoint {
            Endpoint::Tcp(address) => PreparedSocket::Tcp(bind_tcp(&endpoint, *address)?),
            Endpoint::Unix { path, owner, group, mode } => {
                let owner = resolve(&endpoint, "user", owner.as_deref(), users::user)?;
                let group = resolve(&endpoint, "group", group.as_deref(), users::group)?;
                let prepared = socket_file::prepare(path, owner, group, *mode, ours);
                PreparedSocket::Unix(prepared.map_err(|error| unix_error(&endpoint, error))?)
            }
        };
        Ok(Prepared { endpoint, socket })
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The socket for the tokio runtime that this is called in, and its file.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    ///
    /// # Panics
    /// If the endpoint is not a Unix socket.
    pub fn into_unix(self) -> Result<(UnixListener, SocketFile), ListenError> {
        let Bound { endpoint, socket } = self;
        let BoundSocket::Unix(listener, file) = socket else { panic!("{endpoint} is not a Unix socket") };
        let listener = UnixListener::from_std(listener);
        Ok((listener.map_err(|source| io(&endpoint, NO_FILE, source))?, file))
    }
}

impl Listener {
    /// Accepts clients; must be called within a tokio runtime. `connection_limit` bounds the connections of the host.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    pub fn start(
        bound: Bound,
        catalogue: Catalogue,
        connection_limit: &Arc<ConnectionLimit>,
    ) -> Result<Self, ListenError> {
        let endpoint = bound.endpoint.clone();
        let (socket, file) = match bound.socket {
            BoundSocket::Tcp(listener) => {
                let listener = TcpListener::from_std(listener);
                (Socket::Tcp(listener.map_err(|source| io(&endpoint, NO_ADDRESS, source))?), None)
            }
            BoundSocket::Unix(..) => {
                let (listener, file) = bound.into_unix()?;
                (Socket::Unix(listener), Some(file))
            }
        };
        let (offers, connection_limit, name) = (catalogue.clone(), connection_limit.quota(), endpoint.to_string());
        let task = tokio::spawn(async move { accept(&name, &socket, &offers, &connection_limit).await });
        Ok(Listener { endpoint, catalogue, task, file })
    }

    /// The file of its socket, if it has one.
    #[must_use]
    pub fn file(&self) -> Option<FileId> {
        self.file.as_ref().map(SocketFile::id)
    }

    /// Removes the file in whose place its own is.
    pub fn keep(&mut self) {
        self.file.iter_mut().for_each(SocketFile::keep);
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
    }
}

fn unix_error(endpoint: &Endpoint, error: SocketFileError) -> ListenError {
    match error {
        SocketFileError::InUse => ListenError::InUse(endpoint.to_string()),
        SocketFileError::NotASocket => ListenError::NotASocket(PathBuf::from(endpoint.to_string())),
        SocketFileError::Exposed(exposed) => ListenError::Exposed { endpoint: endpoint.to_string(), exposed },
        SocketFileError::Link(link) => ListenError::Link { endpoint: endpoint.to_string(), link },
        SocketFileError::Folder(error) => io(endpoint, NO_FILE, error),
        SocketFileError::Owner(error) => io(endpoint, NO_OWNER, error),
    }
}

fn io(endpoint: &Endpoint, advice: &'static str, source: io::Error) -> ListenError {
    ListenError::Io { endpoint: endpoint.to_string(), advice, source }
}

/// What to do where a socket's file cannot be made or removed.
const NO_FILE: &str = "make its folder, and let this user write there";
/// What to do where the file cannot get its owner.
const NO_OWNER: &str = "state an owner, a group and a mode that this user may give; root may give all";
/// What to do where an address cannot be had.
const NO_ADDRESS: &str = "name an address of this host and a port that this user may take";

fn bind_tcp(endpoint: &Endpoint, address: SocketAddr) -> Result<std::net::TcpListener, ListenError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(endpoint.to_string()),
        _ => io(endpoint, NO_ADDRESS, source),
    };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
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

async fn accept(name: &str, socket: &Socket, catalogue: &Catalogue, connection_limit: &SocketQuota) {
    let mut unfinished = Unfinished::default();
    loop {
        let accepted = match socket {
            Socket::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                let peer = Peer::User(stream.peer_cred().ok().map(|of| of.uid()));
                (Client::Unix(stream), peer)
            }),
            Socket::Tcp(listener) => {
                let accepted = listener.accept().await;
                accepted.map(|(stream, from)| (Client::Tcp(stream), Peer::Address(from.ip())))
            }
        };
        let (client, peer) = match accepted {
            Ok(client) => client,
            Err(error) => {
                // Out of descriptors, most likely: others must leave first.
                tracing::warn!(endpoint = name, %error, "Cannot accept a client");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Where descriptors are the bound, the oldest handshake makes room as it does for connection permits.
        if !client.has_descriptor_of_clients() && !unfinished.give_up_oldest().await {
            tracing::warn!(endpoint = name, "Client rejected: too few file descriptors are left; raise LimitNOFILE");
            continue;
        }
        if !is_memory_for_clients(CLIENT_LEN) {
            tracing::warn!(endpoint = name, "Client refused: too little memory is left");
            continue;
        }
        unfinished.make_room(peer);
        let mut taken = connection_limit.take();
        // One newcomer costs one handshake at most, also where more places are missing than that.
        if taken.is_err() && unfinished.give_up_oldest().await {
            taken = connection_limit.take();
        }
        let permit = match taken {
            Ok(permit) => permit,
            Err(reason) => {
                tracing::warn!(endpoint = name, "Client rejected: {reason}");
                continue;
            }
        };
        let offer = Offer::of(catalogue);
        let name = name.to_owned();
        let handshake = tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_MAX, client.welcome(offer, Box::new(permit))).await {
                Ok(Ok(())) => {}
                Ok(Err(error @ (NegotiateError::Aborted | NegotiateError::Closed { .. }))) => {
                    tracing::debug!(endpoint = name, %error, "Client left");
                }
                Ok(Err(error)) => tracing::warn!(endpoint = name, %error, "Handshake failed"),
                Err(_) => tracing::warn!(endpoint = name, "Client took too long for its handshake"),
            }
        });
        unfinished.add(peer, handshake);
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
    fn has_descriptor_of_clients(&self) -> bool {
        match self {
            Client::Unix(stream) => is_for_clients(stream),
            Client::Tcp(stream) => is_for_clients(stream),
        }
    }

    /// Speaks the handshake and hands the client over.
    async fn welcome(self, offer: Offer, permit: Box<dyn Send>) -> Result<(), NegotiateError> {
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
        let chosen = offer.chosen().filter(|entry| entry.export.name == negotiated.export);
        if let Some(Entry { export, vm, volume, generation, device }) = chosen {
            device.enter(Arrived { vm, volume, generation, socket, negotiated, offered: export.info, permit });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;
    use crate::nbd::handshake::{GREETING, OptionReplyHeader};

    #[test]
    fn a_burst_of_connections_kept_others_from_connecting_for_a_second() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind_tcp(&Endpoint::Tcp(address), address).unwrap();
        let address = listener.local_addr().unwrap();
        // None of them is accepted: the kernel alone answers.
        let mut burst = Vec::new();
        for number in 0..500 {
            let connected = TcpStream::connect_timeout(&address, Duration::from_millis(900));
            burst.push(connected.unwrap_or_else(|error| panic!("connection {number}: {error}")));
        }
    }

    async fn greeted(path: &Path) -> UnixStream {
        let mut client = UnixStream::connect(path).await.unwrap();
        client.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        client
    }

    #[tokio::test]
    async fn one_newcomer_ended_every_handshake_of_its_socket_and_was_rejected_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.sock");
        let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
        let connections = Arc::<ConnectionLimit>::default();
        connections.set_max(4);
        let bound = Bound::bind(endpoint, None).unwrap();
        let _listener = Listener::start(bound, Catalogue::default(), &connections).unwrap();
        let (mut first, mut others) = (greeted(&path).await, Vec::new());
        for _ in 0..3 {
            others.push(greeted(&path).await);
        }
        connections.set_max(1);
        let mut newcomer = UnixStream::connect(&path).await.unwrap();
        assert_eq!(newcomer.read(&mut [0]).await.unwrap(), 0, "it is rejected");
        assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "the oldest made room in vain");
        for mut client in others {
            // The flag "fixed newstyle", and the option ABORT, which is answered.
            client.write_all(b"\0\0\0\x01IHAVEOPT\0\0\0\x02\0\0\0\0").await.unwrap();
            client.read_exact(&mut [0; OptionReplyHeader::LEN]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_handshake_outlived_the_listener_that_had_accepted_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.sock");
        let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
        let connections = Arc::<ConnectionLimit>::default();
        connections.set_max(8);
        let listener = Listener::start(Bound::bind(endpoint, None).unwrap(), Catalogue::default(), &connections);
        let mut client = greeted(&path).await;
        drop(listener.unwrap());
        // The bound is only for a test that fails: a handshake may take twice as long.
        let read = tokio::time::timeout(HANDSHAKE_MAX / 2, client.read(&mut [0])).await;
        assert_eq!(read.expect("the connection is closed").unwrap(), 0);
    }
}
