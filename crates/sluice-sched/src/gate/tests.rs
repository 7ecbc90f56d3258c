use super::*;
use crate::scheduler::DeviceInfo;
use crate::schedulers;

struct Log(Vec<Submission>);

impl Device for Log {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(*submission);
    }
}

fn gate(name: &str, depth: u32) -> Gate {
    let build = schedulers::find(name).unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    Gate::new(scheduler, GateSettings { depth, ..GateSettings::default() })
}

fn arrival(owner: OwnerId, volume: VolumeId, kind: Kind, length: u32, token: u32) -> Arrival {
    Arrival { owner, volume, kind, flags: Flags::NONE, offset: 4096, length, token, remote: None }
}

/// Completes a slot; returns the tokens and outcomes of the completed arrivals.
fn complete(gate: &mut Gate, slot: Slot, ok: bool) -> Vec<(u32, Outcome)> {
    let mut finished = Vec::new();
    gate.complete_all(Instant::ZERO, slot, ok, &mut finished);
    finished.iter().map(|f| (f.token, f.outcome)).collect()
}

// rule: gate.split
#[test]
fn a_large_request_is_split_and_completed_once() {
    for name in ["noop", "mclock"] {
        let (mut gate, mut log, now) = (gate(name, 8), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Write, 600 << 10, 7)).unwrap();
        assert_eq!(gate.queued(), 3);
        assert_eq!(gate.pump(now, &mut log), None);
        let parts: Vec<_> = log.0.iter().map(|s| (s.token, s.skip, s.request.length)).collect();
        assert_eq!(parts, [(7, 0, 256 << 10), (7, 256 << 10, 256 << 10), (7, 512 << 10, 88 << 10)]);
        assert_eq!(complete(&mut gate, log.0[2].slot, true), []);
        assert_eq!(complete(&mut gate, log.0[0].slot, false), []);
        assert_eq!(complete(&mut gate, log.0[1].slot, true), [(7, Outcome::Failed)]);
        assert_eq!(gate.outstanding(owner).unwrap().arrived, 1);
    }
}

/// Sums of costs started at the minimum cost of a request instead of 0, and cancelled requests counted as served.
// rule: gate.split
#[test]
fn the_service_of_an_arrival_is_the_sum_of_its_parts() {
    for (policy, reserved) in [(Policy::default(), 0), (Policy::default().reserving(1), 1)] {
        let (mut gate, mut log, now) = (gate("mclock", 2), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, policy).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Write, 600 << 10, 7)).unwrap();
        let _ = gate.pump(now, &mut log);
        let mut finished = Vec::new();
        gate.cancel(now, Scope::Owner(owner), &mut finished);
        log.0.iter().for_each(|sent| gate.complete_all(now, sent.slot, true, &mut finished));
        let piece = u64::from(gate.settings().cost.cost(Kind::Write, 256 << 10).raw());
        let sums = |service: Service| (u64::from(service.cost.raw()), service.bytes);
        let got: Vec<_> = finished.iter().map(|f| (f.outcome, sums(f.service), sums(f.reserved))).collect();
        let pieces = |count: u64| (count * piece, count * (256 << 10));
        assert_eq!(
            got,
            [(Outcome::Cancelled, pieces(2), pieces(reserved))],
            "two of three pieces went, the second by weight"
        );
        let completed = gate.stats(owner).unwrap().completed()[Kind::Write as usize];
        assert_eq!(completed, 2, "pieces count, also of an arrival that did not succeed");
    }
}

#[test]
fn a_removed_owner_cancels_its_queue_and_keeps_its_number_while_in_flight() {
    for name in ["noop", "mclock"] {
        let (mut gate, mut log, now) = (gate(name, 1), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        for token in 0..3 {
            gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, token)).unwrap();
        }
        let _ = gate.pump(now, &mut log);
        let mut finished = Vec::new();
        gate.remove_owner(now, owner, &mut finished).unwrap();
        let cancelled: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
        assert_eq!(cancelled, [(1, Outcome::Cancelled), (2, Outcome::Cancelled)]);
        assert_eq!(gate.add_owner(now, Policy::default()).unwrap(), OwnerId(1));
        assert_eq!(complete(&mut gate, log.0[0].slot, true), [(0, Outcome::Done)]);
        assert_eq!(gate.add_owner(now, Policy::default()).unwrap(), owner);
        assert_eq!(
            gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, 9)),
            Err(Refused::Unknown(owner, volume))
        );
    }
}

