//! A sweep: every point of a scenario with every seed, concurrently on all cores.
//!
//! Each run is a separate file in `runs`, named by a hash of the scenario and the program, and by the seed. A run
//! whose file exists is not repeated, so an interrupted sweep can be resumed. The results are combined from those
//! files in the order of the points. So they depend neither on the number of threads nor on earlier interruptions.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_sim::scenario::file::{Loaded, Point, ScenarioFile};
use sluice_sim::scenario::{Outcome, States, Watch, run};
use sluice_sim::statistics::Mean;

use super::folder::{self, UNFINISHED, cannot, remove_left_over, warn_unusable, write_whole};
use super::report;
use super::summary::{VERDICTS, VERSION, latency_us, verdict};
use crate::program;
use sluice_console::progress::Progress;
use sluice_daemon::failure::Failure;

/// The file that only a complete sweep has.
pub(crate) const SWEEP: &str = "sweep.json";
/// A measured value of a run; `None` if there is none, such as a latency without completed requests.
type Measure = fn(&VmRun) -> Option<f64>;

/// The compared values: name, and function that reads it from a run.
const MEASURES: [(&str, Measure); 5] = [
    ("iops", |vm| Some(vm.iops)),
    ("bytes_per_second", |vm| Some(vm.bytes_per_second)),
    ("latency_us_mean", |vm| vm.latency_us_mean),
    ("latency_us_p50", |vm| vm.latency_us_p50),
    ("latency_us_p99", |vm| vm.latency_us_p99),
];

/// The stored results of one run.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    program: String,
    seed: u64,
    vms: Vec<VmRun>,
    /// Violated invariants.
    broken: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct VmRun {
    vm: String,
    completed: u64,
    iops: f64,
    bytes_per_second: f64,
    latency_us_mean: Option<f64>,
    latency_us_p50: Option<f64>,
    latency_us_p99: Option<f64>,
    promises: Vec<Promised>,
}

/// A guarantee of a VM, and its result as `sim run` prints it for programs.
#[derive(Debug, Serialize, Deserialize)]
struct Promised {
    promise: String,
    verdict: String,
}

/// The runs of a sweep.
pub(crate) struct Plan<'a> {
    file: &'a ScenarioFile,
    points: Vec<Point>,
    seeds: u32,
    folder: PathBuf,
    states: Option<States>,
    program: String,
}

/// One run.
struct Task<'a> {
    program: &'a str,
    loaded: &'a Loaded,
    seed: u64,
    path: PathBuf,
}

impl Task<'_> {
    /// Returns the stored run, if it exists and is complete.
    fn read(&self) -> Option<Run> {
        let run: Run = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        (run.program == self.program && run.seed == self.seed).then_some(run)
    }
}

/// Result of a task.
type Reported = Result<(), String>;

impl<'a> Plan<'a> {
    /// Creates the plan of a file's sweep. Without a sweep table, the scenario runs unchanged with ten seeds.
    ///
    /// # Errors
    /// The file of this program, which identifies stored results, cannot be read.
    pub(crate) fn new(file: &'a ScenarioFile, folder: &Path, states: Option<PathBuf>) -> Result<Self, Failure> {
        let alone = || vec![Point { values: Vec::new(), loaded: file.base.clone() }];
        let (points, seeds) = match &file.sweep {
            Some(sweep) => (sweep.points.clone(), sweep.seeds),
            None => (alone(), 10),
        };
        let states = states.map(folder::states).transpose()?;
        Ok(Plan { file, points, seeds, folder: folder.to_owned(), states, program: program::hash()? })
    }

