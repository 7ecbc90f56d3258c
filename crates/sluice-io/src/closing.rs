//! Closes descriptors that a VMM sent, in a thread of their own.
//!
//! Closing the last descriptor of a file may wait: a TCP socket with `SO_LINGER` waits for as long as its owner chose, a file on
//! FUSE for its file system. What a VMM sends may be any file. A descriptor is closed elsewhere only if it was checked to be
//! one that does not wait: an eventfd, or a file in memory.
//!
//! Each socket of the host has a thread for this while there is something to close, so that a VMM delays only itself.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Number of descriptors to close above which no more are accepted.
const WAITING_MAX: usize = 64;

/// The descriptors of one socket's VMMs that are to be closed.
#[derive(Debug, Clone, Default)]
pub struct Closing(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    /// Whether the thread runs. It ends when nothing is left.
    is_running: bool,
}

impl Closing {
    /// Closes a descriptor. Returns immediately.
    pub fn close(&self, descriptor: OwnedFd) {
        let mut queue = self.queue();
        queue.waiting.push_back(descriptor);
        if !queue.is_running {
            let own = self.clone();
            let started = thread::Builder::new().name("closing".to_owned()).spawn(move || {
                while let Some(next) = own.next() {
                    drop(next);
                }
            });
            // If there is no thread, the next descriptor tries again.
            queue.is_running = started.is_ok();
        }
    }

    /// Whether no more descriptors may be accepted until some have been closed.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.queue().waiting.len() > WAITING_MAX
    }

    fn next(&self) -> Option<OwnedFd> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        queue.is_running = next.is_some();
        next
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A descriptor that a VMM sent. When it is dropped, it is closed by [`Closing`].
#[derive(Debug)]
pub struct Received {
    descriptor: Option<OwnedFd>,
    closing: Closing,
}

impl Received {
    #[must_use]
    pub fn new(descriptor: OwnedFd, closing: &Closing) -> Self {
        Received { descriptor: Some(descriptor), closing: closing.clone() }
    }

    /// Returns the descriptor, whose file was checked to be one that does not wait when it is closed.
    #[must_use]
    pub fn into_checked(mut self) -> OwnedFd {
        self.descriptor.take().expect("it is taken once")
    }
}

impl AsFd for Received {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().expect("it is there until it is taken").as_fd()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.closing.close(descriptor);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    /// Returns a TCP socket that waits for its peer when it is closed, and the peer, whose end ends the wait.
    pub(crate) fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&lingering, Some(Duration::from_secs(3600))).unwrap();
        lingering.set_nonblocking(true).unwrap();
        // More than the peer takes without reading.
        while lingering.write(&[0; 65536]).is_ok() {}
        lingering.set_nonblocking(false).unwrap();
        (lingering, peer)
    }

    /// The test does not end if the descriptor is closed by this thread.
    #[test]
    fn a_descriptor_that_waits_delays_nobody() {
        let (lingering, peer) = lingering();
        let (behind, ahead) = (Closing::default(), Closing::default());
        drop(Received::new(lingering.into(), &behind));
        let other = || std::fs::File::open("/dev/null").unwrap().into();
        (0..=WAITING_MAX + 1).for_each(|_| drop(Received::new(other(), &behind)));
        assert!(behind.is_behind());
        drop(Received::new(other(), &ahead));
        while ahead.queue().is_running {
            thread::yield_now();
        }
        assert!(behind.is_behind(), "each socket has a thread of its own");
        drop(peer);
        while behind.queue().is_running {
            thread::yield_now();
        }
        assert!(!behind.is_behind());
    }
}
