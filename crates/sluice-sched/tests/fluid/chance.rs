//! Seeded random numbers for plans and traffic.

use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A generator whose numbers depend on its seed alone.
#[derive(Debug, Clone)]
pub struct Chance(Pcg32);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        let mut rng = Pcg32::seed_from_u64(seed);
        // The first numbers of neighbouring seeds resemble each other.
        for _ in 0..4 {
            let _ = rng.next_u64();
        }
        Chance(rng)
    }

    /// Returns a number from 0 to `bound` - 1.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Returns a number from 0 up to, not at, 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number from `low` to `high`; each order of magnitude is as likely as any other.
    pub fn log(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    /// Returns an exponentially distributed number of mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Whether an event of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
