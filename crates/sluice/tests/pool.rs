//! Storage that several hosts use at the same time (`pool`).

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::fused::Fused;
use crate::common::raw::Raw;
use crate::common::shared::{HostFile, Throttled, create};
use crate::common::{Daemon, Ended, MIB, Place, Running, fio, run, sluice, start, tool, until};

/// Size of a block of the place, and the block of the first claim.
const BLOCK: u64 = 4096;
const CLAIMS: u64 = 65;

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn reserve(place: &Place, number: u8, iops: u32) -> Ended {
    ask(place, &["set", &format!("v{number}"), &format!("reservation={iops} iops")])
}

/// The pool as the device of a host shows it.
fn pool(place: &Place) -> Value {
    let devices = ask(place, &["-o", "json", "get", "devices"]).stdout;
    serde_json::from_str::<Value>(&devices).unwrap()["devices"][0]["pool"].clone()
}

/// The pool as it stands at its place.
fn at(meeting: &Path) -> Value {
    serde_json::from_str(&run(sluice().args(["-o", "json", "pool", "status"]).arg(meeting)).ok()).unwrap()
}

/// Hosts with a file that they share, which is not throttled, and the place where they meet.
struct Hosts {
    base: Place,
    disk: PathBuf,
    meeting: PathBuf,
    places: Vec<Place>,
}

impl Hosts {
    fn new(count: u8) -> Hosts {
        let base = Place::new();
        let (disk, meeting) = (base.image("disk", 64 * MIB), base.file("meeting"));
        create(&meeting, count, "2000 iops").ok();
        Hosts { disk, meeting, places: (0..count).map(|_| Place::new()).collect(), base }
    }

    fn place(&self, number: u8) -> &Place {
        &self.places[usize::from(number) - 1]
    }

    fn file(&self, number: u8, as_number: u8, keys: &str) -> String {
        let device = format!("capacity = \"2000 iops\"\nlatency = \"8ms\"\n{keys}");
        let (place, disk, meeting) = (self.place(number), self.disk.as_path(), Some(self.meeting.as_path()));
        HostFile { place, disk, number: as_number, device, meeting, vm: "" }.text()
    }

    fn serve(&self, number: u8) -> Daemon {
        Daemon::serve(self.place(number), &self.file(number, number, ""))
    }

    /// Writes something else into a block.
    fn spoil(&self, block: u64) {
        let file = std::fs::File::options().write(true).open(&self.meeting).unwrap();
        file.write_all_at(b"sluicegate-pool claim 1 00000000 10\n{", block * BLOCK).unwrap();
    }
}

fn load(place: &Place, number: u8, depth: u32) -> Running {
    let uri = place.uri(&format!("v{number}"), "d");
    let jobs = format!(
        "[load]\nioengine=nbd\nuri={uri}\nrw=randread\nbs=8k\niodepth={depth}\nsize=4m\ntime_based=1\nruntime=600\n"
    );
    start(&mut fio::fio(place, "load", &jobs))
}

#[test]
fn a_vm_had_no_minimum_of_storage_that_other_hosts_used() {
    let base = Place::new();
    let (throttled, meeting) = (Throttled::new(&base), base.file("meeting"));
    create(&meeting, 4, "2000 iops").ok();
    let places: Vec<Place> = (0..4).map(|_| Place::new()).collect();
    let file = |number: u8, is_pool: bool| {
        let device = format!("capacity = \"2000 iops\"\n{}", if is_pool { "latency = \"8ms\"\n" } else { "" });
        let vm = if number == 1 { "reservation = \"800 iops\"" } else { "" };
        let (place, disk) = (&places[usize::from(number) - 1], throttled.file());
        HostFile { place, disk, number, device, meeting: is_pool.then_some(meeting.as_path()), vm }.text()
    };
    let depth = |number| if number == 1 { 16 } else { 32 };
    let sees_all = |place: &Place| pool(place)["hosts"].as_array().is_some_and(|hosts| hosts.len() == 4);
    // Requests of the first one while all of them completed 8,000.
    let of_first = |is_pool: bool| {
        let at = |number: u8| &places[usize::from(number) - 1];
        let daemons: Vec<Daemon> = (1..=4).map(|number| Daemon::serve(at(number), &file(number, is_pool))).collect();
        let _loads: Vec<Running> = (1..=4).map(|number| load(at(number), number, depth(number))).collect();
        let served = |number: u8| {
            let accounts = daemons[usize::from(number) - 1].accounts();
            accounts.vm(&format!("v{number}"))["completed"]["read"].as_u64().unwrap()
        };
        until("all are served", || (1..=4).all(|number| served(number) > 0));
        until("hosts see each other", || !is_pool || places.iter().all(sees_all));
        let all = || (1..=4).map(served).sum::<u64>();
        let (before, begin) = (all(), served(1));
        until("8,000 requests are served", || all() >= before + 8000);
        served(1) - begin
    };
    let (without, with) = (of_first(false), of_first(true));
    assert!(with > 2 * without, "{with} of 8,000 requests with a pool, {without} without");
}

