//! The tags of one VM, or of one volume inside it: its reservation, its limit and its share.
//!
//! Two currencies: a reservation or a limit may be stated in requests, in bytes, or in both. Each reservation is a
//! separate minimum, and one dispatch serves both. Each limit is a separate maximum, and a request must pass both.

use core::time::Duration;

use crate::cost::{Cost, reserved_bytes};
use crate::policy::{Limit, Policy, Reservation, TimedBurst};
use crate::request::Request;
use crate::scheduler::{DeviceClass, DeviceInfo};
use crate::standing::{Balance, Standing};
use crate::tag::{ShareTag, Spacing, Tag};
use crate::units::{ByteRate, Iops};

use super::bucket::Bucket;
use super::meter::Meter;
use super::remote::Remote;

/// Cap on the share debt of reservation service: the number of such requests by which the share tag may exceed virtual
/// time, for each server that the VM uses.
const SHARE_DEBT_MAX: u64 = 16;

/// Default burst of a limit on a network interface, as time at its rate. A thread on a busy host wakes up to a millisecond late.
const FRAMES_BURST: Duration = Duration::from_millis(2);

/// Minimum of the default burst of a limit on a disk, as time at its rate. Service times vary, and a VM whose limit is little above its
/// share loses a part of the share whenever the limit has saved too little to make up for a slow time.
const REQUESTS_BURST: Duration = Duration::from_millis(100);

/// Amounts of one dispatch, or of service at other servers, in each currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount {
    /// In raw cost units.
    pub(super) cost: u64,
    /// Bytes that count against a limit.
    pub(super) bytes: u64,
    /// Bytes that count for a reservation: at least what the device transfers in the time of the request. Otherwise a
    /// reservation in bytes would be absolute priority for requests without payload.
    pub(super) reserved_bytes: u64,
}

impl Amount {
    /// Amounts of a request.
    // rule: mclock.byte-reservation
    #[must_use]
    pub(super) fn of(request: &Request, info: &DeviceInfo) -> Self {
        let bytes = info.cost.bytes(request.kind, request.length, request.cost);
        Amount::new(u64::from(request.cost.raw()), bytes, info)
    }

    /// Amounts of a request of cost 1.
    pub(super) fn of_reference(info: &DeviceInfo) -> Self {
        Amount::new(1 << Cost::SHIFT, info.cost.reference_size().0, info)
    }

    /// Amounts of service of this cost and size.
    #[must_use]
    pub(super) fn new(cost: u64, bytes: u64, info: &DeviceInfo) -> Self {
        Amount { cost, bytes, reserved_bytes: reserved_bytes(cost, bytes, info.request_bytes) }
    }
}

/// Due times of a reservation.
///
/// DEVIATION \[mclock\] 3: a reservation in bytes, and both currencies together. The earlier tag says when the next
/// request is due. A dispatch charges both. The later tag is at most one step ahead of the present, so it is up to date
/// when the requests change and it becomes the earlier one. No mix of requests takes more of the device than the larger
/// of the two rates, which is what admission control counts: each dispatch advances the earlier tag by at least the
/// smaller of its two steps.
///
/// Nothing is owed beyond the limit, whose steps are summed next to those of the reservation. Example: 200 IOPS are
/// reserved, and the limit is 1 MiB/s. For requests of 64 KiB the limit's steps are 62.5 ms and those of the
/// reservation 5 ms, so at most 16 requests per second are owed. If each request of 8 KiB (7.8 ms) is followed by one
/// of 512 B (0.5 ms), the limit passes 240 requests per second, and the reservation holds in full.
#[derive(Debug, Clone)]
#[repr(C)]
pub(super) struct Minimum {
    /// [`NEVER_DUE`] without a reservation in requests.
    requests: Meter,
    /// `None` without a reservation in bytes, as most policies are: it costs nothing then.
    bytes: Option<Box<Meter>>,
    /// Amount by which the limit's steps exceed those of the reservation and which the tags do not include yet;
    /// negative if they are smaller.
    beyond_limit: i64,
}

