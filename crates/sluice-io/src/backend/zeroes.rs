//! Requests for zeroes: their kind at the gate, and the length of the part that is there at a time.
//!
//! Most volumes zero by themselves: the file system punches a hole, or the disk has a command. This costs the device
//! little, and the gate charges it per MiB. On other volumes zeroes are written. Such a request is a write at the gate:
//! charged by its length, counted against limits in bytes, and split as writes are. Which of both it is, is known when the
//! request arrives, except on files, where only an attempt shows it. After a refused attempt the slot ends without effect,
//! and the request arrives again, as a write of the range that is not zeroed yet.
//!
//! A request can be 4 GiB long, and it carries no data that would bound it. So it arrives at the gate part by part, each
//! part when the previous one has completed: 64 MiB that the device zeroes by itself, or 4 pieces of a write. Other
//! requests of the VM pass between the parts. Example: a VM is limited to 1 MiB/s and zeroes 4 GiB on a volume that cannot
//! zero by itself. Its next read waits for the 1 MiB that is at the gate, which takes a second, and not for 4 GiB, which take
//! 68 minutes. In the VM's window the request holds the bytes of one part.
//!
//! Block devices: with `FALLOC_FL_ZERO_RANGE` the kernel itself writes the zeroes if the disk refuses the command, reports
//! success, and only then sets `write_zeroes_max_bytes` to 0. So the first requests are charged as writes, until the helper
//! thread has read the limit again after one of them. `FALLOC_FL_PUNCH_HOLE` never writes; it fails instead.

use std::sync::Arc;

use sluice_sched::{GateSettings, Kind};

use crate::backend::request::IoRequest;
use crate::backend::volume::{Step, Volume, VolumeStore};
use crate::source::{Source, Support};

/// Pieces of a write that one request for zeroes has at the gate concurrently. Few, because later requests of its VM wait
/// until they complete; several, so that the device has the next piece while it writes one.
const PIECES: u64 = 4;

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

    /// Determines the next arrival at the gate: sets `part` of the request to the number of bytes after `done`, and returns
    /// the kind and the number of bytes by which the request's share of its VM's window grows.
    pub(crate) fn next_part(&self, io: &mut IoRequest, settings: &GateSettings) -> (Kind, u64) {
        let kind = io.gate_kind();
        io.part = io.gate_length() - io.done;
        if kind != Kind::WriteZeroes {
            return (kind, 0);
        }
        let (_, kind) = self.zeroing(io.no_hole);
        io.part = u32::try_from(part_max(settings, kind)).map_or(io.part, |most| io.part.min(most));
        let holds_more = kind == Kind::Write && io.held == 0;
        if holds_more {
            io.held = u64::from(io.part);
        }
        (kind, if holds_more { io.held } else { 0 })
    }
}

impl Volume {
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

impl IoRequest {
    /// Records that the gate has completed the part. Returns whether another part follows.
    pub(crate) fn part_done(&mut self) -> bool {
        if !std::mem::take(&mut self.refused) {
            self.done += self.part;
        }
        self.done < self.gate_length()
    }
}

/// Returns the maximum length of the part that one request for zeroes has at the gate, in bytes.
fn part_max(settings: &GateSettings, kind: Kind) -> u64 {
    match kind {
        Kind::Write => settings.transfer_max.0.max(512).saturating_mul(PIECES),
        _ => settings.discard_max.0.max(512),
    }
}
