//! The endpoint of Prometheus: answers `GET /metrics`, on a thread of its own.
//!
//! A scrape of a large host takes tens of milliseconds of CPU, for which neither handshakes nor signals nor requests of
//! VMs wait. Each state is made into text once.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sluice_api::call::{OPEN_METRICS, PROMETHEUS};
use sluice_api::request::MetricsFormat;
use sluice_config::{DaemonSettings, ListenAddress};
use sluice_io::endpoint::{Bound, Endpoint, ListenError, TokioSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::Board;
use crate::http;
use sluice_http::{Connections, Limits};

/// Connections at a time, all of the same class.
const LIMITS: Limits = Limits { clients: 0, admins: 16, of_user: 0 };

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
    let (routes, connections) = (routes(board), Connections::new(LIMITS));
    loop {
        if let Err(error) = accept(&socket, &routes, &connections).await {
            tracing::warn!(endpoint = name, %error, "Cannot accept a metrics client");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn accept(socket: &TokioSocket, routes: &Router, connections: &Connections) -> io::Result<()> {
    match socket {
        TokioSocket::Unix(listener) => admit(listener.accept().await?.0, routes, connections).await,
        TokioSocket::Tcp(listener) => admit(listener.accept().await?.0, routes, connections).await,
    }
    Ok(())
}

async fn admit(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: &Router,
    connections: &Connections,
) {
    match connections.enter(0, true).await {
        Some(permit) => drop(tokio::spawn(sluice_http::serve(stream, routes.clone(), permit, ()))),
        None => tracing::debug!("Metrics client rejected: too many are connected"),
    }
}

fn routes(board: Board) -> Router {
    let metrics = async move |headers: HeaderMap| answer(&board, &headers);
    let routes =
        Router::new().route("/", get(async || "sluice: metrics are at /metrics\n")).route("/metrics", get(metrics));
    // A scraper comes again after many seconds.
    http::closed(routes).layer(map_response(async |mut response: Response| {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }))
}

/// The metrics in the format that the header `Accept` asks for.
fn answer(board: &Board, headers: &HeaderMap) -> Response {
    let text = board.text();
    match http::format_of(headers) {
        MetricsFormat::OpenMetrics => ([(CONTENT_TYPE, OPEN_METRICS)], text.open_metrics()).into_response(),
        MetricsFormat::Prometheus => ([(CONTENT_TYPE, PROMETHEUS)], text.prometheus()).into_response(),
    }
}
