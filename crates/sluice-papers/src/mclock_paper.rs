//! mClock as published, formula by formula, with its failures.
//!
//! Idea: that of [`mclock`], without our fixes.
//!
//! Rules: a request gets its tags when it reaches the head of its VM's queue, with its arrival as "current time". These are
//! the tags that it would get at arrival if parameters do not change and requests have the same cost
//! (`tests/oracle_mclock_paper.rs` compares both), and a change of parameters also affects queued requests. If costs
//! differ, or if a client reports no reservation service at other servers, the correction after a dispatch by weight
//! could move tags given at arrival before that dispatch; tags given at the head cannot. There is one level: the
//! volumes of a VM share its queue. VMs are scanned linearly, since this scheduler is for the reproduction.
//!
//! Parameters: see [`Params`].
//!
//! Example: reservation 250 IOPS, limit 1000 IOPS and weight 100, requests of cost 1 that all arrive at 0 s. R tags are
//! 4 ms apart, L tags 1 ms, and P tags 10 ms (1/100 s).
//!
//! Deviations: tags are given at the head of the queue, see above.
//!
//! Source: \[mclock\] A. Gulati, A. Merchant, P. Varman: mClock: Handling Throughput Variability for Hypervisor IO
//! Scheduling, OSDI 2010.

use std::collections::VecDeque;

use serde::Deserialize;
use sluice_sched::cost::Cost;
use sluice_sched::policy::Policy;
use sluice_sched::request::{Completion, Flags, OwnerId, Phase, Request, RequestId, Wait};
use sluice_sched::scheduler::{
    Change, ChangeError, Decision, Descriptor, DeviceInfo, OwnerState, Scheduler, Scope, State,
};
use sluice_sched::standing::{Balance, Standing};
use sluice_sched::tag::{Spacing, TAGS_PER_NANO};
use sluice_sched::time::Instant;
use sluice_sched::tracker::{CLIENT_IDLE, Form};
use sluice_sched::units::{ByteRate, Bytes, Iops};

use sluice_sched::guarantees::{Guarantees, Order, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter};
use sluice_sched::policy::Field;
use sluice_sched::schedulers::mclock;

/// The parameters in `[device.NAME.mclock-paper]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Maximum number of requests of one VM in a locality batch; 0 is 8 on a rotational device and 1 on others.
    /// \[mclock\] 3.1.
    pub batch: u32,
    /// Maximum distance between consecutive requests of a batch, in bytes. \[mclock\] 3.1: 4 MB.
    pub batch_distance: Bytes,
    /// Whether a VM that becomes active starts at the others' share tags. \[mclock\] 3, "Tag Adjustment".
    pub tag_adjustment: bool,
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "mclock-paper",
    summary: "mClock as published, with its known failures (OSDI 2010)",
    idea: "The formulas of the paper: every VM has a reservation tag, a limit tag and a share tag, given to the request at the \
           head of its queue. While a reservation tag is in the past, the smallest one is served. Otherwise, of the VMs whose \
           limit tag is in the past, the one with the smallest share tag is served.",
    when: "To reproduce the paper. mclock keeps what the published formulas break: limits after a stall, and weights at every \
           scale.",
    source: mclock::DESCRIPTOR.source,
    enforces: &[
        (Field::Reservation, "the reservation tag: due requests go first"),
        (Field::Limit, "the limit tag, in requests and in bytes; both must allow the request"),
        (Field::Weight, "the share tag: the spare capacity is divided in proportion"),
        (Field::IdleCredit, "how far the share tag may lag behind after the VM was idle, at most 256 requests"),
        (Field::Class, "background: the smallest weight, 0.01; the reservation applies unchanged"),
    ],
    remote: |_| Some(Form::Paper),
    // A limit is exceeded after a stall.
    guarantees: |_, _| Guarantees { order: Order::Volume, waits: Waits::Tags { inside: false }, ..Guarantees::BASE },
    parameters: &[
        mclock::BATCH,
        mclock::BATCH_DISTANCE,
        Parameter {
            name: "tag_adjustment",
            kind: "true or false",
            range: params::Range::Flag,
            default: "true",
            help: "Whether the tags of a VM that becomes active start level with the smallest tags of the others. \
                   Without it, VMs whose tags are ahead of real time starve while the new VM is served",
        },
    ],
    build,
    ..Descriptor::BASE
};

fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    Ok(Box::new(Paper::new(info, &params::read(DESCRIPTOR.parameters, table)?)))
}

/// In units of 1/16 ns on the caller's clock; signed, since offsets may be negative.
type Tag = i128;

const ONE: u64 = Cost::ONE.raw() as u64;

#[derive(Debug, Clone, Copy)]
struct Tags {
    reservation: Option<Tag>,
    limit: Option<Tag>,
    share: Option<Tag>,
}

#[derive(Debug)]
struct Owner {
    policy: Policy,
    queue: VecDeque<Request>,
    in_flight: u32,
    /// Tags of the head.
    tags: Option<Tags>,
    /// Tags of the request before the head.
    previous: Tags,
    offset: Tag,
    /// Time of the last request from its dmClock client.
    last_report: Option<Instant>,
}

#[derive(Debug)]
pub struct Paper {
    batch_max: u32,
    batch_distance: u64,
    tag_adjustment: bool,
    owners: Vec<Option<Owner>>,
    queued: u64,
    in_flight: u64,
    batch: Option<Batch>,
}

/// A locality batch in progress: \[mclock\] 3.1, "Request Location".
#[derive(Debug, Clone, Copy)]
struct Batch {
    owner: usize,
    phase: Phase,
    left: u32,
    end: u64,
}

fn tag(now: Instant) -> Tag {
    Tag::from(now.as_nanos()) * Tag::from(TAGS_PER_NANO)
}

