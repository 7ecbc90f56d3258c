//! Unfinished handshakes: how many one peer may have, and which of them is aborted first.
//!
//! Each holds a connection permit, and a silent client keeps it for 30 s. So a peer may have at most [`PER_PEER`] of them on
//! a socket; when it starts another, its oldest is aborted. If no permit is left, the oldest handshake of all is aborted.

use std::collections::VecDeque;

use tokio::task::JoinHandle;

use crate::accept::Peer;

/// Maximum number of unfinished handshakes of one peer on one socket.
const PER_PEER: usize = 64;

/// The unfinished handshakes of one socket, oldest first. Dropping it aborts them all: a closed socket must not lead to a
/// volume.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    begun: VecDeque<(Peer, JoinHandle<()>)>,
}

impl Unfinished {
    /// Aborts the oldest handshake of `peer` if it has the maximum.
    pub(crate) fn make_room(&mut self, peer: Peer) {
        self.begun.retain(|(_, handshake)| !handshake.is_finished());
        if self.begun.iter().filter(|(of, _)| *of == peer).count() >= PER_PEER
            && let Some(oldest) = self.begun.iter().position(|(of, _)| *of == peer)
        {
            drop(self.abort(oldest));
        }
    }

    /// Aborts the oldest handshake of all, and waits until its permit is free. Returns whether there was one.
    pub(crate) async fn abort_oldest(&mut self) -> bool {
        self.begun.retain(|(_, handshake)| !handshake.is_finished());
        let Some(handshake) = self.abort(0) else { return false };
        let _ = handshake.await;
        true
    }

    /// Adds a handshake that has started.
    pub(crate) fn add(&mut self, peer: Peer, handshake: JoinHandle<()>) {
        self.begun.push_back((peer, handshake));
    }

    fn abort(&mut self, index: usize) -> Option<JoinHandle<()>> {
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
    async fn one_peer_took_every_permit_with_unfinished_handshakes() {
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
        assert!(unfinished.abort_oldest().await);
        assert!(theirs.is_finished(), "without a free permit the oldest handshake of all is aborted");
        drop(unfinished);
    }
}
