//! The reply to `Request::Top`. A missing value is one that is not set. Unknown values of a newer daemon are
//! ignored or shown as they are.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::show::{bandwidth, bits, text};

/// Everything now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// As `get devices` has them.
    pub(crate) devices: Vec<Value>,
    pub(crate) vms: Vec<Vm>,
    pub(crate) out_of_service: Vec<String>,
    pub(crate) held_back: Vec<Value>,
}

/// A VM on one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Vm {
    pub(crate) vm: String,
    pub(crate) device: String,
    pub(crate) now: Figures,
    pub(crate) held_by: Option<String>,
    /// CPU time of the daemon for it, in percent of one CPU.
    pub(crate) cpu_percent: f64,
    pub(crate) volumes: Vec<Volume>,
}

/// A volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Volume {
    pub(crate) volume: String,
    pub(crate) now: Figures,
    /// What fails now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failing: Vec<Value>,
}

/// Promises to a VM or volume, and its rates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    pub(crate) state: Option<String>,
    pub(crate) reservation: Amount,
    pub(crate) limit: Amount,
    pub(crate) weight: Option<f64>,
    /// `None` for a volume: those of its VM.
    pub(crate) rates: Option<Rates>,
    pub(crate) outstanding: u64,
    pub(crate) clients: u64,
    /// The broken promises.
    pub(crate) promises: Vec<Value>,
}

impl Snapshot {
    /// What fails now, in sentences.
    pub(crate) fn failing(&self) -> impl Iterator<Item = String> {
        let volumes = self.vms.iter().flat_map(|vm| vm.volumes.iter().map(move |volume| (vm, volume)));
        volumes.flat_map(|(vm, volume)| {
            let name = format!("{}/{}", vm.vm, volume.volume);
            volume.failing.iter().map(move |one| format!("{name} is FAILING: {}", text(&one["text"])))
        })
    }
}

impl Rates {
    /// As people read it: MiB/s, or bits per second with the unit.
    pub(crate) fn throughput(&self) -> String {
        self.bits_per_second.map_or_else(|| bandwidth(&self.bytes_per_second.into()), bits)
    }
}

impl Figures {
    pub(crate) fn is_broken(&self) -> bool {
        self.state.as_deref() == Some("broken")
    }
}

/// A reservation or a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Amount {
    pub(crate) iops: Option<f64>,
    pub(crate) bytes_per_second: Option<f64>,
}

/// Service of a VM or volume: rates of the last second, percentiles of the last ten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    pub(crate) iops: f64,
    pub(crate) bytes_per_second: f64,
    /// On the wire, if it is a NIC or a VM on an uplink.
    pub(crate) bits_per_second: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) by_reservation_percent: Option<f64>,
}

/// Object of the page with details: a VM or volume and its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) device: String,
    pub(crate) vm: String,
    pub(crate) volume: Option<String>,
}

impl Name {
    /// As commands take it.
    pub(crate) fn target(&self) -> String {
        self.volume.as_ref().map_or_else(|| self.vm.clone(), |volume| format!("{}/{volume}", self.vm))
    }
}
