//! A VM and its volumes in mClock's product mode. The fields that a dispatch needs are adjacent.

use crate::inline_vec::InlineVec;
use crate::policy::Policy;
use crate::request::{RequestId, VolumeId};
use crate::request_arena::{Arena, Fifo};
use crate::scheduler::DeviceInfo;
use crate::tag::Tag;
use crate::tournament::Tournament;

use super::lanes::{self, Lanes, Open};
use super::level::{Level, Member, VIRTUAL_MAX};
use super::remote::Remote;
use super::tags::{Amount, Clocks, ServicePhase, Tags};

/// Fields that a dispatch needs come first, in few cache lines: with many VMs each line is fetched for every request.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Owner {
    pub(super) member: Member,
    pub(super) queued: u32,
    /// Generation of virtual time in which its share tag was set.
    pub(super) generation: u32,
    pub(super) volumes: InlineVec<Volume>,
    /// Order of its volumes; `None` for a VM with a single volume without its own policy.
    pub(super) inner: Option<Box<Inner>>,
    /// Its client's reports of other servers.
    pub(super) remote: Option<Box<Remote>>,
    /// Queues and limits by direction; `None` if no limit of the VM or of its volumes distinguishes reads and writes, or has a
    /// burst for a time.
    pub(super) lanes: Option<Box<Lanes>>,
    pub(super) policy: Box<Policy>,
}

#[derive(Debug)]
pub(super) struct Volume {
    /// Only reads, if the VM has [`Lanes`].
    pub(super) fifo: Fifo,
    pub(super) id: VolumeId,
    /// `None` for the only volume of a VM, without its own policy: there is nothing to choose or to check.
    pub(super) member: Option<Box<Member>>,
    pub(super) policy: Box<Policy>,
}

/// The volumes of one VM, as a separate level.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) level: Level,
    /// Volumes with requests, by the arrival of their oldest one.
    oldest: Tournament,
    /// Index in the list of volumes, by the number of the volume (below 256).
    indices: Vec<u16>,
}

fn volume_member(volumes: &InlineVec<Volume>, index: u32) -> Option<&Member> {
    volumes.get(index as usize)?.member.as_deref()
}

impl Owner {
    pub(super) fn volume_index(&self, id: VolumeId) -> usize {
        match &self.inner {
            None => 0,
            Some(inner) => usize::from(inner.indices[usize::from(id.0)]),
        }
    }

    /// Resets the share tag if virtual time was reset, to `generation`, since the VM was last active.
    #[inline]
    pub(super) fn refresh_share(&mut self, generation: u32, now: Tag, level: &Level) {
        if self.generation != generation {
            self.generation = generation;
            self.member.tags.restart_share(&level.clocks(now), self.remote.as_deref());
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
        let volumes = match &mut self.inner {
            None => {
                self.member.head = self.head(0, arena).expect("a backlogged VM has a head");
                lanes::pass_at(self.lanes.as_deref(), 0, &self.volumes[0].fifo)
            }
            Some(inner) => {
                let (oldest, _, _) = inner.oldest.peek().expect("a backlogged VM has a volume with requests");
                self.member.head = RequestId(oldest);
                self.volume_eligible_at(now)
            }
        };
        own.max(volumes)
    }

    /// When the first volume may be chosen; 0 if one may be chosen now.
    fn volume_eligible_at(&mut self, now: Tag) -> Tag {
        self.release_volumes(now);
        let Owner { inner: Some(inner), volumes, .. } = self else { return 0 };
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
            let passes = lanes::pass_at(lanes.as_deref(), index as usize, &volumes[index as usize].fifo);
            let member = volumes[index as usize].member.as_deref_mut().expect("a volume in an order has tags");
            let eligible_at = member.tags.limiter.eligible_at().max(passes);
            inner.level.settle(index, member, now, eligible_at);
        }
    }

    /// Updates a volume in the order; `after` is the phase in which it was served, if that is the reason.
    pub(super) fn settle_volume(&mut self, index: usize, arena: &Arena, now: Tag, after: Option<ServicePhase>) {
        let head = self.head(index, arena);
        let Owner { inner: Some(inner), volumes, lanes, .. } = self else { return };
        let passes = lanes::pass_at(lanes.as_deref(), index, &volumes[index].fifo);
        let Volume { member, .. } = &mut volumes[index];
        let member = member.as_deref_mut().expect("one of several volumes has tags");
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
        let eligible_at = member.tags.limiter.eligible_at().max(passes);
        match after {
            Some(phase) => inner.level.settle_after(place, member, now, eligible_at, phase),
            None => inner.level.settle(place, member, now, eligible_at),
        }
    }

