//! One VMM at one volume: from its first message until it has gone and nothing of it is left.
//!
//! The session takes a message at a time, checks it against what was said before, changes its own state, and tells the
//! device thread what follows from that. A message that is refused has changed nothing, but that a ring which cannot start
//! with what is said waits for another kick. If the VMM asked for an acknowledgement it is told so and may go on, else, or
//! after [`REFUSALS_MAX`], the session ends. Whatever ends it, the device thread is asked to let go of the VMM's queues, and
//! the session is over when it has.
//!
//! Besides messages four things happen to a session: its volume changes or leaves, the device thread has given it up, and
//! the VMM is found to have taken away memory that it had given.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot, watch};
use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserProtocolFeatures as Protocol};

use super::blk::{self, Blk};
use super::counts::Counts;
use super::device_kind::{DeviceKind, Driver};
use super::mapping::{self, MappingOwner};
use super::memory::{MemoryError, Table};
use super::pace::Pace;
use super::ring::{Ring, RingError};
use super::session_handle::{SessionError, SessionHandle};
use super::socket::{Socket, SocketError, hung_up, try_send};
use super::wire::{self, Message, MessageError};
use crate::device::{DeviceHandle, VolumeGeneration};
use crate::limits::is_for_clients;
use crate::shared_limit::Quota;
use crate::virtio::inflight::{Log, LogError};
use crate::virtio::queue::QueueSpec;

mod messages;

/// Messages of one session that may be refused.
pub const REFUSALS_MAX: u32 = 64;

/// How often a VMM that waits for an answer is looked for.
const GONE_EVERY: Duration = Duration::from_millis(50);

/// What a socket offers.
#[derive(Clone)]
pub struct Entry<K = Blk> {
    /// What the device is like.
    pub kind: K,
    /// Whose disk it is.
    pub vm: String,
    /// Which one.
    pub volume: String,
    /// Its generation.
    pub generation: VolumeGeneration,
    /// Where its device is.
    pub device: DeviceHandle,
}

/// What the VMMs of one socket may take, one after another.
pub struct Bounds {
    /// Mappings of guest memory.
    mappings: Arc<Quota>,
    pace: Mutex<Pace>,
}

impl Bounds {
    /// The bounds of one more socket.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one keeps mappings from the others")]
    pub fn new() -> Self {
        Bounds { mappings: Arc::new(mapping::quota()), pace: Mutex::default() }
    }
}

