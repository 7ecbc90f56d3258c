//! Requests in two orders: by place on the device, and by age.

use crate::elevator::tree::{Forest, Tree};
use crate::request::Request;
use crate::scheduler::Scope;
use crate::time::Instant;

const NIL: u32 = u32::MAX;
/// Queued requests that overlap a merged one and are looked at to find its part; beyond it the merge is declined.
const OVERLAPS_MAX: usize = 64;

/// A queued request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(u32);

#[derive(Debug, Clone, Copy)]
struct Entry {
    request: Request,
    expiry: Instant,
    elder: u32,
    younger: u32,
}

/// The requests of all queues of a scheduler.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// By place; of two at one place the older one first.
    places: Forest<(u64, u64)>,
}

/// One queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    tree: Tree,
    oldest: u32,
    youngest: u32,
    len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { tree: Tree::default(), oldest: NIL, youngest: NIL, len: 0 }
    }
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn node(index: u32) -> Option<Node> {
    (index != NIL).then_some(Node(index))
}

fn place(request: &Request) -> (u64, u64) {
    (request.offset, request.id.0)
}

impl Pool {
    /// A request enters a queue, at its place and as the youngest.
    pub(crate) fn insert(&mut self, queue: &mut Queue, request: Request, expiry: Instant) -> Node {
        let entry = Entry { request, expiry, elder: queue.youngest, younger: NIL };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        match queue.youngest {
            NIL => queue.oldest = index,
            elder => self.entries[elder as usize].younger = index,
        }
        queue.youngest = index;
        queue.len += 1;
        self.places.insert(&mut queue.tree, index, place(&request));
        Node(index)
    }

    /// A request leaves its queue.
    pub(crate) fn remove(&mut self, queue: &mut Queue, Node(index): Node) -> Request {
        let Entry { request, elder, younger, .. } = self.entries[index as usize];
        match elder {
            NIL => queue.oldest = younger,
            elder => self.entries[elder as usize].younger = younger,
        }
        match younger {
            NIL => queue.youngest = elder,
            younger => self.entries[younger as usize].elder = elder,
        }
        queue.len -= 1;
        self.places.remove(&mut queue.tree, index);
        self.free.push(index);
        request
    }

    pub(crate) fn request(&self, Node(index): Node) -> &Request {
        &self.entries[index as usize].request
    }

    pub(crate) fn expiry(&self, Node(index): Node) -> Instant {
        self.entries[index as usize].expiry
    }

    /// The oldest of a queue: the head of its FIFO.
    pub(crate) fn oldest(&self, queue: &Queue) -> Option<Node> {
        node(queue.oldest)
    }

    /// The one at the lowest place.
    pub(crate) fn lowest(&self, queue: &Queue) -> Option<Node> {
        self.places.first(&queue.tree).map(Node)
    }

    /// The next one in the order of places.
    pub(crate) fn after(&self, Node(index): Node) -> Option<Node> {
        self.places.after(index).map(Node)
    }

    /// The one before in the order of places.
    pub(crate) fn before(&self, Node(index): Node) -> Option<Node> {
        self.places.before(index).map(Node)
    }

    /// The oldest that begins at this place.
    pub(crate) fn starting_at(&self, queue: &Queue, offset: u64) -> Option<Node> {
        let found = self.places.at_or_after(&queue.tree, &(offset, 0))?;
        (self.places.key(found).0 == offset).then_some(Node(found))
    }

    /// The last one that begins before a place, and the first one that begins there or behind it.
    pub(crate) fn around(&self, queue: &Queue, offset: u64) -> (Option<Node>, Option<Node>) {
        let behind = self.places.at_or_after(&queue.tree, &(offset, 0));
        let before = match behind {
            Some(behind) => self.places.before(behind),
            None => self.places.last(&queue.tree),
        };
        (before.map(Node), behind.map(Node))
    }

    /// The request that would become `grown` by a merge; nothing changes.
    pub(crate) fn find_part(&self, queue: &Queue, grown: &Request) -> Option<Node> {
        let mut at = self.places.at_or_after(&queue.tree, &(grown.offset, 0));
        for _ in 0..OVERLAPS_MAX {
            let index = at.filter(|index| self.places.key(*index).0 <= grown.end())?;
            if self.entries[index as usize].request.id == grown.id {
                return Some(Node(index));
            }
            at = self.places.after(index);
        }
        None
    }

