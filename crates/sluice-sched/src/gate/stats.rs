//! Statistics of each owner and volume at a gate: counters and histograms.

use crate::gate::finished::Outcome;
use crate::gate::histogram::Histogram;
use crate::gate::journal::{Done, Event, Sent};
use crate::policy::{LatencyTarget, Policy};
use crate::request::{Completion, Kind, OwnerId, Phase, Request, Wait};
use crate::time::Instant;

/// The requests of an owner or volume that have not completed, and since when some wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Queued requests.
    pub waiting: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// When the oldest spell without an empty queue began; meaningful while requests wait.
    backlog_began: Instant,
    /// When the present spell with outstanding requests began; meaningful while there are some.
    busy_began: Instant,
    /// Length of the ended spells without an empty queue, in nanoseconds.
    backlogged: u64,
    /// Number of spells without an empty queue, the current one included.
    pub spells: u64,
    /// Arrivals before splitting. A request for zeroes that is submitted part by part counts once per part.
    pub arrived: u64,
}

impl Outstanding {
    #[inline]
    pub(super) fn arrive(&mut self, now: Instant, pieces: u32) {
        if self.waiting == 0 {
            if self.in_flight == 0 {
                self.busy_began = now;
            }
            self.backlog_began = now;
            self.spells += 1;
        }
        self.waiting += pieces;
        self.arrived += 1;
    }

    #[inline]
    pub(super) fn dispatch(&mut self, now: Instant) {
        self.leave_queue(now);
        self.in_flight += 1;
    }

    /// Counts a completion. Returns `false` if none of these requests was in flight: a volume may have got the number of one
    /// that was removed with requests in flight.
    #[inline]
    pub(super) fn complete(&mut self) -> bool {
        let is_own = self.in_flight > 0;
        self.in_flight -= u32::from(is_own);
        is_own
    }

    #[inline]
    pub(super) fn leave_queue(&mut self, now: Instant) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.backlogged += now.nanos_since(self.backlog_began);
        }
    }

    /// Whether nothing has happened since `earlier`, an earlier copy. Each event changes one of these numbers, and none of them returns to an earlier value without an arrival.
    #[must_use]
    pub fn is_unchanged_since(&self, earlier: &Outstanding) -> bool {
        let state = |of: &Outstanding| (of.arrived, of.waiting, of.in_flight);
        state(self) == state(earlier)
    }

    /// Returns since when requests have been outstanding; `None` if there are none.
    #[must_use]
    pub fn busy_since(&self) -> Option<Instant> {
        (self.waiting > 0 || self.in_flight > 0).then_some(self.busy_began)
    }

    /// Time with at least one request queued, in nanoseconds, until `now`.
    #[must_use]
    pub fn backlogged_nanos(&self, now: Instant) -> u64 {
        let running = if self.waiting > 0 { now.nanos_since(self.backlog_began) } else { 0 };
        self.backlogged + running
    }
}

