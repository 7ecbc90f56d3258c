//! The current state in a compact form, for a display that asks every second.
//!
//! [`Status`](crate::status::Status) has three intervals of everything, which costs the daemon and its reader too much each second
//! for 1,000 VMs. Here are the rates of the last second and the percentiles of the last ten.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cause::Cause;
use crate::object::ObjectId;
use crate::status::{Device, Failing, NotServed, Promise, State};

/// Everything now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Top {
    pub version: u32,
    /// Seconds since 1970.
    pub time: u64,
    pub devices: Vec<Device>,
    pub vms: Vec<Vm>,
    pub out_of_service: Vec<ObjectId>,
    pub held_back: Vec<NotServed>,
}

/// A VM on one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = TopVm)]
pub struct Vm {
    /// Set in a row that stands alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<u64>,
    pub vm: String,
    pub device: String,
    /// Its state is broken if a promise to a volume is.
    pub now: Figures,
    /// Why it does not get more, even if that breaks no promise.
    pub held_by: Option<Cause>,
    /// CPU time of the device thread for it in the last ten seconds, in percent of one CPU.
    pub cpu_percent: f64,
    /// Requests that have failed at the device since the start of its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_requests: Option<u64>,
    pub volumes: Vec<Volume>,
}

/// A volume or NIC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = TopVolume)]
pub struct Volume {
    /// Its name, or `nic/NIC`.
    pub volume: String,
    pub now: Figures,
    /// Requests that have failed at the device since the start of its thread; of a volume without its own counters those of its VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_requests: Option<u64>,
    /// What fails now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<Failing>,
}

/// Promises to a VM or volume, and its rates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Figures {
    /// The worst state of all promises; null without any.
    pub state: Option<State>,
    pub reservation: Amount,
    pub limit: Amount,
    pub weight: Option<f64>,
    /// Null for a volume without its own counters: those of its VM.
    pub rates: Option<Rates>,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    pub clients: u32,
    /// The broken promises.
    pub promises: Vec<Promise>,
}

impl Figures {
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state == Some(State::Broken)
    }
}

/// A reservation or a limit: in requests, in bytes, or both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = TopAmount)]
pub struct Amount {
    /// Normalised requests per second.
    pub iops: Option<f64>,
    pub bytes_per_second: Option<f64>,
}

/// Rates of a VM or volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = TopRates)]
pub struct Rates {
    /// Normalised requests per second in the last second.
    pub iops: f64,
    /// In the last second.
    pub bytes_per_second: f64,
    /// The same on the wire of an uplink; its `iops` are frames per second.
    pub bits_per_second: Option<f64>,
    /// From arrival to completion, in the last ten seconds.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Part of the dispatches of the last ten seconds that the reservation caused.
    pub by_reservation_percent: Option<f64>,
}
