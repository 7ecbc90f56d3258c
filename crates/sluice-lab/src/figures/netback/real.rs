//! The figures' set-ups on real NICs, and the simulated run of each.
//!
//! Guests have a CPU each there, as stations in network namespaces do; in none of these set-ups is a CPU full. The link, its queue and the
//! driver domain's clock are those of the device file. Flows pace by absolute times, as iperf does.

use std::time::Duration;

use sluice_sched::Policy;
use sluice_sim::engine::Change;

use super::priorities::steps;
use super::{Backend, Bench, Guests, at, at_least, at_most, link};
use crate::band::BandPoint;
use crate::figure::LabError;
use crate::real::nics::{NicTrial, NicVm, System, Weighted};

/// Seconds of a run without a change, and of a quick one; the first is not measured.
const SECONDS: [u64; 2] = [10, 4];
/// Start of the second VM, in seconds.
const BEGINS: u64 = 5;
/// Maximum rates in Mb/s of the figures that have them.
const RATES: [u64; 4] = [25, 30, 35, 40];
const TWO_RATES: [u64; 2] = [30, 40];
/// Minimum rate in Mb/s.
const MINIMUM: u64 = 60;

/// A policy in Mb/s of frames; 0 is none.
pub(crate) fn policy(limit: u64, minimum: u64, weight: u32) -> Policy {
    let none = Policy::default();
    let limit = if limit > 0 { at_most(limit).limit } else { none.limit };
    let reservation = if minimum > 0 { at_least(minimum).reservation } else { none.reservation };
    Policy { limit, reservation, weight: Policy::weighted(weight).weight, ..none }
}

/// The rates of each VM by second, in Mb/s of data.
pub(crate) fn simulate(trial: &NicTrial) -> Result<Vec<Vec<f64>>, LabError> {
    let point = &BandPoint::NOMINAL;
    let policies: Vec<Policy> = trial.vms.iter().map(|vm| vm.policy(0)).collect();
    let backend = match trial.system {
        System::Netback => Backend::Netback,
        System::Waiting => Backend::RoundRobin,
        System::Weighted(Weighted { unit: "packets", .. }) => Backend::Packets,
        System::Weighted(_) => Backend::Bytes,
    };
    let mut host = backend.host(&link(point)?);
    if let System::Weighted(Weighted { delay, hold, .. }) = trial.system {
        host = host.text("delay", &format!("{}ms", delay.as_millis())).flag("hold", hold);
    }
    let bench = Bench::scheduled(&host, backend, link(point)?, Guests::Apart, &policies, point)?;
    let mut bench = bench.paced_absolutely();
    for (number, vm) in trial.vms.iter().enumerate() {
        let Some((first, _)) = vm.sends.first() else { continue };
        for flow in 0..vm.flows {
            let name = format!("{}, flow {flow}", vm.name);
            let later = point.stream(&format!("{}, {name}, start", trial.name)).below(10_000_000);
            bench.flow(number, at(*first) + Duration::from_nanos(later), &name)?;
        }
        plan(&mut bench, number, vm, trial.seconds);
    }
    bench.run(trial.seconds as u64, &trial.name)?;
    Ok((0..trial.vms.len()).map(|vm| bench.rates(vm, 0, trial.seconds)).collect())
}

/// Plans when a VM stops and starts again, and its changes of weight.
fn plan(bench: &mut Bench, number: usize, vm: &NicVm, seconds: usize) {
    let mut change = |second: u64, change: Change| bench.simulation.plan_change(at(second), change);
    for (turn, (from, to)) in vm.sends.iter().enumerate() {
        if turn > 0 {
            change(*from, Change::Start(number));
        }
        if *to < seconds as u64 {
            change(*to, Change::Idle(number));
        }
    }
    for second in (1..seconds).filter(|second| vm.weight(*second) != vm.weight(second - 1)) {
        change(second as u64, Change::Policy(number, vm.policy(second)));
    }
}

/// Returns how long a run without a change takes.
fn length(quick: bool) -> u64 {
    SECONDS[usize::from(quick)]
}

/// A run without a change, from its second second on.
fn steady(name: &str, system: System, vms: Vec<NicVm>, seconds: u64) -> NicTrial {
    let seconds = seconds as usize;
    NicTrial { name: name.to_owned(), system, vms, seconds, parts: vec![(1, seconds)], over_vhost: false }
}