    fn tasks(&self) -> Vec<Task<'_>> {
        let runs = self.folder.join("runs");
        let mut tasks = Vec::new();
        for point in &self.points {
            let hash = hash(&format!("{}\n{}", self.program, point.loaded.identity));
            for number in 0..u64::from(self.seeds) {
                let seed = self.file.base.seed + number;
                let path = runs.join(format!("{hash:032x}-{seed}.json"));
                tasks.push(Task { program: &self.program, loaded: &point.loaded, seed, path });
            }
        }
        tasks
    }

    /// Does the remaining runs on `threads` threads, and combines the results.
    pub(crate) fn run(&self, threads: usize, progress: &mut Progress) -> Result<Value, Failure> {
        let runs = self.folder.join("runs");
        folder::can_be_written("--out", &runs)?;
        [&runs, &self.folder].into_iter().for_each(|folder| remove_left_over(folder, UNFINISHED));
        // An earlier result is removed first, so that nothing incomplete looks complete.
        let finished = self.folder.join(SWEEP);
        match fs::remove_file(&finished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot("replace", &finished, &error));
            }
            _ => {}
        }
        let tasks = self.tasks();
        let open: Vec<&Task<'_>> = tasks.iter().filter(|task| task.read().is_none()).collect();
        tracing::debug!(runs = tasks.len(), done = tasks.len() - open.len(), "sweep begins");
        work(&open, self.states.as_ref(), threads.min(open.len()).max(1), tasks.len(), progress)?;
        warn_unusable(self.states.as_ref());
        let sweep = self.results(&tasks)?;
        write_whole(&self.folder.join("sweep.csv"), &csv(&sweep))?;
        write_whole(&self.folder.join("report.html"), &report::of_sweep(&sweep))?;
        write_whole(&finished, &(serde_json::to_string_pretty(&sweep)? + "\n"))?;
        Ok(sweep)
    }

    fn results(&self, tasks: &[Task<'_>]) -> Result<Value, Failure> {
        let mut points = Vec::new();
        for (point, tasks) in self.points.iter().zip(tasks.chunks(self.seeds as usize)) {
            let read = |task: &Task<'_>| {
                task.read().ok_or_else(|| format!("{} has been removed or changed", task.path.display()))
            };
            let runs = tasks.iter().map(read).collect::<Result<Vec<Run>, String>>();
            let runs = runs.map_err(|text| Failure::Run(text.into()))?;
            let broken: Vec<&String> = runs.iter().flat_map(|run| &run.broken).collect();
            points.push(json!({
                "values": point.values.iter().cloned().collect::<serde_json::Map<_, _>>(),
                "vms": (0..runs[0].vms.len()).map(|vm| means(&runs, vm)).collect::<Vec<_>>(),
                "broken": broken,
            }));
        }
        Ok(json!({
            "format": 1,
            "version": VERSION,
            "first_seed": self.file.base.seed,
            "seeds": self.seeds,
            "scenario": self.file.base.echo,
            "points": points,
        }))
    }
}

fn means(runs: &[Run], vm: usize) -> Value {
    let mut means = serde_json::Map::new();
    means.insert("vm".to_owned(), json!(runs[0].vms[vm].vm));
    for (name, measure) in MEASURES {
        let values: Vec<f64> = runs.iter().filter_map(|run| measure(&run.vms[vm])).collect();
        let mean = Mean::of(&values);
        let (half, middle) = (mean.and_then(|mean| mean.half), mean.map(|mean| mean.mean));
        let of = json!({ "mean": middle, "half_interval_95": half, "runs": values.len() });
        means.insert(name.to_owned(), of);
    }
    means.insert("promises".to_owned(), verdicts(runs, vm));
    Value::Object(means)
}

/// Counts the results of each guarantee of a VM over all runs.
fn verdicts(runs: &[Run], vm: usize) -> Value {
    let of = |(number, first): (usize, &Promised)| {
        let count = |verdict: &str| {
            let ended = |run: &&Run| run.vms[vm].promises.get(number).is_some_and(|of| of.verdict == verdict);
            runs.iter().filter(ended).count()
        };
        let counts = VERDICTS.map(|verdict| (verdict.replace('-', "_"), count(verdict)));
        let mut of: serde_json::Map<String, Value> = counts.into_iter().map(|(name, n)| (name, json!(n))).collect();
        of.insert("promise".to_owned(), json!(first.promise));
        Value::Object(of)
    };
    runs[0].vms[vm].promises.iter().enumerate().map(of).collect()
}

