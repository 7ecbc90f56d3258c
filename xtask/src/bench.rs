//! `cargo xtask bench`: every number that is promised, measured beside what it is compared with.
//!
//! Problem: on a shared machine the same program runs 30 % faster or slower from one minute to the next. So nothing
//! here is measured alone: subject and baseline take turns in short rounds, each round gives a ratio, and the median
//! of the rounds is reported with its spread. Absolute figures hold for the machine that the report names.
//!
//! Reports go to standard output, as Markdown tables or as JSON; progress goes to standard error. What each number
//! means is in `docs/benchmarks.md`.

mod accuracy;
mod contest;
mod control;
mod core;
mod fio;
mod load;
mod nbd;
mod report;
mod server;
mod sim;
mod stats;
mod vhost;

use std::process::{Command, ExitCode};

use crate::{Verb, workspace};
use report::{Format, Report};

/// Measure what is promised, beside what it is compared with.
#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
    /// A smoke run: proves that the benchmark works; its numbers mean little.
    #[arg(long, global = true)]
    quick: bool,
    /// How to print the report.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(clap::Subcommand)]
enum What {
    /// CPU time and memory that the core takes per request, from 10 to 100,000 VMs.
    Core(core::Options),
    /// What a request over NBD costs, beside other servers.
    Nbd(nbd::Options),
    /// What a request over vhost-user-blk costs, beside other back ends.
    Vhost(vhost::Options),
    /// How many requests per second the simulator gets through.
    Sim,
    /// What a change costs on a host with many VMs, and the start.
    Control(control::Options),
    /// Whether VMs get what they are promised, beside what else limits and shares.
    Accuracy(accuracy::Options),
}

impl Verb for Bench {
    const NAME: &'static str = "bench";

    fn run(self) -> Result<ExitCode, String> {
        if cfg!(debug_assertions) {
            return again_in_release();
        }
        let report = match &self.what {
            What::Core(options) => core::run(options, self.quick)?,
            What::Nbd(options) => nbd::run(options, self.quick)?,
            What::Vhost(options) => vhost::run(options, self.quick)?,
            What::Control(options) => control::run(options, self.quick)?,
            What::Sim => sim::run(self.quick)?,
            What::Accuracy(options) => accuracy::run(options, self.quick)?,
        };
        print(&report, self.output);
        Ok(ExitCode::SUCCESS)
    }
}

/// A number from a build without optimisation is worth nothing.
fn again_in_release() -> Result<ExitCode, String> {
    let mut command: Command = workspace::cargo();
    command.args(["run", "--quiet", "--release", "--package", "xtask", "--"]).args(std::env::args_os().skip(1));
    let status = command.status().map_err(|error| format!("Cannot start cargo: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report, format: Format) {
    match format {
        Format::Text => print!("{}", report.markdown()),
        Format::Json => println!("{}", report.json()),
    }
}
