//! The end of changes whose time is over.
//!
//! All that are due end in one change. If that is refused, for example because the image of one of them cannot be opened, each half of them
//! is attempted apart, and so on: what can end ends, and what cannot stays in force, is reported, and is tried again. Changes of one VM or
//! of several may depend on each other, so what is refused alone may end together with others that are due later.
//!
//! A volume that was attached for a time is not taken from a running VM: its override stays while the volume has clients, and its end is
//! tried again. After a start nothing has clients yet, so it stays for the time in which they reconnect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sluice_api::object::ObjectId;
use sluice_config::Diagnostics;
use sluice_config::changes::{Object, Target};

use crate::control::apply::{Proposal, State};
use crate::control::overdue::Why;
use crate::state::overrides::Override;
use crate::state::time::Time;

/// Returns the sets of overrides that are to end now, apart from those that are `ending`.
pub(super) fn due(state: &mut State, ending: &BTreeSet<String>) -> [BTreeSet<String>; 2] {
    let (now, time, overdue) = (Instant::now(), Time::now(), &mut state.overdue.0);
    let over = state.saved.overrides.iter().filter(|known| known.is_over(time));
    let over: BTreeSet<String> = over.map(Override::name).collect();
    overdue.retain(|name, _| over.contains(name));
    let is_due = |name: &String| overdue.get(name).is_none_or(|kept| kept.again <= now);
    let due = over.into_iter().filter(|name| !ending.contains(name) && is_due(name));
    // Those that were refused alone need not be looked for among the others once more.
    let (refused, others) = due.partition(|name| overdue.get(name).is_some_and(|kept| kept.why != Why::InUse));
    [others, refused]
}

/// Returns the time at which an override expires, or is to be tried again.
pub(super) fn next(state: &State, ending: &BTreeSet<String>) -> Option<Instant> {
    let is_known = |name: &str| state.overdue.0.contains_key(name) || ending.contains(name);
    let first = state.saved.overrides.next_expiry(is_known).map(|at| Instant::now() + at.from(Time::now()));
    let again = state.overdue.0.iter().filter(|(name, _)| !ending.contains(*name)).map(|(_, kept)| kept.again);
    again.chain(first).min()
}

/// Proposes the end of overrides.
pub(super) fn propose(state: &State, names: &BTreeSet<String>) -> Result<Proposal, Diagnostics> {
    let mut saved = state.saved.clone();
    let mut gone = saved.overrides.expire(Time::now(), |known| !names.contains(&known.name()));
    gone.extend(saved.overrides.settle(&state.files));
    let host = state.files.changed(&saved.overrides.changes())?;
    Ok(Proposal::of(host.into(), saved, gone))
}

/// Keeps the overrides of `names` in force whose end would close `volumes`, which are in use. Returns whether there are any.
pub(super) fn keep_used(state: &mut State, names: &mut BTreeSet<String>, volumes: &[ObjectId]) -> bool {
    let before = names.len();
    for known in state.saved.overrides.iter().filter(|known| names.contains(&known.name())).collect::<Vec<_>>() {
        // The policy of others closes nothing.
        let Object::Target(Target { vm, volume }) = &known.target else { continue };
        // Keys of a VM close nothing, but its volumes need the VM.
        let is_needed_by = |used: &&ObjectId| {
            let (used_vm, used) = used.parts();
            vm == used_vm && volume.as_ref().map_or(known.is_attach(), |volume| *volume == used)
        };
        let Some(object) = volumes.iter().find(is_needed_by) else { continue };
        let (name, until) = (known.name(), known.lasts.to_string());
        let (vm, volume) = object.parts();
        names.remove(&name);
        if state.overdue.keep(&name, Why::InUse) {
            tracing::warn!(
                vm,
                volume = &*volume,
                name,
                until,
                "Expired override stays in force: ending it would close a volume in use; retrying"
            );
        }
    }
    names.len() < before
}

/// Returns the halves of overrides whose end was refused together. Keeps them if they belong together.
pub(super) fn halves(state: &mut State, names: &BTreeSet<String>, error: &str) -> Vec<BTreeSet<String>> {
    let mut parts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for known in state.saved.overrides.iter().filter(|known| names.contains(&known.name())) {
        // A VM that was attached has the keys of its volumes.
        let part = match &known.target {
            Object::Target(target) if known.is_attach() => target.vm.clone(),
            _ => known.name(),
        };
        parts.entry(part).or_default().insert(known.name());
    }
    let parts: Vec<BTreeSet<String>> = parts.into_values().collect();
    if parts.len() > 1 {
        return parts.chunks(parts.len().div_ceil(2)).map(|half| half.iter().flatten().cloned().collect()).collect();
    }
    for name in parts.into_iter().flatten() {
        if state.overdue.keep(&name, Why::Refused(error.to_owned())) {
            tracing::error!(name, error, "Expired override stays in force: its end is refused; retrying");
        }
    }
    Vec::new()
}
