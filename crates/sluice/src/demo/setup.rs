//! Fixture of the demo: temporary disks on a device of known capacity, and the host file that serves them.
//!
//! The device works on `PARALLEL` requests concurrently. A request of S bytes takes `t * (1 + S/K)`, with t chosen so
//! that requests of 8 KiB reach exactly `CAPACITY_IOPS`. The cost model uses the same formula, so the capacity in
//! normalised requests is the same for requests of any size: larger requests gain no VM a larger part of the device.
//!
//! A busy machine may wake a thread many milliseconds late. A late device thread loses no capacity, because the
//! device's depth holds requests for 8 ms. And every VM has far more requests outstanding than the device's depth, so
//! some of them are queued at the gate even while it catches up. This matters because a VM whose queue is empty loses
//! its claim to missed service.

use std::io;

use sluice_config::Host;
use sluice_sched::Kind;

use sluice_testbed::folder::{Folder, quoted};
use sluice_testbed::load::{LOG_LEN, LoadVm, Pattern, Requests};

/// Capacity of the device, in requests of 8 KiB per second.
const CAPACITY_IOPS: u64 = 2000;
/// Number of requests that the device works on concurrently.
const PARALLEL: u64 = 4;
/// Queue depth of the device.
const DEPTH: u32 = 20;
/// Window of a VM: at least the number of its outstanding requests.
const WINDOW: u32 = 128;
/// K: the size at which transferring takes as long as positioning, in bytes.
const KNEE: u64 = 300_000;
/// Reference size, in bytes.
const REFERENCE: u64 = 8 << 10;
/// Size of each disk, in bytes. The disks are sparse: only the log is written, and reading the rest costs the real
/// disk nothing.
const DISK_LEN: u64 = 64 << 20;
/// Prefix of the temporary folder's name.
const PREFIX: &str = "sluice-demo-";
/// Name of the device in the host file.
pub(super) const DEVICE: &str = "disk";
/// Protocols, as named in the host file.
const VHOST: &str = "vhost-user-blk";
const NBD: &str = "nbd";
/// Name of each VM's volume.
const VOLUME: &str = "root";

/// A VM: its policy and its load.
pub(super) struct DemoVm {
    pub(super) name: &'static str,
    /// Its policy, as lines of the host file.
    policy: &'static str,
    /// Protocol of its disk, as named in the host file.
    protocol: &'static str,
    /// Number of outstanding requests; each reply is followed by a new one.
    pub(super) outstanding: u32,
    /// Length of its requests, in bytes.
    pub(super) request_len: u32,
    pub(super) pattern: Pattern,
}

/// Index of the VM with the reservation in [`VMS`].
pub(super) const OLTP: usize = 0;
/// Index of the VM with the weight.
pub(super) const WEB: usize = 1;
/// Index of the noisy VM.
pub(super) const BACKUP: usize = 2;

/// All VMs.
pub(super) const VMS: [DemoVm; 3] = [
    DemoVm {
        name: "oltp",
        policy: r#"reservation = "800 iops@8KiB""#,
        protocol: VHOST,
        outstanding: 40,
        request_len: 8 << 10,
        pattern: Pattern::Random { log_writers: 2 },
    },
    DemoVm {
        name: "web",
        policy: "weight = 200",
        protocol: VHOST,
        outstanding: 64,
        request_len: 8 << 10,
        pattern: Pattern::Random { log_writers: 0 },
    },
    DemoVm {
        name: "backup",
        policy: r#"limit = "600 iops@8KiB""#,
        protocol: NBD,
        outstanding: 128,
        request_len: 64 << 10,
        pattern: Pattern::Scan,
    },
];

/// A temporary folder with a disk for each VM. Dropping it removes the folder.
pub(super) struct Fixture(pub(super) Folder);

