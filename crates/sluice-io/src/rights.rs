//! Whether the peer of a Unix socket may send descriptors (`SO_PASSRIGHTS`, since Linux 6.16).
//!
//! A thread may read a message without receiving the descriptors in it. The kernel then closes them in that thread. Closing the
//! last descriptor of a TCP socket with `SO_LINGER` takes as long as the sender chose; on FUSE it takes as long as the file
//! system wants. A device thread that reads requests would wait too, and all VMs of its device with it. So only VMMs may send
//! descriptors, which [`crate::closing`] closes. Another client that sends one gets `EPERM`. Older kernels do not have the option.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The first version of Linux that has the option.
pub const SINCE: (u32, u32) = (6, 16);

/// The number of the option on all supported architectures. It differs on SPARC and PA-RISC.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Allows or forbids the peer to send descriptors. Sockets that a listening one accepts inherit it.
///
/// # Errors
/// The error of the system call: `ENOPROTOOPT` before Linux 6.16.
pub fn allow(socket: impl AsFd, allowed: bool) -> io::Result<()> {
    let value = libc::c_int::from(allowed);
    let (at, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the value outlives the call, and has the stated length.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read as _};
    use std::mem::MaybeUninit;
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn an_accepted_socket_takes_descriptors_only_if_it_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        if let Err(error) = allow(&listener, false) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "Linux before {SINCE:?}");
            return;
        }
        let client = UnixStream::connect(&path).unwrap();
        let send = || {
            let (passed, mut space) = ([client.as_fd()], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
            sendmsg(&client, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL)
        };
        assert_eq!(send(), Err(rustix::io::Errno::PERM), "before it is accepted");
        let (mut accepted, _) = listener.accept().unwrap();
        assert_eq!(send(), Err(rustix::io::Errno::PERM), "after it");
        allow(&accepted, true).unwrap();
        assert_eq!(send(), Ok(1));
        accepted.read_exact(&mut [0]).unwrap();
    }
}
