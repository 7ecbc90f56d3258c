//! Owners of a gate, with their volumes, policies and statistics.
//!
//! An owner that was removed keeps its number until its last request has completed, so no completion is counted for
//! another owner.

use core::mem::offset_of;

use crate::admission;
use crate::gate::finished::Finished;
use crate::gate::stats::GateStats;
use crate::policy::{LatencyTarget, Policy};
use crate::request::{Completion, Kind, OwnerId, Request, VolumeId};
use crate::scheduler::ChangeError;
use crate::slab::Slab;
use crate::time::Instant;

/// Maximum number of volumes of one owner on one device.
const VOLUMES_MAX: usize = 256;
/// Maximum number of owners of one gate.
const OWNERS_MAX: usize = 1 << 20;

/// Fields that each request needs come first, in few cache lines: with many VMs each line is fetched for every request.
#[derive(Debug)]
#[repr(C, align(64))]
struct Member {
    present: bool,
    /// The requests to which the latency target applies.
    judged: Judged,
    /// One of the volumes, usually the only one, for a quick look-up.
    first: Option<VolumeId>,
    /// The latency target in nanoseconds, if there is one.
    late_after: u64,
    /// `None` as long as the owner has never had a second volume, or one with another latency target than its own: its own
    /// statistics are those of its volume, and nothing is counted twice.
    apart: Option<Box<Apart>>,
    stats: GateStats,
    policy: Policy,
    /// Sorted by number.
    volumes: Vec<(VolumeId, Policy)>,
}

const LINE: usize = 64;
const _: () = assert!(offset_of!(Member, stats.dispatched_cost) == LINE && offset_of!(Member, stats.waits) == 2 * LINE);
const _: () = assert!(offset_of!(Member, stats.cost) == 4 * LINE && offset_of!(Member, stats.ended) + 40 == 5 * LINE);

/// The requests to which a latency target applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Judged {
    None,
    Reads,
    All,
}

/// The latency target that requests are judged by.
#[derive(Debug, Clone, Copy)]
struct Target {
    judged: Judged,
    /// In nanoseconds; any number if no request is judged.
    late_after: u64,
}

impl Target {
    fn of(target: Option<LatencyTarget>) -> Target {
        let judged = match target {
            None => Judged::None,
            Some(target) if target.reads_only => Judged::Reads,
            Some(_) => Judged::All,
        };
        let nanos = target.map_or(0, |target| target.p99.as_nanos());
        Target { judged, late_after: u64::try_from(nanos).unwrap_or(u64::MAX) }
    }

    /// The target of a request in nanoseconds, if it has one.
    fn of_kind(self, kind: Kind) -> Option<u64> {
        let is_judged = self.judged == Judged::All || self.judged == Judged::Reads && kind == Kind::Read;
        is_judged.then_some(self.late_after)
    }
}

/// Statistics of the volumes of an owner.
#[derive(Debug)]
struct Apart {
    /// In the order of the owner's volumes.
    volumes: Vec<ApartVolume>,
}

#[derive(Debug)]
struct ApartVolume {
    /// That of the volume, or else of its owner.
    target: Target,
    stats: GateStats,
}

impl ApartVolume {
    /// `retarget` sets the target.
    fn new(stats: GateStats) -> ApartVolume {
        ApartVolume { target: Target::of(None), stats }
    }
}

impl Member {
    fn new(now: Instant, policy: Policy) -> Member {
        let Target { judged, late_after } = Target::of(policy.latency);
        Member {
            present: true,
            judged,
            first: None,
            late_after,
            apart: None,
            stats: GateStats::new(now),
            policy,
            volumes: Vec::with_capacity(1),
        }
    }

    /// The latency target by which requests are judged in the statistics of the owner.
    fn target(&self) -> Target {
        Target { judged: self.judged, late_after: self.late_after }
    }

    /// Chooses the latency targets by which requests are judged, after a policy or the volumes have changed.
    fn retarget(&mut self) {
        let own = self.policy.latency;
        // As long as volumes are not counted apart there is one at most.
        let of_volume = self.volumes.first().and_then(|(_, policy)| policy.latency);
        if self.apart.is_none() && own.is_some() && of_volume.is_some() && own != of_volume {
            self.count_apart();
        }
        let target = match &mut self.apart {
            // One of them has a target, or both have the same.
            None => own.or(of_volume),
            Some(apart) => {
                for (volume, (_, policy)) in apart.volumes.iter_mut().zip(&self.volumes) {
                    volume.target = Target::of(policy.latency.or(own));
                }
                own
            }
        };
        Target { judged: self.judged, late_after: self.late_after } = Target::of(target);
    }

