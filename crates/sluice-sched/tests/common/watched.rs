//! A wrapper that checks each result of a scheduler against the contract with its gate.

use std::time::Duration;

use sluice_sched::gate::{Outcome, RemoteService};
use sluice_sched::guarantees::Guarantees;
pub use sluice_sched::guarantees::{Order, Waits};
use sluice_sched::policy::Field;
use sluice_sched::request::Direction;
use sluice_sched::scheduler::{Change, ChangeError, Decision, OwnerState, Scheduler, State};
use sluice_sched::*;

use super::plan::Plan;
use super::{SECOND, Subject, World};

#[derive(Debug, Clone)]
struct Member {
    owner: OwnerId,
    policy: Policy,
    volumes: Vec<(VolumeId, Policy)>,
}

impl Member {
    fn has_lanes(&self) -> bool {
        let volumes = self.volumes.iter().map(|(_, policy)| policy);
        [&self.policy]
            .into_iter()
            .chain(volumes)
            .any(|policy| policy.read_limit.is_set() || policy.write_limit.is_set() || policy.timed_burst.is_some())
    }
}

/// The wrapper.
struct Watched {
    inner: Box<dyn Scheduler>,
    waits: Waits,
    order: Order,
    /// Whether limits of reads and of writes are enforced.
    directions: bool,
    /// Whether a VM of the plan has background work or class idle.
    has_idle: bool,
    /// The longest latency target of the plan.
    latency_max: Duration,
    depth: u32,
    /// Maximum length of a locality batch.
    batch: f64,
    members: Vec<Member>,
    /// Queued requests, in arrival order.
    queued: Vec<Request>,
    flying: Vec<Request>,
    /// Requests that may be dispatched in a row, for each stated rate.
    at_iops: Vec<(f64, f64)>,
    at_bytes: Vec<(f64, f64)>,
    /// Requests at other servers that clients reported.
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
            // A VM that becomes background work, or ceases to be, has requests in two queues.
            order: if order == Order::VolumeByClass && plan.has_idle() { Order::Any } else { order },
            directions: true,
            has_idle: plan.has_idle(),
            latency_max: Duration::from_millis(plan.latency_max()),
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
        assert!(now >= self.now, "the driver's time never decreases");
        self.now = now;
        self.waiting_for = None;
    }

    fn member(&mut self, owner: OwnerId) -> &mut Member {
        self.members.iter_mut().find(|member| member.owner == owner).expect("a known owner")
    }

    /// S1 and S3: the request was queued, is unchanged, and no older one of its volume is queued, or of its direction if the
    /// VM or one of its volumes has limits by direction or a burst for a time.
    fn check_dispatch(&mut self, request: Request) {
        let place = self.queued.iter().position(|queued| queued.id == request.id);
        let queued = self.queued[place.expect("S1: dispatched a request that was not queued")];
        let as_it_came = Request { phase: queued.phase, wait: queued.wait, ..request };
        assert_eq!(as_it_came, queued, "S1: a request is dispatched unchanged");
        let apart = self.directions && self.member(request.owner).has_lanes();
        let class = |r: &Request| self.order == Order::VolumeByClass && r.flags.contains(Flags::BACKGROUND);
        let direction = |r: &Request| apart && r.kind.direction() == Direction::Write;
        let kind = |r: &Request| (class(r), direction(r));
        let of = |r: &&Request| r.owner == request.owner && r.volume == request.volume && kind(r) == kind(&request);
        let in_turn = self.queued.iter().find(of).is_some_and(|oldest| oldest.id == request.id);
        assert!(in_turn || self.order == Order::Any, "S3: a volume is served in order");
        let oldest = self.queued.first().is_some_and(|oldest| oldest.id == request.id);
        assert!(oldest || self.order != Order::All, "S3: requests are served in order");
        self.queued.remove(place.expect("found"));
        self.flying.push(request);
        assert!(self.flying.len() <= self.depth as usize, "S2: more in flight than slots");
    }

    /// S5 and S6.
    fn check_wait(&mut self, now: Instant, until: Instant) {
        assert!(until > now, "S5: a wait lies in the future");
        assert!(!self.queued.is_empty(), "S5: waits with nothing queued");
        self.repeats = if self.waiting_for == Some(now) { self.repeats + 1 } else { 0 };
        assert!(self.repeats <= 3, "S6: woken {} times for nothing", self.repeats);
        self.waiting_for = Some(until);
        let wait = until.since(now);
        match self.waits {
            Waits::Never | Waits::InFlight(_) => panic!("S5: waits although it enforces no limit"),
            Waits::Tags { inside } => self.check_tags(now, until, inside),
            Waits::Windows { .. } => self.check_windows(wait),
            Waits::Idling { most, most_with_background } => {
                let most = if self.has_idle { most_with_background } else { most };
                assert!(wait <= most, "S5: idles {wait:?}");
            }
            Waits::Deadlines { target, seek, idle } => {
                let due = self.latency_max.max(target) - seek;
                let most = idle.filter(|_| self.flying.is_empty()).map_or(due, |idle| due.min(idle));
                assert!(wait <= most, "S5: waits {wait:?}");
            }
            Waits::Other => {}
        }
    }

    fn check_tags(&self, now: Instant, until: Instant, inside: bool) {
        let state = self.inner.inspect(now);
        for member in &self.members {
            if self.queued.iter().any(|request| request.owner == member.owner) {
                let eligible_at = self.explain(member, &state.owners[&member.owner.0], now, inside);
                assert!(
                    until <= eligible_at,
                    "S6: {member:?} is eligible at {eligible_at:?}, but the wake-up is at {until:?}"
                );
            }
        }
        let bound = self.wait_max() * SECOND as f64 + 1000.0;
        let wait = until.nanos_since(now);
        assert!(!inside || (wait as f64) <= bound, "S5: waits {wait} of at most {bound} ns");
    }

    fn check_windows(&self, wait: Duration) {
        let limited = self.members.iter().filter(|member| member.policy.limit.bytes.is_some());
        let waiting = |member: &&Member| self.queued.iter().any(|request| request.owner == member.owner);
        assert!(limited.filter(waiting).count() > 0, "S5: waits although no VM with requests has a limit");
        // The largest request at the lowest rate.
        let windows = 520_192_u64.div_ceil((1 << 19) / 20);
        assert!(wait <= Duration::from_millis(windows * 50), "S5: waits {wait:?}");
    }

    /// When a VM with requests may be dispatched, which a limit or a reservation without weight must explain.
    ///
    /// `volumes_count`: limits and reservations of volumes count too.
    fn explain(&self, member: &Member, shown: &OwnerState, now: Instant, volumes_count: bool) -> Instant {
        let waiting = |id: VolumeId| self.queued.iter().any(|r| r.owner == member.owner && r.volume == id);
        let mut volumes = member.volumes.iter().filter(|(id, _)| waiting(*id)).map(|(_, policy)| policy);
        let by_direction = |policy: &Policy| policy.read_limit.is_set() || policy.write_limit.is_set();
        let holds = |policy: &Policy| {
            policy.limit.is_set() || (self.directions && by_direction(policy)) || policy.weight.is_none()
        };
        // Each volume that no rule of its own delays may have requests of a direction that the VM limits.
        let several = member.volumes.len() > 1 && by_direction(&member.policy);
        let inside = volumes_count && volumes.all(|policy| holds(policy) || several);
        assert!(holds(&member.policy) || inside, "S5: no rule explains why {member:?} waits");
        if inside {
            return Instant::MAX;
        }
        let limit_eligible_at = shown.limit_passes_ns.unwrap_or(0);
        let due = shown.reservation_due_ns.unwrap_or(u64::MAX);
        let eligible_at = match (member.policy.weight, volumes_count) {
            (Some(_), true) => limit_eligible_at,
            (Some(_), false) => limit_eligible_at.min(due),
            // The published constraint phase ignores limits.
            (None, true) => due.max(limit_eligible_at),
            (None, false) => due,
        };
        assert!(eligible_at > now.as_nanos(), "S5: {member:?} is eligible and waits: {shown:?} at {now:?}");
        Instant::from_nanos(eligible_at)
    }

    /// Notes how long a request may delay its successors: for the requests dispatched in a row, its own service, and
    /// reported service at other servers, at the lowest rate.
    fn note_rates(&mut self, policy: &Policy) {
        let limits = [policy.limit, policy.read_limit, policy.write_limit];
        let iops = limits.iter().map(|limit| limit.iops).chain([policy.reservation.iops]).flatten();
        let rates = limits.iter().map(|limit| limit.bytes).chain([policy.reservation.bytes]).flatten();
        let bursts = |extra: f64| policy.burst.map_or(32.0 * extra, |burst| f64::from(burst) * extra.min(4096.0));
        let above =
            |of: fn(Limit) -> f64| policy.timed_burst.map_or(0.0, |burst| of(burst.rate) * burst.length.as_secs_f64());
        let saved = above(|rate| rate.iops.map_or(0.0, Iops::as_f64));
        let saved_bytes = above(|rate| rate.bytes.map_or(0.0, |rate| rate.bytes_per_second() as f64));
        let requests = self.batch * 64.0 + bursts(64.0) + saved;
        let bytes = self.batch * 520_192.0 + bursts(1_048_576.0) + saved_bytes;
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
            Change::Device { depth, .. } => self.depth = self.depth.max(depth),
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

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        self.event(now);
        self.reported += f64::from(remote.delta);
        self.inner.add_remote_service(now, owner, remote);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.inner.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        assert!(now >= self.now, "the driver's time never decreases");
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
        assert_eq!(ids, due, "S1: exactly the queued requests are cancelled");
        self.queued.retain(|request| !scope.contains(request));
    }

    fn inspect(&self, now: Instant) -> State {
        let state = self.inner.inspect(now);
        assert_eq!(state.queued, self.queued.len() as u64, "S1: queued requests");
        assert_eq!(state.in_flight, self.flying.len() as u64, "S1: requests in flight");
        let shown: u64 = state.owners.values().map(|owner| owner.queued).sum();
        assert_eq!(shown, state.queued, "S1: queued requests by owner");
        state
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        self.inner.standing(now, scope)
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        self.event(now);
        self.inner.resume(now, scope, standing);
    }
}

