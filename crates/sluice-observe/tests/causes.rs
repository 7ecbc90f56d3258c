//! Constructed causes, each of which the observer has to name.

use std::time::Duration;

use crate::common::{Observed, Setup, at, closed, iops, sequential, thinking, within};
use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Phase, Right};
use sluice_api::status::Health;
use sluice_observe::sample::CpuSample;
use sluice_sched::policy::Limit;
use sluice_sched::{ByteRate, Instant, Percent, Policy};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::speed::Speed;
use sluice_sim::engine::Change;
use sluice_sim::random::stream;

const RESERVATION: EventKind = EventKind::Reservation;
const LATENCY: EventKind = EventKind::Latency;

fn reserving(rate: u64) -> Policy {
    Policy::default().reserving(rate)
}

fn mclock(rate: u64) -> Setup {
    Setup::new("mclock", 8, iops(rate))
}

#[test]
fn own_limit_of_the_vm_that_is_too_low_for_its_latency() {
    let mut observed = Observed::exact(&mclock(10_000), iops(10_000));
    let vm = observed.add("a", within(10).limited(100), closed(32, "a"));
    observed.add("b", Policy::default(), closed(1, "b"));
    observed.expect("a", LATENCY, Cause::OwnLimit, |observed| {
        assert_eq!(observed.vm("a").held_by, Some(Cause::OwnLimit));
        observed.simulation.set_policy(vm, within(10)).unwrap();
    });
}

#[test]
fn own_limit_that_equals_the_reservation_holds_the_vm_and_breaks_nothing() {
    let mut observed = Observed::exact(&mclock(10_000), iops(10_000));
    observed.add("a", reserving(500).limited(500), closed(32, "a"));
    observed.run(30);
    assert_eq!(observed.events, []);
    assert_eq!(observed.vm("a").held_by, Some(Cause::OwnLimit));
}

#[test]
fn limit_of_the_volume_below_the_reservation_of_its_vm() {
    let mut observed = Observed::exact(&mclock(10_000), iops(10_000));
    let vm = observed.add("a", reserving(500), closed(32, "a"));
    let (owner, volume) = observed.simulation.owner(vm, 0).unwrap();
    let set = |observed: &mut Observed, policy| {
        let now = observed.simulation.now();
        observed.simulation.gate_mut(0).set_volume(now, owner, volume, policy).unwrap();
    };
    set(&mut observed, Policy::default().limited(200));
    let began = observed.expect("a", RESERVATION, Cause::OwnLimit, |observed| set(observed, Policy::default()));
    assert!((began.wanted - 500.0).abs() < 1.0 && began.got < 320.0, "{began:?}");
    assert_eq!(began.neighbours, []);
}

#[test]
fn limit_in_bytes_below_a_reservation_in_requests() {
    let mut observed = Observed::exact(&mclock(10_000), iops(10_000));
    let limit = Limit { iops: None, bytes: Some(ByteRate::per_second(1 << 20)) };
    let vm = observed.add("a", Policy { limit, burst: Some(8), ..reserving(500) }, closed(32, "a"));
    let began = observed.expect("a", RESERVATION, Cause::OwnLimit, |observed| {
        observed.simulation.set_policy(vm, reserving(500)).unwrap();
    });
    assert!((100.0..200.0).contains(&began.got), "1 MiB/s are 128 requests: {began:?}");
}

#[test]
fn own_queue_too_short_for_the_reservation() {
    // Each request takes 2 ms, 16 at a time; one outstanding gives 500 per second.
    let model = Servers::new(16, ServiceTime::Fixed(Duration::from_millis(2)), stream(1, "service"));
    let mut observed = Observed::new(&Setup::new("mclock", 16, iops(8000)), Box::new(model));
    observed.add("a", reserving(2000), closed(1, "a"));
    observed.add("b", Policy::default(), closed(12, "b"));
    observed.run(30);
    assert_eq!(observed.events, []);
    assert_eq!(observed.vm("a").held_by, Some(Cause::OwnQueue));
    assert!((observed.vm("a").rates.ten_seconds.iops - 500.0).abs() < 10.0);
}

#[test]
fn own_queue_too_long_for_the_latency_although_it_has_its_share() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    let vm = observed.add("a", within(20), closed(64, "a"));
    observed.add("b", Policy::default(), closed(16, "b"));
    let began = observed.expect("a", LATENCY, Cause::OwnQueue, |observed| observed.stop(vm));
    assert_eq!(began.neighbours[0].vm, "b");
    assert!((45.0..55.0).contains(&began.neighbours[0].percent), "{began:?}");
}

#[test]
fn own_queue_at_a_device_that_gives_all_that_is_stated() {
    let mut observed = Observed::exact(&Setup::new("mclock", 32, iops(1000)), iops(1000));
    let vm = observed.add("a", within(20), closed(32, "a"));
    observed.expect("a", LATENCY, Cause::OwnQueue, |observed| observed.stop(vm));
}

