//! The path of a request through a device thread: from its frontend to the gate, to the device, and back.
//!
//! ```text
//!                  open, arrive              pump                operations
//!     [frontend] ---------------> [core] ---------> Gate ----> [backend] ----> ring
//!          ^                        | ^                            |
//!          '--- complete -----  work    '--------- op_completed ---'
//! ```
//!
//! A frontend calls the core; the core never calls a frontend. The core notes as [`Work`] what a frontend must be notified of, until
//! the event loop delivers it: completed requests, clients that may send again, and volumes whose new clients may be
//! served.

use std::collections::BTreeMap;
use std::task::Waker;

use sluice_sched::gate::{Finished, Outcome};
use sluice_sched::{Arrival, Flags, Instant, Kind, Scope};

use crate::backend::bridge::Parked;
use crate::backend::buffer::Room;
use crate::backend::disk::{Backend, Ended};
use crate::backend::parts::next_part;
use crate::backend::request::{Body, IoRequest, Opening, RequestList};
use crate::backend::ring::Ring;
use crate::cpu;
#[cfg(test)]
use crate::device::order::{self, Step};
use crate::device::vm::{Vm, is_limited_as_one};
use crate::device::work::{Ends, Starts, Work};
use crate::memory_budget::{self, MemoryBudget};
use crate::reactor::base::{Base, Ending};
use crate::slab::{Id as _, IoId, VmId, VolumeKey};
use crate::store::Store as _;
use crate::store::file::jobs::BlockingResult;
use crate::virtio::sessions::Context;

mod clients;
mod crossing;
mod windows;

/// Bytes of the memory reserve that each VM may have outstanding.
const FROM_RESERVE: u64 = 256 << 10;

/// Location of the data of a client's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataIn {
    /// In buffers of the daemon.
    Buffers,
    /// In the memory of a guest.
    Guest,
}

/// The shared state of all frontends of a device thread: the gate, the requests, the VMs with their windows, and the device.
pub(crate) struct Core {
    pub(crate) base: Base<Vm>,
    /// Requests that have arrived at the gate so far.
    pub(crate) arrivals: u64,
    pub(crate) backend: Backend,
    /// The memory for data of requests that pass through buffers.
    pub(crate) memory: &'static MemoryBudget,
    /// VMs with clients that wait for memory which other VMs use.
    vms_awaiting_memory: Vec<VmId>,
    /// Wakes this thread.
    waker: Waker,
    /// Whether the thread polls all the time while it has clients.
    pub(crate) busy_poll: bool,
    /// The volume of the last request that has arrived.
    last_volume: Option<VolumeKey>,
    /// Work of the loop, which sleeps only when there is none.
    pub(crate) work: Work,
    /// Requests of each volume that wait for blocks of the disk, in the order in which they came.
    parked: BTreeMap<VolumeKey, Vec<Parked>>,
    finished: Vec<Finished>,
}

/// Returns the flags of a request for the scheduler. A request that goes to the disk is sync: a guest does not send
/// what it still has in its page cache, and a direct write of the host is waited for. A write through the host's page
/// cache completes there, so it is not sync unless it is forced.
// rule: gate.sync-guest
fn flags(kind: Kind, forced: bool, buffered: bool) -> Flags {
    let sync = if kind == Kind::Write && buffered && !forced { Flags::NONE } else { Flags::SYNC };
    if forced { sync.with(Flags::FORCED) } else { sync }
}

impl Context for Core {
    fn ring(&mut self) -> &mut Ring {
        &mut self.backend.ring
    }

    fn is_open(&self) -> bool {
        self.base.ending == Ending::No
    }

    fn count_stale(&mut self) {
        self.base.stale_messages += 1;
    }
}

impl Core {
    pub(crate) fn new(base: Base<Vm>, backend: Backend, waker: Waker) -> Self {
        Core {
            base,
            arrivals: 0,
            backend,
            memory: &memory_budget::DAEMON,
            vms_awaiting_memory: Vec::new(),
            waker,
            busy_poll: false,
            last_volume: None,
            work: Work::default(),
            parked: BTreeMap::new(),
            finished: Vec::new(),
        }
    }

