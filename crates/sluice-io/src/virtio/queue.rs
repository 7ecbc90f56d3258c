//! One virtqueue at a device thread.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot::Sender;
use virtio_queue::{Queue, QueueT as _};
use vm_memory::GuestAddress;

use crate::backend::request::RequestList;
use crate::device::vm::Intake;
use crate::slab::ids;
use crate::vhost_user::memory::Memory;
use crate::vhost_user::shared;
use crate::virtio::chain::DescriptorTable;
use crate::virtio::data::MemoryTable;
use crate::virtio::inflight::QueueLog;
use crate::virtio::used_ring::{BATCH_MAX, UsedPlace, UsedRing};

ids! {
    /// A session of a VMM.
    SessionId;
}

/// A virtqueue, ready to run. The size is a power of two, at most 1024; the rings lie in the memory that comes with it; the
/// descriptors are eventfds that do not block.
#[derive(Debug)]
pub struct QueueSpec {
    /// Its number.
    pub index: u16,
    /// Entries.
    pub size: u16,
    /// Where its descriptor table is, as the guest counts.
    pub descriptors: GuestAddress,
    /// Its available ring.
    pub available: GuestAddress,
    /// Its used ring.
    pub used: GuestAddress,
    /// The next entry of the available ring to be taken, as the VMM says; with a log, the log knows better.
    pub next_available: u16,
    /// EVENT_IDX was negotiated.
    pub event_index: bool,
    /// Rung by the guest.
    pub kick: OwnedFd,
    /// Rung for the guest; absent: it polls.
    pub call: Option<Arc<OwnedFd>>,
    /// Rung for the VMM when the guest has broken the queue.
    pub error: Option<Arc<OwnedFd>>,
    /// If the VMM keeps one.
    pub log: Option<QueueLog>,
}

/// A request that was taken from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The head of its descriptor chain.
    pub(crate) head: u16,
    /// Its position in the available ring, counted as the ring's index is; none if a daemon before us had taken it.
    pub(crate) place: Option<u16>,
}

impl Taken {
    /// As the cookie of a request.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.head) | self.place.map_or(0, |place| 1 << 32 | u64::from(place) << 16)
    }

    pub(crate) fn unpack(cookie: u64) -> Self {
        let place = (cookie >> 32 == 1).then_some((cookie >> 16) as u16);
        Taken { head: cookie as u16, place }
    }
}

/// How far the life of a queue has come.
pub(crate) enum State {
    Running,
    /// The guest has broken it; it takes nothing more until it is started anew.
    Broken,
    /// The VMM waits for its end.
    Stopping(Sender<u16>),
    /// Its VMM has gone: guest memory is not written any more. It may have waited for the end of the queue.
    Closed(Option<Sender<u16>>),
}

impl State {
    /// Whether the queue ends when nothing refers to it any more.
    fn ends(&self) -> bool {
        matches!(self, State::Stopping(_) | State::Closed(_))
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, State::Closed(_))
    }

    pub(crate) fn break_down(&mut self) {
        if matches!(self, State::Running) {
            *self = State::Broken;
        }
    }

    pub(crate) fn close(&mut self) {
        *self = match std::mem::replace(self, State::Closed(None)) {
            State::Stopping(reply) | State::Closed(Some(reply)) => State::Closed(Some(reply)),
            State::Running | State::Broken | State::Closed(None) => State::Closed(None),
        };
    }

    /// The VMM that waits for the end of the queue.
    pub(crate) fn into_reply(self) -> Option<Sender<u16>> {
        match self {
            State::Stopping(reply) => Some(reply),
            State::Closed(reply) => reply,
            State::Running | State::Broken => None,
        }
    }
}

/// An interrupt on its way in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    Idle,
    Raising,
    /// Another one is due when this one has been raised.
    RaisingAgain,
}

/// Whether a guest is interrupted at the end of the iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    No,
    /// Something was returned: if the guest asks to be told.
    IfWanted,
    /// Also if it does not ask.
    Always,
}

/// A queue of a guest.
pub(crate) struct VirtQueue {
    pub(crate) session: SessionId,
    pub(crate) index: u16,
    queue: Queue,
    /// The available ring was filled up to here when it was looked at last. The guest writes that index, on another
    /// processor, so it is read once for all that it covers.
    filled: u16,
    pub(crate) memory: Rc<MemoryTable>,
    rings: Rings,
    used: UsedRing,
    /// The heads of chains that were returned and that the guest cannot see yet.
    returned: Vec<u16>,
    pub(crate) kick: OwnedFd,
    /// Where the count of kicks is read to.
    pub(crate) kicks: Box<u64>,
    /// The next kick wakes us.
    pub(crate) listening: bool,
    pub(crate) call: Option<Arc<OwnedFd>>,
    pub(crate) error: Option<Arc<OwnedFd>>,
    pub(crate) interrupt: Interrupt,
    /// It was raised with this, which has been replaced meanwhile.
    pub(crate) old_call: Option<Arc<OwnedFd>>,
    /// Whether the guest is interrupted at the end of the iteration.
    pub(crate) signal: Signal,
    log: Option<QueueLog>,
    /// Taken by a daemon before us, and not returned.
    recovered: VecDeque<u16>,
    pub(crate) enabled: bool,
    pub(crate) state: State,
    pub(crate) intake: Intake,
    /// It is looked at in every iteration, and the guest need not kick.
    pub(crate) polled: bool,
    /// Operations of the ring that refer to it.
    pub(crate) operations: u32,
    /// Requests taken and not returned.
    pub(crate) requests: RequestList,
}

