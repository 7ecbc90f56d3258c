//! `/stream`: cells that have changed, for the script of a page.
//!
//! A page tells which VMs and devices it shows. A message is JSON: `cells` by name, `parts` of the page that are out of date, `points` of curves, `lost` if
//! the daemon is not heard, and `say` for the live region. Only what has changed is sent.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::channel::{Channel, Sender};
use serde::{Deserialize, Serialize};
use sluice_api::event::Event;
use sluice_api::top::Top;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::feed::Sample;
use crate::rows::{self, Cells};
use crate::server::Shared;
use crate::text::{clock, visible};

/// Number of events that are announced at once.
const SAID_MAX: usize = 3;
/// Maximum time without a message.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// Maximum number of VMs that a stream is about.
const VMS_MAX: usize = 200;

pub(crate) fn routes() -> Router<Shared> {
    Router::new().route("/stream", get(stream))
}

/// What a page shows.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    /// With commas between them.
    vms: Option<String>,
    /// With commas between them, or `*`.
    devices: Option<String>,
    /// Whether the page has volumes, and curves of the VM.
    #[serde(default)]
    details: bool,
    /// Whether the page shows which promises are broken.
    #[serde(default)]
    promises: bool,
}

/// What a browser gets.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Patch {
    #[serde(skip_serializing_if = "Cells::is_empty")]
    cells: Cells,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    points: Vec<(String, f64)>,
    /// Whether parts of the page that are not cells are out of date.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stale: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    say: Vec<String>,
    /// Why the daemon is not heard; empty if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
    /// Time of the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<u64>,
}

/// What a browser has.
#[derive(Debug, Default)]
struct Shown {
    cells: Cells,
    broken: Option<Vec<String>>,
    heard: Option<u64>,
    /// Time of the last sample whose points were sent.
    time: Option<u64>,
    lost: Option<String>,
}

impl Of {
    fn vms(&self) -> Vec<&str> {
        self.vms.iter().flat_map(|vms| vms.split(',')).filter(|vm| !vm.is_empty()).collect()
    }

    fn shows_device(&self, device: &str) -> bool {
        self.devices.iter().flat_map(|devices| devices.split(',')).any(|shown| shown == "*" || shown == device)
    }

    /// Whether an event changes what the page shows.
    fn is_about(&self, event: &Event) -> bool {
        let vms = self.vms();
        let is_own = event.vm.as_deref().is_some_and(|vm| vms.contains(&vm));
        let of_change = event.change.as_ref().is_some_and(|change| {
            vms.iter().any(|vm| change.target == *vm || change.target.starts_with(&format!("{vm}/")))
        });
        self.promises || is_own || of_change || self.shows_device(&event.device)
    }
}

async fn stream(State(shared): State<Shared>, of: Result<Query<Of>, QueryRejection>) -> Result<Response, Failure> {
    let Query(of) = of?;
    if of.vms().len() > VMS_MAX {
        return Err(Failure::invalid(format!("A page shows at most {VMS_MAX} VMs.")));
    }
    let (sender, body) = Channel::<Bytes>::new(1);
    tokio::spawn(follow(of, shared.feed.samples(), sender));
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::new(body)).into_response())
}

/// Sends until the browser has gone. What it has not read yet is one message, and it gets the newest sample after that.
async fn follow(of: Of, mut samples: watch::Receiver<Sample>, mut to: Sender<Bytes>) -> Option<()> {
    let mut shown = Shown::default();
    loop {
        let sample = samples.borrow_and_update().clone();
        let patch = shown.patch(&of, &sample);
        if patch != Patch::default() {
            let json = serde_json::to_string(&patch).ok()?;
            to.send_data(Bytes::from(format!("data: {json}\n\n"))).await.ok()?;
        }
        while !is_changed(&mut samples).await? {
            // A browser that has gone is noticed when something is sent, also while nothing is heard.
            to.send_data(Bytes::from_static(b": still here\n\n")).await.ok()?;
        }
    }
}

/// Waits for another sample, but not too long. `None` if there are no more.
async fn is_changed(samples: &mut watch::Receiver<Sample>) -> Option<bool> {
    match tokio::time::timeout(QUIET_MAX, samples.changed()).await {
        Ok(changed) => changed.ok().map(|()| true),
        Err(_) => Some(false),
    }
}

/// The names of VMs and volumes with broken promises.
fn broken(top: &Top) -> Vec<String> {
    let mut names = Vec::new();
    for vm in &top.vms {
        names.extend(vm.now.promises.iter().map(|promise| format!("{} {}", vm.vm, promise.kind.name())));
        for volume in &vm.volumes {
            let promises = volume.now.promises.iter();
            names.extend(promises.map(|promise| format!("{}/{} {}", vm.vm, volume.volume, promise.kind.name())));
        }
    }
    names
}

