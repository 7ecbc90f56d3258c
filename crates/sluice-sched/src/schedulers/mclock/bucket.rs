//! A limit in one currency: the virtual-scheduling algorithm (GCRA), which is a token bucket that stores one instant.
//!
//! The tag is the theoretical arrival time. A request may pass while the tag is at most `ahead` later than now; `ahead` is the
//! burst as a distance of tags. What is left of the burst, `ahead` less what the tag is later than now, is the bucket's
//! content.

use crate::tag::{Spacing, Tag};

use super::meter::Meter;

/// The bucket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    meter: Meter,
    ahead: Tag,
}

impl Bucket {
    /// Whether there is a limit.
    pub(super) const fn is_set(&self) -> bool {
        self.meter.is_set()
    }

    /// Another rate or burst, `burst` in units of service. What is left of the old burst stays, as the same service: a burst
    /// that shrinks takes nothing back that was used of the old one, and one that grows gives nothing at once. A limit that was
    /// not there begins with its whole burst.
    pub(super) fn set(&mut self, spacing: Spacing, burst: u64, now: Tag) {
        let before = *self;
        self.meter = Meter::at(spacing, now);
        self.ahead = self.meter.step(burst);
        if !before.is_set() || spacing.is_none() {
            return;
        }
        if before.meter.raw_tag() <= now {
            // It was full; what other servers report belongs to the time since then, and so does what a larger burst gives.
            let more = self.ahead.saturating_sub(before.meter.convert(before.ahead, spacing));
            return self.meter.set(before.meter.raw_tag().saturating_add(more));
        }
        let used = before.meter.raw_tag().saturating_sub(now);
        let tag = if used <= before.ahead {
            let left = before.meter.convert(before.ahead - used, spacing);
            now.saturating_add(self.ahead.saturating_sub(left))
        } else {
            now.saturating_add(self.ahead).saturating_add(before.meter.convert(used - before.ahead, spacing))
        };
        self.meter.set(tag);
    }

    /// From when on the next request may pass; 0 without a limit.
    pub(super) fn eligible_at(&self) -> Tag {
        self.meter.tag().map_or(0, |tag| tag.saturating_sub(self.ahead))
    }

    /// How far apart the limit keeps requests of this amount; 0 without a limit.
    pub(super) fn step(&self, amount: u64) -> Tag {
        self.meter.step(amount)
    }

    /// A request has passed.
    pub(super) fn charge(&mut self, now: Tag, amount: u64) {
        self.meter.charge_from(now, amount);
    }

    /// Service at other servers, which lies in the past.
    pub(super) fn charge_past(&mut self, amount: u64) {
        self.meter.charge(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Iops;

    const SECOND: u64 = 16_000_000_000;

    fn rate(iops: u64) -> Spacing {
        Spacing::per_cost(Some(Iops::per_second(iops)))
    }

    #[test]
    fn a_burst_that_shrinks_under_a_backlog_stops_nobody() {
        let mut bucket = Bucket::default();
        bucket.set(rate(10), 20 << 16, SECOND);
        (0..21).for_each(|_| bucket.charge(SECOND, 1 << 16));
        assert_eq!(bucket.eligible_at(), SECOND + SECOND / 10, "20 at once, beside the one that may go anyway");
        bucket.set(rate(10), 0, SECOND);
        assert_eq!(bucket.eligible_at(), SECOND + SECOND / 10);
        bucket.set(rate(100), 50 << 16, SECOND);
        assert_eq!(bucket.eligible_at(), SECOND + SECOND / 100, "the rate acts at once, the burst fills again");
        bucket.set(Spacing::NONE, 0, SECOND);
        assert_eq!(bucket.eligible_at(), 0);
    }

    /// So does the burst of a client whose reports name one server and two in turn.
    #[test]
    fn a_burst_that_shrinks_and_grows_gave_what_was_used_back() {
        let mut bucket = Bucket::default();
        bucket.set(rate(10), 20 << 16, SECOND);
        let passed = (0..100).take_while(|_| {
            bucket.set(rate(10), 10 << 16, SECOND);
            bucket.set(rate(10), 20 << 16, SECOND);
            let passes = bucket.eligible_at() <= SECOND;
            bucket.charge(SECOND, 1 << 16);
            passes
        });
        assert_eq!(passed.count(), 11, "what the smaller burst allows, and the one that may go anyway");
        bucket.set(rate(10), 20 << 16, 9 * SECOND);
        assert!(bucket.eligible_at() <= 9 * SECOND, "time fills it again");
    }

    #[test]
    fn what_is_left_of_a_burst_stays() {
        let mut bucket = Bucket::default();
        bucket.set(rate(10), 20 << 16, SECOND);
        (0..5).for_each(|_| bucket.charge(SECOND, 1 << 16));
        bucket.set(rate(20), 30 << 16, SECOND);
        let passed = (0..100).take_while(|_| {
            let passes = bucket.eligible_at() <= SECOND;
            bucket.charge(SECOND, 1 << 16);
            passes
        });
        assert_eq!(passed.count(), 16);
    }
}
