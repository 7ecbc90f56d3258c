//! Faults below the daemon reach the affected client with the right error, and no other client.

use std::path::{Path, PathBuf};

use crate::common::disk::{FileSystem, Loop};
use crate::common::fused::Fused;
use crate::common::raw::{EIO, ENOSPC, FUA, Raw, TRIM, WRITE, WRITE_ZEROES};
use crate::common::{Daemon, KIB, MIB, Place, noise, run, sluice};
use serde_json::Value;

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

/// Checks that a volume works: writes new data and reads them.
fn assert_works(raw: &mut Raw, seed: u64) {
    let data = noise(seed, 64 << 10);
    assert_eq!(raw.write(128 * KIB, &data), Ok(()));
    assert_eq!(raw.flush(), Ok(()));
    assert!(raw.read(128 * KIB, 64 << 10).unwrap() == data);
}

/// Makes a file system that is much smaller than the files in it claim to be.
fn small_file_system(place: &Place) -> FileSystem {
    FileSystem::new(&place.image("small.img", 64 * MIB), place.file("mounted"))
}

fn sparse(path: PathBuf, size_bytes: u64) -> PathBuf {
    std::fs::File::create_new(&path).unwrap().set_len(size_bytes).unwrap();
    path
}

#[test]
fn a_full_disk_is_reported_as_enospc_and_other_volumes_work() {
    let place = Place::new();
    let small = small_file_system(&place);
    let full = sparse(small.folder.join("full.img"), 256 * MIB);
    let fine = place.image("fine.img", MIB);
    let volumes = place.volume("full", "v", &full, "") + &place.volume("fine", "v", &fine, "");
    let daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let (mut full, mut fine) = (open(&place, "full"), open(&place, "fine"));
    let block = noise(1, MIB as usize);
    let written = (0..256).find(|n| full.write(n * MIB, &block) != Ok(())).expect("256 MiB do not fit into 64 MiB");
    assert!(written > 20, "{written} MiB");
    assert_eq!(full.write(200 * MIB, &block), Err(ENOSPC));
    assert_eq!(full.ask(WRITE, FUA, 201 * MIB, MIB as u32, &block), Err(ENOSPC));
    assert_eq!(full.ask(WRITE_ZEROES, 2, 202 * MIB, MIB as u32, &[]), Err(ENOSPC), "zeroes that stay allocated");
    assert_works(&mut fine, 2);
    for n in 0..written {
        assert!(full.read(n * MIB, MIB as u32).unwrap() == block, "MiB {n}");
    }
    assert_eq!(full.flush(), Ok(()));
    assert_eq!(full.ask(TRIM, 0, 0, (10 * MIB) as u32, &[]), Ok(()), "gives space back");
    assert_eq!(full.write(200 * MIB, &block), Ok(()));
    assert!(full.read(200 * MIB, MIB as u32).unwrap() == block);
    assert_eq!(daemon.accounts().number("fine", "failed"), 0);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_file_shorter_than_its_volume_is_rejected() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let lines = "offset = \"512KiB\"\nsize = \"1MiB\"";
    let output = Daemon::refused(&place, &(place.device("") + &place.volume("a", "v", &image, lines)));
    assert!(output.contains("is shorter than declared: it has 1048576 bytes and the volume needs 1572864"), "{output}");
}

