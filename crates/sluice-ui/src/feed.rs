//! The stream of the daemon, for all browsers. It is open while a browser has a page with figures.
//!
//! Each browser gets the newest sample when it can take one. So a slow one misses some, and holds none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_api::event::Event;
use sluice_api::http::{Call, Failed, Messages};
use sluice_api::top::Top;
use tokio::sync::watch;

use crate::daemon::Daemon;

/// Time between two attempts to reach the daemon.
const RETRY: Duration = Duration::from_secs(1);
/// Number of events that are kept for browsers that miss samples.
const EVENTS_MAX: usize = 64;

/// What was heard last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) top: Arc<Top>,
    /// The latest events, oldest first, each with its number in this process.
    pub(crate) events: Arc<VecDeque<(u64, Event)>>,
    /// Number of events that were heard.
    pub(crate) heard: u64,
    /// Why nothing is heard.
    pub(crate) lost: Option<String>,
    /// Whether anything was heard.
    pub(crate) is_there: bool,
}

/// The stream, which starts with its first reader and ends with the last one.
#[derive(Debug)]
pub(crate) struct Feed {
    daemon: Daemon,
    samples: Mutex<Option<watch::Receiver<Sample>>>,
}

impl Feed {
    pub(crate) fn new(daemon: Daemon) -> Feed {
        Feed { daemon, samples: Mutex::new(None) }
    }

    /// The samples, for a browser.
    pub(crate) fn samples(&self) -> watch::Receiver<Sample> {
        let mut known = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(samples) = known.as_ref().filter(|samples| samples.has_changed().is_ok()) {
            return samples.clone();
        }
        let (sender, samples) = watch::channel(Sample::default());
        tokio::spawn(follow(self.daemon.clone(), sender));
        *known = Some(samples.clone());
        samples
    }
}

/// Follows the daemon until nobody reads. One receiver is that of [`Feed`], by which it is found.
async fn follow(daemon: Daemon, to: watch::Sender<Sample>) {
    let mut seconds = tokio::time::interval(RETRY);
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while to.receiver_count() > 1 {
        seconds.tick().await;
        let lost = match daemon.client().stream(&Call::get("/v1/stream")).await {
            Ok(messages) => hear(messages, &to).await,
            Err(failed) => Some(crate::failure::Failure::from(failed).detail),
        };
        let Some(lost) = lost else { return };
        to.send_if_modified(|sample| {
            let is_new = sample.lost.as_ref() != Some(&lost);
            sample.lost = Some(lost.clone());
            is_new
        });
    }
}

/// Passes on what is heard; `None` when nobody reads any more.
async fn hear(mut messages: Messages, to: &watch::Sender<Sample>) -> Option<String> {
    loop {
        let message = match messages.next().await {
            Ok(Some(message)) => message,
            Ok(None) => return Some("The daemon has ended its stream.".to_owned()),
            Err(Failed::Broken(error)) => return Some(error),
            Err(other) => return Some(crate::failure::Failure::from(other).detail),
        };
        if to.receiver_count() <= 1 {
            return None;
        }
        match message.event.as_str() {
            "sample" => {
                let Ok(top) = serde_json::from_str::<Top>(&message.data) else { continue };
                to.send_modify(|sample| {
                    sample.top = Arc::new(top);
                    sample.lost = None;
                    sample.is_there = true;
                });
            }
            "event" => {
                let Ok(event) = serde_json::from_str::<Event>(&message.data) else { continue };
                to.send_modify(|sample| {
                    sample.heard += 1;
                    let events = Arc::make_mut(&mut sample.events);
                    events.push_back((sample.heard, event));
                    while events.len() > EVENTS_MAX {
                        events.pop_front();
                    }
                });
            }
            _ => {}
        }
    }
}
