//! Plans that the campaign found, each reduced to what is needed and run for longer. The tolerance is 1 % on one device and
//! 2 % on several nodes.

use sluice_sched::{ByteRate, Bytes, CostModel, Iops, Policy};

use super::holes::{Meter, kib, read, reserving_bytes, weight};
use super::plan::{Cloud, Load, Service};
use super::world::World;

fn reserving(policy: Policy, iops: f64) -> Policy {
    let mut policy = policy;
    policy.reservation.iops = Some(Iops::from_milli((iops * 1000.0).round() as u64));
    policy
}

fn limited(policy: Policy, iops: f64) -> Policy {
    let mut policy = policy;
    policy.limit.iops = Some(Iops::from_milli((iops * 1000.0).round() as u64));
    policy
}

/// Asserts that a rate differs from the due rate by at most the fraction `tolerance` of it.
fn assert_due(what: &str, got: f64, due: f64, tolerance: f64) {
    assert!((got - due).abs() <= tolerance * due, "{what}: {got:.2} of {due:.2}");
}

/// Rate of a VM with a reservation that first uses the device alone for `seconds`. Then the others become backlogged too,
/// and all VMs have only weights.
fn rate_after_solo_phase(capacity: f64, alone: Policy, then: Policy, others: &[Policy], seconds: f64) -> f64 {
    let mut world = World::new(&Cloud::device(capacity, 1, 1), "mclock", 1);
    let first = world.vm(alone, &[kib(8)]);
    let others: Vec<usize> = others.iter().map(|policy| world.vm(*policy, &[kib(8)])).collect();
    world.set_load(first, Load::Closed(256));
    world.run_for(seconds);
    world.set_policy(world.vm_of(first), then);
    others.into_iter().for_each(|other| world.set_load(other, Load::Closed(256)));
    let meter = Meter::start(&world);
    world.run_for(1.0);
    meter.rate(&world, first)
}

#[test]
fn service_by_a_reservation_on_an_idle_device_is_not_charged_to_the_weight_later() {
    let alone = limited(reserving(weight(1.13), 2802.698), 2802.698);
    let got = rate_after_solo_phase(22_910.3, alone, weight(0.84), &[weight(0.16), weight(3.17)], 1.1757);
    assert_due("0.84 next to 0.16 and 3.17", got, 22_910.3 * 0.84 / 4.17, 0.01);
    let alone = limited(reserving(weight(0.02), 19_860.863), 19_860.863);
    let got = rate_after_solo_phase(31_725.7, alone, weight(17.51), &[weight(272.83)], 0.6367);
    assert_due("17.51 next to 272.83", got, 31_725.7 * 17.51 / 290.34, 0.01);
}

/// One request may be due by the reservation in requests and the next one by that in bytes, and neither tag is ahead of the
/// current time by more than a step. So mixed sizes get more than each reservation alone gives, and at most what admission
/// control counts.
#[test]
fn reservations_in_requests_and_bytes_give_mixed_sizes_at_most_what_admission_counts() {
    let cloud = Cloud::device(718.8, 1, 1);
    let mut world = World::new(&cloud, "mclock", 1);
    let both = reserving_bytes(reserving(weight(0.09), 37.696), 433_942);
    let mixed = world.vm(both, &[kib(16), kib(4)]);
    let other = world.vm(weight(19.02), &[kib(8)]);
    [mixed, other].into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    let meter = Meter::start(&world);
    world.run_for(60.0);
    let got = meter.rate(&world, mixed);
    let admitted = 433_942.0 / cloud.request_bytes as f64;
    assert!(got >= 0.99 * 37.696 && got <= 1.01 * admitted, "{got:.2} of 37.70 to {admitted:.2}");
}

