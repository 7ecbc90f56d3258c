//! Dispatches and completions that are not in the statistics of their owners yet.
//!
//! With many VMs, the counters and histograms of a VM are not in the CPU caches when one of its requests moves, and each line of
//! them waits for memory. Here an event takes 40 bytes next to the one before it. VMs with adjacent numbers share a page, and the
//! gate adds a full page to the statistics in one go. Events of different VMs do not depend on each other, so the CPU fetches the
//! lines of several at once.
//!
//! A page has room for eight events of each of its VMs, four requests. So a line of a VM is fetched once for several requests,
//! and the statistics of all VMs of a page fit into the second cache. Example: the 4,000 requests that pass between two looks at
//! a VM among 4,000 make 8,000 events. In one journal of 256 events, each of them would find the lines of its VM gone. In 63 pages
//! of 512 events, a VM has eight events when its page is full, and only the first finds them gone.

use crate::cost::Cost;
use crate::gate::finished::Outcome;
use crate::request::{Kind, OwnerId, Phase, VolumeId, Wait};

/// Owners of a page: this many with adjacent numbers.
const PAGE_OWNERS: usize = 64;
/// Events of a full page. They take 20 KiB.
const EVENTS_MAX: usize = 8 * PAGE_OWNERS;

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

/// Events by page, in the order in which they happened.
#[derive(Debug, Default)]
pub(super) struct Journal(Vec<Vec<Entry>>);

/// The page of an owner.
pub(super) const fn page_of(owner: OwnerId) -> usize {
    owner.index() / PAGE_OWNERS
}

impl Journal {
    /// Adds the page of an owner, if it is not there.
    pub(super) fn admit(&mut self, owner: OwnerId) {
        if page_of(owner) >= self.0.len() {
            self.0.resize_with(page_of(owner) + 1, || Vec::with_capacity(EVENTS_MAX));
        }
    }

    /// Number of pages.
    pub(super) fn pages(&self) -> usize {
        self.0.len()
    }

    /// Appends an event. Returns whether the page is full, and must be emptied before its next event.
    #[inline]
    pub(super) fn note(&mut self, entry: Entry) -> bool {
        let page = &mut self.0[page_of(entry.owner)];
        page.push(entry);
        page.len() >= EVENTS_MAX
    }

    /// All events of a page, in order.
    pub(super) fn entries(&self, page: usize) -> &[Entry] {
        &self.0[page]
    }

    /// The events of an owner, in order.
    pub(super) fn of(&self, owner: OwnerId) -> impl Iterator<Item = &Entry> {
        self.entries(page_of(owner)).iter().filter(move |entry| entry.owner == owner)
    }

    /// Removes all events of a page.
    pub(super) fn clear(&mut self, page: usize) {
        self.0[page].clear();
    }
}
