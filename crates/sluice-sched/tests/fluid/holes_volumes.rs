//! Limits and reservations of volumes next to those of their VM and of other VMs, on one device.

use sluice_sched::policy::Limit;
use sluice_sched::{Iops, Kind, Policy};

use super::holes::{Meter, kib, least_second, weight};
use super::plan::{Ask, Cloud, Load};
use super::station::SECOND;
use super::world::World;

/// Names the same volume limit in two ways.
const LIMITS: [fn(u64) -> Policy; 2] = [|rate| Policy::default().limited(rate), write_limited];

fn write_limited(rate: u64) -> Policy {
    with_write_limit(Policy::default(), rate)
}

fn with_write_limit(policy: Policy, rate: u64) -> Policy {
    Policy { write_limit: Limit { iops: Some(Iops::per_second(rate)), bytes: None }, ..policy }
}

fn write() -> Ask {
    Ask { kind: Kind::Write, ..kib(8) }
}

/// A device of 1000/s with this queue depth.
fn world(depth: u32) -> World {
    let mut world = World::new(&Cloud::device(1000.0, depth, depth), "mclock", 1);
    world.log = Some(Vec::new());
    world
}

/// A neighbour that is due 450/s, and one of a large weight. Returns the source of the first.
fn add_neighbours(world: &mut World) -> usize {
    let reserved = world.vm(weight(1.0).reserving(450), &[kib(8)]);
    let weighted = world.vm(weight(1000.0), &[kib(8)]);
    [reserved, weighted].into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    reserved
}

fn least_of(world: &World, source: usize, from: u64, seconds: usize) -> f64 {
    least_second(world.log.as_ref().expect("it is kept"), source, from * SECOND, seconds)
}

#[test]
fn a_limit_of_a_volume_takes_nothing_from_the_reservation_of_another_vm() {
    for (depth, limited) in [8, 32].into_iter().flat_map(|depth| LIMITS.map(|limited| (depth, limited))) {
        for volumes in [vec![limited(100)], vec![limited(100), Policy::default()], vec![limited(60), limited(40)]] {
            let mut world = world(depth);
            let vm = world.add_vm(weight(100.0).reserving(500), &volumes);
            // A volume without a limit has no requests.
            for (volume, _) in volumes.iter().enumerate().filter(|(_, policy)| **policy != Policy::default()) {
                let source = world.add_source(vm, volume, &[write()]);
                world.set_load(source, Load::Closed(64));
            }
            let reserved = add_neighbours(&mut world);
            world.run_for(60.0);
            let least = least_of(&world, reserved, 0, 60);
            let most = f64::from(2 * depth);
            assert!(least >= 450.0 - most, "depth {depth}, {volumes:?}: {least:.1} of 450 in the worst second");
        }
    }
}

