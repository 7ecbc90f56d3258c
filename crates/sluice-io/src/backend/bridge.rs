//! Requests of guests whose blocks are smaller than those of the disk.
//!
//! Direct I/O needs whole blocks of the disk. A read that is not aligned to them reads the blocks around it. A write reads
//! the blocks that it covers in part, and writes all of its blocks back. Zeroes are written in the same way into the blocks
//! that they cover in part. A discard leaves out such blocks, which it may.
//!
//! ```text
//!     disk    |---- block 0 ----|---- block 1 ----|---- block 2 ----|
//!     write               [=================]
//!     steps   read 0, read 1, write 0 and 1
//! ```
//!
//! Each step arrives at the gate as what it is, one after the other: a write of 512 bytes to a disk with blocks of 4 KiB
//! costs a read and a write of 4 KiB, and no step waits for another one in a slot of the device. The request claims its
//! blocks before its first step ([`Claims`]), because writes to one block must not overlap. A request whose blocks are claimed
//! waits before the gate.
//!
//! The steps of a transfer have their data in one buffer, which it keeps until it ends. A request of a guest can be 4 GiB long, so a transfer
//! goes by chunks of at most [`CHUNK_MAX`], which have their steps one after the other. What is read for a guest is copied to it after
//! each chunk.

use std::collections::VecDeque;
use std::ops::Range;

use sluice_sched::Kind;

use crate::backend::buffer::Buffer;
use crate::backend::request::{Body, IoRequest, Place};
use crate::backend::volume::Volume;
use crate::slab::IoId;
use crate::source::claims::Claim;
use crate::store::{Blocks, StoreInfo};
use crate::virtio::GuestData;

/// Maximum length of a chunk, in bytes: the device thread copies it at once.
const CHUNK_MAX: u64 = 1 << 20;

/// A part of a bridged request, in whole blocks of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    kind: Kind,
    /// Offset from the start of the volume.
    offset: u64,
    length: u32,
    /// Position of its data in the buffer.
    at: u32,
}

/// The request as the client sent it, or a chunk of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    kind: Kind,
    offset: u64,
    length: u32,
    forced: bool,
}

/// A request that takes several steps, or has claimed its blocks.
pub(crate) struct Bridged {
    asked: Asked,
    /// The client's own operation. The body of the request is that of the present step meanwhile.
    body: Body,
    block: u64,
    /// The part of it to which the steps belong.
    chunk: Asked,
    chunk_max: u64,
    steps: VecDeque<Step>,
    now: Option<Step>,
    /// Length of the buffer, which has room for each chunk; 0 if all steps take the client's own data, or none.
    buffer_len: u32,
    /// The data of a client that came in a buffer.
    data: Option<Buffer>,
    /// Held until this is dropped, which is when no operation of the request is in flight.
    claim: Option<Claim>,
}

/// A request that waits for its blocks.
pub(crate) struct Parked {
    pub(crate) io: IoId,
    pub(crate) blocks: Range<u64>,
}

/// Whether a request may go to the gate.
pub(crate) enum Crossing {
    Free,
    /// It waits for these blocks.
    Blocked(Range<u64>),
}

impl Asked {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Returns the blocks that it touches.
    fn blocks(&self, block: u64) -> Range<u64> {
        self.offset / block * block..self.end().next_multiple_of(block)
    }

    /// Whether it covers no block in part.
    fn is_whole(&self, block: u64) -> bool {
        self.offset.is_multiple_of(block) && self.end().is_multiple_of(block)
    }

    /// Returns the whole blocks that it covers. The end may be before the start.
    fn covered(&self, block: u64) -> Range<u64> {
        self.offset.next_multiple_of(block)..self.end() / block * block
    }

    /// Returns the first blocks and the last ones that it covers in part.
    fn edges(&self, block: u64) -> Vec<u64> {
        let Range { start, end } = self.blocks(block);
        let mut edges = Vec::new();
        if start < self.offset {
            edges.push(start);
        }
        if self.end() < end && edges.first() != Some(&(end - block)) {
            edges.push(end - block);
        }
        edges
    }

    /// Returns the chunk from byte `from` of the volume. It ends where a block ends, or the request.
    fn chunk(&self, from: u64, chunk_max: u64, block: u64) -> Asked {
        let end = match self.kind {
            Kind::Read | Kind::Write if !self.is_whole(block) => self.end().min((from + chunk_max) / block * block),
            _ => self.end(),
        };
        Asked { offset: from, length: (end - from) as u32, ..*self }
    }

    fn steps(&self, block: u64) -> VecDeque<Step> {
        let Range { start, end } = self.blocks(block);
        let step =
            |kind, from: u64, to: u64, at: u64| Step { kind, offset: from, length: (to - from) as u32, at: at as u32 };
        let edges = self.edges(block);
        let mut steps = VecDeque::new();
        match self.kind {
            Kind::Read | Kind::Write => {
                if self.kind == Kind::Write {
                    steps.extend(edges.iter().map(|edge| step(Kind::Read, *edge, edge + block, edge - start)));
                }
                steps.push_back(step(self.kind, start, end, 0));
            }
            kind => {
                let covered = self.covered(block);
                if !covered.is_empty() {
                    steps.push_back(step(kind, covered.start, covered.end, 0));
                }
                let kinds: &[Kind] = if kind == Kind::WriteZeroes { &[Kind::Read, Kind::Write] } else { &[] };
                for kind in kinds {
                    let places = edges.iter().zip((0..).step_by(block as usize));
                    steps.extend(places.map(|(edge, at)| step(*kind, *edge, edge + block, at)));
                }
            }
        }
        steps
    }

