//! The virtqueues of a frontend: kicks, polling, interrupts, and removing queues. The meaning of a request is known
//! only to the frontend, which is the [`Consumer`].
//!
//! ```text
//!     kick --> [QueueSet] --chain--> Consumer --> ... --> give_back --> [QueueSet] --> interrupt
//!                 ^ available ring                            | used ring, in-flight log
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::Instant;

use crate::backend::client_faults::StoppedQueue;
use crate::backend::retry::is_put_off;
use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::budget::Budget;
use crate::intake::Intake;
use crate::slab::{FrontendNumber, Id as _, Slab, ids};
use crate::virtio::chain::{Chain, Malformed};
use crate::virtio::eventfds::Signal;
use crate::virtio::queue::{Taken, VirtQueue};

ids! {
    /// A virtqueue.
    QueueId;
}

/// Number of polled queues whose next requests are loaded together.
const VISITED_TOGETHER: usize = 8;
/// A queue without requests for this time, or up to twice as long, is not polled any more, although the loop has no time to sleep. Each look at it may fetch
/// a line of memory from the guest's CPU. A kick for each request of a guest that sends fewer than one in this time costs less.
const POLLED_FOR: Duration = Duration::from_millis(1);

/// The value written to an eventfd.
static ONE: u64 = 1;

/// An operation of the ring for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Operation {
    /// A kick by a guest.
    Kick = 0,
    /// A signal to a VMM that its guest has broken the queue.
    Error = 1,
    /// Another operation, of which only the end matters.
    Other = 2,
}

/// Takes the requests of virtqueues: a kind of virtio device.
pub(crate) trait Consumer {
    fn ring(&mut self) -> &mut Ring;

    /// Whether requests are taken at all.
    fn is_open(&self) -> bool;

    /// Whether there is room for one more request of a queue.
    fn has_room(&self, queue: &VirtQueue) -> bool;

    /// Whether requests of a queue's owner wait, and none that arrives could be dispatched before them. Then the loop wakes by itself
    /// when it is time to look for more.
    fn is_held(&self, _queue: &VirtQueue) -> bool {
        false
    }

    /// Whether the loop polls all the time, also for queues that had no request for long.
    fn polls_always(&self) -> bool {
        false
    }

    /// Queues a queue whose request does not fit into the window. The frontend calls [`QueueSet::resume`] later.
    fn park(&mut self, id: QueueId, queue: &VirtQueue);

    /// Takes a request. Returns how many bytes of the window it occupies. An error breaks the queue.
    fn take(
        &mut self,
        now: Instant,
        id: QueueId,
        queue: &mut VirtQueue,
        taken: Taken,
        chain: &mut Chain,
    ) -> Result<u64, Malformed>;

    /// Accounts for a kick, which costs time even if there is no request. Returns whether the VM may have more of it now;
    /// otherwise the queue is parked.
    fn kicked(&mut self, queue: &VirtQueue) -> bool;

    /// Notes that there was no request after a kick, or none that may be taken.
    fn kicked_in_vain(&mut self);

    /// Handles a queue that cannot go on.
    fn broken(&mut self, queue: &VirtQueue, reason: &'static str) -> StoppedQueue;
}

/// The queues of a frontend.
pub(crate) struct QueueSet {
    number: FrontendNumber,
    queues: Slab<QueueId, VirtQueue>,
    /// Queues that are polled in each iteration.
    polled: Vec<QueueId>,
    /// When to look next whether a polled queue has paused.
    next_look: Instant,
    /// Queues with returned requests, whose guests may have to be interrupted.
    irq_pending: Vec<QueueId>,
    /// Interrupts on their way to the kernel, each with its position in the ring and its eventfd, which must stay open until then.
    raised: VecDeque<(u64, QueueId, Arc<OwnedFd>)>,
    /// Queues that may be removed.
    ended: Vec<QueueId>,
    chain: Chain,
}

impl QueueSet {
    pub(crate) fn new(number: FrontendNumber) -> Self {
        QueueSet {
            number,
            queues: Slab::default(),
            polled: Vec::new(),
            next_look: Instant::ZERO,
            irq_pending: Vec::new(),
            raised: VecDeque::new(),
            ended: Vec::new(),
            chain: Chain::default(),
        }
    }

