//! `sluice check --host`, and a start that fails: everything that is wrong with the host is reported at once.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, tool};
use serde_json::Value;

fn check(place: &Place, host: &str) -> Ended {
    let file = place.write("host.toml", host);
    run(sluice().args(["-o", "json", "check", "--host"]).arg(file))
}

/// Returns the findings as `LEVEL ABOUT: TEXT`, without those that are in order.
fn findings(ended: &Ended) -> Vec<String> {
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let line = |one: &Value| {
        let text = |key: &str| one[key].as_str().unwrap().to_owned();
        format!("{} {}: {}", text("level"), text("about"), text("text"))
    };
    found["findings"].as_array().unwrap().iter().filter(|one| one["level"] != "ok").map(line).collect()
}

#[track_caller]
fn assert_all(found: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(found.contains(wanted), "{wanted} is missing in:\n{found}");
    }
}

/// Returns the names of all files below a folder.
fn tree(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        names.insert(path.display().to_string());
        if path.is_dir() {
            names.extend(tree(&path));
        }
    }
    names
}

/// Returns a host file with one fault of each kind, and one volume without a fault.
fn faulty(place: &Place) -> String {
    let (good, odd) = (place.image("good.img", MIB), place.image("odd.img", MIB + 100));
    let (short, qcow2) = (place.image("short.img", MIB), place.write("new.qcow2", noise(1, 4096)));
    std::fs::write(&qcow2, [b"QFI\xfb".as_slice(), &[0; 8188]].concat()).unwrap();
    std::fs::write(place.socket("f-v.sock"), "not a socket").unwrap();
    let nobody = place.volume("e", "v", &place.image("e.img", MIB), "");
    let nobody = nobody.replace(" }", ", owner = \"no-such-user\", group = \"no-such-group\" }");
    place.device("")
        + &place.volume("good", "v", &good, "")
        + &place.volume("a", "v", &place.file("missing.img"), "")
        + &place.volume("b", "v", &odd, "")
        + &place.volume("c", "v", &short, "size = \"2MiB\"")
        + &place.volume("d", "v", &qcow2, "")
        + &nobody
        + &place.volume("f", "v", &place.image("f.img", MIB), "")
        + &place.volume("g", "v", &place.image("g.img", MIB), "").replace("/g-v.sock", "/no/folder/g.sock")
}

const FAULTS: [&str; 7] = [
    "VM a, volume v: Cannot open",
    "VM b, volume v: Volume",
    "VM c, volume v: Volume",
    "VM d, volume v: Volume",
    "user no-such-user does not exist",
    "f-v.sock exists and is not a socket",
    "create its folder, and let this user write there",
];

#[test]
fn a_start_reported_only_the_first_of_many_faults() {
    let place = Place::new();
    let host = faulty(&place);
    let error = Daemon::refused(&place, &host);
    assert_all(&error, &FAULTS);
    assert_eq!(error.lines().filter(|line| line.starts_with("error: ")).count(), FAULTS.len(), "{error}");
    assert!(!place.volume_socket("good", "v").exists());
    // Those of the state directory and the control socket too.
    let state = place.write("state", "a file");
    let control = place.socket("missing/control");
    let keys = format!("[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n", control.display(), state.display());
    let error = Daemon::refused(&place, &(keys + &host));
    assert_all(&error, &FAULTS);
    assert_all(&error, &["State directory", "missing/control"]);
}

#[test]
fn a_check_of_the_host_reports_every_fault_and_changes_nothing() {
    let place = Place::new();
    let host = faulty(&place);
    place.write("host.toml", &host);
    let before = (tree(place.folder()), tree(place.socket("x").parent().unwrap()));
    let ended = check(&place, &host);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let errors: Vec<String> = findings(&ended).into_iter().filter(|line| line.starts_with("error ")).collect();
    assert_all(&errors.join("\n"), &FAULTS);
    assert_eq!(errors.len(), FAULTS.len(), "{errors:#?}");
    assert_eq!((tree(place.folder()), tree(place.socket("x").parent().unwrap())), before);
    // Without --host only the file is read.
    let file = place.file("host.toml");
    run(sluice().arg("check").arg(&file)).ok();
    let table = run(sluice().args(["check", "--host"]).arg(&file));
    assert_eq!(table.code(), Some(1));
    assert_all(&table.stdout, &["out-of-service (volume a/v): would be out of service: VM a, volume v: Cannot open"]);
}