/// Tag of a currency without a reservation: after all others, wherever tags advance.
const NEVER_DUE: Tag = Tag::MAX;

impl Default for Minimum {
    fn default() -> Self {
        Minimum { requests: Meter::at(Spacing::NONE, NEVER_DUE), bytes: None, beyond_limit: 0 }
    }
}

/// Maximum credit for steps of the limit that were smaller than the reservation's, in such steps.
const LIMIT_SAVED_MAX: i64 = 16;

impl Minimum {
    fn rescale(&mut self, reservation: &Reservation, now: Tag) {
        let before = (self.requests.spacing(), self.bytes.as_ref().map(|bytes| bytes.spacing()));
        self.rescale_tags(reservation, now);
        // Otherwise a VM whose policy changes often would be owed what its limit holds.
        if before != (self.requests.spacing(), self.bytes.as_ref().map(|bytes| bytes.spacing())) {
            self.beyond_limit = 0;
        }
    }

    fn rescale_tags(&mut self, reservation: &Reservation, now: Tag) {
        self.requests.rescale(Spacing::per_cost(reservation.iops), now);
        if reservation.iops.is_none() {
            self.requests.set(NEVER_DUE);
        }
        match Spacing::per_byte(reservation.bytes) {
            Spacing::NONE => self.bytes = None,
            spacing => self.bytes.get_or_insert_default().rescale(spacing, now),
        }
    }

    #[inline]
    fn earlier(&self) -> Tag {
        let requests = self.requests.raw_tag();
        self.bytes.as_ref().map_or(requests, |bytes| requests.min(bytes.raw_tag()))
    }

    /// Whether there is a reservation.
    #[must_use]
    #[inline]
    pub(super) const fn is_set(&self) -> bool {
        self.requests.is_set() || self.bytes.is_some()
    }

    /// When the next request is due.
    #[must_use]
    // rule: mclock.byte-reservation
    pub(super) fn due(&self) -> Option<Tag> {
        // A tag may have reached the tag of a currency without a reservation.
        self.is_set().then(|| self.earlier())
    }

    /// Charges a dispatch for the reservation. `limit_step` is the distance that the limit keeps between such requests;
    /// 0 without a limit.
    fn charge(&mut self, now: Tag, amount: &Amount, limit_step: Tag) {
        self.forget_beyond_limit(now);
        let before = self.earlier();
        let present = now.max(before);
        self.requests.charge_ahead_of(present, amount.cost);
        if let Some(bytes) = &mut self.bytes {
            bytes.charge_ahead_of(present, amount.reserved_bytes);
        }
        if limit_step > 0 {
            let step = (self.earlier() - before).cast_signed();
            let sum = self.beyond_limit.saturating_add(limit_step.cast_signed()).saturating_sub(step);
            self.beyond_limit = sum.max(step.saturating_mul(-LIMIT_SAVED_MAX));
        }
    }

    /// Advances the tags by what the limit did not let pass, at most to `now`; the rest has no meaning after that.
    fn forget_beyond_limit(&mut self, now: Tag) {
        if let Ok(beyond @ 1..) = u64::try_from(self.beyond_limit) {
            self.beyond_limit = 0;
            self.move_on(beyond.min(now.saturating_sub(self.earlier())), now);
        }
    }

    /// Advances the tags by all that the limit does not let pass, even if it lies in the future.
    fn include_beyond_limit(&mut self) {
        let beyond = u64::try_from(self.beyond_limit).unwrap_or(0);
        self.beyond_limit = 0;
        self.move_on(beyond, Tag::MAX);
    }

    /// Forgives what was owed before `now`.
    pub(super) fn raise_to(&mut self, now: Tag) {
        self.requests.raise_to(now);
        self.bytes.iter_mut().for_each(|bytes| bytes.raise_to(now));
    }

    /// Forgives what was owed before `now`, but for what other servers may have started: their reports would count it again.
    fn forgive_but(&mut self, started: &Amount, now: Tag) {
        self.requests.raise_to(now.saturating_sub(self.requests.step(started.cost)));
        self.bytes.iter_mut().for_each(|bytes| bytes.raise_to(now.saturating_sub(bytes.step(started.reserved_bytes))));
    }

