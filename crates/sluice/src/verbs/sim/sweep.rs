//! `sluice sim sweep FILE`

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{self, Format};
use crate::progress::{Progress, Style};
use crate::sim::report::{mean, values};
use crate::sim::sweep::Plan;

/// Run a scenario with every combination of values in its sweep table and with several seeds, and compare.
///
/// Runs go side by side on all cores; the results do not depend on how many. What is finished is kept in the folder and
/// not repeated, so a sweep that was interrupted goes on where it was. Without a sweep table the scenario runs with ten seeds.
/// Ends with 2 if a promise was not kept in one of the runs.
#[derive(Args)]
pub(crate) struct Sweep {
    /// The scenario file.
    file: PathBuf,
    /// The folder for sweep.json, sweep.csv, report.html and the runs; by default FILE's name with .sweep, here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A folder for states of aged flash drives: each is made once and then taken from there.
    #[arg(long, value_name = "DIR")]
    states: Option<PathBuf>,
    /// Runs at once, instead of as many as there are cores.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// How it is said how far it is, on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    progress: Style,
}

impl Sweep {
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        let file = super::load(&self.file)?;
        let stem = self.file.file_stem().map(PathBuf::from).unwrap_or_default();
        let out = self.out.unwrap_or_else(|| stem.with_added_extension("sweep"));
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = self.threads.map_or_else(cores, NonZeroUsize::get);
        let mut progress = Progress::new("sweep", self.progress, quiet);
        let sweep = Plan::new(&file, &out, self.states)?.perform(threads, &mut progress)?;
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
}

fn points(sweep: &Value) -> impl Iterator<Item = &Value> {
    sweep["points"].as_array().into_iter().flatten()
}

fn print_table(sweep: &Value) {
    let mut table = output::table(&["POINT", "VM", "IOPS", "MEAN [us]", "P99 [us]", "PROMISE", "VERDICT"]);
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

/// Something of each promise of a VM, a line for each.
fn each(vm: &Value, what: impl Fn(&Value) -> String) -> String {
    let lines: Vec<String> = promises(vm).map(what).collect();
    if lines.is_empty() { "-".to_owned() } else { lines.join("\n") }
}

/// How a promise ended, in how many runs.
fn verdict(promise: &Value) -> String {
    let ended = [("BROKEN", "broken"), ("kept", "kept"), ("not given", "not_given"), ("not judged", "not_judged")];
    let counted = ended.map(|(words, key)| (words, promise[key].as_u64().unwrap_or(0)));
    let runs: u64 = counted.iter().map(|(_, count)| count).sum();
    let there = counted.iter().filter(|(_, count)| *count > 0);
    there.map(|(words, count)| format!("{words} in {count} of {runs}")).collect::<Vec<_>>().join(", ")
}

/// Whether every promise was kept in every run, as far as that is judged.
fn is_kept(sweep: &Value) -> bool {
    let vms = points(sweep).flat_map(|point| point["vms"].as_array().into_iter().flatten());
    vms.flat_map(promises).all(|promise| promise["broken"] == 0)
}

/// An error if a run breaks a law.
fn broken(sweep: &Value) -> Result<(), Failure> {
    let broken = points(sweep).flat_map(|point| point["broken"].as_array().into_iter().flatten());
    let broken: Vec<&Value> = broken.collect();
    for what in &broken {
        crate::output::say(format_args!(
            "error: A run breaks a law that every run keeps: {}",
            what.as_str().unwrap_or_default()
        ));
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure::No) }
}
