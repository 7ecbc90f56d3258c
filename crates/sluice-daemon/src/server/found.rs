//! Results of helpers: open resources, until a change puts them into force.
//!
//! A helper adds each result to its [`Progress`] immediately. If it hangs at a path, the change abandons it and uses
//! the results until then. The helper drops later results and ends.

use std::collections::BTreeMap;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ServerError;
use super::closing::close;
use super::kinds::{Listed, Need, Open, ResourceKey};

/// Results of helpers. Dropping it closes those that were not put into force in a separate thread, because this may
/// hang with a disk or a file system.
#[derive(Default)]
pub struct Found {
    /// What was opened, and what it was opened for.
    results: BTreeMap<ResourceKey, (Need, Result<Open, ServerError>)>,
    /// Paths at which a helper was abandoned, and how long it had waited there.
    hung: BTreeMap<PathBuf, Duration>,
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
    pub(super) fn insert<K: Listed>(&mut self, need: K, opened: Result<K::Open, ServerError>) {
        self.results.insert(need.key(), (need.into_need(), opened.map(K::into_open)));
    }

    /// Returns what meets a need.
    pub(super) fn met(&self, key: &ResourceKey, need: &Need) -> Option<&Result<Open, ServerError>> {
        self.results.get(key).filter(|(other, _)| need.is_met_by(other)).map(|(_, opened)| opened)
    }

    pub(super) fn error(&self, key: &ResourceKey) -> Option<&ServerError> {
        self.results.get(key)?.1.as_ref().err()
    }

    pub(super) fn opened<K: Listed>(&self, key: &ResourceKey) -> Option<&K::Open> {
        K::opened(self.results.get(key)?.1.as_ref().ok()?)
    }

    /// Takes a result of this kind, if there is one.
    ///
    /// # Errors
    /// It could not be opened.
    pub(super) fn take<K: Listed>(&mut self, key: &ResourceKey) -> Result<Option<K::Open>, ServerError> {
        self.results.remove(key).map_or(Ok(None), |(_, opened)| opened.map(K::from_open))
    }

    /// Takes a result that is not put into force.
    ///
    /// # Errors
    /// It could not be opened.
    pub(super) fn refuse(&mut self, key: &ResourceKey) -> Result<(), ServerError> {
        self.results.remove(key).map_or(Ok(()), |(_, opened)| opened.map(drop))
    }

    /// Closes results that are not put into force.
    pub(super) fn forget(&mut self, keys: impl Iterator<Item = ResourceKey>) {
        close(keys.filter_map(|key| self.results.remove(&key)).collect());
    }

    /// Returns the errors of this kind.
    pub(super) fn errors<K: Listed>(&self) -> impl Iterator<Item = (&K, &ServerError)> {
        self.results.values().filter_map(|(need, opened)| Some((K::of(need)?, opened.as_ref().err()?)))
    }

    /// Whether something of this kind was opened.
    pub(super) fn has<K: Listed>(&self) -> bool {
        self.results.values().any(|(_, opened)| opened.as_ref().is_ok_and(|open| K::opened(open).is_some()))
    }

    /// Records that a helper was abandoned at this path after waiting for `time`.
    pub fn hangs(&mut self, path: PathBuf, time: Duration) {
        self.hung.insert(path, time);
    }

    pub(super) fn take_hung(&mut self) -> BTreeMap<PathBuf, Duration> {
        take(&mut self.hung)
    }

    /// Records the error of a resource that could not be looked at.
    pub(super) fn fail(&mut self, need: Need, error: ServerError) {
        self.results.insert(need.key(), (need, Err(error)));
    }

    /// Adds later results. Results that they replace are closed with `later`.
    pub fn add(&mut self, mut later: Found) {
        self.hung.append(&mut later.hung);
        for (key, result) in take(&mut later.results) {
            if let Some(replaced) = self.results.insert(key.clone(), result) {
                later.results.insert(key, replaced);
            }
        }
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        let results = take(&mut self.results);
        if !results.is_empty() {
            close(vec![results]);
        }
    }
}