    /// Forgives the time `by` during which the limit throttled the member although it could have been served.
    fn move_on(&mut self, by: Tag, now: Tag) {
        self.requests.move_on(by, now);
        self.bytes.iter_mut().for_each(|bytes| bytes.move_on(by, now));
    }

    /// Returns the service that the reservation owes at `now`. It is negative if requests were served in advance.
    fn owed(&self, now: Tag) -> Balance {
        let bytes = self.bytes.as_ref().and_then(|bytes| bytes.amount_until(now));
        Balance { cost: self.requests.amount_until(now), bytes }
    }

    fn resume(&mut self, now: Tag, owed: &Balance) {
        self.requests.set_before(now, owed.cost);
        self.bytes.iter_mut().for_each(|bytes| bytes.set_before(now, owed.bytes));
    }

    /// Counts service at other servers beyond their reservation: it makes up for missing service here, and is no debt.
    fn make_up(&mut self, beyond: &Amount, now: Tag) {
        self.requests.move_on(self.requests.step(beyond.cost), now);
        self.bytes.iter_mut().for_each(|bytes| bytes.move_on(bytes.step(beyond.reserved_bytes), now));
    }
}

/// When the limit lets requests pass.
///
/// DEVIATION \[mclock\] 3, "Tag Assignment": there is no limit tag. Published limit tags may be far in the past after a
/// stall of the device, and a VM then runs above its limit until it has caught up. A virtual-scheduling check (GCRA) at
/// dispatch, in both phases, keeps `limit * T + burst + one request` in every window. The tags are theoretical arrival
/// times.
#[derive(Debug, Clone, Default)]
#[repr(C)]
pub(super) struct Limiter {
    requests: Bucket,
    /// `None` without a limit in bytes, as most policies are: it costs nothing then.
    bytes: Option<Box<Bucket>>,
}

/// Distances that a limiter keeps between requests of some amount, in each currency; 0 without a limit.
#[derive(Debug, Clone, Copy)]
struct LimitSteps {
    requests: Tag,
    bytes: Tag,
}

/// Amounts that each limiter of a policy passes back to back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// In raw cost units.
    cost: u64,
    bytes: u64,
    /// Time at the rate of the limit that passes back to back if that is more.
    time: Duration,
    /// Number of servers that the client of the VM uses.
    servers: u64,
}

impl Room {
    /// A stated burst of n passes n requests back to back: the one that may always pass, and n -
    /// 1 more. The default is that one and as many of the largest pieces as the device's queue depth, or 100 ms at the rate of
    /// the limit if that is more; a smaller burst would cost a VM throughput whenever the device frees several slots
    /// together or is slow for a moment.
    ///
    /// A client of several servers has a part of the burst at each, since the servers learn of each other only by its
    /// reports. What the limit passes in a quarter of a second is divided in the same way, and the larger of both
    /// counts: for a high limit, a small part of the burst would cost share although the limit does not bind. Example:
    /// 4 servers, a burst of 33 and a limit of 1000 IOPS. 1000/4 = 250 are more than 32, so each server passes 1 +
    /// min(32, 250/4) = 33 requests back to back.
    ///
    /// On a network interface the default is one frame and 2 ms at the rate of the limit, however large the interface's
    /// buffers are: a longer burst delays the frames of other VMs, and a shorter one costs rate whenever the
    /// thread wakes up late. Example: 100 Mbit/s pass one frame and 25 kB, that is 17 full frames, back to back.
    // rule: mclock.burst-default, mclock.remote-burst
    pub(super) fn of(policy: &Policy, info: &DeviceInfo, servers: u32) -> Self {
        let depth = u64::from(info.depth.max(1));
        let (cost, bytes, time) = match (policy.burst, info.device_class) {
            (Some(burst), _) => {
                let beside = u64::from(burst.saturating_sub(1));
                (beside << Cost::SHIFT, beside.saturating_mul(info.cost.reference_size().0), Duration::ZERO)
            }
            (None, DeviceClass::Network) => (0, 0, FRAMES_BURST),
            (None, DeviceClass::Disk) => {
                let bytes = depth.saturating_mul(info.piece_max.0);
                (depth * u64::from(info.piece_cost().raw()), bytes, REQUESTS_BURST)
            }
        };
        Room { cost, bytes, time, servers: u64::from(servers.max(1)) }
    }

