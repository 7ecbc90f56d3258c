//! Paths that do not respond delay only the change that names them, for a bounded time.

#![allow(clippy::disallowed_macros, reason = "tests print for the developer")]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::common::disk::{FileSystem, Hanging, Loop};
use crate::common::fused::Fused;
use crate::common::raw::{Raw, WRITE};
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, start, tool, until};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sluice_client::vhost::{Client, ClientOptions};

fn host(place: &Place) -> String {
    let control = place.control_keys();
    control + &place.device("") + "[vm.fine]\n" + &place.volume("fine", "v", &place.image("fine.img", MIB), "")
}

fn verb(place: &Place, verb: &[&str]) -> std::process::Command {
    let mut command = sluice();
    command.args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control"));
    command
}

fn ask(place: &Place, words: &[&str]) -> Ended {
    run(&mut verb(place, words))
}

fn attach(place: &Place, source: &Path, socket: &Path) -> std::process::Command {
    let source = format!("source={}", source.display());
    let socket = format!("export.socket={}", socket.display());
    verb(place, &["attach", "new/v", "device=disk", &source, &socket])
}

/// Checks that handshakes, requests and changes work.
fn assert_others_work(place: &Place, seed: u64) {
    ask(place, &["set", "fine", &format!("weight={}", seed + 100)]).ok();
    let mut raw = Raw::open(&place.volume_socket("fine", "v"), "fine/v").unwrap();
    let data = noise(seed, 4096);
    raw.write(0, &data).unwrap();
    assert!(raw.read(0, 4096).unwrap() == data);
}

/// A hung file system: it is mounted, and no server answers it.
struct Hung {
    folder: PathBuf,
    connection: Option<OwnedFd>,
}

impl Hung {
    fn new(place: &Place) -> Hung {
        let folder = place.file("hung");
        std::fs::create_dir(&folder).unwrap();
        Hung::over(folder)
    }

    /// Mounts over a folder and hides its content.
    fn over(folder: PathBuf) -> Hung {
        let connection = File::options().read(true).write(true).open("/dev/fuse").expect("FUSE is needed, and root");
        // The mount program inherits it as its standard input.
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
        let mut mount = tool("mount", "mount");
        mount.args(["-i", "-n", "-t", "fuse", "-o", options, "hung"]).arg(&folder);
        let mounted = mount.stdin(connection.try_clone().unwrap()).output().unwrap();
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Hung { folder, connection: Some(connection.into()) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Closing the connection ends everything that waits for it.
        self.connection.take();
        let unmounted = run(tool("umount", "mount").arg("--lazy").arg(&self.folder));
        if !unmounted.status.success() {
            eprintln!("{}", unmounted.stderr);
        }
    }
}

#[test]
fn a_hung_state_directory_refuses_only_what_must_be_written_there() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let hung = Hung::over(place.file("state"));
    let refused = ask(&place, &["set", "fine", "weight=7"]).failed();
    assert!(refused.contains("state has not responded for 5 s"), "{refused}");
    // The next one is not even tried, and what needs no state goes on.
    let refused = ask(&place, &["detach", "fine", "--force", "fine"]).failed();
    assert!(refused.contains("state has not responded for 5 s"), "{refused}");
    daemon.accept(&host.replace("[vm.fine]\n", "[vm.fine]\nweight = 3\n"));
    Raw::open(&place.volume_socket("fine", "v"), "fine/v").unwrap().write(0, &noise(1, 4096)).unwrap();
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    drop(hung);
}

#[test]
fn attaching_from_a_hung_file_system_stopped_everything() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let daemon = Daemon::serve(&place, &host(&place));
    let attaching = start(&mut attach(&place, &hung.folder.join("disk.img"), &place.socket("new")));
    until("a helper thread opens the path", || threads(daemon.pid()).iter().any(|name| name == "open"));
    assert_others_work(&place, 1);
    let refused = attaching.end().failed();
    assert!(refused.contains("has not responded for 5 s") && refused.contains("hung/disk.img"), "{refused}");
    assert_others_work(&place, 2);
    // A host file may name it too.
    let volume = place.volume("new", "v", &hung.folder.join("disk.img"), "");
    let log = daemon.reload(&(std::fs::read_to_string(place.file("host.toml")).unwrap() + &volume));
    assert!(log.contains("hung/disk.img has not responded for"), "{log}");
    assert_others_work(&place, 3);
    // Two helpers hang at this path, so a third is not started.
    let refused = run(&mut attach(&place, &hung.folder.join("disk.img"), &place.socket("new"))).failed();
    assert!(refused.contains("hung/disk.img has not responded for"), "{refused}");
    assert_eq!(threads(daemon.pid()).iter().filter(|name| *name == "open").count(), 2);
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    drop(hung);
}

