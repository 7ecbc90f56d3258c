//! `cargo xtask bench accuracy`: whether VMs get their shares, limits and reservations.
//!
//! The device is a `delay` device, whose capacity is known exactly. Requests arrive over real NBD sockets. The effect
//! of a limit or a reservation in a window is counted at dispatch, from the device's own log. The same is measured
//! for QEMU's throttle filter over NBD, and for the kernel's blk-throttle and BFQ on a loop device. None of them
//! offers reservations.

mod hosts;
pub(crate) mod kernel;
mod slots;
mod throttle;

use std::path::PathBuf;
use std::time::Duration;

use super::load::Outcome;
use super::report::{Bound, Cell, Report, Table};
use super::server;
use super::stats::Samples;
use hosts::{Host, Vm};
use slots::Slots;

/// Rates of the device in the test of shares (IOPS), and the factors by which the weights 1:2:3 are multiplied.
const RATES: [u64; 4] = [100, 1_000, 10_000, 50_000];
const SCALES: [f64; 3] = [0.01, 1.0, 100.0];
/// Limits to compare (IOPS), and the number of requests that each VM keeps in flight.
const LIMITS: [u64; 3] = [1_000, 2_000, 3_000];
const DEPTH: u32 = 16;
/// Capacity of the device and reservation of one VM (IOPS).
const RESERVATIONS: [(u64, u64); 2] = [(1_000, 250), (10_000, 2_500)];

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Folder of the scratch file for the kernel's schedulers. Default: the build folder.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Leave out the other servers and the kernel's schedulers.
    #[arg(long)]
    own_only: bool,
}

/// Duration of the measurements.
#[derive(Debug, Clone, Copy)]
struct Effort {
    warm: Duration,
    shares: Duration,
    others: Duration,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    server::build_sluice()?;
    let effort = match quick {
        true => {
            Effort { warm: Duration::from_millis(300), shares: Duration::from_secs(1), others: Duration::from_secs(3) }
        }
        false => {
            Effort { warm: Duration::from_secs(1), shares: Duration::from_secs(10), others: Duration::from_secs(5) }
        }
    };
    let mut report = Report::new("accuracy");
    let scratch = server::scratch(options.folder.as_deref())?;
    shares(&mut report, options, effort)?;
    limits(&mut report, options, effort, &scratch, quick)?;
    reservations(&mut report, options, effort)?;
    let seconds = (effort.shares.as_secs(), effort.others.as_secs());
    report.note(format!(
        "{} rounds, shares over {} s each, the others over {} s; median (best to worst round)",
        options.rounds, seconds.0, seconds.1
    ));
    Ok(report)
}

/// Three VMs of weights 1:2:3, always backlogged.
fn shares(report: &mut Report, options: &Options, effort: Effort) -> Result<(), String> {
    let mut measured = vec![[Samples::default(), Samples::default()]; RATES.len() * SCALES.len()];
    // Slow devices run concurrently; a fast one needs the CPU for itself.
    let (slow, fast): (Vec<u64>, Vec<u64>) = RATES.iter().partition(|rate| **rate <= 10_000);
    let slow: Vec<(u64, f64)> = slow.into_iter().flat_map(|rate| SCALES.map(|scale| (rate, scale))).collect();
    let fast = fast.into_iter().flat_map(|rate| SCALES.map(|scale| vec![(rate, scale)]));
    let runs: Vec<Vec<(u64, f64)>> = std::iter::once(slow).chain(fast).collect();
    for round in 0..options.rounds {
        eprintln!("accuracy: shares, round {} of {}", round + 1, options.rounds);
        for run in &runs {
            let vms = run.iter().enumerate().flat_map(|(device, (rate, scale))| {
                (1..=3).map(move |part| Vm {
                    weight: f64::from(part) * scale,
                    depth: if *rate > 10_000 { 64 } else { 32 },
                    ..Vm::on(device)
                })
            });
            let rates: Vec<u64> = run.iter().map(|(rate, _)| *rate).collect();
            let host = Host::start(&rates, vms.collect(), false)?;
            let outcomes = host.load(effort.warm, effort.shares)?;
            for ((rate, scale), outcomes) in run.iter().zip(outcomes.chunks(3)) {
                let row = RATES.iter().position(|known| known == rate).expect("of the list") * SCALES.len()
                    + SCALES.iter().position(|known| known == scale).expect("of the list");
                measured[row][0].push(deviation(outcomes));
                measured[row][1].push(total(outcomes) / *rate as f64 * 100.0);
            }
        }
    }
    let mut table = Table::new(
        "Shares 1:2:3",
        &["device (IOPS)", "weights times", "largest deviation [% of the total]", "total [% of the device]"],
    );
    for (index, [deviation, total]) in measured.iter().enumerate() {
        let (rate, scale) = (RATES[index / SCALES.len()], SCALES[index % SCALES.len()]);
        let cells = [Cell::Number(rate as f64, 0), Cell::Number(scale, 2)];
        table.row([cells.to_vec(), vec![Cell::spread(deviation, 2), Cell::spread(total, 1)]].concat());
        report.target(format!("deviation [%], {rate} IOPS, weights x {scale}"), Bound::AtMost(1.0), deviation.median());
    }
    report.table(table);
    Ok(())
}

