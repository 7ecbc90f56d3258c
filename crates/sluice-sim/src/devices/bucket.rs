//! A token bucket: what a rented disk of a cloud does. Jobs are over at once while there are tokens, then at the rate.

use std::collections::VecDeque;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;
use sluice_sched::units::Iops;

use super::{Job, Model};

/// One token for a job, whatever its size.
#[derive(Debug)]
pub struct TokenBucket {
    /// Between two tokens.
    spacing_nanos: u64,
    /// Full for so long.
    depth_nanos: u64,
    /// When the token of the last job came or will come, if the bucket had no bound.
    tag: u64,
    waiting: VecDeque<(Instant, Slot)>,
    busy: u64,
}

impl TokenBucket {
    /// `burst` tokens at most, one more every `1 / rate`. It is full at first.
    #[must_use]
    pub fn new(rate: Iops, burst: u32) -> Self {
        let spacing_nanos = (1_000_000_000_000 / rate.milli()).max(1);
        let depth_nanos = spacing_nanos * u64::from(burst.max(1) - 1);
        TokenBucket { spacing_nanos, depth_nanos, tag: 0, waiting: VecDeque::new(), busy: 0 }
    }
}

impl Model for TokenBucket {
    fn submit(&mut self, now: Instant, job: Job) {
        let earliest = now.as_nanos().saturating_sub(self.depth_nanos);
        self.tag = (self.tag + self.spacing_nanos).max(earliest);
        self.busy += self.spacing_nanos;
        let ends = self.tag.max(now.as_nanos() + 1);
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

    fn holds(&self) -> usize {
        self.waiting.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.busy.saturating_sub(self.depth_nanos)
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
        let mut bucket = TokenBucket::new(Iops::per_second(1000), 10);
        let start = Instant::from_millis(5000);
        for slot in 0..30 {
            bucket.submit(start, Job { slot: Slot(slot), kind: Kind::Read, offset: 0, length: 4096 });
        }
        let soon = Instant::from_nanos(start.as_nanos() + 1);
        let at_once = std::iter::from_fn(|| bucket.take(soon)).count();
        assert_eq!(at_once, 10);
        let later = Instant::from_millis(5015);
        assert_eq!(std::iter::from_fn(|| bucket.take(later)).count(), 15);
        assert_eq!(bucket.next(), Some(Instant::from_millis(5016)));
    }
}
