//! mClock as a product: two levels, and formulas that keep their promise.
//!
//! Three orders over the VMs that have requests: `reserved` (by when they are due) and `weighted` (by share tag) hold
//! those that their limit lets pass, `limited` holds the others by when it will. A dispatch moves one VM in one or two
//! of them: O(log VMs). The volumes of a VM are few and are searched one by one.
//!
//! `reserved` and `weighted` are put right when somebody is taken from them, and not before: a VM's place only moves back
//! while it stands in line, so whoever comes first with the place that it really has is first. A dispatch thus leaves
//! the order alone by which it did not choose, and a VM that its limit stops stays where it is until it would be next.
//!
//! Over-commit: all reservation tags count from a common shift. When the most overdue VM lags by more than
//! `reservation_catchup_max`, the shift moves, all tags with it: what cannot be had is split in proportion to the
//! reservations. A cap for each VM on its own would split it by other rules.
//!
//! Virtual time is the share tag of the last weight-phase dispatch; it never goes back, and starts anew when the gate is
//! idle.

use crate::few::Few;
use crate::policy::Policy;
use crate::request::{Completion, OwnerId, Phase, Request, RequestId, VolumeId, Wait};
use crate::scheduler::{Change, ChangeError, Decision, Facts, OwnerState, Scheduler, Scope, State};
use crate::slots::{Arena, Fifo};
use crate::tag::{ShareTag, TAGS_PER_NANO, Tag, TagClock};
use crate::time::Instant;
use crate::tournament::{Tournament, key_digits};

use super::Params;
use super::account::Account;
use super::owner::{Owner, Volume};

/// Where virtual time starts: room below it for idle credits.
pub(super) const VIRTUAL_START: ShareTag = 1 << 50;
/// Where it is rebased.
const VIRTUAL_MAX: ShareTag = 1 << 62;

/// A locality batch that goes on: \[mclock\] 3.1, "Request Location".
#[derive(Debug, Clone, Copy)]
struct Batch {
    owner: u32,
    volume: usize,
    phase: Phase,
    left: u32,
    end: u64,
}

/// The scheduler.
#[derive(Debug)]
pub struct Product {
    facts: Facts,
    batch_max: u32,
    batch_distance: u64,
    catchup_max: Tag,
    clock: TagClock,
    arena: Arena,
    owners: Vec<Option<Owner>>,
    reserved: Tournament,
    weighted: Tournament,
    limited: Tournament,
    shift: Tag,
    virtual_time: ShareTag,
    generation: u32,
    /// A client has told what was served elsewhere.
    told: bool,
    in_flight: u64,
    batch: Option<Batch>,
    batched: Instant,
}

impl Product {
    /// For a device.
    #[must_use]
    pub fn new(facts: &Facts, params: &Params) -> Self {
        let catchup = u64::try_from(params.reservation_catchup_max.as_nanos()).unwrap_or(u64::MAX);
        Product {
            facts: *facts,
            batch_max: params.batch_on(facts),
            batch_distance: params.batch_distance.0,
            catchup_max: catchup.saturating_mul(TAGS_PER_NANO),
            clock: TagClock::default(),
            arena: Arena::new(),
            owners: Vec::new(),
            reserved: Tournament::default(),
            weighted: Tournament::default(),
            limited: Tournament::default(),
            shift: 0,
            virtual_time: VIRTUAL_START,
            generation: 0,
            told: false,
            in_flight: 0,
            batch: None,
            batched: Instant::ZERO,
        }
    }

    fn owner_mut(&mut self, owner: u32) -> &mut Owner {
        self.owners[owner as usize].as_mut().expect("the gate adds an owner before it uses it")
    }

    /// The owners whose limit lets them pass by now come back into line.
    fn release(&mut self, now: Tag) {
        while let Some((passes, _, owner)) = self.limited.peek()
            && passes <= now
        {
            self.stand_in_line(owner, now);
        }
    }

    /// Puts an owner where it belongs now.
    fn stand_in_line(&mut self, owner: u32, now: Tag) {
        if self.is_stopped(owner, now) {
            self.reserved.remove(owner);
            self.weighted.remove(owner);
            return;
        }
        let state = self.owners[owner as usize].as_ref().expect("only known owners stand in line");
        match state.account.due() {
            Some(due) => self.reserved.set(owner, due, state.head),
            None => self.reserved.remove(owner),
        }
        if state.account.is_weighted() {
            self.weighted.set(owner, state.account.share_tag(), state.head);
        } else {
            self.weighted.remove(owner);
        }
    }

