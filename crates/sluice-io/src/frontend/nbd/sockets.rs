//! Reads the sockets of clients without the kernel's help while the loop polls.
//!
//! A receive that waits in the kernel costs the client: each of its sends wakes it, and so does each of its receives, because it
//! frees room in the socket. With libnbd, which makes five system calls for a request, that is a twentieth of its time.
//! While the loop polls anyway, it tries to read instead, and only when it is about to sleep does it ask the kernel to receive.
//!
//! Example: a client with 32 requests at a time sends one every 6 us. The loop finds it by its next attempt, and no receive is in
//! the kernel until the client pauses.

use rustix::net::{RecvFlags, recv};
use sluice_sched::Instant;
use std::time::Duration;

use crate::device::core::Core;
use crate::frontend::nbd::connection::{Connection, Expect, Phase, RECEIVE_LEN, Receive};
use crate::frontend::nbd::{ConnectionId, Nbd};

/// Number of sockets that are read so. An attempt that finds nothing costs a system call.
const SOCKETS_MAX: usize = 8;
/// Number of reads after which a client is not watched any more. A client that waits for room from time to time stays watched.
const READS_WATCHED: u32 = 256;
/// A client that was not active for this time is not tried any more; in tests, after an hour, so that they meet the state.
const ACTIVE_FOR: Duration = if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_micros(256) };

impl Nbd {
    /// Lets the loop read the socket of a client whose next bytes are a header. Returns `false` if the kernel is to receive.
    pub(super) fn read_by_loop(&mut self, id: ConnectionId) -> bool {
        let connection = &mut self.connections[id];
        let suits = connection.expect == Expect::Header && connection.phase == Phase::Open;
        if !suits || self.read_by_loop.len() >= SOCKETS_MAX {
            return false;
        }
        connection.receive = Receive::ByLoop;
        self.read_by_loop.push(id);
        true
    }

    /// Reads the sockets that the loop reads itself. Returns whether that brought a request.
    pub(super) fn read_sockets(&mut self, core: &mut Core, now: Instant) -> bool {
        let mut found = false;
        for _ in 0..self.read_by_loop.len() {
            let id = self.read_by_loop.remove(0);
            let connection = self.connections.get_mut(id).filter(|known| known.receive == Receive::ByLoop);
            let Some(connection) = connection else { continue };
            match connection.try_to_read() {
                Some(result) => {
                    connection.reads = connection.reads.wrapping_add(1);
                    if connection.is_watched && connection.reads == READS_WATCHED {
                        self.stop_watching(core, id);
                    }
                    found |= self.received(core, now, id, result);
                }
                None if now.since(connection.active) < ACTIVE_FOR => self.read_by_loop.push(id),
                None => self.ask_kernel(core, id),
            }
        }
        found
    }

    /// Asks the kernel to receive from all clients: the loop is about to sleep.
    pub(super) fn read_by_kernel(&mut self, core: &mut Core) {
        while let Some(id) = self.read_by_loop.pop() {
            if self.connections.get(id).is_some_and(|known| known.receive == Receive::ByLoop) {
                self.ask_kernel(core, id);
            }
        }
    }

    fn ask_kernel(&mut self, core: &mut Core, id: ConnectionId) {
        self.connections[id].receive = Receive::Idle;
        let reads = std::mem::take(&mut core.reads_sockets);
        self.receive(core, id);
        core.reads_sockets = reads;
    }
}

impl Connection {
    /// Reads what the socket has. Returns the number of bytes or a negated errno, as a receive in the kernel does; `None` if
    /// there is nothing.
    fn try_to_read(&mut self) -> Option<i32> {
        let room = &mut self.received.bytes_mut(RECEIVE_LEN)[self.end..];
        match recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((_, length)) => Some(length as i32),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(error) => Some(-error.raw_os_error()),
        }
    }

    /// No receive is in the kernel that would end by itself when the client is not read any more.
    pub(super) fn end_reads_by_loop(&mut self) {
        if self.receive == Receive::ByLoop {
            self.receive = Receive::Idle;
        }
    }
}
