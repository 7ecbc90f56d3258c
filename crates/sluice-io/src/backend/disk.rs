//! The disk of a device thread: carries out submissions of the gate by operations of the io_uring.
//!
//! A [`SlotOp`] is one submission in a slot of the gate: a whole [`IoRequest`], a piece of it, or a part of a merged
//! submission. It has a [`Step`] and may need several operations: a short transfer continues where it stopped, zeroes are
//! written where the disk cannot zero by itself, and a forced write of zeroes is followed by a sync.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use sluice_sched::gate::{Finished, Part, Slot, Submission};
use sluice_sched::{Device, Gate, Instant, Kind};

use crate::backend::buffer::{Buffer, Pool, Room};
use crate::backend::device_queue::{DeviceQueue, OpIndex};
use crate::backend::jobs::{BlockingJob, Jobs};
use crate::backend::lost;
use crate::backend::merged::{Merged, SlotResult};
use crate::backend::request::{Body, Data, IoRequest, Place};
use crate::backend::retry::{TRIES_MAX, is_put_off};
use crate::backend::ring::Ring;
use crate::backend::sync::Files;
use crate::backend::tag::Tag;
use crate::backend::volume::{Step, Volume, VolumeStore};
use crate::slab::{IoId, Slab, VolumeKey};
use crate::source::loss::may_lose_earlier_writes;
use crate::source::{Allocation, ByteRange, Loss, Source, Span, Support};
use crate::virtio::GuestData;

/// Length of the buffer of zeroes, which is the most that one operation writes.
pub(crate) const ZEROES_LEN: usize = 256 << 10;

/// A submission of the gate in a slot, or a part of a merged one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotOp {
    pub(crate) io: IoId,
    /// The kind as which the gate dispatched it: zeroes that must be written are a write.
    pub(crate) kind: Kind,
    /// Offset from the start of the request.
    pub(crate) skip: u32,
    pub(crate) length: u32,
    progress: u32,
    /// Number of times that the kernel has asked to submit an operation again.
    tries: u16,
    step: Step,
    pub(crate) errno: i32,
}

/// The disk: what is behind the gate. It also has the tables that operations refer to.
pub(crate) struct Backend {
    pub(crate) ring: Ring,
    pub(crate) ios: Slab<IoId, IoRequest>,
    pub(crate) volumes: Slab<VolumeKey, Volume>,
    pub(crate) files: Files,
    pub(crate) pool: Pool,
    /// By [`OpIndex`].
    slot_ops: Vec<Option<SlotOp>>,
    /// Operations that have completed, for the gate.
    pub(crate) completed: Vec<OpIndex>,
    pub(crate) blocking: Jobs,
    pub(crate) zeroes: Buffer,
    /// Replaced sources, with the operations that may still name their descriptors by number.
    retired_sources: Vec<(Arc<Source>, Vec<OpIndex>)>,
    covered: Vec<OpIndex>,
    /// By [`OpIndex`]: the memory segments of an operation that has several.
    vectors: Vec<Vec<libc::iovec>>,
    merged: Merged,
    /// Number of zero-range operations that file systems still accept; `None`: all.
    #[cfg(test)]
    pub(crate) zeroing_left: std::cell::Cell<Option<u32>>,
}