#[test]
fn two_hosts_promised_more_than_their_storage_has() {
    let hosts = Hosts::new(2);
    let (first, second) = (hosts.serve(1), hosts.serve(2));
    reserve(hosts.place(1), 1, 1200).ok();
    let refused = reserve(hosts.place(2), 2, 900).failed();
    assert!(refused.contains("host 1 (") && refused.contains("has 1200 iops"), "{refused}");
    reserve(hosts.place(2), 2, 700).ok();
    // What a dead host has stays, until it is forgotten, and what a host gives back is free at once.
    second.kill();
    assert!(reserve(hosts.place(1), 1, 1400).failed().contains("has 700 iops"));
    let forget = |number: &str| run(sluice().args(["pool", "forget"]).arg(&hosts.meeting).args(["--host", number]));
    assert!(forget("1").failed().contains("Host 1 runs"));
    assert!(forget("3").failed().contains("no host 3"));
    forget("2").ok();
    reserve(hosts.place(1), 1, 1400).ok();
    reserve(hosts.place(1), 1, 100).ok();
    let reserved = |document: &Value| document["hosts"][0]["reserved_iops"].as_f64().unwrap();
    until("it has given back what it does not need", || reserved(&at(&hosts.meeting)) < 101.0);
    // A restart has what it had, and it is not claimed twice.
    first.kill();
    let _first = hosts.serve(1);
    until("it runs", || at(&hosts.meeting)["hosts"][0]["runs"] == true);
    assert!((99.0..101.0).contains(&reserved(&at(&hosts.meeting))));
}

