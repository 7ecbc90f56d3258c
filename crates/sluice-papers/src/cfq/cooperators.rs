//! Cooperators: streams whose next request is close to the head may continue where another stream stopped.

use std::collections::BTreeSet;

use crate::cfq::core::Core;
use crate::cfq::stream::StreamId;
use crate::elevator::SECTOR;

/// Distance in sectors that is close while a stream's own distances are not known well.
const CLOSE: u64 = 8192;

/// Sync streams with requests, by the offset of their candidates, for each class and level.
#[derive(Debug, Default)]
pub(super) struct Cooperators {
    trees: [BTreeSet<(u64, StreamId)>; 24],
    /// The tree of a stream, and its key there.
    inside: Vec<Option<(u8, u64)>>,
}

/// Whether an offset in bytes is close to the head, compared with the stream's own distances.
pub(super) fn is_close(core: &Core, id: StreamId, offset: u64) -> bool {
    let stream = core.stream(id);
    let sectors = if stream.seek.0.is_valid() { stream.seek.mean() } else { CLOSE };
    core.head.abs_diff(offset) <= sectors.saturating_mul(SECTOR)
}

impl Cooperators {
    /// Updates the candidate of a stream.
    pub(super) fn update(&mut self, core: &Core, id: StreamId) {
        let stream = core.stream(id);
        let index = id as usize;
        if self.inside.len() <= index {
            self.inside.resize(index + 1, None);
        }
        let next = stream.next.filter(|_| stream.is_sync());
        let new = next.map(|next| (stream.priority.index() as u8, next.offset));
        let old = std::mem::replace(&mut self.inside[index], new);
        if new == old {
            return;
        }
        if let Some((tree, place)) = old {
            self.trees[usize::from(tree)].remove(&(place, id));
        }
        if let Some((tree, place)) = new {
            self.trees[usize::from(tree)].insert((place, id));
        }
    }

    /// A stream that may continue in place of the active one, which has no requests.
    // rule: cfq.select-cooperator
    // DEVIATION: the two are not merged into one queue, since they belong to different VMs.
    pub(super) fn of(&self, core: &Core, active: StreamId) -> Option<StreamId> {
        let stream = core.stream(active);
        if !stream.is_sync() || core.seeky(active) {
            return None;
        }
        let tree = &self.trees[stream.priority.index()];
        let (before, behind) = (tree.range(..(core.head, 0)).next_back(), tree.range((core.head, 0)..).next());
        let fits = |(place, id): &(u64, StreamId)| *id != active && !core.seeky(*id) && is_close(core, active, *place);
        let distance = |(place, _): (u64, StreamId)| place.abs_diff(core.head);
        let chosen = match (behind.copied().filter(fits), before.copied().filter(fits)) {
            (Some(behind), Some(before)) => Some(if distance(before) < distance(behind) { before } else { behind }),
            (behind, before) => behind.or(before),
        };
        chosen.map(|(_, id)| id)
    }
}
