//! Cutting an offloaded frame into shorter ones.
//!
//! A frame of 64 KiB occupies a link of 100 Mb/s for 5.2 ms, during which nobody else sends. Where that is longer than the latency that a
//! VM was promised, the frame is cut here before it is scheduled. It is cut into groups of whole segments, so that a faster link keeps most
//! of the offload. A group of two or more segments is again an offloaded frame, and a single segment is a plain one.
//!
//! The payload is not touched: checksums of TCP and UDP stay unfinished ([`NEEDS_CHECKSUM`]), each with the sum over its own pseudo
//! header, and the receiver of the frame finishes them (TAP, AF_PACKET, or [`checksum::finish`](crate::checksum::finish)). The payload
//! may be in guest memory, which is not read twice.
//!
//! Example: `gso_size` 1460, payload 64,240 (44 segments), `group_max` 8,760: eight groups, of 6 segments (7 times) and 2.
//!
//! In each group: IPv4 has its own length, its identification moved on by the segments before, and a new header checksum; IPv6 its
//! length; TCP its sequence number, FIN and PSH only in the last and CWR only in the first; UDP its length.

use core::ops::Range;

use crate::checksum::Sum;
use crate::frame::PREFIX_LEN;
use crate::header::{GSO_ECN, GSO_NONE, NEEDS_CHECKSUM};
use crate::wire::{Cut, TCP_CHECKSUM, UDP_CHECKSUM};
use crate::{Drop, Frame, Network, OffloadHeader, Transport};

const TCP_FIN: u8 = 0x01;
const TCP_PUSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const TCP_PROTOCOL: u16 = 6;
const UDP_PROTOCOL: u16 = 17;

/// A frame that was cut out of another one: offload header, headers of its own, and a part of the payload.
#[derive(Clone, Debug)]
pub struct Segment {
    pub offload: OffloadHeader,
    headers: [u8; PREFIX_LEN],
    headers_len: usize,
    /// Bytes of the original frame that follow the headers.
    pub payload: Range<u32>,
}

impl Segment {
    /// The bytes in front of the payload.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        &self.headers[..self.headers_len]
    }

    /// Length of the frame in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.headers_len as u32 + self.payload.end - self.payload.start
    }
}

/// The frames into which a frame is cut, in order.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    frame: &'a Frame,
    header: OffloadHeader,
    prefix: &'a [u8],
    length: u32,
    /// `None`: the frame as it is.
    cut: Option<Cut>,
    /// Payload of each group.
    group: u32,
    /// Where the next group begins in the payload. `None` after the last.
    next: Option<u32>,
}

/// Cuts a frame of `length` bytes, with the first bytes `prefix`, into frames with at most `group_max` bytes of payload each. Segments are
/// never cut, so one that is longer is a frame of its own; 0 gives single segments. A frame that is not offloaded, or that fits,
/// comes out as it is.
///
/// # Errors
/// [`Drop::Offload`] as [`wire()`](crate::wire()).
pub fn segments<'a>(
    frame: &'a Frame,
    header: &OffloadHeader,
    prefix: &'a [u8],
    length: u32,
    group_max: u32,
) -> Result<Segments<'a>, Drop> {
    let prefix = &prefix[..prefix.len().min(PREFIX_LEN).min(length as usize)];
    let cut = Cut::new(frame, header, length)?;
    let cut = cut.filter(|cut| cut.payload > group_max && cut.headers as usize <= prefix.len());
    let group = cut.map_or(0, |cut| (group_max / cut.segment).max(1) * cut.segment);
    Ok(Segments { frame, header: *header, prefix, length, cut, group, next: Some(0) })
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let from = self.next.take()?;
        let Some(cut) = self.cut else {
            return Some(self.whole());
        };
        let to = cut.payload.min(from.saturating_add(self.group));
        self.next = Some(to).filter(|&to| to < cut.payload);
        Some(self.part(cut, from, to))
    }
}

