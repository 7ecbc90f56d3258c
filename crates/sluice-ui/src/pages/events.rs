//! Events and changes: filtered, as a page and as CSV, and the changes that are in force, each with its undo.

use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use sluice_api::change::{Override, until_in_words};
use sluice_api::event::{Event, EventKind, Events};

use super::overview::plain;
use super::{Frame, Page, Shown, show};
use crate::failure::Failure;
use crate::sentence::Part;
use crate::server::Shared;
use crate::text::{filters, moment, now, part};

pub(super) const PAGE: Page = Page { nav: Some(("Events and changes", "/events")), routes };

/// Number of events that are asked for at once, of those that are looked through, and of those that a page shows.
const ASKED_MAX: usize = 1000;
const READ_MAX: usize = 10_000;
const SHOWN_MAX: usize = 200;
/// Maximum length of a filter.
const TEXT_MAX: usize = 200;

fn routes() -> Router<Shared> {
    Router::new().route("/events", get(events)).route("/events.csv", get(csv))
}

/// Which events are shown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct View {
    vm: String,
    device: String,
    kind: String,
    who: String,
    text: String,
    since: String,
    until: String,
}

/// An event in a list.
#[derive(Debug, Clone)]
pub(super) struct EventRow {
    pub(super) time: String,
    pub(super) iso: String,
    pub(super) kind: String,
    pub(super) parts: Vec<Part>,
    subject: String,
    href: Option<String>,
    text: String,
    pub(super) undo: Option<String>,
    /// Whether it is of a kind of changes; then the object that has changed, and the commands that undo it.
    is_change: bool,
    target: String,
    undone_by: Vec<String>,
    who: String,
    before: String,
    after: String,
    reason: String,
}

/// A change in force.
struct ChangeRow {
    name: String,
    href: String,
    value: String,
    file: String,
    at: String,
    until: String,
    reason: String,
    state: &'static str,
    undo: Option<String>,
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    frame: Frame,
    view: View,
    kinds: Vec<(&'static str, String, bool)>,
    rows: Vec<EventRow>,
    is_cut: bool,
    changes: Vec<ChangeRow>,
    csv: String,
}

impl EventRow {
    pub(super) fn of(event: &Event) -> EventRow {
        let timestamp = i64::try_from(event.time).ok().and_then(|time| jiff::Timestamp::from_second(time).ok());
        let target = event.change.as_ref().map(|change| change.target.as_str()).filter(|target| !target.is_empty());
        let policy = target.filter(|target| target.starts_with("policy/"));
        let vm = event
            .vm
            .as_deref()
            .or_else(|| target.filter(|target| !target.starts_with("device ") && policy.is_none())?.split('/').next());
        let device = Some(event.device.as_str()).filter(|device| !device.is_empty());
        let href = match (vm.or(policy), device) {
            (Some(name), _) => Some(page_of(name)),
            (None, Some(device)) => Some(format!("/devices/{}", part(device))),
            _ => None,
        };
        let subject = vm.or(policy).or(device).unwrap_or_default().to_owned();
        let (change, text) = (event.change.clone().unwrap_or_default(), event.in_words());
        EventRow {
            parts: linked(&text, &subject, href.as_ref()),
            time: moment(event.time),
            iso: timestamp.map_or_else(String::new, |time| time.to_string()),
            kind: kind_text(event.kind),
            subject,
            href,
            text,
            undo: None,
            is_change: EventKind::asked("change").contains(&event.kind),
            target: change.target,
            undone_by: change.undo,
            who: change.who,
            before: change.before,
            after: change.after,
            reason: change.reason.unwrap_or_default(),
        }
    }

    /// The same with its undo, if what it made is in force: of one change its page, of several the list.
    pub(super) fn with_undo(self, overrides: &[Override]) -> EventRow {
        let mut own = overrides.iter().filter(|one| self.has_made(one)).filter_map(undo_of);
        let undo = match (own.next(), own.next()) {
            (one, None) => one,
            (_, Some(_)) => Some("/events#changes".to_owned()),
        };
        EventRow { undo, ..self }
    }

