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
//! | `reads` | routes that read |
//! | `changes` | routes that change |
//! | `stream` | samples and events, sent as they come |
//! | `page` | parts of lists, and their fields |
//! | `problem` | errors |

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Uri;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_api::request::{Reply, Request};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

mod changes;
mod page;
mod problem;
mod reads;
mod stream;

use self::problem::{Failed, Kind};
use super::socket::{Asked, Peer, Permit};

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

/// Arguments of handlers: who asks, and names of a VM and of what is in it.
type Asking = axum::Extension<Client>;
type InVm = axum::extract::Path<(String, String)>;

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

fn routes() -> Router {
    Router::new()
        .merge(reads::routes())
        .merge(changes::routes())
        .merge(stream::routes())
        .fallback(
            |uri: Uri| async move { Failed::from(Kind::NoSuchResource.with(format!("There is no {}", uri.path()))) },
        )
        .method_not_allowed_fallback(|| async {
            Failed::from(Kind::NotAllowed.with("The resource does not have this method"))
        })
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

    async fn ask(&self, request: Request) -> Result<super::Reply, Failed> {
        let exiting = || Kind::Exiting.with("The daemon is exiting");
        let _answering = self.permit.as_deref().map(Answering::of);
        let (reply, answer) = oneshot::channel();
        let asked = Asked { request, peer: self.peer.clone(), reply };
        self.asked.send(asked).await.map_err(|_| exiting())?;
        let reply = answer.await.map_err(|_| exiting())?;
        match reply.code {
            Some(code) => Err(Kind::from(code).with(reply.error.unwrap_or_default()).into()),
            None => Ok(reply),
        }
    }

    /// Asks, and returns the result.
    async fn get<R: DeserializeOwned + Default>(&self, request: Request) -> Result<R, Failed> {
        let reply = self.ask(request).await?;
        Ok(reply.read().map_err(|error| Kind::Internal.with(error.to_string()))?.unwrap_or_default())
    }

    /// Makes a change, and returns the target before and after it, and the result.
    async fn change(&self, request: Request) -> Result<axum::Json<Value>, Failed> {
        let Reply { before, after, result, .. } = self.ask(request).await?;
        Ok(axum::Json(json!({ "before": before, "after": after, "result": result })))
    }
}
