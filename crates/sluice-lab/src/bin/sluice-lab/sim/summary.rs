//! Summary of a run: a stable object for programs, a table for people.

use serde::Serialize;
use sluice_sched::policy::Field;
use sluice_sim::scenario::{Outcome, PolicyChange, Promise, Verdict, VmOutcome};

use sluice_console::table;

/// Version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One run. Names contain units; new fields are added at the end.
#[derive(Serialize)]
pub(crate) struct Summary<'a> {
    version: &'static str,
    seed: u64,
    duration_s: f64,
    vms: Vec<Vm<'a>>,
    series: Vec<Moment<'a>>,
    checks: Vec<Check<'a>>,
    warm_up_s: f64,
    devices: Vec<Device<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<Cpu<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policy_changes: Vec<Change<'a>>,
}

/// A policy that changed during the run: names of its fields.
#[derive(Serialize)]
struct Change<'a> {
    t_s: f64,
    vm: &'a str,
    changed: Vec<&'static str>,
    as_before: Vec<&'static str>,
}

#[derive(Serialize)]
struct Vm<'a> {
    vm: &'a str,
    completed: u64,
    iops: f64,
    bytes_per_second: f64,
    latency_us: Latency,
    dispatched: Dispatched,
    arrived_in_all: u64,
    outstanding: u64,
    cancelled: u64,
    dropped: u64,
    retried: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_s: Option<f64>,
    promises: Vec<Promised<'a>>,
}

/// A guarantee of a VM. The numbers are present if it was not kept, in its unit.
#[derive(Serialize)]
struct Promised<'a> {
    promise: &'a str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<f64>,
}

/// Latencies of completed requests; absent if none completed.
#[derive(Serialize)]
struct Latency {
    mean: Option<f64>,
    p50: Option<f64>,
    p99: Option<f64>,
    p90: Option<f64>,
    p95: Option<f64>,
    #[serde(rename = "p99.9")]
    p99_9: Option<f64>,
}

#[derive(Serialize)]
struct Dispatched {
    reservation: u64,
    weight: u64,
}

/// Results of a VM in one window, which begins at `t_s`.
#[derive(Serialize)]
struct Moment<'a> {
    t_s: f64,
    vm: &'a str,
    iops: f64,
    bytes_per_second: f64,
    latency_us_mean: Option<f64>,
}

#[derive(Serialize)]
struct Check<'a> {
    check: &'a str,
    ok: bool,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    broken: &'a [String],
}

#[derive(Serialize)]
struct Device<'a> {
    device: &'a str,
    node: usize,
    busy_ratio: f64,
}

/// A virtual CPU.
#[derive(Serialize)]
struct Cpu<'a> {
    of: &'a str,
    busy_ratio: f64,
}

impl<'a> Summary<'a> {
    /// Returns the summary of an outcome.
    pub(crate) fn of(outcome: &'a Outcome) -> Self {
        Summary {
            version: VERSION,
            seed: outcome.seed,
            duration_s: outcome.duration.as_secs_f64(),
            vms: outcome.vms.iter().map(vm).collect(),
            series: outcome.vms.iter().flat_map(|vm| series(outcome, vm)).collect(),
            checks: outcome
                .checks
                .iter()
                .map(|check| Check { check: check.name, ok: check.broken.is_empty(), broken: &check.broken })
                .collect(),
            warm_up_s: outcome.warm_up.as_secs_f64(),
            devices: outcome
                .devices
                .iter()
                .map(|device| Device { device: &device.name, node: device.node, busy_ratio: device.busy })
                .collect(),
            cpus: outcome.cpus.iter().map(|cpu| Cpu { of: &cpu.of, busy_ratio: cpu.busy }).collect(),
            policy_changes: outcome.policy_changes.iter().map(change).collect(),
        }
    }
}

fn change(change: &PolicyChange) -> Change<'_> {
    let names = |fields: &[Field]| fields.iter().map(|field| field.name()).collect();
    let (changed, as_before) = (names(&change.changed), names(&change.as_before));
    Change { t_s: change.at.as_secs_f64(), vm: &change.vm, changed, as_before }
}

/// Describes the policy changes of the timeline. A field that an entry does not state keeps its value, and the text
/// says so.
fn changes(outcome: &Outcome) -> String {
    let line = |of: &PolicyChange| {
        let names = |fields: &[Field]| fields.iter().map(|field| field.name()).collect::<Vec<_>>().join(", ");
        let changed = if of.changed.is_empty() { "nothing".to_owned() } else { names(&of.changed) };
        let before = match of.as_before.is_empty() {
            true => String::new(),
            false => format!("; as before: {}", names(&of.as_before)),
        };
        format!("\nAt {} s the policy of VM {} changed in {changed}{before}", of.at.as_secs_f64(), of.vm)
    };
    outcome.policy_changes.iter().map(line).collect()
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// Returns a latency of a VM, or `None` if it has no completed requests.
pub(crate) fn latency_us(vm: &VmOutcome, latency: std::time::Duration) -> Option<f64> {
    (vm.completed > 0).then(|| micros(latency))
}

fn vm(vm: &VmOutcome) -> Vm<'_> {
    let at = |percent| latency_us(vm, vm.percentile(percent));
    Vm {
        vm: &vm.name,
        completed: vm.completed,
        iops: vm.iops,
        bytes_per_second: vm.bytes_per_second,
        latency_us: Latency {
            mean: latency_us(vm, vm.mean),
            p50: at(50.0),
            p99: at(99.0),
            p90: at(90.0),
            p95: at(95.0),
            p99_9: at(99.9),
        },
        dispatched: Dispatched { reservation: vm.dispatched.0, weight: vm.dispatched.1 },
        arrived_in_all: vm.arrived,
        outstanding: vm.outstanding,
        cancelled: vm.cancelled,
        dropped: vm.dropped,
        retried: vm.retried,
        ended_s: vm.ended.map(|at| at.as_secs_f64()),
        promises: vm.promises.iter().map(promised).collect(),
    }
}