    /// Whether it has made a change: at that time, of its object, and its undo names it.
    fn has_made(&self, one: &Override) -> bool {
        let is_then = one.at.get(..19).is_some_and(|at| at.replace('T', " ") == self.time);
        let Some(key) = one.name.strip_prefix(&self.target).filter(|_| !self.target.is_empty()) else { return false };
        let assigned = key.strip_prefix(['/', '.']).map(|key| format!("{key}="));
        let is_named = |word: &str| word == one.name || assigned.as_ref().is_some_and(|key| word.starts_with(key));
        let names = |command: &String| command.split([' ', '\'']).any(is_named);
        self.is_change && is_then && self.undone_by.iter().any(names)
    }
}

/// The page of what a change is about, by its name: that of its VM, or the VMs that hold its policy.
pub(super) fn page_of(name: &str) -> String {
    match name.split_once('/') {
        Some(("policy", name)) => format!("/vms?policy={}", part(name.split('.').next().unwrap_or_default())),
        Some((vm, _)) => format!("/vms/{}", part(vm)),
        None => format!("/vms/{}", part(name)),
    }
}

/// Returns a sentence in which what it is about is a link, or which begins with that.
fn linked(text: &str, subject: &str, href: Option<&String>) -> Vec<Part> {
    let plain = |text: &str| Part { text: text.to_owned(), href: None };
    let link = || Part { text: subject.to_owned(), href: href.cloned() };
    match (href, text.split_once(subject)) {
        (None, _) => vec![plain(text)],
        (_, Some((before, after))) => vec![plain(before), link(), plain(after)],
        (_, None) => vec![link(), plain(&format!(": {text}"))],
    }
}

fn kind_text(kind: EventKind) -> String {
    kind.name().replace('_', " ")
}

impl View {
    fn check(&self) -> Result<(), Failure> {
        let all = [&self.vm, &self.device, &self.who, &self.text, &self.since, &self.until];
        if all.iter().any(|text| text.chars().count() > TEXT_MAX) {
            return Err(Failure::invalid(format!("A filter has at most {TEXT_MAX} characters.")));
        }
        if !self.kind.is_empty() && EventKind::asked(&self.kind).is_empty() {
            return Err(Failure::invalid(format!("There is no kind {} of events.", self.kind)));
        }
        Ok(())
    }

    /// The query of the daemon; `before` is a moment before which the events are, if those after it are known.
    fn query(&self, now: u64, before: Option<u64>) -> Result<String, Failure> {
        let mut query = format!("/v1/events?limit={ASKED_MAX}");
        let named = [("vm", &self.vm), ("device", &self.device), ("kind", &self.kind)];
        for (name, text) in named.into_iter().filter(|(_, text)| !text.trim().is_empty()) {
            query += &format!("&{name}={}", part(text.trim()));
        }
        for (name, text) in [("since", &self.since), ("until", &self.until)] {
            let stated = read_moment(name, text, now)?;
            let time = if name == "until" { before.or(stated) } else { stated };
            if let Some(time) = time {
                query += &format!("&{name}={time}");
            }
        }
        Ok(query)
    }

    /// The same view at another address.
    fn at(&self, path: &str) -> String {
        let all = [
            ("vm", &self.vm),
            ("device", &self.device),
            ("kind", &self.kind),
            ("who", &self.who),
            ("text", &self.text),
            ("since", &self.since),
            ("until", &self.until),
        ];
        let set = all.into_iter().filter(|(_, text)| !text.is_empty());
        let pairs: Vec<String> = set.map(|(name, text)| format!("{name}={}", part(text))).collect();
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }

    fn matches(&self, row: &EventRow) -> bool {
        let has = |of: &str, text: &str| of.to_lowercase().contains(&text.trim().to_lowercase());
        let is_by = self.who.trim().is_empty() || has(&row.who, &self.who);
        is_by && (has(&row.text, &self.text) || has(&row.subject, &self.text))
    }
}

/// Reads a moment: a length of time before now, or a date with or without the time of day in UTC; `None` for no text.
fn read_moment(name: &str, text: &str, now: u64) -> Result<Option<u64>, Failure> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || {
        Failure::invalid(format!(
            "{name} is \"{text}\"; write for example 2h, 30m, 2026-11-30 or 2026-11-30 08:00 (UTC)."
        ))
    };
    if let Ok(ago) = text.parse::<jiff::Span>() {
        let length = ago.total((jiff::Unit::Second, jiff::SpanRelativeTo::days_are_24_hours())).map_err(|_| wrong())?;
        return Ok(Some(now.saturating_sub(length.abs() as u64)));
    }
    let full = text.parse::<jiff::Timestamp>().ok();
    let civil = || jiff::tz::TimeZone::UTC.to_timestamp(text.parse().ok()?).ok();
    let at = full.or_else(civil).ok_or_else(wrong)?;
    u64::try_from(at.as_second()).map(Some).map_err(|_| wrong())
}

