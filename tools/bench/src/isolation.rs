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

/// A desideratum of the study. Overhead has two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Latency,
    Bandwidth,
    Fairness,
    Priority,
    Burst,
}

/// Measurements of one run, over the rounds. The first app is the one with priority, if there is one.
#[derive(Default)]
struct Measured {
    iops: Samples,
    p50_us: Samples,
    p99_us: Samples,
    /// Of all apps, and of all but the first, in MB/s.
    all: Samples,
    others: Samples,
    jain: Samples,
    cpus: Samples,
    reached_ms: Samples,
}

struct Row {
    part: Part,
    what: &'static str,
    knob: Knob,
    setting: &'static str,
    measured: Measured,
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

const PLAIN: Setting = Setting { knob: Knob::None, name: "-", weight: 1000, others: 1.0, depth: DEPTH, bursts: true };
const EXTRA: Setting = Setting { bursts: false, ..PLAIN };
const SETTINGS: [Setting; 12] = [
    PLAIN,
    Setting { knob: Knob::Deadline, name: "real-time, best-effort", ..PLAIN },
    Setting { knob: Knob::Bfq, name: "weights 200, 100", weight: 200, ..EXTRA },
    Setting { knob: Knob::Bfq, name: "weights 1000, 100", ..PLAIN },
    Setting { knob: Knob::Throttle, name: "others to 75 %", others: 0.75, ..EXTRA },
    Setting { knob: Knob::Throttle, name: "others to 50 %", others: 0.5, ..PLAIN },
    Setting { knob: Knob::Throttle, name: "others to 25 %", others: 0.25, ..EXTRA },
    Setting { knob: Knob::Noop, name: "depth 32", ..PLAIN },
    Setting { knob: Knob::Mclock, name: "weights 1000, 100, depth 32", ..PLAIN },
    Setting { knob: Knob::Mclock, name: "weights 1000, 100, depth 16", depth: 16, ..EXTRA },
    Setting { knob: Knob::Mclock, name: "weights 1000, 100, depth 8", depth: 8, ..EXTRA },
    Setting { knob: Knob::Mclock, name: "weights 1000, 100, depth 4", depth: 4, ..EXTRA },
];

const BATCH: App = App::BATCH;
const SMALL: App = App { block_kib: 4, ..BATCH };
const LARGE: App = App { block_kib: 256, ..BATCH };
const SEQUENTIAL: App = App { pattern: "read", ..BATCH };
const WRITER: App = App { pattern: "randwrite", ..BATCH };
const EQUAL: &str = "equal weights";
const WEIGHTS: &str = "weights 1:2:3:4";
const ONE_BATCH: &str = "1 of 64 KiB";
const SMALL_BATCH: &str = "4 of 4 KiB";
const SINGLE: &str = "1";
const LATENCY_FIRST: &str = "latency-critical";
const MIXES: [(&str, [App; 4]); 5] = [
    (EQUAL, [BATCH; 4]),
    (
        WEIGHTS,
        [BATCH, App { weight: 200, ..BATCH }, App { weight: 300, ..BATCH }, App { weight: 400, ..BATCH }],
    ),
    ("2 of 4 KiB, 2 of 256 KiB", [SMALL, SMALL, LARGE, LARGE]),
    ("2 random, 2 sequential", [BATCH, BATCH, SEQUENTIAL, SEQUENTIAL]),
    ("2 readers, 2 writers", [BATCH, BATCH, WRITER, WRITER]),
];
const FIRST: [(&str, App); 2] = [(LATENCY_FIRST, App::LATENCY), ("batch", App::BATCH)];

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
        for (name, content) in [("isolation.md", text::page(&study, &report)), ("isolation.json", report.json() + "\n")] {
            let file = folder.join(name);
            fs::write(&file, content).map_err(|error| format!("Cannot write {}: {error}", file.display()))?;
        }
    }
    Ok(report)
}

impl Study {
    /// D1: latency of latency-critical apps, and bandwidth of batch apps.
    fn overhead(&mut self) -> Result<(), String> {
        let alone = Setting { weight: 100, name: "", ..PLAIN };
        for knob in Knob::ALL {
            for (what, apps) in [(SINGLE, 1), ("8", APPS_MAX)] {
                self.measure(Part::Latency, what, &Setting { knob, ..alone }, &vec![App::LATENCY; apps])?;
            }
        }
        for knob in Knob::ALL {
            for (what, apps) in [(ONE_BATCH, vec![BATCH]), (SMALL_BATCH, vec![SMALL; 4])] {
                self.measure(Part::Bandwidth, what, &Setting { knob, ..alone }, &apps)?;
            }
        }
        Ok(())
    }

