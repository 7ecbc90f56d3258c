//! The gate in front of one shared device.
//!
//! It numbers arrivals, splits those that are too large for the device, merges adjacent ones if that is enabled
//! ([`GateSettings::merging`]), asks the scheduler whenever a slot is free, and keeps statistics.
//!
//! The caller calls [`Gate::pump`] after every `insert`, `complete`, `configure` or `cancel` and keeps the wake-up time
//! that it returns; several inputs may share one pump.
//!
//! [`Gate::stats`] returns the counters and histograms of an owner, [`Gate::device_stats`] of the device, [`Gate::inspect`] the scheduler's state.

use crate::cost::{CostModel, reserved_bytes};
use crate::policy::Policy;
use crate::request::{Completion, Flags, Kind, OwnerId, Phase, Request, RequestId, VolumeId, Wait};
use crate::scheduler::{Change, ChangeError, Decision, DeviceClass, Scheduler, Scope, State};
use crate::time::Instant;
use crate::units::Bytes;

mod device;
mod fanout;
mod finished;
pub mod histogram;
mod journal;
mod kept;
mod members;
mod merging;
mod splitting;
pub mod stats;
mod switching;

pub use device::{Device, Part, Slot, Submission};
pub use finished::{Finished, Outcome, Service};
use kept::Kept;
use members::Members;
use merging::{Edge, Merging};
use splitting::Splitting;
pub use stats::{DeviceStats, GateStats, Outstanding, Used, Waited};

/// Parameters of one gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateSettings {
    /// Queue depth of the device, 1 to 65,536.
    pub depth: u32,
    /// Maximum size of a read or write; larger ones are split.
    pub transfer_max: Bytes,
    /// Maximum size of discards and write zeroes; larger ones are split.
    pub discard_max: Bytes,
    /// Maximum number of queued requests (pieces) of one owner.
    pub queue_max: u32,
    pub cost: CostModel,
    /// Bytes that take the device as long as a request of cost 1: as which a smaller request counts against a reservation in
    /// bytes.
    pub request_bytes: Bytes,
    /// Whether a request is merged into an adjacent queued one of the same owner, volume, kind and flags.
    pub merging: bool,
    pub device_class: DeviceClass,
}

impl Default for GateSettings {
    fn default() -> Self {
        GateSettings {
            depth: 32,
            transfer_max: Bytes::kib(256),
            discard_max: Bytes::mib(64),
            queue_max: 65_536,
            cost: CostModel::default(),
            request_bytes: CostModel::default().reference_size(),
            merging: false,
            device_class: DeviceClass::Disk,
        }
    }
}

/// Service at other servers since the VM's previous request to this one, as a dmClock client counts it: \[mclock\] 3.2.
/// Bytes are counted too: 16 requests of 4 KiB at another server must not count as 16 of 1 MiB here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteService {
    /// Normalised requests served there to meet reservations, at most `delta`.
    pub rho: u32,
    /// Normalised requests served there in either phase.
    pub delta: u32,
    /// Of `delta`, what completed since the client last had no request outstanding at any server.
    pub recent: u32,
    /// Bytes served there to meet reservations, as [`CostModel::bytes`] counts them.
    pub rho_bytes: u64,
    /// Bytes served there in either phase.
    pub delta_bytes: u64,
    /// Number of servers that the client uses; 0 and 1 mean this one only.
    pub servers: u32,
    /// Requests outstanding at the other servers, whose service is not in the counts yet.
    pub outstanding: u32,
}

/// A request from a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub owner: OwnerId,
    pub volume: VolumeId,
    pub kind: Kind,
    /// Flags; `PIECE`, `TRACKED` and `MERGED` are set by the gate.
    pub flags: Flags,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// Token of the caller, returned at submission and completion.
    pub token: u32,
    /// Report of a dmClock client.
    pub remote: Option<RemoteService>,
}

/// A rejected arrival. Nothing has changed, and no tag has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The owner's queue is full.
    #[error("Queue of owner {} is full; retry after a completion", .0.0)]
    Full(OwnerId),
    #[error("No volume {} of owner {} at this gate", .1.0, .0.0)]
    Unknown(OwnerId, VolumeId),
}

