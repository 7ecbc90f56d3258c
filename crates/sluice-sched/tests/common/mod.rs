//! A modelled device, VMs and time: drives a [`Gate`] and logs its dispatches.
//!
//! Events happen in the order of their instants, equal instants in the order in which they were planned, and the gate
//! is pumped after each. There is no clock, and random numbers come from a seeded generator.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses its own part of the driver")]

pub mod analysis;
pub mod device;
pub mod plan;
pub mod subject;
pub mod twin;
pub mod watched;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sluice_sched::gate::{Finished, RemoteService, Slot};
use sluice_sched::scheduler::{DeviceInfo, Scheduler};
use sluice_sched::{Arrival, Flags, Gate, GateSettings, Instant, Kind, OwnerId, Policy, Scope, VolumeId};

pub use device::{Order, Service, Stub};
pub use subject::{Subject, paper, product, subjects};

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds of a millisecond.
pub const MILLI: u64 = 1_000_000;

pub const fn secs(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * SECOND)
}

pub const fn millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A seeded generator.
pub fn chance(seed: u64) -> Pcg32 {
    Pcg32::seed_from_u64(seed)
}

/// A number from 0 to `bound` - 1.
pub fn below(rng: &mut Pcg32, bound: u64) -> u64 {
    rng.next_u64() % bound
}

/// One of `choices`.
pub fn pick<T: Copy>(rng: &mut Pcg32, choices: &[T]) -> T {
    choices[below(rng, choices.len() as u64) as usize]
}

/// When a VM submits requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Keeps this number of requests outstanding.
    Closed(u32),
    /// One every this many nanoseconds, independent of completions.
    Open(u64),
    /// Keeps `outstanding` requests for `on` nanoseconds, none for `off` nanoseconds, and so on.
    OnOff { outstanding: u32, on: u64, off: u64 },
    /// One at a time, the next one this many nanoseconds after the last has completed.
    Think(u64),
    /// Only when the test says so.
    Manual,
}

/// Offsets of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// Always the same sectors.
    Equal,
    /// Sequential.
    Contiguous,
    /// Anywhere in 64 GiB.
    Random,
}

/// One stream of requests to one volume.
#[derive(Debug, Clone)]
pub struct Source {
    pub owner: OwnerId,
    pub volume: VolumeId,
    pub pattern: Pattern,
    pub places: Places,
    pub kind: Kind,
    pub flags: Flags,
    /// Lengths, used cyclically.
    pub lengths: Vec<u32>,
    pub remote: Option<RemoteService>,
    pub on: bool,
    pub issued: u64,
    pub accepted: u64,
    pub finished: u64,
    next_offset: u64,
    /// Region of random requests: first byte and number of pages.
    region: (u64, u64),
}

/// One dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub at: Instant,
    pub source: u32,
    pub request: sluice_sched::Request,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Finish(Slot),
    Arrive(u32),
    Switch(u32),
}

/// A gate with its device and its VMs.
pub struct World {
    pub gate: Gate,
    pub device: Stub,
    pub now: Instant,
    pub log: Vec<Record>,
    /// Number of times that a timer had to fire because no other event occurred.
    pub wakes: u64,
    pub sources: Vec<Source>,
    pub finished: Vec<Finished>,
    /// Completions: time, and index in `log`.
    pub done: Vec<(Instant, usize)>,
    pub wake: Option<Instant>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    planned: u64,
    rng: Pcg32,
}

impl World {
    pub fn new(scheduler: Box<dyn Scheduler>, settings: GateSettings, device: Stub) -> Self {
        World {
            gate: Gate::new(scheduler, settings),
            device,
            now: Instant::ZERO,
            log: Vec::new(),
            wakes: 0,
            sources: Vec::new(),
            finished: Vec::new(),
            done: Vec::new(),
            wake: None,
            events: BinaryHeap::new(),
            planned: 0,
            rng: chance(7),
        }
    }

    /// A device of `iops` requests per second that serves one at a time, with queue depth `depth`; every request costs
    /// 1.
    pub fn simple(subject: &Subject, depth: u32, iops: u64) -> Self {
        let info = DeviceInfo { depth, ..DeviceInfo::default() };
        let settings = GateSettings { depth, cost: sluice_sched::CostModel::per_request(), ..GateSettings::default() };
        World::new(subject.build(&info), settings, Stub::serial(SECOND / iops))
    }

    /// An owner with one volume and no traffic.
    pub fn vm(&mut self, policy: Policy) -> OwnerId {
        let owner = self.gate.add_owner(self.now, policy).expect("the test's policy is valid");
        self.volume(owner, Policy::default());
        owner
    }

