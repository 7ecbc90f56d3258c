//! What helpers have found: open volumes, sockets, disks and logs, until a change puts them into force.
//!
//! A helper adds each part to its [`Progress`] as soon as it has it. So if it hangs at one path, whoever waits for it gives it up
//! and takes what it has found until then; the helper drops what it finds afterwards, and ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_config::Volume;
use sluice_io::listener::{Bound, Endpoint, ListenError};
use sluice_io::source::{DiskSet, SourceError};

use super::VolumeName;
use super::commit::{CLOSE_MAX, close};
use super::opening::{Opened, Resized};

type Sized = (Option<u64>, Result<Resized, SourceError>);

/// What was found. Dropping it closes what was not put into force, on a thread of its own: that may take as long as a disk or a
/// file system hangs.
#[derive(Default)]
pub(crate) struct Found {
    pub(super) volumes: BTreeMap<VolumeName, (Volume, Result<Opened, SourceError>)>,
    pub(super) resized: BTreeMap<VolumeName, Sized>,
    pub(super) disks: BTreeMap<String, (PathBuf, Result<DiskSet, SourceError>)>,
    pub(super) logs: BTreeMap<String, (PathBuf, io::Result<File>)>,
    /// By their names.
    pub(super) sockets: BTreeMap<String, (Endpoint, Result<Bound, ListenError>)>,
    /// Paths at which a helper was given up, and how long it had waited there.
    pub(super) hung: BTreeMap<PathBuf, Duration>,
}

/// How far a helper has come: what it has found, and what it looks at since when.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

struct State {
    path: PathBuf,
    since: Instant,
    found: Found,
    is_given_up: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let (path, since) = (PathBuf::new(), Instant::now());
        Progress(Arc::new(Mutex::new(State { path, since, found: Found::default(), is_given_up: false })))
    }

    /// The path that the helper looks at, and since when.
    pub(crate) fn now(&self) -> (PathBuf, Instant) {
        let state = self.state();
        (state.path.clone(), state.since)
    }

    /// The helper looks at this path from now on.
    pub(crate) fn set(&self, path: &Path) {
        let mut state = self.state();
        (state.path, state.since) = (path.to_owned(), Instant::now());
    }

    /// Adds a part. Returns `false`, and adds nothing, if the helper was given up.
    #[must_use]
    pub(super) fn add(&self, part: impl FnOnce(&mut Found)) -> bool {
        let mut state = self.state();
        if !state.is_given_up {
            part(&mut state.found);
        }
        !state.is_given_up
    }

    /// Takes what was found, and gives the helper up: it adds nothing any more.
    pub(crate) fn take(&self) -> Found {
        let mut state = self.state();
        state.is_given_up = true;
        take(&mut state.found)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    pub(super) fn has_volume(&self, name: &VolumeName, volume: &Volume) -> bool {
        self.volumes.get(name).is_some_and(|(of, _)| of == volume)
    }

    pub(super) fn has_disk(&self, device: &str, path: &Path) -> bool {
        self.disks.get(device).is_some_and(|(of, _)| of == path)
    }

    pub(super) fn volume(&self, name: &VolumeName) -> Option<&Result<Opened, SourceError>> {
        self.volumes.get(name).map(|(_, opened)| opened)
    }

    pub(super) fn take_volume(&mut self, name: &VolumeName) -> Option<Result<Opened, SourceError>> {
        self.volumes.remove(name).map(|(_, opened)| opened)
    }

    pub(super) fn has_resized(&self, name: &VolumeName, size: Option<u64>) -> bool {
        self.resized.get(name).is_some_and(|(of, _)| *of == size)
    }

    pub(super) fn take_resized(&mut self, name: &VolumeName) -> Option<Result<Resized, SourceError>> {
        self.resized.remove(name).map(|(_, resized)| resized)
    }

    pub(super) fn take_disk(&mut self, device: &str) -> Option<Result<DiskSet, SourceError>> {
        self.disks.remove(device).map(|(_, disks)| disks)
    }

    pub(super) fn has_log(&self, device: &str, path: &Path) -> bool {
        self.logs.get(device).is_some_and(|(of, _)| of == path)
    }

    pub(super) fn take_log(&mut self, device: &str) -> Option<io::Result<File>> {
        self.logs.remove(device).map(|(_, log)| log)
    }

    pub(super) fn has_socket(&self, endpoint: &Endpoint) -> bool {
        self.sockets.get(&endpoint.to_string()).is_some_and(|(of, _)| of == endpoint)
    }

    pub(super) fn take_socket(&mut self, name: &str) -> Option<Result<Bound, ListenError>> {
        self.sockets.remove(name).map(|(_, bound)| bound)
    }

    /// The sockets that are left out because their folders hang, and their errors.
    pub(super) fn hung_sockets(&self) -> BTreeMap<String, String> {
        let hung = |(name, (_, bound)): (&String, &(Endpoint, Result<_, ListenError>))| match bound {
            Err(error @ ListenError::Silent { .. }) => Some((name.clone(), error.to_string())),
            _ => None,
        };
        self.sockets.iter().filter_map(hung).collect()
    }

    /// A helper was given up at this path, where it had waited for `time`.
    pub(crate) fn hangs(&mut self, path: PathBuf, time: Duration) {
        self.hung.insert(path, time);
    }

    /// Adds what was found later. What that replaces is closed with `later`.
    pub(crate) fn add(&mut self, mut later: Found) {
        exchange(&mut self.sockets, &mut later.sockets);
        exchange(&mut self.volumes, &mut later.volumes);
        exchange(&mut self.resized, &mut later.resized);
        exchange(&mut self.disks, &mut later.disks);
        exchange(&mut self.logs, &mut later.logs);
        exchange(&mut self.hung, &mut later.hung);
    }
}

/// Moves all of `from` to `to`; what that replaces goes to `from`.
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
