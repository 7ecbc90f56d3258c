//! A device made of numbers: it holds what it was given and serves it in some order, at some speed.

use rand_pcg::Pcg32;
use sluice_sched::gate::{Device, Slot, Submission};
use sluice_sched::{Instant, OwnerId};

use super::{Record, below, chance};

/// Which of the held requests is served next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Fifo,
    Lifo,
    Random,
}

/// How long one request takes, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Fixed(u64),
    Between(u64, u64),
    /// A disk: 0.25 ms for what follows the last request, else 3.2 to 11.2 ms by the distance, up to 64 GiB.
    Disk,
}

/// The device.
#[derive(Debug)]
pub struct Stub {
    /// How many it serves at once.
    pub servers: usize,
    pub order: Order,
    pub service: Service,
    /// This owner's requests take so many times longer.
    pub slow: Option<(OwnerId, u64)>,
    /// Nothing begins and nothing ends before.
    pub stalled_until: Instant,
    /// Most requests that it ever held at once.
    pub held_max: usize,
    waiting: Vec<(Slot, OwnerId, (u64, u64))>,
    head: u64,
    serving: Vec<Slot>,
    /// By slot the place of its request in the log.
    logged: Vec<usize>,
    rng: Pcg32,
}

impl Stub {
    pub fn new(servers: usize, order: Order, service: Service) -> Self {
        Stub {
            servers,
            order,
            service,
            slow: None,
            stalled_until: Instant::ZERO,
            held_max: 0,
            waiting: Vec::new(),
            head: 0,
            serving: Vec::new(),
            logged: Vec::new(),
            rng: chance(11),
        }
    }

    /// One after the other, each `service` nanoseconds: completions evenly spaced.
    pub fn serial(service: u64) -> Self {
        Stub::new(1, Order::Fifo, Service::Fixed(service))
    }

    /// All at once, each `service` nanoseconds: completions come together.
    pub fn parallel(servers: usize, service: u64) -> Self {
        Stub::new(servers, Order::Fifo, Service::Fixed(service))
    }

    /// Another speed for what begins from now on.
    pub fn set_iops(&mut self, iops: u64) {
        self.service = Service::Fixed(super::SECOND * self.servers as u64 / iops);
    }

    fn take(&mut self, slot: Slot, owner: OwnerId, place: (u64, u64), logged: usize) {
        let slots = self.logged.len().max(slot.0 as usize + 1);
        self.logged.resize(slots, 0);
        self.logged[slot.0 as usize] = logged;
        self.waiting.push((slot, owner, place));
        self.held_max = self.held_max.max(self.waiting.len() + self.serving.len());
    }

    /// Begins to serve what it can; when each of those ends.
    pub fn start(&mut self, now: Instant) -> Vec<(Instant, Slot)> {
        let mut ends = Vec::new();
        while self.serving.len() < self.servers && !self.waiting.is_empty() {
            let index = match self.order {
                Order::Fifo => 0,
                Order::Lifo => self.waiting.len() - 1,
                Order::Random => below(&mut self.rng, self.waiting.len() as u64) as usize,
            };
            let (slot, owner, (from, to)) = self.waiting.remove(index);
            self.serving.push(slot);
            let nanos = match self.service {
                Service::Fixed(nanos) => nanos,
                Service::Between(low, high) => low + below(&mut self.rng, high - low + 1),
                Service::Disk if from == self.head => 250_000,
                Service::Disk => 3_200_000 + self.head.abs_diff(from).min(64 << 30) / 8192 * 8_000_000 / (8 << 20),
            };
            self.head = to;
            let factor = self.slow.filter(|(slow, _)| *slow == owner).map_or(1, |(_, factor)| factor);
            let begins = now.max(self.stalled_until);
            ends.push((begins + core::time::Duration::from_nanos(nanos * factor), slot));
        }
        ends
    }

    /// What was at this slot is served: its place in the log.
    pub fn finish(&mut self, slot: Slot) -> usize {
        self.serving.retain(|serving| *serving != slot);
        self.logged[slot.0 as usize]
    }
}

/// The device with a pen.
pub struct Taken<'a> {
    pub stub: &'a mut Stub,
    pub log: &'a mut Vec<Record>,
}

impl Device for Taken<'_> {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        self.log.push(Record { at: now, source: submission.token, request: submission.request });
        let request = &submission.request;
        self.stub.take(submission.slot, request.owner, (request.offset, request.end()), self.log.len() - 1);
    }
}
