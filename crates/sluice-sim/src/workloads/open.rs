//! An open loop: requests come when they come, whether those before are over or not.

use std::time::Duration;

use sluice_sched::Instant;

use super::{Mix, Workload, WorkloadRequest, after};
use crate::random::Stream;

/// When they come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Independent of each other, at this mean distance.
    Poisson(Duration),
    /// At this distance.
    Periodic(Duration),
    /// So many at once, at this distance.
    Bursts(u32, Duration),
}

/// Requests at times of their own.
#[derive(Debug)]
pub struct Open {
    mix: Mix,
    pattern: Pattern,
    random: Stream,
    due: Instant,
    /// Of the burst that is due.
    left: u32,
}

impl Open {
    /// The first request or burst comes at `start`, a Poisson stream's one distance later.
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
