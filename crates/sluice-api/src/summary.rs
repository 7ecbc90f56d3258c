//! Whether all is well: the state without the figures of each VM.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::object::ObjectId;
use crate::status::{
    ClientFaults, Cpu, DaemonState, Device, Failing, FileSystem, Health, InterfaceOutage, NotServed, Promise, RealTime,
    SetAside, State, Status, Vm,
};

/// Number of VMs whose CPU time is stated: those that use most.
const CPU_SHOWN: usize = 5;

/// The summary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Summary {
    pub version: u32,
    /// Whether every promise is kept, every device serves, every volume is in service and has not lost its client, and no requests fail.
    pub ok: bool,
    /// Seconds since 1970.
    pub time: u64,
    /// Number of VMs, each counted once for each of its devices.
    pub vms: usize,
    pub promises: Promises,
    pub broken: Vec<BrokenPromise>,
    pub real_time: RealTime,
    pub cpu: CpuUse,
    pub devices: Vec<Device>,
    pub out_of_service: Vec<ObjectId>,
    pub interfaces_out_of_service: Vec<InterfaceOutage>,
    pub volumes_out_of_service: Vec<NotServed>,
    pub held_back: Vec<NotServed>,
    pub overrides_set_aside: Vec<SetAside>,
    #[serde(flatten)]
    pub daemon: DaemonState,
    /// Volumes and NICs with stopped queues or refused requests.
    pub faults: Vec<Fault>,
    pub failing: Vec<FailingVolume>,
    pub file_systems: Vec<FileSystem>,
}

/// Numbers of promises, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Promises {
    pub kept: usize,
    pub not_asked: usize,
    pub broken: usize,
    pub unknown: usize,
}

/// A promise to a VM, or to its volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BrokenPromise {
    pub vm: String,
    pub volume: Option<String>,
    pub device: String,
    #[serde(flatten)]
    pub promise: Promise,
}

/// CPU time of the daemon for all VMs in the last ten seconds, in percent of one CPU, and the VMs that used most of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CpuUse {
    pub used_percent: f64,
    /// Number of VMs that used any.
    pub users: usize,
    pub most: Vec<CpuUser>,
}

/// A VM that used CPU time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CpuUser {
    pub vm: String,
    pub device: String,
    #[serde(flatten)]
    pub cpu: Cpu,
}

/// A volume or NIC with stopped queues or refused requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Fault {
    pub vm: String,
    pub volume: String,
    pub device: String,
    #[serde(flatten)]
    pub faults: ClientFaults,
}

/// A volume whose requests fail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailingVolume {
    pub volume: ObjectId,
    pub device: String,
    #[serde(flatten)]
    pub failing: Failing,
}

impl From<Status> for Summary {
    fn from(status: Status) -> Summary {
        let vms = || status.vms.iter();
        let count = |state| vms().flat_map(Vm::all_promises).filter(|(_, promise)| promise.state == state).count();
        let promises = Promises {
            kept: count(State::Kept),
            not_asked: count(State::NotAsked),
            broken: count(State::Broken),
            unknown: count(State::Unknown),
        };
        let mut summary = Summary {
            version: status.version,
            ok: false,
            time: status.time,
            vms: status.vms.len(),
            promises,
            broken: vms().flat_map(broken).collect(),
            real_time: status.real_time,
            cpu: cpu(&status.vms),
            faults: status.volumes().filter_map(fault).collect(),
            failing: status.volumes().flat_map(failing).collect(),
            devices: status.devices,
            out_of_service: status.out_of_service,
            interfaces_out_of_service: status.interfaces_out_of_service,
            volumes_out_of_service: status.volumes_out_of_service,
            held_back: status.held_back,
            overrides_set_aside: status.overrides_set_aside,
            daemon: status.daemon,
            file_systems: status.file_systems,
        };
        summary.ok = summary.broken.is_empty()
            && summary.failing.is_empty()
            && summary.devices.iter().all(|device| device.health == Health::Serving)
            && summary.out_of_service.is_empty()
            && summary.held_back.is_empty()
            && summary.daemon.lost_clients.is_empty();
        summary
    }
}

fn broken(vm: &Vm) -> impl Iterator<Item = BrokenPromise> {
    let broken = vm.all_promises().filter(|(_, promise)| promise.state == State::Broken);
    broken.map(|(volume, promise)| BrokenPromise {
        vm: vm.vm.clone(),
        volume: volume.map(|volume| volume.volume.clone()),
        device: vm.device.clone(),
        promise: promise.clone(),
    })
}

fn fault(volume: &crate::status::Volume) -> Option<Fault> {
    volume.client_faults.are_there().then(|| Fault {
        vm: volume.vm.clone(),
        volume: volume.volume.clone(),
        device: volume.device.clone(),
        faults: volume.client_faults.clone(),
    })
}

fn failing(volume: &crate::status::Volume) -> impl Iterator<Item = FailingVolume> {
    volume.failing.iter().map(|failing| FailingVolume {
        volume: volume.id(),
        device: volume.device.clone(),
        failing: failing.clone(),
    })
}

fn cpu(vms: &[Vm]) -> CpuUse {
    let mut users: Vec<&Vm> = vms.iter().filter(|vm| vm.cpu.used_percent > 0.0).collect();
    // Stable, so that equal VMs keep their order.
    users.sort_by(|one, other| other.cpu.used_percent.total_cmp(&one.cpu.used_percent));
    // The sum of no numbers is -0.0.
    let sum = users.iter().map(|vm| vm.cpu.used_percent).sum::<f64>() + 0.0;
    let most = users.iter().take(CPU_SHOWN);
    CpuUse {
        used_percent: (sum * 100.0).round() / 100.0,
        users: users.len(),
        most: most.map(|vm| CpuUser { vm: vm.vm.clone(), device: vm.device.clone(), cpu: vm.cpu }).collect(),
    }
}
