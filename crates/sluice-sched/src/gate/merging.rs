//! Merging of adjacent requests into one submission.
//!
//! A device executes large requests much faster than small ones, and elevators expect a queue in which adjacent
//! requests are merged. The scheduler sees a *merged request*, which represents its parts in order of their offsets. A
//! new request is appended to a queued one of the same owner, volume, kind and flags that ends where it begins (back
//! merge), or prepended to one that begins where it ends (front merge). The scheduler is asked by
//! [`grow`](crate::Scheduler::grow) and may decline. The older request keeps its number, and therefore its position in
//! the queue. A dispatched merged request is one submission. Its completion completes each part, with separate
//! statistics.
//!
//! Bounds: the device's largest transfer, [`PARTS_MAX`] parts per request, and [`LOOK_MAX`] candidates per look-up, the
//! youngest of a hash chain. A guest chooses the offsets of its requests, and may choose those of one chain. So each
//! owner has its own chains, and only its own merges are lost. The number of chains doubles with the owner's queued
//! requests; the walk over them is constant time per request in the long run.
//!
//! Example: reads of 4 KiB at 0, 4096 and 8192 are queued. The scheduler has one request of 12 KiB, the device gets one
//! submission, and three replies follow.
//!
//! Merged requests are found by their edges in a table of chains. The table is never iterated as a whole, so its order
//! decides nothing.

use crate::cost::CostModel;
use crate::request::{Flags, Kind, OwnerId, Request};
use crate::slab::Slab;
use crate::steps::step;

/// Maximum number of requests in one submission.
pub(super) const PARTS_MAX: u32 = 128;
/// Maximum number of queued requests with the same edge that are compared.
const LOOK_MAX: usize = 16;
const NIL: u32 = u32::MAX;
/// Minimum number of chains; a power of two.
const CHAINS_MIN: usize = 8;

/// The edge of a queued request that a new one is adjacent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Edge {
    /// Its end: a back merge.
    End = 0,
    /// Its start: a front merge.
    Start = 1,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

const UNLINKED: Link = Link { before: NIL, after: NIL };

#[derive(Debug, Clone, Copy)]
struct MergedRequest {
    /// As the scheduler sees it.
    request: Request,
    /// The original request while `count` is 1; otherwise the first and the last of `parts`.
    first: u32,
    last: u32,
    count: u32,
    token: u32,
    links: [Link; 2],
}

#[derive(Debug, Clone, Copy)]
struct MergedPart {
    request: Request,
    next: u32,
}

/// The queued requests of a gate that merges, and the merged submissions in flight.
#[derive(Debug, Default)]
pub(super) struct Merging {
    merged: Slab<MergedRequest>,
    parts: Slab<MergedPart>,
    /// By owner.
    chains: Vec<Chains>,
}

/// Look-up of the queued merged requests of one owner.
#[derive(Debug, Default)]
struct Chains {
    /// The youngest request of each chain, by edge.
    heads: [Vec<u32>; 2],
    waiting: usize,
}

/// Whether a request may be merged. Reports of a dmClock client belong to one request, so it is not merged.
pub(super) fn is_mergeable(request: &Request) -> bool {
    matches!(request.kind, Kind::Read | Kind::Write) && request.length > 0 && !request.flags.contains(Flags::TRACKED)
}

/// Whether two requests agree in all that a merge requires.
// rule: gate.merge-owner
fn alike(a: &Request, b: &Request) -> bool {
    let flags = |request: &Request| request.flags.with(Flags::PIECE).with(Flags::MERGED);
    a.owner == b.owner && a.volume == b.volume && a.kind == b.kind && flags(a) == flags(b)
}

fn edge_offset(request: &Request, edge: Edge) -> u64 {
    match edge {
        Edge::End => request.end(),
        Edge::Start => request.offset,
    }
}

