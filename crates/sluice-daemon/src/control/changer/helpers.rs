//! Helper threads, for calls that may hang with a disk or a file system.
//!
//! A helper that waits for one path for [`PATH_TIMEOUT`] is abandoned. At most [`HELPERS_MAX`] run for requested changes, as many for
//! the end of overrides, and at most [`SAME_PATH_MAX`] wait for the same path. A start leaves one helper at each path that hangs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::refused::Refused;
use crate::server::{Found, Progress, ServerError};

/// Maximum time that a helper may wait for one path.
pub const PATH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at the start, where helpers wait up to 5 s for the locks of a dead daemon.
const PATH_TIMEOUT_AT_START: Duration = Duration::from_secs(10);
/// Maximum number of helpers for requested changes; further changes are rejected. The same for the end of overrides, which do not
/// take those of requested changes.
const HELPERS_MAX: usize = 16;
/// Maximum number of helpers that wait for the same path; further changes that need it are rejected immediately.
/// There may be more than one because the first helper may not have returned although the path responds again.
const SAME_PATH_MAX: usize = 2;

/// What a change, and its helpers, are for.
#[derive(Clone, PartialEq)]
pub(super) enum Purpose {
    /// The start, which abandons a helper at each path that hangs.
    Start,
    /// A requested change.
    Change,
    /// The end of overrides with these names.
    Expiry(BTreeSet<String>),
    /// A retry of this volume, which is out of service.
    Retry(ObjectId),
}

/// The helpers that have not returned. The changes of some may have abandoned them.
#[derive(Default)]
pub(super) struct Helpers(RefCell<Vec<Helper>>);

struct Helper {
    progress: Progress,
    purpose: Purpose,
    runs: Weak<()>,
}

/// A helper that a change waits for. Dropping it abandons the helper: its results are closed, and it stops at the next path.
struct Helping(Progress);

impl Drop for Helping {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

impl Helpers {
    /// Makes calls on `paths` on a helper thread. Returns what they return, and what they have found.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        purpose: Purpose,
        paths: &[PathBuf],
        job: impl FnOnce(&Progress) -> T + Send + 'static,
    ) -> Result<(T, Found), Refused> {
        if matches!(purpose, Purpose::Change | Purpose::Expiry(_)) {
            self.may_run(paths, &purpose).map_err(Refused::Other)?;
        }
        let max = if purpose == Purpose::Start { PATH_TIMEOUT_AT_START } else { PATH_TIMEOUT };
        let (helping, runs) = (Helping(Progress::default()), Arc::new(()));
        let helper = Helper { progress: helping.0.clone(), purpose, runs: Arc::downgrade(&runs) };
        let (done, mut outcome) = oneshot::channel();
        let progress = helping.0.clone();
        let spawned = thread::Builder::new().name("open".to_owned()).spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| job(&progress)));
            drop(runs);
            let _ = done.send(result.ok());
        });
        spawned.map_err(|error| Refused::Other(format!("Cannot start a thread: {error}")))?;
        self.running().push(helper);
        loop {
            let (path, since) = helping.0.now();
            tokio::select! {
                biased;
                result = &mut outcome => {
                    let panicked = || Refused::Other("The helper thread panicked; see the log".to_owned());
                    return Ok((result.ok().flatten().ok_or_else(panicked)?, helping.0.take()));
                }
                () = sleep_until((since + max).into()) => {
                    if helping.0.now().1 == since {
                        return Err(Refused::Hangs(path, max, helping.0.take().into()));
                    }
                }
            }
        }
    }

    fn running(&self) -> std::cell::RefMut<'_, Vec<Helper>> {
        let mut helpers = self.0.borrow_mut();
        helpers.retain(|helper| helper.runs.strong_count() > 0);
        helpers
    }

    /// Returns what is being retried, also by abandoned helpers.
    pub(super) fn retrying(&self) -> BTreeSet<ObjectId> {
        self.running().iter().filter_map(|helper| helper.purpose.retried()).cloned().collect()
    }

    /// Checks whether a helper may be started for a change that needs `paths`. The error is the reason why not.
    fn may_run(&self, paths: &[PathBuf], purpose: &Purpose) -> Result<(), String> {
        let (now, helpers) = (Instant::now(), self.running());
        let at = helpers.iter().map(|helper| helper.progress.now());
        let hung: Vec<_> = at.filter(|(_, since)| now.duration_since(*since) >= PATH_TIMEOUT).collect();
        for path in paths {
            let since = hung.iter().filter(|(at, _)| at == path).map(|(_, since)| *since);
            if since.clone().count() >= SAME_PATH_MAX {
                let first = since.min().expect("there are some");
                return Err(hangs(path, now.duration_since(first)));
            }
        }
        let is_same = |helper: &&Helper| discriminant(&helper.purpose) == discriminant(purpose);
        let busy: Vec<_> = helpers.iter().filter(is_same).collect();
        if busy.len() < HELPERS_MAX {
            return Ok(());
        }
        let paths: BTreeSet<PathBuf> = busy.into_iter().map(|helper| helper.progress.now().0).collect();
        let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let paths = paths.join(", ");
        Err(format!("{HELPERS_MAX} helper threads wait for these paths: {paths}; retry when they respond"))
    }
}

impl Purpose {
    /// The volume that is retried.
    pub(super) fn retried(&self) -> Option<&ObjectId> {
        match self {
            Purpose::Retry(name) => Some(name),
            Purpose::Start | Purpose::Change | Purpose::Expiry(_) => None,
        }
    }
}

/// Returns the error for a path that has hung for this time.
pub(super) fn hangs(path: &Path, time: Duration) -> String {
    ServerError::Hangs { path: path.to_owned(), seconds: time.as_secs() }.to_string()
}
