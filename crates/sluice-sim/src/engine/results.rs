//! Counters of each VM of a simulation, from its record and from the gates.

use sluice_sched::Instant;
use sluice_sched::gate::GateStats;

use super::Simulation;
use super::vm::Seat;
use crate::record::{Record, Served};

impl Simulation {
    /// Record of a VM.
    #[must_use]
    pub fn record(&self, vm: usize) -> &Record {
        &self.vms[vm].record
    }

    /// Service that the gates gave a VM after the warm-up, and how long it had a queued request. `oldest` is the arrival of its
    /// oldest outstanding request.
    #[must_use]
    pub fn served(&self, vm: usize, oldest: Option<Instant>) -> Served {
        let waits = |seat: &Seat| self.nodes[seat.node as usize].host().outstanding(seat.owner);
        let waiting = self.vms[vm].route.seats().iter().any(|seat| waits(seat).is_some_and(|own| own.waiting > 0));
        self.record(vm).served(self.now, oldest.filter(|_| waiting))
    }

    /// Arrivals of the oldest outstanding request of each VM. O(VMs + outstanding requests).
    #[must_use]
    pub fn oldest_outstanding(&self) -> Vec<Option<Instant>> {
        let mut oldest: Vec<Option<Instant>> = vec![None; self.vms.len()];
        for (vm, arrived) in self.outstanding() {
            oldest[vm] = Some(oldest[vm].map_or(arrived, |known| known.min(arrived)));
        }
        oldest
    }

    /// Requests per second of a VM after the warm-up.
    #[must_use]
    pub fn rate(&self, vm: usize) -> f64 {
        self.record(vm).measured as f64 / self.now.since(self.warm).as_secs_f64()
    }

    /// When a VM had submitted and completed its last request; `None` while it continues.
    #[must_use]
    pub fn ended(&self, vm: usize) -> Option<Instant> {
        self.vms[vm].ended
    }

    /// Statistics of a VM at its first node.
    #[must_use]
    pub fn stats(&self, vm: usize) -> GateStats {
        self.stats_by_node(vm).next().expect("VMs are never removed")
    }

    fn stats_by_node(&self, vm: usize) -> impl Iterator<Item = GateStats> {
        let seats = self.vms[vm].route.seats().iter();
        seats.map(|seat| self.nodes[seat.node as usize].stats(seat.owner).expect("VMs are never removed"))
    }

    /// Requests dispatched at all nodes, by phase, from the start.
    pub(super) fn dispatched_so_far(&self, vm: usize) -> [u64; 3] {
        self.stats_by_node(vm)
            .fold([0; 3], |sum, stats| std::array::from_fn(|phase| sum[phase] + stats.dispatched[phase]))
    }

    /// Requests dispatched after the warm-up, by [`sluice_sched::Phase`].
    #[must_use]
    pub fn dispatched(&self, vm: usize) -> [u64; 3] {
        let (all, before) = (self.dispatched_so_far(vm), self.vms[vm].dispatched_before);
        std::array::from_fn(|phase| all[phase] - before[phase])
    }
}
