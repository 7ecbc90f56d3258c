//! Disks side by side: RAID-0, and RAID-5 with what a small write costs there.

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::hdd::{Hdd, HddSpec};
use super::{Job, Model};

/// How bytes are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Stripes.
    Raid0,
    /// Stripes with a parity that rotates (left-symmetric): a write of a part of a stripe reads old data and old parity,
    /// then writes both.
    Raid5,
}

/// A job of one of the disks.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Which job of the array.
    whole: u32,
    disk: usize,
    offset: u64,
    length: u32,
    /// Of a small write: what it does now.
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// All that there is to do.
    Only(Kind),
    /// Old content is read; when both reads of a pair are over the writes begin.
    Old {
        partner: u32,
    },
    OldOver,
}

/// A job of the array, until its last part is over.
#[derive(Debug, Clone, Copy)]
struct Whole {
    slot: Slot,
    left: u32,
}

/// The array.
#[derive(Debug)]
pub struct Array {
    disks: Vec<Hdd>,
    layout: Layout,
    unit: u64,
    wholes: Vec<Option<Whole>>,
    free_wholes: Vec<u32>,
    parts: Vec<Option<Part>>,
    free_parts: Vec<u32>,
    over: Vec<Slot>,
}

fn insert<T>(table: &mut Vec<Option<T>>, free: &mut Vec<u32>, value: T) -> u32 {
    match free.pop() {
        Some(index) => {
            table[index as usize] = Some(value);
            index
        }
        None => {
            table.push(Some(value));
            (table.len() - 1) as u32
        }
    }
}

impl Array {
    /// `count` drives of a kind, in stripes of `unit` bytes.
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
            wholes: Vec::new(),
            free_wholes: Vec::new(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            over: Vec::new(),
        }
    }

    /// Where a byte lies: disk, offset there, and the disk with its parity.
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
        let index = insert(&mut self.parts, &mut self.free_parts, part);
        let job = Job { slot: Slot(index), kind, offset: part.offset, length: part.length };
        self.disks[part.disk].submit(now, job);
        index
    }

    fn part_over(&mut self, now: Instant, index: u32) {
        let part = self.parts[index as usize].expect("a part at a disk is in the table");
        match part.step {
            Step::Old { partner } => {
                if !matches!(self.parts[partner as usize], Some(Part { step: Step::OldOver, .. })) {
                    self.parts[index as usize] = Some(Part { step: Step::OldOver, ..part });
                    return;
                }
                for done in [index, partner] {
                    let part = self.parts[done as usize].take().expect("both have been read");
                    self.free_parts.push(done);
                    self.add(now, Part { step: Step::Only(Kind::Write), ..part }, Kind::Write);
                }
            }
            Step::Only(_) | Step::OldOver => {
                self.parts[index as usize] = None;
                self.free_parts.push(index);
                self.count_down(part.whole);
            }
        }
    }

    fn count_down(&mut self, index: u32) {
        let whole = self.wholes[index as usize].as_mut().expect("its parts are not over");
        whole.left -= 1;
        if whole.left == 0 {
            self.over.push(whole.slot);
            self.wholes[index as usize] = None;
            self.free_wholes.push(index);
        }
    }
}

impl Model for Array {
    fn submit(&mut self, now: Instant, job: Job) {
        let whole = insert(&mut self.wholes, &mut self.free_wholes, Whole { slot: job.slot, left: 1 });
        let (mut offset, mut left) = (job.offset, u64::from(job.length).max(1));
        while left > 0 {
            let (disk, at, parity) = self.locate(offset);
            let length = (self.unit - offset % self.unit).min(left);
            let part = Part { whole, disk, offset: at, length: length as u32, step: Step::Only(job.kind) };
            let count = match parity.filter(|_| job.kind == Kind::Write) {
                None => {
                    self.add(now, part, job.kind);
                    1
                }
                Some(parity) => {
                    let data = self.add(now, Part { step: Step::Old { partner: u32::MAX }, ..part }, Kind::Read);
                    let old = Step::Old { partner: data };
                    let check = self.add(now, Part { disk: parity, step: old, ..part }, Kind::Read);
                    let entry = self.parts[data as usize].as_mut().expect("it was added just now");
                    entry.step = Step::Old { partner: check };
                    2
                }
            };
            self.wholes[whole as usize].as_mut().expect("it was added just now").left += count;
            offset += length;
            left -= length;
        }
        self.count_down(whole);
    }

    fn settle(&mut self, now: Instant) {
        self.disks.iter_mut().for_each(|disk| disk.settle(now));
    }

    fn next(&self) -> Option<Instant> {
        if !self.over.is_empty() {
            return Some(Instant::ZERO);
        }
        self.disks.iter().filter_map(Model::next).min()
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        loop {
            if let Some(slot) = self.over.pop() {
                return Some(slot);
            }
            let disk = (0..self.disks.len()).filter(|disk| self.disks[*disk].next().is_some_and(|at| at <= now));
            let disk = disk.min_by_key(|disk| self.disks[*disk].next())?;
            let at = self.disks[disk].next()?;
            let part = self.disks[disk].take(now)?;
            self.part_over(at, part.0);
        }
    }

    fn busy_nanos(&self) -> u64 {
        self.disks.iter().map(Model::busy_nanos).sum()
    }

    fn servers(&self) -> u32 {
        self.disks.len() as u32
    }
}
