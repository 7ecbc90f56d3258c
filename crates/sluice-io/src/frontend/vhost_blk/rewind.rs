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

use crate::backend::disk::RequestSource;
use crate::device::event_loop::Loop;
use crate::device::slab::{IoId, QueueId};

impl Loop {
    /// Puts back what waits of a queue that stops. The gate cancels by volume; what it cancels of others arrives anew.
    pub(crate) fn rewind(&mut self, now: Instant, index: QueueId) {
        let volume = &self.backend.volumes[self.sessions[self.queues[index].session].volume];
        let scope = Scope::Volume(self.vms[volume.vm].owner, volume.id);
        let mut cancelled = Vec::new();
        self.gate.cancel(now, scope, &mut cancelled);
        let ios = &self.backend.ios;
        let ids = cancelled.iter().map(|over| ios.id_at(over.token));
        let mut own: BTreeMap<u16, IoId> = ids
            .filter_map(|id| match ios[id].origin {
                RequestSource::Virtio { queue, place: Some(place), .. } if queue == index => Some((place, id)),
                _ => None,
            })
            .collect();
        let mut back = BTreeSet::new();
        while let Some(token) = own.remove(&self.queues[index].last_taken()) {
            let RequestSource::Virtio { head, .. } = self.backend.ios[token].origin else {
                unreachable!("it was looked at")
            };
            self.queues[index].put_back(head);
            back.insert(token);
        }
        cancelled.retain(|over| !back.contains(&self.backend.ios.id_at(over.token)));
        back.into_iter().for_each(|token| self.free_request(token));
        cancelled.into_iter().for_each(|over| self.on_gate_completion(now, over));
    }
}
