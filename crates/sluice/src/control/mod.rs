//! Changes while the daemon runs: what is asked at its control socket, and what is answered.
//!
//! One request and one reply per connection, each a line of JSON. What a request means is in [`apply`]; who asks is a verb
//! of this very binary ([`client`]).

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) mod apply;
pub(crate) mod changer;
pub(crate) mod client;
pub(crate) mod keys;
pub(crate) mod server;

/// What is asked for. A target is `VM` or `VM/VOLUME`; keys are those of the host file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// A volume comes, and its VM if that is not there.
    Attach { target: String, keys: toml::Table, vm: toml::Table },
    /// A volume goes, or a VM with its volumes.
    Detach { target: String },
    /// A volume grows.
    Resize { target: String, size: String },
    /// Writes go on where a failed sync may have lost data.
    AcceptLoss { target: String },
    /// Keys get other values.
    Set { target: String, keys: toml::Table },
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) ok: bool,
    /// Of a failure: what kind it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<Code>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The target before and after.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) before: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) after: Value,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Code {
    /// What was asked is no request, or no host file could say it.
    Invalid,
    /// There is no such VM or volume.
    NotFound,
    /// There is one already.
    Exists,
    /// It cannot be done as things are; nothing has changed.
    Refused,
    /// It was done, and a device has not confirmed its part.
    Incomplete,
}

impl Reply {
    fn failed(code: Code, error: impl Into<String>) -> Self {
        Reply { ok: false, code: Some(code), error: Some(error.into()), before: Value::Null, after: Value::Null }
    }
}
