//! The loop of a device thread, turn by turn.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::gate::{Finished, Outcome, Slot};
use sluice_sched::{Gate, Instant, Kind, OwnerId, Policy, Scope};

use crate::backend::disk::{Backend, VolumeStore};
use crate::backend::retry::Later;
use crate::backend::ring::Event;
use crate::backend::tag::{Tag, tag, untag};
use crate::clock::Clock;
use crate::device::Message;
use crate::device::blocking::{BlockingJob, BlockingResult};
use crate::device::mailbox::Inbox;
use crate::device::requests::ClientId;
use crate::device::slab::{ConnectionId, QueueId, SessionId, Slab, VmId, VolumeKey};
use crate::device::spec::{SchedulerSpec, Window};
use crate::device::spin::Spin;
use crate::frontend::nbd::Piece;
use crate::frontend::nbd::connection::{Connection, Expect};
use crate::frontend::vhost_blk::SessionState;
use crate::virtio::{Chain, VirtQueue};

/// Rounds of one turn in which what ends at once makes room for more. A guest whose requests all do, and who never stops,
/// must not keep the others waiting.
const ROUNDS_MAX: u32 = 16;

/// A VM as the loop knows it.
pub(crate) struct Vm {
    pub(crate) name: String,
    pub(crate) owner: OwnerId,
    pub(crate) policy: Policy,
    pub(crate) window: Window,
    /// It has been removed; its last requests are still at the device.
    pub(crate) gone: bool,
    pub(crate) volumes: u32,
    pub(crate) outstanding: Outstanding,
    /// Clients whose next request finds no room.
    pub(crate) waiting: VecDeque<ClientId>,
    pub(crate) protocol_errors: u64,
    pub(crate) refused: u64,
}

impl Vm {
    /// Whether it has room in its window for one more request of a volume, which holds so much of it.
    ///
    /// Among several volumes one has room while it holds less than it leaves to all (Choudhury and Hahne, "Dynamic Queue
    /// Length Thresholds for Shared-Memory Packet Switches", 1998): a volume that its own limit holds back takes half of the
    /// window, two of them a third each, and the others find the rest. One that is alone may take all of it.
    pub(crate) fn has_room(&self, held: Outstanding) -> bool {
        let requests = self.window.requests.saturating_sub(self.outstanding.requests);
        let bytes = self.window.bytes.saturating_sub(self.outstanding.bytes);
        let leaves_some = self.volumes <= 1 || held.requests < requests && held.bytes < bytes;
        requests > 0 && bytes > 0 && leaves_some
    }
}

/// What is outstanding, from the frontend's table entry to its end there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

impl Outstanding {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    No,
    /// When every request has been answered.
    Draining,
    Now,
}

/// Everything that a device thread has.
pub(crate) struct Loop {
    pub(crate) device: String,
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    /// The one that has taken over since the start, and whether its gate merges.
    pub(crate) scheduler: Option<(SchedulerSpec, bool)>,
    finished: Vec<Finished>,
    pub(crate) backend: Backend,
    pub(crate) vms: Slab<VmId, Vm>,
    /// Those that have not been removed.
    pub(crate) vms_by_name: HashMap<String, VmId>,
    pub(crate) connections: Slab<ConnectionId, Connection>,
    /// VMMs.
    pub(crate) sessions: Slab<SessionId, SessionState>,
    pub(crate) queues: Slab<QueueId, VirtQueue>,
    /// Queues that are looked at in every turn.
    pub(crate) polled: Vec<QueueId>,
    /// Queues of guests to whom something was returned.
    pub(crate) irq_pending: Vec<QueueId>,
    /// Queues that may be over.
    pub(crate) ended_queues: Vec<QueueId>,
    pub(crate) chain: Chain,
    pub(crate) spin: Spin,
    /// VMs with clients in line that may have room again.
    pub(crate) vms_to_resume: VecDeque<VmId>,
    /// Volumes that a client has left, which may have requests waiting that nobody wants any more.
    pub(crate) volumes_to_cancel: Vec<VolumeKey>,
    /// Connections with something to send.
    pub(crate) tx_pending: Vec<ConnectionId>,
    /// Connections that may be over.
    pub(crate) retiring: Vec<ConnectionId>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) ending: Ending,
    pub(crate) iterations: u64,
    pub(crate) restarts: u64,
    /// Messages of sessions that had ended, which were refused.
    pub(crate) stale_messages: u64,
    #[cfg(test)]
    pub(crate) broken: bool,
    wakeup: Box<u64>,
    later: Later,
    #[cfg(test)]
    puts_off: u32,
    wake: Option<Instant>,
    /// When the loop checks for overdue write payloads and replies; `None` while none is expected or being sent.
    pub(crate) look_at_deadlines: Option<Instant>,
}

