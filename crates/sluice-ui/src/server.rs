//! The port or Unix socket, and the connections on it.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, Uri};
use sluice_api::http::BODY_MAX;
use sluice_http::{Connections, Limits};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::daemon::Daemon;
use crate::done::Done;
use crate::failure::Failure;
use crate::feed::Feed;
use crate::guard::{Access, Secrets, guard};
use crate::{assets, pages};

/// Connections at a time, all of the same class. Those without the cookie make room first.
const LIMITS: Limits = Limits { clients: 0, admins: 96, of_user: 0 };
/// Pause after an error of the socket, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all requests share.
pub(crate) type Shared = Arc<State>;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) daemon: Daemon,
    pub(crate) feed: Feed,
    pub(crate) done: Done,
    pub(crate) access: Access,
}

/// A server of pages that listens.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    shared: Shared,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// How a browser gets to the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Address with a key that works once.
    pub url: String,
    pub port: u16,
}

impl Server {
    /// Listens on a port of 127.0.0.1, on a free one if none is stated. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The port is in use, or may not be used; the kernel has no random numbers.
    pub async fn bind(port: Option<u16>, socket: &Path) -> io::Result<(Server, Link)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).await?;
        let port = listener.local_addr()?.port();
        let (secrets, key) = Secrets::new(port)?;
        let url = format!("http://127.0.0.1:{port}/?key={key}");
        Ok((Server::new(Listener::Tcp(listener), Access::Link(secrets), socket), Link { url, port }))
    }

    /// Serves a proxy with a login on a Unix socket. Browsers know the page by the names `hosts`.
    #[must_use]
    pub fn behind_proxy(listener: UnixListener, hosts: Vec<String>, socket: &Path) -> Server {
        Server::new(Listener::Unix(listener), Access::Proxy { hosts }, socket)
    }

    fn new(listener: Listener, access: Access, socket: &Path) -> Server {
        let daemon = Daemon::at(socket);
        let feed = Feed::new(daemon.clone());
        let shared = State { daemon, feed, done: Done::default(), access };
        Server { listener, shared: Arc::new(shared) }
    }

    /// Serves pages until the future is dropped.
    pub async fn run(self) {
        let (routes, connections) = (routes(self.shared), Connections::new(LIMITS));
        loop {
            if accept(&self.listener, &routes, &connections).await.is_err() {
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Accepts a connection, and starts to serve it.
async fn accept(listener: &Listener, routes: &Router, connections: &Connections) -> io::Result<()> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Patches are small, and are to be seen at once.
            let _ = stream.set_nodelay(true);
            converse(stream, routes, connections).await;
        }
        Listener::Unix(listener) => converse(listener.accept().await?.0, routes, connections).await,
    }
    Ok(())
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: &Router,
    connections: &Connections,
) {
    if let Some(permit) = connections.enter(0, true).await {
        tokio::spawn(sluice_http::serve(stream, routes.clone(), permit, ()));
    }
}

pub(crate) fn routes(shared: Shared) -> Router {
    let guard = axum::middleware::from_fn_with_state(Arc::clone(&shared), guard);
    pages::routes()
        .merge(crate::stream::routes())
        .merge(assets::routes())
        .fallback(|uri: Uri| async move { Failure::not_found(format!("There is no {}.", uri.path())) })
        .method_not_allowed_fallback(|uri: Uri| async move {
            let detail = format!("{} is not for this method. Go back, and use the form of the page.", uri.path());
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "The page does not have this method", detail)
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(guard)
        .with_state(shared)
}
