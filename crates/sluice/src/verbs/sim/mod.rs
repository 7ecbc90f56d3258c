//! `sluice sim`: runs a scenario file in virtual time.

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::output::Format;

mod check;
mod report;
mod run;
mod sweep;

/// Simulate a scenario: modelled devices, VMs and their workloads, in virtual time.
///
/// The simulator runs the daemon's schedulers. The same file and seed give the same results on every machine.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Sim {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Check(check::Check),
    Run(run::Run),
    Sweep(sweep::Sweep),
    Report(report::Report),
}

impl Sim {
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        match self.verb {
            Verb::Check(verb) => verb.run(format),
            Verb::Run(verb) => verb.run(format, quiet),
            Verb::Sweep(verb) => verb.run(format, quiet),
            Verb::Report(verb) => verb.run(format),
        }
    }
}

/// Reads a scenario file and prints its warnings.
fn load(file: &std::path::Path) -> Result<sluice_sim::scenario::file::ScenarioFile, Failure> {
    let scenario = sluice_sim::scenario::file::load_scenario(file).map_err(Failure::Config)?;
    for warning in &scenario.warnings {
        crate::output::message(warning);
    }
    Ok(scenario)
}
