//! The client of HTTP on the control socket.
//!
//! Each request has a connection of its own: the daemon is on the same host, and a connection that is kept takes the place of another client.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::VERSION;
use crate::call::with_query;
use crate::problem::{Kind, Problem};
use crate::request::{Reply, Request};

/// Maximum length of a body, in bytes.
pub const BODY_MAX: usize = 64 << 10;
/// Maximum time until the reply to a question. The daemon waits a second for a device that does not respond.
const QUESTION_MAX: Duration = Duration::from_secs(30);
/// The same for a change, which waits 5 s for each path that hangs.
const CHANGE_MAX: Duration = Duration::from_mins(5);

/// A daemon, by its control socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub method: Method,
    /// Path and query, each part percent-encoded.
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Value>,
}

/// An answer to a request that has not failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Tag of the version that was read or made.
    pub etag: Option<String>,
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failed {
    /// The daemon cannot be reached.
    Connect(io::Error),
    /// The connection broke, or something else than a daemon answers.
    Broken(String),
    /// What answers speaks no HTTP, as a daemon of the version before.
    NoHttp,
    /// The daemon refuses the request.
    Refused(Box<Problem>),
}

/// Messages of a stream of server-sent events.
#[derive(Debug)]
pub struct Messages {
    body: Incoming,
    /// What has come and is no whole message.
    rest: Vec<u8>,
}

/// A message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub event: String,
    pub id: Option<String>,
    pub data: String,
}

impl Call {
    /// Reads what is at a path.
    #[must_use]
    pub fn get(path: impl Into<String>) -> Call {
        Call { method: Method::GET, path: path.into(), headers: Vec::new(), body: None }
    }

    /// Changes what is at a path.
    #[must_use]
    pub fn send(method: Method, path: impl Into<String>, body: Value) -> Call {
        Call { method, path: path.into(), headers: Vec::new(), body: Some(body) }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Call {
        self.headers.push((name, value.into()));
        self
    }
}

impl Answer {
    /// Reads the body.
    ///
    /// # Errors
    /// It has another form.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        serde_json::from_slice(&self.body).map_err(|error| Failed::Broken(error.to_string()))
    }
}

fn broken(error: impl ToString) -> Failed {
    Failed::Broken(error.to_string())
}

impl Client {
    #[must_use]
    pub fn at(socket: &Path) -> Client {
        Client { socket: socket.to_owned() }
    }

    /// Asks, and reads the whole answer. It waits as long as the daemon needs.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses the request.
    pub async fn ask(&self, call: &Call) -> Result<Answer, Failed> {
        let response = self.open(call).await?;
        let etag = response.headers().get("etag").and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let is_problem = !response.status().is_success();
        let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
        match is_problem {
            true => Err(refused(&body)),
            false => Ok(Answer { etag, body }),
        }
    }

    /// Reads what is at a path.
    ///
    /// # Errors
    /// Those of [`Client::ask`], and an answer that has another form.
    pub async fn get<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T, Failed> {
        self.ask(&Call::get(path)).await?.read()
    }

    /// Opens a stream of server-sent events.
    ///
    /// # Errors
    /// Those of [`Client::ask`].
    pub async fn stream(&self, call: &Call) -> Result<Messages, Failed> {
        let response = self.open(call).await?;
        if !response.status().is_success() {
            return Err(refused(&response.into_body().collect().await.map_err(broken)?.to_bytes()));
        }
        Ok(Messages { body: response.into_body(), rest: Vec::new() })
    }

