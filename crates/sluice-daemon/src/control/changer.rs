//! The thread that makes changes: start, reload, requests of the control socket.
//!
//! The control thread answers handshakes, VMMs and signals, and must never wait for a disk. So this thread makes the
//! changes, one after another. Calls that may hang with a disk or a file system (reading the host file, resolving
//! paths, opening volumes, making sockets, querying a disk for lost writes) run on a separate helper thread for each
//! change. Other changes continue meanwhile. When the helper has returned, the change is checked again against the
//! configuration in force.
//!
//! ```text
//! control thread --Event--> [changer] --Needs--> helper
//!                              ^  |                 |
//!                              |  '--> devices      |
//!                              '------Event---------'
//! ```
//!
//! A helper that waits for one path for [`PATH_TIMEOUT`] is abandoned, and the change is rejected. [`helpers`] has the
//! number of helpers and the retries of volumes that are out of service. A hung disk delays neither other changes nor
//! volumes on other disks.
//!
//! A change that must last is written to the state directory before it is in force ([`making`]), by a thread of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_api::printed::Serving;
use sluice_config::{DaemonSettings, Files, Host};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use self::helpers::{Helper, Helping, hangs};
use self::making::Saving;
use self::read::{Read, Unread, read};
use self::watch::{Report, Watch};
use super::apply::{self, Proposal, State};
use super::roles::{self, Roles};
use super::socket::Asked;
use super::{Code, Reply, Request};
use crate::failure::Failure;
use crate::metrics::Load;
use crate::monitor::{Board, Served};
use crate::output::Format;
use crate::server::{Force, Found, Progress, Server, stats};
use crate::state::Saved;
use crate::state::folder::StateFolder;
use crate::state::keeper::{Keeper, Written};
use crate::state::overrides::{Gone, Override};

pub mod aside;
mod exit;
pub mod expiry;
mod helpers;
mod hold;
mod making;
mod read;
mod record;
#[cfg(test)]
mod tests;
pub mod watch;

/// Maximum time that a helper may wait for one path.
pub const PATH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at the start, where helpers wait up to 5 s for the locks of a dead daemon.
const PATH_TIMEOUT_AT_START: Duration = Duration::from_secs(10);
/// Maximum number of pending changes; further requested ones are rejected.
const ATTEMPTS_MAX: usize = 64;
/// Maximum time that a volume waits for its bytes while the last requests of a detached volume hold them.
const REMOVED_VOLUME_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Interval between retries of volumes that are out of service, and between checks of helpers.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Events for the control thread.
pub enum ServerEvent {
    /// The start has succeeded, with the numbers of what is served and this state in a line; or it has failed.
    Started(Result<(Serving, String), Failure>),
    /// What is served has changed: the state in a line.
    Status(String),
    /// Every device is down.
    Dead,
    /// The thread that makes changes has panicked.
    Panicked,
}

enum Event {
    Change(Asked),
    Reload,
    Report,
    LookAtDevices,
    /// Asks whether this thread and the device threads respond. A thread or a disk that does nothing for this time is reported.
    Probe(Duration, oneshot::Sender<Report>),
    /// Ends the thread; `true`: the daemon is stopped, and has not failed. Returns the server.
    End(bool, oneshot::Sender<Server>),
    /// The state has been written, or a drop-in.
    Saved(u64, Written),
    #[cfg(test)]
    Panic,
    /// The helper of this attempt has returned.
    Back(u64, Outcome),
}

/// Result of a helper.
enum Outcome {
    Found,
    Loaded(Box<Result<Read, Unread>>),
    /// The disks have reported lost writes.
    LossReported,
    Panicked,
}

/// The inputs of the daemon's start.
pub struct Begin {
    pub file: PathBuf,
    pub files: Files,
    /// The files with all changes made at run time.
    pub host: Host,
    /// The locked state directory, and its state.
    pub folder: Option<StateFolder>,
    pub on_disk: Saved,
    /// The state without what has ended meanwhile.
    pub saved: Saved,
    /// Whether the state file was damaged, so that changes made at run time may be lost.
    pub is_damaged: bool,
    pub gone: Vec<(Override, Gone)>,
    /// Volumes that may be served although they differ from what was served before.
    pub force: Force,
    /// Whether the start fails if anything of the file cannot be served.
    pub strict: bool,
    pub roles: Roles,
}

/// The control thread's handle.
pub struct Changer {
    events: Sender<Event>,
}

