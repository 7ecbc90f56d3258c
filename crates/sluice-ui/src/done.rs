//! Changes that were made from this page, so that a page can offer to undo the last ones.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use sluice_api::change::UndoRequest;

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
    /// The requests that undo it, as the daemon has stated them; none if they cannot.
    pub(crate) undo: Vec<UndoRequest>,
    pub(crate) warnings: Vec<String>,
    /// Tag of the version that it has made: the undo of another version would undo what others have changed.
    pub(crate) etag: Option<String>,
    /// How long it holds, in words.
    pub(crate) until: String,
    /// When it ends by itself, in seconds since 1970.
    pub(crate) end: Option<u64>,
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
    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self, now: u64) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// The end that the undo would have to set again although it has passed, in seconds since 1970.
    pub(crate) fn passed_end(&self, now: u64) -> Option<u64> {
        let ends = self.undo.iter().filter_map(|request| request.body.as_ref()?["until"].as_u64());
        ends.filter(|end| *end <= now).min()
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

    fn change(undo: Vec<UndoRequest>) -> Change {
        let text = vec!["limit 500 iops".to_owned()];
        let (target, until) = ("db1".to_owned(), "reset".to_owned());
        let is_undone = false;
        let (warnings, etag, end) = (Vec::new(), None, Some(2000));
        Change { number: 0, target, text, undo, warnings, etag, until, end, is_undone }
    }

    #[test]
    fn an_end_that_has_passed_meanwhile_is_found() {
        let request = |body| UndoRequest { body, ..UndoRequest::default() };
        let undo = vec![request(None), request(Some(json!({ "until": 1000 }))), request(Some(json!({})))];
        let change = change(undo);
        assert_eq!((change.passed_end(999), change.passed_end(1000)), (None, Some(1000)));
        assert!(!change.has_ended(1999) && change.has_ended(2000));
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
