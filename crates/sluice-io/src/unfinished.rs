//! Handshakes that have begun and not ended: how many one peer may have, and which of them goes first.
//!
//! Each holds a place among the connections of the host, and a client that says nothing keeps it for 30 s. So a peer has at
//! most [`PER_PEER`] of them on a socket; when it begins another, its oldest is given up. Where no place is left, the oldest
//! of all is.

use std::collections::VecDeque;
use std::net::IpAddr;

use tokio::task::JoinHandle;

/// Handshakes that one peer may have under way on one socket.
const PER_PEER: usize = 64;

/// From where a client comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Another host, or this one.
    Address(IpAddr),
    /// A user of this host; nothing if the system does not say.
    User(Option<u32>),
}

/// The handshakes of one socket, the oldest first. Dropping it aborts them all: without its socket a volume can be entered
/// no more.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    begun: VecDeque<(Peer, JoinHandle<()>)>,
}

impl Unfinished {
    /// Makes room for one more of `peer`.
    pub(crate) fn make_room(&mut self, peer: Peer) {
        self.begun.retain(|(_, handshake)| !handshake.is_finished());
        if self.begun.iter().filter(|(of, _)| *of == peer).count() >= PER_PEER
            && let Some(oldest) = self.begun.iter().position(|(of, _)| *of == peer)
        {
            drop(self.give_up(oldest));
        }
    }

    /// Gives up the oldest of all, and waits until it has given its place back; whether there was one.
    pub(crate) async fn give_up_oldest(&mut self) -> bool {
        self.begun.retain(|(_, handshake)| !handshake.is_finished());
        let Some(handshake) = self.give_up(0) else { return false };
        let _ = handshake.await;
        true
    }

    /// One more has begun.
    pub(crate) fn add(&mut self, peer: Peer, handshake: JoinHandle<()>) {
        self.begun.push_back((peer, handshake));
    }

    fn give_up(&mut self, index: usize) -> Option<JoinHandle<()>> {
        let (peer, handshake) = self.begun.remove(index)?;
        // names nothing: it is for developers, and the peer is its own endpoint.
        tracing::debug!(?peer, "Handshake aborted to admit a newer connection");
        handshake.abort();
        Some(handshake)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.begun.iter().for_each(|(_, handshake)| handshake.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn one_peer_took_every_place_with_handshakes_that_it_did_not_end() {
        let mut unfinished = Unfinished::default();
        let (hostile, other) = (Peer::Address([192, 0, 2, 1].into()), Peer::User(Some(0)));
        let begin = |unfinished: &mut Unfinished, peer| {
            unfinished.make_room(peer);
            let task = tokio::spawn(pending::<()>());
            let seen = task.abort_handle();
            unfinished.add(peer, task);
            seen
        };
        let theirs = begin(&mut unfinished, other);
        let first = begin(&mut unfinished, hostile);
        let more: Vec<_> = (0..PER_PEER).map(|_| begin(&mut unfinished, hostile)).collect();
        while !first.is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(!theirs.is_finished() && more.iter().all(|task| !task.is_finished()));
        assert!(unfinished.give_up_oldest().await);
        assert!(theirs.is_finished(), "where no place is left, the oldest of all goes");
        drop(unfinished);
    }
}