    // ---- Requests ----

    /// Adds a request to the table and to the list of its client, and counts it in its VM's window. The frontend sets
    /// the rest in place, because moving a request costs as much as its path through the gate.
    pub(crate) fn open(&mut self, list: &mut RequestList, opening: &Opening) -> (IoId, &mut IoRequest) {
        let vm = self.occupy(opening);
        // A VM that holds little gets memory even if its neighbours have used up what there was.
        let room = if self.base.vms[vm].outstanding.bytes <= FROM_RESERVE { Room::Reserve } else { Room::Clients };
        let position = list.next_position();
        let (id, io) = self.backend.ios.reuse(|| IoRequest::new(opening, position, room));
        list.push(id);
        (id, io)
    }

    /// Inserts a complete request, or its next part, at the gate. Queries and refused requests arrive too: they are
    /// charged and queued like others.
    pub(crate) fn arrive(&mut self, now: Instant, id: IoId) {
        if !self.cross(id) {
            return;
        }
        let io = &mut self.backend.ios[id];
        let volume = &mut self.backend.volumes[io.volume];
        let vm = &mut self.base.vms[volume.vm];
        let store = self.backend.store.info(volume.store);
        volume.refuse_impossible(store, io);
        let (kind, more) = next_part(io, store, self.base.gate.settings(), vm.window);
        if more > 0 {
            volume.outstanding.add_bytes(more);
            vm.outstanding.add_bytes(more);
        }
        let is_copied = io.data.guest.is_none() && matches!(kind, Kind::Read | Kind::Write);
        let copied = if is_copied { cpu::copied(io.part.into()) } else { 0 };
        let heard = io.served.report.take().map(|told| vm.gateway.heard.hear(now, &told));
        self.base.cpu.sent(volume.vm, &mut vm.cpu, cpu::REQUEST + copied);
        let address = self.backend.store.stores().address(volume.store, io.volume, io.offset + u64::from(io.done));
        let arrival = Arrival {
            owner: vm.owner,
            volume: volume.id,
            kind,
            flags: flags(kind, io.forced, store.buffered),
            offset: address,
            length: io.part,
            token: id.index(),
            remote: heard.map(|(remote, _)| remote),
        };
        self.arrivals += 1;
        self.last_volume = Some(io.volume);
        if volume.leaving || self.base.gate.insert(now, &arrival).is_err() {
            return self.fail(id, libc::ESHUTDOWN);
        }
        if let Some((_, heard)) = heard {
            vm.gateway.heard = heard;
        }
    }

    /// Refuses a request, which arrives at the gate nevertheless.
    pub(crate) fn refuse(&mut self, now: Instant, id: IoId, errno: i32) {
        self.backend.ios[id].refuse(errno);
        self.arrive(now, id);
    }

    /// Completes a request with an error, without the gate.
    fn fail(&mut self, id: IoId, errno: i32) {
        self.backend.ios[id].errno = errno;
        self.complete(id);
    }

    /// Queues a completed request for its frontend.
    fn complete(&mut self, id: IoId) {
        self.end_crossing(id);
        self.work.push(Ends::Complete(id));
    }

    /// Removes a request, and frees its buffer and its part of the window.
    pub(crate) fn free(&mut self, list: &mut RequestList, id: IoId) {
        let io = self.backend.ios.release(id);
        let (position, volume, occupied) = (io.origin.position, io.volume, io.occupies);
        if io.bridge.is_some() {
            self.work.push(Ends::Cross(volume));
        }
        if let Some(buffer) = io.release() {
            self.backend.pool.give(buffer);
        }
        self.vacate(volume, occupied);
        if let Some(moved) = list.remove(position) {
            self.backend.ios[moved].origin.position = position;
        }
    }

