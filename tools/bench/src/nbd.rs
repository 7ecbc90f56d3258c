//! `cargo xtask bench nbd`: the cost of a request over NBD, next to other servers.
//!
//! Every server is a separate process and serves the same volumes: one that completes immediately, then a file with
//! direct I/O. The same client submits to all of them, alternating round by round. On two CPUs the IOPS depend as
//! much on the client as on the server, so the report also states the server's CPU time per request. The client's
//! ceiling is its throughput on a server without a device. On null some servers answer a read by a hole, without data, and others send
//! zeroes, which costs the client and the server a copy: the ceiling and qemu-storage-daemon are measured both ways.

mod peers;

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use sluice_client::canned::{CannedServer, Reads};
use sluice_client::nbd::ClientError;
use sluice_io::nbd::export::Export;

use super::contest::{self, BESIDE, Choice, Contestant, Kind as _, Measured, ServerSettings, Store};
use super::fio;
use super::load::{Load, Outcome, Target};
use super::report::{Bound, Report};
use super::server;
use super::stats::Samples;
use peers::Kind;

/// Number of connections, and of the requests that each keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    connections: u32,
    depth: u32,
}

impl Shape {
    fn name(self) -> String {
        format!("{} x {}", self.connections, self.depth)
    }
}

const SHAPES: [Shape; 3] =
    [Shape { connections: 1, depth: 1 }, Shape { connections: 1, depth: 32 }, Shape { connections: 4, depth: 32 }];

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    choice: Choice,
    /// Run only this kind of volume.
    #[arg(long, value_name = "KIND", value_enum)]
    only: Option<Store>,
    /// Client that submits the requests.
    #[arg(long, value_name = "CLIENT", value_enum, default_value_t = Client::Own)]
    client: Client,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

/// What submits the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    /// The project's own, in one thread, which sends the requests of all replies that it has read by one system call.
    Own,
    /// fio's NBD engine (libnbd), a thread for each connection, which sends each request by a system call of its own.
    Fio,
}

/// Duration of one measurement, and its client.
#[derive(Debug, Clone, Copy)]
struct Effort {
    warm: Duration,
    time: Duration,
    client: Client,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    server::build_sluice()?;
    let (warm, time) = match quick {
        true => (Duration::from_millis(20), Duration::from_millis(100)),
        false => (Duration::from_millis(200), Duration::from_secs(1)),
    };
    let effort = Effort { warm, time, client: options.client };
    let scratch = server::scratch(options.choice.folder.as_deref())?;
    let file = scratch.path().join("disk.img");
    if options.only != Some(Store::Null) {
        server::written_file(&file, if quick { 64 } else { 1024 })?;
    }
    let mut report = Report::new("nbd");
    for store in options.only.map_or(vec![Store::Null, Store::File], |only| vec![only]) {
        let sockets = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
        let canned = |kind: Kind, reads| {
            options.choice.start_server(|| {
                let export = Export::with_all_features("disk", 1 << 30);
                CannedServer::bind_unix(sockets.path().join(kind.socket()), export, reads)
                    .map_err(|error| format!("Cannot listen: {error}"))
            })
        };
        let ceilings = [canned(Kind::Canned, Reads::Data)?, canned(Kind::CannedHoles, Reads::Holes)?];
        let setting = ServerSettings { store, file: &file, sockets: sockets.path(), beside: &options.choice.beside };
        let kinds = kinds(store, &options.choice);
        let mut contestants = Contestant::start_all(&kinds, SHAPES.len(), &setting, &options.choice, &mut report)?;
        for round in 0..options.rounds {
            eprintln!("nbd: {}, round {} of {}", store.name(), round + 1, options.rounds);
            report.measure_baseline();
            for (index, shape) in SHAPES.iter().enumerate().filter(|(_, shape)| options.choice.has_shape(&shape.name()))
            {
                for contestant in &mut contestants {
                    measure(contestant, index, *shape, &file, effort)?;
                }
            }
        }
        drop(ceilings);
        add(&mut report, store, &contestants, options.client);
    }
    let seconds = effort.time.as_secs_f64();
    report.note(format!("4 KiB random reads, {} rounds of {seconds} s each, all servers in turns", options.rounds));
    report.note(
        "canned is the client's ceiling: the same client against a server without a device, which sends data, or holes",
    );
    report.note(
        "on null, sluice and qsd answer reads by holes, without data; qsd data, nbdkit and canned send 4 KiB for each",
    );
    report.note("nbdkit reads a file through the page cache: its IOPS there are no disk's");
    Ok(report)
}

fn kinds(store: Store, choice: &Choice) -> Vec<Kind> {
    let mut kinds = vec![Kind::Sluice];
    kinds.extend((0..choice.beside.len().min(BESIDE.len())).map(Kind::Beside));
    match store {
        Store::Null => kinds.extend([Kind::Qsd, Kind::QsdData, Kind::Nbdkit, Kind::Canned, Kind::CannedHoles]),
        Store::File => kinds.extend([Kind::Qsd, Kind::Nbdkit, Kind::Fio]),
    }
    kinds
}

