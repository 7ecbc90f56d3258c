//! A wrapper of a scheduler: it forwards each call of the gate and checks each result against the contract.
//!
//! | id | guarantee |
//! |---|---|
//! | S1 | each dispatched or cancelled request was queued and is unchanged; the counts of `inspect` are right |
//! | S2 | not more requests in flight than slots |
//! | S3 | where guaranteed, the requests of a volume are dispatched in the order of arrival |
//! | S5 | a wait ends in the future, and a limit or a request in flight explains it |
//! | S6 | a wake-up leads to a dispatch or to a later wake-up, and is not later than the first eligible request |
//! | limits | in every window at most rate x time + burst + one request |

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_sched::gate::{GateSettings, RemoteService};
use sluice_sched::guarantees::{Guarantees, Limits, Order, Waits};
use sluice_sched::policy::Field;
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceInfo, OwnerState, Scheduler, Scope, State};
use sluice_sched::*;

use super::fairness::Fairness;
use super::meters::Meters;
use super::subject::Subject;

/// Maximum number of consecutive wake-ups without a dispatch.
const REPEATS_MAX: u32 = 3;

struct Volume {
    id: VolumeId,
    policy: Policy,
    meters: Meters,
    /// The limits of reads, and those of all other requests.
    directions: [Meters; 2],
    /// Whether it or its VM has had a limit of one direction, so that reads may overtake other requests and be overtaken.
    was_directed: bool,
    /// Its queued requests in the order of arrival.
    queue: VecDeque<RequestId>,
}

struct Member {
    owner: OwnerId,
    policy: Policy,
    meters: Meters,
    directions: [Meters; 2],
    /// Whether its client has reported service of other servers, which the meters do not count.
    is_remote: bool,
    /// Whether it had a policy with more than a weight, so that its share may be ahead or behind.
    was_clamped: bool,
    volumes: Vec<Volume>,
}

/// Index of the direction of a request.
fn direction(kind: Kind) -> usize {
    usize::from(kind != Kind::Read)
}

/// Whether reads or other requests have a limit of their own.
fn is_directed(policy: &Policy) -> bool {
    [policy.read_limit, policy.write_limit] != [Limit::default(); 2]
}

/// Whether any request has a limit.
fn is_limited(policy: &Policy) -> bool {
    policy.limit != Limit::default() || is_directed(policy)
}

/// The policies of VMs and of volumes.
pub type Policies = BTreeMap<(OwnerId, Option<VolumeId>), Policy>;

/// A wrapped scheduler.
pub struct Watched {
    inner: Box<dyn Scheduler>,
    name: String,
    /// The policies that the gate has reported.
    known: Arc<Mutex<Policies>>,
    guarantees: Guarantees,
    /// Whether limits of reads and of writes are enforced, for VMs and for volumes.
    is_directing: bool,
    fairness: Option<Fairness>,
    /// The longest latency target of any VM so far.
    latency_max: Duration,
    info: DeviceInfo,
    members: Vec<Member>,
    queued: BTreeMap<RequestId, Request>,
    flying: BTreeMap<RequestId, Request>,
    waiting_for: Option<Instant>,
    repeats: u32,
    now: Instant,
}

impl Member {
    fn is_queued(&self) -> bool {
        self.volumes.iter().any(|volume| !volume.queue.is_empty())
    }

    fn volume(&mut self, id: VolumeId) -> &mut Volume {
        self.volumes.iter_mut().find(|volume| volume.id == id).expect("S7: the gate adds a volume before it uses it")
    }
}

