//! Owners of a gate, with their volumes, policies and statistics.
//!
//! An owner that was removed keeps its number until its last request has completed, so no completion is counted for
//! another owner.

use crate::admission;
use crate::gate::finished::Finished;
use crate::gate::journal::{Done, Entry, Event, Journal, Sent, page_of};
use crate::gate::stats::{GateStats, Outstanding, Target, Used};
use crate::policy::Policy;
use crate::request::{Completion, OwnerId, Request, VolumeId};
use crate::scheduler::ChangeError;
use crate::slab::Slab;
use crate::time::Instant;

/// Maximum number of volumes of one owner on one device.
const VOLUMES_MAX: usize = 256;
/// Maximum number of owners of one gate.
const OWNERS_MAX: usize = 1 << 20;

/// What each request of an owner needs at once: a cache line, since with many VMs each line is fetched for every request.
#[derive(Debug)]
#[repr(align(64))]
struct Account {
    present: bool,
    /// Whether volumes are counted apart, see [`Member::apart`].
    has_apart: bool,
    /// One of the volumes, usually the only one, for a quick look-up.
    first: Option<VolumeId>,
    outstanding: Outstanding,
    member: Box<Member>,
}

const _: () = assert!(size_of::<Option<Account>>() == 64, "an account is a cache line");

/// The rest of an owner. What every request changes comes first.
#[derive(Debug)]
#[repr(C, align(64))]
struct Member {
    target: Target,
    /// `None` as long as the owner has never had a second volume, or one with another latency target than its own: its own
    /// statistics are those of its volume, and nothing is counted twice.
    apart: Option<Box<Apart>>,
    /// Without the events of the journal, and without the outstanding requests of the account.
    stats: GateStats,
    policy: Policy,
    /// Sorted by number.
    volumes: Vec<(VolumeId, Policy)>,
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

impl Account {
    fn new(now: Instant, policy: Policy) -> Account {
        let member = Member {
            target: Target::of(policy.latency),
            apart: None,
            stats: GateStats::new(now),
            policy,
            volumes: Vec::with_capacity(1),
        };
        let outstanding = Outstanding::default();
        Account { present: true, has_apart: false, first: None, outstanding, member: Box::new(member) }
    }

    /// Repeats in the account what it states of the volumes, after they or a policy have changed.
    fn retarget(&mut self) {
        // Volumes that are counted apart from now on have had the outstanding requests of the owner until now.
        self.member.stats.outstanding = self.outstanding;
        self.member.retarget();
        self.has_apart = self.member.apart.is_some();
        self.first = self.member.volumes.first().map(|(id, _)| *id);
    }

