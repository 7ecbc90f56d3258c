//! Experiments that run in two ways: simulated, and by the real daemon on a device of the same rate.
//!
//! A trial is a set-up of a figure on one device: VMs, policies and loads in the paper's units, the intervals that are
//! measured, and the values that the paper prints. On a device of constant rate the simulated run and the real one use the
//! same numbers, [`SPEEDUP`] times as fast: rates, reservations and limits are multiplied, times divided, and counts of
//! requests are the paper's. Results are divided back, so that all columns are in the paper's units. Arms and platters do not
//! turn faster: where the device is a modelled drive, of which the real device has the completion times, nothing is compressed.
//!
//! Example: Fig. 5 has a limit of 400 IOPS and lasts 180 s. Both runs have a limit of 2400 IOPS and last 30 s. A VM that completes 60,000
//! requests from 70 to 120 s of the paper (8.3 s here) got 1200 IOPS in the paper's units.

use std::time::Duration;

use sluice_sched::policy::LatencyTarget;
use sluice_sched::tracker::Form;
use sluice_sched::{Instant, Policy};
use sluice_sim::devices::Model;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::{Change, Placement, Simulation, Thread};
use sluice_sim::workloads::{Address, Mix, Open, Pattern, Workload};

use crate::band::BandPoint;
use crate::device::{DeviceFile, ModelFile};
use crate::experiment::stream_of;
use crate::figure::{Figure, LabError};
use crate::figures::{flubber, mclock};
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, policy, refused};

pub mod nics;

/// How many times faster than the paper's both runs are on a device of constant rate.
pub const SPEEDUP: u32 = 6;
/// The same of storage nodes, of which there are several on this machine.
pub const SPEEDUP_OF_NODES: u32 = 2;
/// Part of the simulated value by which a real one may differ on a device of constant rate.
pub const TOLERANCE: f64 = 0.03;
/// The same on a modelled drive.
pub const TOLERANCE_DRIVE: f64 = 0.10;
/// The same for small rates, as a part of the device's rate: 3 % of a few requests per second is less than one request.
const TOLERANCE_OF_DEVICE: f64 = 0.005;
/// Size of each disk in bytes on a device of constant rate, to which all addresses are alike.
const DISK_LEN: u64 = 64 << 20;

/// Arrival of a VM's requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// Each reply is followed by the next request.
    Closed,
    /// All outstanding requests at the same time, with this interval in the paper's time.
    Bursts(Duration),
}

/// The requests that a VM sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    pub arrival: Arrival,
    /// Maximum number of outstanding requests, or the number in a burst.
    pub outstanding: u32,
    /// How many of the outstanding requests are writes; the others are reads. Only in guests.
    pub writers: u32,
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
    pub weight: u32,
    pub idle_credit: u32,
    /// Latency target in milliseconds; 0 is none.
    pub latency_ms: u64,
    /// Start in seconds.
    pub start: u64,
    pub load: Load,
    /// The only node that it uses, of several; `None`: each request goes to one of them at random.
    pub node: Option<usize>,
}

impl TrialVm {
    /// A VM that keeps 32 random reads of this length outstanding from the beginning.
    #[must_use]
    pub const fn new(name: &'static str, weight: u32, length: u32) -> TrialVm {
        let load = Load { arrival: Arrival::Closed, outstanding: 32, writers: 0, length, random_percent: 100 };
        TrialVm { name, reservation: 0, limit: 0, weight, idle_credit: 1, latency_ms: 0, start: 0, load, node: None }
    }

    /// Its policy in both runs, which are this many times faster than the paper's.
    #[must_use]
    pub fn policy(&self, speedup: u32) -> Policy {
        let times = u64::from(speedup);
        let target = LatencyTarget { p99: Duration::from_millis(self.latency_ms), reads_only: false };
        let latency = (self.latency_ms > 0).then_some(target);
        let rates = policy(self.reservation * times, self.limit * times, self.weight);
        Policy { idle_credit: self.idle_credit, latency, ..rates }
    }
}

/// Kind of a measured value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Requests per second.
    Iops,
    /// Mean latency in milliseconds.
    Latency,
}

