//! Guests above a host: with any scheduler at either level no request is lost, and the ring between them is bounded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::common::device::Taken;
use crate::common::*;
use sluice_sched::gate::{GateSettings, Outcome, Slot};
use sluice_sched::params::Value;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;
use sluice_sim::stack::{Ended, Guest, Ring, Stack, StackError};

/// One thread of a guest.
#[derive(Debug, Clone)]
struct Thread {
    vm: OwnerId,
    id: OwnerId,
    places: Places,
    kind: Kind,
    lengths: Vec<u32>,
    asked: u64,
    finished: u64,
    next: u64,
}

/// A stack with its device and its threads.
struct StackWorld {
    stack: Stack,
    device: Stub,
    now: Instant,
    log: Vec<Record>,
    ended: Vec<Ended>,
    threads: Vec<Thread>,
    stopped: bool,
    wake: Option<Instant>,
    /// Completion times of the device's slots.
    ends: BinaryHeap<Reverse<(Instant, u64, Slot)>>,
    planned: u64,
    random: rand_pcg::Pcg32,
    /// Maximum number of requests in any ring.
    ring_max: u64,
}

impl StackWorld {
    fn new(host: &Subject, depth: u32, device: Stub) -> Self {
        let info = DeviceInfo { depth, ..DeviceInfo::default() };
        let settings = GateSettings { depth, ..GateSettings::default() };
        StackWorld {
            stack: Stack::new(Gate::new(host.build(&info), settings)),
            device,
            now: Instant::ZERO,
            log: Vec::new(),
            ended: Vec::new(),
            threads: Vec::new(),
            stopped: false,
            wake: None,
            ends: BinaryHeap::new(),
            planned: 0,
            random: chance(3),
            ring_max: 0,
        }
    }

    fn vm(&mut self, policy: Policy, guest: &Subject, ring: Ring) -> OwnerId {
        let info = DeviceInfo { depth: ring.slots, ..DeviceInfo::default() };
        let merging = guest.descriptor.merging;
        let guest = Guest { scheduler: guest.build(&info), ring, merging, queue_max: 1000 };
        self.stack.add_vm(self.now, policy, guest).expect("the test's VM is valid")
    }

    fn thread(&mut self, vm: OwnerId, outstanding: u32, places: Places, kind: Kind, lengths: &[u32]) -> usize {
        let id = self.stack.add_thread(self.now, vm, Policy::default()).expect("a known VM");
        let next = (u64::from(vm.0) << 34) + (u64::from(id.0) << 30);
        let lengths = lengths.to_vec();
        self.threads.push(Thread { vm, id, places, kind, lengths, asked: 0, finished: 0, next });
        let index = self.threads.len() - 1;
        (0..outstanding).for_each(|_| self.ask(index));
        self.pump();
        index
    }

    fn ask(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let length = thread.lengths[thread.asked as usize % thread.lengths.len()];
        let offset = match thread.places {
            Places::Random => below(&mut self.random, 1 << 20) * 4096,
            Places::Equal | Places::Contiguous => thread.next,
        };
        thread.next += if thread.places == Places::Contiguous { u64::from(length) } else { 0 };
        let arrival = Arrival {
            owner: thread.id,
            volume: VolumeId(0),
            kind: thread.kind,
            flags: Flags::SYNC,
            offset,
            length,
            token: index as u32,
            remote: None,
        };
        if self.stack.insert(self.now, thread.vm, &arrival).is_ok() {
            thread.asked += 1;
        }
    }

    fn pump(&mut self) {
        self.wake = self.stack.pump(self.now, &mut Taken { stub: &mut self.device, log: &mut self.log });
        for (at, slot) in self.device.start(self.now) {
            self.planned += 1;
            self.ends.push(Reverse((at, self.planned, slot)));
        }
        for thread in &self.threads {
            self.ring_max = self.ring_max.max(self.stack.guest(thread.vm).map_or(0, Gate::in_flight));
        }
    }

