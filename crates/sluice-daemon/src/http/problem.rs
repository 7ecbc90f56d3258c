//! Errors as answers.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
pub(crate) use sluice_api::problem::{Kind, Problem};

/// A request that is answered with a problem.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) Box<Problem>);

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Failed {
        Failed(Box::new(problem))
    }
}

impl From<Box<Problem>> for Failed {
    fn from(problem: Box<Problem>) -> Failed {
        Failed(problem)
    }
}

impl From<QueryRejection> for Failed {
    fn from(rejection: QueryRejection) -> Failed {
        Kind::Invalid.with(rejection.body_text()).into()
    }
}

impl From<JsonRejection> for Failed {
    fn from(rejection: JsonRejection) -> Failed {
        let kind = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Kind::NoJson,
            _ => Kind::Invalid,
        };
        kind.with(rejection.body_text()).into()
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(*self.0)).into_response()
    }
}
