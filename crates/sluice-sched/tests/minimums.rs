//! Reservations in requests and in bytes: each is a separate minimum, and neither gives more.

use crate::common::analysis::{bytes, cost};
use crate::common::*;
use proptest::prelude::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::params::Value;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// A device that serves 1,000 normalised requests, or 100 MB, per second, one at a time, each in the time of its cost.
const CAPACITY: u64 = 1000;
const BANDWIDTH: u64 = 100_000_000;

fn world(cost: CostModel) -> World {
    let settings = GateSettings { depth: 1, cost, ..GateSettings::default() };
    let capacity =
        admission::Capacity { iops: Some(Iops::per_second(CAPACITY)), bytes: Some(ByteRate::per_second(BANDWIDTH)) };
    let info = DeviceInfo::of(&settings, false, &capacity);
    World::new(product().build(&info), settings, Stub::serial(SECOND / CAPACITY))
}

fn bytes_reserved(rate: u64) -> Policy {
    let mut policy = Policy::weighted(1);
    policy.reservation.bytes = Some(ByteRate::per_second(rate));
    policy
}

// rule: mclock.byte-reservation
#[test]
fn a_byte_reservation_was_absolute_priority_for_requests_without_payload() {
    for kind in [Kind::Discard, Kind::Flush, Kind::WriteZeroes] {
        let mut world = world(CostModel::default());
        let tiny = world.vm(bytes_reserved(1024));
        let length = if kind == Kind::Flush { 0 } else { 64 << 10 };
        world.source(Source::new(tiny, VolumeId(0), Pattern::Closed(8)).kind(kind).lengths(&[length]));
        let neighbour = world.busy(Policy::weighted(1000).reserving(500), Pattern::Closed(16));
        world.run_until(secs(10));
        let rates = world.rates(&[tiny, neighbour], secs(1), secs(10));
        assert!(rates[0] <= 3.0 && rates[1] >= 990.0, "{kind:?}: {rates:?}");
    }
}

// rule: mclock.byte-reservation, mclock.volume-constraint
#[test]
fn a_byte_reservation_of_a_volume_was_absolute_priority_for_requests_without_payload() {
    for kind in [Kind::Discard, Kind::Flush, Kind::WriteZeroes] {
        let mut world = world(CostModel::default());
        let mut policy = Policy::weighted(100).reserving(500);
        policy.reservation.bytes = Some(ByteRate::per_second(1024));
        let vm = world.vm(policy);
        let tiny = world.volume(vm, bytes_reserved(1024));
        let length = if kind == Kind::Flush { 0 } else { 64 << 10 };
        let neighbour = world.stream(vm, Pattern::Closed(16));
        let tiny = world.source(Source::new(vm, tiny, Pattern::Closed(8)).kind(kind).lengths(&[length]));
        world.busy(Policy::default(), Pattern::Closed(16));
        world.run_until(secs(10));
        let finished = |source: usize| world.sources[source].finished;
        assert!(finished(tiny) <= finished(neighbour) / 50, "{kind:?}: {} of {}", finished(tiny), finished(neighbour));
    }
}

/// Requests per second that a policy reserves at this size, by the larger of its two minimums.
fn due(iops: u64, bytes: u64, size: u32) -> f64 {
    let cost = CostModel::default().cost(Kind::Read, size).as_f64();
    let counted = f64::from(size).max(cost * BANDWIDTH as f64 / CAPACITY as f64);
    (iops as f64 / cost).max(bytes as f64 / counted)
}

