//! `sluice reproduce --real`: figures of the papers on real I/O.
//!
//! A trial of `sluice_lab::real` on a device of constant rate runs three times: simulated, over NBD and over vhost-user-blk. For the last
//! two the server of `sluice serve` runs in this process, with a generated host file: temporary disks lie on a `delay` device of the
//! trial's rate, and clients at the real sockets keep the VMs' load on them. A trial on a modelled drive takes as long as in the
//! paper and runs over vhost-user-blk alone; the device has the completion times of the model.
//!
//! The series of a VM has a window for each second of the paper. A window in which the machine
//! paused describes the machine and is left out, and so is the next one, in which the device catches up. If more than half of an interval's
//! windows were left out, all of them count. Only pauses decide this, never what was measured.
//!
//! | part | where |
//! |---|---|
//! | set-ups, and the simulated run | `sluice_lab::real` |
//! | disks, server, clients | `crate::testbed` |
//! | host file | `host` |
//! | output | `report` |

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::Host;
use sluice_lab::real::{self, Device, Quantity, RealFigure, Seen, Trial, Value};

use crate::failure::Failure;
use crate::testbed::load::Window;
use crate::testbed::{Testbed, folder};

mod host;
mod report;

use host::{Fixture, Protocol};
pub(crate) use report::Report;

/// Shorter pauses of the machine between two looks do no harm: the requests at the device bridge them.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// A quick run measures a fifth of the time.
const QUICK: usize = 5;

/// A value in all three runs, in the paper's units.
struct Compared {
    value: Value,
    simulated: f64,
    real: Vec<Real>,
}

/// A value over one protocol.
struct Real {
    protocol: Protocol,
    value: f64,
    /// Whether it is near the simulated one.
    is_near: bool,
}

/// A trial with its results.
struct Measured {
    trial: Trial,
    values: Vec<Compared>,
    /// Windows of all runs, and those left out because the machine paused.
    windows: usize,
    left_out: usize,
}

/// A figure with its results.
struct Outcome {
    figure: &'static RealFigure,
    trials: Vec<Measured>,
    took: Duration,
}

/// Results of a real run, by interval and VM.
struct Run {
    seen: Vec<Vec<Seen>>,
    windows: usize,
    left_out: usize,
}

/// Runs the figures. Prints progress on standard error unless `quiet`.
pub(crate) async fn run(figures: Vec<&'static RealFigure>, quick: bool, quiet: bool) -> Result<Report, Failure> {
    let note = |text: String| {
        if !quiet {
            crate::output::message(text);
        }
    };
    let mut outcomes = Vec::new();
    for figure in figures {
        let began = Instant::now();
        let trials = (figure.trials)().into_iter();
        let trials: Vec<Trial> = trials.map(|trial| if quick { trial.shortened(QUICK) } else { trial }).collect();
        let of_trial = |trial: &Trial| protocols(trial).len() * trial.seconds() / trial.speedup() as usize;
        let seconds: usize = trials.iter().map(of_trial).sum();
        note(format!("{} ({}): {} trials, about {seconds} s", figure.figure.id, figure.figure.label, trials.len()));
        let mut measured = Vec::new();
        for trial in trials {
            let result = measure(trial).await?;
            note(format!("  {}: {}", result.trial.name, report::outline(&result)));
            measured.push(result);
        }
        let took = began.elapsed();
        note(format!("{}: {:.0} s", figure.figure.id, took.as_secs_f64()));
        outcomes.push(Outcome { figure, trials: measured, took });
    }
    Ok(Report { outcomes })
}

/// Returns the protocols over which a trial runs.
fn protocols(trial: &Trial) -> &'static [Protocol] {
    match trial.device {
        Device::Constant(_) | Device::Exponential(_) => &Protocol::ALL,
        Device::Drive { .. } => &[Protocol::Vhost],
    }
}

