//! A token bucket, as a rented cloud disk: jobs complete immediately while there are tokens, then at the rate.
//!
//! Example: 1000 iops and a burst of 10. Of 13 jobs at the same instant ten complete immediately, and the others after
//! 1, 2 and 3 ms.

use std::collections::VecDeque;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;
use sluice_sched::units::Iops;

use super::{Job, Model};

/// One token per job of any size. The device is busy until the bucket is full again.
#[derive(Debug)]
pub struct TokenBucket {
    /// Nanoseconds between two tokens.
    spacing_nanos: u64,
    /// Nanoseconds to fill it, except for one token: a job finds a token this long before the bucket is full.
    depth_nanos: u64,
    /// When it will be full, if no job arrives.
    full: u64,
    waiting: VecDeque<(Instant, Slot)>,
    busy: u64,
}

impl TokenBucket {
    /// At most `burst` tokens, and one more every `1 / rate`. It starts full.
    #[must_use]
    pub fn new(rate: Iops, burst: u32) -> Self {
        let spacing_nanos = (1_000_000_000_000 / rate.milli()).max(1);
        let depth_nanos = spacing_nanos * u64::from(burst.max(1) - 1);
        TokenBucket { spacing_nanos, depth_nanos, full: 0, waiting: VecDeque::new(), busy: 0 }
    }
}

impl Model for TokenBucket {
    fn submit(&mut self, now: Instant, job: Job) {
        let before = self.full.max(now.as_nanos());
        self.full = before + self.spacing_nanos;
        self.busy += self.spacing_nanos;
        let ends = before.saturating_sub(self.depth_nanos).max(now.as_nanos() + 1);
        self.waiting.push_back((Instant::from_nanos(ends), job.slot));
    }

    fn next(&self) -> Option<Instant> {
        self.waiting.front().map(|(ends, _)| *ends)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let (ends, slot) = *self.waiting.front()?;
        (ends <= now).then(|| {
            self.waiting.pop_front();
            slot
        })
    }

    fn jobs_held(&self) -> usize {
        self.waiting.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.full.saturating_sub(now.as_nanos())
    }

    fn servers(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::Kind;

    use super::*;

    #[test]
    fn a_burst_passes_before_the_rate_limits() {
        // It is full at the start, and after an idle time.
        let mut bucket = TokenBucket::new(Iops::per_second(1000), 10);
        for millis in [0, 5000] {
            let start = Instant::from_millis(millis);
            for slot in 0..30 {
                bucket.submit(start, Job { slot: Slot(slot), kind: Kind::Read, offset: 0, length: 4096 });
            }
            let soon = Instant::from_nanos(start.as_nanos() + 1);
            let at_once = std::iter::from_fn(|| bucket.take(soon)).count();
            assert_eq!(at_once, 10, "at {millis} ms");
            let later = Instant::from_millis(millis + 15);
            assert_eq!(std::iter::from_fn(|| bucket.take(later)).count(), 15);
            assert_eq!(bucket.next(), Some(Instant::from_millis(millis + 16)));
            // Of thirty tokens it has produced those of 15 ms.
            assert_eq!(bucket.ahead_nanos(later), 15_000_000);
            while let Some(at) = bucket.next() {
                bucket.take(at);
            }
        }
        assert_eq!(bucket.busy_nanos(), 60_000_000);
    }
}
