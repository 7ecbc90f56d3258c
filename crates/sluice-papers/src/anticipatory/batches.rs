//! Batches: which direction is served, and for how long.

use core::time::Duration;

use crate::anticipatory::Params;
use sluice_sched::time::Instant;

pub(super) const ASYNC: usize = 0;
pub(super) const SYNC: usize = 1;

/// The current batch.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) direction: usize,
    /// End of the batch, if the other direction has requests.
    pub(super) expires: Instant,
    /// The previous batch drains.
    pub(super) changed: bool,
    /// A sync batch of which no request has completed.
    pub(super) new: bool,
    /// Learned number of requests that fit into an async batch.
    pub(super) writes: u32,
    /// Number of these that may still be sent in this batch.
    pub(super) left: u32,
    /// The batch ran out of requests.
    pub(super) idled: bool,
    lengths: [Duration; 2],
}

impl Batch {
    pub(super) fn new(params: &Params, unit: u64) -> Batch {
        let fits = params.write_batch_expire.as_nanos() / u128::from(unit) / 10;
        Batch {
            direction: SYNC,
            expires: Instant::ZERO,
            changed: false,
            new: false,
            writes: u32::try_from(fits).unwrap_or(u32::MAX).max(2),
            left: 0,
            idled: false,
            lengths: [params.write_batch_expire, params.read_batch_expire],
        }
    }

    /// End of a batch that begins now.
    pub(super) fn end_from(&self, now: Instant) -> Instant {
        now + self.lengths[self.direction]
    }

    // rule: anticipatory.batch-expired
    pub(super) fn has_ended(&self, now: Instant) -> bool {
        !self.changed && !self.new && (now > self.expires || self.direction == ASYNC && self.left == 0)
    }

    /// Adapts the number of writes after an async batch that was followed by a sync one: by one if the batch was too long or
    /// too short, and by half or double if by a factor of more than three.
    ///
    /// Example: the target is 125 ms. After a batch of 12 writes that took 126 ms the next one has 11, after 376 ms it has 6.
    // rule: anticipatory.write-batch-adapts
    pub(super) fn adapt(&mut self, now: Instant) {
        let target = self.lengths[ASYNC].as_nanos() as u64;
        let began = self.expires - self.lengths[ASYNC];
        let took = now.nanos_since(began);
        if took > target && !self.idled {
            self.writes = if took > 3 * target { self.writes / 2 } else { self.writes - 1 };
        } else if took < target && self.left == 0 {
            self.writes = if target > 3 * took { self.writes.saturating_mul(2) } else { self.writes.saturating_add(1) };
        }
        self.writes = self.writes.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rule: anticipatory.write-batch-adapts, anticipatory.write-batch-expire
    #[test]
    fn the_length_of_a_write_batch_adapts() {
        // Milliseconds that the batch took of 125, requests left, whether it idled, and the number that 12 becomes.
        let table = [
            (126, 0, false, 11),
            (376, 0, false, 6),
            (376, 0, true, 12),
            (124, 0, false, 13),
            (41, 0, false, 24),
            (41, 3, false, 12),
            (125, 0, false, 12),
        ];
        for (took, left, idled, expected) in table {
            let mut batch = Batch::new(&Params::default(), 1_000_000);
            assert_eq!(batch.writes, 12);
            (batch.left, batch.idled, batch.expires) = (left, idled, Instant::from_millis(1125));
            batch.adapt(Instant::from_millis(1000 + took));
            assert_eq!(batch.writes, expected, "{took} ms, {left} left, idled {idled}");
        }
        let mut batch = Batch::new(&Params::default(), 1_000_000);
        batch.writes = 1;
        batch.adapt(Instant::from_millis(100_000));
        assert_eq!(batch.writes, 1, "never none");
    }
}
