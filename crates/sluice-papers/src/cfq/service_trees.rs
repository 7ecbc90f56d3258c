//! Service trees: the order of streams by class and key.

use std::collections::BTreeMap;

use crate::cfq::core::{Core, nanos};
use crate::cfq::stream::StreamId;
use sluice_sched::time::Instant;

/// Distance of a preempting stream before the first one of its tree, in sync slices of level 4: 1 s of slices of 100 ms.
const FRONT_SLICES: i128 = 10;

/// Class, key in nanoseconds, and an increasing number that orders streams with equal keys by insertion.
type Key = (u8, i128, u64);

/// The trees of waiting streams: one, or one for each workload of each group.
// rule: cfq.tree-order, cfq.starvation
#[derive(Debug, Default)]
pub(super) struct ServiceTrees {
    trees: Vec<BTreeMap<Key, StreamId>>,
    /// The key of each stream that is in a tree.
    keys: Vec<Key>,
    entered: u64,
}

impl ServiceTrees {
    pub(super) fn count(&self, tree: u32) -> u32 {
        self.trees.get(tree as usize).map_or(0, |tree| tree.len() as u32)
    }

    pub(super) fn first(&self, tree: u32) -> Option<StreamId> {
        self.trees.get(tree as usize)?.first_key_value().map(|(_, id)| *id)
    }

    pub(super) fn first_key(&self, tree: u32) -> Option<i128> {
        self.trees.get(tree as usize)?.first_key_value().map(|(key, _)| key.1)
    }

    pub(super) fn last_key(&self, tree: u32) -> Option<i128> {
        self.trees.get(tree as usize)?.last_key_value().map(|(key, _)| key.1)
    }

    /// Inserts a stream into a tree by its class and a key.
    pub(super) fn enter(&mut self, core: &mut Core, tree: u32, id: StreamId, key: i128) {
        let class = core.stream(id).priority.class as u8;
        self.enter_as(core, tree, id, class, key);
    }

    pub(super) fn enter_as(&mut self, core: &mut Core, tree: u32, id: StreamId, class: u8, key: i128) {
        let index = tree as usize;
        if self.trees.len() <= index {
            self.trees.resize(index + 1, BTreeMap::new());
        }
        self.entered += 1;
        let key = (class, key, self.entered);
        if self.keys.len() <= id as usize {
            self.keys.resize(id as usize + 1, key);
        }
        self.keys[id as usize] = key;
        self.trees[index].insert(key, id);
        core.stream_mut(id).tree = Some(tree);
    }

    /// Removes a stream; returns whether it was in a tree.
    pub(super) fn leave(&mut self, core: &mut Core, id: StreamId) -> bool {
        let Some(tree) = core.stream_mut(id).tree.take() else { return false };
        self.trees[tree as usize].remove(&self.keys[id as usize]);
        true
    }

    /// Key of a stream after its turn, with `others` other streams: a stream with a shorter slice waits longer, and the
    /// rest of its last slice is settled. Example: level 4 has slices of 100 ms, level 0 of 180 ms. With two other
    /// streams a stream of level 4 is inserted at now + 160 ms, one of level 0 at now.
    // rule: cfq.tree-key, cfq.tree-idle, cfq.level-monotone, cfq.weak-latency
    pub(super) fn key_behind(&self, core: &mut Core, tree: u32, id: StreamId, now: Instant, others: u32) -> i128 {
        let now = i128::from(now.as_nanos());
        if core.stream(id).is_idle_class() {
            return self.last_key(tree).unwrap_or(now) + i128::from(nanos(core.params.idle_class_delay));
        }
        let longest = Core::scaled(nanos(core.params.slice_sync), 0);
        let own = core.base_slice(id);
        let offset = i128::from(others) * (i128::from(longest) - i128::from(own));
        now + offset - i128::from(std::mem::take(&mut core.stream_mut(id).resid))
    }

    /// Key of a stream that preempts. The distance matters beyond the order in the tree: a group serves the workload whose first
    /// key is the smallest.
    // rule: cfq.tree-preempt
    // DEVIATION: in Linux the distance is 1 s whatever the slices are. In slices the order of workloads does not depend on
    // the scale of the times.
    pub(super) fn key_in_front(&self, core: &Core, tree: u32, now: Instant) -> i128 {
        let distance = FRONT_SLICES * i128::from(nanos(core.params.slice_sync));
        self.first_key(tree).unwrap_or(i128::from(now.as_nanos())) - distance
    }
}
