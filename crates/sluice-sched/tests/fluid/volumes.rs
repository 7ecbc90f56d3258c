//! Random plans of VMs with one to five volumes on one device, against the fluid model of two levels.
//!
//! All requests have the reference size, so that a rate in bytes is one in requests. Each volume in use reads or writes and always has
//! requests queued. Between two phases policies change, and other volumes are in use. During a phase the device may stall, and
//! policies or the scheduler may be set again and again. What a VM or a volume gets is measured when catching up has ended.

use std::io::Write as _;

use sluice_sched::policy::{Limit, Reservation};
use sluice_sched::{ByteRate, Iops, Kind, Policy, Weight};

use super::campaign::number;
use super::chance::Chance;
use super::check::FLOOR;
use super::holes::{Meter, kib};
use super::plan::{Ask, Cloud, Load, Service};
use super::volumes_model::{Dues, Member, Range, VmModel, bursts};
use super::world::World;

/// Bytes of a request of cost 1.
const BYTES: f64 = 8192.0;
/// Time before the measurement, and of the measurement, in seconds.
const TIMES: (f64, f64) = (4.0, 20.0);
/// Length of a stall of the device, in seconds.
const STALL: f64 = 0.3;

#[derive(Debug, Clone)]
struct Volume {
    policy: Policy,
    writes: bool,
    in_use: bool,
}

#[derive(Debug, Clone)]
struct Vm {
    policy: Policy,
    volumes: Vec<Volume>,
}

/// What happens again and again during a phase, with the time between in seconds.
#[derive(Debug, Clone, Copy)]
enum Again {
    Nothing,
    /// All policies are set as they are.
    Policies(f64),
    Scheduler(f64),
}

#[derive(Debug, Clone)]
struct Phase {
    vms: Vec<Vm>,
    stalls: bool,
    again: Again,
}

struct Plan {
    cloud: Cloud,
    phases: Vec<Phase>,
}

fn limit(rate: f64, in_bytes: bool) -> Limit {
    match in_bytes {
        true => Limit { iops: None, bytes: Some(ByteRate::per_second(((rate * BYTES) as u64).max(1024))) },
        false => Limit { iops: Some(Iops::from_milli((rate * 1000.0) as u64)), bytes: None },
    }
}

fn reservation(rate: f64, in_bytes: bool) -> Reservation {
    let Limit { iops, bytes } = limit(rate, in_bytes);
    if rate * 1000.0 < 1.0 || rate * BYTES < 1024.0 {
        return Reservation::default();
    }
    Reservation { iops, bytes }
}

/// A rate in requests per second; infinite without one.
pub fn rate(iops: Option<Iops>, bytes: Option<ByteRate>) -> f64 {
    let bytes = bytes.map_or(f64::INFINITY, |rate| rate.bytes_per_second() as f64 / BYTES);
    iops.map_or(f64::INFINITY, |iops| iops.as_f64()).min(bytes)
}

/// Splits `all` into random parts, some of which are 0.
fn split(chance: &mut Chance, all: f64, count: usize) -> Vec<f64> {
    let some = chance.unit();
    let parts: Vec<f64> = (0..count).map(|_| if chance.happens(some) { chance.log(0.02, 1.0) } else { 0.0 }).collect();
    let sum: f64 = parts.iter().sum();
    parts.into_iter().map(|part| if sum > 0.0 { part / sum * all } else { 0.0 }).collect()
}

/// Adds a limit of at least `reserved`, if it is in the currency of the reservation.
fn add_limit(chance: &mut Chance, policy: &mut Policy, (reserved, in_bytes): (f64, bool), most: f64) {
    let other_currency = chance.happens(0.3);
    let least = if other_currency { 0.0 } else { reserved };
    let rate = match chance.below(3) {
        0 if reserved > 0.0 => reserved * (1.0 + 0.1 * chance.unit()),
        _ => chance.log(0.02, 1.0) * most,
    };
    let limit = limit(rate.max(least).max(2.0), in_bytes != other_currency);
    match chance.below(4) {
        0 => policy.read_limit = limit,
        1 => policy.write_limit = limit,
        _ => policy.limit = limit,
    }
}

