//! What the weight phase gets at least while a VM without a reservation waits; inside a VM, while a volume without one waits.
//!
//! Reservations go first, so while they are due, because all of the device is reserved or because they catch up after a
//! stall, nothing would be left for VMs that live by their weight alone. The floor keeps a part of the device for the weight
//! phase: with 2 %, for 98 units of cost that are served for reservations while such a VM waits, 2 are divided by weight. VMs
//! that get more by their reservation than by their weight are behind the others in that order. Each level has a floor of its own:
//! of 98 units of cost that a VM gets by its reservation and its volumes for theirs, 2 are divided among them by weight.
//!
//! DEVIATION \[mclock\] 3: the paper has none.

use crate::units::Percent;

/// The balance between the two phases while a VM without a reservation waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    /// In hundredths of a percent.
    part: i64,
    /// What the weight phase is owed: in raw cost units times 10,000. Never less than minus one request, or one batch, so that
    /// what it got while it had plenty does not count against it.
    owed: i64,
    /// What its last batch, or single request, took of that.
    batch: i64,
}

impl Floor {
    pub(super) fn new(part: Percent) -> Self {
        Floor { part: part.hundredths() as i64, owed: 0, batch: 0 }
    }

    /// The same part, of another level.
    pub(super) const fn with_same_parameters(&self) -> Self {
        Floor { owed: 0, batch: 0, ..*self }
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.part > 0
    }

    /// Whether the next dispatch is the weight phase's, whatever reservations are due.
    pub(super) const fn is_owed(&self) -> bool {
        self.owed > 0
    }

    /// A request was served for its reservation while a VM without one waited.
    pub(super) fn note_reserved(&mut self, cost: u64) {
        self.owed = self.owed.saturating_add((cost as i64).saturating_mul(self.part));
    }

    /// A request was served by weight; `goes_on`: in a batch with the one before. All of a batch counts, else the weight phase
    /// would have a batch where a request is owed to it.
    pub(super) fn note_weight(&mut self, cost: u64, goes_on: bool) {
        let served = (cost as i64).saturating_mul(10_000 - self.part);
        self.batch = if goes_on { self.batch.saturating_add(served) } else { served };
        self.owed = self.owed.saturating_sub(served).max(-self.batch);
    }
}
