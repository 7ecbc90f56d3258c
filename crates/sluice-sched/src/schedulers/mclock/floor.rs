//! Minimum service of the weight phase while a VM without a reservation waits; inside a VM, while a volume without one
//! waits.
//!
//! Reservations are served first. While they are due, because the whole device is reserved or because they catch up
//! after a stall, VMs without a reservation would get nothing. The floor keeps a part of the device for the weight
//! phase: with 2 %, for 98 units of cost served for reservations while such a VM waits, 2 units are divided by weight.
//! In the weight phase, VMs whose reservation exceeds their share come last. Each level has its own floor: of 98 units
//! of cost that a VM gets for its reservation and its volumes for theirs, 2 are divided among them by weight.
//!
//! Example: 2 % and requests of cost 1. Each request for a reservation adds 1 x 2 to the balance, and each request by
//! weight subtracts 1 x 98. So after one request by weight, 49 for reservations follow until the balance is positive
//! again: 1 of 50.
//!
//! DEVIATION \[mclock\] 3: the paper has none.

use crate::units::Percent;

/// The balance between the two phases while a VM without a reservation waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    /// Part of the device in hundredths of a percent.
    part: i64,
    /// Balance of the weight phase in raw cost units times 10,000; positive if it is owed service. At least minus one
    /// request or batch, so that service in times without reservations does not count against it.
    owed: i64,
    /// Part of the balance that its last batch, or single request, used.
    batch: i64,
}

impl Floor {
    pub(super) fn new(part: Percent) -> Self {
        Floor { part: part.hundredths() as i64, owed: 0, batch: 0 }
    }

    /// A new balance with the same part, for another level.
    pub(super) const fn with_same_parameters(&self) -> Self {
        Floor { owed: 0, batch: 0, ..*self }
    }

    pub(super) const fn balance(&self) -> i64 {
        self.owed
    }

    /// Sets the balance to that of an earlier scheduler. Without a floor nothing is owed: no service would ever settle it, and due
    /// reservations would wait.
    pub(super) fn resume(&mut self, balance: i64) {
        if self.is_kept() {
            (self.owed, self.batch) = (balance, balance.saturating_neg().max(0));
        }
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.part > 0
    }

    /// Whether the next dispatch belongs to the weight phase, even if reservations are due.
    pub(super) const fn is_owed(&self) -> bool {
        self.owed > 0
    }

    /// Counts a request that was served for its reservation while a VM without one waited.
    pub(super) fn note_reserved(&mut self, cost: u64) {
        self.owed = self.owed.saturating_add((cost as i64).saturating_mul(self.part));
    }

    /// Counts a request that was served by weight; `goes_on`: in a batch with the previous one. The whole batch counts,
    /// otherwise the weight phase would get a batch whenever it is owed a request.
    pub(super) fn note_weight(&mut self, cost: u64, goes_on: bool) {
        let served = (cost as i64).saturating_mul(10_000 - self.part);
        self.batch = if goes_on { self.batch.saturating_add(served) } else { served };
        self.owed = self.owed.saturating_sub(served).max(-self.batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_floor_owed_when_it_was_taken_away_went_before_reservations_for_ever() {
        let mut without = Floor::new(Percent::ZERO);
        without.resume(10_000);
        assert!(!without.is_owed());
        let mut with = Floor::new(Percent::WHOLE);
        with.resume(10_000);
        assert!(with.is_owed());
    }
}