/// A value that is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// Index of the interval.
    pub part: usize,
    /// Index of the VM; `None`: all together.
    pub vm: Option<usize>,
    pub quantity: Quantity,
    /// Value of the paper, if it states one.
    pub paper: Option<f64>,
}

/// Parameters of a scheduler: names and values.
pub type Parameters = &'static [(&'static str, &'static str)];

/// The device of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Device {
    /// Serves this number of requests per second, one at a time.
    Constant(f64),
    /// The same with exponentially distributed service times.
    Exponential(f64),
    /// Serves as many requests at a time as its depth, each for an exponentially distributed time with this mean.
    Servers(Duration),
    /// The model of a device file.
    Drive {
        file: &'static str,
        /// Whether a single one of its drives is the device.
        single: bool,
        /// Commands that the drive sorts, if not as in the file.
        queue: Option<u32>,
    },
}

/// An experiment on one device.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Its name, which differs from those of the other trials of the figure.
    pub name: String,
    pub device: Device,
    /// Number of storage nodes with such a device each, behind a gateway; 0: the device is that of the VMs' own host.
    pub nodes: usize,
    /// Distinguishes runs of the same trial.
    pub seed: u64,
    /// Size of each VM's disk in bytes; they lie side by side on a drive.
    pub disk_len: u64,
    /// Part of each disk that is read, from its beginning, in bytes.
    pub range: u64,
    /// Whether the scheduler is told that near requests are cheaper.
    pub rotational: bool,
    /// Requests at the device.
    pub depth: u32,
    pub scheduler: &'static str,
    /// Parameters of the scheduler.
    pub parameters: Parameters,
    /// Whether the VMs are guests under QEMU, which measure their requests themselves. Nothing is compressed then.
    pub in_guests: bool,
    /// The kernel's scheduler that replaces ours.
    pub kernel: Option<KernelScheduler>,
    pub vms: Vec<TrialVm>,
    /// Measured intervals: first second, and the second after the last.
    pub parts: Vec<(usize, usize)>,
    pub values: Vec<Value>,
}

/// Results of a VM in an interval, in the paper's units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    pub iops: f64,
    pub latency_ms: f64,
}

impl Seen {
    #[must_use]
    pub fn of(&self, quantity: Quantity) -> f64 {
        match quantity {
            Quantity::Iops => self.iops,
            Quantity::Latency => self.latency_ms,
        }
    }
}

/// A scheduler of the kernel. It has no simulated counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelScheduler {
    /// BFQ with the VMs' weights.
    Bfq,
    /// blk-throttle, which limits each VM to what simulated mClock gives it in the last interval. Without reservations and weights this
    /// is the nearest that an administrator can set.
    Throttle,
}

impl KernelScheduler {
    pub const ALL: [KernelScheduler; 2] = [KernelScheduler::Bfq, KernelScheduler::Throttle];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KernelScheduler::Bfq => "bfq",
            KernelScheduler::Throttle => "blk-throttle",
        }
    }
}

/// A figure with its trials.
pub struct RealFigure {
    pub figure: &'static Figure,
    /// Returns its trials.
    pub trials: fn() -> Vec<Trial>,
}

/// Figures that run with guests. The last trial is one of mClock; the kernel's schedulers run on the same device with the same VMs.
pub const IN_GUESTS: &[RealFigure] = &[
    RealFigure { figure: &mclock::reservations::FIGURE, trials: mclock::reservations::guest_trials },
    RealFigure { figure: &mclock::oltp::FIGURE, trials: mclock::oltp::guest_trials },
];

/// All figures that run on real I/O with clients of the daemon.
pub const ALL: &[RealFigure] = &[
    RealFigure { figure: &mclock::allocation::FIGURE, trials: mclock::allocation::trials },
    RealFigure { figure: &mclock::limits::FIGURE, trials: mclock::limits::trials },
    RealFigure { figure: &mclock::reservations::FIGURE, trials: mclock::reservations::trials },
    RealFigure { figure: &mclock::latency::FIGURE, trials: mclock::latency::trials },
    RealFigure { figure: &mclock::idle_credit::FIGURE, trials: mclock::idle_credit::trials },
    RealFigure { figure: &mclock::batching::FIGURE, trials: mclock::batching::trials },
    RealFigure { figure: &mclock::distributed::FIGURE, trials: mclock::distributed::trials },
    RealFigure { figure: &mclock::distributed::SKEWED, trials: mclock::distributed::skewed_trials },
    RealFigure { figure: &flubber::credits::FIGURE, trials: flubber::credits::trials },
];

