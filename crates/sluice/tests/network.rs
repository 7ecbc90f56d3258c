//! Uplinks and NICs of the daemon, in a network namespace of its own: it starts, changes and removes them like devices and volumes.

use crate::common::{Daemon, Ended, LONG, Place, run, sluice, tool, until};
use serde_json::{Value, json};
use sluice_client::vhost::Session;

/// VM `a` has a TAP, VM `b` a socket.
fn host(place: &Place) -> String {
    let socket = place.socket("b-eth0");
    format!(
        "{}[uplink.lan]\ntap = \"up0\"\nrate = \"1Gbit/s\"\n[vm.a.nic.eth0]\nuplink = \"lan\"\ntap = \"a0\"\n\
         [vm.b.nic.eth0]\nuplink = \"lan\"\nsocket = \"{}\"\n",
        place.control_keys(),
        socket.display()
    )
}

fn serve(place: &Place, host: &str) -> Daemon {
    Daemon::serve_by(place, host, |command| {
        let mut alone = tool("unshare", "util-linux");
        alone.arg("--net").arg(command.get_program()).args(command.get_args());
        alone
    })
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn answer(place: &Place, verb: &[&str]) -> Value {
    serde_json::from_str(&ask(place, verb).ok()).unwrap()
}

/// Names of the interfaces in the daemon's namespace, apart from its loopback.
fn interfaces(daemon: &Daemon) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{}/net/dev", daemon.pid())).unwrap();
    let names = text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    let mut names: Vec<String> = names.filter(|name| name != "lo").collect();
    names.sort();
    names
}

#[test]
fn a_nic_is_served_changed_attached_and_detached() {
    let place = Place::new();
    let daemon = serve(&place, &host(&place));
    assert_eq!(interfaces(&daemon), ["a0", "up0"]);
    let vmm = Session::connect(&place.socket("b-eth0"), LONG).unwrap();
    let features = vmm.features().unwrap();
    assert_eq!(features >> 5 & 1, 1, "it is a NIC with an address: {features:x}");
    let set = answer(&place, &["set", "a", "net.limit=100Mbit/s", "net.burst=5ms"]);
    let after = &set["after"]["net"];
    assert_eq!(
        (&after["limit_bytes_per_second"], &after["burst_time_us"]),
        (&json!(12_500_000), &json!(5000)),
        "{set}"
    );
    assert_eq!(set["before"]["net"]["limit_bytes_per_second"], Value::Null);
    let set =
        answer(&place, &["set", "b/nic/eth0", "weight=300", "receive.limit=200Mbit/s", "addresses=[\"10.0.0.5/32\"]"]);
    let after = &set["after"];
    assert_eq!((&after["policy"]["weight"], &after["addresses"]), (&json!(300.0), &json!(["10.0.0.5/32"])), "{set}");
    assert_eq!(after["policy"]["receive_limit_bytes_per_second"], 25_000_000);
    answer(&place, &["attach", "a/nic/eth1", "uplink=lan", "tap=a1", "vlan=20"]);
    assert_eq!(interfaces(&daemon), ["a0", "a1", "up0"]);
    answer(&place, &["attach", "c/nic/eth0", "uplink=lan", "tap=c0", "vm.net.reservation=500Mbit/s"]);
    assert!(ask(&place, &["status"]).ok().contains("\"device\":\"lan\""));
    let shown = || {
        let all = answer(&place, &["get", "volumes"]);
        let all = all["volumes"].as_array().unwrap();
        all.iter().map(|nic| format!("{}/{}", nic["vm"].as_str().unwrap(), nic["volume"].as_str().unwrap())).collect()
    };
    // polls: the monitor looks at the uplink each second.
    until("each NIC is shown", || {
        let all: Vec<String> = shown();
        all == ["a/nic/eth0", "a/nic/eth1", "b/nic/eth0", "c/nic/eth0"]
    });
    answer(&place, &["detach", "a/nic/eth1"]);
    answer(&place, &["detach", "c"]);
    until("the TAPs are gone", || interfaces(&daemon) == ["a0", "up0"]);
}

