//! The socket of a VMM: receives whole messages and sends whole replies, with time limits, and closes descriptors that
//! are not used.
//!
//! A message may start at any time, and must be complete [`MESSAGE_MAX`] after its first byte. An incomplete message is
//! kept while the session does something else, so waiting for a message can be cancelled at any time.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use crate::closing::{Closing, Received};
use crate::limits::is_for_clients;
use crate::rights;

use super::wire::{DESCRIPTORS_MAX, HEADER_LEN, Header, HeaderError, Message};

/// Maximum time for a message from its first byte to its last, and for the VMM to read a reply.
pub const MESSAGE_MAX: Duration = Duration::from_secs(5);

/// Descriptors of one message as the kernel allows them (`SCM_MAX_FD`).
const SENT_MAX: usize = 253;

/// Why a connection has failed.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It ended within a message.
    #[error("The connection ended within a message")]
    Truncated,
    /// A message was not complete in time, or a reply was not read in time.
    #[error("A message took longer than {} s", MESSAGE_MAX.as_secs())]
    Slow,
    /// The header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Descriptors arrived within a message, or too many.
    #[error("More than {DESCRIPTORS_MAX} file descriptors, or descriptors in the middle of a message")]
    Descriptors,
    /// The host has few descriptors left.
    #[error("Too few file descriptors are left to receive a message; raise LimitNOFILE")]
    NoDescriptors,
    /// Closing earlier ones waits.
    #[error(
        "Descriptors that the VMM sent before are still being closed; their files wait for a peer or a file system"
    )]
    Unclosed,
    /// A system call failed.
    #[error("The connection failed: {0}")]
    Io(#[from] io::Error),
}

impl SocketError {
    /// Whether the error means that the VMM has disconnected.
    pub(super) fn is_departure(&self) -> bool {
        let SocketError::Io(error) = self else { return false };
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    }
}

/// A connection to a VMM.
#[derive(Debug)]
pub struct Socket {
    stream: Arc<UnixStream>,
    /// Received bytes of the next message.
    bytes: Vec<u8>,
    descriptors: Vec<Received>,
    closing: Closing,
    /// Header of the next message, when it is complete.
    header: Option<Header>,
    /// When the message must be complete.
    deadline: Option<Instant>,
}

impl Socket {
    /// Creates the socket of a new connection, over which the VMM may send descriptors.
    #[must_use]
    pub fn new(stream: Arc<UnixStream>, closing: Closing) -> Self {
        // An old kernel lets every peer send descriptors.
        let _ = rights::allow(&*stream, true);
        Socket { stream, bytes: Vec::new(), descriptors: Vec::new(), closing, header: None, deadline: None }
    }

    /// Closes the connection. The kernel closes descriptors in unread messages with it.
    pub fn close(self) {
        let stream = Arc::into_inner(self.stream).and_then(|stream| stream.into_std().ok());
        if let Some(stream) = stream {
            self.closing.close(stream.into());
        }
    }

    /// Returns the connection.
    #[must_use]
    pub fn stream(&self) -> &Arc<UnixStream> {
        &self.stream
    }

    /// Returns the next message; `None` if the VMM has disconnected. May be cancelled and called again.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn receive(&mut self) -> Result<Option<Message>, SocketError> {
        loop {
            if let Some(header) = self.header
                && self.bytes.len() == HEADER_LEN + header.len
            {
                return Ok(Some(self.take(header)));
            }
            let read = match self.stream.try_io(Interest::READABLE, || self.read()) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait().await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if !self.accept(read)? {
                return Ok(None);
            }
        }
    }

    /// Sends a reply, with a descriptor if there is one.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), SocketError> {
        let deadline = Instant::now() + MESSAGE_MAX;
        let (mut sent, mut descriptor) = (0, descriptor);
        while sent < bytes.len() {
            match self.stream.try_io(Interest::WRITABLE, || write(&self.stream, &bytes[sent..], descriptor)) {
                Ok(more) => (sent, descriptor) = (sent + more, None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = timeout_at(deadline, self.stream.writable()).await;
                    ready.map_err(|_| SocketError::Slow)??;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn wait(&self) -> Result<(), SocketError> {
        match self.deadline {
            None => self.stream.readable().await?,
            Some(deadline) => timeout_at(deadline, self.stream.readable()).await.map_err(|_| SocketError::Slow)??,
        }
        Ok(())
    }

    /// Reads bytes of the next message, and none after it.
    fn read(&self) -> io::Result<Read> {
        let whole = HEADER_LEN + self.header.map_or(0, |header| header.len);
        let mut bytes = vec![0; whole - self.bytes.len()];
        // Room for the most that a message can have: the kernel closes what does not fit, which may wait.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&*self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights.map(|descriptor| Received::new(descriptor, &self.closing)));
            }
        }
        bytes.truncate(received.bytes);
        Ok(Read { bytes, descriptors, cut: received.flags.contains(ReturnFlags::CTRUNC) })
    }

    /// Adds the bytes that were read. Returns `false` if the VMM has disconnected.
    fn accept(&mut self, read: Read) -> Result<bool, SocketError> {
        let Read { bytes, descriptors, cut } = read;
        let in_payload = self.header.is_some();
        if cut || in_payload && !descriptors.is_empty() {
            return Err(SocketError::Descriptors);
        }
        if !descriptors.iter().all(is_for_clients) {
            return Err(SocketError::NoDescriptors);
        }
        if !descriptors.is_empty() && self.closing.is_behind() {
            return Err(SocketError::Unclosed);
        }
        if bytes.is_empty() {
            return if self.bytes.is_empty() { Ok(false) } else { Err(SocketError::Truncated) };
        }
        self.deadline.get_or_insert_with(|| Instant::now() + MESSAGE_MAX);
        self.bytes.extend_from_slice(&bytes);
        self.descriptors.extend(descriptors);
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(SocketError::Descriptors);
        }
        if self.header.is_none()
            && let Some(header) = self.bytes.first_chunk()
        {
            self.header = Some(Header::parse(header)?);
        }
        Ok(true)
    }

    fn take(&mut self, header: Header) -> Message {
        (self.header, self.deadline) = (None, None);
        let mut payload = std::mem::take(&mut self.bytes);
        payload.drain(..HEADER_LEN);
        Message { header, payload, descriptors: std::mem::take(&mut self.descriptors) }
    }
}

