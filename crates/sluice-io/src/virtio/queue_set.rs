//! The virtqueues of a frontend: kicks, polling, interrupts, and the end of a queue. What a request means, only the frontend
//! knows, which is the [`Consumer`].
//!
//! ```text
//! kick --> [QueueSet] --chain--> Consumer --> ... --> give_back --> [QueueSet] --> interrupt
//!             ^ available ring                            | used ring, in-flight log
//! ```

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, types};
use sluice_sched::Instant;

use crate::backend::retry::is_put_off;
use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::device::vm::Intake;
use crate::slab::{FrontendNumber, Id as _, Slab, ids};
use crate::virtio::chain::{Chain, Malformed};
use crate::virtio::queue::{Interrupt, Signal, Taken, VirtQueue};

ids! {
    /// A virtqueue.
    QueueId;
}

/// What is written to an eventfd: one more.
static ONE: u64 = 1;

/// An operation of the ring for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Operation {
    /// A guest has added requests.
    Kick = 0,
    /// An interrupt for a guest.
    Interrupt = 1,
    /// Another one, of which only the end matters.
    Other = 2,
}

/// What takes the requests of virtqueues: the kind of virtio device.
pub(crate) trait Consumer {
    fn ring(&mut self) -> &mut Ring;

    /// Whether requests are taken at all.
    fn is_open(&self) -> bool;

    /// Whether there is room for one more request of a queue.
    fn has_room(&self, queue: &VirtQueue) -> bool;

    /// A queue has a request that is not taken now: the frontend calls [`QueueSet::resume`] later.
    fn park(&mut self, id: QueueId, queue: &VirtQueue);

    /// Takes a request. An error breaks the queue.
    fn take(
        &mut self,
        now: Instant,
        id: QueueId,
        queue: &mut VirtQueue,
        taken: Taken,
        chain: &mut Chain,
    ) -> Result<(), Malformed>;

    /// A guest has broken a queue.
    fn broken(&mut self, queue: &VirtQueue, reason: &str);
}

/// The queues of a frontend.
pub(crate) struct QueueSet {
    number: FrontendNumber,
    queues: Slab<QueueId, VirtQueue>,
    /// Queues that are looked at in every iteration.
    polled: Vec<QueueId>,
    /// Queues of guests to whom something was returned.
    irq_pending: Vec<QueueId>,
    /// Queues that may be over.
    ended: Vec<QueueId>,
    chain: Chain,
}

impl QueueSet {
    pub(crate) fn new(number: FrontendNumber) -> Self {
        QueueSet {
            number,
            queues: Slab::default(),
            polled: Vec::new(),
            irq_pending: Vec::new(),
            ended: Vec::new(),
            chain: Chain::default(),
        }
    }

    /// A queue has been started: what is in its ring is taken from the next iteration on.
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

    /// An operation for a queue has completed.
    pub(crate) fn event(
        &mut self,
        consumer: &mut impl Consumer,
        now: Instant,
        (operation, index): (u8, u32),
        result: i32,
    ) {
        let id = self.queues.id_at(index);
        match operation {
            operation if operation == Operation::Kick as u8 => self.kicked(consumer, now, id, result),
            operation if operation == Operation::Interrupt as u8 => self.interrupted(consumer.ring(), id),
            _ => self.operation_completed(id),
        }
    }

    /// The guest has kicked.
    fn kicked(&mut self, consumer: &mut impl Consumer, now: Instant, id: QueueId, result: i32) {
        let queue = &mut self.queues[id];
        queue.operations -= 1;
        queue.listening = false;
        if queue.is_over() {
            return self.ended.push(id);
        }
        if result < 0 && !is_put_off(result) {
            if queue.takes() && result != -libc::ECANCELED {
                self.break_queue(consumer, id, "its kick descriptor cannot be read");
            }
            return;
        }
        self.resume(consumer, now, id, u32::MAX);
    }

    /// Polls a queue from now on.
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