#[test]
fn a_change_of_nics_that_cannot_be_made_changes_nothing() {
    let place = Place::new();
    let host = host(&place);
    let daemon = serve(&place, &host);
    let refused = ask(&place, &["set", "a", "net.reservation=800Mbit/s"]).failed();
    let arithmetic =
        "Uplink lan: VM a reserves 800Mbit/s, 80% of the uplink by bytes (rate = 1Gbit/s); at most 75% can be reserved";
    assert!(refused.contains(arithmetic), "{refused}");
    let refused = ask(&place, &["set", "a", "net.limit=500 iops"]).failed();
    assert!(refused.contains("a rate of requests") && refused.contains("write a bit rate"), "{refused}");
    let refused = ask(&place, &["attach", "a/nic/eth0", "uplink=lan", "tap=a1"]).failed();
    assert!(refused.contains("a/nic/eth0 exists already"), "{refused}");
    let refused = ask(&place, &["detach", "a/nic/eth9"]).failed();
    assert!(refused.contains("VM a has no NIC eth9; it has eth0"), "{refused}");
    let refused = ask(&place, &["attach", "a/nic/eth1", "uplink=lan", "tap=up0"]).failed();
    assert!(refused.contains("NIC a/nic/eth1: up0 is already used by Uplink lan"), "{refused}");
    let log = daemon.reload(&host.replace("rate = ", "mtu = 9000\nrate = "));
    assert!(log.contains("Uplink lan: its mtu cannot change while it runs"), "{log}");
    let log = daemon.reload(&host.replace("up0", "up1"));
    assert!(log.contains("Uplink lan: its interface cannot change while it runs"), "{log}");
    assert_eq!(interfaces(&daemon), ["a0", "up0"]);
}

#[test]
fn a_reload_starts_changes_and_removes_uplinks() {
    let place = Place::new();
    let host = host(&place);
    let daemon = serve(&place, &host);
    daemon.accept(&host.replace("1Gbit/s", "2Gbit/s"));
    let reserve = answer(&place, &["set", "a", "net.reservation=1.5Gbit/s"]);
    assert_eq!(reserve["after"]["net"]["reservation_bytes_per_second"], 187_500_000);
    answer(&place, &["reset", "a"]);
    let second = "[uplink.wan]\ntap = \"up1\"\nscheduler = \"wrr\"\n[vm.a.nic.eth1]\nuplink = \"wan\"\ntap = \"a1\"\n";
    daemon.accept(&(host.clone() + second));
    assert_eq!(interfaces(&daemon), ["a0", "a1", "up0", "up1"]);
    let only_b = host.replace("[vm.a.nic.eth0]\nuplink = \"lan\"\ntap = \"a0\"\n", "");
    daemon.accept(&only_b);
    until("the interfaces of VM a and of the second uplink are gone", || interfaces(&daemon) == ["up0"]);
    assert!(place.socket("b-eth0").exists());
    // The socket is another one, and the TAP of the bridge's port stays.
    let moved = place.socket("moved");
    daemon.accept(&only_b.replace(&place.socket("b-eth0").display().to_string(), &moved.display().to_string()));
    until("the first socket is gone", || !place.socket("b-eth0").exists());
    drop(Session::connect(&moved, LONG).unwrap());
}

#[test]
fn an_uplink_whose_interface_cannot_be_used_is_rejected_with_what_to_do() {
    let place = Place::new();
    let file = place.write("host.toml", host(&place).replace("tap = \"up0\"", "bridge = \"lo\""));
    let mut alone = tool("unshare", "util-linux");
    let ended = run(alone.arg("--net").arg(sluice().get_program()).args(["serve", "--strict"]).arg(file));
    assert!(ended.stderr.contains("Uplink lan: lo is not a bridge; create one with: "), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(1));
    // The same is found without a daemon, with everything else.
    let check = || {
        let mut alone = tool("unshare", "util-linux");
        run(alone.arg("--net").arg(sluice().get_program()).args(["check", "--host"]).arg(place.file("host.toml")))
    };
    let found = check();
    assert!(found.code() == Some(1) && found.stdout.contains("lo is not a bridge"), "{}", found.stdout);
    // One that may come later is named too, although the daemon would start.
    place.write("host.toml", host(&place).replace("tap = \"up0\"", "bridge = \"br9\""));
    let found = check();
    assert!(found.stdout.contains("There is no interface br9"), "{}", found.stdout);
}

