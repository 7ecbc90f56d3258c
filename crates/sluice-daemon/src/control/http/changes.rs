//! Routes that change. Each resource is a line in [`routes`].

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Path, Query};
use axum::routing::{patch, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::Value;
use sluice_api::request::{How, Names, Request, Term};

use super::problem::{Failed, Kind};
use super::reads::Parameters;
use super::{Asking, Client, InVm};

type Body<T> = Result<Json<T>, JsonRejection>;
type Changed = Result<Json<Value>, Failed>;

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/vms/{vm}", patch(set_vm).delete(detach_vm))
        .route("/v1/volumes/{vm}/{volume}", patch(set_volume).post(attach).delete(detach))
        .route("/v1/volumes/{vm}/{volume}/accept-loss", post(accept_loss))
        .route("/v1/overrides/reset", post(reset))
}

/// Keys of a VM or volume that change.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Set {
    /// As in the host file.
    keys: toml::Table,
    /// Names of changes that it takes back in the same step.
    reset: Vec<String>,
    /// Its end, in seconds since 1970.
    until: Option<u64>,
    /// Whether it goes into a drop-in.
    persist: bool,
    reason: Option<String>,
    /// Objects that may be closed or changed although they are in use.
    force: Vec<String>,
}

/// A volume, and its VM if that is new. As [`Set`].
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Attach {
    keys: toml::Table,
    vm: toml::Table,
    until: Option<u64>,
    persist: bool,
    reason: Option<String>,
    force: Vec<String>,
}

/// Changes that are taken back.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Reset {
    /// Their names; without one all.
    reset: Vec<String>,
    reason: Option<String>,
    force: Vec<String>,
}

/// Parameters of a detach, which has no body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    reason: Option<String>,
    /// With commas between them.
    force: Option<String>,
}

fn how(until: Option<u64>, persist: bool, reason: Option<String>, force: Vec<String>) -> Result<How, Failed> {
    let term = match (until, persist) {
        (Some(_), true) => {
            return Err(Kind::Invalid.with("until and persist: a drop-in has no end, state one of them").into());
        }
        (Some(until), false) => Term::Until(until),
        (None, true) => Term::Persist,
        (None, false) => Term::Always,
    };
    Ok(How { term, reason, force, permanent: false })
}

async fn set(client: &Client, target: String, body: Body<Set>) -> Changed {
    let Json(Set { keys, reset, until, persist, reason, force }) = body?;
    let how = how(until, persist, reason, force)?;
    client.change(Request::Set { target, keys, reset, how }).await
}

async fn set_vm(Extension(client): Asking, Path(vm): Path<String>, body: Body<Set>) -> Changed {
    set(&client, vm, body).await
}

async fn set_volume(Extension(client): Asking, Path((vm, volume)): InVm, body: Body<Set>) -> Changed {
    set(&client, format!("{vm}/{volume}"), body).await
}

async fn attach(Extension(client): Asking, Path((vm, volume)): InVm, body: Body<Attach>) -> Changed {
    let target = format!("{vm}/{volume}");
    let Json(Attach { keys, vm, until, persist, reason, force }) = body?;
    let how = how(until, persist, reason, force)?;
    client.change(Request::Attach { target, keys, vm, how }).await
}

async fn remove(client: &Client, target: String, parameters: Parameters<Detach>) -> Changed {
    let Query(Detach { reason, force }) = parameters?;
    let force = force.iter().flat_map(|force| force.split(',')).map(str::to_owned).collect();
    client.change(Request::Detach { target, how: How { reason, force, ..How::default() } }).await
}

async fn detach_vm(Extension(client): Asking, Path(target): Path<String>, parameters: Parameters<Detach>) -> Changed {
    remove(&client, target, parameters).await
}

async fn detach(Extension(client): Asking, Path((vm, volume)): InVm, parameters: Parameters<Detach>) -> Changed {
    remove(&client, format!("{vm}/{volume}"), parameters).await
}

async fn accept_loss(Extension(client): Asking, Path((vm, volume)): InVm) -> Changed {
    client.change(Request::AcceptLoss { target: format!("{vm}/{volume}") }).await
}

async fn reset(Extension(client): Asking, body: Body<Reset>) -> Changed {
    let Json(Reset { reset, reason, force }) = body?;
    let name = (!reset.is_empty()).then(|| Names::from(reset));
    client.change(Request::Reset { name, reason, force }).await
}
