//! Where a workload's requests lie.

use crate::random::Stream;

/// Places in a range of bytes.
#[derive(Debug, Clone)]
pub struct Address {
    start: u64,
    length: u64,
    /// Part of the requests that lie anywhere; the others follow the one before.
    random: f64,
    cursor: u64,
}

impl Address {
    /// One behind the other, and from the start again.
    #[must_use]
    pub fn sequential(start: u64, length: u64) -> Self {
        Address { start, length, random: 0.0, cursor: 0 }
    }

    /// Anywhere, in whole multiples of a request's length.
    #[must_use]
    pub fn random(start: u64, length: u64) -> Self {
        Address { random: 1.0, ..Self::sequential(start, length) }
    }

    /// Anywhere with this probability, else behind the one before.
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
