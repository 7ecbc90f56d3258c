//! Failures of mClock in practice, one test for each, named after its number in our list.
//!
//! Product mode must not show the failure. If the published formula causes it, paper mode must show it; the tests
//! assert that too, so that the reproduction stays correct. If only an implementation caused it, paper mode must also
//! pass.
//! mode has to pass as well.

use crate::common::analysis::{assert_close, cost, window_max};
use crate::common::*;
use sluice_sched::admission::{self, Capacity, Supply};
use sluice_sched::gate::GateSettings;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::*;

const BOTH: [fn() -> Subject; 2] = [product, paper];

fn burst(policy: Policy, burst: u32) -> Policy {
    Policy { burst: Some(burst), ..policy }
}

fn credit(policy: Policy, idle_credit: u32) -> Policy {
    Policy { idle_credit, ..policy }
}

// 1. A client held by its limit banks weight credit.

/// A has weight 1, B weight 1 and limit 50, at 200/s for `held` seconds, then 50/s. Shares of the first second after,
/// and of the next 2 * `held`.
fn limited_beside_unlimited(subject: &Subject, held: u64) -> [Vec<u64>; 3] {
    let mut world = World::simple(subject, 4, 200);
    let a = world.busy(Policy::weighted(1), Pattern::Closed(16));
    let b = world.busy(Policy::weighted(1).limited(50), Pattern::Closed(16));
    world.run_until(secs(held));
    let before = world.counts(&[a, b], Instant::ZERO, secs(held));
    world.device.set_iops(50);
    world.run_until(secs(3 * held + 1));
    let first = world.counts(&[a, b], millis(held * 1000 + 100), millis(held * 1000 + 1100));
    [before, first, world.counts(&[a, b], secs(held + 1), secs(3 * held))]
}

// rule: mclock.released-floor
#[test]
fn failure_01_a_limited_client_banks_weight_credit() {
    for held in [5, 20, 100] {
        let [before, first, _] = limited_beside_unlimited(&product(), held);
        let due = [150.0 * held as f64, 50.0 * held as f64];
        assert_close("before", &[before[0] as f64, before[1] as f64], &due, 0.03);
        assert!(first.iter().all(|count| count.abs_diff(25) <= 3), "after {held} s: {first:?} of 25/25");

        let [before, _, after] = limited_beside_unlimited(&paper(), held);
        assert_close("before", &[before[0] as f64, before[1] as f64], &due, 0.03);
        assert!(after[0] <= 5 && after[1] >= 45 * held, "published: A gets nothing for 2 H: {after:?}");
    }
}

#[test]
fn failure_01_a_raised_limit_pays_out_credit() {
    // The same credit, used after a change instead of after a time.
    let mut world = World::simple(&product(), 4, 100);
    let a = world.busy(Policy::weighted(1), Pattern::Closed(16));
    let slow = Limit { iops: Some(Iops::from_milli(10)), bytes: None };
    let b = world.busy(burst(Policy { limit: slow, ..Policy::weighted(1) }, 1), Pattern::Closed(16));
    world.run_until(secs(90));
    world.set(b, Policy::weighted(1));
    world.run_until(secs(92));
    assert_close("shares", &world.rates(&[a, b], secs(90), secs(92)), &[50.0, 50.0], 0.03);

    // And by a request to another volume, which is not limited.
    let mut world = World::simple(&product(), 4, 100);
    let a = world.busy(Policy::weighted(1), Pattern::Closed(16));
    let b = world.vm(Policy::weighted(1));
    let held = world.volume(b, burst(Policy { limit: slow, ..Policy::default() }, 1));
    world.source(Source::new(b, held, Pattern::Closed(16)));
    world.run_until(secs(90));
    world.stream(b, Pattern::Closed(16));
    world.run_until(secs(92));
    assert_close("shares", &world.rates(&[a, b], secs(90), secs(92)), &[50.0, 50.0], 0.03);
}

