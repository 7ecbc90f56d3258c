//! The experiments of \[netback\]: guests that send through a driver domain, its scheduler, and a link of 100 Mb/s.
//!
//! Random numbers favour no flow: seeds shift the starts of flows and vary their intervals alike. Differences result
//! from windows, slices, queues and CPUs.

use std::time::Duration;

use sluice_sched::gate::GateSettings;
use sluice_sched::params::{ParamTable, Value};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{ByteRate, CostModel, Gate, Instant, Limit, Policy, Reservation};
use sluice_sim::checks::check;
use sluice_sim::cpu::credit1::Params;
use sluice_sim::cpu::{Class, Host};
use sluice_sim::devices::link::{CompletesWhen, Link, LinkParams};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::{Change, Placement, Simulation, Thread};
use sluice_sim::random::stream;
use sluice_sim::workloads::{Address, Closed, DatagramParams, Datagrams, Mix, Tcp, TcpParams};

/// CPU time of a packet in a guest, and of a packet and a disk request in the driver domain.
const GUEST: Duration = Duration::from_micros(15);
const PACKET: Duration = Duration::from_micros(20);
const REQUEST: Duration = Duration::from_micros(200);
/// Bytes of a full frame on the wire, and of the frame itself.
const WIRE: f64 = 1538.0;
const FRAME: f64 = 1514.0;

