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

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sluice_config::changes::Changes;
use sluice_config::{Diagnostics, Files, Host};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use self::helpers::{Helper, Helping, hangs};
use super::apply::{self, Proposal, State};
use super::socket::Asked;
use super::{Code, Reply, Request};
use crate::failure::{Failure, chain};
use crate::output::Format;
use crate::server::{Done, Found, Progress, Server, ServerError, Step, VolumeName, stats};

mod helpers;

/// Maximum time that a helper may wait for one path.
pub(crate) const PATH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at the start, where helpers wait up to 5 s for the locks of a dead daemon.
const PATH_TIMEOUT_AT_START: Duration = Duration::from_secs(10);
/// Maximum number of pending changes; further ones are rejected.
const ATTEMPTS_MAX: usize = 64;
/// Maximum time that a volume waits for its bytes while the last requests of a detached volume hold them.
const REMOVED_VOLUME_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Interval between retries of volumes that are out of service, and between checks of helpers.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Events for the control thread.
pub(crate) enum ServerEvent {
    /// The start has succeeded, or has failed.
    Started(Result<(), Failure>),
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
    /// Returns the server.
    End(oneshot::Sender<Server>),
    #[cfg(test)]
    Panic,
    /// The helper of this attempt has returned.
    Back(u64, Outcome),
}

/// Result of a helper.
enum Outcome {
    Found,
    Loaded(Box<Result<Read, Diagnostics>>),
    /// The disks have reported lost writes.
    LossReported,
    Panicked,
}

/// The files, read again.
struct Read {
    files: Files,
    /// The files with all changes applied.
    host: Arc<Host>,
    changes: Changes,
}

/// The control thread's handle.
pub(crate) struct Changer {
    events: Sender<Event>,
}

impl Changer {
    /// Starts the thread, which serves `host` first. Sockets are registered with the runtime of `handle`.
    pub(crate) fn start(
        file: PathBuf,
        (files, host): (Files, Host),
        format: Format,
        handle: Handle,
    ) -> std::io::Result<(Changer, mpsc::UnboundedReceiver<ServerEvent>)> {
        let (events, inbox) = channel();
        let (news, listener) = mpsc::unbounded_channel();
        let own = events.clone();
        thread::Builder::new().name("changes".to_owned()).spawn(move || {
            let _runtime = handle.enter();
            let server = Server::new();
            watch_devices(&handle, &server, own.clone());
            let state = State { files, changes: Changes::default() };
            let control = host.daemon.control.clone();
            let attempts = Vec::new();
            let mut thread = Thread {
                file,
                format,
                server,
                state,
                attempts,
                next: 0,
                version: 0,
                control,
                retry_at: Instant::now(),
                retries: VecDeque::new(),
                helpers: BTreeMap::new(),
                events: own,
                news,
            };
            thread.begin(Kind::Start(Arc::new(host)));
            thread.run(&inbox);
        })?;
        Ok((Changer { events }, listener))
    }

    /// Queues a request of the control socket. Its reply is sent back to the client.
    pub(crate) fn change(&self, asked: Asked) {
        let _ = self.events.send(Event::Change(asked));
    }

    /// Reads the file again and applies it.
    pub(crate) fn reload(&self) {
        let _ = self.events.send(Event::Reload);
    }

    /// Prints the statistics.
    pub(crate) fn report(&self) {
        let _ = self.events.send(Event::Report);
    }

    /// Ends the thread after the current change. The receiver gets the server.
    pub(crate) fn end(&self) -> oneshot::Receiver<Server> {
        let (reply, server) = oneshot::channel();
        let _ = self.events.send(Event::End(reply));
        server
    }
}

fn watch_devices(handle: &Handle, server: &Server, events: Sender<Event>) {
    let down = server.down();
    handle.spawn(async move {
        loop {
            down.notified().await;
            if events.send(Event::LookAtDevices).is_err() {
                return;
            }
        }
    });
}

/// A kind of change.
enum Kind {
    Start(Arc<Host>),
    Change {
        request: Request,
        reply: oneshot::Sender<Reply>,
    },
    /// A reload, with the files when they have been read.
    Reload(Option<Box<Read>>),
    /// A retry of this volume, which is out of service.
    Retry(VolumeName),
}

