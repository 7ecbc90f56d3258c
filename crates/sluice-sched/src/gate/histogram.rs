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
    counts: [u64; BUCKETS],
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
    /// Counts one time.
    #[inline]
    pub fn add(&mut self, nanos: u64) {
        self.counts[bucket(nanos).min(BUCKETS - 1)] += 1;
    }

    /// Number of times counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Upper bound of the given percentile in nanoseconds; `None` if the histogram is empty.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        percentile(self.count(), percent, self.counts.iter().copied().enumerate())
    }

    /// The buckets that are not empty: upper bound in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (upper(bucket), *count))
    }
}

/// Counts of times in nanoseconds, of the same buckets, that take memory for filled buckets alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SparseHistogram {
    /// Bucket and count, sorted by bucket. Of one interval, so 32 bits are enough; a counter that is full stays so.
    filled: Vec<(u8, u32)>,
}

impl Histogram {
    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
    }

    /// Counts since `earlier`, an earlier copy of this histogram. Buckets that have gone back count nothing: they
    /// belong to another histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> SparseHistogram {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then));
        let counts = counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let filled = (0u8..=u8::MAX).zip(counts).filter(|(_, count)| *count > 0);
        SparseHistogram { filled: filled.collect() }
    }
}

impl SparseHistogram {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &SparseHistogram) {
        for &(bucket, count) in &other.filled {
            match self.filled.binary_search_by_key(&bucket, |(known, _)| *known) {
                Ok(place) => self.filled[place].1 = self.filled[place].1.saturating_add(count),
                Err(place) => self.filled.insert(place, (bucket, count)),
            }
        }
    }

    /// Number of times counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.filled.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Upper bound of the given percentile in nanoseconds; `None` if the histogram is empty.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        percentile(
            self.count(),
            percent,
            self.filled.iter().map(|(bucket, count)| (usize::from(*bucket), u64::from(*count))),
        )
    }

    /// The buckets that are not empty: upper bound in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.filled.iter().map(|(bucket, count)| (upper(usize::from(*bucket)), u64::from(*count)))
    }
}

/// The first time above the bucket in which the given percentile of `total` times lies, in nanoseconds.
fn percentile(total: u64, percent: f64, counts: impl Iterator<Item = (usize, u64)>) -> Option<u64> {
    if total == 0 {
        return None;
    }
    let wanted = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    for (bucket, count) in counts {
        seen += count;
        if seen >= wanted {
            return Some(upper(bucket));
        }
    }
    unreachable!("the counts add up to their total")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_after_2_to_the_32_in_one_bucket_were_lost() {
        let mut times = Histogram { counts: [u64::from(u32::MAX) - 1; BUCKETS] };
        let earlier = times.clone();
        (0..5).for_each(|_| times.add(5000));
        assert_eq!(times.since(&earlier).buckets().collect::<Vec<_>>(), [(upper(bucket(5000)), 5)]);
    }

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
    fn what_was_counted_since_a_copy_has_its_percentiles() {
        let mut histogram = Histogram::default();
        (1..=1000u64).for_each(|micros| histogram.add(micros * 1000));
        let copy = histogram.clone();
        let mut sum = SparseHistogram::default();
        for start in [1u64, 51] {
            (start..start + 50).for_each(|millis| histogram.add(millis * 1_000_000));
        }
        sum.add(&histogram.since(&copy));
        assert_eq!(sum.count(), 100);
        let median = sum.percentile(50.0).unwrap();
        assert!((50_000_000..57_000_000).contains(&median), "{median}");
        sum.add(&copy.since(&Histogram::default()));
        assert_eq!((sum.count(), sum.percentile(100.0)), (1100, histogram.percentile(100.0)));
        assert_eq!(sum.buckets().collect::<Vec<_>>(), histogram.buckets().collect::<Vec<_>>());
    }

    #[test]
    fn after_four_billion_requests_a_histogram_showed_no_more() {
        let mut histogram = Histogram { counts: [u64::from(u32::MAX); BUCKETS] };
        let copy = histogram.clone();
        histogram.add(5_000);
        assert_eq!(histogram.count(), copy.count() + 1);
        assert_eq!(histogram.since(&copy).percentile(50.0), Some(5_120));
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
