//! The front end's guest memory: one memfd that the back end maps as well.
//!
//! A byte has three addresses: its *offset* in the memfd, which this client uses; its *guest* address, which
//! descriptors contain; and its *user* address in this process, which messages about rings contain. They differ on
//! purpose, so that a back end that confuses two of them fails immediately. The memory table may split the memfd into
//! several regions.
//!
//! The other side may write at any time, so nothing here is borrowed: words are atomics, and bytes are copied.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vm_memory::VolatileSlice;

/// Guest address of the start of the memory, unless a table states another.
pub const GUEST_BASE: u64 = 0x4000_0000;
/// Alignment of regions, rings and buffers, in bytes.
pub const PAGE: usize = 4096;

/// An entry of the memory table: a range of the memfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Guest address.
    pub guest: u64,
    /// Offset in the memfd, in bytes.
    pub offset: usize,
    pub len: usize,
}

/// Guest memory, initially zero.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    start: NonNull<u8>,
    len: usize,
    regions: Vec<Region>,
}

// SAFETY: the value owns the mapping, which lives as long, and only atomics and volatile copies access it.
unsafe impl Send for Memory {}
// SAFETY: as above; no reference to plain memory is handed out.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates memory of `len` bytes, a multiple of [`PAGE`], in `regions` regions that are contiguous for the guest.
    /// The file cannot shrink, so an access through another mapping cannot fault.
    ///
    /// # Errors
    /// The error of a system call.
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

    /// Returns a table that splits this memory into `regions` regions. Guest addresses do not change.
    #[must_use]
    pub fn cut(&self, regions: usize) -> Vec<Region> {
        cut(self.len, regions)
    }

    /// Replaces the memory table.
    ///
    /// # Panics
    /// If a region lies outside the memory.
    pub fn set_regions(&mut self, regions: Vec<Region>) {
        assert!(regions.iter().all(|region| region.offset + region.len <= self.len));
        self.regions = regions;
    }

    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the size, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.len
    }

    /// Returns the guest address of a byte, or an unmapped address if the byte is not in the table.
    #[must_use]
    pub fn guest(&self, offset: usize) -> u64 {
        let region = self.regions.iter().find(|region| (region.offset..region.offset + region.len).contains(&offset));
        region.map_or(u64::MAX - offset as u64, |region| region.guest + (offset - region.offset) as u64)
    }

    /// Returns the user address of a byte.
    #[must_use]
    pub fn user(&self, offset: usize) -> u64 {
        self.start.as_ptr() as u64 + offset as u64
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they lie outside the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.slice(offset, bytes.len()).copy_from(bytes);
    }

    /// Copies bytes from `offset` to `bytes`.
    ///
    /// # Panics
    /// If they lie outside the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.slice(offset, bytes.len()).copy_to(bytes);
    }

    /// Returns the byte at `offset`.
    ///
    /// # Panics
    /// If it lies outside the memory. The wider accesses also panic if `offset` is not aligned.
    #[inline]
    #[must_use]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, and all accesses in this process are atomic.
        unsafe { AtomicU8::from_ptr(self.word(offset, 1)) }
    }

    /// Returns the word of 2 bytes at `offset`.
    #[inline]
    #[must_use]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the mapping, aligned, and all accesses in this process are atomic.
        unsafe { AtomicU16::from_ptr(self.word(offset, 2).cast()) }
    }

    /// Returns the word of 4 bytes at `offset`.
    #[inline]
    #[must_use]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU32::from_ptr(self.word(offset, 4).cast()) }
    }

    /// Returns the word of 8 bytes at `offset`.
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
        // SAFETY: mapped in `new`, and no borrow of it remains.
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
    fn a_byte_has_three_addresses() {
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
