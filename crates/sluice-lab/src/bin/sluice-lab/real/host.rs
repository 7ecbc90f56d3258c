//! The disks, the host file and the loads of a trial.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sluice_config::Host;
use sluice_io::store::delay::{DeviceModel, ModelMaker};
use sluice_lab::LabError;
use sluice_lab::real::{Device, Load, Trial, TrialVm};
use sluice_sched::gate::Slot;
use sluice_sched::policy::{Class, PriorityClass};
use sluice_sched::{Instant, Kind, Request};
use sluice_sim::devices::{Job, Model};
use sluice_sim::workloads::Workload;

use super::results::Column;
use sluice_testbed::folder::{Folder, quoted};
use sluice_testbed::load::{LoadVm, Requests};
use sluice_testbed::program::{Ask, Program, ProgramMaker};

/// Prefix of the temporary folder's name.
const PREFIX: &str = "sluice-real-";
/// Capacity that the host file states of a modelled drive, in requests per second. With admission "off" nothing depends on it.
const CAPACITY_OF_DRIVE: f64 = 1000.0;
/// Name of the device in the host file.
const DEVICE: &str = "disk";
/// File of the key that nodes and gateway share, and name of the gateway.
const KEY: &str = "gateway.key";
const GATEWAY: &str = "gateway";
/// Name of each VM's volume.
const VOLUME: &str = "root";
/// Window of a VM: more than any trial's number of outstanding requests.
const WINDOW: u32 = 256;

/// Name of the volume, and of its VM, that is the whole file.
const WHOLE: &str = "whole";

/// A protocol of the disks, and who measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Nbd,
    Vhost,
    /// A guest, over vhost-user-blk, or with a block device of the kernel.
    Guest,
}

impl Protocol {
    /// Those of clients in this process.
    pub(super) const CLIENTS: [Protocol; 2] = [Protocol::Nbd, Protocol::Vhost];

    /// Its column in results.
    pub(super) fn column(self) -> Column {
        match self {
            Protocol::Nbd => Column { name: "nbd", title: "NBD" },
            Protocol::Vhost => Column { name: "vhost-user-blk", title: "VHOST-USER" },
            Protocol::Guest => Column { name: "guest", title: "IN THE GUEST" },
        }
    }

    /// Name in the host file.
    fn export(self) -> &'static str {
        match self {
            Protocol::Nbd => "nbd",
            Protocol::Vhost | Protocol::Guest => "vhost-user-blk",
        }
    }
}

/// A temporary folder with a file, in which the VMs' disks lie side by side. Dropping it removes the folder.
pub(super) struct Fixture(Folder);

impl Fixture {
    /// Creates the folder and the file. For guests all of the file is allocated; otherwise it is sparse.
    pub(super) fn set(trial: &Trial) -> io::Result<Self> {
        let folder = Folder::new(PREFIX)?;
        let len = trial.disks_len();
        folder.make_disk(DEVICE, len, if trial.in_guests { len } else { 0 })?;
        for node in 0..trial.nodes {
            folder.make_disk(&node_name(node), len, 0)?;
        }
        if trial.nodes > 0 {
            let key = folder.path().join(KEY);
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(key)?;
            file.write_all(b"no secret: the folder is this user's alone")?;
        }
        Ok(Fixture(folder))
    }

    /// Returns the folder of sockets.
    pub(super) fn sockets(&self) -> &Path {
        self.0.sockets()
    }

    /// Returns the socket of a VM's disk.
    pub(super) fn socket(&self, vm: &str) -> PathBuf {
        self.0.socket(vm)
    }

    /// Returns the NBD socket of the whole file.
    pub(super) fn whole_socket(&self) -> PathBuf {
        self.socket(WHOLE)
    }

    /// Returns a host file that serves the whole file over NBD, in the order of arrival.
    pub(super) fn whole_file(&self, trial: &Trial, buffered: bool) -> String {
        let volume = Volume { vm: WHOLE, offset: 0, size: trial.disks_len() };
        let mut text = self.device(trial, (DEVICE, 0), "noop");
        text += &format!("\n[vm.{WHOLE}]\n{}", self.volume(&volume, DEVICE, Protocol::Nbd, (buffered, WHOLE)));
        text
    }