/// Counters of one owner since it was added, or of one of its volumes. A request that was split counts once for each
/// piece, except in `outstanding.arrived`, `ended`, `judged`, `late` and `latency`.
///
/// A gate adds dispatches and completions from its journal (`gate/journal.rs`).
///
/// The counters that every request changes come first, so that a request touches few cache lines.
#[derive(Debug, Clone, Default)]
#[repr(C)]
pub struct GateStats {
    /// Service of dispatched requests in raw cost units: 1/65,536 of a normalised request.
    pub dispatched_cost: u64,
    /// Bytes of dispatched requests, as they count against a reservation in bytes: small ones count as what the device could
    /// transfer in their time, see [`GateSettings::request_bytes`](crate::GateSettings::request_bytes).
    pub dispatched_bytes: u64,
    /// Sum of the squares of these costs, each in 1/64 of a normalised request: divided by the sum of the costs, the size of
    /// the request to which a unit of service belongs.
    pub squared_cost: u64,
    /// Sum of the squares of these bytes, each in units of 512.
    pub squared_bytes: u64,
    /// Completed service in raw cost units: 1/65,536 of a normalised request.
    pub cost: u64,
    /// Bytes of completed reads and writes.
    pub bytes: u64,
    /// Sum of the times that `latency` counts, in nanoseconds.
    pub latency_nanos: u64,
    /// Dispatched requests, by [`Phase`].
    pub dispatched: [u64; 3],
    /// Arrivals that have ended, by [`Outcome`] and [`Kind`].
    pub ended: [[u64; 5]; 3],
    /// Dispatched requests by the main reason for their time in the queue ([`Wait`]).
    pub waits: [Waited; 6],
    /// Successful arrivals to which a latency target applied: that of the volume or else of its owner, and in the statistics of
    /// an owner its own, or else that of its only volume.
    pub judged: u64,
    /// Of `judged`, those that took longer than the target.
    pub late: u64,
    /// Requests that failed at the device.
    pub failed: u64,
    /// Requests that were cancelled before dispatch.
    pub cancelled: u64,
    /// Successful requests that did not end a successful arrival, by [`Kind`]: pieces before the last, and pieces of one that
    /// failed or was cancelled.
    pieces: [u64; 5],
    /// Time from arrival to dispatch.
    pub queue_time: Histogram,
    /// Time from dispatch to completion.
    pub service_time: Histogram,
    /// Time from arrival to the completion of the last piece, of arrivals that succeeded.
    pub latency: Histogram,
    pub outstanding: Outstanding,
    /// When the owner or volume was added. Counters with another beginning are those of another one, even if it has the same
    /// name.
    pub began: Instant,
}

/// What an owner asks for and has got.
#[derive(Debug, Clone, Copy)]
pub struct Used<'a> {
    pub owner: OwnerId,
    pub policy: &'a Policy,
    pub outstanding: Outstanding,
    /// As in [`GateStats`].
    pub dispatched_cost: u64,
    /// As in [`GateStats`].
    pub dispatched_bytes: u64,
    /// When it was added.
    pub began: Instant,
}

/// The requests to which a latency target applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Judged {
    None,
    Reads,
    All,
}

/// The latency target that requests are judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    judged: Judged,
    /// In nanoseconds; any number if no request is judged.
    late_after: u64,
}

impl Target {
    pub(super) fn of(target: Option<LatencyTarget>) -> Target {
        let judged = match target {
            None => Judged::None,
            Some(target) if target.reads_only => Judged::Reads,
            Some(_) => Judged::All,
        };
        let nanos = target.map_or(0, |target| target.p99.as_nanos());
        Target { judged, late_after: u64::try_from(nanos).unwrap_or(u64::MAX) }
    }

    /// The target of a request in nanoseconds, if it has one.
    fn of_kind(self, kind: Kind) -> Option<u64> {
        let is_judged = self.judged == Judged::All || self.judged == Judged::Reads && kind == Kind::Read;
        is_judged.then_some(self.late_after)
    }
}

/// Dispatched requests that waited for one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    pub requests: u64,
    /// Sum of their times in the queue, in nanoseconds.
    pub nanos: u64,
}

impl GateStats {
    /// Counters of an owner or volume that is added now.
    pub(super) fn new(began: Instant) -> GateStats {
        GateStats { began, ..GateStats::default() }
    }

    /// Counts an event; `target` is the latency target.
    #[inline(always)]
    pub(super) fn count(&mut self, event: &Event, target: Target) {
        match event {
            Event::Sent(sent) => self.dispatch(sent),
            Event::Done(done) => self.complete(done, target.of_kind(done.kind)),
        }
    }

    #[inline]
    fn dispatch(&mut self, sent: &Sent) {
        self.dispatched_cost += u64::from(sent.cost.raw());
        // A device of which hardly any requests are stated counts each as very many bytes.
        self.dispatched_bytes = self.dispatched_bytes.saturating_add(sent.bytes);
        let (cost, sectors) = (u64::from(sent.cost.raw() >> 10), sent.bytes >> 9);
        self.squared_cost = self.squared_cost.saturating_add(cost * cost);
        self.squared_bytes = self.squared_bytes.saturating_add(sectors.saturating_mul(sectors));
        self.dispatched[sent.phase as usize] += 1;
        let waits = &mut self.waits[sent.wait as usize];
        waits.requests += 1;
        waits.nanos += sent.waited;
        self.queue_time.add(sent.waited);
    }