impl Changer {
    /// Starts the thread, which serves the host file first. Sockets are registered with the runtime of `handle`.
    pub fn start(
        begin: Begin,
        format: Format,
        handle: Handle,
        board: Board,
    ) -> std::io::Result<(Changer, mpsc::UnboundedReceiver<ServerEvent>)> {
        let (events, inbox) = channel();
        let (news, listener) = mpsc::unbounded_channel();
        let own = events.clone();
        thread::Builder::new().name("changes".to_owned()).spawn(move || {
            let _runtime = handle.enter();
            let server = Server::default();
            watch::look_at_failed(&handle, &server, own.clone());
            match Thread::new((server, board), begin, format, own, news.clone()) {
                Ok((mut thread, start)) => {
                    thread.begin(start);
                    thread.run(&inbox);
                }
                Err(error) => drop(news.send(ServerEvent::Started(Err(error.into())))),
            }
        })?;
        Ok((Changer { events }, listener))
    }

    /// Queues a request of the control socket. Its reply is sent back to the client.
    pub fn change(&self, asked: Asked) {
        let _ = self.events.send(Event::Change(asked));
    }

    /// Reads the file again and applies it.
    pub fn reload(&self) {
        let _ = self.events.send(Event::Reload);
    }

    /// Prints the statistics.
    pub fn report(&self) {
        let _ = self.events.send(Event::Report);
    }

    /// Asks whether the thread and the device threads respond, within `limit`.
    pub fn probe(&self, limit: Duration) -> oneshot::Receiver<Report> {
        let (reply, report) = oneshot::channel();
        let _ = self.events.send(Event::Probe(limit, reply));
        report
    }

    /// Ends the thread after the current change. `is_stop`: the daemon has not failed, so changes until a restart end. The
    /// receiver gets the server.
    pub fn end(&self, is_stop: bool) -> oneshot::Receiver<Server> {
        let (reply, server) = oneshot::channel();
        let _ = self.events.send(Event::End(is_stop, reply));
        server
    }
}

/// A kind of change.
enum Kind {
    Start(Box<Start>),
    Change(Asked),
    Reload(Reload),
    /// A retry of this volume, which is out of service.
    Retry(ObjectId),
    /// Overrides with these names end, because their time is over.
    Expire(BTreeSet<String>),
}

/// Configuration that is served first.
struct Start {
    host: Arc<Host>,
    saved: Saved,
    is_damaged: bool,
    gone: Vec<(Override, Gone)>,
    force: Force,
    strict: bool,
}

/// A reload.
#[derive(Default)]
struct Reload {
    /// The files, when they have been read.
    read: Option<Box<Read>>,
    /// `None`: a signal asked for it.
    asked: Option<Asked>,
}

/// Why an attempt waits.
enum WaitsFor {
    /// For a helper, which reports the path that it waits for.
    Helper(Helping),
    /// For the last requests of a removed volume.
    RemovedVolume,
    /// Until another change has been saved.
    Turn,
}

/// A pending change.
struct Attempt {
    /// Number of its last helper.
    number: u64,
    kind: Kind,
    since: Instant,
    found: Found,
    waits: WaitsFor,
    /// The proposal, and the version of the state for which it was made.
    proposal: Option<(u64, Proposal)>,
    /// Whether it has waited for the last requests of a removed volume.
    has_waited: bool,
    /// Volumes that it holds back because their source or offset has changed, or they are smaller, and why; in addition to
    /// those that are held back already.
    held: BTreeMap<ObjectId, String>,
}

struct Thread {
    file: PathBuf,
    format: Format,
    server: Server,
    /// For those who observe what is served.
    board: Board,
    state: State,
    attempts: Vec<Attempt>,
    /// Number of helpers started so far.
    next: u64,
    /// Number of changes so far.
    version: u64,
    /// The same when the state was last reported.
    stated: u64,
    /// Roles of clients, as the host file in force states them.
    roles: Roles,
    /// The settings at the start, which the control socket has.
    at_start: DaemonSettings,
    /// The last attempt to load the host file.
    load: Load,
    /// Time of the next retry of volumes and interfaces that are out of service.
    retry_at: Instant,
    /// Volumes to retry, in order.
    retries: VecDeque<ObjectId>,
    /// Running helpers, by attempt.
    helpers: BTreeMap<u64, Helper>,
    keeper: Keeper,
    watch: Watch,
    /// The state in the state directory; `None` if a failed write has left one or the other.
    on_disk: Option<Saved>,
    /// The change that is being saved. No other change is made meanwhile.
    saving: Option<Saving>,
    /// Number of the last job of the keeper that has hung; until it returns nothing can be saved.
    hung_save: Option<u64>,
    /// Time of the next attempt to write a state that could not be written.
    repeat_at: Option<Instant>,
    events: Sender<Event>,
    news: mpsc::UnboundedSender<ServerEvent>,
}

/// Reports a panic of the thread. It is dropped before the server, whose devices may wait for a hung disk.
struct Alarm(mpsc::UnboundedSender<ServerEvent>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(ServerEvent::Panicked);
        }
    }
}

