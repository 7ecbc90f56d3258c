//! Common parts of the figures: gates, policies, workloads, and a run that checks the invariants.

use std::time::Duration;

use sluice_sched::admission::Capacity;
use sluice_sched::params::{ParamTable, Value};
use sluice_sched::scheduler::{DeviceInfo, Scheduler};
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{Bytes, CostModel, Gate, GateSettings, Instant, Policy};
use sluice_sim::checks::check;
use sluice_sim::engine::Simulation;
use sluice_sim::stack::{Guest, Ring};
use sluice_sim::workloads::{Address, Closed, Mix, Workload};

use crate::band::BandPoint;
use crate::figure::LabError;

/// A scheduler by name, with its parameters and the settings of its gate.
#[derive(Debug, Clone)]
pub struct Host {
    /// Name in the list of schedulers.
    pub scheduler: &'static str,
    parameters: ParamTable,
    settings: GateSettings,
    rotational: bool,
}

impl Host {
    /// Every request costs 1, and none is merged.
    #[must_use]
    pub fn new(scheduler: &'static str, depth: u32) -> Self {
        let settings =
            GateSettings { depth, cost: CostModel::per_request(), merging: false, ..GateSettings::default() };
        Host { scheduler, parameters: ParamTable::new(), settings, rotational: false }
    }

    /// Sets a parameter that is a word or a quantity.
    #[must_use]
    pub fn text(mut self, name: &str, value: &str) -> Self {
        self.parameters.insert(name.into(), Value::Text(value.into()));
        self
    }

    /// Sets a parameter that is a number.
    #[must_use]
    pub fn number(mut self, name: &str, value: i64) -> Self {
        self.parameters.insert(name.into(), Value::Integer(value));
        self
    }

    /// Sets a parameter that is a flag.
    #[must_use]
    pub fn flag(mut self, name: &str, value: bool) -> Self {
        self.parameters.insert(name.into(), Value::Bool(value));
        self
    }

    /// Sets the cost of requests.
    #[must_use]
    pub fn cost(mut self, cost: CostModel) -> Self {
        self.settings.cost = cost;
        self
    }

    /// Merges adjacent requests of a VM up to `up_to` bytes.
    #[must_use]
    pub fn merging(mut self, up_to: Bytes) -> Self {
        (self.settings.merging, self.settings.transfer_max) = (true, up_to);
        self
    }

    /// Sets the queue depth.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.settings.depth = depth;
        self
    }

    /// Sets the maximum size of reads and writes; larger ones are split.
    #[must_use]
    pub fn transfer(mut self, most: Bytes) -> Self {
        self.settings.transfer_max = most;
        self
    }

    /// Sets that adjacent requests are cheaper.
    #[must_use]
    pub fn rotational(mut self) -> Self {
        self.rotational = true;
        self
    }

    /// The scheduler.
    ///
    /// # Errors
    /// Parameters that it rejects.
    pub fn build(&self) -> Result<Box<dyn Scheduler>, LabError> {
        let descriptor = sluice_papers::find(self.scheduler);
        let descriptor = descriptor.ok_or_else(|| LabError::Refused(format!("No scheduler {}", self.scheduler)))?;
        let info = DeviceInfo::of(&self.settings, self.rotational, &Capacity::default());
        descriptor.build(&info, &self.parameters).map_err(refused)
    }

    /// The gate.
    ///
    /// # Errors
    /// As [`Host::build`].
    pub fn gate(&self) -> Result<Gate, LabError> {
        Ok(Gate::new(self.build()?, self.settings))
    }

    /// The same in a guest, whose device is a ring.
    ///
    /// # Errors
    /// As [`Host::build`].
    pub fn guest(&self, ring: Ring) -> Result<Guest, LabError> {
        let mut inside = self.clone();
        inside.settings.depth = ring.slots;
        let (merging, queue_max) = (self.settings.merging, self.settings.queue_max);
        Ok(Guest { scheduler: inside.build()?, ring, merging, queue_max })
    }
}

