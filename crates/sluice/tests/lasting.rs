//! Changes made at run time survive restarts, end on time, and yield to the file.

use std::fmt::Write as _;
use std::path::Path;

use crate::common::raw::Raw;
use crate::common::{Daemon, Ended, MIB, Place, run, sluice, start, tool, until};
use serde_json::Value;

const LIMIT: &str = "[vm.a]\nlimit = \"500 iops\"\n";

fn host(place: &Place) -> String {
    let image = place.image("a.img", 4 * MIB);
    place.control_keys()
        + &place.device("capacity = \"1000 iops@8KiB\"")
        + LIMIT
        + &place.volume("a", "v", &image, "size = \"2MiB\"")
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(ended: Ended) -> Value {
    serde_json::from_str(&ended.ok()).unwrap()
}

/// Returns the overrides as `NAME=VALUE`, without the one of [`limit`].
fn overrides(place: &Place) -> Vec<String> {
    let all = json(ask(place, &["get", "overrides"]));
    let others = all["overrides"].as_array().unwrap().iter().filter(|one| one["name"] != "a/allow_slow");
    others.map(|one| format!("{}={}", one["name"].as_str().unwrap(), one["value"].as_str().unwrap())).collect()
}

/// Returns the limit of VM a that is in force.
fn limit(place: &Place) -> f64 {
    let set = json(ask(place, &["set", "a", "allow_slow=false", "--until-restart"]));
    set["after"]["policy"]["limit_iops"].as_f64().unwrap()
}

fn size(place: &Place, vm: &str, volume: &str) -> u64 {
    Raw::open(&place.volume_socket(vm, volume), &format!("{vm}/{volume}")).unwrap().size_bytes
}

#[test]
fn what_was_changed_at_run_time_was_forgotten_by_a_restart() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops", "--reason", "noisy"]));
    json(ask(&place, &["resize", "a/v", "3MiB"]));
    let source = format!("source={}", place.image("b.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("b", "w").display());
    json(ask(&place, &["attach", "b/w", "device=disk", &source, &export, "vm.weight=300"]));
    let all = json(ask(&place, &["get", "overrides"]));
    let set = &all["overrides"][0];
    assert_eq!(
        (&set["name"], &set["file"], &set["value"]),
        (&"a/limit".into(), &"500 iops".into(), &"100 iops".into())
    );
    assert_eq!((&set["reason"], &set["uid"]), (&"noisy".into(), &rustix::process::getuid().as_raw().into()));
    assert!(set["pid"].is_i64() && set["at"].is_string(), "{set}");
    // After a crash, and after a stop.
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(json(ask(&place, &["get", "overrides"])), all);
    assert_eq!((limit(&place), size(&place, "a", "v"), size(&place, "b", "w")), (100.0, 3 * MIB, MIB));
    json(ask(&place, &["detach", "a/v", "--force", "a"]));
    assert_eq!(daemon.terminate().code(), Some(0));
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(overrides(&place), ["a/limit=100 iops", "b=attached", "b/w=attached", "a/v=detached"]);
    assert!(Raw::open(&place.volume_socket("a", "v"), "a/v").is_err());
    // What was taken back is forgotten as well.
    let reset = json(ask(&place, &["reset", "a"]));
    assert_eq!(reset["taken_back"], serde_json::json!(["a/limit", "a/v"]));
    assert_eq!(limit(&place), 500.0);
    assert_eq!(ask(&place, &["reset", "a/burst"]).code(), Some(3));
    json(ask(&place, &["reset", "--all"]));
    drop(daemon);
    let _daemon = Daemon::serve(&place, &host);
    assert_eq!(overrides(&place), [""; 0]);
}

#[test]
fn a_change_yields_to_the_file_only_when_its_field_changes() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    let log = daemon.reload(&host.replace(LIMIT, &format!("{LIMIT}weight = 7\n")));
    let kept =
        "Override stays in force and replaces the file's value name=\"a/limit\" value=\"100 iops\" hides=\"500 iops\"";
    assert!(log.contains(kept) && log.contains("Reload applied"), "{log}");
    assert_eq!(limit(&place), 100.0);
    let log = daemon.reload(&host.replace("500 iops", "800 iops"));
    assert!(
        log.contains("Override dropped: the file's value has changed") && log.contains("now=\"800 iops\""),
        "{log}"
    );
    assert_eq!(limit(&place), 800.0);
    // While the daemon is down as well.
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    daemon.stderr().up_to(&["Override dropped: the file's value has changed"]);
    assert_eq!(limit(&place), 500.0);
}

#[test]
fn apply_did_not_say_which_overrides_hide_what_of_the_file() {
    let place = Place::new();
    let host = host(&place);
    let _daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    json(ask(&place, &["set", "a", "weight=50", "--for", "2days"]));
    let path = place.file("host.toml");
    let apply = |options: &[&str]| ask(&place, &[&["apply", path.to_str().unwrap()], options].concat());
    let table = |options: &[&str]| {
        let verb = [&["apply", path.to_str().unwrap()], options].concat();
        run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).ok()
    };
    std::fs::write(&path, host.replace(LIMIT, &format!("{LIMIT}cpu_limit = \"90%\"\n"))).unwrap();
    for options in [&["--dry-run"][..], &[]] {
        let plan = json(apply(options));
        let names = |key: &str| {
            let all = plan[key].as_array().unwrap().iter();
            all.map(|one| format!("{}: {} hides {}", one["name"], one["value"], one["file"])).collect::<Vec<_>>()
        };
        let hidden = ["\"a/limit\": \"100 iops\" hides \"500 iops\"", "\"a/weight\": 50 hides null"];
        assert_eq!((names("overrides"), names("overrides_ended")), (hidden.map(str::to_owned).to_vec(), Vec::new()));
    }
    std::fs::write(&path, host.replace("500 iops", "800 iops")).unwrap();
    let (plan, words) = (json(apply(&["--dry-run"])), table(&["--dry-run"]));
    assert_eq!(plan["overrides_ended"][0]["why"], "the file's value has changed from 500 iops to 800 iops", "{plan}");
    assert!(words.contains("would stay in force and hide the file's value") && words.contains("a/weight"), "{words}");
    assert!(words.contains("Overrides would end:\n") && words.contains("from 500 iops to 800 iops"), "{words}");
    assert!(table(&[]).contains("Overrides end:\n"));
    assert_eq!(overrides_left(&place), ["a/weight"]);
}

