//! The verbs: one file each, one line in this list.

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Format;

mod accept_loss;
mod advise;
mod apply;
mod attach;
mod check;
mod completions;
mod demo;
mod detach;
mod export;
mod get;
mod reproduce;
mod reset;
mod resize;
mod schedulers;
mod schema;
mod serve;
mod set;
mod sim;

/// The verbs. The help of a verb is the doc comment of its arguments, in its own file.
#[derive(Subcommand)]
pub(crate) enum Verb {
    Serve(serve::Serve),
    Check(check::Check),
    Apply(apply::Apply),
    Attach(attach::Attach),
    Detach(detach::Detach),
    Resize(resize::Resize),
    Set(set::Set),
    Get(get::Get),
    Reset(reset::Reset),
    AcceptLoss(accept_loss::AcceptLoss),
    Export(export::Export),
    Schema(schema::Schema),
    Schedulers(schedulers::Schedulers),
    Demo(demo::Demo),
    Reproduce(reproduce::Reproduce),
    Sim(sim::Sim),
    Advise(advise::Advise),
    Completions(completions::Completions),
}

impl Verb {
    /// Whether the verb has its own display, which log lines would disturb.
    pub(crate) fn owns_terminal(&self) -> bool {
        matches!(self, Verb::Demo(_))
    }

    /// Whether the verb serves VMs, and so must not wait for the readers of its output.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self, Verb::Serve(_))
    }

    /// Runs the verb.
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        match self {
            Verb::Serve(verb) => verb.run(format),
            Verb::Check(verb) => verb.run(format),
            Verb::Apply(verb) => verb.run(format),
            Verb::Attach(verb) => verb.run(format),
            Verb::Detach(verb) => verb.run(format),
            Verb::Resize(verb) => verb.run(format),
            Verb::Set(verb) => verb.run(format),
            Verb::Get(verb) => verb.run(format),
            Verb::Reset(verb) => verb.run(format),
            Verb::AcceptLoss(verb) => verb.run(format),
            Verb::Export(verb) => verb.run(format),
            Verb::Schema(verb) => verb.run(),
            Verb::Schedulers(verb) => verb.run(format),
            Verb::Demo(verb) => verb.run(format, quiet),
            Verb::Reproduce(verb) => verb.run(format, quiet),
            Verb::Sim(verb) => verb.run(format, quiet),
            Verb::Advise(verb) => verb.run(format, quiet),
            Verb::Completions(verb) => verb.run(),
        }
    }
}
