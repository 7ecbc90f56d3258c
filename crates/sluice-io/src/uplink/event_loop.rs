//! Event loop of an uplink's thread.
//!
//! An iteration waits for events, takes frames of the NICs, lets the gate fill the wire, receives frames from the interface, and gives
//! them to the NICs. One thread owns all of it.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{opcode, types};
use sluice_net::UplinkTotals;
use sluice_net::flood::{CopyLimit, FloodLimit};
use sluice_net::switch::{Limits, Switch};
use sluice_sched::{Gate, Instant};

use crate::backend::retry::is_put_off;
use crate::backend::ring::{Event, Ring};
use crate::backend::tag::Tag;
use crate::cpu;
use crate::device::core::Ending;
use crate::device::lateness::{Lateness, Load};
use crate::device::machine::{Helper, Kept, Machine};
use crate::device::mailbox::{Inbox, Mailbox};
use crate::device::message::Message;
use crate::device::probe::Pulse;
use crate::device::spec::{Edit, EditError, Health, Snapshot};
use crate::device::spin::{Iteration, Spin, Wait};
use crate::slab::FrontendNumber;
use crate::uplink::core::Core;
use crate::uplink::deliver::deliver;
use crate::uplink::edit;
use crate::uplink::pacer::Pacer;
use crate::uplink::ports::Ports;
use crate::uplink::spec::UplinkSpec;
use crate::uplink::taps::{self, DOWN_PAUSE, Taps};
use crate::uplink::vhost_net::VhostNet;
use crate::uplink::wire::Wire;

/// Owners of operations of the ring.
const TAPS: FrontendNumber = FrontendNumber(0);
const LINK: FrontendNumber = FrontendNumber(1);
const TRANSMIT: FrontendNumber = FrontendNumber(2);
const RECEIVE: FrontendNumber = FrontendNumber(3);

/// Bounds of the switch. A flooded frame is copied for each NIC of its VLAN.
const SWITCH: Limits = Limits {
    ports: 65_536,
    addresses_per_port: 64,
    addresses_of_uplink: 16_384,
    age: Duration::from_secs(300),
    port_flood: FloodLimit { frames_per_second: number(1000), burst: number(200) },
    uplink_flood: FloodLimit { frames_per_second: number(4000), burst: number(800) },
    copies: CopyLimit { per_second: number(100_000), burst: number(20_000) },
};

const fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("a limit is not 0")
}

/// Maximum number of rounds in one iteration in which frames are taken for those that have been sent.
const ROUNDS_MAX: u32 = 16;

/// All state of an uplink's thread.
pub(crate) struct UplinkLoop {
    pub(crate) core: Core,
    pub(crate) ports: Ports,
    spin: Spin,
    wakeup: Box<u64>,
    link: LinkState,
    /// Whether the last attempt to receive from the interface failed.
    link_fails: bool,
    /// Number of times that it began to fail.
    pub(crate) link_failures: u64,
    iterations: u64,
    /// Time spent with work, in nanoseconds.
    worked_nanos: u64,
    lateness: Lateness,
    restarts: u64,
}

/// Whether the interface has frames to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    /// No operation waits for frames.
    Idle,
    /// An operation waits for frames.
    Watched,
    /// There may be frames that were not read.
    Ready,
    /// It cannot be read, and is looked at again then.
    Down(Instant),
}

impl Helper for () {
    fn end(self, _device: &str) {}

    fn keep(self, _device: &str) {}
}

impl Machine for UplinkLoop {
    type Spec = UplinkSpec;
    type Helper = ();

    fn name(spec: &UplinkSpec) -> &str {
        &spec.name
    }