/// Returns the burst of a limiter, in raw cost units and in bytes: as stated, otherwise the depth times the largest
/// piece, or what the limit passes in 100 ms if that is more.
fn burst(limits: Limits, info: &DeviceInfo, policy: &Policy, limit: &Limit) -> (u64, u64) {
    match (limits, policy.burst) {
        (Limits::Windows { interval, tick }, _) => {
            let windows = if tick.is_zero() { 2 } else { 3 };
            let credit = policy.limit.bytes.map_or(1, |rate| credit_of_window(rate, interval));
            (0, u64::try_from(windows * credit).unwrap_or(u64::MAX))
        }
        (_, Some(burst)) => {
            let each = info.cost.reference_size().0;
            (u64::from(burst) << Cost::SHIFT, each.saturating_mul(u64::from(burst)))
        }
        (_, None) => {
            let (cost, depth) = (u64::from(info.piece_cost().raw()), u64::from(info.depth));
            let in_100_ms = limit.iops.map_or(0, |iops| (u128::from(iops.milli()) << Cost::SHIFT) / 10_000);
            let bytes_in_100_ms = limit.bytes.map_or(0, |rate| rate.bytes_per_second() / 10);
            let cost = (cost * depth).max(u64::try_from(in_100_ms).unwrap_or(u64::MAX));
            (cost, info.piece_max.0.max(512).saturating_mul(depth).max(bytes_in_100_ms))
        }
    }
}

/// Returns the bytes that a limit lets through in a window.
fn credit_of_window(rate: ByteRate, interval: Duration) -> u128 {
    (u128::from(rate.bytes_per_second()) * interval.as_nanos() / 1_000_000_000).max(1)
}

impl Watched {
    pub fn new(subject: &Subject, info: &DeviceInfo, settings: &GateSettings, known: Arc<Mutex<Policies>>) -> Self {
        let info = DeviceInfo { depth: settings.depth, ..*info };
        let guarantees = subject.guarantees(&info);
        let fairness = guarantees.shares.map(|shares| Fairness::new(shares.batch.into(), shares.by_request));
        Watched {
            inner: subject.build(&info),
            name: subject.to_string(),
            known,
            guarantees,
            is_directing: subject.descriptor.enforces_inside_with(Field::WriteLimit, &subject.params),
            fairness,
            latency_max: Duration::ZERO,
            info,
            members: Vec::new(),
            queued: BTreeMap::new(),
            flying: BTreeMap::new(),
            waiting_for: None,
            repeats: 0,
            now: Instant::ZERO,
        }
    }

    fn event(&mut self, now: Instant) {
        self.tick(now);
        self.waiting_for = None;
    }

    fn tick(&mut self, now: Instant) {
        assert!(now >= self.now, "time never decreases");
        self.now = now;
    }

    fn member(&mut self, owner: OwnerId) -> &mut Member {
        let found = self.members.iter_mut().find(|member| member.owner == owner);
        found.expect("S7: the gate adds an owner before it uses it")
    }

    /// Sets the limits of all policies. The default burst depends on the depth.
    fn set_meters(&mut self) {
        let Watched { members, guarantees: Guarantees { limits, .. }, info, now, is_directing, .. } = self;
        let direct = |meters: &mut [Meters; 2], policy: &Policy| {
            let limits_of = if *is_directing { [policy.read_limit, policy.write_limit] } else { [Limit::default(); 2] };
            for (meters, limit) in meters.iter_mut().zip(limits_of) {
                meters.set(now.as_nanos(), &limit, burst(*limits, info, policy, &limit));
            }
        };
        let set = |meters: &mut Meters, policy: &Policy, is_volume: bool| {
            let limit = match limits {
                Limits::Buckets => policy.limit,
                Limits::Windows { .. } if !is_volume => Limit { iops: None, ..policy.limit },
                _ => Limit::default(),
            };
            meters.set(now.as_nanos(), &limit, burst(*limits, info, policy, &limit));
        };
        for Member { policy, meters, directions, volumes, .. } in members {
            set(meters, policy, false);
            direct(directions, policy);
            for volume in volumes {
                set(&mut volume.meters, &volume.policy, true);
                direct(&mut volume.directions, &volume.policy);
                volume.was_directed |= *is_directing && (is_directed(policy) || is_directed(&volume.policy));
            }
        }
    }

