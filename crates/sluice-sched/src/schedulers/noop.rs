//! noop: first in, first out.
//!
//! Idea: dispatch requests in arrival order. The VM with most requests queued gets most of the device.
//!
//! Rules: append each arrival to the queue, and dispatch its first request. The gate merges adjacent requests (unless
//! the device has `merging = false`); the result keeps the older one's position.
//!
//! Parameters: none.
//!
//! Example: a VM with 32 outstanding requests next to one with 8 gets about 80 % of the device.
//!
//! Deviations: Linux keeps a list between elevator and driver. It would hold one request at a time and is left out.
//!
//! Source: noop elevator of Linux, by its documented behaviour.

// Consequences that tests assert:
// rule: noop.no-isolation, noop.interleaving

use std::collections::VecDeque;

use serde::Deserialize;

use crate::guarantees::{Guarantees, Order, Waits};
use crate::params::{self, ParamError, ParamTable};
use crate::request::{Completion, Request};
use crate::scheduler::{Advice, Change, ChangeError, Decision, Descriptor, DeviceInfo, Scheduler, Scope, State};
use crate::time::Instant;

/// No parameters.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "noop",
    summary: "first in, first out: no isolation between VMs",
    idea: "Requests go to the device in order of arrival. The share of a VM follows the number of requests that it \
           keeps outstanding, so a VM with a deep queue gets most of the device.",
    when: "As the baseline that shows what a scheduler gains, and for a device that serves only one VM.",
    source: "noop elevator of Linux, from its documented behaviour",
    merging: true,
    guarantees: |_, _| Guarantees { order: Order::All, waits: Waits::Never, ..Guarantees::BASE },
    advice: Advice {
        rank_in_guest: 1,
        rank_for_one: 2,
        stands_for: &[
            ("none", "the same order, which is that of arrival"),
            (
                "kyber",
                "the same order; kyber also bounds the reads and writes in flight by their measured latency, which the model does not",
            ),
        ],
        ..Advice::BASE
    },
    build,
    ..Descriptor::BASE
};

fn build(_facts: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let Params {} = params::parse(table)?;
    Ok(Box::new(Noop::default()))
}

/// State: one queue.
#[derive(Debug, Default)]
pub struct Noop {
    queue: VecDeque<Request>,
    in_flight: u64,
}

impl Scheduler for Noop {
    // rule: noop.fifo, noop.order, noop.no-isolation, noop.interleaving
    fn insert(&mut self, _now: Instant, request: Request) {
        self.queue.push_back(request);
    }

    // rule: noop.merges
    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        // Sorted by arrival, and therefore by number.
        match self.queue.binary_search_by_key(&grown.id, |queued| queued.id) {
            Ok(place) => {
                self.queue[place] = grown;
                true
            }
            Err(_) => false,
        }
    }

    // rule: noop.fifo, noop.work-conserving, noop.no-starvation
    fn dispatch(&mut self, _now: Instant) -> Decision {
        match self.queue.pop_front() {
            Some(request) => {
                self.in_flight += 1;
                Decision::Dispatch(request)
            }
            None => Decision::Idle,
        }
    }

    // rule: noop.complete-nothing
    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
    }

    fn configure(&mut self, _now: Instant, _change: Change) -> Result<(), ChangeError> {
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        removed.extend(self.queue.iter().filter(|request| scope.contains(request)));
        self.queue.retain(|request| !scope.contains(request));
    }

    fn inspect(&self, _now: Instant) -> State {
        let mut state = State { queued: self.queue.len() as u64, in_flight: self.in_flight, ..State::default() };
        for request in &self.queue {
            state.owners.entry(request.owner.0).or_default().queued += 1;
        }
        state
    }
}
