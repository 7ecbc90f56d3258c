//! The event loop of a device thread.
//!
//! An iteration waits for completions, hands them to the actor, and lets it work. One thread owns all state in [`Reactor`], so no locks are
//! needed. The bounds are the same for all actors: some messages for each iteration, a pause for what the kernel interrupts, polling before
//! a sleep, and the accounts of CPU time and of lateness.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::Instant;

use crate::backend::retry::Later;
use crate::backend::ring::{Event, Ring};
use crate::backend::tag::Tag;
use crate::cpu;
use crate::reactor::actor::{Actor, Kept};
use crate::reactor::base::Ending;
use crate::reactor::lateness::{Lateness, Load};
use crate::reactor::mailbox::{Inbox, Mailbox};
#[cfg(test)]
use crate::reactor::message::Fault;
use crate::reactor::message::{Call, Message};
use crate::reactor::probe::Pulse;
use crate::reactor::spec::{EditError, Health, Snapshot};
use crate::reactor::spin::{Iteration, Spin, Wait};

/// Maximum number of messages that are handled in one iteration.
///
/// Example: a client that connects takes 20 us, so 8 of them delay the requests of others by 0.2 ms, and 1,000 by as much.
const MESSAGES_MAX: u32 = 8;

/// All state of a device thread.
pub(crate) struct Reactor<A> {
    pub(crate) actor: A,
    spin: Spin,
    later: Later,
    lateness: Lateness,
    wakeup: Box<u64>,
    iterations: u64,
    /// When the last iteration ended.
    ended: Instant,
    /// Time spent with work, in nanoseconds.
    worked_nanos: u64,
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

impl<A: Actor> Reactor<A> {
    /// Builds a reactor that was restarted `restarts` times, whose actor has no VMs.
    pub(crate) fn build(spec: &A::Spec, mailbox: &Mailbox<A>, restarts: u64) -> io::Result<(Self, A::Helper)> {
        let (actor, helper) = A::build(spec, Ring::new()?, mailbox, restarts)?;
        let reactor = Reactor {
            actor,
            spin: Spin::of_process(),
            later: Later::default(),
            lateness: Lateness::default(),
            wakeup: Box::new(0),
            iterations: 0,
            ended: Instant::ZERO,
            worked_nanos: 0,
            restarts,
            #[cfg(test)]
            tests: Tests::default(),
        };
        Ok((reactor, helper))
    }

    /// Runs until it is stopped or has drained.
    pub(crate) fn run(&mut self, inbox: &mut Inbox<A>) -> io::Result<()> {
        let mut events = Vec::new();
        self.listen(inbox);
        self.actor.start();
        self.ended = self.actor.base().clock.now();
        while !self.has_ended() {
            self.iterate(inbox, &mut events)?;
        }
        Ok(())
    }

    /// Makes one iteration.
    pub(crate) fn iterate(&mut self, inbox: &mut Inbox<A>, events: &mut Vec<Event>) -> io::Result<()> {
        let ended = self.ended;
        self.iterations += 1;
        let timeout = self.wait_timeout(ended);
        let gate = &self.actor.base().gate;
        let load = Load { queued: gate.queued(), in_flight: gate.in_flight() };
        let timeout = self.lateness.limit_wait(ended, timeout, load);
        let has_waited = self.actor.ring().submit_and_wait(timeout, events)?;
        // Reading the clock costs as much as a tenth of a request.
        let now = if has_waited { self.actor.base().clock.now() } else { ended };
        self.lateness.look(now);
        let wait = Wait::of(timeout, events.is_empty());
        #[cfg(test)]
        {
            self.tests.sleeps += u64::from(wait != Wait::None);
        }
        let count = events.len();
        self.actor.base_mut().cpu.begin_iteration(wait == Wait::Event);
        self.events(now, events, inbox);
        let found = self.actor.work(now);
        let is_useful = found || self.actor.base().cpu.has_useful(count);
        self.end_iteration(now, wait, (found || count > 0, is_useful));
        Ok(())
    }

    /// Accounts for the time of an iteration whose wait ended at `woke`.
    fn end_iteration(&mut self, woke: Instant, wait: Wait, (found_work, is_useful): (bool, bool)) {
        let began = if wait == Wait::None { self.ended } else { woke };
        let base = self.actor.base_mut();
        let ended = base.clock.now();
        let nanos = ended.nanos_since(began);
        if base.cpu.end_of_iteration(ended, nanos, found_work) {
            base.cpu.divide(ended, cpu::thread_time(), &mut base.vms);
        }
        self.worked_nanos += if found_work { nanos } else { 0 };
        self.ended = ended;
        if is_useful || !found_work {
            self.spin.note_iteration(Iteration { woke, ended }, wait, found_work);
        }
    }

    /// Returns the state of the device at this moment.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let vms = self.actor.vm_snapshots();
        let base = self.actor.base();
        Snapshot {
            device: base.device.clone(),
            at: base.clock.now(),
            health: Health::Serving,
            depth: base.gate.settings().depth,
            window: self.actor.window(),
            stats: base.gate.device_stats().clone(),
            worked_nanos: self.worked_nanos,
            late: self.lateness.stats(),
            queued: base.gate.queued(),
            in_flight: base.gate.in_flight(),
            connections: self.actor.connections() as u64,
            iterations: self.iterations,
            restarts: self.restarts,
            failure: None,
            stale_messages: base.stale_messages,
            uplink: self.actor.link_totals().map(Box::new),
            vms,
        }
    }

