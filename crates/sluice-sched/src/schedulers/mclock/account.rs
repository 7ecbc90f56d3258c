//! The tags of one VM, or of one volume inside it, and how a dispatch moves them (product mode).
//!
//! All tags are start tags: they say when the *next* request is due, may pass, or stands in line. A request is charged
//! after its dispatch, so a small request before a large one does not pay for it, and one that is refused or cancelled
//! has moved nothing.
//!
//! Example: limit 100/s, burst 1, costs 1, 100, 1. They leave at 0, 0.010 and 1.010 s.

use crate::cost::Cost;
use crate::policy::Policy;
use crate::request::{Kind, Phase, Request};
use crate::scheduler::Facts;
use crate::tag::{ShareTag, Spacing, TAGS_PER_NANO, Tag};

/// How far a request served for its reservation may push the share tag beyond virtual time, in such requests.
const SHARE_DEBT_MAX: u64 = 16;

/// A client of several servers that had nothing here for less than this was not idle: one second.
const PAUSE: Tag = TAGS_PER_NANO * 1_000_000_000;

/// Tags and spacings of one level.
#[derive(Debug, Clone, Default)]
pub struct Account {
    reserve_requests: Spacing,
    reserve_bytes: Spacing,
    due_requests: Tag,
    due_bytes: Tag,

    limit_requests: Spacing,
    limit_bytes: Spacing,
    passes_requests: Tag,
    passes_bytes: Tag,
    burst_requests: u64,
    burst_bytes: u64,

    share: Spacing,
    idle_credit: u64,
    share_tag: ShareTag,
    /// When it was served here last.
    served: Option<Tag>,
    /// Its client tells what was served at other servers.
    told: bool,
}

impl Account {
    /// A new account under `policy`; its clocks start at `now`, its share as that of one that was idle.
    #[must_use]
    pub fn new(policy: &Policy, facts: &Facts, now: Tag, virtual_time: ShareTag) -> Self {
        let mut account = Account { due_requests: now, due_bytes: now, ..Account::default() };
        account.set_policy(policy, facts, now, now, virtual_time);
        account.share_tag = virtual_time.saturating_sub(account.idle_credit);
        account
    }

    /// Another policy. What was charged ahead of `now` stays charged as the same service at the new rate, so that a
    /// limit lowered or raised under a backlog acts at once. `due_now` is `now` on the clock of the reservation.
    pub fn set_policy(&mut self, policy: &Policy, facts: &Facts, now: Tag, due_now: Tag, virtual_time: ShareTag) {
        let rescale = |tag: Tag, base: Tag, old: Spacing, new: Spacing| {
            if old == new { tag } else { base.saturating_add(old.convert(tag.saturating_sub(base), new)) }
        };
        let reserve_requests = Spacing::per_cost(policy.reservation.iops);
        let reserve_bytes = Spacing::per_byte(policy.reservation.bytes);
        self.due_requests = rescale(self.due_requests, due_now, self.reserve_requests, reserve_requests);
        self.due_bytes = rescale(self.due_bytes, due_now, self.reserve_bytes, reserve_bytes);
        (self.reserve_requests, self.reserve_bytes) = (reserve_requests, reserve_bytes);

        let limit_requests = Spacing::per_cost(policy.limit.iops);
        let limit_bytes = Spacing::per_byte(policy.limit.bytes);
        self.passes_requests = rescale(self.passes_requests, now, self.limit_requests, limit_requests);
        self.passes_bytes = rescale(self.passes_bytes, now, self.limit_bytes, limit_bytes);
        (self.limit_requests, self.limit_bytes) = (limit_requests, limit_bytes);
        // A stated burst of n lets n requests through at once: n - 1 beside the one that may go anyway. By default the
        // whole depth comes on top, else a device of depth 1 that is busy when the instant comes would cost the VM rate.
        // rule: mclock.burst-default
        let beside = u64::from(policy.burst.map_or(facts.depth.max(1), |burst| burst.saturating_sub(1)));
        self.burst_requests = limit_requests.of(beside << Cost::SHIFT);
        self.burst_bytes = limit_bytes.of(beside.saturating_mul(facts.cost.reference_size().0.max(512)));

        let share = Spacing::of_weight(policy.effective_weight());
        self.share_tag = rescale(self.share_tag, virtual_time, self.share, share);
        self.share = share;
        self.idle_credit = share.of(u64::from(policy.idle_credit) << Cost::SHIFT);
    }