#[test]
fn reservations_of_others_that_leave_too_little_for_the_latency() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.add("a", within(30), closed(4, "a"));
    let other = observed.add("b", reserving(900), closed(64, "b"));
    let began = observed.expect("a", LATENCY, Cause::OthersReservation, |observed| observed.stop(other));
    let neighbour = &began.neighbours[0];
    assert_eq!((neighbour.vm.as_str(), neighbour.by), ("b", Right::Reservation));
    assert!((850.0..950.0).contains(&neighbour.iops), "{began:?}");
}

#[test]
fn reservations_of_others_that_were_never_admitted_together() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.add("a", reserving(500), closed(32, "a"));
    let other = observed.add("b", reserving(900), closed(32, "b"));
    observed.expect("a", RESERVATION, Cause::OthersReservation, |observed| observed.stop(other));
}

#[test]
fn weight_of_others_where_reservations_are_not_enforced() {
    let mut observed = Observed::exact(&Setup::new("sfqd", 8, iops(1000)), iops(1000));
    observed.add("a", reserving(500), closed(32, "a"));
    let names = ["b", "c", "d", "e", "f"];
    let others = names.map(|name| observed.add(name, Policy::default(), closed(32, name)));
    let began = observed.expect("a", RESERVATION, Cause::OthersWeight, |observed| {
        others.into_iter().for_each(|other| observed.stop(other));
    });
    assert_eq!(began.neighbours.len(), 3, "{began:?}");
    assert!(began.neighbours.iter().all(|neighbour| names.contains(&neighbour.vm.as_str())), "{began:?}");
}

#[test]
fn weight_of_others_in_the_latency_of_a_small_share() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.add("a", within(30), closed(4, "a"));
    let other = observed.add("b", Policy::weighted(2000), closed(64, "b"));
    observed.expect("a", LATENCY, Cause::OthersWeight, |observed| observed.stop(other));
}

#[test]
fn batch_of_a_neighbour_on_a_rotational_device() {
    let setup = Setup { params: &[("batch", "128")], rotational: true, ..Setup::new("mclock", 1, iops(1000)) };
    let mut observed = Observed::exact(&setup, iops(1000));
    observed.add("a", within(40), thinking(1, Duration::from_millis(30), "a"));
    let other = observed.add("b", Policy::default(), sequential(200, Duration::ZERO, "b"));
    let began = observed.expect("a", LATENCY, Cause::Batch, |observed| observed.stop(other));
    assert_eq!(began.neighbours[0].vm, "b");
}

#[test]
fn anticipation_of_a_neighbours_next_request() {
    let setup = Setup { rotational: true, ..Setup::new("anticipatory", 1, iops(1000)) };
    let mut observed = Observed::exact(&setup, iops(1000));
    observed.add("a", reserving(400), closed(8, "a"));
    let other = observed.add("b", Policy::default(), sequential(1, Duration::from_millis(4), "b"));
    let began = observed.expect("a", RESERVATION, Cause::Anticipation, |observed| observed.stop(other));
    assert_eq!(began.neighbours[0].vm, "b");
}

#[test]
fn anticipation_in_the_idle_window_of_cfq() {
    let setup = Setup { rotational: true, ..Setup::new("cfq", 1, iops(1000)) };
    let mut observed = Observed::exact(&setup, iops(1000));
    observed.add("a", reserving(700), closed(8, "a"));
    let other = observed.add("b", Policy::default(), sequential(1, Duration::from_millis(4), "b"));
    observed.expect("a", RESERVATION, Cause::Anticipation, |observed| observed.stop(other));
}

#[test]
fn a_device_that_gives_less_than_is_reserved() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.simulation.plan_change(at(0), Change::Speed(0, Speed::Slower(2.0)));
    observed.add("a", reserving(450), closed(32, "a"));
    observed.add("b", reserving(450), closed(32, "b"));
    observed.expect("a", RESERVATION, Cause::Device, |observed| {
        let capacity = observed.events.iter().find(|event| event.kind == EventKind::Capacity);
        assert_eq!(capacity.map(|event| (event.phase, event.cause)), Some((Phase::Began, Cause::Device)));
        let now = observed.simulation.now();
        observed.simulation.plan_change(now, Change::Speed(0, Speed::NORMAL));
    });
}

