//! Invariants of a run: checked after every run; a violation is an error.

use sluice_sched::Instant;

use crate::engine::Simulation;

/// Tolerance of Little's law, as a part of the outstanding requests.
const LITTLE: f64 = 0.01;

/// An invariant that a run has violated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Violation {
    /// Requests were lost or doubled.
    #[error(
        "VM {vm}: {arrived} requests arrived, but {completed} completed, {cancelled} were cancelled, {dropped} were \
         dropped, and {outstanding} are outstanding"
    )]
    Conservation {
        vm: usize,
        /// Requests that arrived.
        arrived: u64,
        /// Requests that completed.
        completed: u64,
        /// Requests that were cancelled.
        cancelled: u64,
        /// Requests that the device dropped.
        dropped: u64,
        /// Requests outstanding, as the engine counts.
        outstanding: u64,
    },
    /// More requests are outstanding than fit into memory.
    #[error(
        "Run aborted at {at} ns: VM {vm} submits faster than its device completes; {outstanding} requests are \
         outstanding"
    )]
    Overrun {
        /// The VM with the request that exceeded the limit.
        vm: usize,
        /// Time of the abort in nanoseconds.
        at: u64,
        /// Outstanding requests of all VMs.
        outstanding: u64,
    },
    /// A device lost requests, or completed unknown ones.
    #[error("Node {node}: the gate counts {waited_for} requests in flight, the device {there}")]
    Lost {
        node: usize,
        /// Requests in flight, as the gate counts.
        waited_for: u64,
        /// Requests in flight, as the device counts.
        there: u64,
    },
    /// A device is not stalled, but will not complete its requests.
    #[error("Node {node}: the device has {there} requests and will complete none of them")]
    Stuck {
        node: usize,
        /// Requests of the device.
        there: u64,
    },
    /// Outstanding requests are not throughput times latency: \[Little 1961\].
    #[error("VM {vm}: {outstanding:.3} requests outstanding on average, but their latencies imply {product:.3}")]
    Little {
        vm: usize,
        /// Mean number of outstanding requests.
        outstanding: f64,
        /// Throughput times mean latency, counting the parts of latencies that lie in the measured time.
        product: f64,
    },
    /// A device was busy for longer than the run.
    #[error("The device was busy for {busy} ns of {time} ns, with {servers} servers")]
    Busy {
        /// Busy time in nanoseconds.
        busy: u64,
        /// Elapsed time in nanoseconds.
        time: u64,
        /// Number of servers.
        servers: u32,
    },
    /// The counts of a flash drive's writes do not agree.
    #[error("The counts of the flash drive's writes are inconsistent: {0}")]
    Cleaning(String),
    /// A planned change was rejected.
    #[error("At {at} ns a planned change was rejected: {why}")]
    Change {
        /// Time of the change in nanoseconds.
        at: u64,
        /// Error of the gate.
        why: sluice_sched::ChangeError,
    },
}

impl Violation {
    /// Names of all checks; each violation has one.
    pub const NAMES: [&'static str; 5] = ["conservation", "little", "device-busy", "timeline", "flash-writes"];

    /// The name of its check, one of [`Violation::NAMES`].
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

    /// The VM that it concerns, if any.
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

/// All violations of a finished run.
#[must_use]
pub fn check(simulation: &Simulation) -> Vec<Violation> {
    let end = simulation.now();
    let mut broken = Vec::new();
    // Outstanding requests of each VM, and the sum of their times after the warm-up.
    let mut in_engine = vec![(0u64, 0u128); simulation.vms()];
    for (vm, arrived) in simulation.outstanding() {
        in_engine[vm].0 += 1;
        in_engine[vm].1 += u128::from(end.nanos_since(arrived.max(simulation.warm()).min(end)));
    }
    let outstanding = in_engine.iter().map(|(count, _)| count).sum();
    broken.extend(simulation.overrun().map(|vm| Violation::Overrun { vm, at: end.as_nanos(), outstanding }));
    for (vm, (outstanding, unfinished)) in in_engine.into_iter().enumerate() {
        let record = simulation.record(vm);
        let (arrived, completed) = (record.arrived, record.completed);
        let (cancelled, dropped) = (record.cancelled, record.dropped);
        if arrived != completed + cancelled + dropped + outstanding || outstanding != record.outstanding() {
            broken.push(Violation::Conservation { vm, arrived, completed, cancelled, dropped, outstanding });
        }
        broken.extend(little(simulation, vm, end, unfinished));
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

/// A request that a device loses stays outstanding for its VM, so the VM's own check does not find it.
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
    // Work is counted when it starts, or earlier.
    let done = device.busy_nanos().saturating_sub(device.ahead_nanos(end));
    let most = u128::from(time) * u128::from(device.servers()) + u128::from(simulation.longest_nanos());
    (u128::from(done) > most).then_some(Violation::Busy { busy: done, time, servers: device.servers() })
}

fn little(simulation: &Simulation, vm: usize, end: Instant, unfinished: u128) -> Option<Violation> {
    let (record, warm) = (simulation.record(vm), simulation.warm());
    let time = end.nanos_since(warm) as f64;
    if time == 0.0 {
        return None;
    }
    let outstanding = record.area() as f64 / time;
    let product = (record.latency_inside() + unfinished) as f64 / time;
    ((outstanding - product).abs() > LITTLE * outstanding).then_some(Violation::Little { vm, outstanding, product })
}
