//! The path of a request through a device thread: from its frontend to the gate, to the device, and back.
//!
//! ```text
//!                  open, arrive              pump                operations
//!     [frontend] ---------------> [core] ---------> Gate ----> [backend] ----> ring
//!          ^                        | ^                            |
//!          '--- complete ---- completed '--------- op_completed ---'
//! ```
//!
//! A frontend calls the core; the core never calls a frontend. The core keeps what a frontend must be notified of until
//! the event loop delivers it: completed requests, clients that may send again, and volumes whose new clients may be
//! served.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use sluice_sched::gate::{Finished, Outcome};
use sluice_sched::{Arrival, Flags, Gate, Instant, Kind, Scope};

use crate::backend::buffer::Room;
use crate::backend::delay::Delay;
use crate::backend::device_queue::{DeviceQueue as _, OpIndex};
use crate::backend::disk::Backend;
use crate::backend::jobs::{BlockingJob, BlockingResult};
use crate::backend::request::{IoRequest, Opening, RequestList};
use crate::backend::volume::VolumeStore;
use crate::clock::Clock;
use crate::cpu::{self, CpuMeter};
use crate::device::budget::Budget;
use crate::device::spec::SchedulerSpec;
use crate::device::vm::{Vm, is_limited_as_one};
use crate::memory_budget::{self, MemoryBudget};
use crate::slab::{ClientRef, Id as _, IoId, Slab, VmId, VolumeKey};
use crate::volume::VolumeGeneration;

/// Bytes of the memory reserve that each VM may have outstanding.
const FROM_RESERVE: u64 = 256 << 10;

/// State of the shutdown of a device thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    No,
    /// Ends when every request has been answered.
    Draining,
    Now,
}

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
    pub(crate) device: String,
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    /// The scheduler that has replaced the first one, and whether its gate merges.
    pub(crate) scheduler: Option<(SchedulerSpec, bool)>,
    pub(crate) backend: Backend,
    /// Wraps the backend if the device is to be slower than it is.
    delay: Option<Delay>,
    pub(crate) vms: Slab<VmId, Vm>,
    /// VMs that have not been removed.
    pub(crate) vms_by_name: HashMap<String, VmId>,
    pub(crate) cpu: CpuMeter,
    /// The memory for data of requests that pass through buffers.
    pub(crate) memory: &'static MemoryBudget,
    /// VMs with clients that wait for memory which other VMs use.
    vms_awaiting_memory: Vec<VmId>,
    /// Wakes this thread.
    waker: Waker,
    pub(crate) ending: Ending,
    /// Whether the thread polls all the time while it has clients.
    pub(crate) busy_poll: bool,
    /// Messages for sessions that had ended.
    pub(crate) stale_messages: u64,
    /// When the gate must be called again.
    wake: Option<Instant>,
    /// Requests to be replied to.
    completed: VecDeque<IoId>,
    /// Requests whose next part has arrived at the gate.
    continued: VecDeque<IoId>,
    /// VMs whose waiting clients may fit into the window again.
    vms_to_resume: VecDeque<VmId>,
    /// Volumes from which a client has disconnected. It may have abandoned requests.
    volumes_to_cancel: Vec<VolumeKey>,
    /// Volumes without requests of disconnected clients in flight. New clients that waited for this may be served.
    volumes_to_admit: VecDeque<VolumeKey>,
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

impl Core {
    pub(crate) fn new(device: String, gate: Gate, backend: Backend, delay: Option<Delay>, waker: Waker) -> Self {
        Core {
            device,
            clock: Clock::start(),
            gate,
            scheduler: None,
            backend,
            delay,
            vms: Slab::default(),
            vms_by_name: HashMap::new(),
            cpu: CpuMeter::default(),
            memory: &memory_budget::DAEMON,
            vms_awaiting_memory: Vec::new(),
            waker,
            ending: Ending::No,
            busy_poll: false,
            stale_messages: 0,
            wake: None,
            completed: VecDeque::new(),
            continued: VecDeque::new(),
            vms_to_resume: VecDeque::new(),
            volumes_to_cancel: Vec::new(),
            volumes_to_admit: VecDeque::new(),
            finished: Vec::new(),
        }
    }

    // ---- Requests ----

