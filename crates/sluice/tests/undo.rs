//! Every change says how long it holds and what undoes it, and the commands that it names bring back what was in force.

use crate::common::{Daemon, Ended, MIB, Place, run, sluice, tool};
use serde_json::Value;

fn host(place: &Place) -> String {
    let image = place.image("a.img", 4 * MIB);
    place.control_keys()
        + &place.device("capacity = \"1000 iops@8KiB\"")
        + "[policy.gold]\nweight = 300\n[vm.a]\nlimit = \"500 iops\"\n"
        + &place.volume("a", "v", &image, "size = \"2MiB\"")
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(place: &Place, verb: &[&str]) -> Value {
    serde_json::from_str(&ask(place, verb).ok()).unwrap()
}

/// Returns what differs from the file: name, value, and whether it ends by itself.
fn overrides(place: &Place) -> Vec<String> {
    let all = json(place, &["get", "overrides"]);
    let word = |one: &Value, key: &str| one[key].as_str().map_or_else(|| one[key].to_string(), str::to_owned);
    let lasts = |one: &Value| if word(one, "until").ends_with('Z') { "a time".to_owned() } else { word(one, "until") };
    let all = all["overrides"].as_array().unwrap().iter();
    all.map(|one| format!("{}={} {}", word(one, "name"), word(one, "value"), lasts(one))).collect()
}

/// As [`overrides`], with the exact end and the reason.
fn with_ends(place: &Place) -> Vec<String> {
    let all = json(place, &["get", "overrides"]);
    let all = all["overrides"].as_array().unwrap().iter();
    let mut all: Vec<String> = all
        .map(|one| format!("{} = {} until {}, {}", one["name"], one["value"], one["until"], one["reason"]))
        .collect();
    all.sort();
    all
}

/// Makes a change, and runs the commands that undo it. Returns the reply to the change.
fn made_and_undone(place: &Place, change: &[&str]) -> Value {
    let before = with_ends(place);
    let reply = json(place, change);
    assert!(reply["until"].is_string(), "{reply}");
    let undo = reply["undo"].as_array().unwrap();
    assert!(!undo.is_empty(), "{reply}");
    for command in undo {
        let own = sluice();
        let command = command.as_str().unwrap().replacen("sluice", own.get_program().to_str().unwrap(), 1);
        run(tool("sh", "dash").args(["-c", &command]).env("SLUICE_SOCKET", place.socket("control"))).ok();
    }
    assert_eq!(with_ends(place), before, "{reply}");
    reply
}

#[test]
fn the_end_and_the_ticket_of_a_change_vanished_when_another_replaced_it() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let made = json(&place, &["set", "a", "limit=300 iops", "--for", "10m", "--reason", "ticket 4711"]);
    assert!(made["until"].as_str().unwrap().ends_with('Z'), "{made}");
    assert_eq!(made["undo"], serde_json::json!(["sluice reset a/limit"]));
    assert_eq!(made["afterwards"], serde_json::json!({ "a/limit": "500 iops" }));
    let refused = ask(&place, &["set", "a", "limit=400 iops"]);
    assert_eq!(refused.code(), Some(4));
    let error = refused.failed();
    assert!(error.contains("a/limit is 300 iops until 2") && error.contains("reason: ticket 4711"), "{error}");
    assert!(error.contains("--permanent"), "{error}");
    assert_eq!(overrides(&place), ["a/limit=300 iops a time"]);
    // One with an end, and one that is meant to stay, say what they replace.
    let made = json(&place, &["set", "a", "limit=350 iops", "--for", "5m"]);
    assert_eq!(
        (&made["replaced"][0]["value"], &made["replaced"][0]["reason"]),
        (&"300 iops".into(), &"ticket 4711".into())
    );
    let made = json(&place, &["set", "a", "limit=400 iops", "--permanent"]);
    assert_eq!((&made["until"], &made["replaced"][0]["value"]), (&"reset".into(), &"350 iops".into()));
    let (undo, end) = (made["undo"][0].as_str().unwrap(), made["replaced"][0]["until"].as_str().unwrap());
    assert_eq!(undo, format!("sluice set a 'limit=350 iops' --until {end} --reset a/limit"), "{made}");
    assert_eq!(made["undo"].as_array().unwrap().len(), 1, "{made}");
    assert_eq!(overrides(&place), ["a/limit=400 iops reset"]);
    let text = run(sluice().args(["set", "a", "limit=450 iops", "--socket"]).arg(place.socket("control"))).ok();
    assert!(text.contains("Replaced: a/limit = 400 iops (until the host file changes it)"), "{text}");
    assert!(text.contains("Holds until the host file changes it\nUndo: sluice set a 'limit=400 iops'\n"), "{text}");
}

