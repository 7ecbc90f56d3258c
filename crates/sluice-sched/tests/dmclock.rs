//! VMs whose requests go to several servers, as one server sees them: what clients report, and what that may cost
//! others.

use crate::common::*;
use sluice_sched::gate::{GateSettings, RemoteService};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

const SERVERS_2: RemoteService =
    RemoteService { rho: 0, delta: 0, recent: 0, rho_bytes: 0, delta_bytes: 0, servers: 2, outstanding: 0 };

fn reported(requests: u32, servers: u32) -> RemoteService {
    RemoteService { delta: requests, recent: requests, delta_bytes: u64::from(requests) * 8192, servers, ..SERVERS_2 }
}

/// The longest time between two dispatches of a VM after `from`, in milliseconds.
fn longest_gap_ms(world: &World, vm: OwnerId, from: Instant) -> u64 {
    let times: Vec<Instant> = world.times(vm).into_iter().filter(|at| *at >= from).collect();
    times.windows(2).map(|pair| pair[1].nanos_since(pair[0]) / MILLI).max().expect("it is served")
}

// rule: mclock.share-floor
#[test]
fn a_client_kept_its_share_after_a_report_of_remote_service_for_ever() {
    let mut world = World::simple(&product(), 4, 1000);
    let neighbour = world.busy(Policy::default(), Pattern::Closed(16));
    let vm = world.vm(Policy::default());
    let mut source = Source::new(vm, VolumeId(0), Pattern::Manual);
    source.remote = Some(reported(1, 2));
    let source = world.source(source);
    world.ask(source);
    world.pump();
    world.sources[source].remote = Some(SERVERS_2);
    for step in 1..67 {
        world.run_until(millis(step * 900));
        world.ask(source);
        world.pump();
    }
    world.run_until(secs(60));
    (0..2000).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_until(secs(62));
    let gap = longest_gap_ms(&world, neighbour, secs(59));
    assert!(gap <= 20, "the neighbour waited for {gap} ms");
    let rate = world.rates(&[neighbour], secs(60), secs(62))[0];
    assert!((rate - 500.0).abs() <= 5.0, "{rate} of 500");
}

// rule: mclock.share-floor
#[test]
fn a_share_that_was_reset_before_the_first_report_began_at_zero() {
    // The gate is idle. A VM whose client reports other servers comes first, and another VM much later.
    let mut world = World::simple(&product(), 1, 1000);
    let first = world.vm(Policy::default());
    let late = world.vm(Policy::default());
    let source = world.stream(first, Pattern::Manual);
    world.ask(source);
    world.pump();
    world.run_until(secs(1));
    let mut both = Vec::new();
    for vm in [first, late] {
        let mut source = Source::new(vm, VolumeId(0), Pattern::Closed(16));
        source.remote = Some(reported(1, 2));
        both.push(world.source(source));
        world.run_until(if vm == first { secs(30) } else { secs(40) });
    }
    let rates = world.rates(&[first, late], secs(30), secs(40));
    assert!(rates.iter().all(|rate| (rate - 500.0).abs() <= 10.0), "{rates:?}");
}

// rule: mclock.share-floor
#[test]
fn what_was_served_elsewhere_before_a_silence_was_a_credit_after_it() {
    let mut world = World::simple(&product(), 4, 1000);
    let neighbour = world.busy(Policy::default(), Pattern::Closed(16));
    let vm = world.vm(Policy::default());
    let mut source = Source::new(vm, VolumeId(0), Pattern::Manual);
    source.remote = Some(SERVERS_2);
    let source = world.source(source);
    world.ask(source);
    world.pump();
    world.run_until(secs(10));
    world.sources[source].remote = Some(RemoteService { recent: 0, ..reported(500, 2) });
    world.ask(source);
    world.sources[source].remote = Some(SERVERS_2);
    (0..2000).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_until(secs(12));
    let gap = longest_gap_ms(&world, neighbour, secs(9));
    assert!(gap <= 20, "the neighbour waited for {gap} ms");
    let rate = world.rates(&[neighbour], secs(10), secs(12))[0];
    assert!((rate - 500.0).abs() <= 5.0, "{rate} of 500");
}

// rule: mclock.product-counts
#[test]
fn small_remote_requests_counted_as_large_local_ones() {
    let settings = GateSettings { transfer_max: Bytes::mib(1), ..GateSettings::default() };
    let info = DeviceInfo::of(&settings, false, &admission::Capacity::default());
    let mut world = World::new(product().build(&info), settings, Stub::serial(SECOND / 1000));
    let limit = Limit { iops: None, bytes: Some(ByteRate::per_second(100 << 20)) };
    let vm = world.vm(Policy { limit, ..Policy::default() });
    let mut source = Source::new(vm, VolumeId(0), Pattern::Closed(64)).lengths(&[1 << 20]);
    source.remote = Some(RemoteService { delta: 16, recent: 16, delta_bytes: 16 * 4096, servers: 2, ..SERVERS_2 });
    world.source(source);
    world.run_until(secs(12));
    let rate = world.rates(&[vm], secs(2), secs(12))[0];
    // 64 KiB at other servers for each MiB here.
    assert!((rate - 100.0 * 16.0 / 17.0).abs() <= 0.5, "{rate} MiB/s of 100");
}

