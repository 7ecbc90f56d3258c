//! Bodies of the HTTP requests that change something. A request with a key that it does not use is refused.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::{Kind, Problem};
use crate::request::{How, Term};

/// Defines what a change states that could last: its own fields, for how long it holds, and why.
macro_rules! lasting {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* } force: $force:ty) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// Its end, in seconds since 1970.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub until: Option<u64>,
            /// Seconds after which it ends.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub seconds: Option<u64>,
            /// Whether it ends when the daemon is stopped.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub until_restart: bool,
            /// Whether it goes into a drop-in of the host file.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub persist: bool,
            /// Whether it may replace a change that has an end by one that has none.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub permanent: bool,
            /// For the log and the events.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub reason: Option<String>,
            /// Objects that may be closed or changed although they are in use.
            #[serde(skip_serializing_if = "Force::is_none")]
            pub force: $force,
        }

        impl $name {
            /// Adds its options.
            #[must_use]
            pub fn with(self, how: &How) -> $name {
                let How { term, reason, force, permanent } = how.clone();
                let mut own = $name { reason, permanent, force: Force::of(force), ..self };
                match term {
                    Term::Always => {}
                    Term::UntilRestart => own.until_restart = true,
                    Term::Seconds(seconds) => own.seconds = Some(seconds),
                    Term::Until(until) => own.until = Some(until),
                    Term::Persist => own.persist = true,
                }
                own
            }

            /// Returns its options.
            ///
            /// # Errors
            /// It states more than one end.
            pub fn how(&self) -> Result<How, Box<Problem>> {
                let $name { until, seconds, until_restart, persist, permanent, reason, force, .. } = self.clone();
                let ends = [
                    until.map(Term::Until),
                    seconds.map(Term::Seconds),
                    until_restart.then_some(Term::UntilRestart),
                    persist.then_some(Term::Persist),
                ];
                let mut ends = ends.into_iter().flatten();
                let term = ends.next().unwrap_or_default();
                if ends.next().is_some() {
                    let error = "until, seconds, until_restart and persist exclude each other: state one of them";
                    return Err(Kind::Invalid.with(error).into());
                }
                Ok(How { term, reason, force: Force::list(force), permanent })
            }
        }
    };
}

/// Objects in use that a change may close: a list in a body, and names with commas between them in a query.
trait Force: Sized {
    fn of(names: Vec<String>) -> Self;
    fn list(self) -> Vec<String>;
    fn is_none(&self) -> bool;
}

impl Force for Vec<String> {
    fn of(names: Vec<String>) -> Vec<String> {
        names
    }

    fn list(self) -> Vec<String> {
        self
    }

    fn is_none(&self) -> bool {
        self.is_empty()
    }
}

impl Force for Option<String> {
    fn of(names: Vec<String>) -> Option<String> {
        (!names.is_empty()).then(|| names.join(","))
    }

    fn list(self) -> Vec<String> {
        self.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect()
    }

    fn is_none(&self) -> bool {
        self.is_none()
    }
}

lasting! {
    /// Keys of a VM, volume, NIC or policy that change.
    #[derive(ToSchema)]
    pub struct Set {
        /// As in the host file: `{"limit": "500 iops", "weight": 200}`.
        #[schema(value_type = serde_json::Map<String, serde_json::Value>)]
        pub keys: toml::Table,
        /// Names of changes that it takes back in the same step.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub reset: Vec<String>,
    }
    force: Vec<String>
}

lasting! {
    /// A volume, and its VM if that is new.
    #[derive(ToSchema)]
    pub struct Attach {
        /// Keys of the volume, as in the host file.
        #[schema(value_type = serde_json::Map<String, serde_json::Value>)]
        pub keys: toml::Table,
        /// Keys of its VM, if that is new.
        #[serde(skip_serializing_if = "toml::Table::is_empty")]
        #[schema(value_type = serde_json::Map<String, serde_json::Value>)]
        pub vm: toml::Table,
    }
    force: Vec<String>
}

lasting! {
    /// A larger size of a volume.
    #[derive(ToSchema)]
    pub struct Resize {
        /// As in the host file: `40GiB`.
        pub size: String,
    }
    force: Vec<String>
}

lasting! {
    /// Parameters of a detach, which has no body.
    #[derive(IntoParams)]
    #[into_params(parameter_in = Query)]
    pub struct Detach {
        /// `1`: the answer says what would change, and nothing changes.
        #[serde(deserialize_with = "flag", skip_serializing_if = "std::ops::Not::not")]
        pub dry_run: bool,
    }
    force: Option<String>
}

/// Reads `1`, `0`, `true` or `false`.
///
/// # Errors
/// It is something else.
pub fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        other => Err(serde::de::Error::custom(format!("'{other}' is neither 1 nor 0"))),
    }
}

/// Changes that are taken back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reset {
    /// Their names; null for all.
    pub reset: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub force: Vec<String>,
}

/// The host file is read again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Apply {
    /// The daemon's host file if it is null; of a dry run any file on the daemon's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub force: Vec<String>,
}

/// The lock of an image is taken from this client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeFrom {
    /// Address of the client that has it, as reading the lock tells.
    pub from: String,
}

/// A test of alerts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TestOf {
    /// The class whose alerts are tested; null for those of all tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}
