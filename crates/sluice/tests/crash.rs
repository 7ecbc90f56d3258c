//! A daemon that is killed at any time, and the content of the disk then and later.
//!
//! `SLUICE_CRASHES=200` is the long form: 200 kills in each test.

#![allow(clippy::disallowed_macros, reason = "tests print for the developer")]

use std::fs::File;
use std::path::Path;

use crate::common::disk::{FileSystem, Loop};
use crate::common::journal::Journal;
use crate::common::raw::{Raw, WRITE};
use crate::common::slow::Throttle;
use crate::common::{Daemon, KIB, MIB, Place, noise, until};
use rustix::fs::{FlockOperation, fcntl_lock};
use sluice_client::vhost::{Client, ClientOptions, Request};

const QUEUES: u16 = 2;
const APPENDERS: usize = 8;
/// Maximum number of completions between a start and the next kill.
const ANSWERS_MAX: u64 = 150;

/// Returns the number of kills: `default`, unless the environment states another.
fn crashes(default: u64) -> u64 {
    std::env::var("SLUICE_CRASHES").map_or(default, |wanted| wanted.parse().expect("SLUICE_CRASHES is a number"))
}

fn options(queue_size: u16) -> ClientOptions {
    ClientOptions { queues: QUEUES, queue_size, slots: 24, ..ClientOptions::default() }
}

/// A front end whose back end dies repeatedly.
struct Fixture<'a> {
    place: &'a Place,
    host: String,
    source: &'a Path,
    daemon: Option<Daemon>,
    client: Client,
    journal: Journal,
}

impl<'a> Fixture<'a> {
    fn new(place: &'a Place, host: String, source: &'a Path) -> Self {
        let daemon = Daemon::serve(place, &host);
        let client = place.vhost("a", "v", &options(64));
        assert!(client.inflight().is_some(), "without an in-flight log requests would be lost");
        let seed = 0x5eed_0000_0000_0001;
        let journal = Journal::new(APPENDERS, QUEUES, client.config().block_size, seed);
        Fixture { place, host, source, daemon: Some(daemon), client, journal }
    }

    /// Works until `answers` requests have completed, and leaves many in flight.
    fn work(&mut self, answers: u64) {
        self.journal.work(&mut self.client, answers);
    }

    /// Kills the daemon. Earlier completions are in the rings.
    fn kill(&mut self) {
        self.daemon.take().expect("it runs").kill();
        self.journal.reap(&mut self.client);
    }

    fn restart(&mut self) {
        self.daemon = Some(Daemon::serve(self.place, &self.host));
        self.client.reconnect(&self.place.volume_socket("a", "v")).unwrap();
    }

    /// Waits until nothing is in flight.
    fn wait_until_idle(&mut self) {
        for index in 0..QUEUES {
            while self.client.queue(index).in_flight() > 0 {
                let answers = self.client.wait(index, 1).unwrap();
                self.journal.acknowledge(index, &answers);
            }
        }
        assert_eq!(self.journal.in_flight(), 0);
    }

    /// Checks the disk through the daemon, while nothing is in flight.
    fn check_through_the_daemon(&mut self) {
        let mut disk = vec![0; Journal::len_bytes(APPENDERS) as usize];
        for (number, part) in disk.chunks_mut(64 * KIB as usize).enumerate() {
            self.client.read(number as u64 * 64 * KIB, part).unwrap();
        }
        self.journal.check(&disk);
    }