pub fn watched(subject: &Subject, plan: &Plan) -> Box<dyn Scheduler> {
    let Guarantees { waits, order, .. } = subject.guarantees(&plan.info());
    let directions = subject.descriptor.enforces_with(Field::ReadLimit, &subject.params);
    Box::new(Watched { directions, ..Watched::new(subject.build(&plan.info()), waits, order, plan) })
}

/// Checks a scheduler that must serve every volume in order.
pub fn watch(scheduler: Box<dyn Scheduler>, waits: Waits, plan: &Plan) -> Box<dyn Scheduler> {
    Box::new(Watched::new(scheduler, waits, Order::Volume, plan))
}

/// Checks a scheduler that may serve in any order.
pub fn watch_in_any_order(scheduler: Box<dyn Scheduler>, waits: Waits, plan: &Plan) -> Box<dyn Scheduler> {
    Box::new(Watched::new(scheduler, waits, Order::Any, plan))
}

/// S1 by owner: arrived = waiting + in flight + completed + cancelled, in requests that are not split.
pub fn check_stats(world: &World) {
    let (mut waiting, mut flying) = (0, 0);
    for source in &world.sources {
        let Some(stats) = world.gate.stats(source.owner) else { continue };
        let completed: u64 = stats.completed().iter().sum();
        let known =
            u64::from(stats.outstanding.waiting) + u64::from(stats.outstanding.in_flight) + completed + stats.cancelled;
        assert_eq!(stats.outstanding.arrived, known, "S1: {:?}", source.owner);
        let dispatched: u64 = stats.dispatched.iter().sum();
        assert_eq!(dispatched, completed + u64::from(stats.outstanding.in_flight));
        assert_eq!(stats.queue_time.count(), dispatched);
    }
    let mut owners: Vec<OwnerId> = world.sources.iter().map(|source| source.owner).collect();
    owners.sort();
    owners.dedup();
    for stats in owners.iter().filter_map(|owner| world.gate.stats(*owner)) {
        waiting += u64::from(stats.outstanding.waiting);
        flying += u64::from(stats.outstanding.in_flight);
    }
    assert_eq!(waiting, world.gate.queued());
    assert!(flying <= world.gate.in_flight(), "a removed owner may have requests in flight");
    let _ = world.gate.inspect(world.now);
}

