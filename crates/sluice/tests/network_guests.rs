//! Linux guests under QEMU with NICs over vhost-user-net. Outside of the daemon is an interface of its own network namespace.
//!
//! Frames are as long as a NIC takes them: an emulated guest on a busy machine can fill the uplink with few long frames, and not with many
//! short ones.

use std::process::Command;

use common::guest::Guest;
use common::guest::machine::Machine;
use common::{Daemon, Place, Running, run, start, tool};
use serde_json::Value;

mod common;

/// Rate of the uplink in Mbit/s.
const MBIT: u32 = 20;
/// Longest packet, in bytes.
const MTU: u32 = 9000;
/// Seconds for which guests send.
const SECONDS: u32 = 10;
/// Maximum number of rounds until the guests have filled the uplink.
const ROUNDS_MAX: u32 = 5;

fn serve(place: &Place, host: &str) -> Daemon {
    let daemon = Daemon::serve_by(place, host, |command| {
        let mut alone = tool("unshare", "util-linux");
        alone.arg("--net").arg(command.get_program()).args(command.get_args());
        alone
    });
    let outside = |arguments: &[&str]| run(outside(&daemon, "ip", "iproute2").args(arguments)).ok();
    outside(&["addr", "add", "10.9.0.100/24", "dev", "up0"]);
    outside(&["link", "set", "up0", "up"]);
    daemon
}

/// Returns a command in the namespace of the daemon.
fn outside(daemon: &Daemon, program: &str, package: &str) -> Command {
    let mut command = tool("nsenter", "util-linux");
    command.arg(format!("--net=/proc/{}/ns/net", daemon.pid())).arg(tool(program, package).get_program());
    command
}

/// A receiver for the traffic of one guest, which prints its report as JSON.
fn receiver(daemon: &Daemon, number: u32) -> Running {
    start(outside(daemon, "iperf3", "iperf3").args(["--server", "--port", &port(number)]))
}

fn port(number: u32) -> String {
    (5200 + number).to_string()
}

/// A guest whose NIC has the address 10.9.0.NUMBER.
fn machine(place: &Place, number: u32) -> Machine {
    let socket = place.socket(&format!("vm{number}"));
    Machine::new([]).with([
        "-chardev".to_owned(),
        format!("socket,id=line,path={},reconnect=1", socket.display()),
        "-netdev".to_owned(),
        "vhost-user,id=net,chardev=line".to_owned(),
        "-device".to_owned(),
        // QEMU without KVM ends by a signal if such a NIC has interrupt vectors.
        format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{number},host_mtu={MTU},vectors=0,romfile="),
    ])
}

fn boot(place: &Place, number: u32) -> Guest {
    let guest = Guest::boot(machine(place, number));
    guest.sh(&format!("ip addr add 10.9.0.{number}/24 dev eth0 && ip link set eth0 up && ip link set lo up"));
    assert_eq!(guest.sh("cat /sys/class/net/eth0/mtu").trim(), MTU.to_string());
    guest.sh("ping -c 3 10.9.0.100");
    guest
}

fn host(place: &Place, rate: &str) -> String {
    let nic = |number: u32, weight: u32| {
        format!(
            "[vm.vm{number}.net]\nweight = {weight}\n[vm.vm{number}.nic.eth0]\nuplink = \"lan\"\nsocket = \"{}\"\n\
             mac = \"52:54:00:00:00:0{number}\"\nmtu = {MTU}\n",
            place.socket(&format!("vm{number}")).display()
        )
    };
    format!(
        "{}[uplink.lan]\ntap = \"up0\"\nmtu = {MTU}\nrate = \"{rate}\"\n{}{}",
        place.control_keys(),
        nic(1, 300),
        nic(2, 100)
    )
}

/// Lets both guests send at the same time; returns their reports.
fn load(guests: &[Guest], options: &str) -> Vec<Value> {
    let send = |number: usize| {
        format!("iperf3 --client 10.9.0.100 --port {} --time {SECONDS} --json {options}", port(number as u32 + 1))
    };
    let jobs: Vec<_> = guests.iter().enumerate().map(|(number, guest)| guest.start(&send(number))).collect();
    let ended = guests.iter().zip(jobs).map(|(guest, job)| guest.finish(job));
    ended.map(|answer| serde_json::from_str(&answer.text).unwrap_or_else(|_| panic!("{}", answer.text))).collect()
}

/// Bits per second that arrived, in Mbit/s.
fn arrived(report: &Value) -> f64 {
    let end = &report["end"];
    let sum = if end["sum"].is_object() { &end["sum"] } else { &end["sum_received"] };
    sum["bits_per_second"].as_f64().unwrap_or_else(|| panic!("{report}")) / 1e6
}

#[test]
fn guests_send_by_their_weights_and_lose_nothing() {
    let place = Place::new();
    let daemon = serve(&place, &host(&place, &format!("{MBIT}Mbit/s")));
    let guests = [boot(&place, 1), boot(&place, 2)];
    let _receivers = [receiver(&daemon, 1), receiver(&daemon, 2)];
    guests[0].sh("ping -c 3 10.9.0.2");
    for options in ["--udp --bitrate 40M --length 8900", ""] {
        // An emulated guest on a busy machine may be slower than the uplink; then its share shows nothing.
        let full = (0..ROUNDS_MAX).find_map(|_| {
            let reports = load(&guests, options);
            let lost: u64 = reports.iter().filter_map(|report| report["end"]["sum"]["lost_packets"].as_u64()).sum();
            let again: u64 =
                reports.iter().filter_map(|report| report["end"]["sum_sent"]["retransmits"].as_u64()).sum();
            assert_eq!((lost, again), (0, 0), "{options}: lost datagrams, segments sent again");
            let rates: Vec<f64> = reports.iter().map(arrived).collect();
            (rates[0] + rates[1] > 0.9 * f64::from(MBIT)).then_some(rates)
        });
        let rates = full.expect("the guests fill the uplink");
        assert!((2.7..3.3).contains(&(rates[0] / rates[1])), "{options}: {rates:?}");
    }
}