/// The two volumes of one VM, one of them with the policy `second`, for `held` seconds at 200/s, then at 50/s.
fn two_volumes(second: Policy, held: u64) -> [f64; 4] {
    let mut world = World::simple(&product(), 4, 200);
    let vm = world.vm(Policy::default());
    let other = world.volume(vm, second);
    for volume in [VolumeId(0), other] {
        world.source(Source::new(vm, volume, Pattern::Closed(16)));
    }
    world.run_until(secs(held));
    world.device.set_iops(50);
    world.run_until(secs(held + 2));
    let served = |volume, from, to| {
        let of = |record: &&Record| record.request.volume == volume && record.at >= from && record.at < to;
        world.log.iter().filter(of).count() as f64
    };
    let (from, to) = (millis(held * 1000 + 100), millis(held * 1000 + 1100));
    let before = |volume| served(volume, Instant::ZERO, secs(held)) / held as f64;
    [before(VolumeId(0)), before(other), served(VolumeId(0), from, to), served(other, from, to)]
}

// rule: mclock.eligible
#[test]
fn failure_01_a_limited_volume_banks_weight_credit() {
    for held in [5, 20] {
        let got = two_volumes(Policy::default().limited(50), held);
        assert_close("before", &got[..2], &[150.0, 50.0], 0.04);
        assert_close("after", &got[2..], &[25.0, 25.0], 0.06);
    }
}

// 2. Short idleness steals.

#[test]
fn failure_02_short_idleness_steals() {
    for silent in [10, 100, 290] {
        let counts = after_silence(&product(), silent);
        assert!(counts[0].abs_diff(counts[1]) <= 8, "{counts:?} after {silent} s of silence");
        // That library realigns tags only after 300 s. In the published form the offset of a VM that becomes active
        // prevents the theft.
        let counts = after_silence(&paper(), silent);
        assert!(counts[0] + 8 >= counts[1], "published: {counts:?} after {silent} s of silence");
    }
    // But tags that B's earlier service moved ahead of real time count against it until real time reaches them.
    let counts = after_silence(&paper(), 10);
    assert!(counts[0] >= counts[1] + 100, "published: {counts:?}");
}

/// A and B of one weight at 100/s; B has requests for 5 s, pauses, and continues: the 4 s after.
fn after_silence(subject: &Subject, silent: u64) -> Vec<u64> {
    let mut world = World::simple(subject, 8, 100);
    let on_off = Pattern::OnOff { outstanding: 16, on: 5 * SECOND, off: silent * SECOND };
    let a = world.busy(Policy::weighted(1), Pattern::Closed(16));
    let b = world.busy(Policy::weighted(1), on_off);
    world.run_until(secs(5 + silent + 4));
    world.counts(&[a, b], secs(5 + silent), secs(5 + silent + 4))
}

// 3. Weights stop working when they are large.

fn shares(subject: &Subject, iops: u64, weights: &[u64]) -> Vec<f64> {
    let mut world = World::simple(subject, 8, iops);
    let weighted = |hundredths| Policy { weight: Some(Weight::from_hundredths(hundredths)), ..Policy::default() };
    let owners: Vec<OwnerId> =
        weights.iter().map(|weight| world.busy(weighted(*weight), Pattern::Closed(32))).collect();
    world.run_until(secs(21));
    let counts = world.counts(&owners, secs(1), secs(21));
    let sum: u64 = counts.iter().sum();
    counts.iter().map(|count| *count as f64 / sum as f64).collect()
}

