//! `cargo xtask bench nbd`: what a request over NBD costs, beside other servers.
//!
//! Every server is a process of its own and serves the same: a volume that completes at once, then a file read past the
//! page cache. The same client asks all of them in turns, round by round. Beside the IOPS, which on two processors are
//! as much the client's as the server's, stands the CPU time that the server spent per request. The client's own ceiling
//! is what it reaches against a server that answers without a device.

pub(super) mod peers;

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_io::nbd::canned::CannedServer;
use sluice_io::nbd::client::ClientError;
use sluice_io::nbd::export::Export;

use super::load::{Load, Target};
use super::report::{Bound, Cell, Report, Table};
use super::server::{self, Server};
use super::stats::Samples;
use peers::Kind;

/// Connections, and the requests that each keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) connections: u32,
    pub(super) depth: u32,
}

const SHAPES: [Shape; 3] =
    [Shape { connections: 1, depth: 1 }, Shape { connections: 1, depth: 32 }, Shape { connections: 4, depth: 32 }];

/// What of it to run.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Where the scratch file is made; a disk that can do direct I/O. Default: the build's folder.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Only this kind of volume.
    #[arg(long, value_name = "KIND", value_enum)]
    only: Option<Store>,
    /// Only our server, for a profiler.
    #[arg(long)]
    own_only: bool,
    /// Rounds to measure.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Store {
    /// Completes at once and keeps nothing.
    Null,
    /// A file of 1 GiB, past the page cache.
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

/// What was measured of one server under one shape, round by round.
#[derive(Default)]
struct Measured {
    iops: Samples,
    cpu_us: Samples,
    p50_us: Samples,
    p99_us: Samples,
}

/// One server with what it is called.
struct Contestant {
    kind: Kind,
    server: Option<Server>,
    measured: [Measured; SHAPES.len()],
}

/// How long one measurement takes.
#[derive(Debug, Clone, Copy)]
struct Effort {
    warm: Duration,
    time: Duration,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    server::build_sluice()?;
    let effort = match quick {
        true => Effort { warm: Duration::from_millis(20), time: Duration::from_millis(100) },
        false => Effort { warm: Duration::from_millis(200), time: Duration::from_secs(1) },
    };
    let scratch = server::scratch(options.folder.as_deref())?;
    let file = scratch.path().join("disk.img");
    if options.only != Some(Store::Null) {
        server::written_file(&file, if quick { 64 } else { 1024 })?;
    }
    let mut report = Report::new("nbd");
    for store in options.only.map_or(vec![Store::Null, Store::File], |only| vec![only]) {
        let sockets = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
        let canned = CannedServer::bind_unix(sockets.path().join("canned"), export("disk"));
        let canned = canned.map_err(|error| format!("Cannot listen: {error}"))?;
        let mut contestants = contestants(store, &file, sockets.path(), options, &mut report)?;
        for round in 0..options.rounds {
            eprintln!("nbd: {}, round {} of {}", store.name(), round + 1, options.rounds);
            for (index, shape) in SHAPES.iter().enumerate() {
                for contestant in &mut contestants {
                    contestant.measure(index, *shape, sockets.path(), &file, effort)?;
                }
            }
        }
        drop(canned);
        add(&mut report, store, &contestants);
    }
    let seconds = effort.time.as_secs_f64();
    report.note(format!("4 KiB random reads, {} rounds of {seconds} s each, all servers in turns", options.rounds));
    report.note("canned is the client's ceiling: the same client against a server without a device");
    report.note("nbdkit reads a file through the page cache: its IOPS there are no disk's");
    Ok(report)
}

fn contestants(
    store: Store,
    file: &Path,
    sockets: &Path,
    options: &Options,
    report: &mut Report,
) -> Result<Vec<Contestant>, String> {
    let mut kinds = vec![Kind::Sluice];
    if !options.own_only {
        kinds.extend([Kind::Qsd, Kind::Nbdkit]);
        kinds.push(if store == Store::Null { Kind::Canned } else { Kind::Fio });
    }
    let mut contestants = Vec::new();
    for kind in kinds {
        if let Some(missing) = kind.program().filter(|program| !server::has(program)) {
            report.note(format!("{missing} is not installed: left out"));
            continue;
        }
        let server = kind.start(store == Store::Null, file, sockets)?;
        contestants.push(Contestant { kind, server, measured: Default::default() });
    }
    Ok(contestants)
}