    /// D2: what apps get for their weights.
    fn fairness(&mut self) -> Result<(), String> {
        for (what, apps) in MIXES {
            let (mut total, weights) = (0.0, apps.iter().map(|app| app.weight).sum::<u32>());
            for knob in Knob::ALL {
                let limit = |app: App| Some(total * f64::from(app.weight) / f64::from(weights));
                let apps = apps.map(|app| App { limit: limit(app), ..app });
                let got = self.measure(Part::Fairness, what, &Setting { knob, name: "", ..PLAIN }, &apps)?;
                if knob == Knob::None {
                    total = got.iter().map(|outcome| outcome.mbps).sum();
                }
                if what == EQUAL && knob == Knob::None && self.bed.knee.is_none() {
                    let small = self.median(Part::Bandwidth, SMALL_BATCH, Knob::None, |row| &row.all);
                    self.bed.knee = Some(knee(small * 1e6 / 4096.0, total * 1e6 / 65_536.0));
                }
            }
        }
        Ok(())
    }

    /// D3 and D4: one app with priority, beside four batch apps.
    fn priority(&mut self) -> Result<(), String> {
        for (what, first) in FIRST {
            let mut others = 0.0;
            for setting in &SETTINGS {
                let limit = (setting.knob == Knob::Throttle).then_some(others * setting.others / 4.0);
                let first = App { weight: setting.weight, class: 1, ..first };
                let mut apps = [App { limit, ..BATCH }; 5];
                apps[0] = first;
                let got = self.measure(Part::Priority, what, setting, &apps)?;
                if setting.knob == Knob::None {
                    others = got[1..].iter().map(|outcome| outcome.mbps).sum();
                }
                if setting.bursts {
                    apps[0].sleeps_ms = Some(SLEEP_MS);
                    self.measure(Part::Burst, what, setting, &apps)?;
                }
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        part: Part,
        what: &'static str,
        setting: &Setting,
        apps: &[App],
    ) -> Result<Vec<Outcome>, String> {
        let time_ms = if part == Part::Burst { BURST_MS } else { self.time_ms };
        let (outcomes, cpus) = self.bed.run(&Run { knob: setting.knob, depth: setting.depth, apps, time_ms })?;
        let measured = self.row(part, what, setting);
        let rates: Vec<f64> = outcomes.iter().map(|outcome| outcome.mbps).collect();
        let weights: Vec<f64> = apps.iter().map(|app| f64::from(app.weight)).collect();
        measured.iops.push(outcomes[0].iops);
        measured.p50_us.push(outcomes[0].p50_us);
        measured.p99_us.push(outcomes[0].p99_us);
        measured.all.push(rates.iter().sum());
        measured.others.push(rates[1..].iter().sum());
        measured.jain.push(fio::jain(&rates, &weights));
        measured.cpus.push(cpus);
        measured.reached_ms.push(fio::reached_ms(&outcomes[0].completions, time_ms));
        Ok(outcomes)
    }

    fn row(&mut self, part: Part, what: &'static str, setting: &Setting) -> &mut Measured {
        let (knob, setting) = (setting.knob, setting.name);
        let is_it = |row: &Row| (row.part, row.what, row.knob, row.setting) == (part, what, knob, setting);
        let index = self.rows.iter().position(is_it).unwrap_or(self.rows.len());
        if index == self.rows.len() {
            self.rows.push(Row { part, what, knob, setting, measured: Measured::default() });
        }
        &mut self.rows[index].measured
    }

    /// Returns the median of a number in the last row of a knob, which for the daemon has the smallest depth.
    fn median(&self, part: Part, what: &str, knob: Knob, number: fn(&Measured) -> &Samples) -> f64 {
        let mut rows = self.rows.iter().rev();
        let row = rows.find(|row| (row.part, row.what, row.knob) == (part, what, knob));
        row.map_or(f64::NAN, |row| number(&row.measured).median())
    }
}

/// Returns the size in bytes at which the transfer takes as long as the rest of a request, from the rates of requests of
/// 4 and 64 KiB: with a knee of k, requests of s bytes cost k + s. What the configuration rejects is cut off.
fn knee(small_iops: f64, large_iops: f64) -> u64 {
    let ratio = small_iops / large_iops;
    if ratio <= 1.0 { 10_000_000 } else { ((65_536.0 - 4096.0 * ratio) / (ratio - 1.0)).clamp(1000.0, 1e7) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_explains_the_rates_of_two_sizes() {
        // (8,192 + 65,536) / (8,192 + 4,096) = 6.
        assert_eq!(knee(60_000.0, 10_000.0), 8192);
        assert_eq!((knee(1000.0, 1000.0), knee(16_000.0, 1000.0)), (10_000_000, 1000));
    }
}
