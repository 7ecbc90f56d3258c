//! A virtqueue on a device thread.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_sched::Instant;
use tokio::sync::oneshot::Sender;
use virtio_queue::{Queue, QueueT as _};
use vm_memory::GuestAddress;

use crate::backend::client_faults::StoppedQueue;
use crate::backend::request::RequestList;
use crate::intake::Intake;
use crate::slab::ids;
use crate::vhost_user::memory::Memory;
use crate::vhost_user::shared;
use crate::virtio::chain::DescriptorTable;
use crate::virtio::data::MemoryTable;
use crate::virtio::eventfds::{Eventfds, Signal};
use crate::virtio::inflight::QueueLog;
use crate::virtio::used_ring::{BATCH_MAX, UsedPlace, UsedRing};

/// Maximum number of requests of a queue whose descriptors are loaded ahead.
const PREFETCHED_MAX: u16 = 8;
/// Position behind the next request whose header is loaded ahead: its descriptor has been loaded by then.
const TARGETS_AHEAD: u16 = PREFETCHED_MAX / 2;

ids! {
    /// A session of a VMM.
    SessionId;
}

/// A virtqueue, ready to start. The size is a power of two, at most 1024. The rings lie in the memory that is given
/// with it, and the descriptors are non-blocking eventfds.
#[derive(Debug)]
pub struct QueueSpec {
    /// Index of the queue.
    pub index: u16,
    /// Number of entries.
    pub size: u16,
    /// Guest address of the descriptor table.
    pub descriptors: GuestAddress,
    /// Guest address of the available ring.
    pub available: GuestAddress,
    /// Guest address of the used ring.
    pub used: GuestAddress,
    /// Index of the next entry of the available ring, as the VMM states it. An in-flight log takes precedence.
    pub next_available: u16,
    /// Whether EVENT_IDX was negotiated.
    pub event_index: bool,
    /// Signalled by the guest.
    pub kick: OwnedFd,
    /// Signalled for the guest; `None` if it polls.
    pub call: Option<Arc<OwnedFd>>,
    /// Signalled for the VMM when the guest has broken the queue.
    pub error: Option<Arc<OwnedFd>>,
    /// The in-flight log, if the VMM keeps one.
    pub log: Option<QueueLog>,
}

/// A request that was taken from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The head of its descriptor chain.
    pub(crate) head: u16,
    /// Its position in the available ring, as the ring's index counts; `None` if a previous daemon had taken it.
    pub(crate) position: Option<u16>,
}

impl Taken {
    /// Returns it as the cookie of a request.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.head) | self.position.map_or(0, |position| 1 << 32 | u64::from(position) << 16)
    }

    pub(crate) fn unpack(cookie: u64) -> Self {
        let position = (cookie >> 32 == 1).then_some((cookie >> 16) as u16);
        Taken { head: cookie as u16, position }
    }
}

/// State of a queue.
pub(crate) enum State {
    Running,
    /// Broken by the guest. It takes no requests until it is started again.
    Broken {
        _stopped: StoppedQueue,
    },
    /// The VMM waits until it has stopped. Of new requests it takes only the recovered ones.
    Stopping(Sender<u16>),
    /// Its VMM has disconnected, and guest memory is not written any more. The sender is that of a VMM that waited for
    /// the stop.
    Closed(Option<Sender<u16>>),
}

impl State {
    /// Whether the queue is removed when nothing refers to it any more.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, State::Stopping(_) | State::Closed(_))
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, State::Closed(_))
    }

    pub(crate) fn break_down(&mut self, stopped: StoppedQueue) {
        if matches!(self, State::Running) {
            *self = State::Broken { _stopped: stopped };
        }
    }

    pub(crate) fn close(&mut self) {
        *self = match std::mem::replace(self, State::Closed(None)) {
            State::Stopping(reply) | State::Closed(Some(reply)) => State::Closed(Some(reply)),
            State::Running | State::Broken { .. } | State::Closed(None) => State::Closed(None),
        };
    }

    /// Returns the sender to the VMM that waits until the queue has stopped.
    pub(crate) fn into_reply(self) -> Option<Sender<u16>> {
        match self {
            State::Stopping(reply) => Some(reply),
            State::Closed(reply) => reply,
            State::Running | State::Broken { .. } => None,
        }
    }
}

/// The in-flight log of a queue, if its VMM keeps one.
struct Log {
    log: Option<QueueLog>,
    /// Heads that a previous daemon took and did not return.
    recovered: VecDeque<u16>,
    /// Heads of returned chains that are not published.
    returned: Vec<u16>,
}

