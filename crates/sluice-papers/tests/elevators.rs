//! Strengths and weaknesses of the elevators, on a disk that takes 0.25 ms for the request that follows the last one
//! and 3.2 to 11.2 ms for others.

use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

fn named(name: &str) -> Subject {
    Subject::of(name)
}

fn cfq(mode: &str) -> Subject {
    Subject::of("cfq").text("mode", mode)
}

/// A spinning disk of queue depth `depth` that serves one request at a time.
fn disk(subject: &Subject, depth: u32, merging: bool) -> World {
    let info = DeviceInfo { depth, rotational: true, ..DeviceInfo::default() };
    let settings = GateSettings { depth, merging, ..GateSettings::default() };
    World::new(subject.build(&info), settings, Stub::new(1, Order::Fifo, Service::Disk))
}

/// A reader of 8 KiB that thinks; sequential, or at random in its own 1 GiB.
fn reader(world: &mut World, number: u64, think: u64, in_order: bool) -> OwnerId {
    let vm = world.vm(Policy::default());
    let source = Source::new(vm, VolumeId(0), Pattern::Think(think));
    world.source(if in_order { source.in_order_from(number << 33) } else { source.within(number << 33, 1 << 18) });
    vm
}

/// Requests per second of readers, over 20 s.
fn served(subject: &Subject, depth: u32, readers: &[bool], think: u64) -> Vec<f64> {
    let mut world = disk(subject, depth, false);
    let vms: Vec<OwnerId> =
        (0u64..).zip(readers).map(|(n, in_order)| reader(&mut world, n, think, *in_order)).collect();
    world.run_until(secs(20));
    world.rates(&vms, secs(2), secs(20))
}

/// rule: deadline.deceptive-idleness, noop.interleaving, anticipatory.sequential-readers
#[test]
fn two_sequential_readers_stream_only_if_the_disk_idles_for_them() {
    let rate = |subject: Subject| served(&subject, 8, &[true, true], 100_000).iter().sum::<f64>();
    let alone = served(&named("noop"), 8, &[true], 100_000)[0];
    assert!((2500.0..3000.0).contains(&alone), "one of them alone: {alone}");
    for subject in [named("noop"), named("deadline")] {
        assert!(rate(subject.clone()) < 350.0, "{}: a seek for each request", subject.label());
    }
    for subject in [named("anticipatory"), cfq("group"), cfq("2.6.32"), cfq("2.6.18")] {
        assert!(rate(subject.clone()) > 2000.0, "{}: {}", subject.label(), rate(subject.clone()));
    }
}

/// rule: anticipatory.random-readers
#[test]
fn anticipation_is_the_worst_for_many_random_readers() {
    // A device that serves eight requests concurrently, 8 ms each, and sixteen readers that think for 2 ms.
    let rate = |subject: Subject| {
        let info = DeviceInfo { depth: 8, rotational: true, ..DeviceInfo::default() };
        let settings = GateSettings { depth: 8, ..GateSettings::default() };
        let mut world = World::new(subject.build(&info), settings, Stub::parallel(8, 8 * MILLI));
        let vms: Vec<OwnerId> = (0..16).map(|number| reader(&mut world, number, 2 * MILLI, false)).collect();
        world.run_until(secs(20));
        world.rates(&vms, secs(2), secs(20)).iter().sum::<f64>()
    };
    let anticipatory = rate(named("anticipatory"));
    for subject in [named("noop"), named("deadline")] {
        let other = rate(subject.clone());
        assert!(anticipatory < 0.2 * other, "{anticipatory} next to {other} of {}", subject.label());
    }
    for subject in [cfq("group"), cfq("2.6.32"), cfq("2.6.18")] {
        let other = rate(subject.clone());
        assert!(anticipatory <= 1.1 * other, "{anticipatory} next to {other} of {}, which idles too", subject.label());
    }
}

/// rule: noop.no-isolation, deadline.no-fairness
#[test]
fn shares_follow_the_number_of_outstanding_requests() {
    for subject in [named("noop"), named("deadline")] {
        let mut world = World::simple(&subject, 4, 1000);
        let vms = [32, 8].map(|outstanding| world.busy(Policy::default(), Pattern::Closed(outstanding)));
        world.run_until(secs(20));
        let rates = world.rates(&vms, secs(1), secs(20));
        analysis::assert_close(&subject.label(), &rates, &[800.0, 200.0], 0.05);
    }
}

