//! A device thread: one io_uring, one gate, and the connections of the VMs on it.
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
//! Panics: a panic in the loop closes its connections. The supervisor waits until the kernel refers to no memory any
//! more, builds the gate again from the same specification, and continues. Other devices are not affected. A device
//! that fails repeatedly goes down.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::device::event_loop::Loop;
use crate::device::life::Life;
use crate::device::machine::Machine;
use crate::device::mailbox::Mailbox;
use crate::device::message::Message;
use crate::device::probe::Probe;
use crate::frontend::Command;
use crate::frontend::nbd::NbdCommand;
use crate::pace::VmPaces;
use crate::vhost_user::message::SessionMessage;

pub(crate) mod blocking;
pub(crate) mod budget;
pub(crate) mod core;
pub(crate) mod deadline_timer;
pub(crate) mod edit;
pub(crate) mod event_loop;
#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod lateness;
pub(crate) mod life;
pub(crate) mod machine;
pub(crate) mod mailbox;
pub(crate) mod message;
pub mod panics;
pub mod priority;
pub mod probe;
pub mod spec;
pub(crate) mod spin;
pub(crate) mod supervisor;
pub(crate) mod vm;

pub use crate::frontend::nbd::Arrived;
pub use crate::store::StoreSpec;
pub use crate::store::file::FileSpec;
pub use crate::volume::{VolumeGeneration, VolumeSpec};
pub use spec::{
    ClientSnapshot, DeviceSpec, Edit, EditError, Health, SchedulerSpec, Snapshot, VmSnapshot, VolumeSnapshot, Window,
};

/// Maximum time for a reply of a device thread, which replies between two iterations.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Maximum time for the start of a device thread, which opens no disk and no path.
const START_MAX: Duration = Duration::from_secs(5);
/// Maximum time that the caller waits for a change. The thread makes a change that takes longer nevertheless, in order.
const EDIT_MAX: Duration = Duration::from_secs(5);

/// The handle of a running device thread. Dropping it stops the thread without draining.
pub struct Device {
    name: String,
    pub(crate) mailbox: Mailbox,
    handle: DeviceHandle,
    life: Arc<Life>,
    /// Returns the last snapshot, or `None` if the device has failed permanently.
    thread: Option<JoinHandle<Option<Snapshot>>>,
}

/// A request for a snapshot.
pub struct SnapshotRequest {
    name: String,
    life: Arc<Life>,
    answer: Option<Receiver<Snapshot>>,
}

