//! netback and wrr: rate credits, rounds, minimum rates, and the bounds that follow.

mod frames;
mod wrr;

use crate::common::analysis::{assert_close, bytes, window_max};
use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Decision, DeviceInfo, Scheduler};
use sluice_sched::*;

/// Bytes of a full frame, and of a small one.
const FRAME: u32 = 1514;
const SMALL: u32 = 60;

/// A link of queue depth `depth` that sends each frame in `nanos`.
fn link(subject: &Subject, depth: u32, nanos: u64) -> World {
    let info = DeviceInfo { depth, ..DeviceInfo::default() };
    let settings = GateSettings { depth, cost: CostModel::per_request(), ..GateSettings::default() };
    World::new(subject.build(&info), settings, Stub::serial(nanos))
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
        let mut scheduler = subject.build(&DeviceInfo::default());
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
