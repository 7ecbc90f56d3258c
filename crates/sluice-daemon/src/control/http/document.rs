//! The document of the API, as OpenAPI 3.1 has it: made from the handlers.

use serde_json::{Map, Value, json};
use sluice_api::problem::Problem;
use utoipa::OpenApi;

/// What is common to all routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sluicegate",
        description = "HTTP on the control socket of the daemon: what it serves, what it promises, and changes of both. A request has the \
                       rights of the user who sends it.",
        license(name = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem))
)]
struct Common;

/// Returns the document before the routes are in it.
pub(super) fn common() -> utoipa::openapi::OpenApi {
    Common::openapi()
}

/// Returns the document as JSON, with what holds for every route.
pub(super) fn finished(document: utoipa::openapi::OpenApi) -> String {
    let mut document = serde_json::to_value(document).expect("its keys are strings");
    // An object may have the form of several: fields that are null may be left out.
    rename(&mut document, "oneOf", "anyOf");
    let paths = document["paths"].as_object_mut().expect("there are paths");
    for (method, operation) in paths.values_mut().flat_map(|path| path.as_object_mut().into_iter().flatten()) {
        complete(method, operation);
    }
    let plain: Map<String, Value> =
        core::mem::take(paths).into_iter().map(|(path, of)| (path.replace("{*", "{"), of)).collect();
    *paths = plain;
    serde_json::to_string_pretty(&document).expect("its keys are strings")
}

fn complete(method: &str, operation: &mut Value) {
    operation["responses"]["default"] = json!({
        "description": "It is refused, and nothing has changed, unless the code is `incomplete`",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let header = |name: &str, what: &str| json!({ "name": name, "in": "header", "description": what, "schema": { "type": "string" } });
    let if_match = header("If-Match", "The `ETag` of its keys: it is refused if one of them is another by now");
    let once = header("Idempotency-Key", "A repetition with the same key gets the answer of the first request");
    let headers = match method {
        "post" => vec![if_match, once],
        "patch" | "delete" => vec![if_match],
        _ => Vec::new(),
    };
    if !headers.is_empty() {
        let mut all = operation["parameters"].as_array().cloned().unwrap_or_default();
        all.extend(headers);
        operation["parameters"] = all.into();
    }
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        if let Some(name) = parameter["name"].as_str() {
            parameter["name"] = name.trim_start_matches('*').into();
        }
    }
}

fn rename(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| rename(one, from, to)),
        Value::Object(all) => {
            if let Some(renamed) = all.remove(from) {
                all.insert(to.to_owned(), renamed);
            }
            all.values_mut().for_each(|one| rename(one, from, to));
        }
        _ => {}
    }
}