/// The events of a view, newest first, and whether there are more. It reads until there are more than `most`.
async fn ask(shared: &Shared, view: &View, most: usize) -> Result<(Vec<EventRow>, bool), Failure> {
    view.check()?;
    let (now, mut before) = (now(), None);
    let (mut read, mut rows): (Vec<Event>, Vec<EventRow>) = (Vec::new(), Vec::new());
    loop {
        let Events { events, more, .. } = shared.daemon.get(view.query(now, before)?).await?;
        let new = unknown(&read, events);
        rows.extend(new.iter().map(EventRow::of).filter(|row| view.matches(row)));
        let is_end = !more || new.is_empty();
        read.extend(new);
        if is_end || rows.len() > most || read.len() >= READ_MAX {
            return Ok((rows, more));
        }
        // Others of the same second may be older.
        before = read.last().map(|oldest| oldest.time + 1);
    }
}

/// The events, which are the oldest first, that are not read yet, newest first.
fn unknown(read: &[Event], events: Vec<Event>) -> Vec<Event> {
    let oldest = read.last().map_or(u64::MAX, |oldest| oldest.time);
    let last: Vec<&Event> = read.iter().rev().take_while(|known| known.time <= oldest.saturating_add(1)).collect();
    events.into_iter().rev().filter(|event| !last.contains(&event)).collect()
}

async fn events(State(shared): State<Shared>, view: Result<Query<View>, QueryRejection>) -> Shown {
    let Query(view) = view?;
    let overrides = async { shared.daemon.list::<Override>("/v1/overrides?").await.map_err(Failure::from) };
    let ((mut rows, is_more), overrides) = tokio::try_join!(ask(&shared, &view, SHOWN_MAX), overrides)?;
    let is_cut = is_more || rows.len() > SHOWN_MAX;
    rows.truncate(SHOWN_MAX);
    let kind = |name: &'static str, text: String| (name, text, view.kind == name);
    let all = [kind("change", "all changes".to_owned())];
    let kinds = all.into_iter().chain(EventKind::ALL.iter().map(|one| kind(one.name(), kind_text(*one)))).collect();
    let frame = Frame { nav: "/events", here: view.at("/events"), ..Frame::titled("Events and changes") };
    show(&EventsPage {
        frame,
        kinds,
        rows: rows.into_iter().map(|row| row.with_undo(&overrides)).collect(),
        is_cut,
        changes: overrides.iter().map(change).collect(),
        csv: view.at("/events.csv"),
        view,
    })
}

fn change(one: &Override) -> ChangeRow {
    ChangeRow {
        name: one.name.clone(),
        href: page_of(&one.name),
        value: plain(&one.value),
        file: one.file_in_words.clone(),
        at: one.at.clone(),
        until: until_in_words(&one.until),
        reason: one.reason.clone().unwrap_or_default(),
        state: match (one.set_aside, one.overdue) {
            (true, _) => "not in force: the host file does not allow it",
            (_, true) => "its time is over, and it is kept",
            _ => "in force",
        },
        undo: undo_of(one),
    }
}

/// The page that undoes a change; `None` for one in a drop-in, and for one whose time is over.
pub(super) fn undo_of(one: &Override) -> Option<String> {
    (!one.is_in_drop_in() && !one.overdue).then(|| format!("/undo?name={}", part(&one.name)))
}

async fn csv(State(shared): State<Shared>, view: Result<Query<View>, QueryRejection>) -> Result<Response, Failure> {
    let Query(view) = view?;
    let (rows, is_cut) = ask(&shared, &view, usize::MAX).await?;
    let mut text = "time,kind,subject,who,before,after,reason,text\r\n".to_owned();
    for row in &rows {
        let cells = [&row.iso, &row.kind, &row.subject, &row.who, &row.before, &row.after, &row.reason, &row.text];
        let line: Vec<String> = cells.iter().map(|cell| csv_cell(cell)).collect();
        text += &(line.join(",") + "\r\n");
    }
    if is_cut {
        text += ",,,,,,,There are older events: state an end (until) to get them\r\n";
    }
    let file = "attachment; filename=\"sluice-events.csv\"";
    Ok(([(CONTENT_TYPE, "text/csv; charset=utf-8"), (CONTENT_DISPOSITION, file)], text).into_response())
}

