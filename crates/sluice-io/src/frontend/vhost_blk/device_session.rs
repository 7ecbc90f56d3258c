//! A block device starts, disables, stops and closes queues.

use sluice_sched::Instant;

use crate::device::core::Core;
use crate::frontend::vhost_blk::VhostBlk;
use crate::intake::Intake;
use crate::slab::{ClientRef, Slab, VolumeKey};
use crate::virtio::VirtQueue;
use crate::virtio::queue::SessionId;
use crate::virtio::queue_set::{QueueId, QueueSet};
use crate::virtio::sessions::{Session, VirtioDevices};
use crate::volume::VolumeGeneration;

impl VirtioDevices for VhostBlk {
    type Core = Core;
    type Target = VolumeKey;

    fn sessions(&mut self) -> &mut Slab<SessionId, Session<VolumeKey>> {
        &mut self.sessions
    }

    fn queues(&mut self, _index: u16) -> &mut QueueSet {
        &mut self.queues
    }

    fn next_ended(&mut self) -> Option<(QueueId, VirtQueue)> {
        self.queues.next_ended()
    }

    fn find(core: &Core, vm: &str, volume: &str, generation: VolumeGeneration) -> Option<VolumeKey> {
        core.find_generation(vm, volume, generation)
    }

    fn opening(core: &mut Core, volume: VolumeKey) -> bool {
        core.client_opened(volume)
    }

    fn prepare(core: &mut Core, volume: VolumeKey, queue: &mut VirtQueue) -> u16 {
        queue.intake = Intake::of_new(!core.backend.volumes[volume].has_abandoned());
        queue.recovered()
    }

    fn started(&mut self, core: &mut Core, now: Instant, id: QueueId, _index: u16) {
        self.take_from(core, now, id);
    }

    fn enabled(&mut self, core: &mut Core, now: Instant, id: QueueId, _index: u16) {
        self.take_from(core, now, id);
    }

    fn stopped(&mut self, core: &mut Core, now: Instant, id: QueueId, _index: u16) {
        self.unpark(core, id);
        self.rewind(core, now, id);
        self.take_from(core, now, id);
    }

    fn closed(&mut self, core: &mut Core, _now: Instant, id: QueueId, _index: u16) {
        self.unpark(core, id);
        core.abandon(&self.queues.queue(id).outstanding.requests);
    }

    fn break_queue(&mut self, core: &mut Core, _now: Instant, id: QueueId, _index: u16, reason: &'static str) {
        let (queues, mut consumer) = self.parts(core);
        queues.break_queue(&mut consumer, id, reason);
    }

    fn left(core: &mut Core, volume: VolumeKey) {
        // A VMM closes its connection also when its guest is turned off.
        core.client_closed(volume, false);
    }

    fn ended(core: &mut Core, volume: VolumeKey) {
        core.client_removed(volume);
    }
}

impl VhostBlk {
    /// Takes available requests, and waits for kicks.
    fn take_from(&mut self, core: &mut Core, now: Instant, id: QueueId) {
        let (queues, mut consumer) = self.parts(core);
        queues.resume(&mut consumer, now, id);
    }

    /// Removes a queue that ends from the wait queue for window space.
    fn unpark(&mut self, core: &mut Core, id: QueueId) {
        let queue = self.queues.queue(id);
        if queue.intake == Intake::WaitsForRoom {
            queue.intake = Intake::Open;
        }
        core.unpark(self.sessions[queue.session].target, ClientRef::new(self.number, id));
    }

    /// Starts queues that waited for in-flight requests of a disconnected client.
    pub(crate) fn admit_queues(&mut self, session: SessionId) {
        for &(_, id) in &self.sessions[session].queues {
            let queue = self.queues.queue(id);
            if queue.intake == Intake::WaitsForPredecessor {
                queue.intake = Intake::Open;
                self.queues.start_polling(id);
            }
        }
    }
}
