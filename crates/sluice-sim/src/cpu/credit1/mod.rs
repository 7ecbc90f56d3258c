//! The credit scheduler of Xen 3.2 to 4.1: which virtual CPU runs on which physical one.
//!
//! Idea: domains get credits by weight every 30 ms, and a virtual CPU pays with them for its running time. Virtual CPUs
//! with credits (UNDER) run before those without (OVER). A virtual CPU that wakes up with credits runs before both for
//! a moment (BOOST).
//!
//! Rules: each CPU has a queue by priority, in arrival order within one. A virtual CPU runs for 30 ms, unless it blocks
//! or one of higher priority wakes up. If the best one of a CPU is OVER, the CPU takes a better one from another CPU's
//! queue. Every 10 ms the running virtual CPU loses BOOST and becomes active. Every 30 ms 300 credits per CPU are
//! divided among the active domains by weight, bounded by caps. A virtual CPU below zero is OVER; above 300 it stops
//! being active.
//!
//! Parameters: see [`Params`]; [`Params::XEN_3_3`], [`Params::XEN_4_0`] and [`Params::XEN_4_1`] are those of the
//! papers.
//!
//! Example: two domains of weights 512 and 256 that always run, on one CPU. A period's 300 credits are 200 and 100. The
//! first runs for 20 of 30 ms, the second for 10, in slices of 30 ms: after each slice it is OVER for two periods.
//!
//! Deviations: CPUs have no topology, so a running virtual CPU has no reason to move to a CPU that is more idle. A
//! context switch takes no time.
//!
//! Source: \[netback\] IV.A, \[two-tier\] II.B; the behaviour of the versions as documented for them.

// Consequences that tests assert:
// rule: credit1.work-conserving, credit1.cap-bound, credit1.conserved, credit1.boost-unfair, credit1.tick-theft
// rule: credit1.over-starves

use std::time::Duration;

use sluice_sched::Instant;

mod accounting;

/// Credits per CPU and accounting period.
const PERIOD_CREDITS: i64 = 300;
/// Credits per tick, if ticks are counted.
const TICK_CREDITS: i64 = 100;
/// Nanoseconds of CPU time per credit: 10 credits per ms.
const CREDIT_NANOS: i64 = 100_000;

/// Charging of running time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debit {
    /// 100 credits to the virtual CPU that runs at a tick.
    Tick,
    /// 10 credits per ms of running.
    Exact,
}

/// The unit to which a weight applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightPer {
    /// The domain, with any number of virtual CPUs.
    Domain,
    /// Each of its active virtual CPUs.
    Vcpu,
}

/// Effect on the credits of a virtual CPU that stops being active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFull {
    /// They are lost.
    Zero,
    /// Half of them is lost.
    Halve,
}

/// Differences between versions, and times.
// rule: credit1.switches, credit1.parameters
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Charging of running time.
    pub debit: Debit,
    /// The unit to which a weight applies.
    pub weight_per: WeightPer,
    /// Effect on the credits of a virtual CPU that stops being active.
    pub on_full: OnFull,
    /// A virtual CPU is not preempted before it has run for this time; zero disables the limit.
    pub ratelimit: Duration,
    /// Time between two ticks of a CPU.
    pub tick: Duration,
    /// Time that a virtual CPU runs without other events, and time between two accountings.
    pub slice: Duration,
}

impl Params {
    /// 3.3.1, of \[flubber\].
    // rule: credit1.version-3-3
    pub const XEN_3_3: Params = Params {
        debit: Debit::Tick,
        weight_per: WeightPer::Domain,
        on_full: OnFull::Zero,
        ratelimit: Duration::ZERO,
        tick: Duration::from_millis(10),
        slice: Duration::from_millis(30),
    };
    /// 4.0.0, of \[netback\].
    // rule: credit1.version-4-0
    pub const XEN_4_0: Params = Params { debit: Debit::Exact, ..Params::XEN_3_3 };
    /// 4.1.2, of \[two-tier\].
    // rule: credit1.version-4-1
    pub const XEN_4_1: Params = Params { weight_per: WeightPer::Vcpu, on_full: OnFull::Halve, ..Params::XEN_4_0 };
}

