//! mClock's product mode a second time, slow and obvious, against the fast one, decision by decision.
//!
//! Written from the specification's rules: plain lists, scans over everything, tags as exact integers (a division that
//! leaves a remainder is a defect of the test). It shares no code with the fast one but the types of the interface.
//! Both sit behind one gate and get the same calls; every answer must be the same.

mod common;

use common::plan::{Plan, for_plans, for_plans_as_found, plan};
use common::*;
use sluice_sched::gate::RemoteService;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, ChangeError, Decision, Facts, Scheduler, State};
use sluice_sched::*;

/// 1/16 ns on the caller's clock; and virtual time, of which a request takes 252 * 10^9 at weight 0.01.
type Tag = i128;

const LONG_AGO: Tag = i128::MIN / 4;
const ONE: Tag = 65_536;

fn exact(dividend: Tag, divisor: Tag) -> Tag {
    assert_eq!(dividend % divisor, 0, "the plan's numbers must give exact tags: {dividend} / {divisor}");
    dividend / divisor
}

/// Time that `raw` cost units take at a rate.
fn requests_at(rate: Iops, raw: Tag) -> Tag {
    exact(raw * 16_000_000_000 * 1000, ONE * Tag::from(rate.milli()))
}

fn bytes_at(rate: ByteRate, bytes: Tag) -> Tag {
    exact(bytes * 16_000_000_000, Tag::from(rate.bytes_per_second()))
}

fn share_of(weight: Weight, raw: Tag) -> Tag {
    exact(raw * 252_000_000_000, ONE * Tag::from(weight.hundredths()))
}

/// sigma/w.
fn credit(policy: &Policy) -> Tag {
    policy.weight.map_or(0, |weight| share_of(weight, Tag::from(policy.idle_credit) * ONE))
}

fn moved_bytes(request: &Request) -> Tag {
    if matches!(request.kind, Kind::Read | Kind::Write) { Tag::from(request.length) } else { 0 }
}

/// The tags of a VM or of a volume: each says when the *next* request is due, may pass, or stands in line.
#[derive(Debug, Clone)]
struct Level {
    policy: Policy,
    due: Tag,
    due_bytes: Tag,
    tat: Tag,
    tat_bytes: Tag,
    share: Tag,
    held_until: Option<Tag>,
    /// Its client tells of other servers, and when it was served here last.
    told: bool,
    served: Option<Tag>,
}

impl Level {
    fn new(policy: Policy, now: Tag, v: Tag) -> Self {
        let (tat, tat_bytes, share) = (LONG_AGO, LONG_AGO, v - credit(&policy));
        Level { policy, due: now, due_bytes: now, tat, tat_bytes, share, held_until: None, told: false, served: None }
    }

    /// 8.4: "where an owner has both, the later tag counts".
    fn due(&self) -> Option<Tag> {
        let reservation = self.policy.reservation;
        reservation.iops.map(|_| self.due).max(reservation.bytes.map(|_| self.due_bytes))
    }

    /// 8.4: may dispatch iff TAT - burst/l <= now, in requests and in bytes. A stated burst of n lets n through at once,
    /// n - 1 beside the one that may go anyway; the default is the device's depth beside that one.
    fn passes(&self, facts: &Facts) -> Tag {
        let beside = Tag::from(self.policy.burst.map_or(facts.depth, |burst| burst - 1));
        let reference = Tag::from(facts.cost.reference_size().0);
        let limit = self.policy.limit;
        let requests = limit.iops.map(|rate| self.tat - requests_at(rate, beside * ONE));
        let bytes = limit.bytes.map(|rate| self.tat_bytes - bytes_at(rate, beside * reference));
        requests.max(bytes).unwrap_or(LONG_AGO)
    }

    /// One without weight lives by its reservation alone.
    fn may_go(&self, facts: &Facts) -> Tag {
        match self.due() {
            Some(due) if self.policy.weight.is_none() => due.max(self.passes(facts)),
            _ => self.passes(facts),
        }
    }

