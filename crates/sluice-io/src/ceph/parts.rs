//! The parts of an image that hold data, and the objects that exist.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::{Allocation, ByteRange, Span};

/// Parts of an image that have objects. Only known of images with an object map, by which librbd answers reads where no object is.
pub(super) struct Objects {
    /// Length of an object in bytes.
    length: u64,
    bits: Vec<AtomicU64>,
}

/// Parts of an image that are found one after the other.
pub(super) struct Parts {
    next: u64,
    end: u64,
    pub(super) spans: Vec<Span>,
    spans_max: usize,
    /// Whether there was one more part than the maximum.
    pub(super) is_full: bool,
}

impl Parts {
    pub(super) fn new(range: ByteRange, spans_max: usize) -> Parts {
        Parts { next: range.offset, end: range.end(), spans: Vec::new(), spans_max, is_full: false }
    }

    /// Adds a part from where the last one has ended.
    pub(super) fn until(&mut self, end: u64, kind: Allocation) {
        let length = end.min(self.end).saturating_sub(self.next);
        if length == 0 || self.is_full {
            return;
        }
        let has_all = self.spans.len() >= self.spans_max;
        match self.spans.last_mut() {
            Some(last) if last.kind == kind => last.length += length,
            // What follows is not told, also if it is like the last part.
            _ if has_all => return self.is_full = true,
            _ => self.spans.push(Span { length, kind }),
        }
        self.next += length;
    }
}

/// Called by librbd for each part that holds data, in order, in the thread that has asked.
pub(super) unsafe extern "C" fn differs(offset: u64, length: usize, exists: c_int, parts: *mut c_void) -> c_int {
    // SAFETY: the pointer is that of the parts that were given to the call, which nothing else uses meanwhile.
    let parts = unsafe { &mut *parts.cast::<Parts>() };
    let kind = if exists == 0 { Allocation::Hole } else { Allocation::Data };
    parts.until(offset, Allocation::Hole);
    parts.until(offset.saturating_add(length as u64), kind);
    // A negative number ends the walk.
    if parts.is_full { -libc::ECANCELED } else { 0 }
}

impl Objects {
    /// Those of an image of this size whose parts were found; parts of holes have none.
    pub(super) fn of(size: u64, length: u64, spans: &[Span]) -> Objects {
        let count = size.div_ceil(length).div_ceil(64);
        let objects = Objects { length, bits: (0..count).map(|_| AtomicU64::new(0)).collect() };
        let mut at = 0;
        for Span { length, kind } in spans {
            if *kind == Allocation::Data {
                objects.note(ByteRange::new(at, *length));
            }
            at += length;
        }
        objects
    }

    /// Returns the word and the bit of each part that a range touches; no word for what the image had not when it was opened.
    fn each(&self, range: ByteRange) -> impl Iterator<Item = (Option<&AtomicU64>, u64)> {
        let last = range.end().saturating_sub(1).max(range.offset);
        let parts = range.offset / self.length..=last / self.length;
        parts.map(|part| (self.bits.get((part / 64) as usize), 1 << (part % 64)))
    }

    pub(super) fn note(&self, range: ByteRange) {
        for (word, bit) in self.each(range) {
            if let Some(word) = word.filter(|word| word.load(Ordering::Relaxed) & bit == 0) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn hold(&self, range: ByteRange) -> bool {
        self.each(range).any(|(word, bit)| word.is_none_or(|word| word.load(Ordering::Relaxed) & bit != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_exists_from_the_first_write_to_it() {
        let objects = Objects { length: 4096, bits: (0..2).map(|_| AtomicU64::new(0)).collect() };
        let range = ByteRange::new;
        objects.note(range(65 * 4096, 1));
        assert!(objects.hold(range(65 * 4096 + 100, 10)) && objects.hold(range(64 * 4096, 4097)));
        assert!(!objects.hold(range(64 * 4096, 4096)) && !objects.hold(range(0, 64 * 4096)));
        objects.note(range(4095, 2));
        assert!(objects.hold(range(0, 1)) && objects.hold(range(4096, 1)) && !objects.hold(range(8192, 1)));
        assert!(objects.hold(range(1 << 40, 1)), "the image has grown");
    }

    #[test]
    fn parts_are_whole_and_in_order_whatever_the_library_leaves_out() {
        let mut parts = Parts::new(ByteRange::new(100, 100), 3);
        // SAFETY: nothing else uses the parts meanwhile.
        let mut tell = |offset, length, exists| unsafe { differs(offset, length, exists, (&raw mut parts).cast()) };
        tell(90, 20, 1);
        tell(110, 10, 1);
        tell(150, 10, 0);
        tell(160, 100, 1);
        parts.until(200, Allocation::Hole);
        let spans: Vec<_> = parts.spans.iter().map(|span| (span.length, span.kind)).collect();
        assert_eq!(spans, [(20, Allocation::Data), (40, Allocation::Hole), (40, Allocation::Data)]);
    }

    #[test]
    fn data_after_the_last_part_of_an_answer_was_told_to_be_a_hole() {
        for (spans_max, expected) in [(1, vec![4]), (2, vec![4, 4]), (3, vec![4, 4, 4]), (4, vec![4, 4, 4])] {
            let mut parts = Parts::new(ByteRange::new(0, 12), spans_max);
            // SAFETY: nothing else uses the parts meanwhile.
            let ended = unsafe { differs(4, 4, 1, (&raw mut parts).cast()) };
            assert_eq!(ended < 0, spans_max == 1, "the walk ends when nothing more fits");
            parts.until(12, Allocation::Hole);
            assert_eq!(parts.spans.iter().map(|span| span.length).collect::<Vec<_>>(), expected);
        }
    }
}
