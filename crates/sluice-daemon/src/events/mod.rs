//! Events of promises and devices: kept over restarts, and reported to the recipients that the host file names.
//!
//! The monitor reports events. A thread of its own keeps them ([`store`]) and answers questions about them; another one tells
//! others ([`alerts`]). Nothing that serves VMs waits for either: both have bounded queues, and what finds no room is counted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use sluice_api::VERSION;
use sluice_api::event;
use sluice_api::event::Event;
use sluice_config::Alert;

use self::alerts::Alerts;
use self::store::{Filter, Store};
use crate::control::socket::Asked;
use crate::control::{Code, Reply, Request};
use crate::state::time::Time;

mod alerts;
mod store;

/// Maximum number of queued events and questions.
const QUEUE_MAX: usize = 4096;
/// Events in one reply, if the question does not say how many.
const DEFAULT_LIMIT: usize = 1000;
/// Maximum number of events in one reply, some 10 MB: replies of all clients are in memory at the same time.
pub const LIMIT_MAX: usize = 10_000;

enum Message {
    Happened(Event),
    Query(Asked),
    Alerts(Vec<Alert>),
    /// Number of seconds by which the host's clock was set.
    ClockSet(i64),
}

/// The handle of the thread that keeps events. It ends when the handle is dropped.
pub struct Events {
    messages: SyncSender<Message>,
    lost: u64,
    alerts: Vec<Alert>,
    /// Seconds by which the host's clock was set, of which the thread does not know yet.
    set_by: i64,
}

impl Events {
    /// Starts the thread. Without a state directory, events are kept until the daemon ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(folder: Option<PathBuf>) -> std::io::Result<Events> {
        let (messages, inbox) = sync_channel(QUEUE_MAX);
        let alerts = Alerts::new();
        thread::Builder::new().name("events".to_owned()).spawn(move || run(folder, alerts, &inbox))?;
        Ok(Events { messages, lost: 0, alerts: Vec::new(), set_by: 0 })
    }

    /// Keeps an event. It does not wait; an event that finds no room is counted and is in the log alone.
    pub fn happened(&mut self, event: Event) {
        log(&event);
        if let Err(TrySendError::Full(_)) = self.messages.try_send(Message::Happened(event)) {
            self.lost += 1;
            tracing::warn!(
                lost = self.lost,
                "Event is only in the log, not in the database: the disk of the state directory is too slow"
            );
        }
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

    /// Replaces the recipients of events, if they have changed.
    pub fn set_alerts(&mut self, alerts: &[Alert]) {
        if self.alerts != alerts && self.messages.try_send(Message::Alerts(alerts.to_vec())).is_ok() {
            self.alerts = alerts.to_vec();
        }
    }

    /// Answers a question about events.
    pub fn answer(&self, asked: Asked) {
        if let Err(TrySendError::Full(Message::Query(asked))) = self.messages.try_send(Message::Query(asked)) {
            let _ =
                asked.reply.send(Reply::failed(Code::Refused, "Too many events are being written; repeat the command"));
        }
    }
}

fn log(event: &Event) {
    let (kind, cause, device) = (event.kind.name(), event.cause.name(), event.device.as_str());
    match &event.vm {
        Some(vm) => tracing::warn!(vm, volume = event.volume, device, kind, cause, "{}", event.in_words()),
        None => tracing::warn!(device, kind, cause, "{}", event.in_words()),
    }
}

fn run(folder: Option<PathBuf>, mut alerts: Alerts, inbox: &Receiver<Message>) {
    // A database takes room in the state directory: it is made with the first event.
    let mut store = store::is_in(folder.as_deref()).then(|| Store::open(folder.clone()));
    while let Ok(message) = inbox.recv() {
        match message {
            Message::Happened(event) => {
                store.get_or_insert_with(|| Store::open(folder.clone())).add(&event);
                alerts.tell(&event, Time::now());
            }
            Message::Query(asked) => {
                let reply = answer(store.as_ref(), &asked.request);
                let _ = asked.reply.send(reply);
            }
            Message::ClockSet(seconds) => store.iter_mut().for_each(|store| store.clock_was_set(seconds)),
            Message::Alerts(wanted) => {
                alerts.set(wanted.into_iter().map(|alert| (alert.class.clone(), alert)).collect::<BTreeMap<_, _>>());
            }
        }
    }
}

/// `store` is `None` as long as there are no events.
fn answer(store: Option<&Store>, request: &Request) -> Reply {
    let Request::Events { since, after, vm, device, kind, limit } = request else {
        unreachable!("it gets no other requests")
    };
    if limit.is_some_and(|limit| limit > LIMIT_MAX) {
        return Reply::failed(Code::Invalid, format!("A reply has at most {LIMIT_MAX} events; ask for fewer"));
    }
    let Some(store) = store else {
        return Reply::with(&event::Events { version: VERSION, ..event::Events::default() });
    };
    let filter = Filter {
        since: *since,
        after: *after,
        vm: vm.as_deref(),
        device: device.as_deref(),
        kind: kind.as_deref(),
        limit: limit.unwrap_or(DEFAULT_LIMIT),
    };
    match store.find(&filter) {
        Ok(events) => Reply::with(&events),
        Err(error) => Reply::failed(Code::Refused, format!("Cannot read the events: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_all_events_took_as_much_memory_as_they_have() {
        let question = |limit| Request::Events { since: None, after: None, vm: None, device: None, kind: None, limit };
        let refused = answer(None, &question(Some(LIMIT_MAX + 1)));
        assert_eq!((refused.ok, refused.code), (false, Some(Code::Invalid)));
        assert!(refused.error.unwrap().contains("at most 10000 events"));
        assert!(answer(None, &question(Some(LIMIT_MAX))).ok && answer(None, &question(None)).ok);
    }
}
