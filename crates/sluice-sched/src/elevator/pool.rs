//! Requests in two orders: by offset and by age.
//!
//! Bounds: insertion, removal and growth take logarithmic time in the length of the queue, whichever offsets guests
//! choose: requests at the same offset have different keys. `cancel` walks from the youngest request of a queue until
//! it has seen all of the owner's, and `iter` visits all; they serve removed VMs and output.

use core::hint::black_box;

use crate::elevator::choice::SortKey;
use crate::elevator::sorted::Sorted;
use crate::elevator::tree::Tree;
use crate::request::{Flags, Request, RequestId};
use crate::scheduler::Scope;
use crate::slab::Slab;
use crate::steps::step;
use crate::time::Instant;

const NIL: u32 = u32::MAX;

/// A queued request: its index and its sort key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    key: SortKey,
    index: u32,
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.index == other.index
    }
}

impl Eq for Node {}

impl Node {
    pub(crate) fn offset(self) -> u64 {
        self.key.offset()
    }

    pub(crate) fn id(self) -> RequestId {
        RequestId(self.key.id())
    }

    pub(crate) fn key(self) -> SortKey {
        self.key
    }
}

fn node((key, index): (u128, u32)) -> Node {
    Node { key: SortKey(key), index }
}

/// A request and its expiry, in one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Entry {
    request: Request,
    expiry: Instant,
}

/// Links to the next older and younger request. They are separate, since removal changes those of two other requests.
#[derive(Debug, Clone, Copy)]
struct Ages {
    elder: u32,
    younger: u32,
}

/// Requests of all queues of a scheduler, each sorted by an `S`.
#[derive(Debug, Default)]
pub(crate) struct Pool<S: Sorted = Tree> {
    entries: Slab<Entry>,
    /// By index of the entry.
    ages: Vec<Ages>,
    /// Sorted by offset; at the same offset the older request comes first.
    sorted: S::Shared,
    /// Number of requests by owner.
    owned: Vec<u32>,
    /// Index of each merged request, by token.
    merged: Vec<u32>,
}

/// One queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue<S = Tree> {
    sorted: S,
    oldest: u32,
    youngest: u32,
    len: u32,
}

impl<S: Default> Default for Queue<S> {
    fn default() -> Self {
        Queue { sorted: S::default(), oldest: NIL, youngest: NIL, len: 0 }
    }
}

impl<S> Queue<S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A request that was removed, and its former neighbours.
pub(crate) struct Taken {
    pub(crate) request: Request,
    pub(crate) before: Option<Node>,
    pub(crate) after: Option<Node>,
}

impl<S: Sorted> Pool<S> {
    /// Inserts a request into a queue, as the youngest.
    #[inline]
    pub(crate) fn insert(&mut self, queue: &mut Queue<S>, request: Request, expiry: Instant) -> Node {
        self.insert_as::<false>(queue, request, expiry).0
    }

    /// The same. Also returns whether an older one may be at the same offset.
    #[inline]
    pub(crate) fn insert_asking(&mut self, queue: &mut Queue<S>, request: Request, expiry: Instant) -> (Node, bool) {
        self.insert_as::<true>(queue, request, expiry)
    }

    #[inline(always)]
    fn insert_as<const ASKS: bool>(&mut self, queue: &mut Queue<S>, request: Request, expiry: Instant) -> (Node, bool) {
        let (entry, ages) = (Entry { request, expiry }, Ages { elder: queue.youngest, younger: NIL });
        let index = self.entries.insert(entry);
        match self.ages.get_mut(index as usize) {
            Some(known) => *known = ages,
            None => self.ages.push(ages),
        }
        match queue.youngest {
            NIL => queue.oldest = index,
            elder => self.ages[elder as usize].younger = index,
        }
        queue.youngest = index;
        queue.len += 1;
        *self.owned(&request) += 1;
        self.note(&request, index);
        let key = SortKey::of(&request);
        let near = queue.sorted.insert::<ASKS>(&mut self.sorted, key.0, index);
        (Node { key, index }, near)
    }

    fn owned(&mut self, request: &Request) -> &mut u32 {
        let index = request.owner.index();
        if self.owned.len() <= index {
            self.owned.resize(index + 1, 0);
        }
        &mut self.owned[index]
    }

    /// Removes a request from its queue, to dispatch it.
    #[inline]
    pub(crate) fn take(&mut self, queue: &mut Queue<S>, node: Node) -> Taken {
        let request = self.leave(queue, node);
        let around = queue.sorted.take(&mut self.sorted, node.key.0, node.index);
        self.fetch(queue);
        let [before, after] = around.map(|found| found.map(self::node));
        Taken { request, before, after }
    }

