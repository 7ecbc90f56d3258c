//! The session of one VMM, from its first message until its requests have completed after it has disconnected.
//!
//! The session takes one message at a time, checks it against its state, changes the state, and sends the effects to
//! the device thread. A rejected message changes nothing, except that a ring that cannot start waits for another kick
//! descriptor. If the VMM requested an acknowledgement, it is notified of the rejection and may continue. Otherwise, or
//! after [`REFUSALS_MAX`] rejections, the session ends. When it ends for any reason, the device thread closes the VMM's
//! queues, and the session waits for that.
//!
//! Apart from messages, four events affect a session: its volume changes or is removed, the device thread closes it,
//! and the VMM truncates shared memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserProtocolFeatures as Protocol};

use super::blk::{self, Blk};
use super::counts::Counts;
use super::device_kind::{DeviceKind, Driver};
use super::mapping::{self, MappingOwner};
use super::memory::{MemoryError, Table};
use super::ring::{Ring, RingError};
use super::session_handle::{SessionError, SessionHandle};
use super::socket::{Socket, SocketError, hung_up, try_send};
use super::wire::{self, Message, MessageError};
use crate::accept::describe_process;
use crate::closing::{Closing, Received};
use crate::device::{DeviceHandle, VolumeGeneration};
use crate::limits::is_for_clients;
use crate::pace::Pace;
use crate::shared_limit::Quota;
use crate::virtio::inflight::{Log, LogError};
use crate::virtio::queue::QueueSpec;

mod messages;

/// Maximum number of rejected messages of one session.
pub const REFUSALS_MAX: u32 = 64;

/// Interval at which the connection is checked while a VMM waits for a reply.
const GONE_EVERY: Duration = Duration::from_millis(50);

/// The volume that a socket offers.
#[derive(Clone)]
pub struct Entry<K = Blk> {
    /// The device that the guest sees.
    pub kind: K,
    /// Name of the VM.
    pub vm: String,
    /// Name of the volume.
    pub volume: String,
    /// Generation of the volume.
    pub generation: VolumeGeneration,
    /// The volume's device thread.
    pub device: DeviceHandle,
}

/// Limits for the VMMs of one socket together.
pub struct Bounds {
    /// Mappings of guest memory.
    mappings: Arc<Quota>,
    /// Descriptors that they have sent.
    pub(super) closing: Closing,
    /// Their connections, messages, and starts of rings.
    pub(super) connections: Pace,
    messages: Pace,
    ring_starts: Pace,
}

impl Bounds {
    /// Creates the limits of one more socket.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one keeps mappings from the others")]
    pub fn new() -> Self {
        Bounds {
            mappings: Arc::new(mapping::quota()),
            closing: Closing::default(),
            connections: Pace::of_connections(),
            messages: Pace::of_messages(),
            ring_starts: Pace::of_ring_starts(),
        }
    }
}

/// Why a session ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The VMM disconnected.
    Left,
    /// The volume was removed, or its device kind has changed.
    Withdrawn,
    /// The device thread closed the session: the volume was removed, or the thread was restarted.
    GivenUp,
}

