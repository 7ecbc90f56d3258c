//! A second, slow and obvious implementation of Flubber and its baseline, compared with the fast ones decision by
//! decision.
//!
//! It follows the rules: every VM's credits are a number, a replenishment sets all of them, requests that have passed
//! are in one list, and a decision scans it.

use std::time::Duration;

use crate::common::plan::{for_plans, for_plans_as_found, plan};
use crate::common::twin::twin;
use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::policy::Class;
use sluice_sched::scheduler::{Change, ChangeError, Decision, Scheduler, State};
use sluice_sched::*;

const SEEK: Duration = Duration::from_millis(9);
/// 44 KiB at 100 MB/s.
const TRANSFER: Duration = Duration::from_nanos(450_560);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Paper,
    /// As printed: the queues of the second event are those of the VMs.
    Printed,
    Product,
    Baseline,
}

#[derive(Debug)]
struct Vm {
    owner: OwnerId,
    policy: Policy,
    credits: u64,
}

impl Vm {
    fn is_background(&self) -> bool {
        self.policy.class == Class::Background
    }

    fn latency(&self) -> Duration {
        self.policy.latency.map_or(Duration::from_millis(80), |latency| latency.p99)
    }

    fn required(&self) -> Option<u64> {
        let bytes = self
            .policy
            .reservation
            .bytes
            .map(|rate| rate.bytes_per_second() * 1000 / crate::common::plan::cost_model().reference_size().0);
        self.policy.reservation.iops.map(|iops| iops.milli()).max(bytes)
    }
}

/// A request that has passed the credits.
#[derive(Debug, Clone, Copy)]
struct Passed {
    request: Request,
    start: Instant,
    order: u64,
    background: bool,
}

/// A flush has no position on the disk, and a discard does not move the head.
fn moves_head(request: &Request) -> bool {
    matches!(request.kind, Kind::Read | Kind::Write)
}

#[derive(Debug)]
struct Oracle {
    kind: Which,
    beta: u64,
    vms: Vec<Vm>,
    waiting: Vec<Request>,
    /// VMs in `waiting` in the order in which they ran out of credits.
    line: Vec<OwnerId>,
    passed: Vec<Passed>,
    passed_ever: u64,
    flying: Vec<Request>,
    last_vm: Option<OwnerId>,
    last_end: Option<u64>,
    idle_since: Option<Instant>,
}

impl Oracle {
    fn new(kind: Which, beta: u64) -> Self {
        Oracle {
            kind,
            beta,
            vms: Vec::new(),
            waiting: Vec::new(),
            line: Vec::new(),
            passed: Vec::new(),
            passed_ever: 0,
            flying: Vec::new(),
            last_vm: None,
            last_end: None,
            idle_since: None,
        }
    }

    fn vm(&mut self, owner: OwnerId) -> &mut Vm {
        self.vms.iter_mut().find(|vm| vm.owner == owner).expect("a known VM")
    }

    fn pass(&mut self, now: Instant, request: Request, background: bool) {
        self.passed.push(Passed { request, start: now, order: self.passed_ever, background });
        self.passed_ever += 1;
    }

    /// 9.1: every VM gets its full credits, then the queues drain in turn.
    fn refill(&mut self, now: Instant) {
        let least = self.vms.iter().filter(|vm| !vm.is_background()).filter_map(Vm::required).min();
        for vm in &mut self.vms {
            let proportion = vm.required().zip(least).map_or(1, |(own, least)| (own + least / 2) / least);
            vm.credits = self.beta * proportion.max(1);
        }
        let mut turn = std::mem::take(&mut self.line);
        while !turn.is_empty() {
            let mut next = Vec::new();
            for owner in turn {
                let first = self.waiting.iter().position(|request| request.owner == owner).expect("it waits");
                let request = self.waiting.remove(first);
                self.pass(now, request, false);
                self.vm(owner).credits -= 1;
                if self.waiting.iter().any(|request| request.owner == owner) {
                    if self.vm(owner).credits > 0 { &mut next } else { &mut self.line }.push(owner);
                }
            }
            turn = next;
        }
    }