// rule: mclock.product-counts
#[test]
fn a_cancelled_head_discarded_the_report_of_its_successor() {
    let mut world = World::simple(&product(), 4, 1000);
    let policy = Policy { burst: Some(1), ..Policy::default().limited(10) };
    let vm = world.vm(policy);
    let second = world.volume(vm, Policy::default());
    let here = world.stream(vm, Pattern::Manual);
    let mut there = Source::new(vm, second, Pattern::Manual);
    there.remote = Some(SERVERS_2);
    let there = world.source(there);
    [here, here].into_iter().for_each(|source| assert!(world.ask(source)));
    world.pump();
    for delta in [5, 0] {
        world.sources[there].remote = Some(reported(delta, 2));
        assert!(world.ask(there));
    }
    world.cancel(Scope::Volume(vm, VolumeId(0)));
    world.pump();
    world.run_until(secs(3));
    // One immediately, then 0.1 s for it and 0.5 s for service at other servers, and 0.1 s for the next.
    assert_eq!(world.times(vm), [0, 600, 700].map(millis));
}

#[test]
fn virtual_time_was_never_reset_after_the_last_client_left() {
    let mut world = World::simple(&product(), 1, 1000);
    let vm = world.vm(Policy::default());
    let start = world.gate.inspect(world.now).virtual_time;
    let mut source = Source::new(vm, VolumeId(0), Pattern::Manual);
    source.remote = Some(reported(3, 2));
    let source = world.source(source);
    (0..50).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_until(secs(1));
    assert!(world.gate.inspect(world.now).virtual_time > start, "remote service still counts after a short pause");
    let other = world.busy(Policy::default(), Pattern::Manual);
    world.remove_owner(vm);
    assert_eq!(world.gate.inspect(world.now).virtual_time, start, "no client reports any more");
    let source = world.stream(other, Pattern::Manual);
    world.ask(source);
    world.pump();
    world.run_until(secs(2));
    assert_eq!(world.gate.inspect(world.now).virtual_time, start);
}

// rule: mclock.remote-started
#[test]
fn a_client_that_lies_about_its_requests_elsewhere_is_owed_no_more_than_servers_hold() {
    let mut world = World::simple(&product(), 4, 100_000);
    let neighbour = world.busy(Policy::default(), Pattern::Closed(64));
    let vm = world.vm(Policy { weight: None, ..Policy::default().reserving(100) });
    let mut source = Source::new(vm, VolumeId(0), Pattern::Manual);
    source.remote = Some(RemoteService { outstanding: u32::MAX, ..SERVERS_2 });
    let source = world.source(source);
    world.run_until(secs(60));
    (0..2000).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_until(secs(62));
    // The depth of the other server, those of 2 s, and the first.
    assert_eq!(world.times(vm).len(), 4 + 200 + 1);
    assert!(longest_gap_ms(&world, neighbour, secs(59)) <= 1);
}

// rule: mclock.remote-burst
#[test]
fn each_of_many_servers_passed_the_whole_burst() {
    for (servers, at_once) in [(1, 32), (2, 16), (8, 4), (32, 1)] {
        let mut world = World::simple(&product(), 64, 100_000);
        let vm = world.vm(Policy { burst: Some(32), ..Policy::default().limited(10) });
        let mut source = Source::new(vm, VolumeId(0), Pattern::Manual);
        source.remote = Some(RemoteService { servers, ..SERVERS_2 });
        let source = world.source(source);
        (0..100).for_each(|_| assert!(world.ask(source)));
        world.pump();
        world.run_until(millis(1));
        assert_eq!(world.times(vm).len(), at_once, "{servers} servers");
    }
}

// rule: mclock.remote-burst, mclock.released-floor
#[test]
fn a_limit_that_did_not_bind_cost_a_client_of_many_servers_its_share() {
    let mut world = World::simple(&product(), 32, 2000);
    world.device = Stub::new(32, Order::Random, Service::Between(8 * MILLI, 24 * MILLI));
    let vms = [Policy::default().limited(80_000), Policy::default()].map(|policy| {
        let vm = world.vm(policy);
        let mut source = Source::new(vm, VolumeId(0), Pattern::Closed(64));
        source.remote = Some(reported(7, 8));
        world.source(source);
        vm
    });
    world.run_until(secs(11));
    let rates = world.rates(&vms, secs(1), secs(11));
    assert!(rates.iter().all(|rate| (rate - 1000.0).abs() <= 20.0), "{rates:?}");
}

// rule: mclock.product-counts
#[test]
fn remote_service_throttled_a_rarely_used_server() {
    // A request arrives every 10 s. Other servers serve 100 per second, which is all of the limit.
    let mut world = World::simple(&product(), 4, 1000);
    let vm = world.vm(Policy { burst: Some(1), ..Policy::default().limited(100) });
    let mut source = Source::new(vm, VolumeId(0), Pattern::Manual);
    source.remote = Some(reported(999, 2));
    let source = world.source(source);
    for visit in 1..6 {
        world.run_until(secs(visit * 10));
        assert!(world.ask(source));
        world.pump();
    }
    world.run_until(secs(60));
    let waited = world.times(vm).iter().zip(1..).map(|(at, visit)| at.nanos_since(secs(visit * 10)) / MILLI).max();
    assert!(waited.is_some_and(|waited| waited <= 20), "held for {waited:?} ms");
}
