//! `cargo xtask bench network`: what VMs get of a link, and what the daemon carries.
//!
//! Stations in network namespaces send through one of three: a Linux bridge with a plain queue at the link, the same bridge with
//! HTB, and the daemon. The link is a pair of virtual interfaces, shaped to 100 Mbit/s by each of the three itself. Each
//! experiment runs with all three in turn, round by round. Rates are those of the wire: 24 bytes around each frame count. Stations and the
//! daemon's thread have real-time priority there, so that what is measured is not the wait of a probe for a CPU.
//!
//! On a link without a rate, TCP with segmentation offload shows what one thread carries, next to the bridge and to a plain forwarder.

mod charge;
mod forwarder;
mod lab;
mod packets;
mod together;

use std::thread;
use std::time::{Duration, Instant};

use super::report::{Bound, Cell, Report, Table};
use super::server;
use super::stats::Samples;
use lab::{Busy, Lab, Load, Mode, Vm};

/// Rate of the link, in Mbit/s.
const LINK: f64 = 100.0;
/// Part of a second in which what arrives is counted.
const BIN: Duration = Duration::from_millis(100);
const BINS_PER_SECOND: usize = 10;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Number of pairs on a link without a rate.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pairs: usize,
    /// Length of a round of an experiment; a pair takes half of it.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(2..=60))]
    seconds: u8,
    /// Run only these experiments.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
}

/// Some VMs that send, and the part of the link that each is to get. A further VM only asks questions.
struct Experiment {
    name: &'static str,
    vms: &'static [(Vm, f64)],
    /// Weights that are set while it runs, and the parts from then on.
    change: Option<(&'static [u32], &'static [f64])>,
    /// Whether three processes for each CPU run beside.
    is_busy: bool,
}

const PLAIN: Experiment = Experiment { name: "", vms: &[], change: None, is_busy: false };

const fn udp(mbit: u64) -> Vm {
    Vm { weight: 1, reservation: 0, limit: 0, load: Load::Udp { mbit, senders: 1 } }
}

const fn tcp(connections: usize) -> Vm {
    Vm { load: Load::Tcp { connections }, ..udp(0) }
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "weights 3:1", vms: &[(Vm { weight: 3, ..udp(120) }, 75.0), (udp(60), 25.0)], ..PLAIN },
    Experiment {
        name: "weights 30:1",
        vms: &[(Vm { weight: 30, ..udp(120) }, 3000.0 / 31.0), (udp(60), 100.0 / 31.0)],
        ..PLAIN
    },
    Experiment {
        name: "minimum 60, two others",
        vms: &[(Vm { reservation: 60, ..udp(100) }, 60.0), (udp(60), 20.0), (udp(60), 20.0)],
        ..PLAIN
    },
    Experiment {
        name: "a: limits of 25",
        vms: &[(Vm { limit: 25, ..udp(60) }, 25.0), (Vm { limit: 25, ..udp(60) }, 25.0)],
        ..PLAIN
    },
    Experiment { name: "c: UDP, no limits", vms: &[(udp(100), 50.0), (udp(100), 50.0)], ..PLAIN },
    Experiment {
        name: "d: UDP, 1 and 3 senders",
        vms: &[(udp(60), 50.0), (Vm { load: Load::Udp { mbit: 60, senders: 3 }, ..udp(0) }, 50.0)],
        ..PLAIN
    },
    Experiment { name: "c: TCP, 1 connection each", vms: &[(tcp(1), 50.0), (tcp(1), 50.0)], ..PLAIN },
    Experiment { name: "d: TCP, 1 and 3 connections", vms: &[(tcp(1), 50.0), (tcp(3), 50.0)], ..PLAIN },
    Experiment {
        name: "sweep, from 1:1 to 10:1",
        vms: &[(udp(120), 50.0), (udp(80), 50.0)],
        change: Some((&[10, 1], &[1000.0 / 11.0, 100.0 / 11.0])),
        ..PLAIN
    },
    Experiment {
        name: "busy: UDP beside 3 processes per CPU",
        vms: &[(udp(100), 50.0), (udp(100), 50.0)],
        is_busy: true,
        ..PLAIN
    },
];

/// Durations of one run.
#[derive(Clone, Copy)]
struct Effort {
    warm: Duration,
    seconds: usize,
}