impl Trial {
    /// A trial of mClock on a device of constant rate, with all rates of all VMs as values.
    pub(crate) fn constant(name: impl Into<String>, iops: f64, vms: Vec<TrialVm>, parts: &[(usize, usize)]) -> Trial {
        Trial {
            name: name.into(),
            device: Device::Constant(iops),
            nodes: 0,
            seed: 1,
            disk_len: DISK_LEN,
            range: DISK_LEN,
            rotational: false,
            depth: 32,
            scheduler: "mclock",
            parameters: &[],
            in_guests: false,
            kernel: None,
            values: Self::all_values(parts, &vms, &[Quantity::Iops]),
            vms,
            parts: parts.to_vec(),
        }
    }

    /// The same VMs on the same device with a scheduler of the kernel. The paper says nothing of it.
    #[must_use]
    pub fn by_kernel(mut self, scheduler: KernelScheduler) -> Trial {
        self.values.iter_mut().for_each(|value| value.paper = None);
        Trial { name: scheduler.name().to_owned(), kernel: Some(scheduler), ..self }
    }

    /// How many times faster than the paper's both runs are.
    #[must_use]
    pub fn speedup(&self) -> u32 {
        match self.device {
            _ if self.in_guests => 1,
            Device::Constant(_) | Device::Exponential(_) => SPEEDUP,
            Device::Servers(_) => SPEEDUP_OF_NODES,
            Device::Drive { .. } => 1,
        }
    }

    /// Part of the simulated value by which a real one may differ.
    #[must_use]
    pub fn tolerance(&self) -> f64 {
        match self.device {
            Device::Constant(_) | Device::Exponential(_) | Device::Servers(_) => TOLERANCE,
            Device::Drive { .. } => TOLERANCE_DRIVE,
        }
    }

    /// A time of the paper in both runs.
    #[must_use]
    pub fn scaled(&self, time: Duration) -> Duration {
        time / self.speedup()
    }

    /// Length in seconds of the paper.
    #[must_use]
    pub fn seconds(&self) -> usize {
        self.parts.iter().map(|(_, end)| *end).max().unwrap_or(0)
    }

    /// Rate of the device in requests per second; `None` if it depends on the requests.
    #[must_use]
    pub fn iops(&self) -> Option<f64> {
        match self.device {
            Device::Constant(iops) | Device::Exponential(iops) => Some(iops),
            Device::Servers(time) => Some(f64::from(self.depth) / time.as_secs_f64()),
            Device::Drive { .. } => None,
        }
    }

    /// Service time of a request in both runs; `None` if it depends on the requests.
    #[must_use]
    pub fn service_time(&self) -> Option<Duration> {
        let nanos = |iops: f64| (1e9 / (iops * f64::from(self.speedup()))).round() as u64;
        match self.device {
            Device::Servers(time) => Some(time / self.speedup()),
            _ => self.iops().map(|iops| Duration::from_nanos(nanos(iops))),
        }
    }

    /// The same with intervals and starts of a `divisor`-th of the length.
    #[must_use]
    pub fn shortened(mut self, divisor: usize) -> Trial {
        let shorter = |second: usize| second / divisor;
        self.parts = self.parts.iter().map(|(from, to)| (shorter(*from), shorter(*to))).collect();
        self.vms.iter_mut().for_each(|vm| vm.start /= divisor as u64);
        self
    }

    /// Values of every interval and every VM that has started by then.
    #[must_use]
    pub fn all_values(parts: &[(usize, usize)], vms: &[TrialVm], quantities: &[Quantity]) -> Vec<Value> {
        let started = |part: usize| {
            let of_part = move |(_, vm): &(usize, &TrialVm)| vm.start <= parts[part].0 as u64;
            vms.iter().enumerate().filter(of_part).map(|(vm, _)| vm)
        };
        let each = |part: usize| {
            let of_vm = move |vm| quantities.iter().map(move |quantity| (part, vm, *quantity));
            started(part).flat_map(of_vm)
        };
        let value = |(part, vm, quantity)| Value { part, vm: Some(vm), quantity, paper: None };
        (0..parts.len()).flat_map(each).map(value).collect()
    }

