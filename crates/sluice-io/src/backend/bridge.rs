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

use std::collections::VecDeque;
use std::ops::Range;

use sluice_sched::Kind;

use crate::backend::buffer::Buffer;
use crate::backend::request::IoRequest;
use crate::backend::volume::{Volume, VolumeStore};
use crate::slab::IoId;
use crate::source::claims::{Claim, Claims, Waiting};
use crate::virtio::GuestData;

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

/// The request as the client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    kind: Kind,
    offset: u64,
    length: u32,
    forced: bool,
}

/// The steps of a request.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    steps: VecDeque<Step>,
    /// Length of the buffer; 0 if all steps take the client's own data, or none.
    buffer_len: u32,
}

/// A request that takes several steps, or has claimed its blocks.
pub(crate) struct Bridged {
    asked: Asked,
    steps: VecDeque<Step>,
    now: Option<Step>,
    buffer_len: u32,
    /// The data of a client that came in a buffer.
    data: Option<Buffer>,
    /// Held until this is dropped, which is when no operation of the request is in flight.
    _claim: Option<Claim>,
}

/// A request that waits for its blocks.
pub(crate) struct Parked {
    pub(crate) io: IoId,
    blocks: Range<u64>,
    _waiting: Waiting,
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

    fn plan(&self, block: u64) -> Plan {
        let Range { start, end } = self.blocks(block);
        let step =
            |kind, from: u64, to: u64, at: u64| Step { kind, offset: from, length: (to - from) as u32, at: at as u32 };
        let whole = (self.offset.next_multiple_of(block), self.end() / block * block);
        // The blocks that it covers in part.
        let mut edges = Vec::new();
        if start < self.offset {
            edges.push(start);
        }
        if self.end() < end && edges.first() != Some(&(end - block)) {
            edges.push(end - block);
        }
        let mut steps = VecDeque::new();
        let mut buffer_len = 0;
        match self.kind {
            Kind::Read | Kind::Write => {
                buffer_len = if edges.is_empty() { 0 } else { (end - start) as u32 };
                if self.kind == Kind::Write {
                    steps.extend(edges.iter().map(|edge| step(Kind::Read, *edge, edge + block, edge - start)));
                }
                steps.push_back(step(self.kind, start, end, 0));
            }
            kind => {
                if whole.0 < whole.1 {
                    steps.push_back(step(kind, whole.0, whole.1, 0));
                }
                if kind == Kind::WriteZeroes {
                    buffer_len = edges.len() as u32 * block as u32;
                    for kind in [Kind::Read, Kind::Write] {
                        let places = edges.iter().zip((0..).step_by(block as usize));
                        steps.extend(places.map(|(edge, at)| step(kind, *edge, edge + block, at)));
                    }
                }
            }
        }
        Plan { steps, buffer_len }
    }
}

impl Volume {
    /// Returns the block size of the disk, if it is larger than that of the guest.
    pub(crate) fn bridged_block(&self) -> Option<u32> {
        let VolumeStore::File { source, .. } = &self.store else { return None };
        let block = source.alignment().offset;
        (block > self.info.block_minimum).then_some(block)
    }

    pub(crate) fn claims(&self) -> Option<&Claims> {
        let VolumeStore::File { source, .. } = &self.store else { return None };
        Some(source.claims())
    }

