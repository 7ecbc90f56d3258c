//! The event loop, with the gates that the daemon uses.
//!
//! ```text
//! VM { thread, thread, ... } --placement--> node { gate, or guests' gates above a host's } --> device model
//! ```
//!
//! A VM is a set of threads with one record. Each request goes to one node, which is a device with its gates.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::stack::{Guest, StackError};
use sluice_pool::Aim;
use sluice_sched::gate::{Finished, Outcome, Service};
use sluice_sched::tracker::{Form, Tracked};
use sluice_sched::{Arrival, ChangeError, Flags, Instant, Kind, OwnerId, Phase, Policy, VolumeId};

use crate::devices::Model;
use crate::record::{Measured, Record};
use crate::workloads::Workload;

mod cpus;
mod fetch;
mod gates;
mod ledger;
mod node;
mod pool;
mod results;
mod timeline;
mod vm;

use cpus::Cpus;
use ledger::Ledger;
use node::Node;
use pool::{Pool, Step};
use vm::{Open, Opens, Route, Runner, Seat, State, Vm};

pub use cpus::Task;
pub use node::Front;
pub use pool::Meeting;
pub use timeline::Change;
pub use vm::{Placement, Thread};

/// Maximum number of outstanding requests of all VMs: an open loop that submits faster than its device would fill the
/// memory.
pub const OUTSTANDING_MAX: usize = 1 << 23;

/// A planned event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A thread of a VM submits a request.
    Ask(u32, u32),
    /// A planned change.
    Change(u32),
    /// The exchange of a pool goes on.
    Pool(u32, Step),
}

/// A completed request, for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    pub vm: usize,
    /// Number of its thread.
    pub thread: usize,
    /// The node that served it.
    pub node: usize,
    pub kind: Kind,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// Time of arrival.
    pub arrived: Instant,
    /// Time when its last part was dispatched.
    pub dispatched: Instant,
    /// Phase of its last part.
    pub phase: Phase,
    /// Time of completion.
    pub completed: Instant,
}

/// Called with every completed request.
pub type Observer = Box<dyn FnMut(&Completed)>;

/// Devices with gates, and VMs.
pub struct Simulation {
    nodes: Vec<Node>,
    vms: Vec<Vm>,
    pools: Vec<Pool>,
    /// `None`: requests take no CPU time.
    cpus: Option<Cpus>,
    open: Opens,
    /// Ordered by time, then by planning.
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Requests that were planned for the current instant, in that order. They come after the events of the heap, all of which
    /// were planned before this instant began. Most requests of a closed loop without think time take this way.
    due: VecDeque<(u32, u32)>,
    /// Whether requests for the current instant belong there.
    is_within: bool,
    entered: u64,
    changes: Vec<Change>,
    refused: Vec<(Instant, ChangeError)>,
    now: Instant,
    warm: Instant,
    warmed: bool,
    window: Duration,
    finished: Vec<Finished>,
    ledger: Ledger,
    longest: u64,
    observer: Option<Observer>,
    outstanding_max: usize,
    /// The VM whose request exceeded the limit; the run has ended.
    overrun: Option<usize>,
}

impl Simulation {
    /// A simulation with one node and no VMs. Measurement starts after `warm`; series are counted in `window`s.
    #[must_use]
    pub fn new(front: impl Into<Front>, model: Box<dyn Model>, warm: Duration, window: Duration) -> Self {
        Simulation {
            nodes: vec![Node::new(front.into(), model)],
            vms: Vec::new(),
            pools: Vec::new(),
            cpus: None,
            open: Opens::default(),
            events: BinaryHeap::new(),
            due: VecDeque::new(),
            is_within: false,
            entered: 0,
            changes: Vec::new(),
            refused: Vec::new(),
            now: Instant::ZERO,
            warm: Instant::from_nanos(warm.as_nanos() as u64),
            warmed: false,
            window,
            finished: Vec::new(),
            ledger: Ledger::default(),
            longest: 0,
            observer: None,
            outstanding_max: OUTSTANDING_MAX,
            overrun: None,
        }
    }

    /// Adds a node, before any VM; returns its number.
    pub fn add_node(&mut self, front: impl Into<Front>, model: Box<dyn Model>) -> usize {
        assert!(self.vms.is_empty(), "nodes are added before VMs");
        self.nodes.push(Node::new(front.into(), model));
        self.nodes.len() - 1
    }

    /// What is in flight at a node follows the time of requests there, from the start on.
    pub fn set_aim(&mut self, node: usize, aim: Aim) {
        self.nodes[node].set_aim(Instant::ZERO, aim);
    }

    /// State of the window of a node, if what is in flight there follows the time of requests.
    #[must_use]
    pub fn window_of(&self, node: usize) -> Option<sluice_pool::State> {
        self.nodes[node].window()
    }

