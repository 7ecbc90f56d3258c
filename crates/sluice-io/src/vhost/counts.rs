//! What happened on the socket of a volume, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the socket was opened.
#[derive(Debug, Default)]
pub struct Counts {
    sessions: AtomicU64,
    turned_away: AtomicU64,
    refusals: AtomicU64,
    faults: AtomicU64,
    config_changes: AtomicU64,
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
        }
    }

    pub(super) fn session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// How many it were.
    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn config_change(&self) {
        self.config_changes.fetch_add(1, Ordering::Relaxed);
    }
}
