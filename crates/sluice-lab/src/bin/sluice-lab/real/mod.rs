//! `sluice reproduce --real`: figures of the papers on real I/O.
//!
//! A trial of `sluice_lab::real` on a device of constant rate runs three times: simulated, over NBD and over vhost-user-blk. For the last
//! two the server of `sluice serve` runs in this process, with a generated host file: temporary disks lie on a `delay` device of the
//! trial's rate, and clients at the real sockets keep the VMs' load on them. A trial on a modelled drive takes as long as in the
//! paper and runs over vhost-user-blk alone; the device has the completion times of the model.
//!
//! With `--guests` the VMs are Linux guests under QEMU that measure their requests themselves, on one real file that the server serves over
//! vhost-user-blk, and the kernel's own schedulers run on that file as well.
//!
//! The figures of netback run with NICs of the same server, in network namespaces.
//!
//! | part | where |
//! |---|---|
//! | set-ups, and the simulated run | `sluice_lab::real` |
//! | disks, server, clients | `sluice_testbed` |
//! | host file | `host` |
//! | guests, and the kernel's schedulers | `guests` |
//! | NICs, whose figures are those of another paper | `nics` |
//! | which windows count | `run` |
//! | results, of disks and NICs alike | `results` |
//! | output | `report`, `page` |

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::Host;
use sluice_lab::LabError;
use sluice_lab::figure::Figure;
use sluice_lab::real::nics::NicFigure;
use sluice_lab::real::{self, Device, Quantity, RealFigure, Seen, Trial, TrialVm, Value};

use sluice_daemon::failure::Failure;
use sluice_testbed::{Testbed, folder, load};

mod guests;
mod host;
mod nics;
mod page;
mod report;
mod results;
mod run;

pub(crate) use guests::image;
use host::{Fixture, Protocol};
pub(crate) use report::Report;
use results::{Compared, Drawn, Measured, Outcome, Real, ShownVm};
use run::{Run, Sample, Window};

/// Shorter pauses of the machine between two looks do no harm: the requests at the device bridge them.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// A quick run measures a fifth of the time, in guests a tenth.
const QUICK: usize = 5;
const QUICK_IN_GUESTS: usize = 10;

