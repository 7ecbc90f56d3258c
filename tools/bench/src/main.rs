//! Measures every promised number next to a baseline. `cargo xtask bench` runs it.
//!
//! On a shared machine the same program may run 30 % faster or slower from one minute to the next. So nothing is
//! measured alone: subject and baseline alternate in short rounds. Each round gives a ratio, and the report states
//! the median of the rounds with its spread. Absolute figures apply to the machine that the report names.
//!
//! Reports go to standard output, as Markdown tables or as JSON. Progress goes to standard error.
//! `docs/benchmarks.md` explains each number.

#![forbid(unsafe_code)]

mod accuracy;
mod baseline;
mod contest;
mod control;
mod core;
mod fio;
mod history;
mod hostile;
mod isolation;
mod load;
mod nbd;
mod network;
mod observe;
mod page;
mod pin;
mod pool;
mod report;
mod server;
mod sim;
mod stats;
mod vhost;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use report::{Format, Report};

/// Measure promised numbers next to their baselines.
#[derive(Parser)]
#[command(name = "bench", bin_name = "cargo xtask bench")]
struct Bench {
    #[command(subcommand)]
    what: What,
    /// Run briefly, to prove that the benchmark works. The numbers mean little.
    #[arg(long, global = true)]
    quick: bool,
    /// Format of the report.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(clap::Subcommand)]
enum What {
    /// CPU time and memory of the core per request, with 10 to 100,000 VMs.
    Core(core::Options),
    /// Cost of a request over NBD, next to other servers.
    Nbd(nbd::Options),
    /// Cost of a request over vhost-user-blk, next to other back ends.
    Vhost(vhost::Options),
    /// Requests per second of the simulator.
    Sim,
    /// Cost of the start and of changes on a host with many VMs.
    Control(control::Options),
    /// Cost of metrics and of `sluice get` on a host with many VMs.
    Observe(observe::Options),
    /// Cost of the web page and of streams, and how soon a change is seen.
    Page,
    /// Size of the past on disk, and what it costs to write and to read it, in simulated time.
    History(history::Options),
    /// Cost of a VM for its neighbour, by work that never reaches the device.
    Hostile(hostile::Options),
    /// Accuracy of shares, limits and reservations, next to other programs that limit and share.
    Accuracy(accuracy::Options),
    /// The experiments of isol-bench (IISWC 2025): knobs of the kernel and the daemon on the same device.
    Isolation(isolation::Options),
    /// A minimum on storage that other hosts use too, next to the same hosts without an exchange.
    Pool(pool::Options),
    /// Parts of a network link, next to a plain queue and HTB, and what the daemon carries.
    Network(network::Options),
}

fn main() -> ExitCode {
    let bench = Bench::parse();
    match bench.run() {
        Ok(report) => {
            print(&report, bench.output);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Bench {
    fn run(&self) -> Result<Report, String> {
        match &self.what {
            What::Core(options) => core::run(options, self.quick),
            What::Nbd(options) => nbd::run(options, self.quick),
            What::Vhost(options) => vhost::run(options, self.quick),
            What::Control(options) => control::run(options, self.quick),
            What::Observe(options) => observe::run(options, self.quick),
            What::History(options) => history::run(options, self.quick),
            What::Page => page::run(self.quick),
            What::Sim => sim::run(self.quick),
            What::Hostile(options) => hostile::run(options, self.quick),
            What::Isolation(options) => isolation::run(options, self.quick),
            What::Pool(options) => pool::run(options, self.quick),
            What::Accuracy(options) => accuracy::run(options, self.quick),
            What::Network(options) => network::run(options, self.quick),
        }
    }
}

fn print(report: &Report, format: Format) {
    match format {
        Format::Text => print!("{}", report.markdown()),
        Format::Json => println!("{}", report.json()),
    }
}
