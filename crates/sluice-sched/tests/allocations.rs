//! In steady state a request needs no allocation with the product's schedulers; an allocator counts them.
//!
//! This is the only test of its binary, so no other code allocates during it.

mod common;

use std::alloc::System;
use std::collections::VecDeque;

use common::{Subject, subjects};
use sluice_sched::gate::{Slot, Submission};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const VMS: u32 = 50;
const QUEUED: u32 = 8;
const DEPTH: u32 = 8;

/// Keeps requests in flight and completes the oldest one on demand.
struct Oldest {
    flight: VecDeque<Slot>,
    left: Vec<u32>,
}

impl Device for Oldest {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.flight.push_back(submission.slot);
        self.left.push(submission.token);
    }
}

/// A gate under full load: VMs replace every request that was dispatched.
struct Load {
    gate: Gate,
    device: Oldest,
    vms: Vec<(OwnerId, VolumeId)>,
    now: u64,
    random: u64,
}

impl Load {
    fn new(subject: &Subject, policy: impl Fn(u32) -> Policy) -> Self {
        let info = DeviceInfo { depth: DEPTH, rotational: true, ..DeviceInfo::default() };
        let gate = Gate::new(subject.build(&info), GateSettings { depth: DEPTH, ..GateSettings::default() });
        let device = Oldest { flight: VecDeque::with_capacity(64), left: Vec::with_capacity(64) };
        let mut load = Load { gate, device, vms: Vec::new(), now: 1, random: 1 };
        for index in 0..VMS {
            let owner = load.gate.add_owner(Instant::ZERO, policy(index)).expect("a valid policy");
            let volume = load.gate.add_volume(Instant::ZERO, owner, Policy::default()).expect("the first");
            load.vms.push((owner, volume));
        }
        (0..VMS * QUEUED).for_each(|index| load.ask(index % VMS));
        load
    }

    fn ask(&mut self, index: u32) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (owner, volume) = self.vms[index as usize];
        let kind = if self.random >> 62 == 0 { Kind::Write } else { Kind::Read };
        let flags = if self.random >> 61 & 1 == 0 { Flags::SYNC } else { Flags::NONE };
        let offset = (self.random >> 30) % (1 << 24) * 4096;
        let arrival = Arrival { owner, volume, kind, flags, offset, length: 8192, token: index, remote: None };
        self.gate.insert(Instant::from_nanos(self.now), &arrival).expect("the queue has room");
    }

    fn serve(&mut self, requests: u32) {
        let mut left = requests;
        while left > 0 {
            self.now += 50_000;
            if let Some(slot) = self.device.flight.pop_front() {
                let _ = self.gate.complete(Instant::from_nanos(self.now), slot, true);
                left -= 1;
            }
            let wake = self.gate.pump(Instant::from_nanos(self.now), &mut self.device);
            if self.device.flight.is_empty()
                && let Some(wake) = wake
            {
                self.now = wake.as_nanos();
            }
            while let Some(index) = self.device.left.pop() {
                self.ask(index);
            }
        }
    }
}

/// No limit binds.
fn unlimited(index: u32) -> Policy {
    Policy::weighted(1 + index).reserving(u64::from(100 + index)).limited(100_000)
}

/// All VMs want more than their limits, which are a quarter of the device's capacity in requests and in bytes.
fn held(index: u32) -> Policy {
    let rate = |iops: u64| (Some(Iops::per_second(iops)), Some(ByteRate::per_second(iops * 8192)));
    let ((iops, bytes), (least, least_bytes)) = (rate(100), rate(20));
    Policy {
        limit: Limit { iops, bytes },
        reservation: Reservation { iops: least, bytes: least_bytes },
        burst: Some(1 + index % 3),
        ..Policy::weighted(1 + index)
    }
}

/// Allocations per round of requests, after everything that grows has reached its size.
fn allocations(load: &mut Load) -> Vec<usize> {
    load.serve(20_000);
    // The test's thread is not the only one, so the best round counts.
    let round = |_| {
        let region = Region::new(ALLOCATOR);
        load.serve(5_000);
        let change = region.change();
        change.allocations + change.reallocations
    };
    (0..5).map(round).collect()
}

#[test]
fn a_request_in_steady_state_costs_no_allocation() {
    let mut found = Vec::new();
    let mut limiting = 0;
    for subject in subjects().into_iter().filter(|subject| ["noop", "mclock"].contains(&subject.descriptor.name)) {
        for limited in [false, true] {
            let mut load = Load::new(&subject, if limited { held } else { unlimited });
            let counts = allocations(&mut load);
            println!("{}, limited {limited}: {counts:?} allocations in rounds of 5000 requests", subject.label());
            if counts.iter().min() != Some(&0) {
                found.push((subject.label(), limited, counts));
            }
            if limited && subject.descriptor.enforces_with(policy::Field::Limit, &subject.params) {
                let waited = |(owner, _): &(OwnerId, VolumeId)| {
                    load.gate.stats(*owner).expect("a present owner").waited_for(Wait::OwnLimit)
                };
                let waited = load.vms.iter().map(waited);
                assert!(waited.clone().all(|waited| waited > 100), "{}: limits hold requests back", subject.label());
                limiting += 1;
            }
        }
    }
    assert!(found.is_empty(), "{found:?}");
    assert!(limiting > 0, "no scheduler limits");
}