    /// 8.6: rho and delta count other servers alone.
    fn count_elsewhere(&mut self, now: Tag, request: &Request) {
        if request.rho == 0 && request.delta == 0 {
            return;
        }
        self.told = true;
        let (rho, delta) = (Tag::from(request.rho), Tag::from(request.delta));
        if let Some(rate) = self.policy.reservation.iops {
            self.due += requests_at(rate, rho * ONE);
        }
        if let Some(rate) = self.policy.reservation.bytes {
            self.due_bytes += bytes_at(rate, rho * moved_bytes(request));
        }
        // What it got elsewhere beyond its reservation makes up for what is overdue here, up to now.
        let beyond = (delta - rho).max(0);
        if let Some(rate) = self.policy.reservation.iops {
            self.due = self.due.max((self.due + requests_at(rate, beyond * ONE)).min(now));
        }
        if let Some(rate) = self.policy.reservation.bytes {
            self.due_bytes =
                self.due_bytes.max((self.due_bytes + bytes_at(rate, beyond * moved_bytes(request))).min(now));
        }
        if let Some(weight) = self.policy.weight {
            self.share += share_of(weight, delta * ONE);
        }
    }

    /// 8.4: R is floored when an owner becomes backlogged, P to v - sigma/w; not that of a client of several servers that was
    /// served within a second.
    fn activate(&mut self, now: Tag, v: Tag) {
        self.floor_due(now);
        if self.told && self.served.is_some_and(|served| now - served < 16 * 1_000_000_000) {
            return;
        }
        self.share = self.share.max(v - credit(&self.policy));
    }

    fn floor_due(&mut self, floor: Tag) {
        self.due = self.due.max(floor);
        self.due_bytes = self.due_bytes.max(floor);
    }

    /// 8.4: whom its limit held banks nothing. `key`: until when it is held, if it is.
    fn settle(&mut self, now: Tag, held_until: Option<Tag>, v: Tag) {
        match (held_until, self.held_until) {
            (Some(_), _) => {}
            (None, Some(was)) => {
                self.floor_due(was.min(now));
                self.share = self.share.max(v);
            }
            (None, None) => {}
        }
        self.held_until = held_until;
    }

    /// 8.2 and 8.4: R by reservation service alone; P by both, by reservation service to at most v + 16 c/w; the limiter
    /// by both, with what other servers did.
    fn charge(&mut self, now: Tag, request: &Request, reserved: bool, v: Tag) {
        let raw = Tag::from(request.cost.raw());
        let delta = Tag::from(request.delta);
        self.served = Some(now);
        if reserved {
            if let Some(rate) = self.policy.reservation.iops {
                self.due += requests_at(rate, raw);
            }
            if let Some(rate) = self.policy.reservation.bytes {
                self.due_bytes += bytes_at(rate, moved_bytes(request));
            }
        }
        if let Some(weight) = self.policy.weight {
            let cap = if reserved && !self.told { self.share.max(v + share_of(weight, 16 * raw)) } else { Tag::MAX };
            self.share = (self.share + share_of(weight, raw)).min(cap);
        }
        if let Some(rate) = self.policy.limit.iops {
            self.tat = self.tat.max(now) + requests_at(rate, raw + delta * ONE);
        }
        if let Some(rate) = self.policy.limit.bytes {
            self.tat_bytes = self.tat_bytes.max(now) + bytes_at(rate, moved_bytes(request) * (1 + delta));
        }
    }

    /// A change holds for what is queued too: what was charged ahead stays charged as the same service.
    fn set(&mut self, policy: Policy, now: Tag, v: Tag) {
        let milli = |rate: Option<Iops>| rate.map(|rate| Tag::from(rate.milli()));
        let bytes = |rate: Option<ByteRate>| rate.map(|rate| Tag::from(rate.bytes_per_second()));
        let weight = |weight: Option<Weight>| weight.map(|weight| Tag::from(weight.hundredths()));
        let old = self.policy;
        rescale(&mut self.due, now, milli(old.reservation.iops), milli(policy.reservation.iops));
        rescale(&mut self.due_bytes, now, bytes(old.reservation.bytes), bytes(policy.reservation.bytes));
        rescale(&mut self.tat, now, milli(old.limit.iops), milli(policy.limit.iops));
        rescale(&mut self.tat_bytes, now, bytes(old.limit.bytes), bytes(policy.limit.bytes));
        rescale(&mut self.share, v, weight(old.weight), weight(policy.weight));
        self.policy = policy;
    }
}