/// Why an attempt waits.
enum WaitsFor {
    /// For a helper, which reports the path that it waits for.
    Helper(Helping),
    /// For the last requests of a removed volume.
    RemovedVolume,
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
}

struct Thread {
    file: PathBuf,
    format: Format,
    server: Server,
    state: State,
    attempts: Vec<Attempt>,
    /// Number of helpers started so far.
    next: u64,
    /// Number of changes so far.
    version: u64,
    /// Path of the control socket.
    control: Option<PathBuf>,
    /// Time of the next retry of volumes that are out of service.
    retry_at: Instant,
    /// Volumes to retry, in order.
    retries: VecDeque<VolumeName>,
    /// Running helpers, by attempt.
    helpers: BTreeMap<u64, Helper>,
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
    fn run(mut self, inbox: &Receiver<Event>) {
        let _alarm = Alarm(self.news.clone());
        loop {
            let event = match self.timeout() {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(timeout) => inbox.recv_timeout(timeout),
            };
            match event {
                Ok(Event::End(reply)) => {
                    let _ = reply.send(self.server);
                    return;
                }
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.check_attempts();
            self.retry_missing();
        }
    }

    /// Returns how long the thread may wait for an event.
    fn timeout(&self) -> Option<Duration> {
        let is_leaving = |attempt: &Attempt| matches!(attempt.waits, WaitsFor::RemovedVolume);
        if self.attempts.iter().any(is_leaving) {
            return Some(PAUSE);
        }
        (!self.attempts.is_empty() || !self.server.missing().is_empty()).then_some(RETRY_EVERY)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Change((request, reply)) => self.begin(Kind::Change { request, reply }),
            Event::Reload => self.begin(Kind::Reload(None)),
            Event::Report => {
                stats::print(&self.server.snapshots(), &self.server.host_state(), self.format);
            }
            Event::LookAtDevices => self.check_devices(),
            Event::Back(number, outcome) => {
                self.helpers.remove(&number);
                self.back(number, outcome);
            }
            #[cfg(test)]
            Event::Panic => panic!("a test requested this panic"),
            Event::End(_) => unreachable!("it ends the loop"),
        }
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
        let attempt = Attempt { number: 0, kind, since, found, waits, proposal: None, has_waited: false };
        match attempt.kind {
            _ if self.attempts.len() >= ATTEMPTS_MAX && !matches!(attempt.kind, Kind::Retry(_)) => {
                self.refuse(attempt, &format!("{ATTEMPTS_MAX} changes are queued; retry when they have completed"));
            }
            Kind::Reload(None) => {
                // An older file must not replace a newer one.
                self.attempts.retain(|known| !matches!(known.kind, Kind::Reload(_)));
                let (file, changes) = (self.file.clone(), self.state.changes.clone());
                let paths = [file.clone()];
                let job = move |progress: &Progress| {
                    progress.set(&file);
                    let loaded = sluice_config::load_changed(&file, &changes);
                    let read = |(files, host)| Read { files, host: Arc::new(host), changes };
                    Outcome::Loaded(Box::new(loaded.map(read)))
                };
                self.help(attempt, &paths, job);
            }
            Kind::Change { request: Request::AcceptLoss { ref target }, .. } => {
                match apply::loss_query(&self.server, target) {
                    Ok(hearing) => self.help(attempt, &hearing.paths(), move |progress: &Progress| {
                        hearing.run(progress);
                        Outcome::LossReported
                    }),
                    Err(reply) => answer(attempt, reply),
                }
            }
            _ => self.advance(attempt),
        }
    }

    /// The disk has reported lost writes, so the loss is accepted.
    fn loss_reported(&mut self, attempt: Attempt) {
        let Kind::Change { request: Request::AcceptLoss { target }, .. } = &attempt.kind else { return };
        let reply = apply::accept_loss(&self.server, target);
        answer(attempt, reply);
    }

