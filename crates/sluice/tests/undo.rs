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

/// Makes a change, and runs the commands that undo it. Returns the reply to the change.
fn made_and_undone(place: &Place, change: &[&str]) -> Value {
    let before = overrides(place);
    let reply = json(place, change);
    assert!(reply["until"].is_string(), "{reply}");
    let undo = reply["undo"].as_array().unwrap();
    assert!(!undo.is_empty(), "{reply}");
    for command in undo {
        let own = sluice();
        let command = command.as_str().unwrap().replacen("sluice", own.get_program().to_str().unwrap(), 1);
        run(tool("sh", "dash").args(["-c", &command]).env("SLUICE_SOCKET", place.socket("control"))).ok();
    }
    assert_eq!(overrides(place), before, "{reply}");
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
    let [reset, set] = [0, 1].map(|number| made["undo"][number].as_str().unwrap());
    assert!(reset == "sluice reset a/limit" && set.starts_with("sluice set a 'limit=350 iops' --for "), "{made}");
    assert_eq!(overrides(&place), ["a/limit=400 iops reset"]);
    let text = run(sluice().args(["set", "a", "limit=450 iops", "--socket"]).arg(place.socket("control"))).ok();
    assert!(text.contains("Replaced: a/limit = 400 iops (until reset)"), "{text}");
    assert!(text.contains("Holds until the file's value changes\nUndo: sluice set a 'limit=400 iops'\n"), "{text}");
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
