//! Results of a run, for output.

use std::time::Duration;

use sluice_sched::policy::Field;
use sluice_sched::{Instant, Phase, Policy};

use super::assemble::Part;
use super::promises::{self, Promise, Run, Verdict};
use super::{Event, Scenario, VmEvent};
use crate::checks::{self, Violation};
use crate::cpu::VcpuId;
use crate::record::{Record, Window};

#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    /// Length of the whole run.
    pub duration: Duration,
    /// Length of the measured part.
    pub measured: Duration,
    /// The warm-up before that.
    pub warm_up: Duration,
    /// Windows of the series.
    pub window: Duration,
    /// In the order of the scenario.
    pub vms: Vec<VmOutcome>,
    /// All nodes of all devices.
    pub devices: Vec<DeviceOutcome>,
    /// All users of virtual CPUs.
    pub cpus: Vec<CpuOutcome>,
    /// Results of the invariants' checks.
    pub checks: Vec<Check>,
    /// Changes of policies by the timeline.
    pub policy_changes: Vec<PolicyChange>,
}

/// A change of a policy by an entry of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange {
    /// Time from the start of the run.
    pub at: Duration,
    pub vm: String,
    /// Fields that have changed.
    pub changed: Vec<Field>,
    /// Stated fields that have not changed.
    pub as_before: Vec<Field>,
}

/// Results of a VM.
#[derive(Debug, Clone)]
pub struct VmOutcome {
    pub name: String,
    /// Requests that arrived, from the start.
    pub arrived: u64,
    /// Requests that completed in the measured time.
    pub completed: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Mean latency.
    pub mean: Duration,
    /// Requests dispatched for the reservation, and by weight, in the measured time.
    pub dispatched: (u64, u64),
    /// Requests dropped by the device: frames that found the queue of a link full.
    pub dropped: u64,
    /// Requests cancelled when the VM stopped.
    pub cancelled: u64,
    /// Requests moved to another node after theirs had failed.
    pub retried: u64,
    /// Requests outstanding at the end.
    pub outstanding: u64,
    /// When its last request had completed, if its workload ended.
    pub ended: Option<Duration>,
    /// Completions in each window, from the end of the warm-up to the end of the run.
    pub series: Vec<Window>,
    /// Its guarantees, and whether they were kept.
    pub promises: Vec<Promise>,
    /// Latencies: upper bound of a bucket in nanoseconds, and count.
    pub latencies: Vec<(u64, u64)>,
    percentiles: Vec<(f64, Duration)>,
}

/// Results of a node of a device.
#[derive(Debug, Clone)]
pub struct DeviceOutcome {
    pub name: String,
    /// Number of the node.
    pub node: usize,
    /// Busy time as a part of the run, of all its servers together.
    pub busy: f64,
}

/// Results of a virtual CPU.
#[derive(Debug, Clone)]
pub struct CpuOutcome {
    /// Its user: the driver domain, or a VM.
    pub of: String,
    /// Running time as a part of the run.
    pub busy: f64,
}

/// An invariant, and whether the run keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    /// Violations.
    pub broken: Vec<String>,
}

/// Percentiles in the results.
pub const PERCENTILES: [f64; 5] = [50.0, 90.0, 95.0, 99.0, 99.9];

impl VmOutcome {
    /// A percentile of the latency, one of [`PERCENTILES`].
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let found = self.percentiles.iter().find(|(known, _)| *known == percent);
        found.map_or(Duration::ZERO, |(_, latency)| *latency)
    }
}

impl Outcome {
    /// Length of a window in seconds; the last one may be shorter.
    #[must_use]
    pub fn window_seconds(&self, index: usize) -> f64 {
        let from = self.window.as_nanos() * index as u128;
        self.window.as_nanos().min(self.measured.as_nanos().saturating_sub(from)) as f64 / 1e9
    }

    /// Start of a window in seconds from the start of the run.
    #[must_use]
    pub fn window_start(&self, index: usize) -> f64 {
        (self.warm_up.as_nanos() + self.window.as_nanos() * index as u128) as f64 / 1e9
    }

    /// Guarantees that were not kept, with the name of the VM.
    pub fn not_kept(&self) -> impl Iterator<Item = (&str, &Promise)> {
        let broken = |promise: &&Promise| matches!(promise.verdict, Verdict::Broken { .. });
        self.vms.iter().flat_map(move |vm| vm.promises.iter().filter(broken).map(|promise| (vm.name.as_str(), promise)))
    }

    /// Violated invariants, with the name of the check.
    pub fn broken(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().flat_map(|check| check.broken.iter().map(|broken| (check.name, broken.as_str())))
    }
}

/// Collects the results of a scenario's parts.
pub(super) fn collect(scenario: &Scenario, seed: u64, parts: &[Part]) -> Outcome {
    let settings = scenario.settings;
    let mut vms: Vec<(usize, VmOutcome)> = Vec::new();
    for part in parts {
        let oldest = part.simulation.oldest_outstanding().into_iter();
        let numbers = part.vms.iter().zip(oldest).enumerate();
        vms.extend(numbers.map(|(at, (number, oldest))| (*number, vm(scenario, part, at, oldest))));
    }
    vms.sort_by_key(|(number, _)| *number);
    Outcome {
        seed,
        duration: settings.duration,
        measured: settings.duration - settings.warm_up,
        warm_up: settings.warm_up,
        window: settings.window,
        vms: vms.into_iter().map(|(_, vm)| vm).collect(),
        devices: devices(scenario, parts),
        cpus: cpus(parts),
        checks: check(scenario, parts),
        policy_changes: policy_changes(scenario),
    }
}

