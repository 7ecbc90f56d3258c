//! Descriptor chains: from a head in the available ring to segments of host memory.
//!
//! A guest controls everything that is read here. Each descriptor is read once, each segment must lie in the memory
//! table, and a chain has at most as many descriptors as its table. A chain that loops, contains an invalid index or
//! nests tables is malformed, and no part of it is used. A chain in an indirect table may be longer than its queue. The
//! standard forbids this, but Linux does it if a queue has fewer entries than `seg_max`.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{ByteValued, GuestAddress, GuestMemoryBackend};

use crate::vhost_user::shared;
use crate::virtio::data::MemoryTable;
use crate::virtio::segment::Segment;

/// Maximum number of segments of one operation of the kernel.
const SEGMENTS_MAX: usize = 1024;
/// Maximum number of descriptors of a chain in an indirect table: segments, a header and a status.
const INDIRECT_MAX: u16 = SEGMENTS_MAX as u16 + 2;
const DESCRIPTOR_LEN: usize = size_of::<Descriptor>();

/// Why a chain cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    Index,
    Length,
    Address,
    Indirect,
    Order,
    Segments,
    Frame,
}

impl Malformed {
    pub(crate) const fn in_words(self) -> &'static str {
        match self {
            Malformed::Index => "a descriptor index is past the end of its table",
            Malformed::Length => "a descriptor chain is too long or loops",
            // A guest does so if it was given memory that its VMM has not shared.
            Malformed::Address => {
                "a request lies in memory that the daemon was not given: is every memory backend share=on?"
            }
            Malformed::Indirect => "an indirect table is nested, chained, empty or not a multiple of 16 bytes",
            Malformed::Order => "a readable descriptor follows a writable one",
            Malformed::Segments => "a descriptor chain has too many segments",
            Malformed::Frame => "a request has no header or no status byte",
        }
    }
}

/// A descriptor table, translated to host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescriptorTable {
    start: *const u8,
    entries: u16,
}

impl DescriptorTable {
    /// Returns the table of `entries` descriptors at `address`; `None` if it is not within one memory region.
    pub(crate) fn find(memory: &MemoryTable, address: GuestAddress, entries: u16) -> Option<Self> {
        let start = memory.find(address, usize::from(entries) * DESCRIPTOR_LEN)?;
        Some(DescriptorTable { start, entries })
    }

    /// Starts to load a descriptor that will be read soon.
    pub(crate) fn prefetch(&self, index: u16) {
        if index < self.entries {
            shared::prefetch(self.place(index));
        }
    }

    /// Starts to load the table or the segment that a descriptor states. The descriptor may change until it is read to be used;
    /// here it says only what to load.
    pub(crate) fn prefetch_target(&self, memory: &MemoryTable, index: u16) {
        if let Ok(descriptor) = self.read(index)
            && let Some(target) = memory.find(descriptor.addr(), 1)
        {
            shared::prefetch(target);
        }
    }

    fn place(&self, index: u16) -> *const u8 {
        self.start.wrapping_add(usize::from(index) * DESCRIPTOR_LEN)
    }

    fn read(&self, index: u16) -> Result<Descriptor, Malformed> {
        if index >= self.entries {
            return Err(Malformed::Index);
        }
        let mut descriptor = Descriptor::default();
        // SAFETY: the address is within the table, which lies in guest memory that the caller's memory table keeps
        // mapped.
        descriptor.as_mut_slice().copy_from_slice(&unsafe { shared::read::<DESCRIPTOR_LEN>(self.place(index)) });
        Ok(descriptor)
    }
}

/// The segments of a chain. It is reused, so that its lists need no new memory.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) readable: Vec<Segment>,
    pub(crate) writable: Vec<Segment>,
    descriptors: u16,
}

