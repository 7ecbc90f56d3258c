//! The kernel's schedulers on a loop device over a file: blk-throttle (limits) and BFQ (shares).
//! `cargo xtask bench isolation` uses the device and its groups as well.
//!
//! They need root and the blkio controller of cgroup v1. If either is missing, the error says so. The groups and the
//! loop device are removed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::fio;
use super::super::server;
use super::DEPTH;

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A loop device, and control groups.
pub(crate) struct Kernel {
    pub(crate) device: String,
    /// The device's queue folder in sysfs.
    pub(crate) queue: PathBuf,
    pub(crate) number: String,
    /// Folders of the groups.
    pub(crate) groups: Vec<PathBuf>,
}

impl Kernel {
    /// Makes a device over a new file, and `groups` control groups.
    pub(crate) fn new(scratch: &Path, mib: u64, groups: usize) -> Result<Kernel, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("they need root".to_owned());
        }
        if !Path::new(CONTROLLER).join("blkio.throttle.read_iops_device").exists() {
            return Err(format!("{CONTROLLER} has no blkio controller of cgroup v1"));
        }
        if !server::has("fio") {
            return Err("fio is not installed".to_owned());
        }
        let file = scratch.join("loop.img");
        server::written_file(&file, mib)?;
        let losetup = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file).output();
        let output = losetup.map_err(|error| format!("Cannot start losetup: {error}"))?;
        if !output.status.success() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let block = Path::new("/sys/block").join(device.trim_start_matches("/dev/"));
        let number = fs::read_to_string(block.join("dev")).unwrap_or_default().trim().to_owned();
        let folder = |index| Path::new(CONTROLLER).join(format!("sluice-bench-{}-{index}", std::process::id()));
        let groups = (0..groups).map(folder).collect();
        let kernel = Kernel { device, queue: block.join("queue"), number, groups };
        for group in &kernel.groups {
            fs::create_dir(group).map_err(|error| format!("Cannot make {}: {error}", group.display()))?;
        }
        Ok(kernel)
    }

    /// Runs three jobs under blk-throttle. Returns IOPS and p99 in microseconds.
    pub(super) fn throttle(&self, limits: &[u64], time: Duration) -> Result<Vec<(f64, f64)>, String> {
        self.set_scheduler("none")?;
        self.set_limits(limits)?;
        let measured = self.jobs(time);
        self.set_limits(&[0; NAMES.len()])?;
        measured
    }

    /// Runs three jobs without a scheduler. Returns IOPS.
    pub(super) fn plain(&self, time: Duration) -> Result<Vec<f64>, String> {
        self.set_scheduler("none")?;
        Ok(self.jobs(time)?.into_iter().map(|(iops, _)| iops).collect())
    }

    /// Runs three jobs under BFQ with weights 100:200:300. Returns IOPS.
    pub(super) fn bfq(&self, time: Duration) -> Result<Vec<f64>, String> {
        self.set_scheduler("bfq")?;
        set(&self.queue.join("iosched/low_latency"), "0")?;
        for (group, weight) in self.groups.iter().zip(["100", "200", "300"]) {
            set(&group.join("blkio.bfq.weight"), weight)?;
        }
        Ok(self.jobs(time)?.into_iter().map(|(iops, _)| iops).collect())
    }

    pub(crate) fn set_scheduler(&self, name: &str) -> Result<(), String> {
        set(&self.queue.join("scheduler"), name)
    }

    fn set_limits(&self, limits: &[u64]) -> Result<(), String> {
        for (group, limit) in self.groups.iter().zip(limits) {
            set(&group.join("blkio.throttle.read_iops_device"), &format!("{} {limit}", self.number))?;
        }
        Ok(())
    }

    fn jobs(&self, time: Duration) -> Result<Vec<(f64, f64)>, String> {
        let job = |(name, group): (&&str, &PathBuf)| {
            let group = group.join("cgroup.procs");
            let fio = format!(
                "echo $$ > {} && exec fio --name={name} --filename={} --ioengine=libaio --direct=1 --bs=8k --rw=randread \
                 --iodepth={DEPTH} --norandommap --time_based --ramp_time=1 --runtime={}ms --minimal",
                group.display(),
                self.device,
                time.as_millis()
            );
            Command::new("sh").args(["-c", &fio]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let jobs: Vec<_> = NAMES.iter().zip(&self.groups).map(job).collect();
        let mut measured = Vec::new();
        for job in jobs {
            let output = job.and_then(std::process::Child::wait_with_output);
            let output = output.map_err(|error| format!("Cannot start fio: {error}"))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let parsed = fio::parse(&text).map(|figures| (figures.iops, figures.p99_us));
            measured
                .push(parsed.ok_or_else(|| {
                    format!("Cannot parse fio's output: {}", String::from_utf8_lossy(&output.stderr))
                })?);
        }
        Ok(measured)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.set_scheduler("none");
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}

pub(crate) fn set(file: &Path, value: &str) -> Result<(), String> {
    fs::write(file, value).map_err(|error| format!("Cannot write {value} to {}: {error}", file.display()))
}
