//! A token bucket in whole numbers.
//!
//! The level is kept in tokens times nanoseconds per second, so nothing is rounded: a rate of 3 frames per second gains exactly 3 in
//! each second, however often it is asked, and a refill that is shorter than a token is not lost. The time to wait is rounded up and
//! never 0, so a timer that is set to it finds the tokens.
//!
//! Example: 3 tokens per second, burst 1, empty at 0 s. A token is there at 333,333,334 ns.

use core::num::NonZeroU64;
use core::time::Duration;

use sluice_sched::Instant;

const NANOS: i128 = 1_000_000_000;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_second: NonZeroU64,
    burst: NonZeroU64,
    /// Tokens, in billionths. Negative after [`spend`](Self::spend).
    level: i128,
    at: Instant,
}

impl Bucket {
    /// A full bucket that gains `per_second` tokens per second and holds `burst`.
    #[must_use]
    pub fn new(now: Instant, per_second: NonZeroU64, burst: NonZeroU64) -> Self {
        Bucket { per_second, burst, level: i128::from(burst.get()) * NANOS, at: now }
    }

    /// Changes rate and burst. The level stays, as far as it fits, so a change gives no tokens, and debts are paid at the new rate.
    pub fn set(&mut self, now: Instant, per_second: NonZeroU64, burst: NonZeroU64) {
        self.refill(now);
        (self.per_second, self.burst) = (per_second, burst);
        self.level = self.level.min(self.capacity());
    }

    /// Takes `tokens` if they are there.
    pub fn take(&mut self, now: Instant, tokens: u64) -> bool {
        self.refill(now);
        let cost = i128::from(tokens) * NANOS;
        let there = self.level >= cost;
        if there {
            self.level -= cost;
        }
        there
    }

    /// When something that costs `tokens` may pass: `None` is now. What costs more than the burst passes with a full bucket.
    #[must_use]
    pub fn ready(&mut self, now: Instant, tokens: u64) -> Option<Instant> {
        self.refill(now);
        let missing = (i128::from(tokens) * NANOS).min(self.capacity()) - self.level;
        if missing <= 0 {
            return None;
        }
        let rate = i128::from(self.per_second.get());
        let nanos = (missing + rate - 1) / rate;
        Some(now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Takes `tokens` that pass, also those that are not there: what follows waits for them. So the rate is kept with costs that are
    /// larger than the bucket.
    pub fn spend(&mut self, now: Instant, tokens: u64) {
        self.refill(now);
        self.level = self.level.saturating_sub(i128::from(tokens) * NANOS);
    }

    /// Gives back `tokens` that were spent on something that did not pass.
    pub fn refund(&mut self, tokens: u64) {
        self.level = self.level.saturating_add(i128::from(tokens) * NANOS).min(self.capacity());
    }

    fn capacity(&self) -> i128 {
        i128::from(self.burst.get()) * NANOS
    }

    fn refill(&mut self, now: Instant) {
        let gained = i128::from(now.nanos_since(self.at)) * i128::from(self.per_second.get());
        self.level = self.level.saturating_add(gained).min(self.capacity());
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(per_second: u64, burst: u64) -> Bucket {
        Bucket::new(Instant::ZERO, NonZeroU64::new(per_second).unwrap(), NonZeroU64::new(burst).unwrap())
    }

    #[test]
    fn a_slow_rate_is_exact_however_often_it_is_asked() {
        let mut bucket = bucket(3, 2);
        assert!(bucket.take(Instant::ZERO, 2));
        assert_eq!(bucket.ready(Instant::ZERO, 1), Some(Instant::from_nanos(333_333_334)));
        let taken = (1..=1_000_000u64).filter(|at| bucket.take(Instant::from_nanos(at * 10_000), 1)).count();
        assert_eq!(taken, 30, "3 per second for 10 s, asked every 10 us");
    }

    #[test]
    fn a_cost_above_the_burst_passes_and_is_paid() {
        let mut bucket = bucket(1_000, 10);
        assert_eq!(bucket.ready(Instant::ZERO, 64), None);
        bucket.spend(Instant::ZERO, 64);
        assert_eq!(bucket.ready(Instant::ZERO, 1), Some(Instant::from_millis(55)));
        assert_eq!(bucket.ready(Instant::ZERO, 64), Some(Instant::from_millis(64)));
    }

    /// A limit put on while it runs: no burst for the change, and no old debt that lasts for ever.
    #[test]
    fn a_changed_rate_gives_no_tokens() {
        let mut bucket = bucket(1_000, 10);
        bucket.spend(Instant::ZERO, 10);
        let (rate, burst) = (NonZeroU64::new(100).unwrap(), NonZeroU64::new(1_000).unwrap());
        bucket.set(Instant::ZERO, rate, burst);
        assert_eq!(bucket.ready(Instant::ZERO, 1), Some(Instant::from_millis(10)));
        bucket.set(Instant::from_millis(1_000_000), rate, NonZeroU64::MIN);
        assert!(bucket.take(Instant::from_millis(1_000_000), 1));
        assert!(!bucket.take(Instant::from_millis(1_000_000), 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// A timer that is set to the returned instant finds the tokens, and one nanosecond earlier does not.
        #[test]
        fn the_returned_instant_is_the_first_with_the_tokens(
            rate in 1u64..u64::MAX, burst in 1u64..1 << 40, spent in 0u64..1 << 41, tokens in 1u64..1 << 41, at in 0u64..1 << 60,
        ) {
            let mut bucket = bucket(rate, burst);
            let now = Instant::from_nanos(at);
            bucket.spend(now, spent);
            if let Some(ready) = bucket.ready(now, tokens) {
                prop_assert!(ready > now);
                let mut early = bucket;
                prop_assert!(ready.nanos_since(now) == 1 || early.ready(ready - Duration::from_nanos(1), tokens).is_some());
                prop_assert!(ready == Instant::MAX || bucket.ready(ready, tokens).is_none());
            }
        }
    }
}
