//! A fault of one VM's world: its volume is out of service, with the cause, and all others are served.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::raw::{Raw, connect, greeted};
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, tool, until};
use serde_json::{Value, json};

/// Two VMs. That of `a` has its image and its socket in folders of their own.
struct Two {
    place: Place,
    host: String,
}

impl Two {
    fn new() -> Two {
        let place = Place::new();
        fs::create_dir(place.file("own")).unwrap();
        fs::create_dir(place.socket("own")).unwrap();
        fs::set_permissions(place.socket("own"), fs::Permissions::from_mode(0o755)).unwrap();
        let (a, b) = (place.image("own/a.img", 4 * MIB), place.image("b.img", 4 * MIB));
        let export = format!("export = {{ socket = \"{}\" }}", place.socket("own/a.sock").display());
        let volume = format!("device = \"disk\"\nsource = \"{}\"\nsize = \"4MiB\"\n{export}\n", a.display());
        let host = place.control_keys()
            + &place.device("")
            + &format!("[vm.a.volume.v]\n{volume}")
            + &place.volume("b", "v", &b, "size = \"4MiB\"");
        Two { place, host }
    }

    /// As [`Two::new`], after a daemon has served both. Their first bytes are `noise(1)` and `noise(2)`.
    fn served() -> Two {
        let two = Two::new();
        let daemon = Daemon::serve(&two.place, &two.host);
        two.open("a").write(0, &noise(1, 4096)).unwrap();
        two.open("b").write(0, &noise(2, 4096)).unwrap();
        assert_eq!(daemon.terminate().code(), Some(0));
        two
    }

    fn image(&self) -> PathBuf {
        self.place.file("own/a.img")
    }

    fn socket(&self, vm: &str) -> PathBuf {
        if vm == "a" { self.place.socket("own/a.sock") } else { self.place.volume_socket(vm, "v") }
    }

    fn open(&self, vm: &str) -> Raw {
        Raw::open(&self.socket(vm), &format!("{vm}/v")).unwrap()
    }

    fn ask(&self, verb: &[&str]) -> Ended {
        run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(self.place.socket("control")))
    }

    /// The state, and the exit code of `sluice status`.
    fn status(&self) -> (Value, Option<i32>) {
        let ended = self.ask(&["status"]);
        (serde_json::from_str(&ended.stdout).unwrap(), ended.code())
    }

    fn out_of_service(&self) -> Value {
        self.status().0["out_of_service"].clone()
    }

    /// Accepts what `a` would serve now.
    fn force(&self) {
        self.ask(&["apply", "--force", "a/v", self.place.file("host.toml").to_str().unwrap()]).ok();
    }

    /// Checks that `a` is out of service for this reason, and that `b` is served.
    #[track_caller]
    fn assert_out(&self, daemon: &Daemon, fault: &str, why: &str) {
        assert_eq!(self.open("b").read(0, 4096), Ok(noise(2, 4096)), "{fault}");
        let log = daemon.stderr().with("is out of service");
        let line = log.lines().find(|line| line.contains("is out of service")).unwrap();
        assert!(line.contains("vm=\"a\"") && line.contains(why), "{fault}: {line}");
        let (status, code) = self.status();
        assert_eq!((&status["out_of_service"], code), (&json!(["a/v"]), Some(6)), "{fault}: {status}");
        let reason = status["volumes_out_of_service"][0]["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{fault}: {reason}");
    }
}

type Change = (fn(&Two) -> Option<Held>, fn(&Two));

/// What keeps up a fault until it is dropped.
enum Held {
    Process(crate::common::Running),
    #[expect(dead_code, reason = "it listens until it is dropped")]
    Socket(UnixListener),
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("aside")
}

fn set_aside(two: &Two) {
    fs::rename(two.image(), aside(&two.image())).unwrap();
}

fn put_back(two: &Two) {
    let image = two.image();
    match fs::symlink_metadata(&image) {
        Ok(there) if there.is_dir() => fs::remove_dir(&image).unwrap(),
        Ok(_) => fs::remove_file(&image).unwrap(),
        Err(_) => {}
    }
    fs::rename(aside(&image), image).unwrap();
}

