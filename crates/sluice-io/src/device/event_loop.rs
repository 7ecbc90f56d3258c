//! Event loop of a device thread.
//!
//! An iteration waits for completions, handles them, polls the active virtqueues, runs what is ready, and sends replies
//! and interrupts. One thread owns all state in [`Loop`], so no locks are needed.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::{Gate, Instant};

use crate::backend::disk::Backend;
use crate::backend::retry::Later;
use crate::backend::ring::{Event, Ring};
use crate::backend::tag::Tag;
use crate::clock::Clock;
use crate::device::blocking;
use crate::device::core::{Core, Ending};
use crate::device::deadline_timer::DeadlineTimer;
use crate::device::edit;
use crate::device::lateness::{Lateness, Load};
use crate::device::machine::{Kept, Machine};
use crate::device::mailbox::{Inbox, Mailbox};
use crate::device::message::Message;
use crate::device::probe::Pulse;
use crate::device::spec::{DeviceSpec, Edit, EditError, Health, Snapshot};
use crate::device::spin::{Iteration, Spin, Wait};
use crate::frontend::{Command, Frontends};
use crate::store::delay::Delay;
use crate::store::slot_log;

/// Maximum number of rounds in one iteration. Requests that complete immediately free window space for more, so a guest
/// could otherwise keep the loop in one iteration.
const ROUNDS_MAX: u32 = 16;
/// Maximum number of messages that are handled in one iteration.
///
/// Example: a client that connects takes 20 us, so 8 of them delay the requests of others by 0.2 ms, and 1,000 by as much.
const MESSAGES_MAX: u32 = 8;

/// All state of a device thread.
pub(crate) struct Loop {
    pub(crate) core: Core,
    frontends: Frontends,
    spin: Spin,
    later: Later,
    deadline_timer: DeadlineTimer,
    wakeup: Box<u64>,
    iterations: u64,
    /// Time spent with work, in nanoseconds.
    worked_nanos: u64,
    lateness: Lateness,
    restarts: u64,
    #[cfg(test)]
    tests: Tests,
}

/// Faults that tests inject.
#[cfg(test)]
#[derive(Default)]
struct Tests {
    broken: bool,
    puts_off: u32,
    /// Number of sleeps of the loop.
    sleeps: u64,
}

impl Machine for Loop {
    type Spec = DeviceSpec;
    type Helper = blocking::Helper;

    fn name(spec: &DeviceSpec) -> &str {
        &spec.name
    }

    fn build(spec: &DeviceSpec, mailbox: &Mailbox, restarts: u64) -> io::Result<(Self, blocking::Helper)> {
        let gate = Gate::new(spec.scheduler.build().map_err(io::Error::other)?, spec.gate);
        let (jobs, helper) = blocking::start(&spec.name, restarts, mailbox)?;
        let backend = Backend::new(Ring::new()?, spec.gate.depth, jobs, Loop::delay(spec)?);
        let core = Core::new(spec.name.clone(), (gate, Clock::start()), backend, mailbox.waker());
        Ok((Loop::new(core, restarts), helper))
    }

