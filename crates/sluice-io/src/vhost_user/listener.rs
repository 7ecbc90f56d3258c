//! The socket of a volume: one VMM at a time.
//!
//! A VMM that comes while another is served is turned away. One that comes back after its connection broke, or after it was
//! killed and started again, waits until what its predecessor had at the device is over, for at most [`DRAIN_MAX`]: until
//! then an old write could land on top of a new one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::blk::Blk;
use super::counts::{Counts, Totals};
use super::device_kind::DeviceKind;
use super::session::{Bounds, Entry, SessionEnd, serve};
use super::socket::hung_up;
use crate::connection_limit::{ConnectionLimit, SocketQuota};
use crate::limits::{is_for_clients, is_memory_for_clients};
use crate::listener::{Bound, Endpoint, ListenError};
use crate::socket_file::{FileId, SocketFile};

/// How long a VMM waits for the end of what was before it; then it is turned away and may try again.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);

/// How long a VMM may say nothing at all before it is disconnected for another one.
pub const SILENT_MAX: Duration = Duration::from_secs(10);

/// How long a VMM may take to start its first queue before it is disconnected for another one.
pub const START_MAX: Duration = Duration::from_secs(60);

/// A socket that VMMs connect to. Dropping it closes the socket, removes its file, and ends the session.
pub struct VhostListener<K = Blk> {
    endpoint: Endpoint,
    entry: watch::Sender<Option<Entry<K>>>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
    file: SocketFile,
}

impl<K: DeviceKind> VhostListener<K> {
    /// Accepts VMMs; must be called within a tokio runtime. `connection_limit` bounds the connections of the host.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    ///
    /// # Panics
    /// If the endpoint is no Unix socket.
    pub fn start(
        bound: Bound,
        entry: Option<Entry<K>>,
        connection_limit: &Arc<ConnectionLimit>,
    ) -> Result<Self, ListenError> {
        let endpoint = bound.endpoint().clone();
        let (socket, file) = bound.into_unix()?;
        let (entry, offered) = watch::channel(entry);
        let counts = Arc::new(Counts::default());
        let device = Acceptor {
            endpoint: endpoint.to_string(),
            offered,
            connection_limit: connection_limit.quota(),
            counts: Arc::clone(&counts),
            bounds: Arc::new(Bounds::new()),
        };
        let task = tokio::spawn(device.accept(socket));
        Ok(VhostListener { endpoint, entry, counts, task, file })
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The file of its socket.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file.id()
    }

    /// Removes the file in whose place its own is.
    pub fn keep(&mut self) {
        self.file.keep();
    }

    /// Offers this from now on. A VMM that is served goes on if it is the same volume, as a device of the same features; it
    /// is told if its configuration is another. Else, and with `None`, its session ends.
    pub fn replace(&self, entry: Option<Entry<K>>) {
        self.entry.send_replace(entry);
    }

    /// What has happened so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.counts.totals()
    }
}

impl<K> Drop for VhostListener<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A session that has begun.
struct Serving {
    /// Absent when it reads no more.
    stream: Weak<UnixStream>,
    task: JoinHandle<()>,
    since: Instant,
    /// Messages in all sessions before it.
    messages_before: u64,
    /// Queues that were started in them.
    queues_before: u64,
}

impl Serving {
    /// Whether the VMM is there, and not only what it left.
    fn is_alive(&self) -> bool {
        use std::os::fd::AsFd;
        let alive = self.stream.upgrade().is_some_and(|stream| !hung_up(stream.as_fd()));
        alive && !self.task.is_finished()
    }

    /// Ends it if it has started no queue in time: it would hold the volume for ever. A VMM that has started one keeps its
    /// place, also while its queues are stopped. The session then finds the end of its connection.
    fn end_if_late(&self, now: Instant, counts: &Counts, endpoint: &str) {
        if counts.queues_started() != self.queues_before {
            return;
        }
        let (time, what) = match counts.messages() == self.messages_before {
            true => (SILENT_MAX, "it has sent no message"),
            false => (START_MAX, "it has started no queue"),
        };
        if now.duration_since(self.since) >= time
            && let Some(stream) = self.stream.upgrade()
        {
            tracing::warn!(endpoint, "VMM disconnected for another one: {what} in {} s", time.as_secs());
            let _ = rustix::net::shutdown(&*stream, rustix::net::Shutdown::Both);
        }
    }
}

/// Who lets VMMs in.
struct Acceptor<K> {
    endpoint: String,
    offered: watch::Receiver<Option<Entry<K>>>,
    connection_limit: SocketQuota,
    counts: Arc<Counts>,
    bounds: Arc<Bounds>,
}

impl<K: DeviceKind> Acceptor<K> {
    async fn accept(self, socket: UnixListener) {
        let mut serving: Option<Serving> = None;
        loop {
            match socket.accept().await {
                Ok((stream, _)) => {
                    if self.is_free(&mut serving).await {
                        serving = self.welcome(stream);
                    }
                }
                Err(error) => {
                    // Out of descriptors, most likely: others must leave first.
                    tracing::warn!(endpoint = self.endpoint, %error, "Cannot accept a VMM");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Whether the volume can be served to another VMM; waits for the end of one that has gone.
    async fn is_free(&self, serving: &mut Option<Serving>) -> bool {
        let Some(before) = serving else { return true };
        before.end_if_late(Instant::now(), &self.counts, &self.endpoint);
        if before.is_alive() {
            self.reject("another VMM is served");
            return false;
        }
        if !before.task.is_finished() {
            tracing::info!(endpoint = self.endpoint, "Waiting for the previous VMM's in-flight requests");
        }
        match timeout(DRAIN_MAX, &mut before.task).await {
            Ok(_) => *serving = None,
            Err(_) => self.reject("what the one before it left at the device is not over"),
        }
        serving.is_none()
    }

    fn welcome(&self, stream: UnixStream) -> Option<Serving> {
        let Some(Entry { vm, volume, .. }) = self.offered.borrow().clone() else {
            self.reject("the volume is not offered");
            return None;
        };
        if !is_for_clients(&stream) {
            self.reject("too few descriptors are left; raise LimitNOFILE");
            return None;
        }
        if !is_memory_for_clients(0) {
            self.reject("too little memory is left");
            return None;
        }
        let permit = match self.connection_limit.take() {
            Ok(permit) => permit,
            Err(reason) => {
                self.reject(&reason.to_string());
                return None;
            }
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
        Some(Serving { stream: weak, task, since, messages_before, queues_before })
    }

    /// Some try again each second, which must not fill the log.
    fn reject(&self, reason: &str) {
        if self.counts.turned_away() {
            let times = self.counts.totals().turned_away;
            tracing::warn!(endpoint = self.endpoint, times, "VMM rejected: {reason}");
        }
    }
}
