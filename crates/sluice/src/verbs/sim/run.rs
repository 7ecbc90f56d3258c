//! `sluice sim run FILE`

use std::path::PathBuf;

use clap::Args;
use sluice_sim::scenario::{Outcome, Watch, run};

use crate::failure::Failure;
use crate::output::{self, Format};
use crate::sim::summary::{Summary, table};

/// Run a scenario once, and say what each VM got.
///
/// Rates and latencies are measured from the end of the warm-up. Fails if the run breaks a law that every run keeps:
/// requests neither lost nor doubled, Little's law, no device busier than the time.
#[derive(Args)]
pub(crate) struct Run {
    /// The scenario file.
    file: PathBuf,
    /// Where all random numbers start, instead of the file's.
    #[arg(long)]
    seed: Option<u64>,
}

impl Run {
    pub(crate) fn run(self, format: Format, _quiet: bool) -> Result<(), Failure> {
        let file = super::load(&self.file)?;
        let seed = self.seed.unwrap_or(file.base.seed);
        let outcome = run(&file.base.scenario, seed, Watch::default())?;
        match format {
            Format::Json => output::json(&Summary::of(&outcome)),
            Format::Table => output::line(&table(&outcome)),
        }
        broken(&outcome)
    }
}

/// An error if a law is broken.
pub(super) fn broken(outcome: &Outcome) -> Result<(), Failure> {
    let broken: Vec<String> = outcome.broken().map(|(check, what)| format!("{check}: {what}")).collect();
    for what in &broken {
        anstream::eprintln!("error: The run breaks a law that every run keeps: {what}");
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure::No) }
}
