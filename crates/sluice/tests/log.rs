//! Log lines may be lost. The daemon never waits for the log or fails with it, and one VM's lines do not fill it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::process::Stdio;

use crate::common::raw::{READ, Raw, greet};
use crate::common::{Daemon, KIB, MIB, Place, noise, run, sluice, start_into, tool, until};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;

/// Two VMs with a volume each, and a control socket.
fn two_vms(place: &Place) -> String {
    let (a, b) = (place.image("a.img", MIB), place.image("b.img", MIB));
    let control = place.control_keys();
    control + &place.device("") + &place.volume("a", "v", &a, "") + &place.volume("b", "v", &b, "")
}

fn open(place: &Place, vm: &str) -> io::Result<Raw> {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v"))
}

/// Opens connections of VM `a` that send garbage: to the device thread, which logs it, and in the handshake.
fn break_connections(place: &Place, times: usize) {
    for _ in 0..times {
        let mut broken = open(place, "a").unwrap();
        let _ = broken.stream.write_all(&[0; 28]);
        assert!(broken.is_disconnected());
        let mut broken = greet(&place.volume_socket("a", "v")).unwrap();
        let _ = broken.write_all(b"no option at all");
    }
}

fn assert_serves(place: &Place, daemon: &Daemon, broken: usize) {
    let data = noise(1, 64 << 10);
    let mut fine = open(place, "b").unwrap();
    assert_eq!(fine.write(128 * KIB, &data), Ok(()));
    assert!(fine.read(128 * KIB, 64 << 10).unwrap() == data);
    let accounts = daemon.accounts();
    assert_eq!(accounts.number("a", "protocol_errors"), broken as u64);
    assert_eq!(accounts.device()["restarts"], 0);
    let mut set = sluice();
    set.arg("set").arg("--socket").arg(place.socket("control")).args(["b", "weight=7"]);
    run(&mut set).ok();
}

/// Returns a full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_log_on_a_full_disk_stops_neither_devices_nor_the_daemon() {
    let place = Place::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let daemon = Daemon::serve_into(&place, "host.toml", &two_vms(&place), full.into());
    break_connections(&place, 20);
    assert_serves(&place, &daemon, 20);
    daemon.signal(Signal::HUP);
    assert_serves(&place, &daemon, 20);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_log_at_the_limit_of_file_sizes_ended_the_daemon() {
    let place = Place::new();
    let log = File::options().append(true).create(true).open(place.file("log")).unwrap();
    let daemon = Daemon::serve_into(&place, "host.toml", &two_vms(&place), log.into());
    run(tool("prlimit", "util-linux").args(["--fsize=3000", "--pid", &daemon.pid().to_string()])).ok();
    break_connections(&place, 40);
    assert_eq!(std::fs::metadata(place.file("log")).unwrap().len(), 3000, "the limit was reached");
    assert_eq!(open(&place, "b").unwrap().read(0, 512), Ok(vec![0; 512]));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn an_unread_standard_error_delays_neither_vms_nor_the_exit() {
    let place = Place::new();
    let (reader, writer) = full_pipe();
    let daemon = Daemon::serve_into(&place, "host.toml", &two_vms(&place), writer.into());
    break_connections(&place, 400);
    assert_serves(&place, &daemon, 400);
    assert_eq!(daemon.terminate().code(), Some(0));
    drop(reader);
}

#[test]
fn an_unread_standard_output_delays_neither_vms_nor_the_exit() {
    let place = Place::new();
    let (reader, writer) = full_pipe();
    let file = place.write("host.toml", two_vms(&place));
    let daemon = start_into(sluice().arg("serve").arg(&file), writer.into(), Stdio::piped());
    daemon.stderr.up_to(&["Ready"]);
    (0..20).for_each(|_| daemon.signal(Signal::USR1));
    let mut fine = open(&place, "b").unwrap();
    assert_eq!(fine.read(0, 512), Ok(vec![0; 512]));
    daemon.signal(Signal::TERM);
    let ended = daemon.end();
    assert!(ended.stderr.contains("Drained"), "{}", ended.stderr);
    // A later reader of the statistics must not take them for complete.
    assert!(ended.stderr.contains("Cannot write all results to standard output"), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(1));
    drop(reader);
}

#[test]
fn protocol_errors_of_one_tenant_are_some_lines_and_a_count() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &two_vms(&place));
    break_connections(&place, 1000);
    let mut other = open(&place, "b").unwrap();
    let _ = other.stream.write_all(&[0; 28]);
    assert!(other.is_disconnected());
    let mut lines = daemon.stderr().up_to(&["Log lines suppressed"]);
    let of_b =
        |lines: &str| lines.lines().any(|line| line.contains("violated the protocol") && line.contains("vm=\"b\""));
    until("the other VM's socket exists", || {
        lines += &daemon.stderr().so_far();
        of_b(&lines)
    });
    let lines = lines.lines().filter(|line| line.contains("vm=\"a\"")).count();
    assert!((1..200).contains(&lines), "{lines} lines of 1000 broken connections");
    assert_eq!(daemon.accounts().number("a", "protocol_errors"), 1000);
}

