//! How long a change made at run time holds, what it has replaced, and the commands that undo it.
//!
//! A command that undoes a change brings back what was in force before: what another change had set, or else the file's value. Example:
//! the file limits `batch` to 500 iops, and `set batch limit=400` is in force. Then `set batch limit=300 --for 10m` is undone by
//! `set batch limit='400 iops' --permanent`, and ends by itself with 400 iops in force again.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::change::Holds;
use sluice_api::request::Request;
use sluice_api::shell;
use sluice_config::changes::{Object, is_pattern};

use super::{Code, Reply};
use crate::state::overrides::{Change, Lasts, Override, Overrides, flat};
use crate::state::time::Time;

/// Returns how long a change lasts that made `after` of `before`; of one that takes changes back only what it has taken.
pub(super) fn holds(request: &Request, lasts: Lasts, (before, after): (&Overrides, &Overrides), now: Time) -> Holds {
    if matches!(request, Request::Reset { .. }) {
        return Holds::default();
    }
    let (dropped, new) = before.differing(after);
    let undo = match request {
        Request::Attach { target, .. } => {
            // A new VM goes with its volume.
            let target = new.first().map_or_else(|| target.clone(), |first| first.target.to_string());
            vec![shell::command(["sluice", "detach", &target])]
        }
        Request::Detach { target, .. } => attach_again(target, before),
        Request::Set { target, .. } => set_again(target, &new, before, now),
        // A disk does not shrink.
        _ => Vec::new(),
    };
    let is_ending = matches!(lasts, Lasts::UntilRestart | Lasts::Until(_));
    let instead = |known: &&Override| (known.name(), after.instead_of(known));
    Holds {
        until: Some(lasts.to_string()),
        // `reset` does not change a drop-in.
        undo: if lasts == Lasts::Persisted { Vec::new() } else { undo },
        replaced: dropped.into_iter().map(|known| known.described(None)).collect(),
        afterwards: if is_ending { new.iter().map(instead).collect() } else { BTreeMap::new() },
    }
}

/// Refuses a change without an end that has replaced one with an end: the end and the reason would be lost.
pub(super) fn refuse_replacing(before: &Overrides, after: &Overrides) -> Result<(), Reply> {
    let (dropped, _) = before.differing(after);
    let Some(old) = dropped.into_iter().find(|old| old.lasts.is_temporary()) else { return Ok(()) };
    let reason = old.origin.reason.as_ref().map_or(String::new(), |reason| format!(", reason: {reason}"));
    let error = format!(
        "{} is {} until {}{reason}, and this change would replace it for good; repeat with --permanent, or give it an end with --for or \
         --until-restart",
        old.name(),
        old.value(),
        old.lasts
    );
    Err(Reply::failed(Code::Refused, error))
}

/// Returns the commands that set these keys as they were.
fn set_again(target: &str, new: &[&Override], before: &Overrides, now: Time) -> Vec<String> {
    let names: BTreeSet<String> = new.iter().map(|new| new.name()).collect();
    let mut old: BTreeMap<String, Vec<&Override>> = BTreeMap::new();
    for known in before.iter() {
        let name = known.name();
        if names.contains(&name) {
            old.entry(name).or_default().push(known);
        }
    }
    let reset = |name: &str| shell::command(["sluice", "reset", name]);
    if is_pattern(target) && old.is_empty() {
        let keys: BTreeSet<&str> = new.iter().filter_map(|new| new.key()).collect();
        return keys.into_iter().map(|key| reset(&format!("{target}/{key}"))).collect();
    }
    let undo = |new: &&Override| {
        let name = new.name();
        let old = old.get(&name).map_or(&[][..], Vec::as_slice);
        match (new.lasts.is_temporary(), old.split_last()) {
            (_, None) => vec![reset(&name)],
            // It has replaced the last one, or has hidden it if that does not end.
            (true, Some((last, _))) => set_once(last, new, now).into_iter().collect(),
            // It has replaced all of them.
            (false, Some(_)) => {
                let first = old[0].lasts.is_temporary().then(|| reset(&name));
                first.into_iter().chain(old.iter().filter_map(|old| set_once(old, new, now))).collect()
            }
        }
    };
    new.iter().flat_map(undo).collect()
}

/// Returns the command that makes an old change again, in place of the new one.
fn set_once(old: &Override, new: &Override, now: Time) -> Option<String> {
    let Change::Set { key, value } = &old.change else { return None };
    let mut words = vec!["sluice".to_owned(), "set".to_owned(), old.target.to_string(), assignment(key, value)];
    words.extend(match old.lasts {
        Lasts::Until(end) => vec!["--for".to_owned(), format!("{}s", end.from(now).as_secs().max(1))],
        Lasts::UntilRestart => vec!["--until-restart".to_owned()],
        Lasts::Persisted => vec!["--persist".to_owned()],
        Lasts::Always if new.lasts.is_temporary() => vec!["--permanent".to_owned()],
        Lasts::Always => Vec::new(),
    });
    words.extend(old.origin.reason.iter().flat_map(|reason| ["--reason".to_owned(), reason.clone()]));
    Some(shell::command(words))
}

pub(super) fn assignment(key: &str, value: &toml::Value) -> String {
    format!("{key}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Returns the commands that serve what was detached again, with what was set of it: what was attached at run time is attached with its
/// keys, what the file has is there without the detach.
fn attach_again(target: &str, before: &Overrides) -> Vec<String> {
    let Ok(detached) = target.parse::<Object>() else { return Vec::new() };
    let known: Vec<&Override> = before.in_force().filter(|known| detached.covers(&known.target)).collect();
    let set_of = |object: &Object| {
        let set = known.iter().filter(|known| known.target == *object).filter_map(|known| match &known.change {
            Change::Set { key, value } => Some((key.clone(), value.clone())),
            _ => None,
        });
        set.collect::<Vec<_>>()
    };
    let (mut of_vm, mut commands) = (Vec::new(), Vec::new());
    for one in known.iter().filter(|one| one.is_attach()) {
        let (Change::Attach { keys }, Object::Target(object)) = (&one.change, &one.target) else { continue };
        let prefix = if object.volume.is_none() { "vm." } else { "" };
        let keys: BTreeMap<String, toml::Value> = flat(keys.clone()).into_iter().chain(set_of(&one.target)).collect();
        let keys = keys.iter().map(|(key, value)| format!("{prefix}{}", assignment(key, value)));
        if object.volume.is_none() {
            of_vm.extend(keys);
            continue;
        }
        let words = ["sluice".to_owned(), "attach".to_owned(), one.target.to_string()];
        // A new VM gets its policy with its first volume.
        commands.push(shell::command(words.into_iter().chain(keys).chain(std::mem::take(&mut of_vm))));
    }
    if !commands.is_empty() {
        return commands;
    }
    let objects: BTreeSet<&Object> = known.iter().map(|known| &known.target).collect();
    let again = objects.into_iter().flat_map(|object| {
        let of = |(key, value): (String, toml::Value)| match (key.as_str(), value.as_str()) {
            ("size", Some(size)) => shell::command(["sluice", "resize", &object.to_string(), size]),
            _ => shell::command(["sluice", "set", &object.to_string(), &assignment(&key, &value)]),
        };
        set_of(object).into_iter().map(of).collect::<Vec<_>>()
    });
    [shell::command(["sluice", "reset", target])].into_iter().chain(again).collect()
}
