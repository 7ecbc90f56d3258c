//! The document of the API as tables.

use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use serde_json::Value;

use super::{Frame, NoParameters, Page, Shown, show};
use crate::server::Shared;

pub(super) const PAGE: Page = Page { nav: Some(("API", "/api")), routes };

/// Methods of HTTP in the order in which they are shown.
const METHODS: [&str; 6] = ["get", "post", "patch", "put", "delete", "head"];
/// Depth to which schemas are followed for the name of a type.
const DEPTH_MAX: usize = 4;

fn routes() -> Router<Shared> {
    Router::new().route("/api", get(api))
}

#[derive(Template)]
#[template(path = "api.html")]
struct Api {
    frame: Frame,
    title: String,
    version: String,
    description: String,
    operations: Vec<Operation>,
    types: Vec<Type>,
    socket: String,
}

/// A method of a path.
#[derive(Debug, Default, PartialEq)]
struct Operation {
    method: String,
    path: String,
    summary: String,
    /// Name, where it is, type, and what it means.
    parameters: Vec<[String; 4]>,
    body: String,
    /// Status, type, and what it means.
    answers: Vec<[String; 3]>,
}

/// A type with its fields.
#[derive(Debug, PartialEq)]
struct Type {
    name: String,
    description: String,
    fields: Vec<[String; 3]>,
}

async fn api(State(shared): State<Shared>, none: Result<Query<NoParameters>, QueryRejection>) -> Shown {
    none?;
    let document: Value = shared.daemon.get("/openapi.json").await?;
    let frame = Frame { nav: "/api", here: "/api".to_owned(), ..Frame::titled("API") };
    show(&Api {
        frame,
        title: text(&document["info"], "title"),
        version: text(&document["info"], "version"),
        description: text(&document["info"], "description"),
        operations: operations(&document),
        types: types(&document),
        socket: shared.daemon.socket().to_owned(),
    })
}

fn text(of: &Value, key: &str) -> String {
    of[key].as_str().unwrap_or_default().to_owned()
}

/// What an object has, by its keys.
fn entries(of: &Value) -> impl Iterator<Item = (&String, &Value)> {
    of.as_object().into_iter().flatten()
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in entries(&document["paths"]) {
        for method in METHODS {
            let Some(one) = item.get(method) else { continue };
            let common = item["parameters"].as_array().into_iter().flatten();
            let parameters = common.chain(one["parameters"].as_array().into_iter().flatten());
            let description = [text(one, "summary"), text(one, "description")];
            all.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                summary: description.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" "),
                parameters: parameters.map(|one| parameter(resolved(document, one))).collect(),
                body: body(&one["requestBody"]),
                answers: entries(&one["responses"]).map(|(status, one)| answer(document, status, one)).collect(),
            });
        }
    }
    all
}

fn parameter(one: &Value) -> [String; 4] {
    let name = if one["required"] == true { format!("{} (required)", text(one, "name")) } else { text(one, "name") };
    [name, text(one, "in"), type_of(&one["schema"], 0), text(one, "description")]
}

fn body(of: &Value) -> String {
    entries(&of["content"])
        .map(|(kind, one)| format!("{} ({kind})", type_of(&one["schema"], 0)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn answer(document: &Value, status: &str, one: &Value) -> [String; 3] {
    let one = resolved(document, one);
    [status.to_owned(), body(one), text(one, "description")]
}

/// What a reference within the document stands for.
fn resolved<'a>(document: &'a Value, of: &'a Value) -> &'a Value {
    let pointer = of["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(of)
}

/// The name of a type.
fn type_of(schema: &Value, depth: usize) -> String {
    if depth > DEPTH_MAX {
        return "...".to_owned();
    }
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    for (key, word) in [("oneOf", " or "), ("anyOf", " or "), ("allOf", " and ")] {
        if let Some(all) = schema[key].as_array() {
            return all.iter().map(|one| type_of(one, depth + 1)).collect::<Vec<_>>().join(word);
        }
    }
    let words = schema["enum"]
        .as_array()
        .map(|all| all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)));
    if let Some(words) = words {
        return format!("one of {}", words.collect::<Vec<_>>().join(", "));
    }
    match &schema["type"] {
        Value::String(array) if array == "array" => format!("list of {}", type_of(&schema["items"], depth + 1)),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}

fn types(document: &Value) -> Vec<Type> {
    let schemas = entries(&document["components"]["schemas"]);
    let fields = |schema: &Value| {
        let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
        let properties = parts.flat_map(|part| entries(&part["properties"]));
        properties.map(|(name, field)| [name.clone(), type_of(field, 0), text(field, "description")]).collect()
    };
    let of = |(name, schema): (&String, &Value)| Type {
        name: name.clone(),
        description: match text(schema, "description") {
            text if text.is_empty() && schema["properties"].is_null() => type_of(schema, 0),
            text => text,
        },
        fields: fields(schema),
    };
    schemas.map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_becomes_tables() {
        let document = json!({
            "paths": { "/v1/vms/{vm}": {
                "parameters": [{ "name": "vm", "in": "path", "required": true, "schema": { "type": "string" } }],
                "get": {
                    "summary": "A VM.",
                    "parameters": [{ "name": "fields", "in": "query", "schema": { "type": ["string", "null"] }, "description": "Some." }],
                    "responses": { "200": { "$ref": "#/components/responses/Vm" } },
                },
                "patch": { "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Set" } } } } },
            } },
            "components": {
                "responses": { "Vm": { "description": "ok", "content": { "application/json": { "schema": { "type": "array", "items": { "enum": ["a", "b"] } } } } } },
                "schemas": { "Set": { "description": "Keys.", "properties": { "keys": { "type": "object" } } } },
            },
        });
        let all = operations(&document);
        assert_eq!((all[0].method.as_str(), all[0].parameters[0][0].as_str()), ("GET", "vm (required)"));
        assert_eq!(all[0].parameters[1], ["fields", "query", "string or null", "Some."]);
        assert_eq!(all[0].answers, [["200", "list of one of a, b (application/json)", "ok"].map(str::to_owned)]);
        assert_eq!(all[1].body, "Set (application/json)");
        assert_eq!(types(&document)[0].fields, [["keys", "object", ""].map(str::to_owned)]);
    }
}
