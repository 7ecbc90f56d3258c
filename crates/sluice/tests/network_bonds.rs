//! Bonds and VLAN devices as interfaces of uplinks. The kernel of the machine may have neither, so the daemon runs in a guest with Debian's
//! kernel, between two network namespaces: `vm` has the TAP of the NIC, and `out` is the network outside.
//!
//! ```text
//!     s0 -- p0 \                  s2    -- p2     10.9.2.100
//!     s1 -- p1 -- sw 10.9.0.100   s2.20 -- p2.20  10.9.20.100
//! ```

use crate::common::guest::Guest;
use crate::common::guest::image::More;
use crate::common::guest::machine::Machine;
use crate::common::{run, sluice, tool};

/// What each script begins with. The shell of the guest has an `ip` of its own, which knows less.
const PRELUDE: &str = "
ip() { /more/real-ip \"$@\"; }
# A process that has ended and was not waited for is a zombie. (The command line tells nothing: it is empty for a moment while a process executes
# another program.)
runs() { /bin/busybox grep -q '^State:[^Z]*$' /proc/$(cat /tmp/pid)/status 2>/dev/null; }
";

const NETWORK: &str = "
for module in $(cat /more/order); do
    # Otherwise it makes a bond of its own.
    case $module in bonding) insmod /more/$module.ko max_bonds=0 ;; *) insmod /more/$module.ko ;; esac
done
ip link set lo up
ip netns add out
ip netns add vm
for number in 0 1 2; do
    ip link add s$number type veth peer name p$number netns out
    ip -n out link set p$number up
done
ip -n out link add sw type bridge
for number in 0 1; do ip -n out link set p$number master sw; done
ip -n out link set sw up
ip -n out addr add 10.9.0.100/24 dev sw
ip -n out addr add 10.9.2.100/24 dev p2
ip -n out link add link p2 name p2.20 type vlan id 20
ip -n out addr add 10.9.20.100/24 dev p2.20
ip -n out link set p2.20 up
ip link add bond1 type bond mode active-backup miimon 50
for number in 0 1; do ip link set s$number master bond1; done
ip link set bond1 up
ip link set s2 up
ip link add link s2 name s2.20 type vlan id 20
ip link set s2.20 up
";

/// Ends the daemon.
const STOP: &str = "kill $(cat /tmp/pid); while runs; do usleep 50000; done; rm /tmp/pid\n";

/// Ends a daemon that runs, and starts one. Fails if the daemon ends by itself.
const SERVE: &str = "
[ ! -e /tmp/pid ] || { kill $(cat /tmp/pid); while runs; do usleep 50000; done; }
/more/sluiced serve /tmp/host.toml >/tmp/log 2>&1 </dev/null &
echo $! >/tmp/pid
until [ -e /sys/class/net/v1 ]; do
    runs || { rm /tmp/pid; cat /tmp/log; exit 1; }
    usleep 50000
done
# The guest's kernel is Debian's 6.1.
grep -q 'Sealed layers=.privileges, landlock, rings, seccomp' /tmp/log || { cat /tmp/log; exit 1; }
ip link set v1 netns vm name eth0
ip -n vm link set eth0 up
";

fn sh(guest: &Guest, script: &str) -> String {
    guest.sh(&format!("{PRELUDE}{script}"))
}

fn host(uplink: &str) -> String {
    format!(
        "cat >/tmp/host.toml <<'END'\n[daemon]\ncontrol = \"/tmp/control\"\nstate = \"/tmp/state\"\n[uplink.lan]\n{uplink}\n\
         [vm.a.nic.eth0]\nuplink = \"lan\"\ntap = \"v1\"\nEND\n"
    )
}

/// Serves a NIC with an address in the network `10.9.NET`.
fn serve(guest: &Guest, uplink: &str, net: u8) {
    sh(guest, &format!("{}{SERVE}ip -n vm addr add 10.9.{net}.1/24 dev eth0\n", host(uplink)));
}

/// The VM, or the host, reaches an address.
fn reaches(guest: &Guest, from: &str, address: &str) {
    let ping = format!("/bin/busybox ping -c 1 -w 1 {address} >/dev/null");
    let ping = if from == "host" { ping } else { format!("ip netns exec {from} {ping}") };
    // polls: neighbours are found, and a bond notices which of its links work
    sh(
        guest,
        &format!("for attempt in $(seq 30); do {ping} && exit 0; done; echo {from} does not reach {address}; exit 1"),
    );
}

fn boot() -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let (built, daemon) =
        (std::path::Path::new(sluice().get_program()).with_file_name("sluiced"), folder.path().join("sluiced"));
    run(tool("strip", "binutils").arg("-o").arg(&daemon).arg(built)).ok();
    let ip = tool("ip", "iproute2").get_program().into();
    let more = More {
        programs: &[(daemon, "sluiced"), (ip, "real-ip")],
        modules: &["bonding", "8021q", "tun", "veth", "bridge"],
    };
    let guest = Guest::boot(Machine::new([]).with_files(&more));
    sh(&guest, NETWORK);
    guest
}

