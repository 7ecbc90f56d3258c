//! Errors of the network side: uplinks, NICs, and the network half of policies.

use sluice_config::parse;

use super::{Case, found, refused};

const GOOD: &str = r#"[uplink.lan]
bridge = "br0"
rate = "1Gbit/s"
[policy.p.net]
limit = "600Mbit/s"
[vm.a]
policy = "p"
[vm.a.nic.n]
uplink = "lan"
socket = "/run/sluice/a-n.sock"
[vm.b.nic.n]
uplink = "lan"
tap = "b-n"
"#;

/// The errors with `from` in [`GOOD`] replaced by `to`: lines and messages.
fn errors(from: &str, to: &str) -> Vec<(u32, String)> {
    assert!(GOOD.contains(from), "{from}");
    let found = parse("host.toml", &GOOD.replacen(from, to, 1)).expect_err(to);
    assert!(found.0.iter().all(|found| found.hint.is_some()), "{to}: {found}");
    found.0.into_iter().map(|found| (found.line, found.message)).collect()
}

fn check(cases: &[Case]) {
    assert_eq!(parse("host.toml", GOOD).map(|host| host.warnings), Ok(vec![]));
    for (from, to, expected) in cases {
        let found = errors(from, to);
        let found: Vec<_> = found.iter().map(|(line, message)| (*line, message.as_str())).collect();
        assert_eq!(found, *expected, "{from} -> {to}");
    }
}

const BRIDGE: &str = "bridge = \"br0\"";
const RATE: &str = "rate = \"1Gbit/s\"";

#[test]
fn uplinks() {
    check(&[
        (BRIDGE, "", &[(1, "Uplink lan: bridge is missing, and so are nic and tap")]),
        (BRIDGE, "bridge = \"br0\"\ntap = \"up0\"", &[(3, "Uplink lan: tap: the uplink already has a bridge")]),
        (
            BRIDGE,
            "nic = \"eth1\"\nisolated = true",
            &[(3, "Uplink lan: isolated: only a bridge has ports that it can isolate")],
        ),
        (
            BRIDGE,
            "bridge = \"a-name-too-long0\"",
            &[(2, "Uplink lan: bridge: 'a-name-too-long0' is not the name of a network interface")],
        ),
        (BRIDGE, "bridge = \"../x\"", &[(2, "Uplink lan: bridge: '../x' is not the name of a network interface")]),
        (
            BRIDGE,
            "bridge = 0",
            &[(2, "Uplink lan: bridge must be the name of a network interface, not a whole number")],
        ),
        (RATE, "rate = 1000", &[(3, "Uplink lan: rate is a bare number, 1000, without a unit")]),
        (RATE, "rate = \"1000 iops\"", &[(3, "Uplink lan: rate: 'iops' is not a unit of a link's rate")]),
        (RATE, "rate = \"1Gbps\"", &[(3, "Uplink lan: rate: 'Gbps' is not a unit of a link's rate")]),
        (RATE, "reservable = \"101%\"", &[(3, "Uplink lan: reservable: '101%' is out of range")]),
        (RATE, "reservable = 75", &[(3, "Uplink lan: reservable is a bare number, 75, without a unit")]),
        (RATE, "mtu = 67", &[(3, "Uplink lan: mtu: the number is out of range")]),
        (RATE, "depth = 32", &[(3, "Uplink lan: unknown key 'depth'")]),
        (
            RATE,
            "scheduler = \"deadline\"",
            &[(3, "Uplink lan: scheduler: deadline schedules requests to disks, but this device is a network link")],
        ),
        (
            RATE,
            "mclock.weight_floor = \"60%\"",
            &[(3, "Uplink lan: mclock.weight_floor: weight_floor is 60%; it must be from 0% to 50%")],
        ),
        (
            "[policy.p.net]",
            "[uplink.wan]\nnic = \"br0\"\n[policy.p.net]",
            &[(5, "Uplink wan: br0 is already used by Uplink lan")],
        ),
        (
            "[policy.p.net]",
            "[device.lan]\nbackend = \"null\"\n[policy.p.net]",
            &[(1, "Uplink lan: a device has this name")],
        ),
    ]);
}