fn vm(chance: &mut Chance, capacity: f64, reserved: f64, count: usize) -> Vm {
    let in_bytes = chance.happens(0.3);
    let weighted = |chance: &mut Chance| Weight::from_hundredths((chance.log(0.05, 100.0) * 100.0).round() as u64);
    let mut policy = Policy { weight: Some(weighted(chance)), ..Policy::default() };
    policy.reservation = reservation(reserved, in_bytes);
    if chance.happens(0.6) {
        add_limit(chance, &mut policy, (reserved, in_bytes), capacity);
    }
    let inside = reserved * (1.0 - FLOOR) * if chance.happens(0.5) { 0.999 } else { chance.unit() };
    let parts = split(chance, if policy.is_reserved() { inside } else { 0.0 }, count);
    let volumes = parts.into_iter().map(|part| {
        let mut policy = Policy { weight: Some(weighted(chance)), ..Policy::default() };
        policy.reservation = reservation(part, in_bytes);
        if chance.happens(0.4) {
            let most = if reserved > 0.0 { 2.0 * reserved } else { capacity };
            add_limit(chance, &mut policy, (part, in_bytes), most);
        }
        Volume { policy, writes: chance.happens(0.5), in_use: chance.happens(0.8) }
    });
    Vm { policy, volumes: volumes.collect() }
}

fn plan(seed: u64) -> Plan {
    let mut chance = Chance::new(seed);
    let depth = chance.log(1.0, 16.99) as u32;
    let servers = 1 + chance.below(depth as usize) as u32;
    let service = Service { fixed_ns: None, exponential: chance.happens(0.3) };
    let cloud = Cloud { service, ..Cloud::device(chance.log(400.0, 4000.0), depth, servers) };
    let counts: Vec<usize> = (0..1 + chance.below(5)).map(|_| 1 + chance.below(5)).collect();
    let writes: Vec<Vec<bool>> =
        counts.iter().map(|count| (0..*count).map(|_| chance.happens(0.5)).collect()).collect();
    let phases = (0..2).map(|_| {
        let reserved = 0.8 * cloud.capacity * if chance.happens(0.2) { 0.0 } else { chance.unit() };
        let parts = split(&mut chance, reserved, counts.len());
        let mut vms: Vec<Vm> =
            parts.into_iter().zip(&counts).map(|(part, count)| vm(&mut chance, cloud.capacity, part, *count)).collect();
        for (vm, writes) in vms.iter_mut().zip(&writes) {
            vm.volumes.iter_mut().zip(writes).for_each(|(volume, writes)| volume.writes = *writes);
        }
        let again = match chance.below(6) {
            0 => Again::Policies(chance.log(0.02, 0.5)),
            1 => Again::Scheduler(chance.log(0.02, 0.5)),
            _ => Again::Nothing,
        };
        Phase { vms, stalls: chance.happens(0.2), again }
    });
    let phases = phases.collect();
    Plan { cloud, phases }
}

/// The VMs in a world, and the sources of their volumes.
struct Running {
    world: World,
    vms: Vec<(usize, Vec<usize>)>,
}

impl Running {
    fn new(plan: &Plan, seed: u64) -> Running {
        let mut world = World::new(&plan.cloud, "mclock", seed);
        let vms = plan.phases[0].vms.iter().map(|vm| {
            let policies: Vec<Policy> = vm.volumes.iter().map(|volume| volume.policy).collect();
            let added = world.add_vm(vm.policy, &policies);
            let ask = |volume: &Volume| Ask { kind: if volume.writes { Kind::Write } else { Kind::Read }, ..kib(8) };
            let sources =
                vm.volumes.iter().enumerate().map(|(index, volume)| world.add_source(added, index, &[ask(volume)]));
            (added, sources.collect())
        });
        let vms = vms.collect();
        Running { world, vms }
    }