impl Segments<'_> {
    fn whole(&self) -> Segment {
        let mut headers = [0; PREFIX_LEN];
        headers[..self.prefix.len()].copy_from_slice(self.prefix);
        let payload = self.prefix.len() as u32..self.length;
        Segment { offload: self.header.forwarded(self.frame), headers, headers_len: self.prefix.len(), payload }
    }

    /// The group with the payload from `from` to `to`.
    fn part(&self, cut: Cut, from: u32, to: u32) -> Segment {
        let headers_len = cut.headers as usize;
        let mut headers = [0; PREFIX_LEN];
        headers[..headers_len].copy_from_slice(&self.prefix[..headers_len]);
        let part = Part { from, bytes: to - from, segment: from / cut.segment, is_last: to == cut.payload };
        let is_udp = matches!(self.frame.transport, Transport::Udp { .. });
        let (network, transport) = headers[..headers_len].split_at_mut(usize::from(self.frame.transport_at));
        let network = &mut network[usize::from(self.frame.network_at)..];
        let transport_len = transport.len() as u32 + part.bytes;
        part.set_network(network, self.frame.network, transport_len);
        let pseudo = pseudo_header(self.frame.network, if is_udp { UDP_PROTOCOL } else { TCP_PROTOCOL }, transport_len);
        let place = if is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        if is_udp {
            put(transport, 4, transport_len as u16);
        } else {
            part.set_tcp(transport);
        }
        put(transport, usize::from(place), pseudo);
        let offload = self.offload(cut, &part, place);
        Segment { offload, headers, headers_len, payload: cut.headers + from..cut.headers + to }
    }

    fn offload(&self, cut: Cut, part: &Part, place: u16) -> OffloadHeader {
        let is_cut = part.bytes > cut.segment;
        let without_ecn = if part.from == 0 { 0 } else { GSO_ECN };
        OffloadHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: if is_cut { self.header.gso_type & !without_ecn } else { GSO_NONE },
            gso_size: if is_cut { self.header.gso_size } else { 0 },
            header_len: if is_cut { self.frame.headers } else { 0 },
            checksum_start: self.frame.transport_at,
            checksum_offset: place,
            buffers: 0,
        }
    }
}

/// A group: where it begins in the payload, how long it is, and the number of its first segment.
struct Part {
    from: u32,
    bytes: u32,
    segment: u32,
    is_last: bool,
}

impl Part {
    fn set_network(&self, header: &mut [u8], network: Network, transport_len: u32) {
        let length = header.len() as u32 + transport_len;
        if let Network::Ipv4 { .. } = network {
            put(header, 2, length as u16);
            let identification = u16::from_be_bytes([header[4], header[5]]);
            put(header, 4, identification.wrapping_add(self.segment as u16));
            put(header, 10, 0);
            let checksum = Sum::default().with(header).checksum();
            put(header, 10, checksum);
        } else {
            // Extension headers count as payload.
            put(header, 4, (length - 40) as u16);
        }
    }

    fn set_tcp(&self, header: &mut [u8]) {
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        header[4..8].copy_from_slice(&sequence.wrapping_add(self.from).to_be_bytes());
        if self.from > 0 {
            header[13] &= !TCP_CWR;
        }
        if !self.is_last {
            header[13] &= !(TCP_FIN | TCP_PUSH);
        }
    }
}

/// The sum over the pseudo header (RFC 9293, 3.1; RFC 8200, 8.1), as an unfinished checksum has it.
fn pseudo_header(network: Network, protocol: u16, length: u32) -> u16 {
    let sum = match network {
        Network::Ipv4 { source, destination } => Sum::default().with(&source.octets()).with(&destination.octets()),
        Network::Ipv6 { source, destination } => Sum::default().with(&source.octets()).with(&destination.octets()),
        Network::Arp(_) | Network::Other | Network::Malformed => Sum::default(),
    };
    sum.with(&protocol.to_be_bytes()).with(&length.to_be_bytes()).folded()
}

fn put(header: &mut [u8], at: usize, word: u16) {
    header[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
#[path = "segment/tests.rs"]
mod tests;
