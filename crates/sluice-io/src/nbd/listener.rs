//! Sockets of NBD clients: the handshake, and handing a client to the device thread.
//!
//! This is the control plane's part of the NBD frontend, on tokio. A listener accepts connections, does the handshake within
//! a time limit, and hands the raw socket to the device thread of the chosen volume. From then on no async code touches it.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::export::Export;
use super::gateway::proof::Key;
use super::gateway::sessions::Sessions;
use super::gateway::{Admission, Hello, StartId};
use super::handshake::{Exports, Handshake, Listed, NegotiateError, Negotiated, Tls};
use super::negotiate::{End, begin, go_on, negotiate};
use super::tls::{self, Allowed, Meter};
use super::unfinished::{Begun, Unfinished};
use crate::accept::{Accepted, Opening, Peer, Service, Stream, accept, opening};
use crate::cpu::metered;
use crate::device::{Arrived, NbdHandle, VolumeGeneration};
use crate::endpoint::{Bound, Endpoint, ListenError, TokioSocket};
use crate::pace::{PeerPace, PeerPaces};
use crate::shared_limit::SharedLimit;
use crate::socket_file::{FileId, SocketFile};

/// Memory of a client without requests, in bytes.
const CLIENT_LEN: usize = 256 << 10;
/// Time limit of a handshake, from the turn of its client.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
/// Time that a client has to wait for its turn before this is logged, and minimum time between two such lines of a socket.
const DELAYED_LOG_MIN: Duration = Duration::from_millis(100);
const DELAYED_LOG_EVERY: Duration = Duration::from_secs(60);

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
    pub device: NbdHandle,
    /// Name of the device.
    pub device_name: String,
    /// Tells gateways whether confirmed writes may have been lost.
    pub start: StartId,
}

/// The exports of one endpoint. They can be replaced while it listens.
#[derive(Clone, Default)]
pub struct Catalogue {
    entries: Arc<Mutex<Arc<[Entry]>>>,
}

impl Catalogue {
    /// Offers `entries`, and nothing else.
    pub fn replace(&self, entries: Vec<Entry>) {
        *self.entries() = entries.into();
    }

    fn entries(&self) -> MutexGuard<'_, Arc<[Entry]>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who may come to the sockets of a daemon.
#[derive(Default)]
pub struct Access {
    pub sessions: Sessions,
    tls: Mutex<TcpTls>,
}

/// TLS at TCP addresses.
#[derive(Default, Clone)]
enum TcpTls {
    #[default]
    No,
    /// It is required, and nobody can connect.
    WithoutCertificate,
    Required(Arc<tls::Server>),
}

impl Access {
    /// Nobody but those whom a socket lets in.
    #[must_use]
    pub fn new(sessions: Sessions) -> Access {
        Access { sessions, tls: Mutex::default() }
    }

    /// From now on clients at TCP addresses need TLS, or not.
    pub fn set_tls(&self, server: Option<tls::Server>) {
        *self.tls_state() = server.map_or(TcpTls::No, |server| TcpTls::Required(Arc::new(server)));
    }

    /// Requires TLS although there is no certificate now: the one before is used, if there was one.
    pub fn require_tls(&self) {
        let mut state = self.tls_state();
        if let TcpTls::No = *state {
            *state = TcpTls::WithoutCertificate;
        }
    }

    fn tls_state(&self) -> MutexGuard<'_, TcpTls> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The volumes for one client: those that were offered when its handshake began. Each has its current size, because a handshake may
/// take 30 s. A volume that was removed or replaced since then is still offered; its device thread then disconnects the
/// client.
struct Offer {
    entries: Arc<[Entry]>,
    catalogue: Catalogue,
    access: Arc<Access>,
    /// What the client may open, by its certificate.
    allowed: OnceLock<Allowed>,
    /// The entry of the client's last query, which is the one that it chooses.
    last_found: Mutex<Option<Entry>>,
}

impl Offer {
    fn of(catalogue: &Catalogue, access: &Arc<Access>) -> Offer {
        let (entries, access) = (Arc::clone(&catalogue.entries()), Arc::clone(access));
        Offer { entries, catalogue: catalogue.clone(), access, allowed: OnceLock::new(), last_found: Mutex::default() }
    }