fn set_len(two: &Two, len: u64) {
    fs::File::options().write(true).open(two.image()).unwrap().set_len(len).unwrap();
}

fn remove_socket(two: &Two) {
    fs::remove_file(two.socket("a")).unwrap();
}

fn ran(command: &mut Command) {
    run(command).ok();
}

/// A process that holds an open file description lock on one byte.
const LOCK: &str = "
import fcntl, struct, sys, time
file = open(sys.argv[1], 'r+b')
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 100, 1, 0))
print('locked', flush=True)
time.sleep(3600)
";

/// Faults: name, words of the reason, cause and repair.
const IMAGE_FAULTS: [(&str, &str, Change); 11] = [
    (
        "removed",
        "No such file",
        (
            |two| {
                set_aside(two);
                None
            },
            put_back,
        ),
    ),
    (
        "cut by a byte",
        "shorter than declared",
        (
            |two| {
                set_len(two, 4 * MIB - 1);
                None
            },
            |two| set_len(two, 4 * MIB),
        ),
    ),
    (
        "emptied",
        "shorter than declared",
        (
            |two| {
                set_len(two, 0);
                None
            },
            |two| set_len(two, 4 * MIB),
        ),
    ),
    (
        "a folder",
        "is a folder",
        (
            |two| {
                set_aside(two);
                fs::create_dir(two.image()).unwrap();
                None
            },
            put_back,
        ),
    ),
    (
        "a pipe",
        "is a pipe",
        (
            |two| {
                set_aside(two);
                ran(tool("mkfifo", "coreutils").arg(two.image()));
                None
            },
            put_back,
        ),
    ),
    (
        "a socket",
        "is a socket",
        (
            |two| {
                set_aside(two);
                Some(Held::Socket(UnixListener::bind(two.image()).unwrap()))
            },
            put_back,
        ),
    ),
    (
        "a link",
        "leads to the file or disk of volume b/v",
        (
            |two| {
                set_aside(two);
                std::os::unix::fs::symlink(two.place.file("b.img"), two.image()).unwrap();
                None
            },
            put_back,
        ),
    ),
    (
        "a hard link",
        "leads to the file or disk of volume b/v",
        (
            |two| {
                set_aside(two);
                fs::hard_link(two.place.file("b.img"), two.image()).unwrap();
                None
            },
            put_back,
        ),
    ),
    (
        "immutable",
        "Operation not permitted",
        (
            |two| {
                ran(tool("chattr", "e2fsprogs").arg("+i").arg(two.image()));
                None
            },
            |two| ran(tool("chattr", "e2fsprogs").arg("-i").arg(two.image())),
        ),
    ),
    (
        "its folder removed",
        "No such file",
        (
            |two| {
                fs::rename(two.place.file("own"), two.place.file("away")).unwrap();
                None
            },
            |two| fs::rename(two.place.file("away"), two.place.file("own")).unwrap(),
        ),
    ),
    (
        "locked by a process",
        "is locked by",
        (
            |two| {
                let locking = crate::common::start(tool("python3", "python3").args(["-c", LOCK]).arg(two.image()));
                locking.stdout.up_to(&["locked"]);
                Some(Held::Process(locking))
            },
            |_| {},
        ),
    ),
];

#[test]
fn a_fault_of_one_image_kept_every_vm_from_its_disk() {
    let two = Two::served();
    for (fault, why, (cause, repair)) in IMAGE_FAULTS {
        let held = cause(&two);
        let daemon = Daemon::serve(&two.place, &two.host);
        two.assert_out(&daemon, fault, why);
        // A client waits at its socket until it is served.
        let waiting = connect(&two.socket("a")).unwrap();
        if let Some(Held::Process(process)) = held {
            process.kill();
        }
        repair(&two);
        daemon.stderr().with("Volume is in service again");
        let mut waited = Raw::enter(greeted(waiting).unwrap(), "a/v").unwrap();
        if fault == "emptied" {
            waited.write(0, &noise(1, 4096)).unwrap();
        }
        assert_eq!(waited.read(0, 4096), Ok(noise(1, 4096)), "{fault}");
        let (status, code) = two.status();
        assert_eq!((&status["out_of_service"], code), (&json!([]), Some(0)), "{fault}: {status}");
        assert_eq!(daemon.terminate().code(), Some(0), "{fault}");
    }
}

