//! Servers of a stated speed: the device of queueing theory. With fixed times and one server, a constant rate.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;

use super::{Job, Model, nanos};
use crate::random::Stream;

/// Distribution of service times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceTime {
    /// Constant.
    Fixed(Duration),
    /// Exponential with this mean.
    Exponential(Duration),
    /// Uniform between the two.
    Uniform(Duration, Duration),
}

/// `k` servers with one common queue, first come, first served.
#[derive(Debug)]
pub struct Servers {
    time: ServiceTime,
    count: u32,
    random: Stream,
    queue: VecDeque<Slot>,
    /// Jobs being served, by completion time.
    serving: VecDeque<(Instant, Slot)>,
    busy: u64,
}

impl Servers {
    #[must_use]
    pub fn new(count: u32, time: ServiceTime, random: Stream) -> Self {
        let (queue, serving) = (VecDeque::new(), VecDeque::with_capacity(count as usize));
        Servers { time, count: count.max(1), random, queue, serving, busy: 0 }
    }

    fn start(&mut self, now: Instant, slot: Slot) {
        let takes = match self.time {
            ServiceTime::Fixed(time) => time.as_nanos() as u64,
            ServiceTime::Exponential(mean) => nanos(mean.as_secs_f64() * self.random.exponential()),
            ServiceTime::Uniform(least, most) => {
                least.as_nanos() as u64 + self.random.below((most - least).as_nanos() as u64 + 1)
            }
        };
        self.busy += takes;
        let ends = Instant::from_nanos(now.as_nanos() + takes.max(1));
        // Jobs with the same completion time stay in arrival order.
        if self.serving.back().is_none_or(|(last, _)| *last <= ends) {
            return self.serving.push_back((ends, slot));
        }
        let place = self.serving.iter().rposition(|(other, _)| *other <= ends).map_or(0, |place| place + 1);
        self.serving.insert(place, (ends, slot));
    }
}

impl Model for Servers {
    fn submit(&mut self, now: Instant, job: Job) {
        if self.serving.len() < self.count as usize {
            self.start(now, job.slot);
        } else {
            self.queue.push_back(job.slot);
        }
    }

    fn next(&self) -> Option<Instant> {
        self.serving.front().map(|(ends, _)| *ends)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let (ends, slot) = *self.serving.front()?;
        if ends > now {
            return None;
        }
        self.serving.pop_front();
        if let Some(next) = self.queue.pop_front() {
            self.start(now, next);
        }
        Some(slot)
    }

    fn jobs_held(&self) -> usize {
        self.queue.len() + self.serving.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.serving.iter().map(|(ends, _)| ends.nanos_since(now)).sum()
    }

    fn servers(&self) -> u32 {
        self.count
    }
}