#[test]
fn bonds_and_vlan_devices_are_uplinks_and_ports_of_bridges() {
    let guest = boot();
    serve(&guest, "nic = \"bond1\"", 0);
    reaches(&guest, "vm", "10.9.0.100");
    let active = sh(&guest, "cat /sys/class/net/bond1/bonding/active_slave");
    let (member, far) = if active.trim() == "s0" { ("s0", "p0") } else { ("s1", "p1") };
    sh(&guest, &format!("ip -n out link set {far} down"));
    reaches(&guest, "vm", "10.9.0.100");
    sh(&guest, &format!("ip -n out link set {far} up"));

    serve(&guest, "nic = \"s2.20\"", 20);
    reaches(&guest, "vm", "10.9.20.100");

    sh(
        &guest,
        "ip link add br0 type bridge; ip link set br0 up; ip link set bond1 master br0; ip addr add 10.9.0.50/24 dev br0",
    );
    serve(&guest, "bridge = \"br0\"", 0);
    reaches(&guest, "vm", "10.9.0.100");
    reaches(&guest, "vm", "10.9.0.50");
    reaches(&guest, "host", "10.9.0.1");
    reaches(&guest, "host", "10.9.0.100");

    sh(&guest, "ip link set bond1 nomaster; ip addr flush dev br0; ip link set s2.20 master br0");
    serve(&guest, "bridge = \"br0\"", 20);
    reaches(&guest, "vm", "10.9.20.100");

    let strict = SERVE.replace("sluiced serve", "sluiced serve --strict");
    let refused = guest.run(&format!("{PRELUDE}{}{strict}", host(&format!("nic = \"{member}\"")))).text;
    assert!(refused.contains(&format!("The host uses {member} itself (it belongs to bond1)")), "{refused}");
}

/// Makes a bond of mode `$mode` here, and one like it outside.
const BONDS: &str = "
make() {
    name=$1; shift
    ip $@ link add bond1 type bond mode $mode miimon 50
    for number in 0 1; do
        ip $@ link set $name$number down
        ip $@ link set $name$number master bond1
    done
    ip $@ link set bond1 up
}
make s
make p -n out
ip -n out addr add 10.9.0.100/24 dev bond1
# Until both ends have agreed on their links, frames are lost.
case $mode in
802.3ad)
    for at in '' 'ip netns exec out'; do
        # Both ends of both links collect and distribute frames.
        until [ \"$($at grep -c 'port state: 6[13]' /proc/net/bonding/bond1)\" = 4 ]; do usleep 100000; done
    done
    ;;
esac
";

/// A mode that sends each frame over every link is not among these: its receiver has each frame twice.
#[test]
fn bonds_that_spread_frames_over_their_links_are_uplinks() {
    let guest = boot();
    sh(&guest, "ip link del bond1; ip -n out link del sw");
    for mode in ["balance-rr", "balance-xor", "802.3ad"] {
        sh(&guest, &format!("mode={mode}\n{BONDS}"));
        serve(&guest, "nic = \"bond1\"", 0);
        reaches(&guest, "vm", "10.9.0.100");
        let answers = sh(&guest, "ip netns exec vm /bin/busybox ping -c 10 10.9.0.100 -i 0.1");
        assert!(answers.contains(" 0% packet loss") && !answers.contains("DUP"), "{mode}: {answers}");
        sh(&guest, &format!("{STOP}ip link del bond1; ip -n out link del bond1"));
    }
}

/// The host has a VLAN device with an address on the interface that the daemon uses. The daemon turns IPv6 and ARP of the host off on the
/// interface, and not on that device.
#[test]
fn a_vlan_device_of_the_host_works_beside_the_uplink_on_its_interface() {
    let guest = boot();
    sh(&guest, "ip addr add 10.9.20.50/24 dev s2.20");
    serve(&guest, "nic = \"s2\"", 2);
    reaches(&guest, "vm", "10.9.2.100");
    reaches(&guest, "host", "10.9.20.100");
    // The station outside reaches both, so each of the two stacks answers for its own address.
    reaches(&guest, "out", "10.9.20.50");
    reaches(&guest, "out", "10.9.2.1");
    // In the VLAN of that device, a VM reaches the network and not the host, whose frames it would have to take off the wire.
    sh(&guest, &format!("echo 'vlan = 20' >>/tmp/host.toml\n{SERVE}\nip -n vm addr add 10.9.20.1/24 dev eth0"));
    reaches(&guest, "vm", "10.9.20.100");
    sh(&guest, "! ip netns exec vm /bin/busybox ping -c 1 -w 1 10.9.20.50 && ! ping -c 1 -w 1 10.9.20.1");
}
