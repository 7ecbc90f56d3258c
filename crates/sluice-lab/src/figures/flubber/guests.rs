//! The two VMs of the paper, and the host's backup.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::params::{ParamTable, Value};
use sluice_sched::policy::{LatencyTarget, PriorityClass};
use sluice_sched::{Bytes, Instant, Kind, Policy};
use sluice_sim::checks::check;
use sluice_sim::engine::{Simulation, Thread};
use sluice_sim::random::Stream;
use sluice_sim::stack::{Guest, Ring, Stack};
use sluice_sim::workloads::{Limited, Program, Step, Threads, Workload, WorkloadRequest, profiles};

use crate::band::BandPoint;
use crate::device::{DeviceFile, ModelFile};
use crate::figure::LabError;
use crate::real::{self, Arrival, Device, Form, Load, MakeProgram, Parameters, Quantity, Trial, TrialVm};
use crate::setup::{Host, at, refused};

/// The device of all figures.
pub(super) const DEVICE: &str = "flubber-sata";
/// Required block requests per second and latency in milliseconds, by VM: Table I.
pub(super) const SLO: [(u64, u64); 2] = [(1000, 80), (120, 60)];
/// The largest request of Linux 2.6.18.
const TRANSFER_MAX: Bytes = Bytes::kib(512);
/// Names of the VMs.
pub(super) const VMS: [&str; 2] = ["Seq VM", "Rnd VM"];
/// Common set-up of all figures.
pub(super) const GUESTS: &str = "Two VMs on a SATA disk of 1 TB, one request at a time: 16 threads read 2 GiB of 128 files in order, 8 threads read \
     10,000 blocks of 16 KiB anywhere in 128 files of 1 GiB. Noop in the guests (an axis). A ring of 32 requests of at most 44 KiB. Assumed: the sequential VM's read-ahead makes block requests of 38 KiB, one for each thread (both follow from the \
     paper's own numbers: 2 GiB in 54.16 s at 1015 requests per second, and throughput times delay is 16 at beta 1 to 8); the page cache \
     answers 36 % of the random reads; no time to think; images of 12 GB lie side by side; the host merges nothing.";

/// A scheduler in the guests. Each merges adjacent requests that wait for the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inside {
    Noop,
    /// CFQ of Linux 2.6.18, to which a thread that reads anywhere is a process, and the threads with a common position are one.
    CfqOfStreams,
    /// The same, to which each thread is a process.
    CfqOfThreads,
}

impl Inside {
    fn guest(self, ring: Ring) -> Result<Guest, LabError> {
        let host = match self {
            Inside::Noop => Host::new("noop", ring.slots),
            Inside::CfqOfStreams | Inside::CfqOfThreads => {
                Host::new("cfq", ring.slots).rotational().text("mode", "2.6.18")
            }
        };
        host.merging(ring.transfer_max).guest(ring)
    }
}

/// Assumptions about the guests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Assumed {
    /// Fraction of random reads that the page cache serves.
    pub(super) cached: f64,
    /// Size of a sequential block request in bytes, before the ring splits it.
    pub(super) block: u64,
    /// Distance between the starts of two images in bytes.
    pub(super) apart: u64,
    /// Distance between the starts of a VM's files in bytes; 0 if they are adjacent.
    pub(super) files: u64,
    /// Think time of a thread before each of its requests, in microseconds.
    pub(super) think: u64,
    /// Whether the host merges adjacent requests of a VM.
    pub(super) merging: bool,
    /// Requests in the drive's queue, which it sorts.
    pub(super) depth: u32,
    /// Scheduler in the guests.
    pub(super) inside: Inside,
    /// Size of the drive's write cache in bytes.
    pub(super) write_cache: u64,
}

impl Assumed {
    /// Assumptions for the rows.
    pub(super) const NOMINAL: Assumed = Assumed {
        cached: 0.36,
        block: 38 << 10,
        apart: 12_000_000_000,
        files: 0,
        think: 0,
        merging: false,
        depth: 1,
        inside: Inside::Noop,
        write_cache: 0,
    };

