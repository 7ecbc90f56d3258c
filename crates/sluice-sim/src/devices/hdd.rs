//! A hard disk: seek, rotation, zones, read-ahead, and a queue of its own.
//!
//! The arm moves by a curve of four numbers or a measured table; the platter turns with absolute time; the outer zones are
//! faster; after a read the drive reads on into a cache segment until it is asked for something else. Of the commands
//! in its queue it takes the one that it reaches first, with a little for those that wait long.
//!
//! A cache of writes is off unless it is stated: who does direct I/O for durability switches it off, and papers that do not
//! say are taken to have done so. With one, writes are over when the drive has them; it puts them on the platter, the nearest
//! first, when it has nothing else to do, when the cache is full, and before a flush is over.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::{Job, Model, nanos};

pub mod cache;
mod queue;
pub mod seek;
mod writes;

use cache::{Cache, Found};
use queue::Queue;
use seek::Curve;
pub use seek::SeekCurve;
use writes::Writes;

/// How much further a track begins than the one before it, as a part of a turn: what changing tracks takes.
const SKEW: f64 = 0.13;
/// What a command gains for each second that it waits, as a part of that: enough that nobody starves.
const AGE: f64 = 0.02;

/// A drive as its data sheet describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct HddSpec {
    /// In bytes.
    pub capacity: u64,
    /// Turns per minute.
    pub rpm: u32,
    /// How long the arm moves.
    pub seek: SeekCurve,
    /// Media rate of the outermost and the innermost zone, in bytes per second.
    pub rates: (f64, f64),
    /// What each command costs beside positioning and transfer.
    pub overhead: Duration,
    /// Rate of the interface, in bytes per second.
    pub bus: f64,
    /// Commands that it holds and sorts; 1: first come, first served.
    pub queue: u32,
    /// Cache segments; 0: neither cache nor read-ahead.
    pub segments: u32,
    /// Bytes of each.
    pub segment_bytes: u64,
    /// Bytes of writes that it takes before they are on the platter; 0: none. Typical is 16 MiB.
    pub write_cache: u64,
}

impl HddSpec {
    /// A SATA disk of 1 TB, about 2010; rates and average seek as in data sheets of its class, the ends of the seek curve
    /// typical.
    #[must_use]
    pub fn sata_7200_1tb() -> Self {
        HddSpec {
            capacity: 1_000_000_000_000,
            rpm: 7200,
            seek: SeekCurve::formula(0.8e-3, 8.5e-3, 18e-3),
            rates: (125e6, 62e6),
            overhead: Duration::from_micros(200),
            bus: 300e6,
            queue: 1,
            segments: 16,
            segment_bytes: 1 << 20,
            write_cache: 0,
        }
    }

    /// A Fibre Channel disk of 146 GB and 15,000 turns per minute; all of it typical of its class.
    #[must_use]
    pub fn fc_15k_146gb() -> Self {
        HddSpec {
            capacity: 146_000_000_000,
            rpm: 15_000,
            seek: SeekCurve::formula(0.3e-3, 3.5e-3, 7.5e-3),
            rates: (125e6, 75e6),
            overhead: Duration::from_micros(100),
            bus: 400e6,
            queue: 1,
            segments: 16,
            segment_bytes: 1 << 20,
            write_cache: 0,
        }
    }

    /// A SAS disk of 450 GB and 15,000 turns per minute; all of it typical of its class.
    #[must_use]
    pub fn sas_15k_450gb() -> Self {
        HddSpec {
            capacity: 450_000_000_000,
            seek: SeekCurve::formula(0.3e-3, 3.4e-3, 7.5e-3),
            rates: (200e6, 120e6),
            bus: 600e6,
            ..Self::fc_15k_146gb()
        }
    }

    /// Where byte `offset` lies, as a part of the arm's stroke from the outside.
    fn position(&self, offset: u64) -> f64 {
        Zones::new(self).position(offset)
    }

    fn rate(&self, position: f64) -> f64 {
        self.rates.0 - (self.rates.0 - self.rates.1) * position
    }

    fn turn(&self) -> f64 {
        60.0 / f64::from(self.rpm)
    }
}

/// Where bytes lie when the rate falls evenly from the outside to the inside, with what of it does not change worked out.
#[derive(Debug)]
struct Zones {
    /// 1 / capacity.
    part: f64,
    outer: f64,
    square: f64,
    /// Under the root, for all of the capacity.
    fall: f64,
    /// 1 / (outer - inner); 0 if all zones are as fast.
    scale: f64,
}

