//! One thread that answers the queues of many sockets: the bound of what one thread can do with many rings.
//!
//! It does what any device must do with a request: it reads the available ring, the descriptors and the header, and writes the
//! status byte and the used ring. It has no scheduler, no statistics, no limits and no disk. As in the daemon, the
//! thread polls all queues, looks for the requests of eight queues at a time and publishes up to eight used entries together.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vhost_user_backend::{VringRwLock, VringT};
use virtio_queue::QueueT;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemoryMmap};

use crate::Memory;

/// Number of queues whose next requests are loaded together.
const TOGETHER: usize = 8;
/// Maximum number of used entries that are published together.
const BATCH_MAX: u16 = 8;
/// Maximum number of descriptors in a chain.
const CHAIN_MAX: usize = 128;
const DESCRIPTOR_LEN: u64 = 16;
/// Time without requests after which the thread looks only once per [`PAUSE`], so that it takes no CPU from the next server.
const SPIN_MAX: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(1);

/// What the thread is to do next.
#[derive(Default)]
struct Inbox {
    started: Vec<Ring>,
    /// Sessions whose front end has disconnected.
    ended: Vec<u64>,
}

/// The handle of the thread.
#[derive(Default)]
pub(crate) struct Echo {
    inbox: Mutex<Inbox>,
    has_mail: AtomicBool,
    mailed: Condvar,
}

impl Echo {
    /// Starts the thread, which runs until the process ends.
    pub(crate) fn start() -> Arc<Echo> {
        let echo = Arc::new(Echo::default());
        let own = Arc::clone(&echo);
        std::thread::spawn(move || own.run());
        echo
    }

    /// Answers a queue from now on.
    pub(crate) fn add(&self, session: u64, vring: &VringRwLock<Memory>, memory: &Memory) {
        let ring = Ring::new(session, vring, memory);
        self.mail(|inbox| inbox.started.push(ring));
    }

    /// Forgets the queues of a session.
    pub(crate) fn end(&self, session: u64) {
        self.mail(|inbox| inbox.ended.push(session));
    }

    fn mail(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        self.has_mail.store(true, Ordering::Release);
        self.mailed.notify_one();
    }

