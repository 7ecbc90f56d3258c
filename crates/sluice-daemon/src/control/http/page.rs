//! Lists: a part at a time, with the fields that were asked for.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::problem::{Failed, Kind};

/// Entries of an answer if none are stated, and the most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// Parameters of every list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Asked {
    /// Names of fields, with commas between them; without it all.
    fields: Option<String>,
    limit: Option<usize>,
    /// The `next` of the answer before.
    cursor: Option<String>,
}

/// An entry of a list, with the name by which the list is sorted.
pub(super) type Entry = (String, Value);

/// A part of a list.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Page {
    items: Vec<Value>,
    /// Number of all entries.
    total: usize,
    /// Cursor of the next part, if there is one. It is the name of the last entry, so entries that come and go between two parts move no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl Asked {
    /// Returns the part that was asked for.
    ///
    /// # Errors
    /// A limit that is none, a field that an entry does not have.
    pub(super) fn page(&self, mut all: Vec<Entry>) -> Result<Page, Failed> {
        let (total, limit) = (all.len(), self.limit.unwrap_or(LIMIT));
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Kind::Invalid.with(format!("limit is {limit}: state one from 1 to {LIMIT_MAX}")).into());
        }
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.retain(|(name, _)| self.cursor.as_ref().is_none_or(|cursor| name > cursor));
        let is_cut = all.len() > limit;
        all.truncate(limit);
        let next = all.last().filter(|_| is_cut).map(|(name, _)| name.clone());
        let items: Result<Vec<Value>, Failed> = all.into_iter().map(|(_, entry)| self.of(entry)).collect();
        Ok(Page { items: items?, total, next })
    }

    /// Returns the fields of an entry that were asked for.
    ///
    /// # Errors
    /// It does not have one of them.
    pub(super) fn of(&self, entry: Value) -> Result<Value, Failed> {
        let Some(fields) = &self.fields else { return Ok(entry) };
        let Value::Object(mut all) = entry else { return Ok(entry) };
        let mut chosen = Map::new();
        for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let value = all.remove(field).ok_or_else(|| {
                let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
                Kind::Invalid.with(format!("fields has '{field}', and there are {known}"))
            })?;
            chosen.insert(field.to_owned(), value);
        }
        Ok(Value::Object(chosen))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entries(names: &[&str]) -> Vec<Entry> {
        names.iter().map(|name| ((*name).to_owned(), json!({ "vm": name, "weight": 100 }))).collect()
    }

    #[test]
    fn a_list_comes_in_parts_that_have_each_entry_once_although_others_come_and_go() {
        let asked = |cursor: Option<&str>| Asked {
            fields: Some("vm".to_owned()),
            limit: Some(2),
            cursor: cursor.map(str::to_owned),
        };
        let first = asked(None).page(entries(&["c", "a", "b"])).unwrap();
        assert_eq!((first.items, first.total), (vec![json!({ "vm": "a" }), json!({ "vm": "b" })], 3));
        assert_eq!(first.next.as_deref(), Some("b"));
        let second = asked(Some("b")).page(entries(&["aa", "b", "c"])).unwrap();
        assert_eq!((second.items, second.next), (vec![json!({ "vm": "c" })], None));
    }

    #[test]
    fn a_limit_that_is_none_and_a_field_that_no_entry_has_are_refused() {
        let wrong = Asked { limit: Some(0), ..Asked::default() };
        assert!(wrong.page(entries(&["a"])).is_err());
        let wrong = Asked { fields: Some("vm,wieght".to_owned()), ..Asked::default() };
        let problem = serde_json::to_value(wrong.page(entries(&["a"])).unwrap_err().0).unwrap();
        assert_eq!(problem["code"], "invalid");
        assert!(problem["detail"].as_str().unwrap().contains("'wieght', and there are weight"), "{problem}");
    }
}