    /// Returns the length of the buffer for its steps.
    fn buffer_len(&self, block: u64) -> u32 {
        let Range { start, end } = self.blocks(block);
        match self.kind {
            Kind::Read | Kind::Write => (end - start) as u32,
            Kind::WriteZeroes => self.edges(block).len() as u32 * block as u32,
            Kind::Flush | Kind::Discard => 0,
        }
    }
}

impl Bridged {
    /// `most`: maximum length of a chunk, if there may be several.
    fn new(asked: Asked, block: u64, most: Option<u64>, claim: Option<Claim>) -> Bridged {
        let chunk_max = most.map_or(u64::MAX / 2, |most| (most.min(CHUNK_MAX) / block).max(1) * block);
        let chunk = asked.chunk(asked.offset, chunk_max, block);
        let buffer_len = if asked.is_whole(block) { 0 } else { chunk.buffer_len(block) };
        let steps = chunk.steps(block);
        Bridged {
            asked,
            body: Body::Answered,
            block,
            chunk,
            chunk_max,
            steps,
            now: None,
            buffer_len,
            data: None,
            claim,
        }
    }

    fn next_step(&mut self) -> Option<Step> {
        if self.steps.is_empty() && self.chunk.end() < self.asked.end() {
            self.chunk = self.asked.chunk(self.chunk.end(), self.chunk_max, self.block);
            self.steps = self.chunk.steps(self.block);
        }
        self.now = self.steps.pop_front();
        self.now
    }

    /// Returns the body of a step.
    fn body_of(&self, kind: Kind) -> Body {
        match (kind, &self.body) {
            (Kind::Read, _) => Body::Read,
            (Kind::Write, _) => Body::Write,
            (_, Body::Zero { no_hole, fast }) => Body::Zero { no_hole: *no_hole, fast: *fast },
            (_, _) => Body::Discard,
        }
    }
}

impl Volume {
    /// Begins a request that has not been at the gate, if its blocks are free. `parked`: requests of the volume that came before it; `most`:
    /// maximum length of a transfer at the gate.
    pub(crate) fn cross(&self, io: &mut IoRequest, store: &StoreInfo, parked: &[Parked], most: u64) -> Crossing {
        let (Some(Blocks { size, claims }), Some(kind)) = (&store.bridged, io.body.kind()) else {
            return Crossing::Free;
        };
        let (block, changes) = (u64::from(*size), kind != Kind::Read);
        let asked = Asked { kind, offset: io.offset, length: io.length, forced: io.forced };
        let is_impossible = asked.offset.saturating_add(asked.length.into()) > self.info.size_bytes;
        let is_direct = if changes { self.info.read_only } else { asked.is_whole(block) };
        if io.bridge.is_some() || kind == Kind::Flush || is_impossible || is_direct || io.errno != 0 || io.length == 0 {
            return Crossing::Free;
        }
        if io.body.is_fast() && asked.covered(block).is_empty() {
            io.refuse(libc::EOPNOTSUPP);
            return Crossing::Free;
        }
        let mut claim = None;
        if changes {
            let blocks = asked.blocks(block);
            let overlaps = |other: &Parked| other.blocks.start < blocks.end && blocks.start < other.blocks.end;
            claim = match parked.iter().any(overlaps) {
                true => None,
                false => claims.claim(&blocks),
            };
            if claim.is_none() {
                return Crossing::Blocked(blocks);
            }
        }
        // What is read for a client without memory of its own is one chunk, as its reply is.
        let most = (changes || io.data.guest.is_some()).then_some(most);
        let mut bridge = Bridged::new(asked, block, most, claim);
        bridge.data = if bridge.buffer_len > 0 { io.data.take_buffer() } else { None };
        bridge.body = std::mem::replace(&mut io.body, Body::Answered);
        io.bridge = Some(Box::new(bridge));
        if !io.next_step() {
            // A discard of less than a block: it has no effect, and stays answered.
            io.length = 0;
        }
        Crossing::Free
    }
}

impl IoRequest {
    /// Sets the next step. Returns whether there is one.
    fn next_step(&mut self) -> bool {
        let Some(bridge) = &mut self.bridge else { return false };
        let Some(step) = bridge.next_step() else { return false };
        self.body = bridge.body_of(step.kind);
        (self.offset, self.length) = (step.offset, step.length);
        (self.done, self.part) = (0, 0);
        self.forced = bridge.asked.forced && step.kind != Kind::Read;
        true
    }