    /// These, with the drive's queue and the guests' scheduler of a point.
    pub(super) fn at(point: &BandPoint) -> Assumed {
        let inside = match point.setting("guest-scheduler") {
            0.0 => Inside::Noop,
            1.0 => Inside::CfqOfStreams,
            _ => Inside::CfqOfThreads,
        };
        Assumed { depth: point.setting("drive-queue") as u32, inside, ..Assumed::NOMINAL }
    }

    /// Distance of files if 128 of them are spread over an image.
    pub(super) const SPREAD: u64 = Assumed::NOMINAL.apart / 128 / 4096 * 4096;
}

/// The host's work in addition to the VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backup {
    /// The copy goes to the same disk.
    Same,
    /// It goes to another disk.
    Elsewhere,
}

/// A scheduler of the paper.
#[derive(Debug, Clone)]
pub(super) struct Contender {
    /// Name in tables.
    pub(super) name: &'static str,
    pub(super) host: Host,
    /// Whether the random VM has real-time priority.
    pub(super) real_time: bool,
}

/// Flubber in paper mode.
pub(super) fn flubber_paper(beta: i64) -> Contender {
    let host = Host::new("flubber", 1).rotational().text("mode", "paper").number("beta", beta);
    Contender { name: "Flubber, paper", host, real_time: false }
}

/// Flubber in product mode.
pub(super) fn flubber_product(beta: i64) -> Contender {
    let host = Host::new("flubber", 1).rotational().number("beta", beta);
    Contender { name: "Flubber, product", host, real_time: false }
}

/// CFQ of Linux 2.6.18 with equal VMs, or with real-time priority for the random VM.
pub(super) fn cfq(real_time: bool) -> Contender {
    let name = if real_time { "CFQ, RT/BE" } else { "CFQ" };
    Contender { name, host: Host::new("cfq", 1).rotational().text("mode", "2.6.18"), real_time }
}

/// Earliest deadline first with the same credits.
pub(super) fn edf(beta: i64) -> Contender {
    Contender {
        name: "EDF with credits",
        host: Host::new("edf-credit", 1).rotational().number("beta", beta),
        real_time: false,
    }
}

/// All schedulers of the comparison, at the paper's interval factor.
pub(super) fn contenders() -> [Contender; 5] {
    [cfq(false), cfq(true), edf(32), flubber_paper(32), flubber_product(32)]
}

/// Results of a VM while both are active, in windows of a second.
#[derive(Debug, Clone, Default)]
pub(super) struct Got {
    /// Block requests per second.
    pub(super) iops: f64,
    /// Maximum in a second.
    pub(super) iops_max: f64,
    /// Mean delay in milliseconds.
    pub(super) delay: f64,
    /// Maximum of the mean delays of all seconds.
    pub(super) delay_max: f64,
    /// Fraction of the seconds with a mean delay within the target.
    pub(super) in_time: f64,
    /// Completion of its workload in seconds.
    pub(super) seconds: f64,
    /// Block requests per second, and mean delay, in each second.
    pub(super) series: [Vec<(f64, f64)>; 2],
}

impl Got {
    /// A delay in milliseconds, if any request completed while both were active.
    pub(super) fn milliseconds(&self, delay: f64) -> String {
        if self.iops > 0.0 { format!("{delay:.1}") } else { "none over".into() }
    }
}

/// Results of one run.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// The sequential VM and the random one.
    pub(super) vms: [Got; 2],
    /// Completion of the backup in seconds.
    pub(super) backup: Option<f64>,
    /// Fraction of the time until both VMs completed in which the disk was idle.
    pub(super) idle: f64,
}

fn policy(vm: usize, real_time: bool) -> Policy {
    let (iops, latency) = SLO[vm];
    let target = LatencyTarget { p99: Duration::from_millis(latency), reads_only: false };
    let priority_class = if real_time { PriorityClass::RealTime } else { PriorityClass::BestEffort };
    Policy { latency: Some(target), priority_class, ..Policy::default() }.reserving(iops)
}