    fn run_until(&mut self, end: Instant) {
        loop {
            let event = self.ends.peek().map(|Reverse((at, _, _))| *at);
            let Some(next) = event.into_iter().chain(self.wake).min().filter(|next| *next <= end) else { break };
            assert!(next >= self.now, "time never decreases");
            self.now = next;
            if event == Some(next)
                && let Some(Reverse((_, _, slot))) = self.ends.pop()
            {
                let _ = self.device.finish(slot);
                self.stack.complete(self.now, slot, true, &mut self.ended);
            }
            self.answer();
            self.pump();
        }
        self.now = self.now.max(end);
    }

    /// Threads submit again after their requests have completed.
    fn answer(&mut self) {
        let known: u64 = self.threads.iter().map(|thread| thread.finished).sum();
        for index in known as usize..self.ended.len() {
            let Ended { vm, finished } = self.ended[index];
            let thread = &mut self.threads[finished.token as usize];
            assert_eq!(thread.vm, vm, "it completes in its own guest");
            thread.finished += 1;
            if !self.stopped && finished.outcome == Outcome::Done && thread.asked - thread.finished < 64 {
                self.ask(finished.token as usize);
            }
        }
    }

    fn remove(&mut self, vm: OwnerId) {
        self.stack.remove_vm(self.now, vm, &mut self.ended).expect("a known VM");
        self.answer();
        self.pump();
    }

    /// Stops all threads and completes all requests.
    fn drain(&mut self) {
        self.stopped = true;
        self.run_until(self.now + Duration::from_secs(1000));
        assert_eq!(
            (self.stack.host().queued(), self.stack.host().in_flight()),
            (0, 0),
            "the host completes all requests"
        );
        for thread in &self.threads {
            assert_eq!(thread.asked, thread.finished, "each request completes once: {thread:?}");
            let guest = self.stack.guest(thread.vm);
            assert!(
                guest.is_none_or(|guest| guest.queued() + guest.in_flight() == 0),
                "the guests complete all requests"
            );
        }
        assert_eq!(self.wake, None, "no timer without queued requests");
    }
}

/// Random guests of one scheduler above a host of another; a VM is added and one removed during the run.
fn random_run(guest: &Subject, host: &Subject, seed: u64) -> StackWorld {
    let mut rng = chance(seed);
    let depth = pick(&mut rng, &[1, 4, 32]);
    let order = pick(&mut rng, &[Order::Fifo, Order::Random]);
    let device = Stub::new(depth as usize, order, Service::Between(MILLI / 4, 3 * MILLI));
    let mut world = StackWorld::new(host, depth, device);
    let mut vms = Vec::new();
    for round in 0..3 {
        for _ in 0..=below(&mut rng, 2) {
            let slots = pick(&mut rng, &[1, 4, 32]);
            let vm = world.vm(Policy::weighted(pick(&mut rng, &[1, 10])), guest, Ring { slots, ..Ring::XEN });
            vms.push(vm);
            for _ in 0..=below(&mut rng, 3) {
                let places = pick(&mut rng, &[Places::Random, Places::Contiguous, Places::Equal]);
                let kind = pick(&mut rng, &[Kind::Read, Kind::Write, Kind::Flush]);
                let length = pick(&mut rng, &[512, 4096, 200_000]);
                let length = if kind == Kind::Flush { 0 } else { length };
                world.thread(vm, pick(&mut rng, &[1, 5, 20]), places, kind, &[length]);
            }
        }
        world.run_until(millis(150 * (round + 1)));
        if round == 1 {
            world.remove(vms.remove(0));
        }
    }
    world.drain();
    world
}