/// A figure that was chosen, by what it runs on.
#[derive(Clone, Copy)]
pub(crate) enum Chosen {
    Disks(&'static RealFigure),
    Nics(&'static NicFigure),
}

impl Chosen {
    fn figure(self) -> &'static Figure {
        match self {
            Chosen::Disks(real) => real.figure,
            Chosen::Nics(real) => real.figure,
        }
    }

    /// All figures, in guests or not.
    fn all(in_guests: bool) -> Vec<Chosen> {
        let disks = if in_guests { real::IN_GUESTS } else { real::ALL };
        let nics = if in_guests { &[] } else { real::nics::ALL };
        disks.iter().map(Chosen::Disks).chain(nics.iter().map(Chosen::Nics)).collect()
    }
}

/// What runs.
pub(crate) struct Plan {
    pub(crate) figures: Vec<Chosen>,
    pub(crate) quick: bool,
    /// Kernel and first file system of guests, if the VMs are guests.
    pub(crate) guests: Option<image::Image>,
}

/// A part of the figures that cannot run on this machine, with the reason.
pub(crate) enum Lacking {
    /// The kernel's schedulers for guests.
    Kernel(String),
    Nics(String),
}

impl Lacking {
    pub(crate) fn text(&self) -> String {
        match self {
            Lacking::Kernel(reason) => format!("The kernel's schedulers do not run: {reason}"),
            Lacking::Nics(reason) => format!("Figures of NICs do not run: {reason}"),
        }
    }
}

/// Returns the part of these figures that cannot run on this machine.
pub(crate) fn lacking(figures: &[Chosen], in_guests: bool) -> Option<Lacking> {
    match in_guests {
        true => guests::kernel::missing().map(Lacking::Kernel),
        false if figures.iter().any(|chosen| matches!(chosen, Chosen::Nics(_))) => nics::missing().map(Lacking::Nics),
        false => None,
    }
}

/// Prints progress.
type Note<'a> = &'a dyn Fn(String);

/// Runs the figures. Prints progress on standard error unless `quiet`.
pub(crate) async fn run(plan: Plan, quiet: bool) -> Result<Report, Failure> {
    let note = |text: String| {
        if !quiet {
            sluice_daemon::output::message(text);
        }
    };
    let (in_guests, quick) = (plan.guests.is_some(), plan.quick);
    let lacking = lacking(&plan.figures, in_guests);
    if let Some(lacking) = &lacking {
        note(lacking.text());
    }
    let mut report = Report { outcomes: Vec::new(), in_guests, quick, lacking };
    for chosen in &plan.figures {
        let (figure, began) = (chosen.figure(), Instant::now());
        let (notes, trials) = match chosen {
            Chosen::Disks(real) => {
                let without = Some(real.without.to_owned()).filter(|words| !words.is_empty());
                (without.into_iter().collect(), run_disks(real, &plan, report.lacking.is_none(), &note).await?)
            }
            Chosen::Nics(_) if report.lacking.is_some() => continue,
            Chosen::Nics(real) => (nics::notes(figure), nics::run(real, quick, &note).await?),
        };
        let took = began.elapsed();
        note(format!("{}: {:.0} s", figure.id, took.as_secs_f64()));
        report.outcomes.push(Outcome { figure, notes, trials, took, load: load_average() });
    }
    Ok(report)
}

/// Runs the trials of a figure of disks.
async fn run_disks(real: &RealFigure, plan: &Plan, has_kernel: bool, note: Note<'_>) -> Result<Vec<Measured>, Failure> {
    let figure = real.figure;
    let trials = trials(real, plan.quick, plan.guests.is_some() && has_kernel);
    let of_trial = |trial: &Trial| protocols(trial).len() * trial.seconds() / trial.speedup() as usize;
    let seconds: usize = trials.iter().map(of_trial).sum();
    note(format!("{} ({}): {} trials, about {seconds} s", figure.id, figure.label, trials.len()));
    let mut measured = Vec::new();
    for trial in trials {
        let is_kernels = trial.kernel.is_some();
        let result = match &plan.guests {
            Some(image) => guests::measure(trial, image).await?,
            None => measure(trial).await?,
        };
        note(format!("  {}: {}", result.name, report::outline(&result)));
        measured.push((is_kernels, result));
    }
    // In the results those of the paper come first.
    measured.sort_by_key(|(is_kernels, _)| *is_kernels);
    Ok(measured.into_iter().map(|(_, result)| result).collect())
}

/// Returns the load average over the last minute; 0 if it is not known.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// Returns the trials of a figure; those of the kernel's schedulers, which need more of the machine, come first.
fn trials(figure: &RealFigure, quick: bool, with_kernel: bool) -> Vec<Trial> {
    let own = (figure.trials)();
    let mut trials = Vec::new();
    if let (true, Some(last)) = (with_kernel, own.last()) {
        trials.extend(real::KernelScheduler::ALL.map(|scheduler| last.clone().by_kernel(scheduler)));
    }
    trials.extend(own);
    let shortened = |trial: Trial| {
        let divisor = if trial.in_guests { QUICK_IN_GUESTS } else { QUICK };
        if quick { trial.shortened(divisor) } else { trial }
    };
    trials.into_iter().map(shortened).collect()
}

/// Returns the protocols over which a trial runs.
fn protocols(trial: &Trial) -> &'static [Protocol] {
    match trial.device {
        _ if trial.in_guests => &[Protocol::Guest],
        // Through a gateway.
        Device::Servers(_) => &[Protocol::Nbd],
        Device::Constant(_) => &Protocol::CLIENTS,
        Device::Drive { .. } => &[Protocol::Vhost],
    }
}

/// Runs a trial simulated and over its protocols.
async fn measure(trial: Trial) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for protocol in protocols(&trial) {
        let run = run::repeated(async || measure_over(&trial, *protocol).await).await?;
        runs.push((*protocol, run));
    }
    Ok(compared(trial, runs)?)
}

/// Compares the runs of a trial with the simulated one. The kernel's schedulers are not simulated.
fn compared(trial: Trial, mut runs: Vec<(Protocol, Run<Seen>)>) -> Result<Measured, LabError> {
    let simulated = if trial.kernel.is_some() { None } else { Some(trial.simulate()?) };
    let compared = |value: &Value| {
        let simulated = simulated.as_ref().map(|seen: &Vec<Vec<Seen>>| value.of(seen));
        let real = |(protocol, run): &(Protocol, Run<Seen>)| {
            let real = value.of(&run.seen);
            let is_near = simulated.map(|simulated| trial.is_near(value.quantity, real, simulated));
            Real { column: protocol.column(), value: real, is_near, paused_percent: run.paused_percent[value.part] }
        };
        Compared {
            seconds: trial.parts[value.part],
            vm: value.vm,
            unit: unit(value.quantity),
            paper: value.paper,
            simulated,
            real: runs.iter().map(real).collect(),
        }
    };
    let values = trial.values.iter().map(compared).collect();
    let sum = |of: fn(&Run<Seen>) -> usize| runs.iter().map(|(_, run)| of(run)).sum();
    let (windows, left_out, repeats) = (sum(|run| run.windows), sum(|run| run.left_out), sum(|run| run.repeats));
    let changes = trial.vms.iter().any(|vm| vm.start > 0 || vm.limit_from > 0);
    Ok(Measured {
        scheduler: trial.kernel.map_or(trial.scheduler, |kernel| kernel.name()),
        vms: trial.vms.iter().map(|vm| shown(&trial, vm)).collect(),
        tolerance: trial.tolerance(),
        facts: [("device_iops", trial.iops().into()), ("speedup", trial.speedup().into())]
            .map(|(name, fact): (&str, serde_json::Value)| (name.to_owned(), fact))
            .into_iter()
            .collect(),
        values,
        drawn: if changes { Drawn::OverTime } else { Drawn::Bars },
        rate_unit: unit(Quantity::Iops),
        series: runs.pop().map(|(_, run)| run.series).unwrap_or_default(),
        windows,
        left_out,
        repeats,
        name: trial.name,
    })
}