fn instant(tag: Tag) -> Instant {
    let nanos = tag.div_euclid(Tag::from(TAGS_PER_NANO)) + Tag::from(tag.rem_euclid(16) != 0);
    Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// 1/w of a second: the published P tag treats a weight as a rate.
fn share_step(policy: &Policy, amount: u64) -> Option<Tag> {
    let weight = policy.effective_weight()?;
    let per_second = Tag::from(TAGS_PER_NANO) * 100_000_000_000;
    Some(per_second * Tag::from(amount) / Tag::from(ONE) / Tag::from(weight.hundredths()))
}

/// The rates of a reservation or of a limit.
type Rates = (Option<Iops>, Option<ByteRate>);

/// Their spacings, in requests and in bytes.
fn spacings((iops, bytes): Rates) -> [Spacing; 2] {
    [Spacing::per_cost(iops), Spacing::per_byte(bytes)]
}

/// `prev + service / rate`; if requests and bytes both have a rate, the slower one counts.
fn step(requests: Spacing, bytes: Spacing, amount: u64, length: u64) -> Option<Tag> {
    let by_requests = (!requests.is_none()).then(|| Tag::from(requests.of(amount)));
    let by_bytes = (!bytes.is_none()).then(|| Tag::from(bytes.of(length)));
    by_requests.max(by_bytes)
}

impl Owner {
    fn reservation_step(&self, amount: u64, length: u64) -> Option<Tag> {
        let reservation = &self.policy.reservation;
        step(Spacing::per_cost(reservation.iops), Spacing::per_byte(reservation.bytes), amount, length)
    }

    fn limit_step(&self, amount: u64, length: u64) -> Option<Tag> {
        let limit = &self.policy.limit;
        step(Spacing::per_cost(limit.iops), Spacing::per_byte(limit.bytes), amount, length)
    }

    /// \[mclock\] eq. (3), 3.1 "Burst Handling" and 3.2: the tags of the head.
    // rule: mclock.delayed-tagging, mclock.paper-counts
    fn tag_head(&mut self) {
        self.tags = self.queue.front().map(|head| {
            let (rho, delta) = served(head);
            let cost = u64::from(head.cost.raw());
            let length = u64::from(head.length);
            let arrival = tag(head.arrival);
            let credit = share_step(&self.policy, u64::from(self.policy.idle_credit) * ONE);
            let after = |previous: Option<Tag>, step: Tag, floor: Tag| {
                previous.map_or(floor, |previous| (previous + step).max(floor))
            };
            Tags {
                // rule: mclock.tag-reservation
                reservation: self
                    .reservation_step(rho * cost, rho * length)
                    .map(|step| after(self.previous.reservation, step, arrival)),
                // rule: mclock.tag-limit, mclock.paper-limit-catch-up
                limit: self
                    .limit_step(delta * cost, delta * length)
                    .map(|step| after(self.previous.limit, step, arrival)),
                // rule: mclock.tag-share, mclock.scale-matters
                share: share_step(&self.policy, delta * cost)
                    .zip(credit)
                    .map(|(step, credit)| after(self.previous.share, step, arrival - credit)),
            }
        });
    }

    /// Service from the previous tag of a reservation or a limit until `now`; negative if the tag is later. One tag stands for both
    /// currencies.
    fn balance(now: Tag, previous: Option<Tag>, rates: Rates) -> Balance {
        let Some(previous) = previous else { return Balance::UNKNOWN };
        let distance = |from: Tag, to: Tag| u64::try_from((to - from).max(0)).unwrap_or(u64::MAX);
        let (behind, ahead) = (distance(previous, now), distance(now, previous));
        let amount = |spacing: Spacing| (!spacing.is_none()).then(|| spacing.amount_between(ahead, behind));
        let [cost, bytes] = spacings(rates).map(amount);
        Balance { cost, bytes }
    }

    /// The previous tag of a reservation or a limit with this balance: the later one of both currencies.
    fn previous(now: Tag, balance: &Balance, rates: Rates) -> Option<Tag> {
        let tag = |spacing: Spacing, amount: Option<i64>| {
            let amount = amount.filter(|_| !spacing.is_none())?;
            let distance = Tag::from(spacing.of(amount.unsigned_abs()));
            Some(if amount > 0 { now - distance } else { now + distance })
        };
        let [requests, bytes] = spacings(rates);
        tag(requests, balance.cost).max(tag(bytes, balance.bytes))
    }

    // rule: mclock.activation-in-flight
    fn effective_share(&self) -> Option<Tag> {
        let tags = self.tags.or((self.in_flight > 0).then_some(self.previous))?;
        Some(tags.share? + self.offset)
    }
}

/// rho and delta; without a dmClock client both are 1. \[mclock\] 3.2: "for the single server case".
// rule: mclock.first-request
fn served(request: &Request) -> (u64, u64) {
    if request.flags.contains(Flags::TRACKED) { (u64::from(request.rho), u64::from(request.delta)) } else { (1, 1) }
}

impl Paper {
    /// Makes a scheduler for a device.
    #[must_use]
    pub fn new(info: &DeviceInfo, params: &Params) -> Self {
        Paper {
            batch_max: mclock::batch_on(params.batch, info),
            batch_distance: params.batch_distance.0,
            tag_adjustment: params.tag_adjustment,
            owners: Vec::new(),
            queued: 0,
            in_flight: 0,
            batch: None,
        }
    }

    fn owner_mut(&mut self, owner: OwnerId) -> &mut Owner {
        self.owners[owner.index()].as_mut().expect("the gate adds an owner before it uses it")
    }

    /// Heads with their tags, by owner number; ties are broken by arrival later.
    fn heads(&self) -> impl Iterator<Item = (usize, &Owner, Tags, RequestId)> {
        self.owners.iter().enumerate().filter_map(|(index, owner)| {
            let owner = owner.as_ref()?;
            Some((index, owner, owner.tags?, owner.queue.front()?.id))
        })
    }

    /// \[mclock\] 3, "Tag Adjustment": a VM that becomes active competes with the smallest P tag instead of real time.
    // rule: mclock.activation
    fn activate(&mut self, now: Instant, owner: usize) {
        let smallest = self
            .owners
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != owner)
            .filter_map(|(_, other)| other.as_ref()?.effective_share())
            .min();
        let owner = self.owners[owner].as_mut().expect("it has just got a request");
        owner.offset = smallest.map_or(0, |smallest| smallest - tag(now));
    }

    /// \[mclock\] Alg. 1, "ScheduleRequest".
    fn choose(&self, now: Tag) -> Option<(usize, Phase)> {
        // rule: mclock.constraint-phase, mclock.paper-over-commitment
        let due = self
            .heads()
            .filter_map(|(index, _, tags, id)| Some((tags.reservation?, id, index)))
            .filter(|(due, _, _)| *due <= now)
            .min();
        if let Some((_, _, owner)) = due {
            return Some((owner, Phase::Reservation));
        }
        // rule: mclock.weight-phase, mclock.limit-in-weight-phase, mclock.no-exceeding
        self.heads()
            .filter(|(_, _, tags, _)| tags.limit.is_none_or(|limit| limit <= now))
            .filter_map(|(index, owner, tags, id)| Some((tags.share? + owner.offset, id, index)))
            .min()
            .map(|(_, _, owner)| (owner, Phase::Weight))
    }

    // rule: mclock.batch, mclock.batch-limit
    fn continue_batch(&mut self, now: Tag) -> Option<(usize, Phase)> {
        let Batch { owner, phase, left, end } = self.batch?;
        let state = self.owners[owner].as_ref()?;
        let head = state.queue.front()?;
        let passes = state.tags?.limit.is_none_or(|limit| limit <= now);
        (left > 0 && passes && head.offset.abs_diff(end) <= self.batch_distance).then_some((owner, phase))
    }

    fn take(&mut self, owner: usize, phase: Phase) -> Request {
        let state = self.owners[owner].as_mut().expect("chosen from the heads");
        let mut request = state.queue.pop_front().expect("chosen from the heads");
        state.previous = state.tags.expect("a head has tags");
        let held = phase == Phase::Weight && state.previous.limit.is_some_and(|limit| limit > tag(request.arrival));
        request.wait = if held { Wait::OwnLimit } else { Wait::None };
        if phase == Phase::Weight {
            // rule: mclock.weight-service-reservation, mclock.share-advances-always
            let given = state.reservation_step(u64::from(request.cost.raw()), u64::from(request.length));
            let previous = &mut state.previous.reservation;
            *previous = previous.zip(given).map(|(tag, given)| tag - given);
        }
        state.in_flight += 1;
        state.tag_head();
        request.phase = phase;
        request
    }

    // rule: mclock.wait
    fn wake(&self, now: Tag) -> Instant {
        let ahead = |tag: Option<Tag>| tag.filter(|tag| *tag > now);
        let wakes = self.heads().flat_map(|(_, _, tags, _)| {
            let limit = tags.share.and(tags.limit);
            [ahead(tags.reservation), ahead(limit)].into_iter().flatten()
        });
        instant(wakes.min().expect("a head that may not be dispatched now has a tag in the future"))
    }
}

