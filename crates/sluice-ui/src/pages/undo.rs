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
use sluice_api::change::{Override, Preview};
use sluice_api::http::{Call, Failed};
use sluice_api::problem::Kind;

use super::change::Target;
use super::overview::plain;
use super::{Frame, Page, Shown, show};
use crate::failure::Failure;
use crate::server::Shared;
use crate::text::{filters, part};

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
    reason: String,
}

#[derive(Template)]
#[template(path = "undo.html")]
struct Undo {
    frame: Frame,
    known: Override,
    value: String,
    preview: Preview,
}

async fn preview(State(shared): State<Shared>, which: Result<Query<Which>, QueryRejection>) -> Shown {
    let Query(Which { name }) = which?;
    let overrides: Vec<Override> = shared.daemon.list("/v1/overrides?").await?;
    let gone = || Failure::not_found(format!("There is no change {name} in force; it has ended, or was undone."));
    let known = overrides.into_iter().find(|known| known.name == name).ok_or_else(gone)?;
    let call = Call::send(Method::POST, format!("{RESET}?dry_run=1"), json!({ "reset": [name] }));
    let preview = shared.daemon.ask(&call).await?.read()?;
    let frame =
        Frame { nav: "/events", here: format!("/undo?name={}", part(&name)), ..Frame::titled(&format!("Undo {name}")) };
    show(&Undo { frame, value: plain(&known.value), known, preview })
}

async fn undo(
    State(shared): State<Shared>,
    sent: Result<axum::Form<Sent>, FormRejection>,
) -> Result<Redirect, Failure> {
    let axum::Form(Sent { done, name, reason }) = sent?;
    match (done, name) {
        (Some(number), None) => undo_done(&shared, number).await,
        (None, Some(name)) => {
            let mut body = json!({ "reset": [name] });
            if !reason.trim().is_empty() {
                body["reason"] = reason.trim().into();
            }
            shared.daemon.ask(&Call::send(Method::POST, RESET, body)).await?;
            Ok(Redirect::to("/events?kind=change"))
        }
        _ => Err(Failure::invalid("State done or name.")),
    }
}

/// Tells what to do if something else has changed the object.
fn stale(failed: Failed) -> Failure {
    let is_stale = matches!(&failed, Failed::Refused(problem) if problem.kind() == Some(Kind::Changed));
    let mut failure = Failure::from(failed);
    if is_stale {
        failure.detail +=
            ". Nothing was undone: look at the changes in force on the page of events, and undo them one by one.";
    }
    failure
}

async fn undo_done(shared: &Shared, number: u64) -> Result<Redirect, Failure> {
    let change = shared.done.get(number).filter(|change| !change.is_undone);
    let gone = "The change is not known any more, or was undone. Look for it among the changes in force.";
    let change = change.ok_or_else(|| Failure::not_found(gone))?;
    let mixed = "What it has replaced ends at several times: undo it with the commands that `sluice events` shows.";
    let body = change.undo().ok_or_else(|| Failure::invalid(mixed))?;
    let target = Target::named(&change.target);
    let call = Call::send(Method::PATCH, target.path(), body);
    let call = change.etag.iter().fold(call, |call, etag| call.header("if-match", etag.clone()));
    shared.daemon.ask(&call).await.map_err(stale)?;
    shared.done.undo(number);
    Ok(Redirect::to(&format!("{}?done={number}", target.page())))
}
