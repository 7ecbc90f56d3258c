//! A disk as the actor of a device thread.
//!
//! An iteration polls the active virtqueues, does the work that there is, and sends replies and interrupts.

use std::io;

use sluice_sched::{Gate, Instant};

use crate::backend::disk::Backend;
use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::device::blocking;
use crate::device::command::Command;
use crate::device::core::Core;
use crate::device::deadline_timer::DeadlineTimer;
use crate::device::edit;
#[cfg(test)]
use crate::device::order::{self, Step};
use crate::device::pool;
use crate::device::spec::{DeviceSpec, Edit};
use crate::device::vm::Vm;
use crate::device::work::{Ends, Starts};
use crate::frontend::Frontends;
use crate::reactor::actor::Actor;
use crate::reactor::base::Base;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::spec::{ClientSnapshot, EditError, VmSnapshot};
use crate::store::Stores;
use crate::store::delay::{Delay, Delayed};
use crate::store::slot_log;
use crate::store::window::Windowed;

/// Maximum number of rounds in one iteration. Requests that complete immediately free window space for more, so a guest
/// could otherwise keep the loop in one iteration.
const ROUNDS_MAX: u32 = 16;

/// A disk: its gate and its requests, and the clients of its VMs.
pub(crate) struct Disk {
    pub(crate) core: Core,
    frontends: Frontends,
    deadline_timer: DeadlineTimer,
    restarts: u64,
}

impl Actor for Disk {
    type Spec = DeviceSpec;
    type Edit = Edit;
    type Command = Command;
    type Vm = Vm;
    type Helper = blocking::Helper;

    fn name(spec: &DeviceSpec) -> &str {
        &spec.name
    }

    fn build(
        spec: &DeviceSpec,
        ring: Ring,
        mailbox: &Mailbox<Self>,
        restarts: u64,
    ) -> io::Result<(Self, blocking::Helper)> {
        let gate = Gate::new(spec.scheduler.build().map_err(io::Error::other)?, spec.gate);
        let (jobs, helper) = blocking::start(&spec.name, restarts, mailbox)?;
        let store = Delayed { delay: delay(spec)?, below: Stores::new() };
        let store = Windowed::new(Instant::ZERO, spec.aim, store);
        let backend = Backend::new(ring, spec.gate.depth, jobs, store);
        let base = Base::new(spec.name.clone(), gate);
        let core = Core::new(base, backend, mailbox.waker());
        let (frontends, deadline_timer) = (Frontends::new(), DeadlineTimer::new(Tag::Timer));
        Ok((Disk { core, frontends, deadline_timer, restarts }, helper))
    }

    fn base(&self) -> &Base<Vm> {
        &self.core.base
    }

    fn base_mut(&mut self) -> &mut Base<Vm> {
        &mut self.core.base
    }

    fn window(&self) -> Option<sluice_pool::State> {
        self.core.backend.store.state()
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.core.backend.ring
    }

    fn edit(&mut self, now: Instant, edits: Vec<Edit>) -> Result<(), EditError> {
        edits.into_iter().try_for_each(|edit| edit::apply(&mut self.core, &mut self.frontends, now, edit))
    }