/// One scheduler in front of one device.
pub struct Gate {
    scheduler: Box<dyn Scheduler>,
    settings: GateSettings,
    members: Members,
    /// Remaining bursts of limits that the present scheduler may not enforce.
    kept: Kept,
    splitting: Splitting,
    merging: Merging,
    /// Buffer for the parts of a merged submission.
    parts: Vec<Part>,
    /// Requests in flight, by slot; their results are not known yet.
    flight: Vec<Option<Completion>>,
    /// Free slots. Not a `Slab`: the device's depth fixes their number, and a larger depth adds all of them at once.
    free: Vec<u32>,
    queued: u64,
    next_id: u64,
    /// The youngest request dispatched so far: queued requests that are older have been overtaken.
    youngest: RequestId,
    /// When the scheduler last waited for an instant although a slot was free.
    held_back: Option<Instant>,
    device_stats: DeviceStats,
}

impl Gate {
    #[must_use]
    pub fn new(scheduler: Box<dyn Scheduler>, settings: GateSettings) -> Self {
        let depth = settings.depth.clamp(1, 65_536);
        Gate {
            scheduler,
            settings: GateSettings { depth, ..settings },
            members: Members::default(),
            kept: Kept::default(),
            splitting: Splitting::default(),
            merging: Merging::default(),
            parts: Vec::new(),
            flight: vec![None; depth as usize],
            free: (0..depth).rev().collect(),
            queued: 0,
            next_id: 0,
            youngest: RequestId(0),
            held_back: None,
            device_stats: DeviceStats::default(),
        }
    }

    #[must_use]
    pub fn settings(&self) -> &GateSettings {
        &self.settings
    }

