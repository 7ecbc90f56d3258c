//! The kernel's schedulers on a loop device over a file: blk-throttle (limits) and BFQ (shares).
//! `cargo xtask bench isolation` uses the device and its groups as well.
//!
//! They need root and the blkio controller of cgroup v1. If either is missing, the error says so. The groups and the
//! loop device are removed at the end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sluice_testbed::loop_device::{LoopDevice, set};

use super::super::fio;
use super::super::server;
use super::DEPTH;

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Makes a device over a new file, and `groups` control groups.
pub(crate) fn device(scratch: &Path, mib: u64, groups: usize) -> Result<LoopDevice, String> {
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
    let mut device = LoopDevice::attach(&file)?;
    for index in 0..groups {
        device.add_group(Path::new(CONTROLLER).join(format!("sluice-bench-{}-{index}", std::process::id())))?;
    }
    Ok(device)
}

/// Runs three jobs under blk-throttle. Returns IOPS and p99 in microseconds.
pub(super) fn throttle(device: &LoopDevice, limits: &[u64], time: Duration) -> Result<Vec<(f64, f64)>, String> {
    device.set_scheduler("none")?;
    set_limits(device, limits)?;
    let measured = jobs(device, time);
    set_limits(device, &[0; NAMES.len()])?;
    measured
}

/// Runs three jobs without a scheduler. Returns IOPS.
pub(super) fn plain(device: &LoopDevice, time: Duration) -> Result<Vec<f64>, String> {
    device.set_scheduler("none")?;
    Ok(jobs(device, time)?.into_iter().map(|(iops, _)| iops).collect())
}

/// Runs three jobs under BFQ with weights 100:200:300. Returns IOPS.
pub(super) fn bfq(device: &LoopDevice, time: Duration) -> Result<Vec<f64>, String> {
    device.set_scheduler("bfq")?;
    for (group, weight) in device.groups.iter().zip(["100", "200", "300"]) {
        set(&group.join("blkio.bfq.weight"), weight)?;
    }
    Ok(jobs(device, time)?.into_iter().map(|(iops, _)| iops).collect())
}

fn set_limits(device: &LoopDevice, limits: &[u64]) -> Result<(), String> {
    let number = device.number()?;
    for (group, limit) in device.groups.iter().zip(limits) {
        set(&group.join("blkio.throttle.read_iops_device"), &format!("{number} {limit}"))?;
    }
    Ok(())
}

fn jobs(device: &LoopDevice, time: Duration) -> Result<Vec<(f64, f64)>, String> {
    let job = |(name, group): (&&str, &PathBuf)| {
        let group = group.join("cgroup.procs");
        let fio = format!(
            "echo $$ > {} && exec fio --name={name} --filename={} --ioengine=libaio --direct=1 --bs=8k --rw=randread \
             --iodepth={DEPTH} --norandommap --time_based --ramp_time=1 --runtime={}ms --minimal",
            group.display(),
            device.path,
            time.as_millis()
        );
        Command::new("sh").args(["-c", &fio]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let jobs: Vec<_> = NAMES.iter().zip(&device.groups).map(job).collect();
    let mut measured = Vec::new();
    for job in jobs {
        let output = job.and_then(std::process::Child::wait_with_output);
        let output = output.map_err(|error| format!("Cannot start fio: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let parsed = fio::parse(&text).map(|figures| (figures.iops, figures.p99_us));
        measured.push(
            parsed.ok_or_else(|| format!("Cannot parse fio's output: {}", String::from_utf8_lossy(&output.stderr)))?,
        );
    }
    Ok(measured)
}
