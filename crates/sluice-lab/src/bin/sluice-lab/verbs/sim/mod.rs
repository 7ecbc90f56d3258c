//! `sluice sim`: runs a scenario file in virtual time.

use sluice_console::lab::{Sim, SimVerb};
use sluice_daemon::failure::Failure;
use sluice_daemon::output::Format;

mod check;
mod report;
mod run;
mod sweep;

pub(crate) fn run(args: Sim, format: Format, quiet: bool) -> Result<(), Failure> {
    match args.verb {
        SimVerb::Check(args) => check::run(args, format),
        SimVerb::Run(args) => run::run(args, format, quiet),
        SimVerb::Sweep(args) => sweep::run(args, format, quiet),
        SimVerb::Report(args) => report::run(args, format),
    }
}

/// Reads a scenario file and prints its warnings.
fn load(file: &std::path::Path) -> Result<sluice_sim::scenario::file::ScenarioFile, Failure> {
    let scenario = sluice_sim::scenario::file::load_scenario(file).map_err(Failure::Config)?;
    for warning in &scenario.warnings {
        sluice_daemon::output::message(warning);
    }
    Ok(scenario)
}