/// Measurements of one experiment by one of the three, over the rounds.
#[derive(Clone, Default)]
struct Measured {
    /// Largest deviation of a VM from its part, in percent of the link.
    error: Samples,
    /// What all VMs got, in Mbit/s.
    total: Samples,
    /// Largest coefficient of variation of a VM's throughput in 1 s.
    spread: Samples,
    p50_ms: Samples,
    p99_ms: Samples,
    /// Lost questions, in percent.
    lost: Samples,
    /// Time after a change until the parts are right.
    convergence_s: Samples,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    server::build_sluice()?;
    let effort = match quick {
        true => Effort { warm: Duration::from_millis(500), seconds: 2 },
        false => Effort { warm: Duration::from_secs(1), seconds: options.seconds.into() },
    };
    let chosen = |name: &str| options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()));
    let mut report = Report::new("network");
    shares(&mut report, options.rounds, effort, chosen)?;
    if chosen("unlimited") {
        throughput(&mut report, options.pairs, effort)?;
    }
    if chosen("packets") {
        packets(&mut report, options.pairs, effort)?;
    }
    if chosen("disk and link") {
        together(&mut report, options.rounds, effort)?;
    }
    if chosen("charge") {
        charge(&mut report, options.pairs, effort)?;
    }
    report.note(format!(
        "{} rounds of {} s, {} pairs; median (best to worst round). Rates in Mbit/s of the wire.",
        options.rounds, effort.seconds, options.pairs
    ));
    Ok(report)
}

fn shares(report: &mut Report, rounds: usize, effort: Effort, chosen: impl Fn(&str) -> bool) -> Result<(), String> {
    let experiments: Vec<&Experiment> = EXPERIMENTS.iter().filter(|experiment| chosen(experiment.name)).collect();
    let mut measured = vec![[(); Mode::ALL.len()].map(|()| Measured::default()); experiments.len()];
    for round in 0..rounds {
        for (experiment, measured) in experiments.iter().zip(&mut measured) {
            for (mode, measured) in Mode::ALL.into_iter().zip(measured) {
                eprintln!("network: {}, {}, round {} of {rounds}", experiment.name, mode.name(), round + 1);
                measure(experiment, mode, effort, measured)?;
            }
        }
    }
    let mut table = Table::new(
        "Parts of a link of 100 Mbit/s",
        &[
            "experiment",
            "by",
            "error [% of the link]",
            "total [Mbit/s]",
            "spread in 1 s",
            "light VM p50 [ms]",
            "p99 [ms]",
            "lost [%]",
            "convergence [s]",
        ],
    );
    for (experiment, measured) in experiments.iter().zip(&measured) {
        for (mode, of) in Mode::ALL.into_iter().zip(measured) {
            table.row(vec![
                Cell::text(experiment.name),
                Cell::text(mode.name()),
                Cell::spread(&of.error, 2),
                Cell::spread(&of.total, 1),
                Cell::spread(&of.spread, 3),
                Cell::spread(&of.p50_ms, 2),
                Cell::spread(&of.p99_ms, 2),
                Cell::Number(of.lost.median(), 1),
                Cell::spread(&of.convergence_s, 1),
            ]);
            if mode == Mode::Daemon {
                targets(report, experiment, of);
            }
        }
    }
    report.table(table);
    Ok(())
}

fn targets(report: &mut Report, experiment: &Experiment, of: &Measured) {
    let mut at_most = |what: &str, bound: f64, measured: &Samples| {
        report.target(format!("{}: {what}", experiment.name), Bound::AtMost(bound), measured.median());
    };
    at_most("share error [% of the link]", 1.0, &of.error);
    at_most("spread in 1 s", 0.01, &of.spread);
    at_most("light VM p99 [ms]", 0.5, &of.p99_ms);
    if experiment.change.is_some() {
        at_most("convergence [s]", 0.1, &of.convergence_s);
    }
    if experiment.is_busy {
        report.target(format!("{}: total [Mbit/s]", experiment.name), Bound::AtLeast(99.0), of.total.median());
    }
}

