//! The front end's guest memory: one memfd, mapped, that the back end maps as well.
//!
//! Three ways to name a byte of it: its *offset* in the memfd, which this client uses throughout; its *guest* address,
//! which stands in descriptors; its *user* address, where it is mapped here, which stands in the messages on rings. They
//! differ on purpose, so that a back end that takes one for the other fails at once. The memory table may cut the memfd
//! into several regions.
//!
//! The other side may write at any moment, so nothing here is ever borrowed: words are atomics, bytes are copied.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vm_memory::VolatileSlice;

/// Where guest memory begins unless a table says otherwise.
pub const GUEST_BASE: u64 = 0x4000_0000;
/// What regions, rings and buffers are aligned to, in bytes.
pub const PAGE: usize = 4096;

/// An entry of the memory table: a piece of the memfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Where the guest sees it.
    pub guest: u64,
    /// Where it begins in the memfd, in bytes.
    pub offset: usize,
    /// Its length, in bytes.
    pub len: usize,
}

/// Guest memory, zero at first.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    start: NonNull<u8>,
    len: usize,
    regions: Vec<Region>,
}

// SAFETY: it owns the mapping, which lives as long as the value, and is accessed by atomics and volatile copies alone.
unsafe impl Send for Memory {}
// SAFETY: as above; no reference to plain memory is handed out.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many bytes, a multiple of [`PAGE`], in `regions` pieces that the guest sees one behind the other. The file
    /// cannot shrink, so nobody who maps it can be made to fault.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(len: usize, regions: usize) -> io::Result<Memory> {
        assert!(len > 0 && len.is_multiple_of(PAGE) && (1..=len / PAGE).contains(&regions));
        let file = memfd_create("guest memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        // SAFETY: a new mapping, placed by the kernel.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) }?;
        let start = NonNull::new(start.cast()).expect("the kernel does not map at 0");
        Ok(Memory { file, start, len, regions: cut(len, regions) })
    }

    /// The table of this memory in so many pieces; what the guest sees stays where it is.
    #[must_use]
    pub fn cut(&self, regions: usize) -> Vec<Region> {
        cut(self.len, regions)
    }

    /// The same memory under another table, from now on.
    ///
    /// # Panics
    /// If a region lies outside of the memory.
    pub fn set_regions(&mut self, regions: Vec<Region>) {
        assert!(regions.iter().all(|region| region.offset + region.len <= self.len));
        self.regions = regions;
    }

    /// The memory table.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.len
    }

    /// Where the guest sees this byte; beyond the table an address that nothing is at.
    #[must_use]
    pub fn guest(&self, offset: usize) -> u64 {
        let region = self.regions.iter().find(|region| (region.offset..region.offset + region.len).contains(&offset));
        region.map_or(u64::MAX - offset as u64, |region| region.guest + (offset - region.offset) as u64)
    }

    /// Where this byte is mapped here.
    #[must_use]
    pub fn user(&self, offset: usize) -> u64 {
        self.start.as_ptr() as u64 + offset as u64
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.slice(offset, bytes.len()).copy_from(bytes);
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.slice(offset, bytes.len()).copy_to(bytes);
    }

    /// A single byte.
    ///
    /// # Panics
    /// If it lies outside or, with more bytes than one, is not aligned; so do the others.
    #[inline]
    #[must_use]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, and accessed atomically by everybody in this process.
        unsafe { AtomicU8::from_ptr(self.word(offset, 1)) }
    }

    /// A word of 2 bytes.
    #[inline]
    #[must_use]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the mapping, aligned, and accessed atomically by everybody in this process.
        unsafe { AtomicU16::from_ptr(self.word(offset, 2).cast()) }
    }

    /// A word of 4 bytes.
    #[inline]
    #[must_use]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU32::from_ptr(self.word(offset, 4).cast()) }
    }

    /// A word of 8 bytes.
    #[inline]
    #[must_use]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU64::from_ptr(self.word(offset, 8).cast()) }
    }

    #[inline]
    fn word(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(size) && offset <= self.len - size, "a word at {offset:#x}");
        // SAFETY: checked to lie inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{len} bytes at {offset:#x}");
        // SAFETY: checked to lie inside the mapping, which outlives the borrow of `self`.
        unsafe { VolatileSlice::new(self.start.as_ptr().add(offset), len) }
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing borrowed from it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn cut(len: usize, regions: usize) -> Vec<Region> {
    let each = (len / PAGE).div_ceil(regions) * PAGE;
    let region = |offset| Region { guest: GUEST_BASE + offset as u64, offset, len: each.min(len - offset) };
    (0..len).step_by(each).map(region).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_byte_has_three_names() {
        let mut memory = Memory::new(5 * PAGE, 2).expect("memory");
        let cut = [(0, 3 * PAGE), (3 * PAGE, 2 * PAGE)];
        let at = |(offset, len)| Region { guest: GUEST_BASE + offset as u64, offset, len };
        assert_eq!(memory.regions(), cut.map(at));
        memory.write(3 * PAGE - 2, &[1, 2, 3, 4]);
        assert_eq!(memory.u16(3 * PAGE).load(Ordering::Relaxed), u16::from_le_bytes([3, 4]));
        assert_eq!(memory.guest(3 * PAGE), GUEST_BASE + 3 * PAGE as u64);
        assert_eq!(memory.user(7) - memory.user(0), 7);
        memory.set_regions(vec![Region { guest: 0, offset: PAGE, len: PAGE }]);
        assert_eq!(memory.guest(PAGE + 5), 5);
        assert!(memory.guest(0) > u64::MAX / 2, "outside of the table");
    }

    #[test]
    fn the_file_cannot_shrink() {
        let memory = Memory::new(2 * PAGE, 1).expect("memory");
        assert_eq!(ftruncate(&memory, PAGE as u64), Err(rustix::io::Errno::PERM));
    }
}
