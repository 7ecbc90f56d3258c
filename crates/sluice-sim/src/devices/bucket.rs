//! A token bucket: what a rented disk of a cloud does. Jobs are over at once while there are tokens, then at the rate.

use std::collections::VecDeque;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;
use sluice_sched::units::Iops;

use super::{Job, Model};

/// One token for a job, whatever its size. Working is to make tokens: until the bucket is full again.
#[derive(Debug)]
pub struct TokenBucket {
    /// Between two tokens.
    spacing_nanos: u64,
    /// To fill it, but for one token: so long before it is full a job still finds one.
    depth_nanos: u64,
    /// When it will be full, if no job comes.
    full: u64,
    waiting: VecDeque<(Instant, Slot)>,
    busy: u64,
}

impl TokenBucket {
    /// `burst` tokens at most, one more every `1 / rate`. It is full at first.
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
    fn a_burst_passes_and_then_the_rate_holds() {
        // It is full at first, and after it was left alone.
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
            // Of thirty tokens it has made those of 15 ms.
            assert_eq!(bucket.ahead_nanos(later), 15_000_000);
            while let Some(at) = bucket.next() {
                bucket.take(at);
            }
        }
        assert_eq!(bucket.busy_nanos(), 60_000_000);
    }
}