    /// Returns the host files of a trial: of its only host, or of its nodes and of the gateway, at which the clients are.
    pub(super) fn host_files(&self, trial: &Trial, protocol: Protocol, buffered: bool) -> Vec<String> {
        if trial.nodes == 0 {
            return vec![self.host_file(trial, protocol, buffered)];
        }
        let nodes = (0..trial.nodes).map(|node| self.node_file(trial, node, buffered));
        nodes.chain([self.gateway_file(trial)]).collect()
    }

    /// A node: with a volume of each VM, and the policies.
    fn node_file(&self, trial: &Trial, node: usize, buffered: bool) -> String {
        let (name, key) = (node_name(node), quoted(&self.0.path().join(KEY)));
        let mut text = format!(
            "[nbd]\nsocket = {}\nnode = \"{name}\"\n[nbd.gateway.{GATEWAY}]\nkey_file = {key}\nvms = \"*\"\n{}",
            quoted(&self.0.socket(&name)),
            self.device(trial, (&name, node), trial.scheduler),
        );
        for (number, vm) in trial.vms.iter().enumerate() {
            let (offset, size) = trial.place(number);
            let volume = Volume { vm: vm.name, offset, size };
            text += &format!("\n[vm.{}]\n{}\n", vm.name, policy(vm, trial.speedup()));
            text += &self.volume(&volume, &name, Protocol::Nbd, (buffered, &format!("{name}-{}", vm.name)));
        }
        text
    }

    /// The gateway: each VM has a disk on each node that it uses.
    fn gateway_file(&self, trial: &Trial) -> String {
        let key = quoted(&self.0.path().join(KEY));
        let mut text = String::new();
        for node in 0..trial.nodes {
            let (name, socket) = (node_name(node), self.0.socket(&node_name(node)));
            let path = quoted(Path::new(&format!("nbd+unix:{}", socket.display())));
            text +=
                &format!("[device.{name}]\npath = {path}\ngateway = {{ name = \"{GATEWAY}\", key_file = {key} }}\n");
            for vm in trial.vms.iter().filter(|vm| vm.node.is_none_or(|only| only == node)) {
                let source = format!("nbd+unix:///{}/{VOLUME}?socket={}", vm.name, socket.display());
                text += &format!(
                    "[vm.{vm}.volume.{name}]\ndevice = \"{name}\"\nsource = {}\nexport = {{ socket = {} }}\n",
                    quoted(Path::new(&source)),
                    quoted(&self.0.socket(&format!("{}-at-{name}", vm.name))),
                    vm = vm.name,
                );
            }
        }
        text
    }

    /// Returns the host file of a trial on one host.
    pub(super) fn host_file(&self, trial: &Trial, protocol: Protocol, buffered: bool) -> String {
        let mut text = self.device(trial, (DEVICE, 0), trial.scheduler);
        if !trial.parameters.is_empty() {
            text += &format!("\n[device.{DEVICE}.{}]\n", trial.scheduler);
            for (name, value) in trial.parameters {
                let is_number = value.parse::<i64>().is_ok();
                let value = if is_number { (*value).to_owned() } else { format!("\"{value}\"") };
                text += &format!("{name} = {value}\n");
            }
        }
        for (number, vm) in trial.vms.iter().enumerate() {
            let (offset, size) = trial.place(number);
            let volume = Volume { vm: vm.name, offset, size };
            text += &format!(
                "\n[vm.{name}]\n{policy}\n{volume}",
                name = vm.name,
                policy = policy(vm, trial.speedup()),
                volume = self.volume(&volume, DEVICE, protocol, (buffered, vm.name)),
            );
        }
        text
    }

