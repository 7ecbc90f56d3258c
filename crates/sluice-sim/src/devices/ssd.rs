//! A flash drive with a page-mapped translation layer, which writes out of place and collects garbage.
//!
//! Channels transfer data; planes read, program and erase. Each has a time until which it is busy. Host writes use the
//! planes in turn, in order of channels. When a plane runs out of free blocks, it copies the valid pages of the block
//! with the fewest of them and erases that block; later commands of the plane wait. The number of copies grows as the
//! spare area shrinks.
//!
//! Mean cost of a host page write: `tP + (WA - 1)(tR + tP) + WA tE / P`, with `WA` the write amplification. Example: tP
//! 750 us, tR 75 us, tE 3.8 ms, P = 128 pages per block. A clean drive (WA 1) takes 780 us per page, one with WA 7.3
//! takes 6.2 ms.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::{Job, Model, nanos};
use crate::random::Stream;

pub mod flash;
mod numbers;
mod snapshot;

use flash::{FETCHED, Flash};
pub use flash::{Geometry, GeometryError};
pub use snapshot::{Ageing, SnapshotError, States, path_in};

/// A drive as its data sheet describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SsdSpec {
    pub geometry: Geometry,
    /// Time to read a page into its plane's register.
    pub read: Duration,
    /// Time to program a page.
    pub program: Duration,
    /// Time to erase a block.
    pub erase: Duration,
    /// Rate of a channel, in bytes per second.
    pub channel: f64,
    /// Rate of the host's interface, in bytes per second.
    pub bus: f64,
    /// Additional time of each command.
    pub overhead: Duration,
    /// Bytes of a buffer that takes writes before the flash does; 0: none.
    pub buffer: u64,
}

#[derive(Debug, Clone)]
pub struct Ssd {
    spec: SsdSpec,
    flash: Flash,
    /// Time until which each plane is busy, in nanoseconds.
    planes: Vec<u64>,
    channels: Vec<u64>,
    bus: u64,
    /// When pages in the buffer will be in the flash.
    buffered: BinaryHeap<Reverse<u64>>,
    over: BinaryHeap<Reverse<(Instant, u64, Slot)>>,
    sequence: u64,
    busy: u64,
}

impl Ssd {
    /// A new drive.
    ///
    /// # Errors
    /// [`GeometryError`]: so few spare blocks that garbage collection would be an artefact of the model.
    pub fn new(spec: SsdSpec) -> Result<Self, GeometryError> {
        let flash = Flash::new(spec.geometry)?;
        let (planes, channels) = (spec.geometry.planes_in_all() as usize, spec.geometry.channels as usize);
        Ok(Ssd {
            spec,
            flash,
            planes: vec![0; planes],
            channels: vec![0; channels],
            bus: 0,
            buffered: BinaryHeap::new(),
            over: BinaryHeap::new(),
            sequence: 0,
            busy: 0,
        })
    }

    /// Writes the whole drive sequentially, then `times` its capacity in random pages, without advancing time: an aged
    /// drive.
    pub fn age(&mut self, times: f64, random: &mut Stream) {
        let pages = self.flash.pages();
        for page in 0..pages {
            self.flash.write(page);
        }
        let mut left = (pages as f64 * times) as usize;
        let mut next = Vec::with_capacity(FETCHED);
        while left > 0 {
            next.clear();
            next.extend((0..left.min(FETCHED)).map(|_| random.below(pages)));
            self.flash.fetch(&next);
            for page in &next {
                self.flash.write(*page);
            }
            left -= next.len();
        }
        self.flash.forget_counts();
    }

    /// Ages the drive with a state file in `folder`, which is created if it is missing. Returns the error if the file
    /// cannot be read or written; the drive is aged anyway.
    ///
    /// # Panics
    /// If the drive has been written to before.
    pub fn age_from(&mut self, folder: &Path, ageing: &Ageing) -> Option<SnapshotError> {
        assert_eq!(self.sequence, 0, "a drive is aged before it is used");
        let path = path_in(folder, &self.spec.geometry, ageing);
        let refused = match snapshot::load(&path, &mut self.flash, ageing) {
            Ok(Some(())) => return None,
            Ok(None) => None,
            Err(error) => Some(error),
        };
        self.age(ageing.times, &mut ageing.random.clone());
        let unwritten = snapshot::save(&path, &self.flash, ageing).err();
        refused.or(unwritten)
    }

