//! Unfinished handshakes: how many one peer may have, and which of them is aborted first.
//!
//! Each holds a connection permit, and a silent client keeps it for 30 s. So a peer (an address, or a user of this host) may have at most
//! [`PER_PEER`] of them on a socket that have begun; when it starts another, its oldest is aborted. Connections that still wait for their
//! turn, because their peer connects too often, do not count for that.
//!
//! If no permit is left, a handshake of the peer with the most is aborted: its oldest that has begun, because it is silent. If none has
//! begun, it is the last that came, so that the first ones have their turn.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use crate::accept::Peer;

/// Maximum number of handshakes of one peer on one socket that have begun and not ended.
const PER_PEER: usize = 64;

/// A peer as handshakes are counted: an address, or a user of this host with all its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Address(IpAddr),
    User(Option<u32>),
}

impl Holder {
    fn of(peer: Peer) -> Holder {
        match peer {
            Peer::Address(address) => Holder::Address(address),
            Peer::Process { user, .. } => Holder::User(user),
        }
    }
}

/// Whether a handshake has begun and not ended, so that the daemon waits for its client and not the client for its turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Begun(Arc<AtomicBool>);

impl Begun {
    /// Records that the client has had its turn.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Records that the handshake itself has ended.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One handshake.
#[derive(Debug)]
struct Handshake {
    holder: Holder,
    begun: Begun,
    task: JoinHandle<()>,
}

/// The unfinished handshakes of one socket, oldest first. Dropping it aborts them all: a closed socket must not lead to a
/// volume.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    handshakes: VecDeque<Handshake>,
}

impl Unfinished {
    /// Aborts the oldest handshakes of `peer` that have begun, until it has fewer than the maximum.
    pub(crate) fn make_room(&mut self, peer: Peer) {
        self.forget_finished();
        let holder = Holder::of(peer);
        let counts = |known: &Handshake| known.holder == holder && known.begun.is_set();
        let begun = self.handshakes.iter().filter(|known| counts(known)).count();
        for _ in PER_PEER..=begun {
            let Some(oldest) = self.handshakes.iter().position(counts) else { return };
            drop(self.abort(oldest));
        }
    }

    /// Aborts a handshake of the peer with the most, and waits until its permit is free. Returns whether there was one.
    pub(crate) async fn abort_one(&mut self) -> bool {
        self.forget_finished();
        let Some(task) = self.dispensable().and_then(|index| self.abort(index)) else { return false };
        let _ = task.await;
        true
    }

    /// Adds a handshake that has started.
    pub(crate) fn add(&mut self, peer: Peer, begun: Begun, task: JoinHandle<()>) {
        self.handshakes.push_back(Handshake { holder: Holder::of(peer), begun, task });
    }

    fn forget_finished(&mut self) {
        self.handshakes.retain(|known| !known.task.is_finished());
    }

    /// Returns which handshake is aborted to admit another client.
    fn dispensable(&self) -> Option<usize> {
        let mut counts: BTreeMap<Holder, usize> = BTreeMap::new();
        for known in &self.handshakes {
            *counts.entry(known.holder).or_default() += 1;
        }
        let most = *counts.values().max()?;
        // Of several, the one whose oldest is the oldest.
        let holder = self.handshakes.iter().map(|known| known.holder).find(|holder| counts[holder] == most)?;
        let begun = self.handshakes.iter().position(|known| known.holder == holder && known.begun.is_set());
        begun.or_else(|| self.handshakes.iter().rposition(|known| known.holder == holder))
    }

    fn abort(&mut self, index: usize) -> Option<JoinHandle<()>> {
        let Handshake { holder, task, .. } = self.handshakes.remove(index)?;
        // names nothing: it is for developers, and the peer is its own endpoint.
        tracing::debug!(?holder, "Handshake aborted to admit a newer connection");
        task.abort();
        Some(task)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.handshakes.iter().for_each(|known| known.task.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::AbortHandle;

    use super::*;

    const HOSTILE: Peer = Peer::Address(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const OTHER: Peer = Peer::Process { user: Some(0), process: Some(1) };

    fn connect(unfinished: &mut Unfinished, peer: Peer, has_begun: bool) -> AbortHandle {
        unfinished.make_room(peer);
        let begun = Begun::default();
        if has_begun {
            begun.set();
        }
        let task = tokio::spawn(pending::<()>());
        let seen = task.abort_handle();
        unfinished.add(peer, begun, task);
        seen
    }

    #[tokio::test]
    async fn one_peer_took_every_permit_with_unfinished_handshakes() {
        let mut unfinished = Unfinished::default();
        let theirs = connect(&mut unfinished, OTHER, true);
        let first = connect(&mut unfinished, HOSTILE, true);
        let more: Vec<_> = (0..PER_PEER).map(|_| connect(&mut unfinished, HOSTILE, true)).collect();
        while !first.is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(!theirs.is_finished() && more.iter().all(|task| !task.is_finished()));
        assert!(unfinished.abort_one().await);
        assert!(!theirs.is_finished(), "the peer with the most loses one");
        assert!(more[0].is_finished() && more[1..].iter().all(|task| !task.is_finished()), "its oldest");
        drop(unfinished);
    }

    #[tokio::test]
    async fn connections_that_wait_for_their_turn_are_kept_except_the_last_ones() {
        let mut unfinished = Unfinished::default();
        let waiting: Vec<_> = (0..2 * PER_PEER).map(|_| connect(&mut unfinished, HOSTILE, false)).collect();
        let theirs = connect(&mut unfinished, OTHER, true);
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|task| !task.is_finished()), "a loop waits and does not fail");
        assert!(unfinished.abort_one().await);
        let (last, others) = waiting.split_last().unwrap();
        assert!(last.is_finished() && !theirs.is_finished() && others.iter().all(|task| !task.is_finished()));
        unfinished.handshakes.clear();
        assert!(!unfinished.abort_one().await, "none is left");
    }
}
