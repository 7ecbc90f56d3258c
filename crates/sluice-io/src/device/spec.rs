//! Types that the control plane exchanges with the thread of a disk.

use std::fs::File;
use std::sync::Arc;

use sluice_pool::Aim;
use sluice_sched::{Bytes, GateSettings, Percent, Policy};

use crate::reactor::spec::{SchedulerSpec, Window};
use crate::store::StoreSpec;
use crate::store::delay::{DelaySpec, ModelMaker};
use crate::volume::{VolumeInfo, VolumeSpec};

/// Specification of a shared device, with one gate and one ring.
#[derive(Debug, Clone)]
pub struct DeviceSpec {
    /// Name in the host file.
    pub name: String,
    /// The scheduler at the start.
    pub scheduler: SchedulerSpec,
    /// Depth, splitting, cost model.
    pub gate: GateSettings,
    /// Capacity and time by which a window bounds the requests in flight; `None`: only the depth bounds them.
    pub aim: Option<Aim>,
    /// Makes the device slower than it is, for tests and demonstrations.
    pub delay: Option<DelaySpec>,
    /// Log of the delay's slots; see [`crate::store::slot_log::open`].
    pub delay_log: Option<Arc<File>>,
    /// Model that replaces the delay's servers; without effect if there is no delay.
    pub model: Option<ModelMaker>,
}

/// A change of a disk. A list of changes is applied between two iterations of the loop. The VM and the volume of a change exist,
/// except those that it adds.
#[derive(Debug, Clone)]
pub enum Edit {
    /// Adds a VM without volumes.
    AddVm {
        /// Name of the VM.
        vm: String,
        /// Policy on this device.
        policy: Policy,
        window: Window,
    },
    /// Changes the policies of a VM and its volumes together.
    SetPolicies {
        vm: String,
        /// Policy on this device.
        policy: Policy,
        window: Window,
        /// Volumes with a new policy.
        volumes: Vec<(String, Policy)>,
    },
    /// Changes how much CPU time of the thread a VM may use; `None`: any.
    SetCpu { vm: String, limit: Option<Percent> },
    /// Removes a VM and its volumes.
    RemoveVm { vm: String },
    /// Adds a volume.
    AddVolume { vm: String, volume: Box<VolumeSpec> },
    /// Resizes a volume. Its clients stay connected.
    ResizeVolume {
        vm: String,
        volume: String,
        /// The same store with the new range.
        store: StoreSpec,
        /// The same properties with the new size.
        info: VolumeInfo,
    },
    /// Removes a volume: its clients are disconnected, queued requests are dropped, and those in flight end at the
    /// device.
    RemoveVolume { vm: String, volume: String },
    /// Accepts what a failed sync may have lost of this volume: writes and flushes succeed again. If it was its file or
    /// disk that failed, this applies to all volumes there.
    AcceptLoss { vm: String, volume: String },
    /// Changes what is known of the device.
    SetDevice {
        /// Queue depth.
        depth: u32,
        /// Bytes that take it as long as a request of cost 1, see [`GateSettings::request_bytes`].
        request_bytes: Bytes,
        /// See [`DeviceSpec::aim`].
        aim: Option<Aim>,
    },
    /// Makes the thread poll all the time while it has clients, or only when work is likely to arrive soon.
    SetBusyPoll(bool),
    /// Replaces the scheduler, or its parameters. Queued requests stay queued.
    SetScheduler {
        scheduler: SchedulerSpec,
        /// Whether adjacent requests are merged before it.
        merging: bool,
    },
}
