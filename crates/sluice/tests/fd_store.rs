//! TAPs in the descriptor store of the service manager: a killed daemon and the next one use the same interfaces.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::stations::namespace;
use crate::common::{Daemon, Ended, LONG, Place, run, sluice, until};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_client::net::Namespace;

/// The service manager: its socket, and its store, which may have several descriptors of a name.
struct Manager {
    socket: UnixDatagram,
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    fn new(place: &Place) -> Manager {
        let socket = UnixDatagram::bind(place.socket("notify")).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Manager { socket, store: Vec::new() }
    }

    /// Handles messages up to one with this line.
    fn up_to(&mut self, line: &str) {
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
            let text = String::from_utf8(bytes[..received.unwrap().bytes].to_vec()).unwrap();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
            let passed = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            for fd in passed.flatten() {
                assert!(text.lines().any(|line| line == "FDSTORE=1") && text.contains("FDPOLL=0"), "{text}");
                // Not among the numbers at which the daemon gets them.
                self.store.push((name.clone(), fcntl_dupfd_cloexec(fd, 100).unwrap()));
            }
            if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
                let before = self.store.len();
                self.store.retain(|(known, _)| *known != name);
                assert!(self.store.len() < before, "{name} is not in the store");
            }
            if text.lines().any(|of| of == line) {
                return;
            }
        }
    }

    /// Names of what is in the store, in order.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Starts the daemon in a namespace, with what is in the store.
    fn serve(&self, place: &Place, host: &str, inside: &Namespace) -> Daemon {
        let (names, fds): (Vec<&str>, Vec<&OwnedFd>) = self.store.iter().map(|(name, fd)| (name.as_str(), fd)).unzip();
        let moves: String = (3..).zip(&fds).map(|(number, fd)| format!("{number}<&{}- ", fd.as_raw_fd())).collect();
        // The number of the process is that of the shell, which becomes the daemon.
        let script = format!("export LISTEN_PID=$$; exec \"$@\" {moves}");
        let set = |flags: FdFlags| fds.iter().for_each(|fd| fcntl_setfd(fd, flags).unwrap());
        set(FdFlags::empty());
        let daemon = Daemon::serve_by(place, host, |command| {
            let mut shell = Command::new("bash");
            shell.args(["-c", &script, "bash"]).arg(command.get_program()).args(command.get_args());
            shell.env("NOTIFY_SOCKET", place.socket("notify"));
            shell.env("LISTEN_FDS", fds.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
            inside.command(&shell)
        });
        set(FdFlags::CLOEXEC);
        daemon
    }
}

/// Time for which the service manager does not look at its messages: less than the daemon waits for it.
const SLOW: Duration = Duration::from_millis(300);
/// What a service manager holds for the daemon of [`host`].
const ALL: [&str; 3] = ["tap-a0", "tap-b0", "tap-sl-lan"];

fn host(place: &Place) -> String {
    format!(
        "{}[uplink.lan]\nbridge = \"br0\"\n[vm.a.nic.eth0]\nuplink = \"lan\"\ntap = \"a0\"\n\
         [vm.b.nic.eth0]\nuplink = \"lan\"\ntap = \"b0\"\n",
        place.control_keys()
    )
}

/// A property of an interface in a namespace.
fn property(inside: &Namespace, interface: &str, name: &str) -> String {
    let file = format!("/sys/class/net/{interface}/{name}");
    run(&mut inside.command(Command::new("cat").arg(file))).stdout.trim().to_owned()
}

/// Properties of an interface that show a flap or another interface.
fn state(inside: &Namespace, interface: &str) -> [String; 4] {
    ["carrier", "carrier_changes", "ifindex", "address"].map(|name| property(inside, interface, name))
}

fn with_bridge() -> Namespace {
    let inside = namespace("store");
    make_bridge(&inside);
    inside
}

fn make_bridge(inside: &Namespace) {
    for words in ["link add br0 type bridge", "link set br0 up"] {
        inside.ip(words).unwrap();
    }
}

/// Answer of a verb of the command line.
fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn out_of_service(place: &Place) -> Value {
    let status: Value = serde_json::from_str(&ask(place, &["status"]).stdout).unwrap_or_default();
    status["out_of_service"].clone()
}

