//! The vhost-user socket of a volume. It serves one VMM at a time.
//!
//! A VMM that connects while another one is served is rejected. A VMM that reconnects, or was killed and started again, waits
//! until the requests of the previous session have completed, for at most [`DRAIN_MAX`]. Otherwise an old write could
//! overwrite a newer one.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::blk::Blk;
use super::counts::Counts;
use super::device_kind::DeviceKind;
use super::session::{Bounds, Entry, SessionEnd, serve};
use super::socket::hung_up;
use crate::accept::{Accepted, Opening, Service, accept, opening};
use crate::endpoint::{Bound, Endpoint, ListenError};
use crate::shared_limit::SharedLimit;
use crate::socket_file::{FileId, SocketFile};

/// Time limit for a VMM to wait for the in-flight requests of the previous one. Then it is rejected, and may connect again.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);

/// Time limit for the first message of a VMM while another one waits.
pub const SILENT_MAX: Duration = Duration::from_secs(10);

/// Time limit for the first queue of a VMM while another one waits.
pub const START_MAX: Duration = Duration::from_secs(60);

/// A socket that VMMs connect to. Dropping it closes the socket, removes its file, and ends the session.
pub struct VhostListener<K = Blk> {
    endpoint: Endpoint,
    entry: watch::Sender<Option<Entry<K>>>,
    counts: Arc<Counts>,
    opening: Opening,
    task: JoinHandle<()>,
    file: SocketFile,
}

impl<K: DeviceKind> VhostListener<K> {
    /// Creates a listener whose VMMs wait in the socket's backlog until [`VhostListener::open`]; must be called within a tokio
    /// runtime. `connections` limits the connections of the host.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    ///
    /// # Panics
    /// If the endpoint is not a Unix socket.
    pub fn start(bound: Bound, entry: Option<Entry<K>>, connections: &Arc<SharedLimit>) -> Result<Self, ListenError> {
        let endpoint = bound.endpoint().clone();
        let (socket, file) = bound.into_unix()?;
        let (entry, offered) = watch::channel(entry);
        let counts = Arc::new(Counts::default());
        let (name, quota) = (endpoint.to_string(), connections.quota());
        let sessions = Sessions {
            endpoint: name.clone(),
            offered,
            serving: None,
            counts: Arc::clone(&counts),
            bounds: Arc::new(Bounds::new()),
        };
        let (opening, opened) = opening();
        let task = tokio::spawn(opened.then(async move { accept(&name, &socket, &quota, sessions).await }));
        Ok(VhostListener { endpoint, entry, counts, opening, task, file })
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the identity of its socket file.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file.id()
    }

    /// Removes the file that its own has replaced.
    pub fn keep(&mut self) {
        self.file.keep();
    }

    /// Accepts VMMs from now on.
    pub fn open(&mut self) {
        self.opening.open();
    }

    /// Replaces what is offered. A session continues if the new entry is the same volume, as a device of the same features; its
    /// VMM is notified if the configuration has changed. Otherwise, and with `None`, the session ends.
    pub fn replace(&self, entry: Option<Entry<K>>) {
        self.entry.send_replace(entry);
    }

    /// The counts since the start. They may be read while the listener serves, and after it.
    #[must_use]
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}

impl<K> Drop for VhostListener<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A session that has started.
struct Serving {
    /// Gone when the session reads no more.
    stream: Weak<UnixStream>,
    task: JoinHandle<()>,
    since: Instant,
    /// Number of messages of all previous sessions.
    messages_before: u64,
    /// Number of queues that they started.
    queues_before: u64,
}

impl Serving {
    /// Whether the VMM is connected. Without it, the session only waits for in-flight requests.
    fn is_alive(&self) -> bool {
        use std::os::fd::AsFd;
        let alive = self.stream.upgrade().is_some_and(|stream| !hung_up(stream.as_fd()));
        alive && !self.task.is_finished()
    }

