//! A scheduler under watch: each of its answers is checked against what a scheduler owes its gate.

use std::time::Duration;

use sluice_sched::gate::{Outcome, RemoteService};
use sluice_sched::scheduler::{Change, ChangeError, Decision, OwnerState, Scheduler, State};
use sluice_sched::*;

use super::plan::Plan;
use super::{MILLI, SECOND, Subject, World};

#[derive(Debug, Clone)]
struct Member {
    owner: OwnerId,
    policy: Policy,
    volumes: Vec<(VolumeId, Policy)>,
}

/// S5: when a scheduler may let requests wait for an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    Never,
    /// By its limits and reservations, those of volumes too; for as long as they need for what went at once.
    Product,
    /// By its limit and reservation tags.
    Paper,
    /// For a contiguous request, until the head is due: so many nanoseconds after it passed, at most.
    UntilDue(u64),
    /// The same, and at most 6 ms while the device is idle.
    UntilDueOrTired(u64),
    /// For somebody's next request, so many nanoseconds at most.
    Idling(u64),
    /// For the end of a window, or of the last of so many windows that pay for one request, if somebody has a byte limit.
    Windows,
    /// By rules of its own, which have tests of their own.
    Somehow,
}

pub fn waits(subject: &Subject, plan: &Plan) -> Waits {
    match (subject.descriptor.name, subject.mode()) {
        ("noop" | "sfqd" | "deadline" | "edf-credit", _) => Waits::Never,
        ("flubber", Some("product")) if !plan.rotational => Waits::Never,
        // The longest target of a plan, or of who states none, less a seek of 9 ms.
        ("flubber", Some("product")) => Waits::UntilDueOrTired((plan.latency_max().max(80) - 9) * MILLI),
        ("flubber", Some("paper")) => Waits::UntilDue((plan.latency_max().max(80) - 9) * MILLI),
        ("mclock", Some("product")) => Waits::Product,
        ("mclock", Some("paper")) => Waits::Paper,
        ("anticipatory", _) => Waits::Idling(6 * MILLI),
        // IDLE waits for its grace.
        ("cfq", Some("2.6.18")) if plan.has_idle() => Waits::Idling(100 * MILLI),
        ("cfq" | "mcfq", _) => Waits::Idling(8 * MILLI),
        ("netback" | "wrr", _) => Waits::Windows,
        _ => Waits::Somehow,
    }
}

/// S3: which requests leave in the order of their arrival. Who looks at addresses promises nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Any,
    /// Those of a volume.
    Volume,
    /// Those of a volume, background work and the rest apart.
    Part,
}

fn order(subject: &Subject, plan: &Plan) -> Order {
    match subject.descriptor.name {
        "noop" | "mclock" | "sfqd" | "netback" | "wrr" => Order::Volume,
        // A VM that becomes background work, or no longer is, has requests in two lines.
        "edf-credit" if !plan.has_idle() => Order::Part,
        _ => Order::Any,
    }
}

/// A scheduler under watch.
struct Watched {
    inner: Box<dyn Scheduler>,
    waits: Waits,
    order: Order,
    depth: u32,
    /// Requests that may go together because they lie close together.
    batch: f64,
    members: Vec<Member>,
    /// All that wait, in the order of their arrival.
    queued: Vec<Request>,
    flying: Vec<Request>,
    /// What may go at once, at each rate that was stated.
    at_iops: Vec<(f64, f64)>,
    at_bytes: Vec<(f64, f64)>,
    /// Requests that clients reported of other servers.
    reported: f64,
    waiting_for: Option<Instant>,
    repeats: u32,
    now: Instant,
}

impl Watched {
    fn new(inner: Box<dyn Scheduler>, waits: Waits, order: Order, plan: &Plan) -> Self {
        Watched {
            inner,
            waits,
            order,
            depth: plan.depth,
            batch: if plan.rotational { 8.0 } else { 1.0 },
            members: Vec::new(),
            queued: Vec::new(),
            flying: Vec::new(),
            at_iops: Vec::new(),
            at_bytes: Vec::new(),
            reported: 0.0,
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
        let part = |r: &Request| self.order == Order::Part && r.flags.contains(Flags::BACKGROUND);
        let of = |r: &&Request| r.owner == request.owner && r.volume == request.volume && part(r) == part(&request);
        let in_turn = self.queued.iter().find(of).is_some_and(|oldest| oldest.id == request.id);
        assert!(in_turn || self.order == Order::Any, "S3: a volume is served in order");
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
        if let Waits::UntilDue(most) | Waits::UntilDueOrTired(most) = self.waits {
            let tired = matches!(self.waits, Waits::UntilDueOrTired(_)) && self.flying.is_empty();
            let most = if tired { most.min(6 * MILLI) } else { most };
            assert!(until.nanos_since(now) <= most, "S5: waits {:?}", until.since(now));
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
            let bound = self.wait_max() * SECOND as f64 + 1000.0;
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

    /// How long a request may keep its successors waiting: what went at once, its own service, and what clients reported of
    /// other servers, at the slowest rate.
    fn note_rates(&mut self, policy: &Policy) {
        let iops = [policy.limit.iops, policy.reservation.iops].into_iter().flatten();
        let rates = [policy.limit.bytes, policy.reservation.bytes].into_iter().flatten();
        let bursts = |beside: f64| policy.burst.map_or(32.0 * beside, |burst| f64::from(burst) * beside.min(4096.0));
        let (requests, bytes) = (self.batch * 64.0 + bursts(64.0), self.batch * 520_192.0 + bursts(1_048_576.0));
        for rate in iops {
            self.at_iops.push((requests, rate.as_f64()));
        }
        for rate in rates {
            self.at_bytes.push((bytes, rate.bytes_per_second() as f64));
        }
    }

    fn wait_max(&self) -> f64 {
        let by = |rates: &[(f64, f64)], reported: f64| {
            rates.iter().map(|(amount, rate)| (amount + reported) / rate).fold(0.0, f64::max)
        };
        by(&self.at_iops, self.reported).max(by(&self.at_bytes, self.reported * 520_192.0))
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

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, volume: VolumeId, remote: &RemoteService) {
        self.event(now);
        self.reported += f64::from(remote.delta);
        self.inner.add_remote_service(now, owner, volume, remote);
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

pub fn watched(subject: &Subject, plan: &Plan) -> Box<dyn Scheduler> {
    let scheduler = subject.build(&plan.facts());
    Box::new(Watched::new(scheduler, waits(subject, plan), order(subject, plan), plan))
}

/// One that ought to serve every volume in order.
pub fn watch(scheduler: Box<dyn Scheduler>, waits: Waits, plan: &Plan) -> Box<dyn Scheduler> {
    Box::new(Watched::new(scheduler, waits, Order::Volume, plan))
}

/// One that may serve in any order.
pub fn watch_in_any_order(scheduler: Box<dyn Scheduler>, waits: Waits, plan: &Plan) -> Box<dyn Scheduler> {
    Box::new(Watched::new(scheduler, waits, Order::Any, plan))
}

/// S1 by owner: arrived = waiting + in flight + completed + cancelled, in requests that are not split.
pub fn check_accounts(world: &World) {
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
pub fn drain(world: &mut World) {
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
pub fn keep_contract(plan: &Plan, scheduler: impl Fn() -> Box<dyn Scheduler>) {
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