fn secs(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

fn gate(name: &str, params: &[(&str, Value)], depth: u32) -> Gate {
    let params: ParamTable = params.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let scheduler = sluice_papers::find(name)
        .expect("it is in the list")
        .build(&DeviceInfo { depth, ..DeviceInfo::default() }, &params);
    let settings = GateSettings { depth, queue_max: 256, cost: CostModel::per_request(), ..GateSettings::default() };
    Gate::new(scheduler.expect("valid parameters"), settings)
}

/// Xen's back end: a frame completes when it is copied and passed to the bridge, and is dropped if the queue is full.
fn netback() -> (Gate, LinkParams) {
    let link = LinkParams { completes_when: CompletesWhen::Queued, ..LinkParams::FAST_ETHERNET };
    (gate("netback", &[("tick", Value::Text("4ms".to_owned()))], 256), link)
}

/// The paper's scheduler: turns in proportion to the weight, and no frame is taken without room downstream.
fn wrr(unit: &str) -> (Gate, LinkParams) {
    let params = [("rounds", "published"), ("unit", unit)].map(|(name, word)| (name, Value::Text(word.to_owned())));
    (gate("wrr", &params, 16), LinkParams::FAST_ETHERNET)
}

/// The same without copies: frames complete when they are on the wire, and more are taken than the queue holds.
fn full_queue() -> (Gate, LinkParams) {
    let pending = [("pending", Value::Integer(4096))];
    (gate("netback", &pending, 4096), LinkParams { queue: 100, ..LinkParams::FAST_ETHERNET })
}

/// CPUs of the guests.
#[derive(Clone, Copy, PartialEq)]
enum Guests {
    /// Both on one CPU.
    Together,
    /// Each on a separate CPU.
    Apart,
}

struct Bench {
    simulation: Simulation,
    seed: u64,
}

impl Bench {
    /// A link with a gate, guests with these policies, and the driver domain on a separate CPU.
    fn new((gate, link): (Gate, LinkParams), guests: Guests, policies: &[Policy], seed: u64) -> Self {
        let window = Duration::from_secs(1);
        let mut simulation = Simulation::new(gate, Box::new(Link::new(link)), Duration::ZERO, window);
        let mut host = Host::new(Params::XEN_4_0, 4);
        let mut vcpu = |cpu: u32| {
            let domain = host.add_domain(256, 0);
            host.add_vcpu(domain, 1 << cpu)
        };
        let driver = vcpu(0);
        let vcpus: Vec<_> = (0..policies.len() as u32)
            .map(|guest| vcpu(if guests == Guests::Together { 1 } else { 1 + guest % 3 }))
            .collect();
        simulation.set_cpus(host);
        simulation.backend_on(0, driver, Class::Net, PACKET);
        for (policy, vcpu) in policies.iter().zip(vcpus) {
            let vm = simulation.add_vm_at(Placement::Pinned(0), *policy).expect("the gate accepts the policy");
            simulation.guest_on(vm, vcpu, GUEST);
        }
        Bench { simulation, seed }
    }

    /// Adds a flow to a VM, from `start` on.
    fn flow(&mut self, vm: usize, params: DatagramParams, start: Instant) {
        let name = format!("flow {}", self.simulation.vms() * 100 + vm * 10 + start.as_nanos() as usize % 7);
        let flow = Datagrams::new(params, start, stream(self.seed, &name));
        self.simulation.add_thread(vm, Thread::new(Box::new(flow))).expect("a VM of the link");
    }

    fn run(mut self, seconds: u64) -> Self {
        self.simulation.run_until(secs(seconds));
        assert_eq!(check(&self.simulation), []);
        self
    }

    /// Megabits per second of a VM's frames in each second of `from..to`.
    fn rates(&self, vm: usize, from: usize, to: usize) -> Vec<f64> {
        let series = self.simulation.record(vm).series();
        (from..to).map(|second| series.get(second).map_or(0.0, |window| window.bytes as f64 * 8.0 / 1e6)).collect()
    }

    fn mean(&self, vm: usize, from: usize, to: usize) -> f64 {
        self.rates(vm, from, to).iter().sum::<f64>() / (to - from) as f64
    }

    fn dropped(&self, vm: usize) -> u64 {
        self.simulation.record(vm).dropped
    }
}

fn at_most(megabits: u64) -> Policy {
    let bytes = Some(ByteRate::per_second(megabits * 125_000));
    Policy { limit: Limit { iops: None, bytes }, ..Policy::default() }
}

fn at_least(megabits: u64) -> Policy {
    let bytes = Some(ByteRate::per_second(megabits * 125_000));
    Policy { reservation: Reservation { iops: None, bytes }, ..Policy::default() }
}

/// Rate of frames on a full link.
fn full() -> f64 {
    100.0 * FRAME / WIRE
}

// Figures 4 and 5.
// rule: netback.weak-below-rate, netback.transmit-only
#[test]
fn n1_n2_rates_are_slightly_below_the_stated_ones_and_independent() {
    for rates in [[25, 25], [30, 30], [35, 35], [40, 40], [30, 40]] {
        for seed in 1..=2 {
            let mut bench = Bench::new(netback(), Guests::Together, &rates.map(at_most), seed);
            bench.flow(0, DatagramParams::FULL_SPEED, secs(0));
            bench.flow(1, DatagramParams::FULL_SPEED, secs(4));
            let bench = bench.run(12);
            for (vm, rate) in rates.into_iter().enumerate() {
                let (mean, rate) = (bench.mean(vm, 5, 12), rate as f64);
                assert!((0.90 * rate..=rate).contains(&mean), "{rates:?}, VM {vm}: {mean} Mb/s");
                let spread = bench.rates(vm, 5, 12).iter().map(|got| (got - mean).abs()).fold(0.0, f64::max);
                assert!(spread <= 0.05 * rate, "{rates:?}, VM {vm}: {spread} Mb/s off {mean}");
            }
            let alone = bench.mean(0, 1, 4);
            assert!((bench.mean(0, 5, 12) - alone).abs() <= 0.02 * alone, "{rates:?}: {alone} alone");
            assert_eq!((bench.dropped(0), bench.dropped(1)), (0, 0));
        }
    }
}

/// Rate of the first of two flows with nearly the same rate at a full queue, second by second.
fn in_step(guests: Guests, ppm: u64, jitter: f64) -> Vec<f64> {
    let mut bench = Bench::new(netback(), guests, &[Policy::default(); 2], 1);
    for vm in 0..2 {
        let bits_per_second = 100_000_000 + vm as u64 * ppm * 100;
        bench.flow(vm, DatagramParams { bits_per_second, jitter, ..DatagramParams::FULL_SPEED }, secs(0));
    }
    let bench = bench.run(16);
    let all = bench.mean(0, 1, 16) + bench.mean(1, 1, 16);
    assert!((all - full()).abs() < 0.01 * full(), "the link is full: {all}");
    assert!(bench.dropped(0) + bench.dropped(1) > 50_000, "and its queue drops");
    bench.rates(0, 1, 16)
}

// Figure 6.
#[test]
fn n3_without_limits_synchronised_flows_dominate_each_other() {
    let (most, least) = (
        |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max),
        |rates: &[f64]| rates.iter().copied().fold(f64::MAX, f64::min),
    );
    // With exactly the same rate, the flow that wins at the start wins for ever.
    let rates = in_step(Guests::Apart, 0, 0.0);
    assert!(most(&rates) - least(&rates) < 1.0, "{rates:?}");
    assert!(
        (rates[0] - full() / 2.0).abs() > 0.25 * full(),
        "one of them has more than three times the other's: {rates:?}"
    );
    // With two clocks that drift by 20 ppm, the rate oscillates over seconds. CPUs have no influence.
    for guests in [Guests::Apart, Guests::Together] {
        let rates = in_step(guests, 20, 0.0);
        assert!(most(&rates) > 0.7 * full() && least(&rates) < 0.3 * full(), "{rates:?}");
    }
    // Varying intervals are not synchronised, and then a queue is fair to flows of the same rate.
    let rates = in_step(Guests::Apart, 20, 0.5);
    assert!(rates.iter().all(|rate| (rate - full() / 2.0).abs() < 0.05 * full()), "{rates:?}");
}