#[test]
fn what_undoes_a_change_brings_back_what_was_in_force() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let made_and_undone = |change: &[&str]| made_and_undone(&place, change);
    made_and_undone(&["set", "a", "limit=300 iops", "weight=7"]);
    made_and_undone(&["set", "a*", "limit=300 iops"]);
    made_and_undone(&["set", "policy/gold", "weight=200"]);
    json(&place, &["set", "a", "limit=400 iops"]);
    made_and_undone(&["set", "a", "limit=300 iops", "weight=7"]);
    let made = made_and_undone(&["set", "a", "limit=300 iops", "--for", "10m"]);
    assert_eq!(made["afterwards"], serde_json::json!({ "a/limit": "400 iops" }));
    json(&place, &["reset", "--all"]);
    json(&place, &["set", "a", "limit=400 iops"]);
    json(&place, &["set", "a", "limit=300 iops", "--until-restart", "--reason", "it's a test"]);
    made_and_undone(&["set", "a", "limit=250 iops", "--for", "10m"]);
    made_and_undone(&["set", "a", "limit=200 iops", "--permanent"]);
    json(&place, &["reset", "--all"]);
    let made = made_and_undone(&["detach", "a/v"]);
    assert_eq!(made["undo"], serde_json::json!(["sluice reset a/v"]));
    json(&place, &["set", "a/v", "weight=7"]);
    made_and_undone(&["detach", "a/v"]);
    json(&place, &["reset", "--all"]);
    let source = format!("source={}", place.image("b.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("b", "w").display());
    let attach = ["attach", "b/w", "device=disk", &source, &export, "vm.weight=300"];
    made_and_undone(&attach);
    json(&place, &attach);
    made_and_undone(&["detach", "b"]);
    made_and_undone(&["detach", "b/w"]);
    assert_eq!(json(&place, &["resize", "a/v", "3MiB"])["undo"], Value::Null, "a disk does not shrink");
    let image = place.image("c.img", MIB);
    let (source, export) = (format!("source={}", image.display()), place.volume_socket("c", "v"));
    json(&place, &["attach", "c/v", "device=disk", &source, &format!("export.socket={}", export.display())]);
    let made = json(&place, &["resize", "c/v", "2MiB", "--for", "10m"]);
    assert_eq!(made["afterwards"], serde_json::json!({ "c/v/size": "the size of its source" }));
}

#[test]
fn the_log_of_an_expiry_named_the_value_of_the_file_and_not_the_one_in_force() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    json(&place, &["set", "a", "limit=400 iops"]);
    json(&place, &["set", "a", "limit=300 iops", "--for", "1s"]);
    daemon.stderr().up_to(&["Override expired name=\"a/limit\" value=\"300 iops\" now=\"400 iops\""]);
    json(&place, &["set", "a", "limit=200 iops", "--until-restart"]);
    let log = daemon.terminate().stderr;
    assert!(log.contains("now=\"400 iops\"") && !log.contains("now=\"500 iops\""), "{log}");
}

/// A VM with a reservation, and one without.
fn reserving(place: &Place) -> String {
    let image = place.image("a.img", 4 * MIB);
    place.control_keys()
        + &place.device("scheduler = \"mclock\"\ncapacity = \"10000 iops@8KiB\"")
        + "[vm.a]\nlimit = \"900 iops\"\nreservation = \"900 iops\"\n[vm.b]\n"
        + &place.volume("a", "v", &image, "size = \"2MiB\"")
        + &place.volume("b", "v", &place.image("b.img", MIB), "size = \"1MiB\"")
}

