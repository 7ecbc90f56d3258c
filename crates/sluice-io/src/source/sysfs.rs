//! Reads properties of block devices from sysfs, by device number.
//!
//! The root is a field, so that tests can use a tree in a temporary folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

/// sysfs counts in sectors of this size, whatever the device's block size is.
const SECTOR_BYTES: u64 = 512;

/// A sysfs tree.
#[derive(Debug, Clone)]
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// Returns the host's sysfs.
    pub(super) fn host() -> Self {
        Self::at("/sys")
    }

    /// Returns a tree with another root.
    pub(super) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the folder of a block device or partition, with symbolic links resolved.
    ///
    /// # Errors
    /// There is no such block device, or sysfs is not mounted.
    pub(super) fn folder(&self, dev: u64) -> io::Result<PathBuf> {
        self.root.join("dev/block").join(number(dev)).canonicalize()
    }

    /// Returns the folder of the whole device: a partition's parent, or the device's own folder.
    ///
    /// # Errors
    /// As [`Sysfs::folder`].
    pub(super) fn whole_folder(&self, dev: u64) -> io::Result<PathBuf> {
        let folder = self.folder(dev)?;
        match folder.parent() {
            Some(parent) if folder.join("partition").exists() => Ok(parent.to_path_buf()),
            _ => Ok(folder),
        }
    }

    /// Returns the folder in which the driver of RBD describes a disk, by the disk's number.
    pub(super) fn rbd_folder(&self, number: u32) -> PathBuf {
        self.root.join("bus/rbd/devices").join(number.to_string())
    }

    /// Returns the start of a partition on its disk, in bytes; 0 for other devices.
    pub(super) fn partition_start_bytes(&self, dev: u64) -> u64 {
        self.folder(dev)
            .ok()
            .and_then(|folder| read_u64(&folder.join("start")))
            .unwrap_or(0)
            .saturating_mul(SECTOR_BYTES)
    }

    /// Returns a number from the `queue` folder of the whole device; `None` if the kernel has none.
    pub(super) fn queue(&self, dev: u64, name: &str) -> Option<u64> {
        let folder = self.whole_folder(dev).ok()?;
        read_u64(&folder.join("queue").join(name))
    }
}

/// `8:1`, as sysfs writes a device number.
pub(super) fn number(dev: u64) -> String {
    format!("{}:{}", major(dev), minor(dev))
}

/// Returns the device number in a folder's `dev` file.
///
/// # Errors
/// The file is missing or does not contain `MAJOR:MINOR`.
pub(super) fn read_number(folder: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(folder.join("dev"))?;
    let parsed =
        text.trim().split_once(':').and_then(|(major, minor)| Some(makedev(major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no device number: {text}")))
}

pub(super) fn read_u64(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::disk::testing::FakeSysfs;

    #[test]
    fn the_start_of_a_partition_and_its_disks_queue_are_found() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, true);
        fake.partition("sda", "sda2", 8, 2, 2048);
        let sysfs = fake.sysfs();

        assert_eq!(sysfs.partition_start_bytes(makedev(8, 2)), 1 << 20);
        assert_eq!(sysfs.partition_start_bytes(makedev(8, 0)), 0);
        assert_eq!(sysfs.queue(makedev(8, 2), "rotational"), Some(1));
        assert_eq!(sysfs.queue(makedev(8, 2), "no_such_file"), None);
        assert_eq!(sysfs.queue(makedev(9, 9), "rotational"), None);
    }
}