    /// Checks the content of the disk, whether or not a daemon runs.
    fn check_the_disk(&self) {
        self.journal.check(&std::fs::read(self.source).unwrap()[..Journal::len_bytes(APPENDERS) as usize]);
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_the_daemon_is_killed() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.device("depth = 16") + &place.vhost_volume("a", "v", &image, "");
    let mut fixture = Fixture::new(&place, host, &image);
    for crash in 0..crashes(100) {
        // Every fourth daemon is killed while it recovers the requests of the previous one.
        let answers = if crash % 4 == 3 { 0 } else { fixture.journal.random(ANSWERS_MAX) };
        fixture.work(answers);
        fixture.kill();
        fixture.check_the_disk();
        fixture.restart();
        if crash % 4 == 1 {
            continue;
        }
        fixture.wait_until_idle();
        fixture.check_through_the_daemon();
    }
    fixture.wait_until_idle();
    fixture.check_through_the_daemon();
    assert_eq!(fixture.daemon.take().expect("it runs").terminate().code(), Some(0));
}

#[test]
fn recovered_requests_are_logged_and_counted() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let slow = "depth = 16\n[device.disk.delay]\ntime = \"10s\"\nparallel = 16\n";
    let served = place.vhost_volume("a", "v", &image, "");
    let daemon = Daemon::serve(&place, &(place.device(slow) + &served));
    let mut client = place.vhost("a", "v", &options(64));
    for (index, requests) in [(0, 3), (1, 2)] {
        let queue = client.queue(index);
        (0..requests).for_each(|slot| queue.submit(slot, Request::Read { offset: 0, len: 4096 }).unwrap());
        queue.publish().unwrap();
    }
    until("the requests are in flight", || daemon.accounts().device()["in_flight"] == 5);
    let count = |daemon: &Daemon| daemon.accounts().0["guest_sockets"][0]["taken_over"].clone();
    assert_eq!(count(&daemon), 0);
    daemon.kill();

    let daemon = Daemon::serve(&place, &(place.device("depth = 16") + &served));
    client.reconnect(&place.volume_socket("a", "v")).unwrap();
    let output = daemon.stderr().up_to(&["queue=1"]);
    let lines: Vec<&str> = output.lines().filter(|line| line.contains("recovered from the in-flight log")).collect();
    for (line, words) in lines.iter().zip(["queue=0 requests=3", "queue=1 requests=2"]) {
        assert!(line.contains("vm=\"a\" volume=\"v\"") && line.contains(words), "{output}");
    }
    assert_eq!((lines.len(), count(&daemon)), (2, 5.into()), "{output}");
    assert_eq!(client.wait(0, 3).unwrap().len() + client.wait(1, 2).unwrap().len(), 5);
}

#[test]
fn writes_of_a_killed_daemon_never_overwrite_newer_ones() {
    let place = Place::new();
    let device = Loop::new(&place.image("disk.img", MIB));
    let host = place.device("depth = 16") + &place.vhost_volume("a", "v", &device.path, "");
    let mut fixture = Fixture::new(&place, host, &device.path);
    let mut groups = Vec::new();
    for crash in 0..crashes(30) {
        // Without a throttle in the kernel, the daemon is killed all the same, but few requests outlive it.
        let group = Throttle::new(&format!("crash-{crash}"), &device.path, 200);
        group.iter().for_each(|group| group.hold(fixture.daemon.as_ref().expect("it runs").pid()));
        groups.extend(group);
        let answers = fixture.journal.random(30);
        fixture.work(answers);
        fixture.kill();
        fixture.restart();
        fixture.wait_until_idle();
        // The next records replace the old ones at full speed, so late writes would show.
        fixture.work(ANSWERS_MAX);
        fixture.wait_until_idle();
        fixture.check_through_the_daemon();
    }
    assert_eq!(fixture.daemon.take().expect("it runs").terminate().code(), Some(0));
}

