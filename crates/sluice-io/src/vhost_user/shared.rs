//! Reads of memory that others write concurrently.
//!
//! A guest or its VMM may change any byte of its memory while we read it. With an ordinary load the compiler assumes
//! that this cannot happen: it may load a byte twice, so that a value that was checked and a value that is used differ.
//! So shared memory is read by volatile loads, each word once, and examined in our own memory. `cargo xtask tidy`
//! prevents other reads in the folders that access guest memory.

use std::sync::atomic::{AtomicU16, Ordering};

/// Reads `N` bytes of shared memory: a descriptor, a header or an index. The address of a descriptor or header is a
/// multiple of eight for all usual guests.
///
/// # Safety
/// `N` bytes from `place` are mapped for reading.
#[inline(always)]
pub(crate) unsafe fn read<const N: usize>(place: *const u8) -> [u8; N] {
    let mut bytes = [0; N];
    if N == 2 && place.addr().is_multiple_of(2) {
        // SAFETY: the caller's promise, and the address is even.
        bytes.copy_from_slice(&unsafe { place.cast::<u16>().read_volatile() }.to_ne_bytes());
        return bytes;
    }
    if !N.is_multiple_of(8) || !place.addr().is_multiple_of(8) {
        // SAFETY: the caller's promise; the array is our own.
        unsafe { copy_to(place, &mut bytes) };
        return bytes;
    }
    for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: the word is within the bytes that the caller promised, and its address is a multiple of eight.
        *word = unsafe { place.add(at * 8).cast::<u64>().read_volatile() }.to_ne_bytes();
    }
    bytes
}

/// Fills `room` with bytes of shared memory.
///
/// # Safety
/// `room.len()` bytes from `place` are mapped for reading, and do not overlap `room`.
pub(crate) unsafe fn copy_to(place: *const u8, room: &mut [u8]) {
    let before = place.align_offset(size_of::<u64>()).min(room.len());
    let (head, rest) = room.split_at_mut(before);
    let (words, tail) = rest.as_chunks_mut::<8>();
    let tail_at = before + words.len() * 8;
    for (at, byte) in head.iter_mut().enumerate() {
        // SAFETY: the byte is within those that the caller promised.
        *byte = unsafe { place.add(at).read_volatile() };
    }
    for (at, word) in words.iter_mut().enumerate() {
        // SAFETY: as above, and the address is a multiple of eight.
        *word = unsafe { place.add(before + at * 8).cast::<u64>().read_volatile() }.to_ne_bytes();
    }
    for (at, byte) in tail.iter_mut().enumerate() {
        // SAFETY: as above.
        *byte = unsafe { place.add(tail_at + at).read_volatile() };
    }
}

/// Reads an index that another CPU writes after what it covers: what the index covers is visible afterwards.
///
/// # Safety
/// Two bytes from `place` are mapped for reading, and the address is even.
#[inline(always)]
pub(crate) unsafe fn read_index(place: *const u8) -> u16 {
    // SAFETY: the caller's promise; the index is only read, and all our accesses to it are atomic.
    let index = unsafe { AtomicU16::from_ptr(place.cast_mut().cast()) };
    u16::from_le(index.load(Ordering::Acquire))
}

/// Starts to load a cache line that will be read soon, without waiting for it. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees, and ignores addresses that are not mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_for_any_start_and_length() {
        let bytes: Vec<u8> = (0..100).collect();
        for start in 0..20 {
            for len in 0..60 {
                let mut room = vec![0xff; len];
                // SAFETY: the bytes exist and do not change.
                unsafe { copy_to(bytes[start..].as_ptr(), &mut room) };
                assert_eq!(room, bytes[start..start + len], "{len} from {start} on");
            }
            // SAFETY: as above.
            let (words, odd) = unsafe { (read::<16>(bytes[start..].as_ptr()), read::<13>(bytes[start..].as_ptr())) };
            assert_eq!((&words[..], &odd[..]), (&bytes[start..start + 16], &bytes[start..start + 13]));
        }
    }
}