    /// Marks the requests of a disconnected client: they are not dispatched any more. Only looks at requests of that
    /// client, so that others do not wait.
    pub(crate) fn abandon(&mut self, list: &RequestList) {
        for id in list.iter() {
            let io = &mut self.backend.ios[id];
            io.abandoned = true;
            self.backend.volumes[io.volume].abandon(io.in_flight);
        }
    }

    // ---- Completions ----

    /// Reports the completions of the device to the gate.
    pub(crate) fn take_completions(&mut self, now: Instant) {
        let mut any = false;
        while let Some(ended) = self.backend.next_ended(now) {
            self.op_completed(now, &ended);
            any = true;
        }
        if any {
            self.work.push(Ends::Dispatch);
        }
    }

    fn op_completed(&mut self, now: Instant, ended: &Ended) {
        #[cfg(test)]
        order::note(Step::Complete);
        let Ended { index, op, errno } = *ended;
        let io = &mut self.backend.ios[op.io];
        // A request counts once, not for each of its pieces. Fast zeroing that the device cannot do is not a fault, and an
        // abandoned request was cancelled.
        let is_fault = !(io.abandoned || io.body.is_fast() && errno == libc::EOPNOTSUPP);
        let counts = io.errno == 0 && (errno == 0 || is_fault);
        if errno != 0 {
            io.errno = errno;
        }
        io.in_flight -= 1;
        let (key, abandoned) = (io.volume, io.abandoned);
        let volume = &mut self.backend.volumes[key];
        volume.in_flight -= 1;
        if counts {
            self.backend.store.stores().of(volume.store).count_end(volume.store.index, op.kind, errno);
        }
        let admits = abandoned && volume.abandoned_ended();
        let leaving = volume.leaving;
        if admits {
            self.work.push_start(Starts::Admit(key));
        }
        let mut finished = std::mem::take(&mut self.finished);
        self.backend.complete_in_gate(&mut self.base.gate, now, (index, errno == 0), &mut finished);
        for over in finished.drain(..) {
            let id = self.backend.ios.id_at(over.token);
            self.backend.ios[id].served.add(&over);
            self.left_gate(id, over.outcome);
        }
        self.finished = finished;
        if leaving {
            self.remove_left_volume(key);
        }
    }

    /// Handles a request, or a part of one, that the gate has completed. The next part of a long request is to arrive.
    /// So is a request that was cancelled although its client is connected and its volume is served: the gate
    /// cancels by volume, and another client was the reason.
    pub(crate) fn left_gate(&mut self, id: IoId, outcome: Outcome) {
        let unfinished = match outcome {
            Outcome::Done => self.backend.part_done(id) || self.backend.ios[id].next_step_if_done(),
            Outcome::Cancelled => {
                self.backend.drop_copy(id);
                true
            }
            Outcome::Failed => false,
        };
        let wanted = self.is_wanted(id);
        let io = &mut self.backend.ios[id];
        if unfinished && wanted && io.errno == 0 {
            return self.work.push(Ends::Continue(id));
        }
        if (unfinished || outcome == Outcome::Failed) && io.errno == 0 {
            io.errno = libc::ESHUTDOWN;
        }
        if matches!(io.body, Body::Query(_)) && io.errno == 0 && wanted && self.backend.ask_status(id) {
            return;
        }
        self.complete(id);
    }

    /// Whether the client of a request is connected, and its volume is served.
    fn is_wanted(&self, id: IoId) -> bool {
        let io = &self.backend.ios[id];
        !io.abandoned && !self.backend.volumes[io.volume].leaving
    }

    /// Lets a request arrive at the gate again.
    pub(crate) fn go_on(&mut self, now: Instant, id: IoId) {
        match self.is_wanted(id) {
            true => self.arrive(now, id),
            false => self.fail(id, libc::ESHUTDOWN),
        }
    }