#[test]
fn an_account_without_a_user_or_group_was_found_by_the_daemon_alone() {
    let place = Place::new();
    let access = "[daemon.access]\nchange = [\"group:no-such-group\", \"user:root\"]\n";
    let host =
        place.control_keys() + access + &place.device("") + &place.volume("a", "v", &place.image("a.img", MIB), "");
    let ended = check(&place, &host);
    let expected = "warning : group no-such-group does not exist on this host, so it does not have the role change";
    assert_eq!(findings(&ended), [expected]);
    ended.ok();
}

#[test]
fn a_running_service_was_said_to_have_no_state_directory_because_the_shell_had_none() {
    let place = Place::new();
    let control = format!("[daemon]\ncontrol = \"{}\"\n", place.socket("control").display());
    let host = control + &place.device("") + &place.volume("a", "v", &place.image("a.img", MIB), "");
    let says_so = |ended: &Ended| findings(ended).iter().any(|line| line.contains("There is no state directory"));
    let is_packaged = std::path::Path::new("/var/lib/sluice").is_dir();
    assert_eq!(says_so(&check(&place, &host)), !is_packaged);
    let daemon = Daemon::serve(&place, &host);
    assert!(!says_so(&check(&place, &host)));
    daemon.kill();
}

#[test]
fn what_a_running_daemon_holds_is_no_fault() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.control_keys() + &place.device("") + &place.volume("a", "v", &image, "");
    let fresh = check(&place, &host);
    assert_eq!(findings(&fresh), [""; 0], "nothing to report before the first start");
    fresh.ok();
    assert!(!place.file("state").exists());
    let daemon = Daemon::serve(&place, &host);
    let ended = check(&place, &host);
    let found = findings(&ended);
    ended.ok();
    assert_all(
        &found.join("\n"),
        &["not known whether they would be held back", "A daemon listens there", "is locked by", "a-v.sock is in use"],
    );
    assert!(found.iter().all(|line| line.starts_with("note ")), "{found:#?}");
    daemon.kill();
    // Another process that holds a volume is a fault.
    let other = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &image, "")));
    let ended = check(&place, &host);
    let found = findings(&ended);
    assert_eq!(ended.code(), Some(1));
    assert!(
        found.iter().any(|line| line.starts_with("error volume a/v: ") && line.contains("is locked by")),
        "{found:#?}"
    );
    drop(other);
    // A volume that the state holds back, and a state that cannot be read.
    std::fs::write(place.file("backup"), noise(4, MIB as usize)).unwrap();
    std::fs::rename(place.file("backup"), &image).unwrap();
    let held = findings(&check(&place, &host));
    assert!(held.iter().any(|line| line.starts_with("error volume a/v: would be held back: ")), "{held:#?}");
    place.write("state/state.json", "{");
    let corrupt = findings(&check(&place, &host));
    assert!(corrupt.iter().any(|line| line.contains("is corrupt")), "{corrupt:#?}");
}

