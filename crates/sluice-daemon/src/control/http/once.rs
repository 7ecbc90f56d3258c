//! A POST with an idempotency key is carried out once: a client that got no answer repeats it with the same key, and gets the answer of
//! the first one.
//!
//! Keys are those of a user. A request with a key is carried out to its end although its client goes. The last answers are kept, until the
//! daemon ends: [`KEPT_MAX`] of each user, with [`BYTES_MAX`] together.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;

use sluice_api::http::BODY_MAX;

use super::Client;
use crate::http::problem::{Failed, Kind};

/// Name of the header.
const HEADER: &str = "idempotency-key";
/// Maximum number of keys of a user that are kept, and their maximum length.
const KEPT_MAX: usize = 256;
const KEY_MAX: usize = 128;
/// Maximum length of all answers of a user that are kept, in bytes.
const BYTES_MAX: usize = 4 << 20;

/// The answers that are kept, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Once(Arc<Mutex<VecDeque<Kept>>>);

#[derive(Debug)]
struct Kept {
    uid: u32,
    key: String,
    /// Of the path, the body and the version that it is for.
    request: u64,
    /// `None` while it is carried out.
    answer: Option<Answer>,
}

#[derive(Debug, Clone)]
struct Answer {
    status: StatusCode,
    kind: Option<header::HeaderValue>,
    body: Bytes,
}

/// What is done with a request.
enum Taken {
    New,
    Answered(Answer),
    Refused(Failed),
}

/// Answers a request, or repeats the answer to the same one.
pub(super) async fn once(State(once): State<Once>, request: Request, next: Next) -> Response {
    match once.answer(request, next).await {
        Ok(response) => response,
        Err(failed) => failed.into_response(),
    }
}

fn key_of(headers: &HeaderMap) -> Result<Option<String>, Failed> {
    let Some(key) = headers.get(HEADER) else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=KEY_MAX).contains(&key.len()));
    let refused = || Kind::Invalid.with(format!("Idempotency-Key is not text of 1 to {KEY_MAX} characters"));
    Ok(Some(key.ok_or_else(refused)?.to_owned()))
}

impl Once {
    async fn answer(&self, request: Request, next: Next) -> Result<Response, Failed> {
        let client = request.extensions().get::<Client>().map(|client| client.peer.uid);
        let key = if request.method() == Method::POST { key_of(request.headers())? } else { None };
        let (Some(key), Some(uid)) = (key, client) else { return Ok(next.run(request).await) };
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, BODY_MAX).await;
        let body = body.map_err(|_| Kind::TooLarge.with(format!("The body is longer than {BODY_MAX} bytes")))?;
        let mut hasher = DefaultHasher::new();
        let only_if = parts.headers.get(header::IF_MATCH).map(header::HeaderValue::as_bytes);
        (parts.uri.to_string(), &body, only_if).hash(&mut hasher);
        match self.take(uid, &key, hasher.finish()) {
            Taken::New => {}
            Taken::Answered(answer) => return Ok(answer.into_response()),
            Taken::Refused(failed) => return Err(failed),
        }
        let request = Request::from_parts(parts, Body::from(body));
        let running = Running { once: self.clone(), uid, key };
        let answered = tokio::spawn(async move {
            let (parts, body) = next.run(request).await.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let answer = Answer { status: parts.status, kind: parts.headers.get(header::CONTENT_TYPE).cloned(), body };
            running.ended(answer.clone());
            answer
        });
        let answered = answered.await.map_err(|error| Kind::Internal.with(error.to_string()))?;
        Ok(answered.into_response())
    }

    fn take(&self, uid: u32, key: &str, request: u64) -> Taken {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.iter().find(|known| known.uid == uid && known.key == key) {
            Some(known) if known.request != request => {
                let error = "The key was used for a request with another path or body: take a new key for each change";
                Taken::Refused(Kind::OtherRequest.with(error).into())
            }
            Some(Kept { answer: Some(answer), .. }) => Taken::Answered(answer.clone()),
            Some(_) => {
                let error = "The first request with this key has no answer yet: repeat it in a moment";
                Taken::Refused(Kind::InProgress.with(error).into())
            }
            None => {
                kept.push_back(Kept { uid, key: key.to_owned(), request, answer: None });
                Taken::New
            }
        }
    }
}

/// A request that is being carried out. If that panics, its key is free again.
struct Running {
    once: Once,
    uid: u32,
    key: String,
}

impl Running {
    fn is_own(&self, known: &Kept) -> bool {
        known.uid == self.uid && known.key == self.key
    }

    /// Keeps the answer, and as many older ones as there is room for. One that was refused has changed nothing, and may be tried again.
    fn ended(self, answer: Answer) {
        if answer.status.is_client_error() || answer.status == StatusCode::SERVICE_UNAVAILABLE {
            return;
        }
        let mut kept = self.once.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter_mut().filter(|known| self.is_own(known)).for_each(|known| known.answer = Some(answer.clone()));
        let (mut number, mut bytes) = (0, 0);
        for at in (0..kept.len()).rev() {
            let Some(answer) = kept[at].answer.as_ref().filter(|_| kept[at].uid == self.uid) else { continue };
            (number, bytes) = (number + 1, bytes + answer.body.len());
            if number > KEPT_MAX || bytes > BYTES_MAX {
                kept.remove(at);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut kept = self.once.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|known| known.answer.is_some() || !self.is_own(known));
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        self.kind.into_iter().for_each(|kind| drop(response.headers_mut().insert(header::CONTENT_TYPE, kind)));
        response
    }
}