/// Runs the daemon's command with a journal whose socket is in this folder, and with standard error as its stream.
fn under_journal(folder: &std::path::Path, command: &std::process::Command) -> std::process::Command {
    let mut alone = tool("unshare", "util-linux");
    let script = "mount -t tmpfs none /run && mkdir /run/systemd && ln -s \"$0\" /run/systemd/journal && \
                  export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) && exec \"$@\"";
    alone.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(folder);
    alone.arg(command.get_program());
    alone
}

#[test]
fn under_systemd_a_line_had_two_times_and_no_fields() {
    let place = Place::new();
    let folder = place.socket("journal");
    std::fs::create_dir(&folder).unwrap();
    let file = place.write("host.toml", two_vms(&place));
    let command = sluice();
    // Without a journal it is text, and the time is left to the reader of the stream.
    let mut text = under_journal(&folder, &command);
    let daemon = start_into(text.arg("serve").arg(&file), Stdio::piped(), Stdio::piped());
    let lines = daemon.stderr.up_to(&["Ready"]);
    assert!(lines.lines().all(|line| line.trim_start().starts_with("INFO sluice")), "{lines}");
    daemon.kill();
    let journal = std::os::unix::net::UnixDatagram::bind(folder.join("socket")).unwrap();
    journal.set_read_timeout(Some(crate::common::LONG)).unwrap();
    let mut journaled = under_journal(&folder, &command);
    let daemon = start_into(journaled.arg("serve").arg(&file), Stdio::piped(), Stdio::piped());
    let entry = |wanted: &str| loop {
        let mut entry = vec![0; 1 << 16];
        let len = journal.recv(&mut entry).unwrap();
        let text = String::from_utf8_lossy(&entry[..len]).into_owned();
        if text.contains(wanted) {
            return text;
        }
    };
    let starting = entry("MESSAGE=Starting");
    assert!(starting.contains(&format!("VERSION={}\n", env!("CARGO_PKG_VERSION"))), "{starting}");
    assert!(
        starting.contains(&format!("FILES={}\n", file.display())) && starting.contains("PRIORITY=6\n"),
        "{starting}"
    );
    entry("MESSAGE=Ready");
    break_connections(&place, 1);
    let broken = entry("violated the protocol");
    assert!(broken.contains("VM=a\n") && broken.contains("SYSLOG_IDENTIFIER=sluice\n"), "{broken}");
    // Diagnostics of several lines are one entry.
    std::fs::write(&file, "[vm.a]\nweight = \"x\"\n").unwrap();
    daemon.signal(Signal::HUP);
    let diagnostics = entry("host.toml:2");
    assert!(diagnostics.starts_with("MESSAGE\n"), "{diagnostics}");
    daemon.signal(Signal::TERM);
    entry("MESSAGE=Drained");
    assert_eq!(daemon.end().stderr, "");
}