fn kill(daemon: Daemon) {
    daemon.signal(Signal::KILL);
    daemon.end();
}

#[test]
fn a_killed_daemon_took_the_carrier_of_its_taps() {
    let place = Place::new();
    let inside = with_bridge();
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    assert_eq!(manager.names(), ALL);
    let taps = ["a0", "b0", "sl-lan"];
    let states = || taps.map(|tap| state(&inside, tap));
    let before = states();
    assert!(before.iter().all(|tap| tap[0] == "1"), "{before:?}");
    kill(daemon);
    assert_eq!(states(), before, "while there is no daemon");
    // VM b has gone from the file meanwhile.
    let fewer = host(&place).split("[vm.b.").next().unwrap().to_owned();
    let _daemon = manager.serve(&place, &fewer, &inside);
    manager.up_to("READY=1");
    assert_eq!(manager.names(), ["tap-a0", "tap-sl-lan"]);
    let after = states();
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]), "the same interfaces, without a flap");
    until("a TAP that nothing uses is gone", || state(&inside, taps[1])[0].is_empty());
    ask(&place, &["detach", "a/nic/eth0"]).ok();
    manager.up_to("FDNAME=tap-a0");
    assert_eq!(manager.names(), ["tap-sl-lan"]);
}

#[test]
fn a_tap_that_is_made_again_replaces_its_dead_descriptor() {
    let (place, inside) = (Place::new(), with_bridge());
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    inside.ip("link del a0").unwrap();
    manager.up_to("FDSTOREREMOVE=1");
    manager.up_to("FDNAME=tap-a0");
    assert_eq!(manager.names(), ALL);
    let before = state(&inside, "a0");
    kill(daemon);
    assert_eq!((&state(&inside, "a0"), &*before[0]), (&before, "1"), "the store holds the new one");
    let _daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    assert_eq!(state(&inside, "a0"), before);
}

#[test]
fn a_daemon_starts_with_a_descriptor_of_a_tap_that_was_deleted_meanwhile() {
    let (place, inside) = (Place::new(), with_bridge());
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    kill(daemon);
    for tap in ["a0", "sl-lan"] {
        inside.ip(&format!("link del {tap}")).unwrap();
    }
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    assert_eq!((out_of_service(&place), manager.names()), (json!([]), ALL.to_vec()));
    let states = || ["a0", "sl-lan"].map(|tap| state(&inside, tap));
    let before = states();
    kill(daemon);
    assert_eq!((states(), &*before[0][0], &*before[1][0]), (before.clone(), "1", "1"), "the store holds the new ones");
}

#[test]
fn an_uplink_whose_bridge_was_missing_at_a_restart_stayed_out_of_service() {
    let (place, inside) = (Place::new(), with_bridge());
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    let before = state(&inside, "sl-lan");
    kill(daemon);
    inside.ip("link del br0").unwrap();
    let _daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    assert_eq!(out_of_service(&place), json!(["lan"]));
    make_bridge(&inside);
    until("the uplink serves", || out_of_service(&place) == json!([]));
    assert_eq!((state(&inside, "sl-lan"), manager.names()), (before, ALL.to_vec()), "the same TAP");
    assert!(!property(&inside, "br0", "brif/sl-lan/state").is_empty(), "it is a port of the bridge");
}

/// What the store holds for a moment longer was taken for the TAP of a VMM.
#[test]
fn a_nic_that_is_detached_and_attached_at_once_stayed_out_of_service() {
    let (place, inside) = (Place::new(), with_bridge());
    let mut manager = Manager::new(&place);
    let _daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    let before = state(&inside, "a0");
    ask(&place, &["detach", "a/nic/eth0"]).ok();
    let manager = std::thread::scope(|scope| {
        let attached =
            scope.spawn(|| ask(&place, &["attach", "a/nic/eth0", "uplink=lan", "tap=a0", "--until-restart"]));
        let since = Instant::now();
        // The manager is slow. polls: the daemon waits for it, and does not attach something else.
        until("the daemon waits", || attached.is_finished() || since.elapsed() > SLOW);
        manager.up_to("FDSTOREREMOVE=1");
        attached.join().unwrap().ok();
        manager.up_to("FDNAME=tap-a0");
        manager
    });
    let after = state(&inside, "a0");
    assert_eq!((&*after[0], manager.names()), ("1", ALL.to_vec()));
    assert_ne!(after[2], before[2], "another interface");
    assert_eq!(out_of_service(&place), json!([]));
}

