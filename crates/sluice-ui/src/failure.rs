//! Failures as pages.

use askama::Template;
use axum::extract::rejection::{FormRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use sluice_api::http::Failed;

use crate::pages::Frame;

/// Why a page cannot be shown, or a change cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) title: String,
    /// What is wrong, and what to do.
    pub(crate) detail: String,
}

#[derive(Template)]
#[template(path = "failure.html")]
struct Page<'a> {
    frame: Frame,
    failure: &'a Failure,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, title: &str, detail: impl Into<String>) -> Failure {
        Failure { status, title: title.to_owned(), detail: detail.into() }
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, "There is no such page", detail)
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "The request is not valid", detail)
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Failure {
        match failed {
            Failed::Connect(error) => Failure::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "The daemon cannot be reached",
                format!("{error}. If it does not run, start it (`systemctl start sluice`), then reload this page."),
            ),
            Failed::Broken(error) => Failure::new(
                StatusCode::BAD_GATEWAY,
                "The daemon has not answered",
                format!("{error}. Reload this page; if this happens again, see the log of the daemon."),
            ),
            Failed::NoHttp => Failure::new(
                StatusCode::BAD_GATEWAY,
                "The daemon is of an older version",
                "It speaks no HTTP: restart it (`systemctl restart sluice`), then reload this page.",
            ),
            Failed::Refused(problem) => {
                let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
                let title = if problem.title.is_empty() { "The daemon refuses the request" } else { &problem.title };
                // The host file's check begins so.
                let detail = problem.detail.strip_prefix("error: ").unwrap_or(&problem.detail);
                Failure::new(status, title, detail)
            }
        }
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Failure {
        Failure::invalid(rejection.body_text())
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Failure {
        Failure::invalid(rejection.body_text())
    }
}

impl From<FormRejection> for Failure {
    fn from(rejection: FormRejection) -> Failure {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Failure::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "The request is too long",
                "A form may have 64 KiB. Go back, and shorten what you typed.",
            ),
            _ => Failure::invalid(rejection.body_text()),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let frame = Frame::titled(&self.title);
        let html = Page { frame, failure: &self }.render().unwrap_or_else(|_| self.detail.clone());
        (self.status, Html(html)).into_response()
    }
}
