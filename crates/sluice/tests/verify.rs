//! fio writes checksums with 32 requests in flight and reads them back, with every scheduler that reorders, merges
//! and splits.

use std::fmt::Write;

use crate::common::{Daemon, MIB, Place, fio, free_address, schedulers};

/// Sizes below, at and above the limit of merging (and splitting: 256 KiB).
const SIZES: [&str; 6] = ["512", "4k", "16k", "64k", "256k", "1m"];
const AREA: u64 = 8 * MIB;

/// Returns one job for each size, each in a separate area.
fn verifying_jobs(uri: &str) -> String {
    let mut jobs = format!(
        "[global]\nioengine=nbd\nuri={uri}\nrw=randrw\niodepth=32\nsize={AREA}\n\
         verify=crc32c\ndo_verify=1\nverify_fatal=1\nverify_dump=0\n"
    );
    for (number, size) in SIZES.iter().enumerate() {
        let area = if *size == "512" { MIB } else { AREA };
        write!(jobs, "[b{size}]\nbs={size}\noffset={}\nsize={area}\n", number as u64 * AREA).unwrap();
    }
    jobs
}

/// A shallow device, so that requests queue up and the scheduler can choose.
fn host(place: &Place, scheduler: &str, address: &str) -> String {
    let image = |vm: &str| place.image(&format!("{vm}-{scheduler}.img"), SIZES.len() as u64 * AREA);
    let device = place.device(&format!("scheduler = \"{scheduler}\"\ndepth = 4"));
    let volumes = place.volume("a", "v", &image("a"), "") + &place.volume("b", "v", &image("b"), "");
    format!("{device}{volumes}[nbd]\nlisten = \"{address}\"\n")
}

#[test]
fn data_survive_every_scheduler_over_a_unix_socket() {
    for scheduler in schedulers(|scheduler| scheduler["medium"] == "disk") {
        let place = Place::new();
        let daemon = Daemon::serve(&place, &host(&place, &scheduler, &free_address()));
        let report = fio::run(&place, "unix", &verifying_jobs(&place.uri("a", "v")));
        assert_eq!(report.jobs().len(), SIZES.len());
        let accounts = daemon.accounts();
        let completed = &accounts.vm("a")["completed"];
        assert!(completed["read"].as_u64() >= completed["write"].as_u64(), "nothing was verified: {completed}");
        assert_eq!(accounts.number("a", "failed"), 0);
        assert_eq!(daemon.terminate().code(), Some(0), "{scheduler}");
    }
}

#[test]
fn data_survive_every_scheduler_over_tcp_next_to_another_vm() {
    for scheduler in schedulers(|scheduler| scheduler["medium"] == "disk") {
        let (place, address) = (Place::new(), free_address());
        let daemon = Daemon::serve(&place, &host(&place, &scheduler, &address));
        let neighbour = fio::fio(&place, "neighbour", &verifying_jobs(&place.uri("b", "v")));
        let neighbour = crate::common::start(&mut { neighbour });
        fio::run(&place, "tcp", &verifying_jobs(&format!("nbd://{address}/a/v")));
        fio::report(neighbour.end());
        assert_eq!(daemon.terminate().code(), Some(0), "{scheduler}");
    }
}

/// Checks the method of the other tests: fio detects a wrong byte.
#[test]
fn a_byte_changed_below_the_daemon_is_detected() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let _daemon = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &image, "")));
    let jobs = |more: &str| {
        let uri = place.uri("a", "v");
        format!("[j]\nioengine=nbd\nuri={uri}\nrw=write\nbs=4k\nsize=1m\nverify=crc32c\nverify_fatal=1\n{more}\n")
    };
    fio::run(&place, "write", &jobs("do_verify=0"));
    fio::run(&place, "verify", &jobs("verify_only=1"));
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"!", 123 * 4096 + 2000).unwrap();
    file.sync_all().unwrap();
    let output = crate::common::run(&mut fio::fio(&place, "again", &jobs("verify_only=1"))).failed();
    assert!(output.contains("verify"), "{output}");
}
