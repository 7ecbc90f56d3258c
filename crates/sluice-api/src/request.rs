//! Requests, and the frame of every reply.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::change::Settings;
use crate::list::Step;
use crate::problem::{Fault, Kind};

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
    /// Tells which client has the lock of a volume's image, or takes it from the client with this address.
    Takeover {
        target: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// Changes keys of a VM or a volume.
    Set {
        target: String,
        keys: toml::Table,
        /// Names of changes that it takes back in the same step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reset: Vec<String>,
        #[serde(default)]
        how: How,
    },
    /// Puts the host file into force, as it is now.
    Apply {
        /// That of the daemon if it is none.
        #[serde(default)]
        file: Option<PathBuf>,
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
    /// The host file in force, with the changes made at run time.
    GetHost,
    /// The keys of a VM, volume, NIC or policy in the host file in force, with the changes made at run time.
    Keys { target: String },
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
    /// Why a VM gets what it gets, and what broke its promises since then.
    Why {
        vm: String,
        /// Seconds since 1970; without it an hour ago.
        #[serde(default)]
        since: Option<u64>,
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
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
        /// Number of the last event that is known already.
        #[serde(default)]
        after: Option<u64>,
        #[serde(default)]
        vm: Option<String>,
        #[serde(default)]
        device: Option<String>,
        /// A kind of events, or `change`.
        #[serde(default)]
        kind: Option<String>,
        #[serde(default)]
        limit: Option<usize>,
    },
    /// Sends a test alert, and waits until it has arrived or failed.
    TestAlert {
        /// The class whose alerts are tested; without it those of all tables.
        #[serde(default)]
        class: Option<String>,
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
        /// Length of the intervals; without it seconds and minutes.
        #[serde(default)]
        step: Option<Step>,
        /// Seconds since 1970.
        #[serde(default)]
        since: Option<u64>,
        #[serde(default)]
        until: Option<u64>,
    },
    /// Takes changes back in one step: those with these names, or all.
    Reset {
        name: Option<Names>,
        #[serde(default)]
        reason: Option<String>,
        #[serde(default)]
        force: Vec<String>,
    },
}

/// Names of changes: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Names {
    One(String),
    Several(Vec<String>),
}

impl Names {
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        match self {
            Names::One(name) => core::slice::from_ref(name),
            Names::Several(names) => names,
        }
    }
}

impl From<Vec<String>> for Names {
    fn from(mut names: Vec<String>) -> Names {
        match (names.pop(), names.is_empty()) {
            (Some(only), true) => Names::One(only),
            (last, _) => Names::Several(names.into_iter().chain(last).collect()),
        }
    }
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
    /// Whether it may replace a change that has an end by one that has none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
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
    /// Until this time, in seconds since 1970.
    Until(u64),
    /// It goes into a drop-in.
    Persist,
}

impl Request {
    /// Whether it only asks for what is observed.
    #[must_use]
    pub fn is_question(&self) -> bool {
        matches!(
            self,
            Request::Status
                | Request::Names
                | Request::Top
                | Request::Details { .. }
                | Request::Why { .. }
                | Request::Clients
                | Request::Policies
                | Request::Metrics { .. }
                | Request::History { .. }
                | Request::Events { .. }
        )
    }

    /// Whether the reply has objects before and after a change.
    #[must_use]
    pub fn is_of_objects(&self) -> bool {
        self.how().is_some() || matches!(self, Request::AcceptLoss { .. } | Request::Reset { .. })
    }

    /// The object that it is about, if it is one.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        match self {
            Request::Attach { target, .. }
            | Request::Detach { target, .. }
            | Request::Resize { target, .. }
            | Request::Set { target, .. }
            | Request::AcceptLoss { target }
            | Request::Takeover { target, .. }
            | Request::Keys { target } => Some(target),
            _ => None,
        }
    }

    /// The options of a change that could last.
    #[must_use]
    pub fn how(&self) -> Option<&How> {
        match self {
            Request::Attach { how, .. }
            | Request::Detach { how, .. }
            | Request::Resize { how, .. }
            | Request::Set { how, .. } => Some(how),
            _ => None,
        }
    }

    /// Objects that may be closed or changed although they are in use.
    #[must_use]
    pub fn force(&self) -> &[String] {
        match self {
            Request::Reset { force, .. } | Request::Apply { force, .. } => force,
            other => other.how().map_or(&[], |how| &how.force),
        }
    }

    /// The stated reason for it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Request::Reset { reason, .. } | Request::Apply { reason, .. } => reason.as_deref(),
            other => other.how()?.reason.as_deref(),
        }
    }
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de>"))]
pub struct Reply<R> {
    #[serde(default)]
    pub ok: bool,
    /// Kind of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What is wrong with what was asked for, one by one, if it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// What was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
    /// The target before and after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Settings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Settings>,
}

/// A reply whose result is written already. So replies to all requests are of one type.
pub type Written = Reply<Box<RawValue>>;

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
    /// The role of the client does not allow it.
    Forbidden,
    /// The object is not in the version that the change was made for; nothing has changed.
    Changed,
}

impl From<Code> for Kind {
    fn from(code: Code) -> Kind {
        match code {
            Code::Invalid => Kind::Invalid,
            Code::NotFound => Kind::NotFound,
            Code::Exists => Kind::Exists,
            Code::Refused => Kind::Refused,
            Code::Incomplete => Kind::Incomplete,
            Code::Forbidden => Kind::Forbidden,
            Code::Changed => Kind::Changed,
        }
    }
}

impl<R> Reply<R> {
    /// A change of one object.
    #[must_use]
    pub fn changed(before: Option<Settings>, after: Option<Settings>) -> Reply<R> {
        Reply { ok: true, code: None, error: None, faults: Vec::new(), result: None, before, after }
    }

    #[must_use]
    pub fn failed(code: Code, error: impl Into<String>) -> Reply<R> {
        Reply { ok: false, code: Some(code), error: Some(error.into()), ..Reply::changed(None, None) }
    }
}

impl Written {
    /// A reply with this result.
    ///
    /// # Panics
    /// If the result cannot be written as JSON, which all types of this crate can.
    #[must_use]
    pub fn with(result: &impl Serialize) -> Written {
        Reply::changed(None, None).and(result)
    }

    /// The same with another result.
    ///
    /// # Panics
    /// As [`Written::with`].
    #[must_use]
    pub fn and(self, result: &impl Serialize) -> Written {
        Reply { result: Some(to_raw_value(result).expect("its keys are strings")), ..self }
    }

    /// Reads the result.
    ///
    /// # Errors
    /// If it has another form.
    pub fn read<R: DeserializeOwned>(&self) -> serde_json::Result<Option<R>> {
        self.result.as_ref().map(|result| serde_json::from_str(result.get())).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_of_one_name_has_the_form_that_it_had_before_there_could_be_several() {
        let reset = |names: Option<Vec<String>>| {
            let request = Request::Reset { name: names.map(Names::from), reason: None, force: Vec::new() };
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
            serde_json::to_value(&request).unwrap()["name"].clone()
        };
        assert_eq!(reset(None), serde_json::Value::Null);
        assert_eq!(reset(Some(vec!["a/limit".to_owned()])), "a/limit");
        let both = ["a/limit", "a/weight"];
        assert_eq!(reset(Some(both.map(str::to_owned).to_vec())), serde_json::json!(both));
    }
}
