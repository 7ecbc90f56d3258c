//! What broke the promises of a VM.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cause::Cause;
use crate::event::{EventKind, Neighbour};
use crate::status::Vm;

/// The answer for one VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Why {
    pub ok: bool,
    pub version: u32,
    pub vm: String,
    pub now: Vec<Vm>,
    /// Length of the time that was looked at.
    pub seconds: u64,
    pub violations: Vec<Violation>,
    /// Events of its devices, in sentences.
    pub devices: Vec<String>,
    pub by_device: Vec<OnDevice>,
    /// Changes of the VM in that time, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// The longest first.
    pub causes: Vec<Cause>,
    pub advice: Vec<String>,
    pub text: String,
}

/// All violations of one promise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Violation {
    /// The VM, or VM/VOLUME.
    pub name: String,
    pub device: String,
    pub kind: EventKind,
    pub count: u64,
    /// Sum of their durations; one that still lasts is counted until now.
    pub seconds: u64,
    pub lasts: bool,
    /// Seconds by cause; of one that has not ended 0.
    pub causes_seconds: BTreeMap<Cause, u64>,
    /// Reason why a volume is or was not served.
    pub detail: Option<String>,
}

/// The VM on one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OnDevice {
    /// `-` if it is not known, as of volumes that are held back.
    pub device: String,
    /// Events of the device, in sentences.
    pub events: Vec<String>,
    pub causes: Vec<Cause>,
    pub advice: Vec<String>,
    /// The VM's part of what the device gives, in percent, and the right by which most of it was served; of the last ten seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<Neighbour>,
    /// The other VMs with most of the service in the last ten seconds, largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<Neighbour>,
}
