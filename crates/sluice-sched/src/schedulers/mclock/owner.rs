//! A VM and its volumes. The fields that a dispatch needs are adjacent.

use crate::inline_vec::InlineVec;
use crate::policy::Policy;
use crate::request::{Direction, RequestId, VolumeId};
use crate::request_arena::{Arena, Fifo};
use crate::scheduler::DeviceInfo;
use crate::standing::Standing;
use crate::tag::Tag;
use crate::tournament::Tournament;

use super::lanes::{self, Lanes, Open};
use super::level::{Level, Member, VIRTUAL_MAX};
use super::remote::Remote;
use super::tags::{Amount, Clocks, ServicePhase, Tags};

/// Fields that a dispatch needs come first, in two cache lines: with many VMs each line is fetched for every request. Most VMs have one
/// volume, and neither limits by direction nor reports of other servers. `extended` says so in the first line, so that the rest
/// is not even looked at.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Owner {
    /// Generation of virtual time in which its share tag was set.
    pub(super) generation: u32,
    pub(super) queued: u32,
    /// Queue of the only volume, as long as `inner` is `None`. Only reads, if the VM has [`Lanes`].
    fifo: Fifo,
    /// Whether it has any of `inner`, `remote` and `lanes`.
    extended: bool,
    pub(super) present: bool,
    pub(super) member: Member,
    /// Order of its volumes; `None` for a VM with a single volume without its own policy.
    inner: Option<Box<Inner>>,
    /// Its client's reports of other servers.
    remote: Option<Box<Remote>>,
    /// Queues and limits by direction; `None` if no limit of the VM or of its volumes distinguishes reads and writes, or has a
    /// burst for a time.
    pub(super) lanes: Option<Box<Lanes>>,
    pub(super) volumes: InlineVec<Volume>,
    pub(super) policy: Box<Policy>,
}

const _: () = assert!(
    core::mem::offset_of!(Owner, member) + Member::HOT_SIZE <= 128,
    "a dispatch of a VM with one volume needs two cache lines of it"
);

#[derive(Debug)]
pub(super) struct Volume {
    /// Its queue, if the VM has an order of volumes. Only reads, if the VM has [`Lanes`].
    pub(super) fifo: Fifo,
    pub(super) id: VolumeId,
    /// `None` for the only volume of a VM, without its own policy: there is nothing to choose or to check.
    pub(super) member: Option<Box<Member>>,
    /// The counter of the VM that includes it.
    waiting: Waiting,
    pub(super) policy: Box<Policy>,
}

impl Volume {
    /// A volume without requests.
    pub(super) fn new(id: VolumeId, policy: Policy) -> Self {
        Volume { fifo: Fifo::default(), id, member: None, waiting: Waiting::Nothing, policy: Box::new(policy) }
    }
}

/// What a volume has queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Nothing,
    /// Requests that its own limits bound.
    Limited,
    /// Requests that none of its own limits bounds.
    Unlimited,
}

/// The volumes of one VM, as a separate level.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) level: Level,
    /// Number of volumes by [`Waiting`]; the first number is not used.
    waiting: [u32; 3],
    /// Volumes with requests, by the arrival of their oldest one.
    oldest: Tournament,
    /// Index in the list of volumes, by the number of the volume (below 256).
    indices: Vec<u16>,
}

/// Distance between requests that pass several limits side by side, each with its own distance; 0 if one of them is none. Example: of 10 and
/// 5 ms it is 3.3 ms.
pub(super) fn side_by_side(steps: impl Iterator<Item = Tag>) -> Tag {
    let mut rate = 0_u128;
    for step in steps {
        let Some(each) = (1_u128 << 96).checked_div(step.into()) else { return 0 };
        rate = rate.saturating_add(each);
    }
    (1_u128 << 96).checked_div(rate).map_or(0, |step| Tag::try_from(step).unwrap_or(Tag::MAX))
}

fn volume_member(volumes: &InlineVec<Volume>, index: u32) -> Option<&Member> {
    volumes.get(index as usize)?.member.as_deref()
}

impl Owner {
    /// A VM without volumes.
    pub(super) fn new(tags: Tags, generation: u32, policy: Policy) -> Owner {
        Owner {
            generation,
            queued: 0,
            fifo: Fifo::default(),
            extended: false,
            present: true,
            member: Member::new(tags),
            inner: None,
            remote: None,
            lanes: None,
            volumes: InlineVec::default(),
            policy: Box::new(policy),
        }
    }

