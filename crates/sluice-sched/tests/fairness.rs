//! Fairness of SFQ(D) in numbers: the bounds of start-time fair queueing on random runs, and what it does not
//! guarantee.
//!
//! A run has every flow backlogged from the first dispatch to the last. Services are exact integers: with weights that
//! divide 1000, cost * 1000 / weight.

use crate::common::analysis::{assert_close, cost};
use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::gate::histogram::Histogram;
use sluice_sched::params::Value;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

const WEIGHTS: [u32; 6] = [1, 2, 4, 8, 10, 1000];

fn sfqd(depth: u32) -> Subject {
    Subject::of("sfqd").with("depth", Value::Integer(i64::from(depth)))
}

/// A flow with its weight and the lengths of its requests in turn.
struct Flow {
    weight: u32,
    lengths: Vec<u32>,
}

impl Flow {
    /// Service in thousandths of requests divided by the weight.
    fn over_weight(&self, requests: i64) -> i64 {
        requests * 1000 / i64::from(self.weight)
    }

    fn largest(&self) -> i64 {
        self.lengths.iter().map(|length| requests(*length)).max().expect("it has lengths")
    }
}

fn requests(length: u32) -> i64 {
    i64::from(plan::cost_model().cost(Kind::Read, length).raw() >> 16)
}

/// Flow and requests served, one entry per dispatch.
type Served = Vec<(usize, i64)>;

/// A random run of random flows: what was dispatched, and what completed.
fn random_run(seed: u64, subject: impl Fn(u32) -> Subject) -> (Vec<Flow>, u32, Served, Served) {
    let mut rng = chance(seed);
    let depth = pick(&mut rng, &[1, 2, 4, 8, 16, 32]);
    let order = pick(&mut rng, &[Order::Fifo, Order::Lifo, Order::Random]);
    let servers = pick(&mut rng, &[1, 2, 8, 32]);
    let flows: Vec<Flow> = (0..2 + below(&mut rng, 5))
        .map(|_| Flow {
            weight: pick(&mut rng, &WEIGHTS),
            lengths: (0..1 + below(&mut rng, 3)).map(|_| pick(&mut rng, &plan::LENGTHS)).collect(),
        })
        .collect();
    let settings =
        GateSettings { depth, transfer_max: Bytes::mib(1), cost: plan::cost_model(), ..GateSettings::default() };
    let device = Stub::new(servers, order, Service::Between(MILLI, 9 * MILLI));
    let info = DeviceInfo { depth, ..DeviceInfo::default() };
    let mut world = World::new(subject(depth).build(&info), settings, device);
    let sources: Vec<usize> = flows
        .iter()
        .map(|flow| {
            let vm = world.vm(Policy { idle_credit: 0, ..Policy::weighted(flow.weight) });
            world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&flow.lengths))
        })
        .collect();
    // All arrive before the first decision, and no queue becomes empty in the part that is analysed.
    for _ in 0..600 {
        sources.iter().for_each(|source| assert!(world.ask(*source)));
    }
    world.pump();
    while world.log.len() < 600 {
        let next = world.next_instant().expect("it is backlogged");
        world.run_until(next);
        assert!(world.device.held_max <= depth as usize, "D outstanding at most");
    }
    let served = |record: &Record| (record.source as usize, requests(record.request.length));
    let dispatched = world.log.iter().map(served).collect();
    let completed = world.done.iter().map(|(_, place)| served(&world.log[*place])).collect();
    (flows, depth, dispatched, completed)
}

/// Range of a number that starts at 0: the largest change in any interval.
fn range(steps: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut least, mut most) = (0.0, 0.0f64, 0.0f64);
    for step in steps {
        sum += step;
        (least, most) = (least.min(sum), most.max(sum));
    }
    most - least
}

/// The largest difference of two flows' services/weights in any interval, divided by its bound.
fn worst(flows: &[Flow], served: &[(usize, i64)]) -> f64 {
    let mut worst = 0.0f64;
    for i in 0..flows.len() {
        for j in 0..i {
            let step = |(flow, service): &(usize, i64)| match *flow {
                flow if flow == i => flows[i].over_weight(*service),
                flow if flow == j => -flows[j].over_weight(*service),
                _ => 0,
            };
            let most = range(served.iter().map(|one| step(one) as f64));
            let bound = flows[i].over_weight(flows[i].largest()) + flows[j].over_weight(flows[j].largest());
            worst = worst.max(most / bound as f64);
        }
    }
    worst
}

