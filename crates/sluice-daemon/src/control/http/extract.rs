//! What handlers take from a request. Each refuses what is wrong with a problem.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::IF_MATCH;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::control::socket::Manner;
use crate::http::problem::{Failed, Kind};

/// Names in the path.
pub(super) struct Path<T>(pub(super) T);

/// Parameters after the path.
pub(super) struct Query<T>(pub(super) T);

/// The body.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Failed> {
        let taken = axum::extract::Path::from_request_parts(parts, state).await;
        let refused = |rejection: axum::extract::rejection::PathRejection| Kind::Invalid.with(rejection.body_text());
        Ok(Path(taken.map_err(refused)?.0))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Failed> {
        Ok(Query(axum::extract::Query::from_request_parts(parts, state).await?.0))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Failed> {
        Ok(Json(axum::Json::from_request(request, state).await?.0))
    }
}

/// Parameters of what has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Whether a change is only tried.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Tried {
    /// `1`: the answer says what would change, and nothing changes.
    #[serde(default, deserialize_with = "sluice_api::body::flag")]
    pub(super) dry_run: bool,
}

/// How a change is made, of its parameters and its header.
pub(super) struct InManner(pub(super) Manner);

impl<S: Send + Sync> FromRequestParts<S> for InManner {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InManner, Failed> {
        let Query(Tried { dry_run }) = Query::from_request_parts(parts, state).await?;
        Ok(InManner(Manner { is_dry_run: dry_run, only_if: only_if(&parts.headers)? }))
    }
}

/// The version in quotes that `If-Match` states; `None` for any.
pub(super) fn only_if(headers: &HeaderMap) -> Result<Option<String>, Failed> {
    let Some(header) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = header.to_str().unwrap_or_default().trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).filter(|text| !text.contains('"'));
    match (text, quoted) {
        ("*", _) => Ok(None),
        (_, Some(version)) => Ok(Some(version.to_owned())),
        _ => Err(Kind::Invalid.with("If-Match is one version in quotes, as the ETag of its keys states it").into()),
    }
}