    /// Pages written to the flash per page that the host wrote, since the drive was new or aged; 1 if none was.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.flash.write_amplification()
    }

    /// Whether the map is consistent with the pages.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.flash.is_consistent()
    }

    fn transfer(&self) -> u64 {
        nanos(f64::from(self.spec.geometry.page_bytes) / self.spec.channel)
    }

    /// When a page read that starts at `from` completes.
    fn read_page(&mut self, from: u64, page: u64) -> u64 {
        let Some(plane) = self.flash.plane_of(page) else { return from };
        let (read, transfer) = (self.spec.read.as_nanos() as u64, self.transfer());
        let sensed = from.max(self.planes[plane]) + read;
        let channel = &mut self.channels[plane % self.spec.geometry.channels as usize];
        let sent = sensed.max(*channel) + transfer;
        (self.planes[plane], *channel) = (sensed, sent);
        self.busy += read;
        sent
    }

    /// When a page write that starts at `from` completes.
    fn write_page(&mut self, from: u64, page: u64) -> u64 {
        let (program, transfer) = (self.spec.program.as_nanos() as u64, self.transfer());
        let written = self.flash.write(page);
        let channel = &mut self.channels[written.plane % self.spec.geometry.channels as usize];
        let sent = from.max(*channel) + transfer;
        *channel = sent;
        let copy = self.spec.read.as_nanos() as u64 + program;
        let cleaning = u64::from(written.copied) * copy + u64::from(written.erased) * self.spec.erase.as_nanos() as u64;
        let work = cleaning + program;
        self.planes[written.plane] = sent.max(self.planes[written.plane]) + work;
        self.busy += work;
        self.planes[written.plane]
    }

    fn pages(&self, job: &Job) -> std::ops::Range<u64> {
        let page = u64::from(self.spec.geometry.page_bytes);
        let (first, end) = (job.offset / page, (job.offset + u64::from(job.length)).div_ceil(page));
        first.min(self.flash.pages())..end.min(self.flash.pages())
    }

    fn write(&mut self, start: u64, job: &Job) -> u64 {
        let (page, bus) = (u64::from(self.spec.geometry.page_bytes), f64::from(job.length) / self.spec.bus);
        let received = start.max(self.bus) + nanos(bus);
        self.bus = received;
        let mut over = received;
        let room = (self.spec.buffer / page) as usize;
        for number in self.pages(job) {
            let mut begins = received;
            while self.buffered.peek().is_some_and(|Reverse(done)| *done <= begins) {
                self.buffered.pop();
            }
            if room > 0
                && self.buffered.len() >= room
                && let Some(Reverse(done)) = self.buffered.pop()
            {
                begins = done;
            }
            let done = self.write_page(begins, number);
            if room > 0 {
                self.buffered.push(Reverse(done));
            }
            over = over.max(if room > 0 { begins } else { done });
        }
        over
    }

    fn read(&mut self, start: u64, job: &Job) -> u64 {
        let ready = self.pages(job).map(|page| self.read_page(start, page)).max().unwrap_or(start);
        let sent = ready.max(self.bus) + nanos(f64::from(job.length) / self.spec.bus);
        self.bus = sent;
        sent
    }
}

impl Model for Ssd {
    fn submit(&mut self, now: Instant, job: Job) {
        let start = now.as_nanos() + self.spec.overhead.as_nanos() as u64;
        let over = match job.kind {
            Kind::Read => self.read(start, &job),
            Kind::Write => self.write(start, &job),
            Kind::Flush => self.buffered.iter().map(|Reverse(done)| *done).max().unwrap_or(0).max(start),
            Kind::Discard | Kind::WriteZeroes => {
                self.pages(&job).for_each(|page| self.flash.discard(page));
                start
            }
        };
        self.over.push(Reverse((Instant::from_nanos(over.max(now.as_nanos() + 1)), self.sequence, job.slot)));
        self.sequence += 1;
    }

    fn next(&self) -> Option<Instant> {
        self.over.peek().map(|Reverse((at, _, _))| *at)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let Reverse((at, _, slot)) = *self.over.peek()?;
        (at <= now).then(|| {
            self.over.pop();
            slot
        })
    }

    fn jobs_held(&self) -> usize {
        self.over.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.planes.iter().map(|until| until.saturating_sub(now.as_nanos())).sum()
    }

    fn servers(&self) -> u32 {
        self.spec.geometry.planes_in_all()
    }

    fn check_invariants(&self) -> Result<(), String> {
        self.flash.check_invariants()
    }
}

#[cfg(test)]
mod tests;