/// Runs tasks on threads. Stops early if one fails.
fn work(
    open: &[&Task<'_>],
    states: Option<&States>,
    threads: usize,
    all: usize,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (report, reports) = channel::<Reported>();
    let done_before = all - open.len();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (report, next, stop) = (report.clone(), &next, &stop);
            scope.spawn(move || worker(open, states, next, stop, &report));
        }
        drop(report);
        for (number, outcome) in reports.iter().enumerate() {
            if let Err(text) = outcome {
                stop.store(true, Ordering::Relaxed);
                return Err(Failure::Run(text.into()));
            }
            progress.show((done_before + number + 1) as f64 / all as f64);
        }
        Ok(())
    })
}

fn worker(
    open: &[&Task<'_>],
    states: Option<&States>,
    next: &AtomicUsize,
    stop: &AtomicBool,
    report: &Sender<Reported>,
) {
    while let Some(task) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
        let mut go_on = |_| !stop.load(Ordering::Relaxed);
        let watch = Watch { states, progress: Some(&mut go_on), ..Watch::default() };
        let outcome =
            run(&task.loaded.scenario, task.seed, watch).map_err(|error| sluice_daemon::failure::chain(&error));
        let kept = outcome.and_then(|outcome| keep(task, &outcome));
        if report.send(kept).is_err() || stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn keep(task: &Task<'_>, outcome: &Outcome) -> Reported {
    let vms = outcome.vms.iter().map(|vm| VmRun {
        vm: vm.name.clone(),
        completed: vm.completed,
        iops: vm.iops,
        bytes_per_second: vm.bytes_per_second,
        latency_us_mean: latency_us(vm, vm.mean),
        latency_us_p50: latency_us(vm, vm.percentile(50.0)),
        latency_us_p99: latency_us(vm, vm.percentile(99.0)),
        promises: vm
            .promises
            .iter()
            .map(|of| Promised { promise: of.text.clone(), verdict: verdict(of).to_owned() })
            .collect(),
    });
    let broken = outcome.broken().map(|(check, what)| format!("seed {}: {check}: {what}", outcome.seed));
    let (program, seed) = (task.program.to_owned(), outcome.seed);
    let run = Run { program, seed, vms: vms.collect(), broken: broken.collect() };
    let text = serde_json::to_string(&run).expect("our own types have string keys");
    write_whole(&task.path, &text).map_err(Failure::into_text)
}

/// FNV-1a of 128 bits, for file names that are the same on every machine.
fn hash(text: &str) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// Returns a row for each point and VM.
fn csv(sweep: &Value) -> String {
    let points = sweep["points"].as_array().map_or(&[][..], Vec::as_slice);
    let keys: Vec<&String> =
        points.first().and_then(|point| point["values"].as_object()).map_or(Vec::new(), |map| map.keys().collect());
    let mut header: Vec<String> = keys.iter().map(|key| (*key).clone()).collect();
    header.push("vm".to_owned());
    for (name, _) in MEASURES {
        header.extend([name.to_owned(), format!("{name}_half_interval_95")]);
    }
    header.push("promises_broken".to_owned());
    let mut text = header.join(",") + "\n";
    for point in points {
        for vm in point["vms"].as_array().into_iter().flatten() {
            let mut cells: Vec<String> = keys.iter().map(|key| cell(&point["values"][key.as_str()])).collect();
            cells.push(cell(&vm["vm"]));
            for (name, _) in MEASURES {
                cells.extend([cell(&vm[name]["mean"]), cell(&vm[name]["half_interval_95"])]);
            }
            let promises = vm["promises"].as_array().into_iter().flatten();
            cells.push(promises.filter_map(|promise| promise["broken"].as_u64()).sum::<u64>().to_string());
            text.push_str(&(cells.join(",") + "\n"));
        }
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // A table contains commas itself.
        other @ (Value::Array(_) | Value::Object(_)) => format!("\"{}\"", other.to_string().replace('"', "\"\"")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_matches_the_published_value() {
        assert_eq!(hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
