//! The verbs: one file each, one line in this list.

use clap::Subcommand;

use sluice_console::lab::{Described, Lab, Schema};
use sluice_daemon::failure::Failure;

use crate::output::{self, rows::Form};
use crate::program::Program;

mod accept_loss;
mod alert;
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
mod pool;
mod report;
mod reset;
mod resize;
mod schedulers;
mod set;
mod state;
mod status;
mod takeover;
mod top;
mod ui;
mod why;

/// The verbs. The help of a verb is the doc comment of its arguments, in its own file.
#[derive(Subcommand)]
pub(crate) enum Verb {
    Serve(sluice_daemon::serve::Serve),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Apply(apply::Apply),
    Attach(attach::Attach),
    Detach(detach::Detach),
    Resize(resize::Resize),
    Set(set::Set),
    Status(status::Status),
    Top(top::Top),
    Ui(ui::Ui),
    Get(get::Get),
    Describe(describe::Describe),
    Events(events::Events),
    Why(why::Why),
    Metrics(metrics::Metrics),
    Alert(alert::Alert),
    Report(report::Report),
    Reset(reset::Reset),
    State(state::State),
    Pool(pool::Pool),
    AcceptLoss(accept_loss::AcceptLoss),
    Takeover(takeover::Takeover),
    Export(export::Export),
    Import(import::Import),
    Schema(Schema),
    Schedulers(schedulers::Schedulers),
    Demo(demo::Demo),
    #[command(flatten)]
    Lab(Lab),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Verb {
    /// The other program that carries it out.
    pub(crate) fn program(&self) -> Option<Program> {
        match self {
            Verb::Serve(_) => Some(Program::Daemon),
            Verb::Lab(_) | Verb::Schema(Schema { of: Described::Scenario }) => Some(Program::Laboratory),
            _ => None,
        }
    }

    /// Whether the verb has its own display, which log lines would disturb.
    pub(crate) fn owns_terminal(&self) -> bool {
        matches!(self, Verb::Demo(_) | Verb::Top(_))
    }

    /// Whether its result has rows, or can be shown as a table with more columns.
    pub(crate) fn has_rows(&self) -> bool {
        match self {
            Verb::Status(_) | Verb::Top(_) | Verb::Get(_) | Verb::Describe(_) | Verb::Events(_) | Verb::Why(_) => true,
            Verb::Lab(lab) => lab.has_rows(),
            _ => false,
        }
    }

    /// Runs the verb.
    pub(crate) fn run(self, form: Form, quiet: bool) -> Result<(), Failure> {
        let format = form.format();
        match self {
            Verb::Serve(_) | Verb::Lab(_) => unreachable!("another program carries it out"),
            Verb::Check(verb) => verb.run(format),
            Verb::Doctor(verb) => verb.run(format),
            Verb::Apply(verb) => verb.run(format),
            Verb::Attach(verb) => verb.run(format),
            Verb::Detach(verb) => verb.run(format),
            Verb::Resize(verb) => verb.run(format),
            Verb::Set(verb) => verb.run(format),
            Verb::Status(verb) => verb.run(form),
            Verb::Top(verb) => verb.run(form),
            Verb::Ui(verb) => verb.run(format),
            Verb::Get(verb) => verb.run(form),
            Verb::Describe(verb) => verb.run(form),
            Verb::Events(verb) => verb.run(form),
            Verb::Why(verb) => verb.run(form),
            Verb::Metrics(verb) => verb.run(),
            Verb::Alert(verb) => verb.run(format),
            Verb::Report(verb) => verb.run(format, quiet),
            Verb::Reset(verb) => verb.run(format),
            Verb::State(verb) => verb.run(format),
            Verb::Pool(verb) => verb.run(format),
            Verb::AcceptLoss(verb) => verb.run(format),
            Verb::Takeover(verb) => verb.run(format),
            Verb::Export(verb) => verb.run(format),
            Verb::Import(verb) => verb.run(format),
            Verb::Schema(Schema { of }) => {
                output::line(&match of {
                    Described::Api => sluice_daemon::control::http::document(),
                    Described::Host | Described::Scenario => serde_json::to_string_pretty(&sluice_config::schema())?,
                });
                Ok(())
            }
            Verb::Schedulers(verb) => verb.run(format),
            Verb::Demo(verb) => verb.run(format, quiet),
            Verb::Completions(verb) => verb.run(),
            Verb::Man(verb) => verb.run(),
        }
    }
}