    /// Handles the result of a job of the helper threads.
    pub(crate) fn blocking_done(&mut self, now: Instant, result: BlockingResult) {
        match result {
            BlockingResult::Allocation { io: id, spans } => {
                let io = &mut self.backend.ios[id];
                match &mut io.body {
                    Body::Query(question) if !spans.is_empty() => question.answer = spans,
                    _ => io.errno = libc::ENOMEM,
                }
                self.complete(id);
            }
            result => self.backend.job_done(now, result),
        }
    }

    /// Cancels requests that are queued or wait for blocks. Returns them.
    pub(crate) fn cancel(&mut self, now: Instant, scope: Scope) -> Vec<(IoId, Outcome)> {
        let mut finished = Vec::new();
        self.base.gate.cancel(now, scope, &mut finished);
        self.cancelled(scope, finished)
    }

    /// Returns the requests of `scope` that the gate has cancelled, and takes those that wait for blocks.
    pub(crate) fn cancelled(&mut self, scope: Scope, finished: Vec<Finished>) -> Vec<(IoId, Outcome)> {
        let at_gate = finished.into_iter().map(|over| (self.backend.ios.id_at(over.token), over.outcome));
        let mut cancelled: Vec<_> = at_gate.collect();
        cancelled.extend(self.take_parked(scope).into_iter().map(|io| (io, Outcome::Cancelled)));
        cancelled
    }

    /// Lets the gate dispatch to the device. What the device completes immediately is work.
    pub(crate) fn pump(&mut self, now: Instant) {
        #[cfg(test)]
        order::note(Step::Dispatch);
        self.backend.store.advance(now, &mut self.base.gate);
        self.base.wake = self.base.gate.pump(now, &mut self.backend);
        self.backend.store.pause(now, self.base.gate.queued() > 0);
        self.take_completions(now);
    }

    /// Returns when the gate or the device has something to do, even if no event arrives.
    pub(crate) fn next_wakeup(&mut self) -> Option<Instant> {
        [self.base.wake, self.backend.store.next_wakeup(), self.base.cpu.next_release()].into_iter().flatten().min()
    }

    /// Whether requests of a volume's VM are queued, and none that arrives could be dispatched before them. The next
    /// instant at which the gate may dispatch, or the next completion, is early enough to look for more.
    pub(crate) fn is_held(&self, volume: VolumeKey) -> bool {
        let vm = &self.base.vms[self.backend.volumes[volume].vm];
        vm.is_limited_as_one && self.base.gate.outstanding(vm.owner).is_some_and(|outstanding| outstanding.waiting > 0)
    }

    /// Whether the client that has sent a request last may send one that could be dispatched.
    pub(crate) fn may_dispatch_next(&self) -> bool {
        self.last_volume.is_some_and(|volume| self.backend.volumes.get(volume).is_some() && !self.is_held(volume))
    }

    /// Notes which limits a VM and its volumes have now.
    pub(crate) fn note_limits(&mut self, id: VmId) {
        let vm = &mut self.base.vms[id];
        let volumes = vm.volumes_by_name.values().map(|key| self.backend.volumes[*key].policy);
        let volumes: Vec<_> = volumes.collect();
        vm.is_limited_as_one = is_limited_as_one(&vm.policy, &volumes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: gate.sync-guest
    #[test]
    fn a_guests_writes_are_sync_unless_the_hosts_page_cache_takes_them() {
        let sync = |kind, forced, buffered| flags(kind, forced, buffered).contains(Flags::SYNC);
        assert!(sync(Kind::Write, false, false) && sync(Kind::Write, true, true) && !sync(Kind::Write, false, true));
        for (kind, buffered) in [(Kind::Read, true), (Kind::Read, false), (Kind::Flush, true), (Kind::Discard, false)] {
            assert!(sync(kind, false, buffered), "{kind:?} {buffered}");
        }
        assert!(flags(Kind::Write, true, false).contains(Flags::FORCED));
        assert!(!flags(Kind::Write, false, false).contains(Flags::FORCED));
    }
}
