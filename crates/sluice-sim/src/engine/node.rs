//! A node: a device with a gate, or with a host's gate and guest gates above it.

use crate::stack::{Ended, Stack};
use sluice_pool::{Aim, Order, Report, Window};
use sluice_sched::gate::{Device, Finished, GateStats, Refused, Slot, Submission};
use sluice_sched::scheduler::Scope;
use sluice_sched::{Arrival, ChangeError, Cost, Gate, Instant, Kind, OwnerId, Policy, VolumeId};

use crate::devices::{Job, Model};

/// Gates of a device.
pub enum Front {
    /// One scheduler, that of the host.
    Gate(Box<Gate>),
    /// Two tiers: one scheduler in each guest, and that of the host.
    Stack(Box<Stack>),
}

impl From<Gate> for Front {
    fn from(gate: Gate) -> Self {
        Front::Gate(Box::new(gate))
    }
}

impl From<Stack> for Front {
    fn from(stack: Stack) -> Self {
        Front::Stack(Box::new(stack))
    }
}

impl Front {
    fn host_mut(&mut self) -> &mut Gate {
        match self {
            Front::Gate(gate) => gate,
            Front::Stack(stack) => stack.host_mut(),
        }
    }
}

/// The model as its gate sees it.
struct Port {
    model: Box<dyn Model>,
    /// Jobs that wait for CPU work before the model gets them; `None` without such work.
    staged: Option<Vec<Job>>,
    /// Number of jobs that wait for CPU work or are in it.
    worked_on: u64,
    /// Tokens of requests that the device got, if they are collected.
    started: Option<Vec<u32>>,
    /// How much may be in flight, if that follows the time of requests; and what is, by slot.
    window: Option<(Window, Vec<Sent>)>,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Sent {
    kind: Kind,
    cost: Cost,
    at: Instant,
}

impl Device for Port {
    fn has_room(&self, now: Instant) -> bool {
        self.window.as_ref().is_none_or(|(window, _)| window.has_room(now))
    }

    fn submit(&mut self, now: Instant, submission: &Submission) {
        if let Some((window, sent)) = &mut self.window {
            let slot = submission.slot.0 as usize;
            let new = Sent { kind: submission.request.kind, cost: submission.request.cost, at: now };
            if sent.len() <= slot {
                sent.resize(slot + 1, new);
            }
            sent[slot] = new;
            window.start(now, submission.request.cost);
        }
        if let Some(started) = &mut self.started {
            started.push(submission.token);
        }
        let request = &submission.request;
        let job = Job { slot: submission.slot, kind: request.kind, offset: request.offset, length: request.length };
        match &mut self.staged {
            Some(staged) => {
                self.worked_on += 1;
                staged.push(job);
            }
            None => self.model.submit(now, job),
        }
    }
}

/// Gates, a device, and when to visit them again.
pub(super) struct Node {
    pub(super) front: Front,
    port: Port,
    wake: Option<Instant>,
    /// Whether an event has occurred since the last pump.
    pub(super) stirred: bool,
    /// Whether the device has changed in this instant.
    unsettled: bool,
    /// Whether the node has not failed.
    pub(super) alive: bool,
    ended: Vec<Ended>,
}

impl Node {
    pub(super) fn new(front: Front, model: Box<dyn Model>) -> Self {
        Node {
            front,
            port: Port { model, staged: None, worked_on: 0, started: None, window: None },
            wake: None,
            stirred: false,
            unsettled: false,
            alive: true,
            ended: Vec::new(),
        }
    }

    /// What is in flight follows the time of requests. Nothing is in flight yet.
    pub(super) fn set_aim(&mut self, now: Instant, aim: Aim) {
        self.port.window = Some((Window::new(now, aim), Vec::new()));
    }

    /// Ends a period of a host in a pool. The first time it only begins one.
    pub(super) fn close_period(&mut self, now: Instant) -> Option<Report> {
        let (window, _) = self.port.window.as_mut()?;
        window.close(now, self.front.host_mut())
    }

    /// Does what the host's view of its pool says, from now on.
    pub(super) fn obey(&mut self, now: Instant, order: Order) {
        if let Some((window, _)) = &mut self.port.window {
            window.obey(now, Some(order), self.front.host_mut());
            self.stirred = true;
        }
    }

    /// State of its window, if it has one.
    pub(super) fn window(&self) -> Option<sluice_pool::State> {
        self.port.window.as_ref().map(|(window, _)| window.state())
    }

    /// When there is something to pump, if nothing completes or arrives before.
    fn next_pump(&self) -> Option<Instant> {
        let room = self.port.window.as_ref().and_then(|(window, _)| window.next_wakeup());
        self.wake.into_iter().chain(room).min()
    }

    pub(super) fn host(&self) -> &Gate {
        match &self.front {
            Front::Gate(gate) => gate,
            Front::Stack(stack) => stack.host(),
        }
    }

    pub(super) fn model(&self) -> &dyn Model {
        &*self.port.model
    }

    pub(super) fn model_mut(&mut self) -> &mut Box<dyn Model> {
        &mut self.port.model
    }

    pub(super) fn stats(&self, owner: OwnerId) -> Option<GateStats> {
        self.host().stats(owner)
    }

    /// Adds a VM with one volume; returns their ids at this node.
    pub(super) fn add_vm(&mut self, now: Instant, policy: Policy) -> Result<(OwnerId, VolumeId), ChangeError> {
        let Front::Gate(gate) = &mut self.front else { panic!("a VM above guests' gates has one of its own") };
        let owner = gate.add_owner(now, policy)?;
        Ok((owner, gate.add_volume(now, owner, Policy::default())?))
    }

