//! A VM: why it gets what it gets, its rates and times, its neighbours, what it has, and the form that changes it.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::routing::get;
use serde::Deserialize;
use sluice_api::amount::{percent, rate};
use sluice_api::change::Override;
use sluice_api::event::{Event, EventKind, Events, Neighbour, Right};
use sluice_api::list::{Client, DeviceHistory, History, Point, Wait};
use sluice_api::status::{self, WaitedFor};
use sluice_api::top::{self, Top};
use sluice_api::why::Why;

use super::change::{Form, Target};
use super::events::EventRow;
use super::{Frame, Page, Shown, show};
use crate::charts::{self, ChartView, HOUR, SECONDS};
use crate::done;
use crate::failure::Failure;
use crate::rows::{NOTHING, Row};
use crate::server::Shared;
use crate::text::{filters, now, part};

pub(super) const PAGE: Page = Page { nav: None, routes };

/// Number of events that are shown.
const EVENTS_MAX: usize = 15;

fn routes() -> Router<Shared> {
    Router::new().route("/vms/{vm}", get(vm))
}

/// What has just been done.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// Number of the change that was made.
    done: Option<u64>,
}

#[derive(Template)]
#[template(path = "vm.html")]
struct Vm {
    frame: Frame,
    name: String,
    done: Option<done::Change>,
    rows: Vec<Row>,
    why: Result<Why, String>,
    /// What is not in lists of their own below it.
    told: String,
    details: Vec<Detail>,
    charts: Vec<ChartView>,
    volumes: Vec<VolumeRow>,
    clients: Vec<ClientRow>,
    events: Vec<EventRow>,
    form: Form,
}

/// The VM on a device.
struct Detail {
    device: String,
    held_by: Option<String>,
    waits: Vec<(&'static str, f64, String)>,
    backlogged: String,
    /// Main reasons of waiting in the last hour.
    in_hour: String,
    neighbours: Vec<NeighbourRow>,
}

/// A VM with its part of a device.
struct NeighbourRow {
    name: String,
    href: String,
    is_own: bool,
    width: String,
    text: String,
}

/// A volume or NIC.
struct VolumeRow {
    row: Row,
    /// Address of its form.
    href: String,
    /// Path of its image.
    source: String,
    faults: Vec<String>,
}

struct ClientRow {
    volume: String,
    protocol: String,
    peer: String,
    outstanding: u32,
}

/// What is asked of the daemon for this page.
struct Asked {
    top: Top,
    now: Vec<status::Vm>,
    why: Result<Why, String>,
    seconds: History,
    minutes: History,
    clients: Vec<Client>,
    events: Vec<Event>,
    overrides: Vec<Override>,
    form: Form,
}

async fn vm(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Shown {
    let (Path(name), Query(Parameters { done })) = (name?, parameters?);
    let asked = ask(&shared, &name).await?;
    let vms: Vec<&top::Vm> = asked.top.vms.iter().filter(|vm| vm.vm == name).collect();
    let frame = Frame {
        nav: "/vms",
        here: format!("/vms/{}", part(&name)),
        is_refreshed: true,
        stream: Some(format!("vms={}&details=true", part(&name))),
        time: asked.top.time,
        ..Frame::titled(&format!("VM {name}"))
    };
    let event = |event| EventRow::of(event).with_undo(&asked.overrides);
    let page = Vm {
        frame,
        done: done
            .and_then(|number| shared.done.get(number))
            .filter(|done| done.target.split('/').next() == Some(&name)),
        rows: vms.iter().map(|vm| Row::of(vm, &asked.top.devices)).collect(),
        details: asked.now.iter().map(|vm| detail(vm, &asked)).collect(),
        charts: charts(&vms, &asked),
        volumes: volumes(&vms, &asked),
        clients: asked.clients.iter().filter(|client| client.vm == name).map(client).collect(),
        events: asked.events.iter().rev().take(EVENTS_MAX).map(event).collect(),
        told: asked.why.as_ref().map_or(String::new(), |why| told(&why.text)),
        why: asked.why,
        form: asked.form,
        name,
    };
    show(&page)
}

async fn ask(shared: &Shared, name: &str) -> Result<Asked, Failure> {
    let (daemon, vm, now) = (&shared.daemon, part(name), now());
    let history =
        |step: &str, length: u64| format!("/v1/history/{vm}?step={step}&since={}", now.saturating_sub(length));
    // The first one fails if there is no such VM.
    let own = daemon.list(&format!("/v1/vms/{vm}?")).await?;
    let why = async { Ok(daemon.get::<Why>(format!("/v1/why?vm={vm}&since={}", now.saturating_sub(HOUR))).await) };
    let (top, why, seconds, minutes, clients, events, overrides, form) = tokio::try_join!(
        daemon.top(),
        why,
        daemon.get(history("second", SECONDS)),
        daemon.get(history("minute", HOUR)),
        daemon.list("/v1/clients?"),
        daemon.get::<Events>(format!("/v1/events?vm={vm}&limit=100")),
        daemon.list("/v1/overrides?"),
        Form::of(shared, Target::vm(name)),
    )?;
    let why = why.map_err(|failed| Failure::from(failed).detail);
    Ok(Asked { top, now: own, why, seconds, minutes, clients, events: events.events, overrides, form })
}

/// Returns the text without the paragraphs that the page has as lists.
fn told(text: &str) -> String {
    let is_listed = |part: &&str| part.starts_with("Its device meanwhile:") || part.starts_with("What would help:");
    text.split("\n\n").filter(|part| !is_listed(part)).collect::<Vec<_>>().join("\n\n")
}

fn of_device<'a>(history: &'a History, device: &str) -> Option<&'a DeviceHistory> {
    history.history.iter().find(|one| one.device == device)
}