impl SnapshotRequest {
    /// Waits for the snapshot until `deadline`. Without one, returns what is known without the thread.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Snapshot {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = self.answer.and_then(|answer| answer.recv_timeout(left).ok());
        let snapshot = answer.unwrap_or_else(|| {
            let health = match self.life.health() {
                Health::Serving => Health::Silent,
                other => other,
            };
            Snapshot { restarts: self.life.restarts(), ..Snapshot::unknown(self.name, health) }
        });
        Snapshot { failure: self.life.failure(), ..snapshot }
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
        Device::spawn::<Loop>(spec, went_down)
    }

    /// Starts the thread of a disk or of an uplink.
    pub(crate) fn spawn<M: Machine>(spec: M::Spec, went_down: Box<dyn Fn() + Send + Sync>) -> io::Result<Device> {
        let (mailbox, inbox) = mailbox::mailbox()?;
        let (started, starting) = channel();
        let name = M::name(&spec).to_owned();
        let life = Arc::new(Life::new(went_down));
        let (own, lives) = (mailbox.clone(), Arc::clone(&life));
        let builder = thread::Builder::new().name(format!("dev-{name}"));
        let thread = builder.spawn(move || supervisor::run::<M>(&spec, &own, inbox, &started, &lives))?;
        let begun = starting.recv_timeout(START_MAX).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                // The thread ends when it can; nothing waits for it.
                let _ = mailbox.send(Message::Stop);
                io::Error::new(io::ErrorKind::TimedOut, "The device thread has not started within 5 s")
            }
            RecvTimeoutError::Disconnected => io::Error::other("The device thread ended during its start"),
        });
        begun??;
        let handle = DeviceHandle { mailbox: mailbox.clone(), paces: VmPaces::default() };
        Ok(Device { name, mailbox, handle, life, thread: Some(thread) })
    }

    /// Returns the name in the host file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it serves, as far as this is known without its thread.
    #[must_use]
    pub fn health(&self) -> Health {
        self.life.health()
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
        let (reply, answer) = channel();
        let stopped = || EditError::Stopped(self.name.clone());
        self.mailbox.send(Message::Edit(edits, reply)).map_err(|_| stopped())?;
        answer.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => EditError::Silent(self.name.clone()),
            RecvTimeoutError::Disconnected => stopped(),
        })?
    }

    /// Returns a handle by which other threads can attach clients.
    #[must_use]
    pub fn handle(&self) -> DeviceHandle {
        self.handle.clone()
    }

    /// Returns a handle by which other threads can look at the device.
    #[must_use]
    pub fn watch(&self) -> DeviceWatch {
        DeviceWatch { name: self.name.clone(), mailbox: self.mailbox.clone(), life: Arc::clone(&self.life) }
    }

    /// Requests a snapshot.
    #[must_use]
    pub fn request_snapshot(&self) -> SnapshotRequest {
        self.watch().request_snapshot()
    }

    /// Sends a probe.
    #[must_use]
    pub fn probe(&self) -> Probe {
        let (reply, answer) = channel();
        let sent = self.mailbox.send(Message::Probe(reply));
        Probe { life: Arc::clone(&self.life), answer: sent.is_ok().then_some(answer) }
    }

    /// Returns a snapshot; `None` if the thread does not serve.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let snapshot = self.request_snapshot().until(Instant::now() + ANSWER_MAX);
        (snapshot.health == Health::Serving).then_some(snapshot)
    }

    /// Makes the thread read no more requests, and end when every request has been answered.
    pub fn drain(&self) {
        let _ = self.mailbox.send(Message::Drain);
    }

    /// Makes the thread end now. Queued requests are dropped. The thread waits for those in flight.
    pub fn request_stop(&self) {
        let _ = self.mailbox.send(Message::Stop);
    }

    /// Whether its thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the thread and waits for its end, for at most `timeout`. Requests at a hanging disk may take longer.
    /// Returns whether it has ended.
    pub fn stop_within(mut self, timeout: Duration) -> bool {
        self.request_stop();
        let until = Instant::now() + timeout;
        while !self.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let ended = self.is_finished();
        if !ended {
            drop(self.thread.take());
        }
        ended
    }

    /// Stops the thread and waits for its end. Returns its last snapshot, or `None` if it had failed permanently.
    pub fn stop(mut self) -> Option<Snapshot> {
        self.end()
    }

    /// Does not wait for the thread, because the process exits first. The kernel completes its operations without it.
    pub fn abandon(mut self) {
        self.request_stop();
        drop(self.thread.take());
    }

    fn end(&mut self) -> Option<Snapshot> {
        self.request_stop();
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

/// A handle by which a device is looked at and not changed.
#[derive(Clone)]
pub struct DeviceWatch {
    name: String,
    mailbox: Mailbox,
    life: Arc<Life>,
}

impl DeviceWatch {
    /// Returns the name in the host file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requests a snapshot.
    #[must_use]
    pub fn request_snapshot(&self) -> SnapshotRequest {
        let (reply, answer) = channel();
        let sent = self.mailbox.send(Message::Snapshot(reply));
        SnapshotRequest {
            name: self.name.clone(),
            life: Arc::clone(&self.life),
            answer: sent.is_ok().then_some(answer),
        }
    }

    /// Returns its clients; `None` if the thread does not reply within `timeout`.
    #[must_use]
    pub fn clients(&self, timeout: Duration) -> Option<Vec<ClientSnapshot>> {
        let (reply, answer) = channel();
        self.mailbox.send(Message::Clients(reply)).ok()?;
        answer.recv_timeout(timeout).ok()
    }
}

/// A handle of a device's thread, for clients that have finished their handshake.
#[derive(Clone)]
pub struct DeviceHandle {
    mailbox: Mailbox,
    /// The rate limits for connections of each VM's clients.
    paces: VmPaces,
}

impl DeviceHandle {
    /// Attaches a client. Its socket is closed if the device has stopped.
    pub fn attach(&self, arrived: Arrived) {
        self.send_message(Message::Frontend(Command::Nbd(NbdCommand::Connect(Box::new(arrived)))));
    }

    /// Waits until a client of a VM may be attached. A VM whose clients connect all the time waits here.
    pub(crate) async fn waits_for_turn(&self, vm: &String) {
        self.paces.wait(vm).await;
    }

    /// Accepts clients of these volumes again. Waits for nothing.
    pub fn reopen(&self, volumes: Vec<(String, String)>) {
        self.send_message(Message::Edit(vec![Edit::Reopen { volumes }], channel().0));
    }

    /// Whether both are handles of the same device.
    pub(crate) fn is(&self, other: &DeviceHandle) -> bool {
        self.mailbox.is(&other.mailbox)
    }

    /// Sends a message about a VMM's session. Its reply channel is dropped if the device has stopped.
    pub(crate) fn send(&self, message: SessionMessage) {
        self.send_message(Message::Session(message));
    }

    fn send_message(&self, message: Message) {
        let _ = self.mailbox.send(message);
    }
}

#[cfg(test)]
mod tests;