// rule: credit1.wake-boost
#[test]
fn a_computing_neighbour_does_not_slow_down_a_sender() {
    let mut bench = Bench::new(netback(), Guests::Together, &[Policy::default()], 1);
    bench.flow(0, DatagramParams::FULL_SPEED, secs(0));
    let hog = bench.simulation.add_busy(256, 1 << 1);
    let bench = bench.run(5);
    assert!(bench.mean(0, 1, 5) > 0.98 * full(), "{} Mb/s", bench.mean(0, 1, 5));
    let used = bench.simulation.host().used_nanos(hog) as f64 / 5e9;
    assert!((0.80..0.90).contains(&used), "{used} of the CPU is used by the computing guest");
}

// Figure 7.
// rule: netback.tail-drop
#[test]
fn n4_more_flows_get_more_of_the_links_queue() {
    let share = |ends: (Gate, LinkParams), flows: u64| {
        let mut bench = Bench::new(ends, Guests::Apart, &[Policy::default(); 2], 1);
        bench.flow(0, DatagramParams::FULL_SPEED, secs(0));
        (0..flows).for_each(|flow| bench.flow(1, DatagramParams::FULL_SPEED, Instant::from_nanos(flow)));
        let bench = bench.run(8);
        bench.mean(1, 1, 8) / bench.mean(0, 1, 8)
    };
    let (two, three) = (share(netback(), 2), share(netback(), 3));
    assert!(two > 1.2 && two <= 2.1 && three > two && three <= 3.2, "x {two} with twice, x {three} with three times");
    // The queue is the cause: if packets wait in the rings, turns are equal.
    for flows in 1..=3 {
        let fair = share(wrr("packets"), flows);
        assert!((fair - 1.0).abs() < 0.01, "x {fair} with {flows} flows");
    }
}

// Figure 8.
// rule: credit1.driver-domain
#[test]
fn n5_disk_requests_use_the_driver_domains_cpu() {
    let mut bench = Bench::new(netback(), Guests::Apart, &[Policy::default()], 1);
    bench = bench.with_disk();
    bench.flow(0, DatagramParams::FULL_SPEED, secs(0));
    let disk = 1;
    bench.simulation.plan_change(secs(6), Change::Start(disk));
    bench.simulation.plan_change(secs(10), Change::Idle(disk));
    let bench = bench.run(18);
    // Frames count when they are queued, and filling the queue takes some seconds.
    let [before, during, after] = [bench.mean(0, 4, 6), bench.mean(0, 7, 10), bench.mean(0, 15, 18)];
    assert!((before - full()).abs() < 0.01 * full() && (after - before).abs() < 0.01 * full(), "{before} {after}");
    // A packet and a disk request alternate, 220 us for both.
    let due = 1e6 / 220.0 * FRAME * 8.0 / 1e6;
    assert!((during - due).abs() < 0.02 * due, "{during} of {before} Mb/s, computed {due}");
}

impl Bench {
    /// Adds a second VM, paused, with a disk of the same driver domain; its requests cost more CPU time than packets.
    fn with_disk(self) -> Self {
        let window = Duration::from_secs(1);
        let (network, link) = netback();
        let mut simulation = Simulation::new(network, Box::new(Link::new(link)), Duration::ZERO, window);
        let fast = ServiceTime::Fixed(Duration::from_micros(50));
        let disk = simulation.add_node(gate("noop", &[], 32), Box::new(Servers::new(1, fast, stream(1, "disk"))));
        let mut host = Host::new(Params::XEN_4_0, 4);
        let vcpus = [0, 1, 2].map(|cpu| {
            let domain = host.add_domain(256, 0);
            host.add_vcpu(domain, 1 << cpu)
        });
        simulation.set_cpus(host);
        simulation.backend_on(0, vcpus[0], Class::Net, PACKET);
        simulation.backend_on(disk, vcpus[0], Class::Block, REQUEST);
        let sender =
            simulation.add_vm_at(Placement::Pinned(0), Policy::default()).expect("the gate accepts the policy");
        let reader =
            simulation.add_vm_at(Placement::Pinned(disk), Policy::default()).expect("the gate accepts the policy");
        simulation.guest_on(sender, vcpus[1], GUEST);
        simulation.guest_on(reader, vcpus[2], GUEST);
        let mix = Mix { reads: 1.0, length: 4096, address: Address::random(0, 1 << 30) };
        let load = Closed::new(32, Duration::ZERO, mix, secs(0), stream(1, "load"));
        simulation.add_thread(reader, Thread::new(Box::new(load))).expect("a VM of the disk");
        simulation.start_paused(reader);
        Bench { simulation, ..self }
    }
}

