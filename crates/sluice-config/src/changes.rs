//! Changes at run time, which override the host file.
//!
//! A change has the form of the file: keys of a VM, of one of its volumes, or of a named policy. So it is checked together with the file,
//! and rejected with the same messages. How long it lasts is the daemon's business.

use core::fmt;
use core::str::FromStr;
use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostics::Report;
use crate::dropins::read_text;
use crate::source::{CHANGE_OF, Sources};
use crate::tree::Table;

/// Object of a change: `VM`, `VM/VOLUME` or `VM/nic/NIC`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Name in the host file.
    pub vm: String,
    /// One of its volumes, or `nic/NAME`: one of its NICs. So NICs and volumes are named alike in commands and output, and a NIC
    /// may have the name of a volume.
    pub volume: Option<String>,
}

/// First part of the name of a NIC in a [`Target`].
const NIC: &str = "nic/";

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (vm, volume) = match text.split_once('/') {
            Some((vm, volume)) => (vm, Some(volume.to_owned())),
            None => (text, None),
        };
        if vm.is_empty() || volume.as_ref().is_some_and(String::is_empty) {
            return Err(format!("'{text}' is not a target; write VM, VM/VOLUME or VM/nic/NIC, for example db1/root"));
        }
        // Neither names of volumes nor those of NICs contain a slash.
        let inner = volume.as_deref().map(|volume| volume.strip_prefix(NIC).unwrap_or(volume));
        if let Some(inner) = inner.filter(|inner| inner.is_empty() || inner.contains('/')) {
            return Err(format!("'{text}' is not a target: '{inner}' is no name; write VM/VOLUME or VM/nic/NIC"));
        }
        Ok(Target { vm: vm.to_owned(), volume })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.volume {
            Some(volume) => write!(f, "{}/{volume}", self.vm),
            None => write!(f, "{}", self.vm),
        }
    }
}

impl Target {
    /// A NIC of a VM.
    #[must_use]
    pub fn nic(vm: &str, nic: &str) -> Target {
        Target { vm: vm.to_owned(), volume: Some(format!("{NIC}{nic}")) }
    }

    /// Name of the NIC, if it is one.
    #[must_use]
    pub fn as_nic(&self) -> Option<&str> {
        self.volume.as_deref()?.strip_prefix(NIC)
    }

    /// Path in the tree of the host file.
    pub(crate) fn path(&self) -> Vec<&str> {
        let mut path = vec!["vm", self.vm.as_str()];
        match (self.as_nic(), &self.volume) {
            (Some(nic), _) => path.extend(["nic", nic]),
            (None, Some(volume)) => path.extend(["volume", volume]),
            (None, None) => {}
        }
        path
    }

    /// Whether `other` is the same, or a volume or a NIC of it.
    #[must_use]
    pub fn covers(&self, other: &Target) -> bool {
        self.vm == other.vm && (self.volume.is_none() || self.volume == other.volume)
    }
}

/// Object whose keys can be changed: a VM, a volume, or a named policy (`policy/NAME`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Target(Target),
    /// By its name. The change applies to all VMs and volumes that hold the policy, as far as they have no such field of their
    /// own.
    Policy(String),
}

/// First part of the name of a policy's object; so no VM has this name.
pub(crate) const POLICY: &str = "policy";

impl From<Target> for Object {
    fn from(target: Target) -> Self {
        Object::Target(target)
    }
}

impl FromStr for Object {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((POLICY, "")) => Err("'policy/' names no policy; write for example policy/gold".to_owned()),
            Some((POLICY, name)) => Ok(Object::Policy(name.to_owned())),
            _ => text.parse().map(Object::Target),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Target(target) => target.fmt(f),
            Object::Policy(name) => write!(f, "{POLICY}/{name}"),
        }
    }
}

impl Object {
    /// Path in the tree of the host file.
    #[must_use]
    pub fn path(&self) -> Vec<&str> {
        match self {
            Object::Target(target) => target.path(),
            Object::Policy(name) => vec![POLICY, name],
        }
    }

    /// Whether `other` is the same, or a volume of it.
    #[must_use]
    pub fn covers(&self, other: &Object) -> bool {
        match (self, other) {
            (Object::Target(one), Object::Target(other)) => one.covers(other),
            _ => self == other,
        }
    }
}

/// Whether `name` matches a pattern, in which `*` stands for any characters, none included, and `?` for one character.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Position after the last star, and where its text ends.
    let mut star = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at + 1, from));
                at += 1;
            }
            Some(expected) if *expected == '?' || *expected == name[from] => (at, from) = (at + 1, from + 1),
            _ => {
                let Some((after, until)) = star else { return false };
                star = Some((after, until + 1));
                (at, from) = (after, until + 1);
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// Whether a name is a pattern for [`matches()`].
#[must_use]
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Set(Object, toml::Table),
    Remove(Object),
}

/// Changes in the order in which they were made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    steps: Vec<Step>,
}

impl Changes {
    /// Sets keys; adds the object if it does not exist.
    pub fn set(&mut self, target: Object, keys: toml::Table) {
        // One step per changed object, so the list does not grow with the number of changes.
        let later = self.steps.iter().rposition(|step| match step {
            Step::Set(known, _) => *known == target,
            Step::Remove(known) => known.covers(&target),
        });
        if let Some(Step::Set(_, known)) = later.map(|at| &mut self.steps[at]) {
            return merge(known, keys);
        }
        self.steps.push(Step::Set(target, keys));
    }

