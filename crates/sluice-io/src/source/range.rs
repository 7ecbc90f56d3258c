//! A range of bytes: where a volume is in its file or block device.
//!
//! `std::ops::Range` is neither `Copy` nor printable as text, and its second number is an end. Locks, FIEMAP and NBD all use offset and length, and so does this type.

use std::fmt;

/// `length` bytes from `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte, counted from the start of the file or device.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl ByteRange {
    /// Returns the range of `length` bytes from `offset`.
    #[must_use]
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset, length }
    }

    /// Returns one past the last byte; `u64::MAX` if that does not fit, so that such a range is past the end of every
    /// file.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Whether at least one byte is in both.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// Returns the part of this range that is in `other`; its length is 0 if there is none.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        let offset = self.offset.clamp(other.offset, other.end());
        let end = self.end().clamp(offset, other.end().max(offset));
        Self::new(offset, end - offset)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} to {}", self.offset, self.end().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap() {
        let cases = [
            ((0, 10), (10, 10), false),
            ((0, 11), (10, 10), true),
            ((5, 1), (0, 100), true),
            ((0, u64::MAX), (7, 1), true),
            ((0, 0), (0, 10), false),
        ];
        for ((a, b), (c, d), expected) in cases {
            let (left, right) = (ByteRange::new(a, b), ByteRange::new(c, d));
            assert_eq!(left.overlaps(right) && right.overlaps(left), expected, "{left} / {right}");
        }
    }

    #[test]
    fn within_cuts_both_ends() {
        let outer = ByteRange::new(100, 50);
        assert_eq!(ByteRange::new(0, 1000).within(outer), outer);
        assert_eq!(ByteRange::new(120, 1000).within(outer), ByteRange::new(120, 30));
        assert_eq!(ByteRange::new(0, 110).within(outer), ByteRange::new(100, 10));
        assert_eq!(ByteRange::new(0, 10).within(outer).length, 0);
        assert_eq!(ByteRange::new(150, 10).within(outer).length, 0);
    }

    #[test]
    fn prints_the_last_byte_and_never_overflows() {
        assert_eq!(ByteRange::new(4096, 4096).to_string(), "bytes 4096 to 8191");
        assert_eq!(ByteRange::new(u64::MAX, 2).end(), u64::MAX);
    }
}
