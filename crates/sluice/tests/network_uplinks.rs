//! Uplinks on interfaces of the kernel, in network namespaces: who reaches whom, each frame once, what is refused, what guards drop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::common::stations::{Lab, OUTSIDE, Uplink, address, namespace, outside};
use crate::common::{Daemon, Place, run, sluice, until};
use sluice_client::net::Namespace;
use sluice_client::net::frames::{ARP, Listener, is_arp_reply};
use sluice_client::net::traffic::{Echo, Probe, Sender, Sink};

/// Address of the host on its bridge.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);
/// Datagrams of a test that counts each.
const COUNT: u64 = 100;

fn port(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(address), port)
}

/// Whether a station answers another one, after some questions in which neighbours are found.
fn answers(from: &Namespace, to: SocketAddr) -> bool {
    let mut probe = Probe::new(from, to).unwrap();
    (0..3).any(|_| probe.ask().is_ok_and(|answer| answer.is_some()))
}

/// Sends from one station to another, and returns how many datagrams have arrived when a later question has been answered.
fn arrived(from: &Namespace, to: &Namespace, address: Ipv4Addr) -> u64 {
    let (sink, _echo) = (Sink::udp(to, 7001).unwrap(), Echo::start(to, 7).unwrap());
    assert!(answers(from, port(address, 7)));
    Sender::spaced(from, port(address, 7001), 1000, COUNT).unwrap();
    assert!(answers(from, port(address, 7)));
    until("the datagrams arrive", || sink.datagrams() >= COUNT);
    sink.datagrams()
}

/// Lets the outside look for a neighbour, and returns the number of answers.
fn arp_answers(lab: &Lab, heard: &Listener, to: &Namespace, address: Ipv4Addr) -> usize {
    lab.outside.ip("neigh flush all").unwrap();
    heard.arrived(|_| false);
    // The later exchanges are behind all answers to the first question.
    arrived(&lab.outside, to, address);
    heard.arrived(|frame| is_arp_reply(frame, address.octets())).len()
}

#[test]
fn on_a_bridge_host_vm_and_outside_reach_one_another_and_each_frame_comes_once() {
    let lab = Lab::new(Uplink::Bridge, "100Mbit/s", &["", ""]);
    lab.switch.up("br0", &format!("{HOST}/24")).unwrap();
    let heard = Listener::start(&lab.outside, ARP).unwrap();
    let (vm, other) = (lab.vm(1), lab.vm(2));
    for (from, to, place) in [
        (vm, &lab.outside, OUTSIDE),
        (&lab.outside, vm, address(1)),
        (vm, &lab.switch, HOST),
        (&lab.switch, vm, address(1)),
        (&lab.outside, &lab.switch, HOST),
        (vm, other, address(2)),
    ] {
        assert_eq!(arrived(from, to, place), COUNT, "to {place}");
    }
    assert_eq!([(vm, address(1)), (&lab.switch, HOST)].map(|(to, place)| arp_answers(&lab, &heard, to, place)), [1, 1]);
}

#[test]
fn an_isolated_bridge_port_reaches_ordinary_ports_and_no_isolated_ones() {
    let lab = Lab::with_nics(Uplink::Bridge, "rate = \"100Mbit/s\"\nisolated = true", &[""], &[""]);
    let other = namespace("other");
    lab.switch.connect("o0", &other).unwrap();
    lab.switch.ip("link set o0 master br0 up").unwrap();
    other.up("eth0", "10.77.0.60/24").unwrap();
    let place = port(Ipv4Addr::new(10, 77, 0, 60), 7);
    let _echoes = [Echo::start(&lab.outside, 7).unwrap(), Echo::start(&other, 7).unwrap()];
    lab.reach(1);
    assert!(answers(lab.vm(1), place), "an ordinary port");
    lab.switch.ip("link set o0 type bridge_slave isolated on").unwrap();
    lab.vm(1).ip("neigh flush all").unwrap();
    assert!(!answers(lab.vm(1), place), "an isolated port");
    assert!(answers(lab.vm(1), outside(7)), "the outside");
}

