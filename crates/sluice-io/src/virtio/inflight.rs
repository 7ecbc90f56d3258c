//! The in-flight log: which requests a queue has taken and not returned, in memory that outlives the daemon.
//!
//! A scheduler completes out of order, so the rings alone do not tell a restarted daemon what was left undone. The log does:
//! a part for each queue, in a file in memory that the VMM keeps and gives to whoever comes next (vhost-user
//! specification, "Inflight I/O tracking", split virtqueues):
//!
//! ```text
//!  0 features u64 = 0 | version u16 = 1 | desc_num u16 | last_batch_head u16 | used_idx u16
//! 16 desc[0]: inflight u8, padding[5], next u16, counter u64
//! 32 desc[1]: ...
//! ```
//!
//! Example: requests 0 and 5 were taken (counters 7 and 8), 5 was answered, and the daemon was killed before it could note
//! that. It had set `last_batch_head = 5`, the ring's index says 12 and `used_idx` 11: so one request, 5, is struck out, and
//! 0 is done again.
//!
//! The VMM can write there too, so nothing read from it is believed: heads beyond the queue end a walk, a walk has as many
//! steps as the queue has entries, and counters are only compared.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;

use crate::vhost_user::mapping::{Mapping, MappingError, MappingOwner};

/// Queues that a log may have.
const QUEUES_MAX: u16 = 256;
/// Entries that each of them may have.
const ENTRIES_MAX: u16 = 32768;
/// Bytes before the entries of a queue.
const HEADER_LEN: usize = 16;
/// Bytes of one entry.
const ENTRY_LEN: usize = 16;
/// The part of each queue begins at a multiple of this.
const ALIGNMENT: usize = 64;
/// The version of the format.
const VERSION: u16 = 1;

/// A log that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// So many queues or entries there cannot be.
    #[error(
        "{queues} queues of {entries} entries are out of range; use 1 to {QUEUES_MAX} queues of 1 to {ENTRIES_MAX} entries"
    )]
    Shape {
        /// Queues.
        queues: u16,
        /// Entries of each.
        entries: u16,
    },
    /// It has no room for its queues.
    #[error("A log of {len} bytes is too small; its queues need {needed} bytes")]
    Small {
        /// Its size in bytes.
        len: u64,
        /// What they take.
        needed: u64,
    },
    /// Written by somebody who means something else by it.
    #[error("Queue {queue}: unknown log format (version {version}, {entries} entries)")]
    Foreign {
        /// Which queue.
        queue: u16,
        /// As it says.
        version: u16,
        /// As it says.
        entries: u16,
    },
    /// It cannot be mapped.
    #[error("In-flight log: {0}")]
    Mapping(#[from] MappingError),
    /// It cannot be made.
    #[error("Cannot create an in-flight log")]
    IoRequest(#[from] io::Error),
}

/// The log of a device: a part for each queue.
#[derive(Debug)]
pub struct Log {
    mapping: Arc<Mapping>,
    queues: u16,
    entries: u16,
}

impl Log {
    /// A new one, empty, and the file that the VMM keeps (`GET_INFLIGHT_FD`). The file cannot be shortened.
    pub fn create(queues: u16, entries: u16, owner: &MappingOwner) -> Result<(Log, OwnedFd, u64), LogError> {
        let len = len_of(queues, entries)?;
        let file =
            memfd_create("inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(io::Error::from)?;
        ftruncate(&file, len).map_err(io::Error::from)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io::Error::from)?;
        let log = Log::open(&VhostUserInflight::new(len, 0, queues, entries), &file, owner)?;
        Ok((log, file, len))
    }

    /// One that the VMM has kept (`SET_INFLIGHT_FD`). What it says stays, unless it has never been written.
    pub fn open(wanted: &VhostUserInflight, file: impl AsFd, owner: &MappingOwner) -> Result<Log, LogError> {
        let (queues, entries) = (wanted.num_queues, wanted.queue_size);
        let needed = len_of(queues, entries)?;
        if wanted.mmap_size < needed {
            return Err(LogError::Small { len: wanted.mmap_size, needed });
        }
        let mapping = Arc::new(Mapping::new(file, wanted.mmap_offset, needed, owner)?);
        let log = Log { mapping, queues, entries };
        for queue in 0..queues {
            log.part(queue).prepare().map_err(|(version, entries)| LogError::Foreign { queue, version, entries })?;
        }
        Ok(log)
    }

    /// The part of a queue of `size` entries; nothing if it has none, or too few entries. One at a time may be written to.
    #[must_use]
    pub fn queue(&self, index: u16, size: u16) -> Option<QueueLog> {
        (index < self.queues && size <= self.entries).then(|| self.part(index))
    }

    /// Strikes everything out: the device has been reset, and nothing is to be done again.
    pub fn clear(&self) {
        (0..self.queues).for_each(|queue| self.part(queue).clear());
    }

    /// How often a page of it was gone when it was touched.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.mapping.faults()
    }

    fn part(&self, index: u16) -> QueueLog {
        let base = part_len(self.entries) * usize::from(index);
        QueueLog {
            mapping: Arc::clone(&self.mapping),
            base,
            entries: self.entries,
            counter: 0,
            batch: 0,
            #[cfg(test)]
            stores_left: u64::MAX,
        }
    }
}

