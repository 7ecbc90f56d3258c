//! The thread that makes changes: start, reload, requests of the control socket.
//!
//! The control thread answers handshakes, VMMs and signals, and must never wait for a disk. So this thread makes the
//! changes. Each is a task of its own ([`change`]), and one after another is put into force. Calls that may hang with a disk or a file
//! system (reading the host file, resolving paths, opening volumes, making sockets, querying a disk for lost writes) run on a helper
//! thread ([`helpers`]), and other changes go on meanwhile. The state is written by a thread of its own.
//!
//! ```text
//! control thread --Event--> [changes: a task for each] <--Needs, Found--> helper
//!                                |            '---drop-in, state--> state
//!                                '--> devices
//! ```

use std::path::PathBuf;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use sluice_config::Files;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::sleep_until;

use self::change::Kind;
use self::helpers::Helpers;
use self::retry::Retries;
use self::shared::{InForce, Shared, Tasks};
use self::watch::{Report, Watch};
use super::apply::State;
use super::audit::{Author, RoleRefusals};
use super::keys;
use super::overdue::Overdue;
use super::roles::{Rights, Roles};
use super::socket::Asked;
use super::{Code, Reply, Request};
use crate::events::Reporter;
use crate::metrics::Load;
use crate::monitor::Board;
use crate::output::Format;
use crate::server::{Server, stats};
use crate::state::Saved;
use crate::state::folder::StateFolder;
use crate::state::keeper::Keeper;

pub mod aside;
mod change;
mod expiry;
mod helpers;
mod loss;
mod record;
mod refused;
mod reload;
mod retry;
mod saving;
mod shared;
mod start;
mod takeover;
#[cfg(test)]
mod tests;
pub mod watch;

pub use self::helpers::PATH_TIMEOUT;
pub use self::shared::ServerEvent;
pub use self::start::Start;

/// Minimum time until the thread looks again at what is due.
const PAUSE: Duration = Duration::from_millis(5);
/// Time after which it looks although nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

enum Event {
    Change(Box<Asked>),
    Reload,
    Report,
    /// Asks whether this thread and the device threads respond. A thread or a disk that does nothing for this time is reported.
    Probe(Duration, oneshot::Sender<Report>),
    /// Ends the thread; `true`: the daemon is stopped, and has not failed. Returns the server.
    End(bool, oneshot::Sender<Server>),
    #[cfg(test)]
    Panic,
}

/// The inputs of the daemon's start.
pub struct Begin {
    pub file: PathBuf,
    pub files: Files,
    /// The locked state directory, and its state.
    pub folder: Option<StateFolder>,
    pub on_disk: Saved,
    pub roles: Roles,
    pub start: Start,
}

/// The control thread's handle.
pub struct Changer {
    events: mpsc::UnboundedSender<Event>,
}

impl Changer {
    /// Starts the thread, which serves the host file first. Sockets are registered with the runtime of `sockets`.
    pub fn start(
        begin: Begin,
        format: Format,
        sockets: Handle,
        (board, reporter): (Board, Reporter),
    ) -> std::io::Result<(Changer, mpsc::UnboundedReceiver<ServerEvent>)> {
        let (news, listener) = mpsc::unbounded_channel();
        let state = begin.folder.as_ref().map(|folder| folder.path().to_owned());
        let (shared, first) = shared((Server::of(state), board, reporter), begin, sockets, news)?;
        let (events, inbox) = mpsc::unbounded_channel();
        let runtime = Builder::new_current_thread().enable_time().build()?;
        thread::Builder::new()
            .name("changes".to_owned())
            .spawn(move || run(&runtime, shared, Some(first), inbox, format))?;
        Ok((Changer { events }, listener))
    }

