//! Routes that change. Each is a line in [`routes`].

use axum::extract::Extension;
use axum::http::HeaderMap;
use sluice_api::body::{Apply, Attach, Detach, Reset, Resize, Set, TakeFrom, TestOf};
use sluice_api::change::{Plan, Takeover};
use sluice_api::list::TestAlerts;
use sluice_api::request::{Names, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{InManner, Json, Path, Query, Tried, only_if};
use super::{Asking, Changed, Client, Outcome};
use crate::control::socket::Manner;
use crate::http::problem::{Failed, Kind};

pub(super) fn routes() -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(set_vm, detach_vm))
        .routes(routes!(set_volume, attach, detach))
        .routes(routes!(set_nic, attach_nic, detach_nic))
        .routes(routes!(set_policy))
        .routes(routes!(resize))
        .routes(routes!(accept_loss_of_vm))
        .routes(routes!(accept_loss))
        .routes(routes!(take_over))
        .routes(routes!(reset))
        .routes(routes!(apply))
        .routes(routes!(test_alerts))
}

/// Refuses a version for what is not about one object.
fn of_several(manner: Manner) -> Result<Manner, Failed> {
    match manner.only_if {
        Some(_) => Err(Kind::Invalid.with("If-Match is for one object, and this has none").into()),
        None => Ok(manner),
    }
}

/// Refuses to try what cannot be tried.
fn always(manner: Manner) -> Result<(), Failed> {
    match manner.is_dry_run {
        true => Err(Kind::Invalid.with("dry_run: this has no dry run").into()),
        false => Ok(()),
    }
}

async fn set(client: &Client, target: String, manner: Manner, body: Set) -> Changed {
    let how = body.how()?;
    let Set { keys, reset, .. } = body;
    client.change(Request::Set { target, keys, reset, how }, manner).await
}

/// Change keys of a VM, or of all VMs that a pattern with `*` matches
#[utoipa::path(patch, path = "/v1/vms/{vm}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_vm(
    Extension(client): Asking,
    Path(vm): Path<String>,
    InManner(manner): InManner,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, vm, manner, body).await
}

/// Change keys of a volume, or of all volumes that a pattern with `*` matches
#[utoipa::path(patch, path = "/v1/volumes/{vm}/{volume}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_volume(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    InManner(manner): InManner,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, format!("{vm}/{volume}"), manner, body).await
}

/// Change keys of a NIC
#[utoipa::path(patch, path = "/v1/nics/{vm}/{nic}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    InManner(manner): InManner,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, format!("{vm}/nic/{nic}"), manner, body).await
}

/// Change keys of a named policy, for all that hold it
#[utoipa::path(patch, path = "/v1/policies/{policy}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_policy(
    Extension(client): Asking,
    Path(policy): Path<String>,
    InManner(manner): InManner,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, format!("policy/{policy}"), manner, body).await
}

/// Attach a volume, and its VM if that is new
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}", params(Tried), responses((status = 200, body = Outcome)))]
async fn attach(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    InManner(manner): InManner,
    Json(body): Json<Attach>,
) -> Changed {
    let how = body.how()?;
    let (target, Attach { keys, vm, .. }) = (format!("{vm}/{volume}"), body);
    client.change(Request::Attach { target, keys, vm, how }, manner).await
}

/// Attach a NIC, and its VM if that is new
#[utoipa::path(post, path = "/v1/nics/{vm}/{nic}", params(Tried), responses((status = 200, body = Outcome)))]
async fn attach_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    InManner(manner): InManner,
    Json(body): Json<Attach>,
) -> Changed {
    let how = body.how()?;
    let (target, Attach { keys, vm, .. }) = (format!("{vm}/nic/{nic}"), body);
    client.change(Request::Attach { target, keys, vm, how }, manner).await
}

async fn remove(client: &Client, target: String, headers: &HeaderMap, asked: Detach) -> Changed {
    let manner = Manner { is_dry_run: asked.dry_run, only_if: only_if(headers)? };
    client.change(Request::Detach { target, how: asked.how()? }, manner).await
}

/// Detach a VM with its volumes and NICs
#[utoipa::path(delete, path = "/v1/vms/{vm}", params(Detach), responses((status = 200, body = Outcome)))]
async fn detach_vm(
    Extension(client): Asking,
    Path(vm): Path<String>,
    Query(asked): Query<Detach>,
    headers: HeaderMap,
) -> Changed {
    remove(&client, vm, &headers, asked).await
}

