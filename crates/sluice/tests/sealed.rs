//! A daemon that has sealed itself: what it says of that, what a change may not name, and what is missing with which kernel. What code in
//! it may try is in the tests of `sluice-client`.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::raw::Raw;
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, tool, until};

const ALL: &str = "privileges, landlock, rings, seccomp";

fn host(place: &Place, daemon: &str) -> String {
    let image = place.file("v.img");
    fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    place.control_keys() + daemon + &place.device("") + &place.volume("a", "v", &image, "size = \"1MiB\"")
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

/// The layers of the daemon by their states, and its exit code.
fn layers(place: &Place, state: &str) -> Vec<String> {
    let status: Value = serde_json::from_str(&ask(place, &["status"]).stdout).unwrap();
    let layers = status["jail"]["layers"].as_array().unwrap().clone();
    let those = layers.iter().filter(|layer| layer["state"] == state);
    those.map(|layer| layer["name"].as_str().unwrap().to_owned()).collect()
}

/// Serves as under a kernel in which these calls fail.
fn serve_without(place: &Place, daemon: &str, calls: &str) -> Daemon {
    Daemon::serve_by(place, &host(place, daemon), |command| traced(command, calls))
}

fn traced(command: &Command, calls: &str) -> Command {
    let mut strace = tool("strace", "strace");
    // The daemon stays the child of the test.
    strace.args(["-D", "-f", "-o", "/dev/null", "-e", calls]);
    strace.arg(command.get_program()).args(command.get_args());
    strace
}

#[test]
fn what_is_in_force_is_told_by_the_log_status_check_doctor_and_metrics() {
    let place = Place::new();
    let metrics = format!("metrics = \"{}\"\n", place.socket("metrics").display());
    let daemon = Daemon::serve(&place, &host(&place, &metrics));
    assert!(daemon.stderr().up_to(&["Ready"]).contains(&format!("Sealed layers=\"{ALL}\"")));
    assert_eq!(layers(&place, "in-force").join(", "), ALL);
    let table = run(sluice().arg("status").arg("--socket").arg(place.socket("control")));
    assert!(table.stdout.contains(&format!("Sealed by {ALL}")), "{}", table.stdout);
    let checked = run(sluice().args(["check", "--host"]).arg(place.file("host.toml"))).ok();
    assert!(checked.contains(&format!("The daemon seals itself by {ALL}")), "{checked}");
    let examined = run(sluice().args(["doctor"]));
    assert!(examined.stdout.contains(&format!("The daemon seals itself by {ALL}")), "{}", examined.stdout);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    let exported =
        run(tool("curl", "curl").args(["-s", "--unix-socket"]).arg(place.socket("metrics")).arg("http://d/metrics"));
    assert!(exported.stdout.contains("sluice_jail_layer{layer=\"landlock\"} 1"), "{}", exported.stdout);
    assert!(exported.stdout.contains("sluice_jail_refused_calls_total 0"), "it does what it may");
}

#[test]
fn a_layer_can_be_left_out_by_name_and_that_is_said_at_each_start() {
    let place = Place::new();
    let without = "jail = { without = [\"landlock\", \"seccomp\"] }\n";
    let daemon = Daemon::serve(&place, &host(&place, without));
    let log = daemon.stderr().up_to(&["Ready"]);
    assert!(log.contains("left out") && log.contains("without=\"landlock, seccomp\""), "{log}");
    assert_eq!(layers(&place, "left-out"), ["landlock", "seccomp"]);
    // What it may reach is not restricted then.
    let elsewhere = Place::new();
    let image = elsewhere.image("w.img", MIB);
    daemon.accept(&(host(&place, without) + &place.volume("b", "w", &image, "size = \"1MiB\"")));
    let changed = daemon.reload(&host(&place, ""));
    assert!(changed.contains("Restart the daemon to change jail"), "{changed}");
    let wrong = Daemon::refused(&place, &host(&place, "jail = { without = [\"selinux\"] }\n"));
    assert!(wrong.contains("write a list of") && wrong.contains("landlock"), "{wrong}");
    let wrong = Daemon::refused(&place, &host(&place, "jail = \"none\"\n"));
    assert!(wrong.contains("'none' is not an accepted value"), "{wrong}");
}

#[test]
fn a_kernel_without_a_layer_is_told_and_refused_where_all_are_required() {
    for (calls, layer) in [
        ("inject=landlock_create_ruleset:error=ENOSYS", "landlock"),
        ("inject=seccomp:error=EINVAL", "seccomp"),
        ("inject=capset:error=EPERM", "privileges"),
    ] {
        let place = Place::new();
        let daemon = serve_without(&place, "", calls);
        let log = daemon.stderr().up_to(&["Ready"]);
        assert!(log.contains(&format!("Seal: {layer} is missing")), "{layer}: {log}");
        assert_eq!(layers(&place, "missing"), [layer]);
        Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap().write(0, &noise(1, 4096)).unwrap();
        drop(daemon);
        let file = place.write("required.toml", host(&place, "jail = \"required\"\n"));
        let mut command = sluice();
        command.arg("serve").arg(&file);
        let refused = run(&mut traced(&command, calls)).failed();
        assert!(refused.contains("jail = \"required\"") && refused.contains(layer), "{refused}");
    }
}

#[test]
fn a_change_that_needs_another_folder_or_program_says_that_it_needs_a_restart() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place, ""));
    let elsewhere = Place::new();
    let image = elsewhere.image("w.img", MIB);
    let more = host(&place, "") + &place.volume("b", "w", &image, "size = \"1MiB\"");
    let refused = daemon.reload(&more);
    let folder = format!("the folder {}", elsewhere.folder().display());
    assert!(refused.contains(&folder) && refused.contains("Restart the daemon"), "{refused}");
    let socket = format!("export.socket={}", place.volume_socket("b", "w").display());
    let source = format!("source={}", image.display());
    let attached = ask(&place, &["attach", "b/w", "device=disk", &source, &socket, "--until-restart"]);
    assert!(attached.failed().contains(&folder));
    assert_eq!(daemon.terminate().code(), Some(0));
    let _daemon = Daemon::serve(&place, &more);
    Raw::open(&place.volume_socket("b", "w"), "b/w").unwrap().write(0, &noise(1, 4096)).unwrap();
}

