//! Keeps the remaining bursts of limits while a scheduler is in force that does not enforce them.
//!
//! Such a scheduler states nothing of these limits when it is replaced. Without this table, a change to it and back would give
//! each VM its whole burst. The gate writes to the table when it replaces the scheduler or changes a policy, not for each request.

use core::time::Duration;

use crate::policy::Policy;
use crate::scheduler::Scope;
use crate::standing::Left;
use crate::time::Instant;

/// The remaining bursts of a VM or volume at an instant.
#[derive(Debug, Clone, Copy)]
struct Entry {
    scope: Scope,
    at: Instant,
    limits: [Left; 3],
}

/// Entries in the order of [`Scope`], at most one for each.
#[derive(Debug, Default)]
pub(super) struct Kept(Vec<Entry>);

impl Kept {
    fn place(&self, scope: Scope) -> Result<usize, usize> {
        self.0.binary_search_by_key(&scope, |entry| entry.scope)
    }

    /// Returns the remaining bursts at `now`. `policy` has been in force since the entry was written; its rates fill them.
    pub(super) fn at(&self, now: Instant, scope: Scope, policy: &Policy) -> [Left; 3] {
        let Ok(place) = self.place(scope) else { return Default::default() };
        let Entry { at, limits, .. } = self.0[place];
        Left::fill(limits, policy, now.since(at))
    }

    /// Sets the remaining bursts at `now`. Removes the entry if none is known.
    pub(super) fn set(&mut self, now: Instant, scope: Scope, limits: [Left; 3]) {
        let entry = Entry { scope, at: now, limits };
        match (self.place(scope), limits == <[Left; 3]>::default()) {
            (Ok(place), true) => drop(self.0.remove(place)),
            (Ok(place), false) => self.0[place] = entry,
            (Err(_), true) => {}
            (Err(place), false) => self.0.insert(place, entry),
        }
    }

    /// Notes that a policy changes now. A limit that is removed is forgotten; when it is set again it has its whole burst.
    pub(super) fn change(&mut self, now: Instant, scope: Scope, old: &Policy, new: &Policy) {
        if !self.0.is_empty() {
            let limits = self.at(now, scope, old);
            self.set(now, scope, Left::fill(limits, new, Duration::ZERO));
        }
    }

    /// Forgets a VM with its volumes, or a volume.
    pub(super) fn forget(&mut self, scope: Scope) {
        let is_covered = |other: Scope| other == scope || scope == Scope::Owner(other.owner());
        self.0.retain(|entry| !is_covered(entry.scope));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{OwnerId, VolumeId};
    use crate::standing::Balance;

    fn left(cost: i64) -> [Left; 3] {
        let known = Left { limit: Balance { cost: Some(cost << 16), bytes: None }, ..Left::default() };
        [known, Left::default(), Left::default()]
    }

    #[test]
    fn each_policy_fills_for_its_own_time() {
        let mut kept = Kept::default();
        let [fast, slow] = [100, 10].map(|iops| Policy::default().limited(iops));
        let own = Scope::Owner(OwnerId(1));
        kept.set(Instant::ZERO, own, left(-500));
        kept.change(Instant::from_millis(1000), own, &slow, &fast);
        kept.change(Instant::from_millis(2000), own, &fast, &slow);
        assert_eq!(kept.at(Instant::from_millis(3000), own, &slow), left(-500 + 10 + 100 + 10));
        kept.change(Instant::from_millis(3000), own, &slow, &Policy::default());
        assert_eq!(kept.at(Instant::from_millis(3000), own, &slow), <[Left; 3]>::default(), "it had no limit");
        assert!(kept.0.is_empty());
    }

    #[test]
    fn a_removed_vm_takes_its_volumes_with_it_and_a_volume_only_itself() {
        let mut kept = Kept::default();
        let limited = Policy::default().limited(100);
        let known = |kept: &Kept, scope| kept.at(Instant::ZERO, scope, &limited) != <[Left; 3]>::default();
        let [first, second] = [1, 2].map(OwnerId);
        let volume = |owner, volume| Scope::Volume(owner, VolumeId(volume));
        let all = [volume(second, 0), Scope::Owner(first), volume(first, 1), volume(first, 0), Scope::Owner(second)];
        all.iter().for_each(|scope| kept.set(Instant::ZERO, *scope, left(1)));
        kept.forget(volume(first, 1));
        assert_eq!(all.map(|scope| known(&kept, scope)), [true, true, false, true, true]);
        kept.forget(Scope::Owner(first));
        assert_eq!(all.map(|scope| known(&kept, scope)), [true, false, false, false, true]);
    }
}
