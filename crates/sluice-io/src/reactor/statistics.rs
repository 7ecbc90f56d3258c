//! Copies of statistics for snapshots.
//!
//! Requests wait while a snapshot is taken. So the statistics of a VM or volume are copied only if something has happened since the last
//! snapshot, and VMs without requests share one copy.

use std::sync::Arc;

use sluice_sched::gate::{GateStats, Outstanding};
use sluice_sched::{Gate, OwnerId, VolumeId};

/// The statistics of a gate for one snapshot.
pub(crate) struct Statistics<'a> {
    gate: &'a Gate,
    /// A copy for VMs without requests.
    unused: Option<Arc<GateStats>>,
}

impl<'a> Statistics<'a> {
    pub(crate) fn new(gate: &'a mut Gate) -> Self {
        gate.settle_stats();
        Statistics { gate, unused: None }
    }

    /// Returns the statistics of a VM, of which `copied` is the last copy; `None` if the gate does not know it.
    pub(crate) fn of_vm(&mut self, owner: OwnerId, copied: &mut Option<Arc<GateStats>>) -> Option<Arc<GateStats>> {
        let outstanding = self.gate.outstanding(owner)?;
        let stats = shared_copy(copied, outstanding, || self.gate.stats(owner))?;
        let stats = share_unused(stats, &mut self.unused);
        *copied = Some(Arc::clone(&stats));
        Some(stats)
    }

    /// Returns the statistics of a volume, of which `copied` is the last copy; `None` if they are those of its VM.
    pub(crate) fn of_volume(
        &self,
        owner: OwnerId,
        volume: VolumeId,
        copied: &mut Option<Arc<GateStats>>,
    ) -> Option<Arc<GateStats>> {
        let outstanding = self.gate.apart_outstanding(owner, volume)?;
        shared_copy(copied, outstanding, || self.gate.apart_stats(owner, volume))
    }
}

/// Returns the statistics to which the requests `outstanding` belong: `last`, the previous ones, if nothing has happened since;
/// else `stats`, which is called only then.
fn shared_copy(
    last: &mut Option<Arc<GateStats>>,
    outstanding: &Outstanding,
    stats: impl FnOnce() -> Option<GateStats>,
) -> Option<Arc<GateStats>> {
    if let Some(copy) = last.as_ref().filter(|copy| copy.outstanding.is_unchanged_since(outstanding)) {
        return Some(Arc::clone(copy));
    }
    *last = stats().map(Arc::new);
    last.clone()
}

/// Returns the statistics of another VM in place of equal ones: those of VMs without requests that were added at the same instant are equal.
/// The first copy that is seen stays in `unused`.
fn share_unused(stats: Arc<GateStats>, unused: &mut Option<Arc<GateStats>>) -> Arc<GateStats> {
    if stats.outstanding.arrived > 0 {
        return stats;
    }
    match unused {
        Some(known) if known.began == stats.began => Arc::clone(known),
        _ => Arc::clone(unused.insert(stats)),
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::Instant;

    use super::*;

    #[test]
    fn vms_without_requests_share_their_statistics_if_they_were_added_at_the_same_instant() {
        let stats = |began: u64, arrived: u64| {
            let mut stats = GateStats::default();
            (stats.began, stats.outstanding.arrived) = (Instant::from_nanos(began), arrived);
            Arc::new(stats)
        };
        let mut unused = None;
        let first = share_unused(stats(1, 0), &mut unused);
        assert!(Arc::ptr_eq(&first, &share_unused(stats(1, 0), &mut unused)));
        let used = share_unused(stats(1, 5), &mut unused);
        assert!(used.outstanding.arrived == 5 && !Arc::ptr_eq(&first, &used));
        assert_eq!(
            share_unused(stats(2, 0), &mut unused).began,
            Instant::from_nanos(2),
            "the instant is a part of them"
        );
    }
}
