//! VMs side by side on one device, some of them coming later: what most figures are.

use std::time::Duration;

use sluice_sched::Policy;
use sluice_sim::devices::Model;
use sluice_sim::engine::{Change, Front, Simulation};
use sluice_sim::workloads::Workload;

use crate::band::BandPoint;
use crate::figure::LabError;
use crate::setup::{at, refused, run};

/// Makes a VM's workload, from the bytes of its disk.
pub type Make<'a> = &'a dyn Fn(u64) -> Box<dyn Workload>;

/// A VM of a scene.
pub struct ExperimentVm<'a> {
    /// What it is promised.
    pub policy: Policy,
    /// When it starts, in seconds.
    pub start: u64,
    /// What it asks for.
    pub make: Make<'a>,
}

/// What happens on one device.
pub struct Experiment<'a> {
    /// The VMs; their disks lie side by side.
    pub vms: Vec<ExperimentVm<'a>>,
    /// What changes, and when in seconds.
    pub changes: Vec<(u64, Change)>,
    /// Bytes of each VM's disk.
    pub span: u64,
    /// When it ends.
    pub seconds: u64,
}

impl Experiment<'_> {
    /// Plays it, with one second to a window of the series.
    ///
    /// # Errors
    /// What a gate refuses, or a law that is broken.
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

    /// Everything is there, and nothing has happened yet.
    ///
    /// # Errors
    /// What a gate refuses.
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

/// The stream of random numbers that a VM's workload takes.
#[must_use]
pub fn stream_of(point: &BandPoint, vm: &str) -> sluice_sim::random::Stream {
    point.stream(&format!("workload/{vm}"))
}
