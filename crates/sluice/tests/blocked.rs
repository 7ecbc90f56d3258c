//! Paths that do not answer: whoever names one waits alone, and not for ever.
#![allow(clippy::disallowed_macros, reason = "tests speak to whoever runs them")]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use common::disk::{FileSystem, Hanging, Loop};
use common::fused::Fused;
use common::raw::{Raw, WRITE};
use common::{Daemon, Ended, MIB, Place, noise, run, sluice, start, tool, until};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sluice_client::vhost::{Client, ClientOptions};

mod common;

fn host(place: &Place) -> String {
    let control = format!("[daemon]\ncontrol = \"{}\"\n", place.socket("control").display());
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

/// Handshakes, requests and changes go on.
fn others_go_on(place: &Place, seed: u64) {
    ask(place, &["set", "fine", &format!("weight={}", seed + 100)]).ok();
    let mut raw = Raw::open(&place.volume_socket("fine", "v"), "fine/v").unwrap();
    let data = noise(seed, 4096);
    raw.write(0, &data).unwrap();
    assert!(raw.read(0, 4096).unwrap() == data);
}

/// A file system that answers nothing: it is mounted, and nobody serves it.
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

    /// Hides what the folder had.
    fn over(folder: PathBuf) -> Hung {
        let connection = File::options().read(true).write(true).open("/dev/fuse").expect("FUSE is needed, and root");
        // The program that mounts gets it as its standard input.
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
        // Its end is the end of everything that waits for it.
        self.connection.take();
        let unmounted = run(tool("umount", "mount").arg("--lazy").arg(&self.folder));
        if !unmounted.status.success() {
            eprintln!("{}", unmounted.stderr);
        }
    }
}

#[test]
fn a_hung_file_system_that_was_named_to_attach_stopped_everything() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let daemon = Daemon::serve(&place, &host(&place));
    let attaching = start(&mut attach(&place, &hung.folder.join("disk.img"), &place.socket("new")));
    until("a helper looks at it", || threads(daemon.pid()).iter().any(|name| name == "open"));
    others_go_on(&place, 1);
    let refused = attaching.end().failed();
    assert!(refused.contains("does not respond for 5 s") && refused.contains("hung/disk.img"), "{refused}");
    others_go_on(&place, 2);
    // A file may name it too.
    let volume = place.volume("new", "v", &hung.folder.join("disk.img"), "");
    let said = daemon.reload(&(std::fs::read_to_string(place.file("host.toml")).unwrap() + &volume));
    assert!(said.contains("hung/disk.img does not respond for"), "{said}");
    others_go_on(&place, 3);
    // Two helpers hang there; there is no third one.
    let refused = run(&mut attach(&place, &hung.folder.join("disk.img"), &place.socket("new"))).failed();
    assert!(refused.contains("hung/disk.img does not respond for"), "{refused}");
    assert_eq!(threads(daemon.pid()).iter().filter(|name| *name == "open").count(), 2);
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    drop(hung);
}

