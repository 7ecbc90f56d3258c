//! Types that the control plane exchanges with every device thread: why a change failed, and snapshots.

use std::sync::Arc;

use sluice_net::switch::SwitchError;
use sluice_net::{NicTotals, UplinkTotals};
use sluice_sched::gate::histogram::Histogram;
use sluice_sched::gate::{DeviceStats, GateStats};
use sluice_sched::params::{ParamError, ParamTable};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{ChangeError, Descriptor, Instant, Policy, Scheduler};

pub use crate::backend::client_faults::Faults;
use crate::cpu::CpuTime;
use crate::source::FaultReport;

/// A scheduler, its parameters and what it may know of the device. It is built again after each restart.
#[derive(Debug, Clone)]
pub struct SchedulerSpec {
    pub descriptor: &'static Descriptor,
    /// Properties of the device that the scheduler is built for.
    pub info: DeviceInfo,
    pub params: ParamTable,
}

impl SchedulerSpec {
    /// Builds the scheduler.
    ///
    /// # Errors
    /// [`ParamError`].
    pub fn build(&self) -> Result<Box<dyn Scheduler>, ParamError> {
        self.descriptor.build(&self.info, &self.params)
    }
}

/// Limit of one VM's outstanding requests, from the socket to the reply. While it is reached the VM's sockets are not
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Number of requests.
    pub requests: u32,
    /// Bytes of payload. One request may exceed it.
    pub bytes: u64,
}

/// Why a change failed. The changes before it in the list stay in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The gate rejects it.
    #[error("VM {vm}: {cause}")]
    Gate { vm: String, cause: ChangeError },
    /// The gate rejects a change of the device itself.
    #[error("{cause}")]
    Device { cause: ChangeError },
    /// The scheduler's parameters are invalid.
    #[error("Scheduler {name}: {cause}")]
    Scheduler { name: &'static str, cause: ParamError },
    /// These volumes, by VM and volume, have clients.
    #[error("In use: {}", .0.iter().map(|(vm, volume)| format!("{vm}/{volume}")).collect::<Vec<_>>().join(", "))]
    InUse(Vec<(String, String)>),
    /// No such VM or volume.
    #[error("No {0} on this device")]
    Unknown(String),
    /// The switch of an uplink rejects a NIC.
    #[error("NIC {nic}: {error}")]
    Switch { nic: String, error: SwitchError },
    /// The device thread has ended.
    #[error("Device {0} has stopped")]
    Stopped(String),
    /// The device thread has not replied in time. It makes the change when it continues.
    #[error("Device {0} does not respond")]
    Silent(String),
}

/// Whether a device serves requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// Its thread runs.
    Serving,
    /// Its thread has failed, and waits for in-flight requests or for its restart.
    Restarting,
    /// Its thread is running and has not replied in time.
    Silent,
    /// Its thread has failed too often, or could not be restarted.
    Down,
    /// Its thread was stopped.
    Ended,
}

impl Health {
    /// Returns the name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Health::Serving => "serving",
            Health::Restarting => "restarting",
            Health::Silent => "silent",
            Health::Down => "down",
            Health::Ended => "ended",
        }
    }
}

/// The state of a device at one instant.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Name in the host file.
    pub device: String,
    /// When it was taken, on the clock of the device thread.
    pub at: Instant,
    /// If it is not `Serving`, only the number of restarts is known besides.
    pub health: Health,
    /// Maximum number of requests in flight.
    pub depth: u32,
    /// How much may be in flight, if that follows the time of requests.
    pub window: Option<sluice_pool::State>,
    /// Statistics of the gate for the device.
    pub stats: DeviceStats,
    /// Time that the thread has spent with work, in nanoseconds; polling without work does not count.
    pub worked_nanos: u64,
    pub late: Late,
    /// Queued requests (pieces).
    pub queued: u64,
    /// Requests (pieces) in flight.
    pub in_flight: u64,
    /// Number of open connections.
    pub connections: u64,
    /// Iterations of its loop. An idle loop makes one for each message, such as a probe.
    pub iterations: u64,
    /// Number of restarts of the thread.
    pub restarts: u64,
    /// Why the thread failed before its last restart, with the place if it panicked. Known to a request for a snapshot, and not to the
    /// thread, which takes its last one itself.
    pub failure: Option<String>,
    /// Messages of VMMs' sessions that arrived after the session had ended on this thread, and were ignored.
    pub stale_messages: u64,
    /// Counters of its interface, if it is an uplink.
    pub uplink: Option<Box<UplinkTotals>>,
    pub vms: Vec<VmSnapshot>,
}

