//! A controller that reads ahead of sequential streams into its cache.
//!
//! A third read in a row that begins at the end of the previous one makes a stream. From then on the controller reads
//! whole stripe units, and keeps `ahead` bytes ahead of the stream in progress or in its cache. A read of the stream
//! completes when all of its units are cached. Other requests go to the device unchanged. A unit is dropped when the
//! stream has passed it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::controller::{Controller, Front};
use super::{Job, Model};

/// Maximum number of streams; the least recently read one is forgotten first.
const STREAMS: usize = 32;
/// Consecutive reads that make a stream.
const IN_A_ROW: u32 = 3;
/// First slot of the controller's own reads; slots of a gate are far below.
const OWN: u32 = 1 << 31;

/// A stream and its expected next offset.
#[derive(Debug, Clone, Copy)]
struct Stream {
    next: u64,
    in_a_row: u32,
}

/// A stripe unit in the cache.
#[derive(Debug)]
enum Unit {
    /// Being read for these slots; `keep` is false if the stream has passed it.
    Coming { readers: Vec<Slot>, keep: bool },
    /// Cached.
    There,
}

/// A device with such a controller.
pub struct ReadAhead {
    /// Of each of the controller's own reads: its unit.
    front: Front<u64>,
    /// Size of a unit in bytes.
    unit: u64,
    units: u64,
    /// Number of units to read ahead.
    ahead: u64,
    streams: VecDeque<Stream>,
    cache: BTreeMap<u64, Unit>,
    /// Number of units that a read still waits for.
    waiting: BTreeMap<Slot, u32>,
}

