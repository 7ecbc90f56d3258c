//! Network interfaces that the daemon holds: a TAP, or a packet socket on an interface of the host. They are opened by the
//! control plane and used by an uplink's thread.
//!
//! Every frame is passed with the header of virtio-net before it, which says what the sender has left to others: checksums, and
//! the division of a large segment into frames. Without it no answer of a local sender would arrive, because its
//! checksums are only partial.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libc::iovec;
use rustix::thread::CapabilitySet;
use sluice_net::Mac;
use sluice_net::drop::Drop as Reason;
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
    #[error(
        "There is no interface {0} in the network namespace of the daemon; make it, or correct its name in the host file"
    )]
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
    /// Whether the interface may be there later without a change of the host file.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, LinkError::Missing(_) | LinkError::Busy(_))
    }

    /// Makes the error of a system call.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> LinkError {
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

/// Names the capabilities that interfaces need and these do not have. `packet_sockets`: whether there is one on an interface of the host.
#[must_use]
pub fn lacking(held: CapabilitySet, packet_sockets: bool) -> Vec<&'static str> {
    let needed =
        [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", true), (CapabilitySet::NET_RAW, "CAP_NET_RAW", packet_sockets)];
    let lacking = needed.into_iter().filter(|(capability, _, is_needed)| *is_needed && !held.contains(*capability));
    lacking.map(|(_, name, _)| name).collect()
}

/// How frames are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// A TAP: a header of 12 bytes, and the frame.
    Tap,
    /// A packet socket on the interface of this number: a header of 10 bytes, and the frame without the VLAN tag, which is told apart.
    PacketSocket(i32),
    /// There is no interface: nothing arrives, and what is sent is lost.
    None,
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
    /// The frame cannot be sent at all.
    Lost(Reason),
}

impl Sent {
    /// Returns why the frame is lost, if it is.
    pub(crate) fn loss(&self) -> Option<Reason> {
        match self {
            Sent::Lost(reason) => Some(*reason),
            Sent::Done | Sent::Full => None,
        }
    }
}

/// The result of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Read {
    Frame(Received),
    /// A frame that cannot be used.
    Dropped(Reason),
    /// There is no frame now.
    Nothing,
}

/// Returns why an interface did not take a frame.
fn refusal(errno: i32) -> Reason {
    match errno {
        libc::EMSGSIZE => Reason::TooLong,
        libc::EINVAL | libc::EOPNOTSUPP => Reason::Refused,
        _ => Reason::LinkDown,
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Link {
    /// Stands for an interface that cannot be opened now.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn missing(name: &str) -> Result<Self, LinkError> {
        use rustix::event::{EventfdFlags, eventfd};
        let silent = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let fd = silent.map_err(|error| LinkError::io("Cannot make a descriptor")(error.into()))?;
        Ok(Link { fd, access: Access::None, name: name.to_owned() })
    }

    /// Whether the interface that was opened still exists. One of the same name may have taken its place.
    #[must_use]
    pub fn exists(&self) -> bool {
        match self.access {
            Access::None => false,
            Access::Tap => !tap::was_deleted(&self.fd),
            Access::PacketSocket(index) => packet_socket::is_bound_to(&self.fd, index),
        }
    }

    /// Whether it stands for an interface that could not be opened.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        self.access == Access::None
    }

    /// Sets address, MTU and offloads of a TAP that the daemon has made. Others are left as they are.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn configure(&self, mac: Option<Mac>, mtu: Option<u16>, offloads: bool) -> Result<(), LinkError> {
        if self.access != Access::Tap {
            return Ok(());
        }
        tap::configure(&self.fd, &self.name, mac, mtu)?;
        tap::set_offloads(&self.fd, &self.name, offloads)
    }

    /// Whether it is an interface that another process or the host has made.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self.access, Access::PacketSocket(_))
    }

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
        let bytes: &[u8] = match self.access {
            Access::Tap => &whole,
            Access::PacketSocket(_) => &short,
            Access::None => return Sent::Lost(Reason::LinkDown),
        };
        parts[0] = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the header is on the stack, and the caller's promise.
        let result = unsafe { libc::writev(self.fd(), parts.as_ptr(), parts.len() as i32) };
        if result >= 0 {
            return Sent::Done;
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Sent::Full,
            errno => Sent::Lost(refusal(errno)),
        }
    }

    /// Receives the next frame into `room`, which has [`FRAME_MAX`] bytes.
    ///
    /// # Errors
    /// That of the system call: the interface is down or was removed.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Read> {
        let received = match self.access {
            Access::Tap => tap::receive(&self.fd, room),
            Access::PacketSocket(_) => packet_socket::receive(&self.fd, room),
            Access::None => Ok(Read::Nothing),
        };
        match received {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(Read::Nothing),
            received => received,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_too_long_for_an_interface_was_counted_as_one_that_met_a_link_that_is_down() {
        for (errno, reason) in [
            (libc::EMSGSIZE, Reason::TooLong),
            (libc::EINVAL, Reason::Refused),
            (libc::EOPNOTSUPP, Reason::Refused),
            (libc::ENETDOWN, Reason::LinkDown),
            (libc::ENXIO, Reason::LinkDown),
            (libc::EIO, Reason::LinkDown),
        ] {
            assert_eq!(refusal(errno), reason, "{errno}");
        }
    }
}
