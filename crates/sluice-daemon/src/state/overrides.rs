//! Changes made at run time, laid over the host file: how long they stay, and when they yield to the file.
//!
//! An override is one key of a VM, a volume or a named policy, or the attachment or detachment of one. With it is the file's value when
//! it was made. As long as the file has that value the override wins; when the file gets another one, that is the newer
//! decision, and the override yields. Example: the file says `limit = "500 iops"`, `sluice set` makes it 100. Editing the weight
//! changes nothing about it. Editing the limit to 800 does: 800 is in force, and the override is gone.

use core::ops::Bound;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_api::change;
use sluice_api::status::{OverrideEnd, OverridesInForce};
use sluice_config::Files;
use sluice_config::changes::{Changes, Object, matches, nested};

pub use super::gone::{Gone, report_gone, with_file};
use super::time::Time;

/// A change made at run time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    #[serde(with = "as_text")]
    pub target: Object,
    pub change: Change,
    /// The file's value of the same when this was made; null if it has none.
    pub file: Value,
    pub origin: Origin,
    pub lasts: Lasts,
    /// Whether it is not in force, because the files do not allow it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_aside: bool,
}

/// A change of one key, or of the presence of a VM or volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A key, with dots for tables.
    Set { key: String, value: toml::Value },
    /// A VM or volume is added, with these keys.
    Attach { keys: toml::Table },
    /// It is removed.
    Detach,
}

/// The user who made a change, the time, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    pub uid: u32,
    pub gid: u32,
    /// Process of the command; `None` if it is in another PID namespace.
    pub pid: Option<i32>,
    pub at: Time,
    pub reason: Option<String>,
}

impl core::fmt::Display for Origin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "uid {}, gid {}", self.uid, self.gid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", pid {pid}"))
    }
}

/// The lifetime of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lasts {
    /// Until the file's value changes, or it is taken back.
    Always,
    /// Also at most until the daemon is stopped. A crash is no stop.
    UntilRestart,
    /// Also at most until this time.
    Until(Time),
    /// It is in a drop-in, which the daemon has not read yet.
    Persisted,
}

impl Lasts {
    /// Whether it ends by itself.
    pub fn is_temporary(self) -> bool {
        matches!(self, Lasts::UntilRestart | Lasts::Until(_))
    }
}

impl core::fmt::Display for Lasts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Lasts::Always => write!(f, "reset"),
            Lasts::UntilRestart => write!(f, "restart"),
            Lasts::Until(time) => write!(f, "{time}"),
            Lasts::Persisted => write!(f, "reload: it is in a drop-in"),
        }
    }
}

/// A change, with the value of its key in two configurations, in words.
pub struct Compared<'a> {
    pub of: &'a Override,
    pub before: String,
    pub after: String,
}

impl Override {
    /// Its name for `sluice reset`: `db1/limit`, `db1/root/size`, `db1/root`, `policy/gold.limit`.
    pub fn name(&self) -> String {
        match (&self.change, &self.target) {
            (Change::Set { key, .. }, Object::Policy(_)) => format!("{}.{key}", self.target),
            (Change::Set { key, .. }, Object::Target(_)) => format!("{}/{key}", self.target),
            (Change::Attach { .. } | Change::Detach, _) => self.target.to_string(),
        }
    }

    /// Its name, and those of everything that it is below.
    fn names(&self) -> Vec<String> {
        let (own, object) = (self.name(), self.target.to_string());
        let vm = match &self.target {
            Object::Target(target) => Some(target.vm.clone()),
            Object::Policy(_) => None,
        };
        // A name of an object may have dots, too.
        let tables = own[object.len()..].match_indices('.').map(|(at, _)| own[..object.len() + at].to_owned());
        vm.into_iter()
            .chain([object.clone()])
            .chain(tables.filter(|name| *name != object))
            .chain([own.clone()])
            .collect()
    }

    /// Whether it has one of these names, or is below it. A name may be a pattern.
    pub fn is_named(&self, names: &[impl AsRef<str>]) -> bool {
        let slashes = |name: &str| name.matches('/').count();
        let own: Vec<(usize, String)> = self.names().into_iter().map(|own| (slashes(&own), own)).collect();
        let has = |name: &str| {
            let count = slashes(name);
            own.iter().any(|(slashes, own)| *slashes == count && matches(name, own))
        };
        names.iter().any(|name| has(name.as_ref()))
    }