    /// Adds a VM with one thread on the first node. Its volume begins at byte `base` of the device.
    ///
    /// # Errors
    /// If the gate rejects its policy.
    pub fn add_vm(&mut self, policy: Policy, base: u64, workload: Box<dyn Workload>) -> Result<usize, ChangeError> {
        let vm = self.add_vm_at(Placement::Pinned(0), policy)?;
        self.add_thread(vm, Thread::new(workload).at(base))?;
        Ok(vm)
    }

    /// Adds a VM without threads, with this policy at each node that its requests may use.
    ///
    /// # Errors
    /// If a gate rejects its policy.
    ///
    /// # Panics
    /// If such a node has guest gates.
    pub fn add_vm_at(&mut self, placement: Placement, policy: Policy) -> Result<usize, ChangeError> {
        let mut seats = Vec::new();
        for (number, node) in (0..).zip(&mut self.nodes) {
            if !matches!(placement, Placement::Pinned(pinned) if pinned != number as usize) {
                let (owner, volume) = node.add_vm(self.now, policy)?;
                seats.push(Seat { node: number, owner, volume });
            }
        }
        Ok(self.push_vm(Route::new(placement, seats)))
    }

    /// Adds a VM without threads whose guest has its own gate, on a node with guest gates.
    ///
    /// # Errors
    /// If the host's gate rejects it.
    ///
    /// # Panics
    /// If the node has no guest gates.
    pub fn add_guest(&mut self, node: usize, policy: Policy, guest: Guest) -> Result<usize, StackError> {
        let Front::Stack(stack) = &mut self.nodes[node].front else { panic!("node {node} has no guests' gates") };
        let owner = stack.add_vm(self.now, policy, guest)?;
        Ok(self.push_vm(Route::Pinned(Seat { node: node as u32, owner, volume: VolumeId(0) })))
    }

    fn push_vm(&mut self, route: Route) -> usize {
        let node = route.seats()[0].node as usize;
        let request_bytes = self.nodes[node].host().settings().request_bytes;
        self.vms.push(Vm::new(Record::new(self.warm, self.window, request_bytes), route));
        self.ledger.admit(self.vms.len());
        self.collect_started();
        self.vms.len() - 1
    }

    /// Adds a thread to a VM; returns its number.
    ///
    /// # Errors
    /// If the guest's gate rejects it.
    pub fn add_thread(&mut self, vm: usize, thread: Thread) -> Result<usize, ChangeError> {
        let mut owner = OwnerId(0);
        if let Route::Pinned(seat) = self.vms[vm].route {
            owner = seat.owner;
            if let Front::Stack(stack) = &mut self.nodes[seat.node as usize].front {
                owner = stack.add_thread(self.now, seat.owner, Policy::default())?;
            }
        }
        self.vms[vm].runners.push(Runner { thread, owner, planned: None });
        let number = self.vms[vm].runners.len() - 1;
        self.plan(vm, number);
        Ok(number)
    }

    /// Sets the policy of a VM from now on.
    ///
    /// # Errors
    /// If a gate rejects it.
    pub fn set_policy(&mut self, vm: usize, policy: Policy) -> Result<(), ChangeError> {
        for seat in self.vms[vm].route.seats() {
            self.nodes[seat.node as usize].set_policy(self.now, seat.owner, policy)?;
        }
        self.pump();
        Ok(())
    }

    /// From now on a VM's gateway counts completions at each node and reports them to the others: dmClock.
    pub fn track(&mut self, vm: usize, form: Form) {
        self.vms[vm].tracker = Some(Box::new(Tracked::new(form)));
    }

    /// Sets a limit below [`OUTSTANDING_MAX`].
    pub fn set_outstanding_max(&mut self, most: usize) {
        self.outstanding_max = most.min(OUTSTANDING_MAX);
    }

    /// The VM whose request exceeded the limit of outstanding requests. The run ended there.
    #[must_use]
    pub fn overrun(&self) -> Option<usize> {
        self.overrun
    }

    /// Calls `observer` with every completed request.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Start of the measurement.
    #[must_use]
    pub fn warm(&self) -> Instant {
        self.warm
    }

