//! The device of a device thread's gate: carries submissions to the stores of the volumes, and results back.
//!
//! A [`SlotOp`] is one submission in a slot of the gate: a whole [`IoRequest`], a piece of it, or a part of a merged
//! submission. It is one operation of a store, or none: a request that is refused, or whose client has gone, ends here. Here is also
//! where a request for zeroes becomes a write of them, if its store cannot zero.

use sluice_sched::gate::{Finished, Part, Slot, Submission};
use sluice_sched::{Device, Gate, Instant, Kind, Request};

use crate::backend::buffer::{Buffer, Pool, Room};
use crate::backend::merged::{Merged, SlotResult};
use crate::backend::request::{Body, IoRequest, Place};
use crate::backend::ring::Ring;
use crate::backend::volume::Volume;
use crate::limits::reserve;
use crate::slab::{IoId, Slab, VolumeKey};
use crate::source::ByteRange;
use crate::store::delay::Delayed;
use crate::store::file::jobs::{BlockingResult, Jobs};
use crate::store::window::Windowed;
use crate::store::{
    AllocationQuery, Answer, Context, Done, Memory, Op, OpIndex, Store as _, StoreEvent, StoreInfo, StoreRef, Stores,
    What, Zeroing,
};

/// Length of the buffer of zeroes.
pub(crate) const ZEROES_LEN: usize = 256 << 10;

/// A submission of the gate in a slot, or a part of a merged one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotOp {
    pub(crate) io: IoId,
    /// The kind as which the gate dispatched it: zeroes that must be written are a write.
    pub(crate) kind: Kind,
    /// Offset from the start of the request.
    skip: u32,
    length: u32,
}

/// A submission, or a part of one, that has ended.
pub(crate) struct Ended {
    pub(crate) index: OpIndex,
    pub(crate) op: SlotOp,
    /// 0, or a Linux errno.
    pub(crate) errno: i32,
}

/// The device behind the gate: stores and ring, and the tables that their operations refer to.
pub(crate) struct Backend {
    pub(crate) ring: Ring,
    pub(crate) ios: Slab<IoId, IoRequest>,
    pub(crate) volumes: Slab<VolumeKey, Volume>,
    pub(crate) store: Windowed<Delayed<Stores>>,
    pub(crate) pool: Pool,
    /// By [`OpIndex`].
    slot_ops: Vec<Option<SlotOp>>,
    /// Operations that have ended without a store, and their errno.
    ended: Vec<(OpIndex, i32)>,
    pub(crate) blocking: Jobs,
    pub(crate) zeroes: Buffer,
    /// By [`OpIndex`]: the memory segments of an operation that has several.
    vectors: Vec<Vec<libc::iovec>>,
    merged: Merged,
}

impl Backend {
    pub(crate) fn new(ring: Ring, depth: u32, blocking: Jobs, store: Windowed<Delayed<Stores>>) -> Self {
        ring.allow_workers(depth);
        let mut pool = Pool::default();
        let zeroes = pool.take(ZEROES_LEN, Room::Reserve).expect("a device that starts has memory for its zeroes");
        Backend {
            ring,
            ios: Slab::default(),
            volumes: Slab::default(),
            store,
            pool,
            slot_ops: vec![None; depth as usize * 2],
            ended: Vec::new(),
            blocking,
            zeroes,
            vectors: vec![Vec::new(); depth as usize * 2],
            merged: Merged::default(),
        }
    }

    /// Returns what is known of the store of a volume.
    pub(crate) fn info(&self, volume: VolumeKey) -> &StoreInfo {
        self.store.info(self.volumes[volume].store)
    }

    /// Handles the result of an operation that a store has pushed to the ring.
    pub(crate) fn store_event(&mut self, now: Instant, event: StoreEvent, result: i32) {
        let mut context = Context { now, ring: &mut self.ring, jobs: &self.blocking };
        self.store.event(&mut context, event, result);
    }

    /// Handles the result of a job that a store has sent to the helper threads.
    pub(crate) fn job_done(&mut self, now: Instant, result: BlockingResult) {
        let mut context = Context { now, ring: &mut self.ring, jobs: &self.blocking };
        let stores = self.store.stores_mut();
        match result {
            BlockingResult::Dial { volume, result } => stores.remote.dialled(&mut context, volume, result),
            BlockingResult::ImageSize { volume, size } => stores.rbd.resized(volume, size),
            result => stores.file.job_done(&mut context, result),
        }
    }

