//! Disk arrays: RAID-0, and RAID-5 with the cost of its small writes.
//!
//! A controller may have a battery-backed write cache, which is off by default. A write completes when the cache has
//! it, and goes to the disks immediately. When the cache is full, the next write waits until disks have made room. A
//! flush completes immediately. Reads do not use it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::slab::Slab;
use sluice_sched::{Instant, Kind};

use super::hdd::{Hdd, HddSpec};
use super::{Job, Model};

/// Distribution of bytes over the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Stripes.
    Raid0,
    /// Stripes with rotating parity (left-symmetric): a write of a part of a stripe reads old data and old parity, then
    /// writes both.
    Raid5,
}

/// A job of one disk.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Index of the array's job.
    whole: u32,
    disk: usize,
    offset: u64,
    length: u32,
    /// Step of a small write.
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The only step.
    Only(Kind),
    /// Old content is read; when both reads of a pair have completed, the writes start.
    Old {
        partner: u32,
    },
    OldOver,
}

/// A job of the array, until its last part has completed.
#[derive(Debug, Clone, Copy)]
struct Whole {
    /// `None` if the controller has already completed it.
    slot: Option<Slot>,
    left: u32,
    /// Bytes of it in the controller's cache.
    cached: u32,
}

/// Write cache of the controller.
#[derive(Debug, Default)]
struct Cache {
    /// Size in bytes; 0 is no cache.
    most: u64,
    used: u64,
    latency: Duration,
    /// Writes that wait for room.
    waiting: VecDeque<Job>,
    /// Writes in the cache, by the time at which they complete.
    taken: BinaryHeap<Reverse<(Instant, u64, Slot)>>,
    sequence: u64,
}

impl Cache {
    fn completed(&mut self, now: Instant, slot: Slot) {
        let at = Instant::from_nanos(now.as_nanos() + self.latency.as_nanos() as u64);
        self.taken.push(Reverse((at, self.sequence, slot)));
        self.sequence += 1;
    }
}

#[derive(Debug)]
pub struct Array {
    disks: Vec<Hdd>,
    layout: Layout,
    unit: u64,
    wholes: Slab<Option<Whole>>,
    parts: Slab<Option<Part>>,
    completed: Vec<Slot>,
    cache: Cache,
}

impl Array {
    /// `count` drives of one kind, in stripes of `unit` bytes.
    ///
    /// # Panics
    /// If there are fewer drives than the layout needs: 1, or 3 for RAID-5.
    #[must_use]
    pub fn new(layout: Layout, count: usize, unit: u64, drive: &HddSpec) -> Self {
        assert!(count >= if layout == Layout::Raid5 { 3 } else { 1 }, "RAID-5 has three disks or more");
        Array {
            disks: (0..count).map(|_| Hdd::new(drive.clone())).collect(),
            layout,
            unit: unit.max(512),
            wholes: Slab::default(),
            parts: Slab::default(),
            completed: Vec::new(),
            cache: Cache::default(),
        }
    }

    /// Adds a write cache of `bytes` in total; each write completes after `latency`.
    #[must_use]
    pub fn with_cache(mut self, bytes: u64, latency: Duration) -> Self {
        (self.cache.most, self.cache.latency) = (bytes, latency);
        self
    }

    /// Position of a byte: disk, offset there, and the disk with its parity.
    ///
    /// Example: RAID-5 with four disks and units of 64 KiB has three units per row. Unit 4 is in row 1, whose parity is on disk
    /// 2, and is on disk 3 at 64 KiB.
    fn locate(&self, offset: u64) -> (usize, u64, Option<usize>) {
        let (unit, within) = (offset / self.unit, offset % self.unit);
        let disks = self.disks.len() as u64;
        match self.layout {
            Layout::Raid0 => ((unit % disks) as usize, unit / disks * self.unit + within, None),
            Layout::Raid5 => {
                let row = unit / (disks - 1);
                let parity = disks - 1 - row % disks;
                let disk = (parity + 1 + unit % (disks - 1)) % disks;
                (disk as usize, row * self.unit + within, Some(parity as usize))
            }
        }
    }

    fn add(&mut self, now: Instant, part: Part, kind: Kind) -> u32 {
        let index = self.parts.insert(Some(part));
        let job = Job { slot: Slot(index), kind, offset: part.offset, length: part.length };
        self.disks[part.disk].submit(now, job);
        index
    }