/// Two VMs, the second of which begins later.
fn limited(name: String, rates: [u64; 2], quick: bool) -> NicTrial {
    let (begins, ends) = if quick { (2, 5) } else { (BEGINS, BEGINS + 6) };
    let vm = |name, from, limit_mbit| NicVm { limit_mbit, ..NicVm::new(name, &[(from, ends)]) };
    let vms = vec![vm("VM1", 0, rates[0]), vm("VM2", begins, rates[1])];
    let (middle, last) = (begins as usize, ends as usize);
    NicTrial { parts: vec![(1, middle), (middle + 1, last)], ..steady(&name, System::Netback, vms, ends) }
}

/// Fig. 4.
pub(crate) fn rates(quick: bool) -> Vec<NicTrial> {
    RATES.map(|rate| limited(format!("rate = {rate} Mb/s"), [rate; 2], quick)).into()
}

/// Fig. 5.
pub(crate) fn two_rates(quick: bool) -> Vec<NicTrial> {
    vec![limited("rate = 30 and 40 Mb/s".to_owned(), TWO_RATES, quick)]
}

/// The systems of the figures without weights: the paper's comes first.
const SYSTEMS: [(System, &str); 2] = [(System::Netback, "the paper's system"), (System::Waiting, "the daemon")];

/// Fig. 6.
pub(crate) fn unlimited(quick: bool) -> Vec<NicTrial> {
    let length = if quick { length(quick) } else { 15 };
    let vms = || vec![NicVm::new("VM1", &[(0, length)]), NicVm::new("VM2", &[(0, length)])];
    SYSTEMS.map(|(system, name)| steady(name, system, vms(), length)).into()
}

/// Fig. 7.
pub(crate) fn activity(quick: bool) -> Vec<NicTrial> {
    let length = length(quick);
    let trial = |(system, name): (System, &str), flows: u32| {
        let second = NicVm { flows, ..NicVm::new("VM2", &[(0, length)]) };
        let vms = vec![NicVm::new("VM1", &[(0, length)]), second];
        let over_vhost = system == System::Waiting;
        NicTrial { over_vhost, ..steady(&format!("{name}, VM2 {flows}x more active"), system, vms, length) }
    };
    SYSTEMS.into_iter().flat_map(|system| [2, 3].map(|flows| trial(system, flows))).collect()
}

/// Fig. 9, and inactivity.
pub(crate) fn priorities(quick: bool) -> Vec<NicTrial> {
    let every = if quick { 6 } else { 1 };
    let steps: Vec<[u32; 2]> = steps().into_iter().step_by(every).collect();
    let length = steps.len() as u64;
    let vm = |number: usize| NicVm {
        weights: steps.iter().map(|weights| weights[number]).collect(),
        ..NicVm::new(["VM1", "VM2"][number], &[(0, length)])
    };
    let compared = |weights: &[u32; 2]| matches!(weights, [29 | 24 | 15 | 6 | 2 | 1, 1] | [1, 2 | 6 | 15 | 24 | 30]);
    let parts = (1..steps.len()).filter(|second| compared(&steps[*second])).map(|second| (second, second + 1));
    let changing = steady("30:1 to 1:30", System::weighted("packets"), vec![vm(0), vm(1)], length);
    let changing = NicTrial { parts: parts.collect(), ..changing };
    let holding = |hold: bool| {
        let vm = |name, sends: &[(u64, u64)], weight| NicVm { weights: vec![weight], ..NicVm::new(name, sends) };
        let vms = vec![vm("VM1", &[(0, 3), (6, 9)], 30), vm("VM2", &[(0, 9)], 1)];
        let system = System::Weighted(Weighted { unit: "packets", delay: Duration::from_secs(1), hold });
        let name = format!("VM1 stops from 3 to 6 s, delay = 1 s, hold = {hold}");
        // Before it stops, the second of `delay`, one without it, and after it has begun again.
        NicTrial { parts: vec![(1, 3), (3, 4), (5, 6), (7, 9)], ..steady(&name, system, vms, 9) }
    };
    vec![changing, holding(false), holding(true)]
}

/// A minimum rate.
pub(crate) fn minimum(quick: bool) -> Vec<NicTrial> {
    let length = length(quick);
    let trial = |name: &str, weight: u32, over_vhost: bool| {
        let other = |name| NicVm { weights: vec![weight], ..NicVm::new(name, &[(0, length)]) };
        let first = NicVm { minimum_mbit: MINIMUM, ..NicVm::new("VM1", &[(0, length)]) };
        let vms = vec![first, other("VM2"), other("VM3")];
        NicTrial { over_vhost, ..steady(name, System::weighted("bytes"), vms, length) }
    };
    vec![trial("VM1 has a minimum of 60 Mb/s", 1, true), trial("the same, weights 1:10:10", 10, false)]
}