#[test]
fn failure_03_weights_stop_working_when_large() {
    for scale in [1, 100, 10_000, 1_000_000] {
        assert_close("1:2", &shares(&product(), 100, &[scale, 2 * scale]), &[1.0 / 3.0, 2.0 / 3.0], 0.005);
        let thirds = shares(&product(), 300, &[scale, 2 * scale, 4 * scale]);
        assert_close("1:2:4", &thirds, &[1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0], 0.005);
        assert_close(
            "100:200:300",
            &shares(&product(), 300, &[scale, 2 * scale, 3 * scale]),
            &[1.0 / 6.0, 1.0 / 3.0, 0.5],
            0.005,
        );
    }
    assert_close("small weights", &shares(&paper(), 100, &[1000, 2000]), &[1.0 / 3.0, 2.0 / 3.0], 0.02);
    assert_close("published, 100:200", &shares(&paper(), 100, &[10_000, 20_000]), &[0.5, 0.5], 0.04);
    let flat = shares(&paper(), 300, &[10_000, 20_000, 30_000]);
    assert_close("published, 100:200:300", &flat, &[0.33, 0.335, 0.335], 0.04);
}

// 5. Limits burst after a stall.

fn after_a_stall(subject: &Subject, policy: Policy) -> f64 {
    let mut world = World::simple(subject, 8, 2000);
    let vm = world.busy(policy, Pattern::Closed(256));
    world.run_until(secs(1));
    world.device.stalled_until = secs(6);
    world.run_until(secs(8));
    window_max(world.of(vm).filter(|record| record.at >= secs(6)), SECOND - 1, cost)
}

// rule: mclock.paper-limit-catch-up
#[test]
fn failure_05_a_limit_bursts_after_a_stall() {
    let limited = Policy::weighted(1).limited(40);
    for allowed in [1, 4, 50] {
        let most = after_a_stall(&product(), burst(limited, allowed));
        assert!(most <= 40.0 + f64::from(allowed) + 1.0, "{most} in one second with burst {allowed}");
        assert!(most >= 40.0, "{most}: the limit is reached");
    }
    let most = after_a_stall(&paper(), limited);
    assert!(most >= 200.0, "published: {most} in the second after the stall");
}

// 6. A refused request advances the tag, until nothing is accepted.

#[test]
fn failure_06_refusals_are_a_death_spiral() {
    // The cause was that library's "reject" mode. Here the gate's queue is full and nothing moves.
    for subject in BOTH.map(|subject| subject()) {
        for offered in [11, 20, 100, 1000] {
            let settings =
                GateSettings { depth: 1, queue_max: 2, cost: CostModel::per_request(), ..GateSettings::default() };
            let info = DeviceInfo { depth: 1, ..DeviceInfo::default() };
            let mut world = World::new(subject.build(&info), settings, Stub::serial(MILLI));
            let vm = world.vm(Policy::weighted(1).limited(10));
            let source = world.stream(vm, Pattern::Open(SECOND / offered));
            world.run_until(secs(60));
            let Source { issued, accepted, .. } = world.sources[source];
            assert!(issued >= offered * 60 && accepted < issued, "{issued} offered, {accepted} taken");
            assert!(accepted as f64 >= 0.95 * 600.0, "{}: {accepted} of 600 at {offered}/s", subject.label());
        }
    }
}

// 7. The clock steps.

/// Dispatched in the first second, and the ten after, of a clock that has jumped by an hour.
fn over_a_jump(subject: &Subject, requests_before: u32) -> (f64, f64, u64) {
    let mut world = World::simple(subject, 8, 1000);
    let limited = world.busy(burst(Policy::weighted(1).limited(10), 2), Pattern::Closed(requests_before));
    let open = world.busy(Policy::weighted(1).reserving(100), Pattern::Closed(8));
    world.run_until(secs(2));
    // The host is suspended: its monotonic clock continues, nothing is served, and no timer fires in between.
    world.device.stalled_until = secs(3602);
    world.run_until(millis(2050));
    world.wake = None;
    world.run_until(secs(3613));
    let after = || world.of(limited).filter(|record| record.at >= secs(3602));
    let second = window_max(after(), SECOND, cost);
    (second, window_max(after(), 10 * SECOND, cost), world.count(open, secs(3603), secs(3613)))
}

