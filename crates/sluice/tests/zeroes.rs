//! Zeroes and discards under a limit: on a volume that makes zeroes by itself, and where they have to be written.
//!
//! Where: a file on ext2, which does not know `FALLOC_FL_ZERO_RANGE`, for zeroes that must not leave a hole; and a loop device
//! on such a file, for which the kernel writes the zeroes by itself when it is asked for the first time. What was written is
//! read from the counters of the block device under the volume, not from the daemon.

use std::path::{Path, PathBuf};
use std::time::Instant;

use common::disk::{FileSystem, Loop, written};
use common::raw::{FUA, Raw, TRIM, WRITE_ZEROES};
use common::{Daemon, KIB, MIB, Place, noise, until};
use sluice_client::vhost::{ClientOptions, Request};

mod common;

/// The command flag of NBD for zeroes that stay allocated, and for zeroes that are refused if they would be written.
const NO_HOLE: u16 = 1 << 1;
const FAST_ZERO: u16 = 1 << 4;
const ENOTSUP: u32 = 95;

const SIZE: u64 = 256 * MIB;
const LIMIT: &str = "[vm.a]\nlimit = { iops = \"10 iops@8KiB\", bytes = \"1MiB/s\" }\nburst = 1\nallow_slow = true\n";
/// What a limit of 1 MiB/s and a burst of 1 let through in a time: one piece at first, and one that is on its way. The file
/// system's own blocks come with it.
const BESIDE: u64 = 3 * 256 * KIB;

/// A file system that cannot make zeroes, and in it the volume `v.img`, all of it allocated.
struct Scene {
    place: Place,
    files: FileSystem,
    image: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let place = Place::new();
        let disk = place.image("disk.img", SIZE + 64 * MIB);
        let files = FileSystem::without_ranges_of_zeroes(&disk, place.file("files"));
        let image = files.folder.join("v.img");
        let block = noise(1, MIB as usize);
        let mut file = std::fs::File::create_new(&image).unwrap();
        (0..SIZE / MIB).for_each(|_| std::io::Write::write_all(&mut file, &block).unwrap());
        file.sync_all().unwrap();
        Scene { place, files, image }
    }

    fn serve(&self, volume: &str) -> Daemon {
        let device = format!("[device.disk]\npath = \"{}\"\n", self.files.folder.display());
        Daemon::serve(&self.place, &(device + LIMIT + volume))
    }
}

/// Waits until 4 MiB have been written to `device` since `before`, and compares with what the limit lets through.
#[track_caller]
fn assert_held(device: &Path, before: u64, started: Instant) {
    until("4 MiB are written", || written(device).0 - before >= 4 * MIB);
    let seconds = started.elapsed().as_secs_f64();
    let bytes = written(device).0 - before;
    let most = (seconds * MIB as f64) as u64 + BESIDE;
    assert!(bytes <= most, "{bytes} bytes in {seconds:.2} s, and {most} with a limit of 1 MiB/s");
}

#[test]
fn an_nbd_client_wrote_zeroes_past_its_limit() {
    let scene = Scene::new();
    let daemon = scene.serve(&scene.place.volume("a", "v", &scene.image, ""));
    let mut client = Raw::open(&scene.place.volume_socket("a", "v"), "a/v").unwrap();
    let (before, started) = (scene.files.written().0, Instant::now());
    for part in 0..16 {
        client.send(WRITE_ZEROES, NO_HOLE, part % 4 * 64 * MIB, 64 * MIB as u32, &[]).unwrap();
    }
    assert_held(scene.files.device(), before, started);
    let accounts = daemon.accounts();
    let completed = &accounts.vm("a")["completed"];
    assert!(accounts.number("a", "bytes") >= 3 * MIB && completed["write"].as_u64().unwrap() >= 12, "{completed}");
    assert_eq!(accounts.number("a", "failed"), 0);
    // Nothing of its 1 GiB waits for more than itself.
    client.close();
    until("its requests are given up", || daemon.accounts().number("a", "outstanding") == 0);
    drop(daemon);
}