/// rule: noop.fifo, noop.order, noop.work-conserving, noop.no-starvation, noop.complete-nothing
#[test]
fn noop_serves_in_arrival_order_and_never_waits() {
    let mut world = World::simple(&named("noop"), 4, 1000);
    for outstanding in [3, 17, 40] {
        world.busy(Policy::default(), Pattern::Closed(outstanding));
    }
    world.run_until(secs(5));
    let ids: Vec<RequestId> = world.log.iter().map(|record| record.request.id).collect();
    assert!(ids.is_sorted() && ids.len() as u64 == ids.last().unwrap().0 + 1, "no request is overtaken");
    assert!(ids.len() >= 5000, "the device is always busy: {}", ids.len());
    assert_eq!(world.wakes, 0);
}

/// rule: cfq.weak-seeky, cfq.time-fair, cfq.idle-bound
#[test]
fn equal_time_is_not_equal_requests() {
    for mode in ["group", "2.6.32"] {
        let rates = served(&cfq(mode), 1, &[true, false], 0);
        assert!(rates[0] > 8.0 * rates[1], "{mode}: {rates:?}");
        // In time: 0.25 ms each for the first VM, about 3.3 ms for the second.
        let (first, second) = (rates[0] * 0.25, rates[1] * 3.3);
        assert!((0.5..2.0).contains(&(first / second)), "{mode}: {first} and {second} ms of each second");
    }
}

/// rule: cfq.weak-idling
#[test]
fn idling_wastes_an_array() {
    // An array of sixteen disks, and eight sequential readers that think for 1 ms.
    let rate = |subject: &Subject, rotational: bool| {
        let info = DeviceInfo { depth: 16, rotational, ..DeviceInfo::default() };
        let settings = GateSettings { depth: 16, ..GateSettings::default() };
        let mut world = World::new(subject.build(&info), settings, Stub::parallel(16, 4 * MILLI));
        let vms: Vec<OwnerId> = (0..8).map(|number| reader(&mut world, number, MILLI, true)).collect();
        world.run_until(secs(10));
        world.rates(&vms, secs(1), secs(10)).iter().sum::<f64>()
    };
    let noop = rate(&named("noop"), true);
    assert!((1550.0..1650.0).contains(&noop), "{noop}");
    for mode in ["group", "2.6.32", "2.6.18"] {
        let idling = rate(&cfq(mode), true);
        assert!(idling < 0.3 * noop, "{mode}: {idling} of {noop}");
    }
    let never = cfq("group").text("slice_idle", "0s").text("group_idle", "0s");
    assert!(rate(&never, true) > 0.9 * noop, "without idling: {}", rate(&never, true));
}

/// rule: cfq.weak-latency, cfq.tree-key
#[test]
fn a_new_owner_waits_for_a_slice_of_each_other_owner() {
    let first_after = |others: usize| {
        let mut world = disk(&cfq("2.6.32"), 1, false);
        for number in 0..others as u64 {
            let vm = world.vm(Policy::default());
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(4)).in_order_from(number << 33));
        }
        world.run_until(secs(3));
        let (came, vm) = (world.now, world.vm(Policy::default()));
        world.source(Source::new(vm, VolumeId(0), Pattern::Closed(4)).in_order_from(7 << 33));
        world.run_until(secs(8));
        world.times(vm)[0].nanos_since(came) / MILLI
    };
    let waits = [1, 2, 4].map(first_after);
    assert!(waits[2] > 250 && waits[2] <= 4 * 180 + 20, "four others: {waits:?} ms");
    assert!(waits[0] <= 200, "one other: {waits:?} ms");
}

/// rule: deadline.write-progress, deadline.read-progress, deadline.batch-order, deadline.lateness
/// rule: deadline.relative-starvation
#[test]
fn deadline_keeps_its_bounds_with_random_load() {
    for (batch, starved) in [(16, 2), (4, 1), (1, 3)] {
        let subject = named("deadline").with("fifo_batch", params::Value::Integer(batch));
        let mut world = World::simple(&subject.with("writes_starved", params::Value::Integer(starved)), 2, 500);
        for (kind, outstanding) in [(Kind::Read, 40), (Kind::Write, 40), (Kind::Read, 9)] {
            let vm = world.vm(Policy::default());
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(outstanding)).kind(kind));
        }
        world.run_until(secs(30));
        let sent: Vec<Request> = world.log.iter().skip(200).map(|record| record.request).collect();
        for run in sent.chunk_by(|a, b| a.kind == b.kind) {
            let most = if run[0].kind == Kind::Read { starved * batch } else { batch };
            // A request that another one at its offset forced out is in no batch.
            let mut places: Vec<u64> = run.iter().map(|request| request.offset).collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() as i64 <= most, "{batch}, {starved}: {} of {:?}", run.len(), run[0].kind);
        }
        let writes = sent.iter().filter(|request| request.kind == Kind::Write).count() as f64 / sent.len() as f64;
        assert!((writes - 1.0 / (1.0 + starved as f64)).abs() < 0.1, "one batch in {}: {writes}", starved + 1);
    }
}

