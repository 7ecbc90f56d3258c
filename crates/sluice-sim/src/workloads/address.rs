//! Offsets of a workload's requests.

use crate::random::Stream;

/// Offsets in a range of bytes.
#[derive(Debug, Clone)]
pub struct Address {
    start: u64,
    length: u64,
    /// Fraction of the requests at random offsets; the others follow the previous one.
    random: f64,
    cursor: u64,
}

impl Address {
    /// Sequential, and from the start again at the end.
    #[must_use]
    pub fn sequential(start: u64, length: u64) -> Self {
        Address { start, length, random: 0.0, cursor: 0 }
    }

    /// Random, at multiples of the request's length.
    #[must_use]
    pub fn random(start: u64, length: u64) -> Self {
        Address { random: 1.0, ..Self::sequential(start, length) }
    }

    /// Random with this probability, otherwise after the previous one.
    #[must_use]
    pub fn mixed(start: u64, length: u64, random: f64) -> Self {
        Address { random, ..Self::sequential(start, length) }
    }

    pub(super) fn next(&mut self, length: u32, random: &mut Stream) -> u64 {
        let length = u64::from(length.max(1));
        let places = (self.length / length).max(1);
        if self.random >= 1.0 || random.chance(self.random) {
            self.cursor = random.below(places) * length;
        }
        if self.cursor + length > self.length {
            self.cursor = 0;
        }
        let offset = self.start + self.cursor;
        self.cursor += length;
        offset
    }
}
