//! Owners of a gate, with their volumes, policies and statistics.
//!
//! An owner that was removed keeps its number until its last request has completed, so no completion is counted for
//! another owner.

use crate::admission;
use crate::gate::stats::OwnerStats;
use crate::policy::Policy;
use crate::request::{Completion, OwnerId, VolumeId};
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
    /// One of the volumes, usually the only one, for a quick look-up.
    first: Option<VolumeId>,
    stats: OwnerStats,
    policy: Policy,
    /// Sorted by number.
    volumes: Vec<(VolumeId, Policy)>,
}

impl Member {
    /// Index of a volume in the list, or the index at which it belongs. O(log volumes).
    fn place(&self, volume: VolumeId) -> Result<usize, usize> {
        self.volumes.binary_search_by_key(&volume, |(id, _)| *id)
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

    pub(super) fn add_owner(&mut self, owner: OwnerId, policy: Policy) {
        let volumes = Vec::with_capacity(1);
        let stats = OwnerStats::default();
        let member = Box::new(Member { present: true, first: None, stats, policy, volumes });
        let index = self.members.insert(Some(member));
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

    pub(super) fn set_volume(&mut self, owner: OwnerId, volume: VolumeId, policy: Policy) {
        let Some(member) = self.member_mut(owner) else { return };
        match member.place(volume) {
            Ok(place) => member.volumes[place].1 = policy,
            Err(place) => member.volumes.insert(place, (volume, policy)),
        }
        member.first = member.volumes.first().map(|(id, _)| *id);
    }

    pub(super) fn remove_volume(&mut self, owner: OwnerId, volume: VolumeId) {
        if let Some(member) = self.member_mut(owner) {
            member.volumes.retain(|(id, _)| *id != volume);
            member.first = member.volumes.first().map(|(id, _)| *id);
        }
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

    /// Counts a completion. The last one of a removed owner frees its number.
    #[inline]
    pub(super) fn complete(&mut self, now: Instant, completion: &Completion) {
        let owner = completion.request.owner;
        let member = self.members[owner.0].as_mut();
        let member = member.expect("an owner keeps its number while it has requests");
        member.stats.complete(now, completion);
        if !member.present {
            self.retire(owner);
        }
    }

    pub(super) fn knows(&self, owner: OwnerId, volume: VolumeId) -> bool {
        self.member(owner).is_some_and(|member| member.place(volume).is_ok())
    }

    /// Statistics of an owner that is present and has this volume.
    #[inline]
    pub(super) fn stats_of(&mut self, owner: OwnerId, volume: VolumeId) -> Option<&mut OwnerStats> {
        let member = self.member_mut(owner)?;
        let known = member.first == Some(volume) || member.place(volume).is_ok();
        known.then_some(&mut member.stats)
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

    pub(super) fn stats(&self, owner: OwnerId) -> Option<&OwnerStats> {
        self.member(owner).map(|member| &member.stats)
    }

    /// Statistics of an owner with requests at this gate, even if it was removed.
    #[inline]
    pub(super) fn stats_mut(&mut self, owner: OwnerId) -> &mut OwnerStats {
        let member = self.members[owner.0].as_mut();
        &mut member.expect("an owner keeps its number while it has requests").stats
    }
}