/// Bytes of one queue's part.
fn part_len(entries: u16) -> usize {
    (HEADER_LEN + ENTRY_LEN * usize::from(entries)).next_multiple_of(ALIGNMENT)
}

/// Bytes of a log.
fn len_of(queues: u16, entries: u16) -> Result<u64, LogError> {
    if !(1..=QUEUES_MAX).contains(&queues) || !(1..=ENTRIES_MAX).contains(&entries) {
        return Err(LogError::Shape { queues, entries });
    }
    Ok(u64::from(queues) * part_len(entries) as u64)
}

/// The part of one queue. Who writes it calls [`QueueLog::recover`] first, each time that the queue starts.
///
/// For each request: [`QueueLog::taken`]; later [`QueueLog::returning`], then the used ring's index is moved past it, then
/// [`QueueLog::returned`], or, of those taken last, the last first, [`QueueLog::put_back`]. Several requests may be returned together if one store of the index publishes all of them:
/// first all of `returning`, then the store, then all of `returned`.
#[derive(Debug)]
pub struct QueueLog {
    mapping: Arc<Mapping>,
    /// Where the part begins in the mapping.
    base: usize,
    entries: u16,
    /// Of the next request.
    counter: u64,
    /// Requests that are being returned.
    batch: u16,
    /// A test's way to die: later stores do not happen.
    #[cfg(test)]
    stores_left: u64,
}