/// What the servers offer.
pub(super) fn export(name: &str) -> Export {
    Export {
        name: name.to_owned(),
        description: String::new(),
        size_bytes: 1 << 30,
        read_only: false,
        flush: true,
        fua: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        multi_conn: true,
        rotational: false,
        block_minimum: 512,
        block_preferred: 4096,
        block_maximum: 1 << 20,
    }
}

impl Contestant {
    fn measure(
        &mut self,
        index: usize,
        shape: Shape,
        sockets: &Path,
        file: &Path,
        effort: Effort,
    ) -> Result<(), String> {
        let measured = &mut self.measured[index];
        if self.kind == Kind::Fio {
            let (iops, p50_us, p99_us) = peers::fio(file, shape, effort.time)?;
            measured.iops.push(iops);
            measured.cpu_us.push(f64::NAN);
            measured.p50_us.push(p50_us);
            measured.p99_us.push(p99_us);
            return Ok(());
        }
        let failed = |error: ClientError| {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{}: {error}{cause}", self.kind.name())
        };
        let target = Target {
            socket: sockets.join(self.kind.name()),
            export: self.kind.export().to_owned(),
            depth: shape.depth,
            block: 4096,
        };
        let mut load = Load::start(&vec![target; shape.connections as usize]).map_err(failed)?;
        load.run(effort.warm).map_err(failed)?;
        let cpu = || self.server.as_ref().map_or(f64::NAN, Server::cpu_seconds);
        let before = cpu();
        let outcomes = load.run(effort.time).map_err(failed)?;
        let requests: u64 = outcomes.iter().map(|outcome| outcome.requests).sum();
        measured.cpu_us.push((cpu() - before) * 1e6 / requests as f64);
        measured.iops.push(requests as f64 / outcomes[0].seconds);
        // All connections ask for the same: the latencies of one stand for all.
        measured.p50_us.push(outcomes[0].percentile_us(50.0));
        measured.p99_us.push(outcomes[0].percentile_us(99.0));
        load.finish().map_err(failed)
    }
}

fn add(report: &mut Report, store: Store, contestants: &[Contestant]) {
    let mut table = Table::new(
        format!("4 KiB random reads, {}", store.name()),
        &[
            "connections x depth",
            "server",
            "IOPS",
            "CPU per request [us]",
            "p50 [us]",
            "p99 [us]",
            "IOPS: ours to it",
            "CPU: it to ours",
        ],
    );
    let own = &contestants[0];
    for (index, shape) in SHAPES.iter().enumerate() {
        let ours = &own.measured[index];
        for contestant in contestants {
            let measured = &contestant.measured[index];
            table.row(vec![
                Cell::text(format!("{} x {}", shape.connections, shape.depth)),
                Cell::text(contestant.kind.name()),
                Cell::spread(&measured.iops, 0),
                Cell::Number(measured.cpu_us.median(), 2),
                Cell::Number(measured.p50_us.median(), 0),
                Cell::Number(measured.p99_us.median(), 0),
                Cell::spread(&ours.iops.ratio(&measured.iops), 2),
                Cell::Number(measured.cpu_us.ratio(&ours.cpu_us).median(), 2),
            ]);
        }
        targets(report, store, *shape, index, contestants);
    }
    report.table(table);
}

fn targets(report: &mut Report, store: Store, shape: Shape, index: usize, contestants: &[Contestant]) {
    if shape.depth == 1 || store == Store::File && shape.connections > 1 {
        return;
    }
    let ours = &contestants[0].measured[index];
    let shown = format!("{}, {} x {}", store.name(), shape.connections, shape.depth);
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

/// The size of a file, in bytes.
fn size_of(file: &Path) -> u64 {
    fs::metadata(file).map_or(1 << 30, |metadata| metadata.len())
}
