//! The bounds of mClock that always hold, on random runs: reservations in time, published limits, allocations.

use crate::common::analysis::water_fill;
use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::params::Value;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

const MODES: [fn() -> Subject; 2] = [product, paper];

fn one_of(mode: fn() -> Subject, batch: i64) -> Subject {
    mode().with("batch", Value::Integer(batch))
}

/// A device of `capacity` requests per second: one at a time, or `servers` concurrently with simultaneous completions.
fn steady(subject: &Subject, depth: u32, capacity: u64, servers: u64) -> World {
    let mut world = World::simple(subject, depth, capacity);
    if servers > 1 {
        world.device = Stub::parallel(servers as usize, servers * SECOND / capacity);
    }
    world
}

/// Q4: a request with tag R is dispatched by R + (N b + 1 + s0) / C. Reservations have random sizes up to all of the
/// capacity; the device frees its slots one by one (s0 = 0) or s0 at a time.
// rule: mclock.bound-reservation, mclock.batch
#[test]
fn q4_a_reserved_request_is_dispatched_soon_after_its_tag() {
    const CAPACITY: u64 = 1000;
    let mut rng = chance(44);
    let mut worst = 0.0f64;
    for round in 0..60 {
        let subject = one_of(MODES[round % 2], pick(&mut rng, &[1, 1, 2, 8]));
        let batch = match subject.params.get("batch") {
            Some(Value::Integer(batch)) => *batch as u64,
            _ => 1,
        };
        let count = 1 + below(&mut rng, 8);
        let servers = pick(&mut rng, &[1, 1, 4, 16]);
        let mut world = steady(&subject, servers as u32, CAPACITY, servers);
        let parts: Vec<u64> = (0..count).map(|_| 1 + below(&mut rng, 20)).collect();
        let sum: u64 = parts.iter().sum();
        // As admission control accepts: product mode leaves 2 % to VMs without a reservation, one request at a time.
        let is_product = round % 2 == 0;
        let percent = pick(&mut rng, &[50, 95, if is_product { 98 } else { 100 }]);
        let (floor, between) = if is_product { (0.98, 1) } else { (1.0, 0) };
        // VMs without a reservation take the rest.
        for weight in [1, 1000] {
            world.busy(Policy::weighted(weight), Pattern::Closed(64));
        }
        let mut reserved = Vec::new();
        for part in parts {
            let rate = Iops::from_milli(CAPACITY * 10 * percent * part / sum);
            let mut policy = Policy { weight: None, ..Policy::default() };
            policy.reservation.iops = Some(rate);
            let vm = world.vm(policy);
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(256)).places(Places::Contiguous));
            reserved.push((vm, rate));
        }
        world.run_until(secs(5));
        let s0 = if servers > 1 { servers } else { 0 };
        let bound = (count * batch + 1 + s0 + between) as f64 / (CAPACITY as f64 * floor);
        for (vm, rate) in reserved {
            // The k-th request has the tag k/r as long as the VM has requests.
            for (index, at) in world.times(vm).iter().enumerate() {
                let tag = index as f64 * 1000.0 / rate.milli() as f64;
                let late = at.as_nanos() as f64 / SECOND as f64 - tag;
                worst = worst.max(late / bound);
                let what = format!("{} {count} VMs, batch {batch}, s0 {s0}", subject.label());
                assert!(late <= bound + 1e-9, "{what}: request {index} is {late} s late, at most {bound}");
            }
            let due = 5.0 * rate.milli() as f64 / 1000.0;
            let least = due - 1.0 - rate.milli() as f64 / 1000.0 * bound;
            assert!(world.times(vm).len() as f64 >= least, "{} of {due}", world.times(vm).len());
        }
    }
    println!("the latest at {worst:.2} of the bound");
    assert!(worst >= 0.5, "the bound means something: {worst}");
}

