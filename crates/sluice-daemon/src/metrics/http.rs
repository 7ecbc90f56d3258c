//! The endpoint of Prometheus: answers `GET /metrics`, on a thread of its own.
//!
//! A scrape of a large host takes tens of milliseconds of CPU, for which neither handshakes nor signals nor requests of
//! VMs wait. Everything that a client may do is bounded: at most [`CLIENTS_MAX`] connections, one request on each, heads of at
//! most [`HEAD_MAX`] bytes, [`CLIENT_TIMEOUT`] for all of it. One more client ends the oldest connection that has not sent its
//! request, or the oldest of all if every one has. So clients that send nothing keep no other from being served, and do not end
//! a scrape. Each state is made into text once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sluice_config::{DaemonSettings, ListenAddress};
use sluice_io::endpoint::{Bound, Endpoint, ListenError, TokioSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Board;

/// Maximum number of connections.
const CLIENTS_MAX: usize = 16;
/// Maximum length of the head of a request, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum time of a connection.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Maximum time that the end waits until the socket has been removed, which takes as long as its file system does.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// The endpoint. It ends when this is dropped, and its socket is removed.
pub struct Exporter {
    end: Option<oneshot::Sender<()>>,
    /// Closed when the thread has ended.
    ended: mpsc::Receiver<Infallible>,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.end.take());
        // The process would otherwise often exit before the thread has removed the socket.
        let _ = self.ended.recv_timeout(REMOVAL_MAX);
    }
}

impl Exporter {
    /// Binds the endpoint of a host file, if it states one. Hangs as long as the file system of its socket does.
    pub fn bind(settings: &DaemonSettings) -> Result<Option<Bound>, ListenError> {
        Exporter::endpoint(settings).map(|endpoint| Bound::bind(endpoint, None)).transpose()
    }

    /// Returns the endpoint that a host file states.
    pub fn endpoint(settings: &DaemonSettings) -> Option<Endpoint> {
        Some(match settings.metrics.as_ref()? {
            ListenAddress::Tcp(address) => Endpoint::Tcp(*address),
            ListenAddress::Unix { path, .. } => {
                let (group, mode) = (settings.access.group.clone(), settings.access.mode);
                Endpoint::Unix { path: path.clone(), owner: None, group, mode }
            }
        })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be started.
    pub fn start(bound: Bound, board: Board) -> std::io::Result<Exporter> {
        let (end, is_over) = oneshot::channel();
        let (open, ended) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = listen(bound, board) => {}
                    _ = is_over => {}
                }
            });
            drop(open);
        })?;
        Ok(Exporter { end: Some(end), ended })
    }
}

async fn listen(bound: Bound, board: Board) {
    let name = bound.endpoint().to_string();
    // The file is removed when this returns.
    let (socket, _file) = match bound.into_tokio() {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(endpoint = name, %error, "Metrics are not served"),
    };
    let mut clients = VecDeque::new();
    loop {
        match accept(&socket, &board).await {
            Ok(client) => admit(&mut clients, client).await,
            Err(error) => {
                tracing::warn!(endpoint = name, %error, "Cannot accept a metrics client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A connection.
struct Client {
    task: JoinHandle<()>,
    /// Whether it has sent its request.
    has_asked: Arc<AtomicBool>,
}

async fn accept(socket: &TokioSocket, board: &Board) -> io::Result<Client> {
    let has_asked = Arc::<AtomicBool>::default();
    let (board, asked) = (board.clone(), Arc::clone(&has_asked));
    let task = match socket {
        TokioSocket::Unix(listener) => tokio::spawn(converse(listener.accept().await?.0, board, asked)),
        TokioSocket::Tcp(listener) => tokio::spawn(converse(listener.accept().await?.0, board, asked)),
    };
    Ok(Client { task, has_asked })
}

/// Adds a client. If there are too many, one is disconnected, and its descriptor is closed when this returns: connections that
/// come faster than they are closed would otherwise take those of VMs.
async fn admit(clients: &mut VecDeque<Client>, client: Client) {
    clients.retain(|client| !client.task.is_finished());
    if clients.len() == CLIENTS_MAX {
        let silent = clients.iter().position(|client| !client.has_asked.load(Ordering::Relaxed));
        if let Some(ended) = clients.remove(silent.unwrap_or(0)) {
            ended.task.abort();
            let _ = ended.task.await;
        }
    }
    clients.push_back(client);
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, board: Board, has_asked: Arc<AtomicBool>) {
    let service = service_fn(|request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        let response = respond(&board, request.method(), request.uri().path(), request.headers().get(ACCEPT));
        async { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CLIENT_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "Connection of a metrics client failed"),
        Err(_) => tracing::debug!("Metrics client took too long: closing its connection"),
    }
}

fn respond(board: &Board, method: &Method, path: &str, accept: Option<&HeaderValue>) -> Response<Full<Bytes>> {
    if !matches!(path, "/metrics" | "/") {
        return plain(StatusCode::NOT_FOUND, "Metrics are at /metrics\n");
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "Use GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if path == "/" {
        return plain(StatusCode::OK, "sluice: metrics are at /metrics\n");
    }
    let text = board.text();
    let is_open = accept.and_then(|accept| accept.to_str().ok());
    match is_open.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        true => body(StatusCode::OK, OPEN_METRICS, text.open_metrics()),
        false => body(StatusCode::OK, PROMETHEUS, text.prometheus()),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    body(status, PLAIN, Bytes::from_static(text.as_bytes()))
}

fn body(status: StatusCode, kind: &'static str, text: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// A client whose connection is open as long as `Arc` has two owners.
    fn client(has_asked: bool) -> (Client, Arc<()>) {
        let open = Arc::new(());
        let connection = Arc::clone(&open);
        let task = tokio::spawn(async move {
            let _connection = connection;
            pending::<()>().await;
        });
        (Client { task, has_asked: Arc::new(has_asked.into()) }, open)
    }

    #[tokio::test]
    async fn connections_that_came_faster_than_they_were_closed_kept_their_descriptors() {
        let mut clients = VecDeque::new();
        let mut all = Vec::new();
        for _ in 0..1000 {
            let (client, open) = client(false);
            admit(&mut clients, client).await;
            all.push(open);
            let open = all.iter().filter(|open| Arc::strong_count(open) == 2).count();
            assert!(open <= CLIENTS_MAX, "{open} connections are open");
        }
    }

    #[tokio::test]
    async fn silent_clients_ended_a_scrape() {
        let mut clients = VecDeque::new();
        let (scrape, open) = client(true);
        admit(&mut clients, scrape).await;
        for _ in 0..1000 {
            admit(&mut clients, client(false).0).await;
        }
        assert_eq!(Arc::strong_count(&open), 2, "the scrape goes on");
        for _ in 0..CLIENTS_MAX {
            admit(&mut clients, client(true).0).await;
        }
        assert_eq!(Arc::strong_count(&open), 1, "clients that all have asked are ended in their order");
    }
}
