//! What a driver can ask a block device for, and how the bytes of it lie in a slot.
//!
//! A request is two streams of bytes: what the device reads (a header of 16 bytes, then data of a write or the ranges of
//! a discard), and what it writes (data of a read, then the status byte). A slot holds both in one piece,
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

/// Bytes of a request's header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a range in a discard.
pub const RANGE_LEN: u32 = 16;
/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// A request. Offsets and lengths are in bytes; those of well-behaved drivers are whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Read `len` bytes into the slot's data.
    Read {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Write `len` bytes of the slot's data.
    Write {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Make completed writes durable.
    Flush,
    /// Read the device's name into the slot's data.
    GetId,
    /// Discard a range.
    Discard {
        /// Start.
        offset: u64,
        /// Length.
        len: u64,
    },
    /// Zero a range.
    WriteZeroes {
        /// Start.
        offset: u64,
        /// Length.
        len: u64,
        /// It may be deallocated.
        unmap: bool,
    },
    /// Anything else: a header of any kind, and so many bytes of the slot's data to and from the device.
    Other {
        /// Type.
        kind: u32,
        /// Sector.
        sector: u64,
        /// Bytes that the device reads.
        to_device: u32,
        /// Bytes that it writes, without the status.
        from_device: u32,
    },
}

/// How to cut a request's streams into descriptors: the lengths of the pieces, in bytes. What they leave over becomes one
/// more piece. Without any, header, data and status are a piece each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cuts<'a> {
    /// Of what the device reads.
    pub readable: &'a [u32],
    /// Of what the device writes.
    pub writable: &'a [u32],
}

/// A request without its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) kind: u32,
    pub(super) sector: u64,
    pub(super) to_device: u32,
    pub(super) from_device: u32,
    /// What goes to the device, where the request itself says it.
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

/// Cuts `len` bytes as `lengths` say, the rest in one; `default` is the first cut where nothing is said.
pub(super) fn cut(len: u32, lengths: &[u32], default: u32, piece: &mut impl FnMut(u32, u32)) {
    let mut begin = 0;
    let default = [default];
    for length in if lengths.is_empty() { &default } else { lengths } {
        let length = (*length).min(len - begin);
        if length > 0 || !lengths.is_empty() {
            piece(begin, length);
        }
        begin += length;
    }
    if begin < len {
        piece(begin, len - begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(len: u32, lengths: &[u32], default: u32) -> Vec<(u32, u32)> {
        let mut pieces = Vec::new();
        cut(len, lengths, default, &mut |begin, len| pieces.push((begin, len)));
        pieces
    }

    #[test]
    fn streams_are_cut_anywhere() {
        assert_eq!(pieces(16, &[], 16), [(0, 16)]);
        assert_eq!(pieces(528, &[], 16), [(0, 16), (16, 512)]);
        assert_eq!(pieces(1, &[], 0), [(0, 1)]);
        assert_eq!(pieces(528, &[3, 500], 16), [(0, 3), (3, 500), (503, 25)]);
        assert_eq!(pieces(4, &[0, 9], 16), [(0, 0), (0, 4)]);
    }

    #[test]
    fn ranges_count_sectors() {
        let zeroes = Request::WriteZeroes { offset: 4096, len: 1024, unmap: true }.form();
        assert_eq!(zeroes.range, Some([8, 2 | 1 << 32]));
        assert_eq!((zeroes.kind, zeroes.sector, zeroes.to_device), (VIRTIO_BLK_T_WRITE_ZEROES, 0, 16));
    }
}