    /// Time of the next event, if no request arrives.
    #[inline]
    pub(super) fn next(&self) -> Option<Instant> {
        match (self.port.model.next(), self.next_pump()) {
            (Some(ends), Some(wake)) => Some(ends.min(wake)),
            (one, other) => one.or(other),
        }
    }

    /// Completes jobs that the device has completed by now.
    pub(super) fn complete(&mut self, now: Instant, finished: &mut Vec<Finished>) {
        while self.port.model.next().is_some_and(|at| at <= now) {
            self.unsettled = true;
            if let Some(slot) = self.port.model.take_dropped() {
                self.complete_slot(now, slot, false, finished);
                continue;
            }
            let Some(slot) = self.port.model.take(now) else { break };
            self.complete_slot(now, slot, true, finished);
        }
    }

    /// Collects the tokens of requests that the device gets from now on, if its gate states those of the simulation, and lets at
    /// least `depth_min` requests be at the device.
    pub(super) fn collect_started(&mut self, depth_min: u32) {
        if let Front::Gate(gate) = &self.front
            && gate.settings().depth >= depth_min
        {
            self.port.started.get_or_insert_default();
        }
    }

    /// Tokens collected so far, if they are collected.
    #[inline]
    pub(super) fn started(&mut self) -> Option<&mut Vec<u32>> {
        self.port.started.as_mut()
    }

    /// From now on jobs need CPU work before the device gets them.
    pub(super) fn stage(&mut self) {
        self.port.staged = Some(Vec::new());
    }

    /// Jobs that wait for CPU work.
    pub(super) fn staged(&mut self) -> impl Iterator<Item = Job> {
        self.port.staged.iter_mut().flat_map(|staged| staged.drain(..))
    }

    /// Submits a job whose CPU work has completed.
    pub(super) fn start(&mut self, now: Instant, job: Job) {
        self.port.worked_on -= 1;
        self.port.model.submit(now, job);
        self.unsettled = true;
    }

    /// Aborts a job whose CPU work was in vain.
    pub(super) fn abort_job(&mut self, now: Instant, job: Job, finished: &mut Vec<Finished>) {
        self.port.worked_on -= 1;
        self.complete_slot(now, job.slot, false, finished);
    }

    /// Jobs at the device, and those in CPU work before it.
    pub(super) fn jobs(&self) -> u64 {
        self.port.model.jobs_held() as u64 + self.port.worked_on
    }

    /// Completes a slot.
    pub(super) fn complete_slot(&mut self, now: Instant, slot: Slot, ok: bool, finished: &mut Vec<Finished>) {
        self.stirred = true;
        if let Some((window, sent)) = &mut self.port.window {
            let Sent { kind, cost, at } = sent[slot.0 as usize];
            window.end(now, cost, Some((kind, at)));
        }
        match &mut self.front {
            Front::Gate(gate) => gate.complete_all(now, slot, ok, finished),
            Front::Stack(stack) => {
                stack.complete(now, slot, ok, &mut self.ended);
                finished.extend(self.ended.drain(..).map(|ended| ended.finished));
            }
        }
    }

    pub(super) fn pump(&mut self, now: Instant) {
        if self.stirred || self.next_pump().is_some_and(|at| at <= now) {
            if let Some((window, _)) = &mut self.port.window {
                window.advance(now, self.front.host_mut());
            }
            self.wake = match &mut self.front {
                Front::Gate(gate) => gate.pump(now, &mut self.port),
                Front::Stack(stack) => stack.pump(now, &mut self.port),
            };
            let is_left = self.host().queued() > 0;
            if let Some((window, _)) = &mut self.port.window {
                let is_wanted = is_left && !window.has_room(now);
                window.want(is_wanted);
            }
            self.stirred = false;
            self.unsettled = true;
        }
    }

    /// Ends the instant for the device. Other nodes may share it, so all have pumped before.
    pub(super) fn settle(&mut self, now: Instant) {
        if std::mem::take(&mut self.unsettled) {
            self.port.model.settle(now);
        }
    }

    /// Submits a request of `vm`; in a stack, `arrival` names the thread as its owner.
    pub(super) fn insert(&mut self, now: Instant, vm: OwnerId, arrival: &Arrival) -> Result<(), Refused> {
        self.stirred = true;
        match &mut self.front {
            Front::Gate(gate) => gate.insert(now, arrival).map(|_| ()),
            Front::Stack(stack) => stack.insert(now, vm, arrival).map(|_| ()),
        }
    }

    pub(super) fn set_policy(&mut self, now: Instant, vm: OwnerId, policy: Policy) -> Result<(), ChangeError> {
        self.stirred = true;
        match &mut self.front {
            Front::Gate(gate) => gate.set_owner(now, vm, policy),
            Front::Stack(stack) => stack.set_vm(now, vm, policy),
        }
    }

    /// Cancels the queued requests of a VM; `threads` are those of a guest.
    pub(super) fn cancel(&mut self, now: Instant, vm: OwnerId, threads: &[OwnerId], finished: &mut Vec<Finished>) {
        self.stirred = true;
        match &mut self.front {
            Front::Gate(gate) => gate.cancel(now, Scope::Owner(vm), finished),
            Front::Stack(stack) => {
                for thread in threads {
                    stack.cancel(now, vm, Scope::Owner(*thread), &mut self.ended);
                }
                finished.extend(self.ended.drain(..).map(|ended| ended.finished));
            }
        }
    }
}
