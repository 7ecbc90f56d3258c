//! Plans that once revealed a defect of the scheduler, with their exact numbers, on one device.

use sluice_sched::{ByteRate, Bytes, CostModel, Kind, Policy, Weight};

use super::plan::{Ask, Cloud, Load, Service};
use super::station::SECOND;
use super::world::{Record, World};

pub fn read(length: u64) -> Ask {
    Ask { kind: Kind::Read, length: u32::try_from(length).expect("a length") }
}

pub fn kib(kib: u64) -> Ask {
    read(kib * 1024)
}

pub fn weight(weight: f64) -> Policy {
    Policy { weight: Some(Weight::from_hundredths((weight * 100.0).round() as u64)), ..Policy::default() }
}

pub fn reserving_bytes(mut policy: Policy, rate: u64) -> Policy {
    policy.reservation.bytes = Some(ByteRate::per_second(rate));
    policy
}

fn limited_bytes(mut policy: Policy, rate: u64) -> Policy {
    policy.limit.bytes = Some(ByteRate::per_second(rate));
    policy
}

/// Measures the service of sources in an interval.
pub struct Meter {
    from: Vec<(f64, u64, u64)>,
    since: u64,
}

impl Meter {
    pub fn start(world: &World) -> Meter {
        Meter { from: Meter::read(world), since: world.now }
    }

    fn read(world: &World) -> Vec<(f64, u64, u64)> {
        world.sources.iter().map(|source| (source.totals.got(), source.totals.bytes, source.totals.pieces)).collect()
    }

    fn seconds(&self, world: &World) -> f64 {
        (world.now - self.since) as f64 / SECOND as f64
    }

    /// Normalised requests per second.
    pub fn rate(&self, world: &World, source: usize) -> f64 {
        (Meter::read(world)[source].0 - self.from[source].0) / self.seconds(world)
    }

    pub fn bytes(&self, world: &World, source: usize) -> f64 {
        (Meter::read(world)[source].1 - self.from[source].1) as f64 / self.seconds(world)
    }

    /// Pieces per second.
    pub fn pieces(&self, world: &World, source: usize) -> f64 {
        (Meter::read(world)[source].2 - self.from[source].2) as f64 / self.seconds(world)
    }
}

/// The longest time without a dispatch of a source, from an instant on.
fn longest_gap(log: &[Record], source: usize, from: u64, to: u64) -> f64 {
    let times = log.iter().filter(|record| record.source == source && record.at >= from && record.at < to);
    let (mut last, mut longest) = (from, 0);
    for record in times {
        longest = longest.max(record.at - last);
        last = record.at;
    }
    longest.max(to - last) as f64 / SECOND as f64
}

/// The least service of a source in any whole second, in normalised requests.
pub fn least_second(log: &[Record], source: usize, from: u64, seconds: usize) -> f64 {
    let mut sums = vec![0.0; seconds];
    for record in log.iter().filter(|record| record.source == source && record.at >= from) {
        if let Some(sum) = sums.get_mut(((record.at - from) / SECOND) as usize) {
            *sum += record.cost;
        }
    }
    sums.into_iter().fold(f64::INFINITY, f64::min)
}

fn megabytes(megabytes: u64) -> u64 {
    megabytes * 1_000_000
}

#[test]
fn a_byte_reservation_holds_on_a_device_whose_service_time_is_independent_of_size() {
    // Servers, service time, exponential: 2000 requests per second in total, 8000 in the last case.
    for (servers, millis, exponential) in [(8, 4, true), (8, 4, false), (32, 16, false), (32, 16, true), (32, 4, false)]
    {
        let service = Service { fixed_ns: Some(millis * 1_000_000), exponential };
        let cloud = Cloud { service, request_bytes: 100_000, ..Cloud::device(4000.0, servers, servers) };
        let mut world = World::new(&cloud, "mclock", 1);
        let policy = reserving_bytes(Policy::default(), megabytes(250));
        let a = world.vm(limited_bytes(policy, megabytes(300)), &[kib(256)]);
        let b = world.vm(Policy::default(), &[kib(4)]);
        world.set_load(a, Load::Closed(64));
        world.set_load(b, Load::Closed(64));
        world.run_for(2.0);
        let meter = Meter::start(&world);
        world.run_for(30.0);
        let (got, other) = (meter.bytes(&world, a) / 1e6, meter.pieces(&world, b));
        let case = format!("{servers} servers of {millis} ms, exponential {exponential}");
        assert!(
            (0.99 * 250.0..=1.01 * 300.0).contains(&got),
            "{case}: {got:.1} of 250 MB/s, the other gets {other:.1}/s"
        );
    }
}