#[test]
fn a_nic_attached_for_good_is_in_a_drop_in_and_there_after_a_restart() {
    let place = Place::new();
    let host = host(&place);
    let daemon = serve(&place, &host);
    answer(&place, &["attach", "a/nic/eth1", "uplink=lan", "tap=a1", "limit=10Mbit/s", "--persist"]);
    answer(&place, &["set", "a", "net.limit=100Mbit/s", "--persist"]);
    daemon.accept(&host);
    assert_eq!(interfaces(&daemon), ["a0", "a1", "up0"]);
    drop(daemon);
    let daemon = serve(&place, &host);
    assert_eq!(interfaces(&daemon), ["a0", "a1", "up0"]);
    let set = answer(&place, &["set", "a/nic/eth1", "weight=200", "--until-restart"]);
    let (before, vm) = (&set["before"]["policy"], answer(&place, &["set", "a", "net.weight=200", "--until-restart"]));
    assert_eq!(before["limit_bytes_per_second"], 1_250_000, "{set}");
    assert_eq!(vm["before"]["net"]["limit_bytes_per_second"], 12_500_000, "{vm}");
}

/// Firecracker, for example, opens a TAP by its name: the daemon must not hold that end of it.
#[test]
fn the_tap_of_a_vmm_is_left_to_it() {
    let place = Place::new();
    let daemon = serve(&place, &host(&place));
    let inside = |arguments: &[&str]| {
        let mut inside = tool("nsenter", "util-linux");
        inside.args(["--net", "--target", &daemon.pid().to_string(), "ip"]).args(arguments);
        run(&mut inside)
    };
    inside(&["tuntap", "add", "vmm0", "mode", "tap", "vnet_hdr"]).ok();
    answer(&place, &["attach", "a/nic/eth1", "uplink=lan", "tap=vmm0"]);
    // A TAP that nobody holds has no carrier.
    let link = |name: &str| inside(&["link", "show", name]).ok();
    assert!(link("vmm0").contains("NO-CARRIER,") && link("vmm0").contains(",UP"), "{}", link("vmm0"));
    assert!(link("a0").contains("LOWER_UP"), "{}", link("a0"));
    answer(&place, &["detach", "a/nic/eth1"]);
    assert_eq!(interfaces(&daemon), ["a0", "up0", "vmm0"], "it is not the daemon's");
}

#[test]
fn a_file_in_place_of_the_socket_of_one_nic_kept_every_vm_from_its_network() {
    let place = Place::new();
    std::fs::write(place.socket("b-eth0"), "not a socket").unwrap();
    let daemon = serve(&place, &host(&place));
    assert_eq!(interfaces(&daemon), ["a0", "up0"], "the other NIC and the uplink are served");
    let status = ask(&place, &["status"]);
    let found: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((&found["out_of_service"], status.code()), (&json!(["b/nic/eth0"]), Some(6)), "{found}");
    let reason = found["volumes_out_of_service"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("is not a socket"), "{reason}");
    answer(&place, &["set", "b", "net.limit=100Mbit/s"]);
    std::fs::remove_file(place.socket("b-eth0")).unwrap();
    daemon.stderr().with("NIC is in service again");
    assert_eq!(answer(&place, &["status"])["out_of_service"], json!([]));
    let vmm = Session::connect(&place.socket("b-eth0"), LONG).unwrap();
    vmm.features().unwrap();
}

#[test]
fn an_override_that_collides_with_the_file_kept_every_vm_from_starting() {
    let place = Place::new();
    let nic = |vm: &str, vlan: &str| format!("[vm.{vm}.nic.eth0]\nmac = \"52:54:00:00:00:01\"\nvlan = {vlan}\n");
    let with = |of_a: &str| {
        let host = host(&place).replace("[vm.a.nic.eth0]\n", &nic("a", of_a));
        host.replace("[vm.b.nic.eth0]\n", &nic("b", "6"))
    };
    let daemon = serve(&place, &with("5"));
    answer(&place, &["set", "b/nic/eth0", "vlan=7"]);
    assert_eq!(daemon.terminate().code(), Some(0));
    let daemon = serve(&place, &with("7"));
    daemon.stderr().with("Override set aside");
    assert_eq!(interfaces(&daemon), ["a0", "up0"]);
    let status: Value = serde_json::from_str(&ask(&place, &["status"]).stdout).unwrap();
    assert_eq!(status["held_back"][0]["volume"], "b/nic/eth0", "in VLAN 6 it would be in another network: {status}");
    assert!(!place.socket("b-eth0").exists());
    // A file that allows it puts it in force again.
    daemon.accept(&with("5"));
    assert_eq!(answer(&place, &["status"])["held_back"], json!([]));
    drop(Session::connect(&place.socket("b-eth0"), LONG).unwrap());
    let overrides = answer(&place, &["get", "overrides"]);
    assert_eq!(
        (&overrides["overrides"][0]["value"], &overrides["overrides"][0]["set_aside"]),
        (&json!(7), &json!(false))
    );
}