/// Returns the names of a process's threads.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_hung_path_kept_other_volumes_out_of_service_and_blocked_every_change() {
    let place = Place::new();
    let (first, second) = (Hanging::new(&place, "first"), Hanging::new(&place, "second"));
    let links = place.file("links");
    std::fs::create_dir(&links).unwrap();
    let link = links.join("first");
    std::os::unix::fs::symlink(first.path(), &link).unwrap();
    let volumes = place.volume("a", "v", &link, "") + &place.volume("b", "v", second.path(), "");
    let host = host(&place) + &volumes;
    let daemon = Daemon::serve(&place, &host);
    let open = |vm: &str| Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap();
    let (mut a, mut b) = (open("a"), open("b"));
    first.below.freeze();
    second.below.freeze();
    let data = noise(1, 4096);
    a.send(WRITE, 0, 0, 4096, &data).unwrap();
    b.send(WRITE, 0, 0, 4096, &data).unwrap();
    // Not what the daemon counts: a write that a worker of the kernel has not begun ends with its process.
    until("the writes are at the devices", || [&first, &second].map(Hanging::writes_in_flight) == [1, 1]);
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(daemon.accounts().0["out_of_service"], serde_json::json!(["a/v", "b/v"]));

    // Now the path of the first volume hangs, and the disk of the second one responds again.
    let hung = Hung::over(links);
    second.below.thaw();
    let log = daemon.stderr().up_to(&["Volume is in service again"]);
    assert!(log.contains("vm=\"b\"") && open("b").read(0, 4096).unwrap() == data, "{log}");
    assert_others_work(&place, 1);
    daemon.accept(&host.replace("[vm.fine]\n", "[vm.fine]\nburst = 2\n"));
    // On a slow machine it is logged before the reload, of which all lines have been read.
    let log = daemon.stderr().with("Volume stays out of service");
    assert!(log.contains("links/first has not responded for 5 s"), "{log}");
    // Its helper still hangs, so no other is started.
    assert_others_work(&place, 2);
    assert_eq!(threads(daemon.pid()).iter().filter(|name| *name == "open").count(), 1);
    drop(hung);
    first.below.thaw();
    daemon.stderr().up_to(&["Volume is in service again"]);
    assert!(open("a").read(0, 4096).unwrap() == data);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn one_hung_path_kept_all_volumes_from_starting() {
    let place = Place::new();
    let (sources, sockets) = (place.file("sources"), place.file("sockets"));
    for folder in [&sources, &sockets] {
        std::fs::create_dir(folder).unwrap();
    }
    let image = |name: &str| {
        let path = sources.join(name);
        std::fs::write(&path, vec![0; MIB as usize]).unwrap();
        path
    };
    let socket = |text: String, vm: &str| {
        let there = sockets.join(format!("{vm}.sock"));
        text.replace(place.volume_socket(vm, "v").to_str().unwrap(), there.to_str().unwrap())
    };
    let volumes = place.volume("source", "v", &image("a.img"), "")
        + &place.vhost_volume("same", "v", &image("b.img"), "")
        + &socket(place.volume("socket", "v", &place.image("c.img", MIB), ""), "socket")
        + &socket(place.vhost_volume("guest", "v", &place.image("d.img", MIB), ""), "guest");
    let host = host(&place) + &volumes;
    let hung = [Hung::over(sources.clone()), Hung::over(sockets.clone())];

    let daemon = Daemon::serve(&place, &host);
    let log = daemon.stderr().up_to(&["Ready"]);
    for (vm, path) in [
        ("source", sources.join("a.img")),
        ("same", sources.join("b.img")),
        ("socket", sockets.join("socket.sock")),
        ("guest", sockets.join("guest.sock")),
    ] {
        let is_of = |line: &&str| line.contains("out of service; retrying") && line.contains(&format!("vm=\"{vm}\""));
        let line = log.lines().find(is_of).expect(&log);
        assert!(line.contains(&format!("{} has not responded for 10 s", path.display())), "{line}");
    }
    let out_of_service = || daemon.accounts().0["out_of_service"].clone();
    assert_eq!(out_of_service(), serde_json::json!(["guest/v", "same/v", "socket/v", "source/v"]));
    assert_others_work(&place, 1);
    daemon.accept(&host.replace("[vm.fine]\n", "[vm.fine]\nburst = 2\n"));

    drop(hung);
    until("all are in service again", || out_of_service() == serde_json::json!([]));
    for (vm, path) in [("source", place.volume_socket("source", "v")), ("socket", sockets.join("socket.sock"))] {
        let data = noise(7, 4096);
        let mut raw = Raw::open(&path, &format!("{vm}/v")).unwrap();
        raw.write(0, &data).unwrap();
        assert!(raw.read(0, 4096).unwrap() == data);
    }
    for path in [place.volume_socket("same", "v"), sockets.join("guest.sock")] {
        let mut guest = Client::connect(&path, &ClientOptions::default()).unwrap();
        guest.read(0, &mut [0; 4096]).unwrap();
    }
    assert_others_work(&place, 2);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_device_whose_path_hung_refused_the_start_of_all_others() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let volume = |vm: &str| {
        let volume = place.volume(vm, "v", &fused.disk(), "cache = \"buffered\"\nsize = \"4MiB\"");
        volume.replace("device = \"disk\"", "device = \"fused\"")
    };
    let device = format!("[device.fused]\npath = \"{}\"\n", fused.folder().display());
    let second = volume("second").replace("size =", "offset = \"4MiB\"\nsize =");
    let host = host(&place) + &device + &volume("first") + &second;
    let hung = Hung::over(fused.folder().to_owned());

    let daemon = Daemon::serve(&place, &host);
    let said = daemon.stderr().up_to(&["Ready"]);
    let line = said.lines().find(|line| line.contains("out of service; retrying")).expect(&said);
    let error = format!("Device fused: {} has not responded for 10 s", fused.folder().display());
    assert!(line.contains("volume=\"fused\"") && line.contains(&error), "{line}");
    let out_of_service = || daemon.accounts().0["out_of_service"].clone();
    assert_eq!(out_of_service(), serde_json::json!(["[device]/fused", "first/v", "second/v"]));
    assert_others_work(&place, 1);
    let less = host.replace(&second, "").replace("[vm.fine]\n", "[vm.fine]\nburst = 2\n");
    daemon.accept(&less);
    let said = daemon.reload(&host);
    let error = format!("{} has not responded for 5 s", fused.folder().display());
    assert!(said.contains(&error), "a new volume needs the device: {said}");

    drop(hung);
    until("it is in service again", || out_of_service() == serde_json::json!([]));
    daemon.accept(&host);
    for vm in ["first", "second"] {
        let mut raw = Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap();
        raw.write(0, &noise(7, 4096)).unwrap();
    }
    assert_others_work(&place, 2);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_daemon_ignored_sigterm_while_its_start_hung() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let volume = place.volume("new", "v", &hung.folder.join("disk.img"), "");
    let file = place.write("hung.toml", host(&place) + &volume);
    let running = start(sluice().arg("serve").arg(&file));
    until("a helper thread opens the path", || threads(running.pid()).iter().any(|name| name == "open"));
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().code(), Some(0));
}

