//! Access to the gates, for what observes or changes them beside the simulation.

use sluice_sched::{Gate, OwnerId, VolumeId};

use super::{Front, Simulation};

impl Simulation {
    /// The gate of a node; of a stack, that of the host.
    #[must_use]
    pub fn gate(&self, node: usize) -> &Gate {
        self.nodes[node].host()
    }

    /// The gate of a node without guest gates, for changes that [`Simulation::set_policy`] does not make. They take effect
    /// at the node's next event.
    ///
    /// # Panics
    /// If the node has guest gates.
    pub fn gate_mut(&mut self, node: usize) -> &mut Gate {
        let Front::Gate(gate) = &mut self.nodes[node].front else { panic!("node {node} has guests' gates") };
        gate
    }

    /// Owner and volume of a VM at a node; `None` if its requests do not use that node.
    #[must_use]
    pub fn owner(&self, vm: usize, node: usize) -> Option<(OwnerId, VolumeId)> {
        self.vms[vm].route.at(node)
    }
}