    /// Whether both set the same key of one object, or one sets a table around the other's key.
    pub fn overlaps(&self, other: &Override) -> bool {
        let keys = self.key().zip(other.key());
        self.target == other.target && keys.is_some_and(|(one, other)| overlap(one, other))
    }

    /// The key that it sets.
    pub fn key(&self) -> Option<&str> {
        match &self.change {
            Change::Set { key, .. } => Some(key),
            Change::Attach { .. } | Change::Detach => None,
        }
    }

    /// A value with the key that it sets.
    pub fn with_key(&self, value: &str) -> String {
        self.key().map_or_else(|| value.to_owned(), |key| format!("{key}={value}"))
    }

    /// Whether its time is over.
    pub fn is_over(&self, now: Time) -> bool {
        matches!(self.lasts, Lasts::Until(time) if time <= now)
    }

    /// Whether it adds a VM or volume, which goes when it ends.
    pub fn is_attach(&self) -> bool {
        matches!(self.change, Change::Attach { .. })
    }

    /// Whether it is about this volume, `VM/VOLUME`, or about its VM.
    pub fn concerns(&self, volume: &str) -> bool {
        volume.parse().is_ok_and(|volume| self.target.covers(&Object::Target(volume)))
    }

    /// The value that it puts in force, in words.
    pub fn value(&self) -> String {
        match &self.change {
            Change::Set { value, .. } => plain(&json!(value)),
            Change::Attach { .. } => "attached".to_owned(),
            Change::Detach => "detached".to_owned(),
        }
    }

    /// The file's value that it hides, in words.
    pub fn hidden(&self) -> String {
        in_words(&self.change, &self.file)
    }

    /// As `sluice get overrides` has it. `overdue`: its time is over, and why it is kept.
    pub fn described(&self, overdue: Option<&str>) -> change::Override {
        let Origin { uid, gid, pid, at, reason } = &self.origin;
        change::Override {
            name: self.name(),
            file: self.file.clone(),
            file_in_words: self.hidden(),
            value: match &self.change {
                Change::Set { value, .. } => json!(value),
                Change::Attach { .. } | Change::Detach => json!(self.value()),
            },
            uid: *uid,
            gid: *gid,
            pid: *pid,
            at: at.to_string(),
            reason: reason.clone(),
            until: overdue.map_or_else(|| self.lasts.to_string(), |why| format!("{}, over: {why}", self.lasts)),
            overdue: overdue.is_some(),
            set_aside: self.is_aside,
            why: None,
        }
    }
}

fn in_words(change: &Change, file: &Value) -> String {
    match (change, file) {
        (_, Value::Null) => "-".to_owned(),
        (Change::Set { .. }, value) => plain(value),
        (Change::Attach { .. } | Change::Detach, _) => "present".to_owned(),
    }
}