#[test]
fn a_daemon_ignored_the_first_signal_while_its_host_file_hung() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let begin = |file: &Path| start(sluice().arg("serve").arg(file));
    let is_looking = |pid| threads(pid).iter().any(|name| name == "begin");
    let running = begin(&hung.folder.join("host.toml"));
    until("a helper thread opens the path", || is_looking(running.pid()));
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().code(), Some(0));
    let log = begin(&hung.folder.join("host.toml")).end().failed();
    assert!(log.contains("hung/host.toml has not responded for 5 s"), "{log}");
    // The control socket may be there too.
    let control = format!("[daemon]\ncontrol = \"{}\"\n", hung.folder.join("control").display());
    let log = begin(&place.write("control.toml", control)).end().failed();
    assert!(log.contains("hung/control has not responded for 5 s"), "{log}");
}

#[test]
fn a_socket_in_a_hung_folder_blocked_all_changes() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let daemon = Daemon::serve(&place, &host(&place));
    let attaching = start(&mut attach(&place, &place.image("new.img", MIB), &hung.folder.join("new.sock")));
    until("a helper thread opens the path", || threads(daemon.pid()).iter().any(|name| name == "open"));
    assert_others_work(&place, 1);
    let refused = attaching.end().failed();
    assert!(refused.contains("has not responded for 5 s") && refused.contains("hung/new.sock"), "{refused}");
    assert_others_work(&place, 2);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_device_log_on_a_hung_file_system_blocked_all_changes() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let log = hung.folder.join("slots.csv");
    let delay = format!("[device.second.delay]\ntime = \"1ms\"\nlog = \"{}\"\n", log.display());
    let log = daemon.reload(&(host + "[device.second]\nbackend = \"null\"\n" + &delay));
    assert!(log.contains("hung/slots.csv has not responded for 5 s"), "{log}");
    assert_others_work(&place, 1);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_socket_in_use_was_replaced_while_another_folder_hung() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let host = host(&place);
    let daemon =
        Daemon::serve(&place, &(host.clone() + &place.vhost_volume("old", "v", &place.image("old.img", MIB), "")));
    let socket = place.volume_socket("old", "v");
    let before = std::fs::metadata(&socket).unwrap().ino();
    let volume = |vm: &str, socket: &Path| {
        let image = place.image(&format!("{vm}.img"), MIB);
        let export = format!("export = {{ socket = \"{}\" }}", socket.display());
        format!("[vm.{vm}.volume.v]\ndevice = \"disk\"\nsource = \"{}\"\n{export}\n", image.display())
    };
    let new = volume("new", &socket) + &volume("other", &hung.folder.join("other.sock"));
    let log = daemon.reload(&(host + &new));
    assert!(log.contains("hung/other.sock has not responded for 5 s"), "{log}");
    assert_eq!(std::fs::metadata(&socket).unwrap().ino(), before, "it leads to where the volume is served");
    assert_others_work(&place, 1);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_socket_in_use_was_replaced_while_the_folder_of_another_one_hung() {
    let place = Place::new();
    let sockets = place.file("sockets");
    std::fs::create_dir(&sockets).unwrap();
    let (first, second) = (place.socket("first.sock"), sockets.join("second.sock"));
    let image = |vm: &str| place.image(&format!("{vm}.img"), MIB);
    let volume = |(vm, image): (&str, &Path), kind: &str, socket: &Path| {
        let export = format!("export = {{ {kind}socket = \"{}\" }}", socket.display());
        format!("[vm.{vm}.volume.v]\ndevice = \"disk\"\nsource = \"{}\"\n{export}\n", image.display())
    };
    let host = host(&place);
    let guests = volume(("a", &image("a")), "type = \"vhost-user-blk\", ", &first)
        + &volume(("b", &image("b")), "type = \"vhost-user-blk\", ", &second);
    let daemon = Daemon::serve(&place, &(host.clone() + &guests));
    let before = std::fs::metadata(&first).unwrap().ino();
    let hung = Hung::over(sockets);
    let clients = volume(("c", &image("c")), "", &first) + &volume(("d", &image("d")), "", &second);
    let log = daemon.reload(&(host + &clients));
    assert!(log.contains("sockets/second.sock has not responded for 5 s"), "{log}");
    assert_eq!(std::fs::metadata(&first).unwrap().ino(), before, "it leads to where the volume is served");
    Client::connect(&first, &ClientOptions::default()).unwrap().read(0, &mut [0; 4096]).unwrap();
    assert_others_work(&place, 1);
    drop(hung);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_socket_of_a_refused_change_whose_folder_hung_stopped_all_changes() {
    let place = Place::new();
    let below = FileSystem::new(&place.image("sockets.img", 64 * MIB), place.file("sockets"));
    let hung = Hung::new(&place);
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let volume = |vm: &str, socket: &Path| {
        let image = place.image(&format!("{vm}.img"), MIB);
        let export = format!("export = {{ socket = \"{}\" }}", socket.display());
        format!("[vm.{vm}.volume.v]\ndevice = \"disk\"\nsource = \"{}\"\n{export}\n", image.display())
    };
    let (first, second) = (below.folder.join("first.sock"), hung.folder.join("second.sock"));
    std::fs::write(place.file("host.toml"), host + &volume("first", &first) + &volume("second", &second)).unwrap();
    daemon.signal(rustix::process::Signal::HUP);
    until("the first socket is made", || holds_a_socket(&below.folder));
    // Now the first socket cannot be removed, and the second one cannot be made.
    below.freeze();
    drop(hung);
    let log = daemon.stderr().up_to(&["the running configuration is unchanged"]);
    assert!(log.contains("second.sock"), "{log}");
    assert_others_work(&place, 1);
    below.thaw();
    until("the first socket is removed", || !holds_a_socket(&below.folder));
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// Whether a folder or its subfolders contain a socket.
fn holds_a_socket(folder: &Path) -> bool {
    let is_one = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds_a_socket(&entry.path()),
        Ok(kind) => kind.is_socket(),
        Err(_) => false,
    };
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_one))
}

