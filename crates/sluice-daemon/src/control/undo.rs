//! How long a change made at run time holds, what it has replaced, and what undoes it: requests, and the same as commands of a shell.
//!
//! A command that undoes a change brings back what was in force before: what another change had set with its end and its reason, or else
//! the file's value. Example: the file limits `batch` to 500 iops, and `set batch limit=400` is in force. Then
//! `set batch limit=300 weight=7 --for 10m` is undone by `set batch limit='400 iops' --permanent --reset batch/weight`, and ends by itself
//! with 400 iops in force again.
//!
//! Keys that were set together are undone by one command, because half of it may not be valid: a limit below the reservation. Only values
//! that had another end or reason, or are of another object, have a command each after it.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::change::{Holds, UndoRequest};
use sluice_api::request::{How, Request, Term};
use sluice_api::shell;
use sluice_config::changes::{Object, is_pattern};

use super::{Code, Reply};
use crate::state::overrides::{Change, Lasts, Override, Overrides, flat, overlap};
use crate::state::time::Time;

/// Returns how long a change lasts that made `after` of `before`; of one that takes changes back only what it has taken.
pub(super) fn holds(request: &Request, lasts: Lasts, (before, after): (&Overrides, &Overrides)) -> Holds {
    if matches!(request, Request::Reset { .. }) {
        return Holds::default();
    }
    let (dropped, new) = before.differing(after);
    let undo = match request {
        Request::Attach { target, .. } => {
            // A new VM goes with its volume.
            let target = new.first().map_or_else(|| target.clone(), |first| first.target.to_string());
            vec![Request::Detach { target, how: How::default() }]
        }
        Request::Detach { target, .. } => attach_again(target, before, !new.is_empty()),
        Request::Set { target, .. } => set_again(target, (&dropped, &new), before),
        // A disk does not shrink.
        _ => Vec::new(),
    };
    // `reset` does not change a drop-in.
    let undo = if lasts == Lasts::Persisted { Vec::new() } else { undo };
    let is_ending = matches!(lasts, Lasts::UntilRestart | Lasts::Until(_));
    let instead = |known: &&Override| {
        // A source that has been extended stays so.
        let is_resize = matches!(request, Request::Resize { .. });
        (known.name(), if is_resize { "the size of its source".to_owned() } else { after.instead_of(known) })
    };
    Holds {
        until: Some(lasts.to_string()),
        undo: undo.iter().map(command).collect(),
        undo_requests: undo.iter().map(UndoRequest::from).collect(),
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

/// Values of one object that one command can set: they have the same end and the same reason.
struct Group<'a> {
    object: &'a Object,
    lasts: Lasts,
    reason: Option<&'a str>,
    values: Vec<&'a Override>,
}

impl<'a> Group<'a> {
    /// Those that last come first: they would replace those for a time, which only hide them.
    fn all(values: impl Iterator<Item = &'a Override>) -> Vec<Group<'a>> {
        let mut groups = BTreeMap::new();
        for one in values.filter(|one| one.key().is_some()) {
            let (object, lasts, reason) = (&one.target, one.lasts, one.origin.reason.as_deref());
            let group = Group { object, lasts, reason, values: Vec::new() };
            groups.entry((lasts.is_temporary(), object, lasts, reason)).or_insert(group).values.push(one);
        }
        groups.into_values().collect()
    }

    /// Whether setting these values drops that of another change.
    fn replaces(&self, other: &Override) -> bool {
        !self.lasts.is_temporary() && self.values.iter().any(|own| own.overlaps(other))
    }

    /// The request that sets them, and takes back the changes with the names `reset`.
    fn request(&self, permanent: bool, reset: Vec<String>) -> Request {
        let mut keys = toml::Table::new();
        for own in &self.values {
            let Change::Set { key, value } = &own.change else { continue };
            put(&mut keys, key, value.clone());
        }
        let how = How { permanent, ..how(self.lasts, self.reason) };
        Request::Set { target: self.object.to_string(), keys, reset, how }
    }
}

/// Puts a value into a table at a key with dots between its parts.
fn put(keys: &mut toml::Table, key: &str, value: toml::Value) {
    let Some((first, rest)) = key.split_once('.') else {
        keys.insert(key.to_owned(), value);
        return;
    };
    let inner = keys.entry(first).or_insert_with(|| toml::Table::new().into());
    if let Some(inner) = inner.as_table_mut() {
        put(inner, rest, value);
    }
}

/// The options of a change that ends at the same time and has the same reason.
fn how(lasts: Lasts, reason: Option<&str>) -> How {
    let term = match lasts {
        Lasts::Until(end) => Term::Until(end.0),
        Lasts::UntilRestart => Term::UntilRestart,
        Lasts::Persisted => Term::Persist,
        Lasts::Always => Term::Always,
    };
    How { term, reason: reason.map(str::to_owned), ..How::default() }
}

/// Returns a request as a command that can be copied into a shell.
fn command(request: &Request) -> String {
    let assignments = |prefix: &'static str, keys: &toml::Table| {
        flat(keys.clone()).into_iter().map(move |(key, value)| format!("{prefix}{}", assignment(&key, &value)))
    };
    let (verb, objects): (&str, Vec<String>) = match request {
        Request::Attach { target, keys, vm, .. } => {
            let keys = assignments("", keys).chain(assignments("vm.", vm));
            ("attach", [target.clone()].into_iter().chain(keys).collect())
        }
        Request::Detach { target, .. } => ("detach", vec![target.clone()]),
        Request::Resize { target, size, .. } => ("resize", vec![target.clone(), size.clone()]),
        Request::Set { target, keys, .. } => {
            ("set", [target.clone()].into_iter().chain(assignments("", keys)).collect())
        }
        Request::Reset { name: Some(names), .. } => ("reset", names.as_slice().to_vec()),
        other => unreachable!("{other:?} undoes nothing"),
    };
    let reset = match request {
        Request::Set { reset, .. } => reset.as_slice(),
        _ => &[],
    };
    let words = ["sluice".to_owned(), verb.to_owned()].into_iter().chain(objects);
    let words = words.chain(request.how().into_iter().flat_map(options));
    shell::command(words.chain(reset.iter().flat_map(|name| ["--reset".to_owned(), name.clone()])))
}

/// The options of a change as a command line has them.
fn options(how: &How) -> Vec<String> {
    let mut words = match how.term {
        Term::Until(end) => vec!["--until".to_owned(), Time(end).to_string()],
        Term::Seconds(seconds) => vec!["--for".to_owned(), format!("{seconds}s")],
        Term::UntilRestart => vec!["--until-restart".to_owned()],
        Term::Persist => vec!["--persist".to_owned()],
        Term::Always => Vec::new(),
    };
    words.extend(how.reason.iter().flat_map(|reason| ["--reason".to_owned(), reason.clone()]));
    words.extend(how.permanent.then(|| "--permanent".to_owned()));
    words
}

/// Returns the request that takes changes back.
fn reset(names: Vec<String>) -> Request {
    Request::Reset { name: Some(names.into()), reason: None, force: Vec::new() }
}

/// Returns the requests that take `new` back, and set again what it has `dropped` or hides.
fn set_again(target: &str, (dropped, new): (&[&Override], &[&Override]), before: &Overrides) -> Vec<Request> {
    let dropped: BTreeSet<*const Override> = dropped.iter().map(|old| std::ptr::from_ref(*old)).collect();
    let mut of_object: BTreeMap<&Object, Vec<&Override>> = BTreeMap::new();
    new.iter().for_each(|new| of_object.entry(&new.target).or_default().push(new));
    let is_old = |known: &&Override| {
        let mut new = of_object.get(&known.target).into_iter().flatten();
        dropped.contains(&std::ptr::from_ref(*known)) || new.any(|new| new.overlaps(known))
    };
    let groups = Group::all(before.in_force().filter(is_old));
    let first = groups.first();
    let (replaced, others): (Vec<&Override>, Vec<&Override>) =
        new.iter().partition(|new| first.is_some_and(|first| first.replaces(new)));
    let names: BTreeSet<String> = match is_pattern(target) {
        true => others.iter().filter_map(|new| Some(format!("{target}/{}", new.key()?))).collect(),
        false => others.iter().map(|new| new.name()).collect(),
    };
    let names = names.into_iter().collect();
    let Some(first) = first else { return vec![reset(names)] };
    let permanent = replaced.iter().any(|new| new.lasts.is_temporary());
    let first = first.request(permanent, names);
    [first].into_iter().chain(groups.iter().skip(1).map(|group| group.request(false, Vec::new()))).collect()
}

/// Returns `KEY=VALUE` as a command line has it.
pub(super) fn assignment(key: &str, value: &toml::Value) -> String {
    // A text that is also another value of TOML, such as `5`, needs its quotes.
    let is_other = |text: &str| format!("value = {text}").parse::<toml::Table>().is_ok() || text.trim() != text;
    let text = value.as_str().filter(|text| !is_other(text));
    format!("{key}={}", text.map_or_else(|| value.to_string(), str::to_owned))
}

/// Returns the requests that serve what was detached again, with what was set of it, each with its end: what was attached at run time is
/// attached with its keys, what the file has is there without the detach. `is_hidden`: the detach is a change that hides what it detaches.
fn attach_again(target: &str, before: &Overrides, is_hidden: bool) -> Vec<Request> {
    let Ok(detached) = target.parse::<Object>() else { return Vec::new() };
    let known: Vec<&Override> = before.in_force().filter(|known| detached.covers(&known.target)).collect();
    let mut of_vm = toml::Table::new();
    let mut requests: Vec<Request> = is_hidden.then(|| reset(vec![target.to_owned()])).into_iter().collect();
    let mut with_attach: BTreeSet<*const Override> = BTreeSet::new();
    for one in known.iter().filter(|one| one.is_attach()) {
        let (Change::Attach { keys }, Object::Target(object)) = (&one.change, &one.target) else { continue };
        let mut all: BTreeMap<String, toml::Value> = flat(keys.clone()).into_iter().collect();
        let same_end = |set: &Override| {
            !set.lasts.is_temporary() || set.lasts == one.lasts && set.origin.reason == one.origin.reason
        };
        for set in known.iter().filter(|set| set.target == one.target && same_end(set)) {
            let Change::Set { key, value } = &set.change else { continue };
            all.retain(|other, _| !overlap(other, key));
            all.insert(key.clone(), value.clone());
            with_attach.insert(std::ptr::from_ref(*set));
        }
        let mut keys = toml::Table::new();
        let to = if object.volume.is_none() { &mut of_vm } else { &mut keys };
        all.into_iter().for_each(|(key, value)| put(to, &key, value));
        if object.volume.is_some() {
            // A new VM gets its policy with its first volume.
            let (vm, how) = (std::mem::take(&mut of_vm), how(one.lasts, one.origin.reason.as_deref()));
            requests.push(Request::Attach { target: one.target.to_string(), keys, vm, how });
        }
    }
    let is_left = |set: &&&Override| !with_attach.contains(&std::ptr::from_ref(**set));
    let (sizes, others): (Vec<&Override>, Vec<&Override>) =
        known.iter().filter(is_left).copied().partition(|set| set.key() == Some("size"));
    requests.extend(sizes.into_iter().filter_map(|set| {
        let Change::Set { value, .. } = &set.change else { return None };
        let (target, size) = (set.target.to_string(), value.as_str()?.to_owned());
        Some(Request::Resize { target, size, how: how(set.lasts, set.origin.reason.as_deref()) })
    }));
    requests.extend(Group::all(others.into_iter()).iter().map(|group| group.request(false, Vec::new())));
    requests
}
