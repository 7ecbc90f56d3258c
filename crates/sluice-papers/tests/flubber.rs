//! Flubber and its baseline, rule by rule: tables of events and dispatches, and the consequences.
//!
//! Two VMs as in the paper: "seq" requires 1000 IOPS within 80 ms, "rnd" 120 IOPS within 60 ms; the longest seek is 9 ms,
//! so that their requests are due 71 and 51 ms after they have passed the credits. The largest request takes 0.45056 ms.

use std::time::Duration;

use crate::common::analysis::assert_close;
use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::params::Value;
use sluice_sched::policy::Class;
use sluice_sched::scheduler::{Change, Decision, DeviceInfo, Scheduler};
use sluice_sched::*;

const SEQ: OwnerId = OwnerId(0);
const RND: OwnerId = OwnerId(1);
const BACKUP: OwnerId = OwnerId(2);
const BLOCK: u64 = 4096;

fn within(millis: u64, iops: u64) -> Policy {
    let p99 = Duration::from_millis(millis);
    Policy { latency: Some(LatencyTarget { p99, reads_only: false }), ..Policy::default().reserving(iops) }
}

fn background() -> Policy {
    Policy { class: Class::Background, ..Policy::default() }
}

fn published() -> Subject {
    Subject::of("flubber").text("mode", "paper")
}

fn ours() -> Subject {
    Subject::of("flubber").text("mode", "product").text("max_wait", "6ms")
}

fn baseline() -> Subject {
    Subject::of("edf-credit")
}

fn beta(subject: Subject, beta: i64) -> Subject {
    subject.with("beta", Value::Integer(beta))
}

/// A scheduler with the three owners, and a disk that takes one request.
struct Desk {
    scheduler: Box<dyn Scheduler>,
    next: u64,
    at_disk: Option<Request>,
}