#[test]
fn accepting_the_loss_of_a_hung_disk_blocked_all_changes() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let disk = Loop::new(&fused.disk());
    let volume = place.volume("lost", "v", &disk.path, "cache = \"buffered\"");
    let volumes = volume.replace("device = \"disk\"", "device = \"fused\"");
    let device = format!("[device.fused]\npath = \"{}\"\n", disk.path.display());
    let daemon = Daemon::serve(&place, &(host(&place) + &device + &volumes));
    let mut lost = Raw::open(&place.volume_socket("lost", "v"), "lost/v").unwrap();
    fused.fail_writes();
    lost.write(0, &noise(1, 4096)).unwrap();
    assert!(lost.flush().is_err());
    fused.mend();
    fused.stop();
    let accepting = start(&mut verb(&place, &["accept-loss", "lost/v"]));
    until("a helper thread queries the disk", || threads(daemon.pid()).iter().any(|name| name == "open"));
    assert_others_work(&place, 1);
    let refused = accepting.end().failed();
    let path = disk.path.display();
    assert!(refused.contains(&format!("{path} has not responded for 5 s")), "{refused}");
    assert_others_work(&place, 2);
    fused.go_on();
    ask(&place, &["accept-loss", "lost/v"]).ok();
    lost.write(0, &noise(2, 4096)).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_request_to_a_hung_server_stopped_every_vm_of_its_device() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let hung = place.volume("hung", "v", &fused.disk(), "cache = \"buffered\"");
    let hung = hung.replace("device = \"disk\"", "device = \"fused\"");
    let device = format!("[device.fused]\npath = \"{}\"\n", fused.folder().display());
    let daemon = Daemon::serve(&place, &(host(&place) + &device + &hung));
    let open = || Raw::open(&place.volume_socket("hung", "v"), "hung/v").unwrap();
    let (mut first, mut second) = (open(), open());
    first.write(0, &noise(1, 4096)).unwrap();
    fused.stop();
    first.send(WRITE, 0, 0, 4096, &noise(2, 4096)).unwrap();
    let at_the_device = || {
        let accounts = daemon.accounts();
        accounts.0["devices"].as_array().unwrap().iter().any(|device| device["in_flight"] == 1)
    };
    until("the request is in flight", at_the_device);
    // The device thread still answers requests that need no server.
    assert!(second.read(1 << 40, 4096).is_err());
    assert_others_work(&place, 1);
    fused.go_on();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_socket_with_a_full_backlog_stopped_everything() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let path = place.socket("full");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&socket, &SocketAddrUnix::new(&path).unwrap()) {
            Ok(()) => waiting.push(socket),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                break;
            }
        }
    }
    let refused = run(&mut attach(&place, &place.image("new.img", MIB), &path)).failed();
    assert!(refused.contains("is in use by another process"), "{refused}");
    assert_others_work(&place, 1);
    assert!(listener.as_raw_fd() >= 0 && !waiting.is_empty());
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_pipe_without_a_reader_stopped_everything() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let pipe = place.file("pipe");
    run(tool("mkfifo", "coreutils").arg(&pipe)).ok();
    let refused = run(&mut attach(&place, &pipe, &place.socket("new"))).failed();
    assert!(refused.contains("is a pipe"), "{refused}");
    let delay = format!("[device.second.delay]\ntime = \"1ms\"\nlog = \"{}\"\n", pipe.display());
    let second = format!("[device.second]\nbackend = \"null\"\n{delay}");
    let log = daemon.reload(&(host + &second));
    assert!(
        log.contains("the running configuration is unchanged") && log.contains("Device second: cannot write its log"),
        "{log}"
    );
    assert_others_work(&place, 1);
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// The last close of a block device writes back its pages in the page cache.
#[test]
fn detaching_a_buffered_volume_from_a_hung_disk_stopped_everything() {
    let place = Place::new();
    let below = FileSystem::new(&place.image("below.img", 64 * MIB), place.file("mounted"));
    let image = below.folder.join("disk.img");
    std::fs::write(&image, vec![0; MIB as usize]).unwrap();
    let device = Loop::new(&image);
    let host = host(&place) + &place.volume("new", "v", &device.path, "cache = \"buffered\"");
    let daemon = Daemon::serve(&place, &host);
    let mut raw = Raw::open(&place.volume_socket("new", "v"), "new/v").unwrap();
    below.freeze();
    raw.write(0, &noise(1, 64 << 10)).unwrap();
    ask(&place, &["detach", "new", "--force", "new"]).ok();
    assert_others_work(&place, 1);
    below.thaw();
    assert_eq!(daemon.terminate().code(), Some(0));
}
