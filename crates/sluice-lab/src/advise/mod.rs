//! Advice which schedulers to use in the guest and on the host, for a load on a device, from simulations.
//!
//! Every pair runs with the same seeds, so two pairs can be compared run by run: a seed that is harder for one is
//! harder for both. A pair is worse than the best one if the 95 % interval of its difference excludes zero. Other pairs
//! cannot be distinguished, and among these a rule of thumb chooses ([`choose`]).
//!
//! Example: eight threads with random reads on a disk, one VM. Noop and deadline in the guest get 900 reads per second
//! with any host scheduler, cfq 400: choose noop in the guest. The host schedulers cannot be distinguished, so choose
//! deadline there.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use sluice_sched::params::{ParamError, ParamTable, Parameter, Value, offending_params};
use sluice_sched::{Bytes, Descriptor, Instant, Policy};
use sluice_sim::devices::Model;
use sluice_sim::devices::overhead::RequestOverhead;
use sluice_sim::engine::{Simulation, Thread};
use sluice_sim::random::stream;
use sluice_sim::scenario::models::{self, Known};
use sluice_sim::stack::{Ring, Stack};
use sluice_sim::traces::{self, Format};
use sluice_sim::traces::{Failure, PastEnd, Select};
use sluice_sim::workloads::profiles::{self, WorkloadProfile};
use sluice_sim::workloads::{Replay, ReplayTiming, Workload};

use crate::figure::LabError;
use crate::parallel::{self, Progress};
use crate::setup::{Host, refused};

mod choose;

pub use choose::{Answer, By, Sureness, Verdict, choose};

/// Time that is not measured: schedulers learn think times.
const WARM: Duration = Duration::from_secs(1);

/// Load of a VM's thread.
#[derive(Debug, Clone)]
pub enum Load {
    /// A workload profile.
    Named(&'static WorkloadProfile, ParamTable),
    /// A recorded trace; its requests go to threads as these become free. Each run uses a different part of it.
    Trace {
        file: PathBuf,
        format: Format,
        /// Number of requests in it.
        rows: u64,
    },
}

/// Input of the advice.
#[derive(Debug, Clone)]
pub struct Question {
    /// Load of each VM.
    pub load: Load,
    /// The device.
    pub device: (Known, ParamTable),
    /// Queue depth of the device.
    pub depth: u32,
    /// Schedulers to compare in the guest.
    pub guests: Vec<&'static Descriptor>,
    /// Schedulers to compare on the host.
    pub hosts: Vec<&'static Descriptor>,
    /// Number of identical VMs, with equal weights.
    pub vms: u32,
    /// Threads per VM, with one outstanding request each unless the workload says otherwise.
    pub threads: u32,
    /// Ring between a guest and the host.
    pub ring: Ring,
    /// Overhead of virtualisation per request.
    pub request_cost: Duration,
    /// Number of runs of each pair, with consecutive seeds.
    pub runs: u32,
    /// The first seed.
    pub seed: u64,
    /// Maximum virtual time of each run; the first second is not measured.
    pub duration: Duration,
    /// The measure that counts.
    pub by: By,
}

/// Results of one run of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Got {
    /// Requests per second of all VMs.
    pub iops: f64,
    /// Bytes per second of all VMs.
    pub bytes: f64,
    /// 99th percentile of latency of the worst VM, in milliseconds.
    pub p99_ms: f64,
}

/// All runs of a pair.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Scheduler in the guest.
    pub guest: &'static Descriptor,
    /// Scheduler on the host.
    pub host: &'static Descriptor,
    /// Results by seed.
    pub runs: Vec<Got>,
}

