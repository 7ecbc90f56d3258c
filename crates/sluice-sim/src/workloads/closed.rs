//! A closed loop: a number of outstanding requests, each followed by the next one after a think time.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;

use super::{Mix, Workload, WorkloadRequest, after};
use crate::random::Stream;

/// Threads that submit, wait, think, and submit again.
#[derive(Debug)]
pub struct Closed {
    mix: Mix,
    think: Duration,
    random: Stream,
    /// When thinking threads submit next, ascending.
    due: VecDeque<Instant>,
}

impl Closed {
    /// `outstanding` threads that begin at `start`.
    #[must_use]
    pub fn new(outstanding: u32, think: Duration, mix: Mix, start: Instant, random: Stream) -> Self {
        Closed { mix, think, random, due: vec![start; outstanding as usize].into() }
    }
}

impl Workload for Closed {
    fn next(&self) -> Option<Instant> {
        self.due.front().copied()
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        self.due.pop_front();
        self.mix.ask(&mut self.random)
    }

    fn completed(&mut self, now: Instant) {
        self.due.push_back(after(now, self.think));
    }
}