// rule: sfqd.bound-dispatched, sfqd.bound-completed, sfqd.depth
#[test]
fn service_by_weight_differs_by_at_most_one_request_of_each() {
    let (mut of_dispatched, mut of_completed) = (0.0f64, 0.0f64);
    for seed in 0..450 {
        let (flows, depth, dispatched, completed) = random_run(seed, sfqd);
        of_dispatched = of_dispatched.max(worst(&flows, &dispatched));
        of_completed = of_completed.max(worst(&flows, &completed) / f64::from(depth + 1));
    }
    println!("dispatched: {of_dispatched:.3} of the bound, completed: {of_completed:.3}");
    assert!(of_dispatched <= 1.0, "dispatched work: {of_dispatched} of the bound");
    assert!(of_dispatched >= 0.99, "the bound is tight: {of_dispatched}");
    assert!(of_completed <= 1.0, "completed work: {of_completed} of (D + 1) times the bound");
    assert!(of_completed >= 0.3, "the bound means something: {of_completed}");
}

// rule: sfqd.bound-share
#[test]
fn a_flow_gets_its_share_of_all_that_is_dispatched_in_any_interval() {
    for seed in 1000..1100 {
        let (flows, _, dispatched, _) = random_run(seed, sfqd);
        let sum: f64 = flows.iter().map(|flow| f64::from(flow.weight)).sum();
        let all: f64 = flows.iter().map(|flow| flow.largest() as f64).sum();
        for (index, flow) in flows.iter().enumerate() {
            let (part, own) = (f64::from(flow.weight) / sum, flow.largest() as f64);
            let bound = own * (1.0 - part) + part * (all - own);
            let lag = |(of, service): &(usize, i64)| *service as f64 * (f64::from(u8::from(*of == index)) - part);
            let most = range(dispatched.iter().map(lag));
            assert!(most <= bound + 1e-6, "{most} of {bound}, flow {index}, seed {seed}");
        }
    }
}

/// Q7: share tags of mClock are start tags of SFQ, as long as their time is virtual.
// rule: mclock.bound-share, mclock.virtual-time
#[test]
fn q7_service_by_weight_differs_by_at_most_one_request_of_each() {
    let most = (0..450).map(|seed| {
        let (flows, _, dispatched, _) = random_run(seed, |_| product());
        worst(&flows, &dispatched)
    });
    let most = most.fold(0.0, f64::max);
    println!("mclock: {most:.3} of the bound");
    assert!((0.99..=1.0).contains(&most), "dispatched work: {most} of the bound, which is tight");
}

/// A VM of the smallest weight has a batch. Virtual time advanced by all of it, and a VM that woke then waited until
/// the others had got as much: 7 s here.
// rule: mclock.virtual-time, mclock.batch
#[test]
fn a_vm_that_woke_after_a_batch_of_a_light_vm_was_served_last() {
    let light_and_heavy = [1, 1000, 1000].map(Policy::weighted);
    for of_volumes in [false, true] {
        let mut world = World::simple(&product().with("batch", Value::Integer(8)), 1, 1000);
        let vm = world.vm(Policy::default());
        let places = light_and_heavy.map(|policy| match of_volumes {
            true => (vm, world.volume(vm, policy)),
            false => (world.vm(policy), VolumeId(0)),
        });
        let streams = places.map(|(owner, volume)| {
            world.source(Source::new(owner, volume, Pattern::Manual).places(Places::Contiguous))
        });
        let served = |world: &World| streams.map(|stream| world.sources[stream].finished);
        for stream in [0, 1] {
            (0..200).for_each(|_| assert!(world.ask(streams[stream])));
        }
        world.pump();
        world.run_until(millis(40));
        let before = served(&world);
        assert!(before[0] == 8 && before[1] >= 30, "{before:?}");
        (0..200).for_each(|_| assert!(world.ask(streams[2])));
        world.pump();
        world.run_until(millis(140));
        let after = served(&world);
        let [heavy, woken] = [after[1] - before[1], after[2]];
        assert!(heavy.abs_diff(woken) <= 16, "volumes: {of_volumes}, {heavy} and {woken}");
    }
}

// rule: sfqd.cost
#[test]
fn a_large_request_counts_its_cost_unless_each_counts_one() {
    for (charge, due) in [("size", [800.0, 200.0]), ("request", [500.0, 500.0])] {
        let settings = GateSettings { depth: 1, cost: plan::cost_model(), ..GateSettings::default() };
        let scheduler = sfqd(1).text("charge", charge).build(&DeviceInfo::default());
        let mut world = World::new(scheduler, settings, Stub::serial(MILLI));
        let vms = [1, 1].map(|weight| world.vm(Policy::weighted(weight)));
        for (vm, length) in vms.iter().zip([plan::LENGTHS[0], plan::LENGTHS[1]]) {
            world.source(Source::new(*vm, VolumeId(0), Pattern::Closed(16)).lengths(&[length]));
        }
        world.run_until(secs(10));
        assert_close(charge, &world.rates(&vms, Instant::ZERO, secs(10)), &due, 0.01);
        let costs: f64 = world.of(vms[1]).map(cost).sum();
        assert!(costs >= 4.0 * world.times(vms[1]).len() as f64);
    }
}

