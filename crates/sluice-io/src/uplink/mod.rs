//! An uplink: a network interface that VMs share, with one thread, one gate, and the NICs of the VMs.
//!
//! ```text
//!     guest --transmit queue--> [vhost_net] --.                          .--> TAP, packet socket, port of a bridge
//!     TAP   ----------read----> [taps] -------+--> [core] --> Gate --> [wire]
//!        ^                                    '--> switch --> receive queue of another NIC
//!        '------- receive queue of the NIC <--------- switch <--- read ---'
//! ```
//!
//! Frames that a NIC sends pass the gate; those that wait stay in the guest's ring. Its thread is one as that of a disk, in whose
//! snapshots a NIC stands where a volume does.

use std::io;
use std::ops::Deref;
use std::time::Duration;

use crate::reactor::handle::{EDIT_MAX, Thread, spawn};
use crate::reactor::mailbox::Mailbox;
use crate::reactor::spec::{EditError, Snapshot};
use crate::uplink::actor::UplinkActor;

pub(crate) mod actor;
pub(crate) mod core;
mod deliver;
pub(crate) mod edit;
pub(crate) mod ids;
pub mod link;
pub(crate) mod nic;
pub(crate) mod pacer;
pub(crate) mod packet;
pub(crate) mod ports;
pub(crate) mod receive_buffers;
pub mod spec;
pub(crate) mod taps;
#[cfg(test)]
mod tests;
pub(crate) mod vhost_net;
pub(crate) mod wire;

pub use spec::{Edit, NicPlug, NicSpec, UplinkSpec};

/// The running thread of an uplink.
pub struct Uplink {
    thread: Thread,
    pub(crate) mailbox: Mailbox<UplinkActor>,
}

impl Deref for Uplink {
    type Target = Thread;

    fn deref(&self) -> &Thread {
        &self.thread
    }
}

impl From<Uplink> for Thread {
    fn from(uplink: Uplink) -> Thread {
        uplink.thread
    }
}

impl Uplink {
    /// Starts the thread. `went_down` is called on it when it has failed permanently.
    ///
    /// # Errors
    /// The error of creating the ring, or of the scheduler's parameters.
    pub fn start(spec: UplinkSpec, went_down: Box<dyn Fn() + Send + Sync>) -> io::Result<Uplink> {
        let (thread, mailbox) = spawn(spec, went_down)?;
        Ok(Uplink { thread, mailbox })
    }

    /// Applies changes between two iterations. Waits for at most 5 s.
    ///
    /// # Errors
    /// [`EditError`]; the changes before the one that failed stay in force.
    pub fn edit(&self, edits: Vec<Edit>) -> Result<(), EditError> {
        self.edit_within(edits, EDIT_MAX)
    }

    /// As [`Uplink::edit`], but waits for at most `timeout`.
    pub fn edit_within(&self, edits: Vec<Edit>, timeout: Duration) -> Result<(), EditError> {
        self.mailbox.edit_within(self.name(), edits, timeout)
    }

    /// Stops the thread and waits for its end. Returns its last snapshot, or `None` if it had failed permanently.
    pub fn stop(self) -> Option<Snapshot> {
        self.thread.stop()
    }
}