    /// Sends a request, and reads the reply.
    ///
    /// # Errors
    /// Those of [`Client::get`].
    pub async fn reply<R: DeserializeOwned>(&self, request: &Request) -> Result<Reply<R>, Failed> {
        let result = match request {
            // These are lists, which come in parts.
            Request::Clients => self.all("/v1/clients", "clients").await?,
            Request::Policies => self.all("/v1/policies", "policies").await?,
            Request::GetOverrides => self.all("/v1/overrides", "overrides").await?,
            Request::Details { volume: None, .. } => self.all(&request.call().path, "objects").await?,
            Request::Details { .. } => {
                json!({ "version": VERSION, "objects": [self.ask(&request.call()).await?.read::<Value>()?] })
            }
            Request::Metrics { .. } => {
                let text = String::from_utf8(self.ask(&request.call()).await?.body.into()).map_err(broken)?;
                json!({ "version": VERSION, "text": text })
            }
            _ => {
                let answer = self.ask(&request.call()).await?;
                return Ok(match request.is_of_objects() {
                    true => Reply { ok: true, ..answer.read()? },
                    false => Reply { result: Some(answer.read()?), ..Reply::changed(None, None) },
                });
            }
        };
        Ok(Reply { result: Some(serde_json::from_value(result).map_err(broken)?), ..Reply::changed(None, None) })
    }

    /// Reads all parts of a list. Returns it as an object in which the list has this name.
    async fn all(&self, path: &str, name: &str) -> Result<Value, Failed> {
        let mut found = Map::from_iter([("version".to_owned(), VERSION.into())]);
        let (mut items, mut cursor) = (Vec::new(), None);
        loop {
            let part = json!({ "limit": 1000, "cursor": cursor });
            let mut page: Map<String, Value> = self.get(with_query(path.to_owned(), &part)).await?;
            items.extend(page.remove("items").and_then(|items| items.as_array().cloned()).unwrap_or_default());
            cursor = page.remove("next");
            found.extend(page);
            if cursor.is_none() {
                found.insert(name.to_owned(), items.into());
                return Ok(found.into());
            }
        }
    }

    async fn open(&self, call: &Call) -> Result<Response<Incoming>, Failed> {
        let stream = UnixStream::connect(&self.socket).await.map_err(Failed::Connect)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // It ends with the answer, or when that is dropped.
        tokio::spawn(connection);
        let mut request = hyper::Request::builder().method(&call.method).uri(&call.path).header(HOST, "sluice");
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let body = match &call.body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                // The daemon would close the connection before it has all of it, and its answer could be lost.
                Some(Bytes::from(body.to_string())).filter(|body| body.len() <= BODY_MAX).ok_or_else(|| {
                    let error = format!("The request is longer than {BODY_MAX} bytes: make several changes");
                    Failed::Refused(Box::new(Kind::TooLarge.with(error)))
                })?
            }
            None => Bytes::new(),
        };
        let answered = sender.send_request(request.body(Full::new(body)).map_err(broken)?).await;
        answered.map_err(|error| if error.is_parse() { Failed::NoHttp } else { broken(error) })
    }
}

/// Sends a request to the daemon at a socket, and waits for the reply.
///
/// # Errors
/// The daemon cannot be reached, refuses the request, or does not answer in 30 s (a change in 5 min).
pub fn ask<R: DeserializeOwned>(socket: &Path, request: &Request) -> Result<Reply<R>, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    let limit = if request.is_question() { QUESTION_MAX } else { CHANGE_MAX };
    let later = if request.is_question() { "" } else { "; it may still make the change" };
    let answered = runtime.block_on(async { timeout(limit, Client::at(socket).reply(request)).await });
    answered.map_err(|_| Failed::Broken(format!("no reply in {} s{later}", limit.as_secs())))?
}

fn refused(body: &[u8]) -> Failed {
    match serde_json::from_slice(body) {
        Ok(problem) => Failed::Refused(Box::new(problem)),
        Err(error) => broken(error),
    }
}

impl Messages {
    /// Waits for the next message; `None` when the daemon has ended the stream.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn next(&mut self) -> Result<Option<Message>, Failed> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|two| two == b"\n\n") {
                let message = self.rest.drain(..end + 2).collect::<Vec<u8>>();
                return Ok(Some(Message::read(&String::from_utf8_lossy(&message))));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => self.rest.extend_from_slice(&frame.map_err(broken)?.into_data().unwrap_or_default()),
            }
        }
    }
}

impl Message {
    fn read(text: &str) -> Message {
        let mut message = Message::default();
        for (field, value) in text.lines().filter_map(|line| line.split_once(": ")) {
            match field {
                "event" => message.event = value.to_owned(),
                "id" => message.id = Some(value.to_owned()),
                "data" => message.data += value,
                _ => {}
            }
        }
        message
    }
}
