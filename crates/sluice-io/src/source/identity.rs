//! The identity of a source, by which it is recognised after a restart even if its path or device number has changed.
//!
//! Device numbers may be others after a reboot, so they are no part of it. A file is its inode number and its birth time,
//! which no other file of the file system has. A block device is what its driver states (WWID, device mapper's UUID, serial
//! number), a partition that and where it starts. A loop device is the path behind it, because it has nothing else.
//!
//! An RBD disk is its image: cluster, pool and image by their ids, which renaming does not change, and its namespace and snapshot.
//! `/dev/rbd0` is the image that was mapped first, so its number identifies nothing. Tests use a made-up tree with the files that the
//! kernel's documentation lists (`Documentation/ABI/testing/sysfs-bus-rbd`); a real one was not there.

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
    let name = NAMES.into_iter().find_map(|(file, kind)| Some(format!("{kind} {}", read(&whole.join(file))?)));
    let name = name.or_else(|| of_rbd(sysfs, &whole))?;
    match sysfs.partition_start_bytes(dev) {
        0 => Some(name),
        start => Some(format!("{name} from byte {start}")),
    }
}

/// The image of an RBD disk; `None` if it is another disk, or its driver does not state cluster, pool and image.
fn of_rbd(sysfs: &Sysfs, whole: &Path) -> Option<String> {
    let number = whole.file_name()?.to_str()?.strip_prefix("rbd")?.parse().ok()?;
    let folder = sysfs.rbd_folder(number);
    let stated = |name| read(&folder.join(name));
    let cluster = stated("cluster_fsid")?;
    let pool = stated("pool_id").or_else(|| stated("pool"))?;
    // An image of the first format has no id.
    let image = stated("image_id").or_else(|| stated("name"))?;
    let namespace = stated("pool_ns").map_or_else(String::new, |name| format!(" namespace {name}"));
    let snapshot = stated("current_snap").filter(|name| name != "-");
    let snapshot = snapshot.map_or_else(String::new, |name| format!(" snapshot {name}"));
    Some(format!("rbd cluster {cluster} pool {pool}{namespace} image {image}{snapshot}"))
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

    /// A tree in which this disk has this image. Like the kernel's, except for what was left out.
    fn rbd(fake: &FakeSysfs, number: u32, files: &[(&str, &str)]) {
        fake.disk(&format!("rbd{number}"), 252, number * 16, false);
        fake.partition(&format!("rbd{number}"), &format!("rbd{number}p1"), 252, number * 16 + 1, 2048);
        let folder = fake.sysfs().rbd_folder(number);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in
            [("pool", "vms"), ("name", "web1"), ("current_snap", "-"), ("major", "252"), ("pool_ns", "")]
        {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
        for (name, text) in files {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }

    const IDS: [(&str, &str); 3] = [("cluster_fsid", "1c23-45"), ("pool_id", "3"), ("image_id", "86f2ae8944a")];

    #[test]
    fn an_rbd_disk_is_its_image_whatever_its_number() {
        let of = |number: u32, more: &[(&str, &str)]| {
            let fake = FakeSysfs::new();
            rbd(&fake, number, &[&IDS, more].concat());
            let of = |minor| of_block_device(&fake.sysfs(), rustix::fs::makedev(252, number * 16 + minor)).unwrap();
            (of(0), of(1))
        };
        let web = "rbd cluster 1c23-45 pool 3 image 86f2ae8944a".to_owned();
        assert_eq!(of(0, &[]), (web.clone(), format!("{web} from byte 1048576")));
        assert_eq!(of(7, &[]).0, web, "mapped later");
        assert_eq!(of(0, &[("name", "renamed"), ("pool", "renamed")]).0, web);
        for other in
            [("cluster_fsid", "9"), ("pool_id", "4"), ("image_id", "99"), ("pool_ns", "b"), ("current_snap", "s1")]
        {
            assert_ne!(of(0, &[other]).0, web, "{other:?}");
        }
    }

    #[test]
    fn an_rbd_disk_of_an_old_image_or_kernel_is_known_by_names_or_not_at_all() {
        let of = |files: &[(&str, &str)]| {
            let fake = FakeSysfs::new();
            rbd(&fake, 0, files);
            of_block_device(&fake.sysfs(), rustix::fs::makedev(252, 0))
        };
        assert_eq!(of(&[("cluster_fsid", "1")]).unwrap(), "rbd cluster 1 pool vms image web1");
        assert_eq!(of(&[("pool_id", "3")]), None, "it does not state its cluster");
        let fake = FakeSysfs::new();
        fake.disk("rbd0", 252, 0, false);
        assert_eq!(of_block_device(&fake.sysfs(), rustix::fs::makedev(252, 0)), None);
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
