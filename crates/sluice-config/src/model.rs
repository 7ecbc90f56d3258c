//! The checked contents of a host file: the types that the daemon uses. All of them compare, so a reload can find
//! changes.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_sched::admission::{Capacity, Supply};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{ByteRate, Bytes, CostModel, Descriptor, GateSettings, Policy};

use crate::diagnostics::Diagnostic;

/// A host file without errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// By name.
    pub devices: BTreeMap<String, Device>,
    /// By name. Shared with the hosts before and after a change that does not affect the VM.
    pub vms: BTreeMap<String, Arc<Vm>>,
    /// Endpoints that serve every export by its name.
    pub nbd: NbdSettings,
    /// Settings of the daemon.
    pub daemon: DaemonSettings,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// A disk that VMs share.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub name: String,
    /// The block device, or a file or folder on it; `Some` unless the backend is `Null`.
    pub path: Option<PathBuf>,
    /// Destination of requests.
    pub backend: Backend,
    pub scheduler: &'static Descriptor,
    /// Valid parameters of the scheduler.
    pub params: ParamTable,
    /// Queue depth.
    pub depth: u32,
    /// Sustained worst-case throughput.
    pub capacity: Capacity,
    /// The size that costs exactly 1.
    pub reference: Bytes,
    /// Whether near requests are much cheaper; `None`: as the disk reports.
    pub rotational: Option<bool>,
    /// Whether adjacent requests are merged.
    pub merging: bool,
    /// Whether reservations above the capacity are rejected.
    pub admission: bool,
    /// Maximum outstanding requests of one VM.
    pub window: Window,
    pub cost: CostModel,
    /// Slows a file down to a device of known capacity.
    pub delay: Option<Delay>,
}

impl Device {
    /// Properties for its scheduler, on a disk that reports `rotational`.
    #[must_use]
    pub fn info(&self, rotational: bool) -> DeviceInfo {
        DeviceInfo::of(&self.gate_settings(), self.rotational.unwrap_or(rotational), &self.capacity)
    }

    /// Capacity against which its reservations are checked.
    #[must_use]
    pub fn supply(&self) -> Supply {
        let weight_floor = (self.scheduler.weight_floor)(&self.params);
        Supply { capacity: self.capacity, weight_floor, device_class: self.scheduler.device_class }
    }

    /// Parameters of its gate.
    #[must_use]
    pub fn gate_settings(&self) -> GateSettings {
        GateSettings { depth: self.depth, cost: self.cost, merging: self.merging, ..GateSettings::default() }
    }
}

/// Destination of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The disk.
    Direct,
    /// None: requests complete immediately.
    Null,
}

/// Maximum outstanding requests of one VM; further ones wait in its socket or virtqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Number of requests.
    pub requests: u32,
    /// Bytes of their data.
    pub bytes: u64,
}

/// Behaviour of a file that simulates a slower device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delay {
    /// Time of each request.
    pub time: DelayTime,
    /// Number of requests that are delayed concurrently.
    pub parallel: u32,
    /// Adds the time to transfer the data at this rate.
    pub bandwidth: Option<ByteRate>,
    /// File that gets one line per request.
    pub log: Option<PathBuf>,
    /// Seed of the random times.
    pub seed: u64,
}

/// Time of a delayed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelayTime {
    /// Constant.
    Fixed(Duration),
    /// Exponential with this mean.
    Exponential(Duration),
    /// Uniform; `min < max`.
    Uniform { min: Duration, max: Duration },
}

/// A VM, the owner of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Vm {
    pub name: String,
    /// Applies to its volumes together, on each device that it uses.
    pub policy: Policy,
    /// Whether its limit may delay requests longer than guests wait.
    pub allow_slow: bool,
    /// By name.
    pub volumes: BTreeMap<String, Volume>,
}

/// A virtual disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    pub name: String,
    /// A name in [`Host::devices`].
    pub device: String,
    /// `Some` unless the device's backend is `Null`, which ignores it.
    pub source: Option<PathBuf>,
    /// Start in its source in bytes.
    pub offset: u64,
    /// `None`: up to the end of its source; `Some` if the device's backend is `Null`.
    pub size: Option<u64>,
    pub read_only: bool,
    /// Whether it is said to be raw, whatever it begins with.
    pub is_raw: bool,
    /// Whether it uses the page cache, so that guarantees do not apply.
    pub buffered: bool,
    /// Policy among the volumes of its VM on that device; `Policy::default()` if none is stated.
    pub policy: Policy,
    pub export: VolumeExport,
}

/// Export of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeExport {
    /// Protocol at its endpoint.
    pub protocol: Protocol,
    /// Its socket or address; a socket for vhost-user.
    pub endpoint: Endpoint,
    /// Unique name.
    pub name: String,
}

/// Protocol between VM and daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Network block device.
    Nbd,
    /// vhost-user with a virtio block device.
    VhostUserBlk {
        /// Maximum number of virtqueues.
        queues: u16,
    },
}

/// Endpoint for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix {
        /// At most 107 bytes, the limit of a socket address.
        path: PathBuf,
        /// User name or number; `None`: the daemon's. Whether it exists is checked when the socket is created.
        owner: Option<String>,
        /// Group name or number.
        group: Option<String>,
        /// Permissions, at most `0o777`.
        mode: u32,
    },
    /// An address and a port.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// The path, if it is a Unix socket.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Endpoint::Unix { path, .. } => Some(path),
            Endpoint::Tcp(_) => None,
        }
    }
}

/// `[nbd]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdSettings {
    /// No endpoint, a socket, an address, or both; each serves every export by its name.
    pub endpoints: Vec<Endpoint>,
    /// Maximum number of connections of the host over all sockets; some are reserved for sockets with few.
    pub connections_max: u32,
    /// Memory for the data of requests of all VMs.
    pub memory: Bytes,
}

impl Default for NbdSettings {
    fn default() -> Self {
        NbdSettings { endpoints: Vec::new(), connections_max: 1024, memory: Bytes::mib(1024) }
    }
}

/// `[daemon]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// Maximum time at the end of the daemon for requests in flight.
    pub drain_timeout: Duration,
    /// Control socket; `None`: no changes at run time.
    pub control: Option<PathBuf>,
    /// State directory; `None`: that of the environment, or none.
    pub state: Option<PathBuf>,
    /// Folder that must contain sources named at run time; `None`: any.
    pub source_root: Option<PathBuf>,
}

impl Default for DaemonSettings {
    fn default() -> Self {
        DaemonSettings { drain_timeout: Duration::from_secs(10), control: None, state: None, source_root: None }
    }
}