    fn run(&self) {
        let (mut rings, mut last_found) = (Vec::new(), Instant::now());
        loop {
            if rings.is_empty() || self.has_mail.load(Ordering::Acquire) {
                self.read_mail(&mut rings);
            }
            let found = rings.chunks_mut(TOGETHER).fold(false, |found, group| answer_all(group) | found);
            rings.retain(|ring: &Ring| !ring.is_broken);
            if found {
                last_found = Instant::now();
            } else if last_found.elapsed() < SPIN_MAX {
                spin_loop();
            } else {
                // An idle server looks again later; it is only a baseline for benchmarks.
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Takes all messages. Sleeps until there is a queue.
    fn read_mail(&self, rings: &mut Vec<Ring>) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.has_mail.store(false, Ordering::Release);
            rings.append(&mut inbox.started);
            let ended = std::mem::take(&mut inbox.ended);
            rings.retain(|ring| !ended.contains(&ring.session));
            if !rings.is_empty() {
                return;
            }
            inbox = self.mailed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Answers all requests of some queues. Returns whether there were any.
fn answer_all(group: &mut [Ring]) -> bool {
    group.iter_mut().for_each(Ring::find);
    // These loads do not depend on each other, so the CPU waits for the cache lines of all queues at once.
    group.iter().for_each(Ring::load_ahead);
    let mut found = false;
    for ring in group.iter_mut().filter(|ring| ring.filled != ring.taken) {
        found = true;
        ring.is_broken = ring.answer().is_none();
    }
    found
}

/// A queue. Each request is returned as soon as it is taken, so one index counts both.
struct Ring {
    session: u64,
    memory: Arc<GuestMemoryMmap<()>>,
    vring: VringRwLock<Memory>,
    size: u16,
    event_index: bool,
    descriptors: GuestAddress,
    available: GuestAddress,
    used: GuestAddress,
    /// Index after the last request that was taken.
    taken: u16,
    /// Index after the last request that was published as used.
    published: u16,
    /// `published` when the front end's wish for an interrupt was last read.
    asked: u16,
    /// Index after the last available request.
    filled: u16,
    /// Whether its addresses are outside the memory.
    is_broken: bool,
}

impl Ring {
    fn new(session: u64, vring: &VringRwLock<Memory>, memory: &Memory) -> Ring {
        let state = vring.get_ref();
        let queue = state.get_queue();
        Ring {
            session,
            memory: memory.memory().into_inner(),
            size: queue.size(),
            event_index: queue.event_idx_enabled(),
            descriptors: GuestAddress(queue.desc_table()),
            available: GuestAddress(queue.avail_ring()),
            used: GuestAddress(queue.used_ring()),
            taken: queue.next_avail(),
            published: queue.next_avail(),
            asked: queue.next_avail(),
            filled: queue.next_avail(),
            is_broken: false,
            vring: vring.clone(),
        }
    }

    fn find(&mut self) {
        let index = self.memory.load::<u16>(self.available.unchecked_add(2), Ordering::Acquire);
        self.filled = index.map_or(self.taken, u16::from_le);
    }

    fn head(&self, position: u16) -> Option<u16> {
        let place = self.available.unchecked_add(4 + 2 * u64::from(position % self.size));
        Some(u16::from_le(self.memory.load(place, Ordering::Relaxed).ok()?))
    }

    fn descriptor(&self, table: GuestAddress, index: u16) -> Option<Descriptor> {
        self.memory.read_obj(table.unchecked_add(DESCRIPTOR_LEN * u64::from(index))).ok()
    }

    fn load_ahead(&self) {
        let count = self.filled.wrapping_sub(self.taken).min(BATCH_MAX);
        for position in (0..count).map(|at| self.taken.wrapping_add(at)) {
            let first = self.head(position).and_then(|head| self.descriptor(self.descriptors, head));
            let Some(first) = first else { return };
            black_box(self.memory.load::<u64>(first.addr(), Ordering::Relaxed).ok());
        }
    }

    /// Answers the requests that were found. Returns `None` if an address is outside the memory.
    fn answer(&mut self) -> Option<()> {
        while self.taken != self.filled {
            let head = self.head(self.taken)?;
            let written = self.complete(head)?;
            let place = self.used.unchecked_add(4 + 8 * u64::from(self.taken % self.size));
            let entry = u64::from(written) << 32 | u64::from(head);
            self.memory.write_obj(entry.to_le(), place).ok()?;
            self.taken = self.taken.wrapping_add(1);
            if self.taken.wrapping_sub(self.published) == BATCH_MAX {
                self.publish()?;
            }
        }
        self.publish()?;
        if self.wants_interrupt()? {
            self.vring.signal_used_queue().ok()?;
        }
        Some(())
    }

    /// Completes the request of a chain. Returns the number of bytes that it has for the front end.
    fn complete(&self, head: u16) -> Option<u32> {
        let (mut table, mut index, mut written) = (self.descriptors, head, 0);
        let mut has_header = false;
        for _ in 0..CHAIN_MAX {
            let descriptor = self.descriptor(table, index)?;
            if descriptor.refers_to_indirect_table() {
                (table, index) = (descriptor.addr(), 0);
                continue;
            }
            if !has_header {
                has_header = true;
                black_box(self.memory.read_obj::<[u8; 16]>(descriptor.addr()).ok()?);
            }
            if descriptor.is_write_only() {
                written += descriptor.len();
            }
            if !descriptor.has_next() {
                let last = u64::from(descriptor.len().checked_sub(1)?);
                self.memory.write_obj(0u8, descriptor.addr().checked_add(last)?).ok()?;
                return Some(written);
            }
            index = descriptor.next();
        }
        None
    }

    fn publish(&mut self) -> Option<()> {
        self.published = self.taken;
        self.memory.store(self.taken.to_le(), self.used.unchecked_add(2), Ordering::Release).ok()
    }

    /// VIRTIO 1.3, 2.7.10. A front end without an event index is always interrupted.
    fn wants_interrupt(&mut self) -> Option<bool> {
        let asked = std::mem::replace(&mut self.asked, self.published);
        if !self.event_index {
            return Some(true);
        }
        fence(Ordering::SeqCst);
        let place = self.available.unchecked_add(4 + 2 * u64::from(self.size));
        let event = u16::from_le(self.memory.load(place, Ordering::Relaxed).ok()?);
        Some(self.published.wrapping_sub(event).wrapping_sub(1) < self.published.wrapping_sub(asked))
    }
}
