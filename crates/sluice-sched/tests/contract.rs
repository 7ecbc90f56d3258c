//! What every scheduler owes its gate, whatever its policy: checked on random runs, over the whole list and every mode.
//!
//! A [`Watched`] scheduler stands between gate and scheduler and checks each call: nothing is lost, doubled or changed,
//! a VM's volume is served in order, a wait is explained, lies ahead, and ends. The gate's own assertions hold as
//! well. That these checks can fail is shown with schedulers that break one rule each.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use common::analysis::assert_close;
use common::plan::{Plan, for_plans, for_plans_as_found, plan};
use common::*;
use sluice_sched::gate::{GateSettings, Outcome};
use sluice_sched::policy::{Class, Field};
use sluice_sched::scheduler::{Change, ChangeError, Decision, Facts, OwnerState, Scheduler, State};
use sluice_sched::*;

#[derive(Debug, Clone)]
struct Member {
    owner: OwnerId,
    policy: Policy,
    volumes: Vec<(VolumeId, Policy)>,
}

/// S5: when a scheduler may let requests wait for an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Never,
    /// By its limits and reservations, those of volumes too; for as long as they need for what went at once.
    Product,
    /// By its limit and reservation tags.
    Paper,
    /// For a contiguous request, until the head is due: 80 ms less a seek of 9 ms after it passed, at most.
    UntilDue,
    /// For somebody's next request, so many nanoseconds at most.
    Idling(u64),
    /// For the end of a window, or of the last of so many windows that pay for one request, if somebody has a byte limit.
    Windows,
    /// By rules of its own, which have tests of their own.
    Somehow,
}

fn waits(subject: &Subject) -> Waits {
    match (subject.descriptor.name, subject.mode()) {
        ("noop" | "sfqd" | "deadline" | "edf-credit", _) => Waits::Never,
        // On a device that is not rotational, as that of the plans.
        ("flubber", Some("product")) => Waits::Never,
        ("flubber", Some("paper")) => Waits::UntilDue,
        ("mclock", Some("product")) => Waits::Product,
        ("mclock", Some("paper")) => Waits::Paper,
        ("anticipatory", _) => Waits::Idling(6 * MILLI),
        ("cfq" | "mcfq", _) => Waits::Idling(8 * MILLI),
        ("netback" | "wrr", _) => Waits::Windows,
        _ => Waits::Somehow,
    }
}

/// S3: whether the requests of a volume leave in the order of their arrival. Who looks at addresses does not promise it.
fn keeps_order(subject: &Subject) -> bool {
    matches!(subject.descriptor.name, "noop" | "mclock" | "sfqd" | "edf-credit" | "netback" | "wrr")
}

/// Whether it remembers how VMs think and seek, so that no silence brings it back to where it was.
fn learns(subject: &Subject) -> bool {
    matches!(subject.descriptor.name, "anticipatory" | "cfq" | "mcfq")
}

/// A scheduler under watch.
struct Watched {
    inner: Box<dyn Scheduler>,
    waits: Waits,
    in_order: bool,
    depth: u32,
    members: Vec<Member>,
    /// All that wait, in the order of their arrival.
    queued: Vec<Request>,
    flying: Vec<Request>,
    slowest: f64,
    waiting_for: Option<Instant>,
    repeats: u32,
    now: Instant,
}

impl Watched {
    fn new(inner: Box<dyn Scheduler>, waits: Waits, in_order: bool, depth: u32) -> Self {
        Watched {
            inner,
            waits,
            in_order,
            depth,
            members: Vec::new(),
            queued: Vec::new(),
            flying: Vec::new(),
            slowest: 0.0,
            waiting_for: None,
            repeats: 0,
            now: Instant::ZERO,
        }
    }

    fn event(&mut self, now: Instant) {
        assert!(now >= self.now, "the driver's time goes on");
        self.now = now;
        self.waiting_for = None;
    }

    fn member(&mut self, owner: OwnerId) -> &mut Member {
        self.members.iter_mut().find(|member| member.owner == owner).expect("a known owner")
    }

