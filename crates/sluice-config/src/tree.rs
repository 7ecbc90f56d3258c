//! The files as one tree: every key and value with its span.
//!
//! A later file adds to tables and replaces values. An inline table (`{ min = "3ms", max = "11ms" }`) is one value: `{
//! mean = "4ms" }` replaces all of it. A key of a table written as `[...]` or with dots is replaced alone.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::entries::Entries;
use crate::source::Span;

/// A value with its span and that of its key.
#[derive(Debug, Clone)]
pub struct Node {
    pub key: Span,
    /// Span of the value; for a table with a header, of its name in the header.
    pub span: Span,
    pub value: Value,
}

/// A value as written.
#[derive(Debug, Clone)]
pub enum Value {
    Text(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    Date,
    List(Vec<Node>),
    /// Shared, so that a changed copy of the files shares everything that did not change.
    Table(Arc<Table>),
}

#[derive(Debug, Clone, Default)]
pub struct Table {
    pub entries: Entries,
    inline: bool,
}

impl Value {
    /// Its kind in words.
    pub fn words(&self) -> &'static str {
        match self {
            Value::Text(_) => "text",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a decimal number",
            Value::Bool(_) => "true or false",
            Value::Date => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// The table, if it is one.
    #[must_use]
    pub fn as_table(&self) -> Option<&Table> {
        match self {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Text(text) => text.as_str().into(),
            Value::Integer(number) => i64::try_from(*number).map_or_else(|_| number.to_string().into(), Into::into),
            Value::Float(number) => (*number).into(),
            Value::Bool(value) => (*value).into(),
            Value::Date => "a date".into(),
            Value::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Value::Table(table) => table.to_json(),
        }
    }
}

impl Table {
    /// The tree of one file.
    pub fn from_toml(file: u32, text: &str, table: &DeTable<'_>) -> Table {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            (name.to_string(), node(file, text, key.span(), value))
        };
        Table { entries: table.iter().map(entry).collect(), inline: false }
    }

    /// The node at `path`.
    #[must_use]
    pub fn find(&self, path: &[&str]) -> Option<&Node> {
        let (last, above) = path.split_last()?;
        let table = above.iter().try_fold(self, |table, key| table.entries.get(key)?.value.as_table())?;
        table.entries.get(last)
    }

    /// The node at `path`, or a value that is written in place of a table above it: `limit = "5 iops"` for `limit.bytes`.
    #[must_use]
    pub fn nearest(&self, path: &[&str]) -> Option<&Node> {
        let (first, rest) = path.split_first()?;
        let node = self.entries.get(first)?;
        match &node.value {
            Value::Table(table) if !rest.is_empty() => table.nearest(rest),
            _ => Some(node),
        }
    }

    /// Removes the node at `path`, if it exists.
    pub fn remove(&mut self, path: &[&str]) {
        let Some((last, above)) = path.split_last() else { return };
        let mut table = self;
        for key in above {
            let Some(Node { value: Value::Table(inner), .. }) = table.entries.get_mut(key) else { return };
            table = Arc::make_mut(inner);
        }
        table.entries.remove(last);
    }

    /// Gives the node at `path` the value that it has in another tree, or removes it if it has none there.
    pub(crate) fn restore(&mut self, path: &[&str], from: &Table) {
        match from.find(path) {
            Some(node) => {
                self.put(path, node.clone());
            }
            None => self.remove(path),
        }
    }

    /// Inserts a node at `path`, with missing tables on the way. Returns `false` if a value other than a table is in
    /// the way.
    pub fn put(&mut self, path: &[&str], node: Node) -> bool {
        let Some((last, above)) = path.split_last() else { return false };
        let mut table = self;
        for key in above {
            let new = || Node { key: node.key, span: node.span, value: Value::Table(Arc::default()) };
            let Value::Table(inner) = &mut table.entries.get_or_insert_with(key, new).value else {
                return false;
            };
            table = Arc::make_mut(inner);
        }
        table.entries.insert((*last).to_owned(), node);
        true
    }

    /// Converts it to JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let entries = self.entries.iter().map(|(name, node)| (name.clone(), node.value.to_json()));
        serde_json::Value::Object(entries.collect())
    }

    /// Merges a later file into this one.
    pub fn merge(&mut self, later: Table) {
        for (name, node) in later.entries {
            match (self.entries.get_mut(&name).map(|known| &mut known.value), node.value) {
                (Some(Value::Table(known)), Value::Table(table)) if !table.inline => {
                    Arc::make_mut(known).merge(Arc::unwrap_or_clone(table));
                }
                (_, value) => {
                    self.entries.insert(name, Node { value, ..node });
                }
            }
        }
    }
}

fn node(file: u32, text: &str, key: std::ops::Range<usize>, value: &Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    let key = Span::new(file, key);
    let inline = text.get(span.start..).is_some_and(|rest| rest.starts_with('{'));
    let (span, value) = match value.get_ref() {
        DeValue::Table(table) => {
            let span = if inline { Span::new(file, span) } else { key };
            (span, Value::Table(Arc::new(Table { inline, ..Table::from_toml(file, text, table) })))
        }
        DeValue::Array(items) => {
            let items = items.iter().map(|item| node(file, text, item.span(), item)).collect();
            (Span::new(file, span), Value::List(items))
        }
        scalar => (Span::new(file, span), from_scalar(scalar)),
    };
    Node { key, span, value }
}

fn from_scalar(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            // Only numbers above 128 bits fail here, which are out of every range.
            Value::Integer(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX))
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(_) | DeValue::Table(_) => unreachable!("they are no scalars"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(file: u32, text: &str) -> Table {
        Table::from_toml(file, text, DeTable::parse(text).unwrap().get_ref())
    }

    fn show(table: &Table) -> String {
        let value = |node: &Node| match &node.value {
            Value::Table(table) => format!("{{{}}}", show(table)),
            Value::Integer(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        let entries: Vec<_> = table.entries.iter().map(|(key, node)| format!("{key}={}", value(node))).collect();
        entries.join(" ")
    }

    #[test]
    fn later_values_replace_earlier_ones_and_tables_merge() {
        let mut first = tree(0, "[a]\nx = 1\ny = 2\nin = { p = 1, q = 2 }\n[b]\nz = 3\n");
        first.merge(tree(1, "[a]\ny = 5\nin.q = 7\n[c]\nw = 4\n"));
        assert_eq!(show(&first), "a={in={p=1 q=7} x=1 y=5} b={z=3} c={w=4}");
        first.merge(tree(2, "[a]\nin = { r = 9 }\n"));
        assert_eq!(show(&first), "a={in={r=9} x=1 y=5} b={z=3} c={w=4}");
        first.merge(tree(3, "a = 1\n"));
        assert_eq!(show(&first), "a=1 b={z=3} c={w=4}");
    }
}