impl Scheduler for Paper {
    fn insert(&mut self, now: Instant, request: Request) {
        let owner = request.owner;
        self.queued += 1;
        let adjusts = self.tag_adjustment;
        let state = self.owner_mut(owner);
        let wakes = state.queue.is_empty();
        // A client of several servers often has no requests at one of them for a moment. Its service at other servers
        // during that time, which its next request reports, would count twice if the VM were then ordered after the
        // smallest P tag here.
        // rule: mclock.forget
        let known = state.last_report.is_some_and(|last_report| now.since(last_report) < CLIENT_IDLE);
        let activates = wakes && state.in_flight == 0 && !known && adjusts;
        // More than 1 since its last request means that other servers served it too. With one server it is 1, as
        // without a client.
        if request.flags.contains(Flags::TRACKED) && (request.delta > 1 || state.last_report.is_some()) {
            state.last_report = Some(now);
        }
        state.queue.push_back(request);
        if activates {
            self.activate(now, owner.index());
        }
        if wakes {
            self.owner_mut(owner).tag_head();
        }
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        let state = self.owner_mut(grown.owner);
        // The queue is sorted by arrival.
        let Ok(place) = state.queue.binary_search_by_key(&grown.id, |queued| queued.id) else { return false };
        state.queue[place] = grown;
        state.tag_head();
        true
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.queued == 0 {
            self.batch = None;
            return Decision::Idle;
        }
        let tag = tag(now);
        let following = self.continue_batch(tag);
        let Some((owner, phase)) = following.or_else(|| self.choose(tag)) else {
            return Decision::WaitUntil(self.wake(tag));
        };
        let mut request = self.take(owner, phase);
        if following.is_some() && request.wait == Wait::None && now > request.arrival {
            request.wait = Wait::Batch;
        }
        let left = match (following, self.batch) {
            (Some(_), Some(batch)) => batch.left - 1,
            _ => self.batch_max - 1,
        };
        self.batch = Some(Batch { owner, phase, left, end: request.end() });
        self.queued -= 1;
        self.in_flight += 1;
        Decision::Dispatch(request)
    }

