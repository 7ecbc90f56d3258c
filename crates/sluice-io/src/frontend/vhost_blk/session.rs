//! The VMMs on a device: their queues start, rest, stop, and end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use io_uring::opcode;
use sluice_sched::Instant;
use tokio::sync::oneshot::Sender;

use crate::backend::tag::{Tag, tag};
use crate::device::event_loop::{Ending, Loop};
use crate::device::requests::ClientId;
use crate::device::slab::{Id, QueueId, SessionId, VolumeKey};
use crate::frontend::vhost_blk::{SessionChange, SessionMessage};
use crate::vhost_user::device_session::{Driver, QueueSpec};
use crate::vhost_user::memory::Memory;
use crate::virtio::VirtQueue;

/// A VMM that is connected for a volume.
pub(crate) struct SessionState {
    pub(crate) volume: VolumeKey,
    /// Its place among the host's connections; its end tells the control plane.
    _permit: Box<dyn Send>,
    queues: Vec<QueueId>,
    pub(crate) write_back: bool,
    /// It has gone, or must go.
    pub(crate) closing: bool,
    closed: Option<Sender<()>>,
}

impl Loop {
    pub(crate) fn session_message(&mut self, now: Instant, message: SessionMessage) {
        match message {
            SessionMessage::Open { vm, volume, generation, permit, reply } => {
                let volume = self.find_generation(&vm, &volume, generation);
                let _ = reply.send(volume.and_then(|volume| self.open_session(volume, permit)));
            }
            SessionMessage::Change(session, change) => match self.sessions.get(session) {
                Some(_) => self.change_session(now, session, change),
                // It has ended; its index may belong to another VMM's session.
                None => self.stale_messages += 1,
            },
        }
    }

    fn change_session(&mut self, now: Instant, session: SessionId, change: SessionChange) {
        if let SessionChange::Close { reply } = change {
            self.sessions[session].closed = reply;
            return self.close_session(session);
        }
        if self.sessions[session].closing {
            return;
        }
        match change {
            SessionChange::Start { queue, memory, driver, reply } => {
                let _ = reply.send(self.start_queue(now, session, *queue, memory, driver));
            }
            SessionChange::StopQueue { index, reply } => self.stop_queue(now, session, index, reply),
            SessionChange::Enable { index, enabled, reply } => {
                if let Some(index) = self.find_queue(session, index) {
                    self.queues[index].enabled = enabled;
                    self.take_from(now, index);
                }
                let _ = reply.send(());
            }
            SessionChange::SetCall { index, call, reply } => {
                if let Some(index) = self.find_queue(session, index) {
                    self.set_call(index, call);
                }
                let _ = reply.send(());
            }
            SessionChange::SetMemory { memory, reply } => {
                let _ = reply.send(self.set_memory(session, &memory));
            }
            SessionChange::SetDriver { driver, reply } => {
                self.sessions[session].write_back = driver.write_back;
                let _ = reply.send(());
            }
            SessionChange::Close { .. } => unreachable!("it was dealt with above"),
        }
    }

    fn open_session(&mut self, volume: VolumeKey, permit: Box<dyn Send>) -> Option<SessionId> {
        if self.ending != Ending::No {
            return None;
        }
        let state = SessionState {
            volume,
            _permit: permit,
            queues: Vec::new(),
            write_back: true,
            closing: false,
            closed: None,
        };
        let session = self.sessions.insert(state);
        self.backend.volumes[volume].sessions.push(session);
        Some(session)
    }

    fn find_queue(&self, session: SessionId, index: u16) -> Option<QueueId> {
        let mut queues = self.sessions[session].queues.iter().copied();
        queues.find(|queue| self.queues[*queue].index == index && self.queues[*queue].stopping.is_none())
    }

    /// How many requests are taken over from the in-flight log, or `None` if its rings do not lie in the memory.
    fn start_queue(
        &mut self,
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
        queue.parked = self.backend.volumes[state.volume].abandoned_in_flight > 0;
        let index = self.queues.insert(queue);
        state.queues.push(index);
        self.irq_pending.push(index);
        self.take_from(now, index);
        Some(recovered)
    }

    /// Takes what is there already, and waits for kicks.
    fn take_from(&mut self, now: Instant, index: QueueId) {
        self.heat(index);
        self.take_chains(now, index, u32::MAX);
    }

