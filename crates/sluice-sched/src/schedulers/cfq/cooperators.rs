//! Streams whose next request lies close to where the head is: they may go on where another one stopped.

use crate::elevator::{Forest, SECTOR, Tree};
use crate::schedulers::cfq::core::Core;
use crate::schedulers::cfq::stream::StreamId;

/// How close, in sectors, while a stream's own distances are not known well.
const CLOSE: u64 = 8192;

/// Sync streams with requests, by the place of their candidates, for each class and level.
#[derive(Debug, Default)]
pub(super) struct Cooperators {
    forest: Forest<(u64, StreamId)>,
    trees: [Tree; 24],
    /// In which tree a stream is.
    inside: Vec<Option<u8>>,
}

/// Whether a place lies close to the head, by what a stream's own distances are, in bytes.
pub(super) fn is_close(core: &Core, id: StreamId, offset: u64) -> bool {
    let stream = core.stream(id);
    let sectors = if stream.seek.0.is_valid() { stream.seek.mean() } else { CLOSE };
    core.head.abs_diff(offset) <= sectors.saturating_mul(SECTOR)
}

impl Cooperators {
    /// The candidate of a stream may be another one.
    pub(super) fn update(&mut self, core: &Core, id: StreamId) {
        let stream = core.stream(id);
        let index = id as usize;
        if self.inside.len() <= index {
            self.inside.resize(index + 1, None);
        }
        let place = stream.next.filter(|_| stream.is_sync()).map(|next| core.pool.request(next).offset);
        let tree = place.map(|_| stream.priority.index() as u8);
        if let Some(old) = self.inside[index] {
            if tree == Some(old) && place == Some(self.forest.key(id).0) {
                return;
            }
            self.forest.remove(&mut self.trees[usize::from(old)], id);
        }
        if let (Some(place), Some(tree)) = (place, tree) {
            self.forest.insert(&mut self.trees[usize::from(tree)], id, (place, id));
        }
        self.inside[index] = tree;
    }

    /// A stream that may go on in the place of the active one, which has nothing to send.
    // rule: cfq.select-cooperator
    // DEVIATION: the two are not merged into one queue: they belong to different VMs.
    pub(super) fn of(&self, core: &Core, active: StreamId) -> Option<StreamId> {
        let stream = core.stream(active);
        if !stream.is_sync() || core.seeky(active) {
            return None;
        }
        let tree = &self.trees[stream.priority.index()];
        let behind = self.forest.at_or_after(tree, &(core.head, 0));
        let before = match behind {
            Some(behind) => self.forest.before(behind),
            None => self.forest.last(tree),
        };
        let fits = |id: &StreamId| *id != active && !core.seeky(*id) && is_close(core, active, self.forest.key(*id).0);
        let distance = |id: StreamId| self.forest.key(id).0.abs_diff(core.head);
        match (behind.filter(fits), before.filter(fits)) {
            (Some(behind), Some(before)) => Some(if distance(before) < distance(behind) { before } else { behind }),
            (behind, before) => behind.or(before),
        }
    }
}