/// The names of a process's threads.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_path_that_hung_kept_other_volumes_out_of_service_and_refused_every_change() {
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
    until("the writes are at their disks", || daemon.accounts().device()["in_flight"] == 2);
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(daemon.accounts().0["out_of_service"], serde_json::json!(["a/v", "b/v"]));

    // From now on the path of the first volume hangs, and the disk of the second one responds again.
    let hung = Hung::over(links);
    second.below.thaw();
    let said = daemon.stderr().up_to(&["Volume is in service again"]);
    assert!(said.contains("vm=\"b\"") && open("b").read(0, 4096).unwrap() == data, "{said}");
    others_go_on(&place, 1);
    daemon.accept(&host.replace("[vm.fine]\n", "[vm.fine]\nburst = 2\n"));
    let said = daemon.stderr().up_to(&["Volume stays out of service"]);
    assert!(said.contains("links/first does not respond for 5 s"), "{said}");
    // Its helper still hangs, and it gets no other one.
    others_go_on(&place, 2);
    assert_eq!(threads(daemon.pid()).iter().filter(|name| *name == "open").count(), 1);
    drop(hung);
    first.below.thaw();
    daemon.stderr().up_to(&["Volume is in service again"]);
    assert!(open("a").read(0, 4096).unwrap() == data);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn one_path_that_hung_refused_the_start_of_all_volumes() {
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
    let said = daemon.stderr().up_to(&["Ready"]);
    for (vm, path) in [
        ("source", sources.join("a.img")),
        ("same", sources.join("b.img")),
        ("socket", sockets.join("socket.sock")),
        ("guest", sockets.join("guest.sock")),
    ] {
        let is_of = |line: &&str| line.contains("out of service; retrying") && line.contains(&format!("vm=\"{vm}\""));
        let line = said.lines().find(is_of).expect(&said);
        assert!(line.contains(&format!("{} does not respond for 10 s", path.display())), "{line}");
    }
    let out_of_service = || daemon.accounts().0["out_of_service"].clone();
    assert_eq!(out_of_service(), serde_json::json!(["guest/v", "same/v", "socket/v", "source/v"]));
    others_go_on(&place, 1);
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
    others_go_on(&place, 2);
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
    let error = format!("Device fused: {} does not respond for 10 s", fused.folder().display());
    assert!(line.contains("vm=\"first\"") && line.contains(&error), "{line}");
    let out_of_service = || daemon.accounts().0["out_of_service"].clone();
    assert_eq!(out_of_service(), serde_json::json!(["first/v", "second/v"]));
    others_go_on(&place, 1);
    let less = host.replace(&second, "").replace("[vm.fine]\n", "[vm.fine]\nburst = 2\n");
    daemon.accept(&less);
    let said = daemon.reload(&host);
    assert!(said.contains("fused/disk does not respond for 5 s"), "it is a new volume: {said}");

    drop(hung);
    until("it is in service again", || out_of_service() == serde_json::json!([]));
    daemon.accept(&host);
    for vm in ["first", "second"] {
        let mut raw = Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap();
        raw.write(0, &noise(7, 4096)).unwrap();
    }
    others_go_on(&place, 2);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_daemon_whose_start_hung_did_not_hear_sigterm() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let volume = place.volume("new", "v", &hung.folder.join("disk.img"), "");
    let file = place.write("hung.toml", host(&place) + &volume);
    let running = start(sluice().arg("serve").arg(&file));
    until("a helper looks at it", || threads(running.pid()).iter().any(|name| name == "open"));
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().code(), Some(0));
}

#[test]
fn a_host_file_that_hung_kept_the_first_signal_from_being_heard() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let begin = |file: &Path| start(sluice().arg("serve").arg(file));
    let is_looking = |pid| threads(pid).iter().any(|name| name == "begin");
    let running = begin(&hung.folder.join("host.toml"));
    until("a helper looks at it", || is_looking(running.pid()));
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().code(), Some(0));
    let said = begin(&hung.folder.join("host.toml")).end().failed();
    assert!(said.contains("hung/host.toml does not respond for 5 s"), "{said}");
    // The control socket may lie there too.
    let control = format!("[daemon]\ncontrol = \"{}\"\n", hung.folder.join("control").display());
    let said = begin(&place.write("control.toml", control)).end().failed();
    assert!(said.contains("hung/control does not respond for 5 s"), "{said}");
}