// rule: two-tier.model
#[test]
fn any_two_schedulers_complete_each_request_once() {
    for (first, guest) in subjects().iter().enumerate() {
        for (second, host) in subjects().iter().enumerate() {
            let what = format!("{} above {}", guest.label(), host.label());
            let seed = (first * 100 + second) as u64;
            let world = random_run(guest, host, seed);
            assert!(world.log.len() > 40, "{what}: {}", world.log.len());
            assert!(world.ring_max <= 32, "{what}: {} in a ring", world.ring_max);
            let largest = world.log.iter().map(|record| record.request.length).max();
            assert!(largest <= Some(44 * 1024), "{what}: {largest:?} B through the ring");
            assert!(world.log == random_run(guest, host, seed).log, "{what}: the run repeats");
        }
    }
}

// rule: two-tier.model
#[test]
fn a_ring_holds_exactly_its_slots() {
    for (ring, in_ring, largest) in [(Ring::XEN, 32, 44 * 1024), (Ring::VIRTIO, 256, 200_000)] {
        let mut world = StackWorld::new(&Subject::of("noop"), 1, Stub::serial(MILLI));
        let vm = world.vm(Policy::default(), &Subject::of("noop"), ring);
        world.thread(vm, 600, Places::Random, Kind::Read, &[200_000]);
        assert_eq!(world.stack.guest(vm).map(Gate::in_flight), Some(in_ring), "{ring:?}");
        // One request is in flight, and the others of the ring are queued at the host.
        assert_eq!(world.stack.host().queued(), in_ring - 1);
        world.run_until(millis(300));
        let seen = world.log.iter().map(|record| record.request.length).max();
        assert_eq!((world.ring_max, seen), (in_ring, Some(largest)), "{ring:?}");
        world.drain();
    }
}

// rule: two-tier.owners
#[test]
fn the_host_sees_one_owner_for_each_vm() {
    // One thread of one VM against eight of the other: the host's weights count VMs.
    let mut world = StackWorld::new(&product(), 8, Stub::serial(MILLI));
    let vms = [100, 300].map(|weight| world.vm(Policy::weighted(weight), &Subject::of("noop"), Ring::XEN));
    for _ in 0..8 {
        world.thread(vms[0], 8, Places::Random, Kind::Read, &[8192]);
    }
    world.thread(vms[1], 32, Places::Random, Kind::Read, &[8192]);
    world.run_until(secs(8));
    let of = |vm: OwnerId| world.log.iter().filter(|record| record.request.owner == vm).count() as f64;
    assert!((of(vms[1]) / of(vms[0]) - 3.0).abs() <= 0.05, "{} and {}", of(vms[0]), of(vms[1]));
}

#[test]
fn a_guest_orders_requests_that_are_not_in_the_ring() {
    // Weights in a guest matter to its own scheduler only, and only if its ring is smaller than its backlog.
    let shares = |slots: u32| {
        let mut world = StackWorld::new(&Subject::of("noop"), 1, Stub::serial(MILLI));
        let guest = Subject::of("sfqd").with("depth", Value::Integer(0));
        let vm = world.vm(Policy::default(), &guest, Ring { slots, ..Ring::XEN });
        let light = world.thread(vm, 32, Places::Random, Kind::Read, &[8192]);
        let heavy = world.stack.add_thread(world.now, vm, Policy::weighted(900)).expect("a known VM");
        let copy = Thread { id: heavy, ..world.threads[light].clone() };
        world.threads.push(Thread { asked: 0, finished: 0, ..copy });
        (0..32).for_each(|_| world.ask(light + 1));
        world.pump();
        world.run_until(secs(5));
        world.threads[light + 1].finished as f64 / world.threads[light].finished as f64
    };
    assert!((shares(4) - 9.0).abs() <= 0.5, "{}", shares(4));
    assert!((shares(256) - 1.0).abs() <= 0.1, "all requests fit into the ring: {}", shares(256));
}