    fn describe(&self) -> Vec<Edit> {
        edit::describe(&self.core)
    }

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Frontend(command) => self.frontends.command(&mut self.core, now, command),
            Command::Pool(command) => pool::command(&mut self.core, now, command),
            // A job from before a restart names requests that no longer exist.
            Command::BlockingDone(restarts, _) if restarts != self.restarts => {}
            Command::BlockingDone(_, result) => self.core.blocking_done(now, result),
            #[cfg(test)]
            Command::HangHelper(until) => {
                let job = crate::store::file::jobs::BlockingJob::Hang(until);
                assert!(self.core.backend.blocking.send(job));
            }
            #[cfg(test)]
            Command::RefuseZeroing(after) => self.core.backend.store.stores_mut().file.zeroing_left = Some(after),
        }
    }

    fn refuse_clients(&mut self, volumes: Vec<(String, String)>) -> Result<(), EditError> {
        edit::refuse_clients(&mut self.core, volumes)
    }

    fn reopen(&mut self, volumes: &[(String, String)]) {
        edit::accept_clients(&mut self.core, volumes);
    }

    fn woken(&mut self) {
        self.core.memory_freed();
    }

    fn drain(&mut self) {
        self.frontends.drain(&mut self.core);
    }

    fn event(&mut self, now: Instant, tag: Tag, result: i32) {
        match tag {
            Tag::Store(event) => self.core.backend.store_event(now, event, result),
            Tag::Frontend(number, operation, index) => {
                self.frontends.event(&mut self.core, now, (number, operation, index), result);
            }
            Tag::Timer => self.deadline_timer.fired(),
            Tag::Wakeup | Tag::Ignored => {}
        }
    }

    fn work(&mut self, now: Instant) -> bool {
        self.core.release_held(now);
        #[cfg(test)]
        order::note(Step::Poll);
        let found = self.frontends.poll(&mut self.core, now);
        self.run_ready(now);
        #[cfg(test)]
        order::note(Step::End);
        self.frontends.end_of_iteration(&mut self.core, now);
        found
    }

    fn has_work(&self) -> bool {
        !self.core.work.is_empty() || self.core.busy_poll && self.frontends.clients() > 0
    }

    /// Whether the device has requests, or one may arrive that could be dispatched.
    fn may_spin(&self) -> bool {
        self.core.base.gate.in_flight() > 0 || self.core.may_dispatch_next()
    }

    fn stop_polling(&mut self, now: Instant) -> bool {
        let core = &mut self.core;
        if !self.frontends.stop_polling(core, now) {
            return false;
        }
        if let Some(deadline) = self.frontends.next_deadline() {
            self.deadline_timer.start(&mut core.backend.ring, deadline.since(now));
        }
        true
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        self.core.next_wakeup()
    }

    fn is_drained(&self) -> bool {
        self.frontends.is_drained()
    }

    /// Shuts down all sockets and stops listening to guests, so that all operations in the kernel end.
    fn shut_down(&mut self) {
        self.frontends.shut_down(&mut self.core);
        self.core.backend.shut_down();
        self.deadline_timer.cancel(&mut self.core.backend.ring);
    }

    fn vm_snapshots(&mut self) -> Vec<VmSnapshot> {
        edit::vm_snapshots(&mut self.core)
    }

    fn clients(&self) -> Vec<ClientSnapshot> {
        self.frontends.list(&self.core)
    }

    fn connections(&self) -> usize {
        self.frontends.clients()
    }
}

/// Returns the delay of a device, with its log and its model.
fn delay(spec: &DeviceSpec) -> io::Result<Option<Delay>> {
    let Some(delay) = &spec.delay else { return Ok(None) };
    let log = spec.delay_log.clone().map(slot_log::start).transpose()?;
    Ok(Some(Delay::new(*delay, log)?.with_model(spec.model.as_ref())))
}

impl Disk {
    /// Does the work that there is, and lets the gate dispatch, until none is left or the number of rounds is reached.
    fn run_ready(&mut self, now: Instant) {
        self.core.take_completions(now);
        for _ in 0..ROUNDS_MAX {
            self.end_requests(now);
            self.start_clients(now);
            self.core.pump(now);
            if self.core.work.is_empty() {
                return;
            }
        }
    }

    /// Ends requests, and lets others go to the gate again.
    fn end_requests(&mut self, now: Instant) {
        let core = &mut self.core;
        while let Some(work) = core.work.next() {
            match work {
                Ends::Complete(io) => {
                    #[cfg(test)]
                    order::note(Step::Reply);
                    self.frontends.complete(core, now, io);
                }
                Ends::Continue(io) => {
                    #[cfg(test)]
                    order::note(Step::Continue);
                    if !self.frontends.takes_back(core, now, io) {
                        core.go_on(now, io);
                    }
                }
                Ends::Cancel(volume) => core.cancel_abandoned(now, volume),
                Ends::Cross(volume) => core.cross_released(now, volume),
                Ends::Dispatch => {}
            }
        }
        #[cfg(test)]
        order::note(Step::Publish);
        self.frontends.delivered();
    }

    /// Serves clients for which there may be room, each once. A client that uses up its budget is queued again and served
    /// in the next round.
    fn start_clients(&mut self, now: Instant) {
        let core = &mut self.core;
        for _ in 0..core.work.starts() {
            match core.work.next_start() {
                Some(Starts::Admit(volume)) => {
                    #[cfg(test)]
                    order::note(Step::Admit);
                    self.frontends.admit(core, now, volume);
                }
                Some(Starts::Resume(vm)) => {
                    for _ in 0..core.waiting(vm) {
                        let Some((client, budget)) = core.next_waiting(vm) else { break };
                        #[cfg(test)]
                        order::note(Step::Serve);
                        self.frontends.serve(core, now, client, budget);
                    }
                }
                None => return,
            }
        }
    }
}
