//! Opens what a change needs: everything that may hang with a disk or a file system.
//!
//! [`Needs::of`] lists what a host file needs in addition to what is served. The list does not refer to the server, so
//! [`Needs::meet`] may run on any thread, and be abandoned. The server puts its results into force if it still needs
//! them then.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::change::Change;
use super::claims::Claims;
use super::found::{Found, Progress};
use super::kinds::{Job, Listed, Need, ResourceKey, Terms};
use super::tolerance::Tolerance;
use super::volume::Opening;
use super::{Guard, Server, ServerError};

/// Maximum time that a start waits, for all its volumes together, for locks that the last requests of a dead daemon
/// hold. A reload does not wait, because the holder of a lock is then alive.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Everything that a host file needs and that does not exist yet.
pub struct Needs {
    /// In the order of the list of kinds and of the host file, each with the faults that put it out of service.
    table: Vec<(ResourceKey, Tolerance, Need)>,
    terms: Arc<Terms>,
}

impl Needs {
    /// Returns what a change needs.
    ///
    /// # Errors
    /// The change is rejected without a look at any path.
    pub(super) fn of(server: &Server, change: &Change, guard: &Guard<'_>) -> Result<Needs, ServerError> {
        let needed = Need::all(server, change, guard)?;
        let table = needed.into_iter().map(|(tolerance, need)| (need.key(), tolerance, need)).collect();
        let is_start = change.is_start;
        let lock_wait = if is_start { LOCK_WAIT } else { Duration::ZERO };
        let (claims, rivals) = (Claims::of(&change.host, guard), Opening::rivals(server, change));
        Ok(Needs { table, terms: Arc::new(Terms { is_start, lock_wait, claims, rivals }) })
    }

    /// Returns all of it, kind by kind.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceKey, Tolerance, &Need)> {
        self.table.iter().map(|(key, tolerance, need)| (key, *tolerance, need))
    }

    /// Returns what is needed of one kind.
    pub(super) fn each<K: Listed>(&self) -> impl Iterator<Item = (&ResourceKey, Tolerance, &K)> {
        self.iter().filter_map(|(key, tolerance, need)| Some((key, tolerance, K::of(need)?)))
    }

    /// Returns the paths that [`Needs::meet`] accesses, as it reports them.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.table.iter().flat_map(|(.., need)| need.paths()).collect()
    }

    /// Returns the part of it that is not in `found`, for a look at the host that makes nothing; `None` if all of it is.
    pub(super) fn untried(&self, found: &Found) -> Option<Needs> {
        let mut table = self.table.clone();
        table.iter_mut().for_each(|(.., need)| need.only_try());
        table.retain(|(key, _, need)| found.met(key, need).is_none());
        (!table.is_empty()).then(|| Needs { table, terms: Arc::clone(&self.terms) })
    }

    /// Does not wait for locks that a dead daemon has left.
    pub(super) fn without_waiting(mut self) -> Needs {
        Arc::get_mut(&mut self.terms).expect("no part of it was taken yet").lock_wait = Duration::ZERO;
        self
    }

    /// Returns the part of it that is not in `found`.
    pub(super) fn unmet(mut self, found: &Found) -> Needs {
        self.table.retain(|(key, _, need)| found.met(key, need).is_none());
        if self.each::<Opening>().next().is_some() {
            // A volume that is held back gets no socket.
            self.table.retain(|(key, ..)| !matches!(key, ResourceKey::Socket(_)));
        }
        self
    }

    /// Whether everything is in `found`, or an error for which the change is rejected.
    pub(super) fn are_met_by(&self, found: &Found) -> bool {
        let mut all = self.iter().map(|(key, _, need)| found.met(key, need).is_some());
        all.all(|is_met| is_met) || self.rejected(found).is_some()
    }

    /// Returns the first resource with an error for which the change is rejected.
    fn rejected(&self, found: &Found) -> Option<&ResourceKey> {
        let is_rejected = |(key, tolerance, need): &(&ResourceKey, Tolerance, &Need)| {
            found.met(key, need).is_some_and(|opened| opened.as_ref().is_err_and(|error| !tolerance.covers(error)))
        };
        self.iter().find(is_rejected).map(|(key, ..)| key)
    }

    /// Fails with the first error in `found` for which the change is rejected.
    pub(super) fn refuse_failed(&self, found: &mut Found) -> Result<(), ServerError> {
        self.rejected(found).map_or(Ok(()), |key| found.refuse(key))
    }

    /// Leaves out what cannot be looked at because its path hangs, and what hangs with it: resources without which the rest may go
    /// on.
    ///
    /// # Errors
    /// [`ServerError::Hangs`]: something that nothing may go on without.
    pub(super) fn leave_out_hung(&self, found: &mut Found) -> Result<(), ServerError> {
        for (path, time) in found.take_hung() {
            let seconds = time.as_secs();
            let unmet = || self.iter().filter(|(key, _, need)| found.met(key, need).is_none());
            let hung = unmet().find(|(.., need)| need.paths().contains(&path)).map(|(key, ..)| key);
            let hanging = unmet().filter(|(key, _, need)| Some(*key) == hung || need.hangs_with(hung, &path));
            let failed = hanging.map(|(_, tolerance, need)| (tolerance, need, need.silent(&path, seconds)));
            let left_out = failed.filter(|(tolerance, _, error)| tolerance.covers(error));
            let left_out: Vec<_> = left_out.map(|(_, need, error)| (need.clone(), error)).collect();
            if left_out.is_empty() {
                return Err(ServerError::Hangs { path, seconds });
            }
            left_out.into_iter().for_each(|(need, error)| found.fail(need, error));
        }
        Ok(())
    }

    /// Accesses the paths until the first error for which the change is rejected, or until the helper is abandoned. A start
    /// looks at all paths: a strict one reports all its errors together. Hangs as long as a disk or a file system does;
    /// `progress` has the path, and gets the results.
    pub fn meet(self, progress: &Progress) {
        let job = Job { terms: &self.terms, progress };
        let _ = Need::open_all(self.table.into_iter().map(|(_, tolerance, need)| (tolerance, need)).collect(), &job);
    }
}
