//! VMs on one device, some of which start later: the set-up of most figures.

use std::time::Duration;

use sluice_sched::Policy;
use sluice_sim::devices::Model;
use sluice_sim::engine::{Change, Front, Simulation};
use sluice_sim::workloads::Workload;

use crate::band::BandPoint;
use crate::figure::LabError;
use crate::setup::{at, refused, run};

/// Builds a VM's workload for a disk of this size in bytes.
pub type Make<'a> = &'a dyn Fn(u64) -> Box<dyn Workload>;

/// A VM of an experiment.
pub struct ExperimentVm<'a> {
    pub policy: Policy,
    /// Start in seconds.
    pub start: u64,
    /// Builds its workload.
    pub make: Make<'a>,
}

/// An experiment on one device.
pub struct Experiment<'a> {
    /// The VMs; their disks are adjacent.
    pub vms: Vec<ExperimentVm<'a>>,
    /// Changes, with their times in seconds.
    pub changes: Vec<(u64, Change)>,
    /// Size of each VM's disk in bytes.
    pub span: u64,
    /// Length in seconds.
    pub seconds: u64,
}

impl Experiment<'_> {
    /// Runs the experiment, with a window of one second for the series.
    ///
    /// # Errors
    /// A policy that a gate rejects, or a violated invariant.
    pub fn run_simulation(
        &self,
        front: impl Into<Front>,
        model: Box<dyn Model>,
        what: &str,
    ) -> Result<Simulation, LabError> {
        let mut simulation = self.build(front, model)?;
        run(&mut simulation, self.seconds, what)?;
        Ok(simulation)
    }

    /// Builds the simulation without running it.
    ///
    /// # Errors
    /// A policy that a gate rejects.
    pub fn build(&self, front: impl Into<Front>, model: Box<dyn Model>) -> Result<Simulation, LabError> {
        let mut simulation = Simulation::new(front, model, Duration::ZERO, Duration::from_secs(1));
        for (number, member) in self.vms.iter().enumerate() {
            let workload = (member.make)(self.span);
            let vm = simulation.add_vm(member.policy, number as u64 * self.span, workload).map_err(refused)?;
            if member.start > 0 {
                simulation.start_paused(vm);
                simulation.plan_change(at(member.start), Change::Start(vm));
            }
        }
        for (second, change) in &self.changes {
            simulation.plan_change(at(*second), change.clone());
        }
        Ok(simulation)
    }
}

/// Stream of random numbers for a VM's workload.
#[must_use]
pub fn stream_of(point: &BandPoint, vm: &str) -> sluice_sim::random::Stream {
    point.stream(&format!("workload/{vm}"))
}
