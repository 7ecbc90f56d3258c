//! Takes frames from the transmit queues of guests.

use std::rc::Rc;

use sluice_net::drop::Drop as Reason;
use sluice_net::header::{HEADER_LEN, OffloadHeader};
use sluice_sched::Instant;

use crate::backend::client_faults::{QUEUE_STOPPED, StoppedQueue};
use crate::backend::ring::Ring;
use crate::reactor::base::Ending;
use crate::slab::{Id as _, Slab};
use crate::uplink::core::{Core, Outgoing};
use crate::uplink::ids::NicId;
use crate::uplink::link::FRAME_MAX;
use crate::uplink::packet::{Data, Origin, Prefix, Rest};
use crate::uplink::receive_buffers::Own;
use crate::uplink::vhost_net::chains::Chains;
use crate::uplink::vhost_net::plain::is_negotiated;
use crate::uplink::vhost_net::sessions::header_len;
use crate::virtio::VirtQueue;
use crate::virtio::chain::{Chain, Malformed};
use crate::virtio::data::MemoryTable;
use crate::virtio::queue::{SessionId, Taken};
use crate::virtio::queue_set::{Consumer, QueueId};
use crate::virtio::segment::total;
use crate::virtio::sessions::Session;

/// Most parts of a frame that are sent from where they lie: the kernel takes 1,024, of which two are the header and the first bytes.
const PARTS_MAX: usize = 1024 - 2;

/// Takes frames for the NICs of sessions.
pub(crate) struct Transmit<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) sessions: &'a Slab<SessionId, Session<NicId>>,
    pub(crate) chains: &'a mut Vec<Chains>,
    /// Queues whose NIC has no buffer at the gate.
    pub(crate) parked: &'a mut Vec<QueueId>,
    /// Queues with chains that may be returned.
    pub(crate) ended: &'a mut Vec<QueueId>,
}

impl Consumer for Transmit<'_> {
    fn ring(&mut self) -> &mut Ring {
        &mut self.core.ring
    }

    fn is_open(&self) -> bool {
        self.core.base.ending == Ending::No
    }

    fn has_room(&self, queue: &VirtQueue) -> bool {
        self.core.has_room(self.sessions[queue.session].target)
    }

    fn park(&mut self, id: QueueId, queue: &VirtQueue) {
        self.core.is_held(self.sessions[queue.session].target);
        self.parked.push(id);
    }

    fn take(
        &mut self,
        now: Instant,
        id: QueueId,
        queue: &mut VirtQueue,
        taken: Taken,
        chain: &mut Chain,
    ) -> Result<u64, Malformed> {
        let session = &self.sessions[queue.session];
        let memory = Rc::clone(&queue.memory);
        chain.follow(&memory, queue.descriptors(), taken.head)?;
        let header = match header_len(session.driver.features) {
            HEADER_LEN => chain.take_front::<HEADER_LEN>().map(|bytes| OffloadHeader::parse(&bytes)),
            _ => chain.take_front::<10>().map(|bytes| {
                let mut whole = [0; HEADER_LEN];
                whole[..10].copy_from_slice(&bytes);
                OffloadHeader::parse(&whole)
            }),
        };
        let header = header.ok_or(Malformed::Frame)?;
        let length = u32::try_from(total(&chain.readable)).unwrap_or(u32::MAX);
        self.core.count_work(session.target, length.into(), chain.descriptors());
        let prefix = Prefix::read(|buffer| chain.take_up_to(buffer));
        let rest = rest_of(chain, memory);
        let number = self.chains[id.index() as usize].push(taken);
        queue.outstanding.held += 1;
        let outgoing =
            Outgoing { header, data: Data { prefix, rest }, length, origin: Some(Origin { queue: id, number }) };
        let frames = match is_negotiated(session.driver.features, &outgoing.header) {
            true => self.core.transmit(now, session.target, outgoing),
            false => self.core.refuse(session.target, Reason::Offload),
        };
        self.chains[id.index() as usize].set_frames(frames);
        if frames == 0 {
            self.ended.push(id);
        }
        Ok(length.into())
    }

    fn kicked(&mut self, queue: &VirtQueue) -> bool {
        let nic = self.sessions[queue.session].target;
        self.core.count_kick(nic);
        !self.core.is_held(nic)
    }

    fn kicked_in_vain(&mut self) {
        self.core.base.cpu.note_in_vain();
    }

    fn broken(&mut self, queue: &VirtQueue, reason: &'static str) -> StoppedQueue {
        let nic = &mut self.core.nics[self.sessions[queue.session].target];
        nic.faults.protocol_errors += 1;
        // A guest that does this repeatedly must not fill the log.
        if nic.faults.protocol_errors.is_power_of_two() {
            let (vm, times) = (&nic.vm_name, nic.faults.protocol_errors);
            tracing::warn!(vm, nic = nic.spec.name, queue = queue.index, reason, times, "{QUEUE_STOPPED}");
        }
        nic.faults.clients.stop_queue(reason)
    }
}

/// Returns the bytes of a frame behind its first ones. Those in more parts than the kernel takes are copied, unless they are too long
/// for a frame, which is dropped.
fn rest_of(chain: &mut Chain, memory: Rc<MemoryTable>) -> Rest {
    let length = total(&chain.readable);
    if length == 0 {
        return Rest::None;
    }
    if chain.readable.len() <= PARTS_MAX || length > FRAME_MAX as u64 {
        return Rest::Guest(chain.readable.clone(), memory);
    }
    let mut bytes = vec![0; length as usize];
    chain.take_up_to(&mut bytes);
    let range = 0..bytes.len();
    Rest::Own(Own::Copied(bytes.into()), range)
}