    pub fn volume(&mut self, owner: OwnerId, policy: Policy) -> VolumeId {
        self.gate.add_volume(self.now, owner, policy).expect("the test's policy is valid")
    }

    /// A stream of 8 KiB reads to the first volume of `owner` that starts immediately.
    pub fn stream(&mut self, owner: OwnerId, pattern: Pattern) -> usize {
        let source = Source::new(owner, VolumeId(0), pattern);
        self.source(source)
    }

    /// A VM with a stream.
    pub fn busy(&mut self, policy: Policy, pattern: Pattern) -> OwnerId {
        let owner = self.vm(policy);
        self.stream(owner, pattern);
        owner
    }

    pub fn source(&mut self, source: Source) -> usize {
        self.sources.push(source);
        let index = self.sources.len() - 1;
        self.begin(index);
        self.pump();
        index
    }

    fn begin(&mut self, index: usize) {
        self.sources[index].on = true;
        match self.sources[index].pattern {
            Pattern::Closed(outstanding) => self.ask_times(index, outstanding),
            Pattern::Open(_) => self.plan(self.now, Event::Arrive(index as u32)),
            Pattern::OnOff { outstanding, on, .. } => {
                self.ask_times(index, outstanding);
                self.plan(self.after(on), Event::Switch(index as u32));
            }
            Pattern::Think(_) => self.ask_times(index, 1),
            Pattern::Manual => {}
        }
    }

    fn ask_times(&mut self, index: usize, times: u32) {
        for _ in 0..times {
            self.ask(index);
        }
    }

    pub fn after(&self, nanos: u64) -> Instant {
        self.now + Duration::from_nanos(nanos)
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    /// Adds one request of a stream at `at` to those of its pattern.
    pub fn ask_at(&mut self, at: Instant, source: usize) {
        self.plan(at, Event::Arrive(source as u32));
    }

    /// Submits one request of a stream now, without a pump. Returns whether the gate accepted it.
    pub fn ask(&mut self, index: usize) -> bool {
        let source = &mut self.sources[index];
        let length = source.lengths[source.issued as usize % source.lengths.len()];
        let offset = match source.places {
            Places::Equal => 4096,
            Places::Contiguous => source.next_offset,
            Places::Random => source.region.0 + below(&mut self.rng, source.region.1) * 4096,
        };
        source.issued += 1;
        source.next_offset = source.next_offset.wrapping_add(u64::from(length));
        let arrival = Arrival {
            owner: source.owner,
            volume: source.volume,
            kind: source.kind,
            flags: source.flags,
            offset,
            length,
            token: index as u32,
            remote: source.remote,
        };
        let taken = self.gate.insert(self.now, &arrival).is_ok();
        source.accepted += u64::from(taken);
        taken
    }

    /// Repeats the offsets of random streams from the start.
    pub fn ask_for_the_same_places(&mut self) {
        self.rng = chance(7);
    }

    /// Stops all streams; queued requests are still served.
    pub fn stop(&mut self) {
        for source in &mut self.sources {
            source.on = false;
            source.pattern = Pattern::Manual;
        }
    }

    /// Fills the device and plans the next events.
    pub fn pump(&mut self) {
        let mut taken = device::Taken { stub: &mut self.device, log: &mut self.log };
        self.wake = self.gate.pump(self.now, &mut taken);
        for (at, slot) in self.device.start(self.now) {
            self.plan(at, Event::Finish(slot));
        }
    }

    /// Processes all events until `end`, inclusive.
    pub fn run_until(&mut self, end: Instant) {
        while let Some(next) = self.next_instant().filter(|next| *next <= end) {
            assert!(next >= self.now, "time never decreases");
            self.now = next;
            self.step();
        }
        self.now = self.now.max(end);
    }

    pub fn run_for(&mut self, nanos: u64) {
        self.run_until(self.after(nanos));
    }

    /// Time of the next event.
    pub fn next_instant(&self) -> Option<Instant> {
        let event = self.events.peek().map(|Reverse((at, _, _))| *at);
        event.into_iter().chain(self.wake).min()
    }

    fn step(&mut self) {
        let due = self.events.peek().is_some_and(|Reverse((at, _, _))| *at <= self.now);
        if due {
            let Reverse((_, _, event)) = self.events.pop().expect("just seen");
            self.happen(event);
        } else {
            self.wakes += 1;
        }
        self.pump();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Finish(slot) => self.finish(slot),
            Event::Arrive(index) => {
                let source = &self.sources[index as usize];
                if !source.on {
                    return;
                }
                let pattern = source.pattern;
                self.ask(index as usize);
                if let Pattern::Open(every) = pattern {
                    self.plan(self.after(every), Event::Arrive(index));
                }
            }
            Event::Switch(index) => self.switch(index as usize),
        }
    }

