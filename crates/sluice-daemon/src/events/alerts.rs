//! Tells others of events: a program, or a URL. Each alert is sent by a thread of its own, at most one of a class at a time, and no
//! more often than the host file says. So a recipient that hangs delays no class but its own, and there are as many threads as
//! classes at most, and as many again for a test ([`Outbox::test`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::json;
use sluice_api::VERSION;
use sluice_api::event::{Event, EventKind};
use sluice_api::list::{TestAlert, TestAlerts};
use sluice_api::status::FailedAlert;
use sluice_config::{ALERT_CLASSES, Alert, AlertTo};
use tokio::sync::oneshot;

use super::deliver;
use crate::control::{Code, Reply};
use crate::state::time::Time;

/// The class for all events whose class has no table.
const ALL: &str = "all";

/// An alert to be sent.
struct Outgoing {
    class: String,
    to: AlertTo,
    body: String,
    outbox: Outbox,
    /// Its class is busy until this is dropped.
    _busy: Arc<()>,
}

/// What became of the last alert to each recipient. All clones are one.
#[derive(Debug, Clone, Default)]
pub struct Outbox(Arc<Sent>);

#[derive(Debug, Default)]
struct Sent {
    /// The last alerts to those recipients that have not got it.
    failed: Mutex<Vec<(AlertTo, FailedAlert)>>,
    /// Shared with a test that runs.
    testing: Arc<()>,
}

/// Alerts of one class so far.
#[derive(Debug, Default)]
struct Class {
    last: Option<Time>,
    /// Events that were not told of since then.
    suppressed: u64,
    /// Shared with an alert that is being sent.
    busy: Arc<()>,
}

/// The recipients, with counts of their alerts.
pub(super) struct Alerts {
    wanted: BTreeMap<String, Alert>,
    classes: BTreeMap<String, Class>,
    outbox: Outbox,
    /// Starts to send an alert.
    send: fn(Outgoing) -> std::io::Result<()>,
}

impl Alerts {
    pub(super) fn new(outbox: Outbox) -> Alerts {
        Alerts { wanted: BTreeMap::new(), classes: BTreeMap::new(), outbox, send: start }
    }

    /// Replaces the recipients, by class.
    pub(super) fn set(&mut self, wanted: BTreeMap<String, Alert>) {
        self.outbox.failed().retain(|(to, _)| wanted.values().any(|alert| alert.to == *to));
        self.wanted = wanted;
    }

    /// Tells of an event, unless its class was told of too recently, or an alert of it is still being sent.
    pub(super) fn tell(&mut self, event: &Event, now: Time) {
        let name = event.kind.name();
        let Some(alert) = self.wanted.get(name).or_else(|| self.wanted.get(ALL)) else { return };
        let class = self.classes.entry(alert.class.clone()).or_default();
        // A clock that was set back does not silence alerts.
        let is_due = class.last.is_none_or(|last| now < last || now.from(last) >= alert.every);
        if !is_due || Arc::strong_count(&class.busy) > 1 {
            class.suppressed += 1;
            return;
        }
        let told = Event { text: event.in_words(), suppressed: Some(class.suppressed), ..event.clone() };
        let body = serde_json::to_string(&told).expect("its keys are strings");
        let (to, outbox, _busy) = (alert.to.clone(), self.outbox.clone(), Arc::clone(&class.busy));
        let outgoing = Outgoing { class: alert.class.clone(), to, body, outbox, _busy };
        match (self.send)(outgoing) {
            Ok(()) => (class.last, class.suppressed) = (Some(now), 0),
            Err(error) => {
                class.suppressed += 1;
                tracing::warn!(kind = name, %error, "Alert delayed until the next event of its class: no thread can be started");
            }
        }
    }
}

impl Outbox {
    /// The last alert that failed, of those whose recipient has not got a later one.
    pub fn last_failed(&self) -> Option<FailedAlert> {
        self.failed().iter().map(|(_, failed)| failed).max_by_key(|failed| failed.time).cloned()
    }

    fn failed(&self) -> std::sync::MutexGuard<'_, Vec<(AlertTo, FailedAlert)>> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an alert, notes whether it has arrived, and returns the error if it has not.
    fn send(&self, class: &str, to: &AlertTo, body: &str) -> Result<(), String> {
        let sent = deliver::deliver(to, body);
        let mut failed = self.failed();
        failed.retain(|(other, _)| other != to);
        if let Err(error) = &sent {
            let (class, recipient) = (class.to_owned(), to.to_string());
            tracing::error!(class, to = recipient, error, "Alert failed");
            failed.push((to.clone(), FailedAlert { class, recipient, time: Time::of_clock().0, error: error.clone() }));
        }
        sent
    }