#[test]
fn a_front_end_reconnects_with_other_memory_regions_or_as_another_guest() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.device("depth = 16") + &place.vhost_volume("a", "v", &image, "");
    let mut fixture = Fixture::new(&place, host, &image);
    for regions in [3, 8, 1] {
        fixture.work(50);
        fixture.kill();
        fixture.client.cut_memory(regions);
        fixture.restart();
        fixture.wait_until_idle();
        fixture.check_through_the_daemon();
    }
    // Other memory, other rings and no log: the requests in flight are dropped.
    for queue_size in [128, 32, 256] {
        fixture.work(50);
        fixture.kill();
        let mut daemon = Daemon::serve(&place, &fixture.host);
        if queue_size == 32 {
            // At first no front end connects, and nothing is lost.
            assert_eq!(daemon.terminate().code(), Some(0));
            daemon = Daemon::serve(&place, &fixture.host);
        }
        fixture.journal.forget(&std::fs::read(&image).unwrap()[..Journal::len_bytes(APPENDERS) as usize]);
        fixture.daemon = Some(daemon);
        fixture.client = place.vhost("a", "v", &options(queue_size));
        fixture.check_through_the_daemon();
        fixture.work(50);
        fixture.wait_until_idle();
        fixture.check_through_the_daemon();
    }
    assert_eq!(fixture.daemon.take().expect("it runs").terminate().code(), Some(0));
}

/// Whether another process has a lock on a part of the file.
fn is_locked(path: &Path) -> bool {
    let file = File::options().read(true).write(true).open(path).unwrap();
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => false,
        Err(error) => {
            assert!(matches!(error, rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS), "{error}");
            true
        }
    }
}

/// Returns the number of writes in flight at a block device.
fn writes_in_flight(device: &Path) -> u64 {
    let name = device.file_name().unwrap().to_str().unwrap();
    let counts = std::fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
    counts.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether a process has this file open.
fn is_open(path: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let open = processes.filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok());
    open.flatten().flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == path))
}

fn send_writes(raw: &mut Raw, count: u64) -> Vec<Vec<u8>> {
    let blocks: Vec<Vec<u8>> = (0..count).map(|number| noise(number + 1, 4096)).collect();
    for (number, block) in blocks.iter().enumerate() {
        raw.send(WRITE, 0, number as u64 * 64 * KIB, 4096, block).unwrap();
    }
    blocks
}

fn assert_written(disk: &[u8], blocks: &[Vec<u8>]) {
    for (number, block) in blocks.iter().enumerate() {
        assert!(disk[number * 64 * KIB as usize..][..4096] == *block, "write {number} has not landed");
    }
}

