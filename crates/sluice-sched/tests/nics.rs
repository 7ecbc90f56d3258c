//! netback and wrr: rate credits, rounds, minimum rates, and the bounds that follow.

mod common;

use common::analysis::{assert_close, bytes, window_max};
use common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Decision, Facts, Scheduler};
use sluice_sched::*;

/// Bytes of a full frame, and of a small one.
const FRAME: u32 = 1514;
const SMALL: u32 = 60;

/// A link of queue depth `depth` that sends each frame in `nanos`.
fn link(subject: &Subject, depth: u32, nanos: u64) -> World {
    let facts = Facts { depth, ..Facts::default() };
    let settings = GateSettings { depth, cost: CostModel::per_request(), ..GateSettings::default() };
    World::new(subject.build(&facts), settings, Stub::serial(nanos))
}

fn netback(tick: &str) -> Subject {
    Subject::of("netback").text("tick", tick)
}

fn wrr(unit: &str) -> Subject {
    Subject::of("wrr").text("unit", unit)
}

/// Turns in proportion to the weights, as in the paper.
fn published(unit: &str) -> Subject {
    wrr(unit).text("rounds", "published")
}

/// Both forms with both units.
fn forms() -> Vec<Subject> {
    ["bytes", "packets"].into_iter().flat_map(|unit| [wrr(unit), published(unit)]).collect()
}

fn mbit(megabits: u64) -> ByteRate {
    ByteRate::per_second(megabits * 125_000)
}

fn at_most(megabits: u64) -> Policy {
    Policy { limit: Limit { iops: None, bytes: Some(mbit(megabits)) }, ..Policy::default() }
}

fn at_least(megabits: u64) -> Policy {
    Policy { reservation: Reservation { iops: None, bytes: Some(mbit(megabits)) }, ..Policy::default() }
}

/// A VM that always has packets of these lengths.
fn flood(world: &mut World, policy: Policy, lengths: &[u32]) -> OwnerId {
    let vm = world.vm(policy);
    world.source(Source::new(vm, VolumeId(0), Pattern::Closed(256)).lengths(lengths));
    vm
}

/// A VM that sends frames of one length, one at a time, when the test says so.
fn sender(world: &mut World, policy: Policy, length: u32) -> (OwnerId, usize) {
    let vm = world.vm(policy);
    let source = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&[length]));
    (vm, source)
}

fn sent(world: &World, vm: OwnerId, from: Instant, to: Instant) -> f64 {
    world.of(vm).filter(|record| record.at >= from && record.at < to).map(bytes).sum()
}

/// Megabits per second.
fn megabits(world: &World, vms: &[OwnerId], from: Instant, to: Instant) -> Vec<f64> {
    let seconds = to.nanos_since(from) as f64 / SECOND as f64;
    vms.iter().map(|vm| sent(world, *vm, from, to) * 8.0 / 1e6 / seconds).collect()
}

fn order(world: &World) -> Vec<u32> {
    world.log.iter().map(|record| record.request.owner.0).collect()
}

// Rate credits.

// rule: netback.credit, netback.send, netback.arm-timer, netback.armed, netback.timer, netback.refill
#[test]
fn a_window_passes_the_packets_that_fit() {
    let mut world = link(&netback("0s"), 64, 1);
    let (vm, source) = sender(&mut world, at_most(25), FRAME);
    (0..300).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_until(millis(120));
    // 156,250 bytes per window are 103 frames, and 308 bytes are lost.
    let times = world.times(vm);
    let in_window = |window: u64| times.iter().filter(|at| at.as_nanos() / (50 * MILLI) == window).count();
    assert_eq!((in_window(0), in_window(1), in_window(2)), (103, 103, 94));
    assert_eq!(times[103], millis(50));
    let waited: Vec<Wait> = world.of(vm).map(|record| record.request.wait).collect();
    assert_eq!((waited[102] == Wait::OwnLimit, waited[103]), (false, Wait::OwnLimit));
}

