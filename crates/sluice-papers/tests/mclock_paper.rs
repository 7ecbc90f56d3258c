//! mClock as published, rule by rule: the tags of a request, and which request is dispatched when.

use std::time::Duration;

use crate::common::*;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, Decision, DeviceInfo, OwnerState, Scheduler};
use sluice_sched::*;

const A: OwnerId = OwnerId(0);
const B: OwnerId = OwnerId(1);

/// The scheduler with two VMs.
struct Desk {
    scheduler: Box<dyn Scheduler>,
    next: u64,
}

impl Desk {
    fn new(subject: &Subject, a: Policy, b: Policy) -> Self {
        let mut scheduler = subject.build(&DeviceInfo::default());
        for (owner, policy) in [(A, a), (B, b)] {
            scheduler.configure(Instant::ZERO, Change::AddOwner { owner, policy }).expect("a valid policy");
        }
        Desk { scheduler, next: 0 }
    }

    fn request(&mut self, now: Instant, owner: OwnerId) -> Request {
        self.next += 1;
        Request {
            id: RequestId(self.next - 1),
            arrival: now,
            offset: 0,
            length: 0,
            cost: Cost::ONE,
            owner,
            token: 0,
            rho: 0,
            delta: 0,
            volume: VolumeId(0),
            kind: Kind::Read,
            flags: Flags::NONE,
            phase: Phase::None,
            wait: Wait::None,
        }
    }

    /// `times` requests of cost 1 arrive.
    fn ask(&mut self, now: Instant, owner: OwnerId, times: u32) {
        for _ in 0..times {
            let request = self.request(now, owner);
            self.scheduler.insert(now, request);
        }
    }

    /// The dispatched request and its phase, or until when the scheduler waits.
    fn look(&mut self, now: Instant) -> Result<(u64, Phase), Instant> {
        match self.scheduler.dispatch(now) {
            Decision::Dispatch(request) => Ok((request.id.0, request.phase)),
            Decision::WaitUntil(until) => Err(until),
            other => panic!("{other:?} at {now:?}"),
        }
    }

    fn tags(&self, now: Instant, owner: OwnerId) -> OwnerState {
        self.scheduler.inspect(now).owners[&owner.0].clone()
    }

    fn complete(&mut self, now: Instant, owner: OwnerId) {
        let request = self.request(now, owner);
        self.scheduler.complete(now, &Completion { request, dispatched: now, ok: true });
    }
}

fn of(weight: u32) -> Policy {
    Policy { idle_credit: 0, ..Policy::weighted(weight) }
}

/// In 1/16 ns, the unit of share tags of this mode.
fn tag(at: Instant) -> Option<u64> {
    Some(at.as_nanos() * 16)
}

// rule: mclock.tag-reservation, mclock.tag-limit, mclock.tag-share, mclock.parameters, mclock.delayed-tagging
#[test]
fn tags_follow_the_previous_ones_or_the_arrival() {
    let policy = Policy { idle_credit: 3, ..Policy::weighted(100).reserving(10).limited(20) };
    let mut desk = Desk::new(&paper(), policy, of(1));
    let at = secs(10);
    desk.ask(at, A, 2);
    let tags = desk.tags(at, A);
    assert_eq!((tags.reservation_due_ns, tags.limit_passes_ns), (Some(at.as_nanos()), Some(at.as_nanos())));
    assert_eq!(tags.share_tag, tag(secs(10) + Duration::ZERO).map(|now| now - 3 * 160_000_000), "t - sigma/w");
    assert_eq!(desk.look(at), Ok((0, Phase::Reservation)));
    // The second one follows the first: 1/r, 1/l, 1/w later.
    let tags = desk.tags(at, A);
    assert_eq!(tags.reservation_due_ns, Some(10_100 * MILLI));
    assert_eq!(tags.limit_passes_ns, Some(10_050 * MILLI));
    assert_eq!(tags.share_tag, tag(secs(10)).map(|now| now - 2 * 160_000_000), "(t - sigma/w) + 1/w");
    // A request that arrives long afterwards gets its arrival for R and L, and that less the credit for P.
    assert_eq!(desk.look(millis(10_100)), Ok((1, Phase::Reservation)));
    desk.ask(secs(60), A, 1);
    let tags = desk.tags(secs(60), A);
    assert_eq!((tags.reservation_due_ns, tags.limit_passes_ns), (Some(60 * SECOND), Some(60 * SECOND)));
    assert_eq!(tags.share_tag, tag(secs(60)).map(|now| now - 3 * 160_000_000));
    // Without reservation and limit there are no such tags.
    desk.ask(secs(60), B, 1);
    let tags = desk.tags(secs(60), B);
    assert_eq!((tags.reservation_due_ns, tags.limit_passes_ns), (None, None));
}

