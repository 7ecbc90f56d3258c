//! The current state: the figures of every VM, volume and device, and whether their promises are kept.
//!
//! Times are upper bounds of percentiles, at most an eighth above the true value. Policies are not part of the serialised
//! form, because their form belongs to the host file. Neither are the volumes of a VM, which have policies.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_net::NicTotals;
use sluice_sched::admission::Capacity;
use sluice_sched::{Kind, Percent, Phase, Policy, Wait};

use crate::capacity::Verdict;
use crate::cause::Cause;
use crate::event::{EventKind, Unit};
use crate::failing::FailingStatus;
use crate::flow::Flow;
use crate::recent::Recent;
use crate::sample::ClientFaults;

/// Service of a VM or volume per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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

impl Rates {
    fn of(flow: &Flow) -> Rates {
        let micros = |percent| flow.latency.percentile(percent).map(|nanos| nanos as f64 / 1000.0);
        Rates {
            iops: rounded(flow.iops()),
            read_iops: rounded(flow.iops_of(Kind::Read)),
            write_iops: rounded(flow.iops_of(Kind::Write)),
            normalised_iops: rounded(flow.normalised_iops()),
            bytes_per_second: rounded(flow.bytes_per_second()),
            bits_per_second: flow.is_link.then(|| (8.0 * flow.bytes_per_second()).round()),
            failed_per_second: rounded(flow.per_second(flow.failed as f64)),
            p50_us: micros(50.0),
            p99_us: micros(99.0),
        }
    }
}

/// Rounds to thousandths, so that output is short.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Rates over three intervals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Intervals {
    #[serde(rename = "1s")]
    pub second: Rates,
    #[serde(rename = "10s")]
    pub ten_seconds: Rates,
    #[serde(rename = "1m")]
    pub minute: Rates,
}

impl Intervals {
    pub(crate) fn of(recent: &Recent) -> Intervals {
        let (second, ten_seconds, minute) = (recent.last(), recent.ten_seconds(), recent.minute());
        Intervals { second: Rates::of(&second), ten_seconds: Rates::of(&ten_seconds), minute: Rates::of(&minute) }
    }
}

/// Parts in percent of the last ten seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WaitedFor {
    pub own_limit: f64,
    pub share: f64,
    pub device: f64,
    pub batch: f64,
    pub anticipation: f64,
}

impl Parts {
    pub(crate) fn of(flow: &Flow) -> Parts {
        let percent = |part: f64| (part * 1000.0).round() / 10.0;
        let waits = flow.main_wait().map(|_| {
            let part = |wait| percent(flow.waited_for(wait).unwrap_or(0.0));
            WaitedFor {
                own_limit: part(Wait::OwnLimit),
                share: part(Wait::Share),
                device: part(Wait::Device),
                batch: part(Wait::Batch),
                anticipation: part(Wait::Anticipation),
            }
        });
        Parts {
            backlogged_percent: percent(flow.backlogged()),
            by_reservation_percent: flow.by(Phase::Reservation).map(percent),
            by_weight_percent: flow.by(Phase::Weight).map(percent),
            waited_for_percent: waits,
        }
    }
}

/// CPU time of the device thread for a VM in the last ten seconds, as a part of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CpuStatus {
    /// Part that the VM may use; null: any.
    pub limit_percent: Option<f64>,
    pub used_percent: f64,
    /// Part of the time for which the limit held the VM back although it had work.
    pub held_percent: f64,
}

impl CpuStatus {
    pub(crate) fn of(limit: Option<Percent>, flow: &Flow) -> CpuStatus {
        let percent = |part: f64| (part * 10_000.0).round() / 100.0;
        CpuStatus {
            limit_percent: limit.map(|limit| limit.hundredths() as f64 / 100.0),
            used_percent: percent(flow.cpu()),
            held_percent: percent(flow.held()),
        }
    }
}

/// Whether a promise is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Kept,
    /// Nothing was asked for in the last second, so nothing could be broken.
    NotAsked,
    Broken,
    /// The device does not serve.
    Unknown,
}