    fn allow(&self, allowed: Allowed) {
        let _ = self.allowed.set(allowed);
    }

    fn may_open(&self, name: &str) -> bool {
        self.allowed.get().is_none_or(|allowed| allowed.has(name))
    }

    fn last_found(&self) -> MutexGuard<'_, Option<Entry>> {
        self.last_found.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.entries.iter().filter(|entry| self.may_open(&entry.export.name)).map(listed).collect()
    }

    fn find(&self, name: &str) -> Option<Export> {
        let offered = self.entries.iter().find(|entry| entry.export.name == name && self.may_open(name))?;
        let is_it = |entry: &&Entry| entry.export.name == name && entry.generation == offered.generation;
        let now = self.catalogue.entries().iter().find(is_it).unwrap_or(offered).clone();
        let export = now.export.clone();
        *self.last_found() = Some(now);
        Some(export)
    }

    fn challenge(&self, hello: &Hello) -> Result<Admission, Option<String>> {
        let found = self.last_found();
        let Entry { vm, device_name, start, .. } = found.as_ref().ok_or(None)?;
        self.access.sessions.challenge(hello, vm, device_name, *start)
    }

    async fn admit(&self, hello: &Hello, key: &Key) -> Result<(), String> {
        let vm = self.last_found().as_ref().map(|entry| entry.vm.clone());
        self.access.sessions.admit(hello, &vm.ok_or("there is no such export any more")?, key).await
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
    /// runtime. `connections` limits the connections of the host,
    /// and `access` knows who may come.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    pub fn start(
        bound: Bound,
        catalogue: Catalogue,
        connections: &Arc<SharedLimit>,
        access: Arc<Access>,
    ) -> Result<Self, ListenError> {
        let endpoint = bound.endpoint().clone();
        let (socket, file) = bound.into_tokio()?;
        let (quota, name) = (connections.quota(), endpoint.to_string());
        let service = Handshakes {
            endpoint: name.clone(),
            catalogue: catalogue.clone(),
            access,
            unfinished: Unfinished::default(),
            paces: PeerPaces::default(),
            delayed: Arc::default(),
        };
        let (opening, opened) = opening();
        let task = tokio::spawn(opened.then(async move { accept(&name, &socket, &quota, service).await }));
        Ok(NbdListener { endpoint, catalogue, opening, task, file })
    }

    /// Returns the identity of its socket file, if it has one.
    #[must_use]
    pub fn file(&self) -> Option<FileId> {
        self.file.as_ref().map(SocketFile::id)
    }

    /// Removes the file that its own has replaced.
    pub fn keep(&mut self) {
        self.file.iter_mut().for_each(SocketFile::keep);
    }

    /// Accepts clients from now on.
    pub fn open(&mut self) {
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
    access: Arc<Access>,
    unfinished: Unfinished,
    paces: PeerPaces,
    delayed: Arc<Delayed>,
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
        self.unfinished.abort_one().await
    }

    fn reject(&self, reason: &dyn Display) {
        tracing::warn!(endpoint = self.endpoint, "Client rejected: {reason}");
    }

