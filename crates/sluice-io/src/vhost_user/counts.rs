//! Counters of the socket of a volume.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the socket was opened.
#[derive(Debug, Default)]
pub struct Counts {
    sessions: AtomicU64,
    messages: AtomicU64,
    queues_started: AtomicU64,
    rejected: AtomicU64,
    refusals: AtomicU64,
    faults: AtomicU64,
    config_changes: AtomicU64,
    recovered: AtomicU64,
}

/// Values of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// VMMs that were served.
    pub sessions: u64,
    /// Connections that were rejected, because another VMM was served or resources were exhausted.
    pub rejected: u64,
    /// Messages that were rejected.
    pub refusals: u64,
    /// Sessions that ended because the VMM violated the protocol or truncated its memory.
    pub faults: u64,
    /// Notifications of a changed configuration.
    pub config_changes: u64,
    /// Requests recovered from the in-flight log: they were taken by a previous daemon or session and not returned, and
    /// were done again.
    pub recovered: u64,
}

impl Counts {
    /// Returns the current values.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            sessions: read(&self.sessions),
            rejected: read(&self.rejected),
            refusals: read(&self.refusals),
            faults: read(&self.faults),
            config_changes: read(&self.config_changes),
            recovered: read(&self.recovered),
        }
    }

    pub(super) fn message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of messages received in all sessions.
    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    pub(super) fn queue_started(&self) {
        self.queues_started.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of queues started in all sessions.
    pub(super) fn queues_started(&self) -> u64 {
        self.queues_started.load(Ordering::Relaxed)
    }

    pub(super) fn session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rejected VMM. Returns whether to log it; so do the next two.
    pub(super) fn rejected(&self) -> bool {
        is_worth_a_line(self.rejected.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn refusal(&self) -> bool {
        is_worth_a_line(self.refusals.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn fault(&self) -> bool {
        is_worth_a_line(self.faults.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn recovered(&self, requests: u64) {
        self.recovered.fetch_add(requests, Ordering::Relaxed);
    }

    pub(super) fn config_change(&self) {
        self.config_changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether to log an event that has occurred `times` times: the first ones, then at increasing distances, so that a VMM
/// that repeats it does not fill the log.
fn is_worth_a_line(times: u64) -> bool {
    times <= 16 || times.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_logged_at_increasing_distances() {
        let counts = Counts::default();
        let lines = (0..10_000).filter(|_| counts.refusal()).count();
        assert_eq!((lines, counts.totals().refusals), (16 + 9, 10_000), "16, then 32, 64, up to 8192");
    }
}