impl Fixture {
    /// Creates the folder and the disks.
    pub(super) fn set() -> io::Result<Self> {
        let folder = Folder::new(PREFIX)?;
        for demo_vm in &VMS {
            let writes = !matches!(demo_vm.pattern, Pattern::Scan | Pattern::Random { log_writers: 0 });
            folder.make_disk(demo_vm.name, DISK_LEN, if writes { LOG_LEN } else { 0 })?;
        }
        Ok(Fixture(folder))
    }

    /// Returns the host file: the same VMs and policies for every scheduler. noop does not enforce them and needs
    /// `allow_unenforced`, because the file would be rejected otherwise.
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
            // A file and not the folder: on some file systems the two have different device numbers.
            path = quoted(&self.0.disk(VMS[0].name)),
        );
        let cache = if buffered { "buffered" } else { "direct" };
        for DemoVm { name, policy, protocol, .. } in &VMS {
            let socket = quoted(&self.0.socket(name));
            let disk = quoted(&self.0.disk(name));
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

/// Returns the volume of a VM of the demo.
pub(super) fn volume<'a>(host: &'a Host, vm: &str) -> &'a sluice_config::Volume {
    &host.vms[vm].volumes[VOLUME]
}

/// Describes the connection of each VM.
pub(super) fn connections() -> String {
    let of = |protocol| {
        let vms = VMS.iter().filter(|demo_vm| demo_vm.protocol == protocol).map(|demo_vm| demo_vm.name);
        vms.collect::<Vec<_>>().join(" and ")
    };
    format!("{} over vhost-user-blk, {} over NBD", of(VHOST), of(NBD))
}

/// Returns the time of a request without data, such that one of the reference size takes `PARALLEL / CAPACITY_IOPS`.
const fn base_time_ns() -> u64 {
    PARALLEL * 1_000_000_000 * KNEE / (CAPACITY_IOPS * (KNEE + REFERENCE))
}

/// Returns the load of all VMs.
pub(super) fn loads(host: &Host) -> Vec<LoadVm> {
    let load = |demo_vm: &DemoVm| LoadVm {
        name: demo_vm.name,
        exports: vec![volume(host, demo_vm.name).export.clone()],
        seed: 0,
        outstanding: demo_vm.outstanding,
        request_len: demo_vm.request_len,
        cost: host.devices[DEVICE].cost.cost(Kind::Read, demo_vm.request_len).as_f64(),
        requests: Requests::Pattern(demo_vm.pattern),
        starts: true,
        may_starve: false,
    };
    VMS.iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_config::{DelayTime, Protocol};
    use sluice_sched::Kind;

    #[test]
    fn both_host_files_are_valid_and_differ_only_in_the_scheduler() {
        let fixture = Fixture::set().unwrap();
        let parse = |scheduler| sluice_config::parse("demo.toml", &fixture.host_file(scheduler, false));
        let (mut noop, mclock) = (parse("noop").unwrap(), parse("mclock").unwrap());
        assert_eq!(mclock.warnings, []);
        assert_eq!(noop.warnings.len(), VMS.len(), "each policy causes a warning that it is not enforced");
        noop.warnings.clear();
        noop.devices.get_mut(DEVICE).unwrap().scheduler = mclock.devices[DEVICE].scheduler;
        assert_eq!(noop, mclock);
        let buffered = sluice_config::parse("demo.toml", &fixture.host_file("mclock", true)).unwrap();
        assert!(volume(&buffered, "web").buffered);
        let is_nbd = |vm: &DemoVm| volume(&buffered, vm.name).export.protocol == Protocol::Nbd;
        assert_eq!(VMS.each_ref().map(is_nbd), [false, false, true]);
        assert_eq!(connections(), "oltp and web over vhost-user-blk, backup over NBD");
    }

    #[test]
    fn the_device_time_matches_the_cost_model() {
        let fixture = Fixture::set().unwrap();
        let host = sluice_config::parse("demo.toml", &fixture.host_file("mclock", false)).unwrap();
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
}
