//! A device of several disks: a list of paths, patterns, and disks that appear later. Each disk of a test is a loop device on a memory
//! file system of its own, because a loop device counts as the disk below its file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::common::disk::Loop;
use crate::common::raw::Raw;
use crate::common::reads::while_reading;
use crate::common::{Daemon, Ended, MIB, Place, run, sluice, tool, until};
use serde_json::{Value, json};

/// A disk that no other one shares.
struct OwnDisk {
    device: Option<Loop>,
    folder: PathBuf,
}

impl OwnDisk {
    fn new(place: &Place, name: &str) -> OwnDisk {
        let folder = place.file(&format!("{name}.memory"));
        fs::create_dir(&folder).unwrap();
        run(tool("mount", "mount").args(["-t", "tmpfs", "none"]).arg(&folder)).ok();
        let image = folder.join("disk.img");
        fs::File::create_new(&image).unwrap().set_len(4 * MIB).unwrap();
        OwnDisk { device: Some(Loop::new(&image)), folder }
    }

    fn path(&self) -> &Path {
        &self.device.as_ref().expect("it is detached at the end").path
    }

    /// Gives the disk a name in a folder, as udev does when it appears.
    fn appear(&self, folder: &Path, name: &str) -> PathBuf {
        let link = folder.join(name);
        symlink(self.path(), &link).unwrap();
        link
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        drop(self.device.take());
        let _ = run(tool("umount", "mount").arg("--lazy").arg(&self.folder));
    }
}

/// A host with a folder in which disks get names.
struct Host {
    place: Place,
    names: PathBuf,
}

impl Host {
    fn new() -> Host {
        let place = Place::new();
        let names = place.file("names");
        fs::create_dir(&names).unwrap();
        Host { place, names }
    }

    fn ask(&self, verb: &[&str]) -> Ended {
        run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(self.place.socket("control")))
    }

    fn attach(&self, volume: &str, device: &str, source: &Path) -> Ended {
        self.attach_part(volume, device, source, "offset=0B")
    }

    fn attach_part(&self, volume: &str, device: &str, source: &Path, part: &str) -> Ended {
        let (vm, name) = volume.split_once('/').unwrap();
        let socket = format!("export.socket={}", self.place.volume_socket(vm, name).display());
        let (device, source) = (format!("device={device}"), format!("source={}", source.display()));
        self.ask(&["attach", volume, &device, &source, &socket, part])
    }

    fn status(&self) -> (Value, Option<i32>) {
        let ended = self.ask(&["status"]);
        (serde_json::from_str(&ended.stdout).unwrap(), ended.code())
    }

    fn settings(&self, device: &str) -> Value {
        let described: Value = serde_json::from_str(&self.ask(&["describe", device]).ok()).unwrap();
        described["objects"][0]["settings"].clone()
    }

    fn text(&self, device: &str, paths: &str) -> String {
        self.place.control_keys() + &device_of(device, paths)
    }

    fn works(&self, volume: &str) {
        let (vm, name) = volume.split_once('/').unwrap();
        let mut client = Raw::open(&self.place.volume_socket(vm, name), volume).unwrap();
        client.write(0, &[7; 4096]).unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    }

    fn apply(&self, host: &str) -> Ended {
        let file = self.place.write("host.toml", host);
        self.ask(&["apply", file.to_str().unwrap()])
    }

    /// Returns what is wrong with a host file, without a look at this host.
    fn wrong(&self, host: &str) -> String {
        let file = self.place.write("wrong.toml", host);
        run(sluice().arg("check").arg(file)).failed()
    }

    fn check(&self, host: &str) -> (String, Option<i32>) {
        let file = self.place.write("checked.toml", host);
        let ended = run(sluice().args(["-o", "json", "check", "--host"]).arg(file));
        (ended.stdout.clone(), ended.code())
    }
}

fn device_of(name: &str, paths: &str) -> String {
    format!("[device.{name}]\npath = {paths}\n")
}