/// Landlock goes by files and not by names: a file system that is mounted later is another folder.
#[test]
fn a_file_system_that_is_mounted_after_the_seal_is_served() {
    let place = Place::new();
    let folder = place.file("images");
    fs::create_dir(&folder).unwrap();
    let image = folder.join("disk/v.img");
    let device = format!("[device.late]\npath = \"{}\"\n", folder.join("disk").display());
    let volume = place.volume("late", "v", &image, "size = \"1MiB\"").replace("\"disk\"", "\"late\"");
    let daemon = Daemon::serve(&place, &(host(&place, "") + &device + &volume));
    let out = || daemon.accounts().0["out_of_service"].clone();
    assert_eq!(out(), json!(["[device]/late", "late/v"]));
    run(tool("mount", "mount").args(["-t", "tmpfs", "none"]).arg(&folder)).ok();
    fs::create_dir(folder.join("disk")).unwrap();
    fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    until("it is served", || out() == json!([]));
    Raw::open(&place.volume_socket("late", "v"), "late/v").unwrap().write(0, &noise(1, 4096)).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));
    run(tool("umount", "mount").arg(&folder)).ok();
}

/// The look at what to allow has a process of its own, and no path keeps it for long.
#[test]
fn slow_paths_left_the_daemon_without_a_seal() {
    let place = Place::new();
    let mut text = host(&place, "");
    for number in 0..40 {
        let folder = place.file(&format!("folder-{number}"));
        fs::create_dir(&folder).unwrap();
        fs::File::create(folder.join("v.img")).unwrap().set_len(MIB).unwrap();
        text += &place.volume(&format!("vm{number}"), "v", &folder.join("v.img"), "size = \"1MiB\"");
    }
    let daemon = Daemon::serve_by(&place, &text, |command| traced(command, "inject=readlink:delay_enter=20000"));
    let log = daemon.stderr().up_to(&["Ready"]);
    assert!(log.contains(&format!("Sealed layers=\"{ALL}\"")), "{log}");
}

/// Landlock goes by files: a folder that is made again is another one.
#[test]
fn what_is_made_again_after_the_seal_is_refused_with_the_cause() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let image = elsewhere.file("w.img");
    let make = || fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    make();
    let volume = place.volume("b", "w", &image, "size = \"1MiB\"");
    let daemon = Daemon::serve(&place, &(host(&place, "") + &volume));
    daemon.accept(&host(&place, ""));
    fs::remove_dir_all(elsewhere.folder()).unwrap();
    fs::create_dir(elsewhere.folder()).unwrap();
    make();
    let refused = daemon.reload(&(host(&place, "") + &volume));
    assert!(refused.contains("Permission denied") && refused.contains("restart the daemon"), "{refused}");
}

#[test]
fn a_launcher_that_was_killed_is_told() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place, ""));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", daemon.pid())).unwrap();
    let is_launcher = |pid: &&str| {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.contains("launcher")
    };
    let launcher = children.split_whitespace().find(is_launcher).expect("it is a child of the daemon");
    // It outlives what a terminal sends to the group of the daemon.
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::HUP, rustix::process::Signal::KILL] {
        let pid = rustix::process::Pid::from_raw(launcher.parse().unwrap()).unwrap();
        assert_eq!(layers(&place, "missing"), [""; 0]);
        rustix::process::kill_process(pid, signal).unwrap();
    }
    daemon.stderr().up_to(&["The process for programs and connections has ended"]);
    until("it is told", || layers(&place, "missing") == ["launcher"]);
    Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap().write(0, &noise(1, 4096)).unwrap();
}
