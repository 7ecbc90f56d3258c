//! `sluice`: one binary, one verb per file.
//!
//! | verb | file |
//! |---|---|
//! | `serve`, `check`, `export`, `import`, `schema`, `schedulers`, `demo`, `reproduce`, `advise`, `completions`, `man` | `verbs/` |
//! | `attach`, `detach`, `resize`, `set`, `reset`, `accept-loss`, `takeover` | `verbs/`, and `control/` for both ends of the control
//! socket |
//! | readiness and watchdog for the service manager | `service.rs` |
//! | a look at the host without a daemon: `check --host`, `doctor` | `preflight.rs`, `doctor/` (one file per check), `findings.rs`; `space.rs` is about free space |
//! | devices, volumes and sockets of a host file; start and reload | `server/` |
//! | what outlasts the daemon: changes at run time, and what volumes served | `state/` |
//! | output of `export`, one format per file | `export/` |
//! | input of `import`, one format per file | `import/` |
//! | names for completions in a shell | `complete.rs` |
//! | manual pages | `pages.rs` |
//! | what is said about wrong arguments, and examples of each command | `usage.rs` |
//! | `demo` | `demo/` |
//! | the daemon and the laboratory, which are programs of their own | `program.rs` |
//! | `status`, `get`, `describe`, `events`, `why` | `verbs/`; `monitor/` and `events/` what the daemon replies, `show/` how it is shown |
//! | `top` | `verbs/`, `top/` |
//! | `alert --test` | `verbs/`; the daemon sends (`events/alerts.rs`) |
//! | `report` | `verbs/report/`: what the other verbs print, in one archive |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

mod complete;
mod control;
mod demo;
mod doctor;
mod export;
mod import;
mod output;
mod pages;
mod program;
mod show;
mod top;
mod usage;
mod verbs;

use sluice_daemon::{LogOptions, VERSION, failure};

use output::rows::Form;

/// Per-VM reservation, limit and weight for shared disks and network links.
#[derive(Parser)]
#[command(name = "sluice", version = VERSION, propagate_version = true, arg_required_else_help = true, after_long_help = failure::CODES)]
struct Cli {
    /// Format of results on standard output.
    #[arg(short, long, global = true, value_enum, default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    verb: verbs::Verb,
}

fn main() -> ExitCode {
    complete::answer();
    sluice_io::signals::hold();
    let cli = usage::parse();
    if !cli.verb.has_rows() && !matches!(cli.output, Form::Table | Form::Json) {
        let error = "This command has no rows: use `-o table` or `-o json`";
        usage::command().error(ErrorKind::ArgumentConflict, error).exit();
    }
    let Cli { output, log, verb } = cli;
    let format = output.format();
    if let Some(program) = verb.program() {
        return program.start().report(format);
    }
    sluice_io::signals::release();
    let quiet = log.quiet;
    log.start(format, verb.owns_terminal());
    let code = match verb.run(output, quiet) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(format),
    };
    output::end(code)
}
