//! Progress of merged submissions.
//!
//! The gate merges requests that are adjacent on the device. They need not be adjacent in the file, and each has its own
//! buffer, so each part becomes a separate operation. The parts are submitted to the kernel in one batch, which may merge
//! them again, and together use one slot of the gate. Each part completes by itself. Frontends do not notice merging: each
//! [`IoRequest`](super::request::IoRequest) gets its own errno.

use sluice_sched::gate::Slot;

use crate::slab::{Id as _, Slab, ids};
use crate::store::OpIndex;

ids! {
    /// A part of a merged submission.
    PartId;
}

#[derive(Debug, Clone, Copy)]
struct Part {
    slot: Slot,
    number: u32,
}

/// Results of the parts of a merged submission.
#[derive(Debug, Clone, Default)]
struct Progress {
    left: u32,
    ok: Vec<bool>,
}

/// The effect of a completed operation on the gate.
pub(crate) enum SlotResult<'a> {
    /// The slot's only operation has completed.
    Completed(Slot),
    /// All parts of the slot have completed; whether each succeeded.
    AllParts(Slot, &'a [bool]),
    /// Other parts of the slot are still in flight.
    Pending,
}

/// The merged submissions in flight.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    parts: Slab<PartId, Part>,
    /// By slot of the gate.
    progress: Vec<Progress>,
}

impl Merged {
    /// Starts a merged submission of `parts` parts.
    pub(crate) fn start(&mut self, slot: Slot, parts: usize) {
        let index = slot.0 as usize;
        if self.progress.len() <= index {
            self.progress.resize(index + 1, Progress::default());
        }
        let progress = &mut self.progress[index];
        progress.left = parts as u32;
        progress.ok.clear();
        progress.ok.resize(parts, false);
    }

    /// Adds part `number` of a submission, and returns the index of its operation.
    pub(crate) fn add_part(&mut self, slot: Slot, number: u32) -> OpIndex {
        OpIndex(self.parts.insert(Part { slot, number }).index() * 2 + 1)
    }

    /// Records the end of an operation.
    pub(crate) fn complete(&mut self, index: OpIndex, ok: bool) -> SlotResult<'_> {
        let Some(id) = self.part(index) else { return SlotResult::Completed(Slot(index.0 / 2)) };
        let Part { slot, number } = self.parts.remove(id);
        let progress = &mut self.progress[slot.0 as usize];
        progress.left -= 1;
        progress.ok[number as usize] = ok;
        match progress.left {
            0 => SlotResult::AllParts(slot, &progress.ok),
            _ => SlotResult::Pending,
        }
    }

    fn part(&self, index: OpIndex) -> Option<PartId> {
        (!index.0.is_multiple_of(2)).then(|| self.parts.id_at(index.0 / 2))
    }
}
