//! Sessions of VMMs on an uplink's thread: starting, disabling, stopping and closing queues.

use std::collections::HashMap;
use std::sync::Arc;

use sluice_net::drop::Drop as Reason;
use sluice_net::header::HEADER_LEN;
use sluice_sched::Instant;
use tokio::sync::oneshot::Sender;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

use crate::intake::Intake;
use crate::reactor::base::Ending;
use crate::slab::Id as _;
use crate::uplink::core::Core;
use crate::uplink::ids::{NicId, PacketId};
use crate::uplink::nic::Incoming;
use crate::uplink::vhost_net::VhostNet;
use crate::uplink::vhost_net::chains::Chains;
use crate::vhost_user::blk::has;
use crate::vhost_user::device_kind::Driver;
use crate::vhost_user::memory::Memory;
use crate::vhost_user::message::{SessionChange, SessionMessage};
use crate::virtio::VirtQueue;
use crate::virtio::queue::{QueueSpec, SessionId, State};
use crate::virtio::queue_set::QueueId;

/// Length of the header before each frame with a driver that negotiated neither version 1 nor mergeable buffers.
const SHORT_HEADER_LEN: usize = 10;

/// The session of a VMM that is connected to a NIC.
pub(crate) struct NetSession {
    pub(crate) nic: NicId,
    /// Process of the VMM.
    pub(crate) peer: String,
    /// Its connection permit. Dropping it notifies the control plane.
    _permit: Box<dyn Send>,
    /// Its queues, by their indices.
    pub(crate) queues: Vec<(u16, QueueId)>,
    /// Features that the driver acknowledged.
    pub(crate) features: u64,
    pub(crate) header_len: usize,
    /// Whether it has been closed.
    pub(crate) closing: bool,
    closed: Option<Sender<()>>,
}

/// Whether a queue of this index transmits.
fn transmits(index: u16) -> bool {
    index % 2 == 1
}

impl VhostNet {
    /// Handles a message about a session.
    pub(crate) fn message(&mut self, core: &mut Core, now: Instant, message: SessionMessage) {
        match message {
            SessionMessage::Open { vm, volume, generation, peer, permit, reply } => {
                let nic = core.find_nic(&vm, &volume).filter(|id| {
                    let nic = &core.nics[*id];
                    nic.generation == generation && !nic.refuses_clients && nic.session.is_none()
                });
                let _ = reply.send(nic.and_then(|nic| self.open_session(core, nic, peer, permit)));
            }
            SessionMessage::Change(session, change) => match self.sessions.get(session) {
                Some(_) => self.change_session(core, now, session, change),
                // The session has ended; its index may belong to another one.
                None => core.base.stale_messages += 1,
            },
        }
    }

    fn open_session(&mut self, core: &mut Core, nic: NicId, peer: String, permit: Box<dyn Send>) -> Option<SessionId> {
        if core.base.ending != Ending::No {
            return None;
        }
        let session = self.sessions.insert(NetSession {
            nic,
            peer,
            _permit: permit,
            queues: Vec::new(),
            features: 0,
            header_len: HEADER_LEN,
            closing: false,
            closed: None,
        });
        core.nics[nic].session = Some(session);
        Some(session)
    }

