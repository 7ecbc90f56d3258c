//! The contract of every scheduler with its gate, for any policy: checked on random runs of the whole list in every
//! mode.
//!
//! A [`Watched`] wrapper between gate and scheduler checks each call: no request is lost, duplicated or changed, a
//! volume is served in order, and a wait is explained, lies in the future, and ends. The gate's own assertions also
//! apply. Schedulers that break one rule each show that these checks can fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::analysis::assert_close;
use crate::common::plan::{for_plans, for_plans_as_found, plan};
use crate::common::watched::{Waits, keep_contract, watch, watch_in_any_order, watched};
use crate::common::*;
use sluice_sched::gate::{GateSettings, RemoteService};
use sluice_sched::policy::{Class, Field};
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceInfo, Scheduler, State};
use sluice_sched::*;

// rule: sfqd.work-conserving
/// rule: gate.four-answers, gate.wait-completion, gate.spurious-timer, gate.depth
#[test]
fn every_scheduler_keeps_the_contract() {
    for subject in subjects() {
        for_plans(100, plan(true), |plan| keep_contract(plan, || watched(&subject, plan)));
    }
}

/// The same with background work, priorities and latency targets, which also change.
// rule: sfqd.work-conserving
/// rule: gate.four-answers, gate.wait-completion, gate.spurious-timer, gate.depth
#[test]
fn every_scheduler_keeps_the_contract_with_all_classes() {
    for subject in subjects() {
        for_plans(60, plan(true), |plan| {
            let plan = plan.flavoured();
            keep_contract(&plan, || watched(&subject, &plan));
        });
    }
}

/// The same with limits of reads and of writes and bursts for a time, which also change.
// rule: mclock.directions, mclock.timed-burst
#[test]
fn every_scheduler_keeps_the_contract_with_limits_by_direction() {
    for subject in subjects() {
        for_plans(100, plan(true), |plan| {
            let plan = plan.directed();
            keep_contract(&plan, || watched(&subject, &plan));
        });
    }
}

/// Without idling, S5 has no exception but limits (MM13): a free device gets a queued request.
/// rule: anticipatory.antic-expire, cfq.idle-arm, flubber.f9
#[test]
fn mm13_without_idling_a_free_device_gets_a_queued_request() {
    let still = |subject: Subject| subject.text("tick", "0s").text("slice_idle", "0s").text("group_idle", "0s");
    let cfq = |mode: &str| still(Subject::of("cfq").text("mode", mode));
    let subjects = [
        Subject::of("anticipatory").text("tick", "0s").text("antic_expire", "0s"),
        cfq("group"),
        cfq("2.6.32"),
        cfq("2.6.18"),
        still(Subject::of("mcfq")),
        Subject::of("flubber").text("mode", "product").text("max_wait", "0s"),
    ];
    for subject in subjects {
        for_plans(60, plan(true), |plan| {
            keep_contract(plan, || watch_in_any_order(subject.build(&plan.info()), Waits::Never, plan));
        });
    }
}

#[test]
fn every_scheduler_is_in_the_list_once_and_builds() {
    let labels: Vec<String> = subjects().iter().map(Subject::label).collect();
    for expected in ["mclock", "mclock (frames)", "mclock-paper", "noop"] {
        assert!(labels.iter().any(|label| label == expected), "{expected} in {labels:?}");
    }
    let mut names: Vec<&str> = sluice_papers::ALL.iter().map(|descriptor| descriptor.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), sluice_papers::ALL.len());
    for subject in subjects() {
        let unknown = subject.clone().text("no_such_parameter", "1");
        assert!(subject.descriptor.build(&DeviceInfo::default(), &unknown.params).is_err(), "{}", subject.label());
    }
}

// The checks can fail: schedulers that break one rule each.

/// First in, first out, with one flaw.
#[derive(Debug)]
struct Broken {
    queue: Vec<Request>,
    flaw: Flaw,
    /// Number of schedulers built before it, which no decision may depend on.
    built: u64,
    served: u64,
    in_flight: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    LosesTheTenth,
    ServesTwice,
    LastFirst,
    ChangesTheRequest,
    IdleWithRequests,
    WaitsInThePast,
    WaitsForNoReason,
    WakesForNothing,
    WaitsForACompletion,
    CancelsTooLittle,
    DiffersByInstance,
    StarvesTheFirst,
}

