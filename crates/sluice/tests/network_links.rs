//! Interfaces that are missing at the start, or vanish and return: the others are served, and it is said.

use std::net::SocketAddr;

use crate::common::stations::{Lab, OUTSIDE, Uplink, address, namespace, outside};
use crate::common::{Daemon, Place, run, sluice, until};
use serde_json::Value;
use sluice_client::net::Namespace;
use sluice_client::net::traffic::{Echo, Probe};

/// Answer of a verb of the command line, which may report that not all is well.
fn ask(place: &Place, verb: &[&str]) -> Value {
    let ended = run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")));
    serde_json::from_str(&ended.stdout).unwrap_or(Value::Null)
}

fn out_of_service(place: &Place) -> Value {
    ask(place, &["status"])["out_of_service"].clone()
}

fn answers(from: &Namespace, to: SocketAddr) -> bool {
    Probe::new(from, to).is_ok_and(|mut probe| probe.ask().is_ok_and(|answer| answer.is_some()))
}

/// Causes and phases of the events that are about interfaces.
fn events(place: &Place) -> Vec<(String, String)> {
    let found = ask(place, &["events", "--kind", "out_of_service"])["events"].clone();
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    let of = |event: &Value| (text(event, "phase"), text(event, "cause"));
    found.as_array().unwrap().iter().map(of).collect()
}

fn pair(lab: &Lab) {
    lab.switch.connect("up0", &lab.outside).unwrap();
    lab.outside.up("eth0", &format!("{OUTSIDE}/24")).unwrap();
}

#[test]
fn an_uplink_whose_interface_is_missing_at_the_start_kept_all_others_from_being_served() {
    let (place, switch, station) = (Place::new(), namespace("switch"), namespace("outside"));
    let nic =
        |uplink: &str, number: u8| format!("[vm.vm{number}.nic.eth0]\nuplink = \"{uplink}\"\ntap = \"v{number}\"\n");
    let host = format!(
        "{}[uplink.lan]\nnic = \"up0\"\n[uplink.other]\ntap = \"t0\"\n{}{}{}",
        place.control_keys(),
        nic("lan", 1),
        nic("lan", 2),
        nic("other", 3)
    );
    let daemon = Daemon::serve_by(&place, &host, |command| switch.command(command));
    let vms: Vec<Namespace> = (1..=3).map(|number| namespace(&format!("vm{number}"))).collect();
    for (number, vm) in (1u8..).zip(&vms) {
        switch.move_to(&format!("v{number}"), vm, "eth0").unwrap();
        vm.up("eth0", &format!("{}/24", address(number))).unwrap();
    }
    assert_eq!(out_of_service(&place), serde_json::json!(["lan"]));
    let status = run(sluice().arg("status").arg("--socket").arg(place.socket("control"))).stdout;
    assert!(status.contains("lan is out of service: There is no interface up0"), "{status}");
    let _echo = Echo::start(&vms[1], 7).unwrap();
    until("NICs of the uplink reach each other", || answers(&vms[0], SocketAddr::new(address(2).into(), 7)));
    switch.move_to("t0", &station, "eth0").unwrap();
    station.up("eth0", &format!("{OUTSIDE}/24")).unwrap();
    let echo = Echo::start(&station, 7).unwrap();
    until("the other uplink serves", || answers(&vms[2], outside(7)));
    drop(echo);
    station.ip("link set eth0 down").unwrap();
    switch.ip(&format!("link add up0 type veth peer name eth1 netns {}", station.name())).unwrap();
    station.up("eth1", &format!("{OUTSIDE}/24")).unwrap();
    until("the interface is there", || out_of_service(&place) == serde_json::json!([]));
    let _echo = Echo::start(&station, 7).unwrap();
    until("the uplink serves", || answers(&vms[0], outside(7)));
    let both = [("began", "interface"), ("ended", "interface")].map(|(one, other)| (one.to_owned(), other.to_owned()));
    until("both events are kept", || events(&place) == both);
    drop(daemon);
}

#[test]
fn an_interface_that_vanishes_and_returns_serves_again() {
    let lab = Lab::new(Uplink::Nic, "100Mbit/s", &["", ""]);
    let echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    drop(echo);
    lab.switch.ip("link del up0").unwrap();
    until("it is noticed", || out_of_service(&lab.place) == serde_json::json!(["lan"]));
    let _neighbour = Echo::start(lab.vm(2), 7).unwrap();
    until("neighbours are served", || answers(lab.vm(1), SocketAddr::new(address(2).into(), 7)));
    pair(&lab);
    until("it serves again", || out_of_service(&lab.place) == serde_json::json!([]));
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    until("frames go out again", || answers(lab.vm(1), outside(7)));
}