    /// Begins a request that has not been at the gate, if its blocks are free. `parked`: requests that came before it.
    pub(crate) fn cross<'a>(&self, io: &mut IoRequest, mut parked: impl Iterator<Item = &'a Parked>) -> Crossing {
        let (Some(block), Some(kind)) = (self.bridged_block(), io.kind) else { return Crossing::Free };
        let asked = Asked { kind, offset: io.offset, length: io.length, forced: io.forced };
        let is_impossible = asked.offset.saturating_add(asked.length.into()) > self.info.size_bytes;
        if io.bridge.is_some() || kind == Kind::Flush || is_impossible || io.errno != 0 || io.length == 0 {
            return Crossing::Free;
        }
        let Plan { steps, buffer_len } = asked.plan(block.into());
        let mut claim = None;
        if kind == Kind::Read {
            if buffer_len == 0 {
                return Crossing::Free;
            }
        } else if !self.info.read_only {
            let blocks = asked.blocks(block.into());
            let overlaps = |other: &Parked| other.blocks.start < blocks.end && blocks.start < other.blocks.end;
            claim = match parked.any(overlaps) {
                true => None,
                false => self.claims().and_then(|claims| claims.claim(&blocks)),
            };
            if claim.is_none() {
                return Crossing::Blocked(blocks);
            }
        }
        if io.fast && steps.front().is_none_or(|step| step.kind != Kind::WriteZeroes) {
            io.refuse(libc::EOPNOTSUPP);
            return Crossing::Free;
        }
        let data = if buffer_len > 0 { io.buffer.take() } else { None };
        io.bridge = Some(Box::new(Bridged { asked, steps, now: None, buffer_len, data, _claim: claim }));
        if !io.next_step() {
            // A discard of less than a block: it has no effect.
            (io.kind, io.length) = (None, 0);
        }
        Crossing::Free
    }

    /// Returns a request that waits for these blocks of the volume.
    pub(crate) fn park(&self, io: IoId, blocks: Range<u64>) -> Option<Parked> {
        Some(Parked { io, blocks, _waiting: self.claims()?.wait() })
    }
}

impl IoRequest {
    /// Sets the next step. Returns whether there is one.
    pub(crate) fn next_step(&mut self) -> bool {
        let Some(bridge) = &mut self.bridge else { return false };
        let Some(step) = bridge.steps.pop_front() else { return false };
        bridge.now = Some(step);
        (self.kind, self.offset, self.length) = (Some(step.kind), step.offset, step.length);
        (self.done, self.part) = (0, 0);
        self.forced = bridge.asked.forced && step.kind != Kind::Read;
        true
    }

    /// Sets the step after one that has succeeded. Returns whether there is one.
    pub(crate) fn next_step_if_done(&mut self) -> bool {
        self.errno == 0 && self.next_step()
    }

    /// Ends the steps: the request is again what the client has asked for, and data that was read starts the buffer, and is
    /// in the memory of its guest.
    /// Returns the client's buffer, which is no longer used, and whether there were steps.
    pub(crate) fn end_steps(&mut self) -> (Option<Buffer>, bool) {
        let Some(mut bridge) = self.bridge.take() else { return (None, false) };
        let Asked { kind, offset, length, forced } = bridge.asked;
        if self.errno == 0 {
            if let (Kind::Read, Some(buffer), Some(step)) = (kind, &mut self.buffer, bridge.now) {
                let lead = (offset - step.offset) as usize;
                buffer.bytes_mut(step.length as usize).copy_within(lead..lead + length as usize, 0);
                if let Some(guest) = self.guest.as_ref().filter(|_| !self.abandoned) {
                    guest.fill(0, buffer.bytes(length as usize));
                }
            }
            (self.kind, self.offset, self.length, self.forced) = (Some(kind), offset, length, forced);
        }
        (bridge.data.take(), true)
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
        let (Some(bridge), Some(buffer)) = (&self.bridge, &mut self.buffer) else { return };
        let Some(step) = bridge.now.filter(|step| step.kind == Kind::Write) else { return };
        let from = (step.offset + u64::from(skip)).max(bridge.asked.offset);
        let to = (step.offset + u64::from(skip + length)).min(bridge.asked.end());
        if from >= to {
            return;
        }
        let place = (from - step.offset) as usize + step.at as usize;
        let room = &mut buffer.bytes_mut(bridge.buffer_len as usize)[place..place + (to - from) as usize];
        bridge.asked.put(from, room, self.guest.as_ref(), bridge.data.as_ref());
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
