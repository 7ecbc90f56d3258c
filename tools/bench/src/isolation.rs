//! `cargo xtask bench isolation`: the experiments of a study by others on the daemon and on the kernel's knobs.
//!
//! The study is "Does Linux Provide Performance Isolation for NVMe SSDs?" (IISWC 2025), its benchmark isol-bench. It
//! asks four things of a knob: low overhead (D1), fairness by weight (D2), priority at a small price in bandwidth (D3),
//! and priority soon after an app wakes up (D4). Knobs take turns in each experiment, and experiments in each round.

mod bed;
mod fio;
mod text;

use std::fs;
use std::path::PathBuf;

use super::report::Report;
use super::server;
use super::stats::Samples;
use bed::{APPS_MAX, App, Bed, DEPTH, Knob, Run};
use fio::Outcome;

/// Time until all apps have started, which does not count.
const RAMP_MS: u64 = 400;
/// Sleep of the app that wakes up, and the time that it is watched.
const SLEEP_MS: u64 = 1000;
const BURST_MS: u64 = 1500;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Time of each measurement in ms.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    time_ms: u64,
    /// Folder of the scratch file, on a disk that supports direct I/O. Default: the build folder.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// A build of `sluice` to measure. Default: this one is built.
    #[arg(long, value_name = "PROGRAM")]
    daemon: Option<PathBuf>,
    /// Write the page and the results as JSON into this folder.
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

/// Numbers of a run: of the first app, which is the one with priority if there is one; of all, and of all but the first,
/// in MB/s; Jain's index; and the time until the first app has its share.
const NUMBERS: [&str; 7] = ["iops", "p50_us", "p99_us", "all", "others", "jain", "reached_ms"];

/// Numbers of a run over the rounds, in the order of `NUMBERS`.
struct Row {
    part: &'static str,
    apps: &'static str,
    knob: String,
    measured: [Samples; NUMBERS.len()],
}

/// How a knob favours the first app.
struct Setting {
    knob: Knob,
    name: &'static str,
    /// Weight of the first app; the others have 100.
    weight: u32,
    /// Limit of all others, relative to what they get without a knob.
    others: f64,
    depth: u32,
    /// Whether bursts are measured with it.
    bursts: bool,
}

/// Weights of the apps decide.
const PLAIN: Setting = Setting { knob: Knob::None, name: "", weight: 1000, others: 1.0, depth: DEPTH, bursts: true };
const EXTRA: Setting = Setting { bursts: false, ..PLAIN };
const SETTINGS: [Setting; 10] = [
    PLAIN,
    Setting { knob: Knob::Deadline, name: "real-time, best-effort", ..PLAIN },
    Setting { knob: Knob::Bfq, name: "weights 200:100", weight: 200, ..EXTRA },
    Setting { knob: Knob::Bfq, name: "weights 1000:100", ..PLAIN },
    Setting { knob: Knob::Throttle, name: "others to 50 %", others: 0.5, ..PLAIN },
    Setting { knob: Knob::Throttle, name: "others to 25 %", others: 0.25, ..EXTRA },
    Setting { knob: Knob::Noop, name: "depth 32", ..PLAIN },
    Setting { knob: Knob::Mclock, name: "weights 1000:100, depth 32", ..PLAIN },
    Setting { knob: Knob::Mclock, name: "weights 1000:100, depth 8", depth: 8, ..EXTRA },
    Setting { knob: Knob::Mclock, name: "weights 1000:100, depth 4", depth: 4, ..EXTRA },
];

const BATCH: App = App::BATCH;
const SMALL: App = App { block_kib: 4, ..BATCH };
const LARGE: App = App { block_kib: 256, ..BATCH };
const SEQUENTIAL: App = App { pattern: "read", ..BATCH };
const WRITER: App = App { pattern: "randwrite", ..BATCH };
const MIXES: [(&str, [App; 4]); 5] = [
    ("equal weights", [BATCH; 4]),
    (
        "weights 1:2:3:4",
        [BATCH, App { weight: 200, ..BATCH }, App { weight: 300, ..BATCH }, App { weight: 400, ..BATCH }],
    ),
    ("2 of 4 KiB, 2 of 256 KiB", [SMALL, SMALL, LARGE, LARGE]),
    ("2 random, 2 sequential", [BATCH, BATCH, SEQUENTIAL, SEQUENTIAL]),
    ("2 readers, 2 writers", [BATCH, BATCH, WRITER, WRITER]),
];