    /// Whether a real value is near enough to the simulated one.
    #[must_use]
    pub fn is_near(&self, quantity: Quantity, real: f64, simulated: f64) -> bool {
        let least = match (quantity, self.iops()) {
            (Quantity::Iops, Some(iops)) => TOLERANCE_OF_DEVICE * iops,
            _ => 0.0,
        };
        (real - simulated).abs() <= (self.tolerance() * simulated).max(least)
    }

    /// Simulates the trial; returns the results by interval and VM.
    ///
    /// # Errors
    /// An invalid device file, a policy that the gate rejects, or a violated invariant.
    pub fn simulate(&self) -> Result<Vec<Vec<Seen>>, LabError> {
        let second = self.scaled(Duration::from_secs(1));
        let mut simulation = Simulation::new(self.host().gate()?, self.model(0)?, Duration::ZERO, second);
        for node in 1..self.nodes {
            simulation.add_node(self.host().gate()?, self.model(node)?);
        }
        for (number, vm) in self.vms.iter().enumerate() {
            let policy = vm.policy(self.speedup());
            let added = match (self.nodes, vm.node) {
                (0, _) => {
                    simulation.add_vm(policy, number as u64 * self.disk_len, self.workload(vm)).map_err(refused)?
                }
                (_, Some(node)) => self.add_at(&mut simulation, Placement::Pinned(node), vm)?,
                (_, None) => {
                    let chance = self.point().stream(&format!("placement/{}", vm.name));
                    self.add_at(&mut simulation, Placement::Uniform(chance), vm)?
                }
            };
            if vm.start > 0 {
                simulation.start_paused(added);
                simulation.plan_change(instant(second, vm.start), Change::Start(added));
            }
        }
        simulation.run_until(instant(second, self.seconds() as u64));
        if let Some(broken) = sluice_sim::checks::check(&simulation).into_iter().next() {
            return Err(LabError::Broken(self.name.clone(), broken));
        }
        let seen = |vm: usize, (from, to): (usize, usize)| Seen {
            // A window is a second of the paper.
            iops: mean_rate(&simulation, vm, from, to),
            latency_ms: mean_latency_ms(&simulation, vm, from, to) * f64::from(self.speedup()),
        };
        let of_part = |part: &(usize, usize)| (0..self.vms.len()).map(|vm| seen(vm, *part)).collect();
        Ok(self.parts.iter().map(of_part).collect())
    }

    /// Adds a VM of several nodes, which are told what the others serve.
    fn add_at(&self, simulation: &mut Simulation, placement: Placement, vm: &TrialVm) -> Result<usize, LabError> {
        let added = simulation.add_vm_at(placement, vm.policy(self.speedup())).map_err(refused)?;
        simulation.add_thread(added, Thread::new(self.workload(vm))).map_err(refused)?;
        simulation.track(added, Form::Product);
        Ok(added)
    }

    fn point(&self) -> BandPoint {
        BandPoint::of_seed(self.seed)
    }

    fn host(&self) -> Host {
        let with = |host: Host, (name, value): &(&str, &str)| match value.parse() {
            Ok(number) => host.number(name, number),
            Err(_) => host.text(name, value),
        };
        let host = self.parameters.iter().fold(Host::new(self.scheduler, self.depth), with);
        if self.rotational { host.rotational() } else { host }
    }

    /// A new model of the device, or of that of a node.
    ///
    /// # Errors
    /// An invalid device file.
    pub fn model(&self, node: usize) -> Result<Box<dyn Model>, LabError> {
        let time = self.service_time().unwrap_or_default();
        let time = match self.device {
            Device::Constant(_) => ServiceTime::Fixed(time),
            Device::Exponential(_) | Device::Servers(_) => ServiceTime::Exponential(time),
            Device::Drive { file, single, queue } => {
                let mut file = DeviceFile::load(file)?;
                if let (ModelFile::Drives { drive, .. }, Some(queue)) = (&mut file.model, queue) {
                    drive.queue = queue;
                }
                let point = &BandPoint::NOMINAL;
                return if single { file.drive(point) } else { Ok(file.model(point)) };
            }
        };
        let count = if let Device::Servers(_) = self.device { self.depth } else { 1 };
        let stream = if node == 0 { "service".to_owned() } else { format!("service/{node}") };
        Ok(Box::new(Servers::new(count, time, self.point().stream(&stream))))
    }