    /// Takes what guests have put into the queues that are polled; whether there was anything.
    pub(crate) fn poll(&mut self, consumer: &mut impl Consumer, now: Instant) -> bool {
        let mut found = false;
        for position in 0..self.polled.len() {
            let id = self.polled[position];
            let is_ready = self.queues.get_mut(id).is_some_and(VirtQueue::is_ready);
            found |= is_ready && self.take_chains(consumer, now, id, u32::MAX);
        }
        found
    }

    /// Asks the guests of all queues to kick; `false`: something has come meanwhile.
    pub(crate) fn stop_polling(&mut self, consumer: &mut impl Consumer, now: Instant) -> bool {
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
        if !all_idle {
            self.poll(consumer, now);
        }
        all_idle
    }

    /// Reads the next kick.
    fn listen(&mut self, ring: &mut Ring, id: QueueId) {
        let tag = self.tag(Operation::Kick, id);
        let queue = &mut self.queues[id];
        if queue.listening {
            return;
        }
        let counter = (&raw mut *queue.kicks).cast();
        let entry = opcode::Read::new(types::Fd(queue.kick_fd()), counter, 8).build();
        // SAFETY: the eight bytes are boxed, and a queue with an operation in the kernel is not removed; its descriptor
        // neither.
        unsafe { ring.push(entry.user_data(tag)) };
        queue.listening = true;
        queue.operations += 1;
    }

    /// Polls a queue from now on, and takes up to `budget` requests of it.
    pub(crate) fn resume(&mut self, consumer: &mut impl Consumer, now: Instant, id: QueueId, budget: u32) {
        self.start_polling(id);
        self.take_chains(consumer, now, id, budget);
    }

