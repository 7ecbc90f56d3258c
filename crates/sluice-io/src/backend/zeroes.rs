//! Requests for zeroes: what they are at the gate, and how much of one is there at a time.
//!
//! Most volumes make zeroes by themselves: the file system punches a hole, the disk has a command. This costs the device
//! little, and the gate charges it per MiB. On a volume that cannot, zeroes are written. Such a request is a write at the
//! gate: charged by its length, counted against limits of bytes, and split as writes are. This is known when the request
//! arrives, except on files, where only an attempt shows it. After a refused attempt the slot ends without effect and the
//! request arrives again, as a write of what is not zero yet.
//!
//! A request can be 4 GiB long, and it carries no data that would bound it. So the gate gets it part by part, each part
//! when the one before it has ended: 64 MiB that the device makes by itself, or 4 pieces of a write. Other requests of the
//! VM pass between the parts. Example: a VM is limited to 1 MiB/s and zeroes 4 GiB on a volume that cannot make zeroes. Its
//! next read waits for the 1 MiB that is at the gate, which is a second, not for 4 GiB, which are 68 minutes. In the VM's
//! window the request holds the bytes of one part.
//!
//! Block devices: with `FALLOC_FL_ZERO_RANGE` the kernel itself writes the zeroes if the disk refuses the command, reports
//! success, and only then sets `write_zeroes_max_bytes` to 0. So the first requests are charged as writes, until the helper
//! thread has read the limit again after one of them. `FALLOC_FL_PUNCH_HOLE` never writes; it fails instead.

use std::sync::Arc;

use sluice_sched::gate::Slot;
use sluice_sched::{GateSettings, Instant, Kind};

use crate::backend::disk::Backend;
use crate::backend::jobs::BlockingJob;
use crate::backend::request::IoRequest;
use crate::backend::volume::{Stage, Volume, VolumeStore};
use crate::slab::{IoId, VolumeKey};
use crate::source::{Source, Support};

/// Pieces of a write that one request for zeroes has at the gate at once. Few, because what its VM asks for later waits
/// behind them; several, so that the device has the next piece while it writes one.
const PIECES: u64 = 4;

impl Volume {
    /// The operation that makes zeroes, and its kind at the gate.
    pub(crate) fn zeroing(&self, no_hole: bool) -> (Stage, Kind) {
        let VolumeStore::File { source, can, .. } = &self.store else { return (Stage::Nothing, Kind::WriteZeroes) };
        if !no_hole && can.punch_hole.is_worth_trying() {
            return (Stage::PunchHole, Kind::WriteZeroes);
        }
        match can.zero_range {
            Support::No => (Stage::WriteZeroes, Kind::Write),
            Support::Assumed if source.is_block_device() => (Stage::ZeroRange, Kind::Write),
            Support::Yes | Support::Assumed => (Stage::ZeroRange, Kind::WriteZeroes),
        }
    }

    /// Determines what the gate is asked for next: the kind, and in `part` of the request how many bytes after `done`. Returns
    /// also how many bytes more the request holds of its VM's window from now on.
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

impl IoRequest {
    /// The gate has completed what it had of the request. Returns whether something is left to do.
    pub(crate) fn part_done(&mut self) -> bool {
        if !std::mem::take(&mut self.refused) {
            self.done += self.part;
        }
        self.done < self.gate_length()
    }
}

/// Bytes of zeroes that one request has at the gate at once.
fn part_max(settings: &GateSettings, kind: Kind) -> u64 {
    match kind {
        Kind::Write => settings.transfer_max.0.max(512).saturating_mul(PIECES),
        _ => settings.discard_max.0.max(512),
    }
}

impl Backend {
    /// The helper has read the limits of a block device again.
    pub(crate) fn learn_zeroing(&mut self, volume: VolumeKey, asked: &Arc<Source>, found: Support) {
        let Some(volume) = self.volumes.get_mut(volume) else { return };
        if let VolumeStore::File { source, can, .. } = &mut volume.store
            && Arc::ptr_eq(source, asked)
        {
            can.zero_range = found;
            if found == Support::No {
                can.punch_hole = Support::No;
            }
        }
    }

    /// A file or disk cannot do what was tried. Zeroes go back to the gate; a discard is advice and may do nothing.
    pub(crate) fn fall_back(&mut self, now: Instant, slot: Slot, id: IoId, stage: Stage) {
        let volume = self.ios[id].volume;
        if let VolumeStore::File { can, source, .. } = &mut self.volumes[volume].store {
            match stage {
                Stage::Discard => can.discard = Support::No,
                Stage::PunchHole if !source.is_block_device() => can.punch_hole = Support::No,
                Stage::PunchHole => (can.punch_hole, can.zero_range) = (Support::No, Support::No),
                _ => can.zero_range = Support::No,
            }
        }
        match stage {
            Stage::Discard => self.stage_done(now, slot),
            _ => self.refuse(now, slot, id),
        }
    }

    /// Zeroes were to be made by the device, which cannot. The slot ends without effect.
    pub(crate) fn refuse(&mut self, now: Instant, slot: Slot, id: IoId) {
        let io = &mut self.ios[id];
        if io.fast {
            return self.end(now, slot, libc::EOPNOTSUPP);
        }
        io.refused = true;
        self.end(now, slot, 0);
    }

    /// Zeroes were made on a block device. Asks whether it was the device that made them, if this is not known.
    pub(crate) fn ask_who_zeroed(&self, id: IoId) {
        let volume = self.ios[id].volume;
        if let VolumeStore::File { source, can, .. } = &self.volumes[volume].store
            && source.is_block_device()
            && can.zero_range == Support::Assumed
        {
            self.blocking.send(BlockingJob::Zeroing { volume, source: Arc::clone(source) });
        }
    }
}

#[cfg(test)]
impl Backend {
    /// The mode of an attempt: one that every file system refuses, where a test wants that.
    pub(crate) fn zeroing_mode(&self, keep: i32) -> i32 {
        /// FALLOC_FL_NO_HIDE_STALE, which is reserved and never done.
        const REFUSED: i32 = 0x04;
        match self.zeroing_left.get() {
            None => keep,
            Some(0) => keep | REFUSED,
            Some(left) => {
                self.zeroing_left.set(Some(left - 1));
                keep
            }
        }
    }
}
