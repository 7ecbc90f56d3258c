//! Space on the file systems of images: how much is free, and by how much the images may still grow.
//!
//! A sparse image grows when its guest writes to a part for the first time, by at most its length without what is allocated. Example:
//! three images of 100 GiB each, of which 40 GiB are allocated, may grow by 180 GiB; with 50 GiB free the file system is
//! overcommitted. What clones share, compression and quotas are not known here: a file system may be full earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::StatVfs;
use sluice_config::Host;

use crate::findings::{Finding, Level};

/// Maximum time for the file systems of a host file to reply.
const LOOK_MAX: Duration = Duration::from_secs(5);
const GIB: u64 = 1 << 30;

/// The file of a volume that its guest may write.
#[derive(Debug, Clone)]
pub struct Image {
    /// VM/VOLUME.
    pub volume: String,
    /// Name of its device in the host file.
    pub device: String,
    pub path: PathBuf,
    /// Device number and inode.
    pub file: (u64, u64),
    pub size_bytes: u64,
    pub allocated_bytes: u64,
}

/// A file system with images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// Name of the device of its first image in the host file.
    pub device: String,
    /// Folder of its first image.
    pub folder: PathBuf,
    pub size_bytes: u64,
    /// Free for users who are not privileged.
    pub free_bytes: u64,
    /// Bytes by which all images together may still grow.
    pub growth_bytes: u64,
    /// Volumes whose images may grow, those that may grow most first.
    pub volumes: Vec<String>,
}

/// Amounts of free space below which an overcommitted file system is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threshold {
    TenPercent,
    OneGib,
}

impl FileSystem {
    /// Returns a file system with these images; `None` if there are none.
    pub fn of(images: &[Image], space: &StatVfs) -> Option<FileSystem> {
        let first = images.first()?;
        let mut known = BTreeSet::new();
        let growth = |image: &Image| image.size_bytes.saturating_sub(image.allocated_bytes);
        // Several volumes may be parts of one file.
        let mut grows: Vec<&Image> = images.iter().filter(|image| known.insert(image.file)).collect();
        grows.retain(|image| growth(image) > 0);
        grows.sort_by_key(|image| std::cmp::Reverse(growth(image)));
        Some(FileSystem {
            device: first.device.clone(),
            folder: first.path.parent().unwrap_or(Path::new("/")).to_owned(),
            size_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            growth_bytes: grows.iter().map(|image| growth(image)).sum(),
            volumes: grows.iter().map(|image| image.volume.clone()).collect(),
        })
    }

    /// Whether the images may grow by more than is free.
    pub fn is_overcommitted(&self) -> bool {
        self.growth_bytes > self.free_bytes
    }

    /// The thresholds that it has reached.
    pub fn reached(&self) -> impl Iterator<Item = Threshold> {
        let all = [Threshold::TenPercent, Threshold::OneGib].into_iter();
        all.filter(|threshold| self.is_overcommitted() && self.free_bytes < self.least(*threshold))
    }

    /// Whether there is room again after it had reached this threshold: a tenth more than was too little. Otherwise free space
    /// around a threshold would be an event each second.
    pub fn has_left(&self, threshold: Threshold) -> bool {
        let is_enough = |needed: u64| self.free_bytes >= needed.saturating_add(needed / 10);
        is_enough(self.least(threshold)) || is_enough(self.growth_bytes)
    }

    fn least(&self, threshold: Threshold) -> u64 {
        match threshold {
            Threshold::TenPercent => self.size_bytes / 10,
            Threshold::OneGib => GIB,
        }
    }

    /// Its state in words.
    pub fn in_words(&self) -> String {
        let FileSystem { folder, size_bytes, free_bytes, growth_bytes, volumes, .. } = self;
        let named = volumes.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        let more = if volumes.len() > 3 { format!(" and {} more", volumes.len() - 3) } else { String::new() };
        format!(
            "The file system of {} has {} free of {}, and images on it may still grow by {}: {named}{more}",
            folder.display(),
            size(*free_bytes),
            size(*size_bytes),
            size(*growth_bytes)
        )
    }
}

/// What to do about it.
pub const REMEDY: &str =
    "free space or extend the file system before its guests get errors, or allocate images (`fallocate -l SIZE IMAGE`)";

