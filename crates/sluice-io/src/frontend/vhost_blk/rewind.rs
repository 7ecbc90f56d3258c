//! Back from the gate into the available ring, when a VMM stops a queue: what waits need not be done before the queue is given
//! back, which under a limit takes seconds, and a VM that is paused or migrated waits for it.
//!
//! Whoever has the queue next reads its available ring from one place on. So what goes back is what was taken last, as far as
//! all of it waits; a request that waits before one that is at the device, or is over, is done.
//!
//! ```text
//! taken:   a over | b at the device | c waits | d at the device | e waits | f waits
//! goes back:                                                      ^ from here on
//! ```

use std::collections::{BTreeMap, BTreeSet};

use sluice_sched::Instant;
use sluice_sched::scheduler::Scope;

use crate::device::core::Core;
use crate::frontend::vhost_blk::VhostBlk;
use crate::slab::{ClientRef, IoId};
use crate::virtio::queue::Taken;
use crate::virtio::queue_set::QueueId;

impl VhostBlk {
    /// Puts back what waits of a queue that stops. The gate cancels by volume; what it cancels of others arrives anew.
    pub(crate) fn rewind(&mut self, core: &mut Core, now: Instant, id: QueueId) {
        let client = ClientRef::new(self.number, id);
        let volume = &core.backend.volumes[self.sessions[self.queues.queue(id).session].volume];
        let scope = Scope::Volume(core.vms[volume.vm].owner, volume.id);
        let mut cancelled = Vec::new();
        core.gate.cancel(now, scope, &mut cancelled);
        let ios = &core.backend.ios;
        let own = cancelled.iter().map(|over| ios.id_at(over.token)).filter(|io| ios[*io].client == client);
        let mut own: BTreeMap<u16, (u16, IoId)> = own
            .filter_map(|io| {
                let Taken { head, place } = Taken::unpack(ios[io].cookie);
                Some((place?, (head, io)))
            })
            .collect();
        let mut back = BTreeSet::new();
        let queue = self.queues.queue(id);
        while let Some((head, io)) = own.remove(&queue.last_taken()) {
            queue.put_back(head);
            back.insert(io);
        }
        cancelled.retain(|over| !back.contains(&core.backend.ios.id_at(over.token)));
        back.into_iter().for_each(|io| self.free(core, id, io));
        cancelled.into_iter().for_each(|over| core.on_gate_completion(now, over));
    }

    /// A part of a request has completed and the next one has arrived. If its queue stops meanwhile, it need not be completed:
    /// a request that was taken last goes back into the available ring, and zeroes can be written twice.
    pub(crate) fn rewind_rest(&mut self, core: &mut Core, now: Instant, io: IoId) {
        let state = &core.backend.ios[io];
        let id: QueueId = state.client.id();
        if let Taken { place: Some(place), .. } = Taken::unpack(state.cookie)
            && self.queues.queue(id).gives_back(place)
        {
            self.rewind(core, now, id);
        }
    }
}