fn micros(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

impl Desk {
    fn new(subject: &Subject) -> Self {
        let mut scheduler = subject.build(&DeviceInfo { depth: 1, ..DeviceInfo::default() });
        let owners = [(SEQ, within(80, 1000)), (RND, within(60, 120)), (BACKUP, background())];
        for (owner, policy) in owners {
            scheduler.configure(Instant::ZERO, Change::AddOwner { owner, policy }).expect("a valid policy");
        }
        Desk { scheduler, next: 0, at_disk: None }
    }

    /// Reads of one block arrive, each at a block; their numbers count from 0.
    fn ask(&mut self, now: Instant, owner: OwnerId, blocks: &[u64]) {
        for block in blocks {
            self.insert(now, owner, Kind::Read, *block, Flags::NONE);
        }
    }

    fn insert(&mut self, now: Instant, owner: OwnerId, kind: Kind, block: u64, flags: Flags) {
        let request = Request {
            id: RequestId(self.next),
            arrival: now,
            offset: block * BLOCK,
            length: BLOCK as u32,
            cost: Cost::ONE,
            owner,
            token: 0,
            rho: 0,
            delta: 0,
            volume: VolumeId(0),
            kind,
            flags,
            phase: Phase::None,
            wait: Wait::None,
        };
        self.next += 1;
        self.scheduler.insert(now, request);
    }

    /// The disk is ready: the dispatched request, or until when it idles.
    fn ready(&mut self, now: Instant) -> Result<u64, Instant> {
        if let Some(request) = self.at_disk.take() {
            let completion = Completion { request, dispatched: now, ok: true };
            self.scheduler.complete(now, &completion);
        }
        self.look(now)
    }

    /// The same while the request at the disk stays there.
    fn look(&mut self, now: Instant) -> Result<u64, Instant> {
        match self.scheduler.dispatch(now) {
            Decision::Dispatch(request) => {
                self.at_disk = Some(request);
                Ok(request.id.0)
            }
            Decision::WaitUntil(until) => Err(until),
            other => panic!("{other:?} at {now:?}"),
        }
    }

    /// All queued requests, in order of dispatch if none arrives.
    fn all(&mut self, mut now: Instant) -> Vec<u64> {
        let mut order = Vec::new();
        while self.scheduler.inspect(now).queued > 0 {
            match self.ready(now) {
                Ok(id) => order.push(id),
                Err(until) => now = until,
            }
        }
        order
    }
}

// The deadlines.

// rule: flubber.deadline, flubber.head-expired, edf-credit.pure-edf
#[test]
fn the_earliest_deadline_is_served_first() {
    for subject in [published(), ours(), baseline()] {
        let mut desk = Desk::new(&subject);
        desk.ask(millis(0), SEQ, &[10]);
        desk.ask(millis(19), RND, &[500]);
        desk.ask(millis(21), RND, &[900]);
        // Due at 71, 70 and 72 ms.
        assert_eq!(desk.all(millis(80)), [1, 0, 2], "{}", subject.label());
    }
}

// rule: flubber.deadline-clamp
#[test]
fn a_target_below_the_longest_seek_is_due_immediately() {
    for subject in [published(), baseline()] {
        let mut desk = Desk::new(&subject);
        let policy = within(5, 120);
        desk.scheduler.configure(Instant::ZERO, Change::SetOwner { owner: RND, policy }).expect("a valid policy");
        desk.ask(millis(0), SEQ, &[10]);
        assert_eq!(desk.ready(millis(0)), Ok(0));
        desk.ask(millis(1), SEQ, &[700]);
        desk.ask(millis(2), RND, &[500]);
        assert_eq!(desk.ready(millis(2)), Ok(2), "{}", subject.label());
    }
}

// rule: flubber.equal-deadlines
#[test]
fn equal_deadlines_are_served_in_arrival_order_or_as_printed() {
    for (word, expected) in [("fifo", [0, 1, 2, 3]), ("lifo", [3, 2, 1, 0])] {
        for subject in [published(), ours(), baseline()] {
            let mut desk = Desk::new(&subject.text("equal_deadlines", word));
            let policy = within(60, 1000);
            desk.scheduler.configure(Instant::ZERO, Change::SetOwner { owner: SEQ, policy }).expect("a valid policy");
            for (vm, block) in [(SEQ, 10), (RND, 500), (SEQ, 90), (RND, 700)] {
                desk.ask(millis(0), vm, &[block]);
            }
            assert_eq!(desk.all(millis(99)), expected, "{word}");
        }
    }
}

// rule: flubber.start-time
#[test]
fn a_deadline_counts_from_the_credits_or_from_the_arrival() {
    for (word, expected) in [("entry", [1, 0, 2]), ("arrival", [1, 2, 0])] {
        // "rnd" has one credit: its second request waits until all are replenished.
        let mut desk = Desk::new(&beta(baseline().text("start", word), 1));
        desk.ask(millis(0), SEQ, &[10]);
        desk.ask(millis(0), RND, &[500, 600]);
        // The policy of a VM changes (as when one is added or removed), and all credits are full again.
        let policy = within(80, 1000);
        desk.scheduler.configure(millis(30), Change::SetOwner { owner: SEQ, policy }).expect("a valid policy");
        assert_eq!(desk.all(millis(30)), expected, "{word}: due at 71, 51, and 81 or 51 ms");
    }
}

// Batch and delay.

// rule: flubber.head-same-vm, flubber.f5, flubber.f6, flubber.end-address, flubber.f4, flubber.contiguous
#[test]
fn the_disk_continues_with_the_same_vm_or_at_the_same_address() {
    let mut desk = Desk::new(&published());
    desk.ask(millis(0), RND, &[500]);
    assert_eq!(desk.ready(millis(0)), Ok(0), "the first request has no predecessor");
    desk.ask(millis(1), RND, &[900]);
    desk.ask(millis(1), SEQ, &[901, 902, 50]);
    assert_eq!(desk.ready(millis(2)), Ok(1), "the head is of the same VM");
    assert_eq!(desk.ready(millis(3)), Ok(2), "block 901 begins where block 900 ends");
    assert_eq!(desk.ready(millis(4)), Ok(3), "and 902 where 901 ends");
    // Its VM was not served as the head, so the head of that VM waits until it is due.
    assert_eq!(desk.ready(millis(5)), Err(micros(72_000 - 451) + Duration::from_nanos(440)));
    // The time is the deadline minus one largest request.
    assert_eq!(desk.ready(micros(71_549)), Err(micros(71_549) + Duration::from_nanos(440)));
    assert_eq!(desk.ready(micros(71_550)), Ok(4));
}

// rule: flubber.wait, flubber.wait-contiguous, flubber.f1, flubber.f2, flubber.f3, flubber.f8
#[test]
fn idling_ends_with_a_contiguous_arrival_an_earlier_head_or_the_time() {
    let until = |millis_due: u64| Instant::from_nanos(millis_due * MILLI - 450_560);
    let waiting = || {
        let mut desk = Desk::new(&published());
        desk.ask(millis(0), SEQ, &[10]);
        assert_eq!(desk.ready(millis(0)), Ok(0));
        desk.ask(millis(2), RND, &[500]);
        assert_eq!(desk.ready(millis(3)), Err(until(53)), "no request is contiguous, and the head is not due");
        desk
    };
    let mut desk = waiting();
    desk.ask(millis(10), SEQ, &[77]);
    assert_eq!(desk.ready(millis(10)), Err(until(53)), "same VM as the last one, but neither the head nor contiguous");
    desk.ask(millis(20), SEQ, &[11]);
    assert_eq!(desk.ready(millis(20)), Ok(3), "it begins where the last one ended");
    assert_eq!(desk.ready(until(53)), Ok(1), "the end of the idling");

    let mut desk = waiting();
    desk.ask(millis(10), RND, &[11]);
    assert_eq!(desk.ready(millis(10)), Ok(2), "a contiguous request of another VM is also served");

    let mut desk = waiting();
    let policy = within(29, 1000);
    desk.scheduler.configure(millis(4), Change::SetOwner { owner: SEQ, policy }).expect("a valid policy");
    desk.ask(millis(5), SEQ, &[300]);
    assert_eq!(desk.ready(millis(5)), Ok(2), "it is the head, due at 25 ms, and the last request is of its VM");
}

// rule: flubber.f10
#[test]
fn with_a_request_in_flight_it_waits_until_the_head_is_due() {
    for subject in [published(), ours()] {
        let mut desk = Desk::new(&subject);
        desk.ask(millis(0), SEQ, &[10]);
        assert_eq!(desk.ready(millis(0)), Ok(0));
        desk.ask(millis(2), RND, &[500]);
        // Another slot is free and the disk is busy, so the maximum idling time does not apply.
        assert_eq!(desk.look(millis(3)), Err(Instant::from_nanos(53 * MILLI - 450_560)), "{}", subject.label());
        assert_eq!(desk.look(millis(53)), Ok(1));
    }
}

// rule: flubber.f9
#[test]
fn product_mode_idles_for_at_most_six_milliseconds() {
    let mut desk = Desk::new(&ours());
    desk.ask(millis(0), SEQ, &[10]);
    assert_eq!(desk.ready(millis(0)), Ok(0));
    desk.ask(millis(1), RND, &[500]);
    assert_eq!(desk.ready(millis(4)), Err(millis(10)));
    assert_eq!(desk.ready(millis(10)), Ok(1));
    // A request that arrives long after the last one was completed causes no idling.
    assert_eq!(desk.scheduler.inspect(millis(11)).queued, 0);
    let done = desk.at_disk.take().expect("one is at the disk");
    desk.scheduler.complete(millis(11), &Completion { request: done, dispatched: millis(10), ok: true });
    desk.ask(millis(500), SEQ, &[700]);
    assert_eq!(desk.ready(millis(500)), Ok(2));
}

/// The part of the time that a disk of 1 ms per request idles while two VMs keep one request outstanding each: one
/// reads sequentially, the other at random.
fn idle_part(subject: &Subject) -> f64 {
    let mut world = World::simple(subject, 1, 1000);
    let seq = world.vm(within(80, 1000));
    world.source(Source::new(seq, VolumeId(0), Pattern::Closed(1)).places(Places::Random));
    let rnd = world.vm(within(60, 120));
    world.source(Source::new(rnd, VolumeId(0), Pattern::Closed(1)).places(Places::Random));
    world.run_until(secs(20));
    1.0 - world.log.len() as f64 / 20_000.0
}

// rule: flubber.f9, flubber.small-beta
#[test]
fn in_paper_mode_a_disk_with_few_requests_mostly_idles() {
    let (published, ours, never) =
        (idle_part(&published()), idle_part(&ours()), idle_part(&ours().text("max_wait", "0s")));
    println!("idle: published {published:.2}, ours {ours:.2}, with max_wait 0 {never:.2}");
    assert!(published >= 0.5, "{published}");
    assert!(ours < published, "{ours} of {published}");
    assert!(never <= 0.001, "without a wait it is work-conserving: {never}");
}

// Background work.

// rule: flubber.background-when-empty, flubber.f11, flubber.background-bypasses, flubber.f7
#[test]
fn background_is_served_when_no_vm_has_requests() {
    for (subject, expected) in [(published(), Ok(2)), (ours(), Err(millis(8)))] {
        let mut desk = Desk::new(&subject);
        desk.ask(millis(0), BACKUP, &[40, 41, 42]);
        desk.insert(millis(0), RND, Kind::Read, 800, Flags::BACKGROUND);
        assert_eq!(desk.ready(millis(0)), Ok(0), "in arrival order");
        assert_eq!(desk.ready(millis(1)), Ok(1));
        desk.ask(millis(1), RND, &[500]);
        // In paper mode the contiguous request may be a background one.
        assert_eq!(desk.ready(millis(2)), expected, "{}", subject.label());
        assert_eq!(desk.ready(millis(60)), Ok(4), "the VM is due");
        let rest: &[u64] = if expected.is_ok() { &[3] } else { &[2, 3] };
        assert_eq!(desk.all(millis(61)), rest, "a request may be background work of an ordinary VM");
    }
}

// rule: flubber.f12
#[test]
fn background_starves_unless_it_has_a_target() {
    let served = |subject: Subject| {
        let mut world = World::simple(&subject, 1, 1000);
        world.busy(within(80, 1000), Pattern::Closed(64));
        let backup = world.busy(background(), Pattern::Closed(4));
        // The first one may be dispatched before the VM's first request arrives.
        world.run_until(secs(10));
        world.count(backup, millis(10), secs(10))
    };
    assert_eq!(served(published()), 0);
    assert_eq!(served(ours()), 0);
    let bounded = served(ours().text("background_latency", "109ms"));
    assert!((300..=420).contains(&bounded), "four every 100 ms: {bounded}");
}

// rule: edf-credit.background-deadline
#[test]
fn in_the_baseline_background_has_the_largest_target_or_is_served_last() {
    for (word, expected) in [("deadline", [0, 1, 2]), ("idle", [0, 2, 1])] {
        let mut desk = Desk::new(&baseline().text("background", word));
        desk.ask(millis(0), RND, &[500]);
        desk.ask(millis(0), BACKUP, &[40]);
        desk.ask(millis(1), SEQ, &[10]);
        assert_eq!(desk.all(millis(1)), expected, "{word}: due at 51, 71 and 72 ms");
    }
}

#[test]
fn a_vm_that_becomes_background_work_is_queued_with_it() {
    for subject in [published(), ours(), baseline().text("background", "idle")] {
        let label = subject.label();
        let mut desk = Desk::new(&beta(subject, 1));
        desk.ask(millis(0), SEQ, &[10]);
        desk.ask(millis(0), RND, &[500, 600, 700]);
        let policy = Policy { class: Class::Background, ..within(60, 120) };
        desk.scheduler.configure(millis(1), Change::SetOwner { owner: RND, policy }).expect("a valid policy");
        // Requests that have passed the credits keep their deadline, the others are background now.
        let order = desk.all(millis(300));
        assert_eq!(order, [1, 0, 2, 3], "{label}");
    }
}

// Credits.

// rule: flubber.exact-ratio, edf-credit.credits
#[test]
fn vms_are_served_in_proportion_to_their_requirements() {
    for subject in [published(), ours(), baseline()] {
        for factor in [1, 8, 32] {
            let mut world = World::simple(&beta(subject.clone(), factor), 1, 5000);
            let policies = [within(80, 1000), within(60, 120), within(60, 500), Policy::default()];
            let vms = policies.map(|policy| world.busy(policy, Pattern::Closed(400)));
            world.run_until(secs(30));
            let rates = world.rates(&vms, Instant::ZERO, secs(30));
            let sum: f64 = rates.iter().sum();
            let due = [8.0, 1.0, 4.0, 1.0].map(|credits| sum * credits / 14.0);
            assert_close(&format!("{} beta {factor}", subject.label()), &rates, &due, 0.03);
        }
    }
}

// rule: flubber.e2, flubber.e2-literal
#[test]
fn an_idle_vm_with_credits_does_not_block_others() {
    for subject in [published(), ours(), baseline()] {
        let mut world = World::simple(&subject, 1, 1000);
        let seq = world.busy(within(80, 1000), Pattern::Closed(16));
        let rnd = world.vm(within(60, 120));
        world.run_until(secs(10));
        assert!(world.count(seq, Instant::ZERO, secs(10)) >= 9_990, "{}: it has the disk", subject.label());
        assert_eq!(world.times(rnd), []);
    }
}

#[test]
fn a_grace_time_delays_the_replenishment() {
    let mut desk = Desk::new(&beta(baseline().text("grace", "5ms"), 1));
    desk.ask(millis(10), RND, &[500, 600]);
    assert_eq!(desk.ready(millis(10)), Ok(0));
    assert_eq!(desk.ready(millis(11)), Err(millis(15)), "the deadline queue is empty since 10 ms");
    assert_eq!(desk.ready(millis(15)), Ok(1));
}

/// The longest time in ms that a request of "rnd", one every 5 ms, waits next to "seq" with 4,000 requests outstanding;
/// and how often the disk changes between the VMs per 1000 requests.
fn beside_a_flood(subject: &Subject, factor: i64) -> (f64, usize) {
    let mut world = World::simple(&beta(subject.clone(), factor), 1, 2000);
    let (seq, rnd) = (world.vm(within(80, 1000)), world.vm(within(60, 120)));
    world.stream(rnd, Pattern::Open(5 * MILLI));
    world.run_until(millis(1));
    world.source(Source::new(seq, VolumeId(0), Pattern::Closed(4000)).places(Places::Contiguous));
    world.run_until(secs(20));
    let waits = world.of(rnd).map(|record| record.at.nanos_since(record.request.arrival) as f64 / MILLI as f64);
    let changes = world.log.windows(2).filter(|pair| pair[0].request.owner != pair[1].request.owner).count();
    (waits.fold(0.0, f64::max), changes * 1000 / world.log.len())
}

// rule: flubber.large-beta, flubber.small-beta
#[test]
fn a_large_interval_factor_gives_bursts_and_a_small_one_more_seeks() {
    let [small, middle, large] = [1, 32, 128].map(|factor| beside_a_flood(&published(), factor));
    println!("longest wait [ms] and changes per 1000: beta 1 {small:?}, 32 {middle:?}, 128 {large:?}");
    assert!(large.0 > middle.0 && middle.0 > small.0, "isolation: {small:?} {middle:?} {large:?}");
    assert!(small.1 > middle.1, "switching: {small:?} {middle:?}");
}

// rule: flubber.e1
#[test]
fn a_vm_next_to_a_flood_waits_for_one_set_of_credits() {
    let newcomer = |subject: &Subject| {
        let mut world = World::simple(subject, 1, 2000);
        world.busy(within(80, 1000), Pattern::Closed(4000));
        let rnd = world.busy(within(60, 1000), Pattern::Open(5 * MILLI));
        world.run_until(secs(4));
        let waits = world.of(rnd).map(|record| record.at.nanos_since(record.request.arrival) / MILLI);
        waits.max().expect("it is served")
    };
    // In paper mode a VM that is alone uses its credits up and gets them back, until all its requests have passed.
    let (published, ours) = (newcomer(&published()), newcomer(&ours()));
    println!("longest wait of the newcomer: {published} ms as published, {ours} ms");
    assert!(published >= 1900, "4000 requests at 2000/s: {published} ms");
    assert!(ours <= 60 + 32, "{ours} ms");
}

// Guarantees of deadlines.

/// Random VMs with their own targets, and far more credits than requests: a request passes when it arrives.
fn with_targets(subject: &Subject, seed: u64) -> (World, Vec<Duration>) {
    let mut rng = chance(seed);
    let mut world = World::simple(&beta(subject.clone(), 65_536), 1, 1000);
    world.device.service = Service::Between(MILLI / 2, 9 * MILLI);
    let mut slacks = Vec::new();
    for _ in 0..3 + below(&mut rng, 3) {
        let latency = pick(&mut rng, &[10, 20, 60, 80, 200]);
        let vm = world.vm(within(latency, 100));
        let pattern = pick(&mut rng, &[Pattern::Closed(2), Pattern::Closed(9), Pattern::Open(13 * MILLI)]);
        let places = pick(&mut rng, &[Places::Contiguous, Places::Random]);
        world.source(Source::new(vm, VolumeId(0), pattern).places(places));
        slacks.push(Duration::from_millis(latency.saturating_sub(9)));
    }
    world.run_until(secs(5));
    (world, slacks)
}

// rule: flubber.deadline-feasible, flubber.no-starvation
#[test]
fn a_due_request_is_never_overtaken() {
    for subject in [published(), ours(), baseline()] {
        for seed in 0..20 {
            let (world, slacks) = with_targets(&subject, seed);
            let least = *slacks.iter().min().expect("there are VMs");
            let deadline = |record: &Record| record.request.arrival + slacks[record.request.owner.index()];
            for (index, late) in world.log.iter().enumerate() {
                let due = deadline(late);
                // From then on an arriving request of any VM is due later.
                let closed = Instant::from_nanos(due.as_nanos().saturating_sub(least.as_nanos() as u64));
                for earlier in &world.log[..index] {
                    if earlier.at < late.request.arrival || deadline(earlier) <= due {
                        continue;
                    }
                    // Requests served before it although they are due later were contiguous, and were dispatched before
                    // it was due.
                    assert!(earlier.at < due, "{}: {earlier:?} went before {late:?}", subject.label());
                    let contiguous = subject.descriptor.name == "flubber" || earlier.request.arrival <= closed;
                    assert!(contiguous, "the baseline knows no addresses: {earlier:?} before {late:?}");
                }
            }
        }
    }
}

// rule: edf-credit.pure-edf
#[test]
fn equal_vms_with_equal_targets_are_served_in_arrival_order() {
    let mut world = World::simple(&beta(baseline(), 1000), 4, 1000);
    let vms = [(); 5].map(|()| world.vm(within(60, 100)));
    let sources = vms.map(|vm| world.stream(vm, Pattern::Manual));
    let mut rng = chance(16);
    for at in 0..400 {
        world.ask_at(millis(at * 2 / 3), pick(&mut rng, &sources));
    }
    world.run_until(secs(10));
    let order: Vec<u64> = world.log.iter().map(|record| record.request.id.0).collect();
    assert!(order.len() == 400 && order.is_sorted(), "{order:?}");
}

#[test]
fn scaling_every_requirement_changes_nothing() {
    let run = |subject: &Subject, k: u64| {
        let mut world = World::simple(&beta(subject.clone(), 2), 2, 1000);
        let policies = [within(80, 50 * k), within(60, 6 * k), within(20, 25 * k)];
        for policy in policies {
            world.busy(policy, Pattern::Closed(20));
        }
        world.run_until(secs(3));
        world.log.clone()
    };
    for subject in [published(), ours(), baseline()] {
        assert!(run(&subject, 1) == run(&subject, 20), "{}", subject.label());
    }
}

// rule: flubber.f13
#[test]
fn adjacent_requests_of_one_vm_are_merged_and_keep_their_position() {
    for subject in [published(), ours(), baseline()] {
        assert!(subject.descriptor.merging);
        let settings = GateSettings { depth: 1, merging: true, ..GateSettings::default() };
        let mut world = World::new(subject.build(&DeviceInfo::default()), settings, Stub::serial(MILLI));
        let vms = [world.vm(within(80, 100)), world.vm(within(60, 100))];
        let source = |vm: OwnerId| Source::new(vm, VolumeId(0), Pattern::Manual).places(Places::Contiguous);
        let sources = vms.map(|vm| world.source(source(vm).lengths(&[4096])));
        for _ in 0..8 {
            sources.iter().for_each(|source| assert!(world.ask(*source)));
        }
        world.pump();
        world.run_until(secs(1));
        let served = |vm: OwnerId| world.of(vm).map(|record| record.request.length).collect::<Vec<u32>>();
        assert_eq!((served(vms[0]), served(vms[1])), (vec![32_768], vec![32_768]), "{}", subject.label());
        assert_eq!(world.log[0].request.owner, vms[1], "the earliest deadline of its parts");
        assert_eq!(world.finished.len(), 16, "each completes separately");
    }
}

// Parameters.

#[test]
fn parameters_out_of_range_are_refused() {
    let table = [
        (beta(published(), 0), "beta is 0; it must be from 1 to 65536"),
        (beta(baseline(), 65_537), "beta is 65537; it must be from 1 to 65536"),
        (
            published().text("max_wait", "6ms"),
            "max_wait is a parameter of mode \"product\"; remove it, or change the mode",
        ),
        (ours().text("latency", "2h"), "latency is 2h; it must be from 0s to 1h"),
        (ours().text("transfer_max", "0B"), "transfer_max is 0B; it must be from 1B to 1GiB"),
    ];
    for (subject, message) in table {
        let refused = subject.descriptor.build(&DeviceInfo::default(), &subject.params).err().map(|error| error.0);
        assert_eq!(refused.as_deref(), Some(message));
    }
}

// rule: flubber.f9
#[test]
fn a_device_without_seeks_never_idles() {
    for (rotational, expected) in [(true, Err(millis(10))), (false, Ok(1))] {
        let mut desk = Desk::new(&Subject::of("flubber"));
        let mut scheduler = Subject::of("flubber").build(&DeviceInfo { depth: 1, rotational, ..DeviceInfo::default() });
        std::mem::swap(&mut desk.scheduler, &mut scheduler);
        for (owner, policy) in [(SEQ, within(80, 1000)), (RND, within(60, 120))] {
            desk.scheduler.configure(Instant::ZERO, Change::AddOwner { owner, policy }).expect("a valid policy");
        }
        desk.ask(millis(0), SEQ, &[10]);
        assert_eq!(desk.ready(millis(0)), Ok(0));
        desk.ask(millis(1), RND, &[500]);
        assert_eq!(desk.ready(millis(4)), expected, "rotational: {rotational}");
    }
}