    /// Checks S1, S3 and limits.
    fn check_dispatch(&mut self, request: Request) {
        let Watched { name, guarantees, .. } = self;
        let (name, guarantees) = (name.clone(), *guarantees);
        let queued = self.queued.remove(&request.id);
        let queued = queued.unwrap_or_else(|| panic!("S1: {name}: {request:?} was not queued, or leaves twice"));
        let as_it_came = Request { phase: queued.phase, wait: queued.wait, ..request };
        assert_eq!(as_it_came, queued, "S1: {name}: a request is dispatched as it came");
        let bytes = match guarantees.limits {
            Limits::Windows { .. } => u64::from(request.length),
            _ => self.info.cost.bytes(request.kind, request.length, request.cost),
        };
        let now = self.now.as_nanos();
        let way = direction(request.kind);
        let of_this_way: Vec<bool> = {
            let ids = self.member(request.owner).volume(request.volume).queue.clone();
            let is_of = |id: &RequestId| *id == request.id || direction(self.queued[id].kind) == way;
            ids.iter().map(is_of).collect()
        };
        let member = self.member(request.owner);
        let volume = member.volume(request.volume);
        let place = volume.queue.iter().position(|id| *id == request.id).expect("a queued request is in a queue");
        let is_first = place == 0 || volume.was_directed && !of_this_way[..place].contains(&true);
        let in_turn = is_first || !guarantees.order.keeps_volumes();
        assert!(in_turn, "S3: {name}: {request:?} overtakes {:?}", volume.queue[0]);
        volume.queue.remove(place);
        let inside = volume.meters.charge(now, request.cost, bytes);
        let inside = volume.directions[way].charge(now, request.cost, bytes).and(inside);
        let charged = member.meters.charge(now, request.cost, bytes).and(inside);
        let charged = member.directions[way].charge(now, request.cost, bytes).and(charged);
        if let Err(over) = charged {
            panic!("limits: {name}: {} are dispatched with {request:?} at {now}: {:?}", over, member.policy);
        }
        if guarantees.order == Order::All {
            let first = self.queued.first_key_value().filter(|(id, _)| **id < request.id);
            assert!(first.is_none(), "S3: {name}: {request:?} overtakes {first:?}");
        }
        self.check_shares(request);
        self.flying.insert(request.id, request);
        assert!(self.flying.len() <= self.info.depth as usize, "S2: {name}: more in flight than slots");
    }

    fn check_shares(&mut self, request: Request) {
        let Some(fairness) = &mut self.fairness else { return };
        if let Err(apart) = fairness.serve(request.owner, request.cost) {
            panic!("shares: {}: {apart} units of virtual time, with {request:?}", self.name);
        }
        if !self.member(request.owner).is_queued() {
            self.fairness.iter_mut().for_each(|fairness| fairness.stop(request.owner));
        }
    }

    /// Starts counting the shares of a VM, if it is served only by its weight.
    fn restart_shares(&mut self, owner: OwnerId) {
        let Some(shares) = self.guarantees.shares else { return };
        // SFQ(D) supports only weights.
        let has_limits = self.guarantees.limits != Limits::None;
        let member = self.members.iter_mut().find(|member| member.owner == owner).expect("a known owner");
        let unclamped = |policy: &Policy| !is_limited(policy) && policy.weight.is_some();
        let by_weight = !member.is_remote
            && unclamped(&member.policy)
            && !member.policy.is_reserved()
            && member.volumes.iter().all(|volume| unclamped(&volume.policy));
        member.was_clamped |= has_limits && !by_weight;
        let counts = member.is_queued() && !member.was_clamped;
        let queued = member.volumes.iter().flat_map(|volume| &volume.queue).map(|id| self.queued[id].cost);
        let Some(fairness) = &mut self.fairness else { return };
        if counts {
            fairness.start(owner, &member.policy, shares.with_credit);
            queued.for_each(|cost| fairness.note(owner, cost));
        } else {
            fairness.stop(owner);
        }
    }

    /// Checks S5 and S6.
    fn check_wait(&mut self, now: Instant, until: Instant) {
        assert!(until > now, "S5: {}: a wait lies in the future, {until:?} at {now:?}", self.name);
        self.repeats = if self.waiting_for == Some(now) { self.repeats + 1 } else { 0 };
        assert!(self.repeats <= REPEATS_MAX, "S6: {}: woken {} times for nothing", self.name, self.repeats);
        self.waiting_for = Some(until);
        match self.guarantees.waits {
            Waits::Never | Waits::InFlight(_) => panic!("S5: {} waits until {until:?} at {now:?}", self.name),
            Waits::Tags { .. } => self.check_tags(now, Some(until)),
            Waits::Windows { .. } => self.check_windows(now, until),
            Waits::Idling { most_with_background, .. } => self.check_length(now, until, most_with_background),
            Waits::Deadlines { target, idle, .. } => {
                let longest = self.latency_max.max(target).max(idle.unwrap_or_default());
                self.check_length(now, until, longest);
            }
            Waits::Other => {}
        }
    }

