//! What a host file says, checked: the types that the daemon works with. All of them compare, so that a reload can
//! tell what has changed.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_sched::admission::{Capacity, Supply};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::Facts;
use sluice_sched::{ByteRate, Bytes, CostModel, Descriptor, GateSettings, Policy};

use crate::diagnostics::Diagnostic;

/// A host file without errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// By name.
    pub devices: BTreeMap<String, Device>,
    /// By name. Shared with the hosts before and after a change that does not concern the VM.
    pub vms: BTreeMap<String, Arc<Vm>>,
    /// What serves every export by its name.
    pub nbd: NbdSettings,
    /// The daemon itself.
    pub daemon: DaemonSettings,
    /// What somebody should know.
    pub warnings: Vec<Diagnostic>,
}

/// A disk that VMs share.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// As in the file.
    pub name: String,
    /// The block device, or a file or folder on it; there unless the backend is `Null`.
    pub path: Option<PathBuf>,
    /// Where requests go.
    pub backend: Backend,
    /// Who decides.
    pub scheduler: &'static Descriptor,
    /// Its parameters; `(scheduler.build)` accepts them.
    pub params: ParamTable,
    /// Requests that the device takes at once.
    pub depth: u32,
    /// What it can be relied on to do.
    pub capacity: Capacity,
    /// The size that costs exactly 1.
    pub reference: Bytes,
    /// Whether near requests are much cheaper; `None`: as the disk says.
    pub rotational: Option<bool>,
    /// Whether neighbouring requests are merged.
    pub merging: bool,
    /// Whether reservations above the capacity are refused.
    pub admission: bool,
    /// How much of one VM's work is taken in.
    pub window: Window,
    /// What a request costs.
    pub cost: CostModel,
    /// Makes of any file a device of known capacity.
    pub delay: Option<Delay>,
}

impl Device {
    /// What its scheduler may know of it, on a disk that says `rotational` of itself.
    #[must_use]
    pub fn facts(&self, rotational: bool) -> Facts {
        Facts::of(&self.gate_settings(), self.rotational.unwrap_or(rotational), &self.capacity)
    }

    /// What reservations on it are checked against.
    #[must_use]
    pub fn supply(&self) -> Supply {
        let weight_floor = (self.scheduler.weight_floor)(&self.params);
        Supply { capacity: self.capacity, weight_floor, medium: self.scheduler.medium }
    }

    /// The bounds of its gate.
    #[must_use]
    pub fn gate_settings(&self) -> GateSettings {
        GateSettings { depth: self.depth, cost: self.cost, merging: self.merging, ..GateSettings::default() }
    }
}

/// Where requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// To the disk.
    Direct,
    /// Nowhere: they complete at once.
    Null,
}

/// How much of one VM's work is taken in; the rest waits in its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Requests.
    pub requests: u32,
    /// Data of those requests.
    pub bytes: u64,
}

/// How a file behaves that plays a slower device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delay {
    /// How long each request takes.
    pub time: DelayTime,
    /// Requests that are delayed side by side.
    pub parallel: u32,
    /// Adds the time to transfer the data at this rate.
    pub bandwidth: Option<ByteRate>,
    /// Gets one line per request.
    pub log: Option<PathBuf>,
    /// Where the random times start.
    pub seed: u64,
}

/// How long a delayed request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelayTime {
    /// Always the same.
    Fixed(Duration),
    /// Exponential, of this mean.
    Exponential(Duration),
    /// Anything between, equally likely; `min < max`.
    Uniform {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
}

/// A VM: the one who is promised something.
#[derive(Debug, Clone, PartialEq)]
pub struct Vm {
    /// As in the file.
    pub name: String,
    /// Holds for its volumes together, on each device that it uses.
    pub policy: Policy,
    /// Its limit may hold requests longer than guests wait.
    pub allow_slow: bool,
    /// By name.
    pub volumes: BTreeMap<String, Volume>,
}

/// A virtual disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// As in the file.
    pub name: String,
    /// A name in [`Host::devices`].
    pub device: String,
    /// There unless the device's backend is `Null`, where it is not used.
    pub source: Option<PathBuf>,
    /// Where it starts in its source.
    pub offset: u64,
    /// `None`: up to the end of its source; there if the device's backend is `Null`.
    pub size: Option<u64>,
    /// Refuses writes.
    pub read_only: bool,
    /// Goes through the page cache, where no promise holds.
    pub buffered: bool,
    /// Among the volumes of its VM on that device; `Policy::default()` where nothing is said.
    pub policy: Policy,
    /// How the VM reaches it.
    pub export: VolumeExport,
}

/// How a volume is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeExport {
    /// What is spoken at its endpoint.
    pub protocol: Protocol,
    /// Its own socket or address; for vhost-user always a socket.
    pub endpoint: Endpoint,
    /// Its name, which no other export has.
    pub name: String,
}

/// What a VM speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Network block device.
    Nbd,
    /// vhost-user with a virtio block device.
    VhostUserBlk {
        /// Most virtqueues.
        queues: u16,
    },
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix {
        /// At most 107 bytes, which is what an address has room for.
        path: PathBuf,
        /// A user's name or number; `None`: the daemon's. Whether it exists is seen when the socket is made.
        owner: Option<String>,
        /// A group's name or number.
        group: Option<String>,
        /// Permissions, at most `0o777`.
        mode: u32,
    },
    /// An address and a port.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// The path of its socket, if it is one.
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
    /// None, a socket, an address, or both: there every export is served by its name.
    pub endpoints: Vec<Endpoint>,
    /// Connections of the host, all sockets together; some are kept for sockets that have few.
    pub connections_max: u32,
}

impl Default for NbdSettings {
    fn default() -> Self {
        NbdSettings { endpoints: Vec::new(), connections_max: 1024 }
    }
}

/// `[daemon]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// How long the daemon waits at its end for what is in flight.
    pub drain_timeout: Duration,
    /// Where it takes changes; `None`: nowhere.
    pub control: Option<PathBuf>,
    /// The folder in which sources that are named at run time must lie; `None`: anywhere.
    pub source_root: Option<PathBuf>,
}

impl Default for DaemonSettings {
    fn default() -> Self {
        DaemonSettings { drain_timeout: Duration::from_secs(10), control: None, source_root: None }
    }
}
