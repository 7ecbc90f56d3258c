//! The configuration space of a block device, as the back end reports it.

/// Number of bytes that are read: up to and including the limits of write zeroes.
pub const CONFIG_LEN: u32 = 60;
/// Offset of the write-cache setting.
pub const WRITE_CACHE: u32 = 32;

/// Configuration space of a block device: Virtual I/O Device 1.2, section 5.2.4. Sectors have 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockConfig {
    /// Size, in sectors.
    pub capacity: u64,
    /// Maximum segment length, in bytes.
    pub size_max: u32,
    /// Maximum number of segments of a request.
    pub seg_max: u32,
    /// Logical block size, in bytes.
    pub block_size: u32,
    /// Logical blocks per physical block, as a power of two.
    pub physical_block_exponent: u8,
    /// First logical block at the start of a physical block.
    pub alignment_offset: u8,
    /// Minimum I/O size without a penalty, in blocks.
    pub io_min: u16,
    /// Optimal I/O size, in blocks.
    pub io_opt: u32,
    /// Whether the write cache is on.
    pub write_cache: bool,
    /// Number of queues.
    pub queues: u16,
    /// Maximum length of a discard, in sectors.
    pub discard_sectors_max: u32,
    /// Maximum number of ranges of a discard.
    pub discard_segments_max: u32,
    /// Alignment of discards, in sectors.
    pub discard_alignment: u32,
    /// Maximum length of a range of zeroes, in sectors.
    pub zeroes_sectors_max: u32,
    /// Maximum number of ranges of a write of zeroes.
    pub zeroes_segments_max: u32,
    /// Whether writing zeroes may deallocate.
    pub zeroes_may_unmap: bool,
}

impl BlockConfig {
    /// Parses the first [`CONFIG_LEN`] bytes of the space; missing bytes count as zero.
    #[must_use]
    pub fn parse(space: &[u8]) -> BlockConfig {
        let mut bytes = [0; CONFIG_LEN as usize];
        let len = space.len().min(bytes.len());
        bytes[..len].copy_from_slice(&space[..len]);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        BlockConfig {
            capacity: u64::from(word(0)) | u64::from(word(4)) << 32,
            size_max: word(8),
            seg_max: word(12),
            block_size: word(20),
            physical_block_exponent: bytes[24],
            alignment_offset: bytes[25],
            io_min: half(26),
            io_opt: word(28),
            write_cache: bytes[WRITE_CACHE as usize] != 0,
            queues: half(34),
            discard_sectors_max: word(36),
            discard_segments_max: word(40),
            discard_alignment: word(44),
            zeroes_sectors_max: word(48),
            zeroes_segments_max: word(52),
            zeroes_may_unmap: bytes[56] != 0,
        }
    }

    /// Returns the size, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.capacity * 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_offsets_of_the_standard() {
        let space: Vec<u8> = (0..60).collect();
        let config = BlockConfig::parse(&space);
        assert_eq!(config.capacity, 0x0706_0504_0302_0100);
        assert_eq!((config.size_max, config.seg_max), (0x0b0a_0908, 0x0f0e_0d0c));
        assert_eq!((config.block_size, config.io_min, config.queues), (0x1716_1514, 0x1b1a, 0x2322));
        assert_eq!((config.discard_sectors_max, config.zeroes_segments_max), (0x2726_2524, 0x3736_3534));
        assert!(config.write_cache && config.zeroes_may_unmap);
        assert_eq!(BlockConfig::parse(&space[..8]).seg_max, 0);
    }
}
