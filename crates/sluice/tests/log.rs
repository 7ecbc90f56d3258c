//! Log lines may be lost. The daemon never waits for the log or fails with it, and one VM's lines do not fill it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::process::Stdio;

use common::raw::{Raw, greet};
use common::{Daemon, KIB, MIB, Place, noise, run, sluice, start_into, tool, until};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;

mod common;

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
