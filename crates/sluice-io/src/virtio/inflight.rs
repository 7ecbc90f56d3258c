//! The in-flight log: the requests that a queue has taken and not returned, in memory that outlives the daemon.
//!
//! Requests complete out of order, so the rings alone do not tell a restarted daemon which requests are incomplete. The
//! log does. It has a part for each queue, in a memory file that the VMM keeps and gives to the next back end
//! (vhost-user specification, "Inflight I/O tracking", split virtqueues):
//!
//! ```text
//!      0 features u64 = 0 | version u16 = 1 | desc_num u16 | last_batch_head u16 | used_idx u16
//!     16 desc[0]: inflight u8, padding[5], next u16, counter u64
//!     32 desc[1]: ...
//! ```
//!
//! Example: requests 0 and 5 were taken (counters 7 and 8), 5 was returned, and the daemon was killed before it could
//! record that. It had set `last_batch_head = 5`. The ring's index is 12 and `used_idx` is 11, so one request, 5, is
//! removed from the log, and 0 is done again.
//!
//! The VMM can write there too, so nothing that is read from it is trusted: an invalid head ends a walk, a walk has at
//! most as many steps as the queue has entries, and counters are only compared.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;

use crate::vhost_user::mapping::{Mapping, MappingError, MappingOwner};