    /// The part of a burst at one server, and what the limit has `saved`. That is not divided: the reports of the other servers count
    /// what was used of it there.
    fn part(&self, burst: u64, saved: u64, rate: u64) -> u64 {
        let in_time = u128::from(rate).saturating_mul(self.time.as_micros()) / 1_000_000;
        let burst = burst.max(u64::try_from(in_time).unwrap_or(u64::MAX));
        burst.min(burst.max(rate / 4) / self.servers).saturating_add(saved)
    }
}

fn cost_rate(rate: Option<Iops>) -> u64 {
    rate.map_or(0, |rate| rate.milli().saturating_mul(1 << Cost::SHIFT) / 1000)
}

fn byte_rate(rate: Option<ByteRate>) -> u64 {
    rate.map_or(0, ByteRate::bytes_per_second)
}

impl Limiter {
    /// Sets limit and burst. With `burst` the limiter also saves what it did not pass, up to the amount by which the rate of
    /// the burst exceeds the limit in its time.
    // rule: mclock.timed-burst
    pub(super) fn set(&mut self, limit: &Limit, burst: Option<&TimedBurst>, room: &Room, now: Tag) {
        let saved = |rate: u64, of: fn(&Limit) -> u64| {
            let Some(TimedBurst { rate: above, length }) = burst else { return 0 };
            let by = u128::from(of(above).saturating_sub(rate)).saturating_mul(length.as_micros());
            u64::try_from(by / 1_000_000).unwrap_or(u64::MAX)
        };
        let rate = cost_rate(limit.iops);
        let cost = room.part(room.cost, saved(rate, |limit| cost_rate(limit.iops)), rate);
        self.requests.set(Spacing::per_cost(limit.iops), cost, now);
        let rate = byte_rate(limit.bytes);
        let bytes = room.part(room.bytes, saved(rate, |limit| byte_rate(limit.bytes)), rate);
        match Spacing::per_byte(limit.bytes) {
            Spacing::NONE => self.bytes = None,
            spacing => self.bytes.get_or_insert_default().set(spacing, bytes, now),
        }
    }

    /// Sets them as `policy` has them.
    pub(super) fn set_policy(&mut self, policy: &Policy, info: &DeviceInfo, servers: u32, now: Tag) {
        self.set(&policy.limit, policy.timed_burst.as_ref(), &Room::of(policy, info, servers), now);
    }

    /// Whether there is a limit.
    #[inline]
    pub(super) const fn is_set(&self) -> bool {
        self.requests.is_set() || self.bytes.is_some()
    }

    /// When the next request may pass; 0 without a limit.
    // rule: mclock.gcra, mclock.byte-limit
    #[inline]
    pub(super) fn eligible_at(&self) -> Tag {
        let requests = self.requests.eligible_at();
        self.bytes.as_ref().map_or(requests, |bytes| requests.max(bytes.eligible_at()))
    }

    /// Whether it binds: a request of the amount `one` leaves less than half of what passes back to back. Of a limit that does not bind, time
    /// leaves more.
    pub(super) fn binds(&self, one: &Amount, now: Tag) -> bool {
        self.requests.is_low(one.cost, now) || self.bytes.as_ref().is_some_and(|bytes| bytes.is_low(one.bytes, now))
    }

    #[inline]
    fn steps(&self, amount: &Amount) -> LimitSteps {
        let bytes = self.bytes.as_ref().map_or(0, |bytes| bytes.step(amount.bytes));
        LimitSteps { requests: self.requests.step(amount.cost), bytes }
    }

