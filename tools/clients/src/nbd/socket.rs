//! The client's socket: Unix or TCP, always in blocking mode. Non-blocking calls pass a flag.
//!
//! A flag on each call, instead of a mode of the socket, lets a client block for replies and never block for sending.
//! It costs no additional system call.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Event to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// Data to read, or the end of the connection.
    Read,
    /// The same, or space to write.
    ReadOrWrite,
}

/// A connected stream.
#[derive(Debug)]
pub(super) enum Stream {
    /// A Unix socket, from a path or a pair.
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A stream and its current read timeout.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    read_timeout: Option<Duration>,
}

impl Socket {
    /// Uses a stream in blocking mode, with `timeout` for each read and write until [`Socket::receive_blocking`] sets
    /// another.
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

    /// Reads what has arrived, or returns `None` if nothing has. 0 is the end of the connection.
    pub(super) fn receive_now(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        ready(retry(|| recv(self, &mut *bytes, RecvFlags::DONTWAIT).map(|(_, len)| len)))
    }

    /// Waits for data, or returns `None` after `timeout`.
    pub(super) fn receive_blocking(
        &mut self,
        bytes: &mut [u8],
        timeout: Option<Duration>,
    ) -> io::Result<Option<usize>> {
        self.set_read_timeout(timeout)?;
        ready(retry(|| recv(&*self, &mut *bytes, RecvFlags::empty()).map(|(_, len)| len)))
    }

    /// Sends what the socket accepts immediately, or returns `None` if it accepts nothing.
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        ready(retry(|| send(self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)))
    }

    /// Waits for an event. Returns `false` after `timeout`.
    pub(super) fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        let events = match interest {
            Interest::Read => PollFlags::IN,
            Interest::ReadOrWrite => PollFlags::IN | PollFlags::OUT,
        };
        // A timeout that is too long for the kernel counts as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // After a signal the caller calls again with the rest of its timeout.
        match poll(&mut [PollFd::new(self, events)], timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Skips the system call if this timeout is already set.
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

/// Returns `None` if the call would block.
fn ready(outcome: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(len) => Ok(Some(len)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