#[test]
fn a_reset_of_everything_that_was_refused_did_not_say_what_to_do() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    json(ask(&place, &["resize", "a/v", "3MiB"]));
    let refused = ask(&place, &["reset", "--all"]);
    assert_eq!(refused.code(), Some(4));
    assert!(refused.stderr.contains("cannot shrink") && refused.stderr.contains("back by name"), "{}", refused.stderr);
    assert_eq!(overrides_left(&place), ["a/limit", "a/v/size"]);
    json(ask(&place, &["reset", "a/limit"]));
}

#[test]
fn a_reason_with_control_characters_reached_the_terminals_of_others() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let long = "x".repeat(501);
    for (reason, why) in [
        ("\u{1b}[2J", "control character"),
        ("two\nlines", "control character"),
        ("\u{202e}reversed", "control character"),
        (&long, "501 characters"),
    ] {
        for verb in [&["set", "a", "limit=100 iops"][..], &["reset", "--all"]] {
            let refused = ask(&place, &[verb, &["--reason", reason]].concat());
            assert_eq!(refused.code(), Some(1), "{verb:?}");
            assert!(refused.stderr.contains(why), "{}", refused.stderr);
        }
    }
    assert_eq!(overrides_left(&place), [""; 0]);
}

/// Names of the overrides that are in force.
fn overrides_left(place: &Place) -> Vec<String> {
    let all = json(ask(place, &["get", "overrides"]));
    all["overrides"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_reload_checks_the_file_also_where_an_override_hides_it() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    let log = daemon.reload(&host.replace("\"500 iops\"", "\"500\""));
    assert!(log.contains("'500' has no unit") && log.contains("configuration is unchanged"), "{log}");
    assert_eq!(limit(&place), 100.0);
}

/// Removes counters and times, which a restart may change.
fn without_figures(mut all: Value) -> Value {
    const FIGURES: [&str; 8] = [
        "rates",
        "parts",
        "held_by",
        "full_percent",
        "thread_busy_percent",
        "thread_late_percent",
        "service_times",
        "waiting",
    ];
    match &mut all {
        Value::Object(keys) => {
            keys.retain(|key, _| !FIGURES.contains(&key.as_str()));
            keys.values_mut().for_each(|value| *value = without_figures(value.take()));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = without_figures(value.take())),
        _ => {}
    }
    all
}

#[test]
fn five_hundred_volumes_with_overrides_are_the_same_after_a_restart() {
    const VMS: usize = 500;
    let place = Place::new();
    let image = place.image("all.img", VMS as u64 * MIB);
    let mut host = place.control_keys() + &place.device("capacity = \"100000 iops@8KiB\"");
    for vm in 0..VMS {
        let (name, part) = (format!("vm{vm}"), format!("offset = \"{vm}MiB\"\nsize = \"1MiB\""));
        let _ = writeln!(host, "[vm.{name}]\nreservation = \"10 iops@8KiB\"");
        host += &place.volume(&name, "v", &image, &part);
    }
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "vm1*", "limit=900 iops"]));
    json(ask(&place, &["set", "vm2*/v", "weight=7", "--reason", "busy"]));
    json(ask(&place, &["set", "vm30*", "class=background", "--for", "1h"]));
    json(ask(&place, &["detach", "vm499/v", "--force", "vm499"]));
    let export = format!("export.socket={}", place.volume_socket("vm499", "w").display());
    let source = format!("source={}", place.image("new.img", MIB).display());
    json(ask(&place, &["attach", "vm499/w", "device=disk", &source, &export]));
    let before = state_of(&place, VMS);
    assert!(before[4]["overrides"].as_array().unwrap().len() > 200);
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert_same(&before, &state_of(&place, VMS), "after a crash");
    assert_eq!(daemon.terminate().code(), Some(0));
    let _daemon = Daemon::serve(&place, &host);
    assert_same(&before, &state_of(&place, VMS), "after a stop");
}

