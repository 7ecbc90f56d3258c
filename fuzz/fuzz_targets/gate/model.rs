//! A modelled device: it holds submitted requests and states when each would complete.

use std::time::Duration;

use sluice_sched::gate::{Device, Part, Slot, Submission};
use sluice_sched::{Cost, Instant, Request};

/// A request at the device.
#[derive(Debug, Clone)]
pub struct Flying {
    pub slot: Slot,
    pub request: Request,
    pub parts: Vec<Part>,
    /// Whether it contains several arrivals.
    pub is_merged: bool,
    pub due: Instant,
}

/// The device.
#[derive(Debug, Default)]
pub struct Model {
    pub flying: Vec<Flying>,
    /// Current number of slots.
    pub depth: u32,
    /// Time for each request, and additional time for each KiB of it.
    pub service: Duration,
    pub service_kib: Duration,
    /// Instead of both: its capacity, in thousandths of a normalised request per second.
    pub capacity_milli: Option<u64>,
    /// Whether it serves one request at a time instead of all concurrently.
    pub is_serial: bool,
    /// Nothing completes before this instant.
    pub stalled_until: Instant,
    /// Whether every third request fails.
    pub is_failing: bool,
    busy_until: Instant,
    completed: u32,
}

impl Model {
    pub fn new(depth: u32) -> Self {
        Model { depth, service: Duration::from_millis(1), ..Model::default() }
    }

    /// Returns the index in `flying` and the instant of the next completion.
    pub fn next(&self) -> Option<(usize, Instant)> {
        let dues = self.flying.iter().enumerate().map(|(place, flying)| (flying.due.max(self.stalled_until), place));
        dues.min().map(|(due, place)| (place, due))
    }

    /// Removes a request. Returns it, and whether it succeeded.
    pub fn take(&mut self, place: usize) -> (Flying, bool) {
        self.completed += 1;
        (self.flying.remove(place), !(self.is_failing && self.completed.is_multiple_of(3)))
    }

    fn start(&mut self, now: Instant, submission: &Submission, parts: Vec<Part>, is_merged: bool) {
        let Submission { slot, request, .. } = *submission;
        assert!(self.flying.len() < self.depth as usize, "S2: more in flight than slots");
        assert!(self.flying.iter().all(|flying| flying.slot != slot), "S2: a slot is given twice");
        let service = match self.capacity_milli {
            Some(milli) => cost_time(u64::from(request.cost.raw()), milli),
            None => self.service + self.service_kib * (request.length >> 10),
        };
        let begins = if self.is_serial { now.max(self.busy_until) } else { now };
        let due = begins + service;
        self.busy_until = due;
        self.flying.push(Flying { slot, request, parts, is_merged, due });
    }
}

/// Returns the maximum time for a cost on a device of `milli` thousandths of a request per second.
pub fn cost_time(cost_raw: u64, milli: u64) -> Duration {
    let nanos = u128::from(cost_raw) * 1_000_000_000_000 / (u128::from(milli) * u128::from(Cost::ONE.raw()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Device for Model {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        let Submission { token, skip, request, .. } = *submission;
        self.start(now, submission, vec![Part { token, skip, length: request.length }], false);
    }

    fn submit_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        let first = parts[0];
        assert!(
            (submission.token, submission.skip) == (first.token, first.skip),
            "a merged request begins with its first"
        );
        self.start(now, submission, parts.to_vec(), true);
    }
}