/// Weight of a domain without a stated weight.
pub const WEIGHT_DEFAULT: u32 = 256;

/// A domain: a VM, or the driver domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainId(pub usize);

/// A virtual CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VcpuId(pub usize);

/// Priority of a virtual CPU; a CPU without any is idle.
// rule: credit1.priorities
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Without credits.
    Over,
    /// With credits.
    Under,
    /// With credits, and just woken.
    Boost,
}

#[derive(Debug)]
struct Domain {
    weight: i64,
    /// In percent of one CPU; 0 is no cap.
    cap: i64,
    active: Vec<usize>,
}

/// State of a virtual CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Blocked,
    Queued,
    Running,
}

// rule: credit1.state
#[derive(Debug)]
struct Vcpu {
    domain: usize,
    /// The CPUs that it may run on, one bit each.
    allowed: u64,
    /// The CPU on which it runs, or ran last.
    cpu: usize,
    credit: i64,
    priority: Priority,
    active: bool,
    /// Whether its domain's cap has paused it.
    parked: bool,
    doing: Doing,
    /// Whether it would run if it were not parked.
    wants: bool,
    yields: bool,
    /// Start of the running time that is not charged yet.
    since: Instant,
    /// When it got the CPU.
    started: Instant,
    /// Nanoseconds charged too little, or too much if negative.
    unpaid: i64,
}

// rule: credit1.run-queue
#[derive(Debug, Default)]
struct Cpu {
    queue: Vec<usize>,
    current: Option<usize>,
    slice_end: Option<Instant>,
    /// Number of accountings after which its queue has been sorted.
    sorted: u64,
}

/// The scheduler: a state machine without a clock.
#[derive(Debug)]
pub struct Credit1 {
    params: Params,
    cpus: Vec<Cpu>,
    domains: Vec<Domain>,
    vcpus: Vec<Vcpu>,
    /// Domains with active virtual CPUs, in order of accounting.
    active: Vec<usize>,
    /// Sum of credits after the last accounting.
    balance: i64,
    accountings: u64,
}

impl Credit1 {
    /// A host with `cpus` physical CPUs, 1 to 64, all idle.
    #[must_use]
    pub fn new(params: Params, cpus: usize) -> Self {
        let mut all = Vec::new();
        all.resize_with(cpus.clamp(1, 64), Cpu::default);
        let (domains, vcpus, active) = (Vec::new(), Vec::new(), Vec::new());
        Credit1 { params, cpus: all, domains, vcpus, active, balance: 0, accountings: 0 }
    }

    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Adds a domain with a weight from 1 to 65,535 and a cap in percent of one CPU, 0 for none.
    // rule: credit1.parameters
    pub fn add_domain(&mut self, weight: u32, cap: u32) -> DomainId {
        let weight = i64::from(weight.clamp(1, 65_535));
        self.domains.push(Domain { weight, cap: i64::from(cap), active: Vec::new() });
        DomainId(self.domains.len() - 1)
    }

    /// Adds a blocked virtual CPU of a domain. It may run on the CPUs whose bit is set in `allowed`.
    ///
    /// # Panics
    /// If it may run on no existing CPU.
    // rule: credit1.state
    pub fn add_vcpu(&mut self, domain: DomainId, allowed: u64) -> VcpuId {
        let first = (0..self.cpus.len()).find(|cpu| allowed >> cpu & 1 == 1);
        self.vcpus.push(Vcpu {
            domain: domain.0,
            allowed,
            cpu: first.expect("a virtual CPU may run on a CPU"),
            credit: 0,
            priority: Priority::Under,
            active: false,
            parked: false,
            doing: Doing::Blocked,
            wants: false,
            yields: false,
            since: Instant::ZERO,
            started: Instant::ZERO,
            unpaid: 0,
        });
        VcpuId(self.vcpus.len() - 1)
    }