    fn change_session(&mut self, core: &mut Core, now: Instant, session: SessionId, change: SessionChange) {
        if let SessionChange::Close { reply } = change {
            self.sessions[session].closed = reply;
            return self.close_session(core, now, session);
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
                self.enable_queue(core, now, session, index, enabled);
                let _ = reply.send(());
            }
            SessionChange::SetCall { index, call, reply } => {
                if let Some(id) = self.find_queue(session, index) {
                    let set = if transmits(index) { &mut self.transmit } else { &mut self.receive };
                    set.set_call(id, call);
                }
                let _ = reply.send(());
            }
            SessionChange::SetMemory { memory, reply } => {
                let _ = reply.send(self.set_memory(core, now, session, &memory));
            }
            SessionChange::SetDriver { driver, reply } => {
                self.set_driver(session, driver);
                let _ = reply.send(());
            }
            SessionChange::Close { .. } => unreachable!("`Close` is handled above"),
        }
    }

    fn set_driver(&mut self, session: SessionId, driver: Driver) {
        let state = &mut self.sessions[session];
        state.features = driver.features;
        let is_long = has(driver.features, VIRTIO_F_VERSION_1) || has(driver.features, VIRTIO_NET_F_MRG_RXBUF);
        state.header_len = if is_long { HEADER_LEN } else { SHORT_HEADER_LEN };
    }

    fn find_queue(&self, session: SessionId, index: u16) -> Option<QueueId> {
        let set = if transmits(index) { &self.transmit } else { &self.receive };
        let is_it = |id: &QueueId| set.get(*id).is_some_and(|queue| !matches!(queue.state, State::Stopping(_)));
        let mut queues = self.sessions[session].queues.iter();
        queues.find(|(known, id)| *known == index && is_it(id)).map(|(_, id)| *id)
    }

    /// Returns the receive queue that gets a frame. The frames of a connection go to one queue, as long as no queue starts or stops.
    pub(super) fn receive_queue(&self, session: SessionId, incoming: &Incoming) -> Option<QueueId> {
        let receiving = self.sessions[session].queues.iter().filter(|(index, _)| !transmits(*index));
        let mut open =
            receiving.map(|(_, id)| *id).filter(|id| self.receive.get(*id).is_some_and(|queue| queue.takes()));
        let place = match open.clone().count() {
            0 | 1 => 0,
            count => incoming.flow() as usize % count,
        };
        open.nth(place)
    }

    /// Starts a queue. `None` if its rings are not in the memory.
    fn start_queue(
        &mut self,
        core: &mut Core,
        now: Instant,
        session: SessionId,
        spec: QueueSpec,
        memory: Arc<Memory>,
        driver: Driver,
    ) -> Option<u16> {
        self.set_driver(session, driver);
        let index = spec.index;
        let mut queue = VirtQueue::new(session, spec, memory)?;
        queue.continue_at_used();
        if transmits(index) {
            let id = self.transmit.insert(queue);
            let place = id.index() as usize;
            if self.chains.len() <= place {
                self.chains.resize_with(place + 1, Chains::default);
            }
            self.chains[place].clear();
            self.sessions[session].queues.push((index, id));
            let (queues, mut consumer) = self.parts(core);
            queues.resume(&mut consumer, now, id);
        } else {
            queue.disable_notification();
            let id = self.receive.insert(queue);
            self.sessions[session].queues.push((index, id));
            core.wake_receiver(now, self.sessions[session].nic);
        }
        Some(0)
    }

    fn enable_queue(&mut self, core: &mut Core, now: Instant, session: SessionId, index: u16, enabled: bool) {
        let Some(id) = self.find_queue(session, index) else { return };
        if !transmits(index) {
            self.receive.queue(id).enabled = enabled;
            return core.wake_receiver(now, self.sessions[session].nic);
        }
        self.transmit.queue(id).enabled = enabled;
        if !enabled {
            return self.rewind(core, now, id);
        }
        let (queues, mut consumer) = self.parts(core);
        queues.resume(&mut consumer, now, id);
    }

    fn stop_queue(&mut self, core: &mut Core, now: Instant, session: SessionId, index: u16, reply: Sender<u16>) {
        let Some(id) = self.find_queue(session, index) else { return };
        if transmits(index) {
            self.transmit.queue(id).stop(reply);
            self.transmit.stop_listening(&mut core.ring, id);
            self.unpark(id);
            self.rewind(core, now, id);
            self.transmit.look_for_end(id);
        } else {
            self.receive.queue(id).stop(reply);
            self.receive.stop_listening(&mut core.ring, id);
            self.receive.look_for_end(id);
        }
    }

    fn unpark(&mut self, id: QueueId) {
        self.parked.retain(|parked| *parked != id);
        let queue = self.transmit.queue(id);
        if queue.intake == Intake::WaitsForRoom {
            queue.intake = Intake::Open;
        }
    }

    /// Puts chains of a transmit queue back into its ring, from the first of which no frame has been sent. Frames of a chain that has
    /// been sent in part wait for the rest of it.
    fn rewind(&mut self, core: &mut Core, now: Instant, id: QueueId) {
        let nic = self.sessions[self.transmit.queue(id).session].nic;
        let recalled = core.recall(now, nic);
        let number_of = |core: &Core, packet: &PacketId| {
            let origin = core.wire.packets[*packet].origin;
            origin.filter(|origin| origin.queue == id).map(|origin| origin.number)
        };
        let mut counts: HashMap<u64, u32> = HashMap::new();
        for number in recalled.iter().filter_map(|packet| number_of(core, packet)) {
            *counts.entry(number).or_default() += 1;
        }
        let chains = &mut self.chains[id.index() as usize];
        let back = chains.rewind(|number| counts.get(&number).copied().unwrap_or(0));
        let kept = chains.end();
        let is_back = |packet: &PacketId| number_of(core, packet).is_some_and(|number| number >= kept);
        let (removed, again): (Vec<PacketId>, Vec<PacketId>) = recalled.into_iter().partition(is_back);
        removed.into_iter().for_each(|packet| drop(core.wire.packets.remove(packet)));
        core.requeue(now, nic, again);
        let queue = self.transmit.queue(id);
        for taken in back {
            queue.put_back(taken.head);
            queue.held -= 1;
        }
    }

    /// Changes the memory table. A queue whose rings are not in the new table breaks; returns the first of them.
    fn set_memory(&mut self, core: &mut Core, now: Instant, session: SessionId, memory: &Arc<Memory>) -> Option<u16> {
        let mut first = None;
        for (index, id) in self.sessions[session].queues.clone() {
            let set = if transmits(index) { &mut self.transmit } else { &mut self.receive };
            let queue = set.queue(id);
            if matches!(queue.state, State::Stopping(_)) || queue.move_to(Arc::clone(memory)) {
                continue;
            }
            first = first.or(Some(index));
            let reason = "its rings do not lie in the new memory table";
            match transmits(index) {
                true => {
                    let (queues, mut consumer) = self.parts(core);
                    queues.break_queue(&mut consumer, id, reason);
                }
                false => self.break_receive(core, now, id, reason),
            }
        }
        first
    }

    /// Closes a session, because its VMM has disconnected or its NIC is removed. Frames that have not been sent are dropped: the next
    /// VMM, or the same one after a restart, finds them in its ring.
    pub(crate) fn close_session(&mut self, core: &mut Core, now: Instant, session: SessionId) {
        let state = &mut self.sessions[session];
        let again = std::mem::replace(&mut state.closing, true);
        let (nic, queues) = (state.nic, state.queues.clone());
        if !again {
            core.nics[nic].session = None;
            for (index, id) in queues {
                if transmits(index) {
                    self.transmit.queue(id).state.close();
                    self.transmit.stop_listening(&mut core.ring, id);
                    self.unpark(id);
                    core.recall(now, nic).into_iter().for_each(|packet| core.forget(packet));
                    self.transmit.look_for_end(id);
                } else {
                    self.receive.queue(id).state.close();
                    self.receive.stop_listening(&mut core.ring, id);
                    self.receive.look_for_end(id);
                }
            }
            core.drop_received(nic, Reason::NoReceiver);
        }
        self.end_if_empty(core, session);
    }

    /// Closes the session of a NIC that is removed.
    pub(crate) fn close(&mut self, core: &mut Core, now: Instant, nic: NicId) {
        if let Some(session) = core.nics[nic].session {
            self.close_session(core, now, session);
        }
    }

    fn end_if_empty(&mut self, core: &mut Core, session: SessionId) {
        let state = &self.sessions[session];
        if !state.closing || !state.queues.is_empty() {
            return;
        }
        let state = self.sessions.remove(session);
        if let Some(reply) = state.closed {
            let _ = reply.send(());
        }
        core.remove_left(state.nic);
    }

    /// Removes queues that nothing refers to any more, and notifies VMMs that wait for this.
    pub(super) fn remove_ended_queues(&mut self, core: &mut Core) {
        loop {
            let ended = self.transmit.next_ended().or_else(|| self.receive.next_ended());
            let Some((id, queue)) = ended else { return };
            let (session, index, next) = (queue.session, queue.index, queue.next_available());
            self.sessions[session].queues.retain(|known| *known != (index, id));
            if let Some(reply) = queue.state.into_reply() {
                let _ = reply.send(next);
            }
            self.end_if_empty(core, session);
        }
    }
}
