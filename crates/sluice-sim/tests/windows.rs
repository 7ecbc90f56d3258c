//! What is in flight follows the time of requests at a modelled device.

use std::time::Duration;

use sluice_pool::Aim;
use sluice_sched::policy::Reservation;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::Iops;
use sluice_sched::{Gate, GateSettings, Instant, Policy};
use sluice_sim::checks::check;
use sluice_sim::devices::Model;
use sluice_sim::devices::linear::{Coefficients, Linear};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::speed::Speed;
use sluice_sim::engine::{Change, Simulation};
use sluice_sim::random::stream;
use sluice_sim::workloads::{Address, Closed, Mix, Workload};

const SECONDS: u64 = 60;

fn closed(outstanding: u32, length: u32, name: &str) -> Box<dyn Workload> {
    let mix = Mix { reads: 1.0, length, address: Address::random(0, 1 << 30) };
    Box::new(Closed::new(outstanding, Duration::ZERO, mix, Instant::ZERO, stream(1, name)))
}

/// A device of `rate` requests per second in `servers`, each of which takes an exponential time, or one server of constant time.
fn device(rate: u32, servers: u32) -> Box<dyn Model> {
    let time = Duration::from_secs_f64(f64::from(servers) / f64::from(rate));
    let time = if servers == 1 { ServiceTime::Fixed(time) } else { ServiceTime::Exponential(time) };
    Box::new(Servers::new(servers, time, stream(1, "service")))
}

fn gate(depth: u32) -> Gate {
    let info = DeviceInfo { depth, ..DeviceInfo::default() };
    let scheduler = sluice_papers::find("mclock").unwrap().build(&info, &Default::default()).unwrap();
    Gate::new(scheduler, GateSettings { depth, ..GateSettings::default() })
}

/// The rate of a VM that reserves 200 and keeps one request outstanding, its 99th percentile, and the rate of all, beside four VMs of
/// `length` that keep 32 outstanding.
struct Beside {
    rate: f64,
    p99: Duration,
    all: f64,
    own_time: Option<Duration>,
}

fn beside(rate: u32, servers: u32, depth: u32, latency: Option<Duration>) -> Beside {
    let mut simulation = simulation(device(rate, servers), rate, depth, latency, 8192);
    simulation.run_until(Instant::from_millis(1000 * SECONDS));
    assert_eq!(check(&simulation), []);
    let state = simulation.window_of(0);
    Beside {
        rate: simulation.rate(0),
        p99: simulation.record(0).percentile(99.0),
        all: (0..5).map(|vm| simulation.rate(vm)).sum(),
        own_time: state.and_then(|state| state.own_time).map(Duration::from_nanos),
    }
}

fn simulation(device: Box<dyn Model>, rate: u32, depth: u32, latency: Option<Duration>, length: u32) -> Simulation {
    let (warm, window) = (Duration::from_secs(20), Duration::from_secs(1));
    let mut simulation = Simulation::new(gate(depth), device, warm, window);
    if let Some(latency) = latency {
        simulation.set_aim(0, Aim::new(Iops::per_second(rate.into()), latency));
    }
    let reserved =
        Policy { reservation: Reservation { iops: Some(Iops::per_second(200)), bytes: None }, ..Policy::default() };
    simulation.add_vm(reserved, 0, closed(1, 8192, "db")).unwrap();
    for name in ["a", "b", "c", "d"] {
        simulation.add_vm(Policy::default(), 0, closed(32, length, name)).unwrap();
    }
    simulation
}

const fn micros(micros: u64) -> Option<Duration> {
    Some(Duration::from_micros(micros))
}

/// Devices and stated times, with the depth that suits best. The stated time is at least the device's own.
const DEVICES: [(u32, u32, u32, u64); 5] =
    [(1000, 1, 1, 2000), (1000, 8, 8, 8800), (1000, 32, 32, 33_600), (20_000, 8, 8, 440), (20_000, 32, 32, 1680)];

#[test]
fn a_vm_with_one_request_outstanding_gets_nearly_what_the_best_depth_gives() {
    for (rate, servers, best, latency) in DEVICES {
        let (tuned, followed) = (beside(rate, servers, best, None), beside(rate, servers, 64, micros(latency)));
        let what = format!("{rate} iops of {servers} servers: {} of {}", followed.rate, tuned.rate);
        assert!(followed.rate * 1.2 >= tuned.rate, "{what}");
        assert!(
            followed.p99.as_secs_f64() <= 1.2 * tuned.p99.as_secs_f64(),
            "{what}, {:?} of {:?}",
            followed.p99,
            tuned.p99
        );
        assert!(followed.all >= 0.97 * f64::from(rate), "{what}, {} in all", followed.all);
        assert_eq!(followed.own_time, None, "{what}");
    }
}

#[test]
fn the_time_at_the_device_settles_a_sixteenth_above_the_stated_one() {
    for length in [8192, 65_536, 262_144] {
        // A request takes the time of its cost: 2,000 of 8 KiB per second, and half of the time of 300,000 bytes is positioning.
        let nanos = |bytes: u64| (bytes + 300_000) * 500_000 / 308_192;
        let (iops, bps) = (1_000_000_000 / nanos(4096), 308_192 * 2000);
        let of_all =
            Coefficients { rbps: bps, rseqiops: iops, rrandiops: iops, wbps: bps, wseqiops: iops, wrandiops: iops };
        let mut simulation = simulation(Box::new(Linear::new(&of_all)), 2000, 256, micros(8000), length);
        let mut times = Vec::new();
        for half in 0..2 * SECONDS {
            simulation.run_until(Instant::from_millis(500 * half));
            times.extend(simulation.window_of(0).unwrap().latency.filter(|_| half > 20));
        }
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64 / 1e9;
        assert!((0.0080..0.0092).contains(&mean), "{mean} s with {length} bytes");
    }
}

#[test]
fn a_stated_time_below_the_devices_own_took_throughput_in_silence() {
    // Each request takes 16 ms on average, and 32 of them at once.
    let found = beside(2000, 32, 64, micros(8000));
    let own = found.own_time.expect("it is found").as_secs_f64();
    assert!((0.0145..0.0175).contains(&own), "{own}");
    assert!(found.all > 0.22 * 2000.0, "{} of 2000: a quarter is left", found.all);
}

#[test]
fn a_device_of_half_its_stated_capacity_is_not_one_of_a_longer_time() {
    for slower in [1.3, 1.8, 2.0, 2.1, 2.2, 2.5, 3.0, 4.0] {
        let mut simulation = simulation(device(2000, 1), 2000, 64, micros(8000), 8192);
        simulation.plan_change(Instant::ZERO, Change::Speed(0, Speed::Slower(slower)));
        for second in 1..=SECONDS {
            simulation.run_until(Instant::from_millis(1000 * second));
            let state = simulation.window_of(0).unwrap();
            assert_eq!(state.own_time, None, "{slower} times slower, second {second}: {state:?}");
        }
        let all: f64 = (0..5).map(|vm| simulation.rate(vm)).sum();
        assert!(all > 0.99 * 2000.0 / slower, "{all}, {slower} times slower");
    }
}