#[test]
fn failure_07_the_clock_jumps() {
    let (second, ten, others) = over_a_jump(&product(), 64);
    assert!(second <= 10.0 + 2.0 + 1.0, "{second} in a second, limit 10, burst 2");
    assert!((99.0..=103.0).contains(&ten), "{ten} in ten seconds at limit 10, the library had 132");
    assert!(others >= 9_800, "{others}: the others are served as before");
    // A jump back cannot be expressed: the core takes monotonic time. The published limit tags make up for the hour.
    let (second, _, _) = over_a_jump(&paper(), 64);
    assert!(second > 13.0, "published: {second}");
}

// 8. Floating-point time.

#[test]
fn failure_08_time_is_floating_point() {
    // The cause was that library's seconds as f64; integers are exact in both modes.
    for subject in BOTH.map(|subject| subject()) {
        for limit in [1_000_000u64, 1_500_000, 3_000_000, 5_000_000, 10_000_000] {
            let mut world = World::simple(&subject, 4, 40_000_000);
            world.now = secs(1_700_000_000);
            let vm = world.busy(burst(Policy::weighted(1).limited(limit), 4), Pattern::Closed(64));
            let from = world.now;
            world.run_for(10 * MILLI);
            let due = limit as f64 / 100.0;
            let got = world.count(vm, from, world.now) as f64;
            assert!((got - due).abs() <= 0.001 * due + 6.0, "{}: {got} of {due}", subject.label());
        }
    }
}

// 9. Wake-ups: spinning, or stuck.

// rule: mclock.wake-product
#[test]
fn failure_09_the_wake_up_spins_or_sticks() {
    let reserved_only = Policy { weight: None, ..Policy::default() }.reserving(10);
    let policies = [
        ("limit alone", Policy::weighted(1).limited(1)),
        ("reservation alone", reserved_only),
        ("reservation and limit", reserved_only.limited(20)),
        ("all", Policy::weighted(5).reserving(1).limited(3)),
    ];
    for subject in BOTH.map(|subject| subject()) {
        for (what, policy) in policies {
            let mut world = World::simple(&subject, 8, 1000);
            let vm = world.busy(burst(policy, 1), Pattern::Closed(4));
            let mut last = world.now;
            for step in 0..200 {
                let next = world.next_instant().expect("a queued request implies another event");
                assert!(next >= last && next.nanos_since(last) <= 2 * SECOND, "{what}, step {step}: {next:?}");
                last = next;
                world.run_until(next);
            }
            let dispatched = world.count(vm, Instant::ZERO, Instant::MAX);
            let label = subject.label();
            assert!(world.wakes <= dispatched + 1, "{label}, {what}: {} wakes, {dispatched} dispatched", world.wakes);
            assert!(dispatched >= 60, "{label}, {what}: {dispatched} dispatched");
        }
    }
}

// 10. Settings that change under a backlog.

#[test]
fn failure_10_settings_change_under_a_backlog() {
    // The cause was tagging at arrival. Both modes tag the head of the queue.
    for subject in BOTH.map(|subject| subject()) {
        let label = subject.label();
        let limited = |limit| burst(Policy::weighted(1).limited(limit), 1);
        let mut world = World::simple(&subject, 8, 100_000);
        let vm = world.busy(limited(1000), Pattern::Closed(512));
        world.run_until(secs(1));
        world.set(vm, limited(10));
        world.run_until(secs(2));
        let lowered = world.count(vm, secs(1), secs(2));
        assert!(lowered <= 12, "{label}: {lowered} in the second after 1000 -> 10");

        let mut world = World::simple(&subject, 8, 100_000);
        let vm = world.busy(limited(1), Pattern::Closed(64));
        world.run_until(millis(5500));
        world.set(vm, limited(1000));
        world.run_until(millis(6500));
        let raised = world.count(vm, millis(5500), millis(6500));
        // A small case of failure 5: the published limit tags of the 64 requests lie in the past.
        let most = if subject.descriptor.name == "mclock-paper" { 1066 } else { 1002 };
        assert!((990..=most).contains(&raised), "{label}: {raised} in the second after 1 -> 1000");
    }
}

// 11. Which request pays for a large one.

