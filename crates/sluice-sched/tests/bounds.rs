//! Bounds and symmetries that hold for schedulers of several kinds, and loads that have shown defects before.

use std::time::Duration;

use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::params::Value;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// Six VMs submit 20 requests each, alternately and at the same instant, to a device that serves them in order. Returns
/// the arrival numbers in order of dispatch.
fn all_at_once(subject: &Subject, policy: impl Fn(u32) -> Policy, depth: u32) -> Vec<u64> {
    let info = DeviceInfo { depth, ..DeviceInfo::default() };
    let settings = GateSettings { depth, cost: CostModel::per_request(), ..GateSettings::default() };
    let mut world = World::new(subject.build(&info), settings, Stub::serial(MILLI));
    let sources: Vec<usize> = (0..6)
        .map(|vm| {
            let vm = world.vm(policy(vm));
            world.source(Source::new(vm, VolumeId(0), Pattern::Manual).places(Places::Random))
        })
        .collect();
    (0..120).for_each(|turn| {
        world.ask(sources[turn * turn % 6]);
    });
    world.pump();
    world.run_until(secs(1));
    world.log.iter().map(|record| record.request.id.0).collect()
}

fn latency(millis: u64) -> Policy {
    let p99 = Duration::from_millis(millis);
    Policy { latency: Some(LatencyTarget { p99, reads_only: false }), ..Policy::default().reserving(100) }
}

/// With credits for all requests of these tests.
fn edf() -> Subject {
    Subject::of("edf-credit").with("beta", Value::Integer(128))
}

#[test]
fn mm11_depth_changes_no_order_if_all_requests_are_queued_before() {
    type Policies = fn(u32) -> Policy;
    let sfqd = Subject::of("sfqd").with("depth", Value::Integer(0));
    let early = Subject::of("deadline").text("mode", "early");
    let different: Policies = |vm| Policy::weighted([1, 7, 2, 1000, 10, 7][vm as usize]);
    let targets: Policies = |vm| latency([60, 10, 80, 20, 200, 60][vm as usize]);
    let subjects = [(sfqd, different), (edf(), targets), (Subject::of("deadline"), different), (early, different)];
    for (subject, policies) in subjects {
        let one = all_at_once(&subject, policies, 1);
        assert_eq!(one.len(), 120, "{}", subject.label());
        for depth in [2, 8, 32] {
            assert_eq!(all_at_once(&subject, policies, depth), one, "{} at depth {depth}", subject.label());
        }
    }
}

#[test]
fn mm16_equal_deadlines_of_equal_vms_are_served_in_arrival_order() {
    let arrived: Vec<u64> = (0..120).collect();
    for depth in [1, 8] {
        assert_eq!(all_at_once(&edf(), |_| latency(60), depth), arrived, "at depth {depth}");
        // No two requests of this run are adjacent, so none is dispatched out of order.
        for mode in ["paper", "product"] {
            let flubber = Subject::of("flubber").text("mode", mode).with("beta", Value::Integer(128));
            assert_eq!(all_at_once(&flubber, |_| latency(60), depth), arrived, "{mode} at depth {depth}");
        }
    }
    assert_ne!(
        all_at_once(&Subject::of("deadline"), |_| latency(60), 1),
        arrived,
        "a scheduler that sorts by offset does not"
    );
}

/// Q17: maximum number of requests of one VM that are dispatched while a request of another waits.
#[test]
fn q17_while_a_request_waits_other_vms_are_served_by_weight() {
    // Weights, and the costs of their requests in turn.
    let vms: [(u64, &[u64]); 6] = [(1, &[1]), (2, &[4, 1]), (4, &[1]), (10, &[16, 1, 4]), (100, &[64]), (100, &[1])];
    let length = |cost: &u64| plan::LENGTHS[cost.ilog(4) as usize];
    for subject in [product(), Subject::of("sfqd").with("depth", Value::Integer(0))] {
        let info = DeviceInfo { depth: 4, ..DeviceInfo::default() };
        let transfer_max = Bytes::mib(1);
        let settings = GateSettings { depth: 4, cost: plan::cost_model(), transfer_max, ..GateSettings::default() };
        let mut world = World::new(subject.build(&info), settings, Stub::serial(MILLI));
        let owners = vms.map(|(weight, costs)| {
            let vm = world.vm(Policy { idle_credit: 0, ..Policy::weighted(weight as u32) });
            let lengths: Vec<u32> = costs.iter().map(length).collect();
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(16)).lengths(&lengths));
            vm
        });
        world.run_until(secs(60));
        for (i, (weight, costs)) in vms.iter().enumerate() {
            let went: Vec<usize> =
                (0..world.log.len()).filter(|at| world.log[*at].request.owner == owners[i]).collect();
            for (j, (other_weight, other_costs)) in vms.iter().enumerate().filter(|(j, _)| *j != i) {
                let between = went.windows(2).map(|pair| {
                    world.log[pair[0]..pair[1]].iter().filter(|record| record.request.owner == owners[j]).count()
                });
                let most = between.max().expect("it was served") as u64;
                // (w_j c_i / w_i + c_j) / smallest c_j
                let (own, theirs) = (costs.iter().max().expect("one"), other_costs.iter().max().expect("one"));
                let least = other_costs.iter().min().expect("one");
                let bound = (other_weight * own + theirs * weight) / (weight * least);
                assert!(most <= bound, "{}: {most} of {j} while {i} waits, at most {bound}", subject.label());
            }
        }
    }
}