// Figure 9.
// rule: wrr.weights-at-turn, wrr.back-pressure
#[test]
fn n6_weights_that_change_every_second_are_followed() {
    for unit in ["packets", "bytes"] {
        let steps: [[u32; 2]; 7] = [[30, 1], [20, 1], [10, 1], [1, 1], [1, 10], [1, 20], [1, 30]];
        let policies = steps[0].map(Policy::weighted);
        let mut bench = Bench::new(wrr(unit), Guests::Together, &policies, 1);
        (0..2).for_each(|vm| bench.flow(vm, DatagramParams::FULL_SPEED, secs(0)));
        for (step, weights) in steps.iter().enumerate().skip(1) {
            for (vm, weight) in weights.iter().enumerate() {
                let change = Change::Policy(vm, Policy::weighted(*weight));
                bench.simulation.plan_change(secs(step as u64), change);
            }
        }
        let bench = bench.run(7);
        for (step, weights) in steps.iter().enumerate() {
            let sum = f64::from(weights[0] + weights[1]);
            for (vm, weight) in weights.iter().enumerate() {
                let due = full() * f64::from(*weight) / sum;
                let got = bench.mean(vm, step, step + 1);
                assert!((got - due).abs() <= 0.02 * full(), "{unit}, {weights:?}, VM {vm}: {got} of {due} Mb/s");
            }
        }
        assert_eq!((bench.dropped(0), bench.dropped(1)), (0, 0), "no frame is dropped before the wire");
    }
}

// rule: wrr.inactive
#[test]
fn n6_a_vm_that_stops_frees_its_bandwidth() {
    let mut bench = Bench::new(wrr("packets"), Guests::Apart, &[30, 1].map(Policy::weighted), 1);
    (0..2).for_each(|vm| bench.flow(vm, DatagramParams::FULL_SPEED, secs(0)));
    bench.simulation.plan_change(secs(3), Change::Idle(0));
    bench.simulation.plan_change(secs(6), Change::Start(0));
    let bench = bench.run(9);
    let light = [bench.mean(1, 0, 3), bench.mean(1, 4, 6), bench.mean(1, 7, 9)];
    assert!(light[0] < 4.0 && light[2] < 4.0 && light[1] > 0.98 * full(), "{light:?} Mb/s");
}

// The paper's section VII, as proposed.
// rule: wrr.min-rate
#[test]
fn n7_a_vm_below_its_minimum_is_served_first() {
    let policies = [at_least(60), Policy::default(), Policy::default()];
    let mut bench = Bench::new(wrr("bytes"), Guests::Apart, &policies, 1);
    (0..3).for_each(|vm| bench.flow(vm, DatagramParams::FULL_SPEED, secs(0)));
    let bench = bench.run(6);
    let got = [0, 1, 2].map(|vm| bench.mean(vm, 1, 6));
    let rest = (full() - 60.0) / 2.0;
    assert!((59.4..61.0).contains(&got[0]), "{got:?}");
    assert!((got[1] - rest).abs() < 1.0 && (got[2] - rest).abs() < 1.0, "{got:?}");
}

#[test]
fn transfers_share_a_queue_by_flow_and_turns_by_vm() {
    let share = |ends: (Gate, LinkParams)| {
        let mut bench = Bench::new(ends, Guests::Apart, &[Policy::default(); 2], 1);
        for (vm, flows) in [(0, 1), (1, 3)] {
            for _ in 0..flows {
                let tcp = Tcp::new(TcpParams { round_trip: Duration::from_millis(2), window_max: 512 }, secs(0));
                bench.simulation.add_thread(vm, Thread::new(Box::new(tcp))).expect("a VM of the link");
            }
        }
        let bench = bench.run(10);
        let rates = [bench.mean(0, 2, 10), bench.mean(1, 2, 10)];
        assert!((rates[0] + rates[1] - full()).abs() < 0.02 * full(), "{rates:?}");
        rates[1] / rates[0]
    };
    let turns = share(wrr("bytes"));
    assert!((turns - 1.0).abs() < 0.02, "x {turns}");
    let queue = share(full_queue());
    assert!(queue > 1.5, "x {queue}");
}
