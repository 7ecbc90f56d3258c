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
/// Maximum number of disks that a message names.
const NAMED_MAX: usize = 8;

/// One whole block device, or one filesystem that has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    /// Device number (`st_dev` or `st_rdev`): the identity.
    pub dev: u64,
    /// `nvme0n1`, `sda`, or `filesystem 0:25`.
    pub name: String,
    /// Whether the kernel reports that it is a rotating disk.
    pub rotational: bool,
    /// The kernel's number of this appearance of a disk, which no other one gets, while device numbers are used again. `None`: Linux
    /// before 5.15, or no block device.
    pub sequence: Option<u64>,
}

impl Disk {
    /// Whether the other one has its device number, and did not get it after this one had gone, or before.
    fn is_same(&self, other: &Disk) -> bool {
        let is_other = |(own, other)| own != other;
        self.dev == other.dev && !self.sequence.zip(other.sequence).is_some_and(is_other)
    }
}

/// The disks that serve a path or several, in the order of their device numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskSet {
    disks: Vec<Disk>,
}

/// The disks that a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// At least one.
    pub disks: DiskSet,
    /// Number of the block device, or of that below its file system; of a partition that of its disk.
    pub whole: u64,
    /// Whether the path itself is that of a block device.
    pub is_block_device: bool,
}

impl Place {
    /// Resolves a file, folder or block device by its path.
    ///
    /// # Errors
    /// As [`DiskSet::of_path`].
    pub fn of_path(path: &Path) -> Result<Self, SourceError> {
        let stat = rustix::fs::stat(path).map_err(io::Error::from);
        let stat = stat.map_err(|source| SourceError::NoPath { path: path.to_path_buf(), source })?;
        let failed = |source| SourceError::Disk { path: path.to_path_buf(), source };
        let (resolver, dev) = (Resolver::host(), device_of(&stat));
        let disks = resolver.resolve(dev).map_err(failed)?;
        let whole = resolver.whole(dev).map_err(failed)?;
        let is_block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Ok(Self { disks, whole, is_block_device })
    }
}

impl DiskSet {
    /// Resolves a file, folder or block device by its path.
    ///
    /// # Errors
    /// [`SourceError::NoPath`]: the path does not exist or is not accessible. [`SourceError::Disk`]: sysfs does not
    /// show the device, or more than 16 layers of devices are stacked.
    pub fn of_path(path: &Path) -> Result<Self, SourceError> {
        Place::of_path(path).map(|place| place.disks)
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

    /// Adds the disks of another set. They replace those whose device numbers they have now.
    pub fn add(&mut self, other: Self) {
        self.disks.retain(|disk| !other.has(disk.dev));
        self.disks.extend(other.disks);
        self.disks.sort();
    }

    /// Whether it has all disks of the other set, and not only those that had their device numbers before.
    #[must_use]
    pub fn has_all(&self, other: &Self) -> bool {
        other.disks.iter().all(|disk| self.of(disk.dev).is_some_and(|own| own == disk))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.disks.is_empty()
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

    /// Whether both have a disk in common. One that is gone is not the one that has its device number now.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.disks.iter().any(|disk| other.of(disk.dev).is_some_and(|theirs| theirs.is_same(disk)))
    }

    /// Whether every disk of this set belongs to `other`: a volume must be on its device.
    #[must_use]
    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.disks.iter().all(|disk| other.has(disk.dev))
    }

    fn has(&self, dev: u64) -> bool {
        self.of(dev).is_some()
    }

    fn of(&self, dev: u64) -> Option<&Disk> {
        self.disks.binary_search_by_key(&dev, |disk| disk.dev).ok().map(|at| &self.disks[at])
    }

    /// Whether at least one of them is a rotating disk, whose seeks determine the throughput of all.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.disks.iter().any(|disk| disk.rotational)
    }
}

impl fmt::Display for DiskSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, name) in self.names().take(NAMED_MAX).enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{name}")?;
        }
        match self.disks.len() {
            0..=NAMED_MAX => Ok(()),
            all => write!(f, " and {} more", all - NAMED_MAX),
        }
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

    /// Returns the number of the disk of a partition; other devices are their own.
    fn whole(&self, dev: u64) -> io::Result<u64> {
        if major(dev) == 0 { Ok(dev) } else { sysfs::read_number(&self.sysfs.whole_folder(dev)?) }
    }

    fn look_at(&self, dev: u64) -> io::Result<Layer> {
        // Major 0 means that there is no device behind the number.
        if major(dev) == 0 {
            let name = format!("filesystem {}", sysfs::number(dev));
            return Ok(Layer::Disk(Disk { dev, name, rotational: false, sequence: None }));
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
        let sequence = sysfs::read_u64(&folder.join("diskseq"));
        Ok(Layer::Disk(Disk { dev, name, rotational, sequence }))
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
    fn two_disks_of_one_device_are_joined_and_partitions_are_their_disk() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, false);
        fake.partition("sda", "sda1", 8, 1, 2048);
        fake.disk("sdb", 8, 16, true);
        fake.disk("dm-0", 253, 0, false);
        fake.stack("dm-0", "sda/sda1");
        fake.stack("dm-0", "sdb");
        let resolver = resolver(&fake);
        let [a, b, over] = [makedev(8, 0), makedev(8, 16), makedev(253, 0)].map(|dev| resolver.resolve(dev).unwrap());
        let mut both = b.clone();
        assert!(!over.is_subset_of(&both));
        both.add(a.clone());
        both.add(a.clone());
        assert_eq!(names(&both), ["sda", "sdb"], "each once");
        assert!(over.is_subset_of(&both) && a.is_subset_of(&both) && both.overlaps(&b) && both.is_rotational());
        assert!(DiskSet::default().is_empty() && !DiskSet::default().overlaps(&both));
        let whole = |dev| resolver.whole(dev).unwrap();
        assert_eq!((whole(makedev(8, 1)), whole(makedev(8, 0))), (makedev(8, 0), makedev(8, 0)));
        assert_eq!((whole(makedev(253, 0)), whole(makedev(0, 25))), (makedev(253, 0), makedev(0, 25)));
    }

    #[test]
    fn a_disk_that_is_gone_is_not_the_one_that_has_its_number_now() {
        let appeared = |sequence: &str| {
            let fake = FakeSysfs::new();
            fake.disk("rbd0", 252, 0, false);
            fake.write("rbd0", "diskseq", sequence);
            resolver(&fake).resolve(makedev(252, 0)).unwrap()
        };
        let (before, now, unknown) = (appeared("7\n"), appeared("9\n"), appeared(""));
        assert!(!before.overlaps(&now) && now.overlaps(&now) && unknown.overlaps(&now) && now.overlaps(&unknown));
        let mut known = before.clone();
        assert!(!known.has_all(&now) && known.has_all(&before));
        known.add(now.clone());
        assert_eq!(known, now, "it has taken its place");
    }

    #[test]
    fn a_message_names_a_few_of_a_thousand_disks() {
        let disk =
            |minor| Disk { dev: makedev(8, minor), name: format!("sd{minor}"), rotational: false, sequence: None };
        let set = DiskSet { disks: (0..1000).map(disk).collect() };
        assert_eq!(set.to_string(), "sd0, sd1, sd2, sd3, sd4, sd5, sd6, sd7 and 992 more");
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
