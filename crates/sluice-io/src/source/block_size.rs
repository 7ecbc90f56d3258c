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

/// Block size that the partition table at the start of a volume states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Partitions {
    None,
    /// A GPT for blocks of this size.
    Gpt(u32),
    /// A partition table that has addresses in blocks, and does not state their size.
    Mbr,
}

impl Partitions {
    pub(super) fn of(start: &[u8]) -> Self {
        let has_gpt = |block: u32| start.get(block as usize..).is_some_and(|rest| rest.starts_with(GPT));
        match [DEFAULT, LARGE].into_iter().find(|block| has_gpt(*block)) {
            Some(block) => Partitions::Gpt(block),
            None if has_mbr(start) => Partitions::Mbr,
            None => Partitions::None,
        }
    }
}

/// Whether there is an MBR with a partition. Boot sectors of file systems have the same signature, and code or text where
/// an MBR has its four entries.
fn has_mbr(start: &[u8]) -> bool {
    let Some(sector) = start.get(..512).filter(|sector| sector.ends_with(&[0x55, 0xaa])) else { return false };
    let is_empty = |entry: &[u8]| entry.iter().all(|byte| *byte == 0);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    // Status, first sector (3 bytes), type, last sector (3 bytes), first block, number of blocks.
    let is_partition = |entry: &[u8]| {
        matches!(entry[0], 0 | 0x80) && entry[4] != 0 && number(&entry[8..12]) != 0 && number(&entry[12..]) != 0
    };
    let mut entries = sector[446..510].chunks(16);
    entries.clone().any(is_partition) && entries.all(|entry| is_empty(entry) || is_partition(entry))
}

/// Returns the block size of a volume of a source with this alignment. `known` is what is remembered of it; `None`: it was
/// never served. `Err`: only the host file can state it.
pub(super) fn choose(
    asked: &BlockSize,
    known: Option<Option<u32>>,
    partitions: impl FnOnce() -> Partitions,
    alignment: u32,
) -> Result<u32, MbrOnLargeBlocks> {
    match (asked, known) {
        (BlockSize::OfSource, _) => Ok(alignment),
        (BlockSize::Stated(block), _) => Ok(*block),
        (BlockSize::Remembered(_), Some(before)) => Ok(before.unwrap_or(alignment)),
        (BlockSize::Remembered(_), None) => match partitions() {
            Partitions::Gpt(block) => Ok(block),
            Partitions::Mbr if alignment > DEFAULT => Err(MbrOnLargeBlocks),
            Partitions::Mbr | Partitions::None => Ok(DEFAULT),
        },
    }
}

/// The volume has an MBR, and its disk has blocks of more than 512 bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MbrOnLargeBlocks;

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt_at(block: usize) -> Vec<u8> {
        let mut start = vec![0; START];
        start[block..block + GPT.len()].copy_from_slice(GPT);
        start
    }

    fn mbr(entries: &[(u8, u8, u32, u32)]) -> Vec<u8> {
        let mut start = vec![0; START];
        for (entry, (status, kind, first, count)) in start[446..510].chunks_mut(16).zip(entries) {
            (entry[0], entry[4]) = (*status, *kind);
            entry[8..12].copy_from_slice(&first.to_le_bytes());
            entry[12..].copy_from_slice(&count.to_le_bytes());
        }
        start[510..512].copy_from_slice(&[0x55, 0xaa]);
        start
    }

    #[test]
    fn partition_tables_are_told_by_the_start_of_the_volume() {
        assert_eq!(Partitions::of(&gpt_at(512)), Partitions::Gpt(512));
        assert_eq!(Partitions::of(&gpt_at(4096)), Partitions::Gpt(4096));
        assert_eq!(Partitions::of(&mbr(&[(0x80, 0x83, 2048, 100), (0, 5, 4096, 7)])), Partitions::Mbr);
        assert_eq!(Partitions::of(&mbr(&[(0, 0xee, 1, 100)])), Partitions::Mbr, "its GPT is gone");
        let fat = mbr(&[(0x6e, 0x20, 0x6465_7265, 0x6f6e_2064)]);
        assert_eq!(Partitions::of(&fat), Partitions::None, "the boot sector of a file system");
        for none in [mbr(&[]), vec![0; START], Vec::new(), b"EFI PART".to_vec(), vec![0xff; 600]] {
            assert_eq!(Partitions::of(&none), Partitions::None);
        }
    }

    #[test]
    fn a_volume_keeps_its_block_size_whatever_its_source_needs() {
        let remembered = BlockSize::Remembered(Arc::default());
        let (never, blank) = (None, || Partitions::None);
        for alignment in [512, 4096] {
            assert_eq!(choose(&BlockSize::Stated(4096), Some(Some(512)), blank, alignment), Ok(4096));
            assert_eq!(choose(&remembered, Some(Some(512)), || Partitions::Gpt(4096), alignment), Ok(512));
            assert_eq!(choose(&remembered, Some(None), || Partitions::Gpt(512), alignment), Ok(alignment));
            assert_eq!(choose(&remembered, never, blank, alignment), Ok(512));
            assert_eq!(choose(&remembered, never, || Partitions::Gpt(4096), alignment), Ok(4096));
        }
        assert_eq!(choose(&remembered, never, || Partitions::Mbr, 512), Ok(512));
        assert_eq!(choose(&remembered, never, || Partitions::Mbr, 4096), Err(MbrOnLargeBlocks));
    }
}