    fn build(spec: &UplinkSpec, _mailbox: &Mailbox, restarts: u64) -> io::Result<(Self, ())> {
        let scheduler = spec.scheduler.build().map_err(io::Error::other)?;
        let gate = Gate::new(scheduler, spec.gate);
        let wire = Wire::new(spec.link.clone(), Pacer::new(spec.rate));
        let switch = Switch::new(Instant::ZERO, SWITCH);
        let core = Core::new(spec.name.clone(), gate, Ring::new()?, wire, switch, spec.frame_time_max);
        let state = UplinkLoop {
            core,
            ports: Ports { taps: Taps::new(TAPS), vhost: VhostNet::new(TRANSMIT, RECEIVE) },
            spin: Spin::of_process(),
            wakeup: Box::new(0),
            link: LinkState::Idle,
            link_fails: false,
            link_failures: 0,
            iterations: 0,
            worked_nanos: 0,
            lateness: Lateness::default(),
            restarts,
        };
        Ok((state, ()))
    }

    fn run(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let mut events = Vec::new();
        self.listen(inbox);
        self.watch_link();
        let mut ended = self.core.clock.now();
        while self.core.ending == Ending::No || self.core.ending == Ending::Draining && !self.is_drained() {
            self.iterations += 1;
            let timeout = self.wait_timeout(ended);
            let load = Load { queued: self.core.gate.queued(), in_flight: self.core.gate.in_flight() };
            let timeout = self.lateness.limit_wait(ended, timeout, load);
            self.core.ring.submit_and_wait(timeout, &mut events)?;
            let now = self.core.clock.now();
            self.lateness.look(now);
            let wait = Wait::of(timeout, events.is_empty());
            let (event_count, mut found_work) = (events.len(), !events.is_empty());
            self.core.cpu.begin_iteration(wait == Wait::Event);
            for event in events.drain(..) {
                self.event(now, event, inbox);
            }
            let moved = self.iterate(now);
            let is_useful = moved || self.core.cpu.has_useful(event_count);
            found_work |= moved;
            let began = if wait == Wait::None { ended } else { now };
            ended = self.core.clock.now();
            let nanos = ended.nanos_since(began);
            self.worked_nanos += if found_work { nanos } else { 0 };
            let core = &mut self.core;
            if core.cpu.end_of_iteration(ended, nanos, found_work) {
                core.cpu.divide(ended, cpu::thread_time(), &mut core.vms);
            }
            if is_useful || !found_work {
                self.spin.note_iteration(Iteration { woke: now, ended }, wait, found_work);
            }
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Snapshot {
        let (late_nanos, late) = self.lateness.stats();
        Snapshot {
            device: self.core.uplink.clone(),
            at: self.core.clock.now(),
            health: Health::Serving,
            depth: self.core.gate.settings().depth,
            stats: self.core.gate.device_stats().clone(),
            worked_nanos: self.worked_nanos,
            late_nanos,
            late,
            queued: self.core.gate.queued(),
            in_flight: self.core.gate.in_flight(),
            connections: self.ports.vhost.clients() as u64,
            iterations: self.iterations,
            restarts: self.restarts,
            failure: None,
            stale_messages: self.core.stale_messages,
            uplink: Some(Box::new(self.totals())),
            vms: edit::vm_snapshots(&mut self.core),
        }
    }

    fn kept(&self) -> Kept {
        Kept {
            edits: edit::describe(&self.core),
            stale_messages: self.core.stale_messages,
            restarts: self.restarts + 1,
            ending: self.core.ending,
        }
    }

    fn take_over(&mut self, kept: &Kept) -> Result<(), EditError> {
        self.core.stale_messages = kept.stale_messages;
        let now = self.core.clock.now();
        edit::apply(&mut self.core, &mut self.ports, now, kept.edits.clone())
    }

    fn shut_down(&mut self) {
        self.ports.taps.shut_down(&mut self.core);
        self.ports.vhost.shut_down(&mut self.core);
        if self.link == LinkState::Watched {
            taps::cancel(&mut self.core.ring, Tag::Frontend(LINK, 0, 0));
        }
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.core.ring
    }
}

impl UplinkLoop {
    /// Makes an iteration without waiting.
    #[cfg(test)]
    pub(crate) fn step(&mut self, now: Instant) {
        // Twice: the first iteration asks the kernel what there is.
        for _ in 0..2 {
            self.take_events(now);
            self.iterate(now);
        }
        // An iteration gives up deliveries after some time of this machine.
        while self.core.receive.next_due().is_some_and(|due| due <= now) {
            self.iterate(now);
        }
    }

    /// Handles the events that there are. Returns their number.
    #[cfg(test)]
    pub(crate) fn take_events(&mut self, now: Instant) -> usize {
        let mut events = Vec::new();
        self.core.ring.submit_and_wait(Some(Duration::ZERO), &mut events).unwrap();
        let count = events.len();
        events.drain(..).for_each(|event| self.frame_event(now, event));
        count
    }

    /// Moves frames in both directions. Returns whether there were any.
    fn iterate(&mut self, now: Instant) -> bool {
        let UplinkLoop { core, ports, .. } = self;
        core.release_held(now);
        let mut found = ports.taps.poll(core, now);
        found |= ports.vhost.poll(core, now);
        // The wire runs last: frames that a queue has just given to the gate would wait for the next event.
        for round in 0..=ROUNDS_MAX {
            core.run_wire(now);
            ports.vhost.return_chains(core, now);
            if round == ROUNDS_MAX || !core.take_resumable() {
                break;
            }
            ports.vhost.resume(core, now);
        }
        found |= self.receive(now);
        let UplinkLoop { core, ports, .. } = self;
        deliver(core, &mut ports.vhost, now);
        ports.vhost.end_of_iteration(core, now);
        core.end_of_iteration();
        found
    }

    /// Receives frames from the interface, and watches it when there are no more: the thread may sleep after this. Returns whether there were any.
    fn receive(&mut self, now: Instant) -> bool {
        let was_ready = self.link == LinkState::Ready;
        if was_ready {
            self.link = match self.core.receive(now) {
                Ok(more) => {
                    self.report_link(None);
                    if more { LinkState::Ready } else { LinkState::Idle }
                }
                Err(error) => {
                    self.report_link(Some(&error));
                    LinkState::Down(now + DOWN_PAUSE)
                }
            };
        }
        if matches!(self.link, LinkState::Down(until) if until <= now) {
            self.link = LinkState::Idle;
        }
        self.watch_link();
        was_ready
    }

    /// Lets the kernel report once when the interface has frames, unless it is watched already, or looked at again anyway.
    fn watch_link(&mut self) {
        if self.link == LinkState::Idle {
            taps::watch(&mut self.core.ring, self.core.wire.link.fd(), Tag::Frontend(LINK, 0, 0));
            self.link = LinkState::Watched;
        }
    }

    /// Logs when the interface fails, and when it works again. An interface that was deleted fails for ever.
    fn report_link(&mut self, error: Option<&io::Error>) {
        let device = &self.core.uplink;
        match error {
            Some(error) if !self.link_fails => {
                self.link_failures += 1;
                tracing::warn!(device, %error, "Cannot receive from the uplink's interface: it is down, or was removed");
            }
            None if self.link_fails => tracing::info!(device, "The uplink's interface receives again"),
            Some(_) | None => {}
        }
        self.link_fails = error.is_some();
    }

    /// Returns how long to wait for the next event: zero while there is work, or is likely to be soon.
    pub(crate) fn wait_timeout(&mut self, now: Instant) -> Option<Duration> {
        let UplinkLoop { core, ports, spin, .. } = self;
        // While frames wait for the wire, there is nothing to be early for.
        let may_spin = ports.vhost.is_polling() && core.wire.pacer.rate().is_none();
        if self.link == LinkState::Ready
            || core.has_resumable()
            || ports.taps.has_more()
            || may_spin && spin.is_spinning(now)
        {
            return Some(Duration::ZERO);
        }
        if !ports.vhost.stop_polling(core, now) {
            spin.note_no_sleep();
            return Some(Duration::ZERO);
        }
        debug_assert!(
            self.link != LinkState::Idle,
            "the thread sleeps while nothing tells of frames from the interface"
        );
        let down_until = if let LinkState::Down(until) = self.link { Some(until) } else { None };
        let wake = [core.next_wakeup(), ports.taps.next_wakeup(), down_until].into_iter().flatten().min()?;
        Some(wake.since(now))
    }

    /// Starts waiting for the next message.
    fn listen(&mut self, inbox: &Inbox) {
        let counter = (&raw mut *self.wakeup).cast();
        let entry = opcode::Read::new(types::Fd(inbox.wakeup.as_raw_fd()), counter, 8).build();
        // SAFETY: the eight bytes are boxed and live until the ring is empty; so does the eventfd.
        unsafe { self.core.ring.push(entry.user_data(Tag::Wakeup.pack())) };
    }

    fn event(&mut self, now: Instant, event: Event, inbox: &mut Inbox) {
        match Tag::unpack(event.user_data) {
            Tag::Wakeup => {
                while let Some(message) = inbox.next() {
                    self.message(now, message);
                }
                self.listen(inbox);
            }
            _ => self.frame_event(now, event),
        }
    }

    /// Handles an event of an interface or a queue.
    fn frame_event(&mut self, now: Instant, event: Event) {
        match Tag::unpack(event.user_data) {
            Tag::Frontend(TAPS, _, index) => self.ports.taps.event(&mut self.core, index),
            Tag::Frontend(LINK, ..) => {
                let is_ready = event.result >= 0 || is_put_off(event.result);
                self.link = if is_ready { LinkState::Ready } else { LinkState::Idle };
            }
            Tag::Frontend(number, operation, index) => {
                self.ports.vhost.event(&mut self.core, now, (number, operation, index), event.result);
            }
            Tag::Wakeup | Tag::Timer | Tag::Ignored | Tag::Store(_) => {}
        }
    }

    fn totals(&self) -> UplinkTotals {
        let (drops, full) = (self.core.drops, self.core.wire.stats.full);
        UplinkTotals { drops, full, link_failures: self.link_failures, is_down: self.link_fails }
    }

    fn is_drained(&self) -> bool {
        self.core.gate.queued() == 0 && self.core.gate.in_flight() == 0
    }

    fn message(&mut self, now: Instant, message: Message) {
        match message {
            Message::Edit(edits, reply) => {
                let _ = reply.send(self.apply(now, edits));
            }
            Message::Session(message) => self.ports.vhost.message(&mut self.core, now, message),
            Message::Snapshot(reply) => {
                let _ = reply.send(self.snapshot());
            }
            Message::Clients(reply) => {
                let _ = reply.send(self.ports.vhost.list(&self.core));
            }
            Message::Probe(reply) => {
                let completed = self.core.gate.device_stats().completed;
                let _ = reply.send(Pulse { in_flight: self.core.gate.in_flight(), completed });
            }
            Message::Drain => self.core.ending = Ending::Draining,
            Message::Stop => self.core.ending = Ending::Now,
            #[cfg(test)]
            Message::Panic => panic!("panic requested by a test"),
            // Messages for disks.
            _ => {}
        }
    }

    pub(crate) fn apply(&mut self, now: Instant, edits: Vec<Edit>) -> Result<(), EditError> {
        let has_link = edits.iter().any(|edit| matches!(edit, Edit::SetLink { nic: None, .. }));
        let applied = edit::apply(&mut self.core, &mut self.ports, now, edits);
        if has_link {
            self.link_fails = false;
            // The operation waits for frames of the former interface. When it ends, the new one is watched.
            taps::cancel(&mut self.core.ring, Tag::Frontend(LINK, 0, 0));
        }
        applied
    }
}