impl Zones {
    fn new(spec: &HddSpec) -> Self {
        let (outer, inner) = spec.rates;
        let difference = outer - inner;
        let scale = if difference.abs() < 2.0 { 0.0 } else { 1.0 / difference };
        let fall = difference * (outer + inner);
        Zones { part: 1.0 / spec.capacity as f64, outer, square: outer * outer, fall, scale }
    }

    /// As a part of the arm's stroke.
    #[inline]
    fn position(&self, offset: u64) -> f64 {
        let part = (offset as f64 * self.part).min(1.0);
        if self.scale == 0.0 {
            return part;
        }
        (self.outer - (self.square - self.fall * part).max(0.0).sqrt()) * self.scale
    }
}

/// A command with what of it does not change.
#[derive(Debug, Clone, Copy)]
struct Command {
    job: Job,
    /// Where the arm must be.
    position: f64,
    /// Which part of the turn must be under it.
    angle: f64,
    rate: f64,
    /// What it gives away to those that came before, in seconds.
    aged: f64,
}

/// How the arm and the platter move.
#[derive(Debug)]
struct Motion {
    curve: Curve,
    /// Seconds of a turn, and turns of a second.
    turn: f64,
    per_second: f64,
    overhead: f64,
}

impl Motion {
    /// How far the platter has turned when a command that is taken in at `now` lets the arm go.
    fn turned(&self, now: f64) -> f64 {
        fraction((now + self.overhead) * self.per_second)
    }

    /// Seconds until the place is under the head, when the arm has arrived there after `seek` seconds.
    #[inline]
    fn wait(&self, turned: f64, seek: f64, angle: f64) -> f64 {
        fraction(angle - turned - seek * self.per_second) * self.turn
    }

    /// Seconds from `from` until the first byte is under the head.
    fn reach(&self, from: f64, turned: f64, command: &Command) -> f64 {
        let seek = self.curve.time((command.position - from).abs());
        seek + self.wait(turned, seek, command.angle)
    }
}

/// What is above the next whole number below; without a call into the C library.
#[inline]
fn fraction(value: f64) -> f64 {
    let part = value - (value as i64) as f64;
    if part < 0.0 { part + 1.0 } else { part }
}

/// The drive.
#[derive(Debug)]
pub struct Hdd {
    spec: HddSpec,
    zones: Zones,
    motion: Motion,
    /// Where the arm is, and behind which byte.
    head: f64,
    byte: u64,
    /// Held and sorted.
    queue: Queue,
    /// Not yet taken into the queue.
    pending: VecDeque<Command>,
    serving: Option<(Instant, Command)>,
    cache: Cache,
    writes: Writes,
    /// Since when it has nothing to do.
    idle: f64,
    busy: u64,
}

impl Hdd {
    /// A drive at rest, with the arm outside.
    #[must_use]
    pub fn new(spec: HddSpec) -> Self {
        let seek = spec.seek.fitted(|part| spec.position((part * spec.capacity as f64) as u64));
        let cache = Cache::new(spec.segments, spec.segment_bytes);
        let (turn, overhead) = (spec.turn(), spec.overhead.as_secs_f64());
        let motion = Motion { curve: Curve::new(&seek), turn, per_second: 1.0 / turn, overhead };
        let (writes, zones) = (Writes::new(spec.write_cache), Zones::new(&spec));
        let spec = HddSpec { seek, ..spec };
        Hdd {
            spec,
            zones,
            motion,
            head: 0.0,
            byte: 0,
            queue: Queue::default(),
            pending: VecDeque::new(),
            serving: None,
            cache,
            writes,
            idle: 0.0,
            busy: 0,
        }
    }

    fn command(&self, now: Instant, job: Job) -> Command {
        let position = self.zones.position(job.offset);
        let rate = self.spec.rate(position);
        let tracks = job.offset as f64 / (rate * self.motion.turn);
        let track = (tracks as u64) as f64;
        let angle = fraction(tracks - track + SKEW * track);
        Command { job, position, angle, rate, aged: AGE * (now.as_nanos() as f64 * 1e-9) }
    }

    fn start_next(&mut self, at: Instant) {
        while self.queue.len() < self.spec.queue.max(1) as usize {
            let Some(command) = self.pending.pop_front() else { break };
            self.queue.push(command, &self.cache);
        }
        if self.queue.is_empty() {
            return;
        }
        let asked = at.as_nanos() as f64 * 1e-9;
        let now = self.write_back_while_idle(asked);
        self.cache.read_on(now);
        let command = self.queue.take(now, self.head, &self.motion, &self.cache, &self.writes);
        let takes = nanos(now - asked + self.serve(now, &command)).max(1);
        self.busy += takes;
        let ends = at.as_nanos() + takes;
        self.idle = ends as f64 * 1e-9;
        self.serving = Some((Instant::from_nanos(ends), command));
    }

