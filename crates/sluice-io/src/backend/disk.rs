//! Submissions of the gate, carried out by operations of the ring.
//!
//! A [`SlotOp`] is one submission of the gate in a slot: a whole [`IoRequest`] or a piece of it. It may need several
//! operations: short transfers continue where they stopped, zeroes are written where they cannot be made otherwise, a forced
//! write of zeroes is followed by a sync.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use sluice_sched::gate::{Part, Slot, Submission};
use sluice_sched::{Device, Instant, Kind, Request};

use crate::backend::buffer::{Buffer, Pool, Room};
use crate::backend::delay::Delay;
use crate::backend::jobs::{BlockingJob, Jobs};
use crate::backend::merged::{Merged, PartOf, place_of};
use crate::backend::request::{Data, IoRequest};
use crate::backend::retry::{TRIES_MAX, is_put_off};
use crate::backend::ring::Ring;
use crate::backend::sync::Files;
use crate::backend::tag::Tag;
use crate::backend::volume::{Stage, Volume, VolumeStore};
use crate::slab::{IoId, Slab, VolumeKey};
use crate::source::loss::may_lose_earlier_writes;
use crate::source::{Allocation, ByteRange, Loss, Source, Span};
use crate::virtio::GuestData;

/// Zeroes for writing: as much as one operation takes.
pub(crate) const ZEROES_LEN: usize = 256 << 10;
/// What a slot of the gate does, or a part of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotOp {
    pub(crate) io: IoId,
    /// As what the gate let it through: zeroes that have to be written are a write.
    pub(crate) kind: Kind,
    /// From the start of its request.
    pub(crate) skip: u32,
    pub(crate) length: u32,
    progress: u32,
    /// Times that the kernel has put an operation of it off.
    tries: u16,
    stage: Stage,
    pub(crate) errno: i32,
    /// When the delay device lets it go.
    ends: Instant,
    pub(crate) part_of: Option<PartOf>,
}

/// The device's side of the loop: what stands behind the gate.
pub(crate) struct Backend {
    pub(crate) ring: Ring,
    pub(crate) ios: Slab<IoId, IoRequest>,
    pub(crate) volumes: Slab<VolumeKey, Volume>,
    pub(crate) files: Files,
    pub(crate) pool: Pool,
    pub(crate) delay: Option<Delay>,
    /// By place: those of the gate's slots, and between them parts of merged submissions.
    pub(crate) slot_ops: Vec<Option<SlotOp>>,
    /// Slots whose work is over, to be told to the gate.
    pub(crate) completed: Vec<Slot>,
    pub(crate) blocking: Jobs,
    pub(crate) zeroes: Buffer,
    /// Sources that were replaced, with the places whose operations may still name their descriptors by number.
    retired_sources: Vec<(Arc<Source>, Vec<u32>)>,
    covered: Vec<Slot>,
    /// For each slot the pieces of memory that its operation goes over, if it is several.
    vectors: Vec<Vec<libc::iovec>>,
    pub(crate) merged: Merged,
    /// How many times more file systems make zeroes; `None`: always.
    #[cfg(test)]
    pub(crate) zeroing_left: std::cell::Cell<Option<u32>>,
}

impl Backend {
    pub(crate) fn new(ring: Ring, delay: Option<Delay>, depth: u32, blocking: Jobs) -> Self {
        ring.allow_workers(depth);
        let mut pool = Pool::default();
        let zeroes = pool.take(ZEROES_LEN, Room::Reserve).expect("a device that starts has memory for its zeroes");
        Backend {
            ring,
            ios: Slab::default(),
            volumes: Slab::default(),
            files: Files::default(),
            pool,
            delay,
            slot_ops: vec![None; depth as usize * 2],
            completed: Vec::new(),
            blocking,
            zeroes,
            retired_sources: Vec::new(),
            covered: Vec::new(),
            vectors: vec![Vec::new(); depth as usize * 2],
            merged: Merged::default(),
            #[cfg(test)]
            zeroing_left: Default::default(),
        }
    }

    /// A volume has another source from now on. The old one stays open until nothing can name its descriptor any more: the
    /// number would be the next file's, and an operation that the kernel has not looked at yet would go there.
    pub(crate) fn outlive(&mut self, volume: VolumeKey, source: Arc<Source>) {
        let of_volume = |work: &SlotOp| self.ios[work.io].volume == volume;
        let slot_ops = self.slot_ops.iter().enumerate();
        let places = slot_ops.filter(|(_, work)| work.as_ref().is_some_and(of_volume)).map(|(place, _)| place as u32);
        self.retired_sources.push((source, places.collect()));
        self.retired_sources.retain(|(_, places)| !places.is_empty());
    }

