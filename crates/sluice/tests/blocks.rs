//! What a guest sees of its disk belongs to the volume, whatever the host's disk is: block size, serial number, discards.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::common::disk::Loop;
use crate::common::raw::Raw;
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice};
use serde_json::{Value, json};
use sluice_client::vhost::{Client, ClientOptions, Request};

const SIZE: u64 = 8 * MIB;
/// NBD's command to discard.
const TRIM: u16 = 4;

/// Returns a disk with blocks of 4096 bytes, and its file, which has `bytes` at `offset`.
fn large_blocks(place: &Place, bytes: &[u8], offset: u64) -> (std::fs::File, Loop) {
    let path = place.write("disk", noise(1, SIZE as usize));
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[0; 8192], 0).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    (file, Loop::with_sectors(&path, 4096))
}

/// Returns a host file with the volume a/v, which is all of a disk.
fn host(place: &Place, disk: &Path, lines: &str) -> String {
    let device = format!("[device.disk]\npath = \"{}\"\n", disk.display());
    let shared = format!("[nbd]\nsocket = \"{}\"\n", place.socket("nbd").display());
    place.control_keys() + &shared + &device + &place.vhost_volume("a", "v", disk, lines)
}

fn vm(place: &Place) -> Client {
    place.vhost("a", "v", &ClientOptions::default())
}

