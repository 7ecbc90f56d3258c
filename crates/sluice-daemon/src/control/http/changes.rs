//! Routes that change. Each is a line in [`routes`].

use axum::Router;
use axum::extract::Extension;
use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, HeaderValue};
use axum::routing::{MethodRouter, get, post};
use sluice_api::body::{Apply, Attach, Detach, Reset, Resize, Set, TakeFrom, TestOf};
use sluice_api::change::{Plan, Takeover};
use sluice_api::list::TestAlerts;
use sluice_api::request::{How, Names, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Nothing, Path, Query, Tried};
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

/// What is done to a volume, asked for of a VM: the daemon refuses it, and says which volumes there are.
pub(super) fn of_a_vm() -> Router {
    fn refused(request: fn(String) -> Request) -> MethodRouter {
        post(async move |Extension(client): Asking, Path(vm): Path<String>| {
            client.change(request(vm), Manner::default()).await
        })
    }
    Router::new()
        .route(
            "/v1/vms/{vm}",
            refused(|target| Request::Attach {
                target,
                keys: toml::Table::new(),
                vm: toml::Table::new(),
                how: How::default(),
            }),
        )
        .route(
            "/v1/vms/{vm}/resize",
            refused(|target| Request::Resize { target, size: String::new(), how: How::default() }),
        )
        .route(
            "/v1/vms/{vm}/lock",
            get(async |Extension(client): Asking, Path(vm): Path<String>| {
                client.change(Request::Takeover { target: vm, from: None }, Manner::default()).await
            }),
        )
}

/// How a change is made, of its header and its parameters.
fn manner(headers: &HeaderMap, tried: &Tried) -> Result<Manner, Failed> {
    let only_if = headers.get(IF_MATCH).map(version).transpose()?.flatten();
    Ok(Manner { is_dry_run: tried.dry_run, only_if })
}

/// The version in quotes of `If-Match`; `None` for any.
fn version(header: &HeaderValue) -> Result<Option<String>, Failed> {
    let text = header.to_str().unwrap_or_default().trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).filter(|text| !text.contains('"'));
    match (text, quoted) {
        ("*", _) => Ok(None),
        (_, Some(version)) => Ok(Some(version.to_owned())),
        _ => Err(Kind::Invalid.with("If-Match is one version in quotes, as the ETag of its keys states it").into()),
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
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, vm, manner(&headers, &tried)?, body).await
}

/// Change keys of a volume, or of all volumes that a pattern with `*` matches
#[utoipa::path(patch, path = "/v1/volumes/{vm}/{volume}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_volume(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, format!("{vm}/{volume}"), manner(&headers, &tried)?, body).await
}

/// Change keys of a NIC
#[utoipa::path(patch, path = "/v1/nics/{vm}/{nic}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, format!("{vm}/nic/{nic}"), manner(&headers, &tried)?, body).await
}

/// Change keys of a named policy, for all that hold it
#[utoipa::path(patch, path = "/v1/policies/{policy}", params(Tried), responses((status = 200, body = Outcome)))]
async fn set_policy(
    Extension(client): Asking,
    Path(policy): Path<String>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Set>,
) -> Changed {
    set(&client, format!("policy/{policy}"), manner(&headers, &tried)?, body).await
}

/// Attach a volume, and its VM if that is new
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}", params(Tried), responses((status = 200, body = Outcome)))]
async fn attach(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Attach>,
) -> Changed {
    let how = body.how()?;
    let (target, Attach { keys, vm, .. }) = (format!("{vm}/{volume}"), body);
    client.change(Request::Attach { target, keys, vm, how }, manner(&headers, &tried)?).await
}

/// Attach a NIC, and its VM if that is new
#[utoipa::path(post, path = "/v1/nics/{vm}/{nic}", params(Tried), responses((status = 200, body = Outcome)))]
async fn attach_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Attach>,
) -> Changed {
    let how = body.how()?;
    let (target, Attach { keys, vm, .. }) = (format!("{vm}/nic/{nic}"), body);
    client.change(Request::Attach { target, keys, vm, how }, manner(&headers, &tried)?).await
}

async fn remove(client: &Client, target: String, headers: &HeaderMap, asked: Detach) -> Changed {
    let manner = manner(headers, &Tried { dry_run: asked.dry_run })?;
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
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(body): Json<Resize>,
) -> Changed {
    let how = body.how()?;
    let request = Request::Resize { target: format!("{vm}/{volume}"), size: body.size, how };
    client.change(request, manner(&headers, &tried)?).await
}

/// Resume writes of a VM although a failed sync may have lost some
#[utoipa::path(post, path = "/v1/vms/{vm}/accept-loss", params(Tried), responses((status = 200, body = Outcome)))]
async fn accept_loss_of_vm(
    Extension(client): Asking,
    Path(target): Path<String>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
) -> Changed {
    client.change(Request::AcceptLoss { target }, manner(&headers, &tried)?).await
}

/// Resume writes of a volume although a failed sync may have lost some
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}/accept-loss", params(Tried), responses((status = 200, body = Outcome)))]
async fn accept_loss(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
) -> Changed {
    client.change(Request::AcceptLoss { target: format!("{vm}/{volume}") }, manner(&headers, &tried)?).await
}

/// Take the lock of a volume's image from the client that has it
#[utoipa::path(post, path = "/v1/volumes/{vm}/{volume}/lock", responses((status = 200, body = Takeover)))]
async fn take_over(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(Nothing {}): Query<Nothing>,
    Json(TakeFrom { from }): Json<TakeFrom>,
) -> Result<axum::Json<Takeover>, Failed> {
    client.get(Request::Takeover { target: format!("{vm}/{volume}"), from: Some(from) }).await.map(axum::Json)
}

/// Take changes back
#[utoipa::path(post, path = "/v1/reset", params(Tried), responses((status = 200, body = Outcome)))]
async fn reset(
    Extension(client): Asking,
    Query(tried): Query<Tried>,
    headers: HeaderMap,
    Json(Reset { reset, reason, force }): Json<Reset>,
) -> Changed {
    if reset.as_ref().is_some_and(Vec::is_empty) {
        return Err(Kind::Invalid
            .with("reset names no change: leave it out to take all changes back")
            .at("/reset")
            .into());
    }
    let request = Request::Reset { name: reset.map(Names::from), reason, force };
    client.change(request, manner(&headers, &tried)?).await
}

/// Read the host file again, and put it into force
#[utoipa::path(post, path = "/v1/apply", params(Tried), responses((status = 200, body = Plan)))]
async fn apply(
    Extension(client): Asking,
    Query(Tried { dry_run }): Query<Tried>,
    Json(Apply { file, reason, force }): Json<Apply>,
) -> Result<axum::Json<Plan>, Failed> {
    let file = file.map(Into::into);
    client.get(Request::Apply { file, dry_run, force, reason }).await.map(axum::Json)
}

/// Send a test alert, and wait until it has arrived or failed
#[utoipa::path(post, path = "/v1/alerts/test", responses((status = 200, body = TestAlerts)))]
async fn test_alerts(
    Extension(client): Asking,
    Query(Nothing {}): Query<Nothing>,
    Json(TestOf { class }): Json<TestOf>,
) -> Result<axum::Json<TestAlerts>, Failed> {
    client.get(Request::TestAlert { class }).await.map(axum::Json)
}
