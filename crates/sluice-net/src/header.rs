//! The header in front of each frame, which says what the sender left to the device: `struct virtio_net_hdr_v1`.
//!
//! VIRTIO 1.3, 5.1.6. TAP and AF_PACKET use the same layout; AF_PACKET has it without the last field. All fields are little
//! endian.
//!
//! A sender leaves two things to the device. With [`NEEDS_CHECKSUM`] the checksum is not finished: the device sums the bytes
//! from `checksum_start` and writes the result `checksum_offset` bytes behind that. With a `gso_type` the frame is a whole series
//! of TCP segments or UDP datagrams behind one copy of the headers, and the device cuts it into pieces of `gso_size` bytes.

use crate::Frame;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 12;

/// Flag: the device has to finish the checksum.
pub const NEEDS_CHECKSUM: u8 = 1;
/// Flag of received frames: the device has checked the checksum. Nothing that a guest sends may claim this.
pub const CHECKED: u8 = 2;

/// `gso_type` of a frame that is not cut.
pub const GSO_NONE: u8 = 0;
/// `gso_type` of TCP over IPv4.
pub const GSO_TCP4: u8 = 1;
/// `gso_type` of TCP over IPv6.
pub const GSO_TCP6: u8 = 4;
/// `gso_type` of UDP datagrams of equal length.
pub const GSO_UDP: u8 = 5;
/// Bit in `gso_type` of TCP: the first segment keeps the flag CWR, and the others do not have it.
pub const GSO_ECN: u8 = 0x80;

/// The offload header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OffloadHeader {
    /// [`NEEDS_CHECKSUM`], [`CHECKED`].
    pub flags: u8,
    /// [`GSO_NONE`] or another of the types, with or without [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers of the frame. A hint of the sender, which decides nothing here.
    pub header_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// First byte of the frame that the checksum covers.
    pub checksum_start: u16,
    /// Place of the checksum, in bytes from `checksum_start`.
    pub checksum_offset: u16,
    /// Receive buffers that the frame fills (`num_buffers`). 0 when it is sent.
    pub buffers: u16,
}

impl OffloadHeader {
    /// Reads a header. Any bytes are one; [`wire()`](crate::wire()) checks it against the frame.
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        OffloadHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: field(2),
            gso_size: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
            buffers: field(10),
        }
    }

    /// The header as virtio 1 and a TAP with a header of 12 bytes have it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..10].copy_from_slice(&self.to_bytes_10());
        bytes[10..].copy_from_slice(&self.buffers.to_le_bytes());
        bytes
    }

    /// The header as AF_PACKET has it, without `buffers`.
    #[must_use]
    pub fn to_bytes_10(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let fields = [self.header_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (slot, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The header of a guest's frame without the claim that its checksum was checked. Otherwise a guest could make its
    /// neighbours accept damaged data. VIRTIO 1.3, 5.1.6.2: a driver does not set that flag.
    #[must_use]
    pub fn without_claims(self) -> Self {
        OffloadHeader { flags: self.flags & NEEDS_CHECKSUM, buffers: 0, ..self }
    }

    /// The header with which a checked frame goes on: a TAP or AF_PACKET refuses a `header_len` beyond the frame, so it is the
    /// length that was parsed, and fields without a meaning are 0.
    #[must_use]
    pub fn forwarded(self, frame: &Frame) -> Self {
        let needs = self.flags & NEEDS_CHECKSUM != 0;
        let cut = self.gso_type != GSO_NONE;
        OffloadHeader {
            flags: self.flags & (NEEDS_CHECKSUM | CHECKED),
            gso_type: self.gso_type,
            header_len: if cut { frame.headers } else { 0 },
            gso_size: if cut { self.gso_size } else { 0 },
            checksum_start: if needs { self.checksum_start } else { 0 },
            checksum_offset: if needs { self.checksum_offset } else { 0 },
            buffers: 0,
        }
    }

    /// The header after `bytes` bytes were put into the frame's headers, in front of what the checksum covers: a VLAN tag.
    #[must_use]
    pub fn shifted(self, bytes: u16) -> Self {
        let needs = self.flags & NEEDS_CHECKSUM != 0;
        let cut = self.gso_type != GSO_NONE;
        OffloadHeader {
            checksum_start: if needs { self.checksum_start.saturating_add(bytes) } else { self.checksum_start },
            header_len: if cut { self.header_len.saturating_add(bytes) } else { self.header_len },
            ..self
        }
    }

    /// The header after `bytes` bytes were taken out of the frame's headers; the opposite of [`shifted`](Self::shifted).
    #[must_use]
    pub fn shifted_back(self, bytes: u16) -> Self {
        let needs = self.flags & NEEDS_CHECKSUM != 0;
        let cut = self.gso_type != GSO_NONE;
        OffloadHeader {
            checksum_start: if needs { self.checksum_start.saturating_sub(bytes) } else { self.checksum_start },
            header_len: if cut { self.header_len.saturating_sub(bytes) } else { self.header_len },
            ..self
        }
    }

    /// The protocol that is cut, without the bit for CWR.
    pub(crate) fn gso_protocol(self) -> u8 {
        self.gso_type & !GSO_ECN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_virtio_has_them() {
        let bytes = [1, 0x81, 66, 0, 0xb4, 5, 34, 0, 16, 0, 2, 1];
        let header = OffloadHeader::parse(&bytes);
        let expected = OffloadHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: GSO_TCP4 | GSO_ECN,
            header_len: 66,
            gso_size: 1460,
            checksum_start: 34,
            checksum_offset: 16,
            buffers: 258,
        };
        assert_eq!(header, expected);
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(header.to_bytes_10(), bytes[..10]);
        assert_eq!(header.gso_protocol(), GSO_TCP4);
    }

    #[test]
    fn a_guest_cannot_claim_that_its_checksum_was_checked() {
        let sent = OffloadHeader { flags: 0xff, buffers: 7, gso_size: 3, ..OffloadHeader::default() };
        let passed = sent.without_claims();
        assert_eq!((passed.flags, passed.buffers, passed.gso_size), (NEEDS_CHECKSUM, 0, 3));
    }
}