#[test]
fn the_lock_of_a_killed_daemon_is_held_until_its_writes_complete() {
    let place = Place::new();
    let below = FileSystem::new(&place.image("below.img", 64 * MIB), place.file("mounted"));
    let image = below.folder.join("disk.img");
    std::fs::write(&image, vec![0; MIB as usize]).unwrap();
    let device = Loop::new(&image);
    let host = place.device("") + &place.volume("a", "v", &device.path, "");
    let daemon = Daemon::serve(&place, &host);
    let mut raw = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    assert!(is_locked(&device.path));
    below.freeze();
    let blocks = send_writes(&mut raw, 8);
    until("the kernel has all writes", || writes_in_flight(&device.path) == 8);
    daemon.kill();
    assert_eq!(writes_in_flight(&device.path), 8, "they outlive the daemon");
    assert!(is_locked(&device.path), "and hold its lock");
    let daemon = std::thread::scope(|threads| {
        let next = threads.spawn(|| Daemon::serve(&place, &host));
        until("the next one has opened it", || is_open(&device.path));
        assert!(!next.is_finished(), "it serves beside writes of the one before it");
        below.thaw();
        next.join().unwrap()
    });
    assert_eq!(writes_in_flight(&device.path), 0, "the next one has waited for them");
    let mut raw = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    assert_written(&raw.read(0, MIB as u32).unwrap(), &blocks);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn the_lock_on_a_file_is_held_until_the_writes_below_it_complete() {
    let place = Place::new();
    let below = FileSystem::new(&place.image("below.img", 64 * MIB), place.file("mounted"));
    let image = below.folder.join("disk.img");
    std::fs::write(&image, noise(9, MIB as usize)).unwrap();
    File::open(&image).unwrap().sync_all().unwrap();
    let host = place.device("") + &place.volume("a", "v", &image, "");
    let daemon = Daemon::serve(&place, &host);
    let Some(group) = Throttle::new("file", below.device(), 2) else {
        eprintln!("this kernel cannot hold writes back: checked without a file system in between alone");
        return;
    };
    group.hold(daemon.pid());
    let mut raw = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    let blocks = send_writes(&mut raw, 6);
    assert_eq!(raw.reply().unwrap().1, 0, "the first is through");
    daemon.kill();
    assert!(is_locked(&image), "the kernel holds the others");
    until("the lock is free", || !is_locked(&image));
    assert_written(&std::fs::read(&image).unwrap(), &blocks);
}

/// A read into guest memory must not complete after the next daemon has answered the guest, which may use the memory
/// for something else. Readers share a lock, so the lock alone does not prevent that.
#[test]
fn reads_of_a_killed_daemon_complete_before_the_next_one_answers_them() {
    let place = Place::new();
    let device = Loop::new(&place.write("disk.img", noise(7, MIB as usize)));
    let host = place.device("") + &place.vhost_volume("a", "v", &device.path, "read_only = true");
    let daemon = Daemon::serve(&place, &host);
    let Some(group) = Throttle::reads("read", &device.path, 2) else {
        eprintln!("this kernel cannot hold reads back: not checked");
        return;
    };
    let mut client = place.vhost("a", "v", &options(64));
    group.hold(daemon.pid());
    let queue = client.queue(0);
    let read = |slot: u16| Request::Read { offset: u64::from(slot) * 64 * KIB, len: 4096 };
    (0..6).for_each(|slot| queue.submit(slot, read(slot)).unwrap());
    queue.publish().unwrap();
    assert_eq!(client.wait(0, 1).unwrap().len(), 1, "the first is through");
    daemon.kill();
    assert!(is_locked(&device.path), "the kernel has the others");
    let daemon = Daemon::serve(&place, &host);
    client.reconnect(&place.volume_socket("a", "v")).unwrap();
    assert_eq!(client.wait(0, 5).unwrap().len(), 5);
    let own = noise(9, 4096);
    (0..6).for_each(|slot| client.queue(0).write_data(slot, &own));
    drop(daemon);
    until("nothing holds a lock", || !is_locked(&device.path));
    for slot in 0..6 {
        let mut bytes = vec![0; 4096];
        client.queue(0).read_data(slot, &mut bytes);
        assert!(bytes == own, "slot {slot} was overwritten");
    }
}

/// A reconnected client repeats unanswered writes, and sends more.
#[test]
fn earlier_writes_of_a_reconnected_nbd_client_do_not_overwrite_later_ones() {
    let place = Place::new();
    let device = Loop::new(&place.image("disk.img", MIB));
    let host = place.device("") + &place.volume("a", "v", &device.path, "");
    let daemon = Daemon::serve(&place, &host);
    let group = Throttle::new("nbd", &device.path, 20);
    group.iter().for_each(|group| group.hold(daemon.pid()));
    let mut raw = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    // Delayed writes complete in order: when the last one has completed, so have the others.
    let last = send_writes(&mut raw, 9).pop().unwrap();
    assert_eq!(raw.reply().unwrap().1, 0, "the first is through");
    until("the daemon has all", || {
        let accounts = daemon.accounts();
        let completed = accounts.vm("a")["completed"]["write"].as_u64().unwrap();
        completed + accounts.number("a", "outstanding") >= 9
    });
    // One iteration later the kernel has them too.
    daemon.accounts();
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    let mut raw = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    let newer: Vec<Vec<u8>> = (0..8).map(|number| noise(100 + number, 4096)).collect();
    for (number, block) in newer.iter().enumerate() {
        raw.write(number as u64 * 64 * KIB, block).unwrap();
    }
    until("nothing is in flight", || raw.read(8 * 64 * KIB, 4096).unwrap() == last);
    assert_written(&raw.read(0, MIB as u32).unwrap(), &newer);
    assert_eq!(daemon.terminate().code(), Some(0));
}