// rule: netback.refill-on-poll, netback.weak-double-burst
#[test]
fn the_rest_of_a_window_and_a_new_one_are_sent_back_to_back() {
    let mut world = link(&netback("0s"), 512, 1);
    let (vm, source) = sender(&mut world, at_most(25), FRAME);
    world.run_until(millis(777));
    (0..300).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_for(MILLI);
    assert_eq!(world.times(vm).len(), 206);
    world.run_until(millis(826));
    assert_eq!(world.times(vm).len(), 206);
    // The new window began with the poll that found the old one ended.
    world.run_until(millis(827));
    assert_eq!(world.times(vm).len(), 300);
}

// rule: netback.refill, netback.oversized-quirk
#[test]
fn credits_are_saved_for_one_packet_that_needs_several_windows() {
    let mut world = link(&netback("0s"), 64, 1);
    // 6,250 bytes per window; the first packet needs three windows and leaves 1,250 bytes.
    let vm = world.vm(at_most(1));
    let large = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&[17_500]));
    assert!(world.ask(large) && world.ask(large));
    world.pump();
    let wakes = world.wakes;
    world.run_until(millis(400));
    assert_eq!(
        world.times(vm),
        [millis(100), millis(250)],
        "two windows for what is missing, then three for all of it"
    );
    assert_eq!(world.wakes - wakes, 2, "and no wake-up in between");
    // Nothing was saved for small packets: they get one full window, and the window that starts with a poll after its
    // end.
    let small = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&[1250]));
    world.run_until(secs(10));
    (0..40).for_each(|_| assert!(world.ask(small)));
    world.pump();
    world.run_for(MILLI);
    assert!(world.times(vm).len() - 2 <= 10, "{}", world.times(vm).len() - 2);
}

// rule: netback.ticks, netback.weak-below-rate, netback.bound-rate
#[test]
fn the_rate_is_below_the_stated_one_and_lower_on_a_slow_clock() {
    for (tick, window) in [("0s", 50.0), ("1ms", 50.0), ("4ms", 52.0)] {
        for rate in [25, 30, 35, 40] {
            let mut world = link(&netback(tick), 64, 1);
            let vm = flood(&mut world, at_most(rate), &[FRAME]);
            world.run_until(secs(21));
            let got = megabits(&world, &[vm], secs(1), secs(21))[0];
            let credit = rate as f64 * 1e6 / 8.0 * 0.05;
            let frames = (credit / f64::from(FRAME)).floor();
            let due = frames * f64::from(FRAME) * 8.0 / 1e6 / (window / 1e3);
            assert!((got - due).abs() < 0.02 * due, "{rate} Mb/s, tick {tick}: {got}, computed {due}");
            assert!(got < rate as f64, "Q14: {got} of {rate}");
            // In whole windows, at least everything but the rest that is smaller than a frame.
            let at = |number: u64| Instant::from_nanos(number * window as u64 * MILLI);
            let (bytes, least) = (sent(&world, vm, at(20), at(400)), 380.0 * (credit - f64::from(FRAME) + 1.0));
            assert!(bytes >= least, "Q14: {bytes} in 380 windows, at least {least}");
        }
    }
}

// rule: netback.bound-window
#[test]
fn q14_no_interval_has_more_bytes_than_its_windows() {
    let mut rng = chance(14);
    for _ in 0..60 {
        let tick = pick(&mut rng, &["0s", "1ms", "4ms"]);
        let rate = pick(&mut rng, &[1, 5, 25, 40]);
        let largest = pick(&mut rng, &[FRAME, 9014, 65_550]);
        let mut world = link(&netback(tick), pick(&mut rng, &[1, 8, 256]), pick(&mut rng, &[1, 30_000, 120_000]));
        let vm = world.vm(at_most(rate));
        let lengths: Vec<u32> = (0..5).map(|_| pick(&mut rng, &[SMALL, 512, FRAME, largest])).collect();
        let pattern = match below(&mut rng, 3) {
            0 => Pattern::Closed(256),
            1 => Pattern::OnOff { outstanding: 200, on: 70 * MILLI, off: 333 * MILLI },
            _ => Pattern::Open(100_000),
        };
        world.source(Source::new(vm, VolumeId(0), pattern).lengths(&lengths));
        world.run_until(secs(3));
        let window = if tick == "4ms" { 52 } else { 50 };
        let credit = (rate * 6250).max(u64::from(largest)) as f64;
        for windows in [0, 1, 2, 7, 20] {
            let time = (windows + 1) * window * MILLI - 1;
            let most = window_max(world.of(vm), time, bytes);
            assert!(most <= (windows + 2) as f64 * credit, "Q14: {most} in {time} ns, {credit} per window");
        }
    }
}

