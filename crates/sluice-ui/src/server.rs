//! The port, and the connections on it.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, Uri};
use sluice_api::http::BODY_MAX;
use sluice_http::{Connections, Limits, Permit};
use tokio::net::{TcpListener, TcpStream};

use crate::daemon::Daemon;
use crate::done::Done;
use crate::failure::Failure;
use crate::feed::Feed;
use crate::guard::{Secrets, guard};
use crate::{assets, pages};

/// Connections at a time, all of the same class. Those without the cookie make room first.
const LIMITS: Limits = Limits { clients: 0, admins: 96, of_user: 0 };
/// Pause after an error of the port, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all requests share.
pub(crate) type Shared = Arc<State>;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) daemon: Daemon,
    pub(crate) feed: Feed,
    pub(crate) done: Done,
    pub(crate) secrets: Secrets,
}

/// A server of pages that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Shared,
    port: u16,
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
    pub async fn bind(port: Option<u16>, socket: &Path) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).await?;
        let port = listener.local_addr()?.port();
        let daemon = Daemon::at(socket);
        let feed = Feed::new(daemon.clone());
        let shared = State { daemon, feed, done: Done::default(), secrets: Secrets::new(port)? };
        Ok(Server { listener, shared: Arc::new(shared), port })
    }

    /// The link, until it was used.
    #[must_use]
    pub fn link(&self) -> Option<Link> {
        let key = self.shared.secrets.key()?;
        Some(Link { url: format!("http://127.0.0.1:{}/?key={key}", self.port), port: self.port })
    }

    /// Serves pages until the future is dropped.
    pub async fn run(self) {
        let (routes, connections) = (routes(self.shared), Connections::new(LIMITS));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(permit) = connections.enter(0, true).await {
                        tokio::spawn(converse(stream, permit, routes.clone()));
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
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

async fn converse(stream: TcpStream, permit: Permit, routes: Router) {
    // Patches are small, and are to be seen at once.
    let _ = stream.set_nodelay(true);
    sluice_http::serve(stream, routes, permit, ()).await;
}