/// When requests of cost 1, 100 and 1 are dispatched at limit 100.
fn small_large_small(subject: &Subject) -> Vec<u64> {
    let kib8 = Bytes::kib(8);
    // (K + S) / (K + S_ref) with K = 8 KiB, S_ref = 0: a flush costs 1, 792 KiB cost 100.
    let cost = CostModel { reference: Some(Bytes(0)), knee: kib8, ..CostModel::default() };
    let settings = GateSettings { depth: 8, transfer_max: Bytes::mib(1), cost, ..GateSettings::default() };
    let info = DeviceInfo { depth: 8, ..DeviceInfo::default() };
    let mut world = World::new(subject.build(&info), settings, Stub::parallel(8, 1000));
    let vm = world.vm(burst(Policy::weighted(1).limited(100), 1));
    let lengths = [0, 99 * 8192, 0];
    let source = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&lengths));
    for _ in lengths {
        world.ask(source);
    }
    world.pump();
    world.run_until(secs(3));
    world.times(vm).iter().map(|at| at.as_nanos() / MILLI).collect()
}

// rule: mclock.charge-after
#[test]
fn failure_11_a_request_pays_before_it_leaves() {
    assert_eq!(small_large_small(&product()), [0, 10, 1010], "milliseconds");
    assert_eq!(small_large_small(&paper()), [0, 1000, 1010], "published: each is charged before its dispatch");
}

// 14. More is reserved than the device has.

fn over_committed(subject: &Subject, floor: bool) -> Vec<f64> {
    let mut world = World::simple(subject, 8, 150);
    let mut policies = [100, 100, 20].map(|iops| Policy::weighted(1).reserving(iops)).to_vec();
    let without = Policy::weighted(10);
    policies.push(if floor { without.reserving(5) } else { without });
    let owners: Vec<OwnerId> = policies.iter().map(|policy| world.busy(*policy, Pattern::Closed(16))).collect();
    world.run_until(secs(60));
    world.rates(&owners, secs(10), secs(60))
}

// rule: mclock.admission, mclock.paper-over-commitment
#[test]
fn failure_14_over_commit_without_admission_control() {
    let vms = [("a", 100), ("b", 100), ("c", 20)].map(|(vm, iops)| (vm, Policy::default().reserving(iops)));
    let capacity = Capacity { iops: Some(Iops::per_second(150)), bytes: None };
    let supply =
        Supply { capacity, weight_floor: Percent::ZERO, reservable: Percent::WHOLE, device_class: DeviceClass::Disk };
    let refusal = admission::admit(&supply, vms.iter().map(|(vm, policy)| (*vm, policy))).unwrap_err();
    assert!(refusal.to_string().contains("with this one 133.34%; at most 100%"), "{refusal}");

    let proportional = 150.0 / 220.0;
    let due = [100.0 * proportional, 100.0 * proportional, 20.0 * proportional, 0.0];
    let without_floor = product().text("weight_floor", "0%");
    assert_close("in proportion", &over_committed(&without_floor, false), &due, 0.02);
    let proportional = 150.0 / 225.0;
    let due = [100.0, 100.0, 20.0, 5.0].map(|iops| iops * proportional);
    assert_close("a floor for the fourth", &over_committed(&without_floor, true), &due, 0.02);
    // Caused by the formula: floors at arrival serve the small reservation in full, and VMs without one not at all.
    assert_close("published", &over_committed(&paper(), false), &[65.0, 65.0, 20.0, 0.0], 0.02);
}

// 18. What is a client?

// rule: mclock.queues-no-owners
// rule: gate.owner
#[test]
fn failure_18_every_connection_has_the_limit() {
    // The cause was that library's notion of a client; in both modes the VM is the owner.
    for subject in BOTH.map(|subject| subject()) {
        let mut world = World::simple(&subject, 8, 1000);
        let vm = world.vm(burst(Policy::weighted(1).limited(50), 1));
        let second = world.volume(vm, Policy::default());
        for volume in [VolumeId(0), second] {
            for _connection in 0..4 {
                world.source(Source::new(vm, volume, Pattern::Closed(8)));
            }
        }
        world.run_until(secs(10));
        let rate = world.rates(&[vm], secs(1), secs(10))[0];
        assert!((49.5..=50.5).contains(&rate), "{}: {rate} of 50", subject.label());
    }
}

