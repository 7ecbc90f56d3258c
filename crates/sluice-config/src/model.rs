//! The checked contents of a host file: the types that the daemon uses. All of them compare, so a reload can find
//! changes.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_pool::Aim;
use sluice_pool::exchange::HOST_IOPS;
use sluice_sched::admission::{Capacity, Supply};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::{ByteRate, Bytes, CostModel, Descriptor, GateSettings, Iops, Percent, Policy};

use crate::alert::Alert;
use crate::diagnostics::Diagnostic;
use crate::disk_path::DiskPath;
use crate::meeting::Meeting;
use crate::node::{NodeAddress, NodeExport};
use crate::rbd::{RbdImage, RbdPool};

mod jail;
mod net;

pub use jail::{Jail, Layer};
pub use net::{NetPolicy, Nic, NicAccess, Port, Receive, Uplink};

/// A host file without errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// By name.
    pub devices: BTreeMap<String, Device>,
    /// By name; none has the name of a device.
    pub uplinks: BTreeMap<String, Uplink>,
    /// By name. Shared with the hosts before and after a change that does not affect the VM.
    pub vms: BTreeMap<String, Arc<Vm>>,
    /// Named policies as they are stated, by name. A VM or volume that holds one may override fields of it.
    pub policies: BTreeMap<String, Policy>,
    /// Network halves of the same policies.
    pub net_policies: BTreeMap<String, NetPolicy>,
    /// Endpoints that serve every export by its name.
    pub nbd: NbdSettings,
    /// Settings of the daemon.
    pub daemon: DaemonSettings,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// A disk or several that VMs share, or the link of an [`Uplink`].
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub name: String,
    /// Kind of its table: `device` or `uplink`.
    pub table: &'static str,
    pub device_class: DeviceClass,
    /// Paths of its disks; at least one if the backend is `Direct`, none otherwise.
    pub paths: Vec<DiskPath>,
    /// Destination of requests.
    pub backend: Backend,
    pub scheduler: &'static Descriptor,
    /// Valid parameters of the scheduler.
    pub params: ParamTable,
    /// Queue depth.
    pub depth: u32,
    /// Sustained worst-case throughput.
    pub capacity: Capacity,
    /// Mean time of a request at the device from which on it counts as full; `Some` only if `capacity` states requests.
    pub latency: Option<Duration>,
    /// The size that costs exactly 1.
    pub reference: Bytes,
    /// Whether near requests are much cheaper; `None`: as the disk reports.
    pub rotational: Option<bool>,
    /// Whether adjacent requests are merged.
    pub merging: bool,
    /// Whether its thread never sleeps while it has clients.
    pub busy_poll: bool,
    /// Whether reservations above the capacity are rejected.
    pub admission: bool,
    /// The part of the capacity that may be reserved at most; the whole of a disk, from which the scheduler keeps its floor.
    pub reservable: Percent,
    /// Maximum outstanding requests of one VM.
    pub window: Window,
    pub cost: CostModel,
    /// The pool that it is a part of; `Some` only with `latency`.
    pub pool: Option<Pool>,
    /// Slows a file down to a device of known capacity.
    pub delay: Option<Delay>,
}

/// Another NBD server as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub address: NodeAddress,
    /// Whether requests that it may have carried out are sent again after a lost connection, even if that may undo later ones.
    pub resends_all: bool,
    /// This host as a gateway of it.
    pub gateway: Option<Box<AsGateway>>,
    pub tls: Option<Box<NodeTls>>,
}

/// A pool of a Ceph cluster as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceph {
    pub pool: RbdPool,
    /// Its configuration file.
    pub conf: PathBuf,
    /// The user without `client.` in front.
    pub user: String,
}

/// TLS to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTls {
    pub ca: PathBuf,
    /// Name of the server in its certificate.
    pub name: String,
    /// Own certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// This host as a gateway of a storage node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsGateway {
    /// Name of this host there.
    pub name: String,
    /// Name of the node.
    pub node: String,
    /// File of the key that both have.
    pub key_file: PathBuf,
}

/// Where the data of a volume are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// Nowhere: the device's backend is `Null`, or the file has an error.
    Nothing,
    /// A file or block device.
    File(PathBuf),
    /// On the server that its device is.
    Nbd(NodeExport),
    /// In the pool that its device is.
    Rbd(RbdImage),
}

impl VolumeSource {
    /// The path of a file or block device.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        if let VolumeSource::File(path) = self { Some(path) } else { None }
    }

    /// As it is written.
    #[must_use]
    pub fn stated(&self) -> Option<PathBuf> {
        match self {
            VolumeSource::Nothing => None,
            VolumeSource::File(path) => Some(path.clone()),
            VolumeSource::Nbd(export) => Some(export.to_string().into()),
            VolumeSource::Rbd(image) => Some(image.to_string().into()),
        }
    }
}

