//! One clock of a VM or volume: a rate, and the tag that its service has reached.
//!
//! Reservations and limits each keep two such clocks, one for requests and one for bytes; a share keeps one. All tags
//! are start tags: they say when the *next* request is due, may pass, or its position in the order. A request advances
//! them at its dispatch, so a small request before a large one does not pay for it, and a rejected or cancelled request
//! changes nothing.
//!
//! Example: the limit is 100 IOPS, the burst 1, and requests of cost 1, 100 and 1 are queued at 0 s. They are
//! dispatched at 0 s, 0.010 s and 1.010 s.

use crate::tag::Spacing;

/// A rate and a tag. Without a rate the tag does not move and has no meaning.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Meter {
    spacing: Spacing,
    tag: u64,
}

impl Meter {
    /// A meter with its tag at `tag`.
    #[must_use]
    pub(super) const fn at(spacing: Spacing, tag: u64) -> Self {
        Meter { spacing, tag }
    }

    pub(super) const fn spacing(&self) -> Spacing {
        self.spacing
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

    /// The tag, even without a rate.
    #[must_use]
    pub(super) const fn raw_tag(&self) -> u64 {
        self.tag
    }

    /// Converts `distance` of this meter to the same service at another rate.
    pub(super) fn convert(&self, distance: u64, spacing: Spacing) -> u64 {
        self.spacing.convert(distance, spacing)
    }

    /// Distance by which `amount` of service advances the tag.
    #[must_use]
    pub(super) const fn step(&self, amount: u64) -> u64 {
        self.spacing.of(amount)
    }

    /// Counts `amount` of service.
    // rule: mclock.charge-after
    pub(super) fn charge(&mut self, amount: u64) {
        self.tag = self.tag.saturating_add(self.step(amount));
    }

    /// Counts service at `now` that advances the tag by `step`. A tag before `now` starts from `now`: unused time is not saved.
    #[inline]
    pub(super) fn advance_from(&mut self, now: u64, step: u64) {
        self.tag = self.tag.max(now).saturating_add(step);
    }

    /// Counts `amount` of service. The tag advances at most to one step after `present`.
    pub(super) fn charge_ahead_of(&mut self, present: u64, amount: u64) {
        self.tag = self.tag.max(self.tag.min(present).saturating_add(self.step(amount)));
    }

    /// Raises the tag to `floor`, so that earlier unused service is lost.
    pub(super) fn raise_to(&mut self, floor: u64) {
        self.tag = self.tag.max(floor);
    }

    /// Lowers the tag to `ceiling`, so that later debts are forgiven.
    pub(super) fn lower_to(&mut self, ceiling: u64) {
        self.tag = self.tag.min(ceiling);
    }

    /// Advances the tag by `by`, at most to `latest`.
    pub(super) fn move_on(&mut self, by: u64, latest: u64) {
        self.tag = self.tag.max(self.tag.saturating_add(by).min(latest));
    }

    pub(super) fn set(&mut self, tag: u64) {
        self.tag = tag;
    }

    /// Service from its tag until `to`, if there is a rate; negative if the tag is later.
    #[must_use]
    pub(super) fn amount_until(&self, to: u64) -> Option<i64> {
        self.is_set().then(|| self.spacing.amount_between(self.tag, to))
    }

    /// Sets the tag so that this `amount` of service lies between it and `to`, if there is a rate.
    pub(super) fn set_before(&mut self, to: u64, amount: Option<i64>) {
        if let Some(amount) = amount.filter(|_| self.is_set()) {
            self.tag = self.spacing.tag_after(to, amount.saturating_neg());
        }
    }

    /// Lowers the tag by `by`, when its clock is rebased before an overflow.
    pub(super) fn rebase(&mut self, by: u64) {
        self.tag = self.tag.saturating_sub(by);
    }

    /// Sets the rate. Service charged ahead of `now` stays charged as the same service at the new rate, so a new rate
    /// takes effect immediately under a backlog. Overdue service stays overdue, as the same service or the same time,
    /// whichever is less, so that neither grows by the change. A meter without a rate starts at `now`.
    ///
    /// Example: 100 requests ahead are 1 s at 100 IOPS and 0.1 s at 1000 IOPS. 0.5 s overdue at 100 IOPS are 50
    /// requests, which are 0.05 s at 1000 IOPS. In the other direction 0.5 s stay 0.5 s.
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
    fn overdue_time_is_kept_when_the_rate_changes() {
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
    fn a_capped_charge_never_lowers_the_tag() {
        let mut meter = Meter::at(rate(1), 10 * SECOND);
        meter.charge_ahead_of(8 * SECOND, 1 << 16);
        assert_eq!(meter.tag(), Some(10 * SECOND), "it is further ahead already");
        meter.charge_ahead_of(9 * SECOND, 2 << 16);
        assert_eq!(meter.tag(), Some(11 * SECOND));
        meter.advance_from(20 * SECOND, meter.step(1 << 16));
        assert_eq!(meter.tag(), Some(21 * SECOND));
        meter.move_on(5 * SECOND, 23 * SECOND);
        assert_eq!(meter.tag(), Some(23 * SECOND));
        meter.move_on(SECOND, 20 * SECOND);
        assert_eq!(meter.tag(), Some(23 * SECOND));
    }
}
