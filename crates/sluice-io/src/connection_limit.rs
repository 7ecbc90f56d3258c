//! Places for connections: how many a host has, and that nobody takes those of others.
//!
//! All sockets of a host share `nbd.connections_max` places. Whoever may connect to one socket can take all that is to be had
//! there, and must not shut out the clients of the others with that: as long as a socket has fewer than [`RESERVED_PER_SOCKET`] clients, what
//! it lacks is kept for it. That is never more than half of all places, so that a host with more sockets than places can
//! use them.
//!
//! Example: of 1024 places, with 10 sockets of which 9 are unused, the tenth gets 1024 - 9 x 2 = 1006.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places kept for each socket: one for its VM, and one for that VM on its next host, or back after its connection broke,
/// while the first is not over.
pub const RESERVED_PER_SOCKET: u32 = 2;

/// The places of a host.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// Places that are kept for each socket.
    reserved_each: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    max: u32,
    taken: u32,
    /// By socket: how many of them are taken there.
    quotas: BTreeMap<u64, u32>,
    next_quota: u64,
    /// What all sockets together lack of what is kept for each.
    reserved: u32,
}

/// Why somebody gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// All are taken.
    #[error("nbd.connections_max is reached, or as many connections as there are file descriptors for")]
    Full,
    /// Those that are left are kept for others.
    #[error(
        "remaining connections are reserved for other sockets; raise nbd.connections_max, or LimitNOFILE if that bounds them"
    )]
    Reserved,
}

impl Default for ConnectionLimit {
    fn default() -> Self {
        ConnectionLimit::new(0, RESERVED_PER_SOCKET)
    }
}

impl ConnectionLimit {
    /// `max` places, of which `reserved_each` are kept for each socket.
    #[must_use]
    pub fn new(max: u32, reserved_each: u32) -> Self {
        ConnectionLimit { reserved_each, state: Mutex::new(State { max, ..State::default() }) }
    }

    /// So many from now on. Who sits stays, even if there are fewer.
    pub fn set_max(&self, max: u32) {
        self.state().max = max;
    }

    /// How many there may be.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.state().max
    }

    /// The places of one more socket.
    #[must_use]
    pub fn quota(self: &Arc<Self>) -> SocketQuota {
        let mut state = self.state();
        let quota = state.next_quota;
        state.next_quota += 1;
        state.quotas.insert(quota, 0);
        state.reserved += self.reserved_each;
        SocketQuota { of: Arc::clone(self), quota }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of one socket. When it is dropped none is kept for it any more; who sits stays.
#[derive(Debug)]
pub struct SocketQuota {
    of: Arc<ConnectionLimit>,
    quota: u64,
}

impl SocketQuota {
    /// A place, if one is free for this socket; given back when it is dropped.
    ///
    /// # Errors
    /// [`LimitReached`].
    pub fn take(&self) -> Result<ConnectionPermit, LimitReached> {
        let mut state = self.of.state();
        let State { max, taken, reserved, .. } = *state;
        let here = state.quotas.get_mut(&self.quota).expect("a row is there until it is dropped");
        if taken >= max {
            return Err(LimitReached::Full);
        }
        if *here >= self.of.reserved_each && taken + reserved.min(max / 2) >= max {
            return Err(LimitReached::Reserved);
        }
        *here += 1;
        let was_reserved = *here <= self.of.reserved_each;
        state.taken += 1;
        state.reserved -= u32::from(was_reserved);
        Ok(ConnectionPermit { of: Arc::clone(&self.of), quota: self.quota })
    }
}

impl Drop for SocketQuota {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let taken = state.quotas.remove(&self.quota).expect("a row is there until it is dropped");
        state.reserved -= self.of.reserved_each.saturating_sub(taken);
    }
}

/// A taken place.
#[derive(Debug)]
pub struct ConnectionPermit {
    of: Arc<ConnectionLimit>,
    quota: u64,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.taken -= 1;
        let Some(here) = state.quotas.get_mut(&self.quota) else { return };
        *here -= 1;
        let is_reserved = *here < self.of.reserved_each;
        state.reserved += u32::from(is_reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_free_again_when_its_taker_has_gone() {
        let connection_limit = Arc::new(ConnectionLimit::default());
        let quota = connection_limit.quota();
        assert_eq!(quota.take().err(), Some(LimitReached::Full));
        connection_limit.set_max(2);
        let (first, second) = (quota.take(), quota.take());
        assert!(first.is_ok() && second.is_ok() && quota.take().is_err());
        drop(first);
        connection_limit.set_max(1);
        assert_eq!(quota.take().err(), Some(LimitReached::Full), "one sits, and there is one place now");
        drop(second);
        assert!(quota.take().is_ok());
    }

    /// How many places a socket gets that takes all it can, beside so many that are not used.
    fn greedy(max: u32, unused: usize) -> usize {
        let connection_limit = Arc::new(ConnectionLimit::default());
        connection_limit.set_max(max);
        let _others: Vec<SocketQuota> = (0..unused).map(|_| connection_limit.quota()).collect();
        let quota = connection_limit.quota();
        let taken: Vec<ConnectionPermit> = std::iter::from_fn(|| quota.take().ok()).collect();
        taken.len()
    }

    #[test]
    fn what_a_socket_lacks_is_kept_for_it() {
        for (max, unused, gets) in
            [(1024, 0, 1024), (1024, 9, 1006), (1024, 5000, 512), (5, 1, 3), (3, 1, 2), (1, 9, 1)]
        {
            assert_eq!(greedy(max, unused), gets, "of {max} beside {unused}");
        }
    }

    #[test]
    fn what_is_kept_follows_who_comes_and_goes() {
        let connection_limit = Arc::new(ConnectionLimit::default());
        connection_limit.set_max(8);
        let (greedy, other) = (connection_limit.quota(), connection_limit.quota());
        let mut taken: Vec<ConnectionPermit> = std::iter::from_fn(|| greedy.take().ok()).collect();
        assert_eq!((taken.len(), greedy.take().err()), (6, Some(LimitReached::Reserved)));
        let theirs = (other.take().unwrap(), other.take().unwrap());
        assert_eq!((greedy.take().err(), other.take().err()), (Some(LimitReached::Full), Some(LimitReached::Full)));
        drop(theirs);
        assert_eq!(greedy.take().err(), Some(LimitReached::Reserved));
        drop(other);
        taken.extend(std::iter::from_fn(|| greedy.take().ok()));
        assert_eq!(taken.len(), 8, "a socket that has gone needs none");
        drop(greedy);
        taken.clear();
        assert_eq!(
            connection_limit.quota().take().map(|_| ()),
            Ok(()),
            "who sat at a socket that has gone gives his place back"
        );
        let state = connection_limit.state();
        assert_eq!((state.taken, state.reserved), (0, 0));
    }
}
