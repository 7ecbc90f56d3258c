//! A scenario: devices, VMs and what happens to them, all by name and number, and a run of it.
//!
//! The types here are what a scenario file comes to once it is checked; who has no file can make them. Each device has a
//! simulation of its own, since nothing on one device can be seen on another, unless they share CPUs.
//!
//! | part | where |
//! |---|---|
//! | device models by name | [`models`] |
//! | workloads by name | [`recipes`](crate::workloads::recipes) |
//! | traces | [`trace`] |
//! | CPUs of a host | [`cpus`] |
//! | the file in which all of that is stated | [`mod@file`] |
//! | from a scenario to a simulation | `assemble` |
//! | a run, and what came out | [`run()`] |

use std::time::Duration;

use sluice_sched::admission::Capacity;
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::Facts;
use sluice_sched::stack::Ring;
use sluice_sched::tracker::Form;
use sluice_sched::{Descriptor, GateSettings, Instant, Policy};

use crate::devices::speed::Speed;
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
    /// How long, and how it is measured.
    pub settings: Settings,
    /// The CPUs, if work takes time.
    pub host: Option<cpus::Host>,
    /// In the order of their names.
    pub devices: Vec<Device>,
    /// In the order of their names.
    pub vms: Vec<Vm>,
    /// In the order of their times.
    pub timeline: Vec<Planned>,
}

/// How long, and how it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The whole run, in virtual time.
    pub duration: Duration,
    /// What of it is not measured.
    pub warm_up: Duration,
    /// Windows of the series.
    pub window: Duration,
}

/// A device: what it does, and what stands before it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// What it does.
    pub model: models::Known,
    /// The model's parameters; it accepts them.
    pub model_params: ParamTable,
    /// How many of it there are, each with a gate of its own.
    pub nodes: u32,
    /// Policies hold across the nodes, because VMs tell each node in this form what they got at the others; nothing: they
    /// hold at each node.
    pub reporting: Option<Form>,
    /// Who decides.
    pub scheduler: &'static Descriptor,
    /// The scheduler's parameters; it accepts them.
    pub params: ParamTable,
    /// What the scheduler believes of the device.
    pub facts: Facts,
    /// Depth, costs, merging.
    pub gate: GateSettings,
    /// What each node can be relied on to do.
    pub capacity: Capacity,
}

/// A VM.
#[derive(Debug, Clone)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Which of the scenario's devices it uses.
    pub device: usize,
    /// Which of the device's nodes.
    pub placement: Placement,
    /// What it is promised and held to, across the nodes or at each.
    pub policy: Policy,
    /// What each of its threads asks for.
    pub source: Source,
    /// How many threads do so, each on a part of its own of the volume.
    pub threads: u32,
    /// A scheduler of its own.
    pub guest: Option<Guest>,
    /// Where its volume begins on the device, in bytes.
    pub offset: u64,
    /// How long its volume is, in bytes.
    pub size: u64,
    /// Its writes wait for the disk.
    pub direct: bool,
    /// What its requests cost it, where there are CPUs; nothing: they cost it no time.
    pub work: Option<cpus::CpuCost>,
    /// It is not there before the timeline starts it.
    pub starts_paused: bool,
}

/// Which node a request of a VM goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Always this one.
    Node(u32),
    /// Any, equally likely.
    Uniform,
    /// One after the other.
    RoundRobin,
}

/// What a thread asks for.
#[derive(Debug, Clone)]
pub enum Source {
    /// What a program does.
    Workload(&'static WorkloadProfile, ParamTable),
    /// What was recorded.
    Trace(trace::Trace),
}

/// A guest with a scheduler of its own.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Who decides in it.
    pub scheduler: &'static Descriptor,
    /// That scheduler's parameters.
    pub params: ParamTable,
    /// What the scheduler believes of the virtual disk.
    pub facts: Facts,
    /// Between it and the host.
    pub ring: Ring,
}

/// Something that happens at a stated time.
#[derive(Debug, Clone)]
pub struct Planned {
    /// When.
    pub at: Instant,
    /// What.
    pub event: Event,
}

/// What happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// To a VM, by its number in the scenario.
    Vm(usize, VmEvent),
    /// To a device, by its number in the scenario: to one node or to all.
    Device(usize, Option<u32>, DeviceEvent),
}

/// What happens to a VM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VmEvent {
    /// It begins, or goes on.
    Start,
    /// It asks for nothing new.
    Idle,
    /// It leaves; what waits is cancelled.
    Stop,
    /// It has another policy.
    Policy(Policy),
}

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeviceEvent {
    /// It becomes slower, stalls, or is itself again.
    Speed(Speed),
    /// It is lost with what it had.
    Fail,
    /// It is back.
    Return,
}