impl Chain {
    /// Follows the chain that starts at `head`.
    pub(crate) fn follow(&mut self, memory: &MemoryTable, table: &DescriptorTable, head: u16) -> Result<(), Malformed> {
        self.readable.clear();
        self.writable.clear();
        self.descriptors = 0;
        let mut index = head;
        loop {
            let descriptor = table.read(index)?;
            if descriptor.refers_to_indirect_table() {
                return self.follow_indirect(memory, &descriptor);
            }
            self.add(memory, &descriptor, table.entries)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn follow_indirect(&mut self, memory: &MemoryTable, outer: &Descriptor) -> Result<(), Malformed> {
        let entries = outer.len() as usize / DESCRIPTOR_LEN;
        let is_sound =
            (outer.len() as usize).is_multiple_of(DESCRIPTOR_LEN) && entries > 0 && entries <= usize::from(u16::MAX);
        if !is_sound || outer.has_next() {
            return Err(Malformed::Indirect);
        }
        let inner = DescriptorTable::find(memory, outer.addr(), entries as u16).ok_or(Malformed::Address)?;
        // Descriptors before the table do not count against its length (VIRTIO 1.3, 2.7.5.3.2).
        self.descriptors = 0;
        let mut index = 0;
        loop {
            let descriptor = inner.read(index)?;
            if descriptor.refers_to_indirect_table() {
                return Err(Malformed::Indirect);
            }
            self.add(memory, &descriptor, inner.entries.min(INDIRECT_MAX))?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn add(&mut self, memory: &MemoryTable, descriptor: &Descriptor, longest: u16) -> Result<(), Malformed> {
        self.descriptors += 1;
        if self.descriptors > longest {
            return Err(Malformed::Length);
        }
        let to_read = !descriptor.is_write_only();
        if to_read && !self.writable.is_empty() {
            return Err(Malformed::Order);
        }
        let segments = if to_read { &mut self.readable } else { &mut self.writable };
        let len = descriptor.len() as usize;
        if len == 0 {
            return Ok(());
        }
        if let Some(place) = memory.find(descriptor.addr(), len) {
            segments.push(Segment::new(place, len));
        } else {
            // A segment may cross the border of two regions.
            for slice in memory.get_slices(descriptor.addr(), len) {
                let slice = slice.map_err(|_| Malformed::Address)?;
                segments.push(Segment::new(slice.ptr_guard_mut().as_ptr(), slice.len()));
            }
        }
        if segments.len() > SEGMENTS_MAX { Err(Malformed::Segments) } else { Ok(()) }
    }

    /// Returns the number of descriptors that were followed; of a chain with an indirect table, those in the table.
    pub(crate) fn descriptors(&self) -> u16 {
        self.descriptors
    }

    /// Removes the first `N` readable bytes from the chain and returns them.
    pub(crate) fn take_front<const N: usize>(&mut self) -> Option<[u8; N]> {
        let first = self.readable.first()?;
        if first.len() == N {
            // SAFETY: the segment lies in mapped guest memory and has this length.
            let bytes = unsafe { shared::read(first.place()) };
            self.readable.remove(0);
            return Some(bytes);
        }
        let mut bytes = [0; N];
        let mut have = 0;
        let mut used = 0;
        while have < N {
            let segment = self.readable.get_mut(used)?;
            let part = segment.len().min(N - have);
            // SAFETY: the segment lies in mapped guest memory, and the array is our own.
            unsafe { shared::copy_to(segment.place(), &mut bytes[have..have + part]) };
            have += part;
            if part == segment.len() {
                used += 1;
            } else {
                *segment = segment.behind(part);
            }
        }
        self.readable.drain(..used);
        Some(bytes)
    }

    /// Removes the first readable bytes from the chain, copies them into `room`, and returns their number: as many as there is room for, or
    /// all.
    pub(crate) fn take_up_to(&mut self, room: &mut [u8]) -> usize {
        let mut have = 0;
        let mut used = 0;
        while have < room.len()
            && let Some(segment) = self.readable.get_mut(used)
        {
            let part = segment.len().min(room.len() - have);
            // SAFETY: the segment lies in mapped guest memory, and the room is our own.
            unsafe { shared::copy_to(segment.place(), &mut room[have..have + part]) };
            have += part;
            if part == segment.len() {
                used += 1;
            } else {
                *segment = segment.behind(part);
            }
        }
        self.readable.drain(..used);
        have
    }

    /// Removes the last writable byte from the chain and returns its address.
    pub(crate) fn take_last_byte(&mut self) -> Option<*mut u8> {
        let last = self.writable.pop()?;
        let rest = last.len() - 1;
        if rest > 0 {
            self.writable.push(Segment::new(last.place(), rest));
        }
        Some(last.place().wrapping_add(rest))
    }
}
