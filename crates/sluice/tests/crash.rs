//! A daemon that is killed at any moment, and what is on the disk then and afterwards.

use std::fs::File;
use std::path::Path;

use common::disk::{FileSystem, Loop};
use common::raw::{Raw, WRITE};
use common::slow::Throttle;
use common::{Daemon, KIB, MIB, Place, noise, until};
use rustix::fs::{FlockOperation, fcntl_lock};

mod common;

/// Whether somebody else has a lock on the file, or part of it.
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

/// Writes that the kernel holds at a block device.
fn writes_in_flight(device: &Path) -> u64 {
    let name = device.file_name().unwrap().to_str().unwrap();
    let counts = std::fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
    counts.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn send_writes(raw: &mut Raw, count: u64) -> Vec<Vec<u8>> {
    let blocks: Vec<Vec<u8>> = (0..count).map(|number| noise(number + 1, 4096)).collect();
    for (number, block) in blocks.iter().enumerate() {
        raw.send(WRITE, 0, number as u64 * 64 * KIB, 4096, block).unwrap();
    }
    blocks
}

fn assert_landed(disk: &[u8], blocks: &[Vec<u8>]) {
    for (number, block) in blocks.iter().enumerate() {
        assert!(disk[number * 64 * KIB as usize..][..4096] == *block, "write {number} has not landed");
    }
}

#[test]
fn the_lock_of_a_killed_daemon_is_held_until_its_writes_have_landed() {
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
        below.thaw();
        next.join().unwrap()
    });
    assert_eq!(writes_in_flight(&device.path), 0, "the next one has waited for them");
    let mut raw = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    assert_landed(&raw.read(0, MIB as u32).unwrap(), &blocks);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn the_lock_on_a_file_is_held_until_the_writes_below_it_have_landed() {
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
    assert_landed(&std::fs::read(&image).unwrap(), &blocks);
}