const SOCKET: &str = "socket = \"/run/sluice/a-n.sock\"";
const TAP: &str = "tap = \"b-n\"";

#[test]
fn nics() {
    check(&[
        ("uplink = \"lan\"", "", &[(8, "NIC a/nic/n: uplink is missing")]),
        ("uplink = \"lan\"", "uplink = \"lna\"", &[(9, "NIC a/nic/n: uplink: there is no uplink 'lna'")]),
        (SOCKET, "", &[(8, "NIC a/nic/n: socket is missing, and so is tap")]),
        (SOCKET, "socket = \"/s\"\ntap = \"t\"", &[(11, "NIC a/nic/n: tap: the NIC already has a socket")]),
        (
            TAP,
            "tap = \"b-n\"\nqueues = 2",
            &[(14, "NIC b/nic/n: queues: it applies only to a socket, and the NIC has a tap")],
        ),
        (TAP, SOCKET, &[(13, "NIC b/nic/n: /run/sluice/a-n.sock is already used by NIC a/nic/n")]),
        (TAP, "tap = \"br0\"", &[(13, "NIC b/nic/n: br0 is already used by Uplink lan")]),
        (TAP, "tap = \"t\"\nmac = \"52:54\"", &[(14, "NIC b/nic/n: mac: '52:54' is not an Ethernet address")]),
        (
            TAP,
            "tap = \"t\"\nmac = \"53:54:00:00:00:01\"",
            &[(14, "NIC b/nic/n: mac: 53:54:00:00:00:01 is the address of a group of interfaces")],
        ),
        (TAP, "tap = \"t\"\nvlan = 4095", &[(14, "NIC b/nic/n: vlan: the number is out of range")]),
        (TAP, "tap = \"t\"\nmtu = 9000", &[(14, "NIC b/nic/n: mtu: 9000 is above the mtu of uplink lan, 1500")]),
        (TAP, "tap = \"t\"\nofloads = true", &[(14, "NIC b/nic/n: unknown key 'ofloads'")]),
        (
            TAP,
            "tap = \"t\"\naddresses = \"10.0.0.5\"",
            &[(14, "NIC b/nic/n: addresses must be a list of IP addresses, not text")],
        ),
        (
            TAP,
            "tap = \"t\"\naddresses = [\"10.0.0.5/24\", \"10.0.0/24\", \"10.0.0.5/33\", 5, \"fd00::5\"]",
            &[
                (14, "NIC b/nic/n: addresses: '10.0.0.5/24' has bits after its prefix"),
                (14, "NIC b/nic/n: addresses: '10.0.0/24' is not an IP address with a prefix"),
                (14, "NIC b/nic/n: addresses: '10.0.0.5/33': the prefix has more than 32 bits"),
                (14, "NIC b/nic/n: addresses: a whole number is not an IP address"),
            ],
        ),
    ]);
    let mac = "mac = \"52:54:00:12:34:56\"\n";
    let same = GOOD.replace("uplink = \"lan\"\n", &format!("uplink = \"lan\"\n{mac}"));
    let text = refused(&same);
    assert!(text.contains("NIC b/nic/n: mac 52:54:00:12:34:56 is already that of NIC a/nic/n on uplink lan"), "{text}");
    let in_vlans = |vlans: [u16; 2]| {
        let [a, b] = vlans.map(|vlan| format!("{mac}vlan = {vlan}\n"));
        let [before, between, behind] = GOOD.splitn(3, "uplink = \"lan\"\n").collect::<Vec<_>>().try_into().unwrap();
        format!("{before}uplink = \"lan\"\n{a}{between}uplink = \"lan\"\n{b}{behind}")
    };
    let text = refused(&in_vlans([20, 20]));
    assert!(text.contains("is already that of NIC a/nic/n on uplink lan in VLAN 20"), "{text}");
    parse("host.toml", &in_vlans([20, 30])).unwrap();
    let text = refused(&GOOD.replace("lan\"\ntap", "lna\"\ntap"));
    assert!(text.contains("did you mean 'lan'?"), "{text}");
}

const LIMIT: &str = "limit = \"600Mbit/s\"";

