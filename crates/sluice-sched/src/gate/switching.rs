//! Replacement of the scheduler while requests are queued and in flight.
//!
//! The new scheduler gets all owners first, so that it can reject them. Only then it gets the queued requests, in
//! arrival order, as if they all arrived now, and last what each VM and volume has had so far ([`crate::standing`]), so
//! that no limit lets a burst through and no reservation is lost or doubled because of the change. Requests in flight stay at
//! the device. Their completions are counted as usual, but no scheduler is notified, since the new one has never seen them.

use crate::gate::{Gate, GateSettings, splitting};
use crate::policy::Policy;
use crate::request::{Flags, Kind, OwnerId, Phase, Request, VolumeId, Wait};
use crate::scheduler::{Change, ChangeError, Scheduler, Scope};
use crate::standing::{Left, Standing};
use crate::time::Instant;

impl Gate {
    /// Replaces the scheduler, with all owners, volumes, policies and queued requests. No request is lost or executed
    /// twice, and the requests of a volume keep their order. Limits and reservations go on where they were. `merging`
    /// applies to the new scheduler. Call `pump` afterwards.
    ///
    /// # Errors
    /// If the new scheduler rejects an owner, a volume or a policy. Then nothing has changed.
    pub fn replace_scheduler(
        &mut self,
        now: Instant,
        mut scheduler: Box<dyn Scheduler>,
        merging: bool,
    ) -> Result<(), ChangeError> {
        let GateSettings { depth, request_bytes, .. } = self.settings;
        scheduler.configure(now, Change::Device { depth, request_bytes })?;
        for (owner, policy, volumes) in self.members.present() {
            scheduler.configure(now, Change::AddOwner { owner, policy })?;
            for &(volume, policy) in volumes {
                scheduler.configure(now, Change::AddVolume { owner, volume, policy })?;
            }
        }
        let standings = self.standings(now);
        let waiting = self.take_waiting(now);
        self.scheduler = scheduler;
        self.settings.merging = merging;
        for flying in self.flight.iter_mut().flatten() {
            flying.request.flags = flying.request.flags.with(Flags::PREVIOUS_SCHEDULER);
        }
        for request in waiting {
            let length_max = self.piece_max(request.kind);
            self.enqueue(now, request, length_max);
        }
        // rule: gate.standing
        for (scope, standing) in &standings {
            self.scheduler.resume(now, *scope, standing);
            self.kept.set(now, *scope, standing.limits);
        }
        Ok(())
    }

    /// Returns the standing of every VM and volume. The scheduler states it; for limits that it does not enforce, the gate adds
    /// what an earlier scheduler stated.
    fn standings(&self, now: Instant) -> Vec<(Scope, Standing)> {
        let standing = |scope: Scope, policy: &Policy| {
            let mut standing = self.scheduler.standing(now, scope);
            let kept = self.kept.at(now, scope, policy);
            standing.limits.iter_mut().zip(kept).for_each(|(left, kept): (&mut Left, Left)| *left = left.or(kept));
            // A VM that has requests was not idle, so it has no idle credit under the new scheduler either.
            let is_active =
                |owner: OwnerId| self.outstanding(owner).is_some_and(|own| own.waiting > 0 || own.in_flight > 0);
            standing.ahead = standing.ahead.or_else(|| is_active(scope.owner()).then_some(0));
            (scope, standing)
        };
        let mut standings = Vec::new();
        for (owner, policy, volumes) in self.members.present() {
            standings.push(standing(Scope::Owner(owner), &policy));
            let of_volume = |(volume, policy): &(VolumeId, Policy)| standing(Scope::Volume(owner, *volume), policy);
            standings.extend(volumes.iter().map(of_volume));
        }
        standings
    }

    /// Notes that these policies take the place of the present ones, for the limits that the scheduler does not enforce.
    pub(super) fn keep_left(&mut self, now: Instant, owner: OwnerId, policy: &Policy, changed: &[(VolumeId, Policy)]) {
        let Some((old, volumes)) = self.members.policies(owner) else { return };
        self.kept.change(now, Scope::Owner(owner), &old, policy);
        for (volume, policy) in changed {
            if let Some((_, old)) = volumes.iter().find(|(known, _)| known == volume) {
                self.kept.change(now, Scope::Volume(owner, *volume), old, policy);
            }
        }
    }

    /// All queued requests, unmerged, in arrival order.
    fn take_waiting(&mut self, now: Instant) -> Vec<Request> {
        let mut carried = Vec::new();
        for (owner, _, _) in self.members.present() {
            self.scheduler.cancel(now, Scope::Owner(owner), &mut carried);
        }
        let mut waiting = Vec::with_capacity(carried.len());
        for request in &carried {
            if request.flags.contains(Flags::MERGED) {
                Gate::unmerge(&mut self.merging, request, |part| waiting.push(part));
            } else {
                waiting.push(*request);
            }
        }
        waiting.sort_unstable_by_key(|request| request.id);
        for request in &mut waiting {
            (request.phase, request.wait) = (Phase::None, Wait::None);
        }
        assert!(waiting.len() as u64 == self.queued, "a scheduler returns all queued requests");
        waiting
    }

    /// Length of the largest piece that is submitted unsplit.
    pub(super) fn piece_max(&self, kind: Kind) -> u32 {
        let max = match kind {
            Kind::Discard | Kind::WriteZeroes => self.settings.discard_max,
            Kind::Read | Kind::Write | Kind::Flush => self.settings.transfer_max,
        };
        splitting::at_least_a_sector(max)
    }
}