/// A VM with two reservations and no weight, next to one that takes the rest, submits one size after the other.
fn served(iops: u64, bytes: u64, sizes: &[u32], seconds: u64) -> Vec<f64> {
    let mut world = world(CostModel::default());
    let mut policy = Policy { weight: None, ..Policy::default() };
    policy.reservation.iops = Some(Iops::per_second(iops));
    policy.reservation.bytes = Some(ByteRate::per_second(bytes));
    let vm = world.vm(policy);
    world.busy(Policy::weighted(1000), Pattern::Closed(16));
    let source = world.source(Source::new(vm, VolumeId(0), Pattern::Closed(4)));
    let mut rates = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        world.sources[source].lengths = vec![*size];
        let from = secs(index as u64 * seconds);
        let to = secs((index as u64 + 1) * seconds);
        world.run_until(to);
        rates.push(world.rates(&[vm], from, to)[0]);
    }
    rates
}

#[test]
fn sixty_seconds_of_small_requests_gave_credit_for_nine_of_large_ones() {
    let bytes = 3 * (1 << 20) + (1 << 20) / 10;
    let rates = served(500, bytes, &[512; 60], 1);
    assert!(rates[1..].iter().all(|rate| (rate - due(500, bytes, 512)).abs() <= 2.0), "{rates:?}");
    let mut sizes = vec![512; 60];
    sizes.extend([65_536; 9]);
    let rates = &served(500, bytes, &sizes, 1)[60..];
    let due = due(500, bytes, 65_536);
    // Nothing is saved: in the first second a few small requests are still queued.
    assert!(rates.iter().all(|rate| (rate - due).abs() <= 6.0), "due {due}, got {rates:?}");
}

