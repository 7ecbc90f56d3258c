//! Lists: a part at a time, with the fields that were asked for.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, ToSchema};

use crate::http::problem::{Failed, Kind};

/// Entries of an answer if none are stated, and the most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// Parameters of every list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Asked {
    /// Names of fields, with commas between them; without it all.
    fields: Option<String>,
    /// Entries that come at once, from 1 to 1,000; without it 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The `next` of the answer before.
    cursor: Option<String>,
}

/// Parameters of what is one object.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Chosen {
    /// Names of fields, with commas between them; without it all.
    fields: Option<String>,
}

/// An entry of a list, with the name by which the list is sorted.
pub(super) type Entry<T> = (String, T);

/// A part of a list.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
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
    pub(super) fn page<T: Serialize + ToSchema>(&self, mut all: Vec<Entry<T>>) -> Result<Page<Value>, Failed> {
        let (total, limit) = (all.len(), self.limit.unwrap_or(LIMIT));
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Kind::Invalid.with(format!("limit is {limit}: state one from 1 to {LIMIT_MAX}")).into());
        }
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.retain(|(name, _)| self.cursor.as_ref().is_none_or(|cursor| name > cursor));
        let is_cut = all.len() > limit;
        all.truncate(limit);
        let next = all.last().filter(|_| is_cut).map(|(name, _)| name.clone());
        let fields = self.fields.as_deref();
        let items: Result<_, Failed> = all.iter().map(|(_, entry)| of(entry, fields)).collect();
        Ok(Page { items: items?, total, next })
    }
}

impl Chosen {
    /// Returns the fields of an object that were asked for.
    ///
    /// # Errors
    /// It does not have one of them.
    pub(super) fn of<T: Serialize + ToSchema>(&self, object: &T) -> Result<Value, Failed> {
        of(object, self.fields.as_deref())
    }
}

fn of<T: Serialize + ToSchema>(object: &T, fields: Option<&str>) -> Result<Value, Failed> {
    let value = serde_json::to_value(object).map_err(|error| Kind::Internal.with(error.to_string()))?;
    let Some(fields) = fields else { return Ok(value) };
    let Value::Object(mut all) = value else { return Ok(value) };
    let mut chosen = Map::new();
    for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
        match all.remove(field) {
            Some(value) => drop(chosen.insert(field.to_owned(), value)),
            // One that this object does not have now.
            None if known::<T>().contains(field) => {}
            None => {
                let known = known::<T>().into_iter().collect::<Vec<_>>().join(", ");
                return Err(Kind::Invalid.with(format!("fields has '{field}', and there are {known}")).into());
            }
        }
    }
    Ok(Value::Object(chosen))
}

/// All fields that a type may have.
fn known<T: ToSchema>() -> BTreeSet<String> {
    let mut named = vec![(String::new(), T::schema())];
    T::schemas(&mut named);
    let mut known = BTreeSet::new();
    let mut left = vec![String::new()];
    while let Some(name) = left.pop() {
        let found = named.iter().find(|(known, _)| *known == name);
        found.into_iter().for_each(|(_, schema)| add(schema, &mut known, &mut left));
    }
    known
}

/// Adds the fields of a schema, and the names of the schemas that it is made of.
fn add(schema: &RefOr<Schema>, known: &mut BTreeSet<String>, of: &mut Vec<String>) {
    match schema {
        RefOr::Ref(other) => of.extend(other.ref_location.rsplit('/').next().map(str::to_owned)),
        RefOr::T(Schema::Object(object)) => known.extend(object.properties.keys().cloned()),
        RefOr::T(Schema::AllOf(all)) => all.items.iter().for_each(|one| add(one, known, of)),
        // An object that is there or not.
        RefOr::T(Schema::OneOf(one)) => one.items.iter().for_each(|one| add(one, known, of)),
        RefOr::T(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_api::status::Volume;

    use super::*;

    fn entries(names: &[&str]) -> Vec<Entry<Volume>> {
        names.iter().map(|name| ((*name).to_owned(), Volume { vm: (*name).to_owned(), ..Volume::default() })).collect()
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
        // Those of a disk that is not served, and of a NIC.
        let absent = Asked { fields: Some("vm,serial,nic".to_owned()), ..Asked::default() };
        assert_eq!(absent.page(entries(&["a"])).unwrap().items, [json!({ "vm": "a" })]);
        let wrong = Asked { fields: Some("vm,wieght".to_owned()), ..Asked::default() };
        let problem = serde_json::to_value(wrong.page(entries(&["a"])).unwrap_err().0).unwrap();
        assert_eq!(problem["code"], "invalid");
        assert!(
            problem["detail"].as_str().unwrap().contains("'wieght', and there are block_size_bytes, client_faults"),
            "{problem}"
        );
    }
}
