//! The engine against queueing theory, and the daemon's schedulers against the calculations of the paper.

use std::time::Duration;

use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{Gate, GateSettings, Instant, Kind, Policy};
use sluice_sim::checks::check;
use sluice_sim::devices::Model;
use sluice_sim::devices::array::{Array, Layout};
use sluice_sim::devices::hdd::{Hdd, HddSpec};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::traces::Row;
use sluice_sim::workloads::{Address, Closed, Mix, Open, Pattern, Replay, ReplayTiming, Workload};

fn simulation(scheduler: &str, depth: u32, model: Box<dyn Model>, warm_s: u64) -> Simulation {
    let descriptor = sluice_papers::find(scheduler).unwrap();
    let info = DeviceInfo { depth, ..DeviceInfo::default() };
    let scheduler = descriptor.build(&info, &Default::default()).unwrap();
    let settings = GateSettings { depth, merging: false, ..GateSettings::default() };
    let gate = Gate::new(scheduler, settings);
    Simulation::new(gate, model, Duration::from_secs(warm_s), Duration::from_secs(1))
}

fn reads(length: u32, range: u64) -> Mix {
    Mix { reads: 1.0, length, address: Address::random(0, range) }
}

fn poisson(mean: Duration) -> Box<dyn Workload> {
    let pattern = Pattern::Poisson(mean);
    Box::new(Open::new(pattern, reads(8192, 1 << 30), Instant::ZERO, stream(3, "arrivals")))
}

fn run(simulation: &mut Simulation, seconds: u64) {
    simulation.run_until(Instant::from_millis(seconds * 1000));
    assert_eq!(check(simulation), []);
}

#[test]
fn waiting_times_match_queueing_theory() {
    let mean = Duration::from_millis(1);
    for load in [0.3, 0.7, 0.9] {
        // M/M/1: 1 / (mu - lambda); M/D/1: half of the waiting time.
        let cases = [
            (ServiceTime::Exponential(mean), 1.0 / (1.0 - load)),
            (ServiceTime::Fixed(mean), 1.0 + load / (2.0 * (1.0 - load))),
        ];
        for (time, expected_ms) in cases {
            let model = Box::new(Servers::new(1, time, stream(1, "service")));
            let mut simulation = simulation("noop", 1, model, 100);
            simulation.add_vm(Policy::default(), 0, poisson(mean.div_f64(load))).unwrap();
            run(&mut simulation, 3_000);
            let measured = simulation.record(0).mean().as_secs_f64() * 1e3;
            let off = measured / expected_ms - 1.0;
            assert!(off.abs() < 0.05, "{time:?} at {load}: {measured:.3} ms against {expected_ms:.3}");
        }
    }
}

#[test]
fn a_closed_loop_submits_after_its_think_time() {
    // Five threads that do not think: the server is always busy, and four requests wait before each.
    let model = Box::new(Servers::new(1, ServiceTime::Fixed(Duration::from_millis(2)), stream(1, "service")));
    let mut simulation = simulation("noop", 1, model, 1);
    let workload = Closed::new(5, Duration::ZERO, reads(8192, 1 << 30), Instant::ZERO, stream(1, "closed"));
    simulation.add_vm(Policy::default(), 0, Box::new(workload)).unwrap();
    run(&mut simulation, 101);
    assert!((simulation.rate(0) - 500.0).abs() < 1.0, "{}", simulation.rate(0));
    assert_eq!(simulation.record(0).mean(), Duration::from_millis(10));
    // One thread that thinks for 3 ms is served every 5 ms.
    let model = Box::new(Servers::new(1, ServiceTime::Fixed(Duration::from_millis(2)), stream(1, "service")));
    let mut simulation = self::simulation("noop", 1, model, 1);
    let think = Duration::from_millis(3);
    let workload = Closed::new(1, think, reads(8192, 1 << 30), Instant::ZERO, stream(1, "closed"));
    simulation.add_vm(Policy::default(), 0, Box::new(workload)).unwrap();
    run(&mut simulation, 101);
    assert!((simulation.rate(0) - 200.0).abs() < 0.5, "{}", simulation.rate(0));
}