/// Faults: name, words of the reason, cause and repair.
const SOCKET_FAULTS: [(&str, &str, Change); 6] = [
    (
        "a file",
        "is not a socket",
        (
            |two| {
                fs::write(two.socket("a"), "x").unwrap();
                None
            },
            remove_socket,
        ),
    ),
    (
        "a folder",
        "is not a socket",
        (
            |two| {
                fs::create_dir(two.socket("a")).unwrap();
                None
            },
            |two| fs::remove_dir(two.socket("a")).unwrap(),
        ),
    ),
    (
        "a link",
        "is not a socket",
        (
            |two| {
                std::os::unix::fs::symlink(two.place.file("b.img"), two.socket("a")).unwrap();
                None
            },
            remove_socket,
        ),
    ),
    (
        "a listener",
        "is in use by another process",
        (|two| Some(Held::Socket(UnixListener::bind(two.socket("a")).unwrap())), remove_socket),
    ),
    (
        "its folder removed",
        "No such file",
        (
            |two| {
                fs::remove_dir(two.place.socket("own")).unwrap();
                None
            },
            |two| {
                fs::create_dir(two.place.socket("own")).unwrap();
                fs::set_permissions(two.place.socket("own"), fs::Permissions::from_mode(0o755)).unwrap();
            },
        ),
    ),
    (
        "its folder open to all",
        "every user can replace files",
        (
            |two| {
                fs::set_permissions(two.place.socket("own"), fs::Permissions::from_mode(0o777)).unwrap();
                None
            },
            |two| fs::set_permissions(two.place.socket("own"), fs::Permissions::from_mode(0o755)).unwrap(),
        ),
    ),
];

#[test]
fn a_fault_at_one_socket_kept_every_vm_from_its_disk() {
    let two = Two::served();
    for (fault, why, (cause, repair)) in SOCKET_FAULTS {
        let held = cause(&two);
        let daemon = Daemon::serve(&two.place, &two.host);
        two.assert_out(&daemon, fault, why);
        drop(held);
        repair(&two);
        daemon.stderr().with("Volume is in service again");
        assert_eq!(two.open("a").read(0, 4096), Ok(noise(1, 4096)), "{fault}");
        assert_eq!(two.status().1, Some(0), "{fault}");
        assert_eq!(daemon.terminate().code(), Some(0), "{fault}");
    }
}

#[test]
fn a_fault_of_one_device_kept_every_vm_from_its_disk() {
    let two = Two::served();
    let place = &two.place;
    let null = "[vm.c.volume.v]\ndevice = \"second\"\nsize = \"1MiB\"\nexport = { socket = \"SOCKET\" }\n";
    let null = null.replace("SOCKET", &place.volume_socket("c", "v").display().to_string());
    let delay = |log: &Path| {
        format!("[device.second]\nbackend = \"null\"\ndelay = {{ time = \"1ms\", log = \"{}\" }}\n", log.display())
    };
    let log = place.file("logs/second.log");
    let on_second = |path: &Path| {
        let volume = place.volume("c", "v", &place.file("own/a.img"), "offset = \"4MiB\"");
        format!("[device.second]\npath = \"{}\"\n", path.display()) + &volume.replace("\"disk\"", "\"second\"")
    };
    let cases = [
        ("its log", delay(&log) + &null, "cannot write its log"),
        ("no path", on_second(&place.file("none")), "cannot be resolved to a disk"),
        // The state knows the volumes of the first one.
        ("one disk", on_second(&place.file("own")).replace("second", "another"), "on the same disk"),
    ];
    for (fault, more, why) in cases {
        let device = if more.contains("another") { "another" } else { "second" };
        let daemon = Daemon::serve(place, &(two.host.clone() + &more));
        for (vm, seed) in [("a", 1), ("b", 2)] {
            assert_eq!(two.open(vm).read(0, 4096), Ok(noise(seed, 4096)), "{fault}");
        }
        let (status, code) = two.status();
        let out = json!([format!("[device]/{device}"), "c/v"]);
        assert_eq!((&status["out_of_service"], code), (&out, Some(6)), "{fault}: {status}");
        let reason = status["volumes_out_of_service"][0]["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{fault}: {reason}");
        if fault == "its log" {
            fs::create_dir(place.file("logs")).unwrap();
            daemon.stderr().with("Volume is in service again");
            two.open("c").read(0, 4096).unwrap();
        }
        if fault == "no path" {
            // A corrected path is no change of a device that runs.
            let fixed = more.replace("none", "own").replace("second", "disk2");
            let refused = daemon.reload(&(two.host.clone() + &fixed));
            assert!(refused.contains("on the same disk"), "a reload is still refused as a whole: {refused}");
        }
        assert_eq!(daemon.terminate().code(), Some(0), "{fault}");
    }
}

