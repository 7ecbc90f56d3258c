//! Replacement of the scheduler while requests are queued and in flight.
//!
//! The new scheduler gets all owners first, so that it can reject them. Only then it gets the queued requests, in
//! arrival order, as if they all arrived now. Requests in flight stay at the device. Their completions are counted as
//! usual, but no scheduler is notified, since the new one has never seen them.

use crate::gate::{Gate, GateSettings, splitting};
use crate::request::{Flags, Kind, Phase, Request, Wait};
use crate::scheduler::{Change, ChangeError, Scheduler, Scope};
use crate::time::Instant;

impl Gate {
    /// Replaces the scheduler, with all owners, volumes, policies and queued requests. No request is lost or executed
    /// twice, and the requests of a volume keep their order. `merging` applies to the new scheduler. Call `pump`
    /// afterwards.
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
        Ok(())
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
