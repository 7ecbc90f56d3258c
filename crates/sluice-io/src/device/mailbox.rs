//! Messages to a device thread: a channel, and an eventfd that its ring reads.
//!
//! They are for control only; no request of a VM passes here.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::device::message::Message;

/// The sender.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    wakeup: Arc<OwnedFd>,
}

/// The receiver, on the device thread.
pub(crate) struct Inbox {
    receiver: Receiver<Message>,
    /// Messages that arrived during the pause before a restart, in order. Only the control plane sends messages, and a
    /// pause takes at most 1.6 s, so there are few.
    early: VecDeque<Message>,
    pub(crate) wakeup: Arc<OwnedFd>,
}

/// The receiver was dropped.
#[derive(Debug)]
pub(crate) struct Closed;

/// Creates a mailbox.
pub(crate) fn mailbox() -> io::Result<(Mailbox, Inbox)> {
    let (sender, receiver) = channel();
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    Ok((Mailbox { sender, wakeup: Arc::clone(&wakeup) }, Inbox { receiver, early: VecDeque::new(), wakeup }))
}

impl Inbox {
    /// Returns the next message, if there is one.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.early.pop_front().or_else(|| self.receiver.try_recv().ok())
    }

    /// Wakes this thread again, because there may be more messages.
    pub(crate) fn wake_again(&self) {
        wake(&self.wakeup);
    }

    /// Waits for `pause` before a restart. Returns `true` immediately if a message ends the thread. Other messages are
    /// kept for [`Inbox::next`].
    pub(crate) fn waits_and_must_end(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::Stop | Message::Drain) | Err(RecvTimeoutError::Disconnected) => return true,
                Ok(message) => self.early.push_back(message),
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}

impl Mailbox {
    /// Sends a message and wakes the thread.
    pub(crate) fn send(&self, message: Message) -> Result<(), Closed> {
        self.sender.send(message).map_err(|_| Closed)?;
        self.wake();
        Ok(())
    }

    /// Sends a message without a wake-up, for tests that send several.
    #[cfg(test)]
    pub(crate) fn leave(&self, message: Message) {
        self.sender.send(message).map_err(|_| Closed).expect("the thread runs");
    }

    /// Whether both have the same receiver.
    pub(crate) fn is(&self, other: &Mailbox) -> bool {
        Arc::ptr_eq(&self.wakeup, &other.wakeup)
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        wake(&self.wakeup);
    }

    /// Returns what wakes the thread without a message.
    pub(crate) fn waker(&self) -> Waker {
        Arc::new(MailboxWaker(self.clone())).into()
    }
}

/// Wakes a thread. It cannot fail: the counter is read long before it could overflow.
fn wake(wakeup: &OwnedFd) {
    let _ = rustix::io::write(wakeup.as_fd(), &1u64.to_ne_bytes());
}

struct MailboxWaker(Mailbox);

impl Wake for MailboxWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}
