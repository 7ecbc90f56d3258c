//! Random plans.

use sluice_sched::admission::{check_burst, check_burst_of_large};
use sluice_sched::policy::{Limit, Reservation};
use sluice_sched::{ByteRate, Bytes, Cost, CostModel, Iops, Kind, Policy, Weight};

use super::chance::Chance;
use super::check::FLOOR;
use super::plan::{Ask, Cloud, Load, Phase, Placement, Plan, Service, Use};

const LENGTHS: [u32; 12] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576];

/// The plan of a seed, on one node or on `several`. `length` multiplies the length of the phases.
///
/// Half of the plans have few VMs, and half of those on several nodes have small queue depths: the fewer requests are at the
/// devices and the more service a VM is due, the smaller is the relative tolerance.
pub fn plan(seed: u64, several: bool, length: f64) -> Plan {
    let mut chance = Chance::new(seed);
    let nodes = if several { 2 + chance.below(9) } else { 1 };
    let cloud = cloud(&mut chance, nodes);
    let count = if chance.happens(0.5) { 1 + chance.below(5) } else { 1 + chance.below(30) };
    let vms: Vec<Vec<Ask>> = (0..count).map(|_| mix(&mut chance)).collect();
    let mut phases: Vec<Phase> = Vec::new();
    for _ in 0..1 + chance.below(4) {
        let requests = chance.log(6_000.0, 48_000.0) * length * if several { 3.0 } else { 1.0 };
        let phase = match phases.last() {
            None => first_phase(&mut chance, &cloud, &vms, requests),
            Some(last) => next_phase(&mut chance, &cloud, &vms, last, requests),
        };
        phases.push(phase);
    }
    Plan { seed, cloud, vms, phases }
}

fn cloud(chance: &mut Chance, nodes: usize) -> Cloud {
    let depth_max = if nodes > 1 && chance.happens(0.5) { 8.99 } else { 64.99 };
    let depth = chance.log(1.0, depth_max) as u32;
    let servers = match chance.below(3) {
        0 => 1,
        1 => depth,
        _ => 1 + chance.below(depth as usize) as u32,
    };
    let cost = match chance.below(6) {
        0 => CostModel::per_request(),
        1 => CostModel { knee: Bytes(16_384), ..CostModel::default() },
        2 => CostModel { discard: Cost::requests(4), discard_mib: Cost::requests(1), ..CostModel::default() },
        _ => CostModel::default(),
    };
    let request_bytes = if chance.happens(0.3) { 8192 } else { chance.log(2048.0, 262_144.0) as u64 };
    let service = Service { fixed_ns: None, exponential: chance.happens(0.5) };
    let capacity = chance.log(677.0, 100_000.0);
    Cloud { nodes, capacity, depth, servers, service, request_bytes, cost, placement: Placement::RoundRobin }
}

fn mix(chance: &mut Chance) -> Vec<Ask> {
    let others = chance.happens(0.12);
    let ask = |chance: &mut Chance| {
        if others && chance.happens(0.6) {
            return match chance.below(3) {
                0 => Ask { kind: Kind::Flush, length: 0 },
                1 => Ask { kind: Kind::Discard, length: 1 << (12 + chance.below(16)) },
                _ => Ask { kind: Kind::WriteZeroes, length: 1 << (12 + chance.below(16)) },
            };
        }
        let length = if chance.happens(0.8) { chance.pick(&LENGTHS) } else { 512 * (1 + chance.below(2048)) as u32 };
        Ask { kind: chance.pick(&[Kind::Read, Kind::Write]), length }
    };
    let count = if chance.happens(0.6) { 1 } else { 2 + chance.below(2) };
    (0..count).map(|_| ask(chance)).collect()
}

fn first_phase(chance: &mut Chance, cloud: &Cloud, vms: &[Vec<Ask>], requests: f64) -> Phase {
    let seconds = requests / cloud.capacity;
    let reservations = reservations(chance, cloud, vms.len());
    let used = reservations.into_iter().map(|reservation| {
        let there = !chance.happens(0.15);
        let policy = policy(chance, cloud, vms.len(), reservation);
        let load = load(chance, cloud, vms.len(), seconds);
        there.then_some(Use { policy, load })
    });
    Phase { requests, vms: used.collect() }
}