/// rule: gate.merge-switch
/// Merging changes neither requests nor results, only the number of submissions (MM12).
#[test]
fn mm12_merging_changes_only_the_number_of_submissions() {
    for subject in subjects().into_iter().filter(|subject| subject.descriptor.merging) {
        let run = |merging: bool| {
            let mut world = disk(&subject, 4, merging);
            let vms = [0u64, 1, 2].map(|number| {
                let vm = world.vm(Policy::default());
                let source = Source::new(vm, VolumeId(0), Pattern::Manual).in_order_from(number << 33);
                let source = world.source(source.kind(if number == 1 { Kind::Write } else { Kind::Read }));
                (0..200).for_each(|_| {
                    world.ask(source);
                });
                vm
            });
            world.pump();
            world.run_until(secs(100));
            let bytes = vms.map(|vm| world.gate.stats(vm).unwrap().bytes);
            (bytes, world.finished.len(), world.log.len())
        };
        let ((alone, finished, dispatches), (joined, finished_joined, fewer)) = (run(false), run(true));
        assert_eq!((alone, finished), (joined, finished_joined), "{}", subject.label());
        assert_eq!(alone, [200 * 8192; 3]);
        assert!(dispatches == 600 && fewer < 60, "{}: {fewer} of {dispatches}", subject.label());
    }
}

/// Without idling no request waits for a free device (MM13).
#[test]
fn mm13_without_idling_no_request_waits_for_a_free_device() {
    let still = |subject: Subject| subject.text("slice_idle", "0s").text("group_idle", "0s");
    let subjects = [
        named("anticipatory").text("antic_expire", "0s"),
        still(cfq("group")),
        still(cfq("2.6.32")),
        still(cfq("2.6.18")),
        still(named("mcfq")),
    ];
    for subject in subjects {
        let mut world = disk(&subject, 1, false);
        for number in 0..6 {
            reader(&mut world, number, number * MILLI, number % 2 == 0);
            let vm = world.vm(Policy::default());
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(3)).kind(Kind::Write));
        }
        world.run_until(secs(20));
        assert_eq!(world.wakes, 0, "{}: no timer is ever needed", subject.label());
        assert!(world.gate.in_flight() == 1, "{}", subject.label());
    }
}

/// Queues of one group are served like owners without groups (MM14).
#[test]
fn mm14_one_group_is_served_as_without_groups() {
    let order = |mode: &str, owners: usize| {
        let quiet =
            cfq(mode).with("low_latency", params::Value::Bool(false)).with("quantum", params::Value::Integer(1));
        let mut world = disk(&quiet.text("tick", "0s"), 1, false);
        let vms: Vec<OwnerId> = (0..owners).map(|_| world.vm(Policy::default())).collect();
        let mut sources = Vec::new();
        for number in 0..3usize {
            let (vm, volume) = match owners {
                1 if number > 0 => (vms[0], world.volume(vms[0], Policy::default())),
                1 => (vms[0], VolumeId(0)),
                _ => (vms[number], VolumeId(0)),
            };
            let source = Source::new(vm, volume, Pattern::Closed(6)).in_order_from((number as u64) << 33);
            sources.push(world.source(source));
        }
        world.run_until(secs(20));
        let mut turns: Vec<u32> = world.log.iter().map(|record| record.source).collect();
        turns.dedup();
        turns.truncate(30);
        turns
    };
    assert_eq!(order("group", 1), order("2.6.32", 3));
}

/// rule: cfq.round-robin
#[test]
fn q11_queues_of_one_level_differ_by_at_most_a_slice() {
    for mode in ["2.6.32", "2.6.18"] {
        let mut world = World::simple(&cfq(mode).text("tick", "0s"), 1, 1000);
        let vms: Vec<OwnerId> = (0..4).map(|_| world.busy(Policy::default(), Pattern::Closed(8))).collect();
        world.run_until(secs(30));
        for end in [3, 7, 12, 30] {
            let millis = world.counts(&vms, Instant::ZERO, secs(end));
            let (least, most) = (millis.iter().min().unwrap(), millis.iter().max().unwrap());
            // A slice of 100 ms, and the requests that are in flight when it ends.
            assert!(most - least <= 100 + 4 + 4, "{mode}, {end} s: {millis:?}");
        }
    }
}