    /// S1 and S3: it was queued, it is unchanged, nothing of its volume is older.
    fn check_dispatch(&mut self, request: Request) {
        let place = self.queued.iter().position(|queued| queued.id == request.id);
        let queued = self.queued[place.expect("S1: dispatched what was not queued")];
        let as_it_came = Request { phase: queued.phase, wait: queued.wait, ..request };
        assert_eq!(as_it_came, queued, "S1: a request is dispatched as it came");
        let oldest = self.queued.iter().find(|r| r.owner == request.owner && r.volume == request.volume);
        let in_turn = oldest.is_some_and(|oldest| oldest.id == request.id);
        assert!(in_turn || !self.in_order, "S3: a volume is served in order");
        self.queued.remove(place.expect("found"));
        self.flying.push(request);
        assert!(self.flying.len() <= self.depth as usize, "S2: more in flight than slots");
    }

    /// S5 and S6.
    fn check_wait(&mut self, now: Instant, until: Instant) {
        assert!(until > now, "S5: a wait lies in the future");
        assert!(!self.queued.is_empty(), "S5: waits with nothing queued");
        assert!(self.waits != Waits::Never, "S5: waits although it enforces no limit");
        self.repeats = if self.waiting_for == Some(now) { self.repeats + 1 } else { 0 };
        assert!(self.repeats <= 3, "S6: woken {} times for nothing", self.repeats);
        self.waiting_for = Some(until);
        let state = self.inner.inspect(now);
        for member in &self.members {
            let by_tags = matches!(self.waits, Waits::Product | Waits::Paper);
            if self.queued.iter().any(|request| request.owner == member.owner) && by_tags {
                let may_go = self.explain(member, &state.owners[&member.owner.0], now);
                assert!(until <= may_go, "S6: {member:?} may go at {may_go:?}, nobody wakes before {until:?}");
            }
        }
        if self.waits == Waits::UntilDue {
            assert!(until.nanos_since(now) < 71 * MILLI, "S5: waits {:?}", until.since(now));
        }
        if self.waits == Waits::Windows {
            let limited = self.members.iter().filter(|member| member.policy.limit.bytes.is_some());
            let waiting = |member: &&Member| self.queued.iter().any(|request| request.owner == member.owner);
            assert!(limited.filter(waiting).count() > 0, "S5: waits although nobody with requests has a limit");
            // The largest request at the lowest rate.
            let windows = 520_192_u64.div_ceil((1 << 19) / 20);
            assert!(until.nanos_since(now) <= windows * 50 * MILLI, "S5: waits {:?}", until.since(now));
        }
        if let Waits::Idling(most) = self.waits {
            assert!(until.nanos_since(now) <= most, "S5: idles {:?}", until.since(now));
        }
        if self.waits == Waits::Product {
            let bound = self.slowest * SECOND as f64 + 1000.0;
            assert!((until.nanos_since(now) as f64) <= bound, "S5: waits {:?} of at most {bound} ns", until.since(now));
        }
    }

    /// When a VM with requests may go, which must be explained by a limit or by living on a reservation alone.
    fn explain(&self, member: &Member, shown: &OwnerState, now: Instant) -> Instant {
        let waiting = |id: VolumeId| self.queued.iter().any(|r| r.owner == member.owner && r.volume == id);
        let mut volumes = member.volumes.iter().filter(|(id, _)| waiting(*id)).map(|(_, policy)| policy);
        let holds = |policy: &Policy| policy.limit != Limit::default() || policy.weight.is_none();
        let inside = self.waits == Waits::Product && volumes.all(holds);
        assert!(holds(&member.policy) || inside, "S5: nothing explains why {member:?} waits");
        if inside {
            return Instant::MAX;
        }
        let passes = shown.limit_passes_ns.unwrap_or(0);
        let due = shown.reservation_due_ns.unwrap_or(u64::MAX);
        let may_go = match (member.policy.weight, self.waits) {
            (Some(_), Waits::Product) => passes,
            (Some(_), _) => passes.min(due),
            // The published constraint phase looks at no limit.
            (None, Waits::Product) => due.max(passes),
            (None, _) => due,
        };
        assert!(may_go > now.as_nanos(), "S5: {member:?} may go and waits: {shown:?} at {now:?}");
        Instant::from_nanos(may_go)
    }

    /// How long a request may keep its successors waiting: what went at once and its own service, at the slowest rate.
    fn note_rates(&mut self, policy: &Policy) {
        let requests = 64.0 + 6.0 + f64::from(policy.burst.unwrap_or(32));
        let bytes = 520_192.0 * 7.0 + f64::from(policy.burst.unwrap_or(32)) * 8192.0;
        let iops = [policy.limit.iops, policy.reservation.iops].into_iter().flatten();
        let rates = [policy.limit.bytes, policy.reservation.bytes].into_iter().flatten();
        let by_requests = iops.map(|rate| requests / rate.as_f64());
        let by_bytes = rates.map(|rate| bytes / rate.bytes_per_second() as f64);
        self.slowest = by_requests.chain(by_bytes).fold(self.slowest, f64::max);
    }

