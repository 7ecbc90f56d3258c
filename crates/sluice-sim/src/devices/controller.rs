//! A controller in front of a device: it completes requests from its memory, and has requests of its own at the device.
//!
//! A [`Controller`] decides what it keeps in its memory. Its [`Front`] queues completions and the controller's own requests, which is
//! the same for all controllers, and makes it a [`Model`].
//! Slots of a controller's own requests begin at a number above all slots of a gate. If a controller is in front of another
//! one, both begin at different numbers, the outer one at the lower.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::slab::Slab;
use sluice_sched::{Instant, Kind};

use super::{Job, Model};

/// The device, requests that complete from memory, and the controller's own requests with what it notes of each.
pub struct Front<T> {
    device: Box<dyn Model>,
    latency: Duration,
    /// First slot of the controller's own requests.
    first: u32,
    own: Slab<T>,
    /// Requests that complete from memory, by time.
    completed: BinaryHeap<Reverse<(Instant, u64, Slot)>>,
    sequence: u64,
}

impl<T> Front<T> {
    /// A front before a device. Requests that complete from memory take `latency`; own requests have slots from `first` on.
    pub(super) fn new(device: Box<dyn Model>, latency: Duration, first: u32) -> Self {
        Front { device, latency, first, own: Slab::default(), completed: BinaryHeap::new(), sequence: 0 }
    }

    /// Passes a request to the device.
    pub(super) fn pass(&mut self, now: Instant, job: Job) {
        self.device.submit(now, job);
    }

    /// Completes a request from memory.
    pub(super) fn finish(&mut self, now: Instant, slot: Slot) {
        self.completed.push(Reverse((now + self.latency, self.sequence, slot)));
        self.sequence += 1;
    }

    /// Submits an own request, of which the controller notes `of`.
    pub(super) fn submit_own(&mut self, now: Instant, of: T, kind: Kind, offset: u64, length: u32) {
        let slot = Slot(self.first + self.own.insert(of));
        self.device.submit(now, Job { slot, kind, offset, length });
    }

    /// Number of own requests at the device.
    pub(super) fn own_at_device(&self) -> usize {
        self.own.len()
    }
}

/// The part of a controller that depends on what it keeps in memory.
pub trait Controller {
    /// What it notes of each of its own requests.
    type Own: Copy;

    fn front(&self) -> &Front<Self::Own>;

    fn front_mut(&mut self) -> &mut Front<Self::Own>;

    /// Takes a request: passes it, completes it from memory, or keeps it.
    fn accept(&mut self, now: Instant, job: Job);

    /// Notes that one of its own requests has completed.
    fn own_completed(&mut self, now: Instant, of: Self::Own);

    /// Number of requests that it keeps: neither passed nor completed.
    fn kept(&self) -> usize;
}

impl<C: Controller> Model for C {
    fn submit(&mut self, now: Instant, job: Job) {
        self.accept(now, job);
    }

    fn settle(&mut self, now: Instant) {
        self.front_mut().device.settle(now);
    }

    fn next(&self) -> Option<Instant> {
        let completed = self.front().completed.peek().map(|Reverse((at, _, _))| *at);
        self.front().device.next().into_iter().chain(completed).min()
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        loop {
            let front = self.front_mut();
            if let Some(Reverse((at, _, slot))) = front.completed.peek().copied()
                && at <= now
            {
                front.completed.pop();
                return Some(slot);
            }
            let slot = front.device.take(now)?;
            if slot.0 < front.first {
                return Some(slot);
            }
            let of = *front.own.remove(slot.0 - front.first);
            self.own_completed(now, of);
        }
    }

    fn take_dropped(&mut self) -> Option<Slot> {
        self.front_mut().device.take_dropped()
    }

    fn dropped(&self) -> u64 {
        self.front().device.dropped()
    }

    fn jobs_held(&self) -> usize {
        let front = self.front();
        self.kept() + front.completed.len() + front.device.jobs_held() - front.own.len()
    }

    fn is_stalled(&self) -> bool {
        self.front().device.is_stalled()
    }

    fn busy_nanos(&self) -> u64 {
        self.front().device.busy_nanos()
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.front().device.ahead_nanos(now)
    }

    fn makes_zeroes(&self) -> bool {
        self.front().device.makes_zeroes()
    }

    fn servers(&self) -> u32 {
        self.front().device.servers()
    }
}