impl Scheduler for Broken {
    fn insert(&mut self, _now: Instant, request: Request) {
        let keep = self.flaw != Flaw::LosesTheTenth || request.id.0 % 10 != 9;
        self.queue.extend(keep.then_some(request));
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        false
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.queue.is_empty() {
            return Decision::Idle;
        }
        self.served += 1;
        let tenth = self.served.is_multiple_of(10);
        match self.flaw {
            Flaw::IdleWithRequests if tenth => return Decision::Idle,
            Flaw::WaitsInThePast if tenth => return Decision::WaitUntil(now),
            Flaw::WaitsForNoReason if tenth => return Decision::WaitUntil(now + std::time::Duration::from_secs(1)),
            Flaw::WakesForNothing => return Decision::WaitUntil(now + std::time::Duration::from_millis(1)),
            Flaw::WaitsForACompletion => return Decision::WaitCompletion,
            _ => {}
        }
        let last = self.queue.len() - 1;
        let not_the_first = self.queue.iter().position(|request| request.owner != OwnerId(0)).unwrap_or(0);
        let place = match self.flaw {
            Flaw::LastFirst => last,
            Flaw::StarvesTheFirst => not_the_first,
            Flaw::DiffersByInstance if self.built % 2 == 1 => not_the_first,
            _ => 0,
        };
        let twice = self.flaw == Flaw::ServesTwice && tenth;
        let mut request = if twice { self.queue[place] } else { self.queue.remove(place) };
        if self.flaw == Flaw::ChangesTheRequest && tenth {
            request.offset += 1;
        }
        self.in_flight += 1;
        Decision::Dispatch(request)
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
    }

    fn configure(&mut self, _now: Instant, _change: Change) -> Result<(), ChangeError> {
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        if self.flaw != Flaw::CancelsTooLittle {
            removed.extend(self.queue.iter().filter(|request| scope.contains(request)));
            self.queue.retain(|request| !scope.contains(request));
        }
    }

    fn inspect(&self, _now: Instant) -> State {
        let mut state = State { queued: self.queue.len() as u64, in_flight: self.in_flight, ..State::default() };
        for request in &self.queue {
            state.owners.entry(request.owner.0).or_default().queued += 1;
        }
        state
    }
}

fn broken(flaw: Flaw) -> Box<dyn Scheduler> {
    static BUILT: AtomicU64 = AtomicU64::new(0);
    let built = BUILT.fetch_add(1, Ordering::Relaxed);
    Box::new(Broken { queue: Vec::new(), flaw, built, served: 0, in_flight: 0 })
}

