//! The current state: the figures of every VM, volume and device, and whether their promises are kept.
//!
//! Times are upper bounds of percentiles, at most an eighth above the true value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cause::Cause;
use crate::event::{EventKind, Unit};
use crate::object::ObjectId;
use crate::policy::Policy;
use crate::words::words;

pub use self::daemon::{
    DaemonState, FailedAlert, Jail, JailLayer, LayerState, LostClient, OverrideEnd, OverridesInForce, RecordTrouble,
    RefusedCall, RefusedReload, Restart,
};
pub use self::pool::{DevicePool, PoolHost};

mod daemon;
mod pool;

/// Service of a VM or volume per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Rates {
    /// Requests of guests that succeeded.
    pub iops: f64,
    pub read_iops: f64,
    pub write_iops: f64,
    /// Requests by their cost: what counts against limits and reservations in requests.
    pub normalised_iops: f64,
    pub bytes_per_second: f64,
    /// On the wire of an uplink, with the 24 bytes around each frame; null for a disk.
    pub bits_per_second: Option<f64>,
    /// Requests of guests that failed.
    pub failed_per_second: f64,
    /// From arrival to completion; null without requests.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

/// Rates over three intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Intervals {
    #[serde(rename = "1s")]
    pub second: Rates,
    #[serde(rename = "10s")]
    pub ten_seconds: Rates,
    #[serde(rename = "1m")]
    pub minute: Rates,
}

impl Intervals {
    /// Whether they are those of an uplink, or of a VM or NIC on one.
    #[must_use]
    pub fn are_of_link(&self) -> bool {
        self.second.bits_per_second.is_some()
    }
}

/// Parts in percent of the last ten seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Parts {
    /// Part of the time with requests queued at the gate.
    pub backlogged_percent: f64,
    /// Part of the dispatches because of the reservation; null without any dispatch.
    pub by_reservation_percent: Option<f64>,
    /// Part of the dispatches as a share of the spare capacity; null without any dispatch.
    pub by_weight_percent: Option<f64>,
    /// Main reason for the waiting of requests, and its part of their waiting time; null if none waited.
    pub waited_for_percent: Option<WaitedFor>,
}

/// Parts of the time that requests waited, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WaitedFor {
    pub own_limit: f64,
    pub share: f64,
    pub device: f64,
    pub batch: f64,
    pub anticipation: f64,
}

/// CPU time of the device thread for a VM in the last ten seconds, as a part of one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cpu {
    /// Part that the VM may use; null: any.
    pub limit_percent: Option<f64>,
    pub used_percent: f64,
    /// Part of the time for which the limit held the VM back although it had work.
    pub held_percent: f64,
}

words! {
    /// Whether promises are kept.
    pub enum State {
        /// There are none.
        None = "none",
        Kept = "kept",
        /// Nothing was asked for in the last second, so nothing could be broken.
        NotAsked = "not_asked",
        Broken = "broken",
    }
    /// The device does not serve.
    else Unknown = "unknown"
}

impl State {
    /// The worst state of several promises.
    #[must_use]
    pub fn worst(promises: &[Promise]) -> State {
        let has = |state| promises.iter().any(|promise| promise.state == state);
        let worst = [State::Broken, State::Unknown, State::Kept, State::NotAsked].into_iter().find(|state| has(*state));
        worst.unwrap_or(State::None)
    }
}

/// One promise to a VM or volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Promise {
    /// `reservation` or `latency`.
    pub kind: EventKind,
    pub state: State,
    /// If it is broken: since when, in seconds before now.
    pub for_seconds: Option<u64>,
    /// If it is broken: what was promised for the last interval, and what there was.
    pub wanted: Option<f64>,
    pub got: Option<f64>,
    pub unit: Option<Unit>,
    pub cause: Option<Cause>,
}

words! {
    /// Operations of guests.
    pub enum Operation {
        Read = "read",
        Write = "write",
        Flush = "flush",
        Discard = "discard",
        WriteZeroes = "write_zeroes",
        /// Of a NIC.
        Frame = "frame",
    }
    else Unknown = "unknown"
}

/// Requests that failed in the same way, since this began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Failure {
    pub operation: Operation,
    pub errno: i32,
    /// Name of the errno, such as `ENOSPC`.
    pub error: String,
    pub count: u64,
    /// Seconds since 1970 of the first and the last one.
    pub first: u64,
    pub last: u64,
}

/// What makes requests of a volume fail.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Failing {
    pub kind: EventKind,
    pub cause: Cause,
    /// Since when, in seconds before now.
    pub for_seconds: u64,
    /// What has happened, and what to do.
    pub text: String,
    pub failures: Vec<Failure>,
}