    /// Takes up to `budget` requests of a queue, as far as there is room; whether there was any. The next iteration goes on
    /// behind as many as the queue has entries: a guest may fill it as fast as it is emptied.
    pub(crate) fn take_chains(
        &mut self,
        consumer: &mut impl Consumer,
        now: Instant,
        id: QueueId,
        mut budget: u32,
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
                    broken = Some("its available ring jumped".to_owned());
                    break;
                }
            }
            found = true;
            if budget == 0 || !consumer.has_room(queue) {
                queue.intake = Intake::WaitsForRoom;
                consumer.park(id, queue);
                return found;
            }
            budget -= 1;
            let taken = match queue.take() {
                Ok(Some(taken)) => consumer.take(now, id, queue, taken, &mut self.chain),
                Ok(None) => Ok(()),
                Err(_) => {
                    broken = Some("its available ring cannot be read".to_owned());
                    break;
                }
            };
            if let Err(reason) = taken {
                broken = Some(reason.to_string());
                break;
            }
        }
        match broken {
            Some(reason) => self.break_queue(consumer, id, &reason),
            // It was looked at last when it waited for room.
            None => self.start_polling(id),
        }
        found
    }

    /// The ring makes no sense, or a chain of which not even the frame is sound: the queue takes nothing more until it is
    /// started anew. To give such a chain back would not do: its status byte, wherever it is, may say that all went well.
    pub(crate) fn break_queue(&mut self, consumer: &mut impl Consumer, id: QueueId, reason: &str) {
        let queue = &mut self.queues[id];
        queue.state.break_down();
        consumer.broken(queue, reason);
        self.signal_error(consumer.ring(), id);
    }

    /// Tells the VMM that its guest has done something wrong.
    fn signal_error(&mut self, ring: &mut Ring, id: QueueId) {
        let tag = self.tag(Operation::Other, id);
        let queue = &mut self.queues[id];
        let Some(error) = &queue.error else { return };
        let entry = opcode::Write::new(types::Fd(error.as_raw_fd()), (&raw const ONE).cast(), 8).build();
        // SAFETY: the number is static, and a queue with an operation in the kernel keeps its descriptor.
        unsafe { ring.push(entry.user_data(tag)) };
        queue.operations += 1;
    }

    /// Returns a request to the guest, with how many bytes were written for it.
    pub(crate) fn give_back(&mut self, id: QueueId, head: u16, written: u32) {
        let queue = &mut self.queues[id];
        if queue.signal == Signal::No {
            self.irq_pending.push(id);
        }
        queue.give_back(head, written);
    }

    /// Lets guests see what was returned to them in this iteration, and interrupts them as far as they want it.
    pub(crate) fn signal_guests(&mut self, ring: &mut Ring) {
        let mut irq_pending = std::mem::take(&mut self.irq_pending);
        for id in irq_pending.drain(..) {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            queue.publish();
            if queue.state.is_closed() || !queue.take_signal() {
                continue;
            }
            match queue.interrupt {
                Interrupt::Idle => self.interrupt(ring, id),
                Interrupt::Raising | Interrupt::RaisingAgain => queue.interrupt = Interrupt::RaisingAgain,
            }
        }
        self.irq_pending = irq_pending;
    }

    fn interrupt(&mut self, ring: &mut Ring, id: QueueId) {
        let tag = self.tag(Operation::Interrupt, id);
        let queue = &mut self.queues[id];
        let Some(call) = &queue.call else { return };
        let entry = opcode::Write::new(types::Fd(call.as_raw_fd()), (&raw const ONE).cast(), 8).build();
        // SAFETY: the number is static, and a queue with an operation in the kernel keeps its descriptor.
        unsafe { ring.push(entry.user_data(tag)) };
        queue.interrupt = Interrupt::Raising;
        queue.operations += 1;
    }

    /// An interrupt has been raised.
    fn interrupted(&mut self, ring: &mut Ring, id: QueueId) {
        let queue = &mut self.queues[id];
        queue.old_call = None;
        let before = std::mem::replace(&mut queue.interrupt, Interrupt::Idle);
        if before == Interrupt::RaisingAgain && !queue.state.is_closed() {
            self.interrupt(ring, id);
        }
        self.operation_completed(id);
    }

    /// Replaces the eventfd for interrupts.
    pub(crate) fn set_call(&mut self, id: QueueId, call: Option<Arc<OwnedFd>>) {
        let queue = &mut self.queues[id];
        // The descriptor of an interrupt on its way must stay open.
        let old = std::mem::replace(&mut queue.call, call);
        if queue.interrupt != Interrupt::Idle {
            queue.old_call = old;
        }
        // What was returned while there was nobody to call: that the guest wanted to be told is forgotten by now.
        queue.signal = Signal::Always;
        self.irq_pending.push(id);
    }

    fn operation_completed(&mut self, id: QueueId) {
        self.queues[id].operations -= 1;
        self.look_for_end(id);
    }

    /// Has a queue removed at the end of the iteration, if nothing refers to it any more.
    pub(crate) fn look_for_end(&mut self, id: QueueId) {
        if self.queues[id].is_over() {
            self.ended.push(id);
        }
    }

    /// Removes the next queue that nothing refers to any more.
    pub(crate) fn next_ended(&mut self) -> Option<(QueueId, VirtQueue)> {
        while let Some(id) = self.ended.pop() {
            if self.queues.get(id).is_some_and(VirtQueue::is_over) {
                self.polled.retain(|polled| *polled != id);
                return Some((id, self.queues.remove(id)));
            }
        }
        None
    }

    /// Cancels what waits in the kernel for a queue.
    pub(crate) fn stop_listening(&mut self, ring: &mut Ring, id: QueueId) {
        let queue = &self.queues[id];
        let waiting = [(queue.listening, Operation::Kick), (queue.interrupt != Interrupt::Idle, Operation::Interrupt)];
        for (_, what) in waiting.into_iter().filter(|(is, _)| *is) {
            let entry = opcode::AsyncCancel::new(self.tag(what, id)).build();
            // SAFETY: a cancellation refers to no memory.
            unsafe { ring.push(entry.user_data(self.tag(Operation::Other, id))) };
            self.queues[id].operations += 1;
        }
    }

    /// While everything drains: whether no guest waits for an answer.
    pub(crate) fn is_drained(&self) -> bool {
        self.queues.iter().all(|(_, queue)| queue.requests.is_empty() && queue.interrupt == Interrupt::Idle)
    }

    /// Lets the kernel let go of all queues.
    pub(crate) fn shut_down(&mut self, ring: &mut Ring) {
        self.queues.ids().into_iter().for_each(|id| self.stop_listening(ring, id));
    }
}