/// A number of bytes with a unit.
pub fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= GIB as f64 => format!("{:.1} GiB", bytes / GIB as f64),
        bytes => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
    }
}

/// Returns a warning for each overcommitted file system of a host file. Paths that cannot be looked at are left out: other checks
/// report them. Waits at most [`LOOK_MAX`].
pub fn findings(host: &Host) -> Vec<Finding> {
    let paths = host.vms.values().flat_map(|vm| vm.volumes.values().map(move |volume| (vm, volume)));
    let paths: Vec<(String, String, PathBuf)> = paths
        .filter(|(_, volume)| !volume.read_only)
        .filter_map(|(vm, volume)| {
            Some((format!("{}/{}", vm.name, volume.name), volume.device.clone(), volume.source.file()?.to_owned()))
        })
        .collect();
    let (send, found) = channel();
    let look = move || drop(send.send(look_at_paths(paths)));
    if std::thread::Builder::new().name("space".to_owned()).spawn(look).is_err() {
        return Vec::new();
    }
    let systems = found.recv_timeout(LOOK_MAX).unwrap_or_default();
    let overcommitted = systems.into_iter().filter(FileSystem::is_overcommitted);
    let finding = |system: FileSystem| {
        let about = format!("device {}", system.device);
        Finding::new(Level::Warning, "space", about, system.in_words()).fix(REMEDY)
    };
    overcommitted.map(finding).collect()
}

fn look_at_paths(paths: Vec<(String, String, PathBuf)>) -> Vec<FileSystem> {
    let mut by_system: BTreeMap<u64, Vec<Image>> = BTreeMap::new();
    for (volume, device, path) in paths {
        let Ok(found) = std::fs::metadata(&path).and_then(|found| match found.is_file() {
            true => Ok(found),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }) else {
            continue;
        };
        let (file, allocated_bytes) = ((found.dev(), found.ino()), found.blocks() * 512);
        let image = Image { volume, device, path, file, size_bytes: found.len(), allocated_bytes };
        by_system.entry(found.dev()).or_default().push(image);
    }
    let system = |images: Vec<Image>| FileSystem::of(&images, &rustix::fs::statvfs(&images.first()?.path).ok()?);
    by_system.into_values().filter_map(system).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(volume: &str, inode: u64, size_bytes: u64, allocated_bytes: u64) -> Image {
        let (device, path) = ("disk".to_owned(), "/images/a.img".into());
        Image { volume: volume.to_owned(), device, path, file: (1, inode), size_bytes, allocated_bytes }
    }

    fn system(images: &[Image], size_bytes: u64, free_bytes: u64) -> FileSystem {
        let mut space = rustix::fs::statvfs("/").unwrap();
        (space.f_frsize, space.f_blocks, space.f_bavail) = (1, size_bytes, free_bytes);
        FileSystem::of(images, &space).unwrap()
    }

    #[test]
    fn images_that_may_grow_by_more_than_is_free_are_an_overcommitted_file_system() {
        let images = [
            image("a/r", 1, 100 * GIB, 40 * GIB),
            image("b/r", 2, 100 * GIB, GIB),
            image("c/r", 1, 100 * GIB, 40 * GIB),
        ];
        let found = system(&images, 200 * GIB, 150 * GIB);
        assert_eq!((found.growth_bytes, found.is_overcommitted()), (159 * GIB, true), "two volumes are one file");
        assert_eq!(found.volumes, ["b/r", "a/r"]);
        assert_eq!(found.reached().collect::<Vec<_>>(), [], "much is free");
        let low = system(&images, 200 * GIB, 19 * GIB);
        assert_eq!(low.reached().collect::<Vec<_>>(), [Threshold::TenPercent]);
        let least = system(&images, 200 * GIB, GIB - 1);
        assert_eq!(least.reached().collect::<Vec<_>>(), [Threshold::TenPercent, Threshold::OneGib]);
        let full = system(&images[..1], 41 * GIB, 60 * GIB);
        assert_eq!((full.is_overcommitted(), full.reached().count()), (false, 0), "there is room for all of it");
        let words = "The file system of /images has 19.0 GiB free of 200.0 GiB, and images on it may still grow by 159.0 GiB: b/r, a/r";
        assert_eq!(low.in_words(), words);
    }
}
