//! The scene: temporary disks on a device of known capacity, and the host file that serves them.
//!
//! Model: the device works on `PARALLEL` requests at once. One of S bytes takes `t * (1 + S/K)`, t chosen so that
//! requests of 8 KiB come to just `CAPACITY_IOPS`. The cost model charges by the same formula, so the capacity in
//! normalised requests is the same for requests of any size: nobody gets more of the device by asking for more at once.
//!
//! The machine may be busy, and wake a thread up many milliseconds late. A late device thread takes no capacity away,
//! because the depth lets requests for 8 ms wait at the device itself. And every VM has far more outstanding than the
//! device takes at once, so that some of its requests wait at the gate even while it catches up: a VM whose queue is
//! empty asks for nothing, and what it is owed ends there.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sluice_config::Host;
use tempfile::TempDir;

/// What the device does, in requests of 8 KiB per second.
const CAPACITY_IOPS: u64 = 2000;
/// Requests that it works on at once.
const PARALLEL: u64 = 4;
/// Requests that it takes at once.
const DEPTH: u32 = 20;
/// Requests of one VM that are taken in: no less than any VM has outstanding.
const WINDOW: u32 = 128;
/// K: the size at which transferring takes as long as positioning, in bytes.
const KNEE: u64 = 300_000;
/// What counts as one request, in bytes.
const REFERENCE: u64 = 8 << 10;
/// Each disk, in bytes. Sparse: what is not the log is never written, and reading it costs the disk under it nothing.
const DISK_LEN: u64 = 64 << 20;
/// The part of a disk that is written, over and over, in bytes. It is allocated before the start: a write that
/// allocates may wait for the filesystem's journal and holds up reads meanwhile.
pub(super) const LOG_LEN: u64 = 1 << 20;
/// How the temporary folder's name begins.
const PREFIX: &str = "sluice-demo-";
/// A socket's path has room for 107 bytes; this leaves the longest name among them.
const SOCKET_FOLDER_MAX: usize = 90;
/// The name of the device in the host file.
pub(super) const DEVICE: &str = "disk";
/// Protocols, as the host file names them.
const VHOST: &str = "vhost-user-blk";
const NBD: &str = "nbd";
/// The name of each VM's volume.
const VOLUME: &str = "root";

/// How a VM uses its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Reads anywhere, and so many of its outstanding requests write a log, as databases do.
    Random {
        /// Never reads: when the disk under the folder is stuck, and writes with it, reads go on.
        log_writers: u64,
    },
    /// Reads all of it, from the start to the end and again.
    Scan,
}

/// A VM: what it is promised, and what it does.
pub(super) struct Actor {
    /// Its name.
    pub(super) name: &'static str,
    /// Its policy, as lines of the host file.
    policy: &'static str,
    /// How its disk is served, as the host file says it.
    protocol: &'static str,
    /// Requests that it keeps outstanding; a new one follows each reply at once.
    pub(super) outstanding: u32,
    /// Size of its requests, in bytes.
    pub(super) request_len: u32,
    /// Where they go.
    pub(super) pattern: Pattern,
}

/// Place of the VM with the reservation in [`CAST`].
pub(super) const OLTP: usize = 0;
/// Place of the VM with the weight.
pub(super) const WEB: usize = 1;
/// Place of the noisy VM.
pub(super) const BACKUP: usize = 2;

/// Everybody on the device.
pub(super) const CAST: [Actor; 3] = [
    Actor {
        name: "oltp",
        policy: r#"reservation = "800 iops@8KiB""#,
        protocol: VHOST,
        outstanding: 40,
        request_len: 8 << 10,
        pattern: Pattern::Random { log_writers: 2 },
    },
    Actor {
        name: "web",
        policy: "weight = 200",
        protocol: VHOST,
        outstanding: 64,
        request_len: 8 << 10,
        pattern: Pattern::Random { log_writers: 0 },
    },
    Actor {
        name: "backup",
        policy: r#"limit = "600 iops@8KiB""#,
        protocol: NBD,
        outstanding: 128,
        request_len: 64 << 10,
        pattern: Pattern::Scan,
    },
];

/// A temporary folder with a disk for each VM. It goes when this is dropped.
pub(super) struct Stage {
    folder: TempDir,
    /// Of their own where the folder's path is too long for sockets.
    sockets: Option<TempDir>,
}