    /// Does it; how many seconds that takes.
    fn serve(&mut self, now: f64, command: &Command) -> f64 {
        let (job, overhead) = (command.job, self.motion.overhead);
        let transfer = f64::from(job.length) / self.spec.bus;
        match job.kind {
            Kind::Read if self.writes.has(&job) => overhead + transfer,
            Kind::Read => self.read(now, command),
            Kind::Write => {
                if self.cache.forget(job.offset, u64::from(job.length)) {
                    self.queue.refresh(&self.cache);
                }
                if !self.writes.takes(job.length) {
                    return self.write(now, command);
                }
                let room = self.write_back(now, |writes| writes.has_room(job.length));
                self.writes.insert(*command);
                room + overhead + transfer
            }
            Kind::Flush => overhead + self.write_back(now, Writes::is_empty),
            // The medium is not touched, and there is nothing to give up.
            Kind::Discard | Kind::WriteZeroes => overhead,
        }
    }

    fn read(&mut self, now: f64, command: &Command) -> f64 {
        let (job, overhead) = (command.job, self.motion.overhead);
        let (transfer, length) = (f64::from(job.length) / self.spec.bus, u64::from(job.length));
        match self.cache.find(job.offset, length) {
            // It reads on meanwhile.
            Found::All => {
                self.cache.hit(job.offset, length);
                return overhead + transfer;
            }
            Found::Start { missing, rate } => {
                // The medium goes on under the head while the command is taken in.
                let takes = (missing as f64 / rate).max(overhead + transfer);
                self.cache.extend(job.offset, length, now + takes);
                self.stay_at_end(&job);
                return takes;
            }
            Found::Nothing => {}
        }
        let takes = self.position_and_pass(now, command);
        let before = self.cache.begin(job.offset, length, command.rate, now + takes);
        self.queue.segments_moved(before, &self.cache);
        takes
    }

    fn write(&mut self, now: f64, command: &Command) -> f64 {
        let takes = self.position_and_pass(now, command);
        let before = self.cache.stop();
        self.queue.segments_moved(before, &self.cache);
        takes
    }

    /// The arm goes there, and all of it passes under the head.
    fn position_and_pass(&mut self, now: f64, command: &Command) -> f64 {
        let reach = self.motion.reach(self.head, self.motion.turned(now), command);
        self.stay_at_end(&command.job);
        self.motion.overhead + reach + f64::from(command.job.length) / command.rate
    }

    /// The arm stays where a job ended.
    fn stay_at_end(&mut self, job: &Job) {
        self.byte = job.offset + u64::from(job.length);
        self.head = self.zones.position(self.byte);
    }

    /// Puts writes on the platter, the nearest first, until it is enough; how many seconds that takes.
    fn write_back(&mut self, now: f64, enough: impl Fn(&Writes) -> bool) -> f64 {
        let mut takes = 0.0;
        while !enough(&self.writes)
            && let Some(command) = self.writes.nearest(self.byte, self.head)
        {
            takes += self.write(now + takes, &command);
        }
        takes
    }

    /// What it did since it has nothing to do; when it is free, which is later than `now` if it is in the middle of a write.
    fn write_back_while_idle(&mut self, now: f64) -> f64 {
        let mut at = self.idle;
        while at < now
            && let Some(command) = self.writes.nearest(self.byte, self.head)
        {
            self.cache.read_on(at);
            let takes = self.write(at, &command);
            self.busy += nanos(takes.min(now - at));
            at += takes;
        }
        at.max(now)
    }
}

impl Model for Hdd {
    fn submit(&mut self, now: Instant, job: Job) {
        let command = self.command(now, job);
        self.pending.push_back(command);
    }

    fn settle(&mut self, now: Instant) {
        if self.serving.is_none() {
            self.start_next(now);
        }
    }

    fn next(&self) -> Option<Instant> {
        self.serving.map(|(ends, _)| ends)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let (_, command) = self.serving.filter(|(ends, _)| *ends <= now)?;
        self.serving = None;
        Some(command.job.slot)
    }

    fn jobs_held(&self) -> usize {
        self.pending.len() + self.queue.len() + usize::from(self.serving.is_some())
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    // A drive has no command for it that is faster than writing.
    fn makes_zeroes(&self) -> bool {
        false
    }

    fn servers(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests;
