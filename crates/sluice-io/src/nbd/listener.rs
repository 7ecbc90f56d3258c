//! Sockets of NBD clients: the handshake, and handing a client to the device thread.
//!
//! This is the control plane's part of the NBD frontend, on tokio. A listener accepts connections, does the handshake within
//! a time limit, and hands the raw socket to the device thread of the chosen volume. From then on no async code touches it.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::export::Export;
use super::handshake::{Exports, Listed, NegotiateError};
use super::negotiate::negotiate;
use super::unfinished::Unfinished;
use crate::accept::{Opening, Peer, Service, Stream, accept, opening};
use crate::device::{Arrived, DeviceHandle, VolumeGeneration};
use crate::endpoint::{Bound, Endpoint, ListenError, TokioSocket};
use crate::shared_limit::{Permit, SharedLimit};
use crate::socket_file::{FileId, SocketFile};

/// Memory of a client without requests, in bytes.
const CLIENT_LEN: usize = 256 << 10;
/// Time limit of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// Time after which the kernel probes an idle TCP connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Interval of the probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which the connection is closed.
const KEEPALIVE_PROBES: u32 = 6;

/// A volume that an endpoint offers.
#[derive(Clone)]
pub struct Entry {
    /// The export, with the volume's properties.
    pub export: Export,
    /// Name of the VM.
    pub vm: String,
    /// Name of the volume.
    pub volume: String,
    /// Generation of the volume.
    pub generation: VolumeGeneration,
    /// The volume's device thread.
    pub device: DeviceHandle,
}

/// The exports of one endpoint. They can be replaced while it listens.
#[derive(Clone, Default)]
pub struct Catalogue {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Catalogue {
    /// Offers `entries`, and nothing else.
    pub fn replace(&self, entries: Vec<Entry>) {
        *self.entries() = entries;
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The volumes for one client: those that were offered when it connected. Each has its current size, because a handshake may
/// take 30 s. A volume that was removed or replaced since then is still offered; its device thread then disconnects the
/// client.
struct Offer {
    entries: Vec<Entry>,
    catalogue: Catalogue,
    /// The entry of the client's last query, which is the one that it chooses.
    last_found: Mutex<Option<Entry>>,
}

impl Offer {
    fn of(catalogue: &Catalogue) -> Offer {
        Offer { entries: catalogue.entries().clone(), catalogue: catalogue.clone(), last_found: Mutex::default() }
    }

    /// Returns the entry that the client has chosen, as it was offered.
    fn chosen(self) -> Option<Entry> {
        self.last_found.into_inner().unwrap_or_else(PoisonError::into_inner)
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
        *self.last_found.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Some(export)
    }
}

/// A socket that accepts NBD clients. Dropping it closes the socket, removes its file and aborts unfinished handshakes.
/// Clients that have finished their handshake stay connected.
pub struct NbdListener {
    endpoint: Endpoint,
    catalogue: Catalogue,
    opening: Opening,
    task: JoinHandle<()>,
    file: Option<SocketFile>,
}

impl NbdListener {
    /// Creates a listener whose clients wait in the socket's backlog until [`NbdListener::open`]; must be called within a tokio
    /// runtime. `connections` limits the connections of the host.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    pub fn start(bound: Bound, catalogue: Catalogue, connections: &Arc<SharedLimit>) -> Result<Self, ListenError> {
        let endpoint = bound.endpoint().clone();
        let (socket, file) = bound.into_tokio()?;
        let (quota, name) = (connections.quota(), endpoint.to_string());
        let service =
            Handshakes { endpoint: name.clone(), catalogue: catalogue.clone(), unfinished: Unfinished::default() };
        let (opening, opened) = opening();
        let task = tokio::spawn(opened.then(async move { accept(&name, &socket, &quota, service).await }));
        Ok(NbdListener { endpoint, catalogue, opening, task, file })
    }

    /// Returns the identity of its socket file, if it has one.
    #[must_use]
    pub fn file(&self) -> Option<FileId> {
        self.file.as_ref().map(SocketFile::id)
    }

    /// Accepts clients from now on, and removes the file that its own has replaced.
    pub fn open(&mut self) {
        self.file.iter_mut().for_each(SocketFile::keep);
        self.opening.open();
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns what it offers.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }
}

impl Drop for NbdListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The handshakes of one socket.
struct Handshakes {
    endpoint: String,
    catalogue: Catalogue,
    unfinished: Unfinished,
}

impl Service for Handshakes {
    type Socket = TokioSocket;

    const CLIENT: &str = "client";
    const CLIENT_LEN: usize = CLIENT_LEN;

    async fn is_ready(&mut self) -> bool {
        true
    }

    fn limit_peer(&mut self, peer: Peer) {
        self.unfinished.make_room(peer);
    }

