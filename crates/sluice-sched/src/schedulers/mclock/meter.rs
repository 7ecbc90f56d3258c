//! One clock of a VM or volume: a rate, and the tag that its service has reached.
//!
//! Reservations, limits and shares each keep such clocks, reservations and limits one for requests and one for bytes. All tags
//! are start tags: they say when the *next* request is due, may pass, or stands in the order. A request moves them after its
//! dispatch, so a small request before a large one does not pay for it, and one that is refused or cancelled moves nothing.
//!
//! Example: a limit of 100 IOPS, burst 1, and requests of cost 1, 100 and 1 queued at 0 s. They are dispatched at 0 s, 0.010 s
//! and 1.010 s.

use crate::tag::Spacing;

/// A rate and a tag. Without a rate the tag does not move and means nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Meter {
    spacing: Spacing,
    tag: u64,
}

impl Meter {
    /// A meter whose tag is at `tag`.
    #[must_use]
    pub(super) const fn at(spacing: Spacing, tag: u64) -> Self {
        Meter { spacing, tag }
    }

    /// Whether it has a rate.
    #[must_use]
    pub(super) const fn is_set(&self) -> bool {
        !self.spacing.is_none()
    }

    /// The tag, if there is a rate.
    #[must_use]
    pub(super) fn tag(&self) -> Option<u64> {
        self.is_set().then_some(self.tag)
    }

    /// The tag, whether or not there is a rate.
    #[must_use]
    pub(super) const fn raw_tag(&self) -> u64 {
        self.tag
    }

    /// `distance` of this meter as the same service at another rate.
    pub(super) fn convert(&self, distance: u64, spacing: Spacing) -> u64 {
        self.spacing.convert(distance, spacing)
    }

    /// How far `amount` of service moves the tag.
    #[must_use]
    pub(super) const fn step(&self, amount: u64) -> u64 {
        self.spacing.of(amount)
    }

    /// `amount` of service has been given.
    // rule: mclock.charge-after
    pub(super) fn charge(&mut self, amount: u64) {
        self.tag = self.tag.saturating_add(self.step(amount));
    }

    /// `amount` of service has been given at `now`: what the tag lay behind is not saved up.
    pub(super) fn charge_from(&mut self, now: u64, amount: u64) {
        self.tag = self.tag.max(now).saturating_add(self.step(amount));
    }

    /// `amount` of service has been given; the tag moves no further than one step beyond `present`.
    pub(super) fn charge_ahead_of(&mut self, present: u64, amount: u64) {
        self.tag = self.tag.max(self.tag.min(present).saturating_add(self.step(amount)));
    }

    /// Moves the tag up to `floor`: nothing further back is remembered.
    pub(super) fn raise_to(&mut self, floor: u64) {
        self.tag = self.tag.max(floor);
    }

    /// Moves the tag down to `ceiling`: nothing further ahead is remembered.
    pub(super) fn lower_to(&mut self, ceiling: u64) {
        self.tag = self.tag.min(ceiling);
    }

    /// Moves the tag on by `by`, at most to `latest`.
    pub(super) fn move_on(&mut self, by: u64, latest: u64) {
        self.tag = self.tag.max(self.tag.saturating_add(by).min(latest));
    }

    /// Sets the tag.
    pub(super) fn set(&mut self, tag: u64) {
        self.tag = tag;
    }

    /// Moves the tag down by `by`: its clock is rebased before it could overflow.
    pub(super) fn rebase(&mut self, by: u64) {
        self.tag = self.tag.saturating_sub(by);
    }

    /// Another rate. What was charged ahead of `now` stays charged as the same service at the new rate, so that a rate that
    /// changes under a backlog acts at once. What is overdue stays overdue: the same service or the same time, whichever is
    /// less, so that neither grows by the change. A meter that had no rate begins at `now`.
    pub(super) fn rescale(&mut self, spacing: Spacing, now: u64) {
        if self.spacing == spacing {
            return;
        }
        let old = core::mem::replace(&mut self.spacing, spacing);
        if old.is_none() || spacing.is_none() {
            self.tag = now;
        } else if self.tag >= now {
            self.tag = now.saturating_add(old.convert(self.tag - now, spacing));
        } else {
            let behind = now - self.tag;
            self.tag = now - behind.min(old.convert(behind, spacing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Iops;

    fn rate(iops: u64) -> Spacing {
        Spacing::per_cost(Some(Iops::per_second(iops)))
    }

    const SECOND: u64 = 16_000_000_000;

    #[test]
    fn overdue_time_is_not_forgotten_when_the_rate_changes() {
        for (from, to, owed) in [(100, 1000, SECOND / 20), (1000, 100, SECOND / 2), (100, 100, SECOND / 2)] {
            let mut meter = Meter::at(rate(from), SECOND / 2);
            meter.rescale(rate(to), SECOND);
            assert_eq!(meter.tag(), Some(SECOND - owed), "{from} to {to}");
        }
        let mut meter = Meter::at(rate(100), 2 * SECOND);
        meter.rescale(rate(1000), SECOND);
        assert_eq!(meter.tag(), Some(SECOND + SECOND / 10), "100 requests ahead are 0.1 s at 1000 IOPS");
        meter.rescale(Spacing::NONE, SECOND);
        meter.charge(1 << 16);
        meter.rescale(rate(10), 3 * SECOND);
        assert_eq!(meter.tag(), Some(3 * SECOND));
    }

    #[test]
    fn charges_are_capped_only_by_what_they_add() {
        let mut meter = Meter::at(rate(1), 10 * SECOND);
        meter.charge_ahead_of(8 * SECOND, 1 << 16);
        assert_eq!(meter.tag(), Some(10 * SECOND), "it is further ahead already");
        meter.charge_ahead_of(9 * SECOND, 2 << 16);
        assert_eq!(meter.tag(), Some(11 * SECOND));
        meter.charge_from(20 * SECOND, 1 << 16);
        assert_eq!(meter.tag(), Some(21 * SECOND));
        meter.move_on(5 * SECOND, 23 * SECOND);
        assert_eq!(meter.tag(), Some(23 * SECOND));
        meter.move_on(SECOND, 20 * SECOND);
        assert_eq!(meter.tag(), Some(23 * SECOND));
    }
}
