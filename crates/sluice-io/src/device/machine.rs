//! The loop that a device thread runs: that of a disk, or that of an uplink. The supervisor builds it, and builds it again
//! after a failure.

use std::io;

use crate::backend::ring::Ring;
use crate::device::core::Ending;
use crate::device::mailbox::{Inbox, Mailbox};
use crate::device::spec::{Edit, EditError, Snapshot};

/// The loop of a device thread, with all of its state.
pub(crate) trait Machine: Sized {
    /// The specification from which it is built, at the start and after each failure.
    type Spec: Send + 'static;
    /// Threads that work for it.
    type Helper: Helper;

    /// Returns the name of the device in the host file.
    fn name(spec: &Self::Spec) -> &str;

    /// Builds an empty loop that was restarted `restarts` times.
    fn build(spec: &Self::Spec, mailbox: &Mailbox, restarts: u64) -> io::Result<(Self, Self::Helper)>;

    /// Runs until it is stopped or has drained.
    fn run(&mut self, inbox: &mut Inbox) -> io::Result<()>;

    fn snapshot(&mut self) -> Snapshot;

    /// Returns what a restarted loop takes over from this one, which has failed.
    fn kept(&self) -> Kept;

    /// Takes over what a failed loop has left.
    fn take_over(&mut self, kept: &Kept) -> Result<(), EditError>;

    /// Ends all operations in the kernel that wait for others.
    fn shut_down(&mut self);

    fn ring(&mut self) -> &mut Ring;
}

/// Threads that work for a loop.
pub(crate) trait Helper {
    /// Called when the loop has been freed. When this returns, they change nothing any more.
    fn end(self, device: &str);

    /// Called if the memory of the loop is kept, because the kernel may still use it.
    fn keep(self, device: &str);
}

/// The state that a restarted loop takes over from the failed one.
pub(crate) struct Kept {
    /// The files in them stay open, and losses stay recorded.
    pub(crate) edits: Vec<Edit>,
    pub(crate) stale_messages: u64,
    pub(crate) restarts: u64,
    pub(crate) ending: Ending,
}
