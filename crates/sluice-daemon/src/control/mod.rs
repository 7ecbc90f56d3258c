//! Changes at run time: requests of the control socket, and their replies.
//!
//! Each connection has one request and one reply, each a line of JSON. [`apply`] carries out requests, which `sluice` sends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::server::Force;

pub mod apply;
pub mod changer;
pub mod describe;
pub mod keys;
mod plan;
pub mod roles;
pub mod socket;

/// A request. A target is `VM` or `VM/VOLUME`; keys are those of the host file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Adds a volume, and its VM if it does not exist.
    Attach {
        target: String,
        keys: toml::Table,
        vm: toml::Table,
        #[serde(default)]
        how: How,
    },
    /// Removes a volume, or a VM with its volumes.
    Detach {
        target: String,
        #[serde(default)]
        how: How,
    },
    /// Grows a volume.
    Resize {
        target: String,
        size: String,
        #[serde(default)]
        how: How,
    },
    /// Resumes writes after a failed sync that may have lost data.
    AcceptLoss { target: String },
    /// Changes keys of a VM or a volume.
    Set {
        target: String,
        keys: toml::Table,
        #[serde(default)]
        how: How,
    },
    /// Puts the host file into force, as it is now.
    Apply {
        file: PathBuf,
        /// Only says what would change.
        #[serde(default)]
        dry_run: bool,
        #[serde(default)]
        force: Vec<String>,
        #[serde(default)]
        reason: Option<String>,
    },
    /// Lists what differs from the files.
    GetOverrides,
    /// Everything that is so now.
    Status,
    /// Names of everything that is served, at once and without a sample: for completions in a shell.
    Names,
    /// The current state in a compact form, for a display that asks every second.
    Top,
    /// Everything that is known of a VM or volume, with the times of its requests in the last minute.
    Details {
        vm: String,
        #[serde(default)]
        volume: Option<String>,
    },
    /// Lists the clients.
    Clients,
    /// Lists the named policies, with their holders.
    Policies,
    /// The events that match, oldest first: with `after` the first ones after it, otherwise the latest ones.
    Events {
        /// Seconds since 1970.
        #[serde(default)]
        since: Option<u64>,
        /// Number of the last event that is known already.
        #[serde(default)]
        after: Option<u64>,
        #[serde(default)]
        vm: Option<String>,
        #[serde(default)]
        device: Option<String>,
        #[serde(default)]
        kind: Option<String>,
        #[serde(default)]
        limit: Option<usize>,
    },
    /// Metrics, as text.
    Metrics {
        #[serde(default)]
        format: MetricsFormat,
    },
    /// The past of a VM, or of one of its volumes.
    History {
        vm: String,
        #[serde(default)]
        volume: Option<String>,
    },
    /// Takes changes back: those with this name, or all.
    Reset {
        name: Option<String>,
        #[serde(default)]
        reason: Option<String>,
        #[serde(default)]
        force: Vec<String>,
    },
}

/// Formats of metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsFormat {
    /// The text format 0.0.4 of Prometheus.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// Options of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct How {
    pub term: Term,
    pub reason: Option<String>,
    /// Objects that may be closed or changed although they are in use.
    pub force: Vec<String>,
}

/// The requested lifetime of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// Until the file's value changes.
    #[default]
    Always,
    /// Until the daemon is stopped.
    UntilRestart,
    /// For this number of seconds.
    Seconds(u64),
    /// It goes into a drop-in.
    Persist,
}

impl Request {
    /// Whether it only asks, and the monitor answers it.
    pub fn is_question(&self) -> bool {
        matches!(
            self,
            Request::Status
                | Request::Names
                | Request::Top
                | Request::Details { .. }
                | Request::Clients
                | Request::Policies
                | Request::Metrics { .. }
                | Request::History { .. }
                | Request::Events { .. }
        )
    }

    /// Objects that may be closed or changed although they are in use.
    pub fn force(&self) -> Force {
        let names = match self {
            Request::Attach { how, .. } | Request::Detach { how, .. } | Request::Resize { how, .. } => &how.force,
            Request::Set { how, .. } => &how.force,
            Request::Reset { force, .. } | Request::Apply { force, .. } => force,
            _ => return Force::default(),
        };
        Force::new(names.clone())
    }
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de>"))]
pub struct Reply<R = Value> {
    pub ok: bool,
    /// Kind of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<R>>,
    /// The target before and after the change.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub before: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub after: Value,
    /// The whole reply, if it was written already.
    #[serde(skip)]
    pub line: Option<Box<str>>,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The request is not valid, or no host file could contain it.
    Invalid,
    /// The VM or volume does not exist.
    NotFound,
    /// The VM or volume exists already.
    Exists,
    /// The change is not possible in the current state; nothing has changed.
    Refused,
    /// The change was made, but a device has not confirmed its part.
    Incomplete,
}

impl Reply {
    pub fn failed(code: Code, error: impl Into<String>) -> Self {
        Reply { ok: false, code: Some(code), error: Some(error.into()), ..Reply::changed(Value::Null, Value::Null) }
    }

    fn changed(before: Value, after: Value) -> Self {
        Reply { ok: true, code: None, error: None, result: None, before, after, line: None }
    }

    pub fn with(result: Value) -> Self {
        Reply { result: Some(Box::new(result)), ..Reply::changed(Value::Null, Value::Null) }
    }

    /// As [`Reply::with`], but writes the result immediately. On a large host that takes a fraction of the time that a
    /// [`Value`] of all VMs takes.
    pub fn written(result: &impl Serialize) -> Self {
        #[derive(Serialize)]
        struct Line<'a, R> {
            ok: bool,
            result: &'a R,
        }
        let line = serde_json::to_string(&Line { ok: true, result }).expect("our own types have string keys");
        Reply { line: Some(line.into_boxed_str()), ..Reply::changed(Value::Null, Value::Null) }
    }

    /// The reply as a line, without its end.
    pub fn into_line(self) -> serde_json::Result<String> {
        match self.line {
            Some(line) => Ok(line.into()),
            None => serde_json::to_string(&self),
        }
    }

    /// Adds warnings, which a client prints after the result.
    fn and_warn(mut self, warnings: &[String]) -> Self {
        if !warnings.is_empty() {
            self.result.get_or_insert_with(|| Box::new(json!({})))["warnings"] = json!(warnings);
        }
        self
    }
}