    /// Adds a queue. Its requests are taken from the next iteration on.
    pub(crate) fn insert(&mut self, queue: VirtQueue) -> QueueId {
        let id = self.queues.insert(queue);
        self.irq_pending.push(id);
        id
    }

    pub(crate) fn get(&self, id: QueueId) -> Option<&VirtQueue> {
        self.queues.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: QueueId) -> Option<&mut VirtQueue> {
        self.queues.get_mut(id)
    }

    pub(crate) fn queue(&mut self, id: QueueId) -> &mut VirtQueue {
        &mut self.queues[id]
    }

    fn tag(&self, operation: Operation, id: QueueId) -> u64 {
        Tag::Frontend(self.number, operation as u8, id.index()).pack()
    }

    /// Handles the end of an operation for a queue.
    pub(crate) fn event(
        &mut self,
        consumer: &mut impl Consumer,
        now: Instant,
        (operation, index): (u8, u32),
        result: i32,
    ) {
        let id = self.queues.id_at(index);
        match operation {
            operation if Self::is_kick(operation) => self.kicked(consumer, now, id, result),
            operation => self.end_operation(id, operation),
        }
    }

    /// Whether an operation is a kick.
    pub(crate) fn is_kick(operation: u8) -> bool {
        operation == Operation::Kick as u8
    }

    /// Handles the end of an operation other than a kick.
    pub(crate) fn end_operation(&mut self, id: QueueId, operation: u8) {
        self.queues[id].eventfds.error.signals &= operation != Operation::Error as u8;
        self.operation_completed(id);
    }

    /// Returns the queue that is at an index now.
    pub(crate) fn id_at(&self, index: u32) -> QueueId {
        self.queues.id_at(index)
    }

    /// Records that the kernel has read a kick. Returns `false` if the queue is about to be removed.
    pub(crate) fn kick_read(&mut self, id: QueueId) -> bool {
        let queue = &mut self.queues[id];
        queue.outstanding.operations -= 1;
        queue.eventfds.kick.listening = false;
        let ends = queue.can_be_removed();
        if ends {
            self.ended.push(id);
        }
        !ends
    }

    /// Handles a kick.
    fn kicked(&mut self, consumer: &mut impl Consumer, now: Instant, id: QueueId, result: i32) {
        if !self.kick_read(id) {
            return;
        }
        let queue = &mut self.queues[id];
        if result < 0 && !is_put_off(result) {
            if queue.takes() && result != -libc::ECANCELED {
                self.break_queue(consumer, id, "its kick descriptor cannot be read");
            }
            return;
        }
        if queue.state.is_closed() {
            return;
        }
        if !consumer.kicked(queue) && queue.takes() {
            queue.intake = Intake::WaitsForRoom;
            consumer.kicked_in_vain();
            return consumer.park(id, queue);
        }
        if !self.resume(consumer, now, id) {
            consumer.kicked_in_vain();
        }
    }

    /// Starts polling a queue.
    pub(crate) fn start_polling(&mut self, id: QueueId) {
        let queue = &mut self.queues[id];
        if !queue.polled {
            queue.polled = true;
            queue.disable_notification();
            self.polled.push(id);
        }
    }