#[test]
fn a_weight_of_999_next_to_1_gets_999_parts_of_1000() {
    let size = CostModel::default().cost(Kind::Read, 256 << 10).as_f64();
    let cloud = Cloud::device(1799.0 * size, 8, 8);
    let mut world = World::new(&cloud, "mclock", 1);
    let heavy = world.vm(weight(999.0).limited(7634), &[kib(256)]);
    let light = world.vm(weight(1.0), &[kib(256)]);
    world.set_load(heavy, Load::Closed(64));
    world.set_load(light, Load::Closed(64));
    let meter = Meter::start(&world);
    world.run_for(100.0);
    let (heavy, light) = (meter.pieces(&world, heavy), meter.pieces(&world, light));
    assert!((heavy - 1797.2).abs() <= 2.0 && (light - 1.8).abs() <= 0.2, "{heavy:.2}/{light:.2} of 1797.2/1.8");
}

#[test]
fn a_burst_of_one_does_not_reduce_a_reservation() {
    let cloud = Cloud::device(677.0, 1, 1);
    let mut world = World::new(&cloud, "mclock", 1);
    let burst = |policy: Policy| Policy { burst: Some(1), ..policy };
    let a = world.vm(burst(weight(10.0).reserving(565).limited(1017)), &[kib(8)]);
    let c = world.vm(burst(weight(178.0).limited(59)), &[kib(8)]);
    let e = world.vm(burst(weight(1.78).limited(340)), &[kib(8)]);
    [a, c, e].into_iter().for_each(|source| world.set_load(source, Load::Closed(16)));
    let meter = Meter::start(&world);
    world.run_for(30.0);
    let got = [a, c, e].map(|source| meter.rate(&world, source));
    assert!(got[0] >= 0.99 * 565.0, "{got:.1?} of 565 for the first");
}

/// Three VMs: one with a reservation of 500 IOPS and requests of 64 KiB, limited to 1 MiB/s for 60 s and then unlimited; one
/// with a reservation of 480 IOPS; one with a large weight. Returns the service of the second VM in its worst second during
/// each of the two periods.
fn next_to_a_reservation_above_its_limit() -> [f64; 2] {
    let cloud = Cloud::device(1000.0, 8, 8);
    let mut world = World::new(&cloud, "mclock", 1);
    world.log = Some(Vec::new());
    let policy = weight(100.0).reserving(500);
    let limited = world.vm(limited_bytes(policy, Bytes::mib(1).0), &[kib(64)]);
    let reserved = world.vm(weight(1.0).reserving(480), &[kib(8)]);
    let weighted = world.vm(weight(1000.0), &[kib(8)]);
    [limited, reserved, weighted].into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
    world.run_for(60.0);
    world.set_policy(world.vm_of(limited), policy);
    world.run_for(20.0);
    let log = world.log.as_ref().expect("it is kept");
    [(0, 60), (60, 20)].map(|(from, seconds)| least_second(log, reserved, from * SECOND, seconds))
}

#[test]
fn a_reservation_above_a_limit_in_bytes_takes_nothing_from_others() {
    let least = next_to_a_reservation_above_its_limit()[0];
    assert!(least >= 480.0 - 16.0, "{least:.1} of 480 in the worst second");
}

#[test]
fn catching_up_on_what_a_limit_prevented_does_not_reduce_another_reservation() {
    let least = next_to_a_reservation_above_its_limit()[1];
    assert!(least >= 480.0 - 16.0, "{least:.1} of 480 in the worst second");
}

