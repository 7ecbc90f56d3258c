//! What is in force, for those who ask: overrides, the host file, and the keys of one object with their version.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::{Map, Value, json};
use sluice_api::change::{self, Keys};
use sluice_config::changes::{Object, Target};

use super::apply::State;
use super::socket::Manner;
use super::{Code, Reply, Request};

/// Returns what differs from the files.
pub(super) fn get_overrides(state: &State) -> Reply {
    Reply::with(&change::Overrides { overrides: described(state, None).collect() })
}

/// The changes with these names as those who ask see them; without names, all.
fn described<'a>(state: &'a State, names: Option<&'a [String]>) -> impl Iterator<Item = change::Override> + 'a {
    let named = state.saved.overrides.named(names);
    named.map(|known| known.described(state.overdue.in_words(&known.name())))
}

/// Returns the host file as it is in force: with its drop-ins and the changes made at run time. It has only `state` of
/// `[daemon]`, since the rest is not for observers, and no `[alert]`, which may name secrets.
pub(super) fn get_host(state: &State) -> Reply {
    let laid = state.files.laid(&state.saved.overrides.changes());
    let Ok(serde_json::Value::Object(mut host)) = laid else {
        return Reply::failed(Code::Refused, "The host file in force has errors; `sluice check FILE` reports them");
    };
    host.remove("alert");
    if let Some(serde_json::Value::Object(daemon)) = host.get_mut("daemon") {
        daemon.retain(|key, _| key == "state");
    }
    Reply::with(&change::HostFile { host })
}

/// Returns the keys of one object of that file, with its version.
pub(super) fn get_keys(state: &State, request: &Request) -> Reply {
    let Request::Keys { target } = request else { unreachable!("it asks for keys") };
    let found = keys(state, target);
    found.map_or_else(|refused| refused, |keys| Reply::with(&Keys { version: version_of(&keys), keys }))
}

/// The keys of an object, without those of the objects in it.
fn keys(state: &State, target: &str) -> Result<Map<String, Value>, Reply> {
    let object: Object = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let Ok(laid) = state.files.laid(&state.saved.overrides.changes()) else {
        let error = "The host file in force has errors; `sluice check FILE` reports them";
        return Err(Reply::failed(Code::Refused, error));
    };
    match object.path().iter().try_fold(&laid, |at, part| at.get(part)) {
        Some(Value::Object(table)) => {
            let mut table = table.clone();
            table.retain(|key, _| {
                !matches!((&object, key.as_str()), (Object::Target(Target { volume: None, .. }), "volume" | "nic"))
            });
            Ok(table)
        }
        _ => Err(Reply::failed(Code::NotFound, format!("There is no {target}"))),
    }
}

/// A short text that is another one when any part of this is.
pub(super) fn version_of(what: &impl Serialize) -> String {
    let mut hasher = DefaultHasher::new();
    json!(what).to_string().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Refuses a change that was made for another version of its object, and a reset that was made for another version of the change that it
/// takes back.
pub(super) fn is_current(state: &State, request: &Request, manner: &Manner) -> Result<(), Reply> {
    let Some(version) = &manner.only_if else { return Ok(()) };
    let (what, found) = match request {
        Request::Reset { name: Some(names), .. } => {
            let names = names.as_slice();
            (names.join(", "), Some(version_of(&described(state, Some(names)).collect::<Vec<_>>())))
        }
        _ => {
            let Some(target) = request.target() else { return Ok(()) };
            (target.to_owned(), keys(state, target).ok().map(|keys| version_of(&keys)))
        }
    };
    let error =
        || format!("{what} has changed since it was read: read it again, and decide whether the change is still meant");
    (found.as_ref() == Some(version)).then_some(()).ok_or_else(|| Reply::failed(Code::Changed, error()))
}
