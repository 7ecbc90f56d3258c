//! The current state in a compact form, for a display that asks every second.
//!
//! [`Status`](crate::status::Status) has three intervals of everything, which costs the observer and its reader too much
//! each second for 1,000 VMs. Here are the rates of the last second and the percentiles of the last ten. Values that are not set are
//! left out of the serialised form.

use serde::Serialize;
use sluice_sched::gate::histogram::SparseHistogram;
use sluice_sched::policy::Limit;
use sluice_sched::{ByteRate, Iops, Phase, Policy, Weight};

use crate::cause::Cause;
use crate::failing::FailingStatus;
use crate::flow::Flow;
use crate::recent::Recent;
use crate::status::{PromiseStatus, State, VmStatus, rounded};

/// A reservation or a limit: in requests, in bytes, or both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Normalised requests per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

impl Amount {
    fn of(iops: Option<Iops>, bytes: Option<ByteRate>) -> Amount {
        Amount { iops: iops.map(Iops::as_f64), bytes_per_second: bytes.map(ByteRate::bytes_per_second) }
    }

    fn limit(limit: &Limit) -> Amount {
        Amount::of(limit.iops, limit.bytes)
    }

    fn is_none(&self) -> bool {
        *self == Amount::default()
    }
}

/// Rates of a VM or volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GlanceRates {
    /// Normalised requests per second in the last second.
    pub iops: f64,
    /// In the last second.
    pub bytes_per_second: f64,
    /// The same on the wire of an uplink; its `iops` are frames per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<f64>,
    /// From arrival to completion, in the last ten seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Part of the dispatches of the last ten seconds that the reservation caused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_reservation_percent: Option<f64>,
}

impl GlanceRates {
    fn of(recent: &Recent) -> GlanceRates {
        let (mut latency, mut dispatched) = (SparseHistogram::default(), [0_u64; 3]);
        for flow in recent.flows_of_ten_seconds() {
            latency.add(&flow.latency);
            dispatched.iter_mut().zip(flow.dispatched).for_each(|(sum, more)| *sum += more);
        }
        let micros = |percent| latency.percentile(percent).map(|nanos| nanos as f64 / 1000.0);
        let all: u64 = dispatched.iter().sum();
        let by_reservation = dispatched[Phase::Reservation as usize] as f64 / all.max(1) as f64;
        let last = recent.last_flow();
        let rate = |flow: &Flow| rounded(if flow.is_link { flow.iops() } else { flow.normalised_iops() });
        GlanceRates {
            iops: last.map_or(0.0, rate),
            bits_per_second: recent.is_link().then(|| last.map_or(0.0, |flow| (8.0 * flow.bytes_per_second()).round())),
            bytes_per_second: last.map_or(0.0, |flow| flow.bytes_per_second().round()),
            p50_us: micros(50.0),
            p99_us: micros(99.0),
            by_reservation_percent: (all > 0).then(|| (by_reservation * 100.0).round()),
        }
    }
}

/// Promises to a VM or volume, and its rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// The worst state of all promises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(skip_serializing_if = "Amount::is_none")]
    pub reservation: Amount,
    #[serde(skip_serializing_if = "Amount::is_none")]
    pub limit: Amount,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// `None` for a volume without its own counters: those of its VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<GlanceRates>,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    pub clients: u32,
    /// The broken promises.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<PromiseStatus>,
}

impl Figures {
    pub(crate) fn of(
        policy: &Policy,
        recent: Option<&Recent>,
        promises: Vec<PromiseStatus>,
        (outstanding, clients): (u32, u32),
    ) -> Figures {
        Figures {
            state: State::worst(&promises),
            reservation: Amount::of(policy.reservation.iops, policy.reservation.bytes),
            limit: Amount::limit(&policy.limit),
            weight: policy.weight.map(Weight::as_f64),
            rates: recent.map(GlanceRates::of),
            outstanding,
            clients,
            promises: promises.into_iter().filter(|promise| promise.state == State::Broken).collect(),
        }
    }
}

/// A VM on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmGlance {
    pub vm: String,
    pub device: String,
    /// Its state is broken if a promise to a volume is.
    pub now: Figures,
    /// Why it does not get more, even if that breaks no promise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Cause>,
    /// CPU time of the device thread for it in the last ten seconds, in percent of one CPU.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_percent: f64,
    pub volumes: Vec<VolumeGlance>,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VolumeGlance {
    pub volume: String,
    pub now: Figures,
    /// What fails now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<FailingStatus>,
}

/// The times of all requests in the last minute: upper bound of a bucket in microseconds, and count.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

impl Histograms {
    pub(crate) fn of(recent: &Recent) -> Histograms {
        let minute = recent.minute_of_histograms();
        let buckets = |times: &SparseHistogram| {
            times.buckets().map(|(nanos, count)| (nanos as f64 / 1000.0, count)).collect::<Vec<_>>()
        };
        Histograms {
            seconds: minute.seconds().round(),
            latency: buckets(&minute.latency),
            queue_time: buckets(&minute.queue_time),
            service_time: buckets(&minute.service_time),
        }
    }
}

/// A VM with everything that is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct VmDetails {
    pub status: VmStatus,
    /// Histograms of the VM, or of the volume that was asked for.
    pub histograms: Histograms,
}
