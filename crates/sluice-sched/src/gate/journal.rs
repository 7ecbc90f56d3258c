//! Dispatches and completions that are not in the statistics of their owners yet.
//!
//! With many VMs, the counters and histograms of a VM are not in the CPU caches when one of its requests moves, and each line of
//! them waits for memory. Here an event takes 40 bytes next to the one before it. The gate adds a full journal to the
//! statistics in one go. Events of different VMs do not depend on each other, so the CPU fetches the lines of several at once.

use crate::cost::Cost;
use crate::gate::finished::Outcome;
use crate::request::{Kind, OwnerId, Phase, VolumeId, Wait};

/// Events of a full journal. They take 10 KiB, a part of the first cache.
const EVENTS_MAX: usize = 256;

/// A dispatched request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) cost: Cost,
    pub(super) phase: Phase,
    pub(super) wait: Wait,
    /// Time in the queue in nanoseconds.
    pub(super) waited: u64,
    /// Bytes that count against a reservation.
    pub(super) bytes: u64,
}

/// A completed request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) cost: Cost,
    /// Length in bytes.
    pub(super) length: u32,
    pub(super) kind: Kind,
    pub(super) ok: bool,
    /// Outcome of the arrival, if this is its last piece.
    pub(super) outcome: Option<Outcome>,
    /// Whether the volume counts it, if it is counted apart: it does not if the request is of a removed volume that had its
    /// number.
    pub(super) of_volume: bool,
    /// Time from dispatch to completion in nanoseconds.
    pub(super) service: u64,
    /// Time from arrival to completion in nanoseconds.
    pub(super) latency: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Sent(Sent),
    Done(Done),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) owner: OwnerId,
    pub(super) volume: VolumeId,
    pub(super) event: Event,
}

const _: () = assert!(size_of::<Entry>() <= 40);

impl Entry {
    /// Whether `volume` counts it, if that is counted apart.
    pub(super) fn is_of(&self, volume: VolumeId) -> bool {
        let counts = match &self.event {
            Event::Sent(_) => true,
            Event::Done(done) => done.of_volume,
        };
        self.volume == volume && counts
    }
}

/// Events in the order in which they happened.
#[derive(Debug)]
pub(super) struct Journal(Vec<Entry>);

impl Default for Journal {
    fn default() -> Self {
        Journal(Vec::with_capacity(EVENTS_MAX))
    }
}

impl Journal {
    /// Appends an event. Returns whether the journal is full, and must be emptied before the next one.
    #[inline]
    pub(super) fn note(&mut self, entry: Entry) -> bool {
        self.0.push(entry);
        self.0.len() >= EVENTS_MAX
    }

    /// All events, in order.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The events of an owner, in order.
    pub(super) fn of(&self, owner: OwnerId) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(move |entry| entry.owner == owner)
    }

    /// Removes all events.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
