//! Streams of random numbers, one for each component by its name.

use rand_distr::{Distribution, Gamma};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng};

/// A stream that depends only on the run's seed and the component's name.
#[must_use]
pub fn stream(seed: u64, name: &str) -> Stream {
    // FNV-1a of the name, mixed with the seed.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    Stream(Pcg64Mcg::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash))
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Stream(Pcg64Mcg);

impl Stream {
    /// Uniform in `0..bound`; 0 if the range is empty.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Geometric from 1 with this mean; 1 if the mean is not above 1.
    pub fn geometric(&mut self, mean: f64) -> u64 {
        if mean <= 1.0 {
            return 1;
        }
        let failures = (1.0 - self.unit()).ln() / (1.0 - 1.0 / mean).ln();
        1 + failures as u64
    }

    /// Gamma with this shape and mean; the mean itself if either is not above zero.
    pub fn gamma(&mut self, shape: f64, mean: f64) -> f64 {
        Gamma::new(shape, mean / shape).map_or(mean, |gamma| gamma.sample(&mut self.0))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_depends_only_on_seed_and_name() {
        let first = |seed, name| stream(seed, name).below(u64::MAX);
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
    }

    #[test]
    fn means_are_right() {
        let mut stream = stream(7, "means");
        let n = 100_000;
        let uniform = (0..n).map(|_| stream.below(1000) as f64).sum::<f64>() / f64::from(n);
        let exponential = (0..n).map(|_| stream.exponential()).sum::<f64>() / f64::from(n);
        assert!((uniform - 499.5).abs() < 3.0 && (exponential - 1.0).abs() < 0.015, "{uniform} {exponential}");
        let geometric = (0..n).map(|_| stream.geometric(4.76) as f64).sum::<f64>() / f64::from(n);
        let gamma = (0..n).map(|_| stream.gamma(1.5, 128.0)).sum::<f64>() / f64::from(n);
        assert!((geometric - 4.76).abs() < 0.06 && (gamma - 128.0).abs() < 1.5, "{geometric} {gamma}");
        assert_eq!(stream.geometric(0.5), 1);
    }
}