#[test]
fn a_group_that_does_not_exist_and_metrics_that_cannot_be_served_stop_nobody() {
    let two = Two::served();
    let metrics = format!("metrics = \"{}\"\n", two.place.file("none/metrics").display());
    let host = two.host.replace("a.sock\"", "a.sock\", group = \"no-such-group\"").replacen(
        "[daemon]\n",
        &format!("[daemon]\n{metrics}"),
        1,
    );
    let taken = UnixListener::bind(two.place.socket("shared")).unwrap();
    let shared = format!("[nbd]\nsocket = \"{}\"\n", two.place.socket("shared").display());
    let daemon = Daemon::serve(&two.place, &(host + &shared));
    daemon.stderr().with("Metrics are not served");
    assert_eq!(two.open("b").read(0, 4096), Ok(noise(2, 4096)));
    assert_eq!(
        two.status().0["out_of_service"],
        json!(["[nbd]/".to_owned() + two.place.socket("shared").to_str().unwrap(), "a/v"])
    );
    drop(taken);
    daemon.stderr().with("Socket is in service again");
    let mut shared = Raw::open(&two.place.socket("shared"), "b/v").unwrap();
    assert_eq!(shared.read(0, 4096), Ok(noise(2, 4096)));
}

/// No record says whose the file is, so neither gets it; and one whose owner is away is not given to another one.
#[test]
fn a_file_under_two_names_was_served_to_the_first_one_that_was_opened() {
    let two = Two::new();
    fs::remove_file(two.image()).unwrap();
    fs::hard_link(two.place.file("b.img"), two.image()).unwrap();
    let daemon = Daemon::serve(&two.place, &two.host);
    assert_eq!(two.status().0["out_of_service"], json!(["a/v", "b/v"]));
    fs::remove_file(two.image()).unwrap();
    daemon.stderr().with("Volume is in service again");
    two.open("b").write(0, &noise(2, 4096)).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));
    // The image of `b` is away, and `a`, which was never served, has a link to it.
    fs::rename(two.place.file("b.img"), two.image()).unwrap();
    let daemon = Daemon::serve(&two.place, &two.host);
    let (status, _) = two.status();
    assert_eq!(status["out_of_service"], json!(["a/v", "b/v"]));
    let reason = status["volumes_out_of_service"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("leads to the file or disk of volume b/v"), "{reason}");
    // The operator may say that it is right.
    two.force();
    assert_eq!(two.open("a").read(0, 4096), Ok(noise(2, 4096)));
    drop(daemon);
}

#[test]
fn a_volume_that_a_retry_held_back_was_neither_served_nor_reported() {
    let two = Two::served();
    set_aside(&two);
    let daemon = Daemon::serve(&two.place, &two.host);
    fs::write(two.image(), noise(3, 4 * MIB as usize)).unwrap();
    until("it is held back", || two.status().0["held_back"][0]["volume"] == "a/v");
    let (status, code) = two.status();
    assert_eq!((&status["out_of_service"], code), (&json!([]), Some(6)), "{status}");
    assert!(connect(&two.socket("a")).is_err(), "nobody would accept");
    let log = daemon.stderr().so_far();
    assert!(!log.contains("in service again"), "{log}");
    let socket = format!("export.socket={}", two.socket("a").display());
    let refused = two.ask(&["attach", "a/v", "device=disk", "size=4MiB", "source=/dev/null", &socket]).failed();
    assert!(refused.contains("a/v is held back: ") && refused.contains("--force a/v"), "{refused}");
    two.force();
    assert_eq!(two.open("a").read(0, 4096), Ok(noise(3, 4096)));
    assert_eq!(two.status().1, Some(0));
    drop(daemon);
}

