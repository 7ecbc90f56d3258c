//! Whether what came out can be true: checked after every run, and an error if not.

use sluice_sched::Instant;

use crate::engine::Simulation;

/// How far Little's law may be off, as a part of the requests outstanding.
const LITTLE: f64 = 0.01;

/// A law that a run has broken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Violation {
    /// Requests were lost or doubled.
    #[error(
        "VM {vm}: {arrived} requests arrived, but {completed} completed, {cancelled} were cancelled, {dropped} were \
         dropped, and {outstanding} are outstanding"
    )]
    Conservation {
        /// Which VM.
        vm: usize,
        /// Came.
        arrived: u64,
        /// Went.
        completed: u64,
        /// Left unserved.
        cancelled: u64,
        /// Were given up.
        dropped: u64,
        /// Are there, as the engine counts.
        outstanding: u64,
    },
    /// More requests on their way than are kept in memory.
    #[error(
        "Run aborted at {at} ns: VM {vm} submits faster than its device completes; {outstanding} requests are \
         outstanding"
    )]
    Overrun {
        /// Whose request was one too many.
        vm: usize,
        /// When, in nanoseconds.
        at: u64,
        /// All that were there.
        outstanding: u64,
    },
    /// A device lost requests, or made some.
    #[error("Node {node}: the gate counts {waited_for} requests in flight, the device {there}")]
    Lost {
        /// Which node.
        node: usize,
        /// As the gate counts.
        waited_for: u64,
        /// As the device does.
        there: u64,
    },
    /// A device does not stand still, and what it has will never be over.
    #[error("Node {node}: the device has {there} requests and will complete none of them")]
    Stuck {
        /// Which node.
        node: usize,
        /// What it has.
        there: u64,
    },
    /// Outstanding requests are not throughput times latency: \[Little 1961\].
    #[error("VM {vm}: {outstanding:.3} requests outstanding on average, but their latencies imply {product:.3}")]
    Little {
        /// Which VM.
        vm: usize,
        /// Mean number outstanding.
        outstanding: f64,
        /// Throughput times mean latency, of the parts of latencies that lie in the measured time.
        product: f64,
    },
    /// A device worked for longer than there was time.
    #[error("The device was busy for {busy} ns of {time} ns, with {servers} servers")]
    Busy {
        /// Its work.
        busy: u64,
        /// The time that passed.
        time: u64,
        /// What it can do at once.
        servers: u32,
    },
    /// A drive cleaned up more or less than it wrote for it.
    #[error("The counts of the flash drive's writes are inconsistent: {0}")]
    Cleaning(String),
    /// A planned change did not happen.
    #[error("At {at} ns a planned change was rejected: {why}")]
    Change {
        /// When, in nanoseconds.
        at: u64,
        /// What the gate said.
        why: sluice_sched::ChangeError,
    },
}

impl Violation {
    /// The names of all checks, of which each broken law has one.
    pub const NAMES: [&'static str; 5] = ["conservation", "little", "device-busy", "timeline", "flash-writes"];

    /// Which of [`Broken::NAMES`] it is.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Violation::Conservation { .. }
            | Violation::Overrun { .. }
            | Violation::Lost { .. }
            | Violation::Stuck { .. } => Self::NAMES[0],
            Violation::Little { .. } => Self::NAMES[1],
            Violation::Busy { .. } => Self::NAMES[2],
            Violation::Change { .. } => Self::NAMES[3],
            Violation::Cleaning(_) => Self::NAMES[4],
        }
    }

    /// The VM that it is about, if it is about one.
    #[must_use]
    pub fn vm(&self) -> Option<usize> {
        match self {
            Violation::Conservation { vm, .. } | Violation::Little { vm, .. } => Some(*vm),
            Violation::Overrun { vm, .. } => Some(*vm),
            Violation::Lost { .. } | Violation::Stuck { .. } => None,
            Violation::Busy { .. } | Violation::Cleaning(_) | Violation::Change { .. } => None,
        }
    }
}

/// Everything that is broken in a finished run.
#[must_use]
pub fn check(simulation: &Simulation) -> Vec<Violation> {
    let end = simulation.now();
    let mut broken = Vec::new();
    let mut in_engine = vec![0u64; simulation.vms()];
    simulation.outstanding().for_each(|(vm, _)| in_engine[vm] += 1);
    let outstanding = in_engine.iter().sum();
    broken.extend(simulation.overrun().map(|vm| Violation::Overrun { vm, at: end.as_nanos(), outstanding }));
    for (vm, outstanding) in in_engine.into_iter().enumerate() {
        let record = simulation.record(vm);
        let (arrived, completed) = (record.arrived, record.completed);
        let (cancelled, dropped) = (record.cancelled, record.dropped);
        if arrived != completed + cancelled + dropped + outstanding || outstanding != record.outstanding() {
            broken.push(Violation::Conservation { vm, arrived, completed, cancelled, dropped, outstanding });
        }
        broken.extend(little(simulation, vm, end));
    }
    broken.extend((0..simulation.nodes()).filter_map(|node| lost(simulation, node)));
    broken.extend((0..simulation.nodes()).filter_map(|node| busy(simulation, node, end)));
    let cleaning = (0..simulation.nodes()).filter_map(|node| simulation.device_of(node).check_invariants().err());
    broken.extend(cleaning.map(Violation::Cleaning));
    let overused = simulation.cpus_overused();
    broken.extend(overused.map(|(busy, servers)| Violation::Busy { busy, time: end.as_nanos(), servers }));
    broken
        .extend(simulation.refused().iter().map(|(at, why)| Violation::Change { at: at.as_nanos(), why: why.clone() }));
    broken
}

/// What a device loses stays outstanding for its VM, so that nothing is missing there.
fn lost(simulation: &Simulation, node: usize) -> Option<Violation> {
    let ((waited_for, there), device) = (simulation.in_flight(node), simulation.device_of(node));
    if waited_for != there {
        return Some(Violation::Lost { node, waited_for, there });
    }
    let is_stuck = device.jobs_held() > 0 && device.next().is_none() && !device.is_stalled();
    is_stuck.then_some(Violation::Stuck { node, there })
}

fn busy(simulation: &Simulation, node: usize, end: Instant) -> Option<Violation> {
    let (device, time) = (simulation.device_of(node), end.as_nanos());
    // Work is booked when it begins, or earlier.
    let done = device.busy_nanos().saturating_sub(device.ahead_nanos(end));
    let most = u128::from(time) * u128::from(device.servers()) + u128::from(simulation.longest_nanos());
    (u128::from(done) > most).then_some(Violation::Busy { busy: done, time, servers: device.servers() })
}

fn little(simulation: &Simulation, vm: usize, end: Instant) -> Option<Violation> {
    let (record, warm) = (simulation.record(vm), simulation.warm());
    let time = end.nanos_since(warm) as f64;
    if time == 0.0 {
        return None;
    }
    let of_vm = simulation.outstanding().filter(|(whose, _)| *whose == vm);
    let unfinished: u128 = of_vm.map(|(_, arrived)| u128::from(end.nanos_since(arrived.max(warm)))).sum();
    let outstanding = record.area() as f64 / time;
    let product = (record.latency_inside() + unfinished) as f64 / time;
    ((outstanding - product).abs() > LITTLE * outstanding).then_some(Violation::Little { vm, outstanding, product })
}