    /// Distance that the limit keeps between requests of this amount; 0 without a limit.
    #[inline]
    pub(super) fn step(&self, amount: &Amount) -> Tag {
        self.steps(amount).longer()
    }

    #[inline]
    pub(super) fn charge(&mut self, now: Tag, amount: &Amount) {
        self.charge_steps(now, self.steps(amount));
    }

    /// The same, with the distances of [`Limiter::steps`].
    #[inline]
    fn charge_steps(&mut self, now: Tag, steps: LimitSteps) {
        self.requests.charge_step(now, steps.requests);
        self.bytes.iter_mut().for_each(|bytes| bytes.charge_step(now, steps.bytes));
    }

    /// Returns the content of both buckets at `now`.
    pub(super) fn left(&self, now: Tag) -> Balance {
        Balance { cost: self.requests.left(now), bytes: self.bytes.as_ref().and_then(|bytes| bytes.left(now)) }
    }

    pub(super) fn resume(&mut self, now: Tag, left: &Balance) {
        self.requests.resume(now, left.cost);
        self.bytes.iter_mut().for_each(|bytes| bytes.resume(now, left.bytes));
    }

    /// Counts service at other servers, which lies in the past.
    pub(super) fn charge_past(&mut self, amount: &Amount) {
        self.requests.charge_past(amount.cost);
        self.bytes.iter_mut().for_each(|bytes| bytes.charge_past(amount.bytes));
    }
}

impl LimitSteps {
    #[inline]
    fn longer(self) -> Tag {
        self.requests.max(self.bytes)
    }
}

/// Phase in which a request is dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServicePhase {
    /// For its reservation.
    Reservation,
    /// By its weight.
    Weight,
}

/// All tags of one member. What a dispatch needs comes first.
#[derive(Debug, Clone, Default)]
#[repr(C)]
pub(super) struct Tags {
    /// The reservation.
    pub(super) minimum: Minimum,
    /// The limit.
    pub(super) limiter: Limiter,
    share: Meter,
    idle_credit: u64,
}

/// The clocks of a level.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    pub(super) now: Tag,
    /// Now, on the clock of the reservations.
    pub(super) due_now: Tag,
    /// The earliest tag of a reservation that is caught up in full.
    pub(super) due_least: Tag,
    /// Share tag of the member that was last chosen by weight.
    pub(super) virtual_time: ShareTag,
    /// Base of the debt of the member that is being served, if the cap on it may bind.
    pub(super) debt_base: Option<ShareTag>,
}

impl Tags {
    /// Size of what a dispatch needs, in bytes.
    pub(super) const HOT_SIZE: usize = core::mem::offset_of!(Tags, idle_credit);

    /// New tags under `policy`: reservation and limit start now, the share as that of a member that was idle.
    #[must_use]
    pub(super) fn new(policy: &Policy, info: &DeviceInfo, clocks: &Clocks) -> Self {
        let mut tags = Tags::default();
        tags.set_policy(policy, info, clocks, None);
        tags.restart_share(clocks, None);
        tags
    }

    /// Sets the policy, also for queued requests.
    pub(super) fn set_policy(&mut self, policy: &Policy, info: &DeviceInfo, clocks: &Clocks, remote: Option<&Remote>) {
        self.minimum.rescale(&policy.reservation, clocks.due_now);
        self.limiter.set_policy(policy, info, remote.map_or(1, |remote| remote.servers), clocks.now);
        let before = self.share.raw_tag();
        self.share.rescale(Spacing::of_weight(policy.effective_weight()), clocks.virtual_time);
        // A debt may be many requests of a large weight. The same number at a small weight would exclude the VM for a
        // long time.
        self.share.lower_to(before.max(clocks.virtual_time));
        self.idle_credit = self.share.step(u64::from(policy.idle_credit) << Cost::SHIFT);
    }

    /// Whether it gets a share of the spare capacity.
    #[must_use]
    pub(super) const fn is_weighted(&self) -> bool {
        self.share.is_set()
    }

    /// Share tag: the smallest one is served first.
    #[must_use]
    pub(super) const fn share_tag(&self) -> ShareTag {
        self.share.raw_tag()
    }