    // rule: mclock.complete
    fn complete(&mut self, _now: Instant, completion: &Completion) {
        self.in_flight -= 1;
        if let Some(owner) = &mut self.owners[completion.request.owner.index()] {
            owner.in_flight = owner.in_flight.saturating_sub(1);
        }
        if self.in_flight == 0 && self.queued == 0 {
            self.batch = None;
        }
    }

    fn configure(&mut self, _now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => {
                if owner.index() >= self.owners.len() {
                    self.owners.resize_with(owner.index() + 1, || None);
                }
                let previous = Tags { reservation: None, limit: None, share: None };
                let queue = VecDeque::new();
                self.owners[owner.index()] =
                    Some(Owner { policy, queue, in_flight: 0, tags: None, previous, offset: 0, last_report: None });
            }
            Change::SetOwner { owner, policy } => {
                let state = self.owner_mut(owner);
                state.policy = policy;
                state.tag_head();
            }
            Change::RemoveOwner { owner } => {
                self.batch = None;
                self.owners[owner.index()] = None;
            }
            Change::AddVolume { .. }
            | Change::SetVolume { .. }
            | Change::RemoveVolume { .. }
            | Change::Device { .. } => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.batch = None;
        let Some(state) = self.owners.get_mut(scope.owner().index()).and_then(Option::as_mut) else { return };
        let before = removed.len();
        removed.extend(state.queue.iter().filter(|request| scope.contains(request)));
        state.queue.retain(|request| !scope.contains(request));
        state.tag_head();
        self.queued -= (removed.len() - before) as u64;
    }

    fn inspect(&self, _now: Instant) -> State {
        let owners = self.owners.iter().enumerate().filter_map(|(index, owner)| {
            let owner = owner.as_ref()?;
            let nanos = |tag: Option<Tag>| tag.map(|tag| instant(tag).as_nanos());
            let state = OwnerState {
                queued: owner.queue.len() as u64,
                reservation_due_ns: nanos(owner.tags.and_then(|tags| tags.reservation)),
                limit_passes_ns: nanos(owner.tags.and_then(|tags| tags.limit)),
                share_tag: owner.effective_share().map(|tag| u64::try_from(tag).unwrap_or(0)),
            };
            Some((index as u32, state))
        });
        let owners = owners.collect();
        State { queued: self.queued, in_flight: self.in_flight, virtual_time: None, owners }
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        let mut standing = Standing::default();
        if let Scope::Owner(owner) = scope
            && let Some(Some(state)) = self.owners.get(owner.index())
        {
            let Policy { limit, reservation, .. } = &state.policy;
            let (now, previous) = (tag(now), &state.previous);
            standing.limits[0].limit = Owner::balance(now, previous.limit, (limit.iops, limit.bytes));
            let owed = Owner::balance(now, previous.reservation, (reservation.iops, reservation.bytes));
            standing.owed = if state.queue.is_empty() { owed.at_most_0() } else { owed };
        }
        standing
    }

    /// A limit has no burst here: at most the head may pass now.
    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        let Scope::Owner(owner) = scope else { return };
        let Some(Some(state)) = self.owners.get_mut(owner.index()) else { return };
        let now = tag(now);
        let Policy { limit, reservation, .. } = state.policy;
        let (cost, length) =
            state.queue.front().map_or((ONE, 0), |head| (u64::from(head.cost.raw()), head.length.into()));
        let earliest = now - state.limit_step(cost, length).unwrap_or(0);
        let previous = Owner::previous(now, &standing.limits[0].limit, (limit.iops, limit.bytes));
        state.previous.limit = previous.map(|previous| previous.max(earliest));
        state.previous.reservation = Owner::previous(now, &standing.owed, (reservation.iops, reservation.bytes));
        state.tag_head();
    }
}
