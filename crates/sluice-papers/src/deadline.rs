//! deadline: batches in order of offsets, started by expired requests, reads before writes.
//!
//! Idea: sweep through the queue in one direction to save seeks, but look at age between batches, so that no request
//! waits without bound. Reads come first, since their senders wait, but only a limited number of times while writes are
//! queued.
//!
//! Rules: each direction (read or write) has its requests by offset and by age. A batch continues with the successor of
//! the last dispatched request until it is full. Then a direction is chosen: reads, unless they have already passed
//! over queued writes `writes_starved` times. In it the next batch starts with the oldest request if that has expired
//! or if there is no successor, otherwise with the successor.
//!
//! Parameters: see [`Params`].
//!
//! Example: 40 reads and 40 writes are queued. The order is two read batches of 16, a write batch of 16, the remaining
//! reads as a batch of 8, and 24 writes in two batches.
//!
//! Deviations: a flush is a write of length 0 at its volume's offset, and orders nothing. The gate merges;
//! `front_merges` declines its offers.
//!
//! Source: deadline elevator of Linux 2.6.18 and 2.6.32, by its documentation and measured behaviour.

use core::time::Duration;
use std::collections::VecDeque;

use serde::Deserialize;

use crate::elevator::{Queue, SortKey, TICK, Ticks};
use sluice_sched::guarantees::{Guarantees, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::request::{Completion, Kind, Request};
use sluice_sched::scheduler::{Advice, Change, ChangeError, Decision, Descriptor, DeviceInfo, Scheduler, Scope, State};
use sluice_sched::time::Instant;

/// Kernel whose behaviour is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Linux 2.6.32: a batch continues over gaps.
    #[serde(rename = "late")]
    V2632,
    /// Linux 2.6.18: a batch ends at the first gap.
    #[serde(rename = "early")]
    V2618,
}

/// The parameters in `[device.NAME.deadline]`.
// rule: deadline.read-expire, deadline.write-expire, deadline.writes-starved, deadline.fifo-batch, deadline.front-merges
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    pub mode: Mode,
    /// Age from which a read starts the next batch of reads; not a guarantee.
    #[serde(with = "params::duration")]
    pub read_expire: Duration,
    /// Age from which a write starts the next batch of writes; not a guarantee.
    #[serde(with = "params::duration")]
    pub write_expire: Duration,
    /// Maximum number of read batches that pass over queued writes.
    pub writes_starved: u32,
    /// Maximum number of requests in a batch.
    pub fifo_batch: u32,
    /// Whether a request may be prepended to a queued one.
    pub front_merges: bool,
    /// Resolution of the clock; 0 is exact time.
    #[serde(with = "params::duration")]
    pub tick: Duration,
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "deadline",
    summary: "batches in address order, started by expired requests; reads before writes",
    idea: "Requests are dispatched in address order, in batches. Between two batches the oldest request is checked: if \
           it has expired, it starts the next batch. Reads go first, but only a limited number of read batches may \
           pass waiting writes. VMs are not distinguished.",
    when: "For a device that serves only one VM, or where no VM has guarantees and seeks are the main cost.",
    source: "deadline elevator of Linux 2.6.18 and 2.6.32, from its documentation and measured behaviour",
    merging: true,
    guarantees: |_, _| Guarantees { waits: Waits::Never, ..Guarantees::BASE },
    advice: Advice {
        rank_in_guest: 2,
        rank_for_one: 1,
        stands_for: &[(
            "mq-deadline",
            "the same rules of order, expiry and batches; the model knows no priority classes",
        )],
        ..Advice::BASE
    },
    parameters: PARAMETERS,
    build,
    ..Descriptor::BASE
};