/// What the daemon shows, without figures, when a sample has all VMs and their changes.
fn state_of(place: &Place, vms: usize) -> Vec<Value> {
    let list = |what: &str| json(ask(place, &["get", what]));
    until("a sample has all changes", || {
        let (all, volumes) = (list("vms"), list("volumes"));
        let has = |list: &Value, key: &str, name: &str| list.as_array().unwrap().iter().any(|one| one[key] == name);
        all["vms"].as_array().unwrap().len() == vms
            && all["vms"].as_array().unwrap().iter().filter(|vm| vm["policy"]["class"] == "background").count() == 11
            && has(&volumes["volumes"], "volume", "w")
    });
    ["vms", "volumes", "devices", "clients", "overrides"].map(|what| without_figures(list(what))).to_vec()
}

/// Compares states, and shows only the first entries that differ.
#[track_caller]
fn assert_same(before: &[Value], now: &[Value], when: &str) {
    for (before, now) in before.iter().zip(now) {
        for (key, before) in before.as_object().unwrap() {
            let (Some(before), Some(now)) = (before.as_array(), now[key].as_array()) else {
                assert_eq!(before, &now[key], "{key} {when}");
                continue;
            };
            assert_eq!(before.len(), now.len(), "{key} {when}");
            before.iter().zip(now).for_each(|(before, now)| assert_eq!(before, now, "{key} {when}"));
        }
    }
}