    /// The same after a dispatch in `phase`. All that can have happened to its other place is that it moved back.
    fn move_in_line(&mut self, owner: u32, now: Tag, phase: Phase) {
        if self.is_stopped(owner, now) {
            return;
        }
        let state = self.owners[owner as usize].as_ref().expect("only known owners stand in line");
        match (phase, state.account.due()) {
            (Phase::Reservation, Some(due)) => self.reserved.set(owner, due, state.head),
            _ if state.account.is_weighted() => self.weighted.set(owner, state.account.share_tag(), state.head),
            // A batch went on by a right that has been taken away meanwhile.
            _ => {}
        }
    }

    /// Whether an owner has no place in line: it has no requests, or its limit holds it from now on.
    fn is_stopped(&mut self, owner: u32, now: Tag) -> bool {
        let state = self.owners[owner as usize].as_mut().expect("only known owners stand in line");
        if state.queued == 0 {
            if state.held_until.take().is_some() {
                self.limited.remove(owner);
            }
            return true;
        }
        if state.volumes.only().is_none() {
            state.release_volumes(&self.arena, now);
        }
        let passes = state.find_head(&self.arena);
        if passes > now {
            // One that lives by its reservation alone is not woken before that is due.
            let wake = match state.account.due() {
                Some(due) if !state.account.is_weighted() => passes.max(due.saturating_add(self.shift)),
                _ => passes,
            };
            state.held_until = Some(wake);
            self.limited.set(owner, wake, state.head);
            return true;
        }
        if let Some(held_until) = state.held_until.take() {
            // Whatever ended it, time or a change: it banked nothing while it was held.
            state.account.release(held_until.min(now).saturating_sub(self.shift), self.virtual_time);
            state.released = now;
            self.limited.remove(owner);
        }
        false
    }

    /// The owner that is due first, if anybody is due by `now`.
    fn first_due(&mut self, now: Tag) -> Option<u32> {
        loop {
            let (due, head, owner) = self.reserved.peek()?;
            // Whatever its place really is, it is not before this one.
            if due.saturating_add(self.shift) > now {
                return None;
            }
            match self.in_line(owner).and_then(|state| Some((state.account.due()?, state.head))) {
                Some((own, own_head)) if (own, key_digits(own_head)) == (due, head) => {
                    self.bound_catch_up(now, due);
                    return (due.saturating_add(self.shift) <= now).then_some(owner);
                }
                Some((own, own_head)) => self.reserved.set(owner, own, own_head),
                None => self.reserved.remove(owner),
            }
        }
    }

    /// When the first reservation is due.
    fn next_due(&mut self) -> Option<Tag> {
        loop {
            let (due, _, owner) = self.reserved.peek()?;
            match self.in_line(owner).and_then(|state| Some((state.account.due()?, state.head))) {
                Some((own, _)) if own == due => return Some(due),
                Some((own, own_head)) => self.reserved.set(owner, own, own_head),
                None => self.reserved.remove(owner),
            }
        }
    }

    /// Moves the common shift so that the most overdue lags by no more than the catch-up bound.
    // rule: mclock.catch-up-cap
    fn bound_catch_up(&mut self, now: Tag, due: Tag) {
        let lag = now.saturating_sub(due.saturating_add(self.shift));
        self.shift = self.shift.saturating_add(lag.saturating_sub(self.catchup_max));
    }

    /// The owner that is furthest behind its share.
    fn first_by_share(&mut self) -> Option<u32> {
        loop {
            let (share, head, owner) = self.weighted.peek()?;
            match self.in_line(owner).map(|state| (state.account.share_tag(), state.head)) {
                Some((own, own_head)) if (own, key_digits(own_head)) == (share, head) => return Some(owner),
                Some((own, own_head)) => self.weighted.set(owner, own, own_head),
                None => self.weighted.remove(owner),
            }
        }
    }