    /// Share tag after another request of `cost`.
    #[must_use]
    pub(super) const fn share_tag_after(&self, cost: u64) -> ShareTag {
        self.share.raw_tag().saturating_add(self.share.step(cost))
    }

    /// Activates a member that has requests after it had none. It is owed nothing for the time between, and its share
    /// starts at the floor.
    ///
    /// \[mclock\] eq. (3) and 3.1, "Burst Handling". DEVIATION: P tags use virtual time instead of real time, otherwise
    /// weights lose effect as soon as one of them, as a number, exceeds its VM's IOPS. The reservation is raised here
    /// only and not at every arrival, otherwise an over-committed device divides equally instead of in proportion.
    // rule: mclock.over-commitment, mclock.virtual-time, mclock.remote-started
    pub(super) fn activate(&mut self, clocks: &Clocks, remote: Option<&Remote>) {
        match remote {
            None => self.minimum.raise_to(clocks.due_now),
            Some(remote) => self.minimum.forgive_but(&remote.started(), clocks.due_now),
        }
        self.share.raise_to(self.share_floor(clocks, remote));
    }

    /// Resets the share to the floor after virtual time was reset.
    pub(super) fn restart_share(&mut self, clocks: &Clocks, remote: Option<&Remote>) {
        self.share.set(self.share_floor(clocks, remote));
    }

    /// The furthest that a share may lie behind virtual time: the idle credit, plus the service at other servers since
    /// it was last served here, since other VMs may have got as much here during that time. Service before the client last
    /// had no request outstanding does not count: a VM is owed nothing for the time in which it requested nothing. Example:
    /// with an idle credit of 8 requests at weight 100 the floor is 8 x 25,200,000 = 201,600,000 units before virtual time.
    // rule: mclock.share-floor
    fn share_floor(&self, clocks: &Clocks, remote: Option<&Remote>) -> ShareTag {
        let elsewhere = remote.map_or(0, |remote| self.share.step(remote.since_served));
        clocks.virtual_time.saturating_sub(self.idle_credit).saturating_sub(elsewhere)
    }

    /// Ends throttling, during which virtual time advanced by `virtual_by`; for the time `held` limits of the member itself were
    /// the cause. The member has saved nothing during that time. Its lag from before was caused by others, and stays.
    // rule: mclock.released-floor
    pub(super) fn release(&mut self, held: Tag, virtual_by: ShareTag, released: &Clocks) {
        self.minimum.move_on(held, released.due_now);
        self.minimum.forget_beyond_limit(released.due_now);
        self.share.move_on(virtual_by, released.virtual_time);
    }

    /// Returns the standing of the member, without limits by direction. The caller has forgiven the time during which a limit
    /// throttles it.
    pub(super) fn standing(&self, clocks: &Clocks) -> Standing {
        let mut minimum = self.minimum.clone();
        minimum.include_beyond_limit();
        let mut standing = Standing { owed: minimum.owed(clocks.due_now), ..Standing::default() };
        standing.limits[0].limit = self.limiter.left(clocks.now);
        standing.ahead = self.share.amount_until(clocks.virtual_time).map(i64::saturating_neg);
        standing
    }

    /// Sets the tags to the standing under another scheduler, without limits by direction.
    pub(super) fn resume(&mut self, clocks: &Clocks, standing: &Standing) {
        self.minimum.resume(clocks.due_now, &standing.owed);
        self.limiter.resume(clocks.now, &standing.limits[0].limit);
        self.share.set_before(clocks.virtual_time, standing.ahead.map(i64::saturating_neg));
    }

