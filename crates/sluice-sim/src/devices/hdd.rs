//! A hard disk: seek, rotation, zones, read-ahead, and a queue of its own.
//!
//! The arm moves by a curve of four numbers or a measured table; the platter turns with absolute time; the outer zones are
//! faster; after a read the drive reads on into a cache segment until it is asked for something else. Of the commands
//! in its queue it takes the one that it reaches first, with a little for those that wait long.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::{Job, Model, nanos};

pub mod cache;
pub mod seek;

use cache::{Cache, Found};
pub use seek::SeekCurve;

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
    fn place(&self, offset: u64) -> f64 {
        let (outer, inner) = self.rates;
        let part = (offset as f64 / self.capacity as f64).min(1.0);
        let (a, c) = ((outer - inner) / 2.0, part * (outer + inner) / 2.0);
        if a.abs() < 1.0 { part } else { (outer - (outer * outer - 4.0 * a * c).max(0.0).sqrt()) / (2.0 * a) }
    }

    fn rate(&self, place: f64) -> f64 {
        self.rates.0 - (self.rates.0 - self.rates.1) * place
    }

    fn turn(&self) -> f64 {
        60.0 / f64::from(self.rpm)
    }
}

/// A command in the drive's queue, with what of it does not change.
#[derive(Debug, Clone, Copy)]
struct Command {
    job: Job,
    /// Where the arm must be.
    place: f64,
    /// Which part of the turn must be under it.
    angle: f64,
    rate: f64,
    arrived: f64,
}

/// The drive.
#[derive(Debug)]
pub struct Hdd {
    spec: HddSpec,
    turn: f64,
    head: f64,
    /// Held and sorted.
    queue: Vec<Command>,
    /// Not yet taken into the queue.
    line: VecDeque<Command>,
    serving: Option<(Instant, Command)>,
    cache: Cache,
    busy: u64,
}

impl Hdd {
    /// A drive at rest, with the arm outside.
    #[must_use]
    pub fn new(spec: HddSpec) -> Self {
        let seek = spec.seek.fitted(|part| spec.place((part * spec.capacity as f64) as u64));
        let cache = Cache::new(spec.segments, spec.segment_bytes);
        let turn = spec.turn();
        let spec = HddSpec { seek, ..spec };
        Hdd { spec, turn, head: 0.0, queue: Vec::new(), line: VecDeque::new(), serving: None, cache, busy: 0 }
    }

    fn command(&self, now: Instant, job: Job) -> Command {
        let place = self.spec.place(job.offset);
        let rate = self.spec.rate(place);
        let tracks = job.offset as f64 / (rate * self.turn);
        let angle = (tracks.fract() + SKEW * tracks.floor()).fract();
        Command { job, place, angle, rate, arrived: now.as_nanos() as f64 * 1e-9 }
    }

    /// Seconds until the first byte is under the head.
    fn reach(&self, now: f64, command: &Command) -> f64 {
        let seek = self.spec.seek.time((command.place - self.head).abs());
        let there = (now + self.spec.overhead.as_secs_f64() + seek) / self.turn;
        let wait = command.angle - there.fract();
        seek + if wait < 0.0 { wait + 1.0 } else { wait } * self.turn
    }

    /// The command that is reached first; one that the cache has is reached at once.
    fn choose(&self, now: f64) -> usize {
        if self.queue.len() == 1 {
            return 0;
        }
        let mut best = (f64::INFINITY, 0);
        for (index, command) in self.queue.iter().enumerate() {
            let reach = match command.job.kind {
                Kind::Read if self.cache.has_start(command.job.offset) => 0.0,
                _ => self.reach(now, command),
            };
            let cost = reach - AGE * (now - command.arrived);
            if cost < best.0 {
                best = (cost, index);
            }
        }
        best.1
    }

    fn start_next(&mut self, at: Instant) {
        while self.queue.len() < self.spec.queue.max(1) as usize {
            let Some(command) = self.line.pop_front() else { break };
            self.queue.push(command);
        }
        if self.queue.is_empty() {
            return;
        }
        let now = at.as_nanos() as f64 * 1e-9;
        self.cache.read_on(now);
        let command = self.queue.remove(self.choose(now));
        let takes = nanos(self.serve(now, &command)).max(1);
        self.busy += takes;
        self.serving = Some((Instant::from_nanos(at.as_nanos() + takes), command));
    }

    /// Does it; how many seconds that takes.
    fn serve(&mut self, now: f64, command: &Command) -> f64 {
        let (job, overhead) = (command.job, self.spec.overhead.as_secs_f64());
        let length = f64::from(job.length);
        match job.kind {
            Kind::Read => {}
            Kind::Write => self.cache.forget(job.offset, u64::from(job.length)),
            // The medium is not touched: there is no cache of writes, and nothing to give up.
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => return overhead,
        }
        if job.kind == Kind::Read {
            match self.cache.find(job.offset, u64::from(job.length)) {
                Found::All => {
                    let takes = overhead + length / self.spec.bus;
                    // It reads on meanwhile.
                    return takes;
                }
                Found::Start { missing, rate } => {
                    // The medium goes on under the head while the command is taken in.
                    let takes = (missing as f64 / rate).max(overhead + length / self.spec.bus);
                    self.cache.extend(job.offset, u64::from(job.length), now + takes);
                    self.head = self.spec.place(job.offset + u64::from(job.length));
                    return takes;
                }
                Found::Nothing => {}
            }
        }
        let takes = overhead + self.reach(now, command) + length / command.rate;
        self.head = self.spec.place(job.offset + u64::from(job.length));
        if job.kind == Kind::Read {
            self.cache.begin(job.offset, u64::from(job.length), command.rate, now + takes);
        } else {
            self.cache.stop();
        }
        takes
    }
}

impl Model for Hdd {
    fn submit(&mut self, now: Instant, job: Job) {
        let command = self.command(now, job);
        self.line.push_back(command);
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

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn servers(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests;
