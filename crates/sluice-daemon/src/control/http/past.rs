//! Routes that read the past, and explain it.

use axum::Json;
use axum::extract::Extension;
use serde::Deserialize;
use sluice_api::event::{Event, Events};
use sluice_api::list::{History, Step};
use sluice_api::request::Request;
use sluice_api::status::Status;
use sluice_api::why::Why;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Nothing, Path, Query};
use super::{Asking, Client};
use crate::explain::why::Question;
use crate::http::problem::{Failed, Kind};

pub(super) fn routes() -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(events))
        .routes(routes!(event))
        .routes(routes!(history_of_vm))
        .routes(routes!(history_of_volume))
        .routes(routes!(history_of_nic))
        .routes(routes!(explained))
}

/// Which events are asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Seconds since 1970.
    since: Option<u64>,
    /// Seconds since 1970.
    until: Option<u64>,
    /// Number of the last event that is known already: the first ones after it come.
    after: Option<u64>,
    vm: Option<String>,
    device: Option<String>,
    /// A kind of events, or `change`.
    kind: Option<String>,
    limit: Option<usize>,
}

/// Events, oldest first
#[utoipa::path(get, path = "/v1/events", params(Which), responses((status = 200, body = Events)))]
async fn events(Extension(client): Asking, Query(which): Query<Which>) -> Result<Json<Events>, Failed> {
    let Which { since, until, after, vm, device, kind, limit } = which;
    client.get(Request::Events { since, until, after, vm, device, kind, limit }).await.map(Json)
}

/// An event, by its number
#[utoipa::path(get, path = "/v1/events/{id}", responses((status = 200, body = Event)))]
async fn event(
    Extension(client): Asking,
    Path(id): Path<u64>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Json<Event>, Failed> {
    let no_other = (None, None, None, None, None);
    let (since, until, vm, device, kind) = no_other;
    let request = Request::Events { since, until, after: Some(id.saturating_sub(1)), vm, device, kind, limit: Some(1) };
    let found: Events = client.get(request).await?;
    let found = found.events.into_iter().find(|event| event.id == Some(id));
    found
        .map(Json)
        .ok_or_else(|| Kind::NotFound.with(format!("There is no event {id}, or it is not kept any more")).into())
}

/// Which part of the past is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct When {
    /// Seconds since 1970.
    since: Option<u64>,
    /// Seconds since 1970.
    until: Option<u64>,
    /// Length of the intervals; without it seconds and minutes.
    step: Option<Step>,
}

async fn past(client: &Client, vm: String, volume: Option<String>, when: When) -> Result<Json<History>, Failed> {
    let When { since, until, step } = when;
    if step == Some(Step::Unknown) {
        let steps = Step::ALL.map(Step::name).join(", ");
        return Err(Kind::Invalid.with(format!("step is none of {steps}")).into());
    }
    client.get(Request::History { vm, volume, step, since, until }).await.map(Json)
}

/// The past of a VM
#[utoipa::path(get, path = "/v1/history/{vm}", params(When), responses((status = 200, body = History)))]
async fn history_of_vm(
    Extension(client): Asking,
    Path(vm): Path<String>,
    Query(when): Query<When>,
) -> Result<Json<History>, Failed> {
    past(&client, vm, None, when).await
}

/// The past of a volume
#[utoipa::path(get, path = "/v1/history/{vm}/{volume}", params(When), responses((status = 200, body = History)))]
async fn history_of_volume(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(when): Query<When>,
) -> Result<Json<History>, Failed> {
    past(&client, vm, Some(volume), when).await
}

/// The past of a NIC
#[utoipa::path(get, path = "/v1/history/{vm}/nic/{nic}", params(When), responses((status = 200, body = History)))]
async fn history_of_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    Query(when): Query<When>,
) -> Result<Json<History>, Failed> {
    past(&client, vm, Some(format!("nic/{nic}")), when).await
}

/// Which VM is explained.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Explained {
    vm: String,
    /// Seconds since 1970; without it an hour ago.
    since: Option<u64>,
}

/// Why a VM gets what it gets, what broke its promises, and what would help
#[utoipa::path(get, path = "/v1/why", params(Explained), responses((status = 200, body = Why)))]
async fn explained(
    Extension(client): Asking,
    Query(Explained { vm, since }): Query<Explained>,
) -> Result<Json<Why>, Failed> {
    let status: Status = client.get(Request::Status).await?;
    let mut question = Question::new(&vm, since, status.time, Some(status));
    while let Some(request) = question.needs() {
        question.take(client.get(request).await?);
    }
    question.answer().map(Json).map_err(|unknown| Kind::NotFound.with(unknown).into())
}
