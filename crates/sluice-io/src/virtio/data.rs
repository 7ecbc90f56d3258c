//! The data of a request in the memory of a guest.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use libc::iovec;
use vm_memory::{GuestAddress, GuestMemoryBackend as _, GuestMemoryRegion as _, MemoryRegionAddress};

use crate::limits::reserve;
use crate::vhost_user::memory::{GuestRegion, Memory};
use crate::vhost_user::shared;
use crate::virtio::segment::Segment;

/// The memory table of a queue on its device thread. Each request holds a reference, which is counted without atomic
/// operations: an atomic operation would wait until all earlier writes have reached the caches, which guests share.
pub(crate) struct MemoryTable {
    memory: Arc<Memory>,
    /// The regions in order of their guest addresses. A request looks up at least four addresses, and each lookup through
    /// `memory` would load from four cache lines.
    regions: Vec<HostRegion>,
}

/// Addresses of a region.
struct HostRegion {
    /// Address in the guest.
    guest: u64,
    /// Length in bytes.
    len: u64,
    /// Address in the daemon.
    host: *mut u8,
}

impl MemoryTable {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        let region = |region: &GuestRegion| {
            let all = region.get_slice(MemoryRegionAddress(0), region.len() as usize).expect("a region has its length");
            HostRegion { guest: region.start_addr().0, len: region.len(), host: all.ptr_guard_mut().as_ptr() }
        };
        let regions = memory.iter().map(region).collect();
        MemoryTable { memory, regions }
    }

    /// Returns the address of `len` bytes at a guest address; `None` if they are not all in one region. The pointer is valid
    /// as long as the table exists.
    pub(crate) fn find(&self, address: GuestAddress, len: usize) -> Option<*mut u8> {
        let behind = self.regions.partition_point(|region| region.guest <= address.0);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        let offset = address.0 - region.guest;
        let left = region.len.checked_sub(offset)?;
        (len as u64 <= left).then(|| region.host.wrapping_add(offset as usize))
    }
}

impl Deref for MemoryTable {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

/// Segments of guest memory in the order of a request's bytes, and its status byte. A request without data has no
/// segments. The memory table that the request arrived with stays mapped for as long as this exists.
pub(crate) struct GuestData {
    segments: Segments,
    /// Address of the status byte, in the same memory table.
    status: *mut u8,
    _memory: Rc<MemoryTable>,
}

/// Most requests have one segment, which needs no list.
enum Segments {
    One(Segment),
    Many(Vec<Segment>),
}

impl GuestData {
    /// Creates the data of a request. `Err` if there is no memory for the list of segments; it contains the memory
    /// table without data.
    pub(crate) fn new(segments: &[Segment], status: *mut u8, memory: Rc<MemoryTable>) -> Result<Self, Self> {
        let mut list = Vec::new();
        let has_room = matches!(segments, [_]) || reserve(&mut list, segments.len());
        let segments = match segments {
            [only] => Segments::One(*only),
            segments => {
                list.extend_from_slice(if has_room { segments } else { &[] });
                Segments::Many(list)
            }
        };
        let data = GuestData { segments, status, _memory: memory };
        if has_room { Ok(data) } else { Err(data) }
    }

    fn segments(&self) -> &[Segment] {
        match &self.segments {
            Segments::One(segment) => std::slice::from_ref(segment),
            Segments::Many(segments) => segments,
        }
    }

    /// Whether the kernel can read and write the data without a copy: addresses and lengths are multiples of
    /// `alignment` bytes.
    pub(crate) fn is_aligned(&self, alignment: usize) -> bool {
        let fits = |segment: &Segment| (segment.place() as usize | segment.len()).is_multiple_of(alignment);
        self.segments().iter().all(fits)
    }

    /// Lists the memory of `length` bytes after the first `skip`. Returns `false` if there is no memory for the list.
    pub(crate) fn list(&self, skip: u32, length: u32, list: &mut Vec<iovec>) -> bool {
        list.clear();
        if !reserve(list, self.segments().len()) {
            return false;
        }
        let (mut skip, mut left) = (skip as usize, length as usize);
        for segment in self.segments() {
            if skip >= segment.len() {
                skip -= segment.len();
                continue;
            }
            let mut rest = segment.behind(skip).0;
            skip = 0;
            rest.iov_len = rest.iov_len.min(left);
            left -= rest.iov_len;
            list.push(rest);
            if left == 0 {
                break;
            }
        }
        true
    }

    /// Writes the status of the request.
    pub(crate) fn set_status(&self, status: u8) {
        // SAFETY: the byte lies in guest memory, which is mapped while this exists.
        unsafe { self.status.write_volatile(status) };
    }

    /// Copies `bytes` to the guest, after the first `skip` bytes.
    pub(crate) fn fill(&self, skip: u32, mut bytes: &[u8]) {
        let mut skip = skip as usize;
        for segment in self.segments() {
            let skipped = skip.min(segment.len());
            skip -= skipped;
            let segment = segment.behind(skipped);
            let len = segment.len().min(bytes.len());
            let (part, rest) = bytes.split_at(len);
            // SAFETY: the segment lies in guest memory, which is mapped while this exists and never overlaps our own.
            // The guest may write there at the same time, which only changes its own data: nothing of ours reads it.
            unsafe { segment.place().copy_from_nonoverlapping(part.as_ptr(), len) };
            bytes = rest;
        }
    }

    /// Copies from the guest into `room`, starting after the first `skip` bytes.
    pub(crate) fn copy_to(&self, skip: u32, mut room: &mut [u8]) {
        let mut skip = skip as usize;
        for segment in self.segments() {
            let skipped = skip.min(segment.len());
            skip -= skipped;
            let segment = segment.behind(skipped);
            let len = segment.len().min(room.len());
            let (part, rest) = room.split_at_mut(len);
            // SAFETY: the segment lies in guest memory, which is mapped while this exists and never overlaps our own.
            unsafe { shared::copy_to(segment.place(), part) };
            room = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestMemoryBackend as _;

    use super::*;
    use crate::vhost_user::memory::unshared;

    #[test]
    fn an_address_is_found_in_its_region_and_nowhere_else() {
        let regions = [(GuestAddress(0x1000), 0x1000), (GuestAddress(0x2000), 0x3000), (GuestAddress(0x9000), 0x1000)];
        let memory = Arc::new(unshared(&regions).unwrap());
        let table = MemoryTable::new(Arc::clone(&memory));
        for (address, len) in [(0x1000, 0x1000), (0x1fff, 1), (0x2000, 1), (0x4ffe, 2), (0x9000, 0x1000), (0x9800, 0)] {
            let known = memory.get_slice(GuestAddress(address), len).unwrap().ptr_guard_mut().as_ptr();
            assert_eq!(table.find(GuestAddress(address), len), Some(known), "{len} at {address:#x}");
        }
        let outside = [(0, 1), (0xfff, 2), (0x1fff, 2), (0x5000, 1), (0x9fff, 2), (0xa000, 1), (u64::MAX, 1)];
        for (address, len) in outside {
            assert_eq!(table.find(GuestAddress(address), len), None, "{len} at {address:#x}");
        }
        assert_eq!(table.find(GuestAddress(0x9000), usize::MAX), None);
    }
}
