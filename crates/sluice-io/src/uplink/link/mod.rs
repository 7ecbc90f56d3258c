//! Network interfaces that the daemon holds: a TAP, or a packet socket on an interface of the host. They are opened by the
//! control plane and used by an uplink's thread.
//!
//! Every frame is passed with the header of virtio-net before it, which says what the sender has left to others: checksums, and
//! the division of a large segment into frames. Without it no answer of a local sender would arrive, because its
//! checksums are only partial.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libc::iovec;
use sluice_net::header::OffloadHeader;

pub mod interface;
pub mod packet_socket;
pub mod tap;

/// Room for the longest frame: a segment of 64 KiB behind Ethernet and VLAN headers, and a tag that is put in.
pub(crate) const FRAME_MAX: usize = 65_535 + 18 + 4;

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The name is too long or has characters that interfaces cannot have.
    #[error("'{0}' cannot be the name of an interface: 1 to 15 characters, no '/', no space")]
    Name(String),
    /// There is no such interface.
    #[error("There is no interface {0} in the network namespace of the daemon")]
    Missing(String),
    /// It is not a bridge.
    #[error("{0} is not a bridge; create one with: ip link add {0} type bridge")]
    NotABridge(String),
    /// It has a TAP of this name, which another process holds.
    #[error("TAP {0} is held by another process; stop it or choose another name")]
    Busy(String),
    /// The host itself uses the interface.
    #[error(
        "The host uses {name} itself ({why}): two network stacks would answer for one address; \
         make it a port of a bridge and state bridge = \"...\" instead"
    )]
    InUse {
        /// Its name.
        name: String,
        /// How the host uses it.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: String,
        error: io::Error,
    },
}

impl LinkError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> LinkError {
        let what = what.into();
        move |error| {
            let what = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => format!("{what} (the daemon needs CAP_NET_ADMIN and CAP_NET_RAW)"),
                _ => what,
            };
            LinkError::Io { what, error }
        }
    }
}

/// How frames are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// A TAP: a header of 12 bytes, and the frame.
    Tap,
    /// A packet socket: a header of 10 bytes, and the frame without the VLAN tag, which is told apart.
    PacketSocket,
}

/// An open interface.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    access: Access,
    name: String,
}

/// A received frame in the room that was given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) header: OffloadHeader,
    /// Where the frame starts.
    pub(crate) start: usize,
    /// Length of the frame.
    pub(crate) length: usize,
}

/// The result of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Done,
    /// The interface takes no more now.
    Full,
    /// The frame cannot be sent at all, with the error.
    Lost(i32),
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Link {
    /// Returns the name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sends a frame that lies in `parts`, whose first entry is free for the header.
    ///
    /// # Safety
    /// Every part but the first is mapped memory of its length.
    pub(crate) unsafe fn send(&self, header: &OffloadHeader, parts: &mut [iovec]) -> Sent {
        let whole = header.to_bytes();
        let short = header.to_bytes_10();
        let bytes: &[u8] = if self.access == Access::Tap { &whole } else { &short };
        parts[0] = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the header is on the stack, and the caller's promise.
        let result = unsafe { libc::writev(self.fd(), parts.as_ptr(), parts.len() as i32) };
        if result >= 0 {
            return Sent::Done;
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Sent::Full,
            errno => Sent::Lost(errno),
        }
    }

    /// Receives the next frame into `room`, which has [`FRAME_MAX`] bytes; `None` if there is none.
    ///
    /// # Errors
    /// That of the system call: the interface is down or was removed.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Option<Received>> {
        let received = match self.access {
            Access::Tap => tap::receive(&self.fd, room),
            Access::PacketSocket => packet_socket::receive(&self.fd, room),
        };
        match received {
            Ok(received) => Ok(received),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