impl Loop {
    pub(crate) fn new(device: String, gate: Gate, backend: Backend, restarts: u64) -> Self {
        Loop {
            device,
            clock: Clock::start(),
            gate,
            scheduler: None,
            finished: Vec::new(),
            backend,
            vms: Slab::default(),
            vms_by_name: HashMap::new(),
            connections: Slab::default(),
            sessions: Slab::default(),
            queues: Slab::default(),
            polled: Vec::new(),
            irq_pending: Vec::new(),
            ended_queues: Vec::new(),
            chain: Chain::default(),
            spin: Spin::default(),
            vms_to_resume: VecDeque::new(),
            volumes_to_cancel: Vec::new(),
            tx_pending: Vec::new(),
            retiring: Vec::new(),
            pieces: Vec::new(),
            ending: Ending::No,
            iterations: 0,
            restarts,
            stale_messages: 0,
            #[cfg(test)]
            broken: false,
            wakeup: Box::new(0),
            later: Later::default(),
            #[cfg(test)]
            puts_off: 0,
            wake: None,
            look_at_deadlines: None,
        }
    }

    /// Serves until it is told to end.
    pub(crate) fn run(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let mut events = Vec::new();
        self.listen(inbox);
        while !self.is_over() {
            self.iterations += 1;
            let before = self.clock.now();
            let patience = self.wait_timeout(before);
            self.backend.ring.submit_and_wait(patience, &mut events)?;
            let now = self.clock.now();
            let mut moved = !events.is_empty();
            for event in events.drain(..) {
                #[cfg(test)]
                let event = self.put_off(event);
                if let Some(event) = self.later.pass(now, event) {
                    self.event(now, event, inbox);
                }
            }
            while let Some(event) = self.later.pop(now) {
                self.event(now, event, inbox);
            }
            self.backend.release_delayed(now);
            self.look_at_deadlines(now);
            moved |= self.poll_queues(now);
            self.settle(now);
            self.send_replies(now);
            self.signal_guests();
            self.remove_retired();
            self.remove_ended_queues();
            self.spin.note_iteration(now, patience.is_none_or(|patience| !patience.is_zero()), moved);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        match self.ending {
            Ending::No => false,
            Ending::Draining => self.connections.is_empty() && self.guests_are_served(),
            Ending::Now => true,
        }
    }

    /// How long to wait for the next event: not at all while one is likely to come at once.
    fn wait_timeout(&mut self, now: Instant) -> Option<Duration> {
        // Who only has sockets sleeps: meanwhile its clients send more at once.
        let may_spin = !self.polled.is_empty() || self.gate.in_flight() > 0;
        if !self.is_settled() || may_spin && self.spin.goes_on(now) || !self.rearm_idle_queues(now) {
            return Some(Duration::ZERO);
        }
        let delayed = self.backend.delay.as_ref().and_then(crate::backend::delay::Delay::next);
        let wake = [self.wake, delayed, self.look_at_deadlines, self.later.next()].into_iter().flatten().min()?;
        Some(wake.since(now))
    }

    /// Waits for the next message.
    fn listen(&mut self, inbox: &Inbox) {
        let place = (&raw mut *self.wakeup).cast();
        let entry = opcode::Read::new(types::Fd(inbox.wakeup.as_raw_fd()), place, 8).build();
        // SAFETY: the eight bytes are boxed and live until the ring holds nothing any more; so does the eventfd.
        unsafe { self.backend.ring.push(entry.user_data(tag(Tag::Wakeup, 0))) };
    }

    fn event(&mut self, now: Instant, event: Event, inbox: &mut Inbox) {
        let (tag, index) = untag(event.user_data);
        match tag {
            Tag::Wakeup => {
                while let Some(message) = inbox.next() {
                    self.message(now, message);
                }
                self.listen(inbox);
            }
            Tag::Receive => self.received(now, self.connections.id_at(index), event.result),
            Tag::Send => self.sent(self.connections.id_at(index), event.result),
            Tag::Kick => self.kicked(now, self.queues.id_at(index), event.result),
            Tag::Call => self.called(self.queues.id_at(index)),
            Tag::Other => self.queue_operation_completed(self.queues.id_at(index)),
            Tag::Disk => self.backend.operation_completed(now, Slot(index), event.result),
        }
    }

    /// As a test wants it.
    #[cfg(test)]
    fn put_off(&mut self, event: Event) -> Event {
        if self.puts_off == 0 || untag(event.user_data).0 != Tag::Disk {
            return event;
        }
        self.puts_off -= 1;
        Event { result: -libc::EAGAIN, ..event }
    }

    /// Tells the gate what is over, lets it dispatch, and takes what now finds room, until nothing moves or the next turn has
    /// to go on.
    fn settle(&mut self, now: Instant) {
        for _ in 0..ROUNDS_MAX {
            while let Some(slot) = self.backend.completed.pop() {
                self.slot_completed(now, slot);
            }
            while let Some(volume) = self.volumes_to_cancel.pop() {
                self.cancel_unwanted(now, volume);
            }
            for _ in 0..self.vms_to_resume.len() {
                let vm = self.vms_to_resume.pop_front().expect("so many are there");
                self.resume_clients(now, vm);
            }
            self.wake = self.gate.pump(now, &mut self.backend);
            if self.is_settled() {
                return;
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.backend.completed.is_empty() && self.vms_to_resume.is_empty() && self.volumes_to_cancel.is_empty()
    }

    fn slot_completed(&mut self, now: Instant, slot: Slot) {
        let work = self.backend.take_op(slot);
        let io = &mut self.backend.ios[work.token];
        if work.errno != 0 {
            io.errno = work.errno;
        }
        io.in_flight -= 1;
        let (index, abandoned) = (io.volume, io.abandoned);
        let offset = io.offset + u64::from(work.skip);
        let volume = &mut self.backend.volumes[index];
        volume.in_flight -= 1;
        if abandoned {
            volume.abandoned_in_flight -= 1;
            if volume.abandoned_in_flight == 0 {
                self.admit_parked(index);
            }
        }
        if work.kind == Kind::Write && self.backend.volumes[index].wrote(now, offset, work.length) {
            self.remap_extents(index);
        }
        let mut finished = std::mem::take(&mut self.finished);
        self.backend.tell(&mut self.gate, now, slot, (work.errno == 0, work.part_of), &mut finished);
        finished.drain(..).for_each(|over| self.on_gate_completion(now, over));
        self.finished = finished;
        self.remove_left_volume(index);
    }

    /// The gate has completed what it had of a request. The rest of a request for zeroes arrives next. A request that was
    /// cancelled although its client and its volume are there arrives again: the gate cancels by volume, and was asked to
    /// because of another client.
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
                self.rewind_rest(now, id);
            }
            return;
        }
        if (unfinished || finished.outcome == Outcome::Failed) && io.errno == 0 {
            io.errno = libc::ESHUTDOWN;
        }
        self.reply(id);
    }

