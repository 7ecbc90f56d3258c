//! `cargo xtask bench vhost`: the cost of a request over vhost-user-blk, next to other back ends.
//!
//! Every back end is a separate process and serves the same volumes: one that completes immediately, then a file with
//! direct I/O. The project's own front end submits to all of them, alternating round by round: one request at a time,
//! then 32, then 32 on each of four queues, first driven by one thread and then by a thread for each queue. On two
//! CPUs the IOPS depend as much on the front end as on the back end, so the report also states the back end's CPU
//! time per request.
//!
//! Two more parts follow. A hundred VMs with a queue each on one device are compared with one VM with as many
//! requests in flight. And the daemon's wake-ups are counted while a connected VM is idle.

mod blkio;
mod idle;
pub(crate) mod load;
mod many;
mod peers;
mod without;

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use sluice_client::vhost::ClientError;

use super::contest::{self, BESIDE, Choice, Contestant, Kind as _, ServerSettings, Store};
use super::fio::Figures;
use super::report::{Bound, Report};
use super::server;
use blkio::BlkioLoad;
use load::{Load, Target};
use peers::Kind;
pub(super) use without::compare_without;

const BLOCK: u32 = 4096;

/// Number of queues, and of the requests that each keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    queues: u16,
    depth: u16,
    /// Whether each queue has its own thread of the front end, like the vCPUs of a guest. Otherwise one thread drives
    /// all.
    apart: bool,
}

impl Shape {
    const fn of(queues: u16, depth: u16, apart: bool) -> Shape {
        Shape { queues, depth, apart }
    }

    fn name(self) -> String {
        format!("{} x {}{}", self.queues, self.depth, if self.apart { ", a thread each" } else { "" })
    }
}

const SHAPES: [Shape; 4] = [
    Shape::of(1, 1, false),
    Shape::of(1, 32, false),
    Shape::of(peers::QUEUES, 32, false),
    Shape::of(peers::QUEUES, 32, true),
];

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    choice: Choice,
    /// Run only this part.
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Part>,
    /// Front end that submits the requests.
    #[arg(long, value_name = "CLIENT", value_enum, default_value_t = Client::Own)]
    client: Client,
    /// Let the front end poll for completions instead of sleeping. This shows the cost of the back end alone, if each
    /// of them has a CPU.
    #[arg(long)]
    poll: bool,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 21)]
    rounds: usize,
}

/// What submits the requests to null and file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    /// The project's own front end.
    Own,
    /// The independent crate `blkio`, which has a thread for each queue and no latencies here.
    Blkio,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A volume that completes immediately.
    Null,
    /// A file of 1 GiB, with direct I/O.
    File,
    /// A hundred VMs.
    Many,
    /// A connected VM without requests.
    Idle,
}

/// Duration of one measurement.
#[derive(Debug, Clone, Copy)]
struct Effort {
    warm: Duration,
    time: Duration,
    /// Duration for the hundred VMs, whose shares must settle.
    shares: Duration,
    /// Whether the front end polls instead of sleeping.
    poll: bool,
    client: Client,
}

impl Effort {
    fn new(quick: bool, poll: bool, client: Client) -> Effort {
        let millis = Duration::from_millis;
        match quick {
            true => Effort { warm: millis(20), time: millis(100), shares: millis(500), poll, client },
            // Short, so that the state of the machine hardly changes during a round.
            false => Effort { warm: millis(50), time: millis(250), shares: millis(2000), poll, client },
        }
    }
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    server::build_sluice()?;
    peers::build_plain()?;
    let effort = Effort::new(quick, options.poll, options.client);
    let scratch = server::scratch(options.choice.folder.as_deref())?;
    let file = scratch.path().join("disk.img");
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::File) || (wanted(Part::Many) && options.choice.has_shape("file")) {
        server::written_file(&file, if quick { 128 } else { 1024 })?;
    }
    let mut report = Report::new("vhost");
    for (part, store) in [(Part::Null, Store::Null), (Part::File, Store::File)] {
        if wanted(part) {
            compare(&mut report, store, &file, options, effort)?;
        }
    }
    if wanted(Part::Many) && options.choice.has("sluice") {
        many::run(&mut report, &file, options.rounds.div_ceil(4), effort, &options.choice)?;
    }
    if wanted(Part::Idle) && options.choice.has("sluice") {
        idle::run(&mut report, effort)?;
    }
    let seconds = effort.time.as_secs_f64();
    report.note(format!("4 KiB random reads, {} rounds of {seconds} s each, all back ends in turns", options.rounds));
    report.note("One thread of the front end drives all queues, unless the table says that each has its own");
    report.note("The plain device has no disk and no scheduler, and a thread for each queue; qsd has an iothread");
    Ok(report)
}

/// Compares all back ends with one kind of volume.
fn compare(report: &mut Report, store: Store, file: &Path, options: &Options, effort: Effort) -> Result<(), String> {
    let contestants = contest(report, store, file, (&options.choice, options.rounds), effort)?;
    add(report, store, &contestants);
    Ok(())
}

