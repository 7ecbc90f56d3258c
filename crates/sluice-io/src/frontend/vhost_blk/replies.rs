//! Returns completed requests to their guests.

use sluice_sched::Instant;

use crate::backend::request::Body;
use crate::device::core::Core;
use crate::frontend::vhost_blk::VhostBlk;
use crate::frontend::vhost_blk::request::Status;
use crate::slab::IoId;
use crate::virtio::queue::Taken;
use crate::virtio::queue_set::QueueId;

impl VhostBlk {
    /// Returns a completed request to its guest.
    pub(crate) fn reply(&mut self, core: &mut Core, now: Instant, id: IoId) {
        let io = &core.backend.ios[id];
        let queue: QueueId = io.origin.client.id();
        if self.queues.queue(queue).state.is_closed() {
            return self.free(core, queue, id);
        }
        let guest = io.data.guest.as_ref().expect("a request of a guest has its memory");
        let mut written = 1;
        if io.errno == 0 && matches!(io.body, Body::Read | Body::Answered) {
            // The data is there. A null volume leaves the guest's memory unchanged.
            written = io.length.saturating_add(written);
        }
        guest.set_status(match io.errno {
            0 => Status::Ok as u8,
            libc::EOPNOTSUPP => Status::Unsupported as u8,
            _ => Status::IoError as u8,
        });
        let Taken { head, .. } = Taken::unpack(io.origin.cookie);
        self.queues.give_back(queue, head, written);
        self.queues.note_returned(now, queue);
        self.free(core, queue, id);
    }

    /// Removes a request.
    pub(crate) fn free(&mut self, core: &mut Core, queue: QueueId, io: IoId) {
        core.free(&mut self.queues.queue(queue).outstanding.requests, io);
        self.queues.look_for_end(queue);
    }
}