/// Context and parameters of a VM's workload profile.
fn profile(vm: usize, assumed: &Assumed, point: &BandPoint) -> (profiles::BuildContext, ParamTable) {
    let start = Instant::ZERO;
    let context = profiles::BuildContext { volume: assumed.apart.max(4 << 30), start, random: point.stream(VMS[vm]) };
    let mut table = ParamTable::new();
    table.insert("apart".into(), Value::Text(format!("{}B", assumed.files)));
    table.insert("think".into(), Value::Text(format!("{}us", assumed.think)));
    if vm == 0 {
        let per_file = (16 << 20) / assumed.block;
        table.insert("block".into(), Value::Text(format!("{}B", assumed.block)));
        table.insert("events".into(), Value::Integer(128 * per_file as i64));
    } else {
        table.insert("cached".into(), Value::Float(assumed.cached));
    }
    (context, table)
}

/// The workload of a VM, all threads together.
fn workload(vm: usize, assumed: &Assumed, point: &BandPoint) -> Result<Box<dyn Workload>, LabError> {
    let (context, table) = profile(vm, assumed, point);
    profiles::build(["sysbench-seqrd", "sysbench-rndrd"][vm], context, &table).map_err(refused)
}

/// The same as what the guest's scheduler tells apart.
fn workloads(vm: usize, assumed: &Assumed, point: &BandPoint) -> Result<Vec<Box<dyn Workload>>, LabError> {
    if (vm, assumed.inside) == (0, Inside::CfqOfStreams) {
        return Ok(vec![workload(vm, assumed, point)?]);
    }
    let (context, table) = profile(vm, assumed, point);
    profiles::sysbench_processes(vm == 1, &context, &table).map_err(refused)
}

/// Runs both VMs, and optionally a backup, to completion.
pub(super) fn compete(
    contender: &Contender,
    backup: Option<Backup>,
    assumed: &Assumed,
    point: &BandPoint,
) -> Result<Outcome, LabError> {
    let host = contender.host.clone().depth(assumed.depth).transfer(TRANSFER_MAX);
    let host = if assumed.merging { host.merging(TRANSFER_MAX) } else { host };
    let mut device = DeviceFile::load(DEVICE)?;
    if let ModelFile::Drives { drive, .. } = &mut device.model {
        (drive.queue, drive.write_cache_bytes) = (assumed.depth, assumed.write_cache);
    }
    let model = device.model(point);
    let mut simulation = Simulation::new(Stack::new(host.gate()?), model, Duration::ZERO, Duration::from_secs(1));
    for vm in 0..2 {
        let policy = policy(vm, vm == 1 && contender.real_time);
        let vm = simulation.add_guest(0, policy, assumed.inside.guest(Ring::XEN)?).map_err(refused)?;
        for workload in workloads(vm, assumed, point)? {
            let thread = Thread::new(workload).at(vm as u64 * assumed.apart);
            simulation.add_thread(vm, thread).map_err(refused)?;
        }
    }
    if let Some(target) = backup {
        add_backup(&mut simulation, contender, target, assumed, point)?;
    }
    let idle = run(&mut simulation);
    if let Some(broken) = check(&simulation).into_iter().next() {
        return Err(LabError::Broken(contender.name.to_owned(), broken));
    }
    let ended = |vm| simulation.ended(vm).map_or(3600.0, |at| at.as_nanos() as f64 * 1e-9);
    let both = ended(0).min(ended(1)).floor() as usize;
    let vms = std::array::from_fn(|vm| got(&simulation, vm, both, ended(vm)));
    Ok(Outcome { vms, backup: backup.map(|_| ended(2)), idle })
}

/// Runs until all workloads have completed or failed to; returns the fraction of the time in which the disk was idle
/// although a VM had not completed.
fn run(simulation: &mut Simulation) -> f64 {
    let mut second = 0;
    while second < 3600 && (simulation.ended(0).is_none() || simulation.ended(1).is_none()) {
        second += 1;
        simulation.run_until(at(second));
    }
    let worked = simulation.device().busy_nanos() as f64 * 1e-9;
    let over = [0, 1].map(|vm| simulation.ended(vm).map_or(3600.0, |at| at.as_nanos() as f64 * 1e-9));
    simulation.run_until(at(3600));
    1.0 - (worked / over[0].max(over[1])).min(1.0)
}

