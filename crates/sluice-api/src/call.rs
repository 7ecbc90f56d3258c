//! Requests as HTTP has them: which resource each one reads or changes.

use std::borrow::Cow;
use std::fmt::Write as _;

use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json, to_value};

use crate::body::{Apply, Attach, Detach, Reset, Resize, Set, TakeFrom, TestOf};
use crate::http::Call;
use crate::request::{MetricsFormat, Names, Request};

/// Characters that are percent-encoded in a part of a path and in a value of a query.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The type of metrics in the text format of Prometheus, and in that of OpenMetrics.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A name as a part of a path or query.
#[must_use]
pub fn encoded(name: &str) -> Cow<'_, str> {
    utf8_percent_encode(name, &ENCODED).into()
}

/// The path of what has this name: `VM`, `VM/VOLUME`, `VM/nic/NIC` or `policy/NAME`.
#[must_use]
pub fn path_of(target: &str) -> String {
    match target.split_once('/') {
        None => format!("/v1/vms/{}", encoded(target)),
        Some(("policy", policy)) => format!("/v1/policies/{}", encoded(policy)),
        Some((vm, name)) => match name.strip_prefix("nic/") {
            Some(nic) => format!("/v1/nics/{}/{}", encoded(vm), encoded(nic)),
            None => format!("/v1/volumes/{}/{}", encoded(vm), encoded(name)),
        },
    }
}

/// A path with a query of the values that are stated.
#[must_use]
pub fn with_query(mut path: String, values: &impl Serialize) -> String {
    let Ok(Value::Object(values)) = to_value(values) else { return path };
    let mut sign = '?';
    for (name, value) in values {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text,
            other => other.to_string(),
        };
        let _ = write!(path, "{sign}{name}={}", encoded(&text));
        sign = '&';
    }
    path
}

fn body(of: &impl Serialize) -> Value {
    to_value(of).expect("its keys are strings")
}

fn post(path: impl Into<String>, of: &impl Serialize) -> Call {
    Call::send(Method::POST, path, body(of))
}

impl Request {
    /// The request over HTTP.
    #[must_use]
    pub fn call(&self) -> Call {
        self.reads().map_or_else(|| self.changes(), |(path, kind)| Call::get(path).header("accept", kind))
    }

    /// The path that it reads, and the content type that it asks for; `None` for a change.
    fn reads(&self) -> Option<(String, &'static str)> {
        let path = match self {
            Request::Status => "/v1/status".to_owned(),
            Request::Names => "/v1/names".to_owned(),
            Request::Top => "/v1/top".to_owned(),
            Request::GetHost => "/v1/host".to_owned(),
            Request::GetOverrides => "/v1/overrides".to_owned(),
            Request::Clients => "/v1/clients".to_owned(),
            Request::Policies => "/v1/policies".to_owned(),
            Request::Details { vm, volume: None } => path_of(vm),
            Request::Details { vm, volume: Some(volume) } => path_of(&format!("{vm}/{volume}")),
            Request::Keys { target } => path_of(target) + "/keys",
            Request::Why { vm, since } => with_query("/v1/why".to_owned(), &json!({ "vm": vm, "since": since })),
            Request::Takeover { target, from: None } => path_of(target) + "/lock",
            Request::Metrics { format: MetricsFormat::Prometheus } => return Some(("/metrics".to_owned(), PROMETHEUS)),
            Request::Metrics { format: MetricsFormat::OpenMetrics } => {
                return Some(("/metrics".to_owned(), OPEN_METRICS));
            }
            Request::Events { since, until, after, vm, device, kind, limit } => {
                let which = json!({
                    "since": since, "until": until, "after": after, "vm": vm, "device": device, "kind": kind, "limit": limit,
                });
                with_query("/v1/events".to_owned(), &which)
            }
            Request::History { vm, volume, step, since, until } => {
                let volume = volume.iter().flat_map(|volume| volume.split('/'));
                let path = [vm.as_str()].into_iter().chain(volume).map(encoded).collect::<Vec<_>>().join("/");
                let when = json!({ "step": step, "since": since, "until": until });
                with_query(format!("/v1/history/{path}"), &when)
            }
            _ => return None,
        };
        Some((path, "application/json"))
    }

    fn changes(&self) -> Call {
        match self {
            Request::Set { target, keys, reset, how } => {
                let set = Set { keys: keys.clone(), reset: reset.clone(), ..Set::default() }.with(how);
                Call::send(Method::PATCH, path_of(target), body(&set))
            }
            Request::Attach { target, keys, vm, how } => {
                let attach = Attach { keys: keys.clone(), vm: vm.clone(), ..Attach::default() }.with(how);
                post(path_of(target), &attach)
            }
            Request::Detach { target, how } => {
                let path = with_query(path_of(target), &Detach::default().with(how));
                Call { method: Method::DELETE, ..Call::get(path) }
            }
            Request::Resize { target, size, how } => {
                post(path_of(target) + "/resize", &Resize { size: size.clone(), ..Resize::default() }.with(how))
            }
            Request::AcceptLoss { target } => post(path_of(target) + "/accept-loss", &json!({})),
            Request::Takeover { target, from } => {
                post(path_of(target) + "/lock", &TakeFrom { from: from.clone().unwrap_or_default() })
            }
            Request::Reset { name, reason, force } => {
                let reset = name.as_ref().map(|names| Names::as_slice(names).to_vec());
                post("/v1/reset", &Reset { reset, reason: reason.clone(), force: force.clone() })
            }
            Request::Apply { file, dry_run, force, reason } => {
                let file = file.as_ref().map(|file| file.to_string_lossy().into_owned());
                let path = if *dry_run { "/v1/apply?dry_run=true" } else { "/v1/apply" };
                post(path, &Apply { file, reason: reason.clone(), force: force.clone() })
            }
            Request::TestAlert { class } => post("/v1/alerts/test", &TestOf { class: class.clone() }),
            _ => unreachable!("it is one that reads"),
        }
    }
}
