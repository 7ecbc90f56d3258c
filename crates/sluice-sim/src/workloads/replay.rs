//! Replay of a trace.

use sluice_sched::Instant;

use super::{Workload, WorkloadRequest};
use crate::traces::Row;

/// Timing of the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplayTiming {
    /// The times of the trace, relative to its first request and multiplied by this factor.
    Open(f64),
    /// This number of outstanding requests, regardless of the trace's times.
    Closed(u32),
}

/// The rows of one trace in sequence; never all of them in memory.
#[derive(Debug)]
pub struct Replay<I> {
    rows: I,
    next: Option<Row>,
    timing: ReplayTiming,
    start: Instant,
    first: u64,
    /// For a closed replay: number of requests that may be submitted, and since when.
    free: u32,
    since: Instant,
}

impl<I: Iterator<Item = Row>> Replay<I> {
    /// A replay that begins at `start`. Rows must be in order of time; one that is not is submitted immediately.
    pub fn new(mut rows: I, timing: ReplayTiming, start: Instant) -> Self {
        let next = rows.next();
        let first = next.map_or(0, |row| row.at);
        Self::begin(rows, next, timing, start, first)
    }

    /// A replay in which the trace's time `first`, in nanoseconds, is `start`: for VMs that share a trace and whose
    /// first requests have different times.
    pub fn since(mut rows: I, timing: ReplayTiming, start: Instant, first: u64) -> Self {
        let next = rows.next();
        Self::begin(rows, next, timing, start, first)
    }

    fn begin(rows: I, next: Option<Row>, timing: ReplayTiming, start: Instant, first: u64) -> Self {
        let free = if let ReplayTiming::Closed(outstanding) = timing { outstanding } else { 0 };
        Replay { rows, next, timing, start, first, free, since: start }
    }
}

impl<I: Iterator<Item = Row>> Workload for Replay<I> {
    fn next(&self) -> Option<Instant> {
        let row = self.next?;
        match self.timing {
            ReplayTiming::Open(scale) => {
                let since = (row.at.saturating_sub(self.first) as f64 * scale) as u64;
                Some(Instant::from_nanos(self.start.as_nanos().saturating_add(since)))
            }
            ReplayTiming::Closed(_) => (self.free > 0).then_some(self.since),
        }
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        let row = self.next.take().expect("`next` returned a time");
        self.next = self.rows.next();
        self.free = self.free.saturating_sub(1);
        WorkloadRequest { kind: row.kind, offset: row.offset, length: row.length }
    }

    fn completed(&mut self, now: Instant) {
        self.free += 1;
        self.since = now;
    }

    /// Continues an open replay where it was paused.
    fn resume(&mut self, now: Instant) {
        self.since = self.since.max(now);
        if let (Some(row), Some(due)) = (self.next, self.next())
            && due < now
        {
            (self.start, self.first) = (now, row.at);
        }
    }
}
