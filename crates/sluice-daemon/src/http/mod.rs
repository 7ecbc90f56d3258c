//! A server of HTTP: one connection of it. The control socket has one, and the metrics another.
//!
//! | file | contents |
//! |---|---|
//! | `connections` | how many connections there are, and which one makes room |
//! | `problem` | errors as answers |

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sluice_api::request::MetricsFormat;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) mod connections;
pub(crate) mod problem;

use self::connections::Permit;
use self::problem::{Failed, Kind};

/// Maximum length of a head, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum time for a head, and between two requests of a connection.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request that is being answered, until it is dropped. Its connection makes no room for others meanwhile; a client that does not read the
/// answer does.
struct Answering(Arc<Permit>);

impl Answering {
    fn of(permit: &Arc<Permit>) -> Answering {
        permit.set_asking(true);
        Answering(Arc::clone(permit))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set_asking(false);
    }
}

/// Adds the answers to what no route answers.
pub(crate) fn closed(routes: Router) -> Router {
    let nothing = async |uri: Uri| Failed::from(Kind::NoSuchResource.with(format!("There is no {}", uri.path())));
    let no_method = async || Failed::from(Kind::NotAllowed.with("The resource does not have this method"));
    routes.fallback(nothing).method_not_allowed_fallback(no_method)
}

/// The format of metrics that the header `Accept` asks for.
pub(crate) fn format_of(headers: &HeaderMap) -> MetricsFormat {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    match accepts.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Prometheus,
    }
}

/// Serves a connection until its client goes, or it must make room for another one. Handlers get `of` as an extension of each request.
pub(crate) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    permit: Permit,
    of: impl Clone + Send + Sync + 'static,
) {
    let (routes, permit) = (TowerToHyperService::new(routes), Arc::new(permit));
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(of.clone());
        let (answering, answer) = (Answering::of(&permit), routes.call(request));
        async move {
            let _answering = answering;
            answer.await
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(CLIENT_TIMEOUT).max_buf_size(HEAD_MAX);
    tokio::select! {
        served = http.serve_connection(TokioIo::new(io), service) => {
            if let Err(error) = served {
                tracing::debug!(%error, "HTTP client left");
            }
        }
        () = permit.ended() => tracing::debug!("HTTP client made room for another one"),
    }
}