#[test]
fn a_change_until_restart_survives_a_crash_and_no_stop() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops", "--until-restart"]));
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(overrides(&place), ["a/limit=100 iops"]);
    assert!(daemon.terminate().stderr.contains("Override ended: it was made with --until-restart"));
    let _daemon = Daemon::serve(&place, &host);
    assert_eq!(overrides(&place), [""; 0]);
}

#[test]
fn a_change_for_a_time_ends_while_the_daemon_runs_and_while_it_does_not() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops", "--for", "1s"]));
    daemon.stderr().up_to(&["Override expired name=\"a/limit\" value=\"100 iops\" now=\"500 iops\""]);
    assert_eq!((limit(&place), overrides(&place)), (500.0, Vec::new()));
    json(ask(&place, &["set", "a", "limit=100 iops", "--for", "1h"]));
    assert_eq!(limit(&place), 100.0);
    daemon.kill();
    // An hour passes. The file is one of the version before, which had no checksum.
    let state = place.file("state/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    let mut saved: Value = serde_json::from_str::<Value>(&text).unwrap()["state"].take();
    saved["version"] = 1.into();
    for one in saved["overrides"].as_array_mut().unwrap() {
        if let Some(until) = one["lasts"].get_mut("until") {
            *until = (until.as_u64().unwrap() - 3600).into();
        }
    }
    std::fs::write(&state, saved.to_string()).unwrap();
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(limit(&place), 500.0, "it is over before anything is served");
    daemon.stderr().up_to(&["Override expired"]);
}

#[test]
fn a_persisted_change_is_in_a_drop_in_with_its_comments() {
    let place = Place::new();
    let host = host(&place);
    std::fs::create_dir(place.file("host.d")).unwrap();
    let dropin = place.write("host.d/zz-sluice.toml", "[vm.a]\n# ours\nweight = 3 # low\n");
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "weight=7", "limit=100 iops", "--persist"]));
    let text = std::fs::read_to_string(&dropin).unwrap();
    assert_eq!(text, "[vm.a]\n# ours\nweight = 7 # low\nlimit = \"100 iops\"\n");
    assert_eq!(limit(&place), 100.0);
    json(ask(&place, &["resize", "a/v", "3MiB", "--persist"]));
    let log = daemon.reload(&host);
    assert!(
        log.contains("Override dropped: it is now part of the file name=\"a/limit\"")
            && !log.contains("value has changed"),
        "{log}"
    );
    json(ask(&place, &["reset", "--all"]));
    assert_eq!((limit(&place), size(&place, "a", "v")), (100.0, 3 * MIB));
    let refused = ask(&place, &["detach", "a/v", "--persist"]).failed();
    assert!(
        refused.contains("host.toml has a/v, and a drop-in cannot remove it; delete its tables there"),
        "{refused}"
    );
    let refused = ask(&place, &["reset", "b"]).failed();
    assert!(refused.contains("No change made at run time is named b"), "{refused}");
}

/// What the daemon writes there is read by its next start, so it says of VMs and policies alone.
#[test]
fn a_drop_in_with_a_device_was_said_to_be_none_that_the_host_file_names() {
    let place = Place::new();
    let host = host(&place);
    std::fs::create_dir(place.file("host.d")).unwrap();
    place.write("host.d/zz-sluice.toml", "[device.other]\nbackend = \"null\"\n");
    let _daemon = Daemon::serve(&place, &host);
    let refused = ask(&place, &["set", "a", "weight=7", "--persist"]).failed();
    assert!(refused.contains("move such tables to another drop-in"), "{refused}");
}