    /// E1: used up by all; not in product mode.
    fn e1(&self) -> bool {
        let mut vms = self.vms.iter().filter(|vm| !vm.is_background()).peekable();
        self.kind != Which::Product && vms.peek().is_some() && vms.all(|vm| vm.credits == 0)
    }

    /// E2': no VM has both credits and a waiting request, and the deadline queue is empty.
    fn e2(&mut self) -> bool {
        if self.kind == Which::Printed {
            return self.waiting.is_empty() && self.passed.is_empty();
        }
        let owners: Vec<OwnerId> = self.waiting.iter().map(|request| request.owner).collect();
        self.passed.iter().all(|passed| passed.background) && owners.iter().all(|owner| self.vm(*owner).credits == 0)
    }

    fn replenish(&mut self, now: Instant) {
        while self.e1() || !self.waiting.is_empty() && self.e2() {
            self.refill(now);
        }
    }

    fn deadline(&self, passed: &Passed) -> Instant {
        let largest = || self.vms.iter().map(Vm::latency).max().unwrap_or(Duration::from_millis(80));
        let own = || self.vms.iter().find(|vm| vm.owner == passed.request.owner).map(Vm::latency);
        let latency = if passed.background { Some(largest()) } else { own() };
        passed.start + latency.expect("a present owner").saturating_sub(SEEK)
    }

    /// 9.3, and 9.5 for the baseline: the request to dispatch, and whether it is the head of a VM.
    fn choose(&self, now: Instant) -> Result<(Passed, bool), Option<Instant>> {
        let by_deadline = |passed: &&Passed| (self.deadline(passed), passed.order);
        let vms = || self.passed.iter().filter(|passed| !passed.background);
        let background = self.passed.iter().filter(|passed| passed.background).min_by_key(|passed| passed.order);
        let Some(head) = vms().min_by_key(by_deadline) else {
            return background.map(|passed| (*passed, false)).ok_or(None);
        };
        if self.kind == Which::Baseline {
            let first = background.into_iter().chain([head]).min_by_key(by_deadline).expect("there is a head");
            return Ok((*first, !first.background));
        }
        let deadline = self.deadline(head);
        if deadline <= now || self.last_vm == Some(head.request.owner) {
            return Ok((*head, true));
        }
        let Some(end) = self.last_end else { return Ok((*head, true)) };
        let in_scope = |passed: &&Passed| self.kind == Which::Paper || !passed.background;
        let next = self.passed.iter().filter(in_scope).filter(|passed| moves_head(&passed.request));
        let next = next.filter(|passed| passed.request.offset == end);
        if let Some(next) = next.min_by_key(|passed| passed.order) {
            return Ok((*next, false));
        }
        let until = Instant::from_nanos(deadline.as_nanos() - TRANSFER.as_nanos() as u64);
        let until = match (self.kind, self.idle_since) {
            (Which::Product, since) if self.flying.is_empty() => {
                since.map_or(now, |since| until.min(since + Duration::from_millis(6)))
            }
            _ => until,
        };
        if until <= now { Ok((*head, true)) } else { Err(Some(until)) }
    }
}