    fn remap_extents(&mut self, volume: VolumeKey) {
        if let VolumeStore::File { source, .. } = &self.backend.volumes[volume].store {
            let source = std::sync::Arc::clone(source);
            let _ = self.backend.blocking.send(BlockingJob::Extents { volume, source });
        }
    }

    pub(crate) fn message(&mut self, now: Instant, message: Message) {
        match message {
            Message::Edit(edits, reply) => {
                let _ = reply.send(self.apply(now, edits));
            }
            Message::Connect(arrived) => self.connect(*arrived),
            Message::Session(message) => self.session_message(now, message),
            Message::Snapshot(reply) => {
                let _ = reply.send(self.snapshot());
            }
            Message::Drain => self.drain(),
            Message::Stop => self.ending = Ending::Now,
            // What was asked before a restart names requests that are no more.
            Message::BlockingDone(generation, _) if generation != self.restarts => {}
            Message::BlockingDone(_, answer) => self.blocking_done(now, answer),
            #[cfg(test)]
            Message::Panic => panic!("asked to panic by a test"),
            #[cfg(test)]
            Message::RefuseSubmits(times) => self.backend.ring.faults.refused = times,
            #[cfg(test)]
            Message::PutOff(times) => self.puts_off = times,
            #[cfg(test)]
            Message::Advance(time) => self.clock.advance(time),
            #[cfg(test)]
            Message::HoldWork(holding) => self.backend.ring.faults.holding = holding,
            #[cfg(test)]
            Message::HangHelper(until) => drop(self.backend.blocking.send(BlockingJob::Hang(until))),
            #[cfg(test)]
            Message::RefuseRestarts(times) => crate::device::supervisor::refuse_restarts(times),
            #[cfg(test)]
            Message::PanicTwice => {
                self.broken = true;
                panic!("asked to panic by a test");
            }
            #[cfg(test)]
            Message::RefuseZeroing(after) => self.backend.zeroing_left.set(Some(after)),
        }
    }

