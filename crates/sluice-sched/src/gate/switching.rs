//! Another scheduler in front of the same device, while requests wait and fly.
//!
//! The new one is told of everybody first, so that it may refuse; only then does it get what waits, as if it all came now,
//! in the order in which it came. What is at the device stays there: its completions are booked as ever, but no scheduler
//! is told, since the one that dispatched it is gone and the new one never saw it.

use crate::gate::{Gate, splitting};
use crate::request::{Flags, Kind, Phase, Request, Wait};
use crate::scheduler::{Change, ChangeError, Scheduler, Scope};
use crate::time::Instant;

impl Gate {
    /// Puts another scheduler in the place of the one there is, with all owners, volumes, policies and waiting requests.
    /// Nothing is lost or done twice, and a volume's requests keep their order. `merging` is for the new one. Pump afterwards.
    ///
    /// # Errors
    /// If the new one refuses an owner, a volume or a policy; then nothing has changed.
    pub fn replace_scheduler(
        &mut self,
        now: Instant,
        mut scheduler: Box<dyn Scheduler>,
        merging: bool,
    ) -> Result<(), ChangeError> {
        scheduler.configure(now, Change::Depth(self.settings.depth))?;
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

    /// Everything that waits, unmerged, in the order in which it came.
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
        assert!(waiting.len() as u64 == self.queued, "a scheduler gives back all that waits");
        waiting
    }

    /// The largest piece of a request that goes to the device as one.
    pub(super) fn piece_max(&self, kind: Kind) -> u32 {
        let max = match kind {
            Kind::Discard | Kind::WriteZeroes => self.settings.discard_max,
            Kind::Read | Kind::Write | Kind::Flush => self.settings.transfer_max,
        };
        splitting::at_least_a_sector(max)
    }
}
