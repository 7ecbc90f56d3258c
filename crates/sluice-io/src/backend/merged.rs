//! Submissions that carry several requests.
//!
//! The gate merges requests that are adjacent on the device. They need not be adjacent in the file, and each has its own
//! buffer, so each part becomes a separate operation. The parts are submitted to the kernel in one batch, which may merge
//! them again, and together use one slot of the gate. Each part completes by itself. Frontends do not notice merging: each
//! [`IoRequest`](super::request::IoRequest) gets its own errno.
//!
//! Parts share the numbering of slots: the operation of the gate's slot `n` has index `2n`, and parts have odd indices.

use sluice_sched::gate::{Finished, Part, Slot, Submission};
use sluice_sched::{Gate, Instant};

use crate::backend::disk::Backend;

/// The part of a merged submission that an operation belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartOf {
    slot: Slot,
    part: u32,
}

/// The progress of a merged submission.
#[derive(Debug, Clone, Default)]
struct Progress {
    left: u32,
    ok: Vec<bool>,
}

/// The merged submissions at the device.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// By slot of the gate.
    progress: Vec<Progress>,
    free: Vec<u32>,
    parts: u32,
}

/// Where the work of a slot of the gate is.
pub(crate) fn place_of(slot: Slot) -> Slot {
    Slot(slot.0 * 2)
}

impl Merged {
    fn place(&mut self) -> Slot {
        Slot(self.free.pop().unwrap_or_else(|| {
            self.parts += 1;
            self.parts * 2 - 1
        }))
    }
}

impl Backend {
    pub(crate) fn begin_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        let wanted = parts.iter().any(|part| self.is_wanted(part.token));
        let ends = self.delayed_until(now, wanted, &submission.request);
        let slot = submission.slot;
        if self.merged.progress.len() <= slot.0 as usize {
            self.merged.progress.resize(slot.0 as usize + 1, Progress::default());
        }
        let progress = &mut self.merged.progress[slot.0 as usize];
        progress.left = parts.len() as u32;
        progress.ok.clear();
        progress.ok.resize(parts.len(), false);
        for (index, part) in parts.iter().enumerate() {
            let place = self.merged.place();
            let part_of = Some(PartOf { slot, part: index as u32 });
            self.begin(now, place, (submission.request.kind, *part), ends, part_of);
        }
    }

    /// The work at `place` is over. With the last part of a submission the gate is told.
    pub(crate) fn tell(
        &mut self,
        gate: &mut Gate,
        now: Instant,
        place: Slot,
        (ok, part_of): (bool, Option<PartOf>),
        finished: &mut Vec<Finished>,
    ) {
        let Some(PartOf { slot, part }) = part_of else {
            return gate.complete_all(now, Slot(place.0 / 2), ok, finished);
        };
        self.merged.free.push(place.0);
        let progress = &mut self.merged.progress[slot.0 as usize];
        progress.left -= 1;
        progress.ok[part as usize] = ok;
        if progress.left == 0 {
            gate.complete_parts(now, slot, &progress.ok, finished);
        }
    }
}
