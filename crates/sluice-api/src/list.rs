//! Names, clients, named policies and the past.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::policy::Half;
use crate::words::words;

/// Names of everything that is served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Names {
    pub version: u32,
    pub vms: Vec<VmNames>,
    pub devices: Vec<DeviceName>,
}

/// Names of a VM and its volumes and NICs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VmNames {
    pub vm: String,
    pub volumes: Vec<VolumeName>,
}

/// Name of a volume, or `nic/NIC`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeName {
    pub vm: String,
    pub volume: String,
}

/// Name of a device or uplink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DeviceName {
    pub device: String,
}

/// The connected clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Clients {
    pub version: u32,
    pub clients: Vec<Client>,
    /// Devices that have not replied, so that their clients are not known.
    pub silent_devices: Vec<String>,
}

/// An NBD connection or a VMM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Client {
    pub vm: String,
    /// Name of a volume, or `nic/NIC`.
    pub volume: String,
    pub device: String,
    pub protocol: String,
    /// Its address; for a Unix socket its process and user.
    pub peer: String,
    /// Queues that it has started; null if the protocol has none.
    pub queues: Option<u32>,
    pub outstanding: u32,
}

/// Test alerts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TestAlerts {
    pub version: u32,
    pub alerts: Vec<TestAlert>,
}

/// A test alert that was sent, or has failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TestAlert {
    /// The `CLASS` of its table `[alert.CLASS]`.
    pub class: String,
    /// Its program, or its URL without what is secret.
    pub recipient: String,
    /// Why it has failed; null if it has arrived.
    pub error: Option<String>,
}

/// Named policies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Policies {
    pub version: u32,
    pub policies: Vec<NamedPolicy>,
}

/// A named policy on a device or uplink; without a device one that nothing holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NamedPolicy {
    pub policy_name: String,
    pub device: Option<String>,
    pub vms: Vec<String>,
    /// As VM/VOLUME, or VM/nic/NIC. Their reservations are parts of those of their VMs.
    pub volumes: Vec<String>,
    /// Sums of the reservations of the VMs.
    pub reserved_iops: Option<f64>,
    pub reserved_bytes_per_second: Option<u64>,
    /// The same as a part of the device.
    pub reserved_percent: Option<f64>,
    pub policy: Half,
}

/// Storage that other hosts use too, with the device that is a part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PartOfPool {
    pub device: String,
    #[serde(flatten)]
    pub pool: crate::status::DevicePool,
}

/// The past of a VM or volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct History {
    pub version: u32,
    pub vm: String,
    pub volume: Option<String>,
    pub history: Vec<DeviceHistory>,
}

/// The past on one device. Intervals without requests are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DeviceHistory {
    pub device: String,
    /// Seconds of the last 15 minutes.
    pub seconds: Vec<Point>,
    /// Minutes; those of the last 24 hours if no time was stated.
    pub minutes: Vec<Point>,
    /// Quarters of an hour, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarter_hours: Vec<Point>,
}

words! {
    /// Lengths of the intervals of the past.
    pub enum Step {
        Second = "second",
        Minute = "minute",
        QuarterHour = "quarter_hour",
    }
    else Unknown = "unknown"
}

words! {
    /// The main reason for which requests waited.
    pub enum Wait {
        OwnLimit = "own_limit",
        Share = "share",
        Device = "device",
        Batch = "batch",
        Anticipation = "anticipation",
    }
    else Nothing = "nothing"
}

/// One interval of the past. Times are upper bounds of percentiles, from arrival to completion; 0 without requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Point {
    /// Seconds since 1970 at which it began.
    pub time: u64,
    /// Set in a row that stands alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Requests of guests per second that succeeded.
    pub iops: f64,
    pub normalised_iops: f64,
    pub bytes_per_second: f64,
    /// On the wire of an uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<f64>,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Requests of guests per second that failed.
    pub failed: f64,
    /// Part of the time with requests queued.
    pub backlogged_percent: u8,
    /// Part of the dispatches that the reservation caused.
    pub by_reservation_percent: u8,
    pub wait: Wait,
    /// Mean number of requests that were taken and not answered; not of a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<f64>,
    /// Seconds in which a promise was broken; not of a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken_seconds: Option<u64>,
    /// Number of requests by their time: up to 32.768 us, up to twice that, and so on; the last of 16 has no end. Empty of a second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency_counts: Vec<u64>,
    /// The busiest minute of a quarter of an hour: the one with the most normalised requests, on an uplink the one with the most bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub busiest: Option<Box<Point>>,
}

/// Metrics as text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Metrics {
    pub version: u32,
    pub text: Option<String>,
}
