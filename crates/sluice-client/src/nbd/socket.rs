//! The client's socket: Unix or TCP, always in blocking mode, with the non-blocking calls made by flag.
//!
//! The flag on each call (instead of switching the socket's mode) lets one client block for replies and yet
//! never block for sending, at no extra system call.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// Something to read, or the end of the connection.
    Read,
    /// That, or room to write.
    ReadOrWrite,
}

/// A connected stream.
#[derive(Debug)]
pub(super) enum Stream {
    /// Over a path or a pair.
    Unix(UnixStream),
    /// Over the network.
    Tcp(TcpStream),
}

/// A stream and the read timeout that it currently has.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    read_timeout: Option<Duration>,
}

impl Socket {
    /// Takes a stream over: blocking mode, and `timeout` for each read and write until
    /// [`Socket::receive_blocking`] sets another.
    pub(super) fn new(stream: Stream, timeout: Duration) -> io::Result<Socket> {
        let timeout = Some(timeout);
        match &stream {
            Stream::Unix(stream) => stream.set_nonblocking(false).and(stream.set_write_timeout(timeout))?,
            Stream::Tcp(stream) => stream.set_nonblocking(false).and(stream.set_write_timeout(timeout))?,
        }
        let mut socket = Socket { stream, read_timeout: None };
        socket.set_read_timeout(timeout)?;
        Ok(socket)
    }

    /// What is there to read, or `None` when nothing is; 0 is the end of the connection.
    pub(super) fn receive_now(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        ready(retry(|| recv(self, &mut *bytes, RecvFlags::DONTWAIT).map(|(_, len)| len)))
    }

    /// Waits for something to read: `None` when `timeout` passed without.
    pub(super) fn receive_blocking(
        &mut self,
        bytes: &mut [u8],
        timeout: Option<Duration>,
    ) -> io::Result<Option<usize>> {
        self.set_read_timeout(timeout)?;
        ready(retry(|| recv(&*self, &mut *bytes, RecvFlags::empty()).map(|(_, len)| len)))
    }

    /// Sends what the socket takes at once, or `None` when it takes nothing.
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        ready(retry(|| send(self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)))
    }

    /// Waits without end or for `timeout`; false when it passed.
    pub(super) fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        let events = match interest {
            Interest::Read => PollFlags::IN,
            Interest::ReadOrWrite => PollFlags::IN | PollFlags::OUT,
        };
        // A timeout too long for the kernel is as good as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // After a signal the caller comes back with what is left of its timeout.
        match poll(&mut [PollFd::new(self, events)], timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Skips the system call when the timeout is already set.
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.read_timeout != timeout {
            match &self.stream {
                Stream::Unix(stream) => stream.set_read_timeout(timeout)?,
                Stream::Tcp(stream) => stream.set_read_timeout(timeout)?,
            }
            self.read_timeout = timeout;
        }
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Turns "not now" into `None`.
fn ready(outcome: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(len) => Ok(Some(len)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