    /// The work at a place is over.
    pub(crate) fn take_op(&mut self, slot: Slot) -> SlotOp {
        if !self.retired_sources.is_empty() {
            self.retired_sources.iter_mut().for_each(|(_, places)| places.retain(|place| *place != slot.0));
            self.retired_sources.retain(|(_, places)| !places.is_empty());
        }
        self.slot_ops[slot.0 as usize].take().expect("a slot that is over was at work")
    }

    /// Lets the helper find the parts of a request's range that hold data. Returns `false` if the answer is already known.
    pub(crate) fn ask_status(&mut self, id: IoId) -> bool {
        let io = &mut self.ios[id];
        let Some(question) = &mut io.question else { return false };
        let part = ByteRange::new(io.offset, u64::from(io.length));
        let VolumeStore::File { source, .. } = &self.volumes[io.volume].store else {
            question.answer = vec![Span { length: part.length, kind: Allocation::Hole }];
            return false;
        };
        let (source, spans_max) = (Arc::clone(source), question.spans_max);
        let asked = self.blocking.send(BlockingJob::Allocation { io: id, source, part, spans_max });
        if !asked {
            io.errno = libc::EIO;
        }
        asked
    }

    /// Lets the helper map the blocks of a volume again.
    pub(crate) fn remap_extents(&self, volume: VolumeKey) {
        if let VolumeStore::File { source, .. } = &self.volumes[volume].store {
            let source = Arc::clone(source);
            self.blocking.send(BlockingJob::Extents { volume, source });
        }
    }

    fn work(&mut self, slot: Slot) -> &mut SlotOp {
        self.slot_ops[slot.0 as usize].as_mut().expect("a slot at work has an entry")
    }

    /// The operation of a slot's work has ended.
    pub(crate) fn operation_completed(&mut self, now: Instant, slot: Slot, result: i32) {
        let SlotOp { stage, io: id, length, .. } = *self.work(slot);
        if is_put_off(result) && self.work(slot).tries < TRIES_MAX {
            self.work(slot).tries += 1;
            return match stage {
                // It is the one that runs already: others wait for it, and it must not wait for itself.
                Stage::Sync => self.push_sync(slot),
                _ => self.start(now, slot),
            };
        }
        match stage {
            Stage::Sync => self.sync_completed(now, slot, result),
            Stage::Transfer | Stage::WriteZeroes if result > 0 => {
                let work = self.work(slot);
                work.progress += result as u32;
                match work.progress < length {
                    true => self.start(now, slot),
                    false => self.stage_done(now, slot),
                }
            }
            // A transfer of nothing: the file has become shorter than the volume.
            Stage::Transfer | Stage::WriteZeroes if result == 0 => self.end(now, slot, libc::EIO),
            Stage::PunchHole | Stage::ZeroRange | Stage::Discard if result == -libc::EOPNOTSUPP => {
                self.fall_back(now, slot, id, stage);
            }
            _ if result < 0 => self.operation_failed(now, slot, -result),
            Stage::ZeroRange => {
                self.ask_who_zeroed(id);
                self.stage_done(now, slot);
            }
            _ => self.stage_done(now, slot),
        }
    }

    /// A write that carries its own sync cannot tell which of both has failed; the kernel reports what was lost before it
    /// once, and it may have done so here.
    fn operation_failed(&mut self, now: Instant, slot: Slot, errno: i32) {
        let SlotOp { stage, io: id, .. } = *self.work(slot);
        let io = &self.ios[id];
        let volume = &self.volumes[io.volume];
        if let VolumeStore::File { source, file, .. } = &volume.store
            && volume.carries_sync(stage, io)
            && may_lose_earlier_writes(errno)
        {
            match source.is_block_device() {
                true => self.lose_volume(io.volume),
                false => self.lose_file(*file, io.volume, "Forced write failed"),
            }
        }
        self.end(now, slot, errno);
    }

    pub(crate) fn stage_done(&mut self, now: Instant, slot: Slot) {
        let SlotOp { stage, io: id, .. } = *self.work(slot);
        let io = &self.ios[id];
        if io.forced && stage != Stage::Sync && !self.volumes[io.volume].carries_sync(stage, io) {
            self.work(slot).stage = Stage::Sync;
            return self.start(now, slot);
        }
        self.end(now, slot, 0);
    }

    fn sync_completed(&mut self, now: Instant, slot: Slot, result: i32) {
        let id = self.work(slot).io;
        let VolumeStore::File { file, .. } = self.volumes[self.ios[id].volume].store else { return };
        let mut covered = std::mem::take(&mut self.covered);
        let next = self.files.synced(file, result >= 0, &mut covered);
        if result < 0 {
            self.lose_file(file, self.ios[id].volume, "Sync failed");
        }
        for slot in covered.drain(..) {
            self.end(now, slot, if result < 0 { libc::EIO } else { 0 });
        }
        self.covered = covered;
        if let Some(next) = next {
            self.push_sync(next);
        }
    }

