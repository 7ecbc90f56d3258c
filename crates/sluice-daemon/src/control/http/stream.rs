//! What happens, as server-sent events: a sample each second, and events as they are recorded.
//!
//! A stream asks as any other client does. It holds one message, and asks for nothing more until that has been read, so a stream that nobody reads
//! costs nothing.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use http_body_util::channel::{Channel, Sender};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sluice_api::event::Events;
use sluice_api::request::Request;
use sluice_api::top::Top;
use tokio::time::{MissedTickBehavior, interval};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Query;
use super::{Asking, Client};
use crate::http::problem::Failed;

/// Time between two samples.
const SAMPLE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(stream))
}

/// What a stream has.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Of {
    /// Only these VMs, with commas between them.
    vms: Option<String>,
    /// Number of the last event that is known already; without it only new ones come.
    after: Option<u64>,
}

/// What happens, as server-sent events: `sample` each second, as `/v1/top`, and `event` for what is recorded
#[utoipa::path(get, path = "/v1/stream", params(Of), responses((status = 200, content_type = "text/event-stream", body = String)))]
async fn stream(Extension(client): Asking, headers: HeaderMap, Query(of): Query<Of>) -> Result<Response, Failed> {
    // A browser that connects again says what it has.
    let known = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let after = match of.after.or(known) {
        Some(after) => after,
        None => events(&client, None).await?.last,
    };
    let (sender, body) = Channel::<Bytes>::new(1);
    let (client, vms) = (client, of.vms.map(|vms| vms.split(',').map(str::to_owned).collect()));
    tokio::spawn(async move { follow(client, vms, after, sender).await });
    Ok(([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], Body::new(body)).into_response())
}

async fn events(client: &Client, after: Option<u64>) -> Result<Events, Failed> {
    let request = Request::Events { since: None, until: None, after, vm: None, device: None, kind: None, limit: None };
    client.get(request).await
}

/// The current state, of some VMs or of all. The daemon has written that of all already.
async fn sample(client: &Client, vms: Option<&[String]>) -> Option<Box<RawValue>> {
    let Some(vms) = vms else { return client.written(Request::Top).await.ok() };
    let mut top: Top = client.get(Request::Top).await.ok()?;
    top.vms.retain(|vm| vms.contains(&vm.vm));
    to_raw_value(&top).ok()
}

/// Sends until the client has gone, or the daemon ends.
async fn follow(client: Client, vms: Option<Vec<String>>, mut after: u64, mut to: Sender<Bytes>) -> Option<()> {
    let mut ticks = interval(SAMPLE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        to.send_data(message("sample", None, &sample(&client, vms.as_deref()).await?)).await.ok()?;
        let new = events(&client, Some(after)).await.ok()?;
        for event in &new.events {
            to.send_data(message("event", event.id, event)).await.ok()?;
        }
        after = new.last.max(after);
    }
}

/// A message as the standard of server-sent events has it.
fn message(kind: &str, id: Option<u64>, of: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(of).expect("its keys are strings");
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    Bytes::from(format!("{id}event: {kind}\ndata: {data}\n\n"))
}