/// The error of a gate, a scheduler or a model.
pub fn refused(error: impl std::fmt::Display) -> LabError {
    LabError::Refused(error.to_string())
}

/// A policy in IOPS; 0 is none.
#[must_use]
pub fn policy(reservation: u64, limit: u64, weight: u32) -> Policy {
    let mut policy = Policy { weight: Some(Weight::new(weight)), ..Policy::default() };
    policy.reservation.iops = (reservation > 0).then(|| Iops::per_second(reservation));
    policy.limit.iops = (limit > 0).then(|| Iops::per_second(limit));
    policy
}

/// A closed loop of `outstanding` requests.
#[must_use]
pub fn closed(outstanding: u32, mix: Mix, point: &BandPoint, name: &str) -> Box<dyn Workload> {
    Box::new(Closed::new(outstanding, Duration::ZERO, mix, Instant::ZERO, point.stream(name)))
}

/// Random reads of one size in the first `range` bytes.
#[must_use]
pub fn random_reads(length: u32, range: u64) -> Mix {
    Mix { reads: 1.0, length, address: Address::random(0, range) }
}

/// Runs until `seconds`, and checks the invariants.
///
/// # Errors
/// The first violated invariant.
pub fn run(simulation: &mut Simulation, seconds: u64, what: &str) -> Result<(), LabError> {
    simulation.run_until(at(seconds));
    match check(simulation).into_iter().next() {
        Some(broken) => Err(LabError::Broken(what.to_owned(), broken)),
        None => Ok(()),
    }
}

/// The instant `seconds` seconds after the start.
#[must_use]
pub fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

/// Mean requests per second of a VM from `from` to `to`, in a simulation with windows of a second from zero.
#[must_use]
pub fn mean_rate(simulation: &Simulation, vm: usize, from: usize, to: usize) -> f64 {
    let series = simulation.record(vm).series();
    let completed: u64 = series.iter().take(to).skip(from).map(|window| window.completed).sum();
    completed as f64 / (to - from) as f64
}

/// A VM's mean latency in milliseconds from second `from` to `to`.
#[must_use]
pub fn mean_latency_ms(simulation: &Simulation, vm: usize, from: usize, to: usize) -> f64 {
    let windows = simulation.record(vm).series().iter().take(to).skip(from);
    let (completed, latency) = windows.fold((0, 0), |(n, sum), window| (n + window.completed, sum + window.latency));
    latency as f64 / 1e6 / completed.max(1) as f64
}

/// Minimum rate of a VM in any second from `from` to `to`.
#[must_use]
pub fn least_rate(simulation: &Simulation, vm: usize, from: usize, to: usize) -> u64 {
    let series = simulation.record(vm).series();
    (from..to).map(|second| series.get(second).map_or(0, |window| window.completed)).min().unwrap_or(0)
}

/// A VM's requests per second over time, for a chart.
#[must_use]
pub fn rates(simulation: &Simulation, vm: usize) -> Vec<(f64, f64)> {
    let window = simulation.window().as_secs_f64();
    let series = simulation.record(vm).series().iter().enumerate();
    series.map(|(index, got)| (index as f64 * window, got.completed as f64 / window)).collect()
}

/// A VM's mean latency in milliseconds over time, for a chart; seconds without a request are left out.
#[must_use]
pub fn latencies_ms(simulation: &Simulation, vm: usize) -> Vec<(f64, f64)> {
    let window = simulation.window().as_secs_f64();
    let series = simulation.record(vm).series().iter().enumerate().filter(|(_, got)| got.completed > 0);
    series.map(|(index, got)| (index as f64 * window, got.latency as f64 / 1e6 / got.completed as f64)).collect()
}

/// Whether `value` is within `part` of `expected`.
#[must_use]
pub fn within(value: f64, expected: f64, part: f64) -> bool {
    (value - expected).abs() <= part * expected.abs()
}

/// Numbers as text, separated by slashes.
#[must_use]
pub fn slashed(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join("/")
}