#[test]
fn a_full_queue_is_refused_and_changes_nothing() {
    let now = Instant::ZERO;
    let build = schedulers::find("mclock").unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    let mut gate = Gate::new(scheduler, GateSettings { queue_max: 2, ..GateSettings::default() });
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    let read = |token| arrival(owner, volume, Kind::Read, 4096, token);
    gate.insert(now, &read(0)).unwrap();
    gate.insert(now, &read(1)).unwrap();
    let before = gate.inspect(now);
    assert_eq!(gate.insert(now, &read(2)), Err(Refused::Full(owner)));
    assert_eq!(gate.inspect(now), before);
}

#[test]
#[should_panic(expected = "exactly once")]
fn a_second_completion_is_a_defect() {
    let (mut gate, mut log, now) = (gate("noop", 1), Log(Vec::new()), Instant::ZERO);
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    gate.insert(now, &arrival(owner, volume, Kind::Flush, 0, 0)).unwrap();
    let _ = gate.pump(now, &mut log);
    let _ = complete(&mut gate, Slot(0), true);
    let _ = complete(&mut gate, Slot(0), true);
}

/// A gate of noop that merges, with one owner and one volume, and reads of 4 KiB.
fn merging(depth: u32) -> (Gate, impl Fn(u64, u32) -> Arrival) {
    let build = schedulers::find("noop").unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    let mut gate = Gate::new(scheduler, GateSettings { depth, merging: true, ..GateSettings::default() });
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    (gate, move |offset, token| Arrival { offset, ..arrival(owner, volume, Kind::Read, 4096, token) })
}

/// Offsets and lengths of submissions, in pages.
fn pages(log: &Log) -> Vec<(u64, u32)> {
    log.0.iter().map(|s| (s.request.offset / 4096, s.request.length / 4096)).collect()
}

// rule: gate.merge-back, gate.merge-front, gate.merge-expiry, noop.merges
#[test]
fn merged_requests_are_one_submission_and_complete_separately() {
    let (mut gate, read) = merging(8);
    let now = Instant::ZERO;
    for (token, page) in [10, 11, 9, 20, 12].into_iter().enumerate() {
        gate.insert(now, &read(page * 4096, token as u32)).unwrap();
    }
    let mut log = Log(Vec::new());
    let later = Instant::from_millis(5);
    let _ = gate.pump(later, &mut log);
    assert_eq!(pages(&log), [(9, 4), (20, 1)], "at the position of the oldest");
    assert_eq!((gate.queued(), gate.in_flight()), (0, 2));
    let stats = gate.stats(OwnerId(0)).unwrap();
    assert_eq!((stats.outstanding.in_flight, stats.outstanding.waiting, stats.dispatched_in(Phase::None)), (5, 0, 5));
    assert_eq!(stats.queue_time.count(), 5);
    let over = complete(&mut gate, log.0[0].slot, true);
    assert_eq!(over, [2, 0, 1, 4].map(|token| (token, Outcome::Done)), "in order of their offsets");
    assert_eq!(complete(&mut gate, log.0[1].slot, true), [(3, Outcome::Done)]);
    let stats = gate.stats(OwnerId(0)).unwrap();
    assert_eq!((stats.completed()[0], stats.bytes, stats.outstanding.in_flight), (5, 5 * 4096, 0));
    assert_eq!(
        stats.cost,
        5 * u64::from(gate.settings().cost.cost(Kind::Read, 4096).raw()),
        "each is charged separately"
    );
}