/// What refers to a queue.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// Number of operations of the ring that refer to it.
    pub(crate) operations: u32,
    /// Requests that were taken and not returned.
    pub(crate) requests: RequestList,
    /// Chains that were taken and not returned, of a device that keeps them itself.
    pub(crate) held: u32,
}

/// A virtqueue.
pub(crate) struct VirtQueue {
    pub(crate) session: SessionId,
    pub(crate) index: u16,
    queue: Queue,
    /// The index of the available ring when it was last read. The guest writes it on another CPU, so it is read only
    /// once for all entries that it covers.
    filled: u16,
    pub(crate) memory: Rc<MemoryTable>,
    rings: Rings,
    used: UsedRing,
    pub(crate) eventfds: Eventfds,
    log: Log,
    pub(crate) enabled: bool,
    pub(crate) state: State,
    pub(crate) intake: Intake,
    /// Whether it is polled in each iteration, so that the guest need not kick.
    pub(crate) polled: bool,
    /// When a request was last found or returned.
    pub(crate) active: Instant,
    pub(crate) outstanding: Outstanding,
}

impl VirtQueue {
    /// Creates a queue from a checked specification; `None` if its rings are outside the memory.
    pub(crate) fn new(session: SessionId, spec: QueueSpec, memory: Arc<Memory>) -> Option<Self> {
        let mut queue = Queue::new(spec.size).ok()?;
        queue.set_size(spec.size);
        queue.try_set_desc_table_address(spec.descriptors).ok()?;
        queue.try_set_avail_ring_address(spec.available).ok()?;
        queue.try_set_used_ring_address(spec.used).ok()?;
        queue.set_event_idx(spec.event_index);
        queue.set_ready(true);
        let memory = Rc::new(MemoryTable::new(memory));
        let rings = Rings::find(&queue, &memory)?;
        let used = queue.used_idx(&**memory, Ordering::Acquire).ok()?.0;
        let mut log = spec.log;
        let recovered: VecDeque<u16> = log.as_mut().map(|log| log.recover(used)).unwrap_or_default().into();
        queue.set_next_avail(match log {
            Some(_) => used.wrapping_add(recovered.len() as u16),
            None => spec.next_available,
        });
        Some(VirtQueue {
            session,
            index: spec.index,
            filled: queue.next_avail(),
            queue,
            memory,
            rings,
            used: UsedRing::new(spec.size, spec.event_index, used),
            eventfds: Eventfds::new(spec.kick, spec.call, spec.error),
            log: Log { log, recovered, returned: Vec::with_capacity(BATCH_MAX.into()) },
            enabled: true,
            state: State::Running,
            intake: Intake::Open,
            polled: false,
            active: Instant::ZERO,
            outstanding: Outstanding::default(),
        })
    }

    /// Continues at the index of the used ring, whatever the VMM states: for a device that returns chains in order, and whose VMM keeps no
    /// in-flight log.
    pub(crate) fn continue_at_used(&mut self) {
        self.queue.set_next_avail(self.used.next());
        self.filled = self.used.next();
    }

    /// Returns the number of requests that a previous daemon took and did not return, and that are not taken again yet.
    pub(crate) fn recovered(&self) -> u16 {
        self.log.recovered.len() as u16
    }

    /// Returns the number of entries.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Changes the memory table. Returns `false` if the rings are outside the new one.
    pub(crate) fn move_to(&mut self, memory: Arc<Memory>) -> bool {
        let memory = Rc::new(MemoryTable::new(memory));
        self.publish();
        let Some(rings) = Rings::find(&self.queue, &memory) else { return false };
        (self.rings, self.memory) = (rings, memory);
        true
    }

    pub(crate) fn descriptors(&self) -> &DescriptorTable {
        &self.rings.descriptors
    }

    /// Whether requests are taken from it. A queue that stops takes the recovered ones: a back end that uses it
    /// next without the in-flight log continues at a position of the available ring, and does not find them.
    pub(crate) fn takes(&self) -> bool {
        let takes = match self.state {
            State::Running => self.enabled,
            State::Stopping(_) => !self.log.recovered.is_empty(),
            State::Broken { .. } | State::Closed(_) => false,
        };
        takes && self.intake == Intake::Open
    }

    /// Stops the queue. The VMM is told its position when no request is left.
    pub(crate) fn stop(&mut self, reply: Sender<u16>) {
        if matches!(self.state, State::Broken { .. }) {
            self.log.recovered.clear();
        }
        self.state = State::Stopping(reply);
    }