impl QueueLog {
    /// Settles what was being returned when its writer died; `used` is the ring's index. Returns the heads of requests
    /// that were taken and not returned, oldest first.
    pub fn recover(&mut self, used: u16) -> Vec<u16> {
        // What was returned last is struck out as often as the ring's index is ahead; further on the list lie older
        // batches, whose heads may have been taken anew.
        let ahead = used.wrapping_sub(self.used_idx().load(Ordering::Relaxed)).min(self.entries);
        let mut head = self.last_batch_head().load(Ordering::Relaxed);
        for _ in 0..ahead {
            if head >= self.entries {
                break;
            }
            self.store8(head, 0);
            head = self.next(head).load(Ordering::Relaxed);
        }
        self.batch = 0;
        self.settle(used);
        let in_flight = (0..self.entries).filter(|&head| self.inflight(head).load(Ordering::Relaxed) != 0);
        let mut found: Vec<_> = in_flight.map(|head| (self.order(head).load(Ordering::Relaxed), head)).collect();
        found.sort_unstable();
        // Counted anew from 0: no counter grows without end, however large it was. The first k come before all others at
        // each step, for the k-th of different numbers is at least k.
        for (counter, &(_, head)) in found.iter().enumerate() {
            self.store64(head, counter as u64);
        }
        self.counter = found.len() as u64;
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// A request has been taken from the ring.
    pub fn taken(&mut self, head: u16) {
        if head >= self.entries {
            return;
        }
        self.store64(head, self.counter);
        self.counter += 1;
        self.store8(head, 1);
    }

    /// The request that was taken last is in the ring again, as if it had not been.
    pub fn put_back(&mut self, head: u16) {
        if head < self.entries {
            self.store8(head, 0);
        }
    }

    /// A request is about to be put into the used ring.
    pub fn returning(&mut self, head: u16) {
        if head >= self.entries {
            return;
        }
        let last = self.last_batch_head().load(Ordering::Relaxed);
        self.store16(Word::Next(head), last);
        self.store16(Word::LastBatchHead, head);
        self.batch += 1;
    }

    /// It has been put there; `used` is the ring's index behind it.
    pub fn returned(&mut self, head: u16, used: u16) {
        if head >= self.entries {
            return;
        }
        self.store8(head, 0);
        self.batch = self.batch.saturating_sub(1);
        // Not before all of a batch are struck out: until then the ring's index must be found to be ahead.
        if self.batch == 0 {
            self.settle(used);
        }
    }

    fn settle(&mut self, used: u16) {
        self.store16(Word::UsedIndex, used);
    }

    /// Makes sense of what is there; if it is nothing, it is now ours, else who wrote it must have meant the same by it.
    fn prepare(&self) -> Result<(), (u16, u16)> {
        let (version, entries) = (self.version().load(Ordering::Relaxed), self.desc_num().load(Ordering::Relaxed));
        match (version, entries) {
            (VERSION, entries) if entries == self.entries => Ok(()),
            (0, _) => {
                self.desc_num().store(self.entries, Ordering::Relaxed);
                self.version().store(VERSION, Ordering::Relaxed);
                Ok(())
            }
            foreign => Err(foreign),
        }
    }

    fn clear(&self) {
        (0..self.entries).for_each(|head| self.inflight(head).store(0, Ordering::Relaxed));
    }

    // Every store is made in the order that the code has: a kill may come between any two, and the next daemon must find
    // what was written before and not what was to come. For that the compiler must not move them, also not past the
    // ring's index, which others store; the processor shows them in order to whoever looks after our death.

    fn store8(&mut self, head: u16, value: u8) {
        if self.alive() {
            compiler_fence(Ordering::SeqCst);
            self.inflight(head).store(value, Ordering::Release);
            compiler_fence(Ordering::SeqCst);
        }
    }

    fn store16(&mut self, word: Word, value: u16) {
        if self.alive() {
            compiler_fence(Ordering::SeqCst);
            let place = match word {
                Word::Next(head) => self.next(head),
                Word::LastBatchHead => self.last_batch_head(),
                Word::UsedIndex => self.used_idx(),
            };
            place.store(value, Ordering::Release);
            compiler_fence(Ordering::SeqCst);
        }
    }

    fn store64(&mut self, head: u16, value: u64) {
        if self.alive() {
            compiler_fence(Ordering::SeqCst);
            self.order(head).store(value, Ordering::Release);
            compiler_fence(Ordering::SeqCst);
        }
    }

    #[cfg(not(test))]
    fn alive(&mut self) -> bool {
        true
    }

    #[cfg(test)]
    fn alive(&mut self) -> bool {
        let alive = self.stores_left > 0;
        self.stores_left = self.stores_left.saturating_sub(1);
        alive
    }

    fn version(&self) -> &AtomicU16 {
        self.word(8)
    }

    fn desc_num(&self) -> &AtomicU16 {
        self.word(10)
    }

    fn last_batch_head(&self) -> &AtomicU16 {
        self.word(12)
    }

    fn used_idx(&self) -> &AtomicU16 {
        self.word(14)
    }

    fn inflight(&self, head: u16) -> &AtomicU8 {
        // SAFETY: inside of the mapping, as `at` checks; a byte has no alignment, and all accesses to it are atomic.
        unsafe { &*self.at(self.entry(head), 1).cast() }
    }

    fn next(&self, head: u16) -> &AtomicU16 {
        self.word(self.entry(head) + 6)
    }

    fn order(&self, head: u16) -> &AtomicU64 {
        // SAFETY: inside of the mapping, as `at` checks; at a multiple of 8, since parts and entries begin at multiples of
        // 16. All accesses to it are atomic.
        unsafe { &*self.at(self.entry(head) + 8, 8).cast() }
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: inside of the mapping, as `at` checks, and at an even place. All accesses to it are atomic.
        unsafe { &*self.at(at, 2).cast() }
    }

    fn entry(&self, head: u16) -> usize {
        HEADER_LEN + ENTRY_LEN * usize::from(head)
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let at = self.base + offset;
        assert!(at + len <= self.mapping.len_bytes(), "heads are compared with the number of entries, which has room");
        // SAFETY: inside of the mapping.
        unsafe { self.mapping.as_ptr().add(at) }
    }
}

/// A word of 16 bits.
#[derive(Clone, Copy)]
enum Word {
    Next(u16),
    LastBatchHead,
    UsedIndex,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::fcntl_get_seals;

    use super::*;

    const NONE: [u16; 0] = [];

    fn owner() -> MappingOwner {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        MappingOwner { bell: Some(Arc::new(bell)), quota: None }
    }

    fn log(queues: u16, entries: u16) -> Log {
        Log::create(queues, entries, &owner()).unwrap().0
    }

