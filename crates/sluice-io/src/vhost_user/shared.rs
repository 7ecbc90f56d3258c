//! Reads of memory that others write at the same time.
//!
//! A guest or its VMM may change any byte of its memory while we read it. An ordinary load lets the compiler assume that
//! this cannot happen: it may load a byte twice, or copy one where it was compared. So what they have written is read by
//! volatile loads, each word once, and looked at in our own memory. `cargo xtask tidy` keeps other reads out of the folders
//! that deal with guests.

/// Reads `N` bytes of shared memory: a descriptor or a header, which lie at a multiple of eight but for odd guests, or an
/// index.
///
/// # Safety
/// As many bytes from `place` on are mapped for reading.
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
        // SAFETY: the word is one of those that the caller vouches for, and its address is a multiple of eight.
        *word = unsafe { place.add(at * 8).cast::<u64>().read_volatile() }.to_ne_bytes();
    }
    bytes
}

/// Copies from shared memory as many bytes as there is room for.
///
/// # Safety
/// As many bytes from `place` on are mapped for reading, and `room` is no part of them.
pub(crate) unsafe fn copy_to(place: *const u8, room: &mut [u8]) {
    let before = place.align_offset(size_of::<u64>()).min(room.len());
    let (head, rest) = room.split_at_mut(before);
    let (words, tail) = rest.as_chunks_mut::<8>();
    let tail_at = before + words.len() * 8;
    for (at, byte) in head.iter_mut().enumerate() {
        // SAFETY: the byte is one of those that the caller vouches for.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_wherever_it_begins_and_ends() {
        let bytes: Vec<u8> = (0..100).collect();
        for start in 0..20 {
            for len in 0..60 {
                let mut room = vec![0xff; len];
                // SAFETY: the bytes are there, and nobody changes them.
                unsafe { copy_to(bytes[start..].as_ptr(), &mut room) };
                assert_eq!(room, bytes[start..start + len], "{len} from {start} on");
            }
            // SAFETY: as above.
            let (words, odd) = unsafe { (read::<16>(bytes[start..].as_ptr()), read::<13>(bytes[start..].as_ptr())) };
            assert_eq!((&words[..], &odd[..]), (&bytes[start..start + 16], &bytes[start..start + 13]));
        }
    }
}