#[test]
fn a_file_under_two_names_was_served_to_the_one_whose_socket_could_be_made() {
    let two = Two::new();
    fs::remove_file(two.place.file("b.img")).unwrap();
    fs::hard_link(two.image(), two.place.file("b.img")).unwrap();
    let taken = UnixListener::bind(two.socket("a")).unwrap();
    let later = |vm: &str| two.place.volume(vm, "v", &two.place.file(vm), "size = \"1MiB\"");
    let daemon = Daemon::serve(&two.place, &(two.host.clone() + &later("c") + &later("d")));
    assert_eq!(two.out_of_service(), json!(["a/v", "b/v", "c/v", "d/v"]));
    // They are retried after the other two.
    for vm in ["c", "d"] {
        two.place.image(vm, MIB);
        daemon.stderr().up_to(&[&format!("Volume is in service again vm=\"{vm}\"")]);
    }
    assert_eq!(two.out_of_service(), json!(["a/v", "b/v"]));
    fs::remove_file(two.image()).unwrap();
    until("it has one name", || two.out_of_service() == json!(["a/v"]));
    drop((taken, daemon));
}

#[test]
fn a_link_to_the_file_of_a_volume_that_was_set_aside_was_served() {
    let two = Two::new();
    let (image, socket) = (two.place.image("c.img", MIB), two.place.volume_socket("c", "v"));
    let daemon = Daemon::serve(&two.place, &two.host);
    let (source, export) = (format!("source={}", image.display()), format!("export.socket={}", socket.display()));
    two.ask(&["attach", "c/v", "device=disk", &source, &export]).ok();
    assert_eq!(daemon.terminate().code(), Some(0));
    let link = two.place.file("link.img");
    fs::hard_link(&image, &link).unwrap();
    // It has the socket of the volume that was attached.
    let more = two
        .place
        .volume("d", "v", &link, "")
        .replace(two.place.volume_socket("d", "v").to_str().unwrap(), socket.to_str().unwrap());
    let daemon = Daemon::serve(&two.place, &(two.host.clone() + &more));
    let (status, _) = two.status();
    assert_eq!(status["held_back"][0]["volume"], "c/v", "{status}");
    assert_eq!(status["out_of_service"], json!(["d/v"]), "{status}");
    let reason = status["volumes_out_of_service"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("leads to the file or disk of volume c/v"), "{reason}");
    drop(daemon);
}

#[test]
fn a_volume_out_of_service_could_be_extended_without_its_image_and_left_its_socket_behind() {
    let two = Two::served();
    set_aside(&two);
    let daemon = Daemon::serve(&two.place, &two.host);
    let refused = two.ask(&["resize", "a/v", "8MiB"]).failed();
    assert!(refused.contains("a/v is out of service") && refused.contains("No such file"), "{refused}");
    connect(&two.socket("a")).unwrap();
    two.ask(&["detach", "a/v"]).ok();
    assert!(connect(&two.socket("a")).is_err(), "nobody would accept");
    two.ask(&["reset", "a/v"]).failed();
    put_back(&two);
    two.ask(&["reset", "a/v"]).ok();
    assert_eq!(two.open("a").read(0, 4096), Ok(noise(1, 4096)));
    drop(daemon);
}