impl State {
    /// The worst state of several promises; `None` without any.
    #[must_use]
    pub fn worst(promises: &[PromiseStatus]) -> Option<State> {
        let has = |state| promises.iter().any(|promise| promise.state == state);
        [State::Broken, State::Unknown, State::Kept, State::NotAsked].into_iter().find(|state| has(*state))
    }

    /// Name in machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            State::Kept => "kept",
            State::NotAsked => "not_asked",
            State::Broken => "broken",
            State::Unknown => "unknown",
        }
    }
}

/// One promise to a VM or volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromiseStatus {
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

/// Frames of a NIC since the start of its uplink's thread. A large segment counts once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NicStatus {
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Frames that were dropped, by reason; without reasons that have not occurred.
    pub dropped_frames: BTreeMap<&'static str, u64>,
}

impl NicStatus {
    pub(crate) fn of(totals: &NicTotals) -> NicStatus {
        let drops = totals.drops.iter().filter(|(_, count)| *count > 0);
        NicStatus {
            sent_frames: totals.sent,
            sent_bytes: totals.sent_bytes,
            received_frames: totals.received,
            received_bytes: totals.received_bytes,
            dropped_frames: drops.map(|(reason, count)| (reason.name(), count)).collect(),
        }
    }
}

/// A volume now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VolumeStatus {
    pub vm: String,
    pub volume: String,
    pub device: String,
    #[serde(skip)]
    pub policy: Policy,
    pub rates: Intervals,
    pub parts: Parts,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    pub clients: u32,
    pub promises: Vec<PromiseStatus>,
    /// Requests that have failed at the device since the start of its thread.
    pub failed_requests: u64,
    /// What fails now.
    pub failing: Vec<FailingStatus>,
    pub client_faults: ClientFaults,
    /// If it is a NIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<NicStatus>,
}

/// A VM on one device now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmStatus {
    pub vm: String,
    pub device: String,
    #[serde(skip)]
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
    pub promises: Vec<PromiseStatus>,
    /// Requests that have failed at the device since the start of its thread.
    pub failed_requests: u64,
    /// Why it does not get more, even if that breaks no promise; null if it is idle.
    pub held_by: Option<Cause>,
    pub cpu: CpuStatus,
    #[serde(skip)]
    pub volumes: Vec<VolumeStatus>,
}

impl VmStatus {
    /// Whether a promise to it or to one of its volumes is broken.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        let mut all = self.promises.iter().chain(self.volumes.iter().flat_map(|volume| &volume.promises));
        all.any(|promise| promise.state == State::Broken)
    }
}

/// Stated and measured capacity of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CapacityStatus {
    /// Normalised requests per second that the host file states.
    pub stated_iops: Option<f64>,
    pub stated_bytes_per_second: Option<u64>,
    /// Median of what it gave in the last minute in which it was full, however long ago; null if it was not.
    pub measured_iops: Option<f64>,
    pub measured_bytes_per_second: Option<f64>,
    pub verdict: Verdict,
    /// The sum of all reservations.
    pub reserved_iops: f64,
    pub reserved_bytes_per_second: u64,
}

impl CapacityStatus {
    pub(crate) fn stated(capacity: &Capacity) -> (Option<f64>, Option<u64>) {
        (capacity.iops.map(|iops| iops.as_f64()), capacity.bytes.map(|bytes| bytes.bytes_per_second()))
    }
}

/// Times of one kind of request at a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServiceTime {
    pub kind: &'static str,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// A device now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceStatus {
    pub device: String,
    /// `serving`, `restarting`, `silent`, `down`, or `stalled` if it serves and completes nothing.
    pub health: &'static str,
    pub depth: u32,
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
    pub capacity: CapacityStatus,
    pub vms: u32,
    pub clients: u32,
    /// Problems, in words.
    pub problems: Vec<String>,
}

/// Everything now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Status {
    /// Seconds since 1970 at which it was so.
    pub time: u64,
    pub devices: Vec<DeviceStatus>,
    pub vms: Vec<VmStatus>,
}
