//! A frame on its way from a NIC to the uplink.

use std::rc::Rc;
use std::time::Duration;

use libc::iovec;
use sluice_net::PREFIX_LEN;
use sluice_net::header::OffloadHeader;
use sluice_net::segment;
use sluice_net::tag::{self, TAGGED_LEN};
use sluice_sched::Instant;

use crate::uplink::ids::NicId;
use crate::uplink::receive_buffers::Own;
use crate::virtio::data::MemoryTable;
use crate::virtio::queue_set::QueueId;
use crate::virtio::segment::Segment;

/// The first bytes of a frame, copied once: everything is decided on this copy, and it is what is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix {
    bytes: [u8; TAGGED_LEN],
    length: u8,
}

impl Prefix {
    /// Copies up to [`TAGGED_LEN`] bytes.
    pub(crate) fn new(parts: &[&[u8]]) -> Self {
        let mut prefix = Prefix { bytes: [0; TAGGED_LEN], length: 0 };
        for part in parts {
            let from = usize::from(prefix.length);
            let part = &part[..part.len().min(TAGGED_LEN - from)];
            prefix.bytes[from..from + part.len()].copy_from_slice(part);
            prefix.length += part.len() as u8;
        }
        prefix
    }

    /// Makes one of up to [`PREFIX_LEN`] bytes, which `read` copies into the buffer for them. It returns their number.
    pub(crate) fn read(read: impl FnOnce(&mut [u8]) -> usize) -> Self {
        let mut prefix = Prefix { bytes: [0; TAGGED_LEN], length: 0 };
        prefix.length = read(&mut prefix.bytes[..PREFIX_LEN]) as u8;
        prefix
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The bytes of a frame behind its first ones.
#[derive(Clone)]
pub(crate) enum Rest {
    None,
    /// The kernel reads them from the guest's memory when the frame is sent.
    Guest(Vec<Segment>, Rc<MemoryTable>),
    /// A part of bytes in memory of the daemon.
    Own(Own, std::ops::Range<usize>),
}

/// The bytes of a frame.
#[derive(Clone)]
pub(crate) struct Data {
    pub(crate) prefix: Prefix,
    pub(crate) rest: Rest,
}

impl Data {
    /// Copies a frame.
    pub(crate) fn own(bytes: &[u8]) -> Self {
        let first = bytes.len().min(PREFIX_LEN);
        let copied = || Own::Copied(Rc::from(&bytes[first..]));
        let rest = if bytes.len() > first { Rest::Own(copied(), 0..bytes.len() - first) } else { Rest::None };
        Data { prefix: Prefix::new(&[&bytes[..first]]), rest }
    }

    /// Takes a frame of at least [`PREFIX_LEN`] bytes that stays where it was read.
    pub(crate) fn in_buffer(buffer: Own, frame: std::ops::Range<usize>) -> Self {
        let rest = frame.start + PREFIX_LEN;
        Data { prefix: Prefix::new(&[&buffer[frame.start..rest]]), rest: Rest::Own(buffer, rest..frame.end) }
    }

    /// Appends where the bytes lie, after an empty entry for the header. They stay there as long as this exists and is not changed.
    pub(crate) fn list(&self, parts: &mut Vec<iovec>) {
        let own = |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        parts.clear();
        parts.push(own(&[]));
        parts.push(own(self.prefix.bytes()));
        match &self.rest {
            Rest::None => {}
            Rest::Guest(segments, _) => parts.extend(segments.iter().map(|segment| segment.0)),
            Rest::Own(bytes, range) => parts.push(own(&bytes[range.clone()])),
        }
    }

    /// Copies all bytes. Those of a guest may have changed since it sent the frame, except the first.
    pub(crate) fn gather(&self) -> Vec<u8> {
        let mut bytes = self.prefix.bytes().to_vec();
        match &self.rest {
            Rest::None => {}
            Rest::Own(own, range) => bytes.extend_from_slice(&own[range.clone()]),
            Rest::Guest(segments, _) => {
                for segment in segments {
                    let from = bytes.len();
                    bytes.resize(from + segment.len(), 0);
                    // SAFETY: the segment lies in guest memory that the memory table keeps mapped, and the buffer is our own.
                    unsafe { crate::vhost_user::shared::copy_to(segment.place(), &mut bytes[from..]) };
                }
            }
        }
        bytes
    }

    /// Returns the bytes of a frame that is cut out of this one. No byte of the guest is read for it.
    pub(crate) fn part(&self, part: &segment::Segment) -> Self {
        let first = self.prefix.bytes();
        let (start, end) = (part.payload.start as usize, part.payload.end as usize);
        let copied = &first[start.min(first.len())..end.min(first.len())];
        let prefix = Prefix::new(&[part.headers(), copied]);
        let (from, to) = (start.saturating_sub(first.len()), end.saturating_sub(first.len()));
        let rest = match &self.rest {
            _ if from == to => Rest::None,
            Rest::None => Rest::None,
            Rest::Own(bytes, range) => Rest::Own(bytes.clone(), range.start + from..range.start + to),
            Rest::Guest(segments, memory) => Rest::Guest(between(segments, from, to), Rc::clone(memory)),
        };
        Data { prefix, rest }
    }

    /// Puts the tag of a VLAN on the frame.
    pub(crate) fn put_tag(&mut self, vlan: u16) {
        let mut tagged = [0; TAGGED_LEN];
        let bytes = tag::put_on(self.prefix.bytes(), vlan, &mut tagged);
        self.prefix = Prefix::new(&[bytes]);
    }
}

/// Returns the bytes `from` to `to` of some segments.
fn between(segments: &[Segment], from: usize, to: usize) -> Vec<Segment> {
    let mut skip = from;
    let mut left = to - from;
    let mut found = Vec::new();
    for segment in segments {
        if skip >= segment.len() {
            skip -= segment.len();
            continue;
        }
        let rest = segment.behind(skip);
        skip = 0;
        let length = rest.len().min(left);
        if length == 0 {
            break;
        }
        found.push(Segment::new(rest.place(), length));
        left -= length;
    }
    found
}

/// The descriptor chain that a frame came in. It is returned to the guest when all of its frames have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) queue: QueueId,
    /// Number of the chain among all that were taken from its queue.
    pub(crate) number: u64,
}

/// A frame, or a large segment that the receiver or the interface divides.
pub(crate) struct Packet {
    pub(crate) nic: NicId,
    pub(crate) header: OffloadHeader,
    pub(crate) data: Data,
    /// Length in bytes, without the header.
    pub(crate) length: u32,
    /// Bytes on the wire, without the 24 that surround the first frame.
    pub(crate) charge: u32,
    /// `None` if it came from a TAP.
    pub(crate) origin: Option<Origin>,
    pub(crate) arrived: Instant,
    /// Position among all frames of the uplink.
    pub(crate) number: u64,
    /// Time at the gate.
    pub(crate) waited: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_own_headers_and_the_bytes_of_its_payload() {
        let whole: Vec<u8> = (0..=255).cycle().take(4000).collect();
        let data = Data::own(&whole);
        assert_eq!(data.gather(), whole);
        let mut parts = Vec::new();
        data.list(&mut parts);
        assert_eq!(parts.iter().map(|part| part.iov_len).sum::<usize>(), 4000);
        let mut own = whole.clone();
        let segments =
            [3000, 700, 300].map(|len: usize| Segment::new(own.split_off(own.len() - len).leak().as_mut_ptr(), len));
        let _ = own;
        let mut reversed: Vec<Segment> = segments.to_vec();
        reversed.reverse();
        let bytes = |list: &[Segment]| {
            let mut all = Vec::new();
            for segment in list {
                let from = all.len();
                all.resize(from + segment.len(), 0);
                // SAFETY: the memory was leaked above.
                unsafe { crate::vhost_user::shared::copy_to(segment.place(), &mut all[from..]) };
            }
            all
        };
        let all = bytes(&reversed);
        for (from, to) in [(0, 4000), (0, 300), (299, 301), (300, 1000), (999, 4000), (5, 5), (3999, 4000)] {
            assert_eq!(bytes(&between(&reversed, from, to)), all[from..to], "{from} to {to}");
        }
    }
}