    /// Retries attempts that wait for removed volumes, and abandons helpers that take too long.
    fn check_attempts(&mut self) {
        let now = Instant::now();
        for mut attempt in std::mem::take(&mut self.attempts) {
            let WaitsFor::Helper(helping) = &attempt.waits else {
                self.advance(attempt);
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

    fn loaded(&mut self, mut attempt: Attempt, loaded: Result<Read, Diagnostics>) {
        match loaded {
            Ok(read) => {
                attempt.kind = Kind::Reload(Some(Box::new(read)));
                self.advance(attempt);
            }
            Err(diagnostics) => print_diagnostics(&diagnostics),
        }
    }

    /// Makes the change, or starts to wait for what it needs.
    fn advance(&mut self, mut attempt: Attempt) {
        let known = attempt.proposal.take().filter(|(version, _)| *version == self.version);
        let proposal = match known.map_or_else(|| self.propose(&attempt), |(_, proposal)| Ok(proposal)) {
            Ok(proposal) => proposal,
            Err(Refused::Reply(reply)) => return answer(attempt, reply),
            Err(Refused::File(diagnostics)) => return print_diagnostics(&diagnostics),
        };
        let leaving = self.server.had_removed();
        match self.server.apply_found(&proposal.host, &proposal.extra, &mut attempt.found) {
            Ok(Step::Done(done)) => self.done(attempt, proposal, &done),
            Ok(Step::Needs(needs)) => {
                attempt.proposal = Some((self.version, proposal));
                self.help(attempt, &needs.paths(), move |progress: &Progress| {
                    needs.meet(progress);
                    Outcome::Found
                });
            }
            Err(error) if error.is_busy() && leaving && attempt.since.elapsed() < REMOVED_VOLUME_TIMEOUT => {
                (attempt.found, attempt.waits, attempt.has_waited) = (Found::default(), WaitsFor::RemovedVolume, true);
                self.attempts.push(attempt);
            }
            Err(error) => {
                if matches!(attempt.kind, Kind::Reload(_)) {
                    self.warn(&proposal.host);
                }
                // Its sockets are removed before the rejection is reported, because a rejected start ends the
                // process.
                attempt.found = Found::default();
                self.failed(attempt, error);
            }
        }
    }

    /// Prints warnings about a reloaded file.
    fn warn(&self, host: &Host) {
        host.warnings.iter().for_each(crate::output::message);
        if host.daemon.control != self.control {
            tracing::warn!("Restart the daemon to move the control socket");
        }
    }

    fn propose(&self, attempt: &Attempt) -> Result<Proposal, Refused> {
        match &attempt.kind {
            Kind::Start(host) => Ok(Proposal::of(Arc::clone(host))),
            Kind::Retry(name) => Ok(Proposal::retry(Arc::clone(self.server.host()), name.clone())),
            Kind::Reload(read) => {
                let read = read.as_ref().expect("a file is applied when it has been read");
                if read.changes == self.state.changes {
                    return Ok(Proposal::of(Arc::clone(&read.host)));
                }
                let host = read.files.changed(&self.state.changes).map_err(Refused::File)?;
                Ok(Proposal::of(Arc::new(host)))
            }
            Kind::Change { request, .. } => apply::propose(&self.server, &self.state, request).map_err(Refused::Reply),
        }
    }

    fn done(&mut self, attempt: Attempt, proposal: Proposal, done: &Done) {
        self.version += 1;
        if attempt.has_waited {
            let waited_ms = attempt.since.elapsed().as_millis();
            tracing::info!(waited_ms, "Waited for in-flight requests of a detached volume");
        }
        // The change may have removed the last device that was not down.
        self.check_devices();
        match attempt.kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Ok(())))),
            Kind::Retry(_) => {}
            Kind::Change { .. } => {
                let reply = apply::accept(&self.server, &mut self.state, proposal, &done.unapplied);
                answer(attempt, reply);
            }
            Kind::Reload(read) => {
                self.warn(&proposal.host);
                let read = read.expect("a file is applied when it has been read");
                let _old = std::mem::replace(&mut self.state.files, read.files);
                let kept = self.state.changes.len();
                let changes = done.changes;
                match done.unapplied.is_empty() {
                    true => tracing::info!(changes, kept, "Reload applied"),
                    false => tracing::error!(
                        changes,
                        kept,
                        "Only part of the reload was applied: devices have not confirmed theirs"
                    ),
                }
            }
        }
    }

    fn failed(&mut self, attempt: Attempt, error: ServerError) {
        match attempt.kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Err(error.into())))),
            _ => self.refuse(attempt, &chain(&error)),
        }
    }

    /// Rejects the attempt. The configuration in force does not change.
    fn refuse(&mut self, attempt: Attempt, error: &str) {
        let Attempt { kind, found, waits, .. } = attempt;
        drop((found, waits));
        match kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Err(Failure::Run(error.into()))))),
            Kind::Change { reply, .. } => drop(reply.send(Reply::failed(Code::Refused, error))),
            Kind::Reload(_) => tracing::error!(error, "Reload failed: the running configuration is unchanged"),
            Kind::Retry((vm, volume)) => tracing::error!(vm, volume, error, "Volume stays out of service"),
        }
    }
}

