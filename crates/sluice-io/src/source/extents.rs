//! The extent map: where a volume's bytes are on the physical disk.
//!
//! A scheduler that uses locality (mClock's batches, CFQ's seek distance, the anticipatory scheduler) compares
//! addresses of different volumes on one disk. Offsets within files do not help for that, so the map translates: offset
//! in the volume -> address on the filesystem's device (FIEMAP) -> plus the partition's start -> address on the whole
//! disk.
//!
//! | source | address |
//! |---|---|
//! | file on ext4, XFS, ... | from its extents; holes have none |
//! | block device | offset in it, plus the partition's start |
//! | file without FIEMAP (tmpfs, NFS) | offset in the file: order within one file only |
//!
//! On device-mapper, md and loop devices the address is one on that device, not on the disks below it. It is useful for
//! order within the device, and meaningless between two devices.
//!
//! **Bounds.** At most 65,536 extents are kept. For a file with more, adjacent extents are merged into runs of 2, 4, 8,
//! ... extents, whose inner addresses are approximate; [`ExtentMap::is_coarse`] tells. This may make a scheduler's
//! choice slightly worse, but never wrong, because addresses only order requests.
//!
//! **Staleness.** A write to a hole allocates blocks, while the map still returns `None`. The device thread calls
//! [`ExtentMap::note_write`], which costs one search. When [`ExtentMap::is_stale`] returns true, the helper thread
//! loads a new map (FIEMAP takes the file's locks and may block). Load at most every few seconds: a filesystem that
//! never reports addresses (compressed data) would keep the map stale forever.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use super::fiemap::{Extent, each_extent};
use super::range::ByteRange;
use super::sysfs::Sysfs;

/// Maximum number of extents per volume, 1.5 MiB of memory. Even, because it is halved.
const EXTENTS_MAX: usize = 65_536;

/// Addresses of a volume's bytes, as of the time of loading.
#[derive(Debug, Clone)]
pub struct ExtentMap {
    range: ByteRange,
    /// Start of the partition on its disk, in bytes.
    base: u64,
    places: Places,
    stale: bool,
}

#[derive(Debug, Clone)]
enum Places {
    /// Address = offset.
    Identity,
    /// Sorted by file offset, disjoint.
    Extents { extents: Vec<Extent>, coarse: bool },
}

impl ExtentMap {
    /// Maximum memory that loading a map takes, in bytes.
    pub const LEN_MAX: usize = 2 * EXTENTS_MAX * size_of::<Extent>();

    /// Queries the filesystem for the extents of `range` of an open file or block device. Blocks.
    ///
    /// # Errors
    /// The file cannot be inspected, or the query failed.
    pub fn load(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        let block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let dev = if block_device { stat.st_rdev } else { stat.st_dev };
        let base = Sysfs::host().partition_start_bytes(dev);
        let mut runs = Runs::new(EXTENTS_MAX);
        let told = !block_device && each_extent(fd, range, |extent| runs.push(extent))?;
        let places = if told { runs.finish() } else { Places::Identity };
        Ok(Self { range, base, places, stale: false })
    }

    /// A map of a range in which the address of a byte is its offset in the file.
    #[must_use]
    pub fn by_offset(range: ByteRange) -> Self {
        Self { range, base: 0, places: Places::Identity, stale: false }
    }

    /// Returns the address on the whole disk, in bytes, of the byte `offset` of the volume; `None` in a hole, past the
    /// end, or if the filesystem does not report it. O(log n), no allocation.
    #[must_use]
    pub fn physical(&self, offset: u64) -> Option<u64> {
        if offset >= self.range.length {
            return None;
        }
        let offset = self.range.offset + offset;
        let on_device = match &self.places {
            Places::Identity => offset,
            Places::Extents { extents, .. } => {
                let extent = extents.get(position(extents, offset))?;
                let inside = offset.checked_sub(extent.logical)?;
                extent.physical.saturating_add(inside)
            }
        };
        Some(on_device.saturating_add(self.base))
    }

    /// Records that bytes of the volume were written: the map is stale if one of them had no address. O(log n) plus the
    /// number of extents that the write covers.
    pub fn note_write(&mut self, offset: u64, length: u64) {
        self.stale = self.stale || !self.is_mapped(offset, length);
    }

