//! `sluice-lab`: the laboratory. `sluice sim`, `sluice reproduce` and `sluice advise` start it.
//!
//! | what | where |
//! |---|---|
//! | the verbs; their arguments are in the crate `sluice-console` | `verbs/` |
//! | output of simulated runs | `sim/` |
//! | figures of the papers on real I/O | `real/` |
//! | the identity of this program, for cached results | `program.rs` |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice_console::lab::{Lab, Schema};
use sluice_console::rows::Form;
use sluice_daemon::output;
use sluice_daemon::{LogOptions, VERSION, failure};

mod program;
mod real;
mod sim;
mod verbs;

/// The laboratory of Sluicegate: simulations, the papers' figures, advice.
#[derive(Parser)]
#[command(name = "sluice", version = VERSION, arg_required_else_help = true, after_long_help = failure::CODES)]
struct Cli {
    /// Format of results on standard output.
    #[arg(short, long, global = true, value_enum, default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    #[command(flatten)]
    Lab(Box<Lab>),
    Schema(Schema),
}

fn main() -> ExitCode {
    let Cli { output: form, log, verb } = Cli::parse();
    let format = form.format();
    let quiet = log.quiet;
    let owns_terminal = matches!(&verb, Verb::Lab(lab) if lab.has_display());
    log.start(format, owns_terminal);
    let code = match verbs::run(verb, form, quiet) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(format),
    };
    output::end(code)
}
