//! Decisions of mClock: two levels, and formulas that keep their guarantees.
//!
//! A dispatch serves the most overdue reservation, or else the VM with the smallest share tag, among those that their
//! limits let pass. Then it does the same among the VM's volumes. `level.rs` keeps the orders, `tags.rs` says how a
//! dispatch advances the tags, `floor.rs` keeps a part of each level for the weight phase, and `remote.rs` counts
//! service of VMs at other servers. A decision costs O(log VMs + log volumes of the VM).
//!
//! Virtual time is the share tag of the VM that was last chosen by weight. It never decreases. It is reset when the
//! gate becomes idle, unless clients report service at other servers.

use crate::gate::RemoteService;
use crate::policy::Policy;
use crate::request::{Completion, OwnerId, Phase, Request, Wait};
use crate::request_arena::{Arena, Place};
use crate::scheduler::{Change, ChangeError, Decision, DeviceClass, DeviceInfo, OwnerState, Scheduler, Scope, State};
use crate::standing::Standing;
use crate::tag::{TAGS_PER_NANO, Tag, TagClock};
use crate::time::Instant;

use super::floor::Floor;
use super::level::{Level, Member, Passes, VIRTUAL_MAX, VIRTUAL_START};
use super::owner::{Owner, Volume};
use super::remote::{self, Remote};
use super::tags::{Amount, ServicePhase, Tags};
use super::{DESCRIPTOR, Params};

/// How long a due reservation waits for a frame of a VM that was idle: a question and its answer pass two uplinks, and their users expect
/// less than 0.5 ms. On a disk one request of another VM takes longer than this.
const YIELD_NANOS: u64 = 100_000;

/// The next volume to serve.
#[derive(Debug, Clone, Copy)]
struct Choice {
    owner: u32,
    volume: usize,
    /// Phase among the VMs, and inside the VM.
    phase: ServicePhase,
    inner_right: ServicePhase,
}

/// A locality batch in progress: \[mclock\] 3.1, "Request Location".
#[derive(Debug, Clone, Copy)]
struct Batch {
    choice: Choice,
    left: u32,
    end: u64,
}

/// A VM, or one of its volumes, for which the time of the next decision is to be noted.
#[derive(Debug, Clone, Copy)]
struct Undecided {
    owner: u32,
    volume: Option<u16>,
}

#[derive(Debug)]
pub struct Product {
    info: DeviceInfo,
    batch_max: u32,
    batch_distance: u64,
    clock: TagClock,
    arena: Arena,
    /// By number; those that are not present have nothing queued.
    owners: Vec<Owner>,
    level: Level,
    /// Number of resets of virtual time.
    generation: u32,
    /// Number of VMs whose clients report service at other servers.
    reporting: u32,
    /// Throttled since the last decision; each at most once.
    undecided: Vec<Undecided>,
    in_flight: u64,
    batch: Option<Batch>,
    batched: Instant,
}

#[inline(always)]
fn member(owners: &[Owner], index: u32) -> Option<&Member> {
    Some(&owners[index as usize].member)
}

impl Product {
    /// Makes a scheduler for a device.
    #[must_use]
    pub fn new(info: &DeviceInfo, params: &Params) -> Self {
        let catch_up = u64::try_from(params.reservation_catchup_max.as_nanos()).unwrap_or(u64::MAX);
        let catch_up_max = catch_up.saturating_mul(TAGS_PER_NANO);
        let yield_max = match info.device_class {
            DeviceClass::Network => YIELD_NANOS * TAGS_PER_NANO,
            DeviceClass::Disk => 0,
        };
        Product {
            info: *info,
            batch_max: super::batch_on(params.batch, info),
            batch_distance: params.batch_distance.0,
            clock: TagClock::default(),
            arena: Arena::new(),
            owners: Vec::new(),
            level: Level::new(catch_up_max, yield_max, Floor::new(params.weight_floor)),
            generation: 0,
            reporting: 0,
            undecided: Vec::new(),
            in_flight: 0,
            batch: None,
            batched: Instant::ZERO,
        }
    }

    fn owner_mut(&mut self, owner: u32) -> &mut Owner {
        &mut self.owners[owner as usize]
    }

    /// Inserts a VM into the orders.
    fn settle(&mut self, index: u32, now: Tag) {
        self.settle_with(index, now, Level::settle);
    }