impl VirtQueue {
    /// A queue as the control plane found it right; `None`: its rings do not lie in the memory.
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
            returned: Vec::with_capacity(BATCH_MAX.into()),
            kick: spec.kick,
            kicks: Box::new(0),
            listening: false,
            call: spec.call,
            error: spec.error,
            interrupt: Interrupt::Idle,
            old_call: None,
            // Who served the queue before us may have returned requests and died, or left, before it could say so, and of
            // those the guest's wish to be told is behind us.
            signal: Signal::Always,
            log,
            recovered,
            enabled: true,
            state: State::Running,
            intake: Intake::Open,
            polled: false,
            operations: 0,
            requests: RequestList::default(),
        })
    }

    /// Requests that a daemon before us took and did not return, as far as they are not taken again yet.
    pub(crate) fn recovered(&self) -> u16 {
        self.recovered.len() as u16
    }

    /// Entries.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Goes on in another memory table; `false`: its rings do not lie in it.
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

    /// Whether requests are taken from it.
    pub(crate) fn takes(&self) -> bool {
        self.enabled && matches!(self.state, State::Running) && self.intake == Intake::Open
    }

    /// Whether there may be something to be taken.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.takes() && self.has_next().unwrap_or(true)
    }

    /// Whether nothing refers to it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state.ends() && self.requests.is_empty() && self.operations == 0
    }

    /// Whether there is a request to be taken. An error: the guest's index makes no sense.
    pub(crate) fn has_next(&mut self) -> Result<bool, virtio_queue::Error> {
        if !self.recovered.is_empty() || self.filled != self.queue.next_avail() {
            return Ok(true);
        }
        let filled = self.queue.avail_idx(&**self.memory, Ordering::Acquire)?.0;
        if filled.wrapping_sub(self.queue.next_avail()) > self.queue.size() {
            return Err(virtio_queue::Error::InvalidAvailRingIndex);
        }
        self.filled = filled;
        Ok(filled != self.queue.next_avail())
    }

    /// Takes the next request.
    pub(crate) fn take(&mut self) -> Result<Option<Taken>, virtio_queue::Error> {
        if let Some(head) = self.recovered.pop_front() {
            return Ok(Some(Taken { head, place: None }));
        }
        if !self.has_next()? {
            return Ok(None);
        }
        let next = self.queue.next_avail();
        // VIRTIO 1.3, 2.7.6: flags and index, then the heads.
        let place = self.rings.available.wrapping_add(4 + 2 * usize::from(next % self.queue.size()));
        // SAFETY: the entry lies in the available ring, which lies in the memory table.
        let head = u16::from_le_bytes(unsafe { shared::read(place) });
        self.queue.set_next_avail(next.wrapping_add(1));
        if head < self.queue.size()
            && let Some(log) = &mut self.log
        {
            log.taken(head);
        }
        Ok(Some(Taken { head, place: Some(next) }))
    }

    /// The place of what was taken last from the available ring.
    pub(crate) fn last_taken(&self) -> u16 {
        self.queue.next_avail().wrapping_sub(1)
    }

    /// Whether the queue stops, and what was taken from `place` of the available ring was taken last.
    pub(crate) fn gives_back(&self, place: u16) -> bool {
        matches!(self.state, State::Stopping(_)) && self.last_taken() == place
    }

    /// What was taken last was not done, and is in the ring again.
    pub(crate) fn put_back(&mut self, head: u16) {
        self.queue.set_next_avail(self.last_taken());
        if let Some(log) = &mut self.log {
            log.put_back(head);
        }
    }

    /// Returns a request to the guest, with how many bytes were written for it. The guest can see it after
    /// [`VirtQueue::publish`] at the latest.
    pub(crate) fn give_back(&mut self, head: u16, written: u32) {
        if let Some(log) = &mut self.log {
            log.returning(head);
            self.returned.push(head);
        }
        // SAFETY: the ring lies in the memory table of the queue.
        unsafe { self.used.put(self.rings.used, head, written) };
        self.signal = self.signal.max(Signal::IfWanted);
        if self.used.unpublished() >= BATCH_MAX {
            self.publish();
        }
    }

    /// Lets the guest see all requests that were returned.
    pub(crate) fn publish(&mut self) {
        if self.used.unpublished() == 0 || self.state.is_closed() {
            return;
        }
        // SAFETY: as in `give_back`.
        unsafe { self.used.publish(self.rings.used) };
        if let Some(log) = &mut self.log {
            self.returned.drain(..).for_each(|head| log.returned(head, self.used.next()));
        }
    }

    /// Whether the guest is to be interrupted for what was returned since this was called last.
    pub(crate) fn take_signal(&mut self) -> bool {
        match std::mem::replace(&mut self.signal, Signal::No) {
            Signal::No => false,
            signal => {
                // SAFETY: as in `give_back`.
                let wanted = unsafe { self.used.wants_interrupt(self.rings.used) };
                wanted || signal == Signal::Always
            }
        }
    }

    /// The guest need not kick.
    pub(crate) fn disable_notification(&mut self) {
        let _ = self.queue.disable_notification(&**self.memory);
    }

    /// The guest shall kick; `true`: there is something already.
    pub(crate) fn enable_notification(&mut self) -> bool {
        self.queue.enable_notification(&**self.memory).unwrap_or(false)
    }

    /// The next entry of the available ring to be taken.
    pub(crate) fn next_available(&self) -> u16 {
        self.queue.next_avail().wrapping_sub(self.recovered())
    }

    pub(crate) fn kick_fd(&self) -> i32 {
        self.kick.as_raw_fd()
    }
}

/// Where the parts of a queue that are read for each request are, for as long as its memory table is.
struct Rings {
    descriptors: DescriptorTable,
    available: *const u8,
    used: UsedPlace,
}

impl Rings {
    /// `None`: the descriptor table or a ring does not lie in one region of the memory, or is not aligned there.
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
