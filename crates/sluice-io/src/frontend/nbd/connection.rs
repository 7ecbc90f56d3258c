//! One NBD client in transmission: its socket, and what becomes of it.

use std::os::fd::{AsRawFd, OwnedFd};

use sluice_sched::Instant;

use crate::backend::request::RequestList;
use crate::frontend::nbd::Arrived;
use crate::frontend::nbd::rx::Rx;
use crate::frontend::nbd::tx::Tx;
use crate::nbd::gateway::record::RequestRecord;
use crate::nbd::handshake::Negotiated;
use crate::nbd::wire::RequestHeader;
use crate::slab::VolumeKey;

/// Why requests are not read from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// It waits for window space, in its VM's queue.
    Room,
    /// It waits until the loop has looked whether earlier clients of its volume have gone.
    Look,
    /// It waits for in-flight requests of disconnected clients of its volume.
    Predecessor,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Requests are read.
    Serving,
    Waits(For),
    /// No more requests are read, because the client has disconnected or the device drains. Requests that were read are
    /// answered.
    Finishing,
    /// The socket is shut down, and no reply is sent.
    Closed,
}

impl Life {
    /// Returns the state after a step to `next`. A connection may wait and be served as often as it likes, but nothing leads back from its end.
    fn after(self, next: Life) -> Life {
        match (self, next) {
            (Life::Closed, _) | (_, Life::Closed) => Life::Closed,
            (Life::Finishing, _) | (_, Life::Finishing) => Life::Finishing,
            (Life::Serving | Life::Waits(_), next) => next,
        }
    }
}

/// An NBD client.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) volume: VolumeKey,
    pub(crate) negotiated: Negotiated,
    /// Address or process of the client.
    pub(crate) peer: String,
    /// Its connection permit.
    _permit: Box<dyn Send>,
    pub(crate) rx: Rx,
    pub(crate) tx: Tx,
    life: Life,
    /// Requests from their header to the sent reply, in no order.
    pub(crate) requests: RequestList,
    /// Whether the kernel is to report that the client has closed its end.
    pub(crate) is_watched: bool,
}

impl Connection {
    /// Creates a connection after the handshake; `None` if there is no memory for its receive buffer.
    pub(crate) fn new(arrived: Arrived, volume: VolumeKey) -> Option<Self> {
        Some(Connection {
            socket: arrived.socket,
            volume,
            negotiated: arrived.negotiated,
            peer: arrived.peer,
            _permit: arrived.permit,
            rx: Rx::new()?,
            tx: Tx::new(),
            life: Life::Waits(For::Look),
            requests: RequestList::default(),
            is_watched: false,
        })
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    /// Changes its state. The socket of a connection that is closed is shut down, so that operations in the kernel end.
    pub(crate) fn step(&mut self, next: Life) {
        let next = self.life.after(next);
        let before = std::mem::replace(&mut self.life, next);
        if self.life == Life::Closed && before != Life::Closed {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Length of what precedes the data of a request.
    pub(crate) fn header_len(&self) -> usize {
        RequestHeader::LEN + self.negotiated.gateway.as_ref().map_or(0, |_| RequestRecord::LEN)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.life == Life::Closed
    }

    /// Whether it sends requests, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.life, Life::Serving | Life::Waits(_))
    }

    pub(crate) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Whether nothing refers to it any more, apart from the kernel if it is watched.
    pub(crate) fn can_be_removed(&self) -> bool {
        !self.is_open() && self.rx.is_idle() && !self.tx.is_sending() && self.requests.is_empty()
    }

    /// Whether the connection has a deadline to be checked.
    pub(crate) fn has_deadline(&self) -> bool {
        !self.is_closed() && (self.rx.due().is_some() || self.tx.due().is_some())
    }

    /// Returns which deadline has passed, if any.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        let has_passed = |due: Option<Instant>| !self.is_closed() && due.is_some_and(|due| due <= now);
        if has_passed(self.rx.due()) {
            return Some("the data of a write did not arrive in time");
        }
        has_passed(self.tx.due()).then_some("replies were not read in time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_back_from_the_end_of_a_connection() {
        let open = [Life::Serving, Life::Waits(For::Room), Life::Waits(For::Look), Life::Waits(For::Predecessor)];
        let all = [&open[..], &[Life::Finishing, Life::Closed]].concat();
        for before in &open {
            assert!(all.iter().all(|next| before.after(*next) == *next));
        }
        for next in &all {
            assert_eq!(Life::Closed.after(*next), Life::Closed);
            let expected = if *next == Life::Closed { Life::Closed } else { Life::Finishing };
            assert_eq!(Life::Finishing.after(*next), expected);
        }
    }
}
