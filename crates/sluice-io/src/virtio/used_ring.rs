//! The used ring, in which a device returns descriptor chains: VIRTIO 1.3, 2.7.8.
//!
//! One store of the ring's index publishes several returned chains. A guest that polls reads the index continuously,
//! and each store takes the cache line away from its CPU.

use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Maximum number of returned chains that wait to be published together.
pub(crate) const BATCH_MAX: u16 = 8;

/// The used ring of a queue. Indices count all chains that were ever returned, modulo 2^16.
pub(crate) struct UsedRing {
    size: u16,
    event_index: bool,
    /// Index after the last returned chain.
    next: u16,
    /// Index after the last published chain.
    published: u16,
    /// Index after the last published chain when the guest's wish for an interrupt was last read.
    asked: u16,
}

/// Addresses of the ring, and of the field in which the guest states the index for its next interrupt.
#[derive(Clone, Copy)]
pub(crate) struct UsedPlace {
    ring: *mut u8,
    event: *const u8,
}

impl UsedPlace {
    /// Returns `None` if the fields of the rings are not aligned as the standard requires (2.7).
    ///
    /// `ring` has 6 bytes and 8 for each entry of the queue, and `event` has 2 bytes.
    pub(crate) fn new(ring: *mut u8, event: *const u8) -> Option<Self> {
        (ring.addr().is_multiple_of(4) && event.addr().is_multiple_of(2)).then_some(UsedPlace { ring, event })
    }
}

impl UsedRing {
    /// Creates a ring in which chains up to index `used` were returned.
    pub(crate) fn new(size: u16, event_index: bool, used: u16) -> Self {
        UsedRing { size, event_index, next: used, published: used, asked: used }
    }

    /// Returns the number of chains that are not published.
    pub(crate) fn unpublished(&self) -> u16 {
        self.next.wrapping_sub(self.published)
    }

