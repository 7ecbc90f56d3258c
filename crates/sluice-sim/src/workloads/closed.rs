//! A closed loop: a number of outstanding requests, each followed by the next one after a think time.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;

use super::{Mix, Workload, WorkloadRequest, after};
use crate::random::Stream;

/// Threads that submit, wait, think, and submit again. Two cache lines, of which a request changes the first alone if no other thread
/// thinks.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Closed {
    random: Stream,
    /// When the next thinking thread submits.
    next: Option<Instant>,
    think: Duration,
    /// When the other thinking threads submit, ascending.
    later: VecDeque<Instant>,
    mix: Mix,
}

impl Closed {
    /// `outstanding` threads that begin at `start`.
    #[must_use]
    pub fn new(outstanding: u32, think: Duration, mix: Mix, start: Instant, random: Stream) -> Self {
        let mut later: VecDeque<Instant> = vec![start; outstanding as usize].into();
        Closed { random, next: later.pop_front(), think, later, mix }
    }
}

impl Workload for Closed {
    fn next(&self) -> Option<Instant> {
        self.next
    }

    fn fetch(&self) {
        std::hint::black_box((self.next, self.mix.length));
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        self.next = self.later.pop_front();
        self.mix.ask(&mut self.random)
    }

    fn completed(&mut self, now: Instant) {
        let at = after(now, self.think);
        match self.next {
            None => self.next = Some(at),
            Some(_) => self.later.push_back(at),
        }
    }
}