/// Detach a volume
#[utoipa::path(delete, path = "/v1/volumes/{vm}/{volume}", params(Detach), responses((status = 200, body = Outcome)))]
async fn detach(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(asked): Query<Detach>,
    headers: HeaderMap,
) -> Changed {
    remove(&client, format!("{vm}/{volume}"), &headers, asked).await
}

/// Detach a NIC
#[utoipa::path(delete, path = "/v1/nics/{vm}/{nic}", params(Detach), responses((status = 200, body = Outcome)))]
async fn detach_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    Query(asked): Query<Detach>,
    headers: HeaderMap,
) -> Changed {
    remove(&client, format!("{vm}/nic/{nic}"), &headers, asked).await
}

/// Grow a volume
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}/resize", params(Tried), responses((status = 200, body = Outcome)))]
async fn resize(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    InManner(manner): InManner,
    Json(body): Json<Resize>,
) -> Changed {
    let how = body.how()?;
    let request = Request::Resize { target: format!("{vm}/{volume}"), size: body.size, how };
    client.change(request, manner).await
}

/// Resume writes of a VM although a failed sync may have lost some
#[utoipa::path(post, path = "/v1/vms/{vm}/accept-loss", params(Tried), responses((status = 200, body = Outcome)))]
async fn accept_loss_of_vm(
    Extension(client): Asking,
    Path(target): Path<String>,
    InManner(manner): InManner,
) -> Changed {
    client.change(Request::AcceptLoss { target }, manner).await
}

/// Resume writes of a volume although a failed sync may have lost some
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}/accept-loss", params(Tried), responses((status = 200, body = Outcome)))]
async fn accept_loss(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    InManner(manner): InManner,
) -> Changed {
    client.change(Request::AcceptLoss { target: format!("{vm}/{volume}") }, manner).await
}

/// Take the lock of a volume's image from the client that has it
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}/lock", responses((status = 200, body = Takeover)))]
async fn take_over(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    InManner(manner): InManner,
    Json(TakeFrom { from }): Json<TakeFrom>,
) -> Result<axum::Json<Takeover>, Failed> {
    always(of_several(manner)?)?;
    client.get(Request::Takeover { target: format!("{vm}/{volume}"), from: Some(from) }).await.map(axum::Json)
}

/// Take changes back. `If-Match` is for one, with the version of that change
#[utoipa::path(post, path = "/v1/reset", params(Tried), responses((status = 200, body = Outcome)))]
async fn reset(
    Extension(client): Asking,
    InManner(manner): InManner,
    Json(Reset { reset, reason, force }): Json<Reset>,
) -> Changed {
    if reset.as_ref().is_some_and(Vec::is_empty) {
        return Err(Kind::Invalid
            .with("reset names no change: leave it out to take all changes back")
            .at("/reset")
            .into());
    }
    let is_one = reset.as_ref().is_some_and(|names| names.len() == 1);
    let manner = if is_one { manner } else { of_several(manner)? };
    client.change(Request::Reset { name: reset.map(Names::from), reason, force }, manner).await
}

/// Read the host file again, and put it into force
#[utoipa::path(post, path = "/v1/apply", params(Tried), responses((status = 200, body = Plan)))]
async fn apply(
    Extension(client): Asking,
    InManner(manner): InManner,
    Json(Apply { file, reason, force }): Json<Apply>,
) -> Result<axum::Json<Plan>, Failed> {
    let dry_run = of_several(manner)?.is_dry_run;
    let file = file.map(Into::into);
    client.get(Request::Apply { file, dry_run, force, reason }).await.map(axum::Json)
}

/// Send a test alert, and wait until it has arrived or failed
#[utoipa::path(post, path = "/v1/alerts/test", responses((status = 200, body = TestAlerts)))]
async fn test_alerts(
    Extension(client): Asking,
    InManner(manner): InManner,
    Json(TestOf { class }): Json<TestOf>,
) -> Result<axum::Json<TestAlerts>, Failed> {
    always(of_several(manner)?)?;
    client.get(Request::TestAlert { class }).await.map(axum::Json)
}