// 19. The head of the queue is cancelled.

#[test]
fn failure_19_cancelling_the_head_forgets_history() {
    // The cause was that library's delayed tagging; the previous tags stay in both modes.
    for subject in BOTH.map(|subject| subject()) {
        let mut world = World::simple(&subject, 8, 1000);
        let vm = world.vm(burst(Policy::weighted(1).limited(1), 1));
        let source = world.stream(vm, Pattern::Closed(4));
        world.run_until(millis(3500));
        for _ in 0..20 {
            world.cancel(Scope::Owner(vm));
            for _ in 0..4 {
                world.ask(source);
            }
            world.pump();
            world.run_for(100 * MILLI);
        }
        world.run_until(secs(20));
        let most = window_max(world.of(vm), SECOND - 1, cost);
        assert!(most <= 1.0, "{}: {most} in less than a second", subject.label());
        assert!(world.count(vm, Instant::ZERO, secs(20)) >= 18, "and its service continues");
    }
}

// 20. Contradictions are accepted.

// rule: mclock.reservation-below-limit, mclock.parameters
#[test]
fn failure_20_contradictions_are_accepted() {
    let mut world = World::simple(&product(), 8, 1000);
    let known = world.vm(Policy::default());
    let never = Policy { weight: None, ..Policy::default() };
    let mut above = Policy::default().reserving(100).limited(10);
    let mut refuse = |policy: Policy, reason: &str| {
        let text = world.gate.add_owner(Instant::ZERO, policy).unwrap_err().to_string();
        assert!(text.contains(reason), "{text}");
        let text = world.gate.set_owner(Instant::ZERO, known, policy).unwrap_err().to_string();
        assert!(text.contains(reason), "{text}");
        assert_eq!(world.gate.policy(known), Some(&Policy::default()), "a rejected change has no effect");
    };
    refuse(never, "would never be served");
    refuse(above, "Reservation 100 iops is above limit 10 iops");
    above = Policy::default();
    above.reservation.bytes = Some(ByteRate::per_second(2 << 20));
    above.limit.bytes = Some(ByteRate::per_second(1 << 20));
    refuse(above, "is above limit");
    refuse(credit(Policy::default(), 257), "Idle credit 257");
    refuse(burst(Policy::default(), 0), "Burst 0");
}

// 21. Virtual time overflows.

/// A gate whose flushes cost 65,535 requests each: virtual time at weight 0.01 passes its bound in minutes.
fn expensive(subject: &Subject) -> World {
    let cost = CostModel { flush: Cost::requests(65_535), ..CostModel::default() };
    let info = DeviceInfo { depth: 2, ..DeviceInfo::default() };
    World::new(subject.build(&info), GateSettings { depth: 2, cost, ..GateSettings::default() }, Stub::serial(SECOND))
}

fn of_hundredths(hundredths: u64) -> Policy {
    Policy { weight: Some(Weight::from_hundredths(hundredths)), ..Policy::default() }
}

#[test]
fn failure_21_virtual_time_overflows() {
    // Not caused by the formula: paper mode has real-time tags of 128 bits.
    for subject in BOTH.map(|subject| subject()) {
        let label = subject.label();
        let mut world = expensive(&subject);
        let owners = [1, 2, 3].map(|hundredths| {
            let vm = world.vm(of_hundredths(hundredths));
            world.source(Source::new(vm, VolumeId(0), Pattern::Closed(4)).kind(Kind::Flush));
            vm
        });
        let mut last = 0;
        let mut rebased = 0;
        for hour in 0..48 {
            let from = world.now;
            world.run_for(3600 * SECOND);
            let got = world.rates(&owners, from, world.now);
            assert_close(&format!("{label}, hour {hour}"), &got, &[1.0 / 6.0, 1.0 / 3.0, 0.5], 0.01);
            let virtual_time = world.gate.inspect(world.now).virtual_time.unwrap_or(0);
            rebased += u32::from(virtual_time < last);
            last = virtual_time;
        }
        assert!(rebased > 0 || subject.descriptor.name == "mclock-paper", "virtual time was rebased");
    }
}