    /// Returns the table of the device. With a knee that no request comes near, every request costs the same, as in the simulation.
    fn device(&self, trial: &Trial, (name, node): (&str, usize), scheduler: &str) -> String {
        let nanos = trial.service_time().map_or(0, |time| time.as_nanos());
        let time = match trial.device {
            Device::Constant(_) => format!("\"{nanos}ns\""),
            Device::Servers(_) => format!("{{ mean = \"{nanos}ns\" }}"),
            // The model's completion times replace it.
            Device::Drive { .. } => "\"1ms\"".to_owned(),
        };
        format!(
            "[device.{name}]\n\
             path = {path}\n\
             scheduler = \"{scheduler}\"\n\
             depth = {depth}\n\
             window = {{ requests = {WINDOW} }}\n\
             capacity = \"{capacity:.0} iops@8KiB\"\n\
             admission = \"off\"\n\
             rotational = {rotational}\n\
             merging = false\n\
             cost = {{ knee = \"1GB\" }}\n\
             delay = {{ time = {time}, parallel = {parallel}, seed = {seed} }}\n",
            path = quoted(&self.0.disk(name)),
            parallel = if let Device::Servers(_) = trial.device { trial.depth } else { 1 },
            seed = trial.seed + node as u64 * 100,
            depth = trial.depth,
            rotational = trial.rotational,
            capacity = trial.iops().unwrap_or(CAPACITY_OF_DRIVE) * f64::from(trial.speedup()),
        )
    }

    /// Returns the table of a volume, which is a part of the file.
    fn volume(
        &self,
        volume: &Volume<'_>,
        device: &str,
        protocol: Protocol,
        (buffered, socket): (bool, &str),
    ) -> String {
        format!(
            "[vm.{vm}.volume.{VOLUME}]\n\
             device = \"{device}\"\n\
             source = {disk}\n\
             offset = \"{offset}B\"\n\
             size = \"{size}B\"\n\
             cache = \"{cache}\"\n\
             export = {{ type = \"{protocol}\", socket = {socket} }}\n",
            vm = volume.vm,
            disk = quoted(&self.0.disk(device)),
            offset = volume.offset,
            size = volume.size,
            cache = if buffered { "buffered" } else { "direct" },
            protocol = protocol.export(),
            socket = quoted(&self.0.socket(socket)),
        )
    }
}

/// Name of a node, of its device and of its disk.
fn node_name(node: usize) -> String {
    format!("node{node}")
}

/// A part of the file.
struct Volume<'a> {
    vm: &'a str,
    offset: u64,
    size: u64,
}

/// Returns the policy of a VM as lines of the host file.
fn policy(vm: &TrialVm, speedup: u32) -> String {
    let mut text = format!("weight = {}\n", vm.weight);
    let times = u64::from(speedup);
    for (key, rate) in [("reservation", vm.reservation), ("limit", vm.limit)] {
        if rate > 0 {
            text += &format!("{key} = \"{} iops@8KiB\"\n", rate * times);
        }
    }
    if vm.idle_credit != 1 {
        text += &format!("idle_credit = {}\n", vm.idle_credit);
    }
    if vm.class == Class::Background {
        text += "class = \"background\"\n";
    }
    if vm.priority_class == PriorityClass::RealTime {
        text += "priority_class = \"real-time\"\n";
    }
    if vm.latency_ms > 0 {
        text += &format!("latency = {{ p99 = \"{}ms\" }}\n", vm.latency_ms);
    }
    text
}

/// A model of the simulator as the device. Its addresses are those of the trial's only file.
struct OnModel(Box<dyn Model>);

impl DeviceModel for OnModel {
    fn submit(&mut self, now: Instant, slot: Slot, request: &Request) {
        let Request { kind, offset, length, .. } = *request;
        self.0.submit(now, Job { slot, kind, offset, length });
        self.0.settle(now);
    }

    fn next(&self) -> Option<Instant> {
        self.0.next()
    }

    fn take(&mut self, at: Instant) -> Option<Slot> {
        let slot = self.0.take(at);
        self.0.settle(at);
        slot
    }
}

