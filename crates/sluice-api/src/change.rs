//! Results of changes, and differences between the configuration in force and the host file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::amount::field;
use crate::http::Call;
use crate::policy::{NetPolicy, Policy};
use crate::request::Request;

/// The policy and settings of a VM, volume or NIC, from the host file and changes made at run time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Settings {
    Vm(Box<VmSettings>),
    Volume(Box<VolumeSettings>),
    Nic(Box<NicSettings>),
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Settings, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let read = if value.get("volumes").is_some() {
            serde_json::from_value(value).map(Settings::Vm)
        } else if value.get("uplink").is_some() {
            serde_json::from_value(value).map(Settings::Nic)
        } else {
            serde_json::from_value(value).map(Settings::Volume)
        };
        read.map_err(D::Error::custom)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VmSettings {
    pub policy: Policy,
    /// Names.
    pub volumes: Vec<String>,
    /// Volumes whose writes fail, because data may be lost.
    pub writes_fail: Vec<String>,
    pub cpu_limit_percent: Option<f64>,
    /// The network half of its policy, if it has NICs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<NetPolicy>,
    /// Names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeSettings {
    pub device: String,
    /// Socket or address for its clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    #[schema(value_type = Option<String>)]
    pub source: Option<PathBuf>,
    /// As the file states it, or else that of the served volume.
    pub size_bytes: Option<u64>,
    /// That of the served volume.
    pub block_size_bytes: Option<u32>,
    pub serial: String,
    /// `unmap` or `ignore`.
    pub discard: String,
    /// Why writes fail.
    pub writes_fail: Option<String>,
    pub policy: Policy,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NicSettings {
    pub uplink: String,
    /// Its socket, or `tap NAME`.
    pub access: Option<String>,
    pub mac: String,
    pub addresses: Vec<String>,
    pub spoof: bool,
    pub dhcp_server: bool,
    pub router_advertisement: bool,
    pub vlan: Option<u16>,
    pub mtu: u16,
    pub offloads: bool,
    pub policy: NetPolicy,
}

/// One object before and after a change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Change {
    pub name: String,
    pub before: Option<Settings>,
    pub after: Option<Settings>,
}

/// Details of a change: what it replaced, its objects if there are several, and warnings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Changed {
    /// Names of earlier changes that it has replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<Vec<String>>,
    /// If it was for several objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<Vec<Change>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(flatten)]
    pub holds: Holds,
}

/// How long a change holds, and what undoes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Holds {
    /// As of an [`Override`]: `reset`, `restart`, a time, or `reload` for one in a drop-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Commands that bring back what was in force before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
    /// The same as requests over HTTP, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo_requests: Vec<UndoRequest>,
    /// Earlier changes made at run time that it has replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Override>,
    /// If it ends by itself: what is in force again then, by the name of the change.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub afterwards: BTreeMap<String, String>,
}

/// A request over HTTP that undoes a change, or a part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UndoRequest {
    /// `PATCH`, `POST` or `DELETE`.
    pub method: String,
    /// Path and query, each part percent-encoded.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

impl From<&Request> for UndoRequest {
    fn from(request: &Request) -> UndoRequest {
        let Call { method, path, body, .. } = request.call();
        UndoRequest { method: method.to_string(), path, body }
    }
}

/// A change as programs see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ChangeResult {
    pub ok: bool,
    pub before: Option<Settings>,
    pub after: Option<Settings>,
    #[serde(flatten)]
    pub changed: Changed,
}

/// The client that has the lock of a volume's image, or had it until now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Takeover {
    /// `VM/VOLUME`.
    pub target: String,
    /// Address of its connection to the cluster.
    pub address: String,
    /// Its host, if it is a daemon of Sluicegate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Since when it has the lock, in seconds since 1970, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Whether the lock was taken from it.
    pub taken: bool,
}

/// Changes made at run time that replace values of the host file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Overrides {
    pub overrides: Vec<Override>,
}

