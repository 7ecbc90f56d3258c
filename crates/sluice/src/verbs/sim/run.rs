//! `sluice sim run FILE`

use std::path::PathBuf;

use clap::Args;
use sluice_sim::scenario::{Outcome, Watch, run};

use crate::failure::Failure;
use crate::output::{self, Format};
use crate::progress::{Progress, Style};
use crate::sim::folder::{Folder, states, warn_unusable};
use crate::sim::logs::{Log, Writing};
use crate::sim::results;
use crate::sim::summary::{Summary, table};

/// Run a scenario once, and report the throughput and latency of each VM.
///
/// Rates and latencies are measured from the end of the warm-up. The run fails if it violates an invariant: no request lost
/// or duplicated, Little's law, no device busy for more than the elapsed time. The exit code is 2 if a guarantee was not kept.
#[derive(Args)]
pub(crate) struct Run {
    /// Scenario file.
    file: PathBuf,
    /// Random seed. Default: the seed in the file.
    #[arg(long, allow_hyphen_values = true, value_parser = whole_number)]
    seed: Option<u64>,
    /// Folder for results.json, series.csv, latencies.csv and report.html; replaces earlier results in it.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also log every request to that folder, including the warm-up.
    #[arg(long, value_name = "WHAT", value_enum, requires = "out")]
    log: Option<Log>,
    /// Cache folder for the states of aged flash drives.
    #[arg(long, value_name = "DIR")]
    states: Option<PathBuf>,
    /// Format of progress messages on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    progress: Style,
}

impl Run {
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        let file = super::load(&self.file)?;
        let seed = self.seed.unwrap_or(file.base.seed);
        let folder = self.out.as_ref().map(|out| Folder::new(out, results::RESULTS)).transpose()?;
        let log = match (&folder, self.log) {
            (Some(folder), Some(log)) => Some(Writing::new(log, folder.path(), &file.base)?),
            _ => None,
        };
        let mut progress = Progress::new("run", self.progress, quiet);
        let mut show = |done| {
            progress.show(done);
            true
        };
        let states = self.states.map(states).transpose()?;
        let requests = log.as_ref().map(Writing::watcher);
        let watch = Watch { requests, states: states.as_ref(), progress: Some(&mut show) };
        let outcome = run(&file.base.scenario, seed, watch)?;
        progress.end();
        warn_unusable(states.as_ref());
        log.map_or(Ok(()), Writing::finish)?;
        if let Some(folder) = folder {
            results::write(&folder, &file.base, &outcome)?;
            folder.finish()?;
        }
        match format {
            Format::Json => output::json(&Summary::of(&outcome)),
            Format::Table => output::line(&table(&outcome)),
        }
        broken(&outcome)?;
        if outcome.not_kept().next().is_some() { Err(Failure::NotKept) } else { Ok(()) }
    }
}

/// A seed, as a scenario file may state it.
fn whole_number(text: &str) -> Result<u64, String> {
    let seed = text.parse().ok().filter(|seed| *seed <= i64::MAX as u64);
    seed.ok_or_else(|| format!("write a whole number from 0 to {}", i64::MAX))
}

/// Returns an error if an invariant is violated.
fn broken(outcome: &Outcome) -> Result<(), Failure> {
    let broken: Vec<String> = outcome.broken().map(|(check, what)| format!("{check}: {what}")).collect();
    for what in &broken {
        crate::output::message(format_args!("error: The run violates an invariant: {what}"));
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure::No) }
}