/// Returns the largest deviation of a VM from its share 1:2:3, in percent of the total.
fn deviation(outcomes: &[Outcome]) -> f64 {
    let all = total(outcomes);
    let off = outcomes.iter().zip([1.0, 2.0, 3.0]).map(|(got, part)| (got.iops() / all - part / 6.0).abs() * 100.0);
    off.fold(0.0, f64::max)
}

fn total(outcomes: &[Outcome]) -> f64 {
    outcomes.iter().map(Outcome::iops).sum()
}

/// Measurements under a limit: throughput and p99, relative to their nominal values.
#[derive(Clone, Default)]
struct Limited {
    achieved: Samples,
    second: Samples,
    excess: Samples,
    latency: Samples,
}

impl Limited {
    /// Adds a round. A VM that keeps `DEPTH` requests in flight at its limit has a nominal latency of `DEPTH`
    /// intervals.
    fn push(&mut self, limit: u64, iops: f64, p99_us: f64) {
        self.achieved.push(iops / limit as f64);
        self.latency.push(p99_us / (f64::from(DEPTH) * 1e6 / limit as f64));
    }
}

fn limits(
    report: &mut Report,
    options: &Options,
    effort: Effort,
    scratch: &tempfile::TempDir,
    quick: bool,
) -> Result<(), String> {
    let mut ours = vec![Limited::default(); LIMITS.len()];
    let mut filter = ours.clone();
    let mut kernel_limits = ours.clone();
    let mut bfq = [Samples::default(), Samples::default()];
    let mut has_filter = true;
    let mut device = None;
    if !options.own_only {
        match kernel::device(scratch.path(), if quick { 64 } else { 1024 }, LIMITS.len()) {
            Ok(ready) => device = Some(ready),
            Err(reason) => report.note(format!("blk-throttle and BFQ left out: {reason}")),
        }
    }
    for round in 0..options.rounds {
        eprintln!("accuracy: limits, round {} of {}", round + 1, options.rounds);
        own_limits(&mut ours, effort)?;
        if options.own_only {
            continue;
        }
        has_filter = has_filter && filtered_limits(report, &mut filter, effort)?;
        if let Some(device) = &device {
            for ((limited, limit), (iops, p99_us)) in
                kernel_limits.iter_mut().zip(LIMITS).zip(kernel::throttle(device, &LIMITS, effort.others)?)
            {
                limited.push(limit, iops, p99_us);
            }
            let (plain, shared) = (kernel::plain(device, effort.others)?, kernel::bfq(device, effort.others)?);
            let all: f64 = shared.iter().sum();
            let off = shared.iter().zip([1.0, 2.0, 3.0]).map(|(got, part)| (got / all - part / 6.0).abs() * 100.0);
            bfq[0].push(off.fold(0.0, f64::max));
            bfq[1].push(all / plain.iter().sum::<f64>() * 100.0);
        }
    }
    add_limits(report, &[("sluice", &ours), ("QEMU throttle", &filter), ("blk-throttle", &kernel_limits)]);
    if device.is_none() {
        return Ok(());
    }
    let mut table = Table::new(
        "The kernel's shares 1:2:3 (BFQ, low_latency = 0, loop device)",
        &["largest deviation [% of the total]", "total [% of no scheduler]"],
    );
    table.row(vec![Cell::spread(&bfq[0], 2), Cell::spread(&bfq[1], 1)]);
    report.table(table);
    Ok(())
}