#[test]
fn on_an_interface_of_the_daemon_each_frame_comes_once_and_the_host_does_not_answer() {
    let lab = Lab::new(Uplink::Nic, "100Mbit/s", &["", ""]);
    let heard = Listener::start(&lab.outside, ARP).unwrap();
    for (from, to, place) in
        [(lab.vm(1), &lab.outside, OUTSIDE), (&lab.outside, lab.vm(1), address(1)), (lab.vm(1), lab.vm(2), address(2))]
    {
        assert_eq!(arrived(from, to, place), COUNT, "to {place}");
    }
    assert_eq!(arp_answers(&lab, &heard, lab.vm(1), address(1)), 1);
    assert_eq!(lab.switch.ip("-6 addr show dev up0").unwrap(), "", "the host has no address on it");
}

/// Tries to serve a host file in a namespace; returns the error.
fn refused(place: &Place, at: &Namespace, host: &str) -> String {
    let file = place.write("refused.toml", host);
    let mut command = sluice();
    run(at.command(command.args(["serve", "--strict"]).arg(file)).env("SLUICE_SOCKET", "none")).failed()
}

#[test]
fn an_interface_that_the_host_uses_is_refused_with_a_word_on_bridges() {
    let (place, switch) = (Place::new(), namespace("switch"));
    let host = format!("{}[uplink.lan]\nnic = \"up0\"\nrate = \"1Gbit/s\"\n", place.control_keys());
    for words in ["link add up0 type veth peer name up1", "link add br0 type bridge", "addr add 10.77.0.1/24 dev up0"] {
        switch.ip(words).unwrap();
    }
    let error = refused(&place, &switch, &host);
    assert!(error.contains("it has the address 10.77.0.1") && error.contains("state bridge = "), "{error}");
    switch.ip("addr del 10.77.0.1/24 dev up0").unwrap();
    switch.ip("link set up0 master br0").unwrap();
    let error = refused(&place, &switch, &host);
    assert!(error.contains("it belongs to br0") && error.contains("state bridge = "), "{error}");
    switch.ip("link set up0 nomaster").unwrap();
    drop(Daemon::serve_by(&place, &host, |command| switch.command(command)));
}

#[test]
fn check_did_not_say_that_the_frames_of_an_uplink_are_too_long_for_its_bridge() {
    let (place, switch) = (Place::new(), namespace("switch"));
    switch.ip("link add br0 type bridge").unwrap();
    switch.ip("link set br0 mtu 1400").unwrap();
    let file = place.write("host.toml", format!("{}[uplink.lan]\nbridge = \"br0\"\n", place.control_keys()));
    let check = || run(&mut switch.command(sluice().args(["check", "--host"]).arg(&file)));
    let found = check();
    let text = "br0 carries packets of 1400 bytes, and the uplink's mtu is 1500: longer frames are lost";
    assert!(found.code() == Some(0) && found.stdout.contains(text), "{} {}", found.stdout, found.stderr);
    switch.ip("link set br0 mtu 1500").unwrap();
    assert!(!check().stdout.contains("carries packets"));
}

