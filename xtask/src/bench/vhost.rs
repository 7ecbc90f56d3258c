//! `cargo xtask bench vhost`: what a request over vhost-user-blk costs, beside other back ends.
//!
//! Every back end is a process of its own and serves the same: a volume that completes at once, then a file read past the
//! page cache. Our own front end asks all of them in turns, round by round: first one request at a time, then 32, then 32
//! on each of four queues, which one thread of the front end drives, and then a thread each. Beside the IOPS, which on two processors are as much the front end's as the back end's,
//! stands the CPU time that the back end spent per request.
//!
//! Then many VMs: a hundred with a queue each on one device, beside one VM with as many requests in flight. And silence:
//! how often the daemon wakes up while a connected VM asks for nothing.

mod idle;
mod load;
mod many;
mod peers;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_io::vhost::client::ClientError;

use super::nbd;
use super::report::{Bound, Cell, Report, Table};
use super::server::{self, Server};
use super::stats::Samples;
use load::{Load, Target};
use peers::Kind;

const BLOCK: u32 = 4096;

/// Queues, and the requests that each keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    queues: u16,
    depth: u16,
    /// A thread of the front end for each queue, as a guest's processors do; else one thread for all.
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

/// What of it to run.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Where the scratch file is made; a disk that can do direct I/O. Default: the build's folder.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Only this part.
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Part>,
    /// Without our server: what the others do.
    #[arg(long, conflicts_with = "own_only")]
    peers_only: bool,
    /// Only our server, for a profiler.
    #[arg(long)]
    own_only: bool,
    /// The front end polls for answers instead of sleeping: what the back end alone takes, where there is a processor for
    /// each of them.
    #[arg(long)]
    poll: bool,
    /// Rounds to measure.
    #[arg(long, value_name = "N", default_value_t = 21)]
    rounds: usize,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A volume that completes at once.
    Null,
    /// A file of 1 GiB, past the page cache.
    File,
    /// A hundred VMs.
    Many,
    /// No request at all.
    Idle,
}

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    /// Completes at once and keeps nothing.
    Null,
    /// A file.
    File,
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Null => "null",
            Store::File => "file",
        }
    }
}

/// What was measured of one back end under one shape, round by round.
#[derive(Default)]
struct Measured {
    iops: Samples,
    cpu_us: Samples,
    p50_us: Samples,
    p99_us: Samples,
}

/// One back end with what it is called.
struct Contestant {
    kind: Kind,
    socket: PathBuf,
    server: Option<Server>,
    measured: [Measured; SHAPES.len()],
}

/// How long one measurement takes.
#[derive(Debug, Clone, Copy)]
struct Effort {
    warm: Duration,
    time: Duration,
    /// Of the hundred VMs, whose shares must settle.
    shares: Duration,
    /// The front end never sleeps.
    poll: bool,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    server::build_sluice()?;
    peers::build_plain()?;
    let millis = Duration::from_millis;
    let effort = match quick {
        true => Effort { warm: millis(20), time: millis(100), shares: millis(500), poll: options.poll },
        // Short, so that all take their turn before the machine is another one.
        false => Effort { warm: millis(50), time: millis(250), shares: millis(2000), poll: options.poll },
    };
    let scratch = server::scratch(options.folder.as_deref())?;
    let file = scratch.path().join("disk.img");
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::File) || wanted(Part::Many) {
        server::written_file(&file, if quick { 128 } else { 1024 })?;
    }
    let mut report = Report::new("vhost");
    for (part, store) in [(Part::Null, Store::Null), (Part::File, Store::File)] {
        if wanted(part) {
            compare(&mut report, store, &file, options, effort)?;
        }
    }
    if wanted(Part::Many) && !options.peers_only {
        many::run(&mut report, &file, options.rounds.div_ceil(4), effort)?;
    }
    if wanted(Part::Idle) && !options.peers_only {
        idle::run(&mut report, effort)?;
    }
    let seconds = effort.time.as_secs_f64();
    report.note(format!("4 KiB random reads, {} rounds of {seconds} s each, all back ends in turns", options.rounds));
    report.note("One thread of the front end drives all queues, unless the table says that each has its own");
    report.note("The plain device has no disk and no scheduler, and a thread for each queue; qsd has an iothread");
    Ok(report)
}

/// One kind of volume, everybody.
fn compare(report: &mut Report, store: Store, file: &Path, options: &Options, effort: Effort) -> Result<(), String> {
    let sockets = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
    let mut contestants = contestants(store, file, sockets.path(), options, report)?;
    for round in 0..options.rounds {
        eprintln!("vhost: {}, round {} of {}", store.name(), round + 1, options.rounds);
        for index in 0..SHAPES.len() {
            for contestant in &mut contestants {
                contestant.measure(index, file, effort)?;
            }
        }
    }
    add(report, store, &contestants);
    Ok(())
}

