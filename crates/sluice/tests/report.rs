//! `sluice report`: one archive for a ticket.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Daemon, Ended, MIB, Place, run, sluice, tool, until};
use serde_json::Value;

/// A host with a volume, and with secrets wherever they may be.
fn host(place: &Place) -> String {
    let image = place.image("db.img", MIB);
    std::fs::create_dir_all(place.file("host.d")).unwrap();
    place.write("host.d/10-alert.toml", "[alert.down]\nwebhook = \"https://me:s3cret@b.example/s3cret\"\n");
    format!(
        "# Paging: https://p.example/s3cret\n{}{}{}[alert.all]\nwebhook = \"https://a.example/s3cret?k=s3cret\"\n",
        place.control_keys(),
        place.device("capacity = \"1000 iops@8KiB\""),
        place.volume("db", "v", &image, ""),
    )
}

fn report(place: &Place, more: &[&str]) -> Command {
    let mut command = sluice();
    command.args(["report", "--archive"]).arg(archive(place)).args(more).arg(place.file("host.toml"));
    command
}

fn archive(place: &Place) -> PathBuf {
    place.file("ticket.tar.gz")
}

/// The files of the archive by their names in its folder.
fn unpacked(place: &Place) -> BTreeMap<String, String> {
    let folder = place.file("unpacked");
    std::fs::create_dir_all(&folder).unwrap();
    run(tool("tar", "tar").arg("-C").arg(&folder).arg("-xzf").arg(archive(place))).ok();
    let mut files = BTreeMap::new();
    let top = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    read(&top, &top, &mut files);
    std::fs::remove_dir_all(folder).unwrap();
    files
}

fn read(top: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => read(top, &path, files),
            false => {
                let name = path.strip_prefix(top).unwrap().display().to_string();
                files.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
}

fn command_of(ended: &Ended, command: &str) -> Value {
    let result: Value = serde_json::from_str(&ended.stdout).unwrap();
    let part = result["parts"].as_array().unwrap().iter().find(|part| {
        let name = part["command"].as_str().unwrap();
        name.starts_with(&format!("sluice {command}"))
    });
    part.unwrap_or_else(|| panic!("{command}: {result}")).clone()
}

#[test]
fn a_report_has_what_the_commands_print_without_secrets() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let socket = place.socket("control");
    let socket = socket.to_str().unwrap();
    until("the first sample", || run(sluice().args(["status", "--socket", socket])).code() == Some(0));
    run(sluice().args(["set", "db", "limit=500 iops", "--reason", "s-and-t 4711", "--socket", socket])).ok();
    let made = run(&mut report(&place, &["--socket", socket, "-o", "json"]));
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    let result: Value = serde_json::from_str(&made.stdout).unwrap();
    let archived = archive(&place).metadata().unwrap();
    assert_eq!((result["size_bytes"].as_u64(), archived.permissions().mode() & 0o777), (Some(archived.len()), 0o600));
    let files = unpacked(&place);
    for name in ["status", "vms", "volumes", "devices", "clients", "policies", "overrides", "events", "check", "doctor"]
    {
        let (text, json) = (&files[&format!("{name}.txt")], &files[&format!("{name}.json")]);
        assert!(!text.is_empty());
        serde_json::from_str::<Value>(json).unwrap_or_else(|error| panic!("{name}: {error}: {json}"));
    }
    assert!(files["overrides.txt"].contains("s-and-t 4711") && files["metrics.prom"].contains("sluice_build_info{"));
    assert!(files["vms/db/why.txt"].contains("db") && files.contains_key("vms/db/history.json"));
    assert!(files["versions.txt"].contains("kernel: Linux"), "{}", files["versions.txt"]);
    let host = |name: &str| &files[&format!("host/{name}")];
    assert!(
        host("host.toml").contains("[vm.db")
            && host("host.toml").contains("webhook = \"https://a.example/[left-out]\"")
    );
    assert!(host("host.d/10-alert.toml").contains("[alert.down]"));
    for (name, text) in &files {
        assert!(!text.contains("s3cret"), "{name}: {text}");
    }
    let readme = &files["README.txt"];
    assert!(readme.contains("    vms/db/why.txt\n") && !readme.contains("missing"), "{readme}");

    let again = run(&mut report(&place, &["--socket", socket]));
    assert_eq!(again.code(), Some(4), "{}", again.stderr);
    assert_eq!(archive(&place).metadata().unwrap().len(), archived.len(), "it is not replaced");

    // A file that is wrong is no reason for none.
    std::fs::remove_file(archive(&place)).unwrap();
    std::fs::write(place.file("host.toml"), "[alert.all]\nwebhook = \"https://a.example/s3cret\"\n = 5\n").unwrap();
    let made = run(&mut report(&place, &["--socket", socket]));
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    assert!(made.stdout.contains("Not in it: sluice check"), "{}", made.stdout);
    let files = unpacked(&place);
    assert!(
        files["README.txt"].contains("not TOML") && !files["README.txt"].contains("s3cret"),
        "{}",
        files["README.txt"]
    );
    assert!(files.values().all(|text| !text.contains("s3cret")) && files["status.txt"].contains("disk"));
    drop(daemon);
}