    /// Disconnects a VMM that has not started a queue in time, because it would block the volume forever. A VMM that has
    /// started one stays connected even while its queues are stopped.
    fn end_if_late(&self, now: Instant, counts: &Counts, endpoint: &str) {
        if counts.queues_started() != self.queues_before {
            return;
        }
        let (time, what) = match counts.messages() == self.messages_before {
            true => (SILENT_MAX, "no message"),
            false => (START_MAX, "no queue started"),
        };
        if now.duration_since(self.since) >= time
            && let Some(stream) = self.stream.upgrade()
        {
            tracing::warn!(
                endpoint,
                "VMM disconnected because another one is waiting: {what} within {} s",
                time.as_secs()
            );
            let _ = rustix::net::shutdown(&*stream, rustix::net::Shutdown::Both);
        }
    }
}

/// The sessions of one socket.
struct Sessions<K> {
    endpoint: String,
    offered: watch::Receiver<Option<Entry<K>>>,
    serving: Option<Serving>,
    counts: Arc<Counts>,
    bounds: Arc<Bounds>,
}

impl<K: DeviceKind> Service for Sessions<K> {
    type Socket = UnixListener;

    const CLIENT: &str = "VMM";
    const CLIENT_LEN: usize = 0;

    /// Whether the volume can be served to another VMM; waits for the end of one that has disconnected.
    async fn is_ready(&mut self) -> bool {
        self.bounds.connections.wait().await;
        self.end_previous().await;
        if self.bounds.closing.is_behind() {
            self.reject(&"descriptors of a previous VMM are still being closed");
            return false;
        }
        if self.serving.is_none() && self.offered.borrow().is_none() {
            self.reject(&"the volume is not offered");
            return false;
        }
        self.serving.is_none()
    }

    /// Some VMMs connect again each second, which must not fill the log.
    fn reject(&self, reason: &dyn Display) {
        if self.counts.rejected() {
            let times = self.counts.totals().rejected;
            tracing::warn!(endpoint = self.endpoint, times, "VMM rejected: {reason}");
        }
    }

    fn serve(&mut self, client: Accepted<UnixStream>) {
        let Accepted { stream, permit, .. } = client;
        let Some(Entry { vm, volume, .. }) = self.offered.borrow().clone() else {
            return self.reject(&"the volume is not offered");
        };
        let process = stream.peer_cred().ok().and_then(|of| of.pid());
        let since = Instant::now();
        let (messages_before, queues_before) = (self.counts.messages(), self.counts.queues_started());
        let stream = Arc::new(stream);
        let weak = Arc::downgrade(&stream);
        let session =
            serve(stream, self.offered.clone(), Box::new(permit), Arc::clone(&self.counts), Arc::clone(&self.bounds));
        let task = tokio::spawn(async move {
            tracing::info!(vm, volume, process, "VMM connected");
            match session.await {
                Ok(SessionEnd::Left) => tracing::info!(vm, volume, "VMM disconnected"),
                Ok(SessionEnd::Withdrawn) => {
                    tracing::info!(vm, volume, "VMM disconnected: its volume was removed or changed")
                }
                Ok(SessionEnd::GivenUp) => {
                    tracing::warn!(vm, volume, "VMM disconnected: the device thread closed the session")
                }
                Err(fault) => tracing::debug!(vm, volume, %fault, "VMM disconnected: protocol violation"),
            }
        });
        self.serving = Some(Serving { stream: weak, task, since, messages_before, queues_before });
    }
}

impl<K: DeviceKind> Sessions<K> {
    /// Waits for the end of the previous session if its VMM has disconnected, and rejects the new VMM if it has not ended.
    async fn end_previous(&mut self) {
        let Some(previous) = &mut self.serving else { return };
        previous.end_if_late(Instant::now(), &self.counts, &self.endpoint);
        if previous.is_alive() {
            return self.reject(&"another VMM is served");
        }
        if !previous.task.is_finished() {
            tracing::info!(endpoint = self.endpoint, "Waiting for the previous VMM's in-flight requests");
        }
        match timeout(DRAIN_MAX, &mut previous.task).await {
            Ok(_) => self.serving = None,
            Err(_) => self.reject(&"requests of the previous VMM are still in flight"),
        }
    }
}
