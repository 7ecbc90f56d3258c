//! Roles of clients of the control socket: what processes of other users may do, and what a refusal says.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Daemon, Ended, MIB, Place, install, run, sluice, start};
use serde_json::Value;

/// Numbers that no account of this host has.
const OBSERVER: u32 = 64_101;
const CHANGER: u32 = 64_102;
const ATTACHER: u32 = 64_103;
const STRANGER: u32 = 64_104;
/// Group of the control socket.
const GROUP: u32 = 64_110;

/// A place whose sockets other users can reach, with a copy of the program that they can start.
struct Shared {
    place: Place,
    program: PathBuf,
}

impl Shared {
    fn new() -> Shared {
        let place = Place::new();
        let program = place.socket("sluice");
        install(sluice().get_program().as_ref(), &program);
        let folder = program.parent().unwrap();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(place.file("vms")).unwrap();
        std::fs::create_dir(place.socket("vms")).unwrap();
        Shared { place, program }
    }

    fn host(&self, access: &str) -> String {
        let place = &self.place;
        let image = place.image("a.img", 4 * MIB);
        place.control_keys()
            + &format!(
                "source_root = \"{}\"\n[daemon.access]\ngroup = \"{GROUP}\"\n{access}\n",
                place.file("vms").display()
            )
            + &place.device("capacity = \"1000 iops@8KiB\"")
            + "[vm.a]\nweight = 100\n"
            + &place.volume("a", "v", &image, "")
    }

    /// Runs a verb as a member of the socket's group.
    fn as_user(&self, uid: u32, verb: &[&str]) -> Ended {
        let mut command = Command::new(&self.program);
        // The kernel lets a process without privileges keep no supplementary group of root.
        command.uid(uid).gid(GROUP).current_dir("/");
        run(command.args(verb).arg("--socket").arg(self.place.socket("control")))
    }

    fn attach(&self, uid: u32, source: &str, socket: &str, more: &[&str]) -> Ended {
        let place = &self.place;
        let (source, socket) = (place.file(source), place.socket(socket));
        let keys = [format!("source={}", source.display()), format!("export.socket={}", socket.display())];
        let verb = ["attach", "b/v", "device=disk", &keys[0], &keys[1]];
        self.as_user(uid, &[&verb, more].concat())
    }
}

fn roles(shared: &Shared) -> String {
    format!(
        "change = [\"user:{CHANGER}\"]\nattach = [\"user:{ATTACHER}\"]\nsocket_root = \"{}\"\nsocket_accounts = [\"user:{STRANGER}\"]\n",
        shared.place.socket("vms").display()
    )
}

#[test]
fn users_have_the_roles_that_the_host_file_gives() {
    let shared = Shared::new();
    let _daemon = Daemon::serve(&shared.place, &shared.host(&roles(&shared)));
    let refused = |uid: u32, verb: &[&str], needs: &str| {
        let ended = shared.as_user(uid, verb);
        assert_eq!(ended.code(), Some(4), "{verb:?} as {uid}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(needs), "{verb:?} as {uid}: {}", ended.stderr);
    };
    shared.as_user(OBSERVER, &["get", "overrides"]).ok();
    refused(OBSERVER, &["set", "a", "weight=300"], "needs the role change, and uid 64101 has the role observe");
    refused(
        OBSERVER,
        &["set", "a", "weight=300"],
        "add \"user:64101\" or one of its groups to change in [daemon.access] of ",
    );
    shared.as_user(CHANGER, &["set", "a", "weight=300"]).ok();
    refused(CHANGER, &["set", "a/v", "read_only=true"], "needs the role attach");
    refused(CHANGER, &["detach", "a"], "needs the role attach");
    refused(CHANGER, &["resize", "a/v", "8MiB"], "needs the role attach");
    shared.as_user(ATTACHER, &["set", "a/v", "weight=5"]).ok();
    refused(CHANGER, &["apply", "/etc/hostname", "--dry-run"], "only for root and the daemon's own user");
    refused(ATTACHER, &["accept-loss", "a"], "only for root and the daemon's own user");
    shared.as_user(CHANGER, &["reset", "a/weight"]).ok();
    let events = shared.as_user(OBSERVER, &["-o", "json", "events", "--kind", "role_refused"]).ok();
    let events: Value = serde_json::from_str(&events).unwrap();
    let refused = events["events"].as_array().unwrap().iter().map(|event| event["change"]["uid"].clone());
    assert_eq!(refused.collect::<Vec<_>>(), [OBSERVER, CHANGER, ATTACHER], "one for each user: {events}");
    assert_eq!(events["events"][0]["change"]["role"], "observe");
    let overrides = shared.as_user(OBSERVER, &["-o", "json", "get", "overrides"]).ok();
    let overrides: Value = serde_json::from_str(&overrides).unwrap();
    let names: Vec<_> = overrides["overrides"].as_array().unwrap().iter().map(|known| &known["name"]).collect();
    assert_eq!(names, ["a/v/weight"], "who made it is known: {overrides}");
    assert_eq!(overrides["overrides"][0]["uid"], ATTACHER);
}

#[test]
fn a_user_that_attaches_may_not_name_any_source_or_socket() {
    let shared = Shared::new();
    let place = &shared.place;
    place.image("outside.img", MIB);
    place.image("vms/b.img", MIB);
    let _daemon = Daemon::serve(place, &shared.host(&roles(&shared)));
    let refused = |ended: Ended, error: &str| {
        let text = ended.failed();
        assert!(text.contains(error), "{text}");
    };
    refused(shared.attach(ATTACHER, "outside.img", "vms/b", &[]), "the source_root of [daemon]");
    refused(shared.attach(ATTACHER, "vms/b.img", "b", &[]), "export.socket: ");
    refused(
        shared.attach(ATTACHER, "vms/b.img", "vms/b", &["export.owner=\"0\""]),
        "add \"user:0\" to socket_accounts",
    );
    refused(shared.attach(ATTACHER, "vms/b.img", "vms/b", &["export.mode=\"0666\""]), "permits more than 0660");
    let owner = format!("export.owner=\"{STRANGER}\"");
    shared.attach(ATTACHER, "vms/b.img", "vms/b", &[&owner, "export.mode=\"0600\"", "vm.weight=5"]).ok();
    let socket = std::fs::metadata(place.socket("vms/b")).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (STRANGER, 0o600));
    refused(shared.as_user(ATTACHER, &["set", "b/v", "export.mode=\"0666\""]), "permits more than 0660");
    shared.as_user(ATTACHER, &["detach", "b"]).ok();
}

