//! TAPs in the descriptor store of the service manager: a killed daemon and the next one use the same interfaces.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use common::stations::namespace;
use common::{Daemon, LONG, Place, run, sluice};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use sluice_client::net::Namespace;

mod common;

/// The service manager: its socket, and its store.
struct Manager {
    socket: UnixDatagram,
    store: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new(place: &Place) -> Manager {
        let socket = UnixDatagram::bind(place.socket("notify")).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Manager { socket, store: BTreeMap::new() }
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
                self.store.insert(name.clone(), fcntl_dupfd_cloexec(fd, 100).unwrap());
            }
            if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
                self.store.remove(&name).expect("it is in the store");
            }
            if text.lines().any(|of| of == line) {
                return;
            }
        }
    }

    /// Starts the daemon in a namespace, with what is in the store.
    fn serve(&self, place: &Place, host: &str, inside: &Namespace) -> Daemon {
        let names: Vec<&str> = self.store.keys().map(String::as_str).collect();
        let fds: Vec<&OwnedFd> = self.store.values().collect();
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

#[test]
fn a_killed_daemon_took_the_carrier_of_its_taps() {
    let place = Place::new();
    let inside = namespace("store");
    for words in ["link add br0 type bridge", "link set br0 up"] {
        inside.ip(words).unwrap();
    }
    let mut manager = Manager::new(&place);
    let daemon = manager.serve(&place, &host(&place), &inside);
    manager.up_to("READY=1");
    assert_eq!(manager.store.keys().collect::<Vec<_>>(), ["tap-a0", "tap-b0", "tap-sl-lan"]);
    let taps = ["a0", "b0", "sl-lan"];
    let state = || {
        let of = |tap| ["carrier", "carrier_changes", "ifindex", "address"].map(|name| property(&inside, tap, name));
        taps.map(of)
    };
    let before = state();
    assert!(before.iter().all(|tap| tap[0] == "1"), "{before:?}");
    daemon.signal(Signal::KILL);
    daemon.end();
    assert_eq!(state(), before, "while there is no daemon");
    // VM b has gone from the file meanwhile.
    let fewer = host(&place).split("[vm.b.").next().unwrap().to_owned();
    let _daemon = manager.serve(&place, &fewer, &inside);
    manager.up_to("READY=1");
    assert_eq!(manager.store.keys().collect::<Vec<_>>(), ["tap-a0", "tap-sl-lan"]);
    let after = state();
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]), "the same interfaces, without a flap");
    assert_eq!(after[1][0], "", "a TAP that nothing uses is gone");
    run(sluice().args(["detach", "a/nic/eth0", "--socket"]).arg(place.socket("control"))).ok();
    manager.up_to("FDNAME=tap-a0");
    assert_eq!(manager.store.keys().collect::<Vec<_>>(), ["tap-sl-lan"]);
}