/// Runs every pair with every seed, `jobs` runs concurrently, and chooses. Calls `progress` with the number of
/// completed runs and their total.
///
/// # Errors
/// An invalid parameter, a trace that cannot be read or is too short, or a run that violated an invariant.
pub fn advise(question: &Question, jobs: usize, progress: Progress<'_>) -> Result<Answer, LabError> {
    check(question)?;
    let pairs: Vec<_> =
        question.guests.iter().flat_map(|guest| question.hosts.iter().map(move |host| (*guest, *host))).collect();
    let all: Vec<_> = pairs.iter().flat_map(|pair| (0..question.runs).map(move |run| (*pair, run))).collect();
    let results = parallel::each(&all, jobs, progress, |((guest, host), run)| measure(question, guest, host, *run))?;
    let runs = results.chunks(question.runs as usize);
    let pairs = pairs.into_iter().zip(runs).map(|((guest, host), runs)| Pair { guest, host, runs: runs.to_vec() });
    Ok(choose(pairs.collect(), question.vms, question.by))
}

/// For each of the guest's schedulers that is the nearest model of some of today's Linux: these, and how near it is.
#[must_use]
pub fn today(guests: &[&'static Descriptor]) -> Vec<String> {
    let lines =
        guests.iter().flat_map(|guest| guest.advice.stands_for.iter().map(move |(name, how)| (guest, name, how)));
    lines.map(|(guest, name, how)| format!("{name} of today's Linux is modelled by {}: {how}.", guest.name)).collect()
}

/// Rejects invalid parameters of the device and of the workload, by name.
fn check(question: &Question) -> Result<(), LabError> {
    let (device, params) = &question.device;
    named(&format!("Device model {}", device.name()), &device.parameters(), params, &|params| {
        device.derive(params).map(drop)
    })?;
    let Load::Named(profile, params) = &question.load else { return Ok(()) };
    let volume = device.derive(&question.device.1).map_or(0, |derived| derived.span / u64::from(question.vms));
    named(&format!("Workload {}", profile.name), profile.parameters, params, &|params| {
        let context = profiles::BuildContext { volume, start: Instant::ZERO, random: stream(question.seed, "0/0") };
        profile.build(&one_thread(profile, params), context).map(drop)
    })
}

/// Names the parameter that causes a rejection, and its accepted values.
fn named(
    what: &str,
    known: &[Parameter],
    params: &ParamTable,
    accept: &dyn Fn(&ParamTable) -> Result<(), ParamError>,
) -> Result<(), LabError> {
    let Err(error) = accept(params) else { return Ok(()) };
    let refused = match offending_params(params, accept).first() {
        None => format!("{what}: {error}"),
        Some((name, error)) => match known.iter().find(|parameter| parameter.name == *name) {
            Some(parameter) => format!("{what}: {name}: {error}; it is {}", parameter.accepts()),
            None => {
                let known: Vec<_> = known.iter().map(|parameter| parameter.name).collect();
                format!("{what} has no parameter '{name}'; it has {}", known.join(", "))
            }
        },
    };
    Err(LabError::Refused(refused))
}

/// Linux elevators in a guest: each of its threads is one process.
fn in_guest(descriptor: &'static Descriptor, question: &Question) -> Host {
    let params = descriptor.advice.guest_params;
    params.iter().fold(on_host(descriptor, question), |host, (name, value)| host.text(name, value))
}

fn on_host(descriptor: &'static Descriptor, question: &Question) -> Host {
    let mut host = Host::new(descriptor.name, question.depth);
    let (device, params) = &question.device;
    // Invalid parameters are rejected when the device is built.
    if device.derive(params).is_ok_and(|derived| derived.rotational) {
        host = host.rotational();
    }
    if descriptor.merging { host.merging(Bytes::kib(256)) } else { host }
}

/// One run of one pair.
fn measure(
    question: &Question,
    guest: &'static Descriptor,
    host: &'static Descriptor,
    run: u32,
) -> Result<Got, LabError> {
    let what = format!("{} in the guest above {}", guest.name, host.name);
    // Seeds wrap around.
    let seed = question.seed.wrapping_add(u64::from(run));
    let (known, params) = &question.device;
    let device = format!("Device model {}", known.name());
    let wrong = |error| LabError::Refused(format!("{device}: {error}"));
    let span = known.derive(params).map_err(wrong)?.span / u64::from(question.vms);
    let context = models::BuildContext { seed, name: "device".to_owned() };
    let model: Box<dyn Model> = known.build(params, &context).map_err(wrong)?;
    let model = match question.request_cost {
        Duration::ZERO => model,
        each => Box::new(RequestOverhead::new(model, each)),
    };
    let front = Stack::new(on_host(host, question).gate()?);
    let mut simulation = Simulation::new(front, model, WARM, Duration::from_secs(1));
    let mut failures = Vec::new();
    for vm in 0..question.vms {
        let inside = in_guest(guest, question).guest(question.ring)?;
        let member = simulation.add_guest(0, Policy::default(), inside).map_err(refused)?;
        for workload in load(question, seed, (vm, run), span, &mut failures)? {
            let thread = Thread::new(workload).at(u64::from(vm) * span).synchronous();
            simulation.add_thread(member, thread).map_err(refused)?;
        }
    }
    simulation.run_until(Instant::ZERO + question.duration);
    if let Some(error) = failures.iter().find_map(Failure::take) {
        return Err(LabError::Refused(format!("The trace: {error}")));
    }
    if let Some(broken) = sluice_sim::checks::check(&simulation).into_iter().next() {
        return Err(LabError::Broken(what, broken));
    }
    got(&simulation, question, &what)
}

/// The threads of one VM.
fn load(
    question: &Question,
    seed: u64,
    (vm, run): (u32, u32),
    volume: u64,
    failures: &mut Vec<Failure>,
) -> Result<Vec<Box<dyn Workload>>, LabError> {
    match &question.load {
        Load::Named(known, params) => (0..question.threads)
            .map(|thread| {
                let random = stream(seed, &format!("{vm}/{thread}"));
                let context = profiles::BuildContext { volume, start: Instant::ZERO, random };
                let built = known.build(&one_thread(known, params), context);
                built.map_err(|error| LabError::Refused(format!("Workload {}: {error}", known.name)))
            })
            .collect(),
        Load::Trace { file, format, rows } => {
            let opened =
                traces::open(file).map_err(|error| LabError::Refused(format!("{}: {error}", file.display())))?;
            let rows_of_trace = Select::new(traces::read(*format, opened), None, volume, PastEnd::Wrap);
            failures.push(rows_of_trace.failure());
            let part = (rows / u64::from(question.runs)).max(1) as usize;
            // Threads share one reader in turn.
            let shared = Rc::new(RefCell::new(rows_of_trace.skip(run as usize * part).take(part)));
            let thread = |_| {
                let shared = Rc::clone(&shared);
                let own = std::iter::from_fn(move || shared.borrow_mut().next());
                Box::new(Replay::new(own, ReplayTiming::Closed(1), Instant::ZERO)) as Box<dyn Workload>
            };
            Ok((0..question.threads).map(thread).collect())
        }
    }
}

/// A profile with threads gets one thread for each thread of the guest, unless stated otherwise: schedulers in a guest
/// distinguish threads.
fn one_thread(known: &WorkloadProfile, stated: &ParamTable) -> ParamTable {
    let mut params = stated.clone();
    for name in ["threads", "outstanding"] {
        if known.parameters.iter().any(|parameter| parameter.name == name) {
            params.entry(name.to_owned()).or_insert(Value::Integer(1));
        }
    }
    params
}

fn got(simulation: &Simulation, question: &Question, what: &str) -> Result<Got, LabError> {
    let mut got = Got { iops: 0.0, bytes: 0.0, p99_ms: 0.0 };
    for vm in 0..question.vms as usize {
        let record = simulation.record(vm);
        let end = simulation.ended(vm).unwrap_or(simulation.now());
        let seconds = end.nanos_since(simulation.warm()) as f64 * 1e-9;
        if record.measured == 0 {
            let why = "nothing was over after the first second, which is not measured; let it run longer, or give it more to do";
            return Err(LabError::Refused(format!("{what}: {why}")));
        }
        got.iops += record.measured as f64 / seconds;
        got.bytes += record.bytes as f64 / seconds;
        got.p99_ms = got.p99_ms.max(record.percentile(99.0).as_secs_f64() * 1e3);
    }
    Ok(got)
}