#[test]
fn a_device_that_stalls() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.simulation.plan_change(at(5), Change::Speed(0, Speed::Stalled));
    observed.simulation.plan_change(at(12), Change::Speed(0, Speed::NORMAL));
    observed.add("a", reserving(450), closed(32, "a"));
    observed.run(12);
    let stalled: Vec<_> = observed.events.iter().filter(|event| event.kind == EventKind::Stalled).collect();
    assert!(stalled.len() == 1 && stalled[0].phase == Phase::Began && stalled[0].got == 8.0, "{stalled:?}");
    assert_eq!(observed.of("a"), [(RESERVATION, Phase::Began, Cause::Device)]);
    assert_eq!(observed.observer.status().devices[0].health, Health::Stalled);
    observed.run(30);
    let kinds = observed.events.iter().filter(|event| event.phase == Phase::Ended).map(|event| event.kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [EventKind::Stalled, RESERVATION]);
    assert_eq!(observed.observer.status().devices[0].health, Health::Serving);
}

#[test]
fn a_device_whose_requests_take_longer_than_the_target() {
    let model = Servers::new(8, ServiceTime::Fixed(Duration::from_millis(30)), stream(1, "service"));
    let mut observed = Observed::new(&Setup::new("mclock", 8, iops(8000)), Box::new(model));
    let vm = observed.add("a", within(20), closed(2, "a"));
    observed.add("b", Policy::default(), closed(2, "b"));
    observed.expect("a", LATENCY, Cause::Device, |observed| {
        observed.simulation.set_policy(vm, within(40)).unwrap();
    });
}

#[test]
fn a_device_thread_without_cpu_time_for_what_is_queued() {
    // It handles 300 requests per second of a device that could do more, so all slots seem taken.
    let mut observed = Observed::exact(&mclock(10_000), iops(300));
    observed.worked = 1.0;
    observed.add("a", reserving(2000), closed(64, "a"));
    observed.expect("a", RESERVATION, Cause::DaemonCpu, |observed| observed.stop(0));
    assert!(observed.events.iter().all(|event| event.kind == RESERVATION), "no verdict on the device");
    // The same without work of the thread: the device.
    let mut observed = Observed::exact(&mclock(10_000), iops(300));
    observed.add("a", reserving(2000), closed(64, "a"));
    observed.expect("a", RESERVATION, Cause::Device, |observed| observed.stop(0));
}

#[test]
fn a_device_thread_without_cpu_time_while_slots_are_free() {
    let mut observed = Observed::exact(&Setup::new("mclock", 64, iops(10_000)), iops(300));
    observed.worked = 0.99;
    observed.add("a", within(20), closed(16, "a"));
    observed.expect("a", LATENCY, Cause::DaemonCpu, |observed| observed.stop(0));
}

/// A device that gives the 1,000 iops that are stated, but completes nothing from 5.3 s to 5.9 s.
fn paused(policy: Policy, outstanding: u32) -> Observed {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.simulation.plan_change(Instant::from_millis(5300), Change::Speed(0, Speed::Stalled));
    observed.simulation.plan_change(Instant::from_millis(5900), Change::Speed(0, Speed::NORMAL));
    observed.add("a", policy, closed(outstanding, "a"));
    observed.add("b", Policy::default(), closed(8, "b"));
    observed.run(5);
    observed
}

#[test]
fn a_vm_with_a_limit_whose_thread_had_no_cpu_was_said_to_wait_for_its_limit() {
    let policy = reserving(500).limited(550);
    let mut observed = paused(policy, 32);
    observed.late_by(590);
    observed.run(1);
    let began = observed.events.last().expect("the reservation was missed");
    assert_eq!((began.kind, began.phase, began.cause), (RESERVATION, Phase::Began, Cause::DaemonCpu), "{began:?}");
    let words = began.in_words();
    assert!(words.contains("up to 6") && words.contains(" ms late, in 59 % of the time"), "{words}");
    assert_eq!(observed.observer.status().devices[0].thread_late_percent, 11.8, "of five seconds");
    // The same pause with a thread that was on time.
    let mut observed = paused(policy, 32);
    observed.late_by(5);
    observed.run(1);
    let began = observed.events.last().expect("the reservation was missed");
    assert_eq!((began.kind, began.detail.as_deref()), (RESERVATION, None));
    assert_eq!(began.cause, Cause::Device, "{began:?}");
}

#[test]
fn a_device_whose_thread_had_no_cpu_for_a_second_was_said_to_be_stalled() {
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.simulation.plan_change(at(5), Change::Speed(0, Speed::Stalled));
    observed.simulation.plan_change(Instant::from_millis(6500), Change::Speed(0, Speed::NORMAL));
    observed.add("a", reserving(500), closed(32, "a"));
    observed.run(5);
    observed.late_by(990);
    observed.run(1);
    observed.late_by(490);
    observed.run(10);
    let kinds = observed.events.iter().map(|event| (event.kind, event.cause)).collect::<Vec<_>>();
    assert_eq!(kinds, [(RESERVATION, Cause::DaemonCpu); 2]);
}