    fn check_length(&self, now: Instant, until: Instant, longest: Duration) {
        let wait = until.since(now);
        assert!(wait <= longest, "S5: {} waits for {wait:?} at {now:?}, at most {longest:?}", self.name);
    }

    /// Checks that each VM with requests waits for its byte limit, at most for the windows that pay for one request.
    fn check_windows(&self, now: Instant, until: Instant) {
        let Limits::Windows { interval, tick } = self.guarantees.limits else { return };
        let mut windows = 1;
        for Member { owner, policy, volumes, .. } in self.members.iter().filter(|member| member.is_queued()) {
            let Some(rate) = policy.limit.bytes else {
                panic!("S5: {} waits at {now:?} although {owner:?} has no limit", self.name)
            };
            let credit = credit_of_window(rate, interval);
            let ids = volumes.iter().flat_map(|volume| &volume.queue);
            let longest = ids.map(|id| u128::from(self.queued[id].length)).max().unwrap_or(0);
            windows = windows.max(longest / credit + 2);
        }
        let nanos = u64::try_from(windows * (interval + tick).as_nanos()).unwrap_or(u64::MAX);
        self.check_length(now, until, Duration::from_nanos(nanos));
    }

    fn check_completion_wait(&self, now: Instant) {
        let flying = self.flying.len() as u64;
        let name = &self.name;
        assert!(flying > 0, "S6: {name} waits for a completion that cannot come");
        let enough = |depth: u64| assert!(flying >= depth, "S5: {name} waits with {flying} of {depth} in flight");
        match self.guarantees.waits {
            Waits::Never | Waits::Windows { in_flight: None } => panic!("S5: {name} waits with {flying} in flight"),
            Waits::InFlight(0) => enough(self.info.depth.into()),
            Waits::InFlight(least) | Waits::Windows { in_flight: Some(least) } => enough(least.into()),
            Waits::Tags { .. } => self.check_tags(now, None),
            Waits::Other | Waits::Idling { .. } | Waits::Deadlines { .. } => {}
        }
    }

    /// Checks that each VM with requests waits for its limit, or for its reservation if it has no weight, and not
    /// longer.
    fn check_tags(&self, now: Instant, until: Option<Instant>) {
        let state = self.inner.inspect(now);
        for member in self.members.iter().filter(|member| member.is_queued()) {
            let shown = &state.owners[&member.owner.0];
            let may_go = self.may_go(member, shown);
            let Member { owner, policy, .. } = member;
            let name = &self.name;
            assert!(may_go > now.as_nanos(), "S5: {name} waits at {now:?}, {owner:?} may go: {shown:?}, {policy:?}");
            let late = until.filter(|until| until.as_nanos() > may_go);
            assert!(late.is_none(), "S6: {name} waits until {late:?} at {now:?}, {owner:?} may go at {may_go} ns");
        }
    }

    /// Returns the instant by which a VM with requests must be served, in nanoseconds, if it is known.
    fn may_go(&self, member: &Member, shown: &OwnerState) -> u64 {
        let Waits::Tags { inside } = self.guarantees.waits else { return u64::MAX };
        let shown_passes = shown.limit_passes_ns.unwrap_or(0);
        let due = shown.reservation_due_ns.unwrap_or(u64::MAX);
        if !inside {
            // In the published mClock the constraint phase ignores limits.
            return if member.policy.weight.is_some() { shown_passes.min(due) } else { due };
        }
        let volumes = member.volumes.iter().filter(|volume| !volume.queue.is_empty());
        let weighted = volumes.filter(|volume| volume.policy.weight.is_some());
        // A volume without weight waits for its reservation, which `inspect` does not show.
        let Some(volumes_pass) = weighted.map(|volume| volume.meters.passes()).min() else { return u64::MAX };
        let remote_limits = member.is_remote
            && (is_limited(&member.policy) || member.volumes.iter().any(|volume| is_limited(&volume.policy)));
        let own = if remote_limits { u64::MAX } else { member.meters.passes().max(volumes_pass) };
        let limits_inside = member.volumes.iter().any(|volume| is_limited(&volume.policy));
        let is_directed = member.volumes.iter().any(|volume| volume.was_directed);
        let own = if is_directed { self.directed(member) } else { own };
        let shown = if limits_inside || is_directed { u64::MAX } else { shown_passes };
        match member.policy.weight {
            Some(_) => own.min(shown),
            None if limits_inside => u64::MAX,
            None => due.max(shown),
        }
    }

