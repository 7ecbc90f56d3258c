//! The kernel's schedulers, on a loop device over the file that the guests' disks are parts of.
//!
//! BFQ and blk-throttle need a block device of a known rate. It is a chain: the server serves the whole file at the trial's rate over NBD, in the
//! order of arrival. `nbdfuse` makes a file of that, and a loop device with direct I/O lies over it. Each guest's QEMU is in a
//! control group with the guest's weight or limit.
//!
//! Root is necessary, and a kernel with BFQ and control groups of block devices: cgroup v1's blkio, or cgroup v2 whose root passes on
//! `io`. Only v1 has been run. Dropping the device removes everything; so does SIGTERM.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use sluice_lab::real::{KernelScheduler, Load, Trial};

use super::super::host::Fixture;
use sluice_client::programs::{self, Program};
use sluice_daemon::failure::Failure;
use sluice_testbed::loop_device::{self, LoopDevice};

const PROGRAMS: [Program; 3] = [("losetup", "mount"), ("umount", "mount"), ("nbdfuse", "libnbd-bin")];
/// Maximum time until `nbdfuse` has mounted its file.
const MOUNT_MAX: Duration = Duration::from_secs(20);
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Weight of BFQ for a weight of 1; BFQ's are 1 to 1000.
const BFQ_WEIGHT: u32 = 100;

/// Returns why the kernel's schedulers cannot run here, if they cannot.
pub(in crate::real) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("they need root".to_owned());
    }
    if let Some(missing) = programs::missing(&PROGRAMS) {
        return Some(missing);
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("the kernel has no FUSE".to_owned());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if Groups::find(&mounts).is_none() {
        return Some("the kernel has no control groups of block devices".to_owned());
    }
    None
}

/// Control groups of block devices.
#[derive(Debug, Clone, PartialEq)]
enum Groups {
    V1(PathBuf),
    V2(PathBuf),
}

impl Groups {
    /// Finds them in the lines of `/proc/self/mounts`.
    fn find(mounts: &str) -> Option<Groups> {
        mounts.lines().find_map(|mount| {
            let [_, root, kind, options, ..] = mount.split(' ').collect::<Vec<_>>()[..] else { return None };
            let passes_on = |controller| {
                let passed = fs::read_to_string(Path::new(root).join("cgroup.subtree_control")).unwrap_or_default();
                passed.split_whitespace().any(|passed| passed == controller)
            };
            match kind {
                "cgroup" if options.split(',').any(|option| option == "blkio") => Some(Groups::V1(root.into())),
                "cgroup2" if passes_on("io") => Some(Groups::V2(root.into())),
                _ => None,
            }
        })
    }

    /// Returns the folder of a VM's group.
    fn of(&self, vm: &str) -> PathBuf {
        let (Groups::V1(root) | Groups::V2(root)) = self;
        root.join(format!("sluice-real-{}-{vm}", std::process::id()))
    }

    /// Returns file and content that set a VM's weight.
    fn weight(&self, weight: u32) -> (&'static str, String) {
        let name = if matches!(self, Groups::V1(_)) { "blkio.bfq.weight" } else { "io.bfq.weight" };
        (name, (weight * BFQ_WEIGHT).to_string())
    }

    /// Returns files and contents that limit a VM's reads and writes on a device.
    fn limits(&self, device: &str, reads: f64, writes: f64) -> Vec<(&'static str, String)> {
        // 0 means no limit; a VM without writes needs none.
        let [reads, writes] = [reads, writes].map(|rate| rate.round() as u64);
        match self {
            Groups::V1(_) => vec![
                ("blkio.throttle.read_iops_device", format!("{device} {reads}")),
                ("blkio.throttle.write_iops_device", format!("{device} {writes}")),
            ],
            Groups::V2(_) => {
                let word = |name: &str, rate: u64| if rate > 0 { format!(" {name}={rate}") } else { String::new() };
                vec![("io.max", format!("{device}{}{}", word("riops", reads), word("wiops", writes)))]
            }
        }
    }
}

/// Why a part of the chain cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("The kernel's device: {0}")]
pub(super) struct ChainError(String);

/// The device, and its control groups. Fields are dropped in this order.
pub(super) struct KernelDevice {
    device: LoopDevice,
    groups: Groups,
    _mounted: Mounted,
}

/// A file of `nbdfuse`, which is unmounted when dropped.
struct Mounted {
    folder: PathBuf,
    server: Child,
}

