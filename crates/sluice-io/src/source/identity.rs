//! The identity of a source, by which it is recognised after a restart even if its path or device number has changed.
//!
//! Device numbers may be others after a reboot, so they are no part of it. A file is its inode number and its birth time,
//! which no other file of the file system has. A block device is what its driver states (WWID, device mapper's UUID, serial
//! number), a partition that and where it starts. A loop device is the path behind it, because it has nothing else.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx};

use super::sysfs::Sysfs;

/// Files below the folder of a block device that name it, and what they name.
const NAMES: [(&str, &str); 5] =
    [("dm/uuid", "dm"), ("wwid", "wwid"), ("device/wwid", "wwid"), ("serial", "serial"), ("loop/backing_file", "loop")];

/// The identity of a regular file; `None` if the kernel does not state it.
pub(super) fn of_file(fd: BorrowedFd<'_>) -> Option<String> {
    let told = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME).ok()?;
    let has = |what: StatxFlags| told.stx_mask & what.bits() != 0;
    if !has(StatxFlags::INO) {
        return None;
    }
    let born = match has(StatxFlags::BTIME) {
        true => format!(" born {}.{:09}", told.stx_btime.tv_sec, told.stx_btime.tv_nsec),
        false => String::new(),
    };
    Some(format!("inode {}{born}", told.stx_ino))
}

/// The identity of a block device; `None` if its driver has none.
pub(super) fn of_block_device(sysfs: &Sysfs, dev: u64) -> Option<String> {
    let whole = sysfs.whole_folder(dev).ok()?;
    let name = NAMES.into_iter().find_map(|(file, kind)| Some(format!("{kind} {}", read(&whole.join(file))?)))?;
    match sysfs.partition_start_bytes(dev) {
        0 => Some(name),
        start => Some(format!("{name} from byte {start}")),
    }
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::source::disk::testing::FakeSysfs;

    #[test]
    fn a_file_is_known_by_another_name_and_its_successor_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (first, other) = (folder.path().join("a"), folder.path().join("b"));
        let made = |path: &Path| {
            fs::write(path, "x").unwrap();
            of_file(fs::File::open(path).unwrap().as_fd()).unwrap()
        };
        let id = made(&first);
        fs::rename(&first, &other).unwrap();
        assert_eq!(of_file(fs::File::open(&other).unwrap().as_fd()).unwrap(), id);
        assert_ne!(made(&first), id);
    }

    #[test]
    fn a_disk_and_its_partition_are_known_by_the_disks_serial_number() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, true);
        fake.partition("sda", "sda2", 8, 2, 2048);
        let sysfs = fake.sysfs();
        let of = |minor| of_block_device(&sysfs, rustix::fs::makedev(8, minor));
        assert_eq!((of(0), of(2)), (None, None), "its driver says nothing");
        fs::write(sysfs.whole_folder(rustix::fs::makedev(8, 0)).unwrap().join("wwid"), "naa.5000\n").unwrap();
        assert_eq!(of(0).unwrap(), "wwid naa.5000");
        assert_eq!(of(2).unwrap(), "wwid naa.5000 from byte 1048576");
    }
}
