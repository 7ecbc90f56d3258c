//! NICs of guests, by vhost-user: transmit queues that the gate empties, and receive queues that are filled.
//!
//! A frame that waits stays in the guest's transmit ring, so that its own network stack is held back and nothing is dropped. Of the queues of
//! a NIC, the even ones receive and the odd ones transmit (VIRTIO 1.3, 5.1.2).

pub(crate) mod chains;
mod plain;
mod receive;
mod sessions;
mod transmit;

use sluice_net::drop::Drop as Reason;
use sluice_net::receive::Size;
use sluice_net::wire::occupied;
use sluice_sched::Instant;

use crate::backend::retry::is_put_off;
use crate::cpu;
use crate::intake::Intake;
use crate::reactor::spec::ClientSnapshot;
use crate::slab::{FrontendNumber, Id as _, Slab};
use crate::uplink::core::Core;
use crate::uplink::ids::NicId;
use crate::uplink::nic::{Incoming, Nic};
use crate::uplink::vhost_net::chains::Chains;
use crate::uplink::vhost_net::plain::{is_accepted, plain};
use crate::uplink::vhost_net::receive::{Filled, fill};
use crate::uplink::vhost_net::sessions::header_len;
use crate::uplink::vhost_net::transmit::Transmit;
use crate::virtio::chain::Chain;
use crate::virtio::queue::SessionId;
use crate::virtio::queue_set::{QueueId, QueueSet};
use crate::virtio::sessions::{Session, VirtioDevices as _};

/// A guest had too few buffers for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// It has added some since.
    Once,
    /// It kicks when it has added some.
    UntilKick,
}

/// The VMMs of an uplink.
pub(crate) struct VhostNet {
    sessions: Slab<SessionId, Session<NicId>>,
    transmit: QueueSet,
    transmit_number: FrontendNumber,
    receive: QueueSet,
    /// Chains of each transmit queue, by its index.
    chains: Vec<Chains>,
    /// Transmit queues whose NIC has no room at the gate.
    parked: Vec<QueueId>,
    /// Transmit queues with chains that may be returned.
    ended: Vec<QueueId>,
    chain: Chain,
}

impl VhostNet {
    pub(crate) fn new(transmit: FrontendNumber, receive: FrontendNumber) -> Self {
        VhostNet {
            sessions: Slab::default(),
            transmit: QueueSet::new(transmit),
            transmit_number: transmit,
            receive: QueueSet::new(receive),
            chains: Vec::new(),
            parked: Vec::new(),
            ended: Vec::new(),
            chain: Chain::default(),
        }
    }

