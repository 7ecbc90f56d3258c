//! The Internet checksum (RFC 1071): the one's complement sum of 16-bit words.

use crate::header::{CHECKED, NEEDS_CHECKSUM};
use crate::{Drop, OffloadHeader};

/// A sum of bytes that may come in parts of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    words: u64,
    /// An odd number of bytes was added, so the next byte is the low half of a word.
    is_odd: bool,
}

impl Sum {
    /// Adds bytes behind those that were added before.
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        let mut bytes = bytes;
        if let (true, Some((&low, rest))) = (self.is_odd, bytes.split_first()) {
            self.words += u64::from(low);
            (self.is_odd, bytes) = (false, rest);
        }
        let (pairs, odd) = bytes.as_chunks::<2>();
        for &pair in pairs {
            self.words += u64::from(u16::from_be_bytes(pair));
        }
        if let [high] = odd {
            self.words += u64::from(*high) << 8;
            self.is_odd = true;
        }
        // A sum of up to 2^47 words fits; frames have 2^16 bytes.
        self
    }

    /// The sum in 16 bits, as a partial checksum (the field of a frame with [`NEEDS_CHECKSUM`]) has it.
    #[must_use]
    pub fn folded(self) -> u16 {
        let mut sum = self.words;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// The checksum: the complement of the sum.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Finishes the checksum of a whole frame for a receiver that does not do so itself, and returns the header without the request. Without
/// a request nothing changes.
///
/// # Errors
/// [`Drop::Offload`] if the position lies outside the frame.
pub fn finish(header: OffloadHeader, frame: &mut [u8]) -> Result<OffloadHeader, Drop> {
    if header.flags & NEEDS_CHECKSUM == 0 {
        return Ok(header);
    }
    let start = usize::from(header.checksum_start);
    let place = start + usize::from(header.checksum_offset);
    let (Some(covered), true) = (frame.get(start..), place + 2 <= frame.len()) else {
        return Err(Drop::Offload);
    };
    // The field holds the sum over the pseudo header, so it is part of what is summed. 0 would mean "no checksum" to UDP; its
    // other representation means the same to all protocols.
    let checksum = match Sum::default().with(covered).checksum() {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    let flags = header.flags & !(NEEDS_CHECKSUM | CHECKED);
    Ok(OffloadHeader { flags, checksum_start: 0, checksum_offset: 0, ..header })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_published_example_has_its_published_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().with(&bytes).folded(), 0xddf2);
        assert_eq!(Sum::default().with(&bytes).checksum(), 0x220d);
    }

    #[test]
    fn parts_of_odd_length_give_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..=254).collect();
        let whole = Sum::default().with(&bytes).folded();
        for (first, second) in [(0, 1), (1, 1), (1, 2), (3, 8), (7, 254), (255, 255)] {
            let sum = Sum::default().with(&bytes[..first]).with(&bytes[first..second]).with(&bytes[second..]);
            assert_eq!(sum.folded(), whole, "cut at {first} and {second}");
        }
    }

    #[test]
    fn a_finished_checksum_of_zero_is_written_as_its_other_form() {
        let header = OffloadHeader { flags: NEEDS_CHECKSUM, checksum_offset: 2, ..OffloadHeader::default() };
        let mut frame = [0xff, 0xff, 0, 0];
        assert_eq!(finish(header, &mut frame), Ok(OffloadHeader::default()));
        assert_eq!(frame, [0xff, 0xff, 0xff, 0xff]);
        assert_eq!(finish(header, &mut [0, 0, 0]), Err(Drop::Offload));
    }
}
