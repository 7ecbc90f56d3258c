//! CPUs of a host with work: items of a number of nanoseconds, queued at virtual CPUs, which block when they have none.
//!
//! The caller submits work, asks when the next event occurs, and advances time to it. A virtual CPU has a queue for
//! each class of work and serves them in turn, as a driver domain's softirqs do. Items do not end early and do not
//! overlap: the work of a virtual CPU is exactly its running time.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;

use super::credit1::{Credit1, DomainId, Params, VcpuId};

/// Queue of a virtual CPU that an item belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Packets, and a guest's own work.
    Net,
    /// Disk requests.
    Block,
}

#[derive(Debug, Clone, Copy)]
struct Item<T> {
    left: u64,
    tag: T,
}

/// Queued work of a virtual CPU.
#[derive(Debug)]
struct Backlog<T> {
    queues: [VecDeque<Item<T>>; 2],
    /// The current item and its class.
    current: Option<(Item<T>, usize)>,
    /// The class to serve next.
    turn: usize,
    /// Whether it has work even without items.
    busy: bool,
    used: u64,
}

impl<T> Backlog<T> {
    /// Starts the next item, of the next class if that has one.
    // rule: credit1.driver-domain
    fn begin(&mut self) {
        let class = [self.turn, 1 - self.turn].into_iter().find(|class| !self.queues[*class].is_empty());
        if let (None, Some(class)) = (&self.current, class) {
            let item = self.queues[class].pop_front().expect("the queue is not empty");
            self.current = Some((item, class));
            self.turn = 1 - class;
        }
    }

    fn is_idle(&self) -> bool {
        !self.busy && self.current.is_none()
    }
}

/// A completed item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done<T> {
    /// Time of completion.
    pub at: Instant,
    /// Virtual CPU that did the work.
    pub vcpu: VcpuId,
    /// Tag, as submitted.
    pub tag: T,
}

/// CPUs, their scheduler and their work.
#[derive(Debug)]
pub struct Host<T> {
    scheduler: Credit1,
    work: Vec<Backlog<T>>,
    now: Instant,
    tick: Instant,
    account: Instant,
}

impl<T: Copy> Host<T> {
    /// A host with `cpus` idle CPUs. The first tick and accounting are one period after the origin.
    #[must_use]
    pub fn new(params: Params, cpus: usize) -> Self {
        let scheduler = Credit1::new(params, cpus);
        let (tick, account) = (Instant::ZERO + params.tick, Instant::ZERO + params.slice);
        Host { scheduler, work: Vec::new(), now: Instant::ZERO, tick, account }
    }

    /// Adds a domain with this weight, and a cap in percent of one CPU, 0 for none.
    pub fn add_domain(&mut self, weight: u32, cap: u32) -> DomainId {
        self.scheduler.add_domain(weight, cap)
    }

    /// Adds a virtual CPU without work that may run on the CPUs whose bit is set.
    pub fn add_vcpu(&mut self, domain: DomainId, allowed: u64) -> VcpuId {
        let queues = [VecDeque::new(), VecDeque::new()];
        self.work.push(Backlog { queues, current: None, turn: 0, busy: false, used: 0 });
        self.scheduler.add_vcpu(domain, allowed)
    }

    /// Sets whether a virtual CPU always has work, or only its items.
    pub fn set_busy(&mut self, now: Instant, vcpu: VcpuId, busy: bool) {
        self.run_to(now);
        self.work[vcpu.0].busy = busy;
        if busy {
            self.scheduler.wake(now, vcpu);
        }
        self.settle();
    }

    /// Submits an item of `nanos` nanoseconds to a virtual CPU.
    pub fn submit(&mut self, now: Instant, vcpu: VcpuId, class: Class, nanos: u64, tag: T) {
        self.run_to(now);
        self.work[vcpu.0].queues[class as usize].push_back(Item { left: nanos, tag });
        self.work[vcpu.0].begin();
        self.scheduler.wake(now, vcpu);
    }

    /// Time of the next event, if no work is submitted. There is always a next tick.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let ends = (0..self.scheduler.cpus()).filter_map(|cpu| {
            let (item, _) = self.work[self.scheduler.running(cpu)?.0].current.as_ref()?;
            Some(self.now + Duration::from_nanos(item.left))
        });
        let slices = (0..self.scheduler.cpus()).filter_map(|cpu| self.scheduler.slice_end(cpu));
        ends.chain(slices).chain([self.tick, self.account]).min()
    }

    /// Advances time to `now`; appends the items that complete by then to `done`, in order.
    pub fn advance(&mut self, now: Instant, done: &mut Vec<Done<T>>) {
        while let Some(at) = self.next().filter(|at| *at <= now) {
            self.run_to(at.max(self.now));
            self.finish(done);
            self.timers();
        }
        self.run_to(now);
    }

    /// Running time of a virtual CPU in nanoseconds.
    #[must_use]
    pub fn used_nanos(&self, vcpu: VcpuId) -> u64 {
        self.work[vcpu.0].used
    }

    /// Running time of all virtual CPUs in nanoseconds; at most the number of CPUs times the elapsed time.
    #[must_use]
    pub fn busy_nanos(&self) -> u64 {
        self.work.iter().map(|work| work.used).sum()
    }

    /// Number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.scheduler.cpus()
    }

    #[must_use]
    pub fn scheduler(&self) -> &Credit1 {
        &self.scheduler
    }

    /// Gives the running virtual CPUs their time. There is no event before `now`.
    fn run_to(&mut self, now: Instant) {
        let nanos = now.nanos_since(self.now);
        self.now = self.now.max(now);
        for cpu in 0..self.scheduler.cpus() {
            let Some(vcpu) = self.scheduler.running(cpu) else { continue };
            let work = &mut self.work[vcpu.0];
            work.used += nanos;
            if let Some((item, _)) = &mut work.current {
                debug_assert!(item.left >= nanos, "the caller stops at each event");
                item.left = item.left.saturating_sub(nanos);
            }
        }
    }

    /// Completes items; a virtual CPU without work blocks.
    fn finish(&mut self, done: &mut Vec<Done<T>>) {
        for cpu in 0..self.scheduler.cpus() {
            while let Some(vcpu) = self.scheduler.running(cpu) {
                let work = &mut self.work[vcpu.0];
                if let Some((item, _)) = work.current
                    && item.left == 0
                {
                    done.push(Done { at: self.now, vcpu, tag: item.tag });
                    work.current = None;
                    work.begin();
                } else if work.is_idle() {
                    self.scheduler.block(self.now, vcpu);
                } else {
                    break;
                }
            }
        }
    }

    /// Handles accountings, ticks and ends of slices that are due.
    fn timers(&mut self) {
        let (now, params) = (self.now, *self.scheduler.params());
        if self.account <= now {
            self.scheduler.account(now);
            self.account = self.account + params.slice;
        }
        if self.tick <= now {
            (0..self.scheduler.cpus()).for_each(|cpu| self.scheduler.tick(now, cpu));
            self.tick = self.tick + params.tick;
        }
        for cpu in 0..self.scheduler.cpus() {
            if self.scheduler.slice_end(cpu).is_some_and(|end| end <= now) {
                self.scheduler.schedule(now, cpu);
            }
        }
        self.settle();
    }

    /// Blocks virtual CPUs that got a CPU but have no work left.
    fn settle(&mut self) {
        for cpu in 0..self.scheduler.cpus() {
            while let Some(vcpu) = self.scheduler.running(cpu)
                && self.work[vcpu.0].is_idle()
            {
                self.scheduler.block(self.now, vcpu);
            }
        }
    }
}

#[cfg(test)]
mod tests;