    /// Submits a part of a job to its disk. A write on RAID-5 first reads old data and old parity.
    fn begin(&mut self, now: Instant, whole: u32, to: (usize, u64, u32), parity: Option<usize>, kind: Kind) {
        let (disk, offset, length) = to;
        let part = Part { whole, disk, offset, length, step: Step::Only(kind) };
        let count = match parity.filter(|_| kind == Kind::Write) {
            None => {
                self.add(now, part, kind);
                1
            }
            Some(parity) => {
                let data = self.add(now, Part { step: Step::Old { partner: u32::MAX }, ..part }, Kind::Read);
                let old = Step::Old { partner: data };
                let check = self.add(now, Part { disk: parity, step: old, ..part }, Kind::Read);
                let entry = self.parts[data].as_mut().expect("just added");
                entry.step = Step::Old { partner: check };
                2
            }
        };
        self.wholes[whole].as_mut().expect("a job stays until its parts complete").left += count;
    }

    fn part_over(&mut self, now: Instant, index: u32) {
        let part = self.parts[index].expect("a part at a disk is in the table");
        match part.step {
            Step::Old { partner } => {
                if !matches!(self.parts[partner], Some(Part { step: Step::OldOver, .. })) {
                    self.parts[index] = Some(Part { step: Step::OldOver, ..part });
                    return;
                }
                for done in [index, partner] {
                    let part = self.parts.remove(done).take().expect("both have been read");
                    self.add(now, Part { step: Step::Only(Kind::Write), ..part }, Kind::Write);
                }
            }
            Step::Only(_) | Step::OldOver => {
                *self.parts.remove(index) = None;
                self.count_down(now, part.whole);
            }
        }
    }

    fn count_down(&mut self, now: Instant, index: u32) {
        let whole = self.wholes[index].as_mut().expect("a job stays until its parts complete");
        whole.left -= 1;
        if whole.left > 0 {
            return;
        }
        let Whole { slot, cached, .. } = *whole;
        *self.wholes.remove(index) = None;
        self.completed.extend(slot);
        self.cache.used -= u64::from(cached);
        while let Some(job) = self.cache.waiting.front().copied()
            && self.cache.used + u64::from(job.length) <= self.cache.most
        {
            self.cache.waiting.pop_front();
            self.take_in(now, job);
        }
    }

    /// Takes a write into the controller's cache, and sends it on.
    fn take_in(&mut self, now: Instant, job: Job) {
        self.cache.used += u64::from(job.length);
        self.cache.completed(now, job.slot);
        self.spread(now, job, None, job.length);
    }

    /// Submits the parts of a job to their disks.
    fn spread(&mut self, now: Instant, job: Job, slot: Option<Slot>, cached: u32) {
        let whole = self.wholes.insert(Some(Whole { slot, left: 1, cached }));
        if job.kind == Kind::Flush {
            for disk in 0..self.disks.len() {
                self.begin(now, whole, (disk, 0, 0), None, Kind::Flush);
            }
        }
        let (mut offset, mut left) = (job.offset, u64::from(job.length));
        while left > 0 {
            let (disk, at, parity) = self.locate(offset);
            let length = (self.unit - offset % self.unit).min(left);
            self.begin(now, whole, (disk, at, length as u32), parity, job.kind);
            offset += length;
            left -= length;
        }
        self.count_down(now, whole);
    }
}

impl Model for Array {
    fn submit(&mut self, now: Instant, job: Job) {
        let cached = self.cache.most > 0 && u64::from(job.length) <= self.cache.most;
        match job.kind {
            Kind::Write if cached => {
                self.cache.waiting.push_back(job);
                if self.cache.waiting.len() == 1 && self.cache.used + u64::from(job.length) <= self.cache.most {
                    self.cache.waiting.pop_front();
                    self.take_in(now, job);
                }
            }
            Kind::Flush if cached => self.cache.completed(now, job.slot),
            _ => self.spread(now, job, Some(job.slot), 0),
        }
    }

    fn settle(&mut self, now: Instant) {
        self.disks.iter_mut().for_each(|disk| disk.settle(now));
    }