impl KernelDevice {
    /// Makes the chain over the file that the server serves.
    pub(super) async fn set_up(fixture: &Fixture) -> Result<KernelDevice, Failure> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let groups = Groups::find(&mounts).ok_or_else(|| ChainError("control groups are missing".to_owned()))?;
        let (mounted, file) = Mounted::mount(fixture).await?;
        // On another thread, because the file is read, which this thread's server answers.
        let device = tokio::task::spawn_blocking(move || LoopDevice::attach(&file)).await?.map_err(ChainError)?;
        Ok(KernelDevice { device, groups, _mounted: mounted })
    }

    /// Sets the scheduler, and makes the VMs' groups.
    pub(super) fn schedule(
        &mut self,
        scheduler: KernelScheduler,
        trial: &Trial,
        limits: &[f64],
    ) -> Result<(), ChainError> {
        let name = if scheduler == KernelScheduler::Bfq { "bfq" } else { "none" };
        self.device.set_scheduler(name).map_err(ChainError)?;
        let number = self.device.number().map_err(ChainError)?;
        for (vm, limit) in trial.vms.iter().zip(limits) {
            let folder = self.groups.of(vm.name);
            self.device.add_group(folder.clone()).map_err(ChainError)?;
            let settings = match scheduler {
                KernelScheduler::Bfq => vec![self.groups.weight(vm.weight)],
                KernelScheduler::Throttle => {
                    let Load { write_percent, .. } = vm.load;
                    let writes = limit * f64::from(write_percent) / 100.0;
                    self.groups.limits(&number, limit - writes, writes)
                }
            };
            for (file, content) in settings {
                loop_device::set(&folder.join(file), &content).map_err(ChainError)?;
            }
        }
        Ok(())
    }

    /// Puts a process into a VM's group.
    pub(super) fn add(&self, vm: &str, pid: u32) -> Result<(), ChainError> {
        loop_device::set(&self.groups.of(vm).join("cgroup.procs"), &pid.to_string()).map_err(ChainError)
    }

    /// The path of the block device.
    pub(super) fn path(&self) -> String {
        self.device.path.clone()
    }
}

impl Mounted {
    /// Mounts the file. Returns its path as well.
    async fn mount(fixture: &Fixture) -> Result<(Mounted, PathBuf), Failure> {
        let folder = fixture.sockets().join("fuse");
        fs::create_dir(&folder)?;
        let (file, ready) = (folder.join("disk"), fixture.sockets().join("fuse.pid"));
        let mut command = programs::command("nbdfuse");
        command
            .arg("-P")
            .arg(&ready)
            .arg(&file)
            .arg(format!("nbd+unix:///?socket={}", fixture.whole_socket().display()));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let server = command.spawn().map_err(|error| ChainError(format!("nbdfuse: {error}")))?;
        let mut mounted = Mounted { folder, server };
        let began = Instant::now();
        while !ready.exists() {
            if mounted.server.try_wait()?.is_some() || began.elapsed() > MOUNT_MAX {
                return Err(ChainError("nbdfuse mounts nothing".to_owned()).into());
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        Ok((mounted, file))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It ends when its file is unmounted, unless it has never mounted it.
        let _ = programs::output(programs::command("umount").arg("--lazy").arg(&self.folder));
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_are_found_and_set_in_both_versions() {
        let v1 =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n";
        let groups = Groups::find(v1).unwrap();
        assert_eq!(groups, Groups::V1("/sys/fs/cgroup/blkio".into()));
        assert_eq!(groups.weight(6), ("blkio.bfq.weight", "600".to_owned()));
        let [reads, writes] = &groups.limits("7:0", 454.5, 45.4)[..] else { panic!("there are two") };
        assert_eq!((reads.1.as_str(), writes.1.as_str()), ("7:0 455", "7:0 45"));
        let root = tempfile::tempdir().unwrap();
        let v2 = format!("none / ext4 rw 0 0\ncgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        assert_eq!(Groups::find(&v2), None, "it does not pass on io");
        fs::write(root.path().join("cgroup.subtree_control"), "cpu io memory\n").unwrap();
        let groups = Groups::find(&v2).unwrap();
        assert_eq!(groups.weight(1).0, "io.bfq.weight");
        assert_eq!(groups.limits("7:0", 300.0, 0.0), [("io.max", "7:0 riops=300".to_owned())]);
        assert_eq!(groups.limits("7:0", 300.0, 30.0), [("io.max", "7:0 riops=300 wiops=30".to_owned())]);
    }
}