#[test]
fn rates_of_disks_are_rejected_with_a_word_on_bit_rates() {
    let requests = "a rate of requests, but the size of frames varies and the link carries bits";
    for to in ["limit = \"500 iops\"", "limit = \"500 iops@8KiB\"", "limit = { iops = \"500 iops\" }"] {
        assert_eq!(errors(LIMIT, to), [(5, format!("Policy p: net.limit: {requests}"))]);
    }
    let text = refused(&GOOD.replace(LIMIT, "reservation = \"500 iops\""));
    assert!(text.contains("hint: write a bit rate, for example \"200Mbit/s\""), "{text}");
    for key in ["iops", "read_limit", "idle_credit"] {
        let message = format!("Policy p: unknown key 'net.{key}'");
        assert_eq!(errors(LIMIT, &format!("{key} = 5")), [(5, message)]);
    }
}

#[test]
fn policies() {
    check(&[
        (LIMIT, "limit = 5", &[(5, "Policy p: net.limit is a bare number, 5, without a unit")]),
        (LIMIT, "limit = 0", &[(5, "Policy p: net.limit: 0 is not a limit")]),
        (LIMIT, "limit = \"none\"", &[(5, "Policy p: net.limit: 'none' is not a limit")]),
        (LIMIT, "reservation = \"0Mbit/s\"", &[(5, "Policy p: net.reservation: 0 is not a reservation")]),
        (
            LIMIT,
            "receive = { limit = \"5 iops\" }",
            &[(
                5,
                "Policy p: net.receive.limit: a rate of requests, but the size of frames varies and the link carries bits",
            )],
        ),
        (LIMIT, "receive = { weight = 0.001 }", &[(5, "Policy p: net.receive.weight: 0.001 is out of range")]),
        (LIMIT, "receive = { reservation = \"1Mbit/s\" }", &[(5, "Policy p: unknown key 'net.receive.reservation'")]),
        (LIMIT, "latency = { p99 = 5 }", &[(5, "Policy p: net.latency.p99 is a bare number, 5, without a unit")]),
        (LIMIT, "burst = 64", &[(5, "Policy p: net.burst is a bare number, 64, without a unit")]),
        (
            LIMIT,
            "burst = \"5ms\"",
            &[(5, "Policy p: net: a burst is what a limit lets through, and there is no limit")],
        ),
        (
            LIMIT,
            "limit = \"1Gbit/s\"\nburst = \"1s\"",
            &[(6, "Policy p: net: burst 1s at 1Gbit/s is more than 65535 full frames")],
        ),
        (
            LIMIT,
            "limit = \"600Mbit/s\"\nreservation = \"700Mbit/s\"",
            &[(6, "Policy p: net: reservation 700Mbit/s is above limit 600Mbit/s")],
        ),
        (
            LIMIT,
            "weight = \"none\"",
            &[(5, "Policy p: net: the policy has neither a reservation nor a weight, so frames would never be sent")],
        ),
        (
            "[policy.p.net]",
            "[policy.p]\nnet = 5\n[policy.q.net]",
            &[(5, "Policy p: net must be a table, not a whole number")],
        ),
    ]);
    let text = refused(&GOOD.replace(LIMIT, "limit = \"1Gbit/s\"\nburst = \"1s\""));
    assert!(text.contains("lower it to at most 806330us"), "{text}");
    // Exactly as much is accepted.
    let most = GOOD.replace(LIMIT, "limit = \"1Gbit/s\"\nburst = \"806330us\"");
    assert_eq!(parse("host.toml", &most).unwrap().vms["a"].net.transmit.burst, Some(65_535));
}

