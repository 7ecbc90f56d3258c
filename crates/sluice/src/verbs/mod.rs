//! The verbs: one file each, one line in this list.

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Format;

mod check;
mod completions;
mod demo;
mod export;
mod schedulers;
mod schema;
mod serve;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Serve the virtual disks of a host file.
    Serve(serve::Serve),
    /// Say everything that is wrong with a host file, and what it promises.
    Check(check::Check),
    /// Say what a VM's VMM must be told to use its volumes.
    Export(export::Export),
    /// Print the JSON Schema of the host file, for editors.
    Schema(schema::Schema),
    /// List the schedulers, or describe one.
    Schedulers(schedulers::Schedulers),
    /// Show in less than a minute what a reservation does for a VM with a noisy neighbour.
    Demo(demo::Demo),
    /// Print shell completions.
    Completions(completions::Completions),
}

impl Verb {
    /// Does it.
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        match self {
            Verb::Serve(verb) => verb.run(format),
            Verb::Check(verb) => verb.run(format),
            Verb::Export(verb) => verb.run(format),
            Verb::Schema(verb) => verb.run(),
            Verb::Schedulers(verb) => verb.run(format),
            Verb::Demo(verb) => verb.run(format, quiet),
            Verb::Completions(verb) => verb.run(),
        }
    }
}