    pub(crate) fn is_polling(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Takes requests from the polled queues. Returns whether there were any. Stops polling queues that have had none for some time.
    pub(crate) fn poll(&mut self, consumer: &mut impl Consumer, now: Instant) -> bool {
        let mut found = false;
        let polled = self.polled.len();
        for start in (0..polled).step_by(VISITED_TOGETHER) {
            let end = polled.min(start + VISITED_TOGETHER);
            self.prefetch(start..end);
            for position in start..end {
                let id = self.polled[position];
                let is_ready = self.queues.get_mut(id).is_some_and(VirtQueue::is_ready);
                found |= is_ready && self.take_chains(consumer, now, id, Budget::UNLIMITED);
            }
        }
        if now >= self.next_look && !consumer.polls_always() {
            self.next_look = now + POLLED_FOR;
            // What arrives in the meantime is found by the next iteration.
            self.rearm(consumer, |queue| queue.is_idle_since(now - POLLED_FOR));
        }
        found
    }

    /// Loads what is read first of the next requests of some polled queues. The guests have just written it on other
    /// CPUs, and so the thread waits for all these cache lines at once and not for one after the other.
    fn prefetch(&mut self, polled: Range<usize>) {
        let queues = &mut self.queues;
        let ids = &self.polled[polled];
        ids.iter().for_each(|id| queues.get(*id).into_iter().for_each(VirtQueue::prefetch_index));
        for id in ids {
            if let Some(queue) = queues.get_mut(*id)
                && queue.is_ready()
            {
                queue.prefetch_descriptors();
            }
        }
        ids.iter().for_each(|id| queues.get(*id).into_iter().for_each(VirtQueue::prefetch_tables));
    }

    /// Makes the guests of all queues kick, except those of held queues, which are polled when the loop wakes. A kick
    /// for each request would wake it twice as often as its limit lets requests through. Returns `false` if a request
    /// has arrived in the meantime.
    pub(crate) fn stop_polling(&mut self, consumer: &mut impl Consumer, now: Instant) -> bool {
        let all_idle = self.rearm(consumer, |_| true);
        if !all_idle {
            self.poll(consumer, now);
        }
        all_idle
    }

    /// Makes the guests of the selected polled queues kick, except those of held ones. Returns `false` if a request of one of them has
    /// arrived in the meantime; then it stays polled. Does nothing if no requests are taken at all.
    fn rearm(&mut self, consumer: &mut impl Consumer, selects: impl Fn(&VirtQueue) -> bool) -> bool {
        if !consumer.is_open() {
            return true;
        }
        let mut polled = std::mem::take(&mut self.polled);
        let mut all_idle = true;
        polled.retain(|&id| {
            let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.takes()) else {
                if let Some(queue) = self.queues.get_mut(id) {
                    queue.polled = false;
                }
                return false;
            };
            if !selects(queue) || consumer.is_held(queue) {
                return true;
            }
            if queue.enable_notification() {
                queue.disable_notification();
                all_idle = false;
                return true;
            }
            queue.polled = false;
            self.listen(consumer.ring(), id);
            false
        });
        self.polled.append(&mut polled);
        all_idle
    }

    /// Starts reading the next kick.
    pub(crate) fn listen(&mut self, ring: &mut Ring, id: QueueId) {
        let tag = self.tag(Operation::Kick, id);
        let queue = &mut self.queues[id];
        if queue.eventfds.kick.listening {
            return;
        }
        let counter = (&raw mut *queue.eventfds.kick.count).cast();
        let entry = opcode::Read::new(types::Fd(queue.kick_fd()), counter, 8).build();
        // SAFETY: the eight bytes are boxed, and a queue with an operation in the kernel keeps them and its descriptor.
        unsafe { ring.push(entry.user_data(tag)) };
        queue.eventfds.kick.listening = true;
        queue.outstanding.operations += 1;
    }

    /// Starts polling a queue, and takes requests from it. Returns whether there were any.
    pub(crate) fn resume(&mut self, consumer: &mut impl Consumer, now: Instant, id: QueueId) -> bool {
        self.start_polling(id);
        self.take_chains(consumer, now, id, Budget::UNLIMITED)
    }