/// Whether a key is this one, or in its table.
fn is_within(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a key is another one, or one is a table around the other.
pub fn overlap(one: &str, other: &str) -> bool {
    is_within(one, other) || is_within(other, one)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// All changes made at run time, in the order in which they are laid over the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Overrides(Vec<Override>);

impl Overrides {
    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a change, which replaces those that it makes void. One for a time only hides lasting ones, which are in force again
    /// when it ends.
    pub fn add(&mut self, new: Override) {
        self.add_all(vec![new]);
    }

    /// Adds changes of which none makes another of them void, in one pass over all changes.
    pub fn add_all(&mut self, new: Vec<Override>) {
        self.replace(&new);
        self.0.extend(new);
    }

    /// Removes those that `new` makes void.
    pub fn replace(&mut self, new: &[Override]) {
        let mut keys: BTreeMap<&Object, BTreeMap<&str, Lasts>> = BTreeMap::new();
        for (new, key) in new.iter().filter_map(|new| Some((new, new.key()?))) {
            keys.entry(&new.target).or_default().insert(key, new.lasts);
        }
        let detached: Vec<&Override> = new.iter().filter(|new| new.change == Change::Detach).collect();
        let attached: Vec<&Override> = new.iter().filter(|new| new.is_attach()).collect();
        self.0.retain(|known| {
            let of_key = known.key().and_then(|key| Some(within(keys.get(&known.target)?, key))).into_iter().flatten();
            let of_object = detached.iter().filter(|new| new.target.covers(&known.target)).map(|new| new.lasts);
            let attached = attached.iter().filter(|new| known.is_attach() && new.target == known.target);
            let of_object = of_object.chain(attached.map(|new| new.lasts));
            !of_key.chain(of_object).any(|lasts| known.lasts.is_temporary() || !lasts.is_temporary())
        });
    }

    /// Removes what has one of these names, with everything below it: `db1/limit`, `db1/root/size`, `db1/root`, `db1`.
    pub fn remove(&mut self, names: &[impl AsRef<str>]) -> Vec<Override> {
        self.0.extract_if(.., |known| known.is_named(names)).collect()
    }

    /// Returns those that [`Overrides::remove`] removes; without names, all.
    pub fn named<'a>(&'a self, names: Option<&'a [String]>) -> impl Iterator<Item = &'a Override> {
        self.0.iter().filter(move |known| names.is_none_or(|names| known.is_named(names)))
    }

    /// By name; of several with one name the last, which is in force.
    pub fn by_name(&self) -> BTreeMap<String, &Override> {
        self.0.iter().map(|known| (known.name(), known)).collect()
    }

    /// The changes that differ in `after`, which was made of these, with what is in force here and there in words.
    pub fn compared<'a>(&'a self, after: &'a Overrides) -> Vec<Compared<'a>> {
        let (dropped, new) = self.differing(after);
        let mut names: BTreeMap<String, (Option<&Override>, Option<&Override>)> = BTreeMap::new();
        dropped.into_iter().for_each(|known| names.entry(known.name()).or_default().0 = Some(known));
        new.into_iter().for_each(|known| names.entry(known.name()).or_default().1 = Some(known));
        let compared = |(was, is): (Option<&'a Override>, Option<&'a Override>)| {
            let of = was.or(is)?;
            let before = was.map_or_else(|| self.instead_of(of), Override::value);
            let now = is.map_or_else(|| after.instead_of(of), Override::value);
            Some(Compared { of, before, after: now })
        };
        names.into_values().filter_map(compared).collect()
    }

    /// Removes all.
    pub fn clear(&mut self) -> Vec<Override> {
        std::mem::take(&mut self.0)
    }

    /// Whether an object is there with these files and changes.
    pub(super) fn has(&self, files: &Files, target: &Object) -> bool {
        exists(files, &self.0, target)
    }

    /// Removes those that end with a stop of the daemon.
    pub(super) fn stop(&mut self) -> Vec<(Override, Gone)> {
        let ends = |known: &mut Override| known.lasts == Lasts::UntilRestart;
        let ended: Vec<Override> = self.0.extract_if(.., ends).collect();
        self.with_successors(ended, |now| Gone::Stopped { now })
    }

    /// Adds to changes that have ended what is in force instead.
    fn with_successors(&self, ended: Vec<Override>, why: impl Fn(String) -> Gone) -> Vec<(Override, Gone)> {
        let why = |old: Override| {
            let why = why(self.instead_of(&old));
            (old, why)
        };
        ended.into_iter().map(why).collect()
    }

    /// Returns in words the value that is in force without this change: that of another change, or else the file's.
    pub fn instead_of(&self, old: &Override) -> String {
        let is_of = |known: &&Override| {
            *known != old
                && known.target == old.target
                && match (known.key(), old.key()) {
                    (Some(one), Some(other)) => overlap(one, other),
                    (None, None) => true,
                    _ => false,
                }
        };
        self.in_force().filter(is_of).last().map_or_else(|| old.hidden(), Override::value)
    }

    /// Those of these that are not in `after`, and those that are only there. `after` was made of these: what has stayed has kept its
    /// order, and what is new comes last.
    pub fn differing<'a>(&'a self, after: &'a Overrides) -> (Vec<&'a Override>, Vec<&'a Override>) {
        let (mut dropped, mut kept) = (Vec::new(), 0);
        for known in &self.0 {
            match after.0.get(kept) {
                Some(same) if same == known => kept += 1,
                _ => dropped.push(known),
            }
        }
        (dropped, after.0[kept..].iter().collect())
    }

    /// Corrects the end of those that were made later than `now`: the clock has been set back since. They last as long from now on
    /// as they were made for.
    pub fn correct_clock(&mut self, now: Time) {
        for known in &mut self.0 {
            let made = known.origin.at;
            if let Lasts::Until(end) = &mut known.lasts
                && made > now
            {
                *end = Time(now.0.saturating_add(end.0.saturating_sub(made.0)));
                known.origin.at = now;
            }
        }
    }

    /// Removes those whose time is over, except the `kept` ones.
    pub fn expire(&mut self, now: Time, kept: impl Fn(&Override) -> bool) -> Vec<(Override, Gone)> {
        let ends = |known: &mut Override| known.is_over(now) && !kept(known);
        let ended: Vec<Override> = self.0.extract_if(.., ends).collect();
        self.with_successors(ended, |now| Gone::Expired { now })
    }

    /// When the first one expires, apart from those whose names are known to be over.
    pub fn next_expiry(&self, is_over: impl Fn(&str) -> bool) -> Option<Time> {
        let times = self.0.iter().filter_map(|known| match known.lasts {
            Lasts::Until(time) => (!is_over(&known.name())).then_some(time),
            Lasts::Always | Lasts::UntilRestart | Lasts::Persisted => None,
        });
        times.min()
    }

    /// Those that are written to the state file: the others are in a drop-in.
    pub fn without_persisted(&self) -> Overrides {
        Overrides(self.0.iter().filter(|known| known.lasts != Lasts::Persisted).cloned().collect())
    }

    /// Removes those that yield to these files, or have lost their VM or volume. What was attached over a detached one of the same name
    /// takes that along: the last word was that it is there.
    pub fn settle(&mut self, files: &Files) -> Vec<(Override, Gone)> {
        let (mut kept, mut gone) = (Vec::<Override>::new(), Vec::new());
        for known in std::mem::take(&mut self.0) {
            let now = file_value(files, &known.target, &known.change);
            if now != known.file {
                let now = in_words(&known.change, &now);
                let why = match known.lasts {
                    Lasts::Persisted => Gone::InFile,
                    _ => Gone::Yielded { now },
                };
                if known.is_attach() && !known.lasts.is_temporary() {
                    let is_below = |old: &mut Override| old.change == Change::Detach && old.target == known.target;
                    gone.extend(kept.extract_if(.., is_below).map(|old| (old, Gone::Replaced)));
                }
                gone.push((known, why));
            } else if matches!(known.change, Change::Set { .. }) && !exists(files, &kept, &known.target) {
                gone.push((known, Gone::Orphaned));
            } else {
                kept.push(known);
            }
        }
        self.0 = kept;
        gone
    }

    /// Sets those aside that these files do not allow, for example because a MAC address collides now: they are kept, and are not in
    /// force. All others are in force again. `step` is called before each check of the files, which may take long. Returns whether there are some that
    /// were in force before.
    pub fn fit(&mut self, files: &Files, step: impl Fn()) -> bool {
        let before: Vec<bool> = self.0.iter().map(|known| known.is_aside).collect();
        self.restore();
        let is_valid = |known: &[Override]| {
            step();
            files.changed(&Overrides(known.to_vec()).changes()).is_ok()
        };
        while !is_valid(&self.0) {
            // The files are valid with the first `right` of them, and not with the first `wrong`.
            let (mut right, mut wrong) = (0, self.0.len());
            while wrong - right > 1 {
                let middle = usize::midpoint(right, wrong);
                if is_valid(&self.0[..middle]) { right = middle } else { wrong = middle }
            }
            match self.0.get_mut(right).filter(|known| !known.is_aside) {
                Some(known) => known.is_aside = true,
                // The files are not valid by themselves.
                None => return true,
            }
        }
        before.iter().zip(&self.0).any(|(was_aside, known)| known.is_aside && !was_aside)
    }

    /// Puts those in force again that are set aside.
    pub fn restore(&mut self) {
        self.0.iter_mut().for_each(|known| known.is_aside = false);
    }

    /// Those that are set aside.
    pub fn aside(&self) -> impl Iterator<Item = &Override> {
        self.0.iter().filter(|known| known.is_aside)
    }

    /// All others.
    pub fn in_force(&self) -> impl Iterator<Item = &Override> {
        self.0.iter().filter(|known| !known.is_aside)
    }

    /// How many are in force, and which one ends next by itself.
    pub fn summary(&self) -> OverridesInForce {
        let end = |known: &Override| match known.lasts {
            Lasts::Until(Time(time)) => Some(OverrideEnd { name: known.name(), value: known.value(), time }),
            _ => None,
        };
        let next_end = self.in_force().filter_map(end).min_by_key(|end| end.time);
        OverridesInForce { count: self.in_force().count(), next_end }
    }

    /// The changes in force, in the form that is laid over the files.
    pub fn changes(&self) -> Changes {
        Overrides::laid(self.in_force())
    }

    /// As [`Overrides::changes`], with those that are set aside.
    pub fn all_changes(&self) -> Changes {
        Overrides::laid(self.0.iter())
    }

    fn laid<'a>(all: impl Iterator<Item = &'a Override>) -> Changes {
        let mut changes = Changes::default();
        for Override { target, change, .. } in all {
            match change {
                Change::Set { key, value } => changes.set(target.clone(), nested(key, value.clone())),
                Change::Attach { keys } => changes.set(target.clone(), keys.clone()),
                Change::Detach => changes.remove(target.clone()),
            }
        }
        changes
    }
}