#[test]
fn roles_change_with_a_reload() {
    let shared = Shared::new();
    let host = shared.host("observe = []\n");
    let daemon = Daemon::serve(&shared.place, &host);
    let get = || shared.as_user(OBSERVER, &["get", "overrides"]);
    assert!(get().failed().contains("needs the role observe, and uid 64101 has no role"));
    daemon.accept(&host.replace("observe = []", &format!("observe = [\"user:{OBSERVER}\"]")));
    get().ok();
    let log = daemon.reload(&host.replace("observe = []", "observe = [\"user:nobody-has-this-name\"]"));
    assert!(log.contains("does not exist on this host") && log.contains("nobody-has-this-name"), "{log}");
    get().failed();
}

#[test]
fn a_user_outside_of_the_group_is_told_how_to_connect() {
    let shared = Shared::new();
    let _daemon = Daemon::serve(&shared.place, &shared.host(""));
    let socket = std::fs::metadata(shared.place.socket("control")).unwrap();
    assert_eq!((socket.uid(), socket.gid(), socket.mode() & 0o777), (0, GROUP, 0o660));
    let mut command = Command::new(&shared.program);
    command.uid(STRANGER).gid(STRANGER).current_dir("/");
    let ended = run(command.args(["get", "overrides", "--socket"]).arg(shared.place.socket("control")));
    assert_eq!(ended.code(), Some(5));
    assert!(ended.stderr.contains("become root, or a member of the group"), "{}", ended.stderr);
}

#[test]
fn without_its_folder_the_daemon_serves_without_a_control_socket() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.device("") + &place.volume("a", "v", &image, "");
    let file = place.write("host.toml", &host);
    let serve = |socket: &PathBuf| start(sluice().env("SLUICE_SOCKET", socket).arg("serve").arg(&file));
    let missing = serve(&place.socket("missing/control"));
    let log = missing.stderr.up_to(&["Ready"]);
    assert!(log.contains("No control socket: ") && log.contains("create its folder"), "{log}");
    assert_eq!(log.matches("control socket").count(), 1, "one line: {log}");
    missing.kill();
    let socket = place.socket("control");
    let first = serve(&socket);
    first.stderr.up_to(&["Ready"]);
    run(sluice().env("SLUICE_SOCKET", &socket).args(["get", "overrides"])).ok();
    // Another daemon serves other volumes; the first one keeps the socket.
    let other = place.write("other.toml", place.device("") + &place.volume("b", "v", &place.image("b.img", MIB), ""));
    let second = start(sluice().env("SLUICE_SOCKET", &socket).arg("serve").arg(other));
    let log = second.stderr.up_to(&["Ready"]);
    assert!(log.contains("No control socket: ") && log.contains("in use by another process"), "{log}");
    run(sluice().env("SLUICE_SOCKET", &socket).args(["get", "overrides"])).ok();
}
