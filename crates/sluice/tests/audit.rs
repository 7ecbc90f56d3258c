//! Who did what is in the record, and `status` tells what is not as the host file says.

use crate::common::{Daemon, Ended, MIB, Place, run, sluice, tool, until};
use serde_json::Value;
use sluice_client::nbd::Client;

/// A user whose login is known; each Debian has it.
const LOGIN: (u32, &str) = (1, "daemon");

fn host(place: &Place) -> String {
    let images = ["root", "data"].map(|volume| (volume, place.image(&format!("{volume}.img"), 4 * MIB)));
    let mut host = place.control_keys();
    host += &place.device("capacity = \"1000 iops@8KiB\"");
    host += "[vm.a]\nlimit = \"500 iops\"\n";
    images.iter().for_each(|(volume, image)| host += &place.volume("a", volume, image, "size = \"2MiB\""));
    host
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(place: &Place, verb: &[&str]) -> Value {
    let ended = ask(place, &[&["-o", "json"], verb].concat());
    serde_json::from_str(ended.stdout.lines().next().unwrap_or("null")).unwrap()
}

fn changes(place: &Place) -> Vec<Value> {
    json(place, &["events", "--kind", "change"])["events"].as_array().unwrap().clone()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Runs a verb as the login of a user; returns whether this kernel knows logins.
fn logged_in(place: &Place, verb: &str) -> bool {
    let (program, socket) = (sluice(), place.socket("control"));
    let program = program.get_program().to_str().unwrap();
    let script = format!(
        "echo {} 2>/dev/null > /proc/self/loginuid; {program} {verb} --socket {} >&2; cat /proc/self/loginuid",
        LOGIN.0,
        socket.display()
    );
    run(tool("sh", "dash").args(["-c", &script])).ok().trim() == LOGIN.0.to_string()
}

#[test]
fn what_people_did_was_not_in_the_record() {
    let place = Place::new();
    let (file, new) = (host(&place), place.image("new.img", MIB));
    let daemon = Daemon::serve(&place, &file);
    let is_known = logged_in(&place, "set a 'limit=300 iops' --for 10m --reason 'ticket 4711'");
    ask(&place, &["set", "a/root", "weight=20"]).ok();
    ask(&place, &["resize", "a/data", "3MiB"]).ok();
    let (source, socket) = (format!("source={}", new.display()), place.socket("new"));
    let socket = format!("export.socket={}", socket.display());
    ask(&place, &["attach", "b/v", "device=disk", &source, &socket]).ok();
    ask(&place, &["detach", "b"]).ok();
    ask(&place, &["reset", "a/root/weight"]).ok();
    daemon.accept(&file.replace("500 iops", "600 iops"));
    daemon.reload(&file.replace("[vm.a]", "[vm.a]\nlimt = 1"));
    is_told_by_status(&place);
    daemon.kill();
    let daemon = Daemon::serve(&place, &file);
    assert_eq!(json(&place, &["status"])["restarts"][0]["ended_by"], "killed");
    daemon.terminate().ok();
    let _daemon = Daemon::serve(&place, &file);
    is_told_by_events(&place, is_known);
    let restarts = json(&place, &["status"])["restarts"].clone();
    assert_eq!(restarts.as_array().unwrap().len(), 2, "{restarts}");
    assert!(ask(&place, &["why", "a"]).stdout.contains("ticket 4711"));
    for unknown in [["--vm", "nobody"], ["--device", "nothing"], ["--kind", "nonsense"]] {
        assert_eq!(ask(&place, &[&["events"], &unknown[..]].concat()).code(), Some(3), "{unknown:?}");
    }
}

fn is_told_by_status(place: &Place) {
    let status = json(place, &["status"]);
    assert_eq!(status["overrides"]["next_end"], Value::Null, "the file's other limit has replaced the one with an end");
    assert_eq!(status["overrides"]["count"], 1, "{status}");
    let refused = &status["refused_reload"];
    assert!(text(refused, "file").ends_with(".toml") && refused["line"].as_u64() > Some(1), "{refused}");
    assert!(text(refused, "error").contains("limt"), "{refused}");
    let table = ask(place, &["status"]).stdout;
    assert!(
        table.contains("The last reload was refused at 2") && table.contains("1 change made at run time"),
        "{table}"
    );
}

fn is_told_by_events(place: &Place, is_known: bool) {
    let found = changes(place);
    let kinds: Vec<&str> = found.iter().map(|event| text(event, "kind")).collect();
    let expected = "started changed changed resized attached detached reset applied changed expired reload_refused killed started \
                    stopped started";
    assert_eq!(kinds.join(" "), expected, "{found:#?}");
    let (set, change) = (&found[1], &found[1]["change"]);
    assert_eq!((text(change, "before"), text(change, "after")), ("limit=500 iops", "limit=300 iops"));
    assert_eq!((text(change, "role"), text(change, "reason")), ("admin", "ticket 4711"));
    assert_eq!(text(change, "who"), if is_known { LOGIN.1 } else { "root" }, "{set}");
    assert_eq!(text(&found[2]["change"], "who"), "root");
    assert!(text(change, "until").ends_with('Z'), "{set}");
    assert_eq!(change["undo"], serde_json::json!(["sluice reset a/limit"]));
    assert_eq!(text(&found[3]["change"], "after"), "3 MiB");
    let by_vm = json(place, &["events", "--vm", "b", "--kind", "change"]);
    assert_eq!(by_vm["events"].as_array().unwrap().len(), 2, "{by_vm}");
}

#[test]
fn a_change_that_ended_by_itself_left_no_trace() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    ask(&place, &["set", "a", "limit=300 iops", "--for", "1s", "--reason", "ticket 4712"]).ok();
    let ended = || changes(&place).into_iter().find(|event| text(event, "kind") == "expired");
    until("it has ended", || ended().is_some());
    let (event, change) = (ended().unwrap(), ended().unwrap()["change"].clone());
    assert_eq!((text(&change, "before"), text(&change, "after")), ("limit=300 iops", "limit=500 iops"), "{event}");
    assert_eq!((text(&change, "who"), text(&change, "reason")), ("root", "ticket 4712"), "{event}");
}

#[test]
fn a_value_that_no_file_states_was_a_dash_before_and_after_a_change() {
    let place = Place::new();
    let file = host(&place);
    let daemon = Daemon::serve(&place, &file);
    let last = || {
        let change = changes(&place).last().unwrap()["change"].clone();
        (text(&change, "before").to_owned(), text(&change, "after").to_owned())
    };
    let weights = |before: &str, after: &str| (format!("weight={before}"), format!("weight={after}"));
    ask(&place, &["set", "a", "weight=1"]).ok();
    assert_eq!(last(), weights("100", "1"));
    ask(&place, &["reset", "a/weight"]).ok();
    assert_eq!(last(), weights("1", "100"));
    ask(&place, &["set", "a*", "weight=2"]).ok();
    assert_eq!(last(), weights("100", "2"));
    ask(&place, &["set", "a/root", "weight=3"]).ok();
    ask(&place, &["reset", "--all"]).ok();
    assert_eq!(last(), weights("3", "100"), "of two objects");
    ask(&place, &["set", "a", "weight=4", "--for", "1s"]).ok();
    until("it has ended", || text(changes(&place).last().unwrap(), "kind") == "expired");
    assert_eq!(last(), weights("4", "100"));
    ask(&place, &["set", "a", "weight=6", "--persist"]).ok();
    daemon.accept(&file);
    let absorbed = || changes(&place).into_iter().rev().find(|event| text(event, "kind") == "expired").unwrap();
    until("the drop-in is read", || text(&absorbed()["change"], "before") == "weight=6");
    assert_eq!(text(&absorbed()["change"], "after"), "weight=6");
}

#[test]
fn a_disk_whose_client_left_in_order_has_lost_none() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let clients = || json(&place, &["get", "vms"])["vms"][0]["clients"].clone();
    let lost = || json(&place, &["status"])["lost_clients"].as_array().cloned().unwrap_or_default();
    let connect =
        |volume: &str| Client::connect_unix(place.volume_socket("a", volume), &format!("a/{volume}")).unwrap();
    let _root = connect("root");
    let copy = connect("data");
    until("both are connected", || clients() == 2);
    copy.disconnect().unwrap();
    until("one has left", || clients() == 1);
    let time = || json(&place, &["status"])["time"].as_u64().unwrap();
    let left = time();
    until("six samples", || time() > left + 6);
    assert_eq!(lost(), [] as [Value; 0]);
    // One that is cut off is missed.
    let data = connect("data");
    until("both are connected again", || clients() == 2);
    drop(data);
    until("it is named", || lost().first().is_some_and(|lost| lost["volume"] == "a/data"));
}

