//! Several nodes, guest gates, and planned events.

use std::time::Duration;

use sluice_sched::scheduler::{DeviceInfo, Scheduler};
use sluice_sched::tracker::Form;
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{Gate, GateSettings, Instant, Policy};
use sluice_sim::checks::check;
use sluice_sim::devices::Model;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::speed::Speed;
use sluice_sim::engine::{Change, Placement, Simulation, Thread};
use sluice_sim::random::stream;
use sluice_sim::stack::{Guest, Ring, Stack};
use sluice_sim::workloads::{Address, Closed, Mix, Open, Pattern, Workload};

const SECOND: Duration = Duration::from_secs(1);

fn scheduler(name: &str, depth: u32) -> Box<dyn Scheduler> {
    let info = DeviceInfo { depth, ..DeviceInfo::default() };
    sluice_papers::find(name).unwrap().build(&info, &Default::default()).unwrap()
}

fn gate(name: &str, depth: u32) -> Gate {
    Gate::new(scheduler(name, depth), GateSettings { depth, ..GateSettings::default() })
}

/// A device of 1,000 requests per second, one at a time.
fn device() -> Box<dyn Model> {
    Box::new(Servers::new(1, ServiceTime::Fixed(Duration::from_millis(1)), stream(1, "service")))
}

fn closed(outstanding: u32, name: &str) -> Box<dyn Workload> {
    let mix = Mix { reads: 1.0, length: 8192, address: Address::random(0, 1 << 30) };
    Box::new(Closed::new(outstanding, Duration::ZERO, mix, Instant::ZERO, stream(1, name)))
}

fn weighted(weight: u32) -> Policy {
    Policy { weight: Some(Weight::new(weight)), ..Policy::default() }
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(1000 * seconds)
}

/// Completions of a VM in each second.
fn series(simulation: &Simulation, vm: usize) -> Vec<u64> {
    simulation.record(vm).series().iter().map(|window| window.completed).collect()
}

/// Whether each value of a series is within `off` of the expected one.
fn close(series: &[u64], expected: &[u64], off: u64) -> bool {
    series.len() >= expected.len() && series.iter().zip(expected).all(|(got, wanted)| got.abs_diff(*wanted) <= off)
}

#[test]
fn vms_start_pause_stop_and_change_their_weight() {
    let mut simulation = Simulation::new(gate("mclock", 1), device(), Duration::ZERO, SECOND);
    let first = simulation.add_vm(weighted(100), 0, closed(8, "a")).unwrap();
    let second = simulation.add_vm(weighted(100), 0, closed(8, "b")).unwrap();
    simulation.start_paused(second);
    simulation.plan_change(at(1), Change::Start(second));
    simulation.plan_change(at(2), Change::Policy(second, weighted(300)));
    simulation.plan_change(at(3), Change::Idle(first));
    simulation.plan_change(at(4), Change::Start(first));
    simulation.plan_change(at(5), Change::Stop(second));
    simulation.run_until(at(6));
    assert_eq!(check(&simulation), []);
    let (one, two) = (series(&simulation, first), series(&simulation, second));
    assert!(close(&one, &[1000, 500, 250, 0, 250, 1000], 10), "{one:?}");
    assert!(close(&two, &[0, 500, 750, 1000, 750], 10), "{two:?}");
    assert_eq!(simulation.record(second).cancelled, 7, "queued requests when it stopped");
    assert_eq!(simulation.record(second).outstanding(), 0);
}

#[test]
fn a_paused_open_loop_does_not_catch_up() {
    let mut simulation = Simulation::new(gate("noop", 1), device(), Duration::ZERO, SECOND);
    let mix = Mix { reads: 1.0, length: 8192, address: Address::random(0, 1 << 30) };
    let pattern = Pattern::Periodic(Duration::from_millis(10));
    let vm = simulation.add_vm(weighted(1), 0, Box::new(Open::new(pattern, mix, at(0), stream(1, "open")))).unwrap();
    simulation.plan_change(at(1), Change::Idle(vm));
    simulation.plan_change(at(2), Change::Start(vm));
    simulation.run_until(at(3));
    assert_eq!(check(&simulation), []);
    assert!(close(&series(&simulation, vm), &[100, 0, 100], 1), "{:?}", series(&simulation, vm));
}

#[test]
fn a_device_slows_down_stalls_and_recovers() {
    let mut simulation = Simulation::new(gate("noop", 1), device(), Duration::ZERO, SECOND);
    let vm = simulation.add_vm(weighted(1), 0, closed(4, "a")).unwrap();
    simulation.plan_change(at(1), Change::Speed(0, Speed::Slower(4.0)));
    simulation.plan_change(at(2), Change::Speed(0, Speed::Stalled));
    simulation.plan_change(at(3), Change::Speed(0, Speed::NORMAL));
    simulation.run_until(at(4));
    assert_eq!(check(&simulation), []);
    assert!(close(&series(&simulation, vm), &[1000, 250, 0, 1000], 1), "{:?}", series(&simulation, vm));
    // Requests that were in flight at the stall waited for its end.
    assert!(simulation.longest_nanos() >= 1_000_000_000, "{}", simulation.longest_nanos());
}

