//! A controller with a battery-backed write cache that destages in the order of offsets.
//!
//! A write completes when the cache has it. The cache keeps at most `DESTAGES` writes at the device, in ascending order of
//! offsets and then again from the lowest one, with adjacent blocks joined up to `JOINED` bytes. When the cache is full, writes
//! wait until the device has taken blocks. A read of a block in the cache completes from it; other reads go to the device. A flush
//! completes immediately.
//!
//! Example: 256 MiB before a disk that writes 1,200 random blocks per second. Eight threads with one write of 4 KiB each complete
//! 10,000 writes per second and thread until the cache is full, and 1,200 together from then on. So a measurement begins only
//! after [`Filled`] says that the cache has been full.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_sched::{Instant, Kind};

use super::controller::{Controller, Front};
use super::{Job, Model};

/// Maximum number of writes that the cache has at the device.
const DESTAGES: usize = 8;
/// Maximum length of adjacent blocks that are written together, in bytes.
const JOINED: u32 = 512 << 10;
/// First slot of the cache's own writes; slots of a gate, and those of a cache of reads, are below.
const OWN: u32 = 3 << 30;

/// Whether a cache has been full; remains readable when the model is in a simulation.
#[derive(Debug, Clone, Default)]
pub struct Filled(Arc<AtomicBool>);

impl Filled {
    /// Whether a write has waited for room.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A device with such a controller.
pub struct WriteCache {
    /// Of each of the cache's own writes: its length.
    front: Front<u32>,
    size: u64,
    used: u64,
    /// Blocks that are not yet at the device, by offset, with their lengths.
    dirty: BTreeMap<u64, u32>,
    /// End of the last write that was sent to the device.
    position: u64,
    waiting: VecDeque<Job>,
    filled: Filled,
}

impl WriteCache {
    /// A cache of `size` bytes before a device; requests that it completes take `latency`.
    #[must_use]
    pub fn new(device: Box<dyn Model>, size: u64, latency: Duration) -> Self {
        WriteCache {
            front: Front::new(device, latency, OWN),
            size,
            used: 0,
            dirty: BTreeMap::new(),
            position: 0,
            waiting: VecDeque::new(),
            filled: Filled::default(),
        }
    }

    /// Tells whether the cache has been full.
    #[must_use]
    pub fn filled(&self) -> Filled {
        self.filled.clone()
    }

    /// Whether the cache has room for what a write adds to the block at its offset.
    fn has_room(&self, job: &Job) -> bool {
        let known = self.dirty.get(&job.offset).copied().unwrap_or(0);
        self.used + u64::from(job.length.saturating_sub(known)) <= self.size
    }

    /// Takes a write into the cache. One of the same offset replaces the block there.
    fn take_in(&mut self, now: Instant, job: Job) {
        let length = self.dirty.get(&job.offset).map_or(job.length, |known| job.length.max(*known));
        let replaced = self.dirty.insert(job.offset, length).unwrap_or(0);
        self.used += u64::from(length - replaced);
        self.front.finish(now, job.slot);
    }

    /// Whether a block in the cache has all of a read.
    fn has(&self, job: &Job) -> bool {
        let block = self.dirty.range(..=job.offset).next_back();
        block.is_some_and(|(offset, length)| offset + u64::from(*length) >= job.offset + u64::from(job.length))
    }

    /// Sends blocks to the device while it has few of them.
    fn destage(&mut self, now: Instant) {
        while self.front.own_at_device() < DESTAGES {
            let next = self.dirty.range(self.position..).next().or_else(|| self.dirty.iter().next());
            let Some((&offset, _)) = next else { return };
            let (mut end, mut length) = (offset, 0);
            while let Some(part) = self.dirty.get(&end).copied()
                && (length == 0 || length + part <= JOINED)
            {
                self.dirty.remove(&end);
                (end, length) = (end + u64::from(part), length + part);
            }
            self.position = end;
            self.front.submit_own(now, length, Kind::Write, offset, length);
        }
    }
}

impl Controller for WriteCache {
    type Own = u32;

    fn front(&self) -> &Front<u32> {
        &self.front
    }

    fn front_mut(&mut self) -> &mut Front<u32> {
        &mut self.front
    }