#[test]
fn failure_21_virtual_time_inside_a_vm_overflows() {
    let mut world = expensive(&product());
    let vm = world.vm(Policy::default());
    world.gate.set_volume(Instant::ZERO, vm, VolumeId(0), of_hundredths(1)).unwrap();
    let second = world.volume(vm, of_hundredths(3));
    for volume in [VolumeId(0), second] {
        world.source(Source::new(vm, volume, Pattern::Closed(4)).kind(Kind::Flush));
    }
    for hour in 0..24 {
        let from = world.now;
        world.run_for(3600 * SECOND);
        let served = |volume| world.of(vm).filter(|r| r.at >= from && r.request.volume == volume).count() as f64;
        let got = [VolumeId(0), second].map(served);
        assert_close(&format!("hour {hour}"), &got, &[900.0, 2700.0], 0.01);
    }
}

#[test]
fn failure_21_extreme_rates_for_days() {
    for subject in BOTH.map(|subject| subject()) {
        let mut world = World::simple(&subject, 4, 1);
        let slow = Policy { limit: Limit { iops: Some(Iops::from_milli(1)), bytes: None }, ..of_hundredths(1) };
        let slow = world.busy(burst(slow, 1), Pattern::Closed(4));
        let reserved = Reservation { iops: Some(Iops::from_milli(1)), bytes: None };
        let trickle = Policy { weight: None, reservation: reserved, ..Policy::default() };
        let trickle = world.busy(trickle, Pattern::Closed(4));
        let heavy = world.busy(Policy::weighted(1_000_000).limited(1_000_000_000_000), Pattern::Closed(2));
        let days = secs(2 * 86_400);
        world.run_until(days);
        let counts = world.counts(&[slow, trickle], Instant::ZERO, days);
        let label = subject.label();
        assert!(counts[1].abs_diff(172) <= 2, "{label}: {counts:?} at 0.001/s for two days");
        assert!(counts[0] <= 174, "{label}: {counts:?}");
        assert!(world.count(heavy, Instant::ZERO, days) >= 172_000, "{label}");
        world.log.clear();
    }
}

#[test]
fn failure_21_a_client_counts_without_bound() {
    // Reports of a dmClock client are input: tags may saturate, but no other VM may suffer, and nothing may panic.
    for subject in BOTH.map(|subject| subject()) {
        let mut world = World::simple(&subject, 4, 1000);
        let liar = world.vm(of_hundredths(1).limited(1).reserving(1));
        let other = world.busy(Policy::weighted(100), Pattern::Closed(4));
        world.source(Source::new(liar, VolumeId(0), Pattern::Closed(4)).remote(u32::MAX, u32::MAX));
        world.run_until(secs(10));
        let milli = Some(Iops::from_milli(1));
        let (limit, reservation) = (Limit { iops: milli, bytes: None }, Reservation { iops: milli, bytes: None });
        world.set(liar, Policy { limit, reservation, ..of_hundredths(1) });
        world.set(liar, Policy::weighted(1_000_000).reserving(1));
        world.set(liar, of_hundredths(1).limited(2));
        world.run_until(secs(20));
        assert!(world.count(other, Instant::ZERO, secs(20)) >= 18_000, "{}", subject.label());
    }
}

#[test]
fn the_driver_of_these_tests_divides_nothing() {
    // A control: noop treats the two VMs of failure 1 alike, so the driver itself divides nothing.
    let [_, _, after] = limited_beside_unlimited(&Subject::of("noop"), 5);
    assert!(after[0].abs_diff(after[1]) <= 2, "{after:?}");
}
