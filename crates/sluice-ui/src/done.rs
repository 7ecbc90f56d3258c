//! Changes that were made from this page, so that a page can offer to undo the last ones.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use sluice_api::change::Override;

/// Number of changes that are remembered.
const DONE_MAX: usize = 64;

/// A change that is in force.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// Counts changes of this process.
    pub(crate) number: u64,
    /// The VM or volume.
    pub(crate) target: String,
    /// What was changed, in words.
    pub(crate) text: Vec<String>,
    /// Keys that were changed, with dots between their parts.
    pub(crate) keys: Vec<String>,
    /// Changes that it has replaced.
    pub(crate) replaced: Vec<Override>,
    pub(crate) warnings: Vec<String>,
    /// Tag of the version that it has made: the undo of another version would undo what others have changed.
    pub(crate) etag: Option<String>,
    /// How long it holds, in words.
    pub(crate) until: String,
    pub(crate) is_undone: bool,
}

/// The last changes.
#[derive(Debug, Default)]
pub(crate) struct Done(Mutex<(u64, VecDeque<Change>)>);

impl Done {
    /// Remembers a change, and returns its number.
    pub(crate) fn add(&self, change: Change) -> u64 {
        let (last, changes) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        changes.push_back(Change { number: *last, ..change });
        if changes.len() > DONE_MAX {
            changes.pop_front();
        }
        *last
    }

    pub(crate) fn get(&self, number: u64) -> Option<Change> {
        let (_, changes) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter().find(|change| change.number == number).cloned()
    }

    /// Notes that a change was undone.
    pub(crate) fn undo(&self, number: u64) {
        let (_, changes) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter_mut().filter(|change| change.number == number).for_each(|change| change.is_undone = true);
    }
}

impl Change {
    /// The body of the request that undoes it: what it has replaced is set again with its end, all else is taken back. `None` if what it has replaced
    /// has an end that cannot be stated.
    pub(crate) fn undo(&self) -> Option<Value> {
        let name = |key: &String| format!("{}/{key}", self.target);
        let is_replaced = |key: &String| self.replaced.iter().any(|old| old.name == name(key));
        let reset: Vec<String> = self.keys.iter().filter(|key| !is_replaced(key)).map(name).collect();
        let mut keys = Value::Object(serde_json::Map::new());
        let mut until = None;
        for old in &self.replaced {
            set(&mut keys, old.name.strip_prefix(&self.target)?.strip_prefix('/')?, old.value.clone());
            let end = match old.until.as_str() {
                "reset" => None,
                time => Some(time.parse::<jiff::Timestamp>().ok()?.as_second()),
            };
            if until.is_some_and(|other| other != end) {
                return None;
            }
            until = Some(end);
        }
        let mut body =
            serde_json::json!({ "keys": keys, "reset": reset, "reason": format!("undo: {}", self.text.join(", ")) });
        if let Some(Some(end)) = until {
            body["until"] = end.into();
        }
        Some(body)
    }
}

/// Sets a key that has dots between its parts.
pub(crate) fn set(keys: &mut Value, key: &str, value: Value) {
    let mut at = keys;
    for part in key.split('.') {
        at = &mut at[part];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn change(replaced: Vec<Override>) -> Change {
        let keys = ["limit", "net.limit"].map(str::to_owned).to_vec();
        let text = vec!["limit 500 iops".to_owned()];
        let (target, until) = ("db1".to_owned(), "reset".to_owned());
        Change { number: 0, target, text, keys, replaced, warnings: Vec::new(), etag: None, until, is_undone: false }
    }

    #[test]
    fn an_undo_sets_what_was_replaced_and_takes_back_the_rest() {
        let reason = "undo: limit 500 iops";
        let all = json!({ "keys": {}, "reset": ["db1/limit", "db1/net.limit"], "reason": reason });
        assert_eq!(change(Vec::new()).undo(), Some(all));
        let until = "1970-01-01T00:16:40Z".to_owned();
        let old = Override { name: "db1/net.limit".to_owned(), value: json!("5Mbit/s"), until, ..Override::default() };
        let mixed = json!({ "keys": { "net": { "limit": "5Mbit/s" } }, "reset": ["db1/limit"], "until": 1000, "reason": reason });
        assert_eq!(change(vec![old.clone()]).undo(), Some(mixed));
        let other = Override { name: "db1/limit".to_owned(), until: "reset".to_owned(), ..old.clone() };
        assert_eq!(change(vec![old.clone(), other]).undo(), None, "one body has one end");
        assert_eq!(change(vec![Override { until: "restart".to_owned(), ..old }]).undo(), None);
    }

    #[test]
    fn the_last_changes_are_remembered() {
        let done = Done::default();
        let numbers: Vec<u64> = (0..=DONE_MAX).map(|_| done.add(change(Vec::new()))).collect();
        assert_eq!(done.get(numbers[0]), None);
        done.undo(numbers[1]);
        assert!(done.get(numbers[1]).unwrap().is_undone && !done.get(numbers[2]).unwrap().is_undone);
    }
}
