//! Sessions of VMMs on the device thread: starting, disabling, stopping and closing queues.

use std::sync::Arc;

use sluice_sched::Instant;
use tokio::sync::oneshot::Sender;

use crate::device::core::Core;
use crate::frontend::vhost_blk::VhostBlk;
use crate::intake::Intake;
use crate::reactor::base::Ending;
use crate::slab::{ClientRef, VolumeKey};
use crate::vhost_user::device_kind::Driver;
use crate::vhost_user::memory::Memory;
use crate::vhost_user::message::{SessionChange, SessionMessage};
use crate::virtio::VirtQueue;
use crate::virtio::queue::State;
use crate::virtio::queue::{QueueSpec, SessionId};
use crate::virtio::queue_set::QueueId;

/// The session of a VMM that is connected to a volume.
pub(crate) struct DeviceSession {
    pub(crate) volume: VolumeKey,
    /// Process of the VMM.
    pub(crate) peer: String,
    /// Its connection permit. Dropping it notifies the control plane.
    _permit: Box<dyn Send>,
    queues: Vec<QueueId>,
    pub(crate) write_back: bool,
    /// Whether it has been closed.
    pub(crate) closing: bool,
    closed: Option<Sender<()>>,
}

impl DeviceSession {
    pub(crate) fn queues(&self) -> &[QueueId] {
        &self.queues
    }
}

impl VhostBlk {
    pub(crate) fn session_message(&mut self, core: &mut Core, now: Instant, message: SessionMessage) {
        match message {
            SessionMessage::Open { vm, volume, generation, peer, permit, reply } => {
                let volume = core.find_generation(&vm, &volume, generation);
                let _ = reply.send(volume.and_then(|volume| self.open_session(core, volume, (peer, permit))));
            }
            SessionMessage::Change(session, change) => match self.sessions.get(session) {
                Some(_) => self.change_session(core, now, session, change),
                // The session has ended; its index may belong to another one.
                None => core.base.stale_messages += 1,
            },
        }
    }

    fn change_session(&mut self, core: &mut Core, now: Instant, session: SessionId, change: SessionChange) {
        if let SessionChange::Close { reply } = change {
            self.sessions[session].closed = reply;
            return self.close_session(core, session);
        }
        if self.sessions[session].closing {
            return;
        }
        match change {
            SessionChange::Start { queue, memory, driver, reply } => {
                let _ = reply.send(self.start_queue(core, now, session, *queue, memory, driver));
            }
            SessionChange::StopQueue { index, reply } => self.stop_queue(core, now, session, index, reply),
            SessionChange::Enable { index, enabled, reply } => {
                if let Some(index) = self.find_queue(session, index) {
                    self.queues.queue(index).enabled = enabled;
                    self.take_from(core, now, index);
                }
                let _ = reply.send(());
            }
            SessionChange::SetCall { index, call, reply } => {
                if let Some(index) = self.find_queue(session, index) {
                    self.queues.set_call(index, call);
                }
                let _ = reply.send(());
            }
            SessionChange::SetMemory { memory, reply } => {
                let _ = reply.send(self.set_memory(core, session, &memory));
            }
            SessionChange::SetDriver { driver, reply } => {
                self.sessions[session].write_back = driver.write_back;
                let _ = reply.send(());
            }
            SessionChange::Close { .. } => unreachable!("`Close` is handled above"),
        }
    }

    fn open_session(
        &mut self,
        core: &mut Core,
        volume: VolumeKey,
        (peer, permit): (String, Box<dyn Send>),
    ) -> Option<SessionId> {
        if core.base.ending != Ending::No || !core.client_opened(volume) {
            return None;
        }
        let state = DeviceSession {
            volume,
            peer,
            _permit: permit,
            queues: Vec::new(),
            write_back: true,
            closing: false,
            closed: None,
        };
        Some(self.sessions.insert(state))
    }

    fn find_queue(&self, session: SessionId, index: u16) -> Option<QueueId> {
        let mut queues = self.sessions[session].queues.iter().copied();
        let is_it = |queue: &VirtQueue| queue.index == index && !matches!(queue.state, State::Stopping(_));
        queues.find(|id| self.queues.get(*id).is_some_and(is_it))
    }