/// Runs one experiment once.
fn measure(experiment: &Experiment, mode: Mode, effort: Effort, measured: &mut Measured) -> Result<(), String> {
    let vms: Vec<Vm> = experiment.vms.iter().map(|(vm, _)| *vm).collect();
    let mut lab = Lab::start(mode, Some(LINK), &vms).map_err(|error| format!("{}: {error}", experiment.name))?;
    let light = lab.light_vm().map_err(|error| error.to_string())?;
    let _busy = experiment.is_busy.then(Busy::start).transpose().map_err(|error| error.to_string())?;
    thread::sleep(effort.warm);
    let mut expected: Vec<f64> = experiment.vms.iter().map(|(_, part)| *part).collect();
    if let Some((weights, parts)) = experiment.change {
        lab.set_weights(weights)?;
        expected = parts.to_vec();
    }
    light.restart();
    let bins = count(&lab, effort.seconds * BINS_PER_SECOND);
    if experiment.change.is_some() {
        measured.convergence_s.push(convergence(&bins, &expected));
    }
    let (mut error, mut spread, mut total) = (0.0, 0.0, 0.0);
    for (vm, expected) in expected.iter().enumerate() {
        // The first second belongs to a change.
        let seconds: Vec<f64> = bins[BINS_PER_SECOND..]
            .chunks_exact(BINS_PER_SECOND)
            .map(|second| second.iter().map(|bin| bin[vm]).sum::<f64>() / BINS_PER_SECOND as f64)
            .collect();
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let variance = seconds.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / seconds.len() as f64;
        error = f64::max(error, (mean - expected).abs() / LINK * 100.0);
        spread = f64::max(spread, variance.sqrt() / mean);
        total += mean;
    }
    let trips = light.finish();
    measured.error.push(error);
    measured.spread.push(spread);
    measured.total.push(total);
    measured.p50_ms.push(trips.percentile_ms(50.0));
    measured.p99_ms.push(trips.percentile_ms(99.0));
    measured.lost.push(trips.lost_percent());
    Ok(())
}

/// Returns what each VM got in each [`BIN`], in Mbit/s.
fn count(lab: &Lab, bins: usize) -> Vec<Vec<f64>> {
    let mut last = lab.arrived_mbit();
    let mut then = Instant::now();
    let begin = then;
    (1..=bins as u32)
        .map(|bin| {
            thread::sleep((begin + BIN * bin).saturating_duration_since(Instant::now()));
            let (arrived, now) = (lab.arrived_mbit(), Instant::now());
            let rates = arrived.iter().zip(&last).map(|(now, last)| now - last);
            let time = (now - then).as_secs_f64();
            let rates = rates.map(|mbit| mbit / time).collect();
            (last, then) = (arrived, now);
            rates
        })
        .collect()
}

/// Returns the time from which three bins in a row are within a tenth of the wanted parts, or within 0.5 Mbit/s of them.
fn convergence(bins: &[Vec<f64>], expected: &[f64]) -> f64 {
    let is_near = |bin: &Vec<f64>| {
        bin.iter().zip(expected).all(|(got, expected)| (got - expected).abs() <= f64::max(expected / 10.0, 0.5))
    };
    let first = bins.windows(3).position(|bins| bins.iter().all(is_near));
    first.map_or(f64::NAN, |bin| bin as f64 * BIN.as_secs_f64())
}

/// Small frames, with and without the system call that writes each of them.
fn packets(report: &mut Report, pairs: usize, effort: Effort) -> Result<(), String> {
    let mut table = Table::new(
        "Frames of 64 bytes of one guest",
        &["interface", "Mframes/s", "CPU of the daemon [cores]", "Mframes per CPU second"],
    );
    let mut rates = [Samples::default(), Samples::default()];
    let mut cpu = [Samples::default(), Samples::default()];
    for pair in 0..pairs {
        eprintln!("network: frames of 64 bytes, pair {} of {pairs}", pair + 1);
        for (at, has_interface) in [false, true].into_iter().enumerate() {
            let time = Duration::from_secs(effort.seconds as u64 / 2);
            let (rate, used) = packets::measure(has_interface, time).map_err(|error| error.to_string())?;
            rates[at].push(rate / 1e6);
            cpu[at].push(used);
        }
    }
    for (at, name) in ["none", "pair of virtual interfaces"].into_iter().enumerate() {
        let of_cpu = rates[at].ratio(&cpu[at]);
        table.row(vec![
            Cell::text(name),
            Cell::spread(&rates[at], 2),
            Cell::spread(&cpu[at], 2),
            Cell::spread(&of_cpu, 2),
        ]);
    }
    report.target(
        "frames of 64 bytes in the daemon's loop [millions/s]".to_owned(),
        Bound::AtLeast(1.0),
        rates[0].median(),
    );
    report.table(table);
    Ok(())
}

