//! The files of one run: `results.json`, `series.csv`, `latencies.csv`, `report.html`.

use std::fmt::Write as _;

use serde_json::{Value, json};
use sluice_sched::Kind;
use sluice_sched::params::{ParamTable, Parameter, Value as Param};
use sluice_sched::units::{ByteRate, Iops};
use sluice_sim::scenario::file::Loaded;
use sluice_sim::scenario::{Outcome, Source, written};

use super::folder::Folder;
use super::report;
use super::summary::{Summary, VERSION};
use sluice_daemon::failure::Failure;

/// The file that only complete results of a run have.
pub(crate) const RESULTS: &str = "results.json";

/// Writes all results except logs.
pub(crate) fn write(folder: &Folder, loaded: &Loaded, outcome: &Outcome) -> Result<(), Failure> {
    let results = results(loaded, outcome);
    folder.write("series.csv", &series(outcome))?;
    folder.write("latencies.csv", &latencies(outcome))?;
    folder.write("report.html", &report::of_run(&results))?;
    folder.write(RESULTS, &(serde_json::to_string_pretty(&results)? + "\n"))
}

fn results(loaded: &Loaded, outcome: &Outcome) -> Value {
    let histogram = |vm: &sluice_sim::scenario::VmOutcome| {
        let steps = vm.latencies.iter().map(|(nanos, count)| json!([*nanos as f64 / 1000.0, count]));
        json!({ "vm": vm.name, "latency_us_up_to_and_count": steps.collect::<Vec<_>>() })
    };
    json!({
        "format": 1,
        "version": VERSION,
        "seed": outcome.seed,
        "scenario": loaded.echo,
        "parameters": parameters(loaded),
        "levels": levels(loaded, outcome),
        "result": Summary::of(outcome),
        "histograms": outcome.vms.iter().map(histogram).collect::<Vec<_>>(),
    })
}

/// Returns the reservation and the limit of each VM at the start, in its own requests per second. A normalised rate is converted with
/// the cost of a read of the VM's mean size.
fn levels(loaded: &Loaded, outcome: &Outcome) -> Vec<Value> {
    let mut levels = Vec::new();
    for (vm, got) in loaded.scenario.vms.iter().zip(&outcome.vms) {
        let Some(mean_len) = got.bytes.checked_div(got.completed).filter(|len| *len > 0) else { continue };
        let cost = &loaded.scenario.devices[vm.device].gate.cost;
        let cost = cost.cost(Kind::Read, u32::try_from(mean_len).unwrap_or(u32::MAX)).as_f64();
        let normalised = |rate: Option<Iops>| rate.map(|rate| rate.as_f64() / cost);
        let in_bytes = |rate: Option<ByteRate>| rate.map(|rate| rate.bytes_per_second() as f64 / mean_len as f64);
        let (reservation, limit) = (&vm.policy.reservation, &vm.policy.limit);
        let both = [normalised(reservation.iops), in_bytes(reservation.bytes)];
        let reserved = both.into_iter().flatten().reduce(f64::max);
        let both = [normalised(limit.iops), in_bytes(limit.bytes)];
        let limited = both.into_iter().flatten().reduce(f64::min);
        for (what, rate) in [("reservation", reserved), ("limit", limited)] {
            levels.extend(rate.map(|iops| json!({ "vm": vm.name, "what": what, "iops": iops })));
        }
    }
    levels
}

/// Returns the parameters of every model, scheduler and workload, including defaults.
fn parameters(loaded: &Loaded) -> Value {
    let scenario = &loaded.scenario;
    let devices: Vec<Value> = scenario
        .devices
        .iter()
        .map(|device| {
            let model = with_defaults(&device.model.parameters(), &device.model_params);
            json!({
                "device": device.name,
                "model": { "type": device.model.name(), "parameters": model },
                "scheduler": {
                    "name": device.scheduler.name,
                    "parameters": with_defaults(device.scheduler.parameters, &device.params),
                },
                "nodes": device.nodes,
                "hosts": device.hosts,
                "policies_hold": if device.reporting.is_some() { "across-nodes" } else { "at-each-node" },
                "depth": device.gate.depth,
                "merging": device.gate.merging,
                "queue": device.gate.queue_max,
                "reference_size_bytes": device.info.cost.reference_size().0,
                "rotational": device.info.rotational,
            })
        })
        .collect();
    let vms: Vec<Value> = scenario
        .vms
        .iter()
        .map(|vm| {
            let asks = match &vm.source {
                Source::Workload(known, params) => {
                    json!({ "type": known.name, "parameters": with_defaults(known.parameters, params) })
                }
                Source::Trace(trace) => json!({
                    "trace": trace.file.file_name().map(|name| name.to_string_lossy()),
                    "requests": trace.scan.rows,
                    "not_replayed": trace.scan.skipped,
                    "digest": format!("{:016x}", trace.scan.digest),
                }),
            };
            json!({ "vm": vm.name, "offset_bytes": vm.offset, "size_bytes": vm.size, "asks": asks })
        })
        .collect();
    json!({ "devices": devices, "vms": vms })
}

fn with_defaults(known: &[Parameter], stated: &ParamTable) -> Value {
    let value = |param: &Param| match param {
        Param::Bool(value) => json!(value),
        Param::Integer(value) => json!(value),
        Param::Float(value) => json!(value),
        Param::Text(value) => json!(value),
    };
    let entries = known.iter().filter_map(|parameter| {
        let param = stated.get(parameter.name).cloned();
        let param = param.or_else(|| (parameter.default != "none").then(|| written(parameter.default)))?;
        Some((parameter.name.to_owned(), value(&param)))
    });
    Value::Object(entries.collect())
}

/// Returns a row for each VM and window.
fn series(outcome: &Outcome) -> String {
    let mut text = String::from("t_s,vm,iops,bytes_per_second,latency_us_mean\n");
    for vm in &outcome.vms {
        for (index, window) in vm.series.iter().enumerate() {
            let (start, seconds) = (outcome.window_start(index), outcome.window_seconds(index));
            let (iops, bytes) = (window.completed as f64 / seconds, window.bytes as f64 / seconds);
            let latency = window.latency as f64 / 1000.0 / window.completed.max(1) as f64;
            let latency = if window.completed == 0 { String::new() } else { latency.to_string() };
            let _ = writeln!(text, "{start},{},{iops},{bytes},{latency}", vm.name);
        }
    }
    text
}

/// Returns a row for each VM and step of its histogram.
fn latencies(outcome: &Outcome) -> String {
    let mut text = String::from("vm,latency_us_up_to,count\n");
    for vm in &outcome.vms {
        for (nanos, count) in &vm.latencies {
            let _ = writeln!(text, "{},{},{count}", vm.name, *nanos as f64 / 1000.0);
        }
    }
    text
}