    /// Starts a queue. Returns the number of requests recovered from the in-flight log, or `None` if its rings are not
    /// in the memory.
    fn start_queue(
        &mut self,
        core: &mut Core,
        now: Instant,
        session: SessionId,
        spec: QueueSpec,
        memory: Arc<Memory>,
        driver: Driver,
    ) -> Option<u16> {
        let state = &mut self.sessions[session];
        state.write_back = driver.write_back;
        let mut queue = VirtQueue::new(session, spec, memory)?;
        let recovered = queue.recovered();
        queue.intake = Intake::of_new(!core.backend.volumes[state.volume].has_abandoned());
        let index = self.queues.insert(queue);
        state.queues.push(index);
        self.take_from(core, now, index);
        Some(recovered)
    }

    /// Takes available requests, and waits for kicks.
    fn take_from(&mut self, core: &mut Core, now: Instant, index: QueueId) {
        let (queues, mut consumer) = self.parts(core);
        queues.resume(&mut consumer, now, index);
    }

    fn stop_queue(&mut self, core: &mut Core, now: Instant, session: SessionId, index: u16, reply: Sender<u16>) {
        let Some(index) = self.find_queue(session, index) else { return };
        self.queues.queue(index).stop(reply);
        self.queues.stop_listening(&mut core.backend.ring, index);
        self.unpark(core, index);
        self.rewind(core, now, index);
        self.take_from(core, now, index);
        self.queues.look_for_end(index);
    }

    /// Removes a queue that ends from the wait queue for window space.
    fn unpark(&mut self, core: &mut Core, index: QueueId) {
        let queue = self.queues.queue(index);
        if queue.intake == Intake::WaitsForRoom {
            queue.intake = Intake::Open;
        }
        core.unpark(self.sessions[queue.session].volume, ClientRef::new(self.number, index));
    }

    /// Changes the memory table. A queue whose rings are not in the new table breaks; returns the first of them.
    fn set_memory(&mut self, core: &mut Core, session: SessionId, memory: &Arc<Memory>) -> Option<u16> {
        let queues = self.sessions[session].queues.clone();
        let mut first = None;
        for index in queues {
            let queue = self.queues.queue(index);
            if !matches!(queue.state, State::Stopping(_)) && !queue.move_to(Arc::clone(memory)) {
                first = first.or(Some(queue.index));
                let (queues, mut consumer) = self.parts(core);
                queues.break_queue(&mut consumer, index, "its rings do not lie in the new memory table");
            }
        }
        first
    }

    /// Closes a session, because its VMM has disconnected or its volume is removed. No more requests are taken; those
    /// in flight end at the device.
    pub(crate) fn close_session(&mut self, core: &mut Core, session: SessionId) {
        let state = &mut self.sessions[session];
        let again = std::mem::replace(&mut state.closing, true);
        let (volume, queues) = (state.volume, state.queues.clone());
        if !again {
            for &index in &queues {
                self.queues.queue(index).state.close();
                self.queues.stop_listening(&mut core.backend.ring, index);
                self.unpark(core, index);
                core.abandon(&self.queues.queue(index).requests);
                self.queues.look_for_end(index);
            }
            core.client_closed(volume);
        }
        if queues.is_empty() {
            self.end_session(core, session);
        }
    }

    fn end_session(&mut self, core: &mut Core, session: SessionId) {
        let state = self.sessions.remove(session);
        if let Some(reply) = state.closed {
            let _ = reply.send(());
        }
        core.client_removed(state.volume);
    }

    /// Starts queues that waited for in-flight requests of a disconnected client.
    pub(crate) fn admit_queues(&mut self, session: SessionId) {
        for &index in &self.sessions[session].queues.clone() {
            let queue = self.queues.queue(index);
            if queue.intake == Intake::WaitsForPredecessor {
                queue.intake = Intake::Open;
                self.queues.start_polling(index);
            }
        }
    }

    /// Removes queues that nothing refers to any more, and notifies VMMs that wait for this.
    pub(crate) fn remove_ended_queues(&mut self, core: &mut Core) {
        while let Some((index, queue)) = self.queues.next_ended() {
            self.sessions[queue.session].queues.retain(|known| *known != index);
            let (session, next) = (queue.session, queue.next_available());
            if let Some(reply) = queue.state.into_reply() {
                let _ = reply.send(next);
            }
            let state = &self.sessions[session];
            if state.closing && state.queues.is_empty() {
                self.end_session(core, session);
            }
        }
    }
}
