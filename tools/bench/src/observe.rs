//! `cargo xtask bench observe`: the cost of looking at a host with many VMs.
//!
//! 1,000 VMs with 1,200 volumes, each with a reservation, a limit and a latency target, without load: an idle VM has the same
//! series as a busy one. CPU time is that of the daemon's threads, and of the command. The text of a scrape is made once per sample,
//! so each scrape waits for the next sample. `sluice top` draws on a terminal of 160 x 50 once a second; what the daemon uses for it is the
//! difference to the same time without it.
//!
//! Four more parts: the memory per VM ([`memory`]); changes by command are timed, and a restart with all of them in force; the state is on a file system in
//! memory, so no time for a sync is included. The memory of the past is measured in this process, in virtual time: see [`past`]. And
//! with `--without`, this build alternates with one from before there was monitoring, on a null device over vhost-user.

pub(crate) mod host;
mod memory;
mod past;

use std::path::PathBuf;

use super::report::{Bound, Cell, Report, Table};
use super::server::build_sluice;
use super::stats::Samples;
use super::vhost;
use host::Host;

/// Least IOPS of a null device, as a part of those of a build without monitoring.
const IOPS_LEAST: f64 = 0.97;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// A build of the daemon without monitoring, to measure what monitoring costs each request.
    #[arg(long, value_name = "PROGRAM")]
    without: Option<PathBuf>,
    /// Measure only the memory of the daemon per VM.
    #[arg(long)]
    memory: bool,
    /// Another build of the daemon, whose memory is measured, too.
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
    /// Number of rounds of the comparison with `--without`.
    #[arg(long, value_name = "N", default_value_t = 15)]
    rounds: usize,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    build_sluice()?;
    let (vms, rounds) = if quick { (50, 2) } else { (1000, 20) };
    let mut report = Report::new("observe");
    memory::run(&mut report, options.beside.as_deref(), quick)?;
    if options.memory {
        return Ok(report);
    }
    if let Some(without) = &options.without {
        let rounds = if quick { 1 } else { options.rounds };
        vhost::compare_without(&mut report, ("monitoring", IOPS_LEAST), without, rounds, quick)?;
    }
    past::run(&mut report, vms);
    let mut host = Host::start(vms)?;
    let (mut scrape, mut get, mut series, mut bytes) = (Samples::default(), Samples::default(), 0, 0);
    for round in 0..=rounds {
        eprintln!("observe: round {round} of {rounds}");
        let text = host.next_scrape()?;
        let before = host.cpu_ms()?;
        let used = text.cpu_ms;
        host.get("vms")?;
        // The first round fills caches.
        if round > 0 {
            scrape.push(used);
            get.push(host.cpu_ms()? - before);
            (series, bytes) = (text.series, text.bytes);
        }
    }
    let seconds = if quick { 5 } else { 30 };
    eprintln!("observe: sluice top for {seconds} s");
    let (command, daemon) = host.top(seconds)?;
    let volumes = vms + vms / 5;
    let title = format!("What a look at {vms} VMs with {volumes} volumes costs, in ms of CPU");
    let mut table = Table::new(title, &["scrape", "get vms -o json, with the command", "series", "MB"]);
    let size = format!("{:.1}", bytes as f64 / 1e6);
    table.row(vec![Cell::spread(&scrape, 1), Cell::spread(&get, 1), Cell::text(series.to_string()), Cell::text(size)]);
    report.table(table);
    let title = format!("CPU of `sluice top` at 1 Hz with {vms} VMs, in percent of a core");
    let mut table = Table::new(title, &["command, with its terminal", "daemon"]);
    table.row(vec![Cell::text(format!("{command:.2}")), Cell::text(format!("{daemon:.2}"))]);
    report.table(table);
    changes(&mut report, &mut host, if quick { 10 } else { 200 })?;
    report.target("CPU of top [% of a core]", Bound::AtMost(2.0), command);
    report.target("CPU of a scrape [ms]", Bound::AtMost(50.0), scrape.median());
    report.target("CPU of get vms -o json [ms]", Bound::AtMost(100.0), get.median());
    report.target("series", Bound::AtMost(50_000.0), series as f64);
    Ok(report)
}

/// Measures changes by command, and a restart with all of them in force.
fn changes(report: &mut Report, host: &mut Host, changes: usize) -> Result<(), String> {
    eprintln!("observe: {changes} changes, and a restart");
    // Each change is an override of its own, and all of them are checked with the next one.
    let (mut few, mut many) = (Samples::default(), Samples::default());
    for change in 0..changes {
        let took = host.set_weight(change, 200 + change)?;
        match change {
            change if change < changes / 10 => few.push(took),
            change if change >= changes - changes / 10 => many.push(took),
            _ => {}
        }
    }
    let before = host.get("overrides")?;
    let restart = host.restart()?;
    if host.get("overrides")? != before {
        return Err("The changes made at run time differ after a restart".to_owned());
    }
    let title = format!("Changes by command, and a restart with {changes} of them in force, in ms");
    let mut table = Table::new(title, &["set, first tenth", "set, last tenth", "restart"]);
    table.row(vec![Cell::spread(&few, 1), Cell::spread(&many, 1), Cell::Number(restart, 0)]);
    report.table(table);
    report.target("set [ms]", Bound::AtMost(10.0), few.median());
    report.target(format!("set with {changes} overrides [ms]"), Bound::AtMost(10.0), many.median());
    Ok(())
}