    /// Where the line for what is left over begins, if it may have left virtual time behind.
    ///
    /// At one of several servers a VM's share tag moves by what it got at all of them, and reservation service does not cap it.
    /// One that uses this server alone is measured against those tags, not against virtual time, which stands still meanwhile:
    /// else its own cap would put it before VMs that are further behind.
    // rule: mclock.debt-cap
    fn share_line(&mut self) -> ShareTag {
        if !self.told {
            return 0;
        }
        let first = self.first_by_share().and_then(|owner| self.owners[owner as usize].as_ref());
        first.map_or(0, |state| state.account.share_tag())
    }

    fn in_line(&self, owner: u32) -> Option<&Owner> {
        self.owners[owner as usize].as_ref().filter(|state| state.queued > 0 && state.held_until.is_none())
    }

    fn choose(&mut self, now: Tag) -> Option<(u32, usize, Phase)> {
        if let Some(owner) = self.first_due(now) {
            let volume = self.choose_volume(owner, Phase::Reservation, now);
            return Some((owner, volume, Phase::Reservation));
        }
        let owner = self.first_by_share()?;
        let volume = self.choose_volume(owner, Phase::Weight, now);
        Some((owner, volume, Phase::Weight))
    }

    /// The inner level: in the reservation phase the most overdue volume, else the one furthest behind its share.
    // rule: mclock.two-levels, mclock.eligible, mclock.volume-constraint, mclock.volume-weight
    fn choose_volume(&mut self, owner: u32, phase: Phase, now: Tag) -> usize {
        let state = self.owners[owner as usize].as_mut().expect("chosen from a line");
        if state.volumes.only().is_some() {
            return 0;
        }
        state.release_volumes(&self.arena, now);
        let eligible = || {
            state.volumes.iter().enumerate().filter_map(|(index, volume)| {
                let head = self.arena.front(&volume.fifo)?;
                let account = volume.account.as_deref().expect("one of several volumes has an account");
                (account.may_go() <= now).then_some((index, account, head.id))
            })
        };
        let overdue = eligible()
            .filter_map(|(index, account, head)| Some((account.due()?, head, index)))
            .filter(|(due, _, _)| *due <= now)
            .min();
        let furthest_behind = eligible()
            .filter(|(_, account, _)| account.is_weighted())
            .map(|(index, account, head)| (account.share_tag(), head, index))
            .min();
        let chosen = match phase {
            Phase::Reservation => overdue.or(furthest_behind),
            // A volume without weight has no place among the others; where it is alone it goes when it is due.
            _ => furthest_behind.or(overdue),
        };
        chosen.expect("an owner in line has a volume that may go").2
    }

    /// The next request of a batch, if it lies close enough and nothing forbids it.
    fn continue_batch(&mut self, now: Tag) -> Option<(u32, usize, Phase)> {
        let batch = self.batch.take()?;
        let state = self.owners[batch.owner as usize].as_mut()?;
        state.release_volumes(&self.arena, now);
        let volume = state.volumes.get(batch.volume)?;
        let head = self.arena.front(&volume.fifo)?;
        let may_pass =
            state.account.passes() <= now && volume.account.as_ref().is_none_or(|account| account.may_go() <= now);
        if batch.left == 0 || !may_pass || head.offset.abs_diff(batch.end) > self.batch_distance {
            return None;
        }
        self.batch = Some(batch);
        Some((batch.owner, batch.volume, batch.phase))
    }

    fn follow_batch(&mut self, now: Instant, owner: u32, volume: usize, phase: Phase, request: &Request) {
        if self.batch_max <= 1 {
            return;
        }
        let left = match self.batch {
            Some(batch) => {
                self.batched = now;
                batch.left - 1
            }
            None => self.batch_max - 1,
        };
        self.batch = Some(Batch { owner, volume, phase, left, end: request.end() });
    }

