//! Segments of guest memory: the parts of a descriptor chain, as the kernel takes them.

use libc::iovec;

/// A segment of guest memory, as the kernel takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment(pub(crate) iovec);

impl Segment {
    pub(crate) fn new(place: *mut u8, len: usize) -> Self {
        Segment(iovec { iov_base: place.cast(), iov_len: len })
    }

    pub(crate) fn place(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Returns the segment without its first `bytes` bytes.
    pub(crate) fn behind(&self, bytes: usize) -> Self {
        debug_assert!(bytes <= self.len());
        Segment::new(self.place().wrapping_add(bytes), self.len() - bytes)
    }
}

/// Returns the number of bytes of some segments.
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.len() as u64).sum()
}
