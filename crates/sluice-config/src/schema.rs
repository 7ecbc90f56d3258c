//! JSON Schema of the host file, for editors, generated from the same lists of keys as the reader.

use serde_json::{Map, Value, json};
use sluice_sched::params::{Parameter, Range};

use crate::disk_path::PATHS_MAX;
use crate::fields::{Choice, Choosable, HOST, Key, Kind, Section};

const NUMBER: &str = r"[0-9][0-9_ ]*(\.[0-9]{1,3})?";
const PREFIX: &str = "([kKMGT]|[KMGT]i)?";

/// The schema of the host file, draft 2020-12.
#[must_use]
pub fn schema() -> Value {
    schema_of("Sluicegate host file", &HOST)
}

/// The schema of a file with these keys, draft 2020-12.
#[must_use]
pub fn schema_of(title: &str, section: &Section) -> Value {
    let mut schema = json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "title": title });
    let root = schema.as_object_mut().expect("it is an object");
    root.append(&mut object(section));
    schema
}

/// A name, or a table with a type and its parameters.
fn chosen(choice: &Choice) -> Value {
    let mut any = vec![json!({ "type": "string" })];
    any.extend(tables(choice));
    json!({ "anyOf": any })
}

fn tables(choice: &Choice) -> Vec<Value> {
    let table = |option: Choosable| {
        let mut properties: Map<String, Value> = option.parameters.iter().map(parameter).collect();
        properties.insert("type".to_owned(), json!({ "const": option.name }));
        json!({
            "type": "object",
            "description": option.summary,
            "properties": properties,
            "required": ["type"],
            "additionalProperties": false,
        })
    };
    (choice.options)().into_iter().map(table).collect()
}

fn object(section: &Section) -> Map<String, Value> {
    let mut properties: Map<String, Value> =
        section.keys().map(|key| (key.name.to_owned(), Value::Object(property(section, key)))).collect();
    properties.extend(section.schedulers().map(|scheduler| (scheduler.name.to_owned(), parameters(scheduler))));
    let mut object = Map::new();
    object.insert("type".to_owned(), json!("object"));
    object.insert("description".to_owned(), json!(section.doc));
    object.insert("properties".to_owned(), Value::Object(properties));
    object.insert("additionalProperties".to_owned(), json!(false));
    object
}

fn property(section: &Section, key: &Key) -> Map<String, Value> {
    let mut property = of_kind(&key.kind);
    if matches!(key.kind, Kind::Scheduler) {
        let names: Vec<_> = section.schedulers().map(|scheduler| scheduler.name).collect();
        property.insert("enum".to_owned(), json!(names));
    }
    let doc = match key.default {
        Some(default) if literal(default).is_none() => format!("{}. Default: {default}", key.doc),
        _ => key.doc.to_owned(),
    };
    property.insert("description".to_owned(), json!(doc));
    if let Some(default) = key.default.and_then(literal) {
        property.insert("default".to_owned(), default);
    }
    if let Some(example) = literal(key.example) {
        property.insert("examples".to_owned(), json!([example]));
    }
    property
}

