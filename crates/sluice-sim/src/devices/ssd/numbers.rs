//! Large arrays of page numbers.
//!
//! The map of a drive of 400 GB takes 200 MB and is accessed at random. With memory in pages of 4 KiB most accesses need a
//! page walk too, so the kernel is asked for pages of 2 MiB. It may refuse; only time depends on it.

use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};
use zerocopy::FromBytes as _;

/// An array of numbers in memory of its own.
#[derive(Debug)]
pub(super) struct Numbers(MmapMut);

impl Numbers {
    /// An array of `length` times `number`. It is not empty.
    ///
    /// # Panics
    /// If there is no memory for it, as for a `Vec`.
    pub(super) fn new(number: u32, length: usize) -> Self {
        let memory = MmapMut::map_anon(length * size_of::<u32>());
        let mut numbers = Numbers(memory.expect("there is memory for the map of the drive"));
        let _ = numbers.0.advise(Advice::HugePage);
        numbers.fill(number);
        numbers
    }
}

impl Deref for Numbers {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        <[u32]>::ref_from_bytes(&self.0).expect("a mapping begins at a page and has whole numbers")
    }
}

impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [u32] {
        <[u32]>::mut_from_bytes(&mut self.0).expect("a mapping begins at a page and has whole numbers")
    }
}

impl Clone for Numbers {
    fn clone(&self) -> Self {
        let mut copy = Numbers::new(0, self.len());
        copy.copy_from_slice(self);
        copy
    }
}