fn got(simulation: &Simulation, vm: usize, both: usize, seconds: f64) -> Got {
    let series = simulation.record(vm).series();
    let delay = |index: usize| {
        let window = series.get(index).copied().unwrap_or_default();
        window.latency as f64 / 1e6 / window.completed.max(1) as f64
    };
    let rate = |index: usize| series.get(index).map_or(0.0, |window| window.completed as f64);
    // The first second, in which the arm comes from another position, is not counted.
    let seconds_of_both = 1..both.max(2);
    let count = seconds_of_both.len() as f64;
    let windows = || seconds_of_both.clone().filter_map(|index| series.get(index));
    let completed: u64 = windows().map(|window| window.completed).sum();
    let latency: u64 = windows().map(|window| window.latency).sum();
    let target = SLO[vm].1 as f64;
    let in_time = seconds_of_both.clone().filter(|second| rate(*second) > 0.0 && delay(*second) <= target).count();
    let all = |value: &dyn Fn(usize) -> f64| (0..series.len()).map(|second| (second as f64, value(second))).collect();
    Got {
        iops: completed as f64 / count,
        iops_max: seconds_of_both.clone().map(rate).fold(0.0, f64::max),
        delay: latency as f64 / 1e6 / completed.max(1) as f64,
        delay_max: seconds_of_both.clone().map(delay).fold(0.0, f64::max),
        in_time: in_time as f64 / count,
        seconds,
        series: [all(&rate), all(&delay)],
    }
}

/// A copy of an image of 12 GB by the host: sequential reads with the kernel's read-ahead, writes in bursts by its page
/// cache.
struct Copy {
    left: u64,
    cursor: u64,
    target: Option<u64>,
}

impl Copy {
    const IMAGE: u64 = 12_000_000_000;
    /// Read-ahead of Linux.
    const READ: u32 = 128 << 10;
    /// Size of a burst of the page cache.
    const BURST: u32 = 8 << 20;
}

impl Program for Copy {
    fn refill(&mut self, _thread: u32, _random: &mut Stream, steps: &mut VecDeque<Step>) {
        let burst = self.left.min(u64::from(Copy::BURST)) as u32 / 4096 * 4096;
        self.left -= u64::from(burst);
        let mut read = 0;
        while read < burst {
            let length = Copy::READ.min(burst - read);
            steps.push_back(Step::Ask(WorkloadRequest {
                kind: Kind::Read,
                offset: self.cursor + u64::from(read),
                length,
            }));
            read += length;
        }
        if let (Some(target), true) = (self.target, burst > 0) {
            steps.push_back(Step::Ask(WorkloadRequest {
                kind: Kind::Write,
                offset: target + self.cursor,
                length: burst,
            }));
        }
        self.cursor += u64::from(burst);
    }
}

fn add_backup(
    simulation: &mut Simulation,
    contender: &Contender,
    target: Backup,
    assumed: &Assumed,
    point: &BandPoint,
) -> Result<(), LabError> {
    let mut policy = Policy::default();
    // CFQ has no background queue; the paper's text excludes its idle class.
    if contender.host.scheduler != "cfq" {
        policy.class = sluice_sched::policy::Class::Background;
    }
    // The host's page cache and block layer instead of a ring.
    let ring = Ring { slots: 128, transfer_max: TRANSFER_MAX };
    let vm = simulation.add_guest(0, policy, Inside::Noop.guest(ring)?).map_err(refused)?;
    let target = (target == Backup::Same).then_some(assumed.apart);
    let program = Copy { left: Copy::IMAGE, cursor: 0, target };
    let threads = Threads::new(1, program, Instant::ZERO, point.stream("backup"));
    let thread = Thread::new(Box::new(threads)).at(2 * assumed.apart);
    simulation.add_thread(vm, thread).map_err(refused)?;
    Ok(())
}

/// A VM on real I/O, with this fraction of its work; a read that the page cache answers takes no time. `None`: the host's copy, whose
/// disk is two images long.
pub(super) fn trial_vm(vm: Option<usize>, make: MakeProgram) -> TrialVm {
    let (name, outstanding, length) = match vm {
        Some(0) => ("VM1-seq", 16, Assumed::NOMINAL.block as u32),
        Some(_) => ("VM2-rnd", 8, 16 << 10),
        None => ("backup", 1, Copy::BURST),
    };
    let plain = TrialVm::new(name, 100, length);
    let load = Load { arrival: Arrival::Program(make), outstanding, ..plain.load };
    let (reservation, latency_ms) = vm.map_or((0, 0), |vm| SLO[vm]);
    TrialVm { reservation, latency_ms, load, disks: if vm.is_some() { 1 } else { 2 }, ..plain }
}