#[test]
fn without_a_state_directory_a_lasting_change_is_refused() {
    let place = Place::new();
    let host = host(&place);
    let without = host.replace(&format!("state = \"{}\"\n", place.file("state").display()), "");
    assert_ne!(host, without);
    let _daemon = Daemon::serve(&place, &without);
    let refused = ask(&place, &["set", "a", "limit=100 iops"]);
    assert_eq!(refused.code(), Some(4));
    let refused = refused.failed();
    assert!(refused.contains("set state = ") && refused.contains("--until-restart"), "{refused}");
    assert_eq!(limit(&place), 500.0);
    json(ask(&place, &["set", "a", "limit=100 iops", "--until-restart"]));
    assert_eq!(limit(&place), 100.0);
    // Its end would shrink the guest's disk.
    let refused = ask(&place, &["resize", "a/v", "3MiB", "--until-restart"]).failed();
    assert!(refused.contains("shrink") && refused.contains("--persist"), "{refused}");
    assert_eq!(size(&place, "a", "v"), 2 * MIB);
    json(ask(&place, &["resize", "a/v", "3MiB", "--persist"]));
    assert_eq!(size(&place, "a", "v"), 3 * MIB);
}

#[test]
fn systemd_names_the_state_directory() {
    let place = Place::new();
    let state = place.file("given");
    let host = host(&place).replace(&format!("state = \"{}\"\n", place.file("state").display()), "");
    let daemon = Daemon::serve_by(&place, &host, |command| {
        let mut given = std::process::Command::new(command.get_program());
        given.args(command.get_args()).env("STATE_DIRECTORY", &state);
        given
    });
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    assert!(std::fs::read_to_string(state.join("state.json")).unwrap().contains("100 iops"));
    drop(daemon);
}

#[test]
fn a_corrupt_state_stops_a_strict_start_and_names_the_way_out() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    let second = Daemon::refused(&place, &host.replace("a-v.sock", "b.sock").replace("control\"", "control2\""));
    assert!(second.contains("is used by another daemon"), "{second}");
    daemon.kill();
    let state = place.file("state/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    for damaged in [text[..text.len() / 2].to_owned(), text.replace("100 iops", "900 iops")] {
        std::fs::write(&state, damaged).unwrap();
        let error = Daemon::refused(&place, &host);
        assert!(error.contains("is corrupt") && error.contains("mv ") && error.contains("state.json"), "{error}");
    }
    std::fs::rename(&state, place.file("state/corrupt")).unwrap();
    let _daemon = Daemon::serve(&place, &host);
}

#[test]
fn a_state_that_was_damaged_for_one_vm_kept_all_others_from_starting() {
    let place = Place::new();
    let host = host(&place) + &place.volume("b", "v", &place.image("b.img", MIB), "size = \"1MiB\"");
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "b", "limit=500 iops"]));
    assert_eq!(daemon.terminate().code(), Some(0));
    let state = place.file("state/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("2097152", "1097152")).unwrap();
    let held = || {
        let status = run(sluice().args(["-o", "json", "status", "--socket"]).arg(place.socket("control"))).stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        status["held_back"].as_array().unwrap().iter().map(|held| held["volume"].clone()).collect::<Vec<_>>()
    };
    // It stays unknown at the next start, when the file is whole again.
    for log in ["State set aside as state.json.damaged", "Volume held back"] {
        let daemon = Daemon::serve(&place, &host);
        daemon.stderr().with(log);
        assert_eq!((size(&place, "b", "v"), held()), (MIB, vec!["a/v".into()]));
        assert_eq!(overrides(&place), ["b/limit=500 iops"], "the change of the other VM is kept");
        assert_eq!(daemon.terminate().code(), Some(0));
    }
    assert_eq!(
        std::fs::read_to_string(place.file("state/state.json.damaged")).unwrap(),
        text.replace("2097152", "1097152")
    );
    let daemon = Daemon::serve(&place, &host);
    daemon.force(&place, &host);
    assert_eq!((size(&place, "a", "v"), held()), (2 * MIB, Vec::new()));
    // Of a file that cannot be read at all nothing is known.
    assert_eq!(daemon.terminate().code(), Some(0));
    std::fs::write(&state, &text[..text.len() / 2]).unwrap();
    let _daemon = Daemon::serve(&place, &host);
    assert_eq!(held(), ["a/v", "b/v"]);
}

