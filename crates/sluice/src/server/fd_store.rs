//! TAPs in the descriptor store of the service manager, so that a restart of the daemon does not take their carrier.
//!
//! A TAP without a process that holds it has no carrier, and one that the daemon has made is gone: a container loses its interface, and a
//! bridge its port. systemd keeps descriptors that a service gives it (`FileDescriptorStoreMax=`), and passes them to the next process of the
//! service. Frames of that time wait in the kernel's queue of the TAP. Without a store, the TAP flaps.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

use sd_notify::NotifyState;
use sluice_io::inherited;
use sluice_io::uplink::link::Link;

/// Beginning of the names in the store; the name of the TAP follows.
const PREFIX: &str = "tap-";

/// The store, as this process knows it.
#[derive(Default)]
pub(super) struct FdStore(Mutex<State>);

#[derive(Default)]
struct State {
    /// TAPs from the store that are not in use yet.
    resting: BTreeMap<String, OwnedFd>,
    /// Names of all TAPs in the store.
    stored: BTreeSet<String>,
}

impl FdStore {
    /// Takes what the store has kept for this process.
    pub(super) fn of_environment() -> FdStore {
        let name = |(name, fd): (String, OwnedFd)| Some((name.strip_prefix(PREFIX)?.to_owned(), fd));
        let resting: BTreeMap<String, OwnedFd> = inherited::take().into_iter().filter_map(name).collect();
        let stored = resting.keys().cloned().collect();
        FdStore(Mutex::new(State { resting, stored }))
    }

    /// Returns the TAP of this name from before the restart, if there is one.
    pub(super) fn take(&self, name: &str) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).resting.remove(name)
    }

    /// Whether the TAP of this name from before the restart is not in use yet.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).resting.contains_key(name)
    }

    /// Puts a TAP into the store. One of this name that the store has was deleted, and this one was made in its place.
    pub(super) fn keep(&self, link: &Link) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.stored.insert(link.name().to_owned()) {
            remove(link.name());
        }
        let name = format!("{PREFIX}{}", link.name());
        let states = [NotifyState::FdStore, NotifyState::FdName(&name), NotifyState::Custom("FDPOLL=0")];
        if let Err(error) = sd_notify::notify_with_fds(&states, &[link.as_fd()]) {
            tracing::warn!(tap = link.name(), %error, "Cannot keep the TAP over a restart");
        }
    }

    /// Removes all TAPs from the store but these.
    pub(super) fn forget_others(&self, used: &BTreeSet<&str>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.resting.retain(|name, _| used.contains(name.as_str()));
        state.stored.extract_if(.., |name| !used.contains(name.as_str())).for_each(|name| remove(&name));
    }
}

/// Removes a TAP from the store.
fn remove(tap: &str) {
    let name = format!("{PREFIX}{tap}");
    if let Err(error) = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]) {
        tracing::warn!(tap, %error, "Cannot remove a TAP from the store of the service manager");
    }
}