/// A list of paths in TOML.
fn list(paths: &[&Path]) -> String {
    let quoted: Vec<String> = paths.iter().map(|path| format!("\"{}\"", path.display())).collect();
    format!("[{}]", quoted.join(", "))
}

fn pattern(folder: &Path) -> String {
    list(&[&folder.join("*")])
}

/// A busy machine makes an attempt fail; a scheduler for each disk makes all of them fail.
const ATTEMPTS: usize = 4;

#[test]
fn two_disks_of_one_device_share_its_scheduler() {
    let host = Host::new();
    let [one, two] = ["one", "two"].map(|name| OwnDisk::new(&host.place, name));
    let vm = |vm: &str, weight: u32, disk: &OwnDisk| {
        format!(
            "[vm.{vm}]\nweight = {weight}\n[vm.{vm}.volume.v]\ndevice = \"disks\"\nsource = \"{}\"\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n",
            disk.path().display(),
            host.place.socket(vm).display()
        )
    };
    // 4,000 requests per second for both disks together.
    let delay = "depth = 16\n[device.disks.delay]\ntime = \"1ms\"\nparallel = 4\n";
    let text = host.text("disks", &list(&[one.path(), two.path()])) + delay + &vm("a", 100, &one) + &vm("b", 300, &two);
    let _daemon = Daemon::serve(&host.place, &text);
    let names = host.settings("disks")["disks"].clone();
    assert_eq!(names.as_array().unwrap().len(), 2, "{names}");
    let ratio = || {
        while_reading(&host.place, ["a", "b"], 32, |answered| {
            let sum = || answered().iter().sum::<u64>();
            // polls: counters of clients
            until("both read", || sum() > 1000);
            let (before, began) = (answered(), Instant::now());
            until("they go on", || sum() > 7000);
            let (after, seconds) = (answered(), began.elapsed().as_secs_f64());
            let [a, b] = [0, 1].map(|vm: usize| (after[vm] - before[vm]) as f64 / seconds);
            (b / a, a + b)
        })
    };
    let runs: Vec<(f64, f64)> = (0..ATTEMPTS).map(|_| ratio()).collect();
    let is_shared = |(ratio, sum): &(f64, f64)| (2.7..3.3).contains(ratio) && *sum < 4200.0;
    assert!(runs.iter().any(is_shared), "weights 1 to 3, 4000 per second: {runs:?}");
}

