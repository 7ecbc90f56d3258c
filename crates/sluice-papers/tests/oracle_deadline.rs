//! A second, slow and obvious implementation of the deadline elevator, compared with the fast one decision by decision.
//!
//! All requests are in one list in arrival order; offsets, successors and ages are found by scans.

use std::collections::VecDeque;
use std::time::Duration;

use crate::common::plan::{Plan, for_plans, for_plans_as_found, plan};
use crate::common::twin::twin;
use crate::common::*;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, ChangeError, Decision, Scheduler, State};
use sluice_sched::*;

#[derive(Debug, Clone, Copy)]
struct Numbers {
    early: bool,
    read_expire: u64,
    write_expire: u64,
    writes_starved: u64,
    fifo_batch: u64,
}

#[derive(Debug)]
struct Oracle {
    numbers: Numbers,
    queue: Vec<Request>,
    forced: VecDeque<Request>,
    /// Successor of the last request.
    next: Option<Request>,
    batching: u64,
    starved: u64,
    last_end: u64,
}

fn place(request: &Request) -> (u64, RequestId) {
    (request.offset, request.id)
}

fn is_write(request: &Request) -> bool {
    request.kind != Kind::Read
}

impl Oracle {
    fn new(numbers: Numbers) -> Self {
        let (queue, forced) = (Vec::new(), VecDeque::new());
        Oracle { numbers, queue, forced, next: None, batching: 0, starved: 0, last_end: 0 }
    }

    fn of(&self, write: bool) -> impl Iterator<Item = &Request> {
        self.queue.iter().filter(move |request| is_write(request) == write)
    }

    fn successor(&self, of: &Request) -> Option<Request> {
        self.of(is_write(of)).filter(|request| place(request) > place(of)).min_by_key(|r| place(r)).copied()
    }

    fn take(&mut self, request: &Request) {
        self.queue.retain(|queued| queued.id != request.id);
    }

    /// 3.4, step 1.
    fn goes_on(&mut self) -> Option<Request> {
        let candidate = self.next?;
        if self.numbers.early && candidate.offset != self.last_end {
            self.batching += self.numbers.fifo_batch;
        }
        Some(candidate).filter(|_| self.batching < self.numbers.fifo_batch)
    }

    /// Steps 2 and 3: whether writes are served.
    fn direction(&mut self) -> Option<bool> {
        let (reads, writes) = (self.of(false).count() > 0, self.of(true).count() > 0);
        if !reads && !writes {
            return None;
        }
        let mut starves = false;
        if reads && writes {
            starves = self.starved >= self.numbers.writes_starved;
            self.starved += 1;
        }
        let write = !reads || starves;
        self.starved = if write { 0 } else { self.starved };
        Some(write)
    }

    /// Step 4.
    fn begins(&mut self, now: Instant, write: bool) -> Request {
        let oldest = *self.of(write).next().expect("it has requests");
        let expire = if write { self.numbers.write_expire } else { self.numbers.read_expire };
        let expired = now.nanos_since(oldest.arrival) > expire;
        let next = self.next.filter(|next| is_write(next) == write);
        match (next, expired, self.numbers.early) {
            (Some(next), false, true) => return next,
            (Some(next), false, false) => {
                self.batching = 0;
                return next;
            }
            _ => self.batching = 0,
        }
        match (expired, self.numbers.early) {
            (false, true) => *self.of(write).min_by_key(|request| place(request)).expect("it has requests"),
            _ => oldest,
        }
    }
}

impl Scheduler for Oracle {
    fn insert(&mut self, _now: Instant, request: Request) {
        let same = |known: &&Request| known.offset == request.offset;
        let alias = self.of(is_write(&request)).find(same).copied().filter(|_| request.kind != Kind::Flush);
        self.queue.push(request);
        let Some(older) = alias else { return };
        if self.next.is_some_and(|next| next.id == older.id) {
            self.next = self.successor(&older);
        }
        self.take(&older);
        self.forced.push_back(older);
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        unreachable!("the plans do not merge")
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if let Some(forced) = self.forced.pop_front() {
            return Decision::Dispatch(forced);
        }
        let request = match self.goes_on() {
            Some(request) => request,
            None => match self.direction() {
                Some(write) => self.begins(now, write),
                None => return Decision::Idle,
            },
        };
        // Step 5.
        self.batching += 1;
        self.next = self.successor(&request);
        self.last_end = request.offset + u64::from(request.length);
        self.take(&request);
        Decision::Dispatch(request)
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {}

    fn configure(&mut self, _now: Instant, _change: Change) -> Result<(), ChangeError> {
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        removed.extend(self.forced.iter().chain(&self.queue).filter(|request| scope.contains(request)));
        self.forced.retain(|request| !scope.contains(request));
        while let Some(next) = self.next.filter(|next| scope.contains(next)) {
            self.next = self.successor(&next);
        }
        self.queue.retain(|request| !scope.contains(request));
    }

    fn inspect(&self, _now: Instant) -> State {
        State::default()
    }
}

fn both(plan: &Plan, fast: Numbers, oracle: Numbers) -> Box<dyn Scheduler> {
    let nanos = |nanos: u64| format!("{}ns", Duration::from_nanos(nanos).as_nanos());
    let subject = Subject::of("deadline")
        .text("tick", "0s")
        .text("mode", if fast.early { "early" } else { "late" })
        .text("read_expire", &nanos(fast.read_expire))
        .text("write_expire", &nanos(fast.write_expire))
        .with("writes_starved", Value::Integer(fast.writes_starved as i64))
        .with("fifo_batch", Value::Integer(fast.fifo_batch as i64));
    twin(subject.build(&plan.info()), Box::new(Oracle::new(oracle)))
}

const USUAL: Numbers =
    Numbers { early: false, read_expire: 500 * MILLI, write_expire: 5 * SECOND, writes_starved: 2, fifo_batch: 16 };

// rule: deadline.arrive, deadline.alias, deadline.batch-continues, deadline.read-first, deadline.starved-reset
// rule: deadline.fifo-expire, deadline.successor, deadline.early-contiguous, deadline.early-wrap
// rule: deadline.early-batch-reset, deadline.direction, deadline.state
#[test]
fn the_fast_scheduler_matches_the_oracle() {
    let soon = Numbers { read_expire: 20 * MILLI, write_expire: 70 * MILLI, ..USUAL };
    for early in [false, true] {
        for (writes_starved, fifo_batch) in [(2, 16), (1, 3), (0, 4), (3, 1)] {
            for numbers in [USUAL, soon] {
                let numbers = Numbers { early, writes_starved, fifo_batch, ..numbers };
                for_plans(24, plan(true), |plan| {
                    let world = plan.run(both(plan, numbers, numbers), Instant::ZERO, |_| ());
                    assert!(!world.log.is_empty());
                });
            }
        }
    }
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn another_batch_is_noticed() {
    let other = Numbers { fifo_batch: 15, ..USUAL };
    for_plans_as_found(48, plan(true), |plan| drop(plan.run(both(plan, USUAL, other), Instant::ZERO, |_| ())));
}
