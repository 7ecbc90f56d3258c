//! The stylesheet and the script. They are the same for everyone, so they need no cookie.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

const STYLE: &str = include_str!("../assets/ui.css");
const SCRIPT: &str = include_str!("../assets/ui.js");
const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><path fill=\"#0b6bb8\" \
                    d=\"M1 2h14v3H1zM3 7h2v7H3zM7 7h2v7H7zM11 7h2v7h-2z\"/></svg>";

/// Folder of what needs no cookie.
pub(crate) const FOLDER: &str = "/assets/";

pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let file = |kind: &'static str, text: &'static str| get(move || async move { served(kind, text) });
    Router::new()
        .route("/assets/ui.css", file("text/css; charset=utf-8", STYLE))
        .route("/assets/ui.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/assets/icon.svg", file("image/svg+xml", ICON))
}

fn served(kind: &'static str, text: &'static str) -> impl IntoResponse + use<> {
    ([(CONTENT_TYPE, kind)], text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_stays_short_and_asks_for_nothing_from_elsewhere() {
        assert!(SCRIPT.lines().count() <= 500);
        for text in [SCRIPT, STYLE] {
            assert!(!text.contains("://") && !text.contains("innerHTML") && !text.contains("@import"));
        }
    }
}
