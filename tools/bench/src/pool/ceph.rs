//! A Ceph cluster as the storage: each VM has an image of its own, and hosts meet in objects.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::load::VOLUME_MIB;
use crate::server::sluice_binary;

/// Pool of the cluster.
const POOL: &str = "vms";
/// Where hosts meet.
const PLACE: &str = "rados:vms/bench-pool";
/// Seconds for which an OSD holds each request: so the cluster completes some 2,000 requests per second,
/// whatever else this machine does.
const HOLD: &str = "0.0006";

/// A cluster that `cluster.sh` has started.
pub(super) struct Cluster {
    folder: PathBuf,
    run: u32,
}

/// Number of runs of this process.
static RUNS: AtomicU32 = AtomicU32::new(0);

impl Cluster {
    /// Makes the OSDs hold requests, and one image for each volume, filled with data. They go with the cluster.
    ///
    /// # Errors
    /// A command of Ceph has failed.
    pub(super) fn new(folder: &Path, volumes: usize) -> Result<Cluster, String> {
        let cluster = Cluster { folder: folder.to_owned(), run: RUNS.fetch_add(1, Ordering::Relaxed) };
        cluster.hold(false)?;
        for number in 0..volumes {
            let (image, size) = (cluster.image(number), format!("{VOLUME_MIB}M"));
            cluster.run("rbd", &["create", &image, "--size", &size, "--object-size", "128K"])?;
            let fill = ["bench", "--io-type", "write", "--io-size", "1M", "--io-total", &size, "--io-threads", "1"];
            cluster.run("rbd", &[&fill[..], &[&image]].concat())?;
        }
        cluster.hold(true)?;
        Ok(cluster)
    }

    /// New in each run: the lock of an earlier one is that of another host, as its state is gone.
    fn image(&self, number: usize) -> String {
        format!("{POOL}/bench-{}-{}-{number}", std::process::id(), self.run)
    }

    fn hold(&self, holds: bool) -> Result<(), String> {
        let probability = if holds { "1" } else { "0" };
        self.run("ceph", &["config", "set", "osd", "osd_debug_inject_dispatch_delay_duration", HOLD])?;
        self.run("ceph", &["config", "set", "osd", "osd_debug_inject_dispatch_delay_probability", probability])
    }

    fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let done = Command::new(program).env("CEPH_CONF", self.conf()).args(arguments).output();
        let done = done.map_err(|error| format!("Cannot start {program}: {error}"))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr))),
        }
    }

    /// Makes the place where hosts meet.
    pub(super) fn make_place(&self, hosts: u32, capacity: u32) -> Result<PathBuf, String> {
        let mut create = Command::new(sluice_binary());
        create.args(["pool", "create", PLACE, "--force", "--ceph-user", "sluice", "--ceph-conf"]).arg(self.conf());
        create.args(["--hosts", &hosts.to_string(), "--capacity", &format!("{capacity} iops")]);
        let made = create.output().map_err(|error| format!("Cannot start sluice: {error}"))?;
        if made.status.success() { Ok(PLACE.into()) } else { Err(String::from_utf8_lossy(&made.stderr).into_owned()) }
    }

    /// Keys of the device.
    pub(super) fn device(&self) -> String {
        format!("path = \"rbd:{POOL}\"\nceph_user = \"sluice\"\nceph_conf = \"{}\"\n", self.conf().display())
    }

    /// Keys of a volume.
    pub(super) fn volume(&self, number: usize) -> String {
        format!("source = \"rbd:{}\"\n", self.image(number))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.hold(false) {
            eprintln!("{error}");
        }
    }
}