impl Scheduler for Oracle {
    fn insert(&mut self, now: Instant, request: Request) {
        if self.vm(request.owner).is_background() || request.flags.contains(Flags::BACKGROUND) {
            return self.pass(now, request, true);
        }
        if self.e2() {
            self.refill(now);
        }
        if self.waiting.iter().any(|waiting| waiting.owner == request.owner) {
            self.waiting.push(request);
        } else if self.vm(request.owner).credits > 0 {
            self.vm(request.owner).credits -= 1;
            self.pass(now, request, false);
        } else {
            self.waiting.push(request);
            self.line.push(request.owner);
        }
        self.replenish(now);
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        unreachable!("the plans do not merge")
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.replenish(now);
        let (chosen, as_head) = match self.choose(now) {
            Ok(chosen) => chosen,
            Err(Some(until)) => return Decision::WaitUntil(until),
            Err(None) => return Decision::Idle,
        };
        self.passed.retain(|passed| passed.order != chosen.order);
        let request = chosen.request;
        self.last_vm = Some(request.owner).filter(|_| as_head);
        if moves_head(&request) {
            self.last_end = Some(request.offset + u64::from(request.length));
        }
        self.flying.push(request);
        Decision::Dispatch(request)
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.flying.retain(|request| request.id != completion.request.id);
        if self.flying.is_empty() {
            self.idle_since = Some(now);
        }
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => self.vms.push(Vm { owner, policy, credits: 0 }),
            Change::SetOwner { owner, policy } => {
                self.vm(owner).policy = policy;
                if self.vm(owner).is_background() {
                    let (mine, others) = self.waiting.iter().partition(|request| request.owner == owner);
                    self.waiting = others;
                    self.line.retain(|waiting| *waiting != owner);
                    let mine: Vec<Request> = mine;
                    mine.into_iter().for_each(|request| self.pass(now, request, true));
                }
            }
            Change::RemoveOwner { owner } => {
                self.vms.retain(|vm| vm.owner != owner);
                self.last_vm = self.last_vm.filter(|last| *last != owner);
            }
            _ => return Ok(()),
        }
        self.refill(now);
        self.replenish(now);
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        removed.extend(self.passed.iter().map(|passed| passed.request).filter(|request| scope.contains(request)));
        removed.extend(self.waiting.iter().filter(|request| scope.contains(request)));
        self.passed.retain(|passed| !scope.contains(&passed.request));
        self.waiting.retain(|request| !scope.contains(request));
        let waiting = &self.waiting;
        self.line.retain(|owner| waiting.iter().any(|request| request.owner == *owner));
    }

    fn inspect(&self, _now: Instant) -> State {
        State::default()
    }
}

fn subject(kind: Which, beta: u64) -> Subject {
    let subject = match kind {
        Which::Paper | Which::Printed => Subject::of("flubber").text("mode", "paper"),
        Which::Product => Subject::of("flubber").text("mode", "product").text("max_wait", "6ms"),
        Which::Baseline => Subject::of("edf-credit"),
    };
    subject.with("beta", params::Value::Integer(beta as i64))
}

// rule: flubber.proportion, flubber.full-credits, flubber.arrive, flubber.refill, flubber.drain-round-robin, flubber.e1
// rule: flubber.e2, flubber.e3, flubber.queues, flubber.f6, flubber.f8, flubber.f10, edf-credit.credits
#[test]
fn the_fast_schedulers_match_the_oracle() {
    for kind in [Which::Paper, Which::Product, Which::Baseline] {
        for beta in [1, 4, 32] {
            for_plans(48, plan(true), |plan| {
                let plan = plan.flavoured();
                let pair = twin(subject(kind, beta).build(&plan.info()), Box::new(Oracle::new(kind, beta)));
                let world = plan.run(pair, Instant::ZERO, |_| ());
                assert!(!world.log.is_empty());
            });
        }
    }
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn another_interval_factor_is_noticed() {
    for_plans_as_found(32, plan(true), |plan| {
        let plan = plan.flavoured();
        let pair = twin(subject(Which::Paper, 1).build(&plan.info()), Box::new(Oracle::new(Which::Paper, 2)));
        drop(plan.run(pair, Instant::ZERO, |_| ()));
    });
}

// rule: flubber.e2-literal
#[test]
#[should_panic(expected = "a scheduler is idle only if nothing is queued")]
fn as_printed_an_idle_vm_with_credits_blocks_the_others() {
    let oracle = Box::new(Oracle::new(Which::Printed, 4));
    let mut world = World::new(oracle, GateSettings { depth: 1, ..GateSettings::default() }, Stub::serial(MILLI));
    let (busy, _idle) = (world.vm(Policy::default()), world.vm(Policy::default()));
    world.stream(busy, Pattern::Closed(16));
    world.run_until(secs(1));
}
