//! A device thread: one io_uring, one gate, and the connections of the VMs on it.
//!
//! One turn of the loop: take what has completed, take what clients sent, ask the gate, submit everything by one system
//! call and wait. No lock and no channel lies between a request and its decision; the mailbox is for control alone.
//!
//! ```text
//! socket --recv--> [intake] --Arrival--> Gate --Submission--> [work] --op--> ring
//!    ^                                    ^                      |
//!    '------send--- [replies] <--Finished-'<------- slot over <--'
//! ```
//!
//! Back-pressure: what a VM has between socket and sent reply is bounded by its window, in requests and bytes. Beyond it
//! its sockets are not read. A client that does not take its replies fills its own VM's window and nobody else's, until it
//! is disconnected.
//!
//! Panic wall: a panic in the loop ends its connections, waits until the kernel has let go of all memory, builds the gate
//! anew from the same specification, and goes on. Other devices do not notice. One that fails again and again goes down.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::device::mailbox::Mailbox;
use crate::device::message::Message;
use crate::device::supervisor::Life;
use crate::frontend::Command;
use crate::frontend::vhost_blk::SessionMessage;

pub(crate) mod blocking;
pub(crate) mod core;
pub(crate) mod deadline_timer;
pub(crate) mod edit;
pub(crate) mod event_loop;
#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod mailbox;
pub(crate) mod message;
pub mod spec;
pub(crate) mod spin;
pub(crate) mod supervisor;
pub(crate) mod vm;

pub use crate::frontend::nbd::Arrived;
pub use crate::volume::{Store, VolumeGeneration, VolumeSpec};
pub use spec::{DeviceSpec, Edit, EditError, Health, SchedulerSpec, Snapshot, VmSnapshot, Window};

/// How long a device thread may take to answer: it is asked between two turns of its loop.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long a device thread may take to start: it looks at no disk and no path.
const START_MAX: Duration = Duration::from_secs(5);
/// How long the caller waits for a change. The thread makes a change that takes longer all the same, in order.
const EDIT_MAX: Duration = Duration::from_secs(5);

/// The handle of a running device thread. Dropping it stops the thread without draining.
pub struct Device {
    name: String,
    pub(crate) mailbox: Mailbox,
    life: Arc<Life>,
    /// Returns the last snapshot, or `None` if the device has failed for good.
    thread: Option<JoinHandle<Option<Snapshot>>>,
}

/// A question that a device thread has not answered yet.
pub struct Asked {
    name: String,
    life: Arc<Life>,
    answer: Option<Receiver<Snapshot>>,
}

impl Asked {
    /// The answer, if it comes until then; else what can be seen without it.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Snapshot {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = self.answer.and_then(|answer| answer.recv_timeout(left).ok());
        answer.unwrap_or_else(|| {
            let health = match self.life.health() {
                Health::Serving => Health::Silent,
                other => other,
            };
            Snapshot { restarts: self.life.restarts(), ..Snapshot::unknown(self.name, health) }
        })
    }
}

impl Device {
    /// Starts the thread. Errors of the ring and of the scheduler's parameters are reported here.
    pub fn start(spec: DeviceSpec) -> io::Result<Device> {
        Device::start_watched(spec, Box::new(|| ()))
    }

