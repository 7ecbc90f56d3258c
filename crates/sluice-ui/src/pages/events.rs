//! Events and changes: filtered, as a page and as CSV, and the changes that are in force, each with its undo.

use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use sluice_api::change::Override;
use sluice_api::event::{Event, EventKind, Events};

use super::overview::plain;
use super::{Frame, Page, Shown, show};
use crate::failure::Failure;
use crate::sentence::Part;
use crate::server::Shared;
use crate::text::{filters, moment, now, part};

pub(super) const PAGE: Page = Page { nav: Some(("Events and changes", "/events")), routes };

/// Number of events that are asked for, and of those that a page shows.
const ASKED_MAX: usize = 1000;
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
    /// Whether it is in a drop-in of the host file.
    is_in_drop_in: bool,
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
        let vm = event.vm.as_deref().or_else(|| {
            target.filter(|target| !target.starts_with("device ") && !target.starts_with("policy/"))?.split('/').next()
        });
        let device = Some(event.device.as_str()).filter(|device| !device.is_empty());
        let href = match (vm, device) {
            (Some(vm), _) => Some(format!("/vms/{}", part(vm))),
            (None, Some(device)) => Some(format!("/devices/{}", part(device))),
            _ => None,
        };
        let (change, subject, text) =
            (event.change.clone().unwrap_or_default(), vm.or(device).unwrap_or_default().to_owned(), event.in_words());
        EventRow {
            parts: linked(&text, &subject, href.as_ref()),
            time: moment(event.time),
            iso: timestamp.map_or_else(String::new, |time| time.to_string()),
            kind: kind_text(event.kind),
            subject,
            href,
            text,
            undo: None,
            who: change.who,
            before: change.before,
            after: change.after,
            reason: change.reason.unwrap_or_default(),
        }
    }

    /// The same with its undo, if it made one of the changes that are in force.
    fn with_undo(self, overrides: &[Override]) -> EventRow {
        let made = |one: &&Override| one.at.get(..19).is_some_and(|at| at.replace('T', " ") == self.time);
        let own = overrides.iter().filter(made).find(|one| one.name.split('/').next() == Some(&self.subject));
        let undo = own.and_then(undo_of);
        EventRow { undo, ..self }
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

    /// The query of the daemon.
    fn query(&self, now: u64) -> Result<String, Failure> {
        let mut query = format!("/v1/events?limit={ASKED_MAX}");
        let named = [("vm", &self.vm), ("device", &self.device), ("kind", &self.kind)];
        for (name, text) in named.into_iter().filter(|(_, text)| !text.trim().is_empty()) {
            query += &format!("&{name}={}", part(text.trim()));
        }
        for (name, text) in [("since", &self.since), ("until", &self.until)] {
            if let Some(time) = read_moment(name, text, now)? {
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

/// The events of a view, newest first, and whether there are more.
async fn ask(shared: &Shared, view: &View) -> Result<(Vec<EventRow>, bool), Failure> {
    view.check()?;
    let events: Events = shared.daemon.get(view.query(now())?).await?;
    let rows = events.events.iter().rev().map(EventRow::of).filter(|row| view.matches(row)).collect();
    Ok((rows, events.more))
}

async fn events(State(shared): State<Shared>, view: Result<Query<View>, QueryRejection>) -> Shown {
    let Query(view) = view?;
    let overrides = async { shared.daemon.list::<Override>("/v1/overrides?").await.map_err(Failure::from) };
    let ((mut rows, is_more), overrides) = tokio::try_join!(ask(&shared, &view), overrides)?;
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
    let vm = one.name.split('/').next().unwrap_or_default();
    ChangeRow {
        name: one.name.clone(),
        href: format!("/vms/{}", part(vm)),
        value: plain(&one.value),
        file: one.file_in_words.clone(),
        at: one.at.clone(),
        until: one.until.clone(),
        reason: one.reason.clone().unwrap_or_default(),
        state: match (one.set_aside, one.overdue) {
            (true, _) => "not in force: the host file does not allow it",
            (_, true) => "its time is over, and it is kept",
            _ => "in force",
        },
        undo: undo_of(one),
        is_in_drop_in: is_in_drop_in(one),
    }
}

/// Whether a change is in a drop-in of the host file, which a reset does not change.
fn is_in_drop_in(one: &Override) -> bool {
    one.until.starts_with("reload")
}

/// The page that undoes a change; `None` for one in a drop-in, and for one whose time is over.
pub(super) fn undo_of(one: &Override) -> Option<String> {
    (!is_in_drop_in(one) && !one.overdue).then(|| format!("/undo?name={}", part(&one.name)))
}

async fn csv(State(shared): State<Shared>, view: Result<Query<View>, QueryRejection>) -> Result<Response, Failure> {
    let Query(view) = view?;
    let (rows, _) = ask(&shared, &view).await?;
    let mut text = "time,kind,subject,who,before,after,reason,text\r\n".to_owned();
    for row in &rows {
        let cells = [&row.iso, &row.kind, &row.subject, &row.who, &row.before, &row.after, &row.reason, &row.text];
        let line: Vec<String> = cells.iter().map(|cell| csv_cell(cell)).collect();
        text += &(line.join(",") + "\r\n");
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
    fn csv_has_no_formulas_and_quotes_what_needs_it() {
        assert_eq!(csv_cell("=1+1"), "'=1+1");
        assert_eq!(csv_cell("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(csv_cell("plain"), "plain");
    }

    #[test]
    fn a_view_is_checked_and_becomes_a_question() {
        let view =
            View { vm: " db 1 ".to_owned(), kind: "change".to_owned(), since: "1h".to_owned(), ..View::default() };
        assert_eq!(view.query(10_000).unwrap(), "/v1/events?limit=1000&vm=db%201&kind=change&since=6400");
        assert_eq!(view.at("/events.csv"), "/events.csv?vm=%20db%201%20&kind=change&since=1h");
        assert!(view.check().is_ok() && View { kind: "x".to_owned(), ..view.clone() }.check().is_err());
        assert!(View { text: "x".repeat(201), ..view }.check().is_err());
    }
}
