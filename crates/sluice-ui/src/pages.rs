//! The pages: a file in `pages`, a template, and a line in [`PAGES`] for each.

use askama::Template;
use axum::Router;
use axum::response::Html;
use serde::Deserialize;

use crate::failure::Failure;
use crate::server::Shared;
use crate::text::{clock, now};

mod api;
mod change;
mod device;
mod events;
mod in_force;
mod overview;
mod undo;
mod vm;
mod vms;

/// A page.
pub(crate) struct Page {
    /// Name in the navigation, and address there.
    nav: Option<(&'static str, &'static str)>,
    routes: fn() -> Router<Shared>,
}

const PAGES: [Page; 8] =
    [overview::PAGE, vms::PAGE, vm::PAGE, device::PAGE, events::PAGE, change::PAGE, undo::PAGE, api::PAGE];

pub(crate) fn routes() -> Router<Shared> {
    PAGES.iter().fold(Router::new(), |routes, page| routes.merge((page.routes)()))
}

/// What is around the content of every page.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) title: String,
    /// Address of the navigation that the page belongs to.
    pub(crate) nav: &'static str,
    /// Address of the page, for its reload.
    pub(crate) here: String,
    /// Query of its stream.
    pub(crate) stream: Option<String>,
    /// Whether it has figures that are not cells, so that the script takes it again every ten seconds.
    pub(crate) is_refreshed: bool,
    /// Time of its figures, in seconds since 1970.
    pub(crate) time: u64,
}

impl Frame {
    /// A page without figures.
    pub(crate) fn titled(title: &str) -> Frame {
        Frame { title: title.to_owned(), nav: "", here: String::new(), stream: None, is_refreshed: false, time: now() }
    }

    /// The name, the address and the state of each page of the navigation.
    pub(crate) fn links(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> + '_ {
        PAGES.iter().filter_map(|page| page.nav).map(|(name, path)| (name, path, path == self.nav))
    }

    pub(crate) fn clock(&self) -> String {
        clock(self.time)
    }
}

/// Parameters of a page that has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParameters {}

/// An answer with a page.
pub(crate) type Shown = Result<Html<String>, Failure>;

pub(crate) fn show(page: &impl Template) -> Shown {
    let failed = |error: askama::Error| {
        Failure::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "The page cannot be made", error.to_string())
    };
    page.render().map(Html).map_err(failed)
}