/// Verdict of the contract on a flaw: the message of the first plan that shows it.
fn verdict(flaw: Flaw, waits: Waits) -> Option<String> {
    let all = || for_plans_as_found(24, plan(true), |plan| keep_contract(plan, || watch(broken(flaw), waits, plan)));
    let panic = catch_unwind(AssertUnwindSafe(all)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

// rule: gate.four-answers, gate.wait-completion, gate.depth
#[test]
fn a_broken_scheduler_is_noticed() {
    assert_eq!(verdict(Flaw::None, Waits::Never), None);
    let millis = Duration::from_millis;
    let paper = Waits::Tags { inside: false };
    let until_due = Waits::Deadlines { target: millis(80), seek: millis(9), idle: None };
    let table = [
        (Flaw::LosesTheTenth, Waits::Never, "S3: a volume is served in order"),
        (Flaw::ServesTwice, Waits::Never, "S1"),
        (Flaw::LastFirst, Waits::Never, "S3"),
        (Flaw::ChangesTheRequest, Waits::Never, "S1: a request is dispatched unchanged"),
        (Flaw::IdleWithRequests, Waits::Never, "S5: idle with requests"),
        (Flaw::WaitsInThePast, paper, "S5: a wait lies in the future"),
        (Flaw::WaitsForNoReason, Waits::Never, "enforces no limit"),
        (Flaw::WaitsForNoReason, paper, "S5: "),
        (Flaw::WaitsForNoReason, until_due, "S5: waits 1s"),
        (Flaw::WaitsForNoReason, Waits::idling(millis(8)), "S5: idles 1s"),
        (Flaw::WakesForNothing, Waits::Other, "S6: woken"),
        (Flaw::WaitsForACompletion, Waits::Never, "S6: waits for a completion that cannot come"),
        (Flaw::CancelsTooLittle, Waits::Never, "S1: exactly the queued requests"),
        (Flaw::DiffersByInstance, Waits::Never, "S4: the run repeats"),
    ];
    for (flaw, waits, expected) in table {
        let verdict = verdict(flaw, waits).unwrap_or_else(|| panic!("{flaw:?} was not noticed"));
        assert!(verdict.contains(expected), "{flaw:?}: {verdict}");
    }
}

// Starvation.

/// Requests served of each of eight VMs, of every weight, that keep 16 requests outstanding.
fn served(scheduler: Box<dyn Scheduler>) -> Vec<f64> {
    let settings = GateSettings { depth: 4, cost: CostModel::per_request(), ..GateSettings::default() };
    let mut world = World::new(scheduler, settings, Stub::serial(MILLI));
    let weights = [1, 2, 4, 10, 1000, 1, 10, 1000];
    let vms = weights.map(|weight| world.busy(Policy::weighted(weight), Pattern::Closed(16)));
    world.run_until(secs(20));
    world.rates(&vms, Instant::ZERO, secs(20))
}

#[test]
fn no_vm_with_a_weight_starves() {
    let weights = [1.0, 2.0, 4.0, 10.0, 1000.0, 1.0, 10.0, 1000.0];
    let sum: f64 = weights.iter().sum();
    for subject in subjects() {
        let rates = served(subject.build(&DeviceInfo { depth: 4, ..DeviceInfo::default() }));
        // The smallest share of the lightest VM, less two requests.
        let least = rates.iter().copied().fold(f64::MAX, f64::min);
        assert!(least >= 1000.0 / sum - 0.1, "{}: {rates:?}", subject.label());
        if subject.descriptor.name == "mclock" {
            assert_close("shares", &rates, &weights.map(|weight| 1000.0 * weight / sum), 0.01);
        }
    }
    // A control: except for the first four requests, which found the device idle.
    assert!(served(broken(Flaw::StarvesTheFirst))[0] <= 0.2);
}

/// Repeats the call whenever nothing is dispatched: the result must be the same.
struct Again(Box<dyn Scheduler>);

impl Scheduler for Again {
    fn insert(&mut self, now: Instant, request: Request) {
        self.0.insert(now, request);
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        self.0.add_remote_service(now, owner, remote);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.0.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        let first = self.0.dispatch(now);
        if !matches!(first, Decision::Dispatch(_)) {
            assert_eq!(self.0.dispatch(now), first, "asked again at {now:?}");
        }
        first
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.0.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.0.configure(now, change)
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.0.cancel(now, scope, removed);
    }

    fn inspect(&self, now: Instant) -> State {
        self.0.inspect(now)
    }
}

// rule: gate.spurious-timer
#[test]
fn a_repeated_dispatch_call_changes_nothing() {
    for subject in subjects() {
        for_plans(16, plan(true), |plan| {
            let scheduler = || subject.build(&plan.info());
            let once = plan.run(scheduler(), Instant::ZERO, |_| ());
            let again = plan.run(Box::new(Again(scheduler())), Instant::ZERO, |_| ());
            assert!(once.log == again.log, "{}", subject.label());
        });
    }
}

// Background work yields.

#[test]
fn background_gets_only_unused_capacity() {
    let mut enforcing = 0;
    for mut subject in subjects() {
        for (field, parameter, words) in subject.descriptor.depends {
            if *field == Field::Class {
                subject = subject.text(parameter, words[0]);
            }
        }
        if !subject.descriptor.enforces_with(Field::Class, &subject.params) {
            continue;
        }
        enforcing += 1;
        let mut world = World::simple(&subject, 4, 1000);
        let background = Policy { class: Class::Background, ..Policy::default() };
        let background = world.busy(background, Pattern::Closed(32));
        let on_off = Pattern::OnOff { outstanding: 32, on: 5 * SECOND, off: 5 * SECOND };
        let foreground = world.busy(Policy::default(), on_off);
        world.run_until(secs(10));
        let others_turn = world.count(background, millis(100), secs(5));
        assert!(others_turn <= 25, "{}: {others_turn} of 4900 next to the other", subject.label());
        let own_turn = world.count(background, millis(5100), secs(10));
        assert!(own_turn >= 4800, "{}: {own_turn} of 4900 while the other is idle", subject.label());
        assert!(world.count(foreground, Instant::ZERO, secs(10)) >= 4900, "{}", subject.label());
    }
    assert!(enforcing >= 4, "{enforcing}");
}
