//! Helper threads: their maximum number, and the retries of volumes that are out of service.
//!
//! At most [`HELPERS_MAX`] helpers run for requested changes, as many for the end of overrides, and at most [`SAME_PATH_MAX`] wait for the
//! same path.
//! Volumes that are out of service are retried each second, each by a separate helper, at most [`RETRIES_MAX`] for
//! one device. A volume gets no further helper until its last one has returned. A start leaves one helper at each
//! path that hangs.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;

use super::{Attempt, Event, Kind, Outcome, PATH_TIMEOUT, RETRY_EVERY, Thread, WaitsFor};
use crate::server::{Progress, ServerError};

/// Maximum number of helpers for requested changes; further changes are rejected. The same for the end of overrides, which do not
/// take those of requested changes.
const HELPERS_MAX: usize = 16;
/// Maximum number of helpers that wait for the same path; further changes that need it are rejected immediately.
/// There may be more than one because the first helper may not have returned although the path responds again.
const SAME_PATH_MAX: usize = 2;
/// Maximum number of helpers that retry volumes of one device; its other volumes wait.
const RETRIES_MAX: usize = 4;

/// A running helper thread. Its attempt may have been abandoned.
pub(super) struct Helper {
    progress: Progress,
    purpose: Purpose,
}

#[derive(PartialEq)]
enum Purpose {
    /// The start, which abandons a helper at each path that hangs.
    Start,
    /// A requested change.
    Change,
    /// The end of overrides.
    Expiry,
    /// A retry of this volume, which is out of service.
    Retry(ObjectId),
}

/// A helper that an attempt waits for. Dropping it abandons the helper: its results are closed, and it stops at the
/// next path.
pub(super) struct Helping(pub(super) Progress);

impl Drop for Helping {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

impl Thread {
    /// Looks each second at the interfaces of uplinks and NICs, and retries volumes that are out of service, each once per second, except those whose last helper has not
    /// returned.
    pub(super) fn retry_missing(&mut self) {
        let now = Instant::now();
        if now >= self.retry_at {
            self.retry_at = now + RETRY_EVERY;
            // A change that is being saved may have opened interfaces.
            if self.saving.is_none() {
                self.server.look_at_links();
            }
            let due = self.server.missing().keys().filter(|name| !self.retries.contains(name)).cloned();
            let due: Vec<_> = due.collect();
            self.retries.extend(due);
        }
        for name in std::mem::take(&mut self.retries) {
            let retrying = self.retrying();
            let device = self.server.device_of(&name);
            let is_out = self.server.missing().contains_key(&name) && !self.server.is_down(device);
            if !is_out || retrying.contains(&name) {
                continue;
            }
            match retrying.into_iter().filter(|retried| self.server.device_of(retried) == device).count() {
                RETRIES_MAX.. => self.retries.push_back(name),
                _ => self.begin(Kind::Retry(name)),
            }
        }
    }

    /// Returns the volumes that are being retried, also by abandoned helpers.
    fn retrying(&self) -> BTreeSet<&ObjectId> {
        let attempts = self.attempts.iter().filter_map(|attempt| match &attempt.kind {
            Kind::Retry(name) => Some(name),
            Kind::Start(_) | Kind::Change(_) | Kind::Reload(_) | Kind::Expire(_) => None,
        });
        let helpers = self.helpers.values().filter_map(|helper| match &helper.purpose {
            Purpose::Retry(name) => Some(name),
            Purpose::Start | Purpose::Change | Purpose::Expiry => None,
        });
        helpers.chain(attempts).collect()
    }

    /// Starts a helper for calls on `paths` that may hang.
    pub(super) fn help(
        &mut self,
        mut attempt: Attempt,
        paths: &[PathBuf],
        job: impl FnOnce(&Progress) -> Outcome + Send + 'static,
    ) {
        let purpose = match &attempt.kind {
            Kind::Start(_) => Purpose::Start,
            Kind::Change(_) | Kind::Reload(_) => Purpose::Change,
            Kind::Expire(_) => Purpose::Expiry,
            Kind::Retry(name) => Purpose::Retry(name.clone()),
        };
        if matches!(purpose, Purpose::Change | Purpose::Expiry)
            && let Err(error) = self.may_help(paths, &purpose)
        {
            return self.refuse(attempt, &error);
        }
        let progress = Progress::default();
        self.next += 1;
        attempt.number = self.next;
        let (events, number, own) = (self.events.clone(), attempt.number, progress.clone());
        let spawned = thread::Builder::new().name("open".to_owned()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| job(&own))).unwrap_or(Outcome::Panicked);
            let _ = events.send(Event::Back(number, outcome));
        });
        match spawned {
            Ok(_) => {
                self.helpers.insert(number, Helper { progress: progress.clone(), purpose });
                attempt.waits = WaitsFor::Helper(Helping(progress));
                self.attempts.push(attempt);
            }
            Err(error) => self.refuse(attempt, &format!("Cannot start a thread: {error}")),
        }
    }

    /// Checks whether a helper may be started for a change that needs `paths`. The error is the reason why not.
    fn may_help(&self, paths: &[PathBuf], purpose: &Purpose) -> Result<(), String> {
        let now = Instant::now();
        let at = self.helpers.values().map(|helper| helper.progress.now());
        let hung: Vec<_> = at.filter(|(_, since)| now.duration_since(*since) >= PATH_TIMEOUT).collect();
        for path in paths {
            let since = hung.iter().filter(|(at, _)| at == path).map(|(_, since)| *since);
            if since.clone().count() >= SAME_PATH_MAX {
                let first = since.min().expect("there are some");
                return Err(hangs(path, now.duration_since(first)));
            }
        }
        let busy: Vec<_> = self.helpers.values().filter(|helper| helper.purpose == *purpose).collect();
        if busy.len() < HELPERS_MAX {
            return Ok(());
        }
        let paths: BTreeSet<PathBuf> = busy.into_iter().map(|helper| helper.progress.now().0).collect();
        let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let paths = paths.join(", ");
        Err(format!("{HELPERS_MAX} helper threads wait for these paths: {paths}; retry when they respond"))
    }
}

/// Returns the error for a path that has hung for this time.
pub(super) fn hangs(path: &Path, time: Duration) -> String {
    ServerError::Hangs { path: path.to_owned(), seconds: time.as_secs() }.to_string()
}
