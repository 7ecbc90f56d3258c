//! A disk and its thread: one io_uring, one gate, and the connections of the VMs on it.
//!
//! In an iteration of its loop it handles completions, takes requests of clients, lets the gate dispatch, submits all
//! operations by one system call, and waits. No lock and no channel is between a request and its decision; the mailbox
//! is only for control.
//!
//! ```text
//!     socket --recv--> [intake] --Arrival--> Gate --Submission--> [backend] --op--> ring
//!        ^                                    ^                       |
//!        '------send--- [replies] <--Finished-'<---- op completed <---'
//! ```
//!
//! Back-pressure: a VM's window limits its requests and bytes between the socket and the sent reply. While the window
//! is full, the VM's sockets are not read. A client that does not read its replies only fills its own VM's window,
//! until it is disconnected.
//!
//! The loop, its bounds and its supervisor are those of every device thread; see [`crate::reactor`].

use std::io;
use std::ops::Deref;
use std::time::Duration;

use crate::device::disk::Disk;
use crate::frontend::nbd;
use crate::pace::VmPaces;
use crate::reactor::handle::{EDIT_MAX, Thread, spawn};
use crate::reactor::mailbox::Mailbox;
use crate::reactor::message::Message;

pub(crate) mod blocking;
pub(crate) mod command;
pub(crate) mod core;
pub(crate) mod deadline_timer;
pub(crate) mod disk;
pub(crate) mod edit;
#[cfg(test)]
pub(crate) mod order;
pub mod pool;
pub mod spec;
pub(crate) mod vm;
pub(crate) mod work;

pub use crate::device::pool::PoolHandle;
pub use crate::frontend::nbd::Arrived;
pub use crate::reactor::handle::{DeviceHandle, DeviceWatch, SnapshotRequest};
pub use crate::reactor::spec::{
    ClientSnapshot, EditError, Health, SchedulerSpec, Snapshot, VmSnapshot, VolumeSnapshot, Window,
};
pub use crate::store::StoreSpec;
pub use crate::store::file::FileSpec;
pub use crate::volume::{VolumeGeneration, VolumeSpec};
pub use spec::{DeviceSpec, Edit};

/// The running thread of a disk.
pub struct Device {
    thread: Thread,
    pub(crate) mailbox: Mailbox<Disk>,
    /// The rate limits for connections of each VM's clients.
    paces: VmPaces,
}

impl Deref for Device {
    type Target = Thread;

    fn deref(&self) -> &Thread {
        &self.thread
    }
}

impl From<Device> for Thread {
    fn from(device: Device) -> Thread {
        device.thread
    }
}

impl Device {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of creating the ring, or of the scheduler's parameters.
    pub fn start(spec: DeviceSpec) -> io::Result<Device> {
        Device::start_watched(spec, Box::new(|| ()))
    }

    /// As [`Device::start`]. `went_down` is called on the device's thread when it has failed permanently.
    pub fn start_watched(spec: DeviceSpec, went_down: Box<dyn Fn() + Send + Sync>) -> io::Result<Device> {
        let (thread, mailbox) = spawn(spec, went_down)?;
        Ok(Device { thread, mailbox, paces: VmPaces::default() })
    }

    /// Applies changes between two iterations. Waits for at most 5 s.
    ///
    /// # Errors
    /// [`EditError`]; the changes before the one that failed stay in force.
    pub fn edit(&self, edits: Vec<Edit>) -> Result<(), EditError> {
        self.edit_within(edits, EDIT_MAX)
    }

    /// As [`Device::edit`], but waits for at most `timeout`.
    pub fn edit_within(&self, edits: Vec<Edit>, timeout: Duration) -> Result<(), EditError> {
        self.mailbox.edit_within(self.name(), edits, timeout)
    }

    /// Returns a handle by which other threads can attach NBD clients.
    #[must_use]
    pub fn nbd(&self) -> NbdHandle {
        NbdHandle { mailbox: self.mailbox.clone(), paces: self.paces.clone() }
    }

    /// Returns a handle for the exchange with other hosts.
    #[must_use]
    pub fn pool(&self) -> PoolHandle {
        PoolHandle(self.mailbox.clone())
    }

    /// Stops the thread and waits for its end. Returns its last snapshot, or `None` if it had failed permanently.
    pub fn stop(self) -> Option<Snapshot> {
        self.thread.stop()
    }
}

/// A handle of the thread of a disk, for NBD clients that have finished their handshake.
#[derive(Clone)]
pub struct NbdHandle {
    mailbox: Mailbox<Disk>,
    paces: VmPaces,
}

impl NbdHandle {
    /// Attaches a client. Its socket is closed if the device has stopped.
    pub fn attach(&self, arrived: Arrived) {
        let _ = self.mailbox.send(Message::Command(nbd::Command::Connect(Box::new(arrived)).into()));
    }

    /// Ends the sessions of a VM's gateways that began to serve it before this; of all of them if there is no such time.
    pub(crate) fn end_gateways(&self, vm: &str, before: Option<u64>) {
        let end = nbd::Command::EndGateways { vm: vm.to_owned(), before };
        let _ = self.mailbox.send(Message::Command(end.into()));
    }

    /// Charges a VM CPU time that another thread has used for it.
    pub(crate) fn charge(&self, vm: &str, used: Duration) {
        let charge = nbd::Command::Charge { vm: vm.to_owned(), used };
        let _ = self.mailbox.send(Message::Command(charge.into()));
    }

    pub(crate) fn is_same(&self, other: &NbdHandle) -> bool {
        self.mailbox.is_same(&other.mailbox)
    }

    /// Waits until a client of a VM may be attached. A VM whose clients connect all the time waits here.
    pub(crate) async fn waits_for_turn(&self, vm: &String) {
        self.paces.wait(vm).await;
    }
}

#[cfg(test)]
mod tests;