/// Returns a VM with what is drawn of it. The kernel's schedulers have no reservations.
fn shown(trial: &Trial, vm: &TrialVm) -> ShownVm {
    let reservation = if trial.kernel.is_none() { vm.reservation } else { 0 };
    let levels = [("reservation", reservation), ("limit", vm.limit)].into_iter().filter(|(_, rate)| *rate > 0);
    let level = |(what, rate): (&str, u64)| (format!("{what} of {}", vm.name), rate as f64);
    ShownVm { name: vm.name, levels: levels.map(level).collect() }
}

/// Runs a trial over one protocol.
async fn measure_over(trial: &Trial, protocol: Protocol) -> Result<Run<Seen>, Failure> {
    let fixture = Fixture::set(trial).map_err(folder::cannot)?;
    let parse = |second, buffered| -> Result<Vec<_>, Failure> {
        fixture.host_files(&trial.at(second), protocol, buffered).iter().map(|text| parsed(text)).collect()
    };
    let models = host::model(trial)?;
    let mut testbed =
        Testbed::begin(&|buffered| parse(0, buffered), models, &|host| host::loads(trial, host), PAUSE_MIN).await?;
    testbed.watch_pauses();
    let second = trial.scaled(Duration::from_secs(1));
    let (began, awaited) = (Instant::now(), trial.awaited());
    let mut windows = Vec::new();
    for number in 0..trial.seconds() {
        if trial.is_changed_at(number as u64) {
            let hosts = parse(number as u64, testbed.buffered)?;
            testbed.reload(hosts.last().expect("there is one")).await?;
        }
        let starting = |vm: &usize| trial.vms[*vm].start == number as u64;
        (0..trial.vms.len()).filter(starting).for_each(|vm| testbed.load.start_vm(vm));
        testbed.run_until(began + second * (number as u32 + 1), &mut |_| {}).await?;
        let (window, pause) = testbed.cut().await?;
        if number == 0 {
            // Threads of clients and of the device run from now on.
            testbed.watch_pauses();
        }
        windows.push(Window { samples: window.iter().map(sample).collect(), pause });
        let ended = testbed.load.ended();
        if !awaited.is_empty() && awaited.iter().all(|vm| ended[*vm].is_some()) {
            break;
        }
    }
    let ended = testbed.load.ended();
    testbed.end().await?;
    Ok(Run::of(trial, &windows, &ended))
}

fn parsed(text: &str) -> Result<Arc<Host>, Failure> {
    sluice_config::parse("the trial's host file", text).map(Arc::new).map_err(Failure::Config)
}

/// Returns a window of a client. Every request counts as 1.
fn sample(window: &load::Window) -> Sample {
    let (got, seconds) = (load::Window::together([window]), window.seconds());
    let requests = got.iops * seconds;
    Sample { seconds, requests, total_ms: requests * got.mean_us / 1000.0 }
}

/// Returns the figures that the words name, or all; in guests or not.
pub(crate) fn chosen(words: &[String], in_guests: bool) -> Result<Vec<Chosen>, Failure> {
    let named = |chosen: &Chosen, word: &String| {
        sluice_lab::figures::find(word).iter().any(|found| found.id == chosen.figure().id)
    };
    let (all, option) = (Chosen::all(in_guests), if in_guests { "--guests" } else { "--real" });
    for word in words {
        if !all.iter().any(|chosen| named(chosen, word)) {
            let ids: Vec<&str> = all.iter().map(|chosen| chosen.figure().id).collect();
            let known = !sluice_lab::figures::find(word).is_empty();
            let why = match (known, in_guests) {
                (true, true) => "does not run in guests",
                (true, false) => "does not run on real I/O",
                _ => "is not the name of a figure, row or paper",
            };
            return Err(Failure::NotFound(format!("'{word}' {why}; with {option} there are: all, {}", ids.join(", "))));
        }
    }
    Ok(all.into_iter().filter(|chosen| words.iter().any(|word| named(chosen, word))).collect())
}

/// Unit of a quantity.
fn unit(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Iops => "IOPS",
        Quantity::Latency => "ms",
        Quantity::Seconds => "s",
        Quantity::Ratio => "x last VM",
    }
}
