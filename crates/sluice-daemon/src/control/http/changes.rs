//! What is changed. Each resource is a line in [`routes`].

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Path};
use axum::routing::{patch, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_api::request::{How, Names, Request, Term};

use super::Client;
use super::problem::{Kind, Problem};

type Body = Result<Json<Change>, JsonRejection>;
type Changed = Result<Json<Value>, Problem>;

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/vms/{vm}", patch(set_vm).delete(detach_vm))
        .route("/v1/volumes/{vm}/{volume}", patch(set_volume).post(attach).delete(detach))
        .route("/v1/volumes/{vm}/{volume}/accept-loss", post(accept_loss))
        .route("/v1/overrides/reset", post(reset))
}

/// A change: which keys, for how long, why.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Change {
    /// Keys of the host file, with their values there.
    keys: toml::Table,
    /// Of a volume whose VM is new, keys of the VM.
    vm: toml::Table,
    /// Names of changes that are taken back in the same step; of `reset` those that are, all if there is none.
    reset: Vec<String>,
    /// Until this time, in seconds since 1970.
    until: Option<u64>,
    /// Whether it goes into a drop-in.
    persist: bool,
    reason: Option<String>,
    /// Objects that may be closed or changed although they are in use.
    force: Vec<String>,
}

impl Change {
    /// Takes the options out.
    ///
    /// # Errors
    /// They contradict each other.
    fn how(&mut self) -> Result<How, Problem> {
        let term = match (self.until, self.persist) {
            (Some(_), true) => {
                return Err(Kind::Invalid.with("until and persist: a drop-in has no end, state one of them"));
            }
            (Some(until), false) => Term::Until(until),
            (None, true) => Term::Persist,
            (None, false) => Term::Always,
        };
        let (reason, force) = (self.reason.take(), std::mem::take(&mut self.force));
        Ok(How { term, reason, force, permanent: false })
    }
}

async fn set(client: &Client, target: String, body: Body) -> Changed {
    let Json(mut change) = body?;
    if !change.vm.is_empty() {
        return Err(Kind::Invalid.with("vm has keys of a new VM, and this one exists: write them as keys"));
    }
    let how = change.how()?;
    client.change(Request::Set { target, keys: change.keys, reset: change.reset, how }).await
}

async fn set_vm(Extension(client): Extension<Client>, Path(vm): Path<String>, body: Body) -> Changed {
    set(&client, vm, body).await
}

async fn set_volume(
    Extension(client): Extension<Client>,
    Path((vm, volume)): Path<(String, String)>,
    body: Body,
) -> Changed {
    set(&client, format!("{vm}/{volume}"), body).await
}

async fn attach(
    Extension(client): Extension<Client>,
    Path((vm, volume)): Path<(String, String)>,
    body: Body,
) -> Changed {
    let Json(mut change) = body?;
    let (target, how) = (format!("{vm}/{volume}"), change.how()?);
    client.change(Request::Attach { target, keys: change.keys, vm: change.vm, how }).await
}

async fn detach_vm(Extension(client): Extension<Client>, Path(target): Path<String>) -> Changed {
    client.change(Request::Detach { target, how: How::default() }).await
}

async fn detach(Extension(client): Extension<Client>, Path((vm, volume)): Path<(String, String)>) -> Changed {
    client.change(Request::Detach { target: format!("{vm}/{volume}"), how: How::default() }).await
}

async fn accept_loss(Extension(client): Extension<Client>, Path((vm, volume)): Path<(String, String)>) -> Changed {
    client.change(Request::AcceptLoss { target: format!("{vm}/{volume}") }).await
}

async fn reset(Extension(client): Extension<Client>, body: Body) -> Changed {
    let Json(change) = body?;
    let name = (!change.reset.is_empty()).then(|| Names::from(change.reset));
    client.change(Request::Reset { name, reason: change.reason, force: change.force }).await
}

/// What a change has changed: the target before and after it, and the rest of the reply.
pub(super) fn told(before: Option<Value>, after: Option<Value>, result: Option<Value>) -> Value {
    json!({ "before": before, "after": after, "result": result })
}