#[test]
fn a_forced_write_is_not_merged_with_an_ordinary_one() {
    let (mut gate, read) = merging(8);
    let now = Instant::ZERO;
    let forced = Flags::SYNC.with(Flags::FORCED);
    for (page, flags) in [(10, Flags::SYNC), (11, forced), (12, forced), (13, Flags::SYNC)] {
        gate.insert(now, &Arrival { kind: Kind::Write, flags, ..read(page * 4096, page as u32) }).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    assert_eq!(pages(&log), [(10, 1), (11, 2), (13, 1)]);
}

// rule: gate.merge-switch
#[test]
fn adjacent_requests_are_not_merged_unless_enabled() {
    let mut gate = gate("noop", 8);
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    for page in [10, 11, 9] {
        let read = Arrival { offset: page * 4096, ..arrival(owner, volume, Kind::Read, 4096, page as u32) };
        gate.insert(Instant::ZERO, &read).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(Instant::ZERO, &mut log);
    assert_eq!(pages(&log), [(10, 1), (11, 1), (9, 1)]);
}

#[test]
fn parts_of_a_submission_may_have_different_results() {
    let (mut gate, read) = merging(8);
    for page in 0..3 {
        gate.insert(Instant::ZERO, &read(page * 4096, page as u32)).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(Instant::ZERO, &mut log);
    let mut finished = Vec::new();
    gate.complete_parts(Instant::ZERO, log.0[0].slot, &[true, false, true], &mut finished);
    let over: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
    assert_eq!(over, [(0, Outcome::Done), (1, Outcome::Failed), (2, Outcome::Done)]);
    assert_eq!(gate.stats(OwnerId(0)).unwrap().failed, 1);
}

// rule: gate.merge-max, gate.merge-owner
#[test]
fn only_requests_of_one_kind_are_merged_up_to_the_largest_transfer() {
    let (mut gate, read) = merging(64);
    let now = Instant::ZERO;
    let other = gate.add_owner(now, Policy::default()).unwrap();
    let other_volume = gate.add_volume(now, other, Policy::default()).unwrap();
    let second = gate.add_volume(now, OwnerId(0), Policy::default()).unwrap();
    let first = read(0, 0);
    let unlike = [
        Arrival { owner: other, volume: other_volume, ..read(4096, 1) },
        Arrival { volume: second, ..read(4096, 2) },
        Arrival { kind: Kind::Write, ..read(4096, 3) },
        Arrival { flags: Flags::BACKGROUND, ..read(4096, 4) },
        Arrival { remote: Some(RemoteService::default()), ..read(4096, 5) },
        Arrival { kind: Kind::Discard, ..read(4096, 6) },
        read(8192, 7),
        Arrival { length: 256 << 10, ..read(4096, 8) },
    ];
    gate.insert(now, &first).unwrap();
    for arrival in &unlike {
        gate.insert(now, arrival).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    assert_eq!(log.0.len(), 9, "{:?}", pages(&log));

    // 64 pages of 4 KiB fill a transfer of 256 KiB; of smaller ones at most `PARTS_MAX` are merged.
    for page in 0..100 {
        gate.insert(now, &read(page << 12, 9)).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    assert_eq!(pages(&log), [(0, 64), (64, 36)]);
    for sector in 0..300 {
        gate.insert(now, &Arrival { length: 512, ..read(sector << 9, 9) }).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    let sectors: Vec<_> = log.0.iter().map(|s| (s.request.offset >> 9, s.request.length >> 9)).collect();
    assert_eq!(sectors, [(0, 128), (128, 128), (256, 44)]);
}

#[test]
fn pieces_of_a_split_request_are_merged_and_cancelled_correctly() {
    let (mut gate, read) = merging(1);
    let now = Instant::ZERO;
    let mut log = Log(Vec::new());
    gate.insert(now, &read(1 << 30, 0)).unwrap();
    let _ = gate.pump(now, &mut log);
    // 260 KiB: the next request is merged into the second piece, and another one into the result.
    gate.insert(now, &Arrival { length: 260 << 10, ..read(0, 1) }).unwrap();
    gate.insert(now, &read(260 << 10, 2)).unwrap();
    gate.insert(now, &read(264 << 10, 3)).unwrap();
    assert_eq!(gate.queued(), 4);
    let _ = complete(&mut gate, log.0[0].slot, true);
    let _ = gate.pump(now, &mut log);
    assert_eq!(complete(&mut gate, log.0[1].slot, true), [], "the rest is queued");
    let mut finished = Vec::new();
    gate.cancel(now, Scope::Owner(OwnerId(0)), &mut finished);
    let over: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
    assert_eq!(over, [1, 2, 3].map(|token| (token, Outcome::Cancelled)));
    assert_eq!((gate.queued(), gate.in_flight()), (0, 0));
    assert_eq!(gate.outstanding(OwnerId(0)).unwrap().waiting, 0);
    // Cancelled requests are no candidates for merges.
    gate.insert(now, &read(268 << 10, 4)).unwrap();
    let _ = gate.pump(now, &mut log);
    assert_eq!(log.0.last().map(|s| (s.token, s.request.length)), Some((4, 4096)));
}

// rule: gate.merge-max
#[test]
fn a_merged_request_never_exceeds_the_largest_length() {
    let build = schedulers::find("noop").unwrap().build;
    let settings = GateSettings { depth: 1, transfer_max: Bytes(u64::MAX), merging: true, ..GateSettings::default() };
    let mut gate = Gate::new(build(&DeviceInfo::default(), &Default::default()).unwrap(), settings);
    let (mut log, now) = (Log(Vec::new()), Instant::ZERO);
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    let length = 3 << 30;
    for token in 0..2 {
        let offset = u64::from(token) * u64::from(length);
        gate.insert(now, &Arrival { offset, ..arrival(owner, volume, Kind::Read, length, token) }).unwrap();
    }
    let _ = gate.pump(now, &mut log);
    assert_eq!((log.0[0].request.length, gate.queued()), (length, 1), "two of 3 GiB do not fit into one of 4 GiB");
}

#[test]
fn a_cancel_for_an_owner_that_is_not_present_changes_nothing() {
    for descriptor in schedulers::ALL {
        let (mut gate, now, mut finished) = (gate(descriptor.name, 1), Instant::ZERO, Vec::new());
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, 0)).unwrap();
        gate.cancel(now, Scope::Owner(OwnerId(4000)), &mut finished);
        gate.cancel(now, Scope::Volume(OwnerId(1), VolumeId(9)), &mut finished);
        gate.cancel(now, Scope::Volume(owner, VolumeId(9)), &mut finished);
        assert_eq!((finished.len(), gate.queued()), (0, 1), "{}", descriptor.name);
    }
}

/// Each request of random streams completes once, whichever requests are merged.
#[test]
fn merging_completes_each_request_exactly_once() {
    for seed in 1..=20u64 {
        let (mut gate, read) = merging(2);
        let now = Instant::ZERO;
        let mut random = seed;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut log, mut over, mut flying) = (Log(Vec::new()), vec![0u32; 2000], Vec::new());
        let mut finished = Vec::new();
        for token in 0..2000 {
            gate.insert(now, &read(next(96) * 4096, token)).unwrap();
            if next(3) == 0 {
                let _ = gate.pump(now, &mut log);
                flying.append(&mut log.0);
            }
            if next(4) == 0 && !flying.is_empty() {
                let submission: Submission = flying.swap_remove(next(flying.len() as u64) as usize);
                gate.complete_all(now, submission.slot, true, &mut finished);
            }
        }
        while gate.queued() + gate.in_flight() > 0 {
            let _ = gate.pump(now, &mut log);
            flying.append(&mut log.0);
            gate.complete_all(now, flying.pop().unwrap().slot, true, &mut finished);
        }
        finished.iter().for_each(|finished| over[finished.token as usize] += 1);
        assert!(over.iter().all(|times| *times == 1));
        assert_eq!(gate.stats(OwnerId(0)).unwrap().bytes, 2000 * 4096);
    }
}

/// A gate of one VM with two slots, two reads of 4 KiB in flight and one that waits, at 10 ms.
fn two_of_three(policy: Policy) -> (Gate, Log, OwnerId, VolumeId) {
    let (mut gate, mut log) = (gate("mclock", 2), Log(Vec::new()));
    let owner = gate.add_owner(Instant::ZERO, policy).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    for token in 0..3 {
        let at = Instant::from_millis(10);
        gate.insert(at, &arrival(owner, volume, Kind::Read, 4096, token)).unwrap();
        let _ = gate.pump(at, &mut log);
    }
    (gate, log, owner, volume)
}

#[test]
fn backlog_is_the_time_with_a_queue_and_latency_runs_from_arrival_to_completion() {
    let target = crate::policy::LatencyTarget { p99: core::time::Duration::from_millis(7), reads_only: true };
    let (mut gate, mut log, owner, _) = two_of_three(Policy { latency: Some(target), ..Policy::default() });
    let at = Instant::from_millis;
    let backlogged = |gate: &Gate, millis| gate.outstanding(owner).unwrap().backlogged_nanos(at(millis));
    assert_eq!((backlogged(&gate, 10), backlogged(&gate, 14)), (0, 4_000_000));
    assert_eq!(gate.device_stats().full_nanos(at(14)), 4_000_000);
    let (slots, mut finished) = ([log.0[0].slot, log.0[1].slot], Vec::new());
    gate.complete_all(at(15), slots[0], true, &mut finished);
    let _ = gate.pump(at(15), &mut log);
    assert_eq!(backlogged(&gate, 20), 5_000_000, "nothing is queued any more");
    gate.complete_all(at(18), slots[1], false, &mut finished);
    gate.complete_all(at(18), log.0[2].slot, true, &mut finished);
    let stats = gate.stats(owner).unwrap();
    assert_eq!(stats.ended.map(|by_kind| by_kind[Kind::Read as usize]), [2, 1, 0]);
    assert_eq!((stats.judged, stats.late), (2, 1), "5 ms and 8 ms, of which 5 ms in the queue");
    assert_eq!(stats.latency.count(), 2, "a failed request has no latency");
    assert_eq!(stats.waits[Wait::Device as usize].nanos, 5_000_000);
    let cost = u64::from(gate.settings().cost.cost(Kind::Read, 4096).raw());
    assert_eq!(stats.dispatched_cost, 3 * cost);
    let bytes = (cost * 8192) >> 16;
    assert_eq!(stats.dispatched_bytes, 3 * bytes, "a reservation in bytes is charged for the time of a small request");
    assert_eq!(gate.device_stats().full_nanos(at(30)), 8_000_000);
    assert_eq!(gate.device_stats().service_time[Kind::Read as usize].count(), 3);
}

#[test]
fn a_new_latency_target_applies_to_requests_that_complete_after_it() {
    let target = |millis, reads_only| {
        Some(crate::policy::LatencyTarget { p99: core::time::Duration::from_millis(millis), reads_only })
    };
    let (mut gate, log, owner, _) = two_of_three(Policy::default());
    let mut judged = |slot: usize, latency| {
        gate.set_owner(Instant::from_millis(14), owner, Policy { latency, ..Policy::default() }).unwrap();
        gate.complete_all(Instant::from_millis(15), log.0[slot].slot, true, &mut Vec::new());
        let _ = gate.pump(Instant::from_millis(15), &mut Log(Vec::new()));
        let stats = gate.stats(owner).unwrap();
        (stats.judged, stats.late)
    };
    assert_eq!(judged(0, None), (0, 0));
    assert_eq!(judged(1, target(3, true)), (1, 1), "5 ms");
}

#[test]
fn another_capacity_changes_as_how_many_bytes_a_small_request_counts() {
    let (mut gate, mut log) = (gate("mclock", 1), Log(Vec::new()));
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    let mut counted = |request_bytes: Bytes, millis: u64| {
        let at = Instant::from_millis(millis);
        gate.set_device(at, 1, request_bytes).unwrap();
        let before = gate.stats(owner).unwrap().dispatched_bytes;
        gate.insert(at, &arrival(owner, volume, Kind::Read, 8192, 0)).unwrap();
        let _ = gate.pump(at, &mut log);
        gate.complete_all(at, log.0.last().unwrap().slot, true, &mut Vec::new());
        gate.stats(owner).unwrap().dispatched_bytes - before
    };
    assert_eq!([Bytes::kib(8), Bytes::kib(100), Bytes::kib(1)].map(|bytes| counted(bytes, 1)), [8192, 102_400, 8192]);
}

#[test]
fn bytes_of_a_device_of_hardly_any_requests_overflowed_their_sums() {
    let (mut gate, mut log) = (gate("mclock", 1), Log(Vec::new()));
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    // 0.001 iops and 1 GiB/s.
    gate.set_device(Instant::ZERO, 1, Bytes(1000 << 30)).unwrap();
    for count in 0..20 {
        gate.insert(Instant::ZERO, &arrival(owner, volume, Kind::Read, 256 << 10, 0)).unwrap();
        let _ = gate.pump(Instant::ZERO, &mut log);
        gate.complete_all(Instant::ZERO, log.0[count].slot, true, &mut Vec::new());
    }
    let stats = gate.stats(owner).unwrap();
    assert_eq!((stats.outstanding.arrived, stats.squared_bytes), (20, u64::MAX), "the sum stays at its end");
    assert!(stats.dispatched_bytes > 36_000 << 30);
}

#[test]
fn a_second_volume_is_counted_apart_and_the_first_keeps_its_counts() {
    let (mut gate, mut log, owner, first) = two_of_three(Policy::default());
    assert!(gate.apart_stats(owner, first).is_none(), "the counts of the only volume are those of its VM");
    let at = Instant::from_millis(20);
    let second = gate.add_volume(at, owner, Policy::default()).unwrap();
    gate.insert(at, &arrival(owner, second, Kind::Write, 4096, 9)).unwrap();
    let mut finished = Vec::new();
    for sent in 0..4 {
        gate.complete_all(at, log.0[sent].slot, true, &mut finished);
        let _ = gate.pump(at, &mut log);
    }
    let completed = |volume| gate.apart_stats(owner, volume).unwrap().completed().iter().sum::<u64>();
    assert_eq!((completed(first), completed(second)), (3, 1));
    assert_eq!(gate.stats(owner).unwrap().completed().iter().sum::<u64>(), 4);
    gate.remove_volume(at, owner, second, &mut finished).unwrap();
    assert_eq!(gate.apart_stats(owner, first).unwrap().latency.count(), 3, "it stays apart");
    gate.remove_volume(at, owner, first, &mut finished).unwrap();
    let third = gate.add_volume(at, owner, Policy::default()).unwrap();
    assert_eq!(
        gate.apart_stats(owner, third).unwrap().outstanding.arrived,
        0,
        "a new volume does not take over old counts"
    );
}

#[test]
fn a_request_of_a_removed_volume_was_counted_for_the_volume_that_got_its_number() {
    let (mut gate, mut log, owner, first) = two_of_three(Policy::default());
    let (at, mut finished) = (Instant::from_millis(20), Vec::new());
    let other = gate.add_volume(at, owner, Policy::default()).unwrap();
    gate.remove_volume(at, owner, first, &mut finished).unwrap();
    assert_eq!(gate.add_volume(at, owner, Policy::default()).unwrap(), first);
    gate.complete_all(at, log.0[0].slot, true, &mut finished);
    let _ = gate.pump(at, &mut log);
    let succeeded = |volume| gate.apart_stats(owner, volume).unwrap().completed().iter().sum::<u64>();
    assert_eq!((succeeded(first), succeeded(other)), (0, 0));
    assert_eq!(gate.stats(owner).unwrap().completed()[0], 1);
}

/// Copies of the statistics of an owner and two volumes, in words.
fn accounts(gate: &Gate, owner: OwnerId, volumes: [VolumeId; 2]) -> (String, [String; 2]) {
    (
        format!("{:?}", gate.stats(owner).unwrap()),
        volumes.map(|id| format!("{:?}", gate.apart_stats(owner, id).unwrap())),
    )
}

#[test]
fn statistics_are_the_same_before_and_after_the_journal_is_added_to_them() {
    let (mut gate, mut log) = (gate("mclock", 4), Log(Vec::new()));
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volumes = [0, 1].map(|_| gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap());
    let mut finished = Vec::new();
    let mut flying = std::collections::VecDeque::new();
    // 700 events: the journal is added twice on the way, and has events when it is compared.
    for count in 0..350u64 {
        let at = Instant::from_millis(1 + count);
        gate.insert(at, &arrival(owner, volumes[count as usize % 2], Kind::Read, 4096, 0)).unwrap();
        let _ = gate.pump(at, &mut log);
        flying.extend(log.0.drain(..).map(|submission| submission.slot));
        if flying.len() == 3 {
            gate.complete_all(at, flying.pop_front().unwrap(), count % 7 > 0, &mut finished);
        }
        if count % 50 == 0 {
            let before = accounts(&gate, owner, volumes);
            gate.settle_stats();
            assert_eq!(accounts(&gate, owner, volumes), before, "after {count} requests");
        }
    }
    let (all, apart) = (gate.stats(owner).unwrap(), volumes.map(|id| gate.apart_stats(owner, id).unwrap()));
    let completed = |stats: &GateStats| stats.latency.count();
    assert_eq!((completed(&all), all.failed), (299, 49));
    assert_eq!(apart.iter().map(completed).sum::<u64>(), 299);
    assert_eq!((all.outstanding.arrived, all.outstanding.in_flight), (350, 2));
}

#[test]
fn a_copy_of_the_counters_is_outdated_by_each_event_and_by_nothing_else() {
    let (mut gate, mut log) = (gate("noop", 1), Log(Vec::new()));
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    let mut copy = gate.stats(owner).unwrap();
    let mut check = |gate: &Gate, happened: bool| {
        assert_eq!(gate.outstanding(owner).unwrap().is_unchanged_since(&copy.outstanding), !happened);
        copy = gate.stats(owner).unwrap();
    };
    let mut finished = Vec::new();
    for round in 1..5 {
        let at = Instant::from_millis(round);
        gate.insert(at, &arrival(owner, volume, Kind::Read, 4096, 0)).unwrap();
        gate.insert(at, &arrival(owner, volume, Kind::Read, 4096, 1)).unwrap();
        check(&gate, true);
        let _ = gate.pump(at, &mut log);
        check(&gate, true);
        gate.cancel(at, Scope::Owner(owner), &mut finished);
        check(&gate, true);
        gate.complete_all(at, log.0.pop().unwrap().slot, true, &mut finished);
        check(&gate, true);
        let _ = gate.pump(at, &mut log);
        check(&gate, false);
    }
}

#[test]
fn the_only_volume_with_a_latency_target_was_counted_twice_or_by_the_target_of_its_vm() {
    let within = |millis| {
        let target = crate::policy::LatencyTarget { p99: core::time::Duration::from_millis(millis), reads_only: false };
        Policy { latency: Some(target), ..Policy::default() }
    };
    // Judged and late requests of the owner, and of its volume if that is counted apart, after two requests of 5 ms.
    let late = |owners: Policy, volumes: Policy| {
        let (mut gate, log, owner, volume) = two_of_three(owners);
        gate.set_volume(Instant::from_millis(14), owner, volume, volumes).unwrap();
        for sent in 0..2 {
            gate.complete_all(Instant::from_millis(15), log.0[sent].slot, true, &mut Vec::new());
        }
        let of = |stats: &GateStats| (stats.judged, stats.late);
        (of(&gate.stats(owner).unwrap()), gate.apart_stats(owner, volume).as_ref().map(of))
    };
    let (none, short, long) = (Policy::default(), within(3), within(100));
    assert_eq!(late(none, none), ((0, 0), None));
    assert_eq!(late(none, short), ((2, 2), None), "the target of either is judged in the counts of both");
    assert_eq!(late(short, none), ((2, 2), None));
    assert_eq!(late(short, short), ((2, 2), None));
    assert_eq!(late(long, short), ((2, 0), Some((2, 2))), "two targets need two counts");
    assert_eq!(late(short, long), ((2, 2), Some((2, 0))));
}
