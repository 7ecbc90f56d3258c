//! Logical block size of a volume: a property of its data, which the disk below it must not change.
//!
//! A partition table states addresses in blocks, so a guest finds no partitions if its disk gets another block size. The
//! order of precedence is: the size that the host file states, the size of the last time, and for a volume that was never
//! served the size for which its GPT was made. Without a GPT it is 512 bytes.
//!
//! A source may have been served by a build that did not remember the size. Its guest had the alignment of the source, and
//! keeps it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Block size of a volume without another one, in bytes.
const DEFAULT: u32 = 512;
/// Block size of disks whose sectors are as large as a page, in bytes.
const LARGE: u32 = 4096;
/// First bytes of a GPT, which is in the second block of a disk.
const GPT: &[u8] = b"EFI PART";
/// Number of bytes at the start of a volume that show its partition table.
pub(super) const START: usize = LARGE as usize + GPT.len();

/// Block sizes of sources that were served before, by identity and offset; `None`: they had the alignment of the source.
pub type Known = BTreeMap<(String, u64), Option<u32>>;

/// The block size that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// The alignment of the source.
    #[default]
    OfSource,
    /// This one, in bytes; a power of two.
    Stated(u32),
    /// That of the last time, or of the partition table.
    Remembered(Arc<Known>),
}

/// What the start of a volume says about its block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Partitions {
    None,
    /// A GPT for blocks of this size.
    Gpt(u32),
}

impl Partitions {
    pub(super) fn of(start: &[u8]) -> Self {
        let has_gpt = |block: u32| start.get(block as usize..).is_some_and(|rest| rest.starts_with(GPT));
        match [DEFAULT, LARGE].into_iter().find(|block| has_gpt(*block)) {
            Some(block) => Partitions::Gpt(block),
            None => Partitions::None,
        }
    }
}

/// Returns the block size of a volume of a source with this alignment. `known` is what is remembered of it; `None`: it was
/// never served.
pub(super) fn choose(
    asked: &BlockSize,
    known: Option<Option<u32>>,
    partitions: impl FnOnce() -> Partitions,
    alignment: u32,
) -> u32 {
    match (asked, known) {
        (BlockSize::OfSource, _) => alignment,
        (BlockSize::Stated(block), _) => *block,
        (BlockSize::Remembered(_), Some(before)) => before.unwrap_or(alignment),
        (BlockSize::Remembered(_), None) => match partitions() {
            Partitions::Gpt(block) => block,
            Partitions::None => DEFAULT,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt_at(block: usize) -> Vec<u8> {
        let mut start = vec![0; START];
        start[block..block + GPT.len()].copy_from_slice(GPT);
        start
    }

    #[test]
    fn partition_tables_are_told_by_the_start_of_the_volume() {
        assert_eq!(Partitions::of(&gpt_at(512)), Partitions::Gpt(512));
        assert_eq!(Partitions::of(&gpt_at(4096)), Partitions::Gpt(4096));
        for none in [vec![0; START], Vec::new(), b"EFI PART".to_vec(), vec![0xff; 600]] {
            assert_eq!(Partitions::of(&none), Partitions::None);
        }
    }

    #[test]
    fn a_volume_keeps_its_block_size_whatever_its_source_needs() {
        let remembered = BlockSize::Remembered(Arc::default());
        let (never, blank) = (None, || Partitions::None);
        for alignment in [512, 4096] {
            assert_eq!(choose(&BlockSize::Stated(4096), Some(Some(512)), blank, alignment), 4096);
            assert_eq!(choose(&remembered, Some(Some(512)), || Partitions::Gpt(4096), alignment), 512);
            assert_eq!(choose(&remembered, Some(None), || Partitions::Gpt(512), alignment), alignment);
            assert_eq!(choose(&remembered, never, blank, alignment), 512);
            assert_eq!(choose(&remembered, never, || Partitions::Gpt(4096), alignment), 4096);
        }
    }
}
