//! Sessions of VMMs on a device thread: opening, starting, disabling, stopping and closing queues. It is the same for all kinds of devices.
//!
//! ```text
//!     control thread --SessionMessage--> [sessions] --started, enabled, stopped, closed--> VirtioDevices: block devices, NICs
//!                                           '--> [queue set]
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluice_sched::Instant;
use tokio::sync::oneshot::Sender;

use crate::backend::ring::Ring;
use crate::slab::Slab;
use crate::vhost_user::device_kind::Driver;
use crate::vhost_user::memory::Memory;
use crate::vhost_user::message::{SessionChange, SessionMessage};
use crate::virtio::queue::{QueueSpec, SessionId, State, VirtQueue};
use crate::virtio::queue_set::{QueueId, QueueSet};
use crate::volume::VolumeGeneration;

/// Reason of a queue that breaks with its memory table.
const OUTSIDE: &str = "its rings do not lie in the new memory table";

/// The session of a VMM that is connected to a volume or a NIC, which `T` identifies.
pub(crate) struct Session<T> {
    pub(crate) target: T,
    /// Process of the VMM.
    pub(crate) peer: String,
    /// Its connection permit. Dropping it notifies the control plane.
    _permit: Box<dyn Send>,
    /// Its queues, by their indices.
    pub(crate) queues: Vec<(u16, QueueId)>,
    /// What was negotiated with the driver. Without a driver it may cache writes.
    pub(crate) driver: Driver,
    life: Life,
}

/// Whether a session takes requests.
enum Life {
    Open,
    /// It has been closed, and ends with its last queue. The VMM's control thread may wait for that.
    Closing(Option<Sender<()>>),
}

impl<T> Session<T> {
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.life, Life::Open)
    }

    /// Returns its queues of this index: those that stop, and one that runs.
    fn ids(&self, index: u16) -> impl Iterator<Item = QueueId> {
        self.queues.iter().filter(move |(known, _)| *known == index).map(|(_, id)| *id)
    }
}

/// The thread of the devices.
pub(crate) trait Context {
    fn ring(&mut self) -> &mut Ring;

    /// Whether it accepts VMMs.
    fn is_open(&self) -> bool;

    /// Counts a message for a session that had ended.
    fn count_stale(&mut self);
}

/// The sessions of one kind of virtio device.
pub(crate) trait VirtioDevices {
    /// The state of the thread that the devices share.
    type Core: Context;
    /// A volume or a NIC.
    type Target: Copy;

    fn sessions(&mut self) -> &mut Slab<SessionId, Session<Self::Target>>;

    /// Returns the queues to which those of this index belong.
    fn queues(&mut self, index: u16) -> &mut QueueSet;

    /// Returns a queue that nothing refers to any more, and removes it.
    fn next_ended(&mut self) -> Option<(QueueId, VirtQueue)>;

    /// Returns the target of these names if it accepts a VMM.
    fn find(core: &Self::Core, vm: &str, target: &str, generation: VolumeGeneration) -> Option<Self::Target>;

    /// Called when a VMM has connected. Returns `false` if it is rejected nevertheless.
    fn opening(core: &mut Self::Core, target: Self::Target) -> bool;

    /// Called when a session was opened.
    fn opened(_core: &mut Self::Core, _target: Self::Target, _session: SessionId) {}

    /// Prepares a queue that starts. Returns the number of requests recovered from its in-flight log.
    fn prepare(core: &mut Self::Core, target: Self::Target, queue: &mut VirtQueue) -> u16;

    /// Called when a queue has started: takes what is available.
    fn started(&mut self, core: &mut Self::Core, now: Instant, id: QueueId, index: u16);

    /// Called when a queue was enabled or disabled.
    fn enabled(&mut self, core: &mut Self::Core, now: Instant, id: QueueId, index: u16);

    /// Called when a queue is to stop: puts back what waits.
    fn stopped(&mut self, core: &mut Self::Core, now: Instant, id: QueueId, index: u16);

    /// Called when a queue was closed: gives up what was taken from it.
    fn closed(&mut self, core: &mut Self::Core, now: Instant, id: QueueId, index: u16);