fn rescale(tag: &mut Tag, base: Tag, old: Option<Tag>, new: Option<Tag>) {
    if old != new {
        let ahead = (*tag - base).max(0);
        *tag = base + old.zip(new).map_or(0, |(old, new)| ahead * old / new);
    }
}

#[derive(Debug, Clone)]
struct Vm {
    level: Level,
    volumes: Vec<(VolumeId, Level)>,
    v: Tag,
}

#[derive(Debug, Clone, Copy)]
struct Batch {
    owner: OwnerId,
    volume: VolumeId,
    reserved: bool,
    left: u32,
    end: u64,
}

/// The oracle.
#[derive(Debug)]
struct Oracle {
    facts: Facts,
    batch_max: u32,
    distance: u64,
    catchup: Tag,
    vms: Vec<(OwnerId, Vm)>,
    queue: Vec<Request>,
    in_flight: u64,
    v: Tag,
    told: bool,
    batch: Option<Batch>,
}

fn tag(now: Instant) -> Tag {
    Tag::from(now.as_nanos()) * 16
}

impl Oracle {
    fn new(facts: Facts, batch_max: u32, catchup_millis: u64) -> Self {
        Oracle {
            facts,
            batch_max,
            distance: 4 << 20,
            catchup: Tag::from(catchup_millis) * 16_000_000,
            vms: Vec::new(),
            queue: Vec::new(),
            in_flight: 0,
            v: 0,
            told: false,
            batch: None,
        }
    }

    fn vm(&mut self, owner: OwnerId) -> &mut Vm {
        &mut self.vms.iter_mut().find(|(id, _)| *id == owner).expect("a known VM").1
    }

    /// The oldest request of a volume, or of a VM.
    fn head(&self, owner: OwnerId, volume: Option<VolumeId>) -> Option<Request> {
        let mine = |r: &&Request| r.owner == owner && volume.is_none_or(|volume| r.volume == volume);
        self.queue.iter().find(mine).copied()
    }

    /// Notes who is held by a limit now, and releases who is not any more: all VMs, or the one that something happens to.
    fn settle(&mut self, now: Tag, one: Option<OwnerId>) {
        let (facts, queue, outer_v) = (self.facts, self.queue.clone(), self.v);
        for (owner, vm) in self.vms.iter_mut().filter(|(owner, _)| one.is_none_or(|one| one == *owner)) {
            let mut earliest = None::<Tag>;
            for (id, level) in &mut vm.volumes {
                let backlogged = queue.iter().any(|r| r.owner == *owner && r.volume == *id);
                if !backlogged {
                    level.held_until = None;
                    continue;
                }
                let passes = level.passes(&facts);
                level.settle(now, Some(passes).filter(|passes| *passes > now), vm.v);
                let may_go = level.may_go(&facts);
                earliest = Some(earliest.map_or(may_go, |earliest| earliest.min(may_go)));
            }
            let Some(earliest) = earliest else {
                vm.level.held_until = None;
                continue;
            };
            let passes = earliest.max(vm.level.passes(&facts));
            let weightless_due = vm.level.due().filter(|_| vm.level.policy.weight.is_none());
            let until = passes.max(weightless_due.unwrap_or(passes));
            vm.level.settle(now, Some(until).filter(|_| passes > now), outer_v);
        }
    }

    /// The VMs with requests that no limit holds, with the arrival number of their oldest request.
    fn in_line(&self) -> Vec<(OwnerId, &Vm, RequestId)> {
        let heads = self.vms.iter().filter_map(|(owner, vm)| Some((*owner, vm, self.head(*owner, None)?.id)));
        heads.filter(|(_, vm, _)| vm.level.held_until.is_none()).collect()
    }