    /// As [`Device::start`]. `went_down` is called, on the device's thread, when it has failed for good.
    pub fn start_watched(spec: DeviceSpec, went_down: Box<dyn Fn() + Send + Sync>) -> io::Result<Device> {
        let (mailbox, inbox) = mailbox::mailbox()?;
        let (started, starting) = channel();
        let name = spec.name.clone();
        let life = Arc::new(Life::new(went_down));
        let (own, lives) = (mailbox.clone(), Arc::clone(&life));
        let builder = thread::Builder::new().name(format!("dev-{name}"));
        let thread = builder.spawn(move || supervisor::run(&spec, &own, inbox, &started, &lives))?;
        let begun = starting.recv_timeout(START_MAX).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                // The thread ends when it can; it is not waited for.
                let _ = mailbox.send(Message::Stop);
                io::Error::new(io::ErrorKind::TimedOut, "The device thread has not started within 5 s")
            }
            RecvTimeoutError::Disconnected => io::Error::other("The device thread ended before it began"),
        });
        begun??;
        Ok(Device { name, mailbox, life, thread: Some(thread) })
    }

    /// As in the host file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it serves, as far as can be seen without asking its thread.
    #[must_use]
    pub fn health(&self) -> Health {
        self.life.health()
    }

    /// Applies changes between two turns; waits until it has happened, for at most 5 s.
    pub fn edit(&self, edits: Vec<Edit>) -> Result<(), EditError> {
        self.edit_within(edits, EDIT_MAX)
    }

    /// As [`Device::edit`], but waits for at most `patience`.
    pub fn edit_within(&self, edits: Vec<Edit>, patience: Duration) -> Result<(), EditError> {
        let (reply, answer) = channel();
        let stopped = || EditError::Stopped(self.name.clone());
        self.mailbox.send(Message::Edit(edits, reply)).map_err(|_| stopped())?;
        answer.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => EditError::Silent(self.name.clone()),
            RecvTimeoutError::Disconnected => stopped(),
        })?
    }

    /// A way to hand over clients, for other threads.
    #[must_use]
    pub fn handle(&self) -> DeviceHandle {
        DeviceHandle { mailbox: self.mailbox.clone() }
    }

    /// Asks what it does at the moment.
    #[must_use]
    pub fn ask(&self) -> Asked {
        let (reply, answer) = channel();
        let sent = self.mailbox.send(Message::Snapshot(reply));
        Asked { name: self.name.clone(), life: Arc::clone(&self.life), answer: sent.is_ok().then_some(answer) }
    }

    /// What it does at the moment; `None` if it does not answer, which a serving device does.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let snapshot = self.ask().until(Instant::now() + ANSWER_MAX);
        (snapshot.health == Health::Serving).then_some(snapshot)
    }

    /// Asks it to read no more and to end when every request has been answered.
    pub fn drain(&self) {
        let _ = self.mailbox.send(Message::Drain);
    }

    /// Asks it to end now. What waits is not served; what is at the disk ends there, and the thread waits for it.
    pub fn tell_to_stop(&self) {
        let _ = self.mailbox.send(Message::Stop);
    }

    /// Whether its thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it now and waits for it, for at most so long: requests at a disk that hangs end when that answers, and its thread
    /// waits for them. Returns whether it has ended.
    pub fn stop_within(mut self, patience: Duration) -> bool {
        self.tell_to_stop();
        let until = Instant::now() + patience;
        while !self.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let ended = self.is_finished();
        if !ended {
            drop(self.thread.take());
        }
        ended
    }

    /// Ends it now, unless it has ended, and waits for it. What it did until then; nothing if it had failed for good.
    pub fn stop(mut self) -> Option<Snapshot> {
        self.end()
    }

    /// Does not wait for its end: the process ends first. What the kernel still works on it finishes without it.
    pub fn abandon(mut self) {
        self.tell_to_stop();
        drop(self.thread.take());
    }

    fn end(&mut self) -> Option<Snapshot> {
        self.tell_to_stop();
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where clients that have finished their handshake go in.
#[derive(Clone)]
pub struct DeviceHandle {
    mailbox: Mailbox,
}

impl DeviceHandle {
    /// Hands a client over; its socket is closed if the device has stopped.
    pub fn enter(&self, arrived: Arrived) {
        let _ = self.mailbox.send(Message::Frontend(Command::Nbd(Box::new(arrived))));
    }

    /// Whether it leads to the same device thread.
    pub(crate) fn is(&self, other: &DeviceHandle) -> bool {
        self.mailbox.is(&other.mailbox)
    }

    /// A change of a VMM's session; its reply channel is dropped if the device has stopped.
    pub(crate) fn tell(&self, message: SessionMessage) {
        let _ = self.mailbox.send(Message::Frontend(Command::VhostBlk(message)));
    }
}

#[cfg(test)]
mod tests;
