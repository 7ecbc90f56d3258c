//! State of the daemon itself: what is in force beside the host file, its restarts, and clients that it has lost.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::DaemonEnd;
use crate::object::ObjectId;
use crate::words::words;

/// State of the daemon itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DaemonState {
    #[serde(skip_serializing_if = "OverridesInForce::is_none")]
    pub overrides: OverridesInForce,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_reload: Option<RefusedReload>,
    /// Ends of the daemon in the last hour, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<Restart>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_clients: Vec<LostClient>,
    /// The last alert that failed, unless a later one to that recipient has arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_alert: Option<FailedAlert>,
    /// Why events and history are not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordTrouble>,
    /// How the daemon is sealed. Missing: it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jail: Option<Jail>,
}

words! {
    /// Whether a layer of the seal is in force.
    pub enum LayerState { InForce = "in-force", Missing = "missing", }
    else LeftOut = "left-out"
}

/// The seal of the daemon: its layers, and what it has refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Jail {
    pub layers: Vec<JailLayer>,
    /// System calls that were refused since the start.
    pub refused: Vec<RefusedCall>,
    /// io_uring rings for further devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rings_free: Option<u64>,
    /// io_uring rings that could not be drained, and are not used again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rings_lost: Option<u64>,
}

/// A layer of the seal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JailLayer {
    pub name: String,
    pub state: LayerState,
    /// Why it is missing, or what the kernel lacks of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Number of times that the seal has refused a system call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RefusedCall {
    pub call: String,
    pub times: u64,
}

impl Jail {
    /// The layers in this state, each with the reason if there is one.
    pub fn layers_that(&self, state: LayerState) -> Vec<String> {
        let those = self.layers.iter().filter(|layer| layer.state == state);
        those
            .map(|layer| match &layer.reason {
                Some(reason) => format!("{} ({reason})", layer.name),
                None => layer.name.clone(),
            })
            .collect()
    }
}

/// Why events and history are not kept in the state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RecordTrouble {
    /// Seconds since 1970.
    pub since: u64,
    pub text: String,
}

/// Changes made at run time that are in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OverridesInForce {
    pub count: usize,
    /// The one that ends next by itself at a time.
    pub next_end: Option<OverrideEnd>,
}

impl OverridesInForce {
    /// Whether there are none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.count == 0
    }
}

/// A change that ends by itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OverrideEnd {
    pub name: String,
    pub value: String,
    /// Seconds since 1970.
    pub time: u64,
}

/// The last reload, if it was refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RefusedReload {
    /// Seconds since 1970.
    pub time: u64,
    /// Where the first error is, if it is in a file.
    pub file: Option<String>,
    pub line: Option<u32>,
    pub error: String,
}

impl RefusedReload {
    /// Where the error is, and the error.
    #[must_use]
    pub fn in_words(&self) -> String {
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            (Some(file), None) => format!("{file}: "),
            (None, _) => String::new(),
        };
        place + &self.error
    }
}

/// An end of the daemon, after which it was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Restart {
    /// Seconds since 1970.
    pub time: u64,
    pub ended_by: DaemonEnd,
}

/// A volume or NIC without the client that it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostClient {
    pub volume: ObjectId,
    /// Seconds since 1970.
    pub since: u64,
    /// How it is known that it should have one, in words.
    pub reason: String,
}

/// An alert that has failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FailedAlert {
    /// The `CLASS` of its table `[alert.CLASS]`.
    pub class: String,
    /// Its program, or its URL without what is secret.
    pub recipient: String,
    /// Seconds since 1970.
    pub time: u64,
    pub error: String,
}
