//! An open loop: requests arrive at their times, whether previous ones have completed or not.

use std::time::Duration;

use sluice_sched::Instant;

use super::{Mix, Workload, WorkloadRequest, after};
use crate::random::Stream;

/// Arrival times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Independent, with this mean interval.
    Poisson(Duration),
    /// With this interval.
    Periodic(Duration),
    /// This number at the same instant, with this interval.
    Bursts(u32, Duration),
}

/// Requests at fixed or random times.
#[derive(Debug)]
pub struct Open {
    mix: Mix,
    pattern: Pattern,
    random: Stream,
    due: Instant,
    /// Requests left of the current burst.
    left: u32,
}

impl Open {
    /// The first request or burst arrives at `start`, that of a Poisson process one interval later.
    #[must_use]
    pub fn new(pattern: Pattern, mix: Mix, start: Instant, mut random: Stream) -> Self {
        let (due, left) = match pattern {
            Pattern::Poisson(mean) => (after(start, mean.mul_f64(random.exponential())), 1),
            Pattern::Periodic(_) => (start, 1),
            Pattern::Bursts(size, _) => (start, size.max(1)),
        };
        Open { mix, pattern, random, due, left }
    }
}

impl Workload for Open {
    fn next(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        self.left -= 1;
        if self.left == 0 {
            let (distance, size) = match self.pattern {
                Pattern::Poisson(mean) => (mean.mul_f64(self.random.exponential()), 1),
                Pattern::Periodic(distance) => (distance, 1),
                Pattern::Bursts(size, distance) => (distance, size.max(1)),
            };
            (self.due, self.left) = (after(self.due, distance), size);
        }
        self.mix.ask(&mut self.random)
    }

    fn completed(&mut self, _now: Instant) {}

    fn resume(&mut self, now: Instant) {
        if self.due < now {
            self.due = match self.pattern {
                Pattern::Poisson(mean) => after(now, mean.mul_f64(self.random.exponential())),
                Pattern::Periodic(_) | Pattern::Bursts(..) => now,
            };
        }
    }
}