    fn set_policies(&mut self, phase: &Phase) {
        for ((vm, _), of) in self.vms.iter().zip(&phase.vms) {
            let volumes: Vec<Policy> = of.volumes.iter().map(|volume| volume.policy).collect();
            self.world.set_policies(*vm, of.policy, &volumes);
        }
    }

    fn run_for(&mut self, phase: &Phase, seconds: f64) {
        let (Again::Policies(every) | Again::Scheduler(every)) = phase.again else {
            return self.world.run_for(seconds);
        };
        for _ in 0..(seconds / every).ceil() as u64 {
            self.world.run_for(seconds / (seconds / every).ceil());
            match phase.again {
                Again::Scheduler(_) => self.world.replace_scheduler("mclock"),
                _ => self.set_policies(phase),
            }
        }
    }

    /// Runs a phase. Returns the rates of the volumes.
    fn run(&mut self, phase: &Phase) -> Vec<Vec<f64>> {
        self.set_policies(phase);
        for ((_, sources), of) in self.vms.iter().zip(&phase.vms) {
            for (source, volume) in sources.iter().zip(&of.volumes) {
                let load = if volume.in_use { Load::Closed(64) } else { Load::Off };
                self.world.set_load(*source, load);
            }
        }
        if phase.stalls {
            self.world.run_for(0.5);
            self.world.stall_until(self.world.now + (STALL * 1e9) as u64);
        }
        self.run_for(phase, TIMES.0);
        let meter = Meter::start(&self.world);
        self.run_for(phase, TIMES.1);
        let rates = |sources: &Vec<usize>| sources.iter().map(|source| meter.rate(&self.world, *source)).collect();
        self.vms.iter().map(|(_, sources)| rates(sources)).collect()
    }
}

impl Again {
    /// Times per second.
    fn per_second(self) -> f64 {
        match self {
            Again::Scheduler(every) => 1.0 / every,
            _ => 0.0,
        }
    }
}

/// The number by which a rate may differ from what is due, in requests per second.
fn allowed(plan: &Plan, phase: &Phase, due: f64) -> f64 {
    let Cloud { depth, capacity, service, .. } = plan.cloud;
    let part = if service.exponential { 0.02 } else { 0.01 };
    let noise = if service.exponential { 3.0 * (capacity / TIMES.1).sqrt() * (due / capacity).sqrt() } else { 0.0 };
    (part * due).max((f64::from(depth) + 16.0) / TIMES.1) + noise + phase.again.per_second() * 0.5 * due / capacity
}

fn model(phase: &Phase, got: &[Vec<f64>], capacity: f64) -> Dues {
    let vms = phase.vms.iter().map(|vm| {
        let volumes = vm.volumes.iter().map(|volume| (Member::of(&volume.policy), volume.writes, volume.in_use));
        VmModel { own: Member::of(&vm.policy), volumes: volumes.collect() }
    });
    Dues::of(capacity, &vms.collect::<Vec<_>>(), got)
}

/// Checks a phase. Returns a line for each miss.
fn check(plan: &Plan, phase: &Phase, got: &[Vec<f64>]) -> Vec<String> {
    let all: f64 = got.iter().flatten().sum();
    let capacity =
        if plan.cloud.service.exponential { all.max(0.9 * plan.cloud.capacity) } else { plan.cloud.capacity };
    let dues = model(phase, got, capacity);
    let (mut missed, mut most_missed) = (Vec::new(), 0.0);
    if phase.stalls {
        // What reservations still catch up on.
        most_missed = phase.vms.iter().map(|vm| reserved(&vm.policy)).sum::<f64>() * STALL / TIMES.1;
    }
    let burst_of = |policy: &Policy| bursts(policy, &plan.cloud) / TIMES.1;
    let mut judge = |what: String, due: &Range, got: f64, (policy, burst): (&Policy, f64)| {
        let Range { least, most } = *due;
        let (low, high) = (least - allowed(plan, phase, least), most + allowed(plan, phase, most));
        if got < low - most_missed {
            let what = if got < 0.98 * reserved(policy).min(least) { format!("RESERVATION of {what}") } else { what };
            missed.push(format!("{what}: got {got:.2}, at least {least:.2}"));
        } else if got > high + most_missed + burst {
            missed.push(format!("{what}: got {got:.2}, at most {most:.2}"));
        }
    };
    for (index, ((vm, due), got)) in phase.vms.iter().zip(&dues.vms).zip(got).enumerate() {
        let burst = vm.volumes.iter().map(|volume| burst_of(&volume.policy)).sum::<f64>() + burst_of(&vm.policy);
        judge(format!("vm {index}"), &due.own, got.iter().sum(), (&vm.policy, burst));
        for (number, (volume, got)) in vm.volumes.iter().zip(got).enumerate() {
            judge(
                format!("vm {index} volume {number}"),
                &due.volumes[number],
                *got,
                (&volume.policy, burst_of(&volume.policy)),
            );
        }
    }
    if !missed.is_empty() {
        for (vm, got) in dues.vms.iter().zip(got) {
            let due: Vec<String> = vm.volumes.iter().map(|due| format!("{:.2}", due.least)).collect();
            let due = due.join(" ");
            missed.push(format!("all: {:.2} of {:.2}, {got:.2?} of {due}", got.iter().sum::<f64>(), vm.own.least));
        }
    }
    missed
}

