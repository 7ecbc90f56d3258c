//! The protocol of service managers: when the daemon is ready, and when it feeds the watchdog.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;

use crate::common::disk::Hanging;
use crate::common::raw::{Raw, WRITE};
use crate::common::{Daemon, LONG, MIB, Place, noise, run, sluice, start, tool};
use rustix::process::Signal;

/// The service manager's socket.
struct Manager(UnixDatagram);

impl Manager {
    fn new(place: &Place) -> Manager {
        let socket = UnixDatagram::bind(place.socket("notify")).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Manager(socket)
    }

    /// Returns the lines of the messages up to one that contains `needle`.
    fn up_to(&self, needle: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut bytes = [0; 4096];
            let len = self.0.recv(&mut bytes).unwrap_or_else(|error| panic!("no {needle} after {lines:?}: {error}"));
            lines.extend(std::str::from_utf8(&bytes[..len]).unwrap().lines().map(str::to_owned));
            if lines.last().is_some_and(|line| line.contains(needle)) || lines.iter().any(|line| line == needle) {
                return lines;
            }
        }
    }
}

/// Starts the daemon as a service with a watchdog of a second.
fn serve(place: &Place, host: &str) -> Daemon {
    Daemon::serve_by(place, host, |daemon| {
        let mut daemon: Command = std::mem::replace(daemon, Command::new("false"));
        daemon.env("NOTIFY_SOCKET", place.socket("notify")).env("WATCHDOG_USEC", "1000000");
        daemon
    })
}

#[test]
fn the_daemon_is_ready_when_every_socket_listens() {
    let place = Place::new();
    let manager = Manager::new(&place);
    let (a, b) = (place.image("a.img", MIB), place.image("b.img", MIB));
    let vhost = place.volume("b", "v", &b, "").replace("{ socket", "{ type = \"vhost-user-blk\", socket");
    let host = place.control_keys() + &place.device("") + &place.volume("a", "v", &a, "") + &vhost;
    let connected = std::thread::scope(|scope| {
        let sockets = [place.volume_socket("a", "v"), place.volume_socket("b", "v"), place.socket("control")];
        let manager = &manager;
        let ready = scope.spawn(move || {
            let ready = manager.up_to("READY=1");
            assert!(ready.contains(&"STATUS=Serving 2 volumes of 2 VMs on 1 device".to_owned()), "{ready:?}");
            sockets.map(|socket| UnixStream::connect(socket).is_ok())
        });
        let daemon = serve(&place, &host);
        (ready.join().unwrap(), daemon)
    });
    let (connected, daemon) = connected;
    assert_eq!(connected, [true; 3]);
    manager.up_to("WATCHDOG=1");
    daemon.signal(Signal::TERM);
    let last = manager.up_to("STATUS=Completing");
    assert!(last.iter().any(|line| line == "STOPPING=1"), "{last:?}");
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_volume_that_was_held_back_was_counted_as_served_until_the_next_probe() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.control_keys()
        + &place.device("")
        + &place.volume("a", "v", &image, "")
        + &place.volume("b", "v", &place.image("b.img", MIB), "");
    assert_eq!(Daemon::serve(&place, &host).terminate().code(), Some(0));
    std::fs::rename(&image, place.file("old.img")).unwrap();
    place.image("a.img", MIB);
    let manager = Manager::new(&place);
    let daemon = serve(&place, &host);
    let ready = manager.up_to("READY=1");
    let held = "STATUS=Serving 1 volume of 2 VMs on 1 device; held back: a/v";
    assert!(ready.iter().any(|line| line == held), "{ready:?}");
    run(sluice()
        .args(["apply", "--force", "a/v"])
        .arg(place.file("host.toml"))
        .arg("--socket")
        .arg(place.socket("control")))
    .ok();
    manager.up_to("STATUS=Serving 2 volumes of 2 VMs on 1 device");
    drop(daemon);
}

#[test]
fn a_disk_that_hangs_is_reported_and_does_not_stop_the_watchdog() {
    let place = Place::new();
    let manager = Manager::new(&place);
    let disk = Hanging::new(&place, "hung");
    let daemon = serve(&place, &(place.device("") + &place.volume("a", "v", disk.path(), "")));
    let mut client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    disk.below.freeze();
    client.send(WRITE, 0, 0, 4096, &noise(1, 4096)).unwrap();
    manager.up_to("device disk is stalled: its disk completes nothing");
    let line = daemon.stderr().up_to(&["Device stalled"]);
    assert!(line.contains("device=\"disk\"") && line.contains("in_flight=1"), "{line}");
    // More of them than would be left from before.
    (0..5).for_each(|_| drop(manager.up_to("WATCHDOG=1")));
    disk.below.thaw();
    daemon.stderr().up_to(&["Device completes requests again"]);
    manager.up_to("STATUS=Serving 1 volume of 1 VM on 1 device");
}

#[test]
fn a_device_thread_that_is_stuck_stops_the_watchdog() {
    let place = Place::new();
    let manager = Manager::new(&place);
    let image = place.image("a.img", MIB);
    let daemon = serve(&place, &(place.device("") + &place.volume("a", "v", &image, "")));
    manager.up_to("WATCHDOG=1");
    let thread = thread_of(daemon.pid(), "dev-disk");
    let delay = "io_uring_enter:delay_enter=600s";
    let strace = start(tool("strace", "strace").args(["-e", "trace=io_uring_enter", "-e"]).args([
        &format!("inject={delay}"),
        "-p",
        &thread,
    ]));
    manager.up_to("device disk does not respond");
    daemon.stderr().up_to(&["Device thread does not respond: the watchdog is not fed"]);
    strace.kill();
    daemon.stderr().up_to(&["Device thread responds again"]);
    let between = manager.up_to("STATUS=Serving 1 volume of 1 VM on 1 device");
    assert!(!between.iter().any(|line| line == "WATCHDOG=1"), "{between:?}");
    manager.up_to("WATCHDOG=1");
}

/// Returns the number of a thread with this name.
fn thread_of(pid: u32, name: &str) -> String {
    let threads = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let thread = threads.find(|thread| std::fs::read_to_string(thread.join("comm")).unwrap().trim() == name);
    thread.unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}
