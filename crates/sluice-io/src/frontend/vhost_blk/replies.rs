//! From completed requests to the used ring of their guest.

use sluice_sched::Kind;

use crate::device::core::Core;
use crate::frontend::vhost_blk::VhostBlk;
use crate::frontend::vhost_blk::request::Status;
use crate::slab::IoId;
use crate::virtio::queue::Taken;
use crate::virtio::queue_set::QueueId;

impl VhostBlk {
    /// A request of a guest is complete.
    pub(crate) fn reply(&mut self, core: &mut Core, id: IoId) {
        let io = &mut core.backend.ios[id];
        let queue: QueueId = io.client.id();
        if self.queues.queue(queue).state.is_closed() {
            return self.free(core, queue, id);
        }
        let guest = io.guest.as_ref().expect("a request of a guest has its memory");
        let mut written = 1;
        if io.errno == 0 && matches!(io.kind, Some(Kind::Read) | None) {
            written += io.length;
            // What went straight to the guest is there. A null volume leaves the guest's memory as it is.
            if let Some(buffer) = &mut io.buffer {
                guest.fill(buffer.bytes_mut(io.length as usize));
            }
        }
        guest.set_status(match io.errno {
            0 => Status::Ok as u8,
            libc::EOPNOTSUPP => Status::Unsupported as u8,
            _ => Status::IoError as u8,
        });
        let Taken { head, .. } = Taken::unpack(io.cookie);
        self.queues.give_back(queue, head, written);
        self.free(core, queue, id);
    }

    /// A request leaves.
    pub(crate) fn free(&mut self, core: &mut Core, queue: QueueId, io: IoId) {
        core.free(&mut self.queues.queue(queue).requests, io);
        self.queues.look_for_end(queue);
    }
}