impl Backend {
    pub(crate) fn new(ring: Ring, depth: u32, blocking: Jobs) -> Self {
        ring.allow_workers(depth);
        let mut pool = Pool::default();
        let zeroes = pool.take(ZEROES_LEN, Room::Reserve).expect("a device that starts has memory for its zeroes");
        Backend {
            ring,
            ios: Slab::default(),
            volumes: Slab::default(),
            files: Files::default(),
            pool,
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

    /// Keeps the replaced source of a volume open until no operation names its descriptor any more. Otherwise the next file
    /// could get the same number, and an operation that the kernel has not looked at yet would go there.
    pub(crate) fn retire_source(&mut self, volume: VolumeKey, source: Arc<Source>) {
        let of_volume = |op: &SlotOp| self.ios[op.io].volume == volume;
        let slot_ops = self.slot_ops.iter().enumerate();
        let users = slot_ops.filter(|(_, op)| op.as_ref().is_some_and(of_volume));
        self.retired_sources.push((source, users.map(|(index, _)| OpIndex(index as u32)).collect()));
        self.retired_sources.retain(|(_, users)| !users.is_empty());
    }

    /// Removes a completed operation from the table.
    pub(crate) fn take_op(&mut self, index: OpIndex) -> SlotOp {
        if !self.retired_sources.is_empty() {
            self.retired_sources.iter_mut().for_each(|(_, users)| users.retain(|user| *user != index));
            self.retired_sources.retain(|(_, users)| !users.is_empty());
        }
        self.slot_ops[index.0 as usize].take().expect("a completed operation was in flight")
    }

    /// Reports the end of an operation to the gate, if its slot has completed with it.
    pub(crate) fn complete_in_gate(
        &mut self,
        gate: &mut Gate,
        now: Instant,
        (index, ok): (OpIndex, bool),
        finished: &mut Vec<Finished>,
    ) {
        match self.merged.complete(index, ok) {
            SlotResult::Completed(slot) => gate.complete_all(now, slot, ok, finished),
            SlotResult::AllParts(slot, parts) => gate.complete_parts(now, slot, parts, finished),
            SlotResult::Pending => {}
        }
    }

    /// Lets the helper find the parts of a request's range that hold data. Returns `false` if the answer is already known.
    pub(crate) fn ask_status(&mut self, id: IoId) -> bool {
        let io = &mut self.ios[id];
        let part = ByteRange::new(io.offset, u64::from(io.length));
        let Body::Query(question) = &mut io.body else { return false };
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

    fn op(&mut self, index: OpIndex) -> &mut SlotOp {
        self.slot_ops[index.0 as usize].as_mut().expect("an operation in flight has an entry")
    }

    /// Starts an operation for a submission or a part of it.
    fn begin(&mut self, now: Instant, index: OpIndex, kind: Kind, part: Part) {
        let id = self.ios.id_at(part.token);
        let (io, length) = (&mut self.ios[id], part.length);
        let volume = &mut self.volumes[io.volume];
        let at = index.0 as usize;
        if at >= self.slot_ops.len() {
            self.slot_ops.resize(at + 1, None);
            self.vectors.resize(at + 1, Vec::new());
        }
        let skip = io.done + part.skip;
        io.in_flight += 1;
        volume.in_flight += 1;
        volume.look_at_end(now, kind);
        let op = SlotOp { io: id, kind, skip, length, progress: 0, tries: 0, step: Step::Nothing, errno: 0 };
        if !io.abandoned && volume.is_null() {
            self.slot_ops[at] = Some(op);
            return self.completed.push(index);
        }
        if io.abandoned {
            volume.abandon(1);
            self.slot_ops[at] = Some(SlotOp { errno: libc::ECANCELED, ..op });
            return self.completed.push(index);
        }
        let first = self.first_step(&self.ios[id], kind);
        self.slot_ops[at] = Some(SlotOp { step: first.unwrap_or(Step::Nothing), ..op });
        match first {
            Some(Step::Transfer) if !self.prepare_data(id, skip, length) => self.end(index, libc::ENOMEM),
            Some(_) => self.start(index),
            None => self.refuse_zeroing(index, id),
        }
    }

    /// Returns the first step of a submission that the gate dispatched as `kind`; `None` if it now costs more than that.
    fn first_step(&self, io: &IoRequest, kind: Kind) -> Option<Step> {
        let volume = &self.volumes[io.volume];
        let VolumeStore::File { can, .. } = &volume.store else { return Some(Step::Nothing) };
        match io.body {
            Body::Flush => Some(Step::Sync),
            Body::Discard if can.discard.is_worth_trying() => Some(Step::Discard),
            // The advice is ignored, but a sync may still have to follow.
            Body::Discard | Body::Query(_) | Body::Answered | Body::Refused => Some(Step::Nothing),
            Body::Zero { no_hole, .. } => match volume.zeroing(no_hole) {
                (_, Kind::Write) if kind == Kind::WriteZeroes => None,
                (step, _) => Some(step),
            },
            Body::Read | Body::Write => Some(Step::Transfer),
        }
    }

    /// Takes the buffer that a transfer needs, and copies the guest's data for this part if the disk requires an alignment
    /// that they do not have. This happens after dispatch: until then a request takes no memory and no time of the device
    /// thread. Returns `false` if there is no memory.
    fn prepare_data(&mut self, id: IoId, skip: u32, length: u32) -> bool {
        let io = &mut self.ios[id];
        if let Some(buffer_len) = io.bridge_len() {
            if io.data.buffer().is_none() && !io.data.set_buffer(self.pool.take(buffer_len, io.data.room)) {
                return false;
            }
            io.fill_step(skip, length);
            return true;
        }
        let VolumeStore::File { source, .. } = &self.volumes[io.volume].store else { return true };
        let copies = |guest: &GuestData| !source.is_buffered() && !guest.is_aligned(source.alignment().memory as usize);
        // Decided once for all pieces of a part, because a resize may bring a disk with another alignment.
        if matches!(io.data.place, Place::Open) {
            if io.data.guest.as_ref().is_some_and(|guest| !copies(guest)) {
                io.data.place = Place::Guest;
                return true;
            }
            // The copy of a guest's data is that of a part. A client's reply has all of it.
            let len = if io.data.guest.is_some() { io.part } else { io.length };
            if !io.data.set_buffer(self.pool.take(len as usize, io.data.room)) {
                return false;
            }
        }
        if let (Place::Buffer(buffer), Some(guest), Body::Write) = (&mut io.data.place, &io.data.guest, &io.body) {
            let part = (skip - io.done) as usize..(skip - io.done + length) as usize;
            guest.copy_to(skip, &mut buffer.bytes_mut(part.end)[part]);
        }
        true
    }

    /// Starts the next operation of a step.
    fn start(&mut self, index: OpIndex) {
        let SlotOp { io: id, step, skip, length, .. } = *self.op(index);
        let io = &self.ios[id];
        let VolumeStore::File { source, file, .. } = &self.volumes[io.volume].store else {
            return self.end(index, 0);
        };
        if io.body.kind().is_none() {
            return self.end(index, 0);
        }
        let is_read = step == Step::Transfer && matches!(io.body, Body::Read);
        if source.loss() != Loss::None && (!is_read || source.is_buffered()) {
            return self.end(index, libc::EIO);
        }
        let end = source.range().offset + io.offset + u64::from(skip + length);
        if step != Step::Sync && !is_read && source.is_cut_before(end) {
            return self.end(index, libc::EIO);
        }
        match step {
            Step::Sync => {
                if self.files.flush(*file, index) {
                    self.push_sync(index);
                }
            }
            Step::Nothing => self.step_done(index),
            // The ring has no operation that discards on every kernel that we support.
            Step::Discard if source.is_block_device() => self.discard(index),
            _ => self.push_operation(index),
        }
    }

    /// Lets the helper discard a range of a block device.
    fn discard(&mut self, index: OpIndex) {
        let SlotOp { io: id, skip, length, progress, .. } = *self.op(index);
        let io = &self.ios[id];
        let VolumeStore::File { source, .. } = &self.volumes[io.volume].store else { return };
        let offset = source.range().offset + io.offset + u64::from(skip + progress);
        let part = ByteRange::new(offset, u64::from(length));
        if !self.blocking.send(BlockingJob::Discard { op: index, source: Arc::clone(source), part }) {
            self.end(index, libc::EIO);
        }
    }

    /// Pushes a transfer, zeroing or discard to the ring.
    fn push_operation(&mut self, index: OpIndex) {
        let SlotOp { io: id, skip, length, progress, step, .. } = *self.op(index);
        let io = &self.ios[id];
        let volume = &self.volumes[io.volume];
        let VolumeStore::File { source, .. } = &volume.store else { return };
        let fd = types::Fd(source.as_fd().as_raw_fd());
        let offset = source.range().offset + io.offset + u64::from(skip + progress);
        let left = length - progress;
        let forced = if volume.carries_sync(step, io) { libc::RWF_DSYNC } else { 0 };
        let fallocate = |mode| opcode::Fallocate::new(fd, u64::from(length)).offset(offset).mode(mode).build();
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        #[cfg(test)]
        let keep = if matches!(step, Step::PunchHole | Step::ZeroRange) { self.zeroing_mode(keep) } else { keep };
        let entry = match step {
            Step::Transfer => {
                let segments = &mut self.vectors[index.0 as usize];
                let Some(data) = io.data(skip + progress, left, segments) else {
                    return self.end(index, libc::ENOMEM);
                };
                transfer(fd, matches!(io.body, Body::Read), data, offset, forced)
            }
            Step::WriteZeroes => {
                let left = left.min(ZEROES_LEN as u32);
                opcode::Write::new(fd, self.zeroes.as_ptr(), left).offset(offset).rw_flags(forced).build()
            }
            Step::ZeroRange => fallocate(libc::FALLOC_FL_ZERO_RANGE | keep),
            Step::PunchHole | Step::Discard => fallocate(libc::FALLOC_FL_PUNCH_HOLE | keep),
            Step::Sync | Step::Nothing => unreachable!("`start` handles these"),
        };
        let flags = if source.submission_may_block() { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.flags(flags);
        // SAFETY: the memory belongs to the request, which stays in its table until this operation has completed, and so do
        // its segments; the zeroes live as long as the ring; the descriptor is the volume's, which stays while it has
        // operations in flight.
        unsafe { self.ring.push_disk_op(entry.user_data(Tag::Disk(index).pack())) };
    }

    fn push_sync(&mut self, index: OpIndex) {
        let id = self.op(index).io;
        let VolumeStore::File { source, .. } = &self.volumes[self.ios[id].volume].store else { return };
        let fd = types::Fd(source.as_fd().as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: it refers to no memory; the descriptor is the volume's, which stays while it has operations in flight.
        unsafe { self.ring.push(entry.user_data(Tag::Disk(index).pack())) };
    }

    /// Handles the result of an operation: 0 or a number of bytes, or a negated errno.
    pub(crate) fn operation_completed(&mut self, index: OpIndex, result: i32) {
        let SlotOp { step, io: id, length, .. } = *self.op(index);
        if is_put_off(result) && self.op(index).tries < TRIES_MAX {
            self.op(index).tries += 1;
            return match step {
                // Other flushes wait for this sync. Starting the step again would make it wait for itself.
                Step::Sync => self.push_sync(index),
                _ => self.start(index),
            };
        }
        match step {
            Step::Sync => self.sync_completed(index, result),
            Step::Transfer | Step::WriteZeroes if result > 0 => {
                let op = self.op(index);
                op.progress += result as u32;
                match op.progress < length {
                    true => self.start(index),
                    false => self.step_done(index),
                }
            }
            // A transfer of 0 bytes: the file has become shorter than the volume.
            Step::Transfer | Step::WriteZeroes if result == 0 => self.end(index, libc::EIO),
            Step::PunchHole | Step::ZeroRange | Step::Discard if result == -libc::EOPNOTSUPP => {
                self.fall_back(index, id, step);
            }
            _ if result < 0 => self.operation_failed(index, -result),
            Step::ZeroRange => {
                self.query_zeroing(id);
                self.step_done(index);
            }
            _ => self.step_done(index),
        }
    }

    /// A write that carries its own sync does not show which of the two has failed. The kernel reports an earlier loss only
    /// once, and it may have done so here.
    fn operation_failed(&mut self, index: OpIndex, errno: i32) {
        let SlotOp { step, io: id, .. } = *self.op(index);
        let io = &self.ios[id];
        let (key, volume) = (io.volume, &self.volumes[io.volume]);
        if let VolumeStore::File { source, file, .. } = &volume.store
            && volume.carries_sync(step, io)
            && may_lose_earlier_writes(errno)
        {
            let file = *file;
            match source.is_block_device() {
                true => lost::lose_volume(volume),
                false => lost::lose_file(&mut self.volumes, &mut self.files, file, key, "Forced write failed"),
            }
        }
        self.end(index, errno);
    }

    fn step_done(&mut self, index: OpIndex) {
        let SlotOp { step, io: id, .. } = *self.op(index);
        let io = &self.ios[id];
        if io.forced && step != Step::Sync && !self.volumes[io.volume].carries_sync(step, io) {
            self.op(index).step = Step::Sync;
            return self.start(index);
        }
        self.end(index, 0);
    }

    fn sync_completed(&mut self, index: OpIndex, result: i32) {
        let id = self.op(index).io;
        let volume = self.ios[id].volume;
        let VolumeStore::File { file, .. } = self.volumes[volume].store else { return };
        let mut covered = std::mem::take(&mut self.covered);
        let next = self.files.synced(file, result >= 0, &mut covered);
        if result < 0 {
            lost::lose_file(&mut self.volumes, &mut self.files, file, volume, "Sync failed");
        }
        for op in covered.drain(..) {
            self.end(op, if result < 0 { libc::EIO } else { 0 });
        }
        self.covered = covered;
        if let Some(op) = next {
            self.push_sync(op);
        }
    }

    /// Handles a step that the file system or the disk does not support. Zeroes return to the gate; a discard is advice and
    /// may have no effect.
    fn fall_back(&mut self, index: OpIndex, id: IoId, step: Step) {
        let volume = self.ios[id].volume;
        self.volumes[volume].set_unsupported(step);
        match step {
            Step::Discard => self.step_done(index),
            _ => self.refuse_zeroing(index, id),
        }
    }

    /// Ends an operation without effect, because the device cannot zero by itself.
    fn refuse_zeroing(&mut self, index: OpIndex, id: IoId) {
        let io = &mut self.ios[id];
        if io.body.is_fast() {
            return self.end(index, libc::EOPNOTSUPP);
        }
        io.part = 0;
        self.end(index, 0);
    }

    /// Lets the helper find out whether it was the block device that zeroed a range, if this is not known.
    fn query_zeroing(&self, id: IoId) {
        let volume = self.ios[id].volume;
        if let VolumeStore::File { source, can, .. } = &self.volumes[volume].store
            && source.is_block_device()
            && can.zero_range == Support::Assumed
        {
            self.blocking.send(BlockingJob::Zeroing { volume, source: Arc::clone(source) });
        }
    }

    fn end(&mut self, index: OpIndex, errno: i32) {
        self.op(index).errno = errno;
        self.completed.push(index);
    }
}

impl Device for Backend {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        let Submission { slot, token, skip, request } = *submission;
        self.begin(now, OpIndex(slot.0 * 2), request.kind, Part { token, skip, length: request.length });
    }

    fn submit_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        self.merged.start(submission.slot, parts.len());
        for (number, part) in parts.iter().enumerate() {
            let index = self.merged.add_part(submission.slot, number as u32);
            self.begin(now, index, submission.request.kind, *part);
        }
    }
}

impl DeviceQueue for Backend {
    fn next_completed(&mut self, _now: Instant) -> Option<OpIndex> {
        self.completed.pop()
    }

    fn next_wakeup(&self) -> Option<Instant> {
        None
    }

    fn slot_of(&self, index: OpIndex) -> Slot {
        self.merged.slot_of(index)
    }

    fn occupies_device(&self, token: u32) -> bool {
        let io = &self.ios[self.ios.id_at(token)];
        !io.abandoned && io.body.kind().is_some()
    }
}

fn transfer(fd: types::Fd, is_read: bool, data: Data<'_>, offset: u64, forced: i32) -> squeue::Entry {
    match (is_read, data) {
        (true, Data::One(start, len)) => opcode::Read::new(fd, start, len).offset(offset).build(),
        (false, Data::One(start, len)) => opcode::Write::new(fd, start, len).offset(offset).rw_flags(forced).build(),
        (true, Data::Pieces(segments)) => {
            opcode::Readv::new(fd, segments.as_ptr(), segments.len() as u32).offset(offset).build()
        }
        (false, Data::Pieces(segments)) => {
            opcode::Writev::new(fd, segments.as_ptr(), segments.len() as u32).offset(offset).rw_flags(forced).build()
        }
    }
}

#[cfg(test)]
impl Backend {
    /// Returns the mode of an attempt to zero a range: one that every file system refuses, if a test wants that.
    fn zeroing_mode(&self, keep: i32) -> i32 {
        /// FALLOC_FL_NO_HIDE_STALE, which is reserved and always refused.
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
