//! Linux guests under QEMU with NICs over vhost-user-net, and disks over vhost-user-blk. Outside of the daemon is an interface of its own
//! network namespace.
//!
//! Frames are as long as a NIC takes them: an emulated guest on a busy machine can fill the uplink with few long frames, and not with many
//! short ones.

use std::process::Command;

use crate::common::guest::Guest;
use crate::common::guest::control::Job;
use crate::common::guest::machine::{Disk, Machine};
use crate::common::{Daemon, Place, Running, run, start, tool, until};
use serde_json::Value;

/// Rate of the uplink in Mbit/s.
const MBIT: u32 = 20;
/// Longest packet, in bytes.
const MTU: u32 = 9000;
/// What a disk and a link at once may take from each other, as a part of what a guest gets of each alone.
const BESIDE_MIN: f64 = 0.95;
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
fn machine(place: &Place, number: u32, disks: Vec<Disk>) -> Machine {
    let socket = place.socket(&format!("vm{number}"));
    Machine::new(disks).with([
        "-chardev".to_owned(),
        format!("socket,id=line,path={},reconnect=1", socket.display()),
        "-netdev".to_owned(),
        "vhost-user,id=net,chardev=line".to_owned(),
        "-device".to_owned(),
        // QEMU without KVM ends by a signal if such a NIC has interrupt vectors.
        format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{number},host_mtu={MTU},vectors=0,romfile="),
    ])
}

fn boot(place: &Place, number: u32, disks: Vec<Disk>) -> Guest {
    let guest = Guest::boot(machine(place, number, disks));
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
    reports(guests, start_load(guests, options))
}

fn start_load(guests: &[Guest], options: &str) -> Vec<Job> {
    let send = |number: usize| {
        format!("iperf3 --client 10.9.0.100 --port {} --time {SECONDS} --json {options}", port(number as u32 + 1))
    };
    guests.iter().enumerate().map(|(number, guest)| guest.start(&send(number))).collect()
}

fn reports(guests: &[Guest], jobs: Vec<Job>) -> Vec<Value> {
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
    let guests = [boot(&place, 1, Vec::new()), boot(&place, 2, Vec::new())];
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

/// A device of 400 requests per second, on which both guests have disks with weights 1 to 3.
fn disks(place: &Place) -> String {
    let disk = |number: u32, weight: u32| {
        format!(
            "[vm.vm{number}]\nweight = {weight}\n[vm.vm{number}.volume.disk]\ndevice = \"disk\"\nsize = \"16MiB\"\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n",
            place.socket(&format!("disk{number}")).display()
        )
    };
    let device = "[device.disk]\nbackend = \"null\"\ndepth = 4\ndelay = { time = \"10ms\", parallel = 4 }\n";
    format!("{device}{}{}", disk(1, 100), disk(2, 300))
}

/// Lets `count` requests of both disks together be completed; returns those of each.
fn requests(daemon: &Daemon, count: u64) -> [u64; 2] {
    let completed = || {
        let accounts = daemon.accounts();
        ["vm1", "vm2"].map(|vm| accounts.vm_on("disk", vm)["completed"]["read"].as_u64().unwrap())
    };
    let first = completed();
    let mut last = first;
    until("requests are completed", || {
        last = completed();
        last.iter().sum::<u64>() >= first.iter().sum::<u64>() + count
    });
    [last[0] - first[0], last[1] - first[1]]
}

#[test]
fn guests_get_of_disk_and_link_at_once_what_they_get_of_each_alone() {
    let place = Place::new();
    let daemon = serve(&place, &(host(&place, &format!("{MBIT}Mbit/s")) + &disks(&place)));
    let guests = [1, 2].map(|number| boot(&place, number, vec![Disk::new(place.socket(&format!("disk{number}")))]));
    let _receivers = [receiver(&daemon, 1), receiver(&daemon, 2)];
    let udp = "--udp --bitrate 40M --length 8900";
    let mut seen = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let link_alone: Vec<f64> = load(&guests, udp).iter().map(arrived).collect();
        let read = "cd /tmp && fio --name=load --filename=/dev/vda --ioengine=libaio --direct=1 --thread --rw=randread --bs=4k \
                    --iodepth=16 --time_based --runtime=3600 --output=/dev/null & echo $! > /tmp/fio; wait";
        let jobs = guests.each_ref().map(|guest| guest.start(read));
        let disk_alone = requests(&daemon, 2000);
        let sends = start_load(&guests, udp);
        let disk = requests(&daemon, 2000);
        let both: Vec<f64> = reports(&guests, sends).iter().map(arrived).collect();
        guests.iter().for_each(|guest| drop(guest.sh("kill $(cat /tmp/fio)")));
        guests.iter().zip(jobs).for_each(|(guest, job)| drop(guest.finish(job)));
        let share = |counts: [u64; 2]| counts[1] as f64 / (counts[0] + counts[1]) as f64;
        let parts = [both[0] / link_alone[0], both[1] / link_alone[1], share(disk) / share(disk_alone)];
        let is_fair = (2.7..3.3).contains(&(both[0] / both[1])) && (0.7..0.8).contains(&share(disk));
        seen.push((parts, both, disk));
        if is_fair && parts.iter().all(|part| (BESIDE_MIN..=2.0 - BESIDE_MIN).contains(part)) {
            return;
        }
    }
    panic!("link of both guests and share of the disk, at once as parts of alone; link; disk: {seen:.3?}");
}
