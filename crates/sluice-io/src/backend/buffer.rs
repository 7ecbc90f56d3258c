//! Memory for the data of requests, aligned for direct I/O and reused.
//!
//! A buffer is owned by one request from its allocation until the reply has been sent. While the kernel works on it the
//! request stays in the device thread's table, so a buffer is never freed under an operation.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::limits::is_memory_for_clients;

/// Alignment of every buffer, in bytes. It is enough for any direct I/O.
pub const ALIGNMENT: usize = 4096;
/// Smallest and largest sizes that are kept for reuse, as powers of two.
const CLASS_MIN: u32 = 12;
const CLASS_MAX: u32 = 20;
/// Maximum number of bytes that a pool keeps.
const KEPT_MAX: usize = 32 << 20;
/// Minimum size of a buffer that has a separate mapping. The kernel zeroes a page of a mapping when it is first
/// written, so a client that merely announces 32 MiB costs neither memory nor time of the device thread.
const MAPPED_MIN: usize = 128 << 10;

/// A block of aligned memory. It contains the previous data, and zeroes at first.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a buffer owns its memory, which nothing else refers to.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates `size` bytes. Returns `None` if there is no memory.
    pub fn allocate(size: usize, room: Room) -> Option<Self> {
        if room == Room::Clients && !is_memory_for_clients(size) {
            return None;
        }
        if size >= MAPPED_MIN {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let start = unsafe { mmap_anonymous(ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
            return NonNull::new(start.ok()?.cast()).map(|start| Buffer { start, size });
        }
        let layout = Layout::from_size_align(size, ALIGNMENT).expect("a small size is valid");
        // SAFETY: the size is at least one page, so not zero.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Buffer { start, size })
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns its address.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns its first `len` bytes.
    ///
    /// # Panics
    /// If it is shorter.
    #[must_use]
    pub fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.size);
        // SAFETY: the memory is owned, initialised (zeroed at first), long enough, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }
    }

    /// Returns its first `len` bytes.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.size);
        // SAFETY: the memory is owned, initialised (zeroed at first), long enough, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.size >= MAPPED_MIN {
            // SAFETY: mapped in `allocate` with this size, and unmapped once.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
            debug_assert!(unmapped.is_ok());
            return;
        }
        let layout = Layout::from_size_align(self.size, ALIGNMENT).expect("it was allocated with this layout");
        // SAFETY: allocated in `allocate` with the same layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), layout) }
    }
}

/// The memory from which a new buffer may be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Memory above the daemon's reserve.
    Clients,
    /// All memory, including the daemon's reserve.
    Reserve,
}

/// Buffers for reuse, by the power of two of their size.
#[derive(Debug, Default)]
pub struct Pool {
    classes: [Vec<Buffer>; (CLASS_MAX - CLASS_MIN + 1) as usize],
    kept: usize,
}

impl Pool {
    /// Returns a buffer of at least `len` bytes; `None` if there is no memory.
    pub fn take(&mut self, len: usize, room: Room) -> Option<Buffer> {
        let size = len.max(1 << CLASS_MIN).next_power_of_two();
        if size > 1 << CLASS_MAX {
            return Buffer::allocate(len.next_multiple_of(ALIGNMENT), room);
        }
        let class = (size.trailing_zeros() - CLASS_MIN) as usize;
        match self.classes[class].pop() {
            Some(buffer) => {
                self.kept -= buffer.size;
                Some(buffer)
            }
            None => Buffer::allocate(size, room),
        }
    }

    /// Returns a buffer to the pool.
    pub fn give(&mut self, buffer: Buffer) {
        if buffer.size <= 1 << CLASS_MAX && buffer.size.is_power_of_two() && self.kept + buffer.size <= KEPT_MAX {
            self.kept += buffer.size;
            let class = (buffer.size.trailing_zeros() - CLASS_MIN) as usize;
            self.classes[class].push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident memory of this process, in pages.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn the_memory_of_a_large_write_was_taken_before_its_data_arrived() {
        const PAGES: usize = (512 << 20) / ALIGNMENT;
        let before = resident();
        let mut buffer = Pool::default().take(PAGES * ALIGNMENT, Room::Clients).unwrap();
        assert!(resident() < before + PAGES / 4, "untouched");
        buffer.bytes_mut(PAGES * ALIGNMENT / 2).fill(1);
        let touched = resident();
        assert!((before + PAGES / 4..before + PAGES * 3 / 4).contains(&touched), "{before} {touched}");
    }

    #[test]
    fn buffers_are_aligned_and_reused() {
        let mut pool = Pool::default();
        let mut buffer = pool.take(5000, Room::Clients).unwrap();
        assert_eq!((buffer.size(), buffer.as_ptr() as usize % ALIGNMENT), (8192, 0));
        buffer.bytes_mut(5000).fill(7);
        let address = buffer.as_ptr();
        pool.give(buffer);
        assert_eq!(pool.take(8192, Room::Clients).unwrap().as_ptr(), address);
        let large = pool.take((3 << 20) + 1, Room::Clients).unwrap();
        assert_eq!(large.size(), (3 << 20) + 4096);
        pool.give(large);
        assert_eq!(pool.kept, 0);
        for room in [Room::Clients, Room::Reserve] {
            assert!(pool.take(isize::MAX as usize - (2 << 20), room).is_none(), "more than any machine has");
        }
    }
}