/// How late a thread was to look at its requests.
#[derive(Debug, Clone, Default)]
pub struct Late {
    /// Time in which it was late, in nanoseconds.
    pub nanos: u64,
    /// Number of late looks by their lateness.
    pub times: Histogram,
}

impl Snapshot {
    /// Returns the state of a device of which only the health is known.
    #[must_use]
    pub fn unknown(device: String, health: Health) -> Self {
        Snapshot {
            device,
            at: Instant::ZERO,
            health,
            depth: 0,
            window: None,
            stats: DeviceStats::default(),
            worked_nanos: 0,
            late: Late::default(),
            queued: 0,
            in_flight: 0,
            connections: 0,
            iterations: 0,
            restarts: 0,
            failure: None,
            stale_messages: 0,
            uplink: None,
            vms: Vec::new(),
        }
    }
}

/// The state of one VM.
#[derive(Debug, Clone)]
pub struct VmSnapshot {
    /// Name in the host file.
    pub vm: String,
    /// Policy on this device.
    pub policy: Policy,
    /// Statistics of the gate.
    pub account: Arc<GateStats>,
    /// Number of connections that were closed after a protocol violation.
    pub protocol_errors: u64,
    /// Number of requests that were refused before they reached the gate.
    pub refused: u64,
    /// CPU time of the thread that was used for it.
    pub cpu: CpuTime,
    /// Number of outstanding requests.
    pub outstanding: u32,
    pub volumes: Vec<VolumeSnapshot>,
}

impl VmSnapshot {
    /// Volumes that have clients: NBD connections, or VMMs that have started a queue.
    pub fn in_use(&self) -> impl Iterator<Item = &VolumeSnapshot> {
        self.volumes.iter().filter(|volume| volume.clients > 0)
    }
}

/// The state of one volume.
#[derive(Debug, Clone)]
pub struct VolumeSnapshot {
    /// Name in the host file.
    pub volume: String,
    /// Policy of the volume, inside that of its VM.
    pub policy: Policy,
    /// Statistics of the gate; `None` if the VM has had no other volume on this device: they are those of the VM.
    pub account: Option<Arc<GateStats>>,
    /// Number of outstanding requests.
    pub outstanding: u32,
    /// Clients: NBD connections, and VMMs that have started a queue.
    pub clients: u32,
    /// Clients that have ended their session in order, as an NBD client may, since the volume was opened.
    pub left: u64,
    /// Faults of its source; of a NIC frames that the interface of its uplink did not take.
    pub faults: FaultReport,
    /// Requests of clients that were refused, and queues that have stopped.
    pub client_faults: Faults,
    /// Counters, if it is a NIC.
    pub nic: Option<Box<NicTotals>>,
}

/// A client of a volume.
#[derive(Debug, Clone)]
pub struct ClientSnapshot {
    /// Name of the VM in the host file.
    pub vm: String,
    /// Name of the volume in the host file.
    pub volume: String,
    /// Protocol that it speaks: `nbd`, `vhost-user-blk` or `vhost-user-net`.
    pub protocol: &'static str,
    /// Its address; for a Unix socket its process and user, as far as the kernel reports them.
    pub peer: String,
    /// Queues that it has started; `None` if the protocol has no queues.
    pub queues: Option<u32>,
    /// Requests that were taken from it and are not answered.
    pub outstanding: u32,
}