#[test]
fn log_lines_are_json_if_results_are() {
    let place = Place::new();
    let file = place.write("host.toml", two_vms(&place));
    let daemon = start_into(sluice().args(["-o", "json", "serve"]).arg(&file), Stdio::piped(), Stdio::piped());
    daemon.stderr.up_to(&["Ready"]);
    std::fs::write(&file, "[vm.a]\nweight = \"x\"\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.stderr.up_to(&["the running configuration is unchanged"]);
    daemon.signal(Signal::TERM);
    let lines = daemon.end().stderr;
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["time"].is_string() && line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    let ready = lines.lines().find(|line| line.contains("\"message\":\"Ready\"")).unwrap();
    let ready: serde_json::Value = serde_json::from_str(ready).unwrap();
    assert_eq!((&ready["vms"], &ready["level"]), (&2.into(), &"info".into()));
}

#[test]
fn a_device_that_ended_with_the_daemon_was_reported_as_down() {
    let place = Place::new();
    let null = |name: &str, lines: &str| {
        let socket = place.volume_socket(name, "v");
        format!(
            "[device.{name}]\nbackend = \"null\"\n{lines}[vm.{name}.volume.v]\ndevice = \"{name}\"\nsize = \"1MiB\"\nexport = {{ \
             socket = \"{}\" }}\n",
            socket.display()
        )
    };
    // One device ends immediately, and the daemon waits for the other one, for longer than the time between two samples.
    let host = place.control_keys() + &null("idle", "") + &null("slow", "delay = { time = \"2500ms\" }\n");
    let daemon = Daemon::serve(&place, &host);
    let mut client = open(&place, "slow").unwrap();
    client.send(READ, 0, 0, 4096, &[]).unwrap();
    until("the request is at the device", || {
        let accounts = daemon.accounts();
        accounts.0["devices"].as_array().unwrap().iter().any(|device| device["in_flight"] == 1)
    });
    let ended = daemon.terminate();
    assert!(ended.stderr.contains("Drained") && !ended.stderr.contains("does not serve"), "{}", ended.stderr);
}

#[test]
fn the_level_of_the_log_is_an_option() {
    let place = Place::new();
    let file = place.write("host.toml", two_vms(&place));
    let refused = run(sluice().args(["--log", "sluice=loud", "check"]).arg(&file));
    assert_eq!(refused.code(), Some(2));
    // It overrides the variable. At any level, a machine without time for the device thread may have a warning.
    for (level, is_info_logged) in [("info", true), ("warn", false)] {
        let mut daemon = sluice();
        daemon
            .env("RUST_LOG", "trace")
            .args(["-o", "json", "--log-format", "text", "serve", "--log", level])
            .arg(&file);
        let daemon = start_into(&mut daemon, Stdio::piped(), Stdio::piped());
        daemon.stdout.up_to(&["\"event\":\"ready\""]);
        daemon.signal(Signal::TERM);
        let log = daemon.end().stderr;
        let has = |level: &str| log.lines().any(|line| line.split_whitespace().any(|word| word == level));
        assert_eq!((has("INFO"), has("DEBUG"), has("TRACE")), (is_info_logged, false, false), "{log}");
    }
}

#[test]
fn every_change_is_a_line_with_who_what_before_and_after() {
    let place = Place::new();
    let host = two_vms(&place);
    let daemon = Daemon::serve(&place, &host);
    let ask = |verb: &[&str]| run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).ok();
    let changed = |needles: &[&str]| {
        let lines = daemon.stderr().up_to(&["Changed at run time", "Reload applied"]);
        let line = lines.lines().last().unwrap();
        let who = format!("who=uid {}, gid ", rustix::process::getuid().as_raw());
        let all = line.replace(['"', '\\'], "");
        let needles = needles.iter().copied().chain([&*who]);
        let missing: Vec<_> = needles.filter(|needle| !all.contains(needle)).collect();
        assert!(missing.is_empty(), "{missing:?} is not in {line}");
    };
    ask(&["set", "a", "weight=7", "--reason", "noisy"]);
    changed(&["what=set a weight=7", "before=weight=100.0", "after=weight=7.0", "reason=noisy"]);
    // A key that no description has.
    ask(&["set", "a", "allow_slow=true"]);
    changed(&["what=set a allow_slow=true", "before=a/allow_slow=-", "after=a/allow_slow=true"]);
    ask(&["resize", "a/v", "2MiB"]);
    changed(&["what=resize a/v", "after=size_bytes=2097152"]);
    ask(&["detach", "b"]);
    changed(&["what=detach b", "before=", "after=-"]);
    ask(&["reset", "b"]);
    changed(&["what=reset b", "before=-", "after=class=foreground", "weight=100.0"]);
    let source = format!("source={}", place.image("c.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("c", "v").display());
    ask(&["attach", "c/v", "device=disk", &source, &export]);
    changed(&["what=attach c/v", "before=-", "c.img"]);
    ask(&["detach", "c"]);
    changed(&["what=detach c"]);
    ask(&["reset", "a/weight"]);
    changed(&["what=reset a/weight", "before=weight=7.0", "after=weight=100.0"]);
    ask(&["set", "b", "weight=9"]);
    changed(&["what=set b"]);
    ask(&["reset", "--all"]);
    changed(&["what=reset --all", "b/weight=9", "a/v/size=2MiB"]);
}

#[test]
fn of_many_changes_at_once_only_some_were_in_the_log() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &two_vms(&place));
    let count = 100;
    let ask = |verb: &[&str]| run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).ok();
    for change in 1..=count {
        ask(&["set", "a", &format!("weight={change}")]);
    }
    let mut lines = String::new();
    until("the last change is in the log", || {
        lines += &daemon.stderr().so_far();
        lines.contains(&format!("set a weight={count}\""))
    });
    let logged = lines.lines().filter(|line| line.contains("Changed at run time")).count();
    assert_eq!(logged, count, "{lines}");
}
