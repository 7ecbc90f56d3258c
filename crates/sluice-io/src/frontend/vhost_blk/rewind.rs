//! Returning queued requests to the available ring when a VMM stops a queue. They need not complete before the queue is
//! stopped, which under a limit would take seconds, while a paused or migrating VM waits.
//!
//! The next user of the queue reads its available ring from one position. So only the last requests that were taken can
//! be returned, as long as all of them are still queued. A queued request that was taken before one that is in flight
//! or has completed must be completed. A request of which some pieces are at the disk is returned, whole, when these have
//! completed.
//!
//! ```text
//!     taken:    a completed | b in flight | c queued | d in flight | e queued | f queued
//!     returned:                                                      ^ from here
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
    /// Returns queued requests of a queue that stops. The gate cancels by volume; cancelled requests of other queues
    /// arrive again.
    pub(crate) fn rewind(&mut self, core: &mut Core, now: Instant, id: QueueId) {
        let client = ClientRef::new(self.number, id);
        let volume = &core.backend.volumes[self.sessions[self.queues.queue(id).session].target];
        let scope = Scope::Volume(core.base.vms[volume.vm].owner, volume.id);
        let mut cancelled = core.cancel(now, scope);
        let ios = &core.backend.ios;
        let own = cancelled.iter().map(|(io, _)| *io).filter(|io| ios[*io].origin.client == client);
        let mut own: BTreeMap<u16, (u16, IoId)> = own
            .filter_map(|io| {
                let Taken { head, position } = Taken::unpack(ios[io].origin.cookie);
                Some((position?, (head, io)))
            })
            .collect();
        let mut back = BTreeSet::new();
        let queue = self.queues.queue(id);
        while let Some((head, io)) = own.remove(&queue.last_taken()) {
            queue.put_back(head);
            back.insert(io);
        }
        cancelled.retain(|(io, _)| !back.contains(io));
        back.into_iter().for_each(|io| self.free(core, id, io));
        cancelled.into_iter().for_each(|(io, outcome)| core.left_gate(io, outcome));
    }

    /// Puts a request of which nothing is at the gate or at the disk back into the available ring, whole, if its queue is stopping and it
    /// was the last one taken: zeroes and data can be written twice. Returns whether it has done so.
    pub(crate) fn put_back_rest(&mut self, core: &mut Core, now: Instant, io: IoId) -> bool {
        let origin = &core.backend.ios[io].origin;
        let id: QueueId = origin.client.id();
        let Taken { head, position } = Taken::unpack(origin.cookie);
        let queue = self.queues.queue(id);
        if !position.is_some_and(|position| queue.gives_back(position)) {
            return false;
        }
        queue.put_back(head);
        self.free(core, id, io);
        // Those before it may follow.
        self.rewind(core, now, id);
        true
    }
}