/// Why a session is over, though nobody did anything wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The VMM disconnected.
    Left,
    /// The volume is not offered any more, or became a device of another kind.
    Withdrawn,
    /// The device thread has given it up: the volume has left, or the thread had to begin anew.
    GivenUp,
}

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Bytes that are no messages.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A message that was refused, and nobody waits to be told.
    #[error("{what} was rejected: {refusal}")]
    Refused {
        /// Which message.
        what: String,
        /// Why.
        refusal: Refusal,
    },
    /// More than [`REFUSALS_MAX`].
    #[error("{REFUSALS_MAX} messages were rejected")]
    Refusals,
    /// Pages of its memory are gone.
    #[error("The VMM truncated a memory file while it was in use ({0} pages are missing)")]
    Memory(u32),
    /// The device does not take it.
    #[error(transparent)]
    Device(#[from] SessionError),
    /// The system says no.
    #[error("Cannot start the session: {0}")]
    Io(#[from] io::Error),
}

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is not what its request needs.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Nobody knows it, or it belongs to a feature that is not offered.
    #[error("This message is not supported")]
    Unknown,
    /// It belongs to a feature that was not settled for.
    #[error("Protocol feature {0:?} is required and was not negotiated")]
    NotNegotiated(Protocol),
    /// Bits that were never offered.
    #[error("Features {0:#x} were not offered")]
    Features(u64),
    /// Features change only while nothing runs.
    #[error("Rings are running; stop them first")]
    Running,
    /// A part of the configuration space that is not there, or cannot be written.
    #[error("This part of the configuration space does not exist or is read-only")]
    Config,
    /// A ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The memory table.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The in-flight log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log has no part for a ring.
    #[error("The in-flight log has no region for ring {0} with its size")]
    NotInLog(u16),
    /// A running ring would lose its handle.
    #[error("Ring {0} is running, and the new memory table does not contain it at the same address")]
    Moved(usize),
    /// For the back end's own messages.
    #[error("The backend channel is not a Unix stream socket")]
    Channel,
    /// The device thread.
    #[error(transparent)]
    Device(SessionError),
    /// The system says no.
    #[error("Out of system resources: {0}")]
    Io(#[from] io::Error),
}

/// What follows from a message.
enum Answer {
    /// Nothing but an acknowledgement.
    Done,
    /// The message has an answer of its own, with a descriptor or without.
    Reply(Vec<u8>, Option<OwnedFd>),
}

impl Answer {
    fn number(value: u64) -> Self {
        Answer::Reply(value.to_ne_bytes().to_vec(), None)
    }
}

/// Serves a VMM until one of both has had enough, and lets go of all that it held. `entry` holds something when it begins.
pub async fn serve<K: DeviceKind>(
    stream: Arc<UnixStream>,
    entry: watch::Receiver<Option<Entry<K>>>,
    permit: Box<dyn Send>,
    counts: Arc<Counts>,
    bounds: Arc<Bounds>,
) -> Result<SessionEnd, Fault> {
    let mut entry = entry;
    let Some(offered) = entry.borrow_and_update().clone() else { return Ok(SessionEnd::Withdrawn) };
    // The device thread drops the permit when the session ends there, for whatever reason.
    let (permit_held, mut permit_released) = oneshot::channel::<()>();
    let Entry { vm, volume, generation, device, .. } = &offered;
    let handle = device.open(vm, volume, *generation, Box::new((permit, permit_held))).await?;
    counts.session();
    let mut session = Session::new(stream, offered, handle, (counts, bounds))?;
    let ended = match session.run(entry, &mut permit_released).await {
        // Killed while an answer was on its way to it, which breaks nothing.
        Err(Fault::Socket(error)) if error.is_departure() => Ok(SessionEnd::Left),
        ended => ended,
    };
    if let Err(fault) = &ended
        && session.counts.fault()
    {
        let Entry { vm, volume, .. } = &session.entry;
        tracing::warn!(vm, volume, %fault, "VMM disconnected: protocol violation");
    }
    // The VMM learns it before the drain, which may take long.
    let Session { socket, handle, .. } = session;
    drop(socket);
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
    /// As the driver has settled for them.
    features: Option<u64>,
    protocol: Protocol,
    /// What the driver has written to the configuration space.
    written: K::Written,
    memory: Table,
    log: Option<Log>,
    rings: Vec<Ring>,
    /// For messages of our own.
    channel: Option<OwnedFd>,
    /// Rung when memory is found to be gone.
    bell: Arc<OwnedFd>,
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
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        if !is_for_clients(&bell) {
            return Err(io::Error::other("too few descriptors are left; raise LimitNOFILE"));
        }
        let bell = Arc::new(bell);
        let owner = MappingOwner { bell: Some(Arc::clone(&bell)), quota: Some(Arc::clone(&bounds.mappings)) };
        let queues = entry.kind.queues();
        Ok(Session {
            socket: Socket::new(stream),
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
            bell,
            bounds,
            refusals: 0,
        })
    }

    async fn run(
        &mut self,
        mut entry: watch::Receiver<Option<Entry<K>>>,
        permit_released: &mut oneshot::Receiver<()>,
    ) -> Result<SessionEnd, Fault> {
        // SAFETY: the descriptor is open and the same as long as it is registered, which holds it.
        let bell = unsafe { AsyncFd::register(Arc::clone(&self.bell)) }.map_err(io::Error::from)?;
        loop {
            // What ends the session, or changes it, comes before what its VMM has queued up.
            tokio::select! {
                biased;
                changed = entry.changed() => {
                    let now = changed.ok().and_then(|()| entry.borrow_and_update().clone());
                    if !now.is_some_and(|now| self.follow(now)) {
                        return Ok(SessionEnd::Withdrawn);
                    }
                }
                _ = &mut *permit_released => return Ok(SessionEnd::GivenUp),
                _ = bell.readable() => return Err(Fault::Memory(self.missed())),
                received = self.socket.receive() => match received? {
                    None => return Ok(SessionEnd::Left),
                    Some(message) => {
                        self.counts.message();
                        let stream = Arc::clone(self.socket.stream());
                        // A reply that the VMM does not take must not outlive the session.
                        let over = tokio::select! {
                            biased;
                            _ = &mut *permit_released => Some(SessionEnd::GivenUp),
                            over = self.take(message) => over?,
                            () = gone(&stream) => Some(SessionEnd::Left),
                        };
                        if let Some(over) = over {
                            return Ok(over);
                        }
                        // Who never stops sending must not keep the others of this thread waiting.
                        tokio::task::yield_now().await;
                    }
                },
            }
        }
    }

    /// Does what a message says and answers it.
    async fn take(&mut self, message: Message) -> Result<Option<SessionEnd>, Fault> {
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

    /// What the VMM is told of a refusal, if it can be told.
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
        // A configuration that is not there has an answer of its own: nothing.
        let payload = match known {
            Some(FrontendReq::GET_CONFIG) => Vec::new(),
            known if acknowledge && !known.is_some_and(has_an_answer) => 1u64.to_ne_bytes().to_vec(),
            _ => return Err(Fault::Refused { what, refusal }),
        };
        if worth_a_line {
            let Entry { vm, volume, .. } = &self.entry;
            tracing::warn!(vm, volume, what, %refusal, "Message of a VMM rejected");
        }
        Ok(payload)
    }

    /// The volume has changed; whether it is still the device that the VMM knows.
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
            self.tell_of_change();
        }
        true
    }

    /// Tells the VMM that it should read the configuration again.
    fn tell_of_change(&self) {
        let Entry { vm, volume, .. } = &self.entry;
        let Some(channel) = &self.channel else {
            tracing::info!(vm, volume, "VMM has no backend channel: the guest is not notified of the change");
            return;
        };
        match try_send(channel, &wire::back_end_request(BackendReq::CONFIG_CHANGE_MSG)) {
            Ok(()) => self.counts.config_change(),
            Err(error) => tracing::warn!(vm, volume, %error, "Cannot notify the VMM of the change"),
        }
    }

    /// What the device thread must know of the driver.
    fn driver(&self) -> Driver {
        self.entry.kind.driver(self.features.unwrap_or(0), self.written)
    }

    /// Starts all rings that can start.
    async fn settle(&mut self) -> Result<(), Refusal> {
        for index in 0..self.rings.len() {
            self.settle_ring(index).await?;
        }
        Ok(())
    }

    /// Starts a ring if all is there that it takes. If it cannot start it waits for another kick.
    async fn settle_ring(&mut self, index: usize) -> Result<(), Refusal> {
        let ring = &self.rings[index];
        let ready = ring.enabled && ring.size > 0 && ring.places.is_some() && ring.kick.is_some();
        if !ready || ring.running.is_some() || self.features.is_none() || self.memory.is_empty() {
            return Ok(());
        }
        let kick = self.rings[index].kick.take().expect("it is there");
        self.start(index, kick).await
    }

    async fn start(&mut self, index: usize, kick: OwnedFd) -> Result<(), Refusal> {
        let ring = &self.rings[index];
        let number = index as u16;
        let places = ring.find(&self.memory).ok_or(RingError::Addresses(number.into()))?;
        let log = match &self.log {
            Some(log) => Some(log.queue(number, ring.size).ok_or(Refusal::NotInLog(number))?),
            None => None,
        };
        let spec = QueueSpec {
            index: number,
            size: ring.size,
            descriptors: places.descriptors,
            available: places.available,
            used: places.used,
            next_available: ring.base,
            event_index: blk::has(self.features.unwrap_or(0), blk::EVENT_INDEX),
            kick,
            call: ring.call.clone(),
            error: ring.error.clone(),
            log,
        };
        self.bounds.pace.lock().await.wait().await;
        let started = self.handle.start_queue(spec, Arc::clone(self.memory.memory()), self.driver()).await;
        let recovered = started.map_err(Refusal::Device)?;
        self.counts.queue_started();
        self.rings[index].running = Some(places);
        if recovered > 0 {
            self.counts.taken_over(recovered.into());
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

    /// Stops a ring, when all that the device has of it is over. It waits for another kick then.
    async fn stop(&mut self, index: usize) -> Result<u16, Refusal> {
        self.rings[index].kick = None;
        if self.rings[index].running.is_some() {
            let base = self.handle.stop_queue(index as u16).await.map_err(Refusal::Device)?;
            let ring = &mut self.rings[index];
            (ring.base, ring.running) = (base, None);
        }
        Ok(self.rings[index].base)
    }

    /// Another memory table, if all that runs lies in it where it was.
    async fn adopt(&mut self, table: Table) -> Result<(), Refusal> {
        let moved = |ring: &Ring| ring.running.is_some() && ring.find(&table) != ring.running;
        if let Some(index) = self.rings.iter().position(moved) {
            return Err(Refusal::Moved(index));
        }
        if self.is_running() {
            self.handle.set_memory(Arc::clone(table.memory())).await.map_err(Refusal::Device)?;
        }
        self.memory = table;
        self.settle().await
    }

    /// Pages of the VMM's files that were gone when they were touched.
    fn missed(&self) -> u32 {
        self.memory.faults() + self.log.as_ref().map_or(0, Log::faults)
    }

    fn is_running(&self) -> bool {
        self.rings.iter().any(|ring| ring.running.is_some())
    }
}

/// Ends when the VMM has gone, though nothing is read from it: a ring may take long to stop. Asked now and then, since what
/// it has sent before it went looks like any other message.
async fn gone(stream: &UnixStream) {
    loop {
        tokio::time::sleep(GONE_EVERY).await;
        if hung_up(stream.as_fd()) {
            return;
        }
    }
}

/// Whether a message has an answer of its own, which is not the handle for an acknowledgement.
fn has_an_answer(request: FrontendReq) -> bool {
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