/// Measures QEMU's filter. Returns `false` if it is not installed or does not limit: that of 7.2 limits nothing over
/// NBD.
fn filtered_limits(report: &mut Report, filter: &mut [Limited], effort: Effort) -> Result<bool, String> {
    if !server::has("qemu-storage-daemon") {
        report.note("QEMU's throttle filter left out: qemu-storage-daemon is not installed");
        return Ok(false);
    }
    let measured = throttle::run(&LIMITS, effort)?;
    if measured.iter().zip(LIMITS).all(|((iops, _), limit)| *iops > 2.0 * limit as f64) {
        let iops: Vec<String> = measured.iter().map(|(iops, _)| format!("{iops:.0}")).collect();
        let (iops, limits) = (iops.join(", "), LIMITS.map(|limit| limit.to_string()).join(", "));
        report.note(format!("QEMU's throttle filter left out: over NBD it let {iops} IOPS pass at limits of {limits}"));
        return Ok(false);
    }
    for (limited, (limit, (iops, p99_us))) in filter.iter_mut().zip(LIMITS.into_iter().zip(measured)) {
        limited.push(limit, iops, p99_us);
    }
    Ok(true)
}

/// Three VMs with limits and one without, on a device with enough capacity.
fn own_limits(ours: &mut [Limited], effort: Effort) -> Result<(), String> {
    let mut vms: Vec<Vm> = LIMITS.iter().map(|limit| Vm { limit: Some(*limit), depth: DEPTH, ..Vm::on(0) }).collect();
    vms.push(Vm { depth: 32, ..Vm::on(0) });
    let host = Host::start(&[20_000], vms, true)?;
    let outcomes = host.load(effort.warm, effort.others)?;
    let slots: Slots = host.end()?;
    for (index, (limited, limit)) in ours.iter_mut().zip(LIMITS).enumerate() {
        limited.push(limit, outcomes[index].iops(), outcomes[index].percentile_us(99.0));
        let dispatches = slots.steady(index);
        if let Some((_, most)) = slots::second(dispatches) {
            limited.second.push(most as f64 / limit as f64);
        }
        limited.excess.push(slots::excess(dispatches, limit as f64));
    }
    Ok(())
}

fn add_limits(report: &mut Report, servers: &[(&str, &[Limited])]) {
    let mut table = Table::new(
        "Limits",
        &[
            "limit (IOPS)",
            "by",
            "achieved / limit",
            "most in any second / limit",
            "most above limit x time [requests]",
            "p99 / (interval x depth)",
        ],
    );
    for (index, limit) in LIMITS.iter().enumerate() {
        for (name, measured) in servers.iter().filter(|(_, measured)| measured[index].achieved.median().is_finite()) {
            let Limited { achieved, second, excess, latency } = &measured[index];
            table.row(vec![
                Cell::Number(*limit as f64, 0),
                Cell::text(*name),
                Cell::spread(achieved, 3),
                Cell::spread(second, 3),
                Cell::spread(excess, 1),
                Cell::spread(latency, 2),
            ]);
        }
        let ours = &servers[0].1[index];
        report.target(format!("achieved / limit, {limit}"), Bound::AtLeast(0.99), ours.achieved.median());
        // The stated burst is the device's depth, plus one request.
        let most = f64::from(hosts::DEVICE_DEPTH) + 1.01;
        report.target(format!("requests above limit x time, {limit}"), Bound::AtMost(most), ours.excess.median());
        report.target(format!("p99 / (interval x depth), {limit}"), Bound::AtMost(1.5), ours.latency.median());
    }
    report.table(table);
}

/// One VM with a reservation, next to two whose weights are a thousand times larger.
fn reservations(report: &mut Report, options: &Options, effort: Effort) -> Result<(), String> {
    let mut table = Table::new(
        "Reservations",
        &["device (IOPS)", "reserved [IOPS]", "got / reserved", "fewest in any second / reserved"],
    );
    for (rate, reservation) in RESERVATIONS {
        let (mut got, mut fewest) = (Samples::default(), Samples::default());
        for round in 0..options.rounds {
            eprintln!("accuracy: reservation of {reservation}, round {} of {}", round + 1, options.rounds);
            let reserved = Vm { reservation: Some(reservation), weight: 1.0, depth: 64, ..Vm::on(0) };
            let greedy = Vm { weight: 1000.0, depth: 64, ..Vm::on(0) };
            let host = Host::start(&[rate], vec![reserved, greedy.clone(), greedy], true)?;
            let outcomes = host.load(effort.warm, effort.others)?;
            got.push(outcomes[0].iops() / reservation as f64);
            let slots = host.end()?;
            if let Some((least, _)) = slots::second(slots.steady(0)) {
                fewest.push(least as f64 / reservation as f64);
            }
        }
        report.target(format!("fewest in any second / {reservation} reserved"), Bound::AtLeast(0.99), fewest.median());
        let cells = [Cell::Number(rate as f64, 0), Cell::Number(reservation as f64, 0)];
        table.row([cells.to_vec(), vec![Cell::spread(&got, 3), Cell::spread(&fewest, 3)]].concat());
    }
    report.table(table);
    report.note("no other program offers reservations, so there is no comparison");
    Ok(())
}
