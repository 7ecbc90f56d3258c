//! A device made of numbers: it holds what it was given and says when each request would be done.

use std::time::Duration;

use sluice_sched::gate::{Device, Part, Slot, Submission};
use sluice_sched::{Cost, Instant, Request};

/// What is at the device.
#[derive(Debug, Clone)]
pub struct Flying {
    pub slot: Slot,
    pub request: Request,
    pub parts: Vec<Part>,
    /// It carries several arrivals.
    pub is_merged: bool,
    pub due: Instant,
}

/// The device.
#[derive(Debug, Default)]
pub struct Model {
    pub flying: Vec<Flying>,
    /// Slots that it has now.
    pub depth: u32,
    /// Each request takes this long, and each KiB of it this much longer.
    pub service: Duration,
    pub service_kib: Duration,
    /// Instead of both: what it does in a second, in thousandths of a normalised request.
    pub capacity_milli: Option<u64>,
    /// One request after the other; else all at once.
    pub is_serial: bool,
    /// Nothing is done before.
    pub stalled_until: Instant,
    /// Every third request fails.
    pub is_failing: bool,
    busy_until: Instant,
    completed: u32,
}

impl Model {
    pub fn new(depth: u32) -> Self {
        Model { depth, service: Duration::from_millis(1), ..Model::default() }
    }

    /// Where in `flying` the request is that is done first, and when.
    pub fn next(&self) -> Option<(usize, Instant)> {
        let dues = self.flying.iter().enumerate().map(|(place, flying)| (flying.due.max(self.stalled_until), place));
        dues.min().map(|(due, place)| (place, due))
    }

    /// Takes a request out; returns it, and whether it succeeded.
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

/// How long a device of `milli` thousandths of a request per second takes for a cost, at most.
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