// rule: sfqd.idle-flow
#[test]
fn becoming_idle_at_every_completion_erases_no_debt() {
    // Adversary: its queue is empty whenever its request completes, so each of its requests makes it active again.
    let mut world = World::simple(&sfqd(1), 1, 1000);
    let honest = world.busy(Policy::weighted(300), Pattern::Closed(32));
    let toggler = world.busy(Policy::weighted(100), Pattern::Closed(1));
    world.run_until(secs(8));
    assert_close("3:1", &world.rates(&[honest, toggler], Instant::ZERO, secs(8)), &[750.0, 250.0], 0.001);
}

// rule: sfqd.reset
#[test]
fn earlier_service_is_forgotten_when_all_are_idle() {
    let mut world = World::simple(&sfqd(1), 1, 1000);
    let vms = [100, 100].map(|weight| world.vm(Policy::weighted(weight)));
    let sources = vms.map(|vm| world.stream(vm, Pattern::Manual));
    (0..500).for_each(|_| assert!(world.ask(sources[0])));
    world.pump();
    world.run_until(secs(1));
    assert_eq!(world.gate.inspect(world.now).virtual_time, Some(0), "the gate is idle");
    for _ in 0..10 {
        sources.iter().for_each(|source| assert!(world.ask(*source)));
    }
    world.pump();
    world.run_until(secs(2));
    assert_eq!(world.counts(&vms, millis(1000), millis(1010)), [5, 5], "neither has a debt");
}

// rule: sfqd.integers
#[test]
fn tags_never_overflow() {
    // The smallest weight with the largest requests advances virtual time by 2^54 per request.
    let settings = GateSettings {
        depth: 4,
        cost: CostModel { flush: Cost::from_raw(u32::MAX), ..CostModel::default() },
        ..GateSettings::default()
    };
    let mut world = World::new(sfqd(4).build(&DeviceInfo::default()), settings, Stub::serial(MILLI));
    let weight = |hundredths| Policy { weight: Some(Weight::from_hundredths(hundredths)), ..Policy::default() };
    let vms = [weight(1), weight(3)].map(|policy| world.vm(policy));
    for vm in vms {
        world.source(Source::new(vm, VolumeId(0), Pattern::Closed(8)).kind(Kind::Flush));
    }
    world.run_until(secs(20));
    assert_close("1:3", &world.rates(&vms, Instant::ZERO, secs(20)), &[250.0, 750.0], 0.001);
}

// No guarantee.

// rule: sfqd.dilutes
#[test]
fn a_rate_falls_as_flows_join() {
    let rate = |others: usize| {
        let mut world = World::simple(&sfqd(8), 8, 1000);
        let vm = world.busy(Policy::weighted(100), Pattern::Closed(32));
        for _ in 0..others {
            world.busy(Policy::weighted(100), Pattern::Closed(32));
        }
        world.run_until(secs(10));
        world.rates(&[vm], secs(1), secs(10))[0]
    };
    for (others, due) in [(0, 1000.0), (1, 500.0), (9, 100.0)] {
        assert!((rate(others) - due).abs() <= 1.0, "with {others} others");
    }
}

// rule: sfqd.queues-behind
#[test]
fn a_flow_of_low_demand_waits_for_outstanding_requests_of_others() {
    // [mclock] 5.2: D = 32, and the busy VM fills what the others leave.
    let wait = |depth: u32| {
        let mut world = World::simple(&sfqd(depth), depth, 1000);
        world.busy(Policy::weighted(100), Pattern::Closed(64));
        let rare = world.busy(Policy::weighted(1000), Pattern::Open(100 * MILLI));
        world.run_until(secs(10));
        let stats = world.gate.stats(rare).expect("a known VM");
        let median = |histogram: &Histogram| histogram.percentile(50.0).expect("it was served") as f64 / MILLI as f64;
        (median(&stats.service_time), median(&stats.queue_time))
    };
    let (shallow, deep) = (wait(1), wait(32));
    assert!(shallow.0 <= 1.1 && shallow.1 <= 1.1, "at most one other request comes first: {shallow:?} ms");
    assert!(deep.0 >= 31.0, "31 requests of another VM come first: {deep:?} ms");
}
