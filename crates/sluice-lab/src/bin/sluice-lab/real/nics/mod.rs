//! Trials of NICs: the server of `sluice serve` with an uplink of 100 Mbit/s, stations in network namespaces, and iperf 2.
//!
//! ```text
//! iperf -- eth0 [VM1] -- TAP or vhost-user-net --+-------------+
//!                                                | the server  |-- TAP -- bridge -- lan0 ===== eth0 [outside] -- iperf
//! iperf -- eth0 [VM2] -- TAP or vhost-user-net --+-------------+
//! ```
//!
//! In the paper's system the server never waits, as netback does not, and the link is a queue of lan0: a token bucket of the
//! kernel with a queue of 1000 frames that drops its tail. Otherwise the server knows the rate of the link and takes a frame when the wire has room.
//!
//! The receiving iperf counts the data of each VM, and prints the count each tenth of a second.
//!
//! | part | where |
//! |---|---|
//! | host file | `host` |
//! | namespaces, queue and server | `lab` |
//! | senders and receivers | `iperf` |
//! | real-time priority | `priority` |
//! | the front end over vhost-user-net | `relay` |

use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};
use sluice_client::programs;
use sluice_lab::figure::Figure;
use sluice_lab::real::nics::{NicFigure, NicTrial, NicVm, System};

use super::Note;
use super::report;
use super::results::{Column, Compared, Drawn, Measured, Real, ShownVm};
use super::run::{self, Counting, Run};
use iperf::{Receiver, Sender};
use lab::Lab;
use sluice_daemon::failure::Failure;
use sluice_testbed::pauses::Pauses;

mod host;
mod iperf;
mod lab;
mod priority;
mod relay;

/// Unit of the values: data in the datagrams.
const UNIT: &str = "Mb/s";
/// Shorter pauses of the machine do no harm: the server makes up for 20 ms of the wire's time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Time for which senders go on after the end.
const TAIL: Duration = Duration::from_millis(300);
/// Interval between two looks at pauses.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Interface between a station and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plug {
    Tap,
    VhostUser,
}

impl Plug {
    fn column(self) -> Column {
        match self {
            Plug::Tap => Column { name: "tap", title: "TAP" },
            Plug::VhostUser => Column { name: "vhost-user-net", title: "VHOST-USER-NET" },
        }
    }
}

/// Returns why NICs cannot be measured on this machine, and what to do.
pub(super) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make network namespaces; run it as root".to_owned());
    }
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        return Some(format!(
            "/dev/net/tun cannot be opened ({error}); load the module tun, or allow it in the container"
        ));
    }
    [("ip", "iproute2"), ("tc", "iproute2"), ("iperf", "iperf")]
        .into_iter()
        .find(|(program, _)| programs::find(program).is_none())
        .map(|(program, package)| format!("{program} is not there; install it: apt-get install {package}"))
        .or_else(lab::missing)
}

/// Why one of the paper's figures is not here, for the page.
pub(super) const NOT_HERE: &str = "netback Fig. 8 (disk I/O beside a sender) does not run here. Its cause in the model and in the paper is one CPU of a driver domain, on which \
    packets and disk requests take turns. The daemon has no such CPU: each disk and each uplink has a thread of its own, and a run would only \
    show the number of the machine's CPUs. `cargo xtask bench network` measures disks and NICs next to each other.";

/// Sentences on how a figure ran, for the page.
pub(super) fn notes(figure: &Figure) -> Vec<String> {
    let stations = "Here the daemon serves NICs to stations in network namespaces, which send with iperf 2 at 100 Mb/s of data for each flow. A value is what \
                    the receiving iperf has counted, a second of a trial one of the paper.";
    let systems = "\"The paper's system\": netback takes packets whatever room the interface has, and the interface's queue of 1000 frames drops its tail; it \
                   is compared with the model's netback. \"The daemon\": the same scheduler as operators run it, which takes a frame when the link \
                   has room; it is compared with the model's round robin that waits for room. In the paper's system who gets more depends on when the \
                   senders' datagrams meet the full queue: the model draws that again for each datagram, and iperf keeps it for a run.";
    let has_both = matches!(figure.id, "netback-unlimited" | "netback-activity");
    let more = if has_both { Some(systems) } else { None };
    [stations].into_iter().chain(more).map(str::to_owned).collect()
}

/// Runs the trials of a figure.
pub(super) async fn run(real: &NicFigure, quick: bool, note: Note<'_>) -> Result<Vec<Measured>, Failure> {
    let (figure, trials) = (real.figure, (real.trials)(quick));
    let seconds: usize = trials.iter().map(|trial| plugs(trial).len() * trial.seconds).sum();
    note(format!("{} ({}): {} trials, about {seconds} s", figure.id, figure.label, trials.len()));
    let mut measured = Vec::new();
    for trial in trials {
        let result = measure(trial).await?;
        note(format!("  {}: {}", result.name, report::outline(&result)));
        measured.push(result);
    }
    Ok(measured)
}

fn plugs(trial: &NicTrial) -> &'static [Plug] {
    if trial.over_vhost { &[Plug::Tap, Plug::VhostUser] } else { &[Plug::Tap] }
}