#[test]
fn a_disk_that_appears_later_joins_when_a_volume_names_it() {
    let host = Host::new();
    let [one, two, three] = ["one", "two", "three"].map(|name| OwnDisk::new(&host.place, name));
    let first = one.appear(&host.names, "vm-a");
    let text = host.text("disk", &pattern(&host.names)) + &host.place.volume("a", "v", &first, "");
    let late = text.clone() + &host.place.volume("b", "v", &host.names.join("vm-b"), "");
    let daemon = Daemon::serve(&host.place, &late);
    host.works("a/v");
    daemon.stderr().with("Volume is out of service");
    two.appear(&host.names, "vm-b");
    daemon.stderr().with("Volume is in service again");
    host.works("b/v");

    // By another name than that of the pattern, and not before the pattern matches.
    let refused = host.attach("c/v", "disk", three.path()).failed();
    assert!(refused.contains("its source is on filesystem") && refused.contains("its device disk is"), "{refused}");
    three.appear(&host.names, "vm-c");
    host.attach("c/v", "disk", three.path()).ok();
    host.works("c/v");
    let settings = host.settings("disk");
    assert_eq!(settings["disks"].as_array().unwrap().len(), 3, "{settings}");
    assert_eq!(settings["path"], host.names.join("*").to_str().unwrap());
    assert_eq!(settings["paths"], Value::Null, "there is one: {settings}");

    // A disk that goes away takes its volume with it, and no other one.
    fs::remove_file(host.names.join("vm-b")).unwrap();
    host.ask(&["detach", "b/v"]).ok();
    host.attach("b/v", "disk", &host.names.join("vm-b")).failed();
    host.works("a/v");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn one_disk_under_two_devices_is_refused_with_both_names() {
    let host = Host::new();
    let (one, two) = (OwnDisk::new(&host.place, "one"), OwnDisk::new(&host.place, "two"));
    let link = one.appear(&host.names, "vm-a");
    let both = |first: &str, second: &str| {
        host.place.control_keys() + &device_of("first", first) + &device_of("second", second)
    };
    let text = host.wrong(&both(&pattern(&host.names), &list(&[&link])));
    assert!(text.contains("Device second: path:") && text.contains("of device first lead to the same disk"), "{text}");
    let refused = Daemon::refused(&host.place, &both(&pattern(&host.names), &list(&[one.path()])));
    assert!(refused.contains("Devices first and second are on the same disk"), "{refused}");

    // One that appears under both.
    let other = host.place.file("others");
    fs::create_dir(&other).unwrap();
    two.appear(&other, "vm-z");
    let daemon = Daemon::serve(&host.place, &both(&pattern(&host.names), &pattern(&other)));
    let late = OwnDisk::new(&host.place, "late");
    let (here, there) = (late.appear(&host.names, "vm-b"), late.appear(&other, "vm-b"));
    host.attach_part("b/v", "second", &there, "size=2MiB").ok();
    let refused = host.attach_part("c/v", "first", &here, "offset=2MiB").failed();
    assert!(refused.contains("Devices second and first are on the same disk"), "{refused}");
    host.works("b/v");
    drop(daemon);
}

#[test]
fn a_pattern_that_matches_nothing_yet_is_a_disk_that_is_gone() {
    let host = Host::new();
    let one = OwnDisk::new(&host.place, "one");
    let image = host.place.image("b.img", MIB);
    let text = host.text("late", &pattern(&host.names))
        + &host.place.device("")
        + &host.place.volume("a", "v", &host.names.join("vm-a"), "").replace("\"disk\"", "\"late\"")
        + &host.place.volume("b", "v", &image, "");
    let why = format!("No disk matches {}/*", host.names.display());

    let refused = Daemon::refused(&host.place, &text);
    assert!(refused.contains(&why) && refused.contains("no block device has such a name"), "{refused}");
    let (found, code) = host.check(&text);
    assert!(found.contains(&why) && found.contains("would be out of service") && code != Some(0), "{found}");

    let daemon = Daemon::serve(&host.place, &text);
    host.works("b/v");
    let (status, code) = host.status();
    assert_eq!((&status["out_of_service"], code), (&json!(["[device]/late", "a/v"]), Some(6)), "{status}");
    assert!(status["volumes_out_of_service"][0]["reason"].as_str().unwrap().contains(&why), "{status}");
    until("there is an event", || host.ask(&["events", "--device", "late"]).ok().contains(&why));
    let more = text.clone() + &device_of("later", &pattern(&host.place.file("no-folder")));
    let refused = host.apply(&more).failed();
    assert!(refused.contains("Device later") && refused.contains("No disk matches"), "{refused}");
    host.apply(&text).ok();

    one.appear(&host.names, "vm-a");
    daemon.stderr().with("Device is in service again");
    until("the volume is served", || host.status().1 == Some(0));
    host.works("a/v");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_device_that_lacks_some_of_its_disks_serves_the_others() {
    let host = Host::new();
    let (one, two) = (OwnDisk::new(&host.place, "one"), OwnDisk::new(&host.place, "two"));
    let paths = list(&[one.path(), &host.names.join("*")]);
    let text = host.text("disk", &paths) + &host.place.volume("a", "v", one.path(), "");
    let refused = Daemon::refused(&host.place, &text);
    assert!(
        refused.contains("Device disk: No disk matches") && refused.contains("its other disks are served"),
        "{refused}"
    );
    let (found, code) = host.check(&text);
    assert!(found.contains("No disk matches") && code != Some(0), "{found}");

    let daemon = Daemon::serve(&host.place, &text);
    host.works("a/v");
    daemon.stderr().with("Device runs without some of its disks");
    let (status, code) = host.status();
    assert_eq!((&status["out_of_service"], code), (&json!(["[device]/disk"]), Some(6)), "{status}");
    until("there is an event", || host.ask(&["events", "--device", "disk"]).ok().contains("No disk matches"));
    // Other changes go on, and it is still lacking.
    host.ask(&["set", "a", "weight=7"]).ok();
    assert_eq!(host.status().1, Some(6));

    two.appear(&host.names, "vm-b");
    daemon.stderr().with("Device has all its disks");
    assert_eq!(host.status().1, Some(0));
    host.attach("b/v", "disk", &host.names.join("vm-b")).ok();
    host.works("b/v");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_reload_adds_disks_and_removes_none() {
    let host = Host::new();
    let [one, two, three] = ["one", "two", "three"].map(|name| OwnDisk::new(&host.place, name));
    // The released form: one path, which is no list.
    let single =
        host.text("disk", &format!("\"{}\"", one.path().display())) + &host.place.volume("a", "v", one.path(), "");
    let daemon = Daemon::serve(&host.place, &single);
    let before = host.settings("disk");
    assert_eq!((&before["path"], &before["disks"]), (&json!(one.path()), &Value::Null), "as before: {before}");
    let refused = host.attach("b/v", "disk", two.path()).failed();
    assert!(refused.contains("its source is on filesystem"), "{refused}");

    let volumes = host.place.volume("a", "v", one.path(), "") + &host.place.volume("b", "v", two.path(), "");
    let more = host.text("disk", &list(&[one.path(), two.path()])) + &volumes;
    host.apply(&more).ok();
    host.works("a/v");
    host.works("b/v");
    assert_eq!(host.settings("disk")["paths"], json!([one.path(), two.path()]));

    // A list that lacks a disk, names one twice, or has another device's is refused as a whole.
    let link = two.appear(&host.names, "vm-b");
    let named = host.place.file("gone");
    for (paths, why) in [
        (list(&[one.path(), two.path(), &named]), "Cannot inspect"),
        (list(&[one.path(), two.path(), &link]), "leads to the disk of"),
        (list(&[one.path(), three.path()]), "its path (it may only get more disks) cannot change while it runs"),
    ] {
        let refused = host.apply(&(host.text("disk", &paths) + &volumes)).failed();
        assert!(refused.contains(why), "{why}: {refused}");
    }
    host.works("b/v");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn one_disk_by_two_names_in_a_list_is_refused() {
    let host = Host::new();
    let one = OwnDisk::new(&host.place, "one");
    let link = one.appear(&host.names, "vm-a");
    let text = host.text("disk", &list(&[one.path(), &link])) + &host.place.volume("a", "v", one.path(), "");
    let why = format!("{} leads to the disk of {}: remove one of them", link.display(), one.path().display());
    let refused = Daemon::refused(&host.place, &text);
    assert!(refused.contains(&why), "{refused}");
    let (found, code) = host.check(&text);
    assert!(found.contains(&why) && code != Some(0), "{found}");
    // A pattern may match many names of one disk, as the folders below /dev/disk do.
    one.appear(&host.names, "vm-b");
    let text = host.text("disk", &pattern(&host.names)) + &host.place.volume("a", "v", one.path(), "");
    let daemon = Daemon::serve(&host.place, &text);
    host.works("a/v");
    assert_eq!(host.settings("disk")["disks"].as_array().unwrap().len(), 1);
    drop(daemon);
}

#[test]
fn a_pattern_takes_disks_only_and_a_thousand_names() {
    let host = Host::new();
    let one = OwnDisk::new(&host.place, "one");
    fs::write(host.names.join("a.img"), [0; 4096]).unwrap();
    fs::create_dir(host.names.join("folder")).unwrap();
    symlink("/no/such/disk", host.names.join("broken")).unwrap();
    let text = host.text("disk", &pattern(&host.names));
    let refused = Daemon::refused(&host.place, &text);
    assert!(refused.contains("No disk matches") && refused.contains("is no block device"), "{refused}");
    for number in 0..1000 {
        one.appear(&host.names, &format!("vm-{number}"));
    }
    let volume = host.place.volume("a", "v", &host.names.join("vm-7"), "");
    let daemon = Daemon::serve(&host.place, &(text + &volume));
    host.works("a/v");
    assert_eq!(host.settings("disk")["disks"].as_array().unwrap().len(), 1, "not the disk of the folder");
    drop(daemon);
}

#[test]
fn a_name_of_a_pattern_that_leads_to_another_disk_after_a_restart_is_held_back() {
    let host = Host::new();
    let (one, two) = (OwnDisk::new(&host.place, "one"), OwnDisk::new(&host.place, "two"));
    let name = one.appear(&host.names, "rbd0");
    let kept = OwnDisk::new(&host.place, "kept");
    let other = kept.appear(&host.names, "rbd1");
    let text = host.text("disk", &pattern(&host.names))
        + &host.place.volume("a", "v", &name, "")
        + &host.place.volume("b", "v", &other, "");
    let daemon = Daemon::serve(&host.place, &text);
    host.works("a/v");
    assert_eq!(daemon.terminate().code(), Some(0));
    fs::remove_file(&name).unwrap();
    two.appear(&host.names, "rbd0");
    let daemon = Daemon::serve(&host.place, &text);
    let (status, code) = host.status();
    assert_eq!((status["held_back"][0]["volume"].as_str(), code), (Some("a/v"), Some(6)), "{status}");
    let reason = status["held_back"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("is now another file or disk"), "{reason}");
    host.works("b/v");
    drop(daemon);
}

#[test]
fn wrong_paths_of_a_device_are_refused_with_what_to_write() {
    let host = Host::new();
    let image = host.place.volume("a", "v", Path::new("/srv/vm/a.img"), "");
    let cases = [
        ("[\"dev/sda\"]", "'dev/sda' is a relative path", "write an absolute path, for example \"/dev/nvme0n1\""),
        ("[]", "the list has 0 paths", "write from 1 to 256"),
        (
            "[7]",
            "path must be a path, a list of paths, the address of a server or a pool of a Ceph cluster, not",
            "write for example path = \"/dev/nvme0n1\"",
        ),
        ("\"/dev/sd*1*\"", "'/dev/sd*1*' has more than one *", "write one *, or a list of patterns"),
        ("\"/dev/*/vm\"", "'/dev/*/vm' has a * before its last part", "a pattern for each folder"),
        ("[\"/dev/**\"]", "'/dev/**' has more than one *", "write one *"),
        ("[\"/dev/sda\", \"/dev//sda\"]", "'/dev//sda' is in the list twice", "remove one of them"),
        (
            "[\"/dev/sda\", \"/dev/sd*\"]",
            "'/dev/sda' is in the list twice: the pattern '/dev/sd*' matches it too",
            "remove one",
        ),
        ("[\"/dev/sd*\", \"/dev/sda*\"]", "the pattern '/dev/sd*' matches it too", "write '/dev/sd*' once"),
        ("[\"/dev/sda\", \"/srv/vm/a.img\"]", "/srv/vm/a.img is the source of volume a/v, and no disk", "'/srv/vm'"),
    ];
    let _daemon = Daemon::serve(&host.place, &host.text("own", &format!("\"{}\"", host.place.folder().display())));
    for (paths, what, hint) in cases {
        let text = host.text("disk", paths) + &image;
        let found = host.wrong(&text);
        assert!(found.contains(what) && found.contains(hint), "{paths}: {found}");
        assert!(found.contains("wrong.toml:"), "its line: {found}");
        let refused = host.apply(&text).failed();
        assert!(refused.contains(what), "{paths}: {refused}");
    }
}