#[test]
fn an_interface_that_lost_its_carrier_was_said_to_serve() {
    let lab = Lab::new(Uplink::Nic, "100Mbit/s", &[""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    let reason = || ask(&lab.place, &["status"])["interfaces_out_of_service"][0]["reason"].to_string();
    for (at, interface) in [(&lab.outside, "eth0"), (&lab.switch, "up0")] {
        at.ip(&format!("link set {interface} down")).unwrap();
        until("it is said", || reason().contains("up0 has no carrier"));
        at.ip(&format!("link set {interface} up")).unwrap();
        until("it serves again", || out_of_service(&lab.place) == serde_json::json!([]));
        until("frames go out again", || answers(lab.vm(1), outside(7)));
    }
}

/// The host uses what has come back: the same refusal as at the start, and the same way out.
#[test]
fn an_interface_that_returns_with_an_address_is_not_taken_from_the_host() {
    let lab = Lab::new(Uplink::Nic, "100Mbit/s", &[""]);
    lab.switch.ip("link del up0").unwrap();
    until("it is noticed", || out_of_service(&lab.place) == serde_json::json!(["lan"]));
    for words in
        ["link add other type veth peer name peer", "addr add 10.9.9.9/24 dev other", "link set other name up0"]
    {
        lab.switch.ip(words).unwrap();
    }
    let reason = || ask(&lab.place, &["status"])["interfaces_out_of_service"][0]["reason"].to_string();
    until("the reason is named", || reason().contains("it has the address 10.9.9.9"));
    lab.switch.ip("addr del 10.9.9.9/24 dev up0").unwrap();
    until("it serves again", || out_of_service(&lab.place) == serde_json::json!([]));
}

#[test]
fn a_bridge_that_is_made_again_gets_its_port_back() {
    let lab = Lab::new(Uplink::Bridge, "100Mbit/s", &[""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    lab.switch.ip("link del br0").unwrap();
    until("it is noticed", || out_of_service(&lab.place) == serde_json::json!(["lan"]));
    lab.switch.bridge("up0").unwrap();
    until("it serves again", || out_of_service(&lab.place) == serde_json::json!([]));
    until("frames go out again", || answers(lab.vm(1), outside(7)));
}

/// Its port was said to miss its bridge, and the way out that was named could not work.
#[test]
fn a_bridge_that_is_renamed_is_named_and_its_frames_pass() {
    let lab = Lab::new(Uplink::Bridge, "100Mbit/s", &[""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    lab.switch.ip("link set br0 name br1").unwrap();
    let reason = || ask(&lab.place, &["status"])["interfaces_out_of_service"][0]["reason"].to_string();
    until("it is said", || reason().contains("is in br1 and not in br0, and frames pass there"));
    assert!(answers(lab.vm(1), outside(7)), "through the renamed bridge");
    lab.switch.ip("link set br1 name br0").unwrap();
    until("all is well", || out_of_service(&lab.place) == serde_json::json!([]));
}

#[test]
fn the_tap_of_a_namespace_that_is_removed_is_made_again() {
    let mut lab = Lab::new(Uplink::Tap, "100Mbit/s", &["", ""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    drop(lab.vms.remove(0));
    until("the TAP is there again", || lab.switch.ip("link show v1").is_ok());
    let again = namespace("again");
    lab.switch.move_to("v1", &again, "eth0").unwrap();
    again.up("eth0", "10.77.0.1/24").unwrap();
    until("the new station reaches the outside", || answers(&again, outside(7)));
    assert!(answers(&lab.vms[0], outside(7)), "its neighbour");
}

#[test]
fn rates_on_an_uplink_are_shown_in_bits_and_a_nic_with_its_drops() {
    let lab = Lab::with_nics(
        Uplink::Tap,
        "rate = \"100Mbit/s\"",
        &["reservation = \"30Mbit/s\""],
        &["addresses = [\"10.77.0.1/32\"]"],
    );
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    lab.vm(1).ip("addr add 10.77.0.9/24 dev eth0").unwrap();
    let stranger: SocketAddr = "10.77.0.9:0".parse().unwrap();
    let socket = lab.vm(1).enter(|| std::net::UdpSocket::bind(stranger)).unwrap().unwrap();
    (0..5).for_each(|_| drop(socket.send_to(b"x", outside(9))));
    let (_sink, _load) = (lab.sink(1), lab.send(1, 20));
    let bits = || ask(&lab.place, &["get", "vms"])["vms"][0]["rates"]["1s"]["bits_per_second"].as_f64();
    until("the rate is seen", || bits().is_some_and(|bits| (15e6..25e6).contains(&bits)));
    let shown = |verb: &[&str]| run(sluice().args(verb).arg("--socket").arg(lab.place.socket("control"))).stdout;
    for verb in [
        &["get", "vms"][..],
        &["get", "volumes"],
        &["get", "devices"],
        &["status"],
        &["top", "--batch", "--count", "1"],
        &["get", "history", "vm1/nic/eth0"],
    ] {
        let text = shown(verb);
        assert!(text.contains(" Mbit/s"), "{verb:?}: {text}");
    }
    assert!(shown(&["get", "vms"]).contains("30.0 Mbit/s"), "the reservation");
    until("drops are shown", || shown(&["describe", "vm1/nic/eth0"]).contains(" source_ip"));
    let described = shown(&["describe", "lan"]);
    assert!(described.starts_with("Uplink lan: serving"), "{described}");
}