    /// Returns the index after the last returned chain.
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Returns the chain at `head`, into which `written` bytes were written. It is not published yet.
    ///
    /// # Safety
    /// The memory at `place` is mapped.
    pub(crate) unsafe fn put(&mut self, place: UsedPlace, head: u16, written: u32) {
        let entry = place.ring.wrapping_add(4 + 8 * usize::from(self.next % self.size)).cast::<u32>();
        // SAFETY: the entry is in the ring, at a multiple of four. The guest may read it at any time, but does not
        // before the index is published.
        unsafe {
            entry.write_volatile(u32::from(head).to_le());
            entry.add(1).write_volatile(written.to_le());
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes all returned chains.
    ///
    /// # Safety
    /// As for [`UsedRing::put`].
    pub(crate) unsafe fn publish(&mut self, place: UsedPlace) {
        // SAFETY: the index is in the ring, at a multiple of two, and all our accesses to it are atomic.
        let index = unsafe { AtomicU16::from_ptr(place.ring.add(2).cast()) };
        index.store(self.next.to_le(), Ordering::Release);
        self.published = self.next;
    }

    /// States the index of the available ring at which the guest is to kick: 2.7.10.
    ///
    /// # Safety
    /// As for [`UsedRing::put`].
    pub(crate) unsafe fn state_kick(&self, place: UsedPlace, index: u16) {
        let field = place.ring.wrapping_add(4 + 8 * usize::from(self.size)).cast();
        // SAFETY: the field is behind the entries of the ring, at a multiple of two, and our accesses to it are atomic.
        unsafe { AtomicU16::from_ptr(field) }.store(index.to_le(), Ordering::Relaxed);
    }

    /// Whether the guest wants an interrupt for what was published since the last call: 2.7.10. It wants one for the
    /// chain at the index that it states.
    ///
    /// Example: chains up to index 13 are published, and 10 at the last call. An interrupt is due if the guest states
    /// 10, 11 or 12.
    ///
    /// # Safety
    /// As for [`UsedRing::put`].
    pub(crate) unsafe fn wants_interrupt(&mut self, place: UsedPlace) -> bool {
        let asked = std::mem::replace(&mut self.asked, self.published);
        if !self.event_index {
            return true;
        }
        // The guest stores its index and then reads ours; we have stored ours and now read the guest's.
        fence(Ordering::SeqCst);
        // SAFETY: the field is mapped, at a multiple of two.
        let event = u16::from_le(unsafe { place.event.cast::<u16>().read_volatile() });
        self.published.wrapping_sub(event).wrapping_sub(1) < self.published.wrapping_sub(asked)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ring of four entries, as the guest sees it, and the event index.
    #[repr(align(8))]
    struct Guest {
        ring: [u8; 4 + 8 * 4 + 2],
        event: [u8; 2],
    }

    impl Guest {
        fn new() -> Box<Self> {
            Box::new(Guest { ring: [0xee; 38], event: [0; 2] })
        }

        fn place(&mut self) -> UsedPlace {
            UsedPlace::new(self.ring.as_mut_ptr(), self.event.as_ptr()).unwrap()
        }

        fn index(&self) -> u16 {
            u16::from_le_bytes([self.ring[2], self.ring[3]])
        }

        fn entry(&self, entry: usize) -> (u32, u32) {
            let words: Vec<u32> = self.ring[4 + 8 * entry..][..8]
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect();
            (words[0], words[1])
        }
    }

    #[test]
    fn a_guest_sees_returned_chains_only_when_they_are_published() {
        let mut guest = Guest::new();
        let place = guest.place();
        let mut used = UsedRing::new(4, true, 0xffff);
        // SAFETY: the guest's memory exists.
        unsafe {
            used.publish(place);
            used.put(place, 3, 513);
            used.put(place, 1, 1);
        }
        assert_eq!((guest.index(), used.unpublished(), used.next()), (0xffff, 2, 1));
        // SAFETY: as above.
        unsafe { used.publish(place) };
        assert_eq!((guest.index(), used.unpublished()), (1, 0));
        assert_eq!((guest.entry(3), guest.entry(0)), ((3, 513), (1, 1)), "entries 0xffff and 0x0000, modulo 4");
        assert_eq!(guest.entry(1), (0xeeee_eeee, 0xeeee_eeee), "nothing else is written");
    }

    #[test]
    fn the_index_for_the_next_kick_is_behind_the_entries() {
        let mut guest = Guest::new();
        let place = guest.place();
        // SAFETY: the guest's memory exists.
        unsafe { UsedRing::new(4, true, 0).state_kick(place, 0x1234) };
        assert_eq!((&guest.ring[..36], &guest.ring[36..]), (&[0xee; 36][..], &[0x34, 0x12][..]));
    }

    #[test]
    fn a_ring_whose_words_are_not_aligned_is_refused() {
        let mut guest = Guest::new();
        let (ring, event) = (guest.ring.as_mut_ptr(), guest.event.as_ptr());
        assert!(
            UsedPlace::new(ring.wrapping_add(2), event).is_none()
                && UsedPlace::new(ring, event.wrapping_add(1)).is_none()
        );
    }

    proptest! {
        /// An interrupt is due if and only if the stated index is among those published since the last call, counted
        /// one by one.
        #[test]
        fn an_interrupt_is_due_when_the_named_index_was_passed(start: u16, event: u16, near in -6i16..6, count in 0u16..5) {
            let event = if near < 0 { event } else { start.wrapping_add_signed(near - 2) };
            let mut guest = Guest::new();
            guest.event = event.to_le_bytes();
            let place = guest.place();
            let mut used = UsedRing::new(4, true, start);
            // SAFETY: the guest's memory exists.
            let due = unsafe {
                (0..count).for_each(|_| used.put(place, 0, 0));
                used.publish(place);
                used.wants_interrupt(place)
            };
            prop_assert_eq!(due, (0..count).any(|passed| start.wrapping_add(passed) == event));
            // SAFETY: as above.
            prop_assert!(!unsafe { used.wants_interrupt(place) }, "and once");
        }
    }
}