    fn choose(&mut self, now: Tag) -> Option<(OwnerId, VolumeId, bool)> {
        let due = |(owner, vm, head): &(OwnerId, &Vm, RequestId)| Some((vm.level.due()?, *head, *owner));
        let most_overdue = self.in_line().iter().filter_map(due).min();
        if let Some((due, _, _)) = most_overdue {
            // 8.4: the cap on the catch-up shifts all R tags by one common offset.
            let excess = (now - due - self.catchup).max(0);
            for (_, vm) in &mut self.vms {
                vm.level.due += excess;
                vm.level.due_bytes += excess;
            }
        }
        if let Some((due, _, owner)) = self.in_line().iter().filter_map(due).min()
            && due <= now
        {
            return Some((owner, self.choose_volume(owner, true, now), true));
        }
        let weighted = |(_, vm, _): &&(OwnerId, &Vm, RequestId)| vm.level.policy.weight.is_some();
        let line = self.in_line();
        let (_, _, owner) = line.iter().filter(weighted).map(|(o, vm, head)| (vm.level.share, *head, *o)).min()?;
        Some((owner, self.choose_volume(owner, false, now), false))
    }

    /// 8.8: in the constraint phase the most overdue volume, else the one with the smallest virtual-time tag.
    fn choose_volume(&self, owner: OwnerId, reserved: bool, now: Tag) -> VolumeId {
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("chosen").1;
        let heads = vm.volumes.iter().filter_map(|(id, level)| Some((*id, level, self.head(owner, Some(*id))?.id)));
        let eligible: Vec<_> = heads.filter(|(_, level, _)| level.may_go(&self.facts) <= now).collect();
        let due = eligible.iter().filter_map(|(id, level, head)| Some((level.due()?, *head, *id)));
        let overdue = due.filter(|(due, _, _)| *due <= now).min();
        let weighted = eligible.iter().filter(|(_, level, _)| level.policy.weight.is_some());
        let by_share = weighted.map(|(id, level, head)| (level.share, *head, *id)).min();
        let chosen = if reserved { overdue.or(by_share) } else { by_share.or(overdue) };
        chosen.expect("a VM in line has a volume that may go").2
    }

    fn follow_batch(&mut self, now: Tag) -> Option<(OwnerId, VolumeId, bool)> {
        let batch = self.batch.take()?;
        let head = self.head(batch.owner, Some(batch.volume))?;
        let facts = self.facts;
        let vm = self.vm(batch.owner);
        let level = &vm.volumes.iter().find(|(id, _)| *id == batch.volume)?.1;
        let passes = vm.level.passes(&facts) <= now && level.may_go(&facts) <= now;
        if batch.left == 0 || !passes || head.offset.abs_diff(batch.end) > self.distance {
            return None;
        }
        self.batch = Some(batch);
        Some((batch.owner, batch.volume, batch.reserved))
    }

    fn take(&mut self, now: Tag, owner: OwnerId, volume: VolumeId, reserved: bool) -> Request {
        let request = self.head(owner, Some(volume)).expect("chosen");
        // Where clients tell of other servers a debt is counted from the first in line, if that is beyond virtual time.
        let shares = self.in_line().into_iter().filter(|(_, vm, _)| vm.level.policy.weight.is_some());
        let first = shares.map(|(_, vm, _)| vm.level.share).min().filter(|_| self.told && reserved);
        let line = first.unwrap_or(self.v);
        self.queue.retain(|queued| queued.id != request.id);
        let next = self.head(owner, Some(volume));
        let mut v = self.v;
        let vm = self.vm(owner);
        if !reserved {
            v = v.max(vm.level.share);
        }
        vm.level.charge(now, &request, reserved, v.max(line));
        let mut inner_v = vm.v;
        let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("chosen").1;
        let inner_reserved = level.policy.weight.is_none() || reserved && level.due().is_some_and(|due| due <= now);
        if !inner_reserved {
            inner_v = inner_v.max(level.share);
        }
        level.charge(now, &request, inner_reserved, inner_v);
        // 8.4: tagged when it becomes the head.
        if let Some(next) = next {
            level.count_elsewhere(now, &next);
            vm.level.count_elsewhere(now, &next);
        }
        vm.v = inner_v;
        self.v = v;
        let left = self.batch.map_or(self.batch_max, |batch| batch.left) - 1;
        self.batch = Some(Batch { owner, volume, reserved, left, end: request.end() });
        let phase = if reserved { Phase::Reservation } else { Phase::Weight };
        Request { phase, ..request }
    }

