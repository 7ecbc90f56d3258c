//! Arguments of `sluice sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::progress::Style;

/// Simulate a scenario: modelled devices, VMs and their workloads, in virtual time.
///
/// The simulator runs the daemon's schedulers. The same file and seed give the same results on every machine.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Sim {
    #[command(subcommand)]
    pub verb: SimVerb,
}

#[derive(Subcommand)]
pub enum SimVerb {
    Check(Check),
    Run(Run),
    Sweep(Sweep),
    Report(Report),
}

/// Check a scenario file; report all errors, and the figures derived from its device models.
#[derive(Args)]
pub struct Check {
    /// Scenario file.
    pub file: PathBuf,
}

/// Run a scenario once, and report the throughput and latency of each VM.
///
/// Rates and latencies are measured from the end of the warm-up. The run fails if it violates an invariant: no request lost
/// or duplicated, Little's law, no device busy for more than the elapsed time. The exit code is 2 if a guarantee was not kept.
#[derive(Args)]
pub struct Run {
    /// Scenario file.
    pub file: PathBuf,
    /// Random seed. Default: the seed in the file.
    #[arg(long, allow_hyphen_values = true, value_parser = whole_number)]
    pub seed: Option<u64>,
    /// Folder for results.json, series.csv, latencies.csv and report.html; replaces earlier results in it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also log every request to that folder, including the warm-up.
    #[arg(long, value_name = "WHAT", value_enum, requires = "out")]
    pub log: Option<Log>,
    /// Cache folder for the states of aged flash drives.
    #[arg(long, value_name = "DIR")]
    pub states: Option<PathBuf>,
    /// Format of progress messages on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    pub progress: Style,
}

/// Format of the request log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Log {
    /// requests.csv: VM, offset, kind, times of arrival, dispatch and completion, and phase.
    Requests,
    /// requests.parquet: the same in columns. Needs a program built with `--features parquet`.
    Parquet,
    /// fio's bandwidth, rate and latency logs, three files for each VM, for plotting tools.
    Fio,
}

/// Run a scenario with each combination of the values in its sweep table and with several seeds, and compare the results.
///
/// Uses all cores; the results do not depend on their number. Finished runs are kept in the folder, so an interrupted sweep
/// can be resumed. Without a sweep table the scenario runs with ten seeds.
/// The exit code is 2 if a guarantee was not kept in one of the runs.
#[derive(Args)]
pub struct Sweep {
    /// Scenario file.
    pub file: PathBuf,
    /// Folder for sweep.json, sweep.csv, report.html and the runs. Default: FILE's name with .sweep, in the current folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Cache folder for the states of aged flash drives.
    #[arg(long, value_name = "DIR")]
    pub states: Option<PathBuf>,
    /// Concurrent runs. Default: the number of cores.
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Format of progress messages on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    pub progress: Style,
}

/// Rewrite the report of existing results.
#[derive(Args)]
pub struct Report {
    /// Folder of a run or a sweep.
    pub dir: PathBuf,
}

fn whole_number(text: &str) -> Result<u64, String> {
    let seed = text.parse().ok().filter(|seed| *seed <= i64::MAX as u64);
    seed.ok_or_else(|| format!("write a whole number from 0 to {}", i64::MAX))
}
