//! The record: events of promises and devices, and the past of VMs. It is kept over restarts, and events are reported to the recipients that
//! the host file names.
//!
//! The monitor reports events and minutes. A thread of its own owns the [`database`] with both ([`store`], [`history`]) and answers
//! questions about them; another one tells others ([`alerts`]). Nothing that serves VMs waits for either: both have bounded queues, and what
//! finds no room is counted or logged. While the daemon does not run, commands read what it has left ([`offline`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Instant;

use rusqlite::Connection;
use sluice_api::VERSION;
use sluice_api::event;
use sluice_api::event::{Event, Phase};
use sluice_api::list::{self, Step};
use sluice_api::object::ObjectId;
use sluice_api::status::RecordTrouble;
use sluice_config::Alert;
use sluice_observe::interval::Minute;
use tokio::sync::oneshot;

use self::alerts::{Alerts, Outbox};
pub use self::earlier::Earlier;
use self::history::Keep;
use self::names::Names;
use self::store::{Filter, Store};
use self::trouble::Trouble;
use crate::control::socket::Asked;
use crate::control::{Code, Reply, Request};
use crate::state::time::Time;

mod alerts;
mod cut_off;
mod database;
pub(crate) mod deliver;
mod earlier;
pub mod history;
mod names;
pub mod offline;
mod store;
mod trouble;

/// Maximum number of queued events and questions.
const QUEUE_MAX: usize = 4096;
/// Maximum number of minutes that wait for the disk, some 1 MB each on a large host.
const MINUTES_MAX: usize = 60;
/// Seconds between two notes that what has begun holds. After a kill at most this time is missing, and that to the last sample.
const BEAT: u64 = 5;
const DAY: u64 = 24 * 3600;
/// Events in one reply, if the question does not say how many.
const DEFAULT_LIMIT: usize = 1000;
/// Maximum number of events in one reply, some 10 MB: replies of all clients are in memory at the same time.
pub const LIMIT_MAX: usize = 10_000;

enum Message {
    Happened(Box<Event>),
    Query(Asked),
    Alerts(Vec<Alert>),
    /// Number of seconds by which the host's clock was set.
    ClockSet(i64),
    /// A heartbeat: events that have begun still hold at this time, in seconds since 1970.
    Beat(u64),
    /// Volumes and NICs that have a client.
    Clients(BTreeSet<ObjectId>),
    /// Minutes of the past that are over.
    Minutes(Minutes),
    /// A question about the past, with what is known of its seconds, or why there are none.
    History(Asked, Result<list::History, Reply>),
    End(End),
}

/// Minutes of the past, and how long they are kept.
struct Minutes {
    minutes: Vec<Minute>,
    keep: Keep,
    /// Is counted until they are written.
    _queued: Arc<()>,
}

/// The end of the daemon.
struct End {
    /// Ends of the events that hold, as of the last sample.
    events: Vec<Event>,
    /// Time of the last sample, in seconds since 1970.
    time: u64,
    /// What has stopped the daemon; `None` if it has failed.
    why: Option<String>,
    /// Is dropped when the database is closed.
    _closed: oneshot::Sender<()>,
}

/// Writes the past as the thread does, and waits for it. It is for measurements.
pub struct Writer(Store);

impl Writer {
    /// Opens the database of a folder.
    #[must_use]
    pub fn open(folder: PathBuf) -> Writer {
        Writer(Store::open(Some(folder)))
    }

    /// Writes minutes that are over.
    pub fn keep(&mut self, minutes: &[Minute], keep: &Keep) {
        self.0.keep(minutes, keep);
    }
}

/// Keeps events, from any thread.
#[derive(Clone)]
pub struct Reporter {
    messages: SyncSender<Message>,
    /// Number of events that found no room.
    lost: Arc<AtomicU64>,
}

impl Reporter {
    /// Keeps an event. It does not wait; an event that finds no room is counted and is in the log alone.
    pub fn happened(&self, event: Event) {
        if let Err(TrySendError::Full(_)) = self.messages.try_send(Message::Happened(Box::new(event))) {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(
                lost,
                "Event is only in the log, not in the database: the disk of the state directory is too slow"
            );
        }
    }
}

/// The handle of the thread that keeps events. It ends when the handle and all of its reporters are dropped.
pub struct Events {
    messages: SyncSender<Message>,
    reporter: Reporter,
    /// What earlier runs have left, once the database is open.
    earlier: Receiver<Earlier>,
    alerts: Vec<Alert>,
    /// What became of alerts, and their test.
    pub outbox: Outbox,
    trouble: Trouble,
    /// Seconds by which the host's clock was set, of which the thread does not know yet.
    set_by: i64,
    /// Time since the last heartbeat, in samples of a second.
    since_beat: u64,
    /// Shared with the minutes that are queued.
    queued: Arc<()>,
    /// Whether minutes were lost since the last one that found room.
    loses_minutes: bool,
}