/// Stops all streams; every queued request must complete, and nothing may remain.
pub fn drain(world: &mut World) {
    world.stop();
    let accepted: u64 = world.sources.iter().map(|source| source.accepted).sum();
    while let Some(next) = world.next_instant() {
        world.run_until(next);
    }
    assert_eq!((world.gate.queued(), world.gate.in_flight()), (0, 0), "S6: all requests complete in the end");
    assert_eq!(world.wake, None, "S7: no timer without queued requests");
    assert_eq!(world.finished.len() as u64, accepted, "S1: each arrival completes once");
    for source in &world.sources {
        assert_eq!(source.finished, source.accepted, "S1: of each stream");
    }
    let cancelled = world.finished.iter().filter(|finished| finished.outcome == Outcome::Cancelled).count();
    assert_eq!(world.log.len() + cancelled, world.finished.len(), "S1: dispatched or cancelled");
}

/// All checks of a plan on one scheduler.
pub fn keep_contract(plan: &Plan, scheduler: impl Fn() -> Box<dyn Scheduler>) {
    let run = || plan.run(scheduler(), Instant::ZERO, check_stats);
    let mut world = run();
    check_stats(&world);
    assert_eq!(world.log, run().log, "S4: the run repeats");
    assert!(world.device.held_max <= 32, "S2");
    drain(&mut world);
    check_stats(&world);
    for owner in 0..plan.vms.len() as u32 + 8 {
        if world.gate.policy(OwnerId(owner)).is_some() {
            world.remove_owner(OwnerId(owner));
        }
    }
    let state = world.gate.inspect(world.now);
    assert!(state.owners.is_empty() && state.queued == 0, "S7: {state:?}");
}
