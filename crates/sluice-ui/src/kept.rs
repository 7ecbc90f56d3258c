//! The summary of the daemon's state, kept for a short time.
//!
//! For 1,000 VMs it is made of megabytes. What the overview takes of it changes with an event: how many promises there are, what fails, what was
//! refused. So it is asked for again when the feed has heard an event, and without a feed each time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_api::http::Failed;
use sluice_api::status::Status;
use sluice_api::summary::Summary;

use crate::server::State;

/// Maximum age of a summary that is shown.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The last summary.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Option<Known>>);

/// A summary, when it was made, and the number of events that were heard then.
#[derive(Debug)]
struct Known {
    at: Instant,
    heard: u64,
    summary: Arc<Summary>,
}

/// Returns the summary.
pub(crate) async fn summary(process: &State) -> Result<Arc<Summary>, Failed> {
    let heard = process.feed.heard();
    let known = process.kept.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|known| {
        let is_new = known.at.elapsed() < AGE_MAX && heard == Some(known.heard);
        is_new.then(|| Arc::clone(&known.summary))
    });
    if let Some(summary) = known {
        return Ok(summary);
    }
    let summary = Arc::new(Summary::from(process.daemon.get::<Status>("/v1/status").await?));
    let known = heard.map(|heard| Known { at: Instant::now(), heard, summary: Arc::clone(&summary) });
    *process.kept.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    Ok(summary)
}
