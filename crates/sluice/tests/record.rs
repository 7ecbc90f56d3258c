//! The record of a night: what was known before the daemon ended is known afterwards.
//!
//! The device serves at most 400 requests per second, and 800 are reserved, so that a promise is broken while there is load. The long
//! form is `SLUICE_RECORD_ROUNDS=20 cargo test -p sluice --test record`.

use crate::common::{Daemon, Ended, Place, Running, fio, run, sluice, start, until};
use serde_json::Value;

/// Seconds that may be missing after a kill.
const LOST_MAX: u64 = 10;

fn host(place: &Place) -> String {
    let mut host = place.control_keys();
    host += "[device.disk]\nbackend = \"null\"\ncapacity = \"1000 iops@8KiB\"\ndepth = 4\n";
    host += "delay = { time = \"10ms\", parallel = 4 }\n";
    let socket = place.volume_socket("db", "v");
    host += "[vm.db]\nreservation = \"800 iops\"\n[vm.db.volume.v]\ndevice = \"disk\"\nsize = \"1MiB\"\n";
    host + &format!("export = {{ socket = \"{}\" }}\n", socket.display())
}

/// fio reads at random until it is dropped, or the daemon ends.
fn load(place: &Place) -> Running {
    let uri = place.uri("db", "v");
    let job = format!("ioengine=nbd\nuri={uri}\nrw=randread\nbs=8k\niodepth=16\nsize=1m\ntime_based=1\nruntime=600\n");
    start(&mut fio::fio(place, "load", &format!("[db]\n{job}")))
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

/// Returns the JSON that a verb prints, whatever its exit code.
fn json(place: &Place, verb: &[&str]) -> Value {
    let ended = ask(place, &[&["-o", "json"], verb].concat());
    serde_json::from_str(ended.stdout.lines().next().unwrap_or("null")).unwrap()
}

/// Seconds for which the reservation has been broken, as `status` says.
fn broken_for(place: &Place) -> u64 {
    let status = json(place, &["get", "vms", "db"]);
    let promises = status["vms"][0]["promises"].as_array().cloned().unwrap_or_default();
    promises.iter().find_map(|promise| promise["for_seconds"].as_u64()).unwrap_or(0)
}

fn events(place: &Place) -> Vec<Value> {
    let all = json(place, &["events", "--vm", "db", "--kind", "reservation"])["events"].as_array().cloned();
    all.unwrap_or_default()
}

fn seconds(events: &[Value]) -> u64 {
    events.iter().filter_map(|event| event["seconds"].as_u64()).sum()
}

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Stop,
    Kill,
}

/// Serves with load until a promise has been broken for `length` seconds, and ends the daemon. Returns for how long `status` said
/// that it was, just before, and the events before this run.
fn break_for(place: &Place, length: u64, end: End) -> (u64, Vec<Value>) {
    let daemon = Daemon::serve(place, &host(place));
    let before = events(place);
    let load = load(place);
    let mut said = 0;
    until("the promise is broken for long enough", || {
        said = broken_for(place);
        said >= length
    });
    match end {
        End::Stop => assert_eq!(daemon.terminate().code(), Some(0)),
        End::Kill => daemon.kill(),
    }
    drop(load);
    (said, before)
}