    /// Sends a test to the recipient of a class of events, or to those of all tables, and replies when each has got it or failed.
    pub fn test(&self, tables: &[Alert], class: Option<&str>, reply: oneshot::Sender<Reply>) {
        let chosen = match chosen(tables, class) {
            Ok(chosen) => chosen,
            Err(refused) => return drop(reply.send(refused)),
        };
        if Arc::strong_count(&self.0.testing) > 1 {
            let error = "A test of alerts runs; repeat the command when it has ended, after 10 s at most";
            return drop(reply.send(Reply::failed(Code::Refused, error)));
        }
        let (outbox, testing) = (self.clone(), Arc::clone(&self.0.testing));
        let started = thread::Builder::new().name("alert-test".to_owned()).spawn(move || {
            let _testing = testing;
            let _ = reply.send(Reply::with(&TestAlerts { version: VERSION, alerts: outbox.send_all(&chosen) }));
        });
        // The client learns it from the end of its connection.
        if let Err(error) = started {
            tracing::warn!(%error, "Test of alerts not started: no thread can be started");
        }
    }

    /// Sends tests to all at the same time.
    fn send_all(&self, chosen: &[(Alert, EventKind)]) -> Vec<TestAlert> {
        let send = |(alert, kind): &(Alert, EventKind)| {
            let sent = self.send(&alert.class, &alert.to, &test_body(*kind));
            TestAlert { class: alert.class.clone(), recipient: alert.to.to_string(), error: sent.err() }
        };
        thread::scope(|scope| {
            let sent: Vec<_> = chosen.iter().map(|one| scope.spawn(move || send(one))).collect();
            sent.into_iter().filter_map(|sent| sent.join().ok()).collect()
        })
    }
}

/// The tables whose recipients get a test, each with a kind of events of which they would be told.
fn chosen(tables: &[Alert], class: Option<&str>) -> Result<Vec<(Alert, EventKind)>, Reply> {
    let table = |class: &str| tables.iter().find(|alert| alert.class == class);
    let of = |alert: &Alert| {
        let is_told =
            |kind: &&EventKind| alert.class == kind.name() || alert.class == ALL && table(kind.name()).is_none();
        (alert.clone(), EventKind::ALL.iter().find(is_told).copied().unwrap_or_default())
    };
    match class {
        Some(class) if !ALERT_CLASSES.contains(&class) => {
            let error = format!("There is no class '{class}' of events; classes are {}", ALERT_CLASSES.join(", "));
            Err(Reply::failed(Code::NotFound, error))
        }
        Some(class) => match table(class) {
            Some(alert) => Ok(vec![of(alert)]),
            None => {
                table(ALL).map(|alert| vec![(alert.clone(), EventKind::named(class))]).ok_or_else(|| no_table(class))
            }
        },
        None if tables.is_empty() => Err(no_table(ALL)),
        None => Ok(tables.iter().map(of).collect()),
    }
}

fn no_table(class: &str) -> Reply {
    let error = format!(
        "No alert is sent for such events: the host file has no table [alert.{class}]; add it, with command = \
         \"/usr/local/bin/alert\" or webhook = \"https://alerts.example.org/hook\", and run `sluice apply FILE`"
    );
    Reply::failed(Code::NotFound, error)
}

/// What a real alert would say, with a key and a text by which people and programs tell it from one.
fn test_body(kind: EventKind) -> String {
    let text = "TEST of an alert by `sluice alert --test`: nothing has happened".to_owned();
    let (time, device) = (Time::now().0, "test".to_owned());
    let event = Event { time, kind, device, text, suppressed: Some(0), ..Event::default() };
    let mut body = json!(event);
    body["test"] = true.into();
    body.to_string()
}

