//! The daemon: what `sluice serve` does.
//!
//! | module | contents |
//! |---|---|
//! | `serve` | the arguments of `sluice serve`, its start and its end |
//! | `server` | devices, volumes and sockets of a host file; start and reload |
//! | `control` | the control socket, its roles, and the thread that makes all changes |
//! | `state` | what outlasts the daemon: changes at run time, and what volumes served |
//! | `monitor`, `events`, `metrics` | what it replies, keeps and exports |
//! | `pool` | storage that hosts share |
//! | `preflight`, `findings`, `space`, `request_sizes` | a look at the host without serving |
//! | `reach`, `jail`, `launcher` | what a host file lets the daemon reach; how it seals itself to that, and the process that starts programs for it |
//! | `service`, `notify` | readiness and watchdog for the service manager |
//! | `output`, `failure` | logs, results, errors with their exit codes |
#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links, reason = "those who change the daemon read it, and see what is private")]

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

pub mod control;
pub mod events;
pub mod explain;
pub mod failure;
pub mod findings;
mod http;
pub mod jail;
pub mod launcher;
pub mod metrics;
pub mod monitor;
mod node;
pub mod notify;
pub mod output;
pub mod pool;
pub mod preflight;
pub mod reach;
pub mod request_sizes;
pub mod serve;
pub mod server;
pub mod service;
pub mod space;
pub mod state;

/// The version, with the commit if the build states it: `cargo xtask package` does.
pub const VERSION: &str = match option_env!("SLUICE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Options of log lines, of all programs.
#[derive(Args)]
pub struct LogOptions {
    /// Print more log messages on standard error; given twice, also debug messages.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print only warnings and errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Level of log messages: error, warn, info, debug or trace, also for one module (sluice_io=debug,info). Overrides the variable
    /// RUST_LOG, which has the same form, and -v and -q.
    #[arg(id = "log_level", long = "log", value_name = "LEVEL", value_parser = output::log_filter, conflicts_with_all = ["verbose", "quiet"])]
    pub log: Option<String>,
    /// Form of log lines. Default: the journal if standard error goes there; json for a daemon with -o json; otherwise text.
    #[arg(long, global = true, value_enum, value_name = "FORM")]
    pub log_format: Option<output::LogFormat>,
}

impl LogOptions {
    /// Starts logging to standard error in the form that suits results in `format`. `owns_terminal` is for a program with a display that
    /// log lines would disturb: they are wanted there only if `--verbose` asks for them.
    pub fn start(self, format: output::Format, owns_terminal: bool) {
        output::choose_log(self.log_format, format, false);
        let is_quiet = self.quiet || self.verbose == 0 && owns_terminal;
        output::start_logging(self.log, self.verbose, is_quiet);
    }
}

/// The command line of `sluiced`: that of `sluice`, whose only verb here is `serve`.
#[derive(Parser)]
#[command(name = "sluiced", version = VERSION, arg_required_else_help = true, after_long_help = failure::CODES)]
pub struct Cli {
    /// Format of results on standard output.
    #[arg(short, long, global = true, value_enum, default_value_t = output::Format::Table)]
    output: output::Format,
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Serve(serve::Serve),
    /// Reads and writes the place where hosts meet, for the daemon that starts it.
    #[command(name = pool::helper::COMMAND, hide = true)]
    Meeting {
        /// The place as JSON.
        place: String,
    },
    /// Starts programs and connects, for the daemon that starts it.
    #[command(name = launcher::COMMAND, hide = true)]
    Launcher,
    /// Finds out what a daemon with this host file is to be sealed to.
    #[command(name = jail::look::COMMAND, hide = true)]
    Look {
        file: std::path::PathBuf,
    },
}

impl Cli {
    /// Serves until a signal ends the daemon.
    pub fn run(self) -> ExitCode {
        let Cli { output: format, log, verb } = self;
        let serve = match verb {
            Verb::Serve(serve) => serve,
            Verb::Meeting { place } => {
                sluice_io::signals::release();
                let served =
                    serde_json::from_str(&place).map_err(Into::into).and_then(|place| pool::helper::serve(&place));
                return served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
            }
            Verb::Launcher => {
                return launcher::run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
            }
            Verb::Look { file } => {
                sluice_io::signals::release();
                jail::look::run(&file);
                return ExitCode::SUCCESS;
            }
        };
        // Before the first other thread.
        let jail = jail::Jail::begin(serve.file());
        output::choose_log(log.log_format, format, true);
        if let Err(error) = output::never_wait() {
            return failure::Failure::from(error).report(format);
        }
        output::start_logging(serve.log_level().or(log.log), log.verbose, log.quiet);
        let code = match serve.run(format, jail) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(format),
        };
        output::end(code)
    }
}
