//! A limit in one currency: the generic cell rate algorithm (GCRA), a token bucket that stores one instant.
//!
//! The tag is the theoretical arrival time (TAT). A request may pass while the tag is at most `ahead` later than now,
//! where `ahead` is the burst as a distance of tags. The content of the bucket is `ahead` minus the distance from now
//! to the tag.
//!
//! Example: 10 IOPS and a burst of 20, so `ahead` is 2 s. At 1 s, 21 requests of cost 1 pass immediately: 20 for the
//! burst, and one more while the tag is at most 3 s. The tag is then 3.1 s, and the next request passes at 1.1 s.

use crate::tag::{Spacing, Tag};

use super::meter::Meter;

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

    /// Sets rate and burst, with `burst` in units of service. The rest of the old burst stays, as the same service: a
    /// smaller burst does not reclaim what was used of the old one, and a larger one does not pass more requests
    /// immediately. A new limit starts with its whole burst.
    pub(super) fn set(&mut self, spacing: Spacing, burst: u64, now: Tag) {
        let before = *self;
        self.meter = Meter::at(spacing, now);
        self.ahead = self.meter.step(burst);
        if !before.is_set() || spacing.is_none() {
            return;
        }
        if before.meter.raw_tag() <= now {
            // The bucket was full. Reports of other servers belong to the time since then, and so does the growth of a
            // burst.
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

    /// When the next request may pass; 0 without a limit.
    pub(super) fn eligible_at(&self) -> Tag {
        self.meter.tag().map_or(0, |tag| tag.saturating_sub(self.ahead))
    }

    /// Whether a request of the amount `one` leaves less than half of what passes back to back: of the burst and that request.
    pub(super) fn is_low(&self, one: u64, now: Tag) -> bool {
        let half = (self.ahead.saturating_add(self.step(one))) / 2;
        self.eligible_at().saturating_add(half) > now && self.is_set()
    }

    /// Distance that the limit keeps between requests of this amount; 0 without a limit.
    pub(super) fn step(&self, amount: u64) -> Tag {
        self.meter.step(amount)
    }

    /// Counts a request that has passed, for which the limit keeps this distance.
    #[inline]
    pub(super) fn charge_step(&mut self, now: Tag, step: Tag) {
        self.meter.advance_from(now, step);
    }

    /// Returns the content of the bucket at `now`, see [`Left`](crate::standing::Left). A bucket that was full earlier has more
    /// than its burst: the rate since then is included.
    pub(super) fn left(&self, now: Tag) -> Option<i64> {
        self.meter.amount_until(now.saturating_add(self.ahead))
    }

    /// Sets the content of the bucket to that of another scheduler's. More than the burst is kept, as a change of the burst keeps it,
    /// but never passes.
    pub(super) fn resume(&mut self, now: Tag, left: Option<i64>) {
        self.meter.set_before(now.saturating_add(self.ahead), left);
    }

    /// Counts service at other servers, which lies in the past.
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
    fn a_burst_that_shrank_under_a_backlog_delayed_requests() {
        let mut bucket = Bucket::default();
        bucket.set(rate(10), 20 << 16, SECOND);
        (0..21).for_each(|_| bucket.charge_step(SECOND, bucket.step(1 << 16)));
        assert_eq!(bucket.eligible_at(), SECOND + SECOND / 10, "20 back to back, and the one that may always pass");
        bucket.set(rate(10), 0, SECOND);
        assert_eq!(bucket.eligible_at(), SECOND + SECOND / 10);
        bucket.set(rate(100), 50 << 16, SECOND);
        assert_eq!(bucket.eligible_at(), SECOND + SECOND / 100, "the rate takes effect, the burst fills again");
        bucket.set(Spacing::NONE, 0, SECOND);
        assert_eq!(bucket.eligible_at(), 0);
    }

    /// So did that of a client whose reports named one server and two servers alternately.
    #[test]
    fn a_burst_that_shrank_and_grew_passed_used_requests_again() {
        let mut bucket = Bucket::default();
        bucket.set(rate(10), 20 << 16, SECOND);
        let passed = (0..100).take_while(|_| {
            bucket.set(rate(10), 10 << 16, SECOND);
            bucket.set(rate(10), 20 << 16, SECOND);
            let passes = bucket.eligible_at() <= SECOND;
            bucket.charge_step(SECOND, bucket.step(1 << 16));
            passes
        });
        assert_eq!(passed.count(), 11, "the smaller burst, and the one that may always pass");
        bucket.set(rate(10), 20 << 16, 9 * SECOND);
        assert!(bucket.eligible_at() <= 9 * SECOND, "time fills it again");
    }

    #[test]
    fn the_rest_of_a_burst_is_kept_when_the_limit_changes() {
        let mut bucket = Bucket::default();
        bucket.set(rate(10), 20 << 16, SECOND);
        (0..5).for_each(|_| bucket.charge_step(SECOND, bucket.step(1 << 16)));
        bucket.set(rate(20), 30 << 16, SECOND);
        let passed = (0..100).take_while(|_| {
            let passes = bucket.eligible_at() <= SECOND;
            bucket.charge_step(SECOND, bucket.step(1 << 16));
            passes
        });
        assert_eq!(passed.count(), 16);
    }
}