    /// Counts service at other servers that the client reports.
    ///
    /// \[mclock\] 3.2: R by rho/r, P by delta/w. DEVIATION: rho and delta count other servers only, and the request's
    /// own cost is added, so a single server spaces requests as without dmClock. All of this service lies in the past:
    /// it advances the tags before the next request, and the limit is not counted from the present.
    // rule: mclock.product-counts
    /// `inner_step`: as in [`Tags::charge`].
    pub(super) fn add_remote(&mut self, clocks: &Clocks, remote: &Remote, (reserved, beyond): (&Amount, &Amount)) {
        self.minimum.charge(clocks.due_now, reserved, self.limiter.step(reserved));
        // Service beyond its reservation at other servers makes up for missing service here, and is no debt. Otherwise
        // a VM that has long had its minimum at other servers would take capacity here from a VM that only this server
        // can serve.
        self.minimum.make_up(beyond, clocks.due_now);
        self.limiter.charge_past(reserved);
        self.limiter.charge_past(beyond);
        self.charge_share_up_to_cap(reserved.cost, remote.piece.cost, clocks, Some(remote));
        self.share.charge(beyond.cost);
    }

    /// Charges a dispatch. `inner_step`: distance that limits of its direction, and those of the volumes of a VM, keep between such
    /// requests; 0 without.
    #[inline(always)]
    pub(super) fn charge(
        &mut self,
        phase: ServicePhase,
        amount: &Amount,
        clocks: &Clocks,
        remote: Option<&Remote>,
        inner_step: Tag,
    ) {
        let steps = self.limiter.steps(amount);
        match phase {
            ServicePhase::Weight => self.share.charge(amount.cost),
            ServicePhase::Reservation => {
                // [mclock] Alg. 1: R tags advance by reservation service only. Weight service leaves them, which equals
                // the published "decrease R of what is outstanding by 1/r" for start tags.
                self.minimum.charge(clocks.due_now, amount, steps.longer().max(inner_step));
                self.charge_share_up_to_cap(amount.cost, amount.cost, clocks, remote);
            }
        }
        self.limiter.charge_steps(clocks.now, steps);
    }

    /// Whether the cap on the share debt may bind for `cost` of service in `phase`, in requests of cost `each`. It does
    /// not if the tag is far below it, even if measured from `virtual_time` and for one server.
    #[inline]
    pub(super) fn is_capped(&self, phase: ServicePhase, (cost, each): (u64, u64), virtual_time: ShareTag) -> bool {
        if phase == ServicePhase::Weight {
            return false;
        }
        let debt = self.share.step(each).saturating_mul(SHARE_DEBT_MAX);
        let tag = self.share.raw_tag().saturating_add(self.share.step(cost));
        tag > virtual_time.saturating_add(debt)
    }

    /// Charges the share for service that was not given by weight, at most up to `SHARE_DEBT_MAX` requests of cost
    /// `each` after the base. Otherwise a VM that was served by its reservation for a minute would be excluded from
    /// shares for as long. Each server that it uses has its own part of this debt. Example: at weight 100 a VM was
    /// served 60,000 requests of cost 1 for its reservation. Its tag is at most 16 x 25,200,000 units after the base.
    // rule: mclock.debt-cap
    fn charge_share_up_to_cap(&mut self, cost: u64, each: u64, clocks: &Clocks, remote: Option<&Remote>) {
        let Some(base) = clocks.debt_base else { return self.share.charge(cost) };
        let servers = remote.map_or(1, |remote| u64::from(remote.servers.max(1)));
        let step = self.share.step(cost);
        let debt = if cost == each { step } else { self.share.step(each) }.saturating_mul(SHARE_DEBT_MAX * servers);
        self.share.move_on(step, base.saturating_add(debt));
    }

    /// Lowers the share tag by `by`, when virtual time is rebased before an overflow.
    pub(super) fn rebase(&mut self, by: ShareTag) {
        self.share.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Iops;

    #[test]
    fn a_reservation_with_a_saturated_tag_counted_as_none() {
        let mut minimum = Minimum::default();
        assert_eq!(minimum.due(), None);
        minimum.rescale(&Reservation { iops: Some(Iops::from_milli(1)), bytes: None }, 0);
        let amount = Amount { cost: u64::from(u32::MAX), bytes: 0, reserved_bytes: 0 };
        (0..100_000).for_each(|_| minimum.charge(0, &amount, 0));
        assert_eq!(minimum.due(), Some(Tag::MAX));
    }
}