impl Thread {
    /// Returns the thread, and its first change.
    fn new(
        (server, board): (Server, Board),
        begin: Begin,
        format: Format,
        events: Sender<Event>,
        news: mpsc::UnboundedSender<ServerEvent>,
    ) -> std::io::Result<(Thread, Kind)> {
        let Begin { file, files, host, folder, on_disk, saved, is_damaged, gone, force, strict, roles } = begin;
        let reply = events.clone();
        let keeper = Keeper::start(folder, move |number, saved| drop(reply.send(Event::Saved(number, saved))))?;
        let at_start = host.daemon.clone();
        let state = State { files, saved: on_disk.clone(), overdue: BTreeMap::new() };
        let thread = Thread {
            file,
            format,
            server,
            board,
            state,
            attempts: Vec::new(),
            next: 0,
            version: 0,
            stated: 0,
            roles,
            at_start,
            load: Load::default(),
            retry_at: Instant::now(),
            retries: VecDeque::new(),
            helpers: BTreeMap::new(),
            keeper,
            watch: Watch::default(),
            on_disk: Some(on_disk),
            saving: None,
            hung_save: None,
            repeat_at: None,
            events,
            news,
        };
        let start = Start { host: Arc::new(host), saved, is_damaged, gone, force, strict };
        Ok((thread, Kind::Start(Box::new(start))))
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        let _alarm = Alarm(self.news.clone());
        loop {
            let event = match self.timeout() {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(timeout) => inbox.recv_timeout(timeout),
            };
            match event {
                Ok(Event::End(is_stop, reply)) => {
                    self.end(is_stop, inbox);
                    self.board.close();
                    let _ = reply.send(self.server);
                    return;
                }
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.check_saving();
            self.check_attempts();
            self.retry_missing();
            self.expire();
            self.publish();
            self.report_status();
        }
    }

    /// Tells the monitor what is served.
    fn publish(&self) {
        let aside = self.state.saved.overrides.aside().map(|known| (known.name(), known.value())).collect();
        self.board.publish(Served { aside, ..self.server.served(&self.roles, &self.file, self.load) });
    }

    /// Returns how long the thread may wait for an event.
    fn timeout(&self) -> Option<Duration> {
        let is_leaving = |attempt: &Attempt| matches!(attempt.waits, WaitsFor::RemovedVolume);
        if self.saving.is_none() && self.attempts.iter().any(is_leaving) {
            return Some(PAUSE);
        }
        let is_out = !self.server.missing().is_empty();
        let is_busy = !self.attempts.is_empty() || is_out || self.server.has_links() || self.saving.is_some();
        let busy = (is_busy || self.repeat_at.is_some()).then_some(RETRY_EVERY);
        busy.into_iter().chain(self.until_expiry()).min()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Change(asked) => self.request(asked),
            Event::Reload => self.begin(Kind::Reload(Reload::default())),
            Event::Report => {
                stats::print(&self.server.snapshots(), self.server.host_state(), self.format);
            }
            Event::LookAtDevices => self.check_devices(),
            Event::Probe(limit, reply) => drop(reply.send(self.watch.look(&self.server, limit))),
            Event::Back(number, outcome) => {
                self.helpers.remove(&number);
                self.back(number, outcome);
            }
            Event::Saved(number, saved) => self.saved(number, saved),
            #[cfg(test)]
            Event::Panic => panic!("a test requested this panic"),
            Event::End(..) => unreachable!("it ends the loop"),
        }
    }

    fn request(&mut self, asked: Asked) {
        if let Some(refused) = self.refused(&asked) {
            let _ = asked.reply.send(refused);
            return;
        }
        match asked.request {
            Request::GetOverrides => drop(asked.reply.send(apply::get_overrides(&self.state))),
            Request::Apply { .. } => self.begin(Kind::Reload(Reload { read: None, asked: Some(asked) })),
            _ => self.begin(Kind::Change(asked)),
        }
    }

    /// Returns the reply to a request that its client may not make.
    fn refused(&self, asked: &Asked) -> Option<Reply> {
        let rights = roles::Rights { roles: &self.roles, settings: &self.server.host().daemon, file: &self.file };
        let refused = rights.check(&asked.request, &asked.peer, &self.state.saved.overrides).err()?;
        // The log limits the lines about one endpoint.
        tracing::warn!(endpoint = "control", who = %asked.peer, reason = refused, "Request of a control client refused");
        Some(Reply::failed(Code::Refused, refused))
    }