    /// The real work of a slot is over; the delay device may hold it longer.
    pub(crate) fn end(&mut self, now: Instant, slot: Slot, errno: i32) {
        let work = self.work(slot);
        work.errno = errno;
        let ends = work.ends;
        match &mut self.delay {
            Some(delay) if ends > now => delay.hold(slot, ends),
            _ => self.completed.push(slot),
        }
    }

    /// Lets go what the delay device has held long enough.
    pub(crate) fn release_delayed(&mut self, now: Instant) {
        if let Some(delay) = &mut self.delay {
            while let Some(slot) = delay.pop(now) {
                self.completed.push(slot);
            }
        }
    }

    /// Starts the next operation of a slot's work.
    fn start(&mut self, now: Instant, slot: Slot) {
        let SlotOp { io: id, skip, length, progress, stage, .. } = *self.work(slot);
        let io = &self.ios[id];
        let VolumeStore::File { source, file, .. } = &self.volumes[io.volume].store else {
            return self.end(now, slot, 0);
        };
        if io.kind.is_none() {
            return self.end(now, slot, 0);
        }
        let is_read = stage == Stage::Transfer && io.kind == Some(Kind::Read);
        if source.loss() != Loss::None && (!is_read || source.is_buffered()) {
            return self.end(now, slot, libc::EIO);
        }
        match stage {
            Stage::Sync => {
                if self.files.flush(*file, slot) {
                    self.push_sync(slot);
                }
                return;
            }
            Stage::Nothing => return self.stage_done(now, slot),
            _ => {}
        }
        let fd = types::Fd(source.as_fd().as_raw_fd());
        let place = source.range().offset + io.offset + u64::from(skip + progress);
        if stage == Stage::Discard && source.is_block_device() {
            // The ring has no operation that discards on every kernel that we serve.
            let part = ByteRange::new(place, u64::from(length));
            if !self.blocking.send(BlockingJob::Discard { slot, source: Arc::clone(source), part }) {
                self.end(now, slot, libc::EIO);
            }
            return;
        }
        let left = length - progress;
        let forced = if self.volumes[io.volume].carries_sync(stage, io) { libc::RWF_DSYNC } else { 0 };
        let fallocate = |mode| opcode::Fallocate::new(fd, u64::from(length)).offset(place).mode(mode).build();
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        #[cfg(test)]
        let keep = if matches!(stage, Stage::PunchHole | Stage::ZeroRange) { self.zeroing_mode(keep) } else { keep };
        let entry = match (stage, io.kind) {
            (Stage::Transfer, kind) => {
                let pieces = &mut self.vectors[slot.0 as usize];
                let Some(data) = io.data(skip + progress, left, pieces) else {
                    return self.end(now, slot, libc::ENOMEM);
                };
                transfer(fd, kind == Some(Kind::Read), data, place, forced)
            }
            (Stage::WriteZeroes, _) => {
                let left = left.min(ZEROES_LEN as u32);
                opcode::Write::new(fd, self.zeroes.as_ptr(), left).offset(place).rw_flags(forced).build()
            }
            (Stage::ZeroRange, _) => fallocate(libc::FALLOC_FL_ZERO_RANGE | keep),
            (Stage::PunchHole | Stage::Discard, _) => fallocate(libc::FALLOC_FL_PUNCH_HOLE | keep),
            (Stage::Sync | Stage::Nothing, _) => unreachable!("these were dealt with above"),
        };
        let flags = if source.submission_may_block() { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.flags(flags);
        // SAFETY: the memory belongs to the request, which stays in its table until this slot is over, as do the slot's
        // pieces; the zeroes live as long as the ring; the descriptor is the volume's, which stays while it has work in
        // flight.
        unsafe { self.ring.push_disk_op(entry.user_data(Tag::Disk(slot.0).pack())) };
    }

    fn push_sync(&mut self, slot: Slot) {
        let id = self.work(slot).io;
        let VolumeStore::File { source, .. } = &self.volumes[self.ios[id].volume].store else { return };
        let fd = types::Fd(source.as_fd().as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: no memory is referred to; the descriptor is the volume's, which stays while it has work in flight.
        unsafe { self.ring.push(entry.user_data(Tag::Disk(slot.0).pack())) };
    }

    /// The first operation of work that the gate let through as `kind`; `None`: it was to cost less than it now would.
    fn first_stage(&self, io: &IoRequest, kind: Kind) -> Option<Stage> {
        let volume = &self.volumes[io.volume];
        let VolumeStore::File { can, .. } = &volume.store else { return Some(Stage::Nothing) };
        match io.kind {
            Some(Kind::Flush) => Some(Stage::Sync),
            Some(Kind::Discard) if can.discard.is_worth_trying() => Some(Stage::Discard),
            // Advice that nobody takes; it may still have to be followed by a sync.
            Some(Kind::Discard) => Some(Stage::Nothing),
            Some(Kind::WriteZeroes) => match volume.zeroing(io.no_hole) {
                (_, Kind::Write) if kind == Kind::WriteZeroes => None,
                (stage, _) => Some(stage),
            },
            Some(Kind::Read | Kind::Write) => Some(Stage::Transfer),
            None => Some(Stage::Nothing),
        }
    }
}

fn transfer(fd: types::Fd, is_read: bool, data: Data<'_>, place: u64, forced: i32) -> squeue::Entry {
    match (is_read, data) {
        (true, Data::One(start, len)) => opcode::Read::new(fd, start, len).offset(place).build(),
        (false, Data::One(start, len)) => opcode::Write::new(fd, start, len).offset(place).rw_flags(forced).build(),
        (true, Data::Pieces(pieces)) => {
            opcode::Readv::new(fd, pieces.as_ptr(), pieces.len() as u32).offset(place).build()
        }
        (false, Data::Pieces(pieces)) => {
            opcode::Writev::new(fd, pieces.as_ptr(), pieces.len() as u32).offset(place).rw_flags(forced).build()
        }
    }
}

impl Backend {
    /// Whether a request is to be done, and its client waits for it.
    pub(crate) fn is_wanted(&self, token: u32) -> bool {
        let io = &self.ios[self.ios.id_at(token)];
        !io.abandoned && io.kind.is_some()
    }

    /// When the delay device lets a request go. What nobody waits for any more takes no capacity.
    pub(crate) fn delayed_until(&mut self, now: Instant, wanted: bool, request: &Request) -> Instant {
        let delay = self.delay.as_mut().filter(|_| wanted);
        delay.map_or(now, |delay| delay.start(now, request))
    }

    /// Takes the buffer that a transfer needs, and copies the part of a guest's data that is transferred now, where the disk
    /// wants them aligned and they are not. Done when the gate has let the part through: until then a request takes no memory
    /// and no time of the device thread. Returns `false` if there is no memory.
    fn prepare_data(&mut self, id: IoId, skip: u32, length: u32) -> bool {
        let io = &mut self.ios[id];
        let VolumeStore::File { source, .. } = &self.volumes[io.volume].store else { return true };
        let copies = |guest: &GuestData| !source.is_buffered() && !guest.is_aligned(source.alignment().memory as usize);
        // Decided once for all parts: a resize may bring a disk with another alignment.
        if io.buffer.is_none() && !io.direct {
            io.direct = !io.guest.as_ref().is_none_or(copies);
            if !io.direct {
                io.buffer = self.pool.take(io.length as usize, io.room);
                if io.buffer.is_none() {
                    return false;
                }
            }
        }
        if let (Some(buffer), Some(guest), Some(Kind::Write)) = (&mut io.buffer, &io.guest, io.kind) {
            let part = skip as usize..(skip + length) as usize;
            guest.copy_to(skip, &mut buffer.bytes_mut(part.end)[part]);
        }
        true
    }

    /// Begins the work at a place: a part of what a request has at the gate.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        slot: Slot,
        (kind, part): (Kind, Part),
        ends: Instant,
        part_of: Option<PartOf>,
    ) {
        let id = self.ios.id_at(part.token);
        let (io, length) = (&self.ios[id], part.length);
        let (abandoned, volume) = (io.abandoned, io.volume);
        let skip = io.done + part.skip;
        let first = self.first_stage(io, kind);
        let stage = first.unwrap_or(Stage::Nothing);
        let place = slot.0 as usize;
        if place >= self.slot_ops.len() {
            self.slot_ops.resize(place + 1, None);
            self.vectors.resize(place + 1, Vec::new());
        }
        self.slot_ops[place] =
            Some(SlotOp { io: id, kind, skip, length, progress: 0, tries: 0, stage, errno: 0, ends, part_of });
        self.ios[id].in_flight += 1;
        self.volumes[volume].in_flight += 1;
        if abandoned {
            self.volumes[volume].abandoned_in_flight += 1;
            return self.end(now, slot, libc::ECANCELED);
        }
        match first {
            Some(Stage::Transfer) if !self.prepare_data(id, skip, length) => self.end(now, slot, libc::ENOMEM),
            Some(_) => self.start(now, slot),
            None => self.refuse(now, slot, id),
        }
    }
}

impl Device for Backend {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        let Submission { slot, token, skip, request } = *submission;
        let wanted = self.is_wanted(token);
        let ends = self.delayed_until(now, wanted, &request);
        let part = Part { token, skip, length: request.length };
        self.begin(now, place_of(slot), (request.kind, part), ends, None);
    }

    fn submit_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        self.begin_merged(now, submission, parts);
    }
}
