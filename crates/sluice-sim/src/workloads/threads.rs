//! Threads that follow a program: submit, wait for the completion, think, submit the next request.
//!
//! A completion does not name its thread: the thread that has waited longest continues. Threads with the same program
//! are interchangeable, so the requests of all together do not depend on it.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use sluice_sched::Instant;

use super::{Workload, WorkloadRequest, after};
use crate::random::Stream;

/// Next step of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Submits a request and waits for its completion.
    Ask(WorkloadRequest),
    /// Does other work for this time.
    Think(Duration),
    /// Waits for the completion of another thread's request, then asks for new steps.
    Park,
}

/// Program of the threads.
pub trait Program {
    /// Adds the next steps of a thread that has done all of its own; none if it has ended.
    fn refill(&mut self, thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>);
}

/// A program of several workloads: what one of them takes, such as the next block of a file, the others have no more.
impl<P: Program> Program for Rc<RefCell<P>> {
    fn refill(&mut self, thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>) {
        self.borrow_mut().refill(thread, random, steps);
    }
}

/// Threads and their program.
#[derive(Debug)]
pub struct Threads<P> {
    program: P,
    random: Stream,
    steps: Vec<VecDeque<Step>>,
    /// The request of each thread that is due.
    asks: Vec<Option<WorkloadRequest>>,
    /// When threads submit, by time and then in the order in which they became ready.
    due: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    sequence: u64,
    /// Threads with requests in flight, the longest waiting first.
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

    /// Executes a thread's steps until it submits, is parked or has ended.
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
        let Reverse((_, _, thread)) = self.due.pop().expect("`next` returned a due thread");
        self.waiting.push_back(thread);
        self.asks[thread as usize].take().expect("a due thread has a request")
    }

    fn completed(&mut self, now: Instant) {
        let thread = self.waiting.pop_front().expect("a completed request was submitted");
        self.advance(thread, now);
        for (at, thread) in std::mem::take(&mut self.parked) {
            self.advance(thread, at.max(now));
        }
    }
}