/// The host file in force: its tables as JSON, with drop-ins and changes made at run time, without `alert`, and of `daemon` with `state` alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HostFile {
    pub host: serde_json::Map<String, Value>,
}

/// The keys of an object in the host file in force, with the changes made at run time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Keys {
    /// With values as they are stated there.
    pub keys: serde_json::Map<String, Value>,
    /// It is another one when any of the keys is; the `ETag` of the answer.
    pub version: String,
}

/// A change made at run time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Override {
    pub name: String,
    /// The file's value that it hides: any value of a host file.
    pub file: Value,
    pub file_in_words: String,
    /// The value that it puts in force.
    pub value: Value,
    /// User, group and process that made it.
    pub uid: u32,
    pub gid: u32,
    pub pid: Option<i32>,
    /// When, as text.
    pub at: String,
    pub reason: Option<String>,
    /// How long it lasts, in words.
    pub until: String,
    /// Whether its time is over, and it is kept.
    pub overdue: bool,
    /// Whether it is not in force, because the file does not allow it.
    pub set_aside: bool,
    /// Why it ends, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Override {
    /// Whether it is in a drop-in of the host file, which a reset does not change.
    #[must_use]
    pub fn is_in_drop_in(&self) -> bool {
        is_in_drop_in(&self.until)
    }
}

fn is_in_drop_in(until: &str) -> bool {
    until.starts_with("reload")
}

/// How long a change holds, in words that follow those of the change, by what [`Override::until`] says.
#[must_use]
pub fn until_in_words(until: &str) -> String {
    match until {
        "reset" => "until the host file changes it".to_owned(),
        "restart" => "until the daemon is stopped".to_owned(),
        until if is_in_drop_in(until) => {
            "for good, in the drop-in zz-sluice.toml of the host file (to undo it, edit that and reload)".to_owned()
        }
        time => format!("until {time}"),
    }
}

/// Differences that a reload of a host file makes, or would make.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Plan {
    pub changes: Vec<Effect>,
    pub held_back: Vec<crate::status::NotServed>,
    /// Those that stay in force.
    pub overrides: Vec<Override>,
    pub overrides_set_aside: Vec<Override>,
    pub overrides_ended: Vec<Override>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A plan as programs see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PlanResult {
    pub ok: bool,
    pub dry_run: bool,
    #[serde(flatten)]
    pub plan: Plan,
}

/// Answer to a dry run: the keys that the change would set, and the VMs whose part of a device it would alter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Preview {
    pub changes: Vec<Effect>,
    /// VMs whose part of a device would be another one, those that lose first.
    pub parts: Vec<PartChange>,
    pub warnings: Vec<String>,
}

/// The part of a device or uplink that a VM is guaranteed, before and after a change. A figure is null if the VM is not on the device, or the host file states
/// no capacity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PartChange {
    pub vm: String,
    pub device: String,
    /// What its reservation takes of the device.
    pub reserved_percent_before: Option<f64>,
    pub reserved_percent_after: Option<f64>,
    /// What it gets beyond its reservation while all VMs ask for all they may, in normalised requests per second; on an uplink null.
    pub spare_iops_before: Option<f64>,
    pub spare_iops_after: Option<f64>,
    /// In words: `db1 60 % of nvme0, was 40 %`.
    pub text: String,
}

/// One difference between two host files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Effect {
    /// `db1`, `db1/root` or `device nvme0`.
    pub name: String,
    pub key: String,
    pub before: String,
    pub after: String,
    /// In words.
    pub effect: String,
}

impl Effect {
    /// Key and values before and after in people's units, as [`field`] has them.
    #[must_use]
    pub fn in_units(&self) -> [String; 3] {
        let value = |text: &String| text.parse::<f64>().map_or_else(|_| Value::from(text.as_str()), Value::from);
        let shown = |text: &String| field(self.key.clone(), &value(text));
        [shown(&self.before).0, shown(&self.before).1, shown(&self.after).1]
    }
}
