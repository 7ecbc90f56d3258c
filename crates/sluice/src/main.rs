//! `sluice`: one binary, one verb per file.
//!
//! | verb | file |
//! |---|---|
//! | `serve`, `check`, `export`, `schema`, `schedulers`, `demo`, `reproduce`, `advise`, `completions` | `verbs/` |
//! | `attach`, `detach`, `resize`, `set`, `accept-loss` | `verbs/`, and `control/` at both ends of the daemon's socket |
//! | what a host file becomes: devices, volumes, sockets; start and reload | `plane/` |
//! | what `export` prints, one format per file | `export/` |
//! | what `demo` shows | `demo/` |
//! | whose results are kept: which program this is | `program.rs` |
//! | how far long work is | `progress.rs` |
//! | `sim`: what is made of a simulated run | `verbs/sim/`, `sim/` |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

mod control;
mod demo;
mod export;
mod failure;
mod output;
mod plane;
mod program;
mod progress;
mod sim;
mod verbs;

use failure::Failure;
use output::Format;

/// Per-VM reservation, limit and weight for shared disks.
#[derive(Parser)]
#[command(name = "sluice", version, propagate_version = true, arg_required_else_help = true, after_long_help = failure::CODES)]
struct Cli {
    /// Format of results on standard output.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Print more log messages on standard error; twice: debug messages too.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Print only warnings and errors.
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    verb: verbs::Verb,
}

fn main() -> ExitCode {
    sluice_io::signals::hold();
    let cli = Cli::parse();
    if !cli.verb.is_daemon() {
        sluice_io::signals::release();
    }
    if cli.verb.is_daemon()
        && let Err(error) = output::never_wait()
    {
        return Failure::from(error).report(cli.output);
    }
    output::start_logging(cli.verbose, cli.quiet || cli.verbose == 0 && cli.verb.is_a_show());
    let code = match cli.verb.run(cli.output, cli.quiet) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.output),
    };
    output::finish();
    match output::lost() {
        Some(error) if code == ExitCode::SUCCESS => {
            output::say(format_args!(
                "error: Standard output has not got all of it: {error}; make room, or write it elsewhere"
            ));
            output::finish();
            ExitCode::FAILURE
        }
        _ => code,
    }
}
