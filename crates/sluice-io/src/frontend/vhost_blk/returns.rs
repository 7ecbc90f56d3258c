//! From requests that are over to the used ring of their guest.

use std::os::fd::AsRawFd;

use io_uring::{opcode, types};
use sluice_sched::Kind;

use crate::backend::disk::RequestSource;
use crate::backend::tag::{Tag, tag};
use crate::device::event_loop::Loop;
use crate::device::slab::{Id, IoId, QueueId};
use crate::frontend::vhost_blk::request::Status;

/// What is written to an eventfd: one more.
static ONE: u64 = 1;

impl Loop {
    /// A request of a guest is over.
    pub(crate) fn reply_to_guest(&mut self, token: IoId, index: QueueId) {
        let io = &mut self.backend.ios[token];
        let RequestSource::Virtio { head, status, .. } = io.origin else { unreachable!("the caller looked") };
        let queue = &mut self.queues[index];
        if queue.closed {
            return self.free_request(token);
        }
        let mut written = 1;
        if io.errno == 0
            && matches!(io.kind, Some(Kind::Read) | None)
            && let Some(guest) = &io.guest
        {
            written += io.length;
            match (&mut io.buffer, io.kind) {
                (Some(buffer), _) => guest.fill(buffer.bytes_mut(io.length as usize)),
                (None, Some(_)) if self.backend.volumes[io.volume].is_null() => guest.clear(),
                (None, _) => {}
            }
        }
        let code = match io.errno {
            0 => Status::Ok,
            libc::EOPNOTSUPP => Status::Unsupported,
            _ => Status::IoError,
        };
        // SAFETY: the byte lies in guest memory, which the request keeps mapped; one that is refused ends where it was taken.
        unsafe { status.write_volatile(code as u8) };
        let returned = queue.give_back(head, written);
        self.irq_pending.push(index);
        if returned.is_err() {
            self.break_queue(index, "its used ring cannot be written");
        }
        self.free_request(token);
    }

    /// Interrupts the guests to whom something was returned in this turn, as far as they want it.
    pub(crate) fn signal_guests(&mut self) {
        let mut irq_pending = std::mem::take(&mut self.irq_pending);
        for index in irq_pending.drain(..) {
            let Some(queue) = self.queues.get_mut(index) else { continue };
            if (queue.returned || queue.call_anyway) && !queue.closed {
                queue.returned = false;
                match (queue.wants_call(), queue.calling) {
                    (true, false) => self.call(index),
                    (true, true) => queue.call_again = true,
                    (false, _) => {}
                }
            }
        }
        self.irq_pending = irq_pending;
    }

    fn call(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        let Some(call) = &queue.call else { return };
        let entry = opcode::Write::new(types::Fd(call.as_raw_fd()), (&raw const ONE).cast(), 8).build();
        // SAFETY: the number is static, and a queue with an operation in the kernel keeps its descriptor.
        unsafe { self.backend.ring.push(entry.user_data(tag(Tag::Call, index.index()))) };
        queue.calling = true;
        queue.operations += 1;
    }

    /// An interrupt has been raised.
    pub(crate) fn called(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        queue.calling = false;
        queue.old_call = None;
        if queue.call_again && !queue.closed {
            queue.call_again = false;
            self.call(index);
        }
        self.queue_operation_completed(index);
    }

    /// Tells the VMM that its guest has done something wrong.
    pub(crate) fn signal_error(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        let Some(error) = &queue.error else { return };
        let entry = opcode::Write::new(types::Fd(error.as_raw_fd()), (&raw const ONE).cast(), 8).build();
        // SAFETY: the number is static, and a queue with an operation in the kernel keeps its descriptor.
        unsafe { self.backend.ring.push(entry.user_data(tag(Tag::Other, index.index()))) };
        queue.operations += 1;
    }

    /// An operation for a queue has ended.
    pub(crate) fn queue_operation_completed(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        queue.operations -= 1;
        if queue.is_over() {
            self.ended_queues.push(index);
        }
    }
}