/// Changes a part of the previous phase.
fn next_phase(chance: &mut Chance, cloud: &Cloud, vms: &[Vec<Ask>], last: &Phase, requests: f64) -> Phase {
    let new_phase = first_phase(chance, cloud, vms, requests);
    // Reservations that were admitted together change together.
    let policies = chance.happens(0.5);
    let mut used = Vec::new();
    for (new, old) in new_phase.vms.into_iter().zip(&last.vms) {
        used.push(match (new, *old) {
            (Some(new), Some(old)) => {
                let policy = if policies { new.policy } else { old.policy };
                Some(Use { policy, load: if chance.happens(0.3) { new.load } else { old.load } })
            }
            (_, Some(old)) if !policies => Some(old).filter(|_| chance.happens(0.6)),
            // An added VM has no reservation, unless all policies change.
            (Some(new), None) if !policies => {
                let policy = Policy { reservation: Reservation::default(), ..new.policy };
                let policy = Policy { weight: policy.weight.or(Some(Weight::DEFAULT)), ..policy };
                Some(Use { policy, ..new })
            }
            (new, _) => new,
        });
    }
    Phase { requests, vms: used }
}

/// Reservations that admission control accepts together: their parts of the device add up to at most 1 minus the floor.
fn reservations(chance: &mut Chance, cloud: &Cloud, count: usize) -> Vec<Reservation> {
    let all = match chance.below(4) {
        0 => 0.0,
        1 => 1.0 - FLOOR - 1e-6,
        _ => (1.0 - FLOOR) * chance.unit(),
    };
    let some = chance.unit();
    let parts: Vec<f64> = (0..count).map(|_| if chance.happens(some) { chance.log(0.01, 1.0) } else { 0.0 }).collect();
    let sum: f64 = parts.iter().sum();
    let one = |part: f64| {
        let part = if part > 0.0 { part / sum * all } else { 0.0 };
        let milli = (part * cloud.capacity * 1000.0) as u64;
        let bytes = (part * cloud.bandwidth()) as u64;
        if milli == 0 || bytes < 1024 {
            return Reservation::default();
        }
        let lower = if chance.happens(0.5) { 1.0 } else { chance.unit() };
        let (iops, rate) = (Iops::from_milli(milli), ByteRate::per_second(bytes));
        match chance.below(4) {
            0 => Reservation { iops: None, bytes: Some(rate) },
            1 => Reservation { iops: Some(Iops::from_milli((milli as f64 * lower) as u64)), bytes: Some(rate) },
            _ => Reservation { iops: Some(iops), bytes: None },
        }
    };
    parts.into_iter().map(one).collect()
}

fn policy(chance: &mut Chance, cloud: &Cloud, count: usize, reservation: Reservation) -> Policy {
    let weight = Weight::from_hundredths((chance.log(0.01, 1000.0) * 100.0).round() as u64);
    let reserved = reservation != Reservation::default();
    let weight = Some(weight).filter(|_| !(reserved && chance.happens(0.05)));
    let mut limit = Limit::default();
    // From a fraction of the fair share to more than the capacity of the device.
    let part = |chance: &mut Chance| chance.log(0.05 / count as f64, 2.0);
    if chance.happens(0.3) {
        let iops = Iops::from_milli((part(chance) * cloud.capacity * 1000.0) as u64);
        limit.iops = Some(iops.max(reservation.iops.unwrap_or(iops)));
    }
    if chance.happens(0.2) {
        let rate = ByteRate::per_second((part(chance) * cloud.bandwidth()) as u64);
        limit.bytes = Some(rate.max(reservation.bytes.unwrap_or(rate)));
    }
    let burst = chance.happens(0.4).then(|| chance.log(1.0, 100.99) as u32);
    let policy = Policy { weight, reservation, limit, burst, ..Policy::default() };
    let capacity = cloud.stated_capacity();
    let refused = |policy: &Policy| {
        check_burst(policy, &cloud.info(), &capacity).is_err()
            || check_burst_of_large(policy, &cloud.info(), &capacity).is_err()
    };
    // Admission control rejects a burst that is too small for the reservation.
    if refused(&policy) { Policy { burst: None, ..policy } } else { policy }
}

fn load(chance: &mut Chance, cloud: &Cloud, count: usize, seconds: f64) -> Load {
    let share = cloud.capacity / count as f64;
    // More requests are needed to keep several nodes busy.
    let most = if cloud.nodes > 1 { 512.0 } else { 256.0 };
    match chance.below(10) {
        0..=3 => Load::Closed(chance.log(1.0, most + 0.99) as u32),
        4..=5 => Load::Closed(most as u32),
        6 => Load::Poisson(share * chance.log(0.05, 1.0)),
        7 => Load::Poisson(share * chance.log(1.0, 4.0)),
        8 => {
            let (cycles, part) = (2.0 + 18.0 * chance.unit(), 0.1 + 0.8 * chance.unit());
            let cycle = seconds / cycles;
            Load::Bursty { rate: share * chance.log(0.3, 6.0), on: cycle * part, off: cycle * (1.0 - part) }
        }
        _ => Load::Off,
    }
}