    fn next(&self) -> Option<Instant> {
        if !self.completed.is_empty() {
            return Some(Instant::ZERO);
        }
        let taken = self.cache.taken.peek().map(|Reverse((at, _, _))| *at);
        self.disks.iter().filter_map(Model::next).chain(taken).min()
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        loop {
            if let Some(slot) = self.completed.pop() {
                return Some(slot);
            }
            if let Some(Reverse((at, _, slot))) = self.cache.taken.peek().copied()
                && at <= now
            {
                self.cache.taken.pop();
                return Some(slot);
            }
            let disk = (0..self.disks.len()).filter(|disk| self.disks[*disk].next().is_some_and(|at| at <= now));
            let disk = disk.min_by_key(|disk| self.disks[*disk].next())?;
            let at = self.disks[disk].next()?;
            let part = self.disks[disk].take(now)?;
            self.part_over(at, part.0);
        }
    }

    fn jobs_held(&self) -> usize {
        let cache = self.cache.waiting.len() + self.cache.taken.len();
        let spread = self.wholes.entries().iter().flatten().filter(|whole| whole.slot.is_some()).count();
        spread + cache + self.completed.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.disks.iter().map(Model::busy_nanos).sum()
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.disks.iter().map(|disk| disk.ahead_nanos(now)).sum()
    }

    fn makes_zeroes(&self) -> bool {
        self.disks.iter().all(Model::makes_zeroes)
    }

    fn servers(&self) -> u32 {
        self.disks.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn array() -> Array {
        Array::new(Layout::Raid5, 4, 64 << 10, &HddSpec::fc_15k_146gb())
    }

    /// Completion times of these jobs, submitted at the same instant, in order of their slots.
    fn completed(mut array: Array, jobs: &[(Kind, u64, u32)]) -> Vec<u64> {
        for (slot, (kind, offset, length)) in jobs.iter().enumerate() {
            let job = Job { slot: Slot(slot as u32), kind: *kind, offset: *offset, length: *length };
            array.submit(Instant::ZERO, job);
        }
        array.settle(Instant::ZERO);
        let mut ends = vec![0; jobs.len()];
        while let Some(at) = array.next() {
            let now = if at == Instant::ZERO { Instant::from_nanos(1) } else { at };
            while let Some(slot) = array.take(now) {
                ends[slot.0 as usize] = now.as_nanos();
            }
            array.settle(now);
        }
        assert_eq!((array.cache.used, array.cache.waiting.len()), (0, 0));
        assert!(array.wholes.is_empty() && array.parts.is_empty());
        ends
    }

    #[test]
    fn a_controllers_cache_takes_writes_until_it_is_full() {
        let write = |place: u64| (Kind::Write, place << 30, 65_536);
        let jobs: Vec<_> = (0..10).map(write).collect();
        let latency = Duration::from_micros(100);
        let cached = completed(array().with_cache(4 * 65_536, latency), &jobs);
        assert!(cached[..4].iter().all(|end| *end == 100_000), "{cached:?}");
        assert!(cached[4..].iter().all(|end| *end > 2 * MS), "{cached:?}");
        let without = completed(array(), &jobs);
        assert!(without.iter().all(|end| *end > 2 * MS) && without[9] > cached[9], "{without:?}");
        // A write larger than the cache bypasses it, and a flush has nothing to do.
        let large = completed(array().with_cache(65_536, latency), &[(Kind::Write, 0, 131_072), (Kind::Flush, 0, 0)]);
        assert!(large[0] > 2 * MS && large[1] == 100_000, "{large:?}");
    }

    #[test]
    fn a_flush_goes_to_every_disk() {
        let drive = HddSpec { write_cache: 16 << 20, ..HddSpec::fc_15k_146gb() };
        let mut array = Array::new(Layout::Raid0, 3, 64 << 10, &drive);
        for (slot, offset) in [1u64 << 30, (2 << 30) + 65_536, (3 << 30) + 131_072].into_iter().enumerate() {
            array.submit(Instant::ZERO, Job { slot: Slot(slot as u32), kind: Kind::Write, offset, length: 4096 });
        }
        array.submit(Instant::ZERO, Job { slot: Slot(9), kind: Kind::Flush, offset: 0, length: 0 });
        array.settle(Instant::ZERO);
        let mut last = (Slot(0), 0);
        while let Some(at) = array.next() {
            while let Some(slot) = array.take(at) {
                last = (slot, at.as_nanos());
            }
            array.settle(at);
        }
        assert!(last.0 == Slot(9) && last.1 > MS, "{last:?}");
        assert!(array.busy_nanos() > 3 * MS, "each of them had one to write: {}", array.busy_nanos());
    }
}