fn charts(vms: &[&top::Vm], asked: &Asked) -> Vec<ChartView> {
    let now = asked.top.time;
    let is_change = |event: &&Event| matches!(event.kind, EventKind::Changed | EventKind::Reset | EventKind::Expired);
    let marks = charts::marks(asked.events.iter().filter(is_change).map(|event| event.time), now);
    let none: &[Point] = &[];
    let mut all = Vec::new();
    for vm in vms {
        let seconds = of_device(&asked.seconds, &vm.device).map_or(none, |past| &past.seconds);
        all.push(charts::rates(vm, seconds, now, &marks));
        let minutes = of_device(&asked.minutes, &vm.device).map_or(none, |past| &past.minutes);
        let own = asked.now.iter().find(|own| own.device == vm.device);
        let target = own.and_then(|own| own.policy.latency_p99_us);
        all.extend(charts::latency(&vm.device, minutes, now, target));
    }
    all
}

fn detail(vm: &status::Vm, asked: &Asked) -> Detail {
    let minutes = of_device(&asked.minutes, &vm.device).map_or(&[][..], |past| &past.minutes);
    let on_device = asked.why.iter().flat_map(|why| &why.by_device).find(|on| on.device == vm.device);
    let neighbours = on_device.map_or(Vec::new(), |on| {
        let own = on.own.iter().map(|own| (own, true));
        let mut all: Vec<(&Neighbour, bool)> = own.chain(on.neighbours.iter().map(|one| (one, false))).collect();
        all.sort_by(|one, other| other.0.percent.total_cmp(&one.0.percent));
        all.into_iter().map(|(one, is_own)| neighbour(one, is_own)).collect()
    });
    let held_by = vm.held_by.map(|cause| {
        let detail = vm.held_by_detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
        format!("{}{detail}", cause.in_words())
    });
    Detail {
        device: vm.device.clone(),
        held_by,
        waits: vm.parts.waited_for_percent.as_ref().map(waited).unwrap_or_default(),
        backlogged: percent(vm.parts.backlogged_percent),
        in_hour: in_hour(minutes),
        neighbours,
    }
}