    async fn end_unfinished(&mut self) -> bool {
        self.unfinished.abort_oldest().await
    }

    fn reject(&self, reason: &dyn Display) {
        tracing::warn!(endpoint = self.endpoint, "Client rejected: {reason}");
    }

    fn serve(&mut self, stream: Stream, peer: Peer, permit: Permit) {
        let (offer, endpoint) = (Offer::of(&self.catalogue), self.endpoint.clone());
        let handshake = tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_MAX, hand_over(stream, offer, Box::new(permit))).await {
                Ok(Ok(())) => {}
                Ok(Err(error @ (NegotiateError::Aborted | NegotiateError::Closed { .. }))) => {
                    tracing::debug!(endpoint, %error, "Client left");
                }
                Ok(Err(error)) => tracing::warn!(endpoint, %error, "Handshake failed"),
                Err(_) => tracing::warn!(endpoint, "Client did not complete its handshake in time"),
            }
        });
        self.unfinished.add(peer, handshake);
    }
}

/// Does the handshake, and hands the client to its device thread.
async fn hand_over(stream: Stream, offer: Offer, permit: Box<dyn Send>) -> Result<(), NegotiateError> {
    let peer = stream.describe_peer();
    let (negotiated, socket) = match stream {
        Stream::Unix(mut stream) => {
            let negotiated = negotiate(&mut stream, &offer).await?;
            let stream = stream.into_std().map_err(NegotiateError::Io)?;
            (negotiated, OwnedFd::from(stream))
        }
        Stream::Tcp(mut stream) => {
            set_options(&stream).map_err(NegotiateError::Io)?;
            let negotiated = negotiate(&mut stream, &offer).await?;
            let stream = stream.into_std().map_err(NegotiateError::Io)?;
            (negotiated, OwnedFd::from(stream))
        }
    };
    let chosen = offer.chosen().filter(|entry| entry.export.name == negotiated.export);
    if let Some(Entry { export, vm, volume, generation, device }) = chosen {
        device.attach(Arrived { vm, volume, generation, socket, negotiated, offered: export.info, peer, permit });
    }
    Ok(())
}

/// Sets the options of a TCP connection. Without keepalive an idle connection whose host died or was cut off would never be
/// closed, and keep its connection permit.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;
    use crate::nbd::handshake::{GREETING, OptionReplyHeader};

    async fn greeted(path: &Path) -> UnixStream {
        let mut client = UnixStream::connect(path).await.unwrap();
        client.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        client
    }

    #[tokio::test]
    async fn a_new_client_ended_every_handshake_of_its_socket_and_was_rejected_nevertheless() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.sock");
        let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
        let connections = Arc::<SharedLimit>::default();
        connections.set_max(4);
        let bound = Bound::bind(endpoint, None).unwrap();
        let mut listener = NbdListener::start(bound, Catalogue::default(), &connections).unwrap();
        listener.open();
        let (mut first, mut others) = (greeted(&path).await, Vec::new());
        for _ in 0..3 {
            others.push(greeted(&path).await);
        }
        connections.set_max(1);
        let mut newcomer = UnixStream::connect(&path).await.unwrap();
        assert_eq!(newcomer.read(&mut [0]).await.unwrap(), 0, "the new client is rejected");
        assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "the oldest handshake was aborted in vain");
        for mut client in others {
            // The flag "fixed newstyle", and the option ABORT, which is answered.
            client.write_all(b"\0\0\0\x01IHAVEOPT\0\0\0\x02\0\0\0\0").await.unwrap();
            client.read_exact(&mut [0; OptionReplyHeader::LEN]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_that_came_while_the_daemon_started_was_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.sock");
        let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
        let connections = Arc::<SharedLimit>::default();
        let bound = Bound::bind(endpoint, None).unwrap();
        let mut listener = NbdListener::start(bound, Catalogue::default(), &connections).unwrap();
        let mut early = UnixStream::connect(&path).await.unwrap();
        // Lets an accept loop run that does not wait.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        connections.set_max(1);
        listener.open();
        early.read_exact(&mut [0; 18]).await.expect("the greeting");
    }

    #[tokio::test]
    async fn a_handshake_outlived_the_listener_that_had_accepted_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.sock");
        let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
        let connections = Arc::<SharedLimit>::default();
        connections.set_max(8);
        let bound = Bound::bind(endpoint, None).unwrap();
        let mut listener = NbdListener::start(bound, Catalogue::default(), &connections).unwrap();
        listener.open();
        let mut client = greeted(&path).await;
        drop(listener);
        // The time limit is only for a failing test: a handshake may take twice as long.
        let read = tokio::time::timeout(HANDSHAKE_MAX / 2, client.read(&mut [0])).await;
        assert_eq!(read.expect("the connection is closed").unwrap(), 0);
    }
}
