//! What came out of a run, ready to be printed.

use std::time::Duration;

use sluice_sched::policy::Field;
use sluice_sched::{Phase, Policy};

use super::assemble::Part;
use super::promises::{self, Promise, Run, Verdict};
use super::{Event, Scenario, VmEvent};
use crate::checks::{self, Violation};
use crate::cpu::VcpuId;
use crate::record::{Record, Window};

/// Of one run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// The whole run.
    pub duration: Duration,
    /// What of it was measured.
    pub measured: Duration,
    /// The warm-up before that.
    pub warm_up: Duration,
    /// Windows of the series.
    pub window: Duration,
    /// As in the scenario.
    pub vms: Vec<VmOutcome>,
    /// Every node of every device.
    pub devices: Vec<DeviceOutcome>,
    /// Everybody who works on a virtual CPU.
    pub cpus: Vec<CpuOutcome>,
    /// Whether it can be true.
    pub checks: Vec<Check>,
    /// What the timeline made of policies.
    pub policy_changes: Vec<PolicyChange>,
}

/// A policy that an entry of the timeline changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange {
    /// From the start of the run.
    pub at: Duration,
    /// Whose.
    pub vm: String,
    /// What is not as it was before.
    pub changed: Vec<Field>,
    /// What it says besides.
    pub as_before: Vec<Field>,
}

/// What a VM got.
#[derive(Debug, Clone)]
pub struct VmOutcome {
    /// Its name.
    pub name: String,
    /// Requests that arrived, in all.
    pub arrived: u64,
    /// Completed while it was measured.
    pub completed: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Those per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Mean latency.
    pub mean: Duration,
    /// Dispatched to meet its reservation, and by its weight, while it was measured.
    pub dispatched: (u64, u64),
    /// Given up by its device: frames that found the queue of a link full.
    pub dropped: u64,
    /// Left unserved when it stopped.
    pub cancelled: u64,
    /// Went to another node after theirs had failed.
    pub retried: u64,
    /// Still on their way at the end.
    pub outstanding: u64,
    /// When it had nothing more to ask and all was over.
    pub ended: Option<Duration>,
    /// What was completed in each window, from the end of the warm-up to the end of the run.
    pub series: Vec<Window>,
    /// What it was promised, and whether that was kept.
    pub promises: Vec<Promise>,
    /// Latencies: upper end of a step in nanoseconds, and how many lie in it.
    pub latencies: Vec<(u64, u64)>,
    percentiles: Vec<(f64, Duration)>,
}

/// What a node of a device did.
#[derive(Debug, Clone)]
pub struct DeviceOutcome {
    /// The device's name.
    pub name: String,
    /// Which of its nodes.
    pub node: usize,
    /// Part of the run's time that it was busy, all its servers together.
    pub busy: f64,
}

/// What a virtual CPU did.
#[derive(Debug, Clone)]
pub struct CpuOutcome {
    /// Whose it is: the driver domain, or a VM.
    pub of: String,
    /// Part of the run's time that it ran.
    pub busy: f64,
}

/// A law, and whether the run keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What is broken.
    pub broken: Vec<String>,
}

/// Percentiles that are kept.
pub const PERCENTILES: [f64; 5] = [50.0, 90.0, 95.0, 99.0, 99.9];

impl VmOutcome {
    /// One of [`PERCENTILES`] of the latency.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let found = self.percentiles.iter().find(|(known, _)| *known == percent);
        found.map_or(Duration::ZERO, |(_, latency)| *latency)
    }
}

impl Outcome {
    /// How long a window of the series is: the last may be shorter.
    #[must_use]
    pub fn window_seconds(&self, index: usize) -> f64 {
        let from = self.window.as_nanos() * index as u128;
        self.window.as_nanos().min(self.measured.as_nanos().saturating_sub(from)) as f64 / 1e9
    }

    /// When a window of the series begins, in seconds from the start of the run.
    #[must_use]
    pub fn window_start(&self, index: usize) -> f64 {
        (self.warm_up.as_nanos() + self.window.as_nanos() * index as u128) as f64 / 1e9
    }

    /// Every promise that was not kept, with the name of its VM.
    pub fn not_kept(&self) -> impl Iterator<Item = (&str, &Promise)> {
        let broken = |promise: &&Promise| matches!(promise.verdict, Verdict::Broken { .. });
        self.vms.iter().flat_map(move |vm| vm.promises.iter().filter(broken).map(|promise| (vm.name.as_str(), promise)))
    }

    /// Every law that is broken, with its check.
    pub fn broken(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().flat_map(|check| check.broken.iter().map(|broken| (check.name, broken.as_str())))
    }
}

/// Collects what the parts of a scenario came to.
pub(super) fn collect(scenario: &Scenario, seed: u64, parts: &[Part]) -> Outcome {
    let settings = scenario.settings;
    let mut vms: Vec<(usize, VmOutcome)> = parts
        .iter()
        .flat_map(|part| part.vms.iter().enumerate().map(move |(at, number)| (*number, vm(scenario, part, at))))
        .collect();
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

/// Whether two policies say something else in a field.
fn differ(a: &Policy, b: &Policy, field: Field) -> bool {
    match field {
        Field::Reservation => a.reservation != b.reservation,
        Field::Limit => a.limit != b.limit,
        Field::Weight => a.weight != b.weight,
        Field::Burst => a.burst != b.burst,
        Field::IdleCredit => a.idle_credit != b.idle_credit,
        Field::Latency => a.latency != b.latency,
        Field::Class => a.class != b.class,
        Field::PriorityClass => a.priority_class != b.priority_class,
        Field::PriorityLevel => a.priority_level != b.priority_level,
    }
}

fn policy_changes(scenario: &Scenario) -> Vec<PolicyChange> {
    let mut policies: Vec<Policy> = scenario.vms.iter().map(|vm| vm.policy).collect();
    let changes = scenario.timeline.iter().filter_map(|planned| {
        let Event::Vm(vm, VmEvent::Policy(now)) = planned.event else { return None };
        let before = std::mem::replace(&mut policies[vm], now);
        let (changed, as_before): (Vec<Field>, Vec<Field>) =
            Field::ALL.into_iter().partition(|field| differ(&before, &now, *field));
        let as_before = as_before.into_iter().filter(|field| now.stated().any(|stated| stated == *field));
        let at = Duration::from_nanos(planned.at.as_nanos());
        let vm = scenario.vms[vm].name.clone();
        Some(PolicyChange { at, vm, changed, as_before: as_before.collect() })
    });
    changes.collect()
}

fn vm(scenario: &Scenario, part: &Part, at: usize) -> VmOutcome {
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
    outcome.promises = promises::check(&Run { scenario, number, served: simulation.served(at), outcome: &outcome });
    outcome
}

/// A window for every one that there is time for; what came at the very end belongs to the last.
fn series(record: &Record, measured: Duration, window: Duration) -> Vec<Window> {
    let count = measured.as_nanos().div_ceil(window.as_nanos()) as usize;
    let mut series = record.series().to_vec();
    for late in series.split_off(count.min(series.len())) {
        let last = series.last_mut().expect("what is measured has a window");
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
            let check = all.iter_mut().find(|check| check.name == broken.name()).expect("every law has a name");
            check.broken.push(text);
        }
    }
    all.into()
}