// rule: mclock.paper-counts, mclock.first-request
#[test]
fn remote_service_multiplies_the_distance() {
    let policy = Policy { idle_credit: 0, ..Policy::weighted(100).reserving(10).limited(20) };
    let mut desk = Desk::new(&paper(), policy, of(1));
    desk.ask(secs(1), A, 1);
    let mut second = desk.request(secs(1), A);
    (second.rho, second.delta, second.flags) = (2, 5, Flags::TRACKED);
    desk.scheduler.insert(secs(1), second);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Reservation)));
    let tags = desk.tags(secs(1), A);
    assert_eq!((tags.reservation_due_ns, tags.limit_passes_ns), (Some(1200 * MILLI), Some(1250 * MILLI)));
    assert_eq!(tags.share_tag, tag(millis(1050)));
}

// rule: mclock.constraint-phase, mclock.weight-phase, mclock.limit-in-weight-phase
#[test]
fn the_most_overdue_is_served_or_else_the_smallest_share_tag() {
    let mut desk = Desk::new(&paper(), of(300).reserving(10), of(100).reserving(4));
    desk.ask(secs(1), B, 3);
    desk.ask(millis(1001), A, 3);
    // Both are due; B's R is the smaller one. The others are due at 1101 and 1250 ms.
    assert_eq!(desk.look(millis(1001)), Ok((0, Phase::Reservation)));
    assert_eq!(desk.look(millis(1001)), Ok((3, Phase::Reservation)));
    // No reservation is due, so by weight. A's P is 1/300 s after its first, B's 1/100 s.
    assert_eq!(desk.look(millis(1002)), Ok((4, Phase::Weight)));
    assert_eq!(desk.look(millis(1002)), Ok((5, Phase::Weight)));
    assert_eq!(desk.look(millis(1002)), Ok((1, Phase::Weight)));

    // The limit counts in the weight phase only: B has the smallest share tag and is throttled.
    let mut desk = Desk::new(&paper(), of(1), of(1000).limited(10));
    desk.ask(secs(1), B, 2);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Weight)));
    desk.ask(secs(1), A, 2);
    assert_eq!(desk.look(millis(1001)), Ok((2, Phase::Weight)));
    assert_eq!(desk.look(millis(1100)), Ok((1, Phase::Weight)), "its limit passes it again");
}

// rule: mclock.wait, mclock.no-exceeding
#[test]
fn it_waits_for_the_first_tag_in_the_future() {
    let mut desk = Desk::new(&paper(), of(100).limited(10), Policy { weight: None, ..of(1) }.reserving(4));
    desk.ask(secs(1), A, 2);
    desk.ask(secs(1), B, 2);
    assert_eq!(desk.look(secs(1)), Ok((2, Phase::Reservation)));
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Weight)));
    // Nothing is in flight any more, and a limit still applies.
    desk.complete(secs(1), A);
    desk.complete(secs(1), B);
    assert_eq!(desk.look(secs(1)), Err(millis(1100)), "A's limit comes before B's reservation");
    assert_eq!(desk.look(millis(1100)), Ok((1, Phase::Weight)));
    assert_eq!(desk.look(millis(1100)), Err(millis(1250)));
    assert_eq!(desk.look(millis(1250)), Ok((3, Phase::Reservation)));
}

// rule: mclock.weight-service-reservation, mclock.share-advances-always
#[test]
fn weight_service_is_not_charged_to_the_reservation() {
    let mut desk = Desk::new(&paper(), of(100).reserving(10), of(100));
    desk.ask(secs(1), A, 4);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Reservation)));
    assert_eq!(desk.tags(secs(1), A).reservation_due_ns, Some(1100 * MILLI));
    let share = desk.tags(secs(1), A).share_tag;
    assert_eq!(share, tag(millis(1010)), "reservation service also advances P");
    assert_eq!(desk.look(secs(1)), Ok((1, Phase::Weight)));
    assert_eq!(desk.tags(secs(1), A).reservation_due_ns, Some(1100 * MILLI), "the next one is due as before");
    assert_eq!(desk.tags(secs(1), A).share_tag, tag(millis(1020)));
    // Also for later requests: the correction is kept when the queue becomes empty.
    assert_eq!(desk.look(secs(1)), Ok((2, Phase::Weight)));
    assert_eq!(desk.look(secs(1)), Ok((3, Phase::Weight)));
    desk.ask(millis(1001), A, 1);
    assert_eq!(desk.tags(secs(1), A).reservation_due_ns, Some(1100 * MILLI));
}

// rule: mclock.activation, mclock.activation-in-flight, mclock.complete
#[test]
fn a_vm_that_becomes_active_starts_at_the_smallest_tag() {
    // A has been served far ahead of real time: P is 20 requests of 1/10 s after the start.
    let start = |in_flight_alone: bool| {
        let mut desk = Desk::new(&paper(), of(10), of(10));
        desk.ask(secs(1), A, if in_flight_alone { 21 } else { 22 });
        for id in 0..21 {
            assert_eq!(desk.look(secs(1)), Ok((id, Phase::Weight)));
        }
        desk.ask(millis(1500), B, 1);
        desk.tags(millis(1500), B).share_tag
    };
    assert_eq!(start(false), tag(secs(1) + Duration::from_millis(2100)), "the tag of A's next request");
    assert_eq!(start(true), tag(secs(3)), "the tag of A's last request, which is still in flight");
    // No other VM is active: real time.
    let mut desk = Desk::new(&paper(), of(10), of(10));
    desk.ask(secs(1), A, 1);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Weight)));
    desk.complete(secs(2), A);
    desk.ask(secs(5), B, 1);
    assert_eq!(desk.tags(secs(5), B).share_tag, tag(secs(5)));
}

