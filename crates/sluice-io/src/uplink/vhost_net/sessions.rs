//! A NIC starts, disables, stops and closes queues.

use std::collections::HashMap;

use sluice_net::drop::Drop as Reason;
use sluice_net::header::HEADER_LEN;
use sluice_sched::Instant;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

use crate::intake::Intake;
use crate::slab::{Id as _, Slab};
use crate::uplink::core::Core;
use crate::uplink::ids::{NicId, PacketId};
use crate::uplink::nic::{Incoming, Standing};
use crate::uplink::vhost_net::VhostNet;
use crate::uplink::vhost_net::chains::Chains;
use crate::vhost_user::blk::has;
use crate::virtio::VirtQueue;
use crate::virtio::queue::SessionId;
use crate::virtio::queue_set::{QueueId, QueueSet};
use crate::virtio::sessions::{Session, VirtioDevices};
use crate::volume::VolumeGeneration;

/// Length of the header before each frame with a driver that negotiated neither version 1 nor mergeable buffers.
const SHORT_HEADER_LEN: usize = 10;

/// Whether a queue of this index transmits.
fn transmits(index: u16) -> bool {
    index % 2 == 1
}

/// Returns the length of the header before each frame, with a driver that acknowledged these features.
pub(super) fn header_len(features: u64) -> usize {
    let is_long = has(features, VIRTIO_F_VERSION_1) || has(features, VIRTIO_NET_F_MRG_RXBUF);
    if is_long { HEADER_LEN } else { SHORT_HEADER_LEN }
}

impl VirtioDevices for VhostNet {
    type Core = Core;
    type Target = NicId;

    fn sessions(&mut self) -> &mut Slab<SessionId, Session<NicId>> {
        &mut self.sessions
    }

    fn queues(&mut self, index: u16) -> &mut QueueSet {
        if transmits(index) { &mut self.transmit } else { &mut self.receive }
    }

    fn next_ended(&mut self) -> Option<(QueueId, VirtQueue)> {
        self.transmit.next_ended().or_else(|| self.receive.next_ended())
    }

    fn find(core: &Core, vm: &str, nic: &str, generation: VolumeGeneration) -> Option<NicId> {
        core.find_nic(vm, nic).filter(|id| {
            let nic = &core.nics[*id];
            nic.spec.generation == generation && nic.standing == Standing::Open && nic.session.is_none()
        })
    }

    fn opening(_core: &mut Core, _nic: NicId) -> bool {
        true
    }

    fn opened(core: &mut Core, nic: NicId, session: SessionId) {
        core.nics[nic].session = Some(session);
    }

    fn prepare(_core: &mut Core, _nic: NicId, queue: &mut VirtQueue) -> u16 {
        queue.continue_at_used();
        if !transmits(queue.index) {
            queue.disable_notification();
        }
        0
    }

    fn started(&mut self, core: &mut Core, now: Instant, id: QueueId, index: u16) {
        if transmits(index) {
            let place = id.index() as usize;
            if self.chains.len() <= place {
                self.chains.resize_with(place + 1, Chains::default);
            }
            self.chains[place].clear();
        }
        self.enabled(core, now, id, index);
    }

    fn enabled(&mut self, core: &mut Core, now: Instant, id: QueueId, index: u16) {
        let queue = self.queues(index).queue(id);
        let (session, enabled) = (queue.session, queue.enabled);
        if !transmits(index) {
            return core.wake_receiver(now, self.sessions[session].target);
        }
        if !enabled {
            return self.rewind(core, now, id);
        }
        let (queues, mut consumer) = self.parts(core);
        queues.resume(&mut consumer, now, id);
    }

    fn stopped(&mut self, core: &mut Core, now: Instant, id: QueueId, index: u16) {
        if transmits(index) {
            self.unpark(id);
            self.rewind(core, now, id);
        }
    }

    /// Frames that have not been sent are dropped: the next VMM, or the same one after a restart, finds them in its ring.
    fn closed(&mut self, core: &mut Core, now: Instant, id: QueueId, index: u16) {
        if transmits(index) {
            self.unpark(id);
            let nic = self.sessions[self.transmit.queue(id).session].target;
            core.recall(now, nic).into_iter().for_each(|packet| core.forget(packet));
        }
    }

    fn break_queue(&mut self, core: &mut Core, now: Instant, id: QueueId, index: u16, reason: &'static str) {
        if transmits(index) {
            let (queues, mut consumer) = self.parts(core);
            return queues.break_queue(&mut consumer, id, reason);
        }
        self.break_receive(core, now, id, reason);
    }

    fn left(core: &mut Core, nic: NicId) {
        core.nics[nic].session = None;
        core.drop_received(nic, Reason::NoReceiver);
    }

    fn ended(core: &mut Core, nic: NicId) {
        core.remove_left(nic);
    }
}

impl VhostNet {
    /// Closes the session of a NIC that is removed.
    pub(crate) fn close(&mut self, core: &mut Core, now: Instant, nic: NicId) {
        if let Some(session) = core.nics[nic].session {
            self.close_session(core, now, session, None);
        }
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
        let nic = self.sessions[self.transmit.queue(id).session].target;
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
            queue.outstanding.held -= 1;
        }
    }
}