    /// Returns what a restarted reactor takes over from this one, which has failed.
    pub(crate) fn kept(&self) -> Kept<A> {
        #[cfg(test)]
        assert!(!self.tests.broken, "panic requested by a test");
        let base = self.actor.base();
        Kept {
            edits: self.actor.describe(),
            stale_messages: base.stale_messages,
            restarts: self.restarts + 1,
            ending: base.ending,
        }
    }

    /// Takes over what a failed reactor has left.
    pub(crate) fn take_over(&mut self, kept: &Kept<A>) -> Result<(), EditError> {
        let base = self.actor.base_mut();
        base.stale_messages = kept.stale_messages;
        let now = base.clock.now();
        self.actor.edit(now, kept.edits.clone())
    }

    fn has_ended(&self) -> bool {
        match self.actor.base().ending {
            Ending::No => false,
            Ending::Draining => self.actor.is_drained(),
            Ending::Now => true,
        }
    }

    /// Returns how long to wait for the next event: zero while there is work, or is likely to be soon.
    pub(crate) fn wait_timeout(&mut self, now: Instant) -> Option<Duration> {
        if self.actor.has_work() || self.spin.is_spinning(now) && self.actor.may_spin() {
            return Some(Duration::ZERO);
        }
        if !self.actor.stop_polling(now) {
            self.spin.note_no_sleep();
            return Some(Duration::ZERO);
        }
        let wake = [self.actor.next_wakeup(), self.later.next()].into_iter().flatten().min()?;
        Some(wake.since(now))
    }

    /// Starts waiting for the next message.
    fn listen(&mut self, inbox: &Inbox<A>) {
        let counter = (&raw mut *self.wakeup).cast();
        let entry = opcode::Read::new(types::Fd(inbox.wakeup.as_raw_fd()), counter, 8).build();
        // SAFETY: the eight bytes are boxed and live until the ring is empty; so does the eventfd.
        unsafe { self.actor.ring().push(entry.user_data(Tag::Wakeup.pack())) };
    }

    /// Handles events, and those whose pause has ended.
    pub(crate) fn events(&mut self, now: Instant, events: &mut Vec<Event>, inbox: &mut Inbox<A>) {
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
    }

    fn event(&mut self, now: Instant, event: Event, inbox: &mut Inbox<A>) {
        match Tag::unpack(event.user_data) {
            Tag::Wakeup => {
                self.messages(now, inbox);
                self.actor.woken();
                self.listen(inbox);
            }
            Tag::Ignored => {}
            tag => self.actor.event(now, tag, event.result),
        }
    }

    /// Handles messages. If there are many, such as clients that connect, requests come between them.
    fn messages(&mut self, now: Instant, inbox: &mut Inbox<A>) {
        for _ in 0..MESSAGES_MAX {
            let Some(message) = inbox.next() else { return };
            self.message(now, message);
        }
        inbox.wake_again();
    }

    /// Handles a message.
    pub(crate) fn message(&mut self, now: Instant, message: Message<A>) {
        match message {
            Message::Edit(edits, reply) => drop(reply.send(self.actor.edit(now, edits))),
            Message::Command(command) => self.actor.command(now, command),
            Message::Call(call) => self.call(call),
            #[cfg(test)]
            Message::Test(fault) => self.fault(fault),
        }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Snapshot(reply) => {
                let _ = reply.send(self.snapshot());
            }
            Call::Clients(reply) => drop(reply.send(self.actor.clients())),
            Call::Probe(reply) => {
                let gate = &self.actor.base().gate;
                let pulse = Pulse { in_flight: gate.in_flight(), completed: gate.device_stats().completed };
                let _ = reply.send(pulse);
            }
            Call::RefuseClients(volumes, reply) => drop(reply.send(self.actor.refuse_clients(volumes))),
            Call::Reopen(volumes) => self.actor.reopen(&volumes),
            Call::Drain => {
                self.actor.base_mut().ending = Ending::Draining;
                self.actor.drain();
            }
            Call::Stop => self.actor.base_mut().ending = Ending::Now,
        }
    }
}

#[cfg(test)]
impl<A: Actor> Reactor<A> {
    /// Replaces the result of a disk operation if a test wants that.
    fn put_off(&mut self, event: Event) -> Event {
        if self.tests.puts_off == 0 || !matches!(Tag::unpack(event.user_data), Tag::Store(_)) {
            return event;
        }
        self.tests.puts_off -= 1;
        Event { result: -libc::EAGAIN, ..event }
    }

    fn fault(&mut self, fault: Fault) {
        let actor = &mut self.actor;
        match fault {
            Fault::Panic => panic!("panic requested by a test"),
            Fault::PanicTwice => {
                self.tests.broken = true;
                panic!("panic requested by a test");
            }
            Fault::RefuseSubmits(times) => actor.ring().faults.refused = times,
            Fault::PutOff(times) => self.tests.puts_off = times,
            Fault::HoldWork(holding) => actor.ring().faults.holding = holding,
            Fault::Sleeps(reply) => drop(reply.send(self.tests.sleeps)),
            Fault::Advance(time) => actor.base_mut().clock.advance(time),
            Fault::Pause(until) => drop(until.recv()),
            Fault::RefuseRestarts(times) => crate::reactor::faults::refuse_restarts(times),
        }
    }
}