    fn run(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let mut events = Vec::new();
        self.listen(inbox);
        let mut ended = self.core.clock.now();
        while !self.has_ended() {
            self.iterations += 1;
            let timeout = self.wait_timeout(ended);
            let load = Load { queued: self.core.gate.queued(), in_flight: self.core.gate.in_flight() };
            let timeout = self.lateness.limit_wait(ended, timeout, load);
            let has_waited = self.core.backend.ring.submit_and_wait(timeout, &mut events)?;
            // Reading the clock costs as much as a tenth of a request.
            let now = if has_waited { self.core.clock.now() } else { ended };
            self.lateness.look(now);
            let wait = Wait::of(timeout, events.is_empty());
            #[cfg(test)]
            {
                self.tests.sleeps += u64::from(wait != Wait::None);
            }
            let (event_count, mut found_work) = (events.len(), !events.is_empty());
            self.core.cpu.begin_iteration(wait == Wait::Event);
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
            self.core.release_held(now);
            let polled = self.frontends.poll(&mut self.core, now);
            let is_useful = polled || self.core.cpu.has_useful(event_count);
            found_work |= polled;
            self.run_ready(now);
            self.frontends.end_of_iteration(&mut self.core, now);
            let began = if wait == Wait::None { ended } else { now };
            ended = self.core.clock.now();
            let nanos = ended.nanos_since(began);
            self.worked_nanos += if found_work { nanos } else { 0 };
            if self.core.cpu.end_of_iteration(ended, nanos, found_work) {
                self.core.divide_cpu_time(ended);
            }
            if is_useful || !found_work {
                self.spin.note_iteration(Iteration { woke: now, ended }, wait, found_work);
            }
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Snapshot {
        let vms = edit::vm_snapshots(&mut self.core);
        let (late_nanos, late) = self.lateness.stats();
        let gate = &self.core.gate;
        Snapshot {
            device: self.core.device.clone(),
            at: self.core.clock.now(),
            health: Health::Serving,
            depth: gate.settings().depth,
            stats: gate.device_stats().clone(),
            worked_nanos: self.worked_nanos,
            late_nanos,
            late,
            queued: gate.queued(),
            in_flight: gate.in_flight(),
            connections: self.frontends.clients() as u64,
            iterations: self.iterations,
            restarts: self.restarts,
            failure: None,
            stale_messages: self.core.stale_messages,
            uplink: None,
            vms,
        }
    }

    fn kept(&self) -> Kept {
        Kept {
            edits: self.describe(),
            stale_messages: self.core.stale_messages,
            restarts: self.restarts + 1,
            ending: self.core.ending,
        }
    }

    fn take_over(&mut self, kept: &Kept) -> Result<(), EditError> {
        let now = self.core.clock.now();
        self.core.stale_messages = kept.stale_messages;
        self.apply(now, kept.edits.clone())
    }

    /// Shuts down all sockets and stops listening to guests, so that all operations in the kernel end.
    fn shut_down(&mut self) {
        self.frontends.shut_down(&mut self.core);
        self.deadline_timer.cancel(&mut self.core.backend.ring);
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.core.backend.ring
    }
}

impl Loop {
    /// Returns the delay of a device, with its log and its model.
    fn delay(spec: &DeviceSpec) -> io::Result<Option<Delay>> {
        let Some(delay) = &spec.delay else { return Ok(None) };
        let log = spec.delay_log.clone().map(slot_log::start).transpose()?;
        Ok(Some(Delay::new(*delay, log)?.with_model(spec.model.as_ref())))
    }

    fn new(core: Core, restarts: u64) -> Self {
        Loop {
            core,
            frontends: Frontends::new(),
            spin: Spin::of_process(),
            later: Later::default(),
            deadline_timer: DeadlineTimer::default(),
            wakeup: Box::new(0),
            iterations: 0,
            worked_nanos: 0,
            lateness: Lateness::default(),
            restarts,
            #[cfg(test)]
            tests: Tests::default(),
        }
    }

    fn has_ended(&self) -> bool {
        match self.core.ending {
            Ending::No => false,
            Ending::Draining => self.frontends.is_drained(),
            Ending::Now => true,
        }
    }

    /// Returns how long to wait for the next event: zero while one is likely to arrive soon.
    fn wait_timeout(&mut self, now: Instant) -> Option<Duration> {
        if !self.core.is_settled() || self.polls_on(now) {
            return Some(Duration::ZERO);
        }
        let core = &mut self.core;
        if !self.frontends.stop_polling(core, now) {
            self.spin.note_no_sleep();
            return Some(Duration::ZERO);
        }
        if let Some(deadline) = self.frontends.next_deadline() {
            self.deadline_timer.start(&mut core.backend.ring, deadline.since(now));
        }
        let wake = [core.next_wakeup(), self.later.next()].into_iter().flatten().min()?;
        Some(wake.since(now))
    }

    /// Whether the loop polls again: for the device, or for a request that could be dispatched.
    fn polls_on(&self, now: Instant) -> bool {
        if self.core.busy_poll && self.frontends.clients() > 0 {
            return true;
        }
        self.spin.is_spinning(now) && (self.core.gate.in_flight() > 0 || self.core.may_dispatch_next())
    }

    /// Starts waiting for the next message.
    fn listen(&mut self, inbox: &Inbox) {
        let counter = (&raw mut *self.wakeup).cast();
        let entry = opcode::Read::new(types::Fd(inbox.wakeup.as_raw_fd()), counter, 8).build();
        // SAFETY: the eight bytes are boxed and live until the ring is empty; so does the eventfd.
        unsafe { self.core.backend.ring.push(entry.user_data(Tag::Wakeup.pack())) };
    }

    fn event(&mut self, now: Instant, event: Event, inbox: &mut Inbox) {
        match Tag::unpack(event.user_data) {
            Tag::Wakeup => {
                self.messages(now, inbox);
                self.core.memory_freed();
                self.listen(inbox);
            }
            Tag::Timer => self.deadline_timer.fired(),
            Tag::Ignored => {}
            Tag::Store(of_store) => self.core.backend.store_event(now, of_store, event.result),
            Tag::Frontend(number, operation, index) => {
                self.frontends.event(&mut self.core, now, (number, operation, index), event.result);
            }
        }
    }

    /// Handles messages of the control plane. If there are many, such as clients that connect, requests come between them.
    fn messages(&mut self, now: Instant, inbox: &mut Inbox) {
        for _ in 0..MESSAGES_MAX {
            let Some(message) = inbox.next() else { return };
            self.message(now, message);
        }
        inbox.wake_again();
    }

    /// Replaces the result of a disk operation if a test wants that.
    #[cfg(test)]
    fn put_off(&mut self, event: Event) -> Event {
        if self.tests.puts_off == 0 || !matches!(Tag::unpack(event.user_data), Tag::Store(_)) {
            return event;
        }
        self.tests.puts_off -= 1;
        Event { result: -libc::EAGAIN, ..event }
    }

    /// Reports completions to the gate, lets it dispatch, and takes requests for which there is room now, until none of
    /// this makes progress or the number of rounds is reached.
    fn run_ready(&mut self, now: Instant) {
        for _ in 0..ROUNDS_MAX {
            self.core.take_completions(now);
            self.core.cancel_abandoned(now);
            self.core.cross_released(now);
            self.deliver(now);
            self.resume_clients(now);
            self.core.pump(now);
            if self.core.is_settled() {
                return;
            }
        }
    }

    /// Delivers to the frontends what the core has for them.
    fn deliver(&mut self, now: Instant) {
        let core = &mut self.core;
        while let Some(io) = core.next_continued() {
            if !self.frontends.takes_back(core, now, io) {
                core.go_on(now, io);
            }
        }
        while let Some(io) = core.next_completed() {
            self.frontends.complete(core, now, io);
        }
        self.frontends.delivered();
        while let Some(volume) = core.next_volume_to_admit() {
            self.frontends.admit(core, now, volume);
        }
    }

    /// Serves each client that waits for window space once. A client that uses up its budget is queued again and served
    /// in the next round.
    fn resume_clients(&mut self, now: Instant) {
        for _ in 0..self.core.vms_to_resume() {
            let Some((vm, clients)) = self.core.next_vm_to_resume() else { return };
            for _ in 0..clients {
                let Some((client, budget)) = self.core.next_waiting(vm) else { break };
                self.frontends.serve(&mut self.core, now, client, budget);
            }
        }
    }

    fn message(&mut self, now: Instant, message: Message) {
        match message {
            Message::Edit(edits, reply) => drop(reply.send(self.apply(now, edits))),
            Message::Frontend(command) => self.frontends.command(&mut self.core, now, command),
            Message::Session(message) => self.frontends.command(&mut self.core, now, Command::VhostBlk(message)),
            Message::Snapshot(reply) => {
                let _ = reply.send(self.snapshot());
            }
            Message::Clients(reply) => drop(reply.send(self.frontends.list(&self.core))),
            Message::Probe(reply) => {
                let gate = &self.core.gate;
                let pulse = Pulse { in_flight: gate.in_flight(), completed: gate.device_stats().completed };
                let _ = reply.send(pulse);
            }
            Message::Drain => {
                self.core.ending = Ending::Draining;
                self.frontends.drain(&mut self.core);
            }
            Message::Stop => self.core.ending = Ending::Now,
            // A job from before a restart names requests that no longer exist.
            Message::BlockingDone(restarts, _) if restarts != self.restarts => {}
            Message::BlockingDone(_, result) => self.core.blocking_done(result),
            #[cfg(test)]
            message => self.test_message(message),
        }
    }

    /// Applies changes in order. Stops at the first that fails.
    fn apply(&mut self, now: Instant, edits: Vec<Edit>) -> Result<(), EditError> {
        edits.into_iter().try_for_each(|edit| edit::apply(&mut self.core, &mut self.frontends, now, edit))
    }

    /// Returns the changes that give an empty loop the same VMs, volumes and settings.
    fn describe(&self) -> Vec<Edit> {
        #[cfg(test)]
        assert!(!self.tests.broken, "panic requested by a test");
        edit::describe(&self.core)
    }

    #[cfg(test)]
    fn test_message(&mut self, message: Message) {
        use crate::store::file::jobs::BlockingJob;
        let backend = &mut self.core.backend;
        match message {
            Message::Panic => panic!("panic requested by a test"),
            Message::RefuseSubmits(times) => backend.ring.faults.refused = times,
            Message::PutOff(times) => self.tests.puts_off = times,
            Message::Advance(time) => self.core.clock.advance(time),
            Message::Sleeps(reply) => drop(reply.send(self.tests.sleeps)),
            Message::HoldWork(holding) => backend.ring.faults.holding = holding,
            Message::Pause(until) => drop(until.recv()),
            Message::HangHelper(until) => assert!(backend.blocking.send(BlockingJob::Hang(until))),
            Message::RefuseRestarts(times) => crate::device::faults::refuse_restarts(times),
            Message::PanicTwice => {
                self.tests.broken = true;
                panic!("panic requested by a test");
            }
            Message::RefuseZeroing(after) => backend.store.below.file.zeroing_left = Some(after),
            _ => unreachable!("the other messages are not for tests"),
        }
    }
}
