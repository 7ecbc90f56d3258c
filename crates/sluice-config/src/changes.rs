//! Changes at run time, which override the host file.
//!
//! A change has the form of the file: keys of a VM or of one of its volumes. So it is checked together with the file,
//! and rejected with the same messages. How long it lasts is the daemon's business.

use core::fmt;
use core::str::FromStr;

use crate::diagnostics::Report;
use crate::dropins::read_text;
use crate::source::Sources;
use crate::tree::Table;

/// Object of a change: `VM` or `VM/VOLUME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Name in the host file.
    pub vm: String,
    /// One of its volumes.
    pub volume: Option<String>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (vm, volume) = match text.split_once('/') {
            Some((vm, volume)) => (vm, Some(volume.to_owned())),
            None => (text, None),
        };
        if vm.is_empty() || volume.as_ref().is_some_and(String::is_empty) {
            return Err(format!("'{text}' is not a target; write VM or VM/VOLUME, for example db1/root"));
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
    /// Path in the tree of the host file.
    pub(crate) fn path(&self) -> Vec<&str> {
        let mut path = vec!["vm", self.vm.as_str()];
        path.extend(self.volume.iter().flat_map(|volume| ["volume", volume.as_str()]));
        path
    }

    /// Whether `other` is the same, or a volume of it.
    #[must_use]
    pub fn covers(&self, other: &Target) -> bool {
        self.vm == other.vm && (self.volume.is_none() || self.volume == other.volume)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Set(Target, toml::Table),
    Remove(Target),
}

/// Changes in the order in which they were made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    steps: Vec<Step>,
}

impl Changes {
    /// Sets keys; adds the VM or volume if it does not exist.
    pub fn set(&mut self, target: Target, keys: toml::Table) {
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
    pub fn remove(&mut self, target: Target) {
        self.steps.retain(|step| match step {
            Step::Set(known, _) | Step::Remove(known) => !target.covers(known),
        });
        self.steps.push(Step::Remove(target));
    }

    /// Applies the changes to the tree of the files.
    pub(crate) fn lay(&self, tree: &mut Table, sources: &mut Sources, report: &Report) {
        for step in &self.steps {
            match step {
                Step::Remove(target) => tree.remove(&target.path()),
                Step::Set(target, keys) => {
                    let under =
                        |table, key: &&str| toml::Table::from_iter([((*key).to_owned(), toml::Value::Table(table))]);
                    let text = target.path().iter().rev().fold(keys.clone(), under).to_string();
                    tree.merge(read_text(&format!("change of {target}"), text, sources, report));
                }
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

    fn target(text: &str) -> Target {
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
    }
}