/// A promise is broken and the daemon ends, so often, at different moments. Then durations are as `status` said.
fn survives(end: End) {
    let rounds = std::env::var("SLUICE_RECORD_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let (place, mut said_in_all) = (Place::new(), 0);
    for round in 0..rounds {
        let length = 7 + (round * 5 + u64::from(std::process::id())) % 8;
        let (said, before) = break_for(&place, length, end);
        said_in_all += said;
        let daemon = Daemon::serve(&place, &host(&place));
        let new = events(&place).split_off(before.len());
        let ends: Vec<&Value> = new.iter().filter(|event| event["ended_by"].is_string()).collect();
        assert_eq!(ends.len(), 1, "one has ended with the daemon: {new:?}");
        let (last, by) = (ends[0]["seconds"].as_u64().unwrap(), &ends[0]["ended_by"]);
        // A sample may have been taken after `status` was asked, and the load may have been too slow for a moment before.
        match end {
            End::Stop => assert!(*by == "stopped" && (said..=said + 2).contains(&last), "{last} of {said}: {new:?}"),
            End::Kill => assert!(*by == "killed" && last + LOST_MAX >= said && last <= said + 2, "{last}: {new:?}"),
        }
        assert_eq!(daemon.terminate().code(), Some(0));
    }
    let _daemon = Daemon::serve(&place, &host(&place));
    let known = seconds(&events(&place));
    let lost = if end == End::Kill { LOST_MAX * rounds } else { 0 };
    assert!(known + lost >= said_in_all, "{known} of {said_in_all}");
    let why = json(&place, &["why", "db"]);
    let violations = why["violations"].as_array().unwrap();
    let of_why: u64 = violations.iter().filter_map(|one| one["seconds"].as_u64()).sum();
    assert_eq!(of_why, known, "`why` and `events` agree: {why}");
}

#[test]
fn a_promise_that_was_broken_when_the_daemon_stopped_was_broken_for_no_time() {
    survives(End::Stop);
}

#[test]
fn a_promise_that_was_broken_when_the_daemon_was_killed_was_broken_for_no_time() {
    survives(End::Kill);
}

/// Asks what a daemon has left, by its state directory.
fn left(place: &Place, verb: &[&str]) -> Value {
    let ended = run(sluice().args(["-o", "json"]).args(verb).arg("--state").arg(place.file("state")));
    serde_json::from_str(ended.stdout.lines().next().unwrap_or("null")).unwrap_or_else(|_| panic!("{}", ended.stderr))
}

#[test]
fn nothing_could_be_asked_of_a_night_while_the_daemon_was_down() {
    let place = Place::new();
    for (end, by) in [(End::Stop, "stopped"), (End::Kill, "killed")] {
        let (said, _) = break_for(&place, 6, end);
        let events = left(&place, &["events", "--vm", "db", "--kind", "reservation"])["events"].clone();
        let last = events.as_array().and_then(|events| events.last()).unwrap();
        assert_eq!(last["ended_by"], by, "{events}");
        assert!(last["seconds"].as_u64().unwrap() + LOST_MAX >= said, "{last}");
        let why = left(&place, &["why", "db", "--since", "1h"]);
        assert_eq!(why["violations"][0]["seconds"], seconds(events.as_array().unwrap()), "{why}");
        let history = left(&place, &["get", "history", "db/v", "--minutes"])["history"].clone();
        let broken: u64 = history.as_array().unwrap().iter().filter_map(|point| point["broken_seconds"].as_u64()).sum();
        assert!(broken + 2 >= said || end == End::Kill, "{broken} of {said}: {history}");
    }
    // Who names no folder is told which one is read, and until when it goes.
    let socket = place.socket("nobody");
    let asked = run(sluice().arg("events").env("SLUICE_SOCKET", socket).env("STATE_DIRECTORY", place.file("state")));
    let has_own_host_file = std::path::Path::new("/etc/sluice/sluice.toml").exists();
    assert!(has_own_host_file || asked.stderr.contains("The daemon does not run"), "{}", asked.stderr);
    let daemon = Daemon::serve(&place, &host(&place));
    let refused = run(sluice().arg("events").arg("--state").arg(place.file("state")));
    assert!(refused.stderr.contains("ask it, without --state"), "{}", refused.stderr);
    let history = json(&place, &["get", "history", "db", "--since", "7days"]);
    assert!(!history["history"].as_array().unwrap().is_empty(), "the past continues");
    // As the page about reservations says.
    let csv = ask(&place, &["get", "history", "db", "--minutes", "--since", "7days", "-o", "csv"]).ok();
    assert!(csv.starts_with("time,device,") && csv.lines().count() > 1, "{csv}");
    let quarters = ask(&place, &["get", "history", "db", "--since", "30days", "-o", "csv"]).ok();
    assert!(quarters.contains("busiest.normalised_iops"), "{quarters}");
    assert_eq!(daemon.terminate().code(), Some(0));
}
