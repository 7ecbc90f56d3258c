//! The driver's side of a split virtqueue: descriptor table, available ring, used ring.
//!
//! Nothing written here is checked: a test may write any descriptor, entry or index. [`super::queue`] obeys the
//! rules. Layout and rules: Virtual I/O Device 1.2, section 2.7.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::{
    VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};

use super::memory::{Memory, PAGE};

/// Length of a descriptor, in bytes.
pub const DESCRIPTOR_LEN: usize = 16;
/// Flag: the chain continues.
pub const NEXT: u16 = VRING_DESC_F_NEXT as u16;
/// Flag: the device writes the segment.
pub const WRITE: u16 = VRING_DESC_F_WRITE as u16;
/// Flag: the segment is a table of descriptors.
pub const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// A descriptor as in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Guest address.
    pub address: u64,
    pub len: u32,
    /// A combination of [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// Index of the next descriptor.
    pub next: u16,
}

/// An entry of the used ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Index of the chain's first descriptor.
    pub head: u32,
    /// Number of bytes that the device wrote.
    pub len: u32,
}

/// The three areas of a queue, in memory. Offsets are in the [`Memory`].
#[derive(Debug, Clone)]
pub struct Ring {
    memory: Arc<Memory>,
    size: u16,
    descriptors: usize,
    available: usize,
    used: usize,
}

impl Ring {
    /// Creates a ring of `size` entries at the page-aligned `offset`.
    #[must_use]
    pub fn new(memory: Arc<Memory>, offset: usize, size: u16) -> Ring {
        // Each area has its own pages, so the two sides never write to the same cache line.
        let available = offset + (usize::from(size) * DESCRIPTOR_LEN).next_multiple_of(PAGE);
        let used = available + (6 + 2 * usize::from(size)).next_multiple_of(PAGE);
        Ring { memory, size, descriptors: offset, available, used }
    }

    /// Returns the size of a ring in memory, in bytes.
    #[must_use]
    pub fn len_bytes(size: u16) -> usize {
        let size = usize::from(size);
        [size * DESCRIPTOR_LEN, 6 + 2 * size, 6 + 8 * size].map(|part| part.next_multiple_of(PAGE)).iter().sum()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the offsets of descriptor table, available ring and used ring.
    #[must_use]
    pub fn parts(&self) -> [usize; 3] {
        [self.descriptors, self.available, self.used]
    }

    /// Writes an entry of the descriptor table.
    #[inline]
    pub fn write_descriptor(&self, index: u16, descriptor: Descriptor) {
        write_descriptor(&self.memory, self.descriptors + usize::from(index) * DESCRIPTOR_LEN, descriptor);
    }

    /// Writes an entry of the available ring. `position` is a running index, like the available index.
    #[inline]
    pub fn write_available(&self, position: u16, head: u16) {
        let entry = self.available + 4 + 2 * usize::from(position & (self.size - 1));
        self.memory.u16(entry).store(head, Ordering::Relaxed);
    }

    /// Makes all entries before `index` visible to the device.
    #[inline]
    pub fn set_available_index(&self, index: u16) {
        self.memory.u16(self.available + 2).store(index, Ordering::Release);
    }

    #[must_use]
    pub fn available_index(&self) -> u16 {
        self.memory.u16(self.available + 2).load(Ordering::Relaxed)
    }

    /// Disables interrupts, if EVENT_IDX is not used.
    pub fn set_no_interrupt(&self, is_set: bool) {
        let flags = if is_set { VRING_AVAIL_F_NO_INTERRUPT as u16 } else { 0 };
        self.memory.u16(self.available).store(flags, Ordering::Relaxed);
    }

    /// Requests an interrupt when the used index passes `index`, if EVENT_IDX is used.
    #[inline]
    pub fn set_used_event(&self, index: u16) {
        self.memory.u16(self.available + 4 + 2 * usize::from(self.size)).store(index, Ordering::Relaxed);
    }

    /// Returns the used index.
    #[inline]
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.memory.u16(self.used + 2).load(Ordering::Acquire)
    }

    /// Returns an entry of the used ring.
    #[inline]
    #[must_use]
    pub fn used(&self, position: u16) -> Used {
        let entry = self.used + 4 + 8 * usize::from(position & (self.size - 1));
        let word = |at| self.memory.u32(at).load(Ordering::Relaxed);
        Used { head: word(entry), len: word(entry + 4) }
    }

    /// Whether the device requests a kick for the change of the available index from `old` to `new`.
    #[inline]
    #[must_use]
    pub fn wants_kick(&self, event_index: bool, old: u16, new: u16) -> bool {
        // The index must be visible before the device's request is read; otherwise both sides may sleep.
        fence(Ordering::SeqCst);
        if event_index {
            let event = self.memory.u16(self.used + 4 + 8 * usize::from(self.size)).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.u16(self.used).load(Ordering::Relaxed) & VRING_USED_F_NO_NOTIFY as u16 == 0
        }
    }
}

/// Writes a descriptor at any offset, for example into an indirect table.
#[inline]
pub fn write_descriptor(memory: &Memory, offset: usize, descriptor: Descriptor) {
    let Descriptor { address, len, flags, next } = descriptor;
    let second = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    memory.u64(offset).store(address, Ordering::Relaxed);
    memory.u64(offset + 8).store(second, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(size: u16) -> Ring {
        let memory = Memory::new(Ring::len_bytes(size), 1).expect("memory");
        Ring::new(Arc::new(memory), 0, size)
    }

    #[test]
    fn a_ring_has_the_layout_of_the_standard() {
        let ring = ring(4);
        let [descriptors, available, used] = ring.parts();
        ring.write_descriptor(1, Descriptor { address: 0x1122, len: 0x33, flags: NEXT | WRITE, next: 2 });
        let mut bytes = [0; 16];
        ring.memory.read(descriptors + 16, &mut bytes);
        assert_eq!(bytes, [0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 3, 0, 2, 0]);
        ring.write_available(65535, 3);
        ring.set_available_index(0);
        ring.set_used_event(7);
        let mut bytes = [0; 14];
        ring.memory.read(available, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 7, 0]);
        ring.memory.write(used, &[1, 0, 5, 0, 3, 0, 0, 0, 1, 2, 0, 0]);
        assert_eq!((ring.used_index(), ring.used(4)), (5, Used { head: 3, len: 0x201 }));
        assert!(!ring.wants_kick(false, 0, 1), "kicks are disabled");
    }

    #[test]
    fn a_kick_is_due_when_the_index_passes_the_event() {
        let ring = ring(4);
        let event = |event: u16| ring.memory.u16(ring.parts()[2] + 4 + 8 * 4).store(event, Ordering::Relaxed);
        for (at, old, new, due) in
            [(5, 5, 6, true), (5, 6, 7, false), (5, 3, 6, true), (5, 3, 5, false), (65535, 65534, 1, true)]
        {
            event(at);
            assert_eq!(ring.wants_kick(true, old, new), due, "{at}: {old} to {new}");
        }
    }
}
