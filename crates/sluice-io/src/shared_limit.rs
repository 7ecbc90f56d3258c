//! A limit that several users share: connections of a host, mappings of guest memory.
//!
//! Each user of the limit (a socket) has a [`Quota`], from which it takes [`Permit`]s. One socket must not take all of
//! them, because the clients of others could not connect. So a number of permits is reserved for each quota: as long as
//! a quota has taken fewer, the rest is kept for it. At most half of the limit is reserved in total, so that a host
//! with more sockets than permits can use them.
//!
//! Example: the limit is 1024 connections with 2 reserved for each socket, and 9 of 10 sockets have no clients. The tenth
//! can open 1024 - 9 x 2 = 1006.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections reserved for each socket: one for its VM, and one for that VM on its next host, or back after its connection
/// broke, while the first has not ended.
pub const CONNECTIONS_PER_SOCKET: u32 = 2;

/// A limit shared by several quotas.
#[derive(Debug)]
pub struct SharedLimit {
    reserved_each: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    max: u32,
    taken: u32,
    /// Permits taken by each quota.
    quotas: BTreeMap<u64, u32>,
    next_quota: u64,
    /// Reserved permits that have not been taken, of all quotas.
    reserved: u32,
}

/// Why a quota has no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// All permits are taken.
    #[error("The limit is reached")]
    Full,
    /// The remaining permits are reserved for other quotas.
    #[error("The rest of the limit is reserved for other sockets")]
    Reserved,
}

/// No connections, with [`CONNECTIONS_PER_SOCKET`] reserved.
impl Default for SharedLimit {
    fn default() -> Self {
        SharedLimit::new(0, CONNECTIONS_PER_SOCKET)
    }
}

impl SharedLimit {
    /// Creates a limit of `max` permits, of which `reserved_each` are reserved for each quota.
    #[must_use]
    pub fn new(max: u32, reserved_each: u32) -> Self {
        SharedLimit { reserved_each, state: Mutex::new(State { max, ..State::default() }) }
    }

    /// Sets the limit. Permits that are taken stay valid, even above the new limit.
    pub fn set_max(&self, max: u32) {
        self.state().max = max;
    }

    /// Returns the limit.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.state().max
    }

    /// Creates the quota of one more user.
    #[must_use]
    pub fn quota(self: &Arc<Self>) -> Quota {
        let mut state = self.state();
        let number = state.next_quota;
        state.next_quota += 1;
        state.quotas.insert(number, 0);
        state.reserved += self.reserved_each;
        Quota { limit: Arc::clone(self), number }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One user's part of a limit. Dropping it ends its reservation; its permits stay valid.
#[derive(Debug)]
pub struct Quota {
    limit: Arc<SharedLimit>,
    number: u64,
}

impl Quota {
    /// Takes a permit. Dropping the permit returns it.
    ///
    /// # Errors
    /// [`LimitReached`].
    pub fn take(&self) -> Result<Permit, LimitReached> {
        let mut state = self.limit.state();
        let State { max, taken, reserved, .. } = *state;
        let here = state.quotas.get_mut(&self.number).expect("a quota has an entry until it is dropped");
        if taken >= max {
            return Err(LimitReached::Full);
        }
        if *here >= self.limit.reserved_each && taken + reserved.min(max / 2) >= max {
            return Err(LimitReached::Reserved);
        }
        *here += 1;
        let was_reserved = *here <= self.limit.reserved_each;
        state.taken += 1;
        state.reserved -= u32::from(was_reserved);
        Ok(Permit { limit: Arc::clone(&self.limit), quota: self.number })
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        let taken = state.quotas.remove(&self.number).expect("a quota has an entry until it is dropped");
        state.reserved -= self.limit.reserved_each.saturating_sub(taken);
    }
}

/// One unit of a limit.
#[derive(Debug)]
pub struct Permit {
    limit: Arc<SharedLimit>,
    quota: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        state.taken -= 1;
        let Some(here) = state.quotas.get_mut(&self.quota) else { return };
        *here -= 1;
        let is_reserved = *here < self.limit.reserved_each;
        state.reserved += u32::from(is_reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_can_be_taken_again() {
        let limit = Arc::new(SharedLimit::default());
        let quota = limit.quota();
        assert_eq!(quota.take().err(), Some(LimitReached::Full));
        limit.set_max(2);
        let (first, second) = (quota.take(), quota.take());
        assert!(first.is_ok() && second.is_ok() && quota.take().is_err());
        drop(first);
        limit.set_max(1);
        assert_eq!(quota.take().err(), Some(LimitReached::Full), "one permit is in use, and the limit is 1");
        drop(second);
        assert!(quota.take().is_ok());
    }

    /// Returns how many permits one quota can take while `unused` others have none.
    fn greedy(max: u32, unused: usize) -> usize {
        let limit = Arc::new(SharedLimit::default());
        limit.set_max(max);
        let _others: Vec<Quota> = (0..unused).map(|_| limit.quota()).collect();
        let quota = limit.quota();
        let taken: Vec<Permit> = std::iter::from_fn(|| quota.take().ok()).collect();
        taken.len()
    }

    #[test]
    fn unused_reserved_permits_cannot_be_taken_by_others() {
        for (max, unused, gets) in
            [(1024, 0, 1024), (1024, 9, 1006), (1024, 5000, 512), (5, 1, 3), (3, 1, 2), (1, 9, 1)]
        {
            assert_eq!(greedy(max, unused), gets, "of {max} with {unused} unused quotas");
        }
    }

    #[test]
    fn reserved_permits_follow_taken_and_dropped_ones() {
        let limit = Arc::new(SharedLimit::default());
        limit.set_max(8);
        let (greedy, other) = (limit.quota(), limit.quota());
        let mut taken: Vec<Permit> = std::iter::from_fn(|| greedy.take().ok()).collect();
        assert_eq!((taken.len(), greedy.take().err()), (6, Some(LimitReached::Reserved)));
        let theirs = (other.take().unwrap(), other.take().unwrap());
        assert_eq!((greedy.take().err(), other.take().err()), (Some(LimitReached::Full), Some(LimitReached::Full)));
        drop(theirs);
        assert_eq!(greedy.take().err(), Some(LimitReached::Reserved));
        drop(other);
        taken.extend(std::iter::from_fn(|| greedy.take().ok()));
        assert_eq!(taken.len(), 8, "a dropped quota has no reserved permits");
        drop(greedy);
        taken.clear();
        assert_eq!(limit.quota().take().map(|_| ()), Ok(()), "permits of a dropped quota are returned");
        let state = limit.state();
        assert_eq!((state.taken, state.reserved), (0, 0));
    }
}