    #[test]
    fn what_was_taken_and_not_returned_is_found_oldest_first() {
        let log = log(1, 8);
        let mut queue = log.queue(0, 8).unwrap();
        assert_eq!(queue.recover(0), NONE);
        for head in [3, 0, 5, 1] {
            queue.taken(head);
        }
        queue.returning(5);
        queue.returned(5, 1);
        queue.taken(5);
        assert_eq!(log.queue(0, 8).unwrap().recover(1), [3, 0, 1, 5]);
        assert_eq!(log.queue(0, 8).unwrap().recover(1), [3, 0, 1, 5], "and again");
    }

    #[test]
    fn head_0_is_not_lost_when_the_log_is_new_to_a_ring_that_is_not() {
        let log = log(1, 4);
        let mut queue = log.queue(0, 4).unwrap();
        assert_eq!(queue.recover(77), NONE, "the ring had run without a log");
        queue.taken(0);
        queue.taken(2);
        assert_eq!(log.queue(0, 4).unwrap().recover(77), [0, 2]);
    }

    #[test]
    fn a_part_lies_where_the_specification_says() {
        let (log, file, len) = Log::create(2, 5, &owner()).unwrap();
        assert_eq!(len, 2 * 128, "16 + 5 x 16 bytes, to the next 64");
        let mut queue = log.queue(1, 5).unwrap();
        queue.recover(0x1234);
        queue.taken(4);
        queue.taken(3);
        queue.returning(3);
        queue.returned(3, 0x1235);
        let mut bytes = [0u8; 256];
        rustix::io::pread(&file, &mut bytes, 0).unwrap();
        let (first, second) = bytes.split_at(128);
        assert_eq!(first[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 0, 0, 0]);
        assert!(first[16..].iter().all(|&byte| byte == 0));
        assert_eq!(second[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 3, 0, 0x35, 0x12]);
        assert_eq!(second[64..80], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "3: returned, counter 1");
        assert_eq!(second[80..96], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "4: in flight, counter 0");
    }

