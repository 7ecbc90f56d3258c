//! CPU time of requests: of the guest before a request is submitted, and of the driver domain before the device gets
//! it.
//!
//! ```text
//! thread --guest's CPU--> gate --driver domain's CPU--> device model
//! ```
//!
//! Requests that the driver domain has taken from a gate are in flight there: the gate's depth bounds the requests that
//! wait for the CPU and at the device together. Received packets pass no gate and cost nothing here.

use std::time::Duration;

use sluice_sched::Instant;

use super::Simulation;
use super::vm::State;
use crate::cpu::VcpuId;
use crate::cpu::host::{Class, Done, Host};
use crate::devices::Job;

/// CPU work of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Task(Kind);

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A guest prepares the request of this token.
    Ask(u32),
    /// The driver domain prepares a job of this node.
    Job(u32, Job),
}

/// Virtual CPU, class and time per request of a guest or driver domain.
#[derive(Debug, Clone, Copy)]
struct Worker {
    vcpu: VcpuId,
    class: Class,
    nanos: u64,
}

/// CPUs and the work on them.
#[derive(Debug)]
pub(super) struct Cpus {
    host: Host<Task>,
    guests: Vec<Option<Worker>>,
    backends: Vec<Option<Worker>>,
    done: Vec<Done<Task>>,
}

fn set(workers: &mut Vec<Option<Worker>>, index: usize, worker: Worker) {
    if index >= workers.len() {
        workers.resize(index + 1, None);
    }
    workers[index] = Some(worker);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Cpus {
    pub(super) fn next(&self) -> Option<Instant> {
        self.host.next()
    }

    /// Starts the CPU work of a VM for a request, if it has any; returns whether it has.
    pub(super) fn ask(&mut self, now: Instant, vm: usize, token: u32) -> bool {
        let Some(Worker { vcpu, class, nanos }) = self.guests.get(vm).copied().flatten() else { return false };
        self.host.submit(now, vcpu, class, nanos, Task(Kind::Ask(token)));
        true
    }

    fn job(&mut self, now: Instant, node: usize, job: Job) {
        let Worker { vcpu, class, nanos } = self.backends[node].expect("staged jobs have a back end");
        self.host.submit(now, vcpu, class, nanos, Task(Kind::Job(node as u32, job)));
    }
}

impl Simulation {
    /// Sets these unused CPUs.
    pub fn set_cpus(&mut self, host: Host<Task>) {
        self.cpus = Some(Cpus { host, guests: Vec::new(), backends: Vec::new(), done: Vec::new() });
    }

    /// Running time of all CPUs in nanoseconds and their number, if that exceeds the elapsed time.
    pub(crate) fn cpus_overused(&self) -> Option<(u64, u32)> {
        let host = &self.cpus.as_ref()?.host;
        let most = u128::from(self.now.as_nanos()) * host.cpus() as u128;
        (u128::from(host.busy_nanos()) > most).then_some((host.busy_nanos(), host.cpus() as u32))
    }

    fn cpus_mut(&mut self) -> &mut Cpus {
        self.cpus.as_mut().expect("CPUs are set before their users")
    }

    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn host(&self) -> &Host<Task> {
        &self.cpus.as_ref().expect("it has CPUs").host
    }

    /// Adds a domain with one virtual CPU that is always busy.
    ///
    /// # Panics
    /// If there are no CPUs.
    pub fn add_busy(&mut self, weight: u32, allowed: u64) -> VcpuId {
        let now = self.now;
        let host = &mut self.cpus_mut().host;
        let domain = host.add_domain(weight, 0);
        let vcpu = host.add_vcpu(domain, allowed);
        host.set_busy(now, vcpu, true);
        vcpu
    }

    /// Sets the CPU time of a VM on a virtual CPU before each of its requests is submitted.
    ///
    /// # Panics
    /// If there are no CPUs.
    pub fn guest_on(&mut self, vm: usize, vcpu: VcpuId, per_request: Duration) {
        let worker = Worker { vcpu, class: Class::Net, nanos: nanos(per_request) };
        set(&mut self.cpus_mut().guests, vm, worker);
    }

    /// Sets the CPU time of a driver domain on a virtual CPU before a node's device gets a request.
    ///
    /// # Panics
    /// If there are no CPUs.
    // rule: credit1.driver-domain, netback.transmit-only
    pub fn backend_on(&mut self, node: usize, vcpu: VcpuId, class: Class, per_request: Duration) {
        set(&mut self.cpus_mut().backends, node, Worker { vcpu, class, nanos: nanos(per_request) });
        self.nodes[node].stage();
    }

    /// Handles work that has completed by now.
    pub(super) fn work(&mut self) {
        let Some(cpus) = &mut self.cpus else { return };
        let mut done = std::mem::take(&mut cpus.done);
        cpus.host.advance(self.now, &mut done);
        for Done { tag: Task(kind), .. } in done.drain(..) {
            match kind {
                Kind::Ask(token) => {
                    let vm = self.open.get(token).vm as usize;
                    match self.vms[vm].state {
                        State::Stopped => self.cancelled(token),
                        State::Active | State::Idle => self.submit(vm, token),
                    }
                }
                Kind::Job(node, job) if self.nodes[node as usize].alive => {
                    self.nodes[node as usize].start(self.now, job);
                }
                Kind::Job(node, job) => self.lost(node as usize, job),
            }
        }
        self.cpus_mut().done = done;
    }

    /// Handles a failure of a node while the driver domain works for it.
    fn lost(&mut self, node: usize, job: Job) {
        let mut finished = std::mem::take(&mut self.finished);
        self.nodes[node].abort_job(self.now, job, &mut finished);
        finished.drain(..).for_each(|over| self.finish(node, &over));
        self.finished = finished;
    }

    /// Passes dispatched requests to the driver domain.
    pub(super) fn hand_over(&mut self) {
        let Some(cpus) = &mut self.cpus else { return };
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.staged().for_each(|job| cpus.job(self.now, number, job));
        }
    }
}