/// A scalar that is the same in TOML and JSON.
fn literal(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

fn parameters(scheduler: &sluice_sched::Descriptor) -> Value {
    let properties: Map<String, Value> = scheduler.parameters.iter().map(parameter).collect();
    json!({
        "type": "object",
        "description": format!("Parameters of {}: {}", scheduler.name, scheduler.summary),
        "properties": properties,
        "additionalProperties": false,
    })
}

fn parameter(known: &Parameter) -> (String, Value) {
    let mut property = Map::new();
    property.insert("description".to_owned(), json!(format!("{}: {}", known.help, known.accepts())));
    property.extend(of_range(known.range));
    property.extend(literal(known.default).map(|default| ("default".to_owned(), default)));
    (known.name.to_owned(), Value::Object(property))
}

fn of_range(range: Range) -> Map<String, Value> {
    of_kind(&match range {
        Range::Words(words) => Kind::Word(words),
        Range::Flag => Kind::Bool,
        Range::Number(min, max) => Kind::Integer(min.into(), max.into()),
        Range::Time(min, max) => Kind::Time(min, max),
        Range::Size(min, max) => Kind::Size(min, max),
        Range::Decimal(min, max) => Kind::Decimal(min, max),
        Range::Rate(..) => Kind::ByteRate,
        Range::Requests(..) => Kind::Iops,
        Range::Percent(min, max) => Kind::Percent(min, max),
        // Described in words only.
        Range::Any => return Map::new(),
    })
}

fn of_kind(kind: &Kind) -> Map<String, Value> {
    let value = match kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Decimal(min, max) => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::Word(words) => json!({ "enum": words }),
        // Described in the section.
        Kind::Scheduler | Kind::Name(_) | Kind::Text | Kind::Address => json!({ "type": "string" }),
        Kind::Path => text("^/"),
        Kind::Source => text("^(/|nbd://|nbd\\+unix:///|rbd:[^/]+/)"),
        Kind::Meeting => text("^(/|rados:[^/]+/)"),
        Kind::DiskPaths => {
            let path = text(r"^/([^*]*/)?[^*/]*\*?[^*/]*/*$");
            let node = text("^(nbd(://|\\+unix:/)|rbd:)");
            json!({ "anyOf": [path, node, { "type": "array", "minItems": 1, "maxItems": PATHS_MAX, "items": path }] })
        }
        Kind::Accounts => {
            json!({ "type": "array", "items": { "type": "string", "pattern": "^(user|group):[A-Za-z0-9_.$@-]+$" } })
        }
        Kind::Names => names(),
        Kind::Words(words) => json!({ "type": "array", "items": { "enum": words } }),
        Kind::Mode => text("^[0-7]{1,5}$"),
        Kind::Size(..) => quantity(&format!("{PREFIX}B")),
        Kind::Time(..) => quantity("(ns|us|µs|ms|s|m|min|h|d|day|days)"),
        Kind::Iops => quantity(&format!("{PREFIX} *[iI][oO][pP][sS]( *@ *{NUMBER} *{PREFIX}B)?")),
        Kind::ByteRate => quantity(&format!("{PREFIX}B/s")),
        Kind::LinkRate => quantity(&format!("{PREFIX}(bit|B)/s")),
        Kind::Percent(..) => quantity("%"),
        Kind::Interface => text("^[!-~]{1,15}$"),
        Kind::Mac => text("^[0-9A-Fa-f]{2}((:[0-9A-Fa-f]{2}){5}|(-[0-9A-Fa-f]{2}){5})$"),
        Kind::Networks => {
            json!({ "type": "array", "items": { "type": "string", "pattern": "^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$" } })
        }
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(of_kind).collect::<Vec<_>>() }),
        Kind::File => json!({ "type": "string", "minLength": 1 }),
        Kind::Table(section) => return object(section),
        Kind::List(section) => json!({ "type": "array", "items": object(section) }),
        Kind::Open(section) => {
            let mut open = object(section);
            open.insert("additionalProperties".to_owned(), json!({ "type": ["array", "object"] }));
            return open;
        }
        Kind::Chosen(choice) => chosen(choice),
        Kind::NamedChoices(choice) => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9_.-]{1,64}$" },
            "additionalProperties": { "anyOf": tables(choice) },
        }),
        Kind::Named(section) => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9_.-]{1,64}$" },
            "additionalProperties": object(section),
        }),
    };
    match value {
        Value::Object(object) => object,
        _ => unreachable!("each arm makes an object"),
    }
}

fn text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

fn names() -> Value {
    let name = json!({ "type": "string", "minLength": 1 });
    json!({ "anyOf": [{ "const": "*" }, { "type": "array", "items": name }] })
}

fn quantity(unit: &str) -> Value {
    json!({ "type": "string", "pattern": format!("^ *{NUMBER} *{unit} *$") })
}
