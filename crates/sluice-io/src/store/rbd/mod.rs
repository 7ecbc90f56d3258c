//! Volumes that are RBD images.
//!
//! ```text
//!     start(Op) --> librbd's threads --> ended operations --eventfd, Read of the ring--> next_done()
//! ```
//!
//! librbd queues operations and never waits in the calls that start them. It waits for a cluster that is away as long as that takes, and sends
//! again by itself, so an operation fails only if the cluster says so. A write that is to be durable is followed by a flush.

use std::sync::Arc;

use io_uring::{opcode, types};
use sluice_sched::{Instant, Kind};

use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::ceph::image::Act;
use crate::slab::{Id as _, Slab, ids};
use crate::source::claims::Claims;
use crate::source::rbd::Rbd;
use crate::source::{ByteRange, FaultReport, Source};
use crate::store::file::jobs::{BlockingJob, Jobs};
use crate::store::{
    AllocationQuery, Answer, Blocks, Context, Done, Label, Op, OpIndex, Open, Store, StoreEvent, StoreInfo,
    StoreNumber, StoreRef, StoreSpec, Volumes, What, Zeroing,
};

ids! {
    /// A volume of this store.
    RbdKey;
}

/// Operations of the ring: operations of an image have ended; none is left.
const ENDED: u8 = 0;
const QUIET: u8 = 1;

struct Volume {
    label: Label,
    source: Arc<Source<Rbd>>,
    info: StoreInfo,
    /// The value of its eventfd, which the ring reads; `None` while it does not.
    signal: Option<Box<u64>>,
    /// Whether it was closed while the ring was reading.
    is_closed: bool,
    /// Whether the cluster has locked this connection out.
    is_locked_out: bool,
    /// End of the image in bytes, if it has become shorter than the volume: librbd cuts writes off there, and confirms them.
    ends_at: Option<u64>,
}

/// An operation that has not ended.
#[derive(Clone, Copy)]
struct Running {
    volume: RbdKey,
    act: Act,
    range: ByteRange,
    /// Whether a flush must follow.
    flushes: bool,
    /// Whether its range has no object, so that the library answers a read by itself.
    is_at_hand: bool,
}

/// All images of a device thread.
pub(crate) struct RbdStore {
    kind: StoreNumber,
    volumes: Slab<RbdKey, Volume>,
    /// By [`OpIndex`].
    running: Vec<Option<Running>>,
    done: Vec<(OpIndex, Done)>,
    /// Kept between two events.
    ended: Vec<(OpIndex, i64)>,
    /// What the ring reads when the thread stops. The values are not used, so there is one place for all.
    last: Box<u64>,
}

impl Store for RbdStore {
    fn info(&self, volume: StoreRef) -> &StoreInfo {
        &self.volumes[self.volumes.id_at(volume.index)].info
    }

    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        let key = self.volumes.id_at(op.volume.index);
        let volume = &mut self.volumes[key];
        let act = match op.what {
            What::Read => Act::Read,
            What::Write => Act::Write,
            What::Zero { no_hole } => Act::Zero { no_hole },
            What::Discard if volume.source.kind().unmaps => Act::Discard,
            What::Discard if !op.forced => return self.done.push((op.index, Done::Ok)),
            What::Discard | What::Flush => Act::Flush,
        };
        let range = ByteRange::new(op.offset, op.length.into());
        if volume.source.kind().image.has_changed() {
            context.jobs.send(BlockingJob::ImageSize { volume: key, source: Arc::clone(&volume.source) });
        }
        let image = &volume.source.kind().image;
        let is_at_hand = act == Act::Read && image.is_never_written(range);
        if matches!(act, Act::Write | Act::Zero { .. }) {
            image.note_written(range);
        }
        let flushes = op.forced && !matches!(act, Act::Read | Act::Flush);
        let at = op.index.0 as usize;
        if at >= self.running.len() {
            self.running.resize(at + 1, None);
        }
        self.running[at] = Some(Running { volume: key, act, range, flushes, is_at_hand });
        volume.listen(context.ring, self.kind, key);
        // SAFETY: the memory has as many bytes as the operation, and stays until it has ended.
        unsafe { volume.source.kind().image.start(op.index, act, range, op.memory) };
    }

    fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, _result: i32) {
        if event.operation != ENDED {
            return;
        }
        let key = self.volumes.id_at(event.index);
        let volume = &mut self.volumes[key];
        volume.signal = None;
        if volume.is_closed {
            let Volume { source, .. } = self.volumes.remove(key);
            return context.jobs.close(source);
        }
        let mut ended = std::mem::take(&mut self.ended);
        volume.source.kind().image.take_ended(&mut ended);
        volume.listen(context.ring, self.kind, key);
        for (index, result) in ended.drain(..) {
            self.end(index, result);
        }
        self.ended = ended;
    }

    fn next_done(&mut self, _now: Instant) -> Option<(OpIndex, Done)> {
        self.done.pop()
    }
}

impl RbdStore {
    /// Handles the end of an operation: the number of bytes that were read, or a negated errno.
    fn end(&mut self, index: OpIndex, result: i64) {
        let running = self.running[index.0 as usize].as_mut().expect("an operation in flight has an entry");
        let Running { volume: key, act, range, flushes, is_at_hand } = *running;
        let volume = &mut self.volumes[key];
        let done = match result {
            _ if result == -i64::from(libc::ESHUTDOWN) => {
                volume.tell_locked_out();
                Done::Failed(libc::EIO)
            }
            // The image has become shorter.
            0.. if act == Act::Read && (result as u64) < range.length => Done::Failed(libc::EIO),
            0.. if act != Act::Flush && volume.ends_at.is_some_and(|end| range.end() > end) => Done::Failed(libc::EIO),
            0.. if flushes => {
                running.flushes = false;
                running.act = Act::Flush;
                // SAFETY: a flush has no memory.
                unsafe {
                    volume.source.kind().image.start(
                        index,
                        Act::Flush,
                        ByteRange::new(0, 0),
                        crate::store::Memory::None,
                    );
                }
                return;
            }
            0.. if is_at_hand => Done::AtHand,
            0.. => Done::Ok,
            _ => Done::Failed(match i32::try_from(-result).unwrap_or(libc::EIO) {
                libc::ENOSPC | libc::EDQUOT => libc::ENOSPC,
                // What these say of an image is no answer for a guest.
                _ => libc::EIO,
            }),
        };
        self.running[index.0 as usize] = None;
        self.done.push((index, done));
    }