    /// The same as `may_go` for a VM with limits of one direction, if it has one volume: those of a VM with several are divided among
    /// them.
    fn directed(&self, member: &Member) -> u64 {
        let [volume] = &member.volumes[..] else { return u64::MAX };
        if member.is_remote {
            return u64::MAX;
        }
        let ways = volume.queue.iter().map(|id| direction(self.queued[id].kind));
        let passes = ways.map(|way| member.directions[way].passes().max(volume.directions[way].passes()));
        let first = passes.min().unwrap_or(u64::MAX);
        first.max(member.meters.passes()).max(volume.meters.passes())
    }

    fn note_change(&mut self, change: &Change) {
        let changed = match *change {
            Change::AddOwner { owner, policy } => {
                assert!(self.members.iter().all(|member| member.owner != owner), "S7: the gate reuses a number");
                let (meters, directions, volumes) = (Meters::default(), Default::default(), Vec::new());
                let (is_remote, was_clamped) = (false, false);
                self.members.push(Member { owner, policy, meters, directions, is_remote, was_clamped, volumes });
                Some(owner)
            }
            Change::SetOwner { owner, policy } => {
                self.member(owner).policy = policy;
                Some(owner)
            }
            Change::RemoveOwner { owner } => {
                self.members.retain(|member| member.owner != owner);
                self.fairness.iter_mut().for_each(|fairness| fairness.stop(owner));
                None
            }
            Change::AddVolume { owner, volume, policy } => {
                let (meters, queue) = (Meters::default(), VecDeque::new());
                let (directions, was_directed) = (Default::default(), false);
                self.member(owner).volumes.push(Volume { id: volume, policy, meters, directions, was_directed, queue });
                Some(owner)
            }
            Change::SetVolume { owner, volume, policy } => {
                self.member(owner).volume(volume).policy = policy;
                Some(owner)
            }
            Change::RemoveVolume { owner, volume } => {
                self.member(owner).volumes.retain(|known| known.id != volume);
                Some(owner)
            }
            Change::Device { depth, request_bytes } => {
                (self.info.depth, self.info.request_bytes) = (depth, request_bytes);
                None
            }
        };
        let latency = change.policy().and_then(|policy| policy.latency);
        self.latency_max = self.latency_max.max(latency.map_or(Duration::ZERO, |latency| latency.p99));
        let policies = self.members.iter().flat_map(|member| {
            let volumes = member.volumes.iter().map(|volume| ((member.owner, Some(volume.id)), volume.policy));
            volumes.chain([((member.owner, None), member.policy)])
        });
        *self.known.lock().expect("there is one thread") = policies.collect();
        self.set_meters();
        changed.into_iter().for_each(|owner| self.restart_shares(owner));
    }
}

