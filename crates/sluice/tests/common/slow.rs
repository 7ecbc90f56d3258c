//! A disk whose requests outlive the process that made them.
//!
//! A loop device whose writes, or reads, the kernel's block throttle holds back, for the processes of a control group. What
//! is held back is the kernel's alone: it lands when its time has come, whether the process lives or not. Each process
//! gets a group of its own, so the requests of a new one do not queue up behind those of the one before it: nothing
//! but a lock can keep them in order.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A control group that holds requests for one device back. It goes when this is dropped, which its processes must do first.
pub(crate) struct Throttle {
    folder: PathBuf,
}

impl Throttle {
    /// At most so many writes per second to a block device. `None` where the kernel offers no such thing.
    pub(crate) fn new(name: &str, device: &Path, writes_per_second: u32) -> Option<Throttle> {
        Throttle::of("write", name, device, writes_per_second)
    }

    /// At most so many reads per second.
    pub(crate) fn reads(name: &str, device: &Path, reads_per_second: u32) -> Option<Throttle> {
        Throttle::of("read", name, device, reads_per_second)
    }

    fn of(what: &str, name: &str, device: &Path, per_second: u32) -> Option<Throttle> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let number = fs::metadata(device).ok()?.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let (root, file, line) = mounts.lines().find_map(|mount| {
            let fields: Vec<&str> = mount.split(' ').collect();
            let root = PathBuf::from(fields[1]);
            match fields[2] {
                "cgroup" if fields[3].split(',').any(|option| option == "blkio") => {
                    let line = format!("{major}:{minor} {per_second}");
                    Some((root, format!("blkio.throttle.{what}_iops_device"), line))
                }
                "cgroup2" if fs::read_to_string(root.join("cgroup.subtree_control")).ok()?.contains("io") => {
                    let line = format!("{major}:{minor} {}iops={per_second}", &what[..1]);
                    Some((root, "io.max".to_owned(), line))
                }
                _ => None,
            }
        })?;
        let folder = root.join(format!("sluice-{}-{name}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let throttle = Throttle { folder };
        fs::write(throttle.folder.join(file), line).ok()?;
        Some(throttle)
    }

    /// Holds this process back, from now on.
    pub(crate) fn hold(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("a process may be put into a group");
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("{}: {error}", self.folder.display());
        }
    }
}
