//! The fuzzer's bytes as numbers. At its end an input continues with zeros, so every input is valid.

/// A reader of the input.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Input { bytes }
    }

    /// Whether all bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    /// Returns a number from 0 to `bound` - 1. Uses one byte for bounds up to 256, otherwise two.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = match bound {
            0..=256 => usize::from(self.byte()),
            _ => usize::from(self.byte()) | usize::from(self.byte()) << 8,
        };
        number % bound.max(1)
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns true for one in `n` bytes, and false for a byte of 0.
    pub fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// Returns a number of any magnitude: small ones, powers of two and their neighbours, the largest.
    pub fn number(&mut self) -> u64 {
        let (shift, low) = (self.byte(), u64::from(self.byte()));
        match shift {
            0..=127 => low,
            128..=191 => (1 << (shift - 128)) + low,
            192..=254 => (1 << (shift - 191)) - 1,
            255 => u64::MAX - low,
        }
    }
}
