//! A device of known capacity, made of any other: every request takes a stated time, so many at once.
//!
//! Idea: k servers in parallel, one queue. A request starts when the first server is free and occupies it for its
//! service time, which follows from a distribution and, if a bandwidth is stated, from its size. The real operation runs
//! meanwhile; the request is over when both are. The servers work back to back in their own time: a late wake-up
//! delays a completion, but takes no capacity while requests wait here.
//!
//! Example: 4 ms, 8 at once: 2,000 requests per second, whatever the machine does.
//!
//! The log of its slots (who, when, how long) proves afterwards what capacity was there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::time::Duration;

use rand_distr::{Distribution, Exp1, Uniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use sluice_sched::gate::Slot;
use sluice_sched::{ByteRate, Instant, Request};

/// How long a request takes, before the part that depends on its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceTime {
    /// Always the same.
    Fixed(Duration),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
    /// Evenly between the two.
    Uniform(Duration, Duration),
}

/// A delay device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelaySpec {
    /// Per request.
    pub time: ServiceTime,
    /// How many at once.
    pub parallel: u32,
    /// Adds size / bandwidth to each read and write.
    pub bandwidth: Option<ByteRate>,
    /// Of the random times.
    pub seed: u64,
}

/// The servers, and what they have promised.
pub struct Delay {
    spec: DelaySpec,
    random: Pcg64Mcg,
    /// When each server is free, the first on top; ties by its number.
    servers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Requests that their server still holds, by when they are over.
    held: BinaryHeap<Reverse<(u64, u32)>>,
    log: Option<Box<dyn Write + Send>>,
}

impl Delay {
    /// A device as stated. The log, if there is one, gets a line for each request.
    pub fn new(spec: DelaySpec, log: Option<Box<dyn Write + Send>>) -> io::Result<Self> {
        let mut delay = Delay {
            spec,
            random: Pcg64Mcg::seed_from_u64(spec.seed),
            servers: (0..spec.parallel.max(1)).map(|server| Reverse((0, server))).collect(),
            held: BinaryHeap::new(),
            log,
        };
        if let Some(log) = &mut delay.log {
            writeln!(log, "dispatch_ns,start_ns,end_ns,server,id,owner,volume,kind,length_bytes,cost,phase")?;
        }
        Ok(delay)
    }

    fn service(&mut self, request: &Request) -> u64 {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let time = match self.spec.time {
            ServiceTime::Fixed(time) => nanos(time),
            ServiceTime::Exponential(mean) => {
                let factor: f64 = Exp1.sample(&mut self.random);
                (nanos(mean) as f64 * factor) as u64
            }
            ServiceTime::Uniform(low, high) => {
                let (low, high) = (nanos(low), nanos(high).max(nanos(low)));
                Uniform::new_inclusive(low, high).map_or(low, |between| between.sample(&mut self.random))
            }
        };
        let moves = matches!(request.kind, sluice_sched::Kind::Read | sluice_sched::Kind::Write);
        let transfer = match self.spec.bandwidth {
            Some(rate) if moves => u128::from(request.length) * 1_000_000_000 / u128::from(rate.bytes_per_second()),
            _ => 0,
        };
        time.saturating_add(u64::try_from(transfer).unwrap_or(u64::MAX))
    }

    /// A request comes to the device; when its server lets it go.
    pub fn start(&mut self, now: Instant, request: &Request) -> Instant {
        let service = self.service(request);
        let Reverse((free, server)) = self.servers.pop().expect("there is at least one server");
        let start = free.max(now.as_nanos());
        let end = start.saturating_add(service);
        self.servers.push(Reverse((end, server)));
        if let Some(log) = &mut self.log {
            let Request { id, owner, volume, kind, length, cost, phase, .. } = request;
            let line = writeln!(
                log,
                "{},{start},{end},{server},{},{},{},{},{length},{},{phase:?}",
                now.as_nanos(),
                id.0,
                owner.0,
                volume.0,
                kind.name(),
                cost.as_f64(),
            );
            if let Err(error) = line {
                // names nothing: it is said once, and the log is closed.
                tracing::error!(%error, "Cannot write the slot log; free disk space and restart the daemon");
                self.log = None;
            }
        }
        Instant::from_nanos(end)
    }

    /// The real operation of `slot` is over, but its server holds it until `end`.
    pub fn hold(&mut self, slot: Slot, end: Instant) {
        self.held.push(Reverse((end.as_nanos(), slot.0)));
    }

    /// The next that a server lets go by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<Slot> {
        let Reverse((end, slot)) = *self.held.peek()?;
        if end > now.as_nanos() {
            return None;
        }
        self.held.pop();
        Some(Slot(slot))
    }

    /// When to come back.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.held.peek().map(|Reverse((end, _))| Instant::from_nanos(*end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sched::{Cost, Flags, Kind, OwnerId, Phase, RequestId, VolumeId, Wait};

    fn request(length: u32) -> Request {
        Request {
            id: RequestId(0),
            arrival: Instant::ZERO,
            offset: 0,
            length,
            cost: Cost::ONE,
            owner: OwnerId(0),
            token: 0,
            rho: 0,
            delta: 0,
            volume: VolumeId(0),
            kind: Kind::Read,
            flags: Flags::NONE,
            phase: Phase::None,
            wait: Wait::None,
        }
    }

    fn delay(time: ServiceTime, parallel: u32) -> Delay {
        Delay::new(DelaySpec { time, parallel, bandwidth: None, seed: 1 }, None).unwrap()
    }

    #[test]
    fn servers_work_back_to_back() {
        let mut delay = delay(ServiceTime::Fixed(Duration::from_millis(4)), 2);
        let ends: Vec<_> = (0..5).map(|_| delay.start(Instant::from_millis(10), &request(4096))).collect();
        assert_eq!(ends, [14, 14, 18, 18, 22].map(Instant::from_millis));
        delay.hold(Slot(3), ends[1]);
        delay.hold(Slot(2), ends[0]);
        assert_eq!(delay.next(), Some(Instant::from_millis(14)));
        assert_eq!(delay.pop(Instant::from_millis(13)), None);
        let late = Instant::from_millis(15);
        assert_eq!([delay.pop(late), delay.pop(late), delay.pop(late)], [Some(Slot(2)), Some(Slot(3)), None]);
    }

    #[test]
    fn size_and_distribution_count() {
        let spec = DelaySpec {
            time: ServiceTime::Fixed(Duration::from_millis(5)),
            parallel: 1,
            bandwidth: Some(ByteRate::per_second(60_000_000)),
            seed: 1,
        };
        let mut sized = Delay::new(spec, None).unwrap();
        assert_eq!(sized.start(Instant::ZERO, &request(300_000)), Instant::from_millis(10));
        let mut random = delay(ServiceTime::Exponential(Duration::from_millis(2)), 1);
        let last = (0..10_000).map(|_| random.start(Instant::ZERO, &request(4096))).last().unwrap();
        let mean_ms = last.as_nanos() as f64 / 10_000.0 / 1e6;
        assert!((1.9..2.1).contains(&mean_ms), "{mean_ms}");
    }
}