#[test]
fn large_requests_after_small_ones_got_a_tenth_of_their_reservation() {
    // Small requests, each of which counts 100 kB, moved the byte tag far ahead.
    let rates = served(500, 3 << 20, &[512, 512, 65_536, 65_536], 10);
    assert!(rates[3] >= 0.99 * due(500, 3 << 20, 65_536), "{rates:?}");
    // And the reverse: the byte reservation is the larger one.
    let rates = served(10, 50_000_000, &[262_144, 262_144, 4096, 262_144], 5);
    for (rate, size) in rates.iter().zip([262_144, 262_144, 4096, 262_144]) {
        let due = due(10, 50_000_000, size);
        assert!((rate - due).abs() <= 0.01 * due + 2.0, "{rate} of {due} at {size} in {rates:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each is a separate minimum, for any earlier requests, and service for them takes no more of the device than
    /// admission control counted.
    #[test]
    fn two_reservations_give_the_larger_one_and_save_nothing(
        iops in 5u64..600,
        megabytes in 1u64..60,
        sizes in prop::collection::vec(prop::sample::select(vec![512u32, 4096, 8192, 32_768, 65_536, 262_144]), 1..6),
    ) {
        let bytes = megabytes * 1_000_000;
        prop_assume!(iops.max(megabytes * 10) <= 600);
        let rates = served(iops, bytes, &sizes, 4);
        for (index, (rate, size)) in rates.iter().zip(&sizes).enumerate() {
            let due = due(iops, bytes, *size);
            // At a change four requests of the last size are queued.
            prop_assert!((rate - due).abs() <= 0.005 * due + 2.0, "{rate} of {due} at step {index} of {sizes:?}: {rates:?}");
        }
    }
}

#[test]
fn mixed_requests_take_no_more_of_the_device_than_was_admitted() {
    // Sizes alternate so that each reservation is the earlier one in turn.
    for (iops, rate) in [(300u64, 30_000_000u64), (100, 50_000_000), (600, 6_000_000)] {
        let mut world = world(CostModel::default());
        let mut policy = Policy { weight: None, ..Policy::default() };
        policy.reservation.iops = Some(Iops::per_second(iops));
        policy.reservation.bytes = Some(ByteRate::per_second(rate));
        let vm = world.vm(policy);
        world.busy(Policy::weighted(1000), Pattern::Closed(16));
        world.source(Source::new(vm, VolumeId(0), Pattern::Closed(8)).lengths(&[512, 262_144, 8192, 131_072, 4096]));
        world.run_until(secs(30));
        let served: f64 = world.of(vm).filter(|record| record.at >= secs(5)).map(cost).sum::<f64>() / 25.0;
        let counted = |record: &Record| bytes(record).max(cost(record) * (BANDWIDTH / CAPACITY) as f64);
        let moved: f64 = world.of(vm).filter(|record| record.at >= secs(5)).map(counted).sum::<f64>() / 25.0;
        let admitted = (iops as f64).max(rate as f64 / BANDWIDTH as f64 * CAPACITY as f64);
        assert!(served <= admitted * 1.005 + 1.0, "{served} served, {admitted} admitted");
        assert!(served >= 0.99 * iops as f64 && moved >= 0.99 * rate as f64, "{served}, {moved}");
    }
}

// rule: mclock.weight-floor
#[test]
fn a_vm_without_a_reservation_got_nothing_while_reservations_took_all_of_the_device() {
    for floor in [2.0, 10.0] {
        // As large as admission control accepts.
        let reserved = (1000.0 * (1.0 - floor / 100.0)) as u64;
        let mut world = World::simple(&product().text("weight_floor", &format!("{floor}%")), 4, 1000);
        let vms = [Policy::weighted(100).reserving(reserved), Policy::weighted(100)];
        let vms = vms.map(|policy| world.busy(policy, Pattern::Closed(32)));
        world.run_until(secs(20));
        let rates = world.rates(&vms, secs(2), secs(20));
        let kept = 10.0 * floor;
        assert!(rates[0] >= reserved as f64 - 1.0 && (rates[1] - kept).abs() <= 1.0, "{rates:?} at {floor} %");
        // The device is slower than its stated capacity.
        world.device.set_iops(500);
        world.run_until(secs(40));
        let slow = world.rates(&vms, secs(25), secs(40))[1];
        assert!((slow - kept / 2.0).abs() <= 0.1 * kept, "{slow} of {} at {floor} %", kept / 2.0);
    }
    let mut world = World::simple(&product().text("weight_floor", "0%"), 4, 1000);
    let vms = [Policy::weighted(100).reserving(1000), Policy::weighted(100)];
    let vms = vms.map(|policy| world.busy(policy, Pattern::Closed(32)));
    world.run_until(secs(20));
    assert!(world.rates(&vms, secs(2), secs(20))[1] <= 0.1, "without a floor");
}

// rule: mclock.weight-floor, mclock.batch
#[test]
fn the_floor_gave_a_whole_batch_for_each_request_that_it_owed() {
    for (batch, floor) in [(1, 2), (8, 2), (8, 10)] {
        let subject = product().with("batch", Value::Integer(batch)).text("weight_floor", &format!("{floor}%"));
        let mut world = World::simple(&subject, 1, 1000);
        let reserved = 1000 - 10 * floor;
        let vms = [Policy::weighted(100).reserving(reserved), Policy::weighted(100)].map(|policy| {
            let vm = world.vm(policy);
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(32)).places(Places::Contiguous));
            vm
        });
        world.run_until(secs(20));
        let rates = world.rates(&vms, secs(2), secs(20));
        assert!(rates[0] >= reserved as f64 - 1.0, "{rates:?}, batches of {batch}, a floor of {floor} %");
    }
}

/// Requests per second of the volumes of a VM that reserves 500 of 1000, all that its neighbour leaves.
fn inside(floor: u64, batch: i64, volumes: &[Policy]) -> Vec<f64> {
    let subject = product().with("batch", Value::Integer(batch)).text("weight_floor", &format!("{floor}%"));
    let mut world = World::simple(&subject, 1, 1000);
    let vm = world.gate.add_owner(Instant::ZERO, Policy::weighted(1).reserving(500)).unwrap();
    let added: Vec<VolumeId> = volumes.iter().map(|policy| world.volume(vm, *policy)).collect();
    for volume in added {
        world.source(Source::new(vm, volume, Pattern::Closed(32)).places(Places::Contiguous));
    }
    world.busy(Policy::weighted(1_000_000).reserving(500 - 10 * floor), Pattern::Closed(32));
    world.run_until(secs(40));
    let got = |volume: usize| {
        let of = |record: &&Record| usize::from(record.request.volume.0) == volume && record.at >= secs(4);
        world.of(vm).filter(of).count() as f64 / 36.0
    };
    (0..volumes.len()).map(got).collect()
}