impl Scheduler for Watched {
    fn insert(&mut self, now: Instant, request: Request) {
        self.event(now);
        let last = self.queued.last_key_value().map(|(id, _)| *id);
        assert!(last < Some(request.id), "the gate numbers what arrives");
        self.queued.insert(request.id, request);
        let has_windows = matches!(self.guarantees.limits, Limits::Windows { .. });
        let member = self.member(request.owner);
        let wakes = !member.is_queued();
        // Requests of a replaced scheduler were counted there.
        member.is_remote |= request.flags.contains(Flags::TRACKED);
        member.volume(request.volume).queue.push_back(request.id);
        if has_windows {
            member.meters.save(u64::from(request.length));
        }
        self.fairness.iter_mut().for_each(|fairness| fairness.note(request.owner, request.cost));
        if wakes {
            self.restart_shares(request.owner);
        }
        self.inner.insert(now, request);
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        self.event(now);
        self.member(owner).is_remote = true;
        self.restart_shares(owner);
        self.inner.add_remote_service(now, owner, remote);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.event(now);
        let known = self.queued.get(&grown.id).copied();
        let grows = self.inner.grow(now, grown);
        if grows {
            let known = known.unwrap_or_else(|| panic!("S1: {}: {grown:?} grows, but is not queued", self.name));
            assert!(grown.length >= known.length && grown.offset <= known.offset, "a request grows: {grown:?}");
            self.queued.insert(grown.id, grown);
            if matches!(self.guarantees.limits, Limits::Windows { .. }) {
                self.member(grown.owner).meters.save(u64::from(grown.length));
            }
            self.fairness.iter_mut().for_each(|fairness| fairness.note(grown.owner, grown.cost));
        }
        grows
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.tick(now);
        let decision = self.inner.dispatch(now);
        if !matches!(decision, Decision::Dispatch(_) | Decision::Idle) {
            assert!(!self.queued.is_empty(), "S5: {} waits with nothing queued", self.name);
        }
        match decision {
            Decision::Dispatch(request) => {
                self.check_dispatch(request);
                self.waiting_for = None;
            }
            Decision::WaitUntil(until) => self.check_wait(now, until),
            Decision::WaitCompletion => self.check_completion_wait(now),
            Decision::Idle => assert!(self.queued.is_empty(), "S5: {} is idle with requests", self.name),
        }
        decision
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.event(now);
        let flying = self.flying.remove(&completion.request.id);
        assert!(flying.is_some(), "S1: the gate completes what is in flight, {completion:?}");
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
        let mut cancelled = Vec::new();
        self.inner.cancel(now, scope, &mut cancelled);
        let due = self.queued.values().filter(|request| scope.contains(request)).count();
        assert_eq!(cancelled.len(), due, "S1: {}: all of {scope:?} that waits is cancelled", self.name);
        let owner = scope.owner();
        for request in &cancelled {
            let queued = self.queued.remove(&request.id);
            assert!(queued.is_some_and(|queued| scope.contains(&queued)), "S1: {}: cancels {request:?}", self.name);
            let queue = &mut self.member(request.owner).volume(request.volume).queue;
            let place = queue.iter().position(|id| *id == request.id).expect("a queued request is in a queue");
            queue.remove(place);
            let in_turn = place == 0 || !self.guarantees.order.keeps_volumes();
            assert!(in_turn, "S1: {}: cancels in the order of arrival", self.name);
        }
        if self.members.iter().any(|member| member.owner == owner && !member.is_queued()) {
            self.fairness.iter_mut().for_each(|fairness| fairness.stop(owner));
        }
        removed.append(&mut cancelled);
    }

    fn inspect(&self, now: Instant) -> State {
        let state = self.inner.inspect(now);
        let name = &self.name;
        assert_eq!(state.queued, self.queued.len() as u64, "S1: {name}: what waits");
        assert_eq!(state.in_flight, self.flying.len() as u64, "S1: {name}: what is in flight");
        for (owner, shown) in &state.owners {
            let member = self.members.iter().find(|member| member.owner.0 == *owner);
            let queued: usize = member.map_or(0, |member| member.volumes.iter().map(|v| v.queue.len()).sum());
            assert_eq!(shown.queued, queued as u64, "S1: {name}: what waits of {owner}");
        }
        state
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        self.inner.standing(now, scope)
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        self.event(now);
        let owner = scope.owner();
        let member = self.member(owner);
        let (meters, directions) = match scope {
            Scope::Owner(_) => (&mut member.meters, &mut member.directions),
            Scope::Volume(_, volume) => {
                let volume = member.volume(volume);
                (&mut volume.meters, &mut volume.directions)
            }
        };
        let [all, by_direction @ ..] = &standing.limits;
        meters.resume(now.as_nanos(), &all.limit);
        for (meters, left) in directions.iter_mut().zip(by_direction) {
            meters.resume(now.as_nanos(), &left.limit);
        }
        if let (Scope::Owner(_), Some(ahead)) = (scope, standing.ahead) {
            self.fairness.iter_mut().for_each(|fairness| fairness.resume(owner, ahead.unsigned_abs()));
        }
        self.inner.resume(now, scope, standing);
    }
}