/// The kernel takes the tag out of a frame and tells it apart. Without it the frame would be one of no VLAN.
#[test]
fn a_tag_that_the_kernel_took_out_is_put_back() {
    let lab = Lab::with_nics(Uplink::Nic, "rate = \"100Mbit/s\"", &["", "", ""], &["vlan = 20", "vlan = 30", ""]);
    // Another daemon is the outside: its own NICs with VLANs are the stations there.
    let place = Place::new();
    lab.outside.ip("addr flush dev eth0").unwrap();
    let mut host = format!("{}[uplink.lan]\nnic = \"eth0\"\n", place.control_keys());
    for (number, vlan) in [(4, "vlan = 20"), (5, "")] {
        host += &format!("[vm.vm{number}.nic.eth0]\nuplink = \"lan\"\ntap = \"v{number}\"\n{vlan}\n");
    }
    let _daemon = Daemon::serve_by(&place, &host, |command| lab.outside.command(command));
    let tagged = namespace("vm4");
    lab.outside.move_to("v4", &tagged, "eth0").unwrap();
    tagged.up("eth0", "10.77.0.4/24").unwrap();
    let plain = namespace("vm5");
    lab.outside.move_to("v5", &plain, "eth0").unwrap();
    plain.up("eth0", "10.77.0.4/24").unwrap();
    let _echoes = [Echo::start(&tagged, 7).unwrap(), Echo::start(&plain, 7).unwrap()];
    let heard = [&tagged, &plain].map(|station| Listener::start(station, ARP).unwrap());
    let there = port(Ipv4Addr::new(10, 77, 0, 4), 7);
    assert!(answers(lab.vm(1), there), "a NIC of the same VLAN");
    let asked_by = |number: u8| move |frame: &[u8]| frame[28..32] == address(number).octets();
    assert!(!heard[0].arrived(asked_by(1)).is_empty(), "the NIC of the VLAN heard the question");
    assert!(!answers(lab.vm(2), there), "a NIC of another VLAN");
    assert!(answers(lab.vm(3), there), "NICs without a VLAN");
    assert!(heard[0].arrived(|_| true).iter().all(|frame| !asked_by(2)(frame) && !asked_by(3)(frame)));
    assert!(heard[1].arrived(asked_by(1)).is_empty(), "the NIC without a VLAN heard nothing of it");
}