// rule: netback.refill
#[test]
fn a_rate_that_is_set_changed_or_removed_gives_no_credit() {
    let mut world = link(&netback("0s"), 64, 1);
    let vm = world.vm(Policy::default());
    world.source(Source::new(vm, VolumeId(0), Pattern::Open(20_000)).lengths(&[FRAME]));
    world.run_until(secs(2));
    world.set(vm, at_most(25));
    world.run_until(secs(3));
    assert!(sent(&world, vm, secs(2), secs(3)) <= 22.0 * 156_250.0);
    for turn in 0..400 {
        world.set(vm, at_most(if turn % 2 == 0 { 24 } else { 25 }));
        world.run_for(5 * MILLI);
    }
    let got = megabits(&world, &[vm], secs(3), secs(5))[0];
    assert!(got > 22.0 && got < 25.0, "{got} Mb/s with a rate that is set repeatedly");
    world.set(vm, Policy::default());
    world.run_for(20 * MILLI);
    assert_eq!(world.gate.inspect(world.now).owners[&vm.0].limit_passes_ns, None);
}

// Round robin.

// rule: netback.round-robin, netback.leaves-list
#[test]
fn packets_are_sent_in_turn_for_any_size() {
    let mut world = link(&netback("0s"), 1, 120_000);
    let vms: Vec<OwnerId> = [FRAME, SMALL, 9014].iter().map(|l| flood(&mut world, Policy::default(), &[*l])).collect();
    world.run_until(secs(1));
    let counts = world.counts(&vms, millis(10), secs(1));
    assert!(counts.iter().all(|count| count.abs_diff(counts[0]) <= 1), "{counts:?}");
    // A NIC that gets packets is appended.
    let mut world = link(&netback("0s"), 1, MILLI);
    let senders: Vec<_> = (0..3).map(|_| sender(&mut world, Policy::default(), FRAME)).collect();
    for turn in [2, 0, 0, 2, 1, 0] {
        assert!(world.ask(senders[turn].1));
    }
    world.pump();
    world.run_for(20 * MILLI);
    assert_eq!(order(&world), [2, 0, 1, 2, 0, 0]);
}

// rule: netback.batch
#[test]
fn no_more_packets_are_pending_than_stated() {
    for (pending, expected) in [(None, 256), (Some(7), 7)] {
        let mut subject = netback("0s");
        if let Some(pending) = pending {
            subject = subject.with("pending", Value::Integer(pending));
        }
        let mut scheduler = subject.build(&Facts::default());
        let mut ready = 0;
        add(&mut *scheduler, 0, Policy::default());
        (0..1000).for_each(|id| scheduler.insert(Instant::ZERO, packet(id, 0)));
        while let Decision::Dispatch(_) = scheduler.dispatch(Instant::ZERO) {
            ready += 1;
        }
        assert_eq!((ready, scheduler.dispatch(Instant::ZERO)), (expected, Decision::WaitCompletion));
    }
}

fn add(scheduler: &mut dyn Scheduler, owner: u32, policy: Policy) {
    let change = scheduler::Change::AddOwner { owner: OwnerId(owner), policy };
    scheduler.configure(Instant::ZERO, change).expect("the scheduler accepts every policy");
}