fn block_size(place: &Place) -> u32 {
    vm(place).config().block_size
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn held(daemon: &Daemon) -> Value {
    daemon.accounts().0["held_back"][0].clone()
}

#[test]
fn a_guest_found_no_partitions_on_a_disk_with_large_blocks() {
    let place = Place::new();
    let (_file, disk) = large_blocks(&place, b"EFI PART", 512);
    let plain = host(&place, &disk.path, "");
    let daemon = Daemon::serve(&place, &plain);
    let mut guest = vm(&place);
    let config = guest.config();
    assert_eq!((config.block_size, config.physical_block_exponent, config.io_min), (512, 3, 8));
    let mut model = noise(1, SIZE as usize);
    model[..8192].fill(0);
    model[512..520].copy_from_slice(b"EFI PART");
    // One sector, both ends of a longer write, and whole blocks.
    for (round, (offset, len)) in [(1536, 512), (512 * 7, 512 * 20), (4096, 8192)].into_iter().enumerate() {
        let data = noise(10 + round as u64, len);
        guest.write(offset, &data).unwrap();
        model[offset as usize..offset as usize + len].copy_from_slice(&data);
    }
    let zeroes = Request::WriteZeroes { offset: 3 * 4096 - 512, len: 4096, unmap: true };
    guest.perform(0, zeroes).unwrap();
    model[3 * 4096 - 512..4 * 4096 - 512].fill(0);
    let mut bytes = vec![0; 65_536];
    guest.read(0, &mut bytes).unwrap();
    assert!(bytes == model[..65_536]);
    let mut odd = vec![0; 1024];
    guest.read(512 * 7, &mut odd).unwrap();
    assert!(odd == model[512 * 7..512 * 9]);
    let mut client = Raw::open(&place.socket("nbd"), "a/v").unwrap();
    client.write(512 * 9, &noise(20, 512)).unwrap();
    assert!(client.read(512 * 9, 512).unwrap() == noise(20, 512));
    let described = run(sluice().args(["describe", "a/v", "--socket"]).arg(place.socket("control"))).ok();
    assert!(described.contains("Blocks of 512B on a disk with blocks of 4KiB"), "{described}");
    assert!(described.contains("Block size 512B, serial number v, discard unmap"), "{described}");
    let volumes: Value = serde_json::from_str(&ask(&place, &["get", "volumes"]).ok()).unwrap();
    let volume = &volumes["volumes"][0];
    let blocks = ["block_size_bytes", "disk_block_size_bytes"].map(|key| volume[key].as_u64());
    assert_eq!(blocks, [Some(512), Some(4096)], "{volume}");
    assert_eq!(volume["source"].as_str(), disk.path.to_str());
    drop((guest, client));
    daemon.kill();
    let checked = run(sluice().args(["check", "--host"]).arg(place.file("host.toml")));
    assert!(checked.stdout.contains("Blocks of 512B on a disk with blocks of 4KiB"), "{}", checked.stdout);
    let daemon = Daemon::serve(&place, &plain);
    assert_eq!(block_size(&place), 512);
    daemon.kill();
    // Another size is held back, until it is accepted.
    let daemon = Daemon::serve(&place, &host(&place, &disk.path, "block_size = \"4KiB\""));
    let reason = held(&daemon)["reason"].to_string();
    assert!(reason.contains("its block size is 4096 bytes, and was 512 bytes before"), "{reason}");
    ask(&place, &["apply", place.file("host.toml").to_str().unwrap(), "--force", "a/v"]).ok();
    assert_eq!(block_size(&place), 4096);
    daemon.kill();
    let _daemon = Daemon::serve(&place, &plain);
    assert_eq!(block_size(&place), 4096, "it is remembered");
}

#[test]
fn a_partition_table_for_large_blocks_gets_them_and_an_mbr_needs_the_key() {
    let place = Place::new();
    let (_file, disk) = large_blocks(&place, b"EFI PART", 4096);
    let daemon = Daemon::serve(&place, &host(&place, &disk.path, ""));
    assert_eq!(block_size(&place), 4096);
    drop((daemon, disk));
    let place = Place::new();
    let mut mbr = [0; 66];
    (mbr[4], mbr[9], mbr[13]) = (0x83, 8, 8);
    mbr[64..].copy_from_slice(&[0x55, 0xaa]);
    let (_file, disk) = large_blocks(&place, &mbr, 446);
    let refused = Daemon::refused(&place, &host(&place, &disk.path, ""));
    assert!(refused.contains("has an MBR") && refused.contains("block_size = \"512B\""), "{refused}");
    let _daemon = Daemon::serve(&place, &host(&place, &disk.path, "block_size = \"512B\""));
    assert_eq!(block_size(&place), 512);
}

#[test]
fn a_volume_came_back_from_a_detach_with_another_block_size() {
    let place = Place::new();
    let image = place.image("v.img", SIZE);
    let host = |lines: &str| place.control_keys() + &place.device("") + &place.vhost_volume("a", "v", &image, lines);
    let _daemon = Daemon::serve(&place, &(host("") + &place.volume("b", "v", &place.image("b.img", MIB), "")));
    assert_eq!(block_size(&place), 512);
    ask(&place, &["detach", "a/v"]).ok();
    place.write("host.toml", host("block_size = \"4KiB\"") + &place.volume("b", "v", &place.file("b.img"), ""));
    ask(&place, &["apply", place.file("host.toml").to_str().unwrap()]).ok();
    let refused = ask(&place, &["reset", "a/v"]);
    let why = "its block size is 4096 bytes, and was 512 bytes before";
    assert!(refused.code() != Some(0) && refused.stderr.contains(why), "{} {}", refused.stdout, refused.stderr);
    ask(&place, &["reset", "a/v", "--force", "a/v"]).ok();
    assert_eq!(block_size(&place), 4096);
}

#[test]
fn a_stated_block_size_that_is_not_that_of_the_gpt_was_not_reported() {
    let place = Place::new();
    let image = place.write("v.img", vec![0; MIB as usize]);
    std::fs::File::options().write(true).open(&image).unwrap().write_all_at(b"EFI PART", 4096).unwrap();
    let host =
        place.control_keys() + &place.device("") + &place.vhost_volume("a", "v", &image, "block_size = \"512B\"");
    let file = place.write("host.toml", &host);
    let checked = run(sluice().args(["check", "--host"]).arg(file)).stdout;
    assert!(checked.contains("Its block size is 512 bytes, and its GPT was made for 4096"), "{checked}");
}

#[test]
fn a_volume_of_a_build_that_remembered_no_block_size_keeps_that_of_its_disk() {
    let place = Place::new();
    let (_file, disk) = large_blocks(&place, b"EFI PART", 512);
    let plain = host(&place, &disk.path, "");
    Daemon::serve(&place, &plain).kill();
    let path = place.file("state/state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut old = state["state"].take();
    let served = old["exports"]["a/v"].as_object_mut().unwrap();
    assert_eq!(served.remove("block_size"), Some(json!(512)));
    old["version"] = json!(1);
    std::fs::write(&path, old.to_string()).unwrap();
    let daemon = Daemon::serve(&place, &plain);
    assert_eq!(block_size(&place), 4096, "its guest runs with it");
    daemon.kill();
    let daemon = Daemon::serve(&place, &host(&place, &disk.path, "block_size = \"512B\""));
    let reason = held(&daemon)["reason"].to_string();
    assert!(reason.contains("its block size is 512 bytes, and was 4096 bytes before"), "{reason}");
}

#[test]
fn a_guests_discards_took_the_space_of_a_preallocated_image() {
    for (key, is_kept) in [("discard = \"ignore\"", true), ("", false)] {
        let place = Place::new();
        let image = place.write("v.img", noise(1, MIB as usize));
        let _daemon = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &image, key)));
        let mut client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
        let before = std::fs::metadata(&image).unwrap().blocks();
        client.ask(TRIM, 0, 0, MIB as u32, &[]).unwrap();
        assert_eq!(client.read(0, 4096).unwrap() == noise(1, 4096), is_kept, "{key}");
        assert_eq!(std::fs::metadata(&image).unwrap().blocks() == before, is_kept, "{key}");
    }
}

#[test]
fn a_guest_sees_the_stated_serial_number() {
    let place = Place::new();
    let image = place.image("v.img", MIB);
    let lines = "serial = \"WD-4711\"";
    let _daemon = Daemon::serve(&place, &(place.device("") + &place.vhost_volume("a", "v", &image, lines)));
    let mut guest = vm(&place);
    guest.perform(0, Request::GetId).unwrap();
    let mut serial = [0; 8];
    guest.queue(0).read_data(0, &mut serial);
    assert_eq!(&serial, b"WD-4711\0");
}
