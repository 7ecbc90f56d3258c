//! A split virtqueue, the driver's side of it: descriptor table, available ring, used ring.
//!
//! Nothing here checks what it writes: a test may put any descriptor, entry or index there. [`super::queue`] is what
//! keeps to the rules. Layout and rules: Virtual I/O Device 1.2, section 2.7.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::{
    VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};

use super::memory::{Memory, PAGE};

/// Bytes of a descriptor.
pub const DESCRIPTOR_LEN: usize = 16;
/// Flag: another descriptor follows.
pub const NEXT: u16 = VRING_DESC_F_NEXT as u16;
/// Flag: the device writes here.
pub const WRITE: u16 = VRING_DESC_F_WRITE as u16;
/// Flag: here lies a table of descriptors.
pub const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// A descriptor as it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Of [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The one that follows.
    pub next: u16,
}

/// An entry of the used ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// First descriptor of the chain.
    pub head: u32,
    /// Bytes that the device wrote.
    pub len: u32,
}

/// The three parts of a queue, in memory. Offsets are into the [`Memory`].
#[derive(Debug, Clone)]
pub struct Ring {
    memory: Arc<Memory>,
    size: u16,
    descriptors: usize,
    available: usize,
    used: usize,
}

impl Ring {
    /// A ring at `offset`, which is aligned to a page, of `size` entries.
    #[must_use]
    pub fn new(memory: Arc<Memory>, offset: usize, size: u16) -> Ring {
        // The parts lie on pages of their own: each side writes to what is its own, and not into lines of the other.
        let available = offset + (usize::from(size) * DESCRIPTOR_LEN).next_multiple_of(PAGE);
        let used = available + (6 + 2 * usize::from(size)).next_multiple_of(PAGE);
        Ring { memory, size, descriptors: offset, available, used }
    }

    /// Bytes that a ring takes.
    #[must_use]
    pub fn len_bytes(size: u16) -> usize {
        let size = usize::from(size);
        [size * DESCRIPTOR_LEN, 6 + 2 * size, 6 + 8 * size].map(|part| part.next_multiple_of(PAGE)).iter().sum()
    }

    /// Entries.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Where its parts lie: descriptor table, available ring, used ring.
    #[must_use]
    pub fn parts(&self) -> [usize; 3] {
        [self.descriptors, self.available, self.used]
    }

    /// Writes an entry of the descriptor table.
    #[inline]
    pub fn write_descriptor(&self, index: u16, descriptor: Descriptor) {
        write_descriptor(&self.memory, self.descriptors + usize::from(index) * DESCRIPTOR_LEN, descriptor);
    }

    /// Writes an entry of the available ring; `position` counts on and on, as the index does.
    #[inline]
    pub fn write_available(&self, position: u16, head: u16) {
        let entry = self.available + 4 + 2 * usize::from(position & (self.size - 1));
        self.memory.u16(entry).store(head, Ordering::Relaxed);
    }

    /// Lets the device see everything up to this index.
    #[inline]
    pub fn set_available_index(&self, index: u16) {
        self.memory.u16(self.available + 2).store(index, Ordering::Release);
    }

    /// The index of the available ring.
    #[must_use]
    pub fn available_index(&self) -> u16 {
        self.memory.u16(self.available + 2).load(Ordering::Relaxed)
    }

    /// Asks for no interrupts, where EVENT_IDX is not used.
    pub fn set_no_interrupt(&self, is_set: bool) {
        let flags = if is_set { VRING_AVAIL_F_NO_INTERRUPT as u16 } else { 0 };
        self.memory.u16(self.available).store(flags, Ordering::Relaxed);
    }

    /// Asks for an interrupt when the used index passes this, where EVENT_IDX is used.
    #[inline]
    pub fn set_used_event(&self, index: u16) {
        self.memory.u16(self.available + 4 + 2 * usize::from(self.size)).store(index, Ordering::Relaxed);
    }

    /// Up to where the device has answered.
    #[inline]
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.memory.u16(self.used + 2).load(Ordering::Acquire)
    }

    /// An entry of the used ring.
    #[inline]
    #[must_use]
    pub fn used(&self, position: u16) -> Used {
        let entry = self.used + 4 + 8 * usize::from(position & (self.size - 1));
        let word = |at| self.memory.u32(at).load(Ordering::Relaxed);
        Used { head: word(entry), len: word(entry + 4) }
    }

    /// Whether the device wants to be told that the index has moved from `old` to `new`, which has been set.
    #[inline]
    #[must_use]
    pub fn wants_kick(&self, event_index: bool, old: u16, new: u16) -> bool {
        // The index must be out before what the device asks for is read, else both sides may go to sleep.
        fence(Ordering::SeqCst);
        if event_index {
            let event = self.memory.u16(self.used + 4 + 8 * usize::from(self.size)).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.u16(self.used).load(Ordering::Relaxed) & VRING_USED_F_NO_NOTIFY as u16 == 0
        }
    }
}

/// Writes a descriptor anywhere: into a table of indirect ones, for instance.
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
    fn it_lies_as_the_standard_says() {
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
        assert!(!ring.wants_kick(false, 0, 1), "it said no");
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