/// Returns the model of a trial's device, if it has one, with the name of the device.
pub(super) fn model(trial: &Trial) -> Result<Option<(&'static str, ModelMaker)>, LabError> {
    let Device::Drive { .. } = trial.device else { return Ok(None) };
    // A model cannot be sent to the device's thread; that it can be made is checked here.
    drop(trial.model(0)?);
    let trial = trial.clone();
    let make = move || -> Box<dyn DeviceModel> { Box::new(OnModel(trial.model(0).expect("it has been made before"))) };
    Ok(Some((DEVICE, ModelMaker(Arc::new(make)))))
}

/// A workload of the simulator as the program of a client.
struct OnWorkload(Box<dyn Workload>);

impl Program for OnWorkload {
    fn next(&self) -> Option<Duration> {
        self.0.next().map(|at| Duration::from_nanos(at.as_nanos()))
    }

    fn ask(&mut self, now: Duration) -> Ask {
        let request = self.0.ask(simulated(now));
        assert!(matches!(request.kind, Kind::Read | Kind::Write), "trials have no other requests");
        Ask { offset: request.offset, len: request.length, is_read: request.kind == Kind::Read }
    }

    fn completed(&mut self, now: Duration) {
        self.0.completed(simulated(now));
    }
}

/// The time since the start of a VM as a time of its workload.
fn simulated(time: Duration) -> Instant {
    Instant::from_nanos(time.as_nanos() as u64)
}

