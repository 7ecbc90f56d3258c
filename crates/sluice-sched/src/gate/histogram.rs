//! A histogram of times that is cheap to fill: eight equal buckets per power of two.
//!
//! It covers 1 us to 137 s; shorter and longer times count in the first and last bucket. A percentile is at most one
//! bucket, an eighth of its power of two, above the true value. Example: 1,100 ns count in the bucket from 1,024 ns to
//! 1,152 ns.

const FIRST_BIT: u32 = 10;
const LAST_BIT: u32 = 37;
const STEP_BITS: u32 = 3;
const BUCKETS: usize = (((LAST_BIT - FIRST_BIT) << STEP_BITS) + 1) as usize;

/// Counts of times in nanoseconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: [u32; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS] }
    }
}

/// The bucket of a time.
fn bucket(nanos: u64) -> usize {
    if nanos >> FIRST_BIT == 0 {
        return 0;
    }
    if nanos >> LAST_BIT != 0 {
        return BUCKETS - 1;
    }
    let bit = 63 - nanos.leading_zeros();
    let step = (nanos >> (bit - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
    (((bit - FIRST_BIT) as usize) << STEP_BITS) + step + 1
}

/// The first time above a bucket, in nanoseconds.
fn upper(bucket: usize) -> u64 {
    if bucket == 0 {
        return 1 << FIRST_BIT;
    }
    let bit = FIRST_BIT + ((bucket - 1) >> STEP_BITS) as u32;
    let step = (bucket - 1) as u64 & ((1 << STEP_BITS) - 1);
    (1 << bit) + ((step + 1) << (bit - STEP_BITS))
}

impl Histogram {
    /// Counts one time. The counter of a bucket saturates at 2^32 - 1.
    #[inline]
    pub fn add(&mut self, nanos: u64) {
        let bucket = bucket(nanos).min(BUCKETS - 1);
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
    }

    /// Number of times counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Upper bound of the given percentile in nanoseconds; `None` if the histogram is empty.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let wanted = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return Some(upper(bucket));
            }
        }
        unreachable!("the counts add up to their total")
    }

    /// The buckets that are not empty: upper bound in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (upper(bucket), u64::from(*count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket() {
        for nanos in [0, 1, 1023, 1024, 1151, 1152, 5_000, 1_000_000, 123_456_789, 136_000_000_000] {
            let bucket = bucket(nanos);
            assert!(nanos < upper(bucket), "{nanos}");
            assert!(bucket == 0 || nanos >= upper(bucket - 1), "{nanos}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_above() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50.0), None);
        for micros in 1..=1000u64 {
            histogram.add(micros * 1000);
        }
        for (percent, exact) in [(50.0, 500_000.0), (99.0, 990_000.0), (100.0, 1_000_000.0)] {
            let read = histogram.percentile(percent).unwrap() as f64;
            assert!(read >= exact && read <= exact * 1.13, "{percent}: {read}");
        }
    }
}