/// Q5: the published limit passes at most l (t - t0) + 2 from the start of a backlog on, with any device.
// rule: mclock.bound-limit-paper
#[test]
fn q5_the_published_limit_holds_from_the_start_of_the_backlog() {
    let mut rng = chance(55);
    for _ in 0..60 {
        let limit = pick(&mut rng, &[3, 10, 100, 333, 900]);
        let mut policy = Policy::weighted(pick(&mut rng, &[1, 10, 1000])).limited(limit);
        policy.reservation.iops = pick(&mut rng, &[None, Some(limit / 2), Some(limit)]).map(Iops::per_second);
        policy.reservation.iops = policy.reservation.iops.filter(|rate| rate.milli() > 0);
        policy.idle_credit = pick(&mut rng, &[0, 1, 256]);
        let depth = pick(&mut rng, &[1, 4, 32]);
        let mut world = World::simple(&paper(), depth, 1000);
        let order = pick(&mut rng, &[Order::Fifo, Order::Lifo, Order::Random]);
        world.device = Stub::new(depth as usize, order, Service::Between(MILLI, 9 * MILLI));
        for _ in 0..below(&mut rng, 4) {
            let other = Policy::weighted(pick(&mut rng, &[1, 100, 1000]));
            world.busy(other, pick(&mut rng, &[Pattern::Closed(16), Pattern::Open(7 * MILLI)]));
        }
        let vm = world.busy(policy, Pattern::Closed(64));
        for second in 1..10 {
            world.run_until(secs(second));
            if below(&mut rng, 3) == 0 {
                world.device.stalled_until = world.after(SECOND);
            }
        }
        for (index, at) in world.times(vm).iter().enumerate() {
            let allowed = limit as f64 * at.as_nanos() as f64 / SECOND as f64 + 2.0;
            assert!(index as f64 + 1.0 <= allowed, "{index} dispatched by {at:?} of {limit}/s");
        }
    }
}

/// Q8: each VM gets its allocation within 5 %, over 10 s.
// rule: mclock.water-filling
#[test]
fn q8_each_vm_gets_its_allocation() {
    let mut rng = chance(88);
    for _ in 0..100 {
        let capacity = 500 + 100 * below(&mut rng, 40);
        let count = 2 + below(&mut rng, 7);
        let depth = pick(&mut rng, &[1, 2, 8, 32]);
        let settings = GateSettings { depth, cost: CostModel::per_request(), ..GateSettings::default() };
        let info = DeviceInfo { depth, ..DeviceInfo::default() };
        let mut world = World::new(product().build(&info), settings, Stub::serial(SECOND / capacity));
        let (mut table, mut vms) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let weight = pick(&mut rng, &[1, 2, 4, 10, 1000]);
            let reservation = if below(&mut rng, 2) == 0 { 0 } else { below(&mut rng, capacity / count) };
            let limit = if below(&mut rng, 2) == 0 { u64::MAX } else { reservation + 1 + below(&mut rng, capacity) };
            let mut policy = Policy::weighted(weight);
            policy.reservation.iops = (reservation > 0).then(|| Iops::per_second(reservation));
            policy.limit.iops = (limit < u64::MAX).then(|| Iops::per_second(limit));
            // The default is as large as the depth: with 1 a limited VM gets less while reservations are due together.
            policy.burst = (depth == 1).then_some(4);
            table.push((f64::from(weight), reservation as f64, limit as f64));
            vms.push(world.busy(policy, Pattern::Closed(64)));
        }
        world.run_until(secs(12));
        for (vm, due) in vms.iter().zip(water_fill(capacity as f64, &table)) {
            // Two requests may be on either side of the ends of the 10 s.
            let (got, due) = (world.count(*vm, secs(2), secs(12)) as f64, 10.0 * due);
            assert!((got - due).abs() <= 0.05 * due + 2.0, "{got} of {due} at {capacity}/s, depth {depth}, {table:?}");
        }
    }
}