/// A disk of queue depth eight that serves one request at a time.
fn disk(subject: &Subject) -> World {
    let info = DeviceInfo { depth: 8, rotational: true, ..DeviceInfo::default() };
    let settings = GateSettings { depth: 8, ..GateSettings::default() };
    World::new(subject.build(&info), settings, Stub::new(1, Order::Fifo, Service::Disk))
}

// rule: deadline.read-progress, anticipatory.alternation
#[test]
fn a_flood_of_writes_does_not_starve_a_single_reader() {
    // A batch of 16 writes and eight that were in flight before, 11.2 ms each; or an async batch of 125 ms that was
    // sent eight at a time, and the requests that drain after it.
    for (name, most) in [("deadline", 270), ("anticipatory", 400)] {
        let mut world = disk(&Subject::of(name));
        let writer = world.vm(Policy::default());
        world.source(Source::new(writer, VolumeId(0), Pattern::Closed(256)).kind(Kind::Write).places(Places::Random));
        let reader = world.vm(Policy::default());
        world.source(Source::new(reader, VolumeId(0), Pattern::Think(MILLI)).places(Places::Random));
        world.run_until(secs(20));
        let waited = |record: &&Record| record.at.nanos_since(record.request.arrival) / MILLI;
        let reads = world.log.iter().filter(|record| record.request.owner == reader);
        let (count, longest) = (reads.clone().count(), reads.map(|record| waited(&record)).max().unwrap_or(u64::MAX));
        println!("{name}: {count} reads next to the flood, one waited {longest} ms");
        assert!(count >= 20 * 1000 / most as usize, "{name}: {count} reads in 20 s");
        assert!(longest <= most, "{name}: a read waited {longest} ms");
    }
}

/// Reads per second of a VM that reads sequentially and thinks, next to one that reads at random without a pause.
fn thinker(subject: &Subject, think: u64) -> f64 {
    let mut world = disk(subject);
    let vm = world.vm(Policy::default());
    world.source(Source::new(vm, VolumeId(0), Pattern::Think(think)).places(Places::Contiguous));
    let other = world.vm(Policy::default());
    world.source(Source::new(other, VolumeId(0), Pattern::Think(100_000)).places(Places::Random));
    world.run_until(secs(20));
    world.rates(&[vm], secs(5), secs(20))[0]
}

// rule: anticipatory.think-time, cfq.idle-arm
#[test]
fn trace_5_the_disk_does_not_idle_for_a_slightly_too_long_think_time() {
    // The elevator idles for 6 ms, CFQ for 8 ms. Their averages of rounded numbers are up to 2.8 % too high.
    for (subject, expire) in [(Subject::of("anticipatory"), 6), (Subject::of("cfq").text("mode", "2.6.32"), 8)] {
        let subject = subject.text("tick", "0s");
        let (expire, little) = (expire * MILLI, MILLI / 4);
        let [far_below, below, above, far_above] =
            [expire - 2 * MILLI, expire - little, expire + little, expire + 2 * MILLI].map(|t| thinker(&subject, t));
        println!("{}: {far_below}, {below} below {expire} ns, {above}, {far_above} above", subject.label());
        assert!(below >= 1.5 * above, "{}: {below} and {above} reads a second", subject.label());
        assert!(far_below >= 2.0 * far_above, "{}: {far_below} and {far_above} reads a second", subject.label());
    }
}
