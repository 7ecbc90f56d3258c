//! What all changes share: the configuration in force, who may make a change, and which changes are pending.
//!
//! All of it belongs to one thread. No borrow is held while something is waited for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, poll_fn};
use std::panic::resume_unwind;
use std::path::PathBuf;

use sluice_api::event::Event;
use sluice_api::printed::Serving;
use sluice_api::status::RefusedReload;
use sluice_config::DaemonSettings;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::helpers::{Helpers, Purpose};
use super::watch::Watch;
use crate::control::apply::State;
use crate::control::audit::RoleRefusals;
use crate::control::roles::Roles;
use crate::events::Reporter;
use crate::failure::Failure;
use crate::metrics::Load;
use crate::monitor::{Board, Served};
use crate::server::Server;
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

/// What all changes share.
pub(super) struct Shared {
    pub(super) file: PathBuf,
    /// The settings at the start, which the control socket has.
    pub(super) at_start: DaemonSettings,
    /// For those who observe what is served.
    pub(super) board: Board,
    pub(super) reporter: Reporter,
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
    /// Each returns its number.
    pub(super) set: RefCell<JoinSet<u64>>,
    /// What they are for, by number.
    pub(super) pending: RefCell<BTreeMap<u64, Purpose>>,
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
    /// The last reload, if it was refused.
    pub(super) refused_reload: Option<RefusedReload>,
    pub(super) role_refusals: RoleRefusals,
    /// Number of changes so far.
    pub(super) version: u64,
    pub(super) watch: Watch,
}

impl Shared {
    /// Tells the monitor what is served.
    pub(super) fn publish(&self) {
        let InForce { server, state, roles, load, refused_reload, .. } = &*self.in_force.borrow();
        let overrides = &state.saved.overrides;
        let aside = overrides.aside().map(|known| (known.name(), known.value())).collect();
        let (overrides, refused_reload) = (overrides.summary(), refused_reload.clone());
        self.board.publish(Served { aside, overrides, refused_reload, ..server.served(roles, &self.file, *load) });
    }

    /// Keeps events of what was done.
    pub(super) fn report(&self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.reporter.happened(event));
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

impl Tasks {
    /// Adds what a change is for. Returns its number.
    pub(super) fn number(&self, purpose: Purpose) -> u64 {
        let mut pending = self.pending.borrow_mut();
        let number = pending.last_key_value().map_or(0, |(number, _)| number + 1);
        pending.insert(number, purpose);
        number
    }

    /// Waits until a change has ended.
    ///
    /// # Panics
    /// If it panicked: what is in force is not known then.
    pub(super) async fn ended(&self) {
        match poll_fn(|context| self.set.borrow_mut().poll_join_next(context)).await {
            Some(Ok(number)) => drop(self.pending.borrow_mut().remove(&number)),
            Some(Err(error)) => resume_unwind(error.into_panic()),
            None => pending().await,
        }
    }

    /// Returns the names of overrides that pending changes are to end.
    pub(super) fn ending(&self) -> BTreeSet<String> {
        let pending = self.pending.borrow();
        let names = pending.values().filter_map(|purpose| match purpose {
            Purpose::Expiry(names) => Some(names),
            Purpose::Start | Purpose::Change | Purpose::Retry(_) => None,
        });
        names.flatten().cloned().collect()
    }
}

impl InForce {
    /// Returns the state in a line, for `systemctl status`.
    pub(super) fn status(&self) -> String {
        self.watch.status(&self.server)
    }
}
