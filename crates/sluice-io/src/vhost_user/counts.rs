//! What happened on the socket of a volume, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the socket was opened.
#[derive(Debug, Default)]
pub struct Counts {
    sessions: AtomicU64,
    messages: AtomicU64,
    queues_started: AtomicU64,
    turned_away: AtomicU64,
    refusals: AtomicU64,
    faults: AtomicU64,
    config_changes: AtomicU64,
    taken_over: AtomicU64,
}

/// Their values at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// VMMs that were served.
    pub sessions: u64,
    /// Connections that were closed at once: another VMM was there, or there was no place.
    pub turned_away: u64,
    /// Messages that were refused.
    pub refusals: u64,
    /// Sessions that ended because the VMM broke the protocol, or took its memory away.
    pub faults: u64,
    /// Times that a VMM was told of a changed configuration.
    pub config_changes: u64,
    /// Requests that the in-flight log says were taken before and not returned, by a daemon that ended or in a session that
    /// did: they were done once more.
    pub taken_over: u64,
}

impl Counts {
    /// As they are now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            sessions: read(&self.sessions),
            turned_away: read(&self.turned_away),
            refusals: read(&self.refusals),
            faults: read(&self.faults),
            config_changes: read(&self.config_changes),
            taken_over: read(&self.taken_over),
        }
    }

    pub(super) fn message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages that were received in all sessions.
    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    pub(super) fn queue_started(&self) {
        self.queues_started.fetch_add(1, Ordering::Relaxed);
    }

    /// Queues that were started in all sessions.
    pub(super) fn queues_started(&self) -> u64 {
        self.queues_started.load(Ordering::Relaxed)
    }

    pub(super) fn session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is worth a line in the log, as with the two below.
    pub(super) fn turned_away(&self) -> bool {
        is_worth_a_line(self.turned_away.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn refusal(&self) -> bool {
        is_worth_a_line(self.refusals.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn fault(&self) -> bool {
        is_worth_a_line(self.faults.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn taken_over(&self, requests: u64) {
        self.taken_over.fetch_add(requests, Ordering::Relaxed);
    }

    pub(super) fn config_change(&self) {
        self.config_changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Who does it again and again, by mistake or on purpose, must not fill the log: the first ones, then ever fewer.
fn is_worth_a_line(times: u64) -> bool {
    times <= 16 || times.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_told_ever_more_seldom() {
        let counts = Counts::default();
        let lines = (0..10_000).filter(|_| counts.refusal()).count();
        assert_eq!((lines, counts.totals().refusals), (16 + 9, 10_000), "16, then 32, 64, up to 8192");
    }
}
