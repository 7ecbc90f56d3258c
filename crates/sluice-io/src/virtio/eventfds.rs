//! The eventfds of a virtqueue: the guest's kicks, its interrupts, and the VMM's signal that the queue is broken.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The eventfds of a virtqueue.
pub(crate) struct Eventfds {
    pub(crate) kick: Kick,
    pub(crate) interrupt: Interrupt,
    pub(crate) error: ErrorSignal,
}

/// Signalled by the guest.
pub(crate) struct Kick {
    pub(crate) fd: OwnedFd,
    /// Buffer for reading it.
    pub(crate) count: Box<u64>,
    /// Whether the next kick wakes the loop.
    pub(crate) listening: bool,
}

/// Signalled for the guest.
pub(crate) struct Interrupt {
    /// `None` if the guest polls.
    pub(crate) fd: Option<Arc<OwnedFd>>,
    /// Whether an interrupt is on its way to the kernel.
    pub(crate) raising: bool,
    /// Whether the guest is interrupted at the end of the iteration.
    pub(crate) signal: Signal,
}

/// Signalled for the VMM when the guest has broken the queue.
pub(crate) struct ErrorSignal {
    pub(crate) fd: Option<Arc<OwnedFd>>,
    /// Whether the VMM is being signalled.
    pub(crate) signals: bool,
}

/// Whether the guest is interrupted at the end of the iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    No,
    /// If the guest requests it; something was returned.
    IfWanted,
    /// Even if the guest does not request it.
    Always,
}

impl Eventfds {
    pub(crate) fn new(kick: OwnedFd, call: Option<Arc<OwnedFd>>, error: Option<Arc<OwnedFd>>) -> Self {
        Eventfds {
            kick: Kick { fd: kick, count: Box::new(0), listening: false },
            // The previous daemon may have returned requests and ended before it signalled the guest. Whether the guest
            // wanted that signal cannot be determined any more.
            interrupt: Interrupt { fd: call, raising: false, signal: Signal::Always },
            error: ErrorSignal { fd: error, signals: false },
        }
    }
}