    /// Takes the head of a volume and charges both levels once.
    // rule: mclock.charged-once
    fn take(&mut self, now: Tag, owner: u32, volume: usize, phase: Phase) -> Request {
        let line = if phase == Phase::Reservation { self.share_line() } else { 0 };
        let state = self.owners[owner as usize].as_mut().expect("chosen from a line");
        let chosen = &mut state.volumes[volume];
        let mut request = self.arena.pop(&mut chosen.fifo).expect("a chosen volume has a request");
        if phase == Phase::Weight {
            self.virtual_time = self.virtual_time.max(state.account.share_tag());
        }
        state.account.charge(now, &request, phase, self.virtual_time.max(line));
        let next = self.arena.front(&chosen.fifo);
        if let Some(account) = &mut chosen.account {
            let inner = match account.due() {
                Some(due) if phase == Phase::Reservation && due <= now => Phase::Reservation,
                _ if !account.is_weighted() => Phase::Reservation,
                _ => Phase::Weight,
            };
            if inner == Phase::Weight {
                state.inner_time = state.inner_time.max(account.share_tag());
            }
            account.charge(now, &request, inner, state.inner_time);
            if let Some(next) = next {
                account.count_elsewhere(now, next);
            }
            if state.inner_time > VIRTUAL_MAX {
                state.rebase_volumes();
            }
        }
        if let Some(next) = next {
            state.account.count_elsewhere(now.saturating_sub(self.shift), next);
        }
        state.queued -= 1;
        request.phase = phase;
        let arrived = self.clock.tag(request.arrival);
        request.wait = if state.released > arrived { Wait::OwnLimit } else { Wait::None };
        self.move_in_line(owner, now, phase);
        if self.virtual_time > VIRTUAL_MAX {
            self.rebase();
        }
        request
    }

    fn rebase(&mut self) {
        let by = self.virtual_time - VIRTUAL_START;
        self.virtual_time = VIRTUAL_START;
        for owner in self.owners.iter_mut().flatten() {
            owner.account.rebase(by);
        }
        self.weighted.lower(by);
    }

    // rule: mclock.wake-product
    fn wake(&mut self) -> Instant {
        let due = self.next_due().map(|due| due.saturating_add(self.shift));
        let passes = self.limited.peek().map(|(passes, _, _)| passes);
        let tag = match (due, passes) {
            (Some(due), Some(passes)) => due.min(passes),
            (Some(tag), None) | (None, Some(tag)) => tag,
            (None, None) => unreachable!("queued requests belong to an owner in line or held by its limit"),
        };
        self.clock.instant(tag)
    }

    /// The whole gate is idle: share tags start anew, at once for all of them.
    ///
    /// Not where clients tell of other servers: what a VM got there still counts here when this one was idle for a moment.
    fn start_anew(&mut self) {
        if self.told {
            return;
        }
        self.generation = self.generation.wrapping_add(1);
        self.virtual_time = VIRTUAL_START;
    }

    fn add_volume(&mut self, now: Tag, owner: OwnerId, volume: VolumeId, policy: &Policy) {
        let facts = self.facts;
        let state = self.owner_mut(owner.0);
        let fifo = Fifo::default();
        state.volumes.push(Volume { id: volume, fifo, policy: Box::new(*policy), account: None, held_until: None });
        state.open_accounts(&facts, now);
        self.batch = None;
    }

    fn add_owner(&mut self, now: Tag, owner: OwnerId, policy: &Policy) {
        let account = Account::new(policy, &self.facts, now.saturating_sub(self.shift), self.virtual_time);
        if owner.index() >= self.owners.len() {
            self.owners.resize_with(owner.index() + 1, || None);
        }
        self.owners[owner.index()] = Some(Owner {
            account,
            head: RequestId(0),
            queued: 0,
            generation: self.generation,
            held_until: None,
            released: 0,
            inner_time: VIRTUAL_START,
            policy: Box::new(*policy),
            volumes: Few::default(),
        });
    }

    fn set_policies(&mut self, now: Tag, owner: u32) {
        let (facts, shift, virtual_time) = (self.facts, self.shift, self.virtual_time);
        let state = self.owner_mut(owner);
        let policy = *state.policy;
        state.account.set_policy(&policy, &facts, now, now.saturating_sub(shift), virtual_time);
        let inner_time = state.inner_time;
        for volume in state.volumes.iter_mut() {
            let policy = *volume.policy;
            if let Some(account) = &mut volume.account {
                account.set_policy(&policy, &facts, now, now, inner_time);
            }
        }
        state.open_accounts(&facts, now);
        self.stand_in_line(owner, now);
    }
}

