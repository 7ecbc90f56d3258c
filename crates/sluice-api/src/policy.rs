//! Policies as they are in force.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::words::words;

words! {
    /// Whether the requests are foreground or background work.
    pub enum Class { Background = "background", }
    else Foreground = "foreground"
}

words! {
    /// I/O priority class, as of a Linux process.
    pub enum PriorityClass { RealTime = "real-time", Idle = "idle", }
    else BestEffort = "best-effort"
}

/// A policy. Rates in requests are normalised. A value that is not set is null.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Policy {
    pub reservation_iops: Option<f64>,
    pub reservation_bytes_per_second: Option<u64>,
    pub limit_iops: Option<f64>,
    pub limit_bytes_per_second: Option<u64>,
    pub read_limit_iops: Option<f64>,
    pub read_limit_bytes_per_second: Option<u64>,
    pub write_limit_iops: Option<f64>,
    pub write_limit_bytes_per_second: Option<u64>,
    pub weight: Option<f64>,
    /// Requests.
    pub burst: Option<u32>,
    pub burst_iops: Option<f64>,
    pub burst_bytes_per_second: Option<u64>,
    pub burst_seconds: Option<f64>,
    pub idle_credit: u32,
    pub latency_p99_us: Option<f64>,
    pub latency_reads_only: Option<bool>,
    pub class: Class,
    pub priority_class: PriorityClass,
    pub priority_level: u8,
}

/// The network half of a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NetPolicy {
    /// What applies to frames that are sent.
    #[serde(flatten)]
    pub transmit: Policy,
    pub burst_time_us: Option<u64>,
    pub receive_limit_bytes_per_second: Option<u64>,
    pub receive_weight: Option<f64>,
}

/// Either half of a named policy.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Half {
    Net(NetPolicy),
    Disk(Policy),
}

impl Default for Half {
    fn default() -> Half {
        Half::Disk(Policy::default())
    }
}

impl<'de> Deserialize<'de> for Half {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Half, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let read = match value.get("receive_weight") {
            Some(_) => serde_json::from_value(value).map(Half::Net),
            None => serde_json::from_value(value).map(Half::Disk),
        };
        read.map_err(D::Error::custom)
    }
}

impl Half {
    /// What applies to requests, or to frames that are sent.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        match self {
            Half::Net(net) => &net.transmit,
            Half::Disk(policy) => policy,
        }
    }
}