    /// Queued requests (pieces).
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Requests (pieces) in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        (self.flight.len() - self.free.len()) as u64
    }

    /// Adds an owner.
    pub fn add_owner(&mut self, now: Instant, policy: Policy) -> Result<OwnerId, ChangeError> {
        policy.check()?;
        let owner = self.members.next_owner()?;
        self.scheduler.configure(now, Change::AddOwner { owner, policy })?;
        self.members.add_owner(now, owner, policy);
        Ok(owner)
    }

    /// Sets the policy of an owner, also for queued requests.
    pub fn set_owner(&mut self, now: Instant, owner: OwnerId, policy: Policy) -> Result<(), ChangeError> {
        self.set_policies(now, owner, policy, &[])
    }

    /// Sets the policies of an owner and of some of its volumes, all or none: only the final combination must be valid.
    pub fn set_policies(
        &mut self,
        now: Instant,
        owner: OwnerId,
        policy: Policy,
        volumes: &[(VolumeId, Policy)],
    ) -> Result<(), ChangeError> {
        self.members.check(owner, &policy, volumes)?;
        self.scheduler.configure(now, Change::SetOwner { owner, policy })?;
        for (place, &(volume, policy)) in volumes.iter().enumerate() {
            if let Err(error) = self.scheduler.configure(now, Change::SetVolume { owner, volume, policy }) {
                self.restore_policies(now, owner, &volumes[..place]);
                return Err(error);
            }
        }
        self.keep_left(now, owner, &policy, volumes);
        self.members.set_owner(owner, policy);
        for &(volume, policy) in volumes {
            self.members.set_volume(now, owner, volume, policy);
        }
        Ok(())
    }

    /// Restores the policies of an owner and these volumes in the scheduler, after it rejected that of another volume.
    fn restore_policies(&mut self, now: Instant, owner: OwnerId, changed: &[(VolumeId, Policy)]) {
        let (policy, volumes) = self.members.policies(owner).expect("the owner of checked policies is present");
        let mut changes = vec![Change::SetOwner { owner, policy }];
        for &(volume, policy) in volumes.iter().filter(|(known, _)| changed.iter().any(|(volume, _)| volume == known)) {
            changes.push(Change::SetVolume { owner, volume, policy });
        }
        for change in changes {
            self.scheduler.configure(now, change).expect("a scheduler accepts a former policy");
        }
    }

    /// Adds a volume to an owner, with its own policy inside the owner's.
    pub fn add_volume(&mut self, now: Instant, owner: OwnerId, policy: Policy) -> Result<VolumeId, ChangeError> {
        let volume = self.members.next_volume(owner)?;
        self.members.check_new(owner, &policy)?;
        self.scheduler.configure(now, Change::AddVolume { owner, volume, policy })?;
        self.members.set_volume(now, owner, volume, policy);
        Ok(volume)
    }

    /// Sets the policy of a volume.
    pub fn set_volume(
        &mut self,
        now: Instant,
        owner: OwnerId,
        volume: VolumeId,
        policy: Policy,
    ) -> Result<(), ChangeError> {
        let own = *self.members.policy(owner).ok_or(ChangeError::UnknownOwner(owner))?;
        self.set_policies(now, owner, own, &[(volume, policy)])
    }

    /// Removes a volume. Queued requests are cancelled; those in flight complete as usual.
    pub fn remove_volume(
        &mut self,
        now: Instant,
        owner: OwnerId,
        volume: VolumeId,
        finished: &mut Vec<Finished>,
    ) -> Result<(), ChangeError> {
        if !self.members.knows(owner, volume) {
            return Err(ChangeError::UnknownVolume(owner, volume));
        }
        self.cancel(now, Scope::Volume(owner, volume), finished);
        self.scheduler.configure(now, Change::RemoveVolume { owner, volume })?;
        self.members.remove_volume(owner, volume);
        self.kept.forget(Scope::Volume(owner, volume));
        Ok(())
    }

    /// Removes an owner with its volumes. Queued requests are cancelled; those in flight complete as usual.
    pub fn remove_owner(
        &mut self,
        now: Instant,
        owner: OwnerId,
        finished: &mut Vec<Finished>,
    ) -> Result<(), ChangeError> {
        self.members.policy(owner).ok_or(ChangeError::UnknownOwner(owner))?;
        self.cancel(now, Scope::Owner(owner), finished);
        self.scheduler.configure(now, Change::RemoveOwner { owner })?;
        self.members.remove_owner(owner);
        self.kept.forget(Scope::Owner(owner));
        Ok(())
    }

    /// Sets the number of slots, and the bytes that take the device as long as a request of cost 1
    /// ([`GateSettings::request_bytes`]). Requests in flight stay; a smaller depth takes effect as they complete.
    pub fn set_device(&mut self, now: Instant, depth: u32, request_bytes: Bytes) -> Result<(), ChangeError> {
        let depth = depth.clamp(1, 65_536);
        self.scheduler.configure(now, Change::Device { depth, request_bytes })?;
        (self.settings.depth, self.settings.request_bytes) = (depth, request_bytes);
        let known = self.flight.len() as u32;
        if depth > known {
            self.flight.resize(depth as usize, None);
            self.free.extend(known..depth);
        }
        self.note_fill(now);
        Ok(())
    }

    // rule: gate.split, gate.owner, gate.tie-arrival
    /// Queues an arrival until `pump` dispatches it, after splitting it if it is too large.
    pub fn insert(&mut self, now: Instant, arrival: &Arrival) -> Result<RequestId, Refused> {
        let (owner, volume) = (arrival.owner, arrival.volume);
        let piece_max = self.piece_max(arrival.kind);
        let pieces = if arrival.length <= piece_max { 1 } else { arrival.length.div_ceil(piece_max) };
        let fits = self.members.arrive(now, (owner, volume), pieces, self.settings.queue_max);
        if !fits.ok_or(Refused::Unknown(owner, volume))? {
            return Err(Refused::Full(owner));
        }
        self.queued += u64::from(pieces);
        let first = RequestId(self.next_id);
        self.next_id += u64::from(pieces);
        let mut whole = self.request(first, now, arrival);
        if let Some(remote) = &arrival.remote {
            self.scheduler.add_remote_service(now, owner, remote);
            (whole.rho, whole.delta) = (remote.rho, remote.delta);
            whole.flags = whole.flags.with(Flags::TRACKED);
        }
        if pieces == 1 {
            self.enqueue(now, whole, piece_max);
        } else {
            self.enqueue_pieces(now, whole, pieces, piece_max);
        }
        Ok(first)
    }

    /// Queues the pieces of a request that is too large.
    fn enqueue_pieces(&mut self, now: Instant, whole: Request, pieces: u32, piece_max: u32) {
        let parent = self.splitting.open(whole.token, whole.offset, pieces);
        for index in 0..pieces {
            let piece = splitting::piece(&whole, index, piece_max, parent);
            let cost = self.settings.cost.cost(piece.kind, piece.length);
            let id = RequestId(whole.id.0 + u64::from(index));
            self.enqueue(now, Request { id, cost, ..piece }, piece_max);
        }
    }

    #[inline(always)]
    fn enqueue(&mut self, now: Instant, request: Request, length_max: u32) {
        // rule: gate.merge-switch
        if self.settings.merging && merging::is_mergeable(&request) {
            self.merge(now, request, length_max);
        } else {
            self.scheduler.insert(now, request);
        }
    }

    /// Merges the request into an adjacent queued one, or queues it as a candidate for merges.
    fn merge(&mut self, now: Instant, request: Request, length_max: u32) {
        for edge in [Edge::End, Edge::Start] {
            let found = self.merging.find_mergeable(&request, edge, length_max, &self.settings.cost);
            if let Some((merged, grown)) = found
                && self.scheduler.grow(now, grown)
            {
                return self.merging.merge(merged, grown, request, edge);
            }
        }
        let carried = self.merging.open(request);
        self.scheduler.insert(now, carried);
    }

    #[inline]
    fn request(&self, id: RequestId, now: Instant, arrival: &Arrival) -> Request {
        Request {
            id,
            arrival: now,
            offset: arrival.offset,
            length: arrival.length,
            cost: self.settings.cost.cost(arrival.kind, arrival.length),
            owner: arrival.owner,
            token: arrival.token,
            rho: 0,
            delta: 0,
            volume: arrival.volume,
            kind: arrival.kind,
            flags: arrival.flags,
            phase: Phase::None,
            wait: Wait::None,
        }
    }

    // rule: gate.depth, gate.four-answers, gate.wait-completion, gate.spurious-timer
    /// Fills the free slots of the device. Returns when to pump again if no event occurs before.
    pub fn pump(&mut self, now: Instant, device: &mut impl Device) -> Option<Instant> {
        // rule: gate.depth, gate.spurious-timer
        while self.in_flight() < u64::from(self.settings.depth) {
            if !device.has_room(now) {
                // Requests wait for the device as they do without a free slot.
                self.device_stats.set_full(now, self.queued > 0);
                return None;
            }
            // By reference: a copy would read in one access what the scheduler has just written in several, and wait for it.
            match &mut self.scheduler.dispatch(now) {
                Decision::Dispatch(request) => self.submit(now, request, device),
                &mut Decision::WaitUntil(wake) => {
                    assert!(
                        wake > now && self.queued > 0,
                        "a scheduler waits for an instant in the future, with requests queued"
                    );
                    self.held_back = Some(now);
                    return Some(wake);
                }
                // rule: gate.wait-completion
                Decision::WaitCompletion => {
                    assert!(self.in_flight() > 0, "a scheduler waits for a completion only if one will come");
                    return None;
                }
                Decision::Idle => {
                    assert!(self.queued == 0, "a scheduler is idle only if nothing is queued");
                    return None;
                }
            }
        }
        None
    }

    #[inline(always)]
    fn submit(&mut self, now: Instant, request: &mut Request, device: &mut impl Device) {
        if request.flags.contains(Flags::MERGED) {
            match self.merging.detach(request) {
                Some(only) => *request = Request { phase: request.phase, wait: request.wait, ..only },
                None => return self.submit_merged(now, request, device),
            }
        }
        self.book_dispatch(now, request);
        let (token, skip) = self.splitting.resolve(request);
        let slot = self.take_slot(now, *request);
        device.submit(now, &Submission { slot, token, skip, request: *request });
    }

    /// Counts a dispatch.
    #[inline(always)]
    fn book_dispatch(&mut self, now: Instant, request: &mut Request) {
        if request.wait == Wait::None && now > request.arrival {
            request.wait = if self.held_back >= Some(request.arrival) {
                Wait::Anticipation
            } else if self.youngest > request.id {
                Wait::Share
            } else {
                Wait::Device
            };
        }
        self.youngest = self.youngest.max(request.id);
        self.queued -= 1;
        let bytes = self.settings.cost.bytes(request.kind, request.length, request.cost);
        let reserved = reserved_bytes(request.cost.raw().into(), bytes, self.settings.request_bytes);
        self.members.dispatch(now, request, reserved);
    }

    #[inline]
    fn take_slot(&mut self, now: Instant, request: Request) -> Slot {
        let slot = self.free.pop().expect("fewer in flight than slots");
        self.note_fill(now);
        self.flight[slot as usize] = Some(Completion { request, dispatched: now, ok: true });
        Slot(slot)
    }

    /// Records whether the device has a free slot.
    #[inline]
    fn note_fill(&mut self, now: Instant) {
        self.device_stats.set_full(now, self.in_flight() >= u64::from(self.settings.depth));
    }

    #[inline(always)]
    fn leave_slot(&mut self, now: Instant, slot: Slot, ok: bool) -> Completion {
        let entry = self.flight.get_mut(slot.0 as usize).and_then(Option::take);
        let completion = Completion { ok, ..entry.expect("a submission is completed exactly once") };
        self.device_stats.complete(now, &completion);
        self.free.push(slot.0);
        self.note_fill(now);
        if !completion.request.flags.contains(Flags::PREVIOUS_SCHEDULER) {
            self.scheduler.complete(now, &completion);
        }
        completion
    }

    /// Completes a submission of a gate that does not merge. Returns the arrival if this was its last part.
    ///
    /// # Panics
    /// If the slot is not in flight, since every submission is completed exactly once, or if it holds several arrivals.
    pub fn complete(&mut self, now: Instant, slot: Slot, ok: bool) -> Option<Finished> {
        let completion = self.leave_slot(now, slot, ok);
        assert!(!completion.request.flags.contains(Flags::MERGED), "a merged submission ends with `complete_all`");
        self.finish(now, &completion)
    }

    /// Completes a submission of any gate. Appends the arrivals that this completes to `finished`, those of a merged
    /// submission in order of their offsets.
    ///
    /// # Panics
    /// If the slot is not in flight.
    pub fn complete_all(&mut self, now: Instant, slot: Slot, ok: bool, finished: &mut Vec<Finished>) {
        let completion = self.leave_slot(now, slot, ok);
        if completion.request.flags.contains(Flags::MERGED) {
            self.finish_parts(now, &completion, |_| ok, finished);
        } else {
            let over = self.finish(now, &completion);
            if let Some(over) = over {
                finished.push(over);
            }
        }
    }

    #[inline(always)]
    fn finish(&mut self, now: Instant, completion: &Completion) -> Option<Finished> {
        let outcome = if completion.ok { Outcome::Done } else { Outcome::Failed };
        let closed = self.splitting.close(&self.settings.cost, &completion.request, outcome, completion.dispatched);
        self.members.finish(now, completion, closed.as_ref());
        closed
    }

    /// Cancels the queued requests of `scope`, and appends the arrivals that this completes to `finished`. An owner
    /// that is not present has nothing queued, so nothing changes.
    pub fn cancel(&mut self, now: Instant, scope: Scope, finished: &mut Vec<Finished>) {
        // The scheduler knows only owners that are present.
        if self.members.policy(scope.owner()).is_none() {
            return;
        }
        let mut removed = Vec::new();
        self.scheduler.cancel(now, scope, &mut removed);
        for request in &removed {
            if request.flags.contains(Flags::MERGED) {
                let mut parts = Vec::new();
                Gate::unmerge(&mut self.merging, request, |part| parts.push(part));
                parts.iter().for_each(|part| self.cancel_one(now, part, finished));
            } else {
                self.cancel_one(now, request, finished);
            }
        }
    }

    fn cancel_one(&mut self, now: Instant, request: &Request, finished: &mut Vec<Finished>) {
        self.queued -= 1;
        let closed = self.splitting.close(&self.settings.cost, request, Outcome::Cancelled, now);
        self.members.cancel(now, request, closed.as_ref());
        finished.extend(closed);
    }

    /// Statistics of the device.
    #[must_use]
    pub fn device_stats(&self) -> &DeviceStats {
        &self.device_stats
    }

    /// Statistics of a volume, if its owner has had others or it has a latency target: otherwise they are those of the owner.
    #[must_use]
    pub fn apart_stats(&self, owner: OwnerId, volume: VolumeId) -> Option<GateStats> {
        self.members.apart_stats(owner, volume)
    }

    /// Adds the events of the journal to the statistics now. Before many calls of [`Gate::stats`] this saves each of them a
    /// look through the journal.
    pub fn settle_stats(&mut self) {
        self.members.settle();
    }

    /// Requests of a volume that have not completed, if it is counted apart.
    #[must_use]
    pub fn apart_outstanding(&self, owner: OwnerId, volume: VolumeId) -> Option<&Outstanding> {
        self.members.apart_outstanding(owner, volume)
    }

    /// Requests of an owner that have not completed.
    #[must_use]
    pub fn outstanding(&self, owner: OwnerId) -> Option<&Outstanding> {
        self.members.outstanding(owner)
    }

    /// Returns what each owner asks for and has got. Adds the events of the journal to the statistics before.
    pub fn used(&mut self) -> impl Iterator<Item = Used<'_>> {
        self.members.settle();
        self.members.used()
    }

    /// Statistics of an owner.
    #[must_use]
    pub fn stats(&self, owner: OwnerId) -> Option<GateStats> {
        self.members.stats(owner)
    }

    #[must_use]
    pub fn policy(&self, owner: OwnerId) -> Option<&Policy> {
        self.members.policy(owner)
    }

    #[must_use]
    pub fn inspect(&self, now: Instant) -> State {
        self.scheduler.inspect(now)
    }
}

impl core::fmt::Debug for Gate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gate").field("settings", &self.settings).field("queued", &self.queued).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