fn start(outgoing: Outgoing) -> std::io::Result<()> {
    let Outgoing { class, to, body, outbox, _busy } = outgoing;
    thread::Builder::new()
        .name("alert".to_owned())
        .spawn(move || {
            let _busy = _busy;
            let _ = outbox.send(&class, &to, &body);
        })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use sluice_api::cause::Cause;
    use sluice_api::event::{EventKind, Unit};

    use super::super::deliver::TIMEOUT;
    use super::*;

    fn event(kind: EventKind) -> Event {
        let (cause, unit) = (Cause::Device, Unit::Requests);
        Event { time: 1, kind, device: "disk".to_owned(), cause, wanted: 1.0, unit, ..Event::default() }
    }

    thread_local! {
        static SENT: RefCell<Vec<Outgoing>> = const { RefCell::new(Vec::new()) };
    }

    /// Alerts that are not sent, but kept until [`sent`] takes them.
    fn alerts(classes: &[&str]) -> Alerts {
        let alert = |class: &&str| {
            let to = AlertTo::Command(format!("/{class}").into());
            ((*class).to_owned(), Alert { class: (*class).to_owned(), to, every: Duration::from_secs(60) })
        };
        let wanted = classes.iter().map(alert).collect();
        let send = |outgoing| {
            SENT.with_borrow_mut(|sent| sent.push(outgoing));
            Ok(())
        };
        Alerts { wanted, classes: BTreeMap::new(), outbox: Outbox::default(), send }
    }

    /// The program that the oldest alert goes to, and its number of suppressed events. It is sent with this.
    fn sent() -> Option<(String, u64)> {
        let first = SENT.with_borrow_mut(|sent| (!sent.is_empty()).then(|| sent.remove(0)))?;
        let body: Event = serde_json::from_str(&first.body).unwrap();
        let AlertTo::Command(program) = &first.to else { panic!("a program") };
        Some((program.display().to_string(), body.suppressed.unwrap()))
    }

    #[test]
    fn each_class_is_told_once_a_minute_with_the_number_of_events_in_between() {
        let mut alerts = alerts(&["down", "all"]);
        let mut told = |kind, second| {
            alerts.tell(&event(kind), Time(second));
            sent()
        };
        assert_eq!(told(EventKind::Down, 0), Some(("/down".to_owned(), 0)));
        assert_eq!(told(EventKind::Stalled, 1), Some(("/all".to_owned(), 0)), "classes are counted apart");
        assert_eq!((told(EventKind::Down, 10), told(EventKind::Down, 59)), (None, None));
        assert_eq!(told(EventKind::Down, 60), Some(("/down".to_owned(), 2)));
        assert_eq!(told(EventKind::Down, 5), Some(("/down".to_owned(), 0)), "the clock was set back");
    }

    #[test]
    fn a_recipient_that_hung_delayed_the_alerts_of_other_classes() {
        let mut alerts = alerts(&["latency", "down"]);
        // The first one is not sent as long as nothing takes it.
        (0..100).for_each(|minute| alerts.tell(&event(EventKind::Latency), Time(60 * minute)));
        alerts.tell(&event(EventKind::Down), Time(6000));
        let waiting = SENT.with_borrow(|sent| sent.len());
        assert_eq!(waiting, 2, "one for each class");
        assert_eq!((sent(), sent()), (Some(("/latency".to_owned(), 0)), Some(("/down".to_owned(), 0))));
        alerts.tell(&event(EventKind::Latency), Time(6001));
        assert_eq!(sent(), Some(("/latency".to_owned(), 99)), "it is due, and its recipient responds again");
    }

    #[test]
    fn a_failed_alert_is_known_until_one_to_the_same_recipient_arrives() {
        let outbox = Outbox::default();
        let (to, other) = (AlertTo::Command("/does/not/exist".into()), AlertTo::Command("/bin/true".into()));
        assert!(outbox.send("down", &to, "x").is_err() && outbox.send("all", &other, "x").is_ok());
        let failed = outbox.last_failed().unwrap();
        assert_eq!((failed.class.as_str(), failed.recipient.as_str()), ("down", "/does/not/exist"));
        let table =
            |to: &AlertTo| ("all".to_owned(), Alert { class: "all".to_owned(), to: to.clone(), every: TIMEOUT });
        let mut alerts = Alerts { outbox: outbox.clone(), ..alerts(&[]) };
        alerts.set([table(&to)].into());
        assert!(outbox.last_failed().is_some());
        alerts.set([table(&other)].into());
        assert_eq!(outbox.last_failed(), None, "the host file does not name it any more");
        let webhook = AlertTo::Webhook("http://127.0.0.1:1/s3cret".to_owned());
        let error = outbox.send("all", &webhook, "x").unwrap_err();
        let failed = outbox.last_failed().unwrap();
        assert_eq!(failed.recipient, "http://127.0.0.1:1/[left-out]");
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn a_test_goes_where_an_event_of_the_class_would_go() {
        let table = |class: &str| Alert { class: class.to_owned(), to: AlertTo::Command("/".into()), every: TIMEOUT };
        let told = |tables: &[&str], class: Option<&str>| {
            let tables: Vec<Alert> = tables.iter().map(|class| table(class)).collect();
            let chosen = chosen(&tables, class).map_err(|reply| reply.error.unwrap())?;
            Ok(chosen.into_iter().map(|(alert, kind)| format!("{} {}", alert.class, kind.name())).collect::<Vec<_>>())
        };
        assert_eq!(
            told(&["all", "reservation"], None),
            Ok(vec!["all latency".into(), "reservation reservation".into()])
        );
        assert_eq!(told(&["all", "reservation"], Some("down")), Ok(vec!["all down".into()]));
        assert_eq!(told(&["latency"], Some("latency")), Ok(vec!["latency latency".into()]));
        assert!(told(&["latency"], Some("down")).is_err_and(|error: String| error.contains("no table [alert.down]")));
        assert!(told(&["latency"], Some("dwn")).is_err_and(|error: String| error.contains("There is no class 'dwn'")));
        assert!(told(&[], None).is_err_and(|error: String| error.contains("no table [alert.all]")));
    }

    #[test]
    fn each_kind_of_events_is_a_change_or_has_a_class_of_alerts() {
        for kind in EventKind::ALL {
            let is_change = EventKind::CHANGES.contains(&kind);
            assert_ne!(is_change, ALERT_CLASSES.contains(&kind.name()), "{}", kind.name());
        }
        assert_eq!(EventKind::ALL.len() + 1, EventKind::CHANGES.len() + ALERT_CLASSES.len(), "and `all`");
    }

    #[test]
    fn without_a_table_nobody_is_told() {
        let mut alerts = alerts(&["latency"]);
        alerts.tell(&event(EventKind::Down), Time(0));
        assert_eq!(sent(), None);
    }
}
