//! What the servers of HTTP of the daemon have in common: errors as answers, and formats of metrics.

use axum::Router;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, Uri};
use sluice_api::request::MetricsFormat;

pub(crate) mod problem;

use self::problem::{Failed, Kind};

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