/// Result of a read.
struct Read {
    bytes: Vec<u8>,
    descriptors: Vec<Received>,
    /// Whether there were more descriptors than a message may have.
    cut: bool,
}

fn write(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        assert!(pushed, "there is room for one");
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

/// Sends a short message on a descriptor of the VMM, if that is possible without waiting.
///
/// # Errors
/// The error of the system call.
pub fn try_send(socket: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let sent = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Whether the peer of a socket has disconnected, even if bytes that it sent are unread.
#[must_use]
pub fn hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(&socket, PollFlags::RDHUP)];
    let ready = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready.is_ok() && waiting[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;
    use crate::closing::tests::lingering;
    use sluice_client::vhost::link::Link;

    /// Returns a socket and the VMM's end of it.
    fn pair() -> (Socket, StdStream) {
        let (ours, theirs) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::new(Arc::new(UnixStream::from_std(ours).unwrap()), Closing::default()), theirs)
    }

    fn link(stream: StdStream) -> Link {
        Link::new(stream, Duration::from_secs(10)).unwrap()
    }

    /// Returns both ends of a pipe. Reading returns the end of file when all writers are closed.
    fn pipe() -> (File, OwnedFd) {
        let (reader, writer) = io::pipe().unwrap();
        (OwnedFd::from(reader).into(), writer.into())
    }

    fn is_closed(mut reader: File) -> bool {
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        matches!(reader.read(&mut [0]), Ok(0))
    }

    /// Another thread closes it.
    fn wait_until_closed(mut reader: File) {
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[tokio::test]
    async fn messages_are_received_whole_and_separately() {
        let (mut socket, theirs) = pair();
        let theirs = link(theirs);
        let (reader, writer) = pipe();
        theirs.send(3, 8, &[1, 2, 3], &[writer.as_fd(), writer.as_fd()]).unwrap();
        theirs.send(4, 0, &[], &[]).unwrap();
        theirs.send(5, 0, &[7; 4096], &[writer.as_fd()]).unwrap();
        drop((writer, theirs));
        let first = socket.receive().await.unwrap().unwrap();
        assert_eq!((first.header.request, first.header.need_reply, &first.payload[..]), (3, true, &[1, 2, 3][..]));
        assert_eq!(first.descriptors.len(), 2);
        assert!(rustix::io::fcntl_getfd(&first.descriptors[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let second = socket.receive().await.unwrap().unwrap();
        assert_eq!((second.header.request, second.payload.len(), second.descriptors.len()), (4, 0, 0));
        let third = socket.receive().await.unwrap().unwrap();
        assert_eq!((third.payload.len(), third.descriptors.len()), (4096, 1));
        assert!(socket.receive().await.unwrap().is_none());
        assert!(!is_closed(reader.try_clone().unwrap()));
        drop((first, third));
        wait_until_closed(reader);
    }

    #[tokio::test]
    async fn a_cancelled_wait_loses_no_bytes() {
        let (mut socket, mut theirs) = pair();
        let message = super::super::wire::reply(9, &[1; 20]);
        let request = [&message[..4], &1u32.to_ne_bytes(), &message[8..]].concat();
        for part in request.chunks(5) {
            theirs.write_all(part).unwrap();
            tokio::select! {
                biased;
                received = socket.receive() => {
                    let received = received.unwrap().unwrap();
                    assert_eq!((received.header.request, &received.payload[..]), (9, &[1; 20][..]));
                    return;
                }
                () = tokio::task::yield_now() => {}
            }
        }
        panic!("the last part makes it whole");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_stops_after_one_byte_times_out() {
        let (mut socket, mut theirs) = pair();
        theirs.write_all(&[1]).unwrap();
        let before = Instant::now();
        assert!(matches!(socket.receive().await, Err(SocketError::Slow)));
        assert!(before.elapsed() >= MESSAGE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_is_not_read_times_out() {
        let (mut socket, theirs) = pair();
        let much = vec![0; 8 << 20];
        assert!(matches!(socket.send(&much, None).await, Err(SocketError::Slow)));
        drop(theirs);
        assert!(matches!(socket.send(&much, None).await, Err(SocketError::Io(_))));
    }

    #[tokio::test]
    async fn invalid_bytes_end_a_connection() {
        let header = |request: u32, flags: u32, len: u32| [request, flags, len].map(u32::to_ne_bytes).concat();
        let (mut socket, mut theirs) = pair();
        theirs.write_all(&header(1, 1, 4)[..11]).unwrap();
        drop(theirs);
        assert!(matches!(socket.receive().await, Err(SocketError::Truncated)));
        let (mut socket, mut theirs) = pair();
        theirs.write_all(&header(1, 1, 4)).unwrap();
        drop(theirs);
        assert!(matches!(socket.receive().await, Err(SocketError::Truncated)), "a wrong length");
        let (mut socket, mut theirs) = pair();
        theirs.write_all(&header(1, 1, u32::MAX)).unwrap();
        assert!(matches!(socket.receive().await, Err(SocketError::Header(HeaderError::Length(_)))));
        let (mut socket, mut theirs) = pair();
        theirs.write_all(&header(1, 5, 0)).unwrap();
        assert!(matches!(socket.receive().await, Err(SocketError::Header(HeaderError::Flags(5)))));
    }

    #[tokio::test]
    async fn unexpected_descriptors_are_rejected_and_closed() {
        let (mut socket, theirs) = pair();
        let (reader, writer) = pipe();
        let theirs = link(theirs);
        let header = [1u32, 1, 8].map(u32::to_ne_bytes).concat();
        theirs.send_bytes(&header, &[]).unwrap();
        theirs.send_bytes(&[0; 8], &[writer.as_fd()]).unwrap();
        assert!(matches!(socket.receive().await, Err(SocketError::Descriptors)));
        drop((socket, writer));
        wait_until_closed(reader);

        for many in [DESCRIPTORS_MAX, DESCRIPTORS_MAX + 1, 253] {
            let (mut socket, theirs) = pair();
            let (reader, writer) = pipe();
            let descriptors = vec![writer.as_fd(); many];
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(many))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let header = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
            sendmsg(&theirs, &[IoSlice::new(&header)], &mut ancillary, SendFlags::empty()).unwrap();
            let received = socket.receive().await;
            assert_eq!(received.is_ok(), many <= DESCRIPTORS_MAX, "{many}");
            drop((socket, writer, received));
            wait_until_closed(reader);
        }
    }

    /// The test does not end if this thread closes one of them, or leaves it to the kernel.
    #[tokio::test]
    async fn a_socket_that_lingers_when_it_is_closed_stopped_all_sessions() {
        let sent = |many: usize| {
            let (socket, theirs) = pair();
            let (lingering, peer) = lingering();
            let (null, theirs) = (File::open("/dev/null").unwrap(), link(theirs));
            let mut descriptors = vec![null.as_fd(); many];
            descriptors.push(lingering.as_fd());
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(many + 1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let header = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
            sendmsg(theirs.as_fd(), &[IoSlice::new(&header)], &mut ancillary, SendFlags::empty()).unwrap();
            drop(lingering);
            (socket, theirs, peer)
        };
        let (mut socket, theirs, peer) = sent(0);
        drop(socket.receive().await.unwrap().unwrap());
        theirs.send(4, 0, &[], &[]).unwrap();
        assert_eq!(socket.receive().await.unwrap().unwrap().header.request, 4, "the next message");
        drop(peer);
        let (mut socket, _theirs, peer) = sent(DESCRIPTORS_MAX);
        assert!(matches!(socket.receive().await, Err(SocketError::Descriptors)));
        drop(peer);
        let (socket, _theirs, _peer) = sent(0);
        socket.close();
    }

    #[tokio::test]
    async fn a_disconnect_is_detected_although_bytes_are_unread() {
        let (socket, mut theirs) = pair();
        theirs.write_all(&[0; 100]).unwrap();
        assert!(!hung_up(socket.stream.as_fd()));
        drop(theirs);
        assert!(hung_up(socket.stream.as_fd()));
    }
}