    /// Inserts a VM into the orders by [`Level::settle`] or [`Level::settle_after`].
    #[inline(always)]
    fn settle_with(&mut self, index: u32, now: Tag, settle: impl Fn(&mut Level, u32, &mut Member, Tag, Passes)) {
        let Product { owners, arena, level, undecided, .. } = self;
        let owner = &mut owners[index as usize];
        let eligible_at = owner.eligible_at(arena, now);
        owner.member.backlogged = owner.queued > 0;
        settle(level, index, &mut owner.member, now, Passes::own(eligible_at));
        if owner.member.needs_decision_noted() {
            undecided.push(Undecided { owner: index, volume: None });
        }
    }

    /// The same for one of its volumes.
    #[inline(never)]
    fn settle_volume(&mut self, index: u32, volume: usize, now: Tag, after: Option<ServicePhase>) {
        let Product { owners, arena, undecided, .. } = self;
        let owner = &mut owners[index as usize];
        owner.settle_volume(volume, arena, now, after);
        let member = owner.volumes[volume].member.as_deref_mut();
        if member.is_some_and(Member::needs_decision_noted) {
            undecided.push(Undecided { owner: index, volume: Some(volume as u16) });
        }
    }

    /// Notes a decision: from now on limits, and not the device, delay the members that they throttle.
    #[inline]
    fn note_decision(&mut self, now: Tag) {
        if !self.undecided.is_empty() {
            self.note_decision_of_held(now);
        }
    }

    #[inline(never)]
    fn note_decision_of_held(&mut self, now: Tag) {
        let Product { owners, level, undecided, .. } = self;
        for Undecided { owner, volume } in undecided.drain(..) {
            let owner = &mut owners[owner as usize];
            match (volume, owner.inner_mut()) {
                (None, _) => owner.member.note_decision(now, level.virtual_time),
                (Some(volume), Some((inner, volumes))) => {
                    let virtual_time = inner.level.virtual_time;
                    let known = volume < volumes.len() as u16;
                    let member = known.then(|| volumes[usize::from(volume)].member.as_deref_mut()).flatten();
                    member.into_iter().for_each(|member| member.note_decision(now, virtual_time));
                }
                (Some(_), None) => {}
            }
        }
    }

    /// Inserts VMs that their limits let pass by now into the orders again.
    fn release(&mut self, now: Tag) {
        while let Some(owner) = self.level.releasable(now) {
            self.settle(owner, now);
        }
    }

    #[inline(always)]
    fn choose(&mut self, now: Tag) -> Option<Choice> {
        let Product { level, owners, arena, info, .. } = self;
        let (owner, phase) = level.choose(now, |index| member(owners, index))?;
        let chosen = &mut owners[owner as usize];
        let (volume, inner_right) = chosen.choose_volume(phase, now);
        let volume = chosen.in_turn((volume, inner_right), arena, info, now);
        Some(Choice { owner, volume, phase, inner_right })
    }

    /// The next request of a batch, if it is close enough and nothing forbids it.
    #[inline(always)]
    fn continue_batch(&mut self, now: Tag) -> Option<Choice> {
        if self.batch.is_some() { self.next_of_batch(now) } else { None }
    }

    #[inline(never)]
    fn next_of_batch(&mut self, now: Tag) -> Option<Choice> {
        let batch = self.batch.take()?;
        let Choice { owner, volume, .. } = batch.choice;
        let state = &mut self.owners[owner as usize];
        state.release_volumes(now);
        state.volumes.get(volume)?;
        let (_, head) = state.open(volume, &self.arena, now)?;
        let passes = state.member.tags.limiter.eligible_at() <= now && state.volume_is_eligible(volume, now);
        if batch.left == 0 || !passes || head.offset.abs_diff(batch.end) > self.batch_distance {
            return None;
        }
        self.batch = Some(batch);
        Some(batch.choice)
    }

    #[inline(never)]
    fn follow_batch(&mut self, now: Instant, choice: Choice, taken: Place) {
        let left = match self.batch {
            Some(batch) => {
                self.batched = now;
                batch.left - 1
            }
            None => self.batch_max - 1,
        };
        self.batch = Some(Batch { choice, left, end: self.arena.entry(taken).end() });
    }

