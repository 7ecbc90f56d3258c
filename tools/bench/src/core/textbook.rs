//! mClock as a textbook has it: a baseline that is easy to build again.
//!
//! Every VM has a queue. When a request becomes the head of its queue, it gets three start tags, each the previous one plus cost
//! divided by rate, but not before its arrival: \[mclock\] eq. (3). Three binary heaps hold the VMs with requests: all by
//! reservation tag, those that their limit lets pass by share tag, and the others by limit tag. A dispatch takes the VM with the
//! smallest reservation tag if that is due, and otherwise the one with the smallest share tag: \[mclock\] algorithm 1. Service by
//! weight does not count for the reservation. A VM that becomes active starts at the smallest share tag of the others.
//!
//! It has what the benchmark needs and no more: no bursts, no limits or reservations in bytes, no volumes, no idle credit, no
//! debt caps, no changes of policies. Ties are broken by arrival.

use std::collections::VecDeque;

use sluice_sched::tag::{Spacing, TAGS_PER_NANO};
use sluice_sched::{
    Change, ChangeError, Completion, Decision, Instant, OwnerId, Phase, Policy, Request, Scheduler, Scope, State, Wait,
};

/// Position of a VM that is in no heap.
const ABSENT: u32 = u32::MAX;

/// VMs by tag, then by arrival, in a binary heap that knows the position of each.
#[derive(Default)]
struct Heap {
    /// Tag, number of the head, and VM.
    entries: Vec<(u64, u64, u32)>,
    positions: Vec<u32>,
}

impl Heap {
    fn first(&self) -> Option<(u64, u32)> {
        self.entries.first().map(|(tag, _, vm)| (*tag, *vm))
    }

    /// Inserts a VM, or gives it another tag.
    fn set(&mut self, vm: u32, tag: u64, head: u64) {
        if vm as usize >= self.positions.len() {
            self.positions.resize(vm as usize + 1, ABSENT);
        }
        let mut place = self.positions[vm as usize] as usize;
        if place == ABSENT as usize {
            place = self.entries.len();
            self.entries.push((tag, head, vm));
        }
        self.entries[place] = (tag, head, vm);
        let place = self.rise(place);
        self.sink(place);
    }

