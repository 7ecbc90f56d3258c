//! Errors as RFC 9457 has them: a document with a stable code, which programs compare, and words for people.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sluice_api::request::Code;

/// A request that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    /// The same as `code`, as a reference.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: String,
}

/// Defines [`Kind`] from the list: variant, HTTP status, code, title.
macro_rules! kinds {
    ($($kind:ident $status:literal $code:literal $title:literal)+) => {
        /// Kinds of errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Kind { $($kind),+ }

        impl Kind {
            /// HTTP status, code, title.
            const fn parts(self) -> (u16, &'static str, &'static str) {
                match self { $(Kind::$kind => ($status, $code, $title)),+ }
            }
        }
    };
}

kinds! {
    Invalid 400 "invalid" "The request is not valid"
    NoSuchResource 404 "no-such-resource" "There is no such resource"
    NotFound 404 "not-found" "The object does not exist"
    NotAllowed 405 "method-not-allowed" "The resource does not have this method"
    Exists 409 "exists" "The object exists already"
    Refused 409 "refused" "The change is not possible now, and nothing has changed"
    TooLarge 413 "too-large" "The request is too large"
    NoJson 415 "no-json" "The body is not JSON"
    Incomplete 504 "incomplete" "The change was made, and a device has not confirmed its part"
    Internal 500 "internal" "The daemon has an error"
    Exiting 503 "exiting" "The daemon is exiting"
}

impl Kind {
    pub(super) fn with(self, detail: impl Into<String>) -> Problem {
        let (status, code, title) = self.parts();
        Problem { kind: format!("urn:sluicegate:error:{code}"), title, status, code, detail: detail.into() }
    }
}

impl From<Code> for Kind {
    fn from(code: Code) -> Kind {
        match code {
            Code::Invalid => Kind::Invalid,
            Code::NotFound => Kind::NotFound,
            Code::Exists => Kind::Exists,
            Code::Refused => Kind::Refused,
            Code::Incomplete => Kind::Incomplete,
        }
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Problem {
        Kind::Invalid.with(rejection.body_text())
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        let kind = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Kind::NoJson,
            _ => Kind::Invalid,
        };
        kind.with(rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(self)).into_response()
    }
}