    /// Whether all requests that were taken have been returned.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding.requests.is_empty() && self.outstanding.held == 0
    }

    /// Whether no request was found or returned since `then`, and none is outstanding.
    pub(crate) fn is_idle_since(&self, then: Instant) -> bool {
        self.active < then && self.is_empty()
    }

    /// Whether there may be a request.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.takes() && self.has_next().unwrap_or(true)
    }

    /// Whether nothing refers to it any more.
    pub(crate) fn can_be_removed(&self) -> bool {
        let has_taken_all = self.log.recovered.is_empty() || self.state.is_closed();
        self.state.ends() && has_taken_all && self.is_empty() && self.outstanding.operations == 0
    }

    /// Whether there is a request. An error means that the guest's index is invalid.
    pub(crate) fn has_next(&mut self) -> Result<bool, virtio_queue::Error> {
        if !self.log.recovered.is_empty() || self.filled != self.queue.next_avail() {
            return Ok(true);
        }
        // SAFETY: the index is in the available ring, which is in the memory table, at a multiple of two.
        let filled = unsafe { shared::read_index(self.rings.available_index()) };
        if filled.wrapping_sub(self.queue.next_avail()) > self.queue.size() {
            return Err(virtio_queue::Error::InvalidAvailRingIndex);
        }
        self.filled = filled;
        Ok(filled != self.queue.next_avail())
    }

    /// Takes the next request.
    pub(crate) fn take(&mut self) -> Result<Option<Taken>, virtio_queue::Error> {
        if let Some(head) = self.log.recovered.pop_front() {
            return Ok(Some(Taken { head, position: None }));
        }
        if !self.has_next()? {
            return Ok(None);
        }
        let next = self.queue.next_avail();
        let head = self.entry(next);
        self.queue.set_next_avail(next.wrapping_add(1));
        if head < self.queue.size()
            && let Some(log) = &mut self.log.log
        {
            log.taken(head);
        }
        Ok(Some(Taken { head, position: Some(next) }))
    }

    /// Reads an entry of the available ring.
    fn entry(&self, position: u16) -> u16 {
        // VIRTIO 1.3, 2.7.6: flags and index, then the heads.
        let place = self.rings.available.wrapping_add(4 + 2 * usize::from(position % self.queue.size()));
        // SAFETY: the entry is in the available ring, which is in the memory table.
        u16::from_le_bytes(unsafe { shared::read(place) })
    }

    /// Starts to load the index of the available ring.
    pub(crate) fn prefetch_index(&self) {
        shared::prefetch(self.rings.available_index());
    }

    /// Starts to load the descriptors of the requests that were found.
    pub(crate) fn prefetch_descriptors(&self) {
        self.found().for_each(|head| self.rings.descriptors.prefetch(head));
    }

    /// Starts to load the tables or headers of the requests that were found.
    pub(crate) fn prefetch_tables(&self) {
        self.found().for_each(|head| self.rings.descriptors.prefetch_target(&self.memory, head));
    }

    /// Returns the heads of the next requests that were found, as the guest states them now. They are read again when
    /// the requests are taken.
    fn found(&self) -> impl Iterator<Item = u16> {
        let next = self.queue.next_avail();
        let found = self.filled.wrapping_sub(next).min(PREFETCHED_MAX);
        (0..found).map(move |at| self.entry(next.wrapping_add(at)))
    }

    /// Starts to load what is read first of a request some positions behind the next one. A queue that is emptied in one go has more
    /// requests than [`VirtQueue::prefetch_descriptors`] has loaded.
    pub(crate) fn prefetch_ahead(&self) {
        let next = self.queue.next_avail();
        let left = self.filled.wrapping_sub(next);
        if left > PREFETCHED_MAX {
            self.rings.descriptors.prefetch(self.entry(next.wrapping_add(PREFETCHED_MAX)));
        }
        if left > TARGETS_AHEAD {
            self.rings.descriptors.prefetch_target(&self.memory, self.entry(next.wrapping_add(TARGETS_AHEAD)));
        }
    }

    /// Returns the position of the request that was taken last from the available ring.
    pub(crate) fn last_taken(&self) -> u16 {
        self.queue.next_avail().wrapping_sub(1)
    }

    /// Whether the queue is stopping and the request at `position` of the available ring was the last one taken.
    pub(crate) fn gives_back(&self, position: u16) -> bool {
        matches!(self.state, State::Stopping(_)) && self.last_taken() == position
    }

    /// Puts the request that was taken last back into the available ring.
    pub(crate) fn put_back(&mut self, head: u16) {
        self.queue.set_next_avail(self.last_taken());
        if let Some(log) = &mut self.log.log {
            log.put_back(head);
        }
    }

    /// Returns requests to the guest, each with the number of bytes that were written for it. The guest sees them at the latest after
    /// [`VirtQueue::publish`], and all at once: they may be the buffers of one frame (VIRTIO 1.3, 5.1.6.4), and a driver that saw some of
    /// them would drop it.
    pub(crate) fn give_back_together(&mut self, chains: &[(u16, u32)]) {
        for (head, written) in chains {
            if let Some(log) = &mut self.log.log {
                log.returning(*head);
                self.log.returned.push(*head);
            }
            // SAFETY: the ring is in the memory table of the queue.
            unsafe { self.used.put(self.rings.used, *head, *written) };
        }
        self.eventfds.interrupt.signal = self.eventfds.interrupt.signal.max(Signal::IfWanted);
        if self.used.unpublished() >= BATCH_MAX {
            self.publish();
        }
    }

    /// Publishes all returned requests.
    pub(crate) fn publish(&mut self) {
        if self.used.unpublished() == 0 || self.state.is_closed() {
            return;
        }
        // SAFETY: as in `give_back`.
        unsafe { self.used.publish(self.rings.used) };
        if let Some(log) = &mut self.log.log {
            self.log.returned.drain(..).for_each(|head| log.returned(head, self.used.next()));
        }
    }

    /// Whether the guest must be interrupted for what was returned since the last call.
    pub(crate) fn take_signal(&mut self) -> bool {
        match std::mem::replace(&mut self.eventfds.interrupt.signal, Signal::No) {
            Signal::No => false,
            signal => {
                // SAFETY: as in `give_back`.
                let wanted = unsafe { self.used.wants_interrupt(self.rings.used) };
                wanted || signal == Signal::Always
            }
        }
    }

    /// Tells the guest that it need not kick. With EVENT_IDX a guest kicks when it passes the index that was stated last, which is
    /// that of its next request.
    pub(crate) fn disable_notification(&mut self) {
        if !self.queue.event_idx_enabled() {
            let _ = self.queue.disable_notification(&**self.memory);
            return;
        }
        // SAFETY: the ring is in the memory table of the queue.
        unsafe { self.used.state_kick(self.rings.used, self.queue.next_avail().wrapping_sub(1)) };
    }

    /// Tells the guest to kick. Returns `true` if there is a request already.
    pub(crate) fn enable_notification(&mut self) -> bool {
        self.queue.enable_notification(&**self.memory).unwrap_or(false) || !self.log.recovered.is_empty()
    }

    /// Tells the guest to kick when it adds an entry to those that were seen. Returns `true` if it has added one already.
    pub(crate) fn wait_for_more(&mut self) -> bool {
        let next = self.queue.next_avail();
        self.queue.set_next_avail(self.filled);
        let more = self.queue.enable_notification(&**self.memory).unwrap_or(false);
        self.queue.set_next_avail(next);
        if more {
            self.disable_notification();
            self.filled = next;
        }
        more
    }

    /// Returns the index of the next entry of the available ring.
    pub(crate) fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }

    pub(crate) fn kick_fd(&self) -> i32 {
        self.eventfds.kick.fd.as_raw_fd()
    }
}

/// Addresses of the parts of a queue that each request accesses, valid as long as its memory table exists.
struct Rings {
    descriptors: DescriptorTable,
    available: *const u8,
    used: UsedPlace,
}

impl Rings {
    /// Returns the address of the index of the available ring: VIRTIO 1.3, 2.7.6.
    fn available_index(&self) -> *const u8 {
        self.available.wrapping_add(2)
    }

    /// Returns `None` if the descriptor table or a ring is not within one memory region, or not aligned.
    fn find(queue: &Queue, memory: &MemoryTable) -> Option<Self> {
        let entries = usize::from(queue.size());
        let available = memory.find(GuestAddress(queue.avail_ring()), 6 + 2 * entries)?;
        let used = memory.find(GuestAddress(queue.used_ring()), 6 + 8 * entries)?;
        let used = UsedPlace::new(used, available.wrapping_add(4 + 2 * entries))?;
        if !queue.is_valid(&**memory) {
            return None;
        }
        let descriptors = DescriptorTable::find(memory, GuestAddress(queue.desc_table()), queue.size())?;
        Some(Rings { descriptors, available, used })
    }
}