/// The cap on the debt of a share. A device that frees n slots together does so every n / C seconds. If the fraction r of
/// its capacity C is reserved, the reservation takes n r slots in one instant, while virtual time stands still. Of these, 16
/// count as debt and n r - 16 are dropped, each time. A VM loses its share, by weight, of (n r - 16) C / n.
///
/// Example: 25 slots, 82 % reserved, 33,529/s, weight 1 next to 4.74: at most (20.4 - 16) x 1341 x 0.174 = 1036 of 5841 are
/// lost. The VM gets 5364.
#[test]
fn synchronised_servers_cost_a_share_at_most_what_the_debt_cap_drops() {
    let (depth, capacity, reserved, weights) = (25, 33_529.4, 27_406.637, (4.74, 1.0));
    let mut world = World::new(&Cloud::device(capacity, depth, depth), "mclock", 1);
    let sources = [reserving(weight(weights.0), reserved), weight(weights.1)].map(|policy| world.vm(policy, &[kib(8)]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    let meter = Meter::start(&world);
    world.run_for(5.0);
    let part = weights.1 / (weights.0 + weights.1);
    let dropped = (f64::from(depth) * reserved / capacity - 16.0) * part * capacity / f64::from(depth);
    let (got, due) = (meter.rate(&world, sources[1]), part * capacity);
    assert!(got >= 0.99 * (due - dropped) && got <= 1.01 * due, "{got:.1} of {due:.1}, {dropped:.1} may be lost");
}

/// Service that the debt cap drops if service times are random. While the device is slow, a reservation r takes more than the VM's
/// share s of C, which is a debt. While the device is fast, the VM gets less by weight. The debt is a random walk: r t
/// requests minus the fraction s / C of the device's service. Its variance is (s / C)^2 C per second, and it drifts back by
/// s - r. A debt of one request moves the VM's tag ahead by one request, and the tags of the others behind by what they
/// missed. So a tag that is 16 requests ahead of the others corresponds to b = 16 (1 - s / C) requests. A walk with variance
/// v and drift d that starts at 0 exceeds b by d / (e^(2 d b / v) - 1), and by v / 2 b without a drift.
///
/// Example: half of 1000/s, all of it reserved: v = 250, b = 8, and 250 / 16 = 15.6/s are dropped, so the VM gets 515.6
/// instead of 500, 3.1 % more. With 480 reserved it is 20 / (e^1.28 - 1) = 7.7/s, with 400 at most 0.2/s.
#[test]
fn a_reservation_close_to_the_share_gains_at_most_what_the_debt_cap_drops_on_a_random_device() {
    let (capacity, share) = (1000.0, 500.0);
    let service = Service { fixed_ns: None, exponential: true };
    for reserved in [500.0, 480.0, 400.0] {
        let mut world = World::new(&Cloud { service, ..Cloud::device(capacity, 1, 1) }, "mclock", 1);
        let sources = [reserving(weight(1.0), reserved), weight(1.0)].map(|policy| world.vm(policy, &[kib(8)]));
        sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
        let meter = Meter::start(&world);
        world.run_for(400.0);
        let [got, other] = sources.map(|source| meter.rate(&world, source));
        let (variance, drift) = (share * share / capacity, share - reserved);
        let cap = 16.0 * (1.0 - share / capacity);
        let twice = 2.0 * cap / variance;
        let dropped = if drift > 0.0 { drift / ((drift * twice).exp() - 1.0) } else { 1.0 / twice };
        let gained = got - (got + other) / 2.0;
        assert!(
            gained >= -0.01 * share && gained <= dropped + 0.01 * share,
            "{gained:.2} of {dropped:.2} at {reserved}"
        );
    }
}

#[test]
fn a_reservation_in_bytes_above_a_limit_takes_nothing_from_another_reservation() {
    let mut world = World::new(&Cloud { request_bytes: 83_509, ..Cloud::device(1581.9, 14, 14) }, "mclock", 1);
    let mut policy = limited(reserving(Policy { weight: None, ..Policy::default() }, 173.004), 173.004);
    policy.reservation.bytes = Some(ByteRate::per_second(24_539_826));
    let above = world.vm(policy, &[kib(8)]);
    let reserved = world.vm(reserving(weight(10.22), 137.067), &[kib(8)]);
    let weighted = world.vm(weight(128.35), &[kib(8)]);
    [above, reserved, weighted].into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    for second in 0..6 {
        let meter = Meter::start(&world);
        world.run_for(10.0);
        let got = meter.rate(&world, reserved);
        assert!(got >= 0.98 * 137.067, "from {second}0 s: {got:.2} of 137.07");
    }
}

/// Rates of two VMs on two nodes. Each VM has this policy and request length, and keeps 256 requests outstanding.
fn on_two_nodes(cloud: Cloud, vms: [(Policy, u64); 2]) -> [f64; 2] {
    let mut world = World::new(&Cloud { nodes: 2, ..cloud }, "mclock", 1);
    let sources = vms.map(|(policy, length)| world.vm(policy, &[read(length)]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    world.run_for(1.0);
    let meter = Meter::start(&world);
    world.run_for(20.0);
    sources.map(|source| meter.rate(&world, source))
}

#[test]
fn a_reservation_on_two_nodes_is_served_once_for_split_requests() {
    let cloud = Cloud { request_bytes: 88_075, ..Cloud::device(2975.3, 1, 1) };
    let vms = [(weight(72.25), 8192), (reserving(weight(23.46), 495.912), 1 << 20)];
    let got = on_two_nodes(cloud, vms);
    assert_due("1 MiB requests", got[1], 2975.3 * 23.46 / 95.71, 0.02);
}

#[test]
fn a_share_above_the_reservation_holds_on_two_nodes_for_large_requests() {
    let cost = CostModel { knee: Bytes(16_384), ..CostModel::default() };
    let cloud = Cloud { request_bytes: 41_673, cost, ..Cloud::device(10_745.6, 1, 1) };
    let vms = [(weight(7.03), 8192), (reserving(weight(6.36), 3722.916), 256 << 10)];
    let got = on_two_nodes(cloud, vms);
    assert_due("256 KiB requests", got[1], 10_745.6 * 6.36 / 13.39, 0.02);
}

#[test]
fn a_small_weight_next_to_a_large_reservation_gets_its_share_on_two_nodes() {
    let vms = [(reserving(weight(396.17), 7131.125), 8192), (weight(4.68), 8192)];
    let got = on_two_nodes(Cloud::device(7276.7, 1, 1), vms);
    assert_due("next to 98 % reserved", got[1], 7276.7 * 4.68 / 400.85, 0.02);
}

/// A report has a sum of bytes and a sum of costs, of which the larger counts. A node counts its own service per request.
#[test]
fn a_reservation_in_bytes_on_nine_nodes_gives_mixed_sizes_at_most_what_reports_omit() {
    let (rate, nodes) = (2_028_987_058, 9);
    let cloud = Cloud { nodes, request_bytes: 51_128, ..Cloud::device(58_040.2, 1, 1) };
    let mut world = World::new(&cloud, "mclock", 1);
    let alone = Policy { weight: None, ..Policy::default() };
    let source = world.vm(reserving_bytes(alone, rate), &[read(270_848), kib(32)]);
    world.set_load(source, Load::Closed(256));
    let meter = Meter::start(&world);
    world.run_for(4.0);
    let totals = world.sources[source].totals;
    let each = |bytes: u64| bytes as f64 / totals.got();
    let (counted, reported) = (each(totals.reserved_bytes), each(totals.bytes).max(cloud.request_bytes as f64));
    let due = [counted, (counted + (nodes - 1) as f64 * reported) / nodes as f64].map(|each| rate as f64 / each);
    let got = meter.rate(&world, source);
    assert!(got >= 0.98 * due[0] && got <= 1.02 * due[1], "{got:.1} of {:.1} to {:.1}", due[0], due[1]);
}

/// A node that learns of service moves the VM's tags by it, whenever it happened. A VM that becomes silent with 256 queued
/// requests reports none of them until it sends again, although no other VM was backlogged when they were served.
#[test]
fn unreported_service_of_a_silent_vm_is_charged_once() {
    let mut world = World::new(&Cloud { nodes: 2, ..Cloud::device(3133.7, 1, 1) }, "mclock", 1);
    let [silent, other] = [weight(16.3), weight(295.56)].map(|policy| world.vm(policy, &[kib(8)]));
    [silent, other].into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    world.run_for(5.0);
    world.set_policy(world.vm_of(silent), weight(0.02));
    world.set_policy(world.vm_of(other), limited(weight(4.66), 114.285));
    world.set_load(silent, Load::Off);
    world.run_for(31.0);
    world.set_policy(world.vm_of(silent), weight(6.39));
    world.set_policy(world.vm_of(other), weight(660.48));
    world.set_load(silent, Load::Closed(256));
    let (meter, due) = (Meter::start(&world), 3133.7 * 6.39 / 666.87);
    world.run_for(20.0);
    let missing = (due - meter.rate(&world, silent)) * 20.0;
    assert!(missing <= 256.0, "{missing:.1} of at most 256");
    let meter = Meter::start(&world);
    world.run_for(20.0);
    assert_due("afterwards", meter.rate(&world, silent), due, 0.02);
}

/// If all requests of a VM are queued at one node, the VM gets at the others only as much as completes there, and other VMs
/// get the unused capacity. This does not count for their reservations, because dmClock counts service in the weight phase at
/// other nodes for no reservation. A node gives a reservation r at most r. So the VMs that are queued at one node get at
/// least C / n - r there, and as much at each other node: C - n r together. The state may be permanent.
///
/// Example: 4937/s on two nodes, 895 reserved: 4937 - 1790 = 3147 of 4042.
#[test]
fn vms_queued_at_one_of_two_nodes_lose_at_most_one_reservation_per_node() {
    let (capacity, reserved) = (4936.9, 895.086);
    let cloud = Cloud { nodes: 2, request_bytes: 62_910, ..Cloud::device(capacity, 1, 1) };
    let mut world = World::new(&cloud, "mclock", 1608);
    let before = [weight(6.04), reserving_bytes(weight(1.39), 49_911_039), reserving(weight(548.79), 2000.618)];
    let after = [weight(9.67), reserving(weight(17.07), reserved), weight(118.19)];
    let sources = before.map(|policy| world.vm(policy, &[kib(8)]));
    sources.into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    world.run_for(16.4031);
    for (source, policy) in sources.into_iter().zip(after) {
        world.set_policy(world.vm_of(source), policy);
    }
    world.set_load(sources[1], Load::Closed(512));
    world.run_for(10.0);
    let meter = Meter::start(&world);
    world.run_for(20.0);
    let got = sources.map(|source| meter.rate(&world, source));
    let least = capacity - 2.0 * reserved;
    assert!(got[0] + got[2] >= 0.98 * least, "{got:?}, of at least {least:.1}");
    assert_due("by weight", got[0] / got[2], 9.67 / 118.19, 0.02);
}

/// A client of several servers has a part of its burst at each. If that part is smaller than what the limit allows while a
/// request is at the device, variations of the reported service cost a part of the limit.
#[test]
fn a_small_burst_on_slow_nodes_costs_less_than_a_tenth_of_the_limit() {
    let got = [30, 300].map(|burst| {
        let mut world = World::new(&Cloud { nodes: 8, ..Cloud::device(960.5, 18, 1) }, "mclock", 1);
        let policy = Policy { burst: Some(burst), ..limited(weight(697.37), 261.0) };
        let vms = [weight(13.32), policy].map(|policy| world.vm(policy, &[kib(8)]));
        vms.into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
        world.run_for(40.0);
        let meter = Meter::start(&world);
        world.run_for(60.0);
        meter.rate(&world, vms[1])
    });
    assert!(got[0] >= 0.9 * 261.0 && got[1] >= 0.99 * 261.0 && got.iter().all(|got| *got <= 1.01 * 261.0), "{got:?}");
}

/// Nodes learn of service at the others with a VM's requests. Up to n (n - 1) requests may be unreported; the nodes
/// compensate for them later.
#[test]
fn unreported_requests_above_a_limit_on_nine_nodes_do_not_accumulate() {
    let cloud = Cloud { nodes: 9, ..Cloud::device(27_663.4, 1, 1) };
    let mut world = World::new(&cloud, "mclock", 1);
    let policy = limited(reserving(weight(4.2), 182.845), 182.845);
    let large = world.vm(policy, &[read(1 << 20)]);
    let others = [827.85, 14.51, 785.36].map(|weights| world.vm(weight(weights), &[kib(8)]));
    world.set_load(large, Load::Poisson(479.0));
    others.into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    let requests = cloud.cost(read(1 << 20)) * 9.0 * 8.0;
    let (meter, most) = (Meter::start(&world), requests + cloud.burst(&policy).requests + 9.0 * 2.1);
    for seconds in 1..=40 {
        world.run_for(1.0);
        let over = (meter.rate(&world, large) - 182.845) * f64::from(seconds);
        assert!(over <= most, "after {seconds} s: {over:.1} of at most {most:.1} above the limit");
    }
    assert_due("in 40 s", meter.rate(&world, large), 182.845, 0.02);
}

/// With random service times and a burst of few requests, a VM cannot use all of its limit. A reservation as high as the limit
/// misses the same amount, and catches up on it when the limit is removed: by at most one second of the reservation.
#[test]
fn a_reservation_catches_up_on_at_most_one_second_of_what_its_limit_prevented() {
    let service = Service { fixed_ns: None, exponential: true };
    let mut world = World::new(&Cloud { service, ..Cloud::device(1821.0, 1, 1) }, "mclock", 1);
    let reserved = world.vm(limited(reserving(weight(1.44), 1737.416), 1737.416), &[kib(8)]);
    let other = world.vm(weight(14.15), &[kib(8)]);
    [reserved, other].into_iter().for_each(|source| world.set_load(source, Load::Closed(256)));
    world.run_for(10.0);
    world.set_policy(world.vm_of(reserved), reserving(weight(0.7), 1464.681));
    let meter = Meter::start(&world);
    world.run_for(20.0);
    let over = (meter.rate(&world, reserved) - 1464.681) * 20.0;
    assert!(over <= 1.01 * 1464.681, "{over:.1} of at most 1464.7, one second");
    let meter = Meter::start(&world);
    world.run_for(20.0);
    assert_due("afterwards", meter.rate(&world, reserved), 1464.681, 0.01);
}