    fn accept(&mut self, now: Instant, job: Job) {
        match job.kind {
            Kind::Write if u64::from(job.length) <= self.size => {
                if self.waiting.is_empty() && self.has_room(&job) {
                    self.take_in(now, job);
                } else {
                    self.filled.0.store(true, Ordering::Relaxed);
                    self.waiting.push_back(job);
                }
                self.destage(now);
            }
            Kind::Read if self.has(&job) => self.front.finish(now, job.slot),
            Kind::Flush => self.front.finish(now, job.slot),
            _ => self.front.pass(now, job),
        }
    }

    /// A write of `length` bytes has reached the device.
    fn own_completed(&mut self, now: Instant, length: u32) {
        self.used -= u64::from(length);
        while let Some(job) = self.waiting.front().copied()
            && self.has_room(&job)
        {
            self.waiting.pop_front();
            self.take_in(now, job);
        }
        self.destage(now);
    }

    fn kept(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::gate::Slot;

    use super::*;
    use crate::devices::read_ahead::ReadAhead;
    use crate::devices::servers::{Servers, ServiceTime};

    /// A cache of `blocks` blocks of 4 KiB before a device that takes 1 ms for each request, one at a time.
    fn cache(blocks: u64) -> WriteCache {
        let time = ServiceTime::Fixed(Duration::from_millis(1));
        let device = Servers::new(1, time, crate::random::stream(1, "service"));
        WriteCache::new(Box::new(device), blocks * 4096, Duration::from_micros(100))
    }

    fn job(slot: u32, kind: Kind, block: u64) -> Job {
        Job { slot: Slot(slot), kind, offset: block * 4096, length: 4096 }
    }

    /// All completions: time in microseconds, and slot.
    fn all(cache: &mut WriteCache) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        while let Some(at) = cache.next() {
            cache.settle(at);
            while let Some(slot) = cache.take(at) {
                found.push((at.as_nanos() / 1000, slot.0));
            }
        }
        found
    }

    #[test]
    fn a_write_completes_from_the_cache_until_it_is_full() {
        let mut cache = cache(2);
        let filled = cache.filled();
        (0..2).for_each(|block| cache.submit(Instant::ZERO, job(block, Kind::Write, 10 * u64::from(block))));
        assert!(!filled.get());
        cache.submit(Instant::ZERO, job(2, Kind::Write, 20));
        assert!(filled.get());
        assert_eq!(cache.jobs_held(), 3);
        assert_eq!(all(&mut cache), [(100, 0), (100, 1), (1100, 2)], "the third waits for the first destage");
        assert_eq!((cache.jobs_held(), cache.used), (0, 0));
    }

    #[test]
    fn blocks_are_destaged_in_ascending_order_and_joined() {
        let mut cache = cache(100);
        // Eight are at the device; the others wait, in the order of their offsets.
        (0..8).for_each(|block| cache.submit(Instant::ZERO, job(block, Kind::Write, 1000 + 2 * u64::from(block))));
        for (slot, block) in [(8, 5003), (9, 5001), (10, 5002), (11, 90)] {
            cache.submit(Instant::ZERO, job(slot, Kind::Write, block));
        }
        cache.submit(Instant::ZERO, job(12, Kind::Read, 5001));
        assert_eq!(all(&mut cache).len(), 13);
        assert_eq!(cache.busy_nanos(), 10_000_000, "three blocks in one write, and the read from the cache");
        assert_eq!(cache.position, 91 * 4096, "ascending, then from the lowest");
    }

    #[test]
    fn a_controller_may_read_ahead_before_its_write_cache() {
        let mut both = ReadAhead::new(Box::new(cache(2)), 8192, 4096, 1 << 30, Duration::from_micros(100));
        (0..4).for_each(|slot| both.submit(Instant::ZERO, job(slot, Kind::Write, 100 + u64::from(slot))));
        (4..8).for_each(|slot| both.submit(Instant::ZERO, job(slot, Kind::Read, u64::from(slot))));
        let mut slots = Vec::new();
        while let Some(at) = both.next() {
            both.settle(at);
            slots.extend(std::iter::from_fn(|| both.take(at)).map(|slot| slot.0));
        }
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(both.jobs_held(), 0);
    }

    #[test]
    fn a_block_written_again_takes_no_more_room() {
        let mut cache = cache(9);
        (0..8).for_each(|block| cache.submit(Instant::ZERO, job(block, Kind::Write, 2 * u64::from(block))));
        (8..20).for_each(|slot| cache.submit(Instant::ZERO, job(slot, Kind::Write, 100)));
        assert!(!cache.filled().get());
        assert!(all(&mut cache).iter().all(|(at, _)| *at == 100));
    }
}
