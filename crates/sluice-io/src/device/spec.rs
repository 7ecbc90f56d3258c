//! What the control plane tells a device thread: what to be, and what to change.

use std::fs::File;
use std::sync::Arc;

use sluice_sched::gate::OwnerAccount;
use sluice_sched::params::{ParamError, ParamTable};
use sluice_sched::scheduler::Facts;
use sluice_sched::{ChangeError, Descriptor, GateSettings, Policy, Scheduler};

use crate::backend::delay::DelaySpec;
use crate::volume::{Store, VolumeInfo, VolumeSpec};

/// A shared device: one thread, one ring, one gate.
#[derive(Debug, Clone)]
pub struct DeviceSpec {
    /// As in the host file.
    pub name: String,
    /// Who decides.
    pub scheduler: SchedulerSpec,
    /// Depth, splitting, cost.
    pub gate: GateSettings,
    /// Makes the device slower than it is, for tests and demonstrations.
    pub delay: Option<DelaySpec>,
    /// Where the slots of the delay are logged; see [`crate::backend::slot_log::open`].
    pub delay_log: Option<Arc<File>>,
}

/// How to make the scheduler, as often as it is needed.
#[derive(Debug, Clone)]
pub struct SchedulerSpec {
    /// Which.
    pub descriptor: &'static Descriptor,
    /// What it may know of the device.
    pub facts: Facts,
    /// Its parameters.
    pub params: ParamTable,
}

impl SchedulerSpec {
    /// Makes one.
    pub fn build(&self) -> Result<Box<dyn Scheduler>, ParamError> {
        self.descriptor.build(&self.facts, &self.params)
    }
}

/// How much one VM may have outstanding, from the socket to the reply; beyond it its sockets are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Requests.
    pub requests: u32,
    /// Bytes of payload; one request may pass it.
    pub bytes: u64,
}

/// One change; a list of them is applied between two turns of the loop.
#[derive(Debug, Clone)]
pub enum Edit {
    /// A VM comes, without volumes.
    AddVm {
        /// Its name.
        vm: String,
        /// On this device.
        policy: Policy,
        /// Its window.
        window: Window,
    },
    /// Other policies for a VM and its volumes, all at once.
    SetPolicies {
        /// Known.
        vm: String,
        /// On this device.
        policy: Policy,
        /// Its window.
        window: Window,
        /// Of those volumes that change.
        volumes: Vec<(String, Policy)>,
    },
    /// A VM goes, with its volumes.
    RemoveVm {
        /// Known.
        vm: String,
    },
    /// A volume comes.
    AddVolume {
        /// Known.
        vm: String,
        /// What it is.
        volume: Box<VolumeSpec>,
    },
    /// A volume has another size; its clients stay.
    ResizeVolume {
        /// Known.
        vm: String,
        /// Known.
        volume: String,
        /// As before, with the new range.
        store: Store,
        /// As before, with the new size.
        info: VolumeInfo,
    },
    /// A volume goes: its connections close, what waits is not served, what is in flight ends at the device.
    RemoveVolume {
        /// Known.
        vm: String,
        /// Known.
        volume: String,
    },
    /// What a failed sync may have lost of this volume is accepted: writes and flushes go on, also those of the other volumes
    /// on its file or disk if it was that which failed.
    AcceptLoss {
        /// Known.
        vm: String,
        /// Known.
        volume: String,
    },
    /// The device takes another number of requests at once.
    SetDepth(u32),
    /// Another scheduler takes over, or the same with other parameters; what waits, waits on.
    SetScheduler {
        /// Which.
        scheduler: SchedulerSpec,
        /// Whether neighbouring requests are merged before it.
        merging: bool,
    },
}

/// A change that was not made. Those before it in the list were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The gate refuses it.
    #[error("VM {vm}: {cause}")]
    Gate {
        /// Which VM.
        vm: String,
        /// Why.
        cause: ChangeError,
    },
    /// The gate refuses a change of the device itself.
    #[error("{cause}")]
    Device {
        /// Why.
        cause: ChangeError,
    },
    /// The scheduler's parameters are wrong.
    #[error("Scheduler {name}: {cause}")]
    Scheduler {
        /// Which.
        name: &'static str,
        /// Why.
        cause: ParamError,
    },
    /// No such VM or volume.
    #[error("No {0} on this device")]
    Unknown(String),
    /// The thread has ended.
    #[error("Device {0} has stopped")]
    Stopped(String),
    /// The thread has not answered in time; it makes the change when it goes on.
    #[error("Device {0} does not respond")]
    Silent(String),
}

/// Whether a device serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// Its thread runs.
    Serving,
    /// Its thread has failed: it waits for the kernel to finish requests, or for its restart.
    Restarting,
    /// Its thread runs and has not answered in time.
    Silent,
    /// Its thread has failed too often, or could not be restarted.
    Down,
    /// Its thread was told to end, and has.
    Ended,
}

impl Health {
    /// As programs read it.
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

/// The state of a device at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// As in the host file.
    pub device: String,
    /// Whether it serves. Of one that does not, nothing else is known but the restarts.
    pub health: Health,
    /// Requests (pieces) waiting in the gate.
    pub queued: u64,
    /// Requests (pieces) at the device.
    pub in_flight: u64,
    /// Open connections.
    pub connections: u64,
    /// Turns of its loop. It takes none while it has nothing to do.
    pub iterations: u64,
    /// Times that the thread had to be restarted after a panic.
    pub restarts: u64,
    /// Messages of VMMs' sessions that came after the session had ended here, and were refused.
    pub stale_messages: u64,
    /// By VM.
    pub vms: Vec<VmSnapshot>,
}

impl Snapshot {
    /// Of a device of which nothing is known but how it is.
    #[must_use]
    pub fn unknown(device: String, health: Health) -> Self {
        Snapshot {
            device,
            health,
            queued: 0,
            in_flight: 0,
            connections: 0,
            iterations: 0,
            restarts: 0,
            stale_messages: 0,
            vms: Vec::new(),
        }
    }
}

/// One VM of it.
#[derive(Debug, Clone)]
pub struct VmSnapshot {
    /// As in the host file.
    pub vm: String,
    /// Its policy on this device.
    pub policy: Policy,
    /// What the gate counted.
    pub account: OwnerAccount,
    /// Connections closed for breaking the protocol.
    pub protocol_errors: u64,
    /// Requests answered with an error before they reached the gate.
    pub refused: u64,
    /// Requests between socket and reply now.
    pub outstanding: u32,
    /// Volumes whose writes and flushes fail, because of what a failed sync may have lost.
    pub lost: Vec<String>,
}
