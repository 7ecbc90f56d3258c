//! The developer's tasks: `cargo xtask <verb>`.
//!
//! They are written in Rust instead of shell, so that they run wherever the project builds, and are formatted, linted
//! and tested. A verb is one file: a `clap::Args` struct whose doc comment is the help, and an `impl Verb`. To add
//! `lint`, write `lint.rs`, name its module below, and add `entry::<lint::Lint>()` to `VERBS`. A module without an
//! entry is dead code, which clippy rejects, so neither line can be forgotten.

#![forbid(unsafe_code)]

mod bench;
mod campaign;
mod fuzz;
mod lines;
mod manual;
mod package;
mod papers;
mod test;
mod tidy;
mod workspace;

use clap::{ArgMatches, Args, Command};
use std::process::ExitCode;

/// The verbs, in the order of the help.
const VERBS: &[Entry] = &[
    entry::<tidy::Tidy>(),
    entry::<test::Test>(),
    entry::<bench::Bench>(),
    entry::<campaign::Campaign>(),
    entry::<fuzz::Fuzz>(),
    entry::<manual::Manual>(),
    entry::<papers::Papers>(),
    entry::<lines::Lines>(),
    entry::<package::Package>(),
];

/// A verb. The type holds its options; running consumes them.
trait Verb: Args {
    const NAME: &'static str;

    /// Runs the verb. An error is printed as `error: <text>`. A verb that has reported its own findings returns a
    /// failing `ExitCode` instead.
    fn run(self) -> Result<ExitCode, String>;
}

/// A verb without its type, for the list of all verbs.
struct Entry {
    name: &'static str,
    augment: fn(Command) -> Command,
    run: fn(&ArgMatches) -> Result<ExitCode, String>,
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let (name, options) = matches.subcommand().expect("clap requires a verb");
    let verb = VERBS.iter().find(|verb| verb.name == name).expect("clap accepts the verbs of the list only");
    (verb.run)(options).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn command() -> Command {
    Command::new("xtask")
        .bin_name("cargo xtask")
        .about("The developer's tasks")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(VERBS.iter().map(|verb| (verb.augment)(Command::new(verb.name))))
}

const fn entry<V: Verb>() -> Entry {
    Entry { name: V::NAME, augment: V::augment_args, run: run_verb::<V> }
}

fn run_verb<V: Verb>(matches: &ArgMatches) -> Result<ExitCode, String> {
    V::from_arg_matches(matches).map_err(|error| error.to_string())?.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_valid_parser_and_a_help_text() {
        let command = command();
        command.clone().debug_assert();
        for verb in command.get_subcommands() {
            assert!(verb.get_about().is_some(), "{} has no help", verb.get_name());
        }
    }
}
