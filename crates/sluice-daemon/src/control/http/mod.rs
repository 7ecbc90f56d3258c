//! HTTP on the control socket: resources as JSON, for programs that are not ours.
//!
//! ```text
//!  control socket --a capital letter--> [http thread: hyper, axum] --Request--> [changer]
//!                                        '<------------JSON-----------Reply------'
//! ```
//!
//! It has a thread of its own, so that a long list costs no other client and no VM. Rights are those of the peer.
//!
//! | file | contents |
//! |---|---|
//! | `reads`, `past` | routes that read what is so now, and what was |
//! | `changes`, `once` | routes that change, each once for an idempotency key |
//! | `stream` | samples and events, sent as they come |
//! | `extract`, `page` | what handlers take from a request, and parts of lists |
//! | `document` | the document of all of it |

use std::io;
use std::thread;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sluice_api::change::{self, Preview, Settings};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

mod changes;
mod document;
mod extract;
mod once;
mod page;
mod past;
mod reads;
mod stream;

use self::once::Once;
use super::socket::{Asked, Manner, Peer};
use super::{Reply, Request};
use crate::http;
use crate::http::problem::{Failed, Kind};
use sluice_http::Permit;

/// A connection that speaks HTTP.
pub(super) struct Connection {
    pub(super) stream: std::os::unix::net::UnixStream,
    pub(super) peer: Peer,
    pub(super) permit: Permit,
}

/// The client of a connection, and the way to what it asks for.
#[derive(Clone)]
struct Client {
    peer: Peer,
    asked: mpsc::Sender<Asked>,
}

/// The argument of handlers that says who asks.
type Asking = axum::Extension<Client>;

/// The answer to a change: of one that was made, or of one that was tried.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum Outcome {
    Made(Made),
    Tried(Preview),
}

/// A change that was made.
#[derive(Debug, Serialize, ToSchema)]
struct Made {
    /// The object before and after it; null for several.
    before: Option<Settings>,
    after: Option<Settings>,
    result: Option<change::Changed>,
}

type Changed = Result<axum::Json<Outcome>, Failed>;

/// Starts the thread. It ends when the sender of connections is dropped.
///
/// # Errors
/// That of starting a thread.
pub(super) fn start(asked: mpsc::Sender<Asked>) -> io::Result<mpsc::Sender<Connection>> {
    // A connection that was accepted waits here for no longer than the thread is busy.
    let (sender, mut connections) = mpsc::channel::<Connection>(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("http".to_owned()).spawn(move || {
        let routes = routes();
        runtime.block_on(async {
            while let Some(connection) = connections.recv().await {
                tokio::spawn(converse(connection, routes.clone(), asked.clone()));
            }
        });
    })?;
    Ok(sender)
}

/// Returns the document of the API, as OpenAPI 3.1 has it.
#[must_use]
pub fn document() -> String {
    document::finished(described().into_openapi())
}

fn described() -> OpenApiRouter {
    OpenApiRouter::with_openapi(document::common())
        .merge(reads::routes())
        .merge(past::routes())
        .merge(changes::routes())
        .merge(stream::routes())
}

fn routes() -> Router {
    let (routes, document) = described().split_for_parts();
    let document = Bytes::from(document::finished(document));
    let answer = move || async move { ([(CONTENT_TYPE, "application/json")], document.clone()) };
    http::closed(routes.route("/openapi.json", get(answer)))
        .layer(from_fn_with_state(Once::default(), once::once))
        .layer(DefaultBodyLimit::max(sluice_api::http::BODY_MAX))
}

async fn converse(connection: Connection, routes: Router, asked: mpsc::Sender<Asked>) {
    let Connection { stream, peer, permit } = connection;
    let Ok(stream) = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)) else { return };
    sluice_http::serve(stream, routes, permit, Client { peer, asked }).await;
}

impl Client {
    async fn ask(&self, request: Request, manner: Manner) -> Result<Reply, Failed> {
        let exiting = || Kind::Exiting.with("The daemon is exiting");
        let (reply, answer) = oneshot::channel();
        let asked = Asked { request, peer: self.peer.clone(), manner, reply };
        self.asked.send(asked).await.map_err(|_| exiting())?;
        let reply = answer.await.map_err(|_| exiting())?;
        match reply.code {
            Some(code) => Err(Kind::from(code).with(reply.error.unwrap_or_default()).of(reply.faults).into()),
            None => Ok(reply),
        }
    }

    /// Asks, and returns the result.
    async fn get<R: DeserializeOwned + Default>(&self, request: Request) -> Result<R, Failed> {
        read(&self.ask(request, Manner::default()).await?)
    }

    /// Asks, and returns the result as it is written.
    async fn written(&self, request: Request) -> Result<Box<RawValue>, Failed> {
        let missing = || Kind::Internal.with("The daemon has answered nothing").into();
        self.ask(request, Manner::default()).await?.result.ok_or_else(missing)
    }

    /// Makes or tries a change.
    async fn change(&self, request: Request, manner: Manner) -> Changed {
        let is_dry_run = manner.is_dry_run;
        let reply = self.ask(request, manner).await?;
        Ok(axum::Json(match is_dry_run {
            true => Outcome::Tried(read(&reply)?),
            false => Outcome::Made(Made { result: read(&reply)?, before: reply.before, after: reply.after }),
        }))
    }
}

fn read<R: DeserializeOwned + Default>(reply: &Reply) -> Result<R, Failed> {
    Ok(reply.read().map_err(|error| Kind::Internal.with(error.to_string()))?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