fn packet(id: u64, owner: u32) -> Request {
    Request {
        id: RequestId(id),
        arrival: Instant::ZERO,
        offset: 0,
        length: FRAME,
        cost: Cost::ONE,
        owner: OwnerId(owner),
        token: 0,
        rho: 0,
        delta: 0,
        volume: VolumeId(0),
        kind: Kind::Write,
        flags: Flags::NONE,
        phase: Phase::None,
        wait: Wait::None,
    }
}

// rule: netback.groups
#[test]
fn groups_are_served_in_turn_for_any_number_of_nics() {
    let subject = netback("0s").with("groups", Value::Integer(2));
    let mut world = link(&subject, 1, 100_000);
    let vms: Vec<OwnerId> = (0..3).map(|_| flood(&mut world, Policy::default(), &[FRAME])).collect();
    world.run_until(secs(1));
    // The first and the third NIC are in one group, and share as much as the second has alone.
    assert_close("shares", &world.rates(&vms, Instant::ZERO, secs(1)), &[2500.0, 5000.0, 2500.0], 0.01);
    // NICs stay in their group.
    world.remove_owner(vms[1]);
    world.run_until(secs(2));
    let rates = world.rates(&vms, secs(1), secs(2));
    assert_close("without the second", &rates, &[5000.0, 0.0, 5000.0], 0.01);
}

// Weighted rounds.

/// Two VMs with packets of these lengths, by weight.
fn pair(subject: &Subject, weights: [u32; 2], lengths: [&[u32]; 2]) -> (World, [OwnerId; 2]) {
    let mut world = link(subject, 8, 120_000);
    let vms = [0, 1].map(|vm| flood(&mut world, Policy::weighted(weights[vm]), lengths[vm]));
    (world, vms)
}

// rule: wrr.round, wrr.state
#[test]
fn a_turn_is_proportional_to_the_weight() {
    for (unit, lengths) in [("packets", [FRAME, FRAME]), ("bytes", [FRAME, FRAME])] {
        let (mut world, _) = pair(&published(unit), [3, 1], [&lengths[..1], &lengths[1..]]);
        world.run_until(secs(1));
        let order = order(&world);
        // The first request found the link idle; from then on both are present.
        let second = order.iter().position(|owner| *owner == 1).unwrap();
        assert_eq!(order[second..second + 8], [1, 0, 0, 0, 1, 0, 0, 0], "{unit}");
    }
}

// rule: wrr.round
#[test]
fn packets_or_bytes_are_shared_by_weight() {
    for form in forms() {
        shares_of(&form);
    }
}

fn shares_of(form: &Subject) {
    // Weights that are not multiples of each other: a fraction is kept.
    let (mut world, vms) = pair(form, [5, 2], [&[FRAME], &[FRAME]]);
    world.run_until(secs(5));
    let rates = world.rates(&vms, secs(1), secs(5));
    assert!((rates[0] / rates[1] - 2.5).abs() < 0.01, "{rates:?}");
    // With unit packets, small packets count as much as large ones; with unit bytes they do not.
    let (mut world, vms) = pair(&form.clone().text("unit", "packets"), [1, 1], [&[FRAME], &[SMALL]]);
    world.run_until(secs(1));
    let counts = world.counts(&vms, millis(100), secs(1));
    assert!(counts[0].abs_diff(counts[1]) <= 1, "{counts:?}");
    let (mut world, vms) = pair(&form.clone().text("unit", "bytes"), [1, 1], [&[FRAME], &[SMALL]]);
    world.run_until(secs(5));
    assert_close(
        "bytes",
        &megabits(&world, &vms, secs(1), secs(5)),
        &{
            let sum: f64 = megabits(&world, &vms, secs(1), secs(5)).iter().sum();
            [sum / 2.0, sum / 2.0]
        },
        0.01,
    );
}

