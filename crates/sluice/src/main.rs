//! `sluice`: one binary, one verb per file.
//!
//! | verb | file |
//! |---|---|
//! | `serve`, `check`, `export`, `schema`, `schedulers`, `demo`, `reproduce`, `advise`, `completions` | `verbs/` |
//! | `attach`, `detach`, `resize`, `set`, `get`, `reset`, `accept-loss` | `verbs/`, and `control/` for both ends of the control
//! socket |
//! | devices, volumes and sockets of a host file; start and reload | `server/` |
//! | what outlasts the daemon: changes at run time, and what volumes served | `state/` |
//! | output of `export`, one format per file | `export/` |
//! | `demo` | `demo/` |
//! | the identity of this program, for cached results | `program.rs` |
//! | progress of long commands | `progress.rs` |
//! | `sim`, and the output of simulated runs | `verbs/sim/`, `sim/` |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

mod control;
mod demo;
mod export;
mod failure;
mod output;
mod program;
mod progress;
mod server;
mod sim;
mod state;
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
    /// Print more log messages on standard error; given twice, also debug messages.
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
    output::start_logging(cli.verbose, cli.quiet || cli.verbose == 0 && cli.verb.owns_terminal());
    let code = match cli.verb.run(cli.output, cli.quiet) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.output),
    };
    output::finish();
    match output::lost() {
        Some(error) if code == ExitCode::SUCCESS => {
            output::message(format_args!(
                "error: Cannot write all results to standard output: {error}; free space, or write them elsewhere"
            ));
            output::finish();
            ExitCode::FAILURE
        }
        _ => code,
    }
}