#[test]
fn a_meeting_place_that_hung_stopped_a_host() {
    let hosts = Hosts::new(1);
    let fused = Fused::new(&hosts.base, 16);
    create(&fused.disk(), 2, "2000 iops").ok();
    let place = hosts.place(1);
    let text = hosts.file(1, 1, "").replace(&hosts.meeting.display().to_string(), &fused.disk().display().to_string());
    let daemon = Daemon::serve(place, &text);
    reserve(place, 1, 800).ok();
    let mut vm = Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap();
    vm.read(0, 4096).unwrap();
    fused.stop();
    until("it is away", || pool(place)["troubles"].as_array().is_some_and(|troubles| !troubles.is_empty()));
    vm.read(0, 4096).unwrap();
    reserve(place, 1, 600).ok();
    // Nothing is promised that the others do not know.
    let refused = reserve(place, 1, 900).failed();
    assert!(refused.contains("nothing more can be reserved") && refused.contains("not responded"), "{refused}");
    daemon.kill();
    let daemon = Daemon::serve(place, &text);
    Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap().read(0, 4096).unwrap();
    // Nor does it keep one that was started meanwhile.
    daemon.kill();
    let daemon = Daemon::serve(place, &text);
    let mut vm = Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap();
    vm.read(0, 4096).unwrap();
    assert!(daemon.apply(place, &text.replace("host = 1", "host = 2")).failed().contains("no response for 4 s"));
    fused.go_on();
    until("it is back", || pool(place)["troubles"].as_array().is_some_and(Vec::is_empty));
    until("more may be reserved", || reserve(place, 1, 900).code() == Some(0));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn two_daemons_had_one_number() {
    let hosts = Hosts::new(2);
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    // On this host the lock tells: on another one it would be the epoch.
    let _other = Daemon::serve(hosts.place(2), &hosts.file(2, 1, "").replace("offset = \"0MiB\"", "offset = \"8MiB\""));
    let refused = reserve(hosts.place(2), 1, 100).failed();
    assert!(refused.contains("nothing more can be reserved"), "{refused}");
    reserve(hosts.place(1), 1, 400).ok();
}

#[test]
fn a_block_that_cannot_be_read_hid_a_claim() {
    let hosts = Hosts::new(2);
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    hosts.spoil(CLAIMS + 2);
    hosts.spoil(2);
    let refused = reserve(hosts.place(1), 1, 400).failed();
    assert!(refused.contains("the claims of host 2 cannot be read"), "{refused}");
    reserve(hosts.place(1), 1, 200).ok();
    // Its own daemon writes it again.
    let _second = hosts.serve(2);
    until("the claims can be read", || reserve(hosts.place(1), 1, 400).code() == Some(0));
    let is_good = |host: &Value| host["runs"] == true && host["unreadable"] == Value::Null;
    until("both are seen", || at(&hosts.meeting)["hosts"].as_array().unwrap().iter().all(is_good));
}

#[test]
fn a_place_that_was_replaced_was_used_on() {
    let hosts = Hosts::new(2);
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 800).ok();
    let copy = hosts.meeting.with_extension("copy");
    std::fs::copy(&hosts.meeting, &copy).unwrap();
    std::fs::rename(&copy, &hosts.meeting).unwrap();
    let _second = hosts.serve(2);
    until("both are there", || at(&hosts.meeting)["hosts"].as_array().unwrap().iter().all(|host| host["runs"] == true));
    let refused = reserve(hosts.place(2), 2, 1500).failed();
    assert!(refused.contains("has 800 iops"), "{refused}");
    std::fs::remove_file(&hosts.meeting).unwrap();
    let is_told =
        |number| pool(hosts.place(number))["troubles"].as_array().is_some_and(|troubles| !troubles.is_empty());
    until("it is missed", || (1..=2).all(is_told));
    let refused = reserve(hosts.place(1), 1, 900).failed();
    assert!(refused.contains("it does not exist"), "{refused}");
}

#[test]
fn a_claim_that_others_could_not_read_any_more_was_not_missed() {
    let hosts = Hosts::new(2);
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    let file = std::fs::File::options().read(true).write(true).open(&hosts.meeting).unwrap();
    let mut old = vec![0; 2 * BLOCK as usize];
    file.read_exact_at(&mut old, CLAIMS * BLOCK).unwrap();
    reserve(hosts.place(1), 1, 1500).ok();
    file.write_all_at(&old, CLAIMS * BLOCK).unwrap();
    let claimed = || at(&hosts.meeting)["hosts"][0]["reserved_iops"].as_f64().unwrap();
    until("it is claimed again", || claimed() > 1499.0);
    // One of another host hides what it has from all.
    hosts.spoil(CLAIMS + 2);
    until("it is told", || pool(hosts.place(1))["troubles"].to_string().contains("the block of host 2"));
}