/// The error that ended a session.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Invalid bytes, or a failed connection.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A message was rejected that needed no acknowledgement.
    #[error("{what} was rejected: {refusal}")]
    Refused {
        /// The message.
        what: String,
        refusal: Refusal,
    },
    /// More than [`REFUSALS_MAX`] messages were rejected.
    #[error("{REFUSALS_MAX} messages were rejected")]
    Refusals,
    /// Pages of the memory are missing.
    #[error("The VMM truncated a memory file while it was in use ({0} pages are missing)")]
    Memory(u32),
    /// The device thread rejected the session.
    #[error(transparent)]
    Device(#[from] SessionError),
    /// A system call failed.
    #[error("Cannot start the session: {0}")]
    Io(#[from] io::Error),
}

/// Why a message is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Its contents do not fit its type.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It is unknown, or belongs to a feature that is not offered.
    #[error("This message is not supported")]
    Unknown,
    /// It belongs to a feature that was not negotiated.
    #[error("Protocol feature {0:?} is required and was not negotiated")]
    NotNegotiated(Protocol),
    /// Feature bits that were not offered.
    #[error("Features {0:#x} were not offered")]
    Features(u64),
    /// Features can change only while no ring is running.
    #[error("Rings are running; stop them first")]
    Running,
    /// A part of the configuration space that does not exist or cannot be written.
    #[error("This part of the configuration space does not exist or is read-only")]
    Config,
    /// An error of a ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// An error of the memory table.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An error of the in-flight log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log has no part for a ring.
    #[error("The in-flight log has no region of the right size for ring {0}")]
    NotInLog(u16),
    /// The new memory table has a running ring at another address, or not at all.
    #[error("Ring {0} is running, and the new memory table does not contain it at the same address")]
    Moved(usize),
    /// The channel for messages to the VMM cannot be used.
    #[error("The backend channel is not a Unix stream socket")]
    Channel,
    /// The device thread rejected the change.
    #[error(transparent)]
    Device(SessionError),
    /// A system call failed.
    #[error("Out of system resources: {0}")]
    Io(#[from] io::Error),
}

/// Effect of a message.
enum Answer {
    /// An acknowledgement, if requested.
    Done,
    /// A reply, possibly with a descriptor.
    Reply(Vec<u8>, Option<OwnedFd>),
}

impl Answer {
    fn number(value: u64) -> Self {
        Answer::Reply(value.to_ne_bytes().to_vec(), None)
    }
}

/// Serves a VMM until the session ends, and closes its queues on the device thread. `entry` contains a volume when this
/// is called.
///
/// # Errors
/// [`Fault`].
pub async fn serve<K: DeviceKind>(
    stream: Arc<UnixStream>,
    entry: watch::Receiver<Option<Entry<K>>>,
    permit: Box<dyn Send>,
    counts: Arc<Counts>,
    bounds: Arc<Bounds>,
) -> Result<SessionEnd, Fault> {
    let mut entry = entry;
    let Some(offered) = entry.borrow_and_update().clone() else { return Ok(SessionEnd::Withdrawn) };
    // The device thread drops the permit when the session ends there, for any reason.
    let (permit_held, mut permit_released) = oneshot::channel::<()>();
    let Entry { vm, volume, generation, device, .. } = &offered;
    let peer = describe_process(&stream);
    let handle = device.open(vm, volume, *generation, peer, Box::new((permit, permit_held))).await?;
    counts.session();
    let mut session = Session::new(stream, offered, handle, (counts, bounds))?;
    let ended = match session.run(entry, &mut permit_released).await {
        // The VMM was killed while a reply was being sent, which is not an error.
        Err(Fault::Socket(error)) if error.is_departure() => Ok(SessionEnd::Left),
        ended => ended,
    };
    if let Err(fault) = &ended
        && session.counts.fault()
    {
        let Entry { vm, volume, .. } = &session.entry;
        tracing::warn!(vm, volume, %fault, "VMM disconnected: protocol violation");
    }
    // Closes the connection before the drain, which may take long.
    let Session { socket, handle, .. } = session;
    socket.close();
    if permit_released.is_terminated() {
        handle.forget();
    } else {
        handle.close().await;
        let _ = permit_released.await;
    }
    ended
}

struct Session<K: DeviceKind> {
    socket: Socket,
    entry: Entry<K>,
    handle: SessionHandle,
    counts: Arc<Counts>,
    /// Features that the driver acknowledged.
    features: Option<u64>,
    protocol: Protocol,
    /// Contents of the configuration space as the driver has written them.
    written: K::Written,
    memory: Table,
    log: Option<Log>,
    rings: Vec<Ring>,
    /// For messages to the VMM.
    channel: Option<Received>,
    /// Signalled when a missing page is accessed.
    fault_event: Arc<OwnedFd>,
    owner: MappingOwner,
    bounds: Arc<Bounds>,
    refusals: u32,
}

impl<K: DeviceKind> Session<K> {
    fn new(
        stream: Arc<UnixStream>,
        entry: Entry<K>,
        handle: SessionHandle,
        (counts, bounds): (Arc<Counts>, Arc<Bounds>),
    ) -> io::Result<Self> {
        let fault_event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        if !is_for_clients(&fault_event) {
            return Err(io::Error::other("too few descriptors are left; raise LimitNOFILE"));
        }
        let fault_event = Arc::new(fault_event);
        let owner =
            MappingOwner { fault_event: Some(Arc::clone(&fault_event)), quota: Some(Arc::clone(&bounds.mappings)) };
        let queues = entry.kind.queues();
        Ok(Session {
            socket: Socket::new(stream, bounds.closing.clone()),
            entry,
            handle,
            counts,
            features: None,
            protocol: Protocol::empty(),
            written: K::Written::default(),
            memory: Table::empty(owner.clone()),
            owner,
            log: None,
            rings: (0..queues).map(|_| Ring::default()).collect(),
            channel: None,
            fault_event,
            bounds,
            refusals: 0,
        })
    }

    async fn run(
        &mut self,
        mut entry: watch::Receiver<Option<Entry<K>>>,
        permit_released: &mut oneshot::Receiver<()>,
    ) -> Result<SessionEnd, Fault> {
        // SAFETY: the descriptor is open and stays the same while it is registered, because the registration holds it.
        let fault_event = unsafe { AsyncFd::register(Arc::clone(&self.fault_event)) }.map_err(io::Error::from)?;
        loop {
            // Events that end or change the session come before messages that the VMM has queued.
            tokio::select! {
                biased;
                changed = entry.changed() => {
                    let now = changed.ok().and_then(|()| entry.borrow_and_update().clone());
                    if !now.is_some_and(|now| self.follow(now)) {
                        return Ok(SessionEnd::Withdrawn);
                    }
                }
                _ = &mut *permit_released => return Ok(SessionEnd::GivenUp),
                _ = fault_event.readable() => return Err(Fault::Memory(self.missed())),
                received = self.socket.receive() => match received? {
                    None => return Ok(SessionEnd::Left),
                    Some(message) => {
                        self.counts.message();
                        let stream = Arc::clone(self.socket.stream());
                        // A reply that the VMM does not read must not outlive the session.
                        let over = tokio::select! {
                            biased;
                            _ = &mut *permit_released => Some(SessionEnd::GivenUp),
                            over = self.take(message) => over?,
                            () = gone(&stream) => Some(SessionEnd::Left),
                        };
                        if let Some(over) = over {
                            return Ok(over);
                        }
                        // A VMM that never stops sending must not block other tasks of this thread.
                        tokio::task::yield_now().await;
                    }
                },
            }
        }
    }

    /// Handles a message and replies to it.
    async fn take(&mut self, message: Message) -> Result<Option<SessionEnd>, Fault> {
        self.bounds.messages.wait().await;
        let request = message.header.request;
        let (known, need_reply) = (message.request(), message.header.need_reply);
        let answer = self.handle(message).await;
        let acknowledge = need_reply && self.protocol.contains(Protocol::REPLY_ACK);
        let reply = match answer {
            Ok(Answer::Reply(payload, descriptor)) => Some((payload, descriptor)),
            Ok(Answer::Done) => acknowledge.then(|| (0u64.to_ne_bytes().to_vec(), None)),
            Err(Refusal::Device(SessionError::Gone(..))) => return Ok(Some(SessionEnd::GivenUp)),
            Err(refusal) => Some((self.refuse(known, request, acknowledge, refusal)?, None)),
        };
        if let Some((payload, descriptor)) = reply {
            let bytes = wire::reply(request, &payload);
            self.socket.send(&bytes, descriptor.as_ref().map(AsFd::as_fd)).await?;
        }
        Ok(None)
    }

    /// Reports a rejection to the VMM, if it can be reported.
    fn refuse(
        &mut self,
        known: Option<FrontendReq>,
        request: u32,
        acknowledge: bool,
        refusal: Refusal,
    ) -> Result<Vec<u8>, Fault> {
        let worth_a_line = self.counts.refusal();
        self.refusals += 1;
        let what = known.map_or_else(|| format!("Message {request}"), |known| format!("{known:?}"));
        if self.refusals > REFUSALS_MAX {
            return Err(Fault::Refusals);
        }
        // The reply for a part of the configuration that does not exist is empty.
        let payload = match known {
            Some(FrontendReq::GET_CONFIG) => Vec::new(),
            known if acknowledge && !known.is_some_and(has_reply) => 1u64.to_ne_bytes().to_vec(),
            _ => return Err(Fault::Refused { what, refusal }),
        };
        if worth_a_line {
            let Entry { vm, volume, .. } = &self.entry;
            tracing::warn!(vm, volume, what, %refusal, "Message of a VMM rejected");
        }
        Ok(payload)
    }

    /// Applies a changed volume. Returns whether it is still the device that the VMM knows.
    fn follow(&mut self, now: Entry<K>) -> bool {
        let before = &self.entry;
        let same = now.vm == before.vm
            && now.volume == before.volume
            && now.generation == before.generation
            && now.kind.queues() == before.kind.queues()
            && now.device.is(&before.device)
            && now.kind.features() == before.kind.features();
        if !same {
            return false;
        }
        let changed = now.kind != before.kind;
        self.entry = now;
        if changed {
            self.send_config_change();
        }
        true
    }

    /// Notifies the VMM that the configuration has changed.
    fn send_config_change(&self) {
        let Entry { vm, volume, .. } = &self.entry;
        let Some(channel) = &self.channel else {
            tracing::info!(vm, volume, "VMM has no backend channel: cannot notify the guest of the new configuration");
            return;
        };
        match try_send(channel, &wire::back_end_request(BackendReq::CONFIG_CHANGE_MSG)) {
            Ok(()) => self.counts.config_change(),
            Err(error) => tracing::warn!(vm, volume, %error, "Cannot notify the VMM of the new configuration"),
        }
    }

    /// Returns what the device thread must know of the driver.
    fn driver(&self) -> Driver {
        self.entry.kind.driver(self.features.unwrap_or(0), self.written)
    }

    /// Starts all rings that can start.
    async fn start_rings(&mut self) -> Result<(), Refusal> {
        for index in 0..self.rings.len() {
            self.apply_ring_state(index).await?;
        }
        Ok(())
    }

    /// Starts a ring if everything is set. If it cannot start, it waits for another kick descriptor.
    async fn apply_ring_state(&mut self, index: usize) -> Result<(), Refusal> {
        let ring = &self.rings[index];
        let ready = ring.enabled && ring.size > 0 && ring.addresses.is_some() && ring.kick.is_some();
        if !ready || ring.running.is_some() || self.features.is_none() || self.memory.is_empty() {
            return Ok(());
        }
        let kick = self.rings[index].kick.take().expect("a ring that can start has a kick descriptor");
        self.start(index, kick).await
    }

    async fn start(&mut self, index: usize, kick: OwnedFd) -> Result<(), Refusal> {
        let ring = &self.rings[index];
        let number = index as u16;
        let addresses = ring.find(&self.memory).ok_or(RingError::Addresses(number.into()))?;
        let log = match &self.log {
            Some(log) => Some(log.queue(number, ring.size).ok_or(Refusal::NotInLog(number))?),
            None => None,
        };
        let spec = QueueSpec {
            index: number,
            size: ring.size,
            descriptors: addresses.descriptors,
            available: addresses.available,
            used: addresses.used,
            next_available: ring.base,
            event_index: blk::has(self.features.unwrap_or(0), blk::EVENT_INDEX),
            kick,
            call: ring.call.clone(),
            error: ring.error.clone(),
            log,
        };
        self.bounds.ring_starts.wait().await;
        let started = self.handle.start_queue(spec, Arc::clone(self.memory.memory()), self.driver()).await;
        let recovered = started.map_err(Refusal::Device)?;
        self.counts.queue_started();
        self.rings[index].running = Some(addresses);
        if recovered > 0 {
            self.counts.recovered(recovered.into());
            let Entry { vm, volume, .. } = &self.entry;
            tracing::info!(
                vm,
                volume,
                queue = index,
                requests = recovered,
                "Requests recovered from the in-flight log"
            );
        }
        Ok(())
    }

    /// Stops a ring and waits for its requests in flight. After that it waits for another kick descriptor.
    async fn stop(&mut self, index: usize) -> Result<u16, Refusal> {
        self.rings[index].kick = None;
        if self.rings[index].running.is_some() {
            let base = self.handle.stop_queue(index as u16).await.map_err(Refusal::Device)?;
            let ring = &mut self.rings[index];
            (ring.base, ring.running) = (base, None);
        }
        Ok(self.rings[index].base)
    }

    /// Changes the memory table, if all running rings are in it at the same addresses.
    async fn adopt(&mut self, table: Table) -> Result<(), Refusal> {
        let moved = |ring: &Ring| ring.running.is_some() && ring.find(&table) != ring.running;
        if let Some(index) = self.rings.iter().position(moved) {
            return Err(Refusal::Moved(index));
        }
        if self.is_running() {
            self.handle.set_memory(Arc::clone(table.memory())).await.map_err(Refusal::Device)?;
        }
        self.memory = table;
        self.start_rings().await
    }

    /// Returns the number of missing pages that were accessed.
    fn missed(&self) -> u32 {
        self.memory.faults() + self.log.as_ref().map_or(0, Log::faults)
    }

    fn is_running(&self) -> bool {
        self.rings.iter().any(|ring| ring.running.is_some())
    }
}

/// Ends when the VMM has disconnected, without reading from the connection, because stopping a ring may take long. The
/// check is periodic, because unread messages of the VMM look like any others.
async fn gone(stream: &UnixStream) {
    loop {
        tokio::time::sleep(GONE_EVERY).await;
        if hung_up(stream.as_fd()) {
            return;
        }
    }
}

/// Whether a message has a reply, which takes the place of an acknowledgement.
fn has_reply(request: FrontendReq) -> bool {
    matches!(
        request,
        FrontendReq::GET_FEATURES
            | FrontendReq::GET_PROTOCOL_FEATURES
            | FrontendReq::GET_VRING_BASE
            | FrontendReq::GET_QUEUE_NUM
            | FrontendReq::GET_CONFIG
            | FrontendReq::GET_INFLIGHT_FD
            | FrontendReq::GET_MAX_MEM_SLOTS
    )
}

#[cfg(test)]
mod tests;
