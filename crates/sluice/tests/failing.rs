//! Requests that fail below the daemon are told to the operator, not only to the guest: full file systems, errors of a disk, sources
//! that another program has cut or replaced.

use std::fs::File;
use std::path::Path;

use crate::common::disk::{FileSystem, Loop};
use crate::common::raw::{EIO, ENOSPC, Raw, TRIM, WRITE_ZEROES};
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, tool, until};
use serde_json::Value;

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(place: &Place, verb: &[&str]) -> Value {
    let words: Vec<&str> = ["-o", "json"].iter().chain(verb).copied().collect();
    serde_json::from_str(ask(place, &words).stdout.lines().next().unwrap()).unwrap()
}

/// The events of a kind, the oldest first.
fn events(place: &Place, kind: &str) -> Vec<Value> {
    json(place, &["events", "--kind", kind])["events"].as_array().unwrap().clone()
}

/// Waits for an event, and returns it.
fn event(place: &Place, kind: &str, phase: &str) -> Value {
    let find = || events(place, kind).into_iter().find(|event| event["phase"] == phase);
    until("the event", || find().is_some());
    find().unwrap()
}

fn controlled(place: &Place, rest: &str) -> String {
    place.control_keys() + &place.device("") + rest
}

fn sparse(path: &Path, size_bytes: u64) {
    File::create_new(path).unwrap().set_len(size_bytes).unwrap();
}

