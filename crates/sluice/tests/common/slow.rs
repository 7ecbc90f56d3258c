//! A disk whose requests outlive the process that made them.
//!
//! It is a loop device whose writes or reads are delayed by the kernel's block throttle, for the processes of a
//! control group. The kernel completes delayed requests later even if the process has died. Each process has its own
//! group, so requests of a new process do not queue behind those of the previous one: only a lock keeps them in
//! order.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A control group that delays requests to one device. It is removed when dropped, which its processes must not
/// outlive.
pub(crate) struct Throttle {
    folder: PathBuf,
}

impl Throttle {
    /// Limits writes to a block device, per second. Returns `None` if the kernel has no such throttle.
    pub(crate) fn new(name: &str, device: &Path, writes_per_second: u32) -> Option<Throttle> {
        Throttle::of("write", name, device, writes_per_second)
    }

    /// Limits reads, per second.
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

    /// Throttles this process from now on.
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
