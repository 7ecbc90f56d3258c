//! Finds the whole block devices below a path.
//!
//! A guarantee belongs to a physical device: two gates on one disk would each give out all of it. So files, folders and
//! block devices are resolved to the disks that serve them:
//!
//! | found | resolved to |
//! |---|---|
//! | partition | its disk |
//! | device-mapper, md | every device in `slaves/`, each resolved again |
//! | bound loop device | the disk under its backing file |
//! | any other block device | itself |
//! | filesystem without a block device (tmpfs, overlay, NFS, btrfs) | the filesystem itself, `filesystem 0:25` |
//!
//! Limits: a filesystem that spans devices behind an anonymous number (ZFS, overlay, and btrfs, where each subvolume
//! has its own number) is not resolved further; put its device under one gate manually. An NVMe drive with several
//! namespaces counts as several disks.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, major};

use super::error::SourceError;
use super::sysfs::{self, Sysfs};

/// Maximum number of layers (partition on RAID on loop on ...). More are taken for a cycle.
const LAYERS_MAX: u32 = 16;
/// Maximum number of devices that are examined for one path.
const DEVICES_MAX: usize = 1024;

/// One whole block device, or one filesystem that has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    /// Device number (`st_dev` or `st_rdev`): the identity.
    pub dev: u64,
    /// `nvme0n1`, `sda`, or `filesystem 0:25`.
    pub name: String,
    /// Whether the kernel reports that it is a rotating disk.
    pub rotational: bool,
}

/// The disks that serve a path, in the order of their device numbers; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSet {
    disks: Vec<Disk>,
}

impl DiskSet {
    /// Resolves a file, folder or block device by its path.
    ///
    /// # Errors
    /// [`SourceError::NoPath`]: the path does not exist or is not accessible. [`SourceError::Disk`]: sysfs does not
    /// show the device, or more than 16 layers of devices are stacked.
    pub fn of_path(path: &Path) -> Result<Self, SourceError> {
        let dev = device_under(path).map_err(|source| SourceError::NoPath { path: path.to_path_buf(), source })?;
        Resolver::host().resolve(dev).map_err(|source| SourceError::Disk { path: path.to_path_buf(), source })
    }

    /// Resolves an open file or block device; `path` is only for the message.
    ///
    /// # Errors
    /// [`SourceError::Disk`], as [`DiskSet::of_path`].
    pub fn of_fd(fd: impl AsFd, path: &Path) -> Result<Self, SourceError> {
        rustix::fs::fstat(fd)
            .map_err(io::Error::from)
            .and_then(|stat| Resolver::host().resolve(device_of(&stat)))
            .map_err(|source| SourceError::Disk { path: path.to_path_buf(), source })
    }

    /// The disks, in the order of their device numbers.
    #[must_use]
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// The disks' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.disks.iter().map(|disk| disk.name.as_str())
    }

    /// Whether both have a disk in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.disks.iter().any(|disk| other.disks.iter().any(|theirs| theirs.dev == disk.dev))
    }

    /// Whether every disk of this set belongs to `other`: a volume must be on its device.
    #[must_use]
    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.disks.iter().all(|disk| other.disks.iter().any(|theirs| theirs.dev == disk.dev))
    }

    /// Whether at least one of them is a rotating disk, whose seeks determine the throughput of all.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.disks.iter().any(|disk| disk.rotational)
    }
}

impl fmt::Display for DiskSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, name) in self.names().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{name}")?;
        }
        Ok(())
    }
}

/// Returns the device that a path is on.
type DeviceUnder = dyn Fn(&Path) -> io::Result<u64>;

/// Walks from a device number down to whole disks. The device of a path is a parameter, because a test's loop device
/// has a backing file on a disk that does not exist.
struct Resolver {
    sysfs: Sysfs,
    device_under: Box<DeviceUnder>,
}

/// The devices directly below a device.
enum Layer {
    Disk(Disk),
    Over(Vec<u64>),
}

impl Resolver {
    fn host() -> Self {
        Self { sysfs: Sysfs::host(), device_under: Box::new(device_under) }
    }

    fn resolve(&self, dev: u64) -> io::Result<DiskSet> {
        let mut disks = Vec::new();
        let mut seen = BTreeSet::new();
        // Depth first with an explicit stack, because the depth comes from the host and is not trusted.
        let mut open = vec![(dev, 0)];
        while let Some((dev, depth)) = open.pop() {
            if !seen.insert(dev) {
                continue;
            }
            if depth > LAYERS_MAX || seen.len() > DEVICES_MAX {
                return Err(io::Error::other(format!("too many layers of devices above {}", sysfs::number(dev))));
            }
            match self.look_at(dev)? {
                Layer::Disk(disk) => disks.push(disk),
                Layer::Over(below) => open.extend(below.into_iter().map(|dev| (dev, depth + 1))),
            }
        }
        if disks.is_empty() {
            return Err(io::Error::other(format!("no disk at the bottom of {}", sysfs::number(dev))));
        }
        disks.sort();
        disks.dedup_by_key(|disk| disk.dev);
        Ok(DiskSet { disks })
    }