/// A fraction of a VM's work: of its requests at the disk, which are about this many.
pub(super) fn program(vm: usize, fraction: u64, point: &BandPoint) -> Result<Box<dyn Workload>, LabError> {
    const REQUESTS: [u64; 2] = [128 * ((16 << 20) / Assumed::NOMINAL.block), 6400];
    let whole = workload(vm, &Assumed::NOMINAL, point)?;
    Ok(if fraction == 1 { whole } else { Box::new(Limited::new(whole, REQUESTS[vm] / fraction)) })
}

/// A fraction of the host's copy, to the next image.
pub(super) fn copy(fraction: u64, point: &BandPoint) -> Box<dyn Workload> {
    let program = Copy { left: Copy::IMAGE / fraction, cursor: 0, target: Some(Assumed::NOMINAL.apart) };
    Box::new(Threads::new(1, program, Instant::ZERO, point.stream("backup")))
}

/// The schedulers on real I/O: name, name in a host file, parameters, and whether the random VM has real-time priority.
pub(super) const ON_REAL_IO: [(&str, &str, Parameters, bool); 4] = [
    ("CFQ", "cfq", &[("mode", "2.6.18")], false),
    ("CFQ, RT/BE", "cfq", &[("mode", "2.6.18")], true),
    ("EDF with credits", "edf-credit", &[("beta", "32")], false),
    ("Flubber, product", "flubber", &[("beta", "32")], false),
];

/// A trial of one of them: both VMs, and the backup if there is one, until all work is done, for at most this number of seconds.
pub(super) fn trial(which: usize, backup: Option<TrialVm>, seconds: usize, printed: &[Option<f64>]) -> Trial {
    let (name, scheduler, parameters, real_time) = ON_REAL_IO[which];
    let mut vms = vec![
        trial_vm(Some(0), |fraction, point| program(0, fraction, point)),
        trial_vm(Some(1), |fraction, point| program(1, fraction, point)),
    ];
    if real_time {
        vms[1].priority_class = PriorityClass::RealTime;
    }
    if scheduler == "cfq" {
        // A host file with promises that its scheduler does not keep is refused.
        vms.iter_mut().for_each(|vm| (vm.reservation, vm.latency_ms) = (0, 0));
    }
    vms.extend(backup);
    let parts = [(0, seconds)];
    let mut values = Trial::all_values(&parts, &vms, &[Quantity::Seconds]);
    real::print(&mut values, 0, Quantity::Seconds, printed);
    Trial {
        device: Device::Drive { file: DEVICE, form: Form::AsFile },
        disk_len: Assumed::NOMINAL.apart,
        range: Assumed::NOMINAL.apart,
        rotational: true,
        depth: Assumed::NOMINAL.depth,
        scheduler,
        parameters,
        values,
        ..Trial::constant(name, 0.0, vms, &parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_reads_everything_and_writes_it_in_bursts() {
        let mut copy = Copy { left: Copy::IMAGE, cursor: 0, target: Some(Assumed::NOMINAL.apart) };
        let (mut steps, mut random) = (VecDeque::new(), BandPoint::NOMINAL.stream("copy"));
        let (mut read, mut written) = (0, 0);
        loop {
            copy.refill(0, &mut random, &mut steps);
            if steps.is_empty() {
                break;
            }
            for step in steps.drain(..) {
                let Step::Ask(ask) = step else { panic!("a copy does not think") };
                let (at, most, done) = match ask.kind {
                    Kind::Read => (0, Copy::READ, &mut read),
                    _ => (Assumed::NOMINAL.apart, Copy::BURST, &mut written),
                };
                assert!(ask.offset == at + *done && ask.length <= most, "{ask:?}");
                *done += u64::from(ask.length);
            }
            assert_eq!(read, written, "a burst is what has been read since the last one");
        }
        assert!(Copy::IMAGE - read < 4096, "{read}");
    }
}
