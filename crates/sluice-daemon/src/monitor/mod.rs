//! The thread that observes: it takes a sample of all devices every second, and answers what is asked of them.
//!
//! Neither changes nor requests of VMs wait for it. What is served reaches it through a [`Board`], which the thread that makes
//! changes updates after each of them.
//!
//! ```text
//! [changer] --Board--> [monitor] --each second--> device threads
//!                         ^   |
//!  control socket --Query-'   '--> Observer (history, promises, causes) --> [events]
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use absent::{AbsenceEvents, At};
use clients::Clients;
use clock::{Clock, since_boot};
use sluice_api::event::{DaemonEnd, Event};
use sluice_api::object::ObjectId;
use sluice_api::status::{OverridesInForce, RefusedReload, Restart};
use sluice_config::Host;
use sluice_io::device::DeviceWatch;
use sluice_io::vhost_user::counts::Counts;
use sluice_observe::observer::Observer;
use sluice_observe::sample::Sample;
use space::{Space, Watched};
use tokio::sync::oneshot;

use crate::control::Request;
use crate::control::roles::Roles;
use crate::control::socket::Asked;
use crate::events::Events;
use crate::events::history::Keep;
use crate::jail;
use crate::metrics::{self, Load};
use crate::server::{Absent, Blocks};
use crate::state::time::Time;

mod absent;
mod answers;
mod clients;
mod clock;
mod devices;
mod policies;
mod samples;
pub mod space;

/// Interval between samples.
const EVERY: Duration = Duration::from_secs(1);
/// Interval between looks whether anything is served, at the start.
const STARTING: Duration = Duration::from_millis(20);
/// Maximum time for the devices to reply to a sample, if the last one found them silent.
const SAMPLE_MAX: Duration = Duration::from_millis(300);
/// The same for devices that replied to the last sample. On a busy host a thread may be without a CPU for some hundreds of
/// milliseconds, which is no failure of its device. With the interval between samples, one that hangs is found within 2 s.
const PATIENCE: Duration = Duration::from_millis(850);

/// Everything that is served.
#[derive(Clone)]
pub struct Served {
    pub host: Arc<Host>,
    pub devices: Vec<DeviceWatch>,
    /// What of the host file is not in force, and why.
    pub absent: Absent,
    /// Changes made at run time that are set aside: their names and values.
    pub aside: Vec<(String, String)>,
    pub overrides: OverridesInForce,
    /// The last reload, if it was refused.
    pub refused_reload: Option<RefusedReload>,
    /// Block sizes of the volumes.
    pub blocks: BTreeMap<ObjectId, Blocks>,
    /// Devices whose disks report that they are rotational.
    pub rotational: BTreeSet<String>,
    /// Names of the disks of each device that may have several.
    pub disks: BTreeMap<String, Vec<String>>,
    /// The last attempt to load the host file.
    pub load: Load,
    /// Open sources of the volumes.
    pub sources: Vec<Watched>,
    /// Counters of the socket of each volume that is served to a VMM.
    pub guests: Vec<(ObjectId, Arc<Counts>)>,
    /// Rights of the clients that ask.
    pub roles: Roles,
    pub file: PathBuf,
}

/// The served configuration, from the thread that makes changes for the monitor.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Published>>);

#[derive(Clone, Default)]
struct Published {
    served: Option<Served>,
    /// How often what is served has changed.
    changes: u64,
}

impl Served {
    /// Whether the same volumes are served by the same configuration.
    fn is_as(&self, other: &Served) -> bool {
        Arc::ptr_eq(&self.host, &other.host) && self.absent == other.absent
    }
}

impl Board {
    /// Replaces what is served.
    pub fn publish(&self, served: Served) {
        let mut published = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !published.served.as_ref().is_some_and(|before| before.is_as(&served));
        *published = Published { served: Some(served), changes: published.changes + u64::from(is_new) };
    }

    /// Ends the samples: devices that the end of the daemon stops are not down.
    pub fn close(&self) {
        let mut published = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *published = Published { served: None, changes: published.changes + 1 };
    }

