//! How others speak to a device thread: a channel, and an eventfd that its ring reads.
//!
//! For control alone; no request of a VM passes here.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::device::Message;

/// The sending side.
#[derive(Clone)]
pub(super) struct Mailbox {
    sender: Sender<Message>,
    bell: Arc<OwnedFd>,
}

/// The device thread's side.
pub(super) struct Inbox {
    pub(super) receiver: Receiver<Message>,
    pub(super) bell: Arc<OwnedFd>,
}

/// The receiver has gone.
#[derive(Debug)]
pub(super) struct Gone;

/// A new pair.
pub(super) fn mailbox() -> io::Result<(Mailbox, Inbox)> {
    let (sender, receiver) = channel();
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    Ok((Mailbox { sender, bell: Arc::clone(&bell) }, Inbox { receiver, bell }))
}

impl Mailbox {
    /// Leaves a message and rings.
    pub(super) fn send(&self, message: Message) -> Result<(), Gone> {
        self.sender.send(message).map_err(|_| Gone)?;
        self.ring();
        Ok(())
    }

    /// Leaves a message beside others for which it rings later.
    #[cfg(test)]
    pub(super) fn leave(&self, message: Message) {
        self.sender.send(message).map_err(|_| Gone).expect("the thread runs");
    }

    /// Whether what is sent to one reaches the other's receiver.
    pub(super) fn is(&self, other: &Mailbox) -> bool {
        Arc::ptr_eq(&self.bell, &other.bell)
    }

    /// Rings without a message. It cannot fail: the counter is read long before it could overflow.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes());
    }
}