    /// Closes connections, so that all operations in the kernel end, and lets those of other threads end.
    pub(crate) fn shut_down(&mut self) {
        let stores = self.store.stores_mut();
        stores.remote.shut_down(&mut self.ring);
        stores.rbd.shut_down(&mut self.ring);
    }

    /// Returns a submission that has ended, and removes it from the table.
    pub(crate) fn next_ended(&mut self, now: Instant) -> Option<Ended> {
        let (index, done) = match self.ended.pop() {
            Some((index, 0)) => (index, Done::Ok),
            Some((index, errno)) => (index, Done::Failed(errno)),
            None => self.store.next_done(now)?,
        };
        let op = self.slot_ops[index.0 as usize].take().expect("a completed operation was in flight");
        let errno = match done {
            Done::Ok | Done::AtHand => 0,
            Done::Failed(errno) => errno,
            Done::TooDear => self.refuse_zeroing(op.io),
        };
        Some(Ended { index, op, errno })
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

    /// Finds the parts of a request's range that hold data. Returns `false` if the answer is already known.
    pub(crate) fn ask_status(&mut self, id: IoId) -> bool {
        let io = &mut self.ios[id];
        let part = ByteRange::new(io.offset, u64::from(io.length));
        let Body::Query(question) = &mut io.body else { return false };
        let store = self.volumes[io.volume].store;
        let query = AllocationQuery { io: id, part, spans_max: question.spans_max };
        match self.store.stores().of(store).allocation(store.index, &query, &self.blocking) {
            Answer::Known(spans) => question.answer = spans,
            Answer::Failed(errno) => io.errno = errno,
            Answer::Later => return true,
        }
        false
    }

    /// Starts an operation for a submission or a part of it. Returns whether a store has it. `first` is the request of the gate, unless
    /// an operation of its slot was started before.
    fn begin(
        &mut self,
        now: Instant,
        (index, slot): (OpIndex, Slot),
        kind: Kind,
        part: Part,
        first: Option<&Request>,
    ) -> bool {
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
        self.slot_ops[at] = Some(SlotOp { io: id, kind, skip, length });
        if io.abandoned {
            volume.abandon(1);
            self.ended.push((index, libc::ECANCELED));
            return false;
        }
        let store = volume.store;
        let begun = self.what(id, store, kind).and_then(|what| Ok((what, self.memory(index, store, what)?)));
        let (what, memory) = match begun {
            Ok(begun) => begun,
            Err(errno) => {
                self.ended.push((index, errno));
                return false;
            }
        };
        let io = &self.ios[id];
        let (offset, forced) = (io.offset + u64::from(skip), io.forced);
        let op = Op { index, volume: store, what, offset, length, forced, memory, slot, first };
        let mut context = Context { now, ring: &mut self.ring, jobs: &self.blocking };
        self.store.start(&mut context, &op);
        true
    }

    /// Returns what the store does for a request that the gate has dispatched as `kind`. `Err`: nothing, and its end is this errno or 0.
    fn what(&mut self, id: IoId, store: StoreRef, kind: Kind) -> Result<What, i32> {
        Ok(match self.ios[id].body {
            Body::Read => What::Read,
            Body::Write => What::Write,
            Body::Discard => What::Discard,
            Body::Flush => What::Flush,
            Body::Query(_) | Body::Answered | Body::Refused => return Err(0),
            Body::Zero { no_hole, .. } => match (self.store.info(store).zeroing(no_hole), kind) {
                (Zeroing::Cheap, _) | (Zeroing::LikeWrite, Kind::Write) => What::Zero { no_hole },
                (Zeroing::No, Kind::Write) => What::Write,
                // It costs more than it was charged.
                (Zeroing::LikeWrite | Zeroing::No, _) => return Err(self.refuse_zeroing(id)),
            },
        })
    }

    /// Ends a part of a request without effect, because its store cannot zero by itself. Returns its errno, or 0 if the part arrives again.
    fn refuse_zeroing(&mut self, id: IoId) -> i32 {
        let io = &mut self.ios[id];
        if io.body.is_fast() {
            return libc::EOPNOTSUPP;
        }
        io.part = 0;
        0
    }

    /// Returns the memory of an operation. `Err`: there is none.
    fn memory(&mut self, index: OpIndex, store: StoreRef, what: What) -> Result<Memory, i32> {
        let alignment = self.store.info(store).memory;
        let (What::Read | What::Write, Some(alignment)) = (what, alignment) else { return Ok(Memory::None) };
        let SlotOp { io: id, skip, length, .. } = self.slot_ops[index.0 as usize].expect("it has just begun");
        let segments = &mut self.vectors[index.0 as usize];
        let io = &mut self.ios[id];
        if matches!(io.body, Body::Zero { .. }) {
            return zeroes(&self.zeroes, length, segments).ok_or(libc::ENOMEM);
        }
        let is_prepared = prepare_data(io, &mut self.pool, alignment as usize, skip, length);
        is_prepared.then(|| io.memory(skip, length, segments)).flatten().ok_or(libc::ENOMEM)
    }
}

/// Takes the buffer that a transfer needs, and copies the guest's data for this part if the store requires an alignment
/// that they do not have. This happens after dispatch: until then a request takes no memory and no time of the device
/// thread. Returns `false` if there is no memory.
fn prepare_data(io: &mut IoRequest, pool: &mut Pool, alignment: usize, skip: u32, length: u32) -> bool {
    if let Some(buffer_len) = io.bridge_len() {
        if io.data.buffer().is_none() && !io.data.set_buffer(pool.take(buffer_len, io.data.room)) {
            return false;
        }
        io.fill_step(skip, length);
        return true;
    }
    // Decided once for all pieces of a part, because a resize may bring a disk with another alignment.
    if matches!(io.data.place, Place::Open) {
        if io.data.guest.as_ref().is_some_and(|guest| guest.is_aligned(alignment)) {
            io.data.place = Place::Guest;
            return true;
        }
        // The copy of a guest's data is that of a part. A client's reply has all of it.
        let len = if io.data.guest.is_some() { io.part } else { io.length };
        if !io.data.set_buffer(pool.take(len as usize, io.data.room)) {
            return false;
        }
    }
    if let (Place::Buffer(buffer), Some(guest), Body::Write) = (&mut io.data.place, &io.data.guest, &io.body) {
        let part = (skip - io.done) as usize..(skip - io.done + length) as usize;
        guest.copy_to(skip, &mut buffer.bytes_mut(part.end)[part]);
    }
    true
}

/// Returns memory with `length` zeroes. `None` if there is no memory for the list.
fn zeroes(buffer: &Buffer, length: u32, segments: &mut Vec<libc::iovec>) -> Option<Memory> {
    let mut left = length as usize;
    if left <= ZEROES_LEN {
        return Some(Memory::One(buffer.as_ptr()));
    }
    segments.clear();
    if !reserve(segments, left.div_ceil(ZEROES_LEN)) {
        return None;
    }
    while left > 0 {
        let iov_len = left.min(ZEROES_LEN);
        segments.push(libc::iovec { iov_base: buffer.as_ptr().cast(), iov_len });
        left -= iov_len;
    }
    Some(Memory::Pieces(segments.as_mut_ptr(), segments.len() as u32))
}

impl Device for Backend {
    fn has_room(&self, now: Instant) -> bool {
        self.store.has_room(now)
    }

    fn submit(&mut self, now: Instant, submission: &Submission) {
        let Submission { slot, token, skip, request } = submission;
        let part = Part { token: *token, skip: *skip, length: request.length };
        self.begin(now, (OpIndex(slot.0 * 2), *slot), request.kind, part, Some(request));
    }

    fn submit_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        let Submission { slot, request, .. } = submission;
        let mut first = Some(request);
        self.merged.start(*slot, parts.len());
        for (number, part) in parts.iter().enumerate() {
            let index = self.merged.add_part(*slot, number as u32);
            if self.begin(now, (index, *slot), request.kind, *part, first) {
                first = None;
            }
        }
    }
}