    /// Reads the requests that a sweep takes next, all at once instead of waiting for each when it is dispatched.
    #[inline]
    fn fetch(&self, queue: &mut Queue<S>) {
        let mut read = 0;
        queue.sorted.each_next(|index| {
            step();
            read ^= self.entries[index].request.id.0 ^ u64::from(self.ages[index as usize].elder);
        });
        black_box(read);
    }

    /// Removes a request from its queue.
    pub(crate) fn remove(&mut self, queue: &mut Queue<S>, node: Node) -> Request {
        queue.sorted.remove(&mut self.sorted, node.key.0, node.index);
        self.leave(queue, node)
    }

    /// Removes a request from all but the order of offsets.
    #[inline]
    fn leave(&mut self, queue: &mut Queue<S>, Node { index, .. }: Node) -> Request {
        let request = self.entries.remove(index).request;
        let Ages { elder, younger } = self.ages[index as usize];
        match elder {
            NIL => queue.oldest = younger,
            elder => self.ages[elder as usize].younger = younger,
        }
        match younger {
            NIL => queue.youngest = elder,
            younger => self.ages[younger as usize].elder = elder,
        }
        queue.len -= 1;
        *self.owned(&request) -= 1;
        self.note(&request, NIL);
        request
    }

    pub(crate) fn request(&self, Node { index, .. }: Node) -> &Request {
        &self.entries[index].request
    }

    pub(crate) fn expiry(&self, Node { index, .. }: Node) -> Instant {
        self.entries[index].expiry
    }

    /// The oldest request of a queue.
    pub(crate) fn oldest(&self, queue: &Queue<S>) -> Option<Node> {
        (queue.oldest != NIL).then(|| self.numbered(queue.oldest))
    }

    fn numbered(&self, index: u32) -> Node {
        Node { key: SortKey::of(&self.entries[index].request), index }
    }

    /// The request at the lowest offset.
    pub(crate) fn lowest(&self, queue: &Queue<S>) -> Option<Node> {
        queue.sorted.first(&self.sorted).map(node)
    }

    /// The next request in order of offsets.
    pub(crate) fn after(&self, queue: &Queue<S>, Node { key, .. }: Node) -> Option<Node> {
        let [_, after] = queue.sorted.around(&self.sorted, key.0 + 1);
        after.map(node)
    }

    /// The oldest request at this offset.
    pub(crate) fn starting_at(&self, queue: &Queue<S>, offset: u64) -> Option<Node> {
        let [_, behind] = self.around(queue, offset);
        behind.filter(|found| found.offset() == offset)
    }

    /// The last request before an offset, and the first one at or after it.
    pub(crate) fn around(&self, queue: &Queue<S>, offset: u64) -> [Option<Node>; 2] {
        queue.sorted.around(&self.sorted, SortKey::before_all(offset).0).map(|found| found.map(node))
    }

    /// Sets the index of a merged request; `NIL` if it is not queued.
    fn note(&mut self, request: &Request, index: u32) {
        if request.flags.contains(Flags::MERGED) {
            let token = request.token as usize;
            if token >= self.merged.len() {
                self.merged.resize(token + 1, NIL);
            }
            self.merged[token] = index;
        }
    }

    /// The request of this queue that would become `grown` by a merge. Changes nothing.
    pub(crate) fn find_part(&self, queue: &Queue<S>, grown: &Request) -> Option<Node> {
        let index = *self.merged.get(grown.token as usize)?;
        let known = &self.entries.get(index)?.request;
        let same = grown.flags.contains(Flags::MERGED) && known.id == grown.id;
        let key = SortKey::of(known);
        // It may be in another queue, from a time when its owner had another priority.
        let [_, found] = queue.sorted.around(&self.sorted, key.0);
        found.map(node).filter(|found| same && found.index == index && found.key == key)
    }

    /// Replaces a request by the result of a merge. It keeps its age and its expiry; its offset may change.
    // rule: gate.merge-expiry
    pub(crate) fn grow(&mut self, queue: &mut Queue<S>, Node { key, index }: Node, grown: Request) -> Node {
        self.entries[index].request = grown;
        let new = SortKey::of(&grown);
        if new != key {
            queue.sorted.remove(&mut self.sorted, key.0, index);
            queue.sorted.insert::<false>(&mut self.sorted, new.0, index);
        }
        Node { key: new, index }
    }

