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

use crate::reactor::actor::Actor;
use crate::reactor::message::{Call, Message};
use crate::reactor::spec::EditError;

/// The sender.
pub(crate) struct Mailbox<A: Actor> {
    sender: Sender<Message<A>>,
    wakeup: Arc<OwnedFd>,
}

impl<A: Actor> Clone for Mailbox<A> {
    fn clone(&self) -> Self {
        Mailbox { sender: self.sender.clone(), wakeup: Arc::clone(&self.wakeup) }
    }
}

/// The receiver, on the device thread.
pub(crate) struct Inbox<A: Actor> {
    receiver: Receiver<Message<A>>,
    /// Messages that arrived during the pause before a restart, in order. Only the control plane sends messages, and a
    /// pause takes at most 1.6 s, so there are few.
    early: VecDeque<Message<A>>,
    pub(crate) wakeup: Arc<OwnedFd>,
}

/// The receiver was dropped.
#[derive(Debug)]
pub(crate) struct Closed;

/// Creates a mailbox.
pub(crate) fn mailbox<A: Actor>() -> io::Result<(Mailbox<A>, Inbox<A>)> {
    let (sender, receiver) = channel();
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    Ok((Mailbox { sender, wakeup: Arc::clone(&wakeup) }, Inbox { receiver, early: VecDeque::new(), wakeup }))
}

impl<A: Actor> Inbox<A> {
    /// Returns the next message, if there is one.
    pub(crate) fn next(&mut self) -> Option<Message<A>> {
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
                Ok(Message::Call(Call::Stop | Call::Drain)) | Err(RecvTimeoutError::Disconnected) => return true,
                Ok(message) => self.early.push_back(message),
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}

impl<A: Actor> Mailbox<A> {
    /// Whether both are of the same thread.
    pub(crate) fn is_same(&self, other: &Mailbox<A>) -> bool {
        Arc::ptr_eq(&self.wakeup, &other.wakeup)
    }

    /// Sends a message and wakes the thread.
    pub(crate) fn send(&self, message: Message<A>) -> Result<(), Closed> {
        self.sender.send(message).map_err(|_| Closed)?;
        self.wake();
        Ok(())
    }

    /// Sends a message without a wake-up, for tests that send several.
    #[cfg(test)]
    pub(crate) fn leave(&self, message: Message<A>) {
        self.sender.send(message).map_err(|_| Closed).expect("the thread runs");
    }

    /// Sends the thread of `device` changes, and waits for at most `timeout` until it has made them.
    pub(crate) fn edit_within(&self, device: &str, edits: Vec<A::Edit>, timeout: Duration) -> Result<(), EditError> {
        let (reply, answer) = channel();
        self.send(Message::Edit(edits, reply)).map_err(|_| EditError::Stopped(device.to_owned()))?;
        confirmation(device, &answer, timeout)
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        wake(&self.wakeup);
    }

    /// Returns what wakes the thread without a message.
    pub(crate) fn waker(&self) -> Waker {
        Arc::new(MailboxWaker(Arc::clone(&self.wakeup))).into()
    }
}

/// Waits for at most `timeout` until the thread of `device` has made a change.
pub(crate) fn confirmation(
    device: &str,
    answer: &Receiver<Result<(), EditError>>,
    timeout: Duration,
) -> Result<(), EditError> {
    answer.recv_timeout(timeout).map_err(|error| match error {
        RecvTimeoutError::Timeout => EditError::Silent(device.to_owned()),
        RecvTimeoutError::Disconnected => EditError::Stopped(device.to_owned()),
    })?
}

/// Wakes a thread. It cannot fail: the counter is read long before it could overflow.
fn wake(wakeup: &OwnedFd) {
    let _ = rustix::io::write(wakeup.as_fd(), &1u64.to_ne_bytes());
}

struct MailboxWaker(Arc<OwnedFd>);

impl Wake for MailboxWaker {
    fn wake(self: Arc<Self>) {
        wake(&self.0);
    }
}
