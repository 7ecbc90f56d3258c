//! Threads that follow a program: ask, wait until that is over, think, ask the next.
//!
//! A completion does not say whose it is: the thread that has waited longest goes on. Threads that do the same are
//! interchangeable, so nothing of what they ask in sum depends on it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use sluice_sched::Instant;

use super::{Workload, WorkloadRequest, after};
use crate::random::Stream;

/// What a thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Asks, and waits until it is over.
    Ask(WorkloadRequest),
    /// Does something else for so long.
    Think(Duration),
    /// Waits until a request of another thread is over, and looks again at what there is to do.
    Park,
}

/// What threads do.
pub trait Program {
    /// The next steps of a thread that has done all that it was given; none: it has ended.
    fn refill(&mut self, thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>);
}

/// Threads, and the program that they follow.
#[derive(Debug)]
pub struct Threads<P> {
    program: P,
    random: Stream,
    steps: Vec<VecDeque<Step>>,
    /// What a thread asks when it is its time.
    asks: Vec<Option<WorkloadRequest>>,
    /// When threads ask, by time and then in the order in which they were ready.
    due: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    sequence: u64,
    /// Whose requests are on their way, the longest first.
    waiting: VecDeque<u32>,
    parked: Vec<(Instant, u32)>,
}

impl<P: Program> Threads<P> {
    /// `count` threads that begin at `start`.
    #[must_use]
    pub fn new(count: u32, program: P, start: Instant, random: Stream) -> Self {
        let mut threads = Threads {
            program,
            random,
            steps: vec![VecDeque::new(); count as usize],
            asks: vec![None; count as usize],
            due: BinaryHeap::new(),
            sequence: 0,
            waiting: VecDeque::new(),
            parked: Vec::new(),
        };
        (0..count).for_each(|thread| threads.advance(thread, start));
        threads
    }

    /// Goes through a thread's steps until it asks, is parked or has ended.
    fn advance(&mut self, thread: u32, now: Instant) {
        let mut at = now;
        loop {
            let steps = &mut self.steps[thread as usize];
            if steps.is_empty() {
                self.program.refill(thread, &mut self.random, steps);
            }
            match steps.pop_front() {
                Some(Step::Ask(ask)) => {
                    self.asks[thread as usize] = Some(ask);
                    self.due.push(Reverse((at, self.sequence, thread)));
                    self.sequence += 1;
                    return;
                }
                Some(Step::Think(time)) => at = after(at, time),
                Some(Step::Park) => return self.parked.push((at, thread)),
                None => return,
            }
        }
    }
}

impl<P: Program> Workload for Threads<P> {
    fn next(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _, _))| *at)
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        let Reverse((_, _, thread)) = self.due.pop().expect("it said that a thread is due");
        self.waiting.push_back(thread);
        self.asks[thread as usize].take().expect("a thread that is due knows what it asks")
    }

    fn completed(&mut self, now: Instant) {
        let thread = self.waiting.pop_front().expect("what is over was asked");
        self.advance(thread, now);
        for (at, thread) in std::mem::take(&mut self.parked) {
            self.advance(thread, at.max(now));
        }
    }
}