    fn look_at(&self, dev: u64) -> io::Result<Layer> {
        // Major 0 means that there is no device behind the number.
        if major(dev) == 0 {
            let name = format!("filesystem {}", sysfs::number(dev));
            return Ok(Layer::Disk(Disk { dev, name, rotational: false }));
        }
        let folder = self.sysfs.whole_folder(dev)?;
        let below = slaves(&folder)?;
        if !below.is_empty() {
            return Ok(Layer::Over(below));
        }
        if let Some(backing) = backing_file(&folder)? {
            return Ok(Layer::Over(vec![(self.device_under)(&backing)?]));
        }
        let dev = sysfs::read_number(&folder)?;
        let name = folder.file_name().map_or_else(|| sysfs::number(dev), |name| name.to_string_lossy().into_owned());
        let rotational = self.sysfs.queue(dev, "rotational") == Some(1);
        Ok(Layer::Disk(Disk { dev, name, rotational }))
    }
}

/// Returns the devices of which a device-mapper or md device consists; none for other devices.
fn slaves(folder: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder.join("slaves")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.take(DEVICES_MAX + 1).map(|entry| sysfs::read_number(&entry?.path())).collect()
}

/// Returns the backing file of a bound loop device.
fn backing_file(folder: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read_to_string(folder.join("loop/backing_file")) {
        Ok(text) => Ok(Some(PathBuf::from(text.trim_end_matches('\n')))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn device_under(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::stat(path)?;
    Ok(device_of(&stat))
}

/// Returns the number of a block device, or of the filesystem's device of any other file.
fn device_of(stat: &Stat) -> u64 {
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice { stat.st_rdev } else { stat.st_dev }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A sysfs tree in a temporary folder, with the kernel's layout.
    pub(in crate::source) struct FakeSysfs {
        root: TempDir,
    }

    impl FakeSysfs {
        pub(in crate::source) fn new() -> Self {
            let root = tempfile::tempdir().expect("a temporary folder");
            fs::create_dir_all(root.path().join("dev/block")).unwrap();
            Self { root }
        }

        pub(in crate::source) fn sysfs(&self) -> Sysfs {
            Sysfs::at(self.root.path())
        }

        pub(in crate::source) fn write(&self, device: &str, file: &str, text: &str) {
            let path = self.folder(device).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub(in crate::source) fn disk(&self, name: &str, major: u32, minor: u32, rotational: bool) {
            self.device(name, major, minor);
            self.write(name, "queue/rotational", if rotational { "1\n" } else { "0\n" });
        }

        pub(in crate::source) fn partition(&self, disk: &str, name: &str, major: u32, minor: u32, start: u64) {
            let device = format!("{disk}/{name}");
            self.device(&device, major, minor);
            self.write(&device, "partition", "1\n");
            self.write(&device, "start", &format!("{start}\n"));
        }

        /// Stacks `upper` on `lower` (a device, or `disk/partition`), as dm and md do.
        pub(in crate::source) fn stack(&self, upper: &str, lower: &str) {
            let slaves = self.folder(upper).join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            let name = lower.rsplit('/').next().unwrap();
            symlink(self.folder(lower), slaves.join(name)).unwrap();
        }

        fn device(&self, device: &str, major: u32, minor: u32) {
            self.write(device, "dev", &format!("{major}:{minor}\n"));
            let link = self.root.path().join("dev/block").join(format!("{major}:{minor}"));
            symlink(self.folder(device), link).unwrap();
        }

        fn folder(&self, device: &str) -> PathBuf {
            self.root.path().join("devices/virtual/block").join(device)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::FakeSysfs;
    use super::*;
    use rustix::fs::makedev;

    fn resolver(fake: &FakeSysfs) -> Resolver {
        Resolver { sysfs: fake.sysfs(), device_under: Box::new(|_| panic!("no loop device in this test")) }
    }

    fn names(set: &DiskSet) -> Vec<&str> {
        set.names().collect()
    }

    #[test]
    fn disks_and_partitions_resolve_to_the_disk() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, true);
        fake.partition("sda", "sda1", 8, 1, 2048);
        fake.disk("nvme0n1", 259, 0, false);
        let resolver = resolver(&fake);

        let whole = resolver.resolve(makedev(8, 0)).unwrap();
        let part = resolver.resolve(makedev(8, 1)).unwrap();
        let other = resolver.resolve(makedev(259, 0)).unwrap();
        assert_eq!(whole, part);
        assert_eq!(names(&part), ["sda"]);
        assert!(part.overlaps(&whole) && !part.overlaps(&other));
        assert!(part.is_rotational() && !other.is_rotational());
    }

    #[test]
    fn dm_over_two_disks_overlaps_both() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, false);
        fake.partition("sda", "sda3", 8, 3, 4096);
        fake.disk("sdb", 8, 16, true);
        fake.disk("sdc", 8, 32, false);
        fake.disk("dm-0", 253, 0, false);
        fake.stack("dm-0", "sda/sda3");
        fake.stack("dm-0", "sdb");
        let resolver = resolver(&fake);

        let volume = resolver.resolve(makedev(253, 0)).unwrap();
        assert_eq!(volume.to_string(), "sda, sdb");
        assert!(volume.is_rotational(), "one rotating disk is enough");
        for (dev, shared) in [(makedev(8, 0), true), (makedev(8, 16), true), (makedev(8, 32), false)] {
            let disk = resolver.resolve(dev).unwrap();
            assert_eq!((volume.overlaps(&disk), disk.overlaps(&volume)), (shared, shared));
            assert_eq!(disk.is_subset_of(&volume), shared);
            assert!(!volume.is_subset_of(&disk));
        }
    }

    #[test]
    fn a_partition_of_an_md_device_under_dm_reaches_the_disks_once() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, false);
        fake.partition("sda", "sda1", 8, 1, 2048);
        fake.partition("sda", "sda2", 8, 2, 999_424);
        fake.disk("md0", 9, 0, false);
        fake.stack("md0", "sda/sda1");
        fake.stack("md0", "sda/sda2");
        fake.partition("md0", "md0p1", 259, 7, 2048);
        fake.disk("dm-1", 253, 1, false);
        fake.stack("dm-1", "md0/md0p1");

        let set = resolver(&fake).resolve(makedev(253, 1)).unwrap();
        assert_eq!(names(&set), ["sda"]);
    }

    #[test]
    fn a_loop_device_lies_on_its_backing_files_disk() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, true);
        fake.partition("sda", "sda1", 8, 1, 2048);
        fake.disk("loop3", 7, 3, false);
        fake.write("loop3", "loop/backing_file", "/srv/vm images/a.img\n");
        fake.disk("loop4", 7, 4, false);
        let resolver = Resolver {
            sysfs: fake.sysfs(),
            device_under: Box::new(|path| {
                assert_eq!(path, Path::new("/srv/vm images/a.img"));
                Ok(makedev(8, 1))
            }),
        };

        assert_eq!(names(&resolver.resolve(makedev(7, 3)).unwrap()), ["sda"]);
        assert_eq!(names(&resolver.resolve(makedev(7, 4)).unwrap()), ["loop4"], "not bound");
    }

    #[test]
    fn a_filesystem_without_a_device_is_its_own_identity() {
        let fake = FakeSysfs::new();
        let resolver = resolver(&fake);
        let tmpfs = resolver.resolve(makedev(0, 25)).unwrap();
        assert_eq!(tmpfs.to_string(), "filesystem 0:25");
        assert!(tmpfs.overlaps(&tmpfs) && !tmpfs.is_rotational());
        assert!(!tmpfs.overlaps(&resolver.resolve(makedev(0, 26)).unwrap()));
    }

    #[test]
    fn unknown_devices_and_endless_stacks_are_errors() {
        let fake = FakeSysfs::new();
        for minor in 0..=LAYERS_MAX + 1 {
            fake.disk(&format!("dm-{minor}"), 253, minor, false);
        }
        for minor in 0..=LAYERS_MAX {
            fake.stack(&format!("dm-{minor}"), &format!("dm-{}", minor + 1));
        }
        let resolver = resolver(&fake);
        assert!(resolver.resolve(makedev(253, 0)).is_err(), "one layer too many");
        assert_eq!(resolver.resolve(makedev(253, 1)).unwrap().to_string(), format!("dm-{}", LAYERS_MAX + 1));
        assert!(resolver.resolve(makedev(8, 99)).is_err());
    }

    #[test]
    fn a_cycle_ends() {
        let fake = FakeSysfs::new();
        fake.disk("dm-0", 253, 0, false);
        fake.disk("dm-1", 253, 1, false);
        fake.stack("dm-0", "dm-1");
        fake.stack("dm-1", "dm-0");
        assert!(resolver(&fake).resolve(makedev(253, 0)).is_err(), "no disk at the end of it");
    }

    #[test]
    fn the_hosts_own_files_resolve() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let by_path = DiskSet::of_path(file.path()).unwrap();
        let by_fd = DiskSet::of_fd(file.as_file(), file.path()).unwrap();
        let folder = DiskSet::of_path(file.path().parent().unwrap()).unwrap();
        assert_eq!(by_path, by_fd);
        assert_eq!(by_path, folder);

        let memory = DiskSet::of_path(Path::new("/dev/shm")).unwrap();
        assert!(memory.to_string().starts_with("filesystem 0:"), "{memory}");
        assert!(DiskSet::of_path(Path::new("/no/such/file")).is_err());
    }
}
