//! Reads the sockets of active clients by `recv(MSG_DONTWAIT)` while the loop polls, instead of by receives in io_uring.
//!
//! A receive that waits in the kernel costs the client: each of its sends wakes it, and so does each of its receives, because it
//! frees room in the socket. With libnbd, which makes five system calls for a request, that is a twentieth of its time. When the
//! loop is about to sleep, or the client pauses, io_uring receives again.
//!
//! Example: a client with 32 requests at a time sends one every 6 us. The loop finds it by its next attempt, and no receive waits in
//! the kernel until the client pauses.
//!
//! An attempt that finds nothing costs a system call. While the loop has other work, other VMs would pay for it, so only a few
//! such attempts follow each request. A client of a VM that its limit holds is not tried.

use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use sluice_sched::Instant;

use crate::device::core::Core;
use crate::frontend::nbd::connection::{Connection, Expect, Phase, RECEIVE_LEN, Receive};
use crate::frontend::nbd::{ConnectionId, Nbd};

/// Maximum number of sockets that the loop reads.
const SOCKETS_MAX: usize = 8;
/// Attempts in vain since a client's last bytes, in iterations after one with work, until io_uring receives.
const VAIN_MAX: u32 = 4;
/// Number of reads after which a client is not watched any more.
const READS_WATCHED: u32 = 256;
/// Time without activity after which io_uring receives; in tests an hour, so that they meet the state.
const ACTIVE_FOR: Duration = if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_micros(256) };

impl Nbd {
    /// Makes the loop read the socket of a client whose next bytes are a header. Returns `false` if io_uring is to receive.
    pub(super) fn try_leave_to_loop(&mut self, core: &Core, id: ConnectionId) -> bool {
        let connection = &mut self.connections[id];
        let suits = core.reads_sockets && connection.expect == Expect::Header && connection.phase == Phase::Open;
        if !suits || self.looped.len() >= SOCKETS_MAX {
            return false;
        }
        (connection.receive, connection.vain) = (Receive::ByLoop, 0);
        self.looped.push_back(id);
        true
    }

    /// Reads the sockets that are left to the loop. What is read counts as an event.
    pub(super) fn read_sockets(&mut self, core: &mut Core, now: Instant) {
        for _ in 0..self.looped.len() {
            let Some(id) = self.looped.pop_front() else { return };
            let connection = self.connections.get_mut(id).filter(|known| known.receive == Receive::ByLoop);
            let Some(connection) = connection else { continue };
            if core.is_held(connection.volume) {
                self.leave_to_kernel(core, id);
            } else if let Some(result) = connection.try_to_read() {
                self.has_read(core, id);
                self.received(core, now, id, result);
            } else if connection.is_tried_again(now, core.had_work) {
                self.looped.push_back(id);
            } else {
                self.leave_to_kernel(core, id);
            }
        }
    }

    /// Counts a read of a client's socket.
    fn has_read(&mut self, core: &mut Core, id: ConnectionId) {
        core.cpu.note_read();
        let connection = &mut self.connections[id];
        connection.reads = connection.reads.wrapping_add(1);
        if connection.is_watched && connection.reads == READS_WATCHED {
            self.stop_watching(core, id);
        }
    }

    /// Has io_uring receive from all clients, because the loop is about to sleep.
    pub(super) fn leave_all_to_kernel(&mut self, core: &mut Core) {
        while let Some(id) = self.looped.pop_front() {
            if self.connections.get(id).is_some_and(|known| known.receive == Receive::ByLoop) {
                self.leave_to_kernel(core, id);
            }
        }
    }

    fn leave_to_kernel(&mut self, core: &mut Core, id: ConnectionId) {
        self.connections[id].receive = Receive::Idle;
        self.push_receive(core, id);
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

    /// Whether the loop goes on to read its socket after an attempt in vain. `had_work`: the last iteration had work.
    fn is_tried_again(&mut self, now: Instant, had_work: bool) -> bool {
        self.vain += u32::from(had_work);
        self.vain < VAIN_MAX && now.since(self.active) < ACTIVE_FOR
    }

    /// Ends the reads by the loop. A receive in io_uring ends by itself when the socket is shut down; this state does not.
    pub(super) fn end_reads_by_loop(&mut self) {
        if self.receive == Receive::ByLoop {
            self.receive = Receive::Idle;
        }
    }
}
