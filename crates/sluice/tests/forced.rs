//! A forced write is durable when it is acknowledged, on every kind of file system: checked by the writes that reach
//! the disk.

#![allow(clippy::disallowed_macros, reason = "tests print for the developer")]

use crate::common::disk::FileSystem;
use crate::common::fused::Fused;
use crate::common::raw::{FUA, Raw, WRITE, WRITE_ZEROES};
use crate::common::{Daemon, MIB, Place, noise};
use sluice_client::vhost::ClientOptions;

/// Number of forced writes of one client, one after another.
const WRITES: u64 = 50;

fn open(place: &Place) -> Raw {
    Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap()
}

/// Returns the table of the only device, the disk of `path`.
fn device(path: &std::path::Path) -> String {
    format!("[device.disk]\npath = \"{}\"\n", path.display())
}

#[test]
fn a_forced_write_on_fuse_is_flushed_before_it_is_acknowledged() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let daemon = Daemon::serve(&place, &(device(fused.folder()) + &place.volume("a", "v", &fused.disk(), "")));
    let mut raw = open(&place);
    let block = noise(1, 4096);
    for n in 0..WRITES {
        assert_eq!(raw.ask(WRITE, FUA, n * 8192, 4096, &block), Ok(()));
        let (written, flushed) = fused.written_and_flushed();
        assert_eq!((written as u64, flushed as u64), (n + 1, n + 1), "write {n}");
    }
    // Zeroes that must be written, and requests that are not forced.
    assert_eq!(raw.ask(WRITE_ZEROES, FUA | 2, MIB, 64 << 10, &[]), Ok(()));
    let (written, flushed) = fused.written_and_flushed();
    assert_eq!(written, flushed);
    assert_eq!(raw.write(0, &block), Ok(()));
    assert_eq!(fused.written_and_flushed(), (written + 1, flushed));
    assert_eq!(raw.flush(), Ok(()));
    assert_eq!(fused.written_and_flushed(), (written + 1, written + 1));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn writes_of_a_guest_without_a_write_cache_on_fuse_are_flushed_before_they_are_returned() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let daemon = Daemon::serve(&place, &(device(fused.folder()) + &place.vhost_volume("a", "v", &fused.disk(), "")));
    let mut guest = place.vhost("a", "v", &ClientOptions::default());
    // The byte `writeback` of virtio-blk's configuration space.
    guest.session().unwrap().set_config(32, &[0]).unwrap();
    for n in 0..WRITES {
        guest.write(n * 8192, &noise(n, 4096)).unwrap();
        let (written, flushed) = fused.written_and_flushed();
        assert_eq!((written as u64, flushed as u64), (n + 1, n + 1), "write {n}");
    }
    drop(guest);
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// Checks that each forced write makes the disk flush, into allocated blocks and into new ones. Fails on a kernel
/// without the file system: the daemon relies on it, so it must be checked.
fn assert_flushes(kind: &str, size_bytes: u64, make: impl Fn(&std::path::Path, std::path::PathBuf) -> FileSystem) {
    let place = Place::new();
    let system = make(&place.image("disk.img", size_bytes), place.file("mounted"));
    let image = system.folder.join("a.img");
    std::fs::write(&image, noise(2, MIB as usize)).unwrap();
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(2 * MIB).unwrap();
    file.sync_all().unwrap();
    let daemon = Daemon::serve(&place, &(device(&system.folder) + &place.volume("a", "v", &image, "")));
    let mut raw = open(&place);
    let block = noise(1, 4096);
    for n in 0..WRITES {
        let (_, before) = system.written();
        let place = n / 2 * 4096 + n % 2 * MIB;
        assert_eq!(raw.ask(WRITE, FUA, place, 4096, &block), Ok(()));
        let (_, after) = system.written();
        assert!(after > before, "{kind}, write {n}: {after} flushes, as before it");
    }
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn ext4_flushes_for_a_forced_write() {
    assert_flushes("ext4", 64 * MIB, FileSystem::new);
}

#[test]
fn ext2_flushes_for_a_forced_write() {
    assert_flushes("ext2", 64 * MIB, FileSystem::without_ranges_of_zeroes);
}

#[test]
fn xfs_flushes_for_a_forced_write() {
    assert_flushes("xfs", 320 * MIB, FileSystem::xfs);
}

#[test]
fn btrfs_flushes_for_a_forced_write() {
    assert_flushes("btrfs", 256 * MIB, FileSystem::btrfs);
}