    #[test]
    fn the_file_cannot_be_shortened() {
        let (_, file, len) = Log::create(1, 128, &owner()).unwrap();
        assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::SHRINK | SealFlags::SEAL));
        assert!(ftruncate(&file, len - 1).is_err());
    }

    #[test]
    fn a_kept_log_is_opened_again_and_a_foreign_one_refused() {
        let (log, file, len) = Log::create(2, 16, &owner()).unwrap();
        let mut queue = log.queue(1, 16).unwrap();
        queue.recover(0);
        queue.taken(9);
        drop((log, queue));
        let open = |len, offset, queues, entries| {
            Log::open(&VhostUserInflight::new(len, offset, queues, entries), &file, &owner())
        };
        assert_eq!(open(len, 0, 2, 16).unwrap().queue(1, 16).unwrap().recover(0), [9]);
        assert_eq!(open(len, 0, 2, 16).unwrap().queue(1, 8).unwrap().recover(0), [9], "a smaller ring, the same log");
        assert!(open(len, 0, 2, 16).unwrap().queue(2, 16).is_none());
        assert!(open(len, 0, 2, 16).unwrap().queue(1, 17).is_none());
        assert!(matches!(open(len - 1, 0, 2, 16), Err(LogError::Small { .. })));
        assert!(matches!(open(len, 4096, 2, 16), Err(LogError::Mapping(_))), "beyond the file");
        assert!(matches!(open(len, 0, 0, 16), Err(LogError::Shape { .. })));
        assert!(matches!(open(len, 0, 1, 0), Err(LogError::Shape { .. })));
        assert!(matches!(open(u64::MAX, 0, u16::MAX, u16::MAX), Err(LogError::Shape { .. })));
        let other = open(len, 0, 1, 8);
        assert!(matches!(other, Err(LogError::Foreign { queue: 0, version: 1, entries: 16 })), "{other:?}");
        rustix::io::pwrite(&file, &[2, 0], 8).unwrap();
        assert!(matches!(open(len, 0, 2, 16), Err(LogError::Foreign { version: 2, .. })));
    }

    #[test]
    fn a_reset_strikes_everything_out() {
        let log = log(2, 8);
        for index in 0..2 {
            let mut queue = log.queue(index, 8).unwrap();
            queue.recover(0);
            queue.taken(0);
            queue.taken(7);
        }
        log.clear();
        assert_eq!(log.queue(0, 8).unwrap().recover(0), NONE);
        assert_eq!(log.queue(1, 8).unwrap().recover(0), NONE);
    }

    /// What a queue does.
    #[derive(Debug, Clone)]
    enum Step {
        /// Takes a head that is free, the n-th of them.
        Take(usize),
        /// Returns so many, beginning with the n-th of those in flight, by one store of the index.
        Return(usize, usize),
        /// Puts back what was taken last.
        PutBack,
    }

    const ENTRIES: u16 = 6;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let take = (0..6usize).prop_map(Step::Take);
        let give_back = (0..6usize, 1..4usize).prop_map(|(first, count)| Step::Return(first, count));
        prop::collection::vec(prop_oneof![6 => take, 4 => give_back, 1 => Just(Step::PutBack)], 1..40)
    }

    /// Lives through `steps` until it has made `stores` stores, that of the ring's index among them. What is in flight then
    /// in truth, oldest first, the ring's index, and whether it died.
    fn live(queue: &mut QueueLog, steps: &[Step], mut used: u16, stores: u64) -> (Vec<u16>, u16, bool) {
        let mut in_flight: Vec<u16> = Vec::new();
        queue.stores_left = stores;
        for step in steps {
            match *step {
                Step::Take(nth) => {
                    let free: Vec<u16> = (0..ENTRIES).filter(|head| !in_flight.contains(head)).collect();
                    let Some(&head) = free.get(nth % free.len().max(1)) else { continue };
                    let before = queue.stores_left;
                    queue.taken(head);
                    if before < 2 {
                        return (in_flight, used, true);
                    }
                    in_flight.push(head);
                }
                Step::PutBack => {
                    let Some(&last) = in_flight.last() else { continue };
                    let dies = queue.stores_left == 0;
                    queue.put_back(last);
                    if dies {
                        return (in_flight, used, true);
                    }
                    in_flight.pop();
                }
                Step::Return(nth, count) => {
                    if in_flight.is_empty() {
                        continue;
                    }
                    let first = nth % in_flight.len();
                    let batch: Vec<u16> = in_flight[first..].iter().copied().take(count).collect();
                    batch.iter().for_each(|&head| queue.returning(head));
                    if queue.stores_left == 0 {
                        return (in_flight, used, true);
                    }
                    queue.stores_left -= 1;
                    used = used.wrapping_add(batch.len() as u16);
                    in_flight.retain(|head| !batch.contains(head));
                    batch.iter().for_each(|&head| queue.returned(head, used));
                }
            }
        }
        (in_flight, used, queue.stores_left == 0)
    }

    proptest! {
        #[test]
        fn a_death_at_any_store_loses_nothing_and_repeats_nothing(steps in steps(), start in any::<u16>()) {
            for stores in 0.. {
                let log = log(1, ENTRIES);
                let mut queue = log.queue(0, ENTRIES).unwrap();
                prop_assert_eq!(queue.recover(start), NONE);
                let (in_flight, used, died) = live(&mut queue, &steps, start, stores);
                let mut next = log.queue(0, ENTRIES).unwrap();
                prop_assert_eq!(next.recover(used), in_flight, "after {} stores", stores);
                if !died {
                    break;
                }
            }
        }

        #[test]
        fn a_death_while_recovering_changes_nothing(steps in steps(), stores in 0..200u64, recovering in 0..20u64) {
            let log = log(1, ENTRIES);
            let mut queue = log.queue(0, ENTRIES).unwrap();
            queue.recover(0);
            let (in_flight, used, _) = live(&mut queue, &steps, 0, stores);
            let mut second = log.queue(0, ENTRIES).unwrap();
            second.stores_left = recovering;
            second.recover(used);
            prop_assert_eq!(log.queue(0, ENTRIES).unwrap().recover(used), in_flight);
        }

        #[test]
        fn any_bytes_are_settled(bytes in prop::collection::vec(any::<u8>(), 144), used in any::<u16>()) {
            let (log, file, _) = Log::create(1, 8, &owner()).unwrap();
            rustix::io::pwrite(&file, &bytes, 0).unwrap();
            let mut queue = log.queue(0, 8).unwrap();
            let found = queue.recover(used);
            prop_assert!(found.iter().all(|&head| head < 8));
            prop_assert_eq!(queue.recover(used), found, "settled once is settled");
            for head in [0, 7, 8, u16::MAX] {
                queue.taken(head);
                queue.returning(head);
                queue.returned(head, used);
            }
        }
    }
}