    /// Length of a window of the series.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window
    }

    #[must_use]
    pub fn vms(&self) -> usize {
        self.vms.len()
    }

    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    #[must_use]
    pub fn device(&self) -> &dyn Model {
        self.device_of(0)
    }

    #[must_use]
    pub fn device_of(&self, node: usize) -> &dyn Model {
        self.nodes[node].model()
    }

    /// Requests in flight at a node, as its gate and its device count them.
    pub(crate) fn in_flight(&self, node: usize) -> (u64, u64) {
        (self.nodes[node].host().in_flight(), self.nodes[node].jobs())
    }

    /// VMs and arrival times of all outstanding requests.
    pub fn outstanding(&self) -> impl Iterator<Item = (usize, Instant)> + '_ {
        self.open.iter().map(|open| (open.vm as usize, open.arrived))
    }

    /// Longest time that a request has been outstanding, in nanoseconds.
    #[must_use]
    pub fn longest_nanos(&self) -> u64 {
        self.longest
    }

    /// Planned changes of policies that a gate rejected, with their times.
    #[must_use]
    pub fn refused(&self) -> &[(Instant, ChangeError)] {
        &self.refused
    }

    /// Runs until `end`, until no event is left, or until the limit of outstanding requests.
    pub fn run_until(&mut self, end: Instant) {
        while let Some(at) = self.next_event()
            && at <= end
            && self.overrun.is_none()
        {
            if !self.warmed && at >= self.warm {
                self.warm_up();
            }
            self.now = self.now.max(at);
            self.process_instant();
        }
        if self.overrun.is_none() {
            self.now = self.now.max(end);
        }
        if !self.warmed && end >= self.warm {
            self.warm_up();
        }
        self.ledger.settle(&mut self.vms);
        let now = self.now;
        self.vms.iter_mut().for_each(|vm| vm.record.end(now));
    }

    fn warm_up(&mut self) {
        self.warmed = true;
        for vm in 0..self.vms.len() {
            self.vms[vm].dispatched_before = self.dispatched_so_far(vm);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let mut next = self.events.peek().map(|Reverse((at, _, _))| *at);
        let mut consider = |at: Option<Instant>| {
            if at.is_some_and(|at| next.is_none_or(|next| at < next)) {
                next = at;
            }
        };
        self.nodes.iter().for_each(|node| consider(node.next()));
        consider(self.cpus.as_ref().and_then(Cpus::next));
        next
    }

    /// Processes all events of the current instant.
    fn process_instant(&mut self) {
        self.is_within = true;
        for node in 0..self.nodes.len() {
            let mut finished = std::mem::take(&mut self.finished);
            self.nodes[node].complete(self.now, &mut finished);
            finished.drain(..).for_each(|over| self.finish(node, &over));
            self.finished = finished;
        }
        self.work();
        while let Some(Reverse((at, _, event))) = self.events.peek().copied()
            && at <= self.now
        {
            self.events.pop();
            match event {
                Event::Ask(vm, thread) => self.arrive(vm as usize, thread as usize),
                Event::Change(index) => self.change(index as usize),
                Event::Pool(pool, step) => self.step_pool(pool, step),
            }
        }
        while let Some((vm, thread)) = self.due.pop_front() {
            self.arrive(vm as usize, thread as usize);
        }
        self.is_within = false;
        self.pump();
    }

    fn pump(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.pump(self.now));
        self.nodes.iter_mut().for_each(|node| node.settle(self.now));
        self.fetch_started();
        self.hand_over();
    }

    fn arrive(&mut self, index: usize, thread: usize) {
        let vm = &mut self.vms[index];
        let runner = &mut vm.runners[thread];
        runner.planned = None;
        vm.planned -= 1;
        if vm.state != State::Active {
            return;
        }
        if self.open.len() >= self.outstanding_max {
            self.overrun.get_or_insert(index);
            return;
        }
        let ask = runner.thread.workload.ask(self.now);
        vm.record.arrive(self.now);
        let open = Open {
            vm: index as u32,
            thread: thread as u32,
            kind: ask.kind,
            offset: runner.thread.base + ask.offset,
            length: ask.length,
            arrived: self.now,
        };
        let token = self.open.add(open);
        if !self.cpus.as_mut().is_some_and(|cpus| cpus.ask(self.now, index, token)) {
            self.submit(index, token);
        }
        self.plan(index, thread);
    }

    /// Submits a request to a node, or keeps it until a node accepts it.
    fn submit(&mut self, vm: usize, token: u32) {
        // Requests that were kept before come first.
        if !self.vms[vm].backpressured.is_empty() || !self.offer(token) {
            self.vms[vm].backpressured.push_back(token);
        }
    }

    /// Whether a node accepted it.
    fn offer(&mut self, token: u32) -> bool {
        let open = self.open.get(token);
        let vm = &mut self.vms[open.vm as usize];
        let Some(Seat { node, owner, volume }) = vm.route.choose(&self.nodes) else { return false };
        let (number, node) = (node, node as usize);
        let runner = &vm.runners[open.thread as usize];
        let told = vm.tracker.as_mut().map(|tracker| tracker.ask(self.now, number));
        let waited_for = open.kind == Kind::Read || runner.thread.synchronous;
        let is_written = open.kind == Kind::WriteZeroes && !self.nodes[node].model().makes_zeroes();
        let arrival = Arrival {
            owner: if matches!(self.nodes[node].front, Front::Stack(_)) { runner.owner } else { owner },
            volume,
            kind: if is_written { Kind::Write } else { open.kind },
            flags: if waited_for { Flags::SYNC } else { Flags::NONE },
            offset: open.offset,
            length: open.length,
            token,
            remote: told.map(|(remote, _)| remote),
        };
        let taken = self.nodes[node].insert(self.now, owner, &arrival).is_ok();
        let vm = &mut self.vms[open.vm as usize];
        vm.record.refused += u64::from(!taken);
        if let (Some(tracker), Some((_, heard))) = (&mut vm.tracker, told) {
            tracker.answer(number, heard, taken);
        }
        taken
    }

    /// Offers the kept requests of a VM, in order, until one is not accepted.
    fn offer_backpressured(&mut self, vm: usize) {
        while let Some(token) = self.vms[vm].backpressured.front().copied()
            && self.offer(token)
        {
            self.vms[vm].backpressured.pop_front();
        }
    }

    fn finish(&mut self, node: usize, over: &Finished) {
        if over.outcome != Outcome::Done {
            return self.not_served(node, over.token);
        }
        let open = self.open.remove(over.token);
        let (index, thread) = (open.vm as usize, open.thread as usize);
        let vm = &mut self.vms[index];
        if let Some(tracker) = &mut vm.tracker {
            tracker.client.completed(node as u32, over);
        }
        let is_measured = vm.record.complete(self.now);
        vm.runners[thread].thread.workload.completed(self.now);
        if is_measured {
            let Open { vm, kind, length, arrived, .. } = open;
            let Finished { dispatched, service: Service { cost, bytes }, .. } = *over;
            let request = Measured { vm, arrived, dispatched, completed: self.now, length, kind, cost, bytes };
            self.ledger.add(request, &mut self.vms);
        }
        self.longest = self.longest.max(self.now.nanos_since(open.arrived));
        if let Some(observer) = &mut self.observer {
            let Open { kind, offset, length, arrived, .. } = open;
            let (dispatched, phase, completed) = (over.dispatched, over.phase, self.now);
            observer(&Completed {
                vm: index,
                thread,
                node,
                kind,
                offset,
                length,
                arrived,
                dispatched,
                phase,
                completed,
            });
        }
        if !self.vms[index].backpressured.is_empty() {
            self.offer_backpressured(index);
        }
        self.plan(index, thread);
        self.note_end(index);
    }

    /// A request that was cancelled or has failed.
    fn not_served(&mut self, node: usize, token: u32) {
        let open = self.open.get(token);
        let vm = &mut self.vms[open.vm as usize];
        if let Some(tracker) = &mut vm.tracker {
            tracker.client.ended(node as u32);
        }
        if vm.state == State::Stopped {
            self.cancelled(token);
        } else if self.nodes[node].alive {
            self.dropped(token);
        } else {
            // Its node has failed.
            vm.record.retried += 1;
            self.submit(open.vm as usize, token);
        }
    }

    /// A request of a VM that was stopped.
    fn cancelled(&mut self, token: u32) {
        let open = self.open.remove(token);
        let vm = &mut self.vms[open.vm as usize];
        vm.record.cancel(self.now, open.arrived);
        vm.runners[open.thread as usize].thread.workload.completed(self.now);
    }

    /// A request that its device dropped.
    fn dropped(&mut self, token: u32) {
        let open = self.open.remove(token);
        let (index, thread) = (open.vm as usize, open.thread as usize);
        let vm = &mut self.vms[index];
        vm.record.lose(self.now, open.arrived);
        vm.runners[thread].thread.workload.dropped(self.now);
        if !vm.backpressured.is_empty() {
            self.offer_backpressured(index);
        }
        self.plan(index, thread);
        self.note_end(index);
    }

    #[inline]
    fn note_end(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        if vm.state == State::Active && vm.record.outstanding() == 0 && vm.planned == 0 {
            vm.ended = Some(self.now);
        }
    }

    fn enter(&mut self, at: Instant, event: Event) {
        self.events.push(Reverse((at, self.entered, event)));
        self.entered += 1;
    }

    /// Plans a thread's next request.
    #[inline(always)]
    fn plan(&mut self, index: usize, thread: usize) {
        let vm = &mut self.vms[index];
        let runner = &mut vm.runners[thread];
        if vm.state == State::Active
            && runner.planned.is_none()
            && let Some(at) = runner.thread.workload.next()
        {
            let at = at.max(self.now);
            runner.planned = Some(at);
            vm.planned += 1;
            if self.is_within && at == self.now {
                self.due.push_back((index as u32, thread as u32));
            } else {
                self.enter(at, Event::Ask(index as u32, thread as u32));
            }
        }
    }
}