    fn note_change(&mut self, change: &Change) {
        match *change {
            Change::AddOwner { owner, policy } => {
                assert!(self.members.iter().all(|member| member.owner != owner), "S7: the gate reuses a number");
                self.members.push(Member { owner, policy, volumes: Vec::new() });
                self.note_rates(&policy);
            }
            Change::SetOwner { owner, policy } => {
                self.member(owner).policy = policy;
                self.note_rates(&policy);
            }
            Change::RemoveOwner { owner } => self.members.retain(|member| member.owner != owner),
            Change::AddVolume { owner, volume, policy } => {
                self.member(owner).volumes.push((volume, policy));
                self.note_rates(&policy);
            }
            Change::SetVolume { owner, volume, policy } => {
                let volumes = &mut self.member(owner).volumes;
                volumes.iter_mut().filter(|(id, _)| *id == volume).for_each(|(_, known)| *known = policy);
                self.note_rates(&policy);
            }
            Change::RemoveVolume { owner, volume } => self.member(owner).volumes.retain(|(id, _)| *id != volume),
            Change::Depth(depth) => self.depth = self.depth.max(depth),
        }
    }
}

impl Scheduler for Watched {
    fn insert(&mut self, now: Instant, request: Request) {
        self.event(now);
        assert!(self.queued.last().is_none_or(|last| last.id < request.id), "the gate numbers what arrives");
        self.queued.push(request);
        self.inner.insert(now, request);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.inner.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        assert!(now >= self.now, "the driver's time goes on");
        self.now = now;
        let decision = self.inner.dispatch(now);
        match decision {
            Decision::Dispatch(request) => {
                self.check_dispatch(request);
                self.waiting_for = None;
            }
            Decision::WaitUntil(until) => self.check_wait(now, until),
            Decision::WaitCompletion => assert!(!self.flying.is_empty(), "S6: waits for a completion that cannot come"),
            Decision::Idle => assert!(self.queued.is_empty(), "S5: idle with requests"),
        }
        decision
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.event(now);
        let place = self.flying.iter().position(|request| request.id == completion.request.id);
        self.flying.remove(place.expect("the gate completes what is in flight"));
        self.inner.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.event(now);
        self.inner.configure(now, change)?;
        self.note_change(&change);
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.event(now);
        let before = removed.len();
        self.inner.cancel(now, scope, removed);
        let mut ids: Vec<RequestId> = removed[before..].iter().map(|request| request.id).collect();
        ids.sort();
        let due: Vec<RequestId> = self.queued.iter().filter(|r| scope.contains(r)).map(|r| r.id).collect();
        assert_eq!(ids, due, "S1: exactly what waits is cancelled");
        self.queued.retain(|request| !scope.contains(request));
    }

    fn inspect(&self, now: Instant) -> State {
        let state = self.inner.inspect(now);
        assert_eq!(state.queued, self.queued.len() as u64, "S1: what waits");
        assert_eq!(state.in_flight, self.flying.len() as u64, "S1: what flies");
        let shown: u64 = state.owners.values().map(|owner| owner.queued).sum();
        assert_eq!(shown, state.queued, "S1: what waits, by owner");
        state
    }
}

fn watched(subject: &Subject, plan: &Plan) -> Box<dyn Scheduler> {
    let scheduler = subject.build(&plan.facts());
    Box::new(Watched::new(scheduler, waits(subject), keeps_order(subject), plan.depth))
}

/// One that ought to serve every volume in order.
fn watch(scheduler: Box<dyn Scheduler>, waits: Waits, plan: &Plan) -> Box<dyn Scheduler> {
    Box::new(Watched::new(scheduler, waits, true, plan.depth))
}