    /// Takes the head of a volume and charges both levels once. Returns its place, its phase, and why it waited.
    // rule: mclock.charged-once
    #[inline(always)]
    fn take(&mut self, now: Tag, choice: Choice) -> (Place, Phase, Wait) {
        let Choice { owner: index, volume, phase, inner_right } = choice;
        let goes_on = self.batch.is_some();
        let Product { owners, arena, level, info, clock, .. } = self;
        let owner = &mut owners[index as usize];
        let open = owner.open_to_serve(volume, arena, now);
        let place = owner.pop(volume, open, arena);
        let request = arena.entry(place);
        let amount = Amount::of(request, info);
        let (arrival, arrived) = (request.arrival, clock.tag(request.arrival));
        if phase == ServicePhase::Reservation {
            level.bound_lag(&mut owner.member, now);
        }
        let is_capped = owner.member.tags.is_capped(phase, (amount.cost, amount.cost), level.virtual_time);
        level.follow_first(is_capped, |index| member(owners, index));
        let clocks = level.charge_clocks(is_capped, amount.cost, now, index, |index| member(owners, index));
        let owner = &mut owners[index as usize];
        let inner_step = match phase {
            ServicePhase::Reservation => owner.inner_step(volume, open, &amount),
            ServicePhase::Weight => 0,
        };
        let (tags, remote) = owner.tags_and_remote();
        tags.charge(phase, &amount, &clocks, remote, inner_step);
        owner.charge_volume(volume, inner_right, (open, &amount), now, goes_on);
        let throttles_others = owner.charge_lanes((volume, inner_right), open, &amount, now);
        let has_inner = owner.has_inner();
        if let Some(remote) = owner.remote_mut() {
            remote.note_served(&amount);
        }
        let released = owner.released(volume).max(open.since);
        level.note_served(phase, amount.cost, goes_on);
        if has_inner {
            self.settle_volume(index, volume, now, Some(inner_right));
        }
        if throttles_others {
            self.settle_volumes(index, now);
        }
        self.settle_with(index, now, |level, index, member, now, passes| {
            level.settle_after(index, member, now, passes, phase);
        });
        if self.level.virtual_time > VIRTUAL_MAX {
            self.rebase();
        }
        let wait = match () {
            () if released > arrived => Wait::OwnLimit,
            () if self.batched > arrival => Wait::Batch,
            () => Wait::None,
        };
        let phase = if phase == ServicePhase::Reservation { Phase::Reservation } else { Phase::Weight };
        (place, phase, wait)
    }

    #[cold]
    fn rebase(&mut self) {
        let by = self.level.rebase();
        self.owners.iter_mut().for_each(|owner| owner.member.tags.rebase(by));
    }

    /// Resets the share tags of all VMs when the gate is idle.
    ///
    /// Not if clients report other servers: the service of a VM at those still counts after this gate was idle for a
    /// moment.
    fn restart_if_idle(&mut self) {
        if self.in_flight == 0 && self.arena.is_empty() && self.reporting == 0 {
            self.generation = self.generation.wrapping_add(1);
            self.level.virtual_time = VIRTUAL_START;
        }
    }

    fn add_owner(&mut self, now: Tag, owner: OwnerId, policy: &Policy) {
        let tags = Tags::new(policy, &self.info, &self.level.clocks(now));
        if owner.index() >= self.owners.len() {
            self.owners.resize_with(owner.index() + 1, Owner::absent);
        }
        self.owners[owner.index()] = Owner::new(tags, self.generation, *policy);
    }

    /// Applies the policies of a VM and its volumes. Ends the batch, which the new policies may forbid.
    fn set_policies(&mut self, now: Tag, index: u32) {
        self.batch = None;
        let Product { owners, arena, info, level, .. } = self;
        let owner = &mut owners[index as usize];
        owner.set_tags(info, &level.clocks(now));
        owner.arrange_volumes(info, level, now);
        owner.arrange_lanes(arena, info, now);
        self.settle_volumes(index, now);
        self.settle(index, now);
    }

    fn settle_volumes(&mut self, index: u32, now: Tag) {
        let owner = self.owner_mut(index);
        let volumes = if owner.has_inner() { owner.volumes.len() } else { 0 };
        for volume in 0..volumes {
            self.settle_volume(index, volume, now, None);
        }
    }

