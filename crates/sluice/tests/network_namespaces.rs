//! What NICs get of an uplink, with traffic of stations in network namespaces. Results are counts of what arrived, so a slow
//! machine makes these tests slow and not wrong; `cargo xtask bench network` has the exact figures.

use crate::common::stations::{Lab, Uplink, assert_shares, outside, shares};
use sluice_client::net::traffic::{Echo, Sender, Sink};

/// Bytes on a link of 100 Mbit/s in about a second.
const SECOND: u64 = 12_000_000;
const RATE: &str = "100Mbit/s";

/// A lab in which each VM sends `mbit` Mbit/s in datagrams, and what arrives of each.
fn overloaded(policies: &[&str], mbit: &[u64]) -> (Lab, Vec<Sink>, Vec<Sender>) {
    let lab = Lab::new(Uplink::Tap, RATE, policies);
    let sinks = (1..).zip(policies).map(|(number, _)| lab.sink(number)).collect();
    let senders = (1..).zip(mbit).map(|(number, mbit)| lab.send(number, *mbit)).collect();
    (lab, sinks, senders)
}

#[track_caller]
fn assert_divided(sinks: &[Sink], expected: &[f64]) {
    let sinks: Vec<&Sink> = sinks.iter().collect();
    assert_shares(&shares(&sinks, SECOND, SECOND), expected);
}

#[test]
fn vms_that_send_too_much_share_a_link_by_their_weights() {
    let (lab, sinks, _senders) = overloaded(&["weight = 300", "weight = 100"], &[120, 120]);
    assert_divided(&sinks, &[0.75, 0.25]);
    for (weights, expected) in [([3000, 100], 30.0 / 31.0), ([100, 100], 0.5), ([100, 3000], 1.0 / 31.0)] {
        lab.set("vm1", &[&format!("net.weight={}", weights[0])]);
        lab.set("vm2", &[&format!("net.weight={}", weights[1])]);
        assert_divided(&sinks, &[expected, 1.0 - expected]);
    }
}

#[test]
fn a_vm_gets_its_reservation_inside_its_share_and_the_others_divide_the_rest() {
    let (_lab, sinks, _senders) = overloaded(&["reservation = \"60Mbit/s\"", "", ""], &[100, 80, 80]);
    assert_divided(&sinks, &[0.6, 0.2, 0.2]);
}

#[test]
fn limits_hold_on_a_link_that_another_vm_fills() {
    let limit = "limit = \"25Mbit/s\"";
    let (_lab, sinks, _senders) = overloaded(&[limit, limit, ""], &[60, 60, 120]);
    assert_divided(&sinks, &[0.25, 0.25, 0.5]);
}

/// Experiment c: what a VM offers gains it nothing. Experiment d: nor do its connections.
#[test]
fn a_vm_gains_nothing_by_offering_more_or_by_more_connections() {
    let (lab, sinks, mut senders) = overloaded(&["", ""], &[60, 150]);
    assert_divided(&sinks, &[0.5, 0.5]);
    senders.clear();
    senders.extend([1, 2, 2, 2].map(|number| lab.send(number, 60)));
    assert_divided(&sinks, &[0.5, 0.5]);
    senders.clear();
    let streams = [8001, 8002].map(|port| Sink::tcp(&lab.outside, port).unwrap());
    let connect = |number: u8| Sender::tcp(lab.vm(number), outside(8000 + u16::from(number))).unwrap();
    let _connections = [1, 2, 2, 2].map(connect);
    assert_divided(&streams, &[0.5, 0.5]);
}

#[test]
fn a_vm_that_had_the_link_alone_owes_nothing_and_one_that_paused_gains_nothing() {
    let (lab, sinks, _first) = overloaded(&["", ""], &[120]);
    let both: Vec<&Sink> = sinks.iter().collect();
    shares(&both, 0, 2 * SECOND);
    for _ in 0..2 {
        let second = lab.send(2, 120);
        // From the first frames on: a VM that owes service of its time alone would get nothing at first.
        assert_shares(&shares(&both, SECOND / 10, SECOND / 2), &[0.5, 0.5]);
        drop(second);
        assert_shares(&shares(&both, SECOND / 2, SECOND / 2), &[1.0, 0.0]);
    }
}

/// A prototype charged VMs without a limit too, so that one that got a limit had to pay for its past and stood still.
#[test]
fn a_limit_put_on_a_vm_that_ran_without_one_holds_at_once_and_is_not_charged_for_the_past() {
    let (lab, sinks, _senders) = overloaded(&["", ""], &[120, 120]);
    let both: Vec<&Sink> = sinks.iter().collect();
    assert_shares(&shares(&both, SECOND, 2 * SECOND), &[0.5, 0.5]);
    lab.set("vm1", &["net.limit=25Mbit/s"]);
    assert_shares(&shares(&both, SECOND / 2, SECOND), &[0.25, 0.75]);
    lab.set("vm1", &["net.limit=unlimited"]);
    assert_shares(&shares(&both, SECOND / 2, SECOND), &[0.5, 0.5]);
}

#[test]
fn a_light_vm_loses_nothing_beside_one_that_fills_the_link_and_waits_less() {
    let lab = Lab::new(Uplink::Tap, RATE, &["", ""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    let (mut heavy, mut light) = (lab.reach(1), lab.reach(2));
    let sink = lab.sink(1);
    let _sender = lab.send(1, 200);
    shares(&[&sink], SECOND / 2, 1);
    let mut answers: Vec<_> = (0..100).map(|_| light.ask().unwrap()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_none()).count(), 0, "lost of the light VM");
    answers.sort_unstable();
    let own = (0..50).find_map(|_| heavy.ask().unwrap());
    assert!(own.is_none_or(|own| answers[50].unwrap() * 2 < own), "light {:?}, heavy {own:?}", answers[50]);
}
