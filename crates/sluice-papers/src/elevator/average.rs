//! Moving averages in fixed point: each sample has the weight 1/8, and 256 stands for 1.
//!
//! Example: after samples of 800, 800 and 800 the sum of weights is 32, 60 and 84 of 256. The mean is then 806: the 128
//! added for rounding count more while the weights are small.

use crate::elevator::SECTOR;

/// An average of about the last eight samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Average {
    samples: u64,
    total: u64,
}

/// Larger samples count as this; 2^48 leaves room to multiply.
const SAMPLE_MAX: u64 = 1 << 48;
/// Sum of the weights from the 32nd sample on, where rounding stops it.
const STEADY: u64 = 249;

impl Average {
    // rule: gate.averages
    pub(crate) fn add(&mut self, sample: u64) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * sample.min(SAMPLE_MAX)) / 8;
    }

    /// 0 if there is no sample.
    pub(crate) fn mean(&self) -> u64 {
        let rounded = self.total + 128;
        match self.samples {
            0 => 0,
            // The compiler divides by a constant without a division.
            STEADY => rounded / STEADY,
            samples => rounded / samples,
        }
    }

    /// Whether there is no sample.
    pub(crate) fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Whether there are at least three samples.
    // rule: gate.sample-valid
    pub(crate) fn is_valid(&self) -> bool {
        self.samples > 80
    }
}

/// An average of distances between one request's end and the next one's start, in sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SeekAverage(pub(crate) Average);

impl SeekAverage {
    /// Adds a distance of `bytes`. It counts at most four times the mean plus a constant, so one outlier does not make
    /// an owner a seeking one.
    // rule: gate.seek-clip
    pub(crate) fn add(&mut self, bytes: u64) {
        let room = if self.0.samples <= 60 { 2 * 1024 * 1024 } else { 2 * 1024 * 64 };
        self.0.add((bytes / SECTOR).min(4 * self.0.mean() + room));
    }

    /// The mean in sectors.
    pub(crate) fn mean(&self) -> u64 {
        self.0.mean()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: gate.averages, gate.sample-valid
    #[test]
    fn an_average_is_valid_after_three_samples_and_forgets_old_ones() {
        let mut average = Average::default();
        assert!(average.is_empty());
        let mut samples = Vec::new();
        for sample in [800, 800, 800] {
            assert!(!average.is_valid());
            average.add(sample);
            samples.push(average.samples);
        }
        assert_eq!(samples, [32, 60, 84]);
        assert_eq!(average.mean(), 806, "half of 256 is added before the division");
        assert!(average.is_valid() && !average.is_empty());
        (0..40).for_each(|_| average.add(0));
        assert_eq!(average.samples, STEADY);
        assert!(average.mean() <= 1, "{}", average.mean());
        average.add(u64::MAX);
        assert!(average.mean() < u64::MAX / 256, "a huge sample overflows nothing");
    }

    // rule: gate.seek-clip
    #[test]
    fn a_distant_outlier_is_capped() {
        let mut seek = SeekAverage::default();
        seek.add(1 << 45);
        assert_eq!(seek.mean(), 2 * 1024 * 1024 + 4, "4 times nothing and 1 GiB, in sectors, and half of 256 over 32");
        let mut near = SeekAverage::default();
        (0..10).for_each(|_| near.add(0));
        near.add(1 << 45);
        assert!(near.mean() <= 2 * 1024 * 64 / 6, "64 MiB of one sample: {}", near.mean());
    }
}
