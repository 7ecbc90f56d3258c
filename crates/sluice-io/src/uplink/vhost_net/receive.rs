//! Gives frames to the receive queues of guests.
//!
//! A frame fills as many buffers as it needs, if the driver accepts that (VIRTIO 1.3, 5.1.6.4). If the guest has too few, they stay in its ring,
//! the frame waits in the NIC's receive queue, and the guest is asked to tell when it has added some.

use libc::iovec;
use sluice_net::header::HEADER_LEN;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

use crate::uplink::nic::Incoming;
use crate::vhost_user::blk::has;
use crate::virtio::VirtQueue;
use crate::virtio::chain::Chain;
use crate::virtio::segment::{Segment, total};

/// Most descriptors that are followed for one frame. 64 KiB in buffers of 128 bytes need 513.
const DESCRIPTORS_MAX: u32 = 2048;

/// Result of giving a frame to a queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// These chains hold it, with the number of bytes in each.
    Done(Vec<(u16, u32)>),
    /// The guest has too few buffers, of this many descriptors. None was taken.
    Starved(u32),
    /// The only buffer that may hold it is too short, or all buffers of the ring together are. None was taken.
    TooShort,
    /// The ring or a chain is invalid.
    Broken(&'static str),
}

/// The buffers that were taken for a frame.
#[derive(Default)]
struct Buffers {
    /// Their chains, with their lengths in bytes.
    list: Vec<(u16, u64)>,
    segments: Vec<Segment>,
    /// Length of all of them, in bytes.
    room: u64,
    /// Descriptors that were followed.
    descriptors: u32,
}

impl Buffers {
    /// Takes the next buffer from the ring. An error is why there is none.
    fn take(&mut self, queue: &mut VirtQueue, chain: &mut Chain, merges: bool) -> Result<(), Filled> {
        if !self.list.is_empty() && !merges {
            return Err(Filled::TooShort);
        }
        match queue.has_next() {
            Ok(true) => {}
            // There will never be more than all.
            Ok(false) if self.list.len() == usize::from(queue.size()) => return Err(Filled::TooShort),
            Ok(false) => return Err(Filled::Starved(self.descriptors)),
            Err(_) => return Err(Filled::Broken("its available ring jumped")),
        }
        let taken = match queue.take() {
            Ok(Some(taken)) => taken,
            Ok(None) => return Err(Filled::Starved(self.descriptors)),
            Err(_) => return Err(Filled::Broken("its available ring cannot be read")),
        };
        let memory = std::rc::Rc::clone(&queue.memory);
        if chain.follow(&memory, queue.descriptors(), taken.head).is_err() {
            return Err(Filled::Broken("a receive buffer has invalid descriptors"));
        }
        // A frame that waits is tried again at each kick.
        self.descriptors += u32::from(chain.descriptors());
        if self.descriptors > DESCRIPTORS_MAX {
            return Err(Filled::Broken("its buffers are so short that a frame needs too many of them"));
        }
        let length = total(&chain.writable);
        if length == 0 {
            return Err(Filled::Broken("a receive buffer has no room"));
        }
        self.segments.extend_from_slice(&chain.writable);
        self.list.push((taken.head, length));
        self.room += length;
        Ok(())
    }
}

/// Writes a frame into buffers of a guest.
pub(crate) fn fill(
    queue: &mut VirtQueue,
    chain: &mut Chain,
    features: u64,
    header_len: usize,
    incoming: &Incoming,
) -> Filled {
    let needed = header_len as u64 + incoming.bytes.len() as u64;
    let merges = has(features, VIRTIO_NET_F_MRG_RXBUF);
    let mut taken = Buffers::default();
    while taken.room < needed {
        if let Err(failed) = taken.take(queue, chain, merges) {
            taken.list.iter().rev().for_each(|(head, _)| queue.put_back(*head));
            return failed;
        }
    }
    let Buffers { list: buffers, segments, .. } = taken;
    let mut header = incoming.header;
    header.buffers = buffers.len() as u16;
    let header: [u8; HEADER_LEN] = header.to_bytes();
    write(&segments, &[&header[..header_len], &incoming.bytes]);
    let mut left = needed;
    let filled = buffers.into_iter().map(|(head, length)| {
        let used = length.min(left);
        left -= used;
        (head, used as u32)
    });
    Filled::Done(filled.collect())
}

/// Copies bytes to guest memory.
fn write(segments: &[Segment], parts: &[&[u8]]) {
    let mut segments = segments.iter();
    let mut room = Segment(iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
    for part in parts {
        let mut part = *part;
        while !part.is_empty() {
            if room.len() == 0 {
                let Some(next) = segments.next() else { return };
                room = *next;
            }
            let count = room.len().min(part.len());
            // SAFETY: the segment lies in guest memory, which the queue's memory table keeps mapped, and never overlaps our own. The
            // guest may write there at the same time, which only changes its own data: nothing of ours reads it.
            unsafe { room.place().copy_from_nonoverlapping(part.as_ptr(), count) };
            room = room.behind(count);
            part = &part[count..];
        }
    }
}
