//! Alignment of memory, offset and length for direct I/O.
//!
//! The kernel reports it (`statx` with `STATX_DIOALIGN`, Linux 6.1) for block devices and for most disk filesystems.
//! Otherwise a block device needs its logical block size, and a file is probed: a read at a 512-byte boundary, then one
//! at a 4096-byte boundary. A file that supports neither cannot do direct I/O.
//!
//! The offset alignment is never below 512 bytes, even for buffered volumes, because virtio-blk counts in sectors of 512 bytes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, ioctl_blksszget, statx};
use rustix::io::{Errno, pread};

/// Smallest block size of a virtual disk.
const SECTOR_BYTES: u32 = 512;
/// Largest block size that is probed on a file whose filesystem does not report its alignment.
const PAGE_BYTES: u32 = 4096;

/// Alignment for direct I/O. Both values are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Buffers start at a multiple of this address, in bytes; 1 means anywhere.
    pub memory: u32,
    /// Offsets and lengths are multiples of this, in bytes; at least 512.
    pub offset: u32,
}

impl Alignment {
    /// Alignment for the page cache: any memory, whole sectors of the guest.
    pub(super) const BUFFERED: Self = Self { memory: 1, offset: SECTOR_BYTES };

    /// Rounds up to values that a virtual disk can advertise.
    pub(super) fn new(memory: u32, offset: u32) -> Self {
        Self { memory: memory.max(1).next_power_of_two(), offset: offset.max(SECTOR_BYTES).next_power_of_two() }
    }

    /// Whether `bytes` is a multiple of the offset alignment.
    #[must_use]
    pub const fn fits(self, bytes: u64) -> bool {
        bytes.is_multiple_of(self.offset as u64)
    }
}

/// The kernel's report about direct I/O on this file.
#[derive(Debug, PartialEq, Eq)]
enum KernelReport {
    Nothing,
    Impossible,
    Alignment(Alignment),
}

/// Returns the alignment of a description opened with `O_DIRECT`; `None` if it cannot do direct I/O.
///
/// `size_bytes` is the size of the whole file or device.
///
/// # Errors
/// A probing read failed for another reason than alignment.
pub(super) fn of_direct(fd: BorrowedFd<'_>, block_device: bool, size_bytes: u64) -> io::Result<Option<Alignment>> {
    match told(fd) {
        KernelReport::Alignment(alignment) => return Ok(Some(alignment)),
        KernelReport::Impossible => return Ok(None),
        KernelReport::Nothing => {}
    }
    if block_device {
        let block = ioctl_blksszget(fd)?;
        return Ok(Some(Alignment::new(block, block)));
    }
    probe(|align| read_at_boundary(fd, align, size_bytes))
}

fn told(fd: BorrowedFd<'_>) -> KernelReport {
    match statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) => interpret(found.stx_mask, found.stx_dio_mem_align, found.stx_dio_offset_align),
        // Kernels before 4.11, and sandboxes without the call.
        Err(_) => KernelReport::Nothing,
    }
}

/// Both numbers are 0 if the filesystem supports the query and the file cannot do direct I/O.
fn interpret(mask: u32, memory: u32, offset: u32) -> KernelReport {
    if mask & StatxFlags::DIOALIGN.bits() == 0 {
        KernelReport::Nothing
    } else if memory == 0 || offset == 0 {
        KernelReport::Impossible
    } else {
        KernelReport::Alignment(Alignment::new(memory, offset))
    }
}

fn probe(mut read: impl FnMut(u32) -> Result<(), Errno>) -> io::Result<Option<Alignment>> {
    for align in [SECTOR_BYTES, PAGE_BYTES] {
        match read(align) {
            Ok(()) => return Ok(Some(Alignment::new(align, align))),
            Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Reads one block whose memory and offset are multiples of `align` and, where possible, of nothing
/// larger, so that success proves that `align` is enough.
fn read_at_boundary(fd: BorrowedFd<'_>, align: u32, size_bytes: u64) -> Result<(), Errno> {
    let block = align as usize;
    let mut memory = vec![0_u8; 4 * block];
    let even = memory.as_ptr().align_offset(2 * block);
    let start = even + block;
    // At the very end a filesystem may return 0 bytes before it checks the alignment.
    let offset = if size_bytes >= 2 * u64::from(align) { u64::from(align) } else { 0 };
    pread(fd, &mut memory[start..start + block], offset).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statx_results_are_interpreted_by_their_mask() {
        let known = StatxFlags::DIOALIGN.bits();
        let cases = [
            ((0, 512, 512), KernelReport::Nothing),
            ((known, 0, 0), KernelReport::Impossible),
            ((known, 4, 512), KernelReport::Alignment(Alignment { memory: 4, offset: 512 })),
            ((known, 512, 4096), KernelReport::Alignment(Alignment { memory: 512, offset: 4096 })),
            ((known, 3, 1), KernelReport::Alignment(Alignment { memory: 4, offset: 512 })),
        ];
        for ((mask, memory, offset), expected) in cases {
            assert_eq!(interpret(mask, memory, offset), expected);
        }
    }

    #[test]
    fn probing_takes_the_smallest_block_that_works() {
        let at_least = |least: u32| probe(move |align| if align < least { Err(Errno::INVAL) } else { Ok(()) }).unwrap();
        assert_eq!(at_least(1), Some(Alignment { memory: 512, offset: 512 }));
        assert_eq!(at_least(4096), Some(Alignment { memory: 4096, offset: 4096 }));
        assert_eq!(at_least(8192), None);
        assert!(probe(|_| Err(Errno::IO)).is_err(), "a broken disk is not an alignment error");
    }

    #[test]
    fn the_test_read_stays_within_its_memory() {
        use std::os::fd::AsFd;
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        for (align, size_bytes) in [(512, 8192), (4096, 8192), (4096, 100)] {
            read_at_boundary(file.as_fd(), align, size_bytes).unwrap();
        }
    }

    #[test]
    fn fits_counts_in_blocks() {
        let alignment = Alignment { memory: 4, offset: 4096 };
        assert!(alignment.fits(0) && alignment.fits(8192));
        assert!(!alignment.fits(512));
    }
}