// rule: two-tier.host-matters-little
#[test]
fn with_one_vm_the_host_scheduler_has_little_effect() {
    // Eight threads with one random read outstanding each, as published; the host sees one owner.
    let rate = |host: &Subject| {
        let mut world = StackWorld::new(host, 8, Stub::serial(4 * MILLI));
        let vm = world.vm(Policy::default(), &Subject::of("noop"), Ring::XEN);
        for _ in 0..8 {
            world.thread(vm, 1, Places::Random, Kind::Read, &[4096]);
        }
        world.run_until(secs(20));
        world.log.len() as f64 / 20.0
    };
    for host in subjects() {
        assert!((rate(&host) - 250.0).abs() <= 2.5, "{}: {}", host.label(), rate(&host));
    }
}

// rule: two-tier.guest-matters
#[test]
fn a_guest_that_idles_for_its_threads_keeps_the_ring_nearly_empty() {
    // Eight threads with one read outstanding each, on a device that serves eight concurrently.
    let served = |guest: &Subject| {
        let mut world = StackWorld::new(&Subject::of("noop"), 8, Stub::parallel(8, 4 * MILLI));
        let info = DeviceInfo { depth: 32, rotational: true, ..DeviceInfo::default() };
        let guest = Guest { scheduler: guest.build(&info), ring: Ring::XEN, merging: false, queue_max: 100 };
        let vm = world.stack.add_vm(world.now, Policy::default(), guest).expect("a valid VM");
        for _ in 0..8 {
            world.thread(vm, 1, Places::Contiguous, Kind::Read, &[4096]);
        }
        world.run_until(secs(10));
        world.log.len()
    };
    let (noop, cfq) = (served(&Subject::of("noop")), served(&Subject::of("cfq").text("mode", "2.6.32")));
    println!("served in 10 s: noop {noop}, cfq {cfq}");
    assert!(noop >= 19_900, "all eight concurrently: {noop}");
    assert!(cfq * 3 <= noop, "one at a time, with idling after each: {cfq} of {noop}");
}

#[test]
fn a_removed_vm_cancels_its_queue_and_completes_its_flight() {
    let mut world = StackWorld::new(&Subject::of("noop"), 2, Stub::parallel(2, MILLI));
    let vm = world.vm(Policy::default(), &Subject::of("noop"), Ring::XEN);
    world.thread(vm, 40, Places::Random, Kind::Read, &[4096]);
    world.remove(vm);
    let cancelled = world.ended.iter().filter(|ended| ended.finished.outcome == Outcome::Cancelled).count();
    assert_eq!((world.ended.len(), cancelled), (38, 38), "8 wait in the guest, 30 at the host, 2 are in flight");
    assert!(world.stack.guest(vm).is_none(), "the VM is removed");
    world.drain();
    assert_eq!(world.ended.len(), 40);
}

#[test]
fn a_ring_larger_than_the_host_queue_is_rejected() {
    let settings = GateSettings { queue_max: 100, transfer_max: Bytes::kib(16), ..GateSettings::default() };
    let info = DeviceInfo::default();
    let mut stack = Stack::new(Gate::new(Subject::of("noop").build(&info), settings));
    let guest = |ring| Guest { scheduler: Subject::of("noop").build(&info), ring, merging: false, queue_max: 8 };
    let refused = stack.add_vm(Instant::ZERO, Policy::default(), guest(Ring::VIRTIO));
    assert_eq!(refused, Err(StackError::RingTooLarge { slots: 256, pieces: 256 * 64, queue_max: 100 }));
    assert!(stack.add_vm(Instant::ZERO, Policy::default(), guest(Ring::XEN)).is_ok(), "96 of 100");
}

/// Bytes per second that one VM reads, 8 at a time, from a device that takes 1 ms per request.
fn bytes_through(ring: Ring, places: Places, length: u32) -> f64 {
    let mut world = StackWorld::new(&Subject::of("noop"), 1, Stub::serial(MILLI));
    let scheduler = Subject::of("noop").build(&DeviceInfo::default());
    let guest = Guest { scheduler, ring, merging: false, queue_max: 100 };
    let vm = world.stack.add_vm(world.now, Policy::default(), guest).expect("a valid VM");
    world.thread(vm, 8, places, Kind::Read, &[length]);
    world.run_until(secs(4));
    world.log.iter().map(|record| f64::from(record.request.length)).sum::<f64>() / 4.0
}

