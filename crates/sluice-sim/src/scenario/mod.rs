//! Scenarios: devices, VMs and events, by name and number, and their runs.
//!
//! The types here are the result of a checked scenario file; code without a file can also build them. Each device has a
//! separate simulation, since devices do not affect each other, unless they share CPUs.
//!
//! | part | where |
//! |---|---|
//! | device models by name | [`models`] |
//! | workload profiles by name | [`profiles`](crate::workloads::profiles) |
//! | traces | [`trace`] |
//! | CPUs of a host | [`cpus`] |
//! | scenario file | [`mod@file`] |
//! | building of simulations | `assemble` |
//! | runs, and their results | [`run()`] |

use std::time::Duration;

use crate::stack::Ring;
use sluice_pool::Aim;
use sluice_sched::admission::Capacity;
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::tracker::Form;
use sluice_sched::{Descriptor, GateSettings, Instant, Policy};

use crate::devices::speed::Speed;
use crate::engine::Meeting;
use crate::workloads::profiles::WorkloadProfile;

mod assemble;
pub mod cpus;
pub mod file;
pub mod models;
pub mod outcome;
pub mod promises;
mod run;
pub mod trace;

pub use crate::devices::ssd::States;
pub use crate::named::written;
pub use outcome::{Check, CpuOutcome, DeviceOutcome, Outcome, PolicyChange, VmOutcome};
pub use promises::{Promise, Verdict};
pub use run::{Requests, RunError, Watch, run};

/// A scenario without errors.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Length and measurement.
    pub settings: Settings,
    /// CPUs, if requests need CPU time.
    pub host: Option<cpus::Host>,
    /// In the order of their names.
    pub devices: Vec<Device>,
    /// In the order of their names.
    pub vms: Vec<Vm>,
    /// In the order of their times.
    pub timeline: Vec<Planned>,
}

/// Length and measurement of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Length of the whole run, in virtual time.
    pub duration: Duration,
    /// Time at the start that is not measured.
    pub warm_up: Duration,
    /// Length of a window in the series.
    pub window: Duration,
}

/// A device: its model and its gate.
#[derive(Debug, Clone)]
pub struct Device {
    pub name: String,
    pub model: models::Known,
    /// Valid parameters of the model.
    pub model_params: ParamTable,
    /// Number of nodes, each with its own gate.
    pub nodes: u32,
    /// Form in which VMs report service at other nodes, so that policies hold across nodes. `None`: they hold at each
    /// node.
    pub reporting: Option<Form>,
    pub scheduler: &'static Descriptor,
    /// Valid parameters of the scheduler.
    pub params: ParamTable,
    /// Properties that the scheduler assumes.
    pub info: DeviceInfo,
    /// Depth, costs and merging.
    pub gate: GateSettings,
    /// Capacity of each node.
    pub capacity: Capacity,
    /// What is in flight at each node follows the time of requests there; `None`: it is the depth.
    pub aim: Option<Aim>,
    /// Number of hosts that share it, each with its own gate; 1 if it has several nodes.
    pub hosts: u32,
    /// How these tell each other what they use; `None`: they do not.
    pub meeting: Option<Meeting>,
}

impl Device {
    /// Number of its gates: one for each node, or for each host.
    #[must_use]
    pub fn gates(&self) -> u32 {
        self.nodes.max(self.hosts)
    }
}

/// A VM.
#[derive(Debug, Clone)]
pub struct Vm {
    pub name: String,
    /// Number of its device.
    pub device: usize,
    /// Choice among the device's nodes; of a device with hosts, the number of its host.
    pub placement: Placement,
    /// Its policy, across the nodes or at each.
    pub policy: Policy,
    /// Requests of each of its threads.
    pub source: Source,
    /// Number of threads, each on a separate part of the volume.
    pub threads: u32,
    /// Scheduler in the guest, if any.
    pub guest: Option<Guest>,
    /// Offset of its volume on the device in bytes.
    pub offset: u64,
    /// Size of its volume in bytes.
    pub size: u64,
    /// Whether its writes are sync.
    pub direct: bool,
    /// CPU time of its requests; `None` if they need none.
    pub work: Option<cpus::CpuCost>,
    /// Whether it submits nothing before the timeline starts it.
    pub starts_paused: bool,
}

/// Choice of the node for a request of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Always this node.
    Node(u32),
    /// A random node, uniformly.
    Uniform,
    /// Each node in turn.
    RoundRobin,
}

/// Requests of a thread.
#[derive(Debug, Clone)]
pub enum Source {
    /// A workload profile with its parameters.
    Workload(&'static WorkloadProfile, ParamTable),
    /// A recorded trace.
    Trace(trace::Trace),
}

/// A guest with its own scheduler.
#[derive(Debug, Clone)]
pub struct Guest {
    pub scheduler: &'static Descriptor,
    /// Its parameters.
    pub params: ParamTable,
    /// Properties that it assumes of the virtual disk.
    pub info: DeviceInfo,
    /// Ring to the host.
    pub ring: Ring,
}

/// A planned event.
#[derive(Debug, Clone)]
pub struct Planned {
    pub at: Instant,
    pub event: Event,
}

/// An event.
#[derive(Debug, Clone)]
pub enum Event {
    /// Event of a VM, by its number in the scenario.
    Vm(usize, VmEvent),
    /// Event of one node or host, or of all of them, of a device, by its number in the scenario.
    Device(usize, Option<u32>, DeviceEvent),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VmEvent {
    /// It starts, or continues.
    Start,
    /// It submits no more requests.
    Idle,
    /// It stops; queued requests are cancelled.
    Stop,
    /// Its policy changes.
    Policy(Policy),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeviceEvent {
    /// Its speed changes, it stalls, or it recovers.
    Speed(Speed),
    /// The path between a host and the device changes: requests take this many times as long.
    Path(f64),
    /// A host cannot read or write what the hosts tell each other.
    Away,
    /// It can again.
    Back,
    /// It fails and loses its requests.
    Fail,
    /// It returns.
    Return,
}