    /// Inner level: in the reservation phase the most overdue volume, unless its floor is owed; otherwise the one with
    /// the smallest share tag. Also returns the phase inside the VM.
    // rule: mclock.two-levels, mclock.eligible, mclock.volume-constraint, mclock.volume-weight
    #[inline]
    pub(super) fn choose_volume(&mut self, phase: ServicePhase, now: Tag) -> (usize, ServicePhase) {
        if self.inner.is_none() {
            return (0, phase);
        }
        self.release_volumes(now);
        let Owner { inner: Some(inner), volumes, .. } = self else { return (0, phase) };
        let members = |index| volume_member(volumes, index);
        let by_share = match phase {
            ServicePhase::Reservation => None,
            ServicePhase::Weight => inner.level.choose_by_share(members).map(|chosen| (chosen, phase)),
        };
        // A volume without weight is not in the order of shares. If it is alone, it is served when it is due.
        let chosen = by_share.or_else(|| inner.level.choose(now, members));
        let (chosen, phase) = chosen.expect("an eligible VM has an eligible volume");
        (chosen as usize, phase)
    }

    /// Whether the limit of a volume lets its next request pass.
    pub(super) fn volume_is_eligible(&self, index: usize, now: Tag) -> bool {
        let Some(inner) = &self.inner else { return true };
        let member = volume_member(&self.volumes, index as u32).expect("one of several volumes has tags");
        let due = member.tags.minimum.due().filter(|_| !member.tags.is_weighted());
        member.tags.limiter.eligible_at() <= now && due.is_none_or(|due| inner.level.real(due) <= now)
    }

    /// Charges a volume for a dispatch in `phase` inside the VM. `goes_on`: in a batch with the previous one.
    pub(super) fn charge_volume(
        &mut self,
        index: usize,
        phase: ServicePhase,
        (open, amount): (Open, &Amount),
        now: Tag,
        goes_on: bool,
    ) {
        let lane_step = self.lane_step_of(index, open, amount);
        let Owner { inner: Some(inner), volumes, remote, .. } = self else { return };
        let members = |index| volume_member(volumes, index);
        let tags = &members(index as u32).expect("one of several volumes has tags").tags;
        let is_capped = tags.is_capped(phase, (amount.cost, amount.cost), inner.level.virtual_time);
        let clocks = inner.level.charge_clocks(is_capped, amount.cost, now, index as u32, members);
        let member = volumes[index].member.as_deref_mut().expect("one of several volumes has tags");
        member.tags.charge(phase, amount, &clocks, remote.as_deref(), lane_step);
        inner.level.note_served(phase, amount.cost, goes_on);
        if inner.level.virtual_time > VIRTUAL_MAX {
            let by = inner.level.rebase();
            let members = volumes.iter_mut().filter_map(|volume| volume.member.as_mut());
            members.for_each(|member| member.tags.rebase(by));
        }
    }

    /// Activates a volume that has requests after it had none.
    pub(super) fn activate_volume(&mut self, index: usize, now: Tag) {
        let Owner { inner: Some(inner), volumes, remote, .. } = self else { return };
        let member = volumes[index].member.as_deref_mut().expect("one of several volumes has tags");
        member.tags.activate(&inner.level.clocks(now), remote.as_deref());
    }

    /// The tags of a volume, and the clocks of [`Level::charge_clocks`] for reservation service.
    pub(super) fn volume_tags(&mut self, index: usize, costs: (u64, u64), now: Tag) -> Option<(&mut Tags, Clocks)> {
        let Owner { inner: Some(inner), volumes, .. } = self else { return None };
        let members = |index| volume_member(volumes, index);
        let tags = &members(index as u32)?.tags;
        let is_capped = tags.is_capped(ServicePhase::Reservation, costs, inner.level.virtual_time);
        let clocks = inner.level.charge_clocks(is_capped, costs.1, now, index as u32, members);
        volumes[index].member.as_deref_mut().map(|member| (&mut member.tags, clocks))
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
            match &mut volume.member {
                Some(member) => member.tags.set_policy(&volume.policy, info, &clocks, self.remote.as_deref()),
                None => volume.member = Some(Box::new(Member::new(Tags::new(&volume.policy, info, &clocks)))),
            }
        }
        self.inner = Some(Box::new(Inner { level, oldest: Tournament::default(), indices }));
    }
}
