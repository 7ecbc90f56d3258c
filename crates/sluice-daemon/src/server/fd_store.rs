//! TAPs in the descriptor store of the service manager, so that a restart of the daemon does not take their carrier.
//!
//! A TAP without a process that holds it has no carrier, and one that the daemon has made is gone: a container loses its interface, and a
//! bridge its port. systemd keeps descriptors that a service gives it (`FileDescriptorStoreMax=`), and passes them to the next process of the
//! service. Frames of that time wait in the kernel's queue of the TAP. Without a store, the TAP flaps.
//!
//! A TAP that is removed from the store, or closed by its thread, exists for a moment longer. The daemon waits for its end before it uses
//! the name again: until then the TAP looks like that of another process.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use sluice_io::inherited;
use sluice_io::uplink::link::{Link, interface};

use crate::notify::notify;

/// Beginning of the names in the store; the name of the TAP follows.
const PREFIX: &str = "tap-";
/// Maximum time until a TAP that was removed has gone, and the time between two looks.
const GONE_MAX: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// The store, as this process knows it.
#[derive(Default)]
pub(super) struct FdStore(Mutex<State>);

#[derive(Default)]
struct State {
    /// TAPs from the store that are not in use yet.
    resting: BTreeMap<String, OwnedFd>,
    /// Names of all TAPs in the store.
    stored: BTreeSet<String>,
    /// Names of TAPs that were removed from it, which may exist for a moment longer.
    removed: BTreeSet<String>,
}

impl FdStore {
    /// Takes what the store has kept for this process.
    pub(super) fn of_environment() -> FdStore {
        let name = |(name, fd): (String, OwnedFd)| Some((name.strip_prefix(PREFIX)?.to_owned(), fd));
        let resting: BTreeMap<String, OwnedFd> = inherited::take().into_iter().filter_map(name).collect();
        let stored = resting.keys().cloned().collect();
        FdStore(Mutex::new(State { resting, stored, removed: BTreeSet::new() }))
    }

    /// Returns the TAP of this name from before the restart, if there is one.
    pub(super) fn take(&self, name: &str) -> Option<OwnedFd> {
        self.state().resting.remove(name)
    }

    /// Puts a TAP back that [`FdStore::take`] has returned, because it cannot be used yet.
    pub(super) fn rest(&self, name: &str, fd: OwnedFd) {
        self.state().resting.insert(name.to_owned(), fd);
    }

    /// Puts a TAP into the store. One of this name that the store has was deleted, and this one was made in its place.
    pub(super) fn keep(&self, link: &Link) {
        let mut state = self.state();
        if !state.stored.insert(link.name().to_owned()) {
            remove(link.name());
        }
        let name = format!("FDNAME={PREFIX}{}", link.name());
        let states = ["FDSTORE=1", &name, "FDPOLL=0"].map(NotifyState::Custom);
        if let Err(error) = notify(&states, &[link.as_fd()]) {
            tracing::warn!(tap = link.name(), %error, "Cannot keep the TAP across a restart");
        }
    }

    /// Removes a TAP that cannot be used.
    pub(super) fn forget(&self, name: &str) {
        let mut state = self.state();
        state.resting.remove(name);
        if state.stored.remove(name) {
            remove(name);
            state.removed.insert(name.to_owned());
        }
    }

    /// Removes all TAPs from the store but these.
    pub(super) fn forget_others(&self, used: &BTreeSet<&str>) {
        self.state().removed.retain(|name| interface::mtu(name).is_ok());
        let others: Vec<String> =
            self.state().stored.iter().filter(|name| !used.contains(name.as_str())).cloned().collect();
        others.iter().for_each(|name| self.forget(name));
    }

    /// Waits for the end of a removed TAP of this name, if there is one that another holder has not closed yet.
    pub(super) fn wait_for_end(&self, name: &str) {
        if !self.state().removed.remove(name) {
            return;
        }
        let until = Instant::now() + GONE_MAX;
        while interface::mtu(name).is_ok() && Instant::now() < until {
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a TAP from the store.
fn remove(tap: &str) {
    let name = format!("FDNAME={PREFIX}{tap}");
    if let Err(error) = notify(&["FDSTOREREMOVE=1", &name].map(NotifyState::Custom), &[]) {
        tracing::warn!(tap, %error, "Cannot remove a TAP from the store of the service manager");
    }
}
