//! The loop: from event to event, with the gate that the daemon uses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use sluice_sched::gate::{Device, Finished, Submission};
use sluice_sched::{Arrival, ChangeError, Flags, Gate, Instant, Kind, OwnerId, Policy, VolumeId};

use crate::devices::{Job, Model};
use crate::record::Record;
use crate::workloads::Workload;

/// A VM with what it does.
struct Vm {
    owner: OwnerId,
    volume: VolumeId,
    /// Where its volume begins on the device.
    base: u64,
    workload: Box<dyn Workload>,
    record: Record,
    /// The time for which it stands in the order of arrivals.
    planned: Option<Instant>,
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
struct Open {
    vm: u32,
    length: u32,
    arrived: Instant,
}

/// A device behind a gate, and VMs before it.
pub struct Simulation {
    gate: Gate,
    port: Port,
    vms: Vec<Vm>,
    open: Vec<Option<Open>>,
    free: Vec<u32>,
    /// When VMs ask next, by time and then by the order of planning.
    arrivals: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    planned: u64,
    wake: Option<Instant>,
    now: Instant,
    warm: Instant,
    window: Duration,
    finished: Vec<Finished>,
    longest: u64,
}

/// What the gate sees of the model.
struct Port {
    model: Box<dyn Model>,
}

impl Device for Port {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        let request = &submission.request;
        let job = Job { slot: submission.slot, kind: request.kind, offset: request.offset, length: request.length };
        self.model.submit(now, job);
    }
}

impl Simulation {
    /// Nobody there yet. What happens before `warm` is not measured; series are counted in `window`s.
    #[must_use]
    pub fn new(gate: Gate, model: Box<dyn Model>, warm: Duration, window: Duration) -> Self {
        Simulation {
            gate,
            port: Port { model },
            vms: Vec::new(),
            open: Vec::new(),
            free: Vec::new(),
            arrivals: BinaryHeap::new(),
            planned: 0,
            wake: None,
            now: Instant::ZERO,
            warm: Instant::from_nanos(warm.as_nanos() as u64),
            window,
            finished: Vec::new(),
            longest: 0,
        }
    }

    /// A VM comes, with a volume that begins at byte `base` of the device.
    ///
    /// # Errors
    /// What the gate says of its policy.
    pub fn add_vm(&mut self, policy: Policy, base: u64, workload: Box<dyn Workload>) -> Result<usize, ChangeError> {
        let owner = self.gate.add_owner(self.now, policy)?;
        let volume = self.gate.add_volume(self.now, owner, Policy::default())?;
        let record = Record::new(self.warm, self.window);
        self.vms.push(Vm { owner, volume, base, workload, record, planned: None });
        self.plan(self.vms.len() - 1);
        Ok(self.vms.len() - 1)
    }

    /// Another policy for a VM, from now on.
    ///
    /// # Errors
    /// What the gate says of it.
    pub fn set_policy(&mut self, vm: usize, policy: Policy) -> Result<(), ChangeError> {
        self.gate.set_owner(self.now, self.vms[vm].owner, policy)?;
        self.pump();
        Ok(())
    }

    /// How far time has come.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Since when it is measured.
    #[must_use]
    pub fn warm(&self) -> Instant {
        self.warm
    }

    /// How many VMs there are.
    #[must_use]
    pub fn vms(&self) -> usize {
        self.vms.len()
    }

    /// What one of them got.
    #[must_use]
    pub fn record(&self, vm: usize) -> &Record {
        &self.vms[vm].record
    }

    /// Requests per second that one of them got after the warm-up.
    #[must_use]
    pub fn rate(&self, vm: usize) -> f64 {
        self.record(vm).measured as f64 / self.now.since(self.warm).as_secs_f64()
    }

    /// The gate's account of one of them.
    #[must_use]
    pub fn account(&self, vm: usize) -> &sluice_sched::gate::OwnerAccount {
        self.gate.account(self.vms[vm].owner).expect("VMs stay")
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &dyn Model {
        &*self.port.model
    }

    /// The VMs of all requests that are on their way.
    pub fn outstanding_vms(&self) -> impl Iterator<Item = usize> + '_ {
        self.open.iter().flatten().map(|open| open.vm as usize)
    }

    /// The longest that a request has been on its way, in nanoseconds.
    #[must_use]
    pub fn longest_nanos(&self) -> u64 {
        self.longest
    }

    /// Goes on until `end`.
    pub fn run_until(&mut self, end: Instant) {
        while let Some(at) = self.next_event()
            && at <= end
        {
            self.now = self.now.max(at);
            self.turn();
        }
        self.now = self.now.max(end);
        let now = self.now;
        self.vms.iter_mut().for_each(|vm| vm.record.end(now));
    }

    fn next_event(&self) -> Option<Instant> {
        let arrival = self.arrivals.peek().map(|Reverse((at, _, _))| *at);
        [self.port.model.next(), arrival, self.wake].into_iter().flatten().min()
    }

    /// Everything that happens now.
    fn turn(&mut self) {
        while self.port.model.next().is_some_and(|at| at <= self.now) {
            let Some(slot) = self.port.model.take(self.now) else { break };
            let mut finished = std::mem::take(&mut self.finished);
            self.gate.complete_all(self.now, slot, true, &mut finished);
            finished.drain(..).for_each(|over| self.finish(&over));
            self.finished = finished;
        }
        while let Some(Reverse((at, _, vm))) = self.arrivals.peek().copied()
            && at <= self.now
        {
            self.arrivals.pop();
            self.arrive(vm as usize);
        }
        self.pump();
        self.port.model.settle(self.now);
    }

    fn pump(&mut self) {
        self.wake = self.gate.pump(self.now, &mut self.port);
    }

    fn arrive(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        vm.planned = None;
        let ask = vm.workload.ask(self.now);
        vm.record.arrive(self.now);
        let entry = Open { vm: index as u32, length: ask.length, arrived: self.now };
        let token = match self.free.pop() {
            Some(token) => token,
            None => {
                self.open.push(None);
                (self.open.len() - 1) as u32
            }
        };
        self.open[token as usize] = Some(entry);
        let arrival = Arrival {
            owner: vm.owner,
            volume: vm.volume,
            kind: ask.kind,
            flags: if ask.kind == Kind::Read { Flags::SYNC } else { Flags::NONE },
            offset: vm.base + ask.offset,
            length: ask.length,
            token,
            elsewhere: None,
        };
        if self.gate.insert(self.now, &arrival).is_err() {
            // It stands where a guest's driver would hold it, and is counted; the run's checks see it as outstanding.
            vm.record.refused += 1;
        }
        self.plan(index);
    }

    fn finish(&mut self, over: &Finished) {
        let open = self.open[over.token as usize].take().expect("a request is over once");
        self.free.push(over.token);
        let vm = &mut self.vms[open.vm as usize];
        vm.record.complete(self.now, open.arrived, open.length);
        vm.workload.completed(self.now);
        self.longest = self.longest.max(self.now.nanos_since(open.arrived));
        self.plan(open.vm as usize);
    }

    /// Enters a VM's next request into the order of arrivals.
    fn plan(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        if vm.planned.is_none()
            && let Some(at) = vm.workload.next()
        {
            vm.planned = Some(at);
            self.arrivals.push(Reverse((at, self.planned, index as u32)));
            self.planned += 1;
        }
    }
}