/// A cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe.
fn csv_cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = format!("{}{text}", if is_formula { "'" } else { "" });
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::event::Change;

    #[test]
    fn moments_are_lengths_before_now_or_dates() {
        let read = |text: &str| read_moment("since", text, 1_700_000_000).ok();
        assert_eq!(read("2h"), Some(Some(1_700_000_000 - 7200)));
        assert_eq!(read("1 day"), Some(Some(1_700_000_000 - 86_400)));
        assert_eq!(read("2023-11-14 22:13:20"), Some(Some(1_700_000_000)));
        assert_eq!(read("2023-11-14T22:13:20Z"), Some(Some(1_700_000_000)));
        assert_eq!(read("2023-11-14"), Some(Some(1_699_920_000)));
        assert_eq!((read(""), read("yesterday"), read("1969-01-01")), (Some(None), None, None));
    }

    #[test]
    fn only_changes_that_a_reset_takes_back_have_an_undo() {
        let change = |until: &str, overdue| Override {
            name: "a/limit".to_owned(),
            until: until.to_owned(),
            overdue,
            ..Override::default()
        };
        assert_eq!(undo_of(&change("reset", false)).as_deref(), Some("/undo?name=a%2Flimit"));
        assert_eq!(undo_of(&change("reload: it is in a drop-in", false)), None);
        assert_eq!(undo_of(&change("2026-11-30T08:00:00Z", true)), None);
    }

    #[test]
    fn the_undo_of_an_event_is_that_of_its_own_change() {
        let made = |name: &str| Override {
            name: name.to_owned(),
            at: "1970-01-01T00:16:40Z".to_owned(),
            until: "reset".to_owned(),
            ..Override::default()
        };
        let undo = |kind, target: &str, undo: &str| {
            let change = Change { target: target.to_owned(), undo: vec![undo.to_owned()], ..Change::default() };
            let event = Event { time: 1000, kind, change: Some(change), ..Event::default() };
            let overrides = ["a/limit", "a/weight", "policy/gold.limit"].map(made);
            EventRow::of(&event).with_undo(&overrides).undo
        };
        let changed = |target: &str, command: &str| undo(EventKind::Changed, target, command).unwrap_or_default();
        assert_eq!(changed("a", "sluice reset a/weight"), "/undo?name=a%2Fweight");
        assert_eq!(changed("a", "sluice set a 'limit=5 iops' --permanent"), "/undo?name=a%2Flimit");
        assert_eq!(changed("a", "sluice reset a/limit a/weight"), "/events#changes");
        assert_eq!(changed("policy/gold", "sluice reset policy/gold.limit"), "/undo?name=policy%2Fgold.limit");
        assert_eq!(changed("b", "sluice reset b/limit"), "");
        assert_eq!(undo(EventKind::Expired, "", "sluice reset a/weight"), None);
    }

    #[test]
    fn names_lead_to_vms_and_to_the_holders_of_policies() {
        let pages = ["a", "a/v/size", "policy/gold.limit", "policy/gold"].map(page_of);
        assert_eq!(pages, ["/vms/a", "/vms/a", "/vms?policy=gold", "/vms?policy=gold"]);
    }

    #[test]
    fn events_that_were_read_are_left_out() {
        let event = |id, time| Event { id: Some(id), time, ..Event::default() };
        let read = [event(4, 9), event(3, 8)];
        let new = unknown(&read, vec![event(1, 7), event(2, 8), event(3, 8), event(4, 9)]);
        assert_eq!(new, [event(2, 8), event(1, 7)]);
    }

    #[test]
    fn csv_has_no_formulas_and_quotes_what_needs_it() {
        assert_eq!(csv_cell("=1+1"), "'=1+1");
        assert_eq!(csv_cell("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(csv_cell("plain"), "plain");
    }

    #[test]
    fn a_view_is_checked_and_becomes_a_question() {
        let view =
            View { vm: " db 1 ".to_owned(), kind: "change".to_owned(), since: "1h".to_owned(), ..View::default() };
        assert_eq!(view.query(10_000, None).unwrap(), "/v1/events?limit=1000&vm=db%201&kind=change&since=6400");
        assert!(view.query(10_000, Some(9000)).unwrap().ends_with("&since=6400&until=9000"));
        assert_eq!(view.at("/events.csv"), "/events.csv?vm=%20db%201%20&kind=change&since=1h");
        assert!(view.check().is_ok() && View { kind: "x".to_owned(), ..view.clone() }.check().is_err());
        assert!(View { text: "x".repeat(201), ..view }.check().is_err());
    }
}