impl Scheduler for Product {
    fn insert(&mut self, now: Instant, request: Request) {
        let tag = self.clock.tag(now);
        self.told |= request.delta > 0;
        let (shift, virtual_time, generation) = (self.shift, self.virtual_time, self.generation);
        let state = self.owners[request.owner.index()].as_mut().expect("the gate adds an owner before it uses it");
        let index = state.volume_index(request.volume);
        let volume = &mut state.volumes[index];
        let volume_wakes = volume.fifo.is_empty();
        self.arena.push(&mut volume.fifo, request);
        state.queued += 1;
        if !volume_wakes {
            return;
        }
        if let Some(account) = &mut volume.account {
            account.count_elsewhere(tag, &request);
            account.activate(tag, tag, state.inner_time);
        }
        if state.generation != generation {
            state.generation = generation;
            state.account.reset_share();
        }
        state.account.count_elsewhere(tag.saturating_sub(shift), &request);
        if state.queued == 1 {
            state.account.activate(tag, tag.saturating_sub(shift), virtual_time);
        }
        self.stand_in_line(request.owner.0, tag);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        let Some(state) = self.owners[grown.owner.index()].as_ref() else { return false };
        let fifo = state.volumes[state.volume_index(grown.volume)].fifo;
        match self.arena.find_mut(&fifo, grown.id) {
            Some(queued) => {
                *queued = grown;
                true
            }
            None => false,
        }
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.arena.is_empty() {
            self.batch = None;
            return Decision::Idle;
        }
        let tag = self.clock.tag(now);
        self.release(tag);
        let chosen = self.continue_batch(tag).or_else(|| self.choose(tag));
        let Some((owner, volume, phase)) = chosen else { return Decision::WaitUntil(self.wake()) };
        let mut request = self.take(tag, owner, volume, phase);
        if request.wait == Wait::None && self.batched > request.arrival {
            request.wait = Wait::Batch;
        }
        self.follow_batch(now, owner, volume, phase, &request);
        self.in_flight += 1;
        Decision::Dispatch(request)
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        if self.in_flight == 0 && self.arena.is_empty() {
            self.start_anew();
        }
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let tag = self.clock.tag(now);
        match change {
            Change::AddOwner { owner, policy } => self.add_owner(tag, owner, &policy),
            Change::SetOwner { owner, policy } => {
                *self.owner_mut(owner.0).policy = policy;
                self.set_policies(tag, owner.0);
            }
            Change::RemoveOwner { owner } => {
                self.batch = None;
                self.owners[owner.index()] = None;
            }
            Change::AddVolume { owner, volume, policy } => self.add_volume(tag, owner, volume, &policy),
            Change::SetVolume { owner, volume, policy } => {
                let state = self.owner_mut(owner.0);
                let index = state.volume_index(volume);
                *state.volumes[index].policy = policy;
                self.set_policies(tag, owner.0);
            }
            Change::RemoveVolume { owner, volume } => {
                self.batch = None;
                self.owner_mut(owner.0).volumes.retain(|known| known.id != volume);
            }
            Change::Depth(depth) => {
                self.facts.depth = depth;
                for owner in 0..self.owners.len() {
                    if self.owners[owner].is_some() {
                        self.set_policies(tag, owner as u32);
                    }
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let tag = self.clock.tag(now);
        let owner = scope.owner().0;
        let Some(state) = self.owners.get_mut(owner as usize).and_then(Option::as_mut) else { return };
        for volume in state.volumes.iter_mut() {
            self.arena.remove_if(&mut volume.fifo, removed, |request| scope.contains(request));
        }
        state.queued = state.volumes.iter().map(|volume| volume.fifo.len() as u32).sum();
        self.batch = None;
        self.stand_in_line(owner, tag);
        if self.in_flight == 0 && self.arena.is_empty() {
            self.start_anew();
        }
    }

    fn inspect(&self, _now: Instant) -> State {
        let nanos = |tag: Tag| self.clock.instant(tag).as_nanos();
        let owners = self.owners.iter().enumerate().filter_map(|(index, owner)| {
            let owner = owner.as_ref()?;
            let account = &owner.account;
            let state = OwnerState {
                queued: u64::from(owner.queued),
                reservation_due_ns: account.due().map(|due| nanos(due.saturating_add(self.shift))),
                limit_passes_ns: account.is_limited().then(|| nanos(account.passes())),
                share_tag: account.is_weighted().then(|| account.share_tag()),
            };
            Some((index as u32, state))
        });
        State {
            queued: self.arena.len() as u64,
            in_flight: self.in_flight,
            virtual_time: Some(self.virtual_time),
            owners: owners.collect(),
        }
    }
}
