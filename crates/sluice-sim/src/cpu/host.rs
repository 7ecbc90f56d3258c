//! A host's CPUs with work to do: items of so many nanoseconds, queued at virtual CPUs, which block when they have none.
//!
//! Whoever has a clock submits work, asks when something happens next, and lets time advance to that. A virtual CPU has a
//! line for each class of work and serves them in turn, as a driver domain's softirqs do. Work does not end early and does
//! not overlap: what a virtual CPU has done is exactly the time for which it has run.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;

use super::credit1::{Credit1, DomainId, Params, VcpuId};

/// Which line of a virtual CPU an item stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Packets, and a guest's own work.
    Net,
    /// Requests to disks.
    Block,
}

#[derive(Debug, Clone, Copy)]
struct Item<T> {
    left: u64,
    tag: T,
}

/// What a virtual CPU has to do.
#[derive(Debug)]
struct Backlog<T> {
    queues: [VecDeque<Item<T>>; 2],
    /// The item that is being worked on, and its class.
    current: Option<(Item<T>, usize)>,
    /// The class whose turn it is.
    turn: usize,
    /// It always has something to do, when there are no items.
    busy: bool,
    used: u64,
}

impl<T> Backlog<T> {
    /// The next item, of the class whose turn it is if that has one.
    // rule: credit1.driver-domain
    fn begin(&mut self) {
        let class = [self.turn, 1 - self.turn].into_iter().find(|class| !self.queues[*class].is_empty());
        if let (None, Some(class)) = (&self.current, class) {
            let item = self.queues[class].pop_front().expect("it is not empty");
            self.current = Some((item, class));
            self.turn = 1 - class;
        }
    }

    fn is_idle(&self) -> bool {
        !self.busy && self.current.is_none()
    }
}

/// An item that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done<T> {
    /// When.
    pub at: Instant,
    /// By whom.
    pub vcpu: VcpuId,
    /// As submitted.
    pub tag: T,
}

/// CPUs, their scheduler and the work.
#[derive(Debug)]
pub struct Host<T> {
    scheduler: Credit1,
    work: Vec<Backlog<T>>,
    now: Instant,
    tick: Instant,
    account: Instant,
}

impl<T: Copy> Host<T> {
    /// `cpus` CPUs with nothing to do. Ticks and accountings begin one of their distances after the origin.
    #[must_use]
    pub fn new(params: Params, cpus: usize) -> Self {
        let scheduler = Credit1::new(params, cpus);
        let (tick, account) = (Instant::ZERO + params.tick, Instant::ZERO + params.slice);
        Host { scheduler, work: Vec::new(), now: Instant::ZERO, tick, account }
    }

    /// A domain of this weight, and cap in percent of one CPU, 0 for none.
    pub fn add_domain(&mut self, weight: u32, cap: u32) -> DomainId {
        self.scheduler.add_domain(weight, cap)
    }

    /// A virtual CPU that may run on the CPUs of which the bit is set, with nothing to do.
    pub fn add_vcpu(&mut self, domain: DomainId, allowed: u64) -> VcpuId {
        let queues = [VecDeque::new(), VecDeque::new()];
        self.work.push(Backlog { queues, current: None, turn: 0, busy: false, used: 0 });
        self.scheduler.add_vcpu(domain, allowed)
    }

    /// From now on it always has something to do, or only its items.
    pub fn set_busy(&mut self, now: Instant, vcpu: VcpuId, busy: bool) {
        self.run_to(now);
        self.work[vcpu.0].busy = busy;
        if busy {
            self.scheduler.wake(now, vcpu);
        }
        self.settle();
    }

    /// Work of so many nanoseconds for a virtual CPU.
    pub fn submit(&mut self, now: Instant, vcpu: VcpuId, class: Class, nanos: u64, tag: T) {
        self.run_to(now);
        self.work[vcpu.0].queues[class as usize].push_back(Item { left: nanos, tag });
        self.work[vcpu.0].begin();
        self.scheduler.wake(now, vcpu);
    }

    /// When something happens here next, if no work comes. There is always a next tick.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let ends = (0..self.scheduler.cpus()).filter_map(|cpu| {
            let (item, _) = self.work[self.scheduler.running(cpu)?.0].current.as_ref()?;
            Some(self.now + Duration::from_nanos(item.left))
        });
        let slices = (0..self.scheduler.cpus()).filter_map(|cpu| self.scheduler.slice_end(cpu));
        ends.chain(slices).chain([self.tick, self.account]).min()
    }

    /// Time goes on to `now`; what is done by then is appended to `done`, in order.
    pub fn advance(&mut self, now: Instant, done: &mut Vec<Done<T>>) {
        while let Some(at) = self.next().filter(|at| *at <= now) {
            self.run_to(at.max(self.now));
            self.finish(done);
            self.timers();
        }
        self.run_to(now);
    }

    /// Nanoseconds for which a virtual CPU has run.
    #[must_use]
    pub fn used_nanos(&self, vcpu: VcpuId) -> u64 {
        self.work[vcpu.0].used
    }

    /// Nanoseconds for which all of them have run; never more than there are CPUs, times the time.
    #[must_use]
    pub fn busy_nanos(&self) -> u64 {
        self.work.iter().map(|work| work.used).sum()
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.scheduler.cpus()
    }

    /// Who runs where, and with what right.
    #[must_use]
    pub fn scheduler(&self) -> &Credit1 {
        &self.scheduler
    }

    /// Who runs gets its time. Nothing else happens before `now`.
    fn run_to(&mut self, now: Instant) {
        let nanos = now.nanos_since(self.now);
        self.now = self.now.max(now);
        for cpu in 0..self.scheduler.cpus() {
            let Some(vcpu) = self.scheduler.running(cpu) else { continue };
            let work = &mut self.work[vcpu.0];
            work.used += nanos;
            if let Some((item, _)) = &mut work.current {
                debug_assert!(item.left >= nanos, "whoever has a clock stops where something happens");
                item.left = item.left.saturating_sub(nanos);
            }
        }
    }

    /// Items that are done; who has none left blocks.
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

    /// Accountings, ticks and ends of slices that are due.
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

    /// Who has been given a CPU and has nothing to do any more gives it back.
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