    /// A request has been merged; it keeps its age and its expiry.
    // rule: gate.merge-expiry
    pub(crate) fn grow(&mut self, queue: &mut Queue, Node(index): Node, grown: Request) {
        let moved = self.places.key(index) != place(&grown);
        self.entries[index as usize].request = grown;
        if moved {
            self.places.remove(&mut queue.tree, index);
            self.places.insert(&mut queue.tree, index, place(&grown));
        }
    }

    /// Takes what is in `scope`, oldest first. O(length).
    pub(crate) fn cancel(&mut self, queue: &mut Queue, scope: Scope, removed: &mut Vec<Request>) {
        let mut at = queue.oldest;
        while let Some(node) = node(at) {
            at = self.entries[at as usize].younger;
            if scope.contains(self.request(node)) {
                removed.push(self.remove(queue, node));
            }
        }
    }

    /// All requests of a queue, oldest first.
    pub(crate) fn iter(&self, queue: &Queue) -> impl Iterator<Item = &Request> {
        let mut at = queue.oldest;
        core::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.younger;
            Some(&entry.request)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::request::{Flags, Kind, OwnerId, Phase, RequestId, VolumeId, Wait};

    /// Requests for the tests of the elevators: numbered, of 4 KiB, at a page.
    pub(crate) fn request(id: u64, owner: u32, kind: Kind, page: u64) -> Request {
        Request {
            id: RequestId(id),
            arrival: Instant::ZERO,
            offset: page * 4096,
            length: 4096,
            cost: Cost::ONE,
            owner: OwnerId(owner),
            token: 0,
            rho: 0,
            delta: 0,
            volume: VolumeId(0),
            kind,
            flags: Flags::NONE,
            phase: Phase::None,
            wait: Wait::None,
        }
    }

    fn ids<'a>(requests: impl Iterator<Item = &'a Request>) -> Vec<u64> {
        requests.map(|request| request.id.0).collect()
    }

    #[test]
    fn a_queue_has_two_orders() {
        let (mut pool, mut queue) = (Pool::default(), Queue::default());
        let nodes = [5, 3, 9, 3]
            .into_iter()
            .enumerate()
            .map(|(id, page)| pool.insert(&mut queue, request(id as u64, 0, Kind::Read, page), Instant::ZERO));
        let nodes: Vec<Node> = nodes.collect();
        assert_eq!(ids(pool.iter(&queue)), [0, 1, 2, 3]);
        assert_eq!(pool.lowest(&queue), Some(nodes[1]));
        assert_eq!(pool.after(nodes[1]), Some(nodes[3]), "the older of two at one place comes first");
        assert_eq!(pool.before(nodes[2]), Some(nodes[0]));
        assert_eq!(pool.starting_at(&queue, 3 * 4096), Some(nodes[1]));
        assert_eq!(pool.starting_at(&queue, 4 * 4096), None);
        assert_eq!(pool.remove(&mut queue, nodes[0]).id.0, 0);
        assert_eq!(ids(pool.iter(&queue)), [1, 2, 3]);
        // A front merge moves it, a back merge does not; both are found.
        let front = Request { length: 8192, ..request(2, 0, Kind::Read, 8) };
        let found = pool.find_part(&queue, &front).unwrap();
        assert_eq!(found, nodes[2]);
        pool.grow(&mut queue, found, front);
        let back = Request { length: 12_288, ..front };
        assert_eq!(pool.find_part(&queue, &back), Some(nodes[2]));
        pool.grow(&mut queue, nodes[2], back);
        assert_eq!((pool.request(nodes[2]).end(), pool.oldest(&queue)), (11 * 4096, Some(nodes[1])));
        let mut removed = Vec::new();
        pool.cancel(&mut queue, Scope::Owner(OwnerId(0)), &mut removed);
        assert_eq!((ids(removed.iter()), queue.is_empty()), (vec![1, 2, 3], true));
        assert_eq!(pool.find_part(&queue, &back), None);
    }
}