impl Shown {
    fn patch(&mut self, of: &Of, sample: &Sample) -> Patch {
        let mut patch = Patch::default();
        if sample.lost != self.lost {
            patch.lost = Some(visible(sample.lost.as_deref().unwrap_or_default()));
            // It may be another one that serves now.
            patch.stale = sample.lost.is_none();
            self.lost.clone_from(&sample.lost);
        }
        if !sample.is_there || sample.lost.is_some() {
            return patch;
        }
        let top = &*sample.top;
        let vms = of.vms();
        let is_shown = |vm: &sluice_api::top::Vm| vms.contains(&vm.vm.as_str());
        let all = rows::cells(top, is_shown, of.details, |device| of.shows_device(device));
        let is_new = |(name, cell): &(&String, &rows::Cell)| self.cells.get(*name) != Some(*cell);
        patch.cells = all.iter().filter(is_new).map(|(name, cell)| (name.clone(), cell.clone())).collect();
        self.cells = all;
        patch.time = Some(top.time);
        // An event wakes the stream too, with the figures of a sample that was sent already.
        if of.details && self.time.replace(top.time) != Some(top.time) {
            let shown = top.vms.iter().filter(|vm| is_shown(vm));
            patch.points = shown.map(crate::charts::point).collect();
        }
        self.hear(of, sample, &mut patch);
        patch
    }

    /// Notes events, and promises that were broken or are kept again.
    fn hear(&mut self, of: &Of, sample: &Sample, patch: &mut Patch) {
        let heard = self.heard.unwrap_or(sample.heard);
        let new = sample.events.iter().filter(|(number, event)| *number > heard && of.is_about(event));
        let new: Vec<&Event> = new.map(|(_, event)| event).collect();
        let say = |event: &&Event| format!("{} {}", clock(event.time), visible(&event.in_words()));
        patch.say = new.iter().rev().take(SAID_MAX).map(say).collect();
        patch.stale |= !new.is_empty();
        self.heard = Some(sample.heard);
        if of.promises {
            let broken = broken(&sample.top);
            patch.stale |= self.broken.as_ref().is_some_and(|known| *known != broken);
            self.broken = Some(broken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use sluice_api::status::{Promise, State as Promised};
    use sluice_api::top::{Figures, Rates, Vm};

    fn sample(iops: f64, is_broken: bool) -> Sample {
        let promises =
            if is_broken { vec![Promise { state: Promised::Broken, ..Promise::default() }] } else { Vec::new() };
        let now = Figures { rates: Some(Rates { iops, ..Rates::default() }), promises, ..Figures::default() };
        let vm = |name: &str| Vm { vm: name.to_owned(), device: "ssd".to_owned(), now: now.clone(), ..Vm::default() };
        let top = Top { vms: vec![vm("a"), vm("b")], ..Top::default() };
        Sample { top: Arc::new(top), is_there: true, ..Sample::default() }
    }

    fn of(vms: &str) -> Of {
        Of { vms: Some(vms.to_owned()), promises: true, ..Of::default() }
    }

    #[test]
    fn only_changed_cells_of_vms_that_are_shown_are_sent() {
        let mut shown = Shown::default();
        let first = shown.patch(&of("a"), &sample(5.0, false));
        assert!(first.cells.keys().all(|name| name.starts_with("v/a/ssd/")) && first.cells.len() > 5, "{first:?}");
        let second = shown.patch(&of("a"), &sample(6.0, false));
        assert_eq!(second.cells.keys().collect::<Vec<_>>(), ["v/a/ssd/band", "v/a/ssd/iops"]);
        assert!(!second.stale && shown.patch(&of("a"), &sample(6.0, true)).stale, "a promise was broken");
    }

    #[test]
    fn events_are_announced_once_and_to_pages_that_they_are_about() {
        let mut shown = Shown::default();
        let mut now = sample(5.0, false);
        shown.patch(&of("a"), &now);
        let event = |vm: &str| Event { vm: Some(vm.to_owned()), ..Event::default() };
        now.events = Arc::new([(1, event("a")), (2, event("b"))].into());
        now.heard = 2;
        let own = Of { promises: false, ..of("a") };
        let patch = shown.patch(&own, &now);
        assert!(patch.say.len() == 1 && patch.stale, "{patch:?}");
        assert!(shown.patch(&own, &now).say.is_empty());
    }

    #[test]
    fn a_sample_has_its_points_once() {
        let mut shown = Shown::default();
        let of = Of { details: true, ..of("a") };
        let now = sample(5.0, false);
        assert_eq!(shown.patch(&of, &now).points.len(), 1);
        assert!(shown.patch(&of, &Sample { heard: 1, ..now.clone() }).points.is_empty());
        let next = Top { time: 1, ..(*now.top).clone() };
        assert_eq!(shown.patch(&of, &Sample { top: Arc::new(next), ..now }).points.len(), 1);
    }

    #[test]
    fn a_page_says_when_the_daemon_is_not_heard() {
        let mut shown = Shown::default();
        let lost = Sample { lost: Some("gone".to_owned()), ..sample(5.0, false) };
        assert_eq!(shown.patch(&of("a"), &lost), Patch { lost: Some("gone".to_owned()), ..Patch::default() });
        assert_eq!(shown.patch(&of("a"), &lost), Patch::default());
        let back = shown.patch(&of("a"), &sample(5.0, false));
        assert!(back.lost == Some(String::new()) && back.stale && !back.cells.is_empty());
    }
}