#[test]
fn a_full_file_system_was_silent() {
    let place = Place::new();
    let small = FileSystem::new(&place.image("small.img", 64 * MIB), place.file("mounted"));
    let image = small.folder.join("full.img");
    sparse(&image, 256 * MIB);
    let fine = place.image("fine.img", MIB);
    let volumes = place.volume("full", "v", &image, "") + &place.volume("fine", "v", &fine, "");
    let host = controlled(&place, &volumes);
    let file = place.write("checked.toml", &host);
    let file = file.to_str().unwrap();
    let checked = run(sluice().args(["check", "--host", file]));
    let growth = "images on it may still grow by 256.0 MiB: full/v";
    assert!(checked.stdout.contains(growth), "{}{}", checked.stdout, checked.stderr);
    let doctor = run(sluice().args(["doctor", file]));
    assert!(doctor.stdout.contains(growth), "{}", doctor.stdout);

    let daemon = Daemon::serve(&place, &host);
    let low = event(&place, "low_space", "began");
    assert!(low["text"].as_str().unwrap().contains("Less than 1 GiB is free"), "{low}");
    let mut full = open(&place, "full");
    let block = noise(1, MIB as usize);
    let written = (0..256).find(|n| full.write(n * MIB, &block) != Ok(())).expect("256 MiB do not fit into 64 MiB");
    assert_eq!(full.write(200 * MIB, &block), Err(ENOSPC));

    let began = event(&place, "no_space", "began");
    assert_eq!((&began["vm"], &began["volume"], &began["device"]), (&"full".into(), &"v".into(), &"disk".into()));
    let failure = &began["failures"][0];
    assert_eq!((&failure["operation"], &failure["error"]), (&"write".into(), &"ENOSPC".into()), "{began}");
    for text in ["failed with ENOSPC (No space left on device)", "Free space on the file system"] {
        assert!(began["text"].as_str().unwrap().contains(text), "{began}");
    }
    daemon.stderr().up_to(&["Requests of full/v fail because there is no space"]);
    let status = ask(&place, &["status"]);
    assert_eq!(status.code(), Some(6));
    assert!(status.stdout.contains("full/v is FAILING: ") && status.stdout.contains(growth), "{}", status.stdout);
    assert_eq!(json(&place, &["status"])["failing"][0]["failures"][0]["count"], 2);
    assert!(ask(&place, &["why", "full"]).ok().contains("FAILING now, volume v: 2 writes failed with ENOSPC"));
    let top = ask(&place, &["top", "--batch", "-n1"]).ok();
    assert!(top.contains("full/v is FAILING: 2 writes failed"), "{top}");
    let vms = ask(&place, &["get", "vms"]).ok();
    assert!(vms.contains("FAILED") && vms.contains("! 2"), "{vms}");
    let metrics = ask(&place, &["metrics"]).ok();
    let series = "sluice_volume_failing{device=\"disk\",vm=\"full\",volume=\"v\",kind=\"no_space\"} 1";
    assert!(
        metrics.contains(series) && metrics.contains("sluice_file_system_growth_bytes{device=\"disk\""),
        "{metrics}"
    );

    assert_eq!(full.ask(TRIM, 0, 0, (10 * MIB) as u32, &[]), Ok(()), "gives space back");
    assert_eq!(full.write((written - 1) * MIB, &block), Ok(()));
    let ended = event(&place, "no_space", "ended");
    assert_eq!((&ended["failures"][0]["count"], &ended["got"]), (&2.into(), &2.0.into()), "{ended}");
    assert_eq!(ask(&place, &["status"]).code(), Some(0));
    assert!(events(&place, "errors").is_empty());
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn errors_of_a_disk_and_of_discards_were_silent() {
    let place = Place::new();
    let below = place.image("below.img", 64 * MIB);
    let disk = Loop::new(&below);
    let host = controlled(&place, &place.volume("a", "v", &disk.path, ""));
    let daemon = Daemon::serve(&place, &host);
    let mut a = open(&place, "a");
    let known = noise(1, MIB as usize);
    assert_eq!(a.write(0, &known), Ok(()));
    // The file below the disk is cut: reads of the disk fail like those of a broken one.
    File::options().write(true).open(&below).unwrap().set_len(MIB).unwrap();
    assert_eq!(a.read(16 * MIB, 4096), Err(EIO));
    let began = event(&place, "errors", "began");
    let failure = &began["failures"][0];
    assert_eq!((&failure["operation"], &failure["error"]), (&"read".into(), &"EIO".into()), "{began}");
    assert!(began["text"].as_str().unwrap().contains("Look at the kernel log"), "{began}");
    assert_eq!(ask(&place, &["status"]).code(), Some(6));
    assert!(a.read(0, 4096).unwrap() == known[..4096]);
    event(&place, "errors", "ended");
    assert_eq!(ask(&place, &["status"]).code(), Some(0));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn writes_past_the_end_of_a_cut_source_grew_it_again() {
    let place = Place::new();
    let image = place.image("cut.img", 8 * MIB);
    let daemon = Daemon::serve(&place, &controlled(&place, &place.volume("a", "v", &image, "")));
    let mut a = open(&place, "a");
    let data = noise(1, 4096);
    assert_eq!(a.write(0, &data), Ok(()));
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(2 * MIB).unwrap();
    // A look at the size is at most 10 ms old; the event shows that there was one.
    let began = event(&place, "source_shortened", "began");
    assert_eq!((&began["got"], &began["wanted"]), (&((2 * MIB) as f64).into(), &((8 * MIB) as f64).into()), "{began}");
    daemon.stderr().up_to(&["Source of a/v was cut: its source ends at byte 2097152, and the volume needs 8388608"]);
    assert_eq!(a.write(4 * MIB, &data), Err(EIO));
    assert_eq!(a.write(2 * MIB - 4096, &[data.as_slice(), &data].concat()), Err(EIO), "half of it");
    assert_eq!(a.ask(WRITE_ZEROES, 2, 4 * MIB, 4096, &[]), Err(EIO));
    assert_eq!(a.write(2 * MIB - 4096, &data), Ok(()), "up to the end");
    assert_eq!(a.flush(), Ok(()));
    assert_eq!(file.metadata().unwrap().len(), 2 * MIB, "the daemon does not grow what it does not own");
    let status = ask(&place, &["status"]);
    assert_eq!(status.code(), Some(6));
    assert!(status.stdout.contains("a/v is FAILING: its source ends at byte 2097152"), "{}", status.stdout);
    // Its owner makes it whole.
    file.set_len(8 * MIB).unwrap();
    event(&place, "source_shortened", "ended");
    assert_eq!(a.write(4 * MIB, &data), Ok(()));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn holes_past_the_end_of_a_cut_source_succeeded() {
    let place = Place::new();
    let image = place.image("cut.img", 8 * MIB);
    let _daemon = Daemon::serve(&place, &controlled(&place, &place.volume("a", "v", &image, "")));
    let mut a = open(&place, "a");
    assert_eq!(a.ask(TRIM, 0, 4 * MIB, 4096, &[]), Ok(()));
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(2 * MIB).unwrap();
    // A hole grows nothing, so each of them can be checked, and none needs an earlier look at the size.
    assert_eq!(a.ask(TRIM, 0, 4 * MIB, 4096, &[]), Err(EIO));
    assert_eq!(a.ask(WRITE_ZEROES, 0, 4 * MIB, 4096, &[]), Err(EIO));
    assert_eq!(a.ask(WRITE_ZEROES, 0, 2 * MIB - 4096, 8192, &[]), Err(EIO), "half of it");
    assert_eq!(a.ask(TRIM, 0, 2 * MIB - 4096, 4096, &[]), Ok(()), "up to the end");
    assert_eq!(file.metadata().unwrap().len(), 2 * MIB);
    let began = event(&place, "errors", "began");
    assert_eq!(began["cause"], "source_shortened", "{began}");
    let failures = &json(&place, &["status"])["failing"][0]["failures"];
    let failed = |at: usize| (failures[at]["operation"].as_str().unwrap(), failures[at]["count"].as_u64().unwrap());
    assert_eq!((failed(0), failed(1)), (("discard", 1), ("write_zeroes", 2)), "{failures}");
}

#[test]
fn a_device_that_shrank_got_the_advice_for_a_full_file_system() {
    let place = Place::new();
    let below = place.image("below.img", 64 * MIB);
    let disk = Loop::new(&below);
    let _daemon = Daemon::serve(&place, &controlled(&place, &place.volume("a", "v", &disk.path, "")));
    let mut a = open(&place, "a");
    let data = noise(1, 4096);
    assert_eq!(a.write(32 * MIB, &data), Ok(()));
    disk.resize(&below, 16 * MIB);
    assert_eq!(a.ask(TRIM, 0, 32 * MIB, 4096, &[]), Err(EIO), "before it a look is due, unlike before a write");
    assert_eq!(a.write(32 * MIB, &data), Err(EIO));
    assert_eq!(a.ask(WRITE_ZEROES, 0, 16 * MIB - 4096, 8192, &[]), Err(EIO), "half of it");
    assert_eq!(a.read(32 * MIB, 4096), Err(EIO));
    for began in [event(&place, "errors", "began"), event(&place, "source_shortened", "began")] {
        assert_eq!(began["cause"], "device_shrunk", "{began}");
        assert!(began["text"].as_str().unwrap().contains("The device is smaller than the volume"), "{began}");
    }
    let status = ask(&place, &["status"]).stdout;
    assert!(status.contains("a/v is FAILING") && !status.contains("Free space on the file system"), "{status}");
    assert!(events(&place, "no_space").is_empty());
    disk.resize(&below, 64 * MIB);
    event(&place, "source_shortened", "ended");
    assert_eq!(a.write(32 * MIB, &data), Ok(()));
}

#[test]
fn a_failure_with_nothing_after_it_is_told() {
    let place = Place::new();
    let small = FileSystem::new(&place.image("small.img", 16 * MIB), place.file("mounted"));
    let image = small.folder.join("full.img");
    sparse(&image, 256 * MIB);
    let daemon = Daemon::serve(&place, &controlled(&place, &place.volume("full", "v", &image, "")));
    run(tool("fallocate", "util-linux").args(["-l", "13M"]).arg(small.folder.join("other"))).ok();
    let mut full = open(&place, "full");
    assert_eq!(full.write(0, &noise(1, 8 * MIB as usize)), Err(ENOSPC));
    drop(full);
    daemon.stderr().up_to(&["Requests of full/v fail because there is no space"]);
    event(&place, "no_space", "began");
}

#[test]
fn a_success_in_the_second_of_a_failure_did_not_end_it() {
    let place = Place::new();
    let image = place.image("cut.img", 8 * MIB);
    let _daemon = Daemon::serve(&place, &controlled(&place, &place.volume("a", "v", &image, "")));
    let mut a = open(&place, "a");
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(2 * MIB).unwrap();
    assert_eq!(a.read(4 * MIB, 4096), Err(EIO));
    file.set_len(8 * MIB).unwrap();
    a.read(4 * MIB, 4096).unwrap();
    event(&place, "errors", "began");
    event(&place, "errors", "ended");
    assert_eq!(ask(&place, &["status"]).code(), Some(0));
}

#[test]
fn a_resize_did_not_see_that_the_file_was_replaced_by_a_rename() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let daemon = Daemon::serve(&place, &controlled(&place, &place.volume("a", "v", &image, "size = \"1MiB\"")));
    let aside = place.file("aside.img");
    std::fs::rename(&image, &aside).unwrap();
    place.image("a.img", 4 * MIB);
    let refused = ask(&place, &["resize", "a/v", "2MiB"]).failed();
    assert!(refused.contains("was replaced: its path leads to another file"), "{refused}");
    assert_eq!(aside.metadata().unwrap().len(), MIB, "the served file has its length");
    std::fs::rename(&aside, &image).unwrap();
    ask(&place, &["resize", "a/v", "2MiB"]).ok();
    assert_eq!(image.metadata().unwrap().len(), 2 * MIB);
    assert_eq!(daemon.terminate().code(), Some(0));
}
