//! How memory, offset and length of direct I/O must be aligned.
//!
//! The kernel says so itself (`statx` with `STATX_DIOALIGN`, Linux 6.1) for block devices and for most
//! disk filesystems. Where it does not, a block device wants its logical block size, and a file is asked by
//! trying: a read at a 512-byte boundary, then one at a 4096-byte boundary. A file that takes neither
//! cannot do direct I/O.
//!
//! The offset alignment is never below 512 bytes, not even for buffered volumes: it becomes the guest's
//! block size, and virtio-blk counts in sectors of 512.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, ioctl_blksszget, statx};
use rustix::io::{Errno, pread};

/// The smallest block that any virtual disk has.
const SECTOR_BYTES: u32 = 512;
/// The largest block that is tried on a file whose filesystem does not tell.
const PAGE_BYTES: u32 = 4096;

/// What direct I/O wants. Both are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Buffers start at a multiple of this address, in bytes; 1 means anywhere.
    pub memory: u32,
    /// Offsets and lengths are multiples of this, in bytes; at least 512.
    pub offset: u32,
}

impl Alignment {
    /// What the page cache wants: nothing of memory, whole sectors of the guest.
    pub(super) const BUFFERED: Self = Self { memory: 1, offset: SECTOR_BYTES };

    /// Rounds up to what a virtual disk can advertise.
    fn new(memory: u32, offset: u32) -> Self {
        Self { memory: memory.max(1).next_power_of_two(), offset: offset.max(SECTOR_BYTES).next_power_of_two() }
    }

    /// Whether `bytes` is a multiple of the offset alignment.
    #[must_use]
    pub const fn fits(self, bytes: u64) -> bool {
        bytes.is_multiple_of(self.offset as u64)
    }
}

/// What the kernel says about direct I/O on this file.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Impossible,
    Alignment(Alignment),
}

/// The alignment of a description opened with `O_DIRECT`; `None` when it cannot do direct I/O after all.
///
/// `size_bytes` is the size of the whole file or device.
///
/// # Errors
/// A test read failed for another reason than alignment.
pub(super) fn of_direct(fd: BorrowedFd<'_>, block_device: bool, size_bytes: u64) -> io::Result<Option<Alignment>> {
    match told(fd) {
        Told::Alignment(alignment) => return Ok(Some(alignment)),
        Told::Impossible => return Ok(None),
        Told::Nothing => {}
    }
    if block_device {
        let block = ioctl_blksszget(fd)?;
        return Ok(Some(Alignment::new(block, block)));
    }
    probe(|align| read_at_boundary(fd, align, size_bytes))
}

fn told(fd: BorrowedFd<'_>) -> Told {
    match statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) => interpret(found.stx_mask, found.stx_dio_mem_align, found.stx_dio_offset_align),
        // Kernels before 4.11, and sandboxes without the call.
        Err(_) => Told::Nothing,
    }
}

/// Both numbers are 0 where the filesystem knows the question and the file cannot do it.
fn interpret(mask: u32, memory: u32, offset: u32) -> Told {
    if mask & StatxFlags::DIOALIGN.bits() == 0 {
        Told::Nothing
    } else if memory == 0 || offset == 0 {
        Told::Impossible
    } else {
        Told::Alignment(Alignment::new(memory, offset))
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
    // At the very end a filesystem may answer 0 bytes before it looks at the alignment.
    let offset = if size_bytes >= 2 * u64::from(align) { u64::from(align) } else { 0 };
    pread(fd, &mut memory[start..start + block], offset).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statx_answers_are_read_by_their_mask() {
        let known = StatxFlags::DIOALIGN.bits();
        let cases = [
            ((0, 512, 512), Told::Nothing),
            ((known, 0, 0), Told::Impossible),
            ((known, 4, 512), Told::Alignment(Alignment { memory: 4, offset: 512 })),
            ((known, 512, 4096), Told::Alignment(Alignment { memory: 512, offset: 4096 })),
            ((known, 3, 1), Told::Alignment(Alignment { memory: 4, offset: 512 })),
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
        assert!(probe(|_| Err(Errno::IO)).is_err(), "a broken disk is no question of alignment");
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