    /// Breaks a queue.
    fn break_queue(&mut self, core: &mut Self::Core, now: Instant, id: QueueId, index: u16, reason: &'static str);

    /// Called when a VMM has left. Its queues are closed.
    fn left(core: &mut Self::Core, target: Self::Target);

    /// Called when nothing of a session is left.
    fn ended(core: &mut Self::Core, target: Self::Target);

    /// Handles a message about a session.
    fn message(&mut self, core: &mut Self::Core, now: Instant, message: SessionMessage) {
        match message {
            SessionMessage::Open { vm, volume, generation, peer, permit, reply } => {
                let target = Self::find(core, &vm, &volume, generation);
                let _ = reply.send(target.and_then(|target| self.open(core, target, peer, permit)));
            }
            SessionMessage::Change(session, change) => match self.sessions().get(session) {
                Some(_) => self.change(core, now, session, change),
                // The session has ended; its index may belong to another one.
                None => core.count_stale(),
            },
        }
    }

    fn open(
        &mut self,
        core: &mut Self::Core,
        target: Self::Target,
        peer: String,
        permit: Box<dyn Send>,
    ) -> Option<SessionId> {
        if !core.is_open() || !Self::opening(core, target) {
            return None;
        }
        let driver = Driver { features: 0, write_back: true };
        let session = Session { target, peer, _permit: permit, queues: Vec::new(), driver, life: Life::Open };
        let id = self.sessions().insert(session);
        Self::opened(core, target, id);
        Some(id)
    }

    fn change(&mut self, core: &mut Self::Core, now: Instant, session: SessionId, change: SessionChange) {
        if let SessionChange::Close { reply } = change {
            return self.close_session(core, now, session, reply);
        }
        if !self.sessions()[session].is_open() {
            return;
        }
        match change {
            SessionChange::Start { queue, memory, driver, reply } => {
                self.sessions()[session].driver = driver;
                let _ = reply.send(self.start_queue(core, now, session, *queue, memory));
            }
            SessionChange::StopQueue { index, reply } => self.stop_queue(core, now, session, index, reply),
            SessionChange::Enable { index, enabled, reply } => {
                if let Some(id) = self.find_queue(session, index) {
                    self.queues(index).queue(id).enabled = enabled;
                    self.enabled(core, now, id, index);
                }
                let _ = reply.send(());
            }
            SessionChange::SetCall { index, call, reply } => {
                self.set_call(session, index, call);
                let _ = reply.send(());
            }
            SessionChange::SetMemory { memory, reply } => {
                let _ = reply.send(self.set_memory(core, now, session, &memory));
            }
            SessionChange::SetDriver { driver, reply } => {
                self.sessions()[session].driver = driver;
                let _ = reply.send(());
            }
            SessionChange::Close { .. } => unreachable!("`Close` is handled above"),
        }
    }

    /// Finds a queue that has not been stopped.
    fn find_queue(&mut self, session: SessionId, index: u16) -> Option<QueueId> {
        let ids: Vec<QueueId> = self.sessions()[session].ids(index).collect();
        let set = self.queues(index);
        ids.into_iter().find(|id| set.get(*id).is_some_and(|queue| !matches!(queue.state, State::Stopping(_))))
    }

    /// Starts a queue. Returns the number of requests recovered from the in-flight log, or `None` if its rings are not
    /// in the memory.
    fn start_queue(
        &mut self,
        core: &mut Self::Core,
        now: Instant,
        session: SessionId,
        spec: QueueSpec,
        memory: Arc<Memory>,
    ) -> Option<u16> {
        let index = spec.index;
        let mut queue = VirtQueue::new(session, spec, memory)?;
        let recovered = Self::prepare(core, self.sessions()[session].target, &mut queue);
        let id = self.queues(index).insert(queue);
        self.sessions()[session].queues.push((index, id));
        self.started(core, now, id, index);
        Some(recovered)
    }

    fn stop_queue(&mut self, core: &mut Self::Core, now: Instant, session: SessionId, index: u16, reply: Sender<u16>) {
        let Some(id) = self.find_queue(session, index) else { return };
        let set = self.queues(index);
        set.queue(id).stop(reply);
        set.stop_listening(core.ring(), id);
        self.stopped(core, now, id, index);
        self.queues(index).look_for_end(id);
    }

    fn set_call(&mut self, session: SessionId, index: u16, call: Option<Arc<OwnedFd>>) {
        if let Some(id) = self.find_queue(session, index) {
            self.queues(index).set_call(id, call);
        }
    }

    /// Changes the memory table. A queue whose rings are not in the new table breaks; returns the first of them.
    fn set_memory(
        &mut self,
        core: &mut Self::Core,
        now: Instant,
        session: SessionId,
        memory: &Arc<Memory>,
    ) -> Option<u16> {
        let mut first = None;
        for (index, id) in self.sessions()[session].queues.clone() {
            let queue = self.queues(index).queue(id);
            if !matches!(queue.state, State::Stopping(_)) && !queue.move_to(Arc::clone(memory)) {
                first = first.or(Some(index));
                self.break_queue(core, now, id, index, OUTSIDE);
            }
        }
        first
    }

    /// Closes a session, because its VMM has disconnected or its target is removed. No more requests are taken; those
    /// in flight end at the device.
    fn close_session(&mut self, core: &mut Self::Core, now: Instant, session: SessionId, reply: Option<Sender<()>>) {
        let state = &mut self.sessions()[session];
        let was_open = state.is_open();
        if was_open || reply.is_some() {
            state.life = Life::Closing(reply);
        }
        let (target, queues) = (state.target, state.queues.clone());
        if was_open {
            for (index, id) in queues {
                let set = self.queues(index);
                set.queue(id).state.close();
                set.stop_listening(core.ring(), id);
                self.closed(core, now, id, index);
                self.queues(index).look_for_end(id);
            }
            Self::left(core, target);
        }
        self.end_if_empty(core, session);
    }

    fn end_if_empty(&mut self, core: &mut Self::Core, session: SessionId) {
        let state = &self.sessions()[session];
        if state.is_open() || !state.queues.is_empty() {
            return;
        }
        let state = self.sessions().remove(session);
        if let Life::Closing(Some(reply)) = state.life {
            let _ = reply.send(());
        }
        Self::ended(core, state.target);
    }

    /// Removes queues that nothing refers to any more, and notifies VMMs that wait for this.
    fn remove_ended_queues(&mut self, core: &mut Self::Core) {
        while let Some((id, queue)) = self.next_ended() {
            let (session, index, next) = (queue.session, queue.index, queue.next_available());
            self.sessions()[session].queues.retain(|known| *known != (index, id));
            if let Some(reply) = queue.state.into_reply() {
                let _ = reply.send(next);
            }
            self.end_if_empty(core, session);
        }
    }
}
