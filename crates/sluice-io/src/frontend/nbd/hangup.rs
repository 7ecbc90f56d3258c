//! Notices that a client whose socket is not read has gone.
//!
//! A client that waits for room in its VM's window or memory is not read, so the end of its stream is not seen either. Its queued
//! requests would hold the window and the memory that others of its VM wait for, until a limit or a slow device has served all of
//! them. So the kernel is asked to report that the client has closed its end.
//!
//! Requests that were not read by then are dropped, like queued requests of any client that leaves. A client that has sent
//! `NBD_CMD_DISC` is the exception: its requests before that are served.

use io_uring::{opcode, types};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv};

use crate::backend::retry::is_put_off;
use crate::backend::tag::Tag;
use crate::device::core::Core;
use crate::frontend::nbd::connection::{Connection, Life};
use crate::frontend::nbd::{ConnectionId, HANG_UP, Nbd};
use crate::nbd::wire::{Command, RequestHeader};
use crate::slab::Id as _;

impl Nbd {
    /// Has the kernel report when the client closes its end. The report may come long after the client is read again.
    pub(super) fn watch_for_hang_up(&mut self, core: &mut Core, id: ConnectionId) {
        let connection = &mut self.connections[id];
        if connection.is_watched || connection.is_closed() {
            return;
        }
        connection.is_watched = true;
        let entry = opcode::PollAdd::new(types::Fd(connection.fd()), libc::POLLRDHUP as u32).build();
        let tag = Tag::Frontend(self.number, HANG_UP, id.index());
        // SAFETY: the operation refers to no memory.
        unsafe { core.backend.ring.push(entry.user_data(tag.pack())) };
    }

    /// Handles the report, or the end of the watch.
    pub(super) fn hung_up(&mut self, core: &mut Core, id: ConnectionId, result: i32) {
        let connection = &mut self.connections[id];
        connection.is_watched = false;
        // The end of a stream that is read is seen there.
        if !matches!(connection.life(), Life::Waits(_)) {
            return self.retire(id);
        }
        if is_put_off(result) || result == -libc::ECANCELED {
            return self.watch_for_hang_up(core, id);
        }
        if !connection.ended_with_disconnect() {
            self.disconnect(core, id);
        }
    }
}

impl Connection {
    /// Whether a receive in io_uring has all that the stream has, and ends by itself when the stream has ended. Its bytes may
    /// not be handled yet.
    pub(super) fn has_received_all(&self) -> bool {
        !self.rx.is_idle() && ioctl_fionread(&self.socket).is_ok_and(|unread| unread == 0)
    }

    /// Whether the last request of a stream that has ended is to disconnect. What was not received stays in the socket.
    pub(super) fn ended_with_disconnect(&self) -> bool {
        let received = self.rx.unparsed();
        let mut last = received[received.len().saturating_sub(self.header_len())..].to_vec();
        let Ok(unread) = ioctl_fionread(&self.socket).map(|unread| unread as usize) else { return false };
        if unread > 0 {
            let known = last.len();
            if last.try_reserve_exact(unread).is_err() {
                return false;
            }
            last.resize(known + unread, 0);
            let peeked = recv(&self.socket, &mut last[known..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
            if !peeked.is_ok_and(|(_, length)| length == unread) {
                return false;
            }
        }
        let header = last.len().checked_sub(self.header_len()).and_then(|at| last[at..].first_chunk());
        let header = header.and_then(|bytes| RequestHeader::parse(bytes).ok());
        header.is_some_and(|header| header.kind() == Command::Disconnect)
    }
}
