//! The overview: the sentence, who suffers and why, who takes most, devices, and what has happened.

use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use sluice_api::amount::{percent, span};
use sluice_api::change::Override;
use sluice_api::event::{EventKind, Events};
use sluice_api::summary::{Promises, Summary};
use sluice_api::top::Top;

use super::events::EventRow;
use super::{Frame, NoParameters, Page, Shown, show};
use crate::rows::DeviceRow;
use crate::sentence::{Broken, Part, Taker, broken, device_link, sentence, takers, vm_link};
use crate::server::Shared;
use crate::text::{filters, moment, now, part};

pub(super) const PAGE: Page = Page { nav: Some(("Overview", "/")), routes };

/// Number of broken promises, of VMs of a device, of events and of changes that are shown.
const BROKEN_MAX: usize = 20;
const TAKERS_MAX: usize = 7;
const EVENTS_MAX: usize = 12;
const ENDS_MAX: usize = 8;

fn routes() -> Router<Shared> {
    Router::new().route("/", get(overview))
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    sentence: Vec<Part>,
    trouble: Vec<Vec<Part>>,
    broken: Vec<BrokenRow>,
    more_broken: usize,
    takers: Vec<DeviceTakers>,
    devices: Vec<DeviceRow>,
    events: Vec<EventRow>,
    ends: Vec<End>,
}

/// A broken promise.
struct BrokenRow {
    name: String,
    vm_href: String,
    device: String,
    device_href: String,
    kind: &'static str,
    gets: String,
    since: String,
    because: Vec<Part>,
    /// The VM whose policy is the remedy: itself, or the neighbour that takes most.
    culprit: String,
    culprit_href: String,
}

/// The VMs of a device, as parts of a bar.
struct DeviceTakers {
    name: String,
    href: String,
    parts: Vec<TakerPart>,
}

/// A part of a bar. Lengths are in percent of it.
struct TakerPart {
    name: String,
    href: Option<String>,
    colour: usize,
    x: String,
    width: String,
    weight_x: String,
    weight_width: String,
    text: String,
    suffers: bool,
}

/// A change that ends by itself.
struct End {
    time: String,
    iso: String,
    name: String,
    href: String,
    value: String,
    reason: Option<String>,
    then: String,
    undo: Option<String>,
}

async fn overview(State(shared): State<Shared>, none: Result<Query<NoParameters>, QueryRejection>) -> Shown {
    none?;
    let daemon = &shared.daemon;
    let since = now().saturating_sub(3600);
    let events = format!("/v1/events?since={since}&limit=100");
    let (top, summary, events, overrides) = tokio::try_join!(
        daemon.top(),
        daemon.get::<Summary>("/v1/summary"),
        daemon.get::<Events>(events),
        daemon.list::<Override>("/v1/overrides?"),
    )?;
    let Promises { kept, not_asked, broken, unknown } = summary.promises;
    let all = self::broken(&top);
    let frame = Frame {
        here: "/".to_owned(),
        nav: "/",
        stream: Some("promises=true&devices=*".to_owned()),
        is_refreshed: true,
        time: top.time,
        ..Frame::titled("Overview")
    };
    let is_shown = |event: &&sluice_api::event::Event| {
        event.change.is_some()
            || event.kind.is_failing()
            || EventKind::CHANGES.contains(&event.kind)
            || event.vm.is_none()
    };
    let row_of = |event| EventRow::of(event).with_undo(&overrides);
    let page = Overview {
        frame,
        sentence: sentence(&top, Some(kept + not_asked + broken + unknown)),
        trouble: trouble(&summary, &top),
        broken: all.iter().take(BROKEN_MAX).map(|one| row(one, &top)).collect(),
        more_broken: all.len().saturating_sub(BROKEN_MAX),
        takers: top.devices.iter().map(|device| of_device(&top, &device.device)).collect(),
        devices: top.devices.iter().map(DeviceRow::of).collect(),
        events: events.events.iter().rev().filter(is_shown).take(EVENTS_MAX).map(row_of).collect(),
        ends: ends(&overrides),
    };
    show(&page)
}