/// What a volume or NIC does not do for its clients, since the start of its device thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ClientFaults {
    /// Requests that were refused.
    pub refused: u64,
    /// Why the last one was refused.
    pub refusal: Option<String>,
    /// Queues that take no requests until their driver is reset.
    pub stopped_queues: u32,
    /// Why the last one has stopped.
    pub stopped: Option<String>,
}

impl ClientFaults {
    /// Whether there are any.
    #[must_use]
    pub fn are_there(&self) -> bool {
        self.refused > 0 || self.stopped_queues > 0
    }
}

/// Frames of a NIC since the start of its uplink's thread. A large segment counts once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Nic {
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Frames that were dropped, by reason; without reasons that have not occurred.
    pub dropped_frames: BTreeMap<String, u64>,
}

/// The disk that the guest of a volume has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    #[schema(value_type = Option<String>)]
    pub source: Option<PathBuf>,
    pub block_size_bytes: u32,
    #[serde(default)]
    pub disk_block_size_bytes: u32,
    #[serde(default)]
    pub serial: String,
    /// `unmap` or `ignore`.
    #[serde(default)]
    pub discard: String,
}

/// The times of all requests in the last minute: upper bound of a bucket in microseconds, and count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Histograms {
    /// Seconds that were observed, at most 69.
    pub seconds: f64,
    /// From arrival to completion.
    pub latency: Vec<(f64, u64)>,
    /// From arrival to dispatch.
    pub queue_time: Vec<(f64, u64)>,
    /// From dispatch to completion.
    pub service_time: Vec<(f64, u64)>,
}

/// A volume or NIC now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Volume {
    pub vm: String,
    /// Its name, or `nic/NIC`.
    pub volume: String,
    pub device: String,
    /// The worst of its promises.
    pub state: State,
    pub policy: Policy,
    pub rates: Intervals,
    pub parts: Parts,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    pub clients: u32,
    pub promises: Vec<Promise>,
    /// Requests that have failed at the device since the start of its thread.
    pub failed_requests: u64,
    /// What fails now.
    pub failing: Vec<Failing>,
    pub client_faults: ClientFaults,
    /// If it is a NIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<Nic>,
    /// If it is a volume that is served.
    #[serde(flatten)]
    pub disk: Option<Disk>,
    /// Only if they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histograms: Option<Histograms>,
}

impl Volume {
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId::of_vm(&self.vm, &self.volume)
    }
}

/// A VM on one device now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Vm {
    pub vm: String,
    pub device: String,
    /// The worst of its promises; broken if one to a volume is.
    pub state: State,
    pub policy: Policy,
    pub rates: Intervals,
    pub parts: Parts,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    /// Outstanding requests that wait at the gate.
    pub waiting: u32,
    /// Outstanding requests at the device.
    pub in_flight: u32,
    pub clients: u32,
    pub promises: Vec<Promise>,
    /// Requests that have failed at the device since the start of its thread.
    pub failed_requests: u64,
    /// Why it does not get more, even if that breaks no promise; null if it is idle.
    pub held_by: Option<Cause>,
    /// Facts behind that cause, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by_detail: Option<String>,
    pub cpu: Cpu,
    pub volumes: Vec<Volume>,
    /// Only if they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histograms: Option<Histograms>,
}

impl Vm {
    /// Its promises and those of its volumes, each with the volume.
    pub fn all_promises(&self) -> impl Iterator<Item = (Option<&Volume>, &Promise)> {
        let of_volumes =
            self.volumes.iter().flat_map(|volume| volume.promises.iter().map(move |promise| (Some(volume), promise)));
        self.promises.iter().map(|promise| (None, promise)).chain(of_volumes)
    }

    /// Whether a promise to it or to one of its volumes is broken.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.all_promises().any(|(_, promise)| promise.state == State::Broken)
    }
}

words! {
    /// Result of comparing measured and stated capacity.
    pub enum Verdict {
        /// Nothing is stated.
        NotStated = "not_stated",
        Right = "right",
        /// It gives less than stated.
        TooHigh = "too_high",
        /// It gives more than stated.
        TooLow = "too_low",
    }
    /// It has not been full for long enough.
    else Unknown = "unknown"
}

/// Stated and measured capacity of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Capacity {
    /// Normalised requests per second that the host file states.
    pub stated_iops: Option<f64>,
    pub stated_bytes_per_second: Option<u64>,
    /// Median of what it gave in the last minute in which it was full, however long ago; null if it was not. In a pool what it gave to all
    /// hosts, in requests only.
    pub measured_iops: Option<f64>,
    pub measured_bytes_per_second: Option<f64>,
    pub verdict: Verdict,
    /// The sum of all reservations.
    pub reserved_iops: f64,
    pub reserved_bytes_per_second: u64,
}

/// Times of one kind of request at a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ServiceTime {
    pub kind: Operation,
    pub p50_us: f64,
    pub p99_us: f64,
}

