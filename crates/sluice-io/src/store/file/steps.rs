//! Operations on files: the steps of each, and their operations on the ring.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use super::jobs::BlockingJob;
use super::{FileStore, FileVolumeKey, Volume};
use crate::backend::retry::{TRIES_MAX, is_put_off};
use crate::backend::tag::Tag;
use crate::source::loss::may_lose_earlier_writes;
use crate::source::{ByteRange, Loss};
use crate::store::{Context, Done, Memory, Op, OpIndex, StoreEvent, What};

/// The next operation of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Write,
    PunchHole,
    ZeroRange,
    Discard,
    Nothing,
    Sync,
}

/// An operation that has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    pub(super) volume: FileVolumeKey,
    /// Offset from the start of the volume.
    offset: u64,
    length: u32,
    progress: u32,
    memory: Memory,
    step: Step,
    /// Number of times that the kernel has asked to submit an operation again.
    tries: u16,
    forced: bool,
}

impl FileStore {
    /// Starts an operation.
    pub(super) fn begin(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        let key = self.volumes.id_at(op.volume.index);
        let volume = &mut self.volumes[key];
        let step = match op.what {
            What::Read => Step::Read,
            What::Write => Step::Write,
            What::Flush => Step::Sync,
            What::Zero { no_hole } => volume.zeroing_step(no_hole),
            What::Discard if volume.can.discard.is_worth_trying() => Step::Discard,
            // The advice is ignored, but a sync may still have to follow.
            What::Discard => Step::Nothing,
        };
        if !matches!(op.what, What::Read | What::Flush) {
            volume.look_at_end(context.now, op.what == What::Write);
        }
        let at = op.index.0 as usize;
        if at >= self.running.len() {
            self.running.resize(at + 1, None);
        }
        let Op { offset, length, memory, forced, .. } = *op;
        self.running[at] = Some(Running { volume: key, offset, length, progress: 0, memory, step, tries: 0, forced });
        self.go_on(context, op.index);
    }

    fn running(&mut self, index: OpIndex) -> &mut Running {
        self.running[index.0 as usize].as_mut().expect("an operation in flight has an entry")
    }

    /// Starts the next operation of a step.
    fn go_on(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let op = *self.running(index);
        let Volume { source, file, .. } = &self.volumes[op.volume];
        let (step, is_read) = (op.step, op.step == Step::Read);
        if source.loss() != Loss::None && (!is_read || source.is_buffered()) {
            return self.end(context, index, Done::Failed(libc::EIO));
        }
        let end = source.range().offset + op.offset + u64::from(op.length);
        if step != Step::Sync && !is_read && source.is_cut_before(end) {
            return self.end(context, index, Done::Failed(libc::EIO));
        }
        match step {
            Step::Sync => {
                if self.files.flush(*file, index) {
                    self.push_sync(context, index);
                }
            }
            Step::Nothing => self.step_done(context, index),
            // The ring has no operation that discards on every kernel that we support.
            Step::Discard if source.is_block_device() => self.discard(context, index),
            _ => self.push_operation(context, index),
        }
    }

    /// Lets the helper discard a range of a block device.
    fn discard(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let op = *self.running(index);
        let source = Arc::clone(&self.volumes[op.volume].source);
        let part = ByteRange::new(source.range().offset + op.offset, u64::from(op.length));
        if !context.jobs.send(BlockingJob::Discard { op: index, source, part }) {
            self.end(context, index, Done::Failed(libc::EIO));
        }
    }