    /// Notes the number of servers that the client of a VM uses, since its bursts are divided by it.
    fn note_client(&mut self, now: Tag, index: u32, report: &RemoteService) {
        let Product { owners, info, reporting, .. } = self;
        let owner = &mut owners[index as usize];
        let reported = Remote::reported(report, info);
        *reporting = *reporting + u32::from(reported.is_some()) - u32::from(owner.remote().is_some());
        match (owner.remote_mut(), reported) {
            (Some(known), Some(reported)) => known.servers = reported.servers,
            (_, reported) => owner.set_remote(reported),
        }
        let servers = owner.remote().map_or(1, |remote| remote.servers);
        owner.member.tags.limiter.set_policy(&owner.policy, info, servers, now);
        owner.set_lanes(info, now);
    }

    /// Returns the VM of a scope, and the index of the volume if the scope is a volume.
    fn find(&self, scope: Scope) -> Option<(&Owner, Option<usize>)> {
        let owner = self.owners.get(scope.owner().index()).filter(|owner| owner.present)?;
        Some(match scope {
            Scope::Owner(_) => (owner, None),
            Scope::Volume(_, volume) => (owner, Some(owner.volume_index(volume))),
        })
    }

    fn remove_owner(&mut self, owner: OwnerId) {
        self.batch = None;
        let removed = core::mem::replace(&mut self.owners[owner.index()], Owner::absent());
        self.reporting -= u32::from(removed.remote().is_some());
        self.restart_if_idle();
    }
}

impl Scheduler for Product {
    fn insert(&mut self, now: Instant, request: Request) {
        let tag = self.clock.tag(now);
        let index = request.owner.0;
        let Product { owners, arena, level, generation, .. } = self;
        let owner = &mut owners[index as usize];
        owner.refresh_share(*generation, tag, level);
        let volume = owner.volume_index(request.volume);
        let (volume_wakes, is_head) = owner.push(volume, arena, request);
        if !is_head {
            return;
        }
        if volume_wakes {
            owner.activate_volume(volume, tag);
        }
        if owner.queued == 1 {
            let (tags, remote) = owner.tags_and_remote();
            tags.activate(&level.clocks(tag), remote);
        }
        if owner.has_inner() {
            self.settle_volume(index, volume, tag, None);
        }
        self.settle(index, tag);
    }

