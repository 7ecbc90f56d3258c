//! A server of HTTP with bounded connections: for the control socket and the metrics of the daemon, and for its page.
//!
//! [`Connections`] says which connection makes room for another; [`serve`] serves one until it must.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sluice_api::http::BODY_MAX;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

mod connections;

pub use self::connections::{Connections, Limits, Permit};

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

/// Serves a connection until its client goes, or it must make room for another one. Handlers get `of`, and the permit, as
/// extensions of each request.
pub async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    permit: Permit,
    of: impl Clone + Send + Sync + 'static,
) {
    let (routes, permit) = (TowerToHyperService::new(routes), Arc::new(permit));
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (routes, permit, of) = (routes.clone(), Arc::clone(&permit), of.clone());
        async move {
            let (parts, body) = request.into_parts();
            // A client whose body does not come makes room for others.
            let body = timeout(CLIENT_TIMEOUT, whole(body)).await.map_err(io::Error::from)??;
            let mut request = hyper::Request::from_parts(parts, Body::from(body));
            request.extensions_mut().insert(of);
            request.extensions_mut().insert(Arc::clone(&permit));
            let _answering = Answering::of(&permit);
            let Ok(answer) = routes.call(request).await;
            Ok::<_, io::Error>(answer)
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

/// Reads a body. A handler gets one byte more than the most of a longer one, and refuses it.
async fn whole(mut body: Incoming) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(io::Error::other)?.into_data().unwrap_or_default();
        bytes.extend_from_slice(&data[..data.len().min(BODY_MAX + 1 - bytes.len())]);
        if bytes.len() > BODY_MAX {
            break;
        }
    }
    Ok(bytes)
}
