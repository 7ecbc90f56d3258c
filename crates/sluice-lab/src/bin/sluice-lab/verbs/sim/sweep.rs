//! `sluice sim sweep FILE`

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde_json::Value;

use crate::sim::report::{mean, values};
use crate::sim::sweep::Plan;
use sluice_console::lab::Sweep;
use sluice_console::progress::Progress;
use sluice_console::table::table;
use sluice_daemon::failure::Failure;
use sluice_daemon::output::{self, Format};

pub(crate) fn run(args: Sweep, format: Format, quiet: bool) -> Result<(), Failure> {
    let file = super::load(&args.file)?;
    let stem = args.file.file_stem().map(PathBuf::from).unwrap_or_default();
    let out = args.out.unwrap_or_else(|| stem.with_added_extension("sweep"));
    let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = args.threads.map_or_else(cores, NonZeroUsize::get);
    let mut progress = Progress::new("sweep", args.progress, quiet);
    let sweep = Plan::new(&file, &out, args.states)?.run(threads, &mut progress)?;
    progress.end();
    match format {
        Format::Json => output::json(&sweep),
        Format::Table => {
            print_table(&sweep);
            output::line(&format!("\n{}", out.join("report.html").display()));
        }
    }
    broken(&sweep)?;
    if is_kept(&sweep) { Ok(()) } else { Err(Failure::NotKept) }
}

fn points(sweep: &Value) -> impl Iterator<Item = &Value> {
    sweep["points"].as_array().into_iter().flatten()
}

fn print_table(sweep: &Value) {
    let mut table = table(&["POINT", "VM", "IOPS", "MEAN [us]", "P99 [us]", "PROMISE", "VERDICT"]);
    for point in points(sweep) {
        for vm in point["vms"].as_array().into_iter().flatten() {
            let name = vm["vm"].as_str().unwrap_or_default().to_owned();
            let cells = ["iops", "latency_us_mean", "latency_us_p99"].map(|what| mean(&vm[what]));
            let promises =
                [each(vm, |promise| promise["promise"].as_str().unwrap_or_default().to_owned()), each(vm, verdict)];
            table.add_row([values(&point["values"]), name].into_iter().chain(cells).chain(promises));
        }
    }
    output::line(&table.to_string());
    output::line(&format!("\n{} runs of each; means with 95 % intervals", sweep["seeds"]));
}

fn promises(vm: &Value) -> impl Iterator<Item = &Value> {
    vm["promises"].as_array().into_iter().flatten()
}

/// Returns one line for each guarantee of a VM.
fn each(vm: &Value, what: impl Fn(&Value) -> String) -> String {
    let lines: Vec<String> = promises(vm).map(what).collect();
    if lines.is_empty() { "-".to_owned() } else { lines.join("\n") }
}

/// Returns the results of a guarantee, with the number of runs.
fn verdict(promise: &Value) -> String {
    let ended = [("BROKEN", "broken"), ("kept", "kept"), ("not given", "not_given"), ("not judged", "not_judged")];
    let counted = ended.map(|(words, key)| (words, promise[key].as_u64().unwrap_or(0)));
    let runs: u64 = counted.iter().map(|(_, count)| count).sum();
    let there = counted.iter().filter(|(_, count)| *count > 0);
    there.map(|(words, count)| format!("{words} in {count} of {runs}")).collect::<Vec<_>>().join(", ")
}

/// Whether every guarantee was kept in every run in which it was checked.
fn is_kept(sweep: &Value) -> bool {
    let vms = points(sweep).flat_map(|point| point["vms"].as_array().into_iter().flatten());
    vms.flat_map(promises).all(|promise| promise["broken"] == 0)
}

/// Returns an error if a run violates an invariant.
fn broken(sweep: &Value) -> Result<(), Failure> {
    let broken = points(sweep).flat_map(|point| point["broken"].as_array().into_iter().flatten());
    let broken: Vec<&Value> = broken.collect();
    for what in &broken {
        sluice_daemon::output::message(format_args!(
            "error: A run violates an invariant: {}",
            what.as_str().unwrap_or_default()
        ));
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure::No) }
}
