//! A hard disk: seek, rotation, zones, read-ahead, and an internal queue.
//!
//! The arm moves by a curve of four numbers or a measured table. The platter rotates with absolute time. Outer zones
//! are faster. After a read, the drive continues to read into a cache segment until another command needs the head. It
//! serves the queued command that it can reach first, with a bonus for commands that wait long.
//!
//! The write cache is off by default: users of direct I/O disable it for durability, and papers that do not mention it
//! are assumed to have done so. With a write cache, a write completes when the drive has it. The drive writes to the
//! platter, the nearest data first, when it is idle, when the cache is full, and before a flush completes.

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

/// Skew between adjacent tracks as a part of a revolution: the time of a track change.
const SKEW: f64 = 0.13;
/// Bonus of a command per second of waiting, as a part of that time: enough to prevent starvation.
const AGE: f64 = 0.02;

/// A drive as its data sheet describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct HddSpec {
    pub capacity: u64,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Seek time by distance.
    pub seek: SeekCurve,
    /// Media rate of the outermost and the innermost zone, in bytes per second.
    pub rates: (f64, f64),
    /// Time of each command in addition to positioning and transfer.
    pub overhead: Duration,
    /// Rate of the interface, in bytes per second.
    pub bus: f64,
    /// Commands that it queues and sorts; 1 is first come, first served.
    pub queue: u32,
    /// Cache segments; 0 disables cache and read-ahead.
    pub segments: u32,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Size of the write cache in bytes; 0 disables it. Typical is 16 MiB.
    pub write_cache: u64,
}

impl HddSpec {
    /// A SATA disk of 1 TB, about 2010. Rates and average seek are as in data sheets of its class; the ends of the seek
    /// curve are typical.
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

    /// A Fibre Channel disk of 146 GB at 15,000 rpm; all values are typical of its class.
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

    /// A SAS disk of 450 GB at 15,000 rpm; all values are typical of its class.
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

    /// Position of byte `offset`, as a part of the stroke from the outer edge.
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

/// Positions of bytes if the rate decreases linearly from the outside to the inside, with precomputed constants.
#[derive(Debug)]
struct Zones {
    /// 1 / capacity.
    part: f64,
    outer: f64,
    square: f64,
    /// Term under the root, for the whole capacity.
    fall: f64,
    /// 1 / (outer - inner); 0 if all zones have the same rate.
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

    /// Position as a part of the stroke.
    #[inline]
    fn position(&self, offset: u64) -> f64 {
        let part = (offset as f64 * self.part).min(1.0);
        if self.scale == 0.0 {
            return part;
        }
        (self.outer - (self.square - self.fall * part).max(0.0).sqrt()) * self.scale
    }
}

/// A command with precomputed constants.
#[derive(Debug, Clone, Copy)]
struct Command {
    job: Job,
    /// Position of the arm.
    position: f64,
    /// Angle of the platter, as a part of a revolution.
    angle: f64,
    rate: f64,
    /// Bonus for its waiting time, in seconds.
    aged: f64,
}

/// Motion of the arm and the platter.
#[derive(Debug)]
struct Motion {
    curve: Curve,
    /// Seconds per revolution, and revolutions per second.
    turn: f64,
    per_second: f64,
    overhead: f64,
}

impl Motion {
    /// Angle of the platter when a command that is received at `now` starts the arm.
    fn turned(&self, now: f64) -> f64 {
        fraction((now + self.overhead) * self.per_second)
    }

    /// Seconds until the angle is under the head, if the arm arrives after `seek` seconds.
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

/// The fractional part, without a call into the C library.
#[inline]
fn fraction(value: f64) -> f64 {
    let part = value - (value as i64) as f64;
    if part < 0.0 { part + 1.0 } else { part }
}

#[derive(Debug)]
pub struct Hdd {
    spec: HddSpec,
    zones: Zones,
    motion: Motion,
    /// Position of the arm, and the byte after which it is.
    head: f64,
    byte: u64,
    /// Commands in the internal queue.
    queue: Queue,
    /// Commands that the internal queue has no room for.
    pending: VecDeque<Command>,
    serving: Option<(Instant, Command)>,
    cache: Cache,
    writes: Writes,
    /// Since when the drive is idle.
    idle: f64,
    busy: u64,
}

impl Hdd {
    /// An idle drive, with the arm at the outer edge.
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

    /// Position and angle of a job's first byte.
    ///
    /// Example: at 120 MB/s and 7,200 rpm a track has 1 MB. Byte 2,500,000 is at 0.5 of track 2, whose start is skewed by 2 x
    /// 0.13, so its angle is 0.76 of a revolution.
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

    /// Serves a command; returns the time in seconds.
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
            // The command does not touch the medium, and moves no data.
            Kind::Discard | Kind::WriteZeroes => overhead,
        }
    }

    fn read(&mut self, now: f64, command: &Command) -> f64 {
        let (job, overhead) = (command.job, self.motion.overhead);
        let (transfer, length) = (f64::from(job.length) / self.spec.bus, u64::from(job.length));
        match self.cache.find(job.offset, length) {
            // Read-ahead continues meanwhile.
            Found::All => {
                self.cache.hit(job.offset, length);
                return overhead + transfer;
            }
            Found::Start { missing, rate } => {
                // The medium moves under the head while the command is received.
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

    /// Seeks, and transfers all of the command's bytes.
    fn position_and_pass(&mut self, now: f64, command: &Command) -> f64 {
        let reach = self.motion.reach(self.head, self.motion.turned(now), command);
        self.stay_at_end(&command.job);
        self.motion.overhead + reach + f64::from(command.job.length) / command.rate
    }

    /// Leaves the arm at the end of a job.
    fn stay_at_end(&mut self, job: &Job) {
        self.byte = job.offset + u64::from(job.length);
        self.head = self.zones.position(self.byte);
    }

    /// Writes cached data to the platter, the nearest first, until it is enough; returns the time in seconds.
    fn write_back(&mut self, now: f64, enough: impl Fn(&Writes) -> bool) -> f64 {
        let mut takes = 0.0;
        while !enough(&self.writes)
            && let Some(command) = self.writes.nearest(self.byte, self.head)
        {
            takes += self.write(now + takes, &command);
        }
        takes
    }

    /// Writes cached data since the drive became idle. Returns when it is free, which is after `now` if a write is in
    /// progress.
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

    // A drive has no command that makes zeroes faster than a write.
    fn makes_zeroes(&self) -> bool {
        false
    }

    fn servers(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests;