fn policy(reservation: Option<u64>, limit: Option<u64>, weight: u32) -> Policy {
    let mut policy = Policy { weight: Some(Weight::new(weight)), ..Policy::default() };
    policy.reservation.iops = reservation.map(Iops::per_second);
    policy.limit.iops = limit.map(Iops::per_second);
    policy
}

#[test]
fn mclock_divides_as_in_figure_3() {
    // Shares 100:200:300, reservations 250, 250, none, a limit of 1000 for the third VM; capacity and rates.
    let table: [(u64, [f64; 3]); 6] = [
        (875, [250.0, 250.0, 375.0]),
        (1200, [250.0, 380.0, 570.0]),
        (1500, [250.0, 500.0, 750.0]),
        (2000, [333.0, 667.0, 1000.0]),
        (2500, [500.0, 1000.0, 1000.0]),
        (3000, [667.0, 1333.0, 1000.0]),
    ];
    for (capacity, expected) in table {
        let time = ServiceTime::Fixed(Duration::from_nanos(1_000_000_000 / capacity));
        let mut simulation = simulation("mclock", 1, Box::new(Servers::new(1, time, stream(1, "service"))), 10);
        let policies = [policy(Some(250), None, 100), policy(Some(250), None, 200), policy(None, Some(1000), 300)];
        for (vm, policy) in policies.into_iter().enumerate() {
            let name = format!("vm{vm}");
            let workload = Closed::new(32, Duration::ZERO, reads(8192, 1 << 30), Instant::ZERO, stream(1, &name));
            simulation.add_vm(policy, vm as u64 * (1 << 30), Box::new(workload)).unwrap();
        }
        run(&mut simulation, 70);
        for (vm, expected) in expected.into_iter().enumerate() {
            let off = (simulation.rate(vm) - expected).abs() / capacity as f64;
            assert!(off < 0.02, "{capacity} IOPS, VM {vm}: {:.1} against {expected}", simulation.rate(vm));
        }
    }
}

#[test]
fn ten_disks_match_the_paper() {
    // 16 KiB reads, 32 outstanding at the host: first come, first served at each disk, and sorted by the disk.
    for (queue, expected) in [(1, 1472.0), (32, 2055.0)] {
        let drive = HddSpec { queue, ..HddSpec::fc_15k_146gb() };
        let size = drive.capacity * 10;
        let array = Box::new(Array::new(Layout::Raid0, 10, 64 << 10, &drive));
        let mut simulation = simulation("noop", 32, array, 10);
        let workload = Closed::new(32, Duration::ZERO, reads(16 << 10, size), Instant::ZERO, stream(1, "reads"));
        simulation.add_vm(Policy::default(), 0, Box::new(workload)).unwrap();
        run(&mut simulation, 110);
        let off = simulation.rate(0) / expected - 1.0;
        assert!(off.abs() < 0.05, "queue {queue}: {:.0} against {expected}", simulation.rate(0));
    }
}