/// Rates of a VM with a reservation of 1 KiB/s, weight 1 and 8 outstanding requests `ask`, and of one with a reservation of
/// 500 IOPS and weight 1000. With `volumes` they are volumes of one VM.
fn next_to_requests_without_bytes(ask: Ask, volumes: bool) -> (f64, f64) {
    let cloud = Cloud::device(1000.0, 8, 1);
    let mut world = World::new(&cloud, "mclock", 1);
    let (small, large) = (reserving_bytes(weight(1.0), 1024), weight(1000.0).reserving(500));
    let (a, b) = if volumes {
        let vm = world.add_vm(reserving_bytes(Policy::default().reserving(600), 1024), &[small, large]);
        (world.add_source(vm, 0, &[ask]), world.add_source(vm, 1, &[kib(8)]))
    } else {
        (world.vm(small, &[ask]), world.vm(large, &[kib(8)]))
    };
    world.set_load(a, Load::Closed(8));
    world.set_load(b, Load::Closed(64));
    let meter = Meter::start(&world);
    world.run_for(60.0);
    (meter.rate(&world, a), meter.rate(&world, b))
}

#[test]
fn requests_without_bytes_count_against_a_reservation_in_bytes() {
    for volumes in [false, true] {
        for (kind, length) in [(Kind::Discard, 1 << 20), (Kind::Flush, 0), (Kind::WriteZeroes, 1 << 20)] {
            let (small, large) = next_to_requests_without_bytes(Ask { kind, length }, volumes);
            let what = if volumes { "volumes" } else { "VMs" };
            assert!(large >= 990.0, "{what}, {}: {small:.1}/{large:.1} of 1/999", kind.name());
        }
    }
}

#[test]
fn a_reservation_in_requests_and_bytes_is_not_accumulated_in_either() {
    let cloud = Cloud::device(1000.0, 8, 1);
    let mut world = World::new(&cloud, "mclock", 1);
    let policy = reserving_bytes(weight(1.0).reserving(500), (3.1 * 1_048_576.0) as u64);
    let vm = world.add_vm(policy, &[Policy::default()]);
    let (small, large) = (world.add_source(vm, 0, &[read(512)]), world.add_source(vm, 0, &[kib(64)]));
    let other = world.vm(weight(1000.0), &[kib(8)]);
    world.set_load(small, Load::Closed(64));
    world.set_load(other, Load::Closed(64));
    world.run_for(60.0);
    let by_reservation = |world: &World| {
        let sum: u64 = [small, large].iter().map(|source| world.sources[*source].totals.by_reservation_raw).sum();
        sum as f64 / 65_536.0
    };
    let first = by_reservation(&world);
    assert!((first - 30_000.0).abs() <= 0.02 * 30_000.0, "{first:.1} of 30000 in 60 s of small requests");
    world.set_load(small, Load::Off);
    world.set_load(large, Load::Closed(64));
    world.run_for(9.0);
    // Small requests count as 8 KiB each, large ones as 64 KiB; 500 requests per second is the larger minimum.
    let second = by_reservation(&world) - first;
    assert!((0.98 * 4500.0..=5000.0 + 20.0).contains(&second), "{second:.1} of 4500 in 9 s of large requests");
}

#[test]
fn a_stalled_device_does_not_starve_a_vm_without_a_reservation() {
    for percent in [50, 90, 95] {
        let cloud = Cloud::device(1000.0, 8, 1);
        let mut world = World::new(&cloud, "mclock", 1);
        world.log = Some(Vec::new());
        let reserved = world.vm(weight(1.0).reserving(10 * percent), &[kib(8)]);
        let weighted = world.vm(weight(100.0), &[kib(8)]);
        [reserved, weighted].into_iter().for_each(|source| world.set_load(source, Load::Closed(64)));
        world.run_for(5.0);
        world.stall_until(6 * SECOND);
        world.run_for(55.0);
        let log = world.log.as_ref().expect("it is kept");
        let gap = longest_gap(log, weighted, 6 * SECOND, 60 * SECOND);
        let least = least_second(log, weighted, 6 * SECOND, 54);
        assert!(gap <= 0.2 && least >= 15.0, "{percent} %: nothing for {gap:.3} s, in the worst second {least:.1}");
        let got: f64 = log.iter().filter(|record| record.source == reserved).map(|record| record.cost).sum();
        let due = 60.0 * 10.0 * percent as f64;
        assert!(got >= 0.99 * due, "{percent} %: the reserved VM has caught up with {got:.1} of {due:.1}");
    }
}