/// The file's value of what a change is about; null if it has none.
pub fn file_value(files: &Files, target: &Object, change: &Change) -> Value {
    match change {
        Change::Set { key, .. } => files.stated(target, key).unwrap_or_default(),
        Change::Attach { .. } => files.table(target).unwrap_or_default(),
        Change::Detach => {
            if files.has(target) {
                true.into()
            } else {
                Value::Null
            }
        }
    }
}

/// Whether an object is there with these files, after these changes.
fn exists(files: &Files, changes: &[Override], target: &Object) -> bool {
    let concerns = |known: &&Override| match known.change {
        Change::Attach { .. } => known.target == *target,
        Change::Detach => known.target.covers(target),
        Change::Set { .. } => false,
    };
    match changes.iter().rev().find(concerns) {
        Some(last) => matches!(last.change, Change::Attach { .. }),
        None => files.has(target),
    }
}

/// Returns the values of those keys that are `key`, or a table around it, or in it.
fn within(keys: &BTreeMap<&str, Lasts>, key: &str) -> Vec<Lasts> {
    let around = key.match_indices('.').map(|(at, _)| &key[..at]).chain([key]).filter_map(|table| keys.get(table));
    let inside = format!("{key}.");
    let from = (Bound::Included(inside.as_str()), Bound::Unbounded);
    let inner = keys.range::<str, _>(from).take_while(|(other, _)| other.starts_with(&inside)).map(|(_, lasts)| lasts);
    around.chain(inner).copied().collect()
}