    /// The outstanding requests of the owner, and those of the volume if it is counted apart.
    #[inline]
    fn outstanding(&mut self, volume: VolumeId) -> (&mut Outstanding, Option<&mut Outstanding>) {
        let apart = if self.has_apart { self.member.apart_mut(volume) } else { None };
        (&mut self.outstanding, apart.map(|apart| &mut apart.stats.outstanding))
    }
}

impl Member {
    /// Chooses the latency targets by which requests are judged, after a policy or the volumes have changed.
    fn retarget(&mut self) {
        let own = self.policy.latency;
        // As long as volumes are not counted apart there is one at most.
        let of_volume = self.volumes.first().and_then(|(_, policy)| policy.latency);
        if self.apart.is_none() && own.is_some() && of_volume.is_some() && own != of_volume {
            self.count_apart();
        }
        self.target = Target::of(match &mut self.apart {
            // One of them has a target, or both have the same.
            None => own.or(of_volume),
            Some(apart) => {
                for (volume, (_, policy)) in apart.volumes.iter_mut().zip(&self.volumes) {
                    volume.target = Target::of(policy.latency.or(own));
                }
                own
            }
        });
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

    /// Counts an event.
    #[inline(always)]
    fn count(&mut self, entry: &Entry) {
        self.stats.count(&entry.event, self.target);
        if self.apart.is_some()
            && entry.is_of(entry.volume)
            && let Some(apart) = self.apart_mut(entry.volume)
        {
            apart.stats.count(&entry.event, apart.target);
        }
    }

    /// What is counted of a volume, if it is counted apart.
    #[inline]
    fn apart_mut(&mut self, volume: VolumeId) -> Option<&mut ApartVolume> {
        let place = self.apart.is_some().then(|| self.place(volume))?.ok()?;
        self.apart.as_mut()?.volumes.get_mut(place)
    }

    fn apart(&self, volume: VolumeId) -> Option<&ApartVolume> {
        self.apart.as_ref()?.volumes.get(self.place(volume).ok()?)
    }

    fn add_volume(&mut self, now: Instant, place: usize, volume: VolumeId, policy: Policy) {
        // An owner that has had another volume before has counts that are not of this one.
        if self.apart.is_none() && (!self.volumes.is_empty() || self.stats.outstanding.arrived > 0) {
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
    accounts: Slab<Option<Account>>,
    journal: Journal,
}

impl Members {
    fn account_mut(&mut self, owner: OwnerId) -> Option<&mut Account> {
        self.accounts.get_mut(owner.0)?.as_mut().filter(|account| account.present)
    }

    fn account(&self, owner: OwnerId) -> Option<&Account> {
        self.accounts.get(owner.0)?.as_ref().filter(|account| account.present)
    }

    fn member(&self, owner: OwnerId) -> Option<&Member> {
        self.account(owner).map(|account| &*account.member)
    }

    /// An owner with requests at this gate, even if it was removed.
    #[inline]
    fn mine(&mut self, owner: OwnerId) -> &mut Account {
        self.accounts[owner.0].as_mut().expect("an owner keeps its number while it has requests")
    }

    /// Notes an event in the journal.
    #[inline(always)]
    fn note(&mut self, request: &Request, event: Event) {
        if self.journal.note(Entry { owner: request.owner, volume: request.volume, event }) {
            self.settle_page(page_of(request.owner));
        }
    }

    /// Adds the events of the journal to the statistics.
    pub(super) fn settle(&mut self) {
        (0..self.journal.pages()).for_each(|page| self.settle_page(page));
    }

    /// Adds the events of one page to the statistics.
    #[inline(never)]
    fn settle_page(&mut self, page: usize) {
        let Members { accounts, journal } = self;
        for entry in journal.entries(page) {
            let account = accounts[entry.owner.0].as_mut();
            account.expect("an owner is not retired before its events are counted").member.count(entry);
        }
        journal.clear(page);
    }

    /// An unused number.
    pub(super) fn next_owner(&self) -> Result<OwnerId, ChangeError> {
        match self.accounts.next_index() {
            index if (index as usize) < OWNERS_MAX => Ok(OwnerId(index)),
            _ => Err(ChangeError::Full("at most 1,048,576 VMs on one device")),
        }
    }

    pub(super) fn add_owner(&mut self, now: Instant, owner: OwnerId, policy: Policy) {
        let index = self.accounts.insert(Some(Account::new(now, policy)));
        assert!(index == owner.0, "the number is that of `next_owner`");
        self.journal.admit(owner);
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
        self.settle_page(page_of(owner));
        if let Some(account) = self.account_mut(owner) {
            account.member.policy = policy;
            account.retarget();
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
        self.settle_page(page_of(owner));
        let Some(account) = self.account_mut(owner) else { return };
        let member = &mut account.member;
        member.stats.outstanding = account.outstanding;
        match member.place(volume) {
            Ok(place) => member.volumes[place].1 = policy,
            Err(place) => member.add_volume(now, place, volume, policy),
        }
        account.retarget();
    }

    pub(super) fn remove_volume(&mut self, owner: OwnerId, volume: VolumeId) {
        self.settle_page(page_of(owner));
        let Some(account) = self.account_mut(owner) else { return };
        let Ok(place) = account.member.place(volume) else { return };
        account.member.volumes.remove(place);
        if let Some(apart) = &mut account.member.apart {
            apart.volumes.remove(place);
        }
        account.retarget();
    }

    pub(super) fn remove_owner(&mut self, owner: OwnerId) {
        if let Some(account) = self.account_mut(owner) {
            account.present = false;
        }
        self.retire(owner);
    }

    /// Frees the number of an owner that was removed and has no request in flight.
    #[cold]
    fn retire(&mut self, owner: OwnerId) {
        self.settle_page(page_of(owner));
        let entry = &mut self.accounts[owner.0];
        if entry.as_ref().is_some_and(|account| !account.present && account.outstanding.in_flight == 0) {
            *self.accounts.remove(owner.0) = None;
        }
    }

    /// Counts a completion, and the end of its arrival if this is its last piece. The last request of a removed owner frees
    /// its number.
    #[inline(always)]
    pub(super) fn finish(&mut self, now: Instant, completion: &Completion, finished: Option<&Finished>) {
        let Completion { request, dispatched, ok } = completion;
        let account = self.mine(request.owner);
        let present = account.present;
        let (own, apart) = account.outstanding(request.volume);
        own.complete();
        let done = Done {
            cost: request.cost,
            length: request.length,
            kind: request.kind,
            ok: *ok,
            outcome: finished.map(|finished| finished.outcome),
            of_volume: apart.is_some_and(Outstanding::complete),
            service: now.nanos_since(*dispatched),
            latency: now.nanos_since(request.arrival),
        };
        self.note(request, Event::Done(done));
        if !present {
            self.retire(request.owner);
        }
    }

    /// Counts a dispatch of a request that counts as `bytes`.
    #[inline(always)]
    pub(super) fn dispatch(&mut self, now: Instant, request: &Request, bytes: u64) {
        let (own, apart) = self.mine(request.owner).outstanding(request.volume);
        own.dispatch(now);
        apart.into_iter().for_each(|apart| apart.dispatch(now));
        let Request { cost, phase, wait, .. } = *request;
        self.note(request, Event::Sent(Sent { cost, phase, wait, waited: now.nanos_since(request.arrival), bytes }));
    }

    /// Counts a request that was cancelled while it was queued, and the end of its arrival if this is its last piece.
    pub(super) fn cancel(&mut self, now: Instant, request: &Request, finished: Option<&Finished>) {
        let outcome = finished.map(|finished| finished.outcome);
        let account = self.mine(request.owner);
        account.outstanding.leave_queue(now);
        account.member.stats.cancel(now, request, outcome);
        if let Some(apart) = account.member.apart_mut(request.volume) {
            apart.stats.outstanding.leave_queue(now);
            apart.stats.cancel(now, request, outcome);
        }
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
        let account = self.account_mut(owner)?;
        if account.first != Some(volume) && account.member.place(volume).is_err() {
            return None;
        }
        let waiting = account.outstanding.waiting;
        let fits = waiting == 0 || waiting + pieces <= queue_max;
        if fits {
            let (own, apart) = account.outstanding(volume);
            own.arrive(now, pieces);
            apart.into_iter().for_each(|apart| apart.arrive(now, pieces));
        }
        Some(fits)
    }

    pub(super) fn knows(&self, owner: OwnerId, volume: VolumeId) -> bool {
        self.member(owner).is_some_and(|member| member.place(volume).is_ok())
    }

    /// All owners that are present, with policies.
    pub(super) fn present(&self) -> impl Iterator<Item = (OwnerId, Policy, &[(VolumeId, Policy)])> {
        let known = (0u32..).zip(self.accounts.entries());
        known.filter_map(|(index, account)| {
            let member = &account.as_ref().filter(|account| account.present)?.member;
            Some((OwnerId(index), member.policy, member.volumes.as_slice()))
        })
    }

    /// What each owner that is present asks for and has got, without the events of the journal.
    pub(super) fn used(&self) -> impl Iterator<Item = Used<'_>> {
        (0u32..).zip(self.accounts.entries()).filter_map(|(index, account)| {
            let Account { outstanding, member, .. } = account.as_ref().filter(|account| account.present)?;
            let GateStats { dispatched_cost, dispatched_bytes, began, .. } = member.stats;
            let (owner, policy, outstanding) = (OwnerId(index), &member.policy, *outstanding);
            Some(Used { owner, policy, outstanding, dispatched_cost, dispatched_bytes, began })
        })
    }

    pub(super) fn policy(&self, owner: OwnerId) -> Option<&Policy> {
        self.member(owner).map(|member| &member.policy)
    }

    pub(super) fn policies(&self, owner: OwnerId) -> Option<(Policy, &[(VolumeId, Policy)])> {
        self.member(owner).map(|member| (member.policy, member.volumes.as_slice()))
    }

    pub(super) fn outstanding(&self, owner: OwnerId) -> Option<&Outstanding> {
        self.account(owner).map(|account| &account.outstanding)
    }

    pub(super) fn apart_outstanding(&self, owner: OwnerId, volume: VolumeId) -> Option<&Outstanding> {
        self.member(owner)?.apart(volume).map(|apart| &apart.stats.outstanding)
    }

    pub(super) fn stats(&self, owner: OwnerId) -> Option<GateStats> {
        let account = self.account(owner)?;
        let mut stats = account.member.stats.clone();
        stats.outstanding = account.outstanding;
        for Entry { event, .. } in self.journal.of(owner) {
            stats.count(event, account.member.target);
        }
        Some(stats)
    }

    pub(super) fn apart_stats(&self, owner: OwnerId, volume: VolumeId) -> Option<GateStats> {
        let apart = self.member(owner)?.apart(volume)?;
        let mut stats = apart.stats.clone();
        for Entry { event, .. } in self.journal.of(owner).filter(|entry| entry.is_of(volume)) {
            stats.count(event, apart.target);
        }
        Some(stats)
    }
}