    /// Removes the requests in `scope`, oldest first. Starts at the youngest and ends when it has seen all of the
    /// owner's, so an owner with few or recent requests costs little in a long queue.
    pub(crate) fn cancel(&mut self, queue: &mut Queue<S>, scope: Scope, removed: &mut Vec<Request>) {
        let from = removed.len();
        let mut left = self.owned.get(scope.owner().index()).copied().unwrap_or(0);
        let mut at = queue.youngest;
        while left > 0 && at != NIL {
            let (index, request) = (at, self.entries[at].request);
            at = self.ages[at as usize].elder;
            left -= u32::from(request.owner == scope.owner());
            if scope.contains(&request) {
                let node = self.numbered(index);
                removed.push(self.remove(queue, node));
            }
        }
        removed[from..].reverse();
    }

    pub(crate) fn iter(&self, queue: &Queue<S>) -> impl Iterator<Item = &Request> {
        let mut at = queue.oldest;
        core::iter::from_fn(move || {
            let entry = self.entries.get(at)?;
            at = self.ages[at as usize].younger;
            Some(&entry.request)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::elevator::SweepSet;
    use crate::request::{Kind, OwnerId, Phase, VolumeId, Wait};

    /// A request of 4 KiB at a page, for the tests of the elevators.
    pub(crate) fn request(id: u64, owner: u32, kind: Kind, page: u64) -> Request {
        Request {
            id: RequestId(id),
            arrival: Instant::ZERO,
            offset: page * 4096,
            length: 4096,
            cost: Cost::ONE,
            owner: OwnerId(owner),
            token: id as u32,
            rho: 0,
            delta: 0,
            volume: VolumeId(0),
            kind,
            flags: Flags::MERGED,
            phase: Phase::None,
            wait: Wait::None,
        }
    }

    fn ids<'a>(requests: impl Iterator<Item = &'a Request>) -> Vec<u64> {
        requests.map(|request| request.id.0).collect()
    }

    #[test]
    fn a_queue_has_two_orders() {
        has_two_orders::<Tree>();
        has_two_orders::<SweepSet>();
    }

    fn has_two_orders<S: Sorted>() {
        let (mut pool, mut queue) = (Pool::<S>::default(), Queue::<S>::default());
        let nodes = [5, 3, 9, 3]
            .into_iter()
            .enumerate()
            .map(|(id, page)| pool.insert(&mut queue, request(id as u64, 0, Kind::Read, page), Instant::ZERO));
        let nodes: Vec<Node> = nodes.collect();
        assert_eq!(ids(pool.iter(&queue)), [0, 1, 2, 3]);
        assert_eq!(pool.lowest(&queue), Some(nodes[1]));
        assert_eq!(pool.after(&queue, nodes[1]), Some(nodes[3]), "at the same offset the older one comes first");
        assert_eq!(pool.around(&queue, 9 * 4096), [Some(nodes[0]), Some(nodes[2])]);
        assert_eq!(pool.starting_at(&queue, 3 * 4096), Some(nodes[1]));
        assert_eq!(pool.starting_at(&queue, 4 * 4096), None);
        let taken = pool.take(&mut queue, nodes[0]);
        assert_eq!((taken.request.id.0, taken.before, taken.after), (0, Some(nodes[3]), Some(nodes[2])));
        assert_eq!(ids(pool.iter(&queue)), [1, 2, 3]);
        // A front merge changes its offset, a back merge does not; both are found.
        let front = Request { length: 8192, ..request(2, 0, Kind::Read, 8) };
        let found = pool.find_part(&queue, &front).unwrap();
        assert_eq!(found, nodes[2]);
        let moved = pool.grow(&mut queue, found, front);
        assert_eq!((moved, moved.offset()), (found, 8 * 4096));
        let back = Request { length: 12_288, ..front };
        assert_eq!(pool.find_part(&queue, &back), Some(nodes[2]));
        pool.grow(&mut queue, moved, back);
        assert_eq!((pool.request(nodes[2]).end(), pool.oldest(&queue)), (11 * 4096, Some(nodes[1])));
        let mut removed = Vec::new();
        pool.cancel(&mut queue, Scope::Owner(OwnerId(0)), &mut removed);
        assert_eq!((ids(removed.iter()), queue.is_empty()), (vec![1, 2, 3], true));
        assert_eq!(pool.find_part(&queue, &back), None);
    }
}