#[test]
fn a_file_truncated_while_served_fails_only_past_its_end() {
    let place = Place::new();
    let (cut, fine) = (place.image("cut.img", 8 * MIB), place.image("fine.img", MIB));
    let volumes = place.volume("cut", "v", &cut, "") + &place.volume("fine", "v", &fine, "");
    let daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let (mut cut_off, mut fine) = (open(&place, "cut"), open(&place, "fine"));
    let data = noise(1, 8 * MIB as usize);
    cut_off.write(0, &data).unwrap();
    std::fs::File::options().write(true).open(&cut).unwrap().set_len(2 * MIB).unwrap();
    assert!(cut_off.read(0, 2 * MIB as u32).unwrap() == data[..2 * MIB as usize]);
    assert_eq!(cut_off.read(4 * MIB, 4096), Err(EIO));
    assert_eq!(cut_off.read(2 * MIB - 4096, 8192), Err(EIO), "half of it is there");
    assert_eq!(cut_off.read(0, 8 * MIB as u32), Err(EIO), "a part of many is not there");
    assert_works(&mut fine, 2);
    assert!(cut_off.read(0, MIB as u32).unwrap() == data[..MIB as usize], "the connection goes on");
    assert_eq!(daemon.accounts().number("fine", "failed"), 0);
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// A block device that cannot store writes, because the file system of its file is full.
struct Thin {
    device: Loop,
    small: FileSystem,
}

impl Thin {
    /// Makes a device of which only the first MiB of each 64 MiB is allocated.
    fn new(place: &Place) -> Self {
        let small = small_file_system(place);
        let file = sparse(small.folder.join("thin.img"), 256 * MIB);
        let image = std::fs::File::options().write(true).open(&file).unwrap();
        for start in 0..4 {
            std::os::unix::fs::FileExt::write_all_at(&image, &noise(1, MIB as usize), start * 64 * MIB).unwrap();
        }
        image.sync_all().unwrap();
        let device = Loop::new(&file);
        small.fill(0);
        Thin { device, small }
    }

    fn part(&self, place: &Place, vm: &str, number: u64, lines: &str) -> String {
        let lines = format!("offset = \"{}MiB\"\nsize = \"64MiB\"\n{lines}", number * 64);
        place.volume(vm, "v", &self.device.path, &lines)
    }
}

#[test]
fn errors_of_a_block_device_reach_only_its_client() {
    let place = Place::new();
    let thin = Thin::new(&place);
    let fine = place.image("fine.img", MIB);
    let volumes = thin.part(&place, "thin", 0, "") + &place.volume("fine", "v", &fine, "");
    let daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let (mut raw, mut fine) = (open(&place, "thin"), open(&place, "fine"));
    let known = noise(1, MIB as usize);
    assert!(raw.read(0, MIB as u32).unwrap() == known);
    // Kernels differ in the error of a loop device whose file has no space.
    let failed = raw.write(8 * MIB, &known).unwrap_err();
    assert!(failed == EIO || failed == ENOSPC, "{failed}");
    assert_works(&mut fine, 2);
    // The file below is truncated: reads of the device fail like those of a broken disk.
    let file = thin.small.folder.join("thin.img");
    std::fs::File::options().write(true).open(file).unwrap().set_len(512 * KIB).unwrap();
    assert_eq!(raw.read(16 * MIB, 4096), Err(EIO));
    assert_works(&mut fine, 3);
    assert!(raw.read(0, 4096).unwrap() == known[..4096]);
    let accounts = daemon.accounts();
    assert_eq!((accounts.number("thin", "failed") >= 2, accounts.number("fine", "failed")), (true, 0));
}

/// Serves `a` and `b` on ranges of one thin device through the page cache, and `fine` on a separate file.
fn with_page_cache(place: &Place, thin: &Thin, fine: &Path) -> (String, String) {
    let buffered = "cache = \"buffered\"";
    let fine = place.device("") + &place.volume("fine", "v", fine, "");
    let all = fine.clone() + &thin.part(place, "a", 0, buffered) + &thin.part(place, "b", 1, buffered);
    (fine, all)
}

#[test]
fn a_failed_flush_fails_every_volume_on_that_file_until_it_is_reopened() {
    let place = Place::new();
    let thin = Thin::new(&place);
    let (fine, all) = with_page_cache(&place, &thin, &place.image("fine.img", MIB));
    let (fine, all) = (controlled(&place, &fine), controlled(&place, &all));
    let daemon = Daemon::serve(&place, &all);
    let (mut a, mut b, mut other) = (open(&place, "a"), open(&place, "b"), open(&place, "fine"));
    let known = noise(1, MIB as usize);
    assert!(b.read(0, MIB as u32).unwrap() == known);
    assert_eq!(a.write(8 * MIB, &known), Ok(()), "the page cache takes it");
    assert_eq!(a.flush(), Err(EIO), "and cannot get rid of it");
    daemon.stderr().up_to(&["Sync failed: writes and flushes of every volume on this source fail"]);
    assert_eq!(a.flush(), Err(EIO));
    assert_eq!(a.read(0, 4096), Err(EIO));
    assert_eq!(b.write(0, &known), Err(EIO));
    assert_eq!(b.flush(), Err(EIO));
    assert_works(&mut other, 2);
    thin.small.free_space();
    assert_eq!(b.read(0, 4096), Err(EIO), "that the cause is gone does not bring back what is lost");
    daemon.force(&place, &fine);
    assert!(a.is_disconnected() && b.is_disconnected());
    daemon.accept(&all);
    let (mut a, mut b) = (open(&place, "a"), open(&place, "b"));
    assert!(b.read(0, MIB as u32).unwrap() == known);
    assert_works(&mut a, 3);
    assert_works(&mut other, 4);
}

/// Runs a verb on a target. Returns the exit code and the JSON output.
fn ask(place: &Place, verb: &str, target: &str) -> (Option<i32>, Value) {
    let socket = place.socket("control");
    let ended = run(sluice().args(["-o", "json", verb, target, "--socket"]).arg(socket));
    (ended.code(), serde_json::from_str(&ended.stdout).unwrap_or(Value::Null))
}

/// Returns a host file with a control socket.
fn controlled(place: &Place, rest: &str) -> String {
    place.control_keys() + rest
}

#[test]
fn after_a_failed_sync_direct_reads_continue_and_writes_resume_when_the_loss_is_accepted() {
    let place = Place::new();
    let thin = Thin::new(&place);
    let (_, all) = with_page_cache(&place, &thin, &place.image("fine.img", MIB));
    let daemon = Daemon::serve(&place, &controlled(&place, &(all + &thin.part(&place, "direct", 2, ""))));
    let (mut a, mut direct) = (open(&place, "a"), open(&place, "direct"));
    let known = noise(1, MIB as usize);
    assert_eq!(direct.write(0, &known), Ok(()));
    assert_eq!(a.write(8 * MIB, &known), Ok(()), "the page cache takes it");
    assert_eq!(a.flush(), Err(EIO), "and cannot get rid of it");
    for _ in 0..3 {
        assert!(direct.read(0, MIB as u32).unwrap() == known, "what is on the disk is on the disk");
        assert_eq!(direct.write(0, &known), Err(EIO));
        assert_eq!(direct.flush(), Err(EIO));
        assert_eq!(a.read(8 * MIB, 4096), Err(EIO), "the page cache may show what never got to the disk");
    }
    assert_eq!(daemon.accounts().vm("direct")["writes_fail"], serde_json::json!(["v"]));
    // The cause is removed, but no operator has accepted the loss.
    thin.small.free_space();
    assert_eq!(direct.write(0, &known), Err(EIO));
    let (code, reply) = ask(&place, "accept-loss", "direct/v");
    assert_eq!((code, &reply["before"]["writes_fail"]), (Some(0), &Value::from("yes: a sync failed")), "{reply}");
    assert_eq!(reply["after"]["writes_fail"], Value::Null);
    daemon.stderr().up_to(&["Loss accepted"]);
    assert_works(&mut direct, 3);
    assert_works(&mut a, 4);
    assert_eq!(ask(&place, "accept-loss", "a/v").0, Some(4), "there is none any more");
    assert_eq!(daemon.accounts().vm("a")["writes_fail"], serde_json::json!([]));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_failed_forced_write_to_a_block_device_affects_only_its_volume() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let device = Loop::new(&fused.disk());
    let part =
        |vm: &str, offset| place.volume(vm, "v", &device.path, &format!("offset = \"{offset}MiB\"\nsize = \"8MiB\""));
    let host = format!("[device.disk]\npath = \"{}\"\n", device.path.display()) + &part("a", 0) + &part("b", 8);
    let daemon = Daemon::serve(&place, &controlled(&place, &host));
    let (mut a, mut b) = (open(&place, "a"), open(&place, "b"));
    let known = noise(1, 64 << 10);
    assert_eq!(a.write(0, &known), Ok(()));
    fused.fail_writes();
    assert_eq!(a.ask(WRITE, FUA, MIB, 64 << 10, &known), Err(EIO));
    fused.mend();
    daemon.stderr().up_to(&["Forced write failed: writes and flushes of this volume fail"]);
    assert!(a.read(0, 64 << 10).unwrap() == known);
    assert_eq!(a.write(0, &known), Err(EIO));
    assert_eq!(a.flush(), Err(EIO));
    assert_works(&mut b, 2);
    let (code, reply) = ask(&place, "accept-loss", "a");
    assert_eq!((code, &reply["before"]["writes_fail"]), (Some(0), &serde_json::json!(["v"])), "{reply}");
    assert_works(&mut a, 3);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn accepting_the_loss_of_one_volume_does_not_accept_that_of_others() {
    let place = Place::new();
    let fused = Fused::new(&place, 16);
    let device = Loop::new(&fused.disk());
    let part = |vm: &str, offset, lines: &str| {
        let lines = format!("offset = \"{offset}MiB\"\nsize = \"8MiB\"\n{lines}");
        place.volume(vm, "v", &device.path, &lines)
    };
    let volumes = part("a", 0, "") + &part("b", 8, "cache = \"buffered\"");
    let host = format!("[device.disk]\npath = \"{}\"\n", device.path.display()) + &volumes;
    let daemon = Daemon::serve(&place, &controlled(&place, &host));
    let (mut a, mut b) = (open(&place, "a"), open(&place, "b"));
    let known = noise(1, 64 << 10);
    fused.fail_writes();
    assert_eq!(b.write(0, &known), Ok(()), "the page cache takes it");
    assert_eq!(a.ask(WRITE, FUA, MIB, 64 << 10, &known), Err(EIO));
    assert_eq!(ask(&place, "accept-loss", "a").0, Some(0));
    fused.mend();
    // Whether or not the kernel has tried to write back: a flush that succeeds has flushed.
    let flushed = b.flush();
    drop((a, b));
    assert_eq!(daemon.terminate().code(), Some(0));
    let mut found = vec![0; known.len()];
    let disk = std::fs::File::open(fused.disk()).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&disk, &mut found, 8 * MIB).unwrap();
    assert!(flushed == Err(EIO) || found == known, "{flushed:?}");
}

/// The kernel reports lost writes once, to the first call that checks, which may be a forced write.
#[test]
fn a_forced_write_that_learns_of_lost_writes_fails_the_file() {
    let place = Place::new();
    let thin = Thin::new(&place);
    let (_, all) = with_page_cache(&place, &thin, &place.image("fine.img", MIB));
    let daemon = Daemon::serve(&place, &all);
    let (mut a, mut other) = (open(&place, "a"), open(&place, "fine"));
    let known = noise(1, MIB as usize);
    assert_eq!(a.write(8 * MIB, &known), Ok(()));
    // Another process makes the kernel write back, and gets the error. The daemon does not know it yet.
    let sync = std::fs::File::options().write(true).open(&thin.device.path).unwrap().sync_all();
    assert!(sync.is_err(), "the write-back must fail");
    assert_eq!(a.ask(WRITE, FUA, 0, 4096, &known[..4096]), Err(EIO));
    assert_eq!(a.flush(), Err(EIO), "what was lost before stays lost");
    assert_works(&mut other, 2);
    drop(daemon);
}

#[test]
fn a_volume_on_a_block_device_supports_discard_and_zeroes() {
    let place = Place::new();
    let image = place.image("disk.img", 16 * MIB);
    let device = Loop::new(&image);
    let daemon = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &device.path, "")));
    let mut raw = open(&place, "a");
    assert_eq!(raw.size_bytes, 16 * MIB);
    let data = noise(1, 16 * MIB as usize);
    raw.write(0, &data).unwrap();
    assert!(raw.read(0, 16 * MIB as u32).unwrap() == data);
    for (flags, start) in [(0, 2), (2, 4), (FUA, 6), (2 | 16, 8)] {
        assert_eq!(raw.ask(WRITE_ZEROES, flags, start * MIB, MIB as u32, &[]), Ok(()), "flags {flags}");
    }
    for (flags, start) in [(0, 10), (FUA, 12)] {
        assert_eq!(raw.ask(TRIM, flags, start * MIB, MIB as u32, &[]), Ok(()), "flags {flags}");
    }
    raw.flush().unwrap();
    let mut expected = data;
    // A loop device's discard punches holes.
    for start in [2, 4, 6, 8, 10, 12] {
        expected[(start * MIB) as usize..((start + 1) * MIB) as usize].fill(0);
    }
    assert!(raw.read(0, 16 * MIB as u32).unwrap() == expected);
    assert_eq!(daemon.terminate().code(), Some(0));
    drop(device);
    assert!(std::fs::read(&image).unwrap() == expected);
    use std::os::unix::fs::MetadataExt;
    let allocated = std::fs::metadata(&image).unwrap().blocks() * 512;
    assert!(allocated <= 14 * MIB, "discards give space back: {allocated} bytes are still there");
}

