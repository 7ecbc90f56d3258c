//! What all changes share: the configuration in force, who may make a change, and which changes are pending.
//!
//! All of it belongs to one thread. No borrow is held while something is waited for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use sluice_api::printed::Serving;
use sluice_config::{DaemonSettings, Diagnostics};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::helpers::{Helpers, Purpose};
use super::watch::Watch;
use crate::control::Reply;
use crate::control::apply::State;
use crate::control::roles::Roles;
use crate::failure::Failure;
use crate::metrics::Load;
use crate::monitor::{Board, Served};
use crate::server::{Server, ServerError};
use crate::state::keeper::Keeper;

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

/// Why a change is not made.
pub(super) enum Refused {
    /// The files would have errors.
    File(Diagnostics),
    Server(Box<ServerError>),
    /// The reply says it.
    Reply(Reply),
    Other(String),
    /// A later reload has replaced it.
    Replaced,
    /// The daemon is exiting.
    Exit,
}

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Refused {
        Refused::Server(Box::new(error))
    }
}

impl From<Diagnostics> for Refused {
    fn from(found: Diagnostics) -> Refused {
        Refused::File(found)
    }
}

/// What all changes share.
pub(super) struct Shared {
    pub(super) file: PathBuf,
    /// The settings at the start, which the control socket has.
    pub(super) at_start: DaemonSettings,
    /// For those who observe what is served.
    pub(super) board: Board,
    pub(super) news: mpsc::UnboundedSender<ServerEvent>,
    /// The runtime in which sockets are served.
    pub(super) sockets: Handle,
    pub(super) in_force: RefCell<InForce>,
    pub(super) helpers: Helpers,
    /// Only who has it prepares a change and puts it into force, so what is written is what is in force.
    pub(super) keeper: Mutex<Keeper>,
    pub(super) tasks: Tasks,
}

/// Pending changes, and what they are woken by.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) set: RefCell<JoinSet<()>>,
    /// What they are for, by number.
    pub(super) pending: RefCell<BTreeMap<u64, Purpose>>,
    /// Notified when one has ended.
    pub(super) ended: Notify,
    /// Sent by each reload, which replaces those before it.
    pub(super) reloads: watch::Sender<()>,
    /// Notified when the state could not be written.
    pub(super) unsaved: Notify,
    /// Whether the daemon is exiting.
    pub(super) exits: watch::Sender<bool>,
}

/// What is in force.
pub(super) struct InForce {
    pub(super) server: Server,
    pub(super) state: State,
    /// Roles of clients, as the host file states them.
    pub(super) roles: Roles,
    /// The last attempt to load the host file.
    pub(super) load: Load,
    /// Number of changes so far.
    pub(super) version: u64,
    pub(super) watch: Watch,
}

impl Shared {
    /// Tells the monitor what is served.
    pub(super) fn publish(&self) {
        let InForce { server, state, roles, load, .. } = &*self.in_force.borrow();
        let aside = state.saved.overrides.aside().map(|known| (known.name(), known.value())).collect();
        self.board.publish(Served { aside, ..server.served(roles, &self.file, *load) });
    }

    /// Reports that all devices are down, if they are.
    pub(super) fn check_devices(&self, server: &Server) {
        if server.is_dead() {
            let _ = self.news.send(ServerEvent::Dead);
        }
    }

    /// Waits until the daemon exits.
    pub(super) async fn exit(&self) {
        let _ = self.tasks.exits.subscribe().wait_for(|exits| *exits).await;
    }
}

impl InForce {
    /// Returns the state in a line, for `systemctl status`.
    pub(super) fn status(&self) -> String {
        self.watch.status(&self.server)
    }
}

/// A pending change, until it is dropped.
pub(super) struct Pending {
    shared: Rc<Shared>,
    number: u64,
}

impl Pending {
    pub(super) fn new(shared: &Rc<Shared>, purpose: Purpose) -> Pending {
        let mut pending = shared.tasks.pending.borrow_mut();
        let number = pending.last_key_value().map_or(0, |(number, _)| number + 1);
        pending.insert(number, purpose);
        Pending { shared: Rc::clone(shared), number }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.tasks.pending.borrow_mut().remove(&self.number);
        self.shared.tasks.ended.notify_one();
    }
}