// rule: mclock.weight-floor, mclock.volume-constraint
#[test]
fn a_volume_without_a_reservation_got_nothing_while_its_neighbour_reserved_all_of_the_vm() {
    let w = Policy::weighted;
    for (floor, batch) in [(2, 1), (10, 1), (2, 8)] {
        let volumes = [w(100).reserving(500), w(10), w(30)];
        let (rates, kept) = (inside(floor, batch, &volumes), 5.0 * floor as f64);
        let due = [500.0 - kept, kept / 4.0, kept * 3.0 / 4.0];
        let close = rates.iter().zip(due).all(|(rate, due)| (rate - due).abs() <= 1.0);
        assert!(close, "{rates:?} of {due:?}, a floor of {floor} %, batches of {batch}");
        // If the reservation leaves the floor free, both get all of theirs.
        let volumes = [w(10).reserving(500 - 5 * floor), w(10)];
        let rates = inside(floor, batch, &volumes);
        assert!(rates[0] >= 499.0 - kept && rates[1] >= kept - 1.0, "{rates:?} of {kept}, batches of {batch}");
    }
    assert!(inside(0, 1, &[w(100).reserving(500), w(100)])[1] <= 0.1, "without a floor");
}

// rule: mclock.weight-floor, mclock.catch-up-cap
#[test]
fn after_a_stall_vms_without_a_reservation_got_nothing_for_seconds() {
    for percent in [50u64, 90, 95] {
        let mut world = World::simple(&product(), 4, 1000);
        let vms = [Policy::weighted(100).reserving(percent * 10), Policy::weighted(100)];
        let vms = vms.map(|policy| world.busy(policy, Pattern::Closed(32)));
        world.run_until(secs(5));
        world.device.stalled_until = secs(6);
        world.run_until(secs(40));
        let times = world.times(vms[1]);
        let gaps = times.windows(2).filter(|pair| pair[0] >= secs(6)).map(|pair| pair[1].nanos_since(pair[0]));
        let longest = gaps.max().expect("it is served") / MILLI;
        assert!(longest <= 60, "{percent} %: nothing for {longest} ms");
        // The reservation catches up with 98 % of the device.
        let behind =
            |at: u64| 1000.0 * (percent as f64 / 100.0) * at as f64 - world.count(vms[0], secs(0), secs(at)) as f64;
        let caught_up = (6..40).find(|at| behind(*at) <= 5.0);
        let expected = 6.0 + percent as f64 / (98.0 - percent as f64) + 2.0;
        assert!(caught_up.is_some_and(|at| at as f64 <= expected), "{percent} %: {caught_up:?}, expected {expected}");
    }
}

// rule: mclock.charge-after
#[test]
fn a_changed_reservation_forgot_overdue_service() {
    let mut world = World::simple(&product(), 1, 1000);
    let reserved = |iops| Policy { weight: None, ..Policy::default() }.reserving(iops);
    let vm = world.busy(reserved(400), Pattern::Closed(64));
    world.busy(Policy::weighted(1000), Pattern::Closed(64));
    world.run_until(secs(2));
    world.device.stalled_until = millis(2500);
    world.run_until(millis(2500));
    world.set(vm, reserved(500));
    world.run_until(secs(6));
    // 800 before, 200 that the stall cost, and 500 per second for 3.5 s.
    let got = world.count(vm, secs(0), secs(6)) as f64;
    assert!((got - 2750.0).abs() <= 5.0, "{got}");
}