    /// The virtual CPU that runs on a CPU.
    #[must_use]
    pub fn running(&self, cpu: usize) -> Option<VcpuId> {
        self.cpus[cpu].current.map(VcpuId)
    }

    /// End of the current slice of a CPU.
    #[must_use]
    pub fn slice_end(&self, cpu: usize) -> Option<Instant> {
        self.cpus[cpu].slice_end
    }

    /// Credits of a virtual CPU.
    #[must_use]
    pub fn credit(&self, vcpu: VcpuId) -> i64 {
        self.vcpus[vcpu.0].credit
    }

    /// Priority of a virtual CPU.
    #[must_use]
    pub fn priority(&self, vcpu: VcpuId) -> Priority {
        self.vcpus[vcpu.0].priority
    }

    /// Whether it gets credits.
    #[must_use]
    pub fn is_active(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu.0].active
    }

    /// Whether its domain's cap has paused it.
    #[must_use]
    pub fn is_parked(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu.0].parked
    }

    /// Wakes a blocked virtual CPU, which has work.
    // rule: credit1.wake-boost, credit1.wake-over, credit1.boost-unfair
    pub fn wake(&mut self, now: Instant, vcpu: VcpuId) {
        let woken = &mut self.vcpus[vcpu.0];
        if std::mem::replace(&mut woken.wants, true) || woken.parked {
            return;
        }
        if woken.priority == Priority::Under {
            woken.priority = Priority::Boost;
        }
        self.runnable(now, vcpu.0);
    }

    /// Inserts a virtual CPU into its queue. It preempts one of lower priority, or an idle CPU takes it.
    fn runnable(&mut self, now: Instant, vcpu: usize) {
        let (cpu, priority, allowed) = (self.vcpus[vcpu].cpu, self.vcpus[vcpu].priority, self.vcpus[vcpu].allowed);
        self.insert(vcpu);
        let current = self.cpus[cpu].current.map(|current| self.vcpus[current].priority);
        if current.is_none_or(|current| priority > current) {
            self.schedule(now, cpu);
        }
        // The virtual CPU that waits here now, this one or the preempted one, may run on an idle CPU.
        let waits = !self.cpus[cpu].queue.is_empty();
        let idle = (0..self.cpus.len()).find(|other| allowed >> other & 1 == 1 && self.cpus[*other].current.is_none());
        if let (true, Some(idle)) = (waits, idle) {
            self.schedule(now, idle);
        }
    }

    /// Blocks the running virtual CPU, which has no work.
    ///
    /// # Panics
    /// If it is not running.
    pub fn block(&mut self, now: Instant, vcpu: VcpuId) {
        let blocked = &mut self.vcpus[vcpu.0];
        assert!(blocked.doing == Doing::Running, "a vcpu that blocks is running");
        blocked.wants = false;
        let cpu = blocked.cpu;
        self.schedule(now, cpu);
    }

    /// Lets another virtual CPU run before the running one.
    ///
    /// # Panics
    /// If it is not running.
    // rule: credit1.insert
    pub fn yield_now(&mut self, now: Instant, vcpu: VcpuId) {
        let yielding = &mut self.vcpus[vcpu.0];
        assert!(yielding.doing == Doing::Running, "a vcpu that yields is running");
        yielding.yields = true;
        let cpu = yielding.cpu;
        self.schedule(now, cpu);
    }

    /// Inserts it after all of equal or higher priority; one that yields also after the next one.
    // rule: credit1.insert
    fn insert(&mut self, vcpu: usize) {
        let (cpu, priority) = (self.vcpus[vcpu].cpu, self.vcpus[vcpu].priority);
        let queue = &mut self.cpus[cpu].queue;
        let vcpus = &self.vcpus;
        let mut place = queue.iter().position(|other| vcpus[*other].priority < priority).unwrap_or(queue.len());
        if vcpus[vcpu].yields && place < queue.len() {
            place += 1;
        }
        queue.insert(place, vcpu);
        self.vcpus[vcpu].yields = false;
        self.vcpus[vcpu].doing = Doing::Queued;
    }

    /// Chooses the next virtual CPU of a CPU: at the end of a slice, and after a block, a yield or a preemption.
    // rule: credit1.schedule
    pub fn schedule(&mut self, now: Instant, cpu: usize) {
        if let Some(current) = self.cpus[cpu].current {
            let vcpu = &self.vcpus[current];
            let stays = vcpu.wants && !vcpu.parked;
            let least = vcpu.started + self.params.ratelimit;
            // rule: credit1.switches
            if stays && !vcpu.yields && now < least {
                self.cpus[cpu].slice_end = Some(least);
                return;
            }
            self.pay(now, current);
            self.cpus[cpu].current = None;
            self.vcpus[current].doing = Doing::Blocked;
            if stays {
                self.insert(current);
            }
        }
        let next = self.take_next(cpu);
        self.cpus[cpu].current = next;
        self.cpus[cpu].slice_end = next.map(|_| now + self.params.slice);
        if let Some(next) = next {
            let vcpu = &mut self.vcpus[next];
            (vcpu.doing, vcpu.cpu, vcpu.since, vcpu.started) = (Doing::Running, cpu, now, now);
        }
    }

    /// The head of the queue, or a better one of another CPU if the head is OVER or missing.
    // rule: credit1.steal, credit1.over-starves
    fn take_next(&mut self, cpu: usize) -> Option<usize> {
        let head = self.cpus[cpu].queue.first().copied();
        let own = head.map(|head| self.vcpus[head].priority);
        if own.is_none_or(|own| own == Priority::Over) {
            let count = self.cpus.len();
            for peer in (1..count).map(|ahead| (cpu + ahead) % count) {
                let (queue, vcpus) = (&self.cpus[peer].queue, &self.vcpus);
                let better = |other: &&usize| {
                    let other = &vcpus[**other];
                    own.is_none_or(|own| other.priority > own) && other.allowed >> cpu & 1 == 1
                };
                if let Some(stolen) = queue.iter().find(better).copied() {
                    self.cpus[peer].queue.retain(|queued| *queued != stolen);
                    return Some(stolen);
                }
            }
        }
        head.map(|_| self.cpus[cpu].queue.remove(0))
    }

    /// Charges the running time up to now.
    // rule: credit1.debit-exact
    fn pay(&mut self, now: Instant, vcpu: usize) {
        let vcpu = &mut self.vcpus[vcpu];
        let ran = now.nanos_since(vcpu.since) as i64;
        vcpu.since = now;
        if self.params.debit == Debit::Exact {
            vcpu.unpaid += ran;
            let credits = (vcpu.unpaid + CREDIT_NANOS / 2).div_euclid(CREDIT_NANOS);
            vcpu.unpaid -= credits * CREDIT_NANOS;
            vcpu.credit -= credits;
        }
    }

    /// A tick of one CPU.
    // rule: credit1.tick-boost, credit1.tick-sort, credit1.tick-theft
    pub fn tick(&mut self, now: Instant, cpu: usize) {
        if let Some(current) = self.cpus[cpu].current {
            self.pay(now, current);
            let vcpu = &mut self.vcpus[current];
            if vcpu.priority == Priority::Boost {
                vcpu.priority = Priority::Under;
            }
            if self.params.debit == Debit::Tick {
                vcpu.credit -= TICK_CREDITS;
            }
            if !std::mem::replace(&mut vcpu.active, true) {
                let domain = vcpu.domain;
                self.domains[domain].active.push(current);
                if self.domains[domain].active.len() == 1 {
                    self.active.push(domain);
                }
            }
        }
        if self.cpus[cpu].sorted != self.accountings {
            self.cpus[cpu].sorted = self.accountings;
            let vcpus = &self.vcpus;
            self.cpus[cpu].queue.sort_by_key(|vcpu| vcpus[*vcpu].priority == Priority::Over);
        }
    }
}

#[cfg(test)]
mod tests;
