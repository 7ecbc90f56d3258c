//! The ways in which a volume in a file can zero a range, as far as they are known.
//!
//! A file system punches a hole or zeroes a range; whether it can, only an attempt shows. After a refused attempt the operation ends
//! without effect ([`Done::TooDear`](crate::store::Done::TooDear)).
//!
//! Block devices: with `FALLOC_FL_ZERO_RANGE` the kernel itself writes the zeroes if the disk refuses the command, reports
//! success, and only then sets `write_zeroes_max_bytes` to 0. So the first requests are charged as writes, until the helper
//! thread has read the limit again after one of them. `FALLOC_FL_PUNCH_HOLE` never writes; it fails instead.

use std::sync::Arc;

use super::Volume;
use super::steps::Step;
use crate::source::{Source, Support};
use crate::store::Zeroing;

impl Volume {
    /// Returns the step that zeroes a range.
    pub(super) fn zeroing_step(&self, no_hole: bool) -> Step {
        if !no_hole && self.can.punch_hole.is_worth_trying() { Step::PunchHole } else { Step::ZeroRange }
    }

    /// Updates what the gate is told.
    pub(super) fn note_zeroing(&mut self) {
        let no_hole = match self.can.zero_range {
            Support::No => Zeroing::No,
            Support::Assumed if self.source.is_block_device() => Zeroing::LikeWrite,
            Support::Yes | Support::Assumed => Zeroing::Cheap,
        };
        let hole = if self.can.punch_hole.is_worth_trying() { Zeroing::Cheap } else { no_hole };
        self.info.zeroing = (hole, no_hole);
    }

    /// Takes over whether a block device zeroes by itself, as its current limits state. `asked` is the source for which they were
    /// read; the volume may have another one by now.
    pub(super) fn learn_zeroing(&mut self, asked: &Arc<Source>, found: Support) {
        if Arc::ptr_eq(&self.source, asked) {
            self.can.zero_range = found;
            if found == Support::No {
                self.can.punch_hole = Support::No;
            }
            self.note_zeroing();
        }
    }

    /// Records that the file system or the disk has refused a step as not supported.
    pub(super) fn set_unsupported(&mut self, step: Step) {
        let can = &mut self.can;
        match step {
            Step::Discard => can.discard = Support::No,
            Step::PunchHole if !self.source.is_block_device() => can.punch_hole = Support::No,
            Step::PunchHole => (can.punch_hole, can.zero_range) = (Support::No, Support::No),
            _ => can.zero_range = Support::No,
        }
        self.note_zeroing();
    }

    /// Whether it is not known yet if it is the disk that zeroes a range, or the kernel.
    pub(super) fn must_ask_for_zeroing(&self) -> bool {
        self.source.is_block_device() && self.can.zero_range == Support::Assumed
    }
}