const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "mode",
        kind: "word",
        range: Range::Words(&["late", "early"]),
        default: "\"late\"",
        help: "late: as in Linux 2.6.32; early: as in 2.6.18, where a batch ends at the first request that is not \
               contiguous with the previous one",
    },
    Parameter {
        name: "read_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"500ms\"",
        help: "Age from which a read starts the next batch of reads; not a guarantee",
    },
    Parameter {
        name: "write_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"5s\"",
        help: "Age from which a write starts the next batch of writes; not a guarantee, and checked only when the next \
               batch is one of writes",
    },
    Parameter {
        name: "writes_starved",
        kind: "batches",
        range: Range::Number(0, 65_536),
        default: "2",
        help: "Maximum number of read batches that pass waiting writes",
    },
    Parameter {
        name: "fifo_batch",
        kind: "requests",
        range: Range::Number(1, 65_536),
        default: "16",
        help: "Maximum number of requests in a batch",
    },
    Parameter {
        name: "front_merges",
        kind: "true or false",
        range: Range::Flag,
        default: "true",
        help: "Whether a request may be merged in front of a queued one, if the device merges",
    },
    TICK,
];

fn build(_facts: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(PARAMETERS, table)?;
    Ok(Box::new(Deadline::new(&params)))
}

const READ: usize = 0;
const WRITE: usize = 1;

// rule: deadline.direction
fn direction(request: &Request) -> usize {
    if request.kind == Kind::Read { READ } else { WRITE }
}

// rule: deadline.state
#[derive(Debug)]
pub struct Deadline {
    mode: Mode,
    expire: [Duration; 2],
    writes_starved: u64,
    fifo_batch: u64,
    front_merges: bool,
    ticks: Ticks,
    queues: [Queue; 2],
    /// Successor of the last dispatched request, by direction; the other direction has none.
    next: [Option<SortKey>; 2],
    /// Requests dispatched in the batch.
    batching: u64,
    /// Read batches that have passed over queued writes since the last write batch.
    starved: u64,
    last_end: u64,
    /// Requests that another request at the same offset forced out.
    forced: VecDeque<Request>,
    in_flight: u64,
}