fn measure(
    contestant: &mut Contestant<Kind>,
    index: usize,
    shape: Shape,
    file: &Path,
    effort: Effort,
) -> Result<(), String> {
    if contestant.kind == Kind::Fio {
        return contestant.measured[index].note_fio(file, shape.connections, shape.depth, effort.time);
    }
    if effort.client == Client::Fio {
        return measure_by_fio(contestant, index, shape, effort);
    }
    let failed = |error: ClientError| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}: {error}{cause}", contestant.kind.name())
    };
    let export = contestant.kind.export();
    let target = Target { socket: contestant.socket.clone(), export, depth: shape.depth, block: 4096 };
    let mut load = Load::start(&vec![target; shape.connections as usize]).map_err(failed)?;
    load.run(effort.warm).map_err(failed)?;
    let before = contestant.cpu_seconds();
    let outcomes = load.run(effort.time).map_err(failed)?;
    let spent = contestant.cpu_seconds() - before;
    load.finish().map_err(failed)?;
    // All connections submit the same load, so the latencies of one represent all.
    let requests = outcomes.iter().map(|outcome| outcome.requests).sum();
    let outcome = Outcome { requests, ..outcomes.into_iter().next().expect("there is a connection") };
    contestant.measured[index].note(&outcome, spent);
    Ok(())
}

/// Measures by fio's NBD engine. Its handshakes are part of the server's CPU time.
fn measure_by_fio(contestant: &mut Contestant<Kind>, index: usize, shape: Shape, effort: Effort) -> Result<(), String> {
    let export = contestant.kind.export();
    let from = fio::From::Nbd { socket: &contestant.socket, export: &export };
    let before = contestant.cpu_seconds();
    let figures = fio::run(&from, shape.connections, shape.depth, effort.time)
        .map_err(|error| format!("{}: {error}", contestant.kind.name()))?;
    let requests = figures.iops * effort.time.as_secs_f64();
    let cpu_us = (contestant.cpu_seconds() - before) * 1e6 / requests;
    contestant.measured[index].note_figures(figures, cpu_us);
    Ok(())
}

fn add(report: &mut Report, store: Store, contestants: &[Contestant<Kind>], client: Client) {
    let shapes: Vec<String> = SHAPES.iter().map(|shape| shape.name()).collect();
    for (index, shape) in SHAPES.iter().enumerate() {
        match client {
            Client::Own => targets(report, store, *shape, index, contestants),
            Client::Fio => targets_by_fio(report, store, *shape, index, contestants),
        }
    }
    report.table(contest::table(store, &shapes, contestants));
}

fn targets(report: &mut Report, store: Store, shape: Shape, index: usize, contestants: &[Contestant<Kind>]) {
    if shape.depth == 1 || store == Store::File && shape.connections > 1 {
        return;
    }
    let Some(first) = contestants.first().filter(|first| first.kind == Kind::Sluice) else { return };
    let ours = &first.measured[index];
    if ours.iops.is_empty() {
        return;
    }
    let shown = format!("{}, {}", store.name(), shape.name());
    let mut want = |what: &str, kind: Kind, wanted: f64, ratio: fn(&Measured, &Measured) -> Samples| {
        if let Some(other) = contestants.iter().find(|contestant| contestant.kind == kind) {
            let measured = ratio(ours, &other.measured[index]).median();
            report.target(format!("{what}, {shown}"), Bound::AtLeast(wanted), measured);
        }
    };
    let iops: fn(&Measured, &Measured) -> Samples = |ours, other| ours.iops.ratio(&other.iops);
    let cpu: fn(&Measured, &Measured) -> Samples = |ours, other| other.cpu_us.ratio(&ours.cpu_us);
    if store == Store::File {
        want("IOPS ours / qsd", Kind::Qsd, 1.5, iops);
        want("IOPS ours / bare fio", Kind::Fio, 0.8, iops);
        return;
    }
    want("CPU qsd / ours", Kind::Qsd, 1.3, cpu);
    want("CPU nbdkit / ours", Kind::Nbdkit, 2.0, cpu);
    want("IOPS ours / qsd", Kind::Qsd, 1.2, iops);
    want("IOPS ours / nbdkit", Kind::Nbdkit, 1.2, iops);
}

/// Adds the targets for a client that does not batch.
fn targets_by_fio(report: &mut Report, store: Store, shape: Shape, index: usize, contestants: &[Contestant<Kind>]) {
    let of = |kind| contestants.iter().find(|each| each.kind == kind).map(|each| &each.measured[index].iops);
    if let (Some(own), Some(qsd), Store::Null) = (of(Kind::Sluice), of(Kind::Qsd), store)
        && !own.is_empty()
    {
        let what = format!("IOPS ours / qsd, fio's nbd engine, {}, {}", store.name(), shape.name());
        report.target(what, Bound::AtLeast(1.2), own.ratio(qsd).median());
    }
}