#[test]
fn strange_addresses_are_dropped_and_counted() {
    let lab = Lab::with_nics(Uplink::Tap, "rate = \"100Mbit/s\"", &["", ""], &["addresses = [\"10.77.0.1/32\"]", ""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    let heard = Listener::start(&lab.outside, ARP).unwrap();
    let dropped = || lab.daemon.accounts().number("vm1", "refused");
    let (vm, before) = (lab.vm(1), dropped());
    // Another address of the same station, in ARP and IP: it says so to all neighbours, and asks from there.
    vm.sysctl("ipv4/conf/eth0/arp_notify", "1").unwrap();
    vm.ip("addr flush dev eth0").unwrap();
    vm.up("eth0", "10.77.0.9/24").unwrap();
    assert!(!answers(vm, outside(7)), "by another IP address");
    let ip = dropped();
    assert!(ip > before, "{ip} {before}");
    assert!(heard.arrived(|frame| frame[28..32] == [10, 77, 0, 9]).is_empty());
    // The own IP address behind another Ethernet address.
    vm.ip("addr flush dev eth0").unwrap();
    vm.ip("link set eth0 down").unwrap();
    vm.ip("link set eth0 address 52:54:00:99:99:99").unwrap();
    vm.up("eth0", "10.77.0.1/24").unwrap();
    assert!(!answers(vm, outside(7)), "by another MAC address");
    let mac = dropped();
    assert!(mac > ip, "{mac} {ip}");
    assert!(heard.arrived(|frame| frame[6..12] == [0x52, 0x54, 0, 0x99, 0x99, 0x99]).is_empty());
}

#[test]
fn ipv6_neighbours_are_found_while_a_vm_floods_broadcasts() {
    let lab = Lab::new(Uplink::Tap, "100Mbit/s", &["", ""]);
    for (station, address) in [(lab.vm(1), "fd00::1/64"), (lab.vm(2), "fd00::2/64"), (&lab.outside, "fd00::100/64")] {
        station.sysctl("ipv6/conf/eth0/disable_ipv6", "0").unwrap();
        station.ip(&format!("addr add {address} dev eth0 nodad")).unwrap();
    }
    let there: SocketAddr = "[fd00::100]:7".parse().unwrap();
    let _echo = Echo::on(&lab.outside, there).unwrap();
    let broadcast = port(Ipv4Addr::new(10, 77, 0, 255), 9);
    let flood = Sender::udp(lab.vm(1), broadcast, 100, 20_000).unwrap();
    until("the flood is above the cap", || lab.daemon.accounts().number("vm1", "refused") > 1000);
    for number in [1, 2] {
        for _ in 0..5 {
            lab.vm(number).ip("-6 neigh flush dev eth0").unwrap();
            lab.outside.ip("-6 neigh flush dev eth0").unwrap();
            assert!(answers(lab.vm(number), there), "VM {number}");
        }
    }
    assert!(flood.sent() > 1000);
}

/// Firecracker opens the TAP that it is given, and reads and writes it itself. Another daemon stands for it here: it holds the TAP as
/// its uplink, and its VM is a station.
#[test]
fn a_tap_that_a_vmm_holds_is_served_from_the_other_side() {
    const MAC: &str = "52:54:00:00:00:01";
    let (place, switch, vm) = (Place::new(), namespace("switch"), namespace("vm1"));
    switch.ip("tuntap add dev fc0 mode tap").unwrap();
    let nic = |tap: &str| format!("[vm.vm1.nic.eth0]\nuplink = \"lan\"\ntap = \"{tap}\"\nmac = \"{MAC}\"\n");
    let vmm_place = Place::new();
    let host = format!("{}[uplink.lan]\ntap = \"fc0\"\n{}", vmm_place.control_keys(), nic("v1"));
    let vmm = Daemon::serve_by(&vmm_place, &host, |command| switch.command(command));
    switch.move_to("v1", &vm, "eth0").unwrap();
    vm.up("eth0", "10.77.0.1/24").unwrap();
    let station = namespace("outside");
    let host = format!("{}[uplink.lan]\ntap = \"up0\"\nrate = \"100Mbit/s\"\n{}", place.control_keys(), nic("fc0"));
    let daemon = Daemon::serve_by(&place, &host, |command| switch.command(command));
    switch.move_to("up0", &station, "eth0").unwrap();
    station.up("eth0", "10.77.0.100/24").unwrap();
    assert_eq!(arrived(&vm, &station, OUTSIDE), COUNT);
    assert_eq!(arrived(&station, &vm, address(1)), COUNT);
    drop(daemon);
    assert!(switch.ip("link show fc0").is_ok(), "the TAP stays with its VMM");
    drop(vmm);
}

#[test]
fn frames_that_are_too_long_for_the_interface_are_counted_as_such_and_the_link_is_not_down() {
    let lab = Lab::new(Uplink::Nic, "100Mbit/s", &[""]);
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    lab.reach(1);
    lab.switch.ip("link set up0 mtu 1000").unwrap();
    Sender::spaced(lab.vm(1), outside(7001), 1400, 20).unwrap();
    let metrics = || run(sluice().arg("metrics").arg("--socket").arg(lab.place.socket("control"))).ok();
    let counted = "sluice_nic_dropped_frames_total{uplink=\"lan\",vm=\"vm1\",nic=\"eth0\",reason=\"too_long\"} 20\n";
    until("the frames are counted", || metrics().contains(counted));
    let metrics = metrics();
    assert!(!metrics.contains("link_down"), "{metrics}");
    assert!(metrics.contains("sluice_uplink_link_up{uplink=\"lan\"} 1\n"), "{metrics}");
    lab.reach(1);
}

/// Segments of a connection wait for the wire when the interface is given a lower limit. At 100 Mbit/s the daemon cuts them, at 10 Gbit/s
/// the kernel does.
#[test]
fn a_limit_of_frames_that_is_lowered_under_a_connection_stops_no_other_frame() {
    for rate in ["100Mbit/s", "10Gbit/s"] {
        let lab = Lab::new(Uplink::Nic, rate, &["", ""]);
        let _echo = Echo::start(&lab.outside, 7).unwrap();
        let sink = Sink::tcp(&lab.outside, 7001).unwrap();
        let _sender = Sender::tcp(lab.vm(1), outside(7001)).unwrap();
        until("the connection is busy", || sink.bytes() > 5_000_000);
        lab.switch.ip("link set up0 mtu 1000").unwrap();
        for number in [1, 2] {
            lab.reach(number);
        }
        lab.switch.ip("link set up0 mtu 1500").unwrap();
        let before = sink.bytes();
        until("the connection goes on", || sink.bytes() > before + 1_000_000);
    }
}