    /// Counts a completion, and the outcome of its arrival if this is its last piece. `late_after` is the latency target in
    /// nanoseconds, if it has one.
    #[inline]
    fn complete(&mut self, done: &Done, late_after: Option<u64>) {
        self.service_time.add(done.service);
        if done.ok {
            self.cost += u64::from(done.cost.raw());
            if matches!(done.kind, Kind::Read | Kind::Write) {
                self.bytes += u64::from(done.length);
            }
            if done.outcome != Some(Outcome::Done) {
                self.pieces[done.kind as usize] += 1;
            }
        } else {
            self.failed += 1;
        }
        if let Some(outcome) = done.outcome {
            self.end(done.kind, outcome, done.latency, late_after);
        }
    }

    /// Counts the end of an arrival `nanos` after it.
    #[inline]
    fn end(&mut self, kind: Kind, outcome: Outcome, nanos: u64, late_after: Option<u64>) {
        self.ended[outcome as usize][kind as usize] += 1;
        if outcome != Outcome::Done {
            return;
        }
        self.latency.add(nanos);
        self.latency_nanos += nanos;
        if let Some(late_after) = late_after {
            self.judged += 1;
            self.late += u64::from(nanos > late_after);
        }
    }

    /// Counts a request that was cancelled while it was queued, and the outcome of its arrival if this is its last piece.
    pub(super) fn cancel(&mut self, now: Instant, request: &Request, outcome: Option<Outcome>) {
        self.cancelled += 1;
        if let Some(outcome) = outcome {
            self.end(request.kind, outcome, now.nanos_since(request.arrival), None);
        }
    }

    /// Requests dispatched in `phase`.
    #[must_use]
    pub fn dispatched_in(&self, phase: Phase) -> u64 {
        self.dispatched[phase as usize]
    }

    /// Requests dispatched after waiting for `wait`.
    #[must_use]
    pub fn waited_for(&self, wait: Wait) -> u64 {
        self.waits[wait as usize].requests
    }

    /// Successful requests, by [`Kind`].
    #[must_use]
    pub fn completed(&self) -> [u64; 5] {
        let whole = &self.ended[Outcome::Done as usize];
        core::array::from_fn(|kind| whole[kind] + self.pieces[kind])
    }

    /// Completed service in normalised requests, for output.
    #[must_use]
    pub fn service(&self) -> f64 {
        self.cost as f64 / 65_536.0
    }
}

/// Counters of the device of a gate.
#[derive(Debug, Clone, Default)]
pub struct DeviceStats {
    /// When the last slot was taken; `None` while a slot is free.
    full_since: Option<Instant>,
    /// Length of the ended spells without a free slot, in nanoseconds.
    full: u64,
    /// Completed submissions.
    pub completed: u64,
    /// Sum of the times that `service_time` counts, in nanoseconds, by [`Kind`].
    pub service_nanos: [u64; 5],
    /// Time from submission to completion, by [`Kind`].
    pub service_time: Box<[Histogram; 5]>,
}

impl DeviceStats {
    /// Records whether all slots are taken from now on.
    #[inline]
    pub(super) fn set_full(&mut self, now: Instant, is_full: bool) {
        match self.full_since {
            None if is_full => self.full_since = Some(now),
            Some(since) if !is_full => {
                self.full += now.nanos_since(since);
                self.full_since = None;
            }
            None | Some(_) => {}
        }
    }

    #[inline]
    pub(super) fn complete(&mut self, now: Instant, completion: &Completion) {
        let (kind, nanos) = (completion.request.kind as usize, now.nanos_since(completion.dispatched));
        self.completed += 1;
        self.service_nanos[kind] += nanos;
        self.service_time[kind].add(nanos);
    }

    /// Time in which no slot was free, in nanoseconds, until `now`.
    #[must_use]
    pub fn full_nanos(&self, now: Instant) -> u64 {
        self.full + self.full_since.map_or(0, |since| now.nanos_since(since))
    }
}