    /// Returns the transmit queues, and the consumer of their frames.
    fn parts<'a>(&'a mut self, core: &'a mut Core) -> (&'a mut QueueSet, Transmit<'a>) {
        let VhostNet { sessions, transmit, chains, parked, ended, .. } = self;
        (transmit, Transmit { core, sessions, chains, parked, ended })
    }

    /// Handles the end of an operation for a queue.
    pub(crate) fn event(
        &mut self,
        core: &mut Core,
        now: Instant,
        (number, operation, index): (FrontendNumber, u8, u32),
        result: i32,
    ) {
        if number == self.transmit_number {
            let (queues, mut consumer) = self.parts(core);
            return queues.event(&mut consumer, now, (operation, index), result);
        }
        let id = self.receive.id_at(index);
        if !QueueSet::is_kick(operation) {
            return self.receive.end_operation(id, operation);
        }
        let is_open = self.receive.kick_read(id);
        // The NIC of a closed queue may have been removed.
        if self.receive.queue(id).state.is_closed() {
            return;
        }
        if result < 0 && !is_put_off(result) && result != -libc::ECANCELED && is_open {
            return self.break_receive(core, now, id, "its kick descriptor cannot be read");
        }
        let nic = self.sessions[self.receive.queue(id).session].target;
        core.count_kick(nic);
        core.base.cpu.note_in_vain();
        // Otherwise the frame that waits is given again when the VM may continue.
        if !core.is_held(nic) {
            core.wake_receiver(now, nic);
        }
    }

    /// Takes frames from the polled transmit queues. Returns whether there were any.
    pub(crate) fn poll(&mut self, core: &mut Core, now: Instant) -> bool {
        let (queues, mut consumer) = self.parts(core);
        queues.poll(&mut consumer, now)
    }

    pub(crate) fn is_polling(&self) -> bool {
        self.transmit.is_polling()
    }

    pub(crate) fn stop_polling(&mut self, core: &mut Core, now: Instant) -> bool {
        let (queues, mut consumer) = self.parts(core);
        queues.stop_polling(&mut consumer, now)
    }

    /// Takes frames of the NICs that have room at the gate again. A queue that uses up the room of its NIC waits behind the other
    /// queues of that NIC.
    pub(crate) fn resume(&mut self, core: &mut Core, now: Instant) {
        let mut waiting = Vec::new();
        for id in std::mem::take(&mut self.parked) {
            let Some(queue) = self.transmit.get_mut(id) else { continue };
            if !core.has_room(self.sessions[queue.session].target) {
                waiting.push(id);
                continue;
            }
            queue.intake = Intake::Open;
            let (queues, mut consumer) = self.parts(core);
            queues.resume(&mut consumer, now, id);
        }
        waiting.append(&mut self.parked);
        self.parked = waiting;
    }

    /// Returns the chains of frames that have been sent or dropped.
    pub(crate) fn return_chains(&mut self, core: &mut Core, now: Instant) {
        while let Some(origin) = core.next_returned() {
            if self.transmit.get(origin.queue).is_some() {
                self.chains[origin.queue.index() as usize].frame_ended(origin.number);
                if self.ended.last() != Some(&origin.queue) {
                    self.ended.push(origin.queue);
                }
            }
        }
        for id in std::mem::take(&mut self.ended) {
            while let Some(queue) = self.transmit.get_mut(id) {
                let Some(taken) = self.chains[id.index() as usize].next_ended() else { break };
                queue.outstanding.held -= 1;
                queue.active = now;
                if !queue.state.is_closed() {
                    self.transmit.give_back(id, taken.head, 0);
                }
            }
            if self.transmit.get(id).is_some() {
                self.transmit.look_for_end(id);
            }
        }
    }

    /// Gives a received frame to the guest of a NIC. If the guest has too few buffers, the frame waits until it has added some.
    pub(crate) fn give(&mut self, core: &mut Core, now: Instant, id: NicId, incoming: Incoming, size: Size) {
        let Some(session) = core.nics[id].session else { return core.nics[id].drop_frame(Reason::NoReceiver) };
        let Some(queue) = self.receive_queue(session, &incoming) else {
            return core.nics[id].drop_frame(Reason::NoBuffers);
        };
        let port = core.nics[id].port;
        if is_accepted(self.sessions[session].driver.features, &incoming.header) {
            if let Err(refused) = self.fill(core, now, id, queue, &incoming) {
                core.receive.give_back(now, port, std::iter::once((incoming, size)));
                self.wait_for_buffers(core, now, id, queue, refused);
            }
            return;
        }
        let frames = match plain(&incoming) {
            Ok(frames) => frames,
            Err(reason) => return core.nics[id].drop_frame(reason),
        };
        for (at, frame) in frames.iter().enumerate() {
            let Err(refused) = self.fill(core, now, id, queue, frame) else { continue };
            let rest = frames[at..].iter().map(|frame| (frame.clone(), frame.size(occupied(frame.bytes.len() as u32))));
            core.receive.give_back(now, port, rest);
            return self.wait_for_buffers(core, now, id, queue, refused);
        }
    }

    /// Writes a frame into buffers of a queue, or drops it if that can never succeed.
    fn fill(
        &mut self,
        core: &mut Core,
        now: Instant,
        id: NicId,
        queue_id: QueueId,
        incoming: &Incoming,
    ) -> Result<(), Refused> {
        let queue = self.receive.queue(queue_id);
        let features = self.sessions[queue.session].driver.features;
        let filled = fill(queue, &mut self.chain, features, header_len(features), incoming);
        match &filled {
            // The guest has caused this look at its buffers, and it may cause as many as it likes.
            Filled::Starved(descriptors) => core.count_sent(id, cpu::FRAME + cpu::DESCRIPTOR * u64::from(*descriptors)),
            _ => core.count_delivered(id, cpu::delivered(incoming.bytes.len())),
        }
        match filled {
            Filled::Done(buffers) => {
                core.nics[id].count_received(incoming.bytes.len());
                self.receive.give_back_together(queue_id, &buffers);
            }
            Filled::Starved(_) if queue.wait_for_more() => return Err(Refused::Once),
            Filled::Starved(_) => return Err(Refused::UntilKick),
            Filled::TooShort => core.nics[id].drop_frame(Reason::NoBuffers),
            Filled::Broken(reason) => {
                core.nics[id].drop_frame(Reason::NoBuffers);
                self.break_receive(core, now, queue_id, reason);
            }
        }
        Ok(())
    }

    /// Lets a NIC, to which a frame was given back, wait for buffers.
    fn wait_for_buffers(&mut self, core: &mut Core, now: Instant, id: NicId, queue: QueueId, refused: Refused) {
        match refused {
            Refused::Once => core.wake_receiver(now, id),
            Refused::UntilKick => self.receive.listen(&mut core.ring, queue),
        }
    }

    /// Breaks a receive queue. Frames that waited for its buffers go to the other queues of the NIC.
    fn break_receive(&mut self, core: &mut Core, now: Instant, id: QueueId, reason: &'static str) {
        let VhostNet { sessions, receive, chains, parked, ended, .. } = self;
        let nic = sessions[receive.queue(id).session].target;
        receive.break_queue(&mut Transmit { core, sessions, chains, parked, ended }, id, reason);
        core.wake_receiver(now, nic);
    }

    /// Publishes returned chains, interrupts guests, and removes queues that have stopped.
    pub(crate) fn end_of_iteration(&mut self, core: &mut Core, now: Instant) {
        self.return_chains(core, now);
        self.transmit.signal_guests(&mut core.ring);
        self.receive.signal_guests(&mut core.ring);
        self.remove_ended_queues(core);
    }

    pub(crate) fn shut_down(&mut self, core: &mut Core) {
        self.transmit.shut_down(&mut core.ring);
        self.receive.shut_down(&mut core.ring);
    }

    pub(crate) fn clients(&self) -> usize {
        self.sessions.len()
    }

    /// Lists the VMMs.
    pub(crate) fn list(&self, core: &Core) -> Vec<ClientSnapshot> {
        let snapshot = |session: &Session<NicId>| {
            let Nic { vm_name, spec, .. } = &core.nics[session.target];
            let outstanding = session
                .queues
                .iter()
                .filter_map(|(_, id)| self.transmit.get(*id))
                .map(|queue| queue.outstanding.held as usize);
            ClientSnapshot {
                vm: vm_name.clone(),
                volume: spec.name.clone(),
                protocol: "vhost-user-net",
                peer: session.peer.clone(),
                queues: Some(session.queues.len() as u32),
                outstanding: outstanding.sum::<usize>() as u32,
            }
        };
        self.sessions.iter().filter(|(_, session)| session.is_open()).map(|(_, session)| snapshot(session)).collect()
    }
}
