//! The requests that a driver sends to a block device, and their layout in a slot.
//!
//! A request is two streams of bytes. The device reads one (a header of 16 bytes, then the data of a write or the
//! ranges of a discard) and writes the other (the data of a read, then the status byte). A slot holds both
//! contiguously,
//!
//! ```text
//! ... indirect table | header | data to the device | data from the device | status
//!                             ^ aligned to a page
//! ```
//!
//! so either stream can be cut into descriptors anywhere: in the middle of the header, or not even between data and
//! status. Devices must take any layout (Virtual I/O Device 1.2, section 2.7.4).

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};

/// Length of a request header, in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of a range of a discard, in bytes.
pub const RANGE_LEN: u32 = 16;
/// Length of a sector, in bytes.
pub const SECTOR: u64 = 512;

/// A request. Offsets and lengths are in bytes. Valid requests have whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Read `len` bytes into the slot's data.
    Read {
        offset: u64,
        len: u32,
    },
    /// Write `len` bytes of the slot's data.
    Write {
        offset: u64,
        len: u32,
    },
    /// Makes completed writes durable.
    Flush,
    /// Read the device's id into the slot's data.
    GetId,
    Discard {
        offset: u64,
        len: u64,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        /// The range may be deallocated.
        unmap: bool,
    },
    /// Any other request: any type in the header, and any number of bytes of the slot's data in either direction.
    Other {
        kind: u32,
        sector: u64,
        /// Number of bytes that the device reads.
        to_device: u32,
        /// Number of bytes that the device writes, without the status.
        from_device: u32,
    },
}

/// Split of a request's streams into descriptors: the lengths of the segments, in bytes. The rest of a stream
/// becomes one more segment. Without lengths, header, data and status are one segment each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cuts<'a> {
    /// Segments that the device reads.
    pub readable: &'a [u32],
    /// Segments that the device writes.
    pub writable: &'a [u32],
}

/// Layout of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) kind: u32,
    pub(super) sector: u64,
    pub(super) to_device: u32,
    pub(super) from_device: u32,
    /// Offset and length sent to the device as data, for requests that have a range.
    pub(super) range: Option<[u64; 2]>,
}

impl Request {
    #[inline]
    pub(super) fn form(self) -> Form {
        let form = |kind, offset: u64, to_device, from_device| Form {
            kind,
            sector: offset / SECTOR,
            to_device,
            from_device,
            range: None,
        };
        let range = |kind, offset: u64, len: u64, flags: u64| Form {
            range: Some([offset / SECTOR, (len / SECTOR) | flags << 32]),
            ..form(kind, 0, RANGE_LEN, 0)
        };
        match self {
            Request::Read { offset, len } => form(VIRTIO_BLK_T_IN, offset, 0, len),
            Request::Write { offset, len } => form(VIRTIO_BLK_T_OUT, offset, len, 0),
            Request::Flush => form(VIRTIO_BLK_T_FLUSH, 0, 0, 0),
            Request::GetId => form(VIRTIO_BLK_T_GET_ID, 0, 0, VIRTIO_BLK_ID_BYTES),
            Request::Discard { offset, len } => range(VIRTIO_BLK_T_DISCARD, offset, len, 0),
            Request::WriteZeroes { offset, len, unmap } => {
                range(VIRTIO_BLK_T_WRITE_ZEROES, offset, len, u64::from(unmap))
            }
            Request::Other { kind, sector, to_device, from_device } => {
                Form { kind, sector, to_device, from_device, range: None }
            }
        }
    }
}

/// Splits `len` bytes into segments of `lengths`, and a last segment with the rest. `default` is the first length if
/// `lengths` is empty.
pub(super) fn cut(len: u32, lengths: &[u32], default: u32, segment: &mut impl FnMut(u32, u32)) {
    let mut begin = 0;
    let default = [default];
    for length in if lengths.is_empty() { &default } else { lengths } {
        let length = (*length).min(len - begin);
        if length > 0 || !lengths.is_empty() {
            segment(begin, length);
        }
        begin += length;
    }
    if begin < len {
        segment(begin, len - begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(len: u32, lengths: &[u32], default: u32) -> Vec<(u32, u32)> {
        let mut segments = Vec::new();
        cut(len, lengths, default, &mut |begin, len| segments.push((begin, len)));
        segments
    }

    #[test]
    fn a_stream_is_split_at_any_byte() {
        assert_eq!(segments(16, &[], 16), [(0, 16)]);
        assert_eq!(segments(528, &[], 16), [(0, 16), (16, 512)]);
        assert_eq!(segments(1, &[], 0), [(0, 1)]);
        assert_eq!(segments(528, &[3, 500], 16), [(0, 3), (3, 500), (503, 25)]);
        assert_eq!(segments(4, &[0, 9], 16), [(0, 0), (0, 4)]);
    }

    #[test]
    fn a_range_is_sent_in_sectors() {
        let zeroes = Request::WriteZeroes { offset: 4096, len: 1024, unmap: true }.form();
        assert_eq!(zeroes.range, Some([8, 2 | 1 << 32]));
        assert_eq!((zeroes.kind, zeroes.sector, zeroes.to_device), (VIRTIO_BLK_T_WRITE_ZEROES, 0, 16));
    }
}