/// Disk and link of two VMs at once.
fn together(report: &mut Report, rounds: usize, effort: Effort) -> Result<(), String> {
    let vms = [Vm { weight: 3, ..udp(120) }, udp(120)];
    let mut parts = [(); 4].map(|()| Samples::default());
    let mut error = Samples::default();
    for round in 0..rounds {
        eprintln!("network: disk and link, round {} of {rounds}", round + 1);
        let time = Duration::from_secs(effort.seconds as u64 / 2);
        let measured = together::measure(LINK, &vms, effort.warm, time).map_err(|error| error.to_string())?;
        parts.iter_mut().zip(measured).for_each(|(all, part)| all.push(part));
        error.push(measured.iter().map(|part| (part - 1.0).abs() * 100.0).fold(0.0, f64::max));
    }
    let mut table = Table::new("Disk and link at once, as parts of each alone", &["of", "VM 1", "VM 2"]);
    for (name, parts) in ["link", "disk"].into_iter().zip(parts.chunks(2)) {
        table.row(vec![Cell::text(name), Cell::spread(&parts[0], 3), Cell::spread(&parts[1], 3)]);
    }
    report.target("disk and link at once: largest deviation [%]".to_owned(), Bound::AtMost(2.0), error.median());
    report.table(table);
    Ok(())
}

/// CPU time of one piece of each kind of work.
fn charge(report: &mut Report, pairs: usize, effort: Effort) -> Result<(), String> {
    let mut measured = vec![Samples::default(); charge::ALL.len()];
    for pair in 0..pairs {
        eprintln!("network: charge of each kind of work, round {} of {pairs}", pair + 1);
        for (work, nanos) in charge::ALL.iter().zip(&mut measured) {
            nanos.push(charge::measure(work, Duration::from_secs(effort.seconds as u64 / 2))?);
        }
    }
    let mut table = Table::new("CPU time of the daemon's thread", &["for each", "[ns]"]);
    for (work, nanos) in charge::ALL.iter().zip(&measured) {
        table.row(vec![Cell::text(work.name), Cell::spread(nanos, 0)]);
    }
    report.table(table);
    Ok(())
}

/// The three whose throughput is compared on a link without a rate.
const CARRIERS: [Mode; 3] = [Mode::Plain, Mode::Forwarder, Mode::Daemon];

/// TCP with segmentation offload on a link without a rate, next to the bridge and a plain forwarder.
fn throughput(report: &mut Report, pairs: usize, effort: Effort) -> Result<(), String> {
    let mut table = Table::new(
        "TCP on a link without a rate",
        &[
            "VMs",
            "bridge [Gbit/s]",
            "forwarder [Gbit/s]",
            "daemon [Gbit/s]",
            "daemon to bridge",
            "daemon to forwarder",
            "CPU of the forwarder [cores]",
            "of the daemon",
        ],
    );
    for vms in [1, 4] {
        let mut rates = CARRIERS.map(|_| Samples::default());
        let mut cpu = CARRIERS.map(|_| Samples::default());
        for pair in 0..pairs {
            eprintln!("network: TCP over {vms} TAPs, pair {} of {pairs}", pair + 1);
            for ((mode, rates), cpu) in CARRIERS.into_iter().zip(&mut rates).zip(&mut cpu) {
                let lab = Lab::start(mode, None, &vec![tcp(1); vms]).map_err(|error| error.to_string())?;
                thread::sleep(effort.warm);
                let (before, begin, used) = (lab.arrived_mbit(), Instant::now(), lab.cpu_seconds());
                thread::sleep(Duration::from_secs(effort.seconds as u64 / 2));
                let (after, time) = (lab.arrived_mbit(), begin.elapsed().as_secs_f64());
                let mbit: f64 = after.iter().zip(&before).map(|(after, before)| after - before).sum();
                rates.push(mbit / time / 1000.0);
                if let (Some(used), Some(now)) = (used, lab.cpu_seconds()) {
                    cpu.push((now - used) / time);
                }
            }
        }
        let [bridge, forwarder, daemon] = &rates;
        let [_, forwarder_cpu, daemon_cpu] = &cpu;
        table.row(vec![
            Cell::Number(vms as f64, 0),
            Cell::spread(bridge, 1),
            Cell::spread(forwarder, 1),
            Cell::spread(daemon, 1),
            Cell::spread(&daemon.ratio(bridge), 2),
            Cell::spread(&daemon.ratio(forwarder), 2),
            Cell::spread(forwarder_cpu, 2),
            Cell::spread(daemon_cpu, 2),
        ]);
        let to_forwarder = daemon.ratio(forwarder).median();
        report.target(format!("TCP over {vms} TAPs, to a plain forwarder"), Bound::AtLeast(0.9), to_forwarder);
        report.target(format!("TCP over {vms} TAPs [Gbit/s]"), Bound::AtLeast(10.0), daemon.median());
    }
    report.table(table);
    Ok(())
}