#[test]
fn a_socket_in_a_folder_that_hung_stopped_all_changes() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let daemon = Daemon::serve(&place, &host(&place));
    let attaching = start(&mut attach(&place, &place.image("new.img", MIB), &hung.folder.join("new.sock")));
    until("a helper looks at it", || threads(daemon.pid()).iter().any(|name| name == "open"));
    others_go_on(&place, 1);
    let refused = attaching.end().failed();
    assert!(refused.contains("does not respond for 5 s") && refused.contains("hung/new.sock"), "{refused}");
    others_go_on(&place, 2);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_log_of_a_new_device_on_a_hung_file_system_stopped_all_changes() {
    let place = Place::new();
    let hung = Hung::new(&place);
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let log = hung.folder.join("slots.csv");
    let delay = format!("[device.second.delay]\ntime = \"1ms\"\nlog = \"{}\"\n", log.display());
    let said = daemon.reload(&(host + "[device.second]\nbackend = \"null\"\n" + &delay));
    assert!(said.contains("hung/slots.csv does not respond for 5 s"), "{said}");
    others_go_on(&place, 1);
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
    let said = daemon.reload(&(host + &new));
    assert!(said.contains("hung/other.sock does not respond for 5 s"), "{said}");
    assert_eq!(std::fs::metadata(&socket).unwrap().ino(), before, "it leads to where the volume is served");
    others_go_on(&place, 1);
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
    let said = daemon.reload(&(host + &clients));
    assert!(said.contains("sockets/second.sock does not respond for 5 s"), "{said}");
    assert_eq!(std::fs::metadata(&first).unwrap().ino(), before, "it leads to where the volume is served");
    Client::connect(&first, &ClientOptions::default()).unwrap().read(0, &mut [0; 4096]).unwrap();
    others_go_on(&place, 1);
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
    // The first one cannot be removed, and the second one cannot be made any more.
    below.freeze();
    drop(hung);
    let said = daemon.stderr().up_to(&["the running configuration is unchanged"]);
    assert!(said.contains("second.sock"), "{said}");
    others_go_on(&place, 1);
    below.thaw();
    until("the first socket is removed", || !holds_a_socket(&below.folder));
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// Whether a folder, or one in it, holds a socket.
fn holds_a_socket(folder: &Path) -> bool {
    let is_one = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds_a_socket(&entry.path()),
        Ok(kind) => kind.is_socket(),
        Err(_) => false,
    };
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_one))
}

#[test]
fn a_disk_that_hung_when_its_loss_was_accepted_stopped_all_changes() {
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
    until("a helper asks the disk", || threads(daemon.pid()).iter().any(|name| name == "open"));
    others_go_on(&place, 1);
    let refused = accepting.end().failed();
    let path = disk.path.display();
    assert!(refused.contains(&format!("{path} does not respond for 5 s")), "{refused}");
    others_go_on(&place, 2);
    fused.go_on();
    ask(&place, &["accept-loss", "lost/v"]).ok();
    lost.write(0, &noise(2, 4096)).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_request_to_a_server_that_hung_stopped_every_vm_of_its_device() {
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
    until("it is at the device", at_the_device);
    // The device thread answers what needs no server.
    assert!(second.read(1 << 40, 4096).is_err());
    others_go_on(&place, 1);
    fused.go_on();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_socket_that_accepts_nobody_stopped_everything() {
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
    others_go_on(&place, 1);
    assert!(listener.as_raw_fd() >= 0 && !waiting.is_empty());
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_pipe_that_nobody_reads_stopped_everything() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let pipe = place.file("pipe");
    run(tool("mkfifo", "coreutils").arg(&pipe)).ok();
    let refused = run(&mut attach(&place, &pipe, &place.socket("new"))).failed();
    assert!(refused.contains("is a pipe"), "{refused}");
    let delay = format!("[device.second.delay]\ntime = \"1ms\"\nlog = \"{}\"\n", pipe.display());
    let second = format!("[device.second]\nbackend = \"null\"\n{delay}");
    let said = daemon.reload(&(host + &second));
    assert!(
        said.contains("the running configuration is unchanged") && said.contains("Device second cannot be started"),
        "{said}"
    );
    others_go_on(&place, 1);
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// The last close of a block device writes back what is in the page cache.
#[test]
fn a_buffered_volume_on_a_hung_disk_stopped_everything_when_it_was_detached() {
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
    ask(&place, &["detach", "new"]).ok();
    others_go_on(&place, 1);
    below.thaw();
    assert_eq!(daemon.terminate().code(), Some(0));
}