/// S1 by owner: arrived = waiting + in flight + completed + cancelled, in requests that are not split.
fn check_accounts(world: &World) {
    let (mut waiting, mut flying) = (0, 0);
    for source in &world.sources {
        let Some(account) = world.gate.account(source.owner) else { continue };
        let completed: u64 = account.completed.iter().sum();
        let known = u64::from(account.waiting) + u64::from(account.in_flight) + completed + account.cancelled;
        assert_eq!(account.arrived, known, "S1: {:?}", source.owner);
        let dispatched: u64 = account.dispatched.iter().sum();
        assert_eq!(dispatched, completed + u64::from(account.in_flight));
        assert_eq!(account.queue_time.count(), dispatched);
    }
    let mut owners: Vec<OwnerId> = world.sources.iter().map(|source| source.owner).collect();
    owners.sort();
    owners.dedup();
    for account in owners.iter().filter_map(|owner| world.gate.account(*owner)) {
        waiting += u64::from(account.waiting);
        flying += u64::from(account.in_flight);
    }
    assert_eq!(waiting, world.gate.queued());
    assert!(flying <= world.gate.in_flight(), "an owner that has left may have requests in flight");
    let _ = world.gate.inspect(world.now);
}

/// Everything stops asking; everything that waits must come out, and nothing stays behind.
fn drain(world: &mut World) {
    world.stop();
    let accepted: u64 = world.sources.iter().map(|source| source.accepted).sum();
    while let Some(next) = world.next_instant() {
        world.run_until(next);
    }
    assert_eq!((world.gate.queued(), world.gate.in_flight()), (0, 0), "S6: all comes out in the end");
    assert_eq!(world.wake, None, "S7: nobody waits for nothing");
    assert_eq!(world.finished.len() as u64, accepted, "S1: each arrival is over once");
    for source in &world.sources {
        assert_eq!(source.finished, source.accepted, "S1: of each stream");
    }
    let cancelled = world.finished.iter().filter(|finished| finished.outcome == Outcome::Cancelled).count();
    assert_eq!(world.log.len() + cancelled, world.finished.len(), "S1: dispatched or cancelled");
}

/// Every check of a plan on one scheduler.
fn keep_contract(plan: &Plan, scheduler: impl Fn() -> Box<dyn Scheduler>) {
    let run = || plan.run(scheduler(), Instant::ZERO, check_accounts);
    let mut world = run();
    check_accounts(&world);
    assert_eq!(world.log, run().log, "S4: the same again");
    assert!(world.device.held_max <= 32, "S2");
    drain(&mut world);
    check_accounts(&world);
    for owner in 0..plan.vms.len() as u32 + 8 {
        if world.gate.policy(OwnerId(owner)).is_some() {
            world.remove_owner(OwnerId(owner));
        }
    }
    let state = world.gate.inspect(world.now);
    assert!(state.owners.is_empty() && state.queued == 0, "S7: {state:?}");
}

// rule: sfqd.work-conserving
/// rule: gate.four-answers, gate.wait-completion, gate.spurious-timer, gate.depth
#[test]
fn every_scheduler_keeps_the_contract() {
    for subject in subjects() {
        for_plans(100, plan(true), |plan| keep_contract(plan, || watched(&subject, plan)));
    }
}

#[test]
fn every_scheduler_is_in_the_list_once_and_builds() {
    let labels: Vec<String> = subjects().iter().map(Subject::label).collect();
    for expected in ["mclock (product)", "mclock (paper)", "noop"] {
        assert!(labels.iter().any(|label| label == expected), "{expected} in {labels:?}");
    }
    let mut names: Vec<&str> = schedulers::ALL.iter().map(|descriptor| descriptor.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), schedulers::ALL.len());
    for subject in subjects() {
        let unknown = subject.clone().text("no_such_parameter", "1");
        assert!((subject.descriptor.build)(&Facts::default(), &unknown.params).is_err(), "{}", subject.label());
    }
}

// The checks can fail: schedulers that break one rule each.