    fn workload(&self, vm: &TrialVm) -> Box<dyn Workload> {
        let Load { arrival, outstanding, writers, length, random_percent } = vm.load;
        let address = Address::mixed(0, self.range, f64::from(random_percent) / 100.0);
        let mix = Mix { reads: 1.0 - f64::from(writers) / f64::from(outstanding), length, address };
        match arrival {
            Arrival::Closed => closed(outstanding, mix, &self.point(), vm.name),
            Arrival::Bursts(every) => {
                let pattern = Pattern::Bursts(outstanding, self.scaled(every));
                Box::new(Open::new(pattern, mix, Instant::ZERO, stream_of(&self.point(), vm.name)))
            }
        }
    }
}

impl Value {
    /// Returns it from results by interval and VM. The latency of all VMs is the mean over their requests.
    #[must_use]
    pub fn of(&self, seen: &[Vec<Seen>]) -> f64 {
        let part = &seen[self.part];
        if let Some(vm) = self.vm {
            return part[vm].of(self.quantity);
        }
        let iops: f64 = part.iter().map(|vm| vm.iops).sum();
        match self.quantity {
            Quantity::Iops => iops,
            Quantity::Latency => part.iter().map(|vm| vm.iops * vm.latency_ms).sum::<f64>() / iops,
        }
    }
}

fn instant(second: Duration, seconds: u64) -> Instant {
    Instant::from_nanos(second.as_nanos() as u64 * seconds)
}

/// Sets what the paper prints of the VMs in an interval, in the order of the VMs.
pub(crate) fn print(values: &mut [Value], part: usize, quantity: Quantity, printed: &[Option<f64>]) {
    for value in values.iter_mut().filter(|value| value.part == part && value.quantity == quantity) {
        value.paper = value.vm.and_then(|vm| printed.get(vm).copied()).flatten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_compares_values_of_its_vms_and_simulates_the_papers_rates() {
        for real in ALL.iter().chain(IN_GUESTS) {
            let trials = (real.trials)();
            assert!(!trials.is_empty(), "{}", real.figure.id);
            for trial in trials {
                let names: std::collections::BTreeSet<_> = trial.vms.iter().map(|vm| vm.name).collect();
                assert_eq!(names.len(), trial.vms.len(), "{}", trial.name);
                let exists =
                    |value: &Value| value.part < trial.parts.len() && value.vm.is_none_or(|vm| vm < trial.vms.len());
                assert!(!trial.values.is_empty() && trial.values.iter().all(exists), "{}", trial.name);
                // Shorter reads of a guest go through its page cache.
                let direct = |vm: &TrialVm| vm.load.length.is_multiple_of(4096);
                assert!(!trial.in_guests || trial.vms.iter().all(direct), "{}", trial.name);
                let Some(iops) = trial.iops() else { continue };
                let first = trial.vms.iter().filter(|vm| vm.start as usize <= trial.parts[0].0);
                let nodes = if first.clone().all(|vm| vm.node.is_some()) { 1 } else { trial.nodes.max(1) };
                let iops = iops * nodes as f64;
                let seen = trial.clone().shortened(10).simulate().unwrap();
                let all: f64 = seen[0].iter().map(|vm| vm.iops).sum();
                assert!((all / iops - 1.0).abs() < 0.06, "{}: {all}", trial.name);
            }
        }
    }

    #[test]
    fn small_rates_are_compared_with_the_rate_of_the_device() {
        let trial = &(ALL[0].trials)()[0];
        assert_eq!(trial.iops(), Some(400.0));
        let near = |real, simulated| trial.is_near(Quantity::Iops, real, simulated);
        assert!(near(205.9, 200.0) && !near(206.1, 200.0) && near(1.9, 0.0) && !near(2.1, 0.0));
        assert!(!trial.is_near(Quantity::Latency, 1.0, 0.5), "latencies have no such bound");
    }
}