fn reserved(policy: &Policy) -> f64 {
    let Reservation { iops, bytes } = policy.reservation;
    if policy.is_reserved() { rate(iops, bytes) } else { 0.0 }
}

fn show(plan: &Plan, phase: &Phase) -> String {
    let mut text = format!("{}\n  stalls: {}, {:?}\n", plan.cloud, phase.stalls, phase.again);
    for (index, vm) in phase.vms.iter().enumerate() {
        text.push_str(&format!("  vm {index}: {}\n", show_policy(&vm.policy)));
        for volume in &vm.volumes {
            let kind = if volume.writes { "writes" } else { "reads" };
            let used = if volume.in_use { kind } else { "silent" };
            text.push_str(&format!("    {used}: {}\n", show_policy(&volume.policy)));
        }
    }
    text
}

fn show_policy(policy: &Policy) -> String {
    let mut text = format!("weight {}", policy.weight.map_or(0.0, |weight| weight.as_f64()));
    let limits = [("limit", policy.limit), ("read_limit", policy.read_limit), ("write_limit", policy.write_limit)];
    let Reservation { iops, bytes } = policy.reservation;
    for (name, limit) in [("reservation", Limit { iops, bytes })].into_iter().chain(limits) {
        if limit.is_set() {
            let unit = if limit.bytes.is_some() { " in bytes" } else { "" };
            text.push_str(&format!(", {name} {:.2}/s{unit}", rate(limit.iops, limit.bytes)));
        }
    }
    text
}

/// Runs this many plans, unless the environment states another number.
pub fn run(plans: u64) {
    let by_hand = number("SLUICE_FLUID_PLANS");
    let first = number("SLUICE_FLUID_SEED").unwrap_or(1.0) as u64;
    let (mut bad, mut judged) = (0u64, 0u64);
    for seed in first..first + by_hand.map_or(plans, |plans| plans as u64) {
        let plan = plan(seed);
        let mut running = Running::new(&plan, seed);
        for (number, phase) in plan.phases.iter().enumerate() {
            let got = running.run(phase);
            judged += got.iter().flatten().count() as u64;
            let missed = check(&plan, phase, &got);
            let shows = std::env::var("SLUICE_FLUID_SHOW").is_ok();
            if shows {
                let _ = writeln!(std::io::stderr(), "{}{got:.2?}", show(&plan, phase));
            }
            if !missed.is_empty() {
                bad += 1;
                let text = format!("seed {seed}, phase {number}: {}\n  {}", show(&plan, phase), missed.join("\n  "));
                assert!(by_hand.is_some(), "{text}");
                let _ = writeln!(std::io::stderr(), "{text}");
            }
        }
    }
    if by_hand.is_some() {
        let _ = writeln!(std::io::stderr(), "{judged} volumes in phases");
    }
    assert!(bad == 0, "{bad} phases");
}