/// Returns the loads of all VMs: the requests of the simulated run. Every request counts as 1.
pub(super) fn loads(trial: &Trial, host: &Host) -> Vec<LoadVm> {
    let load = |(number, vm): (usize, &TrialVm)| {
        let Load { outstanding, length, .. } = vm.load;
        let (own, trial_of_vm) = (*vm, trial.clone());
        let make = move || -> Box<dyn Program> {
            let workload = trial_of_vm.workload(&own).expect("the simulated run has made it before");
            Box::new(OnWorkload(workload))
        };
        LoadVm {
            name: vm.name,
            exports: host.vms[vm.name].volumes.values().map(|volume| volume.export.clone()).collect(),
            seed: trial.seed * 100 + number as u64,
            outstanding,
            request_len: length,
            cost: 1.0,
            requests: Requests::Program(ProgramMaker(Arc::new(make))),
            starts: vm.start == 0,
            // As DM in Fig. 3 where the reservations take everything.
            may_starve: true,
        }
    };
    trial.vms.iter().enumerate().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_config::DelayTime;
    use sluice_sched::Kind;

    #[test]
    fn host_files_state_the_policies_and_the_device_of_the_simulation() {
        let figures = sluice_lab::real::ALL.iter().chain(sluice_lab::real::IN_GUESTS);
        for trial in figures.flat_map(|figure| (figure.trials)()) {
            let fixture = Fixture::set(&trial).unwrap();
            assert_eq!(model(&trial).unwrap().is_some(), trial.service_time().is_none());
            for (protocol, buffered) in [(Protocol::Nbd, false), (Protocol::Vhost, true), (Protocol::Guest, false)] {
                let text = fixture.host_file(&trial, protocol, buffered);
                let host = sluice_config::parse("trial.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                for vm in &trial.vms {
                    assert_eq!(host.vms[vm.name].policy, vm.policy(trial.speedup()), "{}: {}", trial.name, vm.name);
                    assert_eq!(host.vms[vm.name].volumes[VOLUME].buffered, buffered);
                }
                let places =
                    (0..).zip(&trial.vms).map(|(number, vm)| (trial.place(number), &host.vms[vm.name].volumes[VOLUME]));
                for ((offset, size), volume) in places {
                    assert_eq!((volume.offset, volume.size), (offset, Some(size)), "{}", trial.name);
                    assert!(offset + size <= trial.disks_len());
                }
                let device = &host.devices[DEVICE];
                let delay = device.delay.as_ref().unwrap();
                if let Some(due) = trial.service_time() {
                    let (DelayTime::Fixed(time) | DelayTime::Exponential(time)) = delay.time else {
                        panic!("it is uniform")
                    };
                    assert_eq!(time, due);
                }
                let parallel = if let Device::Servers(_) = trial.device { trial.depth } else { 1 };
                assert_eq!((delay.parallel, device.depth), (parallel, trial.depth));
                for size in [4 << 10, 16 << 10] {
                    assert!((device.cost.cost(Kind::Read, size).as_f64() - 1.0).abs() < 2e-5, "every request costs 1");
                }
                assert!(trial.in_guests || loads(&trial, &host).iter().all(|load| load.outstanding <= WINDOW));
            }
        }
    }

    /// The client's requests are those of the simulated run, and as long as it has room for.
    #[test]
    fn clients_submit_the_requests_of_the_simulated_run() {
        for trial in sluice_lab::real::ALL.iter().flat_map(|figure| (figure.trials)()).filter(|trial| trial.nodes == 0)
        {
            let fixture = Fixture::set(&trial).unwrap();
            let host = sluice_config::parse("trial.toml", &fixture.host_file(&trial, Protocol::Vhost, false)).unwrap();
            for (load, vm) in loads(&trial, &host).iter().zip(&trial.vms) {
                let Requests::Program(ProgramMaker(make)) = &load.requests else {
                    panic!("{} has a program", load.name)
                };
                let (mut program, mut workload) = (make(), trial.workload(vm).unwrap());
                let mut outstanding = 0;
                for _ in 0..200 {
                    let due = program.next().filter(|_| outstanding < load.outstanding);
                    let Some(now) = due else {
                        outstanding -= 1;
                        program.completed(Duration::from_secs(1));
                        workload.completed(Instant::from_millis(1000));
                        continue;
                    };
                    outstanding += 1;
                    let (ask, same) = (program.ask(now), workload.ask(simulated(now)));
                    assert_eq!((ask.offset, ask.len, ask.is_read), (same.offset, same.length, same.kind == Kind::Read));
                    let size = vm.disks * trial.disk_len;
                    assert!(ask.len <= load.request_len && ask.offset + u64::from(ask.len) <= size, "{}", trial.name);
                }
            }
        }
    }

    #[test]
    fn nodes_state_the_policies_and_the_gateway_has_a_disk_at_each() {
        let figures = sluice_lab::real::ALL.iter().flat_map(|figure| (figure.trials)());
        let trials: Vec<Trial> = figures.filter(|trial| trial.nodes > 0).collect();
        assert_eq!(trials.len(), 15);
        for trial in trials {
            let fixture = Fixture::set(&trial).unwrap();
            let texts = fixture.host_files(&trial, Protocol::Nbd, false);
            let parse =
                |text: &String| sluice_config::parse("x.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let hosts: Vec<Host> = texts.iter().map(parse).collect();
            let (gateway, nodes) = hosts.split_last().unwrap();
            assert_eq!((nodes.len(), gateway.devices.len()), (trial.nodes, trial.nodes));
            for (number, node) in nodes.iter().enumerate() {
                let device = &node.devices[&node_name(number)];
                let delay = device.delay.as_ref().unwrap();
                assert_eq!((device.depth, delay.parallel, device.merging), (trial.depth, trial.depth, false));
                assert!((device.cost.cost(Kind::Read, 8 << 10).as_f64() - 1.0).abs() < 2e-5);
                trial.vms.iter().for_each(|vm| assert_eq!(node.vms[vm.name].policy, vm.policy(trial.speedup())));
            }
            for (load, vm) in loads(&trial, gateway).iter().zip(&trial.vms) {
                assert_eq!(load.exports.len(), if vm.node.is_some() { 1 } else { trial.nodes });
            }
        }
    }

    #[test]
    fn the_whole_file_is_served_at_the_rate_of_the_trial() {
        let trial = &(sluice_lab::real::IN_GUESTS[0].trials)()[0];
        let fixture = Fixture::set(trial).unwrap();
        let host = sluice_config::parse("trial.toml", &fixture.whole_file(trial, false)).unwrap();
        let volume = &host.vms[WHOLE].volumes[VOLUME];
        assert_eq!((host.vms.len(), volume.size), (1, Some(3 * trial.disk_len)));
        let delay = host.devices[DEVICE].delay.as_ref().unwrap();
        assert!(matches!(delay.time, DelayTime::Fixed(time) if Some(time) == trial.service_time()));
    }
}