fn contestants(
    store: Store,
    file: &Path,
    sockets: &Path,
    options: &Options,
    report: &mut Report,
) -> Result<Vec<Contestant>, String> {
    let mut kinds = Vec::new();
    if !options.peers_only {
        kinds.extend([Kind::Sluice, Kind::Noop]);
    }
    if !options.own_only {
        kinds.extend([Kind::Qsd, if store == Store::Null { Kind::Plain } else { Kind::Fio }]);
    }
    let mut contestants = Vec::new();
    for kind in kinds {
        if let Some(missing) = kind.program().filter(|program| !server::has(program)) {
            report.note(format!("{missing} is not installed: left out"));
            continue;
        }
        let server = kind.start(store, file, sockets)?;
        let socket = server.as_ref().and_then(|server| server.sockets.first().cloned()).unwrap_or_default();
        contestants.push(Contestant { kind, socket, server, measured: Default::default() });
    }
    Ok(contestants)
}

/// What went wrong, with its cause.
fn failed(who: &str, error: &ClientError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{who}: {error}{cause}")
}

impl Contestant {
    fn measure(&mut self, index: usize, file: &Path, effort: Effort) -> Result<(), String> {
        let (shape, measured) = (SHAPES[index], &mut self.measured[index]);
        if self.kind == Kind::Fio {
            let jobs = nbd::Shape { connections: shape.queues.into(), depth: shape.depth.into() };
            let (iops, p50_us, p99_us) = nbd::peers::fio(file, jobs, effort.time)?;
            measured.iops.push(iops);
            measured.cpu_us.push(f64::NAN);
            measured.p50_us.push(p50_us);
            measured.p99_us.push(p99_us);
            return Ok(());
        }
        let failed = |error: ClientError| failed(self.kind.name(), &error);
        let Shape { queues, depth, apart } = shape;
        let target = Target { socket: self.socket.clone(), queues, depth, block: BLOCK, poll: effort.poll };
        let mut loads = if apart { Load::start_apart(&target) } else { Load::start(&[target]).map(|load| vec![load]) }
            .map_err(failed)?;
        Load::run_apart(&mut loads, effort.warm).map_err(failed)?;
        let cpu = || self.server.as_ref().map_or(f64::NAN, Server::cpu_seconds);
        let before = cpu();
        let outcome = Load::run_apart(&mut loads, effort.time).map_err(failed)?;
        measured.cpu_us.push((cpu() - before) * 1e6 / outcome.requests as f64);
        measured.iops.push(outcome.iops());
        measured.p50_us.push(outcome.percentile_us(50.0));
        measured.p99_us.push(outcome.percentile_us(99.0));
        // The first of them holds the connection.
        loads.into_iter().rev().try_for_each(Load::finish).map_err(failed)
    }
}

fn add(report: &mut Report, store: Store, contestants: &[Contestant]) {
    let Some(first) = contestants.first() else { return };
    let mut table = Table::new(
        format!("4 KiB random reads, {}", store.name()),
        &[
            "queues x depth",
            "back end",
            "IOPS",
            "CPU per request [us]",
            "p50 [us]",
            "p99 [us]",
            "IOPS: the first to it",
            "CPU: it to the first",
        ],
    );
    for (index, shape) in SHAPES.iter().enumerate() {
        for contestant in contestants {
            let (own, measured) = (&first.measured[index], &contestant.measured[index]);
            table.row(vec![
                Cell::text(shape.name()),
                Cell::text(contestant.kind.name()),
                Cell::spread(&measured.iops, 0),
                Cell::Number(measured.cpu_us.median(), 2),
                Cell::Number(measured.p50_us.median(), 1),
                Cell::Number(measured.p99_us.median(), 1),
                Cell::spread(&own.iops.ratio(&measured.iops), 2),
                Cell::Number(measured.cpu_us.ratio(&own.cpu_us).median(), 2),
            ]);
        }
        if first.kind == Kind::Sluice {
            targets(report, store, index, contestants);
        }
    }
    report.table(table);
}

fn targets(report: &mut Report, store: Store, index: usize, contestants: &[Contestant]) {
    let (shape, ours) = (SHAPES[index], &contestants[0].measured[index]);
    let shown = format!("{}, {}", store.name(), shape.name());
    let find = |kind| contestants.iter().find(|each| each.kind == kind).map(|each| &each.measured[index]);
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