enum Refused {
    Reply(Reply),
    File(Diagnostics),
}

fn print_diagnostics(diagnostics: &Diagnostics) {
    crate::output::message(diagnostics);
    tracing::error!(errors = diagnostics.errors(), "Reload rejected: the running configuration is unchanged");
}

fn answer(attempt: Attempt, answer: Reply) {
    if let Kind::Change { reply, .. } = attempt.kind {
        let _ = reply.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Returns a thread for a server whose device `a` is down, and the folder of its file.
    async fn with_a_dead_device(
        text: &str,
    ) -> (Thread, mpsc::UnboundedReceiver<ServerEvent>, Receiver<Event>, TempDir) {
        let server = Server::with_a_dead_device(text, "a");
        server.down().notified().await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("host.toml");
        std::fs::write(&file, text).unwrap();
        let Ok((files, _)) = sluice_config::load_changed(&file, &Changes::default()) else { panic!("it is right") };
        let (events, inbox) = channel();
        let (news, heard) = mpsc::unbounded_channel();
        let state = State { files, changes: Changes::default() };
        let thread = Thread {
            file,
            format: Format::Json,
            server,
            state,
            attempts: Vec::new(),
            next: 0,
            version: 0,
            control: None,
            retry_at: Instant::now(),
            retries: VecDeque::new(),
            helpers: BTreeMap::new(),
            events,
            news,
        };
        (thread, heard, inbox, folder)
    }

    #[tokio::test]
    async fn a_daemon_kept_running_after_its_last_device_went_down() {
        let (thread, mut heard, inbox, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
        let events = thread.events.clone();
        let running = thread::spawn(move || thread.run(&inbox));
        events.send(Event::LookAtDevices).unwrap();
        assert!(matches!(heard.recv().await, Some(ServerEvent::Dead)));
        let (reply, server) = oneshot::channel();
        events.send(Event::End(reply)).unwrap();
        // The deadline matters only if the test fails.
        let deadline = Instant::now() + Duration::from_secs(60);
        let draining = server.await.unwrap().drain(deadline);
        draining.until(deadline).await;
        assert!(draining.has_ended(), "there is nothing to drain");
        running.join().unwrap();
    }

    #[tokio::test]
    async fn a_panic_of_the_thread_that_makes_changes_was_not_reported() {
        let (thread, mut heard, inbox, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
        let events = thread.events.clone();
        let running = thread::spawn(move || thread.run(&inbox));
        events.send(Event::Panic).unwrap();
        assert!(matches!(heard.recv().await, Some(ServerEvent::Panicked)));
        assert!(running.join().is_err());
    }

    #[tokio::test]
    async fn a_daemon_kept_running_when_a_reload_removed_its_last_serving_device() {
        let text = "[device.a]\nbackend = \"null\"\n";
        let both = format!("{text}[device.b]\nbackend = \"null\"\n");
        let (mut thread, mut heard, inbox, _folder) = with_a_dead_device(&both).await;
        std::fs::write(&thread.file, text).unwrap();
        thread.begin(Kind::Reload(None));
        thread.take(inbox.recv().unwrap());
        assert!(matches!(heard.try_recv(), Ok(ServerEvent::Dead)), "every device that is left is down");
    }
}