/// Distributes the volumes and offsets of an owner over `chains`, a power of two.
fn chain(request: &Request, offset: u64, chains: usize) -> usize {
    let whose = u64::from(request.volume.0) << 1 | request.kind as u64;
    let mut mixed = (offset ^ whose.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as usize & (chains - 1)
}

impl Merging {
    // rule: gate.merge-back, gate.merge-front, gate.merge-max, gate.merge-expiry
    /// The queued request whose `edge` is adjacent to `request`, and what it would become. Changes nothing.
    pub(super) fn find_mergeable(
        &self,
        request: &Request,
        edge: Edge,
        length_max: u32,
        cost: &CostModel,
    ) -> Option<(u32, Request)> {
        let chains = &self.chains.get(request.owner.index())?.heads[edge as usize];
        let touched = match edge {
            Edge::End => request.offset,
            Edge::Start => request.end(),
        };
        let mut at = *chains.get(chain(request, touched, chains.len().max(1)))?;
        let mut found: Option<u32> = None;
        for _ in 0..LOOK_MAX {
            if at == NIL {
                break;
            }
            step();
            let merged = &self.merged[at];
            let known = &merged.request;
            let length = known.length.checked_add(request.length);
            let fits = merged.count < PARTS_MAX && length.is_some_and(|length| length <= length_max);
            if fits && edge_offset(known, edge) == touched && alike(known, request) {
                let elder = found.is_none_or(|found| known.id < self.merged[found].request.id);
                found = if elder { Some(at) } else { found };
            }
            at = merged.links[edge as usize].after;
        }
        let index = found?;
        let known = &self.merged[index].request;
        let length = known.length + request.length;
        let offset = known.offset.min(request.offset);
        Some((index, Request { offset, length, cost: cost.cost(known.kind, length), ..*known }))
    }

    /// Merges `request` into a queued one, after the scheduler accepted it.
    pub(super) fn merge(&mut self, index: u32, grown: Request, request: Request, edge: Edge) {
        self.unlink(index);
        if self.merged[index].count == 1 {
            let opened = self.opened(index);
            let part = self.part(opened);
            let merged = &mut self.merged[index];
            (merged.first, merged.last) = (part, part);
        }
        let part = self.part(request);
        let merged = &mut self.merged[index];
        merged.request = grown;
        merged.count += 1;
        match edge {
            Edge::End => {
                self.parts[merged.last].next = part;
                merged.last = part;
            }
            Edge::Start => {
                self.parts[part].next = merged.first;
                merged.first = part;
            }
        }
        self.link(index);
    }

    /// Registers a request for merging and returns it as the scheduler gets it.
    pub(super) fn open(&mut self, request: Request) -> Request {
        let index = self.merged.next_index();
        let carried = Request { token: index, flags: request.flags.with(Flags::MERGED), ..request };
        let (first, last) = (NIL, NIL);
        let merged =
            MergedRequest { request: carried, first, last, count: 1, token: request.token, links: [UNLINKED; 2] };
        self.merged.insert(merged);
        self.make_room(request.owner);
        self.link(index);
        carried
    }

    /// Takes a request that the scheduler returned out of the chains: it is not queued any more. If it is a single
    /// request, returns the original and frees the entry.
    pub(super) fn detach(&mut self, request: &Request) -> Option<Request> {
        let index = request.token;
        self.unlink(index);
        self.chains[request.owner.index()].waiting -= 1;
        (self.merged[index].count == 1).then(|| {
            self.merged.remove(index);
            self.opened(index)
        })
    }

    /// Number of parts.
    pub(super) fn count(&self, request: &Request) -> u32 {
        self.merged[request.token].count
    }

    /// Index of the first part of a merged request, in order of offsets.
    pub(super) fn first(&self, request: &Request) -> u32 {
        self.merged[request.token].first
    }

    /// A part, and the index of the next one.
    pub(super) fn part_at(&self, at: u32) -> Option<(Request, u32)> {
        self.parts.get(at).map(|node| (node.request, node.next))
    }

    pub(super) fn set_part(&mut self, at: u32, request: Request) {
        self.parts[at].request = request;
    }

    /// Removes and returns the first part of a detached request; the last one frees the entry.
    pub(super) fn pop(&mut self, request: &Request) -> Option<Request> {
        let index = request.token;
        let merged = &mut self.merged[index];
        let part = merged.first;
        let MergedPart { request, next } = *self.parts.get(part)?;
        merged.first = next;
        self.parts.remove(part);
        if next == NIL {
            self.merged.remove(index);
        }
        Some(request)
    }

    /// The original of a single request.
    fn opened(&self, index: u32) -> Request {
        let MergedRequest { request, token, .. } = self.merged[index];
        Request { token, flags: request.flags.without(Flags::MERGED), ..request }
    }

    fn part(&mut self, request: Request) -> u32 {
        self.parts.insert(MergedPart { request, next: NIL })
    }

    fn link(&mut self, index: u32) {
        for edge in [Edge::End, Edge::Start] {
            let request = &self.merged[index].request;
            let chains = &mut self.chains[request.owner.index()].heads[edge as usize];
            let chain = chain(request, edge_offset(request, edge), chains.len());
            let after = core::mem::replace(&mut chains[chain], index);
            self.merged[index].links[edge as usize] = Link { before: NIL, after };
            if after != NIL {
                self.merged[after].links[edge as usize].before = index;
            }
        }
    }

    fn unlink(&mut self, index: u32) {
        for edge in [Edge::End, Edge::Start] {
            let MergedRequest { request, links, .. } = self.merged[index];
            let Link { before, after } = links[edge as usize];
            if after != NIL {
                self.merged[after].links[edge as usize].before = before;
            }
            if before != NIL {
                self.merged[before].links[edge as usize].after = after;
            } else {
                let chains = &mut self.chains[request.owner.index()].heads[edge as usize];
                let chain = chain(&request, edge_offset(&request, edge), chains.len());
                chains[chain] = after;
            }
        }
    }

    /// Counts a new request of an owner, before it is linked. Doubles the chains when there are more requests than
    /// chains.
    fn make_room(&mut self, owner: OwnerId) {
        if owner.index() >= self.chains.len() {
            self.chains.resize_with(owner.index() + 1, Chains::default);
        }
        let chains = &mut self.chains[owner.index()];
        chains.waiting += 1;
        let count = chains.heads[0].len();
        if chains.waiting <= count {
            return;
        }
        let mut linked: Vec<u32> = Vec::with_capacity(chains.waiting);
        for head in &chains.heads[Edge::End as usize] {
            let mut at = *head;
            while at != NIL {
                linked.push(at);
                at = self.merged[at].links[Edge::End as usize].after;
            }
        }
        // In arrival order, so that the youngest comes first in each chain again.
        linked.sort_unstable_by_key(|index| self.merged[*index].request.id);
        chains.heads = [Edge::End, Edge::Start].map(|_| vec![NIL; (count * 2).max(CHAINS_MIN)]);
        linked.into_iter().for_each(|index| self.link(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestId;
    use crate::request_arena::NOTHING;

    #[test]
    fn a_guest_that_filled_the_chain_of_another_prevented_its_merges() {
        let request = |id: u64, owner: u32, page: u64| {
            let (id, owner) = (RequestId(id), OwnerId(owner));
            Request { id, owner, offset: page * 4096, length: 4096, kind: Kind::Read, ..NOTHING }
        };
        let mut merging = Merging::default();
        let victim = request(0, 7, 1000);
        merging.open(victim);
        // Offsets of one chain of a thousand, and therefore of fewer chains; they look like any other.
        let row = |request: &Request| chain(request, request.end(), 1024);
        let places = (1 << 20..).filter(|page| row(&request(0, 8, *page)) == row(&victim));
        for (id, page) in (1..).zip(places.step_by(2).take(100)) {
            merging.open(request(id, 8, page));
        }
        let next = request(101, 7, 1001);
        let found = merging.find_mergeable(&next, Edge::End, 1 << 20, &CostModel::per_request());
        assert_eq!(found.map(|(merged, grown)| (merged, grown.length)), Some((0, 8192)));
    }
}