    fn wake(&self, now: Tag) -> Instant {
        let backlogged = self.vms.iter().filter(|(owner, _)| self.head(*owner, None).is_some());
        let next = backlogged.filter_map(|(_, vm)| vm.level.held_until.or(vm.level.due()));
        let next = next.min().expect("somebody waits");
        assert!(next > now);
        Instant::from_nanos(u64::try_from((next + 15) / 16).unwrap())
    }

    /// 8.4: virtual time is reset when the whole gate is idle, but where clients tell of other servers.
    fn reset_if_idle(&mut self) {
        if !self.told && self.queue.is_empty() && self.in_flight == 0 {
            self.v = 0;
            for (_, vm) in &mut self.vms {
                vm.level.share = LONG_AGO;
            }
        }
    }
}

impl Scheduler for Oracle {
    fn insert(&mut self, now: Instant, request: Request) {
        let now = tag(now);
        let vm_wakes = self.head(request.owner, None).is_none();
        let volume_wakes = self.head(request.owner, Some(request.volume)).is_none();
        self.queue.push(request);
        self.told |= request.delta > 0;
        let v = self.v;
        let vm = self.vm(request.owner);
        if volume_wakes {
            let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == request.volume).expect("a known volume").1;
            level.count_elsewhere(now, &request);
            level.activate(now, vm.v);
            vm.level.count_elsewhere(now, &request);
        }
        if vm_wakes {
            vm.level.activate(now, v);
        }
        if volume_wakes {
            self.settle(now, Some(request.owner));
        }
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        unreachable!("the gate does not merge")
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.queue.is_empty() {
            self.batch = None;
            return Decision::Idle;
        }
        let now = tag(now);
        self.settle(now, None);
        let Some((owner, volume, reserved)) = self.follow_batch(now).or_else(|| self.choose(now)) else {
            return Decision::WaitUntil(self.wake(now));
        };
        let request = self.take(now, owner, volume, reserved);
        self.settle(now, Some(owner));
        self.in_flight += 1;
        Decision::Dispatch(request)
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        self.reset_if_idle();
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let (now, v) = (tag(now), self.v);
        let mut settles = None;
        match change {
            Change::AddOwner { owner, policy } => {
                self.vms.push((owner, Vm { level: Level::new(policy, now, v), volumes: Vec::new(), v: 0 }));
            }
            Change::SetOwner { owner, policy } => {
                self.vm(owner).level.set(policy, now, v);
                settles = Some(owner);
            }
            Change::AddVolume { owner, volume, policy } => {
                let vm = self.vm(owner);
                vm.volumes.push((volume, Level::new(policy, now, vm.v)));
                self.batch = None;
            }
            Change::SetVolume { owner, volume, policy } => {
                let vm = self.vm(owner);
                let v = vm.v;
                let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("a known volume").1;
                level.set(policy, now, v);
                settles = Some(owner);
            }
            Change::RemoveOwner { owner } => {
                self.batch = None;
                self.vms.retain(|(id, _)| *id != owner);
            }
            Change::RemoveVolume { owner, volume } => {
                self.batch = None;
                self.vm(owner).volumes.retain(|(id, _)| *id != volume);
            }
            Change::Depth(depth) => {
                self.facts.depth = depth;
                self.settle(now, None);
            }
        }
        if settles.is_some() {
            self.settle(now, settles);
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.batch = None;
        removed.extend(self.queue.iter().filter(|request| scope.contains(request)));
        self.queue.retain(|request| !scope.contains(request));
        self.settle(tag(now), Some(scope.owner()));
        self.reset_if_idle();
    }

