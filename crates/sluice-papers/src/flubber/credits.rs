//! The high level of Flubber, Virtual Bandwidth Control: credits decide which requests pass to the low level.
//!
//! Every VM has credits in proportion to its required bandwidth, and each request takes one. A VM without credits waits
//! until all VMs get their full credits again. Unused credits do not accumulate. The interval between two
//! replenishments has no fixed length.
//!
//! Example: the required bandwidths are 1000 and 120 IOPS, and beta is 32. The proportion is 8:1 (1000/120 = 8.3,
//! rounded), so full credits are 256 and 32.
//!
//! A replenishment takes constant time for any number of VMs: credits belong to a round, and those of an older round
//! count as full. The requests that then leave the queues take constant time each.

use std::collections::VecDeque;

use sluice_sched::policy::{Class, Policy};
use sluice_sched::request::{OwnerId, Request};
use sluice_sched::request_arena::{Arena, Fifo};
use sluice_sched::units::Bytes;

/// Credits of one VM.
#[derive(Debug)]
struct Account {
    /// Required bandwidth in thousandths of normalised requests per second, if stated.
    required: Option<u64>,
    background: bool,
    credits: u64,
    /// The replenishment that `credits` belongs to.
    round: u64,
    waiting: Fifo,
}

/// Credits and queues of all VMs.
#[derive(Debug)]
pub(crate) struct Credits {
    beta: u64,
    when_used_up: bool,
    reference: Bytes,
    arena: Arena,
    accounts: Vec<Option<Account>>,
    /// VMs with queued requests and credits, in turn. Empty except directly after a replenishment.
    ready: VecDeque<u32>,
    /// VMs with queued requests but no credits; the one that has waited longest comes first.
    blocked: VecDeque<u32>,
    round: u64,
    /// Smallest required bandwidth, if any VM states one; unknown after its VM was removed.
    least: Option<Option<u64>>,
    /// VMs that are not background work, and how many of them have credits.
    vms: u64,
    holders: u64,
}

impl Credits {
    /// `when_used_up`: whether credits are replenished when no VM has any left.
    pub(crate) fn new(beta: u32, when_used_up: bool, reference: Bytes) -> Self {
        Credits {
            beta: u64::from(beta),
            when_used_up,
            reference,
            arena: Arena::new(),
            accounts: Vec::new(),
            ready: VecDeque::new(),
            blocked: VecDeque::new(),
            round: 0,
            least: Some(None),
            vms: 0,
            holders: 0,
        }
    }

    /// Adds a VM. The caller then replenishes.
    pub(crate) fn add(&mut self, owner: OwnerId, policy: &Policy) {
        if owner.index() >= self.accounts.len() {
            self.accounts.resize_with(owner.index() + 1, || None);
        }
        let waiting = Fifo::default();
        let account = Account { required: None, background: true, credits: 0, round: self.round, waiting };
        self.accounts[owner.index()] = Some(account);
        self.set(owner, policy);
    }

    /// Sets the policy of a VM. The caller then replenishes. If the VM became background work, its queued requests
    /// pass: see [`Credits::take_all`].
    pub(crate) fn set(&mut self, owner: OwnerId, policy: &Policy) {
        let background = policy.class == Class::Background;
        let required = self.required(policy).filter(|_| !background);
        let account = self.account_mut(owner);
        let old = std::mem::replace(&mut account.required, required);
        let was_background = std::mem::replace(&mut account.background, background);
        self.vms = self.vms + u64::from(was_background) - u64::from(background);
        self.forget_least(old);
        self.least = self.least.map(|least| least.into_iter().chain(required).min());
    }

    /// Removes a VM without queued requests. The caller then replenishes.
    pub(crate) fn remove(&mut self, owner: OwnerId) {
        let Some(account) = self.accounts[owner.index()].take() else { return };
        self.vms -= u64::from(!account.background);
        self.forget_least(account.required);
    }

    fn forget_least(&mut self, left: Option<u64>) {
        self.least = self.least.filter(|least| left.is_none() || left != *least);
    }

    /// In requests; bytes count as requests of the reference size. The larger of both.
    fn required(&self, policy: &Policy) -> Option<u64> {
        let reservation = &policy.reservation;
        let reference = self.reference.0.max(1);
        let bytes = reservation.bytes.map(|rate| rate.bytes_per_second().saturating_mul(1000) / reference);
        reservation.iops.map(|iops| iops.milli()).max(bytes).map(|required| required.max(1))
    }

    fn account_mut(&mut self, owner: OwnerId) -> &mut Account {
        self.accounts[owner.index()].as_mut().expect("the gate adds an owner before it uses it")
    }

    fn account(&self, owner: OwnerId) -> Option<&Account> {
        self.accounts.get(owner.index())?.as_ref()
    }