/// A VM without a limit on one of its volumes can make up for what the limit of the other delays.
#[test]
fn a_limit_of_one_volume_takes_nothing_from_the_reservation_of_its_vm() {
    let mut world = world(8);
    let vm = world.add_vm(weight(1.0).reserving(500), &[Policy::default().limited(100), weight(1.0)]);
    let sources = [0, 1].map(|volume| world.add_source(vm, volume, &[kib(8)]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    let reserved = add_neighbours(&mut world);
    let meter = Meter::start(&world);
    world.run_for(60.0);
    let got: f64 = sources.into_iter().map(|source| meter.rate(&world, source)).sum();
    assert!(got >= 495.0, "{got:.1} of 500");
    let least = least_of(&world, reserved, 0, 60);
    assert!(least >= 434.0, "{least:.1} of 450 in the worst second");
}

#[test]
fn a_limit_of_a_volume_that_is_lifted_after_ten_minutes_leaves_nothing_to_catch_up() {
    for limited in LIMITS {
        let mut world = world(8);
        let vm = world.add_vm(weight(100.0).reserving(500), &[limited(100)]);
        let source = world.add_source(vm, 0, &[write()]);
        world.set_load(source, Load::Closed(64));
        let reserved = add_neighbours(&mut world);
        world.run_for(600.0);
        world.set_volume_policy(source, Policy::default());
        let meter = Meter::start(&world);
        world.run_for(10.0);
        let least = least_of(&world, reserved, 600, 10);
        assert!(least >= 434.0, "{least:.1} of 450 in the worst second");
        // Once its share of the device and the burst of the limit were all it could be owed.
        let got = meter.rate(&world, source);
        assert!((495.0..=510.0).contains(&got), "{got:.1} of 500");
    }
}

/// Rates of two volumes of a VM with `reservation` and `limit`, which reserve a half of it each, the second less one. The first has
/// weight 1, the second 1000.
fn at_the_limit(vm: Policy, half: u64, idle: bool, ask: Ask) -> [f64; 2] {
    let mut world = world(8);
    let volumes = [weight(1.0).reserving(half), weight(1000.0).reserving(half - 1)];
    let vm = world.add_vm(vm, &volumes);
    let sources = [0, 1].map(|volume| world.add_source(vm, volume, &[ask]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    if !idle {
        let other = world.vm(weight(1000.0), &[kib(8)]);
        world.set_load(other, Load::Closed(64));
    }
    world.run_for(2.0);
    let meter = Meter::start(&world);
    world.run_for(60.0);
    sources.map(|source| meter.rate(&world, source))
}

#[test]
fn volumes_get_their_reservations_while_their_vm_is_at_its_limit() {
    for (reservation, limit) in [(100, 105), (300, 310), (100, 100)] {
        for (idle, by_direction) in [(false, false), (true, false), (false, true), (true, true)] {
            let vm = weight(1.0).reserving(reservation);
            let vm = if by_direction { with_write_limit(vm, limit) } else { vm.limited(limit) };
            let half = reservation / 2;
            let got = at_the_limit(vm, half, idle, write());
            let case = format!("limit {limit} of writes: {by_direction}, idle device: {idle}");
            assert!(got[0] >= half as f64 * 0.99 && got[1] >= (half - 1) as f64 * 0.99, "{case}: {got:.1?} of {half}");
        }
    }
}

#[test]
fn a_volume_without_a_reservation_gets_the_floor_of_a_vm_at_its_limit() {
    let mut world = world(8);
    let volumes = [weight(1.0).reserving(49), weight(1.0).reserving(49), weight(1000.0)];
    let vm = world.add_vm(weight(1.0).reserving(100).limited(100), &volumes);
    let sources = [0, 1, 2].map(|volume| world.add_source(vm, volume, &[kib(8)]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    world.run_for(5.0);
    let meter = Meter::start(&world);
    world.run_for(60.0);
    let got = sources.map(|source| meter.rate(&world, source));
    assert!(got[0] >= 48.5 && got[1] >= 48.5 && got[2] >= 1.9, "{got:.1?} of 49, 49 and 2");
}

/// The limit of the VM's writes passes less than its volumes reserve. One of them reads, which nothing limits.
#[test]
fn a_write_limit_of_a_vm_takes_nothing_from_the_reservation_of_a_volume_that_reads() {
    let mut world = world(8);
    let volumes = [weight(1.0).reserving(50), weight(1.0).reserving(49), weight(1000.0)];
    let vm = world.add_vm(with_write_limit(weight(1.0).reserving(110), 10).limited(120), &volumes);
    let asks = [write(), kib(8), kib(8)];
    let sources = [0, 1, 2].map(|volume| world.add_source(vm, volume, &[asks[volume]]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    let reserved = add_neighbours(&mut world);
    world.run_for(5.0);
    let meter = Meter::start(&world);
    world.run_for(60.0);
    let got = sources.map(|source| meter.rate(&world, source));
    assert!(got[0] >= 9.9 && got[1] >= 48.5, "{got:.1?} of 10 and 49");
    let least = least_of(&world, reserved, 0, 60);
    assert!(least >= 434.0, "{least:.1} of 450 in the worst second");
}

/// The VM's limit in bytes passes 16 requests per second, and its volumes reserve 99. A volume with one request at a time is owed its part.
#[test]
fn a_volume_that_becomes_active_does_not_wait_until_others_have_caught_up() {
    let mut world = world(8);
    let mut policy = weight(1.0).reserving(100);
    policy.limit.bytes = Some(sluice_sched::ByteRate::per_second(1 << 20));
    let vm = world.add_vm(policy, &[weight(1.0).reserving(50), weight(1.0).reserving(49)]);
    let [always, sparse] = [0, 1].map(|volume| world.add_source(vm, volume, &[kib(64)]));
    world.set_load(always, Load::Closed(64));
    world.run_for(10.0);
    world.set_load(sparse, Load::Closed(1));
    world.run_for(60.0);
    let log = world.log.as_ref().expect("it is kept");
    let longest = log.iter().filter(|record| record.source == sparse).map(|record| record.waited).max();
    assert!(longest.is_some_and(|waited| waited <= SECOND / 2), "waited for {longest:?} ns");
}

#[test]
fn a_write_limit_is_divided_by_weight_while_the_scheduler_changes_often() {
    for millis in [20, 50] {
        let mut world = world(8);
        let vm = world.add_vm(with_write_limit(Policy::default(), 100), &[weight(1.0), weight(3.0)]);
        let sources = [0, 1].map(|volume| world.add_source(vm, volume, &[write()]));
        sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
        world.run_for(2.0);
        let meter = Meter::start(&world);
        for _ in 0..30_000 / millis {
            world.run_for(millis as f64 / 1000.0);
            world.replace_scheduler("mclock");
        }
        let got = sources.map(|source| meter.rate(&world, source));
        assert!(
            (got[0] - 25.0).abs() <= 1.0 && (got[1] - 75.0).abs() <= 1.0,
            "every {millis} ms: {got:.1?} of 25 and 75"
        );
    }
}

/// What a VM is owed does not grow by changes either.
#[test]
fn a_limit_of_a_volume_takes_nothing_from_others_while_policies_and_the_scheduler_change_often() {
    for changes_scheduler in [false, true] {
        let mut world = world(8);
        let vm = world.add_vm(weight(100.0).reserving(500), &[Policy::default().limited(100)]);
        let source = world.add_source(vm, 0, &[kib(8)]);
        world.set_load(source, Load::Closed(64));
        let reserved = add_neighbours(&mut world);
        for change in 0..2000u64 {
            world.run_for(0.03);
            if changes_scheduler {
                world.replace_scheduler("mclock");
            } else {
                world.set_volume_policy(source, Policy::default().limited(100 + change % 2));
            }
        }
        let least = least_of(&world, reserved, 0, 60);
        assert!(least >= 434.0, "of the scheduler: {changes_scheduler}: {least:.1} of 450 in the worst second");
    }
}

/// A limit 10 % above the share, which is 250/s, on a device with random service times.
#[test]
fn a_limit_above_the_share_costs_less_than_two_percent_of_it_on_a_random_device() {
    let service = super::plan::Service { fixed_ns: None, exponential: true };
    let mut world = World::new(&Cloud { service, ..Cloud::device(500.0, 1, 1) }, "mclock", 1);
    let sources = [weight(1.0).limited(275), weight(1.0)].map(|policy| world.vm(policy, &[kib(8)]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(32)));
    let meter = Meter::start(&world);
    world.run_for(400.0);
    let got = sources.map(|source| meter.rate(&world, source));
    assert!(got[0] >= 0.98 * got[1], "{got:.1?} of equal shares");
}

/// A burst of 500/s for 10 s above a limit of 100/s: 5000 requests in 10 s, on any number of nodes.
#[test]
fn a_burst_for_a_time_lasts_as_long_on_several_nodes() {
    for nodes in [1, 2, 4] {
        let mut policy = weight(1.0).limited(100);
        let rate = Limit { iops: Some(Iops::per_second(500)), bytes: None };
        policy.timed_burst =
            Some(sluice_sched::policy::TimedBurst { rate, length: std::time::Duration::from_secs(10) });
        let mut world = World::new(&Cloud { nodes, ..Cloud::device(8000.0, 4, 4) }, "mclock", 1);
        let source = world.vm(policy, &[kib(8)]);
        world.set_load(source, Load::Closed(256));
        let rates = [10.0, 10.0].map(|seconds| {
            let meter = Meter::start(&world);
            world.run_for(seconds);
            meter.rate(&world, source)
        });
        assert!(
            (490.0..=525.0).contains(&rates[0]) && (95.0..=115.0).contains(&rates[1]),
            "{nodes} nodes: {rates:.1?}"
        );
    }
}

/// A write limit of the VM is shared by turns, and a volume that writes has a reservation. What it gets for that does not move the turns of
/// the others, and the floor is for the volume without a reservation.
#[test]
fn a_write_limit_is_divided_by_weight_next_to_reservations() {
    let mut world = world(8);
    let volumes = [weight(0.1).reserving(100), weight(1.0), weight(10.0), weight(5.0).reserving(50)];
    let vm = world.add_vm(with_write_limit(weight(1.0).reserving(400), 424), &volumes);
    let sources = [0, 1, 2, 3].map(|volume| world.add_source(vm, volume, &[write()]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    world.run_for(5.0);
    let meter = Meter::start(&world);
    world.run_for(60.0);
    let got = sources.map(|source| meter.rate(&world, source));
    let each = 324.0 / 16.0;
    let due = [100.0, each, 10.0 * each, 5.0 * each];
    assert!(got.iter().zip(due).all(|(got, due)| (got - due).abs() <= 0.03 * due), "{got:.1?} of {due:.1?}");
}

/// The write limit leaves nothing beyond the reservation, so that only the floor of 2 % serves the other volume. Its weight is as
/// large as that of the first one, whose reservation exceeds its share.
#[test]
fn a_volume_without_a_reservation_gets_the_floor_of_a_vm_at_its_write_limit() {
    let mut world = world(8);
    let volumes = [weight(1.0).reserving(399), weight(1.0)];
    let vm = world.add_vm(with_write_limit(weight(1.0).reserving(400), 400), &volumes);
    let sources = [0, 1].map(|volume| world.add_source(vm, volume, &[write()]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    world.run_for(5.0);
    let meter = Meter::start(&world);
    world.run_for(60.0);
    let got = sources.map(|source| meter.rate(&world, source));
    assert!(got[1] >= 7.8 && got[0] >= 391.0, "{got:.1?} of 392 and 8");
}

/// Two volumes are served for their reservations only, by the limit of their VM. Then the reservations go and the weights change: each
/// volume must have its new share at once, however long it was served before.
#[test]
fn weights_hold_at_once_after_a_time_of_reservations_only() {
    let policies =
        [|rate| weight(1.0).reserving(rate).limited(rate), |rate| with_write_limit(weight(1.0).reserving(rate), rate)];
    for policy in policies {
        let mut world = world(8);
        let before = [weight(1.5).reserving(100), weight(3.0).reserving(96), weight(1.0)];
        let vm = world.add_vm(policy(196), &before);
        let sources = [0, 1, 2].map(|volume| world.add_source(vm, volume, &[write()]));
        sources[..2].iter().for_each(|source| world.set_load(*source, Load::Closed(64)));
        world.run_for(300.0);
        world.set_policies(vm, policy(200), &[weight(40.0), weight(9.0), weight(1.0)]);
        world.set_load(sources[2], Load::Closed(64));
        world.run_for(1.0);
        let meter = Meter::start(&world);
        world.run_for(10.0);
        let got = sources.map(|source| meter.rate(&world, source));
        let due = [160.0, 36.0, 4.0];
        assert!(got.iter().zip(due).all(|(got, due)| (got - due).abs() <= 0.05 * due), "{got:.1?} of {due:.1?}");
    }
}

/// A write limit that does not bind orders the writes by turns. One of a small weight, whose turn is far, had the smallest share tag for all
/// writes, so that the volume which reads got nothing.
#[test]
fn a_volume_that_reads_gets_its_share_beside_a_write_limit() {
    let mut world = world(4);
    let volumes = [weight(63.0), weight(0.07), weight(48.0)];
    let vm = world.add_vm(with_write_limit(weight(1.0), 500), &volumes);
    let asks = [write(), write(), kib(8)];
    let sources = [0, 1, 2].map(|volume| world.add_source(vm, volume, &[asks[volume]]));
    let neighbour = world.vm(weight(9.0), &[kib(8)]);
    sources.into_iter().chain([neighbour]).for_each(|source| world.set_load(source, Load::Closed(64)));
    world.run_for(2.0);
    let meter = Meter::start(&world);
    world.run_for(20.0);
    let got = sources.map(|source| meter.rate(&world, source));
    let due = [63.0, 0.07, 48.0].map(|weight| 100.0 * weight / 111.07);
    assert!(got.iter().zip(due).all(|(got, due)| (got - due).abs() <= 0.03 * due + 0.2), "{got:.1?} of {due:.1?}");
}

/// The VM's own limit keeps another distance between requests than the limits of its volumes. A request of the volume with the smaller limit
/// counted with that one, a request of the other volume with that of the VM, and both together as more than the VM got.
#[test]
fn a_reservation_holds_beside_a_limit_of_the_vm_and_limits_of_its_volumes() {
    let limited: [fn(Policy, u64) -> Policy; 2] = [Policy::limited, with_write_limit];
    for (depth, limited) in [2, 16].into_iter().flat_map(|depth| limited.map(|limited| (depth, limited))) {
        for [first, second, own] in [[2296, 376, 1473], [100_000, 376, 1473], [1000, 376, 100_000]] {
            let mut world = World::new(&Cloud::device(3097.0, depth, depth), "mclock", 1);
            let volumes = [limited(weight(0.06), first), limited(weight(0.12), second)];
            let vm = world.add_vm(weight(0.38).reserving(1351).limited(own), &volumes);
            let sources = [0, 1].map(|volume| world.add_source(vm, volume, &[write()]));
            let other = world.vm(weight(16.0), &[kib(8)]);
            sources.into_iter().chain([other]).for_each(|source| world.set_load(source, Load::Closed(64)));
            world.run_for(4.0);
            let meter = Meter::start(&world);
            world.run_for(20.0);
            let got: f64 = sources.iter().map(|source| meter.rate(&world, *source)).sum();
            assert!(got >= 1345.0, "{got:.1} of 1351 with limits {first}, {second} and {own}, depth {depth}");
        }
    }
}
