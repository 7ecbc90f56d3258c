//! Requests for zeroes: their kind at the gate.
//!
//! Most volumes zero by themselves: the file system punches a hole, or the disk has a command. This costs the device
//! little, and the gate charges it per MiB. On other volumes zeroes are written. Such a request is a write at the gate:
//! charged by its length, counted against limits in bytes, and split as writes are. Which of both it is, is known when the
//! request arrives, except on files, where only an attempt shows it. After a refused attempt the slot ends without effect,
//! and the request arrives again, as a write of the range that is not zeroed yet.
//!
//! A request can be 4 GiB long, and it carries no data that would bound it. So it arrives at the gate part by part (`parts.rs`).
//!
//! Block devices: with `FALLOC_FL_ZERO_RANGE` the kernel itself writes the zeroes if the disk refuses the command, reports
//! success, and only then sets `write_zeroes_max_bytes` to 0. So the first requests are charged as writes, until the helper
//! thread has read the limit again after one of them. `FALLOC_FL_PUNCH_HOLE` never writes; it fails instead.

use std::sync::Arc;

use sluice_sched::Kind;

use crate::backend::volume::{Step, Volume, VolumeStore};
use crate::source::{Source, Support};

impl Volume {
    /// Returns the step that zeroes a range, and its kind at the gate.
    pub(crate) fn zeroing(&self, no_hole: bool) -> (Step, Kind) {
        let VolumeStore::File { source, can, .. } = &self.store else { return (Step::Nothing, Kind::WriteZeroes) };
        if !no_hole && can.punch_hole.is_worth_trying() {
            return (Step::PunchHole, Kind::WriteZeroes);
        }
        match can.zero_range {
            Support::No => (Step::WriteZeroes, Kind::Write),
            Support::Assumed if source.is_block_device() => (Step::ZeroRange, Kind::Write),
            Support::Yes | Support::Assumed => (Step::ZeroRange, Kind::WriteZeroes),
        }
    }

    /// Takes over whether a block device zeroes by itself, as its current limits state. `asked` is the source for which they were
    /// read; the volume may have another one by now.
    pub(crate) fn learn_zeroing(&mut self, asked: &Arc<Source>, found: Support) {
        if let VolumeStore::File { source, can, .. } = &mut self.store
            && Arc::ptr_eq(source, asked)
        {
            can.zero_range = found;
            if found == Support::No {
                can.punch_hole = Support::No;
            }
        }
    }

    /// Records that the file system or the disk has refused a step as not supported.
    pub(crate) fn set_unsupported(&mut self, step: Step) {
        let VolumeStore::File { can, source, .. } = &mut self.store else { return };
        match step {
            Step::Discard => can.discard = Support::No,
            Step::PunchHole if !source.is_block_device() => can.punch_hole = Support::No,
            Step::PunchHole => (can.punch_hole, can.zero_range) = (Support::No, Support::No),
            _ => can.zero_range = Support::No,
        }
    }
}
