//! A trace, asked again.

use sluice_sched::Instant;

use super::{Workload, WorkloadRequest};
use crate::traces::Row;

/// When its requests are asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplayTiming {
    /// At the times of the trace, counted from its first request and multiplied by this.
    Open(f64),
    /// As soon as one of so many is over, whatever the trace says of times.
    Closed(u32),
}

/// The rows of one trace, one after another; never all of them in memory.
#[derive(Debug)]
pub struct Replay<I> {
    rows: I,
    next: Option<Row>,
    timing: ReplayTiming,
    start: Instant,
    first: u64,
    /// Of a closed replay: how many may be asked, and since when.
    free: u32,
    since: Instant,
}

impl<I: Iterator<Item = Row>> Replay<I> {
    /// Begins at `start`. Rows must come in the order of their times; one that does not is asked at once.
    pub fn new(mut rows: I, timing: ReplayTiming, start: Instant) -> Self {
        let next = rows.next();
        let first = next.map_or(0, |row| row.at);
        Self::begin(rows, next, timing, start, first)
    }

    /// The trace's time `first`, in nanoseconds, is `start`: for VMs that share a trace, whose first requests come at
    /// different times.
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
        let row = self.next.take().expect("it said that there is one");
        self.next = self.rows.next();
        self.free = self.free.saturating_sub(1);
        WorkloadRequest { kind: row.kind, offset: row.offset, length: row.length }
    }

    fn completed(&mut self, now: Instant) {
        self.free += 1;
        self.since = now;
    }

    /// An open replay goes on where it stopped.
    fn resume(&mut self, now: Instant) {
        self.since = self.since.max(now);
        if let (Some(row), Some(due)) = (self.next, self.next())
            && due < now
        {
            (self.start, self.first) = (now, row.at);
        }
    }
}
