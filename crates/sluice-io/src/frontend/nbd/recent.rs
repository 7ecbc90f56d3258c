//! Clients that sent or got something lately: the loop may poll their sockets before it sleeps.
//!
//! A client that batches sends its next requests by one system call. One that does not, such as libnbd, sends each by
//! its own, and each would wake a thread that sleeps: the client pays for the wake-up, and the thread finds one request.
//! While the loop polls, it reads the sockets itself (`sockets.rs`), or the kernel only sets a flag in the ring. [`Trial`](crate::device::trial::Trial) decides whether it does.

use sluice_sched::Instant;

use crate::device::core::Core;
use crate::frontend::nbd::connection::Receive;
use crate::frontend::nbd::{ConnectionId, Nbd};

impl Nbd {
    /// Records that a client has sent something, or that a reply to it is due: a client with one request at a time sends
    /// the next one after that.
    pub(crate) fn note_active(&mut self, now: Instant, id: ConnectionId) {
        let connection = &mut self.connections[id];
        connection.active = now;
        if !connection.is_recent {
            connection.is_recent = true;
            self.recent.push(id);
        }
    }

    /// Whether a client that was active after `since` is listened to, and what it sends next could be dispatched. Forgets
    /// clients that were not.
    ///
    /// The client that is found is put first, so that the next call looks at it alone, and not at all those before it
    /// that limits hold.
    pub(crate) fn may_hear(&mut self, core: &Core, since: Instant) -> bool {
        let mut position = 0;
        while let Some(id) = self.recent.get(position) {
            let connection = &mut self.connections[*id];
            if connection.active <= since {
                connection.is_recent = false;
                self.recent.swap_remove(position);
            } else if connection.receive != Receive::Idle && !core.is_held(connection.volume) {
                self.recent.swap(0, position);
                return true;
            } else {
                position += 1;
            }
        }
        false
    }
}