/// Measures the chosen back ends in turns.
fn contest(
    report: &mut Report,
    store: Store,
    file: &Path,
    (choice, rounds): (&Choice, usize),
    effort: Effort,
) -> Result<Vec<Contestant<Kind>>, String> {
    let sockets = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
    let setting = ServerSettings { store, file, sockets: sockets.path(), beside: &choice.beside };
    let kinds = kinds(store, choice);
    let mut contestants = Contestant::start_all(&kinds, SHAPES.len(), &setting, choice, report)?;
    for round in 0..rounds {
        eprintln!("vhost: {}, round {} of {rounds}", store.name(), round + 1);
        report.measure_baseline();
        for index in (0..SHAPES.len()).filter(|index| choice.has_shape(&SHAPES[*index].name())) {
            for contestant in &mut contestants {
                measure(contestant, index, file, effort)?;
            }
        }
    }
    Ok(contestants)
}

fn kinds(store: Store, choice: &Choice) -> Vec<Kind> {
    let mut kinds = vec![Kind::Sluice];
    kinds.extend((0..choice.beside.len().min(BESIDE.len())).map(Kind::Beside));
    kinds.extend([Kind::Noop, Kind::Qsd]);
    kinds.push(if store == Store::Null { Kind::Plain } else { Kind::Fio });
    kinds
}

/// Formats an error with its cause.
fn failed(who: &str, error: &ClientError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{who}: {error}{cause}")
}

fn measure(contestant: &mut Contestant<Kind>, index: usize, file: &Path, effort: Effort) -> Result<(), String> {
    let Shape { queues, depth, apart } = SHAPES[index];
    if contestant.kind == Kind::Fio {
        return contestant.measured[index].note_fio(file, queues.into(), depth.into(), effort.time);
    }
    if effort.client == Client::Blkio {
        return measure_by_blkio(contestant, index, effort);
    }
    let failed = |error: ClientError| failed(contestant.kind.name(), &error);
    let target = Target { socket: contestant.socket.clone(), queues, depth, block: BLOCK, poll: effort.poll };
    let mut loads = if apart { Load::start_apart(&target) } else { Load::start(&[target]).map(|load| vec![load]) }
        .map_err(failed)?;
    Load::run_apart(&mut loads, effort.warm).map_err(failed)?;
    let before = contestant.cpu_seconds();
    let outcome = Load::run_apart(&mut loads, effort.time).map_err(failed)?;
    let spent = contestant.cpu_seconds() - before;
    // The first load holds the connection, so it ends last.
    loads.into_iter().rev().try_for_each(Load::finish).map_err(failed)?;
    contestant.measured[index].note(&outcome, spent);
    Ok(())
}

fn measure_by_blkio(contestant: &mut Contestant<Kind>, index: usize, effort: Effort) -> Result<(), String> {
    let Shape { queues, depth, apart } = SHAPES[index];
    if queues > 1 && !apart {
        return Ok(());
    }
    let failed = |error: String| format!("{}: {error}", contestant.kind.name());
    let mut load = BlkioLoad::start(&contestant.socket, queues, depth, effort.poll).map_err(failed)?;
    load.run(effort.warm).map_err(failed)?;
    let before = contestant.cpu_seconds();
    let iops = load.run(effort.time).map_err(failed)?;
    let cpu_us = (contestant.cpu_seconds() - before) * 1e6 / (iops * effort.time.as_secs_f64());
    let figures = Figures { iops, p50_us: f64::NAN, p99_us: f64::NAN };
    contestant.measured[index].note_figures(figures, cpu_us);
    Ok(())
}

fn add(report: &mut Report, store: Store, contestants: &[Contestant<Kind>]) {
    let shapes: Vec<String> = SHAPES.iter().map(|shape| shape.name()).collect();
    if contestants.first().is_some_and(|first| first.kind == Kind::Sluice) {
        (0..SHAPES.len()).for_each(|index| targets(report, store, index, contestants));
    }
    report.table(contest::table(store, &shapes, contestants));
}

fn targets(report: &mut Report, store: Store, index: usize, contestants: &[Contestant<Kind>]) {
    let (shape, ours) = (SHAPES[index], &contestants[0].measured[index]);
    if ours.iops.is_empty() {
        return;
    }
    let shown = format!("{}, {}", store.name(), shape.name());
    let find = |kind| contestants.iter().find(|each| each.kind == kind).map(|each| &each.measured[index]);
    if let (Store::File, 2.., Some(qsd)) = (store, shape.queues, find(Kind::Qsd)) {
        let ratio = ours.p99_us.ratio(&qsd.p99_us).median();
        if ratio.is_finite() {
            report.target(format!("p99 ours / qsd, {shown}"), Bound::AtMost(1.0), ratio);
        }
    }
    let mut iops = |what: &str, kind, wanted| {
        if let Some(other) = find(kind) {
            let ratio = ours.iops.ratio(&other.iops).median();
            report.target(format!("IOPS ours / {what}, {shown}"), Bound::AtLeast(wanted), ratio);
        }
    };
    match (store, shape.queues, shape.depth) {
        (Store::Null, 1, 1) => iops("qsd", Kind::Qsd, 1.3),
        (Store::Null, 1, _) => iops("qsd", Kind::Qsd, 1.25),
        (Store::Null, ..) => iops("qsd", Kind::Qsd, 2.0),
        (Store::File, 1, 32) => iops("bare fio", Kind::Fio, 0.92),
        _ => {}
    }
    if store == Store::Null {
        iops("noop", Kind::Noop, 0.9);
    }
    if let (Store::File, 1, 1, Some(fio)) = (store, shape.queues, shape.depth, find(Kind::Fio)) {
        let above = ours.p50_us.median() - fio.p50_us.median();
        report.target(format!("p50 above bare fio [us], {shown}"), Bound::AtMost(10.0), above);
    }
}