    /// Sets the step after one that has succeeded. Returns whether there is one.
    pub(crate) fn next_step_if_done(&mut self) -> bool {
        if self.errno != 0 {
            return false;
        }
        if self.bridge.as_ref().is_some_and(|bridge| bridge.steps.is_empty()) {
            self.deliver_chunk();
        }
        self.next_step()
    }

    /// Puts what was read of a chunk into the memory of its guest, or to the start of the buffer, from which the client gets it.
    fn deliver_chunk(&mut self) {
        let (Some(bridge), Place::Buffer(buffer)) = (&self.bridge, &mut self.data.place) else { return };
        let Asked { kind: Kind::Read, offset, length, .. } = bridge.chunk else { return };
        let lead = (offset % bridge.block) as usize;
        let data = lead..lead + length as usize;
        match &self.data.guest {
            Some(_) if self.abandoned => {}
            Some(guest) => guest.fill((offset - bridge.asked.offset) as u32, &buffer.bytes(data.end)[data]),
            None => buffer.bytes_mut(data.end).copy_within(data, 0),
        }
    }

    /// Ends the steps: the request is again what the client has asked for. Returns the client's buffer, which is no longer used, and
    /// whether blocks were claimed.
    pub(crate) fn end_steps(&mut self) -> (Option<Buffer>, bool) {
        let Some(mut bridge) = self.bridge.take() else { return (None, false) };
        if self.errno == 0 {
            let Asked { offset, length, forced, .. } = bridge.asked;
            self.ask(bridge.body, offset, length, forced);
        }
        (bridge.data.take(), bridge.claim.is_some())
    }

    /// Returns the length of the buffer of a bridged request.
    pub(crate) fn bridge_len(&self) -> Option<usize> {
        let bridge = self.bridge.as_ref()?;
        let uses_buffer = bridge.now.is_some_and(|step| matches!(step.kind, Kind::Read | Kind::Write));
        (bridge.buffer_len > 0 && uses_buffer).then_some(bridge.buffer_len as usize)
    }

    /// Returns the position of the present step's data in the buffer.
    pub(crate) fn step_at(&self) -> usize {
        self.bridge.as_ref().and_then(|bridge| bridge.now).map_or(0, |step| step.at as usize)
    }

    /// Puts the client's data into the buffer, for `length` bytes of the present step after the first `skip`.
    pub(crate) fn fill_step(&mut self, skip: u32, length: u32) {
        let (Some(bridge), Place::Buffer(buffer)) = (&self.bridge, &mut self.data.place) else { return };
        let Some(step) = bridge.now.filter(|step| step.kind == Kind::Write) else { return };
        let from = (step.offset + u64::from(skip)).max(bridge.asked.offset);
        let to = (step.offset + u64::from(skip + length)).min(bridge.asked.end());
        if from >= to {
            return;
        }
        let place = (from - step.offset) as usize + step.at as usize;
        let room = &mut buffer.bytes_mut(bridge.buffer_len as usize)[place..place + (to - from) as usize];
        bridge.asked.put(from, room, self.data.guest.as_ref(), bridge.data.as_ref());
    }
}

impl Asked {
    /// Puts the data of the request from byte `from` of the volume into `room`.
    fn put(&self, from: u64, room: &mut [u8], guest: Option<&GuestData>, data: Option<&Buffer>) {
        let skip = (from - self.offset) as usize;
        match (self.kind, data, guest) {
            (Kind::Write, Some(data), _) => {
                room.copy_from_slice(&data.bytes(self.length as usize)[skip..][..room.len()])
            }
            (Kind::Write, None, Some(guest)) => guest.copy_to(skip as u32, room),
            _ => room.fill(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    /// A guest can describe 4 GiB with little memory. Rounded to blocks that was 0, or one block.
    #[test]
    fn the_steps_of_the_longest_request_fit_into_a_small_buffer() {
        for kind in [Kind::Read, Kind::Write, Kind::WriteZeroes, Kind::Discard] {
            for (offset, length) in
                [(3584, u32::MAX - 511), (512, u32::MAX - 511), (3584, 1024), (0, 512), (7 << 40, 5 << 20)]
            {
                let asked = Asked { kind, offset, length, forced: false };
                let mut bridged = Bridged::new(asked, BLOCK, Some(32 << 20), None);
                assert!(u64::from(bridged.buffer_len) <= CHUNK_MAX + 2 * BLOCK, "{asked:?}");
                let (mut at, mut last) = (asked.blocks(BLOCK).start, bridged.chunk);
                while let Some(step) = bridged.next_step() {
                    let transfers = matches!(step.kind, Kind::Read | Kind::Write);
                    let end = u64::from(step.at) + u64::from(step.length);
                    let fits = bridged.buffer_len == 0 || end <= bridged.buffer_len.into();
                    assert!(!transfers || fits, "{asked:?} {step:?}");
                    if step.kind == kind && transfers {
                        assert_eq!(step.offset, at, "{asked:?}: no gap");
                        at += u64::from(step.length);
                    }
                    last = bridged.chunk;
                }
                assert_eq!(last.end(), asked.end(), "{asked:?}");
                assert!(!matches!(kind, Kind::Read | Kind::Write) || at == asked.blocks(BLOCK).end, "{asked:?}");
            }
        }
    }
}