impl Stage {
    /// Makes the folder and the disks.
    pub(super) fn set() -> io::Result<Self> {
        let prefix = || tempfile::Builder::new().prefix(PREFIX).to_owned();
        let folder = prefix().tempdir()?;
        let is_long = folder.path().as_os_str().len() > SOCKET_FOLDER_MAX;
        let sockets = if is_long { Some(prefix().tempdir_in("/tmp")?) } else { None };
        let stage = Stage { folder, sockets };
        for actor in &CAST {
            let mut disk = File::create_new(stage.disk(actor.name))?;
            disk.set_len(DISK_LEN)?;
            if !matches!(actor.pattern, Pattern::Scan | Pattern::Random { log_writers: 0 }) {
                disk.write_all(&vec![0; LOG_LEN as usize])?;
                disk.sync_data()?;
            }
        }
        Ok(stage)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn socket(&self, vm: &str) -> PathBuf {
        self.sockets.as_ref().unwrap_or(&self.folder).path().join(format!("{vm}.sock"))
    }

    fn disk(&self, vm: &str) -> PathBuf {
        self.folder.path().join(format!("{vm}.img"))
    }

    /// The host file as text: the same VMs and policies, whichever the scheduler. One that does not enforce them needs
    /// `allow_unenforced`, or the file would be refused.
    pub(super) fn host_file(&self, scheduler: &str, buffered: bool) -> String {
        let time_ns = base_time_ns();
        let bandwidth = KNEE * 1_000_000_000 / time_ns;
        let mut text = format!(
            "[device.{DEVICE}]\n\
             path = {path}\n\
             scheduler = \"{scheduler}\"\n\
             depth = {DEPTH}\n\
             window = {{ requests = {WINDOW} }}\n\
             capacity = \"{CAPACITY_IOPS} iops@8KiB\"\n\
             reference_size = \"{REFERENCE}B\"\n\
             rotational = false\n\
             merging = false\n\
             cost = {{ knee = \"{KNEE}B\" }}\n\
             delay = {{ time = \"{time_ns}ns\", parallel = {PARALLEL}, bandwidth = \"{bandwidth}B/s\" }}\n",
            // A file rather than the folder: on some filesystems the two have different device numbers.
            path = quoted(&self.disk(CAST[0].name)),
        );
        let cache = if buffered { "buffered" } else { "direct" };
        for Actor { name, policy, protocol, .. } in &CAST {
            let socket = quoted(&self.socket(name));
            let disk = quoted(&self.disk(name));
            text += &format!(
                "\n[vm.{name}]\n\
                 {policy}\n\
                 allow_unenforced = {}\n\n\
                 [vm.{name}.volume.{VOLUME}]\n\
                 device = \"{DEVICE}\"\n\
                 source = {disk}\n\
                 cache = \"{cache}\"\n\
                 export = {{ type = \"{protocol}\", socket = {socket} }}\n",
                scheduler == "noop",
            );
        }
        text
    }
}

/// The volume of a VM of the demo.
pub(super) fn volume<'a>(host: &'a Host, vm: &str) -> &'a sluice_config::Volume {
    &host.vms[vm].volumes[VOLUME]
}

/// Who is connected how, in words.
pub(super) fn connections() -> String {
    let of = |protocol| {
        let vms = CAST.iter().filter(|actor| actor.protocol == protocol).map(|actor| actor.name);
        vms.collect::<Vec<_>>().join(" and ")
    };
    format!("{} over vhost-user-blk, {} over NBD", of(VHOST), of(NBD))
}

/// How long a request without data takes: such that one of the reference size takes `PARALLEL / CAPACITY_IOPS`.
const fn base_time_ns() -> u64 {
    PARALLEL * 1_000_000_000 * KNEE / (CAPACITY_IOPS * (KNEE + REFERENCE))
}

/// A path as a TOML string; JSON's escapes are among TOML's.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy().as_ref()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_config::{DelayTime, Protocol};
    use sluice_sched::Kind;

    #[test]
    fn both_host_files_are_right_and_differ_by_the_scheduler_alone() {
        let stage = Stage::set().unwrap();
        let parse = |scheduler| sluice_config::parse("demo.toml", &stage.host_file(scheduler, false));
        let (mut noop, mclock) = (parse("noop").unwrap(), parse("mclock").unwrap());
        assert_eq!(mclock.warnings, []);
        assert_eq!(noop.warnings.len(), CAST.len(), "each policy is said not to be enforced");
        noop.warnings.clear();
        noop.devices.get_mut(DEVICE).unwrap().scheduler = mclock.devices[DEVICE].scheduler;
        assert_eq!(noop, mclock);
        let buffered = sluice_config::parse("demo.toml", &stage.host_file("mclock", true)).unwrap();
        assert!(volume(&buffered, "web").buffered);
        let is_nbd = |vm: &Actor| volume(&buffered, vm.name).export.protocol == Protocol::Nbd;
        assert_eq!(CAST.each_ref().map(is_nbd), [false, false, true]);
        assert_eq!(connections(), "oltp and web over vhost-user-blk, backup over NBD");
    }

    #[test]
    fn the_device_takes_as_long_as_the_cost_model_charges() {
        let stage = Stage::set().unwrap();
        let host = sluice_config::parse("demo.toml", &stage.host_file("mclock", false)).unwrap();
        let device = &host.devices[DEVICE];
        let delay = device.delay.as_ref().unwrap();
        let DelayTime::Fixed(time) = delay.time else { panic!("the time is fixed") };
        let bandwidth = delay.bandwidth.unwrap().bytes_per_second() as f64;
        for size in [4 << 10, 8 << 10, 64 << 10, 256 << 10] {
            let service = time.as_secs_f64() + f64::from(size) / bandwidth;
            let capacity = f64::from(delay.parallel) / service * device.cost.cost(Kind::Read, size).as_f64();
            assert!((capacity / CAPACITY_IOPS as f64 - 1.0).abs() < 1e-4, "{size}: {capacity}");
        }
    }

    #[test]
    fn a_path_is_quoted() {
        assert_eq!(quoted(Path::new(r#"/tmp/a "b\c"#)), r#""/tmp/a \"b\\c""#);
    }
}
