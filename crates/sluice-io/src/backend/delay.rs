//! A wrapper that makes a queue a device of known capacity: each request takes a stated time, and at most `parallel` run
//! concurrently. For tests and demonstrations.
//!
//! Model: `parallel` servers and one queue. A request starts when the first server is free and occupies it for its service
//! time, which comes from a distribution and, if a bandwidth is stated, from the request's size. The real operation runs at
//! the same time, and the request completes when both have ended. The servers run back to back in modelled time: a late
//! wake-up delays a completion, but costs no capacity while requests are queued.
//!
//! Example: 4 ms and 8 servers serve 2,000 requests per second, whatever the speed of the machine.
//!
//! The log of its slots (request, start, duration) shows afterwards which capacity there was.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::time::Duration;

use rand_distr::{Distribution, Exp1, Uniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use sluice_sched::gate::{Part, Slot, Submission};
use sluice_sched::{ByteRate, Device, Instant, Request};

use crate::backend::device_queue::{DeviceQueue, OpIndex};

/// Service time of a request, without the part that depends on its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceTime {
    /// Constant.
    Fixed(Duration),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
    /// Uniformly distributed between the two.
    Uniform(Duration, Duration),
}

/// Parameters of a delay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelaySpec {
    /// Service time of each request.
    pub time: ServiceTime,
    /// Number of servers.
    pub parallel: u32,
    /// If stated, size / bandwidth is added to each read and write.
    pub bandwidth: Option<ByteRate>,
    /// Seed of the random service times.
    pub seed: u64,
}

/// The modelled servers, and operations that completed at the disk before they do in the model.
pub struct Delay {
    spec: DelaySpec,
    random: Pcg64Mcg,
    /// When each server is free, the first on top; ties by its number.
    servers: BinaryHeap<Reverse<(u64, u32)>>,
    /// When the modelled service of each slot of the gate ends.
    ends: Vec<Instant>,
    /// Completed operations, by the end of their modelled service.
    held: BinaryHeap<Reverse<(u64, u32)>>,
    log: Option<Box<dyn Write + Send>>,
}

impl Delay {
    /// Creates a delay without requests. The log, if there is one, gets a line for each request.
    ///
    /// # Errors
    /// The error of writing the log's first line.
    pub fn new(spec: DelaySpec, log: Option<Box<dyn Write + Send>>) -> io::Result<Self> {
        let mut delay = Delay {
            spec,
            random: Pcg64Mcg::seed_from_u64(spec.seed),
            servers: (0..spec.parallel.max(1)).map(|server| Reverse((0, server))).collect(),
            ends: Vec::new(),
            held: BinaryHeap::new(),
            log,
        };
        if let Some(log) = &mut delay.log {
            writeln!(log, "dispatch_ns,start_ns,end_ns,server,id,owner,volume,kind,length_bytes,cost,phase")?;
        }
        Ok(delay)
    }

    /// Returns `queue` with this delay.
    pub(crate) fn wrap<'a, Q: DeviceQueue>(&'a mut self, queue: &'a mut Q) -> Delayed<'a, Q> {
        Delayed { delay: self, queue }
    }

    /// Returns when the next held operation completes.
    fn next_wakeup(&self) -> Option<Instant> {
        self.held.peek().map(|Reverse((end, _))| Instant::from_nanos(*end))
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

    /// Starts the modelled service of a request, and returns its end.
    fn start(&mut self, now: Instant, request: &Request) -> Instant {
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
                // names nothing: it is logged once, and the slot log is closed.
                tracing::error!(%error, "Cannot write the slot log; free disk space and restart the daemon");
                self.log = None;
            }
        }
        Instant::from_nanos(end)
    }

    /// Holds an operation that has completed at the disk until `end`.
    fn hold(&mut self, index: OpIndex, end: Instant) {
        self.held.push(Reverse((end.as_nanos(), index.0)));
    }

    /// Returns the next held operation whose modelled service has ended.
    fn pop(&mut self, now: Instant) -> Option<OpIndex> {
        let Reverse((end, index)) = *self.held.peek()?;
        if end > now.as_nanos() {
            return None;
        }
        self.held.pop();
        Some(OpIndex(index))
    }

    fn set_end(&mut self, slot: Slot, end: Instant) {
        let index = slot.0 as usize;
        if self.ends.len() <= index {
            self.ends.resize(index + 1, Instant::ZERO);
        }
        self.ends[index] = end;
    }
}

/// A queue with a delay.
pub(crate) struct Delayed<'a, Q> {
    delay: &'a mut Delay,
    queue: &'a mut Q,
}

impl<Q: DeviceQueue> Delayed<'_, Q> {
    fn start(&mut self, now: Instant, submission: &Submission, occupies_device: bool) {
        let end = if occupies_device { self.delay.start(now, &submission.request) } else { now };
        self.delay.set_end(submission.slot, end);
    }
}

impl<Q: DeviceQueue> Device for Delayed<'_, Q> {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        self.start(now, submission, self.queue.occupies_device(submission.token));
        self.queue.submit(now, submission);
    }

    fn submit_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        let occupies_device = parts.iter().any(|part| self.queue.occupies_device(part.token));
        self.start(now, submission, occupies_device);
        self.queue.submit_merged(now, submission, parts);
    }
}

impl<Q: DeviceQueue> DeviceQueue for Delayed<'_, Q> {
    fn next_completed(&mut self, now: Instant) -> Option<OpIndex> {
        while let Some(index) = self.queue.next_completed(now) {
            let end = self.delay.ends[self.queue.slot_of(index).0 as usize];
            if end <= now {
                return Some(index);
            }
            self.delay.hold(index, end);
        }
        self.delay.pop(now)
    }

    fn next_wakeup(&self) -> Option<Instant> {
        [self.delay.next_wakeup(), self.queue.next_wakeup()].into_iter().flatten().min()
    }

    fn slot_of(&self, index: OpIndex) -> Slot {
        self.queue.slot_of(index)
    }

    fn occupies_device(&self, token: u32) -> bool {
        self.queue.occupies_device(token)
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
    fn servers_run_back_to_back() {
        let mut delay = delay(ServiceTime::Fixed(Duration::from_millis(4)), 2);
        let ends: Vec<_> = (0..5).map(|_| delay.start(Instant::from_millis(10), &request(4096))).collect();
        assert_eq!(ends, [14, 14, 18, 18, 22].map(Instant::from_millis));
        delay.hold(OpIndex(3), ends[1]);
        delay.hold(OpIndex(2), ends[0]);
        assert_eq!(delay.next_wakeup(), Some(Instant::from_millis(14)));
        assert_eq!(delay.pop(Instant::from_millis(13)), None);
        let late = Instant::from_millis(15);
        assert_eq!([delay.pop(late), delay.pop(late), delay.pop(late)], [Some(OpIndex(2)), Some(OpIndex(3)), None]);
    }

    #[test]
    fn service_time_follows_size_and_distribution() {
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