#[test]
fn a_tap_kept_the_address_that_its_nic_had_before_a_change() {
    let (place, inside) = (Place::new(), with_bridge());
    let host = |mac: &str, mtu: u16| format!("{}mac = \"{mac}\"\nmtu = {mtu}\n", host(&place));
    let daemon = Daemon::serve_by(&place, &host("02:00:00:00:00:01", 1500), |command| inside.command(command));
    let index = property(&inside, "b0", "ifindex");
    daemon.accept(&host("02:00:00:00:00:02", 1400));
    let now = ["address", "mtu", "ifindex", "carrier"].map(|name| property(&inside, "b0", name));
    assert_eq!(now, ["02:00:00:00:00:02", "1400", &index, "1"]);
}

/// An interface that has taken the name of a TAP, whose link is on.
fn make_namesake(inside: &Namespace, name: &str) {
    for words in [
        format!("link add {name} mtu 1300 type veth peer name peer-{name}"),
        format!("link set peer-{name} up"),
        format!("link set {name} up"),
    ] {
        inside.ip(&words).unwrap();
    }
}

/// Containers rename the TAP of a NIC, or get it under its own name. Another interface may then have that name on the host.
#[test]
fn an_interface_that_took_the_name_of_a_tap_got_its_mtu() {
    let (place, inside, other) = (Place::new(), with_bridge(), namespace("moved"));
    let host = |mac: &str, mtu: u16| host(&place) + &format!("mac = \"{mac}\"\nmtu = {mtu}\n");
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host("02:00:00:00:00:01", 1500), &inside);
    manager.up_to("READY=1");
    inside.ip("link set a0 down").unwrap();
    inside.ip("link set a0 name renamed up").unwrap();
    inside.move_to("b0", &other, "b0").unwrap();
    other.ip("link set b0 up").unwrap();
    ["a0", "b0"].into_iter().for_each(|name| make_namesake(&inside, name));
    let before = [state(&inside, "renamed"), state(&other, "b0")];
    assert!(before.iter().all(|tap| tap[0] == "1"), "{before:?}");
    let mtus = || {
        let here = ["renamed", "a0", "b0"].map(|name| property(&inside, name, "mtu"));
        (here, property(&other, "b0", "mtu"))
    };
    let expected = (["1500", "1300", "1300"].map(str::to_owned), "1500".to_owned());
    kill(daemon);
    let daemon = manager.serve(&place, &host("02:00:00:00:00:01", 1500), &inside);
    manager.up_to("READY=1");
    assert_eq!(
        ([state(&inside, "renamed"), state(&other, "b0")], mtus()),
        (before, expected.clone()),
        "at the restart"
    );
    daemon.accept(&host("02:00:00:00:00:02", 1400));
    assert_eq!(property(&other, "b0", "address"), "02:00:00:00:00:02", "the address is set by the descriptor");
    assert_eq!(mtus(), expected, "after a change");
}

/// Between two runs of the daemon its TAP was deleted, and a VMM made another one.
#[test]
fn a_tap_that_a_vmm_made_in_place_of_a_stored_one_was_taken_from_it() {
    let (place, inside) = (Place::new(), with_bridge());
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    kill(daemon);
    for words in ["link del a0", "tuntap add dev a0 mode tap", "link set a0 up"] {
        inside.ip(words).unwrap();
    }
    assert_eq!(property(&inside, "a0", "carrier"), "0", "nothing holds it");
    let index = property(&inside, "a0", "ifindex");
    let _daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    assert_eq!((property(&inside, "a0", "carrier"), property(&inside, "a0", "ifindex")), ("0".to_owned(), index));
    assert_eq!((out_of_service(&place), manager.names()), (json!([]), vec!["tap-b0", "tap-sl-lan"]));
}