    fn read(&self) -> Published {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

enum Message {
    Asked(Box<Asked>),
    /// The daemon ends, and why. It is dropped when all that held is recorded.
    End(Option<String>, oneshot::Sender<()>),
}

/// The handle of the thread. It ends when the handle is dropped.
pub struct Monitor {
    messages: Sender<Message>,
}

impl Monitor {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(board: Board, events: Events, metrics: metrics::Board) -> std::io::Result<Monitor> {
        let (messages, inbox) = channel();
        let (observer, absent, clock, begun) =
            (Observer::default(), AbsenceEvents::default(), Clock::default(), since_boot());
        let (space, clients, restarts) = (Space::default(), Clients::default(), Vec::new());
        let (second, silent, sampled, waiting) = (None, BTreeSet::new(), 0, Vec::new());
        let thread = Thread {
            board,
            observer,
            absent,
            space,
            clients,
            restarts,
            keep: None,
            events,
            metrics,
            clock,
            begun,
            inbox,
            second,
            silent,
            sampled,
            waiting,
        };
        thread::Builder::new().name("monitor".to_owned()).spawn(move || thread.run())?;
        Ok(Monitor { messages })
    }

    /// Answers a request that only asks, or tests alerts. Returns any other.
    pub fn answer(&self, asked: Asked) -> Option<Asked> {
        if !asked.request.is_question() && !matches!(asked.request, Request::TestAlert { .. }) {
            return Some(asked);
        }
        let _ = self.messages.send(Message::Asked(Box::new(asked)));
        None
    }

    /// Ends the samples, and writes the end of every event that holds, with the time for which it held. Returns at the latest after
    /// `timeout`: a state directory that hangs does not keep the daemon from ending.
    /// `why`: what has stopped the daemon; `None` if it has failed.
    pub async fn end(self, why: Option<String>, timeout: Duration) {
        let (recorded, is_recorded) = oneshot::channel();
        let _ = self.messages.send(Message::End(why, recorded));
        if tokio::time::timeout(timeout, is_recorded).await.is_err() {
            tracing::warn!("The state directory does not respond: the ends of events that hold are not written");
        }
    }
}

struct Thread {
    board: Board,
    metrics: metrics::Board,
    observer: Observer,
    absent: AbsenceEvents,
    space: Space,
    clients: Clients,
    /// Ends of earlier runs, oldest first.
    restarts: Vec<Restart>,
    /// How long the past is kept, as of the last sample.
    keep: Option<Keep>,
    events: Events,
    clock: Clock,
    /// Time since the start of the host.
    begun: Duration,
    inbox: Receiver<Message>,
    /// Second of the last sample.
    second: Option<u64>,
    /// Devices that did not reply to the last sample.
    silent: BTreeSet<String>,
    /// The last change of what is served that it shows.
    sampled: u64,
    /// Questions that wait for a sample that shows the last change: at most one for each client of the control socket.
    waiting: Vec<Asked>,
}

impl Thread {
    fn run(mut self) {
        let mut next = Instant::now();
        loop {
            // Before any question: a client that asks all the time must not keep promises from being judged.
            if Instant::now() >= next {
                // Until something is served, look often: the first command after the start finds its VMs.
                let every = if self.sample() { EVERY } else { STARTING };
                next = (next + every).max(Instant::now());
            }
            match self.inbox.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Message::Asked(asked)) => self.take(*asked),
                Ok(Message::End(why, recorded)) => return self.end(why, recorded),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Ends all events as of the last sample. Later, devices stop because the daemon ends, which is no event.
    fn end(mut self, why: Option<String>, recorded: oneshot::Sender<()>) {
        let at = At { time: self.observer.time(), second: self.second.unwrap_or(0) };
        self.clients.keep(u64::MAX, |clients| self.events.keep_clients(clients));
        let mut observer = std::mem::take(&mut self.observer);
        let observed = observer.end();
        // The thread that makes changes may have closed the board already.
        if let Some(keep) = self.keep.take() {
            self.events.keep(observer.minutes(), keep);
        }
        let ends =
            self.absent.end(at).into_iter().chain(self.space.end(at)).chain(self.clients.end(at)).chain(observed);
        let ends = ends.map(|event| Event { ended_by: Some(DaemonEnd::Stopped), ..event });
        self.events.end(ends.collect(), (at.time, why), recorded);
    }

    /// Answers a question, or keeps it until the next sample if what is served has changed since the last one. So a command
    /// shows what the command before it has changed. Events and names do not depend on samples.
    fn take(&mut self, asked: Asked) {
        let Published { served, changes } = self.board.read();
        let needs_no_sample =
            matches!(asked.request, Request::Events { .. } | Request::Names | Request::TestAlert { .. });
        let is_shown = served.is_none() || changes == self.sampled || needs_no_sample;
        if is_shown { self.answer(asked) } else { self.waiting.push(asked) }
    }

    fn answer(&self, asked: Asked) {
        let served = self.board.read().served;
        match answers::answer(&self.known(), served.as_ref(), &asked) {
            Some(reply) => drop(asked.reply.send(reply)),
            None => match asked.request {
                Request::Clients => {
                    let devices = served.map_or_else(Vec::new, |served| served.devices);
                    answers::send_clients(devices, asked.reply);
                }
                Request::History { .. } => {
                    let seconds = answers::seconds(&self.observer, served.as_ref(), &asked.request);
                    self.events.history(asked, seconds);
                }
                Request::TestAlert { class } => {
                    let tables = served.as_ref().map_or(&[][..], |served| &served.host.daemon.alerts);
                    self.events.outbox.test(tables, class.as_deref(), asked.reply);
                }
                Request::Metrics { format } => answers::send_metrics(self.metrics.clone(), format, asked.reply),
                _ => self.events.answer(asked),
            },
        }
    }

    fn known(&self) -> Known<'_> {
        let Thread { observer, space, clients, restarts, events, .. } = self;
        Known { observer, space, clients, restarts, events }
    }

    /// Takes a sample. Returns whether anything is served.
    fn sample(&mut self) -> bool {
        let Published { served: Some(served), changes } = self.board.read() else { return false };
        let is_serving = !served.devices.is_empty();
        let second = since_boot().saturating_sub(self.begun).as_secs();
        // The observer has one sample for each second.
        if self.second.replace(second) == Some(second) {
            return is_serving;
        }
        jail::report_refused();
        let now = Instant::now();
        let devices =
            samples::take(&served, |device| now + if self.silent.contains(device) { SAMPLE_MAX } else { PATIENCE });
        self.silent = devices.iter().filter(|device| !device.serving).map(|device| device.device.clone()).collect();
        if self.board.read().served.is_none() {
            return false;
        }
        let time = Time::of_clock().0;
        self.events.clock_was_set(self.clock.set_by(since_boot().as_secs(), time));
        self.events.set_alerts(&served.host.daemon.alerts);
        let absent = self.absent.changes(&served, At { time, second });
        let space = self.space.look(&served, At { time, second });
        if let Some(earlier) = self.events.earlier() {
            self.restarts = earlier.restarts;
            self.clients.expect(earlier.clients);
        }
        let clients = self.clients.look(&served.host, &devices, At { time, second });
        let events = self.observer.push(Sample { second, time, devices });
        let events = absent.into_iter().chain(space).chain(clients).chain(events);
        events.for_each(|event| self.events.happened(event));
        self.clients.keep(second, |clients| self.events.keep_clients(clients));
        self.events.sampled(time);
        self.events.keep(self.observer.minutes(), *self.keep.insert(keep(&served)));
        self.metrics.publish(exported(&self.observer, &self.space, &served));
        self.sampled = changes;
        std::mem::take(&mut self.waiting).into_iter().for_each(|asked| self.answer(asked));
        is_serving
    }
}

/// What the thread knows, for answers.
struct Known<'a> {
    observer: &'a Observer,
    space: &'a Space,
    clients: &'a Clients,
    restarts: &'a [Restart],
    events: &'a Events,
}

/// How long the past is kept.
fn keep(served: &Served) -> Keep {
    let sluice_config::History { minutes, quarter_hours } = served.host.daemon.history;
    Keep { minutes, quarter_hours }
}

/// The state that is exported as metrics.
fn exported(observer: &Observer, space: &Space, served: &Served) -> metrics::State {
    let reconnects = served.guests.iter().map(|(name, counts)| (name, counts.totals().sessions.saturating_sub(1)));
    metrics::State {
        reading: observer.reading(),
        held_back: served.absent.held_back().count(),
        out_of_service: served.absent.out_of_service().count(),
        outages: served.absent.interfaces().map(|(name, _)| name.clone()).collect(),
        load: served.load,
        file_systems: space.file_systems().cloned().collect(),
        reconnects: reconnects.filter(|(_, count)| *count > 0).map(|(name, count)| (name.clone(), count)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::status::Status;

    use super::*;
    use crate::control::Reply;
    use crate::control::socket::{Manner, Peer};

    /// A thread whose first sample is taken, and what is served.
    fn thread() -> (Thread, Sender<Message>) {
        let (questions, inbox) = channel();
        let thread = Thread {
            board: Board::default(),
            metrics: metrics::Board::default(),
            observer: Observer::default(),
            absent: AbsenceEvents::default(),
            space: Space::default(),
            clients: Clients::default(),
            restarts: Vec::new(),
            keep: None,
            events: Events::start(None).unwrap(),
            clock: Clock::default(),
            begun: since_boot(),
            inbox,
            second: None,
            silent: BTreeSet::new(),
            sampled: 0,
            waiting: Vec::new(),
        };
        thread.board.publish(served());
        (thread, questions)
    }

    fn served() -> Served {
        let host = sluice_config::parse("a test's host file", "").unwrap_or_else(|found| panic!("{found}"));
        let roles = Roles::of(&host.daemon.access, None);
        Served {
            host: Arc::new(host),
            devices: Vec::new(),
            absent: Absent::default(),
            blocks: BTreeMap::new(),
            rotational: BTreeSet::new(),
            disks: BTreeMap::new(),
            aside: Vec::new(),
            overrides: OverridesInForce::default(),
            refused_reload: None,
            load: Load::default(),
            sources: Vec::new(),
            guests: Vec::new(),
            roles,
            file: PathBuf::from("host.toml"),
        }
    }

    fn asked() -> (Asked, oneshot::Receiver<Reply>) {
        let (reply, answer) = oneshot::channel();
        let peer = Peer { uid: 0, gid: 0, groups: [].into(), pid: None, login: None };
        (Asked { request: Request::Status, peer, manner: Manner::default(), reply }, answer)
    }

    #[test]
    fn questions_kept_a_due_sample_from_being_taken() {
        let (thread, questions) = thread();
        let mut answers: Vec<_> = (0..100)
            .map(|_| {
                let (asked, answer) = asked();
                questions.send(Message::Asked(Box::new(asked))).unwrap();
                answer
            })
            .collect();
        drop(questions);
        thread.run();
        let first: Status = answers[0].try_recv().unwrap().read().unwrap().unwrap();
        assert!(first.time > 0, "it is answered from a sample");
    }

    #[test]
    fn a_command_after_a_reload_was_answered_from_before_it() {
        let (mut thread, _questions) = thread();
        thread.sample();
        let (first, mut answer) = asked();
        thread.take(first);
        answer.try_recv().unwrap();
        thread.board.publish(served());
        let (second, mut answer) = asked();
        thread.take(second);
        assert!(answer.try_recv().is_err(), "no sample shows the change yet");
        thread.sample();
        assert!(answer.try_recv().is_err(), "the observer has one sample for each second");
        thread.begun -= EVERY;
        thread.sample();
        assert!(answer.try_recv().unwrap().ok);
    }
}