fn policy_changes(scenario: &Scenario) -> Vec<PolicyChange> {
    let mut policies: Vec<Policy> = scenario.vms.iter().map(|vm| vm.policy).collect();
    let changes = scenario.timeline.iter().filter_map(|planned| {
        let Event::Vm(vm, VmEvent::Policy(now)) = planned.event else { return None };
        let before = std::mem::replace(&mut policies[vm], now);
        let (changed, as_before): (Vec<Field>, Vec<Field>) =
            Field::ALL.into_iter().partition(|field| field.differs(&before, &now));
        let as_before = as_before.into_iter().filter(|field| now.stated().any(|stated| stated == *field));
        let at = Duration::from_nanos(planned.at.as_nanos());
        let vm = scenario.vms[vm].name.clone();
        Some(PolicyChange { at, vm, changed, as_before: as_before.collect() })
    });
    changes.collect()
}

fn vm(scenario: &Scenario, part: &Part, at: usize, oldest: Option<Instant>) -> VmOutcome {
    let (simulation, settings) = (&part.simulation, scenario.settings);
    let record = simulation.record(at);
    let dispatched = simulation.dispatched(at);
    let seconds = (settings.duration - settings.warm_up).as_secs_f64();
    let number = part.vms[at];
    let mut outcome = VmOutcome {
        name: scenario.vms[number].name.clone(),
        promises: Vec::new(),
        arrived: record.arrived,
        completed: record.measured,
        bytes: record.bytes,
        iops: record.measured as f64 / seconds,
        bytes_per_second: record.bytes as f64 / seconds,
        mean: record.mean(),
        dispatched: (dispatched[Phase::Reservation as usize], dispatched[Phase::Weight as usize]),
        dropped: record.dropped,
        cancelled: record.cancelled,
        retried: record.retried,
        outstanding: record.outstanding(),
        ended: simulation.ended(at).map(|at| Duration::from_nanos(at.as_nanos())),
        series: series(record, settings.duration - settings.warm_up, settings.window),
        latencies: record.latencies().collect(),
        percentiles: PERCENTILES.iter().map(|percent| (*percent, record.percentile(*percent))).collect(),
    };
    let served = simulation.served(at, oldest);
    outcome.promises = promises::check(&Run { scenario, number, served, outcome: &outcome });
    outcome
}

/// One window for each interval of the run; a completion at its very end belongs to the last one.
fn series(record: &Record, measured: Duration, window: Duration) -> Vec<Window> {
    let count = measured.as_nanos().div_ceil(window.as_nanos()) as usize;
    let mut series = record.series().to_vec();
    for late in series.split_off(count.min(series.len())) {
        let last = series.last_mut().expect("a measured run has a window");
        last.completed += late.completed;
        last.bytes += late.bytes;
        last.latency += late.latency;
    }
    series.resize(count, Window::default());
    series
}

fn devices(scenario: &Scenario, parts: &[Part]) -> Vec<DeviceOutcome> {
    let devices = parts.iter().flat_map(|part| part.devices.iter().map(move |device| (part, *device)));
    let devices = devices.flat_map(|(part, (device, first))| {
        (first..first + scenario.devices[device].nodes as usize).map(move |node| {
            let (model, end) = (part.simulation.device_of(node), part.simulation.now());
            let done = model.busy_nanos().saturating_sub(model.ahead_nanos(end));
            let most = end.as_nanos() as f64 * f64::from(model.servers());
            let name = scenario.devices[device].name.clone();
            DeviceOutcome { name, node: node - first, busy: (done as f64 / most).min(1.0) }
        })
    });
    devices.collect()
}

fn cpus(parts: &[Part]) -> Vec<CpuOutcome> {
    let of = |part: &Part, (of, vcpu): &(String, VcpuId)| {
        let time = part.simulation.now().as_nanos() as f64;
        CpuOutcome { of: of.clone(), busy: part.simulation.host().used_nanos(*vcpu) as f64 / time }
    };
    parts.iter().flat_map(|part| part.cpus.iter().map(move |cpu| of(part, cpu))).collect()
}

fn check(scenario: &Scenario, parts: &[Part]) -> Vec<Check> {
    let mut all = Violation::NAMES.map(|name| Check { name, broken: Vec::new() });
    for part in parts {
        let names: Vec<&str> = part.devices.iter().map(|(device, _)| scenario.devices[*device].name.as_str()).collect();
        let devices = if names.len() == 1 { "Device" } else { "Devices" };
        for broken in checks::check(&part.simulation) {
            let vm = broken.vm().map(|vm| format!(" (VM {vm} is {})", scenario.vms[part.vms[vm]].name));
            let text = format!("{devices} {}: {broken}{}", names.join(", "), vm.unwrap_or_default());
            let check = all.iter_mut().find(|check| check.name == broken.name()).expect("every violation has a check");
            check.broken.push(text);
        }
    }
    all.into()
}