    fn serve(&mut self, client: Accepted<Stream>) {
        let (peer, pace, begun) = (client.peer, self.paces.of(client.peer), Begun::default());
        let (catalogue, endpoint, delayed) = (self.catalogue.clone(), self.endpoint.clone(), Arc::clone(&self.delayed));
        let access = Arc::clone(&self.access);
        let begins = begun.clone();
        let handshake = tokio::spawn(async move {
            if !waits_for_turn(&client.stream, &pace, &delayed, &endpoint).await {
                return tracing::debug!(endpoint, "Client left before its handshake");
            }
            begins.set();
            match tokio::time::timeout(HANDSHAKE_MAX, greet(client, Offer::of(&catalogue, &access))).await {
                Ok(Ok(Some((device, arrived)))) => {
                    begins.end();
                    device.waits_for_turn(&arrived.vm).await;
                    match arrived.negotiated.gateway.clone() {
                        Some(known) => access.sessions.attach(&known, &device, || device.attach(arrived)),
                        None => device.attach(arrived),
                    }
                }
                Ok(Ok(None)) => {}
                Ok(Err(error @ (NegotiateError::Aborted | NegotiateError::Closed { .. }))) => {
                    tracing::debug!(endpoint, %error, "Client left");
                }
                Ok(Err(error)) => tracing::warn!(endpoint, %error, "Handshake failed"),
                Err(_) => tracing::warn!(endpoint, "Client did not complete its handshake in time"),
            }
        });
        self.unfinished.add(peer, begun, handshake);
    }
}

/// When it was last logged that a client of a socket was delayed.
#[derive(Debug, Default)]
struct Delayed(Mutex<Option<Instant>>);

impl Delayed {
    /// Whether a delay is to be logged now.
    fn is_news(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = last.is_none_or(|last| last.elapsed() >= DELAYED_LOG_EVERY);
        if is_news {
            *last = Some(Instant::now());
        }
        is_news
    }
}

/// Waits until the peer of a client may connect. Returns `false` if the client has left before.
async fn waits_for_turn(stream: &Stream, pace: &PeerPace, delayed: &Delayed, endpoint: &str) -> bool {
    let came = Instant::now();
    tokio::select! {
        biased;
        () = pace.wait() => {}
        () = stream.hung_up() => return false,
    }
    let waited = came.elapsed();
    if waited >= DELAYED_LOG_MIN && delayed.is_news() {
        let (peer, waited_ms) = (stream.describe_peer(), waited.as_millis() as u64);
        tracing::warn!(endpoint, peer, waited_ms, "Client delayed: its process, user or address connects too often");
    }
    true
}

/// Does the handshake. Returns the client for the device of the volume that it has chosen.
async fn greet(client: Accepted<Stream>, offer: Offer) -> Result<Option<(NbdHandle, Arrived)>, NegotiateError> {
    let Accepted { stream, permit, cpu, .. } = client;
    let peer = stream.describe_peer();
    let (meter, permit) = (Arc::<Meter>::default(), Arc::new(permit));
    let (done, used) = metered(handshake(stream, &offer, (&meter, Arc::clone(&permit)))).await;
    let (negotiated, socket) = done?;
    let chosen = offer.chosen().filter(|entry| entry.export.name == negotiated.export);
    Ok(chosen.map(|Entry { export, vm, volume, generation, device, .. }| {
        let (permit, handshake, offered) = (Box::new(permit), cpu + used, export.info);
        let (charged, of) = (device.clone(), vm.clone());
        meter.charge_to(move |used| charged.charge(&of, used));
        (device, Arrived { vm, volume, generation, socket, negotiated, offered, peer, permit, handshake })
    }))
}

/// Does the handshake, with TLS over TCP if this daemon has a certificate.
async fn handshake(
    stream: Stream,
    offer: &Offer,
    (meter, permit): (&Arc<Meter>, impl Send + 'static),
) -> Result<(Negotiated, OwnedFd), NegotiateError> {
    match stream {
        Stream::Unix(mut stream) => {
            let negotiated = negotiate(&mut stream, offer).await?;
            let stream = stream.into_std().map_err(NegotiateError::Io)?;
            Ok((negotiated, OwnedFd::from(stream)))
        }
        Stream::Tcp(mut stream) => {
            set_options(&stream).map_err(NegotiateError::Io)?;
            let tls = offer.access.tls_state().clone();
            let begun = begin(&mut stream, offer, if let TcpTls::No = tls { Tls::No } else { Tls::Required }).await?;
            let stream = stream.into_std().map_err(NegotiateError::Io)?;
            match (begun, tls) {
                (End::Chosen(negotiated), _) => Ok((negotiated, OwnedFd::from(stream))),
                (End::StartTls(handshake), TcpTls::Required(tls)) => {
                    let accepted = tls.accept(stream, permit, Arc::clone(meter)).await;
                    let (inside, allowed) = accepted.map_err(NegotiateError::Tls)?;
                    offer.allow(allowed);
                    after_tls(inside, handshake).await
                }
                (End::StartTls(_), _) => Err(NegotiateError::Tls("this daemon has no certificate".to_owned())),
            }
        }
    }
}

/// Does the handshake that follows TLS.
async fn after_tls(
    inside: std::os::unix::net::UnixStream,
    handshake: Handshake<'_, Offer>,
) -> Result<(Negotiated, OwnedFd), NegotiateError> {
    let inside = inside.set_nonblocking(true).and_then(|()| UnixStream::from_std(inside));
    let mut inside = inside.map_err(NegotiateError::Io)?;
    match go_on(&mut inside, handshake.after_tls()).await? {
        End::Chosen(negotiated) => {
            let inside = inside.into_std().map_err(NegotiateError::Io)?;
            Ok((negotiated, OwnedFd::from(inside)))
        }
        End::StartTls(_) => unreachable!("it is encrypted already"),
    }
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
    use std::net::SocketAddr;
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, UnixStream};
    use tokio::task::JoinSet;

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
        let mut listener = NbdListener::start(bound, Catalogue::default(), &connections, Arc::default()).unwrap();
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
        let mut listener = NbdListener::start(bound, Catalogue::default(), &connections, Arc::default()).unwrap();
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
        let mut listener = NbdListener::start(bound, Catalogue::default(), &connections, Arc::default()).unwrap();
        listener.open();
        let mut client = greeted(&path).await;
        drop(listener);
        // The time limit is only for a failing test: a handshake may take twice as long.
        let read = tokio::time::timeout(HANDSHAKE_MAX / 2, client.read(&mut [0])).await;
        assert_eq!(read.expect("the connection is closed").unwrap(), 0);
    }