    /// Whether a new map would have more addresses.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether addresses within an extent are approximate, because the file has too many extents.
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        matches!(self.places, Places::Extents { coarse: true, .. })
    }

    /// Returns the number of extents; 0 if address and offset are the same.
    #[must_use]
    pub fn extent_count(&self) -> usize {
        match &self.places {
            Places::Identity => 0,
            Places::Extents { extents, .. } => extents.len(),
        }
    }

    fn is_mapped(&self, offset: u64, length: u64) -> bool {
        let Places::Extents { extents, .. } = &self.places else {
            return true;
        };
        let wanted = ByteRange::new(self.range.offset.saturating_add(offset), length).within(self.range);
        let mut reached = wanted.offset;
        for extent in &extents[position(extents, reached)..] {
            if reached >= wanted.end() || extent.logical > reached {
                break;
            }
            reached = extent.end();
        }
        reached >= wanted.end()
    }
}

/// Returns the index of the first extent that ends after `offset`: the one that contains it, or the next one after a
/// hole.
fn position(extents: &[Extent], offset: u64) -> usize {
    extents.partition_point(|extent| extent.end() <= offset)
}

/// Collects extents into at most `limit` runs. Starts with one extent per run. When it is full, pairs of adjacent runs
/// are merged and runs become twice as long, so that detail is lost evenly over the file.
struct Runs {
    runs: Vec<Extent>,
    limit: usize,
    /// Extents per run.
    stride: u64,
    /// Extents in the last run.
    in_last: u64,
}

impl Runs {
    fn new(limit: usize) -> Self {
        assert!(limit >= 2 && limit.is_multiple_of(2), "runs are merged in pairs");
        Self { runs: Vec::new(), limit, stride: 1, in_last: 0 }
    }

    fn push(&mut self, extent: Extent) {
        if let Some(last) = self.runs.last_mut() {
            // If a file changes while it is read, an offset may be reported twice. The first result counts.
            if extent.logical < last.end() {
                return;
            }
            let continues =
                extent.logical == last.end() && extent.physical == last.physical.saturating_add(last.length);
            if continues || self.in_last < self.stride {
                last.length = extent.end() - last.logical;
                self.in_last += u64::from(!continues);
                return;
            }
        }
        if self.runs.len() == self.limit {
            self.merge_pairs();
        }
        self.runs.push(extent);
        self.in_last = 1;
    }

    /// Every run is full when this is called, so the merged ones are full as well.
    fn merge_pairs(&mut self) {
        let merged = self.runs.chunks(2).map(|pair| match pair {
            [first, second] => Extent { length: second.end() - first.logical, ..*first },
            _ => pair[0],
        });
        self.runs = merged.collect();
        self.stride *= 2;
    }