// rule: two-tier.request-cost
#[test]
fn the_ring_slows_down_large_requests_only() {
    let [classic, large] = [Ring::XEN, Ring::VIRTIO].map(|ring| bytes_through(ring, Places::Contiguous, 200_000));
    // 200,000 bytes are split into five pieces: four of 44 KiB and one of 19,776 bytes.
    assert!((large / classic - 5.0).abs() <= 0.05, "{large} and {classic} B/s in order");
    let [classic, large] = [Ring::XEN, Ring::VIRTIO].map(|ring| bytes_through(ring, Places::Random, 4096));
    assert!((large / classic - 1.0).abs() <= 0.01, "{large} and {classic} B/s anywhere");
}

/// Reads per second of two VMs with two threads each, one sequential read outstanding each.
fn four_readers(guest: &Subject, host: &Subject, depth: u32, device: Stub) -> f64 {
    let info = DeviceInfo { depth, rotational: true, ..DeviceInfo::default() };
    let settings = GateSettings { depth, ..GateSettings::default() };
    let mut world = StackWorld::new(host, depth, device);
    world.stack = Stack::new(Gate::new(host.build(&info), settings));
    for _ in 0..2 {
        let scheduler = guest.build(&DeviceInfo { depth: Ring::XEN.slots, ..info });
        let guest = Guest { scheduler, ring: Ring::XEN, merging: false, queue_max: 100 };
        let vm = world.stack.add_vm(world.now, Policy::default(), guest).expect("a valid VM");
        (0..2).for_each(|_| {
            world.thread(vm, 1, Places::Contiguous, Kind::Read, &[4096]);
        });
    }
    world.run_until(secs(10));
    world.log.len() as f64 / 10.0
}

/// With one scheduler nowhere, in the guests, at the host, and at both.
fn at_each_level(elevator: &Subject, depth: u32, device: impl Fn() -> Stub) -> [f64; 4] {
    let noop = Subject::of("noop");
    let pairs = [(&noop, &noop), (elevator, &noop), (&noop, elevator), (elevator, elevator)];
    pairs.map(|(guest, host)| four_readers(guest, host, depth, device()))
}

// rule: anticipatory.nested
#[test]
fn anticipation_in_guests_ignores_other_vms() {
    // For a guest the next block comes after the host has served the other VM: the guest only idles before a long seek.
    let disk = || Stub::new(1, Order::Fifo, Service::Disk);
    let [none, inside, outside, both] = at_each_level(&Subject::of("anticipatory"), 1, disk);
    println!("nowhere {none}, in the guests {inside}, at the host {outside}, both {both}");
    assert!(inside <= none, "it only loses time: {inside} and {none}");
    assert!(outside >= 10.0 * inside, "the host sees all readers: {outside} and {inside}");
    assert!(both <= outside, "anticipation in guests adds nothing: {both} and {outside}");
}

// rule: cfq.weak-nested
#[test]
fn idling_in_guests_adds_to_that_of_the_host() {
    // Eight concurrently, 4 ms each. A guest that idles has the read of one of its two threads in its ring at a time,
    // and a host that idles one VM's reads in flight.
    let array = || Stub::parallel(8, 4 * MILLI);
    let [none, inside, outside, both] = at_each_level(&Subject::of("cfq").text("mode", "2.6.32"), 8, array);
    println!("nowhere {none}, in the guests {inside}, at the host {outside}, both {both}");
    assert!(
        inside <= 0.55 * none && outside <= 0.55 * none,
        "each level halves the rate: {inside} and {outside} of {none}"
    );
    assert!(
        both <= 0.55 * inside && both <= 0.55 * outside,
        "both levels halve it twice: {both}, of {inside} and {outside}"
    );
}