#[test]
fn a_range_of_a_block_device_can_be_a_volume() {
    let place = Place::new();
    let content = noise(1, 8 * MIB as usize);
    let image = place.write("disk.img", &content);
    let device = Loop::new(&image);
    let lines = "offset = \"2MiB\"\nsize = \"4MiB\"";
    let daemon = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &device.path, lines)));
    let mut raw = open(&place, "a");
    assert_eq!(raw.size_bytes, 4 * MIB);
    assert!(raw.read(0, 4 * MIB as u32).unwrap() == content[2 * MIB as usize..6 * MIB as usize]);
    let new = noise(2, MIB as usize);
    raw.write(0, &new).unwrap();
    raw.write(3 * MIB, &new).unwrap();
    assert_eq!(raw.ask(TRIM, 0, MIB, MIB as u32, &[]), Ok(()));
    assert_eq!(raw.ask(WRITE_ZEROES, 0, 2 * MIB, MIB as u32, &[]), Ok(()));
    assert_eq!(raw.write(4 * MIB, &new[..512]), Err(ENOSPC));
    assert_eq!(daemon.terminate().code(), Some(0));
    drop(device);
    let mut expected = content;
    for (start, part) in [(2, new.clone()), (3, vec![0; MIB as usize]), (4, vec![0; MIB as usize]), (5, new)] {
        expected[(start * MIB) as usize..((start + 1) * MIB) as usize].copy_from_slice(&part);
    }
    assert!(std::fs::read(&image).unwrap() == expected);
}

#[test]
fn a_mounted_block_device_is_rejected_for_writing() {
    let place = Place::new();
    let small = small_file_system(&place);
    let output = Daemon::refused(&place, &(place.device("") + &place.volume("a", "v", small.device(), "")));
    assert!(output.contains("is in use by this host (mounted"), "{output}");
}