    /// Queues a request of the control socket. Its reply is sent back to the client.
    pub fn change(&self, asked: Asked) {
        let _ = self.events.send(Event::Change(Box::new(asked)));
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

/// Returns what all changes share, and the first change.
fn shared(
    (server, board, reporter): (Server, Board, Reporter),
    begin: Begin,
    sockets: Handle,
    news: mpsc::UnboundedSender<ServerEvent>,
) -> std::io::Result<(Shared, Kind)> {
    let Begin { file, files, folder, on_disk, roles, start } = begin;
    let keeper = Mutex::new(Keeper::start(folder, file.with_extension("d"), on_disk.clone())?);
    let state = State { files, saved: on_disk, overdue: Overdue::default() };
    let (load, version, watch) = (Load::default(), 0, Watch::default());
    let (refused_reload, role_refusals) = (None, RoleRefusals::default());
    let in_force = InForce { server, state, roles, load, refused_reload, role_refusals, version, watch }.into();
    let (at_start, tasks, helpers) = (start.host.daemon.clone(), Tasks::default(), Helpers::default());
    let shared = Shared { file, at_start, board, reporter, news, sockets, in_force, helpers, keeper, tasks };
    Ok((shared, Kind::Start(Box::new(start))))
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

/// Makes changes until the daemon ends.
fn run(
    runtime: &Runtime,
    shared: Shared,
    first: Option<Kind>,
    mut inbox: mpsc::UnboundedReceiver<Event>,
    format: Format,
) {
    let (shared, tasks) = (Rc::new(shared), LocalSet::new());
    let _alarm = Alarm(shared.news.clone());
    tasks.block_on(runtime, async {
        shared.tasks.set.borrow_mut().spawn_local(saving::repeat(Rc::clone(&shared)));
        first.into_iter().for_each(|first| change::begin(&shared, first, None));
        let Some((is_stop, reply)) = take_events(&shared, &mut inbox, format).await else { return };
        saving::exit(&shared, is_stop).await;
        shared.board.close();
        let _ = reply.send(std::mem::take(&mut shared.in_force.borrow_mut().server));
    });
}

/// Takes events, and begins what is due, until the thread is to end.
async fn take_events(
    shared: &Rc<Shared>,
    inbox: &mut mpsc::UnboundedReceiver<Event>,
    format: Format,
) -> Option<(bool, oneshot::Sender<Server>)> {
    let (down, mut retries, mut stated) = (shared.in_force.borrow().server.down(), Retries::new(), 0);
    loop {
        let due = next(shared, &retries);
        tokio::select! {
            event = inbox.recv() => match event? {
                Event::End(is_stop, reply) => return Some((is_stop, reply)),
                event => take(shared, event, format),
            },
            () = down.notified() => shared.check_devices(&shared.in_force.borrow().server),
            () = shared.tasks.ended() => {}
            () = sleep_until(due.into()) => {}
        }
        retries.run(shared);
        expire(shared);
        shared.publish();
        let in_force = shared.in_force.borrow();
        if std::mem::replace(&mut stated, in_force.version) != in_force.version {
            let _ = shared.news.send(ServerEvent::Status(in_force.status()));
        }
    }
}

/// Returns the time at which something is due.
fn next(shared: &Shared, retries: &Retries) -> Instant {
    let now = Instant::now();
    let expiry = expiry::next(&shared.in_force.borrow().state, &shared.tasks.ending());
    let due = retries.next(shared).into_iter().chain(expiry).min();
    due.map_or(now + IDLE, |due| due.max(now + PAUSE))
}

/// Begins to end changes whose time is over.
fn expire(shared: &Rc<Shared>) {
    let due = match &mut *shared.in_force.borrow_mut() {
        // The start.
        InForce { version: 0, .. } => return,
        in_force => expiry::due(&mut in_force.state, &shared.tasks.ending()),
    };
    let due = due.into_iter().filter(|names| !names.is_empty());
    due.for_each(|names| change::begin(shared, Kind::Expiry(names), None));
}

fn take(shared: &Rc<Shared>, event: Event, format: Format) {
    match event {
        Event::Change(asked) => request(shared, *asked),
        Event::Reload => change::begin(shared, Kind::Reload(None), None),
        Event::Report => {
            let server = &shared.in_force.borrow().server;
            stats::print(&server.snapshots(), server.host_state(), format);
        }
        Event::Probe(limit, reply) => {
            let InForce { server, watch, .. } = &mut *shared.in_force.borrow_mut();
            let _ = reply.send(watch.look(server, limit));
        }
        #[cfg(test)]
        Event::Panic => panic!("a test requested this panic"),
        Event::End(..) => unreachable!("it ends the loop"),
    }
}

fn request(shared: &Rc<Shared>, asked: Asked) {
    let reply = {
        let InForce { server, state, roles, role_refusals, .. } = &mut *shared.in_force.borrow_mut();
        let rights = Rights { roles, settings: &server.host().daemon, file: &shared.file };
        match rights.check(&asked.request, &asked.peer, &state.saved.overrides) {
            Err(refused) => {
                // The log limits the lines about one endpoint.
                let (endpoint, who) = ("control", &asked.peer);
                tracing::warn!(endpoint, %who, reason = refused, "Request of a control client refused");
                if role_refusals.is_event(asked.peer.uid, Instant::now()) {
                    shared.reporter.happened(Author::of(&asked.request, &asked.peer, roles).refused());
                }
                Reply::failed(Code::Forbidden, refused)
            }
            Ok(()) if asked.request == Request::GetOverrides => keys::get_overrides(state),
            Ok(()) if asked.request == Request::GetHost => keys::get_host(state),
            Ok(()) if matches!(asked.request, Request::Keys { .. }) => keys::get_keys(state, &asked.request),
            Ok(()) => {
                let Asked { request, peer, manner, reply } = asked;
                let kind = match request {
                    Request::Apply { .. } => Kind::Reload(Some((request, peer))),
                    _ => Kind::Request(request, peer, manner),
                };
                return change::begin(shared, kind, Some(reply));
            }
        }
    };
    let _ = asked.reply.send(reply);
}
