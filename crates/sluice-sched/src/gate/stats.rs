//! Statistics of each owner at a gate: counters and two histograms.

use crate::gate::histogram::Histogram;
use crate::request::{Completion, Kind, Phase, Request, Wait};
use crate::time::Instant;

/// Counters of one owner since it was added. A request that was split counts once for each piece.
///
/// Fields that change together are adjacent: with many VMs each of their cache lines is fetched for every request.
#[derive(Debug, Clone, Default)]
#[repr(C)]
pub struct OwnerStats {
    /// Queued requests.
    pub waiting: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// Arrivals before splitting. A request for zeroes that is submitted part by part counts once per part.
    pub arrived: u64,
    /// Bytes of completed reads and writes.
    pub bytes: u64,
    /// Completed service in raw cost units: 1/65,536 of a normalised request.
    pub cost: u64,
    /// Dispatched requests, by [`Phase`].
    pub dispatched: [u64; 3],
    /// Dispatched requests, by reason for waiting ([`Wait`]).
    pub waits: [u64; 5],
    /// Successful requests, by [`Kind`].
    pub completed: [u64; 5],
    /// Requests that failed at the device.
    pub failed: u64,
    /// Requests that were cancelled before dispatch.
    pub cancelled: u64,
    /// Time from arrival to dispatch.
    pub queue_time: Histogram,
    /// Time from dispatch to completion.
    pub service_time: Histogram,
}

impl OwnerStats {
    #[inline]
    pub(super) fn dispatch(&mut self, now: Instant, request: &Request) {
        self.waiting -= 1;
        self.in_flight += 1;
        self.dispatched[request.phase as usize] += 1;
        self.waits[request.wait as usize] += 1;
        self.queue_time.add(now.nanos_since(request.arrival));
    }

    #[inline]
    pub(super) fn complete(&mut self, now: Instant, completion: &Completion) {
        let request = &completion.request;
        self.in_flight -= 1;
        self.service_time.add(now.nanos_since(completion.dispatched));
        if !completion.ok {
            self.failed += 1;
            return;
        }
        self.completed[request.kind as usize] += 1;
        self.cost += u64::from(request.cost.raw());
        if matches!(request.kind, Kind::Read | Kind::Write) {
            self.bytes += u64::from(request.length);
        }
    }

    pub(super) fn cancel(&mut self) {
        self.waiting -= 1;
        self.cancelled += 1;
    }

    /// Requests dispatched in `phase`.
    #[must_use]
    pub fn dispatched_in(&self, phase: Phase) -> u64 {
        self.dispatched[phase as usize]
    }

    /// Requests dispatched after waiting for `wait`.
    #[must_use]
    pub fn waited_for(&self, wait: Wait) -> u64 {
        self.waits[wait as usize]
    }

    /// Completed service in normalised requests, for output.
    #[must_use]
    pub fn service(&self) -> f64 {
        self.cost as f64 / 65_536.0
    }
}