#[test]
fn a_number_of_a_mistyped_key_was_left_out_of_the_whole_report() {
    let place = Place::new();
    std::fs::write(place.file("host.toml"), "[device.d]\nbackend = \"null\"\ndeep = 1\nwebhok = \"s3cret-of-some\"\n")
        .unwrap();
    let made = run(report(&place, &["--socket"]).arg(place.socket("control")));
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    let files = unpacked(&place);
    assert!(files["README.txt"].contains(env!("CARGO_PKG_VERSION")), "{}", files["README.txt"]);
    for (name, text) in &files {
        assert!(!text.contains("s3cret"), "{name}: {text}");
    }
    assert!(files["versions.txt"].contains(env!("CARGO_PKG_VERSION")), "{}", files["versions.txt"]);
}

#[test]
fn a_report_of_a_daemon_that_is_down_says_what_is_missing_and_has_its_record() {
    let place = Place::new();
    let text = host(&place) + &place.volume("gone", "v", &place.file("gone.img"), "");
    let daemon = Daemon::serve(&place, &text);
    let events = || run(sluice().args(["events", "--socket"]).arg(place.socket("control"))).stdout;
    until("an event is recorded", || events().contains("gone/v"));
    daemon.terminate();
    // Who names no socket asks the default one, where nothing listens.
    let made = run(&mut report(&place, &["-o", "json"]));
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    let missing = |command: &str| command_of(&made, command)["files"] == Value::Array(Vec::new());
    for command in ["status", "get vms", "metrics"] {
        assert!(missing(command), "{command}: {}", made.stdout);
        assert!(command_of(&made, command)["message"].as_str().unwrap().contains("No daemon at"), "{}", made.stdout);
    }
    assert!(command_of(&made, "get history db")["message"].as_str().unwrap().contains("Nothing is known of db"));
    for command in ["events", "why gone", "get overrides", "check", "doctor"] {
        assert!(!missing(command), "{command}: {}", made.stdout);
    }
    let files = unpacked(&place);
    assert!(files["README.txt"].contains("    missing: error: No daemon at"), "{}", files["README.txt"]);
    assert!(files["events.txt"].contains("gone/v"), "{}", files["events.txt"]);
    std::fs::remove_file(archive(&place)).unwrap();
    let shown = run(&mut report(&place, &[])).ok();
    assert_eq!(shown.matches("No daemon at").count(), 1, "said once for all that need it: {shown}");
}

#[test]
fn a_full_disk_leaves_no_part_of_an_archive() {
    let place = Place::new();
    place.write("host.toml", host(&place));
    let full = "mount -t tmpfs -o size=64k none \"$0\" && cd \"$0\" && head -c 64k /dev/zero > filler; \"$@\"; code=$?; ls -A; exit $code";
    let folder = place.file("full");
    std::fs::create_dir(&folder).unwrap();
    let mut command = tool("unshare", "util-linux");
    command.args(["--mount", "sh", "-c", full]).arg(&folder).arg(report(&place, &[]).get_program());
    command.args(["report", "--archive", "ticket.tar.gz"]).arg(place.file("host.toml")).env("SLUICE_SOCKET", "none");
    let ended = run(&mut command);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), "filler\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("Cannot write ticket.tar.gz: No space left"), "{}", ended.stderr);
}