#[test]
fn a_disk_that_lost_its_client_at_a_restart_is_named() {
    let place = Place::new();
    let file = host(&place);
    let connect =
        |volume: &str| Client::connect_unix(place.volume_socket("a", volume), &format!("a/{volume}")).unwrap();
    let lost = || json(&place, &["status"])["lost_clients"].as_array().cloned().unwrap_or_default();
    let daemon = Daemon::serve(&place, &file);
    let clients = [connect("root"), connect("data")];
    until("both have a client", || {
        json(&place, &["get", "clients"])["clients"].as_array().unwrap().len() == 2 && lost().is_empty()
    });
    // A sample has shown it.
    until("the record has them", || json(&place, &["get", "vms"])["vms"][0]["clients"] == 2);
    daemon.terminate().ok();
    drop(clients);
    let _daemon = Daemon::serve(&place, &file);
    let _root = connect("root");
    until("the other one is named", || lost().iter().any(|lost| lost["volume"] == "a/data"));
    assert_eq!(lost().len(), 1);
    let status = ask(&place, &["status"]);
    assert!(status.stdout.contains("  a/data has lost its client since 2"), "{}", status.stdout);
    let _data = connect("data");
    until("it is back", || lost().is_empty());
    let events = json(&place, &["events", "--kind", "client_lost"]);
    let phases: Vec<&str> = events["events"].as_array().unwrap().iter().map(|event| text(event, "phase")).collect();
    assert_eq!(phases, ["began", "ended"], "{events}");
}
