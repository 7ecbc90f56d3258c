//! Zeroes and discards under a limit: on a volume that can make zeroes, and where they have to be written.
//!
//! ext2 does not support `FALLOC_FL_ZERO_RANGE`. So zeroes that must not leave a hole have to be written to a file on
//! ext2. On a loop device over such a file, the kernel itself writes the zeroes at the first request. Written bytes
//! are read from the counters of the block device below the volume, not from the daemon.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::common::disk::{FileSystem, Loop, written};
use crate::common::raw::{FUA, Raw, TRIM, WRITE_ZEROES};
use crate::common::{Daemon, KIB, MIB, Place, noise, until};
use sluice_client::vhost::{ClientOptions, Request};

/// NBD command flags: zeroes stay allocated; zeroes are rejected if they would have to be written.
const NO_HOLE: u16 = 1 << 1;
const FAST_ZERO: u16 = 1 << 4;
const ENOTSUP: u32 = 95;

const SIZE: u64 = 256 * MIB;
const LIMIT: &str = "[vm.a]\nlimit = { iops = \"10 iops@8KiB\", bytes = \"1MiB/s\" }\nburst = 1\nallow_slow = true\n";
/// Bytes above a limit of 1 MiB/s that may be written with a burst of 1: one piece at the start, one in flight, and
/// the file system's own blocks.
const EXCESS_MAX: u64 = 3 * 256 * KIB;

/// A file system that cannot make zeroes, with the fully allocated volume `v.img`.
struct Fixture {
    place: Place,
    files: FileSystem,
    image: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let place = Place::new();
        let disk = place.image("disk.img", SIZE + 64 * MIB);
        let files = FileSystem::without_ranges_of_zeroes(&disk, place.file("files"));
        let image = files.folder.join("v.img");
        let block = noise(1, MIB as usize);
        let mut file = std::fs::File::create_new(&image).unwrap();
        (0..SIZE / MIB).for_each(|_| std::io::Write::write_all(&mut file, &block).unwrap());
        file.sync_all().unwrap();
        Fixture { place, files, image }
    }

    fn serve(&self, volume: &str) -> Daemon {
        let device = format!("[device.disk]\npath = \"{}\"\n", self.files.folder.display());
        Daemon::serve(&self.place, &(device + LIMIT + volume))
    }
}

/// Waits until 4 MiB have been written to `device` since `before`, and checks the limit.
#[track_caller]
fn assert_held(device: &Path, before: u64, started: Instant) {
    until("4 MiB are written", || written(device).0 - before >= 4 * MIB);
    let seconds = started.elapsed().as_secs_f64();
    let bytes = written(device).0 - before;
    let most = (seconds * MIB as f64) as u64 + EXCESS_MAX;
    assert!(bytes <= most, "{bytes} bytes in {seconds:.2} s, and {most} with a limit of 1 MiB/s");
}

#[test]
fn an_nbd_client_wrote_zeroes_past_its_limit() {
    let fixture = Fixture::new();
    let daemon = fixture.serve(&fixture.place.volume("a", "v", &fixture.image, ""));
    let mut client = Raw::open(&fixture.place.volume_socket("a", "v"), "a/v").unwrap();
    let (before, started) = (fixture.files.written().0, Instant::now());
    for part in 0..16 {
        client.send(WRITE_ZEROES, NO_HOLE, part % 4 * 64 * MIB, 64 * MIB as u32, &[]).unwrap();
    }
    assert_held(fixture.files.device(), before, started);
    let accounts = daemon.accounts();
    let completed = &accounts.vm("a")["completed"];
    assert!(accounts.number("a", "bytes") >= 3 * MIB && completed["write"].as_u64().unwrap() >= 12, "{completed}");
    assert_eq!(accounts.number("a", "failed"), 0);
    // Requests of a closed client do not wait for the rest of its 1 GiB.
    client.close();
    until("its requests are cancelled", || daemon.accounts().number("a", "outstanding") == 0);
    drop(daemon);
}

#[test]
fn a_guest_wrote_zeroes_past_its_limit() {
    let fixture = Fixture::new();
    let daemon = fixture.serve(&fixture.place.vhost_volume("a", "v", &fixture.image, ""));
    let mut client = fixture.place.vhost("a", "v", &ClientOptions::default());
    let most = u64::from(client.config().zeroes_sectors_max) * 512;
    assert_eq!(most, 32 * MIB, "as long as a write");
    let (before, started) = (fixture.files.written().0, Instant::now());
    for slot in 0..8 {
        let zeroes = Request::WriteZeroes { offset: u64::from(slot) * most, len: most, unmap: false };
        client.queue(0).submit(slot, zeroes).unwrap();
    }
    client.queue(0).publish().unwrap();
    assert_held(fixture.files.device(), before, started);
    // Stopped immediately: requests that are not in flight return to the ring, begun or not.
    assert_eq!(client.stop_queue(0).unwrap(), 0);
    drop(client);
    drop(daemon);
}

