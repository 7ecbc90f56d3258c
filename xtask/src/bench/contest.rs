//! A contest: servers that serve the same are asked the same, in turns, round by round.
//!
//! What a frontend's benchmark knows itself is who takes part ([`Kind`]), in which shapes, and how to ask. Beside the IOPS,
//! which on two processors are as much the client's as the server's, stands the CPU time that the server spent per request.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fio;
use super::load::Outcome;
use super::report::{Cell, Report, Table};
use super::server::{self, Server};
use super::stats::Samples;

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Store {
    /// Completes at once and keeps nothing.
    Null,
    /// A file of 1 GiB, past the page cache.
    File,
}

impl Store {
    pub(super) fn name(self) -> &'static str {
        match self {
            Store::Null => "null",
            Store::File => "file",
        }
    }
}

/// What every server of a contest is told.
pub(super) struct Setting<'a> {
    pub(super) store: Store,
    pub(super) file: &'a Path,
    /// The folder of their sockets.
    pub(super) sockets: &'a Path,
    /// Other builds of our daemon.
    pub(super) beside: &'a [PathBuf],
}

/// Who takes part.
pub(super) trait Kind: Copy + PartialEq {
    fn name(self) -> &'static str;

    /// What must be installed.
    fn program(self) -> Option<&'static str>;

    /// Starts it, if it is a process; it listens at `socket`.
    fn start(self, setting: &Setting<'_>, socket: PathBuf) -> Result<Option<Server>, String>;
}

/// Which part of a contest is run.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// Where the scratch file is made; a disk that can do direct I/O. Default: the build's folder.
    #[arg(long, value_name = "DIR")]
    pub(super) folder: Option<PathBuf>,
    /// Only these, as the table calls them; ratios are to the first.
    #[arg(long, value_name = "SERVER,...", value_delimiter = ',')]
    who: Vec<String>,
    /// Only these, as the table calls them, such as `1 x 32`.
    #[arg(long, value_name = "SHAPE;...", value_delimiter = ';')]
    shapes: Vec<String>,
    /// Other builds of `sluice`, or scripts that start them, which take part as `beside`, `beside 2` and so on; at most 4.
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',')]
    pub(super) beside: Vec<PathBuf>,
}

impl Choice {
    /// Whether this one takes part.
    pub(super) fn has(&self, who: &str) -> bool {
        self.who.is_empty() || self.who.iter().any(|wanted| wanted == who)
    }

    /// Whether this shape is asked for.
    pub(super) fn has_shape(&self, shape: &str) -> bool {
        self.shapes.is_empty() || self.shapes.iter().any(|wanted| wanted == shape)
    }
}

/// How other builds of our daemon are called.
pub(super) const BESIDE: [&str; 4] = ["beside", "beside 2", "beside 3", "beside 4"];

/// What was measured of one server under one shape, round by round.
#[derive(Default, Clone)]
pub(super) struct Measured {
    pub(super) iops: Samples,
    pub(super) cpu_us: Samples,
    pub(super) p50_us: Samples,
    pub(super) p99_us: Samples,
}

impl Measured {
    /// One round, in which the server spent so many seconds of CPU time.
    pub(super) fn note(&mut self, outcome: &Outcome, cpu_seconds: f64) {
        self.cpu_us.push(cpu_seconds * 1e6 / outcome.requests as f64);
        self.iops.push(outcome.iops());
        self.p50_us.push(outcome.percentile_us(50.0));
        self.p99_us.push(outcome.percentile_us(99.0));
    }

    /// One round of fio on the file itself.
    pub(super) fn note_fio(&mut self, file: &Path, jobs: u32, depth: u32, time: Duration) -> Result<(), String> {
        let (iops, p50_us, p99_us) = fio::run(file, size_of(file), jobs, depth, time)?;
        self.iops.push(iops);
        self.cpu_us.push(f64::NAN);
        self.p50_us.push(p50_us);
        self.p99_us.push(p99_us);
        Ok(())
    }
}

/// One server.
pub(super) struct Contestant<K> {
    pub(super) kind: K,
    pub(super) socket: PathBuf,
    server: Option<Server>,
    /// By shape.
    pub(super) measured: Vec<Measured>,
}

impl<K: Kind> Contestant<K> {
    /// Starts those of `kinds` that are chosen and installed.
    pub(super) fn start_all(
        kinds: &[K],
        shapes: usize,
        setting: &Setting<'_>,
        choice: &Choice,
        report: &mut Report,
    ) -> Result<Vec<Contestant<K>>, String> {
        let mut contestants = Vec::new();
        for kind in kinds.iter().copied().filter(|kind| choice.has(kind.name())) {
            if let Some(missing) = kind.program().filter(|program| !server::has(program)) {
                report.note(format!("{missing} is not installed: left out"));
                continue;
            }
            let socket = setting.sockets.join(kind.name().replace([' ', ','], "-"));
            let server = kind.start(setting, socket.clone())?;
            contestants.push(Contestant { kind, socket, server, measured: vec![Measured::default(); shapes] });
        }
        Ok(contestants)
    }

    /// CPU time that the server has used, in seconds; not a number if it is no process.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.server.as_ref().map_or(f64::NAN, Server::cpu_seconds)
    }
}

/// The table of a contest, with a row for each shape and server; those of shapes that were not run are left out.
pub(super) fn table<K: Kind>(store: Store, shapes: &[String], contestants: &[Contestant<K>]) -> Table {
    let mut table = Table::new(
        format!("4 KiB random reads, {}", store.name()),
        &[
            "streams x depth",
            "server",
            "IOPS",
            "CPU per request [us]",
            "p50 [us]",
            "p99 [us]",
            "IOPS: the first to it",
            "CPU: it to the first",
        ],
    );
    let Some(first) = contestants.first() else { return table };
    for (index, shape) in shapes.iter().enumerate() {
        for contestant in contestants {
            let (own, measured) = (&first.measured[index], &contestant.measured[index]);
            if measured.iops.is_empty() {
                continue;
            }
            table.row(vec![
                Cell::text(shape),
                Cell::text(contestant.kind.name()),
                Cell::spread(&measured.iops, 0),
                Cell::Number(measured.cpu_us.median(), 2),
                Cell::Number(measured.p50_us.median(), 1),
                Cell::Number(measured.p99_us.median(), 1),
                Cell::spread(&own.iops.ratio(&measured.iops), 2),
                Cell::Number(measured.cpu_us.ratio(&own.cpu_us).median(), 2),
            ]);
        }
    }
    table
}

/// The size of a file, in bytes.
fn size_of(file: &Path) -> u64 {
    fs::metadata(file).map_or(1 << 30, |metadata| metadata.len())
}
