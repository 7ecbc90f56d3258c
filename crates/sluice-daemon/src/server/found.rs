//! Results of helpers: open volumes, sockets, disks and logs, until a change puts them into force.
//!
//! A helper adds each result to its [`Progress`] immediately. If it hangs at a path, the change abandons it and uses
//! the results until then. The helper drops later results and ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_config::Volume;
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::source::{DiskSet, SourceError};

use super::commit::{CLOSE_MAX, close};
use super::opening::{Needs, Opened};
use super::resizing::Resized;
use super::{Reason, ServerError};
use crate::failure::chain;

type Sized = (Option<u64>, Result<Resized, SourceError>);

/// Results of helpers. Dropping it closes those that were not put into force in a separate thread, because this may
/// hang with a disk or a file system.
#[derive(Default)]
pub struct Found {
    pub(super) volumes: BTreeMap<ObjectId, (Arc<Volume>, Result<Opened, SourceError>)>,
    pub(super) resized: BTreeMap<ObjectId, Sized>,
    pub(super) disks: BTreeMap<String, (PathBuf, Result<DiskSet, SourceError>)>,
    pub(super) logs: BTreeMap<String, (PathBuf, io::Result<File>)>,
    /// By name.
    pub(super) sockets: BTreeMap<String, (Endpoint, Result<Bound, ListenError>)>,
    /// Sockets that were only tried, by name.
    pub(super) tried: BTreeMap<String, Result<(), ListenError>>,
    /// Paths at which a helper was abandoned, and how long it had waited there.
    pub(super) hung: BTreeMap<PathBuf, Duration>,
}

/// State of a helper: its results, the path that it waits for, and since when.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<State>>);

struct State {
    path: PathBuf,
    since: Instant,
    found: Found,
    is_given_up: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let (path, since) = (PathBuf::new(), Instant::now());
        Progress(Arc::new(Mutex::new(State { path, since, found: Found::default(), is_given_up: false })))
    }
}

impl Progress {
    /// Returns the path that the helper waits for, and since when.
    pub fn now(&self) -> (PathBuf, Instant) {
        let state = self.state();
        (state.path.clone(), state.since)
    }

    /// Sets the path that the helper waits for.
    pub fn set(&self, path: &Path) {
        let mut state = self.state();
        (state.path, state.since) = (path.to_owned(), Instant::now());
    }

    /// Adds a result. Returns `false`, and adds nothing, if the helper was abandoned.
    #[must_use]
    pub(super) fn add(&self, part: impl FnOnce(&mut Found)) -> bool {
        let mut state = self.state();
        if !state.is_given_up {
            part(&mut state.found);
        }
        !state.is_given_up
    }

    /// Takes the results and abandons the helper, which adds nothing more.
    pub fn take(&self) -> Found {
        let mut state = self.state();
        state.is_given_up = true;
        take(&mut state.found)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    pub(super) fn has_volume(&self, name: &ObjectId, volume: &Volume) -> bool {
        self.volumes.get(name).is_some_and(|(of, _)| **of == *volume)
    }

    pub(super) fn has_disk(&self, device: &str, path: &Path) -> bool {
        self.disks.get(device).is_some_and(|(of, _)| of == path)
    }

    pub(super) fn volume(&self, name: &ObjectId) -> Option<&Result<Opened, SourceError>> {
        self.volumes.get(name).map(|(_, opened)| opened)
    }

    pub(super) fn take_volume(&mut self, name: &ObjectId) -> Option<Result<Opened, SourceError>> {
        self.volumes.remove(name).map(|(_, opened)| opened)
    }

    pub(super) fn has_resized(&self, name: &ObjectId, size: Option<u64>) -> bool {
        self.resized.get(name).is_some_and(|(of, _)| *of == size)
    }

    pub(super) fn take_resized(&mut self, name: &ObjectId) -> Option<Result<Resized, SourceError>> {
        self.resized.remove(name).map(|(_, resized)| resized)
    }

    pub(super) fn take_disk(&mut self, device: &str) -> Option<Result<DiskSet, SourceError>> {
        self.disks.remove(device).map(|(_, disks)| disks)
    }

    pub(super) fn has_log(&self, device: &str, path: &Path) -> bool {
        self.logs.get(device).is_some_and(|(of, _)| of == path)
    }

    pub(super) fn take_log(&mut self, device: &str) -> Option<(PathBuf, io::Result<File>)> {
        self.logs.remove(device)
    }

    pub(super) fn has_socket(&self, endpoint: &Endpoint) -> bool {
        self.sockets.get(&endpoint.to_string()).is_some_and(|(of, _)| of == endpoint)
    }

    pub(super) fn take_socket(&mut self, name: &str) -> Option<Result<Bound, ListenError>> {
        self.sockets.remove(name).map(|(_, bound)| bound)
    }

    /// Fails with the error of a needed socket that could not be made, unless that is tolerated.
    pub(super) fn refuse_failed_sockets(&mut self, needs: &Needs) -> Result<(), ServerError> {
        for socket in &needs.sockets {
            let name = socket.endpoint.to_string();
            let bound = self.sockets.get(&name).map(|(_, bound)| bound);
            if matches!(bound, Some(Err(error)) if !socket.tolerance.covers(error)) {
                self.take_socket(&name).expect("it was there a moment ago")?;
            }
        }
        Ok(())
    }

    /// Returns the sockets that could not be made, with their errors.
    pub(super) fn failed_sockets(&self) -> BTreeMap<String, Reason> {
        let error = |(name, (_, bound)): (&String, &(Endpoint, Result<Bound, ListenError>))| {
            Some((name.clone(), Reason::Other(chain(bound.as_ref().err()?))))
        };
        self.sockets.iter().filter_map(error).collect()
    }

    /// Records that a helper was abandoned at this path after waiting for `time`.
    pub fn hangs(&mut self, path: PathBuf, time: Duration) {
        self.hung.insert(path, time);
    }

    /// Adds later results. Results that they replace are closed with `later`.
    pub fn add(&mut self, mut later: Found) {
        exchange(&mut self.sockets, &mut later.sockets);
        exchange(&mut self.volumes, &mut later.volumes);
        exchange(&mut self.resized, &mut later.resized);
        exchange(&mut self.disks, &mut later.disks);
        exchange(&mut self.logs, &mut later.logs);
        exchange(&mut self.tried, &mut later.tried);
        exchange(&mut self.hung, &mut later.hung);
    }
}

/// Moves all entries of `from` to `to`; replaced entries go to `from`.
fn exchange<K: Ord + Clone, V>(to: &mut BTreeMap<K, V>, from: &mut BTreeMap<K, V>) {
    for (key, value) in take(from) {
        if let Some(replaced) = to.insert(key.clone(), value) {
            from.insert(key, replaced);
        }
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        let (volumes, resized) = (take(&mut self.volumes), take(&mut self.resized));
        let (logs, sockets) = (take(&mut self.logs), take(&mut self.sockets));
        if !(volumes.is_empty() && resized.is_empty() && logs.is_empty() && sockets.is_empty()) {
            close(vec![(volumes, resized, logs, sockets)], CLOSE_MAX);
        }
    }
}