/// The reasons of waiting, the largest first.
fn waited(waited: &WaitedFor) -> Vec<(&'static str, f64, String)> {
    let all = [
        (Wait::OwnLimit, waited.own_limit),
        (Wait::Share, waited.share),
        (Wait::Device, waited.device),
        (Wait::Batch, waited.batch),
        (Wait::Anticipation, waited.anticipation),
    ];
    let mut all: Vec<_> = all.into_iter().filter(|(_, part)| *part >= 0.5).collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all.into_iter().map(|(wait, part)| (charts::waits(wait), part, percent(part))).collect()
}

/// For how many minutes each reason was the main one.
fn in_hour(minutes: &[Point]) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for point in minutes.iter().filter(|point| point.wait != Wait::Nothing) {
        *counts.entry(charts::waits(point.wait)).or_default() += 1;
    }
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let words: Vec<String> = counts.iter().map(|(wait, count)| format!("{wait} {count} min")).collect();
    words.join(", ")
}

fn neighbour(one: &Neighbour, is_own: bool) -> NeighbourRow {
    let by = match one.by {
        Right::Other => String::new(),
        by => format!(", most by {}", by.name()),
    };
    NeighbourRow {
        name: one.vm.clone(),
        href: format!("/vms/{}#change", part(&one.vm)),
        is_own,
        width: format!("{:.1}", one.percent),
        text: format!("{} ({}/s{by})", percent(one.percent), rate(one.iops)),
    }
}

fn volumes(vms: &[&top::Vm], asked: &Asked) -> Vec<VolumeRow> {
    let known = |row: &Row| {
        let mut all = asked.now.iter().filter(|vm| vm.device == row.device).flat_map(|vm| &vm.volumes);
        all.find(|volume| volume.volume == row.name)
    };
    let rows = vms.iter().flat_map(|vm| Row::of_volumes(vm, &asked.top.devices).map(|row| (vm.vm.clone(), row)));
    rows.map(|(vm, row)| {
        let volume = known(&row);
        let mut faults: Vec<String> = volume.iter().flat_map(|one| &one.failing).map(|one| one.text.clone()).collect();
        let of_client = volume.map(|one| &one.client_faults);
        faults.extend(
            of_client.and_then(|faults| faults.stopped.clone()).map(|why| format!("A queue has stopped: {why}")),
        );
        let name = row.name.split('/').map(part).collect::<Vec<_>>().join("/");
        let href = format!("/change/{}/{name}", part(&vm));
        let source = volume.and_then(|one| one.disk.as_ref()?.source.as_ref());
        let source = source.map_or_else(|| NOTHING.to_owned(), |path| path.display().to_string());
        VolumeRow { href, source, faults, row }
    })
    .collect()
}

fn client(client: &Client) -> ClientRow {
    ClientRow {
        volume: client.volume.clone(),
        protocol: client.protocol.clone(),
        peer: if client.peer.is_empty() { NOTHING.to_owned() } else { client.peer.clone() },
        outstanding: client.outstanding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_not_in_the_text_too() {
        let text = "db1 gets 5 iops.\n\nIts device meanwhile:\n  a\n\nWhat would help:\n  b\n\nChanges of it in the last 1 h:\n  c";
        assert_eq!(told(text), "db1 gets 5 iops.\n\nChanges of it in the last 1 h:\n  c");
    }

    #[test]
    fn reasons_of_waiting_are_sorted_and_counted() {
        let parts = WaitedFor { own_limit: 20.0, share: 79.8, device: 0.2, ..WaitedFor::default() };
        let words: Vec<(&str, String)> = waited(&parts).into_iter().map(|(wait, _, text)| (wait, text)).collect();
        assert_eq!(words, [("share of others", "80 %".to_owned()), ("own limit", "20 %".to_owned())]);
        let minute = |wait| Point { wait, ..Point::default() };
        let minutes = [minute(Wait::Device), minute(Wait::Share), minute(Wait::Device), minute(Wait::Nothing)];
        assert_eq!(in_hour(&minutes), "the device 2 min, share of others 1 min");
    }
}