#[test]
fn requests_of_a_failed_node_go_to_the_other() {
    let mut simulation = Simulation::new(gate("mclock", 4), device(), Duration::ZERO, SECOND);
    simulation.add_node(gate("mclock", 4), device());
    let spread = simulation.add_vm_at(Placement::Uniform(stream(1, "placement")), weighted(1)).unwrap();
    simulation.add_thread(spread, Thread::new(closed(64, "a"))).unwrap();
    let pinned = simulation.add_vm_at(Placement::Pinned(1), weighted(1)).unwrap();
    simulation.add_thread(pinned, Thread::new(closed(1, "b"))).unwrap();
    simulation.plan_change(at(1), Change::Fail(1));
    simulation.plan_change(at(2), Change::Return(1));
    simulation.run_until(at(3));
    assert_eq!(check(&simulation), []);
    let (both, one) = (series(&simulation, spread), series(&simulation, pinned));
    let total: Vec<_> = both.iter().zip(&one).map(|(a, b)| a + b).collect();
    // When random choice accumulates requests at one node, the other one is idle for a moment.
    assert!(close(&total, &[2000, 1000, 2000], 200), "{both:?} {one:?}");
    assert_eq!(one[1], 0, "it has no other node");
    assert!(one[2] > 50, "it continues when its node returns: {one:?}");
    assert!(simulation.record(spread).retried > 10, "{}", simulation.record(spread).retried);
    assert_eq!(simulation.record(spread).outstanding(), 64, "none was lost");
}

#[test]
fn reports_of_remote_service_survive_a_full_queue() {
    // 300 of 3,000 requests per second, most of which wait in the VM: three queues of 8 are always full.
    let gate = || Gate::new(scheduler("mclock", 4), GateSettings { depth: 4, queue_max: 8, ..GateSettings::default() });
    let mut simulation = Simulation::new(gate(), device(), SECOND, SECOND);
    simulation.add_node(gate(), device());
    simulation.add_node(gate(), device());
    let mut limited = weighted(1);
    limited.limit.iops = Some(Iops::per_second(300));
    let vm = simulation.add_vm_at(Placement::Uniform(stream(1, "placement")), limited).unwrap();
    simulation.add_thread(vm, Thread::new(closed(256, "a"))).unwrap();
    simulation.track(vm, Form::Product);
    simulation.run_until(at(21));
    assert_eq!(check(&simulation), []);
    assert!(simulation.record(vm).refused > 1000, "{}", simulation.record(vm).refused);
    assert!((simulation.rate(vm) - 300.0).abs() < 3.0, "{}", simulation.rate(vm));
}

#[test]
fn round_robin_uses_nodes_in_turn() {
    let mut simulation = Simulation::new(gate("noop", 1), device(), Duration::ZERO, SECOND);
    simulation.add_node(gate("noop", 1), device());
    simulation.add_node(gate("noop", 1), device());
    let vm = simulation.add_vm_at(Placement::RoundRobin(0), weighted(1)).unwrap();
    simulation.add_thread(vm, Thread::new(closed(9, "a"))).unwrap();
    simulation.run_until(at(1));
    assert_eq!(check(&simulation), []);
    assert!((simulation.rate(vm) - 3000.0).abs() <= 9.0, "{}", simulation.rate(vm));
}

#[test]
fn a_guests_ring_bounds_the_requests_at_the_host() {
    let mut simulation = Simulation::new(Stack::new(gate("sfqd", 4)), device(), Duration::ZERO, SECOND);
    let guest = || Guest { scheduler: scheduler("noop", 4), ring: Ring::XEN, merging: false, queue_max: 1024 };
    let heavy = simulation.add_guest(0, weighted(3), guest()).unwrap();
    let light = simulation.add_guest(0, weighted(1), guest()).unwrap();
    for thread in 0..8 {
        simulation.add_thread(heavy, Thread::new(closed(8, &format!("heavy{thread}"))).synchronous()).unwrap();
    }
    simulation.add_thread(light, Thread::new(closed(64, "light"))).unwrap();
    simulation.run_until(at(10));
    assert_eq!(check(&simulation), []);
    let stats = simulation.stats(heavy);
    assert_eq!(stats.outstanding.waiting + stats.outstanding.in_flight, Ring::XEN.slots, "a ring, and not all 64");
    let ratio = simulation.rate(heavy) / simulation.rate(light);
    assert!((ratio - 3.0).abs() < 0.05, "{ratio}");
}

#[test]
fn the_end_of_a_bounded_workload_is_recorded() {
    // Ten requests, at the device's rate.
    let rows = (0..10).map(|index| sluice_sim::traces::Row {
        at: 0,
        stream: 0,
        kind: sluice_sched::Kind::Write,
        offset: index * 8192,
        length: 8192,
    });
    let mut simulation = Simulation::new(gate("noop", 1), device(), Duration::ZERO, SECOND);
    let replay = sluice_sim::workloads::Replay::new(rows, sluice_sim::workloads::ReplayTiming::Closed(2), at(0));
    let vm = simulation.add_vm(weighted(1), 0, Box::new(replay)).unwrap();
    simulation.run_until(at(1));
    assert_eq!(check(&simulation), []);
    assert_eq!(simulation.ended(vm), Some(Instant::from_millis(10)));
}

#[test]
fn a_rejected_change_is_a_violation() {
    // noop cannot keep a reservation.
    let mut simulation = Simulation::new(gate("mclock", 1), device(), Duration::ZERO, SECOND);
    let vm = simulation.add_vm(weighted(1), 0, closed(1, "a")).unwrap();
    let mut impossible = weighted(1);
    impossible.idle_credit = 1 << 20;
    impossible.reservation.iops = Some(Iops::per_second(1));
    simulation.plan_change(at(1), Change::Policy(vm, impossible));
    simulation.run_until(at(2));
    let broken = check(&simulation);
    assert!(matches!(broken[..], [sluice_sim::checks::Violation::Change { .. }]), "{broken:?}");
}