impl Events {
    /// Starts the thread. Without a state directory, events are kept until the daemon ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(folder: Option<PathBuf>) -> std::io::Result<Events> {
        let (messages, inbox) = sync_channel(QUEUE_MAX);
        let (earlier, is_known) = sync_channel(1);
        let outbox = Outbox::default();
        let alerts = Alerts::new(outbox.clone());
        let trouble = Trouble::default();
        let shared = trouble.clone();
        let run = move || run(folder, alerts, &shared, &inbox, &earlier);
        thread::Builder::new().name("events".to_owned()).spawn(run)?;
        let reporter = Reporter { messages: messages.clone(), lost: Arc::default() };
        Ok(Events {
            messages,
            reporter,
            earlier: is_known,
            alerts: Vec::new(),
            outbox,
            trouble,
            set_by: 0,
            since_beat: 0,
            queued: Arc::new(()),
            loses_minutes: false,
        })
    }

    /// Returns a handle with which other threads keep events.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Logs an event, and keeps it as [`Reporter::happened`] does.
    pub fn happened(&self, event: Event) {
        log(&event);
        self.reporter.happened(event);
    }

    /// What earlier runs have left: once, when it is known.
    pub fn earlier(&self) -> Option<Earlier> {
        self.earlier.try_recv().ok()
    }

    /// Keeps what has a client, for the next start. Returns whether there was room.
    pub fn keep_clients(&self, clients: BTreeSet<ObjectId>) -> bool {
        self.messages.try_send(Message::Clients(clients)).is_ok()
    }

    /// Corrects the times of all events since the start of the daemon, after the host's clock was set by `seconds`.
    pub fn clock_was_set(&mut self, seconds: i64) {
        if seconds != 0 {
            tracing::warn!(
                seconds,
                "Clock of the host was set: times of earlier events since the daemon's start are corrected"
            );
        }
        self.set_by += seconds;
        if self.set_by != 0 && self.messages.try_send(Message::ClockSet(self.set_by)).is_ok() {
            self.set_by = 0;
        }
    }

    /// Notes that a sample was taken at `time`, in seconds since 1970, and that what has begun still holds.
    pub fn sampled(&mut self, time: u64) {
        self.since_beat += 1;
        self.trouble.sent(time);
        if self.since_beat >= BEAT && self.messages.try_send(Message::Beat(time)).is_ok() {
            self.since_beat = 0;
        }
    }

    /// Returns why events and history are not kept.
    pub fn trouble(&self) -> Option<RecordTrouble> {
        self.trouble.get()
    }

    /// Keeps minutes of the past. It does not wait; those that find no room are lost.
    pub fn keep(&mut self, minutes: Vec<Minute>, keep: Keep) {
        if minutes.is_empty() {
            return;
        }
        let has_room = Arc::strong_count(&self.queued) <= MINUTES_MAX;
        let minutes = Minutes { minutes, keep, _queued: Arc::clone(&self.queued) };
        let is_lost = !has_room || self.messages.try_send(Message::Minutes(minutes)).is_err();
        if is_lost && !self.loses_minutes {
            tracing::warn!("History has a gap: the disk of the state directory is too slow");
        }
        self.loses_minutes = is_lost;
    }

    /// Answers a question about the past. `seconds` is what is known of its seconds, or why there are none.
    pub fn history(&self, asked: Asked, seconds: Result<list::History, Reply>) {
        if let Err(TrySendError::Full(Message::History(asked, _))) =
            self.messages.try_send(Message::History(asked, seconds))
        {
            refuse(asked);
        }
    }

    /// Adds the ends of the events that hold at the end of the daemon and that end itself, and closes the database. `closed` is dropped
    /// when that is done.
    pub fn end(self, events: Vec<Event>, (time, why): (u64, Option<String>), closed: oneshot::Sender<()>) {
        events.iter().for_each(log);
        let _ = self.messages.try_send(Message::End(End { events, time, why, _closed: closed }));
    }

    /// Replaces the recipients of events, if they have changed.
    pub fn set_alerts(&mut self, alerts: &[Alert]) {
        if self.alerts != alerts && self.messages.try_send(Message::Alerts(alerts.to_vec())).is_ok() {
            self.alerts = alerts.to_vec();
        }
    }

    /// Answers a question about events.
    pub fn answer(&self, asked: Asked) {
        if let Err(TrySendError::Full(Message::Query(asked))) = self.messages.try_send(Message::Query(asked)) {
            refuse(asked);
        }
    }
}

fn refuse(asked: Asked) {
    let _ = asked.reply.send(Reply::failed(Code::Refused, "Too many events are being written; repeat the command"));
}

fn log(event: &Event) {
    let (kind, cause, device) = (event.kind.name(), event.cause.name(), event.device.as_str());
    match &event.vm {
        Some(vm) => tracing::warn!(vm, volume = event.volume, device, kind, cause, "{}", event.in_words()),
        None => tracing::warn!(device, kind, cause, "{}", event.in_words()),
    }
}

