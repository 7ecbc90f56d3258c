//! VMs of a trial and their loads.
//!
//! A load becomes a workload of the simulator. The simulated run submits its requests in simulated time, and the clients of the real run take the
//! same requests from the same workload in real time. So a load is described once.

use std::time::Duration;

use sluice_sched::Policy;
use sluice_sched::policy::{Class, LatencyTarget, PriorityClass};
use sluice_sim::workloads::Workload;

use crate::band::BandPoint;
use crate::figure::LabError;
use crate::setup::policy;

/// Makes the workload of a VM, of which this fraction of the figure's work is done: 1 is all of it, 5 a fifth.
pub type MakeProgram = fn(u64, &BandPoint) -> Result<Box<dyn Workload>, LabError>;

/// Arrival of a VM's requests.
#[derive(Debug, Clone, Copy)]
pub enum Arrival {
    /// Each reply is followed by the next request.
    Closed,
    /// All outstanding requests at the same time, with this interval in the paper's time.
    Bursts(Duration),
    /// The figure's own workload decides about its requests and their lengths: threads that think, a fixed amount of work, a copy. Of
    /// the other fields of the load only the largest number and length are used.
    Program(MakeProgram),
}

/// The requests that a VM sends.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub arrival: Arrival,
    /// Maximum number of outstanding requests, or the number in a burst.
    pub outstanding: u32,
    /// Percent of the requests that are writes. In guests it is that part of the outstanding ones.
    pub write_percent: u32,
    /// Length of a request in bytes.
    pub length: u32,
    /// Percent of the requests at random addresses; the others follow the previous one.
    pub random_percent: u32,
}

/// A VM of a trial, in the paper's units.
#[derive(Debug, Clone, Copy)]
pub struct TrialVm {
    pub name: &'static str,
    /// 0 is none.
    pub reservation: u64,
    /// 0 is none.
    pub limit: u64,
    /// Second from which on the limit holds.
    pub limit_from: u64,
    pub weight: u32,
    pub idle_credit: u32,
    /// Latency target in milliseconds; 0 is none.
    pub latency_ms: u64,
    pub class: Class,
    pub priority_class: PriorityClass,
    /// Start in seconds.
    pub start: u64,
    pub load: Load,
    /// The only node that it uses, of several; `None`: each request goes to one of them at random.
    pub node: Option<usize>,
    /// Length of its disk, in those of the other VMs.
    pub disks: u64,
}

impl Load {
    /// How many of the outstanding requests are writes.
    #[must_use]
    pub fn writers(&self) -> u32 {
        (self.outstanding * self.write_percent + 50) / 100
    }
}

impl TrialVm {
    /// A VM that keeps 32 random reads of this length outstanding from the beginning.
    #[must_use]
    pub const fn new(name: &'static str, weight: u32, length: u32) -> TrialVm {
        let load = Load { arrival: Arrival::Closed, outstanding: 32, write_percent: 0, length, random_percent: 100 };
        TrialVm {
            name,
            reservation: 0,
            limit: 0,
            limit_from: 0,
            weight,
            idle_credit: 1,
            latency_ms: 0,
            class: Class::Foreground,
            priority_class: PriorityClass::BestEffort,
            start: 0,
            load,
            node: None,
            disks: 1,
        }
    }

    /// Its policy in both runs, which are this many times faster than the paper's.
    #[must_use]
    pub fn policy(&self, speedup: u32) -> Policy {
        let times = u64::from(speedup);
        let target = LatencyTarget { p99: Duration::from_millis(self.latency_ms), reads_only: false };
        let latency = (self.latency_ms > 0).then_some(target);
        let rates = policy(self.reservation * times, self.limit * times, self.weight);
        let (class, priority_class) = (self.class, self.priority_class);
        Policy { idle_credit: self.idle_credit, latency, class, priority_class, ..rates }
    }

    /// The same with the limit that holds in a second.
    #[must_use]
    pub fn at(self, second: u64) -> TrialVm {
        TrialVm { limit: if second < self.limit_from { 0 } else { self.limit }, ..self }
    }
}
