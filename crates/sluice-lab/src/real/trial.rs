//! A trial, and its simulated run.

use std::time::Duration;

use sluice_sched::Instant;
use sluice_sched::tracker::Form as TrackerForm;
use sluice_sim::devices::Model;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::{Change, Placement, Simulation, Thread};
use sluice_sim::workloads::{Address, Mix, Open, Pattern, Workload};

use super::{
    Arrival, Device, KernelScheduler, Load, Quantity, SPEEDUP, SPEEDUP_OF_NODES, Seen, TOLERANCE, TOLERANCE_DRIVE,
    TrialVm, Value,
};
use crate::band::BandPoint;
use crate::experiment::stream_of;
use crate::figure::LabError;
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, refused};

/// As [`TOLERANCE`] for small rates, as a part of the device's rate: 3 % of a few requests per second is less than one request.
const TOLERANCE_OF_DEVICE: f64 = 0.005;
/// Size of each disk in bytes on a device of constant rate, to which all addresses are alike.
const DISK_LEN: u64 = 64 << 20;

/// Parameters of a scheduler: names and values.
pub type Parameters = &'static [(&'static str, &'static str)];

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
    /// Which fraction of a figure's fixed amount of work is done: 1 is all of it, 5 a fifth.
    pub work: u32,
    /// Size of a VM's disk in bytes; they lie side by side on a drive.
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

impl Trial {
    /// A trial of mClock on a device of constant rate, with all rates of all VMs as values.
    pub(crate) fn constant(name: impl Into<String>, iops: f64, vms: Vec<TrialVm>, parts: &[(usize, usize)]) -> Trial {
        Trial {
            name: name.into(),
            device: Device::Constant(iops),
            nodes: 0,
            seed: 1,
            work: 1,
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
            Device::Constant(_) => SPEEDUP,
            Device::Servers(_) => SPEEDUP_OF_NODES,
            Device::Drive { .. } => 1,
        }
    }