fn run(
    folder: Option<PathBuf>,
    mut alerts: Alerts,
    trouble: &Trouble,
    inbox: &Receiver<Message>,
    earlier: &SyncSender<Earlier>,
) {
    // A database takes room in the state directory: it is made with the first event or minute.
    let mut store = database::is_in(folder.as_deref()).then(|| Store::open(folder.clone()));
    let left = store.as_ref().map(|store| Earlier::of(store.connection(), Time::of_clock().0));
    let _ = earlier.send(left.and_then(Result::ok).unwrap_or_default());
    let mut names = Names::default();
    while let Ok(message) = inbox.recv() {
        match message {
            Message::Happened(mut event) => {
                if let Some(change) = &mut event.change
                    && let Some(uid) = change.login_uid.or(change.uid)
                {
                    change.who = names.of(uid, Instant::now());
                }
                store.get_or_insert_with(|| Store::open(folder.clone())).add(&event);
                // What users do is no alert.
                if event.phase != Phase::Happened {
                    alerts.tell(&event, Time::now());
                }
            }
            Message::Clients(clients) => store.iter_mut().for_each(|store| store.keep_clients(&clients)),
            Message::Query(asked) => {
                let reply = answer(store.as_ref().map(Store::connection), &asked.request);
                let _ = asked.reply.send(reply);
            }
            Message::ClockSet(seconds) => store.iter_mut().for_each(|store| store.clock_was_set(seconds)),
            Message::Minutes(Minutes { minutes, keep, _queued }) => {
                store.get_or_insert_with(|| Store::open(folder.clone())).keep(&minutes, &keep);
            }
            Message::History(asked, seconds) => {
                let reply = past(store.as_ref().map(Store::connection), &asked.request, seconds);
                let _ = asked.reply.send(reply);
            }
            Message::Beat(time) => {
                store.iter_mut().for_each(|store| store.beat(time));
                trouble.set(store.as_ref().and_then(Store::trouble));
                trouble.answered(time);
            }
            Message::End(End { events, time, why, _closed }) => {
                store.take().into_iter().for_each(|store| store.end(&events, time, why.clone()));
                return;
            }
            Message::Alerts(wanted) => {
                alerts.set(wanted.into_iter().map(|alert| (alert.class.clone(), alert)).collect::<BTreeMap<_, _>>());
            }
        }
    }
}

/// Adds minutes and quarters of an hour to what is known of the seconds.
fn past(database: Option<&Connection>, request: &Request, seconds: Result<list::History, Reply>) -> Reply {
    let Request::History { vm, volume, step, since, until } = request else {
        unreachable!("it gets no other requests")
    };
    let now = Time::of_clock().0;
    // Without a step it is asked by an older program.
    let since = since.unwrap_or_else(|| now.saturating_sub(if step.is_none() { DAY } else { u64::MAX }));
    let asked = history::Asked {
        vm,
        volume: volume.as_deref(),
        step: step.unwrap_or(Step::Minute),
        since,
        until: until.unwrap_or(u64::MAX),
    };
    let known = seconds.or_else(|reply| {
        let is_known = database.is_some_and(|database| history::is_known(database, &asked));
        let nothing = list::History { version: VERSION, vm: vm.clone(), volume: volume.clone(), history: Vec::new() };
        if is_known { Ok(nothing) } else { Err(reply) }
    });
    let mut known = match known {
        Ok(known) => known,
        Err(reply) => return reply,
    };
    if let Some(database) = database.filter(|_| asked.step != Step::Second) {
        match history::find(database, &asked) {
            Ok(found) => history::join(&mut known, found, asked.step),
            Err(error) => return Reply::failed(Code::Refused, format!("Cannot read the history: {error}")),
        }
    }
    Reply::with(&known)
}

/// `database` is `None` as long as there is nothing in it.
fn answer(database: Option<&Connection>, request: &Request) -> Reply {
    let Request::Events { since, until, after, vm, device, kind, limit } = request else {
        unreachable!("it gets no other requests")
    };
    if limit.is_some_and(|limit| limit > LIMIT_MAX) {
        return Reply::failed(Code::Invalid, format!("A reply has at most {LIMIT_MAX} events; ask for fewer"));
    }
    let Some(database) = database else {
        return Reply::with(&event::Events { version: VERSION, ..event::Events::default() });
    };
    let filter = Filter {
        since: *since,
        until: *until,
        after: *after,
        vm: vm.as_deref(),
        device: device.as_deref(),
        kind: kind.as_deref(),
        limit: limit.unwrap_or(DEFAULT_LIMIT),
    };
    match store::find(database, &filter) {
        Ok(events) => Reply::with(&events),
        Err(error) => Reply::failed(Code::Refused, format!("Cannot read the events: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_all_events_took_as_much_memory_as_they_have() {
        let question = |limit| {
            let (since, until, after) = (None, None, None);
            Request::Events { since, until, after, vm: None, device: None, kind: None, limit }
        };
        let refused = answer(None, &question(Some(LIMIT_MAX + 1)));
        assert_eq!((refused.ok, refused.code), (false, Some(Code::Invalid)));
        assert!(refused.error.unwrap().contains("at most 10000 events"));
        assert!(answer(None, &question(Some(LIMIT_MAX))).ok && answer(None, &question(None)).ok);
    }
}