/// Maximum number of queues of a log.
const QUEUES_MAX: u16 = 256;
/// Maximum number of entries of each queue.
const ENTRIES_MAX: u16 = 32768;
/// Length of the header of a queue's part, in bytes.
const HEADER_LEN: usize = 16;
/// Length of an entry, in bytes.
const ENTRY_LEN: usize = 16;
/// The part of each queue starts at a multiple of this.
const ALIGNMENT: usize = 64;
/// Version of the format.
const VERSION: u16 = 1;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The number of queues or entries is out of range.
    #[error(
        "{queues} queues of {entries} entries are out of range; use 1 to {QUEUES_MAX} queues of 1 to {ENTRIES_MAX} entries"
    )]
    Shape {
        queues: u16,
        /// Entries of each queue.
        entries: u16,
    },
    /// The file is too small for the queues.
    #[error("A log of {len} bytes is too small; its queues need {needed} bytes")]
    Small {
        /// Size of the file in bytes.
        len: u64,
        /// Size that the queues need.
        needed: u64,
    },
    /// The log has an unknown format.
    #[error("Queue {queue}: unknown log format (version {version}, {entries} entries)")]
    UnknownFormat {
        queue: u16,
        /// Version in the log.
        version: u16,
        /// Number of entries in the log.
        entries: u16,
    },
    /// The file cannot be mapped.
    #[error("In-flight log: {0}")]
    Mapping(#[from] MappingError),
    /// The file cannot be created.
    #[error("Cannot create an in-flight log")]
    Io(#[from] io::Error),
}

/// The log of a device: a part for each queue.
#[derive(Debug)]
pub struct Log {
    mapping: Arc<Mapping>,
    queues: u16,
    entries: u16,
}

impl Log {
    /// Creates an empty log, and the file that the VMM keeps (`GET_INFLIGHT_FD`). The file cannot be shortened.
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

    /// Opens a log that the VMM has kept (`SET_INFLIGHT_FD`). Its contents stay, unless it has never been written.
    pub fn open(wanted: &VhostUserInflight, file: impl AsFd, owner: &MappingOwner) -> Result<Log, LogError> {
        let (queues, entries) = (wanted.num_queues, wanted.queue_size);
        let needed = len_of(queues, entries)?;
        if wanted.mmap_size < needed {
            return Err(LogError::Small { len: wanted.mmap_size, needed });
        }
        let mapping = Arc::new(Mapping::new(file, wanted.mmap_offset, needed, owner)?);
        let log = Log { mapping, queues, entries };
        for queue in 0..queues {
            log.part(queue).prepare().map_err(|(version, entries)| LogError::UnknownFormat {
                queue,
                version,
                entries,
            })?;
        }
        Ok(log)
    }

    /// Returns the part of a queue of `size` entries; `None` if there is no such part or it has too few entries. At
    /// most one `QueueLog` of a queue may be in use.
    #[must_use]
    pub fn queue(&self, index: u16, size: u16) -> Option<QueueLog> {
        (index < self.queues && size <= self.entries).then(|| self.part(index))
    }

    /// Removes all requests, because the device has been reset.
    pub fn clear(&self) {
        (0..self.queues).for_each(|queue| self.part(queue).clear());
    }

    /// Returns how often a page of the file was missing.
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

/// Returns the length of one queue's part, in bytes.
fn part_len(entries: u16) -> usize {
    (HEADER_LEN + ENTRY_LEN * usize::from(entries)).next_multiple_of(ALIGNMENT)
}

/// Returns the length of a log, in bytes.
fn len_of(queues: u16, entries: u16) -> Result<u64, LogError> {
    if !(1..=QUEUES_MAX).contains(&queues) || !(1..=ENTRIES_MAX).contains(&entries) {
        return Err(LogError::Shape { queues, entries });
    }
    Ok(u64::from(queues) * part_len(entries) as u64)
}

/// The part of one queue. [`QueueLog::recover`] must be called first, each time that the queue starts.
///
/// For each request: [`QueueLog::taken`]; later [`QueueLog::returning`], then the used ring's index is advanced, then
/// [`QueueLog::returned`]. Alternatively, requests that were taken last are put back with [`QueueLog::put_back`], the
/// last one first. Several requests may be returned together if one store of the index publishes all of them: first all
/// calls of `returning`, then the store, then all calls of `returned`.
#[derive(Debug)]
pub struct QueueLog {
    mapping: Arc<Mapping>,
    /// Offset of the part in the mapping.
    base: usize,
    entries: u16,
    /// Counter of the next request.
    counter: u64,
    /// Number of requests that are being returned.
    batch: u16,
    /// In tests: stores until the simulated death of the daemon. Later stores do not happen.
    #[cfg(test)]
    stores_left: u64,
}

impl QueueLog {
    /// Finishes the batch that was being returned when the previous daemon ended; `used` is the ring's index. Returns
    /// the heads of requests that were taken and not returned, oldest first.
    pub fn recover(&mut self, used: u16) -> Vec<u16> {
        // The last batch is removed from the log as far as the ring's index is ahead. The rest of the list consists of
        // older batches, whose heads may have been taken again.
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
        self.finish_batch(used);
        let in_flight = (0..self.entries).filter(|&head| self.inflight(head).load(Ordering::Relaxed) != 0);
        let mut found: Vec<_> = in_flight.map(|head| (self.order(head).load(Ordering::Relaxed), head)).collect();
        found.sort_unstable();
        // The counters start at 0 again, so that no counter grows without bound, however large it was. At each step the
        // first k requests stay before all others, because the k-th of different numbers is at least k.
        for (counter, &(_, head)) in found.iter().enumerate() {
            self.store64(head, counter as u64);
        }
        self.counter = found.len() as u64;
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// Records that a request was taken from the ring.
    pub fn taken(&mut self, head: u16) {
        if head >= self.entries {
            return;
        }
        self.store64(head, self.counter);
        self.counter += 1;
        self.store8(head, 1);
    }

    /// Records that the request that was taken last is in the available ring again.
    pub fn put_back(&mut self, head: u16) {
        if head < self.entries {
            self.store8(head, 0);
        }
    }

    /// Records that a request is about to be put into the used ring.
    pub fn returning(&mut self, head: u16) {
        if head >= self.entries {
            return;
        }
        let last = self.last_batch_head().load(Ordering::Relaxed);
        self.store16(Word::Next(head), last);
        self.store16(Word::LastBatchHead, head);
        self.batch += 1;
    }

    /// Records that it was put there; `used` is the ring's index after it.
    pub fn returned(&mut self, head: u16, used: u16) {
        if head >= self.entries {
            return;
        }
        self.store8(head, 0);
        self.batch = self.batch.saturating_sub(1);
        // Only when all requests of a batch are removed. Until then the ring's index must be ahead of the log's.
        if self.batch == 0 {
            self.finish_batch(used);
        }
    }

    fn finish_batch(&mut self, used: u16) {
        self.store16(Word::UsedIndex, used);
    }

    /// Checks the format. An empty part gets our header.
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

    // All stores are made in program order. The daemon may be killed between any two, and the next daemon must find the
    // earlier ones and not the later ones. So the compiler must not reorder them, not even with the ring's index, which
    // other code stores. The processor shows them in order to any observer after the daemon's death.

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
        // SAFETY: within the mapping, as `at` checks; a byte has no alignment, and all accesses to it are atomic.
        unsafe { &*self.at(self.entry(head), 1).cast() }
    }

    fn next(&self, head: u16) -> &AtomicU16 {
        self.word(self.entry(head) + 6)
    }

    fn order(&self, head: u16) -> &AtomicU64 {
        // SAFETY: within the mapping, as `at` checks; at a multiple of 8, because parts and entries start at multiples
        // of 16. All accesses to it are atomic.
        unsafe { &*self.at(self.entry(head) + 8, 8).cast() }
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: within the mapping, as `at` checks, and at an even offset. All accesses to it are atomic.
        unsafe { &*self.at(at, 2).cast() }
    }

    fn entry(&self, head: u16) -> usize {
        HEADER_LEN + ENTRY_LEN * usize::from(head)
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let at = self.base + offset;
        assert!(at + len <= self.mapping.len_bytes(), "heads are compared with the number of entries, which has room");
        // SAFETY: within the mapping.
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
        let fault_event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        MappingOwner { fault_event: Some(Arc::new(fault_event)), quota: None }
    }

    fn log(queues: u16, entries: u16) -> Log {
        Log::create(queues, entries, &owner()).unwrap().0
    }

    #[test]
    fn requests_taken_and_not_returned_are_found_oldest_first() {
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
        assert_eq!(log.queue(0, 8).unwrap().recover(1), [3, 0, 1, 5], "the result is the same again");
    }

    /// A log of versions 0.1.0 and 0.2.0: the daemon was killed while it returned request 2.
    #[test]
    fn a_log_of_each_released_version_is_read() {
        let mut kept = [0u8; 128];
        kept[8..16].copy_from_slice(&[1, 0, 4, 0, 2, 0, 9, 0]);
        for (head, counter) in [(0, 5), (2, 6), (3, 4)] {
            let entry = HEADER_LEN + head * ENTRY_LEN;
            (kept[entry], kept[entry + 8]) = (1, counter);
        }
        let (_, file, len) = Log::create(1, 4, &owner()).unwrap();
        rustix::io::pwrite(&file, &kept, 0).unwrap();
        let log = Log::open(&VhostUserInflight::new(len, 0, 1, 4), &file, &owner()).unwrap();
        assert_eq!(log.queue(0, 4).unwrap().recover(10), [3, 0]);
    }

    #[test]
    fn head_0_is_not_lost_when_a_used_ring_gets_a_new_log() {
        let log = log(1, 4);
        let mut queue = log.queue(0, 4).unwrap();
        assert_eq!(queue.recover(77), NONE, "the ring was used without a log before");
        queue.taken(0);
        queue.taken(2);
        assert_eq!(log.queue(0, 4).unwrap().recover(77), [0, 2]);
    }

    #[test]
    fn a_part_has_the_layout_of_the_specification() {
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
    fn a_kept_log_is_opened_again_and_one_of_another_format_refused() {
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
        assert!(matches!(open(len, 4096, 2, 16), Err(LogError::Mapping(_))), "past the end of the file");
        assert!(matches!(open(len, 0, 0, 16), Err(LogError::Shape { .. })));
        assert!(matches!(open(len, 0, 1, 0), Err(LogError::Shape { .. })));
        assert!(matches!(open(u64::MAX, 0, u16::MAX, u16::MAX), Err(LogError::Shape { .. })));
        let other = open(len, 0, 1, 8);
        assert!(matches!(other, Err(LogError::UnknownFormat { queue: 0, version: 1, entries: 16 })), "{other:?}");
        rustix::io::pwrite(&file, &[2, 0], 8).unwrap();
        assert!(matches!(open(len, 0, 2, 16), Err(LogError::UnknownFormat { version: 2, .. })));
    }

    #[test]
    fn a_reset_removes_all_requests() {
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

    /// An action on a queue.
    #[derive(Debug, Clone)]
    enum Step {
        /// Takes the n-th of the free heads.
        Take(usize),
        /// Returns a number of requests by one store of the index, starting with the n-th of those in flight.
        Return(usize, usize),
        /// Puts back the request that was taken last.
        PutBack,
    }

    const ENTRIES: u16 = 6;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let take = (0..6usize).prop_map(Step::Take);
        let give_back = (0..6usize, 1..4usize).prop_map(|(first, count)| Step::Return(first, count));
        prop::collection::vec(prop_oneof![6 => take, 4 => give_back, 1 => Just(Step::PutBack)], 1..40)
    }

    /// Runs `steps` until `stores` stores have been made, including those of the ring's index. Returns the requests
    /// that are really in flight, oldest first, the ring's index, and whether the daemon died.
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
        fn a_daemon_killed_at_any_store_loses_and_repeats_no_request(steps in steps(), start in any::<u16>()) {
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
        fn a_daemon_killed_during_recovery_changes_nothing(steps in steps(), stores in 0..200u64, recovering in 0..20u64) {
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
        fn any_bytes_are_recovered_from(bytes in prop::collection::vec(any::<u8>(), 144), used in any::<u16>()) {
            let (log, file, _) = Log::create(1, 8, &owner()).unwrap();
            rustix::io::pwrite(&file, &bytes, 0).unwrap();
            let mut queue = log.queue(0, 8).unwrap();
            let found = queue.recover(used);
            prop_assert!(found.iter().all(|&head| head < 8));
            prop_assert_eq!(queue.recover(used), found, "a second recovery finds the same");
            for head in [0, 7, 8, u16::MAX] {
                queue.taken(head);
                queue.returning(head);
                queue.returned(head, used);
            }
        }
    }
}
