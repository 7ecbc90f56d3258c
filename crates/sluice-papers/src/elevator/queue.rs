//! Queue of an elevator: its requests in two orders, by offset and by age.

use std::collections::{BTreeMap, BTreeSet};

use sluice_sched::request::{Request, RequestId};
use sluice_sched::scheduler::Scope;
use sluice_sched::time::Instant;

/// Position of a queued request; requests at the same offset are ordered by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortKey {
    pub(crate) offset: u64,
    pub(crate) id: RequestId,
}

impl SortKey {
    pub(crate) fn of(request: &Request) -> SortKey {
        SortKey { offset: request.offset, id: request.id }
    }
}

/// One queue. The gate numbers requests as they arrive, so a request with a smaller number is older.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    /// Requests with their expiry.
    requests: BTreeMap<RequestId, (Request, Instant)>,
    sorted: BTreeSet<SortKey>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn insert(&mut self, request: Request, expiry: Instant) -> SortKey {
        let key = SortKey::of(&request);
        self.requests.insert(request.id, (request, expiry));
        self.sorted.insert(key);
        key
    }

    pub(crate) fn remove(&mut self, key: SortKey) -> Request {
        self.sorted.remove(&key);
        self.requests.remove(&key.id).expect("the request is queued").0
    }

    pub(crate) fn request(&self, key: SortKey) -> &Request {
        &self.requests[&key.id].0
    }

    pub(crate) fn expiry(&self, key: SortKey) -> Instant {
        self.requests[&key.id].1
    }

    pub(crate) fn oldest(&self) -> Option<SortKey> {
        self.iter().next().map(SortKey::of)
    }

    /// Returns the request at the lowest offset.
    pub(crate) fn lowest(&self) -> Option<SortKey> {
        self.sorted.first().copied()
    }

    /// Returns the previous request in order of offsets.
    pub(crate) fn before(&self, key: SortKey) -> Option<SortKey> {
        self.sorted.range(..key).next_back().copied()
    }

    /// Returns the next request in order of offsets.
    pub(crate) fn after(&self, SortKey { offset, id }: SortKey) -> Option<SortKey> {
        self.sorted.range(SortKey { offset, id: RequestId(id.0 + 1) }..).next().copied()
    }

    /// Returns the last request before an offset, and the first one at or after it.
    pub(crate) fn around(&self, offset: u64) -> [Option<SortKey>; 2] {
        let key = SortKey { offset, id: RequestId(0) };
        [self.before(key), self.sorted.range(key..).next().copied()]
    }

    /// Returns the queued request that would become `grown` by a merge.
    pub(crate) fn find_part(&self, grown: &Request) -> Option<SortKey> {
        self.requests.get(&grown.id).map(|(request, _)| SortKey::of(request))
    }

    /// Replaces a request by the result of a merge. It keeps its age and its expiry; its offset may change.
    // rule: gate.merge-expiry
    pub(crate) fn grow(&mut self, key: SortKey, grown: Request) -> SortKey {
        self.sorted.remove(&key);
        self.requests.get_mut(&key.id).expect("the request is queued").0 = grown;
        self.sorted.insert(SortKey::of(&grown));
        SortKey::of(&grown)
    }

    /// Removes the requests in `scope`, and appends them to `removed`, oldest first.
    pub(crate) fn cancel(&mut self, scope: Scope, removed: &mut Vec<Request>) {
        let from = removed.len();
        removed.extend(self.iter().filter(|request| scope.contains(request)));
        for request in &removed[from..] {
            self.remove(SortKey::of(request));
        }
    }

    /// Returns all requests, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.requests.values().map(|(request, _)| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::drive::request;
    use sluice_sched::request::{Kind, OwnerId};

    fn ids<'a>(requests: impl Iterator<Item = &'a Request>) -> Vec<u64> {
        requests.map(|request| request.id.0).collect()
    }

    #[test]
    fn a_queue_has_two_orders() {
        let mut queue = Queue::default();
        let mut keys = Vec::new();
        for (id, page) in (0..).zip([5, 3, 9, 3]) {
            keys.push(queue.insert(request(id, 0, Kind::Read, page), Instant::ZERO));
        }
        assert_eq!(ids(queue.iter()), [0, 1, 2, 3]);
        assert_eq!(queue.lowest(), Some(keys[1]));
        assert_eq!(queue.after(keys[1]), Some(keys[3]), "at the same offset the older one comes first");
        assert_eq!(queue.around(9 * 4096), [Some(keys[0]), Some(keys[2])]);
        assert_eq!(queue.around(3 * 4096), [None, Some(keys[1])]);
        assert_eq!(queue.remove(keys[0]).id.0, 0);
        assert_eq!((queue.before(keys[0]), queue.after(keys[0])), (Some(keys[3]), Some(keys[2])));
        assert_eq!(ids(queue.iter()), [1, 2, 3]);
        // A front merge changes its offset, a back merge does not; both are found.
        let front = Request { length: 8192, ..request(2, 0, Kind::Read, 8) };
        let found = queue.find_part(&front).unwrap();
        assert_eq!(found, keys[2]);
        let moved = queue.grow(found, front);
        assert_eq!((moved.id, moved.offset), (found.id, 8 * 4096));
        let back = Request { length: 12_288, ..front };
        assert_eq!(queue.find_part(&back), Some(moved));
        queue.grow(moved, back);
        assert_eq!((queue.request(moved).end(), queue.oldest()), (11 * 4096, Some(keys[1])));
        let mut removed = Vec::new();
        queue.cancel(Scope::Owner(OwnerId(0)), &mut removed);
        assert_eq!((ids(removed.iter()), queue.is_empty()), (vec![1, 2, 3], true));
        assert_eq!(queue.find_part(&back), None);
    }
}