/// The largest difference of services/weights, over all intervals and pairs, divided by the pair's bound.
fn worst(world: &World, weights: &[f64], unit: impl Fn(&Record) -> f64, bound: impl Fn(f64, f64) -> f64) -> f64 {
    let mut worst = 0.0f64;
    for (a, b) in (0..weights.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let (mut lag, mut low, mut high) = (0.0f64, 0.0f64, 0.0f64);
        for record in &world.log {
            let owner = record.request.owner.0 as usize;
            let step = unit(record) / weights[owner];
            lag += if owner == a {
                step
            } else if owner == b {
                -step
            } else {
                0.0
            };
            (low, high) = (low.min(lag), high.max(lag));
        }
        worst = worst.max((high - low) / bound(weights[a], weights[b]));
    }
    worst
}

// rule: wrr.bound
#[test]
fn q15_service_by_weight_stays_within_its_bound() {
    let mut rng = chance(15);
    for round in 0..80 {
        let (packets, tags) = (round % 2 == 0, round >= 40);
        let count = 2 + below(&mut rng, 5) as usize;
        let mut weights: Vec<u32> = (0..count).map(|_| pick(&mut rng, &[1, 2, 3, 4, 10, 30])).collect();
        weights[0] = 1;
        let unit = if packets { "packets" } else { "bytes" };
        let mut world = link(&if tags { wrr(unit) } else { published(unit) }, 4, 120_000);
        // All packets arrive before the first is sent.
        world.device.stalled_until = millis(1);
        let vms: Vec<(OwnerId, usize)> = weights
            .iter()
            .map(|weight| {
                let vm = world.vm(Policy::weighted(*weight));
                let lengths: Vec<u32> = (0..4).map(|_| pick(&mut rng, &[SMALL, 512, FRAME])).collect();
                let source = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&lengths));
                (vm, source)
            })
            .collect();
        for (_, source) in &vms {
            (0..4000).for_each(|_| assert!(world.ask(*source)));
        }
        world.pump();
        // As long as no queue is empty.
        world.run_until(millis(400));
        assert!(vms.iter().all(|(vm, _)| world.gate.account(*vm).unwrap().waiting > 0));
        let real: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        let frame = f64::from(FRAME);
        let worst = match (packets, tags) {
            (true, false) => worst(&world, &real, |_| 1.0, |_, _| 1.0),
            (true, true) => worst(&world, &real, |_| 1.0, |a, b| 1.0 / a + 1.0 / b),
            (false, true) => worst(&world, &real, bytes, |a, b| frame / a + frame / b),
            (false, false) => worst(&world, &real, bytes, |a, b| frame + frame * (1.0 / a + 1.0 / b)),
        };
        let what = format!("weights {weights:?}, packets {packets}, tags {tags}");
        assert!(worst <= 1.0 + 1e-6, "Q15: {worst} of the bound, {what}");
    }
}