    /// The smallest required bandwidth. O(VMs) once after its VM was removed.
    fn least(&mut self) -> Option<u64> {
        let accounts = &self.accounts;
        *self.least.get_or_insert_with(|| accounts.iter().flatten().filter_map(|account| account.required).min())
    }

    /// Full credits: beta times the proportion of a VM.
    // rule: flubber.proportion, flubber.full-credits
    fn full(&mut self, owner: OwnerId) -> u64 {
        let least = self.least().unwrap_or(1);
        // [flubber] eq. (2): c_i/c_j = B_i/B_j. A VM without a stated requirement counts like the smallest one.
        let required = self.account_mut(owner).required.unwrap_or(least);
        self.beta.saturating_mul(((required.saturating_add(least / 2)) / least).max(1))
    }

    fn credits(&mut self, owner: OwnerId) -> u64 {
        let round = self.round;
        if self.account_mut(owner).round != round {
            let full = self.full(owner);
            let account = self.account_mut(owner);
            (account.round, account.credits) = (round, full);
        }
        self.account_mut(owner).credits
    }

    fn spend(&mut self, owner: OwnerId) {
        let account = self.account_mut(owner);
        account.credits -= 1;
        self.holders -= u64::from(account.credits == 0);
    }

    /// Whether a VM's requests take no credits.
    pub(crate) fn is_background(&self, owner: OwnerId) -> bool {
        self.account(owner).is_some_and(|account| account.background)
    }

    /// Takes an arrival: returns it if it passes, or queues it.
    // rule: flubber.arrive, flubber.one-credit
    pub(crate) fn arrive(&mut self, request: Request) -> Option<Request> {
        let owner = request.owner;
        if self.account_mut(owner).waiting.is_empty() {
            if self.credits(owner) > 0 {
                self.spend(owner);
                return Some(request);
            }
            self.blocked.push_back(owner.0);
        }
        let account = self.accounts[owner.index()].as_mut().expect("just seen");
        self.arena.push(&mut account.waiting, request);
        None
    }

    /// Whether to replenish because no VM has credits left.
    // rule: flubber.e1
    pub(crate) fn used_up(&self) -> bool {
        self.when_used_up && self.holders == 0 && self.vms > 0
    }

    /// Whether requests wait for credits.
    pub(crate) fn any_waiting(&self) -> bool {
        !self.arena.is_empty()
    }

    /// Gives every VM its full credits.
    // rule: flubber.refill
    pub(crate) fn refill(&mut self) {
        self.round += 1;
        self.holders = self.vms;
        self.ready.append(&mut self.blocked);
    }

    /// After a replenishment: the next request that passes, one per VM and turn.
    // rule: flubber.drain-round-robin
    pub(crate) fn next_in_turn(&mut self) -> Option<Request> {
        let owner = OwnerId(self.ready.pop_front()?);
        let credits = self.credits(owner);
        debug_assert!(credits > 0, "a ready VM has credits");
        self.spend(owner);
        let account = self.accounts[owner.index()].as_mut().expect("a waiting NIC is known");
        let request = self.arena.pop(&mut account.waiting).expect("a waiting VM has a request");
        if !account.waiting.is_empty() {
            if credits > 1 { &mut self.ready } else { &mut self.blocked }.push_back(owner.0);
        }
        Some(request)
    }

    /// Removes the queued requests of a VM for which `leaves` returns true.
    pub(crate) fn take_if(&mut self, owner: OwnerId, removed: &mut Vec<Request>, leaves: impl FnMut(&Request) -> bool) {
        let Some(account) = self.accounts.get_mut(owner.index()).and_then(Option::as_mut) else { return };
        self.arena.remove_if(&mut account.waiting, removed, leaves);
        if account.waiting.is_empty() {
            self.ready.retain(|waiting| *waiting != owner.0);
            self.blocked.retain(|waiting| *waiting != owner.0);
        }
    }

    /// Replaces a queued request by `grown`. Returns `false` if it is not queued here.
    pub(crate) fn grow(&mut self, grown: Request) -> bool {
        self.arena.grow(&grown)
    }

