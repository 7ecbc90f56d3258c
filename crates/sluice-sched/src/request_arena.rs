//! Queued requests: one arena for all, with first-in-first-out lists threaded through it.
//!
//! A list is a chain of blocks of four requests. With many lists, most blocks are not in the CPU caches, and each step
//! along a chain waits for memory. Inside a block the next request is adjacent and already fetched. Memory is allocated
//! in chunks, so a growing queue copies at most three requests. A request costs 58 bytes and its part of the first and last
//! block of its list; an empty list costs 12 bytes.
//!
//! The chain is a ring: when the last block is full, the list goes on at the beginning of its first block, as far as requests have
//! left it. A client that keeps the number of its requests constant replaces the one that was dispatched, whose cache lines
//! have just been read, and no block changes its list. Example: blocks A and B hold requests 1 to 8. 1 and 2 leave, and 9 takes the
//! place of 1. Then 10 takes that of 2, and 11 finds the ring full: 3 and 4 move to a new block, which is the first from now on, and
//! A, with 9 and 10, the last, which has room for 11.
//!
//! A merged request grows while it is queued, whenever its guest sends an adjacent one. Its position is kept by its
//! token, which is its number in the gate's table, so growing takes constant time.
//!
//! Bounds: `push`, `pop`, `front` and `grow` take constant time. `remove_if`, which serves cancellation, takes time in
//! proportion to its list.

use crate::cost::Cost;
use crate::request::{Flags, Kind, OwnerId, Phase, Request, RequestId, VolumeId, Wait};
use crate::steps::step;
use crate::time::Instant;

const BLOCK_BITS: u32 = 2;
const BLOCK: usize = 1 << BLOCK_BITS;
const CHUNK_BITS: u32 = 7;
const CHUNK: usize = 1 << CHUNK_BITS;
const NIL: u32 = u32::MAX;

/// Fills unused entries of a block.
pub(crate) const NOTHING: Request = Request {
    id: RequestId(u64::MAX),
    arrival: Instant::ZERO,
    offset: 0,
    length: 0,
    cost: Cost::ONE,
    owner: OwnerId(u32::MAX),
    token: 0,
    rho: 0,
    delta: 0,
    volume: VolumeId(0),
    kind: Kind::Read,
    flags: Flags::NONE,
    phase: Phase::None,
    wait: Wait::None,
};

/// Consecutive requests of a list, and the next block.
#[derive(Debug, Clone, Copy)]
struct Block {
    requests: [Request; BLOCK],
    next: u32,
}

const _: () = assert!(size_of::<Block>() <= 58 * BLOCK, "a waiting request costs at most 58 bytes");

/// Storage of the requests of all lists. Not a `Slab`: free blocks are chained through `next`, since blocks in chunks
/// never move.
#[derive(Debug)]
pub struct Arena {
    chunks: Vec<Vec<Block>>,
    free: u32,
    len: usize,
    /// Position of each merged request, by token.
    merged: Vec<u32>,
}

/// Where a request is, or has been until it left its list.
#[derive(Debug, Clone, Copy)]
pub struct Place(u32);

#[derive(Debug, Clone, Copy)]
pub struct Fifo {
    /// Position of the oldest request: block and index in it.
    head: u32,
    /// Position of the youngest request.
    last: u32,
    len: u32,
}

/// Whether a position is the last one of its block.
const fn is_block_end(position: u32) -> bool {
    position as usize % BLOCK == BLOCK - 1
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { head: NIL, last: NIL, len: 0 }
    }
}