#[test]
fn a_host_without_a_meeting_place_did_not_serve() {
    let hosts = Hosts::new(2);
    let place = hosts.place(1);
    let there = hosts.meeting.with_extension("away");
    std::fs::rename(&hosts.meeting, &there).unwrap();
    let text = hosts.file(1, 1, "").replace("[vm.v1]", "[vm.v1]\nreservation = \"500 iops\"");
    let refused = Daemon::refused(place, &text);
    assert!(refused.contains("sluice pool create"), "{refused}");
    let checked = run(sluice().args(["check", "--host"]).arg(place.write("checked.toml", &text)));
    assert!(checked.stdout.contains("cannot meet the other hosts"), "{}{}", checked.stdout, checked.stderr);
    let daemon = Daemon::serve(place, &text);
    Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap().read(0, 4096).unwrap();
    assert!(daemon.apply(place, &text.replace("host = 1", "host = 2")).failed().contains("sluice pool create"));
    std::fs::rename(&there, &hosts.meeting).unwrap();
    let claimed = || at(&hosts.meeting)["hosts"][0]["reserved_iops"].as_f64().unwrap();
    until("what it serves is claimed", || claimed() > 499.0);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_capacity_that_is_not_that_of_the_pool_was_sold() {
    let hosts = Hosts::new(2);
    let (place, text) = (hosts.place(1), hosts.file(1, 1, ""));
    let daemon = Daemon::serve(place, &text.replace("2000 iops", "3000 iops"));
    let refused = reserve(place, 1, 100).failed();
    assert!(refused.contains("2000 iops@8KiB") && refused.contains("--keep"), "{refused}");
    let path = hosts.meeting.as_path();
    let again = create(path, 2, "3000 iops").failed();
    assert!(again.contains("has a pool of 2 hosts") && again.contains("--keep"), "{again}");
    let keep = ["--hosts", "2", "--capacity", "3000 iops", "--keep"];
    run(sluice().args(["pool", "create"]).arg(path).args(keep)).ok();
    until("it is that of the pool", || reserve(place, 1, 2500).code() == Some(0));
    let less = ["--hosts", "2", "--capacity", "2520 iops", "--keep"];
    let refused = run(sluice().args(["pool", "create"]).arg(path).args(less)).failed();
    assert!(
        refused.contains("2500 iops of the pool"),
        "not sold: what hosts meet with, and the weight floor: {refused}"
    );
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_place_that_cannot_be_one_was_written() {
    let place = Place::new();
    let used = place.write("used", vec![7; 1 << 20]);
    assert!(create(&used, 2, "2000 iops").failed().contains("holds something else"));
    assert_eq!(std::fs::read(&used).unwrap(), vec![7; 1 << 20]);
    let keep = |path: &Path, hosts: &str, capacity: &str| {
        let options = ["--hosts", hosts, "--capacity", capacity, "--keep"];
        run(sluice().args(["pool", "create"]).arg(path).args(options))
    };
    assert!(keep(&place.file("missing"), "2", "2000 iops").failed().contains("No such file"));
    assert!(!place.file("missing").exists());
    // One that was killed before it had written anything.
    create(&place.write("empty", ""), 2, "2000 iops").ok();
    let pipe = place.file("pipe");
    run(tool("mkfifo", "coreutils").arg(&pipe)).ok();
    assert!(create(&pipe, 2, "2000 iops").failed().contains("neither a file nor a block device"));
    assert!(create(&place.file("new"), 2, "2000 iops@3KiB").failed().contains("no power of two"));
    assert!(create(&place.file("new"), 64, "120 iops").failed().contains("to meet"));
    let short = place.write("short", vec![0; 4096]);
    assert!(create(&short, 2, "2000 iops").failed().contains("too short"));
    assert!(create(&place.file("no/folder"), 2, "2000 iops").failed().contains("No such file"));
    assert!(create(&place.file("new"), 65, "2000 iops").failed().contains("1..=64"));
    assert!(create(&place.file("new"), 2, "2000").failed().contains("iops"));
    let warned = create(&place.file("new"), 2, "2000 iops");
    assert!(warned.stderr.contains("other hosts reach it only"), "{}", warned.stderr);
    let unknown = run(sluice().args(["pool", "status"]).arg(&used)).failed();
    assert!(unknown.contains("has no pool that can be read"), "{unknown}");
}

#[test]
fn a_host_that_left_its_pool_kept_what_it_had_claimed() {
    let hosts = Hosts::new(2);
    let daemon = hosts.serve(1);
    reserve(hosts.place(1), 1, 800).ok();
    let claimed = || at(&hosts.meeting)["hosts"][0]["reserved_iops"].as_f64().unwrap();
    assert!((799.0..801.0).contains(&claimed()));
    let pool = format!("[device.disk.pool]\nmeeting = \"{}\"\nhost = 1\n", hosts.meeting.display());
    let text = hosts.file(1, 1, "");
    assert!(text.contains(&pool));
    daemon.accept(&text.replace(&pool, ""));
    until("it is given back", || claimed() < 1.0);
    // It has not vanished: nothing is there that gets old.
    let usage = || std::fs::read(&hosts.meeting).unwrap()[BLOCK as usize..2 * BLOCK as usize].to_vec();
    until("it is out of the pool", || usage().iter().all(|byte| *byte == 0));
    // A stop is no leave: what its VMs have is kept for them.
    daemon.accept(&text);
    until("it is claimed again", || claimed() > 799.0);
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(claimed() > 799.0);
}