#[test]
fn a_pipe_in_place_of_the_state_kept_the_daemon_from_starting() {
    let place = Place::new();
    let host = host(&place);
    let (state, aside) = (place.file("state/state.json"), place.file("state/state.json.damaged"));
    let mut listener = None;
    for what in ["a pipe", "a folder", "a socket", "a character device", "1099511627776 bytes long"] {
        let daemon = Daemon::serve(&place, &host);
        daemon.force(&place, &host);
        json(ask(&place, &["set", "a", "limit=100 iops"]));
        assert_eq!(daemon.terminate().code(), Some(0));
        std::fs::remove_file(&state).unwrap();
        match what {
            "a pipe" => drop(run(tool("mkfifo", "coreutils").arg(&state)).ok()),
            "a folder" => std::fs::create_dir(&state).unwrap(),
            "a socket" => listener = Some(std::os::unix::net::UnixListener::bind(&state).unwrap()),
            "a character device" => std::os::unix::fs::symlink("/dev/zero", &state).unwrap(),
            _ => std::fs::File::create_new(&state).unwrap().set_len(1 << 40).unwrap(),
        }
        let strict = Daemon::refused(&place, &host);
        assert!(strict.contains(&format!("is corrupt: it is {what}")), "{strict}");
        let daemon = Daemon::serve(&place, &host);
        let log = daemon.stderr().with("State set aside as state.json.damaged");
        assert!(log.contains(&format!("is corrupt: it is {what}")), "{log}");
        let status: Value = serde_json::from_str(&ask(&place, &["status"]).stdout).unwrap();
        assert_eq!((overrides(&place), &status["held_back"][0]["volume"]), (Vec::new(), &"a/v".into()), "{what}");
        // The next change replaces it.
        daemon.force(&place, &host);
        json(ask(&place, &["set", "a", "limit=200 iops"]));
        assert!(state.symlink_metadata().unwrap().is_file() && aside.symlink_metadata().is_ok(), "{what}");
        assert_eq!(daemon.terminate().code(), Some(0));
    }
    drop(listener);
}

#[test]
fn one_change_that_could_not_end_kept_all_others_in_force() {
    let place = Place::new();
    let (image, aside) = (place.image("b.img", MIB), place.file("aside.img"));
    let host =
        host(&place) + &place.volume("b", "v", &image, "") + &place.volume("b", "w", &place.image("w.img", MIB), "");
    let daemon = Daemon::serve(&place, &host);
    let over = |name: &str| format!("Override expired name=\"{name}\"");
    json(ask(&place, &["detach", "b/v", "--force", "b", "--for", "2s"]));
    json(ask(&place, &["detach", "b/w", "--force", "b", "--for", "2s"]));
    json(ask(&place, &["set", "a", "limit=100 iops", "--for", "2s"]));
    std::fs::rename(&image, &aside).unwrap();
    // All of them are over at the same time, and one after the others.
    json(ask(&place, &["set", "a", "weight=7", "--for", "4s"]));
    let log = daemon.stderr().up_to(&[&over("a/weight")]);
    assert!(log.contains(&over("a/limit")) && log.contains(&over("b/w")), "{log}");
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("Expired override stays in force")).collect();
    assert!(refused.len() == 1 && refused[0].contains("name=\"b/v\"") && refused[0].contains("b.img"), "{log}");
    assert_eq!(
        (limit(&place), size(&place, "b", "w"), overrides(&place)),
        (500.0, MIB, vec!["b/v=detached".to_owned()])
    );
    let known = &json(ask(&place, &["get", "overrides"]))["overrides"][0];
    assert!(
        known["overdue"] == true && known["until"].as_str().unwrap().ends_with(", over: cannot end yet, see the log"),
        "{known}"
    );
    // It is tried again.
    std::fs::rename(&aside, &image).unwrap();
    daemon.stderr().up_to(&[&over("b/v")]);
    assert_eq!((size(&place, "b", "v"), overrides(&place)), (MIB, Vec::new()));
}

