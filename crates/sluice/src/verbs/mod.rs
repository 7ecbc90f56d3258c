//! The verbs: one file each, one line in this list.

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::rows::Form;

mod accept_loss;
mod advise;
mod apply;
mod attach;
mod check;
mod completions;
mod demo;
mod describe;
mod detach;
mod doctor;
mod events;
mod export;
mod get;
mod import;
mod man;
mod metrics;
mod reproduce;
mod reset;
mod resize;
mod schedulers;
mod schema;
mod serve;
mod set;
mod sim;
mod state;
mod status;
mod top;
mod why;

/// The verbs. The help of a verb is the doc comment of its arguments, in its own file.
#[derive(Subcommand)]
pub(crate) enum Verb {
    Serve(serve::Serve),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Apply(apply::Apply),
    Attach(attach::Attach),
    Detach(detach::Detach),
    Resize(resize::Resize),
    Set(set::Set),
    Status(status::Status),
    Top(top::Top),
    Get(get::Get),
    Describe(describe::Describe),
    Events(events::Events),
    Why(why::Why),
    Metrics(metrics::Metrics),
    Reset(reset::Reset),
    State(state::State),
    AcceptLoss(accept_loss::AcceptLoss),
    Export(export::Export),
    Import(import::Import),
    Schema(schema::Schema),
    Schedulers(schedulers::Schedulers),
    Demo(demo::Demo),
    Reproduce(reproduce::Reproduce),
    Sim(sim::Sim),
    Advise(advise::Advise),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Verb {
    /// Whether the verb has its own display, which log lines would disturb.
    pub(crate) fn owns_terminal(&self) -> bool {
        match self {
            Verb::Demo(_) | Verb::Top(_) => true,
            Verb::Reproduce(verb) => verb.is_real(),
            _ => false,
        }
    }

    /// Whether the verb serves VMs, and so must not wait for the readers of its output.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self, Verb::Serve(_))
    }

    /// The level of log messages that its own option states.
    pub(crate) fn log_level(&self) -> Option<String> {
        match self {
            Verb::Serve(verb) => verb.log_level(),
            _ => None,
        }
    }

    /// Whether its result has rows, or can be shown as a table with more columns.
    pub(crate) fn has_rows(&self) -> bool {
        matches!(
            self,
            Verb::Status(_) | Verb::Top(_) | Verb::Get(_) | Verb::Describe(_) | Verb::Events(_) | Verb::Why(_)
        )
    }

    /// Runs the verb.
    pub(crate) fn run(self, form: Form, quiet: bool) -> Result<(), Failure> {
        let format = form.format();
        match self {
            Verb::Serve(verb) => verb.run(format),
            Verb::Check(verb) => verb.run(format),
            Verb::Doctor(verb) => verb.run(format),
            Verb::Apply(verb) => verb.run(format),
            Verb::Attach(verb) => verb.run(format),
            Verb::Detach(verb) => verb.run(format),
            Verb::Resize(verb) => verb.run(format),
            Verb::Set(verb) => verb.run(format),
            Verb::Status(verb) => verb.run(form),
            Verb::Top(verb) => verb.run(form),
            Verb::Get(verb) => verb.run(form),
            Verb::Describe(verb) => verb.run(form),
            Verb::Events(verb) => verb.run(form),
            Verb::Why(verb) => verb.run(form),
            Verb::Metrics(verb) => verb.run(),
            Verb::Reset(verb) => verb.run(format),
            Verb::State(verb) => verb.run(format),
            Verb::AcceptLoss(verb) => verb.run(format),
            Verb::Export(verb) => verb.run(format),
            Verb::Import(verb) => verb.run(format),
            Verb::Schema(verb) => verb.run(),
            Verb::Schedulers(verb) => verb.run(format),
            Verb::Demo(verb) => verb.run(format, quiet),
            Verb::Reproduce(verb) => verb.run(format, quiet),
            Verb::Sim(verb) => verb.run(format, quiet),
            Verb::Advise(verb) => verb.run(format, quiet),
            Verb::Completions(verb) => verb.run(),
            Verb::Man(verb) => verb.run(),
        }
    }
}