/// Runs a trial simulated and over its protocols.
async fn measure(trial: Trial) -> Result<Measured, Failure> {
    let simulated = trial.simulate()?;
    let mut runs = Vec::new();
    for protocol in protocols(&trial) {
        runs.push((*protocol, measure_over(&trial, *protocol).await?));
    }
    let compared = |value: &Value| {
        let simulated = value.of(&simulated);
        let real = |(protocol, run): &(Protocol, Run)| {
            let real = value.of(&run.seen);
            Real { protocol: *protocol, value: real, is_near: trial.is_near(value.quantity, real, simulated) }
        };
        Compared { value: *value, simulated, real: runs.iter().map(real).collect() }
    };
    let values = trial.values.iter().map(compared).collect();
    let sum = |of: fn(&Run) -> usize| runs.iter().map(|(_, run)| of(run)).sum();
    let (windows, left_out) = (sum(|run| run.windows), sum(|run| run.left_out));
    Ok(Measured { trial, values, windows, left_out })
}

/// Runs a trial over one protocol.
async fn measure_over(trial: &Trial, protocol: Protocol) -> Result<Run, Failure> {
    let fixture = Fixture::set(trial).map_err(folder::cannot)?;
    let parse = |buffered| -> Result<Arc<Host>, Failure> {
        let parsed = sluice_config::parse("the trial's host file", &fixture.host_file(trial, protocol, buffered));
        parsed.map(Arc::new).map_err(Failure::Config)
    };
    let models = host::model(trial)?;
    let mut testbed = Testbed::begin(&parse, models, &|host| host::loads(trial, host), PAUSE_MIN)?;
    testbed.watch_pauses();
    let second = trial.scaled(Duration::from_secs(1));
    let began = Instant::now();
    let mut windows = Vec::new();
    let mut catching_up = false;
    for number in 0..trial.seconds() {
        let starting = |vm: &usize| trial.vms[*vm].start == number as u64;
        (0..trial.vms.len()).filter(starting).for_each(|vm| testbed.load.start_vm(vm));
        testbed.run_until(began + second * (number as u32 + 1), &mut |_| {}).await?;
        let (window, pause) = testbed.cut().await?;
        if number == 0 {
            // Threads of clients and of the device run from now on.
            testbed.watch_pauses();
        }
        windows.push((window, pause.is_zero() && !catching_up));
        catching_up = !pause.is_zero();
    }
    testbed.end().await?;
    let left_out = windows.iter().filter(|(_, counts)| !counts).count();
    let seen = trial.parts.iter().map(|part| seen(trial, *part, &windows)).collect();
    Ok(Run { seen, windows: windows.len(), left_out })
}

/// Returns the results of each VM in an interval, in the paper's units.
fn seen(trial: &Trial, (from, to): (usize, usize), windows: &[(Vec<Window>, bool)]) -> Vec<Seen> {
    let of_part = &windows[from..to];
    let good = of_part.iter().filter(|(_, counts)| *counts).count();
    let all = 2 * good < of_part.len();
    let of_vm = |vm: usize| {
        let counted = of_part.iter().filter(|(_, counts)| all || *counts);
        let got = Window::together(counted.map(|(window, _)| &window[vm]));
        let times = f64::from(trial.speedup());
        Seen { iops: got.iops / times, latency_ms: got.mean_us / 1000.0 * times }
    };
    (0..trial.vms.len()).map(of_vm).collect()
}

/// Returns the figures that the words name, or all.
pub(crate) fn chosen(words: &[String]) -> Result<Vec<&'static RealFigure>, Failure> {
    let named = |figure: &RealFigure, word: &String| {
        sluice_lab::figures::find(word).iter().any(|found| found.id == figure.figure.id)
    };
    for word in words {
        if !real::ALL.iter().any(|figure| named(figure, word)) {
            let ids: Vec<&str> = real::ALL.iter().map(|figure| figure.figure.id).collect();
            let known = !sluice_lab::figures::find(word).is_empty();
            let why = if known { "does not run on real I/O" } else { "is not the name of a figure, row or paper" };
            return Err(Failure::NotFound(format!("'{word}' {why}; with --real there are: all, {}", ids.join(", "))));
        }
    }
    let is_chosen = |figure: &&RealFigure| words.iter().any(|word| named(figure, word));
    Ok(real::ALL.iter().filter(is_chosen).collect())
}

/// Unit of a quantity.
fn unit(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Iops => "IOPS",
        Quantity::Latency => "ms",
    }
}