    fn inspect(&self, _now: Instant) -> State {
        State { queued: self.queue.len() as u64, in_flight: self.in_flight, ..State::default() }
    }
}

/// Both at once.
struct Pair {
    fast: Box<dyn Scheduler>,
    oracle: Oracle,
    decisions: u64,
    /// Wake-ups in a row that were earlier than need be.
    early: u32,
}

impl Pair {
    /// Whether the fast one only wakes too early: the common shift of the reservations may have moved a due request on
    /// after its VM was told when to wake. It may not do so again and again.
    fn wakes_early(&mut self, fast: Decision, due: Decision) -> bool {
        let early = matches!((fast, due), (Decision::WaitUntil(fast), Decision::WaitUntil(due)) if fast < due);
        self.early = if early { self.early + 1 } else { 0 };
        early && self.early <= 3
    }
}

impl Scheduler for Pair {
    fn insert(&mut self, now: Instant, request: Request) {
        self.fast.insert(now, request);
        self.oracle.insert(now, request);
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, volume: VolumeId, remote: &RemoteService) {
        self.fast.add_remote_service(now, owner, volume, remote);
        self.oracle.add_remote_service(now, owner, volume, remote);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.fast.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        let fast = self.fast.dispatch(now);
        let due = self.oracle.dispatch(now);
        let comparable = match fast {
            Decision::Dispatch(request) => Decision::Dispatch(Request { wait: Wait::None, ..request }),
            other => other,
        };
        if !self.wakes_early(fast, due) {
            assert_eq!(comparable, due, "decision {} at {now:?}: the fast one, then the oracle", self.decisions);
        }
        self.decisions += 1;
        fast
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.fast.complete(now, completion);
        self.oracle.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.oracle.configure(now, change)?;
        self.fast.configure(now, change)
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let mut expected = Vec::new();
        self.oracle.cancel(now, scope, &mut expected);
        self.fast.cancel(now, scope, removed);
        let mut got = removed.clone();
        got.sort_by_key(|request| request.id);
        assert_eq!(got, expected);
    }

    fn inspect(&self, now: Instant) -> State {
        self.fast.inspect(now)
    }
}

fn pair(plan: &Plan, catchup_millis: u64) -> Box<dyn Scheduler> {
    let subject = product()
        .with("batch", Value::Integer(i64::from(plan.batch)))
        .text("reservation_catchup_max", &format!("{catchup_millis}ms"));
    let oracle = Oracle::new(plan.facts(), plan.batch, catchup_millis);
    Box::new(Pair { fast: subject.build(&plan.facts()), oracle, decisions: 0, early: 0 })
}

// rule: mclock.charge-after, mclock.byte-reservation, mclock.product-counts, mclock.eligible
// rule: mclock.volume-constraint, mclock.volume-weight
#[test]
fn the_fast_scheduler_decides_as_the_rules_say() {
    for_plans(96, plan(false), |plan| {
        let world = plan.run(pair(plan, 100), Instant::ZERO, |_| ());
        assert!(!world.log.is_empty());
    });
}

#[test]
fn and_while_vms_come_and_go() {
    for_plans(64, plan(true), |plan| drop(plan.run(pair(plan, 1000), millis(7), |_| ())));
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn a_scheduler_that_differs_is_noticed() {
    // A control: with another bound on the catch-up the two must part somewhere.
    for_plans_as_found(96, plan(false), |plan| {
        let subject =
            product().text("reservation_catchup_max", "1ms").with("batch", Value::Integer(i64::from(plan.batch)));
        let oracle = Oracle::new(plan.facts(), plan.batch, 1000);
        let pair = Pair { fast: subject.build(&plan.facts()), oracle, decisions: 0, early: 0 };
        drop(plan.run(Box::new(pair), Instant::ZERO, |_| ()));
    });
}