#[test]
fn a_check_of_the_host_looked_at_other_volumes_than_a_start() {
    let place = Place::new();
    let host = place.control_keys()
        + "[policy.gold]\nweight = 7\n"
        + &place.device("")
        + &place.volume("a", "v", &place.image("a.img", MIB), "")
        + &place.volume("b", "v", &place.image("b.img", MIB), "");
    let daemon = Daemon::serve(&place, &host);
    let source = format!("source={}", place.image("w.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("c", "w").display());
    let attach = ["attach", "c/w", "device=disk", &source, &export, "policy=gold", "--socket"];
    run(sluice().args(attach).arg(place.socket("control"))).ok();
    assert_eq!(daemon.terminate().code(), Some(0));
    let renamed = host.replace("policy.gold", "policy.silver");
    let held = |ended: &Ended| {
        let found = findings(ended);
        found.into_iter().filter(|line| line.contains("would be held back: ")).collect::<Vec<_>>()
    };
    let found = held(&check(&place, &renamed));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_all(&found[0], &["error volume c/w: ", "the change made at run time c/w = attached is not valid"]);
    // Of a damaged state a start holds back what it does not know.
    let state = place.file("state/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("/a.img\"", "/a.imx\"")).unwrap();
    let ended = check(&place, &host);
    let found = held(&ended);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_all(&found[0], &["error volume a/v: ", "what it last served is not known"]);
    assert_all(&findings(&ended).join("\n"), &["state.json is corrupt"]);
    // So does the daemon.
    let daemon = Daemon::serve(&place, &host);
    let held = daemon.accounts().0["held_back"].clone();
    assert_eq!((held[0]["volume"].clone(), held.as_array().unwrap().len()), ("a/v".into(), 1));
}

#[test]
fn the_doctor_looks_at_this_host_without_a_daemon() {
    let place = Place::new();
    let file = place.write("host.toml", place.device("") + &place.volume("a", "v", &place.image("a.img", MIB), ""));
    for arguments in [vec!["doctor"], vec!["doctor", file.to_str().unwrap()]] {
        let ended = run(sluice().args(["-o", "json"]).args(&arguments));
        let found: Value =
            serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
        assert_eq!(ended.code(), Some(i32::from(found["ok"] == false)), "{found}");
        let of = |one: &Value| one["check"].as_str().unwrap().to_owned();
        let checks: BTreeSet<String> = found["findings"].as_array().unwrap().iter().map(of).collect();
        let all = [
            "kernel", "io_uring", "jail", "limits", "clock", "disk", "cgroup", "guests", "network", "sockets", "space",
        ];
        assert_eq!(checks, all.map(str::to_owned).into());
        let table = run(sluice().args(&arguments)).stdout;
        assert!(all.iter().all(|name| table.contains(name)), "{table}");
    }
}

#[test]
fn a_check_of_the_host_accepted_an_address_of_metrics_that_another_program_holds() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = format!("[daemon]\nmetrics = \"{}\"\n", taken.local_addr().unwrap());
    let host = metrics + &place.device("") + &place.volume("a", "v", &place.image("a.img", MIB), "");
    let ended = check(&place, &host);
    assert_eq!(ended.code(), Some(1));
    let errors: Vec<String> = findings(&ended).into_iter().filter(|line| line.starts_with("error ")).collect();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_all(&errors[0], &["error metrics 127.0.0.1:", "in use"]);
    drop(taken);
    let later = findings(&check(&place, &host));
    assert!(!later.iter().any(|line| line.contains("metrics")), "{later:#?}");
}

#[test]
fn systemd_accepts_the_drop_in_for_a_host_file() {
    let place = Place::new();
    let image = place.image("a b%.img", MIB);
    let host = place.device("") + &place.volume("a", "v", &image, "");
    let file = place.write("host.toml", &host);
    let drop_in = run(sluice().env("SLUICE_SOCKET", "/own-socket/control").args(["check", "--unit"]).arg(file)).ok();
    assert!(!drop_in.contains("own-socket"), "the service has another environment: {drop_in}");
    let folder = image.parent().unwrap().display();
    assert_all(&drop_in, &["ProtectSystem=strict\n", "DeviceAllow=\n", &format!("ReadWritePaths=-{folder}\n")]);
    let unit =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/systemd/sluice.service")).unwrap();
    let unit = unit.replace("/usr/bin/sluice", env!("CARGO_BIN_EXE_sluice"));
    let unit = place.write("sluice.service", &unit);
    let own = unit.with_extension("service.d");
    std::fs::create_dir(&own).unwrap();
    let verify = || run(tool("systemd-analyze", "systemd").args(["verify", "--man=no"]).arg(&unit));
    std::fs::write(own.join("10-host.conf"), drop_in.replace("strict", "wrong")).unwrap();
    let verified = verify();
    assert!(verified.stderr.contains("10-host.conf:6"), "the drop-in is read: {}", verified.stderr);
    std::fs::write(own.join("10-host.conf"), &drop_in).unwrap();
    let verified = verify();
    assert!(!verified.stderr.contains("10-host.conf"), "{}", verified.stderr);
    verified.ok();
}