    /// In the place of a VM that is not present.
    pub(super) fn absent() -> Owner {
        Owner { present: false, ..Owner::new(Tags::default(), 0, Policy::default()) }
    }

    /// Whether its volumes are in an order.
    #[inline(always)]
    pub(super) const fn has_inner(&self) -> bool {
        self.extended && self.inner.is_some()
    }

    /// The order of its volumes, and the volumes.
    #[inline(always)]
    pub(super) fn inner_mut(&mut self) -> Option<(&mut Inner, &mut InlineVec<Volume>)> {
        if !self.extended {
            return None;
        }
        self.inner.as_deref_mut().map(|inner| (inner, &mut self.volumes))
    }

    #[inline(always)]
    pub(super) fn lanes(&self) -> Option<&Lanes> {
        if self.extended { self.lanes.as_deref() } else { None }
    }

    #[inline(always)]
    pub(super) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        if self.extended { self.lanes.as_deref_mut() } else { None }
    }

    pub(super) fn set_lanes_to(&mut self, lanes: Option<Box<Lanes>>) {
        self.lanes = lanes;
        self.note_extended();
    }

    #[inline(always)]
    pub(super) fn remote(&self) -> Option<&Remote> {
        if self.extended { self.remote.as_deref() } else { None }
    }

    #[inline(always)]
    pub(super) fn remote_mut(&mut self) -> Option<&mut Remote> {
        if self.extended { self.remote.as_deref_mut() } else { None }
    }

    pub(super) fn set_remote(&mut self, remote: Option<Remote>) {
        self.remote = remote.map(Box::new);
        self.note_extended();
    }

    /// Its tags, and the reports of its client.
    #[inline(always)]
    pub(super) fn tags_and_remote(&mut self) -> (&mut Tags, Option<&Remote>) {
        let remote = if self.extended { self.remote.as_deref() } else { None };
        (&mut self.member.tags, remote)
    }

    /// Sets the tags of the VM as its policy has them.
    pub(super) fn set_tags(&mut self, info: &DeviceInfo, clocks: &Clocks) {
        self.member.tags.set_policy(&self.policy, info, clocks, self.remote.as_deref());
    }

    /// When a limit of the VM or of this volume last let it pass again.
    #[inline(always)]
    pub(super) fn released(&self, volume: usize) -> Tag {
        let held = |volume: &Volume| volume.member.as_ref().map_or(0, |member| member.released);
        self.member.released.max(if self.has_inner() { held(&self.volumes[volume]) } else { 0 })
    }

    fn note_extended(&mut self) {
        self.extended = self.inner.is_some() || self.remote.is_some() || self.lanes.is_some();
    }

    #[inline(always)]
    pub(super) fn fifo(&self, volume: usize, direction: Direction) -> &Fifo {
        match (self.lanes(), direction) {
            (Some(lanes), Direction::Write) => lanes.writes(volume),
            _ if self.has_inner() => &self.volumes[volume].fifo,
            _ => &self.fifo,
        }
    }

    #[inline(always)]
    pub(super) fn fifo_mut(&mut self, volume: usize, direction: Direction) -> &mut Fifo {
        let has_inner = self.has_inner();
        match (&mut self.lanes, direction) {
            (Some(lanes), Direction::Write) if self.extended => lanes.writes_mut(volume),
            _ if has_inner => &mut self.volumes[volume].fifo,
            _ => &mut self.fifo,
        }
    }

    /// Moves the queue of the only volume to the volume, or back, while its volumes are in no order.
    pub(super) fn exchange_fifo(&mut self) {
        if self.inner.is_none()
            && let Some(only) = self.volumes.iter_mut().next()
        {
            core::mem::swap(&mut self.fifo, &mut only.fifo);
        }
    }

    #[inline(always)]
    pub(super) fn volume_index(&self, id: VolumeId) -> usize {
        match &self.inner {
            Some(inner) if self.extended => usize::from(inner.indices[usize::from(id.0)]),
            _ => 0,
        }
    }

    /// Resets the share tag if virtual time was reset, to `generation`, since the VM was last active.
    #[inline]
    pub(super) fn refresh_share(&mut self, generation: u32, now: Tag, level: &Level) {
        if self.generation != generation {
            self.generation = generation;
            let (tags, remote) = self.tags_and_remote();
            tags.restart_share(&level.clocks(now), remote);
        }
    }

    /// When limits let the VM pass: its own limit, and that of at least one volume. Updates the VM's earliest arrival.
    ///
    /// The arrival breaks ties between VMs. It must not depend on which volumes may pass, since that changes with time,
    /// and keys in an order must not change.
    #[inline(always)]
    pub(super) fn eligible_at(&mut self, arena: &Arena, now: Tag) -> Tag {
        if self.queued == 0 {
            return 0;
        }
        let own = self.member.tags.limiter.eligible_at();
        let Some((inner, _)) = self.inner_mut() else {
            self.member.head = self.head(0, arena).expect("a backlogged VM has a head");
            return own.max(lanes::pass_at(self.lanes(), 0, &self.fifo));
        };
        let (oldest, _, _) = inner.oldest.peek().expect("a backlogged VM has a volume with requests");
        self.member.head = RequestId(oldest);
        own.max(self.volume_eligible_at(now))
    }

    /// When the first volume may be chosen; 0 if one may be chosen now.
    #[inline(never)]
    fn volume_eligible_at(&mut self, now: Tag) -> Tag {
        self.release_volumes(now);
        let Some((inner, volumes)) = self.inner_mut() else { return 0 };
        let members = |index| volume_member(volumes, index);
        match inner.level.first_by_share(members) {
            Some(_) => 0,
            None => inner.level.wake(members).expect("a volume with requests has a weight, a reservation or a limit"),
        }
    }

    /// Inserts volumes whose limit lets them pass by now into the order again.
    pub(super) fn release_volumes(&mut self, now: Tag) {
        let Owner { inner: Some(inner), volumes, lanes, .. } = self else { return };
        while let Some(index) = inner.level.releasable(now) {
            let Volume { member, fifo, .. } = &mut volumes[index as usize];
            let member = member.as_deref_mut().expect("a volume in an order has tags");
            let passes = lanes::passes(lanes.as_deref(), index as usize, fifo, member.tags.limiter.eligible_at());
            inner.level.settle(index, member, now, passes);
        }
    }

    /// Updates a volume in the order; `after` is the phase in which it was served, if that is the reason.
    pub(super) fn settle_volume(&mut self, index: usize, arena: &Arena, now: Tag, after: Option<ServicePhase>) {
        let head = self.head(index, arena);
        let Owner { inner: Some(inner), volumes, lanes, .. } = self else { return };
        let Volume { member, fifo, waiting, .. } = &mut volumes[index];
        let member = member.as_deref_mut().expect("one of several volumes has tags");
        let is_limited =
            member.tags.limiter.is_set() || lanes.as_deref().is_some_and(|lanes| lanes.bounds_all(index, fifo));
        let now_waiting = match head {
            None => Waiting::Nothing,
            Some(_) if is_limited => Waiting::Limited,
            Some(_) => Waiting::Unlimited,
        };
        let before = core::mem::replace(waiting, now_waiting);
        inner.waiting[before as usize] = inner.waiting[before as usize].wrapping_sub(1);
        inner.waiting[now_waiting as usize] = inner.waiting[now_waiting as usize].wrapping_add(1);
        let place = index as u32;
        match head {
            Some(head) => {
                (member.backlogged, member.head) = (true, head);
                inner.oldest.set(place, head.0, head);
            }
            None => {
                member.backlogged = false;
                inner.oldest.remove(place);
            }
        }
        let passes = lanes::passes(lanes.as_deref(), index, fifo, member.tags.limiter.eligible_at());
        match after {
            Some(phase) => inner.level.settle_after(place, member, now, passes, phase),
            None => inner.level.settle(place, member, now, passes),
        }
    }

    /// Inner level: the most overdue volume, unless its floor is owed; otherwise the one with the smallest share tag. Also
    /// returns the phase inside the VM, which does not depend on the VM's own `phase`: a VM at its limit is served by its weight in
    /// part, and its volumes keep their reservations.
    // rule: mclock.two-levels, mclock.eligible, mclock.volume-constraint, mclock.volume-weight
    #[inline]
    pub(super) fn choose_volume(&mut self, phase: ServicePhase, now: Tag) -> (usize, ServicePhase) {
        if self.has_inner() { self.choose_one_of_several(phase, now) } else { (0, phase) }
    }

    #[inline(never)]
    fn choose_one_of_several(&mut self, phase: ServicePhase, now: Tag) -> (usize, ServicePhase) {
        self.release_volumes(now);
        let Some((inner, volumes)) = self.inner_mut() else { return (0, phase) };
        let chosen = inner.level.choose(now, |index| volume_member(volumes, index));
        let (chosen, phase) = chosen.expect("an eligible VM has an eligible volume");
        (chosen as usize, phase)
    }

    /// Lets virtual time advance to a volume that is served by weight in place of the one with the smallest share tag.
    pub(super) fn note_picked(&mut self, volume: usize) {
        let Some((inner, volumes)) = self.inner_mut() else { return };
        let tag = volume_member(volumes, volume as u32).map_or(0, |member| member.tags.share_tag());
        inner.level.virtual_time = inner.level.virtual_time.max(tag);
    }

    /// Distance that the limits of the volumes which have requests queued keep between requests of the VM like this one; 0 if one of
    /// these volumes has no limit. `step` is the distance that those of the served `volume` keep.
    ///
    /// The volumes pass side by side, so the distance is that of all limits together, whichever volume is served: what a VM is owed is the
    /// least of several such distances, of which each must be the same for all requests. Example: two volumes with limits of 100 and
    /// 200 IOPS. Each request stands for 3.3 ms. O(volumes) where all are limited.
    // rule: mclock.volumes-owed
    fn step_of_volumes(&self, volume: usize, step: Tag, amount: &Amount) -> Tag {
        let Some(Inner { waiting, .. }) = self.inner.as_deref() else { return 0 };
        if waiting[Waiting::Unlimited as usize] > 0 || step == 0 {
            return 0;
        }
        let others = (0..self.volumes.len())
            .filter(|other| *other != volume && self.volumes[*other].waiting == Waiting::Limited)
            .map(|other| self.limit_step_of(other, amount).max(self.lane_step_of_waiting(other, amount)));
        side_by_side(others.chain([step]))
    }

    fn limit_step_of(&self, index: usize, amount: &Amount) -> Tag {
        volume_member(&self.volumes, index as u32).map_or(0, |member| member.tags.limiter.step(amount))
    }

    /// Distance that limits by direction and the limits of its volumes keep between requests of the VM like this one.
    #[inline]
    pub(super) fn inner_step(&self, volume: usize, open: Open, amount: &Amount) -> Tag {
        if !self.extended {
            return 0;
        }
        let of_volume = self.limit_step_of(volume, amount).max(self.lane_step_of(volume, open, amount));
        self.lane_step(open, amount).max(self.step_of_volumes(volume, of_volume, amount))
    }

    /// Whether the limit of a volume lets its next request pass.
    pub(super) fn volume_is_eligible(&self, index: usize, now: Tag) -> bool {
        let Some(inner) = self.inner.as_ref().filter(|_| self.extended) else { return true };
        let member = volume_member(&self.volumes, index as u32).expect("one of several volumes has tags");
        let due = member.tags.minimum.due().filter(|_| !member.tags.is_weighted());
        member.tags.limiter.eligible_at() <= now && due.is_none_or(|due| inner.level.real(due) <= now)
    }

    /// Charges a volume for a dispatch in `phase` inside the VM. `goes_on`: in a batch with the previous one.
    #[inline]
    pub(super) fn charge_volume(
        &mut self,
        index: usize,
        phase: ServicePhase,
        served: (Open, &Amount),
        now: Tag,
        goes_on: bool,
    ) {
        if self.has_inner() {
            self.charge_one_of_several(index, phase, served, now, goes_on);
        }
    }

    #[inline(never)]
    fn charge_one_of_several(
        &mut self,
        index: usize,
        phase: ServicePhase,
        (open, amount): (Open, &Amount),
        now: Tag,
        goes_on: bool,
    ) {
        let lane_step = self.lane_step_of(index, open, amount);
        let Owner { inner: Some(inner), volumes, .. } = self else { return };
        if phase == ServicePhase::Reservation
            && let Some(member) = volumes[index].member.as_deref_mut()
        {
            inner.level.bound_lag(member, now);
        }
        let members = |index| volume_member(volumes, index);
        let tags = &members(index as u32).expect("one of several volumes has tags").tags;
        let is_capped = tags.is_capped(phase, (amount.cost, amount.cost), inner.level.virtual_time);
        inner.level.follow_first(is_capped, members);
        let clocks = inner.level.charge_clocks(is_capped, amount.cost, now, index as u32, members);
        let member = volumes[index].member.as_deref_mut().expect("one of several volumes has tags");
        // A volume is at one server.
        member.tags.charge(phase, amount, &clocks, None, lane_step);
        inner.level.note_served(phase, amount.cost, goes_on);
        if inner.level.virtual_time > VIRTUAL_MAX {
            let by = inner.level.rebase();
            let members = volumes.iter_mut().filter_map(|volume| volume.member.as_mut());
            members.for_each(|member| member.tags.rebase(by));
        }
    }

    /// Activates a volume that has requests after it had none.
    pub(super) fn activate_volume(&mut self, index: usize, now: Tag) {
        let Owner { inner: Some(inner), volumes, .. } = self else { return };
        let clocks = inner.level.clocks_behind(now, |index| volume_member(volumes, index));
        let member = volumes[index].member.as_deref_mut().expect("one of several volumes has tags");
        member.tags.activate(&clocks, None);
    }

    /// Returns the standing of the VM among the VMs, or of one of its volumes among its volumes.
    pub(super) fn standing(&self, volume: Option<usize>, clocks: &Clocks) -> Standing {
        let mut standing = match (volume, &self.inner) {
            (None, _) => self.member.standing(clocks),
            (Some(index), Some(inner)) => volume_member(&self.volumes, index as u32)
                .map_or_else(Standing::default, |member| member.standing(&inner.level.clocks(clocks.now))),
            (Some(_), None) => Standing::default(),
        };
        self.add_standing_of_lanes(volume, clocks.now, &mut standing);
        standing.floors[1] = self.inner.as_ref().filter(|_| volume.is_none()).map(|inner| inner.level.floor.balance());
        standing
    }

    /// Sets the tags to the standing under another scheduler. The caller settles the VM and its volumes.
    pub(super) fn resume(&mut self, volume: Option<usize>, clocks: &Clocks, standing: &Standing) {
        match (volume, self.inner_mut()) {
            (None, inner) => {
                if let (Some((inner, _)), Some(balance)) = (inner, standing.floors[1]) {
                    inner.level.floor.resume(balance);
                }
                self.member.tags.resume(clocks, standing);
            }
            (Some(index), Some((inner, volumes))) => {
                let clocks = inner.level.clocks(clocks.now);
                let member = volumes[index].member.as_deref_mut();
                member.into_iter().for_each(|member| member.tags.resume(&clocks, standing));
            }
            (Some(_), None) => {}
        }
        self.resume_lanes(volume, clocks.now, standing);
    }

    /// Rebuilds the order of the volumes after they or their policies have changed. As soon as there is something to
    /// choose or to check, every volume has tags. `outer` is the level of the VM. The caller settles each volume.
    /// O(volumes).
    pub(super) fn arrange_volumes(&mut self, info: &DeviceInfo, outer: &Level, now: Tag) {
        let several = self.volumes.len() > 1 || self.volumes.iter().any(|volume| *volume.policy != Policy::default());
        if !several && self.inner.is_none() {
            return;
        }
        let level = match &self.inner {
            None => outer.with_same_parameters(),
            Some(inner) => {
                inner.level.emptied(self.volumes.iter_mut().filter_map(|volume| volume.member.as_deref_mut()))
            }
        };
        let clocks = level.clocks(now);
        let mut indices = Vec::new();
        for (place, volume) in (0u16..).zip(self.volumes.iter_mut()) {
            let number = usize::from(volume.id.0);
            indices.resize(indices.len().max(number + 1), 0);
            indices[number] = place;
            volume.waiting = Waiting::Nothing;
            match &mut volume.member {
                Some(member) => member.tags.set_policy(&volume.policy, info, &clocks, None),
                None => volume.member = Some(Box::new(Member::new(Tags::new(&volume.policy, info, &clocks)))),
            }
        }
        self.exchange_fifo();
        self.inner = Some(Box::new(Inner { level, waiting: [0; 3], oldest: Tournament::default(), indices }));
        self.note_extended();
    }
}