    /// Counts volumes apart from now on. Until now the statistics of the owner were those of its only volume.
    fn count_apart(&mut self) {
        let volumes = self.volumes.iter().map(|_| ApartVolume::new(self.stats.clone())).collect();
        self.apart = Some(Box::new(Apart { volumes }));
    }

    /// Index of a volume in the list, or the index at which it belongs. O(log volumes).
    fn place(&self, volume: VolumeId) -> Result<usize, usize> {
        self.volumes.binary_search_by_key(&volume, |(id, _)| *id)
    }

    /// Counts in the statistics of the owner, and in those of the volume if they are kept apart.
    #[inline]
    fn count(&mut self, volume: VolumeId, count: impl Fn(&mut GateStats)) {
        count(&mut self.stats);
        if let Some(apart) = self.apart_mut(volume) {
            count(&mut apart.stats);
        }
    }

    /// What is counted of a volume, if it is counted apart.
    #[inline]
    fn apart_mut(&mut self, volume: VolumeId) -> Option<&mut ApartVolume> {
        let place = self.apart.is_some().then(|| self.place(volume))?.ok()?;
        self.apart.as_mut()?.volumes.get_mut(place)
    }

    fn add_volume(&mut self, now: Instant, place: usize, volume: VolumeId, policy: Policy) {
        // An owner that has had another volume before has counts that are not of this one.
        if self.apart.is_none() && (!self.volumes.is_empty() || self.stats.arrived > 0) {
            self.count_apart();
        }
        self.volumes.insert(place, (volume, policy));
        if let Some(apart) = &mut self.apart {
            apart.volumes.insert(place, ApartVolume::new(GateStats::new(now)));
        }
    }
}

/// Table of owners.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Slab<Option<Box<Member>>>,
}

impl Members {
    fn member(&self, owner: OwnerId) -> Option<&Member> {
        self.members.get(owner.0)?.as_deref().filter(|member| member.present)
    }

    fn member_mut(&mut self, owner: OwnerId) -> Option<&mut Member> {
        self.members.get_mut(owner.0)?.as_deref_mut().filter(|member| member.present)
    }

    /// An unused number.
    pub(super) fn next_owner(&self) -> Result<OwnerId, ChangeError> {
        match self.members.next_index() {
            index if (index as usize) < OWNERS_MAX => Ok(OwnerId(index)),
            _ => Err(ChangeError::Full("at most 1,048,576 VMs on one device")),
        }
    }

    pub(super) fn add_owner(&mut self, now: Instant, owner: OwnerId, policy: Policy) {
        let index = self.members.insert(Some(Box::new(Member::new(now, policy))));
        assert!(index == owner.0, "the number is that of `next_owner`");
    }

    /// Checks that these policies contradict neither themselves nor each other.
    pub(super) fn check(
        &self,
        owner: OwnerId,
        policy: &Policy,
        volumes: &[(VolumeId, Policy)],
    ) -> Result<(), ChangeError> {
        let member = self.member(owner).ok_or(ChangeError::UnknownOwner(owner))?;
        policy.check()?;
        for (volume, policy) in volumes {
            policy.check()?;
            if !self.knows(owner, *volume) {
                return Err(ChangeError::UnknownVolume(owner, *volume));
            }
        }
        let changed = |id: &VolumeId| volumes.iter().rev().find(|(volume, _)| volume == id);
        let after = member.volumes.iter().map(|(id, known)| changed(id).map_or(known, |(_, policy)| policy));
        admission::volumes_fit(policy, after)
    }

    /// Checks that a volume with this policy may be added.
    pub(super) fn check_new(&self, owner: OwnerId, policy: &Policy) -> Result<(), ChangeError> {
        policy.check()?;
        let member = self.member(owner).ok_or(ChangeError::UnknownOwner(owner))?;
        admission::volumes_fit(&member.policy, member.volumes.iter().map(|(_, policy)| policy).chain([policy]))
    }

    pub(super) fn set_owner(&mut self, owner: OwnerId, policy: Policy) {
        if let Some(member) = self.member_mut(owner) {
            member.policy = policy;
            member.retarget();
        }
    }

    pub(super) fn next_volume(&self, owner: OwnerId) -> Result<VolumeId, ChangeError> {
        let member = self.member(owner).ok_or(ChangeError::UnknownOwner(owner))?;
        if member.volumes.len() >= VOLUMES_MAX {
            return Err(ChangeError::Full("at most 256 volumes of one VM on one device"));
        }
        let used = (0..).zip(&member.volumes).take_while(|(number, (id, _))| id.0 == *number);
        Ok(VolumeId(used.count() as u16))
    }

    /// Sets the policy of a volume, which is added if it is not there.
    pub(super) fn set_volume(&mut self, now: Instant, owner: OwnerId, volume: VolumeId, policy: Policy) {
        let Some(member) = self.member_mut(owner) else { return };
        match member.place(volume) {
            Ok(place) => member.volumes[place].1 = policy,
            Err(place) => member.add_volume(now, place, volume, policy),
        }
        member.retarget();
        member.first = member.volumes.first().map(|(id, _)| *id);
    }