#[test]
fn reservations_above_what_may_be_reserved_are_rejected_with_the_arithmetic() {
    let reserve = |a: &str, b: &str| {
        let text = GOOD.replace(LIMIT, &format!("reservation = \"{a}\""));
        text + &format!("[vm.b.net]\nreservation = \"{b}\"\n")
    };
    assert_eq!(found(&reserve("500Mbit/s", "250Mbit/s")), (vec![], false));
    assert_eq!(
        refused(&reserve("500Mbit/s", "251Mbit/s")).lines().filter(|line| line.contains(": ")).collect::<Vec<_>>(),
        [
            "error: Uplink lan: VM b reserves 251Mbit/s, 25.1% of the uplink by bytes (rate = 1Gbit/s); 1 VM already reserves \
             50%, with this one 75.1%; at most 75% can be reserved because reservable is 75%: short by 0.1% (already \
             reserved: a 50% by bytes)",
            "   = hint: lower it to at most 250Mbit/s, place the VM on another uplink, or set a higher reservable in [uplink.lan]",
        ]
    );
    let none = refused(&reserve("500Mbit/s", "250Mbit/s").replace(RATE, ""));
    assert!(none.contains("Uplink lan: VM a reserves 500Mbit/s, but the uplink has no rate"), "{none}");
    let off = reserve("500Mbit/s", "251Mbit/s").replace(RATE, "rate = \"1Gbit/s\"\nadmission = \"off\"");
    let (messages, refused) = found(&off);
    assert!(!refused && messages[0].starts_with("Uplink lan: VM b reserves 251Mbit/s"), "{messages:?}");
}

#[test]
fn nics_reserve_at_most_what_their_vm_does() {
    let with = |vm: &str, nic: &str| {
        GOOD.replace(LIMIT, &format!("reservation = \"{vm}\"")).replacen(
            SOCKET,
            &format!("{SOCKET}\nreservation = \"{nic}\""),
            1,
        )
    };
    assert_eq!(found(&with("100Mbit/s", "100Mbit/s")), (vec![], false));
    let text = refused(&with("100Mbit/s", "101Mbit/s"));
    assert!(
        text.contains("VM a on uplink lan: its NICs reserve 101Mbit/s together, but the VM only 100Mbit/s\n"),
        "{text}"
    );
    let second = "\n[vm.a.nic.o]\nuplink = \"lan\"\ntap = \"a-o\"\n[vm.b.nic.n]";
    let text = refused(&with("100Mbit/s", "99Mbit/s").replace("\n[vm.b.nic.n]", second));
    assert!(text.contains("but the VM only 100Mbit/s, of which weight_floor keeps 2% for its NICs"), "{text}");
}

#[test]
fn fields_that_the_scheduler_of_an_uplink_does_not_enforce_are_rejected() {
    let netback = GOOD.replace(RATE, "rate = \"1Gbit/s\"\nscheduler = \"netback\"");
    assert_eq!(found(&netback), (vec![], false));
    let text = refused(&netback.replace(LIMIT, "weight = 200"));
    assert!(
        text.contains(
            "Policy p: weight is not enforced by netback, the scheduler of uplink lan: no guarantee is given"
        ),
        "{text}"
    );
    assert!(
        text.contains("hint: enforced by mclock, wrr with prioritize = \"on\"; or set allow_unenforced = true"),
        "{text}"
    );
    let (messages, refused) = found(&netback.replace(LIMIT, "weight = 200\nallow_unenforced = true"));
    assert!(!refused && messages.len() == 1, "{messages:?}");
    let (messages, refused) = found(&netback.replacen(SOCKET, &format!("{SOCKET}\nlimit = \"1Mbit/s\""), 1));
    assert!(
        refused
            && messages
                == [
                    "NIC a/nic/n: limit of a NIC inside a VM is not enforced by netback, the scheduler of uplink lan: no guarantee is given"
                ],
        "{messages:?}"
    );
    assert_eq!(found(&GOOD.replace(LIMIT, "receive = { weight = 200 }")), (vec![], false));
    // It is the uplink that cuts segments by it.
    assert_eq!(found(&GOOD.replace(LIMIT, "latency = { p99 = \"1ms\" }")), (vec![], false));
}

#[test]
fn a_policy_that_has_no_effect_is_reported() {
    let (messages, refused) = found("[vm.a.net]\nlimit = \"1Mbit/s\"\n");
    let expected = ["VM a has neither a volume nor a NIC", "VM a: net has no effect, because the VM has no NIC"];
    assert_eq!((messages.iter().map(String::as_str).collect::<Vec<_>>(), refused), (expected.to_vec(), false));
    let second = "[uplink.wan]\ntap = \"up0\"\n[vm.a.nic.o]\nuplink = \"wan\"\ntap = \"a-o\"\n";
    let (messages, _) = found(&(GOOD.to_owned() + second));
    assert_eq!(messages, ["VM a has NICs on 2 uplinks: lan, wan"]);
}