    async fn greeted_from(from: &str, listener: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let mut client = socket.connect(listener).await.unwrap();
        client.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        client
    }

    #[tokio::test]
    async fn connections_in_a_loop_kept_the_daemon_busy() {
        // Another test may take the port between the two lines.
        let (mut listener, address) = loop {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let connections = Arc::<SharedLimit>::default();
            connections.set_max(1024);
            let Ok(bound) = Bound::bind(Endpoint::Tcp(address), None) else { continue };
            break (NbdListener::start(bound, Catalogue::default(), &connections, Arc::default()).unwrap(), address);
        };
        listener.open();
        for _ in 0..256 {
            drop(greeted_from("127.0.0.1", address).await);
        }
        // These take 20 ms each.
        let mut looping: JoinSet<TcpStream> = (0..64).map(|_| greeted_from("127.0.0.1", address)).collect();
        drop(looping.join_next().await.unwrap());
        for _ in 0..16 {
            drop(greeted_from("127.0.0.2", address).await);
        }
        let mut served = 0;
        while looping.try_join_next().is_some() {
            served += 1;
        }
        assert!(served < 62, "another address had to wait for {served} of 63");
        while let Some(client) = looping.join_next().await {
            // It waited, and was not rejected.
            drop(client.unwrap());
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_while_it_waits_is_noticed_before_its_turn() {
        let (mut paces, peer) = (PeerPaces::default(), Peer::Address([192, 0, 2, 1].into()));
        for _ in 0..256 {
            paces.of(peer).wait().await;
        }
        let others: JoinSet<()> =
            (0..1000).map(|_| paces.of(peer)).map(|pace| async move { pace.wait().await }).collect();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        // Its turn would come after 20 s.
        tokio::task::yield_now().await;
        let (stream, pace, delayed) = (Stream::Unix(theirs), paces.of(peer), Delayed::default());
        assert!(!waits_for_turn(&stream, &pace, &delayed, "test").await);
        drop(others);
    }
}