/// Runs a program in its own mounts, with a small file system at this folder.
fn small_state(place: &Place) -> Daemon {
    let folder = place.file("state");
    std::fs::create_dir(&folder).unwrap();
    Daemon::serve_by(place, &host(place), |command| {
        let mut alone = tool("unshare", "util-linux");
        let script = "mount -t tmpfs -o size=64k,mode=700 none \"$0\" && exec \"$@\"";
        alone.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&folder);
        alone.arg(command.get_program()).args(command.get_args());
        alone
    })
}

/// Runs a command where the daemon runs.
fn beside(daemon: &Daemon, script: &str, folder: &Path) {
    let mut inside = tool("nsenter", "util-linux");
    run(inside.args(["--mount", "--target", &daemon.pid().to_string(), "sh", "-c", script]).arg(folder)).ok();
}

#[test]
fn a_change_that_could_not_be_written_was_half_made() {
    let place = Place::new();
    let daemon = small_state(&place);
    let folder = place.file("state");
    json(ask(&place, &["set", "a", "limit=400 iops"]));
    let refuse = |cause: &str| {
        let set = ask(&place, &["set", "a", "limit=100 iops"]);
        assert_eq!(set.code(), Some(4));
        let set = set.failed();
        assert!(set.contains("Cannot write the state directory") && set.contains(cause), "{set}");
        assert!(ask(&place, &["resize", "a/v", "8MiB"]).failed().contains(cause));
        assert!(ask(&place, &["detach", "a/v", "--force", "a"]).failed().contains(cause));
        assert_eq!(overrides(&place), ["a/limit=400 iops"]);
        assert_eq!(size(&place, "a", "v"), 2 * MIB);
        assert_eq!(std::fs::metadata(place.file("a.img")).unwrap().len(), 4 * MIB, "its file is as before");
    };
    beside(&daemon, "head -c 1M /dev/zero > \"$0\"/full 2>/dev/null; true", &folder);
    refuse("No space left");
    beside(&daemon, "rm \"$0\"/full", &folder);
    beside(&daemon, "mount -o remount,ro \"$0\"", &folder);
    refuse("Read-only file system");
    beside(&daemon, "mount -o remount,rw \"$0\"", &folder);
    json(ask(&place, &["set", "a", "limit=100 iops"]));
    assert_eq!(overrides(&place), ["a/limit=100 iops"]);
}

#[test]
fn no_change_ended_while_the_state_could_not_be_written() {
    let place = Place::new();
    let daemon = small_state(&place);
    json(ask(&place, &["set", "a", "limit=100 iops", "--for", "2s"]));
    json(ask(&place, &["set", "a", "weight=7", "--for", "3s"]));
    beside(&daemon, "head -c 1M /dev/zero > \"$0\"/full 2>/dev/null; true", &place.file("state"));
    assert_eq!(ask(&place, &["set", "a", "burst=3"]).code(), Some(4));
    daemon.stderr().up_to(&["Override expired name=\"a/limit\""]);
    daemon.stderr().up_to(&["Override expired name=\"a/weight\""]);
    assert_eq!(ask(&place, &["set", "a", "burst=3"]).code(), Some(4), "the state still cannot be written");
    assert_eq!(overrides(&place), [""; 0]);
}

