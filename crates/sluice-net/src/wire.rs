//! What a frame costs on the wire, and whether its offloads are possible.
//!
//! A guest with segmentation offload sends one long frame, which the host or its NIC cuts: each segment repeats the headers and
//! takes the 24 bytes that surround a frame. Counting only the bytes of the guest's frame gave TCP 4 % more than its share.
//!
//! Example: 54 bytes of headers, 2,920 of payload, `gso_size` 1460. Two frames of 1,514 bytes: `bytes` is 3,028, and the wire is
//! occupied for 3,028 + 2 x 24 = 3,076 bytes.
//!
//! A frame whose offload header is impossible is dropped, because the kernel would refuse it, or write a checksum over headers
//! that have been checked: a checksum position inside the source address would replace that address behind the guard.

use crate::header::{CHECKED, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM};
use crate::{Drop, Frame, Network, OffloadHeader, Transport};

/// Bytes around each frame on the wire: preamble 8, checksum 4, gap 12.
pub const OVERHEAD: u32 = 24;
/// Shortest frame on the wire, without its checksum. Shorter ones are padded.
pub const FRAME_MIN: u32 = 60;
/// Most segments of a frame. 64 KiB in segments of 32 bytes reach it: TCP's smallest segment (48 bytes, RFC 791's smallest MTU of 68
/// less headers, less options of 12 bytes) stays below. Without a bound, one frame of a guest in segments of one byte would cost
/// the host 65,000 packets.
pub const SEGMENTS_MAX: u32 = 2048;
/// Place of the checksum in the header of TCP, of UDP, and of ICMPv6.
pub(crate) const TCP_CHECKSUM: u16 = 16;
pub(crate) const UDP_CHECKSUM: u16 = 6;
pub(crate) const ICMPV6_CHECKSUM: u16 = 2;

/// Cost of a frame on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    /// Frames that it becomes: 1 to [`SEGMENTS_MAX`].
    pub frames: u16,
    /// Bytes of all of them, each at least [`FRAME_MIN`], without the [`OVERHEAD`] around them.
    pub bytes: u32,
    /// Longest network packet: without Ethernet header and tags, to compare with the MTU.
    pub packet_max: u32,
}

impl Wire {
    /// Bytes for which the wire is occupied: [`bytes`](Self::bytes) and [`OVERHEAD`] for each frame.
    #[must_use]
    pub const fn occupied(self) -> u32 {
        self.bytes + self.frames as u32 * OVERHEAD
    }

    /// Checks that every packet fits the MTU.
    ///
    /// # Errors
    /// [`Drop::TooLong`].
    pub fn check_mtu(self, mtu: u16) -> Result<(), Drop> {
        if self.packet_max > u32::from(mtu) { Err(Drop::TooLong) } else { Ok(()) }
    }

    /// The cost with a VLAN tag on each frame.
    #[must_use]
    pub const fn with_tag(self) -> Self {
        Wire { bytes: self.bytes + self.frames as u32 * crate::frame::TAG_LEN as u32, ..self }
    }
}

/// Bytes for which a frame of `length` bytes that is not cut occupies the wire.
#[must_use]
pub const fn occupied(length: u32) -> u32 {
    OVERHEAD + if length > FRAME_MIN { length } else { FRAME_MIN }
}

/// The cost of a frame of `length` bytes with its offload header.
///
/// # Errors
/// [`Drop::Offload`] if the segment size or the checksum position is impossible for this frame: an unknown type, headers that are not
/// known or longer than the prefix, more than [`SEGMENTS_MAX`] segments, segments longer than an IP packet, a checksum outside the
/// frame or inside the headers on which decisions rest.
pub fn wire(frame: &Frame, header: &OffloadHeader, length: u32) -> Result<Wire, Drop> {
    let link = u32::from(frame.network_at);
    let Some(cut) = Cut::new(frame, header, length)? else {
        return Ok(Wire { frames: 1, bytes: length.max(FRAME_MIN), packet_max: length.saturating_sub(link) });
    };
    let full = cut.headers + cut.segment;
    let last = cut.headers + cut.payload - (cut.segments - 1) * cut.segment;
    let bytes = (cut.segments - 1) * full.max(FRAME_MIN) + last.max(FRAME_MIN);
    Ok(Wire { frames: cut.segments as u16, bytes, packet_max: full - link })
}

/// How a frame is cut into two or more segments. All in bytes but `segments`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) headers: u32,
    pub(crate) payload: u32,
    /// Payload of each segment but the last.
    pub(crate) segment: u32,
    pub(crate) segments: u32,
}

impl Cut {
    /// Checks the offloads. Returns `None` for a frame that is one frame on the wire, also if it is marked as segments but its payload
    /// fits into one.
    pub(crate) fn new(frame: &Frame, header: &OffloadHeader, length: u32) -> Result<Option<Cut>, Drop> {
        check_checksum(frame, header, length)?;
        if header.gso_type == GSO_NONE {
            return Ok(None);
        }
        let place = match (header.gso_protocol(), frame.network, frame.transport) {
            (GSO_TCP4, Network::Ipv4 { .. }, Transport::Tcp) | (GSO_TCP6, Network::Ipv6 { .. }, Transport::Tcp) => {
                TCP_CHECKSUM
            }
            // The bit for CWR belongs to TCP.
            (GSO_UDP, _, Transport::Udp { .. }) if header.gso_type == GSO_UDP => UDP_CHECKSUM,
            _ => return Err(Drop::Offload),
        };
        // VIRTIO 1.3, 5.1.6.2: what is cut needs a checksum. An uplink's frames may have one that was already checked.
        let starts = (header.checksum_start, header.checksum_offset) == (frame.transport_at, place);
        let is_partial = header.flags & NEEDS_CHECKSUM != 0;
        let (headers, segment) = (u32::from(frame.headers), u32::from(header.gso_size));
        let packet = (headers + segment).saturating_sub(u32::from(frame.network_at));
        if is_partial && !starts || !is_partial && header.flags & CHECKED == 0 {
            return Err(Drop::Offload);
        }
        if headers == 0 || segment == 0 || packet > u32::from(u16::MAX) {
            return Err(Drop::Offload);
        }
        let payload = length.checked_sub(headers).ok_or(Drop::Offload)?;
        let segments = payload.div_ceil(segment);
        match segments {
            0 | 1 => Ok(None),
            2..=SEGMENTS_MAX => Ok(Some(Cut { headers, payload, segment, segments })),
            _ => Err(Drop::Offload),
        }
    }
}

fn check_checksum(frame: &Frame, header: &OffloadHeader, length: u32) -> Result<(), Drop> {
    if header.flags & NEEDS_CHECKSUM == 0 {
        return Ok(());
    }
    let position = u32::from(header.checksum_start) + u32::from(header.checksum_offset);
    let is_icmpv6 = matches!(frame.transport, Transport::Icmpv6 { .. })
        && (header.checksum_start, header.checksum_offset) == (frame.transport_at, ICMPV6_CHECKSUM);
    // Not into the headers that were checked; the place of ICMPv6's own checksum lies between them.
    if position + 2 > length || position < u32::from(frame.decided) && !is_icmpv6 {
        return Err(Drop::Offload);
    }
    Ok(())
}

#[cfg(test)]
#[path = "wire/tests.rs"]
mod tests;