/// First in, first out, but for one thing.
#[derive(Debug)]
struct Broken {
    queue: Vec<Request>,
    flaw: Flaw,
    /// How many were built before it: nothing that a decision may depend on.
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

/// What the contract says to a flaw: the message of the first plan that shows it.
fn verdict(flaw: Flaw, waits: Waits) -> Option<String> {
    let all = || for_plans_as_found(24, plan(true), |plan| keep_contract(plan, || watch(broken(flaw), waits, plan)));
    let panic = catch_unwind(AssertUnwindSafe(all)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

// rule: gate.four-answers, gate.wait-completion, gate.depth
#[test]
fn a_broken_scheduler_is_noticed() {
    assert_eq!(verdict(Flaw::None, Waits::Never), None);
    let table = [
        (Flaw::LosesTheTenth, Waits::Never, "S3: a volume is served in order"),
        (Flaw::ServesTwice, Waits::Never, "S1"),
        (Flaw::LastFirst, Waits::Never, "S3"),
        (Flaw::ChangesTheRequest, Waits::Never, "S1: a request is dispatched as it came"),
        (Flaw::IdleWithRequests, Waits::Never, "S5: idle with requests"),
        (Flaw::WaitsInThePast, Waits::Paper, "S5: a wait lies in the future"),
        (Flaw::WaitsForNoReason, Waits::Never, "enforces no limit"),
        (Flaw::WaitsForNoReason, Waits::Paper, "S5: "),
        (Flaw::WaitsForNoReason, Waits::UntilDue, "S5: waits 1s"),
        (Flaw::WaitsForNoReason, Waits::Idling(8 * MILLI), "S5: idles 1s"),
        (Flaw::WakesForNothing, Waits::Somehow, "S6: woken"),
        (Flaw::WaitsForACompletion, Waits::Never, "S6: waits for a completion that cannot come"),
        (Flaw::CancelsTooLittle, Waits::Never, "S1: exactly what waits"),
        (Flaw::DiffersByInstance, Waits::Never, "S4: the same again"),
    ];
    for (flaw, waits, expected) in table {
        let verdict = verdict(flaw, waits).unwrap_or_else(|| panic!("{flaw:?} was not noticed"));
        assert!(verdict.contains(expected), "{flaw:?}: {verdict}");
    }
}

// Nobody starves.

/// How often each of eight VMs was served, of every weight; each keeps 16 requests outstanding.
fn served(scheduler: Box<dyn Scheduler>) -> Vec<f64> {
    let settings = GateSettings { depth: 4, cost: CostModel::per_request(), ..GateSettings::default() };
    let mut world = World::new(scheduler, settings, Stub::serial(MILLI));
    let weights = [1, 2, 4, 10, 1000, 1, 10, 1000];
    let vms = weights.map(|weight| world.busy(Policy::weighted(weight), Pattern::Closed(16)));
    world.run_until(secs(20));
    world.rates(&vms, Instant::ZERO, secs(20))
}

#[test]
fn nobody_with_a_weight_starves() {
    let weights = [1.0, 2.0, 4.0, 10.0, 1000.0, 1.0, 10.0, 1000.0];
    let sum: f64 = weights.iter().sum();
    for subject in subjects() {
        let rates = served(subject.build(&Facts { depth: 4, ..Facts::default() }));
        // The least share of the lightest, less two requests.
        let least = rates.iter().copied().fold(f64::MAX, f64::min);
        assert!(least >= 1000.0 / sum - 0.1, "{}: {rates:?}", subject.label());
        if subject.is("mclock", "product") {
            assert_close("shares", &rates, &weights.map(|weight| 1000.0 * weight / sum), 0.01);
        }
    }
    // A control: but for the first four, which found the device empty.
    assert!(served(broken(Flaw::StarvesTheFirst))[0] <= 0.2);
}

/// Asks once more whenever nothing may go: the answer must be the same.
struct Again(Box<dyn Scheduler>);

impl Scheduler for Again {
    fn insert(&mut self, now: Instant, request: Request) {
        self.0.insert(now, request);
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
fn a_question_too_many_changes_nothing() {
    for subject in subjects() {
        for_plans(16, plan(true), |plan| {
            let scheduler = || subject.build(&plan.facts());
            let once = plan.run(scheduler(), Instant::ZERO, |_| ());
            let again = plan.run(Box::new(Again(scheduler())), Instant::ZERO, |_| ());
            assert!(once.log == again.log, "{}", subject.label());
        });
    }
}

// Background steps aside.

#[test]
fn background_gets_what_nobody_else_wants_and_no_more() {
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
        assert!(others_turn <= 25, "{}: {others_turn} of 4900 in spite of the other", subject.label());
        let own_turn = world.count(background, millis(5100), secs(10));
        assert!(own_turn >= 4800, "{}: {own_turn} of 4900 while nobody else asks", subject.label());
        assert!(world.count(foreground, Instant::ZERO, secs(10)) >= 4900, "{}", subject.label());
    }
    assert!(enforcing >= 4, "{enforcing}");
}

// S8: extremes.

/// Two VMs of extreme weights and rates beside an ordinary one, with requests of extreme costs.
fn extremes(subject: &Subject, start: Instant) -> World {
    let cost = CostModel {
        reference: Some(Bytes(0)),
        knee: Bytes(1),
        flush: Cost::from_raw(1),
        discard: Cost::from_raw(u32::MAX),
    };
    let facts = Facts { depth: 3, ..Facts::default() };
    let transfer_max = Bytes(u64::from(u32::MAX));
    let settings = GateSettings { depth: 3, transfer_max, cost, ..GateSettings::default() };
    let mut world = World::new(subject.build(&facts), settings, Stub::new(3, Order::Random, Service::Fixed(MILLI)));
    world.now = start;
    let lightest = Policy { weight: Some(Weight::MIN), ..Policy::default() };
    let heaviest = Policy { weight: Some(Weight::MAX), idle_credit: 256, ..Policy::default() };
    let (slow, fast) = (Some(Iops::from_milli(1)), Some(Iops::per_second(1_000_000_000_000)));
    let slow = Limit { iops: slow, bytes: Some(ByteRate::MIN) };
    let fast = Reservation { iops: fast, bytes: Some(ByteRate::per_second(u64::MAX)) };
    let policies = [
        lightest,
        heaviest,
        Policy { limit: slow, ..lightest },
        Policy { reservation: Reservation { iops: slow.iops, bytes: None }, weight: None, ..lightest },
        Policy { limit: slow, burst: Some(65_535), ..heaviest },
        Policy { reservation: fast, ..Policy::default() },
    ];
    for policy in policies {
        let vm = world.vm(policy);
        for kind in Kind::ALL {
            let on_off = Pattern::OnOff { outstanding: 3, on: 300 * MILLI, off: 700 * MILLI };
            let source = Source::new(vm, VolumeId(0), on_off).kind(kind);
            world.source(source.lengths(&[0, 1, 512, 65_536, u32::MAX]).elsewhere(1, 70_000));
        }
    }
    world
}

#[test]
fn nothing_overflows_at_the_ends_of_the_ranges() {
    let late = Instant::from_nanos(u64::MAX - 100 * SECOND);
    for subject in subjects() {
        for start in [Instant::ZERO, secs(1), late] {
            let mut world = extremes(&subject, start);
            world.run_for(3 * SECOND);
            assert!(world.log.len() > 100, "{}: {}", subject.label(), world.log.len());
            for owner in 0..6 {
                let policy = Policy { weight: Some(Weight::new(1 + owner)), ..Policy::default() };
                world.set(OwnerId(owner), policy.limited(1 + u64::from(owner)));
                world.set(OwnerId(owner), policy.reserving(1_000_000));
                world.run_for(100 * MILLI);
            }
            let _ = world.gate.inspect(world.now);
            world.stop();
            for owner in 0..6 {
                world.remove_owner(OwnerId(owner));
            }
            world.run_for(SECOND);
            assert_eq!((world.gate.queued(), world.gate.in_flight()), (0, 0), "{}", subject.label());
        }
    }
}

#[test]
fn a_million_idle_seconds_change_nothing() {
    for subject in subjects() {
        let mut world = World::simple(&subject, 4, 1000);
        let policies = [Policy::weighted(1), Policy::weighted(1000).limited(400), Policy::weighted(1).reserving(100)];
        let vms = policies.map(|policy| world.vm(policy));
        let sources = vms.map(|vm| world.stream(vm, Pattern::Manual));
        let mut rounds = Vec::new();
        for round in 0..3 {
            let start = world.now;
            world.ask_for_the_same_places();
            for turn in 0..900 {
                world.ask(sources[turn % 3]);
            }
            world.pump();
            world.run_for(1_000_000 * SECOND);
            let record = |r: &Record| (r.at.nanos_since(start), r.request.owner, r.request.id.0 - round * 900);
            rounds.push(world.log.drain(..).map(|r| record(&r)).collect::<Vec<_>>());
        }
        assert!(rounds.iter().all(|round| round.len() == 900), "{}", subject.label());
        if learns(&subject) {
            continue;
        }
        // As published, Flubber's disk waits where it was last, however long ago; in the first round it was nowhere.
        let first = usize::from(subject.is("flubber", "paper"));
        assert!(rounds[first] == rounds[1] && rounds[1] == rounds[2], "{}", subject.label());
    }
}