    /// Removes a VM or a volume.
    pub fn remove(&mut self, target: Object) {
        self.steps.retain(|step| match step {
            Step::Set(known, _) | Step::Remove(known) => !target.covers(known),
        });
        self.steps.push(Step::Remove(target));
    }

    /// Number of changed objects, of which some may be covered by others.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Brings `tree`, which is that of the `files` with the changes `before`, to these changes. What does not differ stays as it is.
    /// Returns the named policies that differ.
    pub(crate) fn lay<'a>(
        &'a self,
        before: &'a Changes,
        files: &Table,
        (tree, sources): (&mut Table, &mut Sources),
        report: &Report,
    ) -> BTreeSet<&'a str> {
        let (old, new) = (before.by_root(), self.by_root());
        let differs = |root: &&[&'a str; 2]| old.get(*root) != new.get(*root);
        let differing: BTreeSet<[&str; 2]> = old.keys().chain(new.keys()).filter(differs).copied().collect();
        differing.iter().for_each(|root| tree.restore(root, files));
        // In the order in which they were made: of two that contradict each other the later one is reported.
        for step in self.steps.iter().filter(|step| differing.contains(&step.root())) {
            step.lay(tree, sources, report);
        }
        differing.into_iter().filter(|[kind, _]| *kind == POLICY).map(|[_, name]| name).collect()
    }

    /// The changes of each VM and each named policy.
    fn by_root(&self) -> BTreeMap<[&str; 2], Vec<&Step>> {
        let mut roots: BTreeMap<_, Vec<&Step>> = BTreeMap::new();
        for step in &self.steps {
            roots.entry(step.root()).or_default().push(step);
        }
        roots
    }
}

impl Step {
    /// Path of the VM or the named policy that it changes, or of whose part it does.
    fn root(&self) -> [&str; 2] {
        match self {
            Step::Set(Object::Policy(name), _) | Step::Remove(Object::Policy(name)) => [POLICY, name],
            Step::Set(Object::Target(target), _) | Step::Remove(Object::Target(target)) => ["vm", &target.vm],
        }
    }

    fn lay(&self, tree: &mut Table, sources: &mut Sources, report: &Report) {
        match self {
            Step::Remove(target) => tree.remove(&target.path()),
            Step::Set(target, keys) => {
                let under =
                    |table, key: &&str| toml::Table::from_iter([((*key).to_owned(), toml::Value::Table(table))]);
                let text = target.path().iter().rev().fold(keys.clone(), under).to_string();
                tree.merge(read_text(&format!("{CHANGE_OF}{target}"), text, sources, report));
            }
        }
    }
}

/// Returns the table in which `key`, with dots for tables, has this value.
#[must_use]
pub fn nested(key: &str, value: toml::Value) -> toml::Table {
    match key.split_once('.') {
        None => toml::Table::from_iter([(key.to_owned(), value)]),
        Some((table, below)) => toml::Table::from_iter([(table.to_owned(), nested(below, value).into())]),
    }
}

fn merge(known: &mut toml::Table, later: toml::Table) {
    for (key, value) in later {
        match (known.get_mut(&key), value) {
            (Some(toml::Value::Table(known)), toml::Value::Table(value)) => merge(known, value),
            (_, value) => {
                known.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Object {
        text.parse().unwrap()
    }

    fn keys(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    #[test]
    fn the_last_change_of_each_object_is_kept() {
        let mut changes = Changes::default();
        changes.set(target("a"), keys("weight = 1\nlimit = \"5 iops\""));
        changes.set(target("a"), keys("weight = 2"));
        changes.set(target("a/v"), keys("size = \"1GiB\""));
        assert_eq!(changes.steps.len(), 2);
        assert_eq!(changes.steps[0], Step::Set(target("a"), keys("weight = 2\nlimit = \"5 iops\"")));
        changes.remove(target("a"));
        assert_eq!(changes.steps, [Step::Remove(target("a"))]);
        changes.set(target("a"), keys("weight = 3"));
        changes.set(target("a"), keys("weight = 4"));
        assert_eq!(changes.steps, [Step::Remove(target("a")), Step::Set(target("a"), keys("weight = 4"))]);
        assert!("a/".parse::<Target>().is_err() && "".parse::<Target>().is_err());
        changes.set(target("policy/gold"), keys("weight = 3"));
        assert_eq!(changes.steps.last().unwrap().root(), ["policy", "gold"]);
        assert_eq!(target("policy/gold").to_string(), "policy/gold");
        assert!("policy/".parse::<Object>().is_err());
    }

    #[test]
    fn a_nic_and_a_volume_of_one_name_are_two_objects() {
        let (nic, volume) = (target("a/nic/eth0"), target("a/eth0"));
        assert_eq!((nic.path(), volume.path()), (vec!["vm", "a", "nic", "eth0"], vec!["vm", "a", "volume", "eth0"]));
        assert_eq!(
            (nic.to_string(), target("a/nic").path()),
            ("a/nic/eth0".to_owned(), vec!["vm", "a", "volume", "nic"])
        );
        assert!(target("a").covers(&nic) && !volume.covers(&nic));
        assert_eq!(Object::from(Target::nic("a", "eth0")), nic);
        for wrong in ["a/nic/", "a/b/c", "a/nic/b/c", "/nic/eth0"] {
            assert!(wrong.parse::<Object>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, name) in [
            ("web*", "web1"),
            ("web*", "web"),
            ("*", ""),
            ("w?b*1", "web-11"),
            ("*a*b", "xaab"),
            ("a", "a"),
            ("**", "z"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("web*", "we"), ("web?", "web"), ("a*b", "abc"), ("", "a"), ("*b", "ba"), ("a", "aa")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
