//! Wrong arguments, one of each kind: the error says what to write.

use std::path::Path;

use crate::common::{Daemon, MIB, Place, run, sluice};

/// What an operator types, and what the answer says to write or to do. `$HOST` is the daemon's host file, `$FOLDER` its folder.
const WRONG: &[(&[&str], &str)] = &[
    // A word of another program, a typo, capital letters, a command in the wrong place.
    (&["ps"], "Write: sluice top, or sluice get vms"),
    (&["list"], "Write: sluice get vms, sluice get volumes or sluice get devices"),
    (&["show", "a"], "Write: sluice describe NAME"),
    (&["logs"], "Write: sluice events"),
    (&["reload"], "Write: sluice apply FILE"),
    (&["stop"], "Write: sluice detach VM for one VM; systemctl stop sluice"),
    (&["statsu"], "'status'"),
    (&["Status"], "Write: sluice status"),
    (&["frobnicate"], "`sluice --help` lists"),
    (&["history", "a"], "Write: sluice get history"),
    (&["get", "status"], "Write: sluice status"),
    (&["get", "vm"], "Write: sluice get vms"),
    (&["get", "nics"], "Write: sluice get volumes"),
    (&["get", "a"], "Write: what to list: vms, volumes,"),
    // A missing argument, one too many, the wrong order.
    (&["set", "a"], "For example:\n  sluice set db1 limit=\"5000 iops\""),
    (&["resize", "a/v"], "For example:\n  sluice resize db1/data 20GiB"),
    (&["get", "history"], "For example:\n  sluice get history db1"),
    (&["why", "a", "--since"], "For example:\n  sluice why db1 --since \"yesterday 22:00\""),
    (&["status", "a"], "Write: sluice describe NAME, or sluice why VM"),
    (&["why", "a", "b"], "Write: the command with one name alone, once for each"),
    (&["resize", "a/v", "5", "GiB"], "in one word as in 20GiB"),
    (&["resize", "5GiB", "a/v"], "the new size follows the volume"),
    (&["export", "a", "qemu-args", "$HOST"], "possible values: qemu-args"),
    // An option of another program, one twice, two that exclude each other.
    (&["get", "vms", "--json"], "Write: -o json"),
    (&["check", "--config", "$HOST"], "the host file without an option"),
    (&["set", "a", "--limit=5"], "KEY=VALUE without dashes"),
    (&["set", "a", "weight=3", "--persit"], "'--persist'"),
    (&["set", "a", "weight=3", "--for", "1h", "--for", "2h"], "Write: it once"),
    (&["set", "a", "weight=3", "--for", "1h", "--persist"], "Write: only one of them"),
    (&["events", "-n", "-5"], "a number or a time above zero"),
    (&["events", "-n", "many"], "Write: --limit <NUMBER>: The latest ones"),
    (&["top", "--filter"], "Write: --filter <TEXT>: Only VMs with this text"),
    (&["events", "--colour"], "Write: one of its options: --follow, --since <TIME>"),
    (&["doctor", "--fix"], "Write: the command without it"),
    (&["doctor", "--save"], "Write: the command without it"),
    (&["set", "a", "weight=3", "--save"], "Write: --persist"),
    (&["--socket", "none", "status"], "after the command, as in sluice status --socket <PATH>"),
    // A value without a unit, with a wrong one, out of range, empty, twice.
    (&["set", "a", "limit=500"], "write for example"),
    (&["set", "a", "limit=500 MB"], "write for example"),
    (&["set", "a", "limit=0"], "for no limit write \"unlimited\""),
    (&["set", "a", "limit="], "write for example"),
    (&["set", "a", "limit", "=", "5"], "write KEY=VALUE"),
    (&["set", "a", "limmit=5 iops"], "did you mean 'limit'?"),
    (&["set", "a", "weight=1", "weight=2"], "leave one of them out"),
    (&["resize", "a/v", "5G"], "write for example \"5GiB\""),
    (&["resize", "a/v", "5"], "write for example \"5 MiB\""),
    (&["events", "--since", "8"], "write for example 8m, 8h or 8days"),
    (&["events", "--since", "monday"], "write for example 2h, 08:00"),
    (&["set", "a", "weight=3", "--for", "10"], "write for example 10m"),
    // A name that is not there, or is that of something else.
    (&["set", "b", "weight=3"], "there are a"),
    (&["set", "", "weight=3"], "write VM, VM/VOLUME"),
    (&["set", "disk", "weight=3"], "disk is a device or an uplink: its keys are changed in the host file"),
    (&["set", "gold", "weight=3"], "policy/gold"),
    (&["set", "a/w", "weight=3"], "it has v"),
    (&["why", "disk"], "`sluice describe disk`"),
    (&["why", "a/v"], "`sluice why a`"),
    (&["get", "vms", "b"], "there are a"),
    (&["get", "clients", "b"], "there are a/v"),
    (&["resize", "a", "5GiB"], "name one of its volumes: v"),
    // A file that is missing, a folder, not of its kind.
    (&["check", "none.toml"], "correct its name or its folder"),
    (&["check", "$FOLDER"], "name a file in it"),
    (&["import", "libvirt-xml", "none.xml"], "name a file that this user may read"),
    (&["man", "none"], "name a folder that exists"),
    (&["status", "--socket", "none"], "systemctl start sluice"),
];

#[test]
fn an_error_of_arguments_says_what_to_write() {
    let place = Place::new();
    let policy = "[policy.gold]\nweight = 300\n[vm.a]\npolicy = \"gold\"\n";
    let host =
        place.control_keys() + &place.device("") + policy + &place.volume("a", "v", &place.image("a.img", MIB), "");
    let daemon = Daemon::serve(&place, &host);
    let file = place.write("host.toml", &host);
    for (arguments, remedy) in WRONG {
        let file = file.to_str().unwrap();
        let folder = Path::new(file).parent().unwrap().to_str().unwrap();
        let arguments: Vec<String> =
            arguments.iter().map(|word| word.replace("$HOST", file).replace("$FOLDER", folder)).collect();
        let ended =
            run(sluice().args(&arguments).env("SLUICE_SOCKET", place.socket("control")).current_dir(place.folder()));
        assert!(!ended.status.success(), "{arguments:?} succeeded");
        assert!(ended.stderr.contains(remedy), "{arguments:?} does not say {remedy:?}:\n{}", ended.stderr);
    }
    daemon.kill();
}

#[test]
fn capitals_and_a_time_of_day_were_rejected() {
    let place = Place::new();
    let host = place.control_keys() + &place.device("") + &place.volume("a", "v", &place.image("a.img", MIB), "");
    let daemon = Daemon::serve(&place, &host);
    let ask = |arguments: &[&str]| run(sluice().args(arguments).env("SLUICE_SOCKET", place.socket("control"))).ok();
    assert!(ask(&["set", "a", "limit=2000 IOPS"]).contains("2000"));
    for since in ["00:00", "-2h", "2h ago", "yesterday", "yesterday 08:00", "today", "2026-01-01T00:00:00Z"] {
        ask(&["events", "--since", since]);
        ask(&["get", "history", "a", "--since", since]);
        ask(&["why", "a", "--since", since]);
    }
    daemon.kill();
}