#[test]
fn a_small_write_costs_raid_5_four_times_a_read() {
    let rate = |reads_part: f64, layout| {
        let drive = HddSpec { segments: 0, ..HddSpec::fc_15k_146gb() };
        let array = Box::new(Array::new(layout, 10, 64 << 10, &drive));
        let mut simulation = simulation("noop", 64, array, 10);
        let mix = Mix { reads: reads_part, length: 4096, address: Address::random(0, 1_000_000_000_000) };
        let workload = Closed::new(64, Duration::ZERO, mix, Instant::ZERO, stream(1, "mix"));
        simulation.add_vm(Policy::default(), 0, Box::new(workload)).unwrap();
        run(&mut simulation, 60);
        simulation.rate(0)
    };
    let (reads, writes) = (rate(1.0, Layout::Raid5), rate(0.0, Layout::Raid5));
    // Two reads, then two writes at the same offsets a revolution later: between three and four times a read.
    assert!((2.5..4.2).contains(&(reads / writes)), "{reads:.0} reads, {writes:.0} writes");
    let striped = rate(0.0, Layout::Raid0);
    assert!((striped / reads - 1.0).abs() < 0.1, "{striped:.0} against {reads:.0}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed: u64| {
        let model = Box::new(Array::new(Layout::Raid0, 4, 64 << 10, &HddSpec { queue: 8, ..HddSpec::sata_7200_1tb() }));
        let mut simulation = simulation("mclock", 16, model, 1);
        for vm in 0..5 {
            let name = format!("vm{vm}");
            let pattern = Pattern::Poisson(Duration::from_millis(20));
            let workload = Open::new(pattern, reads(4096, 1 << 38), Instant::ZERO, stream(seed, &name));
            simulation.add_vm(policy(Some(10), None, 100 * (vm + 1)), 0, Box::new(workload)).unwrap();
        }
        run(&mut simulation, 60);
        (0..5).map(|vm| (simulation.record(vm).mean(), simulation.record(vm).series().to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn a_trace_is_replayed_at_its_times_or_in_a_closed_loop() {
    let rows = |gap_us: u64| {
        let row = move |number: u64| Row {
            at: 7_000_000 + number * gap_us * 1000,
            stream: 0,
            kind: Kind::Read,
            offset: number * 4096,
            length: 4096,
        };
        (0..10_000).map(row)
    };
    // A device of 1,000 requests per second; one row every 2 ms.
    let run_with = |pace| {
        let model = Box::new(Servers::new(1, ServiceTime::Fixed(Duration::from_millis(1)), stream(1, "service")));
        let mut simulation = simulation("noop", 8, model, 0);
        simulation.add_vm(Policy::default(), 0, Box::new(Replay::new(rows(2000), pace, Instant::ZERO))).unwrap();
        run(&mut simulation, 60);
        let record = simulation.record(0);
        assert_eq!(record.completed, 10_000);
        (record.series().iter().filter(|window| window.completed > 0).count(), record.mean())
    };
    assert_eq!(run_with(ReplayTiming::Open(1.0)), (20, Duration::from_millis(1)));
    assert_eq!(run_with(ReplayTiming::Open(2.0)), (40, Duration::from_millis(1)));
    let (seconds, mean) = run_with(ReplayTiming::Closed(4));
    assert_eq!((seconds, mean.as_millis()), (11, 3), "four outstanding, one of them at work");
}

/// A drive has no command that makes zeroes; a model without a statement about it has one.
#[test]
fn zeroes_on_a_drive_took_no_time_and_were_one_cheap_request() {
    const LENGTH: u32 = 64 << 20;
    let zeroed = |model: Box<dyn Model>| {
        let row = Row { at: 0, stream: 0, kind: Kind::WriteZeroes, offset: 0, length: LENGTH };
        let mut simulation = simulation("noop", 8, model, 0);
        let replay = Replay::new([row].into_iter(), ReplayTiming::Open(1.0), Instant::ZERO);
        simulation.add_vm(Policy::default(), 0, Box::new(replay)).unwrap();
        run(&mut simulation, 60);
        let stats = simulation.stats(0);
        (stats.bytes, stats.completed()[Kind::Write as usize], stats.completed()[Kind::WriteZeroes as usize])
    };
    let drive = HddSpec::sata_7200_1tb();
    let written = (u64::from(LENGTH), 256, 0);
    assert_eq!(zeroed(Box::new(Hdd::new(drive.clone()))), written);
    assert_eq!(zeroed(Box::new(Array::new(Layout::Raid0, 2, 64 << 10, &drive))), written);
    let server = Servers::new(1, ServiceTime::Fixed(Duration::from_millis(1)), stream(1, "service"));
    assert_eq!(zeroed(Box::new(server)), (0, 0, 1));
}
