//! VMs, policies and devices that change between samples.

use crate::common::{Observed, Setup, closed, iops};
use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Phase};
use sluice_sched::Policy;
use sluice_sim::random::stream;

const RESERVATION: EventKind = EventKind::Reservation;

/// Two VMs that reserve more than there is.
fn broken() -> (Observed, usize) {
    let mut observed = Observed::exact(&Setup::new("mclock", 8, iops(1000)), iops(1000));
    let vm = observed.add("a", Policy::default().reserving(500), closed(32, "a"));
    observed.add("b", Policy::default().reserving(900), closed(32, "b"));
    observed.run(5);
    assert_eq!(observed.of("a"), [(RESERVATION, Phase::Began, Cause::OthersReservation)]);
    (observed, vm)
}

fn ended(observed: &Observed) -> bool {
    observed.of("a").last().is_some_and(|(_, phase, _)| *phase == Phase::Ended)
}

#[test]
fn a_reservation_that_is_withdrawn_while_it_is_broken_ends_its_event() {
    let (mut observed, vm) = broken();
    observed.simulation.set_policy(vm, Policy::default()).unwrap();
    observed.run(1);
    assert!(ended(&observed), "{:?}", observed.events);
}

#[test]
fn the_event_of_a_vm_that_was_removed_never_ended() {
    let (mut observed, _) = broken();
    observed.rename(0, "c");
    observed.run(1);
    assert!(ended(&observed), "{:?}", observed.events);
    let renamed = observed.vm("c");
    assert_eq!(renamed.rates.second.iops, 0.0, "counters of its whole life are not those of a second");
    observed.run(1);
    assert!(observed.vm("c").rates.second.iops < 1000.0);
}

#[test]
fn a_reservation_raised_in_mid_second_was_judged_for_the_time_before() {
    let mut observed = Observed::exact(&Setup::new("mclock", 8, iops(1000)), iops(1000));
    let vm = observed.add("a", Policy::default().reserving(100), closed(32, "a"));
    observed.add("b", Policy::default().reserving(300), closed(32, "b"));
    let low = Policy { weight: Some(sluice_sched::Weight::MIN), ..Policy::default() };
    observed.simulation.set_policy(vm, low.reserving(100)).unwrap();
    observed.run(20);
    for rate in [600, 100, 600, 50, 650] {
        let middle = sluice_sched::Instant::from_millis(observed.second * 1000 + 600);
        observed.simulation.run_until(middle);
        observed.simulation.set_policy(vm, low.reserving(rate)).unwrap();
        observed.run(15);
    }
    assert_eq!(observed.events, []);
}

#[test]
fn two_samples_in_a_second_and_a_late_one_are_no_violation() {
    let mut observed = Observed::exact(&Setup::new("mclock", 8, iops(1000)), iops(1000));
    observed.add("a", Policy::default().reserving(900), closed(32, "a"));
    observed.add("b", Policy::default(), closed(32, "b"));
    observed.run(3);
    observed.sample();
    let soon = sluice_sched::Instant::from_millis(observed.second * 1000 + 3);
    observed.simulation.run_until(soon);
    observed.second += 1;
    observed.sample();
    observed.second += 4;
    observed.run(5);
    assert_eq!(observed.events, []);
    assert!((observed.vm("a").rates.ten_seconds.iops - 900.0).abs() < 20.0);
}

#[test]
fn a_promise_that_is_broken_by_a_fifth_is_an_event_within_two_seconds() {
    for seed in 1..=20 {
        let mut random = stream(seed, "broken");
        let capacity = 500 + random.below(5000);
        let mut observed = Observed::exact(&Setup::new("mclock", 8, iops(capacity)), iops(capacity));
        // Reservations beyond the capacity are each met by their part of it.
        let reserved = capacity * (50 + random.below(40)) / 100;
        let others = 1 + random.below(5);
        observed.add("a", Policy::default().reserving(reserved), closed(8 + random.below(60) as u32, "a"));
        observed.run(random.below(20));
        assert_eq!(observed.of("a"), [], "seed {seed}");
        for other in 0..others {
            let rate = capacity * 9 / 10 / others;
            observed.add(&format!("b{other}"), Policy::default().reserving(rate), closed(32, &format!("b{other}")));
        }
        observed.run(2);
        let got = observed.vm("a").rates.second.normalised_iops;
        assert!(got < reserved as f64 * 0.8, "seed {seed}: {got} of {reserved}");
        assert_eq!(observed.of("a"), [(RESERVATION, Phase::Began, Cause::OthersReservation)], "seed {seed}");
    }
}
