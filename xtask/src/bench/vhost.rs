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
use std::path::Path;
use std::time::Duration;

use sluice_client::vhost::ClientError;

use super::contest::{self, BESIDE, Choice, Contestant, Kind as _, Setting, Store};
use super::report::{Bound, Report};
use super::server;
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
    #[command(flatten)]
    choice: Choice,
    /// Only this part.
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Part>,
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
    let scratch = server::scratch(options.choice.folder.as_deref())?;
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
    if wanted(Part::Many) && options.choice.has("sluice") {
        many::run(&mut report, &file, options.rounds.div_ceil(4), effort)?;
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

/// One kind of volume, everybody.
fn compare(report: &mut Report, store: Store, file: &Path, options: &Options, effort: Effort) -> Result<(), String> {
    let sockets = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
    let setting = Setting { store, file, sockets: sockets.path(), beside: &options.choice.beside };
    let kinds = kinds(store, &options.choice);
    let mut contestants = Contestant::start_all(&kinds, SHAPES.len(), &setting, &options.choice, report)?;
    for round in 0..options.rounds {
        eprintln!("vhost: {}, round {} of {}", store.name(), round + 1, options.rounds);
        for index in (0..SHAPES.len()).filter(|index| options.choice.has_shape(&SHAPES[*index].name())) {
            for contestant in &mut contestants {
                measure(contestant, index, file, effort)?;
            }
        }
    }
    add(report, store, &contestants);
    Ok(())
}

fn kinds(store: Store, choice: &Choice) -> Vec<Kind> {
    let mut kinds = vec![Kind::Sluice];
    kinds.extend((0..choice.beside.len().min(BESIDE.len())).map(Kind::Beside));
    kinds.extend([Kind::Noop, Kind::Qsd]);
    kinds.push(if store == Store::Null { Kind::Plain } else { Kind::Fio });
    kinds
}

/// What went wrong, with its cause.
fn failed(who: &str, error: &ClientError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{who}: {error}{cause}")
}

fn measure(contestant: &mut Contestant<Kind>, index: usize, file: &Path, effort: Effort) -> Result<(), String> {
    let Shape { queues, depth, apart } = SHAPES[index];
    if contestant.kind == Kind::Fio {
        return contestant.measured[index].note_fio(file, queues.into(), depth.into(), effort.time);
    }
    let failed = |error: ClientError| failed(contestant.kind.name(), &error);
    let target = Target { socket: contestant.socket.clone(), queues, depth, block: BLOCK, poll: effort.poll };
    let mut loads = if apart { Load::start_apart(&target) } else { Load::start(&[target]).map(|load| vec![load]) }
        .map_err(failed)?;
    Load::run_apart(&mut loads, effort.warm).map_err(failed)?;
    let before = contestant.cpu_seconds();
    let outcome = Load::run_apart(&mut loads, effort.time).map_err(failed)?;
    let spent = contestant.cpu_seconds() - before;
    // The first of them holds the connection.
    loads.into_iter().rev().try_for_each(Load::finish).map_err(failed)?;
    contestant.measured[index].note(&outcome, spent);
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