fn row(one: &Broken<'_>, top: &Top) -> BrokenRow {
    let culprit = one.culprit(top).map_or_else(|| one.vm.vm.clone(), |taker| taker.vm.vm.clone());
    BrokenRow {
        name: one.name(),
        vm_href: format!("/vms/{}", part(&one.vm.vm)),
        device: one.vm.device.clone(),
        device_href: format!("/devices/{}", part(&one.vm.device)),
        kind: one.promise.kind.name(),
        gets: one.gets(),
        since: one.promise.for_seconds.map_or(String::new(), span),
        because: one.because(top),
        culprit_href: format!("/vms/{}", part(&culprit)),
        culprit,
    }
}

fn of_device(top: &Top, device: &str) -> DeviceTakers {
    let all = takers(top, device);
    let mut parts = Vec::new();
    let mut x = 0.0;
    for (colour, taker) in all.iter().take(TAKERS_MAX).enumerate() {
        parts.push(taker_part(taker, colour, x));
        x += taker.percent;
    }
    if all.len() > TAKERS_MAX {
        let rest = 100.0 - x;
        parts.push(TakerPart {
            name: format!("{} others", all.len() - TAKERS_MAX),
            href: None,
            colour: TAKERS_MAX,
            x: format!("{x:.1}"),
            width: format!("{rest:.1}"),
            weight_x: format!("{x:.1}"),
            weight_width: "0.0".to_owned(),
            text: percent(rest),
            suffers: all.iter().skip(TAKERS_MAX).any(|taker| taker.vm.now.is_broken()),
        });
    }
    DeviceTakers { name: device.to_owned(), href: format!("/devices/{}", part(device)), parts }
}

fn taker_part(taker: &Taker<'_>, colour: usize, x: f64) -> TakerPart {
    let by_reservation = taker.vm.now.rates.and_then(|rates| rates.by_reservation_percent);
    let reserved = by_reservation.map(|percent| taker.percent * percent / 100.0);
    let text = match reserved {
        Some(reserved) if reserved >= 0.5 && taker.percent - reserved >= 0.5 => {
            format!(
                "{}: {} by reservation, {} by weight",
                percent(taker.percent),
                percent(reserved),
                percent(taker.percent - reserved)
            )
        }
        Some(reserved) if reserved >= 0.5 => format!("{} by reservation", percent(taker.percent)),
        Some(_) => format!("{} by weight", percent(taker.percent)),
        None => percent(taker.percent),
    };
    let weight = reserved.map_or(0.0, |reserved| taker.percent - reserved);
    TakerPart {
        name: taker.vm.vm.clone(),
        href: vm_link(&taker.vm.vm).href,
        colour,
        x: format!("{x:.1}"),
        width: format!("{:.1}", taker.percent),
        weight_x: format!("{:.1}", x + taker.percent - weight),
        weight_width: format!("{weight:.1}"),
        text,
        suffers: taker.vm.now.is_broken(),
    }
}

/// What else is not as it should be, each in a sentence with links.
fn trouble(summary: &Summary, top: &Top) -> Vec<Vec<Part>> {
    let text = |text: String| Part { text, href: None };
    let of_vm = |vm: &str, name: String, rest: String| vec![Part { text: name, ..vm_link(vm) }, text(rest)];
    let mut all = Vec::new();
    for one in &summary.failing {
        let (vm, _) = one.volume.parts();
        all.push(of_vm(vm, one.volume.to_string(), format!(" is FAILING: {}", one.failing.text)));
    }
    for lost in &summary.daemon.lost_clients {
        let (vm, _) = lost.volume.parts();
        let rest = format!(" has lost its client since {}: {}; restart its VM", moment(lost.since), lost.reason);
        all.push(of_vm(vm, lost.volume.to_string(), rest));
    }
    let unserved = summary.held_back.iter().map(|one| (one, "is held back"));
    let unserved = unserved.chain(summary.volumes_out_of_service.iter().map(|one| (one, "is out of service")));
    for (one, what) in unserved {
        let (vm, _) = one.volume.parts();
        all.push(of_vm(vm, one.volume.to_string(), format!(" {what}: {}", one.reason)));
    }
    for one in &summary.interfaces_out_of_service {
        all.push(vec![text(format!("{} is out of service: {}", one.of, one.reason))]);
    }
    for fault in summary.faults.iter() {
        let refused = fault.faults.stopped.as_ref().or(fault.faults.refusal.as_ref());
        let why = refused.map_or(String::new(), |why| format!(" ({why})"));
        let (stopped, refused) = (fault.faults.stopped_queues, fault.faults.refused);
        let rest = format!(": {stopped} queues have stopped, {refused} requests were refused{why}");
        all.push(of_vm(&fault.vm, format!("{}/{}", fault.vm, fault.volume), rest));
    }
    all.extend(
        summary.file_systems.iter().filter(|system| system.is_low).map(|system| vec![text(system.text.clone())]),
    );
    for device in &top.devices {
        let problem = |problem: &String| {
            vec![text("Device ".to_owned()), device_link(&device.device), text(format!(" {problem}"))]
        };
        all.extend(device.problems.iter().map(problem));
    }
    all.extend(of_daemon(summary).into_iter().map(|sentence| vec![text(sentence)]));
    all
}