struct Study {
    bed: Bed,
    time_ms: u64,
    rows: Vec<Row>,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    let daemon = match &options.daemon {
        Some(daemon) => daemon.clone(),
        None => server::build_sluice().map(|()| server::sluice_binary())?,
    };
    let bed = Bed::new(options.folder.as_deref(), daemon)?;
    let (rounds, time_ms) = if quick { (1, 300) } else { (options.rounds, options.time_ms) };
    let mut study = Study { bed, time_ms, rows: Vec::new() };
    let mut report = Report::new("isolation");
    for round in 0..rounds {
        report.measure_baseline();
        for part in [Study::overhead, Study::fairness, Study::priority] {
            eprintln!("isolation: round {} of {rounds}", round + 1);
            part(&mut study)?;
        }
    }
    text::add_to(&mut report, &study, rounds);
    if let Some(folder) = &options.docs {
        for (name, content) in [("isolation.md", text::page(&study, &report)), ("isolation.json", report.json() + "\n")]
        {
            let file = folder.join(name);
            fs::write(&file, content).map_err(|error| format!("Cannot write {}: {error}", file.display()))?;
        }
    }
    Ok(report)
}

impl Study {
    /// D1: latency of latency-critical apps, and bandwidth of batch apps.
    fn overhead(&mut self) -> Result<(), String> {
        let latency = [("1 app", vec![App::LATENCY]), ("8 apps", vec![App::LATENCY; APPS_MAX])];
        let batch = [("1 batch, 64 KiB", vec![BATCH]), ("4 batch, 4 KiB", vec![SMALL; 4])];
        for (part, kinds) in [("latency", latency), ("bandwidth", batch)] {
            for (name, apps) in kinds {
                for knob in Knob::ALL {
                    self.measure(part, name, &Setting { knob, ..PLAIN }, &apps)?;
                }
            }
        }
        Ok(())
    }

    /// D2: what apps get for their weights.
    fn fairness(&mut self) -> Result<(), String> {
        for (name, apps) in MIXES {
            let (mut total, weights) = (0.0, apps.iter().map(|app| app.weight).sum::<u32>());
            for knob in Knob::ALL {
                let limit = |app: App| Some(total * f64::from(app.weight) / f64::from(weights));
                let apps = apps.map(|app| App { limit: limit(app), ..app });
                let got = self.measure("fairness", name, &Setting { knob, ..PLAIN }, &apps)?;
                if knob == Knob::None {
                    total = got.iter().map(|outcome| outcome.mbps).sum();
                }
            }
        }
        Ok(())
    }

    /// D3 and D4: one app with priority, beside four batch apps.
    fn priority(&mut self) -> Result<(), String> {
        for (name, first) in [("latency-critical", App::LATENCY), ("batch", BATCH)] {
            let mut others = 0.0;
            for setting in &SETTINGS {
                let limit = (setting.knob == Knob::Throttle).then_some(others * setting.others / 4.0);
                let mut apps = [App { limit, ..BATCH }; 5];
                apps[0] = App { weight: setting.weight, class: 1, ..first };
                let got = self.measure("priority", name, setting, &apps)?;
                if setting.knob == Knob::None {
                    others = got[1..].iter().map(|outcome| outcome.mbps).sum();
                }
                if setting.bursts {
                    apps[0].sleeps_ms = SLEEP_MS;
                    self.measure("burst", name, setting, &apps)?;
                }
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        part: &'static str,
        name: &'static str,
        setting: &Setting,
        apps: &[App],
    ) -> Result<Vec<Outcome>, String> {
        let time_ms = if part == "burst" { BURST_MS } else { self.time_ms };
        let outcomes = self.bed.run(&Run { knob: setting.knob, depth: setting.depth, apps, time_ms })?;
        let rates: Vec<f64> = outcomes.iter().map(|outcome| outcome.mbps).collect();
        let weights: Vec<f64> = apps.iter().map(|app| f64::from(app.weight)).collect();
        let first = &outcomes[0];
        let (all, others) = (rates.iter().sum(), rates[1..].iter().sum());
        let reached = fio::reached_ms(&first.completions, time_ms);
        let numbers = [first.iops, first.p50_us, first.p99_us, all, others, fio::jain(&rates, &weights), reached];
        let knob = [setting.knob.name(), setting.name].join(if setting.name.is_empty() { "" } else { ": " });
        let same = |row: &Row| (row.part, row.apps, &row.knob) == (part, name, &knob);
        let index = self.rows.iter().position(same).unwrap_or(self.rows.len());
        if index == self.rows.len() {
            self.rows.push(Row { part, apps: name, knob, measured: Default::default() });
        }
        for (samples, number) in self.rows[index].measured.iter_mut().zip(numbers) {
            samples.push(number);
        }
        Ok(outcomes)
    }

    /// Returns a number of a run, if there is one.
    fn number(&self, part: &str, apps: &str, knob: &str, number: &str) -> Option<&Samples> {
        let row = self.rows.iter().find(|row| (row.part, row.apps, &*row.knob) == (part, apps, knob))?;
        Some(&row.measured[NUMBERS.iter().position(|known| *known == number)?])
    }
}