/// Storage that hosts share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    pub meeting: Meeting,
    /// Number of this host, from 1.
    pub host: u8,
}

impl Device {
    /// Whether a storage node enforces the policies of its VMs, and not its own scheduler.
    #[must_use]
    pub fn is_enforced_by_node(&self) -> bool {
        matches!(&self.backend, Backend::Nbd(Node { gateway: Some(_), .. }))
    }

    /// Its name in messages: `device nvme0`, `uplink lan`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.table, self.name)
    }

    /// Its name at the start of a message: `Device nvme0`.
    #[must_use]
    pub fn heading(&self) -> String {
        let mut title = self.title();
        title[..1].make_ascii_uppercase();
        title
    }

    /// Whether its disks may become more while it runs: its path is a list or a pattern.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.paths.len() > 1 || self.paths.iter().any(DiskPath::is_pattern)
    }

    /// Properties for its scheduler, on a disk that reports `rotational`.
    #[must_use]
    pub fn info(&self, rotational: bool) -> DeviceInfo {
        DeviceInfo::of(&self.gate_settings(), self.rotational.unwrap_or(rotational), &self.capacity)
    }

    /// Capacity against which its reservations are checked, without the requests by which this host meets the others of a pool. A
    /// request of cost 1 has the reference size, so the device gives at most as many as its bandwidth carries of that size.
    #[must_use]
    pub fn supply(&self) -> Supply {
        let weight_floor = (self.scheduler.weight_floor)(&self.params);
        let Capacity { iops, bytes } = self.capacity;
        let carried = bytes.map(|rate| {
            let milli = u128::from(rate.bytes_per_second()) * 1000 / u128::from(self.reference.0.max(1));
            Iops::from_milli(u64::try_from(milli).unwrap_or(u64::MAX))
        });
        let exchange = self.pool.as_ref().map_or(0, |_| 1000 * HOST_IOPS);
        let iops = iops.map(|iops| Iops::from_milli(iops.milli().saturating_sub(exchange).max(1)));
        let iops = iops.map(|iops| carried.map_or(iops, |carried| carried.min(iops)));
        let Device { reservable, device_class, .. } = *self;
        Supply { capacity: Capacity { iops, bytes }, weight_floor, reservable, device_class }
    }

    /// The largest request with which these reservations are met at the same time; see [`Supply::request_max`].
    #[must_use]
    pub fn request_max<'a>(&self, policies: impl IntoIterator<Item = &'a Policy>) -> Option<Bytes> {
        self.supply().request_max(policies, &self.cost, self.gate_settings().transfer_max)
    }

    /// The aim of its window, if what is in flight follows the time of requests.
    #[must_use]
    pub fn aim(&self) -> Option<Aim> {
        Some(Aim::new(self.capacity.iops?, self.latency?))
    }

    /// Parameters of its gate.
    #[must_use]
    pub fn gate_settings(&self) -> GateSettings {
        GateSettings {
            depth: self.depth,
            cost: self.cost,
            request_bytes: self.capacity.request_bytes().unwrap_or(self.cost.reference_size()),
            merging: self.merging,
            device_class: self.device_class,
            ..GateSettings::default()
        }
    }
}

/// Destination of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// The disk.
    Direct,
    /// Another NBD server.
    Nbd(Node),
    /// A pool of a Ceph cluster.
    Rbd(Ceph),
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
    /// The named policy that it holds.
    pub policy_name: Option<String>,
    /// Applies to its volumes together, on each device that it uses.
    pub policy: Policy,
    /// Part of a CPU that the daemon uses for it at most, on each device and each uplink.
    pub cpu_limit: Option<Percent>,
    /// Whether its limit may delay requests longer than guests wait.
    pub allow_slow: bool,
    /// By name. Shared with the draft of the VM.
    pub volumes: BTreeMap<String, Arc<Volume>>,
    /// Policy of its NICs on each uplink.
    pub net: NetPolicy,
    /// By name.
    pub nics: BTreeMap<String, Nic>,
}

impl Vm {
    /// Returns a volume by its name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.get(name).map(Arc::as_ref)
    }
}

/// A virtual disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    pub name: String,
    /// A name in [`Host::devices`].
    pub device: String,
    pub source: VolumeSource,
    /// Start in its source in bytes.
    pub offset: u64,
    /// `None`: up to the end of its source; `Some` if the device's backend is `Null`.
    pub size: Option<u64>,
    pub read_only: bool,
    /// Whether it is said to be raw, whatever it begins with.
    pub is_raw: bool,
    /// Whether it uses the page cache, so that guarantees do not apply.
    pub buffered: bool,
    /// Logical block size of the guest's disk in bytes, a power of two; `None`: not stated.
    pub block_size: Option<u32>,
    /// Whether discards of the guest free space.
    pub unmaps: bool,
    /// Serial number, 1 to 20 printable ASCII characters; no other volume of the VM has it.
    pub serial: String,
    /// The named policy that it holds.
    pub policy_name: Option<String>,
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
    pub endpoint: ListenAddress,
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