impl Deadline {
    fn new(params: &Params) -> Self {
        Deadline {
            mode: params.mode,
            expire: [params.read_expire, params.write_expire],
            writes_starved: u64::from(params.writes_starved),
            fifo_batch: u64::from(params.fifo_batch),
            front_merges: params.front_merges,
            ticks: Ticks::new(params.tick),
            queues: Default::default(),
            next: [None; 2],
            batching: 0,
            starved: 0,
            last_end: 0,
            forced: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// The request with which the batch continues.
    // rule: deadline.batch-continues, deadline.early-contiguous, deadline.batch-order
    fn continues(&mut self) -> Option<(usize, SortKey)> {
        let direction = if self.next[WRITE].is_some() { WRITE } else { READ };
        let node = self.next[direction]?;
        if self.mode == Mode::V2618 && node.offset != self.last_end {
            self.batching = self.batching.saturating_add(self.fifo_batch);
        }
        (self.batching < self.fifo_batch).then_some((direction, node))
    }

    // rule: deadline.read-first, deadline.starved-reset, deadline.write-progress, deadline.read-progress
    // rule: deadline.relative-starvation
    fn choose_direction(&mut self) -> Option<usize> {
        let waiting = [READ, WRITE].map(|direction| !self.queues[direction].is_empty());
        let direction = match waiting {
            [false, false] => return None,
            [true, false] => READ,
            [false, true] => WRITE,
            [true, true] => {
                let passed_over = self.starved;
                self.starved += 1;
                if passed_over >= self.writes_starved { WRITE } else { READ }
            }
        };
        if direction == WRITE {
            self.starved = 0;
        }
        Some(direction)
    }

    /// The first request of a batch.
    // rule: deadline.fifo-expire, deadline.early-wrap, deadline.early-batch-reset, deadline.lateness
    // rule: deadline.one-expired, deadline.expired-storm
    fn begin_batch(&mut self, now: Instant, direction: usize) -> SortKey {
        let queue = &self.queues[direction];
        let oldest = queue.oldest().expect("a chosen direction has requests");
        let expired = self.ticks.shown(now) > queue.expiry(oldest);
        match (self.mode, self.next[direction]) {
            (Mode::V2618, Some(next)) if !expired => next,
            (Mode::V2632, Some(next)) if !expired => {
                self.batching = 0;
                next
            }
            (Mode::V2618, None) if !expired => {
                self.batching = 0;
                queue.lowest().expect("a chosen direction has requests")
            }
            _ => {
                self.batching = 0;
                oldest
            }
        }
    }

    // rule: deadline.successor
    fn send(&mut self, direction: usize, node: SortKey) -> Request {
        self.batching += 1;
        let request = self.queues[direction].remove(node);
        self.next = [None; 2];
        self.next[direction] = self.queues[direction].after(node);
        self.last_end = request.end();
        request
    }

    /// Takes the oldest request at the offset of an inserted one out of the queue, if there is an older one.
    fn force_older(&mut self, direction: usize, inserted: &Request) {
        let [_, oldest] = self.queues[direction].around(inserted.offset);
        let oldest = oldest.expect("at least the inserted request");
        if oldest.id < inserted.id {
            self.step_over(direction, oldest);
            self.forced.push_back(self.queues[direction].remove(oldest));
        }
    }

    /// Removes a node without dispatching it. A batch that would continue with it continues after it.
    fn step_over(&mut self, direction: usize, node: SortKey) {
        if self.next[direction] == Some(node) {
            self.next[direction] = self.queues[direction].after(node);
        }
    }
}

impl Scheduler for Deadline {
    // rule: deadline.arrive, deadline.alias
    fn insert(&mut self, _now: Instant, request: Request) {
        let direction = direction(&request);
        // After a change of schedulers, a request may have been queued for a while.
        let expiry = self.ticks.shown(request.arrival) + self.expire[direction];
        self.queues[direction].insert(request, expiry);
        if request.kind != Kind::Flush {
            self.force_older(direction, &request);
        }
    }

    // rule: deadline.front-merges
    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        let direction = direction(&grown);
        let queue = &mut self.queues[direction];
        let Some(node) = queue.find_part(&grown) else { return false };
        let front = node.offset != grown.offset;
        if front && !self.front_merges {
            return false;
        }
        let moved = queue.grow(node, grown);
        if self.next[direction] == Some(node) {
            self.next[direction] = Some(moved);
        }
        true
    }

    // rule: deadline.work-conserving, deadline.deceptive-idleness, deadline.no-fairness
    fn dispatch(&mut self, now: Instant) -> Decision {
        let forced = self.forced.pop_front();
        let request = forced.or_else(|| {
            let (direction, node) = match self.continues() {
                Some(next) => next,
                None => {
                    let direction = self.choose_direction()?;
                    (direction, self.begin_batch(now, direction))
                }
            };
            Some(self.send(direction, node))
        });
        match request {
            Some(request) => {
                self.in_flight += 1;
                Decision::Dispatch(request)
            }
            None => Decision::Idle,
        }
    }

    // rule: deadline.no-timer
    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    fn configure(&mut self, _now: Instant, _change: Change) -> Result<(), ChangeError> {
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        removed.extend(self.forced.iter().filter(|request| scope.contains(request)));
        self.forced.retain(|request| !scope.contains(request));
        for direction in [READ, WRITE] {
            while let Some(node) =
                self.next[direction].filter(|node| scope.contains(self.queues[direction].request(*node)))
            {
                self.step_over(direction, node);
            }
            self.queues[direction].cancel(scope, removed);
        }
    }

    fn inspect(&self, _now: Instant) -> State {
        let mut state = State { in_flight: self.in_flight, ..State::default() };
        for request in self.queues.iter().flat_map(Queue::iter).chain(&self.forced) {
            state.queued += 1;
            state.owners.entry(request.owner.0).or_default().queued += 1;
        }
        state
    }
}

#[cfg(test)]
mod tests;
