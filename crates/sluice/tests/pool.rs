//! Storage that several hosts use at the same time (`pool`).

use std::path::Path;

use crate::common::fused::Fused;
use crate::common::shared::{HostFile, Throttled};
use crate::common::{Daemon, Place, Running, fio, run, sluice, start, tool, until};

pub(crate) mod hosts;
pub(crate) mod same;

use hosts::{AtFile, Hosts, create, pool, reserve};
use same::the_same_at;

the_same_at!(Hosts::at_file());

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
        HostFile { place, disk, number, device, meeting: is_pool.then(|| meeting.display().to_string()), vm }.text()
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
fn a_meeting_place_that_hung_stopped_a_host() {
    let base = Place::new();
    let fused = Fused::new(&base, 16);
    let hosts = Hosts::new(base, Box::new(AtFile(fused.disk())));
    same::a_meeting_place_that_hung_stopped_a_host(&hosts, || fused.stop(), || fused.go_on());
}

#[test]
fn a_second_daemon_of_one_host_kept_the_first_one_from_reserving() {
    let hosts = Hosts::at_file();
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    let _other = Daemon::serve(hosts.place(2), &hosts.file(2, 1).replace("offset = \"0MiB\"", "offset = \"8MiB\""));
    assert!(reserve(hosts.place(2), 1, 100).failed().contains("nothing more can be reserved"));
    reserve(hosts.place(1), 1, 400).ok();
}

#[test]
fn a_place_that_was_replaced_was_used_on() {
    let hosts = Hosts::at_file();
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 800).ok();
    let meeting = hosts.base.file("meeting");
    let copy = meeting.with_extension("copy");
    std::fs::copy(&meeting, &copy).unwrap();
    std::fs::rename(&copy, &meeting).unwrap();
    let _second = hosts.serve(2);
    until("both are there", || hosts.look()["hosts"].as_array().unwrap().iter().all(|host| host["runs"] == true));
    let refused = reserve(hosts.place(2), 2, 1500).failed();
    assert!(refused.contains("has 800 iops"), "{refused}");
}