/// ListenAddress for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
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

impl ListenAddress {
    /// The path, if it is a Unix socket.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        match self {
            ListenAddress::Unix { path, .. } => Some(path),
            ListenAddress::Tcp(_) => None,
        }
    }
}

/// `[nbd]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdSettings {
    /// No endpoint, a socket, an address, or both; each serves every export by its name.
    pub endpoints: Vec<ListenAddress>,
    /// Maximum number of connections of the host over all sockets; some are reserved for sockets with few.
    pub connections_max: u32,
    /// Memory for the data of requests of all VMs.
    pub memory: Bytes,
    /// Name of this host as a storage node; not empty if there are gateways.
    pub node: String,
    pub gateways: BTreeMap<String, NbdGateway>,
    pub tls: Option<NbdTls>,
}

/// `[nbd.tls]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdTls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
    /// Exports by the name of a client; some end with `*`.
    pub clients: BTreeMap<String, Vec<String>>,
}

/// `[nbd.gateway.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdGateway {
    /// File of the key that both have.
    pub key_file: PathBuf,
    /// Names of VMs, or `*`.
    pub vms: Vec<String>,
}

impl Default for NbdSettings {
    fn default() -> Self {
        NbdSettings {
            endpoints: Vec::new(),
            connections_max: 1024,
            memory: Bytes::mib(1024),
            node: String::new(),
            gateways: BTreeMap::new(),
            tls: None,
        }
    }
}

/// `[daemon]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// Maximum time at the end of the daemon for requests in flight.
    pub drain_timeout: Duration,
    /// Control socket.
    pub control: Control,
    /// Rights of its clients.
    pub access: Access,
    /// Address of the metrics: a Unix socket, or an address that only this host reaches. `None`: they are not served.
    pub metrics: Option<ListenAddress>,
    /// State directory; `None`: that of the environment, or none.
    pub state: Option<PathBuf>,
    /// Folder that must contain sources named at run time; `None`: any.
    pub source_root: Option<PathBuf>,
    /// Whether its device threads have real-time priority, where the kernel allows it.
    pub real_time: bool,
    /// How it seals itself.
    pub jail: Jail,
    /// Recipients of events.
    pub alerts: Vec<Alert>,
    /// How long the past is kept.
    pub history: History,
}

/// `[daemon.history]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Minutes.
    pub minutes: Duration,
    /// Quarters of an hour.
    pub quarter_hours: Duration,
}

impl Default for History {
    fn default() -> Self {
        History { minutes: Duration::from_hours(7 * 24), quarter_hours: Duration::from_hours(35 * 24) }
    }
}

impl Default for DaemonSettings {
    fn default() -> Self {
        DaemonSettings {
            drain_timeout: Duration::from_secs(10),
            control: Control::Default,
            access: Access::default(),
            metrics: None,
            state: None,
            source_root: None,
            real_time: false,
            jail: Jail::Full,
            alerts: Vec::new(),
            history: History::default(),
        }
    }
}

/// The control socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Control {
    /// Not stated: that of the environment, or [`CONTROL_SOCKET`]. The daemon serves without it if it cannot be made.
    #[default]
    Default,
    /// No changes at run time.
    None,
    At(PathBuf),
}

/// The control socket if none is stated.
pub const CONTROL_SOCKET: &str = "/run/sluice/control.sock";

/// `[daemon.access]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Group of the control socket; `None`: `sluice` if it exists, otherwise the daemon's.
    pub group: Option<String>,
    /// Permissions of the control socket.
    pub mode: u32,
    /// `None`: the group of the socket.
    pub observe: Option<Vec<Account>>,
    pub change: Vec<Account>,
    pub attach: Vec<Account>,
    /// Folder of sockets that clients with the role attach may name.
    pub socket_root: PathBuf,
    /// Users and groups that such a socket may be given to.
    pub socket_accounts: Vec<Account>,
    /// Permissions that such a socket may have at most.
    pub socket_mode: u32,
}

impl Default for Access {
    fn default() -> Self {
        Access {
            group: None,
            mode: 0o660,
            observe: None,
            change: Vec::new(),
            attach: Vec::new(),
            socket_root: PathBuf::from("/run/sluice"),
            socket_accounts: Vec::new(),
            socket_mode: 0o660,
        }
    }
}

/// A user or a group, by name or number. Whether it exists is checked when it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Account {
    User(String),
    Group(String),
}