/// Possible results of [`verdict`].
pub(crate) const VERDICTS: [&str; 4] = ["kept", "broken", "not-given", "not-judged"];

/// Returns the result of a guarantee, for programs.
pub(crate) fn verdict(promise: &Promise) -> &'static str {
    match promise.verdict {
        Verdict::Kept => VERDICTS[0],
        Verdict::Broken { .. } => VERDICTS[1],
        Verdict::NotGiven => VERDICTS[2],
        Verdict::NotJudged => VERDICTS[3],
    }
}

fn promised(promise: &Promise) -> Promised<'_> {
    let (measured, expected) = match promise.verdict {
        Verdict::Broken { measured, expected } => (Some(measured), Some(expected)),
        _ => (None, None),
    };
    Promised { promise: &promise.text, verdict: verdict(promise), measured, expected }
}

fn series<'a>(outcome: &'a Outcome, vm: &'a VmOutcome) -> impl Iterator<Item = Moment<'a>> {
    vm.series.iter().enumerate().map(|(index, window)| {
        let seconds = outcome.window_seconds(index);
        let mean = (window.completed > 0).then(|| window.latency as f64 / window.completed as f64 / 1000.0);
        Moment {
            t_s: outcome.window_start(index),
            vm: &vm.name,
            iops: window.completed as f64 / seconds,
            bytes_per_second: window.bytes as f64 / seconds,
            latency_us_mean: mean,
        }
    })
}

/// Returns the summary as a table for people.
pub(crate) fn table(outcome: &Outcome) -> String {
    let header = ["VM", "IOPS", "MB/S", "MEAN", "P50", "P99", "BY RESERVATION", "BY WEIGHT", "PROMISE", "VERDICT"];
    let mut table = table::table(&header);
    for vm in &outcome.vms {
        let by = |count: u64| match vm.dispatched.0 + vm.dispatched.1 {
            0 => "-".to_owned(),
            all => format!("{:.0} %", count as f64 * 100.0 / all as f64),
        };
        table.add_row([
            vm.name.clone(),
            format!("{:.1}", vm.iops),
            format!("{:.1}", vm.bytes_per_second / 1e6),
            show(vm.mean),
            show(vm.percentile(50.0)),
            show(vm.percentile(99.0)),
            by(vm.dispatched.0),
            by(vm.dispatched.1),
            each(vm, |promise| promise.text.clone()),
            each(vm, |promise| promise.verdict.to_string()),
        ]);
    }
    let busy = outcome.devices.iter().map(|device| {
        let nodes = outcome.devices.iter().filter(|other| other.name == device.name).count();
        let node = if nodes > 1 { format!(" node {}", device.node) } else { String::new() };
        format!("device {}{node} {:.0} % busy", device.name, device.busy * 100.0)
    });
    let measured = outcome.measured.as_secs_f64();
    let checks = if outcome.broken().next().is_none() { "all invariants hold" } else { "an invariant is VIOLATED" };
    let promises = match outcome.not_kept().count() {
        0 => String::new(),
        count => format!("; {count} promise{} NOT kept", if count == 1 { "" } else { "s" }),
    };
    let cpus = outcome.cpus.iter().map(|cpu| format!("{} on its CPU {:.0} %", cpu.of, cpu.busy * 100.0));
    let dropped = outcome.vms.iter().filter(|vm| vm.dropped > 0);
    let dropped = dropped.map(|vm| format!("{} of VM {} dropped", vm.dropped, vm.name));
    let busy: Vec<String> = busy.chain(cpus).chain(dropped).collect();
    let (busy, changes) = (busy.join(", "), changes(outcome));
    format!("{table}\n\nMeasured {measured} s, seed {}; {busy}; {checks}{promises}{changes}", outcome.seed)
}

/// Returns one line for each guarantee of a VM.
fn each(vm: &VmOutcome, what: impl Fn(&Promise) -> String) -> String {
    match vm.promises.is_empty() {
        true => "-".to_owned(),
        false => vm.promises.iter().map(what).collect::<Vec<_>>().join("\n"),
    }
}

/// Formats a latency with a readable unit.
pub(crate) fn show(time: std::time::Duration) -> String {
    let micros = micros(time);
    match micros {
        0.0 => "-".to_owned(),
        _ if micros < 1000.0 => format!("{micros:.1} us"),
        _ if micros < 1e6 => format!("{:.2} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}