    fn switch(&mut self, index: usize) {
        let Pattern::OnOff { off, .. } = self.sources[index].pattern else { return };
        if self.sources[index].on {
            self.sources[index].on = false;
            self.plan(self.after(off), Event::Switch(index as u32));
        } else {
            self.begin(index);
        }
    }

    fn finish(&mut self, slot: Slot) {
        if self.device.stalled_until > self.now {
            return self.plan(self.device.stalled_until, Event::Finish(slot));
        }
        let logged = self.device.finish(slot);
        self.done.push((self.now, logged));
        let from = self.finished.len();
        self.gate.complete_all(self.now, slot, true, &mut self.finished);
        for place in from..self.finished.len() {
            let index = self.finished[place].token as usize;
            self.sources[index].finished += 1;
            let source = &self.sources[index];
            let again = matches!(source.pattern, Pattern::Closed(_) | Pattern::OnOff { .. });
            match source.pattern {
                Pattern::Think(nanos) if source.on => self.plan(self.after(nanos), Event::Arrive(index as u32)),
                _ if source.on && again => {
                    self.ask(index);
                }
                _ => {}
            }
        }
    }

    pub fn cancel(&mut self, scope: Scope) {
        let from = self.finished.len();
        self.gate.cancel(self.now, scope, &mut self.finished);
        self.count_finished(from);
    }

    pub fn remove_owner(&mut self, owner: OwnerId) {
        let from = self.finished.len();
        self.gate.remove_owner(self.now, owner, &mut self.finished).expect("a known owner");
        self.silence(from, |source| source.owner == owner);
    }

    /// Removes a volume, unless it was removed before.
    pub fn remove_volume(&mut self, owner: OwnerId, volume: VolumeId) {
        let from = self.finished.len();
        if self.gate.remove_volume(self.now, owner, volume, &mut self.finished).is_ok() {
            self.silence(from, |source| source.owner == owner && source.volume == volume);
        }
    }

    fn silence(&mut self, from: usize, gone: impl Fn(&Source) -> bool) {
        self.count_finished(from);
        for source in self.sources.iter_mut().filter(|source| gone(source)) {
            source.on = false;
            source.pattern = Pattern::Manual;
        }
    }

    fn count_finished(&mut self, from: usize) {
        for finished in &self.finished[from..] {
            self.sources[finished.token as usize].finished += 1;
        }
    }

    /// Sets a policy immediately.
    pub fn set(&mut self, owner: OwnerId, policy: Policy) {
        self.gate.set_owner(self.now, owner, policy).expect("the test's policy is valid");
        self.pump();
    }
}

impl Source {
    pub fn new(owner: OwnerId, volume: VolumeId, pattern: Pattern) -> Self {
        Source {
            owner,
            volume,
            pattern,
            places: Places::Random,
            kind: Kind::Read,
            flags: Flags::NONE,
            lengths: vec![8192],
            remote: None,
            on: false,
            issued: 0,
            accepted: 0,
            finished: 0,
            next_offset: 0,
            region: (0, 1 << 24),
        }
    }

    pub fn lengths(mut self, lengths: &[u32]) -> Self {
        self.lengths = lengths.to_vec();
        self
    }

    pub fn places(mut self, places: Places) -> Self {
        self.places = places;
        self
    }

    pub fn starting_at(mut self, offset: u64) -> Self {
        self.next_offset = offset;
        self
    }

    /// Sequential requests from this byte on.
    pub fn in_order_from(mut self, start: u64) -> Self {
        (self.places, self.next_offset) = (Places::Contiguous, start);
        self
    }

    /// Random requests in this number of pages from this byte on.
    pub fn within(mut self, start: u64, pages: u64) -> Self {
        (self.places, self.region) = (Places::Random, (start, pages));
        self
    }

    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    pub fn remote(mut self, rho: u32, delta: u32) -> Self {
        let bytes = |requests: u32| u64::from(requests) * 8192;
        let (rho_bytes, delta_bytes) = (bytes(rho), bytes(delta));
        self.remote = Some(RemoteService {
            rho,
            delta,
            recent: delta.div_ceil(2),
            rho_bytes,
            delta_bytes,
            servers: (delta.min(1 << 20) + 1).next_power_of_two(),
            outstanding: delta % 4,
        });
        self
    }
}