words! {
    /// State of a device thread.
    pub enum Health {
        Serving = "serving",
        Restarting = "restarting",
        /// It has not replied in time.
        Silent = "silent",
        Down = "down",
        /// It serves and completes nothing.
        Stalled = "stalled",
        /// It was stopped.
        Ended = "ended",
    }
    else Unknown = "unknown"
}

/// Settings of a device: those of the host file, and those that the daemon derives from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DeviceSettings {
    /// The block device, or a file or folder on it; the first of several; the interface of an uplink; null for a null device.
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// All paths and patterns, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub paths: Vec<PathBuf>,
    /// Names of the disks that have joined it, if its path is a list or a pattern.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// Name of its scheduler.
    pub scheduler: String,
    /// The most that all VMs together may reserve, if either is stated: what the scheduler keeps for VMs without a reservation is taken
    /// off.
    pub reservable_iops: Option<f64>,
    pub reservable_bytes_per_second: Option<u64>,
    /// Whether the host file states it as rotational; null if it states nothing.
    pub rotational: Option<bool>,
    /// Whether its disk reports that it is rotational.
    pub disk_is_rotational: bool,
    /// Maximum number of adjacent requests of one VM that go in a row; null for a scheduler without batches.
    pub batch: Option<u32>,
    /// Whether the host file states that number.
    pub batch_is_stated: bool,
}

/// A device or uplink now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Device {
    pub device: String,
    pub health: Health,
    pub depth: u32,
    /// Null if what is in flight does not follow the time of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<DeviceWindow>,
    /// Null if it is not stated as a part of a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<DevicePool>,
    pub in_flight: u64,
    pub queued: u64,
    /// Part of the last ten seconds without a free slot.
    pub full_percent: f64,
    /// Part of the last ten seconds in which its thread worked.
    pub thread_busy_percent: f64,
    /// Part of the last ten seconds by which its thread looked at its requests too late.
    pub thread_late_percent: f64,
    pub rates: Intervals,
    /// From submission to completion, since the start of its thread.
    pub service_times: Vec<ServiceTime>,
    pub capacity: Capacity,
    pub vms: u32,
    pub clients: u32,
    /// Problems, in words.
    pub problems: Vec<String>,
    /// Null if it is not in the host file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<DeviceSettings>,
}

/// How much may be in flight at a device, because what is in flight follows the time of requests there (`latency`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DeviceWindow {
    /// Normalised requests that may be in flight.
    pub requests: f64,
    /// The stated mean time at the device.
    pub latency_us: u64,
    /// The mean time at the device in the last half second, weighted by cost; null if nothing completed.
    pub measured_latency_us: Option<u64>,
    /// The time that the device takes for one request, if the stated time is below it, so that the device gives less than it could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_time_us: Option<u64>,
}

/// Something that is not served, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NotServed {
    pub volume: ObjectId,
    pub reason: String,
}

/// An uplink or NIC whose interface is not there, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InterfaceOutage {
    pub of: ObjectId,
    pub reason: String,
}

/// A change made at run time that is not in force, because the host file does not allow it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SetAside {
    pub name: String,
    pub value: String,
}

/// A file system with images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FileSystem {
    pub device: String,
    #[schema(value_type = String)]
    pub folder: PathBuf,
    pub size_bytes: u64,
    pub free_bytes: u64,
    /// Bytes by which all images together may still grow.
    pub growth_bytes: u64,
    pub is_overcommitted: bool,
    pub is_low: bool,
    pub text: String,
}

/// A volume whose blocks are smaller than those of its disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bridged {
    pub volume: ObjectId,
    /// Both in bytes.
    pub block_size: u32,
    pub disk_block_size: u32,
}

words! {
    /// Whether threads have real-time priority.
    pub enum RealTime { On = "on", Refused = "refused", }
    else Off = "off"
}

/// Everything now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Status {
    pub version: u32,
    /// Seconds since 1970 at which it was so.
    pub time: u64,
    /// Number of VMs with a broken promise.
    pub promises_broken: usize,
    pub real_time: RealTime,
    pub devices: Vec<Device>,
    pub out_of_service: Vec<ObjectId>,
    pub interfaces_out_of_service: Vec<InterfaceOutage>,
    pub volumes_out_of_service: Vec<NotServed>,
    pub held_back: Vec<NotServed>,
    pub overrides_set_aside: Vec<SetAside>,
    #[serde(flatten)]
    pub daemon: DaemonState,
    pub file_systems: Vec<FileSystem>,
    pub bridged: Vec<Bridged>,
    pub vms: Vec<Vm>,
}

impl Status {
    /// The volumes and NICs of all VMs.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.vms.iter().flat_map(|vm| &vm.volumes)
    }
}

/// A VM on each of its devices, or a volume, with the times of its requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details<T> {
    pub version: u32,
    pub objects: Vec<T>,
}