    /// Takes requests within `budget` from a queue while there is room. Returns whether there were any. At most as many
    /// as the queue has entries are taken in an iteration, because a guest may fill it as fast as it is emptied.
    pub(crate) fn take_chains(
        &mut self,
        consumer: &mut impl Consumer,
        now: Instant,
        id: QueueId,
        mut budget: Budget,
    ) -> bool {
        let mut found = false;
        let mut broken = None;
        let queue = &mut self.queues[id];
        for left in (0..=queue.size()).rev() {
            if left == 0 {
                break;
            }
            if !queue.takes() || !consumer.is_open() {
                return found;
            }
            match queue.has_next() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    broken = Some("its available ring jumped");
                    break;
                }
            }
            found = true;
            queue.active = now;
            if budget.is_used_up() || !consumer.has_room(queue) {
                queue.intake = Intake::WaitsForRoom;
                consumer.park(id, queue);
                return found;
            }
            queue.prefetch_ahead();
            let taken = match queue.take() {
                Ok(Some(taken)) => consumer.take(now, id, queue, taken, &mut self.chain),
                Ok(None) => Ok(0),
                Err(_) => {
                    broken = Some("its available ring cannot be read");
                    break;
                }
            };
            match taken {
                Ok(bytes) => budget.charge(bytes),
                Err(reason) => {
                    broken = Some(reason.in_words());
                    break;
                }
            }
        }
        match broken {
            Some(reason) => self.break_queue(consumer, id, reason),
            // It was last polled when it waited for room.
            None => self.start_polling(id),
        }
        found
    }

    /// Breaks a queue whose ring or request frame is invalid: it takes no requests until it is started again. Returning
    /// such a chain would be wrong, because its status byte may already state success.
    pub(crate) fn break_queue(&mut self, consumer: &mut impl Consumer, id: QueueId, reason: &'static str) {
        let queue = &mut self.queues[id];
        let stopped = consumer.broken(queue, reason);
        queue.state.break_down(stopped);
        self.signal_error(consumer.ring(), id);
        self.look_for_end(id);
    }

    /// Signals the VMM that its guest has broken a queue.
    fn signal_error(&mut self, ring: &mut Ring, id: QueueId) {
        let tag = self.tag(Operation::Error, id);
        let queue = &mut self.queues[id];
        // The VMM may leave its eventfd full, and then a write does not complete.
        let Some(error) = queue.eventfds.error.fd.as_ref().filter(|_| !queue.eventfds.error.signals) else { return };
        let entry = opcode::Write::new(types::Fd(error.as_raw_fd()), (&raw const ONE).cast(), 8).build();
        // SAFETY: the value is static, and a queue with an operation in the kernel keeps its descriptor.
        unsafe { ring.push(entry.user_data(tag)) };
        queue.eventfds.error.signals = true;
        queue.outstanding.operations += 1;
    }

    /// Returns a request to the guest, with the number of bytes that were written for it.
    pub(crate) fn give_back(&mut self, id: QueueId, head: u16, written: u32) {
        self.give_back_together(id, &[(head, written)]);
    }

    /// Polls a queue that has returned a request: a guest that waited for it sends the next one now. Otherwise, if the disk takes longer
    /// than the loop polls, each request of such a guest would need a kick.
    pub(crate) fn note_returned(&mut self, now: Instant, id: QueueId) {
        let queue = &mut self.queues[id];
        queue.active = now;
        if queue.takes() {
            self.start_polling(id);
        }
    }

    /// Returns chains that the guest sees all at once; see [`VirtQueue::give_back_together`].
    pub(crate) fn give_back_together(&mut self, id: QueueId, chains: &[(u16, u32)]) {
        let queue = &mut self.queues[id];
        if queue.eventfds.interrupt.signal == Signal::No {
            self.irq_pending.push(id);
        }
        queue.give_back_together(chains);
    }

    /// Publishes the requests that were returned until now.
    pub(crate) fn publish(&mut self) {
        for &id in &self.irq_pending {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.publish();
            }
        }
    }

    /// Publishes the requests that were returned in this iteration, and interrupts the guests that request it.
    pub(crate) fn signal_guests(&mut self, ring: &mut Ring) {
        self.forget_raised(ring);
        let mut irq_pending = std::mem::take(&mut self.irq_pending);
        for id in irq_pending.drain(..) {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            queue.publish();
            // An interrupt that the kernel has not seen yet will show the guest all that is published now.
            if !queue.state.is_closed() && queue.take_signal() && !queue.eventfds.interrupt.raising {
                self.interrupt(ring, id);
            }
        }
        self.irq_pending = irq_pending;
    }

    /// Forgets interrupts that the kernel has accepted: they are raised.
    fn forget_raised(&mut self, ring: &mut Ring) {
        while self.raised.front().is_some_and(|(position, ..)| ring.is_submitted(*position)) {
            let Some((_, id, _call)) = self.raised.pop_front() else { return };
            if let Some(queue) = self.queues.get_mut(id) {
                queue.eventfds.interrupt.raising = false;
            }
        }
    }

    /// Interrupts a guest by a write that never waits. It fails if the eventfd is full, and then the guest has something to
    /// read already.
    fn interrupt(&mut self, ring: &mut Ring, id: QueueId) {
        let queue = &mut self.queues[id];
        let Some(call) = queue.eventfds.interrupt.fd.clone() else { return };
        let write = opcode::Write::new(types::Fd(call.as_raw_fd()), (&raw const ONE).cast(), 8);
        // SAFETY: the value is static, and `raised` keeps the descriptor until the operation is submitted.
        let position = unsafe { ring.push_silent(write.rw_flags(libc::RWF_NOWAIT).build()) };
        queue.eventfds.interrupt.raising = true;
        // The VMM is told next that the queue has stopped.
        if queue.state.ends() {
            let _ = ring.submit();
        }
        self.raised.push_back((position, id, call));
    }

    /// Replaces the eventfd for interrupts.
    pub(crate) fn set_call(&mut self, id: QueueId, call: Option<Arc<OwnedFd>>) {
        let queue = &mut self.queues[id];
        // An interrupt that the kernel has not seen yet goes to the eventfd before.
        (queue.eventfds.interrupt.fd, queue.eventfds.interrupt.raising) = (call, false);
        // Requests may have been returned while there was no eventfd, and the guest's wish for an interrupt is not
        // known any more.
        queue.eventfds.interrupt.signal = Signal::Always;
        self.irq_pending.push(id);
    }

    fn operation_completed(&mut self, id: QueueId) {
        self.queues[id].outstanding.operations -= 1;
        self.look_for_end(id);
    }

    /// Schedules a check at the end of the iteration whether the queue can be removed.
    pub(crate) fn look_for_end(&mut self, id: QueueId) {
        if self.queues[id].can_be_removed() {
            self.ended.push(id);
        }
    }

    /// Removes and returns the next queue that nothing refers to any more.
    pub(crate) fn next_ended(&mut self) -> Option<(QueueId, VirtQueue)> {
        while let Some(id) = self.ended.pop() {
            if self.queues.get(id).is_some_and(VirtQueue::can_be_removed) {
                self.polled.retain(|polled| *polled != id);
                return Some((id, self.queues.remove(id)));
            }
        }
        None
    }

    /// Cancels the operations in the kernel that wait for a queue's events.
    pub(crate) fn stop_listening(&mut self, ring: &mut Ring, id: QueueId) {
        let queue = &self.queues[id];
        let waiting =
            [(queue.eventfds.kick.listening, Operation::Kick), (queue.eventfds.error.signals, Operation::Error)];
        for (_, operation) in waiting.into_iter().filter(|(is_waiting, _)| *is_waiting) {
            self.cancel(ring, id, operation);
        }
    }

    fn cancel(&mut self, ring: &mut Ring, id: QueueId, operation: Operation) {
        let entry = opcode::AsyncCancel::new(self.tag(operation, id)).build();
        // SAFETY: a cancellation refers to no memory.
        unsafe { ring.push(entry.user_data(self.tag(Operation::Other, id))) };
        self.queues[id].outstanding.operations += 1;
    }

    /// Whether all requests have been answered, while the device drains.
    pub(crate) fn is_drained(&self) -> bool {
        self.queues.iter().all(|(_, queue)| queue.is_empty())
    }

    /// Ends all operations in the kernel that wait for events.
    pub(crate) fn shut_down(&mut self, ring: &mut Ring) {
        self.queues.ids().into_iter().for_each(|id| self.stop_listening(ring, id));
    }
}

#[cfg(test)]
mod tests;
