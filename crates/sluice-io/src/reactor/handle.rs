//! The handles of a device thread, by which other threads reach it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::reactor::actor::Actor;
use crate::reactor::life::Life;
use crate::reactor::mailbox::{Closed, Mailbox, confirmation, mailbox};
use crate::reactor::message::{Call, Message};
use crate::reactor::probe::Probe;
use crate::reactor::spec::{ClientSnapshot, EditError, Health, Snapshot};
use crate::reactor::supervisor;
use crate::reactor::worker::Job;
use crate::vhost_user::message::SessionMessage;

/// Maximum time for a reply of a device thread, which replies between two iterations.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Maximum time for the start of a device thread, which opens no disk and no path.
const START_MAX: Duration = Duration::from_secs(5);
/// Maximum time that the caller waits for a change. The thread makes a change that takes longer nevertheless, in order.
pub(crate) const EDIT_MAX: Duration = Duration::from_secs(5);

/// A mailbox of any kind of actor.
trait Port: Send + Sync {
    fn call(&self, call: Call) -> Result<(), Closed>;

    fn session(&self, message: SessionMessage) -> Result<(), Closed>;
}

impl<A: Actor> Port for Mailbox<A> {
    fn call(&self, call: Call) -> Result<(), Closed> {
        self.send(Message::Call(call))
    }

    fn session(&self, message: SessionMessage) -> Result<(), Closed> {
        self.send(Message::Command(message.into()))
    }
}

/// A running device thread, whatever it serves. Dropping it stops the thread without draining.
pub struct Thread {
    name: String,
    port: Arc<dyn Port>,
    life: Arc<Life>,
    /// Returns the last snapshot, or `None` if the device has failed permanently.
    thread: Option<Job<Option<Snapshot>>>,
}

/// Starts a device thread. `went_down` is called on it when it has failed permanently.
pub(crate) fn spawn<A: Actor>(
    spec: A::Spec,
    went_down: Box<dyn Fn() + Send + Sync>,
) -> io::Result<(Thread, Mailbox<A>)> {
    let (mailbox, inbox) = mailbox()?;
    let (started, starting) = channel();
    let name = A::name(&spec).to_owned();
    let life = Arc::new(Life::new(went_down));
    let (own, lives) = (mailbox.clone(), Arc::clone(&life));
    let thread = Job::start(&name, move || supervisor::run::<A>(&spec, &own, inbox, &started, &lives))?;
    let begun = starting.recv_timeout(START_MAX).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            // The thread ends when it can; nothing waits for it.
            let _ = mailbox.call(Call::Stop);
            io::Error::new(io::ErrorKind::TimedOut, "The device thread has not started within 5 s")
        }
        RecvTimeoutError::Disconnected => io::Error::other("The device thread ended during its start"),
    });
    begun??;
    Ok((Thread { name, port: Arc::new(mailbox.clone()), life, thread: Some(thread) }, mailbox))
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

impl Thread {
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

    /// Refuses new clients of these volumes or NICs, by VM and name, until they are removed or opened again. Waits for at most `timeout`.
    ///
    /// # Errors
    /// [`EditError::InUse`]: one of them has clients, and none are refused.
    pub fn refuse_clients(&self, volumes: Vec<(String, String)>, timeout: Duration) -> Result<(), EditError> {
        let (reply, answer) = channel();
        let sent = self.port.call(Call::RefuseClients(volumes, reply));
        sent.map_err(|_| EditError::Stopped(self.name.clone()))?;
        confirmation(&self.name, &answer, timeout)
    }

    /// Returns a handle by which other threads can open sessions of VMMs.
    #[must_use]
    pub fn handle(&self) -> DeviceHandle {
        DeviceHandle { port: Arc::clone(&self.port) }
    }

    /// Returns a handle by which other threads can look at the device.
    #[must_use]
    pub fn watch(&self) -> DeviceWatch {
        DeviceWatch { name: self.name.clone(), port: Arc::clone(&self.port), life: Arc::clone(&self.life) }
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
        let sent = self.port.call(Call::Probe(reply));
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
        let _ = self.port.call(Call::Drain);
    }

    /// Makes the thread end now. Queued requests are dropped. The thread waits for those in flight.
    pub fn request_stop(&self) {
        let _ = self.port.call(Call::Stop);
    }

    /// Whether its thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(Job::has_ended)
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
        self.thread.take()?.join().flatten()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.end();
    }
}

/// A handle by which a device is looked at and not changed.
#[derive(Clone)]
pub struct DeviceWatch {
    name: String,
    port: Arc<dyn Port>,
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
        let sent = self.port.call(Call::Snapshot(reply));
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
        self.port.call(Call::Clients(reply)).ok()?;
        answer.recv_timeout(timeout).ok()
    }
}

/// A handle of a device thread, for the sessions of VMMs.
#[derive(Clone)]
pub struct DeviceHandle {
    port: Arc<dyn Port>,
}

impl DeviceHandle {
    /// Accepts clients of these volumes again. Waits for nothing.
    pub fn reopen(&self, volumes: Vec<(String, String)>) {
        let _ = self.port.call(Call::Reopen(volumes));
    }

    /// Whether both are handles of the same thread.
    pub(crate) fn is(&self, other: &DeviceHandle) -> bool {
        Arc::ptr_eq(&self.port, &other.port)
    }

    /// Sends a message about a VMM's session. Its reply channel is dropped if the thread has stopped.
    pub(crate) fn send(&self, message: SessionMessage) {
        let _ = self.port.session(message);
    }
}