/// Runs a trial simulated and over its plugs.
async fn measure(trial: NicTrial) -> Result<Measured, Failure> {
    let mut runs: Vec<(Plug, Run<f64>)> = Vec::new();
    for plug in plugs(&trial) {
        runs.push((*plug, run::repeated(async || measure_once(&trial, *plug).await).await?));
    }
    let simulated = trial.simulate()?;
    let value = |(part, vm): (usize, usize)| {
        let simulated = trial.mean(&simulated, part, vm);
        let real = |(plug, run): &(Plug, Run<f64>)| Real {
            column: plug.column(),
            value: run.seen[part][vm],
            is_near: Some(trial.is_near(run.seen[part][vm], simulated)),
            paused_percent: run.paused_percent[part],
        };
        let real = runs.iter().map(real).collect();
        Compared { seconds: trial.parts[part], vm: Some(vm), unit: UNIT, paper: None, simulated: Some(simulated), real }
    };
    let values = trial.values().map(value).collect();
    let sum = |of: fn(&Run<f64>) -> usize| runs.iter().map(|(_, run)| of(run)).sum();
    let (windows, left_out, repeats) = (sum(|run| run.windows), sum(|run| run.left_out), sum(|run| run.repeats));
    Ok(Measured {
        scheduler: trial.system.scheduler(),
        vms: trial.vms.iter().map(shown).collect(),
        tolerance: trial.tolerance(),
        facts: facts(&trial),
        values,
        drawn: Drawn::OverTime,
        rate_unit: UNIT,
        // Those over a TAP.
        series: runs.swap_remove(0).1.series,
        windows,
        left_out,
        repeats,
        name: trial.name,
    })
}

/// Keys of a trial in JSON that other kinds of trials do not have.
fn facts(trial: &NicTrial) -> Map<String, Json> {
    let queue = (trial.system == System::Netback).then_some(sluice_lab::real::nics::QUEUE_FRAMES);
    [("system", trial.system.what().into()), ("queue_frames", queue.into())]
        .map(|(name, fact): (&str, Json)| (name.to_owned(), fact))
        .into_iter()
        .collect()
}

/// Returns a VM with what is drawn of it: rates of frames, as data.
fn shown(vm: &NicVm) -> ShownVm {
    let levels = [("limit", vm.limit_mbit), ("minimum", vm.minimum_mbit)].into_iter().filter(|(_, rate)| *rate > 0);
    let level = |(what, rate): (&str, u64)| (format!("{what} of {}", vm.name), rate as f64 * host::DATA_OF_FRAME);
    ShownVm { name: vm.name, levels: levels.map(level).collect() }
}

/// Runs a trial over one plug.
async fn measure_once(trial: &NicTrial, plug: Plug) -> Result<Run<f64>, Failure> {
    let mut lab = Lab::start(trial, plug).await?;
    let receivers: Vec<Receiver> =
        (0..trial.vms.len()).map(|vm| Receiver::start(&lab.outside, vm)).collect::<Result<_, _>>()?;
    let mut senders: Vec<Option<Sender>> = trial.vms.iter().map(|_| None).collect();
    let mut pauses = Pauses::watch(PAUSE_MIN);
    let (began, mut paused) = (Instant::now(), Vec::new());
    for second in 0..trial.seconds {
        // First the weights, which are to be right from the beginning of a second on.
        lab.set_weights(trial, second).await?;
        for (number, vm) in trial.vms.iter().enumerate() {
            let turn = vm.sends.iter().find(|(from, to)| (*from..*to).contains(&(second as u64)));
            match turn {
                Some((from, to)) if *from == second as u64 => {
                    senders[number] = Some(Sender::start(&lab.vms[number], number, vm.flows, to - from)?);
                }
                Some(_) => {}
                None => senders[number] = None,
            }
        }
        until(began + Duration::from_secs(second as u64 + 1), &mut pauses).await;
        paused.push(pauses.take());
    }
    // What arrived last is printed with what comes after it.
    tokio::time::sleep(TAIL).await;
    drop(senders);
    let rates: Vec<Vec<f64>> =
        receivers.into_iter().map(|receiver| receiver.finish().rates(began, trial.seconds)).collect();
    lab.end().await?;
    Ok(of_rates(trial, &rates, &paused))
}

/// Waits, and looks for pauses of the machine.
async fn until(end: Instant, pauses: &mut Pauses) {
    pauses.resume();
    loop {
        let left = end.saturating_duration_since(Instant::now()).min(LOOK_EVERY);
        pauses.look(left);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// Returns the run with these rates of each VM by second.
fn of_rates(trial: &NicTrial, rates: &[Vec<f64>], paused: &[Duration]) -> Run<f64> {
    let counting = Counting::of(paused);
    let of_part = |part: &(usize, usize)| {
        let counted = counting.counted(*part);
        let mean = |rates: &Vec<f64>| counted.iter().map(|second| rates[*second]).sum::<f64>() / counted.len() as f64;
        rates.iter().map(mean).collect()
    };
    let seen = trial.parts.iter().map(of_part).collect();
    let series = (0..trial.seconds).map(|second| rates.iter().map(|rates| rates[second]).collect()).collect();
    Run::counted(&counting, &trial.parts, seen, series)
}
