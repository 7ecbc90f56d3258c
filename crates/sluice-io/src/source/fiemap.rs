//! The FIEMAP call: the addresses of a file's bytes on its block device.
//!
//! The kernel fills a page of extents per call. This file has the layout of that page, the call, and the loop over
//! pages. [`super::extents`] decides which extents to keep.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::range::ByteRange;

/// Extents per call: a page of 28 KiB.
const PAGE_EXTENTS: usize = 512;
/// Maximum number of calls per load, which is 8 Mi extents; later ones stay unmapped.
const PAGES_MAX: usize = 16 * 1024;

/// Flags of an extent that has no fixed address (yet), or whose bytes are not stored one by one.
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const NOT_ALIGNED: u32 = 0x100;
const PLACELESS: u32 = UNKNOWN | DELALLOC | ENCODED | NOT_ALIGNED;
/// Flag of the file's last extent.
const LAST: u32 = 0x1;

const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);

/// Consecutive bytes of a file with consecutive addresses, all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Offset in the file.
    pub(super) logical: u64,
    /// Address on the filesystem's block device.
    pub(super) physical: u64,
    /// Length.
    pub(super) length: u64,
}

impl Extent {
    /// Returns one past its last byte in the file.
    pub(super) const fn end(self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

/// Header of the page: the query, and the number of extents.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    capacity: u32,
    reserved: u32,
}

/// An extent.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Page {
    header: Header,
    extents: [RawExtent; PAGE_EXTENTS],
}

// The kernel's layout; a mistake here would let it write past the page.
const _: () = assert!(size_of::<Header>() == 32 && size_of::<RawExtent>() == 56);
const _: () = assert!(size_of::<Page>() == 32 + 56 * PAGE_EXTENTS);

/// Calls `take` with every extent of `range` that has an address, in the order of the file. Returns `false` if the file
/// has no extents (tmpfs, a block device); then `take` was not called.
///
/// # Errors
/// The call failed for another reason than not being supported.
pub(super) fn each_extent(fd: BorrowedFd<'_>, range: ByteRange, mut take: impl FnMut(Extent)) -> io::Result<bool> {
    let mut page = Box::new(Page { header: Header::default(), extents: [RawExtent::default(); PAGE_EXTENTS] });
    let mut start = range.offset;
    for _ in 0..PAGES_MAX {
        let rest = ByteRange::new(start, range.end() - start);
        match fill(fd, rest, &mut page) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) if start == range.offset => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        match hand_over(&page, range, &mut take) {
            // The file may change between two pages: only a later start is progress.
            Some(next) if next > start && next < range.end() => start = next,
            _ => break,
        }
    }
    Ok(true)
}

fn fill(fd: BorrowedFd<'_>, range: ByteRange, page: &mut Page) -> Result<(), Errno> {
    page.header =
        Header { start: range.offset, length: range.length, capacity: PAGE_EXTENTS as u32, ..Header::default() };
    // SAFETY: the opcode is FIEMAP, which takes a header followed by the number of extents in the header's capacity:
    // exactly the layout and size of `Page`, asserted above, which is borrowed exclusively. Every bit pattern is a
    // valid `Page`.
    unsafe { ioctl(fd, Updater::<FS_IOC_FIEMAP, Page>::new(page)) }
}

/// Returns the start of the next page, or `None` after the last extent.
fn hand_over(page: &Page, range: ByteRange, take: &mut impl FnMut(Extent)) -> Option<u64> {
    // The number comes from the kernel, and may come from a filesystem in user space, so it is not trusted.
    let answers = &page.extents[..PAGE_EXTENTS.min(page.header.mapped as usize)];
    for raw in answers {
        let inside = ByteRange::new(raw.logical, raw.length).within(range);
        if raw.flags & PLACELESS == 0 && inside.length > 0 {
            take(Extent {
                logical: inside.offset,
                physical: raw.physical.saturating_add(inside.offset - raw.logical),
                length: inside.length,
            });
        }
    }
    let last = answers.last()?;
    (last.flags & LAST == 0).then(|| last.logical.saturating_add(last.length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(raw: &[(u64, u64, u64, u32)], claimed: u32) -> Page {
        let mut page = Page { header: Header::default(), extents: [RawExtent::default(); PAGE_EXTENTS] };
        page.header.mapped = claimed;
        for (slot, &(logical, physical, length, flags)) in page.extents.iter_mut().zip(raw) {
            *slot = RawExtent { logical, physical, length, flags, ..RawExtent::default() };
        }
        page
    }

    fn handed(page: &Page, range: ByteRange) -> (Vec<(u64, u64, u64)>, Option<u64>) {
        let mut seen = Vec::new();
        let next = hand_over(page, range, &mut |e: Extent| seen.push((e.logical, e.physical, e.length)));
        (seen, next)
    }

    #[test]
    fn extents_are_cut_to_the_range_and_those_without_address_dropped() {
        let page = page_of(&[(0, 1000, 100, 0), (100, 0, 50, DELALLOC), (150, 5000, 50, 0), (300, 9000, 50, 0)], 4);
        let (seen, next) = handed(&page, ByteRange::new(50, 110));
        assert_eq!(seen, [(50, 1050, 50), (150, 5000, 10)]);
        assert_eq!(next, Some(350));
    }

    #[test]
    fn the_last_extent_ends_it_and_so_does_an_empty_page() {
        let whole = ByteRange::new(0, 1 << 20);
        assert_eq!(handed(&page_of(&[(0, 8, 8, LAST)], 1), whole).1, None);
        assert_eq!(handed(&page_of(&[], 0), whole), (vec![], None));
    }

    #[test]
    fn impossible_numbers_of_extents_are_tolerated() {
        let (seen, next) = handed(&page_of(&[(u64::MAX, u64::MAX, u64::MAX, 0)], u32::MAX), ByteRange::new(0, 10));
        assert_eq!(seen, []);
        assert_eq!(next, Some(0), "the page's unused rest is zero, and 0 is no progress");
    }
}