#[test]
fn zeroes_that_went_back_to_the_gate_were_forgotten_by_a_killed_daemon() {
    let fixture = Fixture::new();
    let volume = fixture.place.vhost_volume("a", "v", &fixture.image, "");
    let daemon = fixture.serve(&volume);
    let mut client = fixture.place.vhost("a", "v", &ClientOptions::default());
    let before = fixture.files.written().0;
    for slot in 0..4 {
        let zeroes = Request::WriteZeroes { offset: u64::from(slot) * 4 * MIB, len: 3 * MIB, unmap: false };
        client.queue(0).submit(slot, zeroes).unwrap();
    }
    client.queue(0).publish().unwrap();
    until("some are written", || fixture.files.written().0 - before >= MIB);
    daemon.kill();
    // The next daemon has no limit.
    let device = format!("[device.disk]\npath = \"{}\"\n", fixture.files.folder.display());
    let daemon = Daemon::serve(&fixture.place, &(device + &volume));
    until("the back end listens", || client.reconnect(&fixture.place.volume_socket("a", "v")).is_ok());
    let answers = client.wait(0, 4).unwrap();
    let mut slots: Vec<u16> = answers.iter().filter(|answer| answer.status == 0).map(|answer| answer.slot).collect();
    slots.sort_unstable();
    assert_eq!((slots, client.queue(0).in_flight()), (vec![0, 1, 2, 3], 0), "each is answered once");
    let mut bytes = vec![0; 4096];
    for (at, zero) in [(0, true), (3 * MIB - 4096, true), (3 * MIB, false), (12 * MIB, true), (15 * MIB - 4096, true)] {
        client.read(at, &mut bytes).unwrap();
        assert_eq!(bytes.iter().all(|byte| *byte == 0), zero, "at {at}");
    }
    drop(client);
    drop(daemon);
}

#[test]
fn the_kernel_wrote_zeroes_to_a_block_device_past_a_limit() {
    let fixture = Fixture::new();
    let disk = Loop::new(&fixture.image);
    let volume = fixture.place.volume("a", "v", &disk.path, "");
    let device = format!("[device.disk]\npath = \"{}\"\n", disk.path.display());
    let daemon = Daemon::serve(&fixture.place, &(device + LIMIT + &volume));
    let mut client = Raw::open(&fixture.place.volume_socket("a", "v"), "a/v").unwrap();
    let (before, started) = (written(&disk.path).0, Instant::now());
    for part in 0..4 {
        client.send(WRITE_ZEROES, NO_HOLE, part * 64 * MIB, 64 * MIB as u32, &[]).unwrap();
    }
    assert_held(&disk.path, before, started);
    client.close();
    until("its requests are cancelled", || daemon.accounts().number("a", "outstanding") == 0);
    drop(daemon);
}

#[test]
fn forced_zeroes_are_durable_and_fast_zeroes_are_rejected_where_zeroes_must_be_written() {
    let fixture = Fixture::new();
    let device = format!("[device.disk]\npath = \"{}\"\n", fixture.files.folder.display());
    let daemon = Daemon::serve(&fixture.place, &(device + &fixture.place.volume("a", "v", &fixture.image, "")));
    let mut client = Raw::open(&fixture.place.volume_socket("a", "v"), "a/v").unwrap();
    let fast = |client: &mut Raw| client.ask(WRITE_ZEROES, NO_HOLE | FAST_ZERO, MIB, 8 * MIB as u32, &[]);
    assert_eq!(fast(&mut client), Err(ENOTSUP));
    let (before, flushes) = fixture.files.written();
    assert_eq!(client.ask(WRITE_ZEROES, NO_HOLE, MIB, 8 * MIB as u32, &[]), Ok(()));
    assert_eq!(fixture.files.written().1, flushes, "nothing is to be durable");
    assert_eq!(client.ask(WRITE_ZEROES, NO_HOLE | FUA, MIB, 8 * MIB as u32, &[]), Ok(()));
    let (bytes, forced) = fixture.files.written();
    assert!(forced > flushes, "{forced} flushes, {flushes} before");
    assert!((16 * MIB..17 * MIB).contains(&(bytes - before)), "{} bytes written", bytes - before);
    assert_eq!(fast(&mut client), Err(ENOTSUP));
    for (offset, zero) in [(MIB - 4096, false), (MIB, true), (9 * MIB - 4096, true), (9 * MIB, false)] {
        let read = client.read(offset, 4096).unwrap();
        assert_eq!(read.iter().all(|byte| *byte == 0), zero, "at {offset}");
    }
    drop(daemon);
}

#[test]
fn discards_and_zeroes_of_any_length_counted_as_one_request_of_a_limit() {
    for limit in ["2048 iops@8KiB", "16MiB/s"] {
        discards_and_zeroes_are_held(limit);
    }
}

/// Checks a limit of 16 MiB/s, in requests or in bytes.
fn discards_and_zeroes_are_held(limit: &str) {
    let place = Place::new();
    let volume = format!(
        "[vm.a.volume.v]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ socket = \"{}\" }}\n",
        place.volume_socket("a", "v").display()
    );
    // Each MiB counts as 128 requests of 8 KiB, so the cost is proportional to bytes.
    let device = "[device.disk]\nbackend = \"null\"\ncost = { discard_mib = 128 }\n";
    let limit = format!("[vm.a]\nlimit = \"{limit}\"\nburst = 1\nallow_slow = true\n");
    let daemon = Daemon::serve(&place, &(device.to_owned() + &limit + &volume));
    let mut client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    for command in [TRIM, WRITE_ZEROES] {
        let started = Instant::now();
        (0..24).for_each(|part| {
            client.send(command, 0, part * 2 * MIB, 2 * MIB as u32, &[]).unwrap();
        });
        (0..24).for_each(|_| assert_eq!(client.reply().unwrap().1, 0));
        let seconds = started.elapsed().as_secs_f64();
        assert!(
            seconds * 16.0 >= 46.0,
            "48 MiB in {seconds:.2} s, with a limit of 16 MiB/s and a burst of one request"
        );
    }
    drop(daemon);
}