    fn blocking_done(&mut self, now: Instant, answer: BlockingResult) {
        match answer {
            BlockingResult::Allocation { token, spans } => {
                let io = &mut self.backend.ios[token];
                match spans.is_empty() {
                    true => io.errno = libc::ENOMEM,
                    false => io.status = Some(spans),
                }
                self.reply(token);
            }
            BlockingResult::Extents { volume, source, extents } => {
                let Some(volume) = self.backend.volumes.get_mut(volume) else { return };
                if let VolumeStore::File { source: own, extents: known, .. } = &mut volume.store
                    && std::sync::Arc::ptr_eq(own, &source)
                    && extents.is_some()
                {
                    *known = extents;
                }
            }
            BlockingResult::Zeroing { volume, source, found } => self.learn_zeroing(volume, &source, found),
            BlockingResult::Discard { slot, result } => self.backend.operation_completed(now, slot, result),
        }
    }

    fn drain(&mut self) {
        self.ending = Ending::Draining;
        let all = self.connections.ids();
        for index in all {
            let connection = &mut self.connections[index];
            connection.finishing = true;
            if connection.receiving {
                let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Read);
            }
            self.retire(index);
        }
    }

    /// A client has gone, or must go. What of it waits stays undone; what is at the device ends there.
    pub(crate) fn close(&mut self, index: ConnectionId) {
        let connection = &mut self.connections[index];
        if connection.closed {
            return self.retire(index);
        }
        connection.shut_down();
        let volume = connection.volume;
        if !connection.requests.is_empty() {
            self.abandon(index);
        }
        self.volumes_to_cancel.push(volume);
        self.retire(index);
    }

    /// What dead clients have waiting would use up their VM's limit and its window before the next client is served.
    /// The gate cancels by volume, so it stays where another client still works on the same volume.
    fn cancel_unwanted(&mut self, now: Instant, index: VolumeKey) {
        let Some(volume) = self.backend.volumes.get(index) else { return };
        let used = volume.connections.iter().any(|known| !self.connections[*known].closed)
            || volume.sessions.iter().any(|known| !self.sessions[*known].closing);
        if volume.leaving || used {
            return;
        }
        let scope = Scope::Volume(self.vms[volume.vm].owner, volume.id);
        let mut finished = Vec::new();
        self.gate.cancel(now, scope, &mut finished);
        finished.into_iter().for_each(|over| self.on_gate_completion(now, over));
    }

    fn abandon(&mut self, index: ConnectionId) {
        self.abandon_requests(ClientId::Connection(index));
        if self.connections[index].sending.is_none() {
            let replies = std::mem::take(&mut self.connections[index].replies);
            replies.into_iter().for_each(|token| self.free_request(token));
        } else if !self.connections[index].listed {
            self.connections[index].listed = true;
            self.tx_pending.push(index);
        }
    }

    /// Ends all sockets and stops listening to guests, so that the kernel lets go of all memory.
    pub(crate) fn shut_all_down(&mut self) {
        self.connections.values_mut().for_each(Connection::shut_down);
        self.shut_queues_down();
    }

    /// Looks at a connection at the end of the turn: it may be over.
    pub(crate) fn retire(&mut self, index: ConnectionId) {
        self.retiring.push(index);
    }

    fn remove_retired(&mut self) {
        while let Some(index) = self.retiring.pop() {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            let ended = connection.closed || connection.finishing;
            if let Expect::Payload { token, .. } | Expect::Skip { token, .. } = connection.expect
                && ended
                && !connection.receiving
            {
                // Its data will never be complete; what was asked before is still answered.
                connection.expect = Expect::Header;
                self.free_request(token);
            }
            if self.connections[index].is_over() {
                self.remove_connection(index);
            }
        }
    }

    fn remove_connection(&mut self, index: ConnectionId) {
        let connection = self.connections.remove(index);
        let volume = connection.volume;
        let vm = self.backend.volumes[volume].vm;
        self.vms[vm].waiting.retain(|waiting| *waiting != ClientId::Connection(index));
        self.backend.volumes[volume].connections.retain(|known| *known != index);
        self.remove_left_volume(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(volumes: u32, window: u32) -> Vm {
        Vm {
            name: "vm".to_owned(),
            owner: OwnerId(0),
            policy: Policy::default(),
            window: Window { requests: window, bytes: 1000 },
            gone: false,
            volumes,
            outstanding: Outstanding::default(),
            waiting: VecDeque::new(),
            protocol_errors: 0,
            refused: 0,
        }
    }

    /// Volumes that take what they may, one after another until none may; what each has then.
    fn filled(volumes: usize, window: u32, bytes: u64) -> Vec<u32> {
        let mut vm = vm(volumes as u32, window);
        let mut held = vec![Outstanding::default(); volumes];
        while let Some(volume) =
            (0..volumes).filter(|&volume| vm.has_room(held[volume])).min_by_key(|&v| held[v].requests)
        {
            held[volume].add(bytes);
            vm.outstanding.add(bytes);
        }
        held.iter().map(|held| held.requests).collect()
    }

    #[test]
    fn volumes_leave_as_much_of_the_window_as_each_has() {
        for (volumes, window, each) in [(1, 64, 64), (2, 64, 22), (3, 64, 16), (7, 64, 8), (2, 1, 1)] {
            assert_eq!(filled(volumes, window, 0)[0], each, "{volumes} volumes in {window}");
        }
        assert_eq!((filled(1, 64, 300), filled(2, 64, 250)), (vec![4], vec![2, 1]), "bytes");
    }

    #[test]
    fn one_that_works_has_half() {
        let mut vm = vm(5, 128);
        while vm.has_room(vm.outstanding) {
            vm.outstanding.add(0);
        }
        assert_eq!(vm.outstanding.requests, 64);
        assert!(vm.has_room(Outstanding::default()));
    }
}