    /// Only the VM is charged: a volume is at one server, and its own limit has nothing to do with another one's.
    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, report: &RemoteService) {
        let (now, index) = (self.clock.tag(now), owner.0);
        let Product { owners, level, generation, .. } = self;
        let owner = &mut owners[index as usize];
        owner.refresh_share(*generation, now, level);
        self.note_client(now, index, report);
        let (reserved, beyond) = remote::amounts(report, &self.info);
        let Product { owners, level, info, .. } = self;
        let remote = owners[index as usize].remote();
        let piece = remote.map_or(0, |remote| remote.piece.cost);
        let costs = (reserved.cost, piece);
        let capped = |member: &Member| member.tags.is_capped(ServicePhase::Reservation, costs, level.virtual_time);
        let is_capped = member(owners, index).is_none_or(capped);
        let clocks = level.charge_clocks(is_capped, piece, now, index, |index| member(owners, index));
        let owner = &mut owners[index as usize];
        if let Some(remote) = owner.remote_mut() {
            remote.note(report, info);
            let remote = *remote;
            owner.member.tags.add_remote(&clocks, &remote, (&reserved, &beyond));
            for amount in [&reserved, &beyond] {
                owner.lanes_mut().into_iter().for_each(|lanes| lanes.add_remote(amount));
            }
        }
        if owner.lanes().is_some() {
            // A limit of the VM may now throttle each of its volumes.
            self.settle_volumes(index, now);
        }
        self.settle(index, now);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        self.arena.grow(&grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.arena.is_empty() {
            self.batch = None;
            return Decision::Idle;
        }
        let tag = self.clock.tag(now);
        self.note_decision(tag);
        self.release(tag);
        let Some(choice) = self.continue_batch(tag).or_else(|| self.choose(tag)) else {
            let Product { level, owners, .. } = self;
            let wake = level.wake(|index| member(owners, index));
            let wake = wake.expect("queued requests belong to a VM that is due later or throttled");
            return Decision::WaitUntil(self.clock.instant(wake));
        };
        let (place, phase, wait) = self.take(tag, choice);
        if self.batch_max > 1 {
            self.follow_batch(now, choice, place);
        }
        self.in_flight += 1;
        Decision::Dispatch(Request { phase, wait, ..*self.arena.entry(place) })
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        self.restart_if_idle();
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let device_class = self.info.device_class;
        change.policy().map_or(Ok(()), |policy| DESCRIPTOR.check_units(policy, device_class))?;
        let tag = self.clock.tag(now);
        match change {
            Change::AddOwner { owner, policy } => self.add_owner(tag, owner, &policy),
            Change::SetOwner { owner, policy } => {
                *self.owner_mut(owner.0).policy = policy;
                self.set_policies(tag, owner.0);
            }
            Change::RemoveOwner { owner } => self.remove_owner(owner),
            Change::AddVolume { owner, volume, policy } => {
                self.owner_mut(owner.0).volumes.push(Volume::new(volume, policy));
                self.set_policies(tag, owner.0);
            }
            Change::SetVolume { owner, volume, policy } => {
                let state = self.owner_mut(owner.0);
                let index = state.volume_index(volume);
                *state.volumes[index].policy = policy;
                self.set_policies(tag, owner.0);
            }
            Change::RemoveVolume { owner, volume } => {
                self.undecided.retain(|held| held.owner != owner.0 || held.volume.is_none());
                let volumes = &mut self.owner_mut(owner.0).volumes;
                volumes.retain(|known| known.id != volume);
                let members = volumes.iter_mut().filter_map(|volume| volume.member.as_mut());
                members.for_each(|member| member.awaits_decision = false);
                self.set_policies(tag, owner.0);
            }
            Change::Device { depth, request_bytes } => {
                (self.info.depth, self.info.request_bytes) = (depth, request_bytes);
                for owner in 0..self.owners.len() {
                    if self.owners[owner].present {
                        self.set_policies(tag, owner as u32);
                    }
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let tag = self.clock.tag(now);
        let index = scope.owner().0;
        let Some(owner) = self.owners.get_mut(index as usize).filter(|owner| owner.present) else { return };
        owner.cancel(scope, &mut self.arena, removed);
        self.batch = None;
        self.settle_volumes(index, tag);
        self.settle(index, tag);
        self.restart_if_idle();
    }

    fn inspect(&self, _now: Instant) -> State {
        let nanos = |tag: Tag| self.clock.instant(tag).as_nanos();
        let present = self.owners.iter().enumerate().filter(|(_, owner)| owner.present);
        let owners = present.map(|(index, owner)| {
            let tags = &owner.member.tags;
            let state = OwnerState {
                queued: u64::from(owner.queued),
                reservation_due_ns: tags.minimum.due().map(|due| nanos(self.level.real(due))),
                limit_passes_ns: owner.limit_passes_at().map(nanos),
                share_tag: tags.is_weighted().then(|| tags.share_tag()),
            };
            (index as u32, state)
        });
        State {
            queued: self.arena.len() as u64,
            in_flight: self.in_flight,
            virtual_time: Some(self.level.virtual_time),
            owners: owners.collect(),
        }
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        let clocks = self.level.clocks(self.clock.clone().tag(now));
        let Some((owner, volume)) = self.find(scope) else { return Standing::default() };
        let standing = owner.standing(volume, &clocks);
        // A tag of an earlier virtual time has no meaning.
        let counts = volume.is_some() || owner.generation == self.generation;
        let floors = [volume.is_none().then(|| self.level.floor.balance()), standing.floors[1]];
        Standing { ahead: standing.ahead.filter(|_| counts), floors, ..standing }
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        let tag = self.clock.tag(now);
        let Some((_, volume)) = self.find(scope) else { return };
        let (index, clocks) = (scope.owner().0, self.level.clocks(tag));
        standing.floors[0].into_iter().for_each(|balance| self.level.floor.resume(balance));
        self.owner_mut(index).resume(volume, &clocks, standing);
        match volume.filter(|_| self.owner_mut(index).has_inner()) {
            Some(volume) => self.settle_volume(index, volume, tag, None),
            None => self.settle_volumes(index, tag),
        }
        self.settle(index, tag);
    }
}
