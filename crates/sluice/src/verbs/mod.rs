//! The verbs: one file each, one line in this list.

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Format;

mod attach;
mod check;
mod completions;
mod demo;
mod detach;
mod export;
mod resize;
mod schedulers;
mod schema;
mod serve;
mod set;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Serve the virtual disks of a host file.
    Serve(serve::Serve),
    /// Say everything that is wrong with a host file, and what it promises.
    Check(check::Check),
    /// Serve another volume, while the daemon runs.
    Attach(attach::Attach),
    /// Stop serving a volume or a VM, while the daemon runs.
    Detach(detach::Detach),
    /// Give a volume more room, while its VM uses it.
    Resize(resize::Resize),
    /// Change what a VM or a volume is promised, while it runs.
    Set(set::Set),
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
    /// Whether it says itself what happens, so that the log would only be in the way.
    pub(crate) fn is_a_show(&self) -> bool {
        matches!(self, Verb::Demo(_))
    }

    /// Does it.
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        match self {
            Verb::Serve(verb) => verb.run(format),
            Verb::Check(verb) => verb.run(format),
            Verb::Attach(verb) => verb.run(format),
            Verb::Detach(verb) => verb.run(format),
            Verb::Resize(verb) => verb.run(format),
            Verb::Set(verb) => verb.run(format),
            Verb::Export(verb) => verb.run(format),
            Verb::Schema(verb) => verb.run(),
            Verb::Schedulers(verb) => verb.run(format),
            Verb::Demo(verb) => verb.run(format, quiet),
            Verb::Completions(verb) => verb.run(),
        }
    }
}