#[test]
fn overrides_that_a_file_does_not_allow_are_taken_back_without_a_daemon() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    json(ask(&place, &["set", "a", "reservation=400 iops"]));
    daemon.kill();
    let small = host.replace("1000 iops@8KiB", "300 iops@8KiB").replace("500 iops", "unlimited");
    let file = place.write("host.toml", &small);
    let error = start(sluice().args(["serve", "--strict"]).arg(&file)).end().failed();
    assert!(error.contains("not with the changes made at run time: a/reservation"), "{error}");
    // Otherwise its VM has the file's policy until then.
    let daemon = Daemon::serve(&place, &small);
    daemon.stderr().with("Override set aside");
    assert_eq!(size(&place, "a", "v"), 2 * MIB);
    assert_eq!(json(ask(&place, &["status"]))["held_back"], serde_json::json!([]));
    daemon.kill();
    let state = place.file("state");
    let missing = place.file("missing");
    for verb in [&["get", "overrides"][..], &["reset", "--all"], &["state", "restore"]] {
        let ended = run(sluice().args(verb).arg("--state").arg(&missing));
        assert!(
            ended.code() == Some(1) && ended.stderr.contains("missing does not exist"),
            "{verb:?}: {}",
            ended.stderr
        );
    }
    assert!(!missing.exists());
    let listed = run(sluice().args(["get", "overrides", "--state"]).arg(&state)).ok();
    assert!(listed.contains("a/reservation"), "{listed}");
    run(sluice().args(["reset", "a/reservation", "--state"]).arg(&state)).ok();
    let _daemon = Daemon::serve(&place, &small);
}

#[test]
fn what_was_attached_for_a_time_was_taken_from_a_running_vm() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let source = format!("source={}", place.image("b.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("b", "w").display());
    // A client must connect in this time, also on a busy machine.
    let attach = || json(ask(&place, &["attach", "b/w", "device=disk", &source, &export, "--for", "3s"]));
    let open = || Raw::open(&place.volume_socket("b", "w"), "b/w").unwrap();
    attach();
    let mut client = open();
    // Its keys end on time.
    json(ask(&place, &["set", "b", "weight=7", "--for", "3s"]));
    let log = daemon.stderr().up_to(&["Override expired name=\"b/weight\""]);
    let log = log + &daemon.stderr().so_far();
    assert!(log.contains("Expired override stays in force: ending it would close a volume in use"), "{log}");
    client.read(0, 512).unwrap();
    let all = json(ask(&place, &["get", "overrides"]));
    let known =
        all["overrides"].as_array().unwrap().iter().map(|one| (one["name"].as_str().unwrap(), one["overdue"] == true));
    assert_eq!(known.collect::<Vec<_>>(), [("b", true), ("b/w", true)], "{all}");
    assert!(
        all["overrides"][1]["until"].as_str().unwrap().ends_with(", over: kept while its volume is in use"),
        "{all}"
    );
    drop(client);
    daemon.stderr().up_to(&["Override expired name=\"b/w\""]);
    assert!(Raw::open(&place.volume_socket("b", "w"), "b/w").is_err());
    assert_eq!(overrides(&place), [""; 0]);
    // A restart gives its client time to come back.
    attach();
    let client = open();
    daemon.stderr().up_to(&["Expired override stays in force"]);
    daemon.kill();
    drop(client);
    let daemon = Daemon::serve(&place, &host);
    open().read(0, 512).unwrap();
    assert_eq!(overrides(&place), ["b=attached", "b/w=attached"]);
    drop(daemon);
}

#[test]
fn a_vm_whose_attach_is_set_aside_was_served_without_its_policy() {
    let place = Place::new();
    let host = host(&place) + "[policy.gold]\nlimit = \"200 iops\"\n";
    let daemon = Daemon::serve(&place, &host);
    let source = format!("source={}", place.image("b.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("b", "w").display());
    json(ask(&place, &["attach", "b/w", "device=disk", &source, &export, "vm.policy=gold"]));
    assert_eq!(daemon.terminate().code(), Some(0));
    let daemon = Daemon::serve(&place, &host.replace("policy.gold", "policy.silver"));
    let shown = |verb: &[&str]| run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).stdout;
    let status = shown(&["status"]);
    assert!(status.contains("b/w is held back") && status.contains("b = attached is not in force"), "{status}");
    let overrides = shown(&["get", "overrides"]);
    assert!(overrides.contains("- (attached is set aside: the file does not allow it)"), "{overrides}");
    assert!(Raw::open(&place.volume_socket("b", "w"), "b/w").is_err());
    daemon.accept(&host);
    assert_eq!(size(&place, "b", "w"), MIB);
    assert!(!shown(&["status"]).contains("is not in force"));
}