impl Fifo {
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for Arena {
    fn default() -> Self {
        Arena::new()
    }
}

impl Arena {
    #[must_use]
    pub fn new() -> Self {
        Arena { chunks: Vec::new(), free: NIL, len: 0, merged: Vec::new() }
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn block(&self, block: u32) -> &Block {
        step();
        &self.chunks[(block >> CHUNK_BITS) as usize][block as usize & (CHUNK - 1)]
    }

    #[inline]
    fn block_mut(&mut self, block: u32) -> &mut Block {
        step();
        &mut self.chunks[(block >> CHUNK_BITS) as usize][block as usize & (CHUNK - 1)]
    }

    /// Allocates a block for a list.
    fn allocate(&mut self) -> u32 {
        if self.free != NIL {
            let block = self.free;
            self.free = self.block(block).next;
            return block;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        chunk.push(Block { requests: [NOTHING; BLOCK], next: NIL });
        let block = (last << CHUNK_BITS) + chunk.len() - 1;
        assert!(block < 1 << (32 - BLOCK_BITS) as usize, "the gate bounds its queue far below 2^30 requests");
        block as u32
    }

    #[inline]
    fn release(&mut self, block: u32) {
        let free = self.free;
        self.block_mut(block).next = free;
        self.free = block;
    }

    #[inline]
    pub fn push(&mut self, fifo: &mut Fifo, request: Request) {
        let place = match fifo.len {
            0 => {
                fifo.head = self.allocate() << BLOCK_BITS;
                fifo.head
            }
            _ if is_block_end(fifo.last) => self.next_block(fifo),
            _ if fifo.last + 1 == fifo.head => self.open_ring(fifo),
            _ => fifo.last + 1,
        };
        self.block_mut(place >> BLOCK_BITS).requests[place as usize % BLOCK] = request;
        if request.flags.contains(Flags::MERGED) {
            self.note(request.token, place);
        }
        fifo.last = place;
        fifo.len += 1;
        self.len += 1;
    }

    /// The position after the last one of the last block: in the first block, if requests have left it, or in a new one.
    fn next_block(&mut self, fifo: &Fifo) -> u32 {
        let first = fifo.head >> BLOCK_BITS;
        let next = if (fifo.head as usize).is_multiple_of(BLOCK) { self.allocate() } else { first };
        self.block_mut(fifo.last >> BLOCK_BITS).next = next;
        next << BLOCK_BITS
    }

    /// Makes room in a full ring, whose first block holds the youngest requests before the oldest ones: these move to a new first
    /// block. Returns the position after the youngest.
    fn open_ring(&mut self, fifo: &mut Fifo) -> u32 {
        let first = fifo.head >> BLOCK_BITS;
        let moved = self.allocate();
        let Block { requests, next } = *self.block(first);
        let oldest = fifo.head as usize % BLOCK;
        let new = self.block_mut(moved);
        new.next = next;
        new.requests[oldest..].copy_from_slice(&requests[oldest..]);
        for (index, request) in (0u32..).zip(&requests).skip(oldest) {
            if request.flags.contains(Flags::MERGED) {
                self.note(request.token, moved << BLOCK_BITS | index);
            }
        }
        fifo.head = moved << BLOCK_BITS | oldest as u32;
        fifo.last + 1
    }

    /// Sets the position of a merged request; `NIL` if it is not queued.
    #[cold]
    fn note(&mut self, token: u32, position: u32) {
        let index = token as usize;
        if index >= self.merged.len() {
            self.merged.resize(index + 1, NIL);
        }
        self.merged[index] = position;
    }

    /// The oldest request.
    #[inline]
    #[must_use]
    pub fn front(&self, fifo: &Fifo) -> Option<&Request> {
        (fifo.len > 0).then(|| &self.block(fifo.head >> BLOCK_BITS).requests[fifo.head as usize % BLOCK])
    }

    /// Removes and returns the oldest request.
    #[inline]
    pub fn pop(&mut self, fifo: &mut Fifo) -> Option<Request> {
        if fifo.is_empty() {
            return None;
        }
        let place = self.leave(fifo);
        Some(*self.entry(place))
    }

    /// Removes the oldest request of a list that is not empty. Its data stay at the returned place until the next `push`.
    #[inline]
    pub fn leave(&mut self, fifo: &mut Fifo) -> Place {
        if !self.merged.is_empty() {
            self.forget_front(fifo);
        }
        let place = fifo.head;
        fifo.len -= 1;
        self.len -= 1;
        if fifo.len == 0 {
            self.release(place >> BLOCK_BITS);
            *fifo = Fifo::default();
        } else if is_block_end(place) {
            fifo.head = self.block(place >> BLOCK_BITS).next << BLOCK_BITS;
            // The youngest requests may be at the beginning of the same block.
            if fifo.last >> BLOCK_BITS != place >> BLOCK_BITS {
                self.release(place >> BLOCK_BITS);
            }
        } else {
            fifo.head += 1;
        }
        Place(place)
    }

    /// The request at a place.
    #[inline]
    #[must_use]
    pub fn entry(&self, place: Place) -> &Request {
        &self.block(place.0 >> BLOCK_BITS).requests[place.0 as usize % BLOCK]
    }

    /// Clears the position of the oldest request, which leaves, if it is a merged one.
    #[cold]
    fn forget_front(&mut self, fifo: &Fifo) {
        if let Some(&Request { flags, token, .. }) = self.front(fifo)
            && flags.contains(Flags::MERGED)
        {
            self.merged[token as usize] = NIL;
        }
    }

    /// Removes the requests for which `leaves` returns true, in order; the others keep their order. O(length).
    pub fn remove_if(&mut self, fifo: &mut Fifo, removed: &mut Vec<Request>, mut leaves: impl FnMut(&Request) -> bool) {
        let mut kept = Fifo::default();
        while let Some(request) = self.pop(fifo) {
            if leaves(&request) {
                removed.push(request);
            } else {
                self.push(&mut kept, request);
            }
        }
        *fifo = kept;
    }

    /// Replaces a queued merged request by `grown`. Returns `false` if it is not queued here.
    pub fn grow(&mut self, grown: &Request) -> bool {
        let position = self.merged.get(grown.token as usize).copied().unwrap_or(NIL);
        if position == NIL || !grown.flags.contains(Flags::MERGED) {
            return false;
        }
        let known = &mut self.block_mut(position >> BLOCK_BITS).requests[position as usize % BLOCK];
        let same = known.id == grown.id;
        if same {
            *known = *grown;
        }
        same
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn lists_keep_their_order_and_free_their_blocks() {
        let mut arena = Arena::new();
        let mut lists = vec![(Fifo::default(), VecDeque::new()); 7];
        let mut random = 1u64;
        for step in 0..30_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (fifo, model) = &mut lists[(random >> 40) as usize % 7];
            let (token, flags) = (step as u32 % 40_000, Flags::MERGED);
            let request = Request { id: RequestId(step), token, flags, ..NOTHING };
            match random >> 60 {
                // Queues grow for half of the time and shrink for the other half.
                kind if kind < if step / 500 % 2 == 0 { 10 } else { 5 } => {
                    arena.push(fifo, request);
                    model.push_back(step);
                }
                15 => {
                    let mut removed = Vec::new();
                    arena.remove_if(fifo, &mut removed, |request| request.id.0 % 3 == 0);
                    assert!(removed.iter().all(|request| request.id.0 % 3 == 0));
                    model.retain(|id| id % 3 != 0);
                }
                14 => {
                    let some = model.get(model.len() / 2).copied();
                    assert!(!arena.grow(&Request { length: 1, ..request }), "it is not queued");
                    let grown = some.map(|id| Request { id: RequestId(id), token: id as u32, length: 7, ..request });
                    assert!(grown.is_none_or(|grown| arena.grow(&grown)));
                    let mut all = Vec::new();
                    arena.remove_if(fifo, &mut all, |request| some == Some(request.id.0));
                    assert_eq!(all.first().map(|request| request.length), some.map(|_| 7));
                    model.retain(|id| some != Some(*id));
                }
                _ => assert_eq!(arena.pop(fifo).map(|request| request.id.0), model.pop_front()),
            }
            assert_eq!(arena.front(fifo).map(|request| request.id.0), model.front().copied());
            assert_eq!(fifo.len(), model.len());
        }
        assert_eq!(arena.len(), lists.iter().map(|(fifo, _)| fifo.len()).sum::<usize>());
        let chunks = arena.chunks.len();
        for (fifo, _) in &mut lists {
            while arena.pop(fifo).is_some() {}
        }
        let mut fifo = Fifo::default();
        let room = arena.chunks.iter().map(Vec::len).sum::<usize>() * BLOCK;
        (0..room as u64).for_each(|id| arena.push(&mut fifo, Request { id: RequestId(id), ..NOTHING }));
        assert_eq!(arena.chunks.len(), chunks, "every block was free again");
    }
}
