//! Results that are rows: as a table, as JSON, as a line of JSON for each row, or as CSV.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};
use sluice_api::VERSION;
use sluice_daemon::output::Format;

/// Forms of results. Commands without rows know only `table` and `json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    Table,
    /// For people, with more columns.
    Wide,
    /// For programs: stable names, units in the names.
    Json,
    /// One line of JSON for each row.
    Jsonl,
    /// A header and one line for each row; nested names are joined by dots.
    Csv,
}

impl Form {
    /// The format of everything that is not rows. CSV has no form for it, and gets errors as text.
    #[must_use]
    pub fn format(self) -> Format {
        match self {
            Form::Table | Form::Wide | Form::Csv => Format::Table,
            Form::Json | Form::Jsonl => Format::Json,
        }
    }
}

/// Columns that come first.
const NAMES: [&str; 6] = ["time", "id", "policy_name", "vm", "volume", "device"];

/// Returns an object as a line of JSON.
#[must_use]
pub fn one(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("its keys are strings")
}

/// Returns rows in a form for programs: as one object with the list under this key, as a line for each, or as CSV.
#[must_use]
pub fn of_programs(form: Form, key: &str, rows: &[impl Serialize]) -> String {
    match form {
        Form::Csv => csv(rows),
        Form::Jsonl => rows.iter().map(one).collect::<Vec<_>>().join("\n"),
        _ => format!("{{\"ok\":true,\"version\":{VERSION},\"{key}\":{}}}", one(&rows)),
    }
}

/// Returns rows as CSV (RFC 4180): the columns are those of all rows, names first.
#[must_use]
pub fn csv(rows: &[impl Serialize]) -> String {
    let flat: Vec<Vec<(String, String)>> = rows.iter().map(flatten).collect();
    let mut columns: Vec<&str> = Vec::new();
    for (name, _) in flat.iter().flatten() {
        if !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    // A row without an object has a null in its place, which is no column beside the fields of that object in other rows.
    let all = columns.clone();
    columns.retain(|name| !all.iter().any(|other| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))));
    columns.sort_by_key(|name| NAMES.iter().position(|known| known == name).unwrap_or(NAMES.len()));
    let mut lines = vec![columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",")];
    for row in &flat {
        let cell = |column: &&str| row.iter().find(|(name, _)| name == column).map_or("", |(_, value)| value.as_str());
        lines.push(columns.iter().map(|column| quoted(cell(column))).collect::<Vec<_>>().join(","));
    }
    lines.join("\n")
}

/// Returns the fields of a row with the names of nested ones joined by dots. Lists of texts are joined by spaces; lists of
/// objects are left out, because they are rows of their own.
fn flatten(row: &impl Serialize) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    if let Value::Object(map) = serde_json::to_value(row).expect("its keys are strings") {
        flatten_into(&map, "", &mut fields);
    }
    fields
}

fn flatten_into(map: &Map<String, Value>, prefix: &str, fields: &mut Vec<(String, String)>) {
    for (name, value) in map {
        let name = format!("{prefix}{name}");
        match value {
            Value::Object(inner) => flatten_into(inner, &format!("{name}."), fields),
            Value::Array(list) if list.iter().all(Value::is_object) => {}
            Value::Array(list) => {
                let texts: Vec<String> = list.iter().map(plain).collect();
                fields.push((name, texts.join(" ")));
            }
            value => fields.push((name, plain(value))),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn quoted(text: &str) -> String {
    // A spreadsheet would take a text that begins so for a formula.
    let text = if text.starts_with(['=', '+', '@']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn csv_has_a_column_for_each_field_of_any_row() {
        let rows = [
            json!({ "vm": "a", "rates": { "1s": { "iops": 1.5 } }, "names": ["x", "y"], "promises": [{ "kind": "r" }], "points": null }),
            json!({ "vm": "b,\"c\"", "rates": { "1s": { "iops": null } }, "cause": "=1+1", "promises": [], "points": { "held": 3 } }),
        ];
        assert_eq!(csv(&rows), "vm,names,rates.1s.iops,cause,points.held\na,x y,1.5,,\n\"b,\"\"c\"\"\",,,'=1+1,3");
    }
}