    /// Requests of a VM that wait for credits.
    pub(crate) fn waiting(&self, owner: OwnerId) -> u64 {
        self.account(owner).map_or(0, |account| account.waiting.len() as u64)
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = OwnerId> {
        (0..self.accounts.len() as u32).map(OwnerId).filter(|owner| self.account(*owner).is_some())
    }

    pub(crate) fn len(&self) -> u64 {
        self.arena.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sched::cost::Cost;
    use sluice_sched::request::{Flags, Kind, Phase, RequestId, VolumeId, Wait};
    use sluice_sched::time::Instant;

    fn request(id: u64, owner: u32) -> Request {
        Request {
            id: RequestId(id),
            arrival: Instant::ZERO,
            offset: 0,
            length: 4096,
            cost: Cost::ONE,
            owner: OwnerId(owner),
            token: 0,
            rho: 0,
            delta: 0,
            volume: VolumeId(0),
            kind: Kind::Read,
            flags: Flags::NONE,
            phase: Phase::None,
            wait: Wait::None,
        }
    }

    fn credits(beta: u32, required: &[Option<u64>]) -> Credits {
        let mut credits = Credits::new(beta, true, Bytes::kib(8));
        for (owner, iops) in required.iter().enumerate() {
            let policy = iops.map_or(Policy::default(), |iops| Policy::default().reserving(iops));
            credits.add(OwnerId(owner as u32), &policy);
        }
        credits.refill();
        credits
    }

    // rule: flubber.proportion, flubber.full-credits
    #[test]
    fn full_credits_match_table_ii_of_the_paper() {
        for (beta, seq, rnd) in [(1, 8, 1), (2, 16, 2), (8, 64, 8), (32, 256, 32), (128, 1024, 128)] {
            let mut credits = credits(beta, &[Some(1000), Some(120), None]);
            let full = [0, 1, 2].map(|owner| credits.full(OwnerId(owner)));
            assert_eq!(full, [seq, rnd, rnd], "beta {beta}; a VM that states nothing counts like the least");
        }
        let mut bytes = Credits::new(1, true, Bytes::kib(8));
        let mut policy = Policy::default().reserving(100);
        bytes.add(OwnerId(0), &policy);
        policy.reservation.bytes = Some(sluice_sched::units::ByteRate::per_second(8192 * 300));
        bytes.add(OwnerId(1), &policy);
        assert_eq!(bytes.full(OwnerId(1)), 3, "bytes count as requests of 8 KiB");
        bytes.remove(OwnerId(0));
        assert_eq!(bytes.full(OwnerId(1)), 1, "the VM with the least was removed");
    }

    // rule: flubber.credits-conserved, flubber.exact-ratio, flubber.one-credit, flubber.refill, flubber.arrive
    #[test]
    fn a_vm_passes_exactly_its_credits_per_interval() {
        let required = [Some(1000), Some(120), Some(400), None];
        let full = [32, 4, 12, 4];
        let mut credits = credits(4, &required);
        let mut passed = [0u64; 4];
        let mut random = 1u64;
        let mut intervals = 0;
        for id in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let owner = (random >> 60) as usize % 4;
            if credits.arrive(request(id, owner as u32)).is_some() {
                passed[owner] += 1;
            }
            assert!((0..4).all(|vm| passed[vm] <= full[vm]), "{passed:?} of {full:?}");
            if credits.used_up() {
                // All VMs were backlogged to the end, so each passed its credits: the ratio is exact.
                assert_eq!(passed, full, "interval {intervals}");
                credits.refill();
                passed = [0; 4];
                intervals += 1;
            }
            while let Some(request) = credits.next_in_turn() {
                passed[request.owner.index()] += 1;
            }
        }
        assert!(intervals > 300, "{intervals}");
    }

    // rule: flubber.drain-round-robin
    #[test]
    fn queues_drain_in_turn_longest_waiting_first() {
        let mut credits = credits(2, &[Some(100), Some(200), Some(100)]);
        let mut id = 0;
        let mut arrive = |credits: &mut Credits, owner: u32, times: u32| {
            for _ in 0..times {
                credits.arrive(request(id, owner));
                id += 1;
            }
        };
        arrive(&mut credits, 2, 5);
        arrive(&mut credits, 0, 5);
        arrive(&mut credits, 1, 9);
        let order = |credits: &mut Credits| {
            let all = std::iter::from_fn(|| credits.next_in_turn());
            all.map(|request| request.owner.0).collect::<Vec<u32>>()
        };
        assert_eq!(order(&mut credits), [], "no VM has credits");
        credits.refill();
        assert_eq!(order(&mut credits), [2, 0, 1, 2, 0, 1, 1, 1]);
        credits.refill();
        assert_eq!(order(&mut credits), [2, 0, 1], "one credit each is left");
    }

    // rule: flubber.e1
    #[test]
    fn credits_are_used_up_when_no_vm_has_any() {
        for when_used_up in [true, false] {
            let mut credits = Credits::new(1, when_used_up, Bytes::kib(8));
            (0..2).for_each(|owner| credits.add(OwnerId(owner), &Policy::default()));
            credits.refill();
            assert!(credits.arrive(request(0, 0)).is_some());
            assert!(!credits.used_up(), "the other VM has credits");
            assert!(credits.arrive(request(1, 1)).is_some());
            assert_eq!(credits.used_up(), when_used_up);
        }
    }
}