    fn remove(&mut self, vm: u32) {
        let place = self.positions.get(vm as usize).copied().unwrap_or(ABSENT) as usize;
        if place == ABSENT as usize {
            return;
        }
        self.entries.swap_remove(place);
        self.positions[vm as usize] = ABSENT;
        if place < self.entries.len() {
            let place = self.rise(place);
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) -> usize {
        let entry = self.entries[place];
        while place > 0 && entry < self.entries[(place - 1) / 2] {
            self.put(place, self.entries[(place - 1) / 2]);
            place = (place - 1) / 2;
        }
        self.put(place, entry);
        place
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.entries[place];
        loop {
            let mut child = 2 * place + 1;
            if child + 1 < self.entries.len() && self.entries[child + 1] < self.entries[child] {
                child += 1;
            }
            if child >= self.entries.len() || entry <= self.entries[child] {
                break;
            }
            self.put(place, self.entries[child]);
            place = child;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (u64, u64, u32)) {
        self.entries[place] = entry;
        self.positions[entry.2 as usize] = place as u32;
    }
}

/// A VM: its rates, the tags of its head, and its queue. Tags are in 1/16 ns, share tags in units of virtual time.
#[derive(Default)]
struct Vm {
    reservation: Spacing,
    limit: Spacing,
    weight: Spacing,
    reserved: u64,
    limited: u64,
    share: u64,
    queue: VecDeque<Request>,
}

/// The scheduler.
#[derive(Default)]
pub(super) struct Textbook {
    vms: Vec<Vm>,
    by_reservation: Heap,
    by_share: Heap,
    by_limit: Heap,
    queued: u64,
    in_flight: u64,
}

fn tag(now: Instant) -> u64 {
    now.as_nanos() * TAGS_PER_NANO
}

impl Textbook {
    fn add(&mut self, owner: OwnerId, policy: &Policy) {
        if owner.index() >= self.vms.len() {
            self.vms.resize_with(owner.index() + 1, Vm::default);
        }
        self.vms[owner.index()] = Vm {
            reservation: Spacing::per_cost(policy.reservation.iops),
            limit: Spacing::per_cost(policy.limit.iops),
            weight: Spacing::of_weight(policy.effective_weight()),
            ..Vm::default()
        };
    }

    /// Puts a VM into the heaps to which its head belongs.
    fn place(&mut self, index: u32, now: u64) {
        let vm = &self.vms[index as usize];
        let Some(head) = vm.queue.front() else {
            return [&mut self.by_reservation, &mut self.by_share, &mut self.by_limit]
                .into_iter()
                .for_each(|heap| heap.remove(index));
        };
        let head = head.id.0;
        if !vm.reservation.is_none() {
            self.by_reservation.set(index, vm.reserved, head);
        }
        if vm.limited > now {
            self.by_share.remove(index);
            self.by_limit.set(index, vm.limited, head);
        } else if !vm.weight.is_none() {
            self.by_limit.remove(index);
            self.by_share.set(index, vm.share, head);
        }
    }

    /// Lets VMs pass whose limit no longer holds them.
    fn release(&mut self, now: u64) {
        while let Some((limited, vm)) = self.by_limit.first()
            && limited <= now
        {
            self.place(vm, now);
        }
    }

    fn take(&mut self, index: u32, phase: Phase, now: u64) -> Request {
        let vm = &mut self.vms[index as usize];
        let mut request = vm.queue.pop_front().expect("a VM in a heap has requests");
        let cost = u64::from(request.cost.raw());
        request.phase = phase;
        request.wait = if vm.limited > tag(request.arrival) { Wait::OwnLimit } else { Wait::None };
        let floor = vm.queue.front().map_or(0, |next| tag(next.arrival));
        if phase == Phase::Reservation {
            vm.reserved += vm.reservation.of(cost);
        }
        vm.reserved = vm.reserved.max(floor);
        vm.limited = (vm.limited + vm.limit.of(cost)).max(floor);
        vm.share += vm.weight.of(cost);
        self.place(index, now);
        self.queued -= 1;
        self.in_flight += 1;
        request
    }
}

impl Scheduler for Textbook {
    fn insert(&mut self, now: Instant, request: Request) {
        let least = self.by_share.first().map_or(0, |(share, _)| share);
        let vm = &mut self.vms[request.owner.index()];
        vm.queue.push_back(request);
        self.queued += 1;
        if vm.queue.len() > 1 {
            return;
        }
        let arrival = tag(request.arrival);
        vm.reserved = vm.reserved.max(arrival);
        vm.limited = vm.limited.max(arrival);
        vm.share = vm.share.max(least);
        self.place(request.owner.0, tag(now));
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        false
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.queued == 0 {
            return Decision::Idle;
        }
        let at = tag(now);
        self.release(at);
        let due = self.by_reservation.first();
        if let Some((reserved, vm)) = due
            && reserved <= at
        {
            return Decision::Dispatch(self.take(vm, Phase::Reservation, at));
        }
        if let Some((_, vm)) = self.by_share.first() {
            return Decision::Dispatch(self.take(vm, Phase::Weight, at));
        }
        let wake = due.into_iter().chain(self.by_limit.first()).map(|(tag, _)| tag).min();
        Decision::WaitUntil(Instant::from_nanos(wake.expect("a VM with requests is in a heap").div_ceil(TAGS_PER_NANO)))
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
    }

    fn configure(&mut self, _now: Instant, change: Change) -> Result<(), ChangeError> {
        if let Change::AddOwner { owner, policy } = change {
            self.add(owner, &policy);
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let owner = scope.owner();
        let queue = &mut self.vms[owner.index()].queue;
        let before = queue.len();
        removed.extend(queue.iter().filter(|request| scope.contains(request)));
        queue.retain(|request| !scope.contains(request));
        self.queued -= (before - queue.len()) as u64;
        self.place(owner.0, tag(now));
    }

    fn inspect(&self, _now: Instant) -> State {
        State { queued: self.queued, in_flight: self.in_flight, ..State::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_tag_is_first_after_any_change() {
        let (mut heap, mut model) = (Heap::default(), std::collections::BTreeMap::new());
        let mut random = 1u64;
        for step in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (vm, tag) = ((random >> 33) as u32 % 200, random >> 8 & 0xff);
            if random >> 62 == 0 {
                heap.remove(vm);
                model.remove(&vm);
            } else {
                heap.set(vm, tag, step);
                model.insert(vm, (tag, step));
            }
            let first = model.iter().min_by_key(|(_, key)| **key).map(|(vm, key)| (key.0, *vm));
            assert_eq!(heap.first(), first, "step {step}");
        }
        assert!(model.len() > 100);
    }
}