#[test]
fn a_thread_at_idle_priority_that_is_late_all_the_time_does_not_hide_the_cause() {
    let all_the_time = |observed: &mut Observed| {
        for _ in 0..5 {
            (0..100).for_each(|_| observed.late_by(9));
            observed.run(1);
        }
    };
    // A limit below the reservation lets through what it does, however late the thread is.
    let mut observed = Observed::exact(&mclock(10_000), iops(10_000));
    let vm = observed.add("a", reserving(500), closed(32, "a"));
    let (owner, volume) = observed.simulation.owner(vm, 0).unwrap();
    let now = observed.simulation.now();
    observed.simulation.gate_mut(0).set_volume(now, owner, volume, Policy::default().limited(200)).unwrap();
    observed.volume_policy = Policy::default().limited(200);
    all_the_time(&mut observed);
    assert_eq!(observed.of("a"), [(RESERVATION, Phase::Began, Cause::OwnLimit)]);
    // A device that gives all that is stated has not idled.
    let mut observed = Observed::exact(&mclock(1000), iops(1000));
    observed.add("a", reserving(500), closed(32, "a"));
    observed.add("b", reserving(900), closed(32, "b"));
    all_the_time(&mut observed);
    assert_eq!(observed.of("a"), [(RESERVATION, Phase::Began, Cause::OthersReservation)]);
}

#[test]
fn late_requests_of_a_thread_that_had_no_cpu_for_a_moment() {
    let mut observed = paused(within(200), 64);
    observed.late_by(590);
    observed.run(1);
    let found = observed.of("a");
    assert_eq!(found, [(LATENCY, Phase::Began, Cause::DaemonCpu)]);
}

#[test]
fn a_vm_that_its_limit_of_cpu_time_holds_back() {
    let mut observed = Observed::exact(&mclock(10_000), iops(300));
    observed.add("a", within(5), closed(8, "a"));
    for second in 1..=5 {
        let limit = Some(Percent::from_hundredths(1000));
        observed.cpu = vec![CpuSample { used_nanos: second * 100_000_000, held_nanos: second * 800_000_000, limit }];
        observed.run(1);
    }
    let status = observed.observer.status();
    let vm = &status.vms[0];
    assert_eq!((vm.held_by, vm.promises[0].cause), (Some(Cause::OwnCpuLimit), Some(Cause::OwnCpuLimit)));
    assert_eq!((vm.cpu.limit_percent, vm.cpu.used_percent, vm.cpu.held_percent), (Some(10.0), 10.0, 80.0));
    // What was used for it is no reason by itself.
    observed.run(10);
    assert_ne!(observed.observer.status().vms[0].held_by, Some(Cause::OwnCpuLimit));
}

/// A VM whose rare requests wait for batches of 128 requests of its neighbour, on a device that gives the stated 1,000 iops until
/// it becomes slower.
fn behind_batches(slower_from: u64) -> (Observed, usize) {
    let setup = Setup { params: &[("batch", "128")], rotational: true, ..Setup::new("mclock", 1, iops(1000)) };
    let mut observed = Observed::exact(&setup, iops(1000));
    observed.simulation.plan_change(at(slower_from), Change::Speed(0, Speed::Slower(2.0)));
    observed.add("a", within(40), thinking(1, Duration::from_millis(30), "a"));
    let other = observed.add("b", Policy::default(), sequential(200, Duration::ZERO, "b"));
    (observed, other)
}

#[test]
fn a_device_that_gave_less_than_was_stated_was_reported_as_a_batch_of_a_neighbour() {
    let (mut observed, other) = behind_batches(0);
    observed.expect("a", LATENCY, Cause::Device, |observed| observed.stop(other));
    // The same of a reservation.
    let setup = Setup { params: &[("batch", "128")], rotational: true, ..Setup::new("mclock", 1, iops(1000)) };
    let mut observed = Observed::exact(&setup, iops(1000));
    observed.simulation.plan_change(at(0), Change::Speed(0, Speed::Slower(2.5)));
    observed.add("a", reserving(450), closed(32, "a"));
    let other = observed.add("b", reserving(450), sequential(200, Duration::ZERO, "b"));
    observed.expect("a", RESERVATION, Cause::Device, |observed| {
        observed.stop(other);
        let now = observed.simulation.now();
        observed.simulation.plan_change(now, Change::Speed(0, Speed::NORMAL));
    });
}

#[test]
fn a_device_that_becomes_slow_during_batches_is_the_cause_from_then_on() {
    let (mut observed, other) = behind_batches(5);
    observed.run(5);
    assert_eq!(observed.of("a"), [(LATENCY, Phase::Began, Cause::Batch)]);
    observed.run(20);
    observed.stop(other);
    observed.run(20);
    assert_eq!(observed.of("a")[1..], [(LATENCY, Phase::Ended, Cause::Device)], "the cause of most of its seconds");
}