    pub(super) fn remove_volume(&mut self, owner: OwnerId, volume: VolumeId) {
        let Some(member) = self.member_mut(owner) else { return };
        let Ok(place) = member.place(volume) else { return };
        member.volumes.remove(place);
        if let Some(apart) = &mut member.apart {
            apart.volumes.remove(place);
        }
        member.retarget();
        member.first = member.volumes.first().map(|(id, _)| *id);
    }

    pub(super) fn remove_owner(&mut self, owner: OwnerId) {
        if let Some(member) = self.member_mut(owner) {
            member.present = false;
        }
        self.retire(owner);
    }

    /// Frees the number of an owner that was removed and has no request in flight.
    #[cold]
    fn retire(&mut self, owner: OwnerId) {
        let entry = &mut self.members[owner.0];
        if entry.as_ref().is_some_and(|member| !member.present && member.stats.in_flight == 0) {
            *self.members.remove(owner.0) = None;
        }
    }

    /// Counts a completion, and the end of its arrival if this is its last piece. The last request of a removed owner frees
    /// its number.
    #[inline]
    pub(super) fn finish(&mut self, now: Instant, completion: &Completion, finished: Option<&Finished>) {
        let request = &completion.request;
        let member = self.mine(request.owner);
        let (outcome, target) = (finished.map(|finished| finished.outcome), member.target());
        member.stats.finish(now, completion, outcome, target.of_kind(request.kind));
        if let Some(ApartVolume { target, stats }) = member.apart_mut(request.volume) {
            stats.finish(now, completion, outcome, target.of_kind(request.kind));
        }
        if !member.present {
            self.retire(request.owner);
        }
    }

    /// Counts a dispatch of a request that counts as `bytes`.
    #[inline]
    pub(super) fn dispatch(&mut self, now: Instant, request: &Request, bytes: u64) {
        self.mine(request.owner).count(request.volume, |stats| stats.dispatch(now, request, bytes));
    }

    /// Counts a request that was cancelled while it was queued, and the end of its arrival if this is its last piece.
    pub(super) fn cancel(&mut self, now: Instant, request: &Request, finished: Option<&Finished>) {
        let outcome = finished.map(|finished| finished.outcome);
        self.mine(request.owner).count(request.volume, |stats| stats.cancel(now, request, outcome));
    }

    /// Counts an arrival of `pieces` requests. Returns `None` if the owner is not present or has no such volume, and
    /// whether there was room for them in a queue of `queue_max` requests.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        (owner, volume): (OwnerId, VolumeId),
        pieces: u32,
        queue_max: u32,
    ) -> Option<bool> {
        let member = self.member_mut(owner)?;
        if member.first != Some(volume) && member.place(volume).is_err() {
            return None;
        }
        let waiting = member.stats.waiting;
        let fits = waiting == 0 || waiting + pieces <= queue_max;
        if fits {
            member.count(volume, |stats| stats.arrive(now, pieces));
        }
        Some(fits)
    }

    pub(super) fn knows(&self, owner: OwnerId, volume: VolumeId) -> bool {
        self.member(owner).is_some_and(|member| member.place(volume).is_ok())
    }

    /// All owners that are present, with policies.
    pub(super) fn present(&self) -> impl Iterator<Item = (OwnerId, Policy, &[(VolumeId, Policy)])> {
        let known = (0u32..).zip(self.members.entries());
        known.filter_map(|(index, member)| {
            let member = member.as_deref().filter(|member| member.present)?;
            Some((OwnerId(index), member.policy, member.volumes.as_slice()))
        })
    }

    pub(super) fn policy(&self, owner: OwnerId) -> Option<&Policy> {
        self.member(owner).map(|member| &member.policy)
    }

    pub(super) fn policies(&self, owner: OwnerId) -> Option<(Policy, &[(VolumeId, Policy)])> {
        self.member(owner).map(|member| (member.policy, member.volumes.as_slice()))
    }

    pub(super) fn stats(&self, owner: OwnerId) -> Option<&GateStats> {
        self.member(owner).map(|member| &member.stats)
    }

    pub(super) fn apart_stats(&self, owner: OwnerId, volume: VolumeId) -> Option<&GateStats> {
        let member = self.member(owner)?;
        let place = member.place(volume).ok()?;
        Some(&member.apart.as_ref()?.volumes.get(place)?.stats)
    }

    /// An owner with requests at this gate, even if it was removed.
    #[inline]
    fn mine(&mut self, owner: OwnerId) -> &mut Member {
        self.members[owner.0].as_mut().expect("an owner keeps its number while it has requests")
    }
}
