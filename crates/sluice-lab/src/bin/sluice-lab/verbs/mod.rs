//! The laboratory's verbs.

use sluice_console::lab::{Described, Lab};
use sluice_console::rows::Form;
use sluice_daemon::failure::Failure;
use sluice_daemon::output;

use crate::Verb;

mod advise;
mod reproduce;
mod sim;

/// Runs a verb.
pub(crate) fn run(verb: Verb, form: Form, quiet: bool) -> Result<(), Failure> {
    let format = form.format();
    match verb {
        Verb::Lab(lab) => match *lab {
            Lab::Reproduce(args) => reproduce::run(args, form, quiet),
            Lab::Sim(args) => sim::run(args, format, quiet),
            Lab::Advise(args) => advise::run(args, format, quiet),
        },
        Verb::Schema(schema) => {
            let schema = match schema.of {
                Described::Scenario => sluice_sim::scenario::file::schema(),
                Described::Host | Described::Api => unreachable!("`sluice` describes it"),
            };
            output::line(&serde_json::to_string_pretty(&schema)?);
            Ok(())
        }
    }
}