    /// Takes the present size of an image that has changed; `None`: the cluster has not told it.
    pub(crate) fn resized(&mut self, volume: RbdKey, size: Option<u64>) {
        let (Some(volume), Some(size)) = (self.volumes.get_mut(volume), size) else { return };
        volume.ends_at = (size < volume.source.size_bytes()).then_some(size);
    }

    /// Lets the ring become empty when no operation is left in librbd.
    pub(crate) fn shut_down(&mut self, ring: &mut Ring) {
        let RbdStore { volumes, last, kind, .. } = self;
        for (_, volume) in volumes.iter() {
            let image = &volume.source.kind().image;
            if image.leave() {
                let tag = Tag::Store(StoreEvent { kind: *kind, operation: QUIET, index: 0 });
                // SAFETY: the image and the value stay until the ring is empty.
                unsafe { read(ring, image.quiet_fd(), last, tag) };
            }
        }
    }
}

/// Reads an eventfd with the ring.
///
/// # Safety
/// The descriptor and the value stay until the event has arrived.
unsafe fn read(ring: &mut Ring, fd: i32, value: &mut Box<u64>, tag: Tag) {
    let entry = opcode::Read::new(types::Fd(fd), std::ptr::from_mut(value.as_mut()).cast(), 8).build();
    // SAFETY: the caller's promise.
    unsafe { ring.push(entry.user_data(tag.pack())) };
}

impl Volume {
    /// Lets the ring read the eventfd of the image, unless it does.
    fn listen(&mut self, ring: &mut Ring, kind: StoreNumber, key: RbdKey) {
        if self.signal.is_some() {
            return;
        }
        let value = self.signal.insert(Box::new(0));
        let tag = Tag::Store(StoreEvent { kind, operation: ENDED, index: key.index() });
        // SAFETY: the volume, and with it the image and the value, stays until the event has arrived.
        unsafe { read(ring, self.source.kind().image.ended_fd(), value, tag) };
    }

    /// Says once that other connections have taken the lock.
    fn tell_locked_out(&mut self) {
        if !std::mem::replace(&mut self.is_locked_out, true) {
            let Label { vm, volume } = &self.label;
            tracing::error!(
                vm,
                volume,
                source = self.source.name(),
                "The cluster has locked this connection out: another host has taken the image over, and all requests fail"
            );
        }
    }
}

impl Open for RbdStore {
    type Spec = Arc<Source<Rbd>>;

    fn new(kind: StoreNumber) -> Self {
        let (volumes, running, done, ended) = (Slab::default(), Vec::new(), Vec::new(), Vec::new());
        RbdStore { kind, volumes, running, done, ended, last: Box::new(0) }
    }

    fn open(&mut self, _now: Instant, label: Label, source: Arc<Source<Rbd>>) -> u32 {
        source.kind().image.enter();
        let info = StoreInfo {
            memory: Some(1),
            buffered: false,
            bridged: source.bridged_block().map(|size| Blocks { size, claims: Claims::clone(source.claims()) }),
            zeroing: (Zeroing::LikeWrite, Zeroing::LikeWrite),
        };
        let volume =
            Volume { label, source, info, signal: None, is_closed: false, is_locked_out: false, ends_at: None };
        self.volumes.insert(volume).index()
    }

    fn replace(&mut self, volume: u32, source: Arc<Source<Rbd>>) {
        let key = self.volumes.id_at(volume);
        self.volumes[key].source = source;
    }
}

impl Volumes for RbdStore {
    fn close(&mut self, volume: u32, jobs: &Jobs) {
        let key = self.volumes.id_at(volume);
        let open = &mut self.volumes[key];
        if open.signal.is_some() {
            open.is_closed = true;
            open.source.kind().image.leave();
            return;
        }
        let Volume { source, .. } = self.volumes.remove(key);
        jobs.close(source);
    }

    fn describe(&self, volume: u32) -> StoreSpec {
        StoreSpec::Rbd(Arc::clone(&self.volumes[self.volumes.id_at(volume)].source))
    }

    fn allocation(&self, volume: u32, query: &AllocationQuery, jobs: &Jobs) -> Answer {
        let source = Arc::clone(&self.volumes[self.volumes.id_at(volume)].source);
        let AllocationQuery { io, part, spans_max } = *query;
        let find = move |spans_max| source.kind().image.allocation(part, spans_max);
        match jobs.send(BlockingJob::Allocation { io, find: Box::new(find), spans_max }) {
            true => Answer::Later,
            false => Answer::Failed(libc::EIO),
        }
    }

    fn count_end(&self, volume: u32, kind: Kind, errno: i32) {
        let Volume { source, is_locked_out, .. } = &self.volumes[self.volumes.id_at(volume)];
        match errno {
            0 => source.count_success(kind),
            _ => source.tally_failure(kind, if *is_locked_out { libc::ESHUTDOWN } else { errno }),
        }
    }

    fn faults(&self, volume: u32) -> FaultReport {
        self.volumes[self.volumes.id_at(volume)].source.failures()
    }
}
