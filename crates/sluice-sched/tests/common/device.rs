//! A modelled device: it holds requests and serves them in some order, at some speed.

use rand_pcg::Pcg32;
use sluice_sched::gate::{Device, Slot, Submission};
use sluice_sched::{CostModel, Instant, OwnerId};

use super::{Record, SECOND, below, chance};

/// Order in which its requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Fifo,
    Lifo,
    Random,
}

/// Service time of one request, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Fixed(u64),
    Between(u64, u64),
    /// A link of this many bits per second: a request takes its length and the overhead of a frame.
    Wire(u64),
    /// A disk: 0.25 ms for the request that follows the last one, otherwise 3.2 to 11.2 ms by the distance, up to 64
    /// GiB.
    Disk,
}

#[derive(Debug)]
pub struct Stub {
    /// Number of requests that it serves concurrently.
    pub servers: usize,
    pub order: Order,
    pub service: Service,
    /// Factor of the service time of this owner's requests.
    pub slow: Option<(OwnerId, u64)>,
    /// Nothing starts and nothing completes before.
    pub stalled_until: Instant,
    /// Maximum number of requests that it has held.
    pub held_max: usize,
    waiting: Vec<(Slot, OwnerId, (u64, u64))>,
    head: u64,
    serving: Vec<Slot>,
    /// Index of a slot's request in the log.
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

    /// One at a time, each `service` nanoseconds: completions are evenly spaced.
    pub fn serial(service: u64) -> Self {
        Stub::new(1, Order::Fifo, Service::Fixed(service))
    }

    /// `servers` concurrently, each `service` nanoseconds: completions come together.
    pub fn parallel(servers: usize, service: u64) -> Self {
        Stub::new(servers, Order::Fifo, Service::Fixed(service))
    }

    /// Sets the speed for requests that start from now on.
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

    /// Starts what it can serve; returns when each of those completes.
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
                Service::Wire(bits) => ((to - from + CostModel::FRAME_OVERHEAD.0) * 8 * SECOND).div_ceil(bits),
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

    /// Completes the request of this slot; returns its index in the log.
    pub fn finish(&mut self, slot: Slot) -> usize {
        self.serving.retain(|serving| *serving != slot);
        self.logged[slot.0 as usize]
    }
}

/// The device with the log.
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