    fn stop_queue(&mut self, now: Instant, session: SessionId, index: u16, reply: Sender<u16>) {
        let Some(index) = self.find_queue(session, index) else { return };
        self.queues[index].stopping = Some(reply);
        self.stop_listening(index);
        self.leave_line(index);
        self.rewind(now, index);
        if self.queues[index].is_over() {
            self.ended_queues.push(index);
        }
    }

    fn leave_line(&mut self, index: QueueId) {
        let volume = self.sessions[self.queues[index].session].volume;
        let vm = self.backend.volumes[volume].vm;
        self.vms[vm].waiting.retain(|waiting| *waiting != ClientId::Queue(index));
        self.queues[index].waits = false;
    }

    fn set_call(&mut self, index: QueueId, call: Option<Arc<OwnedFd>>) {
        // The descriptor of an interrupt on its way must stay open.
        let old = std::mem::replace(&mut self.queues[index].call, call);
        if self.queues[index].calling {
            self.queues[index].old_call = old;
        }
        // What was returned while there was nobody to call: that the guest wanted to be told is forgotten by now.
        self.queues[index].call_anyway = true;
        self.irq_pending.push(index);
    }

    /// The first queue whose rings do not lie in the new table; it is broken.
    fn set_memory(&mut self, session: SessionId, memory: &Arc<Memory>) -> Option<u16> {
        let queues = self.sessions[session].queues.clone();
        let mut first = None;
        for index in queues {
            let queue = &mut self.queues[index];
            if queue.stopping.is_none() && !queue.move_to(Arc::clone(memory)) {
                first = first.or(Some(queue.index));
                self.break_queue(index, "its rings do not lie in the new memory table");
            }
        }
        first
    }

    /// A VMM has gone, or its volume has: nothing more is taken; what is at the device ends there.
    pub(crate) fn close_session(&mut self, session: SessionId) {
        let state = &mut self.sessions[session];
        let again = std::mem::replace(&mut state.closing, true);
        let (volume, queues) = (state.volume, state.queues.clone());
        if !again {
            for &index in &queues {
                self.queues[index].closed = true;
                self.stop_listening(index);
                self.leave_line(index);
                self.abandon_requests(ClientId::Queue(index));
                if self.queues[index].is_over() {
                    self.ended_queues.push(index);
                }
            }
            self.volumes_to_cancel.push(volume);
        }
        if queues.is_empty() {
            self.end_session(session);
        }
    }

    fn end_session(&mut self, session: SessionId) {
        let state = self.sessions.remove(session);
        self.backend.volumes[state.volume].sessions.retain(|known| *known != session);
        if let Some(reply) = state.closed {
            let _ = reply.send(());
        }
        self.remove_left_volume(state.volume);
    }

    /// Queues that waited for the end of what a dead client left are read now.
    pub(crate) fn admit_queues(&mut self, session: SessionId) {
        for &index in &self.sessions[session].queues.clone() {
            if self.queues[index].parked {
                self.queues[index].parked = false;
                self.heat(index);
            }
        }
    }

    /// Forgets queues that nothing refers to any more, and tells who waits for it.
    pub(crate) fn remove_ended_queues(&mut self) {
        while let Some(index) = self.ended_queues.pop() {
            if !self.queues.get(index).is_some_and(VirtQueue::is_over) {
                continue;
            }
            let queue = self.queues.remove(index);
            self.polled.retain(|polled| *polled != index);
            self.sessions[queue.session].queues.retain(|known| *known != index);
            let (session, next) = (queue.session, queue.next_available());
            if let Some(reply) = queue.stopping {
                let _ = reply.send(next);
            }
            let state = &self.sessions[session];
            if state.closing && state.queues.is_empty() {
                self.end_session(session);
            }
        }
    }

    fn stop_listening(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        let waiting = [(queue.listening, Tag::Kick), (queue.calling, Tag::Call)];
        for (_, what) in waiting.into_iter().filter(|(is, _)| *is) {
            let entry = opcode::AsyncCancel::new(tag(what, index.index())).build();
            // SAFETY: a cancellation refers to no memory.
            unsafe { self.backend.ring.push(entry.user_data(tag(Tag::Other, index.index()))) };
            self.queues[index].operations += 1;
        }
    }

    /// While everything drains: whether no guest waits for an answer.
    pub(crate) fn guests_are_served(&self) -> bool {
        self.queues.iter().all(|(_, queue)| queue.requests.is_empty() && !queue.calling)
    }

    /// Lets the kernel let go of all queues.
    pub(crate) fn shut_queues_down(&mut self) {
        let all = self.queues.ids();
        all.into_iter().for_each(|index| self.stop_listening(index));
    }
}
