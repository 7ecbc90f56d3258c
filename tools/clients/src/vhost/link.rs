//! Messages on a vhost-user socket, with file descriptors as ancillary data. They are sent whole and received with a
//! timeout.
//!
//! A message is a header of three words (request, flags, payload length) and a payload, in native byte order.
//! [`Link::send_bytes`] sends any bytes, for tests of what a back end refuses.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use vhost::vhost_user::message::{MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE, VhostUserHeaderFlag};

use super::ClientError;

/// Version 1 of the protocol, as in the flags.
pub const VERSION: u32 = 1;
/// Flag: the message is a reply.
pub const REPLY: u32 = VhostUserHeaderFlag::REPLY.bits();
/// Flag: the sender requests an acknowledgement.
pub const NEED_REPLY: u32 = VhostUserHeaderFlag::NEED_REPLY.bits();
/// Length of a header, in bytes.
pub const HEADER_LEN: usize = 12;

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The request, also in the reply to it.
    pub request: u32,
    /// Version and flags.
    pub flags: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// File descriptors sent with the message.
    pub files: Vec<OwnedFd>,
}

/// One end of a socket that carries messages.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
}

impl Link {
    /// Uses a connected socket. Each wait lasts at most `timeout`.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn new(stream: UnixStream, timeout: Duration) -> io::Result<Link> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Link { stream })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn send(&self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        for word in [request, VERSION | flags, payload.len() as u32] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(payload);
        self.send_bytes(&bytes, files)
    }

    /// Sends bytes unchanged, with file descriptors at the first byte.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn send_bytes(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let mut sent = 0;
        while sent < bytes.len() {
            let files = if sent == 0 { files } else { &[] };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)), "there is space for all descriptors");
            }
            let piece = [IoSlice::new(&bytes[sent..])];
            match sendmsg(&self.stream, &piece, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(len) => sent += len,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ClientError::Io(error.into())),
            }
        }
        Ok(())
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::Io`] (also on timeout), [`ClientError::Protocol`].
    pub fn receive(&self) -> Result<Message, ClientError> {
        let (mut header, mut files) = ([0; HEADER_LEN], Vec::new());
        self.receive_bytes(&mut header, &mut files)?;
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let len = word(8) as usize;
        if len > MAX_MSG_SIZE {
            return Err(ClientError::Protocol { what: "a message is too long" });
        }
        let mut payload = vec![0; len];
        self.receive_bytes(&mut payload, &mut files)?;
        Ok(Message { request: word(0), flags: word(4), payload, files })
    }

    /// Fills `bytes`.
    fn receive_bytes(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> Result<(), ClientError> {
        let mut received = 0;
        while received < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut piece = [IoSliceMut::new(&mut bytes[received..])];
            let got = match recvmsg(&self.stream, &mut piece, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => got,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::CONNRESET) => return Err(ClientError::Closed),
                Err(error) => return Err(ClientError::Io(error.into())),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    files.extend(rights);
                }
            }
            if got.bytes == 0 {
                return Err(ClientError::Closed);
            }
            received += got.bytes;
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_received_with_their_message() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let link = |stream| Link::new(stream, Duration::from_secs(10)).expect("a socket");
        let (ours, theirs) = (link(ours), link(theirs));
        ours.send(7, NEED_REPLY, &[1, 2, 3], &[ours.as_fd(), theirs.as_fd()]).expect("sent");
        let message = theirs.receive().expect("it came");
        assert_eq!((message.request, message.flags), (7, VERSION | NEED_REPLY));
        assert_eq!((message.payload.as_slice(), message.files.len()), (&[1, 2, 3][..], 2));
        theirs.send_bytes(&[1; 5], &[]).expect("sent");
        drop((theirs, message));
        assert!(matches!(ours.receive(), Err(ClientError::Closed)), "in the middle of a header");
    }
}