    /// Part of the simulated value by which a real one may differ.
    #[must_use]
    pub fn tolerance(&self) -> f64 {
        match self.device {
            Device::Constant(_) | Device::Servers(_) => TOLERANCE,
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
            Device::Constant(iops) => Some(iops),
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
        for vm in &mut self.vms {
            vm.start /= divisor as u64;
            vm.limit_from /= divisor as u64;
        }
        // The paper prints times of the whole work.
        let times = self.values.iter_mut().filter(|value| value.quantity == Quantity::Seconds);
        times.for_each(|value| value.paper = None);
        Trial { work: self.work * divisor as u32, ..self }
    }

    /// The same with the limits that hold in a second.
    #[must_use]
    pub fn at(&self, second: u64) -> Trial {
        Trial { vms: self.vms.iter().map(|vm| vm.at(second)).collect(), ..self.clone() }
    }

    /// Whether a limit begins to hold in a second.
    #[must_use]
    pub fn is_changed_at(&self, second: u64) -> bool {
        self.vms.iter().any(|vm| vm.limit_from > 0 && vm.limit_from == second)
    }

    /// Returns the VMs with whose work the run ends: those whose time is a value; empty if it lasts its time.
    #[must_use]
    pub fn awaited(&self) -> Vec<usize> {
        self.values.iter().filter(|value| value.quantity == Quantity::Seconds).filter_map(|value| value.vm).collect()
    }

    /// Returns the start and the length of a VM's disk on the device.
    #[must_use]
    pub fn place(&self, vm: usize) -> (u64, u64) {
        let before: u64 = self.vms[..vm].iter().map(|vm| vm.disks).sum();
        (before * self.disk_len, self.vms[vm].disks * self.disk_len)
    }

    /// Returns the length of all disks.
    #[must_use]
    pub fn disks_len(&self) -> u64 {
        self.vms.iter().map(|vm| vm.disks).sum::<u64>() * self.disk_len
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
        for number in 0..self.vms.len() {
            self.add_vm(&mut simulation, number)?;
        }
        simulation.run_until(instant(second, self.seconds() as u64));
        if let Some(broken) = sluice_sim::checks::check(&simulation).into_iter().next() {
            return Err(LabError::Broken(self.name.clone(), broken));
        }
        let seen = |vm: usize, (from, to): (usize, usize)| Seen {
            // A window is a second of the paper.
            iops: mean_rate(&simulation, vm, from, to),
            latency_ms: mean_latency_ms(&simulation, vm, from, to) * f64::from(self.speedup()),
            seconds: simulation.ended(vm).map_or(f64::NAN, |at| at.as_nanos() as f64 / second.as_nanos() as f64),
        };
        let of_part = |part: &(usize, usize)| (0..self.vms.len()).map(|vm| seen(vm, *part)).collect();
        Ok(self.parts.iter().map(of_part).collect())
    }

    /// Adds a VM with the plan of its start and of its limit. Its writes are sync: the daemon's files have direct I/O.
    fn add_vm(&self, simulation: &mut Simulation, number: usize) -> Result<(), LabError> {
        let (vm, second) = (&self.vms[number], self.scaled(Duration::from_secs(1)));
        let policy = vm.at(0).policy(self.speedup());
        let added = match (self.nodes, vm.node) {
            (0, _) => {
                let added = simulation.add_vm_at(Placement::Pinned(0), policy).map_err(refused)?;
                let thread = Thread::new(self.workload(vm)?).at(self.place(number).0).synchronous();
                simulation.add_thread(added, thread).map_err(refused)?;
                added
            }
            (_, Some(node)) => self.add_at(simulation, Placement::Pinned(node), vm)?,
            (_, None) => {
                let chance = self.point().stream(&format!("placement/{}", vm.name));
                self.add_at(simulation, Placement::Uniform(chance), vm)?
            }
        };
        if vm.start > 0 {
            simulation.start_paused(added);
            simulation.plan_change(instant(second, vm.start), Change::Start(added));
        }
        if vm.limit_from > 0 {
            let change = Change::Policy(added, vm.policy(self.speedup()));
            simulation.plan_change(instant(second, vm.limit_from), change);
        }
        Ok(())
    }

    /// Adds a VM of several nodes, which are told what the others serve.
    fn add_at(&self, simulation: &mut Simulation, placement: Placement, vm: &TrialVm) -> Result<usize, LabError> {
        let added = simulation.add_vm_at(placement, vm.policy(self.speedup())).map_err(refused)?;
        simulation.add_thread(added, Thread::new(self.workload(vm)?)).map_err(refused)?;
        simulation.track(added, TrackerForm::Product);
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
            Device::Servers(_) => ServiceTime::Exponential(time),
            Device::Drive { file, form } => return form.model(file),
        };
        let count = if let Device::Servers(_) = self.device { self.depth } else { 1 };
        let stream = if node == 0 { "service".to_owned() } else { format!("service/{node}") };
        Ok(Box::new(Servers::new(count, time, self.point().stream(&stream))))
    }

    /// The requests of a VM, in the time of both runs.
    ///
    /// # Errors
    /// If the figure's own workload cannot be made.
    pub fn workload(&self, vm: &TrialVm) -> Result<Box<dyn Workload>, LabError> {
        let Load { arrival, outstanding, write_percent, length, random_percent } = vm.load;
        let address = Address::mixed(0, self.range, f64::from(random_percent) / 100.0);
        let mix = Mix { reads: f64::from(100 - write_percent) / 100.0, length, address };
        Ok(match arrival {
            Arrival::Closed => closed(outstanding, mix, &self.point(), vm.name),
            Arrival::Bursts(every) => {
                let pattern = Pattern::Bursts(outstanding, self.scaled(every));
                Box::new(Open::new(pattern, mix, Instant::ZERO, stream_of(&self.point(), vm.name)))
            }
            Arrival::Program(make) => make(u64::from(self.work), &self.point())?,
        })
    }
}

fn instant(second: Duration, seconds: u64) -> Instant {
    Instant::from_nanos(second.as_nanos() as u64 * seconds)
}