    /// Adds a request to the table and to the list of its client, and counts it in its VM's window. The frontend sets
    /// the rest in place, because moving a request costs as much as its path through the gate.
    pub(crate) fn open(&mut self, list: &mut RequestList, opening: &Opening) -> (IoId, &mut IoRequest) {
        let volume = &mut self.backend.volumes[opening.volume];
        let vm = &mut self.vms[volume.vm];
        volume.outstanding.add(opening.held);
        vm.outstanding.add(opening.held);
        vm.memory.add(opening.buffered);
        // A VM that holds little gets memory even if its neighbours have used up what there was.
        let room = if vm.outstanding.bytes <= FROM_RESERVE { Room::Reserve } else { Room::Clients };
        let position = list.next_position();
        let (id, io) = self.backend.ios.reuse(|| IoRequest::new(opening, position, room));
        list.push(id);
        (id, io)
    }

    /// Inserts a complete request, or its next part, at the gate. Queries and refused requests arrive too: they are
    /// charged and queued like others.
    pub(crate) fn arrive(&mut self, now: Instant, id: IoId) {
        let io = &mut self.backend.ios[id];
        let volume = &mut self.backend.volumes[io.volume];
        let vm = &mut self.vms[volume.vm];
        volume.refuse_impossible(io);
        let (kind, more) = volume.next_part(io, self.gate.settings());
        volume.outstanding.bytes += more;
        vm.outstanding.bytes += more;
        let is_copied = io.guest.is_none() && matches!(kind, Kind::Read | Kind::Write);
        let copied = if is_copied { cpu::copied(io.part.into()) } else { 0 };
        self.cpu.sent(volume.vm, &mut vm.cpu, cpu::REQUEST + copied);
        let arrival = Arrival {
            owner: vm.owner,
            volume: volume.id,
            kind,
            flags: flags(kind, io.forced, volume.is_buffered()),
            offset: volume.address(io.volume, io.offset + u64::from(io.done)),
            length: io.part,
            token: id.index(),
            remote: None,
        };
        let refused = volume.leaving || self.gate.insert(now, &arrival).is_err();
        if refused {
            self.fail(id, libc::ESHUTDOWN);
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
        self.completed.push_back(id);
    }

    /// Returns the next request to be replied to.
    pub(crate) fn next_completed(&mut self) -> Option<IoId> {
        self.completed.pop_front()
    }

    /// Returns the next request of which another part has arrived at the gate.
    pub(crate) fn next_continued(&mut self) -> Option<IoId> {
        self.continued.pop_front()
    }

    /// Removes a request, and frees its buffer and its part of the window.
    pub(crate) fn free(&mut self, list: &mut RequestList, id: IoId) {
        let io = self.backend.ios.release(id);
        let (position, volume, held, buffered) = (io.position, io.volume, io.held, io.buffered);
        if let Some(buffer) = io.release() {
            self.backend.pool.give(buffer);
        }
        let volume = &mut self.backend.volumes[volume];
        volume.outstanding.remove(held);
        let id = volume.vm;
        let vm = &mut self.vms[id];
        vm.outstanding.remove(held);
        vm.memory.remove(buffered);
        if !vm.waiting.is_empty() {
            self.schedule_resume(id);
        }
        if let Some(moved) = list.remove(position) {
            self.backend.ios[moved].position = position;
        }
    }

    /// Marks the requests of a disconnected client: they are not dispatched any more. Only looks at requests of that
    /// client, so that others do not wait.
    pub(crate) fn abandon(&mut self, list: &RequestList) {
        for id in list.iter() {
            let io = &mut self.backend.ios[id];
            io.abandoned = true;
            self.backend.volumes[io.volume].abandoned_in_flight += io.in_flight;
        }
    }

    // ---- Completions ----

    /// Reports the completions of the device to the gate.
    pub(crate) fn take_completions(&mut self, now: Instant) {
        while let Some(index) = self.next_completed_op(now) {
            self.op_completed(now, index);
        }
    }

    fn next_completed_op(&mut self, now: Instant) -> Option<OpIndex> {
        match &mut self.delay {
            None => self.backend.next_completed(now),
            Some(delay) => delay.wrap(&mut self.backend).next_completed(now),
        }
    }

    fn op_completed(&mut self, now: Instant, index: OpIndex) {
        let op = self.backend.take_op(index);
        let io = &mut self.backend.ios[op.io];
        if op.errno != 0 {
            io.errno = op.errno;
        }
        io.in_flight -= 1;
        let (key, abandoned, is_done) = (io.volume, io.abandoned, io.kind.is_some());
        let offset = io.offset + u64::from(op.skip);
        let volume = &mut self.backend.volumes[key];
        volume.in_flight -= 1;
        if abandoned {
            volume.abandoned_in_flight -= 1;
            if volume.abandoned_in_flight == 0 {
                self.volumes_to_admit.push_back(key);
            }
        }
        let leaving = volume.leaving;
        if op.kind == Kind::Write && is_done && volume.wrote(now, offset, op.length) {
            self.backend.remap_extents(key);
        }
        let mut finished = std::mem::take(&mut self.finished);
        self.backend.complete_in_gate(&mut self.gate, now, (index, op.errno == 0), &mut finished);
        finished.drain(..).for_each(|over| self.on_gate_completion(now, over));
        self.finished = finished;
        if leaving {
            self.remove_left_volume(key);
        }
    }

    /// Handles a request, or a part of one, that the gate has completed. The next part of a request for zeroes arrives.
    /// A request that was cancelled although its client is connected and its volume is served arrives again: the gate
    /// cancels by volume, and another client was the reason.
    pub(crate) fn on_gate_completion(&mut self, now: Instant, finished: Finished) {
        let id = self.backend.ios.id_at(finished.token);
        let io = &mut self.backend.ios[id];
        let wanted = !io.abandoned && !self.backend.volumes[io.volume].leaving;
        let unfinished = match finished.outcome {
            Outcome::Done => io.part_done(),
            Outcome::Cancelled => true,
            Outcome::Failed => false,
        };
        if unfinished && wanted && io.errno == 0 {
            self.arrive(now, id);
            if finished.outcome == Outcome::Done {
                self.continued.push_back(id);
            }
            return;
        }
        if (unfinished || finished.outcome == Outcome::Failed) && io.errno == 0 {
            io.errno = libc::ESHUTDOWN;
        }
        if io.question.is_some() && io.errno == 0 && wanted && self.backend.ask_status(id) {
            return;
        }
        self.complete(id);
    }

    /// Handles the result of a job of the helper threads.
    pub(crate) fn blocking_done(&mut self, result: BlockingResult) {
        match result {
            BlockingResult::Allocation { io: id, spans } => {
                let io = &mut self.backend.ios[id];
                match &mut io.question {
                    Some(question) if !spans.is_empty() => question.answer = spans,
                    _ => io.errno = libc::ENOMEM,
                }
                self.complete(id);
            }
            BlockingResult::Extents { volume, source, extents } => {
                let Some(volume) = self.backend.volumes.get_mut(volume) else { return };
                if let VolumeStore::File { source: own, extents: known, .. } = &mut volume.store
                    && Arc::ptr_eq(own, &source)
                    && extents.is_some()
                {
                    *known = extents;
                }
            }
            BlockingResult::Zeroing { volume, source, found } => {
                if let Some(volume) = self.backend.volumes.get_mut(volume) {
                    volume.learn_zeroing(&source, found);
                }
            }
            BlockingResult::Discard { op, result } => self.backend.operation_completed(op, result),
        }
    }

    /// Lets the gate dispatch to the device.
    pub(crate) fn pump(&mut self, now: Instant) {
        self.wake = match &mut self.delay {
            None => self.gate.pump(now, &mut self.backend),
            Some(delay) => self.gate.pump(now, &mut delay.wrap(&mut self.backend)),
        };
    }

    /// Returns when the gate or the device has something to do, even if no event arrives.
    pub(crate) fn next_wakeup(&mut self) -> Option<Instant> {
        let device = match &mut self.delay {
            None => self.backend.next_wakeup(),
            Some(delay) => delay.wrap(&mut self.backend).next_wakeup(),
        };
        [self.wake, device, self.cpu.next_release()].into_iter().flatten().min()
    }

    /// Whether nothing is left to deliver or to report to the gate.
    pub(crate) fn is_settled(&self) -> bool {
        self.backend.completed.is_empty()
            && self.completed.is_empty()
            && self.continued.is_empty()
            && self.vms_to_resume.is_empty()
            && self.volumes_to_cancel.is_empty()
            && self.volumes_to_admit.is_empty()
    }

    /// Whether requests of a volume's VM are queued, and none that arrives could be dispatched before them. The next
    /// instant at which the gate may dispatch, or the next completion, is early enough to look for more.
    pub(crate) fn is_held(&self, volume: VolumeKey) -> bool {
        let vm = &self.vms[self.backend.volumes[volume].vm];
        vm.is_limited_as_one && self.gate.outstanding(vm.owner).is_some_and(|outstanding| outstanding.waiting > 0)
    }

    /// Notes which limits a VM and its volumes have now.
    pub(crate) fn note_limits(&mut self, id: VmId) {
        let vm = &mut self.vms[id];
        let volumes = vm.volumes_by_name.values().map(|key| self.backend.volumes[*key].policy);
        let volumes: Vec<_> = volumes.collect();
        vm.is_limited_as_one = is_limited_as_one(&vm.policy, &volumes);
    }

    // ---- Windows ----

    /// Whether the window has room for one more request of a volume, whose data are in `data`.
    pub(crate) fn has_room(&self, volume: VolumeKey, data: DataIn) -> bool {
        let volume = &self.backend.volumes[volume];
        let vm = &self.vms[volume.vm];
        vm.has_room(volume.outstanding) && !vm.cpu.is_held() && (data == DataIn::Guest || vm.memory.has_room())
    }

    /// Counts units of work for an event of a client of a volume. Returns whether its VM's limit allows more.
    pub(crate) fn count_event(&mut self, volume: VolumeKey, units: u64) -> bool {
        let id = self.backend.volumes[volume].vm;
        let vm = &mut self.vms[id];
        self.cpu.event(id, &mut vm.cpu, units);
        !vm.cpu.is_held()
    }

    /// Schedules the clients of VMs that their limits of CPU time held back.
    pub(crate) fn release_held(&mut self, now: Instant) {
        while let Some(id) = self.cpu.release(now, &mut self.vms) {
            self.schedule_resume(id);
        }
    }

    /// Divides the CPU time of the thread among the VMs.
    pub(crate) fn divide_cpu_time(&mut self, now: Instant) {
        self.cpu.divide(now, cpu::thread_time(), &mut self.vms);
    }

    /// Queues a client of a volume until there is room, or until other clients have been served.
    pub(crate) fn park(&mut self, volume: VolumeKey, client: ClientRef, data: DataIn) {
        let vm = self.backend.volumes[volume].vm;
        self.vms[vm].waiting.push_back(client);
        if data == DataIn::Buffers && !self.vms[vm].memory.has_room() {
            self.await_memory(vm);
        }
        if self.has_room(volume, data) {
            self.schedule_resume(vm);
        }
    }

    /// Lets the thread be woken when another VM, of any device, frees memory.
    fn await_memory(&mut self, vm: VmId) {
        self.vms[vm].memory.wake_when_freed(&self.waker);
        if !self.vms_awaiting_memory.contains(&vm) {
            self.vms_awaiting_memory.push(vm);
        }
    }

    /// Schedules the clients that wait for memory, because another VM may have freed some.
    pub(crate) fn memory_freed(&mut self) {
        for vm in std::mem::take(&mut self.vms_awaiting_memory) {
            if self.vms.get(vm).is_some() {
                self.schedule_resume(vm);
            }
        }
    }

    /// Removes a client of a volume from the wait queue.
    pub(crate) fn unpark(&mut self, volume: VolumeKey, client: ClientRef) {
        let vm = self.backend.volumes[volume].vm;
        self.vms[vm].waiting.retain(|waiting| *waiting != client);
    }

    /// Schedules the waiting clients of a VM, because there may be room.
    pub(crate) fn schedule_resume(&mut self, vm: VmId) {
        if !self.vms[vm].waiting.is_empty() && self.vms_to_resume.back() != Some(&vm) {
            self.vms_to_resume.push_back(vm);
        }
    }

    /// Returns the number of VMs that may have room for waiting clients.
    pub(crate) fn vms_to_resume(&self) -> usize {
        self.vms_to_resume.len()
    }

    /// Returns the next VM that may have room for waiting clients, and their number.
    pub(crate) fn next_vm_to_resume(&mut self) -> Option<(VmId, usize)> {
        let vm = self.vms_to_resume.pop_front()?;
        Some((vm, self.vms.get(vm).map_or(0, |state| state.waiting.len())))
    }

    /// Returns the next waiting client of a VM, and what may be taken from it before the next client.
    pub(crate) fn next_waiting(&mut self, vm: VmId) -> Option<(ClientRef, Budget)> {
        let state = self.vms.get_mut(vm)?;
        let client = state.waiting.pop_front()?;
        Some((client, if state.waiting.is_empty() { Budget::UNLIMITED } else { Budget::TURN }))
    }

    // ---- Clients of volumes ----

    /// Returns the volume that a client was offered; `None` if it has been removed, even if another volume has its
    /// name, or is about to be.
    pub(crate) fn find_generation(&self, vm: &str, volume: &str, generation: VolumeGeneration) -> Option<VolumeKey> {
        let vm = *self.vms_by_name.get(vm)?;
        let found = self.find_volume(vm, volume)?;
        let known = &self.backend.volumes[found];
        (known.generation == generation && !known.refuses_clients).then_some(found)
    }

    pub(crate) fn find_volume(&self, vm: VmId, name: &str) -> Option<VolumeKey> {
        self.vms[vm].volumes_by_name.get(name).copied()
    }

    /// Returns the names of the VM and the volume.
    pub(crate) fn names_of(&self, volume: VolumeKey) -> (String, String) {
        let volume = &self.backend.volumes[volume];
        (volume.vm_name.clone(), volume.name.clone())
    }

    /// Adds a client to a volume. Returns whether it may be served now. It may not while requests of disconnected
    /// clients of this volume are in flight, because an old write could overwrite a newer one.
    pub(crate) fn client_opened(&mut self, volume: VolumeKey) -> bool {
        let volume = &mut self.backend.volumes[volume];
        volume.clients += 1;
        volume.open_clients += 1;
        volume.abandoned_in_flight == 0
    }

    /// Records that a client of a volume has disconnected. Its requests at the gate are cancelled; those in flight end
    /// at the device.
    pub(crate) fn client_closed(&mut self, volume: VolumeKey) {
        self.backend.volumes[volume].open_clients -= 1;
        self.volumes_to_cancel.push(volume);
    }

    /// Removes a disconnected client to which nothing refers any more.
    pub(crate) fn client_removed(&mut self, volume: VolumeKey) {
        self.backend.volumes[volume].clients -= 1;
        self.remove_left_volume(volume);
    }

    /// Returns the next volume whose waiting clients may be served.
    pub(crate) fn next_volume_to_admit(&mut self) -> Option<VolumeKey> {
        self.volumes_to_admit.pop_front()
    }

    /// Cancels queued requests of disconnected clients. Otherwise they would use up their VM's limit and window before
    /// the next client is served. The gate cancels by volume, so nothing is cancelled while another client uses the
    /// volume.
    pub(crate) fn cancel_abandoned(&mut self, now: Instant) {
        while let Some(key) = self.volumes_to_cancel.pop() {
            let Some(volume) = self.backend.volumes.get(key) else { continue };
            if volume.leaving || volume.open_clients > 0 {
                continue;
            }
            let scope = Scope::Volume(self.vms[volume.vm].owner, volume.id);
            let mut finished = Vec::new();
            self.gate.cancel(now, scope, &mut finished);
            finished.into_iter().for_each(|over| self.on_gate_completion(now, over));
        }
    }

    /// Counts a protocol violation by a client of `volume`. Returns the number of violations so far.
    pub(crate) fn count_protocol_error(&mut self, volume: VolumeKey) -> u64 {
        let vm = &mut self.vms[self.backend.volumes[volume].vm];
        vm.protocol_errors += 1;
        vm.protocol_errors
    }

    /// Counts a request of a client of `volume` that was refused before it reached the gate.
    pub(crate) fn count_refused(&mut self, volume: VolumeKey) {
        self.vms[self.backend.volumes[volume].vm].refused += 1;
    }

    /// Removes a volume that is being removed, when nothing refers to it any more.
    pub(crate) fn remove_left_volume(&mut self, key: VolumeKey) {
        let Some(volume) = self.backend.volumes.get(key) else { return };
        if !volume.leaving || volume.in_flight > 0 || volume.clients > 0 {
            return;
        }
        let volume = self.backend.volumes.remove(key);
        self.vms[volume.vm].volumes -= 1;
        self.schedule_resume(volume.vm);
        if let VolumeStore::File { file, source, .. } = volume.store {
            self.backend.files.close(file);
            if source.is_buffered() {
                self.backend.blocking.send(BlockingJob::Close(source));
            }
        }
        self.remove_left_vm(volume.vm);
    }

    /// Removes a VM that is being removed, when its last volume is gone. Without clients that is immediately.
    pub(crate) fn remove_left_vm(&mut self, vm: VmId) {
        if self.vms.get(vm).is_some_and(|state| state.removed && state.volumes == 0) {
            self.vms.remove(vm);
        }
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
