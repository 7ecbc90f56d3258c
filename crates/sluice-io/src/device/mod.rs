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
//! its sockets are not read. A client that does not take its replies fills its own VM's window and nobody else's.
//!
//! Panic wall: a panic in the loop ends its connections, waits until the kernel has let go of all memory, builds the gate
//! anew from the same specification, and goes on. Other devices do not notice.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::device::mailbox::Mailbox;

mod edit;
mod mailbox;
mod merged;
mod nbd;
mod requests;
mod slow;
pub mod spec;
mod spin;
mod table;
mod turn;
mod vhost;
mod wall;
mod work;
mod zeroes;

pub(crate) use vhost::{SessionChange, SessionHandle, SessionMessage};

pub use spec::{Arrived, DeviceSpec, Edit, EditError, SchedulerSpec, Snapshot, Store, VmSnapshot, VolumeSpec, Window};

/// What an event of the ring belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Bell = 1,
    Receive = 2,
    Send = 3,
    Work = 4,
    /// A guest has something in a queue.
    Kick = 5,
    /// An interrupt for a guest.
    Call = 6,
    /// What else was done for a queue.
    Other = 7,
}

fn tag(tag: Tag, index: u32) -> u64 {
    (tag as u64) << 56 | u64::from(index)
}

fn untag(user_data: u64) -> (Tag, u32) {
    let tag = match user_data >> 56 {
        1 => Tag::Bell,
        2 => Tag::Receive,
        3 => Tag::Send,
        4 => Tag::Work,
        5 => Tag::Kick,
        6 => Tag::Call,
        7 => Tag::Other,
        other => unreachable!("no operation was tagged {other}"),
    };
    (tag, user_data as u32)
}

/// What the loop is told.
enum Message {
    Edit(Vec<Edit>, Sender<Result<(), EditError>>),
    Connect(Box<Arrived>),
    Session(SessionMessage),
    Snapshot(Sender<Snapshot>),
    /// Read no more; end when every request has been answered.
    Drain,
    /// End now; what waits is not served.
    Stop,
    /// Of the helper of that life of the thread: the one after the restart with this number.
    Answer(u64, slow::Answer),
    #[cfg(test)]
    Panic,
    /// File systems make zeroes this many times more, and refuse afterwards.
    #[cfg(test)]
    RefuseZeroing(u32),
}

/// The handle of a running device thread. Dropping it stops the thread without draining.
pub struct Device {
    name: String,
    mailbox: Mailbox,
    /// Its last word is what it did until its end.
    thread: Option<JoinHandle<Option<Snapshot>>>,
}

impl Device {
    /// Starts the thread. Errors of the ring and of the scheduler's parameters are reported here.
    pub fn start(spec: DeviceSpec) -> io::Result<Device> {
        let (mailbox, inbox) = mailbox::mailbox()?;
        let (started, starting) = channel();
        let name = spec.name.clone();
        let own = mailbox.clone();
        let builder = thread::Builder::new().name(format!("dev-{name}"));
        let thread = builder.spawn(move || wall::run(&spec, &own, &inbox, &started))?;
        starting.recv().map_err(|_| io::Error::other("The device thread ended before it began"))??;
        Ok(Device { name, mailbox, thread: Some(thread) })
    }

    /// As in the host file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Applies changes between two turns; waits until it has happened.
    pub fn edit(&self, edits: Vec<Edit>) -> Result<(), EditError> {
        let (reply, answer) = channel();
        let stopped = || EditError::Stopped(self.name.clone());
        self.mailbox.send(Message::Edit(edits, reply)).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }

    /// A way to hand over clients, for other threads.
    #[must_use]
    pub fn door(&self) -> Door {
        Door { mailbox: self.mailbox.clone() }
    }

    /// What it does at the moment.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (reply, answer) = channel();
        self.mailbox.send(Message::Snapshot(reply)).ok()?;
        answer.recv().ok()
    }

    /// Asks it to read no more and to end when every request has been answered.
    pub fn drain(&self) {
        let _ = self.mailbox.send(Message::Drain);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it now, unless it has ended, and waits for it. What it did until then; nothing if it had failed for good.
    pub fn stop(mut self) -> Option<Snapshot> {
        self.end()
    }

    fn end(&mut self) -> Option<Snapshot> {
        let _ = self.mailbox.send(Message::Stop);
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
pub struct Door {
    mailbox: Mailbox,
}

impl Door {
    /// Hands a client over; its socket is closed if the device has stopped.
    pub fn enter(&self, arrived: Arrived) {
        let _ = self.mailbox.send(Message::Connect(Box::new(arrived)));
    }

    /// Whether it leads to the same device thread.
    pub(crate) fn is(&self, other: &Door) -> bool {
        self.mailbox.is(&other.mailbox)
    }

    /// A change of a VMM's session; its reply channel is dropped if the device has stopped.
    pub(crate) fn tell(&self, message: SessionMessage) {
        let _ = self.mailbox.send(Message::Session(message));
    }
}

#[cfg(test)]
mod tests;
