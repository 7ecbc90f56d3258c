//! `cargo xtask bench workers`: several threads for one device.
//!
//! Several threads of a device parse rings, copy data and interrupt guests in parallel, but a device has one tag clock, so its gate
//! decides for all of them. The daemon lets them combine. This compares two ways of sharing a gate, beside a thread that has one alone:
//!
//! - *combining*: a worker posts its arrivals and completions, and whichever worker gets the gate's lock handles what all have posted
//!   (flat combining);
//! - *decision thread*: one more thread owns the gate, and does nothing else.
//!
//! The device is null: what the gate lets through has completed. A worker spends a stated time for each request outside the gate.
//! `docs/several-threads.md` explains the design, and what follows for more CPUs than the machine has.

mod combining;
mod decision;
mod rig;

use super::report::{Cell, Report, Table};
use super::stats::Samples;
use rig::{Load, Sharing, measure};

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Time that a worker spends for a request outside the gate, in nanoseconds (may be given several times).
    #[arg(long, value_name = "NS", default_values_t = [0, 250, 1000])]
    work: Vec<u64>,
    /// VMs of each worker.
    #[arg(long, value_name = "N", default_value_t = 4)]
    vms: u32,
}

/// What is measured: a name, the way of sharing, and the number of workers.
const CASES: [(&str, Sharing, usize); 5] = [
    ("alone, 1 worker", Sharing::Alone, 1),
    ("combining, 1 worker", Sharing::Combining, 1),
    ("combining, 2 workers", Sharing::Combining, 2),
    ("decision thread, 1 worker", Sharing::DecisionThread, 1),
    ("decision thread, 2 workers", Sharing::DecisionThread, 2),
];

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    let (rounds, requests) = if quick { (5, 20_000) } else { (9, 1_000_000) };
    let mut report = Report::new("workers");
    let columns = ["work outside the gate [ns]", "case", "requests per second", "beside alone", "CPU per request [ns]"];
    let mut table = Table::new("Sharing a gate, null device, 32 requests for each VM", &columns);
    for &work_ns in &options.work {
        let mut rates = CASES.map(|_| Samples::default());
        let mut costs = CASES.map(|_| Samples::default());
        for round in 0..rounds {
            eprintln!("workers: {work_ns} ns, round {} of {rounds}", round + 1);
            for (case, &(_, sharing, workers)) in CASES.iter().enumerate() {
                let load = Load { workers, vms: options.vms, work_ns, requests };
                let run = measure(sharing, load)?;
                rates[case].push(run.per_second);
                costs[case].push(run.cpu_ns);
            }
        }
        for (case, (name, ..)) in CASES.iter().enumerate() {
            table.row(vec![
                Cell::Number(work_ns as f64, 0),
                Cell::text(*name),
                Cell::spread(&rates[case], 0),
                Cell::spread(&rates[case].ratio(&rates[0]), 2),
                Cell::spread(&costs[case], 0),
            ]);
        }
    }
    report.table(table);
    report.note(format!("{rounds} rounds of {requests} requests for each case, in turns"));
    Ok(report)
}
