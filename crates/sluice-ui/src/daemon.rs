//! Requests to the daemon.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sluice_api::http::{Answer, Call, Client, Failed};
use sluice_api::top::Top;
use tokio::sync::Semaphore;

/// Maximum number of requests at the same time. A user may have 8 connections, one of them is the stream.
const REQUESTS_MAX: usize = 4;
/// Number of entries of a list that come at once.
const LIMIT: usize = 1000;

/// The daemon, for all pages.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    client: Client,
    requests: Arc<Semaphore>,
    socket: String,
}

/// A part of a list.
#[derive(Debug, Deserialize)]
struct Part<T> {
    items: Vec<T>,
    next: Option<String>,
}

impl Daemon {
    pub(crate) fn at(socket: &Path) -> Daemon {
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Daemon { client: Client::at(socket), requests, socket: socket.display().to_string() }
    }

    /// The client, for the stream, which has no end.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The path of the control socket.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    /// Asks, when there are not too many requests.
    pub(crate) async fn ask(&self, call: &Call) -> Result<Answer, Failed> {
        let _permit = self.requests.acquire().await;
        self.client.ask(call).await
    }

    /// Reads what is at a path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T, Failed> {
        self.ask(&Call::get(path)).await?.read()
    }

    /// Reads all entries of a list. `path` has a query or ends with `?`.
    pub(crate) async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Failed> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let part: Part<T> = self.get(format!("{path}&limit={LIMIT}{cursor}")).await?;
            all.extend(part.items);
            match part.next {
                Some(next) => cursor = format!("&cursor={}", crate::text::part(&next)),
                None => return Ok(all),
            }
        }
    }

    /// Everything now, in short.
    pub(crate) async fn top(&self) -> Result<Top, Failed> {
        self.get("/v1/top").await
    }

    /// Reads what is at a path, with the tag of its version.
    pub(crate) async fn tagged<T: DeserializeOwned>(&self, path: String) -> Result<(T, Option<String>), Failed> {
        let answer = self.ask(&Call::get(path)).await?;
        Ok((answer.read()?, answer.etag))
    }
}
