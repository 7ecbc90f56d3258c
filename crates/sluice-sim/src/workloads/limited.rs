//! Limits a workload without an end to a number of requests.

use sluice_sched::Instant;

use super::{Workload, WorkloadRequest};

/// The first requests of another workload.
pub struct Limited {
    inner: Box<dyn Workload>,
    left: u64,
}

impl Limited {
    /// The first `requests` requests of `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Workload>, requests: u64) -> Self {
        Limited { inner, left: requests }
    }
}

impl Workload for Limited {
    fn next(&self) -> Option<Instant> {
        if self.left == 0 { None } else { self.inner.next() }
    }

    fn ask(&mut self, now: Instant) -> WorkloadRequest {
        self.left -= 1;
        self.inner.ask(now)
    }

    fn completed(&mut self, now: Instant) {
        self.inner.completed(now);
    }

    fn resume(&mut self, now: Instant) {
        self.inner.resume(now);
    }
}