/// What is not as it should be with the daemon itself.
fn of_daemon(summary: &Summary) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(refused) = &summary.daemon.refused_reload {
        let time = moment(refused.time);
        all.push(format!(
            "The last reload was refused at {time}, and the file before it is in force: {}",
            refused.in_words()
        ));
    }
    if let Some(last) = summary.daemon.restarts.last() {
        let count = sluice_api::amount::counted(summary.daemon.restarts.len() as u64, "restart", "restarts");
        all.push(format!("{count} of the daemon in the last hour; it ended last at {}", moment(last.time)));
    }
    let aside = summary.overrides_set_aside.iter();
    all.extend(
        aside.map(|one| {
            format!("{} = {} is not in force: the host file does not allow it any more", one.name, one.value)
        }),
    );
    if let Some(trouble) = &summary.daemon.record {
        all.push(format!("Events and history are not kept since {}: {}", moment(trouble.since), trouble.text));
    }
    if let Some(alert) = &summary.daemon.failed_alert {
        all.push(format!("The last alert to {} failed at {}: {}", alert.recipient, moment(alert.time), alert.error));
    }
    all
}

/// The changes that end at a time, the next one first.
fn ends(overrides: &[Override]) -> Vec<End> {
    let mut all: Vec<(jiff::Timestamp, &Override)> =
        overrides.iter().filter_map(|one| Some((one.until.parse().ok()?, one))).collect();
    all.sort_by_key(|(end, _)| *end);
    let end = |(time, one): (jiff::Timestamp, &Override)| End {
        time: moment(u64::try_from(time.as_second()).unwrap_or(0)),
        iso: one.until.clone(),
        name: one.name.clone(),
        href: super::events::page_of(&one.name),
        value: plain(&one.value),
        reason: one.reason.clone(),
        then: one.file_in_words.clone(),
        undo: super::events::undo_of(one),
    };
    all.into_iter().take(ENDS_MAX).map(end).collect()
}

/// A value of a host file, as text.
pub(super) fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::top::{Figures, Rates, Vm};

    #[test]
    fn the_parts_of_a_device_are_the_whole_bar() {
        let vm = |number: usize| {
            let rates =
                Rates { iops: 10.0 * (number + 1) as f64, by_reservation_percent: Some(40.0), ..Rates::default() };
            let now = Figures { rates: Some(rates), ..Figures::default() };
            Vm { vm: format!("vm{number}"), device: "ssd".to_owned(), now, ..Vm::default() }
        };
        let top = Top { vms: (0..9).map(vm).collect(), ..Top::default() };
        let device = of_device(&top, "ssd");
        assert_eq!(
            (device.parts[0].name.as_str(), device.parts[0].text.as_str()),
            ("vm8", "20 %: 8 % by reservation, 12 % by weight")
        );
        assert_eq!((device.parts.len(), device.parts[7].name.as_str()), (8, "2 others"));
        let sum: f64 = device.parts.iter().map(|part| part.width.parse::<f64>().unwrap()).sum();
        assert!((sum - 100.0).abs() < 0.5, "{sum}");
        assert!(of_device(&top, "hdd").parts.is_empty());
    }

    #[test]
    fn changes_that_end_are_in_the_order_of_their_ends() {
        let change = |name: &str, until: &str| Override {
            name: name.to_owned(),
            until: until.to_owned(),
            ..Override::default()
        };
        let all = [
            change("a/limit", "2026-11-30T15:00:00Z"),
            change("b/limit", "reset"),
            change("c/limit", "2026-11-30T14:00:00Z"),
        ];
        let names: Vec<String> = ends(&all).into_iter().map(|end| end.name).collect();
        assert_eq!(names, ["c/limit", "a/limit"]);
    }
}
