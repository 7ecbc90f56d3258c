//! `sluiced`: the daemon, which `sluice serve` becomes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    sluice_io::signals::hold();
    sluice_daemon::Cli::parse().run()
}