// rule: mclock.activation
#[test]
fn without_tag_adjustment_a_vm_ahead_of_real_time_starves() {
    let after_b_came = |adjusts: bool| {
        let subject = paper().with("tag_adjustment", Value::Bool(adjusts));
        let mut desk = Desk::new(&subject, of(10), of(10));
        desk.ask(secs(1), A, 40);
        for id in 0..20 {
            assert_eq!(desk.look(secs(1)), Ok((id, Phase::Weight)));
        }
        desk.ask(secs(1), B, 20);
        // A's requests are the first forty, B's come after.
        let turns: Vec<bool> =
            (0..10).map(|_| desk.look(secs(1)).expect("a request may be dispatched").0 < 40).collect();
        turns.iter().filter(|is_a| **is_a).count()
    };
    assert_eq!(after_b_came(true), 5, "turns are equal");
    assert_eq!(after_b_came(false), 0, "A waits until B has got as much");
}

// rule: mclock.batch, mclock.batch-limit
#[test]
fn a_batch_ends_at_the_limit() {
    let batch = |requests: i64| paper().with("batch", Value::Integer(requests));
    let near = |desk: &mut Desk, offset: u64| {
        let request = Request { offset, length: 4096, ..desk.request(secs(1), A) };
        desk.scheduler.insert(secs(1), request);
    };
    let mut desk = Desk::new(&batch(3), of(1), of(1000));
    (0..4).for_each(|index| near(&mut desk, index * (4 << 20)));
    desk.ask(secs(1), B, 2);
    // A's tag is the first to be reached; of its requests within 4 MiB three are dispatched together.
    let order: Vec<u64> = (0..4).map(|_| desk.look(secs(1)).expect("a request may be dispatched").0).collect();
    assert_eq!(order, [0, 1, 2, 4]);

    let mut desk = Desk::new(&batch(8), of(1).limited(10), of(1000));
    (0..4).for_each(|_| near(&mut desk, 0));
    desk.ask(secs(1), B, 1);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Weight)));
    assert_eq!(desk.look(secs(1)), Ok((4, Phase::Weight)), "the limit throttles the second of the batch");

    let mut desk = Desk::new(&batch(8), of(1), of(1000));
    near(&mut desk, 0);
    near(&mut desk, (4 << 20) + 4097);
    desk.ask(secs(1), B, 1);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Weight)));
    assert_eq!(desk.look(secs(1)), Ok((2, Phase::Weight)), "more than 4 MiB away");
}

#[test]
fn a_batch_ends_when_nothing_is_queued_though_something_is_in_flight() {
    let mut desk = Desk::new(&paper().with("batch", Value::Integer(8)), of(1), of(1).reserving(100));
    desk.ask(secs(1), A, 1);
    assert_eq!(desk.look(secs(1)), Ok((0, Phase::Weight)));
    assert_eq!(desk.scheduler.dispatch(secs(1)), Decision::Idle);
    desk.ask(secs(2), B, 1);
    desk.ask(secs(2), A, 1);
    assert_eq!(desk.look(secs(2)), Ok((1, Phase::Reservation)), "a due request comes before an old batch");
}

// rule: mclock.reply-phase
#[test]
fn a_completion_reports_the_phase() {
    for subject in [paper(), product()] {
        let mut world = World::simple(&subject, 1, 1000);
        let reserved = world.busy(Policy { weight: None, ..of(1) }.reserving(100), Pattern::Closed(4));
        let weighted = world.busy(of(1), Pattern::Closed(4));
        world.run_until(secs(5));
        assert!(world.finished.len() > 4000);
        for finished in &world.finished {
            let due = if finished.token == 0 { Phase::Reservation } else { Phase::Weight };
            assert_eq!(finished.phase, due, "{}: {finished:?}", subject.label());
        }
        let costs: f64 =
            [reserved, weighted].map(|vm| world.gate.stats(vm).expect("a known VM").service()).iter().sum();
        assert!((costs - world.finished.len() as f64).abs() < 1e-6, "the costs are in the statistics: {costs}");
    }
}

#[test]
fn a_request_throttled_by_its_limit_reports_that() {
    let mut world = World::simple(&paper(), 4, 1000);
    let held = world.busy(Policy::weighted(100).limited(10), Pattern::Closed(2));
    world.busy(Policy::weighted(100), Pattern::Closed(8));
    world.run_until(secs(10));
    let waits: Vec<Wait> = world.of(held).skip(2).map(|record| record.request.wait).collect();
    assert!(waits.len() > 90 && waits.iter().all(|wait| *wait == Wait::OwnLimit), "{waits:?}");
}
