//! The end of changes whose time is over.
//!
//! All that are due end in one attempt. If that is refused, for example because the image of one of them cannot be opened, each half of them
//! is attempted apart, and so on: what can end ends, and what cannot stays in force, is reported, and is tried again. Changes of one VM or
//! of several may depend on each other, so what is refused alone may end together with others that are due later.
//!
//! A volume that was attached for a time is not taken from a running VM: its override stays while the volume has clients, and its end is
//! tried again. After a start nothing has clients yet, so it stays for the time in which they reconnect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_config::changes::{Object, Target};

use super::{Attempt, Kind, PAUSE, Thread};
use crate::server::ServerError;
use crate::state::overrides::Override;
use crate::state::time::Time;

/// Interval between attempts to end what is over and in use.
const IN_USE_EVERY: Duration = Duration::from_secs(2);
/// Interval between attempts to end what is over and whose end was refused.
const REFUSED_EVERY: Duration = Duration::from_secs(10);
/// Time after a start in which clients reconnect to what was attached for a time that is over now.
const RECONNECT_MAX: Duration = Duration::from_secs(30);

/// An override that is in force although its time is over.
pub struct Overdue {
    why: Kept,
    /// Time of the next attempt to end it.
    again: Instant,
}

/// Why an override is in force although its time is over.
#[derive(PartialEq)]
enum Kept {
    /// Its end would close a volume in use.
    InUse,
    /// Its end was refused, with this error.
    Refused(String),
}

impl Overdue {
    /// For `sluice get overrides`.
    pub fn in_words(&self) -> &'static str {
        match self.why {
            Kept::InUse => "kept while its volume is in use",
            Kept::Refused(_) => "cannot end yet, see the log",
        }
    }
}

impl Thread {
    /// Ends changes whose time is over.
    pub(super) fn expire(&mut self) {
        if self.attempts.iter().any(|attempt| matches!(attempt.kind, Kind::Start(_))) {
            return;
        }
        let (now, time, ending) = (Instant::now(), Time::now(), self.ending());
        let over = self.state.saved.overrides.iter().filter(|known| known.is_over(time));
        let over: BTreeSet<String> = over.map(Override::name).collect();
        let overdue = &mut self.state.overdue;
        overdue.retain(|name, _| over.contains(name));
        let due = over.into_iter().filter(|name| !ending.contains(name));
        let due = due.filter(|name| overdue.get(name).is_none_or(|known| known.again <= now));
        // Those that were refused alone need not be looked for among the others once more.
        let was_refused = |name: &String| overdue.get(name).is_some_and(|known| known.why != Kept::InUse);
        let (refused, others): (BTreeSet<_>, BTreeSet<_>) = due.partition(was_refused);
        for names in [others, refused].into_iter().filter(|names| !names.is_empty()) {
            self.begin(Kind::Expire(names));
        }
    }

    /// Names of the overrides that pending attempts are to end.
    fn ending(&self) -> BTreeSet<String> {
        let names = self.attempts.iter().filter_map(|attempt| match &attempt.kind {
            Kind::Expire(names) => Some(names),
            Kind::Start(_) | Kind::Change(_) | Kind::Reload(_) | Kind::Retry(_) => None,
        });
        names.flatten().cloned().collect()
    }

    /// Returns the time until an override expires, or is to be tried again.
    pub(super) fn until_expiry(&self) -> Option<Duration> {
        let (ending, overdue) = (self.ending(), &self.state.overdue);
        let is_known = |name: &str| overdue.contains_key(name) || ending.contains(name);
        let first = self.state.saved.overrides.next_expiry(is_known).map(|at| at.from(Time::now()));
        let again = overdue.iter().filter(|(name, _)| !ending.contains(*name)).map(|(_, known)| known.again);
        let again = again.map(|at| at.saturating_duration_since(Instant::now()));
        again.chain(first).min().map(|time| time.max(PAUSE))
    }

    /// Takes overrides out of an attempt whose end would close volumes in use, and continues with the others. Otherwise returns the attempt.
    pub(super) fn without_used(&mut self, mut attempt: Attempt, error: &ServerError) -> Option<Attempt> {
        let (Kind::Expire(names), ServerError::InUse { volumes, .. }) = (&mut attempt.kind, error) else {
            return Some(attempt);
        };
        let mut used = Vec::new();
        for known in self.state.saved.overrides.iter().filter(|known| names.contains(&known.name())) {
            // The policy of others closes nothing.
            let Object::Target(Target { vm, volume }) = &known.target else { continue };
            // Keys of a VM close nothing, but its volumes need the VM.
            let is_needed_by = |used: &&ObjectId| {
                let (used_vm, used) = used.parts();
                vm == used_vm && volume.as_ref().map_or(known.is_attach(), |volume| *volume == used)
            };
            if let Some(volume) = volumes.iter().find(is_needed_by) {
                used.push((known.name(), known.lasts.to_string(), volume));
            }
        }
        if used.is_empty() {
            return Some(attempt);
        }
        for (name, until, object) in used {
            names.remove(&name);
            let (vm, volume) = object.parts();
            if self.keep(&name, Kept::InUse, IN_USE_EVERY) {
                tracing::warn!(
                    vm,
                    volume = &*volume,
                    name,
                    until,
                    "Expired override stays in force: ending it would close a volume in use; retrying"
                );
            }
        }
        if !names.is_empty() {
            self.advance(attempt);
        }
        None
    }

    /// Attempts those apart whose end was refused together. Keeps them if they belong together.
    pub(super) fn cannot_end(&mut self, names: &BTreeSet<String>, error: &str) {
        let mut parts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for known in self.state.saved.overrides.iter().filter(|known| names.contains(&known.name())) {
            // A VM that was attached has the keys of its volumes.
            let part = match &known.target {
                Object::Target(target) if known.is_attach() => target.vm.clone(),
                _ => known.name(),
            };
            parts.entry(part).or_default().insert(known.name());
        }
        let mut parts: Vec<BTreeSet<String>> = parts.into_values().collect();
        if parts.len() > 1 {
            let second = parts.split_off(parts.len() / 2);
            for half in [parts, second] {
                self.begin(Kind::Expire(half.into_iter().flatten().collect()));
            }
            return;
        }
        for name in parts.into_iter().flatten() {
            if self.keep(&name, Kept::Refused(error.to_owned()), REFUSED_EVERY) {
                tracing::error!(name, error, "Expired override stays in force: its end is refused; retrying");
            }
        }
    }

    /// Leaves an override in force for now. Returns whether this is new, or the reason is.
    fn keep(&mut self, name: &str, why: Kept, time: Duration) -> bool {
        let overdue = &mut self.state.overdue;
        let is_new = overdue.get(name).is_none_or(|known| known.why != why);
        overdue.insert(name.to_owned(), Overdue { why, again: Instant::now() + time });
        is_new
    }

    /// After a start: leaves what is over in force until its clients have had time to reconnect.
    pub(super) fn await_clients_of_overdue(&mut self) {
        let (time, again) = (Time::now(), Instant::now() + RECONNECT_MAX);
        let over = self.state.saved.overrides.iter().filter(|known| known.is_over(time));
        self.state.overdue = over.map(|known| (known.name(), Overdue { why: Kept::InUse, again })).collect();
    }
}