/// Returns the keys of a table with their values; tables in it become keys with dots.
pub fn flat(keys: toml::Table) -> Vec<(String, toml::Value)> {
    let mut all = Vec::new();
    for (key, value) in keys {
        match value {
            toml::Value::Table(inner) if !inner.is_empty() => {
                all.extend(flat(inner).into_iter().map(|(below, value)| (format!("{key}.{below}"), value)));
            }
            value => all.push((key, value)),
        }
    }
    all
}

/// A target as `VM` or `VM/VOLUME`.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use sluice_config::changes::Object;

    pub(super) fn serialize<S: Serializer>(target: &Object, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(target)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    pub fn made(target: &str, change: Change, file: Value) -> Override {
        let origin = Origin { uid: 0, gid: 0, pid: Some(1), at: Time(1000), reason: None };
        Override { target: target.parse().unwrap(), change, file, origin, lasts: Lasts::Always, is_aside: false }
    }

    pub fn set(target: &str, key: &str, value: &str) -> Override {
        made(target, Change::Set { key: key.to_owned(), value: value.into() }, Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{made, set};
    use super::*;

    const VOLUME: &str = "device = \"d\"\nsize = \"1MiB\"\n";

    fn files(vms: &str) -> Files {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("host.toml");
        std::fs::write(&file, format!("[device.d]\nbackend = \"null\"\n{vms}")).unwrap();
        sluice_config::load_files(&file).unwrap_or_else(|found| panic!("{found}")).0
    }

    fn vm(name: &str, keys: &str, of_volume: &str) -> String {
        format!("[vm.{name}]\n{keys}\n[vm.{name}.volume.v]\n{VOLUME}export.socket = \"/run/{name}\"\n{of_volume}\n")
    }

    fn names(overrides: &Overrides) -> Vec<String> {
        overrides.iter().map(Override::name).collect()
    }

    #[test]
    fn many_keys_of_many_objects_replace_their_older_values_in_one_pass() {
        let mut overrides = Overrides::default();
        let keys = |count: usize, value: &'static str| {
            let key = move |vm: usize| (0..count).map(move |key| set(&format!("vm{vm}"), &format!("t.k{key}"), value));
            (0..100).flat_map(key).collect::<Vec<_>>()
        };
        overrides.add_all(keys(200, "old"));
        overrides.add(set("vm7", "t.k7.deeper", "old"));
        overrides.add_all(keys(100, "new"));
        assert_eq!(overrides.len(), 20_000, "20,000 x 10,000 comparisons would take minutes");
        assert_eq!(overrides.iter().filter(|known| known.value() == "new").count(), 10_000);
        overrides.add(set("vm7", "t", "all"));
        assert_eq!(overrides.len(), 19_801);
    }

    #[test]
    fn keys_of_an_older_attach_of_the_same_volume_came_back() {
        let attach = |keys: &str| made("a/v", Change::Attach { keys: toml::from_str(keys).unwrap() }, Value::Null);
        let mut overrides = Overrides::default();
        let older = Override { is_aside: true, ..attach("read_only = true") };
        overrides.add_all(vec![older, made("a", Change::Attach { keys: toml::Table::new() }, Value::Null)]);
        overrides.add(attach("size = \"1MiB\""));
        assert_eq!(names(&overrides), ["a", "a/v"]);
        let Change::Attach { keys } = &overrides.0[1].change else { panic!("{overrides:?}") };
        assert_eq!(keys.to_string(), "size = \"1MiB\"\n");
    }

    #[test]
    fn a_change_for_ten_minutes_lasted_for_years_after_the_clock_was_set_back() {
        let mut overrides = Overrides::default();
        let mut one = set("db1", "limit", "5 iops");
        (one.origin.at, one.lasts) = (Time(1_000_000), Lasts::Until(Time(1_000_600)));
        overrides.add(one);
        for (now, end) in [(1_000_100, 1_000_600), (50, 650), (60, 650)] {
            overrides.correct_clock(Time(now));
            assert_eq!(overrides.next_expiry(|_| false), Some(Time(end)), "at {now}");
        }
    }

    #[test]
    fn an_override_yields_only_when_the_files_value_of_that_field_changes() {
        let mut overrides = Overrides::default();
        let limit = Change::Set { key: "limit".to_owned(), value: "100 iops".into() };
        overrides.add(made("a", limit, "500 iops".into()));
        let first = vm("a", "limit = \"500 iops\"", "");
        assert_eq!(overrides.settle(&files(&first)), []);
        assert_eq!(overrides.settle(&files(&vm("a", "limit = \"500 iops\"\nweight = 7", ""))), [], "another key");
        let gone = overrides.settle(&files(&vm("a", "limit = \"800 iops\"", "")));
        assert!(matches!(&gone[..], [(_, Gone::Yielded { now })] if now == "800 iops"), "{gone:?}");
        assert_eq!(overrides.len(), 0);
    }

    #[test]
    fn an_override_of_a_vm_that_left_the_file_would_have_made_an_empty_vm() {
        let mut overrides = Overrides::default();
        overrides.add(set("b", "weight", "7"));
        overrides.add(made("c", Change::Attach { keys: toml::Table::new() }, Value::Null));
        overrides.add(set("c", "weight", "7"));
        let gone = overrides.settle(&files(&vm("a", "", "")));
        assert!(matches!(&gone[..], [(old, Gone::Orphaned)] if old.name() == "b/weight"), "{gone:?}");
        assert_eq!(names(&overrides), ["c", "c/weight"]);
    }

    #[test]
    fn what_was_detached_stays_so_until_the_file_has_dropped_it() {
        let mut overrides = Overrides::default();
        overrides.add(set("a/v", "size", "2MiB"));
        overrides.add(made("a/v", Change::Detach, true.into()));
        assert_eq!(names(&overrides), ["a/v"], "its size is void");
        assert_eq!(overrides.settle(&files(&vm("a", "", "read_only = true"))), []);
        assert_eq!(overrides.settle(&files("[vm.a]\n")).len(), 1);
    }

    #[test]
    fn what_was_attached_yields_to_a_file_that_has_it() {
        let mut overrides = Overrides::default();
        overrides.add(made("a/v", Change::Attach { keys: VOLUME.parse().unwrap() }, Value::Null));
        assert_eq!(overrides.settle(&files("[vm.a]\n")), []);
        let gone = overrides.settle(&files(&vm("a", "", "")));
        assert!(matches!(&gone[..], [(_, Gone::Yielded { now })] if now == "present"), "{gone:?}");
    }

    #[test]
    fn what_was_detached_and_attached_again_was_removed_when_the_file_changed() {
        let one = vm("a", "", "");
        let table = |files: &Files| files.table(&"a/v".parse::<Object>().unwrap()).unwrap();
        let again = |lasts| {
            let mut overrides = Overrides::default();
            overrides.add(made("a/v", Change::Detach, true.into()));
            let attach = Change::Attach { keys: format!("{VOLUME}read_only = true").parse().unwrap() };
            overrides.add(Override { lasts, ..made("a/v", attach, table(&files(&one))) });
            assert_eq!(overrides.settle(&files(&one)), []);
            let gone = overrides.settle(&files(&vm("a", "", "read_only = true")));
            (names(&overrides), gone.into_iter().map(|(old, why)| (old.value(), why)).collect::<Vec<_>>())
        };
        let yielded = || ("attached".to_owned(), Gone::Yielded { now: "present".to_owned() });
        for lasts in [Lasts::Always, Lasts::Persisted] {
            let (left, gone) = again(lasts);
            assert!(left.is_empty() && gone[0] == ("detached".to_owned(), Gone::Replaced), "{left:?} {gone:?}");
            assert_eq!(gone.len(), 2);
        }
        assert_eq!(again(Lasts::UntilRestart), (vec!["a/v".to_owned()], vec![yielded()]), "it was to be gone again");
    }

    #[test]
    fn a_change_for_a_time_ends_on_time_and_one_until_restart_with_the_stop() {
        let mut overrides = Overrides::default();
        overrides.add(Override { lasts: Lasts::Until(Time(2000)), ..set("a", "limit", "1 iops") });
        overrides.add(Override { lasts: Lasts::UntilRestart, ..set("a", "weight", "3") });
        overrides.add(set("a", "burst", "3"));
        assert_eq!(overrides.next_expiry(|_| false), Some(Time(2000)));
        assert_eq!(overrides.expire(Time(1999), |_| false), []);
        assert_eq!(overrides.expire(Time(2000), |_| false).len(), 1);
        assert_eq!(overrides.next_expiry(|_| false), None);
        assert_eq!(overrides.stop().len(), 1);
        assert_eq!(names(&overrides), ["a/burst"]);
    }

    #[test]
    fn a_change_for_a_time_gave_back_the_files_value_and_not_the_one_set_before() {
        let mut overrides = Overrides::default();
        let for_a_time = |value: &str| Override { lasts: Lasts::Until(Time(2000)), ..set("a", "limit", value) };
        overrides.add(set("a", "limit", "100 iops"));
        overrides.add(for_a_time("50 iops"));
        overrides.add(for_a_time("60 iops"));
        assert_eq!(overrides.iter().map(Override::value).collect::<Vec<_>>(), ["100 iops", "60 iops"]);
        overrides.add(Override { lasts: Lasts::UntilRestart, ..made("a", Change::Detach, true.into()) });
        assert_eq!(overrides.len(), 2, "{overrides:?}");
        overrides.stop();
        assert_eq!(overrides.iter().map(Override::value).collect::<Vec<_>>(), ["100 iops"]);
        overrides.add(for_a_time("50 iops"));
        overrides.add(set("a", "limit", "70 iops"));
        assert_eq!(overrides.iter().map(Override::value).collect::<Vec<_>>(), ["70 iops"], "the last command counts");
    }

    #[test]
    fn a_later_value_of_a_table_replaces_those_of_its_keys() {
        let mut overrides = Overrides::default();
        overrides.add(set("a", "limit.bytes", "5MB/s"));
        overrides.add(set("a", "limit.iops", "5 iops"));
        overrides.add(set("a", "limits", "other"));
        overrides.add(set("a", "limit", "unlimited"));
        assert_eq!(names(&overrides), ["a/limits", "a/limit"]);
        overrides.add(set("a/v", "size", "2MiB"));
        overrides.add(set("ab", "weight", "3"));
        assert_eq!(overrides.remove(&["a/v"]).len(), 1);
        assert_eq!(overrides.remove(&["a"]).len(), 2);
        assert_eq!(names(&overrides), ["ab/weight"]);
    }
}
