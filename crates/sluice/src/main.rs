//! `sluice`: one binary, one verb per file.
//!
//! | verb | file |
//! |---|---|
//! | `serve`, `check`, `export`, `import`, `schema`, `schedulers`, `demo`, `reproduce`, `advise`, `completions`, `man` | `verbs/` |
//! | `attach`, `detach`, `resize`, `set`, `reset`, `accept-loss` | `verbs/`, and `control/` for both ends of the control
//! socket |
//! | readiness and watchdog for the service manager | `service.rs` |
//! | a look at the host without a daemon: `check --host`, `doctor` | `preflight.rs`, `doctor/` (one file per check), `findings.rs`; `space.rs` is about free space |
//! | devices, volumes and sockets of a host file; start and reload | `server/` |
//! | what outlasts the daemon: changes at run time, and what volumes served | `state/` |
//! | output of `export`, one format per file | `export/` |
//! | input of `import`, one format per file | `import/` |
//! | names for completions in a shell | `complete.rs` |
//! | `demo` | `demo/` |
//! | temporary disks, a server and clients in this process | `testbed/` |
//! | figures of the papers on real I/O | `real/` |
//! | the identity of this program, for cached results | `program.rs` |
//! | progress of long commands | `progress.rs` |
//! | `status`, `get`, `describe`, `events`, `why` | `verbs/`; `monitor/` and `events/` what the daemon replies, `show/` how it is shown |
//! | `top` | `verbs/`, `top/` |
//! | `sim`, and the output of simulated runs | `verbs/sim/`, `sim/` |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

mod complete;
mod control;
mod demo;
mod doctor;
mod events;
mod export;
mod failure;
mod findings;
mod import;
mod metrics;
mod monitor;
mod output;
mod preflight;
mod program;
mod progress;
mod real;
mod request_sizes;
mod server;
mod service;
mod show;
mod sim;
mod space;
mod state;
mod testbed;
mod top;
mod verbs;

use failure::Failure;
use output::rows::Form;

/// The version, with the commit if the build states it: `cargo xtask package` does.
const VERSION: &str = match option_env!("SLUICE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Per-VM reservation, limit and weight for shared disks and network links.
#[derive(Parser)]
#[command(name = "sluice", version = VERSION, propagate_version = true, arg_required_else_help = true, after_long_help = failure::CODES)]
struct Cli {
    /// Format of results on standard output.
    #[arg(short, long, global = true, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Print more log messages on standard error; given twice, also debug messages.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Print only warnings and errors.
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Level of log messages: error, warn, info, debug or trace, also for one module (sluice_io=debug,info). Overrides the variable
    /// RUST_LOG, which has the same form, and -v and -q.
    #[arg(id = "log_level", long = "log", value_name = "LEVEL", value_parser = log_filter, conflicts_with_all = ["verbose", "quiet"])]
    log: Option<String>,
    /// Form of log lines. Default: the journal if standard error goes there; json for a daemon with -o json; otherwise text.
    #[arg(long, global = true, value_enum, value_name = "FORM")]
    log_format: Option<output::LogFormat>,
    #[command(subcommand)]
    verb: verbs::Verb,
}

/// Checks the value of `--log`. It is no option of every verb, because `sim run` logs something else.
pub(crate) fn log_filter(text: &str) -> Result<String, tracing_subscriber::filter::ParseError> {
    EnvFilter::try_new(text).map(|_| text.to_owned())
}

fn main() -> ExitCode {
    complete::answer();
    sluice_io::signals::hold();
    let cli = Cli::parse();
    if !cli.verb.has_rows() && !matches!(cli.output, Form::Table | Form::Json) {
        let error = "This command has no rows: use `-o table` or `-o json`";
        Cli::command().error(ErrorKind::ArgumentConflict, error).exit();
    }
    output::choose_log(cli.log_format, cli.output.format(), cli.verb.is_daemon());
    if !cli.verb.is_daemon() {
        sluice_io::signals::release();
    }
    if cli.verb.is_daemon()
        && let Err(error) = output::never_wait()
    {
        return Failure::from(error).report(cli.output.format());
    }
    let stated = cli.log.or_else(|| cli.verb.log_level()).map(EnvFilter::new);
    output::start_logging(stated, cli.verbose, cli.quiet || cli.verbose == 0 && cli.verb.owns_terminal());
    let code = match cli.verb.run(cli.output, cli.quiet) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.output.format()),
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