#[test]
fn a_device_out_of_service_without_volumes_was_not_reported_and_never_started() {
    let two = Two::served();
    let log = two.place.file("logs/second.log");
    let delay = format!("delay = {{ time = \"1ms\", log = \"{}\" }}\n", log.display());
    let daemon = Daemon::serve(&two.place, &(two.host.clone() + "[device.second]\nbackend = \"null\"\n" + &delay));
    let line = daemon.stderr().with("Device is out of service");
    assert!(line.contains("volume=\"second\"") && line.contains("cannot write its log"), "{line}");
    let (status, code) = two.status();
    assert_eq!((&status["out_of_service"], code), (&json!(["[device]/second"]), Some(6)), "{status}");
    until("there is an event", || two.ask(&["events", "--device", "second"]).ok().contains("cannot write its log"));
    let events = two.ask(&["events", "--device", "second"]).ok();
    assert!(events.contains("Device second is out of service"), "{events}");
    let export = format!("export.socket={}", two.place.volume_socket("c", "v").display());
    let attach = || two.ask(&["attach", "c/v", "device=second", "size=1MiB", &export]);
    let refused = attach().failed();
    assert!(refused.contains("Device second is out of service"), "{refused}");
    fs::create_dir(two.place.file("logs")).unwrap();
    // It need not wait for the retry.
    attach().ok();
    two.open("c").read(0, 4096).unwrap();
    daemon.stderr().with("Device is in service again");
    assert_eq!(two.status().1, Some(0));
    drop(daemon);
}

#[test]
fn a_strict_start_is_refused_for_a_fault_of_one_image() {
    let two = Two::served();
    set_aside(&two);
    let error = Daemon::refused(&two.place, &two.host);
    assert!(error.contains("VM a, volume v: Cannot open"), "{error}");
}

/// Two volumes of one file. The host file is edited so that the first one reaches over the second, which is held back because it moves.
#[test]
fn a_volume_that_grows_over_another_one_that_is_held_back_got_its_bytes() {
    let place = Place::new();
    let image = place.image("both.img", 8 * MIB);
    let file = |a: &str, b: &str| {
        let volume = |vm: &str, range: &str| place.volume(vm, "v", &image, range);
        place.control_keys() + &place.device("") + &volume("a", a) + &volume("b", b)
    };
    let (first, second) = ("offset = \"0B\"\nsize = \"2MiB\"", "offset = \"2MiB\"\nsize = \"2MiB\"");
    let right = file(first, second);
    let open = |vm: &str| Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap();
    let daemon = Daemon::serve(&place, &right);
    open("b").write(0, &noise(2, 4096)).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));

    let wrong = file("offset = \"0B\"\nsize = \"4MiB\"", "offset = \"4MiB\"\nsize = \"2MiB\"");
    let daemon = Daemon::serve(&place, &wrong);
    let ask =
        |verb: &[&str]| run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")));
    let status: Value = serde_json::from_str(&ask(&["status"]).stdout).unwrap();
    let reason = status["volumes_out_of_service"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("leads to the file or disk of volume b/v"), "{status}");
    assert_eq!(status["held_back"][0]["volume"], "b/v", "{status}");
    assert_eq!(daemon.terminate().code(), Some(0));

    // At run time too: `b` is held back, and `a` is as it was.
    let moved = file(first, "offset = \"4MiB\"\nsize = \"2MiB\"");
    let daemon = Daemon::serve(&place, &moved);
    let refused = ask(&["resize", "a/v", "4MiB"]).failed();
    assert!(refused.contains("leads to the file or disk of volume b/v"), "{refused}");
    assert_eq!(daemon.terminate().code(), Some(0));
    let daemon = Daemon::serve(&place, &right);
    assert_eq!(open("b").read(0, 4096), Ok(noise(2, 4096)));
    drop(daemon);
}

#[test]
fn a_volume_whose_file_was_cut_is_not_extended_over_what_it_has_lost() {
    let two = Two::served();
    let daemon = Daemon::serve(&two.place, &two.host.replace("size = \"4MiB\"", ""));
    fs::File::options().write(true).open(two.image()).unwrap().set_len(MIB).unwrap();
    let refused = two.ask(&["resize", "a/v", "8MiB"]).failed();
    assert!(refused.contains("a.img"), "{refused}");
    assert_eq!(fs::metadata(two.image()).unwrap().len(), MIB);
    drop(daemon);
}
