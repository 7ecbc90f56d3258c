//! HTTP on the control socket: resources as JSON, for programs that are not ours.
//!
//! ```text
//!  control socket --a capital letter--> [http thread: hyper, axum] --Request--> [changer]
//!                                        '<------------JSON-----------Reply------'
//! ```
//!
//! It has a thread of its own, so that a long list costs no other client and no VM. Rights are those of the peer, as for a line of JSON.
//!
//! | file | contents |
//! |---|---|
//! | `reads`, `past` | routes that read what is so now, and what was |
//! | `changes`, `once` | routes that change, each once for an idempotency key |
//! | `stream` | samples and events, sent as they come |
//! | `extract`, `page`, `problem` | what handlers take from a request, parts of lists, errors |
//! | `document` | the document of all of it |

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_api::change::{self, Preview, Settings};
use tokio::io::AsyncReadExt;
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
mod problem;
mod reads;
mod stream;

use self::once::Once;
use self::problem::{Failed, Kind};
use super::socket::{Asked, Manner, Peer, Permit};
use super::{Reply, Request};

/// Maximum length of a body, in bytes.
const BODY_MAX: usize = 64 << 10;
/// Maximum length of a head, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum time for a head, and between two requests of a connection.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that speaks HTTP.
pub(super) struct Connection {
    pub(super) stream: std::os::unix::net::UnixStream,
    /// Bytes that were already read from it.
    pub(super) begin: Vec<u8>,
    pub(super) peer: Peer,
    pub(super) permit: Permit,
}

/// The client of a connection, and the way to what it asks for.
#[derive(Clone)]
struct Client {
    peer: Peer,
    /// `None` for a stream, which is open although nothing is asked.
    permit: Option<Arc<Permit>>,
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

/// A request of a client that is being answered, until it is dropped.
struct Answering<'a>(&'a Permit);

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
    routes
        .merge(changes::of_a_vm())
        .route("/openapi.json", get(answer))
        .fallback(
            |uri: Uri| async move { Failed::from(Kind::NoSuchResource.with(format!("There is no {}", uri.path()))) },
        )
        .method_not_allowed_fallback(|| async {
            Failed::from(Kind::NotAllowed.with("The resource does not have this method"))
        })
        .layer(from_fn_with_state(Once::default(), once::once))
        .layer(DefaultBodyLimit::max(BODY_MAX))
}

async fn converse(connection: Connection, routes: Router, asked: mpsc::Sender<Asked>) {
    let Connection { stream, begin, peer, permit } = connection;
    let Ok(stream) = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)) else { return };
    let (read, write) = stream.into_split();
    let io = TokioIo::new(tokio::io::join(io::Cursor::new(begin).chain(read), write));
    let permit = Arc::new(permit);
    let client = Client { peer, permit: Some(Arc::clone(&permit)), asked };
    let service = TowerToHyperService::new(routes.layer(axum::Extension(client)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(CLIENT_TIMEOUT).max_buf_size(HEAD_MAX);
    tokio::select! {
        served = http.serve_connection(io, service) => {
            if let Err(error) = served {
                tracing::debug!(%error, "HTTP client left");
            }
        }
        () = permit.ended() => tracing::debug!("HTTP client made room for another one"),
    }
}

impl<'a> Answering<'a> {
    fn of(permit: &'a Permit) -> Answering<'a> {
        permit.set_asking(true);
        Answering(permit)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.set_asking(false);
    }
}

impl Client {
    /// The same for a stream, whose connection makes room for others also while it asks.
    fn quiet(self) -> Client {
        Client { permit: None, ..self }
    }

    async fn ask(&self, request: Request, manner: Manner) -> Result<Reply, Failed> {
        let exiting = || Kind::Exiting.with("The daemon is exiting");
        let _answering = self.permit.as_deref().map(Answering::of);
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
