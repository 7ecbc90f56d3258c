//! The page on a Unix socket, with curl in place of a proxy.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::{Answer, api, curl, host};
use crate::common::{Daemon, Place, Running, install, run, sluice, start};

/// Numbers that no account of this host has.
const OBSERVER: u32 = 64_201;
const GROUP: u32 = 64_210;

/// Arguments of a page server in this place.
fn arguments(place: &Place, socket: &Path, more: &[&str]) -> Vec<String> {
    let (control, socket) = (place.socket("control").display().to_string(), socket.display().to_string());
    let verb = ["-o", "json", "ui", "--socket", &control, "--unix", &socket, "--host", "ui.example.org"];
    verb.iter().chain(more).map(ToString::to_string).collect()
}

/// The form of VM `b` of curl, with another weight, and the origin of the page.
const FORM: [&str; 6] = [
    "--data",
    "reservation=none&limit=unlimited&weight=7",
    "--data",
    "term=600",
    "--header",
    "origin: https://ui.example.org",
];

/// Starts a page server with these arguments, and waits until it listens.
fn share(command: &mut Command, arguments: &[String]) -> Running {
    let running = start(command.args(arguments));
    running.stdout.up_to(&["\"hosts\""]);
    running
}

/// Asks with a name of the host and more arguments of curl.
fn ask(place: &Place, socket: &Path, host: &str, path: &str, more: &[&str]) -> Answer {
    curl(place, &format!("http://{host}{path}"), &[&["--unix-socket", socket.to_str().unwrap()], more].concat())
}

fn failed(arguments: &[String]) -> String {
    run(sluice().args(arguments)).failed()
}

#[test]
fn a_shared_page_needs_no_key_and_answers_its_own_names_and_forms_alone() {
    let place = Place::new();
    let text = host(&place);
    let daemon = Daemon::serve(&place, &text);
    let socket = place.socket("page");
    let shared = share(&mut sluice(), &arguments(&place, &socket, &["--host", "other.example.org"]));
    assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o660);
    for host in ["ui.example.org", "ui.example.org:8443", "other.example.org"] {
        ask(&place, &socket, host, "/vms", &[]).has(200, &["1 to 2 of 2"]);
    }
    ask(&place, &socket, "evil.example", "/", &[]).has(421, &["are: ui.example.org, other.example.org"]);
    let post = |host: &str, more: &[&str]| {
        ask(&place, &socket, host, "/change/b", &[&FORM[..], &["--data", "step=preview"], more].concat())
    };
    post("other.example.org", &[]).has(403, &["comes from another site"]);
    post("ui.example.org", &["--header", "sec-fetch-site: cross-site"]).has(403, &["comes from another site"]);
    post("ui.example.org", &[]).has(200, &["What the change does"]);
    // The page goes on without the daemon, and has the next one.
    daemon.terminate();
    ask(&place, &socket, "ui.example.org", "/vms", &[]).has(503, &["The daemon cannot be reached"]);
    let _daemon = Daemon::serve(&place, &text);
    ask(&place, &socket, "ui.example.org", "/vms", &[]).has(200, &["1 to 2 of 2"]);
    shared.signal(Signal::INT);
    assert_eq!(shared.end().code(), Some(0));
    assert!(!socket.exists(), "its file is removed");
}

#[test]
fn a_socket_that_is_used_is_refused_and_that_of_an_ended_process_is_replaced() {
    let place = Place::new();
    let socket = place.socket("page");
    let arguments = arguments(&place, &socket, &[]);
    let first = share(&mut sluice(), &arguments);
    let said = failed(&arguments);
    assert!(said.contains("is in use by another process; stop it or choose another socket"), "{said}");
    first.kill();
    assert!(socket.exists());
    let second = share(&mut sluice(), &arguments);
    ask(&place, &socket, "ui.example.org", "/assets/ui.css", &[]).has(200, &[]);
    second.kill();
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "kept").unwrap();
    let said = failed(&arguments);
    assert!(said.contains("exists and is not a socket; remove it or choose another path"), "{said}");
    assert_eq!(std::fs::read(&socket).unwrap(), b"kept");
}

#[test]
fn options_of_the_two_forms_of_a_page_are_not_mixed() {
    for (options, expected) in [
        (&["--unix", "page"][..], "--host <NAME>"),
        (&["--host", "ui.example.org"], "--unix <PATH>"),
        (&["--group", "nogroup"], "--unix <PATH>"),
        (&["--unix", "page", "--host", "ui.example.org", "--port", "8123"], "cannot be used with"),
        (&["--unix", "page", "--host", "https://ui.example.org"], "without https://"),
    ] {
        let ended = run(sluice().arg("ui").args(options));
        assert_eq!(ended.code(), Some(2), "{options:?}");
        assert!(ended.stderr.contains(expected), "{options:?}: {}", ended.stderr);
    }
}

#[test]
fn a_page_of_a_user_with_the_role_observe_says_that_it_may_not_change() {
    let place = Place::new();
    let access = format!("[daemon.access]\ngroup = \"{GROUP}\"\n[device.disk]");
    let _daemon = Daemon::serve(&place, &host(&place).replacen("[device.disk]", &access, 1));
    let (program, folder) = (place.socket("sluice"), place.socket("ui"));
    install(sluice().get_program().as_ref(), &program);
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(folder.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&folder, Some(OBSERVER), Some(GROUP)).unwrap();
    let socket: PathBuf = folder.join("page");
    // The kernel lets a process without privileges keep no supplementary group of root.
    let mut command = Command::new(&program);
    let _shared = share(command.uid(OBSERVER).gid(GROUP).current_dir("/"), &arguments(&place, &socket, &[]));
    ask(&place, &socket, "ui.example.org", "/vms/b", &[]).has(200, &["VM b"]);
    let change = [&FORM[..], &["--data", "step=confirm"]].concat();
    let refused = ask(&place, &socket, "ui.example.org", "/change/b", &change);
    refused.has(403, &["needs the role change, and uid 64201 has the role observe"]);
    assert_eq!(api(&place, "/v1/overrides")["total"], 0);
}