    /// Whether it has a reservation.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        !self.reserve_requests.is_none() || !self.reserve_bytes.is_none()
    }

    /// Whether it takes part in what is left over.
    #[must_use]
    pub const fn is_weighted(&self) -> bool {
        !self.share.is_none()
    }

    /// Whether it has a limit.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        !self.limit_requests.is_none() || !self.limit_bytes.is_none()
    }

    /// When the next request is due for its reservation; where requests and bytes are reserved the later counts.
    #[must_use]
    // rule: mclock.byte-reservation
    pub fn due(&self) -> Option<Tag> {
        let requests = (!self.reserve_requests.is_none()).then_some(self.due_requests);
        let bytes = (!self.reserve_bytes.is_none()).then_some(self.due_bytes);
        requests.max(bytes)
    }

    /// When the limit lets the next request pass; 0 without one.
    ///
    /// DEVIATION \[mclock\] 3, "Tag Assignment": no limit tag. Its tags may lie far in the past when the device stalled, and
    /// a VM then runs above its limit until it has caught up. A virtual-scheduling check (GCRA) at dispatch holds
    /// `limit * T + burst + one request` in every window.
    #[must_use]
    // rule: mclock.gcra, mclock.byte-limit
    pub fn passes(&self) -> Tag {
        let requests = self.passes_requests.saturating_sub(self.burst_requests);
        let bytes = self.passes_bytes.saturating_sub(self.burst_bytes);
        requests.max(bytes)
    }

    /// When the next request of a volume may go, as far as the volume is concerned: one without weight lives by its
    /// reservation alone.
    #[must_use]
    pub fn may_go(&self) -> Tag {
        match self.due() {
            Some(due) if !self.is_weighted() => self.passes().max(due),
            _ => self.passes(),
        }
    }

    /// Its place in line for what is left over.
    #[must_use]
    pub const fn share_tag(&self) -> ShareTag {
        self.share_tag
    }

    /// A request has come to the head of its queue that counts service at other servers.
    ///
    /// \[mclock\] 3.2: R by rho/r, P by delta/w. DEVIATION: rho and delta count other servers alone, the request's own
    /// cost is added, so that a single server gives the same spacing as no dmClock at all.
    // rule: mclock.product-counts
    pub fn count_elsewhere(&mut self, due_now: Tag, request: &Request) {
        if request.rho == 0 && request.delta == 0 {
            return;
        }
        let rho = u64::from(request.rho);
        self.due_requests = self.due_requests.saturating_add(self.reserve_requests.of(rho << Cost::SHIFT));
        self.due_bytes = self.due_bytes.saturating_add(self.reserve_bytes.of(rho.saturating_mul(payload(request))));
        let delta = u64::from(request.delta);
        self.told = true;
        // What it got elsewhere beyond its reservation makes up for what it did not get here, and is no debt: otherwise a VM that has
        // long had its minimum elsewhere would take here from one that can be served nowhere else.
        // rule: mclock.product-counts
        let beyond = delta.saturating_sub(rho);
        let caught_up = |due: Tag, step: Tag| due.max(due.saturating_add(step).min(due_now));
        self.due_requests = caught_up(self.due_requests, self.reserve_requests.of(beyond << Cost::SHIFT));
        self.due_bytes = caught_up(self.due_bytes, self.reserve_bytes.of(beyond.saturating_mul(payload(request))));
        self.share_tag = self.share_tag.saturating_add(self.share.of(delta << Cost::SHIFT));
    }

    /// It has requests again after it had none: nothing is saved up but the idle credit.
    ///
    /// \[mclock\] eq. (3) and 3.1, "Burst Handling". DEVIATION: virtual time stands for real time in P, else weights
    /// flatten as soon as one of them, as a number, exceeds its VM's IOPS; the reservation is floored here alone and not
    /// at every arrival, else an over-committed device divides equally instead of in proportion.
    // rule: mclock.over-commitment, mclock.virtual-time
    ///
    /// A client of several servers has often nothing at one of them for a moment, and goes on where it was.
    pub fn activate(&mut self, now: Tag, due_now: Tag, virtual_time: ShareTag) {
        self.floor_due(due_now);
        if self.told && self.served.is_some_and(|served| now.saturating_sub(served) < PAUSE) {
            return;
        }
        self.share_tag = self.share_tag.max(virtual_time.saturating_sub(self.idle_credit));
    }

    /// Its limit lets it pass again since `due_since`: it banked nothing meanwhile.
    // rule: mclock.released-floor
    pub fn release(&mut self, due_since: Tag, virtual_time: ShareTag) {
        self.floor_due(due_since);
        self.share_tag = self.share_tag.max(virtual_time);
    }

    fn floor_due(&mut self, floor: Tag) {
        self.due_requests = self.due_requests.max(floor);
        self.due_bytes = self.due_bytes.max(floor);
    }

    /// `request` has been dispatched in `phase`.
    // rule: mclock.charge-after
    pub fn charge(&mut self, now: Tag, request: &Request, phase: Phase, virtual_time: ShareTag) {
        let cost = u64::from(request.cost.raw());
        self.served = Some(now);
        let step = self.share.of(cost);
        let advanced = self.share_tag.saturating_add(step);
        if phase == Phase::Reservation {
            // [mclock] Alg. 1: R tags advance by reservation service alone; weight service leaves them, which is the
            // published "decrease R of what is outstanding by 1/r" for start tags.
            self.due_requests = self.due_requests.saturating_add(self.reserve_requests.of(cost));
            self.due_bytes = self.due_bytes.saturating_add(self.reserve_bytes.of(payload(request)));
            // Capped, else a VM served by its reservation for a minute would be out of the shares for as long.
            // rule: mclock.debt-cap
            let cap = virtual_time.saturating_add(step.saturating_mul(SHARE_DEBT_MAX));
            // At one of several servers the tag stands for what all of them gave, and jumps with what is told.
            self.share_tag = if self.told { advanced } else { advanced.min(cap.max(self.share_tag)) };
        } else {
            self.share_tag = advanced;
        }
        if !self.limit_requests.is_none() {
            let charged = cost + (u64::from(request.delta) << Cost::SHIFT);
            let from = self.passes_requests.max(now);
            self.passes_requests = from.saturating_add(self.limit_requests.of(charged));
        }
        if !self.limit_bytes.is_none() {
            let charged = payload(request).saturating_mul(1 + u64::from(request.delta));
            self.passes_bytes = self.passes_bytes.max(now).saturating_add(self.limit_bytes.of(charged));
        }
    }

    /// Every share tag of the gate moves down by `by`: virtual time is rebased before it could overflow.
    pub fn rebase(&mut self, by: ShareTag) {
        self.share_tag = self.share_tag.saturating_sub(by);
    }

    /// The gate was idle: virtual time starts anew.
    pub fn reset_share(&mut self) {
        self.share_tag = 0;
    }
}

/// The bytes that a request moves to or from the device.
fn payload(request: &Request) -> u64 {
    match request.kind {
        Kind::Read | Kind::Write => u64::from(request.length),
        Kind::Flush | Kind::Discard | Kind::WriteZeroes => 0,
    }
}