#[test]
fn keys_that_were_set_together_were_undone_one_by_one_and_the_first_was_refused() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &reserving(&place));
    let in_force = || json(&place, &["describe", "a"])["policy"].clone();
    let file = in_force();
    let undone = |change: &[&str]| {
        let made = made_and_undone(&place, change);
        assert_eq!(made["undo"].as_array().unwrap().len(), 1, "{made}");
        assert_eq!(in_force(), file, "{made}");
        made["undo"][0].as_str().unwrap().to_owned()
    };
    let undo = undone(&["set", "a", "limit=1500 iops", "reservation=1200 iops"]);
    assert_eq!(undo, "sluice reset a/limit a/reservation");
    undone(&["set", "a", "burst={ rate = \"2000 iops\", for = \"10s\" }"]);
    undone(&["set", "a", "latency={ p99 = \"5ms\" }", "allow_unenforced=true"]);
    undone(&["set", "*", "burst={ rate = \"2000 iops\", for = \"10s\" }", "limit=1000 iops"]);
    // One of the keys has a value already, and the change is one with an end and one without.
    json(&place, &["set", "a", "limit=1100 iops", "--for", "1h", "--reason", "it's a test"]);
    let file = in_force();
    for term in [&["--for", "10m"][..], &["--permanent"], &["--until-restart"]] {
        let made = made_and_undone(&place, &[&["set", "a", "limit=1500 iops", "reservation=1200 iops"], term].concat());
        assert_eq!(made["undo"].as_array().unwrap().len(), 1, "{made}");
        assert_eq!(in_force(), file, "{made}");
    }
    // Each VM has its value back.
    json(&place, &["set", "b", "limit=1100 iops", "--until-restart"]);
    made_and_undone(&place, &["set", "*", "limit=1500 iops", "reservation=1200 iops", "--permanent"]);
    made_and_undone(&place, &["set", "*", "limit=1500 iops", "reservation=1200 iops", "--for", "10m"]);
}

#[test]
fn a_change_that_was_replaced_by_one_of_its_table_was_lost_when_that_was_undone() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &reserving(&place));
    let both = "limit={ iops = \"1500 iops\", bytes = \"64MiB/s\" }";
    json(&place, &["set", "b", both]);
    for term in [&[][..], &["--for", "10m"]] {
        made_and_undone(&place, &[&["set", "b", "limit=1400 iops"], term].concat());
        made_and_undone(&place, &[&["set", "b", "limit.bytes=32MiB/s"], term].concat());
    }
    json(&place, &["reset", "--all"]);
    json(&place, &["set", "b", "limit=1400 iops"]);
    made_and_undone(&place, &["set", "b", both]);
    made_and_undone(&place, &["set", "b", both, "--for", "10m"]);
}

#[test]
fn a_detach_of_what_was_attached_for_a_time_was_undone_for_good() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &reserving(&place));
    let source = format!("source={}", place.image("n.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("n2", "w").display());
    let how = ["--for", "10m", "--reason", "tmp"];
    json(&place, &[&["attach", "n2/w", "device=disk", &source, &export, "vm.weight=300"], &how[..]].concat());
    json(&place, &["set", "n2", "weight=200", "--for", "5m"]);
    for change in [&["detach", "n2"][..], &["detach", "n2", "--for", "1m"], &["detach", "n2/w"]] {
        made_and_undone(&place, change);
    }
    json(&place, &["reset", "--all"]);
    json(&place, &["set", "a/v", "weight=7", "--until-restart", "--reason", "tmp"]);
    made_and_undone(&place, &["detach", "a/v"]);
    made_and_undone(&place, &["detach", "a", "--for", "10m"]);
    json(&place, &["resize", "a/v", "3MiB"]);
    made_and_undone(&place, &["detach", "a/v"]);
    made_and_undone(&place, &["detach", "a/v", "--for", "10m"]);
}

#[test]
fn an_undo_that_was_run_later_outlived_the_end_of_what_it_brought_back() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    json(&place, &["set", "a", "limit=300 iops", "--until", "2099-11-28T22:10:00Z"]);
    let made = made_and_undone(&place, &["set", "a", "limit=200 iops", "--permanent"]);
    assert_eq!(made["undo"][0], "sluice set a 'limit=300 iops' --until 2099-11-28T22:10:00Z --reset a/limit");
    let error = ask(&place, &["set", "a", "limit=200 iops", "--until", "2026-01-01"]).failed();
    assert!(error.contains("has passed"), "{error}");
}

#[test]
fn several_changes_are_taken_back_together_or_not_at_all() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    json(&place, &["set", "a", "limit=300 iops", "weight=7"]);
    let refused = ask(&place, &["reset", "a/limit", "a/burst"]);
    assert_eq!(refused.code(), Some(3));
    assert!(refused.failed().contains("is named a/burst"));
    assert_eq!(overrides(&place).len(), 2);
    json(&place, &["set", "a", "burst=9", "--reset", "a/limit"]);
    assert_eq!(overrides(&place), ["a/weight=7 reset", "a/burst=9 reset"]);
    json(&place, &["reset", "a/burst", "a/weight"]);
    assert_eq!(overrides(&place), [""; 0]);
    let names: Vec<String> = (0..257).map(|number| format!("a/k{number}")).collect();
    let reset: Vec<&str> = ["reset"].into_iter().chain(names.iter().map(String::as_str)).collect();
    assert!(ask(&place, &reset).failed().contains("257 names of changes, but at most 256 are allowed"));
}