    /// Pushes a transfer, zeroing or discard to the ring.
    fn push_operation(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let op = *self.running(index);
        let volume = &self.volumes[op.volume];
        let source = &volume.source;
        let fd = types::Fd(source.as_fd().as_raw_fd());
        let offset = source.range().offset + op.offset + u64::from(op.progress);
        let fallocate = |mode| opcode::Fallocate::new(fd, u64::from(op.length)).offset(offset).mode(mode).build();
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        #[cfg(test)]
        let keep = if matches!(op.step, Step::PunchHole | Step::ZeroRange) {
            zeroing_mode(&mut self.zeroing_left, keep)
        } else {
            keep
        };
        let entry = match op.step {
            Step::Read | Step::Write => transfer(fd, &op, offset, volume.carries_sync(&op)),
            Step::ZeroRange => fallocate(libc::FALLOC_FL_ZERO_RANGE | keep),
            Step::PunchHole | Step::Discard => fallocate(libc::FALLOC_FL_PUNCH_HOLE | keep),
            Step::Sync | Step::Nothing => unreachable!("`go_on` handles these"),
        };
        let flags = if source.submission_may_block() { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.flags(flags).user_data(self.tag(index));
        // SAFETY: the memory stays until the operation has ended, as `Memory` promises; the descriptor is the volume's, which stays
        // while it has operations in flight.
        unsafe { context.ring.push_disk_op(entry) };
    }

    fn push_sync(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let key = self.running(index).volume;
        let fd = types::Fd(self.volumes[key].source.as_fd().as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: it refers to no memory; the descriptor is the volume's, which stays while it has operations in flight.
        unsafe { context.ring.push(entry.user_data(self.tag(index))) };
    }

    fn tag(&self, index: OpIndex) -> u64 {
        Tag::Store(StoreEvent { kind: self.kind, operation: 0, index: index.0 }).pack()
    }

    /// Handles the result of an operation: 0 or a number of bytes, or a negated errno.
    pub(super) fn operation_completed(&mut self, context: &mut Context<'_>, index: OpIndex, result: i32) {
        let op = self.running(index);
        let step = op.step;
        if is_put_off(result) && op.tries < TRIES_MAX {
            op.tries += 1;
            return match step {
                // Other flushes wait for this sync. Starting the step again would make it wait for itself.
                Step::Sync => self.push_sync(context, index),
                _ => self.go_on(context, index),
            };
        }
        match step {
            Step::Sync => self.sync_completed(context, index, result),
            Step::Read | Step::Write if result > 0 => {
                op.progress += result as u32;
                if op.progress >= op.length {
                    return self.step_done(context, index);
                }
                // SAFETY: the operation has not ended, and more is left of it.
                unsafe { op.memory.advance(result as usize) };
                self.go_on(context, index);
            }
            // A transfer of 0 bytes: the file has become shorter than the volume.
            Step::Read | Step::Write if result == 0 => self.end(context, index, Done::Failed(libc::EIO)),
            Step::PunchHole | Step::ZeroRange | Step::Discard if result == -libc::EOPNOTSUPP => {
                self.fall_back(context, index, step);
            }
            _ if result < 0 => self.operation_failed(context, index, -result),
            Step::ZeroRange => {
                self.ask_for_zeroing(context, index);
                self.step_done(context, index);
            }
            _ => self.step_done(context, index),
        }
    }

    /// A write that carries its own sync does not show which of the two has failed. The kernel reports an earlier loss only
    /// once, and it may have done so here.
    fn operation_failed(&mut self, context: &mut Context<'_>, index: OpIndex, errno: i32) {
        let op = *self.running(index);
        let volume = &self.volumes[op.volume];
        if volume.carries_sync(&op) && may_lose_earlier_writes(errno) {
            match volume.source.is_block_device() {
                true => self.lose_volume(op.volume),
                false => self.lose_file(op.volume, "Forced write failed"),
            }
        }
        self.end(context, index, Done::Failed(errno));
    }

    fn step_done(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let op = *self.running(index);
        if op.forced && op.step != Step::Sync && !self.volumes[op.volume].carries_sync(&op) {
            self.note_write(context, &op);
            self.running(index).step = Step::Sync;
            return self.go_on(context, index);
        }
        self.end(context, index, Done::Ok);
    }

    fn sync_completed(&mut self, context: &mut Context<'_>, index: OpIndex, result: i32) {
        let key = self.running(index).volume;
        let file = self.volumes[key].file;
        let mut covered = std::mem::take(&mut self.covered);
        let next = self.files.synced(file, result >= 0, &mut covered);
        if result < 0 {
            self.lose_file(key, "Sync failed");
        }
        for op in covered.drain(..) {
            self.end(context, op, if result < 0 { Done::Failed(libc::EIO) } else { Done::Ok });
        }
        self.covered = covered;
        if let Some(op) = next {
            self.push_sync(context, op);
        }
    }

    /// Handles a step that the file system or the disk does not support. Zeroes return to the gate; a discard is advice and
    /// may have no effect.
    fn fall_back(&mut self, context: &mut Context<'_>, index: OpIndex, step: Step) {
        let key = self.running(index).volume;
        self.volumes[key].set_unsupported(step);
        match step {
            Step::Discard => self.step_done(context, index),
            _ => self.end(context, index, Done::TooDear),
        }
    }

    /// Lets the helper find out whether it was the block device that zeroed a range, if this is not known.
    fn ask_for_zeroing(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let key = self.running(index).volume;
        let volume = &self.volumes[key];
        if volume.must_ask_for_zeroing() {
            context.jobs.send(BlockingJob::Zeroing { volume: key, source: Arc::clone(&volume.source) });
        }
    }

    /// Lets the helper map the blocks of a volume again after a write, if it is time.
    fn note_write(&mut self, context: &mut Context<'_>, op: &Running) {
        let volume = &mut self.volumes[op.volume];
        if op.step == Step::Write && volume.wrote(context.now, op.offset, op.length) {
            context.jobs.send(BlockingJob::Extents { volume: op.volume, source: Arc::clone(&volume.source) });
        }
    }

    fn end(&mut self, context: &mut Context<'_>, index: OpIndex, done: Done) {
        let op = self.running[index.0 as usize].take().expect("an operation in flight has an entry");
        self.note_write(context, &op);
        if !self.retired.is_empty() {
            self.retired.iter_mut().for_each(|(_, users)| users.retain(|user| *user != index));
            self.retired.retain(|(_, users)| !users.is_empty());
        }
        self.done.push((index, done));
    }
}

impl Volume {
    /// Whether an operation makes itself durable. Otherwise a sync follows it.
    fn carries_sync(&self, op: &Running) -> bool {
        op.forced && op.step == Step::Write && self.source.forces_writes()
    }
}

fn transfer(fd: types::Fd, op: &Running, offset: u64, carries_sync: bool) -> squeue::Entry {
    let forced = if carries_sync { libc::RWF_DSYNC } else { 0 };
    let left = op.length - op.progress;
    match (op.step == Step::Read, op.memory) {
        (true, Memory::One(start)) => opcode::Read::new(fd, start, left).offset(offset).build(),
        (false, Memory::One(start)) => opcode::Write::new(fd, start, left).offset(offset).rw_flags(forced).build(),
        (true, Memory::Pieces(first, count)) => opcode::Readv::new(fd, first, count).offset(offset).build(),
        (false, Memory::Pieces(first, count)) => {
            opcode::Writev::new(fd, first, count).offset(offset).rw_flags(forced).build()
        }
        (_, Memory::None) => unreachable!("a transfer has memory"),
    }
}

/// Returns the mode of an attempt to zero a range: one that every file system refuses, if a test wants that.
#[cfg(test)]
fn zeroing_mode(left: &mut Option<u32>, keep: i32) -> i32 {
    /// FALLOC_FL_NO_HIDE_STALE, which is reserved and always refused.
    const REFUSED: i32 = 0x04;
    match left {
        None => keep,
        Some(0) => keep | REFUSED,
        Some(left) => {
            *left -= 1;
            keep
        }
    }
}