    fn finish(self) -> Places {
        Places::Extents { extents: self.runs, coarse: self.stride > 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const BLOCK: u64 = 4096;

    fn map_of(extents: &[(u64, u64, u64)], range: ByteRange, base: u64) -> ExtentMap {
        let mut runs = Runs::new(EXTENTS_MAX);
        for &(logical, physical, length) in extents {
            runs.push(Extent { logical, physical, length });
        }
        ExtentMap { range, base, places: runs.finish(), stale: false }
    }

    #[test]
    fn offsets_count_from_the_volume_and_addresses_from_the_disk() {
        let map = map_of(&[(100, 5000, 100), (300, 2000, 50)], ByteRange::new(100, 400), 1_000_000);
        let cases = [
            (0, Some(1_005_000)),
            (99, Some(1_005_099)),
            (100, None),
            (199, None),
            (200, Some(1_002_000)),
            (249, Some(1_002_049)),
            (250, None),
            (400, None),
            (u64::MAX, None),
        ];
        for (offset, expected) in cases {
            assert_eq!(map.physical(offset), expected, "offset {offset}");
        }
    }

    #[test]
    fn only_a_write_to_bytes_without_an_address_makes_the_map_stale() {
        let clean = map_of(&[(0, 5000, 100), (100, 9000, 100), (300, 2000, 100)], ByteRange::new(0, 400), 0);
        for (offset, length, stale) in [
            (0, 200, false),
            (50, 100, false),
            (199, 2, true),
            (150, 200, true),
            (250, 10, true),
            (300, 100, false),
            (300, 500, false),
            (0, 0, false),
            (u64::MAX, 9, false),
        ] {
            let mut map = clean.clone();
            map.note_write(offset, length);
            assert_eq!(map.is_stale(), stale, "{offset}+{length}");
        }
    }

    #[test]
    fn consecutive_extents_become_one() {
        let map = map_of(&[(0, 5000, 100), (100, 5100, 100), (200, 9000, 1)], ByteRange::new(0, 201), 0);
        assert_eq!(map.extent_count(), 2);
        assert!(!map.is_coarse());
    }

    #[test]
    fn too_many_extents_become_even_runs_whose_starts_are_exact() {
        let mut runs = Runs::new(8);
        let physical = |index: u64| (1000 - index) * 100;
        for index in 0..100 {
            runs.push(Extent { logical: index * 10, physical: physical(index), length: 5 });
        }
        let Places::Extents { extents, coarse } = runs.finish() else { panic!("extents") };
        assert!(coarse);
        assert!(extents.len() <= 8 && extents.len() > 4, "{}", extents.len());
        for (position, run) in extents.iter().enumerate() {
            let first = position as u64 * 16;
            assert_eq!((run.logical, run.physical), (first * 10, physical(first)));
        }
        assert_eq!(extents.last().unwrap().end(), 995);
    }

    #[test]
    fn extents_that_go_backwards_are_dropped() {
        let map = map_of(&[(0, 5000, 100), (50, 7000, 100), (100, 9000, 10)], ByteRange::new(0, 400), 0);
        assert_eq!(map.physical(60), Some(5060));
        assert_eq!(map.physical(105), Some(9005));
    }

    /// Two blocks of data with a hole between them, synced, so that they are allocated.
    fn sparse_in(folder: &str) -> File {
        let file = tempfile::tempfile_in(folder).unwrap();
        file.set_len(64 * BLOCK).unwrap();
        for block in [0, 32] {
            file.write_all_at(&[7; BLOCK as usize], block * BLOCK).unwrap();
        }
        file.sync_all().unwrap();
        file
    }

    fn supports_fiemap(file: &File) -> bool {
        each_extent(file.as_fd(), ByteRange::new(0, BLOCK), |_| ()).unwrap()
    }

    #[test]
    fn only_the_data_of_a_sparse_file_has_addresses_until_a_hole_is_written() {
        let file = sparse_in(std::env::temp_dir().to_str().unwrap());
        let mut map = ExtentMap::load(file.as_fd(), ByteRange::new(0, 64 * BLOCK)).unwrap();
        if !supports_fiemap(&file) {
            assert_eq!((map.extent_count(), map.physical(BLOCK)), (0, Some(BLOCK)));
            return;
        }
        let (first, second) = (map.physical(0).unwrap(), map.physical(32 * BLOCK).unwrap());
        assert_ne!(first, second);
        assert_eq!(map.physical(BLOCK - 1), Some(first + BLOCK - 1));
        assert_eq!(map.physical(16 * BLOCK), None);

        file.write_all_at(&[7; BLOCK as usize], 16 * BLOCK).unwrap();
        map.note_write(16 * BLOCK, BLOCK);
        assert!(map.is_stale());
        file.sync_all().unwrap();
        let map = ExtentMap::load(file.as_fd(), ByteRange::new(0, 64 * BLOCK)).unwrap();
        assert!(map.physical(16 * BLOCK).is_some_and(|place| place != first && place != second));
    }

    #[test]
    fn a_part_of_a_file_starts_at_its_own_zero() {
        let file = sparse_in(std::env::temp_dir().to_str().unwrap());
        let whole = ExtentMap::load(file.as_fd(), ByteRange::new(0, 64 * BLOCK)).unwrap();
        let part = ExtentMap::load(file.as_fd(), ByteRange::new(32 * BLOCK, 32 * BLOCK)).unwrap();
        assert_eq!(part.physical(0), whole.physical(32 * BLOCK));
        assert_eq!(part.physical(32 * BLOCK), None);
    }

    #[test]
    fn many_pages_of_extents_are_walked_to_the_end() {
        let file = tempfile::tempfile().unwrap();
        let blocks = 1500;
        for block in 0..blocks {
            file.write_all_at(&[7; BLOCK as usize], 2 * block * BLOCK).unwrap();
        }
        file.sync_all().unwrap();
        let range = ByteRange::new(0, 2 * blocks * BLOCK);
        let map = ExtentMap::load(file.as_fd(), range).unwrap();
        for block in 0..blocks {
            assert!(map.physical(2 * block * BLOCK).is_some(), "block {block}");
            let hole = map.physical((2 * block + 1) * BLOCK);
            assert_eq!(hole.is_none(), supports_fiemap(&file), "hole {block}");
        }
    }

    #[test]
    fn for_a_file_in_memory_the_address_is_the_offset() {
        let file = sparse_in("/dev/shm");
        assert!(!supports_fiemap(&file));
        let mut map = ExtentMap::load(file.as_fd(), ByteRange::new(BLOCK, 8 * BLOCK)).unwrap();
        assert_eq!(map.physical(10), Some(BLOCK + 10));
        map.note_write(0, BLOCK);
        assert!(!map.is_stale());
    }
}