impl ReadAhead {
    /// Reads `ahead` bytes ahead, in units of `unit` bytes, on a device of `size` bytes; a read from the cache takes
    /// `latency`.
    ///
    /// # Panics
    /// If the unit is 0.
    #[must_use]
    pub fn new(device: Box<dyn Model>, ahead: u64, unit: u64, size: u64, latency: Duration) -> Self {
        ReadAhead {
            front: Front::new(device, latency, OWN),
            unit,
            units: size / unit,
            ahead: ahead.div_ceil(unit),
            streams: VecDeque::new(),
            cache: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Whether a read continues a stream; updates its expected offset.
    fn follows(&mut self, offset: u64, length: u64) -> bool {
        let known = self.streams.iter().position(|stream| stream.next == offset);
        let before = known.and_then(|index| self.streams.remove(index)).map_or(0, |stream| stream.in_a_row);
        if self.streams.len() == STREAMS
            && let Some(Stream { next, in_a_row: IN_A_ROW.. }) = self.streams.pop_front()
        {
            let unit = next / self.unit;
            (unit..unit + 1 + self.ahead).for_each(|unit| self.drop_unit(unit));
        }
        self.streams.push_back(Stream { next: offset + length, in_a_row: before + 1 });
        before + 1 >= IN_A_ROW
    }

    /// Reads a unit, unless it is cached or being read.
    fn fetch(&mut self, now: Instant, unit: u64) {
        if unit >= self.units || self.cache.contains_key(&unit) {
            return;
        }
        self.cache.insert(unit, Unit::Coming { readers: Vec::new(), keep: true });
        self.front.submit_own(now, unit, Kind::Read, unit * self.unit, self.unit as u32);
    }

    /// Serves a read of a stream.
    fn read(&mut self, now: Instant, job: Job) {
        let end = job.offset + u64::from(job.length);
        let (first, behind) = (job.offset / self.unit, end.div_ceil(self.unit));
        (first..behind + self.ahead).for_each(|unit| self.fetch(now, unit));
        let mut missing = 0;
        for unit in first..behind {
            if let Some(Unit::Coming { readers, .. }) = self.cache.get_mut(&unit) {
                readers.push(job.slot);
                missing += 1;
            }
        }
        if missing == 0 {
            self.front.finish(now, job.slot);
        } else {
            self.waiting.insert(job.slot, missing);
        }
        (first..end / self.unit).for_each(|unit| self.drop_unit(unit));
    }

    /// Drops a unit that the stream has passed, or whose stream is forgotten: immediately, or when it has been read.
    fn drop_unit(&mut self, unit: u64) {
        match self.cache.get_mut(&unit) {
            Some(Unit::There) => drop(self.cache.remove(&unit)),
            Some(Unit::Coming { keep, .. }) => *keep = false,
            None => {}
        }
    }
}

impl Controller for ReadAhead {
    type Own = u64;

    fn front(&self) -> &Front<u64> {
        &self.front
    }

    fn front_mut(&mut self) -> &mut Front<u64> {
        &mut self.front
    }

    fn accept(&mut self, now: Instant, job: Job) {
        let within = job.offset + u64::from(job.length) <= self.units * self.unit;
        if job.kind == Kind::Read && within && self.follows(job.offset, u64::from(job.length)) {
            self.read(now, job);
        } else {
            self.front.pass(now, job);
        }
    }

    /// A unit has been read.
    fn own_completed(&mut self, now: Instant, unit: u64) {
        let Some(Unit::Coming { readers, keep }) = self.cache.remove(&unit) else {
            unreachable!("a unit that is being read is in the cache as coming")
        };
        if keep {
            self.cache.insert(unit, Unit::There);
        }
        for slot in readers {
            let left = self.waiting.get_mut(&slot).expect("a reader of a unit being read waits");
            *left -= 1;
            if *left == 0 {
                self.waiting.remove(&slot);
                self.front.finish(now, slot);
            }
        }
    }

    fn kept(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::servers::{Servers, ServiceTime};
    use crate::random::stream;

    const UNIT: u64 = 64 << 10;

    /// Four servers of 1 ms, 256 KiB ahead.
    fn device() -> ReadAhead {
        let time = ServiceTime::Fixed(Duration::from_millis(1));
        let servers = Box::new(Servers::new(4, time, stream(0, "read ahead")));
        ReadAhead::new(servers, 4 * UNIT, UNIT, 1 << 30, Duration::from_micros(100))
    }

    /// Time of a single read of 32 KiB in microseconds.
    fn read(device: &mut ReadAhead, now: &mut u64, offset: u64) -> u64 {
        let from = Instant::from_nanos(*now * 1000);
        device.submit(from, Job { slot: Slot(7), kind: Kind::Read, offset, length: 32 << 10 });
        device.settle(from);
        loop {
            let at = device.next().expect("a read is in progress");
            let taken = device.take(at);
            device.settle(at);
            if taken == Some(Slot(7)) {
                let took = at.nanos_since(from) / 1000;
                *now += took;
                return took;
            }
        }
    }

    #[test]
    fn the_third_sequential_read_makes_a_stream() {
        let (mut device, mut now) = (device(), 0);
        let took: Vec<u64> = (0..12).map(|read_of| read(&mut device, &mut now, read_of * (32 << 10))).collect();
        assert_eq!(took[..3], [1000, 1000, 1100], "the third waits for its unit");
        assert!(took[4..].iter().all(|took| *took <= 1100) && took[3] == 100, "{took:?}");
        assert!(took.iter().filter(|took| **took == 100).count() >= 7, "{took:?}");
        assert!(device.cache.len() <= 5, "{} units are kept", device.cache.len());
    }

    #[test]
    fn reads_without_a_stream_go_to_the_device() {
        let (mut device, mut now) = (device(), 0);
        for offset in [0, 1 << 20, 5 << 20, 3 << 20, 1 << 25] {
            assert_eq!(read(&mut device, &mut now, offset), 1000);
        }
        assert!(device.cache.is_empty());
    }

    #[test]
    fn streams_are_independent_and_eventually_forgotten() {
        let (mut device, mut now) = (device(), 0);
        let mut at =
            |device: &mut ReadAhead, stream: u64, step: u64| read(device, &mut now, (stream << 24) + step * (32 << 10));
        for step in 0..8 {
            for stream in 0..4 {
                at(&mut device, stream, step);
            }
        }
        assert_eq!([0, 1, 2, 3].map(|stream| at(&mut device, stream, 8)), [100; 4]);
        for stream in 4..4 + STREAMS as u64 {
            at(&mut device, stream, 0);
        }
        while let Some(next) = device.next() {
            assert_eq!(device.take(next), None);
        }
        assert!(device.cache.is_empty(), "{:?}", device.cache);
    }

    #[test]
    fn concurrent_reads_complete_and_nothing_is_read_past_the_end() {
        let (mut device, mut completed) = (device(), [0; 16]);
        let start = (1 << 30) - 16 * (32 << 10);
        for slot in 0..16 {
            let offset = start + u64::from(slot) * (32 << 10);
            device.submit(Instant::ZERO, Job { slot: Slot(slot), kind: Kind::Read, offset, length: 32 << 10 });
        }
        device.settle(Instant::ZERO);
        while let Some(at) = device.next() {
            if let Some(slot) = device.take(at) {
                completed[slot.0 as usize] += 1;
            }
            device.settle(at);
        }
        assert_eq!(completed, [1; 16]);
        assert!(device.waiting.is_empty() && device.cache.is_empty(), "{:?}", device.cache);
        // Two reads of half a unit, then seven whole units.
        assert_eq!(device.busy_nanos(), 9_000_000);
    }
}