// rule: wrr.empty-forfeits, wrr.inactive
#[test]
fn a_nic_without_packets_forfeits_its_turn_and_its_deficit() {
    let mut world = link(&published("packets"), 1, MILLI);
    let (_, heavy) = sender(&mut world, Policy::weighted(10), FRAME);
    let (_, light) = sender(&mut world, Policy::weighted(1), FRAME);
    (0..3).for_each(|_| assert!(world.ask(heavy)));
    (0..6).for_each(|_| assert!(world.ask(light)));
    world.pump();
    world.run_until(millis(4));
    // Three of its ten, then the others continue; the other seven are not compensated.
    (0..20).for_each(|_| assert!(world.ask(heavy)));
    world.run_until(millis(40));
    assert_eq!(order(&world)[..18], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
}

// rule: wrr.skipped
#[test]
fn a_nic_without_credits_is_skipped_and_not_compensated_later() {
    for form in [wrr("bytes"), published("bytes")] {
        let mut world = link(&form, 4, 120_000);
        let held = flood(&mut world, Policy { weight: Some(Weight::new(1000)), ..at_most(10) }, &[FRAME]);
        let free = flood(&mut world, Policy::weighted(10), &[FRAME]);
        world.run_until(secs(4));
        let got = megabits(&world, &[held, free], secs(1), secs(4));
        assert!(got[0] > 9.6 && got[0] <= 10.0, "{got:?}");
        assert!((got[0] + got[1] - 100.9).abs() < 0.3, "the link is full: {got:?}");
        let most = window_max(world.of(held), 50 * MILLI - 1, bytes);
        assert!(most <= 2.0 * 62_500.0, "{most}: windows without turns are not caught up");
    }
}

// rule: wrr.weights-at-turn, wrr.parameters
#[test]
fn trace_7_exchanged_weights_take_effect_with_the_next_turns() {
    for form in forms() {
        let (mut world, vms) = pair(&form, [30, 1], [&[FRAME], &[FRAME]]);
        for second in 0..20u64 {
            let weights = if second % 2 == 0 { [30, 1] } else { [1, 30] };
            (0..2).for_each(|vm| world.set(vms[vm], Policy::weighted(weights[vm])));
            world.run_until(secs(second + 1));
            let all = megabits(&world, &vms, secs(second), secs(second + 1)).iter().sum::<f64>();
            // Settled after a round of each of the two, 7.4 ms.
            let from = secs(second) + std::time::Duration::from_millis(8);
            let got = megabits(&world, &vms, from, secs(second + 1));
            let due = weights.map(|weight| all * f64::from(weight) / 31.0);
            assert_close("shares", &got, &due, 0.01);
            assert!(second == 0 || (all - 100.9).abs() < 0.5, "{all}");
        }
    }
}

// rule: wrr.parameters
#[test]
fn weights_can_be_disabled() {
    for form in forms() {
        let mut world = link(&form.text("prioritize", "off"), 4, 120_000);
        let vms = [30, 1].map(|weight| flood(&mut world, Policy::weighted(weight), &[FRAME]));
        world.run_until(secs(2));
        let rates = world.rates(&vms, secs(1), secs(2));
        assert!((rates[0] / rates[1] - 1.0).abs() < 0.01, "{rates:?}");
    }
    let off = wrr("packets").text("prioritize", "off").params;
    let wrr = schedulers::find("wrr").unwrap();
    assert!(!wrr.enforces_with(policy::Field::Weight, &off) && wrr.enforces_with(policy::Field::Limit, &off));
}

// rule: wrr.hold, wrr.active, wrr.inactive
#[test]
fn a_turn_is_held_for_an_active_nic_only_if_enabled() {
    for form in forms() {
        // One frame every 5 ms, less than its half; the other NIC is always backlogged.
        let run = |hold: bool, every: u64| {
            let mut world = link(&form.clone().with("hold", Value::Bool(hold)), 1, 120_000);
            let rare = world.vm(Policy::weighted(100));
            world.source(Source::new(rare, VolumeId(0), Pattern::Open(every)).lengths(&[FRAME]));
            let busy = flood(&mut world, Policy::weighted(100), &[FRAME]);
            world.run_until(secs(2));
            world.rates(&[rare, busy], secs(1), secs(2))
        };
        let capacity = 1e9 / 120_000.0;
        assert_close("forfeited", &run(false, 5 * MILLI), &[200.0, capacity - 200.0], 0.01);
        // Its share is lost to all: the other NIC sends one packet for each of its packets.
        let held = run(true, 5 * MILLI);
        assert!((held[1] - held[0]).abs() <= 2.0 && (held[0] - 200.0).abs() <= 1.0, "{held:?}");
        // After a pause of 10 ms it is inactive, and its share is free until it has packets again.
        let rarer = run(true, 100 * MILLI);
        assert!(rarer[0] == 10.0 && rarer[1] > 0.88 * capacity && rarer[1] < 0.92 * capacity, "{rarer:?}");
    }
}

// rule: wrr.min-rate
#[test]
fn a_nic_below_its_minimum_is_served_first() {
    for form in [wrr("bytes"), published("bytes")] {
        // Three equal weights would get 33 of 100 each.
        let mut world = link(&form, 4, 121_120);
        let vms =
            [at_least(60), Policy::default(), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        assert_close("one minimum", &megabits(&world, &vms, secs(1), secs(5)), &[60.0, 20.0, 20.0], 0.01);
        // A NIC with a larger share by weight keeps it.
        let mut world = link(&form, 4, 121_120);
        let heavy = Policy { weight: Some(Weight::new(300)), ..at_least(20) };
        let vms = [heavy, Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        assert_close("by weight", &megabits(&world, &vms, secs(1), secs(5)), &[75.0, 25.0], 0.01);
        // More than the link has: by weight among those below their minimum.
        let mut world = link(&form, 4, 121_120);
        let twice = Policy { weight: Some(Weight::new(200)), ..at_least(80) };
        let vms = [twice, at_least(80), Policy::weighted(1000)].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        assert_close("too much", &megabits(&world, &vms, secs(1), secs(5)), &[66.7, 33.3, 0.0], 0.015);
        // A stated maximum still applies.
        let mut world = link(&form, 4, 121_120);
        let both = Policy { limit: at_most(35).limit, ..at_least(30) };
        let vms = [both, Policy::weighted(10_000)].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        let got = megabits(&world, &vms, secs(1), secs(5));
        assert!(got[0] >= 30.0 - 0.3 && got[0] <= 35.0, "{got:?}");
    }
}

// rule: wrr.back-pressure
#[test]
fn no_packet_is_taken_while_the_link_is_full() {
    let mut world = link(&wrr("bytes"), 8, 120_000);
    let vms = [30, 1].map(|weight| flood(&mut world, Policy::weighted(weight), &[FRAME]));
    world.run_until(secs(1));
    assert_eq!(world.device.held_max, 8);
    let taken = world.log.len() as u64;
    let done = world.finished.len() as u64;
    assert!(taken - done <= 8, "{taken} taken, {done} done");
    let waiting: u64 = vms.iter().map(|vm| u64::from(world.gate.account(*vm).unwrap().waiting)).sum();
    assert_eq!(waiting + taken - done, 512, "the others wait in front of the gate");
}

// rule: wrr.paper-constant
#[test]
fn a_packet_larger_than_many_turns_needs_no_more_steps() {
    // 64 MiB in turns of 64 bytes are a million rounds.
    let subject = published("bytes").with("frame", Value::Integer(64));
    let mut scheduler = subject.build(&Facts::default());
    for owner in 0..8 {
        add(&mut *scheduler, owner, Policy::weighted(1 + owner));
        (0..100_000).for_each(|id| {
            let id = id * 8 + u64::from(owner);
            scheduler.insert(Instant::ZERO, Request { length: 64 << 20, ..packet(id, owner) });
        });
    }
    let mut counts = [0; 8];
    for _ in 0..36_000 {
        let Decision::Dispatch(request) = scheduler.dispatch(Instant::ZERO) else { panic!("it has packets") };
        counts[request.owner.index()] += 1;
    }
    for (owner, count) in counts.iter().enumerate() {
        let due = 1000 * (owner as i64 + 1);
        assert!((i64::from(*count) - due).abs() <= 2, "{counts:?}");
    }
}

// Defects found.

/// The longest time in nanoseconds that a packet of a VM waited for the link, between two instants.
fn longest_wait(world: &World, vm: OwnerId, from: Instant) -> u64 {
    let waits = world.of(vm).filter(|record| record.at >= from);
    waits.map(|record| record.at.nanos_since(record.request.arrival)).max().expect("it was served")
}

fn background() -> Policy {
    Policy { class: policy::Class::Background, ..Policy::default() }
}

// rule: wrr.bound, wrr.tags
#[test]
fn one_background_nic_made_all_turns_ten_thousand_frames_long() {
    // Frames are sent at 1 Gb/s; one VM sends one every millisecond and a little.
    let run = |form: &Subject, beside: &[Policy]| {
        let mut world = link(form, 1, 12_112);
        let sparse = world.vm(Policy::default());
        world.source(Source::new(sparse, VolumeId(0), Pattern::Open(1_037_000)).lengths(&[FRAME]));
        let busy: Vec<OwnerId> = beside.iter().map(|policy| flood(&mut world, *policy, &[FRAME])).collect();
        world.run_until(secs(4));
        (longest_wait(&world, sparse, secs(1)), world.rates(&busy, secs(1), secs(4)))
    };
    for unit in ["bytes", "packets"] {
        let (alone, _) = run(&wrr(unit), &[Policy::default()]);
        let (wait, rates) = run(&wrr(unit), &[Policy::default(), background()]);
        let (long, _) = run(&published(unit), &[Policy::default(), background()]);
        println!("{unit}: {alone} ns, next to a background NIC {wait} ns, in published rounds {long} ns");
        // The frame on the wire, and a frame of each of the two.
        assert!(wait <= 3 * 12_112 && alone <= 2 * 12_112, "{unit}: {alone}, {wait} ns");
        assert!(long > 100 * MILLI, "as published it waits for a turn of 10,000 frames: {long} ns");
        // In three seconds the background NIC has the weight of 25 frames.
        assert!(rates[1] * 3.0 <= 30.0 && rates[0] > 81_000.0, "{rates:?}");
    }
}

// rule: wrr.min-rate, wrr.min-counts
#[test]
fn a_minimum_above_the_share_gave_the_minimum_plus_a_turn() {
    for form in forms() {
        // A weight of 100 next to one of 300 gets 25 of 100 Mb/s, and the minimum is 40.
        for (beside, limit) in [(vec![], 0.01), (vec![background()], 0.01)] {
            let mut world = link(&form, 4, 121_120);
            let heavy = Policy::weighted(300);
            let vms: Vec<OwnerId> = [at_least(40), heavy]
                .iter()
                .chain(&beside)
                .map(|policy| flood(&mut world, *policy, &[FRAME]))
                .collect();
            world.run_until(secs(21));
            let got = megabits(&world, &vms, secs(1), secs(21));
            println!("{:?}: {got:?} Mb/s", form.params);
            assert!((got[0] / 40.0 - 1.0).abs() <= limit, "{:?}: {got:?} Mb/s", form.params);
        }
        // Frames of other sizes, and a rate that is not a whole number of frames per window.
        let mut world = link(&form, 4, 121_120);
        let vms = [at_least(70), Policy::default(), Policy::default()];
        let lengths: [&[u32]; 3] = [&[SMALL, FRAME, 512], &[FRAME], &[SMALL, FRAME]];
        let vms = [0, 1, 2].map(|vm| flood(&mut world, vms[vm], lengths[vm]));
        world.run_until(secs(11));
        let got = megabits(&world, &vms[..1], secs(1), secs(11));
        let most = if form.params["unit"] == Value::Text("bytes".to_owned()) { 70.0 * 1.01 } else { f64::MAX };
        assert!(got[0] <= most, "{:?}: {got:?} Mb/s", form.params);
    }
}

// rule: wrr.min-rate
#[test]
fn a_nic_with_a_minimum_above_its_share_owes_little_later() {
    for form in forms() {
        let mut world = link(&form, 4, 121_120);
        let vms = [at_least(80), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(10));
        world.set(vms[0], Policy::default());
        world.run_until(secs(11));
        let got = megabits(&world, &vms, secs(10), secs(11));
        assert!((got[0] - got[1]).abs() < 1.0, "{:?}: {got:?}", form.params);
    }
}

// rule: wrr.weights-at-turn
#[test]
fn a_changed_weight_applies_to_a_queued_packet() {
    let mut world = link(&wrr("bytes"), 1, 12_112);
    let vms = [background(), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
    world.run_until(secs(1));
    world.set(vms[0], Policy::default());
    world.run_until(millis(1100));
    let rates = world.rates(&vms, secs(1), millis(1100));
    assert!((rates[0] / rates[1] - 1.0).abs() < 0.01, "{rates:?}");
}
