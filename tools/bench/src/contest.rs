//! Comparison of servers: all serve the same data to the same client, and alternate round by round.
//!
//! The benchmark of a frontend provides the contestants ([`Kind`]), the shapes and the load. On two CPUs the IOPS
//! depend as much on the client as on the server, so the tables also state the server's CPU time per request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fio::{self, Figures};
use super::load::Outcome;
use super::pin::{Side, pin};
use super::report::{Cell, Report, Table};
use super::server::{self, Server};
use super::stats::Samples;

/// The volume that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Store {
    /// Completes immediately and stores nothing.
    Null,
    /// A file of 1 GiB, with direct I/O.
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

/// Settings of every server in a comparison.
pub(super) struct ServerSettings<'a> {
    pub(super) store: Store,
    pub(super) file: &'a Path,
    /// Folder of the servers' sockets.
    pub(super) sockets: &'a Path,
    /// Other builds of the daemon.
    pub(super) beside: &'a [PathBuf],
}

/// A contestant.
pub(super) trait Kind: Copy + PartialEq {
    fn name(self) -> &'static str;

    /// The program that must be installed.
    fn program(self) -> Option<&'static str>;

    /// Starts the server at `socket`, if the contestant is a process.
    fn start(self, setting: &ServerSettings<'_>, socket: PathBuf) -> Result<Option<Server>, String>;
}

/// Selects a part of a comparison.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Choice {
    /// Folder of the scratch file, on a disk that supports direct I/O. Default: the build folder.
    #[arg(long, value_name = "DIR")]
    pub(super) folder: Option<PathBuf>,
    /// Run only these servers, with their names in the table. Ratios are relative to the first.
    #[arg(long, value_name = "SERVER,...", value_delimiter = ',')]
    who: Vec<String>,
    /// Run only these shapes, with their names in the table, such as `1 x 32`.
    #[arg(long, value_name = "SHAPE;...", value_delimiter = ';')]
    shapes: Vec<String>,
    /// Other builds of `sluice`, or scripts that start them. They are named `beside`, `beside 2` and so on; at most
    /// 4.
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',')]
    pub(super) beside: Vec<PathBuf>,
    /// Run all servers on one CPU and the clients on another.
    #[arg(long)]
    pub(super) pin: bool,
}

impl Choice {
    /// This build and another one.
    pub(super) fn of_builds(other: PathBuf) -> Choice {
        Choice { who: ["sluice", BESIDE[0]].map(str::to_owned).to_vec(), beside: vec![other], ..Choice::default() }
    }

    /// Starts a server, on the CPU of servers if that is wanted.
    pub(super) fn start_server<S>(&self, start: impl FnOnce() -> Result<S, String>) -> Result<S, String> {
        if !self.pin {
            return start();
        }
        pin(Side::Server)?;
        let server = start();
        pin(Side::Client)?;
        server
    }

    /// Whether a server takes part.
    pub(super) fn has(&self, who: &str) -> bool {
        self.who.is_empty() || self.who.iter().any(|wanted| wanted == who)
    }

    /// Whether a shape is selected.
    pub(super) fn has_shape(&self, shape: &str) -> bool {
        self.shapes.is_empty() || self.shapes.iter().any(|wanted| wanted == shape)
    }
}

/// Names of the other builds of the daemon.
pub(super) const BESIDE: [&str; 4] = ["beside", "beside 2", "beside 3", "beside 4"];

/// Measurements of one server in one shape, for each round.
#[derive(Default, Clone)]
pub(super) struct Measured {
    pub(super) iops: Samples,
    pub(super) cpu_us: Samples,
    pub(super) p50_us: Samples,
    pub(super) p99_us: Samples,
}

impl Measured {
    /// Adds a round in which the server used `cpu_seconds` of CPU time.
    pub(super) fn note(&mut self, outcome: &Outcome, cpu_seconds: f64) {
        self.cpu_us.push(cpu_seconds * 1e6 / outcome.requests as f64);
        self.iops.push(outcome.iops());
        self.p50_us.push(outcome.percentile_us(50.0));
        self.p99_us.push(outcome.percentile_us(99.0));
    }

    /// Adds a round that another program has measured, in which the server used `cpu_us` of CPU time per request.
    pub(super) fn note_figures(&mut self, figures: Figures, cpu_us: f64) {
        self.iops.push(figures.iops);
        self.cpu_us.push(cpu_us);
        self.p50_us.push(figures.p50_us);
        self.p99_us.push(figures.p99_us);
    }

    /// Adds a round of fio on the file.
    pub(super) fn note_fio(&mut self, file: &Path, jobs: u32, depth: u32, time: Duration) -> Result<(), String> {
        self.note_figures(fio::run(&fio::From::File(file), jobs, depth, time)?, f64::NAN);
        Ok(())
    }
}

/// A server and its measurements.
pub(super) struct Contestant<K> {
    pub(super) kind: K,
    pub(super) socket: PathBuf,
    server: Option<Server>,
    /// For each shape.
    pub(super) measured: Vec<Measured>,
}

impl<K: Kind> Contestant<K> {
    /// Starts the selected and installed servers of `kinds`.
    pub(super) fn start_all(
        kinds: &[K],
        shapes: usize,
        setting: &ServerSettings<'_>,
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
            let server = choice.start_server(|| kind.start(setting, socket.clone()))?;
            contestants.push(Contestant { kind, socket, server, measured: vec![Measured::default(); shapes] });
        }
        Ok(contestants)
    }

    /// Returns the CPU time that the server has used, in seconds, or NaN if it is not a process.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.server.as_ref().map_or(f64::NAN, Server::cpu_seconds)
    }
}

/// Returns the table of a comparison, with a row for each server and each shape that was run.
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