#[test]
fn a_guest_wrote_zeroes_past_its_limit() {
    let scene = Scene::new();
    let daemon = scene.serve(&scene.place.vhost_volume("a", "v", &scene.image, ""));
    let mut client = scene.place.vhost("a", "v", &ClientOptions::default());
    let most = u64::from(client.config().zeroes_sectors_max) * 512;
    assert_eq!(most, 32 * MIB, "as long as a write");
    let (before, started) = (scene.files.written().0, Instant::now());
    for slot in 0..8 {
        let zeroes = Request::WriteZeroes { offset: u64::from(slot) * most, len: most, unmap: false };
        client.queue(0).submit(slot, zeroes).unwrap();
    }
    client.queue(0).publish().unwrap();
    assert_held(scene.files.device(), before, started);
    // Paused at once: what is not at the device goes back into the ring, begun or not.
    assert_eq!(client.stop_queue(0).unwrap(), 0);
    drop(client);
    drop(daemon);
}

#[test]
fn zeroes_that_went_back_to_the_gate_were_forgotten_by_a_killed_daemon() {
    let scene = Scene::new();
    let volume = scene.place.vhost_volume("a", "v", &scene.image, "");
    let daemon = scene.serve(&volume);
    let mut client = scene.place.vhost("a", "v", &ClientOptions::default());
    let before = scene.files.written().0;
    for slot in 0..4 {
        let zeroes = Request::WriteZeroes { offset: u64::from(slot) * 4 * MIB, len: 3 * MIB, unmap: false };
        client.queue(0).submit(slot, zeroes).unwrap();
    }
    client.queue(0).publish().unwrap();
    until("some are written", || scene.files.written().0 - before >= MIB);
    daemon.kill();
    // Whoever takes over has no limit.
    let device = format!("[device.disk]\npath = \"{}\"\n", scene.files.folder.display());
    let daemon = Daemon::serve(&scene.place, &(device + &volume));
    until("it listens", || client.reconnect(&scene.place.volume_socket("a", "v")).is_ok());
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
    let scene = Scene::new();
    let disk = Loop::new(&scene.image);
    let volume = scene.place.volume("a", "v", &disk.path, "");
    let device = format!("[device.disk]\npath = \"{}\"\n", disk.path.display());
    let daemon = Daemon::serve(&scene.place, &(device + LIMIT + &volume));
    let mut client = Raw::open(&scene.place.volume_socket("a", "v"), "a/v").unwrap();
    let (before, started) = (written(&disk.path).0, Instant::now());
    for part in 0..4 {
        client.send(WRITE_ZEROES, NO_HOLE, part * 64 * MIB, 64 * MIB as u32, &[]).unwrap();
    }
    assert_held(&disk.path, before, started);
    client.close();
    until("its requests are given up", || daemon.accounts().number("a", "outstanding") == 0);
    drop(daemon);
}

#[test]
fn forced_zeroes_are_durable_and_fast_ones_are_refused_where_zeroes_are_written() {
    let scene = Scene::new();
    let device = format!("[device.disk]\npath = \"{}\"\n", scene.files.folder.display());
    let daemon = Daemon::serve(&scene.place, &(device + &scene.place.volume("a", "v", &scene.image, "")));
    let mut client = Raw::open(&scene.place.volume_socket("a", "v"), "a/v").unwrap();
    let fast = |client: &mut Raw| client.ask(WRITE_ZEROES, NO_HOLE | FAST_ZERO, MIB, 8 * MIB as u32, &[]);
    assert_eq!(fast(&mut client), Err(ENOTSUP));
    let (before, flushes) = scene.files.written();
    assert_eq!(client.ask(WRITE_ZEROES, NO_HOLE, MIB, 8 * MIB as u32, &[]), Ok(()));
    assert_eq!(scene.files.written().1, flushes, "nothing is to be durable");
    assert_eq!(client.ask(WRITE_ZEROES, NO_HOLE | FUA, MIB, 8 * MIB as u32, &[]), Ok(()));
    let (bytes, forced) = scene.files.written();
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
fn discards_and_zeroes_of_any_length_passed_a_limit_as_one_request_each() {
    for limit in ["2048 iops@8KiB", "16MiB/s"] {
        discards_and_zeroes_are_held(limit);
    }
}

/// A limit of 16 MiB/s, in requests or in bytes.
fn discards_and_zeroes_are_held(limit: &str) {
    let place = Place::new();
    let volume = format!(
        "[vm.a.volume.v]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ socket = \"{}\" }}\n",
        place.volume_socket("a", "v").display()
    );
    // Each MiB counts as 128 requests of 8 KiB: as many bytes as it has.
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
