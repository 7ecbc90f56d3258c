//! A device or uplink: its load against what it can do, who has which share of it, and what still fits.

use askama::Template;
use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::routing::get;
use sluice_api::amount::{bits, mib_per_second, rate, time};
use sluice_api::event::Events;
use sluice_api::list::History;
use sluice_api::status::Device;
use sluice_api::top::Top;

use super::events::EventRow;
use super::{Frame, NoParameters, Page, Shown, show};
use crate::charts::{self, ChartView, HOUR};
use crate::failure::Failure;
use crate::rows::{DeviceRow, NOTHING, Row};
use crate::sentence::takers;
use crate::server::Shared;
use crate::text::{filters, now, part};

pub(super) const PAGE: Page = Page { nav: None, routes };

/// Number of VMs whose past is asked for, and of VMs in the table.
const PAST_MAX: usize = 8;
const VMS_MAX: usize = 50;
/// Number of events that are shown.
const EVENTS_MAX: usize = 15;

fn routes() -> Router<Shared> {
    Router::new().route("/devices/{device}", get(device))
}

#[derive(Template)]
#[template(path = "device.html")]
struct DevicePage {
    frame: Frame,
    row: DeviceRow,
    problems: Vec<String>,
    facts: Vec<(&'static str, String)>,
    fits: Vec<String>,
    operations: Vec<[String; 3]>,
    chart: Option<ChartView>,
    vms: Vec<Row>,
    more: usize,
    events: Vec<EventRow>,
}

async fn device(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    none: Result<Query<NoParameters>, QueryRejection>,
) -> Shown {
    let (Path(name), _) = (name?, none?);
    let events = format!("/v1/events?device={}&limit=200", part(&name));
    let (top, events) = tokio::try_join!(shared.daemon.top(), shared.daemon.get::<Events>(events))?;
    let gone = || Failure::not_found(format!("There is no device or uplink {name}."));
    let device = top.devices.iter().find(|device| device.device == name).ok_or_else(gone)?;
    let kind = if device.rates.are_of_link() { "uplinks" } else { "devices" };
    // With its settings, which a short form does not have.
    let whole: Device = shared.daemon.get(format!("/v1/{kind}/{}", part(&name))).await?;
    let of_device = |event: &&sluice_api::event::Event| event.vm.is_none();
    let order: Vec<&str> = takers(&top, &name).iter().map(|taker| taker.vm.vm.as_str()).collect();
    let mut vms: Vec<&sluice_api::top::Vm> = top.vms.iter().filter(|vm| vm.device == name).collect();
    vms.sort_by_key(|vm| order.iter().position(|known| *known == vm.vm).unwrap_or(usize::MAX));
    let rows: Vec<Row> = vms.iter().take(VMS_MAX).map(|vm| Row::of(vm, &top.devices)).collect();
    let names: Vec<String> = rows.iter().map(|row| part(&row.name)).collect();
    let frame = Frame {
        nav: "/",
        here: format!("/devices/{}", part(&name)),
        is_refreshed: true,
        stream: Some(format!("devices={}&vms={}", part(&name), names.join(","))),
        time: top.time,
        ..Frame::titled(&format!("{} {name}", if device.rates.are_of_link() { "Uplink" } else { "Device" }))
    };
    let page = DevicePage {
        frame,
        row: DeviceRow::of(device),
        problems: device.problems.iter().map(|problem| capital(problem)).collect(),
        facts: facts(&whole),
        fits: fits(&whole),
        operations: device
            .service_times
            .iter()
            .map(|one| [one.kind.name().replace('_', " "), time(one.p50_us), time(one.p99_us)])
            .collect(),
        chart: chart(&shared, device, &top, &vms).await?,
        more: vms.len().saturating_sub(VMS_MAX),
        vms: rows,
        events: events.events.iter().rev().filter(of_device).take(EVENTS_MAX).map(EventRow::of).collect(),
    };
    show(&page)
}

/// A problem as a sentence without its subject.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The last hour of the VMs that take most now.
async fn chart(
    shared: &Shared,
    device: &Device,
    top: &Top,
    vms: &[&sluice_api::top::Vm],
) -> Result<Option<ChartView>, Failure> {
    let mut pasts = Vec::new();
    for vm in vms.iter().take(PAST_MAX) {
        let path = format!("/v1/history/{}?step=minute&since={}", part(&vm.vm), now().saturating_sub(HOUR));
        // A VM that has gone meanwhile has no past.
        let Ok(history) = shared.daemon.get::<History>(path).await else { continue };
        let past = history.history.into_iter().find(|past| past.device == device.device);
        pasts.extend(past.map(|past| (vm.vm.clone(), past.minutes)));
    }
    let held = &device.capacity;
    let mbit = |bytes: Option<f64>| bytes.map(|bytes| 8.0 * bytes / 1e6);
    let (stated, measured) = match device.rates.are_of_link() {
        true => (mbit(held.stated_bytes_per_second.map(|bytes| bytes as f64)), mbit(held.measured_bytes_per_second)),
        false => (held.stated_iops, held.measured_iops),
    };
    Ok(charts::shares(&device.device, &pasts, top.time, &[("stated", stated), ("measured", measured)]))
}

fn facts(device: &Device) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("In flight", format!("{} of {}", device.in_flight, device.depth)),
        ("Queued", device.queued.to_string()),
        ("Clients", device.clients.to_string()),
        ("Thread busy", sluice_api::amount::percent(device.thread_busy_percent)),
        ("Thread late", sluice_api::amount::percent(device.thread_late_percent)),
    ];
    if let Some(settings) = &device.settings {
        facts.push(("Scheduler", settings.scheduler.clone()));
        facts.extend(settings.path.as_ref().map(|path| ("Path", path.display().to_string())));
        if !settings.disks.is_empty() {
            facts.push(("Disks", settings.disks.join(", ")));
        }
    }
    if let Some(window) = &device.window {
        let measured = window.measured_latency_us.map_or(NOTHING.to_owned(), |us| time(us as f64));
        facts.push(("Stated latency", format!("{}, measured {measured}", time(window.latency_us as f64))));
    }
    facts
}

/// What may still be reserved, in sentences.
fn fits(device: &Device) -> Vec<String> {
    let (held, link) = (&device.capacity, device.rates.are_of_link());
    let Some(settings) = &device.settings else { return Vec::new() };
    let bytes = |bytes: f64| if link { bits(8.0 * bytes) } else { format!("{} MiB/s", mib_per_second(bytes)) };
    let mut all = Vec::new();
    if let Some(most) = settings.reservable_iops {
        let free = (most - held.reserved_iops).max(0.0);
        all.push(format!("{} iops of {} may still be reserved, by the stated capacity", rate(free), rate(most)));
    }
    if let Some(most) = settings.reservable_bytes_per_second {
        let free = most.saturating_sub(held.reserved_bytes_per_second);
        all.push(format!(
            "{} of {} may still be reserved, by the stated capacity",
            bytes(free as f64),
            bytes(most as f64)
        ));
    }
    if let (Some(measured), true) = (held.measured_iops, held.reserved_iops > 0.0)
        && measured < held.reserved_iops
    {
        all.push(format!("{} iops are reserved, and it gives {}", rate(held.reserved_iops), rate(measured)));
    }
    all
}