    /// Continues the attempt, unless it was abandoned.
    fn back(&mut self, number: u64, outcome: Outcome) {
        let Some(mut attempt) = self.remove(number) else { return };
        match outcome {
            Outcome::Found => {
                if let WaitsFor::Helper(helping) = &attempt.waits {
                    attempt.found.add(helping.0.take());
                }
                self.advance(attempt);
            }
            Outcome::Loaded(loaded) => self.loaded(attempt, *loaded),
            Outcome::LossReported => self.loss_reported(attempt),
            Outcome::Panicked => self.refuse(attempt, "The helper thread panicked; see the log"),
        }
    }

    fn check_devices(&self) {
        if self.server.is_dead() {
            let _ = self.news.send(ServerEvent::Dead);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Attempt> {
        let at = self.attempts.iter().position(|attempt| attempt.number == number)?;
        Some(self.attempts.remove(at))
    }

    fn begin(&mut self, kind: Kind) {
        let (found, waits, since) = (Found::default(), WaitsFor::RemovedVolume, Instant::now());
        let held = match &kind {
            Kind::Start(start) => aside::held(&start.saved.overrides, &start.host),
            Kind::Reload(_) | Kind::Change(_) | Kind::Retry(_) | Kind::Expire(_) => BTreeMap::new(),
        };
        let attempt = Attempt { number: 0, kind, since, found, waits, proposal: None, has_waited: false, held };
        match attempt.kind {
            _ if self.attempts.len() >= ATTEMPTS_MAX && !matches!(attempt.kind, Kind::Retry(_) | Kind::Expire(_)) => {
                self.refuse(attempt, &format!("{ATTEMPTS_MAX} changes are queued; retry when they have completed"));
            }
            Kind::Reload(Reload { read: None, ref asked }) => {
                let named = asked.as_ref().and_then(|asked| match &asked.request {
                    Request::Apply { file, dry_run, .. } => Some((file.clone(), *dry_run)),
                    _ => None,
                });
                // An older file must not replace a newer one.
                let is_reload = |attempt: &mut Attempt| matches!(attempt.kind, Kind::Reload(_));
                for old in self.attempts.extract_if(.., is_reload) {
                    making::replaced(old);
                }
                let (file, group) = (self.file.clone(), self.roles.group);
                let paths = [file.clone()];
                self.help(attempt, &paths, move |progress: &Progress| {
                    Outcome::Loaded(Box::new(read(&file, named, group, progress)))
                });
            }
            Kind::Change(Asked { request: Request::AcceptLoss { ref target }, .. }) => {
                match apply::loss_query(&self.server, target) {
                    Ok(hearing) => self.help(attempt, &hearing.paths(), move |progress: &Progress| {
                        hearing.run(progress);
                        Outcome::LossReported
                    }),
                    Err(reply) => making::answer(attempt, reply),
                }
            }
            _ => self.advance(attempt),
        }
    }

    /// The disk has reported lost writes, so the loss is accepted.
    fn loss_reported(&mut self, attempt: Attempt) {
        let Kind::Change(Asked { request: Request::AcceptLoss { target }, peer, .. }) = &attempt.kind else { return };
        let reply = apply::accept_loss(&self.server, target, peer.clone());
        making::answer(attempt, reply);
    }

    /// Retries attempts that wait for removed volumes or for their turn, and abandons helpers that take too long.
    fn check_attempts(&mut self) {
        if self.saving.is_some() {
            return self.check_helpers();
        }
        self.check_helpers();
        for attempt in std::mem::take(&mut self.attempts) {
            match attempt.waits {
                WaitsFor::Helper(_) => self.attempts.push(attempt),
                WaitsFor::RemovedVolume | WaitsFor::Turn => self.advance(attempt),
            }
        }
    }

    /// Abandons helpers that take too long.
    fn check_helpers(&mut self) {
        let now = Instant::now();
        for mut attempt in std::mem::take(&mut self.attempts) {
            let WaitsFor::Helper(helping) = &attempt.waits else {
                self.attempts.push(attempt);
                continue;
            };
            let (path, since) = helping.0.now();
            let is_start = matches!(attempt.kind, Kind::Start(_));
            let max = if is_start { PATH_TIMEOUT_AT_START } else { PATH_TIMEOUT };
            if now.duration_since(since) < max {
                self.attempts.push(attempt);
            } else if is_start {
                attempt.found.add(helping.0.take());
                attempt.found.hangs(path, max);
                self.advance(attempt);
            } else {
                self.refuse(attempt, &hangs(&path, max));
            }
        }
    }

    fn loaded(&mut self, mut attempt: Attempt, loaded: Result<Read, Unread>) {
        match loaded {
            Ok(files) => {
                if let Kind::Reload(reload) = &mut attempt.kind {
                    reload.read = Some(Box::new(files));
                }
                self.advance(attempt);
            }
            Err(Unread::Wrong(diagnostics)) => self.refuse_file(attempt, &diagnostics),
            Err(Unread::Other(error)) => self.refuse(attempt, &error),
        }
    }
}
