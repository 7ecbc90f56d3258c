//! The undo of a change: one that was made from this page at once, any other one after a dry run.

use askama::Template;
use axum::Router;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::response::Redirect;
use axum::routing::get;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;
use sluice_api::change::{Override, Preview, UndoRequest};
use sluice_api::http::{Call, Failed};
use sluice_api::problem::Kind;

use super::change::Target;
use super::overview::plain;
use super::{Frame, Page, Shown, show};
use crate::failure::Failure;
use crate::server::Shared;
use crate::text::{filters, moment, now, part};

pub(super) const PAGE: Page = Page { nav: None, routes };

const RESET: &str = "/v1/reset";

fn routes() -> Router<Shared> {
    Router::new().route("/undo", get(preview).post(undo))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Name of a change made at run time.
    name: String,
}

/// What is undone: a change of this page by its number, or any by its name.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Sent {
    done: Option<u64>,
    name: Option<String>,
    /// Tag of the version of the change that was seen.
    etag: String,
    reason: String,
}

#[derive(Template)]
#[template(path = "undo.html")]
struct Undo {
    frame: Frame,
    known: Override,
    etag: String,
    value: String,
    preview: Preview,
}

async fn preview(State(shared): State<Shared>, which: Result<Query<Which>, QueryRejection>) -> Shown {
    let Query(Which { name }) = which?;
    let path = name.split('/').map(part).collect::<Vec<_>>().join("/");
    let found = shared.daemon.tagged::<Override>(format!("/v1/overrides/{path}")).await;
    let (known, etag) = found.map_err(|failed| match failed {
        Failed::Refused(problem) if problem.kind() == Some(Kind::NotFound) => {
            Failure::not_found(format!("There is no change {name} in force; it has ended, or was undone."))
        }
        other => Failure::from(other),
    })?;
    let call = Call::send(Method::POST, format!("{RESET}?dry_run=1"), json!({ "reset": [name] }));
    let preview = shared.daemon.ask(&call).await?.read()?;
    let frame =
        Frame { nav: "/events", here: format!("/undo?name={}", part(&name)), ..Frame::titled(&format!("Undo {name}")) };
    show(&Undo { frame, value: plain(&known.value), known, etag: etag.unwrap_or_default(), preview })
}

async fn undo(
    State(shared): State<Shared>,
    sent: Result<axum::Form<Sent>, FormRejection>,
) -> Result<Redirect, Failure> {
    let axum::Form(Sent { done, name, etag, reason }) = sent?;
    match (done, name) {
        (Some(number), None) => undo_done(&shared, number).await,
        (None, Some(name)) => {
            let mut body = json!({ "reset": [name] });
            if !reason.trim().is_empty() {
                body["reason"] = reason.trim().into();
            }
            let call = Call::send(Method::POST, RESET, body);
            let call = if etag.is_empty() { call } else { call.header("if-match", etag) };
            shared.daemon.ask(&call).await?;
            Ok(Redirect::to("/events?kind=change"))
        }
        _ => Err(Failure::invalid("State done or name.")),
    }
}

/// What to do about a change that cannot be undone as it was made.
const BY_NAME: &str = "look at the changes in force on the page of events, and undo them one by one.";

/// Says that something else has changed the object.
fn stale(target: &Target) -> Failure {
    let detail = format!("{} has changed since. Nothing was undone: {BY_NAME}", target.name());
    Failure::from(Failed::Refused(Box::new(Kind::Changed.with(detail))))
}

/// Sends the requests that undo a change of this page, as the daemon has stated them.
async fn undo_done(shared: &Shared, number: u64) -> Result<Redirect, Failure> {
    let change = shared.done.get(number).filter(|change| !change.is_undone && !change.undo.is_empty());
    let gone =
        "The change is not known any more, was undone, or cannot be undone. Look for it among the changes in force.";
    let change = change.ok_or_else(|| Failure::not_found(gone))?;
    if let Some(end) = change.passed_end(now()) {
        let end = moment(end);
        return Err(Failure::invalid(format!(
            "The change has replaced one that was to end at {end} (UTC). That has passed, so it cannot be set again. Nothing was undone: {BY_NAME}"
        )));
    }
    let target = Target::named(&change.target);
    // A reset has no condition of its own.
    if let Some(made) = &change.etag
        && *made != target.version(shared).await?
    {
        return Err(stale(&target));
    }
    for (index, request) in change.undo.iter().enumerate() {
        let mut call = call(request)?;
        if index == 0 && call.method == Method::PATCH && call.path == target.path() {
            call = change.etag.iter().fold(call, |call, etag| call.header("if-match", etag.clone()));
        }
        shared.daemon.ask(&call).await.map_err(|failed| refused(failed, &target, index))?;
    }
    shared.done.undo(number);
    Ok(Redirect::to(&format!("{}?done={number}", target.page())))
}

fn call(request: &UndoRequest) -> Result<Call, Failure> {
    let UndoRequest { method, path, body } = request.clone();
    let method = method.parse().map_err(|_| Failure::invalid(format!("The daemon has stated the method {method}.")))?;
    Ok(Call { method, body, ..Call::get(path) })
}

/// Says how much of an undo was done before the daemon refused a request.
fn refused(failed: Failed, target: &Target, done: usize) -> Failure {
    let is_refused = matches!(failed, Failed::Refused(_));
    let is_stale = matches!(&failed, Failed::Refused(problem) if problem.kind() == Some(Kind::Changed));
    if is_stale && done == 0 {
        return stale(target);
    }
    let mut failure = Failure::from(failed);
    if done > 0 {
        failure.detail += &format!(". Only a part was undone: {BY_NAME}");
    } else if is_refused {
        failure.detail += &format!(". Nothing was undone: {BY_NAME}");
    }
    failure
}
